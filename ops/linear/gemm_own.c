/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of float32 for processors with AVX2 and FMA, or AVX-512, blocked for their caches (Goto and van de
 * Geijn 2008). Parts of op(b) are packed into panels of two vectors of columns, parts of op(a) into panels of a few
 * rows; of one of each a tile of c is computed in registers. Where k is cut depends on k alone, so an element of c is
 * the same sum whatever part of c is asked for, and however wide vectors are: bits do not depend on the number of
 * threads. */
#include "ops/linear/gemm_own.h"

#include "ops/base/parallel.h"

#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#include <stdatomic.h>
#include <stdlib.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE_AVX2 static inline __attribute__((always_inline, target("avx2,fma")))

enum {
    MOST_K = 320,        /* a panel of b stays in the first cache, */
    MOST_ROWS = 84,      /* those of a in the second, */
    MOST_COLUMNS = 1024, /* all of b's in the third */
    PACKED_AT_ONCE = 16, /* rows of an operand */
    TURNED = 8,          /* rows and columns at once */
    WIDEST = 16,         /* vector */
    LINE = 64,           /* bytes of a cache's line */
    SLOTS = 64
};

/* What a thread packs into. Panels of a are written in whole vectors, which may end behind them. */
typedef struct scratch {
    _Alignas(64) float b[MOST_K * MOST_COLUMNS];
    float a[MOST_K * MOST_ROWS + WIDEST];
} scratch;

/* --- scratch memory of the process, 1.4 MiB for each thread there ever was at once, kept; in no plan --- */

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

/* --- how matrices are cut --- */

/* The extent cut into as few parts of about one size as `most` allows, all but the last multiples of `unit`. */
static int64_t part_of(int64_t extent, int64_t most, int64_t unit)
{
    const int64_t parts = (extent + most - 1) / most;
    return (extent + parts * unit - 1) / (parts * unit) * unit;
}

/* Of the panel of m rows that begins at `from`: they are cut into as few as there can be, of about one height. */
static int64_t panel_height(int64_t m, int64_t from, int64_t most)
{
    const int64_t count = (m + most - 1) / most, least = m / count, higher = m % count;
    return least + (from < higher * (least + 1));
}

/* --- what is packed next --- */

/* Lines of memory that are asked for while tiles are computed, `left` rows of them. */
typedef struct ahead {
    const char *line, *end; /* of the row */
    int64_t gap, step;      /* bytes from behind its lines to the next one, from its end to that one's */
    int64_t left;
} ahead;

static ahead ahead_of(const float *x, int64_t ld, int64_t rows, int64_t columns)
{
    const int64_t size = sizeof(float), nbytes = columns * size;
    const int64_t lines = (nbytes + LINE - 1) / LINE * LINE;
    return (ahead){(const char *)x, (const char *)x + nbytes, ld * size - lines, ld * size, rows};
}

/* Operands of a product, and the parts that it is cut into. */
typedef struct product {
    bool ta, tb;
    int64_t m, n, k;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t ldb, rows, columns, deep;
} product;

/* While rows from i on are multiplied by columns from j on, numbers from p on: the part of a that is packed next, and
 * of the next part of b what falls to these rows. */
static void look_ahead(const product *of, int64_t i, int64_t j, int64_t p, ahead w[2])
{
    const bool last = i + of->rows >= of->m;
    const int64_t pb = p + of->deep < of->k ? p + of->deep : 0, jb = pb ? j : j + of->columns;
    const int64_t pa = last ? pb : p, ia = last ? 0 : i + of->rows;
    const bool more = jb < of->n;
    if (more || !last) {
        const int64_t m = inv_min64(of->rows, of->m - ia), k = inv_min64(of->deep, of->k - pa);
        w[0] = of->ta ? ahead_of(of->a + pa * of->lda + ia, of->lda, k, m)
                      : ahead_of(of->a + ia * of->lda + pa, of->lda, m, k);
    }
    if (more) {
        const int64_t n = inv_min64(of->columns, of->n - jb), k = inv_min64(of->deep, of->k - pb), all = of->tb ? n : k;
        const int64_t from = all * i / of->m, count = all * inv_min64(i + of->rows, of->m) / of->m - from;
        const float *b = of->b + (of->tb ? jb : pb) * of->ldb + (of->tb ? pb : jb) + from * of->ldb;
        w[1] = ahead_of(b, of->ldb, count, of->tb ? k : n);
    }
}

/* --- operands turned --- */

/* Eight elements of each of eight rows, turned: out[i * step + j] = row j's element i. The stores are in rising order,
 * so that one may overlap the next. */
INLINE_AVX2 void turn(const __m256 r[TURNED], float *out, int64_t step)
{
    __m256 pair[TURNED], four[TURNED];
#pragma GCC unroll 4
    for (int i = 0; i < TURNED; i += 2) {
        pair[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < TURNED; i += 4) {
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

/* `count` rows of x side by side, with zeros up to `width` of them: out[k][width]. Eights of them are written from the
 * last ones on, since what they write too much is overwritten then. The next panel's rows are asked for: there are more
 * of them at once than prefetchers of processors follow. */
AVX2 static void pack_turned(int64_t k, int64_t count, int64_t width, const float *x, int64_t ld, float *out)
{
    int64_t p = 0;
    for (; p + TURNED <= k; p += TURNED) {
        for (int64_t from = (width - 1) / TURNED * TURNED; from >= 0; from -= TURNED) {
            __m256 r[TURNED];
            for (int i = 0; i < TURNED; i++) {
                const float *row = x + (from + i) * ld + p;
                r[i] = from + i < count ? _mm256_loadu_ps(row) : _mm256_setzero_ps();
                _mm_prefetch((const char *)(row + count * ld), _MM_HINT_T0);
            }
            turn(r, out + p * width + from, width);
        }
    }
    pack_rest(false, p, k, count, width, x, ld, out);
}

/* Lanes below `count`. */
INLINE_AVX2 __m256i first_lanes(int64_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __mmask16 first_bits(int64_t count)
{
    return (__mmask16)(count >= 16 ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1);
}

#define FN(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDE 8
#define HIGH 6
#define reals __m256
#define ZERO _mm256_setzero_ps()
#define ALL(x) _mm256_set1_ps(x)
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define LOAD_FIRST(p, n) _mm256_maskload_ps(p, first_lanes(n))
#define STORE_FIRST(p, n, v) _mm256_maskstore_ps(p, first_lanes(n), v)
#define ADD(v, w) _mm256_add_ps(v, w)
#define FMA(v, w, x) _mm256_fmadd_ps(v, w, x)
#include "ops/linear/gemm_own.inc"

#define FN(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#define WIDE 16
#define HIGH 12
#define reals __m512
#define ZERO _mm512_setzero_ps()
#define ALL(x) _mm512_set1_ps(x)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define LOAD_FIRST(p, n) _mm512_maskz_loadu_ps(first_bits(n), p)
#define STORE_FIRST(p, n, v) _mm512_mask_storeu_ps(p, first_bits(n), v)
#define ADD(v, w) _mm512_add_ps(v, w)
#define FMA(v, w, x) _mm512_fmadd_ps(v, w, x)
#include "ops/linear/gemm_own.inc"

static const inv_gemm_own by_avx2 = {product_avx2, pack_avx2, by_packed_avx2};
static const inv_gemm_own by_avx512 = {product_avx512, pack_avx512, by_packed_avx512};

const inv_gemm_own *inv_gemm_own_find(bool widest)
{
    if (widest && __builtin_cpu_supports("avx512f")) return &by_avx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &by_avx2 : NULL;
}
#else
const inv_gemm_own *inv_gemm_own_find(bool widest) { return (void)widest, NULL; }
#endif
