/* SPDX-License-Identifier: Apache-2.0
 * For which module of the model each node computes, as the file tells: PyTorch's newer exporter writes the path of
 * modules into the node's metadata; others make names of nodes of it, with slashes. Read from the file, because older
 * schemas do not know the fields.
 * gives: inv_node.module, inv_graph.lists and gone, inv_value.also (core/module_names.h), padding. */
#include <stdlib.h>
#include <string.h>

#include "core/module_names.h"
#include "core/node.h"
#include "importer/importer.h"

enum { NODE_METADATA = 9 };

/* The last entry but one of a Python list of texts, such as "['', 'a', 'a.b', 'linear']": behind the modules, from the
 * outermost one on, stands the operation itself. */
static inv__span of_scopes(inv__span list)
{
    inv__span last = {0}, before = {0};
    const char *end = list.text + list.n;
    for (const char *p = list.text; p < end; p++) {
        if (*p != '\'' && *p != '"') continue;
        const char *close = memchr(p + 1, *p, (size_t)(end - p - 1));
        if (!close) break;
        before = last;
        last = (inv__span){p + 1, (size_t)(close - p - 1)};
        p = close;
    }
    return before;
}

/* The same of "NAME: CLASS/NAME: CLASS/...", as the exporter has written besides, and alone before it wrote lists. */
static inv__span of_namespace(inv__span path)
{
    inv__span last = {0}, before = {0};
    const char *end = path.text + path.n;
    for (const char *p = path.text; p < end;) {
        const char *slash = memchr(p, '/', (size_t)(end - p)), *stop = slash ? slash : end;
        const char *colon = memchr(p, ':', (size_t)(stop - p));
        before = last;
        last = (inv__span){p, (size_t)((colon ? colon : stop) - p)};
        p = stop + 1;
    }
    return before;
}

/* "/a/a.0/b.1/MatMul" is of module "a.0.b.1": a part that begins with the whole part before it, as the children of
 * PyTorch's containers do, takes its place. NULL: the name has no path. */
static const char *of_name(inv_arena *a, const char *name)
{
    if (*name == '/') name++;
    const char *last = strrchr(name, '/');
    char *to = last && last > name ? inv__arena_strndup(a, name, (size_t)(last - name)) : NULL;
    if (!to) return NULL;
    size_t n = 0, at = 0; /* written so far; where the last part begins there */
    for (const char *p = to; p < to + (last - name);) {
        const size_t length = strcspn(p, "/"), before = n - at;
        const bool again = n && length > before && !memcmp(to + at, p, before) && p[before] == '.';
        if (again) n = at;
        else if (n) to[n++] = '.';
        at = n;
        memmove(to + n, p, length);
        n += length;
        p += length + (p[length] == '/');
    }
    to[n] = 0;
    return to;
}

static const char *module_of(inv__loader *l, const inv__field *node, const char *name)
{
    inv_arena *a = &l->model->graph->arena;
    const inv__span scopes = inv__entry(l->impl, node, NODE_METADATA, "pkg.torch.onnx.name_scopes");
    inv__span s = of_scopes(scopes);
    if (!scopes.n) s = of_namespace(inv__entry(l->impl, node, NODE_METADATA, "namespace"));
    while (s.n && *s.text == ' ') s = (inv__span){s.text + 1, s.n - 1};
    return s.text ? inv__arena_strndup(a, s.text, s.n) : of_name(a, name);
}

/* PyTorch's newer exporter writes the call that became a node, "...aten.embedding.default](args = (%p_e_weight, %x, 0),
 * ...": the third argument is the row of padding. Calls that differ have none. */
static inv_status read_padding(inv__loader *l, const inv__field *node, const inv_node *n)
{
    static const char call[] = "aten.embedding.default](args = (";
    inv_value *v = inv_node_is(n, "Gather") && n->in[0] != INV_NONE ? inv_val(l->model->graph, n->in[0]) : NULL;
    if (!v || v->role != INV_ROLE_PARAM) return INV_OK;
    const inv__span s = inv__entry(l->impl, node, NODE_METADATA, "pkg.torch.onnx.fx_node");
    const char *text = s.n ? inv__arena_strndup(&l->scratch, s.text, s.n) : "";
    if (!text) return INV_E_NOMEM;
    char *p = strstr(text, call);
    if (!p) return INV_OK;
    p += sizeof call - 1;
    p[strcspn(p, ")")] = '\0';
    for (int k = 0; k < 2 && p; k++)
        if ((p = strchr(p, ','))) p++;
    const int64_t row = p ? strtoll(p, NULL, 10) : -1;
    v->padding = v->padding_told && v->padding != row ? -1 : row;
    v->padding_told = true;
    return INV_OK;
}

inv_status inv__import_modules(inv__loader *l)
{
    inv_graph *g = l->model->graph;
    const inv__impl *impl = l->impl;
    const uint8_t *base = impl->file.base;
    inv__field graph = {0}, f;
    inv_id *at = INV_ARENA_NEW(&l->scratch, inv_id, g->node.n + 1), source = 0;
    if (!at) return INV_E_NOMEM;
    g->lists = impl->nparam > 0;
    g->gone = impl->gone.at;
    g->ngone = impl->gone.n;
    memset(at, 0xff, g->node.n * sizeof *at);
    for (size_t i = 0; i < g->node.n; i++)
        if (inv_nod(g, (inv_id)i)->source < g->node.n) at[inv_nod(g, (inv_id)i)->source] = (inv_id)i;
    for (size_t pos = 0; pos < impl->file.nbytes && !inv__wire_field(base, pos, impl->file.nbytes, &f); pos = f.end)
        if (f.id == INV__MODEL_GRAPH) graph = f;
    for (size_t pos = graph.body; pos < graph.end && !inv__wire_field(base, pos, graph.end, &f); pos = f.end) {
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || f.id != INV__GRAPH_NODE) continue;
        const inv_id n = source < g->node.n ? at[source] : INV_NONE;
        source++;
        if (n == INV_NONE) continue;
        inv_nod(g, n)->module = module_of(l, &f, inv_nod(g, n)->name);
        INV_TRY(read_padding(l, &f, inv_nod(g, n)));
    }
    return g->arena.failed ? INV_E_NOMEM : inv_module_names_find(g, &l->scratch, NULL);
}
