/* SPDX-License-Identifier: Apache-2.0
 * A plan that cannot be made, or is wrong, is made again with the value kept that it loses, and nobody sees the error:
 * an operator whose gradient cannot be computed of a sample, as its guard does. Fails if the session is refused, if it
 * is not this value that is kept, or if gradients change. */
#include "core/graph/node.h"
#include "ops/base/util.h"
#include "passes/recover/recover.h"
#include "recover_run.h"

static int refusals;

static inv_status squash_infer(inv_graph *g, inv_node *n)
{
    if (inv_in_shape(g, n, 0)->rank != 2) { /* a sample */
        refusals++;
        return inv_node_fail(g, n, INV_E_INTERNAL, "it is not meant for samples");
    }
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), inv_in_shape(g, n, 0));
    return INV_OK;
}

static inv_status squash_run(const inv_call *c)
{
    const float *x = c->in[0].data, *y = c->nin > 1 ? c->in[1].data : NULL;
    float *out = c->out[0].data;
    for (int64_t i = 0; i < c->out[0].n; i++) out[i] = y ? x[i] * (1 - y[i] * y[i]) : tanhf(x[i]);
    return INV_OK;
}

static inv_status squash_grad(inv_grad *b)
{
    inv_grad_set(b, 0, inv_emit1(b->g, "SquashGrad", INV_IN(inv_GO(b, 0), inv_O(b, 0)), INV_NOATTR));
    return b->g->failed;
}

static const inv_op_def squash = {.size = sizeof squash,
                                  .domain = INV_IR,
                                  .name = "Squash",
                                  .since = 1,
                                  .in = "x",
                                  .out = "y",
                                  .infer = squash_infer,
                                  .grad = squash_grad,
                                  .run = squash_run};
static const inv_op_def squash_back = {.size = sizeof squash_back,
                                       .domain = INV_IR,
                                       .name = "SquashGrad",
                                       .since = 1,
                                       .in = "gy y",
                                       .out = "dx",
                                       .flags = INV_OP_NO_GRAD | INV_OP_SLOPE,
                                       .infer = squash_infer,
                                       .run = squash_run};

/* Couplings whose branches are squashed. */
static const char couplings[] =
    "g(float[64,8] x) => (y) {\nparam float[8,8] s\nparam float[4,4] a\nparam float[4,4] b\nparam float[4,4] c\n"
    "param float[4,4] d\nparam float[8,8] w\nz = MatMul(x, s)\nu0, u1 = Split<axis = 1, num_outputs = 2>(z)\n"
    "p = MatMul(u1, a)\nq = Squash(p)\nr = MatMul(q, b)\nu2 = Add(u0, r)\n"
    "h = MatMul(u2, c)\ni = Squash(h)\nj = MatMul(i, d)\nu3 = Add(u1, j)\n"
    "k = Concat<axis = 1>(u2, u3)\nm = Tanh(k)\ny = MatMul(m, w)\n}\n";

static void a_plan_that_fails_is_made_again(void **state)
{
    (void)state;
    inv_graph *g = parse(couplings);
    refusals = 0;
    outcome store = run(g, INV_MEMORY_STORE, "checked", NULL);
    assert_int_equal(refusals, 0);
    outcome o = run(g, INV_MEMORY_INVERT, "checked", NULL);
    assert_true(refusals > 0);
    assert_true(distance(&store, &o) < 1e-4);
    forget(&o);
    forget(&store);
    inv_graph_destroy(g);
}

/* Of a value that comes back, what gives it is kept; of what is none of forward's, everything. */
static void lost_values_are_those_of_forward(void **state)
{
    (void)state;
    inv_graph *g = parse(couplings);
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    const int64_t dims[2] = {64, 8};
    const inv_array x = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims},
                    t = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims};
    const inv_session_options opt = {.size = sizeof opt,
                                     .purpose = INV_FOR_TRAIN,
                                     .inputs = &x,
                                     .ninputs = 1,
                                     .target = &t,
                                     .loss = INV_LOSS_MSE,
                                     .memory = INV_MEMORY_RECOMPUTE,
                                     .plan_only = true};
    inv_session *s = NULL;
    bool more = false;
    size_t again = 0;
    if (inv_session_create(&model, &opt, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    for (size_t i = 0; i < p->g->order.n; i++) {
        const inv_node *n = inv_nod(p->g, p->g->order.at[i]);
        if (n->clone_of == INV_NONE) continue;
        p->lost.n = 0;
        again++;
        assert_int_equal(inv_plan_lose_for(p, n->out[0], &more), INV_OK);
        assert_true(more);
        const inv_id first = inv_nod(p->base, n->clone_of)->out[0];
        assert_true(inv_ids_have(p->lost.at, p->lost.n, inv_seen_through_views(p->base, first)));
        assert_int_equal(inv_plan_lose_for(p, n->out[0], &more), INV_OK);
        assert_true(more && p->lost.n > 2); /* that was kept already: now all is */
        assert_int_equal(inv_plan_lose_for(p, INV_NONE, &more), INV_OK);
        assert_false(more);
    }
    assert_true(again > 0);
    inv_session_destroy(s);
    inv_graph_destroy(g);
}

static int setup_operators(void **state)
{
    if (setup(state)) return -1;
    return inv_registry_add_op(ctx->registry, &squash) == INV_OK &&
                   inv_registry_add_op(ctx->registry, &squash_back) == INV_OK
               ? 0
               : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_plan_that_fails_is_made_again),
                                       cmocka_unit_test(lost_values_are_those_of_forward)};
    return cmocka_run_group_tests(tests, setup_operators, teardown);
}
