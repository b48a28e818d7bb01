/* SPDX-License-Identifier: Apache-2.0
 * A binary heap of records, of which the one with the least key is first (Williams 1964). Put in and taken out in
 * O(log n). */
#ifndef INV_PASSES_PLANNER_HEAP_H
#define INV_PASSES_PLANNER_HEAP_H

#include "core/base/mem.h"

/* Defines a heap type `name` of `record`s, compared by their member `key`; name_push, which returns false if memory has
 * run out; and name_pop, of a heap that is not empty. */
#define INV_HEAP(name, record, key)                                                                     \
    typedef INV_VEC(record) name;                                                                       \
    static bool name##_push(inv_arena *a, name *h, record x)                                            \
    {                                                                                                   \
        if (!inv_vec_push(a, h, x)) return false;                                                       \
        size_t i = h->n - 1;                                                                            \
        for (; i > 0 && h->at[(i - 1) / 2].key > x.key; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2]; \
        h->at[i] = x;                                                                                   \
        return true;                                                                                    \
    }                                                                                                   \
    static record name##_pop(name *h)                                                                   \
    {                                                                                                   \
        const record top = h->at[0], x = h->at[--h->n];                                                 \
        size_t i = 0;                                                                                   \
        for (size_t c = 1; c < h->n; c = 2 * i + 1) {                                                   \
            if (c + 1 < h->n && h->at[c + 1].key < h->at[c].key) c++;                                   \
            if (h->at[c].key >= x.key) break;                                                           \
            h->at[i] = h->at[c];                                                                        \
            i = c;                                                                                      \
        }                                                                                               \
        if (h->n) h->at[i] = x;                                                                         \
        return top;                                                                                     \
    }

#endif
