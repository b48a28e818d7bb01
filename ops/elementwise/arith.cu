/* SPDX-License-Identifier: Apache-2.0
 * Operators with two or three operands that broadcast, on the device (ops/elementwise/scalar_functions.h). */
#include "ops/elementwise/arith_gpu.h"
#include "ops/gpu/device.cuh"
#include "ops/gpu/integers.h"

#define INV_SCALAR INV_DEVICE
#define INV_BOTH "ops/elementwise/arith_device.inc"
#include "ops/base/both_reals.inc"

typedef struct int_arith {
    inv_arith f;
    inv_dtype t;
    inv_loop l;
    inv_fault fault;
} int_arith;

INV_KERNEL integers_kernel(int_arith k, void *out, const void *a, const void *b)
{
    INV_EACH(i, k.l.rows * k.l.inner)
    {
        int64_t at[INV_LOOP_OPS], v = 0;
        bool fine = true;
        inv_loop_at(&k.l, i, at);
        const int64_t x = inv_int_at(a, k.t, at[0]), z = inv_int_at(b, k.t, at[1]);
        bool done = k.t == INV_U64;
        switch (done ? k.f : INV_ARITH_add) {
#define UNSIGNED_CASE(f, as) \
    case INV_ARITH_##f: fine = inv_uint_##as(x, z, &v); break;
            UNSIGNED2_OPS(UNSIGNED_CASE)
#undef UNSIGNED_CASE
        default: done = false;
        }
        switch (done ? INV_ARITH_prelu : k.f) {
#define INTEGER_CASE(f) \
    case INV_ARITH_##f: fine = inv_int_##f(x, z, &v); break;
            INTEGER2_OPS(INTEGER_CASE)
#undef INTEGER_CASE
        default: break;
        }
        inv_int_put(out, k.t, i, v);
        if (!fine) inv_report(k.fault);
    }
}

extern "C" void INV_GPU_NAME(arith)(const inv_gpu *gpu, const struct inv_node *node, inv_arith f, inv_dtype t,
                                    const inv_loop *l, void *out, const void *const *in)
{
    if (t == INV_F32) arith_f32(gpu, f, l, out, in);
    else if (t == INV_F64) arith_f64(gpu, f, l, out, in);
    else
        inv_start(gpu, integers_kernel, inv_blocks(l->rows * l->inner), INV_THREADS,
                  int_arith{f, t, *l, inv_fault_of(gpu, node)}, out, in[0], in[1]);
}
