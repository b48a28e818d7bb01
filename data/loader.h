/* SPDX-License-Identifier: Apache-2.0
 * Batches of rows from several sources, prepared by threads while the caller computes. What comes next is guessed from
 * what was asked for: the rows behind, then the next epoch. A wrong guess costs the time of what was prepared, so any
 * place of any epoch can be asked for. */
#ifndef INVONNX_DATA_LOADER_H
#define INVONNX_DATA_LOADER_H

#include "data/row_order.h"
#include "data/source.h"

typedef struct data_loader data_loader;

typedef struct data_loader_options {
    data_source *const *sources; /* borrowed; all of order.nrows rows */
    size_t nsources;
    const bool (*wanted)[DATA_FIELDS]; /* per source, borrowed: which of its arrays */
    data_order order;
    bool augment;
    int64_t batch;        /* rows of a batch at most */
    int64_t first, apart; /* guessed: where the first batch of an epoch begins, and how far from it the next one does;
                           * apart 0: one behind the other from 0 on */
    bool peeks;           /* data_loader_peek is to find something */
    int threads;          /* beside the caller; 0: batches are prepared when they are asked for */
} data_loader_options;

typedef struct data_batch {
    int64_t n;
    const int64_t *rows;                /* their numbers in the sources */
    const void *(*buffer)[DATA_FIELDS]; /* per source: the rows one behind the other; NULL where the field has a base */
} data_batch;

/** @param why on failure the reason: memory or threads are missing */
bool data_loader_create(const data_loader_options *o, data_loader **out, FILE *why);
void data_loader_destroy(data_loader *l);
/** Rows at positions [start, start + n) of the order of an epoch, valid until the next call. The same place may be
 * asked for again at once. @param why on failure the reason, with file and row */
bool data_loader_take(data_loader *l, uint64_t epoch, int64_t start, int64_t n, const data_batch **out, FILE *why);

/** With `peeks`: the same of what is to be asked for behind the batch that was taken last, if it is at hand: it is not
 *  waited for, and what is wrong with it, take says. Both are valid until the next take, and one of that batch leaves
 * it where it is; another batch is never put there. */
bool data_loader_peek(data_loader *l, uint64_t epoch, int64_t start, int64_t n, data_batch *out);

typedef struct data_waits {
    int threads;
    double step;    /* seconds that callers have waited for data */
    double reading; /* seconds that a thread has waited in the mean, because enough was prepared */
} data_waits;
data_waits data_loader_waits(data_loader *l);

#endif
