/* SPDX-License-Identifier: Apache-2.0
 * For which module of the model each node computes, as the file tells: PyTorch's newer exporter writes the path of
 * modules into the node's metadata; others make names of nodes of it, with slashes. Read from the file, because older
 * schemas do not know the fields. And whether somebody has changed the file since.
 * requires: inv_graph.exported, as signature.c gives it. gives: inv_node.module and given, inv_value.also
 * (core/weights/module_names.h); inv_value.padding; exported.torch, older, intact, stripped. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/module_names.h"
#include "core/weights/trained.h"
#include "importer/importer.h"

typedef struct reader {
    inv_loader *l;
    inv_graph *g;
    inv_names paths;                 /* of all nodes that PyTorch's older exporter has named, as they stand there */
    inv_names modules;               /* that initializers, and what has taken their places, are called after */
    inv_names parents;               /* modules of which some children are called after: places in ... */
    INV_VEC(const char *) container; /* ... what these belong to */
    bool older, newer;               /* nodes that the older exporter has named, and the newer one */
    bool foreign;                    /* others, beside those of the older one */
    bool told;                       /* some node's metadata has its module */
} reader;

/* --- metadata --- */

/* NULL of a text that is not there, to which nothing may be added, not even 0. */
static const char *end_of(inv_byte_span s) { return s.n ? s.text + s.n : s.text; }

/* The last entry but one of a Python list of texts, such as "['', 'a', 'a.b', 'linear']": behind the modules, from the
 * outermost one on, stands the operation itself. */
static inv_byte_span of_scopes(inv_byte_span list)
{
    inv_byte_span last = {0}, before = {0};
    const char *end = end_of(list);
    for (const char *p = list.text; p < end; p++) {
        if (*p != '\'' && *p != '"') continue;
        const char *close = memchr(p + 1, *p, (size_t)(end - p - 1));
        if (!close) break;
        before = last;
        last = (inv_byte_span){p + 1, (size_t)(close - p - 1)};
        p = close;
    }
    return before;
}

/* The same of "NAME: CLASS/NAME: CLASS/...", as the exporter has written besides, and alone before it wrote lists. */
static inv_byte_span of_namespace(inv_byte_span path)
{
    inv_byte_span last = {0}, before = {0};
    const char *end = end_of(path);
    for (const char *p = path.text; p < end;) {
        const char *slash = memchr(p, '/', (size_t)(end - p)), *stop = slash ? slash : end;
        const char *colon = memchr(p, ':', (size_t)(stop - p));
        before = last;
        last = (inv_byte_span){p, (size_t)((colon ? colon : stop) - p)};
        p = stop + 1;
    }
    return before;
}

/* "enc@1": the second call of enc. NULL: nothing is told. */
static const char *of_metadata(reader *r, const inv_field *node)
{
    const inv_byte_span scopes = inv_entry(r->l->impl, node, INV_PB_NODE_METADATA, "pkg.torch.onnx.name_scopes");
    inv_byte_span s = of_scopes(scopes);
    if (!scopes.n) s = of_namespace(inv_entry(r->l->impl, node, INV_PB_NODE_METADATA, "namespace"));
    while (s.n && *s.text == ' ') s = (inv_byte_span){s.text + 1, s.n - 1};
    if (!s.text) return NULL;
    const char *call = memchr(s.text, '@', s.n);
    return inv_arena_strndup(&r->g->arena, s.text, call ? (size_t)(call - s.text) : s.n);
}

/* "%linear : ...(args = (%x, %p_a_weight, %p_a_bias), kwargs = {})": the parameters that the call was given which
 * became the node. */
static inv_status read_given(reader *r, const inv_field *node, inv_node *n)
{
    static const char mark[] = "(args = (";
    const inv_byte_span s = r->l->arguments.n
                                ? inv_entry(r->l->impl, node, INV_PB_NODE_METADATA, "pkg.torch.onnx.fx_node")
                                : (inv_byte_span){0};
    const char *p = s.n ? inv_span_find(s, mark) : NULL, *end = end_of(s);
    INV_VEC(uint32_t) list = {0};
    for (; p && (p = memchr(p, '%', (size_t)(end - p))) != NULL;) {
        const char *name = ++p;
        while (p < end && (isalnum((unsigned char)*p) || *p == '_')) p++;
        name = inv_arena_strndup(&r->l->scratch, name, (size_t)(p - name));
        if (!name) return INV_E_NOMEM;
        const uint32_t at = inv_names_get(&r->l->arguments, name);
        if (at != INV_NONE && !inv_vec_push(&r->g->arena, &list, at)) return INV_E_NOMEM;
    }
    n->given = list.at;
    n->ngiven = (uint32_t)list.n;
    return INV_OK;
}

/* --- names --- */

/* "h_1": the second call of h, if h has nodes, and no parameter is called after a module h_1. */
static size_t without_call(const reader *r, char *path, size_t n)
{
    size_t k = n;
    while (k && path[k - 1] >= '0' && path[k - 1] <= '9') k--;
    if (k == n || k < 2 || path[k - 1] != '_' || inv_names_get(&r->modules, path) != INV_NONE) return n;
    path[k - 1] = '\0';
    if (inv_names_get(&r->paths, path) != INV_NONE) return k - 1;
    path[k - 1] = '_';
    return n;
}

/* "/a/a.0/b.1/MatMul" is of module "a.0.b.1": a part that begins with the whole part before it, as the children of
 * PyTorch's containers do, takes its place. note: paths are put down as they are; else calls are left out, if any were.
 * *out: "": the outermost module; NULL: the name has no path. */
static inv_status of_name(reader *r, const char *name, bool note, const char **out)
{
    inv_arena *a = note ? &r->l->scratch : &r->g->arena;
    const char *end = strrchr(name, '/');
    char *path = end ? INV_ARENA_NEW(a, char, strlen(name) + 1) : NULL;
    *out = path;
    if (!path) return a->failed ? INV_E_NOMEM : INV_OK;
    size_t n = 0, at = 0; /* written so far; where the last part begins there */
    *path = '\0';
    for (const char *p = name + (*name == '/'); p < end;) {
        const size_t length = strcspn(p, "/"), before = n - at;
        const bool again = n && length > before && !memcmp(path + at, p, before) && p[before] == '.';
        if (again) n = at;
        else if (n) path[n++] = '.';
        at = n;
        memcpy(path + n, p, length);
        path[n += length] = '\0';
        p += length + 1;
        bool taken;
        if (note) INV_TRY(inv_names_put(&r->paths, inv_arena_strdup(a, path), 0, &taken));
        else if (r->paths.n) n = without_call(r, path, n);
    }
    return a->failed ? INV_E_NOMEM : INV_OK;
}

static inv_status note_module(reader *r, const char *name)
{
    bool taken;
    for (const char *dot = name; (dot = strchr(dot + 1, '.')) != NULL;) {
        const char *module = inv_arena_strndup(&r->l->scratch, name, (size_t)(dot - name));
        if (!module) return INV_E_NOMEM;
        INV_TRY(inv_names_put(&r->modules, module, 0, &taken));
    }
    return INV_OK;
}

/* What is called after modules, and what the nodes are called, in a file of PyTorch's older exporter. */
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
            r->older = true;
            INV_TRY(of_name(r, name, true, &ignored));
        } else r->foreign = r->foreign || !inv_node_is(n, "Constant");
        r->newer = r->newer || !strncmp(name, "node_", 5);
    }
    return INV_OK;
}

/* --- both --- */

/* The simplifier onnxsim signs what it has changed. */
static bool is_signed(const inv_impl *impl)
{
    const uint8_t *base = impl->file.base;
    inv_field f, e;
    for (size_t pos = 0; pos < impl->file.nbytes && !inv_wire_field(base, pos, impl->file.nbytes, &f); pos = f.end) {
        if (f.id != INV_PB_MODEL_METADATA || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        for (size_t at = f.body; at < f.end && !inv_wire_field(base, at, f.end, &e); at = e.end)
            if (e.id == INV_PB_ENTRY_KEY && e.end - e.body > 8 && !memcmp(base + e.body, "onnxsim.", 8)) return true;
    }
    return false;
}

static inv_status read_node(reader *r, const inv_field *field, inv_node *n)
{
    n->module = of_metadata(r, field);
    r->told = r->told || n->module;
    return n->module || !n->name ? INV_OK : of_name(r, n->name, false, &n->module);
}

/* Nodes in bodies of control flow have names as those of the main graph have. */
static inv_status read_bodies(reader *r, const inv_graph *g)
{
    for (size_t i = 0; i < g->body.n; i++) {
        inv_graph *body = g->body.at[i];
        for (size_t k = 0; k < body->node.n; k++) {
            inv_node *n = inv_nod(body, (inv_id)k);
            if (n->name) INV_TRY(of_name(r, n->name, false, &n->module));
        }
        INV_TRY(read_bodies(r, body)); /* as deep as messages may be nested */
    }
    return INV_OK;
}

/* Whether the path is the module's with some names left out, but not the last: "layers.1.up" of "layers.1.ff.up". */
static bool leaves_out(const char *path, const char *module, size_t n)
{
    const char *p = path, *end = module + n;
    size_t length = 0;
    for (const char *m = module; *path && m < end; m += length + 1) {
        const char *dot = memchr(m, '.', (size_t)(end - m));
        const size_t own = strcspn(p, ".");
        length = (size_t)((dot ? dot : end) - m);
        if (own == length && !memcmp(p, m, own) && !p[own] == !dot) p += own + !!p[own];
    }
    return *path && !*p && strlen(path) < n;
}

/* The module around that of a node, and the number behind the child's name: "/ff/up_1/MatMul" and "/ff/gate_1/Gemm" are
 * of one "ff", and "/ff/up/MatMul" may be of another, where the exporter leaves out what "ff" itself is in. */
static const char *parent_of(const reader *r, const inv_node *n, const char *path)
{
    const size_t length = inv_module_length(path), own = strlen(path + length + (length > 0));
    const char *end = n->name ? strrchr(n->name, '/') : NULL, *p = end;
    while (p && p > n->name && p[-1] != '/') p--;
    const size_t all = p ? (size_t)(end - p) : 0;
    const bool numbered = all > own && !memcmp(p, path + length + (length > 0), own) && p[own] == '_';
    return inv_arena_printf(&r->l->scratch, "%.*s%.*s", (int)length, path, numbered ? (int)(all - own) : 0,
                            numbered ? p + own : "");
}

/* What the children of a module that nodes are called after belong to: another module, for those whose parameters tell
 * it; "": not all to the same. */
static inv_status learn(reader *r, const inv_node *n, const char *path, const char *module)
{
    const char *parent = parent_of(r, n, path);
    const char *of = inv_arena_strndup(&r->l->scratch, module, inv_module_length(module));
    bool known;
    if (!parent || !of) return INV_E_NOMEM;
    INV_TRY(inv_names_put(&r->parents, parent, (uint32_t)r->container.n, &known));
    if (!known) return inv_vec_push(&r->l->scratch, &r->container, of) ? INV_OK : INV_E_NOMEM;
    const char **had = &r->container.at[inv_names_get(&r->parents, parent)];
    if (strcmp(*had, of) != 0) *had = "";
    return INV_OK;
}

/* A child without parameters of its own name is where its siblings are: "layers.1.ff.up" beside "layers.1.ff.gate". */
static inv_status by_siblings(reader *r)
{
    inv_graph *g = r->g;
    for (size_t i = 0; i < g->node.n; i++) {
        inv_node *n = inv_nod(g, (inv_id)i);
        bool weighs = false;
        if (!n->module || inv_names_get(&r->modules, n->module) != INV_NONE) continue;
        for (uint32_t k = 0; k < n->nin && !weighs; k++)
            weighs = n->in[k] != INV_NONE && inv_val(g, n->in[k])->role == INV_ROLE_PARAM;
        const size_t length = inv_module_length(n->module);
        const char *parent = weighs ? parent_of(r, n, n->module) : "";
        const uint32_t at = parent ? inv_names_get(&r->parents, parent) : INV_NONE;
        if (!weighs || !length || at == INV_NONE || !*r->container.at[at]) continue;
        if (strlen(r->container.at[at]) != length || memcmp(r->container.at[at], n->module, length) != 0)
            n->module = inv_arena_printf(&g->arena, "%s%s", r->container.at[at], n->module + length);
    }
    return g->arena.failed || r->l->scratch.failed ? INV_E_NOMEM : INV_OK;
}

/* The older exporter leaves out the names of containers whose children the model calls itself, such as ModuleDict:
 * "/layers.1/up/MatMul" is of "layers.1.ff.up". Parameters that nodes read have kept their names, such as the bias that
 * is added to the product. */
static inv_status by_parameters(reader *r)
{
    inv_graph *g = r->g;
    for (size_t i = 0; i < g->node.n; i++) {
        inv_node *n = inv_nod(g, (inv_id)i), *product = NULL;
        const char *path = n->module, *module = NULL;
        if (path && inv_names_get(&r->modules, path) != INV_NONE) INV_TRY(learn(r, n, path, path));
        if (!path || inv_names_get(&r->modules, path) != INV_NONE) continue;
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_value *v = n->in[k] != INV_NONE ? inv_val(g, n->in[k]) : NULL;
            const size_t length = v && v->role == INV_ROLE_PARAM ? inv_module_length(v->name) : 0;
            if (leaves_out(path, v ? v->name : "", length)) module = inv_arena_strndup(&g->arena, v->name, length);
            else if (v && v->def != INV_NONE && inv_node_is(n, "Add")) product = inv_nod(g, v->def);
        }
        if (!module) continue;
        INV_TRY(learn(r, n, path, module));
        n->module = module;
        if (product && inv_node_is(product, "MatMul") && product->module && !strcmp(product->module, path))
            product->module = module;
    }
    return by_siblings(r);
}

/* What the older exporter has computed it calls "onnx::Mul_12", "12" or "/layer/Mul_output_0". */
static void note_named(const reader *r)
{
    for (size_t i = 0; i < r->g->inits.n; i++) {
        inv_value *v = inv_val(r->g, r->g->inits.at[i]);
        if (!inv_name_is_made(v->name) && !v->within && !v->type && inv_dtype_is_float(v->dtype))
            v->said = INV_SAID_NAMED;
    }
}

/* types: the file has types of values. */
static void judge(const reader *r, bool types)
{
    inv_exported *e = &r->l->impl->exported;
    const bool changed = is_signed(r->l->impl);
    e->intact = r->older && !r->foreign && !types && !changed && r->g->opset.n == 1;
    e->stripped = !e->nparam && !r->told && !r->older && (changed || (r->g->from_torch && r->newer));
    e->torch = e->nparam || r->told || e->stripped || r->g->from_torch;
}

/* PyTorch's newer exporter writes the call that became a node, "...aten.embedding.default](args = (%p_e_weight, %x, 0),
 * ...": the third argument is the row of padding. Calls that differ have none. */
static inv_status read_padding(inv_loader *l, const inv_field *node, const inv_node *n)
{
    static const char call[] = "aten.embedding.default](args = (";
    inv_value *v = inv_node_is(n, "Gather") && n->in[0] != INV_NONE ? inv_val(l->model->graph, n->in[0]) : NULL;
    if (!v || v->role != INV_ROLE_PARAM) return INV_OK;
    const inv_byte_span s = inv_entry(l->impl, node, INV_PB_NODE_METADATA, "pkg.torch.onnx.fx_node");
    const char *text = s.n ? inv_arena_strndup(&l->scratch, s.text, s.n) : "";
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

inv_status inv_import_modules(inv_loader *l)
{
    inv_graph *g = l->model->graph;
    const inv_impl *impl = l->impl;
    const uint8_t *base = impl->file.base;
    reader r = {.l = l, .g = g, .paths.a = &l->scratch, .modules.a = &l->scratch, .parents.a = &l->scratch};
    inv_field graph = {0}, f;
    inv_id *at = INV_ARENA_NEW(&l->scratch, inv_id, g->node.n + 1), source = 0;
    bool types = false;
    if (!at) return INV_E_NOMEM;
    if (!g->exported->nparam && g->from_torch) INV_TRY(look_at_names(&r));
    memset(at, 0xff, g->node.n * sizeof *at);
    for (size_t i = 0; i < g->node.n; i++)
        if (inv_nod(g, (inv_id)i)->source < g->node.n) at[inv_nod(g, (inv_id)i)->source] = (inv_id)i;
    for (size_t pos = 0; pos < impl->file.nbytes && !inv_wire_field(base, pos, impl->file.nbytes, &f); pos = f.end)
        if (f.id == INV_PB_MODEL_GRAPH) graph = f;
    for (size_t pos = graph.body; pos < graph.end && !inv_wire_field(base, pos, graph.end, &f); pos = f.end) {
        types = types || f.id == INV_PB_GRAPH_VALUE_INFO;
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || f.id != INV_PB_GRAPH_NODE) continue;
        const inv_id n = source < g->node.n ? at[source] : INV_NONE;
        source++;
        if (n == INV_NONE) continue;
        INV_TRY(read_node(&r, &f, inv_nod(g, n)));
        INV_TRY(read_given(&r, &f, inv_nod(g, n)));
        INV_TRY(read_padding(l, &f, inv_nod(g, n)));
    }
    INV_TRY(read_bodies(&r, g));
    if (r.older) INV_TRY(by_parameters(&r));
    if (r.older) note_named(&r);
    judge(&r, types);
    return g->arena.failed ? INV_E_NOMEM : inv_module_names_find(g, &l->scratch, NULL);
}
