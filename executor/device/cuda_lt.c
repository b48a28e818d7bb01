/* SPDX-License-Identifier: Apache-2.0
 * Matrix products by cuBLASLt. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "executor/device/cuda_kinds.h"

enum { MOST_BATCH = 32768, LT_ALIGN = 16 };

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
typedef struct inv_lt {
    cublasLtHandle_t handle; /* NULL: not open */
    LT_FUNCTIONS(INV_MEMBER)
    inv_kinds kinds;
} lt;

typedef struct entry {
    inv_call_kind way;
    cublasLtMatmulAlgo_t gemm;
} entry;

#define LT_NAME INV_SO_NAME("libcublasLt", CUBLAS_VER_MAJOR)

static bool lt_load(lt *d)
{
    void *at, *file = dlopen(LT_NAME, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) return false;
    LT_FUNCTIONS(INV_LOOK_UP)
    return true;
}

static inv_status lt_open(const inv_cuda_libs *lib)
{
    lt *d = lib->lt;
    if (d->handle) return INV_OK;
    INV_CHECK(lt_load(d), lib->ctx, INV_E_DEVICE,
              "device cuda: " LT_NAME
              " is not found, or lacks functions for matrix products. Put its folder into LD_LIBRARY_PATH");
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

static inv_status lt_failed(const inv_cuda_libs *lib, cublasStatus_t s, const inv_gemm *g)
{
    return inv_fail(lib->ctx, s == CUBLAS_STATUS_ALLOC_FAILED ? INV_E_NOMEM : INV_E_DEVICE,
                    "cuBLASLt, the product [%lld,%lld] [%lld,%lld] in %s, %lld times: %s", (long long)g->m,
                    (long long)g->k, (long long)g->k, (long long)g->n, inv_dtype_name(g->dtype), (long long)g->batch,
                    lib->lt->cublasLtGetStatusString(s));
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

static cublasStatus_t describe_product(const lt *d, const inv_gemm *g, inv_precision precision, product *p)
{
    bool f64 = g->dtype == INV_F64;
    cudaDataType_t t = f64 ? CUDA_R_64F : CUDA_R_32F;
    cublasOperation_t first = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    size_t size = inv_dtype_size(g->dtype);
    p->align = well_aligned(g->a, g->step_a, g->batch, size) && well_aligned(g->b, g->step_b, g->batch, size) &&
                       well_aligned(g->c, g->step_c, g->batch, size)
                   ? LT_ALIGN
                   : (uint32_t)size;
    static const cublasComputeType_t compute[] = {[INV_PRECISION_FULL] = CUBLAS_COMPUTE_32F,
                                                  [INV_PRECISION_TF32] = CUBLAS_COMPUTE_32F_FAST_TF32,
                                                  [INV_PRECISION_BF16] = CUBLAS_COMPUTE_32F_FAST_16BF};
    LT_TRY(d->cublasLtMatmulDescInit_internal(&p->op, sizeof p->op, f64 ? CUBLAS_COMPUTE_64F : compute[precision], t));
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
    e->way.chosen = s == CUBLAS_STATUS_SUCCESS;
    return s;
}

/* A batch of at most MOST_BATCH. */
static inv_status some_products(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    const inv_cuda_libs *lib = gpu->library;
    lt *d = lib->lt;
    product p;
    INV_TRY(lt_open(lib));
    memset(&p, 0, sizeof p);
    p.ws = ws_nbytes;
    cublasStatus_t s = describe_product(d, g, gpu->precision, &p);
    if (s != CUBLAS_STATUS_SUCCESS) return lt_failed(lib, s, g);
    const int64_t key[INV_KIND_KEY] = {'m',       g->dtype, g->ta,         g->tb,   g->m,      g->n,
                                       g->k,      g->lda,   g->ldb,        g->ldc,  g->step_a, g->step_b,
                                       g->step_c, p.align,  (int64_t)p.ws, g->batch};
    entry *e = inv_kind_find(lib->ctx, &d->kinds, key, sizeof *e);
    if (e == NULL) return INV_E_NOMEM;
    if (!e->way.chosen) s = choose_product(d, g, &p, e);
    if (s != CUBLAS_STATUS_SUCCESS) return lt_failed(lib, s, g);
    const inv_factors by = inv_factors_of(g->onto, g->dtype);
    s = d->cublasLtMatmul(d->handle, &p.op, &by.product, g->b, &p.b, g->a, &p.a, &by.before, g->c, &p.c, g->c, &p.c,
                          &e->gemm, ws, ws_nbytes, (cudaStream_t)gpu->stream);
    return s == CUBLAS_STATUS_SUCCESS ? INV_OK : lt_failed(lib, s, g);
}

/* Products of nothing. */
static inv_status product_of_nothing(const inv_gpu *gpu, const inv_gemm *g)
{
    const inv_cuda_libs *lib = gpu->library;
    size_t size = inv_dtype_size(g->dtype);
    for (int64_t i = 0; i < g->batch && g->onto == INV_INSTEAD; i++) {
        cudaError_t e = cudaMemset2DAsync((char *)g->c + (size_t)(i * g->step_c) * size, (size_t)g->ldc * size, 0,
                                          (size_t)g->n * size, (size_t)g->m, (cudaStream_t)gpu->stream);
        if (e != cudaSuccess)
            return inv_fail(lib->ctx, INV_E_DEVICE, "zeros in device memory: %s", cudaGetErrorString(e));
    }
    return INV_OK;
}

static inv_status gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0) return INV_OK;
    if (g->k <= 0) return product_of_nothing(gpu, g);
    size_t size = inv_dtype_size(g->dtype);
    inv_gemm part = *g;
    ws = inv_ws_aligned(ws, &ws_nbytes);
    for (int64_t i = 0; i < g->batch; i += MOST_BATCH) {
        part.batch = g->batch - i < MOST_BATCH ? g->batch - i : MOST_BATCH;
        part.a = (const char *)g->a + (size_t)(i * g->step_a) * size;
        part.b = (const char *)g->b + (size_t)(i * g->step_b) * size;
        part.c = (char *)g->c + (size_t)(i * g->step_c) * size;
        INV_TRY(some_products(gpu, &part, ws, ws_nbytes));
    }
    return INV_OK;
}

inv_status inv_lt_create(inv_cuda_libs *libs, inv_gpu *gpu)
{
    libs->lt = inv_alloc(libs->ctx, sizeof *libs->lt);
    if (libs->lt == NULL) return INV_E_NOMEM;
    gpu->gemm = gemm;
    return INV_OK;
}

int inv_lt_version(const inv_cuda_libs *libs) { return libs->lt->handle ? (int)libs->lt->cublasLtGetVersion() : 0; }

void inv_lt_destroy(inv_cuda_libs *libs)
{
    lt *d = libs->lt;
    if (d == NULL) return;
    inv_kinds_free(libs->ctx, &d->kinds, NULL, NULL);
    if (d->handle) (void)d->cublasLtDestroy(d->handle);
    inv_dealloc(libs->ctx, d);
    libs->lt = NULL;
}
