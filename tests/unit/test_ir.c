/* SPDX-License-Identifier: Apache-2.0
 * core/ir*.c: building, copying, emitting with folding, analysis, the checker. */
#include "core_test.h"

#include <stdio.h>

typedef struct fixture {
    counting c;
    inv_context *ctx;
    inv_graph *g;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->ctx = test_context(&f->c);
    assert_int_equal(toy_registry(f->ctx), INV_OK);
    assert_int_equal(inv_graph_create(f->ctx, "g", &f->g), INV_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    inv_graph_destroy(f->g);
    test_context_end(f->ctx, &f->c);
    free(f);
    return 0;
}

static inv_id input(inv_graph *g, const char *name, int64_t n)
{
    inv_shape s = inv_shape_of(1, &n);
    inv_id v = inv_graph_value(g, name, INV_ROLE_INPUT, INV_F32, &s);
    assert_true(inv_vec_push(&g->arena, &g->inputs, v));
    return v;
}

static void output(inv_graph *g, inv_id v)
{
    inv_val(g, v)->is_output = true;
    assert_true(inv_vec_push(&g->arena, &g->outputs, v));
}

static void says(const fixture *f, const char *part)
{
    if (!strstr(inv_context_message(f->ctx), part)) fail_msg("'%s' is not in '%s'", part, inv_context_message(f->ctx));
}

static void names_are_fresh_and_found(void **state)
{
    fixture *f = *state;
    inv_id x = input(f->g, "x", 3), taken = input(f->g, "x.1", 3);
    assert_int_equal(inv_graph_find(f->g, "x"), x);
    assert_int_equal(inv_graph_find(f->g, "nope"), INV_NONE);
    const char *a = inv_graph_fresh(f->g, "x");
    assert_string_equal(a, "x.2"); /* x.1 is an input's name */
    assert_string_equal(inv_graph_fresh(f->g, "x.2"), "x.3");
    assert_string_equal(inv_graph_fresh(f->g, ""), "v.4");
    for (int i = 0; i < 3000; i++) assert_true(inv_graph_value(f->g, NULL, INV_ROLE_NODE, INV_F32, NULL) != INV_NONE);
    assert_int_equal(inv_graph_find(f->g, "x.1"), taken);
    inv_graph_swap_names(f->g, x, taken);
    assert_int_equal(inv_graph_find(f->g, "x"), taken);
    assert_int_equal(inv_graph_find(f->g, "x.1"), x);
    assert_string_equal(inv_val(f->g, taken)->name, "x");
}

static void attributes_are_read_by_kind(void **state)
{
    fixture *f = *state;
    inv_id x = input(f->g, "x", 3), y = inv_graph_value(f->g, "y", INV_ROLE_NODE, INV_F32, NULL);
    inv_id n =
        inv_graph_node(f->g, "", "Odd", "n", INV_IN(x), INV_IN(y),
                       INV_ATTRS(inv_attr_of_int("i", -4), inv_attr_of_float("f", 0.5), inv_attr_of_string("s", "t"),
                                 inv_attr_of_ints("l", 2, (int64_t[]){7, 8}), inv_attr_of_ints("e", 0, NULL)));
    const inv_node *node = inv_nod(f->g, n);
    size_t count;
    assert_null(node->op);
    assert_int_equal(inv_attr_int(node, "i", 0), -4);
    assert_int_equal(inv_attr_int(node, "f", 9), 9); /* another kind: as absent */
    assert_true(inv_attr_float(node, "f", 0) == 0.5 && inv_attr_float(node, "i", 0) == -4.0);
    assert_string_equal(inv_attr_string(node, "s", ""), "t");
    const int64_t *l = inv_attr_ints(node, "l", &count);
    assert_true(count == 2 && l[1] == 8);
    assert_non_null(inv_attr_ints(node, "e", &count)); /* empty is not absent */
    assert_int_equal(count, 0);
    assert_null(inv_attr_ints(node, "absent", &count));
    l = inv_attr_ints(node, "i", &count);
    assert_true(count == 1 && l[0] == -4);
}

/* Nodes that differ in an attribute must not be taken for one, whatever the attribute's kind. */
static void attributes_are_compared(void **state)
{
    (void)state;
    static const char *ab[] = {"a", "b"}, *ac[] = {"a", "c"};
    const inv_attr list = {.name = "s", .kind = INV_ATTR_STRINGS, .n = 2, .strings = ab};
    const inv_attr other = {.name = "s", .kind = INV_ATTR_STRINGS, .n = 2, .strings = ac};
    const inv_attr body = {.name = "body", .kind = INV_ATTR_GRAPH};
    const inv_attr zero = inv_attr_of_float("f", 0.0), minus = inv_attr_of_float("f", -0.0);
    assert_true(inv_attr_same(&list, &list));
    assert_false(inv_attr_same(&list, &other));
    assert_false(inv_attr_same(&body, &body)); /* not known */
    assert_false(inv_attr_same(&zero, &minus));
    assert_false(inv_attr_same(&zero, &list));
}

static void emit_infers_and_names(void **state)
{
    fixture *f = *state;
    inv_id x = input(f->g, "x", 3);
    const char *origin[] = {"/layer/Add"};
    f->g->emit_origin = origin;
    f->g->emit_norigin = 1;
    f->g->phase = INV_BACKWARD;
    inv_id y = inv_emit1(f->g, "Add", INV_IN(x, x), INV_NOATTR);
    assert_true(y != INV_NONE);
    const inv_value *v = inv_val(f->g, y);
    assert_int_equal(v->shape.dim[0], 3);
    assert_int_equal(strncmp(v->name, "/layer/Add.", 11), 0);
    const inv_node *n = inv_nod(f->g, v->def);
    assert_int_equal(n->phase, INV_BACKWARD);
    assert_string_equal(n->origin[0], "/layer/Add");
    assert_int_equal(n->op->since, 7); /* the newest form */
    assert_int_equal(f->g->order.n, 1);
    output(f->g, y);
    assert_int_equal(inv_graph_check(f->g, true), INV_OK);
}

static void emit_failure_is_sticky(void **state)
{
    fixture *f = *state;
    inv_id x = input(f->g, "x", 3), z = input(f->g, "z", 4);
    inv_id bad = inv_emit1(f->g, "Add", INV_IN(x, z), INV_NOATTR);
    assert_int_equal(bad, INV_NONE);
    assert_int_equal(f->g->failed, INV_E_SHAPE);
    says(f, "(Add), inputs float[3], float[4]: wants two operands of one shape");
    assert_int_equal(inv_emit1(f->g, "Relu", INV_IN(bad), INV_NOATTR), INV_NONE);
    assert_int_equal(inv_graph_value(f->g, "q", INV_ROLE_NODE, INV_F32, NULL), INV_NONE);
    assert_int_equal(inv_graph_const_real(f->g, INV_F32, 1), INV_NONE);
    assert_int_equal(f->g->failed, INV_E_SHAPE);
    says(f, "wants two operands"); /* the first failure's message stays */
}

static void emit_checks_its_caller(void **state)
{
    fixture *f = *state;
    const char *wants[] = {"Add lacks its input 1", "Add takes only 2 inputs",  "operator Nope is not registered",
                           "Add lacks its input 0", "Concat lacks its input 0", NULL};
    for (int i = 0; wants[i] || i == 5; i++) {
        inv_graph *g;
        assert_int_equal(inv_graph_create(f->ctx, "", &g), INV_OK);
        inv_id x = input(g, "x", 3), y = INV_NONE;
        if (i == 0) y = inv_emit1(g, "Add", INV_IN(x), INV_NOATTR);
        if (i == 1) y = inv_emit1(g, "Add", INV_IN(x, x, x), INV_NOATTR);
        if (i == 2) y = inv_emit1(g, "Nope", INV_IN(x), INV_NOATTR);
        if (i == 3) y = inv_emit1(g, "Add", INV_IN(INV_NONE, x), INV_NOATTR);
        if (i == 4) y = inv_emit1(g, "Concat", 0, NULL, INV_NOATTR);
        if (i == 5) y = inv_emit1(g, "Clip", INV_IN(x, INV_NONE, x), INV_NOATTR);
        if (i == 5) {
            assert_true(y != INV_NONE);
        } else {
            assert_int_equal(y, INV_NONE);
            says(f, wants[i]);
        }
        inv_graph_destroy(g);
        if (i == 5) break;
    }
}

static void constants_fold(void **state)
{
    fixture *f = *state;
    inv_graph *g = f->g;
    inv_shape s = inv_shape_of(1, (int64_t[]){2});
    char raw[9];
    const float one[] = {1, 2};
    memcpy(raw + 1, one, sizeof one);
    inv_id a = inv_graph_const(g, INV_F32, &s, one), b = inv_graph_const(g, INV_F32, &s, one);
    inv_val(g, b)->data.bytes = raw + 1; /* as in a mapped file: not aligned */
    inv_id unfolded = inv_emit1(g, "Add", INV_IN(a, b), INV_NOATTR);
    assert_int_equal(inv_val(g, unfolded)->role, INV_ROLE_NODE);
    g->fold = true;
    inv_id sum = inv_emit1(g, "Add", INV_IN(a, b), INV_NOATTR);
    assert_true(inv_const_known(g, sum));
    float got[2];
    memcpy(got, inv_val(g, sum)->data.bytes, sizeof got);
    assert_true(got[0] == 2 && got[1] == 4);
    assert_int_equal(g->order.n, 1); /* the folded node is not in it */
    inv_id view = inv_emit1(g, "View", INV_IN(sum), INV_ATTRS(inv_attr_of_ints("shape", 2, (int64_t[]){1, 2})));
    assert_true(inv_const_known(g, view));
    assert_int_equal(inv_val(g, view)->shape.rank, 2);
    assert_memory_equal(inv_val(g, view)->data.bytes, got, sizeof got);
    inv_id noise = inv_emit1(g, "Noise", INV_IN(a), INV_NOATTR);
    assert_false(inv_const_known(g, noise));
    inv_id x = input(g, "x", 2), open = inv_emit1(g, "Add", INV_IN(x, a), INV_NOATTR);
    assert_false(inv_const_known(g, open));
    /* float64 mode: the value is double, the file's data are not; this kernel refuses doubles, so the node stays */
    inv_val(g, a)->dtype = inv_val(g, b)->dtype = INV_F64;
    inv_id refused = inv_emit1(g, "Add", INV_IN(a, b), INV_NOATTR);
    assert_true(refused != INV_NONE && !inv_const_known(g, refused));
}

static void large_results_are_not_folded(void **state)
{
    fixture *f = *state;
    inv_shape s = inv_shape_of(1, (int64_t[]){(4 << 20) + 1});
    float *data = calloc((4 << 20) + 1, sizeof *data);
    f->g->fold = true;
    inv_id a = inv_graph_const(f->g, INV_F32, &s, data);
    free(data);
    assert_false(inv_const_known(f->g, inv_emit1(f->g, "Add", INV_IN(a, a), INV_NOATTR)));
    assert_int_equal(f->g->failed, INV_OK);
}

static void constants_are_read(void **state)
{
    fixture *f = *state;
    int64_t v[2], got[2];
    size_t n;
    v[0] = 5, v[1] = -6;
    inv_id c = inv_graph_const_ints(f->g, 2, v);
    assert_true(inv_const_ints(f->g, c, 2, got, &n));
    assert_true(n == 2 && got[0] == 5 && got[1] == -6);
    assert_false(inv_const_ints(f->g, c, 1, got, &n)); /* no room */
    assert_false(inv_const_ints(f->g, INV_NONE, 2, got, &n));
    inv_id r = inv_graph_const_real(f->g, INV_F64, 0.25);
    double d;
    memcpy(&d, inv_val(f->g, r)->data.bytes, sizeof d);
    assert_true(d == 0.25 && inv_val(f->g, r)->shape.rank == 0);
    inv_shape s = inv_shape_of(1, (int64_t[]){2});
    inv_id p = inv_graph_value(f->g, "p", INV_ROLE_PARAM, INV_I64, &s);
    assert_false(inv_const_known(f->g, p)); /* no data */
    inv_val(f->g, p)->data = (inv_data){INV_I64, s, v, sizeof v};
    assert_true(inv_const_known(f->g, p));
    inv_val(f->g, p)->state = true;
    assert_false(inv_const_known(f->g, p));
}

static void double_definition_fails(void **state)
{
    fixture *f = *state;
    inv_id x = input(f->g, "x", 3), y = inv_graph_value(f->g, "y", INV_ROLE_NODE, INV_F32, NULL);
    assert_true(inv_graph_node(f->g, "", "Relu", "a", INV_IN(x), INV_IN(y), INV_NOATTR) != INV_NONE);
    assert_int_equal(inv_graph_node(f->g, "", "Relu", "b", INV_IN(x), INV_IN(y), INV_NOATTR), INV_NONE);
    assert_int_equal(f->g->failed, INV_E_GRAPH);
    says(f, "value 'y' is defined twice");
}

/* --- analysis --- */

static inv_graph *parse(const fixture *f, const char *text)
{
    inv_graph *g = NULL;
    if (inv_graph_parse(f->ctx, text, &g) != INV_OK) fail_msg("%s", inv_context_message(f->ctx));
    return g;
}

static void sort_is_stable(void **state)
{
    fixture *f = *state;
    inv_graph *g =
        parse(f, "g (float[2] x) => (d) {\n d = Add(b, c)\n c = Relu(a)\n b = Relu(a)\n e = Relu(x)\n a = Relu(x)\n}");
    assert_int_equal(inv_graph_check(g, false), INV_E_GRAPH);
    assert_int_equal(inv_graph_sort(g), INV_OK);
    const char *want[] = {"a", "b", "c", "d", "e"};
    for (size_t i = 0; i < 5; i++) assert_string_equal(inv_val(g, inv_nod(g, g->order.at[i])->out[0])->name, want[i]);
    assert_int_equal(inv_graph_sort(g), INV_OK); /* an order that is right stays */
    for (size_t i = 0; i < 5; i++) assert_string_equal(inv_val(g, inv_nod(g, g->order.at[i])->out[0])->name, want[i]);
    assert_int_equal(inv_graph_check(g, false), INV_OK);
    assert_int_equal(inv_graph_prune(g), INV_OK);
    assert_int_equal(g->order.n, 4); /* e is read by nobody */
    inv_graph_destroy(g);
}

static void cycles_are_named(void **state)
{
    fixture *f = *state;
    inv_graph *g = parse(f, "g (float[2] x) => (a) {\n [A] a = Add(x, c)\n [B] b = Relu(a)\n [C] c = Relu(b)\n}");
    assert_int_equal(inv_graph_sort(g), INV_E_GRAPH);
    says(f, "cycle of 3 nodes");
    says(f, "'A' (Add)");
    says(f, "'C' (Relu)");
    inv_graph_destroy(g);
    g = parse(f, "g (float[2] x) => (a) {\n a = Add(x, a)\n}");
    assert_int_equal(inv_graph_sort(g), INV_E_GRAPH);
    says(f, "cycle of 1 node");
    inv_graph_destroy(g);
}

static void long_chains_do_not_recurse(void **state)
{
    fixture *f = *state;
    enum { N = 200000 };
    inv_id x = input(f->g, "x", 1);
    for (int i = 0; i < N; i++) x = inv_emit1(f->g, "Relu", INV_IN(x), INV_NOATTR);
    assert_true(x != INV_NONE);
    output(f->g, x);
    for (size_t i = 0; i < N / 2; i++) { /* reversed: the worst case */
        inv_id t = f->g->order.at[i];
        f->g->order.at[i] = f->g->order.at[N - 1 - i];
        f->g->order.at[N - 1 - i] = t;
    }
    assert_int_equal(inv_graph_sort(f->g), INV_OK);
    assert_int_equal(inv_graph_prune(f->g), INV_OK);
    assert_int_equal(f->g->order.n, N);
    assert_int_equal(inv_graph_check(f->g, true), INV_OK);
}

static void uses_are_listed(void **state)
{
    fixture *f = *state;
    inv_graph *g = parse(f, "g (float[2] x) => (z) {\n y = Add(x, x)\n z = Add(y, x)\n}");
    inv_arena scratch;
    inv_uses u;
    inv_arena_init(&scratch, f->ctx);
    assert_int_equal(inv_graph_uses(g, &scratch, &u), INV_OK);
    inv_id x = inv_graph_find(g, "x"), y = inv_graph_find(g, "y"), z = inv_graph_find(g, "z");
    assert_int_equal(u.start[x + 1] - u.start[x], 3);
    assert_int_equal(u.node[u.start[x]], g->order.at[0]);
    assert_int_equal(u.slot[u.start[x] + 1], 1);
    assert_int_equal(u.node[u.start[x] + 2], g->order.at[1]);
    assert_int_equal(u.start[y + 1] - u.start[y], 1);
    assert_int_equal(u.start[z + 1] - u.start[z], 0);
    inv_arena_fini(&scratch);
    inv_graph_destroy(g);
}

static void prune_keeps_effects_and_positions(void **state)
{
    fixture *f = *state;
    inv_graph *g = parse(f, "g (float[2] x) => (y) {\n param float[2] W\n y = Relu(x)\n a = Relu(x)\n # backward\n d = "
                            "Relu(y)\n b = Relu(y)\n"
                            " # commit\n Assign(W, d)\n}");
    assert_int_equal(g->forward_end, 2);
    assert_int_equal(g->commit_begin, 4);
    assert_int_equal(inv_graph_prune(g), INV_OK);
    assert_int_equal(g->order.n, 3); /* a and b go; y, d and Assign stay */
    assert_int_equal(g->forward_end, 1);
    assert_int_equal(g->commit_begin, 2);
    assert_int_equal(inv_graph_check(g, false), INV_OK);
    inv_graph_destroy(g);
}

static void check_names_everything(void **state)
{
    fixture *f = *state;
    inv_graph *g =
        parse(f, "g (float[2] x, float[N] t) => (y) {\n param float[2] W\n [early] y = Add(x, z)\n [late] z = Relu(x)\n"
                 " [wrong] w = Clip(W, x, x, x)\n [write] Assign(W, x)\n [what] u = Unknown(t)\n}");
    assert_int_equal(inv_graph_check(g, true), INV_E_GRAPH);
    says(f, "'early' (Add): reads 'z', which is computed only later");
    says(f, "'wrong' (Clip): takes 3 inputs, 4 are given");
    says(f, "'write' (Assign): writes, but does not belong to commit");
    says(f, "'what' (Unknown): operator of domain '' is not registered");
    says(f, "value 'w' has type undefined[...], which is not fixed");
    inv_val(g, inv_graph_find(g, "w"))->name = "x";
    assert_int_equal(inv_graph_check(g, false), INV_E_GRAPH);
    says(f, "two values are named 'x'");
    g->order.n = 0;
    assert_int_equal(inv_graph_check(g, false), INV_E_GRAPH);
    says(f, "output 'y' is computed by nothing");
    inv_graph_destroy(g);
}

static void copies_stand_alone(void **state)
{
    fixture *f = *state;
    inv_graph *g = parse(f, "<opset_import: [\"\" : 17]>\ng (float[N,3] x) => (y) {\n param trainable float[3] W\n"
                            " y = Odd<l = [1, 2], s = \"t\", q = [\"a\"], r = [0.5], t = float[2] {1, 2}>(x, W)\n}");
    inv_function fn = {.domain = "my", .name = "F"};
    assert_int_equal(inv_graph_create(f->ctx, "body", &fn.body), INV_OK);
    assert_true(inv_vec_push(&g->arena, &g->function, fn));
    inv_graph *c;
    inv_str before, after;
    inv_str_init(&before, f->ctx);
    inv_str_init(&after, f->ctx);
    assert_int_equal(inv_graph_copy(g, &c), INV_OK);
    assert_int_equal(inv_graph_print(g, &before), INV_OK);
    inv_nod(c, 0)->attr[3].name = "changed";
    inv_nod(c, 0)->in[0] = INV_NONE;
    inv_nod(c, 0)->attr[3].name = "r";
    inv_nod(c, 0)->in[0] = inv_graph_find(c, "x");
    const void *tensor = inv_nod(g, 0)->attr[4].tensor.bytes;
    assert_ptr_equal(inv_nod(c, 0)->attr[4].tensor.bytes, tensor); /* tensor data stay where they are */
    inv_nod(c, 0)->nattr = 4;
    inv_nod(g, 0)->nattr = 4;
    inv_str_fini(&before);
    assert_int_equal(inv_graph_print(g, &before), INV_OK);
    inv_graph_destroy(g);
    assert_int_equal(inv_graph_print(c, &after), INV_OK);
    assert_string_equal(before.s, after.s);
    assert_string_equal(c->function.at[0].body->name, "body");
    assert_int_equal(inv_graph_opset(c, "ai.onnx"), 17);
    assert_int_equal(inv_graph_find(c, "y"), c->outputs.at[0]);
    inv_str_fini(&before);
    inv_str_fini(&after);
    inv_graph_destroy(c);
}

static inv_status emit_and_fold(inv_context *ctx)
{
    inv_graph *g;
    INV_TRY(inv_graph_create(ctx, "g", &g));
    char raw[9] = {0}; /* not aligned: folding has to copy */
    inv_shape s = inv_shape_of(1, (int64_t[]){2});
    inv_id x = inv_graph_value(g, "x", INV_ROLE_INPUT, INV_F32, &s), a = inv_graph_const(g, INV_F32, &s, raw);
    if (a != INV_NONE) inv_val(g, a)->data.bytes = raw + 1;
    g->fold = true;
    for (int i = 0; i < 30; i++) {
        inv_id v = inv_emit1(g, "View", INV_IN(a), INV_ATTRS(inv_attr_of_ints("shape", 1, s.dim)));
        a = inv_emit1(g, "Add", INV_IN(a, v), INV_NOATTR);
        x = inv_emit1(g, "Add", INV_IN(x, a), INV_NOATTR);
    }
    inv_status status = g->failed; /* callers look once, at the end */
    if (status == INV_OK) {
        status = inv_vec_push(&g->arena, &g->outputs, x) ? inv_graph_check(g, true) : INV_E_NOMEM;
    }
    inv_graph_destroy(g);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    bool done = false;
    for (long k = 1; !done; k++) {
        counting c = {0};
        inv_context *ctx = test_context(&c);
        assert_int_equal(toy_registry(ctx), INV_OK);
        c.calls = 0;
        c.fail_at = k;
        inv_status s = emit_and_fold(ctx);
        done = c.calls < k;
        assert_int_equal(s, done ? INV_OK : INV_E_NOMEM);
        test_context_end(ctx, &c);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(names_are_fresh_and_found),
        T(attributes_are_read_by_kind),
        T(attributes_are_compared),
        T(emit_infers_and_names),
        T(emit_failure_is_sticky),
        T(emit_checks_its_caller),
        T(constants_fold),
        T(large_results_are_not_folded),
        T(constants_are_read),
        T(double_definition_fails),
        T(sort_is_stable),
        T(cycles_are_named),
        T(long_chains_do_not_recurse),
        T(uses_are_listed),
        T(prune_keeps_effects_and_positions),
        T(check_names_everything),
        T(copies_stand_alone),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
