/* SPDX-License-Identifier: Apache-2.0
 * Messages that are in no file yet, with the fields of ONNX's schema as of IR version 8. Data stay where they are:
 * pieces refer to them. */
#include "importer/writer.h"

inv_status inv_put_tensor_head(inv_file_pieces *p, const char *name, const inv_data *d)
{
    for (int i = 0; i < d->shape.rank; i++) INV_TRY(inv_put_int(p, INV_PB_TENSOR_DIMS, d->shape.dim[i]));
    INV_TRY(inv_put_int(p, INV_PB_TENSOR_DATA_TYPE, (int64_t)d->dtype));
    return *name ? inv_put_text(p, INV_PB_TENSOR_NAME, name) : INV_OK;
}

inv_status inv_put_tensor(inv_file_pieces *p, uint32_t id, const char *name, const inv_data *d, const inv_maker *maker)
{
    inv_mark m;
    size_t nbytes;
    if (d->shape.rank < 0 || !inv_shape_nbytes(&d->shape, d->dtype, &nbytes) || nbytes != d->nbytes ||
        !inv_dtype_size(d->dtype) || (nbytes && !d->bytes && !maker))
        return inv_fail(p->a->ctx, INV_E_ARG, "tensor '%s': no data that fit its type and shape", name);
    INV_TRY(inv_put_open(p, &m));
    INV_TRY(inv_put_tensor_head(p, name, d));
    INV_TRY(inv_put_header(p, INV_PB_TENSOR_RAW_DATA, nbytes));
    inv_weight x = {.dtype = d->dtype, .n = nbytes / inv_dtype_size(d->dtype), .data = d->bytes};
    if (maker) x.maker = *maker;
    INV_TRY(inv_put_elements(p, &x, d->dtype));
    return inv_put_close(p, &m, id);
}

static inv_status put_value(inv_file_pieces *p, const inv_attr *a, int *type)
{
    switch (a->kind) {
    case INV_ATTR_INT: *type = INV_PB_TYPE_INT; return inv_put_int(p, INV_PB_ATTR_I, a->i);
    case INV_ATTR_FLOAT: *type = INV_PB_TYPE_FLOAT; return inv_put_float(p, INV_PB_ATTR_F, (float)a->f);
    case INV_ATTR_STRING: *type = INV_PB_TYPE_STRING; return inv_put_text(p, INV_PB_ATTR_S, a->s);
    case INV_ATTR_INTS:
        *type = INV_PB_TYPE_INTS;
        for (size_t i = 0; i < a->n; i++) INV_TRY(inv_put_int(p, INV_PB_ATTR_INTS, a->ints[i]));
        return INV_OK;
    case INV_ATTR_FLOATS:
        *type = INV_PB_TYPE_FLOATS;
        for (size_t i = 0; i < a->n; i++) INV_TRY(inv_put_float(p, INV_PB_ATTR_FLOATS, (float)a->floats[i]));
        return INV_OK;
    case INV_ATTR_STRINGS:
        *type = INV_PB_TYPE_STRINGS;
        for (size_t i = 0; i < a->n; i++) INV_TRY(inv_put_text(p, INV_PB_ATTR_STRINGS, a->strings[i]));
        return INV_OK;
    case INV_ATTR_TENSOR: *type = INV_PB_TYPE_TENSOR; return inv_put_tensor(p, INV_PB_ATTR_T, "", &a->tensor, NULL);
    default: break;
    }
    return inv_fail(p->a->ctx, INV_E_ARG, "attribute '%s' is of a kind that cannot be written", a->name);
}

inv_status inv_put_attr(inv_file_pieces *p, uint32_t id, const inv_attr *a)
{
    inv_mark m;
    int type = 0;
    INV_CHECK(!a->ref, p->a->ctx, INV_E_ARG, "attribute '%s' refers to a call's, which cannot be written", a->name);
    INV_TRY(inv_put_open(p, &m));
    INV_TRY(inv_put_text(p, INV_PB_ATTR_NAME, a->name));
    INV_TRY(put_value(p, a, &type));
    INV_TRY(inv_put_int(p, INV_PB_ATTR_TYPE, type));
    return inv_put_close(p, &m, id);
}

inv_status inv_put_shape(inv_file_pieces *p, uint32_t id, const inv_shape *s, const char *const *symbols)
{
    enum { DIM = 1, EXTENT = 1, SYMBOL = 2 };
    inv_mark shape, dim;
    INV_TRY(inv_put_open(p, &shape));
    for (int i = 0; i < s->rank; i++) {
        INV_TRY(inv_put_open(p, &dim));
        if (s->dim[i] >= 0) INV_TRY(inv_put_int(p, EXTENT, s->dim[i]));
        else if (symbols && symbols[i] && *symbols[i]) INV_TRY(inv_put_text(p, SYMBOL, symbols[i]));
        INV_TRY(inv_put_close(p, &dim, DIM));
    }
    return inv_put_close(p, &shape, id);
}

inv_status inv_put_declaration(inv_file_pieces *p, uint32_t id, const char *name, inv_dtype dtype, const inv_shape *s,
                               const char *const *symbols)
{
    inv_mark info, type, tensor;
    INV_TRY(inv_put_open(p, &info));
    INV_TRY(inv_put_text(p, 1, name));
    INV_TRY(inv_put_open(p, &type));
    INV_TRY(inv_put_open(p, &tensor));
    INV_TRY(inv_put_int(p, INV_PB_INFO_ELEMENT, (int64_t)dtype));
    INV_TRY(inv_put_shape(p, INV_PB_INFO_SHAPE, s, symbols));
    INV_TRY(inv_put_close(p, &tensor, INV_PB_INFO_TENSOR));
    INV_TRY(inv_put_close(p, &type, INV_PB_INFO_TYPE));
    return inv_put_close(p, &info, id);
}

inv_status inv_put_opset(inv_file_pieces *p, uint32_t id, const char *domain, int64_t version)
{
    inv_mark m;
    INV_TRY(inv_put_open(p, &m));
    INV_TRY(inv_put_text(p, 1, domain));
    INV_TRY(inv_put_int(p, 2, version));
    return inv_put_close(p, &m, id);
}
