/* SPDX-License-Identifier: Apache-2.0
 * What is made from a context holds it, so everything may be destroyed in any order and in any thread. Fails if
 * something is used after it was freed (the allocator overwrites what is freed, and says so of what is freed twice), if
 * anything stays behind, if a function of the caller's is called after its context was destroyed, or if a child waits
 * for a thread that it does not have. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "invonnx/invonnx.h"

#define MODEL INV_TEST_DATA "/models/nice_dynbatch_ts17/model.onnx"
enum { ROWS = 4, WIDTH = 8, HEAD = 16, EACH = 5 };

/* --- memory: freed bytes are overwritten --- */

typedef struct memory {
    atomic_long live;
} memory;

static void *wary_alloc(void *opaque, size_t nbytes)
{
    memory *m = opaque;
    char *p = malloc(nbytes + HEAD);
    if (!p) return NULL;
    memcpy(p, &nbytes, sizeof nbytes);
    atomic_fetch_add(&m->live, 1);
    return p + HEAD;
}

static void wary_free(void *opaque, void *p)
{
    memory *m = opaque;
    size_t nbytes;
    if (!p) return;
    memcpy(&nbytes, (char *)p - HEAD, sizeof nbytes);
    if (nbytes > PTRDIFF_MAX) abort(); /* it was freed before */
    memset((char *)p - HEAD, 0xdb, nbytes + HEAD);
    atomic_fetch_sub(&m->live, 1);
    free((char *)p - HEAD);
}

/* --- what there is to destroy --- */

typedef struct things {
    memory memory;
    bool done;  /* with the context, so its functions are not to be called */
    int called; /* of them, since */
    inv_context *ctx;
    inv_model *model, *reverse;
    inv_session *session;
    inv_world *world;
} things;

static float x[ROWS * WIDTH];
static const int64_t dims[] = {ROWS, WIDTH};
static const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x},
                       target = {.dtype = INV_F32, .rank = 2, .dims = dims, .data = x};

static void note_log(void *opaque, const char *line)
{
    things *t = opaque;
    (void)line;
    t->called += t->done;
}

static void note_progress(void *opaque, const char *stage, double share)
{
    (void)share;
    note_log(opaque, stage);
}

static inv_status step(inv_session *s)
{
    inv_result r;
    return inv_session_step(s, &in, 1, &target, 0.1, &r);
}

static void make_session(things *t, inv_session **out)
{
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .inputs = &in,
                                   .ninputs = 1,
                                   .target = &target,
                                   .loss = INV_LOSS_MSE,
                                   .optimizer = INV_OPT_SGD,
                                   .threads = 1};
    if (inv_session_create(t->model, &o, out) != INV_OK) fail_msg("%s", inv_context_message(t->ctx));
    assert_int_equal(step(*out), INV_OK);
}

static void make_all(things *t)
{
    *t = (things){0};
    const inv_allocator allocator = {wary_alloc, wary_free, &t->memory};
    const inv_context_options o = {.size = sizeof o,
                                   .allocator = &allocator,
                                   .log = note_log,
                                   .log_opaque = t,
                                   .progress = note_progress,
                                   .progress_opaque = t};
    assert_int_equal(inv_context_create(&o, &t->ctx), INV_OK);
    if (inv_model_load(t->ctx, MODEL, &t->model) != INV_OK) fail_msg("%s", inv_context_message(t->ctx));
    const inv_session_options shapes = {.size = sizeof shapes, .inputs = &in, .ninputs = 1};
    if (inv_model_reverse(t->model, &shapes, NULL, &t->reverse) != INV_OK) fail_msg("%s", inv_context_message(t->ctx));
    make_session(t, &t->session);
    assert_int_equal(inv_world_imagine(t->ctx, 2, 1, 0, 1e9, 0, &t->world), INV_OK);
}

static void destroy(things *t, int what)
{
    switch (what) {
    case 0:
        inv_context_destroy(t->ctx);
        t->done = true;
        break;
    case 1: inv_model_destroy(t->model); break;
    case 2: inv_model_destroy(t->reverse); break;
    case 3: inv_session_destroy(t->session); break;
    default: inv_world_close(t->world);
    }
}

/* --- tests --- */

/* The next permutation in the order of a dictionary; false after the last one. */
static bool next(int *order)
{
    int i = EACH - 1, k = EACH - 1;
    while (i > 0 && order[i - 1] > order[i]) i--;
    if (i == 0) return false;
    while (order[k] < order[i - 1]) k--;
    const int swapped = order[i - 1];
    order[i - 1] = order[k];
    order[k] = swapped;
    for (k = EACH - 1; i < k; i++, k--) {
        const int former = order[i];
        order[i] = order[k];
        order[k] = former;
    }
    return true;
}

static void test_every_order(void **state)
{
    (void)state;
    int order[EACH] = {0, 1, 2, 3, 4}, n = 0;
    do {
        things t;
        make_all(&t);
        for (int i = 0; i < EACH; i++) {
            assert_true(atomic_load(&t.memory.live) > 0);
            destroy(&t, order[i]);
        }
        assert_int_equal(atomic_load(&t.memory.live), 0);
        assert_int_equal(t.called, 0);
        n++;
    } while (next(order));
    assert_int_equal(n, 120);
}

/* A session goes on when its caller is done with its model and context, and is read afterwards. */
static void test_session_alone(void **state)
{
    (void)state;
    things t;
    make_all(&t);
    destroy(&t, 0);
    destroy(&t, 1);
    destroy(&t, 2);
    for (int i = 0; i < 3; i++) assert_int_equal(step(t.session), INV_OK);
    assert_non_null(inv_session_name(t.session, INV_GET_PARAM, 0));
    const inv_array wrong = {.name = "x", .dtype = INV_F32, .rank = 1, .dims = dims, .data = x};
    inv_result r;
    assert_int_equal(inv_session_step(t.session, &wrong, 1, &target, 0.1, &r),
                     INV_E_SHAPE); /* and nobody is told why */
    destroy(&t, 4);
    assert_int_equal(step(t.session), INV_OK);
    destroy(&t, 3);
    assert_int_equal(atomic_load(&t.memory.live), 0);
    assert_int_equal(t.called, 0);
    inv_context_destroy(NULL);
    inv_model_destroy(NULL);
    inv_session_destroy(NULL);
    inv_world_close(NULL);
}

typedef struct one {
    things *t;
    int what;
    pthread_barrier_t *barrier;
} one;

static void *destroy_one(void *opaque)
{
    one *o = opaque;
    pthread_barrier_wait(o->barrier);
    destroy(o->t, o->what);
    return NULL;
}

/* Threads that know nothing of each other. */
static void test_threads(void **state)
{
    (void)state;
    for (int k = 0; k < 10; k++) {
        things t;
        pthread_barrier_t barrier;
        pthread_t thread[EACH];
        one each[EACH];
        make_all(&t);
        pthread_barrier_init(&barrier, NULL, EACH);
        for (int i = 0; i < EACH; i++) {
            each[i] = (one){&t, i, &barrier};
            assert_int_equal(pthread_create(&thread[i], NULL, destroy_one, &each[i]), 0);
        }
        for (int i = 0; i < EACH; i++) pthread_join(thread[i], NULL);
        pthread_barrier_destroy(&barrier);
        assert_int_equal(atomic_load(&t.memory.live), 0);
    }
}

int main(void)
{
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)sin(i);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_order), cmocka_unit_test(test_session_alone),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
