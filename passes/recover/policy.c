/* SPDX-License-Identifier: Apache-2.0
 * The policy of each memory mode: what may be done with which value, and which goal the planner's search is given.
 *   store      everything is kept, but what modes of single values name
 *   recompute  the least product of the step's bytes, all of them, and its time: a percent of memory is worth a percent
 *              of time. It costs at most 4/3 of a plain step; no inverse edges
 *   auto       the same with inverse edges, and with copies in host memory where the device's is apart; what modes of
 *              single values ask for may cost more. Recompute's own plan is taken where it is better
 *   invert     the smallest peak of activations, then of all, of the plans that rebuild by inverses three quarters of
 *              the bytes that any does, and cost at most 4/3 of a plain step, besides guards; a tenth of a plain step
 *              more in deep networks, where errors add up until a state is computed from the input again. Of what takes
 *              less than a percent more activations, the least product as above. Auto's or recompute's plan, which does
 *              not feed inputs again here, is taken where its peak of activations is smaller by more than that
 * With a budget in bytes, all take the least cost within it, by the means of their mode; store only where modes of
 * single values are given, and else it does not search. If none is within it, or where the fewest bytes are what is
 * asked for (program->aim), the plan of the fewest bytes is sought, and nothing in that search hangs on the budget: so
 * whoever gives the bytes of that plan as a budget has it. Plans are made graphs of (recover.c, fuse.c, memplan.c),
 * since only those tell which bytes are really needed, and the search is repeated where these are more. A saved plan
 * (saved_plan.c) is taken as it is.
 * requires: plan->base.
 * gives: plan->g, with offsets only where there is no search; plan->choice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/program/cost.h"
#include "core/program/exchange.h"
#include "passes/planner/problem.h"
#include "passes/recover/recover.h"
#include "passes/schedule/place.h"
#include "passes/schedule/schedule.h"

/* The most that graphs of plans without a budget cost on top of a plain step, as a share of it. */
#define OVERHEAD_LIMIT (4.0 / 3 - 1)
/* Of mode invert, whose guards are not counted in its problem: a little more, for what a graph costs more besides. */
#define OVERHEAD_OF_INVERT (4.0 / 3 * 1.01 - 1)

/* Less than one part in so many of invert's activations is no reason to take another mode's plan. */
enum { SPARE_PART = 100 };
/* Nor are so few activations: with so little at stake, who asks for inverses gets them. */
#define FEW_ACTIVATIONS (1 << 20)

/* Annealing for the smallest peak: times the usual visits, and the most of them. */
#define MORE_FOR_PEAK 6
#define MOST_FOR_PEAK 7.5e6

/* Of the bytes of forward's values, the share from which on what inverses rebuild decides: plans that have been seen to
 * be no better than those without inverses rebuild less than half of that. */
#define MUCH_INVERTED 0.1

/* A graph may take a little less than its problem says: less than one part in so many, by experience. */
enum { SLACK_PART = 64 };

/* A plan that was made a graph. */
typedef struct found {
    inv_plan plan;   /* plan.g NULL: there is none */
    inv_score score; /* of the graph: its bytes, and the cost of the nodes that it adds */
    size_t beside;   /* of these bytes, what is in no buffer of the plan */
} found;

/* The way from a memory mode to a finished plan: the problem, and the best plan so far. */
typedef struct search {
    inv_plan *plan;
    const inv_request *rq;
    inv_program *program;
    inv_context *ctx;
    inv_arena scratch;
    inv_policy policy;
    inv_recovery recovery;
    found best;
    size_t budget;    /* bytes that the peak may take; 0: there is no budget */
    double limit;     /* without a budget: the most that a graph may cost on top of a plain step */
    double made;      /* what the last graph costs on top of it */
    inv_remats tried; /* what it was made of */
    bool inverts;     /* the way's mode is invert */
    bool fewest;      /* the fewest bytes are sought, whatever they cost */
    bool soon;        /* and the search for them is cut short */
    bool saved;       /* the plan was loaded, not searched for */
    bool hopeless;    /* the least that some step takes exceeds the budget, as far as estimated */
} search;

/* A lower bound on the peak of any plan: the most bytes that one step reads and takes. */
static size_t problem_floor(const inv_problem *p)
{
    size_t most = 0;
    for (uint32_t t = 0; t < p->nstep; t++) {
        const size_t nbytes = inv_pb_step_bytes(p, t);
        if (nbytes > most) most = nbytes;
    }
    return most;
}

/* Counts the arithmetic of the plan's graph. Returns the cost of the nodes that recovery has added: their ids are
 * behind those of the base graph. */
static double count_nodes(const inv_recovery *r, inv_plan *plan)
{
    const inv_graph *g = plan->g;
    double added = 0;
    plan->flops = plan->guard_flops = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        *(n->guards ? &plan->guard_flops : &plan->flops) += inv_node_flops(g, n);
        if (g->order.at[i] >= r->base->node.n) added += inv_node_cost(r->costs, g, n);
    }
    return added;
}

/* Compares plans that were made graphs: within the budget by cost or, without one, by the product of bytes and cost,
 * unless only bytes count; and auto's with that of mode invert by their activations. */
static bool beats_best(const search *s, const found *made)
{
    const inv_goal goal = {.budget = s->fewest ? 0 : s->budget,
                           .limit = s->fewest ? INFINITY : s->limit,
                           .balanced = !s->fewest,
                           .persistent = s->program->persistent};
    if (!s->best.plan.g) return true;
    if (s->rq->options->memory == INV_MEMORY_INVERT && !s->inverts) {
        const size_t least = s->best.plan.activation_peak;
        return least > FEW_ACTIVATIONS && made->plan.activation_peak < least - least / SPARE_PART &&
               (made->score.cost <= s->limit || made->score.cost <= s->best.score.cost);
    }
    return inv_score_better(&s->recovery.p, &goal, &made->score, &s->best.score);
}

/* Finds out what the plan takes, or that it is no more than `enough` bytes. With the effort 0 only the load is counted,
 * which is what it would take if nothing were lost between its buffers. Where bytes decide, it is what the plan takes
 * in the end, with element-wise nodes joined. */
static inv_status measure_bytes(const search *s, found *f, unsigned effort, size_t enough)
{
    inv_plan *plan = &f->plan;
    const inv_fit fit = {effort, enough > f->beside ? enough - f->beside : 0, .measured = true};
    size_t nbytes = plan->load;
    if (s->budget || s->fewest) INV_TRY(inv_fuse_plan(plan, &fit, &nbytes));
    f->score.peak = nbytes + f->beside;
    return INV_OK;
}

/* Counts what is needed besides buffers: constants that only this graph has, which guards bring along, and what guards
 * of a device report. */
static inv_status count_beside(const search *s, found *f)
{
    INV_TRY(inv_storage_growth(s->program, f->plan.g, &f->beside));
    if (f->plan.g->gpu) f->beside += inv_control_nbytes(f->plan.guarded.n);
    return INV_OK;
}

/* Makes a graph of the plan, which tells the bytes that it really needs (*need), and keeps it if it is the best so far.
 * Where bytes decide, buffers are placed if it could be the best were nothing lost between them, and no better than the
 * budget wants. If they were not placed, *need is a lower bound. */
static inv_status realize_plan(search *s, const inv_remats *remats, const inv_score *score, size_t *need)
{
    found made = {.plan = *s->plan};
    inv_plan *plan = &made.plan;
    plan->bound = 0;
    plan->transient = 0;
    inv_status st = inv_recover(&s->recovery, remats, plan, &plan->g);
    s->plan->lost = plan->lost;
    INV_TRY(st);
    made.score = (inv_score){
        .cost = count_nodes(&s->recovery, plan), .inverted = score->inverted, .kept_no_store = score->kept_no_store};
    s->made = made.score.cost;
    plan->overhead = made.score.cost > 0 ? made.score.cost / s->recovery.p.cost : 0;
    st = count_beside(s, &made);
    if (st == INV_OK) st = inv_pass_memplan(plan->g, plan, 0, 0);
    if (st == INV_OK) st = measure_bytes(s, &made, 0, 0);
    bool better = st == INV_OK && beats_best(s, &made);
    if (better && (s->budget || s->fewest)) {
        st = measure_bytes(s, &made, inv_effort_of(s->rq), s->budget);
        better = st == INV_OK && beats_best(s, &made);
    }
    *need = made.score.peak;
    if (!better) {
        inv_graph_destroy(plan->g);
        return st;
    }
    inv_graph_destroy(s->best.plan.g);
    s->best = made;
    return inv_plan_note(&s->recovery, remats, &s->best.plan);
}

static void forget_best(search *s)
{
    inv_graph_destroy(s->best.plan.g);
    s->best.plan.g = NULL;
}

/* Searches for a plan and makes a graph of it, unless its peak is too far above `near`. *need: SIZE_MAX if no graph was
 * made. */
static inv_status try_goal(search *s, const inv_goal *goal, size_t near, inv_score *score, size_t *need)
{
    INV_TRY(inv_plan_search(s->ctx, &s->scratch, &s->recovery.p, goal, &s->tried, score));
    INV_TRY(inv_plan_prefetch(&s->scratch, &s->recovery.p, goal->budget, &s->tried, &score->peak));
    *need = SIZE_MAX;
    return score->peak > near + near / SLACK_PART ? INV_OK : realize_plan(s, &s->tried, score, need);
}

enum { TRIES = 4 };

/* Searches for a plan that needs `aim` bytes. The graph's peak is not quite the problem's, and buffers may not fit
 * together well: the next budget is the last plan's peak less what its graph needs above `aim`, which counts twice
 * as much each time. */
static inv_status fit_bytes(search *s, const inv_goal *wanted, size_t aim, size_t *need)
{
    inv_goal goal = *wanted;
    inv_score score;
    goal.budget = aim;
    goal.effort *= 5;
    *need = SIZE_MAX;
    for (int i = 0; i < TRIES; i++) {
        INV_SPAN_TRY(s->ctx, 1 - pow(0.5, i), 1 - pow(0.5, i + 1), try_goal(s, &goal, aim, &score, need));
        if (*need <= aim || score.peak > goal.budget || (*need - aim) << i >= score.peak) return INV_OK;
        goal.budget = score.peak - ((*need - aim) << i);
    }
    return INV_OK;
}

static bool is_within(const search *s) { return s->best.plan.g && s->best.score.peak <= s->budget; }

/* Searches for the fewest bytes whatever they cost, by searches for several budgets:
 *   what no plan can be below, since in deep networks that ends far below a search for the smallest peak;
 *   none, which is the smallest peak;
 *   others between the best peak and the highest budget that failed, as long as they are not near each other;
 *   in the end one byte less than a graph has needed, as long as that helps.
 * The program's budget says only where this ends; what is found until then hangs on the problem alone. A search that is
 * cut short is a beginning of the whole one. The means of a way after the first are some of the first's, so it is
 * hardly better and gets two tries. Peaks of scores are the problem's bytes, `need` the graph's. */
static inv_status plan_fewest_bytes(search *s, const inv_goal *wanted, bool later)
{
    enum { NARROW = 1024, SOON = 5000000 }; /* visits that a search cut short asks to make, all together */
    const int most = later ? 2 : 2 * TRIES;
    inv_goal goal = *wanted;
    inv_score score;
    double asked = 0;
    size_t need, low = problem_floor(&s->recovery.p), high = SIZE_MAX / 2, least = SIZE_MAX;
    goal.limit = INFINITY;
    goal.effort *= 3;
    for (int i = 0; i < most && high > low + 64 + high / NARROW; i++) {
        goal.budget = i == 0 ? low : i == 1 ? 0 : high - (high - low + 2) / 3;
        INV_SPAN_TRY(s->ctx, i / (most + 1.0), (i + 1) / (most + 1.0), try_goal(s, &goal, high, &score, &need));
        if (is_within(s) || (s->soon && (asked += goal.effort) > SOON)) return INV_OK;
        if (score.peak > goal.budget && i > 1) low = goal.budget;
        if (score.peak < high) high = score.peak;
        if (need < least) least = need;
    }
    for (int i = 0; i < TRIES && !later; i++) {
        const double rest = pow(0.5, i) / (most + 1);
        INV_SPAN_TRY(s->ctx, 1 - rest, 1 - rest / 2, fit_bytes(s, wanted, least - 1, &need));
        if (is_within(s) || need >= least) return INV_OK;
        least = need;
    }
    return INV_OK;
}

/* A graph costs more than its problem by guards of what is computed from rebuilt values, which on a GPU are many small
 * nodes. What the last plan's graph cost more is put on inverses, so that the next search knows it. */
static void price_guards(search *s, double more)
{
    inv_problem *p = &s->recovery.p;
    double sum = 0;
    for (size_t k = 0; k < s->tried.n; k++)
        if (p->edge[s->tried.at[k].edge].inverse) sum += p->edge[s->tried.at[k].edge].cost;
    for (uint32_t i = 0; i < p->nedge && sum > 0 && more > 0; i++) {
        if (!p->edge[i].inverse) continue;
        p->edge[i].cost *= 1 + more / sum;
        p->edge[i].max_saving *= 1 + more / sum;
    }
}

/* Searches for a plan whose graph is within the limit, too. If none is found, another way's plan is taken. */
static inv_status fit_cost(search *s, const inv_goal *wanted)
{
    inv_goal goal = *wanted;
    inv_score score;
    size_t need;
    for (int i = 0; i < TRIES; i++) {
        INV_SPAN_TRY(s->ctx, 1 - pow(0.5, i), 1 - pow(0.5, i + 1), try_goal(s, &goal, SIZE_MAX / 2, &score, &need));
        const double over = s->made - s->limit;
        if (!(over > 0)) return INV_OK;
        price_guards(s, s->made - score.cost);
        if (i > 0) goal.limit -= over;
    }
    return INV_OK;
}

/* Whether errors of inverses that are exact enough by themselves may add up to too much. */
static bool errors_add_up(const inv_problem *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < p->nedge; i++) sum += p->edge[i].inverse ? p->edge[i].added_error : 0;
    return sum > p->max_drift;
}

/* Visits of annealing, and the most that a graph may cost. */
static inv_goal usual_goal(const search *s)
{
    const double n = s->recovery.p.nstep;
    return (inv_goal){.limit = s->recovery.p.cost * (s->inverts ? OVERHEAD_OF_INVERT : OVERHEAD_LIMIT),
                      .effort = inv_effort_of(s->rq) * fmax(1e5, fmin(fmin(8 * n, 2000) * n, 3e6)),
                      .persistent = s->program->persistent};
}

static inv_status plan_by_mode(search *s)
{
    inv_goal goal = usual_goal(s);
    inv_score score;
    size_t need;
    if (s->budget) return fit_bytes(s, &goal, s->budget, &need);
    if (s->inverts) {
        goal.share = 0.75;
        if (errors_add_up(&s->recovery.p)) goal.limit += 0.1 * s->recovery.p.cost;
        goal.activations = true;
        /* the last of the smallest peak takes many changes, in small networks above all */
        goal.effort = fmin(MORE_FOR_PEAK * goal.effort, MOST_FOR_PEAK * inv_effort_of(s->rq));
        return try_goal(s, &goal, SIZE_MAX / 2, &score, &need);
    }
    goal.balanced = true;
    goal.effort /= 2; /* it is made for each of several budgets */
    return fit_cost(s, &goal);
}

/* --- ways to plan --- */

/* One way to plan: a mode's means, and how guards and early updates go together. */
typedef struct way {
    inv_memory memory;
    bool late, unguarded;
} way;

enum { MOST_WAYS = 4 };
/* The ways of a mode. The first may do all that the others may. Where weights are updated early, guards that decide
 * ahead take arithmetic, and all that is kept for backward lives meanwhile, so there are also updates that wait for the
 * guards, and in mode auto plans that need none. Auto may do all that recompute may, but its search has more to choose
 * from and may end at a worse plan, so recompute's is made, too. Invert's search is bound to rebuild much by inverses,
 * and may end at more activations than auto's, so both of these are made as well. */
static size_t list_ways(const search *s, way ways[MOST_WAYS])
{
    size_t n = 0;
    const inv_memory memory = s->rq->options->memory;
    const bool choice = s->plan->base->early && s->policy.guard != INV_GUARD_OFF, all = memory == INV_MEMORY_AUTO;
    ways[n++] = (way){.memory = memory};
    if (choice) ways[n++] = (way){memory, .late = true};
    if (choice && all) ways[n++] = (way){memory, .unguarded = true};
    const bool all_too = memory == INV_MEMORY_INVERT && !s->budget && !s->fewest;
    if (all_too) ways[n++] = (way){INV_MEMORY_AUTO, .late = choice};
    if (all || all_too) ways[n++] = (way){INV_MEMORY_RECOMPUTE, .unguarded = choice};
    return n;
}

/* Poses the problem. Ranks must come to the same plan, whatever each of them has measured. */
static inv_status pose_problem(search *s)
{
    const inv_session_options *o = s->rq->options;
    const inv_cost_table *costs = inv_world_several(o->world) ? NULL : o->costs;
    return inv_recovery_init(&s->recovery, s->plan->base, &s->policy, costs, &s->scratch);
}

/* Poses the problem of this way. */
static inv_status take_way(search *s, const way *w)
{
    const inv_session_options *o = s->rq->options;
    s->policy.recompute = w->memory != INV_MEMORY_STORE || o->nmodes;
    s->policy.invert = s->policy.recompute && w->memory != INV_MEMORY_RECOMPUTE;
    s->policy.feed_again = o->memory != INV_MEMORY_INVERT;
    s->policy.guards_aside = w->memory == INV_MEMORY_INVERT && !s->budget && !s->fewest;
    s->inverts = w->memory == INV_MEMORY_INVERT;
    s->policy.late = w->late;
    s->policy.unguarded = w->unguarded;
    return pose_problem(s);
}

/* Whether to search another mode's plan, too: recompute's not if its problem has as many edges as the last one, or if
 * the best plan inverts much at a cost within the limit. */
static bool worth_another(const search *s, uint32_t nedge)
{
    const inv_problem *p = &s->recovery.p;
    double nbytes = 0;
    if (s->rq->options->memory == INV_MEMORY_INVERT) return s->best.plan.overhead > 0;
    for (uint32_t v = 0; v < p->nvalue; v++) nbytes += (double)p->value[v].nbytes;
    return p->nedge != nedge &&
           (!s->best.plan.g || s->best.score.inverted < MUCH_INVERTED * nbytes || s->best.score.cost > s->limit);
}

/* Makes a graph of the saved plan, if it has one for this program. */
static inv_status take_saved(search *s)
{
    const inv_score none = {0};
    inv_remats saved;
    size_t need;
    INV_TRY(inv_plan_load(&s->recovery, s->plan, s->rq, &saved, &s->policy.late, &s->saved));
    return s->saved ? realize_plan(s, &saved, &none, &need) : INV_OK;
}

/* Bounds from below what any plan of the mode costs, guards of rebuilt values included, within the budget or, without
 * one, within the best plan's bytes: the first way has all means. A graph may take a little less than its problem says,
 * and so be planned for less than the bound: then it is no bound of graphs. */
static inv_status bound_best(search *s, const way *first)
{
    double *bound = &s->best.plan.bound;
    INV_TRY(take_way(s, first));
    if (s->policy.guards_aside) {
        s->policy.guards_aside = false;
        INV_TRY(pose_problem(s));
    }
    INV_TRY(inv_plan_bound(&s->scratch, &s->recovery.p, s->budget ? s->budget : s->best.plan.load, bound));
    *bound = fmin(*bound / s->recovery.p.cost, s->best.plan.overhead);
    return INV_OK;
}

/* Takes the best plan of all ways, the first of which poses the problem already. */
static inv_status take_best(search *s, const way *ways, size_t n)
{
    uint32_t nedge = 0;
    for (size_t i = 0; i < n; i++) {
        const bool same = ways[i].memory == ways[0].memory;
        if (i > 0 && same && s->best.plan.g && s->best.plan.guarded.n == 0) continue; /* nothing to gain */
        if (i > 0) INV_TRY(take_way(s, &ways[i]));
        if (!same && !worth_another(s, nedge)) break;
        nedge = s->recovery.p.nedge;
        INV_SPAN_TRY(s->ctx, (double)i / (double)n, (double)(i + 1) / (double)n, plan_by_mode(s));
    }
    return INV_OK;
}

/* Takes the plan of the fewest bytes of all ways, or the first one that is within the budget. Which ways are gone, like
 * all else here, hangs on nothing that was found before. */
static inv_status take_fewest(search *s, const way *ways, size_t n)
{
    s->fewest = true;
    forget_best(s);
    INV_TRY(take_way(s, ways));
    const uint32_t nedge = s->recovery.p.nedge;
    for (size_t i = 0; i < n && !is_within(s) && (i == 0 || !s->soon); i++) {
        if (i > 0) INV_TRY(take_way(s, &ways[i]));
        if (ways[i].memory != ways[0].memory && s->recovery.p.nedge == nedge) break;
        const inv_goal goal = usual_goal(s);
        INV_SPAN_TRY(s->ctx, (double)i / (double)n, (double)(i + 1) / (double)n, plan_fewest_bytes(s, &goal, i > 0));
    }
    return INV_OK;
}

/* Notes what everything stored takes, budget or not; that is the plan where nothing is searched for. */
static inv_status store_everything(search *s)
{
    const inv_remats none = {0};
    const inv_score nothing = {0};
    size_t need;
    INV_TRY(realize_plan(s, &none, &nothing, &need));
    INV_TRY(inv_pass_memplan(s->best.plan.g, &s->best.plan, inv_effort_of(s->rq), 0));
    s->best.score.peak = s->best.plan.transient + s->best.beside;
    s->plan->store_flops = s->best.plan.store_flops = s->best.plan.flops;
    s->plan->store_transient = s->best.plan.store_transient = s->best.plan.transient;
    return INV_OK;
}

/* Estimates the least bytes of any graph from the problem, of which graphs may take a little less. */
static size_t floor_bytes(const search *s)
{
    const size_t least = problem_floor(&s->recovery.p);
    return least - least / SLACK_PART;
}

/* Says before any search that the budget cannot be met, if an estimate of the least bytes exceeds it. */
static void tell_hopeless(search *s)
{
    const inv_program *program = s->program;
    s->hopeless = s->budget && floor_bytes(s) > s->budget;
    if (s->hopeless && !program->shortfall && program->surely < program->options.budget)
        inv_tell_hopeless(program, program->persistent, floor_bytes(s));
}

/* Searches for the cheapest plan within the budget; if none is found, for the one of the fewest bytes. What is stored
 * costs nothing, and takes less than the problem says once nodes are joined. */
static inv_status search_within(search *s, const way *ways, size_t n)
{
    const inv_remats none = {0};
    const inv_score nothing = {0};
    size_t need;
    tell_hopeless(s);
    forget_best(s);
    if (!s->rq->options->nmodes) INV_TRY(realize_plan(s, &none, &nothing, &need));
    if (is_within(s)) return INV_OK;
    forget_best(s);
    if (!s->hopeless) INV_SPAN_TRY(s->ctx, 0, 0.5, take_best(s, ways, n));
    s->soon = s->hopeless;
    if (!is_within(s)) INV_SPAN_TRY(s->ctx, s->hopeless ? 0 : 0.5, 1, take_fewest(s, ways, n));
    return INV_OK;
}

/* Searches for what the program's aim and the options ask for. */
static inv_status search_modes(search *s)
{
    way ways[MOST_WAYS];
    s->fewest = s->program->aim != INV_AIM_OPTIONS;
    s->soon = s->program->aim == INV_AIM_SOON;
    s->budget = s->program->budget_left;
    const size_t n = list_ways(s, ways);
    INV_TRY(take_way(s, ways));
    if (s->budget && !s->rq->options->plan) {
        INV_TRY(search_within(s, ways, n));
    } else {
        forget_best(s);
        if (s->rq->options->plan) INV_TRY(take_saved(s));
        if (!s->saved) INV_TRY(s->fewest ? take_fewest(s, ways, n) : take_best(s, ways, n));
    }
    return bound_best(s, ways);
}

static inv_status run_policy(search *s)
{
    const inv_session_options *o = s->rq->options;
    const bool trains = s->rq->purpose == INV_FOR_TRAIN,
               searches = trains && (o->memory != INV_MEMORY_STORE || s->program->options.plan || o->nmodes);
    inv_plan *plan = &s->best.plan;
    s->plan->memory = o->memory;
    INV_TRY(pose_problem(s));
    INV_TRY(store_everything(s));
    s->budget = s->program->budget_left;
    if (!o->nmodes) s->limit = OVERHEAD_LIMIT * s->recovery.p.cost; /* what these ask for may cost more */
    if (searches) INV_TRY(search_modes(s));
    const bool over = s->fewest && !is_within(s);
    plan->aim = !over ? INV_AIM_OPTIONS : s->soon ? INV_AIM_SOON : INV_AIM_FEWEST;
    plan->enough = over ? 0 : s->budget > s->best.beside ? s->budget - s->best.beside : SIZE_MAX;
    plan->called = s->saved              ? "saved plan"
                   : trains && !searches ? "plan that stores everything"
                                         : "smallest plan found";
    return INV_OK;
}

/* Begins with what is asked of single values, and without any means of recovery. */
static inv_status begin_search(search *s, inv_plan *plan, const inv_request *rq, inv_program *program)
{
    *s = (search){.plan = plan, .rq = rq, .program = program, .ctx = plan->base->ctx, .limit = INFINITY};
    inv_arena_init(&s->scratch, s->ctx);
    s->policy = (inv_policy){.guard = rq->options->guard, .max_drift = program->max_drift};
    return inv_apply_modes(plan, rq, program, &s->scratch, &s->policy);
}

inv_status inv_search_floor(inv_plan *plan, const inv_request *rq, inv_program *program, size_t *nbytes)
{
    search s;
    inv_status st = begin_search(&s, plan, rq, program);
    if (st == INV_OK) st = pose_problem(&s);
    *nbytes = st == INV_OK ? floor_bytes(&s) : 0;
    inv_arena_fini(&s.scratch);
    return st;
}

inv_status inv_pass_search(inv_plan *plan, const inv_request *rq, inv_program *program)
{
    search s;
    inv_status st = begin_search(&s, plan, rq, program);
    if (st == INV_OK) st = run_policy(&s);
    if (st == INV_OK) *plan = s.best.plan;
    else forget_best(&s);
    inv_arena_fini(&s.scratch);
    return st;
}
