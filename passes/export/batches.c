/* SPDX-License-Identifier: Apache-2.0
 * Inverses that are written for a model whose batch is open have to hold for every batch, and for every number that
 * other open dimensions may be. Shapes are numbers here, and
 * a number does not say whether it is the batch or another extent that happens to equal it; so what is written is made
 * for two batches that nothing in the model can be mistaken for, and must come out the same:
 *
 *     [N,4,6] -> Transpose -> [4,N,6] -> Reshape -> [4 N, 6]    undone by Reshape {4, 77, 6} and {4, 91, 6}: refused
 *
 * An inverse direction is refused as a whole (reverse_batch.c), of a rewritten model the inverse of a block
 * (rewrite.c). It is then made once more for other numbers of the other open dimensions. */
#include <string.h>

#include "core/graph/node.h"
#include "core/program/options.h"
#include "passes/export/batches.h"
#include "passes/front/front.h"

/* --- batches --- */

static bool open_first(const inv_value *v) { return v->shape.rank < 0 || (v->shape.rank > 0 && v->shape.dim[0] < 0); }

/* Whether the input's dimension d is an open batch, or an axis of the same symbol. */
static bool is_batch(const inv_graph *g, const inv_value *v, int d)
{
    if (d == 0) return open_first(v);
    const char *symbol = v->shape.rank > d && v->shape.dim[d] < 0 && v->dim_param ? v->dim_param[d] : NULL;
    for (size_t i = 0; symbol && *symbol && i < g->inputs.n; i++) {
        const inv_value *other = inv_val(g, g->inputs.at[i]);
        const char *first = other->shape.rank > 0 && open_first(other) && other->dim_param ? other->dim_param[0] : NULL;
        if (first && strcmp(first, symbol) == 0) return true;
    }
    return false;
}

/* Whether the model has an extent, or a number in a short list such as shapes are, that p divides. */
static bool has_multiple(const inv_graph *g, int64_t p)
{
    enum { LONGEST = 16 };
    for (size_t v = 0; v < g->value.n; v++) {
        const inv_value *val = inv_val(g, (inv_id)v);
        for (int d = 0; d < val->shape.rank; d++)
            if (val->shape.dim[d] > 0 && val->shape.dim[d] % p == 0) return true;
        if (val->data.dtype != INV_I64 || !val->data.bytes || val->data.nbytes > LONGEST * sizeof(int64_t)) continue;
        for (size_t i = 0; i < val->data.nbytes / sizeof(int64_t); i++) {
            int64_t e;
            memcpy(&e, (const char *)val->data.bytes + i * sizeof e, sizeof e);
            if (e != 0 && e % p == 0) return true;
        }
    }
    return false;
}

static void pick_factors(const inv_graph *g, int64_t factor[2])
{
    static const int64_t primes[] = {11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47};
    enum { N = sizeof primes / sizeof *primes };
    size_t n = 0;
    for (size_t i = 0; i < N && n < 2; i++)
        if (N - i <= 2 - n || !has_multiple(g, primes[i])) factor[n++] = primes[i];
}

/* The shapes with every open batch so many times as large, and every other open extent so many times; whether there is
 * one that this changes. */
static inv_status enlarge(inv_arena *a, const inv_graph *g, const inv_session_options *from, int64_t batch,
                          int64_t others, inv_session_options *to, bool *any)
{
    inv_array *arrays = INV_ARENA_NEW(a, inv_array, from->ninputs + 1);
    *any = false;
    if (!arrays) return INV_E_NOMEM;
    for (size_t i = 0; i < from->ninputs; i++) {
        arrays[i] = from->inputs[i];
        const inv_array *is = &from->inputs[i];
        const inv_id v = is->name ? inv_graph_find(g, is->name) : INV_NONE;
        if (v == INV_NONE || inv_input_is_constant(from, is)) continue;
        const inv_shape *s = &inv_val(g, v)->shape;
        int64_t *dims = INV_ARENA_NEW(a, int64_t, (size_t)is->rank + 1);
        if (!dims) return INV_E_NOMEM;
        for (int d = 0; d < is->rank; d++) {
            const bool open = s->rank < 0 || (d < s->rank && s->dim[d] < 0);
            const int64_t factor = is_batch(g, inv_val(g, v), d) ? batch : open ? others : 1;
            dims[d] = is->dims[d] * factor;
            if (factor == 1) continue;
            arrays[i].data = NULL; /* values are of what was given */
            *any = true;
        }
        arrays[i].dims = dims;
    }
    *to = *from;
    to->inputs = arrays;
    return INV_OK;
}

/* --- the same --- */

/* Whether the model does not take that batch at all. */
static bool is_about_shapes(inv_status s)
{
    return s != INV_OK && s != INV_E_NOMEM && s != INV_E_NOT_INVERTIBLE && s != INV_E_ARG;
}

/* made[0] and made[1] for two batches, and the shapes of the former. Where the model has no open batch, or takes no
 * other than the given one, made[0] alone. */
static inv_status make_for_batches(const inv_batch_job *job, inv_arena *a, const inv_session_options *given,
                                   const int64_t factor[2], inv_session_options *base, inv_rewriting *made[3])
{
    inv_session_options large[2];
    bool open = false;
    inv_status s = INV_OK;
    for (int i = 0; i < 2 && s == INV_OK; i++) s = enlarge(a, job->source, given, factor[i], 1, &large[i], &open);
    for (int i = 0; i < 2 && open && s == INV_OK; i++) s = job->make(job, &large[i], &made[i]);
    if (open && s == INV_E_NOT_INVERTIBLE && !made[0]) { /* told of the caller's shapes, if it can be */
        inv_rewriting *small = NULL;
        const bool only = job->make(job, given, &small) == INV_OK;
        inv_rewriting_destroy(small);
        if (only) s = job->make(job, &large[0], &made[0]);
    }
    *base = open && s == INV_OK ? large[0] : *given;
    if (s != INV_OK ? !is_about_shapes(s) : open) return s;
    for (int i = 0; i < 2; i++) {
        inv_rewriting_destroy(made[i]);
        made[i] = NULL;
    }
    return job->make(job, given, &made[0]);
}

/* made[2], for other extents of what is open beside the batch, if the model takes any of those tried. */
static inv_status make_wide(const inv_batch_job *job, inv_arena *a, const inv_session_options *base, int64_t unlikely,
                            bool *open, inv_rewriting *made[3])
{
    const int64_t factor[] = {unlikely, 2, 3};
    inv_session_options wide;
    INV_TRY(enlarge(a, job->source, base, 1, unlikely, &wide, open));
    for (size_t i = 0; *open && !made[2] && i < sizeof factor / sizeof *factor; i++) {
        INV_TRY(enlarge(a, job->source, base, 1, factor[i], &wide, open));
        if (job->make(job, &wide, &made[2]) == INV_E_NOMEM) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_for_every_batch(const inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out)
{
    inv_session_options given = {0}, base;
    inv_rewriting *made[3] = {NULL};
    int64_t factor[2];
    bool others = false;
    inv_arena a;
    *out = NULL;
    memcpy(&given, shapes, shapes->size < sizeof given ? shapes->size : sizeof given);
    given.size = sizeof given;
    inv_arena_init(&a, job->ctx);
    pick_factors(job->source, factor);
    inv_status s = make_for_batches(job, &a, &given, factor, &base, made);
    if (s == INV_OK) s = make_wide(job, &a, &base, factor[1], &others, made);
    if (s == INV_OK) s = job->settle(job, &base, others, made);
    if (s == INV_OK) {
        *out = made[0];
        made[0] = NULL;
    }
    for (int i = 0; i < 3; i++) inv_rewriting_destroy(made[i]);
    inv_arena_fini(&a);
    return s;
}
