/* SPDX-License-Identifier: Apache-2.0
 * A small interpreter for tests of operators: builds a graph from the text of a `case`, lowers it, adds gradient nodes,
 * and runs the nodes in order with a buffer of its own per value. Nothing is shared, freed early or done in place. */
#ifndef INV_TESTS_INTERP_H
#define INV_TESTS_INTERP_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/op.h"
#include "ops/base/util.h"
#include "passes/front/front.h"

typedef struct interp {
    inv_graph *g;
    void **data; /* per value; NULL until it is computed */
    size_t n;
    inv_step step;
    const struct inv_gpu *gpu; /* NULL: the host's kernels */
} interp;

static inline inv_status interp_parse(inv_context *ctx, const char *text, inv_dtype real, inv_graph **out)
{
    return inv_case_parse(ctx, text, 0, real, out);
}

/* Reverse mode over the lowered graph: gradients of sum(seed . y) over all floating-point outputs y, where the seeds
 * are new inputs. grad[i] for graph input i: the value, or INV_NONE. */
static inline inv_status interp_grad(inv_graph *g, inv_id *grad, inv_id *seed)
{
    const size_t nnode = g->order.n;
    inv_id gv[4096];
    for (size_t i = 0; i < 4096; i++) gv[i] = INV_NONE;
    for (size_t i = 0; i < g->outputs.n; i++) {
        inv_value *y = inv_val(g, g->outputs.at[i]);
        seed[i] = INV_NONE;
        if (!inv_dtype_is_float(y->dtype) || y->role != INV_ROLE_NODE) continue;
        inv_shape s = y->shape;
        seed[i] = inv_graph_value(g, inv_graph_fresh(g, "seed"), INV_ROLE_INPUT, y->dtype, &s);
        gv[g->outputs.at[i]] = seed[i];
    }
    g->forward_end = nnode;
    g->phase = INV_BACKWARD;
    for (size_t i = nnode; i-- > 0;) {
        const inv_node n = *inv_nod(g, g->order.at[i]);
        inv_id og[64], ig[64];
        bool wanted[64], any = false;
        if (n.nin > 64 || n.nout > 64) return INV_E_ARG;
        for (uint32_t k = 0; k < n.nout; k++) {
            og[k] = n.out[k] == INV_NONE ? INV_NONE : gv[n.out[k]];
            any = any || og[k] != INV_NONE;
        }
        for (uint32_t k = 0; k < n.nin; k++) {
            ig[k] = INV_NONE;
            wanted[k] = n.in[k] != INV_NONE && inv_dtype_is_float(inv_val(g, n.in[k])->dtype) &&
                        inv_val(g, n.in[k])->role != INV_ROLE_CONST;
        }
        if (!any || (n.op->flags & INV_OP_NO_GRAD)) continue;
        if (n.op->grad == NULL) return INV_E_UNSUPPORTED_OP;
        inv_grad b = {g, g->order.at[i], og, ig, wanted};
        INV_TRY(n.op->grad(&b));
        for (uint32_t k = 0; k < n.nin; k++) {
            if (ig[k] == INV_NONE || !wanted[k]) continue;
            gv[n.in[k]] = gv[n.in[k]] == INV_NONE ? ig[k] : inv_emit1(g, "Add", INV_IN(gv[n.in[k]], ig[k]), INV_NOATTR);
        }
    }
    for (size_t i = 0; i < g->inputs.n; i++) grad[i] = gv[g->inputs.at[i]];
    return g->failed;
}

static inline void interp_init(interp *it, inv_graph *g)
{
    *it = (interp){.g = g, .n = g->value.n};
    it->data = calloc(it->n ? it->n : 1, sizeof *it->data);
    assert_non_null(it->data);
}

static inline void interp_fini(interp *it)
{
    for (size_t i = 0; i < it->n; i++) free(it->data[i]);
    free(it->data);
    inv_graph_destroy(it->g);
}

/* Storage of value v; exactly as large as it must be, so that a sanitizer sees every step outside. */
static inline void *interp_data(interp *it, inv_id v)
{
    const inv_value *x = inv_val(it->g, v);
    size_t nbytes = 0;
    assert_true(inv_shape_is_static(&x->shape) && inv_shape_nbytes(&x->shape, x->dtype, &nbytes));
    if (it->data[v] == NULL) {
        it->data[v] = malloc(nbytes ? nbytes : 1);
        assert_non_null(it->data[v]);
        memset(it->data[v], 0xa5, nbytes);
        if (x->role == INV_ROLE_CONST || x->role == INV_ROLE_PARAM)
            assert_true(
                inv_convert(it->data[v], x->dtype, x->data.bytes, x->data.dtype, (size_t)inv_shape_nelem(&x->shape)));
    }
    return it->data[v];
}

static inline inv_tensor interp_tensor(interp *it, inv_id v)
{
    if (v == INV_NONE) return (inv_tensor){0};
    const inv_value *x = inv_val(it->g, v);
    return (inv_tensor){interp_data(it, v), x->dtype, x->shape, inv_shape_nelem(&x->shape)};
}

/* Runs all nodes; inputs must have been filled through interp_data. */
static inline inv_status interp_run(interp *it)
{
    inv_status s = INV_OK;
    for (size_t i = 0; i < it->g->order.n && s == INV_OK; i++) {
        const inv_node *n = inv_nod(it->g, it->g->order.at[i]);
        inv_tensor in[64], out[64];
        assert_true(n->nin <= 64 && n->nout <= 64);
        for (uint32_t k = 0; k < n->nin; k++) in[k] = interp_tensor(it, n->in[k]);
        for (uint32_t k = 0; k < n->nout; k++) out[k] = interp_tensor(it, n->out[k]);
        if (n->op->flags & INV_OP_VIEW) {
            assert_int_equal(in[0].n, out[0].n);
            memcpy(out[0].data, in[0].data, (size_t)in[0].n * inv_dtype_size(in[0].dtype));
            continue;
        }
        if (n->op->run == NULL) continue;
        inv_call c = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout, .gpu = it->gpu};
        c.step = it->gpu ? NULL : &it->step;
        c.ws_nbytes = n->op->workspace ? n->op->workspace(it->g, n) : 0;
        c.ws = c.ws_nbytes ? aligned_alloc(64, (c.ws_nbytes + 63) / 64 * 64) : NULL;
        s = n->op->run(&c);
        free(c.ws);
    }
    return s;
}

static inline double interp_get(interp *it, inv_id v, int64_t i)
{
    const inv_value *x = inv_val(it->g, v);
    return inv_elem_double(interp_data(it, v), x->dtype, (size_t)i);
}

static inline void interp_put(interp *it, inv_id v, int64_t i, double value)
{
    const inv_value *x = inv_val(it->g, v);
    void *p = interp_data(it, v);
    if (x->dtype == INV_F64) ((double *)p)[i] = value;
    else if (x->dtype == INV_F32) ((float *)p)[i] = (float)value;
    else if (x->dtype == INV_I64) ((int64_t *)p)[i] = (int64_t)value;
    else if (x->dtype == INV_BOOL) ((uint8_t *)p)[i] = value > 0;
    else inv_put_int(p, x->dtype, i, (int64_t)value);
}

/* Numbers in (-1.5, 1.5), away from 0 and from each other's steps. */
static inline double interp_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    double u = (double)(*state >> 11) / 9007199254740992.0;
    return u < 0.5 ? -0.15 - 2.7 * u : 0.15 + 2.7 * (u - 0.5);
}

static inline void interp_fill(interp *it, inv_id v, uint64_t *state)
{
    for (int64_t i = 0; i < inv_shape_nelem(&inv_val(it->g, v)->shape); i++) interp_put(it, v, i, interp_random(state));
}

static inline size_t interp_nbytes(const inv_graph *g, inv_id v)
{
    return (size_t)inv_shape_nelem(&inv_val(g, v)->shape) * inv_dtype_size(inv_val(g, v)->dtype);
}

/* Runs the planned graph in an arena. What is read after the step goes to where interp_data has it. */
static inline void interp_run_in_arena(interp *it)
{
    inv_graph *g = it->g;
    unsigned char *arena = aligned_alloc(64, g->arena_nbytes + 64);
    assert_non_null(arena);
    memset(arena, 0xff, g->arena_nbytes + 64);
    for (size_t v = 0; v < it->n; v++) {
        if (inv_val(g, (inv_id)v)->role != INV_ROLE_NODE) continue;
        free(it->data[v]);
        it->data[v] = arena + inv_val(g, (inv_id)v)->offset;
    }
    assert_int_equal(interp_run(it), INV_OK);
    for (size_t v = 0; v < it->n; v++) {
        const inv_value *x = inv_val(g, (inv_id)v);
        if (x->role != INV_ROLE_NODE) continue;
        unsigned char *copy = x->keep && x->def != INV_NONE ? malloc(interp_nbytes(g, (inv_id)v) + 1) : NULL;
        if (copy) memcpy(copy, it->data[v], interp_nbytes(g, (inv_id)v));
        it->data[v] = copy;
    }
    free(arena);
}

#endif
