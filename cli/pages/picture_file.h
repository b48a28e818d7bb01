/* SPDX-License-Identifier: Apache-2.0
 * Pictures of memory as files. */
#ifndef INVONNX_CLI_PICTURE_FILE_H
#define INVONNX_CLI_PICTURE_FILE_H

#include "pictures/picture.h"

/** A picture of memory, in a file by its suffix .svg or .html. @return CLI_OK, or what was said */
int cli_picture(const char *path, const pic_memory *drawn);

#endif
