/* SPDX-License-Identifier: Apache-2.0
 * Sessions: one arena for up to five plans of a model, filled, moved when it is planned again, and given back. Steps
 * over it are in step.c. */
#include <stdio.h>
#include <string.h>

#include "executor/executor.h"
#include "executor/run/agree.h"
#include "executor/session/improve.h"
#include "importer/model_file.h"

inv_status inv_session_fill(inv_session *s, const inv_storage *h)
{
    const size_t n = (size_t)inv_shape_nelem(&h->shape);
    void *to = s->persistent + h->offset, *temp = s->device->host ? to : inv_alloc(s->ctx, h->nbytes + 1);
    if (!temp) return INV_E_NOMEM;
    inv_status st = INV_OK;
    if (!h->data.bytes) memset(temp, 0, h->nbytes);
    else if (!inv_convert(temp, h->dtype, h->data.bytes, h->data.dtype, n))
        st = inv_fail(s->ctx, INV_E_UNSUPPORTED_TYPE, "initializer '%s' of type %s cannot be computed with", h->name,
                      inv_dtype_name(h->data.dtype));
    if (st == INV_OK && temp != to) st = s->device->upload(s->self, to, temp, h->nbytes);
    if (temp != to) inv_dealloc(s->ctx, temp);
    return st;
}

/* First contents of the persistent values, from index `first` on. */
static inv_status fill_homes(inv_session *s, size_t first)
{
    enum { OFTEN = 16 << 20 }; /* bytes after which pages go back: else weights would be in memory twice */
    const inv_program *p = s->program;
    size_t filled = 0;
    inv_model_forget(s->model); /* what compiling has looked at */
    for (size_t i = first; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i];
        if (h->in_place) continue;
        INV_TRY(inv_session_fill(s, h));
        filled += h->nbytes;
        if (filled < OFTEN) continue;
        inv_model_forget(s->model);
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
    inv_arena_fini(&s->memory);
    inv_arena_init(&s->memory, s->ctx);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!p->plan[k].g) continue;
        INV_TRY(inv_runnable_build(s, k));
        if (p->plan[k].guarded.n > guards) guards = p->plan[k].guarded.n;
        if (p->plan[k].feed.n > feeds) feeds = p->plan[k].feed.n;
    }
    s->drift = INV_ARENA_NEW(&s->memory, double, guards + 1);
    /* Planning again leaves what is fed: the backward half of a step goes on with it. */
    if (!s->feed) {
        s->feed = INV_ARENA_NEW(&s->lasting, inv_feed, 3 * (feeds + 1));
        s->next = (inv_batch){-1, s->feed + feeds + 1};
        s->landed = (inv_batch){-1, s->feed + 2 * (feeds + 1)};
    }
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
    if (!of) return inv_fail(s->ctx, INV_E_NOMEM, "out of memory: a step needs %zu bytes", nbytes);
    char shape[INV_SHAPE_TEXT];
    inv_id def = inv_val(of, largest)->def;
    const char *name = inv_val(of, largest)->name;
    const char *node = def != INV_NONE ? inv_node_called(of, inv_nod(of, def)) : NULL;
    if (node && !strcmp(node, name)) node = NULL;
    return inv_fail(s->ctx, INV_E_NOMEM,
                    "out of memory: a step needs %zu bytes; the largest of its values, '%s'%s%s%s, is %s%s, %zu bytes",
                    nbytes, name, node ? " of node '" : "", node ? node : "", node ? "'" : "",
                    inv_dtype_name(inv_val(of, largest)->dtype), inv_shape_text(&inv_val(of, largest)->shape, shape),
                    most);
}

/* Gives back a part of the arena, or keeps it for those who look at it. */
static inv_status let_go(inv_session *s, bool persists, void *part)
{
    if (part && s->lent[persists]) return inv_vec_push(&s->lasting, &s->retired[persists], part) ? INV_OK : INV_E_NOMEM;
    s->device->free(s->self, part);
    return INV_OK;
}

static void end_views(inv_session *s, bool persists)
{
    for (size_t i = 0; i < s->retired[persists].n; i++) s->device->free(s->self, s->retired[persists].at[i]);
    s->retired[persists].n = 0;
    s->lent[persists] = false;
}

void inv_session_end_views(inv_session *s)
{
    if (s) end_views(s, false);
}

/* Memory for the plans as they are now. The transient part goes before its successor comes, so that no more than the
 * plan is ever allocated; the persistent part moves only if planning again has found further constants. */
static inv_status fit_arena(inv_session *s, size_t old_homes)
{
    const inv_program *p = s->program;
    const size_t persistent = p->persistent - p->in_place, transient = p->control + p->landing + p->transient;
    if (!s->control || transient != s->transient_nbytes) {
        INV_TRY(let_go(s, false, s->control));
        s->control = s->transient = NULL;
    }
    if (!s->persistent || persistent > s->persistent_nbytes) {
        void *fresh;
        INV_TRY(s->device->alloc(s->self, persistent, &fresh));
        inv_status st = s->persistent ? s->device->copy(s->self, fresh, s->persistent, s->persistent_nbytes) : INV_OK;
        if (st == INV_OK) st = let_go(s, true, s->persistent);
        if (st != INV_OK) s->device->free(s->self, fresh);
        INV_TRY(st);
        s->persistent = fresh;
        s->persistent_nbytes = persistent;
    }
    if (!s->control) {
        void *fresh;
        inv_status st = s->device->alloc(s->self, transient, &fresh);
        if (st == INV_E_NOMEM && s->device->host) return no_memory(s, transient); /* others say what they have */
        INV_TRY(st);
        s->control = fresh;
        s->transient_nbytes = transient;
    }
    s->landing = s->control + p->control;
    s->transient = s->landing + p->landing;
    INV_TRY(fill_homes(s, old_homes));
    const uint64_t before = inv_process_bytes();
    INV_TRY(ready_plans(s));
    s->beside += inv_process_bytes() - before; /* none of it is the arena's, so it may be less, too */
    return INV_OK;
}

/* Bytes of what persists, of one program, whose arena begins at `from`, to where another has them: in another type, if
 * that is another. */
static inv_status carry_one(inv_session *s, const inv_storage *to, const unsigned char *from, const inv_storage *of)
{
    const size_t n = (size_t)inv_shape_nelem(&to->shape);
    const void *const at = of->in_place ? of->data.bytes : from + of->offset;
    if (to->dtype == of->dtype) return s->device->copy(s->self, s->persistent + to->offset, at, of->nbytes);
    char *old = inv_alloc(s->ctx, of->nbytes + 1), *fresh = inv_alloc(s->ctx, to->nbytes + 1);
    inv_status st = old && fresh ? s->device->download(s->self, old, at, of->nbytes) : INV_E_NOMEM;
    if (st == INV_OK && !inv_convert(fresh, to->dtype, old, of->dtype, n)) st = INV_E_INTERNAL;
    if (st == INV_OK) st = s->device->upload(s->self, s->persistent + to->offset, fresh, to->nbytes);
    inv_dealloc(s->ctx, old);
    inv_dealloc(s->ctx, fresh);
    return st;
}

/* What has become of parameters and states. An average that there was none of is that of a weight that did not move. */
static inv_status carry(inv_session *s, const inv_program *former, const unsigned char *from)
{
    static const char average[] = "/" INV_STATE_AVERAGE;
    for (size_t i = 0; i < s->program->storage.n; i++) {
        const inv_storage *to = &s->program->storage.at[i], *same = NULL, *weight = NULL;
        if (to->in_place || to->kind == INV_STORAGE_CONST) continue;
        for (size_t k = 0; k < former->storage.n && !same; k++) {
            const inv_storage *h = &former->storage.at[k];
            const size_t n = strlen(h->name);
            if (!inv_shape_equal(&h->shape, &to->shape)) continue;
            if (h->kind == to->kind && !strcmp(h->name, to->name)) same = h;
            if (h->kind == INV_STORAGE_PARAM && to->kind == INV_STORAGE_OPTIM && !strncmp(h->name, to->name, n) &&
                !strncmp(to->name + n, average, sizeof average - 1))
                weight = h;
        }
        if (!same) same = weight;
        if (same) INV_TRY(carry_one(s, to, from, same));
    }
    return INV_OK;
}

/* What steps or the caller have changed may be frozen in the other program. */
static void carry_touched(const inv_program *former, inv_program *fresh)
{
    for (size_t i = 0; i < fresh->storage.n; i++) {
        inv_storage *to = &fresh->storage.at[i];
        if (to->kind != INV_STORAGE_PARAM) continue;
        const inv_storage *h = i < former->storage.n ? &former->storage.at[i] : NULL; /* mostly */
        if (!h || h->kind != to->kind || strcmp(h->name, to->name) != 0) h = inv_program_param(former, to->name);
        to->touched = h && (h->touched || inv_program_changes(former, h));
    }
}

/* How many entries are there before the constants, if two programs have the same ones, each at the same place; else 0.
 */
static size_t same_lasting(const inv_program *a, const inv_program *b)
{
    size_t n = 0;
    for (; n < a->storage.n && a->storage.at[n].kind != INV_STORAGE_CONST; n++) {
        const inv_storage *x = &a->storage.at[n], *y = n < b->storage.n ? &b->storage.at[n] : NULL;
        if (!y || x->kind != y->kind || strcmp(x->name, y->name) != 0 || x->dtype != y->dtype ||
            x->offset != y->offset || !inv_shape_equal(&x->shape, &y->shape) || x->in_place != y->in_place)
            return 0;
    }
    return n == b->storage.n || b->storage.at[n].kind == INV_STORAGE_CONST ? n : 0;
}

/* The persistent part stays where it is but for constants, or what it holds is carried over to another one. */
static inv_status change_arena(inv_session *s, const inv_program *former, size_t same)
{
    unsigned char *const from = s->persistent;
    const size_t nbytes = s->persistent_nbytes;
    if (same) return fit_arena(s, same);
    s->persistent = NULL;
    inv_status st = fit_arena(s, 0);
    if (st == INV_OK) st = carry(s, former, from);
    if (st == INV_OK) st = let_go(s, true, from);
    if (st == INV_OK) return INV_OK;
    inv_queues_forget(s);
    s->device->free(s->self, s->persistent);
    s->persistent = from;
    s->persistent_nbytes = nbytes;
    return st;
}

inv_status inv_session_take_program(inv_session *s, inv_program *fresh)
{
    inv_program *former = s->program;
    const size_t same = same_lasting(former, fresh);
    inv_improve_halt(s); /* a search reads the graphs of the former program */
    s->program = fresh;
    s->feed = NULL;
    s->halfway = false;
    s->newest = -1;
    const inv_status st = s->self ? change_arena(s, former, same) : INV_OK;
    if (st == INV_OK) {
        carry_touched(former, fresh);
        former->destroy(former);
        inv_improve_renew(s);
        return inv_ranks_agree(s);
    }
    s->program = former;
    s->feed = NULL;
    if (fit_arena(s, same ? same : former->storage.n) != INV_OK)
        s->lost = "there was not enough memory to plan for another stage or other sizes, nor to go on as before. "
                  "Only its parameters can be read";
    fresh->destroy(fresh);
    inv_improve_renew(s);
    return st;
}

inv_status inv_session_check_rows(const inv_session *s, const inv_session_options *o)
{
    const bool is_mean = o->loss != INV_LOSS_NONE && o->loss != INV_LOSS_OUTPUT && o->loss != INV_LOSS_OUTSIDE;
    if (!is_mean || o->purpose == INV_FOR_RUN || o->plan_only) return INV_OK;
    return inv_rows_check(s->ctx, o->inputs, o->ninputs, o->target);
}

static inv_status open_session(inv_session *s, const inv_session_options *options)
{
    inv_session_options own = *options;
    const inv_session_options *o = &own;
    s->threads = o->threads;
    inv_workers_use(s);
    INV_TRY(inv_session_check_rows(s, o));
    INV_TRY(inv_workers_own(s->ctx));
    INV_TRY(inv_ranks_check(s->ctx, o));
    INV_TRY(inv_ranks_rates(s, &own));
    INV_TRY(inv_probe_rows(s, o));
    INV_TRY(inv_stages_try(s, o));
    INV_TRY(s->ctx->compile(s->model, o, NULL, &s->program));
    INV_TRY(inv_compare_logdet(s, o));
    o = &s->program->options;
    s->steps = s->step.mixed = o->first_step;
    s->step.seed = o->seed;
    for (size_t i = 0; i < o->ngroups; i++) s->step.group_lr[i + 1] = o->groups[i].lr;
    inv_process_trim(); /* of what compiling has freed, before the arena comes */
    s->beside = inv_process_bytes();
    const char *device = o->device ? o->device : "cpu";
    int index;
    if (o->plan_only && inv_device_is(device, "cuda", &index)) return INV_OK; /* also where it is not built in */
    INV_TRY(inv_device_find(s->ctx, device, &s->device, &index));
    if (o->plan_only) return INV_OK;
    if (inv_ranks_world(s) && strcmp(device, "cuda") == 0) index = -1; /* each rank takes one of its own */
    INV_TRY(s->device->open(s->ctx, index, &s->self));
    INV_TRY(fit_arena(s, 0));
    INV_TRY(inv_ranks_agree(s));
    return inv_improve_open(s);
}

inv_status inv_session_create(inv_model *model, const inv_session_options *options, inv_session **out)
{
    INV_OBJECT(model);
    INV_GIVEN(model->ctx, out);
    inv_session_options whole;
    *out = NULL;
    INV_TRY(inv_options_read(model->ctx, options, &whole));
    return inv_session_make(model, &whole, out);
}

inv_status inv_session_make(inv_model *model, const inv_session_options *options, inv_session **out)
{
    *out = NULL;
    inv_context *ctx = model->ctx;
    inv_session *s = inv_alloc(ctx, sizeof *s);
    if (!s) return INV_E_NOMEM;
    s->ctx = ctx;
    s->model = model;
    inv_hold(&model->held);
    s->newest = -1;
    inv_arena_init(&s->memory, ctx);
    inv_arena_init(&s->lasting, ctx);
    inv_model_forget(model); /* what loading has looked at */
    inv_status st = open_session(s, options);
    if (st != INV_OK) {
        inv_session_destroy(s);
        return st;
    }
    inv_model_forget(model);
    *out = s;
    return INV_OK;
}

void inv_session_destroy(inv_session *s)
{
    if (!s) return;
    inv_context *ctx = s->ctx;
    inv_model *model = s->model;
    inv_improve_close(s);
    if (s->self) {
        inv_queues_forget(s);
        end_views(s, false);
        end_views(s, true);
        s->device->free(s->self, s->persistent);
        s->device->free(s->self, s->control);
        s->device->close(s->self);
    }
    if (s->program) s->program->destroy(s->program);
    inv_modes_forget(s);
    inv_arena_fini(&s->memory);
    inv_arena_fini(&s->lasting);
    inv_dealloc(ctx, s->host);
    inv_dealloc(ctx, s);
    inv_model_destroy(model); /* as far as this session holds it */
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
    inv_improve_halt(s);
    s->halfway = false;
    inv_workers_use(s);
    inv_status st = p->replan(p);
    const bool fits = st == INV_OK && s->self; /* else the arena and the run tables are as they were */
    if (fits) st = fit_arena(s, former->storage.n);
    inv_program other = *former;
    if (st != INV_OK) {
        other = *p;
        inv_program_restore(p, former);
        if (fits && fit_arena(s, p->storage.n) != INV_OK)
            s->lost = "there was not enough memory to plan again, nor to go on as before. Only its parameters can be "
                      "read";
    }
    p->drop(p, other.plan);
    inv_improve_renew(s);
    return st == INV_OK ? inv_ranks_agree(s) : st;
}
