/* SPDX-License-Identifier: Apache-2.0
 * Where in the file the data are of parameters that are in Constant nodes and in bodies of control flow
 * (inv_impl.placed). */
#include <string.h>

#include "importer/importer.h"

typedef struct walk {
    inv_loader *l;
    const inv_names *keys;               /* graph's key + value's name -> index in inits */
    const ProtobufCMessageDescriptor *d; /* of the message at hand: a graph or a function */
    const char *key;
    size_t begin, end;
} walk;

/* The first entry of a text field that is not empty, or the last of one that may be there once; "". */
static inv_status text_in(inv_loader *l, size_t begin, size_t end, uint32_t id, bool first, const char **out)
{
    inv_field f;
    *out = "";
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_loader_field(l, pos, end, &f));
        if (f.id != id || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || (first && **out)) continue;
        *out = inv_arena_strndup(&l->scratch, (const char *)l->impl->file.base + f.body, f.end - f.body);
        if (!*out) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status place(const walk *w, const char *name, size_t at)
{
    inv_impl *impl = w->l->impl;
    const char *full = inv_arena_printf(&w->l->scratch, "%s%s", w->key, name);
    if (!full) return INV_E_NOMEM;
    uint32_t init = inv_names_get(w->keys, full);
    if (init == INV_NONE) return INV_OK;
    inv_file_place p = {at, init};
    return inv_vec_push(&impl->arena, &impl->placed, p) ? INV_OK : INV_E_NOMEM;
}

static inv_status walk_graph(const walk *w);

static inv_status walk_node(const walk *w, const inv_field *node)
{
    inv_loader *l = w->l;
    const char *out, *op, *name;
    inv_field f, t;
    INV_TRY(text_in(l, node->body, node->end, INV_PB_NODE_OUTPUT, true, &out));
    INV_TRY(text_in(l, node->body, node->end, INV_PB_NODE_OP_TYPE, false, &op));
    bool constant = strcmp(op, "Constant") == 0;
    for (size_t pos = node->body; pos < node->end; pos = f.end) {
        INV_TRY(inv_loader_field(l, pos, node->end, &f));
        if (f.id != INV_PB_NODE_ATTRIBUTE || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        INV_TRY(text_in(l, f.body, f.end, INV_PB_ATTR_NAME, false, &name));
        if (constant && !strcmp(name, "value_floats")) INV_TRY(place(w, out, f.body));
        for (size_t at = f.body; at < f.end; at = t.end) {
            INV_TRY(inv_loader_field(l, at, f.end, &t));
            if (t.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
            if (constant && t.id == INV_PB_ATTR_T) INV_TRY(place(w, out, t.body));
            if (t.id != INV_PB_ATTR_G) continue;
            const char *key =
                inv_arena_printf(&l->scratch, "%sb%zu:%s%zu:%s|", w->key, strlen(out), out, strlen(name), name);
            if (!key) return INV_E_NOMEM;
            INV_TRY(walk_graph(&(walk){l, w->keys, &onnx__graph_proto__descriptor, key, t.body, t.end}));
        }
    }
    return INV_OK;
}

/* As deep as messages may be nested (prescan.c). */
static inv_status walk_graph(const walk *w)
{
    bool function = w->d == &onnx__function_proto__descriptor;
    inv_field f;
    for (size_t pos = w->begin; pos < w->end; pos = f.end) {
        const char *name;
        INV_TRY(inv_loader_field(w->l, pos, w->end, &f));
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (f.id == (function ? (uint32_t)INV_PB_FUNCTION_NODE : (uint32_t)INV_PB_GRAPH_NODE))
            INV_TRY(walk_node(w, &f));
        if (function || f.id != INV_PB_GRAPH_INITIALIZER) continue;
        INV_TRY(text_in(w->l, f.body, f.end, INV_PB_TENSOR_NAME, false, &name));
        INV_TRY(place(w, name, f.body));
    }
    return INV_OK;
}

inv_status inv_place_weights(inv_loader *l, const inv_names *keys)
{
    size_t end = l->impl->file.nbytes;
    inv_field f;
    for (size_t pos = 0; pos < end; pos = f.end) {
        const char *domain, *name, *key = "m";
        INV_TRY(inv_loader_field(l, pos, end, &f));
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (f.id == INV_PB_MODEL_GRAPH)
            INV_TRY(walk_graph(&(walk){l, keys, &onnx__graph_proto__descriptor, key, f.body, f.end}));
        if (f.id != INV_PB_MODEL_FUNCTION) continue;
        INV_TRY(text_in(l, f.body, f.end, INV_PB_FUNCTION_DOMAIN, false, &domain));
        INV_TRY(text_in(l, f.body, f.end, INV_PB_FUNCTION_NAME, false, &name));
        domain = inv_domain(domain);
        key = inv_arena_printf(&l->scratch, "f%zu:%s%zu:%s|", strlen(domain), domain, strlen(name), name);
        if (!key) return INV_E_NOMEM;
        INV_TRY(walk_graph(&(walk){l, keys, &onnx__function_proto__descriptor, key, f.body, f.end}));
    }
    return INV_OK;
}

uint32_t inv_placed_at(const inv_impl *impl, size_t at)
{
    size_t low = 0, high = impl->placed.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (impl->placed.at[mid].at < at) low = mid + 1;
        else high = mid;
    }
    return low < impl->placed.n && impl->placed.at[low].at == at ? impl->placed.at[low].init : INV_NONE;
}
