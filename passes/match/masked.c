/* SPDX-License-Identifier: Apache-2.0
 * Finds couplings whose halves are told by a mask of zeros and ones, in whatever way they are written. From x comes
 * h = b x, from h what x is shifted by and multiplied with, and y has x itself where b is 1:
 *
 *     y = b x + c (x s(h) + t(h))      y = x e^(c k(h)) + c t(h)      y = Where(b, x, (x - t(h)) / s(h))      c = 1 - b
 *
 * So b x is b y, and x follows where b is 0 by undoing one operator after the other. What is known of a value is told
 * apart by side: what it is where b is 1, and what it is where b is 0. A sweep over the nodes behind x finds it by the
 * operators that give it, most of which say what comes of zeros and ones:
 *
 *     zero + v = v      zero v = zero      one v = v      v / one = v      e^zero = one      Where takes one operand
 * per side
 *
 * and where b is 0 a sum or product of x and what h gives is a step to be undone.
 * requires: inv_matcher_init.  gives: edges and blocks. Time: for each product with a mask, the nodes behind it up to
 * the last that reads x, and for each value that x can be had from, the steps between. Both spend of the budget of all
 * searches. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/program/cost.h"
#include "ops/base/packing.h"
#include "passes/match/match.h"

enum { EMITTING = 64 }; /* of the budget: for undoing a step, whose nodes stay */

/* What a value is on one side. */
typedef enum what {
    UNTOLD, /* computed from x in a way that is not followed */
    FREE,   /* known once h is */
    ZERO,
    ONE,
    SAME /* x itself where b is 1; where b is 0, what came of x by steps */
} what;

/* Of one value: both sides, and how the one where b is 0 came of x. */
typedef struct fact {
    what kept, changed;  /* where b is 1, and where it is 0 */
    inv_id step, of;     /* the last step's result, and which of its operands came of x; INV_NONE: none yet */
    uint32_t steps, age; /* how many steps; the search that this is of */
} fact;

/* A search, from one product with a mask. */
typedef struct search {
    inv_matcher *m;
    inv_graph *g;
    inv_id x, h, b; /* h has x where b holds */
    bool flipped;   /* where it does not hold */
    inv_node h_node;
    fact *fact;          /* per value */
    uint32_t age, until; /* until: position of the last node that reads what came of x */
} search;

/* --- masks --- */

/* Whether every entry of v is 0 or 1, some are 0 and some are 1, and x has its shape with it. */
static bool is_mask(inv_matcher *m, inv_id v, const inv_shape *x)
{
    const inv_value *mask = inv_val(m->g, v);
    inv_shape all;
    bool some[2] = {false, false};
    if (m->active[v] || !m->stays[v] || !inv_shape_broadcast(&mask->shape, x, &all) || !inv_shape_equal(&all, x))
        return false;
    inv_known_forget(m, INV_MOST_KNOWN);
    const void *bytes = inv_known_bytes(m, v);
    for (int64_t i = 0; bytes && i < inv_shape_nelem(&mask->shape); i++) {
        const double e = inv_elem_double(bytes, mask->dtype, (size_t)i);
        if (e != 0 && e != 1) return false;
        some[e == 1] = true;
    }
    return bytes && some[0] && some[1];
}

/* The least and the largest entry of v, which depends on parameters only, where b holds (`kept`) or does not. false: v
 * cannot be told apart by side. */
static bool known_on_side(const search *k, inv_id v, bool kept, inv_bounds *in)
{
    const inv_value *val = inv_val(k->g, v), *mask = inv_val(k->g, k->b);
    inv_shape all;
    if (!k->m->stays[v] || !inv_shape_broadcast(&val->shape, &mask->shape, &all) ||
        all.rank > inv_val(k->g, k->x)->shape.rank)
        return false;
    inv_known_forget(k->m, INV_MOST_KNOWN);
    const void *b = inv_known_bytes(k->m, k->b), *bytes = inv_known_bytes(k->m, v);
    *in = (inv_bounds){INFINITY, -INFINITY, false};
    for (int64_t i = 0; b && bytes && i < inv_shape_nelem(&all); i++) {
        const double holds = inv_elem_double(b, mask->dtype, (size_t)inv_shape_element(&mask->shape, &all, i)),
                     e = inv_elem_double(bytes, val->dtype, (size_t)inv_shape_element(&val->shape, &all, i));
        if (((holds == 1) != k->flipped) != kept) continue;
        in->lo = fmin(in->lo, e);
        in->hi = fmax(in->hi, e);
        if (isnan(e)) return false;
    }
    return b && bytes && in->lo <= in->hi;
}

static what known_as(const search *k, inv_id v, bool kept)
{
    inv_bounds in;
    const bool one_number = known_on_side(k, v, kept, &in) && in.lo == in.hi;
    return one_number && in.lo == 0 ? ZERO : one_number && in.lo == 1 ? ONE : FREE;
}

/* What a value that depends on parameters only is on each side. */
static fact fact_of_known(const search *k, inv_id v)
{
    return (fact){.kept = known_as(k, v, true), .changed = known_as(k, v, false), .step = INV_NONE, .of = INV_NONE};
}

/* --- what operators make of the two sides --- */

static fact fact_of(search *k, inv_id v)
{
    const fact independent = {.kept = FREE, .changed = FREE, .step = INV_NONE, .of = INV_NONE};
    if (v == INV_NONE) return independent;
    fact *f = &k->fact[v];
    if (f->age == k->age) return *f;
    *f = k->m->active[v] ? independent : fact_of_known(k, v);
    f->age = k->age;
    return *f;
}

/* What two operands give on one side, if SAME counts as what it is. *step: they give what came of x by one step more.
 */
static what join(const char *op, what a, what b, bool *step)
{
    const bool sum = strcmp(op, "Add") == 0, difference = strcmp(op, "Sub") == 0, product = strcmp(op, "Mul") == 0,
               quotient = strcmp(op, "Div") == 0;
    *step = false;
    if (product && (a == ZERO || b == ZERO)) return ZERO;
    if (a == UNTOLD || b == UNTOLD) return UNTOLD;
    if (quotient && a == ZERO && b != SAME) return ZERO;
    if (sum && a == ZERO) return b;
    if ((sum || difference) && b == ZERO) return a;
    if (product && a == ONE) return b;
    if ((product || quotient) && b == ONE) return a;
    if (a != SAME && b != SAME) return FREE;
    *step = (a != SAME || b != SAME) && (sum || difference || product || (quotient && a == SAME));
    return *step ? SAME : UNTOLD;
}

static what follow(const char *op, what a, bool *step)
{
    static const char *const keep_zero[] = {"Tanh", "Relu", "LeakyRelu", "Abs", "Sqrt",
                                            "Sinh", "Atan", "Softsign",  "Erf"};
    *step = a == SAME && strcmp(op, "Neg") == 0;
    if (*step) return SAME;
    if (a == ZERO && strcmp(op, "Exp") == 0) return ONE;
    if (a == ONE && (strcmp(op, "Reciprocal") == 0 || strcmp(op, "Sqrt") == 0)) return ONE;
    if (a == ZERO && strcmp(op, "Neg") == 0) return ZERO;
    for (size_t i = 0; i < sizeof keep_zero / sizeof *keep_zero && a == ZERO; i++)
        if (strcmp(op, keep_zero[i]) == 0) return ZERO;
    return a == SAME || a == UNTOLD ? UNTOLD : FREE;
}

/* All of the value is known once h is. */
static bool is_free(fact f) { return f.kept != UNTOLD && f.changed != UNTOLD && f.changed != SAME; }

/* Any operator, which may look at both sides at once. */
static fact fact_of_any(search *k, const inv_node *n)
{
    bool all = true;
    for (uint32_t i = 0; i < n->nin; i++) all = all && is_free(fact_of(k, n->in[i]));
    const what w = all ? FREE : UNTOLD;
    return (fact){.kept = w, .changed = w, .step = INV_NONE, .of = INV_NONE};
}

/* The operand that Where takes on a side; INV_NONE: the condition does not say. */
static inv_id chosen(search *k, const inv_node *n, bool changed)
{
    const fact c = fact_of(k, n->in[0]);
    const what w = changed ? c.changed : c.kept;
    return w == ONE ? n->in[1] : w == ZERO ? n->in[2] : INV_NONE;
}

/* An element-wise operator whose result has the shape of x, so that all it reads for one side is of that side. */
static fact fact_of_elements(search *k, const inv_node *n)
{
    fact f = {.kept = UNTOLD, .changed = UNTOLD, .step = INV_NONE, .of = INV_NONE};
    inv_id from = n->in[0];
    fact in[2] = {fact_of(k, n->in[0]), fact_of(k, n->nin > 1 ? n->in[1] : INV_NONE)};
    bool step = false;
    if (inv_op_is(n, "Where")) {
        const inv_id kept = chosen(k, n, false);
        from = chosen(k, n, true);
        if (kept == INV_NONE || from == INV_NONE) return fact_of_any(k, n);
        f.kept = fact_of(k, kept).kept;
        f.changed = fact_of(k, from).changed;
    } else if (n->nin == 2) {
        f.kept = join(n->op->name, in[0].kept, in[1].kept, &step);
        if (step || (f.kept == UNTOLD && in[0].kept != UNTOLD && in[1].kept != UNTOLD)) f.kept = FREE;
        f.changed = join(n->op->name, in[0].changed, in[1].changed, &step);
        if (in[0].changed != SAME) from = n->in[1];
    } else if (n->nin == 1) {
        f.kept = follow(n->op->name, in[0].kept, &step);
        if (step || in[0].kept == SAME) f.kept = FREE;
        f.changed = follow(n->op->name, in[0].changed, &step);
    } else {
        return fact_of_any(k, n);
    }
    if (f.changed != SAME) return f;
    const fact before = fact_of(k, from);
    f.steps = before.steps + step;
    f.step = step ? n->out[0] : before.step;
    f.of = step ? from : before.of;
    return f;
}

static void sweep_node(search *k, const inv_node *n)
{
    const inv_shape *x = &inv_val(k->g, k->x)->shape;
    bool elements = n->nout == 1 && (n->op->flags & INV_OP_ELEMENTWISE) && n->out[0] != INV_NONE &&
                    inv_shape_equal(&inv_val(k->g, n->out[0])->shape, x);
    /* Of an operand of other extents its sides are not known, unless it is the same for all rows, or known. */
    for (uint32_t i = 0; i < n->nin && elements; i++) {
        const fact f = fact_of(k, n->in[i]);
        elements = n->in[i] != INV_NONE && (!k->m->active[n->in[i]] || (f.kept == FREE && f.changed == FREE) ||
                                            inv_shape_equal(&inv_val(k->g, n->in[i])->shape, x));
    }
    fact f = elements ? fact_of_elements(k, n) : fact_of_any(k, n);
    f.age = k->age;
    for (uint32_t o = 0; o < n->nout; o++) {
        const inv_id v = n->out[o];
        if (v == INV_NONE) continue;
        k->fact[v] = f;
        for (uint32_t u = k->m->uses.start[v]; f.changed == SAME && u < k->m->uses.start[v + 1]; u++)
            if (k->m->pos[k->m->uses.node[u]] > k->until) k->until = k->m->pos[k->m->uses.node[u]];
    }
}

/* --- edges --- */

static const inv_inverse_def masked_kept = {
    .size = sizeof(inv_inverse_def), .name = "masked_kept", .kind = "", .priority = 139, .exactness = INV_EXACT};
static const inv_inverse_def masked_scaled = {.size = sizeof(inv_inverse_def),
                                              .name = "masked_coupling",
                                              .kind = "affine_coupling",
                                              .priority = 139,
                                              .frees = "x"};
static const inv_inverse_def masked_shifted = {.size = sizeof(inv_inverse_def),
                                               .name = "masked_coupling",
                                               .kind = "additive_coupling",
                                               .priority = 139,
                                               .frees = "x"};

/* Collects the nodes of a template while they are emitted. */
typedef struct emission {
    inv_ids node;
    double gain, bound;
    INV_VEC(inv_volume_term) term;
    bool fine;
} emission;

static inv_id emit(search *k, emission *e, const char *op, uint32_t nin, const inv_id *in)
{
    const inv_id v = e->fine ? inv_emit1(k->g, op, nin, in, INV_NOATTR) : INV_NONE;
    e->fine = v != INV_NONE && inv_vec_push(&k->g->arena, &e->node, inv_val(k->g, v)->def);
    return e->fine ? v : INV_NONE;
}

static inv_status add_edge(search *k, const inv_inverse_def *rule, inv_id frees, inv_id from, emission *e, inv_ids held,
                           inv_id result)
{
    inv_graph *g = k->g;
    inv_volume *v = INV_ARENA_NEW(&g->arena, inv_volume, 1);
    inv_id *source = INV_ARENA_NEW(&g->arena, inv_id, 1);
    if (!v || !source) return INV_E_NOMEM;
    *source = from;
    *v = (inv_volume){source, held.at, NULL, 1, (uint32_t)held.n, rule != &masked_kept, e->term.at, (uint32_t)e->term.n,
                      0};
    inv_edge edge = {.rule = rule,
                     .frees = frees,
                     .forward = inv_val(g, from)->def,
                     .result = result,
                     .node = e->node.at,
                     .nnode = (uint32_t)e->node.n,
                     .gain = e->gain,
                     .bound = e->bound,
                     .spread = INV_NONE,
                     .volume = v,
                     .exact = rule->exactness == INV_EXACT};
    for (uint32_t i = 0; i < edge.nnode; i++) edge.flops += inv_node_flops(g, inv_nod(g, edge.node[i]));
    return inv_vec_push(&g->arena, &k->m->out->edge, edge) ? INV_OK : INV_E_NOMEM;
}

/* h is computed from y as it is from x. */
static inv_status free_kept(search *k, inv_id y)
{
    emission e = {.gain = 1, .bound = 1, .fine = true};
    inv_id in[3];
    for (uint32_t i = 0; i < k->h_node.nin; i++) in[i] = k->h_node.in[i] == k->x ? y : k->h_node.in[i];
    const inv_id h = emit(k, &e, k->h_node.op->name, k->h_node.nin, in);
    return e.fine ? add_edge(k, &masked_kept, k->h, y, &e, (inv_ids){0}, h) : k->g->failed;
}

/* One or zero for each entry of the mask, where b is 0 (or 1, `kept`). */
static inv_id side_constant(search *k, inv_dtype type, bool kept)
{
    const inv_value *mask = inv_val(k->g, k->b);
    const inv_shape shape = mask->shape;
    const int64_t n = inv_shape_nelem(&shape);
    double *number = INV_ARENA_NEW(&k->m->scratch, double, (size_t)n + 1);
    void *bytes = inv_arena_alloc(&k->m->scratch, (size_t)n * 8 + 8);
    inv_known_forget(k->m, INV_MOST_KNOWN);
    const void *b = inv_known_bytes(k->m, k->b);
    if (!number || !bytes || !b) return INV_NONE;
    for (int64_t i = 0; i < n; i++)
        number[i] = ((inv_elem_double(b, mask->dtype, (size_t)i) == 1) != k->flipped) == kept;
    (void)inv_convert(bytes, type, number, INV_F64, (size_t)n);
    return inv_graph_const(k->g, type, &shape, bytes);
}

/* Adds what s, and what it is computed from entry by entry behind h, is known to be where b is 0. */
static void suppose_changed(const search *k, inv_id s, inv_suppositions *to)
{
    inv_matcher *m = k->m;
    uint32_t n = 0;
    m->visit_stamp++;
    m->stack[n++] = s;
    m->visited[s] = m->visit_stamp;
    while (n) {
        const inv_id v = m->stack[--n], d = inv_val(k->g, v)->def;
        inv_supposition is = {.v = v};
        if (!m->active[v]) {
            if (known_on_side(k, v, false, &is.in) && !inv_vec_push(&m->scratch, to, is)) return;
            continue;
        }
        if (d == INV_NONE || m->pos[d] < m->where_from || !(inv_nod(k->g, d)->op->flags & INV_OP_ELEMENTWISE)) continue;
        for (uint32_t i = 0; i < inv_nod(k->g, d)->nin; i++) {
            const inv_id of = inv_nod(k->g, d)->in[i];
            if (of == INV_NONE || m->visited[of] == m->visit_stamp) continue;
            m->visited[of] = m->visit_stamp;
            m->stack[n++] = of;
        }
    }
}

/* Whether s may be divided by where b is 0, and how errors grow there. */
static bool note_scale(search *k, emission *e, inv_id s, bool divided)
{
    inv_matcher *m = k->m;
    const double least = 1e-6;
    inv_suppositions changed = {0};
    inv_extremes x;
    double gain = 1, bound = 1;
    m->where_from = m->pos[inv_val(k->g, k->h)->def];
    suppose_changed(k, s, &changed);
    m->where = &changed;
    const inv_bounds r = inv_value_range(m, s);
    const bool fine = m->active[s]
                          ? inv_bounds_positive(r)
                          : r.lo > least || r.hi < -least || (inv_known_extremes(m, s, &x) && x.least_abs > least);
    if (fine) inv_factor_gain(m, s, divided, &gain, &bound);
    m->where = NULL;
    e->gain *= gain;
    e->bound *= bound;
    return fine;
}

/* Undoes the step that gives the value `at` from its operand `of`: `v` is at hand in place of it. *clean: it gives x on
 * the other side, too. */
static inv_id undo(search *k, emission *e, inv_id at, inv_id of, inv_id v, bool *clean)
{
    const inv_node n = *inv_nod(k->g, inv_val(k->g, at)->def);
    const char *op = n.op->name;
    if (strcmp(op, "Neg") == 0) {
        *clean = false;
        return emit(k, e, "Neg", INV_IN(v));
    }
    const bool second = n.in[0] != of, sum = strcmp(op, "Add") == 0 || strcmp(op, "Sub") == 0;
    const inv_id other = n.in[!second];
    *clean = *clean && fact_of(k, other).kept == (sum ? ZERO : ONE) && !(second && *op == 'S');
    if (strcmp(op, "Add") == 0) return emit(k, e, "Sub", INV_IN(v, other));
    if (strcmp(op, "Sub") == 0)
        return second ? emit(k, e, "Sub", INV_IN(other, v)) : emit(k, e, "Add", INV_IN(v, other));
    const bool product = strcmp(op, "Mul") == 0;
    const inv_volume_term t = {product ? "log_abs" : "-log_abs", other, INV_NONE};
    e->fine = e->fine && note_scale(k, e, other, product) && inv_vec_push(&k->g->arena, &e->term, t);
    return emit(k, e, product ? "Div" : "Mul", INV_IN(v, other));
}

/* What gives the operands of the steps, up to h: its nodes, and the values that it begins with besides. false: x is
 * needed for it. */
static bool find_inner(search *k, inv_id v, inv_masked *found, inv_ids *held)
{
    inv_matcher *m = k->m;
    inv_ids open = {0};
    const inv_id maker = inv_val(k->g, k->x)->def;
    const uint32_t first = maker == INV_NONE ? 0 : m->pos[maker] + 1;
    bool fine = inv_vec_push(&m->scratch, &open, v);
    while (open.n && fine) {
        v = open.at[--open.n];
        const inv_id d = inv_val(k->g, v)->def;
        const fact f = fact_of(k, v);
        if (v == k->x) return false;
        if (!m->active[v] || m->visited[v] == m->visit_stamp) continue;
        m->visited[v] = m->visit_stamp;
        if (d == INV_NONE || m->pos[d] < first || inv_nod(k->g, d)->nin == 0) {
            fine = inv_vec_push(&k->g->arena, held, v);
            continue;
        }
        fine = inv_vec_push(&k->g->arena, &found->inner, d) && inv_region_spend(m, inv_nod(k->g, d)->nin + 1);
        if (f.kept == SAME && f.changed == ZERO) continue;
        for (uint32_t i = 0; i < inv_nod(k->g, d)->nin && fine; i++)
            fine = inv_nod(k->g, d)->in[i] == INV_NONE || inv_vec_push(&m->scratch, &open, inv_nod(k->g, d)->in[i]);
    }
    return fine;
}

static inv_status free_changed(search *k, inv_id y)
{
    inv_masked found = {.x = k->x, .y = y};
    emission e = {.gain = 1, .bound = 1, .fine = true};
    inv_ids held = {0};
    bool clean = true;
    inv_id v = y, at = y;
    k->m->visit_stamp++;
    for (fact f = fact_of(k, y); f.steps > 0 && e.fine; f = fact_of(k, at)) {
        const inv_node n = *inv_nod(k->g, inv_val(k->g, f.step)->def);
        clean = clean && at == f.step;
        e.fine = inv_region_spend(k->m, EMITTING);
        for (uint32_t i = 0; i < n.nin; i++)
            e.fine = e.fine && (n.in[i] == f.of || find_inner(k, n.in[i], &found, &held));
        e.fine = e.fine && inv_vec_push(&k->g->arena, &found.step, inv_val(k->g, f.step)->def);
        if (e.fine) v = undo(k, &e, f.step, f.of, v, &clean);
        at = f.of;
    }
    clean = clean && at == k->x;
    if (e.fine && !clean) {
        const inv_dtype type = inv_val(k->g, k->x)->dtype;
        const inv_id holds = side_constant(k, INV_BOOL, true), times = side_constant(k, type, false);
        e.fine = holds != INV_NONE && times != INV_NONE;
        for (size_t i = 0; i < e.term.n; i++) e.term.at[i].times = times;
        v = emit(k, &e, "Where", INV_IN(holds, y, v));
    }
    if (!e.fine) return k->m->scratch.failed || k->g->arena.failed ? INV_E_NOMEM : k->g->failed;
    found.scales = e.term.n > 0;
    INV_TRY(add_edge(k, found.scales ? &masked_scaled : &masked_shifted, k->x, y, &e, held, v));
    for (size_t i = 0; i < found.step.n; i++) k->m->reported[found.step.at[i]] = true;
    k->m->reported[inv_val(k->g, y)->def] = true;
    return inv_vec_push(&k->m->scratch, &k->m->masked, found) ? INV_OK : INV_E_NOMEM;
}

/* --- the search --- */

/* Whether the node gives x where a mask holds, else zero. */
static bool begins(inv_matcher *m, const inv_node *n, search *k)
{
    double zero;
    bool fine = false;
    if (n->nout != 1) return false;
    const inv_shape *out = &inv_val(m->g, n->out[0])->shape;
    if (inv_op_is(n, "Mul")) {
        const uint32_t at = m->active[n->in[0]];
        k->b = n->in[at];
        k->x = n->in[!at];
        fine = true;
    } else if (inv_op_is(n, "Where")) {
        k->flipped = !m->active[n->in[1]];
        k->b = n->in[0];
        k->x = n->in[k->flipped ? 2 : 1];
        fine = inv_value_uniform(m->g, n->in[k->flipped ? 1 : 2], &zero) && zero == 0;
    }
    return fine && m->active[k->x] && inv_shape_equal(out, &inv_val(m->g, k->x)->shape) && is_mask(m, k->b, out);
}

static inv_status search_from(search *k)
{
    inv_matcher *m = k->m;
    const inv_id maker = inv_val(k->g, k->x)->def;
    uint32_t at = maker == INV_NONE ? 0 : m->pos[maker] + 1;
    const uint32_t end = (uint32_t)m->norder;
    k->fact[k->x] = (fact){SAME, SAME, INV_NONE, INV_NONE, 0, k->age};
    k->until = at;
    for (uint32_t u = m->uses.start[k->x]; u < m->uses.start[k->x + 1]; u++)
        if (m->pos[m->uses.node[u]] > k->until) k->until = m->pos[m->uses.node[u]];
    for (; at < end && at <= k->until && inv_region_spend(m, 4); at++) {
        const inv_node n = *inv_nod(k->g, k->g->order.at[at]);
        if (!n.nout || n.out[0] == INV_NONE || !m->active[n.out[0]]) continue;
        sweep_node(k, &n);
        const fact f = fact_of(k, n.out[0]);
        if (n.out[0] == k->h || f.kept != SAME || f.changed == ZERO) continue;
        if (f.changed == SAME && f.steps == 0) continue;
        INV_TRY(free_kept(k, n.out[0]));
        if (f.changed == SAME) INV_TRY(free_changed(k, n.out[0]));
    }
    return INV_OK;
}

inv_status inv_masked_find(inv_matcher *m)
{
    fact *facts = NULL;
    uint32_t age = 0;
    for (size_t i = 0; i < m->norder; i++) {
        search k = {.m = m, .g = m->g, .h_node = *inv_nod(m->g, m->g->order.at[i])};
        if (!begins(m, &k.h_node, &k)) continue;
        if (!facts) facts = INV_ARENA_NEW(&m->scratch, fact, m->nvalue + 1);
        if (!facts) return INV_E_NOMEM;
        k.fact = facts;
        k.age = ++age;
        k.h = k.h_node.out[0];
        const size_t order = m->g->order.n;
        const inv_status s = search_from(&k);
        m->g->order.n = order;
        if (m->g->failed == INV_E_NOMEM || s != INV_OK) return s == INV_OK ? m->g->failed : s;
        m->g->failed = INV_OK;
    }
    return INV_OK;
}

inv_status inv_masked_name(inv_matcher *m)
{
    for (size_t i = m->masked.n; i-- > 0;) { /* the longest first */
        const inv_masked *f = &m->masked.at[i];
        inv_bound_name name = {.name = "x", .id = &f->x, .n = 1};
        const inv_binding b = {&name, 1, 1};
        const inv_rule rule = {.def = f->scales ? &masked_scaled : &masked_shifted};
        const inv_id root = inv_val(m->g, f->y)->def;
        inv_ids step = {0};
        bool taken = false;
        for (size_t j = f->step.n; j-- > 0;) {
            taken = taken || m->paired[f->step.at[j]];
            if (f->step.at[j] != root && !inv_vec_push(&m->scratch, &step, f->step.at[j])) return INV_E_NOMEM;
        }
        if (taken || m->paired[root]) continue;
        if (!inv_vec_push(&m->scratch, &step, root)) return INV_E_NOMEM;
        inv_block block;
        INV_TRY(inv_block_make(m, &rule, &b, step.at, (uint32_t)step.n, f->inner.at, (uint32_t)f->inner.n, &block));
        for (size_t j = 0; j < step.n; j++) m->paired[step.at[j]] = true;
        if (!inv_vec_push(&m->g->arena, &m->out->block, block)) return INV_E_NOMEM;
    }
    return INV_OK;
}
