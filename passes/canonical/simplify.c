/* SPDX-License-Identifier: Apache-2.0
 * Applies peepholes to canonical operators, so that one meaning has one form whatever the exporter wrote. The graph is
 * swept in execution order until a sweep changes nothing; a sweep looks at each node and its operands:
 *   the same node twice                      -> once
 *   View/Transpose/Permute that change nothing, View of View, Transpose of Transpose, Permute of Permute
 *   SliceRange, Gather at constant places, and SplitSizes, where they meet each other or a Concat: slices.c
 *   ScatterNDN at constant places of one axis -> Concat with pieces of what is overwritten: overwrite.c
 *   GatherNDN at constant places of the first axis -> Gather
 *   Gather at constant places of a Transpose, Concat of Transposes alike -> the Transpose comes last
 *   MatMulT of a Transpose of the last two axes -> transA / transB
 *   MatMulT, Gather and SliceRange of an Unpack -> what reads it packed: unpack.c
 *   MaxPoolN of a Relu or a clip that nobody else reads -> that of the MaxPoolN
 * What nobody reads any more stays until the end, so that each value of the file gets what stands for it.
 * requires, gives: canonical forward graph. */
#include <string.h>

#include "passes/canonical/canonical.h"

/* `from` is replaced by `to`, which takes over the name if it is new itself; else the name of `from` is given up. */
void inv_simplify_replace(inv_simplifier *s, inv_id from, inv_id to)
{
    if (from == INV_NONE || from == to) return;
    if (to >= s->fresh && from < s->fresh) inv_graph_swap_names(s->g, from, to);
    inv_val(s->g, from)->same = to;
    s->changed = true;
}

/* The same places, as two constants. */
static bool same_places(const inv_graph *g, inv_id a, inv_id b)
{
    if (a == INV_NONE || b == INV_NONE || !inv_const_known(g, a) || !inv_const_known(g, b)) return false;
    const inv_value *x = inv_val(g, a), *y = inv_val(g, b);
    return x->data.dtype == y->data.dtype && x->data.nbytes == y->data.nbytes && x->data.bytes && y->data.bytes &&
           inv_shape_equal(&x->shape, &y->shape) && memcmp(x->data.bytes, y->data.bytes, x->data.nbytes) == 0;
}

static bool find_same_node(const inv_graph *g, const inv_node *a, const inv_node *b)
{
    if (a->op != b->op || a->nin != b->nin || a->nout != b->nout || a->nattr != b->nattr) return false;
    /* Twins of INV_OP_UPDATE read the same statistic, but each is to update it, one after the other:
     * passes/autodiff/optimizer_update.c. */
    if (a->op->flags & (INV_OP_RANDOM | INV_OP_SOURCE | INV_OP_STEP | INV_OP_UPDATE) || a->op->writes) return false;
    for (uint32_t i = 0; i < a->nin; i++)
        if (a->in[i] != b->in[i] && !(i == 1 && inv_op_is(a, "Gather") && same_places(g, a->in[i], b->in[i])))
            return false;
    for (uint32_t i = 0; i < a->nattr; i++)
        if (!inv_attr_same(&a->attr[i], &b->attr[i])) return false;
    for (uint32_t i = 0; i < a->nout; i++)
        if ((a->out[i] == INV_NONE) != (b->out[i] == INV_NONE)) return false;
    return true;
}

static bool identity_perm(const int64_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (int64_t)i) return false;
    return true;
}

/* Only axes of extent 1 change places with others. */
static bool keeps_order(const inv_shape *x, const int64_t *perm)
{
    int64_t last = -1;
    bool kept = true;
    for (int d = 0; d < x->rank; d++) {
        kept = kept && (x->dim[perm[d]] == 1 || perm[d] > last);
        if (x->dim[perm[d]] != 1) last = perm[d];
    }
    return kept;
}

/* Emits x rearranged, unless that changes nothing: one step for two, so that no value of the file goes without what
 * stands for it because nobody reads the step between. */
static inv_id viewed(inv_graph *g, inv_id x, const inv_shape *shape)
{
    if (inv_shape_equal(&inv_val(g, x)->shape, shape)) return x;
    return inv_emit1(g, "View", INV_IN(x), INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape->rank, shape->dim)));
}

static inv_id transposed(inv_graph *g, inv_id x, const int64_t *perm, size_t n, const inv_shape *shape)
{
    if (identity_perm(perm, n)) return x;
    if (keeps_order(&inv_val(g, x)->shape, perm)) return viewed(g, x, shape);
    return inv_emit1(g, "Transpose", INV_IN(x), INV_ATTRS(inv_attr_of_ints("perm", n, perm)));
}

static inv_id permuted(inv_graph *g, inv_id x, int axis, const int64_t *index, size_t n)
{
    if (identity_perm(index, n)) return x;
    return inv_emit1(g, "Permute", INV_IN(x),
                     INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("indices", n, index)));
}

/* Finds what stands for the output of a View, Transpose or Permute; INV_NONE: nothing does. */
static inv_id fold_rearrangement(inv_simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_shape x = inv_val(g, n->in[0])->shape, y = inv_val(g, n->out[0])->shape;
    const inv_node *d = inv_def_node(g, n->in[0]);
    size_t np = 0, nd = 0;
    const bool twice = d && d->op == n->op;
    if (inv_op_is(n, "View")) return twice ? viewed(g, d->in[0], &y) : inv_shape_equal(&x, &y) ? n->in[0] : INV_NONE;
    const char *key = inv_op_is(n, "Transpose") ? "perm" : "indices";
    const int64_t *p = inv_attr_ints(n, key, &np), *q = twice ? inv_attr_ints(d, key, &nd) : NULL;
    if (!p) return INV_NONE;
    if (identity_perm(p, np)) return n->in[0];
    const bool turns = inv_op_is(n, "Transpose");
    if (turns && keeps_order(&x, p)) return viewed(g, n->in[0], &y);
    if (!q || np != nd || (!turns && inv_simplify_axis(g, n) != inv_simplify_axis(g, d))) return INV_NONE;
    int64_t *both = INV_ARENA_NEW(&g->arena, int64_t, np + 1);
    for (size_t i = 0; both && i < np; i++) both[i] = q[p[i]];
    if (!both) return INV_NONE;
    return turns ? transposed(g, d->in[0], both, np, &y) : permuted(g, d->in[0], inv_simplify_axis(g, n), both, np);
}

static bool swaps_last_two(const inv_graph *g, const inv_node *n)
{
    if (!n || !inv_op_is(n, "Transpose")) return false;
    size_t k = 0;
    const int64_t *p = inv_attr_ints(n, "perm", &k);
    if (!p || k < 2 || (int)k != inv_val(g, n->in[0])->shape.rank) return false;
    return identity_perm(p, k - 2) && p[k - 2] == (int64_t)k - 1 && p[k - 1] == (int64_t)k - 2;
}

static inv_id absorb_transpose(inv_simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_node *a = inv_def_node(g, n->in[0]), *b = inv_def_node(g, n->in[1]);
    bool ta = swaps_last_two(g, a), tb = swaps_last_two(g, b);
    if (!ta && !tb) return INV_NONE;
    inv_id in[2] = {ta ? a->in[0] : n->in[0], tb ? b->in[0] : n->in[1]};
    return inv_emit1(g, "MatMulT", 2, in,
                     INV_ATTRS(inv_attr_of_int("transA", inv_attr_int(n, "transA", 0) ^ (int64_t)ta),
                               inv_attr_of_int("transB", inv_attr_int(n, "transB", 0) ^ (int64_t)tb)));
}

/* An earlier equal node among the users of the same first input; linear in those already listed. */
static inv_id earlier_twin(const inv_graph *g, const inv_node *n, const inv_id *last_user, const inv_id *prev_user)
{
    if (n->nin == 0 || n->in[0] == INV_NONE) return INV_NONE;
    for (inv_id u = last_user[n->in[0]]; u != INV_NONE; u = prev_user[u])
        if (find_same_node(g, inv_nod(g, u), n)) return u;
    return INV_NONE;
}

/* Every window of a pooling has elements of the input. */
static bool windows_reach_in(const inv_node *n)
{
    size_t npad, nkernel, ndil;
    const int64_t *pad = inv_attr_ints(n, "pads", &npad), *kernel = inv_attr_ints(n, "kernel_shape", &nkernel),
                  *dil = inv_attr_ints(n, "dilations", &ndil);
    for (size_t i = 0; i < npad; i++)
        if (pad[i] && (nkernel == 0 || pad[i] >= kernel[i % nkernel] || (ndil && dil[i % ndil] != 1))) return false;
    return true;
}

/* MaxPoolN(f(x)) = f(MaxPoolN(x)) where f never falls. The activation is of the smaller tensor then, and nothing of the
 * larger one is left for backward to read. Only for what is strict or flat: where it is flat no gradient comes through
 * either way, elsewhere the same element is the largest. INV_NONE: not so, or somebody else reads f(x). */
static inv_id pool_before(inv_simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_node *d = inv_def_node(g, n->in[0]);
    if (!d || n->nout != 1 || (!inv_op_is(d, "Relu") && !inv_op_is(d, "ClipRange"))) return INV_NONE;
    const inv_id fx = n->in[0];
    if (inv_val(g, fx)->is_output || !windows_reach_in(n) || fx >= s->fresh) return INV_NONE;
    if (s->uses.start[fx + 1] - s->uses.start[fx] != 1) return INV_NONE;
    const inv_node f = *d; /* emitting moves the array */
    const inv_id y = inv_emit1(g, "MaxPoolN", INV_IN(f.in[0]), n->nattr, n->attr);
    inv_emit_for(g, &f);
    const inv_id to = inv_emit1(g, f.op->name, INV_IN(y), f.nattr, f.attr);
    inv_emit_for(g, n);
    return to;
}

/* Gather at constant places of a Transpose, and Concat of several alike: the Transpose of that. */
static inv_id transpose_last(inv_simplifier *s, const char *op, uint32_t nin, const inv_id *of, int axis)
{
    inv_graph *g = s->g;
    const bool gather = strcmp(op, "Gather") == 0;
    int64_t perm[INV_MAX_RANK];
    size_t rank = 0;
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, nin + 1);
    if (!in) return INV_NONE;
    if (gather && (inv_val(g, of[1])->shape.rank != 1 || !inv_const_known(g, of[1]))) return INV_NONE;
    for (uint32_t k = 0; k < (gather ? 1 : nin); k++) {
        const inv_node *t = of[k] == INV_NONE ? NULL : inv_def_node(g, of[k]);
        const int64_t *p = t && inv_op_is(t, "Transpose") ? inv_attr_ints(t, "perm", &rank) : NULL;
        if (!p || rank > INV_MAX_RANK || (k > 0 && memcmp(p, perm, rank * sizeof *p) != 0)) return INV_NONE;
        memcpy(perm, p, rank * sizeof *p);
        in[k] = t->in[0];
    }
    if (gather) in[1] = of[1];
    const inv_id y = inv_emit1(g, op, nin, in, INV_ATTRS(inv_attr_of_int("axis", perm[axis])));
    return y == INV_NONE ? INV_NONE
                         : inv_emit1(g, "Transpose", INV_IN(y), INV_ATTRS(inv_attr_of_ints("perm", rank, perm)));
}

/* GatherNDN at constant places of the first axis is a Gather; of a Transpose, the Transpose of one, so that what reads
 * it meets that in this sweep. */
static inv_id gather_first(inv_simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_value *index = inv_val(g, n->in[1]);
    if (inv_attr_int(n, "batch_dims", 0) != 0 || index->shape.rank != 2 || index->shape.dim[1] != 1 ||
        !inv_const_known(g, n->in[1]) || index->data.dtype != INV_I64 || !index->data.bytes)
        return INV_NONE;
    const inv_shape list = inv_shape_of(1, index->shape.dim);
    const inv_id places = inv_graph_const(g, INV_I64, &list, index->data.bytes);
    if (places == INV_NONE) return INV_NONE;
    const inv_id in[] = {n->in[0], places}, last = transpose_last(s, "Gather", 2, in, 0);
    return last != INV_NONE || g->failed ? last : inv_emit1(g, "Gather", 2, in, INV_ATTRS(inv_attr_of_int("axis", 0)));
}

static inv_status simplify_node(inv_simplifier *s, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    inv_node n = *inv_nod(g, id);
    inv_id to = inv_simplify_unpack(g, &n);
    *done = false;
    if (to == INV_NONE && (inv_op_is(&n, "Concat") || inv_op_is(&n, "Gather")))
        to = transpose_last(s, n.op->name, n.nin, n.in, inv_simplify_axis(g, &n));
    if (to != INV_NONE)
        ;
    else if (inv_op_is(&n, "View") || inv_op_is(&n, "Transpose") || inv_op_is(&n, "Permute"))
        to = fold_rearrangement(s, &n);
    else if (inv_op_is(&n, "MatMulT")) to = absorb_transpose(s, &n);
    else if (inv_op_is(&n, "MaxPoolN")) to = pool_before(s, &n);
    else if (inv_op_is(&n, "ScatterNDN")) to = inv_simplify_overwrite(g, &n, s->scratch);
    else if (inv_op_is(&n, "GatherNDN")) to = gather_first(s, &n);
    else if (inv_op_is(&n, "Add") || inv_op_is(&n, "Sub") || inv_op_is(&n, "Mul") || inv_op_is(&n, "Div"))
        to = inv_simplify_join(g, &n, s->scratch);
    else if (inv_op_is(&n, "SplitSizes")) inv_simplify_split(s, id, done);
    else if (inv_op_is(&n, "SliceRange") || inv_op_is(&n, "Gather")) return inv_simplify_piece(s, id, done);
    if (g->failed) return g->failed;
    if (to != INV_NONE) {
        inv_simplify_replace(s, n.out[0], to);
        *done = true;
    }
    return INV_OK;
}

/* Lets all nodes read what stands for their operands, and notes who reads what and where nodes stand. */
static inv_status begin_sweep(inv_simplifier *s)
{
    inv_graph *g = s->g;
    if (!(s->place = INV_ARENA_NEW(s->scratch, uint32_t, g->node.n + 1))) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        s->place[g->order.at[i]] = (uint32_t)i;
        for (uint32_t k = 0; k < n->nin; k++) n->in[k] = inv_graph_stands(g, n->in[k]);
    }
    s->fresh = g->value.n;
    return inv_graph_uses(g, s->scratch, &s->uses);
}

static inv_status simplify_sweep(inv_simplifier *s)
{
    inv_graph *g = s->g;
    inv_arena *scratch = s->scratch;
    INV_TRY(begin_sweep(s));
    inv_ids old = g->order;
    size_t nvalue = g->value.n + 4 * old.n + 64, nnode = g->node.n + 4 * old.n + 64;
    inv_id *last_user = INV_ARENA_NEW(scratch, inv_id, nvalue), *prev_user = INV_ARENA_NEW(scratch, inv_id, nnode);
    if (!last_user || !prev_user) return INV_E_NOMEM;
    for (size_t v = 0; v < nvalue; v++) last_user[v] = INV_NONE;
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < old.n; i++) {
        inv_node *n = inv_nod(g, old.at[i]);
        s->moved = n->nin > 0 && inv_graph_stands(g, n->in[0]) != n->in[0];
        for (uint32_t k = 0; k < n->nin; k++) n->in[k] = inv_graph_stands(g, n->in[k]);
        inv_emit_for(g, n);
        bool replaced = n->nout > 0 && n->out[0] != INV_NONE && inv_graph_stands(g, n->out[0]) != n->out[0];
        if (replaced) continue; /* a piece that became part of a split */
        bool done = false;
        INV_TRY(simplify_node(s, old.at[i], &done));
        n = inv_nod(g, old.at[i]);
        inv_id twin = done ? INV_NONE : earlier_twin(g, n, last_user, prev_user);
        if (twin != INV_NONE) {
            for (uint32_t k = 0; k < n->nout; k++) inv_simplify_replace(s, n->out[k], inv_nod(g, twin)->out[k]);
            continue;
        }
        if (done) continue;
        if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
        if (n->nin && n->in[0] != INV_NONE && n->in[0] < nvalue && old.at[i] < nnode) {
            prev_user[old.at[i]] = last_user[n->in[0]];
            last_user[n->in[0]] = old.at[i];
        }
    }
    inv_graph_stand_outputs(g);
    return INV_OK;
}

inv_status inv_pass_simplify(inv_graph *g)
{
    g->phase = INV_FORWARD;
    /* Each sweep brings at least one node nearer to its last form, so there is an end; the count makes sure. */
    size_t left = g->order.n + 16;
    for (bool changed = true; changed && left-- > 0;) {
        inv_arena scratch;
        inv_arena_init(&scratch, g->ctx);
        inv_simplifier s = {.g = g, .scratch = &scratch};
        inv_status st = simplify_sweep(&s);
        inv_arena_fini(&scratch);
        INV_TRY(st);
        changed = s.changed;
    }
    inv_emit_for(g, NULL);
    return g->failed ? g->failed : inv_graph_prune(g);
}
