/* SPDX-License-Identifier: Apache-2.0
 * Products of matrices against sums in float64, and by which threads they are computed. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "ops_run.h"

#include <dlfcn.h>
#include <pthread.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "ops/linear/gemm.h"
#include "ops/linear/gemm_own.h"

static void gemm_matches_the_plain_kernel(void **state)
{
    (void)state;
    static float a[80 * 600], b[1100 * 20], c[14 * 1100], d[14 * 1100];
    static const int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 7},      {33, 65, 66},  {96, 110, 130}, {4, 16, 0},
                                       {1, 100, 64}, {14, 1100, 20}, {80, 17, 600}, {12, 25, 259}};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) a[i] = (float)ops_random();
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) b[i] = (float)ops_random();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        for (int form = 0; form < 8; form++) {
            bool ta = form & 1, tb = form & 2, add = form & 4;
            for (int64_t i = 0; i < m * n; i++) c[i] = d[i] = add ? 1.0f : (float)NAN;
            inv_gemm_f32(ta, tb, m, n, k, a, ta ? m : k, b, tb ? k : n, add, c, n);
            inv_gemm_plain_f32(ta, tb, m, n, k, a, ta ? m : k, b, tb ? k : n, add, d, n);
            for (int64_t i = 0; i < m; i++) {
                for (int64_t j = 0; j < n; j++) {
                    double want = add;
                    for (int64_t p = 0; p < k; p++)
                        want += (double)a[ta ? p * m + i : i * k + p] * (double)b[tb ? j * k + p : p * n + j];
                    assert_true(fabs((double)c[i * n + j] - want) < 1e-4);
                    assert_true(fabs((double)d[i * n + j] - want) < 1e-4);
                }
            }
        }
    }
}

/* Kernels for each width of vectors that this processor has; NULL behind them. */
static const inv_gemm_own *const *own_kernels(void)
{
    static const inv_gemm_own *own[3];
    own[0] = inv_gemm_own_find(true);
    own[1] = inv_gemm_own_find(false) == own[0] ? NULL : inv_gemm_own_find(false);
    return own;
}

/* c, 79 by 35. */
static void product_by_parts(const inv_gemm_own *own, bool ta, bool tb, int64_t k, const float *a, int64_t lda,
                             const float *b, int64_t ldb, bool add, float *c, int64_t ldc)
{
    static const int64_t rows[] = {0, 5, 77, 79}, columns[] = {0, 16, 19, 35};
    for (int r = 0; r < 3; r++)
        for (int j = 0; j < 3; j++)
            assert_true(own->product(ta, tb, rows[r + 1] - rows[r], columns[j + 1] - columns[j], k,
                                     a + rows[r] * (ta ? 1 : lda), lda, b + columns[j] * (tb ? ldb : 1), ldb, add,
                                     c + rows[r] * ldc + columns[j], ldc));
}

/* Rows lie further apart than they are long, with NaN between them; parts of c, by vectors of any width, have the bits
 * of the whole, c's gaps what they had. */
static void own_gemm_gives_the_same_bits_for_any_part(void **state)
{
    enum { M = 79, N = 35, K = 300, GAP = 3, PLACES = (K + GAP) * (M + GAP) };
    static float a[PLACES], b[PLACES], c[M * (N + GAP)], part[M * (N + GAP)];
    const inv_gemm_own *const *own = own_kernels();
    (void)state;
    if (!own[0]) skip();
    for (int form = 0; form < 8; form++) {
        const bool ta = form & 1, tb = form & 2, add = form & 4;
        const int64_t lda = (ta ? M : K) + GAP, ldb = (tb ? K : N) + GAP, ldc = N + GAP;
        for (int64_t i = 0; i < PLACES; i++) {
            a[i] = i % lda < lda - GAP ? (float)ops_random() : (float)NAN;
            b[i] = i % ldb < ldb - GAP ? (float)ops_random() : (float)NAN;
        }
        for (int64_t i = 0; i < M * ldc; i++) c[i] = 1;
        assert_true(own[0]->product(ta, tb, M, N, K, a, lda, b, ldb, add, c, ldc));
        for (int64_t i = 0; i < M; i++) {
            for (int64_t j = 0; j < N; j++) {
                double want = add;
                for (int64_t p = 0; p < K; p++)
                    want += (double)a[ta ? p * lda + i : i * lda + p] * (double)b[tb ? j * ldb + p : p * ldb + j];
                assert_true(fabs((double)c[i * ldc + j] - want) < 1e-4);
            }
            for (int64_t j = N; j < ldc; j++) assert_true(c[i * ldc + j] == 1);
        }
        for (int i = 0; own[i]; i++) {
            for (int64_t p = 0; p < M * ldc; p++) part[p] = 1;
            product_by_parts(own[i], ta, tb, K, a, lda, b, ldb, add, part, ldc);
            assert_memory_equal(c, part, sizeof c);
        }
    }
}

/* Panels of every height; rows of b and c lie apart. */
static void packed_once_for_several_products(void **state)
{
    enum { MOST = 29, N = 3 * INV_TILE_COLUMNS, K = 37, LD = N + 5 };
    static float a[MOST * K], packed[MOST * K + INV_PACKED_MORE], b[K * LD], c[MOST * LD];
    (void)state;
    const inv_gemm_own *const *own = own_kernels();
    if (!own[0]) skip();
    for (int i = 0; i < MOST * K; i++) a[i] = (float)ops_random();
    for (int i = 0; i < K * LD; i++) b[i] = i % LD < N ? (float)ops_random() : (float)NAN;
    for (int64_t m = 1; m <= MOST; m++) {
        for (; *own; own++) {
            for (int i = 0; i < MOST * LD; i++) c[i] = (float)NAN;
            (*own)->pack(m, K, a, K, packed);
            (*own)->by_packed(m, N, K, packed, b, LD, c, LD);
            for (int64_t i = 0; i < MOST * LD; i++) {
                double want = 0;
                for (int64_t p = 0; p < K && i / LD < m; p++)
                    want += (double)a[i / LD * K + p] * (double)b[p * LD + i % LD];
                if (i / LD < m && i % LD < N) assert_true(fabs((double)c[i] - want) < 1e-5);
                else assert_true(isnan(c[i]));
            }
        }
        own = own_kernels();
    }
}

#if defined __linux__ && defined _OPENMP
static _Atomic int created; /* threads */

/* In place of the library's, for whoever else in this process makes threads. */
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                                                          void *(*start)(void *), void *argument)
{
    int (*own)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *at = dlsym(RTLD_NEXT, "pthread_create");
    assert_non_null(at);
    memcpy(&own, &at, sizeof own);
    created++;
    return own(thread, attr, start, argument);
}
#endif

/* Shared out by rows and by columns; extents of no whole panels. */
static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
#ifdef _OPENMP
    enum { M = 301, N = 403, K = 331 };
    static float a[N * K], b[N * K], one[M * N], several[M * N];
    const int before = omp_get_max_threads();
    if (!inv_gemm_own_find(true)) skip();
    for (int i = 0; i < N * K; i++) a[i] = (float)ops_random(), b[i] = (float)ops_random();
    for (int form = 0; form < 8; form++) {
        const bool ta = form & 1, tb = form & 2, swapped = form & 4;
        const int64_t m = swapped ? N : M, n = swapped ? M : N;
        omp_set_num_threads(1);
        inv_gemm_f32(ta, tb, m, n, K, a, ta ? m : K, b, tb ? K : n, false, one, n);
        for (int threads = 2; threads <= 8; threads += 3) {
            omp_set_num_threads(threads);
            inv_gemm_f32(ta, tb, m, n, K, a, ta ? m : K, b, tb ? K : n, false, several, n);
            assert_memory_equal(one, several, sizeof one);
        }
    }
    omp_set_num_threads(before);
#else
    skip();
#endif
}

/* The threads that there are share a product, also one of a batch of few: none are made for it. */
static void a_product_makes_no_threads(void **state)
{
    (void)state;
#if defined __linux__ && defined _OPENMP
    static const char *const texts[] = {"y = MatMul(float[256,128] a, float[128,256] b)",
                                        "y = MatMul(float[2,256,128] a, float[2,128,256] b)"};
    const int before = omp_get_max_threads();
    omp_set_num_threads(2);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ops_env e;
        ops_begin(&e);
        ops_load(&e, texts[i], "float", 17);
        ops_run(&e, 0);
        const int first = created;
        for (int k = 0; k < 3; k++) ops_run(&e, 0);
        assert_int_equal(created, first);
        ops_end(&e);
    }
    assert_true(created > 0); /* it is seen */
    omp_set_num_threads(before);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_makes_no_threads), cmocka_unit_test(gemm_matches_the_plain_kernel),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits), cmocka_unit_test(packed_once_for_several_products),
        cmocka_unit_test(own_gemm_gives_the_same_bits_for_any_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
