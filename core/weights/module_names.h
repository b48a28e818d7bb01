/* SPDX-License-Identifier: Apache-2.0
 * What the modules of a model call its parameters. Exporters fold the transpose of a weight and give the result a name
 * of their own (`val_84`, `onnx::MatMul_263`), or keep one of several equal tensors; but the nodes that read it still
 * say for which module they compute (inv_node.module). So a parameter has other names beside its own
 * (inv_value.also): MODULE.weight or MODULE.bias, by what it is to the reader, and as the file's list of parameters
 * has it, if there is one. Whoever takes globs of parameters asks here. */
#ifndef INV_CORE_MODULE_NAMES_H
#define INV_CORE_MODULE_NAMES_H

#include "core/base/glob.h"
#include "core/graph/ir.h"

/* Whether the glob fits one of a parameter's other names. Slashes in it stand for dots, too: where names of nodes have
 * slashes, so have those of parameters, "model/dense/kernel". */
bool inv_module_fits(const char *glob, const char *name);
/* Whether the glob fits the parameter's name or one of its other names. */
bool inv_param_fits(const char *glob, const inv_value *v);
bool inv_param_fits_any(const char *const *globs, size_t n, const inv_value *v);
/* Whether each of its names fits one of them. */
bool inv_param_fits_in_full(const char *const *globs, size_t n, const inv_value *v);
/* Whether it is called so, to the letter. */
bool inv_param_is_called(const char *name, const inv_value *v);
/* For "did you mean". */
void inv_param_look(inv_near *near, const inv_value *v);

/* Gives a parameter another name, which is borrowed. What it has already, or is called, is passed over. */
inv_status inv_param_call(inv_graph *g, inv_id v, const char *name);

/* The names by the modules of all nodes that read a parameter of floating point of an imported graph, directly or by
 * what computes with it and constants alone. `which`: per value, whether it is wanted; NULL: all are. */
inv_status inv_module_names_find(inv_graph *g, inv_arena *scratch, const bool *which);

/* The program's parameter (core/weights/exported.h) that input `slot` of a node stands for where it reads v, by the
 * call that the node was; UINT32_MAX: the file does not say. */
uint32_t inv_param_given(const inv_graph *g, const inv_node *n, uint32_t slot, inv_id v);

/* The module in the name of a parameter, "a.b" of "a.b.weight": its length; 0: there is none. */
size_t inv_module_length(const char *name);

#endif
