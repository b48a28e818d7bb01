/* SPDX-License-Identifier: Apache-2.0
 * Low-rank adapters of a loaded model (core/lora.h). */
#include <string.h>

#include "core/lora.h"
#include "core/node.h"
#include "core/options.h"
#include "executor/report.h"

static json_t *shape_of(const inv_graph *g, const char *name)
{
    const inv_id v = inv_graph_find(g, name);
    json_t *list = json_array();
    for (int i = 0; v != INV_NONE && i < inv_val(g, v)->shape.rank; i++)
        (void)json_array_append_new(list, json_integer(inv_val(g, v)->shape.dim[i]));
    return list;
}

static json_t *row(const inv_graph *g, const inv_lora_target *t, inv_arena *a)
{
    const char *weight = inv_val(g, t->weight)->name;
    const char *down = inv__arena_printf(a, "%s.lora_A", weight), *up = inv__arena_printf(a, "%s.lora_B", weight);
    json_t *nodes = json_array();
    for (size_t i = 0; i < t->use.n; i++)
        (void)json_array_append_new(nodes, json_string(inv_node_called(g, inv_nod(g, t->use.at[i].node))));
    if (!down || !up) {
        json_decref(nodes);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:o, s:o, s:s, s:b}", "weight", weight, "nodes", nodes, "A", shape_of(g, down), "B",
                     shape_of(g, up), "dtype", inv_dtype_name(t->dtype), "quantized", t->quantized);
}

static json_t *report(const inv_graph *g, const inv_lora *o, const inv_lora_targets *added, inv_arena *a)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < added->n; i++) (void)json_array_append_new(rows, row(g, &added->at[i], a));
    return json_pack("{s:I, s:f, s:f, s:o}", "rank", (json_int_t)o->rank, "alpha", o->alpha, "dropout", o->dropout,
                     "adapters", rows);
}

inv_status inv_model_add_lora(inv_model *model, const inv_lora *given, char **json)
{
    inv_context *ctx = model->ctx;
    inv_lora o = {.size = sizeof o};
    inv_lora_targets added = {0};
    inv_arena a;
    if (json) *json = NULL;
    INV_CHECK(given, ctx, INV_E_ARG, "inv_model_add_lora: no options given");
    INV_TRY(inv__size_check(ctx, "options of adapters", given->size, sizeof o));
    INV_CHECK(given->size % sizeof(void *) == 0, ctx, INV_E_ABI, "options of adapters of %zu bytes end within a field",
              given->size); /* all are of 8 bytes */
    memcpy(&o, given, given->size);
    INV_CHECK(!model->forward, ctx, INV_E_ARG,
              "the model is the inverse direction of '%s', in memory: adapters go into the file's own direction",
              model->path);
    inv__arena_init(&a, ctx);
    inv_status s = inv_lora_add(model->graph, &o, &a, &added);
    if (s == INV_OK && json) s = inv_report_text(ctx, report(model->graph, &o, &added, &a), json);
    inv__arena_fini(&a);
    return s;
}
