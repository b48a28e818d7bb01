/* SPDX-License-Identifier: Apache-2.0
 * JSON as it comes (json_text.h). */
#include "executor/run/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put(inv_json *w, const char *s) { inv_str_put(&w->text, s, strlen(s)); }

static void begin_line(inv_json *w)
{
    put(w, "\n");
    for (size_t i = 0; i < w->depth; i++) put(w, " ");
}

/* A comma behind what came before, a line, and the key. */
static void begin_value(inv_json *w, const char *key)
{
    if (!w->depth) return;
    const char last = w->text.n ? w->text.s[w->text.n - 1] : '{';
    if (last != '{' && last != '[') put(w, ",");
    begin_line(w);
    if (!key) return;
    put(w, "\"");
    put(w, key);
    put(w, "\": ");
}

void inv_json_begin(inv_json *w, inv_context *ctx)
{
    w->depth = 0;
    inv_str_init(&w->text, ctx);
}

inv_status inv_json_take(inv_json *w, char **out)
{
    inv_context *ctx = w->text.ctx;
    const inv_status s = inv_str_take(&w->text, out);
    return s == INV_OK ? INV_OK : inv_fail(ctx, INV_E_NOMEM, "out of memory while writing a report");
}

void inv_json_open(inv_json *w, const char *key, char bracket)
{
    begin_value(w, key);
    inv_str_put(&w->text, &bracket, 1);
    w->depth++;
}

void inv_json_close(inv_json *w, char bracket)
{
    const char last = w->text.n ? w->text.s[w->text.n - 1] : '{';
    w->depth--;
    if (last != '{' && last != '[') begin_line(w);
    inv_str_put(&w->text, &bracket, 1);
}

/* Printable ASCII that stands in JSON as it is. */
static bool is_plain(const char *s)
{
    for (; *s; s++)
        if (*s < ' ' || *s > '~' || *s == '"' || *s == '\\') return false;
    return true;
}

void inv_json_string(inv_json *w, const char *key, const char *s)
{
    if (!s || !is_plain(s)) {
        inv_json_tree(w, key, s ? json_string(s) : json_null());
        return;
    }
    begin_value(w, key);
    put(w, "\"");
    put(w, s);
    put(w, "\"");
}

void inv_json_integer(inv_json *w, const char *key, int64_t n)
{
    char digits[24], *at = digits + sizeof digits;
    uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    *--at = 0;
    do *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (n < 0) *--at = '-';
    begin_value(w, key);
    put(w, at);
}

/* Lines of a tree begin as far to the right as it stands itself; line breaks within texts are written as \n. */
static int put_lines(const char *s, size_t n, void *opaque)
{
    inv_json *w = opaque;
    for (const char *end; (end = memchr(s, '\n', n)); n -= (size_t)(end - s), s = end) {
        inv_str_put(&w->text, s, (size_t)(end - s));
        begin_line(w);
        end++;
    }
    inv_str_put(&w->text, s, n);
    return w->text.failed ? -1 : 0;
}

void inv_json_tree(inv_json *w, const char *key, json_t *tree)
{
    begin_value(w, key);
    if (json_dump_callback(tree, put_lines, w, JSON_INDENT(1) | JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY) != 0)
        w->text.failed = true;
    json_decref(tree);
}

void inv_json_fields(inv_json *w, json_t *object)
{
    const char *key;
    json_t *value;
    if (!object) w->text.failed = true;
    json_object_foreach(object, key, value) inv_json_tree(w, key, json_incref(value));
    json_decref(object);
}

bool inv_json_is_text(const char *s)
{
    json_t *text = is_plain(s) ? NULL : json_string(s);
    const bool is = text || is_plain(s);
    json_decref(text);
    return is;
}

inv_status inv_report_text(inv_context *ctx, json_t *root, char **out)
{
    *out = NULL;
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    if (!text) return inv_fail(ctx, INV_E_NOMEM, "out of memory while writing a report");
    size_t n = strlen(text) + 1;
    char *copy = inv_alloc(ctx, n);
    if (copy) memcpy(copy, text, n);
    free(text);
    *out = copy;
    return copy ? INV_OK : INV_E_NOMEM;
}

json_t *inv_report_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *inv_report_shape(const inv_shape *s)
{
    json_t *extents = json_array();
    for (int i = 0; i < s->rank; i++) (void)json_array_append_new(extents, json_integer(s->dim[i]));
    return extents;
}
