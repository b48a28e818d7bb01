/* SPDX-License-Identifier: Apache-2.0
 * The words for what does not hold: which condition of a rule, on what it was seen, and what would help. What helps is
 * a fact of the condition (core/condition.c) or of the search for a region (below), never of one rule. */
#include <stdio.h>
#include <string.h>

#include "core/condition.h"
#include "core/shape.h"
#include "passes/match/match.h"

/* What remedies and reasons speak of: $1, $2, $x, $c. */
typedef struct names {
    const char *one, *two, *freed, *condition;
} names;

static const char *fill(inv_matcher *m, const char *text, const names *n)
{
    inv_str s;
    inv__str_init(&s, m->g->ctx);
    for (; *text; text++) {
        const char *name = *text != '$'     ? NULL
                           : text[1] == '1' ? n->one
                           : text[1] == '2' ? n->two
                           : text[1] == 'x' ? n->freed
                                            : n->condition;
        if (*text == '$') inv__str_add(&s, "%s", name ? name : "it");
        else inv__str_add(&s, "%c", *text);
        text += *text == '$';
    }
    const char *kept = s.failed ? NULL : inv__arena_strdup(&m->g->arena, s.s);
    inv__str_fini(&s);
    return kept;
}

static const char *name_of(const inv_matcher *m, inv_id v) { return v == INV_NONE ? NULL : inv_val(m->g, v)->name; }

/* `b` behind what `a` says already. */
static inv_status join(inv_matcher *m, const char **a, const char *b)
{
    if (!b || (*a && strstr(*a, b))) return INV_OK;
    *a = *a ? inv__arena_printf(&m->g->arena, "%s; %s", *a, b) : b;
    return *a ? INV_OK : INV_E_NOMEM;
}

enum { RELATION = INV_DOUBLE_TEXT + 8 };

static const char *relation_text(const inv_condition *c, char text[RELATION])
{
    char number[INV_DOUBLE_TEXT];
    *text = 0;
    if (c->relation)
        snprintf(text, RELATION, " %c%s %s", c->relation, c->relation == '=' ? "=" : "",
                 inv__double_text(c->bound, number));
    return text;
}

static const char *condition_text(inv_matcher *m, const inv_condition *c)
{
    char relation[RELATION];
    return inv__arena_printf(&m->g->arena, "%s(%s%s%s)%s", c->name, c->arg[0], c->nargs > 1 ? ", " : "",
                             c->nargs > 1 ? c->arg[1] : "", relation_text(c, relation));
}

/* --- what was seen --- */

static const char *see_attribute(inv_matcher *m, const inv_condition *c, const inv_binding *b, const inv_node *node)
{
    const inv_attr *at = inv_rule_attr(m->g, b, node, c->arg[0]);
    inv_arena *a = &m->g->arena;
    if (!at) return inv__arena_printf(a, "%s is %s", c->arg[0], c->nargs > 1 ? c->arg[1] : "absent");
    if (at->kind == INV_ATTR_INT) return inv__arena_printf(a, "%s is %lld", c->arg[0], (long long)at->i);
    if (at->kind == INV_ATTR_FLOAT) return inv__arena_printf(a, "%s is %g", c->arg[0], at->f);
    if (at->kind != INV_ATTR_INTS) return NULL;
    inv_str s;
    inv__str_init(&s, m->g->ctx);
    for (size_t i = 0; i < at->n; i++) inv__str_add(&s, "%s%lld", i ? ", " : "", (long long)at->ints[i]);
    const char *kept = inv__arena_printf(a, "%s is [%s]", c->arg[0], s.s);
    inv__str_fini(&s);
    return kept;
}

static const char *type_of(const inv_graph *g, const inv_value *v)
{
    return inv_dtype_name(g->told != INV_DT_NONE && v->dtype == g->real ? g->told : v->dtype);
}

static const char *see_types(inv_matcher *m, inv_id x, inv_id y)
{
    char one[INV_SHAPE_TEXT], two[INV_SHAPE_TEXT];
    if (x == INV_NONE) return NULL;
    const inv_value *a = inv_val(m->g, x);
    inv_shape_text(&a->shape, one);
    if (y == INV_NONE) return inv__arena_printf(&m->g->arena, "'%s' is %s%s", a->name, type_of(m->g, a), one);
    const inv_value *b = inv_val(m->g, y);
    inv_shape_text(&b->shape, two);
    return inv__arena_printf(&m->g->arena, "'%s' is %s%s and '%s' is %s%s", a->name, type_of(m->g, a), one, b->name,
                             type_of(m->g, b), two);
}

/* *known: whether its entries, or bounds of them, are. */
static const char *see_entries(inv_matcher *m, const inv_condition *c, inv_id v, bool *known)
{
    inv_arena *a = &m->g->arena;
    inv_extremes x;
    *known = true;
    if (m->known[v].measured && strcmp(c->name, "cond") == 0) return inv__arena_printf(a, "%.3g", m->known[v].cond);
    if (m->active[v]) {
        inv_range r = inv_value_range(m, v);
        return inv__arena_printf(a, "between %.3g and %.3g", r.lo, r.hi);
    }
    bool positive = strcmp(c->name, "positive") == 0;
    *known = strcmp(c->name, "cond") != 0 && inv_known_extremes(m, v, &x);
    if (!*known) return NULL;
    return inv__arena_printf(a, "%.3g in entry %zu", positive ? x.least : x.least_abs,
                             positive ? x.at_least : x.at_abs);
}

inv_status inv_excuse_condition(inv_matcher *m, const inv_rule *rule, const inv_condition *c, const inv_binding *b,
                                const inv_node *node, const char *reason, inv_why *why)
{
    inv_id x = inv_binding_get(b, c->arg[0]), y = inv_binding_get(b, c->arg[1]);
    char relation[RELATION];
    const char *text = condition_text(m, c), *seen = NULL, *special;
    bool known = true, attribute = strcmp(c->name, "attr") == 0;
    if (!text) return INV_E_NOMEM;
    const char *flaw = inv_condition_flaw(m, c, x, node, &special);
    if (flaw) seen = flaw;
    else if (attribute) seen = see_attribute(m, c, b, node);
    else if (!reason) seen = see_types(m, x, y);
    else if (x != INV_NONE && y == INV_NONE) seen = see_entries(m, c, x, &known);
    const char *wanted = text;
    if (attribute) wanted = inv__arena_printf(&m->g->arena, "%s%s", c->arg[0], relation_text(c, relation));
    const bool one = strcmp(c->name, "has_features") == 0;
    if (!reason && one) reason = "what would be freed is one number per row";
    if (!reason && seen) reason = inv__arena_printf(&m->g->arena, "%s, so %s does not hold", seen, text);
    if (!reason) reason = inv__arena_printf(&m->g->arena, "%s does not hold", text);
    const char *cure = known ? inv__condition_remedy(c, x != INV_NONE && m->active[x])
                             : "compute '$1' from initializers alone, so that its values are known before the run";
    if (flaw && special) cure = special;
    const names n = {attribute ? c->arg[0] : name_of(m, x), name_of(m, y),
                     name_of(m, inv_binding_get(b, rule->def->frees ? rule->def->frees : "")), wanted};
    const char *remedy = cure ? fill(m, cure, &n) : NULL;
    if (!reason || !wanted || (cure && !remedy)) return INV_E_NOMEM;
    INV_TRY(join(m, &why->reason, reason));
    INV_TRY(join(m, &why->condition, text));
    INV_TRY(join(m, &why->seen, seen));
    INV_TRY(join(m, &why->remedy, remedy));
    if (inv__condition_defines(c)) why->missed = UINT32_MAX;
    else if (why->missed < UINT32_MAX) why->missed++;
    return INV_OK;
}

/* --- regions --- */

/* $1 is inv_walk.at, $2 its `spoilt`. */
static const struct {
    const char *reason, *remedy;
} losses[] = {
    [INV_LOST_NO_ENTRY] = {"no single value feeds the branch", "compute the branch from one value"},
    [INV_LOST_LONG] = {"the search for a value that feeds the branch has become too long",
                       "a branch of fewer nodes, or one that begins at a value which leaves the block"},
    [INV_LOST_FREED] = {"the branch reads the value that would be freed, '$1'",
                        "feed the branch from another value than '$1': of two halves one is changed, and the branch "
                        "reads the other"},
    [INV_LOST_SHARED] = {"both operands come from the same value, '$1', so neither is known without the other",
                         "feed the branch from a value that does not come from '$1', or that leaves the block: as an "
                         "output of the model, or joined to the result"},
    [INV_LOST_ENTRY] = {"the branch's input, '$1', does not leave the block in a form that can be solved for",
                        "pass '$1' on as it is: as an output of the model, or joined to the result"}};
static const char spoilt_reason[] = "both operands come from the same value, '$1', and '$2', which feeds the branch, "
                                    "does not leave the block, so neither is known without the other";
static const char spoilt_remedy[] = "pass '$2' on: as an output of the model, or joined to the result";

inv_status inv_excuse_region(inv_matcher *m, const inv_walk *w, inv_why *why)
{
    const bool spoilt = w->loss == INV_LOST_SHARED && w->spoilt != INV_NONE;
    const names n = {name_of(m, w->at), name_of(m, w->spoilt), name_of(m, w->apart), NULL};
    const char *seen = spoilt ? n.two : n.one;
    *why = (inv_why){.missed = 1};
    why->reason = fill(m, spoilt ? spoilt_reason : losses[w->loss].reason, &n);
    why->remedy = fill(m, spoilt ? spoilt_remedy : losses[w->loss].remedy, &n);
    why->seen = seen ? inv__arena_printf(&m->g->arena, "'%s'", seen) : NULL;
    /* What a walk up to the entry fails by, as rules say it. */
    why->condition = w->recoverable && (w->loss == INV_LOST_ENTRY || spoilt) ? "recoverable" : "region";
    return why->reason && why->remedy ? INV_OK : INV_E_NOMEM;
}
