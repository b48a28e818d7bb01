/* SPDX-License-Identifier: Apache-2.0
 * Going on from a state (session_state.h says what is in it). */
#include <string.h>

#include "executor/run/agree.h"
#include "executor/session/session_state.h"

/* Where the tensor is that belongs there. */
static inv_status find_tensor(const inv_state_file *f, const inv_storage *h, uint64_t *at)
{
    const json_t *row = json_object_get(f->header, h->name), *shape = json_object_get(row, "shape");
    const char *type = json_string_value(json_object_get(row, "dtype"));
    char wanted[INV_SHAPE_TEXT];
    INV_CHECK(row, f->ctx, INV_E_ARG,
              "'%s' has no '%s', which this training needs. It is of another model or optimizer, or other parameters "
              "were trained",
              f->path, h->name);
    const inv_shape *whole = inv_state_shape(h);
    bool same = type && !strcmp(type, inv_state_type(h->dtype)) && (int)json_array_size(shape) == whole->rank;
    for (int d = 0; d < whole->rank && same; d++)
        same = json_integer_value(json_array_get(shape, (size_t)d)) == whole->dim[d];
    INV_CHECK(same, f->ctx, INV_E_SHAPE, "'%s' of '%s' is not %s%s, as this training keeps it", h->name, f->path,
              inv_dtype_name(h->dtype), inv_shape_text(whole, wanted));
    uint64_t from, nbytes;
    if (!inv_state_place(f, row, &from, &nbytes) ||
        nbytes != (uint64_t)inv_shape_nelem(whole) * inv_dtype_size(h->dtype))
        return inv_state_unreadable(f, "a tensor has another number of bytes than its shape");
    *at = f->data + from;
    return INV_OK;
}

/* Moves on from where the tensor is in the file to what this rank keeps of it; the bytes of that. */
static size_t own_place(const inv_session *s, const inv_storage *h, uint64_t *at)
{
    if (!h->shared) return h->nbytes;
    const int64_t length = inv_shape_nelem(&h->shape), rank = inv_world_rank(inv_ranks_world(s));
    const size_t size = inv_dtype_size(h->dtype);
    *at += (uint64_t)(rank * length) * size;
    return (size_t)inv_part_count(inv_shape_nelem(&h->whole), length, rank) * size;
}

/* Whether the state has what is kept there. `moved`: what was frozen, and not as the model has it. */
static bool is_in_state(const inv_program *p, const json_t *moved, const inv_storage *h)
{
    if (h->kind == INV_STORAGE_OPTIM || (h->kind == INV_STORAGE_PARAM && inv_program_changes(p, h))) return true;
    bool any = false;
    for (size_t i = 0; i < json_array_size(moved) && h->kind == INV_STORAGE_PARAM && !any; i++)
        any = !strcmp(json_string_value(json_array_get(moved, i)), h->name);
    return any;
}

/* The file has everything that the training has, and no more. */
static inv_status check_tensors(const inv_program *p, const inv_state_file *f, const json_t *moved)
{
    size_t n = 0;
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i];
        uint64_t at;
        if (!is_in_state(p, moved, h)) continue;
        n++;
        INV_TRY(find_tensor(f, h, &at));
        INV_CHECK(!h->in_place, f->ctx, INV_E_ARG,
                  "'%s' has other elements of '%s' than the model that this training reads. Save the model with "
                  "them, and continue with that",
                  f->path, h->name);
    }
    INV_CHECK(n + 1 >= json_object_size(f->header), f->ctx, INV_E_ARG,
              "'%s' has %zu tensors, this training needs %zu: it is of another model or another optimizer", f->path,
              json_object_size(f->header) - 1, n);
    return INV_OK;
}

/* What the state does not have is as the model has it. `room`: of make_room. */
static inv_status read_tensors(inv_session *s, const inv_state_file *f, const json_t *moved, void *room)
{
    for (size_t i = 0; i < s->program->storage.n; i++) {
        inv_storage *h = &s->program->storage.at[i];
        uint64_t at = 0;
        if (!is_in_state(s->program, moved, h)) {
            if (h->touched && !h->in_place) INV_TRY(inv_session_fill(s, h));
            continue;
        }
        h->touched = true;
        INV_TRY(find_tensor(f, h, &at));
        unsigned char *to = s->persistent + h->offset, *temp = s->device->host ? to : room;
        const size_t kept = own_place(s, h, &at);
        INV_TRY(inv_state_bytes(f, at, temp, kept));
        memset(temp + kept, 0, h->nbytes - kept);
        if (temp != to) INV_TRY(s->device->upload(s->self, to, temp, h->nbytes));
    }
    return INV_OK;
}

static bool all_have_names(const json_t *list)
{
    bool all = json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++)
        all = all && json_is_string(json_object_get(json_array_get(list, i), "name"));
    return all;
}

static bool all_are_texts(const json_t *list)
{
    bool all = true;
    for (size_t i = 0; i < json_array_size(list); i++) all = all && json_is_string(json_array_get(list, i));
    return all;
}

/* All of them, in place of those that there were, or nothing. */
static inv_status read_rejected(inv_program *p, const json_t *list)
{
    const size_t before = p->checkpoint.n;
    const json_t *entry;
    size_t i;
    json_array_foreach(list, i, entry)
    {
        const inv_status st = inv_program_reject(p, json_string_value(json_object_get(entry, "name")),
                                                 json_is_true(json_object_get(entry, "derived")));
        if (st != INV_OK) p->checkpoint.n = before;
        INV_TRY(st);
    }
    p->checkpoint.n -= before;
    if (p->checkpoint.n)
        memmove(p->checkpoint.at, p->checkpoint.at + before, p->checkpoint.n * sizeof *p->checkpoint.at);
    return INV_OK;
}

/* What the metadata say in JSON. `out` is for json_decref in any case. States of earlier versions have no "batches" and
 * no "moved". */
static inv_status parse_numbers(const inv_state_file *f, json_t **out)
{
    static const char *const keys[] = {"step", "seed", "groups", "rejected", "batches", "moved"};
    json_t *numbers = *out = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        (void)json_object_set_new(numbers, keys[i], inv_state_parsed(f, keys[i]));
    const json_t *step = json_object_get(numbers, "step");
    if (!json_is_integer(step) || json_integer_value(step) < 0 || !json_is_integer(json_object_get(numbers, "seed")) ||
        !all_have_names(json_object_get(numbers, "rejected")) || !all_are_texts(json_object_get(numbers, "moved")))
        return inv_state_unreadable(f, "its metadata are incomplete");
    return INV_OK;
}

static uint64_t number_of(const json_t *numbers, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(numbers, key));
}

static void take_numbers(inv_session *s, const json_t *numbers)
{
    const json_t *groups = json_object_get(numbers, "groups");
    if (json_array_size(groups) == s->program->options.ngroups)
        for (size_t i = 0; i < json_array_size(groups); i++)
            s->step.group_lr[i + 1] = json_real_value(json_array_get(groups, i));
    s->step.seed = number_of(numbers, "seed");
    s->step.mixed = number_of(numbers, json_is_integer(json_object_get(numbers, "batches")) ? "batches" : "step");
    inv_session_set_step(s, number_of(numbers, "step"), 0);
    s->averaged = true;
}

/* What is frozen is what the state was saved beside. States of earlier versions do not say. */
static inv_status check_frozen(const inv_program *p, const inv_state_file *f)
{
    json_t *saved = inv_state_parsed(f, "frozen"), *here = inv_state_frozen(p), *print;
    const char *name;
    inv_status st = here ? INV_OK : INV_E_NOMEM;
    json_object_foreach(here, name, print)
    {
        const json_t *was = json_object_get(saved, name);
        if (st != INV_OK || !was || json_equal(was, print)) continue;
        st = inv_fail(f->ctx, INV_E_ARG,
                      "'%s' was saved when the frozen '%s' had other elements. The model '%s' has changed since, or "
                      "is another one",
                      f->path, name, p->model->path);
    }
    json_decref(saved);
    json_decref(here);
    return st;
}

/* Room for any tensor of a state, where it cannot be read to its place. */
static inv_status make_room(const inv_session *s, const inv_program *p, void **room)
{
    size_t most = 0;
    for (size_t i = 0; i < p->storage.n; i++)
        if (!p->storage.at[i].in_place && p->storage.at[i].nbytes > most) most = p->storage.at[i].nbytes;
    if (s->device->host) return INV_OK;
    *room = inv_alloc(s->ctx, most + 1);
    return *room ? INV_OK : INV_E_NOMEM;
}

/* The session is planned for the stage of the state, if the state fits and there is room to read it. */
static inv_status enter_its_stage(inv_session *s, const inv_state_file *f, const json_t *numbers, void **room)
{
    inv_program *fresh;
    INV_TRY(inv_stages_program(s, number_of(numbers, "step"), &fresh));
    inv_program *p = fresh ? fresh : s->program;
    inv_status st = check_frozen(p, f);
    if (st == INV_OK) st = check_tensors(p, f, json_object_get(numbers, "moved"));
    if (st == INV_OK) st = make_room(s, p, room);
    if (st == INV_OK) st = read_rejected(p, json_object_get(numbers, "rejected"));
    if (st == INV_OK && fresh) return inv_session_take_program(s, fresh);
    if (fresh) fresh->destroy(fresh);
    return st;
}

/* A file of a rank's own, which is whole, or no rank goes on. */
static inv_status open_together(inv_session *s, const char *path, inv_state_file *f)
{
    const inv_status st = inv_state_open(s->ctx, path, f);
    if (!inv_ranks_world(s)) return st;
    return inv_state_agree(s, st, "the begin of reading a state", "read the state of the training");
}

static inv_status load_state(inv_session *s, const inv_state_file *f, const json_t *numbers)
{
    void *room = NULL;
    inv_status st = enter_its_stage(s, f, numbers, &room);
    if (st == INV_OK) {
        take_numbers(s, numbers);
        st = read_tensors(s, f, json_object_get(numbers, "moved"), room);
        if (st != INV_OK) s->lost = "a state of the training was read in part only";
    }
    inv_dealloc(s->ctx, room);
    return st;
}

inv_status inv_session_load_state(inv_session *s, const char *path, char **note)
{
    INV_OBJECT(s);
    inv_state_file f;
    json_t *numbers = NULL;
    if (note) *note = NULL;
    INV_TRY(inv_session_whole(s));
    INV_TRY(inv_state_may(s));
    INV_TRY(inv_session_settle(s));
    inv_status st = open_together(s, path, &f);
    if (st == INV_OK) st = parse_numbers(&f, &numbers);
    if (st == INV_OK) st = inv_state_copy(&f, "note", note);
    if (st == INV_OK) st = load_state(s, &f, numbers);
    json_decref(numbers);
    inv_state_close(&f);
    if (st == INV_OK) st = inv_ranks_agree(s);
    if (st != INV_OK && note) {
        inv_dealloc(s->ctx, *note);
        *note = NULL;
    }
    return st;
}
