/* SPDX-License-Identifier: Apache-2.0
 * Weights that the file keeps in Constant nodes, or in initializers of bodies of control flow, become parameters like
 * initializers of the model: PaddlePaddle's converter and spox write all of theirs so. What is a weight is told by the
 * part that it plays, looked at through whatever computes with constants alone (Transpose, Cast, a product of two
 * weights):
 *
 *   - it is read as a weight, scale, bias, table or running statistic (core/weights/shared_weights.h);
 *   - it is added to the result of a product with a weight, along one axis: a bias. One number is a bias where the
 *     product has one result; elsewhere it is added to all, as formulas do;
 *   - it is a factor, a summand or a part of what has gone through a weight, in a file that keeps its weights so: of
 *     other files such constants are those of formulas.
 *
 * Other single numbers, what shapes and sizes are made of, and all else stay constants, unless the caller names them. A
 * Constant that is a weight leaves the order of its graph; its value is a parameter, and inv_impl.placed says where in
 * the file its data are (placed.c). Functions and bodies get values that stand for a parameter of the main graph, so a
 * function called twice has its weights once.
 *
 * Every graph is looked at three times: forward by itself, for whether it has a weight on the way to its results,
 * callees first; forward again, callers first, for what calls and bodies are given; backward for the parts, callees
 * first. A block of a rewritten model is looked at where it is called, as if its nodes stood there: a rewritten model
 * has the weights that the model had. */
#include <string.h>

#include "core/graph/node.h"
#include "core/graph/op.h"
#include "core/weights/shared_weights.h"
#include "importer/importer.h"

/* The part that a value plays, as bits. */
enum {
    WEIGHT = 1,  /* weight, scale, bias, table, statistic */
    SHIFT = 2,   /* added to the result of a product with a weight */
    OPERAND = 4, /* computed with what has gone through a weight */
    PART = 8,    /* a part of that */
    KNOWN = 16,  /* must be known before the run */
    NUMBER = 32, /* added to a product that has one result */
    MET = 64,    /* computed with what depends on the data, weighed or not */
    JOINED = 128 /* a part of that */
};
/* What is known of a value, as bits. */
enum {
    PRODUCT = 1, /* the product with a weight, or what hands it on */
    SINGLE = 2,  /* ... that has one result (of each row, or at each place), and no bias yet */
    ENTERS = 4,  /* it comes from outside, and may be a weight there */
    FIRST_ONE = 8,
    SECOND_ONE = 16,
    LAST_ONE = 32, /* a constant or initializer of two axes or more, of which these have the extent 1 */
    MATRIX = 64,   /* ... of two */
    TOLD = 128     /* of inputs: they have what all have that was given for them */
};
/* How deep calls are followed; deeper ones leave constants as they are. */
enum { MOST_CALLS = 64 };
/* How a block was looked at where it is called. */
enum { FORWARD = 1, BACKWARD = 2 };

typedef struct view {
    inv_graph *g;
    const char *key;    /* tells the graph from all others of the file */
    const char *label;  /* put before names, "" or with a slash behind */
    const char *within; /* NULL: the main graph or a block */
    uint8_t *part;      /* per value; NULL: not looked at yet */
    bool *known;        /* per value: computed from constants and initializers alone; of a body around it, too */
    bool *weighed;      /* per value: has gone through a weight; of inputs, what callers have noted */
    uint8_t *fact;      /* per value: PRODUCT and the like */
    uint8_t *looked;    /* of a block: FORWARD, BACKWARD */
    size_t *inner;      /* per body of the graph: its index in lifter.views */
    size_t *first;      /* per node: its first body */
    bool block;         /* the main graph, or a block of a rewritten model */
} view;

typedef struct lifter {
    inv_loader *l;
    inv_graph *g;
    inv_arena *a;
    inv_callees callees;
    view *function; /* per function; g NULL: not looked at */
    uint32_t depth;
    bool habit;          /* the file keeps its weights in Constant nodes */
    size_t ours, theirs; /* weights in Constant nodes, in initializers */
    INV_VEC(view) views; /* all, the main graph last, whatever calls behind what it calls */
    inv_names keys;      /* graph's key + value's name -> index in inits */
} lifter;

static inv_status enter(lifter *x, view *w);

/* --- what there is --- */

static const inv_attr *constant_data(const inv_node *n)
{
    const inv_attr *a = inv_node_is(n, "Constant") && n->nattr == 1 && n->nout == 1 ? &n->attr[0] : NULL;
    if (!a || a->ref || n->out[0] == INV_NONE) return NULL;
    bool tensor = a->kind == INV_ATTR_TENSOR && !strcmp(a->name, "value") && a->tensor.bytes;
    return tensor || (a->kind == INV_ATTR_FLOATS && !strcmp(a->name, "value_floats")) ? a : NULL;
}

static bool is_candidate(const inv_data *d)
{
    return d->bytes && inv_dtype_is_float(d->dtype) && inv_shape_nelem(&d->shape) > 0;
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
    if (!is_candidate(out)) out->bytes = NULL;
    return INV_OK;
}

static bool is_product(const inv_node *n) { return n->op && n->op->flags & INV_OP_PRODUCT; }

static bool is_weight_slot(const inv_node *n, uint32_t slot)
{
    if (inv_node_is(n, "Einsum")) return true;
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

/* Inputs that are no weights: what must be known before the run, exponents, what is compared, states and bases. */
static bool is_known_slot(const inv_node *n, uint32_t slot)
{
    switch (inv_use_role_at(n, slot, false)) {
    case INV_USE_STEERS:
    case INV_USE_CONSTANT:
    case INV_USE_STATE: return true;
    default: return false;
    }
}

/* --- all graphs of the file --- */

static inv_status enter_function(lifter *x, inv_id fn)
{
    view *w = &x->function[fn];
    const inv_function *f = &x->g->function.at[fn];
    if (w->g || x->depth >= MOST_CALLS) return INV_OK;
    *w = (view){.g = f->body, .block = f->block, .label = ""};
    w->key = inv_arena_printf(x->a, "f%zu:%s%zu:%s|", strlen(f->domain), f->domain, strlen(f->name), f->name);
    if (!f->block) {
        w->label = inv_arena_printf(x->a, "%s/", f->name);
        w->within = inv_arena_printf(&x->g->arena, "function '%s'", f->name);
    }
    if (!w->key || !w->label || (!f->block && !w->within)) return INV_E_NOMEM;
    x->depth++;
    inv_status s = enter(x, w);
    x->depth--;
    return s;
}

static inv_status enter_body(lifter *x, const view *around, const inv_node *n, const inv_attr *a, inv_graph *g, view *w)
{
    const char *first = "", *name = inv_node_called(around->g, n);
    uint32_t bodies = 0;
    for (uint32_t k = n->nout; k-- > 0;)
        if (n->out[k] != INV_NONE) first = inv_val(around->g, n->out[k])->name;
    for (uint32_t k = 0; k < n->nattr; k++) bodies += n->attr[k].kind == INV_ATTR_GRAPH;
    *w = (view){.g = g};
    w->key = inv_arena_printf(x->a, "%sb%zu:%s%zu:%s|", around->key, strlen(first), first, strlen(a->name), a->name);
    w->label = bodies > 1 ? inv_arena_printf(x->a, "%s%s/%s/", around->label, name, a->name)
                          : inv_arena_printf(x->a, "%s%s/", around->label, name);
    w->within = inv_arena_printf(&x->g->arena, "'%s' of node '%s'%s%s", a->name, name, around->within ? " in " : "",
                                 around->within ? around->within : "");
    if (!w->key || !w->label || !w->within) return INV_E_NOMEM;
    return enter(x, w);
}

static inv_status look_inside(lifter *x, view *w)
{
    inv_graph *g = w->g;
    size_t body = 0; /* as importing has put them: by node and attribute */
    for (size_t i = 0; i < g->node.n; i++) {
        const inv_node *n = inv_nod(g, (inv_id)i);
        inv_id fn = inv_callee(&x->callees, n);
        if (fn != INV_NONE) INV_TRY(enter_function(x, fn));
        w->first[i] = body;
        for (uint32_t k = 0; k < n->nattr; k++) {
            view inner;
            if (n->attr[k].kind != INV_ATTR_GRAPH || !n->attr[k].graph || body >= g->body.n) continue;
            INV_TRY(enter_body(x, w, n, &n->attr[k], g->body.at[body], &inner));
            w->inner[body++] = x->views.n - 1;
        }
    }
    return INV_OK;
}

static inv_status enter(lifter *x, view *w)
{
    const size_t nv = w->g->value.n;
    w->part = INV_ARENA_NEW(x->a, uint8_t, nv + 1);
    w->known = INV_ARENA_NEW(x->a, bool, nv + 1);
    w->weighed = INV_ARENA_NEW(x->a, bool, nv + 1);
    w->fact = INV_ARENA_NEW(x->a, uint8_t, nv + 1);
    w->looked = INV_ARENA_NEW(x->a, uint8_t, 1);
    w->inner = INV_ARENA_NEW(x->a, size_t, w->g->body.n + 1);
    w->first = INV_ARENA_NEW(x->a, size_t, w->g->node.n + 1);
    if (!w->part || !w->known || !w->weighed || !w->fact || !w->looked || !w->inner || !w->first) return INV_E_NOMEM;
    INV_TRY(look_inside(x, w));
    return inv_vec_push(x->a, &x->views, *w) ? INV_OK : INV_E_NOMEM;
}

/* The graphs that a node runs: the function that it calls, or the bodies that it has. NULL: it has no more, or that was
 * too deep to be looked at; *first, *slot: the graph's inputs from `first` on are the node's from `slot` on. */
static const view *graph_of(const lifter *x, const view *w, inv_id id, uint32_t i, size_t *first, uint32_t *slot)
{
    const inv_node *n = inv_nod(w->g, id);
    const inv_id fn = inv_callee(&x->callees, n);
    size_t body = w->first[id];
    *first = *slot = 0;
    if (fn != INV_NONE) return i == 0 && x->function[fn].part ? &x->function[fn] : NULL;
    for (uint32_t k = 0; k < n->nattr; k++) {
        const inv_attr *a = &n->attr[k];
        if (a->kind != INV_ATTR_GRAPH || !a->graph || body >= w->g->body.n) continue;
        const size_t at = w->inner[body++];
        if (i--) continue;
        *first = a->graph->inputs.n - a->ncaptured;
        *slot = a->captured;
        return &x->views.at[at];
    }
    return NULL;
}

/* --- forward: what is known, what has gone through a weight --- */

static bool has_gone_through(const view *w, inv_id v) { return v != INV_NONE && w->weighed[v]; }

static bool gives_weighed(const view *w)
{
    bool any = false;
    for (size_t k = 0; k < w->g->outputs.n; k++) any = any || w->weighed[w->g->outputs.at[k]];
    return any;
}

/* Tells what a node runs which of its inputs have gone through a weight, and their facts; what a loop carries may have,
 * once. A body is told what is known around it, too: it may be a part of a weight that is put together inside. */
static void note_given(const lifter *x, const view *w, inv_id id)
{
    const inv_node *n = inv_nod(w->g, id);
    const uint32_t listed = inv_node_listed(n);
    const bool called = inv_callee(&x->callees, n) != INV_NONE;
    const view *f;
    size_t first;
    uint32_t slot;
    for (uint32_t i = 0; (f = graph_of(x, w, id, i, &first, &slot)); i++) {
        bool carried = first > 0 && gives_weighed(f);
        for (uint32_t k = 0; k < listed && first > 0; k++) carried = carried || has_gone_through(w, n->in[k]);
        for (size_t k = 0; k < first; k++) f->weighed[f->g->inputs.at[k]] |= carried;
        for (uint32_t k = slot; k < n->nin && first + (k - slot) < f->g->inputs.n; k++) {
            const inv_id v = n->in[k], to = f->g->inputs.at[first + (k - slot)];
            const uint8_t given = v == INV_NONE ? 0 : (uint8_t)(w->fact[v] & ~ENTERS), is = f->fact[to];
            f->weighed[to] |= has_gone_through(w, v);
            f->fact[to] = is & TOLD ? is & (given | TOLD | ENTERS) : is | given | TOLD;
            if (!called) f->known[to] = v != INV_NONE && w->known[v];
        }
    }
}

/* --- forward: products and the extents of weights --- */

static uint8_t extent_facts(const inv_shape *s)
{
    if (s->rank < 2) return 0;
    return (uint8_t)((s->dim[0] == 1 ? FIRST_ONE : 0) | (s->dim[1] == 1 ? SECOND_ONE : 0) |
                     (s->dim[s->rank - 1] == 1 ? LAST_ONE : 0) | (s->rank == 2 ? MATRIX : 0));
}

/* Whether a product has one result (of each row, or at each place), and no bias yet. */
static bool has_one_result(const view *w, const inv_node *n)
{
    if (n->nin < 2 || n->in[1] == INV_NONE || (n->nin > 2 && n->in[2] != INV_NONE)) return false;
    const uint8_t of = w->fact[n->in[1]];
    if (inv_node_is(n, "Conv") || (inv_node_is(n, "Gemm") && inv_attr_int(n, "transB", 0))) return of & FIRST_ONE;
    if (inv_node_is(n, "ConvTranspose")) return of & SECOND_ONE && inv_attr_int(n, "group", 1) == 1;
    return (inv_node_is(n, "MatMul") || inv_node_is(n, "Gemm")) && of & LAST_ONE;
}

static uint8_t facts_given(const view *w, const inv_node *n)
{
    const inv_attr *a = constant_data(n);
    const uint8_t of = n->nin && n->in[0] != INV_NONE ? (uint8_t)(w->fact[n->in[0]] & ~(ENTERS | TOLD)) : 0;
    const inv_hands hands = inv_node_hands(n);
    if (a) return a->kind == INV_ATTR_TENSOR ? extent_facts(&a->tensor.shape) : 0;
    if (hands == INV_HANDS_SAME) return of;
    if (inv_node_is(n, "Transpose") && of & MATRIX)
        return (uint8_t)((of & (PRODUCT | SINGLE | MATRIX)) | (of & LAST_ONE ? FIRST_ONE : 0) |
                         (of & FIRST_ONE ? LAST_ONE | SECOND_ONE : 0));
    if (hands == INV_HANDS_ALL) return of & (PRODUCT | SINGLE);
    for (uint32_t k = 0; is_product(n) && k < n->nin; k++)
        if (n->in[k] != INV_NONE && is_weight_slot(n, k) && (w->known[n->in[k]] || w->fact[n->in[k]] & ENTERS))
            return has_one_result(w, n) ? PRODUCT | SINGLE : PRODUCT;
    return 0;
}

static void note_values(const lifter *x, const view *w, inv_id id)
{
    const inv_node *n = inv_nod(w->g, id);
    bool runs = inv_callee(&x->callees, n) != INV_NONE, known, weighed = false;
    const view *f;
    size_t first;
    uint32_t slot;
    for (uint32_t k = 0; k < n->nattr; k++) runs = runs || n->attr[k].kind == INV_ATTR_GRAPH;
    known = !runs && !(n->op && n->op->flags & INV_OP_RANDOM);
    for (uint32_t i = 0; (f = graph_of(x, w, id, i, &first, &slot)); i++) weighed = weighed || gives_weighed(f);
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id v = n->in[k];
        if (v == INV_NONE) continue;
        known = known && w->known[v];
        weighed = weighed || w->weighed[v] || (!runs && w->known[v] && is_weight_slot(n, k));
    }
    if (inv_node_is(n, "Shape") || inv_node_is(n, "Size") || known) weighed = false;
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        w->known[n->out[k]] = known;
        w->weighed[n->out[k]] = weighed;
        w->fact[n->out[k]] = runs || k ? 0 : facts_given(w, n);
    }
}

static void look_forward(const lifter *x, const view *w, bool note);

/* The block that a node calls; NULL: it calls none. */
static const view *block_at(const lifter *x, const view *w, inv_id id)
{
    const inv_id fn = inv_callee(&x->callees, inv_nod(w->g, id));
    return fn != INV_NONE && x->function[fn].part && x->function[fn].block ? &x->function[fn] : NULL;
}

/* What a block is given where it is called first, and what it gives. */
static void look_through(const lifter *x, const view *w, const inv_node *n, const view *f)
{
    if (!(*f->looked & FORWARD)) {
        *f->looked |= FORWARD;
        for (size_t k = 0; k < f->g->inputs.n; k++) {
            const inv_id v = k < n->nin ? n->in[k] : INV_NONE, to = f->g->inputs.at[k];
            f->known[to] = v != INV_NONE && w->known[v];
            f->weighed[to] = has_gone_through(w, v);
            f->fact[to] = v == INV_NONE ? 0 : w->fact[v];
        }
        look_forward(x, f, true);
    }
    for (uint32_t k = 0; k < n->nout && k < f->g->outputs.n; k++) {
        const inv_id v = n->out[k], from = f->g->outputs.at[k];
        if (v == INV_NONE) continue;
        w->known[v] = f->known[from];
        w->weighed[v] = f->weighed[from];
        w->fact[v] = f->fact[from];
    }
}

static void look_forward(const lifter *x, const view *w, bool note)
{
    for (inv_id v = 0; v < w->g->value.n; v++) {
        const inv_value *val = inv_val(w->g, v);
        const bool held = val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST, in = val->role == INV_ROLE_INPUT;
        w->known[v] = held || (in && w->known[v]);
        if (held) w->fact[v] = extent_facts(&val->shape);
        else if (in && !(*w->looked & FORWARD)) w->fact[v] |= ENTERS;
    }
    for (size_t i = 0; i < w->g->order.n; i++) {
        const inv_id id = w->g->order.at[i];
        const view *f = note ? block_at(x, w, id) : NULL;
        if (f) {
            look_through(x, w, inv_nod(w->g, id), f);
            continue;
        }
        if (note) note_given(x, w, id);
        note_values(x, w, id);
    }
}

/* --- backward: the part that each value plays --- */

/* How many inputs of an operator that joins its operands have gone through a weight, and how many of a sum are products
 * with one: counted once, since a sum may have thousands. */
typedef struct operands {
    uint32_t weighed, met, products, numbers; /* met: not known; numbers: of the products, those with one result */
} operands;

static bool is_sum(const inv_node *n) { return inv_node_is(n, "Add") || inv_node_is(n, "Sum"); }

static operands count_operands(const view *w, const inv_node *n)
{
    operands of = {0};
    if (!is_sum(n) && !inv_node_is(n, "Mul") && !inv_node_is(n, "Concat")) return of;
    for (uint32_t k = 0; k < n->nin; k++) {
        of.weighed += has_gone_through(w, n->in[k]);
        of.met += n->in[k] != INV_NONE && !w->known[n->in[k]];
        const uint8_t fact = is_sum(n) && n->in[k] != INV_NONE ? w->fact[n->in[k]] : 0;
        of.products += (fact & PRODUCT) != 0;
        of.numbers += (fact & SINGLE) != 0;
    }
    return of;
}

/* By what the other operands are. */
static uint8_t part_beside(const view *w, const inv_node *n, uint32_t slot, operands of)
{
    const bool concat = inv_node_is(n, "Concat");
    uint8_t bits = 0;
    if (of.weighed > has_gone_through(w, n->in[slot])) bits |= concat ? PART : OPERAND;
    if (of.met > !w->known[n->in[slot]]) bits |= concat ? JOINED : MET;
    if (of.products > ((w->fact[n->in[slot]] & PRODUCT) != 0)) bits |= of.numbers ? SHIFT | NUMBER : SHIFT;
    return bits;
}

static uint8_t part_inside(const lifter *x, const view *w, inv_id id, uint32_t at)
{
    const view *f;
    uint8_t bits = 0;
    size_t first;
    uint32_t slot;
    for (uint32_t i = 0; (f = graph_of(x, w, id, i, &first, &slot)); i++)
        if (at >= slot && first + (at - slot) < f->g->inputs.n) bits |= f->part[f->g->inputs.at[first + (at - slot)]];
    return bits;
}

static uint8_t part_at(const lifter *x, const view *w, inv_id id, uint32_t slot, operands of)
{
    const inv_node *n = inv_nod(w->g, id);
    if (slot >= inv_node_listed(n) || inv_callee(&x->callees, n) != INV_NONE) return part_inside(x, w, id, slot);
    const bool through = inv_node_hands(n) != INV_HANDS_NOTHING && slot == 0;
    uint8_t bits = 0;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && (through || w->known[n->out[k]])) bits |= w->part[n->out[k]];
    if (n->nout && n->out[0] != INV_NONE && w->known[n->out[0]]) return bits;
    if (is_known_slot(n, slot)) return KNOWN;
    if (is_weight_slot(n, slot)) return bits | WEIGHT;
    return through ? bits : part_beside(w, n, slot, of);
}

/* --- one graph --- */

static void count_weights(lifter *x, const view *w)
{
    for (inv_id v = 0; v < w->g->value.n; v++) {
        const inv_value *val = inv_val(w->g, v);
        if (!(w->part[v] & WEIGHT) || w->part[v] & KNOWN) continue;
        if (val->def != INV_NONE) x->ours += constant_data(inv_nod(w->g, val->def)) != NULL;
        else x->theirs += val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST;
    }
}

static void look_backward(lifter *x, const view *w)
{
    for (size_t i = w->g->order.n; i-- > 0;) {
        const inv_id id = w->g->order.at[i];
        const inv_node *n = inv_nod(w->g, id);
        const view *f = block_at(x, w, id);
        if (f && !(*f->looked & BACKWARD)) {
            *f->looked |= BACKWARD;
            for (uint32_t k = 0; k < n->nout && k < f->g->outputs.n; k++)
                if (n->out[k] != INV_NONE) f->part[f->g->outputs.at[k]] |= w->part[n->out[k]];
            look_backward(x, f);
        }
        const operands of = count_operands(w, n);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) w->part[n->in[k]] |= part_at(x, w, id, k, of);
    }
    count_weights(x, w);
}

/* Blocks that are called are looked at there. */
static void look_at_all(lifter *x)
{
    const size_t n = x->views.n;
    for (size_t i = 0; i < n; i++) look_forward(x, &x->views.at[i], false);
    for (size_t i = n; i-- > 0;)
        if (!(*x->views.at[i].looked & FORWARD)) look_forward(x, &x->views.at[i], true);
    for (size_t i = 0; i < n; i++)
        if (!(*x->views.at[i].looked & FORWARD)) look_backward(x, &x->views.at[i]);
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

static bool is_taken(const lifter *x, const view *w, inv_id v)
{
    const inv_model *m = x->l->model;
    const size_t n = strlen(w->label);
    for (size_t i = 0; i < m->ntaken; i++)
        if (!strncmp(m->taken[i], w->label, n) && !strcmp(m->taken[i] + n, inv_val(w->g, v)->name)) return true;
    return false;
}

/* Of the initializers of a body those are weights that data meet, as in the main graph. */
static bool is_weight(const lifter *x, const view *w, inv_id v, const inv_data *d)
{
    const uint8_t part = w->part[v];
    const bool initializer = inv_val(w->g, v)->role == INV_ROLE_CONST;
    const uint8_t operand = initializer ? OPERAND | MET : OPERAND, joined = initializer ? PART | JOINED : PART;
    if (part & KNOWN) return false;
    if (is_taken(x, w, v)) return true;
    if (x->g->from_torch && x->theirs && !initializer)
        return false; /* what forward makes: parameters are initializers */
    if (!d->shape.rank) return false;
    if (inv_shape_nelem(&d->shape) == 1) return part & (WEIGHT | NUMBER);
    if (part & WEIGHT || (part & SHIFT && along_one_axis(&d->shape))) return true;
    return (x->habit || initializer) && (part & operand || (part & joined && varies(d)));
}

static inv_id main_value(lifter *x, const view *w, inv_id v, const inv_data *d)
{
    if (w->g == x->g) return v;
    const char *name = inv_arena_printf(x->a, "%s%s", w->label, inv_val(w->g, v)->name);
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
    const char *key = inv_arena_printf(x->a, "%s%s", w->key, inv_val(w->g, v)->name);
    bool taken;
    if (p == INV_NONE || !key) return x->g->failed ? x->g->failed : INV_E_NOMEM;
    make_param(inv_val(w->g, v), d, init);
    make_param(inv_val(x->g, p), d, init);
    inv_val(w->g, v)->source = def != INV_NONE ? inv_nod(w->g, def)->source : INV_NONE;
    inv_val(x->g, p)->within = w->within;
    inv_val(x->g, p)->source = w->block && def != INV_NONE ? inv_nod(w->g, def)->source : INV_NONE;
    INV_TRY(inv_names_put(&x->keys, key, init, &taken));
    return inv_vec_push(&x->g->arena, &x->g->inits, p) ? INV_OK : INV_E_NOMEM;
}

static inv_status lift_all(lifter *x, const view *w)
{
    inv_graph *g = w->g;
    size_t n = 0;
    for (inv_id v = 0, nv = (inv_id)g->value.n; v < nv; v++) {
        inv_data d;
        if (!w->part[v] && !x->l->model->ntaken) continue;
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

/* --- all of them --- */

inv_status inv_lift_weights(inv_loader *l)
{
    lifter all = {.l = l, .g = l->model->graph, .a = &l->scratch, .keys.a = &l->scratch}, *x = &all;
    view w = {.g = x->g, .key = "m", .label = "", .block = true};
    x->function = INV_ARENA_NEW(x->a, view, x->g->function.n + 1);
    if (!x->function) return INV_E_NOMEM;
    INV_TRY(inv_callees_init(&x->callees, x->g, x->a));
    INV_TRY(enter(x, &w));
    look_at_all(x);
    x->habit = x->ours > 0 && x->ours >= x->theirs;
    size_t before = x->g->inits.n;
    INV_TRY(lift_all(x, &x->views.at[x->views.n - 1]));
    for (size_t i = 0; i + 1 < x->views.n; i++) INV_TRY(lift_all(x, &x->views.at[i]));
    return x->g->inits.n > before ? inv_place_weights(x->l, &x->keys) : INV_OK;
}
