/* SPDX-License-Identifier: Apache-2.0
 * Element-wise nodes joined to one (passes/schedule/fuse.c): random graphs give the same bits as before, in an arena
 * and with one thread or two, or by the kernels of devices, and take no more bytes. What such a kernel has no room for
 * is not joined there. */
#include <omp.h>

#include "interp.h"
#include "ops/elementwise/bits.h"
#include "ops/gpu/gpu.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

static uint64_t dice = 7;
static uint32_t roll(uint32_t n)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (uint32_t)((dice >> 33) % n);
}

/* Operators that have pieces, by the registry. */
static const inv_op_def *random_op(void)
{
    const size_t n = inv_registry_nops(ctx->registry);
    for (;;) {
        const inv_op_def *op = inv_registry_op_at(ctx->registry, roll((uint32_t)n));
        if (op->piece && !op->codes && !(op->flags & INV_OP_COMPARES) && strcmp(op->name, "BroadcastTo") != 0)
            return op;
    }
}

static inv_shape random_shape(bool large)
{
    static const int64_t extents[] = {1, 2, 3, 5, 17, 33, 130, 1031};
    const int64_t most = large ? 150000 : 6000;
    inv_shape s = inv_shape_scalar();
    do {
        s.rank = 1 + (int)roll(4);
        for (int i = 0; i < s.rank; i++) s.dim[i] = extents[roll(8)];
    } while (inv_shape_nelem(&s) > most || (large && inv_shape_nelem(&s) < 40000));
    return s;
}

/* An input that broadcasts to s. */
static inv_id random_input(inv_graph *g, const inv_shape *s)
{
    inv_shape is = *s;
    for (int i = 0; i < is.rank; i++)
        if (roll(3) == 0) is.dim[i] = 1;
    while (is.rank && is.dim[0] == 1 && roll(2)) {
        for (int i = 1; i < is.rank; i++) is.dim[i - 1] = is.dim[i];
        is.rank--;
    }
    const inv_id v = inv_graph_value(g, inv_graph_fresh(g, "in"), INV_ROLE_INPUT, g->real, roll(2) ? s : &is);
    assert_true(v != INV_NONE && inv_vec_push(&g->arena, &g->inputs, v));
    return v;
}

/* gy times factors that a comparison of x chooses. */
static inv_id random_choice(inv_graph *g, inv_id gy, inv_id x)
{
    const double factor[4] = {roll(3), roll(3) - 1.0, 0.5, 2};
    const inv_id low = inv_graph_const_real(g, g->real, -0.5), high = inv_graph_const_real(g, g->real, 0.5);
    const inv_bits m = inv_emit_bits(g, 1 + (int)roll(2), x, low, roll(2) ? high : INV_NONE);
    return inv_emit_select(g, gy, &m, factor);
}

/* A random chain or tree: element-wise nodes, some that are not, values that are read after the step, two phases. */
static inv_graph *random_graph(inv_dtype real, bool large)
{
    enum { NODES = 24 };
    inv_graph *g;
    inv_id v[NODES + 4];
    uint32_t n = 0;
    assert_int_equal(inv_graph_create(ctx, "random", &g), INV_OK);
    g->real = real;
    const inv_shape s = random_shape(large);
    const int64_t all = inv_shape_nelem(&s);
    const inv_attr flat = inv_attr_of_ints("shape", 1, &all);
    const inv_attr shape = inv_attr_of_ints("shape", (size_t)s.rank, s.dim), last = inv_attr_of_int("axis", s.rank - 1),
                   sum[] = {inv_attr_of_ints("axes", 1, &(int64_t){s.rank - 1}), inv_attr_of_int("keepdims", 1)};
    v[n++] = inv_emit1(g, "BroadcastTo", 1, &(inv_id){random_input(g, &s)}, 1, &shape);
    while (n < NODES) {
        if (n == NODES / 2) g->forward_end = g->order.n, g->phase = INV_BACKWARD;
        const inv_id of = v[n - 1 - roll(n < 4 ? n : 4)];
        const uint32_t kind = roll(12);
        inv_id in[3] = {of, INV_NONE, INV_NONE}, y;
        if (kind == 0) y = inv_emit1(g, "Softmax", 1, in, 1, &last);
        else if (kind == 1)
            y = inv_emit1(g, "BroadcastTo", 1, &(inv_id){inv_emit1(g, "ReduceSumAxes", 1, in, 2, sum)}, 1, &shape);
        else if (kind == 3) y = random_choice(g, of, v[roll(n)]);
        else if (kind == 2) {
            inv_val(g, inv_emit1(g, "View", 1, in, 1, &flat))->keep = true;
            continue;
        } else {
            const inv_op_def *op = random_op();
            uint32_t nin = 0;
            bool whole = false;
            while (inv_op_slot(op->in, nin, &(bool){false}, &(bool){false})) nin++;
            for (uint32_t k = 0; k < nin; k++) {
                in[k] = roll(3) ? v[n - 1 - roll(n < 5 ? n : 5)] : random_input(g, &s);
                whole |= inv_shape_equal(&inv_val(g, in[k])->shape, &s);
            }
            if (!whole || !(op->flags & INV_OP_COMMUTATIVE)) in[0] = of;
            /* derivatives want two operands of one shape */
            for (uint32_t k = 1; k < nin && nin == 2 && !inv_shape_equal(&inv_val(g, in[k])->shape, &s); k++)
                if (strstr(op->name, "Grad")) in[k] = v[0];
            inv_id node = inv_emit(g, op->name, 1, nin, in, 0, NULL);
            y = node == INV_NONE ? INV_NONE : inv_nod(g, node)->out[0];
        }
        if (y == INV_NONE) fail_msg("%s", inv_context_message(ctx));
        if (roll(8) == 0) inv_val(g, y)->keep = true;
        v[n++] = y;
    }
    /* nothing is computed for nobody */
    for (uint32_t k = 0; k < n; k++) {
        bool read = false;
        for (size_t i = 0; i < g->order.n && !read; i++)
            read = inv_ids_have(inv_nod(g, g->order.at[i])->in, inv_nod(g, g->order.at[i])->nin, v[k]);
        inv_val(g, v[k])->keep |= !read;
    }
    if (!g->forward_end) g->forward_end = g->order.n;
    return g;
}

static bool same_bits(const void *a, const void *b, inv_dtype t, int64_t n)
{
    const size_t size = inv_dtype_size(t);
    for (int64_t i = 0; i < n; i++) {
        const bool nan = isnan(inv_elem_double(a, t, (size_t)i)) && isnan(inv_elem_double(b, t, (size_t)i));
        if (!nan && memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size) != 0)
            return false;
    }
    return true;
}

/* Operands that are repeated are there until all of their node is done, and nothing takes their place. */
static size_t most_repeated(const inv_graph *g)
{
    size_t most = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t sum = 0;
        for (uint32_t k = 0; k < n->nin && n->fused; k++)
            if (interp_nbytes(g, n->in[k]) < interp_nbytes(g, n->out[0]))
                sum += inv_round64(interp_nbytes(g, n->in[k]));
        if (sum > most) most = sum;
    }
    return most;
}

/* gpu: NULL for the host's kernels. */
static size_t check_graph(inv_graph *g, uint64_t number, bool far, const inv_gpu *gpu)
{
    interp it;
    inv_plan plan = {0}, fused = {0};
    size_t groups;
    uint64_t state = number;
    g->gpu = gpu != NULL;
    interp_init(&it, g);
    it.gpu = gpu;
    for (size_t i = 0; i < g->inputs.n; i++) interp_fill(&it, g->inputs.at[i], &state);
    assert_int_equal(interp_run(&it), INV_OK);
    void **want = it.data;
    it.data = calloc(it.n + 1, sizeof *it.data);
    for (size_t i = 0; i < g->inputs.n; i++) {
        it.data[g->inputs.at[i]] = want[g->inputs.at[i]];
        want[g->inputs.at[i]] = NULL;
    }
    assert_int_equal(inv_pass_memplan(g, &plan, 1, 0), INV_OK);
    assert_int_equal(inv_pass_fuse(g, far ? &plan : NULL, &groups), INV_OK);
    if (inv_graph_check(g, true) != INV_OK) fail_msg("graph %d: %s", (int)number, inv_context_message(ctx));
    assert_int_equal(inv_pass_memplan(g, &fused, 1, 0), INV_OK);
    if (inv_plan_verify(g, &fused, NULL) != INV_OK) fail_msg("graph %d: %s", (int)number, inv_context_message(ctx));
    if (fused.load > plan.load + most_repeated(g))
        fail_msg("graph %d: %zu bytes, %zu before", (int)number, fused.load, plan.load);
    for (int threads = 1; threads <= (gpu ? 1 : 2); threads++) {
        omp_set_num_threads(threads);
        interp_run_in_arena(&it);
        for (size_t v = 0; v < it.n; v++) {
            const inv_value *x = inv_val(g, (inv_id)v);
            if (!x->keep) continue;
            if (!same_bits(it.data[v], want[v], x->dtype, inv_shape_nelem(&x->shape)))
                fail_msg("graph %d, %d threads: '%s' has other bits", (int)number, threads, x->name);
        }
    }
    for (size_t v = 0; v < it.n; v++) free(want[v]);
    free(want);
    interp_fini(&it);
    return groups;
}

static void random_graphs(void **state)
{
    (void)state;
    inv_gpu gpu = {0};
    inv_gpu_emulate(&gpu);
    for (int device = 0; device < 2; device++) {
        size_t groups = 0;
        for (uint64_t i = 0; i < 80; i++)
            groups +=
                check_graph(random_graph(i % 2 ? INV_F64 : INV_F32, i % 10 == 0), i, i / 2 % 2, device ? &gpu : NULL);
        assert_true(groups > 80);
    }
}

/* Nine inputs and eight results are to be there at once, one more than a device's thread has places. */
static void many_values(void **state)
{
    (void)state;
    for (int device = 0; device < 2; device++) {
        inv_graph *g;
        inv_id a[10], t[8], y;
        size_t groups, joint = 0;
        const inv_shape s = inv_shape_of(2, (int64_t[]){2, 3});
        assert_int_equal(inv_graph_create(ctx, "many", &g), INV_OK);
        g->gpu = device;
        for (int i = 0; i < 10; i++) {
            a[i] = inv_graph_value(g, inv_graph_fresh(g, "a"), INV_ROLE_INPUT, INV_F32, &s);
            assert_true(inv_vec_push(&g->arena, &g->inputs, a[i]));
        }
        for (int i = 0; i < 8; i++)
            t[i] = i ? inv_emit1(g, "PReluGradX", INV_IN(t[i - 1], a[i], a[i + 1]), INV_NOATTR)
                     : inv_emit1(g, "Mul", INV_IN(a[0], a[1]), INV_NOATTR);
        y = a[9];
        for (int i = 0; i < 8; i++) y = inv_emit1(g, "PReluGradX", INV_IN(y, t[i], a[8 - i]), INV_NOATTR);
        inv_val(g, y)->keep = true;
        g->forward_end = g->order.n;
        assert_int_equal(inv_pass_fuse(g, NULL, &groups), INV_OK);
        assert_int_equal(inv_graph_check(g, true), INV_OK);
        for (size_t i = 0; i < g->order.n; i++) {
            const inv_node *n = inv_nod(g, g->order.at[i]);
            uint8_t place[INV_FUSED_STEPS];
            if (!n->fused) continue;
            joint += n->fused->nstep == INV_FUSED_STEPS;
            assert_true(!device || inv_fused_places(n->fused, n->nin, place) <= INV_FUSED_PLACES);
        }
        assert_int_equal(joint, !device);
        assert_true(groups > 0);
        inv_graph_destroy(g);
    }
}

static void refused(bool device, const char *steps, const char *why)
{
    inv_graph *g;
    char text[512];
    (void)snprintf(text, sizeof text, "y = Fused<shape = [2,3], steps = \"%s\">(float[2,3] a, float[3] b)", steps);
    assert_int_equal(inv_case_parse(ctx, text, 0, INV_F32, &g), INV_OK);
    g->gpu = device;
    assert_int_not_equal(inv_node_infer(g, g->order.at[0]), INV_OK);
    if (!strstr(inv_context_message(ctx), why)) fail_msg("%s: %s", steps, inv_context_message(ctx));
    inv_graph_destroy(g);
}

static void bad_steps(void **state)
{
    (void)state;
    refused(false, "", "0 steps");
    refused(false, "y0 = Softmax(x0)", "no operator that has pieces");
    refused(false, "y0 = Add(x0, t)", "neither an input nor");
    refused(false, "y0 = Add(x0, x2)", "neither an input nor");
    refused(false, "y0 = Add(x0)", "other operands");
    refused(false, "y0 = CompareBits(x0, x1)", "codes are no output");
    refused(false, "y0 = SelectBits(x0, x1)", "neither an input nor");
    refused(false, "c = CompareBits(x0, x1)  y0 = Add(c, x1)", "codes for numbers");
    refused(true, "c = CompareBits(x0, x1)  y0 = SelectBits(x0, c)", "not joined on a device");
    refused(false, "t = Add(x0, x1)", "an output is not given");
    refused(false, "y0 = Add(x0, x1)  y0 = Tanh(x0)", "a name that is taken");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_graphs), cmocka_unit_test(many_values),
                                       cmocka_unit_test(bad_steps)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
