/* SPDX-License-Identifier: Apache-2.0
 * What each rank of world_threads.h does: it has a context and the model of a text, and works with them. Include it
 * behind cmocka. */
#ifndef RANK_MODEL_H
#define RANK_MODEL_H

#include <math.h>
#include <stdio.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "world_threads.h"

enum { RANK_MESSAGE = 600 };

/* The graph, whose parameters are centre + span sin(1.7 k + i) at element k of the i-th. */
static inline inv_status read_rank_graph(inv_context *ctx, const char *text, double centre, double span, inv_graph **g)
{
    INV_TRY(inv_graph_parse(ctx, text, g));
    for (size_t i = 0; i < (*g)->inits.n; i++) {
        inv_value *v = inv_val(*g, (*g)->inits.at[i]);
        const size_t n = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&(*g)->arena, n * sizeof *data);
        if (!data) return INV_E_NOMEM;
        for (size_t k = 0; k < n; k++) data[k] = (float)(centre + span * sin((double)k * 1.7 + (double)i));
        v->data = (inv_data){INV_F32, v->shape, data, n * sizeof *data};
    }
    return INV_OK;
}

/* A rank that fails says why in `message`, and ends the others' waiting. */
static inline inv_status run_on_model(thread_world *rank, const char *text, double centre, double span,
                                      inv_status (*work)(thread_world *rank, inv_context *ctx, inv_model *model),
                                      char message[RANK_MESSAGE])
{
    inv_context *ctx = NULL;
    inv_model model = {.path = "text"};
    inv_status st = inv_context_create(NULL, &ctx);
    model.ctx = ctx;
    if (st == INV_OK) st = read_rank_graph(ctx, text, centre, span, &model.graph);
    if (st == INV_OK) st = work(rank, ctx, &model);
    if (st != INV_OK) {
        snprintf(message, RANK_MESSAGE, "%s", ctx ? inv_context_message(ctx) : "no context");
        break_up(rank->at);
    }
    inv_graph_destroy(model.graph);
    inv_context_destroy(ctx);
    return st;
}

#endif
