/* SPDX-License-Identifier: Apache-2.0
 * AttributeProto -> inv_attr. Kinds that no operator here reads (sparse tensors, types) are kept by name. */
#include <string.h>

#include "importer/importer.h"

/* Files of IR version 1 leave the type out: the field that is set tells. */
static int attr_type(const Onnx__AttributeProto *p)
{
    if (p->has_type && (int)p->type != INV_PB_TYPE_UNDEFINED) return (int)p->type;
    if (p->has_f) return INV_PB_TYPE_FLOAT;
    if (p->has_i) return INV_PB_TYPE_INT;
    if (p->has_s) return INV_PB_TYPE_STRING;
    if (p->t) return INV_PB_TYPE_TENSOR;
    if (p->g) return INV_PB_TYPE_GRAPH;
    if (p->n_floats) return INV_PB_TYPE_FLOATS;
    if (p->n_ints) return INV_PB_TYPE_INTS;
    if (p->n_strings) return INV_PB_TYPE_STRINGS;
    return INV_PB_TYPE_UNDEFINED;
}

static inv_status read_lists(inv_graph *g, const Onnx__AttributeProto *p, inv_attr *out)
{
    if (out->kind == INV_ATTR_INTS) {
        int64_t *v = INV_ARENA_NEW(&g->arena, int64_t, p->n_ints + 1);
        if (!v) return INV_E_NOMEM;
        if (p->n_ints) memcpy(v, p->ints, p->n_ints * sizeof *v);
        out->ints = v;
        out->n = p->n_ints;
    } else if (out->kind == INV_ATTR_FLOATS) {
        double *v = INV_ARENA_NEW(&g->arena, double, p->n_floats + 1);
        if (!v) return INV_E_NOMEM;
        for (size_t i = 0; i < p->n_floats; i++) v[i] = (double)p->floats[i];
        out->floats = v;
        out->n = p->n_floats;
    } else {
        out->strings = INV_ARENA_NEW(&g->arena, const char *, p->n_strings + 1);
        if (!out->strings) return INV_E_NOMEM;
        for (size_t i = 0; i < p->n_strings; i++) {
            const ProtobufCBinaryData *b = &p->strings[i];
            out->strings[i] = inv_arena_strndup(&g->arena, b->len ? (const char *)b->data : "", b->len);
            if (!out->strings[i]) return INV_E_NOMEM;
        }
        out->n = p->n_strings;
    }
    return INV_OK;
}

static inv_status read_tensor(inv_loader *l, inv_graph *g, const Onnx__AttributeProto *p, const char *what,
                              inv_attr *out)
{
    if (!p->t) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: attribute '%s' is a tensor, but has none", what, out->name);
        return INV_OK;
    }
    /* Cut, so that a long name is not copied for each attribute. */
    const char *label = inv_arena_printf(&l->scratch, "attribute '%.200s' of %.500s", out->name, what);
    if (!label) return INV_E_NOMEM;
    return inv_tensor_read(l, &g->arena, p->t, label, &out->tensor);
}

static inv_status read_value(inv_loader *l, inv_graph *g, const Onnx__AttributeProto *p, const char *what,
                             inv_attr *out)
{
    switch (attr_type(p)) {
    case INV_PB_TYPE_FLOAT:
        out->kind = INV_ATTR_FLOAT;
        out->f = (double)p->f;
        return INV_OK;
    case INV_PB_TYPE_INT:
        out->kind = INV_ATTR_INT;
        out->i = p->i;
        return INV_OK;
    case INV_PB_TYPE_STRING:
        out->kind = INV_ATTR_STRING;
        out->s = inv_arena_strndup(&g->arena, p->s.len ? (const char *)p->s.data : "", p->s.len);
        return out->s ? INV_OK : INV_E_NOMEM;
    case INV_PB_TYPE_TENSOR: out->kind = INV_ATTR_TENSOR; return out->ref ? INV_OK : read_tensor(l, g, p, what, out);
    case INV_PB_TYPE_GRAPH: out->kind = INV_ATTR_GRAPH; return INV_OK;
    case INV_PB_TYPE_INTS: out->kind = INV_ATTR_INTS; return read_lists(g, p, out);
    case INV_PB_TYPE_FLOATS: out->kind = INV_ATTR_FLOATS; return read_lists(g, p, out);
    case INV_PB_TYPE_STRINGS: out->kind = INV_ATTR_STRINGS; return read_lists(g, p, out);
    default: out->kind = INV_ATTR_OTHER; return INV_OK;
    }
}

inv_status inv_attr_read(inv_loader *l, inv_graph *g, const Onnx__AttributeProto *p, const char *what, bool in_function,
                         inv_attr *out)
{
    *out = (inv_attr){.kind = INV_ATTR_OTHER};
    if (!p->name || !*p->name) inv_defect(&l->defects, INV_E_GRAPH, "%s: has an attribute without a name", what);
    out->name = inv_arena_strdup(&g->arena, p->name ? p->name : "");
    if (!out->name) return INV_E_NOMEM;
    if (p->ref_attr_name && *p->ref_attr_name) {
        if (!in_function)
            inv_defect(&l->defects, INV_E_GRAPH,
                       "%s: attribute '%s' refers to '%s' of a function call, but is not inside a function", what,
                       out->name, p->ref_attr_name);
        out->ref = inv_arena_strdup(&g->arena, p->ref_attr_name);
        if (!out->ref) return INV_E_NOMEM;
    }
    return read_value(l, g, p, what, out);
}
