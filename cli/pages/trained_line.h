/* SPDX-License-Identifier: Apache-2.0
 * What of a model is trained, in one line. */
#ifndef INVONNX_CLI_TRAINED_LINE_H
#define INVONNX_CLI_TRAINED_LINE_H

#include <jansson.h>

/** What is trained and what is not, with the reasons and an example of each, in one line. */
void cli_say_trained(const json_t *report);
/** The line; the caller frees it. NULL: out of memory. */
char *cli_trained_text(const json_t *report);

#endif
