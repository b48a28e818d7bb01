/* SPDX-License-Identifier: Apache-2.0
 * Resize and Upsample lower to ResizeN, where the output's shape is an attribute, and so are scales unless they are
 * exactly output / input. Nearest and linear; linear interpolation is separable, axis by axis in one pass. The gradient
 * is a gather. Wider kernels (cubic, antialias) are products with a constant matrix per axis. Sources: the ONNX
 * operator specifications. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/image/resize_gpu.h"

#define INV_BOTH "ops/image/resize_kernels.inc"
#include "ops/base/both_reals.inc"

static const char *const coordinates[] = {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                                          "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize", NULL};
static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil", NULL};

/* `dflt` for every axis, or a list of `rank` numbers. */
static bool reals_of(const inv_node *n, const char *name, int rank, double dflt, double *out)
{
    const inv_attr *a = inv_attr_find(n, name);
    for (int i = 0; i < rank; i++) out[i] = dflt;
    if (a == NULL || a->n == 0) return true;
    if (a->n != (size_t)rank || (a->kind != INV_ATTR_FLOATS && a->kind != INV_ATTR_INTS)) return false;
    for (int i = 0; i < rank; i++) out[i] = a->kind == INV_ATTR_FLOATS ? a->floats[i] : (double)a->ints[i];
    return true;
}

/* Neighbouring axes that stay as they are become one. */
static void merge(const inv_resize *all, inv_resize *r)
{
    r->rank = 0;
    r->taps = r->ranges = 0;
    for (int i = 0; i < all->rank; i++) {
        if (all->same[i] && r->rank > 0 && r->same[r->rank - 1]) {
            r->in[r->rank - 1] *= all->in[i];
            r->out[r->rank - 1] *= all->in[i];
            continue;
        }
        const int a = r->rank++;
        r->same[a] = all->same[i];
        r->exact[a] = all->exact[i];
        r->in[a] = all->in[i];
        r->out[a] = all->out[i];
        r->scale[a] = all->scale[i];
        r->begin[a] = all->begin[i];
        r->end[a] = all->end[i];
        r->tap[a] = r->taps;
        r->range[a] = r->ranges;
        r->taps += r->same[a] ? 0 : r->out[a];
        r->ranges += r->same[a] ? 0 : r->in[a];
    }
    if (r->rank > 0) return;
    r->rank = 1; /* a scalar */
    r->same[0] = true;
    r->in[0] = r->out[0] = 1;
}

/* From the node's attributes and the shapes of x and y. NULL, or what is wrong. */
static const char *resize_of(const inv_node *n, const inv_shape *x, const inv_shape *y, inv_resize *r)
{
    inv_resize all;
    int resized = 0;
    memset(&all, 0, sizeof all);
    const char *mode = inv_attr_string(n, "mode", "nearest");
    all.rank = x->rank;
    all.linear = strcmp(mode, "linear") == 0;
    all.coordinate = inv_index_of(coordinates, inv_attr_string(n, "coordinate_transformation_mode", "half_pixel"));
    all.nearest = inv_index_of(roundings, inv_attr_string(n, "nearest_mode", "round_prefer_floor"));
    all.outside = inv_attr_float(n, "extrapolation_value", 0);
    if (!all.linear && strcmp(mode, "nearest") != 0) return "mode must be nearest or linear; cubic is not supported";
    if (all.coordinate < 0) return "coordinate_transformation_mode is none of those that ONNX defines";
    if (all.nearest < 0) return "nearest_mode must be round_prefer_floor, round_prefer_ceil, floor or ceil";
    if (x->rank != y->rank || x->rank < 0) return "input and output must have the same rank";
    const bool crop = all.coordinate == INV_TF_CROP_AND_RESIZE;
    if (!reals_of(n, "scales", x->rank, 0, all.scale)) return "scales needs one number per axis";
    if (!reals_of(n, "roi_begin", x->rank, 0, all.begin) || !reals_of(n, "roi_end", x->rank, 1, all.end))
        return "roi needs two numbers per axis";
    for (int i = 0; i < x->rank; i++) {
        all.in[i] = x->dim[i];
        all.out[i] = y->dim[i];
        if (x->dim[i] < 1 && y->dim[i] > 0) return "an axis of extent 0 can not be made longer";
        if (x->dim[i] > INT32_MAX || y->dim[i] > INT32_MAX) return "an axis is too long";
        all.exact[i] = all.scale[i] == 0 || all.scale[i] == (double)y->dim[i] / (double)x->dim[i];
        if (all.exact[i]) all.scale[i] = x->dim[i] > 0 ? (double)y->dim[i] / (double)x->dim[i] : 1;
        if (!(all.scale[i] > 0 && all.scale[i] < 1e9) && y->dim[i] > 0) return "scales must be positive";
        if (!(all.begin[i] <= all.end[i]) || !isfinite(all.begin[i]) || !isfinite(all.end[i]))
            return "a region of interest that runs backwards is not supported";
        /* Axes that stay as they are, also where the formula of tf_half_pixel_for_nn would shift them by a half. */
        all.same[i] = all.in[i] == all.out[i] && all.exact[i] && (!crop || (all.begin[i] == 0 && all.end[i] == 1));
        resized += !all.same[i];
    }
    if (all.linear && resized > INV_RESIZE_AXES) return "linear interpolation along more than 3 axes is not supported";
    *r = all;
    merge(&all, r);
    return NULL;
}

static bool resize_is_grad(const inv_node *n) { return strcmp(n->op_type, "ResizeGrad") == 0; }

/* `in` is the shape of operand 0: x, or gy; the other one's is an attribute. */
static const char *resize_geometry(const inv_node *n, const inv_shape *in, inv_resize *r)
{
    const inv_shape other = inv_attr_shape(n, "shape");
    return resize_is_grad(n) ? resize_of(n, &other, in, r) : resize_of(n, in, &other, r);
}

static inv_status resize_infer(inv_graph *g, inv_node *n)
{
    inv_resize r;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_infer_attr_shape(g, n));
    const char *why = resize_geometry(n, inv_in_shape(g, n, 0), &r);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    return INV_OK;
}

static size_t resize_workspace(const inv_graph *g, const inv_node *n)
{
    inv_resize r;
    if (resize_geometry(n, inv_in_shape(g, n, 0), &r)) return 0;
    return inv_resize_workspace(&r, resize_is_grad(n));
}

static void resize_host(const inv_call *c, const inv_resize *r, const inv_tap *tap)
{
    const int64_t inner = r->out[r->rank - 1], rows = c->out[0].n / inner;
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN)
    for (int64_t row = 0; row < rows; row++) {
        INV_REAL(c->out[0].dtype, resize_part, r, tap, c->in[0].data, c->out[0].data, row, 0, inner);
    }
}

static void resize_grad_host(const inv_call *c, const inv_resize *r, const inv_tap *tap, inv_range *range)
{
    const int64_t inner = r->in[r->rank - 1], rows = c->out[0].n / inner;
    for (int64_t e = 0; e < r->ranges; e++) {
        int64_t i;
        const int a = inv_resize_axis(r, r->range, e, &i);
        range[e] = inv_resize_range(r, tap, a, i);
    }
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN)
    for (int64_t row = 0; row < rows; row++) {
        INV_REAL(c->out[0].dtype, resize_grad_part, r, tap, range, c->in[0].data, c->out[0].data, row, 0, inner);
    }
}

static inv_status resize_run(const inv_call *c)
{
    inv_resize r;
    const bool grad = resize_is_grad(c->node);
    if (resize_geometry(c->node, &c->in[0].shape, &r)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    if (c->ws_nbytes < inv_resize_workspace(&r, grad)) return INV_E_INTERNAL;
    if (c->gpu) {
        if (grad) INV_GPU(c->gpu, resize_grad, &r, c->out[0].dtype, c->in[0].data, c->out[0].data, c->ws);
        else INV_GPU(c->gpu, resize, &r, c->out[0].dtype, c->in[0].data, c->out[0].data, c->ws);
        return INV_OK;
    }
    inv_tap *tap = c->ws;
    for (int64_t e = 0; e < r.taps; e++) {
        int64_t o;
        const int a = inv_resize_axis(&r, r.tap, e, &o);
        tap[e] = inv_resize_tap(&r, a, o);
    }
    if (grad) resize_grad_host(c, &r, tap, (inv_range *)(void *)(tap + r.taps));
    else resize_host(c, &r, tap);
    return INV_OK;
}

static double resize_flops(const inv_graph *g, const inv_node *n)
{
    inv_resize r;
    if (resize_geometry(n, inv_in_shape(g, n, 0), &r)) return 0;
    double reads = 1, all = 1;
    for (int a = 0; a < r.rank; a++) {
        reads *= r.linear && !r.same[a] ? 2 : 1;
        all *= (double)r.out[a];
    }
    return reads > 1 ? 2 * reads * all : resize_is_grad(n) ? all : 0;
}

/* The same resizing, or its gradient to an input of that shape, of v. */
static inv_id emit_like(inv_graph *g, const char *op, const inv_node *n, inv_id v, const inv_shape *shape)
{
    static const char *const names[] = {
        "mode",    "nearest_mode",       "coordinate_transformation_mode", "scales", "roi_begin",
        "roi_end", "extrapolation_value"};
    inv_attr attr[8];
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const inv_attr *a = inv_attr_find(n, names[i]);
        if (a) attr[count++] = *a;
    }
    attr[count++] = inv_attr_of_shape("shape", shape);
    return inv_emit1(g, op, INV_IN(v), count, attr);
}

/* extrapolation_value is a constant, of which the gradient knows nothing: ResizeGrad takes it for 0. */
static inv_status resize_grad(inv_grad *b)
{
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_node n = *inv_nod(b->g, b->node);
    const inv_shape s = *inv_shape_of_value(b->g, n.in[0]);
    inv_grad_set(b, 0, emit_like(b->g, "ResizeGrad", &n, inv_GO(b, 0), &s));
    return inv_grad_done(b);
}

/* --- ONNX Resize and Upsample --- */

/* What the inputs and attributes ask for, per axis of x. */
typedef struct wanted {
    inv_shape y;
    double scale[INV_MAX_RANK], begin[INV_MAX_RANK], end[INV_MAX_RANK];
    bool scaled; /* by scales, not to sizes */
} wanted;

/* A constant list of numbers in input i; a float initializer counts as constant here. *count 0: absent or empty. */
static inv_status numbers_of(const inv_graph *g, const inv_node *n, uint32_t i, double *out, int cap, int *count)
{
    *count = 0;
    if (!inv_has_in(n, i)) return INV_OK;
    const inv_value *v = inv_val(g, n->in[i]);
    const bool known = v->role == INV_ROLE_CONST || v->role == INV_ROLE_PARAM;
    const int64_t k = inv_shape_nelem(&v->shape);
    if (k == 0) return INV_OK;
    if (!known || v->data.bytes == NULL)
        return inv_node_fail_varying(g, n, n->in[i], i == 1 ? "roi" : i == 2 ? "scales" : "sizes", NULL);
    if (v->shape.rank > 1 || k > cap) return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be a short list", i);
    for (int64_t e = 0; e < k; e++) out[e] = inv_elem_double(v->data.bytes, v->data.dtype, (size_t)e);
    *count = (int)k;
    return INV_OK;
}

/* Attribute `axes`, or all. */
static inv_status axes_of(const inv_graph *g, const inv_node *n, int rank, int axis[INV_MAX_RANK], int *count)
{
    size_t k;
    const int64_t *v = inv_attr_ints(n, "axes", &k);
    *count = k ? (int)k : rank;
    if (k > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "attribute axes is too long");
    for (int i = 0; i < *count; i++) {
        axis[i] = i;
        if (k) INV_TRY(inv_axis(g, n, v[i], rank, &axis[i]));
    }
    return INV_OK;
}

static inv_status apply_sizes(const inv_graph *g, const inv_node *n, const inv_shape *x, const int *axis, int count,
                              double *size, wanted *w)
{
    const char *policy = inv_attr_string(n, "keep_aspect_ratio_policy", "stretch");
    const bool larger = strcmp(policy, "not_smaller") == 0, smaller = strcmp(policy, "not_larger") == 0;
    double one = 0;
    for (int i = 0; i < count; i++) {
        const double ratio = size[i] / (double)x->dim[axis[i]];
        one = i == 0 || (larger ? ratio > one : ratio < one) ? ratio : one;
    }
    for (int i = 0; i < count; i++) {
        if (larger || smaller) size[i] = floor(one * (double)x->dim[axis[i]] + 0.5);
        if (!(size[i] >= 0 && size[i] <= INT32_MAX)) return inv_node_fail(g, n, INV_E_SHAPE, "a size is out of range");
        w->y.dim[axis[i]] = (int64_t)size[i];
        w->scale[axis[i]] = larger || smaller ? one : 0;
        w->scaled = w->scaled || larger || smaller;
    }
    return INV_OK;
}

static inv_status wanted_of(const inv_graph *g, const inv_node *n, uint32_t scales, wanted *w)
{
    const inv_shape *x = inv_in_shape(g, n, 0);
    double v[2 * INV_MAX_RANK];
    int axis[INV_MAX_RANK], naxis, count;
    memset(w, 0, sizeof *w);
    w->y = *x;
    INV_TRY(axes_of(g, n, x->rank, axis, &naxis));
    for (int i = 0; i < x->rank; i++) w->end[i] = w->scale[i] = 1;
    INV_TRY(numbers_of(g, n, scales > 1 ? 1 : UINT32_MAX, v, 2 * INV_MAX_RANK, &count));
    for (int i = 0; count == 2 * naxis && i < naxis; i++) {
        w->begin[axis[i]] = v[i];
        w->end[axis[i]] = v[naxis + i];
    }
    INV_TRY(numbers_of(g, n, scales, v, INV_MAX_RANK, &count));
    if (count == 0 && reals_of(n, "scales", x->rank, 0, v) && inv_attr_find(n, "scales")) count = x->rank;
    w->scaled = count > 0;
    if (count != 0 && count != naxis) return inv_node_fail(g, n, INV_E_SHAPE, "%d scales for %d axes", count, naxis);
    for (int i = 0; i < count; i++) {
        const double d = floor((double)((float)x->dim[axis[i]] * (float)v[i])); /* as runtimes do: 20 by 1.4f is 28 */
        if (!(v[i] > 0 && d <= INT32_MAX)) return inv_node_fail(g, n, INV_E_SHAPE, "a scale is out of range");
        w->y.dim[axis[i]] = (int64_t)d;
        w->scale[axis[i]] = v[i];
    }
    if (w->scaled) return INV_OK;
    INV_TRY(numbers_of(g, n, 3, v, INV_MAX_RANK, &count));
    if (count == 0 || count != naxis)
        return inv_node_fail(g, n, INV_E_SHAPE, "neither scales nor sizes have one entry per axis");
    return apply_sizes(g, n, x, axis, naxis, v, w);
}

static inv_attr reals(const char *name, int n, const double *v)
{
    return (inv_attr){.name = name, .kind = INV_ATTR_FLOATS, .floats = v, .n = (size_t)n};
}

/* --- cubic, and anything with antialias: one matrix per axis --- */

/* Keys' cubic convolution kernel with coefficient a (1981), or, for linear, the triangle. */
static double kernel_at(double d, bool cubic, double a)
{
    d = fabs(d);
    if (!cubic) return d < 1 ? 1 - d : 0;
    if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

/* Weights with which output element o of axis a reads the inputs: row of r->in[a] numbers. Elements outside count as
 * the border, or not at all. With antialias the kernel is as much wider as the output is coarser. */
static void fill_row(const inv_resize *r, const inv_node *n, int a, int64_t o, double *row)
{
    const bool cubic = strcmp(inv_attr_string(n, "mode", "nearest"), "cubic") == 0;
    const bool inside = inv_attr_int(n, "exclude_outside", 0) != 0, smooth = inv_attr_int(n, "antialias", 0) != 0;
    const double coefficient = inv_attr_float(n, "cubic_coeff_a", -0.75), at = inv_resize_at(r, a, o);
    const double narrow = smooth && r->scale[a] < 1 ? r->scale[a] : 1, reach = (cubic ? 2 : 1) / narrow;
    double sum = 0;
    memset(row, 0, (size_t)r->in[a] * sizeof *row);
    for (double i = ceil(at - reach); i <= at + reach; i++) {
        const double w = kernel_at((i - at) * narrow, cubic, coefficient);
        if (inside && (i < 0 || i >= (double)r->in[a])) continue;
        row[i < 0 ? 0 : i >= (double)r->in[a] ? r->in[a] - 1 : (int64_t)i] += w;
        sum += w;
    }
    for (int64_t i = 0; i < r->in[a] && sum != 0; i++) row[i] /= sum;
}

/* The matrix of axis a, a constant of r->out[a] by r->in[a]. */
static inv_status emit_matrix(inv_graph *g, const inv_resize *r, const inv_node *n, int a, inv_id *out)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){r->out[a], r->in[a]});
    double *w = INV_ARENA_NEW(&g->arena, double, (size_t)inv_shape_nelem(&s) + 1);
    if (w == NULL) return INV_E_NOMEM;
    for (int64_t o = 0; o < r->out[a]; o++) fill_row(r, n, a, o, w + o * r->in[a]);
    void *real = w;
    const size_t count = (size_t)inv_shape_nelem(&s);
    if (g->real != INV_F64 &&
        ((real = INV_ARENA_NEW(&g->arena, float, count + 1)) == NULL || !inv_convert(real, g->real, w, INV_F64, count)))
        return INV_E_NOMEM;
    *out = inv_graph_const(g, g->real, &s, real);
    return inv_done(g);
}

static inv_status by_matrices(inv_graph *g, const inv_node *n, const wanted *w, const char *coordinate, inv_id *out)
{
    inv_shape s = *inv_in_shape(g, n, 0);
    inv_resize r = {.rank = s.rank, .linear = true, .coordinate = inv_index_of(coordinates, coordinate)};
    if (r.coordinate < 0 || r.coordinate == INV_TF_CROP_AND_RESIZE)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "coordinate_transformation_mode = %s is not supported for "
                             "cubic interpolation and with antialias",
                             coordinate);
    out[0] = n->in[0];
    for (int a = 0; a < s.rank; a++) {
        const int64_t pre = inv_prod(&s, 0, a), post = inv_prod(&s, a + 1, s.rank);
        inv_id matrix;
        r.in[a] = s.dim[a];
        r.out[a] = w->y.dim[a];
        r.exact[a] = !w->scaled;
        r.scale[a] = w->scaled ? w->scale[a] : (double)r.out[a] / (double)r.in[a];
        if (r.in[a] == r.out[a] && r.scale[a] == 1) continue;
        if (r.in[a] < 1) return inv_node_fail(g, n, INV_E_SHAPE, "an axis of extent 0 can not be made longer");
        INV_TRY(emit_matrix(g, &r, n, a, &matrix));
        const inv_shape flat =
            post == 1 ? inv_shape_of(2, (int64_t[]){pre, r.in[a]}) : inv_shape_of(3, (int64_t[]){pre, r.in[a], post});
        const inv_id x = inv_emit_view(g, out[0], &flat);
        s.dim[a] = r.out[a];
        out[0] = post == 1 ? inv_emit1(g, "MatMulT", INV_IN(x, matrix), INV_ATTRS(inv_attr_of_int("transB", 1)))
                           : inv_emit1(g, "MatMulT", INV_IN(matrix, x), INV_NOATTR);
        out[0] = inv_emit_view(g, out[0], &s);
    }
    return inv_done(g);
}

static inv_status lower_real(inv_graph *g, const inv_node *n, uint32_t scales, const char *coordinate,
                             const char *rounding, inv_id *out)
{
    wanted w;
    inv_attr attr[8];
    uint32_t count = 0;
    const int rank = inv_in_shape(g, n, 0)->rank;
    const char *mode = inv_attr_string(n, "mode", "nearest");
    INV_TRY(wanted_of(g, n, scales, &w));
    if (strcmp(mode, "cubic") == 0 || (inv_attr_int(n, "antialias", 0) != 0 && strcmp(mode, "linear") == 0))
        return by_matrices(g, n, &w, coordinate, out);
    if (inv_shape_equal(&w.y, inv_in_shape(g, n, 0)) && !w.scaled && strcmp(coordinate, "tf_crop_and_resize") != 0) {
        out[0] = n->in[0];
        return INV_OK;
    }
    attr[count++] = inv_attr_of_shape("shape", &w.y);
    attr[count++] = inv_attr_of_string("mode", mode);
    attr[count++] = inv_attr_of_string("coordinate_transformation_mode", coordinate);
    attr[count++] = inv_attr_of_string("nearest_mode", rounding);
    if (w.scaled) attr[count++] = reals("scales", rank, w.scale);
    if (strcmp(coordinate, "tf_crop_and_resize") == 0) {
        attr[count++] = inv_attr_of_float("extrapolation_value", inv_attr_float(n, "extrapolation_value", 0));
        attr[count++] = reals("roi_begin", rank, w.begin);
        attr[count++] = reals("roi_end", rank, w.end);
    }
    out[0] = inv_emit1(g, "ResizeN", INV_IN(n->in[0]), count, attr);
    return inv_done(g);
}

/* Integers, as pictures are: resized as real numbers, rounded, and kept within their type. */
static inv_status lower_as(inv_graph *g, const inv_node *n, uint32_t scales, const char *coordinate,
                           const char *rounding, inv_id *out)
{
    const inv_dtype t = inv_in_dtype(g, n, 0);
    if (inv_dtype_is_float(t) || inv_dtype_size(t) == 0 || inv_dtype_size(t) > 2 || t == INV_BOOL)
        return lower_real(g, n, scales, coordinate, rounding, out);
    inv_id in[4] = {inv_emit1(g, "Cast", INV_IN(n->in[0]), INV_ATTRS(inv_attr_of_int("to", g->real))), INV_NONE,
                    INV_NONE, INV_NONE};
    inv_node real = *n;
    const bool is_signed = t == INV_I8 || t == INV_I16;
    const double most = (double)((1 << (8 * (int)inv_dtype_size(t) - is_signed)) - 1);
    for (uint32_t i = 1; i < n->nin && i < 4; i++) in[i] = n->in[i];
    real.in = in;
    if (in[0] == INV_NONE) return inv_done(g);
    INV_TRY(lower_real(g, &real, scales, coordinate, rounding, out));
    inv_id v = inv_emit1(g, "Round", INV_IN(out[0]), INV_NOATTR);
    v = inv_emit1(g, "ClipRange", INV_IN(v),
                  INV_ATTRS(inv_attr_of_float("min", is_signed ? -most - 1 : 0), inv_attr_of_float("max", most)));
    out[0] = inv_emit1(g, "Cast", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", t)));
    return inv_done(g);
}

static inv_status onnx_resize_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return lower_as(g, n, 2, inv_attr_string(n, "coordinate_transformation_mode", "half_pixel"),
                    inv_attr_string(n, "nearest_mode", "round_prefer_floor"), out);
}

/* Before opset 11 there is one way only: the neighbour below where an axis becomes longer, the one above where it
 * becomes shorter, as onnxruntime and the node tests of ONNX 1.5 have it. An axis each way: one after the other. */
static inv_status upsample_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double v[INV_MAX_RANK], part[2][INV_MAX_RANK];
    int count, way[2] = {0, 0};
    INV_TRY(numbers_of(g, n, 1, v, INV_MAX_RANK, &count));
    for (int i = 0; i < count; i++) {
        const bool longer = v[i] >= 1;
        way[longer] += v[i] != 1;
        part[longer][i] = v[i];
        part[!longer][i] = 1;
    }
    if (!way[0] || !way[1]) return lower_as(g, n, 1, "asymmetric", way[0] ? "ceil" : "floor", out);
    inv_id in[2] = {n->in[0], INV_NONE};
    inv_node step = *n;
    step.in = in;
    step.nin = 2;
    for (int longer = 0; longer < 2; longer++) {
        const inv_shape s = inv_shape_of(1, (int64_t[]){count});
        double *list = INV_ARENA_NEW(&g->arena, double, (size_t)count + 1);
        if (!list) return INV_E_NOMEM;
        memcpy(list, part[longer], (size_t)count * sizeof *list);
        in[1] = inv_graph_const(g, INV_F64, &s, list);
        if (in[1] == INV_NONE) return inv_done(g);
        INV_TRY(lower_as(g, &step, 1, "asymmetric", longer ? "floor" : "ceil", out));
        in[0] = out[0];
    }
    return inv_done(g);
}

/* clang-format off */
/* --- rows --- */
static const char *const resize_cases[] = {
    "y = ResizeN<shape = [2,3,8,6]>(float[2,3,4,3] x)",
    "y = ResizeN<shape = [1,2,7,5], nearest_mode = \"floor\", coordinate_transformation_mode = \"asymmetric\">"
    "(float[1,2,3,4] x)",
    "y = ResizeN<shape = [1,2,2,3], nearest_mode = \"ceil\", coordinate_transformation_mode = \"align_corners\">"
    "(float[1,2,5,7] x)",
    "y = ResizeN<shape = [5,3,2], nearest_mode = \"round_prefer_ceil\", "
    "coordinate_transformation_mode = \"tf_half_pixel_for_nn\">(float[3,3,2] x)",
    "y = ResizeN<shape = [2,2,8,7], mode = \"linear\">(float[2,2,4,3] x)",
    "y = ResizeN<shape = [2,7,2,1], mode = \"linear\", coordinate_transformation_mode = \"pytorch_half_pixel\">"
    "(float[2,4,2,3] x)",
    "y = ResizeN<shape = [1,5,3,4], mode = \"linear\", coordinate_transformation_mode = \"align_corners\">"
    "(float[1,2,5,3] x)",
    "y = ResizeN<shape = [1,3,5], scales = [1.0,0.6,1.3], mode = \"linear\", "
    "coordinate_transformation_mode = \"half_pixel_symmetric\">(float[1,6,4] x)",
    "y = ResizeN<shape = [1,6,4], mode = \"linear\", coordinate_transformation_mode = \"tf_crop_and_resize\", "
    "roi_begin = [0.0,-0.2,0.3], roi_end = [1.0,0.9,1.4], extrapolation_value = 0.5>(float[1,4,5] x)",
    "y = ResizeN<shape = [1,2,3,4], mode = \"linear\">(float[1,2,3,4] x)", NULL};
static const inv_op_def resize_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ResizeN", .since = 1, .in = "x", .out = "y",
    .images = INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}),
    .infer = resize_infer, .grad = resize_grad, .run = resize_run,
    .work = inv_work_scalar, .workspace = resize_workspace,
    .flops = resize_flops, .cases = resize_cases,
    .doc = "x at other resolutions of its axes: nearest or linear (separable), coordinates as in ONNX Resize"};

static const char *const resize_grad_cases[] = {
    "gx = ResizeGrad<shape = [2,3,4,3]>(float[2,3,8,6] gy)",
    "gx = ResizeGrad<shape = [1,6,4], mode = \"linear\">(float[1,2,5] gy)",
    "gx = ResizeGrad<shape = [2,6,0]>(float[2,3,0] gy)", NULL};
static const inv_op_def resize_grad_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ResizeGrad", .since = 1, .in = "gy", .out = "gx",
    .images = INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}),
    .infer = resize_infer, .run = resize_run,
    .work = inv_work_scalar, .workspace = resize_workspace,
    .flops = resize_flops, .cases = resize_grad_cases,
    .doc = "gradient of ResizeN to its input, whose shape is an attribute"};
/* clang-format on */

INV_LOWERED(onnx_resize, "Resize", 11, "X roi? scales? sizes?", "Y",
            "to ResizeN, cubic and antialias to products with a matrix per axis. ONNX Resize-11, -13, -18, -19",
            "y = Resize<mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\">"
            "(float[1,2,3,4] x,,,int64[4]{1,2,6,8})",
            "y = Resize<mode = \"linear\">(float[1,2,3,4] x,,float[4]{1.0,1.0,2.0,0.6})",
            "y = Resize<mode = \"cubic\">(float[1,2,3,4] x,,float[4]{1.0,1.0,2.0,0.6})",
            "y = Resize<mode = \"cubic\", antialias = 1, exclude_outside = 1, cubic_coeff_a = -0.5, "
            "coordinate_transformation_mode = \"align_corners\">(float[2,5,3] x,,,int64[3]{2,3,7})",
            "y = Resize<mode = \"linear\", antialias = 1>(float[1,1,9,7] x,,,int64[4]{1,1,4,3})",
            "y = Resize<mode = \"linear\", axes = [3,1], keep_aspect_ratio_policy = \"not_larger\">"
            "(float[1,2,3,4] x,,,int64[2]{7,6})",
            "y = Resize<coordinate_transformation_mode = \"tf_crop_and_resize\", mode = \"linear\", axes = [1]>"
            "(float[2,5] x,float[2]{0.1,0.7},,int64[1]{3})")

INV_LOWERED_BY(upsample_lower, 10, 0, resize_10, "Resize", 10, "X scales", "Y",
               "to ResizeN with asymmetric coordinates. ONNX Resize-10",
               "y = Resize<mode = \"linear\">(float[1,2,3,4] x, float[4]{1.0,1.0,2.0,0.6})")

INV_LOWERED_BY(upsample_lower, 9, 0, upsample, "Upsample", 7, "X scales?", "Y",
               "to ResizeN with asymmetric coordinates. ONNX Upsample-7, -9",
               "y = Upsample(float[1,2,3,4] x, float[4]{1.0,1.0,2.0,3.0})",
               "y = Upsample<scales = [1.0,1.0,2.0,2.0]>(float[1,1,2,2] x)")

const inv_op_def *const inv_ops_resize[] = {&resize_row,    &resize_grad_row, &onnx_resize_row,
                                            &resize_10_row, &upsample_row,    NULL};
