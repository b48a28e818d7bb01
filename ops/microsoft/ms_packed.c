/* SPDX-License-Identifier: Apache-2.0
 * Products with weights of few bits, and tables of such, as onnxruntime's tools write them: a weight is read as what it
 * is, a constant of a small type, packed (ops/linear/packed.h) or, on a device, by DequantizeLinear; the rest is MatMul
 * and Gather. So their integers are not trained. Sources: the operator schemas of onnxruntime 1.31 (domain
 * com.microsoft).
 */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/packing.h"
#include "ops/base/rows.h"

/* The type of unsigned integers of so many bits; NONE: there is none. */
static inv_dtype type_of_bits(int64_t bits)
{
    return bits == 8 ? INV_U8 : bits == 4 ? INV_U4 : bits == 2 ? INV_U2 : INV_DT_NONE;
}

static unsigned bits_of(inv_dtype t) { return t == INV_U8 ? 8 : inv_dtype_bits(t); }

/* The zero point that stands for none: half of the range. */
static unsigned half_of(inv_dtype t) { return 1u << (bits_of(t) - 1); }

/* Input i, bytes whose last axis has its elements packed, the first one in the low bits, in that type. */
static inv_status unpacked(inv_graph *g, const inv_node *n, uint32_t i, inv_dtype type, const char *what, inv_id *out)
{
    inv_shape s = *inv_in_shape(g, n, i);
    *out = n->in[i];
    if (inv_in_dtype(g, n, i) != INV_U8 || s.rank < 1)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "%s (input %u) must be uint8", what, i);
    if (type == INV_U8) return INV_OK;
    INV_TRY(inv_node_need_const(g, n, n->in[i], what));
    s.dim[s.rank - 1] *= 8 / (int64_t)inv_dtype_bits(type);
    const size_t count = (size_t)inv_shape_nelem(&s);
    uint8_t *v = INV_ARENA_NEW(&g->arena, uint8_t, count + 1);
    if (!v || !inv_convert(v, INV_U8, inv_val(g, n->in[i])->data.bytes, type, count)) return INV_E_NOMEM;
    *out = inv_graph_const(g, INV_U8, &s, v);
    if (*out != INV_NONE) inv_val(g, *out)->stated = type;
    return inv_done(g);
}

static inv_id dequantized(inv_graph *g, const inv_node *n, inv_id x, inv_id scale, inv_id zero, int64_t axis,
                          int64_t block)
{
    return inv_onnx(g, n, "DequantizeLinear", INV_IN(x, scale, zero),
                    INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_int("block_size", block)));
}

/* One number of type uint8. */
static inv_id byte(inv_graph *g, unsigned v)
{
    const inv_shape scalar = inv_shape_scalar();
    return inv_graph_const(g, INV_U8, &scalar, &(uint8_t){(uint8_t)v});
}

/* --- MatMulNBits --- */
enum { A, B, SCALES, ZEROS, GROUPS, BIAS };
#define MOST_NUMBERS ((int64_t)1 << 48) /* of a weight: products of its extents and bits stay in 64 bits */

typedef struct packed_weight {
    int64_t rows, columns, block, blocks; /* blocks: of a row */
    inv_dtype type;
} packed_weight;

static inv_status weight_of(const inv_graph *g, const inv_node *n, packed_weight *w)
{
    const int64_t bits = inv_attr_int(n, "bits", 4);
    w->rows = inv_attr_int(n, "N", 0), w->columns = inv_attr_int(n, "K", 0);
    w->block = inv_attr_int(n, "block_size", 0), w->type = type_of_bits(bits);
    if (w->type == INV_DT_NONE)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "attribute bits is %lld; weights of 2, 4 and 8 bits are supported", (long long)bits);
    if (inv_attr_int(n, "weight_prepacked", 0) != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "attribute weight_prepacked is %lld: the weight is laid out for one kind of device. "
                             "Quantize the model without it",
                             (long long)inv_attr_int(n, "weight_prepacked", 0));
    if (inv_has_in(n, GROUPS))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "input %d (g_idx) is not supported. Quantize the model without reordering (act_order)",
                             GROUPS);
    if (w->rows < 1 || w->columns < 1 || w->block < 1 || w->block > INT32_MAX || w->columns > INT32_MAX ||
        w->rows > INT32_MAX)
        return inv_node_fail(g, n, INV_E_GRAPH, "N, K and block_size must be 1 or more, and no larger than 2^31");
    if ((double)w->rows * ((double)w->columns + (double)w->block) > (double)MOST_NUMBERS)
        return inv_node_fail(g, n, INV_E_SHAPE, "a weight of %lld rows and %lld columns is larger than memory can be",
                             (long long)w->rows, (long long)w->columns);
    w->blocks = (w->columns + w->block - 1) / w->block;
    const inv_shape *b = inv_in_shape(g, n, B);
    if (inv_shape_nelem(b) * 8 != w->rows * w->blocks * w->block * bits)
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "B has %lld bytes; of %lld rows, %lld blocks of %lld numbers of %lld bits have "
                             "%lld",
                             (long long)inv_shape_nelem(b), (long long)w->rows, (long long)w->blocks,
                             (long long)w->block, (long long)bits,
                             (long long)(w->rows * w->blocks * w->block * bits / 8));
    if (inv_shape_nelem(inv_in_shape(g, n, SCALES)) != w->rows * w->blocks)
        return inv_node_fail(g, n, INV_E_SHAPE, "scales must be [%lld,%lld], one per block", (long long)w->rows,
                             (long long)w->blocks);
    return INV_OK;
}

/* Zero points of blocks: integers packed row by row, or numbers of the type of A. */
static inv_status emit_zeros(inv_graph *g, const inv_node *n, const packed_weight *w, inv_id *out)
{
    const inv_shape each = inv_shape_of(2, (int64_t[]){w->rows, w->blocks});
    if (!inv_has_in(n, ZEROS)) {
        *out = byte(g, half_of(w->type));
        return inv_done(g);
    }
    *out = n->in[ZEROS];
    if (inv_in_dtype(g, n, ZEROS) == INV_U8) INV_TRY(unpacked(g, n, ZEROS, w->type, "zero_points", out));
    const int64_t count = inv_shape_nelem(inv_shape_of_value(g, *out));
    if (count % w->rows != 0 || count / w->rows < w->blocks)
        return inv_node_fail(g, n, INV_E_SHAPE, "zero_points must be one per block, %lld rows of %lld",
                             (long long)w->rows, (long long)w->blocks);
    const inv_shape rows = inv_shape_of(2, (int64_t[]){w->rows, count / w->rows});
    *out = inv_emit_view(g, inv_emit_part(g, inv_emit_view(g, *out, &rows), 1, 0, w->blocks), &each);
    return inv_done(g);
}

/* The weight [N,K], left packed. INV_NONE: it must be expanded, or g->failed. */
static inv_id packed_weight_of(inv_graph *g, const inv_node *n, const packed_weight *w)
{
    const inv_id zero = inv_has_in(n, ZEROS) ? n->in[ZEROS] : INV_NONE;
    inv_dtype type;
    if (!inv_can_pack(g, n->in[B], &type) || type != INV_U8 || !inv_stays_as_stored(g, n->in[SCALES])) return INV_NONE;
    inv_packing p = {.type = w->type,
                     .shape = inv_shape_of(2, (int64_t[]){w->rows, w->columns}),
                     .width = w->blocks * w->block,
                     .axis = 1,
                     .block = w->block,
                     .scale = n->in[SCALES],
                     .zero = zero,
                     .scale_shape = inv_shape_of(2, (int64_t[]){w->rows, w->blocks}),
                     .zero_shape = inv_shape_scalar(),
                     .zero_all = (double)half_of(w->type)};
    if (zero != INV_NONE) {
        const bool bytes = inv_in_dtype(g, n, ZEROS) == INV_U8;
        const int64_t per = bytes ? 8 / (int64_t)bits_of(w->type) : 1;
        const int64_t count = inv_shape_nelem(inv_in_shape(g, n, ZEROS)) * per;
        if (!inv_stays_as_stored(g, zero) || count % w->rows != 0 || count / w->rows < w->blocks) return INV_NONE;
        p.zero_shape = inv_shape_of(2, (int64_t[]){w->rows, count / w->rows});
        p.zero_type = bytes ? w->type : INV_DT_NONE;
    }
    p.bytes = inv_packed_bytes(g, n->in[B]);
    return inv_emit_unpack(g, &p);
}

/* The same by DequantizeLinear. */
static inv_status expanded_weight(inv_graph *g, const inv_node *n, const packed_weight *w, inv_id *out)
{
    inv_id b, zero;
    INV_TRY(unpacked(g, n, B, w->type, "B", &b));
    INV_TRY(emit_zeros(g, n, w, &zero));
    const inv_shape each = inv_shape_of(2, (int64_t[]){w->rows, w->blocks});
    const inv_shape whole = inv_shape_of(2, (int64_t[]){w->rows, w->blocks * w->block});
    const inv_id weight =
        dequantized(g, n, inv_emit_view(g, b, &whole), inv_emit_view(g, n->in[SCALES], &each), zero, 1, w->block);
    *out = inv_emit_part(g, weight, 1, 0, w->columns);
    return inv_done(g);
}

static inv_status matmul_nbits_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    packed_weight w = {0};
    INV_TRY(inv_need_real(g, n, A));
    INV_TRY(weight_of(g, n, &w));
    inv_id weight = packed_weight_of(g, n, &w);
    if (weight == INV_NONE) INV_TRY(expanded_weight(g, n, &w, &weight));
    const inv_id y = inv_emit_product(g, false, n->in[A], true, weight);
    out[0] = inv_has_in(n, BIAS) ? inv_emit_pair(g, "Add", y, n->in[BIAS]) : y;
    return inv_done(g);
}

/* --- GatherBlockQuantized --- */
enum { DATA, INDICES, TABLE_SCALES, TABLE_ZEROS };

typedef struct packed_table {
    int rank, gather, quantize; /* axes */
    int64_t block;
    inv_id data, scale, zero;
} packed_table;

static inv_status table_of(inv_graph *g, const inv_node *n, packed_table *t)
{
    const bool bytes = inv_in_dtype(g, n, DATA) == INV_U8 && inv_val(g, n->in[DATA])->stated == INV_DT_NONE;
    const int64_t bits = inv_attr_int(n, "bits", 4);
    const inv_dtype type = type_of_bits(bits);
    if (bytes && type == INV_DT_NONE)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "attribute bits is %lld; tables of 2, 4 and 8 bits are supported", (long long)bits);
    t->data = n->in[DATA], t->scale = n->in[TABLE_SCALES];
    t->zero = inv_has_in(n, TABLE_ZEROS) ? n->in[TABLE_ZEROS] : INV_NONE;
    if (bytes) INV_TRY(unpacked(g, n, DATA, type, "data", &t->data));
    if (bytes && t->zero != INV_NONE) INV_TRY(unpacked(g, n, TABLE_ZEROS, type, "zero_points", &t->zero));
    if (bytes && t->zero == INV_NONE) t->zero = byte(g, 1u << (bits - 1));
    if (t->data == INV_NONE) return inv_failed(g);
    const inv_shape s = *inv_shape_of_value(g, t->data);
    t->rank = s.rank;
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "gather_axis", 0), s.rank, &t->gather));
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "quantize_axis", 1), s.rank, &t->quantize));
    t->block = inv_attr_int(n, "block_size", 128);
    if (t->block == 0 || t->block > s.dim[t->quantize]) t->block = s.dim[t->quantize];
    if (t->block < 1 || inv_shape_of_value(g, t->scale)->rank != s.rank)
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "scales must have as many axes as data, and block_size must not be negative");
    /* packed zero points are padded to whole bytes */
    const int64_t blocks = (s.dim[t->quantize] + t->block - 1) / t->block;
    if (t->zero != INV_NONE && inv_shape_of_value(g, t->zero)->rank == s.rank)
        t->zero = inv_emit_part(g, t->zero, t->quantize, 0, blocks);
    return inv_done(g);
}

/* Rows of v by the indices; what has one for all stays as it is, with as many axes as the others come to have. */
static inv_id rows_of(inv_graph *g, const inv_node *n, const packed_table *t, inv_id v)
{
    if (v == INV_NONE || inv_shape_of_value(g, v)->rank != t->rank) return v;
    const inv_shape s = *inv_shape_of_value(g, v);
    const int more = inv_in_shape(g, n, INDICES)->rank;
    if (s.dim[t->gather] != 1 || inv_shape_of_value(g, t->data)->dim[t->gather] == 1)
        return inv_emit1(g, "Gather", INV_IN(v, n->in[INDICES]), INV_ATTRS(inv_attr_of_int("axis", t->gather)));
    inv_shape wide = inv_shape_scalar();
    for (int i = 0; i < s.rank && wide.rank + more <= INV_MAX_RANK; i++)
        for (int k = 0; k < (i == t->gather ? more : 1); k++) wide.dim[wide.rank++] = s.dim[i];
    return inv_emit_view(g, v, &wide);
}

/* The table, left packed. INV_NONE: it must be expanded, or g->failed. */
static inv_id packed_table_of(inv_graph *g, const inv_node *n)
{
    const bool bytes = inv_in_dtype(g, n, DATA) == INV_U8 && inv_val(g, n->in[DATA])->stated == INV_DT_NONE;
    const int64_t bits = bytes ? inv_attr_int(n, "bits", 4) : 0;
    const inv_id zero = inv_has_in(n, TABLE_ZEROS) ? n->in[TABLE_ZEROS] : INV_NONE;
    inv_packing p = {.scale = n->in[TABLE_SCALES], .zero = zero, .shape = *inv_in_shape(g, n, DATA)};
    const int last = p.shape.rank - 1;
    int axis;
    if (!inv_can_pack(g, n->in[DATA], &p.type) || !inv_stays_as_stored(g, p.scale)) return INV_NONE;
    if (bytes) p.type = type_of_bits(bits);
    if (p.type == INV_DT_NONE || (zero != INV_NONE && !inv_stays_as_stored(g, zero))) return INV_NONE;
    if (bytes) p.shape.dim[last] *= 8 / bits;
    if (inv_axis(g, n, inv_attr_int(n, "quantize_axis", 1), p.shape.rank, &axis) != INV_OK) return INV_NONE;
    p.axis = axis;
    p.block = inv_attr_int(n, "block_size", 128);
    if (p.block == 0 || p.block > p.shape.dim[axis]) p.block = p.shape.dim[axis];
    p.scale_shape = *inv_shape_of_value(g, p.scale);
    if (p.block < 1 || p.scale_shape.rank != p.shape.rank) return INV_NONE;
    p.zero_shape = inv_shape_scalar();
    p.zero_all = bytes ? (double)half_of(p.type) : 0;
    if (zero != INV_NONE) {
        p.zero_shape = *inv_shape_of_value(g, zero);
        if (p.zero_shape.rank != p.shape.rank) return INV_NONE;
        if (bytes) p.zero_shape.dim[last] *= 8 / bits, p.zero_type = p.type;
    }
    p.width = p.shape.dim[last];
    p.bytes = inv_packed_bytes(g, n->in[DATA]);
    return inv_emit_unpack(g, &p);
}

static inv_status gather_block_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    packed_table t = {0};
    INV_TRY(inv_need_real(g, n, TABLE_SCALES));
    const inv_id whole = packed_table_of(g, n);
    if (whole != INV_NONE) {
        out[0] = inv_emit1(g, "Gather", INV_IN(whole, n->in[INDICES]),
                           INV_ATTRS(inv_attr_of_int("axis", inv_attr_int(n, "gather_axis", 0))));
        return inv_done(g);
    }
    INV_TRY(table_of(g, n, &t));
    const int more = inv_in_shape(g, n, INDICES)->rank - 1;
    if (t.rank + more > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "the result has too many axes");
    if (t.gather == t.quantize) {
        const inv_id all = dequantized(g, n, t.data, t.scale, t.zero, t.quantize, t.block);
        out[0] = inv_emit1(g, "Gather", INV_IN(all, n->in[INDICES]), INV_ATTRS(inv_attr_of_int("axis", t.gather)));
        return inv_done(g);
    }
    const inv_id scale = rows_of(g, n, &t, t.scale), zero = rows_of(g, n, &t, t.zero), data = rows_of(g, n, &t, t.data);
    out[0] = dequantized(g, n, data, scale, zero, t.quantize + (t.quantize > t.gather ? more : 0), t.block);
    return inv_done(g);
}

/* --- rows --- */
#define BYTES16 "1,18,35,52,69,86,103,120,137,154,171,188,205,222,239,255"
INV_MICROSOFT(
    matmul_nbits_lower, INV_OP_PRODUCT, matmul_nbits, "MatMulNBits", "A B scales zero_points? g_idx? bias?", "Y",
    "A times a weight of 2, 4 or 8 bits in blocks, which stays packed",
    "y = com.microsoft.MatMulNBits<K = 16, N = 2, block_size = 16, bits = 4>(float[3,16] a, uint8[2,1,8]{" BYTES16
    "}, float[2,1] s)",
    "y = com.microsoft.MatMulNBits<K = 12, N = 1, block_size = 8, bits = 8>(float[2,3,12] a, uint8[1,2,8]{" BYTES16
    "}, float[2] s, uint8[1,2]{120,130}, , float[1] b)",
    "y = com.microsoft.MatMulNBits<K = 32, N = 2, block_size = 16, bits = 4>(float[3,32] a, uint8[2,2,8]{" BYTES16
    "," BYTES16 "}, float[2,2] s, uint8[2,1]{120,19})",
    "y = com.microsoft.MatMulNBits<K = 32, N = 2, block_size = 16, bits = 2>(float[3,32] a, uint8[2,2,4]{" BYTES16
    "}, float[2,2] s, float[2,2] z)")
INV_MICROSOFT(gather_block_lower, 0, gather_block, "GatherBlockQuantized", "data indices scales zero_points?", "output",
              "rows of a table of 2, 4 or 8 bits in blocks, which stays packed",
              "y = com.microsoft.GatherBlockQuantized<block_size = 16, bits = 4>(uint8[2,8]{" BYTES16
              "}, int64[2,2]{0,1,1,0}, float[2,1] s)",
              "y = com.microsoft.GatherBlockQuantized<block_size = 4, bits = 8, gather_axis = 1, quantize_axis = 0>("
              "uint8[8,2]{" BYTES16 "}, int64[3]{1,0,1}, float[2,2] s, uint8[2,2]{100,120,140,1})",
              "y = com.microsoft.GatherBlockQuantized<block_size = 4, bits = 8, gather_axis = 0, quantize_axis = 0>("
              "uint8[8,2]{" BYTES16 "}, int64[1]{5}, float[2,2] s)")

const inv_op_def *const inv_ops_ms_packed[] = {&matmul_nbits_row, &gather_block_row, NULL};
