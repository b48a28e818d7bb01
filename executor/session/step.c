/* SPDX-License-Identifier: Apache-2.0
 * Steps of a session: feeds are checked and chosen a plan for, the compute part runs until every guard passes, the
 * commit part follows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/program/options.h"
#include "executor/executor.h"
#include "executor/run/agree.h"
#include "executor/session/improve.h"

/* --- feeding --- */

/* A rank that has no rows of a batch is fed arrays of none, where the others' have some. */
static bool is_empty(const inv_session *s, const inv_array *a)
{
    return inv_ranks_world(s) && a->rank > 0 && a->dims[0] == 0;
}

static bool fits(const inv_session *s, const inv_plan *plan, const inv_feed_slot *slot, const inv_array *a)
{
    const inv_shape *shape = &inv_val(plan->g, slot->value)->shape;
    if (a->rank != shape->rank) return false;
    for (int d = is_empty(s, a); d < a->rank; d++)
        if (a->dims[d] != shape->dim[d]) return false;
    return a->data || is_empty(s, a);
}

/* The plan among [first, last] whose shapes the arrays have; -1: none. */
static int plan_for(const inv_session *s, int first, int last, const inv_array *inputs, size_t n,
                    const inv_array *target)
{
    for (int k = first; k <= last; k++) {
        const inv_plan *plan = &s->program->plan[k];
        bool all = plan->g != NULL;
        for (size_t i = 0; all && i < plan->feed.n; i++) {
            const inv_feed_slot *slot = &plan->feed.at[i];
            if (slot->gradient_of != INV_NONE) continue;
            const inv_array *a = slot->is_target ? target : inv_array_named(inputs, n, slot->name);
            all = a && fits(s, plan, slot, a);
        }
        if (all) return k;
    }
    return -1;
}

/* What of a batch does not fit the plan, in words; NULL: only their number. */
static size_t misfits(const inv_session *s, const inv_plan *plan, const inv_array *inputs, size_t n,
                      const inv_array *target, inv_str *text)
{
    size_t found = 0;
    for (size_t i = 0; plan->g && i < plan->feed.n; i++) {
        const inv_feed_slot *slot = &plan->feed.at[i];
        const inv_array *a = slot->is_target ? target : inv_array_named(inputs, n, slot->name);
        if (slot->gradient_of != INV_NONE || (a && fits(s, plan, slot, a))) continue;
        char want[INV_SHAPE_TEXT], got[INV_SHAPE_TEXT] = "nothing";
        const inv_shape shape = a && a->data ? inv_shape_of(a->rank, a->dims) : (inv_shape){0};
        if (a && a->data) inv_shape_text(&shape, got);
        if (text)
            inv_str_add(text, "%s'%s' wants %s, got %s", found ? "; " : "", slot->is_target ? "target" : slot->name,
                        inv_shape_text(&inv_val(plan->g, slot->value)->shape, want), got);
        found++;
    }
    return found;
}

/* Of the plans that there are it is told of the one that fits best. */
static inv_status fail_feeds(inv_session *s, int first, int last, const inv_array *inputs, size_t n,
                             const inv_array *target)
{
    const inv_plan *best = &s->program->plan[first];
    const inv_session_options *o = &s->program->options;
    inv_str text;
    INV_TRY(inv_rows_check(s->ctx, inputs, n, target));
    inv_str_init(&text, s->ctx);
    for (const inv_plan *p = best + 1; p <= &s->program->plan[last]; p++)
        if (p->g && misfits(s, p, inputs, n, target, NULL) < misfits(s, best, inputs, n, target, NULL)) best = p;
    (void)misfits(s, best, inputs, n, target, &text);
    for (size_t i = 0; i < n; i++)
        if (inputs[i].name && !inv_array_named(o->inputs, o->ninputs, inputs[i].name))
            inv_str_add(&text, "; there is no input '%s'", inputs[i].name);
    inv_status st = inv_fail(s->ctx, INV_E_SHAPE,
                             "this session is not planned for this batch: %s. Give these shapes, or plan for others "
                             "(inv_session_resize)",
                             text.s);
    inv_str_fini(&text);
    return st;
}

inv_status inv_session_feed(inv_session *s, int first, int last, const inv_array *inputs, size_t n,
                            const inv_array *target, inv_batch *out)
{
    INV_TRY(inv_session_whole(s));
    INV_CHECK(s->transient, s->ctx, INV_E_ARG, "this session was made for planning only");
    INV_TRY(inv_workers_own(s->ctx));
    INV_TRY(inv_arrays_check(s->ctx, inputs, n, target));
    const int kind = plan_for(s, first, last, inputs, n, target);
    if (kind < 0) return fail_feeds(s, first, last, inputs, n, target);
    const inv_plan *plan = &s->program->plan[kind];
    INV_TRY(inv_check_constants(s, inputs, n));
    for (size_t i = 0; i < plan->feed.n; i++) {
        const inv_feed_slot *slot = &plan->feed.at[i];
        if (slot->gradient_of != INV_NONE) continue;
        const inv_array *a = slot->is_target ? target : inv_array_named(inputs, n, slot->name);
        INV_TRY(inv_check_kind(s, plan, slot, a));
        if (slot->is_target) INV_TRY(inv_check_target(s, plan, a));
        else INV_TRY(inv_check_lengths(s, inv_val(plan->base, slot->value)->lengths, a));
        out->feed[i] = (inv_feed){is_empty(s, a) ? NULL : a->data, a->dtype, a->rows};
    }
    out->kind = kind;
    return INV_OK;
}

static inv_status feed(inv_session *s, int first, int last, const inv_array *inputs, size_t n, const inv_array *target,
                       int *kind)
{
    inv_batch fed = {-1, s->feed};
    INV_TRY(inv_session_feed(s, first, last, inputs, n, target, &fed));
    *kind = fed.kind;
    return INV_OK;
}

inv_status inv_session_next(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target)
{
    INV_OBJECT(s);
    s->next.kind = -1;
    if (!inputs && ninputs == 0) s->landed.kind = -1;
    if (!s->program->landing || !s->self || (!inputs && ninputs == 0)) return INV_OK;
    return inv_session_feed(s, INV_PLAN_MAIN, INV_PLAN_TAIL, inputs, ninputs, target, &s->next);
}

/* --- steps --- */

static double as_double(const inv_plan *plan, inv_id v, const unsigned char *bytes)
{
    return inv_elem_double(bytes, inv_val(plan->g, v)->dtype, 0);
}

/* What a failure in the middle of a call leaves: nothing that is still queued; no session if the device has failed
 * (what is in its memory cannot be told) or parameters are half updated. */
static inv_status call_failed(inv_session *s, inv_status st, inv_part part)
{
    if (st == INV_OK) return st;
    inv_queues_drain(s);
    if (part == INV_PART_COMMIT) s->lost = "its update failed half way; continue from the newest saved model";
    if (st == INV_E_DEVICE) s->lost = "its device has failed; continue from the newest saved model";
    return st;
}

inv_status inv_session_settle(inv_session *s)
{
    return s->self && !s->device->host ? call_failed(s, s->device->finish(s->self), INV_PART_COMMIT) : INV_OK;
}

static inv_status begin_call(inv_session *s, int kind)
{
    inv_workers_use(s);
    s->newest = kind;
    s->halfway = s->wrote = false;
    s->step.step = s->steps;
    return inv_queues_begin(s, kind);
}

/* The step is repeated, updates left out, up to the first output that is not finite. */
static inv_status find_bad(inv_session *s, int kind, const char *what, inv_result *result)
{
    bool bad = false;
    char where[24] = "";
    (void)snprintf(s->bad_node, sizeof s->bad_node, "a node that was not found again");
    INV_TRY(begin_call(s, kind));
    s->step.world = NULL; /* each rank looks at what is its own */
    if (s->device->join) INV_TRY(s->device->join(s->self, NULL));
    INV_TRY(inv_queues_find_bad(s, kind, &bad));
    if (s->device->join) INV_TRY(s->device->join(s->self, inv_ranks_world(s)));
    INV_TRY(inv_ranks_share_bad(s, bad && !s->step.absent, &result->bad_rank));
    result->bad_node = s->bad_node;
    if (inv_ranks_world(s) && result->bad_rank >= 0)
        (void)snprintf(where, sizeof where, " on rank %d", result->bad_rank);
    return inv_fail(s->ctx, INV_E_NUMERIC, "step %llu: %s; the first output that is not finite comes from %s%s",
                    (unsigned long long)s->steps, what, s->bad_node, where);
}

static inv_status no_label_counts(const inv_session *s)
{
    return inv_fail(s->ctx, INV_E_NUMERIC,
                    "step %llu: no label of the batch counts: each equals {ignore_index}, is missing, or has a "
                    "class of weight 0",
                    (unsigned long long)s->steps);
}

/* What a compute part has found, of all ranks; s->step.weight: what this one's gradients count for. */
static inv_status read_found(inv_session *s, int kind, unsigned char bytes[INV_FETCHED][16], inv_result *result,
                             inv_verdict *v)
{
    const inv_plan *plan = &s->program->plan[kind];
    result->drift = 0;
    if (plan->norm != INV_NONE) result->grad_norm = as_double(plan, plan->norm, bytes[3]);
    if (plan->total != INV_NONE && !s->step.absent) s->step.weight = as_double(plan, plan->total, bytes[2]);
    *v = (inv_verdict){.weight = s->step.weight, .refused = inv_guards_refuse(s, kind, result)};
    v->drift = result->drift;
    if (plan->loss != INV_NONE) v->loss = as_double(plan, plan->loss, bytes[0]);
    const bool own = s->program->options.accumulate && kind != INV_PLAN_UPDATE; /* gradients, of none but this rank */
    if (plan->finite != INV_NONE && !(own && s->step.absent)) v->bad = as_double(plan, plan->finite, bytes[1]);
    if (kind == INV_PLAN_UPDATE) { /* nothing but gradients, of which ranks may have a part each */
        inv_verdict all = *v;
        INV_TRY(inv_ranks_judge(s, &all));
        v->bad = all.bad;
        return INV_OK;
    }
    INV_TRY(inv_ranks_judge(s, v));
    if (plan->seed != INV_NONE && !s->step.absent) s->step.weight = v->weight / s->there; /* equal parts */
    if (plan->loss != INV_NONE) result->loss = v->loss;
    result->weight = v->weight;
    result->drift = v->drift;
    return INV_OK;
}

/* What forbids the commit part. A micro-batch of which no label counts is nothing wrong: it has no commit part. */
static inv_status check_found(inv_session *s, int kind, const inv_verdict *v, inv_result *result)
{
    const inv_plan *plan = &s->program->plan[kind];
    if (plan->total != INV_NONE && v->weight == 0) return s->program->options.accumulate ? INV_OK : no_label_counts(s);
    if (!isfinite(result->loss)) return find_bad(s, kind, "the loss is not finite", result);
    if (v->refused || !(v->bad > 0)) return INV_OK; /* with a reconstruction that is off, anything may be found */
    return find_bad(s, kind,
                    plan->g->early ? "the loss is finite, but its gradients are not; weights with earlier gradients "
                                     "have been updated"
                                   : "the loss is finite, but its gradients are not",
                    result);
}

/* Whether the caller lets the step count, asked when its data has been read and nothing is committed: where queues take
 * all of a step at once, before that, and elsewhere behind the compute part. */
static inv_status ask_caller(inv_session *s, int kind, bool queued)
{
    const inv_session_options *o = &s->program->options;
    if (queued == s->device->host || kind == INV_PLAN_UPDATE || !o->may_commit) return INV_OK;
    INV_CHECK(o->may_commit(o->may_commit_opaque), s->ctx, INV_E_ARG,
              "step %llu was dropped, as the caller's may_commit wants it", (unsigned long long)s->steps);
    return INV_OK;
}

/* The compute part of a plan, and what it has found. */
static inv_status compute_part(inv_session *s, int kind, inv_result *result, bool *refused)
{
    const inv_plan *plan = &s->program->plan[kind];
    const inv_id wanted[INV_FETCHED] = {plan->loss, plan->finite, plan->total, plan->norm};
    unsigned char bytes[INV_FETCHED][16];
    inv_part at;
    INV_TRY(begin_call(s, kind));
    INV_TRY(ask_caller(s, kind, true));
    inv_status st = inv_queues_step(s, kind, wanted, bytes, &at);
    if (st != INV_OK) return call_failed(s, st, at);
    inv_verdict v;
    INV_TRY(read_found(s, kind, bytes, result, &v));
    *refused = v.refused;
    return check_found(s, kind, &v, result);
}

/* By what the mean of gradients so far and those of a micro-batch of this weight count in the new mean. */
static void set_mean(inv_session *s)
{
    const double all = s->own + s->step.weight;
    s->step.kept = all > 0 ? s->own / all : 0;
    s->step.added = all > 0 ? s->step.weight / all : 0;
}

/* Where this rank's batch has one value per channel, another one has to have more. */
static inv_status check_lone(inv_session *s, int kind, int64_t rows)
{
    const inv_plan *plan = &s->program->plan[kind];
    INV_CHECK(plan->lone == INV_NONE || rows == 0 || s->there > 1, s->ctx, INV_E_ARG,
              "batch normalization '%s' has one value per channel in a batch of one row on all ranks, so its "
              "variance is 0. Leave out a last batch of one row ({tail_batch})",
              inv_node_called(plan->base, inv_nod(plan->base, plan->lone)));
    return INV_OK;
}

/* What a micro-batch that fails leaves of the step: with early updates some of its gradients have been added already,
 * so that it begins anew. */
static inv_status micro_failed(inv_session *s, inv_status st)
{
    const inv_session_options *o = &s->program->options;
    if (st != INV_OK && o->accumulate && o->early_update) inv_session_set_step(s, s->steps, 0);
    return st;
}

/* Compute part, repeated with more kept until every guard passes. */
static inv_status compute(inv_session *s, int *kind, int first, int last, const inv_array *inputs, size_t n,
                          const inv_array *target, inv_result *result)
{
    int before = s->fallbacks;
    for (;;) {
        INV_TRY(feed(s, first, last, inputs, n, target, kind));
        const int64_t rows = inv_arrays_rows(inputs, n, target, 1);
        bool bad;
        INV_TRY(inv_ranks_begin(s, rows));
        INV_TRY(check_lone(s, *kind, rows));
        s->step.weight = (double)rows;
        set_mean(s);
        INV_TRY(micro_failed(s, compute_part(s, *kind, result, &bad)));
        if (result->weight == 0) return INV_OK;
        result->fallbacks = s->fallbacks - before;
        if (result->drift > s->worst_drift && !bad) s->worst_drift = result->drift;
        if (!bad) return INV_OK;
        INV_TRY(inv_guards_fall_back(s, *kind));
    }
}

void inv_session_set_step(inv_session *s, uint64_t number, uint64_t micro)
{
    if (!s) return;
    s->steps = number;
    s->micro = micro;
    s->samples = micro ? INV_NO_SAMPLES : 0;
    s->halfway = false;
    if (micro > 0) return;
    s->accumulated = s->own = s->mean_loss = s->most_drift = 0;
    s->fell_back = 0;
}

/* Of several ranks a stage begins here, where all of them are, and not with the next step or a state that is saved
 * before it: planning again is a call of all, and one alone saves. */
static inv_status end_step(inv_session *s)
{
    s->averaged = true;
    inv_session_set_step(s, s->steps + 1, 0);
    return inv_ranks_world(s) ? inv_stages_enter(s) : INV_OK;
}

static void end_micro(inv_session *s)
{
    s->samples = inv_samples_before(s) + s->fed;
    s->micro++;
}

/* A step, all of it: what `compute` and the commit part do, and what a failed device means for the session. With
 * accumulation a micro-batch of it: its gradients count in the mean by its weight. */
static inv_status step(inv_session *s, const inv_array *inputs, size_t n, const inv_array *target, inv_result *result)
{
    int kind;
    const inv_session_options *o = &s->program->options;
    inv_improve_between(s);
    INV_TRY(inv_session_whole(s));
    inv_status st = compute(s, &kind, INV_PLAN_MAIN, INV_PLAN_TAIL, inputs, n, target, result);
    if (st != INV_OK) return call_failed(s, st, INV_PART_COMPUTE);
    INV_TRY(micro_failed(s, ask_caller(s, kind, false)));
    if (result->weight == 0) {
        end_micro(s);
        return INV_OK;
    }
    set_mean(s); /* of a batch whose weight is known only now */
    INV_TRY(call_failed(s, inv_queues_commit(s, kind), INV_PART_COMMIT));
    if (o->optimizer != INV_OPT_NONE) s->step.mixed++; /* else nothing is written */
    inv_improve_note(s, kind);
    if (!o->accumulate) return end_step(s);
    s->accumulated += result->weight;
    s->mean_loss += (result->loss - s->mean_loss) * (result->weight / s->accumulated);
    s->most_drift = fmax(s->most_drift, result->drift);
    s->fell_back += result->fallbacks;
    s->own += s->step.weight;
    end_micro(s);
    return INV_OK;
}

/* What every call that trains begins with. */
static inv_status begin_training(inv_session *s, double lr, inv_result *result)
{
    INV_GIVEN(s->ctx, result);
    *result = (inv_result){.grad_norm = NAN};
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE, s->ctx, INV_E_ARG,
              "this session has no optimizer, so there is nothing to step");
    INV_CHECK(isfinite(lr) && lr >= 0, s->ctx, INV_E_ARG, "{lr} is %g: must be finite and not negative", lr);
    INV_CHECK(!s->averages, s->ctx, INV_E_ARG,
              "the averages are in the place of the weights. Switch back before the next step "
              "(inv_session_use_average)");
    if (s->accumulated <= 0) {
        INV_TRY(inv_session_whole(s));
        INV_TRY(inv_stages_enter(s));
    }
    s->step.lr = lr;
    return inv_session_begin_averages(s);
}

static inv_status update(inv_session *s, inv_result *result)
{
    INV_TRY(inv_session_whole(s));
    if (s->accumulated <= 0 && s->micro > 0) {
        inv_session_set_step(s, s->steps, 0);
        result->loss = NAN; /* a mean of nothing */
        return no_label_counts(s);
    }
    INV_CHECK(s->accumulated > 0, s->ctx, INV_E_ARG, "no gradients have been accumulated since the last update");
    bool refused; /* it has no guards */
    s->step.weight = s->own;
    s->step.absent = false; /* of the last batch, maybe, and not of all of them */
    INV_TRY(compute_part(s, INV_PLAN_UPDATE, result, &refused));
    INV_TRY(call_failed(s, inv_queues_commit(s, INV_PLAN_UPDATE), INV_PART_COMMIT));
    result->loss = s->mean_loss;
    result->weight = s->accumulated;
    result->drift = s->most_drift;
    result->fallbacks = s->fell_back;
    return end_step(s);
}

inv_status inv_session_step(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target, double lr,
                            inv_result *result)
{
    INV_OBJECT(s);
    INV_TRY(begin_training(s, lr, result));
    if (!s->program->options.accumulate) return step(s, inputs, ninputs, target, result);
    INV_CHECK(s->accumulated <= 0, s->ctx, INV_E_ARG,
              "gradients have been accumulated since the last update. Finish the step with inv_session_update, or "
              "restart it with inv_session_set_step");
    INV_TRY(step(s, inputs, ninputs, target, result));
    return update(s, result);
}

static inv_status check_accumulates(const inv_session *s)
{
    INV_CHECK(s->program->options.accumulate, s->ctx, INV_E_ARG,
              "this session has nowhere to accumulate gradients: it was made without {accumulate}");
    return INV_OK;
}

inv_status inv_session_accumulate(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target,
                                  inv_result *result)
{
    INV_OBJECT(s);
    INV_TRY(begin_training(s, 0, result));
    INV_TRY(check_accumulates(s));
    return step(s, inputs, ninputs, target, result);
}

inv_status inv_session_update(inv_session *s, double lr, inv_result *result)
{
    INV_OBJECT(s);
    INV_TRY(begin_training(s, lr, result));
    INV_TRY(check_accumulates(s));
    return update(s, result);
}

inv_status inv_session_grad(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target,
                            inv_result *result)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, result);
    *result = (inv_result){.grad_norm = NAN};
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && o->optimizer == INV_OPT_NONE, s->ctx, INV_E_ARG,
              "gradients can be read only from sessions for training without an optimizer, or with {accumulate}");
    INV_CHECK(o->loss != INV_LOSS_OUTSIDE, s->ctx, INV_E_ARG,
              "with a loss outside a step is two calls, inv_session_forward and inv_session_backward");
    return step(s, inputs, ninputs, target, result); /* running statistics as they would be; nothing is written */
}

/* --- a step in two halves --- */

static inv_status begin_half(const inv_session *s, inv_result *result)
{
    INV_GIVEN(s->ctx, result);
    *result = (inv_result){.grad_norm = NAN};
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && o->loss == INV_LOSS_OUTSIDE, s->ctx, INV_E_ARG,
              "separate forward and backward calls need a session for training with a loss outside");
    INV_CHECK(!s->device || s->device->host, s->ctx, INV_E_UNSUPPORTED_OP,
              "a loss outside is for devices of the host, not for device '%s'", s->device->name);
    return INV_OK;
}

inv_status inv_session_forward(inv_session *s, const inv_array *inputs, size_t ninputs, inv_result *result)
{
    INV_OBJECT(s);
    int kind;
    INV_TRY(begin_half(s, result));
    INV_TRY(feed(s, INV_PLAN_MAIN, INV_PLAN_TAIL, inputs, ninputs, NULL, &kind));
    result->weight = (double)inv_arrays_rows(inputs, ninputs, NULL, 1);
    INV_TRY(inv_ranks_begin(s, (int64_t)result->weight));
    INV_TRY(begin_call(s, kind));
    const size_t end = s->program->plan[kind].g->forward_end;
    INV_TRY(call_failed(s, inv_runnable_compute(s, kind, 0, end, NULL), INV_PART_COMPUTE));
    s->halfway = true;
    return INV_OK;
}

static inv_status feed_gradients(inv_session *s, const inv_array *gradients, size_t n)
{
    const inv_plan *plan = &s->program->plan[s->newest];
    char want[INV_SHAPE_TEXT], got[INV_SHAPE_TEXT];
    INV_CHECK(gradients || !n, s->ctx, INV_E_ARG, "gradients is NULL, but its number is %zu", n);
    INV_TRY(inv_arrays_check(s->ctx, gradients, n, NULL));
    for (size_t i = 0; i < plan->feed.n; i++) {
        const inv_feed_slot *slot = &plan->feed.at[i];
        if (slot->gradient_of == INV_NONE) continue;
        const inv_array *a = inv_array_named(gradients, n, slot->name);
        INV_CHECK(a && a->data && inv_dtype_is_float(a->dtype), s->ctx, INV_E_ARG, "the gradient of output '%s' is %s",
                  slot->name, a && a->data ? "of integers" : "missing");
        const inv_shape shape = inv_shape_of(a->rank, a->dims);
        INV_CHECK(fits(s, plan, slot, a), s->ctx, INV_E_SHAPE, "the gradient of output '%s' is %s: wanted %s",
                  slot->name, inv_shape_text(&shape, got), inv_shape_text(&inv_val(plan->g, slot->value)->shape, want));
        s->feed[i] = (inv_feed){a->data, a->dtype, a->rows};
    }
    return INV_OK;
}

inv_status inv_session_backward(inv_session *s, const inv_array *gradients, size_t ngradients, inv_result *result)
{
    INV_OBJECT(s);
    const int kind = s->newest, before = s->fallbacks;
    INV_TRY(begin_half(s, result));
    INV_TRY(inv_session_whole(s));
    INV_CHECK(s->halfway, s->ctx, INV_E_ARG,
              "there is no forward pass to continue. Call inv_session_forward right before, once for each backward");
    INV_TRY(feed_gradients(s, gradients, ngradients));
    inv_workers_use(s);
    s->halfway = false;
    for (size_t from = s->program->plan[kind].g->forward_end;; from = 0) {
        INV_TRY(call_failed(s, inv_runnable_compute(s, kind, from, s->run[kind].n, NULL), INV_PART_COMPUTE));
        const bool bad = inv_guards_refuse(s, kind, result);
        result->fallbacks = s->fallbacks - before;
        if (result->drift > s->worst_drift && !bad) s->worst_drift = result->drift;
        if (!bad) break;
        INV_TRY(inv_guards_fall_back(s, kind));
        INV_TRY(begin_call(s, kind));
        result->drift = 0;
    }
    s->step.mixed++;
    inv_session_set_step(s, s->steps + 1, 0);
    return INV_OK;
}

inv_status inv_session_set_group_lr(inv_session *s, size_t group, double factor)
{
    INV_OBJECT(s);
    const size_t n = s->program->options.ngroups;
    INV_CHECK(group < n, s->ctx, INV_E_ARG, "there is no group %zu: this session has %zu, counted from 0", group, n);
    INV_CHECK(isfinite(factor) && factor >= 0, s->ctx, INV_E_ARG,
              "the factor of a learning rate is %g: must be finite and not negative", factor);
    s->step.group_lr[group + 1] = factor;
    return INV_OK;
}

inv_status inv_session_eval(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target,
                            inv_result *result)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, result);
    *result = (inv_result){.grad_norm = NAN};
    bool train = s->program->options.purpose == INV_FOR_TRAIN;
    int kind;
    if (train && !s->program->plan[INV_PLAN_EVAL].g) INV_TRY(inv_rows_check(s->ctx, inputs, ninputs, target));
    INV_CHECK(!train || s->program->plan[INV_PLAN_EVAL].g, s->ctx, INV_E_ARG,
              "this session was planned without evaluation (eval_batch)");
    INV_TRY(feed(s, train ? INV_PLAN_EVAL : INV_PLAN_MAIN, INV_PLAN_EVAL_TAIL, inputs, ninputs, target, &kind));
    const inv_plan *plan = &s->program->plan[kind];
    const inv_id wanted[INV_FETCHED] = {plan->loss, plan->correct, plan->total, INV_NONE};
    unsigned char bytes[INV_FETCHED][16];
    s->step.first_sample = 0; /* the same numbers whatever part of the data a rank has */
    s->step.batch = 0;
    s->step.absent = false;
    s->step.micro = s->micro;
    inv_part at;
    inv_status st = begin_call(s, kind);
    if (st == INV_OK) st = inv_queues_step(s, kind, wanted, bytes, &at);
    INV_TRY(call_failed(s, st, INV_PART_COMPUTE));
    if (plan->loss != INV_NONE) result->loss = as_double(plan, plan->loss, bytes[0]);
    if (plan->correct != INV_NONE) {
        int64_t counts[2];
        memcpy(counts, bytes[1], sizeof counts);
        result->correct = counts[0];
        result->rows = counts[1];
    }
    result->weight = (double)inv_arrays_rows(inputs, ninputs, target, 1);
    if (plan->total != INV_NONE) result->weight = as_double(plan, plan->total, bytes[2]);
    return INV_OK;
}
