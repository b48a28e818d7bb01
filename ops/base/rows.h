/* SPDX-License-Identifier: Apache-2.0
 * How rows of operators are written where they are alike: lists of cases, constants in them, and operators of ONNX in
 * whose place others run. */
#ifndef INV_OPS_BASE_ROWS_H
#define INV_OPS_BASE_ROWS_H

#include "core/graph/op.h"

/* clang-format off */
#define INV_CASE_LIST(id, ...) static const char *const id##_cases[] = {__VA_ARGS__, NULL};

/* Statements of a case that name a constant. */
#define INV_INT(name, v) name " = Constant<value_int = " v ">()\n"
#define INV_INTS(name, list) name " = Constant<value_ints = [" list "]>()\n"

/* The row `id`_row of an operator of ONNX that `how`, or `id`_lower, rewrites; the cases come last. */
#define INV_LOWERED(id, op, opset, ins, outs, text, ...)                                                               \
    INV_LOWERED_BY(id##_lower, 0, 0, id, op, opset, ins, outs, text, __VA_ARGS__)
#define INV_LOWERED_FLAGS(id, op, opset, ins, outs, bits, text, ...)                                                   \
    INV_LOWERED_BY(id##_lower, 0, bits, id, op, opset, ins, outs, text, __VA_ARGS__)
#define INV_LOWERED_BY(how, last, bits, id, op, opset, ins, outs, text, ...)                                           \
    INV_LOWERED_IN("", how, last, bits, id, op, opset, ins, outs, text, __VA_ARGS__)
#define INV_LOWERED_IN(of, how, last, bits, id, op, opset, ins, outs, text, ...)                                       \
    INV_CASE_LIST(id, __VA_ARGS__)                                                                                     \
    static const inv_op_def id##_row = {                                                                               \
        .size = sizeof(inv_op_def), .domain = of, .name = op, .since = opset, .until = last, .in = ins, .out = outs,   \
        .flags = bits, .lower = how, .cases = id##_cases, .doc = text};

/* The same of one that onnxruntime has beside those of ONNX. */
#define INV_MICROSOFT(how, bits, id, op, ins, outs, text, ...)                                                         \
    INV_LOWERED_IN("com.microsoft", how, 0, bits, id, op, 1, ins, outs, text, __VA_ARGS__)
/* clang-format on */

#endif
