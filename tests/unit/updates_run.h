/* SPDX-License-Identifier: Apache-2.0
 * A small model, sessions that train it, and what tests of updates ask about them. */
#ifndef UPDATES_RUN_H
#define UPDATES_RUN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "with_context.h"

enum { ROWS = 4, WIDTH = 6, MOST = 256 };

static const char text[] = "g(float[4,6] x) => (y) {\n"
                           "param float[6,6] w\nparam float[6] b\nparam float[6,6] v\n"
                           "a = MatMul(x, w)\nc = Add(a, b)\nd = Tanh(c)\ny = MatMul(d, v)\n}\n";

static const char *model_text = text;

static float data_x[ROWS * WIDTH], data_y[ROWS * WIDTH];

static inline inv_graph *parse(void)
{
    inv_graph *g = NULL;
    if (inv_graph_parse(ctx, model_text, &g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        const size_t n = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&g->arena, n * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < n; k++) data[k] = (float)sin((double)k * 1.7 + (double)i) * 0.5f;
        v->data = (inv_data){INV_F32, v->shape, data, n * sizeof *data};
    }
    for (int i = 0; i < ROWS * WIDTH; i++) {
        data_x[i] = (float)sin(i * 0.7) + 0.2f;
        data_y[i] = (float)cos(i * 0.3);
    }
    return g;
}

/* A model and a session of it, for a batch of `rows` and, if it is not 0, one of `tail`. */
typedef struct run {
    inv_model *model; /* in its graph's arena: a session keeps its address, and a run may be copied */
    inv_session *s;
    inv_array x, y;
    int64_t dims[2];
} run;

static inline inv_session_options of(inv_optimizer optimizer)
{
    const inv_optimizer_numbers n = inv_optimizer_defaults(optimizer);
    return (inv_session_options){.optimizer = optimizer,
                                 .momentum = n.momentum,
                                 .beta1 = n.beta1,
                                 .beta2 = n.beta2,
                                 .epsilon = n.epsilon,
                                 .memory = INV_MEMORY_STORE};
}

static inline inv_status try_begin(run *r, inv_session_options o, int64_t rows, int64_t tail)
{
    static const char *const out[] = {"y"};
    inv_graph *g = parse();
    *r = (run){.model = inv_arena_alloc(&g->arena, sizeof *r->model), .dims = {rows, WIDTH}};
    assert_non_null(r->model);
    *r->model = (inv_model){.ctx = ctx, .path = "text", .graph = g};
    r->x = (inv_array){.name = "x", .dtype = INV_F32, .rank = 2, .dims = r->dims, .data = data_x};
    r->y = (inv_array){.name = "target", .dtype = INV_F32, .rank = 2, .dims = r->dims, .data = data_y};
    o.size = sizeof o;
    o.purpose = INV_FOR_TRAIN;
    o.inputs = &r->x;
    o.ninputs = 1;
    o.target = &r->y;
    o.loss = INV_LOSS_MSE;
    o.loss_outputs = out;
    o.nloss_outputs = 1;
    o.tail_batch = tail;
    return inv_session_create(r->model, &o, &r->s);
}

static inline void end(run *r)
{
    inv_session_destroy(r->s);
    inv_graph_destroy(r->model->graph);
}

static inline run begin(inv_session_options o, int64_t rows, int64_t tail)
{
    run r;
    if (try_begin(&r, o, rows, tail) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return r;
}

static inline void need(inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

static inline void feed_rows(run *r, int64_t from, int64_t n)
{
    r->dims[0] = n;
    r->x.dims = r->y.dims = r->dims; /* a run may have been copied */
    r->x.data = data_x + from * WIDTH;
    r->y.data = data_y + from * WIDTH;
}

static inline size_t get(run *r, inv_what what, const char *name, float *to)
{
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[8], n = 1;
    need(inv_session_get(r->s, what, name, &data, &dt, &rank, dims));
    assert_int_equal(dt, INV_F32);
    for (int d = 0; d < rank; d++) n *= dims[d];
    memcpy(to, data, (size_t)n * sizeof *to);
    return (size_t)n;
}

static inline size_t weights(run *r, float *to)
{
    size_t n = get(r, INV_GET_PARAM, "w", to);
    n += get(r, INV_GET_PARAM, "b", to + n);
    return n + get(r, INV_GET_PARAM, "v", to + n);
}

static inline inv_result step_once(run *r, double lr)
{
    inv_result result;
    feed_rows(r, 0, ROWS);
    need(inv_session_step(r->s, &r->x, 1, &r->y, lr, &result));
    return result;
}

static inline inv_result add_rows(run *r, int64_t from, int64_t n)
{
    inv_result result;
    feed_rows(r, from, n);
    need(inv_session_accumulate(r->s, &r->x, 1, &r->y, &result));
    return result;
}

static inline void close_to(const float *a, const float *b, size_t n, double most)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= most))
            fail_msg("element %zu: %.9g and %.9g", i, (double)a[i], (double)b[i]);
}

static const char *const devices[] = {"cpu", "checked", "sim"};
static const inv_optimizer optimizers[] = {INV_OPT_SGD,  INV_OPT_MOMENTUM, INV_OPT_ADAM, INV_OPT_ADAMW,
                                           INV_OPT_LION, INV_OPT_RMSPROP,  INV_OPT_LAMB, INV_OPT_ADAFACTOR,
                                           INV_OPT_MUON, INV_OPT_ADAMW8};
enum { NDEVICES = 3, NOPTIMIZERS = sizeof optimizers / sizeof *optimizers };

#endif
