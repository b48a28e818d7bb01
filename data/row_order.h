/* SPDX-License-Identifier: Apache-2.0
 * In which order rows are taken: a function of seed, epoch and position that needs neither memory nor history, so that
 * a run may begin anywhere and several threads may ask. */
#ifndef INVONNX_DATA_ROW_ORDER_H
#define INVONNX_DATA_ROW_ORDER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct data_order {
    int64_t nrows;    /* of the sources */
    int64_t nheld;    /* of these, rows that the seed holds out for validation */
    bool held;        /* these rows are taken, else the others */
    bool in_sequence; /* rows held out are neighbours */
    bool shuffled;    /* a new order in every epoch; else as they come */
    uint64_t seed;
} data_order;

/** Rows that are taken in an epoch. */
int64_t data_order_count(const data_order *o);
/** The row, from 0 to nrows - 1, at a position, from 0 to data_order_count - 1, of an epoch. */
int64_t data_order_row(const data_order *o, uint64_t epoch, int64_t position);

/** Whether a row is held out. */
bool data_order_holds(const data_order *o, int64_t row);

/** A random number that depends on its place only. */
uint64_t data_random_at(uint64_t seed, uint64_t epoch, uint64_t counter);
/** Where number i, from 0 to n - 1, goes in a permutation of n numbers that `seed` and `epoch` draw. */
int64_t data_permuted(uint64_t seed, uint64_t epoch, int64_t n, int64_t i);

#endif
