/* SPDX-License-Identifier: Apache-2.0
 * Emitting quantized constants that stay packed (ops/linear/packed.h), for lowerings. */
#ifndef INV_OPS_BASE_PACKING_H
#define INV_OPS_BASE_PACKING_H

#include "ops/base/util.h"

/* Bits of an element of a type that can be read packed, else 0. Elements of 6 bits lie across bytes: they cannot. */
static inline unsigned inv_packed_bits(inv_dtype t)
{
    if (t == INV_U8 || t == INV_I8) return 8;
    if (inv_dtype_bits(t) == 6) return 0;
    return t == INV_U16 || t == INV_I16 || t == INV_BF16 ? 16 : inv_dtype_bits(t);
}

/* The attributes and shapes of a constant that is to be read packed, for inv_emit_unpack. */
typedef struct inv_packing {
    inv_dtype type;
    inv_shape shape; /* [rows.., columns] that are read */
    int64_t width;   /* columns that are there, the last axis's extent or more */
    int64_t axis, block;
    inv_id bytes, scale, zero; /* values of g; zero: INV_NONE, then zero_all counts */
    inv_shape scale_shape, zero_shape;
    inv_dtype zero_type; /* of packed zero points; INV_DT_NONE: the type of the value `zero` */
    double zero_all;
} inv_packing;

/* Emits Unpack: the floating-point value that p describes. INV_NONE: g->failed. */
inv_id inv_emit_unpack(inv_graph *g, const inv_packing *p);
/* A value of bytes over the data of constant v, which stay where they are. INV_NONE: g->failed. */
inv_id inv_packed_bytes(inv_graph *g, inv_id v);
/* Whether v is stored data of a type that can be read packed, on this device; its type in the file. */
bool inv_can_pack(const inv_graph *g, inv_id v, inv_dtype *type);
/* Whether v is stored, and no training changes it. */
bool inv_stays_as_stored(const inv_graph *g, inv_id v);

#endif
