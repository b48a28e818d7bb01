/* SPDX-License-Identifier: Apache-2.0
 * A session and its twin, for fuzz_sequence.c: how sessions are made, what may go wrong on purpose, and whether both
 * agree. Where they do not, the calls so far are printed and the process ends. */
#ifndef INV_TESTS_SEQUENCE_RUN_H
#define INV_TESTS_SEQUENCE_RUN_H

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/sequence_twin.h"

enum { RUN_SLOTS = 3, RUN_NAMED = 4, RUN_VIEWS = 4, RUN_LOG = 1 << 14 };

/* Of a session, and may differ from one to the next. */
typedef struct run_sizes {
    int64_t rows, tail, eval, eval_tail;
} run_sizes;

typedef struct run_way {
    run_sizes sizes;
    inv_memory memory;
    const char *device;
    bool early, ahead;
} run_way;

/* What is fed, as the library takes it. */
typedef struct run_feed {
    int64_t x_dims[2], y_dims[2], rows[TWIN_ROWS];
    double x[TWIN_ROWS * TWIN_IN], y[TWIN_ROWS * TWIN_OUT];
    float narrow[TWIN_ROWS * TWIN_IN];
    inv_array input, target;
} run_feed;

/* A state that was saved. */
typedef struct run_slot {
    bool used, plain; /* plain: of a session whose modes nobody has changed */
    run_way way;
    twin twin;
} run_slot;

typedef struct run {
    fuzz_context *f;
    inv_model *model;
    inv_session *s;
    run_way way;
    twin twin;
    int scopes; /* of modes */
    bool plain;
    run_slot slot[RUN_SLOTS];
    run_feed named[RUN_NAMED]; /* by inv_session_next; the library may still read those before the newest */
    twin_batch named_batch;
    int next_named;
    bool names;
    inv_view view[RUN_VIEWS]; /* what may still be looked at */
    bool troubled;            /* the call may fail for lack of memory, or is to stop */
    size_t said;
    char log[RUN_LOG]; /* the calls so far */
} run;

void run_note(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints that and the calls so far, and ends. */
_Noreturn void run_differs(const run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *run_path(const char *name); /* in a folder of this process; until the next but three */
/* The model's file, once. */
void run_write_model(void);
uint8_t *run_read(const char *name, size_t *n); /* to be freed */
void run_write(const char *name, const uint8_t *data, size_t n);
double *run_weights(void); /* of that file */

/* Numbers that follow from the key. */
void run_batch(twin_batch *b, int64_t rows, uint8_t key);
/* `form`: bit 0, rows by their numbers; bit 1, x in float32. */
void run_feed_of(run_feed *f, const twin_batch *b, uint8_t form);

/* The next call of the library, on that device, has this trouble, up to run_went. The memory of a simulated queue does
 * not fail: it stands for the device's own. */
void run_trouble(run *r, const char *device, uint8_t trouble);
/* Whether the call that gave `st` has done what it is for. `may` false: it has to be refused. */
bool run_went(run *r, inv_status st, bool may);

/* A session of the run's model for that way, with stages from `step` on; NULL: that was the trouble. */
inv_session *run_session(run *r, const run_way *way, uint64_t step, const char *plan);
/* Failing calls may have entered the stage of the next step. */
void run_look_at_stage(run *r);
/* A parameter, or a state of one, "w0/average". */
const double *run_get(run *r, inv_what what, const char *name, int64_t n);
void run_agree(run *r);
/* The model that was written there has the parameters that are read. */
void run_agree_file(run *r, const char *name);
void run_close_to(const run *r, double is, double wanted, const char *what);

#endif
