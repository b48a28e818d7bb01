/* SPDX-License-Identifier: Apache-2.0
 * Files that the program writes, each by a temporary file and rename, and texts that it reads. */
#ifndef INVONNX_CLI_WRITE_FILES_H
#define INVONNX_CLI_WRITE_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "invonnx/invonnx.h"

/** "out_" + name with every byte outside [A-Za-z0-9._-] as %XX + ".npy", in `dir`. What is too long for a file is cut,
 *  with a hash of the whole behind it, and *shortened set. Caller frees; NULL: no memory. */
char *cli_dump_path(const char *dir, const char *prefix, const char *name, bool *shortened);
/** Writes by a temporary file and rename. Floating-point data goes as <f8 if `wide`, else as <f4. */
int cli_write_npy(const char *path, const void *data, inv_dtype dtype, int rank, const int64_t *dims, bool wide);
/** Writes the weights that the session holds as an archive of arrays by their names, without those that it reads where
 *  the model's file is mapped, which may have changed there. @return false: it is not there */
bool cli_write_weights(inv_session *session, const char *path);
/** Makes the directory if needed. `made`: whether it was not there before. */
int cli_make_dir(const char *dir, bool *made);
/** A file to be written completely or not at all. */
typedef struct cli_file {
    char *path, *temporary;
    FILE *f;
} cli_file;
int cli_file_open(cli_file *file, const char *path);
/** Renames into place if `ok`, else drops it. */
int cli_file_close(cli_file *file, bool ok);
/** All of a file, ended by a zero. Caller frees; NULL after saying why. */
char *cli_text_of_file(const char *path);
size_t cli_nelem(int rank, const int64_t *dims);

#endif
