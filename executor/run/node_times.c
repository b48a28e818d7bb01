/* SPDX-License-Identifier: Apache-2.0
 * Times of nodes, as steps of a run take them, and what they say of the measured rates. A node's time is from the end
 * of the one before to its own, so that all of a part is counted, and the clock is read once per node. What a step
 * takes beside them (feeds, verdicts, numbers of other ranks) is in its time as a whole. Other programs only add to
 * times, and not to all steps alike: of the steps that were timed, the quicker half counts. */
#include "executor/run/node_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "executor/executor.h"

#define ENOUGH 0.5 /* seconds of steps, from which on no more of them are timed than have to be */

/* What reading the clock takes: part of every time. */
static double clock_cost(void)
{
    enum { TRIES = 20, READS = 50 };
    double least = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        const double began = inv_clock_now();
        for (int k = 1; k < READS; k++) (void)inv_clock_now();
        least = fmin(least, (inv_clock_now() - began) / READS);
    }
    return fmax(least, 0);
}

inv_status inv_watch_begin(inv_watch *w, inv_context *ctx, size_t n, bool shared)
{
    inv_watch_end(w);
    *w = (inv_watch){.ctx = ctx, .n = n, .shared = shared, .clock = clock_cost()};
    w->took = inv_alloc(ctx, (n + 1) * INV_WATCHED_MOST * sizeof *w->took);
    return w->took ? INV_OK : INV_E_NOMEM;
}

void inv_watch_end(inv_watch *w)
{
    if (w->took) inv_dealloc(w->ctx, w->took);
    w->took = NULL;
}

bool inv_watch_note(inv_watch *w, const inv_ready *node, const inv_step_times *took_all)
{
    double all = 0;
    size_t reads = 0;
    if (!w->warm) {
        w->warm = true;
        return false;
    }
    if (w->steps == INV_WATCHED_MOST) return true;
    float *took = w->took + (size_t)w->steps * w->n;
    for (size_t i = 0; i < w->n; i++) {
        took[i] = (float)fmax(node[i].last - w->clock, 0);
        reads += node[i].last > 0;
    }
    inv_step_times *at = &w->whole[w->steps++];
    *at = *took_all;
    if (at->busy > 0 && at->busy < at->whole) at->whole = at->busy;
    at->whole = fmax(at->whole - (double)reads * w->clock, 0);
    for (int i = 0; i < w->steps; i++) all += w->whole[i].whole;
    return w->steps == INV_WATCHED_MOST || (w->steps >= INV_WATCHED_LEAST && all > ENOUGH);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the steps: the lower quartile, or the median of ranks that share a machine. */
static double usual(const inv_watch *w, double *x)
{
    qsort(x, (size_t)w->steps, sizeof *x, by_size);
    return x[w->steps / (w->shared ? 2 : 4)];
}

/* Of one of the times of a whole step. */
static double usual_whole(const inv_watch *w, size_t offset)
{
    double sorted[INV_WATCHED_MOST];
    for (int k = 0; k < w->steps; k++) memcpy(&sorted[k], (const char *)&w->whole[k] + offset, sizeof *sorted);
    return usual(w, sorted);
}

double *inv_watch_seconds(const inv_watch *w, inv_arena *a, inv_step_times *exchange)
{
    double sorted[INV_WATCHED_MOST], sum = 0, *seconds = INV_ARENA_NEW(a, double, w->n + 1);
    if (!seconds || w->steps == 0) return NULL;
    for (size_t i = 0; i < w->n; i++) {
        for (int k = 0; k < w->steps; k++) sorted[k] = (double)w->took[(size_t)k * w->n + i];
        sum += seconds[i] = usual(w, sorted);
    }
    const double whole = usual_whole(w, offsetof(inv_step_times, whole));
    *exchange = (inv_step_times){.under_way = usual_whole(w, offsetof(inv_step_times, under_way)),
                                 .moved = usual_whole(w, offsetof(inv_step_times, moved))};
    for (size_t i = 0; i < w->n && sum > 0; i++) seconds[i] *= whole / sum;
    return seconds;
}

/* --- corrections --- */

double inv_correction_bounded(double by) { return fmin(fmax(by, 1e-3), 1e3); }

/* What nodes that are alike have taken, and what the rates say. */
typedef struct seen {
    uint64_t what;
    double took, rated;
} seen;

static int by_what(const void *a, const void *b)
{
    const seen *x = a, *y = b;
    return (x->what > y->what) - (x->what < y->what);
}

/* Adds what the sums of equal ones come to. */
static size_t add_up(seen *s, size_t n, inv_correction *out)
{
    size_t found = 0;
    if (n) qsort(s, n, sizeof *s, by_what);
    for (size_t i = 0, end; i < n; i = end) {
        seen sum = {s[i].what, 0, 0};
        for (end = i; end < n && s[end].what == sum.what; end++) {
            sum.took += s[end].took;
            sum.rated += s[end].rated;
        }
        /* what takes next to nothing was perhaps too short for the clock */
        out[found++] = (inv_correction){sum.what, inv_correction_bounded(sum.took / sum.rated)};
    }
    return found;
}

/* Of the operators of a joint node: those of the kind of work that it is rated by share its correction, and what the
 * rates say of the others is taken to hold. */
static size_t note_steps(seen *s, const inv_graph *g, const inv_node *n, double took, double rated)
{
    const inv_work kind = inv_node_work(g, n);
    for (uint32_t k = 0; k < n->fused->nstep; k++) {
        const inv_op_def *op = n->fused->step[k].op;
        const bool alike = (op->work ? op->work(g, n) : INV_WORK_STREAM) == kind;
        s[k] = (seen){inv_op_likeness(op), alike ? took : rated, rated};
    }
    return n->fused->nstep;
}

inv_status inv_watch_corrections(const inv_plan *plan, const double *seconds, const inv_cost_table *t, inv_arena *a,
                                 inv_correction **list, size_t *n)
{
    const inv_graph *g = plan->g;
    const size_t nodes = g->order.n;
    size_t count = 0, most = 4 * nodes + 3; /* two more of what ranks exchange */
    for (size_t i = 0; i < nodes; i++) {
        const inv_node *x = inv_nod(g, g->order.at[i]);
        most += x->fused ? x->fused->nstep : 0;
    }
    seen *s = INV_ARENA_NEW(a, seen, most);
    inv_correction *out = INV_ARENA_NEW(a, inv_correction, most);
    if (!s || !out) return INV_E_NOMEM;
    for (int finest = 0; finest < 2; finest++) {
        size_t at = 0;
        for (size_t i = 0; i < nodes; i++) {
            const inv_node *x = inv_nod(g, g->order.at[i]);
            const double rated = inv_node_rated_seconds(t, g, x);
            if (!(rated > 0) || x->op->flags & INV_OP_TRANSFER) continue;
            if (finest) {
                s[at++] = (seen){inv_noted_as(t, inv_node_likeness(g, x)), seconds[i], rated};
                continue;
            }
            const size_t first = at;
            s[at++] = (seen){inv_op_likeness(x->op), seconds[i], rated};
            s[at++] = (seen){inv_work_likeness(inv_node_work(g, x)), seconds[i], rated};
            s[at++] = (seen){INV_ALL_NODES, seconds[i], rated};
            if (x->fused) at += note_steps(s + at, g, x, seconds[i], rated);
            for (size_t k = first; k < at; k++) s[k].what = inv_noted_as(t, s[k].what);
        }
        count += add_up(s, at, out + count);
    }
    *list = out;
    *n = count;
    return INV_OK;
}
