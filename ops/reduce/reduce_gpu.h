/* SPDX-License-Identifier: Apache-2.0
 * Reductions on the device: how elements are dealt out to blocks and threads, decided from the shape alone, and the
 * launchers of reduce.cu. Also what batch normalisation (batchnorm.cu) works by. */
#ifndef INV_OPS_REDUCE_REDUCE_GPU_H
#define INV_OPS_REDUCE_REDUCE_GPU_H

#include "ops/gpu/gpu.h"

#define INV_FOLD_THREADS 128 /* per block */

/* Axes of the operand, merged, as in inv_loop: element i of the last one is `step` apart. */
typedef struct inv_fold_axes {
    int rank;
    int64_t inner, step;
    int64_t dim[INV_MAX_RANK], stride[INV_MAX_RANK];
} inv_fold_axes;

/* `nout` results of `n` elements each. A block computes one of `parts` shares of `width` neighbouring results with
 * `depth` threads for each; where there are several shares, they meet in scratch memory. */
typedef struct inv_fold {
    inv_fold_axes kept, gone;
    int64_t nout, n;
    int64_t part;        /* elements of every share but the last */
    int parts;           /* shares */
    int width, depth;    /* powers of two */
    int bits;            /* depth = 1 << bits */
    bool columns;        /* neighbouring threads have neighbouring results, else neighbouring elements */
    bool direct;         /* gone has at most two axes; the rest serves a step to a thread's next element: */
    int skip, wrap;      /* columns, taken from the last axis of `wrap` columns */
    int64_t ahead, jump; /* offset, and what to add to it on wrapping */
} inv_fold;

/* f->parts, part and depth are set; this sets what follows from them. */
static inline void inv_fold_steps(inv_fold *f)
{
    const inv_fold_axes *a = &f->gone;
    const int64_t rows = a->rank > 1 ? a->stride[0] : 0;
    f->bits = 0;
    while (1 << f->bits < f->depth) f->bits++;
    f->width = INV_FOLD_THREADS / f->depth;
    f->direct = a->rank <= 1 || (a->rank == 2 && a->inner < INT32_MAX - INV_FOLD_THREADS);
    f->skip = 0;
    f->wrap = INT32_MAX;
    f->ahead = f->depth * a->step;
    f->jump = 0;
    if (a->rank != 2 || !f->direct || a->inner == 0) return;
    f->wrap = (int)a->inner;
    f->skip = f->depth % f->wrap;
    f->ahead = f->depth / f->wrap * rows + f->skip * a->step;
    f->jump = rows - a->inner * a->step;
}

/* The same over four elements at a time, of one result or, in columns, of four results, whose numbers are one; with as
 * many shares. false: they do not lie so. */
static inline bool inv_fold_fours(const inv_fold *f, inv_fold *fours)
{
    const inv_fold_axes *side = f->columns ? &f->kept : &f->gone, *other = f->columns ? &f->gone : &f->kept;
    bool fine = f->direct && side->step == 1 && side->inner % 4 == 0 && side->inner > 0 && f->n > 0;
    fine = fine && other->step % 4 == 0 && (f->columns || f->parts == 1 || f->part % 4 == 0);
    for (int i = 0; i + 1 < side->rank; i++) fine = fine && side->stride[i] % 4 == 0;
    for (int i = 0; i + 1 < other->rank; i++) fine = fine && other->stride[i] % 4 == 0;
    if (!fine) return false;
    *fours = *f;
    inv_fold_axes *axes = f->columns ? &fours->kept : &fours->gone;
    axes->inner /= 4;
    axes->step = 4;
    if (f->columns) {
        fours->nout /= 4;
        while (fours->depth < INV_FOLD_THREADS && INV_FOLD_THREADS / fours->depth > fours->nout) fours->depth *= 2;
    } else {
        fours->n /= 4;
        fours->part /= 4;
    }
    inv_fold_steps(fours);
    return true;
}

typedef enum inv_fold_kind {
    INV_FOLD_SUM,
    INV_FOLD_MAX,
    INV_FOLD_MIN,
    INV_FOLD_PROD,
} inv_fold_kind;

static inline int64_t inv_fold_blocks(const inv_fold *f) { return (f->nout + f->width - 1) / f->width * f->parts; }

#ifdef __cplusplus
extern "C" {
#endif
/* reduce.c: for operand `in`, whose axes `gone` are reduced. */
inv_fold inv_fold_of(const inv_shape *in, const bool *gone);
/* Sets how many shares there are: enough for a large device where one share of all results has `groups` blocks. */
void inv_fold_share(inv_fold *f, int64_t groups);

/* out = scale * fold(x). ws: nout * parts doubles where parts > 1. */
INV_LAUNCHER(reduce, const inv_fold *f, inv_fold_kind kind, inv_dtype t, double scale, const void *x, double *ws,
             void *out);
#ifdef __cplusplus
}
#endif

#endif
