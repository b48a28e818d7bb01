/* SPDX-License-Identifier: Apache-2.0
 * Predicted times of nodes. Source of the form: Williams, Waterman, Patterson, Roofline, CACM 52 (2009). */
#include "core/program/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[INV_WORKS] = {
    [INV_WORK_STREAM] = "stream",
    [INV_WORK_MOVE] = "move",
    [INV_WORK_SUM] = "sum",
    [INV_WORK_APPLY] = "apply",
    [INV_WORK_MATH] = "math",
    [INV_WORK_SCALAR] = "scalar",
    [INV_WORK_MATRIX] = "matrix",
    [INV_WORK_CONV] = "conv",
    [INV_WORK_CONV_POINT] = "conv_point",
    [INV_WORK_CONV_DEPTH] = "conv_depth",
    [INV_WORK_FILTER] = "filter",
    [INV_WORK_FILTER_POINT] = "filter_point",
    [INV_WORK_FILTER_DEPTH] = "filter_depth",
};

const char *inv_work_name(inv_work w) { return w < INV_WORKS ? names[w] : "?"; }

inv_work inv_node_work(const inv_graph *g, const inv_node *n)
{
    return n->op->work ? n->op->work(g, n) : INV_WORK_STREAM;
}

typedef struct extent {
    double bytes, out, most; /* of all operands and results; of results alone; elements of the largest */
} extent;

static extent extent_of(const inv_graph *g, const inv_node *n)
{
    extent e = {0, 0, 0};
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (v == INV_NONE) continue;
        const inv_value *x = inv_val(g, v);
        const double ne = (double)inv_shape_nelem(&x->shape);
        const double nbytes = ne * (double)inv_dtype_size(x->dtype);
        e.bytes += nbytes;
        if (k >= n->nin) e.out += nbytes;
        e.most = fmax(e.most, ne);
    }
    /* a few rows of a table, a part of a tensor: the rest is not looked at */
    if (inv_node_work(g, n) == INV_WORK_MOVE) e.bytes = fmin(e.bytes, 2 * e.out);
    return e;
}

/* How many of its steps are of that kind. */
static double fused_math(const inv_graph *g, const inv_node *n)
{
    double count = 0;
    for (uint32_t i = 0; i < n->fused->nstep; i++) {
        const inv_op_def *op = n->fused->step[i].op;
        count += op->work && op->work(g, n) == INV_WORK_MATH;
    }
    return count;
}

static double amount_of(const inv_graph *g, const inv_node *n, inv_work w, const extent *e)
{
    switch (w) {
    case INV_WORK_STREAM:
    case INV_WORK_MOVE:
    case INV_WORK_SUM:
    case INV_WORK_APPLY: return e->bytes;
    case INV_WORK_MATH: return e->most * (n->fused ? fused_math(g, n) : 1);
    default: return n->op->flops ? n->op->flops(g, n) : e->most;
    }
}

static bool runs_nothing(const inv_node *n) { return (n->op->flags & INV_OP_VIEW) != 0; }

double inv_node_amount(const inv_graph *g, const inv_node *n)
{
    const extent e = extent_of(g, n);
    return runs_nothing(n) ? 0 : amount_of(g, n, inv_node_work(g, n), &e);
}

bool inv_may_run_beside(const inv_graph *g, const inv_node *n)
{
    const inv_work w = inv_node_work(g, n);
    return n->phase == INV_BACKWARD && !n->op->writes &&
           !(n->op->flags & (INV_OP_VIEW | INV_OP_STEP | INV_OP_RANDOM)) &&
           (w == INV_WORK_MATRIX || (w >= INV_WORK_CONV && w <= INV_WORK_FILTER_DEPTH));
}

/* By PCI Express 4.0 with 16 lanes, as if one way were hidden: rates of the processor say nothing of it. */
#define COPY_RATE 25e9

double inv_copy_seconds(const inv_cost_table *t, double nbytes)
{
    if (t->copy > 0) return 2 * t->fixed[INV_WORK_MOVE] + nbytes / t->copy; /* two nodes */
    return nbytes / COPY_RATE;
}

/* Of so many bytes, by the paces of cache and memory. */
static double bytes_seconds(const inv_cost_table *t, double nbytes)
{
    const double beyond = fmax(nbytes - t->cache, 0);
    return (nbytes - beyond) / t->rate[INV_WORK_STREAM] + beyond / t->bandwidth;
}

double inv_node_least_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n)
{
    const extent e = extent_of(g, n);
    return runs_nothing(n) ? 0 : fmax(inv_node_flops(g, n) / t->rate[INV_WORK_MATRIX], bytes_seconds(t, e.bytes));
}

double inv_node_rated_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n)
{
    if (runs_nothing(n)) return 0;
    const inv_work w = inv_node_work(g, n);
    const extent e = extent_of(g, n);
    if (n->op->flags & INV_OP_TRANSFER) /* both ways count on the way back (passes/schedule/plan_cost.c) */
        return inv_val(g, n->out[0])->mem == INV_MEM_HOST ? 0 : inv_copy_seconds(t, e.out);
    return t->fixed[w] + fmax(amount_of(g, n, w, &e) / t->rate[w], bytes_seconds(t, e.bytes));
}

/* --- corrections --- */

static uint64_t attribute_hash(const inv_attr *a, uint64_t h)
{
    h = inv_hash(a->name, strlen(a->name), h);
    switch (a->kind) {
    case INV_ATTR_INT: return inv_hash(&a->i, sizeof a->i, h);
    case INV_ATTR_FLOAT: return inv_hash(&a->f, sizeof a->f, h);
    case INV_ATTR_STRING: return inv_hash(a->s, strlen(a->s), h);
    case INV_ATTR_INTS: return inv_hash(a->ints, a->n * sizeof *a->ints, h);
    case INV_ATTR_FLOATS: return inv_hash(a->floats, a->n * sizeof *a->floats, h);
    default: return h;
    }
}

uint64_t inv_op_likeness(const inv_op_def *op) { return inv_hash(op->name, strlen(op->name), 0); }

uint64_t inv_work_likeness(inv_work w) { return INV_FIRST_WORK + (uint64_t)w; }

uint64_t inv_node_likeness(const inv_graph *g, const inv_node *n)
{
    uint64_t h = inv_hash(&n->nin, sizeof n->nin, inv_op_likeness(n->op));
    for (uint32_t k = 0; k < n->nattr; k++) h = attribute_hash(&n->attr[k], h);
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        const inv_value *x = v == INV_NONE ? NULL : inv_val(g, v);
        const int32_t facts[] = {x ? (int32_t)x->dtype : -1, x ? x->shape.rank : 0};
        h = inv_hash(facts, sizeof facts, h);
        if (x) h = inv_hash(x->shape.dim, (size_t)x->shape.rank * sizeof *x->shape.dim, h);
    }
    return h;
}

static int by_what(const void *a, const void *b)
{
    const inv_correction *x = a, *y = b;
    return (x->what > y->what) - (x->what < y->what);
}

uint64_t inv_noted_as(const inv_cost_table *t, uint64_t what)
{
    const uint64_t both[] = {what, (uint64_t)t->company};
    return t->company > 1 ? inv_hash(both, sizeof both, 0) : what;
}

double inv_correction_of(const inv_cost_table *t, uint64_t what)
{
    const inv_correction key = {what, 0};
    const inv_correction *c = t->nseen ? bsearch(&key, t->seen, t->nseen, sizeof key, by_what) : NULL;
    return c ? c->by : 0;
}

/* Insertion keeps the first of equal ones in front, which qsort does not promise. */
static bool known(const inv_correction *list, size_t n, uint64_t what, size_t *at)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (list[mid].what < what) lo = mid + 1;
        else hi = mid;
    }
    *at = lo;
    return lo < n && list[lo].what == what;
}

size_t inv_corrections_sort(inv_correction *list, size_t n)
{
    size_t kept = 0, at;
    for (size_t i = 0; i < n && kept < INV_MOST_CORRECTIONS; i++) {
        const inv_correction c = list[i];
        if (known(list, kept, c.what, &at)) continue;
        memmove(list + at + 1, list + at, (kept - at) * sizeof *list);
        list[at] = c;
        kept++;
    }
    return kept;
}

double inv_node_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n)
{
    const double rated = inv_node_rated_seconds(t, g, n);
    if (n->op->flags & INV_OP_TRANSFER || !(rated > 0)) return rated;
    const double crowd = t->crowd > 0 ? t->crowd : 1;
    if (!t->nseen) return crowd * rated;
    const uint64_t what[] = {inv_node_likeness(g, n), inv_op_likeness(n->op), inv_work_likeness(inv_node_work(g, n)),
                             INV_ALL_NODES};
    enum { WHATS = sizeof what / sizeof *what };
    double by = 0;
    for (size_t i = 0; i < WHATS && t->company > 1 && !(by > 0); i++)
        by = inv_correction_of(t, inv_noted_as(t, what[i]));
    if (by > 0) return by * rated;
    for (size_t i = 0; i < WHATS && !(by > 0); i++) by = inv_correction_of(t, what[i]);
    return crowd * (by > 0 ? by : 1) * rated;
}

size_t inv_cost_table_nbytes(const inv_cost_table *t) { return sizeof *t + t->nseen * sizeof *t->seen; }

inv_cost_table *inv_cost_table_copy(const inv_cost_table *t, void *room)
{
    inv_cost_table *copy = room;
    inv_correction *seen = (inv_correction *)(void *)(copy + 1);
    *copy = *t;
    copy->seen = seen;
    if (t->nseen) memcpy(seen, t->seen, t->nseen * sizeof *seen);
    return copy;
}

static bool positive(double x) { return isfinite(x) && x > 1 && x < 1e18; }

bool inv_cost_table_sound(const inv_cost_table *t)
{
    bool sound = (t->real == INV_F32 || t->real == INV_F64) && positive(t->bandwidth) && positive(t->cache);
    for (int w = 0; w < INV_WORKS; w++) sound = sound && positive(t->rate[w]) && t->fixed[w] >= 0 && t->fixed[w] < 1;
    for (size_t i = 0; i < t->nseen; i++) {
        sound = sound && t->seen[i].by > 1e-6 && t->seen[i].by < 1e6;
        sound = sound && (i == 0 || t->seen[i - 1].what < t->seen[i].what);
    }
    return sound;
}

double inv_node_flops(const inv_graph *g, const inv_node *n)
{
    if (n->op->flops) return n->op->flops(g, n);
    if (n->op->flags & (INV_OP_VIEW | INV_OP_SOURCE)) return 0;
    int64_t most = 0;
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (v == INV_NONE) continue;
        int64_t ne = inv_shape_nelem(&inv_val(g, v)->shape);
        if (ne > most) most = ne;
    }
    return (double)most;
}
