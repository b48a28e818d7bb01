/* SPDX-License-Identifier: Apache-2.0
 * Convolution: ONNX Conv lowers to ConvN (explicit pads); its gradients are ConvGradX (reads gy, w), ConvGradW (reads
 * x, gy) and, for the bias, a sum of gy. Layout [N,C,spatial...], filter [M,C/group,kernel...]. ConvTranspose is
 * ConvGradX with the filter as it is. Kernels: conv_cpu.c, conv_gpu.c. */
#include "ops/conv/conv.h"
#include "ops/base/rows.h"

#include <math.h>

#include "core/edits/onnx_body.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/strided_copy.h"
#include "ops/base/util.h"
#include "ops/conv/winograd.h"

#define LEAST_SLICE 4096.0         /* bytes of the images that are added onto something at a time: a 16th, */
#define MOST_SLICE (1024.0 * 1024) /* within limits */

static bool is_last(const inv_node *n) { return inv_attr_int(n, "channels_last", 0) != 0; }

/* From the shapes of x, with its channels second, the filter and the node's attributes. NULL, or what is wrong. */
static const char *conv_of(const inv_node *n, const inv_shape *x, const inv_shape *filter, inv_conv *c)
{
    memset(c, 0, sizeof *c);
    if (x->rank < 3 || x->rank > 5) return "the input needs one batch, one channel and 1 to 3 spatial axes";
    if (filter->rank != x->rank) return "the filter must have the rank of the input";
    c->group = inv_attr_int(n, "group", 1);
    c->last = is_last(n);
    c->batch = x->dim[0];
    c->cg = filter->dim[1];
    if (c->group < 1) return "group must be positive";
    if (c->cg < 1 || filter->dim[0] < 1) return "the filter has an axis of extent 0";
    if (x->dim[1] % c->group != 0 || x->dim[1] / c->group != c->cg)
        return "the channels of the input are not group times the channels of the filter";
    if (filter->dim[0] % c->group != 0) return "the output channels are not a multiple of group";
    c->mg = filter->dim[0] / c->group;
    const char *why = inv_window_of(n, x->rank - 2, x->dim + 2, filter->dim + 2, false, &c->w);
    if (why) return why;
    c->direct = c->w.kvol == 1;
    for (int i = 0; i < 3; i++)
        c->direct = c->direct && c->w.stride[i] == 1 && c->w.pad[i] == 0 && c->w.pad_end[i] == 0;
    c->depthwise = c->group > 1 && c->cg == 1 && !c->direct;
    return NULL;
}

/* [N,C,spatial...] of what may have the channels last. */
static inv_shape channels_second(const inv_node *n, const inv_shape *s)
{
    inv_shape t = *s;
    if (!is_last(n) || s->rank < 3) return t;
    t.dim[1] = s->dim[s->rank - 1];
    for (int i = 2; i < s->rank; i++) t.dim[i] = s->dim[i - 1];
    return t;
}

static inv_shape output_shape(const inv_node *n, const inv_conv *c)
{
    const int sd = c->w.sd, last = is_last(n);
    inv_shape s = inv_shape_of(sd + 2, (int64_t[INV_MAX_RANK]){c->batch});
    s.dim[last ? sd + 1 : 1] = c->group * c->mg;
    for (int i = 0; i < sd; i++) s.dim[2 - last + i] = c->w.out[3 - sd + i];
    return s;
}

/* Operators of this file that know the filter's shape and the input's from operands or from `shape`. */
static const char *conv_geometry(const inv_node *n, char kind, const inv_shape *a, const inv_shape *b, inv_conv *c)
{
    const inv_shape s = inv_attr_shape(n, "shape"), x = channels_second(n, kind == 'x' ? &s : a);
    return conv_of(n, &x, kind == 'w' ? &s : b, c); /* of x, w; gy, w and shape of x; x, gy and shape of w */
}

static char conv_kind(const inv_node *n)
{
    if (strcmp(n->op_type, "ConvGradX") == 0) return 'x';
    return strcmp(n->op_type, "ConvGradW") == 0 ? 'w' : 'y';
}

static inv_conv_part conv_part_of(char kind)
{
    return kind == 'x' ? INV_CONV_GRAD_X : kind == 'w' ? INV_CONV_GRAD_W : INV_CONV_FORWARD;
}

static inv_status conv_infer(inv_graph *g, inv_node *n)
{
    inv_conv c;
    INV_TRY(inv_need_reals(g, n, n->nin));
    const inv_shape *a = inv_in_shape(g, n, 0), *b = inv_in_shape(g, n, 1);
    char kind = conv_kind(n);
    const char *why = conv_geometry(n, kind, a, b, &c);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    inv_shape y = output_shape(n, &c);
    if ((kind == 'x' && !inv_shape_equal(a, &y)) || (kind == 'w' && !inv_shape_equal(b, &y)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the gradient has not the shape of the convolution's output");
    if (kind == 'y' && inv_has_in(n, 2)) {
        const inv_shape *bias = inv_in_shape(g, n, 2);
        if (bias->rank != 1 || bias->dim[0] != c.group * c.mg)
            return inv_node_fail(g, n, INV_E_SHAPE, "the bias needs one number per output channel, %lld",
                                 (long long)c.group * c.mg);
    }
    if (kind != 'y') INV_TRY(inv_infer_attr_shape(g, n));
    else inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &y);
    if (n->op->onto && inv_has_in(n, n->op->onto) &&
        !inv_shape_equal(inv_in_shape(g, n, n->op->onto), &inv_val(g, n->out[0])->shape))
        return inv_node_fail(g, n, INV_E_SHAPE, "the operand added to the result has another shape");
    return INV_OK;
}

/* --- onto: some images at a time in scratch memory, added from there --- */

/* Images at a time, of a result of that shape. */
static int64_t images_of(const inv_shape *y, inv_dtype t)
{
    const double all = (double)inv_shape_nelem(y) * (double)inv_dtype_size(t), images = (double)y->dim[0];
    if (!(all > 0)) return 1;
    const double limit = fmin(fmax(all / 16, LEAST_SLICE), MOST_SLICE);
    const double parts = ceil(images / fmax(1, floor(limit * images / all)));
    return (int64_t)ceil(images / parts);
}

/* Where scratch memory goes on behind them. */
static size_t slice_nbytes(int64_t n, inv_dtype t) { return ((size_t)n * inv_dtype_size(t) + 255) / 256 * 256; }

/* From image `first` on, `count` of them. */
static inv_tensor images_from(const inv_tensor *x, int64_t first, int64_t count)
{
    inv_tensor t = *x;
    const int64_t each = x->n / x->shape.dim[0];
    t.data = inv_elem_at(x, first * each);
    t.shape.dim[0] = count;
    t.n = count * each;
    return t;
}

static inv_status add_onto(const inv_call *k, uint32_t onto, inv_status (*run)(const inv_call *))
{
    if (k->out[0].n == 0) return INV_OK;
    const int64_t all = k->out[0].shape.dim[0], each = images_of(&k->out[0].shape, k->out[0].dtype);
    for (int64_t i = 0; i < all; i += each) {
        const int64_t count = inv_min64(each, all - i);
        inv_tensor in[3] = {images_from(&k->in[0], i, count), k->in[1]}, sum = images_from(&k->out[0], i, count),
                   got = sum, terms[2] = {images_from(&k->in[onto], i, count)};
        const size_t taken = slice_nbytes(images_from(&k->out[0], 0, each).n, got.dtype);
        if (onto > 2) in[2] = k->in[2];
        got.data = k->ws;
        inv_call part = *k;
        part.in = in;
        part.nin = onto;
        part.out = &got;
        part.ws = (char *)k->ws + taken;
        part.ws_nbytes = k->ws_nbytes - taken;
        INV_TRY(run(&part));
        terms[1] = got;
        part.in = terms;
        part.nin = 2;
        part.out = &sum;
        INV_TRY(inv_add_or_sub(&part, inv_attr_int(k->node, "minus", 0) != 0));
    }
    return INV_OK;
}

static size_t kernel_workspace(const inv_graph *g, const inv_node *n, const inv_conv *c, bool quick)
{
    const char kind = conv_kind(n);
    const inv_dtype t = inv_in_dtype(g, n, 0);
    if (g->gpu) return inv_conv_gpu_workspace(c, conv_part_of(kind), t, g->precision);
    if (is_last(n)) return inv_conv_last_workspace(c, conv_part_of(kind), kind == 'y' && inv_has_in(n, 2), quick);
    if (inv_winograd_serves(c, t)) return inv_winograd_workspace(c, kind == 'w', quick);
    if (kind == 'x') return inv_conv_grad_x_workspace(c, t);
    return kind == 'w' ? inv_conv_grad_w_workspace(c, t) : inv_conv_workspace(c, t);
}

static size_t conv_scratch(const inv_graph *g, const inv_node *n, bool quick)
{
    inv_conv c;
    if (conv_geometry(n, conv_kind(n), inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &c)) return 0;
    if (!n->op->onto || !inv_has_in(n, n->op->onto)) return kernel_workspace(g, n, &c, quick);
    if (g->gpu && inv_conv_gpu_adds(&c)) return kernel_workspace(g, n, &c, quick);
    inv_shape y = inv_val(g, n->out[0])->shape;
    const inv_dtype t = inv_val(g, n->out[0])->dtype;
    const int64_t each = images_of(&y, t), rest = c.batch % each;
    c.batch = y.dim[0] = each;
    const size_t own = kernel_workspace(g, n, &c, quick);
    c.batch = rest;
    const size_t last = rest ? kernel_workspace(g, n, &c, quick) : 0;
    return slice_nbytes(inv_shape_nelem(&y), t) + (last > own ? last : own);
}

static size_t conv_workspace(const inv_graph *g, const inv_node *n) { return conv_scratch(g, n, false); }
static size_t conv_quick(const inv_graph *g, const inv_node *n) { return conv_scratch(g, n, true); }

static double conv_flops(const inv_graph *g, const inv_node *n)
{
    inv_conv c;
    if (conv_geometry(n, conv_kind(n), inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &c)) return 0;
    return 2.0 * (double)c.batch * (double)c.group * (double)c.mg * (double)c.w.outvol * (double)c.cg *
           (double)c.w.kvol;
}

/* By the filter, as libraries have kernels for them. */
static inv_work conv_work(const inv_graph *g, const inv_node *n)
{
    inv_conv c;
    const char kind = conv_kind(n);
    const inv_work first = kind == 'w' ? INV_WORK_FILTER : INV_WORK_CONV;
    if (conv_geometry(n, kind, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &c)) return first;
    return c.group > 1     ? first + (INV_WORK_CONV_DEPTH - INV_WORK_CONV)
           : c.w.kvol == 1 ? first + (INV_WORK_CONV_POINT - INV_WORK_CONV)
                           : first;
}

static inv_status conv_last_run(const inv_call *k, const inv_conv *c, char kind)
{
    void *a = k->in[0].data, *b = k->in[1].data, *bias = k->nin > 2 ? k->in[2].data : NULL, *out = k->out[0].data;
    const inv_conv_data d = {kind == 'x' ? out : a, kind == 'w' ? out : b, bias,
                             kind == 'y'   ? out
                             : kind == 'x' ? a
                                           : b};
    if (k->in[0].dtype != INV_F32) return INV_E_UNSUPPORTED_OP;
    return inv_conv_last(c, conv_part_of(kind), &d, k->ws, k->ws_nbytes);
}

static inv_status run_kernel(const inv_call *k)
{
    inv_conv c;
    char kind = conv_kind(k->node);
    if (conv_geometry(k->node, kind, &k->in[0].shape, &k->in[1].shape, &c)) return INV_E_SHAPE;
    c.batch = k->in[0].shape.dim[0]; /* of some images attribute `shape` says all */
    if (k->gpu) return inv_conv_gpu(k, &c, conv_part_of(kind), INV_INSTEAD);
    if (is_last(k->node)) return conv_last_run(k, &c, kind);
    const void *a = k->in[0].data, *b = k->in[1].data, *bias = k->nin > 2 ? k->in[2].data : NULL;
    void *out = k->out[0].data;
    const inv_dtype t = k->in[0].dtype;
    const bool few = inv_winograd_serves(&c, t);
    if (kind == 'y' && few) inv_winograd(&c, a, b, bias, out, k->ws, k->ws_nbytes);
    else if (kind == 'y') INV_REAL(t, inv_conv, &c, a, b, bias, out, k->ws, k->ws_nbytes);
    else if (kind == 'x' && few) inv_winograd_grad_x(&c, a, b, out, k->ws, k->ws_nbytes);
    else if (kind == 'x') INV_REAL(t, inv_conv_grad_x, &c, a, b, out, k->ws, k->ws_nbytes);
    else if (few) inv_winograd_grad_w(&c, a, b, out, k->ws, k->ws_nbytes);
    else INV_REAL(t, inv_conv_grad_w, &c, a, b, out, k->ws, k->ws_nbytes);
    return INV_OK;
}

/* On a device, onto what stands in the result's place. */
static inv_status add_in_place(const inv_call *k, const inv_conv *c, uint32_t onto)
{
    inv_call alone = *k;
    alone.nin = onto;
    INV_TRY(inv_begin_sum(k, onto));
    return inv_conv_gpu(&alone, c, conv_part_of(conv_kind(k->node)),
                        inv_attr_int(k->node, "minus", 0) ? INV_TAKEN_FROM : INV_ADDED_TO);
}

static inv_status conv_run(const inv_call *k)
{
    const uint32_t onto = k->node->op->onto;
    inv_conv c;
    if (!onto || onto >= k->nin || !k->in[onto].data) return run_kernel(k);
    if (conv_geometry(k->node, conv_kind(k->node), &k->in[0].shape, &k->in[1].shape, &c)) return INV_E_SHAPE;
    return k->gpu && inv_conv_gpu_adds(&c) ? add_in_place(k, &c, onto) : add_onto(k, onto, run_kernel);
}

static bool conv_channels_last(const inv_graph *g, const inv_node *n, double *gain)
{
    inv_conv c;
    const char kind = conv_kind(n);
    const inv_dtype t = inv_in_dtype(g, n, 0);
    if (conv_geometry(n, kind, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &c)) return false;
    if (g->gpu) return inv_conv_gpu_turns(&c, conv_part_of(kind), t, g->precision, gain);
    /* floating-point operations per nanosecond of one thread, as measured; tiles of few channels fill few vectors */
    const double here = c.depthwise ? 4 : inv_winograd_serves(&c, t) ? 130 : c.direct ? 85 : 70;
    c.last = true;
    const bool tiles = inv_winograd_serves(&c, t);
    if (!tiles && !inv_dnnl_serves(&c, conv_part_of(kind), t)) return false;
    const int64_t few = inv_min64(c.cg, c.mg);
    const double there = c.depthwise ? 40 : !tiles || few < 32 ? 100 : few < 64 ? 125 : 150;
    *gain = conv_flops(g, n) * (1 / here - 1 / there);
    return true;
}

static inv_id emit_conv(inv_graph *g, const char *op, uint32_t nin, const inv_id *in, const inv_window *w,
                        int64_t group, const inv_shape *shape)
{
    inv_window_attrs a;
    inv_window_attrs_of(w, &a);
    inv_attr attr[5] = {a.attr[0], a.attr[1], a.attr[2], inv_attr_of_int("group", group)};
    if (shape) attr[4] = inv_attr_of_shape("shape", shape);
    return inv_emit1(g, op, nin, in, shape ? 5 : 4, attr);
}

/* The gradient of what the result is added to; that of the result by itself. */
static inv_id give_onto(inv_grad *b, inv_id gy)
{
    const inv_node *n = inv_nod(b->g, b->node);
    const bool minus = inv_attr_int(n, "minus", 0) != 0;
    if (inv_has_in(n, n->op->onto) && inv_wants(b, n->op->onto)) inv_grad_set(b, n->op->onto, gy);
    return minus ? inv_emit1(b->g, "Neg", INV_IN(gy), INV_NOATTR) : gy;
}

static inv_status conv_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_conv c;
    inv_id x = inv_I(b, 0), f = inv_I(b, 1), gy = inv_GO(b, 0);
    gy = give_onto(b, gy);
    inv_shape sx = *inv_shape_of_value(g, x), sf = *inv_shape_of_value(g, f);
    const char *why = conv_of(inv_nod(g, b->node), &sx, &sf, &c);
    if (why) return inv_node_fail(g, inv_nod(g, b->node), INV_E_SHAPE, "%s", why);
    bool bias = inv_has_in(inv_nod(g, b->node), 2) && inv_wants(b, 2);
    /* the weights first: x may have to be rebuilt for them, and then gx is not alive yet */
    if (inv_wants(b, 1)) inv_grad_set(b, 1, emit_conv(g, "ConvGradW", INV_IN(x, gy), &c.w, c.group, &sf));
    if (inv_wants(b, 0)) inv_grad_set(b, 0, emit_conv(g, "ConvGradX", INV_IN(gy, f), &c.w, c.group, &sx));
    if (bias) {
        const int64_t axes[] = {0, 2, 3, 4};
        inv_grad_set(
            b, 2,
            inv_emit1(g, "ReduceSumAxes", INV_IN(gy),
                      INV_ATTRS(inv_attr_of_ints("axes", (size_t)c.w.sd + 1, axes), inv_attr_of_int("keepdims", 0))));
    }
    return inv_grad_done(b);
}

/* gx is linear in gy and in the filter; h, the gradient of gx, stands where x stood in the convolution. */
static inv_status conv_grad_x_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_conv c;
    inv_id gy = inv_I(b, 0), f = inv_I(b, 1), h = inv_GO(b, 0);
    h = give_onto(b, h);
    const inv_shape sf = *inv_shape_of_value(g, f);
    const char *why = conv_geometry(inv_nod(g, b->node), 'x', inv_shape_of_value(g, gy), &sf, &c);
    if (why) return inv_node_fail(g, inv_nod(g, b->node), INV_E_SHAPE, "%s", why);
    /* the weights first, as in conv_grad */
    if (inv_wants(b, 1)) inv_grad_set(b, 1, emit_conv(g, "ConvGradW", INV_IN(h, gy), &c.w, c.group, &sf));
    if (inv_wants(b, 0)) inv_grad_set(b, 0, emit_conv(g, "ConvN", INV_IN(h, f), &c.w, c.group, NULL));
    return inv_grad_done(b);
}

/* The same of gw, where h, its gradient, stands for the filter. */
static inv_status conv_grad_w_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_conv c;
    inv_id x = inv_I(b, 0), gy = inv_I(b, 1), h = inv_GO(b, 0);
    const inv_shape sx = *inv_shape_of_value(g, x);
    const char *why = conv_geometry(inv_nod(g, b->node), 'w', &sx, inv_shape_of_value(g, gy), &c);
    if (why) return inv_node_fail(g, inv_nod(g, b->node), INV_E_SHAPE, "%s", why);
    if (inv_wants(b, 1)) inv_grad_set(b, 1, emit_conv(g, "ConvN", INV_IN(x, h), &c.w, c.group, NULL));
    if (inv_wants(b, 0)) inv_grad_set(b, 0, emit_conv(g, "ConvGradX", INV_IN(gy, h), &c.w, c.group, &sx));
    return inv_grad_done(b);
}

static inv_status conv_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_conv c;
    const inv_shape *f = inv_in_shape(g, n, 1);
    const inv_shape *x = inv_in_shape(g, n, 0);
    const char *why = conv_of(n, x, f, &c);
    const bool counts = c.cg > 0 && c.group > 0 && c.cg <= INT32_MAX / c.group; /* else hostile numbers */
    if (why && counts && x->dim[1] != c.group * c.cg) inv_note_misfit(g, 1, x->dim[1], c.group * c.cg);
    else if (why) inv_window_note(g, &c.w);
    size_t count;
    const int64_t *kernel = inv_attr_ints(n, "kernel_shape", &count);
    for (size_t i = 0; i < count && why == NULL; i++) {
        if (count != (size_t)c.w.sd || kernel[i] != f->dim[2 + i]) why = "kernel_shape is not the filter's";
    }
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    out[0] = emit_conv(g, "ConvN", inv_has_in(n, 2) ? 3 : 2, n->in, &c.w, c.group, NULL);
    return inv_done(g);
}

/* --- forms in ONNX --- */

static bool conv_raise(const inv_raising *b)
{
    static const char *const names[] = {"strides", "pads", "dilations", "group"};
    const uint32_t nin = inv_has_in(b->n, 2) ? 3 : 2;
    inv_attr attr[4];
    uint32_t nattr = 0;
    for (int i = 0; i < 4; i++) {
        const inv_attr *a = inv_attr_find(b->n, names[i]);
        if (a) attr[nattr++] = *a;
    }
    return inv_onnx_node(b->r, b->out[0], "Conv", nin, b->in, nattr, attr) != NULL;
}

/* The pads at the end are those that give the extents of `shape`, which a stride over 1 leaves open. */
static bool conv_grad_x_raise(const inv_raising *b)
{
    inv_onnx_body *r = b->r;
    const inv_shape *y = inv_raising_shape(b, 0), *f = inv_raising_shape(b, 1),
                    *x = inv_shape_of_value(r->g, b->n->out[0]);
    const int sd = f->rank - 2;
    int64_t s[INV_MAX_RANK], d[INV_MAX_RANK], pads[2 * INV_MAX_RANK] = {0}, more[INV_MAX_RANK] = {0};
    size_t ns, np, nd;
    const int64_t *strides = inv_attr_ints(b->n, "strides", &ns), *dilations = inv_attr_ints(b->n, "dilations", &nd);
    const int64_t *front = inv_attr_ints(b->n, "pads", &np);
    for (int i = 0; i < sd; i++) {
        s[i] = (size_t)i < ns ? strides[i] : 1;
        d[i] = (size_t)i < nd ? dilations[i] : 1;
        pads[i] = (size_t)i < np ? front[i] : 0;
        const int64_t end = s[i] * (y->dim[2 + i] - 1) + (f->dim[2 + i] - 1) * d[i] + 1 - pads[i] - x->dim[2 + i];
        pads[sd + i] = end > 0 ? end : 0;
        more[i] = end < 0 ? -end : 0;
    }
    const size_t n = (size_t)sd;
    const inv_attr attr[] = {inv_attr_of_ints("strides", n, inv_onnx_copy(r, n, s)),
                             inv_attr_of_ints("dilations", n, inv_onnx_copy(r, n, d)),
                             inv_attr_of_ints("pads", 2 * n, inv_onnx_copy(r, 2 * n, pads)),
                             inv_attr_of_int("group", inv_attr_int(b->n, "group", 1)),
                             inv_attr_of_ints("output_padding", n, inv_onnx_copy(r, n, more))};
    for (int i = 0; i < 5; i++)
        if (attr[i].kind == INV_ATTR_INTS && attr[i].ints == NULL) return false;
    return inv_onnx_node(r, b->out[0], "ConvTranspose", 2, b->in, 5, attr) != NULL;
}

/* clang-format off */
static const inv_op_def convn = {
    .size = sizeof convn,
    .domain = INV_IR,
    .name = "ConvN",
    .images = INV_IMAGES(9, 1, {"channels_last", INV_MARK}),
    .channels_last = conv_channels_last,
    .since = 1,
    .in = "x w b? onto?",
    .out = "y",
    .inplace = 1 << 3,
    .onto = 3,
    .infer = conv_infer,
    .grad = conv_grad,
    .run = conv_run,
    .raise = conv_raise,
    .workspace = conv_workspace, .quick = conv_quick,
    .flops = conv_flops, .work = conv_work,
    .cases =
        (const char *const[]){"y = ConvN<pads = [1,1,1,1]>(float[2,3,5,4] x, float[4,3,3,3] w, float[4] b)",
                              "y = ConvN<strides = [2,2], pads = [1,0,1,2]>(float[2,3,5,6] x, float[4,3,3,2] w)",
                              "y = ConvN<group = 2, dilations = [2,1]>(float[2,4,6,5] x, float[6,2,2,3] w, float[6] b)",
                              "y = ConvN(float[2,3,4,4] x, float[5,3,1,1] w)",
                              "y = ConvN<pads = [1,1,1,1]>(float[2,17,3,5] x, float[18,17,3,3] w)",
                              "y = ConvN<pads = [1,1,1,1]>(float[1,2,3,35] x, float[3,2,3,3] w)",
                              "y = ConvN<pads = [2,0,0,1], minus = 1>"
                              "(float[2,3,4,5] x, float[5,3,3,3] w, float[5] b, float[2,5,4,4] onto)",
                              "y = ConvN<strides = [2,2]>(float[2,3,5,5] x, float[2,3,1,1] w)",
                              "y = ConvN<pads = [2,1]>(float[2,3,7] x, float[4,3,3] w)",
                              "y = ConvN<pads = [1,0,1,0,1,1]>(float[1,2,3,4,4] x, float[3,2,2,2,3] w)",
                              "y = ConvN<group = 4, pads = [1,1,1,1]>(float[2,4,5,5] x, float[4,1,3,3] w)",
                              "y = ConvN<group = 2, strides = [2,1], pads = [1,2,1,0], dilations = "
                              "[1,2]>(float[2,2,5,6] x, float[4,1,3,2] w, "
                              "float[4] b)",
                              "y = ConvN<group = 3, pads = [1,1,1,1]>(float[2,6,5,5] x, float[6,2,3,3] w)",
                              "y = ConvN<group = 2>(float[1,4,4,4] x, float[6,2,1,1] w)",
                              "y = ConvN(float[0,3,4,4] x, float[5,3,3,3] w, float[5] b)",
                              /* column matrices of some images, and of parts of an image, at a time */
                              "y = ConvN<pads = [5,5,5,5]>(float[5,1,24,24] x, float[1,1,11,11] w)",
                              "y = ConvN<pads = [7,7,7,7]>(float[1,2,30,30] x, float[1,2,15,15] w)",
                              "y = ConvN<pads = [2,3,3,2,3,3], strides = [2,1,1]>"
                              "(float[1,1,12,14,14] x, float[1,1,5,7,7] w)",
                              "y = ConvN<strides = [2]>(float[1,1,3000] x, float[1,1,251] w)",
                              /* tiles (winograd.c): odd extents, uneven pads, several bands */
                              "y = ConvN<pads = [1,1,1,1]>(float[1,16,3,4] x, float[16,16,3,3] w, float[16] b)",
                              "y = ConvN<pads = [2,0,1,1]>(float[2,16,4,5] x, float[17,16,3,3] w)",
                              "y = ConvN<pads = [1,1,1,1]>(float[2,16,3,16] x, float[19,16,3,3] w)",
                              "y = ConvN<pads = [1,1,1,1], minus = 1>"
                              "(float[2,3,5,4] x, float[4,3,3,3] w, float[4] b, float[2,4,5,4] onto)",
                              "y = ConvN<pads = [1,1]>"
                              "(float[5,1,400] x, float[2,1,3] w, float[2] b, float[5,2,400] onto)",
                              NULL},
    .doc = "cross-correlation in 1 to 3 dimensions with explicit pads, strides, dilations and groups; `minus`: 1, onto "
           "minus that"};

static const inv_op_def conv_grad_x = {
    .size = sizeof conv_grad_x, .domain = INV_IR, .name = "ConvGradX", .since = 1, .in = "gy w onto?", .out = "gx",
    .images = INV_IMAGES(5, 1, {"channels_last", INV_MARK}, {"shape", INV_PER_AXIS}),
    .channels_last = conv_channels_last,
    .inplace = 1 << 2, .onto = 2, .infer = conv_infer, .grad = conv_grad_x_grad, .run = conv_run,
    .raise = conv_grad_x_raise, .workspace = conv_workspace, .quick = conv_quick,
    .flops = conv_flops, .work = conv_work,
    .cases = (const char *const[]){
        "gx = ConvGradX<pads = [1,1,1,1], shape = [2,3,5,4]>(float[2,4,5,4] gy, float[4,3,3,3] w)",
        "gx = ConvGradX<pads = [2,0,0,1], shape = [2,17,4,5], minus = 1>"
        "(float[2,3,4,4] gy, float[3,17,3,3] w, float[2,17,4,5] onto)",
        "gx = ConvGradX<minus = 1, shape = [2,3,5,4]>(float[2,4,5,4] gy, float[4,3,1,1] w, float[2,3,5,4] onto)",
        "gx = ConvGradX<strides = [3,2], shape = [1,2,9,8]>(float[1,4,3,4] gy, float[4,2,2,1] w)",
        "gx = ConvGradX<strides = [2], shape = [5,2,400]>(float[5,1,199] gy, float[1,2,4] w, float[5,2,400] onto)",
        NULL},
    .doc = "gradient of ConvN to its input, whose shape is an attribute"};

static const inv_op_def conv_grad_w = {
    .size = sizeof conv_grad_w, .domain = INV_IR, .name = "ConvGradW", .since = 1, .in = "x gy", .out = "gw",
    .images = INV_IMAGES(3, 0, {"channels_last", INV_MARK}), .channels_last = conv_channels_last,
    .infer = conv_infer, .grad = conv_grad_w_grad, .run = conv_run, .workspace = conv_workspace, .quick = conv_quick,
    .flops = conv_flops, .work = conv_work,
    .cases = (const char *const[]){
        "gw = ConvGradW<pads = [1,1,1,1], shape = [4,3,3,3]>(float[2,3,5,4] x, float[2,4,5,4] gy)",
        "gw = ConvGradW<shape = [4,3,1,1]>(float[2,3,5,4] x, float[2,4,5,4] gy)",
        "gw = ConvGradW<shape = [4,3,1,1]>(float[2,3,1,1] x, float[2,4,1,1] gy)",
        "gw = ConvGradW<pads = [1,1,1,1], shape = [3,17,3,3]>(float[2,17,3,35] x, float[2,3,3,35] gy)",
        "gw = ConvGradW<pads = [2,0,0,1], shape = [18,2,3,3]>(float[3,2,4,5] x, float[3,18,4,4] gy)",
        "gw = ConvGradW<pads = [1,1,1,1], shape = [5,12,3,3]>(float[3,12,9,16] x, float[3,5,9,16] gy)",
        "gw = ConvGradW<group = 3, pads = [1,1,1,1], shape = [3,1,3,3]>(float[2,3,5,4] x, float[2,3,5,4] gy)", NULL},
    .doc = "gradient of ConvN to its filter, whose shape is an attribute"};
/* clang-format on */

INV_LOWERED_FLAGS(conv, "Conv", 1, "X W B?", "Y", INV_OP_PRODUCT, "convolution; lowers to ConvN with explicit pads",
                  "y = Conv<pads = [1,1,1,1], kernel_shape = [3,3]>(float[2,3,5,4] x, float[4,3,3,3] w, float[4] b)",
                  "y = Conv<auto_pad = \"SAME_UPPER\", strides = [2,2]>(float[2,3,5,6] x, float[4,3,3,2] w)",
                  "y = Conv<auto_pad = \"SAME_LOWER\">(float[2,3,5,6] x, float[4,3,2,2] w)",
                  "y = Conv<auto_pad = \"VALID\">(float[2,3,5,6] x, float[4,3,2,2] w)")

const inv_op_def *const inv_ops_conv[] = {&convn, &conv_grad_x, &conv_grad_w, &conv_row, NULL};
