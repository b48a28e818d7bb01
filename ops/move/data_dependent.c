/* SPDX-License-Identifier: Apache-2.0
 * Operators whose result's shape depends on data: NonZero, Compress, Unique, NonMaxSuppression. Shapes are static, so
 * what decides them must be constant when the model is compiled; then only constant indices are left of them.
 * Sources: the ONNX operator specifications. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/reduce/topk_gpu.h"

/* The data of input i, which decides the result's shape. */
static inv_status need_data(const inv_graph *g, const inv_node *n, uint32_t i, const char *name, inv_data *out)
{
    const inv_value *v = inv_val(g, n->in[i]);
    *out = (inv_data){v->data.dtype, v->shape, v->data.bytes, v->data.nbytes};
    INV_TRY(inv_node_need_const(g, n, n->in[i], name));
    if (v->data.bytes != NULL || inv_shape_nelem(&v->shape) == 0) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "the data of %s (input %u) are not known", name, i);
}

static int64_t *integers(inv_graph *g, int64_t n) { return INV_ARENA_NEW(&g->arena, int64_t, (size_t)n + 1); }

static inv_id constant_matrix(inv_graph *g, int64_t rows, int64_t columns, const int64_t *v)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){rows, columns});
    return inv_graph_const(g, INV_I64, &s, v);
}

/* Stable merge sort of 0..n-1; spare: n. */
typedef bool (*before_f)(const void *arg, int64_t i, int64_t j);
static void sort_indices(int64_t n, int64_t *at, int64_t *spare, before_f before, const void *arg)
{
    for (int64_t i = 0; i < n; i++) at[i] = i;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t from = 0; from < n; from += 2 * width) {
            const int64_t mid = from + width < n ? from + width : n, end = mid + width < n ? mid + width : n;
            int64_t a = from, b = mid;
            for (int64_t k = from; k < end; k++)
                spare[k] = a < mid && (b >= end || !before(arg, at[b], at[a])) ? at[a++] : at[b++];
        }
        memcpy(at, spare, (size_t)n * sizeof *at);
    }
}

/* --- NonZero --- */
static inv_status nonzero_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_data x;
    INV_TRY(need_data(g, n, 0, "X", &x));
    const int64_t count = inv_shape_nelem(&x.shape);
    int64_t *at = integers(g, count), found = 0;
    if (at == NULL) return INV_E_NOMEM;
    for (int64_t i = 0; i < count; i++) {
        const bool real = inv_dtype_is_float(x.dtype);
        if (real ? inv_elem_double(x.bytes, x.dtype, (size_t)i) != 0 : inv_elem_int(x.bytes, x.dtype, (size_t)i) != 0)
            at[found++] = i;
    }
    const int64_t rank = x.shape.rank > 0 ? x.shape.rank : 1; /* a scalar counts as one element */
    int64_t *place = integers(g, rank * found);
    if (place == NULL) return INV_E_NOMEM;
    for (int64_t k = 0; k < found; k++) {
        for (int a = (int)rank - 1; a >= 0; a--) {
            const int64_t d = x.shape.rank > 0 ? x.shape.dim[a] : 1;
            place[a * found + k] = at[k] % d;
            at[k] /= d;
        }
    }
    out[0] = constant_matrix(g, rank, found, place);
    return inv_done(g);
}

/* --- Compress: Gather where the condition holds --- */
static inv_status compress_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_data cond;
    int axis = 0;
    INV_TRY(need_data(g, n, 1, "condition", &cond));
    const inv_shape s = *inv_in_shape(g, n, 0);
    const inv_attr *a = inv_attr_find(n, "axis");
    if (a) INV_TRY(inv_axis(g, n, a->i, s.rank, &axis));
    const int64_t all = inv_shape_nelem(&s), extent = a ? s.dim[axis] : all, count = inv_shape_nelem(&cond.shape);
    const inv_shape flat = inv_shape_of(1, &all);
    int64_t *at = integers(g, count), found = 0;
    if (at == NULL) return INV_E_NOMEM;
    if (cond.shape.rank != 1 || count > extent)
        return inv_node_fail(g, n, INV_E_SHAPE, "the condition must be a list of at most %lld", (long long)extent);
    for (int64_t i = 0; i < count; i++)
        if (inv_elem_int(cond.bytes, cond.dtype, (size_t)i) != 0) at[found++] = i;
    out[0] =
        inv_emit1(g, "Gather",
                  INV_IN(a ? n->in[0] : inv_emit_view(g, n->in[0], &flat), inv_graph_const_ints(g, (size_t)found, at)),
                  INV_ATTRS(inv_attr_of_int("axis", axis)));
    return inv_done(g);
}

/* --- Unique: slices along an axis in order; Y is gathered --- */
typedef struct slices {
    inv_data x;
    int64_t rows, d, inner;
} slices;

static uint64_t order_at(const inv_data *x, int64_t i)
{
    if (inv_dtype_is_float(x->dtype)) return inv_order_f64(inv_elem_double(x->bytes, x->dtype, (size_t)i));
    return (uint64_t)inv_elem_int(x->bytes, x->dtype, (size_t)i) ^ (x->dtype == INV_U64 ? 0 : (uint64_t)1 << 63);
}

static int compare_slices(const slices *s, int64_t i, int64_t j)
{
    for (int64_t r = 0; r < s->rows; r++) {
        for (int64_t k = 0; k < s->inner; k++) {
            const uint64_t a = order_at(&s->x, (r * s->d + i) * s->inner + k),
                           b = order_at(&s->x, (r * s->d + j) * s->inner + k);
            if (a != b) return a < b ? -1 : 1;
        }
    }
    return 0;
}
static bool slice_before(const void *s, int64_t i, int64_t j) { return compare_slices(s, i, j) < 0; }
static bool number_before(const void *v, int64_t i, int64_t j)
{
    return ((const int64_t *)v)[i] < ((const int64_t *)v)[j];
}

static inv_status unique_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    slices s;
    int axis = 0;
    INV_TRY(need_data(g, n, 0, "X", &s.x));
    const inv_attr *a = inv_attr_find(n, "axis");
    if (a) INV_TRY(inv_axis(g, n, a->i, s.x.shape.rank, &axis));
    const int64_t all = inv_shape_nelem(&s.x.shape);
    const inv_shape flat = inv_shape_of(1, &all), shape = a ? s.x.shape : flat;
    s.rows = inv_prod(&shape, 0, axis);
    s.d = shape.dim[axis];
    s.inner = inv_prod(&shape, axis + 1, shape.rank);
    int64_t *order = integers(g, s.d), *spare = integers(g, s.d), *first = integers(g, s.d), *times = integers(g, s.d),
            *of = integers(g, s.d), *place = integers(g, s.d), found = 0;
    if (!order || !spare || !first || !times || !of || !place) return INV_E_NOMEM;
    sort_indices(s.d, order, spare, slice_before, &s);
    for (int64_t k = 0; k < s.d; k++) { /* equal ones stand in the order of their indices */
        if (k == 0 || compare_slices(&s, order[k - 1], order[k]) != 0) first[found++] = order[k];
        of[order[k]] = found - 1;
        times[found - 1]++;
    }
    if (inv_attr_int(n, "sorted", 1))
        for (int64_t k = 0; k < found; k++) order[k] = k;
    else sort_indices(found, order, spare, number_before, first);
    int64_t *lists[3] = {spare, integers(g, s.d), integers(g, s.d)};
    if (!lists[1] || !lists[2]) return INV_E_NOMEM;
    for (int64_t k = 0; k < found; k++) place[order[k]] = k;
    for (int64_t k = 0; k < found; k++) lists[0][k] = first[order[k]];
    for (int64_t k = 0; k < s.d; k++) lists[1][k] = place[of[k]];
    for (int64_t k = 0; k < found; k++) lists[2][k] = times[order[k]];
    const inv_id indices = inv_graph_const_ints(g, (size_t)found, lists[0]);
    out[0] = inv_emit1(g, "Gather", INV_IN(a ? n->in[0] : inv_emit_view(g, n->in[0], &flat), indices),
                       INV_ATTRS(inv_attr_of_int("axis", axis)));
    if (n->nout > 1) out[1] = indices;
    if (n->nout > 2) out[2] = inv_graph_const_ints(g, (size_t)s.d, lists[1]);
    if (n->nout > 3) out[3] = inv_graph_const_ints(g, (size_t)found, lists[2]);
    return inv_done(g);
}

/* --- NonMaxSuppression: of boxes that overlap much, the one with the best score --- */
typedef struct box {
    double y0, x0, y1, x1;
} box;

static box box_at(const inv_data *boxes, int64_t i, bool center)
{
    double v[4];
    for (int k = 0; k < 4; k++) v[k] = inv_elem_double(boxes->bytes, boxes->dtype, (size_t)(i * 4 + k));
    if (center) return (box){v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
    return (box){fmin(v[0], v[2]), fmin(v[1], v[3]), fmax(v[0], v[2]), fmax(v[1], v[3])};
}

/* Intersection over union. */
static double overlap(const box *a, const box *b)
{
    const double h = fmin(a->y1, b->y1) - fmax(a->y0, b->y0), w = fmin(a->x1, b->x1) - fmax(a->x0, b->x0);
    if (h <= 0 || w <= 0) return 0;
    return h * w / ((a->y1 - a->y0) * (a->x1 - a->x0) + (b->y1 - b->y0) * (b->x1 - b->x0) - h * w);
}

static bool better(const void *scores, int64_t i, int64_t j)
{
    return ((const double *)scores)[i] > ((const double *)scores)[j];
}

static inv_status number_of(const inv_graph *g, const inv_node *n, uint32_t i, const char *name, double dflt,
                            double *out)
{
    inv_data v;
    *out = dflt;
    if (!inv_has_in(n, i)) return INV_OK;
    INV_TRY(need_data(g, n, i, name, &v));
    if (inv_shape_nelem(&v.shape) != 1) return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be one number", i);
    *out = inv_elem_double(v.bytes, v.dtype, 0);
    return INV_OK;
}

typedef struct suppression {
    inv_data boxes, scores;
    bool center;
    double most, iou, threshold;
    int64_t *order, *spare;
    double *score;
    int64_t *result, found;
} suppression;

static void suppress(suppression *s, int64_t batch, int64_t class)
{
    const int64_t count = s->boxes.shape.dim[1], classes = s->scores.shape.dim[1], begin = s->found;
    for (int64_t i = 0; i < count; i++)
        s->score[i] =
            inv_elem_double(s->scores.bytes, s->scores.dtype, (size_t)((batch * classes + class) * count + i));
    sort_indices(count, s->order, s->spare, better, s->score);
    for (int64_t k = 0; k < count && (double)(s->found - begin) < s->most; k++) {
        const int64_t i = s->order[k];
        const box b = box_at(&s->boxes, batch * count + i, s->center);
        bool taken = s->score[i] > s->threshold;
        for (int64_t j = begin; j < s->found && taken; j++) {
            const box other = box_at(&s->boxes, batch * count + s->result[j * 3 + 2], s->center);
            taken = overlap(&b, &other) <= s->iou;
        }
        if (!taken) continue;
        memcpy(&s->result[s->found * 3], (int64_t[]){batch, class, i}, 3 * sizeof(int64_t));
        s->found++;
    }
}

static inv_status suppression_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    suppression s = {.center = inv_attr_int(n, "center_point_box", 0) != 0};
    INV_TRY(need_data(g, n, 0, "boxes", &s.boxes));
    INV_TRY(need_data(g, n, 1, "scores", &s.scores));
    INV_TRY(number_of(g, n, 2, "max_output_boxes_per_class", 0, &s.most));
    INV_TRY(number_of(g, n, 3, "iou_threshold", 0, &s.iou));
    INV_TRY(number_of(g, n, 4, "score_threshold", -HUGE_VAL, &s.threshold));
    const inv_shape *b = &s.boxes.shape, *c = &s.scores.shape;
    if (b->rank != 3 || b->dim[2] != 4 || c->rank != 3 || c->dim[0] != b->dim[0] || c->dim[2] != b->dim[1])
        return inv_node_fail(g, n, INV_E_SHAPE, "boxes must be [batch, boxes, 4], scores [batch, classes, boxes]");
    const int64_t count = b->dim[1];
    s.order = integers(g, count);
    s.spare = integers(g, count);
    s.score = INV_ARENA_NEW(&g->arena, double, (size_t)count + 1);
    s.result = integers(g, 3 * inv_shape_nelem(c));
    if (!s.order || !s.spare || !s.score || !s.result) return INV_E_NOMEM;
    for (int64_t batch = 0; batch < c->dim[0]; batch++)
        for (int64_t class = 0; class < c->dim[1]; class ++) suppress(&s, batch, class);
    out[0] = constant_matrix(g, s.found, 3, s.result);
    return inv_done(g);
}

/* clang-format off */
/* --- rows --- */
/* clang-format on */
#define REALS(name, list) name " = Constant<value_floats = [" list "]>()\n"
#define BOXES                                                                  \
    REALS("a", "0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, 10.0, 1.0, 11.0") \
    "b = Reshape(a, int64[3]{1,3,4})\n" REALS("c", "0.9, 0.75, 0.6") "s = Reshape(c, int64[3]{1,1,3})\n"

INV_LOWERED_FLAGS(nonzero, "NonZero", 9, "X", "Y", INV_OP_NO_GRAD,
                  "where X is not 0; X must be constant. ONNX NonZero-9, -13", "y = NonZero(int64[2,3]{1,0,2,0,0,-1})",
                  REALS("x", "0.0, 0.5") "y = NonZero(x)")
INV_LOWERED(compress, "Compress", 9, "input condition", "output",
            "parts where the condition, which must be constant, holds; to Gather. ONNX Compress-9, -11",
            "y = Compress<axis = -1>(float[2,3] x, bool[3]{1,0,1})", "y = Compress(float[2,2] x, bool[3]{0,1,1})",
            "y = Compress<axis = 0>(float[2,2] x, bool[1]{0})")
INV_LOWERED_FLAGS(unique, "Unique", 11, "X", "Y indices? inverse_indices? counts?", INV_OP_NO_GRAD,
                  "the different numbers or slices; X must be constant; NaN equals NaN. ONNX Unique-11",
                  "y, i, v, c = Unique(int64[6]{2,1,1,3,4,3})",
                  "y, i, v, c = Unique<sorted = 0>(int64[6]{2,1,1,3,4,3})",
                  "y, i = Unique<axis = 1>(int64[2,3]{1,0,1,1,0,1})")
/* clang-format off */
INV_LOWERED_FLAGS(suppression, "NonMaxSuppression", 10,
        "boxes scores max_output_boxes_per_class? iou_threshold? score_threshold?", "selected_indices", INV_OP_NO_GRAD,
        "the best of boxes that overlap; all inputs must be constant. ONNX NonMaxSuppression-10, -11",
        BOXES INV_INTS("m", "2") REALS("t", "0.5") "y = NonMaxSuppression(b, s, m, t)",
        BOXES INV_INTS("m", "3") REALS("t", "0.5") REALS("u", "0.7")
        "y = NonMaxSuppression<center_point_box = 1>(b, s, m, t, u)")
/* clang-format on */

const inv_op_def *const inv_ops_dynamic[] = {&nonzero_row, &compress_row, &unique_row, &suppression_row, NULL};
