/* SPDX-License-Identifier: Apache-2.0
 * GraphProto -> inv_graph, with the operators as they are in the file. Everything that is wrong with the file is
 * collected and told at once. Nodes may stand in any order in the file; the graph's order is sorted at the end. */
#include <string.h>

#include "core/op.h"
#include "importer/importer.h"

/* ai.onnx operator sets that this library knows how to read. */
enum { OPSET_OLDEST = 11, OPSET_NEWEST = 26 };

const char *inv__domain(const char *d)
{
    return !d || !strcmp(d, "ai.onnx") ? "" : d;
}

inv_status inv__import_opsets(inv__loader *l, inv_graph *g, size_t n, Onnx__OperatorSetIdProto *const *p,
                              const char *what)
{
    for (size_t i = 0; i < n; i++) {
        const char *domain = inv__domain(p[i]->domain);
        int64_t version = p[i]->has_version ? p[i]->version : 0, known = inv_graph_opset(g, domain);
        if (known && known != version)
            inv__defect(&l->defects, INV_E_GRAPH, "%s imports operator sets %lld and %lld of the same domain '%s'",
                        what, (long long)known, (long long)version, *domain ? domain : "ai.onnx");
        if (known) continue;
        if (!*domain && (version < OPSET_OLDEST || version > OPSET_NEWEST))
            inv__defect(&l->defects, INV_E_UNSUPPORTED_OP,
                        "%s imports operator set %lld of ai.onnx; supported are %d to %d (export it again, or use "
                        "ONNX's version converter)",
                        what, (long long)version, OPSET_OLDEST, OPSET_NEWEST);
        inv_opset o = {inv__arena_strdup(&g->arena, domain), version};
        if (!o.domain || !inv_vec_push(&g->arena, &g->opset, o)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status shape_read(inv__loader *l, inv_graph *g, const Onnx__TensorShapeProto *p, const char *what,
                             inv_shape *shape, const char *const **symbols)
{
    *shape = inv_shape_unknown();
    *symbols = NULL;
    if (!p) return INV_OK;
    if (p->n_dim > INV_MAX_RANK) {
        inv__defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "%s: has %zu dimensions; at most %d are supported", what,
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
                inv__defect(&l->defects, INV_E_PARSE, "%s: dimension %zu is negative, %lld", what, i,
                            (long long)d->dim_value);
            else
                shape->dim[i] = d->dim_value;
        } else if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && d->dim_param &&
                   *d->dim_param) {
            sym[i] = inv__arena_strdup(&g->arena, d->dim_param);
            if (!sym[i]) return INV_E_NOMEM;
            *symbols = sym;
        }
    }
    return INV_OK;
}

typedef struct decl {
    const char *name;
    inv_dtype dtype;
    inv_shape shape;
    const char *const *symbols;
} decl;

/* A graph input or output. */
static inv_status decl_read(inv__loader *l, inv_graph *g, const Onnx__ValueInfoProto *p, const char *kind, decl *d)
{
    const char *what = inv__arena_printf(&l->scratch, "graph %s '%s'", kind, p->name ? p->name : "");
    if (!what) return INV_E_NOMEM;
    *d = (decl){.name = p->name ? p->name : "", .shape = inv_shape_unknown()};
    if (!*d->name) inv__defect(&l->defects, INV_E_GRAPH, "a graph %s has no name", kind);
    if (!p->type || p->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET) return INV_OK;
    if (p->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        inv__defect(&l->defects, INV_E_UNSUPPORTED_TYPE,
                    "%s: is no tensor (sequences, maps and so on are not supported)", what);
        return INV_OK;
    }
    const Onnx__TypeProto__Tensor *t = p->type->tensor_type;
    int32_t dt = t->has_elem_type ? t->elem_type : 0;
    if (dt < INV_DT_NONE || dt > INV_BF16)
        inv__defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "%s: element type %d (%s) is not supported", what, dt,
                    inv__dtype_text(dt));
    else
        d->dtype = (inv_dtype)dt;
    return shape_read(l, g, t->shape, what, &d->shape, &d->symbols);
}

/* A new value under a name that must be new. INV_NONE in *out if it was not. */
static inv_status define(inv__loader *l, inv_graph *g, inv__names *names, const char *name, inv_role role, inv_dtype t,
                         const inv_shape *s, const char *what, inv_id *out)
{
    bool taken;
    *out = INV_NONE;
    INV_TRY(inv__names_put(names, name, (uint32_t)g->value.n, &taken));
    if (taken) {
        inv__defect(&l->defects, INV_E_GRAPH, "%s defines '%s', which is already defined", what, name);
        return INV_OK;
    }
    *out = inv_graph_value(g, name, role, t, s);
    return *out == INV_NONE ? g->failed : INV_OK;
}

static inv_status import_initializers(inv__loader *l, inv_graph *g, inv__names *names, const Onnx__GraphProto *p)
{
    for (size_t i = 0; i < p->n_initializer; i++) {
        const Onnx__TensorProto *t = p->initializer[i];
        const char *name = t->name ? t->name : "";
        const char *what = inv__arena_printf(&l->scratch, "initializer '%s'", name);
        inv_data data;
        inv_id v;
        if (!what) return INV_E_NOMEM;
        if (!*name) inv__defect(&l->defects, INV_E_GRAPH, "initializer %zu has no name", i);
        INV_TRY(inv__tensor_read(l, &g->arena, t, what, &data));
        INV_TRY(define(l, g, names, name, INV_ROLE_PARAM, data.dtype, &data.shape, "an initializer", &v));
        if (v == INV_NONE) continue;
        inv_val(g, v)->data = data;
        inv_val(g, v)->mem = INV_MEM_PARAM;
        inv_val(g, v)->init = (inv_id)g->inits.n;
        if (!inv_vec_push(&g->arena, &g->inits, v)) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < p->n_sparse_initializer; i++) {
        const Onnx__TensorProto *t = p->sparse_initializer[i]->values;
        inv__defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "initializer '%s' is sparse, which is not supported",
                    t && t->name ? t->name : "");
    }
    return INV_OK;
}

static inv_status import_inputs(inv__loader *l, inv_graph *g, inv__names *names, const Onnx__GraphProto *p)
{
    for (size_t i = 0; i < p->n_input; i++) {
        decl d;
        inv_id v;
        INV_TRY(decl_read(l, g, p->input[i], "input", &d));
        uint32_t known = inv__names_get(names, d.name);
        /* Up to IR version 3 initializers had to be listed as inputs too; they are not fed. */
        if (known != INV_NONE && inv_val(g, known)->role == INV_ROLE_PARAM) continue;
        INV_TRY(define(l, g, names, d.name, INV_ROLE_INPUT, d.dtype, &d.shape, "the list of graph inputs", &v));
        if (v == INV_NONE) continue;
        inv_val(g, v)->dim_param = d.symbols;
        inv_val(g, v)->mem = INV_MEM_DATA;
        if (!inv_vec_push(&g->arena, &g->inputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status import_outputs(inv__loader *l, inv_graph *g, const inv__names *names, const Onnx__GraphProto *p)
{
    for (size_t i = 0; i < p->n_output; i++) {
        decl d;
        INV_TRY(decl_read(l, g, p->output[i], "output", &d));
        uint32_t v = inv__names_get(names, d.name);
        if (v == INV_NONE) {
            inv__defect(&l->defects, INV_E_GRAPH, "graph output '%s' is never produced", d.name);
            continue;
        }
        if (inv_val(g, v)->is_output) {
            inv__defect(&l->defects, INV_E_GRAPH, "graph output '%s' is listed twice", d.name);
            continue;
        }
        inv_value *val = inv_val(g, v);
        val->is_output = true;
        /* What the file says about an output that is computed is a claim, useful for inspect; inference has its own. */
        if (val->role == INV_ROLE_NODE) {
            val->dtype = d.dtype;
            val->shape = d.shape;
            val->dim_param = d.symbols;
        }
        if (!inv_vec_push(&g->arena, &g->outputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static const char *node_label(inv__loader *l, const Onnx__NodeProto *p, const char *where)
{
    const char *op = p->op_type ? p->op_type : "";
    if (p->name && *p->name) return inv__arena_printf(&l->scratch, "node '%s' (%s)%s", p->name, op, where);
    return inv__arena_printf(&l->scratch, "node without a name (%s, giving '%s')%s", op,
                             p->n_output ? p->output[0] : "", where);
}

static inv_status read_inputs(inv__loader *l, const inv_graph *g, const inv__names *names, const Onnx__NodeProto *p,
                              const char *what, inv_id *in)
{
    for (size_t i = 0; i < p->n_input; i++) {
        in[i] = *p->input[i] ? inv__names_get(names, p->input[i]) : INV_NONE;
        if (*p->input[i] && in[i] == INV_NONE)
            inv__defect(&l->defects, INV_E_GRAPH, "%s reads '%s', which nothing defines", what, p->input[i]);
        if (in[i] == INV_NONE) continue;
        const inv_value *v = inv_val(g, in[i]);
        if (v->role == INV_ROLE_PARAM && v->dtype == INV_STRING)
            inv__defect(&l->defects, INV_E_UNSUPPORTED_TYPE, "%s reads initializer '%s', which holds strings", what,
                        v->name);
    }
    return INV_OK;
}

static inv_status import_node(inv__loader *l, inv_graph *g, inv__names *names, const Onnx__NodeProto *p,
                              const inv_id *out, const char *where, bool in_function)
{
    const char *what = node_label(l, p, where);
    inv_id *in = INV_ARENA_NEW(&l->scratch, inv_id, p->n_input + 1);
    inv_attr *attr = INV_ARENA_NEW(&l->scratch, inv_attr, p->n_attribute + 1);
    const char *op = p->op_type ? p->op_type : "", *domain = inv__domain(p->domain);
    if (!what || !in || !attr) return INV_E_NOMEM;
    if (!*op) inv__defect(&l->defects, INV_E_GRAPH, "%s has no operator", what);
    if (!*domain && !inv_graph_opset(g, ""))
        inv__defect(&l->defects, INV_E_GRAPH, "%s: an operator of ai.onnx, of which no operator set is imported", what);
    INV_TRY(read_inputs(l, g, names, p, what, in));
    for (size_t i = 0; i < p->n_attribute; i++) {
        INV_TRY(inv__attr_read(l, g, p->attribute[i], what, in_function, &attr[i]));
        for (size_t k = 0; k < i; k++)
            if (!strcmp(attr[k].name, attr[i].name))
                inv__defect(&l->defects, INV_E_GRAPH, "%s: has attribute '%s' twice", what, attr[i].name);
    }
    inv_id n = inv_graph_node(g, domain, op, p->name && *p->name ? p->name : NULL, (uint32_t)p->n_input, in,
                              (uint32_t)p->n_output, out, (uint32_t)p->n_attribute, attr);
    if (n == INV_NONE) return g->failed;
    return inv_vec_push(&g->arena, &g->order, n) ? INV_OK : INV_E_NOMEM;
}

/* In two rounds, because a node may read what a later one defines. */
inv_status inv__import_nodes(inv__loader *l, inv_graph *g, inv__names *names, size_t n, Onnx__NodeProto *const *p,
                             const char *where, bool in_function)
{
    inv_id **out = INV_ARENA_NEW(&l->scratch, inv_id *, n + 1);
    inv_shape unknown = inv_shape_unknown();
    if (!out) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *what = node_label(l, p[i], where);
        out[i] = INV_ARENA_NEW(&l->scratch, inv_id, p[i]->n_output + 1);
        if (!what || !out[i]) return INV_E_NOMEM;
        for (size_t k = 0; k < p[i]->n_output; k++) {
            out[i][k] = INV_NONE;
            if (!*p[i]->output[k]) continue;
            INV_TRY(define(l, g, names, p[i]->output[k], INV_ROLE_NODE, INV_DT_NONE, &unknown, what, &out[i][k]));
        }
    }
    for (size_t i = 0; i < n; i++) INV_TRY(import_node(l, g, names, p[i], out[i], where, in_function));
    return INV_OK;
}

inv_status inv__import_model(inv__loader *l, const Onnx__ModelProto *m)
{
    const Onnx__GraphProto *p = m->graph;
    const char *path = l->model->path;
    inv__names names = {.a = &l->scratch};
    if (!p) return inv__fail(l->ctx, INV_E_PARSE, "'%s' holds no graph: it is not an ONNX model", path);
    INV_TRY(inv_graph_create(l->ctx, p->name ? p->name : "", &l->model->graph));
    inv_graph *g = l->model->graph;
    INV_TRY(inv__import_opsets(l, g, m->n_opset_import, m->opset_import, "the model"));
    INV_TRY(inv__import_functions(l, m));
    INV_TRY(import_initializers(l, g, &names, p));
    INV_TRY(import_inputs(l, g, &names, p));
    INV_TRY(inv__import_nodes(l, g, &names, p->n_node, p->node, "", false));
    INV_TRY(import_outputs(l, g, &names, p));
    INV_TRY(inv__defects_report(&l->defects, path));
    if (g->failed != INV_OK) return g->failed;
    return inv_graph_sort(g);
}
