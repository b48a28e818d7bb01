/* SPDX-License-Identifier: Apache-2.0
 * Convolutions by cuDNN, where this was compiled with its header and it is found when the program runs. */
#include <cuda_runtime_api.h>

#if defined __has_include
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#if CUDNN_MAJOR >= 9 /* status codes are grouped by thousands from then on */
#define WITH_CUDNN
#endif
#endif
#endif

#include "executor/device/cuda_kinds.h"
#include "ops/conv/conv_gpu.h"

#ifdef WITH_CUDNN
enum { MOST_CANDIDATES = 16 };

#define CUDNN_FUNCTIONS(X)                            \
    X(cudnnGetVersion)                                \
    X(cudnnCreate)                                    \
    X(cudnnDestroy)                                   \
    X(cudnnSetStream)                                 \
    X(cudnnGetErrorString)                            \
    X(cudnnCreateTensorDescriptor)                    \
    X(cudnnDestroyTensorDescriptor)                   \
    X(cudnnSetTensorNdDescriptor)                     \
    X(cudnnCreateFilterDescriptor)                    \
    X(cudnnDestroyFilterDescriptor)                   \
    X(cudnnSetFilterNdDescriptor)                     \
    X(cudnnCreateConvolutionDescriptor)               \
    X(cudnnDestroyConvolutionDescriptor)              \
    X(cudnnSetConvolutionNdDescriptor)                \
    X(cudnnSetConvolutionGroupCount)                  \
    X(cudnnSetConvolutionMathType)                    \
    X(cudnnGetConvolutionForwardAlgorithm_v7)         \
    X(cudnnGetConvolutionForwardWorkspaceSize)        \
    X(cudnnConvolutionForward)                        \
    X(cudnnGetConvolutionBackwardDataAlgorithm_v7)    \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)   \
    X(cudnnConvolutionBackwardData)                   \
    X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)  \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
    X(cudnnConvolutionBackwardFilter)

typedef struct inv_dnn {
    bool looked; /* for the library; found if handle is set */
    cudnnHandle_t handle;
    CUDNN_FUNCTIONS(INV_MEMBER)
    inv_kinds kinds;
} cudnn;

typedef struct candidate {
    int algorithm; /* of the enumeration that belongs to the part */
    cudnnMathType_t math;
    size_t ws;
} candidate;

typedef struct convolution {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t conv;
    candidate candidate[MOST_CANDIDATES]; /* in the library's ranking; the one that works is put first */
    int ncandidate;
} convolution;

typedef struct entry {
    inv_call_kind way;
    convolution conv;
} entry;

#define DNN_NAME INV_SO_NAME("libcudnn", CUDNN_MAJOR)

static bool cudnn_load(inv_cuda_libs *lib, cudnn *d)
{
    lib->convolutions = "column matrices and cuBLASLt, as there is no " DNN_NAME;
    void *at, *file = dlopen(DNN_NAME, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) return false;
    lib->convolutions = "column matrices and cuBLASLt, as " DNN_NAME " cannot be used";
    CUDNN_FUNCTIONS(INV_LOOK_UP)
    if (d->cudnnCreate(&d->handle) != CUDNN_STATUS_SUCCESS) d->handle = NULL;
    return d->handle != NULL;
}

/* The library whose header this file was compiled with, if it is installed. */
static bool cudnn_open(inv_cuda_libs *lib)
{
    cudnn *d = lib->dnn;
    if (d->looked) return d->handle != NULL;
    d->looked = true;
    const bool found = cudnn_load(lib, d);
    if (found) lib->convolutions = "cuDNN";
    else
        inv_log(lib->ctx,
                "device cuda: convolutions are computed by %s, which is slower. Put the folder of cuDNN into "
                "LD_LIBRARY_PATH",
                lib->convolutions);
    return found;
}

static void conv_free(const cudnn *d, convolution *v)
{
    if (v->x) (void)d->cudnnDestroyTensorDescriptor(v->x);
    if (v->y) (void)d->cudnnDestroyTensorDescriptor(v->y);
    if (v->filter) (void)d->cudnnDestroyFilterDescriptor(v->filter);
    if (v->conv) (void)d->cudnnDestroyConvolutionDescriptor(v->conv);
    memset(v, 0, sizeof *v);
}

/* `dim`: batch, channels, spatial axes, whatever their order in memory. */
static bool tensor_of(const cudnn *d, cudnnTensorDescriptor_t *out, cudnnDataType_t t, bool last, int rank,
                      const int64_t *dim)
{
    int size[5], stride[5];
    int64_t step = 1;
    for (int k = rank - 1; k >= 0; k--) {
        const int i = !last || k == 0 ? k : k == rank - 1 ? 1 : k + 1;
        if (dim[i] > INT32_MAX || step > INT32_MAX) return false;
        size[i] = (int)dim[i];
        stride[i] = (int)step;
        step *= dim[i];
    }
    return d->cudnnCreateTensorDescriptor(out) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetTensorNdDescriptor(*out, t, rank, size, stride) == CUDNN_STATUS_SUCCESS;
}

/* Images as they are, with one or two spatial axes as two, with three as three. With channels last the filter has its
 * own in the order [M,kernel...,C/group]. */
static bool conv_describe(const cudnn *d, const inv_conv *c, cudnnDataType_t t, cudnnMathType_t math, convolution *v)
{
    const inv_window *w = &c->w;
    int skip = w->sd == 3 ? 0 : 1, sd = 3 - skip, pad[3], stride[3], dilation[3], filter[5];
    int64_t x[5] = {c->batch, c->group * c->cg}, y[5] = {c->batch, c->group * c->mg};
    if (c->group * c->mg > INT32_MAX || c->group * c->cg > INT32_MAX) return false;
    filter[0] = (int)(c->group * c->mg);
    filter[1] = (int)c->cg;
    for (int i = 0; i < sd; i++) {
        int at = skip + i;
        if (w->pad[at] != w->pad_end[at]) return false;
        pad[i] = (int)w->pad[at];
        stride[i] = (int)w->stride[at];
        dilation[i] = (int)w->dil[at];
        filter[2 + i] = (int)w->k[at];
        x[2 + i] = w->in[at];
        y[2 + i] = w->out[at];
    }
    const cudnnTensorFormat_t format = c->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    return tensor_of(d, &v->x, t, c->last, sd + 2, x) && tensor_of(d, &v->y, t, c->last, sd + 2, y) &&
           d->cudnnCreateFilterDescriptor(&v->filter) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetFilterNdDescriptor(v->filter, t, format, sd + 2, filter) == CUDNN_STATUS_SUCCESS &&
           d->cudnnCreateConvolutionDescriptor(&v->conv) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetConvolutionNdDescriptor(v->conv, sd, pad, stride, dilation, CUDNN_CROSS_CORRELATION, t) ==
               CUDNN_STATUS_SUCCESS &&
           d->cudnnSetConvolutionGroupCount(v->conv, (int)c->group) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetConvolutionMathType(v->conv, math) == CUDNN_STATUS_SUCCESS;
}

/* Fourier transforms are left out: their rounding errors are those of the largest input. So are large Winograd tiles
 * where channels are few, and little is won by them. */
static bool exact_forward(int a, bool many)
{
    return a != CUDNN_CONVOLUTION_FWD_ALGO_FFT && a != CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING &&
           (many || a != CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED);
}
static bool exact_data(int a, bool many)
{
    return a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT && a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING &&
           (many || a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED);
}
static bool exact_filter(int a, bool many)
{
    return a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT && a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING &&
           (many || a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED);
}

/* The algorithms of the library's ranking that are exact, deterministic, of the precision wanted, and fit. In a ranking
 * for float32 the default stands for fused multiplications. */
#define CHOOSE(perf_t, rank, size, exact, one, two, three)                                                       \
    do {                                                                                                         \
        perf_t perf[MOST_CANDIDATES];                                                                            \
        if (d->rank(d->handle, one, two, v->conv, three, MOST_CANDIDATES, &count, perf) != CUDNN_STATUS_SUCCESS) \
            break;                                                                                               \
        for (int i = 0; i < count; i++) {                                                                        \
            const bool fma = perf[i].mathType == CUDNN_FMA_MATH || perf[i].mathType == CUDNN_DEFAULT_MATH;       \
            const candidate way = {(int)perf[i].algo, less ? perf[i].mathType : CUDNN_FMA_MATH, 0};              \
            candidate *to = &v->candidate[v->ncandidate];                                                        \
            if (perf[i].status != CUDNN_STATUS_SUCCESS || perf[i].determinism != CUDNN_DETERMINISTIC ||          \
                !(fma || (less && perf[i].mathType == CUDNN_TENSOR_OP_MATH)) || !exact(way.algorithm, many))     \
                continue;                                                                                        \
            *to = way;                                                                                           \
            if (d->cudnnSetConvolutionMathType(v->conv, way.math) == CUDNN_STATUS_SUCCESS &&                     \
                d->size(d->handle, one, two, v->conv, three, perf[i].algo, &to->ws) == CUDNN_STATUS_SUCCESS &&   \
                to->ws <= ws_nbytes)                                                                             \
                v->ncandidate++;                                                                                 \
        }                                                                                                        \
    } while (0)

static void conv_choose(const cudnn *d, inv_conv_part part, const inv_conv *c, bool less, convolution *v,
                        size_t ws_nbytes)
{
    const bool many = c->cg >= INV_MANY_CHANNELS && c->mg >= INV_MANY_CHANNELS;
    int count = 0;
    if (part == INV_CONV_FORWARD)
        CHOOSE(cudnnConvolutionFwdAlgoPerf_t, cudnnGetConvolutionForwardAlgorithm_v7,
               cudnnGetConvolutionForwardWorkspaceSize, exact_forward, v->x, v->filter, v->y);
    else if (part == INV_CONV_GRAD_X)
        CHOOSE(cudnnConvolutionBwdDataAlgoPerf_t, cudnnGetConvolutionBackwardDataAlgorithm_v7,
               cudnnGetConvolutionBackwardDataWorkspaceSize, exact_data, v->filter, v->y, v->x);
    else
        CHOOSE(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnGetConvolutionBackwardFilterAlgorithm_v7,
               cudnnGetConvolutionBackwardFilterWorkspaceSize, exact_filter, v->x, v->y, v->filter);
    /* The library ranks large Winograd tiles behind plain products, which take two to three times as long. */
    static const int tiles[] = {[INV_CONV_FORWARD] = CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
                                [INV_CONV_GRAD_X] = CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
                                [INV_CONV_GRAD_W] = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED};
    for (int i = v->ncandidate - 1; i > 0 && !less; i--) {
        if (v->candidate[i].algorithm != tiles[part]) continue;
        const candidate tiled = v->candidate[i];
        memmove(v->candidate + 1, v->candidate, (size_t)i * sizeof *v->candidate);
        v->candidate[0] = tiled;
        break;
    }
}

/* By the i-th candidate. */
static cudnnStatus_t conv_run(const cudnn *d, inv_conv_part part, const convolution *v, int i, const inv_factors *by,
                              const void *first, const void *second, void *out, void *ws)
{
    const int algorithm = v->candidate[i].algorithm;
    const size_t ws_nbytes = v->candidate[i].ws;
    if (part == INV_CONV_FORWARD)
        return d->cudnnConvolutionForward(d->handle, &by->product, v->x, first, v->filter, second, v->conv,
                                          (cudnnConvolutionFwdAlgo_t)algorithm, ws, ws_nbytes, &by->before, v->y, out);
    if (part == INV_CONV_GRAD_X)
        return d->cudnnConvolutionBackwardData(d->handle, &by->product, v->filter, second, v->y, first, v->conv,
                                               (cudnnConvolutionBwdDataAlgo_t)algorithm, ws, ws_nbytes, &by->before,
                                               v->x, out);
    return d->cudnnConvolutionBackwardFilter(d->handle, &by->product, v->x, first, v->y, second, v->conv,
                                             (cudnnConvolutionBwdFilterAlgo_t)algorithm, ws, ws_nbytes, &by->before,
                                             v->filter, out);
}

/* What the result is added to is no part of it: an inverse has to take off the very bits that forward has added. */
static void conv_key(const inv_conv *c, inv_conv_part part, inv_dtype t, size_t ws_nbytes, int64_t key[INV_KIND_KEY])
{
    const inv_window *w = &c->w;
    const int64_t head[8] = {'c', part, t, (int64_t)ws_nbytes, c->batch, c->group, c->cg, c->mg};
    memset(key, 0, INV_KIND_KEY * sizeof *key);
    memcpy(key, head, sizeof head);
    for (int i = 0; i < 3; i++) {
        const int64_t axis[6] = {w->in[i], w->k[i], w->stride[i], w->dil[i], w->pad[i], w->pad_end[i]};
        memcpy(key + 8 + 6 * i, axis, sizeof axis);
    }
    key[26] = w->sd;
    key[27] = c->last;
}

/* The first call of a kind, which is never in a recording: candidates until one works. What fails without leaving the
 * device unusable is no candidate. Which they are is told by the library only when it runs them. */
static cudnnStatus_t conv_try(const cudnn *d, inv_conv_part part, convolution *v, const inv_factors *by,
                              const void *first, const void *second, void *out, void *ws)
{
    cudnnStatus_t s = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < v->ncandidate; i++) {
        s = d->cudnnSetConvolutionMathType(v->conv, v->candidate[i].math);
        if (s == CUDNN_STATUS_SUCCESS) s = conv_run(d, part, v, i, by, first, second, out, ws);
        if (s == CUDNN_STATUS_SUCCESS) v->candidate[0] = v->candidate[i];
        if (s == CUDNN_STATUS_SUCCESS) break;
        (void)cudaGetLastError(); /* takes away what is not for good */
        if (cudaGetLastError() != cudaSuccess) break;
        s = CUDNN_STATUS_NOT_SUPPORTED;
    }
    return s;
}

static inv_status conv(const inv_gpu *gpu, inv_conv_part part, const inv_conv *c, inv_dtype t, const void *first,
                       const void *second, inv_onto onto, void *out, void *ws, size_t ws_nbytes, bool *done)
{
    inv_cuda_libs *lib = gpu->library;
    const inv_factors by = inv_factors_of(onto, t);
    cudnn *d = lib->dnn;
    cudnnStatus_t s;
    int64_t key[INV_KIND_KEY];
    *done = false;
    if (!cudnn_open(lib)) return INV_OK;
    ws = inv_ws_aligned(ws, &ws_nbytes);
    conv_key(c, part, t, ws_nbytes, key);
    entry *e = inv_kind_find(lib->ctx, &d->kinds, key, sizeof *e);
    if (e == NULL) return INV_E_NOMEM;
    s = d->cudnnSetStream(d->handle, (cudaStream_t)gpu->stream); /* this call's, which need not be that of the last */
    if (!e->way.chosen) {
        const bool less = t == INV_F32 && gpu->precision != INV_PRECISION_FULL;
        e->way.chosen = true;
        if (s == CUDNN_STATUS_SUCCESS && conv_describe(d, c, t == INV_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT,
                                                       less ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH, &e->conv))
            conv_choose(d, part, c, less, &e->conv, ws_nbytes);
        s = conv_try(d, part, &e->conv, &by, first, second, out, ws);
        e->way.usable = s == CUDNN_STATUS_SUCCESS;
        if (s == CUDNN_STATUS_NOT_SUPPORTED) return INV_OK; /* never again */
    } else {
        if (!e->way.usable) return INV_OK;
        if (s == CUDNN_STATUS_SUCCESS) s = conv_run(d, part, &e->conv, 0, &by, first, second, out, ws);
    }
    *done = s == CUDNN_STATUS_SUCCESS;
    if (*done) return INV_OK;
    return inv_fail(lib->ctx, s == CUDNN_STATUS_ALLOC_FAILED ? INV_E_NOMEM : INV_E_DEVICE, "cuDNN, convolution: %s",
                    d->cudnnGetErrorString(s));
}

inv_status inv_dnn_create(inv_cuda_libs *libs, inv_gpu *gpu)
{
    libs->dnn = inv_alloc(libs->ctx, sizeof *libs->dnn);
    if (libs->dnn == NULL) return INV_E_NOMEM;
    gpu->conv = conv;
    libs->convolutions = NULL;
    return INV_OK;
}

int inv_dnn_version(const inv_cuda_libs *libs)
{
    return libs->dnn && libs->dnn->handle ? (int)libs->dnn->cudnnGetVersion() : 0;
}

static void fini(void *opaque, inv_call_kind *c) { conv_free(opaque, &((entry *)c)->conv); }

/* The library stays loaded: it need not survive being unloaded. */
void inv_dnn_destroy(inv_cuda_libs *libs)
{
    cudnn *d = libs->dnn;
    if (d == NULL) return;
    inv_kinds_free(libs->ctx, &d->kinds, d->handle ? fini : NULL, d);
    if (d->handle) (void)d->cudnnDestroy(d->handle);
    inv_dealloc(libs->ctx, d);
    libs->dnn = NULL;
}
#else
inv_status inv_dnn_create(inv_cuda_libs *libs, inv_gpu *gpu)
{
    (void)libs, (void)gpu;
    return INV_OK;
}
int inv_dnn_version(const inv_cuda_libs *libs)
{
    (void)libs;
    return 0;
}
void inv_dnn_destroy(inv_cuda_libs *libs) { (void)libs; }
#endif
