/* SPDX-License-Identifier: Apache-2.0
 * Inputs whose values are constants of the session: what is decided by them, what a later call may give, and what is
 * said when a value that has to be known is not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "graph_text.h"

static const char reshape[] = "<opset_import: [\"\" : 17]>\n"
                              "g (float[2,3] x, int64[2] s) => (y) {\n"
                              "  t = Mul(s, int64[2] {1, 1})\n"
                              "  y = Reshape(x, t)\n"
                              "}\n";
static const float six[6] = {1, 2, 3, 4, 5, 6};
static const int64_t two_three[2] = {2, 3}, two[1] = {2};

typedef struct call {
    inv_model model;
    inv_array in[2];
    inv_session_options o;
    inv_session *s;
} call;

static inv_status begin(call *c, const char *text, const int64_t *shape, bool as_needed, const char *constant)
{
    static const char *names[1];
    memset(c, 0, sizeof *c);
    names[0] = constant;
    c->model = (inv_model){.ctx = ctx, .path = "test", .graph = parse(text)};
    c->in[0] = (inv_array){.name = "x", .dtype = INV_F32, .rank = 2, .dims = two_three, .data = six};
    c->in[1] = (inv_array){.name = "s", .dtype = INV_I64, .rank = 1, .dims = two, .data = shape};
    c->o = (inv_session_options){.size = sizeof c->o,
                                 .inputs = c->in,
                                 .ninputs = 2,
                                 .constants_as_needed = as_needed,
                                 .constant_inputs = names,
                                 .nconstant_inputs = constant ? 1 : 0};
    return inv_session_create(&c->model, &c->o, &c->s);
}

static void end(call *c)
{
    inv_session_destroy(c->s);
    inv_graph_destroy(c->model.graph);
}

static void says(const char *part)
{
    if (!strstr(inv_context_message(ctx), part)) fail_msg("'%s' is not in: %s", part, inv_context_message(ctx));
}

static void expect_shape(call *c, int64_t rows, int64_t columns)
{
    const void *data;
    inv_dtype t;
    int rank;
    int64_t dims[INV_MAX_RANK];
    inv_result r;
    if (inv_session_eval(c->s, c->in, 2, NULL, &r) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_int_equal(inv_session_get(c->s, INV_GET_OUTPUT, "y", &data, &t, &rank, dims), INV_OK);
    assert_int_equal(rank, 2);
    assert_int_equal(dims[0], rows);
    assert_int_equal(dims[1], columns);
    assert_memory_equal(data, six, sizeof six);
}

static void test_refused(void **state)
{
    (void)state;
    const int64_t shape[2] = {3, 2};
    call c;
    assert_int_equal(begin(&c, reshape, shape, false, NULL), INV_E_NOT_CONSTANT);
    says("is not constant: it depends on input 's'");
    says("constant_inputs");
    end(&c);
    assert_int_equal(begin(&c, reshape, NULL, true, NULL), INV_E_NOT_CONSTANT); /* nothing to take */
    end(&c);
    assert_int_equal(begin(&c, reshape, NULL, false, "s"), INV_E_ARG);
    says("'s' is to be a constant of the session, but has no values");
    end(&c);
    assert_int_equal(begin(&c, reshape, shape, false, "t*"), INV_E_ARG);
    says("'t*'");
    end(&c);
}

/* The value that has to be known depends on a float input too: that one is fed where nothing needs it. */
static void test_as_needed(void **state)
{
    (void)state;
    int64_t shape[2] = {3, 2};
    call c;
    assert_int_equal(begin(&c, reshape, shape, true, NULL), INV_OK);
    assert_int_equal(c.s->program->plan[0].feed.n, 1); /* x */
    expect_shape(&c, 3, 2);
    shape[0] = 1, shape[1] = 6; /* the caller's memory is not looked at again, but for this */
    inv_result r;
    assert_int_equal(inv_session_eval(c.s, c.in, 2, NULL, &r), INV_E_ARG);
    says("input 's' is a constant of this session");
    c.in[1].data = NULL; /* no values: those of the session */
    expect_shape(&c, 3, 2);
    end(&c);
}

static void test_named(void **state)
{
    (void)state;
    const int64_t shape[2] = {6, 1}, rows[2] = {1, 0};
    call c;
    assert_int_equal(begin(&c, reshape, shape, false, "s"), INV_OK);
    expect_shape(&c, 6, 1);
    /* the same values by way of rows, or of another integer type */
    const int64_t swapped[2] = {1, 6};
    c.in[1].data = swapped;
    c.in[1].rows = rows;
    expect_shape(&c, 6, 1);
    const int32_t narrow[2] = {6, 1};
    c.in[1] = (inv_array){.name = "s", .dtype = INV_I32, .rank = 1, .dims = two, .data = narrow};
    expect_shape(&c, 6, 1);
    const float real[2] = {6, 1};
    c.in[1].dtype = INV_F32;
    c.in[1].data = real;
    inv_result r;
    assert_int_equal(inv_session_eval(c.s, c.in, 2, NULL, &r), INV_E_ARG);
    end(&c);
}

/* Training: only the input that decides is constant; its rows do not change with the batch. */
static void test_training(void **state)
{
    (void)state;
    const char *text = "<opset_import: [\"\" : 17]>\n"
                       "g (float[2,3] x, int64[2] s) => (y) {\n"
                       "  param trainable float[3] w\n"
                       "  h = Mul(x, w)\n"
                       "  r = Reshape(h, s)\n"
                       "  y = ReduceSum<keepdims = 0>(r)\n"
                       "}\n";
    const int64_t shape[2] = {3, -1};
    call c = {0};
    assert_int_equal(begin(&c, text, shape, false, NULL), INV_E_NOT_CONSTANT);
    c.o.purpose = INV_FOR_TRAIN;
    c.o.loss = INV_LOSS_OUTPUT;
    c.o.constants_as_needed = true;
    if (inv_session_create(&c.model, &c.o, &c.s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    inv_result r;
    assert_int_equal(inv_session_grad(c.s, c.in, 2, NULL, &r), INV_OK);
    const void *data;
    inv_dtype t;
    int rank;
    int64_t dims[INV_MAX_RANK];
    assert_int_equal(inv_session_get(c.s, INV_GET_GRAD, "w", &data, &t, &rank, dims), INV_OK);
    const float *g = data;
    assert_float_equal(g[0], 5, 0);
    assert_float_equal(g[1], 7, 0);
    assert_float_equal(g[2], 9, 0);
    end(&c);
}

/* A parameter is no input: there is nothing to give. */
static void test_parameter(void **state)
{
    (void)state;
    const char *text = "<opset_import: [\"\" : 17]>\n"
                       "g (float[2,3] x, int64[2] s) => (y) {\n"
                       "  param trainable float[2] w\n"
                       "  t = Cast<to = 7>(w)\n"
                       "  u = Add(t, s)\n"
                       "  y = Reshape(x, u)\n"
                       "}\n";
    const int64_t shape[2] = {3, 2};
    call c;
    assert_int_equal(begin(&c, text, shape, true, NULL), INV_E_NOT_CONSTANT);
    says("depends on parameter 'w'");
    says("export the model with it as a constant");
    end(&c);
}

typedef struct failing {
    long left, live; /* allocations until one fails, none if negative; blocks in use */
} failing;

static void *failing_alloc(void *opaque, size_t nbytes)
{
    failing *f = opaque;
    if (f->left == 0) return NULL;
    f->left -= f->left > 0;
    void *p = malloc(nbytes);
    f->live += p != NULL;
    return p;
}

static void failing_free(void *opaque, void *p)
{
    ((failing *)opaque)->live -= p != NULL;
    free(p);
}

/* Each allocation of a session that is planned twice fails in turn: out of memory, never anything else, no leak. */
static void test_allocations(void **state)
{
    (void)state;
    inv_context *usual = ctx;
    const int64_t shape[2] = {3, 2};
    inv_status s = INV_E_NOMEM;
    for (long n = 0; s != INV_OK; n++) {
        failing f = {.left = -1};
        const inv_allocator a = {failing_alloc, failing_free, &f};
        const inv_context_options o = {.size = sizeof o, .allocator = &a};
        call c;
        assert_int_equal(inv_context_create(&o, &ctx), INV_OK);
        assert_int_equal(begin(&c, reshape, shape, false, NULL), INV_E_NOT_CONSTANT);
        c.o.constants_as_needed = true;
        f.left = n;
        s = inv_session_create(&c.model, &c.o, &c.s);
        if (s != INV_OK) assert_int_equal(s, INV_E_NOMEM);
        f.left = -1;
        end(&c);
        inv_context_destroy(ctx);
        assert_int_equal(f.live, 0);
    }
    ctx = usual;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_as_needed), cmocka_unit_test(test_named),
        cmocka_unit_test(test_training), cmocka_unit_test(test_parameter), cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
