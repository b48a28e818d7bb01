/* SPDX-License-Identifier: Apache-2.0
 * Sampling between pixels at points that are computed: SampleN and its gradients to image and points. GridSample lowers
 * to it; DeformConv samples the columns of a convolution with it. Sources: the ONNX operator specifications. */
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"
#include "ops/image/sample_gpu.h"

#define INV_BOTH "ops/image/sample_kernels.inc"
#include "ops/base/both_reals.inc"

#define POINTS 32 /* whose taps are at hand at a time */

static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
static const char *const paddings[] = {"zeros", "border", "reflection", NULL};
static const char *const units[] = {"edges", "centers", "pixels", NULL};

/* NULL, or what is wrong. */
static const char *sample_of(const inv_node *n, const inv_shape *x, const inv_shape *points, inv_sample *s)
{
    const int mode = inv_index_of(modes, inv_attr_string(n, "mode", "linear")),
              padding = inv_index_of(paddings, inv_attr_string(n, "padding", "zeros")),
              unit = inv_index_of(units, inv_attr_string(n, "unit", "edges"));
    memset(s, 0, sizeof *s);
    if (mode < 0 || padding < 0 || unit < 0)
        return "mode must be nearest, linear or cubic, padding zeros, border or reflection";
    s->axes = x->rank - 2;
    if (s->axes < 1 || s->axes > INV_SAMPLE_AXES || points->rank < 2 || points->dim[points->rank - 1] != s->axes)
        return "an image of batch, channels and one to three axes is wanted, and points with a number for each axis";
    if (x->dim[0] != points->dim[0]) return "image and points differ in the batch";
    s->mode = (inv_sample_mode)mode;
    s->padding = (inv_sample_padding)padding;
    s->unit = (inv_sample_unit)unit;
    s->n = x->dim[0];
    s->channels = x->dim[1];
    s->points = inv_prod(points, 1, points->rank - 1);
    s->pixels = inv_prod(x, 2, x->rank);
    for (int a = 0; a < INV_SAMPLE_AXES; a++) s->len[a] = a < s->axes ? x->dim[2 + a] : 1;
    if (s->pixels == 0 && s->n * s->channels * s->points > 0) return "the image has no pixels";
    if (s->n * s->pixels >= INT32_MAX || s->n * s->points >= INT32_MAX / inv_sample_count(s))
        return "more than 2147483647 pixels, or taps";
    return NULL;
}

/* Image and points: operands 0, 1; of SampleGradX the image's shape is an attribute; of SampleGradPoints 1, 2. */
static const char *sample_geometry(const inv_node *n, const inv_shape *first, const inv_shape *second,
                                   const inv_shape *third, inv_sample *s)
{
    const inv_shape shape = inv_attr_shape(n, "shape");
    if (inv_op_is(n, "SampleGradX")) return sample_of(n, &shape, second, s);
    return third ? sample_of(n, second, third, s) : sample_of(n, first, second, s);
}

static inv_status sample_infer(inv_graph *g, inv_node *n)
{
    inv_sample s;
    const bool to_x = inv_op_is(n, "SampleGradX"), to_points = inv_op_is(n, "SampleGradPoints");
    INV_TRY(inv_need_reals(g, n, to_points ? 3 : 2));
    if (to_x) INV_TRY(inv_infer_attr_shape(g, n));
    const inv_shape *points = inv_in_shape(g, n, to_points ? 2 : 1);
    const char *why = sample_geometry(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), to_points ? points : NULL, &s);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    inv_shape y = *points;
    for (int i = y.rank - 1; i > 1; i--) y.dim[i] = y.dim[i - 1];
    y.dim[1] = s.channels;
    INV_TRY(inv_need_size(g, n, &y));
    if ((to_x || to_points) && !inv_shape_equal(&y, inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy is not of the result's shape");
    if (!to_x) inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), to_points ? points : &y);
    return INV_OK;
}

static void places(const inv_call *c, const inv_sample *s, const void *points, int64_t n, int64_t p, inv_sample_taps *t)
{
    INV_REAL(c->out[0].dtype, sample_place, s, points, n, p, t);
}

static inv_status sample_run(const inv_call *c)
{
    inv_sample s;
    const void *x = c->in[0].data, *points = c->in[1].data;
    if (sample_geometry(c->node, &c->in[0].shape, &c->in[1].shape, NULL, &s)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, sample, &s, c->out[0].dtype, x, points, c->out[0].data);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN / 16)
    for (int64_t e = 0; e < s.n * s.points; e++) {
        inv_sample_taps t[INV_SAMPLE_AXES];
        const int64_t n = e / s.points, p = e % s.points;
        places(c, &s, points, n, p, t);
        for (int64_t k = 0; k < s.channels; k += INV_SAMPLE_CHANNELS) {
            const int64_t end = inv_min64(k + INV_SAMPLE_CHANNELS, s.channels);
            INV_REAL(c->out[0].dtype, sample_point, &s, t, x, c->out[0].data, n, p, k, end);
        }
    }
    return INV_OK;
}

static inv_status grad_x_run(const inv_call *c)
{
    inv_sample s;
    const void *points = c->in[1].data;
    if (sample_geometry(c->node, &c->in[0].shape, &c->in[1].shape, NULL, &s)) return INV_E_SHAPE;
    if (c->gpu) {
        INV_GPU(c->gpu, fill, c->out[0].n, inv_dtype_size(c->out[0].dtype), c->out[0].data, 0);
        if (c->in[0].n == 0) return INV_OK;
        if (c->ws == NULL || c->ws_nbytes < inv_sample_workspace(&s)) return INV_E_INTERNAL;
        INV_GPU(c->gpu, sample_grad_x, &s, c->out[0].dtype, c->in[0].data, points, c->out[0].data, c->ws);
        return INV_OK;
    }
    memset(c->out[0].data, 0, (size_t)c->out[0].n * inv_dtype_size(c->out[0].dtype));
    if (c->in[0].n == 0) return INV_OK;
    const int64_t pieces = (s.channels + INV_SAMPLE_CHANNELS - 1) / INV_SAMPLE_CHANNELS;
#pragma omp parallel for schedule(static) if (c->in[0].n > INV_OMP_MIN / 16)
    for (int64_t piece = 0; piece < s.n * pieces; piece++) {
        inv_sample_taps t[POINTS][INV_SAMPLE_AXES];
        const int64_t n = piece / pieces, first = piece % pieces * INV_SAMPLE_CHANNELS,
                      last = inv_min64(first + INV_SAMPLE_CHANNELS, s.channels);
        for (int64_t p = 0; p < s.points; p += POINTS) {
            const int64_t count = inv_min64(POINTS, s.points - p);
            for (int64_t i = 0; i < count; i++) places(c, &s, points, n, p + i, t[i]);
            for (int64_t k = first; k < last; k++)
                for (int64_t i = 0; i < count; i++)
                    INV_REAL(c->out[0].dtype, sample_spread, c->in[0].data, c->out[0].data, &s, t[i],
                             n * s.channels + k, p + i);
        }
    }
    return INV_OK;
}

static size_t grad_x_workspace(const inv_graph *g, const inv_node *n)
{
    inv_sample s;
    if (!g->gpu || sample_geometry(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), NULL, &s)) return 0;
    return inv_sample_workspace(&s);
}

static inv_status grad_points_run(const inv_call *c)
{
    inv_sample s;
    const void *gy = c->in[0].data, *x = c->in[1].data, *points = c->in[2].data;
    void *gp = c->out[0].data;
    if (sample_geometry(c->node, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape, &s)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, sample_grad_points, &s, c->out[0].dtype, gy, x, points, gp);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (c->in[0].n > INV_OMP_MIN / 16)
    for (int64_t e = 0; e < s.n * s.points; e++) {
        inv_sample_taps t[INV_SAMPLE_AXES];
        places(c, &s, points, e / s.points, e % s.points, t);
        INV_REAL(c->out[0].dtype, sample_back, &s, t, gy, x, gp, e / s.points, e % s.points);
    }
    return INV_OK;
}

static inv_status sample_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node n = *inv_nod(g, b->node);
    const inv_id gy = inv_GO(b, 0);
    const inv_shape s = *inv_in_shape(g, &n, 0);
    const inv_attr attr[4] = {inv_attr_of_string("mode", inv_attr_string(&n, "mode", "linear")),
                              inv_attr_of_string("padding", inv_attr_string(&n, "padding", "zeros")),
                              inv_attr_of_string("unit", inv_attr_string(&n, "unit", "edges")),
                              inv_attr_of_shape("shape", &s)};
    if (inv_wants(b, 0)) inv_grad_set(b, 0, inv_emit1(g, "SampleGradX", INV_IN(gy, n.in[1]), 4, attr));
    if (inv_wants(b, 1)) inv_grad_set(b, 1, inv_emit1(g, "SampleGradPoints", INV_IN(gy, n.in[0], n.in[1]), 3, attr));
    return inv_grad_done(b);
}

static double sample_flops(const inv_graph *g, const inv_node *n)
{
    inv_sample s;
    const bool three = inv_op_is(n, "SampleGradPoints");
    const inv_shape *third = three ? inv_in_shape(g, n, 2) : NULL;
    if (sample_geometry(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), third, &s)) return 0;
    return 2.0 * inv_sample_count(&s) * (double)(s.n * s.channels * s.points) * (three ? s.axes : 1);
}

/* --- GridSample --- */
static inv_status grid_sample_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const char *mode = inv_attr_string(n, "mode", "linear");
    if (strcmp(mode, "bilinear") == 0) mode = "linear";
    if (strcmp(mode, "bicubic") == 0) mode = "cubic";
    const char *unit = inv_attr_int(n, "align_corners", 0) ? "centers" : "edges";
    out[0] = inv_emit1(g, "SampleN", INV_IN(n->in[0], n->in[1]),
                       INV_ATTRS(inv_attr_of_string("mode", mode),
                                 inv_attr_of_string("padding", inv_attr_string(n, "padding_mode", "zeros")),
                                 inv_attr_of_string("unit", unit)));
    return inv_done(g);
}

/* --- DeformConv: columns by sampling, times the filters --- */
typedef struct deform {
    int axes;
    int64_t in[INV_SAMPLE_AXES], kernel[INV_SAMPLE_AXES], out[INV_SAMPLE_AXES], stride[INV_SAMPLE_AXES],
        pad[INV_SAMPLE_AXES], dilation[INV_SAMPLE_AXES];
    int64_t n, channels, filters, group, offset_group, taps, places;
} deform;

static bool shape_is(const inv_graph *g, const inv_node *n, uint32_t i, const deform *d, int64_t channels)
{
    const inv_shape *s = inv_in_shape(g, n, i);
    if (s->rank != d->axes + 2 || s->dim[0] != d->n || s->dim[1] != channels) return false;
    for (int a = 0; a < d->axes; a++)
        if (s->dim[2 + a] != d->out[a]) return false;
    return true;
}

static inv_status deform_of(const inv_graph *g, const inv_node *n, deform *d)
{
    size_t ns, np, nd, nk;
    const inv_shape *x = inv_in_shape(g, n, 0), *w = inv_in_shape(g, n, 1);
    const int64_t *s = inv_attr_ints(n, "strides", &ns), *p = inv_attr_ints(n, "pads", &np),
                  *dil = inv_attr_ints(n, "dilations", &nd), *k = inv_attr_ints(n, "kernel_shape", &nk);
    const size_t axes = x->rank > 2 ? (size_t)x->rank - 2 : 0;
    *d = (deform){.axes = (int)axes,
                  .taps = 1,
                  .places = 1,
                  .group = inv_attr_int(n, "group", 1),
                  .offset_group = inv_attr_int(n, "offset_group", 1)};
    if (axes < 1 || axes > INV_SAMPLE_AXES || w->rank != x->rank || (s && ns != axes) || (p && np != 2 * axes) ||
        (dil && nd != axes) || (k && nk != axes))
        return inv_node_fail(g, n, INV_E_SHAPE, "one to three axes of space are wanted, attributes to match");
    d->n = x->dim[0];
    d->channels = x->dim[1];
    d->filters = w->dim[0];
    if (d->group < 1 || d->offset_group < 1 || d->channels % d->group || d->filters % d->group ||
        d->channels % d->offset_group || w->dim[1] != d->channels / d->group)
        return inv_node_fail(g, n, INV_E_SHAPE, "channels and filters do not fit the groups");
    for (size_t a = 0; a < axes; a++) {
        d->in[a] = x->dim[2 + a];
        d->kernel[a] = w->dim[2 + a];
        d->stride[a] = s ? s[a] : 1;
        d->dilation[a] = dil ? dil[a] : 1;
        d->pad[a] = p ? p[a] : 0;
        const int64_t room = d->in[a] + d->pad[a] + (p ? p[axes + a] : 0) - (d->kernel[a] - 1) * d->dilation[a] - 1;
        if (d->stride[a] < 1 || d->dilation[a] < 1 || d->kernel[a] < 1 || room < 0 || (k && k[a] != d->kernel[a]))
            return inv_node_fail(g, n, INV_E_SHAPE, "the filters do not fit into the image along axis %zu", a);
        d->out[a] = room / d->stride[a] + 1;
        d->taps *= d->kernel[a];
        d->places *= d->out[a];
    }
    if (!shape_is(g, n, 2, d, d->offset_group * d->taps * d->axes))
        return inv_node_fail(g, n, INV_E_SHAPE, "the offsets must be [batch, offset_group x filter x axes, output]");
    if (inv_has_in(n, 4) && !shape_is(g, n, 4, d, d->offset_group * d->taps))
        return inv_node_fail(g, n, INV_E_SHAPE, "the mask must be [batch, offset_group x filter, output]");
    return INV_OK;
}

/* Where the taps are without offsets: [1, taps x places, axes]. */
static inv_id plain_places(inv_graph *g, const deform *d, inv_dtype t)
{
    const inv_shape s = inv_shape_of(3, (int64_t[]){1, d->taps * d->places, d->axes});
    char *data = inv_arena_alloc(&g->arena, (size_t)inv_shape_nelem(&s) * sizeof(double) + 8);
    if (data == NULL) return INV_NONE;
    for (int64_t i = 0; i < d->taps * d->places; i++) {
        int64_t k = i / d->places, o = i % d->places;
        for (int a = d->axes - 1; a >= 0; a--) {
            const int64_t at = o % d->out[a] * d->stride[a] + k % d->kernel[a] * d->dilation[a] - d->pad[a];
            inv_put_real(data, t, i * d->axes + a, (double)at);
            k /= d->kernel[a];
            o /= d->out[a];
        }
    }
    return inv_graph_const(g, t, &s, data);
}

static inv_id view4(inv_graph *g, inv_id v, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const inv_shape s = inv_shape_of(4, (int64_t[]){a, b, c, d});
    return inv_emit_view(g, v, &s);
}

static inv_id deform_points(inv_graph *g, const inv_node *n, const deform *d)
{
    const int64_t images = d->n * d->offset_group;
    const inv_shape points = inv_shape_of(3, (int64_t[]){images, d->taps * d->places, d->axes});
    inv_id v = view4(g, n->in[2], images, d->taps, d->axes, d->places);
    v = inv_emit_view(g, inv_emit_transpose(g, v, 4, (int64_t[]){0, 1, 3, 2}), &points);
    return inv_emit1(g, "Add", INV_IN(v, plain_places(g, d, inv_in_dtype(g, n, 0))), INV_NOATTR);
}

static inv_status deform_conv_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    deform d;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(deform_of(g, n, &d));
    const int64_t images = d.n * d.offset_group, depth = d.channels / d.group * d.taps;
    inv_shape image = inv_shape_of(2, (int64_t[]){images, d.channels / d.offset_group});
    inv_shape result = inv_shape_of(2, (int64_t[]){d.n, d.filters}), bias = inv_shape_of(1, &d.filters);
    for (int a = 0; a < d.axes; a++) {
        image.dim[image.rank++] = d.in[a];
        result.dim[result.rank++] = d.out[a];
        bias.dim[bias.rank++] = 1;
    }
    inv_id cols = inv_emit1(g, "SampleN", INV_IN(inv_emit_view(g, n->in[0], &image), deform_points(g, n, &d)),
                            INV_ATTRS(inv_attr_of_string("unit", "pixels")));
    if (inv_has_in(n, 4)) {
        const inv_shape mask = inv_shape_of(3, (int64_t[]){images, 1, d.taps * d.places});
        cols = inv_emit1(g, "Mul", INV_IN(cols, inv_emit_view(g, n->in[4], &mask)), INV_NOATTR);
    }
    cols = view4(g, cols, d.n, d.group, depth, d.places);
    inv_id y =
        inv_emit1(g, "MatMulT", INV_IN(view4(g, n->in[1], 1, d.group, d.filters / d.group, depth), cols), INV_NOATTR);
    y = inv_emit_view(g, y, &result);
    if (inv_has_in(n, 3)) y = inv_emit1(g, "Add", INV_IN(y, inv_emit_view(g, n->in[3], &bias)), INV_NOATTR);
    out[0] = y;
    return inv_done(g);
}

/* clang-format off */
/* --- rows --- */
#define ROW(id, op, ins, gradient, kernel, scratch, text, ...)                                                        \
    static const char *const id##_cases[] = {__VA_ARGS__, NULL};                                                      \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = INV_IR, .name = op, .since = 1, .in = ins, .out = "y",                  \
        .infer = sample_infer, .grad = gradient, .run = kernel,                                                       \
        .work = inv_work_scalar, .workspace = scratch,                                                               \
        .flops = sample_flops, .cases = id##_cases, .doc = text};
ROW(sample, "SampleN", "x points", sample_grad, sample_run, NULL,
    "image at points between pixels: nearest, linear, cubic; padding zeros, border, reflection; points from -1 to 1, "
    "last axis first, or pixels, first axis first",
    "y = SampleN(float[2,3,4,5] x, float[2,2,3,2] p)",
    "y = SampleN<unit = \"centers\">(float[1,9,3,3] x, float[1,5,2] p)",
    "y = SampleN<mode = \"cubic\">(float[1,2,4,3] x, float[1,4,2] p)",
    "y = SampleN<mode = \"cubic\", padding = \"reflection\">(float[1,2,4,3] x, float[1,4,2] p)",
    "y = SampleN<mode = \"cubic\", padding = \"border\">(float[1,2,4,3] x, float[1,4,2] p)",
    "y = SampleN<padding = \"border\">(float[1,1,3,3] x, float[1,6,2] p)",
    "y = SampleN<padding = \"reflection\">(float[1,1,3,3] x, float[1,6,2] p)",
    "y = SampleN<mode = \"nearest\">(float[1,2,5,4] x, float[1,3,2] p)",
    "y = SampleN<unit = \"pixels\">(float[1,2,3,2] x, float[1,5,2] p)",
    "y = SampleN(float[1,2,3,2,4] x, float[1,2,2,3] p)",
    "y = SampleN<unit = \"pixels\">(float[1,1,1] x, float[1,3,1] p)",
    "y = SampleN(float[1,1,2,2] x, float[1,0,2] p)")
/* clang-format on */
ROW(grad_x, "SampleGradX", "gy points", NULL, grad_x_run, grad_x_workspace, "gradient of SampleN to the image",
    "d = SampleGradX<shape = [1,2,3,2]>(float[1,2,5] gy, float[1,5,2] p)",
    "d = SampleGradX<shape = [1,1,2,3], mode = \"cubic\">(float[1,1,70] gy, float[1,70,2] p)")
ROW(grad_points, "SampleGradPoints", "gy x points", NULL, grad_points_run, NULL,
    "gradient of SampleN to the points; 0 where padding holds them at the border",
    "d = SampleGradPoints(float[1,2,5] gy, float[1,2,3,2] x, float[1,5,2] p)",
    "d = SampleGradPoints<mode = \"nearest\">(float[1,1,2] gy, float[1,1,3] x, float[1,2,1] p)")

INV_LOWERED(grid_sample, "GridSample", 16, "X grid", "Y",
            "to SampleN; cubic with border repeats pixels, as ONNX Runtime and PyTorch do, not as ONNX's reference. "
            "ONNX GridSample-16, -20, -22",
            "y = GridSample(float[2,3,4,5] x, float[2,2,3,2] p)",
            "y = GridSample<mode = \"bicubic\", align_corners = 1, padding_mode = \"border\">(float[1,2,4,5] x, "
            "float[1,2,2,2] p)")
INV_LOWERED_FLAGS(deform_conv, "DeformConv", 19, "X W offset B? mask?", "Y", INV_OP_PRODUCT,
                  "to SampleN and MatMulT. ONNX DeformConv-19, -22",
                  "y = DeformConv(float[2,2,4,4] x, float[3,2,2,2] w, float[2,8,3,3] o)",
                  "y = DeformConv<group = 2, offset_group = 2, pads = [1,0,0,1], strides = [2,1]>(float[1,4,3,4] x, "
                  "float[2,2,2,2] w, float[1,16,2,4] o, float[2] b, float[1,8,2,4] m)",
                  "y = DeformConv<dilations = [2]>(float[1,1,4] x, float[1,1,2] w, float[1,2,2] o)")

const inv_op_def *const inv_ops_sample[] = {&sample_row,      &grad_x_row,      &grad_points_row,
                                            &grid_sample_row, &deform_conv_row, NULL};
