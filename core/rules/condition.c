/* SPDX-License-Identifier: Apache-2.0
 * Reads conditions, gains and log-determinants of inverse rules: `name(arguments) relation number`, separated by ';'.
 * Time: the length of the text times the number of forms. */
#include "core/rules/condition.h"

#include <stdio.h>
#include <string.h>

#include "core/graph/op.h"
#include "core/graph/text.h"

/* `args` and `relations` are written as in core/rules/condition.inc. */
typedef struct form {
    const char *name, *args, *relations;
} form;
static const form conditions[] = {
#define CONDITION(name, args, relations, ...) {#name, args, relations},
#include "core/rules/condition.inc"
    {NULL, NULL, NULL}};
static const form gains[] = {
#define GAIN(name, args, ...) {#name, args, ""},
#include "core/rules/condition.inc"
    {NULL, NULL, NULL}};
static const form logdets[] = {{"0", "", ""},         {"log_abs", "v?v", ""}, {"-log_abs", "v?v", ""},
                               {"log_once", "v", ""}, {"-log_once", "v", ""}, {"log_det", "v", ""},
                               {"-log_det", "v", ""}, {"-log_std", "v", ""},  {"log_deriv", "", ""},
                               {NULL, NULL, NULL}};
static const form *const lists[] = {conditions, gains, logdets};
static const char *const fields[] = {"when", "gain", "logdet"};

static const char *skip_space(const char *s) { return s + strspn(s, " \n\t"); }

/* The word at *p, up to a blank or one of `(),;<>=`. */
static bool read_word(const char **p, char *out, size_t room)
{
    const char *s = skip_space(*p);
    size_t n = strcspn(s, "(),;<>= \n\t");
    if (n == 0 || n >= room) return false;
    memcpy(out, s, n);
    out[n] = 0;
    *p = skip_space(s + n);
    return true;
}

static bool read_arguments(const char **p, const char *kinds, inv_condition *c)
{
    if (!*kinds) return true;
    if (*(*p)++ != '(') return false;
    bool optional = false;
    for (; *kinds; kinds++) {
        if (*kinds == '?') {
            optional = true;
            continue;
        }
        if (optional && **p == ')') break;
        if (c->nargs > 0 && *(*p)++ != ',') return false;
        if (c->nargs == 2 || !read_word(p, c->arg[c->nargs], sizeof c->arg[0])) return false;
        if (*kinds == 'n' && !inv_word_double(c->arg[c->nargs], &c->number)) return false;
        c->nargs++;
    }
    if (*(*p) != ')') return false;
    *p = skip_space(*p + 1);
    return true;
}

static bool read_relation(const char **p, const char *allowed, inv_condition *c)
{
    char text[32];
    if (!*allowed) return true;
    if (!**p || !strchr(allowed, **p)) return false;
    c->relation = *(*p)++;
    if (c->relation == '=' && *(*p)++ != '=') return false;
    return read_word(p, text, sizeof text) && inv_word_double(text, &c->bound);
}

static const form *find_form(inv_language l, const char *name)
{
    for (const form *f = lists[l]; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

int inv_condition_next(const char **p, inv_language l, inv_condition *c)
{
    memset(c, 0, sizeof *c);
    const char *s = skip_space(*p);
    if (!*s) return 0;
    char name[32];
    const form *f = read_word(&s, name, sizeof name) ? find_form(l, name) : NULL;
    if (!f) return -1;
    c->id = (int)(f - lists[l]);
    c->name = f->name;
    if (!read_arguments(&s, f->args, c) || !read_relation(&s, f->relations, c)) return -1;
    if (*s && (*s != ';' || l == INV_IN_GAIN)) return -1;
    *p = *s ? s + 1 : s;
    return 1;
}

static bool is_pattern_name(const char *in_pattern, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(in_pattern, "param(", 6) == 0) return strncmp(in_pattern + 6, name, n) == 0 && in_pattern[6 + n] == ')';
    return strcmp(in_pattern, name) == 0;
}

/* Names of statements: of `match`, of `saves` or of `solve`. */
static bool in_statements(const inv_stmts *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++) {
        const inv_stmt *s = &list->at[i];
        for (uint32_t k = 0; k < s->nin; k++)
            if (is_pattern_name(s->in[k], name)) return true;
        for (uint32_t k = 0; k < s->nout; k++)
            if (is_pattern_name(s->out[k], name)) return true;
    }
    return false;
}

static bool is_parameter(const inv_stmts *match, const char *name)
{
    for (size_t i = 0; i < match->n; i++)
        for (uint32_t k = 0; k < match->at[i].nin; k++)
            if (strchr(match->at[i].in[k], '(') && is_pattern_name(match->at[i].in[k], name)) return true;
    return false;
}

static char kind_of_argument(const char *args, int k)
{
    for (; *args; args++)
        if (*args != '?' && k-- == 0) return *args;
    return 0;
}

/* "log_deriv" is of one operator whose row knows it; `op` may name several. */
static inv_status check_derivative(inv_context *ctx, const inv_inverse_def *d, const inv_stmts *match)
{
    inv_stmt one = match->at[0];
    char op[32];
    INV_CHECK(match->n == 1, ctx, INV_E_PARSE,
              "inverse rule '%s', logdet: log_deriv is for a match of one operator, "
              "this one has %zu",
              d->name, match->n);
    for (const char *p = one.op; *p; p += *p == '|') {
        const size_t n = strcspn(p, "|");
        snprintf(op, sizeof op, "%.*s", (int)n, p);
        one.op = op;
        const inv_op_def *row = n < sizeof op ? inv_registry_named(ctx->registry, &one) : NULL;
        INV_CHECK(row && row->log_slope, ctx, INV_E_PARSE,
                  "inverse rule '%s', logdet: log_deriv is not known of %.*s; state it by other forms, or leave it out",
                  d->name, (int)n, p);
        p += n;
    }
    return INV_OK;
}

/* A form as a rule has it, without what may be left out: "number(a) == C". */
static void print_form(inv_str *s, const form *f)
{
    const char relation = *f->relations;
    int k = 0;
    inv_str_add(s, "%s", f->name);
    for (const char *a = f->args; *a && *a != '?'; a++, k++)
        inv_str_add(s, "%s%s", k ? ", " : "(", *a == 'n' ? "C" : *a == 'a' ? "attribute" : k ? "b" : "a");
    inv_str_add(s, "%s", k ? ")" : "");
    if (relation) inv_str_add(s, " %c%s C", relation, relation == '=' ? "=" : "");
}

static inv_status fail_unknown_form(inv_context *ctx, const char *rule, inv_language l, const char *text)
{
    inv_str list;
    inv_str_init(&list, ctx);
    for (const form *f = lists[l]; f->name; f++) {
        inv_str_add(&list, "%s", f == lists[l] ? "" : ", ");
        print_form(&list, f);
    }
    const inv_status s =
        inv_fail(ctx, INV_E_PARSE, "inverse rule '%s', %s: '%.60s' is not one of %s (docs/adding-an-inverse.md)", rule,
                 fields[l], text, list.failed ? "" : list.s);
    inv_str_fini(&list);
    return s;
}

/* `more`: what names a text may take besides those of `match`. */
static inv_status check_one(inv_context *ctx, const inv_inverse_def *d, const inv_stmts *match, const inv_stmts *more,
                            inv_language l)
{
    const char *const texts[] = {d->when, d->gain, d->logdet};
    const char *p = texts[l], *what = fields[l];
    inv_condition c;
    int got = 0;
    while (p && (got = inv_condition_next(&p, l, &c)) > 0) {
        if (strcmp(c.name, "log_deriv") == 0) INV_TRY(check_derivative(ctx, d, match));
        INV_CHECK(!strstr(c.name, "log_det") || is_parameter(match, c.arg[0]), ctx, INV_E_PARSE,
                  "inverse rule '%s', logdet: %s is of a parameter, and match has no param(%s)", d->name, c.name,
                  c.arg[0]);
        for (int k = 0; k < c.nargs; k++)
            INV_CHECK(!strchr("vl", kind_of_argument(lists[l][c.id].args, k)) || in_statements(match, c.arg[k]) ||
                          ((k > 0 || l == INV_IN_LOGDET) && in_statements(more, c.arg[k])),
                      ctx, INV_E_PARSE, "inverse rule '%s', %s: match names no value '%s'", d->name, what, c.arg[k]);
    }
    return got == 0 ? INV_OK : fail_unknown_form(ctx, d->name, l, p);
}

inv_status inv_condition_check(inv_context *ctx, const inv_inverse_def *d, inv_language l)
{
    inv_arena scratch;
    const char *const others[] = {NULL, d->saves, d->solve};
    inv_stmts match = {0}, more = {0};
    inv_arena_init(&scratch, ctx);
    inv_status s = inv_text_stmts(ctx, &scratch, d->match, &match);
    if (s == INV_OK && others[l]) s = inv_text_stmts(ctx, &scratch, others[l], &more);
    if (s == INV_OK) s = check_one(ctx, d, &match, &more, l);
    inv_arena_fini(&scratch);
    return s;
}
