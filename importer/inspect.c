/* SPDX-License-Identifier: Apache-2.0
 * The model as JSON, from the imported graph alone: nothing is inferred, no shapes are bound. Model-local functions
 * that are called (from the graph or from each other) are looked into once each: their nodes count under `operators`
 * and `missing`, next to the calls. Trainable is by type and role only; the path to the loss is the session's. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/op.h"
#include "importer/importer.h"

typedef struct view {
    inv_context *ctx;
    const inv_graph *g;
    inv_arena scratch;
    bool *called;         /* per function */
    bool **fstat;         /* per function and formal input: becomes a running statistic inside */
    bool *stat, *other;   /* per value of g: used as running statistic; used as something else */
    json_t *root, *operators, *missing, *groups, *traps, *eval_bn;
    bool failed;          /* jansson had no memory */
} view;

static void set(view *w, json_t *object, const char *key, json_t *v)
{
    if (json_object_set_new(object, key, v) != 0) w->failed = true;
}

static void append(view *w, json_t *array, json_t *v)
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
    char *copy = inv__arena_strdup(&w->scratch, s);
    if (!copy) {
        w->failed = true;
        return "";
    }
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    return copy;
}

static json_t *text(view *w, const char *s)
{
    return json_string(clean(w, s));
}

static json_t *shape_json(view *w, const inv_value *v)
{
    if (v->shape.rank < 0) return json_null();
    json_t *a = json_array();
    for (int i = 0; i < v->shape.rank; i++) {
        if (v->shape.dim[i] >= 0)
            append(w, a, json_integer(v->shape.dim[i]));
        else
            append(w, a, text(w, v->dim_param && v->dim_param[i] ? v->dim_param[i] : "?"));
    }
    return a;
}

static json_t *value_json(view *w, inv_id id)
{
    const inv_value *v = inv_val(w->g, id);
    json_t *o = json_object();
    set(w, o, "name", text(w, v->name));
    set(w, o, "dtype", json_string(v->dtype == INV_DT_NONE ? "?" : inv_dtype_name(v->dtype)));
    set(w, o, "shape", shape_json(w, v));
    return o;
}

static json_t *values_json(view *w, const inv_ids *ids)
{
    json_t *a = json_array();
    for (size_t i = 0; i < ids->n; i++) append(w, a, value_json(w, ids->at[i]));
    return a;
}

static json_t *initializers_json(view *w)
{
    json_t *a = json_array();
    for (size_t i = 0; i < w->g->inits.n; i++) {
        const inv_value *v = inv_val(w->g, w->g->inits.at[i]);
        const char *why = !inv_dtype_is_float(v->dtype)          ? "not of a floating-point type"
                          : v->shape.rank == 0                   ? "a scalar"
                          : w->stat[w->g->inits.at[i]]           ? "a running statistic of batch normalization"
                                                                 : NULL;
        json_t *o = value_json(w, w->g->inits.at[i]);
        set(w, o, "bytes", json_integer((json_int_t)v->data.nbytes));
        set(w, o, "trainable", json_boolean(!why));
        if (why) set(w, o, "why", json_string(why));
        append(w, a, o);
    }
    return a;
}

/* --- functions --- */

static inv_id function_of(const inv_graph *g, const inv_node *n)
{
    for (size_t i = 0; i < g->function.n; i++)
        if (!strcmp(g->function.at[i].name, n->op_type) && !strcmp(g->function.at[i].domain, n->domain))
            return (inv_id)i;
    return INV_NONE;
}

static void mark_called(view *w, const inv_graph *g, bool *again)
{
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id f = function_of(w->g, inv_nod(g, g->order.at[i]));
        if (f == INV_NONE || w->called[f]) continue;
        w->called[f] = true;
        *again = true;
    }
}

static bool is_op(const inv_node *n, const char *name)
{
    return !strcmp(n->op_type, name) && !*n->domain;
}

/* Against the order, so that Identity nodes (which exporters put after merged initializers) are passed. */
static void mark_stats(const view *w, const inv_graph *g, bool *stat, bool *other)
{
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        inv_id f = function_of(w->g, n);
        bool bn = f == INV_NONE && is_op(n, "BatchNormalization"), id = f == INV_NONE && is_op(n, "Identity");
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] == INV_NONE) continue;
            bool through = id && n->nout && n->out[0] != INV_NONE;
            bool s = (bn && k >= 3) || (through && stat[n->out[0]]) ||
                     (f != INV_NONE && k < w->g->function.at[f].body->inputs.n && w->fstat[f][k]);
            if (s) stat[n->in[k]] = true;
            if (through ? other[n->out[0]] : !s) other[n->in[k]] = true;
        }
    }
}

static inv_status find_stats(view *w)
{
    size_t nf = w->g->function.n;
    bool again = true;
    for (size_t f = 0; f < nf; f++) {
        w->fstat[f] = INV_ARENA_NEW(&w->scratch, bool, w->g->function.at[f].body->inputs.n + 1);
        if (!w->fstat[f]) return INV_E_NOMEM;
    }
    for (size_t round = 0; again && round <= nf; round++) {
        again = false;
        for (size_t f = 0; f < nf; f++) {
            const inv_graph *body = w->g->function.at[f].body;
            bool *stat = INV_ARENA_NEW(&w->scratch, bool, body->value.n + 1);
            bool *other = INV_ARENA_NEW(&w->scratch, bool, body->value.n + 1);
            if (!stat || !other) return INV_E_NOMEM;
            mark_stats(w, body, stat, other);
            for (size_t i = 0; i < body->inputs.n; i++) {
                if (!stat[body->inputs.at[i]] || w->fstat[f][i]) continue;
                w->fstat[f][i] = again = true;
            }
        }
    }
    mark_stats(w, w->g, w->stat, w->other);
    return INV_OK;
}

/* --- operators --- */

static const char *node_name(view *w, const inv_graph *g, const char *prefix, const inv_node *n)
{
    const char *name = n->name;
    for (uint32_t i = 0; i < n->nout && !*name; i++)
        if (n->out[i] != INV_NONE) name = inv_val(g, n->out[i])->name;
    if (!*prefix) return name;
    name = inv__arena_printf(&w->scratch, "%s/%s", prefix, name);
    if (!name) w->failed = true;
    return name ? name : "";
}

static void add_missing(view *w, const inv_node *n, const char *name, const char *what)
{
    const char *key = inv__arena_printf(&w->scratch, "%s %s::%s", what, n->domain, n->op_type);
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

static void look_at(view *w, const inv_graph *g, const char *prefix)
{
    for (size_t i = 0; i < g->order.n && !w->failed; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const char *name = node_name(w, g, prefix, n);
        const char *key = *n->domain && strcmp(n->domain, "ai.invonnx.ir") != 0
                              ? inv__arena_printf(&w->scratch, "%s::%s", n->domain, n->op_type)
                              : n->op_type;
        if (!key) {
            w->failed = true;
            return;
        }
        key = clean(w, key);
        set(w, w->operators, key, json_integer(json_integer_value(json_object_get(w->operators, key)) + 1));
        if (is_op(n, "BatchNormalization") && inv_graph_opset(g, "") >= 14 && !inv_attr_int(n, "training_mode", 0))
            append(w, w->eval_bn, text(w, name));
        if (function_of(w->g, n) != INV_NONE) continue;
        if (!n->op)
            add_missing(w, n, name, "operator");
        else if (!n->op->lower && !n->op->grad && !(n->op->flags & INV_OP_NO_GRAD))
            add_missing(w, n, name, "gradient");
    }
}

static void find_traps(view *w)
{
    for (size_t i = 0; i < w->g->inits.n; i++) {
        inv_id v = w->g->inits.at[i];
        if (!w->stat[v] || !w->other[v]) continue;
        json_t *o = json_object();
        set(w, o, "kind", json_string("merged_initializer"));
        set(w, o, "initializer", text(w, inv_val(w->g, v)->name));
        set(w, o, "text",
            json_string("used both as a running statistic of batch normalization and as something else: the exporter "
                        "has merged tensors that were equal; export again without optimization"));
        append(w, w->traps, o);
    }
    if (!json_array_size(w->eval_bn)) return;
    json_t *o = json_object();
    set(w, o, "kind", json_string("batch_norm_eval"));
    set(w, o, "nodes", json_incref(w->eval_bn));
    set(w, o, "text",
        json_string("exported in evaluation mode: training uses the stored statistics and leaves them as they are"));
    append(w, w->traps, o);
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

static inv_status describe(view *w, const inv_model *m)
{
    const inv__impl *impl = m->impl;
    size_t nf = w->g->function.n, nv = w->g->value.n;
    bool again = true;
    w->called = INV_ARENA_NEW(&w->scratch, bool, nf + 1);
    w->fstat = INV_ARENA_NEW(&w->scratch, bool *, nf + 1);
    w->stat = INV_ARENA_NEW(&w->scratch, bool, nv + 1);
    w->other = INV_ARENA_NEW(&w->scratch, bool, nv + 1);
    if (!w->called || !w->fstat || !w->stat || !w->other) return INV_E_NOMEM;
    INV_TRY(find_stats(w));
    mark_called(w, w->g, &again);
    while (again) {
        again = false;
        for (size_t f = 0; f < nf; f++)
            if (w->called[f]) mark_called(w, w->g->function.at[f].body, &again);
    }
    const char *producer = inv__arena_printf(&w->scratch, *impl->producer_version ? "%s %s" : "%s%s", impl->producer,
                                             impl->producer_version);
    if (!producer) return INV_E_NOMEM;
    set(w, w->root, "path", text(w, m->path));
    set(w, w->root, "ir_version", json_integer(impl->ir_version));
    set(w, w->root, "producer", text(w, producer));
    set(w, w->root, "opsets", opsets_json(w));
    set(w, w->root, "inputs", values_json(w, &w->g->inputs));
    set(w, w->root, "outputs", values_json(w, &w->g->outputs));
    set(w, w->root, "initializers", initializers_json(w));
    look_at(w, w->g, "");
    for (size_t f = 0; f < nf; f++)
        if (w->called[f]) look_at(w, w->g->function.at[f].body, w->g->function.at[f].name);
    find_traps(w);
    set(w, w->root, "operators", json_incref(w->operators));
    set(w, w->root, "missing", json_incref(w->missing));
    set(w, w->root, "traps", json_incref(w->traps));
    return w->failed ? inv__fail(w->ctx, INV_E_NOMEM, "out of memory while describing '%s'", m->path) : INV_OK;
}

/* The text belongs to the context's allocator, because inv_free gives it back there. */
static inv_status dump(view *w, char **json)
{
    char *s = json_dumps(w->root, JSON_INDENT(2));
    if (!s) return inv__fail(w->ctx, INV_E_NOMEM, "out of memory");
    size_t n = strlen(s) + 1;
    *json = inv__alloc(w->ctx, n);
    if (*json) memcpy(*json, s, n);
    free(s);
    return *json ? INV_OK : INV_E_NOMEM;
}

inv_status inv_model_inspect(inv_model *m, char **json)
{
    view w = {.ctx = m->ctx, .g = m->graph};
    *json = NULL;
    inv__arena_init(&w.scratch, m->ctx);
    w.root = json_object();
    w.operators = json_object();
    w.missing = json_array();
    w.groups = json_object();
    w.traps = json_array();
    w.eval_bn = json_array();
    w.failed = !w.root || !w.operators || !w.missing || !w.groups || !w.traps || !w.eval_bn;
    inv_status s = w.failed ? inv__fail(m->ctx, INV_E_NOMEM, "out of memory") : describe(&w, m);
    if (s == INV_OK) s = dump(&w, json);
    json_t *all[] = {w.root, w.operators, w.missing, w.groups, w.traps, w.eval_bn};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) json_decref(all[i]);
    inv__arena_fini(&w.scratch);
    return s;
}
