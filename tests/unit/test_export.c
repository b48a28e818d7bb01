/* SPDX-License-Identifier: Apache-2.0
 * Writing a model back: fails if a byte changes that nobody asked to change, if new weights do not arrive in the
 * initializer's own type, if a failure leaves a trace, or if a file that is being read would be replaced. */
#define _GNU_SOURCE
#include "onnx_build.h"

#include <signal.h>
#include <sys/resource.h>

#include "importer/model_file.h"

static inv_model *load(inv_context *ctx, const char *path)
{
    inv_model *m;
    if (inv_model_load(ctx, path, &m) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return m;
}

static const inv_value *value(const inv_model *m, const char *name)
{
    inv_id v = inv_graph_find(m->graph, name);
    assert_true(v != INV_NONE);
    return inv_val(m->graph, v);
}

/* New weights for the initializers whose name begins with `prefix`. */
typedef struct weights {
    const char *prefix;
    inv_dtype dtype;
    const void *data;
    size_t n;
} weights;

static inv_status given(void *opaque, const char *name, inv_weight *out)
{
    const weights *w = opaque;
    if (strncmp(name, w->prefix, strlen(w->prefix)) == 0)
        *out = (inv_weight){.dtype = w->dtype, .n = w->n, .data = w->data};
    return INV_OK;
}

/* Every initializer's present data, as if it were new. */
static inv_status as_loaded(void *opaque, const char *name, inv_weight *out)
{
    const inv_value *v = value(opaque, name);
    *out = (inv_weight){.dtype = v->dtype, .n = (size_t)inv_shape_nelem(&v->shape), .data = v->data.bytes};
    return INV_OK;
}

static void writes(inv_model *m, inv_weight_source source, void *opaque, const char *path)
{
    if (inv_model_write(m, source, opaque, false, path) != INV_OK) fail_msg("%s", inv_context_message(m->ctx));
}

static const float f3[] = {1, 2, 3};

static pb w3(void) { return tensor_raw("w", 1, 1, (const int64_t[]){3}, f3, sizeof f3); }

/* A model with things that the library does not know: fields from the future, an odd order, a long varint, metadata. */
static pb odd_model(void)
{
    pb t = {0}, g = {0}, m = {0};
    pb_str(&t, 8, "w");
    pb_str(&t, 12, "doc before data");
    pb_int(&t, 1, 3);
    pb_bytes(&t, 9, f3, sizeof f3);
    pb_int(&t, 2, 1);
    pb_str(&t, 77, "unknown to all");
    g = small_graph(t);
    pb_str(&g, 99, "also unknown");
    pb_raw(&m, "\x08\x88\x00", 3); /* ir_version 8 in two bytes */
    pb_msg(&m, 8, opset("", 17));
    pb_msg(&m, 7, g);
    pb_msg(&m, 14, pair("key", "value"));
    pb_str(&m, 1000, "the future");
    return m;
}

static void test_unchanged(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    const char *path = save(odd_model(), "in.onnx"), *out = in_dir("out.onnx");
    inv_model *m = load(ctx, path);
    writes(m, NULL, NULL, out);
    assert_true(same_files(path, out));
    writes(m, given, &(weights){.prefix = "not there"}, out);
    assert_true(same_files(path, out));
    inv_model_destroy(m);
    inv_context_destroy(ctx);
    assert_int_equal(count_files(test_dir, false), 2); /* nothing temporary is left */
}

/* The only bytes that differ are the weights, whatever the order of the fields; and none if they are as they were. */
static void test_changed(void **state)
{
    (void)state;
    const float new[] = {-1, 0.5f, 7};
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(odd_model(), "in.onnx")), *back;
    writes(m, given, &(weights){"w", INV_F32, new, 3}, in_dir("out.onnx"));
    back = load(ctx, in_dir("out.onnx"));
    assert_memory_equal(value(back, "w")->data.bytes, new, sizeof new);
    inv_model_destroy(back);
    size_t na, nb;
    unsigned char *a = read_file(in_dir("in.onnx"), &na), *b = read_file(in_dir("out.onnx"), &nb);
    assert_int_equal(na, nb);
    unsigned char *w = memmem(a, na, f3, sizeof f3);
    assert_non_null(w);
    memcpy(w, new, sizeof new);
    assert_memory_equal(a, b, na);
    writes(m, as_loaded, m, in_dir("out.onnx"));
    assert_true(same_files(in_dir("in.onnx"), in_dir("out.onnx")));
    free(a);
    free(b);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* float64 and float32 masters into all types of initializers, also long ones, whose lengths take more bytes. */
static void test_conversion(void **state)
{
    (void)state;
    enum { N = 20000 };
    static double wide[N];
    static float narrow[N];
    static const int dtype[] = {INV_F32, INV_F64, INV_F16, INV_BF16};
    inv_context *ctx = context(NULL);
    for (int i = 0; i < N; i++) {
        wide[i] = i % 100 - 50;
        narrow[i] = (float)wide[i];
    }
    for (size_t k = 0; k < sizeof dtype / sizeof *dtype; k++) {
        size_t bytes = N * inv_dtype_size((inv_dtype)dtype[k]);
        unsigned char *zeros = calloc(1, bytes);
        pb t = tensor_raw("w", dtype[k], 1, (const int64_t[]){N}, zeros, bytes);
        inv_model *m = load(ctx, save(model_of(small_graph(t)), "in.onnx"));
        for (int w = 0; w < 2; w++) {
            weights src = {"w", w ? INV_F64 : INV_F32, w ? (const void *)wide : narrow, N};
            writes(m, given, &src, in_dir("out.onnx"));
            inv_model *back = load(ctx, in_dir("out.onnx"));
            const inv_data *d = &value(back, "w")->data;
            assert_int_equal(d->nbytes, bytes);
            for (size_t i = 0; i < N; i++) assert_true(inv_elem_double(d->bytes, d->dtype, i) == wide[i]);
            inv_model_destroy(back);
        }
        free(zeros);
        inv_model_destroy(m);
    }
    pb t = tensor_head("w", 1, 1, (const int64_t[]){3});
    pb_bytes(&t, 4, f3, sizeof f3);
    inv_model *m = load(ctx, save(model_of(small_graph(t)), "in.onnx"));
    writes(m, given, &(weights){"w", INV_F64, wide, 3}, in_dir("out.onnx"));
    inv_model *back = load(ctx, in_dir("out.onnx"));
    assert_memory_equal(value(back, "w")->data.bytes, narrow, 12);
    inv_model_destroy(back);
    inv_status s = inv_model_write(m, given, &(weights){"w", INV_F64, wide, 2}, false, in_dir("no.onnx"));
    assert_int_equal(s, INV_E_ARG);
    assert_has(inv_context_message(ctx), "initializer 'w'");
    assert_int_equal(access(in_dir("no.onnx"), F_OK), -1);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* A small and a large file: more and fewer bytes for every length around the weights. */
static void test_lengths(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    for (int n = 0; n < 70; n++) {
        float *w = calloc((size_t)n + 1, sizeof *w);
        assert_non_null(w);
        for (int i = 0; i < n; i++) w[i] = (float)i;
        pb t = tensor_head("w", 1, 1, (const int64_t[]){n});
        for (int i = 0; i < n; i++) pb_float(&t, 4, 0); /* not packed: five bytes each */
        inv_model *m = load(ctx, save(model_of(small_graph(t)), "in.onnx")), *back;
        writes(m, given, &(weights){"w", INV_F32, w, (size_t)n}, in_dir("out.onnx"));
        back = load(ctx, in_dir("out.onnx"));
        assert_memory_equal(value(back, "w")->data.bytes, w, (size_t)n * 4);
        assert_int_equal(back->graph->order.n, 2);
        inv_model_destroy(back);
        inv_model_destroy(m);
        free(w);
    }
    inv_context_destroy(ctx);
}

/* --- external data --- */

/* Initializers w (external), b (in the file), and an external tensor in a Constant. */
static pb external_model(void)
{
    const int64_t d[] = {3};
    pb g = small_graph(tensor_external("w", 1, 1, d, "in.bin", "4", "12"));
    pb c = node("", "Constant", "c", "", "k"), a = {0};
    pb_str(&a, 1, "value");
    pb_msg(&a, 5, tensor_external(NULL, 1, 1, d, "in.bin", "16", "12"));
    pb_int(&a, 20, 4);
    pb_msg(&c, 5, a);
    pb_msg(&g, 1, c);
    pb_msg(&g, 5, tensor_raw("b", 1, 1, d, f3, sizeof f3));
    return model_of(g);
}

static void check_external(inv_context *ctx, const char *path, const float *w, const float *b)
{
    static const float k[] = {2, 3, 4};
    inv_model *m = load(ctx, path);
    const inv_node *c = inv_nod(m->graph, value(m, "k")->def);
    assert_memory_equal(value(m, "w")->data.bytes, w, 12);
    assert_memory_equal(value(m, "b")->data.bytes, b, 12);
    assert_memory_equal(inv_attr_find(c, "value")->tensor.bytes, k, 12);
    inv_model_destroy(m);
}

static void test_external(void **state)
{
    (void)state;
    static const float file[] = {0, 1, 2, 3, 2, 3, 4}, new[] = {7, 8, 9};
    inv_context *ctx = context(NULL);
    write_file(in_dir("in.bin"), file, sizeof file);
    inv_model *m = load(ctx, save(external_model(), "in.onnx"));
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    /* Beside the original and nothing external changed: the old data file serves. */
    writes(m, NULL, NULL, in_dir("a.onnx"));
    assert_true(same_files(in_dir("in.onnx"), in_dir("a.onnx")));
    writes(m, given, &(weights){"b", INV_F32, new, 3}, in_dir("b.onnx"));
    check_external(ctx, in_dir("b.onnx"), f3, new);
    assert_int_equal(access(in_dir("b.onnx.data"), F_OK), -1);
    /* Elsewhere, or changed: all external tensors go to a file of their own. */
    writes(m, NULL, NULL, in_dir("sub/c.onnx"));
    check_external(ctx, in_dir("sub/c.onnx"), f3, f3);
    assert_int_equal(access(in_dir("sub/c.onnx.data"), F_OK), 0);
    writes(m, given, &(weights){"w", INV_F32, new, 3}, in_dir("d.onnx"));
    check_external(ctx, in_dir("d.onnx"), new, f3);
    assert_int_equal(access(in_dir("d.onnx.data"), F_OK), 0);
    /* What is being read is not replaced, by whatever name. */
    assert_int_equal(link(in_dir("in.bin"), in_dir("e.onnx.data")), 0);
    assert_int_equal(inv_model_write(m, given, &(weights){"w", INV_F32, new, 3}, false, in_dir("e.onnx")), INV_E_IO);
    assert_has(inv_context_message(ctx), "loaded from");
    assert_int_equal(access(in_dir("e.onnx"), F_OK), -1);
    assert_int_equal(unlink(in_dir("e.onnx.data")), 0);
    assert_int_equal(inv_model_write(m, NULL, NULL, false, in_dir("in.bin")), INV_E_IO);
    assert_int_equal(inv_model_write(m, NULL, NULL, false, in_dir("in.onnx")), INV_E_IO);
    assert_int_equal(inv_model_write(m, NULL, NULL, false, in_dir("sub/../in.onnx")), INV_E_IO);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
    check_external(ctx = context(NULL), in_dir("in.onnx"), f3, f3);
    inv_context_destroy(ctx);
}

/* --- failures --- */

static void test_bad_targets(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(model_of(small_graph(w3())), "in.onnx"));
    assert_int_equal(mkdir(in_dir("folder"), 0777), 0);
    assert_int_equal(inv_model_write(m, NULL, NULL, false, in_dir("none/out.onnx")), INV_E_IO);
    assert_has(inv_context_message(ctx), "none/out.onnx");
    assert_int_equal(inv_model_write(m, NULL, NULL, false, in_dir("folder")), INV_E_IO);
    assert_int_equal(inv_model_write(m, NULL, NULL, false, "/dev/null"), INV_E_IO);
    assert_int_equal(inv_model_write(m, NULL, NULL, false, ""), INV_E_ARG);
    assert_int_equal(count_files(test_dir, false), 2);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* A file size limit stands for a full disk: the write fails in the middle. */
static void test_full_disk(void **state)
{
    (void)state;
    enum { N = 100000 };
    static float w[N];
    struct rlimit old, small;
    inv_context *ctx = context(NULL);
    pb t = tensor_raw("w", 1, 1, (const int64_t[]){N}, w, sizeof w);
    inv_model *m = load(ctx, save(model_of(small_graph(t)), "in.onnx"));
    write_file(in_dir("out.onnx"), "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 200000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    inv_status s = inv_model_write(m, NULL, NULL, false, in_dir("out.onnx"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(s, INV_E_IO);
    assert_has(inv_context_message(ctx), "cannot write");
    size_t n;
    unsigned char *p = read_file(in_dir("out.onnx"), &n);
    assert_int_equal(n, 3);
    free(p);
    assert_int_equal(count_files(test_dir, false), 2);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static void test_allocations(void **state)
{
    (void)state;
    static const float file[] = {0, 1, 2, 3, 2, 3, 4}, new[] = {7, 8, 9};
    failing f = {.countdown = -1};
    inv_context *ctx = context(&f);
    write_file(in_dir("in.bin"), file, sizeof file);
    inv_model *m = load(ctx, save(external_model(), "in.onnx"));
    for (long n = 0;; n++) {
        f.countdown = n;
        inv_status s = inv_model_write(m, given, &(weights){"", INV_F32, new, 3}, false, in_dir("out.onnx"));
        bool done = f.countdown != 0;
        f.countdown = -1;
        if (s == INV_OK) {
            if (done) break;
            assert_int_equal(count_files(test_dir, true), 4);
            write_file(in_dir("in.bin"), file, sizeof file);
            continue;
        }
        assert_int_equal(s, INV_E_NOMEM);
        assert_int_equal(count_files(test_dir, false), 2); /* neither the file nor anything temporary */
    }
    inv_model_destroy(m);
    inv_context_destroy(ctx);
    assert_int_equal(f.live, 0);
}

/* --- weights in Constant nodes --- */

static pb attribute(const char *name, unsigned field, pb content)
{
    pb a = {0};
    pb_str(&a, 1, name);
    pb_msg(&a, field, content);
    return a;
}

/* y = F(x W) with F(a) = a + S, W a tensor, S three numbers: one in a field of its own, two packed. */
static pb constants_model(const float *w, const float *s)
{
    const int64_t d[] = {3, 3}, open[] = {-1, 3};
    pb m, g = {0}, f = {0}, n = node("", "Constant", "", "", "W"), numbers = {0};
    pb_msg(&n, 5, attribute("value", 5, tensor_raw(NULL, 1, 2, d, w, 9 * sizeof *w)));
    pb_msg(&g, 1, n);
    pb_msg(&g, 1, node("", "MatMul", "", "x W", "h"));
    pb_msg(&g, 1, node("my", "F", "", "h", "y"));
    pb_str(&g, 2, "g");
    pb_msg(&g, 11, value_info("x", 1, 2, open));
    pb_msg(&g, 12, value_info("y", 1, 2, open));
    m = model_of(g);
    pb_msg(&m, 8, opset("my", 1));
    pb_float(&numbers, 7, s[0]);
    pb_str(&numbers, 1, "value_floats");
    pb_bytes(&numbers, 7, s + 1, 2 * sizeof *s);
    pb_int(&numbers, 20, 6);
    n = node("", "Constant", "", "", "S");
    pb_msg(&n, 5, numbers);
    pb_str(&f, 1, "F");
    pb_str(&f, 4, "a");
    pb_str(&f, 5, "b");
    pb_msg(&f, 7, n);
    pb_msg(&f, 7, node("", "Add", "", "a S", "b"));
    pb_msg(&f, 9, opset("", 17));
    pb_str(&f, 10, "my");
    pb_msg(&m, 25, f);
    return m;
}

static inv_status given_both(void *opaque, const char *name, inv_weight *out)
{
    const double *x = opaque;
    if (!strcmp(name, "W")) *out = (inv_weight){.dtype = INV_F64, .n = 9, .data = x};
    if (!strcmp(name, "F/S")) *out = (inv_weight){.dtype = INV_F64, .n = 3, .data = x + 9};
    return INV_OK;
}

static void test_constant_nodes(void **state)
{
    (void)state;
    float old[12], new[12];
    double wide[12];
    for (int i = 0; i < 12; i++) {
        old[i] = (float)i;
        new[i] = (float)(100 - i);
        wide[i] = (double)new[i];
    }
    failing f = {.countdown = -1};
    save(constants_model(old, old + 9), "in.onnx");
    save(constants_model(new, new + 9), "want.onnx");
    for (long n = 0;; n++) {
        inv_context *ctx = context(&f);
        inv_model *m = NULL;
        f.countdown = n;
        inv_status s = inv_model_load(ctx, in_dir("in.onnx"), &m);
        if (s == INV_OK) s = inv_model_write(m, given_both, wide, false, in_dir("out.onnx"));
        bool done = f.countdown != 0;
        f.countdown = -1;
        if (s != INV_OK && s != INV_E_NOMEM) fail_msg("allocation %ld: %s", n, inv_context_message(ctx));
        if (s == INV_OK) {
            assert_int_equal(m->graph->inits.n, 2);
            assert_int_equal(value(m, "W")->role, INV_ROLE_PARAM);
            assert_true(same_files(in_dir("out.onnx"), in_dir("want.onnx")));
        }
        inv_model_destroy(m);
        inv_context_destroy(ctx);
        assert_int_equal(f.live, 0);
        if (done) break;
    }
}

/* --- files from elsewhere --- */

/* In a copy of the folder, so that external data are beside the model. */
static void copy_into(const char *dir, const char *name)
{
    char from[1024];
    size_t n;
    snprintf(from, sizeof from, "%s/%s", dir, name);
    unsigned char *p = read_file(from, &n);
    write_file(in_dir(name), p, n);
    free(p);
}

static void test_shared_models(void **state)
{
    (void)state;
    const char *dir = shared_models();
    if (!dir) skip();
    DIR *d = opendir(dir);
    assert_non_null(d);
    inv_context *ctx = context(NULL);
    int seen = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char sub[1024], path[1100];
        snprintf(sub, sizeof sub, "%s/%s", dir, e->d_name);
        snprintf(path, sizeof path, "%s/model.onnx", sub);
        if (access(path, R_OK) != 0) continue;
        copy_into(sub, "model.onnx");
        snprintf(path, sizeof path, "%s/weights.bin", sub);
        bool ext = access(path, R_OK) == 0;
        if (ext) copy_into(sub, "weights.bin");
        inv_model *m = load(ctx, in_dir("model.onnx"));
        writes(m, NULL, NULL, in_dir("plain.onnx"));
        assert_true(same_files(in_dir("model.onnx"), in_dir("plain.onnx")));
        writes(m, as_loaded, m, in_dir("again.onnx"));
        if (!ext) assert_true(same_files(in_dir("model.onnx"), in_dir("again.onnx")));
        inv_model *back = load(ctx, in_dir("again.onnx"));
        for (size_t i = 0; i < m->graph->inits.n; i++) {
            const inv_value *a = inv_val(m->graph, m->graph->inits.at[i]), *b = value(back, a->name);
            assert_int_equal(a->data.nbytes, b->data.nbytes);
            assert_memory_equal(a->data.bytes, b->data.bytes, a->data.nbytes);
        }
        inv_model_destroy(back);
        inv_model_destroy(m);
        seen++;
    }
    closedir(d);
    inv_context_destroy(ctx);
    assert_true(seen > 100);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_unchanged),      TEST(test_changed),       TEST(test_conversion), TEST(test_lengths),
        TEST(test_external),       TEST(test_bad_targets),   TEST(test_full_disk),  TEST(test_allocations),
        TEST(test_constant_nodes), TEST(test_shared_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
