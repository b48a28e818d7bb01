/* SPDX-License-Identifier: Apache-2.0
 * What `check` found of one model on one set of data (check.c), and what it suggests (advice.c). */
#ifndef INV_EXECUTOR_CHECK_H
#define INV_EXECUTOR_CHECK_H

#include "executor/report/report.h"

/* One reconstruction, in one type. */
typedef struct inv_off {
    bool known;
    double relative;  /* L2 of the error over L2 of the value; INFINITY if elements are lost */
    double largest;   /* of the error's elements, by magnitude */
    double nonfinite; /* elements that are finite in the value and not in what came back */
} inv_off;

/* One inverse. */
typedef struct inv_tried {
    const char *value, *node, *op, *kind, *block; /* kind, block NULL: it is in none */
    const inv_inverse_def *rule;
    bool exact;               /* it is believed to give the value's bits */
    double gain, bound, cond; /* as the rule states them on this data; cond 0: of no matrix */
    double spread;            /* the part of the bound that is the data's */
    inv_off off[2];           /* float32, float64 */
    double magnified;         /* measured: how much it magnifies an error of what it starts from; < 0: not measured */
    double relative;          /* the same, both errors relative to their tensors */
    const char *choice;       /* how a training step gets the value; NULL: it does not need it, or that is not known */
} inv_tried;

/* One value that a step in mode invert rebuilds, with all before it rebuilt too. */
typedef struct inv_depth {
    const char *value, *by;
    double drift[2]; /* < 0: not known */
} inv_depth;

typedef struct inv_findings {
    double limit[2]; /* float32, float64 */
    int trained;     /* which of the two a step would compute in */
    INV_VEC(inv_tried) tried;
    INV_VEC(inv_depth) depth;   /* in the order of backward, so from the model's end */
    INV_VEC(const char *) kept; /* values that are stored once guards have refused others, with the limit as it is */
} inv_findings;

static const char *const inv_real_names[2] = {"float32", "float64"};

/* Why recovery does not use an inverse on this data; NULL: it may. */
const char *inv_tried_refused(const inv_findings *f, const inv_tried *t);
/* Appended to a list, as {"value", "text"}: what to do about rules that matching refused for what the model's numbers
 * are; and about what was found. */
inv_status inv_refusal_advice(const inv_graph *g, json_t *list);
inv_status inv_check_advice(inv_context *ctx, const inv_findings *f, json_t *list);
/* Factor by which the error grows from one rebuilt value to the next; < 0: too few to tell. */
double inv_depth_growth(const inv_findings *f, int type);

#endif
