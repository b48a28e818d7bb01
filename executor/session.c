/* SPDX-License-Identifier: Apache-2.0
 * Sessions: one arena, the steps over it, guards and what follows when one refuses. */
#define _DEFAULT_SOURCE /* madvise */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "executor/executor.h"

/* Pages of the model's files go back to the system: the weights are in the arena. Whatever is read of them again, when
 * the model is saved, is mapped anew. */
static void give_back(const inv_model *model)
{
    const char *path;
    size_t nbytes;
    const void *base;
    for (size_t i = 0; model->impl && (base = inv_model_file(model, i, &path, &nbytes)); i++)
        if (nbytes) (void)madvise((void *)(uintptr_t)base, nbytes, MADV_DONTNEED);
}

/* First contents of the persistent values, from index `first` on. */
static inv_status fill_homes(inv_session *s, size_t first)
{
    enum { OFTEN = 16 << 20 }; /* bytes after which pages are given back: else weights would be in memory twice */
    const inv_program *p = s->program;
    size_t filled = 0;
    for (size_t i = first; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i];
        size_t n = (size_t)inv_shape_nelem(&h->shape);
        void *to = s->persistent + h->offset, *temp = s->device->host ? to : inv__alloc(s->ctx, h->nbytes + 1);
        if (!temp) return INV_E_NOMEM;
        inv_status st = INV_OK;
        if (!h->data.bytes) memset(temp, 0, h->nbytes);
        else if (!inv_convert(temp, h->dtype, h->data.bytes, h->data.dtype, n))
            st = inv__fail(s->ctx, INV_E_UNSUPPORTED_TYPE, "initializer '%s' of type %s cannot be computed with",
                           h->name, inv_dtype_name(h->data.dtype));
        if (st == INV_OK && temp != to) st = s->device->upload(s->self, to, temp, h->nbytes);
        if (temp != to) inv__free(s->ctx, temp);
        INV_TRY(st);
        filled += h->nbytes;
        if (filled < OFTEN) continue;
        give_back(s->model);
        filled = 0;
    }
    return INV_OK;
}

/* Run tables for the plans as they are now. */
static inv_status ready_plans(inv_session *s)
{
    const inv_program *p = s->program;
    size_t guards = 0, feeds = 0;
    inv_queues_forget(s);
    inv__arena_fini(&s->memory);
    inv__arena_init(&s->memory, s->ctx);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!p->plan[k].g) continue;
        INV_TRY(inv_runnable_build(s, k));
        if (p->plan[k].guarded.n > guards) guards = p->plan[k].guarded.n;
        if (p->plan[k].feed.n > feeds) feeds = p->plan[k].feed.n;
    }
    s->drift = INV_ARENA_NEW(&s->memory, double, guards + 1);
    s->feed = INV_ARENA_NEW(&s->memory, inv_feed, feeds + 1);
    if (!s->drift || !s->feed) return INV_E_NOMEM;
    s->step.drift = s->drift;
    s->step.feed = s->feed;
    return inv_queues_ready(s);
}

/* Says which value of the plans is the largest: that is where the model or its feeds can be changed. */
static inv_status no_memory(const inv_session *s, size_t nbytes)
{
    const inv_graph *of = NULL;
    inv_id largest = INV_NONE;
    size_t most = 0;
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        const inv_graph *g = s->program->plan[k].g;
        for (size_t v = 0; g && v < g->value.n; v++) {
            const inv_value *x = inv_val(g, (inv_id)v);
            size_t size;
            if (x->role == INV_ROLE_PARAM || !inv_shape_nbytes(&x->shape, x->dtype, &size) || size <= most) continue;
            most = size;
            largest = (inv_id)v;
            of = g;
        }
    }
    if (!of) return inv__fail(s->ctx, INV_E_NOMEM, "out of memory: a step needs %zu bytes", nbytes);
    char shape[INV_SHAPE_TEXT];
    inv_id def = inv_val(of, largest)->def;
    const char *name = inv_val(of, largest)->name;
    const char *node = def != INV_NONE ? inv_node_called(of, inv_nod(of, def)) : NULL;
    if (node && !strcmp(node, name)) node = NULL;
    return inv__fail(s->ctx, INV_E_NOMEM,
                     "out of memory: a step needs %zu bytes; the largest of its values, '%s'%s%s%s, is %s%s, %zu bytes",
                     nbytes, name, node ? " of node '" : "", node ? node : "", node ? "'" : "",
                     inv_dtype_name(inv_val(of, largest)->dtype), inv_shape_text(&inv_val(of, largest)->shape, shape),
                     most);
}

/* Memory for the plans as they are now. The transient part goes before its successor comes, so that no more than the
 * plan is ever allocated; the persistent part moves only if planning again has found further constants. */
static inv_status fit_arena(inv_session *s, size_t old_homes)
{
    const inv_program *p = s->program;
    size_t transient = p->control + p->transient;
    if (!s->control || transient != s->transient_nbytes) {
        s->device->free(s->self, s->control);
        s->control = s->transient = NULL;
    }
    if (!s->persistent || p->persistent > s->persistent_nbytes) {
        void *fresh;
        INV_TRY(s->device->alloc(s->self, p->persistent, &fresh));
        inv_status st = s->persistent ? s->device->copy(s->self, fresh, s->persistent, s->persistent_nbytes) : INV_OK;
        s->device->free(s->self, st == INV_OK ? s->persistent : fresh);
        INV_TRY(st);
        s->persistent = fresh;
        s->persistent_nbytes = p->persistent;
    }
    if (!s->control) {
        void *fresh;
        inv_status st = s->device->alloc(s->self, transient, &fresh);
        if (st == INV_E_NOMEM && s->device->host) return no_memory(s, transient); /* others say what they have */
        INV_TRY(st);
        s->control = fresh;
        s->transient_nbytes = transient;
    }
    s->transient = s->control + p->control;
    INV_TRY(fill_homes(s, old_homes));
    const uint64_t before = inv_process_bytes();
    INV_TRY(ready_plans(s));
    s->beside += inv_process_bytes() - before; /* none of it is the arena's, so it may be less, too */
    return INV_OK;
}

static inv_status open_session(inv_session *s, const inv_session_options *o)
{
    if (o->threads > 0) omp_set_num_threads(o->threads); /* workspaces are planned for so many */
    INV_TRY(inv_workers_own(s->ctx));
    INV_TRY(s->ctx->compile(s->ctx, s->model->graph, o, &s->program));
    INV_TRY(inv_compare_logdet(s, o));
    o = &s->program->options;
    s->step.seed = o->seed;
    inv_process_trim(); /* of what compiling has freed, before the arena comes */
    s->beside = inv_process_bytes();
    const char *device = o->device ? o->device : "cpu";
    if (o->plan_only && strcmp(device, "cuda") == 0) return INV_OK; /* also where it is not built in */
    INV_TRY(inv_device_find(s->ctx, device, &s->device));
    if (o->plan_only) return INV_OK;
    INV_CHECK(s->device->host || !o->profile, s->ctx, INV_E_ARG,
              "nodes are timed on the CPU only, not on device '%s', which works through a queue", device);
    INV_TRY(s->device->open(s->ctx, &s->self));
    return fit_arena(s, 0);
}

inv_status inv_session_create(inv_model *model, const inv_session_options *options, inv_session **out)
{
    inv_session_options whole;
    *out = NULL;
    INV_TRY(inv__options_read(model->ctx, options, &whole));
    return inv_session_make(model, &whole, out);
}

inv_status inv_session_make(inv_model *model, const inv_session_options *options, inv_session **out)
{
    *out = NULL;
    inv_context *ctx = model->ctx;
    inv_session *s = inv__alloc(ctx, sizeof *s);
    if (!s) return INV_E_NOMEM;
    s->ctx = ctx;
    s->model = model;
    s->newest = -1;
    inv__arena_init(&s->memory, ctx);
    inv_status st = open_session(s, options);
    if (st != INV_OK) {
        inv_session_destroy(s);
        return st;
    }
    give_back(model);
    *out = s;
    return INV_OK;
}

void inv_session_destroy(inv_session *s)
{
    if (!s) return;
    inv_context *ctx = s->ctx;
    if (s->self) {
        inv_queues_forget(s);
        s->device->free(s->self, s->persistent);
        s->device->free(s->self, s->control);
        s->device->close(s->self);
    }
    if (s->program) s->program->destroy(s->program);
    inv_modes_forget(s);
    inv__arena_fini(&s->memory);
    inv__free(ctx, s->host);
    inv__free(ctx, s);
}

inv_status inv_session_whole(const inv_session *s)
{
    INV_CHECK(!s->lost, s->ctx, INV_E_ARG, "this session has ended: %s", s->lost);
    return INV_OK;
}

/* --- feeding --- */

static const inv_array *array_named(const inv_array *a, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].name && strcmp(a[i].name, name) == 0) return &a[i];
    return NULL;
}

static bool fits(const inv_plan *plan, const inv_feed_slot *slot, const inv_array *a)
{
    const inv_shape *shape = &inv_val(plan->g, slot->value)->shape;
    if (a->rank != shape->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d] != shape->dim[d]) return false;
    return true;
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
            const inv_array *a = slot->is_target ? target : array_named(inputs, n, slot->name);
            all = a && a->data && fits(plan, slot, a);
        }
        if (all) return k;
    }
    return -1;
}

static inv_status fail_feeds(inv_session *s, int first, const inv_array *inputs, size_t n, const inv_array *target)
{
    const inv_plan *plan = &s->program->plan[first];
    inv_str text;
    inv__str_init(&text, s->ctx);
    for (size_t i = 0; i < plan->feed.n; i++) {
        const inv_feed_slot *slot = &plan->feed.at[i];
        const inv_array *a = slot->is_target ? target : array_named(inputs, n, slot->name);
        char want[INV_SHAPE_TEXT], got[INV_SHAPE_TEXT] = "nothing";
        const char *name = slot->is_target ? "target" : slot->name;
        if (a && a->data && a->rank >= 0 && a->rank <= INV_MAX_RANK) {
            inv_shape shape = inv_shape_of(a->rank, a->dims);
            inv_shape_text(&shape, got);
        }
        inv__str_add(&text, "%s'%s' wants %s, got %s", i ? "; " : "", name,
                     inv_shape_text(&inv_val(plan->g, slot->value)->shape, want), got);
    }
    inv_status st = inv__fail(s->ctx, INV_E_SHAPE, "no plan of this session has these shapes: %s", text.s);
    inv__str_fini(&text);
    return st;
}

/* Integer labels within the classes; checked here because a kernel cannot report. */
static inv_status check_labels(inv_session *s, const inv_plan *plan, const inv_array *target)
{
    if (!target || inv_dtype_is_float(target->dtype) || s->program->options.loss != INV_LOSS_CROSS_ENTROPY)
        return INV_OK;
    const inv_node *loss = inv_nod(plan->g, inv_val(plan->g, plan->loss)->def);
    const inv_shape *logits = &inv_val(plan->g, loss->in[0])->shape;
    int64_t classes = logits->dim[inv_attr_int(loss, "axis", 1)], per_row = 1;
    for (int d = 1; d < target->rank; d++) per_row *= target->dims[d];
    int64_t nrows = target->rank ? target->dims[0] : 1;
    for (int64_t r = 0; r < nrows; r++)
        for (int64_t k = 0; k < per_row; k++) {
            int64_t row = target->rows ? target->rows[r] : r;
            int64_t label = inv_elem_int(target->data, target->dtype, (size_t)(row * per_row + k));
            if (s->program->options.ignores && label == s->program->options.ignore_index) continue;
            INV_CHECK(label >= 0 && label < classes, s->ctx, INV_E_ARG,
                      "target row %lld holds label %lld, the output has classes 0 to %lld", (long long)row,
                      (long long)label, (long long)classes - 1);
        }
    return INV_OK;
}

static bool same_values(const inv_array *kept, const inv_array *a)
{
    bool same = a->rank == kept->rank && inv_dtype_is_float(a->dtype) == inv_dtype_is_float(kept->dtype);
    size_t n = 1, each = 1;
    for (int d = 0; same && d < a->rank; d++) {
        same = a->dims[d] == kept->dims[d];
        n *= (size_t)kept->dims[d];
        if (d > 0) each *= (size_t)kept->dims[d];
    }
    for (size_t i = 0; same && i < n; i++) {
        const size_t at = a->rows && a->rank ? (size_t)a->rows[i / each] * each + i % each : i;
        if (inv_dtype_is_float(a->dtype)) {
            double x = inv_elem_double(kept->data, kept->dtype, i), y = inv_elem_double(a->data, a->dtype, at);
            same = x == y || (isnan(x) && isnan(y));
        } else {
            same = inv_elem_int(kept->data, kept->dtype, i) == inv_elem_int(a->data, a->dtype, at);
        }
    }
    return same;
}

/* Inputs that are constants of the session have the values that they had when it was made. */
static inv_status check_constants(inv_session *s, const inv_array *inputs, size_t n)
{
    const inv_session_options *o = &s->program->options;
    for (size_t i = 0; i < o->ninputs; i++) {
        const inv_array *a = o->inputs[i].data ? array_named(inputs, n, o->inputs[i].name) : NULL;
        INV_CHECK(!a || !a->data || same_values(&o->inputs[i], a), s->ctx, INV_E_ARG,
                  "input '%s' is a constant of this session, which was planned for the values it had then; for others "
                  "make another session",
                  o->inputs[i].name);
    }
    return INV_OK;
}

static inv_status feed(inv_session *s, int first, int last, const inv_array *inputs, size_t n, const inv_array *target,
                       int *kind)
{
    INV_TRY(inv_session_whole(s));
    INV_CHECK(s->transient, s->ctx, INV_E_ARG, "this session was made for planning only");
    INV_TRY(inv_workers_own(s->ctx));
    INV_TRY(inv__arrays_check(s->ctx, inputs, n, target));
    *kind = plan_for(s, first, last, inputs, n, target);
    if (*kind < 0) return fail_feeds(s, first, inputs, n, target);
    const inv_plan *plan = &s->program->plan[*kind];
    INV_TRY(check_labels(s, plan, target));
    INV_TRY(check_constants(s, inputs, n));
    for (size_t i = 0; i < plan->feed.n; i++) {
        const inv_feed_slot *slot = &plan->feed.at[i];
        const inv_array *a = slot->is_target ? target : array_named(inputs, n, slot->name);
        s->feed[i] = (inv_feed){a->data, a->dtype, a->rows};
    }
    return INV_OK;
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
    if (part == INV_PART_COMMIT) s->lost = "its update failed half way; go on from the newest saved model";
    if (st == INV_E_DEVICE) s->lost = "its device has failed; go on from the newest saved model";
    return st;
}

inv_status inv_session_settle(inv_session *s)
{
    return s->self && !s->device->host ? call_failed(s, s->device->finish(s->self), INV_PART_COMMIT) : INV_OK;
}

static inv_status begin_call(inv_session *s, int kind)
{
    s->newest = kind;
    s->step.step = s->steps;
    return inv_queues_begin(s, kind);
}

/* The step is repeated, updates left out, up to the first output that is not finite. */
static inv_status find_bad(inv_session *s, int kind, const char *what, inv_result *result)
{
    bool bad = false;
    (void)snprintf(s->bad_node, sizeof s->bad_node, "a node that was not found again");
    INV_TRY(begin_call(s, kind));
    INV_TRY(inv_runnable_compute(s, kind, 0, s->run[kind].commit_begin, &bad));
    result->bad_node = s->bad_node;
    return inv__fail(s->ctx, INV_E_NUMERIC, "step %llu: %s; the first output that is not finite is that of %s",
                     (unsigned long long)s->steps, what, s->bad_node);
}

/* Notes the largest error that the guards have measured; returns whether one of them refuses the step. What is not
 * finite compares as infinite. */
static bool refused(inv_session *s, int kind, inv_result *result)
{
    const inv_plan *plan = &s->program->plan[kind];
    bool any = false;
    for (size_t i = 0; i < plan->guarded.n; i++) {
        if (isnan(s->drift[i])) s->drift[i] = INFINITY;
        if (s->drift[i] > result->drift) result->drift = s->drift[i];
        any = any || s->drift[i] > inv_guard_limit(&plan->guarded.at[i], s->program->max_drift);
    }
    return any;
}

void inv_program_restore(inv_program *p, const inv_program *former)
{
    inv_arena arena = p->arena;
    *p = *former;
    p->arena = arena;
}

inv_status inv_session_plan_again(inv_session *s, const inv_program *former)
{
    inv_program *p = s->program;
    inv_status st = p->replan(p);
    if (st == INV_OK && s->self) st = fit_arena(s, former->storage.n);
    inv_program other = *former;
    if (st != INV_OK) {
        other = *p;
        inv_program_restore(p, former);
        if (s->self && fit_arena(s, p->storage.n) != INV_OK)
            s->lost = "there was not even memory to go on as before when it was planned again; only its parameters "
                      "can be read";
    }
    p->drop(p, other.plan);
    return st;
}

static inv_status keep(inv_session *s, const inv_plan *plan, size_t slot)
{
    inv_program *p = s->program;
    const inv_guarded_row *row = &plan->guarded.at[slot];
    const bool derived = row->kind != INV_GUARD_REBUILT;
    const char *name = inv_val(plan->g, row->value)->name;
    inv__log(s->ctx,
             derived ? "step %llu: what is computed from a reconstruction is off by %.2g (limit %.2g); '%s' is "
                       "kept from now on"
                     : "step %llu: a reconstruction is off by %.2g (limit %.2g); '%s' is kept from now on",
             (unsigned long long)s->steps, s->drift[slot], inv_guard_limit(row, p->max_drift), name);
    const inv_checkpoint checkpoint = {inv__arena_strdup(&p->arena, name),
                                       derived}; /* the graph that owns the name goes */
    return checkpoint.name && inv_vec_push(&p->arena, &p->checkpoint, checkpoint) ? INV_OK : INV_E_NOMEM;
}

#define NEAR_LIMIT 0.7
/* Of what has been rebuilt, where that is refused, the earliest checked that came near the limit is kept: what follows
 * may only follow from it, and errors begin anew where there is room for them to grow a little from step to step. Else
 * it is what is computed from it that is off, and all of that which is refused is kept. */
static inv_status keep_from_now(inv_session *s, int kind)
{
    inv_program *p = s->program;
    const inv_plan *plan = &p->plan[kind];
    const inv_program former = *p;
    size_t near = plan->guarded.n;
    bool rebuilt = false;
    for (size_t i = plan->guarded.n; i-- > 0;) {
        if (plan->guarded.at[i].kind != INV_GUARD_REBUILT) continue;
        if (s->drift[i] > NEAR_LIMIT * p->max_drift) near = i;
        rebuilt = rebuilt || s->drift[i] > p->max_drift;
    }
    if (rebuilt) INV_TRY(keep(s, plan, near));
    for (size_t i = 0; i < plan->guarded.n && !rebuilt; i++)
        if (s->drift[i] > inv_guard_limit(&plan->guarded.at[i], p->max_drift)) INV_TRY(keep(s, plan, i));
    INV_TRY(inv_session_plan_again(s, &former));
    inv__log(s->ctx, "planned again: peak %zu bytes", p->persistent + p->control + p->transient);
    s->fallbacks++;
    return INV_OK;
}

/* Compute part, repeated with more kept until every guard passes. */
static inv_status compute(inv_session *s, int *kind, int first, int last, const inv_array *inputs, size_t n,
                          const inv_array *target, inv_result *result)
{
    int before = s->fallbacks;
    for (;;) {
        INV_TRY(feed(s, first, last, inputs, n, target, kind));
        const inv_plan *plan = &s->program->plan[*kind];
        const inv_id wanted[INV_FETCHED] = {plan->loss, plan->finite, plan->total};
        unsigned char bytes[INV_FETCHED][16];
        INV_TRY(begin_call(s, *kind));
        inv_status st = inv_queues_part(s, *kind, INV_PART_COMPUTE);
        if (st == INV_OK) st = inv_queues_results(s, *kind, wanted, bytes);
        if (st != INV_OK) return call_failed(s, st, plan->g->early ? INV_PART_COMMIT : INV_PART_COMPUTE);
        result->drift = 0;
        if (plan->loss != INV_NONE) result->loss = as_double(plan, plan->loss, bytes[0]);
        if (plan->total != INV_NONE && as_double(plan, plan->total, bytes[2]) == 0)
            return inv__fail(s->ctx, INV_E_NUMERIC,
                             "step %llu: no label of the batch counts: all are the one of {ignore_index}, or of "
                             "classes of weight 0",
                             (unsigned long long)s->steps);
        if (!isfinite(result->loss)) return find_bad(s, *kind, "the loss is not finite", result);
        if (plan->finite != INV_NONE && as_double(plan, plan->finite, bytes[1]) > 0)
            return find_bad(s, *kind,
                            plan->g->early ? "the loss is finite, but its gradients are not; weights whose "
                                             "gradients came before have been updated"
                                           : "the loss is finite, but its gradients are not",
                            result);
        const bool bad = refused(s, *kind, result);
        result->fallbacks = s->fallbacks - before;
        if (result->drift > s->worst_drift && !bad) s->worst_drift = result->drift;
        if (!bad) return INV_OK;
        INV_TRY(keep_from_now(s, *kind));
    }
}

void inv_session_set_step(inv_session *s, uint64_t number, uint64_t micro)
{
    s->steps = number;
    s->step.micro = micro;
}

/* A step, all of it: what `compute` and the commit part do, and what a failed device means for the session. */
static inv_status step(inv_session *s, const inv_array *inputs, size_t n, const inv_array *target, inv_result *result)
{
    int kind;
    inv_status st = compute(s, &kind, INV_PLAN_MAIN, INV_PLAN_TAIL, inputs, n, target, result);
    if (st != INV_OK) return call_failed(s, st, INV_PART_COMPUTE);
    const inv_session_options *o = &s->program->options;
    INV_CHECK(!o->may_commit || o->may_commit(o->may_commit_opaque), s->ctx, INV_E_ARG,
              "step %llu was dropped, as the caller's may_commit wants it", (unsigned long long)s->steps);
    INV_TRY(call_failed(s, inv_queues_part(s, kind, INV_PART_COMMIT), INV_PART_COMMIT));
    inv_session_set_step(s, s->steps + 1, 0);
    return INV_OK;
}

inv_status inv_session_step(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target, double lr,
                            inv_result *result)
{
    INV_CHECK(result, s->ctx, INV_E_ARG, "no place for the result is given");
    memset(result, 0, sizeof *result);
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE, s->ctx, INV_E_ARG,
              "this session has no optimizer, so there is nothing to step");
    INV_CHECK(isfinite(lr) && lr >= 0, s->ctx, INV_E_ARG, "{lr} is %g: must be finite and not negative", lr);
    s->step.lr = lr;
    return step(s, inputs, ninputs, target, result);
}

inv_status inv_session_grad(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target,
                            inv_result *result)
{
    INV_CHECK(result, s->ctx, INV_E_ARG, "no place for the result is given");
    memset(result, 0, sizeof *result);
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && o->optimizer == INV_OPT_NONE, s->ctx, INV_E_ARG,
              "gradients are read from sessions made for training without an optimizer");
    return step(s, inputs, ninputs, target, result); /* running statistics as they would be; nothing is written */
}

inv_status inv_session_eval(inv_session *s, const inv_array *inputs, size_t ninputs, const inv_array *target,
                            inv_result *result)
{
    INV_CHECK(result, s->ctx, INV_E_ARG, "no place for the result is given");
    memset(result, 0, sizeof *result);
    bool train = s->program->options.purpose == INV_FOR_TRAIN;
    int kind;
    INV_CHECK(!train || s->program->plan[INV_PLAN_EVAL].g, s->ctx, INV_E_ARG,
              "this session was planned without evaluation (eval_batch)");
    INV_TRY(feed(s, train ? INV_PLAN_EVAL : INV_PLAN_MAIN, INV_PLAN_EVAL_TAIL, inputs, ninputs, target, &kind));
    const inv_plan *plan = &s->program->plan[kind];
    const inv_id wanted[INV_FETCHED] = {plan->loss, plan->correct, plan->total};
    unsigned char bytes[INV_FETCHED][16];
    inv_status st = begin_call(s, kind);
    if (st == INV_OK) st = inv_queues_part(s, kind, INV_PART_COMPUTE);
    if (st == INV_OK) st = inv_queues_results(s, kind, wanted, bytes);
    INV_TRY(call_failed(s, st, INV_PART_COMPUTE));
    if (plan->loss != INV_NONE) result->loss = as_double(plan, plan->loss, bytes[0]);
    if (plan->correct != INV_NONE) {
        int64_t counts[2];
        memcpy(counts, bytes[1], sizeof counts);
        result->correct = counts[0];
        result->rows = counts[1];
    }
    result->weight = ninputs && inputs[0].rank ? (double)inputs[0].dims[0] : 1;
    if (plan->total != INV_NONE) result->weight = as_double(plan, plan->total, bytes[2]);
    return INV_OK;
}
