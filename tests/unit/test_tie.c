/* SPDX-License-Identifier: Apache-2.0
 * A weight that the model holds twice, the second time transposed, in a session: one gradient, and each of the two
 * names reads and sets the same numbers. Fails if the copy is read from the file, set without the other, or has a
 * gradient of its own. And large ones are found by comparing few elements, whatever stands around them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "core/weights/tie.h"
#include "core/weights/trained.h"
#include "with_context.h"

enum { ROWS = 3, WIDE = 5, DEEP = 4 };

static const char text[] = "g(float[3,4] x) => (y) {\nparam float[4,5] w\nparam float[5,4] val_1\n"
                           "a = MatMul(x, w)\nb = Tanh(a)\ny = MatMul(b, val_1)\n}\n";

static float w[DEEP * WIDE], turned[WIDE * DEEP];

static void fill(float *to, float *across, float start)
{
    for (int i = 0; i < DEEP; i++)
        for (int j = 0; j < WIDE; j++) {
            to[i * WIDE + j] = start + 0.1f * (float)(i - j) + 0.03f * (float)(i * j);
            across[j * DEEP + i] = to[i * WIDE + j];
        }
}

static inv_graph *parse(void)
{
    inv_graph *g = NULL;
    if (inv_graph_parse(ctx, text, &g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    fill(w, turned, 0.2f);
    for (size_t i = 0; i < 2; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        v->data = (inv_data){INV_F32, v->shape, i ? turned : w, sizeof w};
    }
    return g;
}

static void check_param(inv_session *s, const char *name, const float *want, int64_t rows, int64_t columns)
{
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[8];
    assert_int_equal(inv_session_get(s, INV_GET_PARAM, name, &data, &dt, &rank, dims), INV_OK);
    assert_int_equal(rank, 2);
    assert_int_equal(dims[0], rows);
    assert_int_equal(dims[1], columns);
    assert_memory_equal(data, want, sizeof w);
}

static void test_session(void **state)
{
    (void)state;
    inv_graph *g = parse();
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    const int64_t dims[2] = {ROWS, DEEP};
    float x[ROWS * DEEP], y[ROWS * DEEP], other[DEEP * WIDE], across[WIDE * DEEP];
    for (int i = 0; i < ROWS * DEEP; i++) x[i] = 0.1f * (float)(i - 5), y[i] = 0.3f;
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims, .data = y};
    inv_session_options o = {.size = sizeof o,
                             .purpose = INV_FOR_TRAIN,
                             .loss = INV_LOSS_MSE,
                             .inputs = &in,
                             .ninputs = 1,
                             .target = &target};
    inv_session *s = NULL;
    inv_result r;
    if (inv_session_create(&model, &o, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    check_param(s, "w", w, DEEP, WIDE);
    check_param(s, "val_1", turned, WIDE, DEEP);
    assert_int_equal(inv_session_grad(s, &in, 1, &target, &r), INV_OK);
    const double first = r.loss;
    assert_string_equal(inv_session_name(s, INV_GET_GRAD, 0), "w");
    assert_null(inv_session_name(s, INV_GET_GRAD, 1));

    fill(other, across, -0.4f);
    assert_int_equal(inv_session_set_param(s, "val_1", INV_F32, across, DEEP * WIDE), INV_OK);
    check_param(s, "w", other, DEEP, WIDE);
    check_param(s, "val_1", across, WIDE, DEEP);
    assert_int_equal(inv_session_grad(s, &in, 1, &target, &r), INV_OK);
    assert_true(r.loss != first);
    assert_int_equal(inv_session_set_param(s, "w", INV_F32, w, DEEP * WIDE), INV_OK);
    check_param(s, "val_1", turned, WIDE, DEEP);
    assert_int_equal(inv_session_grad(s, &in, 1, &target, &r), INV_OK);
    assert_true(r.loss == first);
    inv_session_destroy(s);
    inv_graph_destroy(g);
}

/* Elements at the edges of what is compared at once count as all others do. */
static void test_transposed(void **state)
{
    (void)state;
    enum { ROW = 67, COLUMN = 33 };
    float *a = calloc(ROW * COLUMN, sizeof *a), *b = calloc(ROW * COLUMN, sizeof *b);
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < ROW * COLUMN; i++) a[i] = (float)i;
    inv_transpose(b, a, ROW, COLUMN, sizeof *a);
    for (int i = 0; i < ROW; i++)
        for (int j = 0; j < COLUMN; j++) assert_true(b[j * ROW + i] == a[i * COLUMN + j]);
    inv_graph *g = NULL;
    assert_int_equal(inv_graph_parse(ctx,
                                     "g(float[1,67] x) => (y) {\nparam float[67,33] a\nparam float[33,67] b\n"
                                     "h = MatMul(x, a)\ny = MatMul(h, b)\n}\n",
                                     &g),
                     INV_OK);
    inv_value *v[] = {inv_val(g, inv_graph_find(g, "a")), inv_val(g, inv_graph_find(g, "b"))};
    for (int i = 0; i < 2; i++) v[i]->data = (inv_data){INV_F32, v[i]->shape, i ? b : a, ROW * COLUMN * sizeof *a};
    const uint8_t *untrained = INV_ARENA_NEW(&g->arena, uint8_t, g->value.n);
    assert_non_null(untrained);
    for (int at = -1; at < ROW * COLUMN; at += 29) {
        inv_ties ties = {0};
        if (at >= 0) b[at] += 0.5f;
        assert_int_equal(inv_ties_find(g, NULL, untrained, &g->arena, &ties), INV_OK);
        assert_int_equal(ties.n, at < 0);
        if (at >= 0) b[at] -= 0.5f;
    }
    inv_graph_destroy(g);
    free(a);
    free(b);
}

/* Of many pairs, each of its own numbers, the order is the file's. Fails if it is that of a hash. */
static void test_order(void **state)
{
    (void)state;
    enum { PAIRS = 12 };
    static float data[2 * PAIRS][6];
    char list[2048] = "g(float[2,3] x) => (y) {\n", rest[2048] = "", line[96];
    for (int i = 0; i < PAIRS; i++) {
        (void)snprintf(line, sizeof line, "param float[3,2] p%d\nparam float[2,3] val_%d\n", i, i);
        strcat(list, line);
        (void)snprintf(line, sizeof line, "h%d = MatMul(%s%d, p%d)\nw%d = MatMul(h%d, val_%d)\n", i, i ? "w" : "x",
                       i - (i > 0), i, i, i, i);
        strcat(rest, line);
        for (int k = 0; k < 6; k++) data[2 * i][k] = (float)(7 * i + k);
        inv_transpose(data[2 * i + 1], data[2 * i], 3, 2, sizeof(float));
    }
    char *first = strstr(rest, "x0"); /* the input has no number */
    memmove(first + 1, first + 2, strlen(first + 2) + 1);
    strcat(strcat(list, rest), "y = Tanh(w11)\n}\n");
    inv_graph *g = NULL;
    if (inv_graph_parse(ctx, list, &g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (size_t i = 0; i < 2 * PAIRS; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        v->data = (inv_data){INV_F32, v->shape, data[i], sizeof data[i]};
    }
    const uint8_t *untrained = INV_ARENA_NEW(&g->arena, uint8_t, g->value.n);
    assert_non_null(untrained);
    inv_ties ties = {0};
    assert_int_equal(inv_ties_find(g, NULL, untrained, &g->arena, &ties), INV_OK);
    assert_int_equal(ties.n, PAIRS);
    for (size_t i = 0; i < PAIRS; i++) assert_int_equal(ties.at[i].master, g->inits.at[2 * i]);
    inv_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_transposed),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
