/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of float32 for processors with AVX2 and FMA, blocked for their caches (Goto and van de Geijn 2008).
 * Parts of op(b) are packed into panels of 16 columns, parts of op(a) into panels of 6 rows; of one of each a tile of c
 * is computed in 12 registers. Where k is cut depends on k alone, so an element of c is the same sum whatever part of c
 * is asked for: bits do not depend on the number of threads. */
#include "ops/linear/gemm_avx2.h"

#include "ops/base/parallel.h"

#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#include <stdatomic.h>
#include <stdlib.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE_AVX2 static inline __attribute__((always_inline, target("avx2,fma")))

enum {
    VECTOR = 8,
    TILE_ROWS = 6,
    TILE_COLUMNS = INV_TILE_COLUMNS,
    MOST_K = 256,        /* a panel of b stays in the first cache, */
    MOST_ROWS = 72,      /* those of a in the second, */
    MOST_COLUMNS = 1024, /* all of b's in the third */
    PACKED_AT_ONCE = 16, /* rows of an operand */
    SLOTS = 64
};

/* What a thread packs into. Panels of a are written in whole vectors, which may end behind them. */
typedef struct scratch {
    _Alignas(64) float b[MOST_K * MOST_COLUMNS];
    float a[MOST_K * MOST_ROWS + VECTOR];
} scratch;

/* --- scratch memory of the process, 1.1 MiB for each thread there ever was at once, kept; in no plan --- */

static _Atomic(scratch *) slot[SLOTS];

static scratch *scratch_take(void)
{
    for (int i = 0; i < SLOTS; i++) {
        scratch *s = atomic_load(&slot[i]) ? atomic_exchange(&slot[i], NULL) : NULL;
        if (s) return s;
    }
    return aligned_alloc(_Alignof(scratch), sizeof(scratch));
}

static void scratch_give(scratch *s)
{
    for (int i = 0; i < SLOTS; i++) {
        scratch *none = NULL;
        if (atomic_compare_exchange_strong(&slot[i], &none, s)) return;
    }
    free(s);
}

__attribute__((destructor)) static void scratch_free(void)
{
    for (int i = 0; i < SLOTS; i++) free(atomic_exchange(&slot[i], NULL));
}

/* --- packing --- */

/* Eight elements of each of eight rows, turned: out[i * step + j] = row j's element i. The stores are in rising order,
 * so that one may overlap the next. */
INLINE_AVX2 void turn(const __m256 r[VECTOR], float *out, int64_t step)
{
    __m256 pair[VECTOR], four[VECTOR];
#pragma GCC unroll 4
    for (int i = 0; i < VECTOR; i += 2) {
        pair[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < VECTOR; i += 4) {
        four[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        four[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
        four[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        four[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) _mm256_storeu_ps(out + i * step, _mm256_permute2f128_ps(four[i], four[i + 4], 0x20));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(out + (i + 4) * step, _mm256_permute2f128_ps(four[i], four[i + 4], 0x31));
}

/* Element by element, with zeros beyond `count` of `width`; along: the panel's lanes lie next to each other. */
static void pack_rest(bool along, int64_t from, int64_t k, int64_t count, int64_t width, const float *x, int64_t ld,
                      float *out)
{
    for (int64_t p = from; p < k; p++) {
        for (int64_t i = 0; i < width; i++) out[p * width + i] = i >= count ? 0 : along ? x[p * ld + i] : x[i * ld + p];
    }
}

/* A panel of `count` rows of op(a), of which `left` lie there from its first one on: out[k][6]. */
AVX2 static void pack_a(bool ta, int64_t k, int64_t left, const float *a, int64_t lda, float *out)
{
    const int64_t count = inv__min64(left, TILE_ROWS);
    int64_t p = 0;
    if (ta && left >= VECTOR) {
        for (; p + 1 < k; p++) _mm256_storeu_ps(out + p * TILE_ROWS, _mm256_loadu_ps(a + p * lda));
    } else if (!ta && count == TILE_ROWS) {
        for (; p + VECTOR <= k; p += VECTOR) {
            __m256 r[VECTOR];
            for (int i = 0; i < TILE_ROWS; i++) r[i] = _mm256_loadu_ps(a + i * lda + p);
            for (int i = TILE_ROWS; i < VECTOR; i++) r[i] = _mm256_setzero_ps();
            turn(r, out + p * TILE_ROWS, TILE_ROWS);
        }
    }
    pack_rest(ta, p, k, count, TILE_ROWS, a, lda, out);
}

/* A panel of `count` columns of op(b): out[k][16]. */
AVX2 static void pack_b(bool tb, int64_t k, int64_t count, const float *b, int64_t ldb, float *out)
{
    int64_t p = 0;
    if (count == TILE_COLUMNS && !tb) {
        for (; p < k; p++) {
            _mm256_store_ps(out + p * TILE_COLUMNS, _mm256_loadu_ps(b + p * ldb));
            _mm256_store_ps(out + p * TILE_COLUMNS + VECTOR, _mm256_loadu_ps(b + p * ldb + VECTOR));
        }
    } else if (count == TILE_COLUMNS) {
        for (; p + VECTOR <= k; p += VECTOR) {
            for (int half = 0; half < TILE_COLUMNS; half += VECTOR) {
                __m256 r[VECTOR];
                for (int i = 0; i < VECTOR; i++) r[i] = _mm256_loadu_ps(b + (half + i) * ldb + p);
                turn(r, out + p * TILE_COLUMNS + half, TILE_COLUMNS);
            }
        }
    }
    pack_rest(!tb, p, k, count, TILE_COLUMNS, b, ldb, out);
}

/* Operands whose panels' lanes lie next to each other are read few of their rows at a time, all panels in turn, so that
 * memory is read as it lies. */
static void pack_rows(bool ta, int64_t k, int64_t m, const float *a, int64_t lda, float *out)
{
    const int64_t step = ta ? PACKED_AT_ONCE : k;
    for (int64_t p = 0; p < k; p += step)
        for (int64_t i = 0; i < m; i += TILE_ROWS)
            pack_a(ta, inv__min64(step, k - p), m - i, a + (ta ? p * lda + i : i * lda + p), lda,
                   out + i * k + p * TILE_ROWS);
}

static void pack_columns(bool tb, int64_t k, int64_t n, const float *b, int64_t ldb, float *out)
{
    const int64_t step = tb ? k : PACKED_AT_ONCE;
    for (int64_t p = 0; p < k; p += step)
        for (int64_t j = 0; j < n; j += TILE_COLUMNS)
            pack_b(tb, inv__min64(step, k - p), inv__min64(TILE_COLUMNS, n - j), b + (tb ? j * ldb + p : p * ldb + j),
                   ldb, out + j * k + p * TILE_COLUMNS);
}

/* --- tiles --- */

/* Lanes below `count`. */
INLINE_AVX2 __m256i first_lanes(int64_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first `count` lanes of `sum`, at most 8, to c. */
INLINE_AVX2 void give(bool whole, int64_t count, bool add, __m256 sum, float *c)
{
    if (whole) {
        _mm256_storeu_ps(c, add ? _mm256_add_ps(sum, _mm256_loadu_ps(c)) : sum);
    } else {
        const __m256i lanes = first_lanes(count);
        _mm256_maskstore_ps(c, lanes, add ? _mm256_add_ps(sum, _mm256_maskload_ps(c, lanes)) : sum);
    }
}

/* Twelve sums that are to stay in registers need names, not places of an array. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define BEGIN_ROW(i)                                                      \
    __m256 left##i = _mm256_setzero_ps(), right##i = _mm256_setzero_ps(); \
    if (whole) _mm_prefetch((const char *)(c + (i)*ldc), _MM_HINT_T0);
#define ADD_TO_ROW(i)                                          \
    if ((i) < most) {                                          \
        const __m256 x = _mm256_broadcast_ss(a + (i));         \
        left##i = _mm256_fmadd_ps(x, b0, left##i);             \
        if (both) right##i = _mm256_fmadd_ps(x, b1, right##i); \
    }
#define GIVE_ROW(i)                                                                   \
    if ((i) < most && (i) < rows) {                                                   \
        give(whole, columns, add, left##i, c + (i)*ldc);                              \
        if (both) give(whole, columns - VECTOR, add, right##i, c + (i)*ldc + VECTOR); \
    }

/* most: rows that are computed, of `high` in a panel of a; both: more than one vector of columns; whole: all of them;
 * next: from one row of b to the next. The sum over k is one chain of multiply-adds for each element. */
INLINE_AVX2 void tile_of(int most, bool both, bool whole, int64_t rows, int64_t columns, int64_t k, const float *a,
                         int high, const float *b, int64_t next, bool add, float *c, int64_t ldc)
{
    EACH_ROW(BEGIN_ROW)
#pragma GCC unroll 4
    for (int64_t p = 0; p < k; p++, a += high, b += next) {
        const __m256 b0 = _mm256_loadu_ps(b), b1 = both ? _mm256_loadu_ps(b + VECTOR) : b0;
        EACH_ROW(ADD_TO_ROW)
    }
    EACH_ROW(GIVE_ROW)
}

/* Of panels as they are packed for a product. */
INLINE_AVX2 void tile(int most, bool both, bool whole, int64_t rows, int64_t columns, int64_t k, const float *a,
                      const float *b, bool add, float *c, int64_t ldc)
{
    tile_of(most, both, whole, rows, columns, k, a, TILE_ROWS, b, TILE_COLUMNS, add, c, ldc);
}

AVX2 static void whole_tile(int64_t k, const float *a, const float *b, bool add, float *c, int64_t ldc)
{
    tile(TILE_ROWS, true, true, TILE_ROWS, TILE_COLUMNS, k, a, b, add, c, ldc);
}

/* At the border of c. */
AVX2 static void part_of_tile(int64_t rows, int64_t columns, int64_t k, const float *a, const float *b, bool add,
                              float *c, int64_t ldc)
{
    const bool both = columns > VECTOR;
    if (rows > 4 && both) tile(TILE_ROWS, true, false, rows, columns, k, a, b, add, c, ldc);
    else if (rows > 4) tile(TILE_ROWS, false, false, rows, columns, k, a, b, add, c, ldc);
    else if (rows > 2 && both) tile(4, true, false, rows, columns, k, a, b, add, c, ldc);
    else if (both) tile(2, true, false, rows, columns, k, a, b, add, c, ldc);
    else tile(4, false, false, rows, columns, k, a, b, add, c, ldc);
}

/* Panels of `rows` rows by those of `columns` columns, k numbers deep. */
static void panels(const scratch *w, int64_t rows, int64_t columns, int64_t k, bool add, float *c, int64_t ldc)
{
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS) {
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const float *a = w->a + i * k, *b = w->b + j * k;
            const int64_t m = inv__min64(TILE_ROWS, rows - i), n = inv__min64(TILE_COLUMNS, columns - j);
            if (m == TILE_ROWS && n == TILE_COLUMNS) whole_tile(k, a, b, add, c + i * ldc + j, ldc);
            else part_of_tile(m, n, k, a, b, add, c + i * ldc + j, ldc);
        }
    }
}

/* --- products of one matrix by several that lie in a cache --- */

/* Of the panel of m rows that begins at `from`: they are cut into as few as there can be, of about one height. */
static int64_t panel_height(int64_t m, int64_t from)
{
    const int64_t count = (m + TILE_ROWS - 1) / TILE_ROWS, least = m / count, higher = m % count;
    return least + (from < higher * (least + 1));
}

void inv__gemm_avx2_pack(int64_t m, int64_t k, const float *a, int64_t lda, float *packed)
{
    for (int64_t i = 0, high = 0; i < m; i += high) {
        high = panel_height(m, i);
        pack_rest(false, 0, k, high, high, a + i * lda, lda, packed + i * k);
    }
}

#define BY_PANEL_OF(high)                                                                                            \
    AVX2 static void by_panel_of_##high(int64_t n, int64_t k, const float *a, const float *b, int64_t ldb, float *c, \
                                        int64_t ldc)                                                                 \
    {                                                                                                                \
        for (int64_t j = 0; j < n; j += TILE_COLUMNS)                                                                \
            tile_of(high, true, true, high, TILE_COLUMNS, k, a, high, b + j, ldb, false, c + j, ldc);                \
    }
BY_PANEL_OF(3)
BY_PANEL_OF(4)
BY_PANEL_OF(5)
BY_PANEL_OF(6)

void inv__gemm_avx2_by_packed(int64_t m, int64_t n, int64_t k, const float *packed, const float *b, int64_t ldb,
                              float *c, int64_t ldc)
{
    static void (*const by_panel[])(int64_t, int64_t, const float *, const float *, int64_t, float *,
                                    int64_t) = {by_panel_of_3, by_panel_of_4, by_panel_of_5, by_panel_of_6};
    for (int64_t i = 0, high = 0; i < m; i += high) {
        high = panel_height(m, i);
        by_panel[high - 3](n, k, packed + i * k, b, ldb, c + i * ldc, ldc);
    }
}

/* --- the product --- */

/* The extent cut into as few parts of about one size as `most` allows, all but the last multiples of `unit`. */
static int64_t part_of(int64_t extent, int64_t most, int64_t unit)
{
    const int64_t parts = (extent + most - 1) / most;
    return (extent + parts * unit - 1) / (parts * unit) * unit;
}

bool inv__gemm_avx2_serves(int64_t m, int64_t n)
{
    return m >= 2 * TILE_ROWS && n >= TILE_COLUMNS && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           !__builtin_cpu_supports("avx512f");
}

bool inv__gemm_avx2(INV_GEMM_ARGS(float))
{
    scratch *w = scratch_take();
    if (!w) return false;
    const int64_t columns = part_of(n, MOST_COLUMNS, TILE_COLUMNS), rows = part_of(m, MOST_ROWS, TILE_ROWS);
    const int64_t deep = part_of(k, MOST_K, VECTOR);
    for (int64_t j = 0; j < n; j += columns) {
        const int64_t jn = inv__min64(columns, n - j);
        for (int64_t p = 0; p < k; p += deep) {
            const int64_t pn = inv__min64(deep, k - p);
            pack_columns(tb, pn, jn, b + (tb ? j * ldb + p : p * ldb + j), ldb, w->b);
            for (int64_t i = 0; i < m; i += rows) {
                const int64_t in = inv__min64(rows, m - i);
                pack_rows(ta, pn, in, a + (ta ? p * lda + i : i * lda + p), lda, w->a);
                panels(w, in, jn, pn, add || p > 0, c + i * ldc + j, ldc);
            }
        }
    }
    scratch_give(w);
    return true;
}
#else
bool inv__gemm_avx2_serves(int64_t m, int64_t n) { return (void)m, (void)n, false; }
bool inv__gemm_avx2(INV_GEMM_ARGS(float))
{
    (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb, (void)add, (void)c;
    (void)ldc;
    return false;
}
void inv__gemm_avx2_pack(int64_t m, int64_t k, const float *a, int64_t lda, float *packed)
{
    (void)m, (void)k, (void)a, (void)lda, (void)packed;
}
void inv__gemm_avx2_by_packed(int64_t m, int64_t n, int64_t k, const float *packed, const float *b, int64_t ldb,
                              float *c, int64_t ldc)
{
    (void)m, (void)n, (void)k, (void)packed, (void)b, (void)ldb, (void)c, (void)ldc;
}
#endif
