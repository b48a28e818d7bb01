/* SPDX-License-Identifier: Apache-2.0
 * Judges the conditions of inverse rules that ask for the entries of a value: one function for each such row of
 * core/rules/condition.inc. A value that depends on parameters only is judged by the entries that it has now
 * (known_values.c); one that is computed from inputs by the bounds that its operators give (value_range.c). A candidate
 * that a value keeps away has the form that the rule inverts, so it is refused (INV_REFUSED), and the words say which
 * entry or bound it was.
 * requires: the condition's values are bound.  gives: whether it holds, and words for inv_finding. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "ops/base/packing.h"
#include "passes/match/match.h"

static const char compute_from_initializers[] =
    "compute '$1' from initializers alone, so that its values are known before the run";

static void see_range(const inv_question *q, inv_bounds r, inv_finding *f)
{
    f->seen = inv_arena_printf(&q->m->g->arena, "between %.3g and %.3g", r.lo, r.hi);
}

/* --- matrices --- */

/* Solving with a large matrix factors it in every step, which takes longer than to compute again the few rows that are
 * solved for. So frozen ones, such as the base of adapters, are not even looked at then: it would take
 * seconds where a model has little but such matrices. */
static bool is_not_worth_it(const inv_question *q, inv_finding *f)
{
    enum { LARGE = 256 };
    inv_graph *g = q->m->g;
    inv_matrix x;
    if (!g->train || q->x[0]->role != INV_ROLE_PARAM || !inv_stays_as_stored(g, q->v[0]) ||
        !inv_matrix_of(q->m, q->v[0], q->node, &x) || x.in <= LARGE)
        return false;
    const int64_t rows = inv_shape_nelem(&inv_val(g, q->node->in[0])->shape) / (x.in * x.groups);
    if (rows >= x.in) return false;
    f->seen = inv_arena_printf(&g->arena, "%lld rows", (long long)rows);
    f->reason = inv_arena_printf(&g->arena,
                                 "'%s' is not trained, and fewer rows (%lld) pass through it than it has inputs "
                                 "(%lld): solving takes longer than recomputing",
                                 q->x[0]->name, (long long)rows, (long long)x.in);
    return true;
}

bool inv_judge_cond(const inv_question *q, inv_finding *f)
{
    inv_matcher *m = q->m;
    if (is_not_worth_it(q, f)) return false;
    double cond = 0, norm;
    bool known = false;
    f->status = inv_known_matrix(m, q->v[0], q->node, &cond, &norm, &known);
    if (known && cond < q->c->bound) return true;
    if (known) {
        f->seen = inv_arena_printf(&m->g->arena, "%.3g", cond);
        f->reason = inv_arena_printf(&m->g->arena, "'%s' has condition number %.3g, the limit is %.3g", q->x[0]->name,
                                     cond, q->c->bound);
        return false;
    }
    f->reason = "its matrix is not known before the run";
    if (m->active[q->v[0]]) see_range(q, inv_value_range(m, q->v[0]), f);
    else f->remedy = compute_from_initializers;
    return false;
}

bool inv_judge_norm(const inv_question *q, inv_finding *f)
{
    double cond = 0, inverse = 0;
    bool known = false;
    f->status = inv_known_matrix(q->m, q->v[0], q->node, &cond, &inverse, &known);
    if (known && cond / inverse < q->c->bound) return true;
    f->reason = known ? "it is singular, so its norm is not known" : "its matrix is not known before the run";
    if (known && isfinite(cond)) {
        f->seen = inv_arena_printf(&q->m->g->arena, "%.3g", cond / inverse);
        f->reason = inv_arena_printf(&q->m->g->arena, "'%s' has norm %.3g, the limit is %.3g", q->x[0]->name,
                                     cond / inverse, q->c->bound);
    } else if (!known && q->m->active[q->v[0]]) f->remedy = compute_from_initializers;
    return false;
}

/* Entry [i,j] of the matrix that a node multiplies by from the right: its second operand, transposed if the node says
 * so; the row of an outer product by Mul is a matrix of one row. NAN: it is not known. */
static double factor_at(inv_matcher *m, const inv_node *n, int64_t i, int64_t j)
{
    inv_id w = n->in[1];
    const inv_value *v = inv_val(m->g, w);
    if (inv_attr_int(n, "transB", 0)) {
        const int64_t t = i;
        i = j, j = t;
    }
    const void *bytes = inv_known_bytes(m, w);
    const int64_t width = v->shape.rank ? v->shape.dim[v->shape.rank - 1] : 1;
    return bytes ? inv_elem_double(bytes, v->dtype, (size_t)(i * width + j)) : (double)NAN;
}

/* d = x U, o = d V, so o = x P with P = U V, of the rank r that U has columns. x - x P is its own inverse if and only
 * if P P = 2 P, which is V U = 2 I. Then P / 2 is a projection, and x - x P is orthogonal, so that it magnifies
 * nothing, if and only if that projection is orthogonal: |P|^2 (Frobenius) is 4 r then, and more otherwise. One vector
 * at a time this is Householder's reflection. Time: n r^2 for x of n features. */
bool inv_judge_reflects(const inv_question *q, inv_finding *f)
{
    inv_matcher *m = q->m;
    inv_graph *g = m->g;
    const inv_id d = q->v[0], o = q->v[1];
    const inv_node *first = inv_nod(g, inv_val(g, d)->def), *then = inv_nod(g, inv_val(g, o)->def);
    const inv_shape *x = &inv_val(g, first->in[0])->shape, *k = &inv_val(g, d)->shape;
    const int64_t n = x->rank ? x->dim[x->rank - 1] : 0, inner = k->rank ? k->dim[k->rank - 1] : 0;
    const inv_shape *v = &inv_val(g, then->in[1])->shape;
    const bool outer = strcmp(then->op->name, "Mul") == 0; /* then V is a row, which d is spread along */
    double off = 0, size = 0;
    inv_known_forget(m, INV_MOST_KNOWN);
    if (inv_val(g, first->in[1])->shape.rank != 2 || inv_shape_nelem(v) != n * inner ||
        !inv_shape_equal(x, &inv_val(g, o)->shape) || (outer && (inner != 1 || v->dim[v->rank - 1] != n)))
        return false;
    for (int64_t r = 0; r < inner; r++)
        for (int64_t c = 0; c < inner; c++) {
            double vu = r == c ? -2 : 0, uu = 0, vv = 0;
            for (int64_t i = 0; i < n; i++) {
                vu += factor_at(m, then, r, i) * factor_at(m, first, i, c);
                uu += factor_at(m, first, i, r) * factor_at(m, first, i, c);
                vv += factor_at(m, then, r, i) * factor_at(m, then, c, i);
            }
            if (!(fabs(vu) <= off)) off = fabs(vu);
            size += uu * vv;
        }
    const bool holds = off < 1e-5 && size < 4 * (double)inner * (1 + 1e-5);
    if (!holds)
        f->reason = !(off < INFINITY) ? "its factors are not known before the run"
                    : off < 1e-5      ? "it is a reflection, but not at right angles"
                                      : "done twice, it does not give back what it was done to";
    return holds;
}

/* --- entries --- */

/* Entry of v, which broadcasts against `like`, at element e of that. */
static double entry_at(const inv_value *v, const void *bytes, const inv_shape *like, int64_t e)
{
    return inv_elem_double(bytes, v->dtype, (size_t)inv_shape_element(&v->shape, like, e));
}

/* Two masks: every entry of the first is 0 or 1, and the second is what is missing to 1. */
bool inv_judge_complementary(const inv_question *q, inv_finding *f)
{
    const inv_value *vb = q->x[0], *vc = q->x[1];
    const inv_shape *s = inv_shape_nelem(&vb->shape) > inv_shape_nelem(&vc->shape) ? &vb->shape : &vc->shape;
    inv_known_forget(q->m, INV_MOST_KNOWN);
    const void *one = inv_known_bytes(q->m, q->v[0]), *two = inv_known_bytes(q->m, q->v[1]);
    bool holds = one && two && vb->shape.rank <= s->rank && vc->shape.rank <= s->rank;
    if (!one || !two) f->reason = "its masks are not known before the run";
    const bool stay = q->m->stays[q->v[0]] && q->m->stays[q->v[1]];
    for (int64_t e = 0; e < inv_shape_nelem(s) && holds; e++) {
        double x = entry_at(vb, one, s, e);
        holds = (x == 0 || x == 1) && entry_at(vc, two, s, e) == 1 - x;
    }
    if (holds && !stay) {
        f->reason = "its masks are trained, and then no masks any more";
        f->remedy = "freeze '$1' and '$2'";
        return false;
    }
    return holds;
}

/* The extremes of a value that depends on parameters only; if they cannot be had, says so. */
static bool find_extremes(const inv_question *q, inv_finding *f, inv_extremes *x)
{
    if (inv_known_extremes(q->m, q->v[0], x)) return true;
    f->reason = "its factor is not known before the run";
    f->remedy = compute_from_initializers;
    return false;
}

static const char *giver_kind(const inv_question *q)
{
    return q->x[0]->def == INV_NONE ? "the caller" : inv_node_kind(inv_nod(q->m->g, q->x[0]->def));
}

static bool range_is_positive(const inv_question *q, inv_finding *f)
{
    const inv_bounds r = inv_value_range(q->m, q->v[0]);
    inv_arena *to = &q->m->g->arena;
    const char *name = q->x[0]->name, *by = giver_kind(q);
    if (inv_bounds_positive(r)) return true;
    see_range(q, r, f);
    const char *deep = q->m->looks_spent ? ": its conditions are nested too deeply to be followed" : "";
    if (isinf(r.lo)) f->reason = inv_arena_printf(to, "'%s', given by %s, may be zero or negative%s", name, by, deep);
    else f->reason = inv_arena_printf(to, "'%s', given by %s, may be as small as %.3g%s", name, by, r.lo, deep);
    return false;
}

static bool range_is_away(const inv_question *q, inv_finding *f)
{
    const inv_bounds r = inv_value_range(q->m, q->v[0]);
    if (r.lo > q->c->number || r.hi < -q->c->number) return true;
    see_range(q, r, f);
    f->reason = inv_arena_printf(&q->m->g->arena, "'%s', given by %s, may come as near to zero as %.3g", q->x[0]->name,
                                 giver_kind(q), fmax(0, fmax(r.lo, -r.hi)));
    return false;
}

bool inv_judge_positive(const inv_question *q, inv_finding *f)
{
    inv_extremes x;
    if (q->m->active[q->v[0]]) return range_is_positive(q, f);
    if (!find_extremes(q, f, &x)) return false;
    if (x.least > 0) return true;
    f->seen = inv_arena_printf(&q->m->g->arena, "%.3g in entry %zu", x.least, x.at_least);
    f->reason = inv_arena_printf(&q->m->g->arena, "'%s' is %s, which is not above zero", q->x[0]->name, f->seen);
    return false;
}

bool inv_judge_away_from_zero(const inv_question *q, inv_finding *f)
{
    inv_extremes x;
    if (q->m->active[q->v[0]]) return range_is_away(q, f);
    if (!find_extremes(q, f, &x)) return false;
    if (x.least_abs > q->c->number) return true;
    f->seen = inv_arena_printf(&q->m->g->arena, "%.3g in entry %zu", x.least_abs, x.at_abs);
    f->reason = inv_arena_printf(&q->m->g->arena, "'%s' comes as near to zero as %.3g, in entry %zu", q->x[0]->name,
                                 x.least_abs, x.at_abs);
    return false;
}

bool inv_judge_odd(const inv_question *q, inv_finding *f)
{
    inv_extremes x;
    return !q->m->active[q->v[0]] && find_extremes(q, f, &x) && x.least == x.most && x.least > 0 &&
           fmod(x.least, 2) == 1;
}

/* A number that no training changes. */
bool inv_judge_number(const inv_question *q, inv_finding *f)
{
    inv_extremes x[2] = {{0}, {.least = 1, .most = 1}};
    inv_arena *to = &q->m->g->arena;
    for (int i = 0; i < 2; i++) {
        if (i > 0 && q->v[i] == INV_NONE) continue;
        const bool computed = q->m->active[q->v[i]], stays = q->m->stays[q->v[i]],
                   known = !computed && stays && inv_known_extremes(q->m, q->v[i], &x[i]);
        if (known && x[i].least == x[i].most) continue;
        f->seen = inv_arena_printf(to, "'%s' is %s", q->x[i]->name,
                                   computed ? "computed from inputs"
                                   : !stays ? "trained"
                                   : known  ? "several numbers"
                                            : "not known before the run");
        return false;
    }
    const double is = x[0].least / x[1].least;
    if (fabs(is - q->c->bound) <= 1e-6 * fabs(q->c->bound)) return true;
    if (q->v[1] == INV_NONE) f->seen = inv_arena_printf(to, "'%s' is %.6g", q->x[0]->name, is);
    else f->seen = inv_arena_printf(to, "'%s' / '%s' is %.6g", q->x[0]->name, q->x[1]->name, is);
    return false;
}
