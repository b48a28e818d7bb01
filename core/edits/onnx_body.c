/* SPDX-License-Identifier: Apache-2.0
 * Appending ONNX nodes to a body (onnx_body.h). */
#include "core/edits/onnx_body.h"

#include <string.h>

enum { CONSTANT_OF_ANY_TYPE = 9, HAS_CAST_LIKE = 15 };

const char *inv_onnx_fresh(inv_onnx_body *r)
{
    const char *name;
    inv_id taken;
    do {
        name = inv_arena_printf(r->a, "_v%u", r->fresh++);
        taken = name && r->names ? inv_graph_find(r->names, name) : INV_NONE;
    } while ((taken != INV_NONE && !r->gone[taken]) || (name && r->reserved && strcmp(name, r->reserved) == 0));
    return name;
}

bool inv_onnx_refuse(inv_onnx_body *r, const char *reason)
{
    if (r->reason == NULL) r->reason = reason;
    return false;
}

const char *inv_onnx_too_old(inv_onnx_body *r, const char *op, int since)
{
    return inv_arena_printf(r->a, "%s needs operator set %d, the model has %lld: convert it (onnx.version_converter)",
                            op, since, (long long)r->opset);
}

/* Operators that bodies take where the model's own may be older. */
static bool is_too_new(inv_onnx_body *r, const char *op)
{
    static const struct {
        const char *op;
        int since;
    } young[] = {{"Where", 9},           {"Sinh", 9}, {"Cosh", 9}, {"Asinh", 9}, {"Atanh", 9}, {"Erf", 9},
                 {"ConstantOfShape", 9}, {"Det", 11}, {"Pad", 11}};
    for (size_t i = 0; i < sizeof young / sizeof *young; i++)
        if (strcmp(op, young[i].op) == 0 && r->opset < young[i].since)
            return !inv_onnx_refuse(r, inv_onnx_too_old(r, op, young[i].since));
    return false;
}

bool inv_onnx_nodes(inv_onnx_body *r, const char *op, uint32_t nout, const char *const *out, uint32_t nin,
                    const char *const *in, uint32_t nattr, const inv_attr *attr)
{
    for (uint32_t i = 0; i < nin; i++)
        if (in[i] == NULL) return false;
    for (uint32_t i = 0; i < nout; i++)
        if (out[i] == NULL) return false;
    if (is_too_new(r, op)) return false;
    const char **names = INV_ARENA_NEW(r->a, const char *, nin + nout + 1);
    inv_attr *attrs = INV_ARENA_NEW(r->a, inv_attr, nattr + 1);
    if (names == NULL || attrs == NULL) return false;
    for (uint32_t i = 0; i < nin; i++) names[i] = in[i];
    for (uint32_t i = 0; i < nout; i++) names[nin + i] = out[i];
    for (uint32_t i = 0; i < nattr; i++) attrs[i] = attr[i];
    const inv_outline_node node = {.source = INV_NONE,
                                   .domain = "",
                                   .op_type = op,
                                   .name = "",
                                   .in = names,
                                   .out = names + nin,
                                   .nin = nin,
                                   .nout = nout,
                                   .attr = attrs,
                                   .nattr = nattr};
    return inv_vec_push(r->a, r->node, node);
}

const char *inv_onnx_node(inv_onnx_body *r, const char *out, const char *op, uint32_t nin, const char *const *in,
                          uint32_t nattr, const inv_attr *attr)
{
    return inv_onnx_nodes(r, op, 1, &out, nin, in, nattr, attr) ? out : NULL;
}

const char *inv_onnx1(inv_onnx_body *r, const char *op, const char *x)
{
    return inv_onnx_node(r, inv_onnx_fresh(r), op, INV_NAMES(x), INV_NOATTR);
}

const char *inv_onnx2(inv_onnx_body *r, const char *op, const char *x, const char *y)
{
    return inv_onnx_node(r, inv_onnx_fresh(r), op, INV_NAMES(x, y), INV_NOATTR);
}

const char *inv_onnx_cast(inv_onnx_body *r, const char *x, inv_dtype to)
{
    return inv_onnx_node(r, inv_onnx_fresh(r), "Cast", INV_NAMES(x), INV_ATTRS(inv_attr_of_int("to", (int64_t)to)));
}

const char *inv_onnx_as_real(inv_onnx_body *r, const char *x, const char *like)
{
    return like && r->opset >= HAS_CAST_LIKE ? inv_onnx2(r, "CastLike", x, like) : inv_onnx_cast(r, x, r->real);
}

const char *inv_onnx_constant(inv_onnx_body *r, const inv_data *data)
{
    inv_attr value = {.name = "value", .kind = INV_ATTR_TENSOR, .tensor = *data};
    const bool whole = !inv_dtype_is_float(data->dtype);
    if (r->opset >= CONSTANT_OF_ANY_TYPE || !whole)
        return inv_onnx_node(r, inv_onnx_fresh(r), "Constant", 0, NULL, 1, &value);
    const size_t n = (size_t)inv_shape_nelem(&data->shape);
    double *numbers = INV_ARENA_NEW(r->a, double, n + 1);
    if (numbers == NULL || !inv_convert(numbers, INV_F64, data->bytes, data->dtype, n)) return NULL;
    value.tensor = (inv_data){INV_F64, data->shape, numbers, n * sizeof *numbers};
    return inv_onnx_cast(r, inv_onnx_node(r, inv_onnx_fresh(r), "Constant", 0, NULL, 1, &value), data->dtype);
}

const char *inv_onnx_real(inv_onnx_body *r, double v)
{
    const size_t nbytes = inv_dtype_size(r->real);
    void *bytes = inv_arena_alloc(r->a, nbytes);
    if (bytes == NULL || !inv_convert(bytes, r->real, &v, INV_F64, 1)) return NULL;
    return inv_onnx_constant(r, &(inv_data){r->real, inv_shape_scalar(), bytes, nbytes});
}

const int64_t *inv_onnx_copy(inv_onnx_body *r, size_t n, const int64_t *v)
{
    int64_t *copy = INV_ARENA_NEW(r->a, int64_t, n + 1);
    for (size_t i = 0; copy != NULL && i < n; i++) copy[i] = v[i];
    return copy;
}

const char *inv_onnx_ints(inv_onnx_body *r, size_t n, const int64_t *v)
{
    const int64_t *copy = inv_onnx_copy(r, n, v), count = (int64_t)n;
    if (copy == NULL) return NULL;
    return inv_onnx_constant(r, &(inv_data){INV_I64, inv_shape_of(1, &count), copy, n * sizeof *v});
}

const char *inv_onnx_slice(inv_onnx_body *r, const char *out, const char *x, int64_t axis, int64_t from, int64_t to)
{
    const int64_t *lists[] = {inv_onnx_copy(r, 1, &from), inv_onnx_copy(r, 1, &to), inv_onnx_copy(r, 1, &axis)};
    if (lists[0] == NULL || lists[1] == NULL || lists[2] == NULL) return NULL;
    if (r->opset < INV_ONNX_INPUTS_OF_SLICE)
        return inv_onnx_node(r, out, "Slice", INV_NAMES(x),
                             INV_ATTRS(inv_attr_of_ints("axes", 1, lists[2]), inv_attr_of_ints("ends", 1, lists[1]),
                                       inv_attr_of_ints("starts", 1, lists[0])));
    const char *in[] = {x, NULL, NULL, NULL};
    for (int i = 0; i < 3; i++) in[1 + i] = inv_onnx_ints(r, 1, lists[i]);
    return inv_onnx_node(r, out, "Slice", 4, in, INV_NOATTR);
}

const char *inv_onnx_reduced(inv_onnx_body *r, const char *out, const char *op, int64_t since, const char *x, size_t n,
                             const int64_t *axes, bool keep)
{
    const inv_attr keepdims = inv_attr_of_int("keepdims", keep);
    if (r->opset >= since) return inv_onnx_node(r, out, op, INV_NAMES(x, inv_onnx_ints(r, n, axes)), 1, &keepdims);
    const int64_t *copy = inv_onnx_copy(r, n, axes);
    if (copy == NULL) return NULL;
    return inv_onnx_node(r, out, op, INV_NAMES(x), INV_ATTRS(keepdims, inv_attr_of_ints("axes", n, copy)));
}

const char *inv_onnx_transposed(inv_onnx_body *r, const char *m, int rank)
{
    int64_t perm[INV_MAX_RANK];
    for (int i = 0; i < rank; i++) perm[i] = i < rank - 2 ? i : 2 * rank - 3 - i;
    const int64_t *copy = inv_onnx_copy(r, (size_t)rank, perm);
    if (copy == NULL) return NULL;
    return inv_onnx_node(r, inv_onnx_fresh(r), "Transpose", INV_NAMES(m),
                         INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, copy)));
}
