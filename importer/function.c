/* SPDX-License-Identifier: Apache-2.0
 * Model-local functions: FunctionProto -> inv_function. The body is a graph of its own whose inputs and outputs
 * are the formal ones; attributes of the call are referred to by name and put in by the inlining pass. */
#include <string.h>

#include "core/edits/rewriting.h"
#include "importer/importer.h"

static inv_status formal_inputs(inv_loader *l, inv_scope *s, const Onnx__FunctionProto *p, const char *what)
{
    inv_graph *g = s->g;
    inv_shape unknown = inv_shape_unknown();
    for (size_t i = 0; i < p->n_input; i++) {
        bool taken;
        INV_TRY(inv_names_put(&s->names, p->input[i], (uint32_t)g->value.n, &taken));
        if (taken) {
            inv_defect(&l->defects, INV_E_GRAPH, "%s has two inputs '%s'", what, p->input[i]);
            continue;
        }
        inv_id v = inv_graph_value(g, p->input[i], INV_ROLE_INPUT, INV_DT_NONE, &unknown);
        if (v == INV_NONE) return g->failed;
        if (!inv_vec_push(&g->arena, &g->inputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status formal_outputs(inv_loader *l, inv_scope *s, const Onnx__FunctionProto *p, const char *what)
{
    inv_graph *g = s->g;
    for (size_t i = 0; i < p->n_output; i++) {
        uint32_t v = inv_names_get(&s->names, p->output[i]);
        if (v == INV_NONE) {
            inv_defect(&l->defects, INV_E_GRAPH, "%s: output '%s' is never produced", what, p->output[i]);
            continue;
        }
        inv_val(g, v)->is_output = true;
        if (!inv_vec_push(&g->arena, &g->outputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Field `attribute_proto` (default values), whether the schema at hand knows it or not. */
static inv_status defaults_list(inv_loader *l, const Onnx__FunctionProto *p, size_t *n, Onnx__AttributeProto ***out)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&onnx__function_proto__descriptor, INV_PB_FUNCTION_ATTRIBUTE_PROTO);
    *n = 0;
    *out = NULL;
    if (f) {
        memcpy(n, (const char *)p + f->quantifier_offset, sizeof *n);
        memcpy(out, (const char *)p + f->offset, sizeof *out);
        return INV_OK;
    }
    *out = INV_ARENA_NEW(&l->scratch, Onnx__AttributeProto *, p->base.n_unknown_fields + 1);
    if (!*out) return INV_E_NOMEM;
    for (unsigned i = 0; i < p->base.n_unknown_fields; i++) {
        const ProtobufCMessageUnknownField *u = &p->base.unknown_fields[i];
        if (u->tag != INV_PB_FUNCTION_ATTRIBUTE_PROTO || u->wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        /* The skeleton is in this field too (inv_wire_child); its length comes first. */
        size_t at = 0;
        uint64_t len;
        ProtobufCMessage *m = NULL;
        if (!inv_wire_varint(u->data, &at, u->len, &len) || len != u->len - at)
            return inv_fail(l->ctx, INV_E_INTERNAL, "function '%s': attribute defaults were not scanned", p->name);
        INV_TRY(inv_unpack_skeleton(&l->scratch, l->model->path, &onnx__attribute_proto__descriptor, u->data + at,
                                    (size_t)len, &m));
        (*out)[(*n)++] = (Onnx__AttributeProto *)(void *)m;
    }
    return INV_OK;
}

static inv_status import_defaults(inv_loader *l, inv_graph *g, const Onnx__FunctionProto *p, const char *what,
                                  inv_function *f)
{
    size_t n;
    Onnx__AttributeProto **list;
    INV_TRY(defaults_list(l, p, &n, &list));
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n + 1);
    if (!attr) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) INV_TRY(inv_attr_read(l, g, list[i], what, false, &attr[i]));
    f->defaults = attr;
    f->ndefaults = (uint32_t)n;
    return INV_OK;
}

static inv_status import_body(inv_loader *l, const Onnx__ModelProto *m, const Onnx__FunctionProto *p, const char *what,
                              inv_function *f)
{
    inv_graph *g = f->body;
    inv_scope s = {.g = g, .names.a = &l->scratch, .in_function = true};
    s.where = inv_arena_printf(&l->scratch, " in %s", what);
    if (!s.where) return INV_E_NOMEM;
    /* A function without imports of its own takes the model's. */
    if (p->n_opset_import) INV_TRY(inv_import_opsets(l, g, p->n_opset_import, p->opset_import, what));
    else INV_TRY(inv_import_opsets(l, g, m->n_opset_import, m->opset_import, what));
    INV_TRY(import_defaults(l, g, p, what, f));
    INV_TRY(formal_inputs(l, &s, p, what));
    INV_TRY(inv_import_nodes(l, &s, p->n_node, p->node));
    INV_TRY(formal_outputs(l, &s, p, what));
    if (g->failed != INV_OK) return g->failed;
    /* Sorting a body with defects would hide them behind a cycle that is none. */
    return l->defects.n ? INV_OK : inv_graph_sort(g);
}

/* Whether a rewriting made the function: the model's metadata say so. One that only has the domain is somebody's. */
static inv_status is_block(inv_loader *l, const inv_names *facts, const Onnx__FunctionProto *p, bool *block)
{
    static const char suffix[] = "_inverse";
    size_t n = p->name ? strlen(p->name) : 0, k = sizeof suffix - 1;
    *block = false;
    if (strcmp(inv_domain(p->domain), INV_OUTLINE_DOMAIN) != 0 || !n || p->n_attribute) return INV_OK;
    bool inverse = n > k && strcmp(p->name + n - k, suffix) == 0;
    const char *key =
        inv_arena_printf(&l->scratch, "%s.fn.%.*s", INV_OUTLINE_DOMAIN, (int)(inverse ? n - k : n), p->name);
    if (!key) return INV_E_NOMEM;
    *block = inv_names_get(facts, key) != INV_NONE;
    return INV_OK;
}

inv_status inv_import_functions(inv_loader *l, const Onnx__ModelProto *m)
{
    inv_graph *g = l->model->graph;
    inv_names names = {.a = &l->scratch}, facts = {.a = &l->scratch};
    for (size_t i = 0; i < m->n_metadata_props; i++) {
        bool again;
        const char *key = m->metadata_props[i]->key;
        if (key && strncmp(key, INV_OUTLINE_DOMAIN, strlen(INV_OUTLINE_DOMAIN)) == 0)
            INV_TRY(inv_names_put(&facts, key, 0, &again));
    }
    for (size_t i = 0; i < m->n_functions; i++) {
        const Onnx__FunctionProto *p = m->functions[i];
        const char *name = p->name ? p->name : "", *domain = inv_domain(p->domain);
        inv_function f = {.domain = inv_arena_strdup(&g->arena, domain), .name = inv_arena_strdup(&g->arena, name)};
        const char *what = inv_arena_printf(&l->scratch, "function '%s::%s'", domain, name);
        bool taken;
        if (!f.domain || !f.name || !what) return INV_E_NOMEM;
        INV_TRY(is_block(l, &facts, p, &f.block));
        INV_TRY(inv_names_put(&names, what, 0, &taken));
        if (taken) inv_defect(&l->defects, INV_E_GRAPH, "%s is defined twice (overloads are not supported)", what);
        INV_TRY(inv_graph_create(l->ctx, f.name, &f.body));
        inv_status s = import_body(l, m, p, what, &f);
        if (s == INV_OK && !inv_vec_push(&g->arena, &g->function, f)) s = INV_E_NOMEM;
        if (s != INV_OK) {
            inv_graph_destroy(f.body);
            return s;
        }
    }
    return INV_OK;
}
