/* SPDX-License-Identifier: Apache-2.0
 * Weights that the file keeps in Constant nodes, or in initializers of bodies of control flow, become parameters like
 * initializers of the model: PaddlePaddle's converter and spox write all of theirs so. What is a weight is told by the
 * part that it plays, looked at through whatever computes with constants alone (Transpose, Cast, a product of two
 * weights):
 *
 *   - it is read as a weight, scale, bias, table or running statistic (core/merge.h);
 *   - it is added to the result of a product with a weight, along one axis: a bias;
 *   - it is a factor, a summand or a part of what has gone through a weight, in a file that keeps its weights so: of
 *     other files such constants are those of formulas.
 *
 * Numbers, what shapes and sizes are made of, and all else stay constants. A Constant that is a weight leaves the order
 * of its graph; its value is a parameter, and inv__impl.placed says where in the file its data are. Functions and
 * bodies get values that stand for a parameter of the main graph, so a function called twice has its weights once. */
#include <string.h>

#include "core/merge.h"
#include "core/node.h"
#include "core/op.h"
#include "importer/importer.h"

/* The part that a value plays, as bits. */
enum {
    WEIGHT = 1,  /* weight, scale, bias, table, statistic */
    SHIFT = 2,   /* added to the result of a product with a weight */
    OPERAND = 4, /* computed with what has gone through a weight */
    PART = 8,    /* a part of that */
    KNOWN = 16   /* must be known before the run */
};
/* How deep calls are followed; deeper ones leave constants as they are. */
enum { MOST_CALLS = 64, MOST_VIEWS = 8 };

typedef struct view {
    inv_graph *g;
    const char *key;    /* tells the graph from all others of the file */
    const char *label;  /* put before names, "" or with a slash behind */
    const char *within; /* NULL: the main graph or a block */
    uint8_t *part;      /* per value */
    bool *known;        /* per value: computed from constants and initializers alone */
    bool *weighed;      /* per value: has gone through a weight */
    bool block;         /* the main graph, or a block of a rewritten model */
} view;

typedef struct lifter {
    inv__loader *l;
    inv_graph *g;
    inv_arena *a;
    inv_callees callees;
    view *function; /* per function; g NULL: not looked at */
    uint32_t depth;
    bool habit;         /* the file keeps its weights in Constant nodes */
    size_t ours, theirs; /* weights in Constant nodes, in initializers */
    INV_VEC(view) views; /* all that were looked at, the main graph last */
    view newest;         /* body that was asked for */
    inv__names keys;     /* graph's key + value's name -> index in inits */
} lifter;

static inv_status look(lifter *x, view *w, bool weighed);

/* --- what there is --- */

static const inv_attr *constant_data(const inv_node *n)
{
    const inv_attr *a = inv_node_is(n, "Constant") && n->nattr == 1 && n->nout == 1 ? &n->attr[0] : NULL;
    if (!a || a->ref || n->out[0] == INV_NONE) return NULL;
    bool tensor = a->kind == INV_ATTR_TENSOR && !strcmp(a->name, "value") && a->tensor.bytes;
    return tensor || (a->kind == INV_ATTR_FLOATS && !strcmp(a->name, "value_floats")) ? a : NULL;
}

static bool is_large(const inv_data *d)
{
    return d->bytes && inv_dtype_is_float(d->dtype) && inv_shape_nelem(&d->shape) > 1;
}

/* The data of value v if it is a candidate: of a Constant node or an initializer of a body. */
static inv_status candidate(lifter *x, const view *w, inv_id v, inv_data *out)
{
    const inv_value *val = inv_val(w->g, v);
    *out = (inv_data){.bytes = NULL};
    if (val->role == INV_ROLE_CONST && !val->type && w->g != x->g) *out = val->data;
    const inv_attr *a = val->def == INV_NONE ? NULL : constant_data(inv_nod(w->g, val->def));
    if (a && a->kind == INV_ATTR_TENSOR) *out = a->tensor;
    if (a && a->kind == INV_ATTR_FLOATS) {
        const int64_t n = (int64_t)a->n;
        float *p = INV_ARENA_NEW(&x->g->arena, float, a->n + 1);
        if (!p) return INV_E_NOMEM;
        for (size_t i = 0; i < a->n; i++) p[i] = (float)a->floats[i];
        *out = (inv_data){INV_F32, inv_shape_of(1, &n), p, a->n * sizeof *p};
    }
    if (!is_large(out)) out->bytes = NULL;
    return INV_OK;
}

static bool any_of(const inv_node *n, const char *const *name)
{
    for (; *name; name++)
        if (inv_node_is(n, *name)) return true;
    return false;
}

static bool is_view(const inv_node *n)
{
    static const char *const names[] = {"Identity", "Cast",    "Transpose", "Reshape", "Unsqueeze",
                                        "Squeeze",  "Flatten", "Expand",    "Tile",    NULL};
    return any_of(n, names);
}

static bool is_product(const inv_node *n)
{
    static const char *const names[] = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "DeformConv", NULL};
    return any_of(n, names);
}

static bool is_weight_slot(const inv_node *n, uint32_t slot)
{
    if (inv_node_is(n, "Einsum")) return true;
    if (inv_node_is(n, "DeformConv")) return slot == 1 || slot == 3;
    switch (inv_use_role_at(n, slot, false)) {
    case INV_USE_MEAN:
    case INV_USE_VARIANCE:
    case INV_USE_FIXED:
    case INV_USE_SCALE:
    case INV_USE_BIAS:
    case INV_USE_SHIFT:
    case INV_USE_WEIGHT:
    case INV_USE_TABLE: return true;
    default: return false;
    }
}

/* Inputs that only values known before the run can be. */
static bool is_known_slot(const inv_node *n, uint32_t slot)
{
    static const char *const all[] = {"Range", "ConstantOfShape", "NonMaxSuppression", NULL};
    static const char *const behind_first[] = {"Resize", "Upsample", "Pad", "Clip", "Slice", "TopK", NULL};
    return any_of(n, all) || (slot && any_of(n, behind_first)) || (slot == 2 && inv_node_is(n, "OneHot"));
}

/* --- forward: what is known, what has gone through a weight --- */

static inv_status enter_function(lifter *x, inv_id fn)
{
    view *w = &x->function[fn];
    const inv_function *f = &x->g->function.at[fn];
    if (w->g || x->depth >= MOST_CALLS) return INV_OK;
    *w = (view){.g = f->body, .block = f->block, .label = ""};
    w->key = inv__arena_printf(x->a, "f%zu:%s%zu:%s|", strlen(f->domain), f->domain, strlen(f->name), f->name);
    if (!f->block) {
        w->label = inv__arena_printf(x->a, "%s/", f->name);
        w->within = inv__arena_printf(&x->g->arena, "function '%s'", f->name);
    }
    if (!w->key || !w->label || (!f->block && !w->within)) return INV_E_NOMEM;
    x->depth++;
    inv_status s = look(x, w, true);
    x->depth--;
    return s;
}

static inv_status enter_body(lifter *x, const view *around, const inv_node *n, const inv_attr *a, inv_graph *g,
                             view *w)
{
    const char *first = "", *name = inv_node_called(around->g, n);
    uint32_t bodies = 0;
    for (uint32_t k = n->nout; k-- > 0;)
        if (n->out[k] != INV_NONE) first = inv_val(around->g, n->out[k])->name;
    for (uint32_t k = 0; k < n->nattr; k++) bodies += n->attr[k].kind == INV_ATTR_GRAPH;
    *w = (view){.g = g};
    w->key = inv__arena_printf(x->a, "%sb%zu:%s%zu:%s|", around->key, strlen(first), first, strlen(a->name), a->name);
    w->label = bodies > 1 ? inv__arena_printf(x->a, "%s%s/%s/", around->label, name, a->name)
                          : inv__arena_printf(x->a, "%s%s/", around->label, name);
    w->within = inv__arena_printf(&x->g->arena, "'%s' of node '%s'%s%s", a->name, name, around->within ? " in " : "",
                                  around->within ? around->within : "");
    if (!w->key || !w->label || !w->within) return INV_E_NOMEM;
    return look(x, w, true);
}

static void note_values(const lifter *x, view *w, const inv_node *n)
{
    bool call = inv_callee(&x->callees, n) != INV_NONE, known = !call, weighed = call;
    for (uint32_t k = 0; k < n->nattr; k++)
        if (n->attr[k].kind == INV_ATTR_GRAPH) weighed = !(known = false);
    if (n->op && n->op->flags & INV_OP_RANDOM) known = false;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id v = n->in[k];
        if (v == INV_NONE) continue;
        known = known && w->known[v];
        weighed = weighed || w->weighed[v];
        if (!call && w->known[v] && is_weight_slot(n, k)) weighed = true;
    }
    if (inv_node_is(n, "Shape") || inv_node_is(n, "Size") || known) weighed = false;
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        w->known[n->out[k]] = known;
        w->weighed[n->out[k]] = weighed;
    }
}

/* --- backward: the part that each value plays --- */

/* The result of a product with a weight, or a view of one. */
static bool is_product_of_weight(const view *w, inv_id v)
{
    for (int i = 0; i < MOST_VIEWS && v != INV_NONE; i++) {
        inv_id def = inv_val(w->g, v)->def;
        const inv_node *n = def == INV_NONE ? NULL : inv_nod(w->g, def);
        if (!n) return false;
        if (is_view(n)) {
            v = n->nin ? n->in[0] : INV_NONE;
            continue;
        }
        for (uint32_t k = 0; is_product(n) && k < n->nin; k++)
            if (n->in[k] != INV_NONE && is_weight_slot(n, k) &&
                (w->known[n->in[k]] || inv_val(w->g, n->in[k])->role == INV_ROLE_INPUT))
                return true;
        return false;
    }
    return false;
}

/* How many inputs of an operator that joins its operands have gone through a weight, and how many of a sum are products
 * with one: counted once, since a sum may have thousands. */
typedef struct operands {
    uint32_t weighed, products;
} operands;

static bool has_gone_through(const view *w, inv_id v) { return v != INV_NONE && w->weighed[v]; }

static bool is_sum(const inv_node *n) { return inv_node_is(n, "Add") || inv_node_is(n, "Sum"); }

static operands count_operands(const view *w, const inv_node *n)
{
    operands of = {0};
    if (!is_sum(n) && !inv_node_is(n, "Mul") && !inv_node_is(n, "Concat")) return of;
    for (uint32_t k = 0; k < n->nin; k++) {
        of.weighed += has_gone_through(w, n->in[k]);
        of.products += is_sum(n) && is_product_of_weight(w, n->in[k]);
    }
    return of;
}

/* By what the other operands are. */
static uint8_t part_beside(const view *w, const inv_node *n, uint32_t slot, operands of)
{
    uint8_t bits = 0;
    if (of.weighed > has_gone_through(w, n->in[slot])) bits |= inv_node_is(n, "Concat") ? PART : OPERAND;
    if (of.products && of.products > is_product_of_weight(w, n->in[slot])) bits |= SHIFT;
    return bits;
}

static uint8_t part_in_body(lifter *x, const inv_node *n, uint32_t slot)
{
    uint8_t bits = 0;
    for (uint32_t i = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        if (a->kind != INV_ATTR_GRAPH || !a->graph || slot < a->captured || slot - a->captured >= a->ncaptured)
            continue;
        for (size_t k = x->views.n; k-- > 0 && x->newest.g != a->graph;)
            if (x->views.at[k].g == a->graph) x->newest = x->views.at[k];
        if (x->newest.g != a->graph) continue;
        bits |= x->newest.part[a->graph->inputs.at[a->graph->inputs.n - a->ncaptured + (slot - a->captured)]];
    }
    return bits;
}

static uint8_t part_at(lifter *x, const view *w, const inv_node *n, uint32_t slot, operands of)
{
    inv_id fn = inv_callee(&x->callees, n);
    if (slot >= inv_node_listed(n)) return part_in_body(x, n, slot);
    if (fn != INV_NONE) {
        const view *f = &x->function[fn];
        return f->part && slot < f->g->inputs.n ? f->part[f->g->inputs.at[slot]] : 0;
    }
    bool through = is_view(n) && slot == 0;
    uint8_t bits = 0;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && (through || w->known[n->out[k]])) bits |= w->part[n->out[k]];
    if (through || (n->nout && n->out[0] != INV_NONE && w->known[n->out[0]])) return bits;
    if (is_known_slot(n, slot)) return KNOWN;
    return is_weight_slot(n, slot) ? WEIGHT : part_beside(w, n, slot, of);
}

/* --- one graph --- */

static inv_status look_inside(lifter *x, view *w)
{
    inv_graph *g = w->g;
    size_t body = 0; /* as importing has put them: by node and attribute */
    for (size_t i = 0; i < g->node.n; i++) {
        const inv_node *n = inv_nod(g, (inv_id)i);
        inv_id fn = inv_callee(&x->callees, n);
        if (fn != INV_NONE) INV_TRY(enter_function(x, fn));
        for (uint32_t k = 0; k < n->nattr; k++) {
            view inner;
            if (n->attr[k].kind != INV_ATTR_GRAPH || !n->attr[k].graph || body >= g->body.n) continue;
            INV_TRY(enter_body(x, w, n, &n->attr[k], g->body.at[body++], &inner));
        }
    }
    return INV_OK;
}

static void count_weights(lifter *x, const view *w)
{
    for (inv_id v = 0; v < w->g->value.n; v++) {
        const inv_value *val = inv_val(w->g, v);
        if (!(w->part[v] & WEIGHT) || w->part[v] & KNOWN) continue;
        if (val->def != INV_NONE) x->ours += constant_data(inv_nod(w->g, val->def)) != NULL;
        else x->theirs += val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST;
    }
}

static inv_status look(lifter *x, view *w, bool weighed)
{
    inv_graph *g = w->g;
    size_t nv = g->value.n;
    w->part = INV_ARENA_NEW(x->a, uint8_t, nv + 1);
    w->known = INV_ARENA_NEW(x->a, bool, nv + 1);
    w->weighed = INV_ARENA_NEW(x->a, bool, nv + 1);
    if (!w->part || !w->known || !w->weighed) return INV_E_NOMEM;
    INV_TRY(look_inside(x, w));
    for (inv_id v = 0; v < nv; v++) {
        inv_role r = (inv_role)inv_val(g, v)->role;
        w->known[v] = r == INV_ROLE_PARAM || r == INV_ROLE_CONST;
        w->weighed[v] = r == INV_ROLE_INPUT && weighed;
    }
    for (size_t i = 0; i < g->order.n; i++) note_values(x, w, inv_nod(g, g->order.at[i]));
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const operands of = count_operands(w, n);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) w->part[n->in[k]] |= part_at(x, w, n, k, of);
    }
    count_weights(x, w);
    return inv_vec_push(x->a, &x->views, *w) ? INV_OK : INV_E_NOMEM;
}

/* --- making parameters --- */

static bool varies(const inv_data *d)
{
    size_t size = inv_dtype_size(d->dtype);
    return d->nbytes > size && memcmp(d->bytes, (const char *)d->bytes + size, d->nbytes - size) != 0;
}

static bool along_one_axis(const inv_shape *s)
{
    int axes = 0;
    for (int i = 0; i < s->rank; i++) axes += s->dim[i] != 1;
    return axes == 1;
}

static bool is_weight(const lifter *x, const view *w, inv_id v, const inv_data *d)
{
    uint8_t part = w->part[v];
    bool habit = x->habit || inv_val(w->g, v)->role == INV_ROLE_CONST;
    if (part & KNOWN) return false;
    if (part & WEIGHT || (part & SHIFT && along_one_axis(&d->shape))) return true;
    return habit && (part & OPERAND || (part & PART && varies(d)));
}

static inv_id main_value(lifter *x, const view *w, inv_id v, const inv_data *d)
{
    if (w->g == x->g) return v;
    const char *name = inv__arena_printf(x->a, "%s%s", w->label, inv_val(w->g, v)->name);
    if (name && inv_graph_find(x->g, name) != INV_NONE) name = inv_graph_fresh(x->g, name);
    return name ? inv_graph_value(x->g, name, INV_ROLE_PARAM, d->dtype, &d->shape) : INV_NONE;
}

static void make_param(inv_value *val, const inv_data *d, inv_id init)
{
    val->role = INV_ROLE_PARAM;
    val->mem = INV_MEM_PARAM;
    val->def = INV_NONE;
    val->dtype = d->dtype;
    val->shape = d->shape;
    val->dim_param = NULL;
    val->data = *d;
    val->init = init;
}

static inv_status lift(lifter *x, const view *w, inv_id v, const inv_data *d)
{
    inv_id init = (inv_id)x->g->inits.n, def = inv_val(w->g, v)->def, p = main_value(x, w, v, d);
    const char *key = inv__arena_printf(x->a, "%s%s", w->key, inv_val(w->g, v)->name);
    bool taken;
    if (p == INV_NONE || !key) return x->g->failed ? x->g->failed : INV_E_NOMEM;
    make_param(inv_val(w->g, v), d, init);
    make_param(inv_val(x->g, p), d, init);
    inv_val(w->g, v)->source = def != INV_NONE ? inv_nod(w->g, def)->source : INV_NONE;
    inv_val(x->g, p)->within = w->within;
    inv_val(x->g, p)->source = w->block && def != INV_NONE ? inv_nod(w->g, def)->source : INV_NONE;
    INV_TRY(inv__names_put(&x->keys, key, init, &taken));
    return inv_vec_push(&x->g->arena, &x->g->inits, p) ? INV_OK : INV_E_NOMEM;
}

static inv_status lift_all(lifter *x, const view *w)
{
    inv_graph *g = w->g;
    size_t n = 0;
    for (inv_id v = 0, nv = (inv_id)g->value.n; v < nv; v++) {
        inv_data d;
        if (!w->part[v]) continue;
        INV_TRY(candidate(x, w, v, &d));
        if (d.bytes && is_weight(x, w, v, &d)) INV_TRY(lift(x, w, v, &d));
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *c = inv_nod(g, g->order.at[i]);
        if (!constant_data(c) || inv_val(g, c->out[0])->role != INV_ROLE_PARAM) g->order.at[n++] = g->order.at[i];
    }
    g->order.n = n;
    return INV_OK;
}

/* --- where their data are in the file --- */

typedef struct walk {
    lifter *x;
    const ProtobufCMessageDescriptor *d; /* of the message at hand: a graph or a function */
    const char *key;
    size_t begin, end;
} walk;

static inv_status next_field(lifter *x, size_t at, size_t end, inv__field *f)
{
    const char *wrong = inv__wire_field(x->l->impl->file.base, at, end, f);
    if (!wrong) return INV_OK;
    return inv__fail(x->l->ctx, INV_E_IO, "'%s' was changed while it was loaded: byte %zu: %s", x->l->model->path, at,
                     wrong);
}

/* The first entry of a text field that is not empty, or the last of one that may be there once; "". */
static inv_status text_in(lifter *x, size_t begin, size_t end, uint32_t id, bool first, const char **out)
{
    inv__field f;
    *out = "";
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(next_field(x, pos, end, &f));
        if (f.id != id || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || (first && **out)) continue;
        *out = inv__arena_strndup(x->a, (const char *)x->l->impl->file.base + f.body, f.end - f.body);
        if (!*out) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status place(lifter *x, const char *key, const char *name, size_t at)
{
    inv__impl *impl = x->l->impl;
    const char *full = inv__arena_printf(x->a, "%s%s", key, name);
    if (!full) return INV_E_NOMEM;
    uint32_t init = inv__names_get(&x->keys, full);
    if (init == INV_NONE) return INV_OK;
    inv__place p = {at, init};
    return inv_vec_push(&impl->arena, &impl->placed, p) ? INV_OK : INV_E_NOMEM;
}

static inv_status walk_graph(const walk *w);

static inv_status walk_node(const walk *w, const inv__field *node)
{
    lifter *x = w->x;
    const char *out, *op, *name;
    inv__field f, t;
    INV_TRY(text_in(x, node->body, node->end, INV__NODE_OUTPUT, true, &out));
    INV_TRY(text_in(x, node->body, node->end, INV__NODE_OP_TYPE, false, &op));
    bool constant = strcmp(op, "Constant") == 0;
    for (size_t pos = node->body; pos < node->end; pos = f.end) {
        INV_TRY(next_field(x, pos, node->end, &f));
        if (f.id != INV__NODE_ATTRIBUTE || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        INV_TRY(text_in(x, f.body, f.end, INV__ATTR_NAME, false, &name));
        if (constant && !strcmp(name, "value_floats")) INV_TRY(place(x, w->key, out, f.body));
        for (size_t at = f.body; at < f.end; at = t.end) {
            INV_TRY(next_field(x, at, f.end, &t));
            if (t.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
            if (constant && t.id == INV__ATTR_T) INV_TRY(place(x, w->key, out, t.body));
            if (t.id != INV__ATTR_G) continue;
            const char *key = inv__arena_printf(x->a, "%sb%zu:%s%zu:%s|", w->key, strlen(out), out, strlen(name), name);
            if (!key) return INV_E_NOMEM;
            INV_TRY(walk_graph(&(walk){x, &onnx__graph_proto__descriptor, key, t.body, t.end}));
        }
    }
    return INV_OK;
}

/* As deep as messages may be nested (prescan.c). */
static inv_status walk_graph(const walk *w)
{
    bool function = w->d == &onnx__function_proto__descriptor;
    inv__field f;
    for (size_t pos = w->begin; pos < w->end; pos = f.end) {
        const char *name;
        INV_TRY(next_field(w->x, pos, w->end, &f));
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (f.id == (function ? (uint32_t)INV__FUNCTION_NODE : (uint32_t)INV__GRAPH_NODE)) INV_TRY(walk_node(w, &f));
        if (function || f.id != INV__GRAPH_INITIALIZER) continue;
        INV_TRY(text_in(w->x, f.body, f.end, INV__TENSOR_NAME, false, &name));
        INV_TRY(place(w->x, w->key, name, f.body));
    }
    return INV_OK;
}

static inv_status walk_file(lifter *x)
{
    size_t end = x->l->impl->file.nbytes;
    inv__field f;
    for (size_t pos = 0; pos < end; pos = f.end) {
        const char *domain, *name, *key = "m";
        INV_TRY(next_field(x, pos, end, &f));
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (f.id == INV__MODEL_GRAPH)
            INV_TRY(walk_graph(&(walk){x, &onnx__graph_proto__descriptor, key, f.body, f.end}));
        if (f.id != INV__MODEL_FUNCTION) continue;
        INV_TRY(text_in(x, f.body, f.end, INV__FUNCTION_DOMAIN, false, &domain));
        INV_TRY(text_in(x, f.body, f.end, INV__FUNCTION_NAME, false, &name));
        domain = inv__domain(domain);
        key = inv__arena_printf(x->a, "f%zu:%s%zu:%s|", strlen(domain), domain, strlen(name), name);
        if (!key) return INV_E_NOMEM;
        INV_TRY(walk_graph(&(walk){x, &onnx__function_proto__descriptor, key, f.body, f.end}));
    }
    return INV_OK;
}

uint32_t inv__placed_at(const inv__impl *impl, size_t at)
{
    size_t low = 0, high = impl->placed.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (impl->placed.at[mid].at < at) low = mid + 1;
        else high = mid;
    }
    return low < impl->placed.n && impl->placed.at[low].at == at ? impl->placed.at[low].init : INV_NONE;
}

/* --- all of them --- */

static inv_status lift_file(lifter *x)
{
    view w = {.g = x->g, .key = "m", .label = "", .block = true};
    x->function = INV_ARENA_NEW(x->a, view, x->g->function.n + 1);
    if (!x->function) return INV_E_NOMEM;
    INV_TRY(inv_callees_init(&x->callees, x->g, x->a));
    INV_TRY(look(x, &w, false));
    x->habit = x->ours > 0 && x->ours >= x->theirs;
    size_t before = x->g->inits.n;
    INV_TRY(lift_all(x, &x->views.at[x->views.n - 1]));
    for (size_t i = 0; i + 1 < x->views.n; i++) INV_TRY(lift_all(x, &x->views.at[i]));
    return x->g->inits.n > before ? walk_file(x) : INV_OK;
}

inv_status inv__lift_weights(inv__loader *l)
{
    lifter x = {.l = l, .g = l->model->graph, .a = &l->scratch, .keys.a = &l->scratch};
    return lift_file(&x);
}
