/* SPDX-License-Identifier: Apache-2.0
 * Conformance of an inverse rule, from its cases: it is found; its solve text gives back what it frees, magnifies
 * errors no more than its gain says, leaves its inputs alone and hides no bad number; training with it gives the
 * gradients of training without, on every device and in both precisions, and those of differences. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "api/selftest.h"
#include "core/graph/node.h"

static const char *kind_of(const inv_inverse_def *rule) { return rule->kind ? rule->kind : rule->name; }

/* --- what matching has found --- */

static const inv_block *block_of_rule(const inv_graph *g, const inv_inverse_def *rule)
{
    for (size_t i = 0; i < g->matches->block.n; i++)
        if (g->matches->block.at[i].rule == rule) return &g->matches->block.at[i];
    return NULL;
}

/* Why the rule was not taken, if refusals tell, those that another rule has made good among them. */
static const char *refused_for(const inv_graph *g, const inv_inverse_def *rule)
{
    for (size_t i = 0; i < g->matches->refusal.n; i++)
        if (g->matches->refusal.at[i].rule == rule) return g->matches->refusal.at[i].why.reason;
    for (size_t i = 0; i < g->matches->overruled.n; i++)
        if (g->matches->overruled.at[i].rule == rule) return g->matches->overruled.at[i].why.reason;
    return NULL;
}

static bool refuses(const inv_graph *g, const inv_inverse_def *rule)
{
    const char *reason = refused_for(g, rule);
    return reason && strstr(reason, rule->refuse);
}

static const char *reason_in(const inv_graph *g, const inv_inverse_def *rule)
{
    const char *reason = refused_for(g, rule);
    return reason ? reason : "no node of the case fits it";
}

/* Number of its edges, largest expected gain and largest bound of them. */
static size_t edges_of(const inv_graph *g, const inv_inverse_def *rule, double *gain, double *bound)
{
    size_t n = 0;
    *gain = *bound = 1;
    for (size_t i = 0; i < g->matches->edge.n; i++) {
        const inv_edge *e = &g->matches->edge.at[i];
        if (e->rule != rule) continue;
        n++;
        *gain = fmax(*gain, e->gain);
        *bound = fmax(*bound, e->bound);
    }
    return n;
}

enum { UNUSED_FROM = 30 }; /* decimal exponent: such a gain is none */

static bool one_operator(inv_context *ctx, const inv_inverse_def *rule)
{
    inv_arena scratch;
    inv_stmts st = {0};
    inv_arena_init(&scratch, ctx);
    bool one = inv_text_stmts(ctx, &scratch, rule->match, &st) == INV_OK && st.n == 1;
    inv_arena_fini(&scratch);
    return one;
}

/* Whether v or a view of the same bytes is rebuilt by inverses. */
static bool rebuilt(const inv_plan *p, inv_id v)
{
    for (size_t i = 0; i < p->choice.n; i++)
        if (p->choice.at[i].choice == INV_INVERTED &&
            inv_seen_through_views(p->base, p->choice.at[i].value) == inv_seen_through_views(p->base, v))
            return true;
    return false;
}

/* A view has its operand's bytes, so that there is nothing to rebuild. */
static bool solves_views(const inv_graph *g, const inv_inverse_def *rule)
{
    for (size_t i = 0; i < g->matches->edge.n; i++) {
        const inv_edge *e = &g->matches->edge.at[i];
        if (e->rule == rule && !(inv_nod(g, e->forward)->op->flags & INV_OP_VIEW)) return false;
    }
    return true;
}

/* The rule has left in the plan what it should. *gain bounds the errors of a step. */
static bool found(inv_tester *t, const inv_plan *p, const inv_inverse_def *rule, double *gain)
{
    const inv_graph *g = p->base;
    const inv_block *b = block_of_rule(g, rule);
    double bound;
    *gain = 1;
    if (rule->refuse) return inv_test(t, refuses(g, rule), "match", "it refuses nothing here: %s", reason_in(g, rule));
    if (*kind_of(rule)) {
        bool named = b && strncmp(b->kind, kind_of(rule), strlen(kind_of(rule))) == 0;
        if (!inv_test(t, named, "match", "it names no block: %s", reason_in(g, rule))) return false;
    }
    if (!rule->solve)
        return inv_test(t, b && rebuilt(p, b->in[0]), "match", "the freed value is not rebuilt by inverses");
    if (!inv_test(t, edges_of(g, rule, gain, &bound) > 0, "match", "%s", reason_in(g, rule))) return false;
    /* What a pattern of several operators frees may be had for less from what it was made of. */
    bool usable = *gain < pow(10, UNUSED_FROM), used = inv_plan_inverts(p, INV_NONE, rule->name);
    bool fair = used == usable || (usable && (!one_operator(t->ctx, rule) || solves_views(g, rule)));
    (void)inv_test(t, fair, "match", "gain %.3g: the plan %s", *gain, used ? "uses it" : "does not use it");
    if (!usable) *gain = 1;
    return true;
}

/* --- the solve text, on values of the forward part --- */

static double margin(double gain, bool wide)
{
    return 64 * (wide ? DBL_EPSILON : (double)FLT_EPSILON) * (isfinite(gain) && gain > 1 ? gain : 1);
}

static double norm_of(const inv_test_values *v, inv_id x, inv_id minus)
{
    double sum = 0;
    for (int64_t i = 0; i < inv_shape_nelem(&inv_val(v->g, x)->shape); i++) {
        double e = inv_test_get(v, x, i) - (minus == INV_NONE ? 0 : inv_test_get(v, minus, i));
        sum += e * e;
    }
    return sqrt(sum);
}

static inv_status solve(inv_test_values *v, const inv_edge *e)
{
    for (uint32_t k = 0; k < e->nnode; k++) INV_TRY(inv_test_run(v, e->node[k]));
    return INV_OK;
}

/* A result of the solved node that the solve text starts from, and floating-point. */
static bool starts_from(const inv_graph *g, const inv_edge *e, inv_id y)
{
    if (y == INV_NONE || !inv_dtype_is_float(inv_val(g, y)->dtype)) return false;
    for (uint32_t k = 0; k < e->nnode; k++)
        for (uint32_t i = 0; i < inv_nod(g, e->node[k])->nin; i++)
            if (inv_nod(g, e->node[k])->in[i] == y) return true;
    return false;
}

/* Where it is furthest off, in words. */
static void show_furthest(inv_tester *t, const inv_test_values *v, const inv_edge *e)
{
    int64_t at = 0;
    double most = -1;
    for (int64_t i = 0; i < inv_shape_nelem(&inv_val(v->g, e->frees)->shape); i++) {
        const double off = fabs(inv_test_get(v, e->result, i) - inv_test_get(v, e->frees, i));
        if (off <= most) continue;
        most = off;
        at = i;
    }
    inv_test_help(t, "put numbers into `solve`: entry %lld of the freed value is %.6g, and solve gives %.6g",
                  (long long)at, inv_test_get(v, e->frees, at), inv_test_get(v, e->result, at));
}

static inv_status round_trip(inv_tester *t, inv_test_values *v, const inv_edge *e, bool wide)
{
    INV_TRY(solve(v, e));
    double off = norm_of(v, e->result, e->frees) / fmax(norm_of(v, e->frees, INV_NONE), DBL_MIN);
    t->seen.inverse[wide] = fmax(t->seen.inverse[wide], isnan(off) ? INFINITY : off);
    if (off > 0) inv_test_help(t, "leave `exactness` out: sums, products and quotients round");
    (void)inv_test(t, e->rule->exactness != INV_EXACT || off == 0, "round trip", "it is called exact, and off by %.3g",
                   off);
    if (!(off <= margin(e->gain, wide))) show_furthest(t, v, e);
    (void)inv_test(t, off <= margin(e->gain, wide), "round trip", "off by %.3g; rounding and gain %.3g explain %.3g",
                   off, e->gain, margin(e->gain, wide));
    return INV_OK;
}

/* --- gain --- */

/* What one entry of y (all of them, if `at` < 0), changed by about h, does to the result. */
static inv_status magnification(inv_test_values *v, const inv_edge *e, inv_id y, int64_t at, const double *was,
                                double *out)
{
    int64_t ny = inv_shape_nelem(&inv_val(v->g, y)->shape), nx = inv_shape_nelem(&inv_val(v->g, e->result)->shape);
    double moved = 0, answer = 0;
    for (int64_t i = 0; i < ny; i++) {
        double old = inv_test_get(v, y, i), h = 1e-6 * (1 + fabs(old)) * (i % 3 ? 1 : -1);
        if (at >= 0 && i != at) continue;
        inv_test_put(v, y, i, old + h);
        moved += pow(inv_test_get(v, y, i) - old, 2);
    }
    INV_TRY(solve(v, e));
    for (int64_t i = 0; i < nx; i++) answer += pow(inv_test_get(v, e->result, i) - was[i], 2);
    *out = sqrt(answer / moved);
    return INV_OK;
}

enum { MOST_ENTRIES = 48 };

/* At most, as the rule states it; of what is normalized, on this case. */
static double bound_of(const inv_test_values *v, const inv_edge *e)
{
    const int64_t n = e->spread == INV_NONE ? 0 : inv_shape_nelem(&inv_val(v->g, e->spread)->shape);
    double variance = 0;
    for (int64_t i = 0; i < n; i++) variance = fmax(variance, inv_test_get(v, e->spread, i));
    return inv_edge_bound(v->g, e, variance);
}

static inv_status gain_by(inv_tester *t, inv_test_values *v, const inv_edge *e, inv_id y, const double *was)
{
    const double bound = bound_of(v, e);
    int64_t ny = inv_shape_nelem(&inv_val(v->g, y)->shape);
    double worst = 0;
    for (int64_t at = -1; at < ny; at += 1 + (at >= 0 ? ny / MOST_ENTRIES : 0)) {
        double m = 0;
        void *old = inv_test_copy(v, y);
        inv_status s = old ? magnification(v, e, y, at, was, &m) : INV_E_NOMEM;
        if (old) memcpy(v->at[y], old, inv_value_nbytes(inv_val(v->g, y)));
        inv_dealloc(t->ctx, old);
        INV_TRY(s);
        worst = fmax(worst, m);
    }
    if (!t->changed ? t->measured == 0 || worst / bound > t->measured / t->stated : worst > bound * (1 + 1e-3)) {
        t->measured = worst;
        t->stated = bound;
    }
    inv_test_help(t,
                  "state `gain times(%.3g)` if it is never larger, max_inv(s) if solve divides by a parameter s, "
                  "inv_norm(W) for a matrix, or unbounded",
                  worst);
    (void)inv_test(t, worst <= bound * (1 + 1e-3), "gain",
                   "an error of '%s' is magnified %.6g times, the rule says at most %.6g", inv_val(v->g, y)->name,
                   worst, bound);
    return INV_OK;
}

static inv_status measure_gain(inv_tester *t, inv_test_values *v, const inv_edge *e)
{
    const inv_node *f = inv_nod(v->g, e->forward);
    int64_t nx = inv_shape_nelem(&inv_val(v->g, e->result)->shape);
    double *was = inv_alloc(t->ctx, (size_t)nx * sizeof *was + 1);
    if (!was) return INV_E_NOMEM;
    inv_status s = solve(v, e);
    for (int64_t i = 0; i < nx; i++) was[i] = inv_test_get(v, e->result, i);
    for (uint32_t k = 0; k < f->nout && s == INV_OK; k++)
        if (starts_from(v->g, e, f->out[k]) && isfinite(e->bound)) s = gain_by(t, v, e, f->out[k], was);
    inv_dealloc(t->ctx, was);
    return s;
}

/* --- extreme values --- */

static void put_all(inv_test_values *v, inv_id y, double x)
{
    for (int64_t i = 0; i < inv_shape_nelem(&inv_val(v->g, y)->shape); i++) inv_test_put(v, y, i, x);
}

/* Every result of the solved node is `x`. */
static inv_status solve_from(inv_tester *t, inv_test_values *v, const inv_edge *e, double x, bool finite)
{
    const inv_node *f = inv_nod(v->g, e->forward);
    void *old[8] = {NULL};
    inv_status s = INV_OK;
    bool any = false;
    for (uint32_t k = 0; k < f->nout && k < 8 && s == INV_OK; k++) {
        if (!starts_from(v->g, e, f->out[k])) continue;
        if (!(old[k] = inv_test_copy(v, f->out[k]))) s = INV_E_NOMEM;
        else put_all(v, f->out[k], x);
        any = true;
    }
    if (s == INV_OK) s = solve(v, e);
    if (s == INV_OK && any && finite)
        (void)inv_test(t, inv_test_finite(v, e->result), "extreme values",
                       "from %g it computes a value that is not "
                       "finite",
                       x);
    if (s == INV_OK && any && !finite)
        (void)inv_test(t, !inv_test_finite(v, e->result), "extreme values", "from %g it computes ordinary numbers", x);
    for (uint32_t k = 0; k < 8; k++) {
        if (old[k]) memcpy(v->at[f->out[k]], old[k], inv_value_nbytes(inv_val(v->g, f->out[k])));
        inv_dealloc(t->ctx, old[k]);
    }
    return s;
}

/* The largest norm of what forward computes of x on the way to the solved node: its rounding is not the inverse's. */
static double largest_between(const inv_test_values *v, const inv_edge *e)
{
    const inv_graph *g = v->g;
    bool *moves = inv_alloc(g->ctx, g->value.n * sizeof *moves), last = false;
    double largest = 0;
    if (moves) memset(moves, 0, g->value.n * sizeof *moves), moves[e->frees] = true;
    for (size_t i = 0; moves && i < g->order.n && !last; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool on = false;
        for (uint32_t k = 0; k < n->nin; k++) on = on || (n->in[k] != INV_NONE && moves[n->in[k]]);
        for (uint32_t k = 0; k < n->nout && on; k++) {
            if (n->out[k] == INV_NONE) continue;
            moves[n->out[k]] = true;
            if (inv_dtype_is_float(inv_val(g, n->out[k])->dtype))
                largest = fmax(largest, norm_of(v, n->out[k], INV_NONE));
        }
        last = g->order.at[i] == e->forward;
    }
    inv_dealloc(g->ctx, moves);
    return isfinite(largest) ? largest : 0;
}

/* All that the solve text reads of the forward part, what is saved there too; *scale: the largest norm of what forward
 * computes of that. */
static bool reads_finite(inv_test_values *v, const inv_edge *e, double *scale)
{
    const inv_graph *g = v->g;
    *scale = largest_between(v, e);
    for (uint32_t k = 0; k < e->nsave; k++) {
        if (inv_test_run(v, e->node[k]) != INV_OK) return false;
        for (uint32_t i = 0; i < inv_nod(g, e->node[k])->nout; i++)
            if (!inv_test_finite(v, inv_nod(g, e->node[k])->out[i])) return false;
    }
    for (uint32_t k = 0; k < e->nnode; k++)
        for (uint32_t i = 0; i < inv_nod(g, e->node[k])->nin; i++) {
            inv_id x = inv_nod(g, e->node[k])->in[i];
            const inv_id def = x == INV_NONE ? INV_NONE : inv_val(g, x)->def;
            if (def == INV_NONE || inv_nod(g, def)->phase != INV_FORWARD) continue;
            if (!inv_test_finite(v, x)) return false;
            *scale = fmax(*scale, norm_of(v, x, INV_NONE));
        }
    return true;
}

/* Everything but x itself is computed again. */
static inv_status run_behind(inv_test_values *v, const inv_plan *p, inv_id x)
{
    for (size_t i = 0; i < p->base->forward_end; i++)
        if (v->g->order.at[i] != inv_val(v->g, x)->def) INV_TRY(inv_test_run(v, v->g->order.at[i]));
    return INV_OK;
}

/* What is freed takes numbers of all sizes. */
static inv_status from_far_apart(inv_tester *t, inv_test_values *v, const inv_plan *p, const inv_edge *e, bool wide)
{
    static const double number[] = {0, 1e-40, 1e30, -1, -1e30, 1, -1e-40, 1e-3};
    const inv_graph *g = v->g;
    void *old = inv_test_copy(v, e->frees);
    if (!old) return INV_E_NOMEM;
    inv_status s = INV_OK;
    double scale = 0;
    for (int64_t i = 0; i < inv_shape_nelem(&inv_val(g, e->frees)->shape); i++)
        inv_test_put(v, e->frees, i, number[i % 8]);
    if (s == INV_OK) s = run_behind(v, p, e->frees);
    if (s == INV_OK && reads_finite(v, e, &scale)) {
        s = solve(v, e);
        double off = norm_of(v, e->result, e->frees);
        double fair = margin(e->bound, wide) * (scale + norm_of(v, e->frees, INV_NONE));
        if (s == INV_OK)
            (void)inv_test(t, off <= fair, "extreme values",
                           "numbers from 1e-40 to 1e30 are restored with an error of %.3g; rounding explains at most "
                           "%.3g",
                           off, fair);
    }
    memcpy(v->at[e->frees], old, inv_value_nbytes(inv_val(g, e->frees)));
    inv_dealloc(t->ctx, old);
    if (s == INV_OK) s = run_behind(v, p, e->frees);
    return s;
}

static inv_status extremes(inv_tester *t, inv_test_values *v, const inv_plan *p, const inv_edge *e, bool wide)
{
    static const double ordinary[] = {0, 1e-40, -1e-40, 1e30, -1e30};
    INV_TRY(solve_from(t, v, e, (double)NAN, false));
    if (!(e->bound < 1e6)) return INV_OK; /* it may well overflow, or lead back from infinity */
    INV_TRY(solve_from(t, v, e, (double)INFINITY, false));
    for (size_t i = 0; i < sizeof ordinary / sizeof *ordinary; i++) INV_TRY(solve_from(t, v, e, ordinary[i], true));
    return from_far_apart(t, v, p, e, wide);
}

/* --- the domain --- */

#define AGREES 1e-6 /* relative, in float64 */

/* Where no bound says how far rounding may lead, forward has to give of what comes back what it gave before. */
static inv_status computes_again(inv_tester *t, inv_test_values *v, const inv_plan *p, const inv_edge *e, double off)
{
    const inv_node *f = inv_nod(v->g, e->forward);
    void *was = inv_test_copy(v, e->frees), *old[8] = {NULL};
    double is = 0, size = DBL_MIN;
    inv_status s = was ? INV_OK : INV_E_NOMEM;
    for (uint32_t k = 0; k < f->nout && k < 8 && s == INV_OK; k++)
        if (starts_from(v->g, e, f->out[k]) && !(old[k] = inv_test_copy(v, f->out[k]))) s = INV_E_NOMEM;
    if (s == INV_OK) memcpy(v->at[e->frees], v->at[e->result], inv_value_nbytes(inv_val(v->g, e->frees)));
    if (s == INV_OK) s = run_behind(v, p, e->frees);
    for (uint32_t k = 0; k < 8; k++) {
        const double *y = old[k];
        for (int64_t i = 0; y && s == INV_OK && i < inv_shape_nelem(&inv_val(v->g, f->out[k])->shape); i++) {
            is += pow(inv_test_get(v, f->out[k], i) - y[i], 2);
            size += pow(y[i], 2);
        }
        inv_dealloc(t->ctx, old[k]);
    }
    is = sqrt(is / size);
    if (s == INV_OK)
        (void)inv_test(t, is <= AGREES, "domain",
                       "the freed value is restored with an error of %.3g, and its result with %.3g", off, is);
    if (was) memcpy(v->at[e->frees], was, inv_value_nbytes(inv_val(v->g, e->frees)));
    inv_dealloc(t->ctx, was);
    return s == INV_OK ? run_behind(v, p, e->frees) : s;
}

/* What comes back may be off by what rounding of all that is computed on the way explains. *off NAN: forward is not
 * finite here, so there is nothing to come back. */
static inv_status come_back(inv_tester *t, inv_test_values *v, const inv_plan *p, const inv_edge *e, bool wide,
                            double *off)
{
    double scale;
    *off = (double)NAN;
    if (!inv_test_finite(v, e->frees) || !reads_finite(v, e, &scale)) return INV_OK;
    INV_TRY(solve(v, e));
    const double size = norm_of(v, e->frees, INV_NONE), is = norm_of(v, e->result, e->frees);
    /* Numbers on the way may be of size 1 however small x is, as in 1 + x^2. */
    const double way = sqrt((double)inv_shape_nelem(&inv_val(v->g, e->frees)->shape));
    const double fair = margin(e->bound, wide) * (scale + size + way);
    *off = isfinite(is) ? is / fmax(size, DBL_MIN) : INFINITY;
    if (!isfinite(e->bound)) return wide && isfinite(*off) && *off > AGREES ? computes_again(t, v, p, e, *off) : INV_OK;
    if (!(is <= fair)) show_furthest(t, v, e);
    (void)inv_test(t, is <= fair, "domain",
                   "the freed value is restored with an error of %.3g; rounding explains at "
                   "most %.3g",
                   is, fair);
    return INV_OK;
}

/* The first output, in float32 and then in float64. */
static inv_status compare_forward(inv_tester *t, const inv_plan *p, const inv_test_values *v, bool wide)
{
    const inv_id y = p->output.at[0].value;
    const int64_t n = inv_shape_nelem(&inv_val(v->g, y)->shape);
    double off = 0, size = 0;
    if (!wide) {
        inv_dealloc(t->ctx, t->narrow);
        if (!(t->narrow = inv_alloc(t->ctx, (size_t)n * sizeof *t->narrow + 1))) return INV_E_NOMEM;
    }
    for (int64_t i = 0; i < n; i++) {
        if (!wide) t->narrow[i] = inv_test_get(v, y, i);
        off += pow(t->narrow[i] - inv_test_get(v, y, i), 2), size += pow(inv_test_get(v, y, i), 2);
    }
    (void)inv_test(t, inv_test_finite(v, y), "forward", "the first output of the case is not finite");
    t->seen.forward = fmax(t->seen.forward, sqrt(off) / fmax(sqrt(size), DBL_MIN));
    return INV_OK;
}

static inv_status one_edge(inv_tester *t, inv_test_values *v, const inv_plan *p, const inv_edge *e, bool wide)
{
    INV_TRY(round_trip(t, v, e, wide));
    for (uint32_t k = 0; k < e->nnode; k++) INV_TRY(inv_test_aliasing(t, v, e->node[k]));
    if (wide) INV_TRY(measure_gain(t, v, e));
    if (wide) INV_TRY(inv_test_logdet(t, v, e));
    return extremes(t, v, p, e, wide);
}

static inv_status templates(inv_tester *t, const inv_plan *p, const inv_inverse_def *rule, const inv_test_case *c,
                            bool wide)
{
    inv_test_values v;
    inv_status s = inv_test_forward(p, c, &v);
    if (s == INV_OK) s = compare_forward(t, p, &v, wide);
    for (size_t i = 0; i < p->base->matches->edge.n && s == INV_OK; i++) {
        const inv_edge *e = &p->base->matches->edge.at[i];
        if (e->rule == rule) s = one_edge(t, &v, p, e, wide);
    }
    inv_test_values_fini(&v);
    return s;
}

inv_status inv_test_edges(inv_tester *t, const inv_plan *p, const inv_inverse_def *rule, const inv_test_case *c,
                          bool wide, bool volumes, double *off)
{
    inv_test_values v;
    inv_status s = inv_test_forward(p, c, &v);
    *off = 0;
    for (size_t i = 0; i < p->base->matches->edge.n && s == INV_OK; i++) {
        const inv_edge *e = &p->base->matches->edge.at[i];
        double is = 0;
        if (e->rule != rule) continue;
        s = come_back(t, &v, p, e, wide, &is);
        if (s == INV_OK && wide && isfinite(is)) s = measure_gain(t, &v, e);
        if (s == INV_OK && wide && volumes && isfinite(is)) s = inv_test_logdet(t, &v, e);
        *off = fmax(*off, is); /* NAN counts for nothing */
    }
    inv_test_values_fini(&v);
    return s;
}

/* --- training --- */

static inv_status compare_training(inv_tester *t, inv_test_case *c, const char *device, bool wide, double gain)
{
    inv_session *by[2] = {NULL, NULL};
    double *grad[2] = {NULL, NULL}, off = 0, size = 0;
    size_t n[2] = {0, 0};
    inv_result r[2] = {{0}};
    inv_status s = INV_OK;
    for (int k = 0; k < 2 && s == INV_OK; k++) {
        s = inv_test_session(c, (inv_test_how){k ? INV_MEMORY_STORE : INV_MEMORY_INVERT, device, wide}, &by[k]);
        if (s == INV_OK) s = inv_test_gradients(by[k], c, &r[k], &grad[k], &n[k]);
    }
    if (s == INV_OK &&
        inv_test(t, n[0] == n[1] && n[0] > 0, "training", "it has %zu gradients, without inverses %zu", n[0], n[1])) {
        const double fair = 4 * margin(gain, wide);
        for (size_t i = 0; i < n[0]; i++) off += pow(grad[0][i] - grad[1][i], 2), size += pow(grad[1][i], 2);
        (void)inv_test(t, r[0].loss == r[1].loss, "training", "loss %.17g, without inverses %.17g", r[0].loss,
                       r[1].loss);
        (void)inv_test(t, r[0].fallbacks == 0 && r[0].drift <= fair, "training",
                       "a rebuilt value is off by %.3g, rounding and gain %.3g explain %.3g", r[0].drift, gain, fair);
        (void)inv_test(t, sqrt(off) <= fair * sqrt(size), "training",
                       "gradients are off by %.3g, at most %.3g is "
                       "rounding",
                       sqrt(off / fmax(size, DBL_MIN)), fair);
    }
    for (int k = 0; k < 2; k++) {
        inv_dealloc(t->ctx, grad[k]);
        inv_session_destroy(by[k]);
    }
    return s;
}

static inv_status check_devices(inv_tester *t, inv_test_case *c, bool wide, double gain)
{
    for (size_t d = 0; d < t->ndevice; d++) {
        char how[64];
        snprintf(how, sizeof how, "%s, %s", t->device[d], wide ? "float64" : "float32");
        t->how = how;
        inv_status s = compare_training(t, c, t->device[d], wide, gain);
        /* Operators of plugins may be for the host alone; a plan for a device then says so. */
        if (s == INV_E_UNSUPPORTED_OP && d > 0 && t->plugin) t->skipped = true;
        else if (s != INV_OK && s != INV_E_NOMEM)
            (void)inv_test(t, false, "training", "%s", inv_context_message(t->ctx));
        t->how = "";
        if (s == INV_E_NOMEM) return s;
    }
    return INV_OK;
}

static inv_status check_case(inv_tester *t, const inv_inverse_def *rule, inv_test_case *c)
{
    bool all = true;
    for (int wide = 0; wide < 2; wide++) {
        inv_session *s;
        double gain;
        t->how = wide ? "cpu, float64" : "cpu, float32";
        INV_TRY(inv_test_session(c, (inv_test_how){INV_MEMORY_INVERT, "cpu", wide}, &s));
        const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
        bool there = found(t, p, rule, &gain);
        inv_status st = there && rule->solve ? templates(t, p, rule, c, wide) : INV_OK;
        if (st == INV_OK && there && rule->solve && wide) st = inv_test_domain(t, rule, p, c);
        inv_session_destroy(s);
        INV_TRY(st);
        if (there) INV_TRY(check_devices(t, c, wide, gain));
        all = all && there;
    }
    return all ? inv_test_differences(t, c, INV_MEMORY_INVERT) : INV_OK;
}

inv_status inv_test_rule(inv_tester *t, const inv_inverse_def *rule)
{
    (void)inv_test(t, rule->cases && rule->cases[0], "cases", "it has none, so nothing can be tested");
    for (size_t i = 0; rule->cases && rule->cases[i]; i++) {
        inv_graph *g;
        inv_test_case c = {0};
        t->number = i + 1;
        t->text = rule->cases[i];
        inv_status s = inv_graph_parse(t->ctx, t->text, &g);
        if (s == INV_OK) {
            s = inv_test_open(t, g, &c);
            if (s == INV_OK && !inv_test(t, c.trains, "cases", "input and first output must be floating-point"))
                s = INV_OK;
            else if (s == INV_OK) s = check_case(t, rule, &c);
            inv_test_close(&c);
        }
        if (s == INV_E_NOMEM) return s;
        if (s != INV_OK) (void)inv_test(t, false, "cases", "%s", inv_context_message(t->ctx));
    }
    t->how = "";
    if (rule->logdet && rule->solve)
        (void)inv_test(t, t->logdets > 0, "log-determinant",
                       "it is stated, but no case measures it. One must find the rule, free as many numbers as it "
                       "starts from (at most %d), and keep samples apart%s%s",
                       INV_TEST_LOGDET, *t->not_exported ? "; " : "", t->not_exported);
    return INV_OK;
}
