/* SPDX-License-Identifier: Apache-2.0
 * Graphs in text form whose parameters have numbers. Each test program includes this once, after cmocka. */
#ifndef INVONNX_GRAPH_TEXT_H
#define INVONNX_GRAPH_TEXT_H

#include "core/graph/ir.h"
#include "with_context.h"

static double noise(uint64_t *h)
{
    *h ^= *h << 13, *h ^= *h >> 7, *h ^= *h << 17;
    return (double)(*h >> 11) * 0x1p-53 - 0.5;
}

/* The graph; its parameters without numbers get small random ones. */
static inv_graph *parse(const char *text)
{
    inv_graph *g = NULL;
    uint64_t h = 88172645463325252u;
    if (inv_graph_parse(ctx, text, &g) != INV_OK) fail_msg("%s\n%s", inv_context_message(ctx), text);
    assert_int_equal(inv_graph_sort(g), INV_OK); /* statements may stand in any order */
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        if (v->data.bytes) continue;
        size_t ne = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&g->arena, ne * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < ne; k++) data[k] = (float)(0.6 * noise(&h));
        v->data = (inv_data){INV_F32, v->shape, data, ne * sizeof *data};
    }
    return g;
}

#endif
