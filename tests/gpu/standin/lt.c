/* SPDX-License-Identifier: Apache-2.0
 * The half of cuBLASLt that runs something. Descriptors are NVIDIA's, read by NVIDIA's functions. */
#include <cublasLt.h>
#include <stdio.h>

#include "standin.h"

struct cublasLtContext {
    int device;
};

typedef struct matrix {
    int64_t rows, cols, ld, step;
    int type, batch;
    size_t size;
} matrix;

typedef struct product {
    bool ta, tb, f64;
    matrix a, b, c;
    const void *pa, *pb;
    void *pc;
    double alpha, beta;
} product;

/* What stands in an algorithm. */
typedef struct algorithm {
    uint64_t ws, align, kind;
} algorithm;

#define GET(get, from, attribute, to)                                                    \
    do {                                                                                 \
        size_t written_ = 0;                                                             \
        if (get(from, attribute, &(to), sizeof(to), &written_) != CUBLAS_STATUS_SUCCESS) \
            standin_undefined("cuBLASLt: no " #attribute);                               \
    } while (0)

static matrix matrix_of(cublasLtMatrixLayout_t l, const char *which)
{
    uint32_t type;
    int32_t order, batch;
    uint64_t rows, cols;
    matrix m;
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_TYPE, type);
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_ORDER, order);
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_COLS, cols);
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_LD, m.ld);
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
    GET(cublasLtMatrixLayoutGetAttribute, l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.step);
    m.rows = (int64_t)rows, m.cols = (int64_t)cols, m.type = (int)type, m.batch = batch;
    m.size = type == CUDA_R_64F ? 8 : 4;
    if (order != CUBLASLT_ORDER_COL || rows == 0 || cols == 0 || batch < 1 || m.ld < m.rows || m.step < 0 ||
        (type != CUDA_R_32F && type != CUDA_R_64F))
        standin_undefined("cuBLASLt: layout %s: %lld x %lld, leading dimension %lld, %d of them", which,
                          (long long)rows, (long long)cols, (long long)m.ld, batch);
    return m;
}

static size_t span(const matrix *m)
{
    return (size_t)((m->batch - 1) * m->step + (m->cols - 1) * m->ld + m->rows) * m->size;
}

const char *standin_precision(void)
{
    const char *said = getenv("STANDIN_PRECISION");
    return said ? said : "full";
}

static int32_t compute_of_floats(void)
{
    const char *precision = standin_precision();
    return strcmp(precision, "tf32") == 0   ? CUBLAS_COMPUTE_32F_FAST_TF32
           : strcmp(precision, "bf16") == 0 ? CUBLAS_COMPUTE_32F_FAST_16BF
                                            : CUBLAS_COMPUTE_32F;
}

/* Whether all parts of the call agree; what the heuristics and the product both look at. */
static cublasStatus_t read_product(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, product *p)
{
    int32_t compute, scale, mode, ta, tb;
    uint32_t epilogue;
    GET(cublasLtMatmulDescGetAttribute, op, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute);
    GET(cublasLtMatmulDescGetAttribute, op, CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale);
    GET(cublasLtMatmulDescGetAttribute, op, CUBLASLT_MATMUL_DESC_POINTER_MODE, mode);
    GET(cublasLtMatmulDescGetAttribute, op, CUBLASLT_MATMUL_DESC_TRANSA, ta);
    GET(cublasLtMatmulDescGetAttribute, op, CUBLASLT_MATMUL_DESC_TRANSB, tb);
    GET(cublasLtMatmulDescGetAttribute, op, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    memset(p, 0, sizeof *p);
    p->a = matrix_of(a, "A");
    p->b = matrix_of(b, "B");
    p->c = matrix_of(c, "C");
    const matrix out = matrix_of(d, "D");
    p->ta = ta == CUBLAS_OP_T;
    p->tb = tb == CUBLAS_OP_T;
    p->f64 = p->c.type == CUDA_R_64F;
    if (mode != CUBLASLT_POINTER_MODE_HOST || epilogue != CUBLASLT_EPILOGUE_DEFAULT || (!p->ta && ta != CUBLAS_OP_N) ||
        (!p->tb && tb != CUBLAS_OP_N))
        standin_undefined("cuBLASLt: pointer mode %d, epilogue %u, transpositions %d and %d", mode, epilogue, ta, tb);
    if (compute != (p->f64 ? (int32_t)CUBLAS_COMPUTE_64F : compute_of_floats()) || scale != p->c.type)
        standin_undefined("cuBLASLt: compute type %d, scale type %d: not those of the operands, in %s", compute, scale,
                          standin_precision());
    const bool agree = p->a.type == p->c.type && p->b.type == p->c.type && p->a.batch == p->c.batch &&
                       p->b.batch == p->c.batch && memcmp(&out, &p->c, sizeof out) == 0 &&
                       (p->ta ? p->a.cols : p->a.rows) == p->c.rows && (p->tb ? p->b.rows : p->b.cols) == p->c.cols &&
                       (p->ta ? p->a.rows : p->a.cols) == (p->tb ? p->b.cols : p->b.rows);
    if (agree && p->c.batch > 1 && p->c.step < (p->c.cols - 1) * p->c.ld + p->c.rows && p->c.step < p->c.rows)
        standin_undefined("cuBLASLt: the results of a batch lie upon each other");
    return agree ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    if (standin_enter(__func__)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (standin_capturing()) return CUBLAS_STATUS_INTERNAL_ERROR;
    *out = malloc(sizeof **out);
    if (!*out) return CUBLAS_STATUS_ALLOC_FAILED;
    (*out)->device = standin_device();
    standin_leaks++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    (void)standin_enter(__func__);
    free(h);
    standin_leaks--;
    return CUBLAS_STATUS_SUCCESS;
}

/* One algorithm, or none: what it needs is drawn for the shapes. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t result[], int *found)
{
    static const cublasLtMatmulPreferenceAttributes_t which[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    product p;
    uint64_t ws;
    uint32_t schemes, align = 256;
    *found = 0;
    if (standin_enter(__func__)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (most < 1 || h->device != standin_device()) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t s = read_product(op, a, b, c, d, &p);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    GET(cublasLtMatmulPreferenceGetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, ws);
    GET(cublasLtMatmulPreferenceGetAttribute, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    if (schemes & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        standin_undefined("cuBLASLt: sums whose parts are added in any order, or in less than the operands' type");
    for (int i = 0; i < 4; i++) {
        uint32_t one;
        GET(cublasLtMatmulPreferenceGetAttribute, preference, which[i], one);
        if (one < align) align = one;
    }
    uint64_t drawn = standin_hash(&p, sizeof p);
    if (drawn % 4 == 0 && (ws > 0 || align > p.c.size)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const algorithm chosen = {drawn / 4 % 3 * ws / 2, align, drawn | 1};
    memset(result, 0, sizeof *result);
    memcpy(&result->algo, &chosen, sizeof chosen);
    result->workspaceSize = chosen.ws;
    result->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static double at(const product *p, const void *x, int64_t i)
{
    return p->f64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void run(void *arg)
{
    const product *p = arg;
    const int64_t k = p->ta ? p->a.rows : p->a.cols;
    const int64_t ai = p->ta ? p->a.ld : 1, ak = p->ta ? 1 : p->a.ld, bk = p->tb ? p->b.ld : 1,
                  bj = p->tb ? 1 : p->b.ld;
    for (int64_t n = 0; n < p->c.batch; n++)
        for (int64_t j = 0; j < p->c.cols; j++)
            for (int64_t i = 0; i < p->c.rows; i++) {
                const int64_t to = n * p->c.step + j * p->c.ld + i;
                const int64_t a = n * p->a.step + i * ai, b = n * p->b.step + j * bj;
                double sum = 0;
                for (int64_t l = 0; l < k; l++) sum += at(p, p->pa, a + l * ak) * at(p, p->pb, b + l * bk);
                sum *= p->alpha;
                if (p->beta != 0) sum += p->beta * at(p, p->pc, to);
                if (p->f64) ((double *)p->pc)[to] = sum;
                else ((float *)p->pc)[to] = (float)sum;
            }
}

static void check_operand(const char *what, const matrix *m, const void *p, uint64_t align, cudaStream_t s)
{
    standin_needs(what, p, span(m), s);
    const uint64_t steps = m->batch > 1 ? (uint64_t)m->step * m->size : 0;
    if (((uintptr_t)p | steps) % align)
        standin_undefined("%s: not aligned to the %llu bytes that were promised", what, (unsigned long long)align);
}

static bool apart(const matrix *m, const void *p, const matrix *n, const void *q)
{
    return (const char *)p + span(m) <= (const char *)q || (const char *)q + span(n) <= (const char *)p;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *ws, size_t ws_nbytes, cudaStream_t stream)
{
    product p;
    algorithm chosen;
    standin_check_stream(stream);
    if (standin_enter(__func__)) {
        if (standin_in_capture(stream)) standin_break_capture(stream);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (h->device != standin_stream_device(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t s = read_product(op, la, lb, lc, ld, &p);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    if (!algo || c != d) standin_undefined("cuBLASLt: an algorithm that was not chosen, or two results");
    memcpy(&chosen, algo, sizeof chosen);
    if (!(chosen.kind & 1)) standin_undefined("cuBLASLt: an algorithm that is none");
    product asked = p;
    uint64_t drawn = standin_hash(&asked, sizeof asked) | 1;
    if (drawn != chosen.kind) standin_undefined("cuBLASLt: an algorithm that was chosen for another product");
    if (ws_nbytes < chosen.ws) return CUBLAS_STATUS_INVALID_VALUE;
    if (chosen.ws) standin_needs("cuBLASLt, scratch memory", ws, chosen.ws, stream);
    if (chosen.ws && (uintptr_t)ws % 256)
        standin_undefined("cuBLASLt: scratch memory that is not aligned to 256 bytes");
    check_operand("cuBLASLt, A", &p.a, a, chosen.align, stream);
    check_operand("cuBLASLt, B", &p.b, b, chosen.align, stream);
    check_operand("cuBLASLt, C", &p.c, d, chosen.align, stream);
    if (!apart(&p.a, a, &p.c, d) || !apart(&p.b, b, &p.c, d))
        standin_undefined("cuBLASLt: the result lies upon an operand");
    standin_host_scalar("cuBLASLt", alpha);
    standin_host_scalar("cuBLASLt", beta);
    p.pa = a, p.pb = b, p.pc = d;
    p.alpha = at(&p, alpha, 0);
    p.beta = at(&p, beta, 0);
    return standin_queue(stream, chosen.kind, run, &p, sizeof p) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                                : CUBLAS_STATUS_EXECUTION_FAILED;
}
