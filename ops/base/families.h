/* SPDX-License-Identifier: Apache-2.0
 * The list of operator families. Each ops/<family>.c defines inv_ops_<family>: rows, NULL-terminated. */
#ifndef INV_OPS_BASE_FAMILIES_H
#define INV_OPS_BASE_FAMILIES_H

#include "core/graph/op.h"

/* clang-format off */
#define INV_OP_FAMILIES(X)                                                                                             \
    X(elementwise) X(arith) X(logic) X(shape) X(move) X(slice) X(concat) X(gather) X(reduce) X(matmul) X(conv)        \
        X(conv_transpose) X(pool) X(norm) X(layernorm) X(attention) X(loss) X(train) X(guard) X(resize) X(det)         \
        X(scatter) X(quantize) X(topk) X(cumulate) X(index) X(dynamic) X(groupnorm) X(normalize) X(sample)             \
        X(class_loss) X(optim_onnx) X(random) X(signal) X(roi) X(ml) X(recurrent) X(einsum) X(sequence) X(bits)        \
        X(offload) X(pool_onnx) X(packed) X(ms_fused) X(ms_norm) X(ms_attention) X(ms_group_query) X(ms_packed)        \
        X(ms_qlinear) X(ms_lstm) X(all_reduce) X(reduce_scatter) X(fused)
/* clang-format on */

#define INV_OP_FAMILY_DECL(family) extern const inv_op_def *const inv_ops_##family[];
INV_OP_FAMILIES(INV_OP_FAMILY_DECL)
#undef INV_OP_FAMILY_DECL

extern const inv_api inv_plugin_api; /* plugin_ops.c: what plugins, and built-in rule sets, are given */

#endif
