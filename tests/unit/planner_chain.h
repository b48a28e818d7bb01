/* SPDX-License-Identifier: Apache-2.0
 * Recovery problems as large as wanted: a chain of additive couplings, which can be inverted, or of residual blocks,
 * which cannot. Four operators a block. Or a recurrent network, of eight a trip. */
#ifndef INV_TESTS_PLANNER_CHAIN_H
#define INV_TESTS_PLANNER_CHAIN_H

#include "passes/planner/problem.h"

typedef struct chain {
    inv_problem p;
    uint32_t *ids, *edge_of;
    size_t nids;
} chain;

enum { CHAIN_STREAM = 1 << 20 }; /* bytes of a stream at the beginning */

/* `stages`: of residual blocks; behind each, a stream has half the bytes. 0: couplings. False: no memory. */
bool chain_make(chain *c, uint32_t blocks, uint32_t stages);
/* A recurrent network: four gates of the state before, a cell, and a state, in each trip. */
bool chain_make_recurrent(chain *c, uint32_t trips);
void chain_free(chain *c);

#endif
