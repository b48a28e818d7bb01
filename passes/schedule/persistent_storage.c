/* SPDX-License-Identifier: Apache-2.0
 * Storage assignment: where in the arena's persistent region each parameter, optimizer state and constant is. The plans
 * of a program share the region, so a parameter has one storage whichever plans read it, found by its name. Equal
 * constants share one, found by their contents. Sections of a value (inv_value.whole) are where their elements are.
 * Storage is handed out in the order of first use, constants last, and never given back; a hash table makes it O(1) per
 * value. Quantized constants and frozen weights stay in the mapped file: they count, but have no place in the arena.
 * requires: an ordered graph. gives: program->storage, program->persistent, and inv_value.offset of all that the
 * graph's nodes read but none gives.
 */
#include <string.h>

#include "core/program/program.h"
#include "core/weights/trained.h"
#include "passes/schedule/schedule.h"

/* Finds an entry of program->storage by its hash: open addressing, slot = index + 1, or 0 if it is empty. */
struct inv_storage_index {
    uint32_t *slot;
    size_t nslot, n; /* nslot is a power of two; the table holds the first n entries */
};

static inv_storage_kind storage_kind_of(const inv_value *v)
{
    if (v->role == INV_ROLE_OPTIM) return v->mem == INV_MEM_GRAD ? INV_STORAGE_GRAD : INV_STORAGE_OPTIM;
    return v->role == INV_ROLE_PARAM ? INV_STORAGE_PARAM : INV_STORAGE_CONST;
}

/* Hashes what same_storage compares. Of a constant, the first bytes are enough to tell most apart. */
static uint64_t storage_hash(inv_storage_kind kind, const char *name, const inv_data *data)
{
    enum { BEGINNING = 256 };
    if (kind != INV_STORAGE_CONST) return inv_hash(name, strlen(name), kind);
    return inv_hash(data->bytes, data->nbytes < BEGINNING ? data->nbytes : BEGINNING, data->nbytes);
}

static bool same_storage(const inv_storage *s, const inv_value *v)
{
    if (s->kind != storage_kind_of(v)) return false;
    if (s->kind != INV_STORAGE_CONST) return strcmp(s->name, v->name) == 0;
    if (s->dtype != v->dtype || !inv_shape_equal(&s->shape, &v->shape) || s->data.dtype != v->data.dtype ||
        s->data.nbytes != v->data.nbytes || s->in_place != v->in_place)
        return false;
    return s->data.bytes == v->data.bytes || memcmp(s->data.bytes, v->data.bytes, v->data.nbytes) == 0;
}

static void insert_storage(struct inv_storage_index *x, uint64_t hash, uint32_t at)
{
    size_t i = hash & (x->nslot - 1);
    while (x->slot[i]) i = (i + 1) & (x->nslot - 1);
    x->slot[i] = at + 1;
    x->n = at + 1;
}

/* Makes room for one more entry. The table is built anew if entries were taken back since, as after a failed replan. */
static bool renew_storage_index(inv_program *p)
{
    struct inv_storage_index *x = p->storage_index;
    if (x && x->n == p->storage.n && 2 * (x->n + 1) <= x->nslot) return true;
    size_t nslot = 64;
    while (nslot < 4 * (p->storage.n + 1)) nslot *= 2;
    x = INV_ARENA_NEW(&p->arena, struct inv_storage_index, 1);
    if (!x || !(x->slot = INV_ARENA_NEW(&p->arena, uint32_t, nslot))) return false;
    x->nslot = nslot;
    for (uint32_t i = 0; i < p->storage.n; i++) {
        const inv_storage *s = &p->storage.at[i];
        insert_storage(x, storage_hash(s->kind, s->name, &s->data), i);
    }
    p->storage_index = x;
    return true;
}

static const inv_storage *find_storage(const inv_program *p, const inv_value *v, uint64_t hash)
{
    const struct inv_storage_index *x = p->storage_index;
    for (size_t i = hash & (x->nslot - 1); x->slot[i]; i = (i + 1) & (x->nslot - 1))
        if (same_storage(&p->storage.at[x->slot[i] - 1], v)) return &p->storage.at[x->slot[i] - 1];
    return NULL;
}

static inv_status new_storage(inv_program *p, const inv_value *v, size_t nbytes)
{
    inv_storage s = {.kind = (uint8_t)storage_kind_of(v),
                     .dtype = v->dtype,
                     .shape = v->shape,
                     .offset = p->persistent - p->in_place,
                     .in_place = v->in_place,
                     .nbytes = nbytes,
                     .init = v->init,
                     .trainable = v->trainable};
    s.shared = v->shared != NULL;
    if (v->shared) s.whole = *v->shared;
    s.name = inv_arena_strdup(&p->arena, v->name);
    s.data = v->data;
    if (s.kind == INV_STORAGE_CONST && !v->of_model) { /* the constant outlives the graph that brought it */
        void *copy = inv_arena_alloc(&p->arena, v->data.nbytes + 1);
        if (!copy) return INV_E_NOMEM;
        memcpy(copy, v->data.bytes, v->data.nbytes);
        s.data.bytes = copy;
    }
    if (!s.name || !inv_vec_push(&p->arena, &p->storage, s)) return INV_E_NOMEM;
    if (s.in_place) p->in_place += inv_round64(nbytes);
    return inv_add_size(p->persistent, inv_round64(nbytes), &p->persistent)
               ? INV_OK
               : inv_fail(p->ctx, INV_E_NOMEM, "the parameters are too large to address");
}

/* It is trained in another stage, and may come from there with other elements than the file has. */
static bool is_staged(const inv_program *p, const inv_value *v)
{
    const inv_graph *g = p->source;
    return v->init < g->inits.n && inv_trained_from(&p->options, inv_val(g, g->inits.at[v->init])) > 0;
}

/* What kernels of the host read where the model's file is mapped: quantized constants, and large weights that training
 * leaves as they are or that are read a few times; pages of both go back behind those who read them
 * (executor/run/run.c). Elements have to be aligned there, but for rows that are gathered, which are copied. */
static bool reads_in_place(const inv_program *p, const inv_graph *g, const inv_value *v, bool gathered)
{
    enum { LARGE = 1 << 20 };
    if (g->gpu || v->data.dtype != v->dtype) return false;
    if (v->role == INV_ROLE_CONST) return v->of_model && v->dtype == INV_U8;
    const bool aligned = (uintptr_t)v->data.bytes % inv_dtype_size(v->dtype) == 0;
    const inv_session_options *o = &p->options;
    const bool few = o->purpose == INV_FOR_EVAL && o->no_dropout && o->loss == INV_LOSS_NONE; /* inv_forward_options */
    const bool here = gathered || ((g->train || few) && aligned);
    return v->role == INV_ROLE_PARAM && here && !v->trainable && !v->state && v->data.nbytes >= LARGE &&
           !is_staged(p, v);
}

static inv_status assign_value_storage(inv_program *p, const inv_graph *g, inv_value *v, bool gathered)
{
    size_t nbytes = 0;
    if (v->whole != INV_NONE) {
        INV_TRY(assign_value_storage(p, g, inv_val(g, v->whole), false));
        v->offset = inv_val(g, v->whole)->offset + (size_t)v->first * inv_dtype_size(v->dtype);
        return INV_OK;
    }
    if (!inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
        return inv_fail(p->ctx, INV_E_SHAPE, "'%s' is too large to address", v->name);
    if (!renew_storage_index(p)) return INV_E_NOMEM;
    v->in_place = reads_in_place(p, g, v, gathered);
    const uint64_t hash = storage_hash(storage_kind_of(v), v->name, &v->data);
    const inv_storage *s = find_storage(p, v, hash);
    if (!s) {
        INV_TRY(new_storage(p, v, nbytes));
        s = &p->storage.at[p->storage.n - 1];
        insert_storage(p->storage_index, hash, (uint32_t)p->storage.n - 1);
    }
    v->offset = s->offset;
    v->in_place = s->in_place;
    return INV_OK;
}

/* Per value: whether all that reads it gathers rows of it. */
static bool *gathered_values(const inv_graph *g, inv_arena *scratch)
{
    bool *gathered = INV_ARENA_NEW(scratch, bool, g->value.n + 1);
    if (!gathered) return NULL;
    for (size_t v = 0; v < g->value.n; v++) gathered[v] = !inv_val(g, (inv_id)v)->is_output;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = inv_op_is(n, "Gather") ? 1 : 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) gathered[n->in[k]] = false;
    }
    return gathered;
}

static bool is_assigned(const inv_value *v, inv_assign which)
{
    if (v->role == INV_ROLE_NODE) return false;
    return which == INV_ASSIGN_ALL || storage_kind_of(v) != INV_STORAGE_CONST;
}

static inv_status assign_each(inv_program *p, inv_graph *g, inv_assign which, const bool *gathered)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE && is_assigned(inv_val(g, n->in[k]), which))
                INV_TRY(assign_value_storage(p, g, inv_val(g, n->in[k]), gathered[n->in[k]]));
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (is_assigned(inv_val(g, g->outputs.at[i]), which))
            INV_TRY(assign_value_storage(p, g, inv_val(g, g->outputs.at[i]), false));
    return INV_OK;
}

inv_status inv_assign_storage(inv_program *p, inv_graph *g, inv_assign which)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    const bool *gathered = gathered_values(g, &scratch);
    const inv_status s = gathered ? assign_each(p, g, which, gathered) : INV_E_NOMEM;
    inv_arena_fini(&scratch);
    return s;
}

inv_status inv_storage_growth(const inv_program *p, inv_graph *g, size_t *nbytes)
{
    inv_program q = *p;
    inv_arena_init(&q.arena, p->ctx);
    q.storage.cap = p->storage.n; /* what is pushed comes into an array of its own */
    q.storage_index = NULL;
    const inv_status s = inv_assign_storage(&q, g, INV_ASSIGN_ALL);
    *nbytes = q.persistent - p->persistent;
    inv_arena_fini(&q.arena);
    return s;
}
