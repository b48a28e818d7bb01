/* SPDX-License-Identifier: Apache-2.0
 * Scratch memory beyond the least (passes/schedule/spare.c): a node gets the first gap that makes it the quickest, or
 * the largest there is, never bytes of a buffer that is alive; plans of convolutions take no more bytes for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

enum { KIB = 1024 };

static size_t one_kib(const inv_graph *g, const inv_node *n)
{
    (void)g, (void)n;
    return KIB;
}

static size_t eight_kib(const inv_graph *g, const inv_node *n)
{
    (void)g, (void)n;
    return 8 * KIB;
}

static const inv_op_def hungry = {.name = "Hungry", .workspace = one_kib, .quick = eight_kib};

/* Three nodes in an order; the one in the middle has scratch memory. */
static inv_graph *three_nodes(inv_node **middle)
{
    inv_graph *g = NULL;
    assert_int_equal(inv_graph_parse(ctx, "g(float[4] x) => (c) {\na = Tanh(x)\nb = Tanh(a)\nc = Tanh(b)\n}\n", &g),
                     INV_OK);
    *middle = inv_nod(g, g->order.at[1]);
    (*middle)->op = &hungry;
    (*middle)->ws_nbytes = KIB;
    return g;
}

/* Buffers of so many KiB from one position to another, at these KiB; the third is the scratch memory. */
static void widened_to(const size_t box[][4], size_t n, size_t arena, size_t offset, size_t nbytes)
{
    inv_node *node;
    inv_graph *g = three_nodes(&node);
    inv_buffer b[8];
    size_t at[8];
    for (size_t i = 0; i < n; i++) {
        b[i] =
            (inv_buffer){box[i][0] * KIB, (uint32_t)box[i][1], (uint32_t)box[i][2], INV_MEM_ACT, i == 2 ? INV_NONE : 0};
        at[i] = box[i][3] * KIB;
    }
    const inv_buffers all = {.at = b, .n = n};
    node->ws_offset = at[2];
    g->arena_nbytes = arena * KIB;
    assert_int_equal(inv_widen_workspaces(g, &all, at), INV_OK);
    assert_int_equal(node->ws_offset, offset * KIB);
    assert_int_equal(node->ws_nbytes, nbytes * KIB);
    inv_graph_destroy(g);
}

static void gaps_are_used(void **state)
{
    /* one buffer from the first node to the second, one from the second to the third, one from the third on */
    static const size_t full[][4] = {{4, 0, 1, 0}, {4, 1, 2, 5}, {1, 1, 1, 4}, {4, 2, 2, 0}};
    static const size_t behind[][4] = {{4, 0, 0, 0}, {4, 1, 2, 5}, {1, 1, 1, 4}, {9, 2, 2, 9}};
    (void)state;
    widened_to(full, 4, 9, 4, 1);
    widened_to(full, 4, 12, 9, 3);   /* moved to where there is more */
    widened_to(full, 4, 30, 9, 8);   /* no more than is of use */
    widened_to(behind, 4, 18, 9, 8); /* what begins later is not alive yet; the first gap has 5 */
    widened_to(behind, 4, 14, 0, 5); /* nor is what has ended; as large as the one behind, and before it */
}

static const char text[] =
    "g(float[16,64,16,16] x) => (y) {\n"
    "param float[64,64,3,3] a\nparam float[64,64,3,3] b\nparam float[64,64,3,3] c\nparam float[64,64,3,3] d\n"
    "e = Conv<pads = [1, 1, 1, 1]>(x, a)\nf = Relu(e)\ng = Conv<pads = [1, 1, 1, 1]>(f, b)\nh = Relu(g)\n"
    "i = Conv<pads = [1, 1, 1, 1]>(h, c)\nj = Relu(i)\ny = Conv<pads = [1, 1, 1, 1]>(j, d)\n}\n";

/* Bytes of the step's part of the arena; how many nodes could be quicker, and how many are as quick as they can be. */
static size_t transient_of(inv_memory memory, int threads, size_t *slow, size_t *quick)
{
    static const int64_t x[4] = {16, 64, 16, 16};
    inv_graph *source = NULL;
    if (inv_graph_parse(ctx, text, &source) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (size_t i = 0; i < source->inits.n; i++) {
        inv_value *v = inv_val(source, source->inits.at[i]);
        const size_t n = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&source->arena, n * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < n; k++) data[k] = (float)(k % 7) - 3;
        v->data = (inv_data){INV_F32, v->shape, data, n * sizeof *data};
    }
    inv_model model = {.ctx = ctx, .path = "text", .graph = source};
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 4, .dims = x},
                    target = {.name = "target", .dtype = INV_F32, .rank = 4, .dims = x};
    inv_session_options o = {.size = sizeof o, .purpose = INV_FOR_TRAIN, .memory = memory, .plan_only = true};
    o.inputs = &in, o.ninputs = 1, o.target = &target, o.loss = INV_LOSS_MSE, o.optimizer = INV_OPT_SGD,
    o.threads = threads;
    inv_session *session = NULL;
    if (inv_session_create(&model, &o, &session) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    const inv_plan *plan = &session->program->plan[INV_PLAN_MAIN];
    assert_int_equal(inv_plan_verify(plan->g, plan, NULL), INV_OK);
    *slow = *quick = 0;
    for (size_t i = 0; i < plan->g->order.n; i++) {
        const inv_node *n = inv_nod(plan->g, plan->g->order.at[i]);
        const size_t most = n->op->quick ? n->op->quick(plan->g, n) : 0;
        if (most == 0 || most == n->op->workspace(plan->g, n)) continue;
        assert_true(n->ws_nbytes <= most);
        ++*(n->ws_nbytes < most ? slow : quick);
    }
    const size_t transient = plan->transient;
    inv_session_destroy(session);
    inv_graph_destroy(source);
    return transient;
}

/* A step that stores all has room for the quickest convolutions but where most is alive. */
static void convolutions_are_quick_where_there_is_room(void **state)
{
    size_t slow, quick;
    (void)state;
    const size_t store = transient_of(INV_MEMORY_STORE, 1, &slow, &quick);
    if (slow + quick == 0) skip(); /* no tiles on this processor */
    assert_true(quick > slow);
    const size_t recompute = transient_of(INV_MEMORY_RECOMPUTE, 1, &slow, &quick);
    assert_true(recompute < store);
    /* what threads need by themselves does not add up */
    assert_true(transient_of(INV_MEMORY_RECOMPUTE, 8, &slow, &quick) <= recompute + recompute / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gaps_are_used),
                                       cmocka_unit_test(convolutions_are_quick_where_there_is_room)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
