/* SPDX-License-Identifier: Apache-2.0
 * GraphProto -> inv_graph, with the operators as they are in the file; bodies of control flow are graphs of their own.
 * Everything that is wrong with the file is collected and told at once. Nodes may stand in any order in the file; the
 * graph's order is sorted at the end. */
#include <string.h>

#include "core/edits/rewriting.h"
#include "core/graph/op.h"
#include "core/weights/shared_weights.h"
#include "importer/importer.h"

/* ai.onnx operator sets that this library knows how to read. */
enum { OPSET_OLDEST = 1, OPSET_NEWEST = 28 };
/* More than any exporter writes: some steps take time with their square. */
enum { MOST_DOMAINS = 64, MOST_ATTRIBUTES = 256, MOST_INPUTS = 65536 };

const char *inv_domain(const char *d) { return !d || !strcmp(d, "ai.onnx") ? "" : d; }

inv_status inv_import_opsets(inv_loader *l, inv_graph *g, size_t n, Onnx__OperatorSetIdProto *const *p,
                             const char *what)
{
    if (n > MOST_DOMAINS) {
        inv_defect(&l->defects, INV_E_GRAPH, "%s imports %zu operator sets; at most %d are supported", what, n,
                   MOST_DOMAINS);
        n = MOST_DOMAINS;
    }
    for (size_t i = 0; i < n; i++) {
        const char *domain = inv_domain(p[i]->domain);
        int64_t version = p[i]->has_version ? p[i]->version : 0, known = inv_graph_opset(g, domain);
        if (known && known != version)
            inv_defect(&l->defects, INV_E_GRAPH, "%s imports operator sets %lld and %lld of the same domain '%s'", what,
                       (long long)known, (long long)version, *domain ? domain : "ai.onnx");
        if (known) continue;
        if (!*domain && (version < OPSET_OLDEST || version > OPSET_NEWEST))
            inv_defect(&l->defects, INV_E_UNSUPPORTED_OP,
                       "%s imports operator set %lld of ai.onnx; supported are %d to %d. Export it again, or use "
                       "ONNX's version converter",
                       what, (long long)version, OPSET_OLDEST, OPSET_NEWEST);
        inv_opset o = {inv_arena_strdup(&g->arena, domain), version};
        if (!o.domain || !inv_vec_push(&g->arena, &g->opset, o)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* What converters write for a size that is open: no name, so two of them are not equal. */
static bool is_symbol(const char *name)
{
    static const char *const open[] = {"", "?", "-1", "None"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (!strcmp(name, open[i])) return false;
    return true;
}

static inv_status shape_read(inv_loader *l, inv_graph *g, const Onnx__TensorShapeProto *p, const char *what,
                             inv_shape *shape, const char *const **symbols)
{
    *shape = inv_shape_unknown();
    *symbols = NULL;
    if (!p) return INV_OK;
    if (p->n_dim > INV_MAX_RANK) {
        inv_defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "%s: has %zu dimensions; at most %d are supported", what,
                   p->n_dim, INV_MAX_RANK);
        return INV_OK;
    }
    const char **sym = INV_ARENA_NEW(&g->arena, const char *, p->n_dim + 1);
    if (!sym) return INV_E_NOMEM;
    shape->rank = (int32_t)p->n_dim;
    for (size_t i = 0; i < p->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *d = p->dim[i];
        shape->dim[i] = -1;
        if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
            /* -1 is what some exporters write for a size that is open. */
            if (d->dim_value < -1)
                inv_defect(&l->defects, INV_E_PARSE, "%s: dimension %zu is negative, %lld", what, i,
                           (long long)d->dim_value);
            else shape->dim[i] = d->dim_value;
        } else if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && d->dim_param &&
                   is_symbol(d->dim_param)) {
            sym[i] = inv_arena_strdup(&g->arena, d->dim_param);
            if (!sym[i]) return INV_E_NOMEM;
            *symbols = sym;
        }
    }
    return INV_OK;
}

typedef struct decl {
    const char *name, *type;
    inv_dtype dtype;
    inv_shape shape;
    const char *const *symbols;
} decl;

/* A graph input or output. */
static inv_status decl_read(inv_loader *l, const inv_scope *s, const Onnx__ValueInfoProto *p, const char *kind, decl *d)
{
    const char *what = inv_arena_printf(&l->scratch, "graph %s '%s'%s", kind, p->name ? p->name : "", s->where);
    if (!what) return INV_E_NOMEM;
    *d = (decl){.name = p->name ? p->name : "", .shape = inv_shape_unknown()};
    if (!*d->name) inv_defect(&l->defects, INV_E_GRAPH, "a graph %s has no name%s", kind, s->where);
    if (!p->type || (p->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET && !p->type->base.n_unknown_fields))
        return INV_OK;
    if (p->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        d->type = inv_type_text(&s->g->arena, p->type);
        return d->type ? INV_OK : INV_E_NOMEM;
    }
    const Onnx__TypeProto__Tensor *t = p->type->tensor_type;
    int32_t dt = t->has_elem_type ? t->elem_type : 0;
    if (dt < INV_DT_NONE || !strcmp(inv_dtype_name((inv_dtype)dt), "unknown"))
        inv_defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "%s: element type %d (%s) is not supported", what, dt,
                   inv_dtype_name((inv_dtype)dt));
    else d->dtype = (inv_dtype)dt;
    return shape_read(l, s->g, t->shape, what, &d->shape, &d->symbols);
}

/* The value of that name in s->g, captured from outside if need be; INV_NONE: there is none. */
static inv_status scope_find(inv_scope *s, const char *name, inv_id *out)
{
    inv_id outside;
    bool taken;
    *out = inv_names_get(&s->names, name);
    if (*out != INV_NONE || !s->outer) return INV_OK;
    INV_TRY(scope_find(s->outer, name, &outside)); /* as deep as messages may be nested (prescan.c) */
    if (outside == INV_NONE) return INV_OK;
    *out = inv_graph_value(s->g, name, INV_ROLE_INPUT, INV_DT_NONE, NULL);
    if (*out == INV_NONE) return s->g->failed;
    INV_TRY(inv_names_put(&s->names, name, *out, &taken));
    return inv_vec_push(&s->g->arena, &s->g->inputs, *out) && inv_vec_push(&s->g->arena, &s->captured, outside)
               ? INV_OK
               : INV_E_NOMEM;
}

static const char *node_label(inv_loader *l, const Onnx__NodeProto *p, const char *where)
{
    const char *op = p->op_type ? p->op_type : "";
    if (p->name && *p->name) return inv_arena_printf(&l->scratch, "node '%s' (%s)%s", p->name, op, where);
    return inv_arena_printf(&l->scratch, "node without a name (%s, giving '%s')%s", op, p->n_output ? p->output[0] : "",
                            where);
}

/* What has defined a value, for messages. */
static const char *definer(inv_loader *l, const inv_scope *s, inv_id v)
{
    const inv_value *val = inv_val(s->g, v);
    if (val->role == INV_ROLE_INPUT) return "the list of graph inputs";
    for (size_t i = 0; i < s->ninit; i++)
        if (s->init[i]->name && !strcmp(s->init[i]->name, val->name))
            return inv_arena_printf(&l->scratch, "initializer %zu%s", i, s->where);
    for (size_t i = 0; i < s->nnode; i++)
        for (size_t k = 0; k < s->node[i]->n_output; k++)
            if (!strcmp(s->node[i]->output[k], val->name)) return node_label(l, s->node[i], s->where);
    return val->role == INV_ROLE_NODE ? "another node" : "a sparse initializer";
}

/* A new value under a name that must be new. INV_NONE in *out if it was not. */
static inv_status define(inv_loader *l, inv_scope *scope, const char *name, inv_role role, inv_dtype t,
                         const inv_shape *s, const char *what, inv_id *out)
{
    inv_graph *g = scope->g;
    bool taken;
    *out = INV_NONE;
    INV_TRY(inv_names_put(&scope->names, name, (uint32_t)g->value.n, &taken));
    if (taken) {
        enum { MOST_SOUGHT = 100 };
        inv_id known = inv_names_get(&scope->names, name);
        const char *first = l->defects.n < MOST_SOUGHT ? definer(l, scope, known) : "another";
        if (!first) return INV_E_NOMEM;
        inv_defect(&l->defects, INV_E_GRAPH, "%s defines '%s', which is already defined by %s; rename or remove one",
                   what, name, first);
        return INV_OK;
    }
    *out = inv_graph_value(g, name, role, t, s);
    return *out == INV_NONE ? g->failed : INV_OK;
}

/* *v is INV_NONE if the name is taken or missing. */
static inv_status define_initializer(inv_loader *l, inv_scope *s, const char *name, inv_dtype t, const inv_shape *shape,
                                     const char *place, inv_id *v)
{
    inv_graph *g = s->g;
    INV_TRY(define(l, s, name, s->outer ? INV_ROLE_CONST : INV_ROLE_PARAM, t, shape, place, v));
    if (*v == INV_NONE) return INV_OK;
    inv_val(g, *v)->mem = INV_MEM_PARAM;
    if (s->outer) return INV_OK;
    inv_val(g, *v)->init = (inv_id)g->inits.n;
    return inv_vec_push(&g->arena, &g->inits, *v) ? INV_OK : INV_E_NOMEM;
}

/* Sparse initializers are carried along; their elements are not looked at. */
static inv_status import_sparse(inv_loader *l, inv_scope *s, const Onnx__GraphProto *p)
{
    inv_graph *g = s->g;
    for (size_t i = 0; i < p->n_sparse_initializer; i++) {
        const Onnx__SparseTensorProto *x = p->sparse_initializer[i];
        const Onnx__TensorProto *t = x->values;
        inv_shape shape = x->n_dims <= INV_MAX_RANK ? inv_shape_of((int)x->n_dims, x->dims) : inv_shape_unknown();
        inv_id v;
        size_t nbytes;
        if (!inv_shape_is_static(&shape) || !inv_shape_nbytes(&shape, INV_C128, &nbytes)) shape = inv_shape_unknown();
        if (!t || !t->name || !*t->name)
            inv_defect(&l->defects, INV_E_GRAPH, "sparse initializer %zu has no name%s", i, s->where);
        INV_TRY(define_initializer(l, s, t && t->name ? t->name : "", INV_DT_NONE, &shape, "a sparse initializer", &v));
        if (v == INV_NONE) continue;
        inv_val(g, v)->type =
            inv_arena_printf(&g->arena, "sparse_tensor(%s)", inv_dtype_name((inv_dtype)(t ? t->data_type : 0)));
        if (!inv_val(g, v)->type) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status import_initializers(inv_loader *l, inv_scope *s, const Onnx__GraphProto *p)
{
    inv_graph *g = s->g;
    s->init = p->initializer;
    s->ninit = p->n_initializer;
    for (size_t i = 0; i < p->n_initializer; i++) {
        const Onnx__TensorProto *t = p->initializer[i];
        const char *name = t->name ? t->name : "";
        const char *what = inv_arena_printf(&l->scratch, "initializer '%s'%s", name, s->where);
        const char *place = inv_arena_printf(&l->scratch, "initializer %zu%s", i, s->where);
        inv_data data;
        inv_id v;
        if (!what || !place) return INV_E_NOMEM;
        if (!*name) inv_defect(&l->defects, INV_E_GRAPH, "initializer %zu has no name%s", i, s->where);
        INV_TRY(inv_tensor_read(l, &g->arena, t, what, &data));
        INV_TRY(define_initializer(l, s, name, data.dtype, &data.shape, place, &v));
        if (v != INV_NONE) inv_val(g, v)->data = data;
    }
    return import_sparse(l, s, p);
}

static inv_status import_inputs(inv_loader *l, inv_scope *s, const Onnx__GraphProto *p)
{
    inv_graph *g = s->g;
    for (size_t i = 0; i < p->n_input; i++) {
        decl d;
        inv_id v;
        INV_TRY(decl_read(l, s, p->input[i], "input", &d));
        uint32_t known = inv_names_get(&s->names, d.name);
        /* Up to IR version 3 initializers had to be listed as inputs too; they are not fed. */
        if (known != INV_NONE && inv_val(g, known)->role == INV_ROLE_PARAM) continue;
        INV_TRY(define(l, s, d.name, INV_ROLE_INPUT, d.dtype, &d.shape, "the list of graph inputs", &v));
        if (v == INV_NONE) continue;
        inv_val(g, v)->type = d.type;
        inv_val(g, v)->dim_param = d.symbols;
        inv_val(g, v)->mem = INV_MEM_DATA;
        if (!inv_vec_push(&g->arena, &g->inputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status import_outputs(inv_loader *l, inv_scope *s, const Onnx__GraphProto *p)
{
    inv_graph *g = s->g;
    for (size_t i = 0; i < p->n_output; i++) {
        decl d;
        inv_id v;
        INV_TRY(decl_read(l, s, p->output[i], "output", &d));
        INV_TRY(scope_find(s, d.name, &v));
        if (v == INV_NONE) {
            inv_defect(&l->defects, INV_E_GRAPH, "graph output '%s' is never produced%s", d.name, s->where);
            continue;
        }
        /* Results of a body are told apart by their place, so one may be listed twice. */
        if (inv_val(g, v)->is_output && !s->outer) {
            inv_defect(&l->defects, INV_E_GRAPH, "graph output '%s' is listed twice", d.name);
            continue;
        }
        inv_value *val = inv_val(g, v);
        val->is_output = true;
        /* What the file says about an output that is computed is a claim, useful for inspect; inference has its own. */
        if (val->role == INV_ROLE_NODE) {
            val->type = d.type;
            val->dtype = d.dtype;
            val->shape = d.shape;
            val->dim_param = d.symbols;
        }
        if (!inv_vec_push(&g->arena, &g->outputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* --- nodes --- */

static inv_status read_inputs(inv_loader *l, inv_scope *s, const Onnx__NodeProto *p, const char *what, inv_ids *in)
{
    for (size_t i = 0; i < p->n_input; i++) {
        inv_id v = INV_NONE;
        if (*p->input[i]) INV_TRY(scope_find(s, p->input[i], &v));
        if (*p->input[i] && v == INV_NONE)
            inv_defect(&l->defects, INV_E_GRAPH, "%s reads '%s', which nothing defines", what, p->input[i]);
        if (!inv_vec_push(&l->scratch, in, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status fill_body(inv_loader *l, inv_scope *s, const Onnx__GraphProto *p)
{
    inv_graph *g = s->g, *around = s->outer->g;
    for (size_t i = 0; i < around->opset.n; i++) {
        inv_opset o = {inv_arena_strdup(&g->arena, around->opset.at[i].domain), around->opset.at[i].version};
        if (!o.domain || !inv_vec_push(&g->arena, &g->opset, o)) return INV_E_NOMEM;
    }
    INV_TRY(import_initializers(l, s, p));
    INV_TRY(import_inputs(l, s, p));
    INV_TRY(inv_import_nodes(l, s, p->n_node, p->node));
    INV_TRY(import_outputs(l, s, p));
    if (g->failed != INV_OK) return g->failed;
    return l->defects.n ? INV_OK : inv_graph_sort(g);
}

/* A graph as attribute `a` of a node of scope `around`; what it captures is added to the node's inputs. */
static inv_status import_body(inv_loader *l, inv_scope *around, const Onnx__GraphProto *p, const char *what,
                              inv_attr *a, inv_ids *in)
{
    inv_scope s = {.names.a = &l->scratch, .outer = around, .in_function = around->in_function};
    a->captured = (uint32_t)in->n;
    if (a->ref) return INV_OK;
    if (!p) {
        inv_defect(&l->defects, INV_E_PARSE, "%s: attribute '%s' is a graph, but has none", what, a->name);
        return INV_OK;
    }
    s.where = inv_arena_printf(&l->scratch, " in attribute '%s' of %s", a->name, what);
    if (!s.where) return INV_E_NOMEM;
    inv_id source = l->source;
    INV_TRY(inv_graph_create(l->ctx, p->name ? p->name : "", &s.g));
    if (!inv_vec_push(&around->g->arena, &around->g->body, s.g)) {
        inv_graph_destroy(s.g);
        return INV_E_NOMEM;
    }
    INV_TRY(fill_body(l, &s, p));
    l->source = source; /* the file's nodes are those outside of bodies */
    a->graph = s.g;
    a->ncaptured = (uint32_t)s.captured.n;
    for (size_t i = 0; i < s.captured.n; i++)
        if (!inv_vec_push(&l->scratch, in, s.captured.at[i])) return INV_E_NOMEM;
    return INV_OK;
}

static inv_status import_node(inv_loader *l, inv_scope *s, const Onnx__NodeProto *p, const inv_id *out)
{
    inv_graph *g = s->g;
    inv_ids in = {0};
    const char *what = node_label(l, p, s->where);
    inv_attr *attr = INV_ARENA_NEW(&l->scratch, inv_attr, p->n_attribute + 1);
    const char *op = p->op_type ? p->op_type : "", *domain = inv_domain(p->domain);
    if (!what || !attr) return INV_E_NOMEM;
    if (!*op) inv_defect(&l->defects, INV_E_GRAPH, "%s has no operator", what);
    if (p->n_attribute > MOST_ATTRIBUTES || p->n_input > MOST_INPUTS || p->n_output > MOST_INPUTS) {
        inv_defect(&l->defects, INV_E_GRAPH,
                   "%s has %zu inputs, %zu outputs and %zu attributes; at most %d, %d and %d are supported", what,
                   p->n_input, p->n_output, p->n_attribute, MOST_INPUTS, MOST_INPUTS, MOST_ATTRIBUTES);
        return INV_OK;
    }
    if (!*domain && !inv_graph_opset(g, ""))
        inv_defect(&l->defects, INV_E_GRAPH,
                   "%s: an operator of ai.onnx, but the model imports no operator set of "
                   "ai.onnx",
                   what);
    INV_TRY(read_inputs(l, s, p, what, &in));
    for (size_t i = 0; i < p->n_attribute; i++) {
        INV_TRY(inv_attr_read(l, g, p->attribute[i], what, s->in_function, &attr[i]));
        if (attr[i].kind == INV_ATTR_GRAPH) INV_TRY(import_body(l, s, p->attribute[i]->g, what, &attr[i], &in));
        for (size_t k = 0; k < i; k++)
            if (!strcmp(attr[k].name, attr[i].name))
                inv_defect(&l->defects, INV_E_GRAPH, "%s: has attribute '%s' twice", what, attr[i].name);
    }
    inv_id n = inv_graph_node(g, domain, op, p->name && *p->name ? p->name : NULL, (uint32_t)in.n, in.at,
                              (uint32_t)p->n_output, out, (uint32_t)p->n_attribute, attr);
    if (n == INV_NONE) return g->failed;
    inv_nod(g, n)->source = l->source++;
    return inv_vec_push(&g->arena, &g->order, n) ? INV_OK : INV_E_NOMEM;
}

/* In two rounds, because a node may read what a later one defines. */
inv_status inv_import_nodes(inv_loader *l, inv_scope *s, size_t n, Onnx__NodeProto *const *p)
{
    inv_id **out = INV_ARENA_NEW(&l->scratch, inv_id *, n + 1);
    inv_shape unknown = inv_shape_unknown();
    if (!out) return INV_E_NOMEM;
    s->node = p;
    s->nnode = n;
    for (size_t i = 0; i < n; i++) {
        const char *what = node_label(l, p[i], s->where);
        out[i] = INV_ARENA_NEW(&l->scratch, inv_id, p[i]->n_output + 1);
        if (!what || !out[i]) return INV_E_NOMEM;
        for (size_t k = 0; k < p[i]->n_output; k++) {
            out[i][k] = INV_NONE;
            if (!*p[i]->output[k]) continue;
            INV_TRY(define(l, s, p[i]->output[k], INV_ROLE_NODE, INV_DT_NONE, &unknown, what, &out[i][k]));
        }
    }
    for (size_t i = 0; i < n; i++) INV_TRY(import_node(l, s, p[i], out[i]));
    return INV_OK;
}

/* The facts that a rewriting left in the model's metadata: "ai.invonnx.inv.<initializer>" names its original. */
static inv_status import_inverses(inv_graph *g, const Onnx__ModelProto *m)
{
    static const char prefix[] = INV_OUTLINE_DOMAIN ".inv.";
    for (size_t i = 0; i < m->n_metadata_props; i++) {
        const char *key = m->metadata_props[i]->key, *of = m->metadata_props[i]->value;
        if (!key || !of || strncmp(key, prefix, sizeof prefix - 1) != 0) continue;
        inv_id v = inv_graph_find(g, key + sizeof prefix - 1);
        if (v == INV_NONE || inv_val(g, v)->role != INV_ROLE_PARAM) continue;
        inv_val(g, v)->inverse_of = inv_arena_strdup(&g->arena, of);
        if (!inv_val(g, v)->inverse_of) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_import_model(inv_loader *l, const Onnx__ModelProto *m)
{
    const Onnx__GraphProto *p = m->graph;
    const char *path = l->model->path;
    inv_scope s = {.names.a = &l->scratch, .where = ""};
    if (!p) return inv_fail(l->ctx, INV_E_PARSE, "'%s' holds no graph: it is not an ONNX model", path);
    INV_TRY(inv_graph_create(l->ctx, p->name ? p->name : "", &l->model->graph));
    inv_graph *g = s.g = l->model->graph;
    INV_TRY(inv_import_opsets(l, g, m->n_opset_import, m->opset_import, "the model"));
    l->source = (inv_id)p->n_node;
    INV_TRY(inv_import_functions(l, m));
    l->source = 0;
    INV_TRY(import_initializers(l, &s, p));
    INV_TRY(import_inverses(g, m));
    INV_TRY(import_inputs(l, &s, p));
    INV_TRY(inv_import_nodes(l, &s, p->n_node, p->node));
    INV_TRY(import_outputs(l, &s, p));
    /* First of what is read: with its own words, and only once. */
    inv_lost_tell(l);
    INV_TRY(inv_defects_report(&l->defects, path));
    INV_TRY(inv_external_all(l));
    inv_lost_tell(l);
    INV_TRY(inv_defects_report(&l->defects, path));
    if (g->failed != INV_OK) return g->failed;
    INV_TRY(inv_import_signature(l));
    INV_TRY(inv_graph_sort(g));
    if (!l->plain) INV_TRY(inv_lift_weights(l));
    INV_TRY(inv_import_modules(l));
    return l->plain ? INV_OK : inv_mark_steering(g, &l->scratch);
}
