/* SPDX-License-Identifier: Apache-2.0
 * Which recovery: prices are tried on a geometric grid, since the peak is not monotone in the price; then the point in
 * the forward order is sought after which keeping everything costs no peak (the last block's values live anyway).
 *   store      everything is kept
 *   recompute  smallest peak without inverse edges
 *   invert     smallest peak of activations, then of all, among those that rebuild three quarters by inverses of the
 *              bytes that any does
 *   auto       smallest peak of all at no more than 4/3 of the arithmetic of a plain step
 * With a budget in bytes, all but store take the least arithmetic that fits it, by the means that the mode allows.
 * requires: plan->base.  gives: plan->g with offsets, plan->choice. */
#include <math.h>
#include <string.h>

#include "core/node.h"
#include "passes/pass.h"

typedef struct score {
    size_t peak, activations; /* most bytes live at once, of all classes and of activations alone */
    double flops, inverted;
} score;

typedef struct attempt {
    inv_policy policy;
    score got;
} attempt;

typedef struct search {
    inv_plan *plan;
    const inv_request *rq;
    inv_context *ctx;
    inv_arena scratch;
    inv_policy policy;
    inv_graph *best;
    inv_plan best_plan;
    score best_score;
    inv_policy best_policy;
    double limit; /* flops */
    size_t budget; /* bytes for the peak; 0: none */
    double floor; /* bytes that inverses with arithmetic must rebuild */
    bool *kept;   /* per value: what a walk kept is noted here; NULL: nowhere */
    bool activations_first; /* mode invert: the activations decide, then all classes together */
    INV_VEC(attempt) trials;
} search;

double inv_node_flops(const inv_graph *g, const inv_node *n)
{
    if (n->op->flops) return n->op->flops(g, n);
    if (n->op->flags & (INV_OP_VIEW | INV_OP_SOURCE)) return 0;
    int64_t most = 0;
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (v == INV_NONE) continue;
        int64_t ne = inv_shape_nelem(&inv_val(g, v)->shape);
        if (ne > most) most = ne;
    }
    return (double)most;
}

static void count_flops(const inv_graph *g, inv_plan *plan)
{
    plan->flops = plan->guard_flops = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (strncmp(n->op->name, "Guard", 5) == 0)
            plan->guard_flops += 9.0 * (double)inv_shape_nelem(&inv_val(g, n->in[0])->shape);
        else
            plan->flops += inv_node_flops(g, n);
    }
}

/* By more than a rearrangement. */
static double inverted_bytes(const inv_plan *plan)
{
    double sum = 0;
    for (size_t i = 0; i < plan->choice.n; i++) {
        size_t nbytes = 0;
        const inv_value *v = inv_val(plan->base, plan->choice.at[i].value);
        if (plan->choice.at[i].choice != INV_INVERTED || plan->choice.at[i].moved) continue;
        (void)inv_shape_nbytes(&v->shape, v->dtype, &nbytes);
        sum += (double)nbytes;
    }
    return sum;
}

static bool better(const search *s, const score *a, const score *b)
{
    bool fits_a = a->flops <= s->limit, fits_b = b->flops <= s->limit;
    if (s->budget) {
        bool within_a = a->peak <= s->budget, within_b = b->peak <= s->budget;
        if (within_a != within_b) return within_a;
        if (!within_a && a->peak != b->peak) return a->peak < b->peak;
        return a->flops != b->flops ? a->flops < b->flops : a->peak < b->peak;
    }
    if (fits_a != fits_b) return fits_a;
    if (s->activations_first && a->activations != b->activations) return a->activations < b->activations;
    if (a->peak != b->peak) return a->peak < b->peak;
    if (a->activations != b->activations) return a->activations < b->activations;
    return a->flops < b->flops;
}

/* Tries one policy; keeps it if it is the best so far. */
static inv_status try_policy(search *s, const inv_policy *p, score *got)
{
    inv_plan trial = *s->plan;
    inv_graph *g;
    INV_TRY(inv_recover(s->plan->base, p, &trial, &g));
    inv_status st = inv_pass_liveness(g, &trial);
    if (st != INV_OK) {
        inv_graph_destroy(g);
        return st;
    }
    count_flops(g, &trial);
    for (size_t i = 0; s->kept && i < trial.choice.n; i++)
        if (trial.choice.at[i].choice == INV_STORED) s->kept[trial.choice.at[i].value] = true;
    *got = (score){trial.load, trial.activation_peak, trial.flops, inverted_bytes(&trial)};
    if (!inv_vec_push(&s->scratch, &s->trials, ((attempt){*p, *got}))) {
        inv_graph_destroy(g);
        return INV_E_NOMEM;
    }
    bool keep = got->inverted >= s->floor || !s->best;
    if (s->budget) got->peak += g->gpu ? inv_control_nbytes(trial.guarded.n) : 0;
    keep = keep && (!s->best || better(s, got, &s->best_score));
    if (keep && s->budget && got->peak <= s->budget) { /* placing takes long: only what would be the best */
        st = inv_pass_memplan(g, &trial);
        got->peak += trial.transient - trial.load;
        keep = st == INV_OK && (!s->best || better(s, got, &s->best_score));
    }
    if (!keep) {
        inv_graph_destroy(g);
        return st;
    }
    inv_graph_destroy(s->best);
    s->best = g;
    s->best_plan = trial;
    s->best_score = *got;
    s->best_policy = *p;
    return INV_OK;
}

/* The dearest single evaluation, in flops per byte that it gives. */
static double dearest(const inv_graph *g)
{
    double most = 1;
    for (size_t i = 0; i < g->forward_end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t nbytes = 0;
        if (n->nout == 0 || n->out[0] == INV_NONE) continue;
        (void)inv_shape_nbytes(&inv_val(g, n->out[0])->shape, inv_val(g, n->out[0])->dtype, &nbytes);
        double ratio = inv_node_flops(g, n) / (double)(nbytes ? nbytes : 1);
        if (ratio > most) most = ratio;
    }
    return most;
}

/* A walk, and a second one that knows what the first has kept. */
static inv_status try_twice(search *s, const inv_policy *first)
{
    inv_policy p = *first;
    score got;
    p.likely = NULL;
    s->kept = INV_ARENA_NEW(&s->scratch, bool, s->plan->base->value.n + 1);
    if (!s->kept) return INV_E_NOMEM;
    inv_status st = try_policy(s, &p, &got);
    p.likely = s->kept;
    s->kept = NULL;
    return st == INV_OK ? try_policy(s, &p, &got) : st;
}

/* Up to the price of a longer run of evaluations; far beyond, everything would be derived from the input. */
static inv_status scan_prices(search *s, bool invert)
{
    enum { RUN = 64 };
    inv_policy p = s->policy;
    p.recompute = true;
    p.invert = invert;
    double last = RUN * dearest(s->plan->base);
    for (double price = 0.25; price < last; price *= 4) {
        p.price = price;
        INV_TRY(try_twice(s, &p));
    }
    return INV_OK;
}

/* One point from which on everything is kept. */
static inv_status try_late(search *s, const inv_policy *base, size_t late, bool *fine)
{
    inv_policy p = *base;
    score before = s->best_score, got;
    p.late = late;
    INV_TRY(try_policy(s, &p, &got));
    if (s->budget) *fine = got.peak <= s->budget;
    else *fine = got.peak <= before.peak && got.activations <= before.activations && got.inverted >= s->floor;
    return INV_OK;
}

/* From which forward position on can everything be kept without a higher peak? A coarse grid, since the peak is not
 * monotone, then bisection. */
static inv_status keep_late(search *s)
{
    enum { GRID = 16 };
    if (!s->best_policy.recompute) return INV_OK;
    const inv_policy base = s->best_policy;
    size_t n = s->plan->base->forward_end, lo = 0, hi = n; /* keeping from hi on is fine */
    bool fine;
    for (size_t k = GRID; k-- > 1 && n > 2 * GRID;) {
        INV_TRY(try_late(s, &base, n * k / GRID, &fine));
        if (fine) hi = n * k / GRID;
        else if (lo < n * k / GRID && hi > n * k / GRID) lo = n * k / GRID;
    }
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        INV_TRY(try_late(s, &base, mid, &fine));
        if (fine) hi = mid;
        else lo = mid + 1;
    }
    return INV_OK;
}

/* The best so far with what a walk can do otherwise. */
static inv_status try_variants(search *s)
{
    inv_policy p = s->best_policy;
    for (int k = 1; k < 4 && p.recompute; k++) {
        p.apart = k & 1;
        p.lean = k & 2;
        INV_TRY(try_twice(s, &p));
    }
    return INV_OK;
}

static inv_status refine(search *s)
{
    INV_TRY(try_variants(s));
    return keep_late(s);
}

/* Mode invert. Which trial inverts enough is known when all have been made. */
static inv_status search_inverted(search *s)
{
    size_t first = s->trials.n, best = first;
    double most = 0;
    s->policy.feed_again = false;
    s->activations_first = true;
    INV_TRY(scan_prices(s, true));
    if (s->budget) return refine(s);
    for (size_t i = first; i < s->trials.n; i++) most = fmax(most, s->trials.at[i].got.inverted);
    s->floor = 0.75 * most;
    for (size_t i = first; i < s->trials.n; i++) {
        const score *a = &s->trials.at[i].got, *b = &s->trials.at[best].got;
        bool enough = a->inverted >= s->floor;
        if (enough != (b->inverted >= s->floor) ? enough : better(s, a, b)) best = i;
    }
    score got;
    inv_policy p = s->trials.at[best].policy;
    inv_graph_destroy(s->best);
    s->best = NULL;
    INV_TRY(try_policy(s, &p, &got));
    return refine(s);
}

static bool name_fits(const inv_graph *g, inv_id v, const char *glob)
{
    const inv_value *val = inv_val(g, v);
    if (inv_glob_fits(glob, val->name)) return true;
    const inv_node *n = val->def == INV_NONE ? NULL : inv_nod(g, val->def);
    for (uint32_t i = 0; n && i < n->norigin; i++)
        if (inv_glob_fits(glob, n->origin[i])) return true;
    return false;
}

/* Blocks by name or kind: what is computed in them, and what they take. A block is inverted for what it takes alone;
 * what its branches compute inside has to be computed again then. */
static bool mark_blocks(const inv_graph *g, const char *glob, inv_memory mode, uint8_t *mark)
{
    bool any = false;
    for (size_t i = 0; g->matches && i < g->matches->block.n; i++) {
        const inv_block *b = &g->matches->block.at[i];
        if (!inv_glob_fits(glob, inv_node_label(inv_nod(g, b->anchor))) && !inv_glob_fits(glob, b->kind)) continue;
        any = true;
        const uint32_t nin = mode == INV_MEMORY_INVERT ? b->nrule_in : b->nin;
        for (uint32_t k = 0; k < nin; k++)
            if (b->in[k] != INV_NONE) mark[b->in[k]] = (uint8_t)mode;
        for (uint32_t k = 0; k < b->nnode && mode != INV_MEMORY_INVERT; k++) {
            const inv_node *n = inv_nod(g, b->node[k]);
            for (uint32_t j = 0; j < n->nout; j++)
                if (n->out[j] != INV_NONE) mark[n->out[j]] = (uint8_t)mode;
        }
    }
    return any;
}

/* Forward values by their own name or that of a node; "block:GLOB": by blocks. */
static bool mark_glob(const inv_graph *g, const char *glob, inv_memory mode, uint8_t *mark)
{
    static const char block[] = "block:";
    bool any = false;
    for (size_t i = 0; i < g->forward_end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++) {
            if (n->out[k] == INV_NONE || !name_fits(g, n->out[k], glob)) continue;
            any = true;
            mark[n->out[k]] = (uint8_t)mode;
        }
    }
    if (any || strncmp(glob, block, sizeof block - 1) != 0) return any;
    return mark_blocks(g, glob + sizeof block - 1, mode, mark);
}

/* What the guard refused is kept, the newest first: an anchor before it in the forward order was found when errors had
 * come from further, and is given up until it is refused again. */
static inv_status keep_anchors(search *s, const inv_program *program, bool *keep)
{
    const inv_graph *b = s->plan->base;
    bool *refused = INV_ARENA_NEW(&s->scratch, bool, b->value.n + 1);
    if (!refused) return INV_E_NOMEM;
    size_t after = 0; /* position of the last anchor that was taken */
    for (size_t i = program->anchor.n; i-- > 0;) {
        for (size_t at = after; at < b->forward_end; at++) {
            const inv_node *n = inv_nod(b, b->order.at[at]);
            for (uint32_t k = 0; k < n->nout; k++) {
                if (n->out[k] == INV_NONE || strcmp(inv_val(b, n->out[k])->name, program->anchor.at[i]) != 0) continue;
                keep[n->out[k]] = refused[n->out[k]] = true;
                after = at;
            }
        }
    }
    s->policy.refused = refused;
    return INV_OK;
}

#define NO_BLOCK ", and none of a block (block:NAME, as explain calls it)"

static inv_status forced(search *s, const inv_program *program)
{
    const inv_graph *b = s->plan->base;
    const inv_session_options *o = s->rq->options;
    uint8_t *mode = INV_ARENA_NEW(&s->scratch, uint8_t, b->value.n + 1); /* per value: INV_MEMORY_AUTO, which is 0 */
    bool *keep = INV_ARENA_NEW(&s->scratch, bool, b->value.n + 1),
         *no_invert = INV_ARENA_NEW(&s->scratch, bool, b->value.n + 1),
         *no_recompute = INV_ARENA_NEW(&s->scratch, bool, b->value.n + 1);
    if (!mode || !keep || !no_invert || !no_recompute) return INV_E_NOMEM;
    s->policy.keep = keep;
    s->policy.no_invert = no_invert;
    s->policy.no_recompute = no_recompute;
    if (s->rq->purpose != INV_FOR_TRAIN) return INV_OK; /* nothing is recovered, and other values may exist */
    for (size_t i = 0; i < o->nmodes; i++) /* the last that fits counts */
        INV_CHECK(mark_glob(b, o->modes[i].glob, o->modes[i].mode, mode), s->ctx, INV_E_ARG,
                  "--mode %s=...: no forward value or node of that name" NO_BLOCK, o->modes[i].glob);
    for (size_t i = 0; i < o->nkeep; i++)
        INV_CHECK(mark_glob(b, o->keep[i], INV_MEMORY_STORE, mode), s->ctx, INV_E_ARG,
                  "--keep %s: no forward value or node of that name" NO_BLOCK, o->keep[i]);
    for (size_t v = 0; v < b->value.n; v++) {
        keep[v] = mode[v] == INV_MEMORY_STORE;
        no_invert[v] = mode[v] == INV_MEMORY_RECOMPUTE;
        no_recompute[v] = mode[v] == INV_MEMORY_INVERT;
    }
    /* what a guard has refused matters where inverses may be used */
    return o->memory == INV_MEMORY_RECOMPUTE ? INV_OK : keep_anchors(s, program, keep);
}

/* The policy of an earlier search, with the anchors that have come since. */
static inv_status try_found(search *s, const inv_found_policy *f)
{
    inv_policy p = s->policy;
    score got;
    p.recompute = f->recompute;
    p.invert = f->invert;
    p.feed_again = f->feed_again;
    p.apart = f->apart;
    p.lean = f->lean;
    p.price = f->price;
    if (f->second) { /* the first walk again, without its late part, for what it keeps */
        s->kept = INV_ARENA_NEW(&s->scratch, bool, s->plan->base->value.n + 1);
        if (!s->kept) return INV_E_NOMEM;
        INV_TRY(try_policy(s, &p, &got));
        p.likely = s->kept;
        s->kept = NULL;
    }
    p.late = f->late;
    inv_graph_destroy(s->best);
    s->best = NULL;
    return try_policy(s, &p, &got);
}

static inv_status within_budget(search *s, const inv_program *program)
{
    size_t rest = (size_t)s->rq->options->budget - program->budget_left, need = s->best_score.peak;
    if (!s->budget || need <= s->budget) return INV_OK;
    INV_TRY(inv_pass_memplan(s->best, &s->best_plan));
    need += s->best_plan.transient - s->best_plan.load;
    return inv__fail(s->ctx, INV_E_NOMEM,
                     "the budget of %llu bytes cannot be met: the smallest plan found needs %zu (%zu of them "
                     "parameters, constants and optimizer state); raise --budget, or use a smaller batch",
                     (unsigned long long)s->rq->options->budget, rest + need, rest);
}

static inv_status run(search *s, inv_program *program)
{
    inv_plan *plan = s->plan;
    score got;
    s->policy = (inv_policy){.price = 0, .feed_again = true, .late = SIZE_MAX,
                             .guard = s->rq->options->guard, .max_drift = program->max_drift};
    INV_TRY(forced(s, program));
    s->limit = INFINITY;
    INV_TRY(try_policy(s, &s->policy, &got)); /* store */
    plan->store_flops = s->best_plan.flops;
    s->limit = plan->store_flops * (4.0 / 3) * 1.01;
    INV_TRY(inv_pass_memplan(s->best, &s->best_plan));
    plan->store_transient = s->best_plan.transient;
    plan->memory = s->rq->options->memory;
    s->budget = program->budget_left;
    if (s->budget) s->best_score.peak = s->best_plan.transient;
    if (s->budget && s->best->gpu) s->best_score.peak += inv_control_nbytes(s->best_plan.guarded.n);
    if (plan->memory == INV_MEMORY_STORE || s->rq->purpose != INV_FOR_TRAIN) return within_budget(s, program);
    if (program->found.known) {
        INV_TRY(try_found(s, &program->found));
        if (!s->budget || s->best_score.peak <= s->budget) return INV_OK;
    }
    if (plan->memory == INV_MEMORY_INVERT) {
        INV_TRY(search_inverted(s));
    } else {
        INV_TRY(scan_prices(s, false));
        if (plan->memory == INV_MEMORY_AUTO) INV_TRY(scan_prices(s, true));
        INV_TRY(refine(s));
    }
    INV_TRY(within_budget(s, program));
    const inv_policy *best = &s->best_policy;
    program->found = (inv_found_policy){true, best->recompute, best->invert, best->feed_again, best->likely != NULL,
                                        best->apart, best->lean, best->price, best->late};
    return INV_OK;
}

inv_status inv_pass_search(inv_plan *plan, const inv_request *rq, inv_program *program)
{
    search s = {.plan = plan, .rq = rq, .ctx = plan->base->ctx};
    inv__arena_init(&s.scratch, s.ctx);
    inv_status st = run(&s, program);
    if (st == INV_OK) {
        double store_flops = plan->store_flops;
        size_t store_transient = plan->store_transient;
        inv_memory memory = plan->memory;
        *plan = s.best_plan;
        plan->g = s.best;
        plan->store_flops = store_flops;
        plan->store_transient = store_transient;
        plan->memory = memory;
        s.best = NULL;
        if (plan->g->arena_nbytes == 0) st = inv_pass_memplan(plan->g, plan); /* store has its offsets */
    }
    inv_graph_destroy(s.best);
    inv__arena_fini(&s.scratch);
    return st;
}
