/* SPDX-License-Identifier: Apache-2.0
 * Element types (numbered as in ONNX TensorProto.DataType), shapes, broadcasting, byte counts. */
#ifndef INV_CORE_SHAPE_H
#define INV_CORE_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "invonnx/invonnx.h"

#define INV_MAX_RANK 8

size_t inv_dtype_size(inv_dtype t); /* bytes per element; 0: no fixed size or unknown */
const char *inv_dtype_name(inv_dtype t);
bool inv_dtype_parse(const char *name, inv_dtype *out); /* ONNX text names: float, int64, ... */
bool inv_dtype_is_float(inv_dtype t);                   /* f16, bf16, f32, f64 */

/* rank -1: nothing known. dim -1: not known yet (only before bind). */
typedef struct inv_shape {
    int32_t rank;
    int64_t dim[INV_MAX_RANK];
} inv_shape;

inv_shape inv_shape_unknown(void);
inv_shape inv_shape_scalar(void);
inv_shape inv_shape_of(int rank, const int64_t *dim); /* rank <= INV_MAX_RANK */
bool inv_shape_is_static(const inv_shape *s);
bool inv_shape_equal(const inv_shape *a, const inv_shape *b);
int64_t inv_shape_nelem(const inv_shape *s);                    /* static, checked before */
bool inv_shape_nbytes(const inv_shape *s, inv_dtype t, size_t *out); /* false on overflow */
bool inv_shape_broadcast(const inv_shape *a, const inv_shape *b, inv_shape *out);
/* Text such as "[2,3,?]" into buf; returns buf. */
#define INV_SHAPE_TEXT 128
char *inv_shape_text(const inv_shape *s, char buf[INV_SHAPE_TEXT]);

/* One element of a typed, possibly unaligned buffer as double / int64; conversion of whole buffers
 * (float <-> float, any number -> number, rounding to nearest even for f16 and bf16). */
double inv_elem_double(const void *data, inv_dtype t, size_t i);
int64_t inv_elem_int(const void *data, inv_dtype t, size_t i);
bool inv_convert(void *dst, inv_dtype dt, const void *src, inv_dtype st, size_t n);

#endif
