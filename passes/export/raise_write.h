/* SPDX-License-Identifier: Apache-2.0
 * Writing ONNX nodes into a body (raise.h): names of values, NULL once something has failed, so that calls nest (but
 * never two that write in one argument list: C does not say which comes first, and the file is to be the same
 * everywhere). */
#ifndef INV_PASSES_EXPORT_RAISE_WRITE_H
#define INV_PASSES_EXPORT_RAISE_WRITE_H

#include <string.h>

#include "passes/export/raise.h"

static inline bool refuse(inv_raise *r, const char *reason)
{
    if (r->reason == NULL) r->reason = reason;
    return false;
}

static inline const char *too_old(inv_raise *r, const char *op, int since)
{
    return inv__arena_printf(r->a, "%s needs operator set %d, the model has %lld: convert it (onnx.version_converter)",
                             op, since, (long long)r->opset);
}

/* Operators that bodies take where the model's own may be older. */
static inline bool is_too_new(inv_raise *r, const char *op)
{
    static const struct {
        const char *op;
        int since;
    } young[] = {{"Where", 9},           {"Sinh", 9}, {"Cosh", 9}, {"Asinh", 9}, {"Atanh", 9},
                 {"ConstantOfShape", 9}, {"Det", 11}, {"Pad", 11}};
    for (size_t i = 0; i < sizeof young / sizeof *young; i++)
        if (strcmp(op, young[i].op) == 0 && r->opset < young[i].since)
            return !refuse(r, too_old(r, op, young[i].since));
    return false;
}

/* The names and attributes are copied; what attributes point to is not. */
static inline bool emit_all(inv_raise *r, const char *op, uint32_t nout, const char *const *out, uint32_t nin,
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

#define NAMES(...) \
    (uint32_t)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *const[]) { __VA_ARGS__ }

/* The name of the one output. */
static inline const char *emit(inv_raise *r, const char *out, const char *op, uint32_t nin, const char *const *in,
                               uint32_t nattr, const inv_attr *attr)
{
    return emit_all(r, op, 1, &out, nin, in, nattr, attr) ? out : NULL;
}

static inline const char *op1(inv_raise *r, const char *op, const char *x)
{
    return emit(r, inv_raise_fresh(r), op, NAMES(x), INV_NOATTR);
}

static inline const char *op2(inv_raise *r, const char *op, const char *x, const char *y)
{
    return emit(r, inv_raise_fresh(r), op, NAMES(x, y), INV_NOATTR);
}

static inline const char *real(inv_raise *r, double v)
{
    const size_t nbytes = inv_dtype_size(r->real);
    void *bytes = inv__arena_alloc(r->a, nbytes);
    if (bytes == NULL || !inv_convert(bytes, r->real, &v, INV_F64, 1)) return NULL;
    return inv_raise_constant(r, &(inv_data){r->real, inv_shape_scalar(), bytes, nbytes});
}

static inline const int64_t *copy_ints(inv_raise *r, size_t n, const int64_t *v)
{
    int64_t *copy = INV_ARENA_NEW(r->a, int64_t, n + 1);
    for (size_t i = 0; copy != NULL && i < n; i++) copy[i] = v[i];
    return copy;
}

static inline const char *ints(inv_raise *r, size_t n, const int64_t *v)
{
    const int64_t *copy = copy_ints(r, n, v), count = (int64_t)n;
    if (copy == NULL) return NULL;
    return inv_raise_constant(r, &(inv_data){INV_I64, inv_shape_of(1, &count), copy, n * sizeof *v});
}

/* From one index along an axis to another, not included. */
enum { INPUTS_OF_SLICE = 10 };
static inline const char *emit_slice(inv_raise *r, const char *out, const char *x, int64_t axis, int64_t from,
                                     int64_t to)
{
    const int64_t *lists[] = {copy_ints(r, 1, &from), copy_ints(r, 1, &to), copy_ints(r, 1, &axis)};
    if (lists[0] == NULL || lists[1] == NULL || lists[2] == NULL) return NULL;
    if (r->opset < INPUTS_OF_SLICE)
        return emit(r, out, "Slice", NAMES(x),
                    INV_ATTRS(inv_attr_of_ints("axes", 1, lists[2]), inv_attr_of_ints("ends", 1, lists[1]),
                              inv_attr_of_ints("starts", 1, lists[0])));
    const char *in[] = {x, NULL, NULL, NULL};
    for (int i = 0; i < 3; i++) in[1 + i] = ints(r, 1, lists[i]);
    return emit(r, out, "Slice", 4, in, INV_NOATTR);
}

#endif
