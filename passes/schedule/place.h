/* SPDX-License-Identifier: Apache-2.0
 * Offsets for lifetimes (place.c). */
#ifndef INV_PASSES_SCHEDULE_PLACE_H
#define INV_PASSES_SCHEDULE_PLACE_H

#include "core/mem.h"

enum { INV_PLACE_ALIGN = 64 };

typedef struct inv_box {
    size_t nbytes, offset; /* nbytes: a multiple of the alignment; offset: out */
    uint32_t from, to;     /* when it lives, both included */
} inv_box;

/* Sets the offsets so that no two boxes that live at once share bytes; *need: end of the highest. INV_E_NOMEM. */
inv_status inv_place(inv_context *ctx, inv_box *box, size_t n, size_t *need);

#endif
