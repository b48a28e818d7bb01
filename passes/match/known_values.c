/* SPDX-License-Identifier: Apache-2.0
 * Computes the entries of the values that depend on parameters and constants only, which are known before the run.
 * Conditions and gains of rules are judged on them: whether a scale is zero anywhere, how well a matrix is conditioned.
 *
 * An expression is computed when it is first asked for, by the operators' own kernels, operands first. Each value is
 * computed at most once until the entries are forgotten: they may be as many as all weights, so they are dropped when
 * they take more than INV_MOST_KNOWN bytes. While one expression takes more, it drops those that nothing else reads.
 * What changes during training is watched by the guards, not here.
 * requires: inv_matcher_init.  gives: inv_matcher.known. Time: that of the kernels; a condition number takes the
 * singular values of the matrix (ops/linear/linear_solve.h). */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "ops/linear/linear_solve.h"
#include "passes/match/match.h"

/* Makes room for the entries of v. */
static void *room_for(inv_matcher *m, inv_id v, size_t nbytes)
{
    inv_known *k = &m->known[v];
    k->nbytes = nbytes + 1;
    k->bytes = inv_alloc(m->g->ctx, k->nbytes);
    m->nentries += k->bytes ? k->nbytes : 0;
    m->scratch.failed = m->scratch.failed || !k->bytes;
    return k->bytes;
}

static void drop(inv_matcher *m, inv_id v)
{
    inv_known *k = &m->known[v];
    inv_dealloc(m->g->ctx, k->bytes);
    m->nentries -= k->bytes ? k->nbytes : 0;
    k->bytes = NULL;
    k->tried = false;
}

/* Makes tensors of the node's values, `in` with their entries, `out` with room for them. */
static bool tensors_of(inv_matcher *m, const inv_node *n, inv_tensor *in, inv_tensor *out)
{
    for (uint32_t i = 0; i < n->nin; i++) {
        if (n->in[i] == INV_NONE) continue;
        const inv_value *a = inv_val(m->g, n->in[i]);
        void *bytes = m->known[n->in[i]].bytes;
        if (!bytes) return false;
        in[i] = (inv_tensor){bytes, a->dtype, a->shape, inv_shape_nelem(&a->shape)};
    }
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        const inv_value *a = inv_val(m->g, n->out[k]);
        size_t nbytes = 0;
        if (!inv_shape_is_static(&a->shape) || !inv_shape_nbytes(&a->shape, a->dtype, &nbytes)) return false;
        out[k] = (inv_tensor){room_for(m, n->out[k], nbytes), a->dtype, a->shape, inv_shape_nelem(&a->shape)};
        if (!out[k].data) return false;
    }
    return true;
}

static void note_tried(inv_matcher *m, inv_id v)
{
    m->known[v].at = m->tried.n;
    m->known[v].tried = inv_vec_push(&m->scratch, &m->tried, v);
}

static bool run_tensors(inv_matcher *m, const inv_node *n, inv_tensor *in, inv_tensor *out)
{
    if (n->op->flags & INV_OP_VIEW) {
        size_t nbytes = 0;
        if (!inv_shape_nbytes(&out[0].shape, out[0].dtype, &nbytes)) return false;
        memcpy(out[0].data, in[0].data, nbytes);
        return true;
    }
    const size_t ws = n->op->workspace ? n->op->workspace(m->g, n) : 0;
    inv_call call = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout, .ws_nbytes = ws};
    if (!n->op->run) return false;
    if (ws && !(call.ws = inv_alloc(m->g->ctx, ws))) {
        m->scratch.failed = true;
        return false;
    }
    const inv_status s = n->op->run(&call);
    inv_dealloc(m->g->ctx, call.ws);
    return s == INV_OK;
}

/* All that the node gives becomes known at once: of a Split, each part. */
static void run_known_node(inv_matcher *m, const inv_node *n)
{
    inv_tensor *t = INV_ARENA_NEW(&m->scratch, inv_tensor, n->nin + n->nout + 1), *out = t + n->nin;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) drop(m, n->out[k]);
    const bool ok = t && tensors_of(m, n, t, out) && run_tensors(m, n, t, out);
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        if (!ok) drop(m, n->out[k]);
        note_tried(m, n->out[k]);
    }
}

static void convert_known(inv_matcher *m, inv_id v)
{
    const inv_value *val = inv_val(m->g, v);
    size_t nbytes = 0;
    note_tried(m, v);
    if ((val->role != INV_ROLE_PARAM && val->role != INV_ROLE_CONST) || !val->data.bytes ||
        !inv_shape_is_static(&val->shape) || !inv_shape_nbytes(&val->shape, val->dtype, &nbytes))
        return;
    void *bytes = room_for(m, v, nbytes);
    if (bytes &&
        !inv_convert(bytes, val->dtype, val->data.bytes, val->data.dtype, (size_t)inv_shape_nelem(&val->shape))) {
        drop(m, v);
        m->known[v].tried = true;
    }
}

/* The node that computes v from parameters only; NULL: v is stored, or cannot be had. */
static const inv_node *known_node(const inv_matcher *m, inv_id v)
{
    const inv_value *val = inv_val(m->g, v);
    if (m->active[v] || val->role != INV_ROLE_NODE) return NULL;
    const inv_node *n = inv_nod(m->g, val->def);
    return n->op->flags & (INV_OP_RANDOM | INV_OP_SOURCE) ? NULL : n;
}

/* Drops the operands that nothing else reads, and that were asked for since `from` of those tried. */
static void drop_operands(inv_matcher *m, const inv_node *n, size_t from)
{
    for (uint32_t k = 0; k < n->nin && m->nentries > INV_MOST_KNOWN; k++) {
        const inv_id v = n->in[k];
        if (v == INV_NONE || m->uses.start[v + 1] - m->uses.start[v] != 1 || m->known[v].at < from) continue;
        const inv_node *giver = known_node(m, v);
        if (!giver || giver->nout == 1) drop(m, v);
    }
}

/* Expressions may share operands, and one that cannot be had is asked for again as well. */
const void *inv_known_bytes(inv_matcher *m, inv_id v)
{
    const size_t from = m->tried.n;
    inv_ids wait = {0};
    if (!m->known[v].tried && !inv_vec_push(&m->scratch, &wait, v)) return NULL;
    while (wait.n) {
        const inv_id x = wait.at[wait.n - 1];
        const inv_node *n = known_node(m, x);
        const size_t waiting = wait.n;
        for (uint32_t k = 0; n && !m->known[x].tried && k < n->nin; k++)
            if (n->in[k] != INV_NONE && !m->known[n->in[k]].tried && !inv_vec_push(&m->scratch, &wait, n->in[k]))
                return NULL;
        if (wait.n > waiting) continue;
        wait.n--;
        if (m->known[x].tried) continue;
        if (n) run_known_node(m, n);
        else convert_known(m, x);
        if (!m->known[x].tried) return NULL; /* no memory */
        if (n) drop_operands(m, n, from);
    }
    return m->known[v].bytes;
}

void inv_known_forget(inv_matcher *m, size_t beyond)
{
    if (m->nentries <= beyond) return;
    for (size_t i = 0; i < m->tried.n; i++) drop(m, m->tried.at[i]);
    m->tried.n = 0;
}

/* Stored entries are read where they are: a table may be large. */
static bool find_extremes(inv_matcher *m, inv_id s, inv_extremes *out)
{
    const inv_value *val = inv_val(m->g, s);
    const bool stored = val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST;
    inv_known_forget(m, INV_MOST_KNOWN);
    const void *bytes = stored ? val->data.bytes : inv_known_bytes(m, s);
    const inv_dtype type = stored ? val->data.dtype : val->dtype;
    if (!bytes || !inv_shape_is_static(&val->shape)) return false;
    *out = (inv_extremes){INFINITY, INFINITY, -INFINITY, 0, 0};
    int64_t n = inv_shape_nelem(&val->shape);
    for (int64_t i = 0; i < n; i++) {
        double x = inv_elem_double(bytes, type, (size_t)i);
        if (!(x == x)) return false;
        if (fabs(x) < out->least_abs) {
            out->least_abs = fabs(x);
            out->at_abs = (size_t)i;
        }
        if (x < out->least) {
            out->least = x;
            out->at_least = (size_t)i;
        }
        out->most = fmax(out->most, x);
    }
    return true;
}

/* Bounds of a value are asked for again and again, by all that is computed from it: found once. */
bool inv_known_extremes(inv_matcher *m, inv_id s, inv_extremes *out)
{
    inv_known *k = &m->known[s];
    if (!k->looked) {
        k->seen = find_extremes(m, s, &k->extremes);
        k->looked = true;
    }
    *out = k->extremes;
    return k->seen;
}

/* `when` and `gain` ask for both numbers, perhaps of several rules, so they are computed once per value. Neither
 * depends on which way the matrix is used. */
inv_status inv_known_matrix(inv_matcher *m, inv_id w, const inv_node *node, double *cond, double *norm, bool *known)
{
    inv_matrix x;
    inv_known *k = &m->known[w];
    *known = inv_matrix_of(m, w, node, &x);
    if (*known && !k->measured) {
        inv_known_forget(m, INV_MOST_KNOWN);
        const inv_value *val = inv_val(m->g, w);
        bool stored = (val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST) && val->data.bytes;
        x.block.bytes = stored ? val->data.bytes : inv_known_bytes(m, w);
        if (stored) x.block.dtype = val->data.dtype;
        *known = x.block.bytes != NULL;
    }
    if (!*known) return INV_OK;
    k->cond = k->measured ? k->cond : 1;
    for (int64_t g = 0; g < x.groups && !k->measured; g++) {
        double c, n;
        (void)inv_shape_nbytes(&x.block.shape, x.block.dtype, &x.block.nbytes);
        INV_TRY(inv_linear_condition(m->g->ctx, &x.block, x.trans, &c, &n));
        k->cond = fmax(k->cond, c);
        k->norm = fmax(k->norm, n);
        x.block.bytes = (const char *)x.block.bytes + x.block.nbytes;
    }
    k->measured = true;
    *cond = k->cond;
    *norm = k->norm;
    return INV_OK;
}

double inv_known_cond(const inv_matcher *m, const inv_binding *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (b->at[i].n == 1 && b->at[i].id[0] < m->nvalue && m->known[b->at[i].id[0]].measured)
            return m->known[b->at[i].id[0]].cond;
    return 0;
}
