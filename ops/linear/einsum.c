/* SPDX-License-Identifier: Apache-2.0
 * ONNX's Einsum, to operators that exist: diagonals become gathers, axes that only one operand has and the result does
 * not are summed up, and operands are joined one after the other by matrix products (or, where nothing is summed, by
 * products of elements). Source: the ONNX operator specification. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"

enum { LABELS = 64 };
#define WILD 52 /* label of the last axis of an ellipsis; those before it count up */

/* Axes by labels: a-z, A-Z, axes of the ellipsis. */
typedef struct term {
    inv_id v;
    int n;
    int label[2 * INV_MAX_RANK];
} term;

typedef struct einsum {
    inv_graph *g;
    const inv_node *n;
    int64_t dim[LABELS]; /* the largest extent that a label has */
    int uses[LABELS];    /* operands that are still to be joined and have it, and the result */
    int seen[LABELS];    /* how often it is written on the left */
    term out;
} einsum;

static int find(const term *t, int label)
{
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label) return i;
    return -1;
}

/* Labels of a term of the equation, up to a comma, an arrow or the end. */
static inv_status read_term(const einsum *e, const char **at, int wild, term *t)
{
    const char *p = *at;
    for (; *p && *p != ',' && *p != '-'; p++) {
        int label = *p >= 'a' && *p <= 'z' ? *p - 'a' : *p >= 'A' && *p <= 'Z' ? *p - 'A' + 26 : -1;
        if (*p == ' ') continue;
        if (strncmp(p, "...", 3) == 0) {
            p += 2;
            for (int i = wild; i-- > 0;) {
                if (t->n == 2 * INV_MAX_RANK || WILD + i >= LABELS) break;
                t->label[t->n++] = WILD + i;
            }
            continue;
        }
        if (label < 0 || t->n == 2 * INV_MAX_RANK)
            return inv_node_fail(e->g, e->n, INV_E_GRAPH, "the equation is not one of labels, commas and an arrow");
        t->label[t->n++] = label;
    }
    *at = p;
    return INV_OK;
}

/* Labels of operand i, whose ellipsis covers what the letters leave. */
static inv_status read_operand(einsum *e, uint32_t i, const char **at, term *t, int *wild)
{
    const inv_shape *s = inv_in_shape(e->g, e->n, i);
    const char *p = *at;
    term letters = {.v = INV_NONE};
    INV_TRY(read_term(e, &p, 0, &letters));
    const bool dots = memchr(*at, '.', (size_t)(p - *at)) != NULL;
    const int rest = s->rank - letters.n;
    if (rest < 0 || (rest > 0 && !dots))
        return inv_node_fail(e->g, e->n, INV_E_SHAPE, "operand %u has %d axes, the equation says %d", i, s->rank,
                             letters.n);
    *t = (term){.v = e->n->in[i]};
    INV_TRY(read_term(e, at, rest, t));
    if (rest > *wild) *wild = rest;
    for (int k = 0; k < t->n; k++) {
        const int l = t->label[k];
        e->seen[l]++;
        if (e->dim[l] != s->dim[k] && e->dim[l] > 1 && s->dim[k] != 1) {
            inv_note_misfit(e->g, 1 + (int)i * INV_MAX_RANK + k, s->dim[k], e->dim[l]);
            return inv_node_fail(e->g, e->n, INV_E_SHAPE,
                                 "axis %d of operand %u has %lld entries, others with its "
                                 "label %lld",
                                 k, i, (long long)s->dim[k], (long long)e->dim[l]);
        }
        if (e->dim[l] <= 1) e->dim[l] = s->dim[k];
    }
    return INV_OK;
}

/* What stands right of the arrow, or without one: the ellipsis, then labels that are written once, by alphabet. */
static inv_status read_result(einsum *e, const char *at, int wild)
{
    if (*at == '-') {
        at += 2;
        INV_TRY(read_term(e, &at, wild, &e->out));
    } else {
        for (int i = wild; i-- > 0;) e->out.label[e->out.n++] = WILD + i;
        for (int pass = 0; pass < 2; pass++) { /* capitals come first in the alphabet */
            for (int l = pass ? 0 : 26; l < (pass ? 26 : 52); l++)
                if (e->seen[l] == 1 && e->out.n < INV_MAX_RANK) e->out.label[e->out.n++] = l;
        }
    }
    if (e->out.n > INV_MAX_RANK) return inv_node_fail(e->g, e->n, INV_E_SHAPE, "the result has too many axes");
    for (int k = 0; k < e->out.n; k++) {
        if (e->seen[e->out.label[k]] == 0)
            return inv_node_fail(e->g, e->n, INV_E_GRAPH, "the equation's result has a label that no operand has");
        e->uses[e->out.label[k]]++;
    }
    return INV_OK;
}

/* Axes in the order of `label`, all of which t has. */
static void arrange(const einsum *e, term *t, int n, const int *label)
{
    int64_t perm[INV_MAX_RANK] = {0};
    for (int i = 0; i < n; i++) perm[i] = find(t, label[i]);
    t->v = inv_emit_transpose(e->g, t->v, n, perm);
    for (int i = 0; i < n; i++) t->label[i] = label[i];
}

/* Of axes with one label, the diagonal. */
static inv_status take_diagonal(const einsum *e, term *t)
{
    for (int a = 0; a < t->n; a++) {
        for (int b = a + 1; b < t->n; b++) {
            if (t->label[a] != t->label[b]) continue;
            inv_shape s = *inv_shape_of_value(e->g, t->v);
            const int64_t extent = s.dim[a];
            int64_t perm[INV_MAX_RANK], *at = INV_ARENA_NEW(&e->g->arena, int64_t, (size_t)extent + 1);
            if (!at) return INV_E_NOMEM;
            int n = 0, label = t->label[a];
            if (s.dim[b] != extent)
                return inv_node_fail(e->g, e->n, INV_E_SHAPE, "axes with one label differ in extent");
            for (int i = 0; i < t->n; i++)
                if (i != a && i != b) perm[n] = i, t->label[n++] = t->label[i];
            perm[n] = a, perm[n + 1] = b;
            t->label[n] = label;
            inv_id v = inv_emit_transpose(e->g, t->v, n + 2, perm);
            if (v == INV_NONE) return inv_failed(e->g);
            s = *inv_shape_of_value(e->g, v);
            s.dim[n] = extent * extent;
            s.rank = t->n = n + 1;
            for (int64_t i = 0; i < extent; i++) at[i] = i * (extent + 1);
            v = inv_emit_view(e->g, v, &s);
            const inv_id index = inv_graph_const_ints(e->g, (size_t)extent, at);
            if (v == INV_NONE || index == INV_NONE) return inv_failed(e->g);
            t->v = inv_emit1(e->g, "Gather", INV_IN(v, index), INV_ATTRS(inv_attr_of_int("axis", n)));
            if (t->v == INV_NONE) return inv_failed(e->g);
            a = -1; /* from the start: a label may be there three times */
            break;
        }
    }
    return INV_OK;
}

/* Sums up axes that nobody else has; of one entry where others have more, they are just dropped. */
static inv_status sum_up(einsum *e, term *t, const term *other)
{
    int64_t axes[INV_MAX_RANK];
    int n = 0, kept = 0;
    for (int i = 0; i < t->n; i++) {
        const int l = t->label[i];
        const int at = other ? find(other, l) : -1;
        const int64_t own = inv_shape_of_value(e->g, t->v)->dim[i];
        const bool one = own == 1 && at >= 0 && inv_shape_of_value(e->g, other->v)->dim[at] != 1;
        if (e->uses[l] == (at >= 0 ? 2 : 1) && (at < 0 || one)) axes[n++] = i;
        else t->label[kept++] = l;
        if (kept != i + 1 && n > 0 && axes[n - 1] == i) e->uses[l]--;
    }
    t->n = kept;
    if (n == 0) return INV_OK;
    t->v = inv_emit1(e->g, "ReduceSumAxes", INV_IN(t->v),
                     INV_ATTRS(inv_attr_of_ints("axes", (size_t)n, axes), inv_attr_of_int("keepdims", 0)));
    return t->v == INV_NONE ? inv_failed(e->g) : INV_OK;
}

/* Extents of labels first..last-1 of t, appended to s; as one product if `merge`. */
static void extents(const einsum *e, const term *t, int first, int last, bool merge, inv_shape *s)
{
    const inv_shape *x = inv_shape_of_value(e->g, t->v);
    int64_t all = 1;
    for (int i = first; i < last; i++) {
        all *= x->dim[i];
        if (!merge) s->dim[s->rank++] = x->dim[i];
    }
    if (merge) s->dim[s->rank++] = all;
}

/* Whether two operands share only axes that are summed over, and b has more others than a. */
static bool is_wider(const einsum *e, const term *a, const term *b)
{
    bool summed = false;
    for (int i = 0; i < a->n; i++) {
        if (find(b, a->label[i]) < 0) continue;
        if (e->uses[a->label[i]] > 2) return false;
        summed = true;
    }
    return summed && b->n > a->n;
}

/* Two operands as one: shared axes that are needed later stay, shared ones that are not are summed over. Where none
 * stays, the wider operand comes first and keeps its axes, as in MatMul by a matrix: Views would need extents. */
static inv_status join(einsum *e, term *a, term *b, term *out)
{
    int order[2][3 * INV_MAX_RANK], shared = 0, freed[2] = {0, 0}, summed = 0;
    INV_TRY(sum_up(e, a, b));
    INV_TRY(sum_up(e, b, a));
    if (is_wider(e, a, b)) {
        term *wider = b;
        b = a;
        a = wider;
    }
    const term *t[2] = {a, b};
    for (int i = 0; i < a->n; i++)
        if (find(b, a->label[i]) >= 0 && e->uses[a->label[i]] > 2) order[0][shared++] = a->label[i];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < shared; i++) order[k][i] = order[0][i];
        for (int i = 0; i < t[k]->n; i++)
            if (find(t[1 - k], t[k]->label[i]) < 0) order[k][shared + freed[k]++] = t[k]->label[i];
    }
    for (int i = 0; i < a->n; i++) {
        const int l = a->label[i];
        if (find(b, l) < 0 || e->uses[l] > 2) continue;
        order[0][shared + freed[0] + summed] = order[1][shared + freed[1] + summed] = l;
        summed++;
    }
    if (shared + freed[0] + freed[1] > INV_MAX_RANK || (summed > 0 && shared + 2 > INV_MAX_RANK))
        return inv_node_fail(e->g, e->n, INV_E_SHAPE, "a product of two operands has more than %d axes", INV_MAX_RANK);
    arrange(e, a, a->n, order[0]);
    arrange(e, b, b->n, order[1]);
    if (a->v == INV_NONE || b->v == INV_NONE) return inv_failed(e->g);
    inv_shape s[2] = {{0}, {0}}, both = {0}, result;
    inv_id v[2] = {a->v, b->v};
    for (int k = 0; k < 2; k++) {
        const int f = shared + freed[k];
        extents(e, t[k], 0, shared, false, &s[k]);
        for (int i = 0; i < freed[0] && k == 1 && summed == 0; i++) s[k].dim[s[k].rank++] = 1;
        extents(e, t[k], shared, f, summed > 0 && (k > 0 || shared > 0 || f < 2), &s[k]);
        for (int i = 0; i < freed[1] && k == 0 && summed == 0; i++) s[k].dim[s[k].rank++] = 1;
        if (summed > 0) extents(e, t[k], f, t[k]->n, true, &s[k]);
        v[k] = inv_emit_view(e->g, t[k]->v, &s[k]);
        if (v[k] == INV_NONE) return inv_failed(e->g);
    }
    for (int i = 0; i < shared; i++) both.dim[both.rank++] = s[0].dim[i] == 1 ? s[1].dim[i] : s[0].dim[i];
    result = both;
    extents(e, a, shared, shared + freed[0], false, &result);
    extents(e, b, shared, shared + freed[1], false, &result);
    const inv_id y = summed == 0 ? inv_emit1(e->g, "Mul", INV_IN(v[0], v[1]), INV_NOATTR)
                                 : inv_emit1(e->g, "MatMulT", INV_IN(v[0], v[1]),
                                             INV_ATTRS(inv_attr_of_int("transA", 0), inv_attr_of_int("transB", 1)));
    *out = (term){.v = inv_emit_view(e->g, y, &result)};
    for (int i = 0; i < shared + freed[0]; i++) out->label[out->n++] = order[0][i];
    for (int i = 0; i < freed[1]; i++) out->label[out->n++] = order[1][shared + i];
    for (int i = 0; i < shared; i++) e->uses[order[0][i]]--;
    return out->v == INV_NONE ? inv_failed(e->g) : INV_OK;
}

/* The joined operands with the axes of the result, in their order. */
static inv_status finish_einsum(einsum *e, term *t, inv_id *out)
{
    INV_TRY(sum_up(e, t, NULL));
    for (int i = 0; i < e->out.n; i++) {
        if (find(t, e->out.label[i]) < 0)
            return inv_node_fail(e->g, e->n, INV_E_GRAPH, "the equation's result names a label twice");
    }
    if (t->n != e->out.n) return inv_node_fail(e->g, e->n, INV_E_GRAPH, "the equation's result names a label twice");
    arrange(e, t, t->n, e->out.label);
    *out = t->v;
    return t->v == INV_NONE ? inv_failed(e->g) : INV_OK;
}

static inv_status einsum_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    enum { MOST = 16 };
    einsum e = {.g = g, .n = n};
    term t[MOST], joined;
    int wild = 0;
    const char *at = inv_attr_string(n, "equation", "");
    if (n->nin > MOST) return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "more than %d operands", MOST);
    for (uint32_t i = 0; i < n->nin; i++) {
        INV_TRY(inv_need_real(g, n, i));
        INV_TRY(read_operand(&e, i, &at, &t[i], &wild));
        if ((i + 1 < n->nin) != (*at == ','))
            return inv_node_fail(g, n, INV_E_GRAPH, "the equation is not about %u operands", n->nin);
        if (*at == ',') at++;
    }
    INV_TRY(read_result(&e, at, wild));
    for (uint32_t i = 0; i < n->nin; i++) {
        INV_TRY(take_diagonal(&e, &t[i]));
        for (int k = 0; k < t[i].n; k++) e.uses[t[i].label[k]]++;
    }
    joined = t[0];
    if (n->nin > 1) INV_TRY(sum_up(&e, &joined, NULL));
    for (uint32_t i = 1; i < n->nin; i++) {
        term next;
        INV_TRY(sum_up(&e, &t[i], NULL));
        INV_TRY(join(&e, &joined, &t[i], &next));
        joined = next;
    }
    return finish_einsum(&e, &joined, &out[0]);
}

INV_LOWERED_BY(
    einsum_lower, 0, INV_OP_PRODUCT, einsum_12, "Einsum", 12, "inputs*", "output",
    "sums of products by an equation; to Transpose, View, MatMulT, Mul, ReduceSumAxes, Gather. ONNX Einsum-12",
    "y = Einsum<equation = \"bij,bjk->bik\">(float[2,3,4] a, float[2,4,5] b)",
    "y = Einsum<equation = \"bti,ij->btj\">(float[2,3,4] a, float[4,5] b)",
    "y = Einsum<equation = \"ij,btj->bit\">(float[5,4] a, float[2,3,4] b)",
    "y = Einsum<equation = \"...ii->...i\">(float[2,3,3] a)", "y = Einsum<equation = \"i,j\">(float[3] a, float[2] b)",
    "y = Einsum<equation = \"ij,kj,ki->k\">(float[3,2] a, float[4,2] b, float[4,3] c)",
    "y = Einsum<equation = \"bhqd,bkhd->bhqk\">(float[2,3,4,5] a, float[2,6,3,5] b)",
    "y = Einsum<equation = \" ...ij , jk -> ...k\">(float[2,1,3,4] a, float[4,2] b)",
    "y = Einsum<equation = \"a...,...b\">(float[2,3,1] a, float[1,4,2] b)",
    "y = Einsum<equation = \"ij,ij->\">(float[2,3] a, float[2,3] b)",
    "y = Einsum<equation = \"iij->j\">(float[3,3,2] a)", "y = Einsum<equation = \"->\">(float[] a)")

const inv_op_def *const inv_ops_einsum[] = {&einsum_12_row, NULL};
