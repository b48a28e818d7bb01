/* SPDX-License-Identifier: Apache-2.0
 * Updates made of several nodes, and what optimizer_update.c has for them. */
#ifndef INV_PASSES_AUTODIFF_OPTIMIZER_WHOLE_TENSOR_H
#define INV_PASSES_AUTODIFF_OPTIMIZER_WHOLE_TENSOR_H

#include "core/program/program.h"
#include "ops/train/step_number.h"

/* One parameter and what it is updated by. */
typedef struct inv_update_site {
    inv_graph *g;
    const inv_session_options *o;
    inv_id w, grad;
    inv_id part;    /* w, or this rank's part of it; of the gradient the same */
    int64_t length; /* elements of the part; 0: it is the whole */
    inv_id bad;     /* a count: if it is above 0 nothing is written; INV_NONE: the whole commit part waits for it */
    inv_id norm;    /* of all gradients, if they are clipped by it; else INV_NONE */
    size_t group;
    uint64_t since; /* number of the first step that trains it */
    double decay;
    inv_optimizer_numbers numbers; /* what else it is updated with */
} inv_update_site;

/* A tensor that persists beside a parameter, as "NAME/what". */
inv_status inv_state_tensor(inv_graph *g, inv_id param, const char *what, inv_mem_class mem, inv_dtype dtype,
                            const inv_shape *shape, inv_id *out);

/* --- shard_update.c --- */

enum { INV_SHARED_AT_ONCE = 31 }; /* parameters whose parts go together, at most */

/* Updated parts that are to go to all ranks. */
typedef struct inv_sharing {
    inv_graph *g;
    const inv_session_options *o;
    inv_id w[INV_SHARED_AT_ONCE], part[INV_SHARED_AT_ONCE];
    int64_t length[INV_SHARED_AT_ONCE];
    uint32_t n;
    size_t nbytes; /* of all ranks' parts */
    inv_id room;   /* value: what is on its way; INV_NONE: nothing is */
    inv_id sent[INV_SHARED_AT_ONCE];
    int64_t sent_length[INV_SHARED_AT_ONCE];
    uint32_t nsent;
} inv_sharing;

/* This rank's part of a value that all have. */
inv_id inv_shard_part(inv_graph *g, const inv_session_options *o, inv_id v, int64_t length);
/* The state is this rank's part of what it was made as. */
inv_status inv_shard_state(inv_graph *g, inv_id state, int64_t length);
/* The updated part of w goes to all, with others. */
inv_status inv_sharing_add(inv_sharing *s, inv_id w, inv_id part);
/* All of them are there. */
inv_status inv_sharing_end(inv_sharing *s);

/* Whether a parameter of this shape, its axes behind the first one taken together, has rows and columns. */
bool inv_is_matrix(const inv_shape *s);
inv_status inv_update_lamb(inv_update_site *u);
inv_status inv_update_adafactor(inv_update_site *u);
inv_status inv_update_muon(inv_update_site *u); /* of a matrix */

#endif
