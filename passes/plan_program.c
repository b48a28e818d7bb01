/* SPDX-License-Identifier: Apache-2.0
 * The plans of a program, all of them within its budget. Each is searched for by itself first. Where that does not come
 * to what the budget has room for, plans are made that hang on no budget: those of the fewest bytes, and those that
 * there are without one. The bytes that a refusal names are those of such plans, so whoever gives them as a budget has
 * these plans at the latest. */
#include <string.h>

#include "core/program/options.h"
#include "passes/pipeline.h"
#include "passes/recover/recover.h"
#include "passes/schedule/schedule.h"

bool inv_request_for(const inv_program *p, int k, inv_request *rq)
{
    const inv_session_options *o = &p->options;
    bool train = o->purpose == INV_FOR_TRAIN;
    const struct {
        const char *name;
        inv_purpose purpose;
        int64_t batch;
        bool wanted;
    } kinds[INV_PLAN_KINDS] = {
        {"main", o->purpose, 0, true},
        {"tail", o->purpose, o->tail_batch, o->tail_batch > 0},
        {"eval", INV_FOR_EVAL, o->eval_batch, train && o->eval_batch > 0},
        {"eval_tail", INV_FOR_EVAL, o->eval_tail, o->eval_tail > 0},
        {"update", INV_FOR_EVAL, 0, train && o->accumulate},
    };
    const bool optimize = (kinds[k].purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE) || k == INV_PLAN_UPDATE;
    *rq = (inv_request){.options = o,
                        .purpose = kinds[k].purpose,
                        .batch = kinds[k].batch,
                        .rebatch = kinds[k].batch > 0 || optimize || kinds[k].purpose == INV_FOR_EVAL,
                        .optimize = optimize,
                        .accumulate = o->accumulate && k != INV_PLAN_UPDATE,
                        .update = k == INV_PLAN_UPDATE,
                        .plan = kinds[k].name};
    return kinds[k].wanted;
}

/* A batch that is sent before its step gets bytes where a budget has them left, and without one unless the fewest bytes
 * are what is asked for. */
static size_t landing(const inv_program *p)
{
    const inv_session_options *o = &p->options;
    size_t nbytes = 0;
    if (!o->send_ahead || o->purpose != INV_FOR_TRAIN || !inv_device_queues(o->device)) return 0;
    for (int k = INV_PLAN_MAIN; k <= INV_PLAN_TAIL; k++) {
        const size_t batch = p->plan[k].base ? inv_plan_feed_at(&p->plan[k], p->plan[k].feed.n) : 0;
        if (batch > nbytes) nbytes = batch;
    }
    const bool fewest = p->aim != INV_AIM_OPTIONS || o->memory == INV_MEMORY_INVERT;
    if (o->budget ? inv_program_bytes(p) + nbytes > o->budget : fewest) return 0;
    return nbytes;
}

/* --- what plans take --- */

static void raise_to(size_t *most, size_t nbytes)
{
    if (nbytes > *most) *most = nbytes;
}

static void count_plan(inv_program *p, const inv_plan *plan)
{
    raise_to(&p->transient, plan->transient);
    raise_to(&p->host, plan->host);
    raise_to(&p->store_peak, plan->store_transient);
    raise_to(&p->control, inv_device_queues(p->options.device) ? inv_control_nbytes(plan->guarded.n) : 0);
}

static bool is_within(const inv_program *p) { return !p->options.budget || inv_program_bytes(p) <= p->options.budget; }

/* Notes what these plans take, if it is less than what was noted before. */
static inv_status note_shortfall(inv_program *p, const inv_plan *plan)
{
    const inv_plan *largest = NULL;
    if (p->shortfall && p->shortfall <= inv_program_bytes(p)) return INV_OK;
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (plan[k].g && (!largest || plan[k].transient > largest->transient)) largest = &plan[k];
    return inv_note_shortfall(p, largest);
}

/* --- plans --- */

/* A program before plans for training are searched for, to go back to. */
typedef struct ground {
    inv_plan plan[INV_PLAN_KINDS];
    size_t nstorage, persistent, in_place, transient, control, host, store_peak;
} ground;

static void stand_on(inv_program *p, const ground *from)
{
    p->storage.n = from->nstorage;
    p->persistent = from->persistent;
    p->in_place = from->in_place;
    p->transient = from->transient;
    p->control = from->control;
    p->host = from->host;
    p->store_peak = from->store_peak;
}

/* Plans of which nothing is searched for. `anew`: they are made; else they are there. */
static inv_status plan_others(inv_program *p, inv_plan *plan, bool anew)
{
    inv_request rq;
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!inv_request_for(p, k, &rq) || rq.purpose == INV_FOR_TRAIN) continue;
        if (anew) INV_TRY(inv_plan_build(p, &rq, &plan[k]));
        count_plan(p, &plan[k]);
    }
    return INV_OK;
}

/* Plans for training, as the program's aim and options say. One that was made for the same aim whatever the budget is
 * stays. *within: the budget has room for them; it ends with the first for which there is none. */
static inv_status plan_training(inv_program *p, const ground *from, inv_plan *plan, bool *within)
{
    const int parts = 1 + (p->options.tail_batch > 0);
    inv_request rq;
    *within = false;
    stand_on(p, from);
    for (int k = INV_PLAN_MAIN; k <= INV_PLAN_TAIL; k++) {
        if (!inv_request_for(p, k, &rq) || rq.purpose != INV_FOR_TRAIN) continue;
        if (plan[k].g && p->aim != INV_AIM_OPTIONS && plan[k].aim == p->aim) {
            INV_TRY(inv_assign_storage(p, plan[k].g, INV_ASSIGN_ALL));
        } else {
            inv_graph_destroy(plan[k].g);
            plan[k] = from->plan[k];
            INV_SPAN_TRY(p->ctx, (double)k / parts, (k + 1.0) / parts, inv_plan_build(p, &rq, &plan[k]));
        }
        count_plan(p, &plan[k]);
        if (p->options.budget && plan[k].aim != INV_AIM_OPTIONS) return INV_OK;
    }
    *within = is_within(p);
    return INV_OK;
}

/* Plans that hang on no budget, until some are within it. A search that was cut short, as there was no hope, is not
 * followed by others; nor does one that is cut short follow a whole one, of which it is the beginning, but where there
 * are several plans, which share what is the largest of each. */
static inv_status plan_on_no_budget(inv_program *p, const ground *from, inv_plan *plan, bool *within)
{
    static const inv_aim aims[] = {INV_AIM_FEWEST, INV_AIM_OPTIONS, INV_AIM_SOON};
    const uint64_t budget = p->options.budget;
    const bool soon = plan[INV_PLAN_MAIN].aim == INV_AIM_SOON || plan[INV_PLAN_TAIL].aim == INV_AIM_SOON;
    inv_status s = INV_OK;
    for (size_t i = 0; i < sizeof aims / sizeof *aims && s == INV_OK; i++) {
        if (aims[i] == INV_AIM_SOON ? !soon && !p->options.tail_batch : soon) continue;
        p->aim = aims[i];
        p->options.budget = 0;
        s = plan_training(p, from, plan, within);
        p->options.budget = budget;
        p->aim = INV_AIM_OPTIONS;
        *within = is_within(p);
        if (s == INV_OK && *within) return INV_OK;
        if (s == INV_OK) s = note_shortfall(p, plan);
    }
    return s;
}

static inv_status plan_all(inv_program *p, inv_plan *plan, bool anew)
{
    const inv_session_options *o = &p->options;
    ground from;
    INV_TRY(plan_others(p, plan, anew));
    memcpy(from.plan, plan, sizeof from.plan);
    from.nstorage = p->storage.n;
    from.persistent = p->persistent;
    from.in_place = p->in_place;
    from.transient = p->transient;
    from.control = p->control;
    from.host = p->host;
    from.store_peak = p->store_peak;
    bool within;
    INV_TRY(plan_training(p, &from, plan, &within));
    if (within) return INV_OK;
    const bool searches = o->purpose == INV_FOR_TRAIN && !o->plan && (o->memory != INV_MEMORY_STORE || o->nmodes);
    if (!searches) return note_shortfall(p, plan);
    INV_TRY(plan_on_no_budget(p, &from, plan, &within));
    if (within) p->shortfall = 0;
    return INV_OK;
}

inv_status inv_plan_program(inv_program *p, inv_plan *plan, bool anew)
{
    p->landing = p->store_peak = p->shortfall = 0;
    const inv_span around = inv_span_enter(p->ctx, "searching for a plan", 0, 1);
    const inv_status s = plan_all(p, plan, anew);
    inv_span_leave(p->ctx, around);
    if (s == INV_OK && !p->shortfall) p->landing = landing(p);
    return s;
}
