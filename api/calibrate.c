/* SPDX-License-Identifier: Apache-2.0
 * Rates of this machine: a few small graphs are trained through the whole pipeline, so that what is measured is what
 * runs, and their nodes are timed. The rate of a kind of work is the median over the nodes of the larger graphs, what a
 * node takes whatever its extent that over the smaller ones. Each node counts with the quickest of its runs: other
 * programs only add to them. */
#include "core/program/options.h"
#include "executor/rates/costs.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/graph/model.h"
#include "executor/executor.h"

enum { MOST_INPUTS = 8, MOST_RUNS = 25, LEAST_RUNS = 3, MOST_SAMPLES = 64 };
#define ENOUGH 0.06 /* seconds of one graph, from which on it is run no more often than it has to be */

#define ON(kind) (1u << INV_WORK_##kind)
#define CONVS (ON(CONV) | ON(FILTER))
#define POINTS (ON(CONV_POINT) | ON(FILTER_POINT))
#define DEPTHS (ON(CONV_DEPTH) | ON(FILTER_DEPTH))

/* The loss is the sum of squares of y. Operators follow each other, so that they find their operands where a step has
 * left them, and convolutions have their channels as in a network. The small ones run on one thread: some libraries'
 * threads wait for each other without sleeping, which on a busy machine outweighs all else. */
typedef struct probe {
    unsigned about; /* kinds of work: nodes of other ones do not count */
    bool small;
    const char *text;
} probe;

static const probe probes[] = {
    {ON(STREAM) | ON(SUM) | ON(APPLY), false,
     "m, v = BatchStats(float[8,128,32,32] x)\n"
     "a = BatchNormApply<training = 1>(x, float[128] s, float[128] t, m, v)\nb = Relu(a)\nc = Add(b, x)\n"
     "n, w = BatchStats(c)\nd = BatchNormApply<training = 1>(c, s, t, n, w)\ne = Relu(d)\nf = Mul(e, c)\n"
     "k, l = BatchStats(f)\ng = BatchNormApply<training = 1>(f, s, t, k, l)\ny = Relu(g)"},
    {ON(STREAM), true, "a = Relu(float[4,16] x)\nb = Add(a, float[4,16] z)\ny = Mul(b, a)"},
    {ON(MOVE), false,
     "a = Transpose<perm = [0,2,1,3]>(float[8,256,4,64] x)\nb, c = Split<axis = 2, num_outputs = 2>(a)\nd = Exp(b)\n"
     "e = Concat<axis = 3>(c, d)\ny = Transpose<perm = [1,3,0,2]>(e)"},
    {ON(MOVE), true,
     "a = Transpose<perm = [0,2,1,3]>(float[2,4,2,4] x)\nb, c = Split<axis = 2, num_outputs = 2>(a)\nd = Exp(b)\n"
     "y = Concat<axis = 3>(c, d)"},
    {ON(SUM) | ON(APPLY), false,
     "a = LayerNormalization(float[2048,256] x, float[256] s, float[256] b)\ny = Add(a, float[256] c)"},
    {ON(SUM) | ON(APPLY), true,
     "m, v = BatchStats(float[2,4,4,4] x)\ny = BatchNormApply<training = 1>(x, float[4] s, float[4] b, m, v)"},
    {ON(MATH), false, "a = Tanh(float[8,64,256] x)\nb = Gelu(a)\ny = Gelu(b)"},
    {ON(MATH), true, "a = Tanh(float[4,16] x)\nb = Gelu(a)\ny = Sigmoid(b)"},
    {ON(SCALAR), false,
     "a = MaxPool<kernel_shape = [3,3], strides = [2,2]>(float[8,16,48,48] x)\n"
     "y = AveragePool<kernel_shape = [2,2]>(a)"},
    {ON(SCALAR), true, "y = MaxPool<kernel_shape = [2,2]>(float[1,2,4,4] x)"},
    {ON(MATRIX), false, "a = MatMul(float[256,512] x, float[512,768] w)\ny = MatMul(a, float[768,256] v)"},
    {ON(MATRIX), true, "a = MatMul(float[4,16] x, float[16,16] w)\ny = MatMul(a, float[16,16] v)"},
    {CONVS, false,
     "a = Conv<pads = [1,1,1,1]>(float[4,32,28,28] x, float[64,32,3,3] w)\n"
     "b = Conv<pads = [1,1,1,1]>(a, float[64,64,3,3] v)\n"
     "y = Conv<pads = [1,1,1,1], strides = [2,2]>(b, float[96,64,3,3] u)"},
    {CONVS, true,
     "a = Conv<pads = [1,1,1,1]>(float[2,4,6,6] x, float[8,4,3,3] w)\n"
     "y = Conv<pads = [1,1,1,1]>(a, float[8,8,3,3] v)"},
    {POINTS | ON(MOVE), false,
     "a = Conv(float[8,32,40,40] x, float[96,32,1,1] w)\nb = Conv(a, float[32,96,1,1] v)\n"
     "y = Conv(b, float[192,32,1,1] u)"},
    {POINTS, true, "a = Conv(float[2,4,6,6] x, float[8,4,1,1] w)\ny = Conv(a, float[8,8,1,1] v)"},
    {DEPTHS | ON(SCALAR) | ON(MOVE), false,
     "a = Conv(float[4,32,56,56] x, float[96,32,1,1] w)\n"
     "b = Conv<group = 96, pads = [1,1,1,1]>(a, float[96,1,3,3] v)\nc = Conv(b, float[32,96,1,1] u)\n"
     "d = Conv(c, float[96,32,1,1] t)\ne = MaxPool<kernel_shape = [3,3], strides = [2,2]>(d)\n"
     "y = Conv<group = 96, pads = [2,2,2,2]>(e, float[96,1,5,5] s)"},
    {DEPTHS, true, "y = Conv<group = 4, pads = [1,1,1,1]>(float[2,4,6,6] x, float[4,1,3,3] w)"},
};
/* Beyond the processor's cache. */
static const char far[] = "y = Add(float[4000000] x, float[4000000] z)";

typedef struct samples {
    double at[MOST_SAMPLES];
    size_t n;
} samples;

typedef struct measured {
    samples rate[INV_WORKS], fixed[INV_WORKS], far;
    double amount[INV_WORKS][MOST_SAMPLES]; /* of those in `fixed` */
} measured;

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, by_size);
    return n ? n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2 : 0;
}

/* --- one graph --- */

typedef struct bench {
    inv_model model;
    inv_array in[MOST_INPUTS];
    inv_session *session;
    size_t n;     /* nodes that are timed */
    double *took; /* seconds of each, the quickest run */
} bench;

/* Every input reads the same numbers, between -1 and 1. */
static inv_status calibration_fill(bench *b, inv_arena *a)
{
    const inv_graph *g = b->model.graph;
    size_t most = 0;
    INV_CHECK(g->inputs.n <= MOST_INPUTS, g->ctx, INV_E_INTERNAL, "a graph to calibrate by has too many inputs");
    for (size_t i = 0; i < g->inputs.n; i++) {
        const size_t ne = (size_t)inv_shape_nelem(&inv_val(g, g->inputs.at[i])->shape);
        if (ne > most) most = ne;
    }
    float *data = INV_ARENA_NEW(a, float, most + 1);
    if (!data) return INV_E_NOMEM;
    uint32_t h = 1;
    for (size_t i = 0; i < most; i++) {
        h = h * 1664525u + 1013904223u;
        data[i] = (float)(h >> 8) * 0x1p-23f - 1;
    }
    for (size_t i = 0; i < g->inputs.n; i++) {
        const inv_value *v = inv_val(g, g->inputs.at[i]);
        b->in[i] =
            (inv_array){.name = v->name, .dtype = INV_F32, .rank = v->shape.rank, .dims = v->shape.dim, .data = data};
    }
    return INV_OK;
}

static inv_status one_run(bench *b, bool train)
{
    inv_result r;
    return train ? inv_session_grad(b->session, b->in, b->model.graph->inputs.n, NULL, &r)
                 : inv_session_eval(b->session, b->in, b->model.graph->inputs.n, NULL, &r);
}

static inv_status time_nodes(bench *b, inv_arena *a, bool train)
{
    double all = 0;
    INV_TRY(one_run(b, train)); /* loads what is loaded once, and touches the memory */
    inv_ready *node = b->session->run[INV_PLAN_MAIN].node;
    b->n = b->session->run[INV_PLAN_MAIN].n;
    b->took = INV_ARENA_NEW(a, double, b->n + 1);
    if (!b->took) return INV_E_NOMEM;
    for (int r = 0; r < LEAST_RUNS || (r < MOST_RUNS && all < ENOUGH); r++) {
        for (size_t i = 0; i < b->n; i++) node[i].seconds = 0;
        INV_TRY(one_run(b, train));
        for (size_t i = 0; i < b->n; i++) {
            if (r == 0 || node[i].seconds < b->took[i]) b->took[i] = node[i].seconds;
            all += node[i].seconds;
        }
    }
    return INV_OK;
}

static inv_status run_graph(bench *b, inv_arena *a, const char *text, inv_dtype real, bool train)
{
    static const char *const loss = "loss";
    INV_TRY(inv_case_parse(a->ctx, text, 0, INV_F32, &b->model.graph));
    INV_TRY(inv_graph_sort(b->model.graph));
    INV_TRY(calibration_fill(b, a));
    inv_session_options o = {.size = sizeof o,
                             .inputs = b->in,
                             .ninputs = b->model.graph->inputs.n,
                             .memory = INV_MEMORY_STORE,
                             .float64 = real == INV_F64,
                             .profile = true};
    if (train) {
        o.purpose = INV_FOR_TRAIN;
        o.loss = INV_LOSS_OUTPUT;
        o.loss_outputs = &loss;
        o.nloss_outputs = 1;
        o.input_grads = true;
    }
    INV_TRY(inv_session_create(&b->model, &o, &b->session));
    return time_nodes(b, a, train);
}

static void add_sample(samples *s, double x)
{
    if (s->n < MOST_SAMPLES && isfinite(x)) s->at[s->n++] = x;
}

static void collect_rates(bench *b, const probe *p, measured *m)
{
    const inv_graph *g = b->session->program->plan[INV_PLAN_MAIN].g;
    for (size_t i = 0; i < b->n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const inv_work w = inv_node_work(g, n);
        const double amount = inv_node_amount(g, n), took = fmax(b->took[i], 1e-9);
        if (n->op->flags & INV_OP_SOURCE || !(amount > 0)) continue;
        if (!p) {
            add_sample(&m->far, amount / took);
        } else if (p->about >> w & 1 && p->small) {
            m->amount[w][m->fixed[w].n % MOST_SAMPLES] = amount;
            add_sample(&m->fixed[w], took);
        } else if (p->about >> w & 1) {
            add_sample(&m->rate[w], amount / took);
        }
    }
}

static inv_status measure(inv_context *ctx, const probe *p, inv_dtype real, measured *m)
{
    inv_arena a;
    inv_str text;
    bench b = {.model = {.ctx = ctx, .path = "calibration"}};
    inv_arena_init(&a, ctx);
    inv_str_init(&text, ctx);
    inv_str_add(&text, "%s%s", p ? p->text : far, p ? "\nloss = ReduceSumSquare<keepdims = 0>(y)" : "");
    inv_status s = text.failed ? INV_E_NOMEM : run_graph(&b, &a, text.s, real, p != NULL);
    if (s == INV_OK) collect_rates(&b, p, m);
    inv_session_destroy(b.session);
    inv_graph_destroy(b.model.graph);
    inv_str_fini(&text);
    inv_arena_fini(&a);
    return s;
}

/* --- all of them --- */

/* A virtual machine may be told of caches that it shares with many. */
static double cache_nbytes(void)
{
    enum { MOST = 32 << 20, UNKNOWN = 8 << 20 };
    long n = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    n = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (n <= 0) n = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return n > MOST ? MOST : n > 0 ? (double)n : UNKNOWN;
}

static inv_status measure_all(inv_context *ctx, inv_dtype real, int threads, measured *m)
{
    const size_t n = sizeof probes / sizeof *probes;
    omp_set_num_threads(threads);
    INV_TRY(measure(ctx, NULL, real, m));
    for (size_t i = 0; i < n; i++) {
        if (probes[i].small && threads > 1) continue;
        INV_SPAN_TRY(ctx, (double)i / (double)n, (double)(i + 1) / (double)n, measure(ctx, &probes[i], real, m));
    }
    return INV_OK;
}

/* On one thread, then on all of them. */
static inv_status measure_both(inv_context *ctx, inv_dtype real, int threads, measured m[2])
{
    const double first = threads > 1 ? 0.5 : 1;
    INV_SPAN_TRY(ctx, 0, first, measure_all(ctx, real, 1, &m[0]));
    if (threads > 1) INV_SPAN_TRY(ctx, first, 1, measure_all(ctx, real, threads, &m[1]));
    return INV_OK;
}

/* Threads that had to wait for a processor are never worth less than the one that did not. */
static void take_rates(measured *m, inv_cost_table *out)
{
    out->bandwidth = fmax(out->bandwidth, median(m->far.at, m->far.n));
    for (int w = 0; w < INV_WORKS; w++) out->rate[w] = fmax(out->rate[w], median(m->rate[w].at, m->rate[w].n));
}

static void take_fixed(measured *m, inv_cost_table *out)
{
    for (int w = 0; w < INV_WORKS; w++) {
        for (size_t i = 0; i < m->fixed[w].n; i++)
            m->fixed[w].at[i] = fmax(m->fixed[w].at[i] - m->amount[w][i] / out->rate[w], 0);
        out->fixed[w] = median(m->fixed[w].at, m->fixed[w].n);
    }
}

/* With as many threads as the calling one is set to use. */
static inv_status measure_costs(inv_context *ctx, inv_dtype real, inv_cost_table *out)
{
    const int threads = omp_get_max_threads();
    measured *m = inv_alloc(ctx, 2 * sizeof *m);
    if (!m) return INV_E_NOMEM;
    *out = (inv_cost_table){.real = real, .cache = cache_nbytes()};
    const inv_span around = inv_span_enter(ctx, "measuring what operators take", 0, 1);
    const inv_status s = measure_both(ctx, real, threads, m);
    inv_span_leave(ctx, around);
    omp_set_num_threads(threads);
    for (int i = 0; i < 2; i++) take_rates(&m[i], out);
    out->bandwidth = fmin(out->bandwidth, out->rate[INV_WORK_STREAM]);
    take_fixed(&m[0], out);
    inv_dealloc(ctx, m);
    if (s != INV_OK) return s;
    INV_CHECK(inv_cost_table_sound(out), ctx, INV_E_INTERNAL, "the measured rates of operators are no usable numbers");
    return INV_OK;
}

static inv_status calibrate(inv_context *ctx, const inv_calibrate_options *o, inv_cost_table *t, inv_arena *a,
                            bool *there)
{
    const inv_dtype real = o->float64 ? INV_F64 : INV_F32;
    char key[INV_COST_KEY];
    int index;
    if (o->device && inv_device_is(o->device, "cuda", &index)) {
        inv_costs_of_gpu(real, t);
        *there = true;
        return INV_OK;
    }
    INV_CHECK(!o->device || !strcmp(o->device, "cpu"), ctx, INV_E_ARG,
              "there are no rates for {device} '%s': they are measured on cpu, and built in for cuda", o->device);
    if (o->threads > 0) omp_set_num_threads(o->threads);
    inv_costs_key(omp_get_max_threads(), real, key);
    const char *path = inv_costs_path(a, o->cache, key);
    if (a->failed) return INV_E_NOMEM;
    *there = path && !o->again && inv_costs_read(a, path, key, t) && t->real == real;
    if (*there || o->kept) return INV_OK;
    INV_TRY(measure_costs(ctx, real, t));
    if (path) inv_costs_write(a, path, key, t);
    *there = true;
    return INV_OK;
}

inv_status inv_calibrate(inv_context *ctx, const inv_calibrate_options *options, inv_cost_table **out)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, out);
    inv_calibrate_options o = {.size = sizeof o};
    *out = NULL;
    if (options) INV_TRY(inv_size_check(ctx, "calibration options", options->size, sizeof o));
    if (options) memcpy(&o, options, options->size);
    INV_CHECK(o.threads >= 0 && o.threads <= INV_MOST_THREADS, ctx, INV_E_ARG, "{threads} is %d: must be 0 to %d",
              o.threads, INV_MOST_THREADS);
    inv_cost_table t;
    inv_arena a;
    inv_arena_init(&a, ctx);
    bool there = false;
    inv_status s = calibrate(ctx, &o, &t, &a, &there);
    void *room = s == INV_OK && there ? inv_alloc(ctx, inv_cost_table_nbytes(&t)) : NULL;
    if (room) *out = inv_cost_table_copy(&t, room);
    inv_arena_fini(&a);
    return s == INV_OK && there && !room ? INV_E_NOMEM : s;
}
