/* SPDX-License-Identifier: Apache-2.0
 * Averages of weights in the place of the weights, and back. */
#include <string.h>

#include "core/mem.h"
#include "executor/executor.h"

static inv_status swap_storage(inv_session *s, const inv_storage *a, const inv_storage *b)
{
    unsigned char *x = s->persistent + a->offset, *y = s->persistent + b->offset;
    char *temp = inv__alloc(s->ctx, 2 * a->nbytes + 1);
    if (!temp) return INV_E_NOMEM;
    inv_status st = s->device->download(s->self, temp, x, a->nbytes);
    if (st == INV_OK) st = s->device->download(s->self, temp + a->nbytes, y, a->nbytes);
    if (st == INV_OK) st = s->device->upload(s->self, x, temp + a->nbytes, a->nbytes);
    if (st == INV_OK) st = s->device->upload(s->self, y, temp, a->nbytes);
    inv__free(s->ctx, temp);
    return st;
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

inv_status inv_session_use_average(inv_session *s, bool average)
{
    const inv_program *p = s->program;
    INV_TRY(inv_session_whole(s));
    INV_CHECK(p->options.average && s->persistent, s->ctx, INV_E_ARG,
              "this session keeps no averages of weights: it was made without {average}");
    if (s->averages == average) return INV_OK;
    INV_TRY(inv_session_settle(s));
    const bool swaps = average ? s->steps > 0 : s->swapped;
    for (size_t i = 0; i < p->storage.n && swaps; i++) {
        const inv_storage *w = &p->storage.at[i];
        const inv_storage *of = w->kind == INV_STORAGE_PARAM && w->trainable ? average_of(p, w) : NULL;
        const inv_status st = of ? swap_storage(s, w, of) : INV_OK;
        if (st != INV_OK) s->lost = "weights and averages have changed places in part only";
        INV_TRY(st);
    }
    s->averages = average;
    s->swapped = average && swaps;
    return INV_OK;
}
