/* SPDX-License-Identifier: Apache-2.0
 * Reads off the inverse of a pair of functions by how much it magnifies errors, and what it divides by.
 * requires: inv_pair.match and solve.  gives: inv_pair.way and divisor. Time: the operands of both. */
#include <string.h>

#include "core/graph/node.h"
#include "core/graph/op.h"
#include "passes/function_pair.h"

static bool is_operator(const inv_node *n, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(n->op->name, *names) == 0) return true;
    return false;
}

static inv_error_way way_of(const inv_pair *p, const inv_node *n, const inv_error_way *of)
{
    static const char *const sums[] = {"Add", "Sub", NULL}, *const products[] = {"Mul", "Div", NULL};
    static const char *const moves[] = {"Neg", "View", "Transpose", "SplitSizes", "Concat", "Permute", NULL};
    inv_error_way best = {INV_ERROR_NONE, INV_NONE, false};
    bool all = true;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_error_way w = of[n->in[k]];
        all = all && w.kind != INV_ERROR_NONE;
        /* of a sum only the straight way counts, as plugin.h says of `gain`: the other operand is a branch */
        if (w.kind != INV_ERROR_NONE && (best.kind == INV_ERROR_NONE || w.kind < best.kind)) best = w;
    }
    if (best.kind == INV_ERROR_NONE || is_operator(n, sums) || is_operator(n, moves)) return best;
    const inv_id s = n->nin == 2 ? n->in[of[n->in[0]].kind == INV_ERROR_NONE ? 0 : 1] : INV_NONE;
    bool given = s != INV_NONE && (p->forward[s] || !p->active[s]), divides = strcmp(n->op->name, "Div") == 0;
    if (!is_operator(n, products) || all || !given || best.kind != INV_ERROR_PLAIN || (divides && s == n->in[0]))
        return (inv_error_way){INV_ERROR_OTHER, INV_NONE, false};
    return (inv_error_way){INV_ERROR_FACTOR, s, divides};
}

/* A result of NAME changes with what is freed: no condition is on that. */
static bool is_given_value(const inv_pair *p, inv_id v)
{
    return v != INV_NONE && (!p->active[v] || (p->forward[v] && !inv_ids_have(p->result, p->nresult, v)));
}

static bool name_divides_by(const inv_pair *p, inv_id v)
{
    static const char *const quotients[] = {"Div", "Reciprocal", NULL};
    for (size_t i = 0; i < p->match.n; i++) {
        const inv_node *n = inv_nod(p->g, p->match.at[i]);
        if (is_operator(n, quotients) && n->in[n->nin - 1] == v) return true;
    }
    return false;
}

/* What solving divides by; what it takes a quotient back with; and what it divides by what it starts from. */
static void find_divisors(inv_pair *p, const inv_node *n)
{
    const bool divides = strcmp(n->op->name, "Div") == 0, turns = strcmp(n->op->name, "Reciprocal") == 0;
    for (uint32_t k = 0; k < n->nin && (divides || turns || strcmp(n->op->name, "Mul") == 0); k++) {
        const inv_id v = n->in[k], other = n->nin == 2 ? n->in[1 - k] : INV_NONE;
        const bool meets = other != INV_NONE && p->way[other].kind != INV_ERROR_NONE;
        if (!is_given_value(p, v)) continue;
        if (turns || (divides ? k == 1 || meets : meets && name_divides_by(p, v))) p->divisor[v] = true;
    }
}

inv_status inv_pair_ways(inv_pair *p)
{
    p->way = INV_ARENA_NEW(&p->a, inv_error_way, p->g->value.n + 1);
    p->divisor = INV_ARENA_NEW(&p->a, bool, p->g->value.n + 1);
    if (!p->way || !p->divisor) return INV_E_NOMEM;
    for (uint32_t k = 0; k < p->nresult; k++) {
        bool through = p->result[k] == INV_NONE;
        for (uint32_t i = 0; i < p->nformal && !through; i++) through = p->formal[i] == p->result[k];
        if (!through) p->way[p->result[k]] = (inv_error_way){INV_ERROR_PLAIN, INV_NONE, false};
    }
    for (size_t i = 0; i < p->solve.n; i++) {
        const inv_node *n = inv_nod(p->g, p->solve.at[i]);
        find_divisors(p, n);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) p->way[n->out[k]] = way_of(p, n, p->way);
    }
    return INV_OK;
}

inv_status inv_pair_gain(inv_pair *p, inv_id result, const char **gain)
{
    const inv_error_way w = p->way[result];
    *gain = w.kind == INV_ERROR_PLAIN ? NULL : "unbounded";
    if (w.kind != INV_ERROR_FACTOR) return INV_OK;
    *gain = inv_arena_printf(&p->a, "%s(v%u)", w.divides ? "max_inv" : "max_abs", (unsigned)w.factor);
    return *gain ? INV_OK : INV_E_NOMEM;
}
