/* SPDX-License-Identifier: Apache-2.0
 * One training step of a graph written as text, with all that tests ask about it. */
#ifndef RECOVER_RUN_H
#define RECOVER_RUN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "core/program/program.h"
#include "executor/executor.h"
#include "with_context.h"

/* Parameters of the text have no data: fill them, small and different. */
static void fill_params(inv_graph *g)
{
    uint64_t h = 88172645463325252u;
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        size_t ne = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&g->arena, ne * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < ne; k++) {
            h ^= h << 13, h ^= h >> 7, h ^= h << 17;
            data[k] = (float)((double)(h >> 11) * 0x1p-53 - 0.5) * 0.6f;
        }
        v->data = (inv_data){INV_F32, v->shape, data, ne * sizeof *data};
    }
}

static inv_graph *parse(const char *text)
{
    inv_graph *g = NULL;
    if (inv_graph_parse(ctx, text, &g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    fill_params(g);
    return g;
}

typedef struct outcome {
    double loss, flops, store_flops, drift;
    size_t activation_peak, allocated, planned;
    int fallbacks; /* of both calls */
    size_t nclone, ninverse, nforward;
    size_t njoined, nonto, nadd; /* solved by a convolution; gradients added onto others; by Add */
    size_t nbits, nbits_behind;  /* masks; of them, in backward behind another reader of the same value, the last */
    char *plan;                  /* as JSON */
    float *grad;                 /* all parameter gradients, one after the other */
    size_t ngrad;
} outcome;

static void forget(outcome *o)
{
    free(o->grad);
    inv_free(ctx, o->plan);
}

static bool is_last_reader(const inv_graph *g, size_t at, inv_id v)
{
    for (size_t i = at + 1; i < g->order.n; i++)
        for (uint32_t k = 0; k < inv_nod(g, g->order.at[i])->nin; k++)
            if (inv_nod(g, g->order.at[i])->in[k] == v) return false;
    return true;
}

static void count(const inv_graph *g, outcome *o)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]), *before = i ? inv_nod(g, g->order.at[i - 1]) : n;
        const bool backward = i >= g->forward_end, bits = strcmp(n->op->name, "CompareBits") == 0;
        o->njoined += n->solves != INV_NONE && strcmp(n->op->name, "ConvN") == 0;
        o->nonto += strcmp(n->op->name, "ConvGradX") == 0 && n->nin == 3;
        o->nadd += backward && strcmp(n->op->name, "Add") == 0;
        o->nbits += bits;
        o->nbits_behind += bits && backward && strcmp(before->op->name, "ConvGradW") == 0 &&
                           before->in[0] == n->in[0] && is_last_reader(g, i, n->in[0]);
    }
}

/* All gradients, one behind the other. */
static void take_gradients(inv_session *s, outcome *o)
{
    for (size_t i = 0; inv_session_name(s, INV_GET_GRAD, i); i++) {
        const void *data;
        inv_dtype dt;
        int rank;
        int64_t dims[8], ne = 1;
        assert_int_equal(
            inv_session_get(s, INV_GET_GRAD, inv_session_name(s, INV_GET_GRAD, i), &data, &dt, &rank, dims), INV_OK);
        for (int d = 0; d < rank; d++) ne *= dims[d];
        o->grad = realloc(o->grad, (o->ngrad + (size_t)ne) * sizeof *o->grad);
        memcpy(o->grad + o->ngrad, data, (size_t)ne * sizeof *o->grad);
        o->ngrad += (size_t)ne;
    }
}

static outcome run(inv_graph *g, inv_memory memory, const char *device, const inv_session_options *more)
{
    outcome o = {0};
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    const inv_shape *xs = &inv_val(g, g->inputs.at[0])->shape;
    size_t nx = (size_t)inv_shape_nelem(xs);
    float *x = malloc(nx * sizeof *x), target[64 * 8];
    for (size_t i = 0; i < nx; i++) x[i] = (float)sin((double)i * 0.7);
    for (size_t i = 0; i < 64 * 8; i++) target[i] = (float)cos((double)i * 0.3);
    int64_t td[2] = {64, 8};
    inv_array in = {.name = "x", .dtype = INV_F32, .rank = xs->rank, .dims = xs->dim, .data = x};
    inv_array t = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = td, .data = target};
    inv_session_options opt = more ? *more : (inv_session_options){.size = sizeof opt};
    opt.purpose = INV_FOR_TRAIN;
    opt.inputs = &in;
    opt.ninputs = 1;
    opt.target = &t;
    opt.loss = INV_LOSS_MSE;
    const char *y = "y";
    opt.loss_outputs = &y;
    opt.nloss_outputs = 1;
    opt.memory = memory;
    opt.device = device;
    inv_session *s = NULL;
    if (inv_session_create(&model, &opt, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    inv_result res;
    for (int twice = 0; twice < 2; twice++) {
        if (inv_session_grad(s, &in, 1, &t, &res) != INV_OK) fail_msg("%s", inv_context_message(ctx));
        o.fallbacks += res.fallbacks;
    }
    o.loss = res.loss;
    o.drift = res.drift;
    assert_int_equal(res.fallbacks, 0); /* of the second call: what was kept stays kept */
    o.allocated = s->device->peak(s->self);
    o.planned = s->program->persistent + s->program->transient;
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    o.flops = p->flops;
    o.store_flops = p->store_flops;
    o.activation_peak = p->activation_peak;
    o.nforward = p->g->forward_end;
    for (size_t i = 0; i < p->g->order.n; i++) {
        const inv_node *n = inv_nod(p->g, p->g->order.at[i]);
        o.nclone += n->clone_of != INV_NONE && strcmp(n->op->name, "Tanh") == 0;
        o.ninverse += n->solves != INV_NONE && strcmp(n->op->name, "Sub") == 0;
    }
    count(p->g, &o);
    assert_int_equal(inv_session_plan(s, &o.plan), INV_OK);
    take_gradients(s, &o);
    inv_session_destroy(s);
    free(x);
    return o;
}

static double distance(const outcome *a, const outcome *b)
{
    double d = 0, n = 0;
    assert_int_equal(a->ngrad, b->ngrad);
    for (size_t i = 0; i < a->ngrad; i++) {
        d += ((double)a->grad[i] - b->grad[i]) * ((double)a->grad[i] - b->grad[i]);
        n += (double)a->grad[i] * a->grad[i];
    }
    return sqrt(d / n);
}

#endif
