/* SPDX-License-Identifier: Apache-2.0
 * Better plans while steps are made. The first steps are timed (node_times.c), which corrects the rates that plans are
 * made by; where that shifts the nodes' shares of the step, it is planned again by them, which takes as long as the
 * first plan did. Then a thread goes on searching with more effort. A plan that is better by more than a hundredth is
 * taken between two steps. Steps of several ranks are timed, too, and no more: what one of them finds is not the
 * others'.
 *
 * The search plans a twin of the program, which reads the base graphs and has all else for itself, in a context of its
 * own, whose allocator keeps it within its bytes and ends it. What it finds is handed over as text, and planned by the
 * session itself. The thread comes last where the system shares out processors, and computes no more than a small share
 * of what the process does, so that steps hardly notice. */
#include "executor/session/improve.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "executor/rates/costs.h"
#include "executor/run/agree.h"
#include "executor/run/node_times.h"
#include "executor/session/report_ranks.h"

enum { ROUNDS = 3, MORE_EFFORT = 4 }; /* the effort of a round is so many times that of the one before */
#define BETTER 0.99                   /* of the goal: plans that come below that are taken */
#define SHIFTED 0.02                  /* of a step, that its nodes' shares are off by: it is planned again */
#define SHARE 0.03                    /* of the process's processor time, that the thread has at most */

typedef enum improve_phase {
    WATCHING,  /* steps are timed */
    PLANNING,  /* a search is to begin */
    SEARCHING, /* it goes on, or has ended and nobody has looked */
    DONE
} improve_phase;

typedef struct inv_improve {
    improve_phase phase;
    inv_watch watch;
    double seconds, rated; /* of a timed step: what it took, what had been predicted */
    inv_step_times began;  /* clocks when the step at hand did */
    int taken;
    /* --- the search; while the thread runs, its own but for `stop` and `ended` --- */
    int round; /* 0: by corrected rates, with the usual effort */
    inv_allocator allocator;
    inv_context *ctx;
    inv_program *twin;
    int threads;
    double aim;        /* a goal below which a plan is wanted */
    char *found;       /* plan, in `ctx`; NULL: none */
    size_t used, most; /* bytes */
    double spent;      /* processor time of the threads before */
    atomic_bool stop, ended, hurry;
    bool aside, running;
    pthread_t thread;
    pid_t process; /* that has it */
} inv_improve;

static void enter(inv_session *s, improve_phase phase)
{
    s->improve->phase = phase;
    s->watching = phase == WATCHING;
}

/* --- memory of the search --- */

enum { HEAD = 16 };

static void *quota_alloc(void *opaque, size_t nbytes)
{
    inv_improve *m = opaque;
    if (atomic_load(&m->stop) || nbytes > m->most - m->used || nbytes > SIZE_MAX - HEAD) return NULL;
    char *p = malloc(nbytes + HEAD);
    if (!p) return NULL;
    memcpy(p, &nbytes, sizeof nbytes);
    m->used += nbytes;
    return p + HEAD;
}

static void quota_free(void *opaque, void *p)
{
    inv_improve *m = opaque;
    size_t nbytes;
    if (!p) return;
    memcpy(&nbytes, (char *)p - HEAD, sizeof nbytes);
    m->used -= nbytes;
    free((char *)p - HEAD);
}

static double process_busy(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : INFINITY;
}

/* Asked by the search now and then. The thread rests here while it has had its share. */
static bool stopped(void *opaque)
{
    inv_improve *m = opaque;
    const struct timespec little = {0, 5000000};
    while (m->aside && !atomic_load(&m->stop) && !atomic_load(&m->hurry) &&
           m->spent + inv_clock_busy() > SHARE * process_busy())
        (void)nanosleep(&little, NULL);
    return atomic_load(&m->stop);
}

/* --- the search --- */

static int64_t effort_of(const inv_session *s, int round)
{
    int64_t effort = s->program->options.effort > 0 ? s->program->options.effort : 1;
    for (int i = 0; i < round; i++) effort *= MORE_EFFORT;
    return effort < INV_MOST_EFFORT ? effort : INV_MOST_EFFORT;
}

static void search(inv_improve *m)
{
    inv_program *p = m->twin;
    if (p->replan(p) == INV_OK && inv_program_goal(p) < m->aim && p->save(p, &m->found) != INV_OK) m->found = NULL;
}

static void *search_aside(void *opaque)
{
    enum { LAST = 19 };
    inv_improve *m = opaque;
#ifdef __linux__
    (void)setpriority(PRIO_PROCESS, 0, LAST); /* of this thread */
#endif
    omp_set_num_threads(m->threads); /* workspaces are planned for so many */
    search(m);
    m->spent += inv_clock_busy();
    atomic_store(&m->ended, true);
    return NULL;
}

static void forget_search(inv_improve *m)
{
    if (m->found) inv_dealloc(m->ctx, m->found);
    if (m->twin) m->twin->destroy(m->twin);
    inv_context_fini(m->ctx); /* the registry is the session's */
    m->found = NULL;
    m->twin = NULL;
    m->ctx = NULL;
}

/* A child of fork() does not have the thread. It leaves what that was at as it was. */
static void join_search(inv_improve *m)
{
    if (m->running && m->process == getpid()) {
        (void)pthread_join(m->thread, NULL);
    } else if (m->running) {
        m->found = NULL;
        m->twin = NULL;
        m->ctx = NULL;
    }
    m->running = false;
}

/* A twin for this round, in a context of its own. */
static inv_status set_up_search(inv_session *s)
{
    inv_improve *m = s->improve;
    const inv_context_options o = {.size = sizeof o, .allocator = &m->allocator, .option_name = s->ctx->option_name};
    atomic_store(&m->stop, false);
    atomic_store(&m->ended, false);
    m->used = 0;
    INV_TRY(inv_context_init(&o, &m->ctx));
    m->ctx->registry = s->ctx->registry;
    m->ctx->stopped = stopped;
    m->ctx->stopped_opaque = m;
    INV_TRY(s->program->twin(s->program, m->ctx, &m->twin));
    m->twin->options.effort = effort_of(s, m->round);
    m->threads = omp_get_max_threads();
    m->aim = BETTER * inv_program_goal(s->program);
    return INV_OK;
}

/* Signals are for the threads that there were. */
static bool start_thread(inv_improve *m)
{
    sigset_t all, before;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
    m->process = getpid();
    m->running = pthread_create(&m->thread, NULL, search_aside, m) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return m->running;
}

/* Searches: by corrected rates at once, then on a thread of its own, if there are several. False: it cannot. */
static bool begin_search(inv_session *s)
{
    inv_improve *m = s->improve;
    m->aside = m->round > 0;
    if ((m->aside && omp_get_max_threads() == 1) || set_up_search(s) != INV_OK) return false;
    if (m->aside) return start_thread(m);
    search(m);
    atomic_store(&m->ended, true);
    return true;
}

/* --- plans --- */

static void say_taken(inv_session *s, const inv_program *former, double cost)
{
    const inv_program *p = s->program;
    char now[32], before[32], time[96] = "";
    if (p->plan[INV_PLAN_MAIN].seconds)
        (void)snprintf(time, sizeof time, ", %.3g instead of %.3g ms a step",
                       1e3 * inv_plan_cost(&p->plan[INV_PLAN_MAIN]), 1e3 * cost);
    inv_log(s->ctx, "step %llu: %s: peak %s instead of %s%s", (unsigned long long)s->steps,
            s->improve->round ? "a better plan was found meanwhile" : "planned again by what operators have taken",
            inv_bytes_text(inv_program_bytes(p), now), inv_bytes_text(inv_program_bytes(former), before), time);
}

static void take_found(inv_session *s)
{
    inv_improve *m = s->improve;
    inv_program *p = s->program;
    const inv_program former = *p;
    const double cost = inv_plan_cost(&p->plan[INV_PLAN_MAIN]);
    p->proposal = m->found;
    p->options.effort = m->twin->options.effort; /* buffers are placed as they were there */
    p->transient = p->control = p->host = 0;
    s->newest = -1;
    const inv_status st = inv_session_plan_again(s, &former);
    p->options.effort = former.options.effort;
    p->proposal = NULL;
    if (st != INV_OK) return;
    m->taken++;
    say_taken(s, &former, cost);
}

/* --- rates --- */

/* By how much the nodes' shares of the step differ between two predictions. */
static double shift(const double *a, const double *b, size_t n)
{
    double all_a = 0, all_b = 0, off = 0;
    for (size_t i = 0; i < n; i++) all_a += a[i], all_b += b[i];
    for (size_t i = 0; i < n && all_a > 0 && all_b > 0; i++) off += fabs(a[i] / all_a - b[i] / all_b) / 2;
    return off;
}

static void keep_corrections(inv_session *s, inv_arena *a, const inv_correction *fresh, size_t n)
{
    const inv_session_options *o = &s->program->options;
    char key[INV_COST_KEY];
    inv_costs_key(omp_get_max_threads(), o->costs->real, key);
    const char *path = inv_costs_path(a, o->cost_cache, key);
    if (path) inv_costs_keep(a, path, key, o->costs, fresh, n);
}

/* The session's rates with these corrections, and its plans' times by them. */
static inv_status use_corrections(inv_session *s, inv_arena *a, const inv_correction *fresh, size_t n)
{
    inv_program *p = s->program;
    inv_cost_table t = *p->options.costs;
    inv_correction *all = INV_ARENA_NEW(a, inv_correction, n + t.nseen + 1);
    if (!all) return INV_E_NOMEM;
    memcpy(all, fresh, n * sizeof *all);
    if (t.nseen) memcpy(all + n, t.seen, t.nseen * sizeof *all);
    t.nseen = inv_corrections_sort(all, n + t.nseen);
    t.seen = all;
    void *room = inv_arena_alloc(&p->arena, inv_cost_table_nbytes(&t));
    if (!room) return INV_E_NOMEM;
    p->options.costs = inv_cost_table_copy(&t, room);
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (p->plan[k].g && p->plan[k].seconds) INV_TRY(inv_plan_predict(&p->plan[k], p->options.costs));
    return INV_OK;
}

/* Of what ranks exchange in a step. How many; there is room for them. */
static size_t correct_exchange(const inv_session *s, const inv_step_times *took, inv_correction *to)
{
    const inv_cost_table *t = s->program->options.costs;
    const double rated = inv_exchange_seconds(s);
    if (!(rated > 0)) return 0;
    to[0] = (inv_correction){inv_noted_as(t, INV_UNDER_WAY), inv_correction_bounded(took->under_way / rated)};
    to[1] = (inv_correction){inv_noted_as(t, INV_MOVED), inv_correction_bounded(took->moved / rated)};
    return 2;
}

/* What the steps say of the rates. *shifted: of a step, by how much its nodes' shares were off. */
static inv_status learn(inv_session *s, inv_arena *a, double *shifted)
{
    inv_improve *m = s->improve;
    const inv_plan *plan = &s->program->plan[INV_PLAN_MAIN];
    inv_step_times exchange;
    const double *before = plan->seconds, *seconds = inv_watch_seconds(&m->watch, a, &exchange);
    inv_correction *fresh;
    size_t n;
    if (!seconds) return INV_E_NOMEM;
    INV_TRY(inv_watch_corrections(plan, seconds, s->program->options.costs, a, &fresh, &n));
    n += correct_exchange(s, &exchange, fresh + n);
    m->rated = inv_plan_cost(plan);
    for (size_t i = 0; i < m->watch.n; i++) m->seconds += seconds[i];
    keep_corrections(s, a, fresh, n);
    INV_TRY(use_corrections(s, a, fresh, n));
    *shifted = shift(before, plan->seconds, m->watch.n);
    return INV_OK;
}

/* --- in a session --- */

/* What this rank did for the exchange of the step is not the nodes'. */
static inv_step_times clocks(const inv_session *s)
{
    const inv_world *w = inv_ranks_world(s);
    if (!w) return (inv_step_times){.whole = inv_clock_now(), .busy = inv_clock_busy()};
    return (inv_step_times){.whole = inv_clock_now() - w->waited, .under_way = w->under_way, .moved = w->moved};
}

/* Whether there can be a better plan. */
static bool searches(const inv_session *s)
{
    const inv_session_options *o = &s->program->options;
    const bool free_of_cost = o->budget && !(s->program->plan[INV_PLAN_MAIN].overhead > 0);
    if (inv_ranks_world(s)) return false;
    return (o->memory != INV_MEMORY_STORE || o->nmodes > 0) && !free_of_cost;
}

static void end_watching(inv_session *s)
{
    inv_improve *m = s->improve;
    double shifted = 0;
    inv_arena a;
    inv_arena_init(&a, s->ctx);
    const inv_status st = learn(s, &a, &shifted);
    inv_arena_fini(&a);
    inv_watch_end(&m->watch);
    m->round = shifted > SHIFTED ? 0 : 1;
    enter(s, st == INV_OK && searches(s) ? PLANNING : DONE);
}

/* Ends a search, whose plan nobody wants any more. */
static void drop_search(inv_improve *m)
{
    atomic_store(&m->stop, true);
    join_search(m);
    forget_search(m);
}

static void end_search(inv_session *s)
{
    inv_improve *m = s->improve;
    join_search(m);
    enter(s, PLANNING);
    if (m->found) take_found(s);
    forget_search(m);
    inv_process_trim();
    if (++m->round == ROUNDS || s->lost) enter(s, DONE);
}

void inv_improve_between(inv_session *s)
{
    inv_improve *m = s->improve;
    if (!m) return;
    for (;;) {
        if (m->phase == SEARCHING && atomic_load(&m->ended)) end_search(s);
        if (m->phase != PLANNING) break;
        enter(s, begin_search(s) ? SEARCHING : DONE);
        if (m->phase == DONE) forget_search(m);
    }
    m->began = clocks(s);
}

void inv_improve_note(inv_session *s, int kind)
{
    if (!inv_session_watches(s, kind)) return;
    const inv_step_times now = clocks(s), *began = &s->improve->began;
    const bool alone = omp_get_max_threads() == 1 && !inv_ranks_world(s);
    const inv_step_times took = {.whole = now.whole - began->whole,
                                 .busy = alone ? now.busy - began->busy : 0,
                                 .under_way = now.under_way - began->under_way,
                                 .moved = now.moved - began->moved};
    if (inv_watch_note(&s->improve->watch, s->run[kind].node, &took)) end_watching(s);
}

void inv_improve_await(inv_session *s)
{
    if (!s->improve) return;
    atomic_store(&s->improve->hurry, true);
    join_search(s->improve);
    atomic_store(&s->improve->hurry, false);
}

void inv_improve_halt(inv_session *s)
{
    inv_improve *m = s->improve;
    if (!m || m->phase != SEARCHING) return;
    drop_search(m);
    enter(s, PLANNING);
}

static inv_status watch(inv_session *s)
{
    const bool shared = inv_ranks_world(s) && inv_ranks_world(s)->on_host > 1;
    return inv_watch_begin(&s->improve->watch, s->ctx, s->run[INV_PLAN_MAIN].n, shared);
}

/* Steps of the plan that is gone are not of this one. */
void inv_improve_renew(inv_session *s)
{
    inv_improve *m = s->improve;
    if (m && m->phase == WATCHING && watch(s) != INV_OK) enter(s, DONE);
}

inv_status inv_improve_open(inv_session *s)
{
    enum { LEAST = 2 << 20, PER_NODE = 6 << 10 };
    const inv_session_options *o = &s->program->options;
    if (!o->improve || o->purpose != INV_FOR_TRAIN || o->optimizer == INV_OPT_NONE) return INV_OK;
    const bool watches = o->costs && s->device == &inv_device_cpu;
    if (!watches && !searches(s)) return INV_OK;
    inv_improve *m = s->improve = inv_alloc(s->ctx, sizeof *m);
    if (!m) return INV_E_NOMEM;
    m->allocator = (inv_allocator){quota_alloc, quota_free, m};
    if (searches(s)) m->most = LEAST + PER_NODE * s->program->plan[INV_PLAN_MAIN].base->node.n;
    m->round = 1;
    enter(s, watches ? WATCHING : PLANNING);
    return watches ? watch(s) : INV_OK;
}

void inv_improve_close(inv_session *s)
{
    inv_improve *m = s->improve;
    if (!m) return;
    drop_search(m);
    inv_watch_end(&m->watch);
    inv_dealloc(s->ctx, m);
    s->improve = NULL;
    s->watching = false;
}

size_t inv_improve_bytes(const inv_session *s) { return s->improve ? s->improve->most : 0; }
double inv_improve_seconds(const inv_session *s) { return s->improve ? s->improve->seconds : 0; }
double inv_improve_rated(const inv_session *s) { return s->improve ? s->improve->rated : 0; }
int inv_improve_taken(const inv_session *s) { return s->improve ? s->improve->taken : 0; }
