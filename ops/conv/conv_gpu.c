/* SPDX-License-Identifier: Apache-2.0
 * Convolution on a device: of 1x1 by matrix products on the images as they are, else by its library where that has one
 * for the call, else depthwise kernels, or columns of images and matrix products (Chellapilla, Puri, Simard 2006) in
 * chunks. Chunks and scratch memory follow from shapes alone; a chunk's columns take half as much memory as the
 * operands, within limits, so that chunks are few and small models stay small. */
#include "ops/base/util.h"
#include "ops/conv/conv.h"

#define LEAST_CHUNK (1 << 20) /* bytes of columns; more for larger operands, */
#define MOST_CHUNK (64 << 20) /* up to this, */
#define LEAST_TILE 128        /* but never fewer positions at a time */
#define FILTER_BLOCKS 512     /* blocks that the gradient of a depthwise filter should have */

typedef struct plan {
    bool columns;         /* false: x (or gx) itself is the column matrix */
    int64_t images, tile; /* of a chunk */
    int64_t rows, all;    /* of the column matrix: of a group, of all groups */
    size_t cols, turned;  /* bytes of columns and of gy in their order */
    size_t gemm;
} plan;

static size_t rounded(int64_t elements, size_t size) { return ((size_t)elements * size + 255) / 256 * 256; }

static plan conv_gpu_plan(const inv_conv *c, inv_conv_part part, inv_dtype t)
{
    const inv_window *w = &c->w;
    const size_t size = inv_dtype_size(t);
    plan p = {.columns = true, .images = c->batch, .tile = w->outvol, .rows = c->cg * w->kvol};
    p.all = c->group * p.rows;
    int64_t outs = c->group * c->mg;
    double each = (double)(p.all + (part == INV_CONV_GRAD_W ? outs : 0)) * (double)size; /* bytes per position */
    double image = each * (double)w->outvol, in = (double)(c->group * c->cg) * (double)w->invol;
    double operands = (double)size * (double)c->batch * (in + (double)outs * (double)w->outvol);
    double limit = fmin(fmax(operands / 2, LEAST_CHUNK), MOST_CHUNK);
    if (part == INV_CONV_FORWARD) p.gemm = inv__gpu_gemm_workspace(c->batch * outs, w->outvol, p.rows, t);
    if (part == INV_CONV_GRAD_X) p.gemm = inv__gpu_gemm_workspace(c->batch * p.all, w->outvol, c->mg, t);
    if (part == INV_CONV_GRAD_W) p.gemm = inv__gpu_gemm_workspace(outs, p.rows, c->batch * w->outvol, t);
    if (c->direct && (part != INV_CONV_GRAD_W || c->batch == 1 || image > limit)) {
        p.columns = false;
        if (part == INV_CONV_GRAD_W) p.images = 1;
        return p;
    }
    if (c->batch == 0 || w->outvol == 0) return p;
    if (image <= limit) {
        int64_t fit = (int64_t)(limit / image), chunks = (c->batch + fit - 1) / fit;
        p.images = (c->batch + chunks - 1) / chunks;
    } else {
        int64_t fit = (int64_t)fmax(limit / each, LEAST_TILE), chunks = (w->outvol + fit - 1) / fit;
        p.images = 1;
        p.tile = (w->outvol + chunks - 1) / chunks;
    }
    p.cols = rounded(p.all * p.images * p.tile, size);
    if (part == INV_CONV_GRAD_W && p.images > 1) p.turned = rounded(outs * p.images * p.tile, size);
    return p;
}

/* Blocks per element of a depthwise filter. */
static int64_t filter_parts(const inv_conv *c)
{
    int64_t filter = c->group * c->mg * c->w.kvol, parts = (FILTER_BLOCKS + filter - 1) / filter;
    return parts < c->batch ? parts : c->batch > 0 ? c->batch : 1;
}

size_t inv__conv_gpu_workspace(const inv_conv *c, inv_conv_part part, inv_dtype t)
{
    if (c->depthwise) {
        int64_t filter = c->group * c->mg * c->w.kvol;
        return part == INV_CONV_GRAD_W ? (size_t)(filter * filter_parts(c)) * sizeof(double) : 0;
    }
    plan p = conv_gpu_plan(c, part, t);
    return p.cols + p.turned + p.gemm;
}

/* The products of all images and groups; steps between images and between groups. */
typedef struct steps {
    int64_t a[2], b[2], c[2];
} steps;

static inv_status products(const inv_gpu *gpu, inv_gemm g, int64_t images, int64_t groups, const steps *s, void *ws,
                           size_t ws_nbytes)
{
    int in = groups > images ? 1 : 0, out = 1 - in; /* the longer one is the batch of a call */
    int64_t calls = in ? images : groups;
    size_t size = inv_dtype_size(g.dtype);
    const char *a = g.a, *b = g.b;
    char *to = g.c;
    g.batch = in ? groups : images;
    g.step_a = s->a[in];
    g.step_b = s->b[in];
    g.step_c = s->c[in];
    for (int64_t i = 0; i < calls; i++) {
        g.a = a + (size_t)(i * s->a[out]) * size;
        g.b = b + (size_t)(i * s->b[out]) * size;
        g.c = to + (size_t)(i * s->c[out]) * size;
        INV_TRY(gpu->gemm(gpu, &g, ws, ws_nbytes));
    }
    return INV_OK;
}

/* What positions p0.. of an image read: a range of elements of each channel, the whole channel for the first. */
static void touched(inv_columns *k)
{
    const inv_window *w = &k->w;
    int64_t first = k->p0, last = k->p0 + k->np - 1, lo = 0, hi = 0, below = w->outvol;
    bool one = true; /* all positions agree in the axes before this one */
    for (int i = 0; i < 3; i++) {
        int64_t a = 0, b = w->in[i] - 1;
        below = w->out[i] > 0 ? below / w->out[i] : 0;
        if (one && below > 0) {
            int64_t o0 = first / below % w->out[i], o1 = last / below % w->out[i];
            a = o0 * w->stride[i] - w->pad[i];
            b = o1 * w->stride[i] - w->pad[i] + (w->k[i] - 1) * w->dil[i];
            one = o0 == o1;
        }
        a = a < 0 ? 0 : a;
        b = b > w->in[i] - 1 ? w->in[i] - 1 : b;
        lo = lo * w->in[i] + a;
        hi = hi * w->in[i] + b;
    }
    k->lo = k->p0 == 0 ? 0 : lo;
    k->n = k->p0 == 0 ? w->invol : hi < lo ? 0 : hi - lo + 1;
}

typedef struct job {
    const inv_call *call;
    const inv_conv *c;
    plan p;
    inv_dtype t;
    size_t size;
    const char *first, *second;
    char *out, *cols, *turned, *gemm;
} job;

/* y = filter cols, or cols = filter^T gy, for the images and positions of k. */
static inv_status forward_or_grad_x(const job *j, bool forward, const inv_columns *k)
{
    const inv_conv *c = j->c;
    const inv_gpu *gpu = j->call->gpu;
    int64_t rows = j->p.rows, in = c->group * c->cg * c->w.invol, vol = c->w.outvol, outs = c->group * c->mg;
    bool own = j->p.columns;
    size_t y = (size_t)(k->first * outs * vol + k->p0) * j->size;
    const char *x = forward ? j->first : j->out;
    char *cols = own ? j->cols : (char *)(uintptr_t)(x + (size_t)(k->first * in) * j->size);
    steps s = {.a = {0, c->mg * rows}, .b = {own ? k->step : in, rows * k->ld}, .c = {outs * vol, c->mg * vol}};
    inv_gemm g = {.dtype = j->t,
                  .m = c->mg,
                  .n = k->np,
                  .k = rows,
                  .a = j->second,
                  .lda = rows,
                  .b = cols,
                  .ldb = k->ld,
                  .c = j->out + y,
                  .ldc = vol};
    if (forward) {
        if (own) INV_GPU(gpu, conv_im2col, k, j->t, j->first, cols);
        return products(gpu, g, k->images, c->group, &s, j->gemm, j->p.gemm);
    }
    s = (steps){.a = {s.a[0], s.a[1]}, .b = {s.c[0], s.c[1]}, .c = {s.b[0], s.b[1]}};
    g = (inv_gemm){.dtype = j->t,
                   .ta = true,
                   .m = rows,
                   .n = k->np,
                   .k = c->mg,
                   .a = j->second,
                   .lda = rows,
                   .b = j->first + y,
                   .ldb = vol,
                   .c = cols,
                   .ldc = k->ld};
    INV_TRY(products(gpu, g, k->images, c->group, &s, j->gemm, j->p.gemm));
    if (own) INV_GPU(gpu, conv_col2im, k, j->t, cols, k->p0 > 0, j->out);
    return INV_OK;
}

/* gfilter (+)= gy cols^T, where the images and positions of k are one long axis. */
static inv_status grad_w(const job *j, const inv_columns *k, bool add)
{
    const inv_conv *c = j->c;
    const inv_gpu *gpu = j->call->gpu;
    int64_t rows = j->p.rows, outs = c->group * c->mg, vol = c->w.outvol, lda = vol;
    const char *gy = j->second + (size_t)(k->first * outs * vol + k->p0) * j->size;
    const char *cols = j->first + (size_t)(k->first * k->channels * c->w.invol) * j->size;
    if (j->p.columns) {
        INV_GPU(gpu, conv_im2col, k, j->t, j->first, j->cols);
        cols = j->cols;
    }
    if (k->images > 1) {
        INV_GPU(gpu, conv_turn, k, j->t, outs, j->second, j->turned);
        gy = j->turned;
        lda = k->ld;
    }
    inv_gemm g = {.dtype = j->t,
                  .tb = true,
                  .add = add,
                  .m = c->mg,
                  .n = rows,
                  .k = k->images * k->np,
                  .a = gy,
                  .lda = lda,
                  .b = cols,
                  .ldb = k->ld,
                  .c = j->out,
                  .ldc = rows,
                  .batch = c->group,
                  .step_a = c->mg * lda,
                  .step_b = rows * k->ld,
                  .step_c = c->mg * rows};
    return gpu->gemm(gpu, &g, j->gemm, j->p.gemm);
}

static inv_status by_columns(const job *j, inv_conv_part part)
{
    const inv_conv *c = j->c;
    inv_columns k = {.w = c->w, .channels = c->group * c->cg};
    if (c->batch == 0 || c->w.outvol == 0) { /* no terms: zeros, by products of nothing and by no columns */
        if (part == INV_CONV_GRAD_W) return grad_w(j, &k, false);
        k.images = c->batch;
        touched(&k);
        if (part == INV_CONV_GRAD_X) INV_GPU(j->call->gpu, conv_col2im, &k, j->t, j->cols, false, j->out);
        return INV_OK;
    }
    for (int64_t i = 0; i < c->batch; i += j->p.images) {
        for (int64_t p0 = 0; p0 < c->w.outvol; p0 += j->p.tile) {
            k.first = i;
            k.images = c->batch - i < j->p.images ? c->batch - i : j->p.images;
            k.p0 = p0;
            k.np = c->w.outvol - p0 < j->p.tile ? c->w.outvol - p0 : j->p.tile;
            k.ld = part == INV_CONV_GRAD_W ? k.images * k.np : k.np;
            k.step = part == INV_CONV_GRAD_W ? k.np : j->p.all * k.np;
            touched(&k);
            if (part == INV_CONV_GRAD_W) INV_TRY(grad_w(j, &k, i > 0 || p0 > 0));
            else INV_TRY(forward_or_grad_x(j, part == INV_CONV_FORWARD, &k));
        }
    }
    return INV_OK;
}

inv_status inv__conv_gpu(const inv_call *call, const inv_conv *c, inv_conv_part part)
{
    const inv_gpu *gpu = call->gpu;
    inv_dtype t = call->in[0].dtype;
    const void *first = call->in[0].data, *second = call->in[1].data;
    void *out = call->out[0].data;
    bool done = false;
    if (call->out[0].n == 0) return INV_OK;
    const bool product = c->direct && c->group == 1 && part != INV_CONV_GRAD_W;
    if (gpu->conv && !product && call->in[0].n > 0 && call->in[1].n > 0)
        INV_TRY(gpu->conv(gpu, part, c, t, first, second, out, call->ws, call->ws_nbytes, &done));
    if (!done && c->depthwise) {
        INV_GPU(gpu, conv_depthwise, part, c, t, first, second, out, filter_parts(c), call->ws);
    } else if (!done) {
        job j = {call, c, conv_gpu_plan(c, part, t), t, inv_dtype_size(t), first, second, out, call->ws, NULL, NULL};
        j.turned = j.cols + j.p.cols;
        j.gemm = j.turned + j.p.turned;
        INV_TRY(by_columns(&j, part));
    }
    if (part == INV_CONV_FORWARD && call->nin > 2 && call->in[2].data)
        INV_GPU(gpu, conv_bias, c, t, call->in[2].data, out);
    return INV_OK;
}
