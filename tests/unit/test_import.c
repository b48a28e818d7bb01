/* SPDX-License-Identifier: Apache-2.0
 * Import: fails if a value, attribute or encoding comes out differently from what the file says, if a
 * defect is not named, or if a failing allocation crashes or leaks. */
#define _XOPEN_SOURCE 700
#include "load_model.h"

static void test_small(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(model_of(small_graph(w3())), "m.onnx"));
    const inv_graph *g = m->graph;
    assert_int_equal(g->order.n, 2);
    assert_int_equal(g->inputs.n, 1);
    assert_int_equal(g->outputs.n, 1);
    const inv_value *x = value(m, "x"), *w = value(m, "w"), *y = value(m, "y");
    assert_int_equal(x->role, INV_ROLE_INPUT);
    assert_int_equal(x->dtype, INV_F32);
    assert_int_equal(x->shape.rank, 2);
    assert_int_equal(x->shape.dim[0], -1);
    assert_string_equal(x->dim_param[0], "N");
    assert_int_equal(x->shape.dim[1], 3);
    assert_int_equal(w->role, INV_ROLE_PARAM);
    assert_int_equal(w->data.nbytes, 12);
    assert_memory_equal(w->data.bytes, ((const float[]){1, 2, 3}), 12);
    assert_true(y->is_output);
    const inv_node *relu = inv_nod(g, y->def);
    assert_string_equal(relu->op_type, "Relu");
    assert_string_equal(relu->name, "relu");
    assert_int_equal(inv_graph_opset(g, ""), 17);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static void test_typed_data(void **state)
{
    (void)state;
    static const struct {
        int dtype;
        unsigned field, n; /* numbers in the field */
        int64_t v[2];
        unsigned char bytes[16];
        size_t nbytes;
    } row[] = {
        {INV_I32, 5, 2, {-2, 7}, {0xfe, 0xff, 0xff, 0xff, 7, 0, 0, 0}, 8},
        {INV_I8, 5, 2, {-2, 7}, {0xfe, 7}, 2},
        {INV_U8, 5, 2, {200, 7}, {200, 7}, 2},
        {INV_I16, 5, 2, {-2, 7}, {0xfe, 0xff, 7, 0}, 4},
        {INV_U16, 5, 2, {65535, 7}, {0xff, 0xff, 7, 0}, 4},
        {INV_BOOL, 5, 2, {1, 0}, {1, 0}, 2},
        {INV_F16, 5, 2, {0x3c00, 0xc000}, {0, 0x3c, 0, 0xc0}, 4},
        {INV_BF16, 5, 2, {0x3f80, 0xbf80}, {0x80, 0x3f, 0x80, 0xbf}, 4},
        {INV_I64, 7, 2, {-2, 7}, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 7}, 16},
        {INV_U64, 11, 2, {3, 7}, {3, 0, 0, 0, 0, 0, 0, 0, 7}, 16},
        {INV_U32, 11, 2, {3, 7}, {3, 0, 0, 0, 7}, 8},
    };
    inv_context *ctx = context(NULL);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        for (int packed = 0; packed < 2; packed++) {
            pb t = tensor_head("w", row[i].dtype, 1, (const int64_t[]){2}), list = {0};
            for (unsigned k = 0; k < row[i].n; k++) {
                if (packed) pb_varint(&list, (uint64_t)row[i].v[k]);
                else pb_int(&t, row[i].field, row[i].v[k]);
            }
            if (packed) pb_msg(&t, row[i].field, list);
            inv_model *m = load(ctx, save(model_of(small_graph(t)), "m.onnx"));
            assert_int_equal(value(m, "w")->dtype, row[i].dtype);
            assert_int_equal(value(m, "w")->data.nbytes, row[i].nbytes);
            assert_memory_equal(value(m, "w")->data.bytes, row[i].bytes, row[i].nbytes);
            inv_model_destroy(m);
        }
    }
    static const float f[] = {1, -2};
    static const double d[] = {1, -2};
    for (int k = 0; k < 4; k++) {
        static const int dtype[] = {INV_F32, INV_F64, INV_C64, INV_C128};
        bool wide = k % 2;
        pb t = tensor_head("w", dtype[k], 1, (const int64_t[]){k < 2 ? 2 : 1});
        pb_bytes(&t, wide ? 10 : 4, wide ? (const void *)d : f, wide ? sizeof d : sizeof f);
        inv_model *m = load(ctx, save(model_of(small_graph(t)), "m.onnx"));
        assert_int_equal(value(m, "w")->data.nbytes, wide ? sizeof d : sizeof f);
        assert_memory_equal(value(m, "w")->data.bytes, wide ? (const void *)d : f, wide ? sizeof d : sizeof f);
        inv_model_destroy(m);
    }
    inv_context_destroy(ctx);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const float f[4] = {0};
    const int64_t three[] = {3}, negative[] = {-3}, huge[] = {1LL << 32, 1LL << 32, 4}, nine[9] = {1};
    REFUSED(model_of(small_graph(tensor_raw("w", 1, 1, three, f, 16))), INV_E_PARSE, "initializer 'w'", "16 bytes",
            "needs 12");
    REFUSED(model_of(small_graph(tensor_raw("w", 1, 1, negative, f, 12))), INV_E_PARSE, "initializer 'w'", "negative");
    REFUSED(model_of(small_graph(tensor_raw("w", 1, 3, huge, f, 16))), INV_E_PARSE, "initializer 'w'", "addressed");
    REFUSED(model_of(small_graph(tensor_raw("w", 1, 9, nine, f, 4))), INV_E_PARSE, "9 dimensions");
    REFUSED(model_of(small_graph(tensor_raw("w", 17, 1, three, f, 4))), INV_E_PARSE, "'w'", "float8e4m3fn needs 3");
    REFUSED(model_of(small_graph(tensor_raw("w", 22, 1, three, f, 3))), INV_E_PARSE, "'w'", "int4 needs 2");
    REFUSED(model_of(small_graph(tensor_raw("w", 99, 1, three, f, 3))), INV_E_UNSUPPORTED_TYPE, "'w'", "99");
    REFUSED(model_of(small_graph(tensor_head("w", 1, 1, three))), INV_E_PARSE, "'w'", "0 numbers", "needs 3");
    pb t = tensor_raw("w", 1, 1, three, f, 12);
    pb_bytes(&t, 4, f, 12);
    REFUSED(model_of(small_graph(t)), INV_E_PARSE, "both raw data and");
    t = tensor_head("w", 1, 1, three);
    pb_bytes(&t, 7, "\1\2\3", 3);
    REFUSED(model_of(small_graph(t)), INV_E_PARSE, "do not belong to its type");
    t = tensor_head("w", 8, 1, three);
    for (int i = 0; i < 3; i++) pb_str(&t, 6, "s");
    pb_str(&t, 6, "s");
    REFUSED(model_of(small_graph(t)), INV_E_PARSE, "'w'", "4 numbers");
    pb g = small_graph(w3()), sparse = {0};
    pb_msg(&sparse, 1, tensor_head(NULL, 1, 1, three));
    pb_msg(&g, 15, sparse);
    REFUSED(model_of(g), INV_E_GRAPH, "sparse initializer 0 has no name");
    g = small_graph(w3());
    sparse = (pb){0};
    pb_msg(&sparse, 1, tensor_head("w", 1, 1, three));
    pb_msg(&g, 15, sparse);
    REFUSED(model_of(g), INV_E_GRAPH, "a sparse initializer defines 'w', which is already defined");
}

/* Everything that is wrong is told at once. */
static void test_bad_graphs(void **state)
{
    (void)state;
    pb g = small_graph(w3());
    pb_msg(&g, 1, node("", "Relu", "again", "h", "y"));
    pb_msg(&g, 1, node("", "Add", "lost", "h nowhere", "z"));
    pb_msg(&g, 1, node("", "Add", "lost2", "elsewhere h", "x"));
    pb_msg(&g, 12, value_info("never", 1, 0, NULL));
    REFUSED(model_of(g), INV_E_GRAPH, "5 defects", "node 'again' (Relu) defines 'y'", "'lost' (Add) reads 'nowhere'",
            "'lost2' (Add) reads 'elsewhere'", "'lost2' (Add) defines 'x'", "output 'never' is never produced");
    g = small_graph(w3());
    pb_msg(&g, 1, node("", "Add", "c1", "x q", "p"));
    pb_msg(&g, 1, node("", "Relu", "c2", "p", "q"));
    REFUSED(model_of(g), INV_E_GRAPH, "cycle");
    pb n = node("", "Relu", "twice", "h", "q");
    pb_msg(&n, 5, attr_int("a", 1));
    pb_msg(&n, 5, attr_int("a", 2));
    g = small_graph(w3());
    pb_msg(&g, 1, n);
    REFUSED(model_of(g), INV_E_GRAPH, "'twice' (Relu)", "attribute 'a' twice");
    n = node("", "Relu", "r", "h", "q");
    pb_msg(&n, 5, attr_ref("a", "b", 2));
    g = small_graph(w3());
    pb_msg(&g, 1, n);
    REFUSED(model_of(g), INV_E_GRAPH, "'r' (Relu)", "'a' refers to 'b'");
    REFUSED((pb){0}, INV_E_PARSE, "empty");
    pb m = {0};
    pb_int(&m, 1, 8);
    REFUSED(m, INV_E_PARSE, "no graph");
}

static void test_opsets(void **state)
{
    (void)state;
    for (int v = 0; v <= 29; v++) {
        pb m = {0};
        pb_msg(&m, 7, small_graph(w3()));
        pb_msg(&m, 8, opset("ai.onnx", v));
        if (v < 1 || v > 28) {
            REFUSED(m, INV_E_UNSUPPORTED_OP, "operator set", "1 to 28");
            continue;
        }
        inv_context *ctx = context(NULL);
        inv_model *model = load(ctx, save(m, "m.onnx"));
        assert_int_equal(inv_graph_opset(model->graph, ""), v);
        inv_model_destroy(model);
        inv_context_destroy(ctx);
    }
    pb m = {0};
    pb_msg(&m, 7, small_graph(w3()));
    pb_msg(&m, 8, opset("other", 1));
    REFUSED(m, INV_E_GRAPH, "'add' (Add)", "'relu' (Relu)", "imports no operator set");
}

/* Nodes in any order; an initializer listed as input is not fed; omitted inputs and outputs. */
static void test_graph_forms(void **state)
{
    (void)state;
    const int64_t d[] = {2, 3};
    pb g = {0};
    pb_msg(&g, 1, node("", "Relu", "", "h", "y"));
    pb_msg(&g, 1, node("", "Clip", "", "x - w", "h -"));
    pb_msg(&g, 5, w3());
    pb_msg(&g, 11, value_info("w", 1, 1, (const int64_t[]){3}));
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    pb_msg(&g, 12, value_info("y", 1, 2, d));
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(model_of(g), "m.onnx"));
    assert_int_equal(m->graph->inputs.n, 1);
    const inv_node *first = inv_nod(m->graph, m->graph->order.at[0]);
    assert_string_equal(first->op_type, "Clip");
    assert_int_equal(first->nin, 3);
    assert_true(first->in[1] == INV_NONE);
    assert_true(first->out[1] == INV_NONE);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static const float three[] = {1, 2, 3};

/* A node with an attribute of each kind. */
static pb node_of_attributes(void)
{
    pb n = node("", "Thing", "t", "x w", "y"), a;
    pb_msg(&n, 5, attr_int("i", -5));
    pb_msg(&n, 5, attr_float("f", 0.5f));
    a = (pb){0};
    pb_str(&a, 1, "s");
    pb_str(&a, 4, "text");
    pb_msg(&n, 5, a); /* without a type: files of IR version 1 */
    a = (pb){0};
    pb_str(&a, 1, "is");
    for (int i = 0; i < 3; i++) pb_int(&a, 8, i - 1);
    pb_int(&a, 20, 7);
    pb_msg(&n, 5, a);
    a = (pb){0};
    pb_str(&a, 1, "fs");
    pb_bytes(&a, 7, three, sizeof three);
    pb_int(&a, 20, 6);
    pb_msg(&n, 5, a);
    a = (pb){0};
    pb_str(&a, 1, "ss");
    pb_str(&a, 9, "one");
    pb_str(&a, 9, "");
    pb_int(&a, 20, 8);
    pb_msg(&n, 5, a);
    a = (pb){0};
    pb_str(&a, 1, "t");
    pb_msg(&a, 5, tensor_raw(NULL, 1, 1, (const int64_t[]){3}, three, sizeof three));
    pb_int(&a, 20, 4);
    pb_msg(&n, 5, a);
    a = (pb){0};
    pb_str(&a, 1, "g");
    pb_msg(&a, 6, small_graph(w3()));
    pb_int(&a, 20, 5);
    pb_msg(&n, 5, a);
    return n;
}

static void test_attributes(void **state)
{
    (void)state;
    pb g = {0};
    pb_msg(&g, 1, node_of_attributes());
    pb_msg(&g, 5, w3());
    pb_msg(&g, 11, value_info("x", 1, 0, NULL));
    pb_msg(&g, 12, value_info("y", 1, 0, NULL));
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(model_of(g), "m.onnx"));
    const inv_node *t = inv_nod(m->graph, m->graph->order.at[0]);
    size_t count;
    assert_int_equal(t->nattr, 8);
    assert_int_equal(inv_attr_int(t, "i", 0), -5);
    assert_true(inv_attr_float(t, "f", 0) == 0.5);
    assert_string_equal(inv_attr_string(t, "s", ""), "text");
    const int64_t *is = inv_attr_ints(t, "is", &count);
    assert_int_equal(count, 3);
    assert_true(is[0] == -1 && is[2] == 1);
    assert_true(inv_attr_find(t, "fs")->floats[2] == 3);
    assert_string_equal(inv_attr_find(t, "ss")->strings[0], "one");
    assert_string_equal(inv_attr_find(t, "ss")->strings[1], "");
    assert_memory_equal(inv_attr_find(t, "t")->tensor.bytes, three, sizeof three);
    assert_int_equal(inv_attr_find(t, "g")->kind, INV_ATTR_GRAPH);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* --- external data --- */

static pb external(const char *location, const char *offset, const char *length)
{
    return model_of(small_graph(tensor_external("w", 1, 1, (const int64_t[]){3}, location, offset, length)));
}

static void test_external(void **state)
{
    (void)state;
    static const float f[] = {9, 1, 2, 3};
    char target[600];
    write_file(in_dir("w.bin"), f, sizeof f);
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    write_file(in_dir("sub/w.bin"), f, sizeof f);
    assert_int_equal(mkdir(in_dir("folder"), 0777), 0);
    snprintf(target, sizeof target, "%s/w.bin", test_dir);
    assert_int_equal(symlink(target, in_dir("link.bin")), 0);
    assert_int_equal(symlink("sub", in_dir("sublink")), 0);
    assert_int_equal(symlink("/proc/self/status", in_dir("away.bin")), 0);
    assert_int_equal(symlink("..", in_dir("up")), 0);
    assert_int_equal(mkfifo(in_dir("pipe"), 0666), 0);
    static const struct {
        const char *location, *offset, *length;
    } good[] = {{"w.bin", "4", "12"},   {"w.bin", "4", NULL},    {"sub/w.bin", "4", "12"},
                {"./w.bin", "4", "12"}, {"link.bin", "4", "12"}, {"sublink/w.bin", "4", "12"}};
    inv_context *ctx = context(NULL);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        inv_model *m = load(ctx, save(external(good[i].location, good[i].offset, good[i].length), "m.onnx"));
        assert_memory_equal(value(m, "w")->data.bytes, f + 1, 12);
        inv_model_destroy(m);
    }
    inv_context_destroy(ctx);
    REFUSED(external("../w.bin", NULL, NULL), INV_E_IO, "initializer 'w'", "'..'");
    REFUSED(external("sub/../w.bin", NULL, NULL), INV_E_IO, "'w'", "'..'");
    REFUSED(external("sub/..", NULL, NULL), INV_E_IO, "'w'", "'..'");
    REFUSED(external(target, NULL, NULL), INV_E_IO, "'w'", "absolute");
    REFUSED(external("", NULL, NULL), INV_E_IO, "'w'", "no file");
    REFUSED(external("away.bin", "4", "12"), INV_E_IO, "'w'", "away.bin", "symbolic link", "cp -rL");
    REFUSED(external("up/w.bin", "4", "12"), INV_E_IO, "'w'", "up/w.bin");
    REFUSED(external("folder", NULL, NULL), INV_E_IO, "'w'", "not a regular file");
    REFUSED(external("pipe", NULL, NULL), INV_E_IO, "'w'", "not a regular file");
    REFUSED(external("missing.bin", NULL, NULL), INV_E_IO, "'w'", "missing.bin");
    REFUSED(external("w.bin", "8", "12"), INV_E_PARSE, "'w'", "bytes 8 to 20", "only 16");
    REFUSED(external("w.bin", "0", "16"), INV_E_PARSE, "'w'", "16 bytes", "need 12");
    REFUSED(external("w.bin", "-4", "12"), INV_E_PARSE, "'w'", "offset");
    REFUSED(external("w.bin", "18446744073709551615", "12"), INV_E_PARSE, "'w'", "only 16");
    REFUSED(external("w.bin", "18446744073709551617", "12"), INV_E_PARSE, "'w'", "offset");
}

/* --- files from elsewhere --- */

static void each_model(void (*f)(inv_context *, const char *path, const char *name))
{
    const char *dir = shared_models();
    if (!dir) skip();
    DIR *d = opendir(dir);
    assert_non_null(d);
    inv_context *ctx = context(NULL);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/model.onnx", dir, e->d_name);
        if (access(path, R_OK) == 0) f(ctx, path, e->d_name);
    }
    closedir(d);
    inv_context_destroy(ctx);
}

static void one_model(inv_context *ctx, const char *path, const char *name)
{
    (void)name;
    inv_model *m = load(ctx, path);
    char *json;
    for (size_t i = 0; i < m->graph->inits.n; i++)
        assert_non_null(inv_val(m->graph, m->graph->inits.at[i])->data.bytes);
    if (inv_graph_check(m->graph, false) != INV_OK) fail_msg("%s: %s", path, inv_context_message(ctx));
    assert_int_equal(inv_model_inspect(m, &json), INV_OK);
    inv_free(ctx, json);
    inv_model_destroy(m);
}

static void test_shared_models(void **state)
{
    (void)state;
    each_model(one_model);
}

static void test_shared_bad(void **state)
{
    (void)state;
    static const char *const refused_files[] = {"cycle",
                                                "duplicate_output",
                                                "empty",
                                                "external_missing_file",
                                                "garbage",
                                                "huge_dims_overflow",
                                                "length_too_long",
                                                "missing_initializer",
                                                "negative_dim",
                                                "opset_9999",
                                                "output_undefined",
                                                "raw_data_short",
                                                "truncated_half",
                                                "wrong_weight_shape"};
    static const char *const loaded[] = {"deep_chain_3000", "valid_zero_batch", "unknown_op", "bomb_expand",
                                         "string_tensor"};
    const char *dir = shared_models();
    if (!dir) skip();
    inv_context *ctx = context(NULL);
    char path[1024];
    inv_model *m;
    for (size_t i = 0; i < sizeof refused_files / sizeof *refused_files; i++) {
        snprintf(path, sizeof path, "%s/bad/%s.onnx", dir, refused_files[i]);
        assert_int_not_equal(inv_model_load(ctx, path, &m), INV_OK);
        assert_true(strlen(inv_context_message(ctx)) > 20);
    }
    for (size_t i = 0; i < sizeof loaded / sizeof *loaded; i++) {
        snprintf(path, sizeof path, "%s/bad/%s.onnx", dir, loaded[i]);
        inv_model_destroy(load(ctx, path));
    }
    inv_context_destroy(ctx);
}

static void test_allocations(void **state)
{
    (void)state;
    static const float f[] = {1, 2, 3};
    write_file(in_dir("w.bin"), f, sizeof f);
    sweep(save(external("w.bin", "0", "12"), "m.onnx"));
    pb t = tensor_head("w", 1, 1, (const int64_t[]){3});
    pb_bytes(&t, 4, f, sizeof f);
    sweep(save(model_of(small_graph(t)), "m.onnx"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_small),         TEST(test_typed_data),  TEST(test_bad_tensors), TEST(test_bad_graphs),
        TEST(test_opsets),        TEST(test_graph_forms), TEST(test_attributes),  TEST(test_external),
        TEST(test_shared_models), TEST(test_shared_bad),  TEST(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
