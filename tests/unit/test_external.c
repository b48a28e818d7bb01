/* SPDX-License-Identifier: Apache-2.0
 * External data, in and out: fails if bytes are taken from anywhere but regular files of one name below the model's
 * folder, if ranges that are short, cut off or overlap get through, if writing changes where tensors are without need,
 * or if a file that is read could be replaced. */
#define _XOPEN_SOURCE 700
#include "load_model.h"

static const int64_t three[] = {3};

/* y = Relu(x + a) + b + c, a and b and c external. */
typedef struct place {
    const char *location, *offset;
} place;

static pb model_with(place a, place b, place c)
{
    const int64_t d[] = {-1, 3};
    pb g = small_graph(tensor_external("w", 1, 1, three, a.location, a.offset, "12"));
    pb_msg(&g, 5, tensor_external("b", 1, 1, three, b.location, b.offset, "12"));
    pb_msg(&g, 5, tensor_external("c", 1, 1, three, c.location, c.offset, "12"));
    pb_msg(&g, 1, node("", "Add", "plus_b", "h b", "h2"));
    pb_msg(&g, 1, node("", "Add", "plus_c", "h2 c", "h3"));
    pb_msg(&g, 12, value_info("h3", 1, 2, d));
    return model_of(g);
}

static void fill(const char *name, size_t n)
{
    float v[64];
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) v[i] = (float)i;
    write_file(in_dir(name), v, n * sizeof *v);
}

static void test_overlaps(void **state)
{
    (void)state;
    fill("w.bin", 16);
    fill("v.bin", 16);
    static const struct {
        place p[3];
        const char *text;
    } bad[] = {
        {{{"w.bin", "0"}, {"w.bin", "8"}, {"w.bin", "32"}},
         "'w' and initializer 'b' overlap in 'w.bin': bytes 0 to 12 and 8"},
        {{{"w.bin", "36"}, {"w.bin", "0"}, {"w.bin", "11"}}, "'b' and initializer 'c' overlap"},
        {{{"w.bin", "0"}, {"w.bin", "20"}, {"w.bin", "0"}}, "'w' and initializer 'c' overlap"}, /* the same bytes */
        {{{"w.bin", "0"}, {"./w.bin", "4"}, {"v.bin", "0"}}, "'w' and initializer 'b' overlap"}, /* one file */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        REFUSED(model_with(bad[i].p[0], bad[i].p[1], bad[i].p[2]), INV_E_PARSE, bad[i].text);
    inv_context *ctx = context(NULL);
    inv_model_destroy(load(ctx, save(model_with((place){"w.bin", "12"}, (place){"w.bin", "0"}, (place){"v.bin", "4"}),
                                     "m.onnx")));
    inv_context_destroy(ctx);
    REFUSED(model_with((place){"w.bin", "0"}, (place){"w.bin", "53"}, (place){"v.bin", "0"}), INV_E_PARSE, "'b'",
            "bytes 53 to 65", "only 64"); /* short */
}

static void test_hard_links(void **state)
{
    (void)state;
    const place w = {"w.bin", "0"}, b = {"w.bin", "12"}, c = {"w.bin", "24"};
    fill("w.bin", 16);
    assert_int_equal(link(in_dir("w.bin"), in_dir("other.bin")), 0);
    REFUSED(model_with(w, b, c), INV_E_IO, "'w'", "'w.bin'", "hard link");
    assert_int_equal(unlink(in_dir("other.bin")), 0);
    inv_context *ctx = context(NULL);
    inv_model_destroy(load(ctx, save(model_with(w, b, c), "m.onnx")));
    inv_context_destroy(ctx);
}

/* --- writing --- */

typedef struct change {
    const char *name;
    float v[3];
} change;

static inv_status give(void *opaque, const char *initializer, inv_weight *out)
{
    const change *x = opaque;
    if (!strcmp(x->name, initializer)) *out = (inv_weight){.dtype = INV_F32, .n = 3, .data = x->v};
    return INV_OK;
}

static void written(inv_model *m, change *x, const char *path)
{
    if (inv__model_write(m, x ? give : NULL, x, path) != INV_OK) fail_msg("%s", inv_context_message(m->ctx));
}

static void is_at(const inv_model *m, const char *name, size_t offset, const char *file, float first)
{
    size_t n;
    float v;
    unsigned char *p = read_file(in_dir(file), &n);
    assert_true(offset + 12 <= n);
    assert_memory_equal(value(m, name)->data.bytes, p + offset, 12);
    memcpy(&v, p + offset, sizeof v);
    assert_true(v == first);
    free(p);
}

static void test_layout(void **state)
{
    (void)state;
    fill("one.bin", 16);
    fill("two.bin", 16);
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    inv_context *ctx = context(NULL);
    /* Out of order, with bytes between that belong to nobody. */
    const place w = {"one.bin", "40"}, b = {"two.bin", "4"}, c = {"one.bin", "4"};
    const char *path = save(model_with(w, b, c), "m.onnx");
    inv_model *m = load(ctx, path), *back;
    /* Of the two data files only that with the new weight is replaced. */
    written(m, &(change){"b", {-1, -2, -3}}, in_dir("o.onnx"));
    assert_int_equal(access(in_dir("o.onnx.data.1"), F_OK), -1);
    back = load(ctx, in_dir("o.onnx"));
    is_at(back, "w", 40, "one.bin", 10);
    is_at(back, "b", 4, "o.onnx.data", -1);
    is_at(back, "c", 4, "one.bin", 1);
    inv_model_destroy(back);
    /* In another folder nothing of the old one is needed; everything is at its old offset. */
    written(m, &(change){"c", {-1, -2, -3}}, in_dir("sub/o.onnx"));
    back = load(ctx, in_dir("sub/o.onnx"));
    is_at(back, "w", 40, "sub/o.onnx.data", 10);
    is_at(back, "c", 4, "sub/o.onnx.data", -1);
    is_at(back, "b", 4, "sub/o.onnx.data.1", 1);
    inv_model_destroy(back);
    /* Bytes that belong to nobody are not carried along. */
    size_t n;
    unsigned char *p = read_file(in_dir("sub/o.onnx.data"), &n);
    assert_int_equal(n, 52);
    for (size_t i = 16; i < 40; i++) assert_int_equal(p[i], 0);
    free(p);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* A data file that many models share: what is between costs no space. */
static void test_distance(void **state)
{
    (void)state;
    enum { FAR = 1 << 30 };
    const char *path = in_dir("big.bin");
    struct stat st;
    float v[3] = {5, 6, 7};
    fill("big.bin", 16);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, FAR, SEEK_SET), 0);
    assert_int_equal(fwrite(v, sizeof v, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    fill("two.bin", 16);
    char far[16];
    snprintf(far, sizeof far, "%d", FAR);
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(model_with((place){"big.bin", "4"}, (place){"big.bin", far}, (place){"two.bin", "0"}),
                                  "m.onnx"));
    written(m, &(change){"w", {-1, -2, -3}}, in_dir("o.onnx"));
    assert_int_equal(stat(in_dir("o.onnx.data"), &st), 0);
    assert_int_equal(st.st_size, FAR + 12);
    assert_true(st.st_blocks < 1000);
    inv_model *back = load(ctx, in_dir("o.onnx"));
    assert_memory_equal(value(back, "b")->data.bytes, v, sizeof v);
    inv_model_destroy(back);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* Whatever stands in the way of one of the files: all or none appear, and what is read stays. */
static void test_no_overwriting(void **state)
{
    (void)state;
    fill("o.onnx.data", 16);
    fill("p.onnx.data.1", 16);
    inv_context *ctx = context(NULL);
    change x = {"w", {1, 1, 1}};
    inv_model *m = load(ctx, save(model_with((place){"o.onnx.data", "4"}, (place){"p.onnx.data.1", "4"},
                                             (place){"p.onnx.data.1", "16"}), "m.onnx"));
    int before = count_files(test_dir, false);
    assert_int_equal(inv__model_write(m, give, &x, in_dir("m.onnx")), INV_E_IO);
    assert_int_equal(inv__model_write(m, give, &x, in_dir("o.onnx")), INV_E_IO);
    assert_has(inv_context_message(ctx), "loaded from");
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    assert_int_equal(symlink("../p.onnx.data.1", in_dir("sub/p.onnx.data.1")), 0);
    assert_int_equal(inv__model_write(m, give, &x, in_dir("sub/p.onnx")), INV_E_IO);
    assert_has(inv_context_message(ctx), "p.onnx.data.1' is a file that the model is loaded from");
    assert_int_equal(count_files(in_dir("sub"), false), 1);
    assert_int_equal(count_files(test_dir, false), before + 1);
    is_at(m, "w", 4, "o.onnx.data", 1);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_overlaps), TEST(test_hard_links), TEST(test_layout), TEST(test_distance), TEST(test_no_overwriting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
