/* SPDX-License-Identifier: Apache-2.0
 * New heads of a loaded model (core/edits/head.h). */
#include "core/edits/head.h"

#include <string.h>

#include "core/graph/node.h"
#include "core/program/options.h"
#include "executor/report/report.h"
#include "passes/export/export.h"

static json_t *parameter(const inv_graph *g, inv_id v)
{
    if (v == INV_NONE) return json_null();
    const inv_value *x = inv_val(g, v);
    return json_pack("{s:s, s:o, s:s}", "name", x->name, "shape", inv_report_shape(&x->shape), "dtype",
                     inv_dtype_name(x->dtype));
}

static json_t *report(const inv_graph *g, const inv_head_made *h)
{
    const inv_node *n = inv_nod(g, h->node);
    return json_pack("{s:s, s:s, s:o, s:o, s:I, s:I}", "node", inv_node_called(g, n), "operator", n->op_type, "weight",
                     parameter(g, h->weight), "bias", parameter(g, h->bias), "classes", (json_int_t)h->classes,
                     "before", (json_int_t)h->before);
}

inv_status inv_model_set_head(inv_model *model, const inv_head *given, char **json)
{
    INV_OBJECT(model);
    inv_context *ctx = model->ctx;
    inv_head o = {.size = sizeof o};
    inv_head_made made;
    inv_arena a;
    if (json) *json = NULL;
    INV_CHECK(given, ctx, INV_E_ARG, "head is NULL: it has to be given");
    INV_TRY(inv_options_take(ctx, "options of a head", &o, sizeof o, given, given->size));
    INV_CHECK(!model->forward, ctx, INV_E_ARG,
              "the model is the inverse direction of '%s', in memory: a head is of the file's own direction",
              model->path);
    INV_TRY(inv_functions_open(model->graph));
    inv_arena_init(&a, ctx);
    inv_status s = inv_head_set(model->graph, &o, &a, &made);
    if (s == INV_OK && json) s = inv_report_text(ctx, report(model->graph, &made), json);
    inv_arena_fini(&a);
    return s;
}
