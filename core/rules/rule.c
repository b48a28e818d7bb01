/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules in the registry: what is asked of one before it is taken, and the copy that is kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/text.h"
#include "core/rules/condition.h"

enum { MOST_EXITS = 4 }; /* as matching has room for */

/* clang-format off */
#define TEXT(field) {#field, offsetof(inv_inverse_def, field)}
const inv_rule_field inv_rule_fields[] = {TEXT(kind), TEXT(match),  TEXT(solve), TEXT(frees), TEXT(when),
                                           TEXT(gain), TEXT(logdet), TEXT(refuse), TEXT(remedy), TEXT(saves),
                                           TEXT(doc),  {NULL, 0}};
/* clang-format on */
#undef TEXT

/* Names of a pattern, and what solving adds to them. */
typedef INV_VEC(const char *) names;

static bool knows_name(const names *set, const char *name)
{
    for (size_t i = 0; i < set->n; i++)
        if (strcmp(set->at[i], name) == 0) return true;
    return false;
}

static inv_status add_rule_name(inv_registry *r, inv_arena *a, const char *rule, names *set, const char *name)
{
    if (knows_name(set, name)) return INV_OK;
    INV_CHECK(strlen(name) < INV_MAX_RULE_NAME, r->ctx, INV_E_PARSE,
              "inverse rule '%s', %s: a name of more than %d bytes: '%.20s...'", rule, r->field, INV_MAX_RULE_NAME - 1,
              name);
    return inv_vec_push(a, set, name) ? INV_OK : INV_E_NOMEM;
}

/* --- texts --- */

static inv_status parse_rule_text(inv_registry *r, inv_arena *scratch, const char *rule, const char *what,
                                  const char *text, inv_stmts *out)
{
    r->field = what;
    inv_status s = inv_text_formulas(r->ctx, scratch, text, out);
    if (s == INV_OK && out->n == 0) return inv_fail(r->ctx, INV_E_PARSE, "inverse rule '%s': %s is empty", rule, what);
    if (s != INV_E_PARSE) return s;
    const char *why = inv_context_message(r->ctx);
    if (!strchr(text, '\n') && strncmp(why, "line 1: ", 8) == 0) why += 8; /* it has no other */
    return inv_fail(r->ctx, s, "inverse rule '%s', %s: %s", rule, what, why);
}

/* `x`, or where allowed `param(x)`, of which *plain is x. No name is a number. */
static bool plain_name(inv_arena *a, const char *name, bool may_be_param, const char **plain)
{
    const char *open = strchr(name, '(');
    double number;
    *plain = name;
    if (!open) return *name != 0 && !inv_word_number(name, &number);
    size_t n = strlen(name);
    if (!may_be_param || strncmp(name, "param(", 6) != 0 || n < 8 || strchr(open + 1, '(') || name[n - 1] != ')')
        return false;
    *plain = inv_arena_strndup(a, name + 6, n - 7);
    return *plain && !strchr(*plain, ')');
}

/* In solve and saves numbers may stand for constants. A pattern names what it compares. */
static inv_status check_numbers(inv_registry *r, const char *rule, const char *what, const inv_stmt *s)
{
    double number;
    for (uint32_t k = 0; k < s->nin; k++) {
        const inv_data *t = &s->in_type[k];
        const bool literal = t->bytes && !*s->in[k], none = t->dtype == INV_DT_NONE;
        if (strcmp(what, "match") == 0)
            INV_CHECK(none && !inv_word_number(s->in[k], &number), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', match: the inputs of %s cannot be types or numbers. Write param(c), and "
                      "number(c) == C in when",
                      rule, s->op);
        INV_CHECK(none || literal, r->ctx, INV_E_PARSE,
                  "inverse rule '%s', %s: an input of %s cannot be a type without numbers or with a name. Write a "
                  "constant as float[] {0.5}",
                  rule, what, s->op);
    }
    return INV_OK;
}

/* *name becomes the value that an operand of solve or saves reads; NULL: none, it is a number. */
static inv_status operand_name(inv_registry *r, inv_arena *a, const char *rule, const inv_stmt *s, uint32_t k,
                               const char **name)
{
    double number;
    const char *text = s->in[k], *open = strchr(text, '(');
    const size_t n = open ? strcspn(open + 1, ",()") : 0;
    *name = s->in_type[k].bytes || inv_word_number(text, &number) ? NULL : text;
    if (!*name || !open) return INV_OK;
    const char *rest = open + 1 + n;
    if (*rest == ',') rest += 1 + strcspn(rest + 1, ",()");
    INV_CHECK(strncmp(text, "count(", 6) == 0 && n && strcmp(rest, ")") == 0 && rest[-1] != ',', r->ctx, INV_E_PARSE,
              "inverse rule '%s', %s: '%s' is no operand; there are names, numbers, count(x) and count(x, AXIS)", rule,
              r->field, text);
    *name = inv_arena_strndup(a, open + 1, n);
    return *name ? INV_OK : INV_E_NOMEM;
}

static inv_status check_form(inv_registry *r, const char *rule, const char *what, const inv_stmt *s)
{
    const bool region = strcmp(s->op, "region") == 0;
    INV_CHECK(s->nout && (s->nin || !region), r->ctx, INV_E_PARSE, "inverse rule '%s', %s: %s without %s", rule, what,
              s->op, s->nout ? "an input" : "a name for what it gives");
    INV_CHECK(!region || (s->nin == 1 && s->nout <= MOST_EXITS && strcmp(what, "match") == 0), r->ctx, INV_E_PARSE,
              "inverse rule '%s', %s: a region has one entry and at most %d exits, and is allowed in match only", rule,
              what, MOST_EXITS);
    INV_CHECK(!s->nattr || strcmp(what, "match") != 0, r->ctx, INV_E_PARSE,
              "inverse rule '%s', match: %s cannot have attributes there. Ask for them in when, by attr()", rule,
              s->op);
    double number;
    for (uint32_t k = 0; k < s->nout; k++)
        INV_CHECK(*s->out[k] && !inv_word_number(s->out[k], &number), r->ctx, INV_E_PARSE,
                  "inverse rule '%s', %s: an output of %s has no name", rule, what, s->op);
    return check_numbers(r, rule, what, s);
}

/* Matching goes from node to node by the values that statements share. */
static inv_status check_connected(inv_registry *r, inv_arena *a, const char *rule, const inv_stmts *st)
{
    names near = {0};
    bool *reached = INV_ARENA_NEW(a, bool, st->n + 1);
    if (!reached) return INV_E_NOMEM;
    size_t first = 0;
    while (first < st->n && strcmp(st->at[first].op, "region") == 0) first++;
    INV_CHECK(first < st->n, r->ctx, INV_E_PARSE, "inverse rule '%s', match: regions alone, and no operator", rule);
    for (size_t next = first; next < st->n;) {
        const inv_stmt *s = &st->at[next];
        const char *plain;
        reached[next] = true;
        for (uint32_t k = 0; k < s->nin + s->nout; k++) {
            (void)plain_name(a, k < s->nin ? s->in[k] : s->out[k - s->nin], true, &plain);
            if (plain) INV_TRY(add_rule_name(r, a, rule, &near, plain));
        }
        for (next = 0; next < st->n; next++) {
            bool shares = false;
            s = &st->at[next];
            for (uint32_t k = 0; k < s->nin + s->nout && !reached[next] && !shares; k++) {
                (void)plain_name(a, k < s->nin ? s->in[k] : s->out[k - s->nin], true, &plain);
                shares = plain && knows_name(&near, plain);
            }
            if (shares) break;
        }
    }
    for (size_t i = 0; i < st->n; i++)
        INV_CHECK(reached[i], r->ctx, INV_E_PARSE,
                  "inverse rule '%s', match: the statement that gives '%s' shares no value with the others", rule,
                  st->at[i].out[0]);
    return INV_OK;
}

static inv_status check_match(inv_registry *r, inv_arena *a, const inv_inverse_def *d, names *known)
{
    inv_stmts st = {0};
    names given = {0};
    INV_TRY(parse_rule_text(r, a, d->name, "match", d->match, &st));
    for (size_t i = 0; i < st.n; i++) {
        const inv_stmt *s = &st.at[i];
        INV_TRY(check_form(r, d->name, "match", s));
        for (uint32_t k = 0; k < s->nout; k++) {
            INV_CHECK(!knows_name(&given, s->out[k]), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', match: '%s' is given by two statements", d->name, s->out[k]);
            INV_TRY(add_rule_name(r, a, d->name, &given, s->out[k]));
        }
        for (uint32_t k = 0; k < s->nin + s->nout; k++) {
            const char *plain, *name = k < s->nin ? s->in[k] : s->out[k - s->nin];
            INV_CHECK(plain_name(a, name, k < s->nin, &plain), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', match: '%s' is no name of a value", d->name, name);
            INV_TRY(add_rule_name(r, a, d->name, known, plain));
        }
    }
    INV_TRY(check_connected(r, a, d->name, &st));
    r->field = "frees";
    INV_CHECK(d->frees || (st.n > 1 && !d->solve && !d->refuse), r->ctx, INV_E_ARG,
              "inverse rule '%s': frees is required: the value of match that the rule computes back", d->name);
    INV_CHECK(!d->frees || knows_name(known, d->frees), r->ctx, INV_E_PARSE,
              "inverse rule '%s', frees: match names no value '%s'", d->name, d->frees);
    return INV_OK;
}

/* Every value that `saves` reads is there by then, and it may be what is freed, too. */
static inv_status check_saves(inv_registry *r, inv_arena *a, const inv_inverse_def *d, names *known)
{
    inv_stmts st = {0};
    INV_TRY(parse_rule_text(r, a, d->name, "saves", d->saves, &st));
    INV_TRY(inv_stmts_sort(a, &st));
    for (size_t i = 0; i < st.n; i++) {
        const inv_stmt *s = &st.at[i];
        INV_TRY(check_form(r, d->name, "saves", s));
        for (uint32_t k = 0; k < s->nin; k++) {
            const char *name;
            INV_TRY(operand_name(r, a, d->name, s, k, &name));
            INV_CHECK(!name || knows_name(known, name), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', saves: %s reads '%s', which nothing gives", d->name, s->op, name);
        }
        for (uint32_t k = 0; k < s->nout; k++) {
            INV_CHECK(!knows_name(known, s->out[k]), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', saves: '%s' is there already", d->name, s->out[k]);
            INV_TRY(add_rule_name(r, a, d->name, known, s->out[k]));
        }
    }
    return INV_OK;
}

/* Everything that it reads is there by then, and at the end what it frees. */
static inv_status check_solve(inv_registry *r, inv_arena *a, const inv_inverse_def *d, names *known)
{
    inv_stmts st = {0};
    bool freed = false;
    INV_TRY(parse_rule_text(r, a, d->name, "solve", d->solve, &st));
    INV_TRY(inv_stmts_sort(a, &st));
    for (size_t i = 0; i < st.n; i++) {
        const inv_stmt *s = &st.at[i];
        INV_TRY(check_form(r, d->name, "solve", s));
        for (uint32_t k = 0; k < s->nin; k++) {
            const char *name;
            INV_TRY(operand_name(r, a, d->name, s, k, &name));
            /* count(x) asks for the extents of x alone */
            const bool there = !name || freed || strcmp(name, d->frees) != 0 || name != s->in[k];
            INV_CHECK(!name || (knows_name(known, name) && there), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', solve: %s reads '%s', which %s", d->name, s->op, name,
                      knows_name(known, name) ? "is what it is to compute" : "nothing gives");
        }
        for (uint32_t k = 0; k < s->nout; k++) {
            const bool frees = strcmp(s->out[k], d->frees) == 0;
            INV_CHECK(frees ? !freed : !knows_name(known, s->out[k]), r->ctx, INV_E_PARSE,
                      "inverse rule '%s', solve: '%s' exists already. Give each intermediate value its own name",
                      d->name, s->out[k]);
            INV_TRY(add_rule_name(r, a, d->name, known, s->out[k]));
            freed = freed || frees;
        }
    }
    INV_CHECK(freed, r->ctx, INV_E_PARSE, "inverse rule '%s', solve: it does not compute '%s'", d->name, d->frees);
    return INV_OK;
}

static inv_status check_texts(inv_registry *r, const inv_inverse_def *d)
{
    inv_arena scratch;
    names known = {0};
    inv_arena_init(&scratch, r->ctx);
    inv_status s = check_match(r, &scratch, d, &known);
    if (s == INV_OK && d->saves) s = check_saves(r, &scratch, d, &known);
    if (s == INV_OK && d->solve) s = check_solve(r, &scratch, d, &known);
    inv_arena_fini(&scratch);
    INV_TRY(s);
    static const char *const fields[] = {"when", "gain", "logdet"};
    for (inv_language l = INV_IN_WHEN; l <= INV_IN_LOGDET; l++) {
        r->field = fields[l];
        INV_TRY(inv_condition_check(r->ctx, d, l));
    }
    return INV_OK;
}

/* Graphs of a plugin's cases: an error in one is better heard now than when it is tested. */
static inv_status check_cases(inv_registry *r, const inv_inverse_def *d)
{
    for (size_t i = 0; r->loading && d->cases && d->cases[i]; i++) {
        inv_graph *g;
        r->field = "case";
        inv_status s = inv_graph_parse(r->ctx, d->cases[i], &g);
        if (s == INV_OK) inv_graph_destroy(g);
        else if (s != INV_E_NOMEM)
            return inv_fail(r->ctx, s, "inverse rule '%s', case %zu: %s", d->name, i + 1, inv_context_message(r->ctx));
        else return s;
    }
    return INV_OK;
}

/* Plugins may say anything. */
static inv_status check_letters(inv_registry *r, const inv_inverse_def *d)
{
    if (!r->loading) return INV_OK;
    INV_CHECK(!inv_not_text(d->name) && !d->name[strcspn(d->name, " \t\r\n")], r->ctx, INV_E_PARSE,
              "inverse rule of a name that is not one word in UTF-8");
    for (const inv_rule_field *f = inv_rule_fields; f->name; f++) {
        const char *text = inv_rule_text(d, f);
        r->field = f->name;
        INV_CHECK(!text || !inv_not_text(text), r->ctx, INV_E_PARSE,
                  "inverse rule '%s', %s: a byte that is no text (UTF-8)", d->name, f->name);
    }
    for (size_t i = 0; d->cases && d->cases[i]; i++)
        INV_CHECK(!inv_not_text(d->cases[i]), r->ctx, INV_E_PARSE,
                  "inverse rule '%s', case %zu: a byte that is no text (UTF-8)", d->name, i + 1);
    r->field = NULL;
    return INV_OK;
}

/* --- names --- */

/* Where a rule of that name stands, or would. */
static size_t rule_slot(const inv_registry *r, const char *name)
{
    size_t at = (size_t)inv_hash(name, strlen(name), 0) & (r->named_cap - 1);
    while (r->named[at] && strcmp(r->named[at]->name, name) != 0) at = (at + 1) & (r->named_cap - 1);
    return at;
}

static void name_all(inv_registry *r)
{
    if (r->named_cap) memset(r->named, 0, r->named_cap * sizeof *r->named);
    for (size_t i = 0; i < r->inverse.n; i++) r->named[rule_slot(r, r->inverse.at[i].def->name)] = r->inverse.at[i].def;
}

/* Room for one name more. */
static inv_status grow_names(inv_registry *r)
{
    if (2 * (r->inverse.n + 1) <= r->named_cap) return INV_OK;
    const size_t cap = r->named_cap ? 2 * r->named_cap : 256;
    const inv_inverse_def **named = INV_ARENA_NEW(&r->arena, const inv_inverse_def *, cap);
    if (!named) return INV_E_NOMEM;
    r->named = named;
    r->named_cap = cap;
    name_all(r);
    return INV_OK;
}

static inv_status check_clash(inv_registry *r, const char *name)
{
    INV_TRY(grow_names(r));
    const inv_inverse_def *d = r->named[rule_slot(r, name)];
    const inv_plugin *from = NULL;
    if (!d) return INV_OK;
    for (size_t i = 0; i < r->inverse.n; i++)
        if (r->inverse.at[i].def == d) from = r->inverse.at[i].from;
    return inv_fail(r->ctx, INV_E_EXISTS, "inverse rule '%s' is already registered, by %s", name, inv_owner(from));
}

void inv_rules_drop(inv_registry *r, const inv_plugin *from)
{
    size_t n = 0;
    for (size_t i = 0; i < r->inverse.n; i++)
        if (r->inverse.at[i].from != from) r->inverse.at[n++] = r->inverse.at[i];
    r->inverse.n = n;
    name_all(r);
}

static inv_status check_rule(inv_registry *r, const inv_inverse_def *d)
{
    INV_CHECK(d->name && *d->name, r->ctx, INV_E_ARG, "inverse rule without a name");
    INV_TRY(check_letters(r, d));
    INV_CHECK(d->match && *d->match, r->ctx, INV_E_ARG, "inverse rule '%s': match is required", d->name);
    INV_CHECK(!d->saves || d->solve, r->ctx, INV_E_ARG, "inverse rule '%s': saves without solve", d->name);
    INV_CHECK(!d->solve || !d->refuse, r->ctx, INV_E_ARG, "inverse rule '%s': both solve and refuse", d->name);
    INV_CHECK(d->exactness == INV_BOUNDED || d->exactness == INV_EXACT, r->ctx, INV_E_ARG,
              "inverse rule '%s': exactness %d is not known", d->name, (int)d->exactness);
    INV_TRY(check_clash(r, d->name));
    INV_TRY(check_texts(r, d));
    INV_TRY(check_cases(r, d));
    r->field = NULL;
    return INV_OK;
}

/* --- what operators they are about --- */

static bool known_operator(const inv_registry *r, const inv_stmt *s, const char *name, size_t n, inv_arena *a)
{
    char *one = inv_arena_strndup(a, name, n);
    if (!one) return true; /* said elsewhere */
    return strcmp(one, "region") == 0 || inv_registry_named(r, &(inv_stmt){.op = one, .domain = s->domain});
}

static inv_status fail_unknown_operator(inv_registry *r, const char *rule, const inv_stmt *s, const char *name,
                                        size_t n)
{
    return inv_fail(r->ctx, INV_E_UNSUPPORTED_OP, "inverse rule '%s', %s: there is no operator '%.*s'%s%s", rule,
                    r->field, (int)n, name, *s->domain ? " of domain " : "", s->domain);
}

/* Nothing of the statement is there when rules are tried. */
static bool all_lowered(const inv_registry *r, inv_arena *a, const inv_stmt *s)
{
    bool all = true;
    for (const char *p = s->op; *p && all; p += *p == '|') {
        const size_t n = strcspn(p, "|");
        const char *one = inv_arena_strndup(a, p, n);
        const inv_op_def *op = one ? inv_registry_named(r, &(inv_stmt){.op = one, .domain = s->domain}) : NULL;
        all = op && op->lower;
        p += n;
    }
    return all;
}

static inv_status fail_lowered(inv_registry *r, const char *rule, const inv_stmt *s)
{
    inv_support seen = {.nto = 0};
    inv_str to;
    const size_t n = strcspn(s->op, "|");
    char name[INV_MAX_RULE_NAME];
    snprintf(name, sizeof name, "%.*s", (int)n, s->op);
    const inv_op_def *op = inv_registry_named(r, &(inv_stmt){.op = name, .domain = s->domain});
    if (op && r->ctx->support) INV_TRY(r->ctx->support(r->ctx, op, &seen));
    inv_str_init(&to, r->ctx);
    for (uint32_t i = 0; i < seen.nto; i++)
        inv_str_add(&to, "%s%s", i ? ", " : ": depending on its inputs, it becomes ", seen.to[i]->name);
    const inv_status st =
        inv_fail(r->ctx, INV_E_UNSUPPORTED_OP,
                 "inverse rule '%s', match: '%s' is lowered to other operators before rules are tried, so it never "
                 "matches%s. Match canonical operators (`invonnx ops`: forward yes)",
                 rule, name, to.failed ? "" : to.s);
    inv_str_fini(&to);
    return st;
}

static inv_status settle_match(inv_registry *r, inv_arena *a, const inv_inverse_def *d)
{
    inv_stmts st = {0};
    r->field = "match";
    INV_TRY(inv_text_stmts(r->ctx, a, d->match, &st));
    for (size_t i = 0; i < st.n; i++) {
        for (const char *p = st.at[i].op; *p; p += *p == '|') {
            size_t n = strcspn(p, "|");
            if (!known_operator(r, &st.at[i], p, n, a)) return fail_unknown_operator(r, d->name, &st.at[i], p, n);
            p += n;
        }
        if (all_lowered(r, a, &st.at[i])) return fail_lowered(r, d->name, &st.at[i]);
    }
    return INV_OK;
}

/* solve and saves: what they say is run as it stands. */
static inv_status settle_text(inv_registry *r, inv_arena *a, const char *rule, const char *what, const char *text)
{
    inv_stmts st = {0};
    if (!text) return INV_OK;
    r->field = what;
    INV_TRY(inv_text_stmts(r->ctx, a, text, &st));
    for (size_t i = 0; i < st.n; i++) {
        const inv_op_def *op = inv_registry_named(r, &st.at[i]);
        if (!op) return fail_unknown_operator(r, rule, &st.at[i], st.at[i].op, strlen(st.at[i].op));
        INV_CHECK(inv_op_computes(op), r->ctx, INV_E_UNSUPPORTED_OP,
                  "inverse rule '%s', %s: '%s' is no canonical operator (`invonnx ops`: forward yes) that only "
                  "computes from its inputs",
                  rule, what, op->name);
    }
    return INV_OK;
}

static int by_priority(const void *a, const void *b)
{
    const inv_rule_entry *x = a, *y = b;
    if (x->def->priority != y->def->priority) return x->def->priority > y->def->priority ? -1 : 1;
    return x->nth < y->nth ? -1 : x->nth > y->nth;
}

static void sort_rules(inv_registry *r)
{
    if (r->inverse.n) qsort(r->inverse.at, r->inverse.n, sizeof *r->inverse.at, by_priority);
}

inv_status inv_rules_settle(inv_registry *r, const inv_plugin *from)
{
    inv_arena scratch;
    inv_status s = INV_OK;
    sort_rules(r);
    inv_arena_init(&scratch, r->ctx);
    for (size_t i = 0; i < r->inverse.n && s == INV_OK; i++) {
        const inv_inverse_def *d = r->inverse.at[i].def;
        if (r->inverse.at[i].from != from) continue;
        s = settle_match(r, &scratch, d);
        if (s == INV_OK) s = settle_text(r, &scratch, d->name, "solve", d->solve);
        if (s == INV_OK) s = settle_text(r, &scratch, d->name, "saves", d->saves);
    }
    if (s == INV_OK && scratch.failed) s = INV_E_NOMEM;
    inv_arena_fini(&scratch);
    return s;
}

/* --- keeping --- */

/* A copy of our own: a plugin may have built its texts on the fly. */
static inv_inverse_def *keep_rule(inv_registry *r, const inv_inverse_def *d)
{
    inv_inverse_def *k = inv_arena_alloc(&r->arena, sizeof *k);
    if (!k) return NULL;
    *k = *d;
    if (!(k->name = inv_arena_strdup(&r->arena, d->name))) return NULL;
    for (const inv_rule_field *f = inv_rule_fields; f->name; f++) {
        const char **text = (const char **)(void *)((char *)k + f->offset);
        if (*text && !(*text = inv_arena_strdup(&r->arena, *text))) return NULL;
    }
    if (!d->cases) return k;
    size_t n = 0;
    while (d->cases[n]) n++;
    const char **cases = INV_ARENA_NEW(&r->arena, const char *, n + 1);
    for (size_t i = 0; cases && i < n; i++)
        if (!(cases[i] = inv_arena_strdup(&r->arena, d->cases[i]))) return NULL;
    k->cases = cases;
    return cases ? k : NULL;
}

inv_status inv_registry_add_inverse(inv_registry *r, const inv_inverse_def *def)
{
    r->field = NULL;
    INV_CHECK(def->size >= offsetof(inv_inverse_def, when) && def->size <= sizeof *def, r->ctx, INV_E_ABI,
              "inverse rule of %zu bytes, this library knows %zu", def->size, sizeof *def);
    inv_inverse_def d = {0};
    memcpy(&d, def, def->size);
    d.size = sizeof d;
    INV_TRY(check_rule(r, &d));
    inv_rule_entry kept = {keep_rule(r, &d), r->loading, r->inverse.n};
    if (!kept.def || !inv_vec_push(&r->arena, &r->inverse, kept)) return INV_E_NOMEM;
    r->named[rule_slot(r, kept.def->name)] = kept.def;
    if (!r->loading) sort_rules(r);
    return INV_OK;
}

size_t inv_registry_ninverses(const inv_registry *r) { return r->inverse.n; }

const inv_inverse_def *inv_registry_inverse_at(const inv_registry *r, size_t i)
{
    return i < r->inverse.n ? r->inverse.at[i].def : NULL;
}
