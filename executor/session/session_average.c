/* SPDX-License-Identifier: Apache-2.0
 * Averages of weights in the place of the weights, and back. */
#include <string.h>

#include "core/base/mem.h"
#include "executor/executor.h"

/* `room`: for both. */
static inv_status swap_storage(inv_session *s, const inv_storage *a, const inv_storage *b, char *room)
{
    unsigned char *x = s->persistent + a->offset, *y = s->persistent + b->offset;
    INV_TRY(s->device->download(s->self, room, x, a->nbytes));
    INV_TRY(s->device->download(s->self, room + a->nbytes, y, a->nbytes));
    INV_TRY(s->device->upload(s->self, x, room + a->nbytes, a->nbytes));
    return s->device->upload(s->self, y, room, a->nbytes);
}

/* The name may have something behind it, where the model has an initializer of that name. */
static const inv_storage *average_of(const inv_program *p, const inv_storage *w)
{
    static const char tail[] = "/" INV_STATE_AVERAGE;
    const size_t n = strlen(w->name);
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i];
        if (h->kind == INV_STORAGE_OPTIM && h->init == w->init && strncmp(h->name, w->name, n) == 0 &&
            strncmp(h->name + n, tail, sizeof tail - 1) == 0)
            return h;
    }
    return NULL;
}

/* NULL: `average` is none. */
static const inv_storage *weight_of(const inv_program *p, const inv_storage *average)
{
    for (size_t i = 0; i < p->storage.n && average->kind == INV_STORAGE_OPTIM; i++) {
        const inv_storage *w = &p->storage.at[i];
        if (w->kind == INV_STORAGE_PARAM && w->trainable && average_of(p, w) == average) return w;
    }
    return NULL;
}

inv_status inv_session_begin_averages(inv_session *s)
{
    const inv_program *p = s->program;
    if (!p->options.average || s->averaged) return INV_OK;
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *w = &p->storage.at[i];
        const inv_storage *of = w->kind == INV_STORAGE_PARAM && w->trainable ? average_of(p, w) : NULL;
        if (of) INV_TRY(s->device->copy(s->self, s->persistent + of->offset, s->persistent + w->offset, w->nbytes));
    }
    return INV_OK;
}

inv_status inv_session_average_place(inv_session *s, bool writes, const inv_storage **h)
{
    const inv_storage *w = s->program->options.average ? weight_of(s->program, *h) : NULL;
    if (!w) return INV_OK;
    if (writes) {
        INV_TRY(inv_session_begin_averages(s));
        if (!s->averaged) s->swapped = s->averages; /* they are equal: nothing has to move */
        s->averaged = true;
    }
    if (s->swapped || !s->averaged) *h = w;
    return INV_OK;
}

/* All of them, or none for lack of memory. */
static inv_status swap_all(inv_session *s)
{
    const inv_program *p = s->program;
    size_t largest = 0;
    for (size_t i = 0; i < p->storage.n; i++)
        if (p->storage.at[i].trainable && p->storage.at[i].nbytes > largest) largest = p->storage.at[i].nbytes;
    char *room = inv_alloc(s->ctx, 2 * largest + 1);
    if (!room) return INV_E_NOMEM;
    inv_status st = INV_OK;
    for (size_t i = 0; i < p->storage.n && st == INV_OK; i++) {
        const inv_storage *w = &p->storage.at[i];
        const inv_storage *of = w->kind == INV_STORAGE_PARAM && w->trainable ? average_of(p, w) : NULL;
        if (of) st = swap_storage(s, w, of, room);
    }
    inv_dealloc(s->ctx, room);
    if (st != INV_OK) s->lost = "weights and averages have changed places in part only";
    return st;
}

inv_status inv_session_use_average(inv_session *s, bool average)
{
    INV_OBJECT(s);
    INV_TRY(inv_session_whole(s));
    INV_CHECK(s->program->options.average && s->persistent, s->ctx, INV_E_ARG,
              "this session keeps no averages of weights: it was made without {average}");
    if (s->averages == average) return INV_OK;
    INV_TRY(inv_session_settle(s));
    const bool swaps = average ? s->averaged : s->swapped;
    if (swaps) INV_TRY(swap_all(s));
    s->averages = average;
    s->swapped = average && swaps;
    return INV_OK;
}
