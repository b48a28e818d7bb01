/* SPDX-License-Identifier: Apache-2.0
 * Floating-point types of the file. Everything is computed in one type here, but a file whose operators are given
 * several where ONNX wants one is no ONNX model: other runtimes refuse it, so it is refused before it is trained. Types
 * are those of inputs and initializers, carried along by the operators' signatures (types.inc, from ONNX's schemas);
 * what is not known is not complained of.
 * requires: imported graph, functions inlined.  gives: nothing */
#include <string.h>

#include "core/graph/node.h"
#include "passes/front/front.h"

typedef struct row {
    const char *name;
    int since;
    const char *types; /* of inputs, a colon, of outputs */
} row;

#define ROW(name, since, types) {name, since, types},
static const row rows[] = {
#include "passes/front/types.inc"
};
#undef ROW

enum { MOST_TOLD = 20 };

typedef struct checker {
    inv_context *ctx;
    inv_arena scratch;
    inv_str text;
    size_t wrong;
} checker;

static const row *signature_of(const inv_node *n, int64_t opset)
{
    size_t low = 0, high = sizeof rows / sizeof *rows;
    const row *found = NULL;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(rows[middle].name, n->op_type) < 0) low = middle + 1;
        else high = middle;
    }
    for (; low < sizeof rows / sizeof *rows && !strcmp(rows[low].name, n->op_type); low++)
        if (rows[low].since <= opset) found = &rows[low];
    return found;
}

/* The letter of operand i in a list that ends at a colon or at the end. */
static char letter_at(const char *list, uint32_t i)
{
    size_t n = strcspn(list, ":");
    if (n && list[n - 1] == '+') return i < n - 1 ? list[i] : list[n - 2];
    return i < n ? list[i] : '.';
}

/* A type that a letter stands for by itself. */
static inv_dtype type_of_letter(char c)
{
    return c == 'h' ? INV_F16 : c == 'f' ? INV_F32 : c == 'd' ? INV_F64 : c == 'b' ? INV_BF16 : INV_DT_NONE;
}

static bool is_real_type(inv_dtype t) { return t == INV_F16 || t == INV_F32 || t == INV_F64 || t == INV_BF16; }

static void complain(checker *x, const inv_graph *g, const inv_node *n, uint32_t first, uint32_t second,
                     const inv_dtype *type)
{
    if (x->wrong++ >= MOST_TOLD) return;
    inv_str_add(&x->text, "%snode '%s' (%s): ", x->wrong > 1 ? "; " : "", inv_node_called(g, n), n->op_type);
    const inv_value *a = first == INV_NONE ? NULL : inv_val(g, n->in[first]), *b = inv_val(g, n->in[second]);
    if (a)
        inv_str_add(&x->text, "input %u, '%s', is %s and input %u, '%s', is %s, where ONNX wants one type", first,
                    a->name, inv_dtype_name(type[n->in[first]]), second, b->name, inv_dtype_name(type[n->in[second]]));
    else
        inv_str_add(&x->text, "input %u, '%s', is %s, where ONNX wants another type", second, b->name,
                    inv_dtype_name(type[n->in[second]]));
}

/* Binds the letters of the operator's inputs; complains of the first that does not fit. */
static void bind_inputs(checker *x, const inv_graph *g, const inv_node *n, const row *r, const inv_dtype *type,
                        inv_dtype bound[26])
{
    uint32_t from[26] = {0};
    const uint32_t listed = inv_node_listed(n);
    for (uint32_t k = 0; k < listed; k++) {
        const inv_dtype t = n->in[k] == INV_NONE ? INV_DT_NONE : type[n->in[k]];
        const char c = letter_at(r->types, k);
        if (t == INV_DT_NONE || c == '.') continue;
        if (c < 'A' || c > 'Z') {
            if (is_real_type(t) && t != type_of_letter(c)) {
                complain(x, g, n, INV_NONE, k, type);
                return;
            }
        } else if (bound[c - 'A'] == INV_DT_NONE) {
            bound[c - 'A'] = t;
            from[c - 'A'] = k;
        } else if (bound[c - 'A'] != t && is_real_type(t) && is_real_type(bound[c - 'A'])) {
            complain(x, g, n, from[c - 'A'], k, type);
            return;
        }
    }
}

/* What an attribute says of the type of the output. */
static inv_dtype said(const inv_node *n, const inv_dtype *type)
{
    static const char *const names[] = {"to", "dtype", "output_dtype"};
    const inv_attr *a;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((a = inv_attr_find(n, names[i])) && a->kind == INV_ATTR_INT && !a->ref && a->i) return (inv_dtype)a->i;
    if (inv_node_is(n, "Constant") || inv_node_is(n, "ConstantOfShape")) {
        if ((a = inv_attr_find(n, "value"))) return a->kind == INV_ATTR_TENSOR ? a->tensor.dtype : INV_DT_NONE;
        bool real = inv_attr_find(n, "value_float") || inv_attr_find(n, "value_floats") || !inv_node_is(n, "Constant");
        return real ? INV_F32 : INV_DT_NONE;
    }
    if (inv_node_is(n, "RandomNormal") || inv_node_is(n, "RandomUniform")) return INV_F32;
    if (inv_node_is(n, "RandomNormalLike") || inv_node_is(n, "RandomUniformLike") || inv_node_is(n, "Bernoulli") ||
        inv_node_is(n, "EyeLike"))
        return n->nin && n->in[0] != INV_NONE ? type[n->in[0]] : INV_DT_NONE;
    if (inv_node_is(n, "DequantizeLinear")) return n->nin > 1 && n->in[1] != INV_NONE ? type[n->in[1]] : INV_DT_NONE;
    return INV_DT_NONE;
}

static inv_status check_graph(checker *x, const inv_graph *g, inv_dtype *type);

/* If, Loop and Scan: a body's formal inputs have the types of the node's, its results give the node's. */
static inv_status check_body(checker *x, const inv_graph *g, const inv_node *n, const inv_attr *a, inv_dtype *type)
{
    const inv_graph *b = a->graph;
    const size_t formal = b->inputs.n - a->ncaptured;
    const size_t lengths = inv_node_is(n, "Scan") && inv_graph_opset(g, "") < 9; /* the node's first input */
    const size_t condition = inv_node_is(n, "Loop");                             /* the body's first result */
    inv_dtype *inner = INV_ARENA_NEW(&x->scratch, inv_dtype, b->value.n + 1);
    if (!inner) return INV_E_NOMEM;
    for (size_t i = 0; i < b->inputs.n; i++) {
        const size_t at = i < formal ? i + lengths : a->captured + (i - formal);
        if (i < formal && at >= inv_node_listed(n)) continue;
        if (n->in[at] != INV_NONE) inner[b->inputs.at[i]] = type[n->in[at]];
    }
    INV_TRY(check_graph(x, b, inner));
    for (uint32_t i = 0; i < n->nout && i + condition < b->outputs.n; i++)
        if (n->out[i] != INV_NONE && type[n->out[i]] == INV_DT_NONE)
            type[n->out[i]] = inner[b->outputs.at[i + condition]];
    return INV_OK;
}

/* In the file's order; `type` has those of inputs. */
static inv_status check_graph(checker *x, const inv_graph *g, inv_dtype *type)
{
    const int64_t opset = inv_graph_opset(g, "");
    for (size_t v = 0; v < g->value.n; v++) {
        const inv_value *val = inv_val(g, (inv_id)v);
        if ((val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST) && !val->type) type[v] = val->dtype;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        inv_dtype bound[26] = {INV_DT_NONE};
        if (*n->domain) continue;
        for (uint32_t k = 0; k < n->nattr; k++)
            if (n->attr[k].kind == INV_ATTR_GRAPH && n->attr[k].graph) INV_TRY(check_body(x, g, n, &n->attr[k], type));
        const row *r = signature_of(n, opset);
        if (!r) continue;
        bind_inputs(x, g, n, r, type, bound);
        const char *out = strchr(r->types, ':') + 1;
        for (uint32_t k = 0; k < n->nout; k++) {
            const char c = letter_at(out, k);
            if (n->out[k] == INV_NONE || c == '.') continue;
            type[n->out[k]] = c < 'A' || c > 'Z' ? type_of_letter(c) : bound[c - 'A'];
            if (type[n->out[k]] == INV_DT_NONE && k == 0) type[n->out[k]] = said(n, type);
        }
    }
    return INV_OK;
}

static inv_status check_main(checker *x, const inv_graph *g, inv_dtype *type)
{
    for (size_t i = 0; i < g->inputs.n; i++) {
        const inv_value *val = inv_val(g, g->inputs.at[i]);
        if (!val->type) type[g->inputs.at[i]] = val->dtype;
    }
    INV_TRY(check_graph(x, g, type));
    return x->text.failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_types_of(const inv_graph *g, inv_dtype *type)
{
    checker x = {.ctx = g->ctx, .wrong = MOST_TOLD};
    inv_arena_init(&x.scratch, g->ctx);
    inv_str_init(&x.text, g->ctx);
    const inv_status s = check_main(&x, g, type);
    inv_str_fini(&x.text);
    inv_arena_fini(&x.scratch);
    return s;
}

inv_status inv_pass_types(const inv_graph *g)
{
    checker x = {.ctx = g->ctx};
    inv_arena_init(&x.scratch, g->ctx);
    inv_str_init(&x.text, g->ctx);
    inv_dtype *type = INV_ARENA_NEW(&x.scratch, inv_dtype, g->value.n + 1);
    inv_status s = type ? check_main(&x, g, type) : INV_E_NOMEM;
    if (s == INV_OK && x.wrong)
        s = inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE,
                     "%s%s. The file is not valid ONNX, and other runtimes refuse it. Add a Cast before one of the "
                     "inputs, or export in one type",
                     x.text.s, x.wrong > MOST_TOLD ? "; and more" : "");
    inv_str_fini(&x.text);
    inv_arena_fini(&x.scratch);
    return s;
}
