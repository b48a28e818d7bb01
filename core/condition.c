/* SPDX-License-Identifier: Apache-2.0
 * Conditions, gains and log-determinants of inverse rules: `name(arguments) relation number`, separated by ';'. */
#include "core/condition.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"

/* Arguments: v a value of the pattern, a an attribute, n a number; after '?' they may be left out. */
typedef struct form {
    const char *name, *args, *relations;
} form;
/* clang-format off */
static const form conditions[] = {{"same_shape", "vv", ""},     {"same_type", "vv", ""},      {"square", "v", ""},
                                  {"tall", "v", ""},            {"wide", "v", ""},            {"cond", "v", "<"},
                                  {"positive", "v", ""},        {"away_from_zero", "vn", ""}, {"attr", "a?n", "<>="},
                                  {"recoverable", "v", ""},     {"per_channel", "vv", ""},    {"some_leave", "v", ""},
                                  {"space_to_depth", "vv", ""}, {"has_features", "v", ""},    {"reflects", "vv", ""},
                                  {"complementary", "vv", ""},  {"patches", "v", ""},
                                  {"same_rank", "vv", ""},      {"odd", "v", ""},             {"attr_count", "v", "="},
                                  {NULL, NULL, NULL}};

/* What to do where a condition fails (see inv__condition_remedy), a row for each. `computed` NULL: as `remedy`. */
static const struct cure {
    const char *name;
    bool defines;
    const char *remedy, *computed;
} cures[] = {
    {"same_shape", false, "give '$1' and '$2' one shape; an operand that is broadcast can be expanded before",
     NULL},
    {"same_type", false, "give '$1' and '$2' one type", NULL},
    {"square", false, "make '$1' square: as many features out as in, or channels out as a window has entries", NULL},
    {"tall", false, "let '$1' give more features than it takes", NULL},
    {"wide", true, "let '$1' give fewer features than it takes", NULL},
    {"cond", false,
     "a better conditioned '$1' (orthogonal initialisation, or a penalty on its condition number)", NULL},
    {"positive", false, "keep every entry of '$1' above zero, for instance as Exp of the parameter",
     "make '$1' positive by how it is computed: Exp(Tanh(s)), or Sigmoid(s) plus a small constant"},
    {"away_from_zero", false,
     "keep every entry of '$1' away from zero, for instance as Exp of the parameter, or reset those that are near it",
     "bound '$1' away from zero by how it is computed: Exp(Tanh(s)), or Sigmoid(s) plus a small constant"},
    {"attr", false, "set attribute $1 so that $c", NULL},
    {"recoverable", false, "pass '$1' on: as an output of the model, or joined to the result", NULL},
    {"per_channel", true, "give '$1' one number per channel of '$2'", NULL},
    {"some_leave", true, "make some of the parts outputs of the model", NULL},
    {"space_to_depth", true, "let the blocks of neighbours in space become channels", NULL},
    {"has_features", false, "none is needed: '$1' is one number per row and small", NULL},
    {"reflects", false,
     "make it a reflection: what is taken off is 2 (x v) v' / |v|^2 for a direction v, or so for several at right "
     "angles", NULL},
    {"complementary", true, "let '$1' be a mask of 0 and 1, and '$2' 1 minus it", NULL},
    {"patches", false, "let the windows of '$1' stand side by side: strides as its kernel, no dilation", NULL},
    {"same_rank", true, "give '$1' and '$2' as many axes", NULL},
    {"odd", false, "make '$1' one odd number, so that powers keep the sign", NULL},
    {"attr_count", true, "leave out the attributes of the node of '$1' that the rule does not ask for", NULL},
};
/* clang-format on */
_Static_assert(sizeof cures / sizeof *cures + 1 == sizeof conditions / sizeof *conditions, "a cure for each condition");

/* clang-format off */
static const form gains[] = {{"max_inv", "v?v", ""},
                             {"max_abs", "v", ""},
                             {"expected_inv", "v", ""},
                             {"expected_abs", "v", ""},
                             {"inv_norm", "v", ""},
                             {"norm", "v", ""},
                             {"inv_attr", "a?n", ""},
                             {"times", "n", ""},
                             {"unbounded", "", ""},
                             {NULL, NULL, NULL}};
/* clang-format on */
static const form logdets[] = {{"0", "", ""},         {"log_abs", "v?v", ""}, {"-log_abs", "v?v", ""},
                               {"log_det", "v", ""},  {"-log_det", "v", ""},  {"-log_std", "v", ""},
                               {"log_deriv", "", ""}, {NULL, NULL, NULL}};
static const form *const lists[] = {conditions, gains, logdets};
static const char *const fields[] = {"when", "gain", "logdet"};

static const char *skip(const char *s) { return s + strspn(s, " \n\t"); }

/* The word at *p, up to a blank or one of `(),;<>=`. */
static bool word(const char **p, char *out, size_t room)
{
    const char *s = skip(*p);
    size_t n = strcspn(s, "(),;<>= \n\t");
    if (n == 0 || n >= room) return false;
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
        if (c->nargs == 2 || !word(p, c->arg[c->nargs], sizeof c->arg[0])) return false;
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
    return word(p, text, sizeof text) && inv__word_double(text, &c->bound);
}

static const form *form_of(inv_language l, const char *name)
{
    for (const form *f = lists[l]; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

static const struct cure *cure_of(const char *name)
{
    for (size_t i = 0; i < sizeof cures / sizeof *cures; i++)
        if (strcmp(cures[i].name, name) == 0) return &cures[i];
    return NULL;
}

const char *inv__condition_remedy(const inv_condition *c, bool computed)
{
    const struct cure *f = cure_of(c->name);
    return f ? computed && f->computed ? f->computed : f->remedy : NULL;
}

bool inv__condition_defines(const inv_condition *c)
{
    const struct cure *f = cure_of(c->name);
    return f && f->defines;
}

int inv__condition_next(const char **p, inv_language l, inv_condition *c)
{
    memset(c, 0, sizeof *c);
    const char *s = skip(*p);
    if (!*s) return 0;
    const form *f = word(&s, c->name, sizeof c->name) ? form_of(l, c->name) : NULL;
    if (!f || !arguments(&s, f->args, c) || !relation(&s, f->relations, c)) return -1;
    if (*s && (*s != ';' || l == INV_IN_GAIN)) return -1;
    *p = *s ? s + 1 : s;
    return 1;
}

static bool is_name(const char *in_pattern, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(in_pattern, "param(", 6) == 0) return strncmp(in_pattern + 6, name, n) == 0 && in_pattern[6 + n] == ')';
    return strcmp(in_pattern, name) == 0;
}

/* Names of statements: of `match`, or of `saves`. */
static bool in_statements(const inv_stmts *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++) {
        const inv_stmt *s = &list->at[i];
        for (uint32_t k = 0; k < s->nin; k++)
            if (is_name(s->in[k], name)) return true;
        for (uint32_t k = 0; k < s->nout; k++)
            if (is_name(s->out[k], name)) return true;
    }
    return false;
}

static bool is_parameter(const inv_stmts *match, const char *name)
{
    for (size_t i = 0; i < match->n; i++)
        for (uint32_t k = 0; k < match->at[i].nin; k++)
            if (strchr(match->at[i].in[k], '(') && is_name(match->at[i].in[k], name)) return true;
    return false;
}

static char kind_of_argument(const char *args, int k)
{
    for (; *args; args++)
        if (*args != '?' && k-- == 0) return *args;
    return 0;
}

/* "log_deriv" is of one operator, of which the exporter has to know it; `op` may name several. */
static inv_status check_derivative(inv_context *ctx, const inv_inverse_def *d, const inv_stmts *match)
{
    char op[32];
    INV_CHECK(match->n == 1, ctx, INV_E_PARSE,
              "inverse rule '%s', logdet: log_deriv is for a match of one operator, "
              "this one has %zu",
              d->name, match->n);
    for (const char *p = match->at[0].op; ctx->has_log_derivative; p++) {
        const size_t n = strcspn(p, "|");
        snprintf(op, sizeof op, "%.*s", (int)n, p);
        INV_CHECK(!*match->at[0].domain && n < sizeof op && ctx->has_log_derivative(op), ctx, INV_E_PARSE,
                  "inverse rule '%s', logdet: log_deriv is not known of %.*s; state it by other forms, or leave it out",
                  d->name, (int)n, p);
        p += n;
        if (!*p) break;
    }
    return INV_OK;
}

static inv_status check_one(inv_context *ctx, const inv_inverse_def *d, const inv_stmts *match, const inv_stmts *saves,
                            inv_language l)
{
    const char *const texts[] = {d->when, d->gain, d->logdet};
    const char *p = texts[l], *what = fields[l];
    inv_condition c;
    int got = 0;
    while (p && (got = inv__condition_next(&p, l, &c)) > 0) {
        if (strcmp(c.name, "log_deriv") == 0) INV_TRY(check_derivative(ctx, d, match));
        INV_CHECK(!strstr(c.name, "log_det") || is_parameter(match, c.arg[0]), ctx, INV_E_PARSE,
                  "inverse rule '%s', logdet: %s is of a parameter, and match has no param(%s)", d->name, c.name,
                  c.arg[0]);
        const char *args = form_of(l, c.name)->args;
        for (int k = 0; k < c.nargs; k++)
            INV_CHECK(kind_of_argument(args, k) != 'v' || in_statements(match, c.arg[k]) ||
                          (k > 0 && l == INV_IN_GAIN && in_statements(saves, c.arg[k])),
                      ctx, INV_E_PARSE, "inverse rule '%s', %s: match names no value '%s'", d->name, what, c.arg[k]);
    }
    INV_CHECK(got == 0, ctx, INV_E_PARSE, "inverse rule '%s', %s: '%s' is not one of those that plugin.h lists",
              d->name, what, p);
    return INV_OK;
}

inv_status inv__condition_check(inv_context *ctx, const inv_inverse_def *d, inv_language l)
{
    inv_arena scratch;
    inv_stmts match = {0}, saves = {0};
    inv__arena_init(&scratch, ctx);
    inv_status s = inv_text_stmts(ctx, &scratch, d->match, &match);
    if (s == INV_OK && d->saves) s = inv_text_stmts(ctx, &scratch, d->saves, &saves);
    if (s == INV_OK) s = check_one(ctx, d, &match, &saves, l);
    inv__arena_fini(&scratch);
    return s;
}
