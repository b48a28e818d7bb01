/* SPDX-License-Identifier: Apache-2.0
 * Emits guards. A guard computes a fingerprint of a value in forward, and compares it with that of what stands for the
 * value in backward; if they differ too much, the step is rejected. What is rematerialised is compared as a whole. A
 * small error of it may become a large one in what is computed from it, so that is compared, too, in the form in which
 * a gradient uses it: the slope of an element-wise function, the bits of a comparison, or else the value that is read.
 * requires: an emitter in the middle of backward.
 * gives: nodes GuardSum, GuardPick and GuardCheck; plan->guarded. */
#include <string.h>

#include "passes/recover/emitter.h"

/* How many elements of a derived value are compared: SAMPLE if it has as many, but one of SPARSEST at least. Of signs
 * only a few change, so more of them are needed to notice. */
#define SAMPLE 1024
#define SAMPLE_OF_SIGNS 65536
#define SPARSEST 32
/* limits of the nodes of which a sample is computed */
#define MOST_OPERANDS 4
#define MOST_ATTRIBUTES 4

/* Emits a node with the operands and attributes of n: in forward, behind the node that gives v, or at the end of
 * backward if v is INV_NONE. False: out of memory. */
static bool emit_guard_node(emitter *x, inv_id v, const char *name, const inv_node *n, uint32_t nout, inv_id *out)
{
    inv_graph *g = x->g;
    const inv_op_def *op = inv_registry_op(g->ctx->registry, "", name, 0);
    g->phase = v == INV_NONE ? INV_BACKWARD : INV_FORWARD;
    const inv_id node = inv_emit_op(g, op, nout, n->nin, n->in, n->nattr, n->attr, out);
    g->phase = INV_BACKWARD;
    if (node == INV_NONE) return false;
    inv_nod(g, node)->guards = true;
    return v == INV_NONE || inv_put_behind(x, v);
}

/* Emits the fingerprint of `then` behind what gives v in forward, and its comparison with `now`. every > 1: of a
 * sample. */
static bool emit_comparison(emitter *x, inv_id v, inv_id then, inv_id now, int64_t every, const inv_guarded_row *row)
{
    inv_graph *g = x->g;
    const int64_t slot = (int64_t)x->plan->guarded.n;
    inv_attr attr[4] = {inv_attr_of_int("key", slot + 1), inv_attr_of_int("every", every),
                        inv_attr_of_int("slot", slot),
                        inv_attr_of_float("limit", inv_guard_limit(row, x->r->policy->max_drift))};
    inv_id in[3] = {then}, sum;
    inv_node n = {.nin = 1, .in = in, .nattr = 2, .attr = attr};
    if (then == INV_NONE || now == INV_NONE || !emit_guard_node(x, v, "GuardSum", &n, 1, &sum)) return false;
    inv_val(g, sum)->mem = INV_MEM_GUARD;
    in[0] = now, in[1] = sum, in[2] = x->over, n.nin = x->over == INV_NONE ? 2 : 3, n.nattr = 4;
    return emit_guard_node(x, INV_NONE, "GuardCheck", &n, x->ahead, &x->over) &&
           inv_vec_push(&g->arena, &x->plan->guarded, *row);
}

bool inv_guard_rebuilt(emitter *x, inv_id v)
{
    const inv_guarded_row row = {v, INV_GUARD_REBUILT, 0};
    if (!inv_dtype_is_float(inv_val(x->g, v)->dtype)) return true;
    x->root[x->r->number[v]].checked = x->root[x->r->number[v]].newest;
    return emit_comparison(x, v, v, x->value[v].rep, 1, &row);
}

/* --- what is derived --- */

/* Whether backward reads something else for v, which may not be quite the same. */
static bool reads_inexactly(const emitter *x, inv_id v)
{
    return inv_in_forward(x->r, v) && x->root[x->r->number[v]].newest && x->root[x->r->number[v]].inexact;
}

/* The operand from `from` on that forward computes last; INV_NONE if one is computed in backward. */
static inv_id latest_operand(const emitter *x, const inv_node *n, uint32_t from)
{
    inv_id last = INV_NONE;
    for (uint32_t k = from; k < n->nin; k++) {
        const inv_id v = n->in[k];
        if (v == INV_NONE || inv_val(x->g, v)->def == INV_NONE) continue;
        if (!inv_in_forward(x->r, v)) return INV_NONE;
        if (last == INV_NONE || x->at[inv_val(x->g, v)->def] > x->at[inv_val(x->g, last)->def]) last = v;
    }
    return last;
}

static int64_t sample_stride(const emitter *x, inv_id v, int64_t sample)
{
    const int64_t every = inv_shape_nelem(&inv_val(x->g, v)->shape) / sample;
    return every < 1 ? 1 : every > SPARSEST ? SPARSEST : every;
}

static inv_guarded_row signs_row(const emitter *x, inv_id v, inv_id bits)
{
    return (inv_guarded_row){v, INV_GUARD_SIGNS, 8 * (double)inv_value_nbytes(inv_val(x->g, bits))};
}

/* Guards a value that is read as it is, once for each time that it is computed. */
static bool guard_value(emitter *x, inv_id v)
{
    const uint32_t k = x->r->number[v];
    if (x->root[k].checked == x->root[k].newest) return true;
    x->root[k].checked = x->root[k].newest;
    const inv_id made = x->root[k].stands;
    const bool real = inv_dtype_is_float(inv_val(x->g, made)->dtype);
    const inv_guarded_row row = real ? (inv_guarded_row){made, INV_GUARD_DERIVED, 0} : signs_row(x, made, made);
    return emit_comparison(x, made, made, x->value[made].rep, real ? sample_stride(x, made, SAMPLE) : 1, &row);
}

/* Whether each operand but the first has the first one's shape, or is a single number. */
static bool operands_align(const emitter *x, const inv_node *n)
{
    const inv_shape *s = &inv_val(x->g, n->in[0])->shape;
    for (uint32_t k = 1; k < n->nin; k++) {
        const inv_shape *o = n->in[k] == INV_NONE ? NULL : &inv_val(x->g, n->in[k])->shape;
        if (!o || (!inv_shape_equal(o, s) && inv_shape_nelem(o) != 1)) return false;
    }
    return n->nin <= MOST_OPERANDS && n->nattr <= MOST_ATTRIBUTES;
}

/* Emits operator `name` on a sample of n's operands, laid out in rows (GuardPick). Single numbers are taken as they
 * are. With `gradient`, the first operand is all ones, as many as are sampled of another. v: where in forward;
 * INV_NONE: in backward. */
static inv_id emit_on_sample(emitter *x, inv_id v, const char *name, const inv_node *n, bool gradient, int64_t every)
{
    inv_attr attr[MOST_ATTRIBUTES];
    inv_id in[MOST_OPERANDS] = {INV_NONE}, out[2];
    for (uint32_t k = gradient; k < n->nin; k++) {
        const bool single = inv_shape_nelem(&inv_val(x->g, n->in[k])->shape) == 1;
        inv_attr pick = inv_attr_of_int("every", single ? 1 : every);
        in[k] = n->in[k];
        if (single && !(gradient && in[0] == INV_NONE && k + 1 == n->nin)) continue;
        const inv_node whole = {.nin = 1, .in = &in[k], .nattr = 1, .attr = &pick};
        if (!emit_guard_node(x, v, "GuardPick", &whole, gradient ? 2 : 1, out)) return INV_NONE;
        in[k] = out[0];
        if (gradient) in[0] = out[1];
    }
    for (uint32_t k = 0; k < n->nattr; k++)
        attr[k] = strcmp(n->attr[k].name, "axis") == 0 ? inv_attr_of_int("axis", 0) : n->attr[k];
    const inv_node sampled = {.nin = n->nin, .in = in, .nattr = n->nattr, .attr = attr};
    return emit_guard_node(x, v, name, &sampled, 1, out) ? out[0] : INV_NONE;
}

/* Guards bits that operator `name` makes of the operands of `then` in forward, behind v, and of `now` in backward.
 * `made`: the bits of the whole that backward has already, or INV_NONE. */
static bool guard_bits(emitter *x, inv_id v, const char *name, const inv_node *then, const inv_node *now, inv_id made)
{
    const int64_t every = operands_align(x, then) ? sample_stride(x, then->in[0], SAMPLE_OF_SIGNS) : 1;
    inv_id bits[2] = {INV_NONE, made};
    if (every > 1) {
        bits[0] = emit_on_sample(x, v, name, then, false, every);
        bits[1] = emit_on_sample(x, INV_NONE, name, now, false, every);
    } else if (!emit_guard_node(x, v, name, then, 1, &bits[0]) ||
               (made == INV_NONE && !emit_guard_node(x, INV_NONE, name, now, 1, &bits[1]))) {
        return false;
    }
    if (bits[0] == INV_NONE) return false;
    const inv_guarded_row row = signs_row(x, v, bits[0]);
    return emit_comparison(x, v, bits[0], bits[1], 1, &row);
}

/* Guards a comparison of backward by making it in forward as well. */
static bool guard_comparison(emitter *x, inv_id id)
{
    const inv_node then = *inv_nod(x->r->base, id), now = *inv_nod(x->g, id);
    const inv_id v = latest_operand(x, &then, 0);
    return v == INV_NONE || guard_bits(x, v, then.op->name, &then, &now, now.out[0]);
}

/* Guards on which side of zero operand 1 is. */
static bool guard_kink(emitter *x, inv_id id)
{
    const inv_id v = inv_nod(x->r->base, id)->in[1];
    const inv_value *val = inv_val(x->g, v);
    inv_attr axis = inv_attr_of_int("axis", val->shape.rank > 0 ? val->shape.rank - 1 : 0);
    const inv_id zero = inv_graph_const_real(x->g, val->dtype, 0);
    inv_id before[2] = {v, zero}, after[2] = {inv_nod(x->g, id)->in[1], zero};
    const inv_node then = {.nin = 2, .in = before, .nattr = 1, .attr = &axis};
    const inv_node now = {.nin = 2, .in = after, .nattr = 1, .attr = &axis};
    return zero != INV_NONE && guard_bits(x, v, "CompareBits", &then, &now, INV_NONE);
}

static bool guard_slope(emitter *x, inv_id id)
{
    const inv_node n = *inv_nod(x->r->base, id), now = *inv_nod(x->g, id);
    const char *name = n.op->name;
    const inv_id v = latest_operand(x, &n, 1);
    const int64_t every = sample_stride(x, n.in[0], SAMPLE);
    inv_guarded_row row = {v, INV_GUARD_DERIVED, 0};
    for (uint32_t k = 1; k < n.nin; k++)
        if (reads_inexactly(x, n.in[k])) row.value = n.in[k];
    const inv_id then = emit_on_sample(x, v, name, &n, true, every);
    return then != INV_NONE &&
           emit_comparison(x, v, then, emit_on_sample(x, INV_NONE, name, &now, true, every), 1, &row);
}

bool inv_guard_view(emitter *x, inv_id v)
{
    const inv_id made = x->root[x->value[v].root].stands;
    return !reads_inexactly(x, made) || guard_value(x, made);
}

bool inv_guard_reader(emitter *x, inv_id id)
{
    const inv_node *n = inv_nod(x->r->base, id);
    bool any = false;
    for (uint32_t k = 0; k < n->nin; k++) any = any || reads_inexactly(x, n->in[k]);
    if (!any) return true;
    if (n->op->flags & INV_OP_COMPARES) return guard_comparison(x, id);
    if (n->op->flags & INV_OP_SLOPE && !reads_inexactly(x, n->in[0]) && operands_align(x, n) &&
        latest_operand(x, n, 1) != INV_NONE)
        return guard_slope(x, id);
    if (n->op->flags & INV_OP_KINK && reads_inexactly(x, n->in[1]) && !guard_kink(x, id)) return false;
    n = inv_nod(x->r->base, id);
    for (uint32_t k = 0; k < n->nin; k++)
        if (reads_inexactly(x, n->in[k]) && !guard_value(x, n->in[k])) return false;
    return true;
}
