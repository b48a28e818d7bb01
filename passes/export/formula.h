/* SPDX-License-Identifier: Apache-2.0
 * Formulas of operators' rows (columns `onnx` and `log_slope` of core/graph/op.h), written as nodes of ONNX:
 *
 *     u = Div(y, gamma); p = Relu(u); Add(p, Log1p(Div(Sub(u, p), alpha)))
 *
 * Statements are separated by `;`, the last one gives the result. A call is an operator of ONNX without attributes, or
 * one of the functions that formula.c lists; its operands are calls, names and numbers. A name is that of an operand or
 * result of the row, of a statement before, or of one of the row's real attributes; ln(NUMBER) is a number. Nodes come
 * in the order in which calls end, a number as a constant in front of the node that reads it. Nothing is multiplied or
 * divided by a number that is 1. */
#ifndef INV_PASSES_EXPORT_FORMULA_H
#define INV_PASSES_EXPORT_FORMULA_H

#include "passes/export/raise.h"

/* Appends the nodes. `value` has names for what the row's `in` and `out` list, in that order, NULL where there is none.
 * `out` is the name of the result; NULL: any. What the result is called; NULL: r->reason, or out of memory. */
const char *inv_formula_write(inv_onnx_body *r, const inv_node *n, const char *text, const char *const *value,
                              const char *out);

/* Output 0 of the node from its inputs. */
bool inv_formula_raise(const inv_raising *b, const char *text);

#endif
