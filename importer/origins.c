/* SPDX-License-Identifier: Apache-2.0
 * What the file tells of the program that it was exported from (core/origin.h): the modules of its nodes, and whether
 * somebody has changed it since. */
#include "core/origin.h"

#include <string.h>

#include "core/node.h"
#include "importer/importer.h"

enum { NODE_METADATA = 9, MODEL_METADATA = 14, ENTRY_KEY = 1 };

typedef struct reader {
    inv__loader *l;
    inv_graph *g;
    inv__names scopes;  /* of all nodes, as they stand there */
    inv__names modules; /* that initializers, and what has taken their places, are called after */
    bool any, foreign;  /* nodes that the older exporter has named; others that it has not */
    bool newer;         /* nodes that the newer one has */
} reader;

/* --- newer exporter: "['', 'enc', 'enc.layers.0', 'linear']", modules from the outermost one on, and the node --- */

static inv_status listed_scope(reader *r, inv__span list, const char **out)
{
    const char *name[2] = {NULL, NULL};
    for (const char *p = list.text, *end = list.text + list.n; p < end;) {
        const char *from = memchr(p, '\'', (size_t)(end - p));
        const char *to = from ? memchr(from + 1, '\'', (size_t)(end - from - 1)) : NULL;
        if (!to) break;
        name[0] = name[1];
        name[1] = inv__arena_strndup(&r->l->impl->arena, from + 1, (size_t)(to - from - 1));
        if (!name[1]) return INV_E_NOMEM;
        p = to + 1;
    }
    char *call = name[0] ? strchr(name[0], '@') : NULL; /* "enc@1": the second call */
    if (call) *call = '\0';
    *out = name[0];
    return INV_OK;
}

/* --- older exporter: "/enc/layers.0/linear1/MatMul" --- */

/* "h_1": the second call of h, if h has nodes, and no parameter is called after a module h_1. */
static size_t without_call(const reader *r, char *path, size_t n)
{
    size_t k = n;
    while (k && path[k - 1] >= '0' && path[k - 1] <= '9') k--;
    if (k == n || k < 2 || path[k - 1] != '_' || inv__names_get(&r->modules, path) != INV_NONE) return n;
    const char kept = path[k - 1];
    path[k - 1] = '\0';
    if (inv__names_get(&r->scopes, path) != INV_NONE) return k - 1;
    path[k - 1] = kept;
    return n;
}

/* Module paths join the names with dots; a list's or a sequence's own name comes twice: "/c/c.0/Conv". */
static inv_status called_scope(reader *r, const char *label, bool calls, const char **out)
{
    char *path = INV_ARENA_NEW(&r->l->impl->arena, char, strlen(label) + 1);
    if (!path) return INV_E_NOMEM;
    size_t n = 0, last = 0; /* last: where the last name begins */
    for (const char *p = label + 1, *slash; (slash = strchr(p, '/')) != NULL; p = slash + 1) {
        const size_t len = (size_t)(slash - p);
        if (n > last && len > n - last && !strncmp(p, path + last, n - last) && p[n - last] == '.') n = last;
        else if (n) path[n++] = '.';
        last = n;
        memcpy(path + n, p, len);
        path[n += len] = '\0';
        if (calls) n = without_call(r, path, n);
        if (calls) continue;
        bool taken;
        INV_TRY(inv__names_put(&r->scopes, inv__arena_strdup(&r->l->scratch, path), 0, &taken));
    }
    *out = path;
    return r->l->scratch.failed ? INV_E_NOMEM : INV_OK;
}

static inv_status note_module(reader *r, const char *name)
{
    bool taken;
    for (const char *dot = name; (dot = strchr(dot + 1, '.')) != NULL;) {
        const char *module = inv__arena_strndup(&r->l->scratch, name, (size_t)(dot - name));
        if (!module) return INV_E_NOMEM;
        INV_TRY(inv__names_put(&r->modules, module, 0, &taken));
    }
    return INV_OK;
}

/* What is called after modules, and what the nodes are called. */
static inv_status look_at_names(reader *r)
{
    const inv_graph *g = r->g;
    const char *ignored;
    for (size_t i = 0; i < g->inits.n; i++) INV_TRY(note_module(r, inv_val(g, g->inits.at[i])->name));
    for (size_t i = 0; i < g->node.n; i++) {
        const inv_node *n = inv_nod(g, (inv_id)i);
        const bool identity = inv_node_is(n, "Identity") && n->nout && n->out[0] != INV_NONE;
        const char *name = n->name ? n->name : "";
        if (identity && *inv_val(g, n->out[0])->name != '/') {
            INV_TRY(note_module(r, inv_val(g, n->out[0])->name));
        } else if (*name == '/') {
            r->any = true;
            INV_TRY(called_scope(r, name, false, &ignored));
        } else r->foreign = r->foreign || !inv_node_is(n, "Constant");
        r->newer = r->newer || !strncmp(name, "node_", 5);
    }
    return INV_OK;
}

/* --- both --- */

/* The simplifier onnxsim signs what it has changed. */
static bool is_signed(const inv__impl *impl)
{
    const uint8_t *base = impl->file.base;
    inv__field f, e;
    for (size_t pos = 0; pos < impl->file.nbytes && !inv__wire_field(base, pos, impl->file.nbytes, &f); pos = f.end) {
        if (f.id != MODEL_METADATA || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        for (size_t at = f.body; at < f.end && !inv__wire_field(base, at, f.end, &e); at = e.end)
            if (e.id == ENTRY_KEY && e.end - e.body > 8 && !memcmp(base + e.body, "onnxsim.", 8)) return true;
    }
    return false;
}

inv_status inv__import_origin(inv__loader *l, const inv__field *graph, inv_origin *o)
{
    inv_graph *g = l->model->graph;
    inv__impl *impl = l->impl;
    reader r = {.l = l, .g = g, .scopes.a = &l->scratch, .modules.a = &l->scratch};
    const char **scope = INV_ARENA_NEW(&impl->arena, const char *, g->node.n + 1);
    bool told = false, types = false;
    inv__field f;
    uint32_t source = 0;
    if (!scope) return INV_E_NOMEM;
    if (!o->nparam && g->from_torch) INV_TRY(look_at_names(&r));
    for (size_t pos = graph->body; pos < graph->end && !inv__wire_field(impl->file.base, pos, graph->end, &f);
         pos = f.end) {
        types = types || f.id == INV__GRAPH_VALUE_INFO;
        if (f.id != INV__GRAPH_NODE || source >= g->node.n) continue;
        const char *name = inv_nod(g, source)->name;
        inv__span list = inv__entry(impl, &f, NODE_METADATA, "pkg.torch.onnx.name_scopes");
        if (list.n) INV_TRY(listed_scope(&r, list, &scope[source]));
        else if (r.any && name && *name == '/') INV_TRY(called_scope(&r, name, true, &scope[source]));
        told = told || scope[source];
        source++;
    }
    o->scope = scope;
    o->nscope = source;
    const bool changed = is_signed(impl);
    o->intact = r.any && !r.foreign && !types && !changed && g->opset.n == 1;
    o->stripped = !o->nparam && !told && (changed || (g->from_torch && r.newer));
    inv_origin *kept = INV_ARENA_NEW(&impl->arena, inv_origin, 1);
    if (!kept) return INV_E_NOMEM;
    *kept = *o;
    if (o->nparam || told || o->stripped || g->from_torch) g->origin = kept;
    return INV_OK;
}
