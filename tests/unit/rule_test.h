/* SPDX-License-Identifier: Apache-2.0
 * Graphs in text form, sessions on them and data for their inputs: for tests of inverse rules and of blocks. Each test
 * program includes this once. */
#ifndef INVONNX_RULE_TEST_H
#define INVONNX_RULE_TEST_H

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
#include "graph_text.h"

#define EPS 0x1p-23
enum { MAX_IN = 4 };

/* --- sessions on a graph: the loss is MSE of its first output --- */

typedef struct feeds {
    inv_array in[MAX_IN], target;
    float *data[MAX_IN + 1];
    int64_t dims[MAX_IN + 1][INV_MAX_RANK];
    size_t n;
} feeds;

static void fill(feeds *f, size_t at, inv_array *a, const char *name, const inv_shape *s)
{
    size_t ne = (size_t)inv_shape_nelem(s);
    f->data[at] = malloc((ne ? ne : 1) * sizeof(float));
    for (size_t i = 0; i < ne; i++) f->data[at][i] = (float)sin(0.7 * (double)i + 0.3 + (double)at);
    memcpy(f->dims[at], s->dim, sizeof s->dim);
    *a = (inv_array){.name = name, .dtype = INV_F32, .rank = s->rank, .dims = f->dims[at], .data = f->data[at]};
}

static void drop_feeds(feeds *f)
{
    for (size_t i = 0; i <= f->n; i++) free(f->data[i]);
}

static inv_session *session(inv_model *m, inv_memory memory, feeds *f, bool plan_only)
{
    const char *first = inv_val(m->graph, m->graph->outputs.at[0])->name;
    inv_session_options o = {.size = sizeof o, .purpose = INV_FOR_TRAIN, .loss = INV_LOSS_MSE, .nloss_outputs = 1};
    o.inputs = f->in;
    o.ninputs = f->n;
    o.target = plan_only ? NULL : &f->target;
    o.loss_outputs = &first;
    o.memory = memory;
    o.input_grads = true;
    o.plan_only = plan_only;
    o.float64 = plan_only; /* of what is only looked at, no layout turns axes */
    o.device = "checked";
    inv_session *s = NULL;
    if (inv_session_create(m, &o, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return s;
}

/* A plan without a target tells the shape of one. */
static void make_feeds(inv_model *m, feeds *f)
{
    memset(f, 0, sizeof *f);
    f->n = m->graph->inputs.n;
    assert_in_range(f->n, 1, MAX_IN);
    for (size_t i = 0; i < f->n; i++) {
        const inv_value *v = inv_val(m->graph, m->graph->inputs.at[i]);
        fill(f, i, &f->in[i], v->name, &v->shape);
    }
    inv_session *s = session(m, INV_MEMORY_STORE, f, true);
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    fill(f, f->n, &f->target, "target", &inv_val(p->g, p->output.at[0].value)->shape);
    inv_session_destroy(s);
}

#endif
