/* SPDX-License-Identifier: Apache-2.0
 * Bounds the entries of a value by interval arithmetic (Moore, Interval Analysis, 1966) over the operators that give
 * it, each by its row (column `bounds`, core/op.h). A scale that a region computes may be divided by if it is positive
 * by construction, as Exp and Sigmoid are, and these bounds show that.
 * requires: inv_matcher_init.  gives: inv_bounds. Time: one call looks at MOST_LOOKS operands at most (one that several
 * nodes read counts for each), and at the entries of those that depend on parameters only (known_values.c). */
#include <math.h>

#include "passes/match/match.h"

enum { MOST_LOOKS = 256 };
typedef struct bounds_call {
    inv_bounding ask;
    inv_matcher *m;
    int *left;          /* operands that may still be looked at */
    inv_bounds unknown; /* what is taken for anything that no operator bounds */
} bounds_call;

static inv_bounds bounds_of(const bounds_call *q, inv_id v);

static inv_bounds operand_bounds(const inv_bounding *ask, uint32_t i)
{
    return bounds_of((const bounds_call *)ask, ask->node->in[i]);
}

static inv_bounds bounds_of(const bounds_call *q, inv_id v)
{
    inv_matcher *m = q->m;
    if (v == INV_NONE || --*q->left < 0) return q->unknown;
    inv_extremes x;
    if (!m->active[v]) return inv_known_extremes(m, v, &x) ? (inv_bounds){x.least, x.most, false} : q->unknown;
    const inv_value *val = inv_val(m->g, v);
    bounds_call next = *q;
    next.ask.node = val->role == INV_ROLE_NODE ? inv_nod(m->g, val->def) : NULL;
    if (!next.ask.node || next.ask.node->nin == 0) return q->unknown;
    const inv_op_def *op = next.ask.node->op;
    inv_bounds r = op->bounds ? op->bounds(&next.ask) : INV_UNBOUNDED;
    /* The operands of an operator without bounds tell nothing. They are visited only to spend looks: what else the
     * question reaches depends on how many are left, and gains and plans were chosen by that. */
    for (uint32_t k = 0; !op->bounds && k < (next.ask.node->nin == 2 ? 2 : 1); k++) (void)operand_bounds(&next.ask, k);
    if (isinf(r.lo) && isinf(r.hi)) r = q->unknown;
    /* What float32 rounds an entry to; what is near zero by cancellation is then not taken for positive. */
    r.lo -= isfinite(r.lo) ? fabs(r.lo) * 0x1p-22 : 0;
    r.hi += isfinite(r.hi) ? fabs(r.hi) * 0x1p-22 : 0;
    /* infinity less infinity */
    if (isnan(r.lo)) r.lo = -INFINITY;
    if (isnan(r.hi)) r.hi = INFINITY;
    return r;
}

static inv_bounds bounds_with(inv_matcher *m, inv_id v, inv_bounds unknown)
{
    int left = MOST_LOOKS;
    const bounds_call q = {{NULL, operand_bounds}, m, &left, unknown};
    return bounds_of(&q, v);
}

inv_bounds inv_value_range(inv_matcher *m, inv_id v) { return bounds_with(m, v, INV_UNBOUNDED); }
inv_bounds inv_value_typical(inv_matcher *m, inv_id v) { return bounds_with(m, v, (inv_bounds){-2, 2, false}); }
