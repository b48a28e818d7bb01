/* SPDX-License-Identifier: Apache-2.0
 * The model as JSON, from the imported graph alone: nothing is inferred, no shapes are bound. Model-local functions
 * that are called (from the graph or from each other) are looked into once each: their nodes count under `operators`
 * and `missing`, next to the calls. What is trainable is core/weights/trained.h's word; the path to the loss the
 * session's. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/op.h"
#include "core/weights/shared_weights.h"
#include "core/weights/trained.h"
#include "importer/view.h"

typedef inv_model_view view;
#define set inv_view_set
#define append inv_view_append
#define text inv_view_text

void inv_view_set(view *w, json_t *object, const char *key, json_t *v)
{
    if (json_object_set_new(object, key, v) != 0) w->failed = true;
}

void inv_view_append(view *w, json_t *array, json_t *v)
{
    if (json_array_append_new(array, v) != 0) w->failed = true;
}

/* JSON is UTF-8; names in a file need not be. */
static const char *clean(view *w, const char *s)
{
    json_t *probe = json_string(s);
    if (probe) {
        json_decref(probe);
        return s;
    }
    char *copy = inv_arena_strdup(&w->scratch, s);
    if (!copy) {
        w->failed = true;
        return "";
    }
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    return copy;
}

json_t *inv_view_words(view *w, const char *s)
{
    char spelled[1024];
    return json_string(inv_spell(w->ctx, s, spelled, sizeof spelled));
}

json_t *inv_view_text(view *w, const char *s) { return json_string(clean(w, s)); }

static json_t *shape_json(view *w, const inv_value *v)
{
    if (v->shape.rank < 0) return json_null();
    json_t *a = json_array();
    for (int i = 0; i < v->shape.rank; i++) {
        if (v->shape.dim[i] >= 0) append(w, a, json_integer(v->shape.dim[i]));
        else append(w, a, text(w, v->dim_param && v->dim_param[i] ? v->dim_param[i] : "?"));
    }
    return a;
}

static json_t *value_json(view *w, inv_id id)
{
    const inv_value *v = inv_val(w->g, id);
    json_t *o = json_object();
    set(w, o, "name", text(w, v->name));
    set(w, o, "dtype", text(w, v->type || v->dtype != INV_DT_NONE ? inv_value_type(v) : "?"));
    set(w, o, "shape", shape_json(w, v));
    if (inv_value_carried(v)) set(w, o, "carried", json_true()); /* written back, never computed with */
    return o;
}

static json_t *values_json(view *w, const inv_ids *ids)
{
    json_t *a = json_array();
    for (size_t i = 0; i < ids->n; i++) append(w, a, value_json(w, ids->at[i]));
    return a;
}

/* What the first module that reads it calls it, and what all do, where they are several. */
static void set_modules(view *w, json_t *o, const inv_value *v)
{
    if (!v->nalso) return;
    set(w, o, "module", text(w, v->also[0]));
    if (v->nalso == 1) return;
    json_t *all = json_array();
    for (uint32_t i = 0; i < v->nalso; i++) append(w, all, text(w, v->also[i]));
    set(w, o, "modules", all);
}

static json_t *initializers_json(view *w)
{
    json_t *a = json_array();
    for (size_t i = 0; i < w->g->inits.n; i++) {
        const inv_value *v = inv_val(w->g, w->g->inits.at[i]);
        const inv_untrained why = (inv_untrained)w->untrained[w->g->inits.at[i]];
        json_t *o = value_json(w, w->g->inits.at[i]);
        if (v->within) set(w, o, "in", text(w, v->within));
        else if (v->source != INV_NONE) set(w, o, "in", json_string("a Constant node"));
        set_modules(w, o, v);
        set(w, o, "bytes", json_integer((json_int_t)v->data.nbytes));
        set(w, o, "trainable", json_boolean(why == INV_TRAINED));
        if (why != INV_TRAINED) set(w, o, "reason", json_string(inv_untrained_key(why)));
        const uint8_t row = w->evidence[w->g->inits.at[i]];
        const bool other = why == INV_UNTRAINED_TIED || why == INV_UNTRAINED_NONFINITE;
        const char *text_of = v->type ? "no dense tensor" : other ? inv_untrained_text(why) : inv_evidence_text(row);
        set(w, o, "evidence", json_string(other ? inv_untrained_key(why) : inv_evidence_key(row)));
        set(w, o, "why", inv_view_words(w, text_of));
        append(w, a, o);
    }
    return a;
}

/* --- functions --- */

/* Bodies of control flow are inside each other at most as deep as messages may be (prescan.c). */
static void mark_called(view *w, const inv_graph *g, inv_ids *found)
{
    for (size_t i = 0; i < g->body.n; i++) mark_called(w, g->body.at[i], found);
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id f = inv_callee(&w->callees, inv_nod(g, g->order.at[i]));
        if (f == INV_NONE || w->called[f]) continue;
        w->called[f] = true;
        if (!inv_vec_push(&w->scratch, found, f)) w->failed = true;
    }
}

static inv_status find_called(view *w)
{
    inv_ids found = {0};
    INV_TRY(inv_callees_init(&w->callees, w->g, &w->scratch));
    w->called = INV_ARENA_NEW(&w->scratch, bool, w->g->function.n + 1);
    if (!w->called) return INV_E_NOMEM;
    mark_called(w, w->g, &found);
    for (size_t i = 0; i < found.n; i++) mark_called(w, w->g->function.at[found.at[i]].body, &found);
    return INV_OK;
}

/* --- operators --- */

static const char *node_name(view *w, const inv_graph *g, const char *prefix, const inv_node *n)
{
    const char *name = n->name;
    for (uint32_t i = 0; i < n->nout && !*name; i++)
        if (n->out[i] != INV_NONE) name = inv_val(g, n->out[i])->name;
    if (!*prefix) return name;
    name = inv_arena_printf(&w->scratch, "%s/%s", prefix, name);
    if (!name) w->failed = true;
    return name ? name : "";
}

static void add_missing(view *w, const inv_node *n, const char *name, const char *what)
{
    const char *key = inv_arena_printf(&w->scratch, "%s %s::%s", what, n->domain, n->op_type);
    if (!key) {
        w->failed = true;
        return;
    }
    key = clean(w, key);
    json_t *group = json_object_get(w->groups, key);
    if (!group) {
        group = json_object();
        set(w, group, "op", text(w, n->op_type));
        set(w, group, "domain", text(w, n->domain));
        set(w, group, "nodes", json_array());
        set(w, group, "what", json_string(what));
        append(w, w->missing, json_incref(group));
        set(w, w->groups, key, group);
    }
    append(w, json_object_get(group, "nodes"), text(w, name));
}

/* Nodes that compiling unrolls if it can (passes/front/unroll.c). */
static bool is_control(const inv_node *n)
{
    return inv_node_is(n, "If") || inv_node_is(n, "Loop") || inv_node_is(n, "Scan");
}

static void look_at(view *w, const inv_graph *g, const char *prefix, const char *label);

/* `label`: what the names of parameters in g begin with (weights.c). */
static void look_into(view *w, const inv_graph *g, const inv_node *n, const inv_attr *a, const char *node,
                      const char *label)
{
    uint32_t bodies = 0;
    for (uint32_t k = 0; k < n->nattr; k++) bodies += n->attr[k].kind == INV_ATTR_GRAPH;
    const char *inner = inv_arena_printf(&w->scratch, "%s%s%s%s%s", label, *label ? "/" : "", inv_node_called(g, n),
                                         bodies > 1 ? "/" : "", bodies > 1 ? a->name : "");
    if (!inner || inv_constants_look(w, a->graph, inner, true) != INV_OK) w->failed = true;
    else look_at(w, a->graph, node, inner);
}

/* Constants that are parameters are in no order. */
static void count_lifted(view *w, const inv_graph *g)
{
    json_int_t n = 0;
    for (size_t i = 0; i < g->node.n; i++) {
        const inv_node *c = inv_nod(g, (inv_id)i);
        n += inv_node_is(c, "Constant") && c->nout == 1 && c->out[0] != INV_NONE &&
             inv_val(g, c->out[0])->role == INV_ROLE_PARAM;
    }
    n += json_integer_value(json_object_get(w->operators, "Constant"));
    if (n) set(w, w->operators, "Constant", json_integer(n));
}

static void look_at(view *w, const inv_graph *g, const char *prefix, const char *label)
{
    count_lifted(w, g);
    for (size_t i = 0; i < g->order.n && !w->failed; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const char *name = node_name(w, g, prefix, n);
        const char *key = *n->domain && strcmp(n->domain, "ai.invonnx.ir") != 0
                              ? inv_arena_printf(&w->scratch, "%s::%s", n->domain, n->op_type)
                              : n->op_type;
        if (!key) {
            w->failed = true;
            return;
        }
        key = clean(w, key);
        set(w, w->operators, key, json_integer(json_integer_value(json_object_get(w->operators, key)) + 1));
        inv_traps_look(w, g, n, name);
        for (uint32_t k = 0; k < n->nattr; k++)
            if (n->attr[k].kind == INV_ATTR_GRAPH && n->attr[k].graph) look_into(w, g, n, &n->attr[k], name, label);
        if (inv_callee(&w->callees, n) != INV_NONE || is_control(n)) continue;
        if (!n->op) add_missing(w, n, name, "operator");
        else if (!n->op->lower && !n->op->grad && !(n->op->flags & INV_OP_NO_GRAD)) add_missing(w, n, name, "gradient");
    }
}

static json_t *opsets_json(view *w)
{
    json_t *o = json_object();
    for (size_t i = 0; i < w->g->opset.n; i++) {
        const inv_opset *s = &w->g->opset.at[i];
        set(w, o, *s->domain ? clean(w, s->domain) : "ai.onnx", json_integer(s->version));
    }
    return o;
}

/* Files with external data, as the model names them: relative to its folder. */
static json_t *data_files_json(view *w, const inv_impl *impl)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < impl->ext_name.n; i++)
        (void)json_array_append_new(list, text(w, impl->ext_name.at[i]));
    return list;
}

static inv_status describe_model(view *w, const inv_model *m)
{
    const inv_impl *impl = m->impl;
    size_t nf = w->g->function.n;
    INV_TRY(find_called(w));
    uint32_t *roles;
    uint8_t *untrained;
    INV_TRY(inv_param_roles(w->g, false, &w->scratch, &roles));
    INV_TRY(inv_trained_find(w->g, NULL, &w->scratch, &untrained));
    w->roles = roles;
    INV_TRY(inv_evidence_find(w->g, &w->scratch, &w->evidence));
    INV_TRY(inv_ties_find(w->g, NULL, untrained, &w->scratch, &w->ties));
    for (size_t i = 0; i < w->ties.n; i++) untrained[w->ties.at[i].copy] = INV_UNTRAINED_TIED;
    w->untrained = untrained;
    const char *producer = inv_arena_printf(&w->scratch, *impl->producer_version ? "%s %s" : "%s%s", impl->producer,
                                            impl->producer_version);
    if (!producer) return INV_E_NOMEM;
    set(w, w->root, "path", text(w, m->path));
    set(w, w->root, "data_files", data_files_json(w, impl));
    set(w, w->root, "ir_version", json_integer(impl->ir_version));
    set(w, w->root, "producer", text(w, producer));
    set(w, w->root, "opsets", opsets_json(w));
    set(w, w->root, "inputs", values_json(w, &w->g->inputs));
    set(w, w->root, "outputs", values_json(w, &w->g->outputs));
    set(w, w->root, "initializers", initializers_json(w));
    INV_TRY(inv_constants_look(w, w->g, "", false));
    look_at(w, w->g, "", "");
    for (size_t f = 0; f < nf; f++) {
        if (!w->called[f]) continue;
        INV_TRY(inv_constants_look(w, w->g->function.at[f].body, w->g->function.at[f].name, false));
        look_at(w, w->g->function.at[f].body, w->g->function.at[f].name, w->g->function.at[f].name);
    }
    INV_TRY(inv_traps_report(w));
    set(w, w->root, "constants", json_incref(w->constants));
    set(w, w->root, "operators", json_incref(w->operators));
    set(w, w->root, "missing", json_incref(w->missing));
    set(w, w->root, "traps", json_incref(w->traps));
    return w->failed ? inv_fail(w->ctx, INV_E_NOMEM, "out of memory while describing '%s'", m->path) : INV_OK;
}

/* The text belongs to the context's allocator, because inv_free gives it back there. */
static inv_status dump(view *w, char **json)
{
    char *s = json_dumps(w->root, JSON_INDENT(2));
    if (!s) return inv_fail(w->ctx, INV_E_NOMEM, "out of memory");
    size_t n = strlen(s) + 1;
    *json = inv_alloc(w->ctx, n);
    if (*json) memcpy(*json, s, n);
    free(s);
    return *json ? INV_OK : INV_E_NOMEM;
}

inv_status inv_model_inspect(inv_model *m, char **json)
{
    INV_OBJECT(m);
    INV_GIVEN(m->ctx, json);
    view w = {.ctx = m->ctx, .m = m, .g = m->graph};
    *json = NULL;
    inv_arena_init(&w.scratch, m->ctx);
    w.root = json_object();
    w.operators = json_object();
    w.missing = json_array();
    w.groups = json_object();
    w.traps = json_array();
    w.trap_nodes = json_object();
    w.constants = json_array();
    w.failed = !w.root || !w.operators || !w.missing || !w.groups || !w.traps || !w.trap_nodes || !w.constants;
    inv_status s = w.failed ? inv_fail(m->ctx, INV_E_NOMEM, "out of memory") : describe_model(&w, m);
    if (s == INV_OK) s = dump(&w, json);
    json_t *all[] = {w.root, w.operators, w.missing, w.groups, w.traps, w.trap_nodes, w.constants};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) json_decref(all[i]);
    inv_arena_fini(&w.scratch);
    return s;
}
