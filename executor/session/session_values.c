/* SPDX-License-Identifier: Apache-2.0
 * Reading results out of a session, setting parameters. */
#include <string.h>

#include "core/base/glob.h"
#include "executor/executor.h"

static const inv_plan *newest_plan(const inv_session *s) { return &s->program->plan[s->newest < 0 ? 0 : s->newest]; }

/* The plan that has such results of the newest call. Accumulated gradients are those of the update. */
static const inv_plan *plan_with(const inv_session *s, inv_what what)
{
    const bool accumulated = what == INV_GET_GRAD && s->program->options.accumulate;
    return accumulated ? &s->program->plan[INV_PLAN_UPDATE] : newest_plan(s);
}

static const inv_result_slot *slots(const inv_plan *p, inv_what what, size_t *n)
{
    switch (what) {
    case INV_GET_OUTPUT: *n = p->output.n; return p->output.at;
    case INV_GET_GRAD: *n = p->grad.n; return p->grad.at;
    case INV_GET_INPUT_GRAD: *n = p->input_grad.n; return p->input_grad.at;
    case INV_GET_STATE: *n = p->state.n; return p->state.at;
    default: *n = 0; return NULL;
    }
}

/* Strings and such are carried along. */
static bool has_numbers(const inv_value *init) { return init->data.bytes && inv_dtype_size(init->data.dtype) > 0; }

/* Training with an optimizer lets gradients go when they have been used. */
static bool is_kept(const inv_plan *p, const inv_result_slot *slot)
{
    const inv_value *v = inv_val(p->g, slot->value);
    return v->keep || v->role != INV_ROLE_NODE;
}

const char *inv_session_name(const inv_session *s, inv_what what, size_t i)
{
    if (!s || !s->persistent) return NULL;
    if (what == INV_GET_PARAM) {
        const inv_graph *g = s->program->source;
        for (size_t k = 0; k < g->inits.n; k++)
            if (has_numbers(inv_val(g, g->inits.at[k])) && i-- == 0) return inv_val(g, g->inits.at[k])->name;
        return NULL;
    }
    if (what == INV_GET_HELD || what == INV_GET_OPTIM) {
        const inv_program *p = s->program;
        const inv_storage_kind kind = what == INV_GET_HELD ? INV_STORAGE_PARAM : INV_STORAGE_OPTIM;
        for (size_t k = 0; k < p->storage.n; k++)
            if (inv_session_persistent(s, kind, p->storage.at[k].name) == &p->storage.at[k] && i-- == 0)
                return p->storage.at[k].name;
        return NULL;
    }
    size_t n;
    const inv_plan *p = plan_with(s, what);
    if (what == INV_GET_LOSS_OUTPUT) return i < p->loss_output.n ? p->loss_output.at[i] : NULL;
    const inv_result_slot *slot = slots(p, what, &n);
    for (size_t k = 0; k < n; k++)
        if (is_kept(p, &slot[k]) && i-- == 0) return slot[k].name;
    return NULL;
}

const inv_storage *inv_session_persistent(const inv_session *s, inv_storage_kind kind, const char *name)
{
    const inv_program *p = s->program;
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i];
        bool within = h->in_place || (h->offset <= s->persistent_nbytes &&
                                      h->nbytes <= s->persistent_nbytes - h->offset); /* a plan may have failed */
        if (h->kind == kind && within && strcmp(h->name, name) == 0) return h;
    }
    return NULL;
}

const inv_storage *inv_session_storage(const inv_session *s, const char *name)
{
    return inv_session_persistent(s, INV_STORAGE_PARAM, name);
}

bool inv_program_changes(const inv_program *p, const inv_storage *h)
{
    const inv_plan *main = &p->plan[INV_PLAN_MAIN];
    bool changes = h->trainable;
    for (size_t i = 0; i < main->state.n && !changes; i++) changes = strcmp(main->state.at[i].name, h->name) == 0;
    return changes;
}

inv_status inv_session_moved(inv_session *s, const inv_storage *h, bool *moved)
{
    *moved = false;
    if (h->kind != INV_STORAGE_PARAM || !h->touched || h->in_place || inv_program_changes(s->program, h)) return INV_OK;
    char *is = inv_alloc(s->ctx, 2 * h->nbytes + 1), *was = is ? is + h->nbytes : NULL;
    if (!is) return INV_E_NOMEM;
    const inv_status st = s->device->download(s->self, is, s->persistent + h->offset, h->nbytes);
    const bool fits = inv_convert(was, h->dtype, h->data.bytes, h->data.dtype, (size_t)inv_shape_nelem(&h->shape));
    *moved = st == INV_OK && (!fits || memcmp(is, was, h->nbytes) != 0);
    inv_dealloc(s->ctx, is);
    return st;
}

/* The initializer that `name` follows, transposed (passes/front/tied_weights.c); NULL: none. */
const inv_storage *inv_session_master(const inv_session *s, const char *name)
{
    const inv_program *p = s->program;
    for (size_t i = 0; i < p->tie.n; i++)
        if (!strcmp(inv_val(p->source, p->tie.at[i].copy)->name, name))
            return inv_session_storage(s, inv_val(p->source, p->tie.at[i].master)->name);
    return NULL;
}

/* An initializer that nothing reads at run time, or that was computed with before: as the model has it. */
static const inv_value *initializer_named(const inv_session *s, const char *name)
{
    const inv_graph *g = s->program->source;
    for (size_t i = 0; i < g->inits.n; i++)
        if (strcmp(inv_val(g, g->inits.at[i])->name, name) == 0) return inv_val(g, g->inits.at[i]);
    return NULL;
}

static inv_status no_such_initializer(const inv_session *s, const char *name)
{
    const inv_graph *g = s->program->source;
    inv_near near = inv_near_to(name);
    for (size_t i = 0; i < g->inits.n; i++) inv_near_look(&near, inv_val(g, g->inits.at[i])->name);
    return inv_fail(s->ctx, INV_E_ARG, "there is no initializer '%s'" INV_NEAR_FORMAT, name, INV_NEAR_ARGS(near));
}

static inv_status no_such_state(const inv_session *s, const char *name)
{
    inv_near near = inv_near_to(name);
    for (size_t i = 0; i < s->program->storage.n; i++)
        if (s->program->storage.at[i].kind == INV_STORAGE_OPTIM) inv_near_look(&near, s->program->storage.at[i].name);
    return inv_fail(s->ctx, INV_E_ARG, "the optimizer has no state '%s'" INV_NEAR_FORMAT, name, INV_NEAR_ARGS(near));
}

static inv_status fetch_unused(inv_session *s, const char *name, inv_dtype *dtype, const inv_shape **shape)
{
    const inv_value *v = initializer_named(s, name);
    if (!v) return no_such_initializer(s, name);
    INV_CHECK(has_numbers(v), s->ctx, INV_E_UNSUPPORTED_TYPE, "initializer '%s' of type %s is carried along, not read",
              name, inv_dtype_name(v->dtype));
    const inv_data *d = &v->data;
    size_t nbytes = 0;
    *dtype = inv_dtype_is_float(d->dtype) ? newest_plan(s)->g->real : d->dtype;
    *shape = &d->shape;
    (void)inv_shape_nbytes(&d->shape, *dtype, &nbytes);
    INV_TRY(inv_session_room(s, nbytes));
    INV_CHECK(inv_convert(s->host, *dtype, d->bytes, d->dtype, (size_t)inv_shape_nelem(&d->shape)), s->ctx,
              INV_E_UNSUPPORTED_TYPE, "type %s cannot be converted", inv_dtype_name(d->dtype));
    return INV_OK;
}

static inv_status fetch_tied(inv_session *s, const inv_storage *h, inv_shape *shape)
{
    const size_t rows = (size_t)h->shape.dim[0], columns = (size_t)h->shape.dim[1];
    const void *data;
    *shape = inv_shape_of(2, (int64_t[]){h->shape.dim[1], h->shape.dim[0]});
    void *temp = inv_alloc(s->ctx, h->nbytes ? h->nbytes : 1);
    if (!temp) return INV_E_NOMEM;
    inv_status st = inv_session_fetch(s, s->persistent + h->offset, h->dtype, &h->shape, &data);
    if (st == INV_OK) {
        memcpy(temp, data, h->nbytes);
        inv_transpose(s->host, temp, rows, columns, inv_dtype_size(h->dtype));
    }
    inv_dealloc(s->ctx, temp);
    return st;
}

static void give_value(const inv_session *s, const inv_shape *shape, const void **data, int *rank, int64_t *dims)
{
    *data = s->host;
    *rank = shape->rank;
    memcpy(dims, shape->dim, (size_t)shape->rank * sizeof *dims);
}

/* What lies in the memory of the session. */
typedef struct located {
    const void *address; /* NULL: it has to be made */
    inv_dtype dtype;
    const inv_shape *shape;
    bool persists;
} located;

static void found(const inv_session *s, const inv_storage *h, located *at)
{
    *at = (located){inv_storage_address(s, h), h->dtype, &h->shape, !h->in_place};
}

/* Where the session holds an accumulated gradient. */
static const inv_storage *accumulated(const inv_session *s, const inv_plan *p, const inv_result_slot *slot)
{
    return inv_session_persistent(s, INV_STORAGE_GRAD, inv_val(p->g, slot->value)->name);
}

static inv_status locate_result(inv_session *s, inv_what what, const char *name, located *at)
{
    const inv_plan *p = plan_with(s, what);
    INV_TRY(inv_session_whole(s));
    INV_CHECK(s->newest >= 0, s->ctx, INV_E_ARG,
              "nothing has been run yet, or since the modes were changed, so there is nothing to read");
    size_t n, i = 0;
    const inv_result_slot *slot = slots(p, what, &n);
    while (i < n && strcmp(slot[i].name, name) != 0) i++;
    INV_CHECK(i < n, s->ctx, INV_E_ARG, "'%s' is not among the results of this kind", name);
    const inv_value *v = inv_val(p->g, slot[i].value);
    INV_CHECK(is_kept(p, &slot[i]), s->ctx, INV_E_ARG, "'%s' is not kept by a session with an optimizer", name);
    *at = (located){inv_value_address(s, v), v->dtype, &v->shape,
                    v->role != INV_ROLE_NODE && accumulated(s, p, &slot[i])};
    return INV_OK;
}

/* Finds what can be read, or written by who gets its address. Initializers outside the session's memory have none. */
static inv_status locate(inv_session *s, inv_what what, const char *name, bool own, located *at)
{
    INV_GIVEN(s->ctx, name);
    INV_CHECK((unsigned)what <= INV_GET_OPTIM, s->ctx, INV_E_ARG, "what is %d: tensors are of 0 to %d", (int)what,
              INV_GET_OPTIM);
    INV_CHECK(s->persistent, s->ctx, INV_E_ARG, "this session was made for planning only");
    *at = (located){0};
    if (what != INV_GET_OPTIM && what != INV_GET_PARAM && what != INV_GET_HELD) return locate_result(s, what, name, at);
    const bool state = what == INV_GET_OPTIM;
    const inv_storage *h = inv_session_persistent(s, state ? INV_STORAGE_OPTIM : INV_STORAGE_PARAM, name);
    if (h && state) INV_TRY(inv_session_average_place(s, own, &h));
    if (h) found(s, h, at);
    else if (state) return no_such_state(s, name);
    INV_CHECK(h || what == INV_GET_PARAM, s->ctx, INV_E_ARG, "'%s' is not in the session's memory", name);
    return INV_OK;
}

inv_status inv_session_view(inv_session *s, inv_what what, const char *name, inv_view *view)
{
    INV_OBJECT(s);
    located at;
    INV_GIVEN(s->ctx, view);
    *view = (inv_view){0};
    INV_CHECK(!s->device || s->device->host, s->ctx, INV_E_ARG,
              "the memory of device '%s' cannot be looked at: inv_session_get copies", s->device->name);
    INV_TRY(locate(s, what, name, true, &at));
    if (!at.address && !initializer_named(s, name)) return no_such_initializer(s, name);
    INV_CHECK(at.address, s->ctx, INV_E_ARG, "initializer '%s' is not in the session's memory: nothing reads it there",
              name);
    *view = (inv_view){(void *)(uintptr_t)at.address, at.dtype, at.shape->rank, {0}, at.persists};
    memcpy(view->dims, at.shape->dim, (size_t)at.shape->rank * sizeof *view->dims);
    s->lent[at.persists] = true;
    if (at.persists && what == INV_GET_PARAM) inv_program_param(s->program, name)->touched = true;
    return INV_OK;
}

/* An initializer that is not in the session's memory: it follows another, or is as the model has it. */
static inv_status make_value(inv_session *s, const char *name, const void **data, inv_dtype *dtype, int *rank,
                             int64_t *dims)
{
    const inv_storage *master = inv_session_master(s, name);
    inv_shape turned;
    const inv_shape *shape = &turned;
    if (master) *dtype = master->dtype;
    INV_TRY(master ? fetch_tied(s, master, &turned) : fetch_unused(s, name, dtype, &shape));
    give_value(s, shape, data, rank, dims);
    return INV_OK;
}

inv_status inv_session_get(inv_session *s, inv_what what, const char *name, const void **data, inv_dtype *dtype,
                           int *rank, int64_t *dims)
{
    INV_OBJECT(s);
    located at;
    INV_GIVEN(s->ctx, data);
    INV_GIVEN(s->ctx, dtype);
    INV_GIVEN(s->ctx, rank);
    INV_GIVEN(s->ctx, dims);
    *data = NULL;
    *rank = 0;
    *dtype = INV_DT_NONE;
    INV_TRY(locate(s, what, name, false, &at));
    if (!at.address) return make_value(s, name, data, dtype, rank, dims);
    *dtype = at.dtype;
    INV_TRY(inv_session_fetch(s, at.address, at.dtype, at.shape, data));
    give_value(s, at.shape, data, rank, dims);
    return INV_OK;
}

/* Overwrites what is stored there. `turned`: the data are of its transpose. */
static inv_status store(inv_session *s, const inv_storage *h, bool turned, inv_dtype dtype, const void *data, size_t n)
{
    INV_CHECK((size_t)inv_shape_nelem(&h->shape) == n, s->ctx, INV_E_SHAPE, "'%s' has %lld elements, got %zu", h->name,
              (long long)inv_shape_nelem(&h->shape), n);
    char *temp = inv_alloc(s->ctx, 2 * h->nbytes + 1), *back = temp ? temp + h->nbytes : NULL;
    if (!temp) return INV_E_NOMEM;
    const bool fits = inv_convert(temp, h->dtype, data, dtype, n);
    if (fits && turned)
        inv_transpose(back, temp, (size_t)h->shape.dim[1], (size_t)h->shape.dim[0], inv_dtype_size(h->dtype));
    inv_status st = fits
                        ? s->device->upload(s->self, s->persistent + h->offset, turned ? back : temp, h->nbytes)
                        : inv_fail(s->ctx, INV_E_UNSUPPORTED_TYPE, "dtype is %d (%s): such numbers cannot be converted",
                                   (int)dtype, inv_dtype_name(dtype));
    inv_dealloc(s->ctx, temp);
    return st;
}

static inv_status set_param(inv_session *s, const char *name, inv_dtype dtype, const void *data, size_t n)
{
    const inv_storage *h = inv_session_storage(s, name);
    const bool tied = !h && (h = inv_session_master(s, name)) != NULL;
    if (!h && !initializer_named(s, name)) return no_such_initializer(s, name);
    INV_CHECK(h, s->ctx, INV_E_ARG, "initializer '%s' is not used at run time", name);
    INV_CHECK(!h->in_place, s->ctx, INV_E_ARG,
              "initializer '%s' cannot be set: it is not trained, so the session reads it from the model's file. "
              "Train it ({train_only}), or load a model with other values",
              name);
    inv_program_param(s->program, h->name)->touched = true;
    return store(s, h, tied, dtype, data, n);
}

static inv_status set_gradient(inv_session *s, const char *name, inv_dtype dtype, const void *data, size_t n)
{
    INV_CHECK(s->program->options.accumulate, s->ctx, INV_E_ARG,
              "gradients persist, and can be set, only in sessions with {accumulate}");
    const inv_plan *p = &s->program->plan[INV_PLAN_UPDATE];
    size_t i = 0;
    while (i < p->grad.n && strcmp(p->grad.at[i].name, name) != 0) i++;
    INV_CHECK(i < p->grad.n, s->ctx, INV_E_ARG, "'%s' has no gradient", name);
    const inv_storage *h = accumulated(s, p, &p->grad.at[i]);
    INV_CHECK(h, s->ctx, INV_E_INTERNAL, "the gradient of '%s' is stored nowhere", name);
    return store(s, h, false, dtype, data, n);
}

inv_status inv_session_set(inv_session *s, inv_what what, const char *name, inv_dtype dtype, const void *data, size_t n)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, name);
    INV_CHECK(data || !n, s->ctx, INV_E_ARG, "data is NULL: it has to be given, of %zu elements", n);
    INV_CHECK(s->persistent, s->ctx, INV_E_ARG, "this session was made for planning only");
    INV_TRY(inv_session_settle(s));
    s->halfway = false;
    const inv_storage *h, *state;
    switch (what) {
    case INV_GET_PARAM: return set_param(s, name, dtype, data, n);
    case INV_GET_GRAD: return set_gradient(s, name, dtype, data, n);
    case INV_GET_OPTIM:
        h = state = inv_session_persistent(s, INV_STORAGE_OPTIM, name);
        if (!h) return no_such_state(s, name);
        INV_TRY(inv_session_average_place(s, true, &h));
        INV_TRY(store(s, h, false, dtype, data, n));
        inv_session_average_was_set(s, state);
        return INV_OK;
    case INV_GET_OUTPUT:
    case INV_GET_LOSS_OUTPUT:
    case INV_GET_INPUT_GRAD:
    case INV_GET_STATE:
    case INV_GET_HELD: break;
    }
    return inv_fail(s->ctx, INV_E_ARG, "parameters, accumulated gradients and optimizer state can be set, not what %d",
                    (int)what);
}

inv_status inv_session_set_param(inv_session *s, const char *name, inv_dtype dtype, const void *data, size_t n)
{
    return inv_session_set(s, INV_GET_PARAM, name, dtype, data, n);
}

uint64_t inv_session_steps(const inv_session *s) { return s ? s->steps : 0; }
