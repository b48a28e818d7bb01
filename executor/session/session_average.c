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

/* Whether h is the average of a trained weight w. The name may go on, if the model has an initializer of that name. */
static bool averages(const inv_storage *h, const inv_storage *w)
{
    static const char tail[] = "/" INV_STATE_AVERAGE;
    if (h->kind != INV_STORAGE_OPTIM || w->kind != INV_STORAGE_PARAM || !w->trainable || h->init != w->init)
        return false;
    const size_t n = strlen(w->name);
    return strncmp(h->name, w->name, n) == 0 && strncmp(h->name + n, tail, sizeof tail - 1) == 0;
}

/* NULL: h is no average. */
static const inv_storage *weight_of(const inv_program *p, const inv_storage *h)
{
    for (size_t i = 0; i < p->storage.n && p->options.average; i++)
        if (averages(h, &p->storage.at[i])) return &p->storage.at[i];
    return NULL;
}

inv_status inv_session_begin_averages(inv_session *s)
{
    const inv_program *p = s->program;
    if (!p->options.average || s->averaged) return INV_OK;
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i], *w = weight_of(p, h);
        if (w) INV_TRY(s->device->copy(s->self, s->persistent + h->offset, s->persistent + w->offset, w->nbytes));
    }
    return INV_OK;
}

inv_status inv_session_average_place(inv_session *s, bool own, const inv_storage **h)
{
    const inv_storage *w = weight_of(s->program, *h);
    if (!w) return INV_OK;
    if (own) INV_TRY(inv_session_begin_averages(s));
    /* before anything is averaged the two are equal, so that to change places nothing has to move */
    if (s->averaged ? s->swapped : !own || s->averages) *h = w;
    return INV_OK;
}

void inv_session_average_was_set(inv_session *s, const inv_storage *h)
{
    if (s->averaged || !weight_of(s->program, h)) return;
    s->swapped = s->averages;
    s->averaged = true;
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
        const inv_storage *h = &p->storage.at[i], *w = weight_of(p, h);
        if (w) st = swap_storage(s, w, h, room);
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
