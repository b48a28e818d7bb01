/* SPDX-License-Identifier: Apache-2.0
 * Quantized constants as files hold them, read by kernels that expand a tile of them at a time.
 *
 *     element (i0, .., ir) = (w[i] - zero[i at axis / block]) scale[i at axis / block]
 *
 * w: elements of 2, 4, 8 or 16 bits, row-major and packed (core/base/shape.h), as an operand of bytes. scale, zero: as
 * many axes as w, or one number; along an axis of extent 1 there is one for all, along `axis` one per `block`, else one
 * each. The operators Unpack, MatMulPacked and GatherPacked have it in attributes, of the same names for all three
 * (ops/base/packing.h). */
#ifndef INV_OPS_LINEAR_PACKED_H
#define INV_OPS_LINEAR_PACKED_H

#include "ops/base/packing.h"

/* What one number per block is read from. */
typedef struct inv_packed_part {
    const void *data; /* NULL: `all` is the number everywhere */
    inv_dtype type;
    double all;
    int64_t stride[INV_MAX_RANK]; /* 0: the axis has one for all */
    int64_t run;                  /* along the last axis, elements that share a number */
} inv_packed_part;

typedef struct inv_packed {
    const unsigned char *data;
    inv_dtype type;
    inv_shape shape;      /* of what is read */
    int64_t first, width; /* index along axis 0 at which that begins; elements that a row has in `data` */
    int axis;
    int64_t block;
    inv_packed_part scale, zero;
    float value[256]; /* of the bytes of floating-point types */
} inv_packed;

/* The operand at inputs `at` (bytes), at + 1 (scale) and at + 2 (zero) of a node with its attributes. */
void inv_packed_of(const inv_call *c, uint32_t at, inv_packed *p);
/* The shape that a node reads packed. INV_E_SHAPE, INV_E_UNSUPPORTED_TYPE: its attributes do not fit its inputs. */
inv_status inv_packed_infer(const inv_graph *g, const inv_node *n, uint32_t at, inv_shape *shape);
/* out[i] = element [row, from + i], i < count; row counts all axes but the last. */
void inv_packed_expand_f32(const inv_packed *p, int64_t row, int64_t from, int64_t count, float *out);
void inv_packed_expand_f64(const inv_packed *p, int64_t row, int64_t from, int64_t count, double *out);

#endif
