/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the conformance suite share: the case being tested, sessions on it, values of its nodes. */
#ifndef INV_EXECUTOR_SELFTEST_H
#define INV_EXECUTOR_SELFTEST_H

#include <jansson.h>

#include "executor/executor.h"

#define INV_MAX_DEVICES 4

/* The largest errors of a rule, relative to what they are errors of; pairs are of float32 and of float64. */
typedef struct inv_test_seen {
    double forward;       /* the first output in float32 beside float64 */
    double inverse[2];    /* what is solved for, on the case's numbers */
    double gradient;      /* beside differences of the loss */
    double training[2];   /* gradients beside those of a training without inverses */
    double largest[2];    /* inputs up to this size come back within a thousandth; 0: nothing is known */
    double lost[2];       /* how far off the next larger ones are; 0: none is larger */
    size_t changes, held; /* numbers that were changed; what `when` accepts of these, and was tested */
} inv_test_seen;

typedef struct inv_tester {
    inv_context *ctx;
    const char *plugin; /* NULL: the library's own */
    const char *device[INV_MAX_DEVICES];
    size_t ndevice;
    json_t *results, *failures;
    size_t checks, failed; /* so far */
    /* of the rule or operator being tested */
    const char *kind, *name;
    size_t number;                         /* of the case, from 1 */
    const char *text;                      /* of the case */
    const char *how;                       /* device and type of what is checked now, for reports */
    bool skipped;                          /* devices for which an operator of the plugin has no kernel */
    double stated, measured;               /* gain: of the case where they are closest; 0: none was measured */
    size_t logdets;                        /* log-determinants measured; ... */
    double stated_logdet, measured_logdet; /* ... those that differ most */
    char not_exported[256];                /* why one of them was not; empty: nothing to say */
    char help[256];                        /* what would help if the next check fails; ... */
    bool changed;       /* the case is; what is measured goes into the report if it shows a mistake */
    const char *remedy; /* ... or, unless it is NULL, any check */
    inv_test_seen seen;
    double *narrow; /* the first output of the case in float32 */
} inv_tester;

/* Counts one check; if it fails, what was seen goes into the report. Returns `fine`. */
bool inv_test(inv_tester *t, bool fine, const char *what, const char *fmt, ...) INV_PRINTF(4, 5);
/* What would help if the next check fails. */
void inv_test_help(inv_tester *t, const char *fmt, ...) INV_PRINTF(2, 3);

/* Inputs of a graph and a target for its first output, in double: sessions convert. */
enum { INV_TEST_INPUTS = 16 };
typedef struct inv_test_feeds {
    inv_array in[INV_TEST_INPUTS], target;
    void *data[INV_TEST_INPUTS + 1];
    int64_t dims[INV_TEST_INPUTS + 1][INV_MAX_RANK];
    size_t n;
} inv_test_feeds;

typedef struct inv_test_case {
    inv_model model;
    inv_test_feeds feeds;
    inv_arena arena; /* of the data */
    bool trains;     /* first output and an input are floating-point */
} inv_test_case;

typedef struct inv_test_how {
    inv_memory memory;
    const char *device;
    bool float64;
} inv_test_how;

/* Takes the graph over. Parameters without numbers get some. */
inv_status inv_test_open(inv_tester *t, inv_graph *g, inv_test_case *c);
void inv_test_close(inv_test_case *c);
inv_status inv_test_session(inv_test_case *c, inv_test_how how, inv_session **out);
/* All gradients of parameters and inputs, one after the other; owned by the context. */
inv_status inv_test_gradients(inv_session *s, inv_test_case *c, inv_result *r, double **out, size_t *n);
/* The gradient of the loss by every input, against differences of the loss in float64. */
inv_status inv_test_differences(inv_tester *t, inv_test_case *c, inv_memory memory);

/* Values of a compiled graph, each with a buffer of its own. */
typedef struct inv_test_values {
    const inv_graph *g;
    inv_arena arena;
    void **at; /* per value; NULL: not computed */
    void *ws;
    size_t ws_nbytes;
    inv_step step;
    inv_feed feed[INV_TEST_INPUTS + 1];
} inv_test_values;
/* The forward part, run. */
inv_status inv_test_forward(const inv_plan *p, const inv_test_case *c, inv_test_values *v);
void inv_test_values_fini(inv_test_values *v);
inv_status inv_test_run(inv_test_values *v, inv_id node);
void *inv_test_copy(inv_test_values *v, inv_id value); /* of its bytes; NULL: no memory */
double inv_test_get(const inv_test_values *v, inv_id value, int64_t i);
void inv_test_put(inv_test_values *v, inv_id value, int64_t i, double x); /* floating-point values */
bool inv_test_finite(const inv_test_values *v, inv_id value);
/* No operand of the node changes when it runs; and where a row says that an output may be written over an input, it
 * may. */
inv_status inv_test_aliasing(inv_tester *t, inv_test_values *v, inv_id node);

enum { INV_TEST_LOGDET = 256 }; /* elements that a case may have for it */
/* The log-determinant that the edge's rule states, against that of the Jacobian; in float64. Nothing is measured where
 * there is none: more numbers on one side than on the other. */
inv_status inv_test_logdet(inv_tester *t, inv_test_values *v, const inv_edge *e);

/* What is freed comes back from a plan's edges of the rule, magnified no more than the gain says; `volumes`: also the
 * log-determinant. *off: the largest error, relative; infinite where what comes back is not finite. */
inv_status inv_test_edges(inv_tester *t, const inv_plan *p, const inv_inverse_def *rule, const inv_test_case *c,
                          bool wide, bool volumes, double *off);
/* The same over the domain: inputs of other sizes, another batch, and the numbers that the pattern takes changed, up to
 * the edges of `when`. */
inv_status inv_test_domain(inv_tester *t, const inv_inverse_def *rule, const inv_plan *p, const inv_test_case *c);

/* selftest_rule.c, selftest_op.c */
inv_status inv_test_rule(inv_tester *t, const inv_inverse_def *rule);
inv_status inv_test_operator(inv_tester *t, const inv_op_def *op);

#endif
