/* SPDX-License-Identifier: Apache-2.0
 * Quantized constants, read packed (packed.h): Unpack expands one as a whole, for operators that have no kernel of
 * their own for it, and GatherPacked expands the entries that it picks. Products are in packed_matmul.c. None of them
 * is folded: what they give is several times as large as what they read. */
#include "ops/linear/packed.h"

#include "ops/base/families.h"
#include "ops/base/float_math.h"
#include "ops/base/parallel.h"

#define INV_PACKED_RUN 16 /* elements that share a number, from which on they are expanded together */
#define CHUNK 256         /* elements that are unpacked at a time: the first cache holds them until they are scaled */
#define ONE_FOR_ALL ((int64_t)1 << 48)

/* --- reading --- */

/* The sign bit of integers that have one, else 0. */
static inline unsigned inv_packed_sign(inv_dtype t)
{
    const bool is_signed = t == INV_I8 || t == INV_I16 || (int)t == INV_I4 || (int)t == INV_I2;
    return is_signed ? 1u << (inv_packed_bits(t) - 1) : 0;
}

static inline bool inv_packed_is_float(inv_dtype t)
{
    return inv_dtype_bits(t) && inv_dtype_is_float(inv_dtype_carrier(t, INV_F32));
}

/* The element of `data` at which a row begins. */
static inline int64_t inv_packed_start(const inv_packed *p, int64_t row)
{
    return (row + p->first * inv_prod(&p->shape, 1, p->shape.rank - 1)) * p->width;
}

/* The number of a part at the beginning of a row. */
static inline int64_t inv_packed_base(const inv_packed *p, const inv_packed_part *part, int64_t row)
{
    int64_t at = 0;
    for (int d = p->shape.rank - 2; d >= 0; d--) {
        int64_t i = d ? row % p->shape.dim[d] : row + p->first;
        if (d) row /= p->shape.dim[d];
        if (d == p->axis) i /= p->block;
        at += i * part->stride[d];
    }
    return at;
}

#define INV_BOTH "ops/linear/packed_kernels.inc"
#include "ops/base/both_reals.inc"

/* --- the description in attributes --- */

static void part_of(const inv_packed *p, const inv_tensor *t, const inv_shape *s, inv_dtype type, inv_packed_part *out)
{
    const int last = p->shape.rank - 1;
    inv_strides(s, out->stride);
    for (int d = 0; d < s->rank; d++)
        if (s->dim[d] == 1) out->stride[d] = 0;
    out->run = !t->data || s->dim[last] == 1 ? ONE_FOR_ALL : p->axis == last ? p->block : 1;
    out->data = t->data;
    out->type = type != INV_DT_NONE ? type : t->dtype;
}

void inv_packed_of(const inv_call *c, uint32_t at, inv_packed *p)
{
    static const inv_tensor none;
    const inv_node *n = c->node;
    const inv_shape scale = inv_attr_shape(n, "scale_shape"), zero = inv_attr_shape(n, "zero_shape");
    memset(p, 0, sizeof *p);
    p->data = c->in[at].data;
    p->type = (inv_dtype)inv_attr_int(n, "type", 0);
    p->shape = inv_attr_shape(n, "shape");
    p->first = inv_attr_int(n, "first", 0);
    p->width = inv_attr_int(n, "width", 0);
    p->axis = (int)inv_attr_int(n, "axis", 0);
    p->block = inv_attr_int(n, "block", 1);
    part_of(p, &c->in[at + 1], &scale, INV_DT_NONE, &p->scale);
    part_of(p, at + 2 < c->nin ? &c->in[at + 2] : &none, &zero, (inv_dtype)inv_attr_int(n, "zero_type", 0), &p->zero);
    p->zero.all = inv_attr_float(n, "zero", 0);
    if (inv_packed_is_float(p->type) && inv_packed_bits(p->type) == 8)
        for (int v = 0; v < 256; v++)
            p->value[v] = (float)inv_small_elem(&(unsigned char){(unsigned char)v}, p->type, 0);
}

/* Whether `n` elements of so many bits are there in a value, packed or not. */
static bool holds(const inv_value *v, int64_t n, unsigned bits)
{
    const int64_t has = inv_shape_nelem(&v->shape) * (int64_t)inv_dtype_size(v->dtype) * 8;
    return bits && n >= 0 && n <= has / (int64_t)bits;
}

/* A part, input `i`, of attribute `name`: has a number wherever one is read. */
static bool part_fits(const inv_graph *g, const inv_node *n, uint32_t i, const char *name, const inv_shape *w,
                      inv_dtype type)
{
    const inv_shape s = inv_attr_shape(n, name);
    const int64_t axis = inv_attr_int(n, "axis", 0), block = inv_attr_int(n, "block", 1);
    if (!inv_has_in(n, i)) return true;
    if (s.rank != w->rank) return false;
    for (int d = 0; d < s.rank; d++) {
        const int64_t extent = w->dim[d] + (d ? 0 : inv_attr_int(n, "first", 0));
        if (s.dim[d] != 1 && s.dim[d] < (d == axis ? (extent + block - 1) / block : extent)) return false;
    }
    const inv_value *v = inv_val(g, n->in[i]);
    const unsigned own = 8 * (unsigned)inv_dtype_size(v->dtype);
    return holds(v, inv_shape_nelem(&s), type != INV_DT_NONE ? inv_packed_bits(type) : own);
}

inv_status inv_packed_infer(const inv_graph *g, const inv_node *n, uint32_t at, inv_shape *shape)
{
    const inv_dtype type = (inv_dtype)inv_attr_int(n, "type", 0), zero = (inv_dtype)inv_attr_int(n, "zero_type", 0);
    const int64_t width = inv_attr_int(n, "width", 0), first = inv_attr_int(n, "first", 0);
    *shape = inv_attr_shape(n, "shape");
    if (!inv_packed_bits(type))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "%s cannot be read packed", inv_dtype_name(type));
    INV_TRY(inv_need_real(g, n, at + 1));
    const bool fits = inv_shape_is_static(shape) && shape->rank >= 2 && width >= shape->dim[shape->rank - 1] &&
                      first >= 0 && inv_attr_int(n, "block", 1) > 0;
    INV_TRY(inv_need_size(g, n, shape));
    const int64_t rows = fits ? (first + shape->dim[0]) * inv_prod(shape, 1, shape->rank - 1) : 0;
    if (!fits || !holds(inv_val(g, n->in[at]), rows * width, inv_packed_bits(type)) ||
        !part_fits(g, n, at + 1, "scale_shape", shape, INV_DT_NONE) ||
        !part_fits(g, n, at + 2, "zero_shape", shape, zero))
        return inv_node_fail(g, n, INV_E_SHAPE, "the packed operand does not have the elements that attributes name");
    return INV_OK;
}

/* --- Unpack(w, scale, zero) --- */

static inv_status unpack_infer(inv_graph *g, inv_node *n)
{
    inv_shape s;
    INV_TRY(inv_packed_infer(g, n, 0, &s));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 1), &s);
    return INV_OK;
}

static inv_status unpack_run(const inv_call *c)
{
    inv_packed p;
    inv_packed_of(c, 0, &p);
    if (c->out[0].n) INV_REAL(c->out[0].dtype, unpack, &p, c->out[0].data);
    return INV_OK;
}

/* What is trained is no quantized constant but a parameter in a small type, which has neither scale nor zero point, so
 * the gradient is that of the number itself. */
static inv_status unpack_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) inv_grad_set(b, 0, inv_GO(b, 0));
    return inv_grad_done(b);
}

/* --- GatherPacked(indices, w, scale, zero) --- */

static inv_status gather_packed_infer(inv_graph *g, inv_node *n)
{
    inv_shape w, s = inv_shape_scalar();
    int axis;
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_shape *index = inv_in_shape(g, n, 0);
    INV_TRY(inv_packed_infer(g, n, 1, &w));
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "gather_axis", 0), w.rank, &axis));
    if (t != INV_I64 && t != INV_I32)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "indices are %s; int32 or int64 is wanted",
                             inv_dtype_name(t));
    if (w.rank - 1 + index->rank > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    for (int i = 0; i < axis; i++) s.dim[s.rank++] = w.dim[i];
    for (int i = 0; i < index->rank; i++) s.dim[s.rank++] = index->dim[i];
    for (int i = axis + 1; i < w.rank; i++) s.dim[s.rank++] = w.dim[i];
    INV_TRY(inv_need_size(g, n, &s));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 2), &s);
    return INV_OK;
}

static inv_status gather_packed_run(const inv_call *c)
{
    inv_packed p;
    inv_packed_of(c, 1, &p);
    const int64_t given = inv_attr_int(c->node, "gather_axis", 0);
    const int axis = (int)(given < 0 ? given + p.shape.rank : given);
    const int64_t extent = p.shape.dim[axis];
    for (int64_t i = 0; i < c->in[0].n && c->out[0].n; i++) {
        const int64_t at = inv_elem_int(c->in[0].data, c->in[0].dtype, (size_t)i);
        if (at < -extent || at >= extent) return inv_index_outside(c, at, extent);
    }
    if (c->out[0].n) INV_REAL(c->out[0].dtype, gather, &p, axis, &c->in[0], c->out[0].data);
    return INV_OK;
}

static inv_status gather_packed_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node n = *inv_nod(g, b->node);
    if (!inv_wants(b, 1)) return INV_OK;
    inv_grad_set(b, 1,
                 inv_emit1(g, "GatherGrad", INV_IN(inv_GO(b, 0), n.in[0]),
                           INV_ATTRS(inv_attr_of_int("axis", inv_attr_int(&n, "gather_axis", 0)),
                                     inv_attr_of_shape("shape", inv_shape_of_value(g, n.in[1])))));
    return inv_grad_done(b);
}

/* clang-format off */
#define BYTES16 "{1,18,35,52,69,86,103,120,137,154,171,188,205,222,239,255}"
static const inv_op_def unpack_op = {
    .size = sizeof unpack_op, .domain = INV_IR, .name = "Unpack", .since = 1, .in = "w scale zero?", .out = "y",
    .flags = INV_OP_HOST_ONLY | INV_OP_UNPACKS, .infer = unpack_infer, .grad = unpack_grad, .run = unpack_run,
    .flops = inv_flops_out, .work = inv_work_stream,
    .cases = (const char *const[]){
        "y = Unpack<type = 22, shape = [3,5], width = 5, axis = 1, block = 3, scale_shape = [3,2]>(uint8[8]"
            "{1,18,35,52,69,86,103,120}, float[3,2]{0.1,0.2,0.3,-0.4,0.5,1.5})",
        "y = Unpack<type = 2, shape = [2,4,2], width = 2, axis = 1, block = 1, scale_shape = [1,4,1], "
            "zero_shape = [1,1,1]>("
            "uint8[16]" BYTES16 ", float[4]{0.1,0.2,0.3,0.4}, uint8[1]{100})",
        "y = Unpack<type = 17, shape = [4,4], width = 4, axis = 0, block = 2, scale_shape = [2,4]>(uint8[16]"
            "{1,18,35,52,69,86,103,120,137,154,171,188,205,222,239,240}, float[2,4]{1,2,3,4,5,6,7,8})", NULL},
    .doc = "(w - zero) scale of a quantized constant w, as a whole"};

static const inv_op_def gather_packed = {
    .size = sizeof gather_packed, .domain = INV_IR, .name = "GatherPacked", .since = 1, .in = "indices w scale zero?",
    .out = "y", .flags = INV_OP_HOST_ONLY | INV_OP_UNPACKS, .infer = gather_packed_infer,
    .grad = gather_packed_grad, .run = gather_packed_run, .flops = inv_flops_out, .work = inv_work_move,
    .cases = (const char *const[]){
        "y = GatherPacked<type = 21, shape = [3,5], width = 6, axis = 1, block = 4, scale_shape = [3,2], "
            "zero_shape = [3,2], zero_type = 21>(int64[2]{2,-3}, uint8[16]" BYTES16 ", "
            "float[3,2]{0.1,0.2,0.3,-0.4,0.5,1.5}, uint8[3]{1,35,8})",
        "y = GatherPacked<gather_axis = 1, type = 3, shape = [2,8], width = 8, first = 0, axis = 0, block = 1, "
            "scale_shape = [2,1]>(int32[2,2]{7,1,0,-1}, uint8[16]" BYTES16 ", float[2]{0.1,0.2})", NULL},
    .doc = "(w - zero) scale of the entries that indices pick along gather_axis of a quantized constant w"};
/* clang-format on */

extern const inv_op_def inv_op_matmul_packed;
const inv_op_def *const inv_ops_packed[] = {&unpack_op, &gather_packed, &inv_op_matmul_packed, NULL};
