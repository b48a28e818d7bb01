/* SPDX-License-Identifier: Apache-2.0
 * Offsets for live intervals (place.c). */
#ifndef INV_PASSES_SCHEDULE_PLACE_H
#define INV_PASSES_SCHEDULE_PLACE_H

#include "core/base/mem.h"

enum { INV_PLACE_ALIGN = 64 };

/* Bytes that are live for some time. */
typedef struct inv_box {
    size_t nbytes, offset; /* bytes; a multiple of INV_PLACE_ALIGN; the offset is the result */
    uint32_t from, to;     /* live interval, both ends included */
} inv_box;

/* Sets the offsets so that no two boxes that are live at once share a byte. Those that come in may be of a packing
 * of nearly the same boxes, to begin with; else 0. `effort`: up to a fifth of a second each where the boxes do not fit
 * together well, a little more if there are many; more of it never gives a larger arena. It ends where they take no
 * more than `enough` bytes; nothing else hangs on that, so what fits once fits with any `enough` that is no less.
 * *need: end of the highest. INV_E_NOMEM. */
inv_status inv_place(inv_context *ctx, inv_box *box, size_t n, unsigned effort, size_t enough, size_t *need);

#endif
