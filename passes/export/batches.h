/* SPDX-License-Identifier: Apache-2.0
 * Private to what writes inverses: that they hold for every batch and open extent (batches.c). */
#ifndef INV_PASSES_EXPORT_BATCHES_H
#define INV_PASSES_EXPORT_BATCHES_H

#include "core/edits/rewriting.h"

typedef struct inv_batch_job {
    inv_context *ctx;
    const inv_graph *source;
    inv_status (*make)(const struct inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out);
    /* What to do where they differ: fail, or make the first one, whose shapes these are, in another way. made[1]: for
     * another batch; NULL: it is not open. made[2]: where others are open (`others`) for other extents of these; NULL:
     * the model takes none of those that were tried, or has no inverse there. */
    inv_status (*settle)(const struct inv_batch_job *job, const inv_session_options *shapes, bool others,
                         inv_rewriting *made[3]);
    const inv_reverse_options *options; /* of an inverse direction ... */
    bool in_memory;                     /* ... and whether it is one for inv_model_reverse */
} inv_batch_job;

/* What `make` gives, settled for other batches and extents, where these are open and the model takes others. */
inv_status inv_for_every_batch(const inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out);

#endif
