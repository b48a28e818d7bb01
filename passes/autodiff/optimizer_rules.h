/* SPDX-License-Identifier: Apache-2.0
 * Updates made of several nodes, and what optimizer_update.c has for them. */
#ifndef INV_PASSES_AUTODIFF_OPTIMIZER_RULES_H
#define INV_PASSES_AUTODIFF_OPTIMIZER_RULES_H

#include "core/program.h"
#include "ops/train/step_number.h"

/* One parameter and what it is updated by. */
typedef struct inv_update_site {
    inv_graph *g;
    const inv_session_options *o;
    inv_id w, grad;
    inv_id bad;  /* a count: if it is above 0 nothing is written; INV_NONE: the whole commit part waits for it */
    inv_id norm; /* of all gradients, if they are clipped by it; else INV_NONE */
    size_t group;
    uint64_t since; /* number of the first step that trains it */
    double decay;
    inv_optimizer_numbers numbers; /* what else it is updated with */
} inv_update_site;

/* A tensor that persists beside a parameter, as "NAME/what". */
inv_status inv_state_tensor(inv_graph *g, inv_id param, const char *what, inv_mem_class mem, inv_dtype dtype,
                            const inv_shape *shape, inv_id *out);

/* Whether a parameter of this shape, its axes behind the first one taken together, has rows and columns. */
bool inv_is_matrix(const inv_shape *s);
inv_status inv_update_lamb(inv_update_site *u);
inv_status inv_update_adafactor(inv_update_site *u);
inv_status inv_update_muon(inv_update_site *u); /* of a matrix */

#endif
