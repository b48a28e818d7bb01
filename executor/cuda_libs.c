/* SPDX-License-Identifier: Apache-2.0
 * cuBLASLt and cuDNN behind the hooks of inv_gpu. An algorithm is chosen at the first call of a kind (shapes, bytes of
 * scratch memory, alignment) and kept, so that equal calls have equal bits, and later ones ask nothing: those may be
 * recorded in a CUDA graph. */
#include "executor/cuda_libs.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#if defined __has_include
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#if CUDNN_MAJOR >= 9 /* status codes are grouped by thousands from then on */
#define WITH_CUDNN
#endif
#endif
#endif

#include "ops/conv/conv_gpu.h"

enum { KEY = 28, BUCKETS = 256, MOST_BATCH = 32768, LT_ALIGN = 16, MOST_CANDIDATES = 16 };
#define WS_ALIGN ((uintptr_t)256) /* of scratch memory; the caller's is aligned to 64 */

/* Both libraries are opened when something of theirs is needed: that takes cuBLASLt a tenth of a second and more. */
#define LT_FUNCTIONS(X)                      \
    X(cublasLtCreate)                        \
    X(cublasLtDestroy)                       \
    X(cublasLtGetVersion)                    \
    X(cublasLtGetStatusString)               \
    X(cublasLtMatrixLayoutInit_internal)     \
    X(cublasLtMatrixLayoutSetAttribute)      \
    X(cublasLtMatmulDescInit_internal)       \
    X(cublasLtMatmulDescSetAttribute)        \
    X(cublasLtMatmulPreferenceInit_internal) \
    X(cublasLtMatmulPreferenceSetAttribute)  \
    X(cublasLtMatmulAlgoGetHeuristic)        \
    X(cublasLtMatmul)
#define MEMBER(f) __typeof__(f) *f;
typedef struct lt {
    cublasLtHandle_t handle; /* NULL: not open */
    LT_FUNCTIONS(MEMBER)
} lt;

#ifdef WITH_CUDNN
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

typedef struct cudnn {
    cudnnHandle_t handle;
    CUDNN_FUNCTIONS(MEMBER)
} cudnn;

typedef struct convolution {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t conv;
    struct {
        int algorithm; /* of the enumeration that belongs to the part */
        size_t ws;
    } candidate[MOST_CANDIDATES]; /* in the library's ranking; the one that works is put first */
    int ncandidate;
} convolution;
#endif

/* What was chosen for one kind of call. */
typedef struct entry {
    struct entry *next;
    int64_t key[KEY];
    bool chosen, usable;
    cublasLtMatmulAlgo_t gemm;
#ifdef WITH_CUDNN
    convolution conv;
#endif
} entry;

typedef struct library {
    inv_context *ctx;
    lt lt;
    const char *convolutions; /* by what; NULL: there was none yet */
    entry *bucket[BUCKETS];
#ifdef WITH_CUDNN
    bool looked; /* for cuDNN; found if handle is set */
    cudnn dnn;
#endif
} library;

/* The entry of a key, new if there is none; NULL: no memory. */
static entry *find(library *lib, const int64_t key[KEY])
{
    entry **at = &lib->bucket[inv__hash(key, KEY * sizeof *key, 0) % BUCKETS];
    for (entry *e = *at; e; e = e->next) {
        if (memcmp(e->key, key, KEY * sizeof *key) == 0) return e;
    }
    entry *e = inv__alloc(lib->ctx, sizeof *e);
    if (e == NULL) return NULL;
    memcpy(e->key, key, KEY * sizeof *key);
    e->next = *at;
    return *at = e;
}

/* The aligned part of scratch memory; its size does not depend on where it lies. */
static void *aligned(void *ws, size_t *nbytes)
{
    *nbytes = *nbytes > WS_ALIGN ? *nbytes - WS_ALIGN : 0;
    if (*nbytes == 0) return NULL;
    return (char *)ws + (WS_ALIGN - (uintptr_t)ws % WS_ALIGN) % WS_ALIGN;
}

#define TEXT_OF(x) #x
#define NAMED(name, major) name ".so." TEXT_OF(major)
#define LOOK_UP(f)                \
    at = dlsym(file, #f);         \
    if (at == NULL) return false; \
    memcpy(&d->f, &at, sizeof at);

/* --- matrix products --- */

#define LT_NAME NAMED("libcublasLt", CUBLAS_VER_MAJOR)

static bool lt_load(lt *d)
{
    void *at, *file = dlopen(LT_NAME, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) return false;
    LT_FUNCTIONS(LOOK_UP)
    return true;
}

static inv_status lt_open(library *lib)
{
    lt *d = &lib->lt;
    if (d->handle) return INV_OK;
    INV_CHECK(lt_load(d), lib->ctx, INV_E_DEVICE,
              "device cuda: " LT_NAME
              " is not found, or lacks what is used of it; it computes matrix products: put its "
              "folder into LD_LIBRARY_PATH");
    const cublasStatus_t s = d->cublasLtCreate(&d->handle);
    if (s != CUBLAS_STATUS_SUCCESS) d->handle = NULL;
    INV_CHECK(d->handle, lib->ctx, s == CUBLAS_STATUS_ALLOC_FAILED ? INV_E_NOMEM : INV_E_DEVICE,
              "cuBLASLt cannot be started: %s", d->cublasLtGetStatusString(s));
    return INV_OK;
}

/* A row-major matrix read as column-major is its transpose: c' = op(b)' op(a)', so b is the library's first operand. */
typedef struct product {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t b, a, c;
    uint32_t align;
    size_t ws;
} product;

static inv_status lt_failed(const library *lib, cublasStatus_t s, const inv_gemm *g)
{
    return inv__fail(lib->ctx, s == CUBLAS_STATUS_ALLOC_FAILED ? INV_E_NOMEM : INV_E_DEVICE,
                     "cuBLASLt, the product [%lld,%lld] [%lld,%lld] in %s, %lld times: %s", (long long)g->m,
                     (long long)g->k, (long long)g->k, (long long)g->n, inv_dtype_name(g->dtype), (long long)g->batch,
                     lib->lt.cublasLtGetStatusString(s));
}

#define LT_TRY(call)                                      \
    do {                                                  \
        cublasStatus_t lt_s_ = (call);                    \
        if (lt_s_ != CUBLAS_STATUS_SUCCESS) return lt_s_; \
    } while (0)

static cublasStatus_t layout(const lt *d, cublasLtMatrixLayoutOpaque_t *l, cudaDataType_t t, int64_t rows, int64_t cols,
                             int64_t ld, int64_t batch, int64_t step)
{
    int32_t count = (int32_t)batch;
    LT_TRY(d->cublasLtMatrixLayoutInit_internal(l, sizeof *l, t, (uint64_t)cols, (uint64_t)rows, ld));
    LT_TRY(d->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    return d->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

/* What all addresses of an operand are multiples of: LT_ALIGN, or else one element. */
static bool well_aligned(const void *p, int64_t step, int64_t batch, size_t size)
{
    return ((uintptr_t)p | (batch > 1 ? (uintptr_t)step * size : 0)) % LT_ALIGN == 0;
}

static cublasStatus_t describe_product(const lt *d, const inv_gemm *g, product *p)
{
    bool f64 = g->dtype == INV_F64;
    cudaDataType_t t = f64 ? CUDA_R_64F : CUDA_R_32F;
    cublasOperation_t first = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    size_t size = inv_dtype_size(g->dtype);
    p->align = well_aligned(g->a, g->step_a, g->batch, size) && well_aligned(g->b, g->step_b, g->batch, size) &&
                       well_aligned(g->c, g->step_c, g->batch, size)
                   ? LT_ALIGN
                   : (uint32_t)size;
    LT_TRY(d->cublasLtMatmulDescInit_internal(&p->op, sizeof p->op, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, t));
    LT_TRY(d->cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    LT_TRY(d->cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    LT_TRY(layout(d, &p->b, t, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb, g->batch, g->step_b));
    LT_TRY(layout(d, &p->a, t, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda, g->batch, g->step_a));
    return layout(d, &p->c, t, g->m, g->n, g->ldc, g->batch, g->step_c);
}

static cublasStatus_t prefer(const lt *d, cublasLtMatmulPreferenceOpaque_t *f, const product *p)
{
    static const cublasLtMatmulPreferenceAttributes_t align[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t ws = p->ws;
    /* parts of a sum are joined in a step of their own, in a fixed order */
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LT_TRY(d->cublasLtMatmulPreferenceInit_internal(f, sizeof *f));
    LT_TRY(d->cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws));
    LT_TRY(d->cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                                   sizeof reduction));
    for (size_t i = 0; i < sizeof align / sizeof *align; i++)
        LT_TRY(d->cublasLtMatmulPreferenceSetAttribute(f, align[i], &p->align, sizeof p->align));
    return CUBLAS_STATUS_SUCCESS;
}

/* The library's first choice. Where it has none for operands that are aligned so well, or with scratch memory, it is
 * asked again for operands that are not, and for none. */
static cublasStatus_t choose_product(const lt *d, const inv_gemm *g, product *p, entry *e)
{
    const uint32_t element = (uint32_t)inv_dtype_size(g->dtype), align[3] = {p->align, element, element};
    const size_t ws[3] = {p->ws, p->ws, 0};
    cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 3; i++) {
        cublasLtMatmulPreferenceOpaque_t preference;
        cublasLtMatmulHeuristicResult_t result;
        int found = 0;
        memset(&result, 0, sizeof result);
        p->align = align[i];
        p->ws = ws[i];
        LT_TRY(prefer(d, &preference, p));
        s = d->cublasLtMatmulAlgoGetHeuristic(d->handle, &p->op, &p->b, &p->a, &p->c, &p->c, &preference, 1, &result,
                                              &found);
        if (s == CUBLAS_STATUS_SUCCESS) s = found ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
        if (s == CUBLAS_STATUS_SUCCESS) e->gemm = result.algo;
        if (s == CUBLAS_STATUS_SUCCESS || s == CUBLAS_STATUS_ALLOC_FAILED) break;
    }
    e->chosen = s == CUBLAS_STATUS_SUCCESS;
    return s;
}

/* A batch of at most MOST_BATCH. */
static inv_status some_products(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    library *lib = gpu->library;
    const lt *d = &lib->lt;
    product p;
    INV_TRY(lt_open(lib));
    memset(&p, 0, sizeof p);
    p.ws = ws_nbytes;
    cublasStatus_t s = describe_product(d, g, &p);
    if (s != CUBLAS_STATUS_SUCCESS) return lt_failed(lib, s, g);
    const int64_t key[KEY] = {'m',    g->dtype,  g->ta,     g->tb,     g->m,    g->n,          g->k,     g->lda, g->ldb,
                              g->ldc, g->step_a, g->step_b, g->step_c, p.align, (int64_t)p.ws, g->batch, g->add};
    entry *e = find(lib, key);
    if (e == NULL) return INV_E_NOMEM;
    if (!e->chosen) s = choose_product(d, g, &p, e);
    if (s != CUBLAS_STATUS_SUCCESS) return lt_failed(lib, s, g);
    const float one = 1, beta = g->add ? 1 : 0;
    const double one64 = 1, beta64 = g->add ? 1 : 0;
    bool f64 = g->dtype == INV_F64;
    s = d->cublasLtMatmul(d->handle, &p.op, f64 ? (const void *)&one64 : &one, g->b, &p.b, g->a, &p.a,
                          f64 ? (const void *)&beta64 : &beta, g->c, &p.c, g->c, &p.c, &e->gemm, ws, ws_nbytes,
                          (cudaStream_t)gpu->stream);
    return s == CUBLAS_STATUS_SUCCESS ? INV_OK : lt_failed(lib, s, g);
}

/* Products of nothing. */
static inv_status product_of_nothing(const inv_gpu *gpu, const inv_gemm *g)
{
    library *lib = gpu->library;
    size_t size = inv_dtype_size(g->dtype);
    for (int64_t i = 0; i < g->batch && !g->add; i++) {
        cudaError_t e = cudaMemset2DAsync((char *)g->c + (size_t)(i * g->step_c) * size, (size_t)g->ldc * size, 0,
                                          (size_t)g->n * size, (size_t)g->m, (cudaStream_t)gpu->stream);
        if (e != cudaSuccess)
            return inv__fail(lib->ctx, INV_E_DEVICE, "zeros in device memory: %s", cudaGetErrorString(e));
    }
    return INV_OK;
}

static inv_status gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0) return INV_OK;
    if (g->k <= 0) return product_of_nothing(gpu, g);
    size_t size = inv_dtype_size(g->dtype);
    inv_gemm part = *g;
    ws = aligned(ws, &ws_nbytes);
    for (int64_t i = 0; i < g->batch; i += MOST_BATCH) {
        part.batch = g->batch - i < MOST_BATCH ? g->batch - i : MOST_BATCH;
        part.a = (const char *)g->a + (size_t)(i * g->step_a) * size;
        part.b = (const char *)g->b + (size_t)(i * g->step_b) * size;
        part.c = (char *)g->c + (size_t)(i * g->step_c) * size;
        INV_TRY(some_products(gpu, &part, ws, ws_nbytes));
    }
    return INV_OK;
}

/* --- convolution --- */
#ifdef WITH_CUDNN
#define DNN_NAME NAMED("libcudnn", CUDNN_MAJOR)

static bool cudnn_load(library *lib, cudnn *d)
{
    lib->convolutions = "column matrices and cuBLASLt, as there is no " DNN_NAME;
    void *at, *file = dlopen(DNN_NAME, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) return false;
    lib->convolutions = "column matrices and cuBLASLt, as " DNN_NAME " cannot be used";
    CUDNN_FUNCTIONS(LOOK_UP)
    if (d->cudnnCreate(&d->handle) != CUDNN_STATUS_SUCCESS) d->handle = NULL;
    return d->handle != NULL;
}

/* The library whose header this file was compiled with, if it is installed. */
static bool cudnn_open(library *lib)
{
    if (lib->looked) return lib->dnn.handle != NULL;
    lib->looked = true;
    const bool found = cudnn_load(lib, &lib->dnn);
    if (found) lib->convolutions = "cuDNN";
    else
        inv__log(lib->ctx,
                 "device cuda: convolutions are computed by %s, which is slower; put the folder of cuDNN into "
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

static bool tensor_of(const cudnn *d, cudnnTensorDescriptor_t *out, cudnnDataType_t t, int rank, const int64_t *dim)
{
    int size[5], stride[5];
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (dim[i] > INT32_MAX || step > INT32_MAX) return false;
        size[i] = (int)dim[i];
        stride[i] = (int)step;
        step *= dim[i];
    }
    return d->cudnnCreateTensorDescriptor(out) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetTensorNdDescriptor(*out, t, rank, size, stride) == CUDNN_STATUS_SUCCESS;
}

/* Images as they are, with one or two spatial axes as two, with three as three. */
static bool conv_describe(const cudnn *d, const inv_conv *c, cudnnDataType_t t, convolution *v)
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
    return tensor_of(d, &v->x, t, sd + 2, x) && tensor_of(d, &v->y, t, sd + 2, y) &&
           d->cudnnCreateFilterDescriptor(&v->filter) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetFilterNdDescriptor(v->filter, t, CUDNN_TENSOR_NCHW, sd + 2, filter) == CUDNN_STATUS_SUCCESS &&
           d->cudnnCreateConvolutionDescriptor(&v->conv) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetConvolutionNdDescriptor(v->conv, sd, pad, stride, dilation, CUDNN_CROSS_CORRELATION, t) ==
               CUDNN_STATUS_SUCCESS &&
           d->cudnnSetConvolutionGroupCount(v->conv, (int)c->group) == CUDNN_STATUS_SUCCESS &&
           d->cudnnSetConvolutionMathType(v->conv, CUDNN_FMA_MATH) == CUDNN_STATUS_SUCCESS;
}

/* Fourier transforms and large Winograd tiles are left out: their rounding errors are those of the largest input. */
static bool exact_forward(int a)
{
    return a != CUDNN_CONVOLUTION_FWD_ALGO_FFT && a != CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING &&
           a != CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
}
static bool exact_data(int a)
{
    return a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT && a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING &&
           a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED;
}
static bool exact_filter(int a)
{
    return a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT && a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING &&
           a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
}

/* The algorithms of the library's ranking that are exact, deterministic, without tensor cores, and fit. */
#define CHOOSE(perf_t, rank, size, exact, one, two, three)                                                       \
    do {                                                                                                         \
        perf_t perf[MOST_CANDIDATES];                                                                            \
        if (d->rank(d->handle, one, two, v->conv, three, MOST_CANDIDATES, &count, perf) != CUDNN_STATUS_SUCCESS) \
            break;                                                                                               \
        for (int i = 0; i < count; i++) {                                                                        \
            const bool fma = perf[i].mathType == CUDNN_FMA_MATH || perf[i].mathType == CUDNN_DEFAULT_MATH;       \
            size_t ws;                                                                                           \
            if (perf[i].status != CUDNN_STATUS_SUCCESS || perf[i].determinism != CUDNN_DETERMINISTIC || !fma ||  \
                !exact((int)perf[i].algo))                                                                       \
                continue;                                                                                        \
            if (d->size(d->handle, one, two, v->conv, three, perf[i].algo, &ws) != CUDNN_STATUS_SUCCESS ||       \
                ws > ws_nbytes)                                                                                  \
                continue;                                                                                        \
            v->candidate[v->ncandidate].algorithm = (int)perf[i].algo;                                           \
            v->candidate[v->ncandidate++].ws = ws;                                                               \
        }                                                                                                        \
    } while (0)

static void conv_choose(const cudnn *d, inv_conv_part part, convolution *v, size_t ws_nbytes)
{
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
}

/* By the i-th candidate. */
static cudnnStatus_t conv_run(const cudnn *d, inv_conv_part part, const convolution *v, int i, inv_dtype t,
                              const void *first, const void *second, void *out, void *ws)
{
    const int algorithm = v->candidate[i].algorithm;
    const size_t ws_nbytes = v->candidate[i].ws;
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const void *alpha = t == INV_F64 ? (const void *)&one64 : &one;
    const void *beta = t == INV_F64 ? (const void *)&zero64 : &zero;
    if (part == INV_CONV_FORWARD)
        return d->cudnnConvolutionForward(d->handle, alpha, v->x, first, v->filter, second, v->conv,
                                          (cudnnConvolutionFwdAlgo_t)algorithm, ws, ws_nbytes, beta, v->y, out);
    if (part == INV_CONV_GRAD_X)
        return d->cudnnConvolutionBackwardData(d->handle, alpha, v->filter, second, v->y, first, v->conv,
                                               (cudnnConvolutionBwdDataAlgo_t)algorithm, ws, ws_nbytes, beta, v->x,
                                               out);
    return d->cudnnConvolutionBackwardFilter(d->handle, alpha, v->x, first, v->y, second, v->conv,
                                             (cudnnConvolutionBwdFilterAlgo_t)algorithm, ws, ws_nbytes, beta, v->filter,
                                             out);
}

static void conv_key(const inv_conv *c, inv_conv_part part, inv_dtype t, size_t ws_nbytes, int64_t key[KEY])
{
    const inv_window *w = &c->w;
    const int64_t head[8] = {'c', part, t, (int64_t)ws_nbytes, c->batch, c->group, c->cg, c->mg};
    memset(key, 0, KEY * sizeof *key);
    memcpy(key, head, sizeof head);
    for (int i = 0; i < 3; i++) {
        const int64_t axis[6] = {w->in[i], w->k[i], w->stride[i], w->dil[i], w->pad[i], w->pad_end[i]};
        memcpy(key + 8 + 6 * i, axis, sizeof axis);
    }
    key[26] = w->sd;
}

/* The first call of a kind, which is never in a recording: candidates until one works. What fails without leaving the
 * device unusable is no candidate. Which they are is told by the library only when it runs them. */
static cudnnStatus_t conv_try(const cudnn *d, inv_conv_part part, convolution *v, inv_dtype t, const void *first,
                              const void *second, void *out, void *ws)
{
    cudnnStatus_t s = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < v->ncandidate; i++) {
        s = conv_run(d, part, v, i, t, first, second, out, ws);
        if (s == CUDNN_STATUS_SUCCESS) v->candidate[0] = v->candidate[i];
        if (s == CUDNN_STATUS_SUCCESS) break;
        (void)cudaGetLastError(); /* takes away what is not for good */
        if (cudaGetLastError() != cudaSuccess) break;
        s = CUDNN_STATUS_NOT_SUPPORTED;
    }
    return s;
}

static inv_status conv(const inv_gpu *gpu, inv_conv_part part, const inv_conv *c, inv_dtype t, const void *first,
                       const void *second, void *out, void *ws, size_t ws_nbytes, bool *done)
{
    library *lib = gpu->library;
    const cudnn *d = &lib->dnn;
    cudnnStatus_t s;
    int64_t key[KEY];
    *done = false;
    if (!cudnn_open(lib)) return INV_OK;
    ws = aligned(ws, &ws_nbytes);
    conv_key(c, part, t, ws_nbytes, key);
    entry *e = find(lib, key);
    if (e == NULL) return INV_E_NOMEM;
    if (!e->chosen) {
        e->chosen = true;
        if (d->cudnnSetStream(d->handle, (cudaStream_t)gpu->stream) == CUDNN_STATUS_SUCCESS &&
            conv_describe(d, c, t == INV_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, &e->conv))
            conv_choose(d, part, &e->conv, ws_nbytes);
        s = conv_try(d, part, &e->conv, t, first, second, out, ws);
        e->usable = s == CUDNN_STATUS_SUCCESS;
        if (s == CUDNN_STATUS_NOT_SUPPORTED) return INV_OK; /* never again */
    } else {
        if (!e->usable) return INV_OK;
        s = conv_run(d, part, &e->conv, 0, t, first, second, out, ws);
    }
    *done = s == CUDNN_STATUS_SUCCESS;
    if (*done) return INV_OK;
    return inv__fail(lib->ctx, s == CUDNN_STATUS_ALLOC_FAILED ? INV_E_NOMEM : INV_E_DEVICE, "cuDNN, convolution: %s",
                     d->cudnnGetErrorString(s));
}

static void cudnn_close(library *lib)
{
    cudnn *d = &lib->dnn;
    for (size_t b = 0; b < BUCKETS && d->handle; b++) {
        for (entry *e = lib->bucket[b]; e; e = e->next) conv_free(d, &e->conv);
    }
    if (d->handle) (void)d->cudnnDestroy(d->handle); /* the library stays loaded: it need not survive being unloaded */
}
#endif

inv_status inv_cuda_libs_open(inv_context *ctx, inv_gpu *gpu)
{
    library *lib = inv__alloc(ctx, sizeof *lib);
    if (lib == NULL) return INV_E_NOMEM;
    lib->ctx = ctx;
    gpu->library = lib;
    gpu->gemm = gemm;
    gpu->conv = NULL;
    lib->convolutions = "column matrices and cuBLASLt, as cuDNN is not in this build or turned off";
#ifdef WITH_CUDNN
    const char *no = getenv("INVONNX_NO_CUDNN");
    if (no == NULL || strcmp(no, "1") != 0) {
        gpu->conv = conv;
        lib->convolutions = NULL;
    }
#endif
    return INV_OK;
}

void inv_cuda_libs_facts(const inv_gpu *gpu, inv_device_facts *out)
{
    const library *lib = gpu->library;
    out->convolutions = lib->convolutions;
    if (lib->lt.handle) out->cublaslt = (int)lib->lt.cublasLtGetVersion();
#ifdef WITH_CUDNN
    if (lib->dnn.handle) out->cudnn = (int)lib->dnn.cudnnGetVersion();
#endif
}

void inv_cuda_libs_close(inv_context *ctx, inv_gpu *gpu)
{
    library *lib = gpu->library;
    if (lib == NULL) return;
#ifdef WITH_CUDNN
    cudnn_close(lib);
#endif
    for (size_t b = 0; b < BUCKETS; b++) {
        for (entry *e = lib->bucket[b], *next; e; e = next) {
            next = e->next;
            inv__free(ctx, e);
        }
    }
    if (lib->lt.handle) (void)lib->lt.cublasLtDestroy(lib->lt.handle);
    inv__free(ctx, lib);
    gpu->library = NULL;
    gpu->gemm = NULL;
    gpu->conv = NULL;
}
