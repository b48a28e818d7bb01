/* SPDX-License-Identifier: Apache-2.0
 * One tensor, its reshape, or a slice of it that is all of it, for every pair of operands of every operator that may
 * work in place: in the cases of all rows and in the gradients of these, by the host's kernels and by the emulated
 * kernels of devices. Fails where a planned arena gives other bits than a buffer per value, or other numbers than
 * float64, where the check of plans finds a fault, or where no operator is written in place over a value given twice.
 */
#include "interp.h"
#include "ops/gpu/gpu.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

enum { MOST = 64 }; /* operands, graph inputs */

/* What takes the places of two operands of a node. */
typedef enum form { SAME, RESHAPED, SLICED, SLICED_FIRST, FORMS } form;

typedef struct pair {
    size_t at; /* position of the node in the order */
    uint32_t k, j;
    form form;
} pair;

static size_t seen, over; /* pairs; of these, written in place over the operand */
/* Nodes of one row that are tried, and how many have been, by the row's place in the registry. */
enum { NODES = 3, ROWS = 4096 };
static unsigned tried[ROWS];

/* Cases with two operands of one size, for rows that have none of their own. */
/* clang-format off */
static const char *const more[] = {
    "y = ScatterNDN(float[4,3] x,int64[4,1]{2,0,3,1},float[4,3] u)",
    "y = ScatterNDN<axis = 1>(float[3,4] x,int64[3,4]{1,0,3,2,3,2,1,0,0,1,3,2},float[3,4] u)",
    "y = ScatterNDN<axis = 1, reduction = \"add\">(float[3,4] x,int64[3,4]{1,0,3,2,3,2,1,0,0,1,3,2},float[3,4] u)",
    "y = ScatterNDN<axis = 0, reduction = \"max\">(float[3,4] x,int64[3,4]{1,0,2,2,2,2,1,0,0,1,1,2},float[3,4] u)",
    "y = ScatterNDN<axis = 0, reduction = \"min\">(float[3,4] x,int64[3,4]{1,0,2,2,2,2,1,0,0,1,1,2},float[3,4] u)",
    "y = MatMulT(float[4,4] a, float[4,4] b, float[4,4] c)",
    "y = MatMulT<trans_b = 1>(float[4,4] a, float[4,4] b, float[4,4] c)",
    "y = ConvN<kernel_shape = [1,1], strides = [1,1], pads = [0,0,0,0], dilations = [1,1]>(float[2,2,2,2] x, "
    "float[2,2,1,1] w, , float[2,2,2,2] onto)",
    "y = LayerNormalization(float[1,6] x, float[6] s, float[6] b)",
    "y = Where(bool[3,4] c, float[3,4] a, float[3,4] b)",
    NULL};
/* clang-format on */

static inv_graph *read_case(const char *text, int opset, inv_dtype real)
{
    inv_graph *g;
    inv_id grad[MOST], seed[MOST];
    if (inv_case_parse(ctx, text, opset, real, &g) != INV_OK || inv_pass_lower(g) != INV_OK)
        fail_msg("%s: %s", text, inv_context_message(ctx));
    for (size_t i = 0; i < g->outputs.n; i++) seed[i] = INV_NONE;
    if (interp_grad(g, grad, seed) != INV_OK) { /* has none: the case alone */
        inv_graph_destroy(g);
        if (inv_case_parse(ctx, text, opset, real, &g) != INV_OK || inv_pass_lower(g) != INV_OK)
            fail_msg("%s: %s", text, inv_context_message(ctx));
        return g;
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (seed[i] != INV_NONE) assert_true(inv_vec_push(&g->arena, &g->inputs, seed[i]));
    return g;
}

/* The bits of operands that some output of the node might be written over. */
static uint32_t may_overwrite(const inv_graph *g, const inv_node *n)
{
    uint32_t bits = n->op->overwrites ? 0 : n->op->inplace;
    for (uint32_t o = 0; o < n->nout && n->op->overwrites; o++) bits |= n->op->overwrites(g, n, o);
    return bits;
}

static bool may_stand(const inv_graph *g, const inv_node *n, uint32_t k)
{
    return k < n->nin && n->in[k] != INV_NONE &&
           (inv_val(g, n->in[k])->role == INV_ROLE_INPUT || inv_val(g, n->in[k])->role == INV_ROLE_NODE);
}

static bool is_pair(const inv_graph *g, const inv_node *n, const pair *p)
{
    if (p->k == p->j || !(may_overwrite(g, n) >> p->k & 1) || !may_stand(g, n, p->k) || !may_stand(g, n, p->j))
        return false;
    const inv_value *x = inv_val(g, n->in[p->k]), *y = inv_val(g, n->in[p->j]);
    if (x->dtype != y->dtype || inv_shape_nelem(&x->shape) != inv_shape_nelem(&y->shape)) return false;
    return inv_shape_nelem(&x->shape) > 0 && (p->form != SAME || inv_shape_equal(&x->shape, &y->shape));
}

static inv_id view_of(inv_graph *g, inv_id v, const inv_shape *s)
{
    const inv_attr shape = inv_attr_of_ints("shape", (size_t)s->rank, s->dim);
    return inv_emit1(g, "View", INV_IN(v), 1, &shape);
}

/* Has the two operands read one tensor that is computed at the beginning. */
static void stand_for_both(inv_graph *g, const pair *p)
{
    const inv_ids old = g->order;
    const inv_id id = old.at[p->at];
    const inv_shape sk = inv_val(g, inv_nod(g, id)->in[p->k])->shape, sj = inv_val(g, inv_nod(g, id)->in[p->j])->shape;
    const int64_t all = inv_shape_nelem(&sk);
    const inv_shape flat = inv_shape_of(1, &all);
    const inv_attr shape = inv_attr_of_ints("shape", (size_t)sk.rank, sk.dim),
                   cut[] = {inv_attr_of_int("axis", 0), inv_attr_of_ints("sizes", 1, &all)};
    const inv_dtype t = inv_val(g, inv_nod(g, id)->in[p->k])->dtype;
    g->order = (inv_ids){0};
    g->phase = INV_FORWARD;
    const inv_id in = inv_graph_value(g, inv_graph_fresh(g, "both"), INV_ROLE_INPUT, t, &sk);
    const inv_id a = inv_emit1(g, "BroadcastTo", INV_IN(in), 1, &shape);
    inv_id b = a;
    if (p->form != SAME) b = view_of(g, a, &flat);
    if (p->form >= SLICED) b = inv_emit1(g, "SplitSizes", INV_IN(b), 2, cut);
    if (p->form != SAME) b = view_of(g, b, p->form == SLICED_FIRST ? &sk : &sj);
    const inv_id first = p->form == SLICED_FIRST ? b : a, second = p->form == SLICED_FIRST ? view_of(g, a, &sj) : b;
    if (first == INV_NONE || second == INV_NONE) fail_msg("%s", inv_context_message(ctx));
    assert_true(inv_vec_push(&g->arena, &g->inputs, in));
    inv_nod(g, id)->in[p->k] = first;
    inv_nod(g, id)->in[p->j] = second;
    for (size_t i = 0; i < old.n; i++) assert_true(inv_vec_push(&g->arena, &g->order, old.at[i]));
    g->forward_end = g->commit_begin = g->order.n;
}

/* Whatever nobody reads is a result. */
static void keep_results(inv_graph *g)
{
    bool *read = calloc(g->value.n + 1, sizeof *read);
    assert_non_null(read);
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) read[n->in[k]] = true;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && !read[n->out[k]]) inv_val(g, n->out[k])->keep = true;
    }
    free(read);
}

static void fill_inputs(interp *it)
{
    uint64_t state = 11;
    for (size_t i = 0; i < it->g->inputs.n; i++) interp_fill(it, it->g->inputs.at[i], &state);
}

static inv_graph *graph_of(const char *text, int opset, inv_dtype real, const pair *p, inv_id *node)
{
    inv_graph *g = read_case(text, opset, real);
    *node = g->order.at[p->at];
    stand_for_both(g, p);
    keep_results(g);
    return g;
}

static bool runs_on_device(const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_op_def *op = inv_nod(g, g->order.at[i])->op;
        if (op->flags & INV_OP_DEVICE_REAL && g->real != INV_F32 && g->real != INV_F64) return false;
        if (!(op->flags & INV_OP_VIEW) && !inv_op_on_device(op)) return false;
    }
    return true;
}

/* Whether the node was written over the operand. */
static bool is_over(const inv_graph *g, const inv_node *n, uint32_t k)
{
    bool any = false;
    for (uint32_t o = 0; o < n->nout; o++)
        any = any || (n->out[o] != INV_NONE && inv_val(g, n->out[o])->offset == inv_val(g, n->in[k])->offset);
    return any;
}

/* Whether float64 has come to the same nodes, so that ids and positions mean the same. */
static bool are_alike(const inv_graph *g, const inv_graph *d)
{
    bool alike = g->value.n == d->value.n && g->order.n == d->order.n;
    for (size_t v = 0; v < g->value.n && alike; v++)
        alike = strcmp(g->value.at[v].name, d->value.at[v].name) == 0 &&
                inv_shape_equal(&g->value.at[v].shape, &d->value.at[v].shape);
    return alike;
}

/* The numbers of float64. */
static void compare_double(interp *it, const char *text, int opset, const pair *p)
{
    interp d;
    inv_graph *single = read_case(text, opset, INV_F32), *g = read_case(text, opset, INV_F64);
    const bool alike = are_alike(single, g);
    inv_graph_destroy(single);
    if (!alike) {
        inv_graph_destroy(g);
        return;
    }
    stand_for_both(g, p);
    keep_results(g);
    interp_init(&d, g);
    fill_inputs(&d);
    const bool ran = interp_run(&d) == INV_OK; /* a device reports a division by zero later */
    for (size_t v = 0; v < it->n && ran; v++) {
        const inv_value *x = inv_val(it->g, (inv_id)v);
        if (!x->keep || x->dtype != INV_F32) continue;
        double most = 1;
        const int64_t n = inv_shape_nelem(&x->shape);
        for (int64_t i = 0; i < n; i++)
            if (isfinite(interp_get(&d, (inv_id)v, i))) most = fmax(most, fabs(interp_get(&d, (inv_id)v, i)));
        for (int64_t i = 0; i < n; i++) {
            const double have = interp_get(it, (inv_id)v, i), want = interp_get(&d, (inv_id)v, i);
            if (isfinite(want) && isfinite(have) && !(fabs(have - want) <= 1e-4 * most))
                fail_msg("%s: operands %u and %u, form %d: '%s' %g, float64 %g", text, p->k, p->j, (int)p->form,
                         x->name, have, want);
        }
    }
    interp_fini(&d);
}

static void check_pair(const char *text, int opset, inv_dtype real, const inv_gpu *gpu, const pair *p)
{
    interp it;
    inv_plan plan = {0};
    inv_id node;
    inv_graph *g = graph_of(text, opset, real, p, &node);
    g->gpu = gpu != NULL;
    interp_init(&it, g);
    it.gpu = gpu;
    fill_inputs(&it);
    if (!(gpu && !runs_on_device(g)) && interp_run(&it) == INV_OK) {
        void **want = calloc(it.n + 1, sizeof *want);
        assert_non_null(want);
        for (size_t v = 0; v < it.n; v++) {
            if (!inv_val(g, (inv_id)v)->keep) continue;
            want[v] = it.data[v];
            it.data[v] = NULL;
        }
        if (inv_pass_memplan(g, &plan, 1, 0) != INV_OK) fail_msg("%s: %s", text, inv_context_message(ctx));
        if (inv_plan_verify(g, &plan, NULL) != INV_OK) fail_msg("%s: %s", text, inv_context_message(ctx));
        seen++;
        over += is_over(g, inv_nod(g, node), p->k);
        interp_run_in_arena(&it);
        for (size_t v = 0; v < it.n; v++)
            if (want[v] && memcmp(want[v], it.data[v], interp_nbytes(g, (inv_id)v)) != 0)
                fail_msg("%s: operands %u and %u of node %zu, form %d%s: '%s' has other bits", text, p->k, p->j, p->at,
                         (int)p->form, gpu ? ", device" : "", inv_val(g, (inv_id)v)->name);
        if (real == INV_F32) compare_double(&it, text, opset, p);
        for (size_t v = 0; v < it.n; v++) free(want[v]);
        free(want);
    }
    interp_fini(&it);
}

static unsigned *tries_of(const inv_op_def *op)
{
    size_t i = 0;
    while (inv_registry_op_at(ctx->registry, i) != op) i++;
    assert_true(i < ROWS);
    return &tried[i];
}

/* Operators of the commit part change what persists, and are none of a plan's transient values. */
static bool is_left_out(const inv_op_def *op)
{
    return op->writes || op->flags & (INV_OP_VIEW | INV_OP_SOURCE | INV_OP_STEP | INV_OP_EXCHANGES | INV_OP_TRANSFER);
}

static void check_case(const char *text, int opset, const inv_gpu *gpu)
{
    inv_graph *g = read_case(text, opset, INV_F32);
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const size_t before = seen;
        if (is_left_out(n->op) || *tries_of(n->op) == NODES) continue;
        for (uint32_t k = 0; k < n->nin && k < 32; k++)
            for (uint32_t j = 0; j < n->nin; j++)
                for (int f = 0; f < FORMS; f++) {
                    const pair p = {i, k, j, (form)f};
                    if (!is_pair(g, n, &p)) continue;
                    check_pair(text, opset, INV_F32, gpu, &p);
                    if (!gpu) check_pair(text, opset, INV_F64, gpu, &p);
                }
        *tries_of(n->op) += seen > before;
    }
    inv_graph_destroy(g);
}

static void check_all(const inv_gpu *gpu)
{
    for (const char *const *text = more; *text; text++) check_case(*text, 0, gpu);
    for (size_t i = 0; i < inv_registry_nops(ctx->registry); i++) {
        const inv_op_def *op = inv_registry_op_at(ctx->registry, i);
        if (op->flags & INV_OP_EXCHANGES || strcmp(op->name, "SequenceOf") == 0) continue;
        for (const char *const *text = op->cases; text && *text; text++) check_case(*text, op->until, gpu);
    }
}

static void all_pairs_on_the_host(void **state)
{
    (void)state;
    seen = over = 0;
    memset(tried, 0, sizeof tried);
    check_all(NULL);
    print_message("%zu pairs, %zu in place\n", seen, over);
    assert_true(seen > 300);
    assert_true(over > 50);
}

static void all_pairs_on_a_device(void **state)
{
    (void)state;
    static uint64_t fault;
    static unsigned turn;
    static inv_gpu_step step;
    static double drift[8];
    inv_gpu gpu = {.fault = &fault, .turn = &turn, .step = &step, .drift = drift};
    inv_gpu_emulate(&gpu);
    seen = over = 0;
    memset(tried, 0, sizeof tried);
    check_all(&gpu);
    print_message("%zu pairs, %zu in place\n", seen, over);
    assert_true(seen > 100);
    assert_true(over > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_pairs_on_the_host),
                                       cmocka_unit_test(all_pairs_on_a_device)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
