/* SPDX-License-Identifier: Apache-2.0
 * For tests of operators: runs a small graph node by node, every buffer and scratch memory a malloc block of the exact
 * size (so that sanitizers see what kernels touch), outputs poisoned; lowers, differentiates, perturbs. Nothing here
 * depends on passes or executor. */
#ifndef INV_TESTS_OPS_RUN_H
#define INV_TESTS_OPS_RUN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/base/util.h"

#define OPS_MAX 512 /* values of a test graph */

typedef struct ops_env {
    inv_context *ctx;
    inv_graph *g;
    void *data[OPS_MAX];
    inv_step step;
    double drift[8];
} ops_env;

static uint64_t ops_seed = 1;
static inline double ops_random(void) /* -1 .. 1 */
{
    ops_seed ^= ops_seed << 13;
    ops_seed ^= ops_seed >> 7;
    ops_seed ^= ops_seed << 17;
    return (double)(ops_seed >> 11) * 0x1p-52 - 1;
}

static inline void ops_expect_ok(const ops_env *e, inv_status s)
{
    if (s != INV_OK) fail_msg("%s: %s", inv_status_text(s), inv_context_message(e->ctx));
}

static inline void ops_begin(ops_env *e)
{
    memset(e, 0, sizeof *e);
    assert_int_equal(inv_context_create(NULL, &e->ctx), INV_OK);
    e->step = (inv_step){.seed = 3, .step = 4, .lr = 0.1, .drift = e->drift};
}

static inline void ops_clear(ops_env *e)
{
    for (int i = 0; i < OPS_MAX; i++) {
        free(e->data[i]);
        e->data[i] = NULL;
    }
    inv_graph_destroy(e->g);
    e->g = NULL;
}

static inline void ops_end(ops_env *e)
{
    ops_clear(e);
    inv_context_destroy(e->ctx);
}

static inline size_t ops_nbytes(const ops_env *e, inv_id v)
{
    size_t n = 0;
    assert_true(inv_shape_nbytes(inv_shape_of_value(e->g, v), inv_val(e->g, v)->dtype, &n));
    return n;
}

/* Space for a value, filled with 0xff: NaN. */
static inline void *ops_alloc(ops_env *e, inv_id v)
{
    assert_true(v < OPS_MAX);
    size_t n = ops_nbytes(e, v);
    if (e->data[v] == NULL) e->data[v] = aligned_alloc(64, (n + 64) / 64 * 64);
    memset(e->data[v], 0xff, n);
    return e->data[v];
}

static inline double ops_get(const ops_env *e, inv_id v, int64_t i)
{
    return inv_elem_double(e->data[v], inv_val(e->g, v)->dtype, (size_t)i);
}

static inline void ops_set(ops_env *e, inv_id v, int64_t i, double x)
{
    if (inv_val(e->g, v)->dtype == INV_F32) ((float *)e->data[v])[i] = (float)x;
    else if (inv_val(e->g, v)->dtype == INV_F64) ((double *)e->data[v])[i] = x;
    else inv_put_int(e->data[v], inv_val(e->g, v)->dtype, i, (int64_t)x);
}

static inline int64_t ops_n(const ops_env *e, inv_id v) { return inv_shape_nelem(inv_shape_of_value(e->g, v)); }

/* Random numbers; of names that begin with "var" or "scale": 0.5 .. 1.5. */
static inline void ops_fill(ops_env *e, inv_id v)
{
    const char *name = inv_val(e->g, v)->name;
    bool positive = strncmp(name, "var", 3) == 0 || strncmp(name, "scale", 5) == 0;
    ops_alloc(e, v);
    for (int64_t i = 0; i < ops_n(e, v); i++) {
        double r = ops_random();
        ops_set(e, v, i, positive ? 1 + r / 2 : r);
    }
}

static inline inv_tensor ops_tensor(ops_env *e, inv_id v, bool out)
{
    if (v == INV_NONE) return (inv_tensor){0};
    const inv_value *val = inv_val(e->g, v);
    inv_tensor t = {.dtype = val->dtype, .shape = val->shape, .n = inv_shape_nelem(&val->shape)};
    if (val->data.bytes && !e->data[v]) {
        ops_alloc(e, v);
        assert_true(inv_convert(e->data[v], val->dtype, val->data.bytes, val->data.dtype, (size_t)t.n));
    }
    t.data = out ? ops_alloc(e, v) : e->data[v];
    return t;
}

static inline inv_status ops_call(ops_env *e, inv_id node)
{
    const inv_node *n = inv_nod(e->g, node);
    inv_tensor in[16], out[16];
    for (uint32_t i = 0; i < n->nin; i++) in[i] = ops_tensor(e, n->in[i], false);
    for (uint32_t i = 0; i < n->nout; i++) out[i] = ops_tensor(e, n->out[i], true);
    if (n->op->flags & INV_OP_VIEW) {
        memcpy(out[0].data, in[0].data, ops_nbytes(e, n->out[0]));
        return INV_OK;
    }
    size_t ws = n->op->workspace ? n->op->workspace(e->g, n) : 0;
    void *scratch = ws ? malloc(ws) : NULL;
    if (ws) memset(scratch, 0xff, ws);
    inv_call c = {.node = n,
                  .in = in,
                  .out = out,
                  .nin = n->nin,
                  .nout = n->nout,
                  .ws = scratch,
                  .ws_nbytes = ws,
                  .step = &e->step};
    inv_status s = n->op->run(&c);
    free(scratch);
    return s;
}

/* The nodes from position `from` on. */
static inline void ops_run(ops_env *e, size_t from)
{
    for (size_t i = from; i < e->g->order.n; i++) assert_int_equal(ops_call(e, e->g->order.at[i]), INV_OK);
}

/* A case such as "y = Op<a = 1>(float[2] x, float[3] w)" as a graph; `real` stands for float. */
static inline void ops_parse_case(ops_env *e, const char *text, const char *real)
{
    char head[1024] = "", body[2048], graph[4096];
    const char *eq = strchr(text, '='), *p = eq;
    int quote = 0, angle = 0;
    for (; *p && (*p != '(' || quote || angle); p++) {
        if (*p == '"') quote = !quote;
        if (*p == '<') angle++;
        if (*p == '>') angle--;
    }
    size_t nb = (size_t)(p - text) + 1, nh = 0;
    assert_true(nb < sizeof body);
    memcpy(body, text, nb);
    for (p++; *p && *p != ')';) {
        while (*p == ' ') p++;
        const char *type = p;
        while (*p && *p != ' ' && *p != ',' && *p != ')') {
            if (*p == '[')
                while (*p != ']') p++;
            p++;
        }
        bool typed = *p == ' ';
        if (typed) {
            bool is_float = strncmp(type, "float", 5) == 0;
            size_t skip = is_float ? 5 : 0;
            nh += (size_t)snprintf(head + nh, sizeof head - nh, "%s%s%.*s", nh ? ", " : "", is_float ? real : "",
                                   (int)(p - type - (ptrdiff_t)skip), type + skip);
            type = p;
            while (*p && *p != ',' && *p != ')') p++;
            nh += (size_t)snprintf(head + nh, sizeof head - nh, "%.*s", (int)(p - type), type);
        }
        nb += (size_t)snprintf(body + nb, sizeof body - nb, "%.*s%s", (int)(p - type), type, *p == ',' ? "," : "");
        if (*p == ',') p++;
    }
    body[nb] = 0;
    snprintf(graph, sizeof graph, "g (%s) => (%.*s) { %s) }", head, (int)(eq - text), text, body);
    ops_expect_ok(e, inv_graph_parse(e->ctx, graph, &e->g));
    e->g->real = strcmp(real, "double") == 0 ? INV_F64 : INV_F32;
}

/* Type inference, or lowering with the row of `opset`; g->outputs then name the results. */
static inline inv_status ops_lower(ops_env *e, int64_t opset)
{
    inv_graph *g = e->g;
    inv_id id = g->order.at[0], out[8];
    inv_node n = *inv_nod(g, id);
    n.op = inv_nod(g, id)->op = inv_registry_op(e->ctx->registry, n.domain, n.op_type, opset);
    assert_non_null(n.op);
    const inv_status inferred = inv_node_infer(g, id);
    if (!n.op->lower || inferred != INV_OK) return inferred;
    for (int i = 0; i < 8; i++) out[i] = INV_NONE;
    g->order.n = 0;
    inv_status s = n.op->lower(g, &n, out);
    for (size_t i = 0; i < g->outputs.n; i++) g->outputs.at[i] = out[i];
    return s;
}

static inline void ops_load(ops_env *e, const char *text, const char *real, int64_t opset)
{
    ops_clear(e);
    ops_parse_case(e, text, real);
    ops_expect_ok(e, ops_lower(e, opset));
    for (size_t i = 0; i < e->g->inputs.n; i++) ops_fill(e, e->g->inputs.at[i]);
}

/* Reverse mode over the nodes in order, from `seed`, the gradient of output 0; grad[] per value. */
static inline void ops_reverse(ops_env *e, inv_id seed, inv_id *grad)
{
    inv_graph *g = e->g;
    size_t n = g->order.n;
    for (int i = 0; i < OPS_MAX; i++) grad[i] = INV_NONE;
    grad[g->outputs.at[0]] = seed;
    for (size_t i = n; i-- > 0;) {
        inv_node nd = *inv_nod(g, g->order.at[i]);
        inv_id og[8], ig[8];
        bool wanted[8], any = false;
        if (nd.op->flags & INV_OP_NO_GRAD) continue;
        for (uint32_t k = 0; k < nd.nout; k++) any = any || grad[nd.out[k]] != INV_NONE;
        for (uint32_t k = 0; k < nd.nout; k++) og[k] = grad[nd.out[k]];
        for (uint32_t k = 0; k < nd.nin; k++) {
            ig[k] = INV_NONE;
            wanted[k] = nd.in[k] != INV_NONE && inv_dtype_is_float(inv_val(g, nd.in[k])->dtype);
        }
        if (!any) continue;
        inv_grad b = {g, g->order.at[i], og, ig, wanted};
        assert_non_null(nd.op->grad);
        ops_expect_ok(e, nd.op->grad(&b));
        for (uint32_t k = 0; k < nd.nin; k++) {
            if (ig[k] == INV_NONE) continue;
            inv_id *at = &grad[nd.in[k]];
            *at = *at == INV_NONE ? ig[k] : inv_emit1(g, "Add", INV_IN(*at, ig[k]), INV_NOATTR);
        }
    }
}

/* The forward part (the first `n` nodes) and its output against the seed. */
static inline double ops_objective(ops_env *e, size_t n, inv_id seed)
{
    double sum = 0;
    inv_id y = e->g->outputs.at[0];
    for (size_t i = 0; i < n; i++) assert_int_equal(ops_call(e, e->g->order.at[i]), INV_OK);
    for (int64_t i = 0; i < ops_n(e, y); i++) sum += ops_get(e, y, i) * ops_get(e, seed, i);
    return sum;
}

/* Central difference by element k of input x. */
static inline double ops_difference(ops_env *e, size_t forward, inv_id seed, inv_id x, int64_t k, double h)
{
    const double old = ops_get(e, x, k);
    ops_set(e, x, k, old + h);
    const double up = ops_objective(e, forward, seed);
    ops_set(e, x, k, old - h);
    const double down = ops_objective(e, forward, seed);
    ops_set(e, x, k, old);
    return (up - down) / (2 * h);
}

/* Gradients of every input that gets one against central differences, in float64; of long inputs about 64 elements.
 * Returns how many were compared. */
static inline int ops_check_grad(ops_env *e, double tol)
{
    inv_graph *g = e->g;
    inv_id grad[OPS_MAX], y = g->outputs.at[0];
    inv_shape s = *inv_shape_of_value(g, y);
    size_t forward = g->order.n;
    int compared = 0;
    inv_id seed = inv_graph_value(g, "seed", INV_ROLE_INPUT, inv_val(g, y)->dtype, &s);
    ops_fill(e, seed);
    ops_reverse(e, seed, grad);
    ops_run(e, 0);
    for (size_t i = 0; i < g->inputs.n; i++) {
        inv_id x = g->inputs.at[i];
        if (grad[x] == INV_NONE) continue;
        assert_true(inv_shape_equal(inv_shape_of_value(g, grad[x]), inv_shape_of_value(g, x)));
        assert_int_equal(inv_val(g, grad[x])->dtype, inv_val(g, x)->dtype);
        compared++;
        for (int64_t k = 0; k < ops_n(e, x); k += 1 + ops_n(e, x) / 64 * (ops_n(e, x) > 256)) {
            const double h = 1e-5, got = ops_get(e, grad[x], k);
            const double near = ops_difference(e, forward, seed, x, k, h);
            /* of fourth order, where that of second order is not enough */
            const double want = fabs(got - near) <= tol * (1 + fabs(near))
                                    ? near
                                    : (4 * near - ops_difference(e, forward, seed, x, k, 2 * h)) / 3;
            if (!(fabs(got - want) <= tol * (1 + fabs(want))))
                fail_msg("d/d%s[%lld]: %.9g, by differences %.9g", inv_val(g, x)->name, (long long)k, got, want);
        }
    }
    return compared;
}

#endif
