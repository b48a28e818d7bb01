/* SPDX-License-Identifier: Apache-2.0
 * Elements of trained parameters that stay as they are: zeros that a mask has left in a weight, rows of a table. Their
 * gradients are zero (passes/autodiff/hold.c), so no optimizer has a reason to move them; what weight decay moves in
 * spite of that is put back (ops/train/hold_rows.c). */
#ifndef INV_CORE_HELD_H
#define INV_CORE_HELD_H

#include "core/graph/ir.h"

typedef enum inv_held_why {
    INV_HELD_ASKED,   /* by the caller's hold_zeros or hold_rows */
    INV_HELD_MASKED,  /* the exporter has multiplied a parameter with a mask */
    INV_HELD_PADDING, /* the row of padding of a table */
    INV_HELD_REASONS
} inv_held_why;

typedef struct inv_held {
    inv_data data;      /* of the parameter in the file */
    bool zeros;         /* all elements that are zero ... */
    const int64_t *row; /* ... and these along axis 0, in order */
    size_t nrow;
    int64_t elements;
    bool moves; /* some are not zero: weight decay would move them */
    inv_held_why why;
} inv_held;

/* In words, as in "120 zeros: WORDS". */
const char *inv_held_text(inv_held_why why);

/* Per value of an imported graph: what is held of it; NULL: nothing. `untrained`: inv_trained_find's. What options name
 * has to be there. o: NULL: none. */
inv_status inv_held_find(const inv_graph *g, const inv_session_options *o, const uint8_t *untrained, inv_arena *a,
                         const inv_held ***out);
/* Whether element i of the parameter is held. */
bool inv_held_element(const inv_held *h, int64_t i);

#endif
