/* SPDX-License-Identifier: Apache-2.0
 * The graph: creation, copies, values, nodes, names, constants. Attributes are in ir_attr.c. */
#include "core/graph/ir.h"

#include <stdio.h>
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/op.h"

inv_status inv_graph_create(inv_context *ctx, const char *name, inv_graph **out)
{
    *out = NULL;
    inv_graph *g = inv_alloc(ctx, sizeof *g);
    if (!g) return INV_E_NOMEM;
    g->ctx = ctx;
    inv_arena_init(&g->arena, ctx);
    g->name = inv_arena_strdup(&g->arena, name ? name : "");
    g->real = INV_F32;
    g->phase = INV_FORWARD;
    g->emit_source = INV_NONE;
    if (!g->name) {
        inv_graph_destroy(g);
        return INV_E_NOMEM;
    }
    *out = g;
    return INV_OK;
}

void inv_graph_destroy(inv_graph *g)
{
    if (!g) return;
    inv_context *ctx = g->ctx;
    for (size_t i = 0; i < g->function.n; i++) inv_graph_destroy(g->function.at[i].body);
    for (size_t i = 0; i < g->body.n; i++) inv_graph_destroy(g->body.at[i]);
    inv_arena_fini(&g->arena);
    inv_dealloc(ctx, g);
}

void inv_graph_fail(inv_graph *g, inv_status code)
{
    if (g->failed == INV_OK) g->failed = code;
}

static inv_id fail_id(inv_graph *g, inv_status code)
{
    inv_graph_fail(g, code);
    return INV_NONE;
}

int64_t inv_graph_opset(const inv_graph *g, const char *domain)
{
    if (strcmp(domain, "ai.onnx") == 0) domain = "";
    for (size_t i = 0; i < g->opset.n; i++)
        if (strcmp(g->opset.at[i].domain, domain) == 0) return g->opset.at[i].version;
    return 0;
}

/* --- names: an open-addressing index from name to the first value that got it --- */

static size_t name_slot(const inv_graph *g, const char *name)
{
    return (size_t)inv_hash(name, strlen(name), 0) & (g->name_cap - 1);
}

static void index_insert(inv_graph *g, inv_id v)
{
    size_t slot = name_slot(g, g->value.at[v].name);
    while (g->name_index[slot]) slot = (slot + 1) & (g->name_cap - 1);
    g->name_index[slot] = v + 1; /* 0: empty */
}

static bool index_add(inv_graph *g, inv_id v)
{
    if ((size_t)v * 2 + 2 > g->name_cap) {
        size_t cap = g->name_cap ? g->name_cap * 2 : 64;
        while ((size_t)v * 2 + 2 > cap) cap *= 2;
        inv_id *fresh = INV_ARENA_NEW(&g->arena, inv_id, cap);
        if (!fresh) return false;
        g->name_index = fresh;
        g->name_cap = cap;
        for (inv_id i = 0; i < v; i++) index_insert(g, i);
    }
    index_insert(g, v);
    return true;
}

inv_id inv_graph_index_find(const inv_graph *g, const char *name)
{
    if (g->name_cap == 0) return INV_NONE;
    for (size_t slot = name_slot(g, name); g->name_index[slot]; slot = (slot + 1) & (g->name_cap - 1))
        if (strcmp(g->value.at[g->name_index[slot] - 1].name, name) == 0) return g->name_index[slot] - 1;
    return INV_NONE;
}

inv_id inv_graph_find(const inv_graph *g, const char *value_name) { return inv_graph_index_find(g, value_name); }

/* The entry of v under its present name, or NULL. */
static inv_id *index_entry(inv_graph *g, inv_id v)
{
    for (size_t slot = name_slot(g, g->value.at[v].name); g->name_index[slot]; slot = (slot + 1) & (g->name_cap - 1))
        if (g->name_index[slot] == v + 1) return &g->name_index[slot];
    return NULL;
}

bool inv_value_carried(const inv_value *v) { return v->type || v->dtype == INV_STRING; }

const char *inv_value_type(const inv_value *v) { return v->type ? v->type : inv_dtype_name(v->dtype); }

inv_id inv_graph_stands(const inv_graph *g, inv_id v)
{
    while (v != INV_NONE && inv_val(g, v)->same != INV_NONE) v = inv_val(g, v)->same;
    return v;
}

void inv_graph_stand_outputs(inv_graph *g)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        g->outputs.at[i] = inv_graph_stands(g, g->outputs.at[i]);
        inv_val(g, g->outputs.at[i])->is_output = true;
    }
}

void inv_emit_for(inv_graph *g, const inv_node *n)
{
    g->emit_origin = n ? n->origin : NULL;
    g->emit_norigin = n ? n->norigin : 0;
    g->emit_type = n ? n->origin_type : NULL;
    g->emit_source = n ? n->source : INV_NONE;
}

void inv_graph_swap_names(inv_graph *g, inv_id a, inv_id b)
{
    inv_id *at_a = index_entry(g, a), *at_b = index_entry(g, b);
    const char *name = g->value.at[a].name;
    g->value.at[a].name = g->value.at[b].name;
    g->value.at[b].name = name;
    if (at_a) *at_a = b + 1;
    if (at_b) *at_b = a + 1;
}

const char *inv_graph_fresh(inv_graph *g, const char *stem)
{
    if (g->failed) return NULL;
    if (!stem || !*stem) stem = "v";
    size_t n = strlen(stem), end = n;
    while (end > 0 && stem[end - 1] >= '0' && stem[end - 1] <= '9') end--;
    if (end > 1 && end < n && stem[end - 1] == '.') n = end - 1; /* "x.3" gives "x.7", not "x.3.7" */
    if (n > 200) n = 200;
    for (;;) {
        char name[224];
        snprintf(name, sizeof name, "%.*s.%u", (int)n, stem, (unsigned)++g->fresh);
        if (inv_graph_index_find(g, name) != INV_NONE) continue;
        const char *kept = inv_arena_strdup(&g->arena, name);
        if (!kept) inv_graph_fail(g, INV_E_NOMEM);
        return kept;
    }
}

/* --- values --- */

static inv_mem_class mem_of_role(inv_role role)
{
    switch (role) {
    case INV_ROLE_NODE: return INV_MEM_ACT;
    case INV_ROLE_INPUT: return INV_MEM_DATA;
    case INV_ROLE_PARAM:
    case INV_ROLE_CONST: return INV_MEM_PARAM;
    case INV_ROLE_OPTIM: return INV_MEM_OPTIM;
    }
    return INV_MEM_ACT;
}

inv_id inv_graph_value(inv_graph *g, const char *name, inv_role role, inv_dtype t, const inv_shape *s)
{
    if (g->failed) return INV_NONE;
    if (g->value.n >= INV_NONE - 1) return fail_id(g, inv_fail(g->ctx, INV_E_GRAPH, "graph too large"));
    const char *kept = name && *name ? inv_arena_strdup(&g->arena, name) : inv_graph_fresh(g, "v");
    if (!kept) return fail_id(g, INV_E_NOMEM);
    inv_id v = (inv_id)g->value.n;
    inv_value value = {.name = kept,
                       .dtype = t,
                       .shape = s ? *s : inv_shape_unknown(),
                       .def = INV_NONE,
                       .same = INV_NONE,
                       .role = (uint8_t)role,
                       .mem = (uint8_t)mem_of_role(role),
                       .init = INV_NONE,
                       .source = INV_NONE,
                       .whole = INV_NONE,
                       .buffer = v};
    const void *before = g->value.at;
    if (!inv_vec_push(&g->arena, &g->value, value)) return fail_id(g, INV_E_NOMEM);
    if (g->value.at != before) inv_arena_leave(&g->arena, before);
    if (!index_add(g, v)) {
        g->value.n--;
        return fail_id(g, INV_E_NOMEM);
    }
    return v;
}

inv_id inv_graph_section(inv_graph *g, inv_id whole, int64_t first, const inv_shape *s)
{
    if (g->failed) return INV_NONE;
    const inv_value of = *inv_val(g, whole); /* making another one moves the array */
    const char *name = inv_arena_printf(&g->arena, "%s:%lld", of.name, (long long)first);
    if (name && inv_graph_find(g, name) != INV_NONE) name = inv_graph_fresh(g, name);
    const inv_id id = name ? inv_graph_value(g, name, (inv_role)of.role, of.dtype, s) : fail_id(g, INV_E_NOMEM);
    if (id == INV_NONE) return id;
    inv_value *v = inv_val(g, id);
    v->mem = of.mem;
    v->init = of.init;
    v->trainable = of.trainable;
    v->whole = whole;
    v->first = first;
    return id;
}

inv_id inv_graph_const(inv_graph *g, inv_dtype t, const inv_shape *s, const void *bytes)
{
    if (g->failed) return INV_NONE;
    size_t nbytes;
    if (!inv_shape_nbytes(s, t, &nbytes) || inv_dtype_size(t) == 0) {
        char text[INV_SHAPE_TEXT];
        return fail_id(g, inv_fail(g->ctx, INV_E_SHAPE, "constant of type %s%s has no fixed size", inv_dtype_name(t),
                                   inv_shape_text(s, text)));
    }
    void *copy = inv_arena_alloc(&g->arena, nbytes);
    if (!copy) return fail_id(g, INV_E_NOMEM);
    if (nbytes) memcpy(copy, bytes, nbytes);
    const char *name = inv_graph_fresh(g, "const");
    if (!name) return INV_NONE;
    inv_id v = inv_graph_value(g, name, INV_ROLE_CONST, t, s);
    if (v != INV_NONE) inv_val(g, v)->data = (inv_data){t, *s, copy, nbytes};
    return v;
}

inv_id inv_graph_const_ints(inv_graph *g, size_t n, const int64_t *v)
{
    inv_shape s = inv_shape_of(1, (int64_t[]){(int64_t)n});
    return inv_graph_const(g, INV_I64, &s, v);
}

inv_id inv_graph_const_real(inv_graph *g, inv_dtype t, double v)
{
    if (g->failed) return INV_NONE;
    inv_shape s = inv_shape_scalar();
    unsigned char bytes[16] = {0};
    if (!inv_convert(bytes, t, &v, INV_F64, 1))
        return fail_id(g, inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE, "no number constant of type %s", inv_dtype_name(t)));
    return inv_graph_const(g, t, &s, bytes);
}

bool inv_value_fixed(const inv_value *v)
{
    const bool parameter =
        v->said == INV_SAID_PARAMETER || v->said == INV_SAID_NAMED || v->said == INV_SAID_OF_PARAMETERS;
    return !inv_dtype_is_float(v->dtype) || v->steers || (v->shape.rank == 0 && !parameter);
}

bool inv_const_known(const inv_graph *g, inv_id v)
{
    if (v >= g->value.n) return false;
    const inv_value *x = inv_val(g, v);
    if (!x->data.bytes || x->def != INV_NONE) return false;
    if (x->role == INV_ROLE_CONST) return true;
    return x->role == INV_ROLE_PARAM && !x->state && !x->trainable && inv_value_fixed(x);
}

bool inv_const_ints(const inv_graph *g, inv_id v, size_t cap, int64_t *out, size_t *n)
{
    *n = 0;
    if (!inv_const_known(g, v)) return false;
    const inv_data *d = &inv_val(g, v)->data;
    size_t count = (size_t)inv_shape_nelem(&d->shape), nbytes;
    if (count > cap || !inv_shape_nbytes(&d->shape, d->dtype, &nbytes) || nbytes > d->nbytes) return false;
    for (size_t i = 0; i < count; i++) out[i] = inv_elem_int(d->bytes, d->dtype, i);
    *n = count;
    return true;
}

/* --- nodes --- */

static bool node_outputs_free(inv_graph *g, const char *op_type, uint32_t nout, const inv_id *out)
{
    for (uint32_t i = 0; i < nout; i++) {
        if (out[i] == INV_NONE) continue;
        const inv_value *v = out[i] < g->value.n ? inv_val(g, out[i]) : NULL;
        if (v && v->def == INV_NONE && v->role == INV_ROLE_NODE) continue;
        inv_graph_fail(g,
                       inv_fail(g->ctx, v ? INV_E_GRAPH : INV_E_INTERNAL,
                                "value '%s' is defined twice: operator %s gives it, and so does %s", v ? v->name : "?",
                                op_type, v && v->def == INV_NONE ? "an input or initializer" : "another node"));
        return false;
    }
    return true;
}

static bool node_inputs_exist(inv_graph *g, const char *op_type, uint32_t nin, const inv_id *in)
{
    for (uint32_t i = 0; i < nin; i++)
        if (in[i] != INV_NONE && in[i] >= g->value.n) {
            inv_graph_fail(g, inv_fail(g->ctx, INV_E_INTERNAL, "input %u of operator %s: no value %u", (unsigned)i,
                                       op_type, (unsigned)in[i]));
            return false;
        }
    return true;
}

static inv_id *copy_ids(inv_arena *a, uint32_t n, const inv_id *ids)
{
    inv_id *copy = INV_ARENA_NEW(a, inv_id, n);
    if (copy && n) memcpy(copy, ids, n * sizeof *ids);
    return copy;
}

inv_id inv_graph_node(inv_graph *g, const char *domain, const char *op_type, const char *name, uint32_t nin,
                      const inv_id *in, uint32_t nout, const inv_id *out, uint32_t nattr, const inv_attr *attr)
{
    if (g->failed) return INV_NONE;
    if (!node_inputs_exist(g, op_type, nin, in) || !node_outputs_free(g, op_type, nout, out)) return INV_NONE;
    if (g->node.n >= INV_MAX_EMITTED) {
        return fail_id(g, inv_fail(g->ctx, INV_E_GRAPH, "the graph has grown to more than %d nodes", INV_MAX_EMITTED));
    }
    if (!domain || strcmp(domain, "ai.onnx") == 0) domain = "";
    inv_node n = {
        .nin = nin, .nout = nout, .nattr = nattr, .phase = g->phase, .clone_of = INV_NONE, .solves = INV_NONE};
    if (g->ctx->registry) n.op = inv_registry_op(g->ctx->registry, domain, op_type, inv_graph_opset(g, domain));
    n.op_type = n.op ? n.op->name : inv_arena_strdup(&g->arena, op_type);
    n.domain = n.op ? n.op->domain : inv_arena_strdup(&g->arena, domain);
    n.name = inv_arena_strdup(&g->arena, name ? name : "");
    n.in = copy_ids(&g->arena, nin, in);
    n.out = copy_ids(&g->arena, nout, out);
    n.attr = inv_attrs_copy(&g->arena, nattr, attr);
    n.origin = g->emit_origin;
    n.norigin = g->emit_norigin;
    n.origin_type = g->emit_type;
    n.source = g->emit_source;
    if (!n.op_type || !n.domain || !n.name || !n.in || !n.out || !n.attr) return fail_id(g, INV_E_NOMEM);
    inv_id id = (inv_id)g->node.n;
    const void *before = g->node.at;
    if (!inv_vec_push(&g->arena, &g->node, n)) return fail_id(g, INV_E_NOMEM);
    if (g->node.at != before) inv_arena_leave(&g->arena, before);
    for (uint32_t i = 0; i < nout; i++)
        if (out[i] != INV_NONE) inv_val(g, out[i])->def = id;
    return id;
}

/* --- copy --- */

/* What a copy does with what is only read: it has its own, or borrows it from a graph that outlives it. */
typedef enum borrowing { OWNS, BORROWS } borrowing;

static const char *const *copy_texts(inv_arena *a, size_t n, const char *const *texts)
{
    const char **copy = INV_ARENA_NEW(a, const char *, n);
    for (size_t i = 0; copy && i < n; i++) {
        if (!texts[i]) continue;
        copy[i] = inv_arena_strdup(a, texts[i]);
        if (!copy[i]) return NULL;
    }
    return copy;
}

static bool copy_id_vec(inv_arena *a, const inv_ids *from, inv_ids *to)
{
    to->at = copy_ids(a, (uint32_t)from->n, from->at);
    to->n = to->cap = from->n;
    return to->at != NULL;
}

/* Room at once for what is copied: arrays that grow by and by leave the smaller ones in the arena. */
#define ROOM(c, v, n) inv_vec_grow(&(c)->arena, (void **)(void *)&(v)->at, &(v)->cap, n, sizeof *(v)->at)

/* The texts of a value, and what else it points to, for a copy of its own. */
static bool own_value(inv_arena *a, inv_value *v)
{
    v->name = inv_arena_strdup(a, v->name);
    if (!v->name) return false;
    if (v->shared && !(v->shared = inv_arena_copy(a, v->shared, sizeof *v->shared))) return false;
    if (v->inverse_of && !(v->inverse_of = inv_arena_strdup(a, v->inverse_of))) return false;
    if (!v->dim_param || v->shape.rank < 0) return true;
    v->dim_param = copy_texts(a, (size_t)v->shape.rank, v->dim_param);
    return v->dim_param != NULL;
}

static bool copy_values(const inv_graph *g, inv_graph *c, borrowing how)
{
    if (!ROOM(c, &c->value, g->value.n)) return false;
    for (size_t i = 0; i < g->value.n; i++) {
        inv_value v = g->value.at[i];
        if (how == OWNS && !own_value(&c->arena, &v)) return false;
        if (!inv_vec_push(&c->arena, &c->value, v)) return false;
    }
    c->name_index = inv_arena_copy(&c->arena, g->name_index, g->name_cap * sizeof *g->name_index);
    c->name_cap = g->name_cap;
    return c->name_index != NULL;
}

/* The texts and attributes of a node likewise. */
static bool own_node(inv_arena *a, inv_node *n)
{
    n->op_type = n->op ? n->op->name : inv_arena_strdup(a, n->op_type);
    n->domain = n->op ? n->op->domain : inv_arena_strdup(a, n->domain);
    n->name = inv_arena_strdup(a, n->name);
    n->attr = inv_attrs_copy(a, n->nattr, n->attr);
    if (n->fused && !(n->fused = inv_arena_copy(a, n->fused, sizeof *n->fused))) return false;
    if (n->norigin) n->origin = copy_texts(a, n->norigin, n->origin);
    if (n->origin_type && !(n->origin_type = inv_arena_strdup(a, n->origin_type))) return false;
    return n->op_type && n->domain && n->name && n->attr && (!n->norigin || n->origin);
}

static bool copy_nodes(const inv_graph *g, inv_graph *c, borrowing how)
{
    if (!ROOM(c, &c->node, g->node.n)) return false;
    for (size_t i = 0; i < g->node.n; i++) {
        inv_node n = g->node.at[i];
        n.in = copy_ids(&c->arena, n.nin, n.in);
        n.out = copy_ids(&c->arena, n.nout, n.out);
        if (!n.in || !n.out || (how == OWNS && !own_node(&c->arena, &n))) return false;
        if (!inv_vec_push(&c->arena, &c->node, n)) return false;
    }
    return true;
}

static bool copy_functions(const inv_graph *g, inv_graph *c)
{
    for (size_t i = 0; i < g->function.n; i++) {
        inv_function f = g->function.at[i];
        f.domain = inv_arena_strdup(&c->arena, f.domain);
        f.name = inv_arena_strdup(&c->arena, f.name);
        f.defaults = inv_attrs_copy(&c->arena, f.ndefaults, f.defaults);
        f.body = NULL;
        if (!f.domain || !f.name || !f.defaults) return false;
        if (!inv_vec_push(&c->arena, &c->function, f)) return false;
        const inv_graph *body = g->function.at[i].body;
        if (body && inv_graph_copy(body, &c->function.at[i].body) != INV_OK) return false;
    }
    return true;
}

static bool copy_opsets(const inv_graph *g, inv_graph *c)
{
    for (size_t i = 0; i < g->opset.n; i++) {
        inv_opset o = g->opset.at[i];
        o.domain = inv_arena_strdup(&c->arena, o.domain);
        if (!o.domain || !inv_vec_push(&c->arena, &c->opset, o)) return false;
    }
    return true;
}

static inv_status copy_graph(const inv_graph *g, borrowing how, inv_graph **out)
{
    inv_graph *c;
    *out = NULL;
    INV_TRY(inv_graph_create(g->ctx, g->name, &c));
    c->forward_end = g->forward_end;
    c->commit_begin = g->commit_begin;
    c->early = g->early;
    c->phase = g->phase;
    c->fold = g->fold;
    c->real = g->real;
    c->eval = g->eval;
    c->train = g->train;
    c->no_dropout = g->no_dropout;
    c->through_quantization = g->through_quantization;
    c->small = g->small;
    c->train_bn = g->train_bn;
    c->gpu = g->gpu;
    c->precision = g->precision;
    c->from_torch = g->from_torch;
    c->says = g->says;
    c->adapted = g->adapted;
    c->edited = g->edited;
    c->exported = g->exported;
    c->fresh = g->fresh;
    c->failed = g->failed;
    c->arena_nbytes = g->arena_nbytes;
    bool ok = copy_values(g, c, how) && copy_nodes(g, c, how) && copy_id_vec(&c->arena, &g->order, &c->order) &&
              copy_id_vec(&c->arena, &g->inputs, &c->inputs) && copy_id_vec(&c->arena, &g->outputs, &c->outputs) &&
              copy_id_vec(&c->arena, &g->inits, &c->inits) && copy_opsets(g, c) && copy_functions(g, c);
    if (!ok) {
        inv_graph_destroy(c);
        return INV_E_NOMEM;
    }
    *out = c;
    return INV_OK;
}

inv_status inv_graph_copy(const inv_graph *g, inv_graph **out) { return copy_graph(g, OWNS, out); }

inv_status inv_graph_variant(const inv_graph *g, inv_graph **out) { return copy_graph(g, BORROWS, out); }
