/* SPDX-License-Identifier: Apache-2.0
 * The log-determinant of the inverse direction, per sample: the negative of the model's own if it has one, else the sum
 * of what the rules say of the inverses used. That sum is right where each of them exchanges values of a set that
 * determines the model's inputs for as many others, and depends on the rest of the set only through what it is given:
 *
 *     {y1, x2} -> {x1, x2}    by x1 = (y1 - t(x2)) / s(x2): d(y1, x2) / d(x1, x2) is triangular, log |det| sum log |s|
 *
 * So the set is followed from the outputs to the inputs, and whatever breaks this is refused. An inverse of several
 * operators may leave out values between: if the next one starts from such a value, the model's own operator has
 * computed it of one in the set, and that is an exchange, too, of the opposite sign. Each value of the set has
 * the samples one after the other along its first axis: a row for each, or several, where pixels or tokens are folded
 * into rows. Only what moves entries may meet them along another axis. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "passes/export/export.h"
#include "passes/export/formula.h"
#include "passes/export/outline.h"
#include "passes/export/raise.h"
#include "passes/export/reverse_model.h"

typedef struct tally {
    inv_reversal *x;
    const inv_graph *g;
    inv_onnx_body *r;
    bool *held;            /* per value of g: in the set */
    bool *solved;          /* ... and known without forward: an output, or given by an inverse that was used */
    int *axis;             /* ... the axis along which its samples lie */
    uint32_t *seen, stamp; /* per value of g */
    inv_id *stack;
    const char *sum; /* so far */
} tally;

static inv_status cannot(const tally *t, const inv_derived *u, const char *why)
{
    const inv_node *n = inv_nod(t->g, u->edge->forward);
    return inv_fail(t->x->o->ctx, INV_E_NOT_INVERTIBLE,
                    "cannot build the log-determinant: node '%s' (%s): %s. If the model has an output with its "
                    "log-determinants, name it ({logdet})",
                    inv_node_called(t->g, n), n->op_type, why);
}

/* --- whether the sum is right --- */

static bool starts_from(const inv_volume *v, inv_id value) { return inv_ids_have(v->from, v->nfrom, value); }

/* Whether v can be computed from what is given and, unless `but` is NULL, from the set without what `but` starts
 * from. A stamp for all values that are asked about in one question. */
static bool stands_apart(tally *t, const inv_volume *but, inv_id v)
{
    const inv_outliner *o = t->x->o;
    bool apart = true;
    size_t n = 0;
    t->stack[n++] = v;
    while (n > 0 && apart) {
        v = t->stack[--n];
        if (v == INV_NONE || t->seen[v] == t->stamp || !o->carries[v]) continue;
        t->seen[v] = t->stamp;
        bool given = false;
        for (size_t i = 0; i < t->x->given.n; i++) given = given || inv_graph_stands(t->g, t->x->given.at[i]) == v;
        if (given || (but && t->held[v] && !starts_from(but, v))) continue;
        const inv_id def = inv_val(t->g, v)->def;
        apart = !t->held[v] && def != INV_NONE && inv_nod(t->g, def)->nin > 0;
        for (uint32_t k = 0; apart && k < inv_nod(t->g, def)->nin; k++)
            if (inv_nod(t->g, def)->in[k] != INV_NONE && t->seen[inv_nod(t->g, def)->in[k]] != t->stamp)
                t->stack[n++] = inv_nod(t->g, def)->in[k];
    }
    return apart;
}

/* What the pattern takes besides. */
static inv_status check_operands(tally *t, const inv_derived *u)
{
    const inv_volume *v = u->edge->volume;
    t->stamp++;
    for (uint32_t i = 0; i < v->nheld; i++)
        if (t->x->o->carries[v->held[i]] && !stands_apart(t, v, v->held[i]))
            return cannot(t, u, "the other operands of its inverse depend on the value that it is solved from");
    return INV_OK;
}

/* The inverse of the operator by which the model computes `to` of `from`, if `to` is known by nothing else. */
static const inv_edge *undone_forward(const tally *t, inv_id from, inv_id to)
{
    const inv_matches *all = t->g->matches;
    for (size_t i = 0; i < all->edge.n && !t->solved[to]; i++) {
        const inv_edge *e = &all->edge.at[i];
        const inv_volume *v = e->volume;
        if (e->frees == from && v->known && v->nfrom == 1 && v->from[0] == to && e->forward == inv_val(t->g, to)->def)
            return e;
    }
    return NULL;
}

/* Whether what it frees is solved from again, or wanted. What only serves to compute operands (the half of a value that
 * a mask lets pass) takes nothing out of the set. */
static bool goes_on(const tally *t, const inv_derived *u)
{
    const inv_reversal *x = t->x;
    for (size_t i = 0; i < u->freed.n; i++) {
        for (size_t k = 0; k < x->d.used.n; k++) {
            const inv_volume *v = x->d.used.at[k].edge->volume;
            bool on = starts_from(v, u->freed.at[i]);
            for (uint32_t j = 0; j < v->nfrom && !on; j++) {
                const inv_edge *e = undone_forward(t, u->freed.at[i], v->from[j]);
                on = e && e != x->d.used.at[k].edge;
            }
            if (on && inv_reversal_needs(x, &x->d.used.at[k])) return true;
        }
        for (size_t k = 0; k < x->wanted.n; k++)
            if (inv_graph_stands(t->g, x->wanted.at[k]) == u->freed.at[i]) return true;
    }
    return false;
}

static int64_t samples(const tally *t)
{
    return inv_val(t->g, inv_graph_stands(t->g, t->x->wanted.at[0]))->shape.dim[0];
}

/* *per_row: each row is of one sample. */
static int64_t elements(const tally *t, const inv_id *v, size_t n, bool *per_row)
{
    const int64_t rows = samples(t);
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const inv_shape *s = &inv_val(t->g, v[i])->shape;
        const int64_t n0 = s->rank > 0 ? s->dim[t->axis[v[i]]] : 1;
        *per_row = *per_row && s->rank > 0 && (n0 == rows || (rows > 0 && n0 % rows == 0));
        sum += inv_shape_nelem(s);
    }
    return sum;
}

/* Whether an attribute makes the node move elements along the first axis. */
static bool moves_rows(const inv_node *n)
{
    size_t axes, steps;
    const int64_t *perm = inv_attr_ints(n, "perm", &axes), *step = inv_attr_ints(n, "steps", &steps);
    return inv_attr_int(n, "axis", 1) == 0 || (axes && perm[0] != 0) || (steps && step[0] != 1);
}

/* Whether what is solved from stays in its row; extents do not tell where two of them are equal. */
static bool keeps_rows(tally *t, const inv_edge *e)
{
    t->stamp++;
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(t->g, e->node[i]);
        bool carried = false;
        for (uint32_t k = 0; k < n->nin && !carried; k++)
            carried = n->in[k] != INV_NONE && (t->seen[n->in[k]] == t->stamp || starts_from(e->volume, n->in[k]));
        if (!carried) continue;
        if (moves_rows(n)) return false;
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) t->seen[n->out[k]] = t->stamp;
    }
    return true;
}

static int64_t entries_before(const inv_shape *s, int axis)
{
    int64_t n = 1;
    for (int d = 0; d < axis; d++) n *= s->dim[d];
    return n;
}

/* The axis of samples in what the edge frees, if it is one node that only moves entries; else, and where samples do not
 * lie along one axis, -1. */
static int axis_behind(const tally *t, const inv_edge *e)
{
    const inv_node *n = inv_nod(t->g, e->forward);
    const inv_shape *x = &inv_val(t->g, e->frees)->shape, *y = &inv_val(t->g, e->volume->from[0])->shape;
    const int axis = t->axis[e->volume->from[0]];
    size_t k;
    if (e->nnode != 1 || e->volume->nterm > 0 || y->rank < 1) return -1;
    for (uint32_t i = 1; i < e->volume->nfrom; i++)
        if (t->axis[e->volume->from[i]] != axis) return -1;
    if (inv_op_is(n, "Transpose")) return (int)inv_attr_ints(n, "perm", &k)[axis];
    if (inv_op_is(n, "View")) {
        if (entries_before(y, axis) != 1) return -1;
        for (int d = 0; d < x->rank && entries_before(x, d) == 1; d++)
            if (x->dim[d] == y->dim[axis]) return d;
        return -1;
    }
    const bool joins = inv_op_is(n, "Concat") || inv_op_is(n, "SplitSizes") || inv_op_is(n, "Permute");
    return joins && inv_attr_int(n, "axis", 0) != axis ? axis : -1;
}

/* Finds the axis of samples in what is freed. false: they are not each on its own. */
static bool find_samples(tally *t, const inv_derived *u)
{
    const inv_edge *e = u->edge;
    bool first = keeps_rows(t, e) && inv_attr_int(inv_nod(t->g, e->forward), "axis", 1) != 0, per_row = true;
    for (uint32_t i = 0; i < e->volume->nfrom; i++) first = first && t->axis[e->volume->from[i]] == 0;
    elements(t, u->freed.at, u->freed.n, &per_row);
    const int axis = first && per_row ? 0 : axis_behind(t, e);
    for (size_t i = 0; i < u->freed.n; i++) t->axis[u->freed.at[i]] = axis < 0 ? 0 : axis;
    return axis >= 0;
}

static inv_status exchange(tally *t, const inv_derived *u)
{
    const inv_volume *v = u->edge->volume;
    bool per_row = true;
    const bool apart = find_samples(t, u);
    for (uint32_t i = 0; i < v->nfrom; i++)
        if (!t->held[v->from[i]]) return cannot(t, u, "the value that it is solved from has been used before");
    if (elements(t, v->from, v->nfrom, &per_row) != elements(t, u->freed.at, u->freed.n, &per_row))
        return cannot(t, u, "its output has another number of elements than its input, so it is no bijection");
    if (!apart || !per_row) return cannot(t, u, "its first axis is not the batch");
    INV_TRY(check_operands(t, u));
    for (uint32_t i = 0; i < v->nfrom; i++) t->held[v->from[i]] = false;
    for (size_t i = 0; i < u->freed.n; i++) t->held[u->freed.at[i]] = true;
    return INV_OK;
}

/* The set to begin with: outputs that something is solved from, or that are inputs as they are. */
static void hold_outputs(tally *t)
{
    const inv_reversal *x = t->x;
    for (size_t i = 0; i < x->known.n; i++) {
        inv_id v = inv_graph_stands(t->g, x->known.at[i]);
        bool used = false;
        for (size_t k = 0; k < x->d.used.n && !used; k++)
            used = inv_reversal_needs(x, &x->d.used.at[k]) && starts_from(x->d.used.at[k].edge->volume, v);
        for (size_t k = 0; k < x->wanted.n && !used; k++) used = inv_graph_stands(t->g, x->wanted.at[k]) == v;
        t->held[v] = used;
    }
}

static inv_status check_end(const tally *t)
{
    const inv_reversal *x = t->x;
    size_t held = 0, wanted = 0;
    for (size_t v = 0; v < t->g->value.n; v++) held += t->held[v];
    for (size_t i = 0; i < x->wanted.n; i++) {
        inv_id v = inv_graph_stands(t->g, x->wanted.at[i]);
        INV_CHECK(!t->held[v] || t->axis[v] == 0, x->o->ctx, INV_E_NOT_INVERTIBLE,
                  "cannot build the log-determinant: the first axis of input '%s' is not the batch. If the model has "
                  "an output with its log-determinants, name it ({logdet})",
                  inv_val(t->g, v)->name);
        wanted += t->held[v];
        t->held[v] = false;
    }
    INV_CHECK(held == wanted && wanted == x->wanted.n, x->o->ctx, INV_E_NOT_INVERTIBLE,
              "cannot build the log-determinant: outputs and inputs of the model do not determine each other. If the "
              "model has an output with its log-determinants, name it ({logdet})");
    return INV_OK;
}

/* --- the sum --- */

static const char *log_derivative(const tally *t, const inv_derived *u)
{
    const inv_node *n = inv_nod(t->g, u->edge->forward);
    const char *value[3] = {NULL}; /* of the operands, then of the result */
    for (uint32_t i = 0; i < n->nin; i++) value[i] = inv_derive_as(&t->x->d, n->in[i], t->r->real);
    value[n->nin] = inv_derive_as(&t->x->d, n->out[0], t->r->real);
    return inv_formula_write(t->r, n, n->op->log_slope, value, NULL);
}

static const char *sum_axes(inv_onnx_body *r, const char *x, int from, int rank)
{
    int64_t axes[INV_MAX_RANK];
    size_t n = 0;
    for (int i = from; i < rank; i++) axes[n++] = i;
    if (n == 0) return x;
    return inv_onnx_reduced(r, inv_onnx_fresh(r), "ReduceSum", INV_ONNX_INPUTS_OF_REDUCE_SUM, x, n, axes, false);
}

/* Whether the model has open dimensions besides the batch: only a run tells extents then. */
static bool open_inside(const tally *t)
{
    const inv_graph *flat = t->x->o->flat;
    bool open = false;
    for (size_t i = 0; i < flat->inputs.n && !open; i++) {
        const inv_shape *s = &inv_val(flat, flat->inputs.at[i])->shape;
        open = s->rank < 0;
        for (int d = 1; d < s->rank; d++) open = open || s->dim[d] < 0;
    }
    return open;
}

/* Whether the value has several rows for a sample, or may have in another run. */
static bool is_folded(const tally *t, const inv_shape *s) { return s->dim[0] != samples(t) || open_inside(t); }

/* How many samples a run has, as a list. */
static const char *batch(const tally *t)
{
    inv_onnx_body *r = t->r;
    const char *shape = inv_onnx1(r, "Shape", inv_derive_as(&t->x->d, t->x->wanted.at[0], r->real));
    return inv_onnx_slice(r, inv_onnx_fresh(r), shape, 0, 0, 1);
}

/* Entries of shape s, which has the samples along its first axis, summed for each sample. */
static const char *sum_samples(const tally *t, const char *entries, const inv_shape *s)
{
    inv_onnx_body *r = t->r;
    const char *sums = sum_axes(r, entries, 1, s->rank);
    if (!is_folded(t, s)) return sums;
    const int64_t shape[2] = {-1, samples(t) ? s->dim[0] / samples(t) : 1}, rest = -1;
    const inv_attr axis = inv_attr_of_int("axis", 0);
    const char *to = open_inside(t) ? inv_onnx_node(r, inv_onnx_fresh(r), "Concat",
                                                    INV_NAMES(batch(t), inv_onnx_ints(r, 1, &rest)), 1, &axis)
                                    : inv_onnx_ints(r, 2, shape);
    return sum_axes(r, inv_onnx2(r, "Reshape", sums, to), 1, 2);
}

/* The number of entries of x of that shape: in all, or for each sample. */
static const char *count(const tally *t, const char *x, const inv_shape *s, bool per_sample)
{
    inv_onnx_body *r = t->r;
    const inv_attr keepdims = inv_attr_of_int("keepdims", 0);
    if (!open_inside(t) || s->rank == 0)
        return inv_onnx_real(r, (double)inv_shape_nelem(s) / (double)(per_sample && samples(t) ? samples(t) : 1));
    const char *n =
        inv_onnx_node(r, inv_onnx_fresh(r), "ReduceProd", INV_NAMES(inv_onnx1(r, "Shape", x)), 1, &keepdims);
    if (per_sample) n = inv_onnx2(r, "Div", n, batch(t));
    return inv_onnx_as_real(r, n, t->sum);
}

/* Per sample, or one number for all, of entries of shape s that are spread over those of value v. `own`: they come from
 * the samples, not from parameters and what is given alone. */
static const char *sum_spread(const tally *t, const char *entries, const inv_shape *s, bool own, inv_id v)
{
    inv_onnx_body *r = t->r;
    const inv_shape *x = &inv_val(t->g, v)->shape;
    bool rows = s->rank > 0 && s->rank == x->rank && s->dim[0] == x->dim[0] && (own || s->dim[0] != 1);
    if (own && !rows) {
        inv_onnx_refuse(r, "its factor depends on the batch as a whole, so no sample has its own log-determinant");
        return NULL;
    }
    const int64_t per_sample = inv_shape_nelem(x) / (samples(t) ? samples(t) : 1);
    const int64_t n = inv_shape_nelem(s) / (rows && samples(t) ? samples(t) : 1);
    const char *sum = rows ? sum_samples(t, entries, s) : sum_axes(r, entries, 0, s->rank);
    if ((n == per_sample && !open_inside(t)) || !n) return sum;
    const char *all = count(t, inv_derive_as(&t->x->d, v, r->real), x, true), *these = count(t, entries, s, rows);
    return inv_onnx2(r, "Mul", sum, inv_onnx2(r, "Div", all, these));
}

static const char *logarithm(const tally *t, const char *s)
{
    return inv_onnx1(t->r, "Log", inv_onnx1(t->r, "Abs", s));
}

/* s where it counts, else 1: zero times a logarithm that is not finite would be no number. */
static const char *where(inv_onnx_body *r, const char *times, const char *s)
{
    if (r->opset < 9) {
        const char *rest = inv_onnx2(r, "Sub", inv_onnx_real(r, 1), times);
        return inv_onnx2(r, "Add", inv_onnx2(r, "Mul", s, times), rest);
    }
    const char *counts = inv_onnx_cast(r, times, INV_BOOL), *one = inv_onnx_real(r, 1);
    return inv_onnx_node(r, inv_onnx_fresh(r), "Where", INV_NAMES(counts, s, one), INV_NOATTR);
}

/* log |det W|, of all groups of a filter together, as often as W is used for a sample. */
static const char *determinants(tally *t, inv_id w, int64_t groups, inv_id x)
{
    inv_onnx_body *r = t->r;
    const inv_shape *s = &inv_val(t->g, w)->shape;
    const int64_t k = s->dim[0] / groups, squares[3] = {groups, k, k};
    const char *log_det;
    if (t->x->o->by_operator) {
        const char *name = inv_derive_as(&t->x->d, w, r->real);
        if (!name) {
            inv_onnx_refuse(r, "its matrix is not a value of the file");
            return NULL;
        }
        log_det = sum_axes(
            r, logarithm(t, inv_onnx1(r, "Det", inv_onnx2(r, "Reshape", name, inv_onnx_ints(r, 3, squares)))), 0, 1);
    } else {
        log_det = inv_derive_solver(&t->x->d, w, groups, true, t->sum);
    }
    if (!log_det) return NULL;
    const char *entries = count(t, inv_derive_as(&t->x->d, x, r->real), &inv_val(t->g, x)->shape, true);
    return inv_onnx2(r, "Mul", log_det, inv_onnx2(r, "Div", entries, inv_onnx_real(r, (double)s->dim[0])));
}

/* Of each entry of v once, which has a row or several for each sample. */
static const char *sum_once(const tally *t, inv_id v)
{
    const inv_shape *s = &inv_val(t->g, v)->shape;
    const char *name = inv_derive_as(&t->x->d, v, t->r->real);
    if (name && s->rank > 0 && samples(t) && s->dim[0] % samples(t) == 0) return sum_samples(t, logarithm(t, name), s);
    inv_onnx_refuse(t->r, name ? "its factor has no row for each sample" : "its factor is not a value of the file");
    return NULL;
}

static const char *term_of(tally *t, const inv_derived *u, const inv_volume_term *term)
{
    inv_reversal *x = t->x;
    const inv_id to = u->freed.at[0];
    if (strcmp(term->form + (*term->form == '-'), "log_det") == 0)
        return determinants(t, term->arg, inv_attr_int(inv_nod(t->g, u->edge->forward), "group", 1), to);
    if (strcmp(term->form, "log_deriv") == 0) {
        const char *entries = log_derivative(t, u);
        return entries ? sum_samples(t, entries, &inv_val(t->g, to)->shape) : NULL;
    }
    if (strcmp(term->form + (*term->form == '-'), "log_once") == 0) return sum_once(t, term->arg);
    if (term->times != INV_NONE && inv_derive_constant(&x->d, term->times) != INV_OK) return NULL;
    const char *name = inv_derive_as(&x->d, term->arg, t->r->real);
    const char *times = term->times == INV_NONE ? NULL : inv_derive_as(&x->d, term->times, t->r->real);
    const inv_shape one = inv_shape_scalar();
    inv_shape s;
    if (!name || (!times && term->times != INV_NONE) ||
        !inv_shape_broadcast(&inv_val(t->g, term->arg)->shape, times ? &inv_val(t->g, term->times)->shape : &one, &s)) {
        inv_onnx_refuse(t->r, "its factor is not a value of the file");
        return NULL;
    }
    if (strcmp(term->form, "-log_std") == 0) {
        double epsilon = inv_attr_float(inv_nod(t->g, u->edge->forward), "epsilon", 1e-5);
        name = inv_onnx1(t->r, "Sqrt", inv_onnx2(t->r, "Add", name, inv_onnx_real(t->r, epsilon)));
    }
    if (times) name = where(t->r, times, name);
    const char *entries = logarithm(t, name);
    if (times) entries = inv_onnx2(t->r, "Mul", entries, times);
    t->stamp++;
    const bool shared = stands_apart(t, NULL, term->arg) && (!times || stands_apart(t, NULL, term->times));
    return sum_spread(t, entries, &s, !shared, to);
}

/* `forward`: of the model's own operator. */
static inv_status add_terms(tally *t, const inv_derived *u, bool forward)
{
    const inv_volume *v = u->edge->volume;
    if (!v->known)
        return cannot(
            t, u, inv_arena_printf(t->x->o->a, "rule '%s' does not say how it changes volumes", u->edge->rule->name));
    for (uint32_t i = 0; i < v->nterm; i++) {
        t->r->reason = NULL;
        const char *term = term_of(t, u, &v->term[i]);
        if (!term && t->x->o->a->failed) return INV_E_NOMEM;
        if (!term) return cannot(t, u, t->r->reason ? t->r->reason : "out of memory");
        /* the inverse shrinks what the model expands */
        t->sum = inv_onnx2(t->r, (v->term[i].form[0] == '-') != forward ? "Add" : "Sub", t->sum, term);
        if (!t->sum) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* A zero for each row of the first input. */
static const char *zero_per_row(inv_reversal *x)
{
    static const int64_t one = 1;
    inv_onnx_body *r = &x->d.r;
    const size_t nbytes = inv_dtype_size(r->real);
    const char *input = inv_derive_as(&x->d, x->wanted.at[0], r->real);
    if (r->opset < 9) { /* where nothing can be filled by a shape: no number is less than itself */
        const inv_shape *s = &inv_val(x->o->g, inv_graph_stands(x->o->g, x->wanted.at[0]))->shape;
        const char *sum = sum_axes(r, input, 1, s->rank);
        return inv_onnx_as_real(r, inv_onnx2(r, "Less", sum, sum), sum);
    }
    void *bytes = inv_arena_alloc(r->a, nbytes);
    if (!bytes) return NULL;
    memset(bytes, 0, nbytes);
    const inv_attr value = {
        .name = "value", .kind = INV_ATTR_TENSOR, .tensor = {r->real, inv_shape_of(1, &one), bytes, nbytes}};
    const char *shape = inv_onnx1(r, "Shape", input), *rows = inv_onnx_slice(r, inv_onnx_fresh(r), shape, 0, 0, 1);
    return inv_onnx_node(r, inv_onnx_fresh(r), "ConstantOfShape", INV_NAMES(rows), 1, &value);
}

/* What u is solved from and the set has not: the model's own operator gives it, of a value that the set has. */
static inv_status go_forward(tally *t, const inv_derived *u)
{
    const inv_volume *v = u->edge->volume;
    for (uint32_t i = 0; i < v->nfrom; i++) {
        const inv_id to = v->from[i];
        const inv_edge *e = NULL;
        for (inv_id w = 0; w < t->g->value.n && !t->held[to] && !t->solved[to] && !e; w++)
            if (t->held[w] && t->axis[w] == 0) e = undone_forward(t, w, to);
        if (!e) continue;
        inv_derived back = {.edge = e};
        if (!inv_vec_push(&t->x->o->scratch, &back.freed, e->frees)) return INV_E_NOMEM;
        t->held[e->frees] = false;
        t->held[to] = true;
        INV_TRY(exchange(t, &back)); /* which is possible either way, or neither */
        if (t->axis[e->frees] != 0) return cannot(t, &back, "its first axis is not the batch");
        t->held[e->frees] = false;
        t->held[to] = true;
        INV_TRY(add_terms(t, &back, true));
    }
    return INV_OK;
}

static inv_status by_rules(inv_reversal *x)
{
    inv_outliner *o = x->o;
    const size_t nv = o->g->value.n;
    tally t = {.x = x, .g = o->g, .r = &x->d.r};
    size_t nin = 1;
    for (size_t i = 0; i < o->g->node.n; i++) nin += inv_nod(o->g, (inv_id)i)->nin;
    t.held = INV_ARENA_NEW(&o->scratch, bool, nv + 1);
    t.solved = INV_ARENA_NEW(&o->scratch, bool, nv + 1);
    t.axis = INV_ARENA_NEW(&o->scratch, int, nv + 1);
    t.seen = INV_ARENA_NEW(&o->scratch, uint32_t, nv + 1);
    t.stack = INV_ARENA_NEW(&o->scratch, inv_id, nin + 1);
    if (!t.held || !t.solved || !t.axis || !t.seen || !t.stack || !(t.sum = zero_per_row(x))) return INV_E_NOMEM;
    hold_outputs(&t);
    for (size_t i = 0; i < x->d.used.n; i++)
        for (size_t k = 0; k < x->d.used.at[i].freed.n; k++) t.solved[x->d.used.at[i].freed.at[k]] = true;
    for (size_t i = 0; i < x->known.n; i++) t.solved[inv_graph_stands(o->g, x->known.at[i])] = true;
    for (size_t i = 0; i < x->d.used.n; i++) {
        const inv_derived u = x->d.used.at[i];
        if (!inv_reversal_needs(x, &u) || !goes_on(&t, &u)) continue;
        INV_TRY(go_forward(&t, &u));
        INV_TRY(exchange(&t, &u));
        INV_TRY(add_terms(&t, &u, false));
    }
    INV_TRY(check_end(&t));
    return inv_onnx_node(t.r, x->logdet_name, "Identity", INV_NAMES(t.sum), INV_NOATTR) ? INV_OK : INV_E_NOMEM;
}

/* The model's own output, brought to a number per sample: one for all of them holds for each. */
static inv_status by_output(inv_reversal *x, int64_t rows)
{
    static const int64_t flat = -1;
    const inv_outliner *o = x->o;
    inv_onnx_body *r = &x->d.r;
    const inv_shape *s = &inv_val(o->g, inv_graph_stands(o->g, x->logdet))->shape;
    const int64_t n = inv_shape_nelem(s);
    char text[INV_SHAPE_TEXT];
    const char *own = inv_derive_as(&x->d, x->logdet, r->real);
    INV_CHECK(own, o->ctx, INV_E_NOT_INVERTIBLE,
              "output '%s' of the model cannot be computed from what the inverse derives", o->reverse->logdet);
    inv_shape_text(s, text);
    INV_CHECK(n == rows || n == 1, o->ctx, INV_E_ARG,
              "output '%s' of the model is %s for a batch of %lld, but a log-determinant is a number per sample, or "
              "one for all. Name another output ({logdet}), or none",
              o->reverse->logdet, text, (long long)rows);
    if (s->rank != 1) own = inv_onnx2(r, "Reshape", own, inv_onnx_ints(r, 1, &flat));
    own = n == rows ? inv_onnx1(r, "Neg", own) : inv_onnx2(r, "Sub", zero_per_row(x), own);
    return inv_onnx_node(r, x->logdet_name, "Identity", INV_NAMES(own), INV_NOATTR) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_reversal_logdet(inv_reversal *x)
{
    const inv_outliner *o = x->o;
    const char *name = o->reverse->with_logdet;
    const inv_shape *first = &inv_val(o->g, inv_graph_stands(o->g, x->wanted.at[0]))->shape;
    INV_CHECK(*name, o->ctx, INV_E_ARG, "the output with the log-determinants needs a name");
    INV_CHECK(inv_graph_find(x->h, name) == INV_NONE, o->ctx, INV_E_ARG,
              "the log-determinants cannot be called '%s': a value of the model has that name", name);
    x->logdet_name = name;
    INV_CHECK(first->rank > 0, o->ctx, INV_E_NOT_INVERTIBLE,
              "the log-determinant is per sample, and the model's input has no batch");
    return x->logdet == INV_NONE ? by_rules(x) : by_output(x, first->dim[0]);
}
