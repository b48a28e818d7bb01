/* SPDX-License-Identifier: Apache-2.0
 * Peepholes on canonical operators, so that one meaning has one form whatever the exporter wrote:
 *   the same node twice                      -> once
 *   View/Transpose/Permute that change nothing, View of View, Transpose of Transpose
 *   slices along one axis that tile x        -> SplitSizes(x)
 *   SplitSizes(Concat(xs)), parts as joined  -> xs;  SliceRange inside one part of a Concat -> of that part
 *     (but not where some of the parts are outputs of the model: a multi-scale architecture has its name from that)
 *   ScatterNDN of a box with one free axis  -> Concat with pieces of a SplitSizes: overwrite.c
 *   MatMulT of a Transpose of the last two axes -> transA / transB
 * requires, gives: canonical forward graph. */
#include <string.h>

#include "passes/pass.h"

typedef struct simplifier {
    inv_graph *g;
    inv_id *to; /* per value: what stands for it */
    size_t cap, fresh; /* values from `fresh` on were made by this sweep */
    bool changed;
} simplifier;

static inv_id resolve(const simplifier *s, inv_id v)
{
    while (v != INV_NONE && v < s->cap && s->to[v] != v) v = s->to[v];
    return v;
}

/* `from` is replaced by `to`, which takes over the name if it is new itself; else the name of `from` is given up. */
static void replace(simplifier *s, inv_id from, inv_id to)
{
    if (from == INV_NONE || from == to) return;
    if (to >= s->fresh && from < s->fresh) inv_graph_swap_names(s->g, from, to);
    s->to[from] = to;
    s->changed = true;
}

static bool is_op(const inv_node *n, const char *name) { return n->op && strcmp(n->op->name, name) == 0; }

static const inv_node *def_of(const inv_graph *g, inv_id v)
{
    inv_id d = inv_val(g, v)->def;
    return d == INV_NONE ? NULL : inv_nod(g, d);
}

static bool same_ints(const int64_t *a, const int64_t *b, size_t n)
{
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

static bool same_attr(const inv_attr *a, const inv_attr *b)
{
    if (strcmp(a->name, b->name) != 0 || a->kind != b->kind) return false;
    switch (a->kind) {
    case INV_ATTR_INT: return a->i == b->i;
    case INV_ATTR_FLOAT: return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    case INV_ATTR_STRING: return strcmp(a->s, b->s) == 0;
    case INV_ATTR_INTS: return a->n == b->n && same_ints(a->ints, b->ints, a->n);
    case INV_ATTR_FLOATS:
        return a->n == b->n && (a->n == 0 || memcmp(a->floats, b->floats, a->n * sizeof(double)) == 0);
    default: return false;
    }
}

static bool same_node(const inv_node *a, const inv_node *b)
{
    if (a->op != b->op || a->nin != b->nin || a->nout != b->nout || a->nattr != b->nattr) return false;
    if (a->op->flags & (INV_OP_RANDOM | INV_OP_SOURCE | INV_OP_STEP) || a->op->writes) return false;
    /* Twins read the same running statistic, but each is to update it once, one after the other: passes/update.c. */
    if (is_op(a, "RunningMix")) return false;
    if (a->nin && memcmp(a->in, b->in, a->nin * sizeof(inv_id)) != 0) return false;
    for (uint32_t i = 0; i < a->nattr; i++)
        if (!same_attr(&a->attr[i], &b->attr[i])) return false;
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

/* View, Transpose, Permute: what stands for the output, or INV_NONE. */
static inv_id fold_rearrangement(simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_value *x = inv_val(g, n->in[0]), *y = inv_val(g, n->out[0]);
    const inv_node *d = def_of(g, n->in[0]);
    if (is_op(n, "View")) {
        if (inv_shape_equal(&x->shape, &y->shape)) return n->in[0];
        if (d && is_op(d, "View")) {
            inv_shape shape = y->shape;
            return inv_emit1(g, "View", INV_IN(d->in[0]),
                             INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim)));
        }
    }
    size_t np = 0, nd = 0;
    if (is_op(n, "Transpose")) {
        const int64_t *p = inv_attr_ints(n, "perm", &np);
        if (p && identity_perm(p, np)) return n->in[0];
        const int64_t *q = d && is_op(d, "Transpose") ? inv_attr_ints(d, "perm", &nd) : NULL;
        if (p && q && np == nd && np <= INV_MAX_RANK) {
            int64_t both[INV_MAX_RANK];
            for (size_t i = 0; i < np; i++) both[i] = q[p[i]];
            return inv_emit1(g, "Transpose", INV_IN(d->in[0]), INV_ATTRS(inv_attr_of_ints("perm", np, both)));
        }
    }
    if (is_op(n, "Permute")) {
        const int64_t *p = inv_attr_ints(n, "indices", &np);
        if (p && identity_perm(p, np)) return n->in[0];
    }
    return INV_NONE;
}

static bool swaps_last_two(const inv_graph *g, const inv_node *n)
{
    if (!n || !is_op(n, "Transpose")) return false;
    size_t k = 0;
    const int64_t *p = inv_attr_ints(n, "perm", &k);
    if (!p || k < 2 || (int)k != inv_val(g, n->in[0])->shape.rank) return false;
    return identity_perm(p, k - 2) && p[k - 2] == (int64_t)k - 1 && p[k - 1] == (int64_t)k - 2;
}

static inv_id absorb_transpose(simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_node *a = def_of(g, n->in[0]), *b = def_of(g, n->in[1]);
    bool ta = swaps_last_two(g, a), tb = swaps_last_two(g, b);
    if (!ta && !tb) return INV_NONE;
    inv_id in[2] = {ta ? a->in[0] : n->in[0], tb ? b->in[0] : n->in[1]};
    return inv_emit1(g, "MatMulT", 2, in,
                     INV_ATTRS(inv_attr_of_int("transA", inv_attr_int(n, "transA", 0) ^ (int64_t)ta),
                               inv_attr_of_int("transB", inv_attr_int(n, "transB", 0) ^ (int64_t)tb)));
}

/* A slice with step 1 along one axis only: the axis and its range. */
static bool one_axis_slice(const inv_graph *g, const inv_node *n, int *axis, int64_t *start, int64_t *size)
{
    size_t k = 0, ks = 0;
    if (!is_op(n, "SliceRange")) return false;
    const int64_t *starts = inv_attr_ints(n, "starts", &k), *steps = inv_attr_ints(n, "steps", &ks);
    const inv_shape *x = &inv_val(g, n->in[0])->shape, *y = &inv_val(g, n->out[0])->shape;
    if (!starts || !steps || (int)k != x->rank || ks != k) return false;
    *axis = -1;
    for (int d = 0; d < x->rank; d++) {
        if (steps[d] != 1) return false;
        if (x->dim[d] == y->dim[d]) continue;
        if (*axis >= 0) return false;
        *axis = d;
        *start = starts[d];
        *size = y->dim[d];
    }
    return *axis >= 0;
}

/* Slices of one value along one axis, in order of their start; a tiling by more than MAX_PARTS stays as it is. */
enum { MAX_PARTS = 64 };
typedef struct cover {
    inv_id node[MAX_PARTS];
    int64_t start[MAX_PARTS], size[MAX_PARTS];
    size_t n;
} cover;

static void collect_cover(const inv_graph *g, const inv_ids *nodes, const inv_node *first, int axis, cover *c)
{
    c->n = 0;
    for (size_t i = 0; i < nodes->n && c->n < MAX_PARTS; i++) {
        const inv_node *m = inv_nod(g, nodes->at[i]);
        int ax;
        int64_t start, size;
        if (!is_op(m, "SliceRange") || m->in[0] != first->in[0] || !one_axis_slice(g, m, &ax, &start, &size) ||
            ax != axis)
            continue;
        size_t j = c->n++;
        for (; j > 0 && c->start[j - 1] > start; j--) {
            c->node[j] = c->node[j - 1];
            c->start[j] = c->start[j - 1];
            c->size[j] = c->size[j - 1];
        }
        c->node[j] = nodes->at[i];
        c->start[j] = start;
        c->size[j] = size;
    }
}

/* Slices that tile their input become one SplitSizes. `nodes`: all nodes, inputs resolved. */
static inv_status slices_to_split(simplifier *s, const inv_ids *nodes, const inv_node *n, bool *done)
{
    inv_graph *g = s->g;
    int axis;
    int64_t start, size, at = 0;
    cover c;
    *done = false;
    if (!one_axis_slice(g, n, &axis, &start, &size)) return INV_OK;
    collect_cover(g, nodes, n, axis, &c);
    for (size_t i = 0; i < c.n; i++) {
        if (c.start[i] != at) return INV_OK;
        at += c.size[i];
    }
    if (c.n < 2 || at != inv_val(g, n->in[0])->shape.dim[axis]) return INV_OK;
    inv_id split = inv_emit(g, "SplitSizes", (uint32_t)c.n, INV_IN(n->in[0]),
                            INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", c.n, c.size)));
    if (split == INV_NONE) return g->failed;
    for (size_t i = 0; i < c.n; i++) replace(s, inv_nod(g, c.node[i])->out[0], inv_nod(g, split)->out[i]);
    *done = true;
    return INV_OK;
}

static bool leaves(const inv_graph *g, inv_id v) { return v != INV_NONE && inv_val(g, v)->is_output; }

/* Slices along one axis that meet at the joints of a Concat, some of them outputs of the model, some not. */
static bool scales_part(const inv_graph *g, const inv_ids *nodes, const inv_node *n, const inv_node *concat, int axis)
{
    cover c;
    size_t out = 0;
    collect_cover(g, nodes, n, axis, &c);
    if (c.n != concat->nin) return false;
    int64_t at = 0;
    for (size_t i = 0; i < c.n; i++) {
        if (c.start[i] != at || c.size[i] != inv_val(g, concat->in[i])->shape.dim[axis]) return false;
        at += c.size[i];
        out += leaves(g, inv_nod(g, c.node[i])->out[0]);
    }
    return out > 0 && out < c.n;
}

/* SplitSizes of a Concat with the same joints, or SliceRange inside one part. */
static inv_status through_concat(simplifier *s, const inv_ids *nodes, const inv_node *n, bool *done)
{
    inv_graph *g = s->g;
    const inv_node *c = def_of(g, n->in[0]);
    *done = false;
    if (!c || !is_op(c, "Concat")) return INV_OK;
    int64_t axis = inv_attr_int(c, "axis", 0);
    int rank = inv_val(g, c->out[0])->shape.rank;
    if (axis < 0) axis += rank;
    if (is_op(n, "SplitSizes")) {
        size_t k = 0;
        const int64_t *sizes = inv_attr_ints(n, "sizes", &k);
        if (inv_attr_int(n, "axis", 0) != axis || k != c->nin) return INV_OK;
        size_t out = 0;
        for (size_t i = 0; i < k; i++) {
            if (inv_val(g, c->in[i])->shape.dim[axis] != sizes[i]) return INV_OK;
            out += leaves(g, n->out[i]);
        }
        if (out > 0 && out < k) return INV_OK;
        for (size_t i = 0; i < k; i++) replace(s, n->out[i], c->in[i]);
        *done = true;
        return INV_OK;
    }
    int ax;
    int64_t start, size, at = 0;
    if (!one_axis_slice(g, n, &ax, &start, &size) || ax != axis || scales_part(g, nodes, n, c, ax)) return INV_OK;
    for (uint32_t i = 0; i < c->nin; i++) {
        inv_id part_id = c->in[i];
        inv_shape part = inv_val(g, part_id)->shape;
        int64_t extent = part.dim[axis];
        if (start >= at && start + size <= at + extent) {
            inv_id to = part_id, out = n->out[0];
            if (size != extent) {
                int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], sizes[INV_MAX_RANK];
                for (int d = 0; d < rank; d++) {
                    steps[d] = 1;
                    sizes[d] = part.dim[d];
                }
                starts[axis] = start - at;
                sizes[axis] = size;
                to = inv_emit1(g, "SliceRange", INV_IN(part_id),
                               INV_ATTRS(inv_attr_of_ints("starts", (size_t)rank, starts),
                                         inv_attr_of_ints("steps", (size_t)rank, steps),
                                         inv_attr_of_ints("sizes", (size_t)rank, sizes)));
                if (to == INV_NONE) return g->failed;
            }
            replace(s, out, to);
            *done = true;
            return INV_OK;
        }
        at += extent;
    }
    return INV_OK;
}

/* An earlier equal node among the users of the same first input; linear in those already listed. */
static inv_id earlier_twin(const inv_graph *g, const inv_node *n, const inv_id *last_user, const inv_id *prev_user)
{
    if (n->nin == 0 || n->in[0] == INV_NONE) return INV_NONE;
    for (inv_id u = last_user[n->in[0]]; u != INV_NONE; u = prev_user[u])
        if (same_node(inv_nod(g, u), n)) return u;
    return INV_NONE;
}

static inv_status rewrite(simplifier *s, inv_arena *scratch, const inv_ids *old, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    inv_node n = *inv_nod(g, id);
    inv_id to = INV_NONE;
    *done = false;
    if (is_op(&n, "View") || is_op(&n, "Transpose") || is_op(&n, "Permute")) to = fold_rearrangement(s, &n);
    else if (is_op(&n, "MatMulT")) to = absorb_transpose(s, &n);
    else if (is_op(&n, "ScatterNDN")) to = inv_simplify_overwrite(g, &n, scratch);
    else if (is_op(&n, "SplitSizes")) return through_concat(s, old, &n, done);
    else if (is_op(&n, "SliceRange")) {
        INV_TRY(through_concat(s, old, &n, done));
        return *done ? INV_OK : slices_to_split(s, old, &n, done);
    }
    if (g->failed) return g->failed;
    if (to != INV_NONE) {
        replace(s, n.out[0], to);
        *done = true;
    }
    return INV_OK;
}

static inv_status sweep(simplifier *s, inv_arena *scratch)
{
    inv_graph *g = s->g;
    inv_ids old = g->order;
    size_t nvalue = g->value.n + 4 * old.n + 64, nnode = g->node.n + 4 * old.n + 64;
    inv_id *last_user = INV_ARENA_NEW(scratch, inv_id, nvalue), *prev_user = INV_ARENA_NEW(scratch, inv_id, nnode);
    s->to = INV_ARENA_NEW(scratch, inv_id, nvalue);
    if (!last_user || !prev_user || !s->to) return INV_E_NOMEM;
    s->cap = nvalue;
    s->fresh = g->value.n;
    for (size_t v = 0; v < nvalue; v++) {
        s->to[v] = (inv_id)v;
        last_user[v] = INV_NONE;
    }
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < old.n; i++) {
        inv_node *n = inv_nod(g, old.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) n->in[k] = resolve(s, n->in[k]);
        g->emit_origin = n->origin;
        g->emit_norigin = n->norigin;
        bool replaced = n->nout > 0 && n->out[0] != INV_NONE && resolve(s, n->out[0]) != n->out[0];
        if (replaced) continue; /* a slice that became part of a split */
        bool done = false;
        INV_TRY(rewrite(s, scratch, &old, old.at[i], &done));
        n = inv_nod(g, old.at[i]);
        inv_id twin = done ? INV_NONE : earlier_twin(g, n, last_user, prev_user);
        if (twin != INV_NONE) {
            for (uint32_t k = 0; k < n->nout; k++) replace(s, n->out[k], inv_nod(g, twin)->out[k]);
            continue;
        }
        if (done) continue;
        if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
        if (n->nin && n->in[0] != INV_NONE && n->in[0] < nvalue && old.at[i] < nnode) {
            prev_user[old.at[i]] = last_user[n->in[0]];
            last_user[n->in[0]] = old.at[i];
        }
    }
    for (size_t i = 0; i < g->outputs.n; i++) {
        g->outputs.at[i] = resolve(s, g->outputs.at[i]);
        inv_val(g, g->outputs.at[i])->is_output = true;
    }
    return inv_graph_prune(g);
}

inv_status inv_pass_simplify(inv_graph *g)
{
    g->phase = INV_FORWARD;
    for (int round = 0; round < 16; round++) {
        inv_arena scratch;
        inv__arena_init(&scratch, g->ctx);
        simplifier s = {.g = g};
        inv_status st = sweep(&s, &scratch);
        inv__arena_fini(&scratch);
        INV_TRY(st);
        if (!s.changed) break;
    }
    g->emit_origin = NULL;
    g->emit_norigin = 0;
    return g->failed;
}
