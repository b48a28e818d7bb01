/* SPDX-License-Identifier: Apache-2.0
 * For the tests of core: a context on a counting allocator that can fail on demand, and a few toy operators,
 * so that core is tested without the real ones. */
#ifndef INV_TESTS_CORE_TEST_H
#define INV_TESTS_CORE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/op.h"

typedef struct counting {
    long live, calls;
    long fail_at; /* the call that fails; 0: none */
} counting;

static inline void *counting_alloc(void *opaque, size_t nbytes)
{
    counting *c = opaque;
    if (++c->calls == c->fail_at) return NULL;
    void *p = malloc(nbytes);
    if (!p) return NULL;
    memset(p, 0xa5, nbytes); /* nothing may rely on fresh memory being zero */
    c->live++;
    return p;
}

static inline void counting_free(void *opaque, void *p)
{
    counting *c = opaque;
    if (p) c->live--;
    free(p);
}

static inline inv_context *test_context(counting *c)
{
    inv_allocator allocator = {counting_alloc, counting_free, c};
    inv_context_options o = {.size = sizeof o, .allocator = &allocator};
    inv_context *ctx = NULL;
    assert_int_equal(inv_context_init(&o, &ctx), INV_OK);
    return ctx;
}

/* --- toy operators --- */

static inline inv_status toy_infer(inv_graph *g, inv_node *n)
{
    const inv_value *x = inv_val(g, n->in[0]);
    for (uint32_t i = 0; i < n->nout; i++) {
        inv_val(g, n->out[i])->dtype = x->dtype;
        inv_val(g, n->out[i])->shape = x->shape;
    }
    if (n->nin > 1 && n->in[1] != INV_NONE && !inv_shape_equal(&x->shape, &inv_val(g, n->in[1])->shape))
        return inv_node_fail(g, n, INV_E_SHAPE, "wants two operands of one shape");
    return INV_OK;
}

static inline inv_status toy_view_infer(inv_graph *g, inv_node *n)
{
    size_t rank;
    const int64_t *dim = inv_attr_ints(n, "shape", &rank);
    if (!dim) return inv_node_fail(g, n, INV_E_GRAPH, "attribute shape is missing");
    inv_val(g, n->out[0])->dtype = inv_val(g, n->in[0])->dtype;
    inv_val(g, n->out[0])->shape = inv_shape_of((int)rank, dim);
    return INV_OK;
}

static inline inv_status toy_add_cpu(const inv_call *c)
{
    if (c->in[0].dtype != INV_F32) return INV_E_UNSUPPORTED_TYPE;
    if (c->ws_nbytes != 64 || (uintptr_t)c->ws % 64 || (uintptr_t)c->in[0].data % 16) return INV_E_INTERNAL;
    const float *a = c->in[0].data, *b = c->in[1].data;
    float *y = c->out[0].data;
    for (int64_t i = 0; i < c->out[0].n; i++) y[i] = a[i] + b[i];
    return INV_OK;
}

static inline size_t toy_workspace(const inv_graph *g, const inv_node *n)
{
    (void)g;
    (void)n;
    return 64;
}

static const inv_op_def toy_ops[] = {
    {.size = sizeof(inv_op_def),
     .domain = "",
     .name = "Add",
     .since = 7,
     .in = "A B",
     .out = "C",
     .infer = toy_infer,
     .run = toy_add_cpu,
     .workspace = toy_workspace},
    {.size = sizeof(inv_op_def),
     .domain = "",
     .name = "Add",
     .since = 1,
     .until = 6,
     .in = "A B",
     .out = "C",
     .infer = toy_infer,
     .lower = NULL},
    {.size = sizeof(inv_op_def), .domain = "", .name = "Relu", .since = 6, .in = "X", .out = "Y", .infer = toy_infer},
    {.size = sizeof(inv_op_def),
     .domain = "",
     .name = "Clip",
     .since = 11,
     .in = "X min? max?",
     .out = "Y",
     .infer = toy_infer},
    {.size = sizeof(inv_op_def),
     .domain = "",
     .name = "Concat",
     .since = 4,
     .in = "inputs*",
     .out = "Y",
     .infer = toy_infer},
    {.size = sizeof(inv_op_def),
     .domain = "ai.invonnx.ir",
     .name = "View",
     .since = 1,
     .in = "x",
     .out = "y",
     .flags = INV_OP_VIEW,
     .infer = toy_view_infer},
    {.size = sizeof(inv_op_def),
     .domain = "ai.invonnx.ir",
     .name = "Assign",
     .since = 1,
     .in = "param value",
     .out = "",
     .writes = 1,
     .infer = toy_infer},
    {.size = sizeof(inv_op_def),
     .domain = "ai.invonnx.ir",
     .name = "Split2",
     .since = 1,
     .in = "x",
     .out = "a b",
     .infer = toy_infer},
    {.size = sizeof(inv_op_def),
     .domain = "ai.invonnx.ir",
     .name = "Noise",
     .since = 1,
     .in = "x",
     .out = "y",
     .flags = INV_OP_RANDOM,
     .infer = toy_infer,
     .run = toy_add_cpu},
};

static inline inv_status toy_registry(inv_context *ctx)
{
    INV_TRY(inv_registry_create(ctx, &ctx->registry));
    for (size_t i = 0; i < sizeof toy_ops / sizeof *toy_ops; i++)
        INV_TRY(inv_registry_add_op(ctx->registry, &toy_ops[i]));
    return INV_OK;
}

static inline void test_context_end(inv_context *ctx, counting *c)
{
    inv_registry_destroy(ctx->registry);
    inv_context_fini(ctx);
    assert_int_equal(c->live, 0);
}

#endif
