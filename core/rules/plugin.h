/* SPDX-License-Identifier: Apache-2.0
 * Plugins that are ONNX models: their local functions, which any model may call, and the rules made of pairs of them.
 * passes/rules_from_functions.c makes these; api/context.c joins the two. */
#ifndef INV_CORE_PLUGIN_H
#define INV_CORE_PLUGIN_H

#include "core/graph/op.h"

inv_status inv_pairs_load(inv_registry *r, const char *path); /* passes/rules_from_functions.c */
void inv_registry_set_pairs(inv_registry *r, inv_pairs_fn fn);
/* Keeps the model, whose functions are now those of the registry; it goes with the plugin that is being loaded. */
inv_status inv_registry_keep_model(inv_registry *r, inv_model *model);
inv_model *inv_registry_model_at(const inv_registry *r, size_t i); /* NULL past the end */

#endif
