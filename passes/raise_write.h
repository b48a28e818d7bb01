/* SPDX-License-Identifier: Apache-2.0
 * Writing ONNX nodes into a body (raise.h): names of values, NULL once something has failed, so that calls nest (but
 * never two that write in one argument list: C does not say which comes first, and the file is to be the same
 * everywhere). */
#ifndef INV_PASSES_RAISE_WRITE_H
#define INV_PASSES_RAISE_WRITE_H

#include "passes/raise.h"

static inline bool refuse(inv_raise *r, const char *reason)
{
    if (r->reason == NULL) r->reason = reason;
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
    const char **names = INV_ARENA_NEW(r->a, const char *, nin + nout + 1);
    inv_attr *attrs = INV_ARENA_NEW(r->a, inv_attr, nattr + 1);
    if (names == NULL || attrs == NULL) return false;
    for (uint32_t i = 0; i < nin; i++) names[i] = in[i];
    for (uint32_t i = 0; i < nout; i++) names[nin + i] = out[i];
    for (uint32_t i = 0; i < nattr; i++) attrs[i] = attr[i];
    const inv_outline_node node = {.source = INV_NONE, .domain = "", .op_type = op, .name = "", .in = names,
                                   .out = names + nin, .nin = nin, .nout = nout, .attr = attrs, .nattr = nattr};
    return inv_vec_push(r->a, r->node, node);
}

#define NAMES(...)                                                                                                    \
    (uint32_t)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *const[]){__VA_ARGS__}

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

static inline const char *constant(inv_raise *r, const inv_data *data)
{
    const inv_attr value = {.name = "value", .kind = INV_ATTR_TENSOR, .tensor = *data};
    return emit(r, inv_raise_fresh(r), "Constant", 0, NULL, 1, &value);
}

static inline const char *real(inv_raise *r, double v)
{
    const size_t nbytes = inv_dtype_size(r->real);
    if (r->real == INV_DT_NONE) {
        refuse(r, "the model's floating-point values are of several types");
        return NULL;
    }
    void *bytes = inv__arena_alloc(r->a, nbytes);
    if (bytes == NULL || !inv_convert(bytes, r->real, &v, INV_F64, 1)) return NULL;
    return constant(r, &(inv_data){r->real, inv_shape_scalar(), bytes, nbytes});
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
    return constant(r, &(inv_data){INV_I64, inv_shape_of(1, &count), copy, n * sizeof *v});
}

#endif
