/* SPDX-License-Identifier: Apache-2.0
 * Puts into words why a rule does not hold: which condition fails, what was seen there, and what would help. The remedy
 * belongs to the condition (core/rules/condition.inc) or to the search for a region (the table below), never to one
 * rule, so that new rules have it for nothing. requires: inv_finding of a judge, or a query that found no region.
 * gives: inv_why, in the graph's arena. */
#include <stdio.h>
#include <string.h>

#include "core/base/shape.h"
#include "core/rules/condition.h"
#include "passes/match/match.h"

/* The names that stand for $1, $2, $x and $c of remedies and reasons. */
typedef struct names {
    const char *one, *two, *freed, *condition;
} names;

static const char *fill_names(inv_matcher *m, const char *text, const names *n)
{
    inv_str s;
    inv_str_init(&s, m->g->ctx);
    for (const char *name;;) {
        const size_t plain = strcspn(text, "$");
        inv_str_add(&s, "%.*s", (int)plain, text);
        text += plain;
        if (!*text) break;
        name = text[1] == '1' ? n->one : text[1] == '2' ? n->two : text[1] == 'x' ? n->freed : n->condition;
        inv_str_add(&s, "%s", name ? name : "it");
        text += 2;
    }
    const char *kept = s.failed ? NULL : inv_arena_strdup(&m->g->arena, s.s);
    inv_str_fini(&s);
    return kept;
}

static const char *name_of_value(const inv_matcher *m, inv_id v)
{
    return v == INV_NONE ? NULL : inv_val(m->g, v)->name;
}

/* Appends b to what *a says, unless *a has it already. */
static inv_status join_text(inv_matcher *m, const char **a, const char *b)
{
    if (!b || (*a && strstr(*a, b))) return INV_OK;
    *a = *a ? inv_arena_printf(&m->g->arena, "%s; %s", *a, b) : b;
    return *a ? INV_OK : INV_E_NOMEM;
}

enum { RELATION = INV_DOUBLE_TEXT + 8 };

static const char *relation_text(const inv_condition *c, char text[RELATION])
{
    char number[INV_DOUBLE_TEXT];
    *text = 0;
    if (c->relation)
        snprintf(text, RELATION, " %c%s %s", c->relation, c->relation == '=' ? "=" : "",
                 inv_double_text(c->bound, number));
    return text;
}

static const char *condition_text(inv_matcher *m, const inv_condition *c)
{
    char relation[RELATION];
    return inv_arena_printf(&m->g->arena, "%s(%s%s%s)%s", c->name, c->arg[0], c->nargs > 1 ? ", " : "",
                            c->nargs > 1 ? c->arg[1] : "", relation_text(c, relation));
}

static const char *told_type_name(const inv_graph *g, const inv_value *v)
{
    return inv_dtype_name(g->told != INV_DT_NONE && v->dtype == g->real ? g->told : v->dtype);
}

static const char *describe_types(inv_matcher *m, inv_id x, inv_id y)
{
    char one[INV_SHAPE_TEXT], two[INV_SHAPE_TEXT];
    if (x == INV_NONE) return NULL;
    const inv_value *a = inv_val(m->g, x);
    inv_shape_text(&a->shape, one);
    if (y == INV_NONE) return inv_arena_printf(&m->g->arena, "'%s' is %s%s", a->name, told_type_name(m->g, a), one);
    const inv_value *b = inv_val(m->g, y);
    inv_shape_text(&b->shape, two);
    return inv_arena_printf(&m->g->arena, "'%s' is %s%s and '%s' is %s%s", a->name, told_type_name(m->g, a), one,
                            b->name, told_type_name(m->g, b), two);
}

inv_status inv_diagnose_condition(const inv_question *q, const inv_rule *rule, const inv_finding *f, inv_why *why)
{
    inv_matcher *m = q->m;
    inv_arena *a = &m->g->arena;
    char relation[RELATION];
    const inv_condition_row *row = q->row;
    const bool attribute = *row->args == 'a';
    const char *text = condition_text(m, q->c), *seen = f->seen, *reason = f->reason;
    if (!seen && !attribute && !(row->values && reason)) seen = describe_types(m, q->v[0], q->v[1]);
    const char *wanted = attribute ? inv_arena_printf(a, "%s%s", q->c->arg[0], relation_text(q->c, relation)) : text;
    if (!reason && seen) reason = inv_arena_printf(a, "%s, so %s does not hold", seen, text);
    if (!reason) reason = inv_arena_printf(a, "%s does not hold", text);
    const bool computed = row->computed && q->x[0] && m->active[q->v[0]];
    const names n = {attribute ? q->c->arg[0] : name_of_value(m, q->v[0]), name_of_value(m, q->v[1]),
                     name_of_value(m, inv_binding_get(q->b, rule->def->frees ? rule->def->frees : "")), wanted};
    const char *remedy = fill_names(m, f->remedy ? f->remedy : computed ? row->computed : row->remedy, &n);
    if (!text || !reason || !wanted || !remedy) return INV_E_NOMEM;
    INV_TRY(join_text(m, &why->reason, reason));
    INV_TRY(join_text(m, &why->condition, text));
    INV_TRY(join_text(m, &why->seen, seen));
    INV_TRY(join_text(m, &why->remedy, remedy));
    if (row->identifies) why->missed = UINT32_MAX;
    else if (why->missed < UINT32_MAX) why->missed++;
    return INV_OK;
}

inv_status inv_diagnose_owner(inv_matcher *m, const inv_rule *rule, inv_why *why)
{
    if (!rule->asked || !why->reason) return INV_OK;
    why->reason = inv_arena_printf(&m->g->arena, "rule %s: %s", rule->def->name, why->reason);
    return why->reason ? INV_OK : INV_E_NOMEM;
}

/* --- regions --- */

/* $1 is inv_region_query.at, $2 its `part`. */
static const struct {
    const char *reason, *remedy;
} losses[] = {
    [INV_LOST_NO_ENTRY] = {"no single value feeds the branch", "compute the branch from one value"},
    [INV_LOST_LONG] = {"the search for a value that feeds the branch has become too long",
                       "a branch of fewer nodes, or one that begins at a value which leaves the block"},
    [INV_LOST_FREED] = {"the branch reads the value that would be freed, '$1'",
                        "feed the branch from another value than '$1': one half is changed, the branch reads the "
                        "other"},
    [INV_LOST_SHARED] = {"both operands come from the same value, '$1', so neither is known without the other",
                         "feed the branch from a value that does not come from '$1', or that leaves the block (as an "
                         "output of the model, or joined to the result)"},
    [INV_LOST_ENTRY] = {"the branch's input, '$1', does not leave the block in a form that can be solved for",
                        "pass '$1' on as it is: as an output of the model, or joined to the result"}};
static const char part_reason[] = "both operands come from the same value, '$1', and '$2', which feeds the branch, "
                                  "does not leave the block, so neither is known without the other";
static const char part_remedy[] = "pass '$2' on: as an output of the model, or joined to the result";

inv_status inv_diagnose_region(inv_matcher *m, const inv_region_query *w, inv_why *why)
{
    const bool part = w->loss == INV_LOST_SHARED && w->part != INV_NONE;
    const names n = {name_of_value(m, w->at), name_of_value(m, w->part), name_of_value(m, w->partner), NULL};
    const char *seen = part ? n.two : n.one;
    *why = (inv_why){.missed = 1};
    why->reason = fill_names(m, part ? part_reason : losses[w->loss].reason, &n);
    why->remedy = fill_names(m, part ? part_remedy : losses[w->loss].remedy, &n);
    why->seen = seen ? inv_arena_printf(&m->g->arena, "'%s'", seen) : NULL;
    /* Rules call this condition recoverable(x) where they ask for it. */
    why->condition = w->recoverable && (w->loss == INV_LOST_ENTRY || part) ? "recoverable" : "region";
    return why->reason && why->remedy ? INV_OK : INV_E_NOMEM;
}
