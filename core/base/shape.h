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
/* Small types (small_types.c): floating point of 8 bits and fewer, integers of fewer; ONNX's numbers from 17 on. Packed
 * in files; nothing computes in them, but values are rounded to them and carried in larger types. */
enum {
    INV_F8E4M3FN = 17,
    INV_F8E4M3FNUZ,
    INV_F8E5M2,
    INV_F8E5M2FNUZ,
    INV_U4,
    INV_I4,
    INV_F4E2M1,
    INV_F8E8M0,
    INV_U2,
    INV_I2,
    INV_F6E2M3,
    INV_F6E3M2
};
unsigned inv_dtype_bits(inv_dtype t); /* of an element of a small type, else 0 */
/* The type in which values of type t are computed with: `real`, int8, uint8, or t itself. */
inv_dtype inv_dtype_carrier(inv_dtype t, inv_dtype real);
double inv_small_elem(const void *data, inv_dtype t, size_t i);

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
int64_t inv_shape_nelem(const inv_shape *s); /* static, checked before */
/* Bytes of the largest tensor, as far as addresses reach. The sum of 65,000 of them is within int64_t. */
#define INV_LARGEST_TENSOR ((size_t)1 << 47)
bool inv_shape_nbytes(const inv_shape *s, inv_dtype t, size_t *out); /* false: not static, or larger than that */
bool inv_shape_broadcast(const inv_shape *a, const inv_shape *b, inv_shape *out);
/* The element of a tensor of shape `own`, which broadcasts against `like`, that stands at element e of that. */
int64_t inv_shape_element(const inv_shape *own, const inv_shape *like, int64_t e);
/* Text such as "[2,3,?]" into buf; returns buf. */
#define INV_SHAPE_TEXT 128
char *inv_shape_text(const inv_shape *s, char buf[INV_SHAPE_TEXT]);

/* One element of a typed, possibly unaligned buffer as double / int64; conversion of whole buffers
 * (float <-> float, any number -> number, rounding to nearest even for f16 and bf16; from small types, not to them). */
double inv_elem_double(const void *data, inv_dtype t, size_t i);
int64_t inv_elem_int(const void *data, inv_dtype t, size_t i);
bool inv_convert(void *dst, inv_dtype dt, const void *src, inv_dtype st, size_t n);

#endif
