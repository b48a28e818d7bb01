/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules compiled for matching: parsed patterns, what their names are bound to, and whether the conditions
 * of a rule hold where its pattern was found. */
#include <string.h>

#include "passes/match/match.h"

/* Names that statements may bind, some counted more than once. */
static uint32_t names_in(const inv_stmts *list)
{
    uint32_t n = 0;
    for (size_t i = 0; i < list->n; i++) n += list->at[i].nin + list->at[i].nout;
    return n;
}

inv_status inv_rules_compile(inv_context *ctx, inv_arena *a, inv_rule **rules, size_t *n, inv_rule_sizes *most)
{
    const inv_inverse_def *first = inv_registry_favoured(ctx->registry);
    *n = inv_registry_ninverses(ctx->registry);
    *rules = INV_ARENA_NEW(a, inv_rule, *n ? *n : 1);
    *most = (inv_rule_sizes){0};
    if (!*rules) return INV_E_NOMEM;
    for (size_t i = 0, at = first ? 1 : 0; i < *n; i++) {
        const inv_inverse_def *def = inv_registry_inverse_at(ctx->registry, i);
        inv_rule *r = &(*rules)[def == first ? 0 : at++];
        r->def = def;
        INV_TRY(inv_text_stmts(ctx, a, r->def->match, &r->match));
        if (r->def->solve) INV_TRY(inv_text_stmts(ctx, a, r->def->solve, &r->solve));
        if (r->def->saves) INV_TRY(inv_text_stmts(ctx, a, r->def->saves, &r->saves));
        INV_TRY(inv_stmts_sort(a, &r->solve));
        INV_TRY(inv_stmts_sort(a, &r->saves));
        const uint32_t names = names_in(&r->match) + names_in(&r->solve) + names_in(&r->saves);
        if (names > most->names) most->names = names;
        if (r->match.n > most->stmts) most->stmts = (uint32_t)r->match.n;
    }
    return INV_OK;
}

bool inv_binding_init(inv_binding *b, inv_arena *a, uint32_t room)
{
    *b = (inv_binding){INV_ARENA_NEW(a, const char *, room + 1), INV_ARENA_NEW(a, const inv_id *, room + 1),
                       INV_ARENA_NEW(a, uint32_t, room + 1), 0, room};
    return b->name && b->id && b->n_ids;
}

int inv_binding_find(const inv_binding *b, const char *name)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (strcmp(b->name[i], name) == 0) return (int)i;
    return -1;
}

inv_id inv_binding_get(const inv_binding *b, const char *name)
{
    int i = inv_binding_find(b, name);
    return i >= 0 && b->n_ids[i] > 0 ? b->id[i][0] : INV_NONE;
}

bool inv_binding_set(inv_binding *b, const char *name, const inv_id *ids, uint32_t n)
{
    int i = inv_binding_find(b, name);
    if (i >= 0) return b->n_ids[i] == n && (n == 0 || memcmp(b->id[i], ids, n * sizeof *ids) == 0);
    if (b->n == b->room) return false;
    b->name[b->n] = name;
    b->id[b->n] = ids;
    b->n_ids[b->n++] = n;
    return true;
}

const inv_attr *inv_rule_attr(const inv_graph *g, const inv_binding *b, const inv_node *node, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!dot) return inv_attr_find(node, name);
    for (uint32_t i = 0; i < b->n; i++) {
        size_t n = strlen(b->name[i]);
        if (n != (size_t)(dot - name) || strncmp(b->name[i], name, n) != 0 || b->n_ids[i] == 0) continue;
        inv_id def = inv_val(g, b->id[i][0])->def;
        return def == INV_NONE ? NULL : inv_attr_find(inv_nod(g, def), dot + 1);
    }
    return NULL;
}

/* --- conditions --- */

#define CONDITION(name, ...) bool inv_judge_##name(const inv_question *q, inv_finding *f);
#include "core/condition.inc"

/* By inv_condition.id. */
static const inv_condition_row conditions[] = {
#define CONDITION(name, args, relations, values, defines, remedy, computed) \
    {inv_judge_##name, args, values, defines, remedy, computed},
#include "core/condition.inc"
};

inv_status inv_rule_when(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         inv_verdict *verdict, inv_why *why)
{
    const char *p = rule->def->when ? rule->def->when : "";
    inv_condition c;
    *verdict = INV_HOLDS;
    *why = (inv_why){0};
    /* All shapes that do not fit are named; values are looked at only where shapes do. */
    while (*verdict != INV_REFUSED && inv__condition_next(&p, INV_IN_WHEN, &c) > 0) {
        const inv_condition_row *row = &conditions[c.id];
        inv_question q = {.m = m, .c = &c, .row = row, .b = b, .node = node};
        inv_finding f = {0};
        bool bound = true;
        for (int k = 0; k < 2; k++) {
            q.v[k] = inv_binding_get(b, c.arg[k]);
            q.x[k] = q.v[k] == INV_NONE ? NULL : inv_val(m->g, q.v[k]);
            bound = bound && (q.x[k] || k >= c.nargs || row->args[k] != 'v');
        }
        if (row->values && *verdict == INV_UNFIT) continue;
        if (bound && row->judge(&q, &f)) continue;
        INV_TRY(f.status);
        *verdict = row->values && f.reason ? INV_REFUSED : INV_UNFIT;
        INV_TRY(inv_diagnose_condition(&q, rule, &f, why));
    }
    return INV_OK;
}
