/* SPDX-License-Identifier: Apache-2.0
 * Convolution on a device. Of 1x1 by matrix products on the images as they are; with 3x3 filters and few channels by
 * kernels of our own; depthwise by others; else by the device's library where that has a way for the call, or by
 * columns of images and matrix products (Chellapilla, Puri, Simard 2006). Some images are taken at a time, and scratch
 * memory is for these; both follow from shapes alone. docs/gpu.md has the times that the choices come from. With
 * channels last a row of the images has all channels of a position, so that products are of all images at once. */
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/conv/conv.h"
#include "ops/gpu/parts_gpu.h"

#define LEAST_CHUNK (1 << 20) /* bytes of columns: half of the operands, more of small ones, */
#define MOST_CHUNK (64 << 20) /* up to this; of what the library may take: as many as the operands, likewise */
#define LEAST_TILE 128        /* but never fewer positions at a time */
#define FILTER_BLOCKS 512     /* blocks that the gradient of a depthwise filter should have */
#define UNIT_CHANNELS 4       /* channels of 4 bytes that matrix units take at once; others the library pads */

typedef enum way { BY_PRODUCT, BY_PARTS, BY_COLUMNS, BY_FEW_CHANNELS, BY_DEPTH } way;

typedef struct plan {
    way way;
    bool library;         /* is asked first */
    int64_t images, tile; /* of a chunk */
    int64_t rows, all;    /* of the column matrix: of a group, of all groups */
    size_t cols, turned;  /* bytes of columns, or of partial sums; of gy in their order */
    size_t gemm;
    int64_t at_once; /* images that the library is given, */
    size_t own;      /* and scratch memory for them, */
    size_t filter;   /* in front of which is the filter in its order, if that is another one */
} plan;

static size_t rounded(int64_t elements, size_t size) { return ((size_t)elements * size + 255) / 256 * 256; }

static double within(double x, double least, double most) { return fmin(fmax(x, least), most); }

static int64_t filter_of(const inv_conv *c) { return c->group * c->mg * c->cg * c->w.kvol; }

/* 3x3, stride 1: what Winograd's method serves, and the kernels for few channels. */
static bool is_square(const inv_conv *c)
{
    const inv_window *w = &c->w;
    return c->group == 1 && w->k[0] == 1 && w->in[0] == 1 && w->pad[0] == 0 && w->pad_end[0] == 0 && w->k[1] == 3 &&
           w->k[2] == 3 && w->stride[1] == 1 && w->stride[2] == 1 && w->dil[1] == 1 && w->dil[2] == 1 &&
           w->pad[1] <= 2 && w->pad[2] <= 2;
}

static bool has_few_channels(const inv_conv *c, inv_dtype t)
{
    const int64_t most = t == INV_F64 ? INV_FEW_CHANNELS / 2 : INV_FEW_CHANNELS;
    return is_square(c) && inv_min64(c->cg, c->mg) < INV_MANY_CHANNELS && inv_max64(c->cg, c->mg) <= most &&
           c->w.in[1] * c->w.in[2] <= INT32_MAX / most && c->w.out[1] * c->w.out[2] <= INT32_MAX / most &&
           c->batch * c->w.out[1] * c->w.out[2] <= INT32_MAX; /* the kernels count in 32 bits within images */
}

/* The channels that an image has in the library's copy of it; 0: it needs none. */
static int64_t copied(const inv_conv *c, int64_t channels)
{
    if (!c->last) return channels;
    return channels % UNIT_CHANNELS ? (channels / UNIT_CHANNELS + 1) * UNIT_CHANNELS : 0;
}

/* What the library's quick ways take: Winograd's 4x4 tiles of 6x6 numbers (Lavin and Gray 2016), or for matrix units
 * copies of images and filter with the channels last. Seen of cuDNN 9.19, to the byte, of channels second. */
static void plan_library(plan *p, const inv_conv *c, inv_dtype t, inv_precision precision, double limit)
{
    const inv_window *w = &c->w;
    double image = 0, fixed = 0;
    p->at_once = c->batch;
    if (t == INV_F32 && precision != INV_PRECISION_FULL) {
        image = 4.0 * (double)c->group *
                ((double)copied(c, c->cg) * (double)w->invol + (double)copied(c, c->mg) * (double)w->outvol);
        fixed = 8.0 * (double)filter_of(c) + LEAST_CHUNK;
    } else if (t == INV_F32 && !c->last && is_square(c) && inv_min64(c->cg, c->mg) >= INV_MANY_CHANNELS) {
        const int64_t tiles = ((w->out[1] + 3) / 4) * ((w->out[2] + 3) / 4);
        image = 144.0 * (double)tiles * (double)(c->cg + c->mg);
        fixed = 144.0 * (double)c->cg * (double)c->mg;
    }
    if (c->batch == 0 || image + fixed <= 0 || image + fixed > limit) return;
    if (image > 0) {
        const int64_t fit = (int64_t)((limit - fixed) / image), chunks = (c->batch + fit - 1) / fit;
        p->at_once = (c->batch + chunks - 1) / chunks;
    }
    p->own = (size_t)((double)p->at_once * image + fixed) / 256 * 256 + 512; /* so much may go to alignment */
}

static void plan_columns(plan *p, const inv_conv *c, inv_conv_part part, size_t size, double limit)
{
    const int64_t outs = c->group * c->mg, vol = c->w.outvol;
    const double each = (double)(p->all + (part == INV_CONV_GRAD_W ? outs : 0)) * (double)size; /* bytes per position */
    const double image = each * (double)vol;
    p->way = BY_COLUMNS;
    if (c->batch == 0 || vol == 0) return;
    if (image <= limit) {
        const int64_t fit = (int64_t)(limit / image), chunks = (c->batch + fit - 1) / fit;
        p->images = (c->batch + chunks - 1) / chunks;
    } else {
        const int64_t fit = (int64_t)fmax(limit / each, LEAST_TILE), chunks = (vol + fit - 1) / fit;
        p->images = 1;
        p->tile = (vol + chunks - 1) / chunks;
    }
    p->cols = rounded(p->all * p->images * p->tile, size);
    if (part == INV_CONV_GRAD_W && p->images > 1 && !c->last) p->turned = rounded(outs * p->images * p->tile, size);
}

/* A 1x1 filter's gradient: a product of each image, then their sum, where these take less than columns would. */
static bool plan_parts(plan *p, const inv_conv *c, size_t size, double limit)
{
    const double image = (double)filter_of(c) * (double)size;
    if (!c->direct || c->group > 1 || c->batch == 0 || filter_of(c) > (c->cg + c->mg) * c->w.outvol) return false;
    const int64_t fit = (int64_t)fmax(limit / image, 1), chunks = (c->batch + fit - 1) / fit;
    p->way = BY_PARTS;
    p->images = (c->batch + chunks - 1) / chunks;
    p->cols = rounded(filter_of(c) * p->images, size);
    return true;
}

static plan conv_gpu_plan(const inv_conv *c, inv_conv_part part, inv_dtype t, inv_precision precision)
{
    const inv_window *w = &c->w;
    const size_t size = inv_dtype_size(t);
    const int64_t outs = c->group * c->mg;
    const double in = (double)(c->group * c->cg) * (double)w->invol, out = (double)outs * (double)w->outvol;
    const double operands = (double)size * (double)c->batch * (in + out);
    const double limit = within(operands / 2, LEAST_CHUNK, MOST_CHUNK);
    plan p = {.images = c->batch, .tile = w->outvol, .rows = c->cg * w->kvol, .at_once = c->batch};
    p.all = c->group * p.rows;
    if (!c->last && (c->depthwise || has_few_channels(c, t))) {
        p.way = c->depthwise ? BY_DEPTH : BY_FEW_CHANNELS;
        p.library = c->depthwise;
        return p;
    }
    if (part == INV_CONV_FORWARD) p.gemm = inv_gpu_gemm_workspace(c->batch * outs, w->outvol, p.rows, t);
    if (part == INV_CONV_GRAD_X) p.gemm = inv_gpu_gemm_workspace(c->batch * p.all, w->outvol, c->mg, t);
    if (part == INV_CONV_GRAD_W) p.gemm = inv_gpu_gemm_workspace(outs, p.rows, c->batch * w->outvol, t);
    if (c->direct && (c->last || part != INV_CONV_GRAD_W)) p.way = BY_PRODUCT;
    else if (c->last || part != INV_CONV_GRAD_W || !plan_parts(&p, c, size, limit))
        plan_columns(&p, c, part, size, limit);
    /* With 1x1 filters products are quicker, but where columns would have to be made for matrix units. */
    const bool units = t == INV_F32 && precision != INV_PRECISION_FULL;
    p.library = c->w.kvol > 1 || (c->group > 1 && !(c->last && c->direct)) || (units && p.way != BY_PRODUCT);
    if (p.library && c->last && c->w.kvol > 1 && c->cg > 1) p.filter = rounded(filter_of(c), size);
    if (p.library) plan_library(&p, c, t, precision, within(operands, LEAST_CHUNK, MOST_CHUNK));
    return p;
}

/* Blocks per element of a depthwise filter. */
static int64_t filter_parts(const inv_conv *c)
{
    int64_t filter = c->group * c->mg * c->w.kvol, parts = (FILTER_BLOCKS + filter - 1) / filter;
    return parts < c->batch ? parts : c->batch > 0 ? c->batch : 1;
}

size_t inv_conv_gpu_workspace(const inv_conv *c, inv_conv_part part, inv_dtype t, inv_precision precision)
{
    const plan p = conv_gpu_plan(c, part, t, precision);
    if (p.way == BY_DEPTH)
        return part == INV_CONV_GRAD_W ? (size_t)(filter_of(c) * filter_parts(c)) * sizeof(double) : 0;
    if (p.way == BY_FEW_CHANNELS)
        return part == INV_CONV_GRAD_W ? rounded(filter_of(c) * inv_few_channels_parts(c), inv_dtype_size(t)) : 0;
    size_t most = p.cols + p.turned + p.gemm;
    if (p.library && p.own > most) most = p.own;
    inv_conv some = *c;
    for (int i = 0; i < 2 && p.library && p.at_once < c->batch; i++) { /* what the library leaves to us */
        some.batch = i == 0 ? p.at_once : c->batch % p.at_once;
        const plan q = conv_gpu_plan(&some, part, t, precision);
        if (q.cols + q.turned + q.gemm > most) most = q.cols + q.turned + q.gemm;
    }
    return p.filter + most;
}

bool inv_conv_gpu_adds(const inv_conv *c) { return c->last || !c->depthwise; }

/* Without matrix units nothing is gained: large Winograd tiles are there for channels second only. Nor are there other
 * kernels of our own. */
bool inv_conv_gpu_turns(const inv_conv *c, inv_conv_part part, inv_dtype t, inv_precision precision, double *gain)
{
    const plan p = conv_gpu_plan(c, part, t, precision);
    const bool own = p.way == BY_DEPTH || p.way == BY_FEW_CHANNELS;
    if (t != INV_F32 || precision == INV_PRECISION_FULL || own) return false;
    const double in = (double)c->cg * (double)c->w.invol, out = (double)c->mg * (double)c->w.outvol;
    *gain = p.library ? (double)c->batch * (double)c->group * (in + out) : 0;
    return true;
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
        INV_TRY(inv_gpu_gemm(gpu, &g, ws, ws_nbytes));
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
    const inv_gpu *gpu;
    const inv_conv *c;
    plan p;
    inv_dtype t;
    size_t size;
    const char *first, *second;
    char *out, *ws;
    size_t ws_nbytes;
    char *cols, *turned, *gemm;
} job;

/* y = filter cols, or cols = filter^T gy, for the images and positions of k. */
static inv_status forward_or_grad_x(const job *j, bool forward, inv_onto onto, const inv_columns *k)
{
    const inv_conv *c = j->c;
    const inv_gpu *gpu = j->gpu;
    int64_t rows = j->p.rows, in = c->group * c->cg * c->w.invol, vol = c->w.outvol, outs = c->group * c->mg;
    bool own = j->p.way == BY_COLUMNS;
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
                  .ldc = vol,
                  .onto = onto};
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
                   .ldc = k->ld,
                   .onto = own ? INV_INSTEAD : onto};
    INV_TRY(products(gpu, g, k->images, c->group, &s, j->gemm, j->p.gemm));
    const inv_onto more = onto == INV_INSTEAD && k->p0 > 0 ? INV_ADDED_TO : onto;
    if (own) INV_GPU(gpu, conv_col2im, k, j->t, cols, more, j->out);
    return INV_OK;
}

/* Channels last: all three parts, for the images and positions of k, which are rows of one matrix. */
static inv_status by_rows(const job *j, inv_conv_part part, inv_onto onto, const inv_columns *k)
{
    const inv_conv *c = j->c;
    const inv_gpu *gpu = j->gpu;
    const bool own = j->p.way == BY_COLUMNS, forward = part == INV_CONV_FORWARD, grad_x = part == INV_CONV_GRAD_X;
    const int64_t rows = j->p.rows, all = j->p.all, outs = c->group * c->mg, positions = k->images * k->np;
    const char *x = grad_x ? j->out : j->first, *y = forward ? j->out : grad_x ? j->first : j->second;
    const char *cols = own ? j->cols : x + (size_t)(k->first * c->w.invol * c->group * c->cg) * j->size;
    y += (size_t)((k->first * c->w.outvol + k->p0) * outs) * j->size;
    inv_gemm g = {.dtype = j->t, .onto = onto, .batch = c->group};
    if (own && !grad_x) INV_GPU(gpu, conv_im2col, k, j->t, x, (char *)(uintptr_t)cols);
    if (forward) { /* y = cols filter^T */
        g.m = positions, g.n = c->mg, g.k = rows, g.tb = true;
        g.a = cols, g.lda = all, g.step_a = rows;
        g.b = j->second, g.ldb = rows, g.step_b = c->mg * rows;
        g.c = (char *)(uintptr_t)y, g.ldc = outs, g.step_c = c->mg;
    } else if (grad_x) { /* cols = gy filter */
        g.m = positions, g.n = rows, g.k = c->mg;
        g.a = y, g.lda = outs, g.step_a = c->mg;
        g.b = j->second, g.ldb = rows, g.step_b = c->mg * rows;
        g.c = (char *)(uintptr_t)cols, g.ldc = all, g.step_c = rows;
        if (own) g.onto = INV_INSTEAD;
    } else { /* gfilter = gy^T cols */
        g.m = c->mg, g.n = rows, g.k = positions, g.ta = true;
        g.a = y, g.lda = outs, g.step_a = c->mg;
        g.b = cols, g.ldb = all, g.step_b = rows;
        g.c = j->out, g.ldc = rows, g.step_c = c->mg * rows;
    }
    INV_TRY(inv_gpu_gemm(gpu, &g, j->gemm, j->p.gemm));
    const inv_onto more = onto == INV_INSTEAD && k->p0 > 0 ? INV_ADDED_TO : onto;
    if (own && grad_x) INV_GPU(gpu, conv_col2im, k, j->t, cols, more, j->out);
    return INV_OK;
}

/* gfilter (+)= gy cols^T, where the images and positions of k are one long axis. */
static inv_status grad_w(const job *j, const inv_columns *k, inv_onto onto)
{
    const inv_conv *c = j->c;
    int64_t rows = j->p.rows, outs = c->group * c->mg, vol = c->w.outvol, lda = vol;
    const char *gy = j->second + (size_t)(k->first * outs * vol + k->p0) * j->size;
    INV_GPU(j->gpu, conv_im2col, k, j->t, j->first, j->cols);
    if (k->images > 1) {
        INV_GPU(j->gpu, conv_turn, k, j->t, outs, j->second, j->turned);
        gy = j->turned;
        lda = k->ld;
    }
    inv_gemm g = {.dtype = j->t,
                  .tb = true,
                  .onto = onto,
                  .m = c->mg,
                  .n = rows,
                  .k = k->images * k->np,
                  .a = gy,
                  .lda = lda,
                  .b = j->cols,
                  .ldb = k->ld,
                  .c = j->out,
                  .ldc = rows,
                  .batch = c->group,
                  .step_a = c->mg * lda,
                  .step_b = rows * k->ld,
                  .step_c = c->mg * rows};
    return inv_gpu_gemm(j->gpu, &g, j->gemm, j->p.gemm);
}

/* The same of 1x1 filters: a product of each image, and their sum. */
static inv_status grad_w_by_parts(const job *j, inv_onto onto)
{
    const inv_conv *c = j->c;
    const int64_t vol = c->w.outvol;
    for (int64_t i = 0; i < c->batch; i += j->p.images) {
        inv_gemm g = {.dtype = j->t,
                      .tb = true,
                      .m = c->mg,
                      .n = c->cg,
                      .k = vol,
                      .a = j->second + (size_t)(i * c->mg * vol) * j->size,
                      .lda = vol,
                      .b = j->first + (size_t)(i * c->cg * vol) * j->size,
                      .ldb = vol,
                      .c = j->cols,
                      .ldc = c->cg,
                      .batch = inv_min64(j->p.images, c->batch - i),
                      .step_a = c->mg * vol,
                      .step_b = c->cg * vol,
                      .step_c = filter_of(c)};
        INV_TRY(j->gpu->gemm(j->gpu, &g, j->gemm, j->p.gemm));
        INV_GPU(j->gpu, sum_parts, j->t, j->t, filter_of(c), g.batch, j->cols, i > 0 ? INV_ADDED_TO : onto, j->out);
    }
    return INV_OK;
}

static inv_status some_columns(const job *j, inv_conv_part part, inv_onto onto, const inv_columns *k)
{
    const bool grad = part == INV_CONV_GRAD_W;
    const inv_onto now = grad && (k->first > 0 || k->p0 > 0) ? INV_ADDED_TO : onto;
    if (j->c->last) return by_rows(j, part, now, k);
    return grad ? grad_w(j, k, now) : forward_or_grad_x(j, part == INV_CONV_FORWARD, now, k);
}

static inv_status by_columns(const job *j, inv_conv_part part, inv_onto onto)
{
    const inv_conv *c = j->c;
    inv_columns k = {.w = c->w, .last = c->last, .channels = c->group * c->cg};
    if (c->batch == 0 || c->w.outvol == 0) { /* no terms: zeros, by products of nothing and by no columns */
        if (part == INV_CONV_GRAD_W) return some_columns(j, part, onto, &k);
        k.images = c->batch;
        touched(&k);
        if (part == INV_CONV_GRAD_X) INV_GPU(j->gpu, conv_col2im, &k, j->t, j->cols, onto, j->out);
        return INV_OK;
    }
    for (int64_t i = 0; i < c->batch; i += j->p.images) {
        for (int64_t p0 = 0; p0 < c->w.outvol; p0 += j->p.tile) {
            k.first = i;
            k.images = c->batch - i < j->p.images ? c->batch - i : j->p.images;
            k.p0 = p0;
            k.np = c->w.outvol - p0 < j->p.tile ? c->w.outvol - p0 : j->p.tile;
            k.ld = c->last ? 1 : part == INV_CONV_GRAD_W ? k.images * k.np : k.np;
            k.at = c->last ? j->p.all : 1;
            k.step = part == INV_CONV_GRAD_W && !c->last ? k.np : j->p.all * k.np;
            touched(&k);
            INV_TRY(some_columns(j, part, onto, &k));
        }
    }
    return INV_OK;
}

/* All images of j->c, as j->p has it. */
static inv_status by_ourselves(job *j, inv_conv_part part, inv_onto onto)
{
    const inv_conv *c = j->c;
    j->cols = j->ws + j->p.filter;
    j->turned = j->cols + j->p.cols;
    j->gemm = j->turned + j->p.turned;
    if (j->p.way == BY_DEPTH) {
        INV_GPU(j->gpu, conv_depthwise, part, c, j->t, j->first, j->second, j->out, filter_parts(c), (double *)j->ws);
        if (part == INV_CONV_GRAD_W)
            INV_GPU(j->gpu, sum_parts, j->t, INV_F64, filter_of(c), filter_parts(c), j->ws, INV_INSTEAD, j->out);
    } else if (j->p.way == BY_FEW_CHANNELS && part == INV_CONV_GRAD_W) {
        const int64_t parts = inv_few_channels_parts(c);
        INV_GPU(j->gpu, few_channels_filter, c, j->t, parts, j->first, j->second, j->ws);
        INV_GPU(j->gpu, sum_parts, j->t, j->t, filter_of(c), parts, j->ws, onto, j->out);
    } else if (j->p.way == BY_FEW_CHANNELS) {
        INV_GPU(j->gpu, few_channels, part, c, j->t, onto, j->first, j->second, j->out);
    } else {
        return j->p.way == BY_PARTS ? grad_w_by_parts(j, onto) : by_columns(j, part, onto);
    }
    return INV_OK;
}

/* All images of j->c, with the filter or its gradient in the library's order. */
static inv_status ask_library(const job *j, inv_conv_part part, inv_onto onto, bool *done)
{
    const inv_conv *c = j->c;
    const inv_gpu *gpu = j->gpu;
    const int64_t outs = c->group * c->mg, kvol = c->w.kvol;
    const bool turned = j->p.filter > 0, grad = part == INV_CONV_GRAD_W;
    const char *second = turned && !grad ? j->ws : j->second;
    char *out = turned && grad ? j->ws : j->out, *ws = j->ws + j->p.filter;
    if (turned && !grad) INV_GPU(gpu, conv_turn_filter, j->t, outs, c->cg, kvol, j->second, INV_INSTEAD, j->ws);
    INV_TRY(gpu->conv(gpu, part, c, j->t, j->first, second, turned && grad ? INV_INSTEAD : onto, out, ws,
                      j->ws_nbytes - j->p.filter, done));
    if (turned && grad && *done) INV_GPU(gpu, conv_turn_filter, j->t, outs, kvol, c->cg, j->ws, onto, j->out);
    return INV_OK;
}

/* Some images at a time, each by the library if that can. */
static inv_status by_library(const job *all, inv_conv_part part, inv_onto onto)
{
    const inv_conv *c = all->c;
    const int64_t x = c->group * c->cg * c->w.invol, y = c->group * c->mg * c->w.outvol;
    for (int64_t i = 0; i < c->batch; i += all->p.at_once) {
        job j = *all;
        inv_conv some = *c;
        bool done = false;
        some.batch = inv_min64(all->p.at_once, c->batch - i);
        j.c = &some;
        j.first += (size_t)(i * (part == INV_CONV_GRAD_X ? y : x)) * j.size;
        if (part == INV_CONV_GRAD_W) j.second += (size_t)(i * y) * j.size;
        else j.out += (size_t)(i * (part == INV_CONV_FORWARD ? y : x)) * j.size;
        const inv_onto now = part == INV_CONV_GRAD_W && i > 0 ? INV_ADDED_TO : onto;
        INV_TRY(ask_library(&j, part, now, &done));
        if (done) continue;
        j.p = conv_gpu_plan(&some, part, j.t, j.gpu->precision);
        INV_TRY(by_ourselves(&j, part, now));
    }
    return INV_OK;
}

inv_status inv_conv_gpu(const inv_call *call, const inv_conv *c, inv_conv_part part, inv_onto onto)
{
    const inv_gpu *gpu = call->gpu;
    const inv_dtype t = call->in[0].dtype;
    if (call->out[0].n == 0) return INV_OK;
    job j = {.gpu = gpu,
             .c = c,
             .p = conv_gpu_plan(c, part, t, gpu->precision),
             .t = t,
             .size = inv_dtype_size(t),
             .first = call->in[0].data,
             .second = call->in[1].data,
             .out = call->out[0].data,
             .ws = call->ws,
             .ws_nbytes = call->ws_nbytes};
    if (gpu->conv && j.p.library && call->in[0].n > 0 && call->in[1].n > 0) INV_TRY(by_library(&j, part, onto));
    else INV_TRY(by_ourselves(&j, part, onto));
    if (part == INV_CONV_FORWARD && call->nin > 2 && call->in[2].data)
        INV_GPU(gpu, conv_bias, c, t, call->in[2].data, onto == INV_TAKEN_FROM, call->out[0].data);
    return INV_OK;
}
