/* SPDX-License-Identifier: Apache-2.0
 * Private to what writes inverses: that they hold for every batch (batches.c). */
#ifndef INV_PASSES_BATCHES_H
#define INV_PASSES_BATCHES_H

#include "core/outline.h"

typedef struct inv_batch_job {
    inv_context *ctx;
    const inv_graph *source;
    inv_status (*make)(const struct inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out);
    /* What to do where the two differ: fail, or make the first one, whose shapes these are, in another way. */
    inv_status (*settle)(const struct inv_batch_job *job, const inv_session_options *shapes, inv_rewriting *made[2]);
    /* What to say of one that may hold for the given extents of other axes alone, which like the batch are larger in
     * `wide`. NULL: nothing. */
    inv_status (*narrow)(const struct inv_batch_job *job, const inv_session_options *wide, inv_rewriting *made);
    const inv_reverse_options *options; /* of an inverse direction ... */
    bool in_memory;                     /* ... and whether it is one for inv_model_reverse */
} inv_batch_job;

/* What `make` gives, settled for two batches; for `shapes` where no batch is open, or the model takes no other. */
inv_status inv_for_every_batch(const inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out);

/* Whether two attributes of new nodes say the same. */
bool inv_attr_same(const inv_attr *a, const inv_attr *b);

#endif
