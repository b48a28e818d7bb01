/* SPDX-License-Identifier: Apache-2.0
 * What the process takes. Fails if mapped files count as its memory or its heap does not, if what was freed before a
 * session comes stays beside its arena, if a report's sum is not what it says, if products of many rows take memory
 * with their rows, or if the bits of a product depend on how it is shared out. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "ops/linear/gemm.h"

#include "with_context.h"

#define MODEL INV_TEST_DATA "/models/nice_dynbatch_ts17/model.onnx"
#define MIB ((size_t)1 << 20)
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define OWN_HEAP 1 /* else another allocator's, which may keep what is freed */
#endif

static bool counted(void)
{
    if (inv_process_bytes() > 0) return true;
    skip(); /* not on this system */
    return false;
}

static void test_files_do_not_count(void **state)
{
    (void)state;
    const size_t n = 64 * MIB;
    if (!counted()) return;
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), (off_t)n), 0);
    const uint64_t before = inv_process_bytes();
    volatile unsigned char *map = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fileno(f), 0);
    assert_true(map != MAP_FAILED);
    unsigned sum = 0;
    for (size_t i = 0; i < n; i += 4096) sum += map[i];
    assert_int_equal(sum, 0);
    assert_true(inv_process_bytes() < before + n / 4);
    unsigned char *own = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(own != MAP_FAILED);
    memset(own, 1, n);
    assert_true(inv_process_bytes() > before + n / 4 * 3);
    munmap((void *)(uintptr_t)map, n);
    munmap(own, n);
    (void)fclose(f);
}

/* A session to train the model; its report. */
static json_t *train(inv_session **s)
{
    static const float x[8];
    static const int64_t dims[] = {1, 8};
    static inv_model *model;
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x};
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .inputs = &in,
                                   .ninputs = 1,
                                   .target = &in,
                                   .loss = INV_LOSS_MSE,
                                   .optimizer = INV_OPT_SGD};
    char *text;
    if (!model) assert_int_equal(inv_model_load(ctx, MODEL, &model), INV_OK);
    if (!s) {
        inv_model_destroy(model);
        model = NULL;
        return NULL;
    }
    assert_int_equal(inv_session_create(model, &o, s), INV_OK);
    assert_int_equal(inv_session_report(*s, &text), INV_OK);
    json_t *report = json_loads(text, 0, NULL);
    inv_free(ctx, text);
    return report;
}

static uint64_t number(const json_t *report, const char *key)
{
    assert_true(json_is_integer(json_object_get(report, key)));
    return (uint64_t)json_integer_value(json_object_get(report, key));
}

static void test_report(void **state)
{
    (void)state;
    inv_session *s;
    if (!counted()) return;
    const uint64_t before = inv_process_bytes(), extra = 256 * MIB;
    json_t *report = train(&s);
    const uint64_t beside = number(report, "beside_bytes");
    assert_true(beside > 0 && beside < before + 64 * MIB);
    assert_int_equal(number(report, "process_bytes"), beside + number(report, "planned_peak_bytes"));
    json_decref(report);
    inv_session_destroy(s);
    void *held = mmap(NULL, extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(held != MAP_FAILED);
    memset(held, 1, extra);
    report = train(&s);
    assert_true(number(report, "beside_bytes") > beside + extra / 4 * 3);
    json_decref(report);
    inv_session_destroy(s);
    munmap(held, extra);
    train(NULL);
}

#ifdef OWN_HEAP
/* Freed all but the last, so that the heap's end stays where it is. */
static void test_freed_memory_goes_back(void **state)
{
    (void)state;
    enum { PIECES = 4096, PIECE = 32 << 10 };
    static void *piece[PIECES];
    inv_session *s;
    if (!counted()) return;
    for (size_t i = 0; i < PIECES; i++) {
        piece[i] = malloc(PIECE);
        assert_non_null(piece[i]);
        memset(piece[i], 1, PIECE);
    }
    const uint64_t before = inv_process_bytes();
    for (size_t i = 0; i + 1 < PIECES; i++) free(piece[i]);
    json_t *report = train(&s);
    assert_true(number(report, "beside_bytes") < before - (uint64_t)PIECES / 2 * PIECE);
    json_decref(report);
    inv_session_destroy(s);
    free(piece[PIECES - 1]);
    train(NULL);
}
#endif

/* Between -1 and 1, with all their bits. */
static void fill(float *x, size_t n)
{
    uint32_t h = 1;
    for (size_t i = 0; i < n; i++) {
        h = h * 1664525u + 1013904223u;
        x[i] = (float)(h >> 8) * 0x1p-23f - 1;
    }
}

/* Rows are taken in parts, whose bits are those of each part by itself. */
static void test_products_of_many_rows(void **state)
{
    (void)state;
    enum { M = 11520, N = 900, K = 384, PART = 1920 };
    float *a = malloc(sizeof *a * M * K), *b = malloc(sizeof *b * N * K), *c = malloc(sizeof *c * M * N);
    float *d = malloc(sizeof *d * M * K);
    assert_true(a && b && c && d);
    fill(a, (size_t)M * K);
    fill(b, (size_t)N * K);
    memset(c, 0, sizeof *c * M * N);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const uint64_t before = inv_process_bytes();
    inv_gemm_f32(false, true, M, N, K, a, K, b, K, false, c, N);
    assert_true(inv_process_bytes() < before + 10 * MIB); /* of 17 that all rows are */
    for (size_t at = 0; at < M; at += PART) {
        inv_gemm_f32(false, true, PART, N, K, a + at * K, K, b, K, false, d, N);
        assert_memory_equal(d, c + at * N, sizeof *d * PART * N);
    }
    for (size_t i = 0; i < M; i++) /* the same, its first operand turned */
        for (size_t k = 0; k < K; k++) d[k * M + i] = a[i * K + k];
    memcpy(a, c, sizeof *a * K * M);
    inv_gemm_f32(true, true, M, N, K, d, M, b, K, false, c, N);
    for (size_t i = 0; i < (size_t)K * M; i++) assert_true(a[i] - c[i] < 1e-3F && c[i] - a[i] < 1e-3F);
    omp_set_num_threads(threads);
    free(a);
    free(b);
    free(c);
    free(d);
}

/* However many threads share the rows of a product, its bits are the same. */
static void test_products_by_threads(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{301, 290, 500}, {707, 21, 900}, {3990, 24, 354}};
    enum { MOST = 3990 * 354 };
    const int threads = omp_get_max_threads();
    float *a = malloc(sizeof *a * MOST), *b = malloc(sizeof *b * MOST), *c = malloc(sizeof *c * MOST * 2);
    assert_true(a && b && c);
    fill(a, MOST);
    fill(b, MOST);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        for (int t = 1; t < 5; t++) {
            float *out = t == 1 ? c : c + MOST;
            omp_set_num_threads(t);
            inv_gemm_f32(false, false, m, n, k, a, k, b, n, false, out, n);
            assert_memory_equal(c, out, sizeof *c * (size_t)(m * n));
        }
    }
    omp_set_num_threads(threads);
    free(a);
    free(b);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_many_rows), /* first: libraries have taken nothing yet */
        cmocka_unit_test(test_products_by_threads),
        cmocka_unit_test(test_files_do_not_count),
        cmocka_unit_test(test_report),
#ifdef OWN_HEAP
        cmocka_unit_test(test_freed_memory_goes_back),
#endif
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
