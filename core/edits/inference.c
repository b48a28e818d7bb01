/* SPDX-License-Identifier: Apache-2.0
 * The form for inference (inference.h): found on the graph as it was imported, written by importer/edit.c. */
#include "core/edits/inference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/edits/lora.h"

/* Far more than files have; what is beyond is left as it is. */
enum { MOST_STEPS = 4000000, MOST_DEEP = 64 };

/* A graph and where it stands. */
typedef struct scope {
    const inv_graph *g;
    struct scope *outer;          /* of a body: the graph around it, ... */
    const inv_node *node;         /* ... the node there ... */
    const inv_attr *attr;         /* ... and its attribute */
    const inv_function *function; /* whose body it is, if it is one's */
    inv_uses uses;
    uint32_t *left; /* per value: nodes that still read it */
    inv_graph_edit *edit;
} scope;

typedef struct finder {
    inv_arena *a;
    inv_inference *out;
    INV_VEC(scope *) scope; /* the model's graph first */
    size_t outputs;         /* of the model: those that stay */
    size_t steps;           /* taken to find out what is fed */
} finder;

static bool is_main(const scope *s) { return !s->outer && !s->function; }

static inv_node_edit *edit_of(finder *x, scope *s, const inv_node *n)
{
    inv_node_edit **e = &s->edit->node[n - s->g->node.at];
    if (!*e && (*e = INV_ARENA_NEW(x->a, inv_node_edit, 1)) != NULL)
        **e = (inv_node_edit){.nin = inv_node_listed(n), .nout = n->nout};
    return *e;
}

/* --- values that nothing reads any more --- */

static inv_status release(finder *x, scope *s, inv_id v, int depth);

static inv_status release_node(finder *x, scope *s, const inv_node *n, int depth)
{
    for (uint32_t k = 0; k < n->nattr; k++)
        if (n->attr[k].kind == INV_ATTR_GRAPH) return INV_OK;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && (s->left[n->out[k]] || inv_val(s->g, n->out[k])->is_output)) return INV_OK;
    inv_node_edit *e = edit_of(x, s, n);
    if (!e) return INV_E_NOMEM;
    e->gone = true;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) s->edit->drop[n->out[k]] = true;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE) INV_TRY(release(x, s, n->in[k], depth + 1));
    return INV_OK;
}

/* One node less reads it. What nothing reads any more goes: runtimes warn of such things. */
static inv_status release(finder *x, scope *s, inv_id v, int depth)
{
    const inv_value *val = inv_val(s->g, v);
    if (--s->left[v] || val->is_output || depth > MOST_DEEP) return INV_OK;
    if (val->def != INV_NONE) return release_node(x, s, inv_nod(s->g, val->def), depth);
    if (val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST) s->edit->drop[v] = true;
    if (val->role != INV_ROLE_INPUT || !s->outer) return INV_OK;
    const size_t formal = s->g->inputs.n - s->attr->ncaptured;
    for (size_t i = formal; i < s->g->inputs.n; i++)
        if (s->g->inputs.at[i] == v)
            return release(x, s->outer, s->node->in[s->attr->captured + (i - formal)], depth + 1);
    return INV_OK;
}

/* --- batch normalization --- */

static bool is_identity(const inv_node *n)
{
    return inv_node_is(n, "Identity") && n->nin == 1 && n->nout == 1 && n->out[0] != INV_NONE;
}

/* Whether a value of the model's graph goes nowhere but to its outputs; *noutput of them. */
static bool only_told(const scope *s, inv_id v, int depth, size_t *noutput)
{
    *noutput += inv_val(s->g, v)->is_output;
    for (uint32_t i = s->uses.start[v]; i < s->uses.start[v + 1]; i++) {
        const inv_node *n = inv_nod(s->g, s->uses.node[i]);
        if (depth > MOST_DEEP || !is_identity(n) || !only_told(s, n->out[0], depth + 1, noutput)) return false;
    }
    return true;
}

static inv_status drop_told(finder *x, scope *s, inv_id v)
{
    s->edit->drop[v] = true;
    for (uint32_t i = s->uses.start[v]; i < s->uses.start[v + 1]; i++) {
        const inv_node *n = inv_nod(s->g, s->uses.node[i]);
        inv_node_edit *e = edit_of(x, s, n);
        if (!e) return INV_E_NOMEM;
        e->gone = true;
        INV_TRY(drop_told(x, s, n->out[0]));
    }
    return INV_OK;
}

/* Output k, a statistic that evaluation leaves as it was. */
static inv_status settle_statistic(finder *x, scope *s, const inv_node *n, uint32_t k, inv_node_edit *e)
{
    const inv_id v = n->out[k];
    size_t told = 0;
    if (v == INV_NONE) return INV_OK;
    if (is_main(s) && only_told(s, v, 0, &told) && told < x->outputs) {
        x->outputs -= told;
        return drop_told(x, s, v);
    }
    if (s->uses.start[v] != s->uses.start[v + 1] || inv_val(s->g, v)->is_output) e->pass |= 1u << k;
    return INV_OK;
}

/* From opset 14 on the attribute training_mode says it, from 7 on the presence of further outputs, before is_test. */
static bool norm_trains(const inv_node *n, int64_t opset)
{
    const inv_attr *a = inv_attr_find(n, opset >= 14 ? "training_mode" : "is_test");
    if (opset >= 14) return a && (a->ref || a->i);
    return opset >= 7 ? n->nout > 1 : !a || a->ref || !a->i;
}

static inv_status settle_norm(finder *x, scope *s, const inv_node *n)
{
    const int64_t opset = inv_graph_opset(s->g, "");
    if (n->nin < 5 || n->nout < 1 || n->nout > 5 || n->in[3] == INV_NONE || n->in[4] == INV_NONE) return INV_OK;
    if (!norm_trains(n, opset)) return INV_OK;
    inv_node_edit *e = edit_of(x, s, n);
    if (!e) return INV_E_NOMEM;
    for (uint32_t k = 1; k < n->nout; k++) INV_TRY(settle_statistic(x, s, n, k, e));
    e->nout = 1;
    if (opset >= 14) e->attr = "training_mode";
    if (opset < 7) e->attr = "is_test";
    e->value = opset < 7;
    x->out->norms++;
    x->out->blocks = x->out->blocks || (s->function && s->function->block);
    return INV_OK;
}

/* --- dropout --- */

typedef struct place {
    const scope *s;
    inv_id v;
} place;

typedef INV_VEC(place) places;

static bool push(finder *x, places *open, const scope *s, inv_id v)
{
    return v == INV_NONE || inv_vec_push(x->a, open, ((place){s, v}));
}

static size_t input_index(const inv_graph *g, inv_id v)
{
    size_t i = 0;
    while (i < g->inputs.n && g->inputs.at[i] != v) i++;
    return i;
}

/* Where an input of a function or of a body comes from; *found: it is none of the model, nor changes from trip to
 * trip. */
static inv_status push_source(finder *x, places *open, const scope *s, inv_id v, bool *found)
{
    const size_t i = input_index(s->g, v);
    *found = true;
    if (s->function) {
        for (size_t k = 0; k < x->scope.n; k++) {
            const scope *at = x->scope.at[k];
            x->steps += at->g->node.n;
            for (size_t j = 0; j < at->g->node.n; j++) {
                const inv_node *n = inv_nod(at->g, (inv_id)j);
                bool calls = !strcmp(n->op_type, s->function->name) && !strcmp(n->domain, s->function->domain);
                if (calls && i < n->nin && !push(x, open, at, n->in[i])) return INV_E_NOMEM;
            }
        }
        return INV_OK;
    }
    const size_t formal = s->outer ? s->g->inputs.n - s->attr->ncaptured : 0;
    *found = s->outer && i >= formal;
    if (*found && !push(x, open, s->outer, s->node->in[s->attr->captured + (i - formal)])) return INV_E_NOMEM;
    return INV_OK;
}

/* *input: what is fed and decides the value; NULL: nothing does. */
static inv_status find_fed(finder *x, const scope *s, inv_id v, const char **input)
{
    places open = {0};
    *input = NULL;
    if (!push(x, &open, s, v)) return INV_E_NOMEM;
    for (size_t i = 0; i < open.n; i++) {
        const place at = open.at[i];
        const inv_value *val = inv_val(at.s->g, at.v);
        bool found = ++x->steps < MOST_STEPS;
        if (found && val->role == INV_ROLE_INPUT) INV_TRY(push_source(x, &open, at.s, at.v, &found));
        if (!found) {
            *input = val->name;
            return INV_OK;
        }
        const inv_node *n = val->def != INV_NONE ? inv_nod(at.s->g, val->def) : NULL;
        for (uint32_t k = 0; n && k < n->nin; k++)
            if (!push(x, &open, at.s, n->in[k])) return INV_E_NOMEM;
        x->steps += n ? n->nin : 0;
    }
    return INV_OK;
}

/* What v holds as a constant, without bytes if it is none that is known. */
static const inv_data *constant_in(const inv_graph *g, inv_id v)
{
    const inv_value *val = inv_val(g, v);
    const inv_node *def = val->def == INV_NONE ? NULL : inv_nod(g, val->def);
    const inv_attr *a = def && inv_node_is(def, "Constant") ? inv_attr_find(def, "value") : NULL;
    return a && !a->ref && a->kind == INV_ATTR_TENSOR ? &a->tensor : &val->data;
}

static bool is_false(const scope *s, inv_id v)
{
    const inv_data *d = constant_in(s->g, v);
    return d->bytes && d->dtype == INV_BOOL && d->nbytes && !*(const uint8_t *)d->bytes;
}

static inv_status settle_dropout(finder *x, scope *s, const inv_node *n)
{
    const int64_t opset = inv_graph_opset(s->g, "");
    const inv_attr *test = inv_attr_find(n, "is_test");
    if (opset >= 12 ? n->nin < 3 || n->in[2] == INV_NONE || is_false(s, n->in[2])
                    : opset >= 7 || (test && !test->ref && test->i))
        return INV_OK;
    const char *input = NULL;
    if (opset >= 12) INV_TRY(find_fed(x, s, n->in[2], &input));
    if (input) {
        x->out->kept = inv_node_called(s->g, n);
        x->out->fed = input;
        return INV_OK;
    }
    inv_node_edit *e = edit_of(x, s, n);
    if (!e) return INV_E_NOMEM;
    x->out->dropouts++;
    if (opset < 7) {
        e->attr = "is_test";
        e->value = 1;
        return INV_OK;
    }
    e->nin = n->in[1] == INV_NONE ? 1 : 2;
    return release(x, s, n->in[2], 0);
}

/* --- dropout that is written out --- */

static const inv_node *def_of(const inv_graph *g, const inv_node *n, uint32_t k)
{
    const inv_id def = k < n->nin && n->in[k] != INV_NONE ? inv_val(g, n->in[k])->def : INV_NONE;
    return def == INV_NONE ? NULL : inv_nod(g, def);
}

/* The one real number that input k of a node is; NaN: it is none, or not known. */
static double number_in(const inv_graph *g, const inv_node *n, uint32_t k)
{
    const inv_data *d = k < n->nin && n->in[k] != INV_NONE ? constant_in(g, n->in[k]) : NULL;
    const bool one = d && d->bytes && inv_dtype_is_float(d->dtype) && d->nbytes == inv_dtype_size(d->dtype);
    return one ? inv_elem_double(d->bytes, d->dtype, 0) : NAN;
}

/* Numbers that are drawn evenly from [0, 1). */
static bool is_even(const inv_node *n)
{
    static const char *const onnx[] = {"RandomUniformLike", "RandomUniform", NULL};
    if (inv_node_is_any(n, onnx)) return inv_attr_float(n, "low", 0) == 0 && inv_attr_float(n, "high", 1) == 1;
    return !strcmp(n->op_type, "RandomDraw") && !inv_attr_int(n, "normal", 0) && inv_attr_float(n, "a", 0) == 0 &&
           inv_attr_float(n, "b", 1) == 1;
}

/* The number c, in (0, 1], where input k of n is 1 with probability c, else 0; NaN: it is no such mask, as where c is
 * outside: U < 2 is always true. */
static double chance_in(const inv_graph *g, const inv_node *n, uint32_t k)
{
    const inv_node *last = def_of(g, n, k), *of = last ? def_of(g, last, 0) : NULL;
    const bool less = of && !strcmp(last->op_type, "Cast") && inv_node_is(of, "Less"); /* U < c */
    const bool floor = of && inv_node_is(last, "Floor") && inv_node_is(of, "Add");     /* floor(U + c) */
    for (uint32_t i = 0; i < 2 && (less ? i == 0 : floor); i++) {
        const inv_node *drawn = def_of(g, of, i);
        const double c = drawn && is_even(drawn) ? number_in(g, of, 1 - i) : NAN;
        if (c > 0 && c <= 1) return c;
    }
    return NAN;
}

static const inv_node *division_in(const inv_graph *g, const inv_node *n, uint32_t k)
{
    const inv_node *d = def_of(g, n, k);
    return d && inv_node_is(d, "Div") ? d : NULL;
}

inv_id inv_inference_dropped(const inv_graph *g, const inv_node *n)
{
    if (!inv_node_is(n, "Mul")) return INV_NONE;
    const inv_node *mask = division_in(g, n, 1), *x = division_in(g, n, 0); /* one of the two is divided by c */
    if (mask && chance_in(g, mask, 0) == number_in(g, mask, 1)) return n->in[0];
    return x && chance_in(g, n, 1) == number_in(g, x, 1) ? x->in[0] : INV_NONE;
}

/* The node gives its first input from now on. */
static inv_status hand_on(finder *x, scope *s, const inv_node *n)
{
    inv_node_edit *e = edit_of(x, s, n);
    if (!e) return INV_E_NOMEM;
    e->gone = true;
    e->pass = 1;
    return release(x, s, n->in[1], 0);
}

static inv_status settle_drop(finder *x, scope *s, const inv_node *n, inv_id through)
{
    const inv_node *scale = n->in[0] == through ? NULL : def_of(s->g, n, 0);
    const inv_id v = n->in[0];
    if (scale && (s->left[v] != 1 || inv_val(s->g, v)->is_output)) return INV_OK; /* somebody else wants it as it is */
    x->out->dropouts++;
    if (scale) INV_TRY(hand_on(x, s, scale));
    return hand_on(x, s, n);
}

/* --- the whole --- */

static inv_status collect_edits(finder *x, const scope *as)
{
    scope *s = INV_ARENA_NEW(x->a, scope, 1);
    if (!s || !inv_vec_push(x->a, &x->scope, s)) return INV_E_NOMEM;
    *s = *as;
    INV_TRY(inv_graph_uses(s->g, x->a, &s->uses));
    s->left = INV_ARENA_NEW(x->a, uint32_t, s->g->value.n + 1);
    if (!s->left) return INV_E_NOMEM;
    for (size_t v = 0; v < s->g->value.n; v++) s->left[v] = s->uses.start[v + 1] - s->uses.start[v];
    for (size_t i = 0; i < s->g->node.n; i++) {
        const inv_node *n = inv_nod(s->g, (inv_id)i);
        for (uint32_t k = 0; k < n->nattr; k++)
            if (n->attr[k].kind == INV_ATTR_GRAPH && n->attr[k].graph)
                INV_TRY(collect_edits(x, &(scope){.g = n->attr[k].graph, .outer = s, .node = n, .attr = &n->attr[k]}));
    }
    return INV_OK;
}

static int by_address(const void *a, const void *b)
{
    const inv_graph_edit *x = a, *y = b;
    return (x->g > y->g) - (x->g < y->g);
}

static inv_status make_edits(finder *x)
{
    x->out->ngraph = x->scope.n;
    inv_graph_edit *e = x->out->graph = INV_ARENA_NEW(x->a, inv_graph_edit, x->scope.n + 1);
    if (!e) return INV_E_NOMEM;
    for (size_t i = 0; i < x->scope.n; i++) {
        const inv_graph *g = x->scope.at[i]->g;
        e[i] = (inv_graph_edit){g, INV_ARENA_NEW(x->a, inv_node_edit *, g->node.n + 1),
                                INV_ARENA_NEW(x->a, bool, g->value.n + 1)};
        if (!e[i].node || !e[i].drop) return INV_E_NOMEM;
    }
    qsort(e, x->scope.n, sizeof *e, by_address);
    for (size_t i = 0; i < x->scope.n; i++)
        x->scope.at[i]->edit = bsearch(&(inv_graph_edit){.g = x->scope.at[i]->g}, e, x->scope.n, sizeof *e, by_address);
    return INV_OK;
}

const inv_graph_edit *inv_inference_of(const inv_inference *f, const inv_graph *g)
{
    return f->ngraph ? bsearch(&(inv_graph_edit){.g = g}, f->graph, f->ngraph, sizeof *f->graph, by_address) : NULL;
}

inv_status inv_inference_find(const inv_graph *g, inv_arena *a, inv_inference *out)
{
    finder x = {.a = a, .out = out, .outputs = g->outputs.n};
    *out = (inv_inference){0};
    INV_TRY(collect_edits(&x, &(scope){.g = g}));
    for (size_t i = 0; i < g->function.n; i++)
        INV_TRY(collect_edits(&x, &(scope){.g = g->function.at[i].body, .function = &g->function.at[i]}));
    INV_TRY(make_edits(&x));
    for (size_t i = 0; i < x.scope.n; i++) {
        scope *s = x.scope.at[i];
        for (size_t k = 0; k < s->g->node.n; k++) {
            const inv_node *n = inv_nod(s->g, (inv_id)k);
            if (inv_node_is(n, "BatchNormalization")) INV_TRY(settle_norm(&x, s, n));
            if (inv_node_is(n, "Dropout") && !inv_lora_is_dropout(s->g, n)) INV_TRY(settle_dropout(&x, s, n));
            const inv_id through = inv_inference_dropped(s->g, n);
            if (through != INV_NONE) INV_TRY(settle_drop(&x, s, n, through));
        }
    }
    return INV_OK;
}
