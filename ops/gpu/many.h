/* SPDX-License-Identifier: Apache-2.0
 * Many tensors in one launch: a table of them among the kernel's arguments. For nodes that each do little, of which a
 * step has hundreds: updates of parameters and of running statistics. */
#ifndef INV_OPS_GPU_MANY_H
#define INV_OPS_GPU_MANY_H

#include "ops/gpu/gpu.h"

enum { INV_MANY = 64, INV_MANY_PIECE = 8192 }; /* tensors of a launch; elements of one that a block takes */

typedef struct inv_many {
    int64_t blocks;
    int n;
    struct {
        void *p[4];       /* what the kernel calls for */
        int64_t n, first; /* elements, and the tensor's first block */
    } at[INV_MANY];
} inv_many;

static inline void inv_many_begin(inv_many *m)
{
    memset(m, 0, sizeof *m);
} /* who looks through the arguments sees zeros */

static inline void inv_many_add(inv_many *m, int64_t n, void *p0, void *p1, void *p2, void *p3)
{
    if (n <= 0) return;
    void *const p[4] = {p0, p1, p2, p3};
    memcpy(m->at[m->n].p, p, sizeof p);
    m->at[m->n].n = n;
    m->at[m->n++].first = m->blocks;
    m->blocks += (n + INV_MANY_PIECE - 1) / INV_MANY_PIECE;
}

/* Two operands more of the tensor that was just added: in the next place, of which no block is. */
static inline void inv_many_more(inv_many *m, void *p0, void *p1)
{
    m->at[m->n].p[0] = p0;
    m->at[m->n].p[1] = p1;
    m->at[m->n++].first = m->blocks;
}

#endif
