/* SPDX-License-Identifier: Apache-2.0
 * The half of cuDNN that runs something, found by dlopen and dlsym of the program. Descriptors are NVIDIA's, read by
 * NVIDIA's functions. Algorithms are offered in a random order, with such among them as must not be taken; some of
 * those that may be fail when they run. STANDIN_NO_CUDNN=1: there is no such library. */
#define _GNU_SOURCE
#include <cublasLt.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>

#include "standin.h"

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *file, const char *name);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *file, const char *name);

#define READERS(X)                     \
    X(cudnnGetTensorNdDescriptor)      \
    X(cudnnGetFilterNdDescriptor)      \
    X(cudnnGetConvolutionNdDescriptor) \
    X(cudnnGetConvolutionMathType)     \
    X(cudnnGetConvolutionGroupCount)
#define MEMBER(f) static __typeof__(f) *real_##f;
READERS(MEMBER)

enum { FORWARD, GRAD_X, GRAD_W, DIMS = 5 };

typedef struct conv {
    int part, rank, group; /* spatial axes, of which there are three in what follows */
    bool f64, last;        /* channels are last, of tensors and filter alike */
    int64_t x[DIMS], y[DIMS], w[DIMS], xs[DIMS], ys[DIMS];
    int64_t pad[3], stride[3], dilation[3];
    const void *px, *pw, *py; /* one of them is written */
    double alpha, beta;
} conv;

static size_t size_of(const conv *c) { return c->f64 ? 8 : 4; }

static void tensor(cudnnTensorDescriptor_t d, conv *c, int64_t dim[DIMS], int64_t step[DIMS])
{
    cudnnDataType_t type;
    int n, at[DIMS], stride[DIMS];
    if (!d || real_cudnnGetTensorNdDescriptor(d, DIMS, &type, &n, at, stride) != CUDNN_STATUS_SUCCESS || n < 4)
        standin_undefined("cuDNN: a tensor's descriptor says nothing");
    if (type != (c->f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) standin_undefined("cuDNN: types that differ");
    for (int k = n - 1, packed = 1; k >= 0; k--) { /* from the axis that lies closest */
        const int i = !c->last || k == 0 ? k : k == n - 1 ? 1 : k + 1;
        if (stride[i] != packed) standin_undefined("cuDNN: a tensor is not in the filter's order, or has gaps");
        packed *= at[i];
    }
    for (int i = 0; i < DIMS; i++) dim[i] = 1, step[i] = 0;
    for (int i = 0; i < n; i++) {
        const int to = i < 2 ? i : DIMS - n + i;
        dim[to] = at[i];
        step[to] = stride[i];
    }
    c->rank = n - 2;
}

static void read_conv(int part, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y,
                      cudnnConvolutionDescriptor_t d, conv *c)
{
    cudnnDataType_t type, compute;
    cudnnTensorFormat_t format;
    cudnnConvolutionMode_t mode;
    cudnnMathType_t math;
    int n, rank, dim[DIMS], pad[3], stride[3], dilation[3];
    memset(c, 0, sizeof *c);
    c->part = part;
    if (real_cudnnGetFilterNdDescriptor(w, DIMS, &type, &format, &n, dim) != CUDNN_STATUS_SUCCESS ||
        real_cudnnGetConvolutionNdDescriptor(d, 3, &rank, pad, stride, dilation, &mode, &compute) !=
            CUDNN_STATUS_SUCCESS ||
        real_cudnnGetConvolutionMathType(d, &math) != CUDNN_STATUS_SUCCESS ||
        real_cudnnGetConvolutionGroupCount(d, &c->group) != CUDNN_STATUS_SUCCESS)
        standin_undefined("cuDNN: a descriptor says nothing");
    c->f64 = type == CUDNN_DATA_DOUBLE;
    c->last = format == CUDNN_TENSOR_NHWC;
    tensor(x, c, c->x, c->xs);
    tensor(y, c, c->y, c->ys);
    const bool full = c->f64 || strcmp(standin_precision(), "full") == 0;
    if ((format != CUDNN_TENSOR_NCHW && !c->last) || mode != CUDNN_CROSS_CORRELATION || compute != type ||
        (full && math != CUDNN_FMA_MATH) || n != c->rank + 2 || rank != c->rank)
        standin_undefined("cuDNN: format %d, mode %d, arithmetic %d of %d, %d and %d axes", format, mode, math, compute,
                          n, rank);
    for (int i = 0; i < DIMS; i++) c->w[i] = 1;
    for (int i = 0; i < n; i++) c->w[i < 2 ? i : DIMS - n + i] = dim[i];
    for (int i = 0; i < 3; i++) c->stride[i] = c->dilation[i] = 1;
    for (int i = 0; i < rank; i++) {
        c->pad[3 - rank + i] = pad[i];
        c->stride[3 - rank + i] = stride[i];
        c->dilation[3 - rank + i] = dilation[i];
    }
    bool agree = c->x[0] == c->y[0] && c->x[1] == c->w[1] * c->group && c->y[1] == c->w[0] && c->w[0] % c->group == 0;
    for (int i = 0; i < 3; i++)
        agree = agree && c->y[2 + i] ==
                             (c->x[2 + i] + 2 * c->pad[i] - c->dilation[i] * (c->w[2 + i] - 1) - 1) / c->stride[i] + 1;
    if (!agree) standin_undefined("cuDNN: extents that do not belong together");
}

/* --- which algorithms there are --- */

typedef struct offer {
    int algorithm;
    cudnnMathType_t math;
    cudnnDeterminism_t determinism;
    bool fits; /* it may be taken: exact, deterministic, no tensor cores unless these are wanted */
} offer;

static const offer offers[3][6] = {
    {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_TENSOR_OP_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, CUDNN_DEFAULT_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, true},
     {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, true},
     {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_DEFAULT_MATH, CUDNN_DETERMINISTIC, true}},
    {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_FMA_MATH, CUDNN_NON_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_TENSOR_OP_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, true},
     {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, true}},
    {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_FMA_MATH, CUDNN_NON_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, CUDNN_FMA_MATH, CUDNN_NON_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_TENSOR_OP_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, false},
     {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_FMA_MATH, CUDNN_DETERMINISTIC, true}}};

static bool is_tiled(const conv *c, int algorithm)
{
    static const int tiles[] = {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
                                CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
                                CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED};
    return algorithm == tiles[c->part];
}

/* Large Winograd tiles may be taken where channels are many, and second. */
static bool may_be_taken(const conv *c, int algorithm)
{
    bool fits = is_tiled(c, algorithm) && !c->last && c->w[1] >= 32 && c->w[0] / c->group >= 32;
    for (int i = 0; i < 6; i++) fits = fits || (offers[c->part][i].algorithm == algorithm && offers[c->part][i].fits);
    return fits;
}

static uint64_t drawn_for(const conv *c, int algorithm)
{
    conv of = *c;
    of.px = of.pw = of.py = NULL;
    of.alpha = of.beta = 0;
    return standin_hash(&of, sizeof of) + (uint64_t)algorithm * 0x9e3779b97f4a7c15u;
}

/* Of three in ten none is needed, of the rest a little or much. */
static size_t scratch(const conv *c, int algorithm)
{
    const uint64_t h = drawn_for(c, algorithm) >> 8;
    return h % 10 < 3 ? 0 : h % 10 < 8 ? (size_t)(1 + h / 10 % 64) * 100 : (size_t)64 << 20;
}

static bool fails_when_run(const conv *c, int algorithm) { return (drawn_for(c, algorithm) >> 20) % 4 == 0; }

static cudnnStatus_t rank(const conv *c, int most, int *count, offer out[])
{
    const size_t first = (size_t)(drawn_for(c, 0) >> 30) % 6;
    *count = 0;
    if (standin_enter("cudnnGetConvolutionAlgorithm_v7")) return CUDNN_STATUS_INTERNAL_ERROR;
    for (size_t i = 0; i < 6 && *count < most; i++) out[(*count)++] = offers[c->part][(first + i) % 6];
    return CUDNN_STATUS_SUCCESS;
}

#define RANKED(name, part, perf_t, algo_t, d1, t1, d2, t2, d3, t3, X, W, Y)                                            \
    static cudnnStatus_t name(cudnnHandle_t h, t1 d1, t2 d2, cudnnConvolutionDescriptor_t conv_d, t3 d3, int most,     \
                              int *count, perf_t *perf)                                                                \
    {                                                                                                                  \
        conv c;                                                                                                        \
        offer found[6];                                                                                                \
        (void)h;                                                                                                       \
        read_conv(part, X, W, Y, conv_d, &c);                                                                          \
        const cudnnStatus_t s = rank(&c, most, count, found);                                                          \
        for (int i = 0; i < *count; i++)                                                                               \
            perf[i] = (perf_t){.algo = (algo_t)found[i].algorithm,                                                     \
                               .status = CUDNN_STATUS_SUCCESS,                                                         \
                               .determinism = found[i].determinism,                                                    \
                               .mathType = found[i].math};                                                             \
        return s;                                                                                                      \
    }                                                                                                                  \
    static cudnnStatus_t name##_size(cudnnHandle_t h, t1 d1, t2 d2, cudnnConvolutionDescriptor_t conv_d, t3 d3,        \
                                     algo_t a, size_t *nbytes)                                                         \
    {                                                                                                                  \
        conv c;                                                                                                        \
        (void)h;                                                                                                       \
        read_conv(part, X, W, Y, conv_d, &c);                                                                          \
        *nbytes = scratch(&c, (int)a);                                                                                 \
        if (c.last && is_tiled(&c, (int)a)) return CUDNN_STATUS_NOT_SUPPORTED;                                         \
        return standin_enter("cudnnGetConvolutionWorkspaceSize") ? CUDNN_STATUS_INTERNAL_ERROR : CUDNN_STATUS_SUCCESS; \
    }
RANKED(forward_rank, FORWARD, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t, x, cudnnTensorDescriptor_t, w,
       cudnnFilterDescriptor_t, y, cudnnTensorDescriptor_t, x, w, y)
RANKED(data_rank, GRAD_X, cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t, w, cudnnFilterDescriptor_t,
       y, cudnnTensorDescriptor_t, x, cudnnTensorDescriptor_t, x, w, y)
RANKED(filter_rank, GRAD_W, cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t, x,
       cudnnTensorDescriptor_t, y, cudnnTensorDescriptor_t, w, cudnnFilterDescriptor_t, x, w, y)

/* --- running --- */

static double get(const conv *c, const void *p, int64_t i)
{
    return c->f64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void put(const conv *c, const void *p, int64_t i, double v)
{
    if (c->beta != 0) v += c->beta * get(c, p, i);
    if (c->f64) ((double *)(uintptr_t)p)[i] = v;
    else ((float *)(uintptr_t)p)[i] = (float)v;
}

/* The pairs of x and y that element k of the filter joins, of one image. */
static void join(const conv *c, int64_t n, int64_t m, int64_t g, const int64_t k[3], double *filter, double *sum)
{
    const int64_t mg = c->w[0] / c->group, ch = m / mg * c->w[1] + g, vol = c->x[2] * c->x[3] * c->x[4];
    int64_t o[3], at[3];
    for (o[0] = 0; o[0] < c->y[2]; o[0]++)
        for (o[1] = 0; o[1] < c->y[3]; o[1]++)
            for (o[2] = 0; o[2] < c->y[4]; o[2]++) {
                bool in = true;
                int64_t x = n * c->xs[0] + ch * c->xs[1], y = n * c->ys[0] + m * c->ys[1], to = 0;
                for (int i = 0; i < 3; i++) {
                    at[i] = o[i] * c->stride[i] - c->pad[i] + k[i] * c->dilation[i];
                    in = in && at[i] >= 0 && at[i] < c->x[2 + i];
                    x += at[i] * c->xs[2 + i];
                    y += o[i] * c->ys[2 + i];
                    to = to * c->x[2 + i] + at[i];
                }
                if (!in) continue;
                const int64_t here = (o[0] * c->y[3] + o[1]) * c->y[4] + o[2];
                if (c->part == FORWARD) sum[here] += *filter * get(c, c->px, x);
                else if (c->part == GRAD_X) sum[(ch - 0) * vol + to] += *filter * get(c, c->py, y);
                else *filter += get(c, c->px, x) * get(c, c->py, y);
            }
}

static int64_t filter_at(const conv *c, int64_t m, int64_t g, const int64_t k[3])
{
    const int64_t in = (k[0] * c->w[3] + k[1]) * c->w[4] + k[2], kernel = c->w[2] * c->w[3] * c->w[4];
    return c->last ? (m * kernel + in) * c->w[1] + g : (m * c->w[1] + g) * kernel + in;
}

static void for_filter(const conv *c, int64_t n, int64_t m, double *sum)
{
    int64_t k[3];
    for (int64_t g = 0; g < c->w[1]; g++)
        for (k[0] = 0; k[0] < c->w[2]; k[0]++)
            for (k[1] = 0; k[1] < c->w[3]; k[1]++)
                for (k[2] = 0; k[2] < c->w[4]; k[2]++) {
                    const int64_t at = filter_at(c, m, g, k);
                    double f = c->part == GRAD_W ? 0 : get(c, c->pw, at);
                    join(c, n, m, g, k, c->part == GRAD_W ? &sum[at] : &f, sum);
                }
}

static void spread(const conv *c, int64_t n, int64_t m, const int64_t dim[DIMS], const int64_t step[DIMS],
                   const void *to, const double *sum)
{
    for (int64_t i = 0, vol = dim[2] * dim[3] * dim[4]; i < vol; i++) {
        const int64_t a = i / (dim[3] * dim[4]), b = i / dim[4] % dim[3], d = i % dim[4];
        put(c, to, n * step[0] + m * step[1] + a * step[2] + b * step[3] + d * step[4], c->alpha * sum[i]);
    }
}

static void run(void *arg)
{
    const conv *c = arg;
    const int64_t xv = c->x[2] * c->x[3] * c->x[4], yv = c->y[2] * c->y[3] * c->y[4];
    const int64_t wn = c->w[0] * c->w[1] * c->w[2] * c->w[3] * c->w[4];
    const int64_t n = c->part == FORWARD ? yv : c->part == GRAD_X ? c->x[1] * xv : wn;
    double *sum = calloc((size_t)n, sizeof *sum);
    if (!sum) standin_undefined("out of memory");
    for (int64_t i = 0; i < c->x[0]; i++) {
        for (int64_t m = 0; m < c->y[1]; m++) {
            if (c->part == FORWARD) memset(sum, 0, (size_t)n * sizeof *sum);
            for_filter(c, i, m, sum);
            if (c->part == FORWARD) spread(c, i, m, c->y, c->ys, c->py, sum);
        }
        for (int64_t ch = 0; ch < c->x[1] && c->part == GRAD_X; ch++)
            spread(c, i, ch, c->x, c->xs, c->px, sum + ch * xv);
        if (c->part == GRAD_X) memset(sum, 0, (size_t)n * sizeof *sum);
    }
    for (int64_t i = 0; i < wn && c->part == GRAD_W; i++) put(c, c->pw, i, c->alpha * sum[i]);
    free(sum);
}

static size_t span(const conv *c, const int64_t dim[DIMS], const int64_t step[DIMS])
{
    int64_t last = 0;
    for (int i = 0; i < DIMS; i++) last += (dim[i] - 1) * step[i];
    return (size_t)(last + 1) * size_of(c);
}

static cudnnStatus_t start(cudnnHandle_t h, conv *c, const void *alpha, const void *beta, int algorithm, void *ws,
                           size_t ws_nbytes)
{
    standin_check_stream(h->stream);
    if (standin_enter("cudnnConvolution")) return CUDNN_STATUS_EXECUTION_FAILED;
    standin_host_scalar("cuDNN", alpha);
    standin_host_scalar("cuDNN", beta);
    c->alpha = get(c, alpha, 0);
    c->beta = get(c, beta, 0);
    if (!may_be_taken(c, algorithm))
        standin_undefined("cuDNN: algorithm %d, which is not exact or not deterministic", algorithm);
    if (ws_nbytes < scratch(c, algorithm)) return CUDNN_STATUS_BAD_PARAM;
    if (ws_nbytes) standin_needs("cuDNN, scratch memory", ws, ws_nbytes, h->stream);
    standin_needs("cuDNN, x", c->px, span(c, c->x, c->xs), h->stream);
    standin_needs("cuDNN, y", c->py, span(c, c->y, c->ys), h->stream);
    standin_needs("cuDNN, the filter", c->pw, (size_t)(c->w[0] * c->w[1] * c->w[2] * c->w[3] * c->w[4]) * size_of(c),
                  h->stream);
    if (((uintptr_t)c->px | (uintptr_t)c->py | (uintptr_t)c->pw) % size_of(c)) standin_undefined("cuDNN: not aligned");
    if (h->device != standin_stream_device(h->stream)) return CUDNN_STATUS_BAD_PARAM;
    if (fails_when_run(c, algorithm)) {
        if (standin_in_capture(h->stream)) standin_undefined("cuDNN: what has never run is captured");
        return standin_hash(c, sizeof *c) % 2 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_EXECUTION_FAILED;
    }
    return standin_queue(h->stream, drawn_for(c, algorithm) | 1, run, c, sizeof *c) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

static cudnnStatus_t forward(cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t x, const void *px,
                             cudnnFilterDescriptor_t w, const void *pw, cudnnConvolutionDescriptor_t d,
                             cudnnConvolutionFwdAlgo_t a, void *ws, size_t ws_nbytes, const void *beta,
                             cudnnTensorDescriptor_t y, void *py)
{
    conv c;
    read_conv(FORWARD, x, w, y, d, &c);
    c.px = px, c.pw = pw, c.py = py;
    return start(h, &c, alpha, beta, (int)a, ws, ws_nbytes);
}

static cudnnStatus_t data(cudnnHandle_t h, const void *alpha, cudnnFilterDescriptor_t w, const void *pw,
                          cudnnTensorDescriptor_t y, const void *py, cudnnConvolutionDescriptor_t d,
                          cudnnConvolutionBwdDataAlgo_t a, void *ws, size_t ws_nbytes, const void *beta,
                          cudnnTensorDescriptor_t x, void *px)
{
    conv c;
    read_conv(GRAD_X, x, w, y, d, &c);
    c.px = px, c.pw = pw, c.py = py;
    return start(h, &c, alpha, beta, (int)a, ws, ws_nbytes);
}

static cudnnStatus_t filter(cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t x, const void *px,
                            cudnnTensorDescriptor_t y, const void *py, cudnnConvolutionDescriptor_t d,
                            cudnnConvolutionBwdFilterAlgo_t a, void *ws, size_t ws_nbytes, const void *beta,
                            cudnnFilterDescriptor_t w, void *pw)
{
    conv c;
    read_conv(GRAD_W, x, w, y, d, &c);
    c.px = px, c.pw = pw, c.py = py;
    return start(h, &c, alpha, beta, (int)a, ws, ws_nbytes);
}

static cudnnStatus_t create(cudnnHandle_t *out)
{
    if (standin_enter("cudnnCreate")) return CUDNN_STATUS_NOT_INITIALIZED;
    if (standin_capturing()) return CUDNN_STATUS_INTERNAL_ERROR;
    *out = calloc(1, sizeof **out);
    if (!*out) return CUDNN_STATUS_ALLOC_FAILED;
    (*out)->device = standin_device();
    standin_leaks++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(cudnnHandle_t h)
{
    (void)standin_enter("cudnnDestroy");
    free(h);
    standin_leaks--;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t h, cudaStream_t s)
{
    if (standin_enter("cudnnSetStream")) return CUDNN_STATUS_INTERNAL_ERROR;
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}

/* --- how it is found --- */

static void *real, *real_lt;

void *__wrap_dlopen(const char *name, int flags)
{
    const char *no = getenv("STANDIN_NO_CUDNN");
    if (name && strstr(name, "libnccl")) return standin_nccl_open();
    if (name && strstr(name, "libcublasLt"))
        return real_lt = getenv("STANDIN_NO_CUBLASLT") ? NULL : __real_dlopen(STANDIN_CUBLASLT, flags);
    if (!name || !strstr(name, "libcudnn")) return __real_dlopen(name, flags);
    real = no ? NULL : __real_dlopen(STANDIN_CUDNN, flags);
#define LOOK_UP(f)                                            \
    if (real) {                                               \
        void *at = __real_dlsym(real, #f);                    \
        if (!at) standin_undefined("the library has no " #f); \
        memcpy(&real_##f, &at, sizeof at);                    \
    }
    READERS(LOOK_UP)
    return real;
}

void *__wrap_dlsym(void *file, const char *name)
{
    void *nccl = standin_nccl_find(file, name);
    if (nccl) return nccl;
    if (real_lt && file == real_lt) {
        OURS("cublasLtCreate", cublasLtCreate)
        OURS("cublasLtDestroy", cublasLtDestroy)
        OURS("cublasLtMatmulAlgoGetHeuristic", cublasLtMatmulAlgoGetHeuristic)
        OURS("cublasLtMatmul", cublasLtMatmul)
    }
    if (!real || file != real) return __real_dlsym(file, name);
    OURS("cudnnCreate", create)
    OURS("cudnnDestroy", destroy)
    OURS("cudnnSetStream", set_stream)
    OURS("cudnnGetConvolutionForwardAlgorithm_v7", forward_rank)
    OURS("cudnnGetConvolutionForwardWorkspaceSize", forward_rank_size)
    OURS("cudnnConvolutionForward", forward)
    OURS("cudnnGetConvolutionBackwardDataAlgorithm_v7", data_rank)
    OURS("cudnnGetConvolutionBackwardDataWorkspaceSize", data_rank_size)
    OURS("cudnnConvolutionBackwardData", data)
    OURS("cudnnGetConvolutionBackwardFilterAlgorithm_v7", filter_rank)
    OURS("cudnnGetConvolutionBackwardFilterWorkspaceSize", filter_rank_size)
    OURS("cudnnConvolutionBackwardFilter", filter)
    return __real_dlsym(file, name);
}
