/* SPDX-License-Identifier: Apache-2.0
 * What the three ways to place boxes share: first_fit.c, and climbs and descents in place.c. */
#ifndef INV_PASSES_SCHEDULE_PLACER_H
#define INV_PASSES_SCHEDULE_PLACER_H

#include "passes/schedule/place.h"

/* Bytes of the arena. */
typedef struct range {
    size_t from, to; /* bytes; `to` is the first behind it */
} range;
/* Sorted, with bytes between them. What comes next lies near what came last, so the array has its free room there, as a
 * text editor has at the cursor: the first `cut` ranges are at its begin, the others at its end. */
typedef struct ranges {
    range *at;
    size_t n, cut, cap;
} ranges;

/* A segment tree over the times at which some box begins: node 1 is the root, 2i and 2i + 1 are below i. A live
 * interval is the union of the times of a few nodes. */
typedef struct tree {
    uint32_t leaves;
    ranges *across;   /* per node: bytes taken by boxes whose interval has this node among its few */
    ranges *inside;   /* per node: bytes taken by boxes whose interval has this node, or one below it, among its few; of
                       * nodes that are wanted */
    uint32_t *wanted; /* per node: how many boxes that are still to be placed have it among their few */
    uint32_t box, *above; /* how many boxes were placed; per node: the last of these that has nodes below it */
} tree;

/* The boxes of a descent that are not placed yet, densely and in numbers of 32 bits with a sign, so that any processor
 * looks at several of them at once. Bytes are counted in units of INV_PLACE_ALIGN, or more in arenas beyond 2^29 of
 * them. */
typedef struct skyline {
    int32_t n;
    int32_t *low;            /* the lowest place above the boxes that are placed */
    int32_t *size;           /* units */
    int32_t *from, *to, *id; /* leaves; index in placer.box */
    float *rank;             /* smaller ones are preferred */
    int32_t *key;            /* what the next box is chosen by */
    int32_t *coming;         /* per leaf: units of the boxes that are not placed yet */
} skyline;

typedef struct ranked_box {
    double rank; /* larger ones come first */
    inv_box *box;
} ranked_box;

/* An order to begin a climb with. */
typedef struct start {
    double sum; /* the bytes that first fit leaves above the cap */
    size_t order;
} start;
enum { STARTS = 12, FIRST_STARTS = 5 }; /* FIRST_STARTS: where there are many boxes */

enum { LATE = 8 }; /* moves */

/* A climb: boxes are moved in an order for first fit. */
typedef struct climb {
    ranked_box *order;    /* the n boxes that take part, which are the largest, and then the others */
    ranked_box *kept;     /* the order of this climb with the fewest bytes above the caps */
    size_t n, aim;        /* aim: bytes */
    size_t *others;       /* per leaf: bytes of the boxes that take no part */
    size_t *cap, *above;  /* per box: where it should end; the bytes that are above that */
    double sum, least;    /* bytes above the caps of all boxes: now, and in the order that is kept */
    double past[LATE];    /* the sums after the last moves */
    uint32_t moves, vain; /* vain: in a row, that brought nothing */
    start start[STARTS];  /* the best first */
    size_t nstart;        /* climbs that have begun */
    bool done;            /* no other will begin */
} climb;

/* The boxes, and the state of all ways to place them. */
typedef struct placer {
    inv_arena scratch;
    inv_box *box;         /* sorted, the largest first */
    size_t n, load, best; /* load, best: bytes */
    uint32_t *from, *to;  /* per box: its first and last leaf */
    size_t *offset, *cap; /* per box: its offset in the best packing so far; where it ends in a better one at most */
    ranked_box *order;    /* in which first fit takes them */
    tree tree;
    climb climb;
    skyline sky;
    size_t unit;                           /* bytes */
    double *log_size, *log_length, *blame; /* per box: logarithms of bytes and leaves; how often it was in the way */
    uint32_t turn;                         /* of descents; each is with one part of the boxes */
    uint64_t slice;                        /* the most visits from one part of the boxes to the next */
    uint64_t dice, visits;                 /* visits: looks at a box or leaf, and about as long ones in first fit */
} placer;

enum { MOST_NODES = 96 }; /* of an interval, with those beside it on the way to the root: three per level of the tree */
enum { VISITS_PER_LIST = 100 }; /* that first fit looks into or adds to, by searching it */

/* --- first_fit.c --- */

/* Places the first n boxes of the order; the first `fixed` have their offsets already. Ends as soon as more than `most`
 * bytes of them are above their `cap`, one for each box of the placer. *above: these bytes. INV_E_NOMEM. */
inv_status inv_fit_boxes(placer *p, size_t n, size_t fixed, const size_t *cap, double most, double *above);
/* Places all boxes in their order, if that takes less than the best so far. INV_E_NOMEM. */
inv_status inv_first_fit(placer *p, size_t fixed);
/* The bytes of a box that are above `cap`. */
size_t inv_bytes_above(const inv_box *b, size_t cap);
/* Compares boxes: the larger comes first, then the longer. */
int inv_boxes_by_size(const void *a, const void *b);
/* Orders boxes for first fit by size times a power of length; the `fixed` largest stay first. */
void inv_order_boxes(placer *p, size_t fixed, double power);
/* Orders boxes by their offsets, the lowest first: where these are a packing, first fit is no worse. */
void inv_order_as_placed(placer *p);
/* Makes the k-th of STARTS orders, by powers and by begin. */
void inv_order_start(placer *p, size_t k);

#endif
