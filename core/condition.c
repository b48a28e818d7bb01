/* SPDX-License-Identifier: Apache-2.0
 * Conditions and gains of inverse rules: `name(arguments) relation number`, separated by ';'. */
#include "core/condition.h"

#include <string.h>

#include "core/text.h"

/* Arguments: v a value of the pattern, a an attribute, n a number; after '?' they may be left out. */
typedef struct form {
    const char *name, *args, *relations;
} form;
static const form conditions[] = {{"same_shape", "vv", ""},     {"same_type", "vv", ""},      {"square", "v", ""},
                                  {"tall", "v", ""},            {"wide", "v", ""},            {"cond", "v", "<"},
                                  {"positive", "v", ""},        {"away_from_zero", "vn", ""}, {"attr", "a?n", "<>="},
                                  {"recoverable", "v", ""},     {"per_channel", "vv", ""},    {"some_leave", "v", ""},
                                  {"space_to_depth", "vv", ""}, {"has_features", "v", ""},    {"reflects", "vv", ""},
                                  {"complementary", "vv", ""},  {"patches", "v", ""},
                                  {"same_rank", "vv", ""},      {"odd", "v", ""},             {"equals", "vn", ""},
                                  {NULL, NULL, NULL}};
static const form gains[] = {{"max_inv", "v", ""},
                             {"max_abs", "v", ""},
                             {"expected_inv", "v", ""},
                             {"expected_abs", "v", ""},
                             {"inv_norm", "v", ""},
                             {"inv_attr", "a?n", ""},
                             {"times", "n", ""},
                             {"unbounded", "", ""},
                             {NULL, NULL, NULL}};

static const char *skip(const char *s) { return s + strspn(s, " \n\t"); }

/* The word at *p, up to a blank or one of `(),;<>=`. */
static bool word(const char **p, char out[32])
{
    const char *s = skip(*p);
    size_t n = strcspn(s, "(),;<>= \n\t");
    if (n == 0 || n >= 32) return false;
    memcpy(out, s, n);
    out[n] = 0;
    *p = skip(s + n);
    return true;
}

static bool arguments(const char **p, const char *kinds, inv_condition *c)
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
        if (c->nargs == 2 || !word(p, c->arg[c->nargs])) return false;
        if (*kinds == 'n' && !inv__word_double(c->arg[c->nargs], &c->number)) return false;
        c->nargs++;
    }
    if (*(*p) != ')') return false;
    *p = skip(*p + 1);
    return true;
}

static bool relation(const char **p, const char *allowed, inv_condition *c)
{
    char text[32];
    if (!*allowed) return true;
    if (!**p || !strchr(allowed, **p)) return false;
    c->relation = *(*p)++;
    if (c->relation == '=' && *(*p)++ != '=') return false;
    return word(p, text) && inv__word_double(text, &c->bound);
}

static const form *form_of(bool gain, const char *name)
{
    for (const form *f = gain ? gains : conditions; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

int inv__condition_next(const char **p, bool gain, inv_condition *c)
{
    memset(c, 0, sizeof *c);
    const char *s = skip(*p);
    if (!*s) return 0;
    const form *f = word(&s, c->name) ? form_of(gain, c->name) : NULL;
    if (!f || !arguments(&s, f->args, c) || !relation(&s, f->relations, c)) return -1;
    if (*s && (*s != ';' || gain)) return -1;
    *p = *s ? s + 1 : s;
    return 1;
}

static bool is_name(const char *in_pattern, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(in_pattern, "param(", 6) == 0) return strncmp(in_pattern + 6, name, n) == 0 && in_pattern[6 + n] == ')';
    return strcmp(in_pattern, name) == 0;
}

static bool in_pattern(const inv_stmts *match, const char *name)
{
    for (size_t i = 0; i < match->n; i++) {
        const inv_stmt *s = &match->at[i];
        for (uint32_t k = 0; k < s->nin; k++)
            if (is_name(s->in[k], name)) return true;
        for (uint32_t k = 0; k < s->nout; k++)
            if (is_name(s->out[k], name)) return true;
    }
    return false;
}

static inv_status check_one(inv_context *ctx, const inv_inverse_def *d, const inv_stmts *match, bool gain)
{
    const char *p = gain ? d->gain : d->when, *what = gain ? "gain" : "when";
    inv_condition c;
    int got = 0;
    while (p && (got = inv__condition_next(&p, gain, &c)) > 0) {
        const char *args = form_of(gain, c.name)->args;
        for (int k = 0; k < c.nargs; k++)
            INV_CHECK(args[k] != 'v' || in_pattern(match, c.arg[k]), ctx, INV_E_PARSE,
                      "inverse rule '%s', %s: match names no value '%s'", d->name, what, c.arg[k]);
    }
    INV_CHECK(got == 0, ctx, INV_E_PARSE, "inverse rule '%s', %s: '%s' is not one of those that plugin.h lists",
              d->name, what, p);
    return INV_OK;
}

static bool makes(const inv_stmts *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < list->at[i].nout; k++)
            if (strcmp(list->at[i].out[k], name) == 0) return true;
    return false;
}

/* What the statements read has to be there: values of the pattern, but the freed one is for `saves` alone, what was
 * saved, and what they make themselves. */
static inv_status check_reads(inv_context *ctx, const inv_inverse_def *d, const inv_stmts *match,
                              const inv_stmts *saves, const inv_stmts *list)
{
    for (size_t i = 0; i < list->n; i++)
        for (uint32_t k = 0; k < list->at[i].nin; k++) {
            const char *name = list->at[i].in[k];
            bool there = (list == saves || strcmp(name, d->frees) != 0) && in_pattern(match, name);
            INV_CHECK(there || makes(list, i, name) || (list != saves && makes(saves, saves->n, name)), ctx,
                      INV_E_PARSE, "inverse rule '%s', %s: '%s' is neither a value of the pattern%s, nor made by a "
                      "statement before", d->name, list == saves ? "saves" : "solve", name,
                      list == saves ? "" : " other than what it frees");
        }
    return INV_OK;
}

inv_status inv__condition_check(inv_context *ctx, const inv_inverse_def *d)
{
    inv_arena scratch;
    inv_stmts match = {0}, solve = {0}, saves = {0};
    inv__arena_init(&scratch, ctx);
    inv_status s = inv_text_stmts(ctx, &scratch, d->match, &match);
    if (s == INV_OK && d->solve) s = inv_text_stmts(ctx, &scratch, d->solve, &solve);
    if (s == INV_OK && d->saves) s = inv_text_stmts(ctx, &scratch, d->saves, &saves);
    if (s == INV_OK && match.n > INV_MAX_PATTERN)
        s = inv__fail(ctx, INV_E_PARSE, "inverse rule '%s': match has %zu statements, at most %d are supported",
                      d->name, match.n, INV_MAX_PATTERN);
    if (s == INV_OK && d->frees && !in_pattern(&match, d->frees))
        s = inv__fail(ctx, INV_E_PARSE, "inverse rule '%s', frees: match names no value '%s'", d->name, d->frees);
    if (s == INV_OK) s = check_reads(ctx, d, &match, &saves, &saves);
    if (s == INV_OK) s = check_reads(ctx, d, &match, &saves, &solve);
    if (s == INV_OK) s = check_one(ctx, d, &match, false);
    if (s == INV_OK) s = check_one(ctx, d, &match, true);
    inv__arena_fini(&scratch);
    return s;
}
