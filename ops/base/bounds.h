/* SPDX-License-Identifier: Apache-2.0
 * Interval arithmetic that several operators' rows share (column `bounds`, core/graph/op.h). */
#ifndef INV_OPS_BASE_BOUNDS_H
#define INV_OPS_BASE_BOUNDS_H

#include "core/graph/op.h"

/* Of operators whose entries are entries of their first operand, or means of them. */
static inline inv_bounds inv_bounds_first(const inv_bounding *q) { return q->operand(q, 0); }

/* Of an entry of either. */
static inline inv_bounds inv_bounds_either(inv_bounds a, inv_bounds b)
{
    inv_bounds r = {fmin(a.lo, b.lo), fmax(a.hi, b.hi), true};
    r.above = (a.lo > r.lo || a.above) && (b.lo > r.lo || b.above);
    return r;
}

/* Of |x|. */
static inline inv_bounds inv_bounds_size(inv_bounds x)
{
    const double far = fmax(fabs(x.lo), fabs(x.hi)), near = x.lo > 0 ? x.lo : x.hi < 0 ? -x.hi : 0;
    return (inv_bounds){near, far, inv_bounds_positive(x) && x.above};
}

#endif
