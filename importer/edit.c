/* SPDX-License-Identifier: Apache-2.0
 * Nodes of the file that are written with other inputs, outputs or attributes, and entries that are left out: what
 * core/edits/inference.h says of the imported graph, found in the file by walking both side by side. Nodes of a graph
 * have the numbers that they have in the file. */
#include <string.h>

#include "importer/writer.h"

enum { ATTRIBUTE_GRAPH = 6 };

/* *nodes: those of the graph that stand in parts before. */
static inv_status locate_graph(inv_writer *w, const inv_graph *g, const inv_field *in, uint32_t node_field,
                               size_t *nodes);

/* --- where the edits are --- */

static inv_status add_edit(inv_writer *w, const inv_field *f, const inv_node_edit *node)
{
    return inv_vec_push(&w->l.scratch, &w->edit, ((inv_edit){f->body, node})) ? INV_OK : INV_E_NOMEM;
}

static inv_status locate_bodies(inv_writer *w, const inv_node *n, const inv_field *in)
{
    inv_field f, a;
    uint32_t k = 0;
    for (size_t pos = in->body; pos < in->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, in->end, &f));
        if (f.id != INV_PB_NODE_ATTRIBUTE || k >= n->nattr) continue;
        const inv_attr *attr = &n->attr[k++];
        size_t nodes = 0;
        if (attr->kind != INV_ATTR_GRAPH || !attr->graph) continue;
        for (size_t from = f.body; from < f.end; from = a.end) {
            INV_TRY(inv_writer_field(w, from, f.end, &a));
            if (a.id == ATTRIBUTE_GRAPH) INV_TRY(locate_graph(w, attr->graph, &a, INV_PB_GRAPH_NODE, &nodes));
        }
    }
    return INV_OK;
}

/* Of an initializer or a declaration: whether it goes. */
static inv_status locate_named(inv_writer *w, const inv_graph_edit *e, const inv_field *in)
{
    const uint32_t id = in->id == INV_PB_GRAPH_INITIALIZER ? INV_PB_TENSOR_NAME : 1;
    const char *name = NULL;
    inv_field f;
    for (size_t pos = in->body; pos < in->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, in->end, &f));
        if (f.id != id || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        name = inv_arena_strndup(&w->l.scratch, (const char *)w->impl->file.base + f.body, f.end - f.body);
        if (!name) return INV_E_NOMEM;
    }
    inv_id v = name ? inv_graph_find(e->g, name) : INV_NONE;
    return v != INV_NONE && e->drop[v] ? add_edit(w, in, NULL) : INV_OK;
}

static bool is_named(uint32_t id)
{
    return id == INV_PB_GRAPH_INITIALIZER || id == INV_PB_GRAPH_INPUT || id == INV_PB_GRAPH_OUTPUT ||
           id == INV_PB_GRAPH_VALUE_INFO;
}

/* Of a graph, or (node_field) of a function. */
static inv_status locate_graph(inv_writer *w, const inv_graph *g, const inv_field *in, uint32_t node_field,
                               size_t *nodes)
{
    const inv_graph_edit *e = inv_inference_of(&w->form, g);
    inv_field f;
    bool drops = false;
    for (size_t v = 0; e && v < g->value.n && !drops; v++) drops = e->drop[v];
    for (size_t pos = in->body; pos < in->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, in->end, &f));
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (f.id == node_field) {
            const size_t i = (*nodes)++;
            if (i >= g->node.n) continue;
            if (e && e->node[i]) INV_TRY(add_edit(w, &f, e->node[i]));
            INV_TRY(locate_bodies(w, inv_nod(g, (inv_id)i), &f));
        } else if (drops && node_field == INV_PB_GRAPH_NODE && is_named(f.id)) {
            INV_TRY(locate_named(w, e, &f));
        }
    }
    return INV_OK;
}

inv_status inv_writer_settle(inv_writer *w)
{
    const inv_graph *g = w->m->forward ? w->m->forward : w->m->graph;
    const size_t end = w->impl->file.nbytes;
    size_t function = 0, nodes = 0;
    inv_field f;
    INV_TRY(inv_inference_find(g, &w->l.scratch, &w->form));
    if (!inv_inference_any(&w->form)) return INV_OK;
    for (size_t pos = 0; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, end, &f));
        if (f.id == INV_PB_MODEL_GRAPH) INV_TRY(locate_graph(w, g, &f, INV_PB_GRAPH_NODE, &nodes));
        if (f.id != INV_PB_MODEL_FUNCTION || function >= g->function.n) continue;
        INV_TRY(locate_graph(w, g->function.at[function++].body, &f, INV_PB_FUNCTION_NODE, &(size_t){0}));
    }
    return INV_OK;
}

const inv_edit *inv_edit_at(const inv_writer *w, size_t body)
{
    size_t low = 0, high = w->edit.n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (w->edit.at[middle].body < body) low = middle + 1;
        else high = middle;
    }
    return low < w->edit.n && w->edit.at[low].body == body ? &w->edit.at[low] : NULL;
}

/* --- writing them --- */

/* Whether field f of a node is the attribute that the edit replaces. */
inv_status inv_edit_replaces(inv_writer *w, const inv_node_edit *e, const inv_field *f, bool *replaces)
{
    inv_field a;
    *replaces = false;
    for (size_t pos = f->body; e->attr && pos < f->end; pos = a.end) {
        INV_TRY(inv_writer_field(w, pos, f->end, &a));
        if (a.id != INV_PB_ATTR_NAME || a.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        *replaces = a.end - a.body == strlen(e->attr) && !memcmp(w->impl->file.base + a.body, e->attr, a.end - a.body);
    }
    return INV_OK;
}

inv_status inv_put_edit_attr(inv_writer *w, const inv_node_edit *e)
{
    const inv_attr a = inv_attr_of_int(e->attr, e->value);
    return inv_put_attr(&w->model, INV_PB_NODE_ATTRIBUTE, &a);
}

static inv_status put_edited(inv_writer *w, const inv_field *node, const inv_node_edit *e)
{
    const ProtobufCMessageDescriptor *d = &onnx__node_proto__descriptor;
    uint32_t nin = 0, nout = 0;
    bool done = !e->attr, replaces;
    inv_field f;
    inv_mark m;
    INV_TRY(inv_put_open(&w->model, &m));
    for (size_t pos = node->body; pos < node->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, node->end, &f));
        if (f.id == INV_PB_NODE_INPUT && nin++ >= e->nin) continue;
        if (f.id == INV_PB_NODE_OUTPUT && nout++ >= e->nout) continue;
        replaces = false;
        if (f.id == INV_PB_NODE_ATTRIBUTE) INV_TRY(inv_edit_replaces(w, e, &f, &replaces));
        if (replaces && !done) INV_TRY(inv_put_edit_attr(w, e));
        if (!replaces) INV_TRY(inv_put_field(w, d, &f));
        done = done || replaces;
    }
    if (!done) INV_TRY(inv_put_edit_attr(w, e));
    return inv_put_close(&w->model, &m, node->id);
}

/* Input or output k of a node. */
static inv_status slot_name(inv_writer *w, const inv_field *node, uint32_t field, uint32_t k, inv_field *out)
{
    inv_field f;
    for (size_t pos = node->body; pos < node->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, node->end, &f));
        if (f.id != field || k--) continue;
        *out = f;
        return INV_OK;
    }
    return inv_fail(w->l.ctx, INV_E_INTERNAL, "'%s': a node has fewer inputs or outputs than before", w->m->path);
}

inv_status inv_put_passed(inv_writer *w, const inv_field *node, const inv_node_edit *e)
{
    const uint8_t *base = w->impl->file.base;
    inv_field from = {0}, to = {0};
    inv_mark m;
    for (uint32_t k = 0; e->pass >> k; k++) {
        if (!(e->pass >> k & 1)) continue;
        INV_TRY(slot_name(w, node, INV_PB_NODE_INPUT, !k ? 0 : k % 2 ? 3 : 4, &from));
        INV_TRY(slot_name(w, node, INV_PB_NODE_OUTPUT, k, &to));
        INV_TRY(inv_put_open(&w->model, &m));
        INV_TRY(inv_put(&w->model, base + from.at, from.end - from.at));
        INV_TRY(inv_put(&w->model, base + to.at, to.end - to.at));
        INV_TRY(inv_put_text(&w->model, INV_PB_NODE_OP_TYPE, "Identity"));
        INV_TRY(inv_put_close(&w->model, &m, node->id));
    }
    return INV_OK;
}

inv_status inv_put_edit(inv_writer *w, const inv_field *f, const inv_edit *e)
{
    if (!e->node) return INV_OK;
    if (!e->node->gone) INV_TRY(put_edited(w, f, e->node));
    return inv_put_passed(w, f, e->node);
}
