/* SPDX-License-Identifier: Apache-2.0
 * JSON that is written as it comes, for lists as long as a graph, of which no tree is made. The text is the one that
 * inv_report_text gives. */
#ifndef INV_EXECUTOR_JSON_TEXT_H
#define INV_EXECUTOR_JSON_TEXT_H

#include <jansson.h>

#include "core/base/mem.h"
#include "core/base/shape.h"

typedef struct inv_json {
    inv_str text;
    size_t depth; /* of objects and lists that are open */
} inv_json;

void inv_json_begin(inv_json *w, inv_context *ctx);
inv_status inv_json_take(inv_json *w, char **out); /* all that was opened is closed; the text is the context's */

/* `key`: NULL in lists and at the outside. What cannot be written, for want of memory or of UTF-8, fails all of it. */
void inv_json_open(inv_json *w, const char *key, char bracket);
void inv_json_close(inv_json *w, char bracket);
void inv_json_string(inv_json *w, const char *key, const char *s); /* NULL: null */
void inv_json_integer(inv_json *w, const char *key, int64_t n);
/* These two take the tree with them; NULL is what cannot be written. */
void inv_json_tree(inv_json *w, const char *key, json_t *tree);
void inv_json_fields(inv_json *w, json_t *object); /* each of them, into the object that is open */
json_t *inv_report_shape(const inv_shape *s);      /* its extents */
json_t *inv_report_number(double x);               /* null if it is not finite */
/* The text of `root`, which goes with it; owned by the context, so that inv_free can free it. */
inv_status inv_report_text(inv_context *ctx, json_t *root, char **out);
bool inv_json_is_text(const char *s); /* whether it can be written: names in a file need not be UTF-8 */

#endif
