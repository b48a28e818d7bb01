/* SPDX-License-Identifier: Apache-2.0
 * Functions of two and three operands that broadcast (ops/elementwise/scalar_functions.h), and their device kernels. */
#ifndef INV_OPS_ELEMENTWISE_ARITH_GPU_H
#define INV_OPS_ELEMENTWISE_ARITH_GPU_H

#include "ops/gpu/gpu.h"
#include "ops/gpu/loop.h"

#define ARITH2_OPS(X) \
    X(add) X(sub) X(mul) X(div) X(pow) X(max) X(min) X(fmod) X(pymod) X(prelu) X(prelu_inv) X(prelu_dslope)
#define ARITH3_OPS(X) X(prelu_dx) X(div_db) X(pow_dx) X(pow_de)

/* Of integers only (ops/gpu/integers.h). */
#define BITS_OPS(X) X(and) X(or) X(xor) X(shl) X(shr) X(shr_logical)

typedef enum inv_arith {
#define ARITH_ID(f) INV_ARITH_##f,
    ARITH2_OPS(ARITH_ID) ARITH3_OPS(ARITH_ID) BITS_OPS(ARITH_ID)
#undef ARITH_ID
} inv_arith;

#ifdef __cplusplus
extern "C" {
#endif
/* out, contiguous, of l->rows * l->inner elements; two or three operands in `in`, float32 or float64, or two integers
 * of one type. `node` is reported where an integer is divided by zero. */
INV_LAUNCHER(arith, const struct inv_node *node, inv_arith f, inv_dtype t, const inv_loop *l, void *out,
             const void *const *in);
#ifdef __cplusplus
}
#endif

#endif
