/* SPDX-License-Identifier: Apache-2.0
 * What a training is, in a few lines of float64: y = leaky_relu(x w0) w1 + b1 with the mean of the squared error, its
 * optimizers, accumulated gradients, averages of weights and stages. Beside it fuzz_sequence.c runs the library. */
#ifndef INV_TESTS_SEQUENCE_TWIN_H
#define INV_TESTS_SEQUENCE_TWIN_H

#include "invonnx/invonnx.h"

enum { TWIN_IN = 3, TWIN_HIDDEN = 4, TWIN_OUT = 2, TWIN_PARAMS = 3, TWIN_ROWS = 4 };
enum { TWIN_W0 = 0, TWIN_W1 = TWIN_IN * TWIN_HIDDEN, TWIN_B1 = TWIN_W1 + TWIN_HIDDEN * TWIN_OUT };
enum { TWIN_ALL = TWIN_B1 + TWIN_OUT };
#define TWIN_SLOPE 0.375 /* of leaky_relu, left of 0 */

/* All parameters are one vector, and so are the moments of each kind. */
typedef struct twin_param {
    const char *name;
    int at, n, rank;
    int64_t dims[2];
} twin_param;
extern const twin_param twin_params[TWIN_PARAMS];

typedef struct twin_batch {
    int64_t rows;
    double x[TWIN_ROWS * TWIN_IN], y[TWIN_ROWS * TWIN_OUT];
} twin_batch;

typedef struct twin {
    inv_optimizer optimizer;
    inv_optimizer_numbers numbers;
    bool nesterov, accumulates, average;
    double average_decay;
    uint64_t average_from, average_every;
    uint64_t begins[TWIN_PARAMS]; /* first step that trains it */
    int grouped;                  /* the parameter that is a group of its own; -1: none */

    double w[TWIN_ALL], m[TWIN_ALL], v[TWIN_ALL], averages[TWIN_ALL];
    double sum[TWIN_ALL], rows; /* of gradients, over so many rows since the last update */
    uint64_t steps, stage;      /* number of the next step; of the one that its stage was entered with */
    double factor;              /* of the group's learning rate */
    bool reads_averages;        /* the averages have the weights' place */
    bool averaged;              /* an update, a state or the caller has set averages; before, they are the weights */
    bool swapped;               /* they had others than the weights when they took it */
} twin;

/* With these weights, and as if nothing had been trained. */
void twin_begin(twin *t, const double *weights, uint64_t step);
bool twin_trains(const twin *t, int param);
/* What is read as parameters, and as averages. */
double twin_weight(const twin *t, int param, int i);
double twin_average(const twin *t, int param, int i);
/* With the parameters that are read; outputs NULL, or room for those of all rows. */
double twin_loss(const twin *t, const twin_batch *b, double *outputs);
/* The stage of the next step. */
void twin_enter(twin *t);
void twin_accumulate(twin *t, const twin_batch *b);
void twin_update(twin *t, double lr);
void twin_set_step(twin *t, uint64_t step, uint64_t micro);
void twin_read_averages(twin *t, bool average);
/* Averages are numbers of their own from now on. */
void twin_begin_averages(twin *t);

#endif
