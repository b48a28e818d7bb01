/* SPDX-License-Identifier: Apache-2.0
 * TensorProto -> inv_data. Raw and external data are views of mappings (perhaps unaligned); data in typed fields
 * are packed into the caller's arena in the layout that raw data would have (little-endian, C order). */
#include <string.h>

#include "importer/importer.h"

/* Where the typed fields of a tensor keep elements of type t, `per` numbers for each. */
typedef struct typed {
    const void *data;
    size_t n, unit; /* numbers, bytes of one in the file's field */
    size_t per;
} typed;

static typed typed_of(const Onnx__TensorProto *t, inv_dtype dt)
{
    switch (dt) {
    case INV_F32: return (typed){t->float_data, t->n_float_data, 4, 1};
    case INV_C64: return (typed){t->float_data, t->n_float_data, 4, 2};
    case INV_F64: return (typed){t->double_data, t->n_double_data, 8, 1};
    case INV_C128: return (typed){t->double_data, t->n_double_data, 8, 2};
    case INV_I64: return (typed){t->int64_data, t->n_int64_data, 8, 1};
    case INV_U32:
    case INV_U64: return (typed){t->uint64_data, t->n_uint64_data, 8, 1};
    case INV_STRING: return (typed){t->string_data, t->n_string_data, sizeof *t->string_data, 1};
    default: return (typed){t->int32_data, t->n_int32_data, 4, 1};
    }
}

static size_t typed_total(const Onnx__TensorProto *t)
{
    return t->n_float_data + t->n_double_data + t->n_int64_data + t->n_uint64_data + t->n_int32_data + t->n_string_data;
}

/* Low bytes of each number: the field's numbers are at least as wide as the elements. */
static void narrow(uint8_t *dst, size_t size, const uint8_t *src, size_t unit, size_t n)
{
    if (size == unit) {
        memcpy(dst, src, n * size);
        return;
    }
    for (size_t i = 0; i < n; i++) memcpy(dst + i * size, src + i * unit, size);
}

/* Elements of 6 bits, as raw data have them. */
static void pack_sixes(uint8_t *dst, size_t nbytes, const int32_t *src, size_t n)
{
    memset(dst, 0, nbytes);
    for (size_t i = 0; i < n; i++) {
        const size_t bit = i * 6;
        const unsigned v = ((unsigned)src[i] & 63) << (bit % 8);
        dst[bit / 8] = (uint8_t)(dst[bit / 8] | v);
        if (v > 255) dst[bit / 8 + 1] = (uint8_t)(v >> 8);
    }
}

static inv_status read_typed(inv_loader *l, inv_arena *into, const Onnx__TensorProto *t, const char *what,
                             inv_data *out)
{
    typed f = typed_of(t, out->dtype);
    size_t n = (size_t)inv_shape_nelem(&out->shape) * f.per, total = typed_total(t);
    const bool sixes = inv_dtype_bits(out->dtype) == 6;        /* one element per number */
    if (inv_dtype_bits(out->dtype) && !sixes) n = out->nbytes; /* a number per byte, packed */
    if (total != f.n) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: has data in fields that do not belong to its type, %s", what,
                   inv_dtype_name(out->dtype));
        return INV_OK;
    }
    if (f.n != n) {
        char shape[INV_SHAPE_TEXT];
        inv_defect(&l->defects, INV_E_PARSE, "%s: has %zu numbers, but its shape %s needs %zu", what, f.n,
                   inv_shape_text(&out->shape, shape), n);
        return INV_OK;
    }
    if (out->dtype == INV_STRING) return INV_OK;
    uint8_t *p = inv_arena_alloc(into, out->nbytes ? out->nbytes : 1);
    if (!p) return INV_E_NOMEM;
    if (sixes) pack_sixes(p, out->nbytes, f.data, n);
    else if (n) narrow(p, out->nbytes / n, f.data, f.unit, n);
    out->bytes = p;
    return INV_OK;
}

static inv_status read_raw(inv_loader *l, const Onnx__TensorProto *t, const char *what, inv_data *out)
{
    inv_raw_record r;
    if (t->raw_data.len != sizeof r) return inv_fail(l->ctx, INV_E_INTERNAL, "%s: no record for its raw data", what);
    memcpy(&r, t->raw_data.data, sizeof r);
    if (typed_total(t)) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: has both raw data and data in typed fields", what);
    } else if (out->dtype == INV_STRING) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: strings cannot be raw data", what);
    } else if (r.length != out->nbytes) {
        char shape[INV_SHAPE_TEXT];
        inv_defect(&l->defects, INV_E_PARSE, "%s: has %llu bytes of data, but its shape %s of %s needs %zu", what,
                   (unsigned long long)r.length, inv_shape_text(&out->shape, shape), inv_dtype_name(out->dtype),
                   out->nbytes);
    } else {
        out->bytes = l->impl->file.base + r.offset;
    }
    return INV_OK;
}

/* False and a defect if type or dimensions cannot be represented. */
static bool read_type(inv_loader *l, const Onnx__TensorProto *t, const char *what, inv_data *out)
{
    int32_t dt = t->has_data_type ? t->data_type : 0;
    if (dt < INV_F32 || (dt > INV_BF16 && !inv_dtype_bits((inv_dtype)dt))) {
        inv_defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "%s: element type %d (%s) is not supported", what, dt,
                   inv_dtype_name((inv_dtype)dt));
        return false;
    }
    out->dtype = (inv_dtype)dt;
    if (t->n_dims > INV_MAX_RANK) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: has %zu dimensions; at most %d are supported", what, t->n_dims,
                   INV_MAX_RANK);
        return false;
    }
    for (size_t i = 0; i < t->n_dims; i++)
        if (t->dims[i] < 0) {
            inv_defect(&l->defects, INV_E_PARSE, "%s: dimension %zu is negative, %lld", what, i, (long long)t->dims[i]);
            return false;
        }
    out->shape = inv_shape_of((int)t->n_dims, t->dims);
    /* Strings have no size of their own: their records' size is what must not overflow; nor have parts of bytes. */
    if (!inv_shape_nbytes(&out->shape, dt == INV_STRING || dt > INV_BF16 ? INV_C128 : out->dtype, &out->nbytes)) {
        char shape[INV_SHAPE_TEXT];
        inv_defect(&l->defects, INV_E_PARSE, "%s: shape %s of %s is more than can be addressed", what,
                   inv_shape_text(&out->shape, shape), inv_dtype_name((inv_dtype)dt));
        return false;
    }
    if (dt == INV_STRING) out->nbytes = 0;
    if (dt > INV_BF16) out->nbytes = ((size_t)inv_shape_nelem(&out->shape) * inv_dtype_bits((inv_dtype)dt) + 7) / 8;
    return true;
}

inv_status inv_tensor_read(inv_loader *l, inv_arena *into, const Onnx__TensorProto *t, const char *what, inv_data *out)
{
    *out = (inv_data){.shape = inv_shape_unknown()};
    if (!read_type(l, t, what, out)) return INV_OK;
    if (t->segment) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: is stored in segments, which is not supported", what);
        return INV_OK;
    }
    if (t->has_data_location && (int)t->data_location == INV_PB_LOCATION_EXTERNAL) {
        if (t->has_raw_data || typed_total(t)) {
            inv_defect(&l->defects, INV_E_PARSE, "%s: has data both in the file and in an external one", what);
            return INV_OK;
        }
        if (out->dtype == INV_STRING) {
            inv_defect(&l->defects, INV_E_PARSE, "%s: strings cannot be external data", what);
            return INV_OK;
        }
        uint32_t file;
        uint64_t offset;
        INV_TRY(inv_external_place(l, t, what, out->nbytes, &file, &offset));
        if (file != INV_NONE) out->bytes = l->impl->ext.at[file].base + offset;
        return INV_OK;
    }
    return t->has_raw_data ? read_raw(l, t, what, out) : read_typed(l, into, t, what, out);
}
