/* SPDX-License-Identifier: Apache-2.0
 * TopKN: the k largest or smallest along an axis and where they are. TopK, ArgMax and ArgMin lower to it. NaN counts as
 * larger than all numbers. Sources: the ONNX operator specifications. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/reduce/topk_gpu.h"

static inv_topk topk_of(const inv_node *n, const inv_shape *s, inv_dtype t)
{
    const int axis = (int)inv_attr_int(n, "axis", 0);
    return (inv_topk){.rows = inv_prod(s, 0, axis),
                      .d = s->dim[axis],
                      .inner = inv_prod(s, axis + 1, s->rank),
                      .k = inv_attr_int(n, "k", 1),
                      .t = t,
                      .largest = inv_attr_int(n, "largest", 1) != 0,
                      .last = inv_attr_int(n, "last", 0) != 0};
}

static inv_status topk_infer(inv_graph *g, inv_node *n)
{
    inv_shape s = *inv_in_shape(g, n, 0);
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const int64_t axis = inv_attr_int(n, "axis", 0), k = inv_attr_int(n, "k", 1);
    if (axis < 0 || axis >= s.rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axis, s.rank);
    if (k < 0 || k > s.dim[axis]) {
        inv_note_misfit(g, 1, s.dim[axis], k);
        return inv_node_fail(g, n, INV_E_SHAPE, "k is %lld; axis %lld has only %lld elements", (long long)k,
                             (long long)axis, (long long)s.dim[axis]);
    }
    if (inv_dtype_size(t) == 0 || inv_dtype_size(t) > 8 || t == INV_C64 || (inv_dtype_is_float(t) && t < INV_F32))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "numbers with an order are wanted, not %s",
                             inv_dtype_name(t));
    s.dim[axis] = k;
    inv_set_out(g, n, 0, t, &s);
    inv_set_out(g, n, 1, INV_I64, &s);
    return INV_OK;
}

/* Lists of the k first found so far are heaps, the one that goes next on top; list[j * step]. */
typedef struct line {
    const inv_topk *p;
    const void *x;
    int64_t base, step, *list;
} line;

static uint64_t key_of(const line *l, int64_t i) { return inv_topk_key(l->p, l->x, l->base + i * l->step); }

static bool later(const line *l, int64_t i, int64_t j)
{
    return inv_topk_before(l->p, key_of(l, j), j, key_of(l, i), i);
}

static void sift_down(const line *l, int64_t n, int64_t i)
{
    int64_t at = 0;
    for (int64_t child = 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && later(l, l->list[(child + 1) * l->step], l->list[child * l->step])) child++;
        if (!later(l, l->list[child * l->step], i)) break;
        l->list[at * l->step] = l->list[child * l->step];
        at = child;
    }
    l->list[at * l->step] = i;
}

static void sift_up(const line *l, int64_t at, int64_t i)
{
    for (; at > 0 && later(l, i, l->list[(at - 1) / 2 * l->step]); at = (at - 1) / 2)
        l->list[at * l->step] = l->list[(at - 1) / 2 * l->step];
    l->list[at * l->step] = i;
}

static void first_of_line(const line *l)
{
    const int64_t k = l->p->k;
    for (int64_t i = 0; i < k; i++) sift_up(l, i, i);
    uint64_t top = key_of(l, l->list[0]);
    for (int64_t i = k; i < l->p->d; i++) {
        if (!inv_topk_before(l->p, key_of(l, i), i, top, l->list[0])) continue;
        sift_down(l, k, i);
        top = key_of(l, l->list[0]);
    }
    for (int64_t n = k - 1; n > 0; n--) {
        const int64_t last = l->list[0], end = l->list[n * l->step];
        sift_down(l, n, end);
        l->list[n * l->step] = last;
    }
}

static size_t topk_workspace(const inv_graph *g, const inv_node *n)
{
    const inv_topk p = topk_of(n, inv_in_shape(g, n, 0), inv_in_dtype(g, n, 0));
    return g->gpu || !inv_has_out(n, 1) ? (size_t)(p.rows * p.k * p.inner) * sizeof(int64_t) : 0;
}

static inv_status topk_run(const inv_call *c)
{
    const inv_topk p = topk_of(c->node, &c->in[0].shape, c->in[0].dtype);
    int64_t *indices = c->nout > 1 ? c->out[1].data : NULL;
    char *values = c->out[0].data;
    const size_t esize = inv_dtype_size(p.t);
    const char *x = c->in[0].data;
    if (p.rows * p.inner == 0 || p.k == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, topk, &p, x, values, indices, c->ws);
        return INV_OK;
    }
    if (indices == NULL) indices = c->ws;
    if (indices == NULL) return INV_E_INTERNAL;
#pragma omp parallel for schedule(static) if (c->in[0].n > INV_OMP_MIN / 4)
    for (int64_t i = 0; i < p.rows * p.inner; i++) {
        const int64_t row = i / p.inner, col = i % p.inner, to = row * p.k * p.inner + col;
        const line l = {&p, x, row * p.d * p.inner + col, p.inner, indices + to};
        first_of_line(&l);
        for (int64_t j = 0; j < p.k && values; j++)
            memcpy(values + (size_t)(to + j * p.inner) * esize,
                   x + (size_t)(l.base + l.list[j * p.inner] * p.inner) * esize, esize);
    }
    return INV_OK;
}

static inv_status topk_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_shape s = *inv_in_shape(b->g, n, 0);
    const int64_t axis = inv_attr_int(n, "axis", 0);
    inv_grad_set(b, 0,
                 inv_emit1(b->g, "GatherNDGrad", INV_IN(inv_GO(b, 0), inv_O(b, 1)),
                           INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_shape("shape", &s))));
    return inv_grad_done(b);
}

/* --- ONNX --- */
static inv_status emit_topk(inv_graph *g, const inv_node *n, int axis, int64_t k, bool largest, bool last, inv_id *out)
{
    const inv_id id = inv_emit(g, "TopKN", 2, INV_IN(n->in[0]),
                               INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_int("k", k),
                                         inv_attr_of_int("largest", largest), inv_attr_of_int("last", last)));
    if (id == INV_NONE) return g->failed;
    out[0] = inv_nod(g, id)->out[0];
    out[1] = inv_nod(g, id)->out[1];
    return inv_done(g);
}

static inv_status onnx_topk_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    size_t count;
    int64_t k = inv_attr_int(n, "k", 0);
    inv_id both[2];
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), inv_in_shape(g, n, 0)->rank, &axis));
    if (inv_has_in(n, 1)) {
        INV_TRY(inv_node_need_const(g, n, n->in[1], "K"));
        if (!inv_const_ints(g, n->in[1], 1, &k, &count) || count != 1)
            return inv_node_fail(g, n, INV_E_SHAPE, "K (input 1) must be one integer");
    }
    INV_TRY(emit_topk(g, n, axis, k, inv_attr_int(n, "largest", 1) != 0, false, both));
    for (uint32_t i = 0; i < n->nout && i < 2; i++) out[i] = both[i];
    return INV_OK;
}

static inv_status arg_lower(inv_graph *g, const inv_node *n, bool largest, inv_id *out)
{
    int axis;
    inv_id both[2];
    inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), s.rank, &axis));
    inv_node of = *n;
    inv_id turned;
    if (!largest && inv_dtype_is_float(inv_in_dtype(g, n, 0))) { /* NaN is what both find: the largest of -x */
        turned = inv_emit1(g, "Neg", INV_IN(n->in[0]), INV_NOATTR);
        if (turned == INV_NONE) return inv_done(g);
        of.in = &turned;
        n = &of;
        largest = true;
    }
    INV_TRY(emit_topk(g, n, axis, 1, largest, inv_attr_int(n, "select_last_index", 0) != 0, both));
    s.dim[axis] = 1;
    if (inv_attr_int(n, "keepdims", 1) == 0) {
        for (int i = axis; i + 1 < s.rank; i++) s.dim[i] = s.dim[i + 1];
        s.rank--;
    }
    out[0] = inv_emit_view(g, both[1], &s);
    return inv_done(g);
}
static inv_status argmax_lower(inv_graph *g, const inv_node *n, inv_id *out) { return arg_lower(g, n, true, out); }
static inv_status argmin_lower(inv_graph *g, const inv_node *n, inv_id *out) { return arg_lower(g, n, false, out); }

/* clang-format off */
/* --- rows --- */
static const char *const topk_cases[] = {
    "v, i = TopKN<axis = 1, k = 2>(float[2,5] x)",
    "v, i = TopKN<axis = 0, k = 3, largest = 0>(float[4,3] x)",
    "v, i = TopKN<axis = 1, k = 5, last = 1>(int64[2,7,2] x)",
    "v, i = TopKN<axis = 1, k = 4, largest = 0>(int8[2,6] x)",
    "v, i = TopKN<axis = 0, k = 40>(float[300] x)",
    "v, i = TopKN<axis = 0, k = 5>(bool[9] x)",
    "v, i = TopKN<axis = 0, k = 1>(float[1] x)",
    "v, i = TopKN<axis = 0, k = 0>(float[3] x)",
    "v, i = TopKN<axis = 1, k = 2>(float[0,3] x)", NULL};
static const inv_op_def topk_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "TopKN", .since = 1, .in = "x", .out = "values indices",
    .infer = topk_infer, .grad = topk_grad, .run = topk_run,
    .work = inv_work_scalar, .workspace = topk_workspace,
    .flops = inv_flops_in, .cases = topk_cases,
    .doc = "the k largest (smallest) along axis, sorted, and their indices; of equal ones the first (last)"};
/* clang-format on */

INV_LOWERED(onnx_topk, "TopK", 1, "X K?", "Values Indices?", "to TopKN; K must be constant. ONNX TopK-1, -10, -11, -24",
            "k = Constant<value_ints = [2]>()\nv, i = TopK<axis = 0, largest = 0>(float[4,3] x, k)",
            "k = Constant<value_ints = [3]>()\nv, i = TopK(float[2,5] x, k)")

/* clang-format off */
#define ARG_ROW(id, op, text)                                                                                         \
    static const char *const id##_cases[] = {"y = " op "<axis = 1>(float[2,5] x)",                                    \
                                             "y = " op "<axis = -2, keepdims = 0>(float[2,3,2] x)",                   \
                                             "y = " op "<select_last_index = 1>(int32[7,1] x)", NULL};                \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "", .name = op, .since = 1, .in = "data", .out = "reduced",             \
        .flags = INV_OP_NO_GRAD, .lower = id##_lower, .cases = id##_cases,               \
        .doc = text ". ONNX " op "-1, -11, -12, -13"};
/* clang-format on */
ARG_ROW(argmax, "ArgMax", "where the largest is; to TopKN")
ARG_ROW(argmin, "ArgMin", "where the smallest is; to TopKN")

const inv_op_def *const inv_ops_topk[] = {&topk_row, &onnx_topk_row, &argmax_row, &argmin_row, NULL};
