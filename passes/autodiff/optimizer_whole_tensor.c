/* SPDX-License-Identifier: Apache-2.0
 * Updates that need more of a tensor than its elements one by one, norms, sums of rows or products, made of canonical
 * operators, so that every device has them: LAMB, Adafactor, Muon. What differs from step to step, they read from
 * StepNumber; parameter and states are written by Assign, behind all that reads them.
 *
 * What is computed with is a matrix where the parameter has more axes (Adafactor: a stack of matrices), and states are
 * kept in that shape. So what the update computes are no images to the pass that gives these another order of axes. */
#include <float.h>
#include <math.h>

#include "passes/autodiff/optimizer_whole_tensor.h"

typedef inv_update_site site;

/* --- formulas --- */

static inv_id real(site *u, double v) { return inv_graph_const_real(u->g, u->g->real, v); }
static inv_id pair(site *u, const char *op, inv_id a, inv_id b)
{
    return inv_emit1(u->g, op, INV_IN(a, b), INV_NOATTR);
}
static inv_id add(site *u, inv_id a, inv_id b) { return pair(u, "Add", a, b); }
static inv_id mul(site *u, inv_id a, inv_id b) { return pair(u, "Mul", a, b); }
static inv_id scaled(site *u, inv_id a, double by) { return by == 1 ? a : mul(u, a, real(u, by)); }
static inv_id root(site *u, inv_id a) { return inv_emit1(u->g, "Sqrt", INV_IN(a), INV_NOATTR); }

/* a + by (b - a) */
static inv_id between(site *u, inv_id a, inv_id b, inv_id by) { return add(u, a, mul(u, pair(u, "Sub", b, a), by)); }

static inv_id viewed(site *u, inv_id v, const inv_shape *s)
{
    if (u->g->failed || inv_shape_equal(&inv_val(u->g, v)->shape, s)) return v;
    return inv_emit1(u->g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_ints("shape", (size_t)s->rank, s->dim)));
}

/* The root of the sum of squares. */
static inv_id norm_of(site *u, inv_id v)
{
    const inv_id n = inv_emit1(u->g, "GradientNorm", INV_IN(v), INV_NOATTR);
    if (u->g->failed || u->g->real == INV_F64) return n;
    return inv_emit1(u->g, "Cast", INV_IN(n), INV_ATTRS(inv_attr_of_int("to", (int64_t)u->g->real)));
}

/* The root of the mean of squares. */
static inv_id size_of(site *u, inv_id v)
{
    if (u->g->failed) return v;
    return scaled(u, norm_of(u, v), 1 / sqrt((double)inv_shape_nelem(&inv_val(u->g, v)->shape)));
}

static inv_id mean_over(site *u, inv_id v, int64_t axis)
{
    return inv_emit1(u->g, "ReduceMeanAxes", INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("axes", 1, &axis), inv_attr_of_int("keepdims", 1)));
}

/* add + factor times what `what` says of `base`. */
static inv_id step_number(site *u, inv_step_what what, double base, double factor, double plus)
{
    return inv_emit1(u->g, "StepNumber", 0, NULL,
                     INV_ATTRS(inv_attr_of_int("what", what), inv_attr_of_float("base", base),
                               inv_attr_of_float("factor", factor), inv_attr_of_float("add", plus),
                               inv_attr_of_int("group", (int64_t)u->group),
                               inv_attr_of_int("since", (int64_t)u->since)));
}

static inv_id rate(site *u, double factor, double plus) { return step_number(u, INV_STEP_LR, 0, factor, plus); }

/* --- shapes, states --- */

static inv_shape as_matrix(const inv_shape *s)
{
    int64_t rest = 1;
    for (int d = 1; d < s->rank; d++) rest *= s->dim[d];
    return s->rank <= 2 ? *s : inv_shape_of(2, (int64_t[]){s->dim[0], rest});
}

static inv_shape as_stack(const inv_shape *s)
{
    int64_t first = 1;
    for (int d = 0; d < s->rank - 2; d++) first *= s->dim[d];
    return s->rank <= 2 ? *s : inv_shape_of(3, (int64_t[]){first, s->dim[s->rank - 2], s->dim[s->rank - 1]});
}

bool inv_is_matrix(const inv_shape *s)
{
    const inv_shape m = as_matrix(s);
    return m.rank == 2 && m.dim[0] > 1 && m.dim[1] > 1;
}

static inv_id state(site *u, const char *name, const inv_shape *s)
{
    inv_id v = INV_NONE;
    if (!u->g->failed) u->g->failed = inv_state_tensor(u->g, u->w, name, INV_MEM_OPTIM, u->g->real, s, &v);
    return v;
}

static void assign(site *u, inv_id to, inv_id value)
{
    if (u->g->failed || to == INV_NONE || value == INV_NONE) return;
    const inv_shape shape = inv_val(u->g, to)->shape;
    const inv_id in[] = {to, viewed(u, value, &shape), u->bad};
    (void)inv_emit(u->g, "Assign", 0, u->bad == INV_NONE ? 2 : 3, in, INV_NOATTR);
}

/* The gradient after clipping, in the shape that is computed with. */
static inv_id gradient(site *u, const inv_shape *s)
{
    const inv_session_options *o = u->o;
    inv_id g = viewed(u, u->grad, s);
    if (u->norm != INV_NONE)
        g = mul(u, g,
                inv_emit1(u->g, "StepNumber", INV_IN(u->norm),
                          INV_ATTRS(inv_attr_of_int("what", INV_STEP_CLIP), inv_attr_of_float("base", o->clip_norm))));
    if (o->clip_value > 0)
        g = inv_emit1(u->g, "ClipRange", INV_IN(g),
                      INV_ATTRS(inv_attr_of_float("min", -o->clip_value), inv_attr_of_float("max", o->clip_value)));
    return g;
}

/* w (1 - lr decay) - step */
static void descend(site *u, inv_id w, inv_id step)
{
    if (u->decay != 0) w = mul(u, w, rate(u, -u->decay, 1));
    assign(u, u->w, pair(u, "Sub", w, step));
}

/* --- rules --- */

/* You et al. 2020: Adam's step, with the weight decay in it, as long as the parameter's norm times lr. */
inv_status inv_update_lamb(site *u)
{
    const inv_optimizer_numbers *k = &u->numbers;
    const inv_shape s = as_matrix(&inv_val(u->g, u->w)->shape);
    const inv_id g = gradient(u, &s), w = viewed(u, u->w, &s), m = state(u, "moment1", &s), v = state(u, "moment2", &s);
    if (u->g->failed) return u->g->failed;
    const inv_id m1 = between(u, m, g, real(u, 1 - k->beta1)), v1 = between(u, v, mul(u, g, g), real(u, 1 - k->beta2));
    const inv_id up = mul(u, m1, step_number(u, INV_STEP_UNBIASED, k->beta1, 1, 0));
    const inv_id down = root(u, mul(u, v1, step_number(u, INV_STEP_UNBIASED, k->beta2, 1, 0)));
    inv_id step = pair(u, "Div", up, add(u, down, real(u, k->epsilon)));
    if (u->decay != 0) step = add(u, step, scaled(u, w, u->decay));
    const inv_id own = norm_of(u, w), of = norm_of(u, step), zero = real(u, 0);
    const inv_id trust = pair(u, "Div", own, pair(u, "Max", of, real(u, FLT_MIN)));
    const inv_id both = pair(u, "Greater", pair(u, "Min", own, of), zero);
    const inv_id ratio = inv_emit1(u->g, "Where", INV_IN(both, trust, real(u, 1)), INV_NOATTR);
    assign(u, m, m1);
    assign(u, v, v1);
    assign(u, u->w, pair(u, "Sub", w, mul(u, step, mul(u, ratio, rate(u, 1, 0)))));
    return u->g->failed;
}

/* Second moments of rows and columns, and from these of each element; of a vector, of each element. */
static inv_id factored_moments(site *u, inv_id squares, const inv_shape *s, inv_id fresh, double least)
{
    if (s->rank < 2) {
        const inv_id v = state(u, "moment2", s), v1 = between(u, v, squares, fresh);
        assign(u, v, v1);
        return v1;
    }
    inv_shape rows = *s, columns = *s;
    rows.dim[s->rank - 1] = columns.dim[s->rank - 2] = 1;
    const inv_id r = state(u, "rows", &rows), c = state(u, "columns", &columns);
    const inv_id r1 = between(u, r, mean_over(u, squares, s->rank - 1), fresh);
    const inv_id c1 = between(u, c, mean_over(u, squares, s->rank - 2), fresh);
    const inv_id mean = pair(u, "Max", mean_over(u, r1, s->rank - 2), real(u, least));
    assign(u, r, r1);
    assign(u, c, c1);
    return mul(u, pair(u, "Div", r1, mean), c1);
}

/* Shazeer, Stern 2018, in PyTorch's form: steps are relative to the parameter's size, which counts as `epsilon` at
 * least, and no larger than that size times lr, which is 1 / sqrt(t) at most. What is new counts t^-beta2 in the second
 * moments. */
inv_status inv_update_adafactor(site *u)
{
    const inv_optimizer_numbers *k = &u->numbers;
    const inv_shape s = as_stack(&inv_val(u->g, u->w)->shape);
    const double least = u->g->real == INV_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    const inv_id g = gradient(u, &s), w = viewed(u, u->w, &s);
    if (u->g->failed) return u->g->failed;
    const inv_id fresh = step_number(u, INV_STEP_POWER, -k->beta2, 1, 0);
    const inv_id estimate = factored_moments(u, mul(u, g, g), &s, fresh, least);
    const inv_id step = pair(u, "Div", g, root(u, pair(u, "Max", estimate, real(u, least * least))));
    const inv_id size = pair(u, "Max", size_of(u, w), real(u, k->epsilon));
    const inv_id reach = mul(u, size, step_number(u, INV_STEP_LR_FALLING, 0, 1, 0));
    const inv_id alpha = pair(u, "Div", reach, pair(u, "Max", size_of(u, step), real(u, 1)));
    descend(u, w, mul(u, step, alpha));
    return u->g->failed;
}

/* About U V^T of the matrix U S V^T, by five steps of a quintic Newton-Schulz iteration with Jordan's coefficients. Of
 * the two products of a matrix with itself the smaller one is used. */
static inv_id orthogonal(site *u, inv_id v, const inv_shape *s)
{
    static const double a = 3.4445, b = -4.7750, c = 2.0315;
    enum { STEPS = 5 };
    const bool tall = s->dim[0] > s->dim[1];
    inv_id x = pair(u, "Div", v, pair(u, "Max", norm_of(u, v), real(u, 1e-7)));
    for (int i = 0; i < STEPS && !u->g->failed; i++) {
        const inv_id gram = inv_emit1(u->g, "MatMulT", INV_IN(x, x),
                                      INV_ATTRS(inv_attr_of_int("transA", tall), inv_attr_of_int("transB", !tall)));
        const inv_id squared = pair(u, "MatMulT", gram, gram);
        const inv_id by = add(u, scaled(u, gram, b), scaled(u, squared, c));
        const inv_id product = tall ? pair(u, "MatMulT", x, by) : pair(u, "MatMulT", by, x);
        x = add(u, scaled(u, x, a), product);
    }
    return x;
}

/* Jordan 2024, in PyTorch's form: an orthogonal matrix near the mean of gradients, looked at one step ahead. */
inv_status inv_update_muon(site *u)
{
    const inv_optimizer_numbers *k = &u->numbers;
    const inv_shape s = as_matrix(&inv_val(u->g, u->w)->shape);
    const inv_id g = gradient(u, &s), w = viewed(u, u->w, &s), m = state(u, "moment1", &s);
    if (u->g->failed) return u->g->failed;
    const inv_id m1 = between(u, m, g, real(u, 1 - k->momentum)), ahead = between(u, g, m1, real(u, k->momentum));
    const inv_id step = orthogonal(u, ahead, &s);
    const double tall = (double)s.dim[0] / (double)s.dim[1];
    assign(u, m, m1);
    descend(u, w, mul(u, step, rate(u, sqrt(fmax(1, tall)), 0)));
    return u->g->failed;
}
