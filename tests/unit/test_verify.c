/* SPDX-License-Identifier: Apache-2.0
 * The verifier of plans (passes/schedule/verify_plan.c): finished plans pass, and every way to spoil one is seen: an
 * order that is not possible, offsets that get into each other, an arena that is too small, what is left out. Fails if
 * the verifier trusts what it is to look at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

static const char text[] =
    "g(float[64,8] x) => (y) {\n"
    "param float[8,8] w\nparam float[8,8] v\nparam float[8,8] u\nparam float[8,8] s\nparam float[8] l\n"
    "a, b = Split<axis = 1, num_outputs = 2>(x)\nc = Concat<axis = 1>(b, a)\n"
    "d = MatMul(c, w)\ne = Tanh(d)\nf = MatMul(e, v)\nh = Sigmoid(f)\ni = MatMul(h, u)\nj = Add(i, c)\n"
    "k = LayerNormalization<axis = -1>(j, l)\nm = Softmax<axis = 1>(k)\nn = MatMul(m, s)\ny = Relu(n)\n}\n";

/* a and b, rows one behind the other, stand in the whole; c and d, cut out of every row, are copies. */
static const char parted[] =
    "g(float[64,8] x) => (y) {\nparam float[64,64] w\nparam float[8,8] v\n"
    "m = MatMul(x, v)\np = MatMul(w, m)\na, b = Split<axis = 0, num_outputs = 2>(p)\n"
    "e = Tanh(a)\nf = Sigmoid(b)\nc, d = Split<axis = 1, num_outputs = 2>(p)\nh = Concat<axis = 1>(d, c)\n"
    "i = Concat<axis = 0>(f, e)\ny = Add(h, i)\n}\n";

typedef struct fixture {
    inv_graph *source;
    inv_session *session;
    inv_model model;
    inv_graph *g; /* of the plan */
    inv_plan *plan;
} fixture;

static fixture plan_of(const char *graph, inv_memory memory)
{
    static const int64_t dims[2] = {64, 8};
    static fixture f; /* the session points to its model */
    memset(&f, 0, sizeof f);
    if (inv_graph_parse(ctx, graph, &f.source) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (size_t i = 0; i < f.source->inits.n; i++) {
        inv_value *v = inv_val(f.source, f.source->inits.at[i]);
        const size_t ne = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&f.source->arena, ne * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < ne; k++) data[k] = (float)(k % 7) - 3;
        v->data = (inv_data){INV_F32, v->shape, data, ne * sizeof *data};
    }
    f.model = (inv_model){.ctx = ctx, .path = "text", .graph = f.source};
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims};
    inv_session_options o = {.size = sizeof o};
    o.purpose = INV_FOR_TRAIN;
    o.inputs = &in;
    o.ninputs = 1;
    o.target = &target;
    o.loss = INV_LOSS_MSE;
    o.optimizer = INV_OPT_SGD;
    o.memory = memory;
    o.plan_only = true;
    if (inv_session_create(&f.model, &o, &f.session) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    f.plan = &f.session->program->plan[INV_PLAN_MAIN];
    f.g = f.plan->g;
    return f;
}

static fixture plan_for(inv_memory memory) { return plan_of(text, memory); }

static void end(fixture *f)
{
    inv_session_destroy(f->session);
    inv_graph_destroy(f->source);
}

static bool refused(const fixture *f)
{
    const inv_status s = inv_plan_verify(f->g, f->plan, NULL);
    assert_true(s == INV_OK || s == INV_E_INTERNAL);
    return s != INV_OK;
}

static bool says(const char *what) { return strstr(inv_context_message(ctx), what) != NULL; }

static void finished_plans_pass(void **state)
{
    (void)state;
    for (int memory = INV_MEMORY_AUTO; memory <= INV_MEMORY_INVERT; memory++) {
        fixture f = plan_for((inv_memory)memory);
        if (refused(&f)) fail_msg("mode %d: %s", memory, inv_context_message(ctx));
        end(&f);
    }
}

/* Two neighbours of the order, of which the second reads what the first gives, change places. */
static void swapped_nodes_are_seen(void **state)
{
    (void)state;
    fixture f = plan_for(INV_MEMORY_RECOMPUTE);
    size_t seen = 0;
    for (size_t i = 0; i + 1 < f.g->order.n; i++) {
        inv_id *o = &f.g->order.at[i], first = o[0];
        const inv_node *a = inv_nod(f.g, o[0]), *b = inv_nod(f.g, o[1]);
        bool reads = false;
        for (uint32_t k = 0; k < b->nin; k++)
            for (uint32_t j = 0; j < a->nout; j++) reads = reads || (a->out[j] != INV_NONE && a->out[j] == b->in[k]);
        o[0] = o[1];
        o[1] = first;
        if (reads) {
            assert_true(refused(&f));
            assert_true(says("before anything writes it"));
            seen++;
        }
        o[1] = o[0];
        o[0] = first;
    }
    assert_true(seen > 10);
    assert_false(refused(&f));
    end(&f);
}

static void left_out_nodes_are_seen(void **state)
{
    (void)state;
    fixture f = plan_for(INV_MEMORY_RECOMPUTE);
    size_t clones = 0;
    for (size_t i = 0; i < f.g->order.n; i++) {
        const inv_id node = f.g->order.at[i];
        const inv_node *n = inv_nod(f.g, node);
        if (n->clone_of == INV_NONE && n->phase == INV_COMMIT) continue;
        bool needed = false; /* its first output is read, or kept */
        for (size_t k = i + 1; k < f.g->order.n; k++) {
            const inv_node *m = inv_nod(f.g, f.g->order.at[k]);
            for (uint32_t j = 0; j < m->nin; j++) needed = needed || (n->nout && m->in[j] == n->out[0]);
        }
        if (!needed) continue;
        clones += n->clone_of != INV_NONE;
        memmove(f.g->order.at + i, f.g->order.at + i + 1, (f.g->order.n - i - 1) * sizeof node);
        f.g->order.n--;
        assert_true(refused(&f));
        assert_true(says("before anything writes it"));
        f.g->order.n++;
        memmove(f.g->order.at + i + 1, f.g->order.at + i, (f.g->order.n - i - 1) * sizeof node);
        f.g->order.at[i] = node;
    }
    assert_true(clones > 0);
    assert_false(refused(&f));
    end(&f);
}

/* Every buffer is put where another one is that lives at the same time. */
static void shifted_offsets_are_seen(void **state)
{
    (void)state;
    fixture f = plan_for(INV_MEMORY_STORE);
    size_t seen = 0;
    for (size_t i = 0; i < f.g->order.n; i++) {
        const inv_node *n = inv_nod(f.g, f.g->order.at[i]);
        if (n->nout == 0 || n->out[0] == INV_NONE || n->op->flags & INV_OP_VIEW) continue;
        inv_value *out = inv_val(f.g, n->out[0]);
        const size_t was = out->offset;
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_value *in = inv_val(f.g, n->in[k]);
            if (inv_node_overwrites(f.g, n, 0) >> k & 1 || in->role != INV_ROLE_NODE) continue;
            out->offset = in->offset;
            assert_true(refused(&f));
            assert_true(says("where") || says("elsewhere") || says("arena"));
            seen++;
        }
        out->offset = was + 4;
        assert_true(refused(&f));
        out->offset = was;
    }
    assert_true(seen > 5);
    assert_false(refused(&f));
    end(&f);
}

static void small_arenas_and_wrong_promises_are_seen(void **state)
{
    (void)state;
    fixture f = plan_for(INV_MEMORY_STORE);
    f.g->arena_nbytes -= 64;
    assert_true(refused(&f));
    assert_true(says("of an arena of"));
    f.g->arena_nbytes += 64;
    f.plan->load -= 64;
    assert_true(refused(&f));
    assert_true(says("at most"));
    f.plan->load += 64;
    assert_false(refused(&f));
    end(&f);
}

/* An operator that may write over its operand must not if somebody reads that later. */
static void overwritten_operands_are_seen(void **state)
{
    (void)state;
    fixture f = plan_for(INV_MEMORY_STORE);
    size_t seen = 0;
    for (size_t i = 0; i < f.g->order.n; i++) {
        const inv_node *n = inv_nod(f.g, f.g->order.at[i]);
        if (!(n->op->inplace & 1) || n->op->inplace_out != 0 || n->nout == 0) continue;
        inv_value *in = inv_val(f.g, n->in[0]), *out = inv_val(f.g, n->out[0]);
        if (in->role != INV_ROLE_NODE || in->offset == out->offset || in->shape.rank != out->shape.rank) continue;
        const size_t was = out->offset;
        bool later = in->keep;
        for (size_t k = i + 1; k < f.g->order.n; k++)
            for (uint32_t j = 0; j < inv_nod(f.g, f.g->order.at[k])->nin; j++)
                later = later || inv_nod(f.g, f.g->order.at[k])->in[j] == n->in[0];
        if (!later) continue;
        out->offset = in->offset;
        assert_true(refused(&f));
        assert_true(says("is still read"));
        assert_true(says(in->name));
        out->offset = was;
        seen++;
    }
    assert_true(seen > 0);
    end(&f);
}

/* Nor must one that reads anywhere if another operand is the same value; one that reads element by element may. */
static void operands_given_twice_are_seen(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool may;
    } of[] = {{"g(float[64,8] x) => (y) {\nparam float[8,8] w\na = MatMul(x, w)\ni = Cast<to = 7>(x)\n"
               "s = ScatterElements<axis = 1>(a, i, a)\ny = MatMul(s, w)\n}\n",
               false},
              {"g(float[64,8] x) => (y) {\nparam float[8,8] w\na = MatMul(x, w)\ns = Add(a, a)\n"
               "y = MatMul(s, w)\n}\n",
               true}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        fixture f = plan_of(of[k].text, INV_MEMORY_STORE);
        size_t seen = 0;
        for (size_t i = 0; i < f.g->forward_end; i++) {
            const inv_node *n = inv_nod(f.g, f.g->order.at[i]);
            if (n->nin < 2 || n->in[0] != n->in[n->nin - 1]) continue;
            inv_value *in = inv_val(f.g, n->in[0]), *out = inv_val(f.g, n->out[0]);
            seen++;
            assert_true((in->offset == out->offset) == of[k].may);
            out->offset = in->offset;
            for (size_t v = 0; v < f.g->value.n; v++) /* what stands there, too */
                if (f.g->value.at[v].buffer == out->buffer) f.g->value.at[v].offset = in->offset;
            assert_true(refused(&f) != of[k].may);
        }
        assert_int_equal(seen, 1);
        end(&f);
    }
}

static void workspaces_are_seen(void **state)
{
    (void)state;
    fixture f = plan_for(INV_MEMORY_STORE);
    size_t seen = 0;
    for (size_t i = 0; i < f.g->order.n; i++) {
        inv_node *n = inv_nod(f.g, f.g->order.at[i]);
        if (!n->ws_nbytes || n->nout == 0 || n->out[0] == INV_NONE) continue;
        const size_t offset = n->ws_offset, nbytes = n->ws_nbytes;
        n->ws_offset = inv_val(f.g, n->out[0])->offset;
        assert_true(refused(&f));
        assert_true(says("the workspace"));
        n->ws_offset = offset;
        n->ws_nbytes = nbytes - 1;
        assert_true(refused(&f));
        n->ws_nbytes = nbytes;
        seen++;
    }
    assert_true(seen > 0);
    assert_false(refused(&f));
    end(&f);
}

/* Where the arena has more bytes than ever live at once, workspaces may be larger than what is promised to live. */
static void workspaces_may_have_spare_bytes(void **state)
{
    enum { SPARE = 1 << 20 };
    (void)state;
    fixture f = plan_for(INV_MEMORY_STORE);
    const size_t arena = f.g->arena_nbytes;
    size_t seen = 0;
    f.g->arena_nbytes += SPARE;
    for (size_t i = 0; i < f.g->order.n; i++) {
        inv_node *n = inv_nod(f.g, f.g->order.at[i]);
        if (!n->ws_nbytes) continue;
        n->ws_offset = arena;
        n->ws_nbytes = SPARE;
        seen++;
    }
    assert_true(seen > 0);
    assert_false(refused(&f));
    f.plan->load -= 64; /* it still counts what nodes ask for */
    assert_true(refused(&f));
    end(&f);
}

static void parts_stand_in_the_whole(void **state)
{
    (void)state;
    fixture f = plan_of(parted, INV_MEMORY_STORE);
    size_t inside = 0, apart = 0;
    for (size_t i = 0; i < f.g->order.n; i++) {
        const inv_node *n = inv_nod(f.g, f.g->order.at[i]);
        if (strcmp(n->op->name, "SplitSizes") != 0 || n->phase != INV_FORWARD) continue;
        const inv_value *whole = inv_val(f.g, n->in[0]);
        inv_value *second = inv_val(f.g, n->out[1]);
        if (second->shape.dim[0] == 64) {
            assert_true(second->buffer != whole->buffer);
            apart++;
            continue;
        }
        assert_int_equal(second->buffer, whole->buffer);
        assert_int_equal(inv_val(f.g, n->out[0])->offset, whole->offset);
        assert_int_equal(second->offset, whole->offset + 32 * 8 * sizeof(float));
        second->offset -= 64; /* neither the part nor a place of its own */
        assert_true(refused(&f));
        second->offset += 64;
        inside++;
    }
    assert_int_equal(inside, 1);
    assert_int_equal(apart, 1);
    assert_false(refused(&f));
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finished_plans_pass),
        cmocka_unit_test(swapped_nodes_are_seen),
        cmocka_unit_test(left_out_nodes_are_seen),
        cmocka_unit_test(shifted_offsets_are_seen),
        cmocka_unit_test(small_arenas_and_wrong_promises_are_seen),
        cmocka_unit_test(overwritten_operands_are_seen),
        cmocka_unit_test(operands_given_twice_are_seen),
        cmocka_unit_test(workspaces_are_seen),
        cmocka_unit_test(workspaces_may_have_spare_bytes),
        cmocka_unit_test(parts_stand_in_the_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
