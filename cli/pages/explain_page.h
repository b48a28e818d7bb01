/* SPDX-License-Identifier: Apache-2.0
 * The page of `explain --html`. */
#ifndef INVONNX_CLI_EXPLAIN_PAGE_H
#define INVONNX_CLI_EXPLAIN_PAGE_H

#include <jansson.h>

/** The graph drawn, and the same facts in tables. */
int cli_explain_page(const char *path, const char *heading, const json_t *explanation);

#endif
