/* SPDX-License-Identifier: Apache-2.0
 * core/base/mem.c and core/base/status.c: allocation, arenas, arrays, text, error record. */
#define _DEFAULT_SOURCE /* madvise */
#include "core_test.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>

static void alloc_is_zeroed_and_aligned(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *p = inv_alloc(ctx, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        inv_dealloc(ctx, p);
    }
    inv_dealloc(ctx, NULL);
    assert_null(inv_alloc(ctx, SIZE_MAX));
    assert_null(inv_alloc(ctx, SIZE_MAX - 64));
    assert_int_equal(ctx->code, INV_E_NOMEM);
    test_context_end(ctx, &c);
}

#ifdef MADV_HUGEPAGE
/* Whether huge pages are asked for at the address (VmFlags in /proc/self/smaps); -1: the system does not say. */
static int asks_for_huge_pages(const void *p)
{
    char line[512];
    unsigned long long from, to;
    int within = 0, asks = -1;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) within = from <= (uintptr_t)p && (uintptr_t)p < to;
        else if (within && strncmp(line, "VmFlags:", 8) == 0) asks = strstr(line, " hg") != NULL;
    }
    if (f) (void)fclose(f);
    return asks;
}

/* The system's answer for memory of the test's own: there may be no huge pages at all. */
static bool has_huge_pages(void)
{
    const size_t nbytes = (size_t)8 << 20;
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    const bool has = madvise(p, nbytes, MADV_HUGEPAGE) == 0 && asks_for_huge_pages(p) == 1;
    assert_int_equal(munmap(p, nbytes), 0);
    return has;
}

/* Large blocks of the library's own allocator alone; all are zeroed and aligned. */
static void large_blocks_ask_for_huge_pages(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *counted = test_context(&c), *plain;
    assert_int_equal(inv_context_init(NULL, &plain), INV_OK);
    const size_t large = ((size_t)8 << 20) + 24, n[] = {0, 100, (size_t)1 << 20, large};
    const bool asks = has_huge_pages();
    for (size_t k = 0; k < 2 * sizeof n / sizeof *n; k++) {
        inv_context *ctx = k % 2 ? plain : counted;
        const size_t nbytes = n[k / 2];
        unsigned char *p = inv_alloc_huge(ctx, nbytes);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_int_equal(asks_for_huge_pages(p + nbytes / 2) == 1, asks && ctx == plain && nbytes == large);
        for (size_t i = 0; i < nbytes; i++) assert_int_equal(p[i], 0);
        if (nbytes) memset(p, 1, nbytes);
        inv_free_huge(ctx, p, nbytes);
    }
    inv_free_huge(plain, NULL, large);
    assert_null(inv_alloc_huge(plain, SIZE_MAX));
    assert_null(inv_alloc_huge(plain, PTRDIFF_MAX));
    assert_int_equal(plain->code, INV_E_NOMEM);
    inv_context_fini(plain);
    test_context_end(counted, &c);
}
#endif

static void arena_keeps_contents(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_arena a;
    inv_arena_init(&a, ctx);
    unsigned char *p[400];
    for (size_t i = 0; i < 400; i++) {
        size_t n = i * i % 9001;
        p[i] = inv_arena_alloc(&a, n);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < n; k++) assert_int_equal(p[i][k], 0);
        memset(p[i], (int)(i % 255) + 1, n);
    }
    for (size_t i = 0; i < 400; i++)
        for (size_t k = 0; k < i * i % 9001; k++) assert_int_equal(p[i][k], i % 255 + 1);
    assert_true(c.live < 60); /* blocks, not one allocation each */
    assert_null(inv_arena_alloc(&a, SIZE_MAX));
    assert_null(inv_arena_array(&a, SIZE_MAX / 4, 8));
    assert_string_equal(inv_arena_printf(&a, "%s-%d", "x", 3), "x-3");
    assert_string_equal(inv_arena_strndup(&a, "hello", 2), "he");
    inv_arena_fini(&a);
    test_context_end(ctx, &c);
}

static void vec_grows(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_arena a;
    INV_VEC(int) v = {0};
    inv_arena_init(&a, ctx);
    for (int i = 0; i < 5000; i++) assert_true(inv_vec_push(&a, &v, i));
    assert_int_equal(v.n, 5000);
    for (int i = 0; i < 5000; i++) assert_int_equal(v.at[i], i);
    c.fail_at = c.calls + 1;
    size_t n = v.n;
    while (inv_vec_push(&a, &v, 1)) n++;
    assert_int_equal(v.n, n); /* nothing half done */
    inv_arena_fini(&a);
    test_context_end(ctx, &c);
}

/* What is left can be read until the arena is tidied, which gives its memory back. */
static void arena_is_tidied(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_arena a;
    inv_arena_init(&a, ctx);
    char *small = inv_arena_strdup(&a, "small"), *large = inv_arena_alloc(&a, 100000), *other;
    assert_non_null(other = inv_arena_alloc(&a, 100000));
    large[99999] = 'x';
    const long live = c.live;
    inv_arena_leave(&a, small); /* others are in its block */
    inv_arena_leave(&a, NULL);
    inv_arena_leave(&a, large);
    assert_int_equal(large[99999], 'x');
    assert_int_equal(c.live, live);
    inv_arena_tidy(&a);
    inv_arena_tidy(&a);
    assert_int_equal(c.live, live - 1);
    assert_string_equal(small, "small");
    assert_int_equal(other[99999], 0);
    inv_arena_fini(&a);
    test_context_end(ctx, &c);
}

static void messages_are_complete(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_string_equal(inv_context_message(ctx), "");
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(inv_fail(ctx, INV_E_SHAPE, "long %s.", text), INV_E_SHAPE);
    assert_int_equal(strlen(inv_context_message(ctx)), 5 + 2999 + 1);
    /* a message built from the old one */
    (void)inv_fail(ctx, INV_E_GRAPH, "again: %s", inv_context_message(ctx));
    assert_int_equal(strlen(inv_context_message(ctx)), 7 + 5 + 2999 + 1);
    (void)inv_fail(ctx, INV_E_ARG, "short");
    (void)inv_fail(ctx, INV_E_ARG, "was %s", inv_context_message(ctx));
    assert_string_equal(inv_context_message(ctx), "was short");
    c.fail_at = c.calls + 1; /* no memory for the message: its beginning is kept */
    (void)inv_fail(ctx, INV_E_ARG, "cut %s", text);
    assert_int_equal(strlen(inv_context_message(ctx)), 255);
    assert_int_equal(ctx->code, INV_E_ARG);
    test_context_end(ctx, &c);
}

static void text_grows_and_is_handed_over(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_str b;
    char *s;
    inv_str_init(&b, ctx);
    assert_int_equal(inv_str_take(&b, &s), INV_OK); /* an empty text can be freed, too */
    assert_string_equal(s, "");
    inv_free(ctx, s);
    for (int i = 0; i < 1000; i++) inv_str_add(&b, "%d,", i % 10);
    assert_int_equal(b.n, 2000);
    assert_int_equal(strlen(b.s), 2000);
    c.fail_at = c.calls + 1;
    for (int i = 0; i < 1000 && !b.failed; i++) inv_str_add(&b, "%s", "0123456789");
    assert_true(b.failed);
    assert_int_equal(strlen(b.s), b.n);
    assert_int_equal(inv_str_take(&b, &s), INV_E_NOMEM);
    assert_null(s);
    inv_str_fini(&b);
    inv_free(ctx, b.s); /* the shared empty text is nobody's */
    test_context_end(ctx, &c);
}

static void numbers_read_back(void **state)
{
    (void)state;
    const double v[] = {0, 1, -1, 0.1, 1.0 / 3, 1e300, 5e-324, 123456789, 0.30000000000000004, 1e22};
    char buf[INV_DOUBLE_TEXT];
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) assert_true(strtod(inv_double_text(v[i], buf), NULL) == v[i]);
    assert_string_equal(inv_double_text(0.1, buf), "0.1");
    assert_string_equal(inv_double_text((double)INFINITY, buf), "inf");
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8")) {
        assert_string_equal(inv_double_text(2.5, buf), "2.5");
        setlocale(LC_NUMERIC, "C");
    }
}

static void arithmetic_and_codes(void **state)
{
    (void)state;
    size_t r;
    assert_true(inv_mul_size(1 << 20, 1 << 20, &r));
    assert_int_equal(r, (size_t)1 << 40);
    assert_false(inv_mul_size(SIZE_MAX / 2, 3, &r));
    assert_true(inv_mul_size(SIZE_MAX, 0, &r));
    assert_false(inv_add_size(SIZE_MAX, 1, &r));
    assert_true(inv_hash("ab", 2, 0) != inv_hash("ba", 2, 0));
    assert_true(inv_hash("", 0, 0) == 0xcbf29ce484222325u);
    assert_string_equal(inv_status_text(INV_OK), "done");
    assert_string_equal(inv_status_text((inv_status)99), "unknown status");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", INV_VERSION_MAJOR, INV_VERSION_MINOR, INV_VERSION_PATCH);
    assert_string_equal(inv_version(), version);
    assert_string_equal(inv_context_message(NULL), "");
}

typedef struct told {
    int n;
    double share;
    const char *stage;
} told;

static void note_share(void *opaque, const char *stage, double share)
{
    told *t = opaque;
    assert_true(share >= t->share && share <= 1);
    *t = (told){t->n + 1, share, stage};
}

/* Shares told in parts of parts are those of the whole, and only grow. Of work without a name nothing is told. */
static void test_progress(void **state)
{
    (void)state;
    told t = {0};
    const inv_context_options o = {.size = sizeof o, .progress = note_share, .progress_opaque = &t};
    inv_context *ctx;
    assert_int_equal(inv_context_init(&o, &ctx), INV_OK);
    inv_progress(ctx, 0.5);
    assert_int_equal(t.n, 0);
    inv_span all = inv_span_enter(ctx, "work", 0, 1);
    inv_span half = inv_span_enter(ctx, NULL, 0.5, 1);
    inv_span quarter = inv_span_enter(ctx, NULL, 0.5, 1);
    inv_progress(ctx, 0.5);
    assert_true(t.n > 1 && t.share == 0.875);
    assert_string_equal(t.stage, "work");
    inv_span_leave(ctx, quarter);
    inv_progress(ctx, 2);
    assert_true(t.share == 1);
    inv_span_leave(ctx, half);
    inv_span_leave(ctx, all);
    const int n = t.n;
    inv_progress(ctx, 0);
    assert_int_equal(t.n, n);
    inv_context_fini(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress),
        cmocka_unit_test(alloc_is_zeroed_and_aligned),
#ifdef MADV_HUGEPAGE
        cmocka_unit_test(large_blocks_ask_for_huge_pages),
#endif
        cmocka_unit_test(arena_keeps_contents),
        cmocka_unit_test(vec_grows),
        cmocka_unit_test(arena_is_tidied),
        cmocka_unit_test(messages_are_complete),
        cmocka_unit_test(text_grows_and_is_handed_over),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(arithmetic_and_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
