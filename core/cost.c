/* SPDX-License-Identifier: Apache-2.0
 * Predicted times of nodes. Source of the form: Williams, Waterman, Patterson, Roofline, CACM 52 (2009). */
#include "core/cost.h"

#include <math.h>

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

static double amount_of(const inv_graph *g, const inv_node *n, inv_work w, const extent *e)
{
    switch (w) {
    case INV_WORK_STREAM:
    case INV_WORK_MOVE:
    case INV_WORK_SUM:
    case INV_WORK_APPLY: return e->bytes;
    case INV_WORK_MATH: return e->most;
    default: return n->op->flops ? n->op->flops(g, n) : e->most;
    }
}

static bool runs_nothing(const inv_node *n) { return (n->op->flags & INV_OP_VIEW) != 0; }

double inv_node_amount(const inv_graph *g, const inv_node *n)
{
    const extent e = extent_of(g, n);
    return runs_nothing(n) ? 0 : amount_of(g, n, inv_node_work(g, n), &e);
}

/* By PCI Express 4.0 with 16 lanes, as it is used: rates of the processor say nothing of it. */
#define COPY_RATE 25e9

double inv_copy_seconds(double nbytes) { return nbytes / COPY_RATE; }

double inv_node_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n)
{
    if (runs_nothing(n)) return 0;
    const inv_work w = inv_node_work(g, n);
    const extent e = extent_of(g, n);
    if (n->op->flags & INV_OP_TRANSFER) /* one way is hidden (passes/schedule/plan_cost.c) */
        return inv_val(g, n->out[0])->mem == INV_MEM_HOST ? 0 : inv_copy_seconds(e.out);
    const double beyond = fmax(e.bytes - t->cache, 0);
    return t->fixed[w] + fmax(amount_of(g, n, w, &e) / t->rate[w],
                              (e.bytes - beyond) / t->rate[INV_WORK_STREAM] + beyond / t->bandwidth);
}

static bool positive(double x) { return isfinite(x) && x > 1 && x < 1e18; }

bool inv_cost_table_sound(const inv_cost_table *t)
{
    bool sound = (t->real == INV_F32 || t->real == INV_F64) && positive(t->bandwidth) && positive(t->cache);
    for (int w = 0; w < INV_WORKS; w++) sound = sound && positive(t->rate[w]) && t->fixed[w] >= 0 && t->fixed[w] < 1;
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
