/* SPDX-License-Identifier: Apache-2.0
 * Element types, shapes, broadcasting, byte counts, conversion of raw tensor data. */
#include "core/base/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"

/* clang-format off */
static const struct {
    const char *name;
    size_t size;
} types[] = {[INV_DT_NONE] = {"undefined", 0}, [INV_F32] = {"float", 4},    [INV_U8] = {"uint8", 1},
             [INV_I8] = {"int8", 1},           [INV_U16] = {"uint16", 2},   [INV_I16] = {"int16", 2},
             [INV_I32] = {"int32", 4},         [INV_I64] = {"int64", 8},    [INV_STRING] = {"string", 0},
             [INV_BOOL] = {"bool", 1},         [INV_F16] = {"float16", 2},  [INV_F64] = {"double", 8},
             [INV_U32] = {"uint32", 4},        [INV_U64] = {"uint64", 8},   [INV_C64] = {"complex64", 8},
             [INV_C128] = {"complex128", 16},  [INV_BF16] = {"bfloat16", 2},
             /* small types: rounded to, never computed with */
             {"float8e4m3fn", 0},   {"float8e4m3fnuz", 0}, {"float8e5m2", 0}, {"float8e5m2fnuz", 0}, {"uint4", 0},
             {"int4", 0},           {"float4e2m1", 0},     {"float8e8m0", 0}, {"uint2", 0},          {"int2", 0},
             {"float6e2m3", 0},     {"float6e3m2", 0}};
/* clang-format on */
#define NTYPES (sizeof types / sizeof *types)

size_t inv_dtype_size(inv_dtype t) { return (size_t)t < NTYPES ? types[t].size : 0; }

const char *inv_dtype_name(inv_dtype t) { return (size_t)t < NTYPES ? types[t].name : "unknown"; }

bool inv_dtype_parse(const char *name, inv_dtype *out)
{
    for (size_t i = 0; i < NTYPES; i++)
        if (strcmp(types[i].name, name) == 0) {
            *out = (inv_dtype)i;
            return true;
        }
    *out = INV_DT_NONE;
    return false;
}

bool inv_dtype_is_float(inv_dtype t) { return t == INV_F32 || t == INV_F64 || t == INV_F16 || t == INV_BF16; }

/* --- shapes --- */

inv_shape inv_shape_unknown(void) { return (inv_shape){.rank = -1}; }

inv_shape inv_shape_scalar(void) { return (inv_shape){.rank = 0}; }

inv_shape inv_shape_of(int rank, const int64_t *dim)
{
    if (rank < 0 || rank > INV_MAX_RANK) return inv_shape_unknown();
    inv_shape s = {.rank = rank};
    for (int i = 0; i < rank; i++) s.dim[i] = dim[i];
    return s;
}

bool inv_shape_is_static(const inv_shape *s)
{
    if (s->rank < 0) return false;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] < 0) return false;
    return true;
}

bool inv_shape_equal(const inv_shape *a, const inv_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

static bool count_elements(const inv_shape *s, int64_t *out)
{
    int64_t n = 1;
    bool fits = true;
    for (int i = 0; i < s->rank; i++) {
        if (s->dim[i] <= 0) {
            *out = 0;
            return s->dim[i] == 0;
        }
        if (n > INT64_MAX / s->dim[i]) fits = false;
        if (fits) n *= s->dim[i];
    }
    *out = fits ? n : INT64_MAX;
    return fits;
}

int64_t inv_shape_nelem(const inv_shape *s)
{
    int64_t n;
    (void)count_elements(s, &n);
    return n;
}

bool inv_shape_nbytes(const inv_shape *s, inv_dtype t, size_t *out)
{
    int64_t n;
    *out = 0;
    if (!inv_shape_is_static(s) || !count_elements(s, &n)) return false;
    return inv_mul_size((size_t)n, inv_dtype_size(t), out) && *out <= INV_LARGEST_TENSOR;
}

bool inv_shape_broadcast(const inv_shape *a, const inv_shape *b, inv_shape *out)
{
    *out = inv_shape_unknown();
    if (a->rank < 0 || b->rank < 0) return true;
    inv_shape s = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 0; i < s.rank; i++) {
        int ia = i - (s.rank - a->rank), ib = i - (s.rank - b->rank);
        int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
        if (da == db || db == 1) s.dim[i] = da;
        else if (da == 1) s.dim[i] = db;
        else if (da < 0 || db < 0) s.dim[i] = da < 0 ? db : da; /* the known one, which is more than 1 */
        else return false;
    }
    *out = s;
    return true;
}

int64_t inv_shape_element(const inv_shape *own, const inv_shape *like, int64_t e)
{
    int64_t at = 0, step = 1;
    for (int d = 1; d <= like->rank; d++) {
        const int64_t n = like->dim[like->rank - d], extent = d <= own->rank ? own->dim[own->rank - d] : 1;
        const int64_t i = n ? e % n : 0;
        e /= n ? n : 1;
        if (extent > 1) at += i * step;
        step *= extent;
    }
    return at;
}

char *inv_shape_text(const inv_shape *s, char buf[INV_SHAPE_TEXT])
{
    if (s->rank < 0) {
        snprintf(buf, INV_SHAPE_TEXT, "[...]");
        return buf;
    }
    size_t n = 0;
    buf[n++] = '[';
    for (int i = 0; i < s->rank && i < INV_MAX_RANK; i++) {
        char dim[24];
        int len =
            s->dim[i] < 0 ? snprintf(dim, sizeof dim, "?") : snprintf(dim, sizeof dim, "%lld", (long long)s->dim[i]);
        if (n + (size_t)len + 8 > INV_SHAPE_TEXT) {
            memcpy(buf + n, ",...", 4);
            n += 4;
            break;
        }
        if (i) buf[n++] = ',';
        memcpy(buf + n, dim, (size_t)len);
        n += (size_t)len;
    }
    buf[n++] = ']';
    buf[n] = '\0';
    return buf;
}

/* --- elements --- */

/* A 16-bit float with `mbits` bits of mantissa. */
static double small_to_double(uint16_t h, int mbits)
{
    int ebits = 15 - mbits, bias = (1 << (ebits - 1)) - 1;
    int m = h & ((1 << mbits) - 1), e = (h >> mbits) & ((1 << ebits) - 1);
    double v;
    if (e == (1 << ebits) - 1) v = m ? (double)NAN : (double)INFINITY;
    else if (e == 0) v = ldexp(m, 1 - bias - mbits);
    else v = ldexp(m + (1 << mbits), e - bias - mbits);
    return h & 0x8000u ? -v : v;
}

/* Rounds to nearest even, straight from double so that nothing is rounded twice. */
static uint16_t double_to_small(double v, int mbits)
{
    int ebits = 15 - mbits, bias = (1 << (ebits - 1)) - 1;
    int inf = ((1 << ebits) - 1) << mbits, bits;
    if (isnan(v)) return (uint16_t)(inf | (1 << (mbits - 1)));
    int e;
    double a = fabs(v), m = frexp(a, &e);
    if (isinf(v) || e > bias + 1) bits = inf;
    else if (a == 0.0 || e - 1 < 1 - bias) bits = (int)nearbyint(ldexp(a, bias - 1 + mbits));
    else bits = ((e - 1 + bias) << mbits) + (int)nearbyint(ldexp(m, mbits + 1)) - (1 << mbits);
    if (bits > inf) bits = inf;
    return (uint16_t)(bits | (signbit(v) ? 0x8000 : 0));
}

static int64_t to_int(double v)
{
    if (isnan(v)) return 0;
    if (v >= 9223372036854775808.0) return INT64_MAX;
    if (v < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)v;
}

#define LOAD(T, p, i) load_##T((const char *)(p) + (i) * sizeof(T))
#define LOADER(T)                    \
    static T load_##T(const char *p) \
    {                                \
        T v;                         \
        memcpy(&v, p, sizeof v);     \
        return v;                    \
    }
LOADER(float)
LOADER(double)
LOADER(uint8_t)
LOADER(int8_t)
LOADER(uint16_t)
LOADER(int16_t)
LOADER(uint32_t)
LOADER(int32_t)
LOADER(uint64_t)
LOADER(int64_t)

double inv_elem_double(const void *data, inv_dtype t, size_t i)
{
    switch (t) {
    case INV_F32: return (double)LOAD(float, data, i);
    case INV_F64: return LOAD(double, data, i);
    case INV_F16: return small_to_double(LOAD(uint16_t, data, i), 10);
    case INV_BF16: return small_to_double(LOAD(uint16_t, data, i), 7);
    case INV_U64: return (double)LOAD(uint64_t, data, i);
    default: return inv_dtype_bits(t) ? inv_small_elem(data, t, i) : (double)inv_elem_int(data, t, i);
    }
}

int64_t inv_elem_int(const void *data, inv_dtype t, size_t i)
{
    switch (t) {
    case INV_U8: return LOAD(uint8_t, data, i);
    case INV_BOOL: return LOAD(uint8_t, data, i) != 0;
    case INV_I8: return LOAD(int8_t, data, i);
    case INV_U16: return LOAD(uint16_t, data, i);
    case INV_I16: return LOAD(int16_t, data, i);
    case INV_U32: return LOAD(uint32_t, data, i);
    case INV_I32: return LOAD(int32_t, data, i);
    case INV_U64: return (int64_t)LOAD(uint64_t, data, i);
    case INV_I64: return LOAD(int64_t, data, i);
    case INV_F32:
    case INV_F64:
    case INV_F16:
    case INV_BF16: return to_int(inv_elem_double(data, t, i));
    default: return inv_dtype_bits(t) ? to_int(inv_small_elem(data, t, i)) : 0;
    }
}

static bool is_number(inv_dtype t) { return inv_dtype_size(t) > 0 && t != INV_C64 && t != INV_C128; }

static void store_float(char *dst, inv_dtype t, size_t i, double v)
{
    if (t == INV_F64) {
        memcpy(dst + i * 8, &v, 8);
    } else if (t == INV_F32) {
        float f = (float)v;
        memcpy(dst + i * 4, &f, 4);
    } else {
        uint16_t h = double_to_small(v, t == INV_F16 ? 10 : 7);
        memcpy(dst + i * 2, &h, 2);
    }
}

/* Integers wrap to the width of the target, as a cast in C does. */
static void store_int(char *dst, inv_dtype t, size_t i, int64_t v)
{
    uint64_t u = (uint64_t)v;
    uint8_t b = t == INV_BOOL ? (uint8_t)(v != 0) : (uint8_t)u;
    uint16_t h = (uint16_t)u;
    uint32_t w = (uint32_t)u;
    switch (inv_dtype_size(t)) {
    case 1: memcpy(dst + i, &b, 1); break;
    case 2: memcpy(dst + i * 2, &h, 2); break;
    case 4: memcpy(dst + i * 4, &w, 4); break;
    default: memcpy(dst + i * 8, &u, 8); break;
    }
}

static void to_bool(char *dst, const void *src, inv_dtype st, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = inv_elem_double(src, st, i) != 0.0;
}

bool inv_convert(void *dst, inv_dtype dt, const void *src, inv_dtype st, size_t n)
{
    if (n == 0) return inv_dtype_size(dt) > 0 && (inv_dtype_size(st) > 0 || inv_dtype_bits(st) > 0);
    if (dt == st && inv_dtype_size(dt) > 0) {
        memcpy(dst, src, n * inv_dtype_size(dt));
        return true;
    }
    if (!is_number(dt) || (!is_number(st) && !inv_dtype_bits(st))) return false;
    char *d = dst;
    if (dt == INV_F64 && st == INV_F32) {
        for (size_t i = 0; i < n; i++) {
            double v = (double)LOAD(float, src, i);
            memcpy(d + i * 8, &v, 8);
        }
    } else if (dt == INV_F32 && (st == INV_F64 || st == INV_U8)) { /* the rest of what data sets are fed as */
        for (size_t i = 0; i < n; i++) {
            float f = st == INV_F64 ? (float)LOAD(double, src, i) : (float)LOAD(uint8_t, src, i);
            memcpy(d + i * 4, &f, 4);
        }
    } else if (dt == INV_F32 && (st == INV_I64 || st == INV_U64)) {
        /* not by way of double, which would round twice */
        for (size_t i = 0; i < n; i++) {
            float f = st == INV_I64 ? (float)LOAD(int64_t, src, i) : (float)LOAD(uint64_t, src, i);
            memcpy(d + i * 4, &f, 4);
        }
    } else if (dt == INV_BOOL) {
        to_bool(d, src, st, n);
    } else if (inv_dtype_is_float(dt)) {
        for (size_t i = 0; i < n; i++) store_float(d, dt, i, inv_elem_double(src, st, i));
    } else {
        for (size_t i = 0; i < n; i++) store_int(d, dt, i, inv_elem_int(src, st, i));
    }
    return true;
}
