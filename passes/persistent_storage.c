/* SPDX-License-Identifier: Apache-2.0
 * The persistent region that the plans of a program share: parameters, optimizer state, constants. Each has one home,
 * whichever plans read it; equal constants have one together.
 * gives: program->home, program->persistent, offsets of what nodes do not compute. */
#include <string.h>

#include "passes/pipeline.h"

/* Positions + 1 in program->home by hash, open addressing; 0: empty. */
struct inv_home_index {
    uint32_t *slot;
    size_t nslot, n; /* nslot: power of two; n: homes that are in it */
};

static inv_home_kind kind_of(const inv_value *v)
{
    return v->role == INV_ROLE_PARAM ? INV_HOME_PARAM : v->role == INV_ROLE_OPTIM ? INV_HOME_OPTIM : INV_HOME_CONST;
}

/* Of what tells homes apart; of a constant's contents, the beginning. */
static uint64_t hash_of(inv_home_kind kind, const char *name, const inv_data *data)
{
    enum { BEGINNING = 256 };
    if (kind != INV_HOME_CONST) return inv__hash(name, strlen(name), kind);
    return inv__hash(data->bytes, data->nbytes < BEGINNING ? data->nbytes : BEGINNING, data->nbytes);
}

static bool same_home(const inv_home *h, const inv_value *v)
{
    if (h->kind != kind_of(v)) return false;
    if (h->kind != INV_HOME_CONST) return strcmp(h->name, v->name) == 0;
    return h->dtype == v->dtype && inv_shape_equal(&h->shape, &v->shape) && h->data.nbytes == v->data.nbytes &&
           memcmp(h->data.bytes, v->data.bytes, v->data.nbytes) == 0;
}

static void insert(struct inv_home_index *x, uint64_t hash, uint32_t at)
{
    size_t i = hash & (x->nslot - 1);
    while (x->slot[i]) i = (i + 1) & (x->nslot - 1);
    x->slot[i] = at + 1;
    x->n = at + 1;
}

/* Room for one more; made anew where homes have been given up since (when planning again has failed). */
static bool renew(inv_program *p)
{
    struct inv_home_index *x = p->home_index;
    if (x && x->n == p->home.n && 2 * (x->n + 1) <= x->nslot) return true;
    size_t nslot = 64;
    while (nslot < 4 * (p->home.n + 1)) nslot *= 2;
    x = INV_ARENA_NEW(&p->arena, struct inv_home_index, 1);
    if (!x || !(x->slot = INV_ARENA_NEW(&p->arena, uint32_t, nslot))) return false;
    x->nslot = nslot;
    for (uint32_t i = 0; i < p->home.n; i++) {
        const inv_home *h = &p->home.at[i];
        insert(x, hash_of(h->kind, h->name, &h->data), i);
    }
    p->home_index = x;
    return true;
}

static const inv_home *find(const inv_program *p, const inv_value *v, uint64_t hash)
{
    const struct inv_home_index *x = p->home_index;
    for (size_t i = hash & (x->nslot - 1); x->slot[i]; i = (i + 1) & (x->nslot - 1))
        if (same_home(&p->home.at[x->slot[i] - 1], v)) return &p->home.at[x->slot[i] - 1];
    return NULL;
}

static inv_status new_home(inv_program *p, const inv_value *v, size_t nbytes)
{
    inv_home h = {.kind = (uint8_t)kind_of(v),
                  .dtype = v->dtype,
                  .shape = v->shape,
                  .offset = p->persistent,
                  .nbytes = nbytes,
                  .init = v->init,
                  .trainable = v->trainable};
    h.name = inv__arena_strdup(&p->arena, v->name);
    h.data = v->data;
    if (h.kind == INV_HOME_OPTIM) {
        h.which = (uint32_t)v->data.nbytes;
        h.data = (inv_data){0};
    } else if (h.kind == INV_HOME_CONST) { /* the plan's graph may go, the home stays */
        void *copy = inv__arena_alloc(&p->arena, v->data.nbytes + 1);
        if (!copy) return INV_E_NOMEM;
        memcpy(copy, v->data.bytes, v->data.nbytes);
        h.data.bytes = copy;
    }
    if (!h.name || !inv_vec_push(&p->arena, &p->home, h)) return INV_E_NOMEM;
    return inv__add_size(p->persistent, inv__round64(nbytes), &p->persistent)
               ? INV_OK
               : inv__fail(p->ctx, INV_E_NOMEM, "the parameters are too large to address");
}

static inv_status house_value(inv_program *p, inv_value *v)
{
    size_t nbytes = 0;
    if (!inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
        return inv__fail(p->ctx, INV_E_SHAPE, "'%s' is too large to address", v->name);
    if (!renew(p)) return INV_E_NOMEM;
    const uint64_t hash = hash_of(kind_of(v), v->name, &v->data);
    const inv_home *h = find(p, v, hash);
    if (!h) {
        INV_TRY(new_home(p, v, nbytes));
        h = &p->home.at[p->home.n - 1];
        insert(p->home_index, hash, (uint32_t)p->home.n - 1);
    }
    v->offset = h->offset;
    return INV_OK;
}

inv_status inv_house(inv_program *p, inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE && inv_val(g, n->in[k])->role != INV_ROLE_NODE)
                INV_TRY(house_value(p, inv_val(g, n->in[k])));
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (inv_val(g, g->outputs.at[i])->role != INV_ROLE_NODE) INV_TRY(house_value(p, inv_val(g, g->outputs.at[i])));
    return INV_OK;
}
