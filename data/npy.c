/* SPDX-License-Identifier: Apache-2.0
 * The .npy format: six bytes magic, version, length of the header, a Python dictionary literal as header, data.
 * The header is read as the small grammar it is; nothing in it is trusted before it is compared with the file. */
#define _GNU_SOURCE /* madvise */
#include "data/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/watch.h"

size_t npy_itemsize(inv_dtype t)
{
    switch (t) {
    case INV_U8:
    case INV_I8:
    case INV_BOOL: return 1;
    case INV_U16:
    case INV_I16:
    case INV_F16: return 2;
    case INV_F32:
    case INV_I32:
    case INV_U32: return 4;
    case INV_F64:
    case INV_I64:
    case INV_U64: return 8;
    default: return 0;
    }
}

/* IEEE 754 binary16: sign, five bits of exponent, ten of fraction. */
static double half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                        : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                       : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

double npy_element(const void *data, inv_dtype dtype, size_t i)
{
    const unsigned char *p = (const unsigned char *)data + i * npy_itemsize(dtype);
#define READ(type)               \
    do {                         \
        type v;                  \
        memcpy(&v, p, sizeof v); \
        return (double)v;        \
    } while (0)
    switch (dtype) {
    case INV_F16: {
        uint16_t bits;
        memcpy(&bits, p, sizeof bits);
        return half_value(bits);
    }
    case INV_F32: READ(float);
    case INV_F64: READ(double);
    case INV_I8: READ(int8_t);
    case INV_U8:
    case INV_BOOL: READ(uint8_t);
    case INV_I16: READ(int16_t);
    case INV_U16: READ(uint16_t);
    case INV_I32: READ(int32_t);
    case INV_U32: READ(uint32_t);
    case INV_I64: READ(int64_t);
    case INV_U64: READ(uint64_t);
    default: return 0;
    }
#undef READ
}

typedef struct header {
    const char *p, *end;
    char descr[16];
    bool fortran;
    int rank;
    int64_t dims[NPY_MAX_RANK];
} header;

static void skip_blanks(header *h)
{
    while (h->p < h->end && (*h->p == ' ' || *h->p == '\t' || *h->p == '\n' || *h->p == '\r')) h->p++;
}

static bool take(header *h, char c)
{
    skip_blanks(h);
    if (h->p == h->end || *h->p != c) return false;
    h->p++;
    return true;
}

static bool take_word(header *h, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(h);
    if ((size_t)(h->end - h->p) < n || memcmp(h->p, word, n) != 0) return false;
    h->p += n;
    return true;
}

static bool take_string(header *h, char *out, size_t capacity)
{
    skip_blanks(h);
    if (h->p == h->end || (*h->p != '\'' && *h->p != '"')) return false;
    char quote = *h->p++;
    size_t n = 0;
    while (h->p < h->end && *h->p != quote) {
        if (n + 1 == capacity) return false;
        out[n++] = *h->p++;
    }
    if (h->p == h->end) return false;
    h->p++;
    out[n] = 0;
    return true;
}

static bool take_shape(header *h, FILE *why)
{
    if (!take(h, '(')) return fprintf(why, "the header's shape is not a tuple"), false;
    h->rank = 0;
    while (!take(h, ')')) {
        skip_blanks(h);
        if (h->p == h->end || *h->p < '0' || *h->p > '9') return fprintf(why, "the header's shape is malformed"), false;
        int64_t d = 0;
        for (; h->p < h->end && *h->p >= '0' && *h->p <= '9'; h->p++) {
            if (d > (INT64_MAX - 9) / 10) return fprintf(why, "a dimension is too large"), false;
            d = d * 10 + (*h->p - '0');
        }
        if (h->rank == NPY_MAX_RANK) return fprintf(why, "more than %d dimensions", NPY_MAX_RANK), false;
        h->dims[h->rank++] = d;
        if (!take(h, ',') && (skip_blanks(h), h->p == h->end || *h->p != ')'))
            return fprintf(why, "the header's shape is malformed"), false;
    }
    return true;
}

/* Names come from the file, and make no lines of their own. */
void npy_put_name(FILE *f, const char *name)
{
    fputc('\'', f);
    for (; *name; name++) {
        if ((unsigned char)*name < 0x20) fprintf(f, "\\u%04x", (unsigned)*name);
        else fputc(*name, f);
    }
    fputc('\'', f);
}

static bool read_header(header *h, FILE *why)
{
    unsigned seen = 0;
    if (!take(h, '{')) return fprintf(why, "the header is not a dictionary"), false;
    while (!take(h, '}')) {
        char key[24];
        if (!take_string(h, key, sizeof key) || !take(h, ':')) return fprintf(why, "the header is malformed"), false;
        unsigned bit;
        if (strcmp(key, "descr") == 0) {
            bit = 1;
            skip_blanks(h);
            if (h->p < h->end && *h->p == '[') return fprintf(why, "structured element types are not supported"), false;
            if (!take_string(h, h->descr, sizeof h->descr))
                return fprintf(why, "the header's descr is malformed"), false;
        } else if (strcmp(key, "fortran_order") == 0) {
            bit = 2;
            h->fortran = take_word(h, "True");
            if (!h->fortran && !take_word(h, "False"))
                return fprintf(why, "fortran_order is neither True nor False"), false;
        } else if (strcmp(key, "shape") == 0) {
            bit = 4;
            if (!take_shape(h, why)) return false;
        } else {
            return fputs("the header has the unknown key ", why), npy_put_name(why, key), false;
        }
        if (seen & bit) return fprintf(why, "the header has '%s' twice", key), false;
        seen |= bit;
        if (!take(h, ',') && (skip_blanks(h), h->p == h->end || *h->p != '}'))
            return fprintf(why, "the header is malformed"), false;
    }
    if (seen != 7) return fprintf(why, "the header lacks descr, fortran_order or shape"), false;
    return true;
}

static const struct {
    const char *code;
    inv_dtype dtype;
} codes[] = {{"f2", INV_F16}, {"f4", INV_F32}, {"f8", INV_F64}, {"i1", INV_I8},  {"i2", INV_I16}, {"i4", INV_I32},
             {"i8", INV_I64}, {"u1", INV_U8},  {"u2", INV_U16}, {"u4", INV_U32}, {"u8", INV_U64}, {"b1", INV_BOOL}};

const char *npy_type_name(inv_dtype t)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].dtype == t) return codes[i].code;
    return "?";
}

static bool read_descr(const char *descr, inv_dtype *out, FILE *why)
{
    const char *code = descr;
    char order = '=';
    if (*code == '<' || *code == '>' || *code == '|' || *code == '=') order = *code++;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(code, codes[i].code) != 0) continue;
        if (order == '>' && npy_itemsize(codes[i].dtype) > 1)
            return fprintf(why, "big-endian data ('>%s'); save it as '<%s'", code, code), false;
        *out = codes[i].dtype;
        return true;
    }
    fputs("element type ", why);
    npy_put_name(why, descr);
    const bool two = strcmp(code, "V2") == 0 || strcmp(code, "bfloat16") == 0;
    if (two || strcmp(code, "V1") == 0)
        return fprintf(why, ", as NumPy writes %s, is not supported; save it as x.astype(numpy.float32)",
                       two ? "bfloat16" : "types of 8 bits and fewer of ml_dtypes"),
               false;
    fputs(" is not supported (float16/32/64, integers and bool are)", why);
    return false;
}

bool npy_parse_header(const unsigned char *p, size_t nbytes, npy_array *out, size_t *data, FILE *why)
{
    if (nbytes < 10 || memcmp(p, "\x93NUMPY", 6) != 0) return fprintf(why, "not a .npy file"), false;
    if (p[6] < 1 || p[6] > 3 || p[7] != 0)
        return fprintf(why, ".npy version %u.%u is not supported", p[6], p[7]), false;
    size_t at = p[6] == 1 ? 10 : 12;
    if (nbytes < at) return fprintf(why, "the file ends within its header"), false;
    size_t length = (size_t)p[8] | (size_t)p[9] << 8;
    if (p[6] > 1) length |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (length > nbytes - at) return fprintf(why, "the file ends within its header"), false;

    header h = {.p = (const char *)p + at, .end = (const char *)p + at + length};
    if (!read_header(&h, why) || !read_descr(h.descr, &out->dtype, why)) return false;
    size_t total = npy_itemsize(out->dtype);
    bool empty = false;
    out->rank = h.rank;
    for (int i = 0; i < h.rank; i++) {
        out->dims[i] = h.dims[i];
        if (h.dims[i] == 0) empty = true;
    }
    for (int i = 0; i < h.rank && !empty; i++) {
        if ((uint64_t)h.dims[i] > SIZE_MAX / total) return fprintf(why, "the shape is too large"), false;
        total *= (size_t)h.dims[i];
    }
    if (empty) total = 0;
    if (h.fortran && h.rank > 1 && !empty)
        return fprintf(why, "Fortran order is not supported; save numpy.ascontiguousarray(a)"), false;
    out->nbytes = total;
    *data = at + length;
    return true;
}

bool npy_parse(const unsigned char *p, size_t nbytes, npy_array *out, FILE *why)
{
    size_t at;
    if (!npy_parse_header(p, nbytes, out, &at, why)) return false;
    if (out->nbytes != nbytes - at)
        return fprintf(why, "the header promises %zu bytes of data, the file has %zu", out->nbytes, nbytes - at), false;
    out->data = p + at;
    return true;
}

bool npy_map(const char *path, npy_array *out, FILE *why)
{
    /* O_NONBLOCK: opening a pipe must not wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fprintf(why, "%s", strerror(errno)), false;
    struct stat st;
    bool ok = false;
    if (fstat(fd, &st) != 0) {
        fprintf(why, "%s", strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        fprintf(why, "not a regular file");
    } else if (st.st_size == 0) {
        fprintf(why, "the file is empty");
    } else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            fprintf(why, "%s", strerror(errno));
        } else {
            out->map = map;
            out->map_nbytes = (size_t)st.st_size;
            data_watch(path, map, out->map_nbytes, NULL);
            ok = true;
        }
    }
    close(fd);
    return ok;
}

bool npy_open(const char *path, const char *const *members, size_t nmembers, npy_array *out, FILE *why)
{
    *out = (npy_array){0};
    if (!npy_map(path, out, why)) return false;
    bool ok = npz_has_suffix(path) ? npz_member(path, members, nmembers, out, why)
                                   : npy_parse(out->map, out->map_nbytes, out, why);
    if (!ok) npy_close(out);
    return ok;
}

void npy_give_back(const npy_array *a)
{
    if (a->map) (void)madvise(a->map, a->map_nbytes, MADV_DONTNEED);
}

void npy_close(npy_array *a)
{
    if (a->map) {
        data_unwatch(a->map);
        munmap(a->map, a->map_nbytes);
    }
    free(a->owned);
    *a = (npy_array){0};
}

bool npy_align(npy_array *a)
{
    size_t size = npy_itemsize(a->dtype);
    if ((uintptr_t)a->data % size == 0 || a->nbytes == 0) return true;
    void *copy = malloc(a->nbytes);
    if (!copy) return false;
    memcpy(copy, a->data, a->nbytes);
    free(a->owned);
    a->owned = copy;
    a->data = copy;
    return true;
}
