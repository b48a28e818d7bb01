/* SPDX-License-Identifier: Apache-2.0
 * The initializers with pseudo-inverses and log-determinants that written inverses read: made here, and made anew
 * whenever weights are written. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "ops/linear/linear_solve.h"
#include "passes/export/outline.h"
#include "passes/match/match.h"

/* --- which there are --- */

/* Whether the node makes a kernel of a matrix or the other way round: axes of extent 1 behind the first two. */
static bool same_matrix(const inv_graph *g, inv_id node)
{
    if (node == INV_NONE || !(inv_nod(g, node)->op->flags & INV_OP_VIEW)) return false;
    inv_shape a = inv_val(g, inv_nod(g, node)->in[0])->shape, b = inv_val(g, inv_nod(g, node)->out[0])->shape;
    return a.rank > 1 && b.rank > 1 && a.dim[0] == b.dim[0];
}

/* What the file calls the matrix, or in an inverse direction, which is never refreshed, the first of what it is
 * computed from; NULL: nothing. */
static const char *name_in_file(const inv_outliner *o, inv_id v, int most)
{
    if (v == INV_NONE || most == 0) return NULL;
    if (o->alias_start[v] < o->alias_start[v + 1]) return inv_val(o->flat, o->alias[o->alias_start[v]])->name;
    const inv_node *n = o->reverse ? inv_def_node(o->g, v) : NULL;
    const char *name = NULL;
    for (uint32_t k = 0; n && k < n->nin && !name; k++) name = name_in_file(o, n->in[k], most - 1);
    return name;
}

/* Name of the initializer that holds the pseudo-inverse of `v`, or of what it is a view of. NULL with a reason: none of
 * the file's values is that matrix, so nobody could refresh its inverse. */
static const char *new_solver(inv_outliner *o, inv_solver s)
{
    const char *ending = s.logdet ? "logdet" : "inv";
    s.name = inv_arena_printf(o->a, "%s_%s", s.of, ending);
    for (uint32_t k = 1; s.name; k++) {
        const inv_id taken = inv_graph_find(o->flat, s.name);
        bool free = taken == INV_NONE || inv_val(o->flat, taken)->inverse_of; /* of an earlier rewriting */
        for (size_t i = 0; i < o->solver.n; i++) free = free && strcmp(o->solver.at[i].name, s.name) != 0;
        if (free && !(o->reverse && o->reverse->with_logdet && strcmp(o->reverse->with_logdet, s.name) == 0)) break;
        s.name = inv_arena_printf(o->a, "%s_%s_%u", s.of, ending, k);
    }
    return s.name && inv_vec_push(&o->scratch, &o->solver, s) ? s.name : NULL;
}

const char *inv_derive_solver(inv_derivation *d, inv_id v, int64_t groups, bool logdet, const char *like)
{
    enum { MOST_NAMED = 8 };
    inv_outliner *o = d->o;
    const char *name = NULL, *of;
    while (same_matrix(o->g, inv_val(o->g, v)->def)) v = inv_nod(o->g, inv_val(o->g, v)->def)->in[0];
    d->r.reason = "its matrix is not a value of the file";
    if (!(of = name_in_file(o, v, MOST_NAMED))) return NULL;
    for (size_t i = 0; i < o->solver.n && !name; i++)
        if (o->solver.at[i].matrix == v && o->solver.at[i].logdet == logdet && o->solver.at[i].groups == groups)
            name = o->solver.at[i].name;
    if (!name) name = new_solver(o, (inv_solver){v, of, NULL, groups, logdet});
    if (!name) return NULL;
    d->r.reason = NULL;
    for (size_t i = 0; i < d->solver.n; i++)
        if (strcmp(d->solver.at[i], name) == 0 && d->cast_type.at[i] == d->r.real) return d->cast.at[i];
    const char *cast = name;
    if (d->r.real != INV_F64) cast = inv_onnx_as_real(&d->r, name, like);
    bool ok = cast && inv_vec_push(&o->scratch, &d->solver, name) && inv_vec_push(&o->scratch, &d->cast, cast) &&
              inv_vec_push(&o->scratch, &d->cast_type, d->r.real);
    return ok ? cast : NULL;
}

/* --- what is in them --- */

/* Emits nodes that compute the pseudo-inverse of a value as a matrix, or per group of a filter, beside the order. */
static inv_id emit_inverse(inv_outliner *o, const inv_solver *s)
{
    inv_graph *g = o->g;
    const inv_shape w = inv_val(g, s->matrix)->shape;
    const int64_t rows = w.rank ? w.dim[0] : 1, columns = inv_shape_nelem(&w) / (rows ? rows : 1);
    const int64_t flat[2] = {rows, columns}, groups[3] = {s->groups, rows / s->groups, columns}, perm[3] = {0, 2, 1};
    const bool many = s->groups > 1;
    inv_id v = inv_emit1(g, "View", INV_IN(s->matrix), INV_ATTRS(inv_attr_of_ints("shape", 2, flat)));
    if (v != INV_NONE) v = inv_emit1(g, "FilterInverse", INV_IN(v), INV_ATTRS(inv_attr_of_int("group", s->groups)));
    if (v != INV_NONE && many) v = inv_emit1(g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_ints("shape", 3, groups)));
    if (v == INV_NONE) return v;
    const int64_t turned[2] = {1, 0};
    return inv_emit1(g, "Transpose", INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("perm", many ? 3 : 2, many ? perm : turned)));
}

/* What `rewrite` writes has them in float64, whatever its type: converters to half precision change float32 alone, and
 * cut large and small numbers. */
#define IN_FILE INV_F64

/* Makes the entries of the pseudo-inverses, one at a time, when they are written. */
typedef struct maker {
    inv_context *ctx;
    inv_matcher m;
    inv_solver *solver;
    inv_id *value; /* per solver: its pseudo-inverse */
    void *entries; /* of the newest */
} maker;

static void release_maker(void *opaque)
{
    maker *k = opaque;
    inv_context *ctx = k->ctx;
    inv_matcher_fini(&k->m);
    inv_dealloc(ctx, k->entries);
    inv_dealloc(ctx, k);
}

/* The sum of the groups' log |det|; of a matrix that is not known NaN. */
static inv_status sum_logdets(inv_context *ctx, const inv_data *matrix, int64_t groups, double *sum)
{
    const int64_t n = matrix->shape.dim[0] / groups;
    const size_t nbytes = matrix->nbytes / (size_t)groups;
    inv_data block = {matrix->dtype, inv_shape_of(2, (int64_t[]){n, inv_shape_nelem(&matrix->shape) / (n * groups)}),
                      matrix->bytes, nbytes};
    *sum = matrix->bytes ? 0 : NAN;
    for (int64_t i = 0; matrix->bytes && i < groups; i++) {
        double one;
        block.bytes = (const uint8_t *)matrix->bytes + (size_t)i * nbytes;
        INV_TRY(inv_linear_logdet(ctx, &block, &one));
        *sum += one;
    }
    return INV_OK;
}

/* A matrix that training has made singular has none: NaN says so, and nothing else of the model is lost. */
static inv_status make_inverse(void *opaque, size_t i, const void **data)
{
    maker *k = opaque;
    const inv_value *v = inv_val(k->m.g, k->value[i]);
    size_t n = (size_t)inv_shape_nelem(&v->shape), nbytes = n * sizeof(double);
    inv_known_forget(&k->m, 0);
    inv_dealloc(k->ctx, k->entries);
    if (!(k->entries = inv_alloc(k->ctx, nbytes + 1))) return INV_E_NOMEM;
    const void *bytes = inv_known_bytes(&k->m, k->value[i]);
    if (k->solver[i].logdet) {
        const inv_data matrix = {v->dtype, v->shape, bytes, n * inv_dtype_size(v->dtype)};
        double logdet;
        INV_TRY(sum_logdets(k->ctx, &matrix, k->solver[i].groups, &logdet));
        memcpy(k->entries, &logdet, sizeof logdet);
        *data = k->entries;
        return INV_OK;
    }
    bool finite = bytes != NULL;
    for (size_t e = 0; e < n && finite; e++) finite = isfinite(inv_elem_double(bytes, v->dtype, e));
    if (finite) (void)inv_convert(k->entries, IN_FILE, bytes, v->dtype, n);
    else memset(k->entries, 0xff, nbytes);
    if (!finite)
        inv_log(k->ctx, "'%s' has no inverse any more: '%s' is filled with NaN", k->solver[i].of, k->solver[i].name);
    *data = k->entries;
    return INV_OK;
}

inv_status inv_outline_put_inverses(inv_outliner *o, inv_rewriting *r)
{
    inv_graph *g = o->g;
    size_t order = g->order.n, n = o->solver.n;
    maker *k = n ? inv_alloc(o->ctx, sizeof *k) : NULL;
    if (!k) return n ? INV_E_NOMEM : INV_OK;
    *k = (maker){.ctx = o->ctx, .m = {.g = g}};
    r->maker = k;
    r->release = release_maker;
    k->solver = INV_ARENA_NEW(o->a, inv_solver, n);
    k->value = INV_ARENA_NEW(o->a, inv_id, n);
    if (!k->solver || !k->value) return INV_E_NOMEM;
    g->fold = false;
    for (size_t i = 0; i < n; i++) {
        bool number = o->solver.at[i].logdet;
        k->solver[i] = o->solver.at[i];
        k->value[i] = number ? k->solver[i].matrix : emit_inverse(o, &o->solver.at[i]);
        if (k->value[i] == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
        inv_shape shape = number ? inv_shape_scalar() : inv_val(g, k->value[i])->shape;
        size_t nbytes = (size_t)inv_shape_nelem(&shape) * sizeof(double);
        inv_outline_tensor t = {k->solver[i].name, {IN_FILE, shape, NULL, nbytes}, {make_inverse, k, i}};
        if (!inv_vec_push(o->a, &o->out->tensor, t)) return INV_E_NOMEM;
    }
    g->order.n = order;
    return inv_matcher_init(&k->m);
}

/* Of the initializers with inverses those that functions read, in the order in which they do, so that a rewritten model
 * is rewritten to the same bytes. Others are of blocks that were given up. */
static void order_solvers(inv_outliner *o)
{
    size_t n = 0;
    for (size_t f = 0; f < o->out->function.n && n < o->solver.n; f++)
        for (uint32_t k = 0; k < o->out->function.at[f].nin; k++)
            for (size_t i = n; i < o->solver.n; i++) {
                const inv_solver s = o->solver.at[i];
                if (strcmp(s.name, o->out->function.at[f].in[k]) != 0) continue;
                memmove(&o->solver.at[n + 1], &o->solver.at[n], (i - n) * sizeof s);
                o->solver.at[n++] = s;
                break;
            }
    o->solver.n = n;
}

inv_status inv_outline_solvers(inv_outliner *o)
{
    order_solvers(o);
    for (size_t i = 0; i < o->solver.n; i++) {
        const inv_solver *s = &o->solver.at[i];
        inv_outline_fact f = {inv_arena_printf(o->a, "ai.invonnx.inv.%s", s->name), s->of};
        if (!f.key || !inv_vec_push(o->a, &o->out->fact, f)) return INV_E_NOMEM;
    }
    return INV_OK;
}
