/* SPDX-License-Identifier: Apache-2.0
 * RoiAlign: regions of images, sampled between pixels, and the gradient to the images (none to the regions, as in
 * PyTorch). Sources: the ONNX operator specifications. */
#include "ops/base/families.h"
#include "ops/base/util.h"
#include "ops/image/roi_gpu.h"

#define INV_BOTH "ops/image/roi_kernels.inc"
#include "ops/base/both_reals.inc"

/* x: the shape of the images. NULL, or what is wrong. */
static const char *roi_of(const inv_node *n, const inv_shape *x, const inv_shape *rois, const inv_shape *batch,
                          inv_roi *r)
{
    memset(r, 0, sizeof *r);
    if (x->rank != 4 || rois->rank != 2 || rois->dim[1] != 4 || batch->rank != 1 || batch->dim[0] != rois->dim[0])
        return "images [N,C,H,W], regions [R,4] and R indices of images are wanted";
    r->n = x->dim[0];
    r->channels = x->dim[1];
    r->regions = rois->dim[0];
    for (int a = 0; a < 2; a++) r->len[a] = x->dim[2 + a];
    r->bins[0] = inv_attr_int(n, "output_height", 1);
    r->bins[1] = inv_attr_int(n, "output_width", 1);
    r->samples = inv_attr_int(n, "sampling_ratio", 0);
    r->scale = inv_attr_float(n, "spatial_scale", 1);
    r->half_pixel = inv_attr_int(n, "half_pixel", 1) != 0;
    r->most = inv_attr_int(n, "max", 0) != 0;
    if (r->bins[0] < 1 || r->bins[1] < 1 || r->samples < 0)
        return "the output has no bins, or sampling_ratio is negative";
    if (r->len[0] < 1 || r->len[1] < 1) return "the images have no pixels";
    return NULL;
}

static bool roi_is_grad(const inv_node *n) { return strcmp(n->op_type, "RoiAlignGrad") == 0; }

static const char *roi_geometry(const inv_node *n, const inv_shape *first, const inv_shape *rois,
                                const inv_shape *batch, inv_roi *r)
{
    const inv_shape shape = inv_attr_shape(n, "shape");
    return roi_of(n, roi_is_grad(n) ? &shape : first, rois, batch, r);
}

static inv_status roi_infer(inv_graph *g, inv_node *n)
{
    inv_roi r;
    INV_TRY(inv_need_reals(g, n, 2));
    if (inv_in_dtype(g, n, 2) != INV_I64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "batch_indices must be int64");
    if (roi_is_grad(n)) INV_TRY(inv_infer_attr_shape(g, n));
    const char *why = roi_geometry(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), inv_in_shape(g, n, 2), &r);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    const inv_shape y = inv_shape_of(4, (int64_t[]){r.regions, r.channels, r.bins[0], r.bins[1]});
    INV_TRY(inv_need_size(g, n, &y));
    if (roi_is_grad(n) && !inv_shape_equal(&y, inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy is not of the result's shape");
    if (!roi_is_grad(n)) inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &y);
    return INV_OK;
}

static inv_status roi_run(const inv_call *c)
{
    inv_roi r;
    const int64_t *batch = c->in[2].data;
    if (roi_geometry(c->node, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape, &r)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, roi, c->node, &r, c->out[0].dtype, c->in[0].data, c->in[1].data, batch, c->out[0].data);
        return INV_OK;
    }
    for (int64_t k = 0; k < r.regions; k++)
        if (batch[k] < 0 || batch[k] >= r.n) return inv_index_outside(c, batch[k], r.n);
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN / 16)
    for (int64_t e = 0; e < r.regions * r.channels; e++) {
        INV_REAL(c->out[0].dtype, roi_bins, &r, c->in[0].data, c->in[1].data, batch, e, c->out[0].data);
    }
    return INV_OK;
}

static size_t back_workspace(const inv_graph *g, const inv_node *n)
{
    inv_roi r;
    if (roi_geometry(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), inv_in_shape(g, n, 2), &r)) return 0;
    return (size_t)(inv_roi_table(&r, 0) + inv_roi_table(&r, 1)) * sizeof(double);
}

static inv_status back_run(const inv_call *c)
{
    inv_roi r;
    const void *gy = c->in[0].data, *rois = c->in[1].data;
    void *gx = c->out[0].data;
    if (roi_geometry(c->node, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape, &r)) return INV_E_SHAPE;
    const int64_t n = inv_roi_table(&r, 0), all = n + inv_roi_table(&r, 1);
    const inv_dtype t = c->out[0].dtype;
    double *table = c->ws;
    if (c->out[0].n == 0) return INV_OK;
    if (c->ws_nbytes < (size_t)all * sizeof *table) return INV_E_INTERNAL;
    if (c->gpu) {
        INV_GPU(c->gpu, roi_grad, &r, t, gy, rois, c->in[2].data, gx, c->ws);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (all > INV_OMP_MIN / 16)
    for (int64_t e = 0; e < all; e++) {
        const int axis = e >= n;
        const int64_t at = axis ? e - n : e;
        table[e] = INV_REAL(t, roi_entry, &r, rois, axis, at);
    }
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN / 16)
    for (int64_t e = 0; e < c->out[0].n; e++) {
        inv_put_real(gx, t, e, INV_REAL(t, roi_pixel, &r, table, table + n, gy, c->in[2].data, e));
    }
    return INV_OK;
}

/* The attributes of the canonical operators; returns how many. */
static uint32_t roi_attrs(const inv_node *n, bool half_pixel, bool most, inv_attr attr[6])
{
    attr[0] = inv_attr_of_int("output_height", inv_attr_int(n, "output_height", 1));
    attr[1] = inv_attr_of_int("output_width", inv_attr_int(n, "output_width", 1));
    attr[2] = inv_attr_of_int("sampling_ratio", inv_attr_int(n, "sampling_ratio", 0));
    attr[3] = inv_attr_of_float("spatial_scale", inv_attr_float(n, "spatial_scale", 1));
    attr[4] = inv_attr_of_int("half_pixel", half_pixel);
    attr[5] = inv_attr_of_int("max", most);
    return 6;
}

static inv_status roi_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    inv_attr attr[7];
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    if (inv_attr_int(&n, "max", 0))
        return inv_node_fail(b->g, &n, INV_E_UNSUPPORTED_OP, "RoiAlign of mode max has no gradient here; avg has one");
    const inv_shape s = *inv_in_shape(b->g, &n, 0);
    const uint32_t count = roi_attrs(&n, inv_attr_int(&n, "half_pixel", 1) != 0, false, attr);
    attr[count] = inv_attr_of_shape("shape", &s);
    inv_grad_set(b, 0, inv_emit1(b->g, "RoiAlignGrad", INV_IN(inv_GO(b, 0), n.in[1], n.in[2]), count + 1, attr));
    return inv_grad_done(b);
}

static inv_status onnx_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_attr attr[6];
    const char *mode = inv_attr_string(n, "mode", "avg"),
               *dflt = n->op->since < 16 ? "output_half_pixel" : "half_pixel",
               *how = inv_attr_string(n, "coordinate_transformation_mode", dflt);
    if (strcmp(mode, "avg") != 0 && strcmp(mode, "max") != 0)
        return inv_node_fail(g, n, INV_E_GRAPH, "mode must be avg or max, not '%s'", mode);
    const uint32_t count = roi_attrs(n, strcmp(how, "half_pixel") == 0, strcmp(mode, "max") == 0, attr);
    out[0] = inv_emit1(g, "RoiAlignN", 3, n->in, count, attr);
    return inv_done(g);
}

/* --- rows --- */
#define REGIONS(rows, list) "l = Constant<value_floats = [" list "]>()\nr = Reshape(l, int64[2]{" rows ",4})\n"
/* clang-format off */
static const char *const roi_cases[] = {
    REGIONS("2", "0.5, 1.0, 3.2, 4.0, -1.0, 0.0, 2.0, 6.0")
    "y = RoiAlignN<output_height = 2, output_width = 3, sampling_ratio = 2>(float[2,2,5,4] x, r, int64[2]{1,0})",
    REGIONS("1", "0.5, 1.0, 3.2, 4.0")
    "y = RoiAlignN<output_height = 2, max = 1>(float[1,2,5,4] x, r, int64[1]{0})",
    REGIONS("1", "1.0, 1.0, 7.0, 6.0")
    "y = RoiAlignN<half_pixel = 0, output_height = 2, spatial_scale = 0.5>(float[1,3,4,4] x, r, int64[1]{0})",
    REGIONS("1", "0.0, 0.0, 1.0, 1.0") "y = RoiAlignN(float[1,1,1,1] x, r, int64[1]{0})",
    "y = RoiAlignN(float[1,1,2,2] x, float[0,4] r, int64[0]{})", NULL};
static const inv_op_def roi_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "RoiAlignN", .since = 1, .in = "x rois batch", .out = "y",
    .infer = roi_infer, .grad = roi_grad, .run = roi_run,
    .work = inv_work_scalar, .flops = inv_flops_out,
    .cases = roi_cases, .doc = "regions of images over bins, sampled between pixels, averaged or (max) the largest"};

static const char *const back_cases[] = {
    REGIONS("2", "0.0, 0.0, 2.0, 3.0, 1.0, 1.0, 3.0, 2.0")
    "d = RoiAlignGrad<shape = [2,2,4,3], output_height = 2, sampling_ratio = 1>(float[2,2,2,1] gy, r, int64[2]{1,1})",
    REGIONS("1", "0.0, 0.0, 2.0, 3.0")
    "d = RoiAlignGrad<shape = [1,1,3,3], half_pixel = 0>(float[1,1,1,1] gy, r, int64[1]{0})", NULL};
static const inv_op_def back_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "RoiAlignGrad", .since = 1, .in = "gy rois batch",
    .out = "d", .infer = roi_infer, .run = back_run,
    .work = inv_work_scalar, .workspace = back_workspace,
    .flops = inv_flops_out, .cases = back_cases, .doc = "gradient of the averages of RoiAlignN to the images"};

static const char *const onnx_cases[] = {
    REGIONS("1", "0.5, 1.0, 3.0, 4.0")
    "y = RoiAlign<output_height = 2, output_width = 2, mode = \"avg\">(float[1,2,5,4] x, r, int64[1]{0})",
    REGIONS("1", "0.0, 0.0, 2.0, 2.0")
    "y = RoiAlign<coordinate_transformation_mode = \"output_half_pixel\">(float[1,1,3,3] x, r, int64[1]{0})", NULL};
#define ONNX_ROW(id, first, last, text)                                                                               \
    static const inv_op_def id = {                                                                                    \
        .size = sizeof(inv_op_def), .domain = "", .name = "RoiAlign", .since = first, .until = last,                  \
        .in = "X rois batch_indices", .out = "Y", .lower = onnx_lower,                   \
        .cases = onnx_cases, .doc = text};
/* clang-format on */
ONNX_ROW(onnx_old, 10, 15, "to RoiAlignN, without a shift by half a pixel. ONNX RoiAlign-10")
ONNX_ROW(onnx_new, 16, 0, "to RoiAlignN. ONNX RoiAlign-16, -22")

const inv_op_def *const inv_ops_roi[] = {&roi_row, &back_row, &onnx_old, &onnx_new, NULL};
