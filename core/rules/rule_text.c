/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules as text: what `invonnx rules` prints and what a plugin may be.
 *
 *     rule leaky_relu
 *         priority   20
 *         match      y = LeakyRelu(x)
 *         case       g(float[4,6] in) => (z) { ...
 *                  | further lines of it }
 *
 * A line is a field of the rule above it; `|` goes on with the field before; `""` is an empty text, and a line that
 * begins with # is a comment. */
#include <stdio.h>
#include <string.h>

#include "core/graph/ir_internal.h"

#define WIDTH 10 /* of the column of field names */

/* --- printing --- */

static void print_field(inv_str *out, const char *name, const char *text)
{
    if (!text) return;
    inv_str_add(out, "    %-*s ", WIDTH, name);
    if (!*text) inv_str_add(out, "\"\"");
    for (size_t n; *text; text += n) {
        n = strcspn(text, "\n");
        inv_str_add(out, "%.*s", (int)n, text);
        if (text[n] == '\n') {
            inv_str_add(out, "\n    %*s ", WIDTH, "|");
            n++;
        }
    }
    inv_str_add(out, "\n");
}

void inv_rule_print(const inv_inverse_def *d, inv_str *out)
{
    char number[16];
    inv_str_add(out, "rule %s\n", d->name);
    for (const inv_rule_field *f = inv_rule_fields; f->name; f++) {
        print_field(out, f->name, inv_rule_text(d, f));
        if (strcmp(f->name, "kind") == 0 && d->priority) {
            snprintf(number, sizeof number, "%d", (int)d->priority);
            print_field(out, "priority", number);
        }
    }
    if (d->exactness == INV_EXACT) print_field(out, "exactness", "exact");
    for (size_t i = 0; d->cases && d->cases[i]; i++) print_field(out, "case", d->cases[i]);
}

/* --- reading --- */

typedef struct reader {
    inv_registry *r;
    inv_arena arena;
    int line;                                 /* of the text, from 1 */
    inv_inverse_def rule;                     /* name NULL: none yet; its texts are pieces of the file */
    int rule_line, field_line[16], case_line; /* by index in inv_rule_fields */
    INV_VEC(const char *) cases;
    char *end; /* of the text that a line which begins with | goes on with; NULL: there is none */
} reader;

static inv_status fail_at_line(reader *x, const char *what, const char *word)
{
    return inv_fail(x->r->ctx, INV_E_PARSE, "line %d: rule '%s': %s '%.60s'", x->line, x->rule.name, what, word);
}

/* The line that the registry complains of. */
static int line_of(const reader *x, const char *field)
{
    for (size_t i = 0; field && inv_rule_fields[i].name; i++)
        if (strcmp(inv_rule_fields[i].name, field) == 0 && x->field_line[i]) return x->field_line[i];
    return field && strcmp(field, "case") == 0 ? x->case_line : x->rule_line;
}

static inv_status end_rule(reader *x)
{
    if (!x->rule.name) return INV_OK;
    if (!inv_vec_push(&x->arena, &x->cases, NULL)) return INV_E_NOMEM;
    x->rule.size = sizeof x->rule;
    x->rule.cases = x->cases.at;
    inv_status s = inv_registry_add_inverse(x->r, &x->rule);
    if (s != INV_OK && s != INV_E_NOMEM)
        (void)inv_fail(x->r->ctx, s, "line %d: %s", line_of(x, x->r->field), inv_context_message(x->r->ctx));
    inv_arena_fini(&x->arena);
    inv_arena_init(&x->arena, x->r->ctx);
    x->rule = (inv_inverse_def){0};
    x->cases.at = NULL;
    x->cases.n = x->cases.cap = 0;
    x->end = NULL;
    return s;
}

static inv_status begin_rule(reader *x, const char *name)
{
    INV_TRY(end_rule(x));
    INV_CHECK(*name && !name[strcspn(name, " \t")], x->r->ctx, INV_E_PARSE,
              "line %d: one name expected after 'rule', found '%.60s'", x->line, name);
    memset(x->field_line, 0, sizeof x->field_line);
    x->rule_line = x->line;
    x->rule.name = name;
    return INV_OK;
}

static inv_status read_priority(reader *x, const char *word, int32_t *out)
{
    int64_t v = 0;
    const char *p = word + (*word == '-');
    for (; *p >= '0' && *p <= '9' && v < INT32_MAX; p++) v = 10 * v + (*p - '0');
    if (p == word + (*word == '-') || *p || v > INT32_MAX)
        return fail_at_line(x, "priority is a whole number, not", word);
    *out = (int32_t)(*word == '-' ? -v : v);
    return INV_OK;
}

static inv_status known_names(reader *x, const char *word)
{
    inv_str list;
    inv_str_init(&list, x->r->ctx);
    for (const inv_rule_field *f = inv_rule_fields; f->name; f++) inv_str_add(&list, "%s, ", f->name);
    inv_status s = inv_fail(x->r->ctx, INV_E_PARSE,
                            "line %d: rule '%s': there is no field '%.60s'; there are: %spriority, exactness, case",
                            x->line, x->rule.name, word, list.s);
    inv_str_fini(&list);
    return s;
}

static inv_status read_field(reader *x, const char *word, char *text)
{
    x->end = NULL;
    const size_t n = strlen(text);
    if (strcmp(text, "\"\"") == 0) *text = 0;
    else if (strcmp(word, "kind") == 0 && n > 2 && *text == '"' && text[n - 1] == '"') {
        text[n - 1] = 0;
        text++;
    }
    if (strcmp(word, "priority") == 0) return read_priority(x, text, &x->rule.priority);
    if (strcmp(word, "exactness") == 0) {
        x->rule.exactness = strcmp(text, "exact") == 0 ? INV_EXACT : INV_BOUNDED;
        return x->rule.exactness == INV_EXACT || strcmp(text, "bounded") == 0
                   ? INV_OK
                   : fail_at_line(x, "exactness is exact or bounded, not", text);
    }
    x->end = text + strlen(text);
    if (strcmp(word, "case") == 0) {
        x->case_line = x->line;
        return inv_vec_push(&x->arena, &x->cases, text) ? INV_OK : INV_E_NOMEM;
    }
    for (size_t i = 0; inv_rule_fields[i].name; i++) {
        if (strcmp(inv_rule_fields[i].name, word) != 0) continue;
        if (x->field_line[i]) return fail_at_line(x, "a second", word);
        x->field_line[i] = x->line;
        *(const char **)(void *)((char *)&x->rule + inv_rule_fields[i].offset) = text;
        return INV_OK;
    }
    return known_names(x, word);
}

/* The lines of a text are moved together where they stand. */
static inv_status go_on(reader *x, const char *text)
{
    INV_CHECK(x->end, x->r->ctx, INV_E_PARSE, "line %d: '|' is not followed by text", x->line);
    size_t n = strlen(text);
    *x->end++ = '\n';
    memmove(x->end, text, n + 1);
    x->end += n;
    return INV_OK;
}

/* One line, without blanks at its ends. */
static inv_status take_line(reader *x, char *s)
{
    if (!*s || *s == '#') return INV_OK;
    if (*s == '|') return go_on(x, s + 1 + (s[1] == ' '));
    size_t n = strcspn(s, " \t");
    char *rest = s + n + strspn(s + n, " \t");
    if (s[n]) s[n] = 0;
    if (strcmp(s, "rule") == 0) return begin_rule(x, rest);
    INV_CHECK(x->rule.name, x->r->ctx, INV_E_PARSE, "line %d: 'rule NAME' expected, found '%.60s'", x->line, s);
    return read_field(x, s, rest);
}

static inv_status read_lines(reader *x, char *text)
{
    for (char *s = text; s; x->line++) {
        char *end = strchr(s, '\n'), *next = end ? end + 1 : NULL;
        if (!end) end = s + strlen(s);
        s += strspn(s, " \t");
        while (end > s && strchr(" \t\r", end[-1])) end--;
        *end = 0;
        INV_TRY(take_line(x, s));
        s = next;
    }
    return end_rule(x);
}

const char *inv_not_text(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        unsigned lead = *s, more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3, code = lead;
        if (lead < 0x20 ? !strchr("\t\n\r", (int)lead) : lead == 0x7f || (lead >= 0x80 && (lead < 0xc2 || lead > 0xf4)))
            return (const char *)s;
        if (more) code = lead & (0x3fu >> more);
        for (unsigned k = 1; k <= more; k++) {
            if ((s[k] & 0xc0) != 0x80) return (const char *)s;
            code = code << 6 | (s[k] & 0x3fu);
        }
        const bool surrogate = code >= 0xd800 && code < 0xe000;
        if (more > 1 && (code < (more == 2 ? 0x800u : 0x10000u) || surrogate || code > 0x10ffff))
            return (const char *)s;
        s += more + 1;
    }
    return NULL;
}

inv_status inv_rules_read(inv_registry *r, const char *text, size_t nbytes)
{
    reader x = {.r = r, .line = 1};
    const size_t mark = inv_text_mark((const unsigned char *)text, nbytes);
    text += mark;
    nbytes -= mark;
    size_t before = r->inverse.n;
    char *copy = inv_alloc(r->ctx, nbytes + 1);
    if (!copy) return INV_E_NOMEM;
    memcpy(copy, text, nbytes);
    const char *odd = inv_not_text(copy);
    inv_arena_init(&x.arena, r->ctx);
    inv_status s = INV_OK;
    if (odd || strlen(copy) != nbytes) {
        for (const char *p = copy; *p && (!odd || p < odd); p++) x.line += *p == '\n';
        s = inv_fail(r->ctx, INV_E_PARSE, "line %d: a byte that is no text (rules are UTF-8)", x.line);
    } else {
        s = read_lines(&x, copy);
    }
    if (s == INV_OK && r->inverse.n == before)
        s = inv_fail(r->ctx, INV_E_PARSE, "it holds no rule ('rule NAME' at the beginning of a line)");
    inv_arena_fini(&x.arena);
    inv_dealloc(r->ctx, copy);
    return s;
}
