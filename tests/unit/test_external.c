/* SPDX-License-Identifier: Apache-2.0
 * External data, in and out: fails if bytes are taken from anywhere but regular files of one name below the model's
 * folder, if ranges that are short, cut off or overlap get through, if writing changes where tensors are without need,
 * if tensors that the graph does not read are not seen, or if a file that is read could be replaced. */
#define _XOPEN_SOURCE 700
#include "importer/model_file.h"
#include "load_model.h"

#include "importer/importer.h"

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
        {{{"w.bin", "0"}, {"w.bin", "20"}, {"w.bin", "0"}}, "'w' and initializer 'c' overlap"},  /* the same bytes */
        {{{"w.bin", "0"}, {"./w.bin", "4"}, {"v.bin", "0"}}, "'w' and initializer 'b' overlap"}, /* one file */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        REFUSED(model_with(bad[i].p[0], bad[i].p[1], bad[i].p[2]), INV_E_PARSE, bad[i].text);
    inv_context *ctx = context(NULL);
    inv_model_destroy(
        load(ctx, save(model_with((place){"w.bin", "12"}, (place){"w.bin", "0"}, (place){"v.bin", "4"}), "m.onnx")));
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
    if (inv_model_write(m, x ? give : NULL, x, false, path) != INV_OK) fail_msg("%s", inv_context_message(m->ctx));
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
    inv_model *m = load(
        ctx, save(model_with((place){"big.bin", "4"}, (place){"big.bin", far}, (place){"two.bin", "0"}), "m.onnx"));
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
                                             (place){"p.onnx.data.1", "16"}),
                                  "m.onnx"));
    int before = count_files(test_dir, false);
    assert_int_equal(inv_model_write(m, give, &x, false, in_dir("m.onnx")), INV_E_IO);
    assert_int_equal(inv_model_write(m, give, &x, false, in_dir("o.onnx")), INV_E_IO);
    assert_has(inv_context_message(ctx), "loaded from");
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    assert_int_equal(symlink("../p.onnx.data.1", in_dir("sub/p.onnx.data.1")), 0);
    assert_int_equal(inv_model_write(m, give, &x, false, in_dir("sub/p.onnx")), INV_E_IO);
    assert_has(inv_context_message(ctx), "p.onnx.data.1' is a file that the model is loaded from");
    assert_int_equal(count_files(in_dir("sub"), false), 1);
    assert_int_equal(count_files(test_dir, false), before + 1);
    is_at(m, "w", 4, "o.onnx.data", 1);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* --- tensors that the graph does not read --- */

/* w at bytes 0 to 12 of w.bin, and q where it is of no use: in training_info, or in an attribute that is a number. */
static pb model_with_unread(bool in_attribute, const char *location, const char *offset)
{
    const int64_t d[] = {-1, 3};
    pb q = tensor_external("q", 1, 1, three, location, offset, "12");
    pb g = small_graph(tensor_external("w", 1, 1, three, "w.bin", "0", "12"));
    pb n = node("", "LeakyRelu", "leak", "y", "z");
    pb a = attr_float("alpha", 0.5f), info = {0}, algorithm = {0};
    if (in_attribute) pb_msg(&a, 5, q);
    else pb_msg(&algorithm, 5, q);
    pb_msg(&n, 5, a);
    pb_msg(&g, 1, n);
    pb_msg(&g, 12, value_info("z", 1, 2, d));
    pb m = model_of(g);
    pb_str(&algorithm, 2, "algorithm");
    pb_msg(&info, 2, algorithm);
    pb_msg(&m, 20, info);
    return m;
}

static void test_unread(void **state)
{
    (void)state;
    static const char *const where[] = {"initializer 'q' in training_info",
                                        "tensor 'q' in attribute 'alpha' in node 'leak'"};
    fill("w.bin", 16);
    for (int k = 0; k < 2; k++) {
        REFUSED(model_with_unread(k, "../outside.bin", "0"), INV_E_IO, where[k], "'..'");
        REFUSED(model_with_unread(k, "gone.bin", "0"), INV_E_IO, where[k], "'gone.bin' cannot be opened");
        REFUSED(model_with_unread(k, "w.bin", "56"), INV_E_PARSE, where[k], "bytes 56 to 68", "only 64");
        REFUSED(model_with_unread(k, "w.bin", "18446744073709551615"), INV_E_PARSE, where[k],
                "from byte 18446744073709551615 of");
        REFUSED(model_with_unread(k, "w.bin", "8"), INV_E_PARSE, where[k], "initializer 'w' and", "overlap in 'w.bin'");
    }
}

static void finds_unread(inv_context *ctx, const char *path, inv_layout layout, const float want[3])
{
    inv_model *back = load(ctx, path);
    const inv_impl *impl = back->impl;
    assert_int_equal(impl->external.n, layout == INV_LAYOUT_INLINE ? 0 : 2);
    for (size_t i = 0; i < impl->external.n; i++)
        if (strstr(impl->external.at[i].what, "'q'")) assert_memory_equal(impl->external.at[i].d.bytes, want, 12);
        else assert_non_null(strstr(impl->external.at[i].what, "'w'"));
    inv_model_destroy(back);
}

/* They move as all others do. */
static void test_unread_moves(void **state)
{
    (void)state;
    static const char *const file[] = {"w.bin", "q.bin"}, *const to[] = {"o.onnx", "sub/o.onnx"};
    static const inv_layout layouts[] = {INV_LAYOUT_KEEP, INV_LAYOUT_INLINE, INV_LAYOUT_EXTERNAL};
    const float want[] = {4, 5, 6};
    fill("w.bin", 16);
    fill("q.bin", 16);
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    inv_context *ctx = context(NULL);
    for (int i = 0; i < 24; i++) {
        inv_layout layout = layouts[i % 3];
        inv_model *m = load(ctx, save(model_with_unread(i / 3 % 2, file[i / 6 % 2], "16"), "m.onnx"));
        size_t files = ((inv_impl *)m->impl)->ext.n;
        assert_int_equal(inv_model_set_layout(m, layout), INV_OK);
        written(m, &(change){"w", {-1, -2, -3}}, in_dir(to[i / 12]));
        assert_int_equal(((inv_impl *)m->impl)->ext.n, files); /* nothing is first read while writing */
        inv_model_destroy(m);
        finds_unread(ctx, in_dir(to[i / 12]), layout, want);
        (void)unlink(in_dir("o.onnx.data"));
        (void)unlink(in_dir("o.onnx"));
    }
    inv_context_destroy(ctx);
}

/* --- what else is said of the data --- */

static pb keyed(const char *name, const char *offset)
{
    pb t = tensor_head(name, 1, 1, three);
    pb_int(&t, 14, 1); /* before the place, and some of it behind the documentation */
    pb_msg(&t, 13, pair("checksum", "digest"));
    pb_msg(&t, 13, pair("location", "w.bin"));
    pb_str(&t, 12, "documentation");
    pb_msg(&t, 13, pair("offset", offset));
    pb_msg(&t, 13, pair("mine", name));
    return t;
}

static int count_text(const char *path, const char *text)
{
    size_t n, k = strlen(text);
    int found = 0;
    unsigned char *p = read_file(path, &n);
    for (size_t i = 0; i + k <= n; i++) found += !memcmp(p + i, text, k);
    free(p);
    return found;
}

/* Unknown keys stay with the tensor; a digest is of the file, and goes when that is not the same any more. */
static void test_other_keys(void **state)
{
    (void)state;
    const int64_t d[] = {-1, 3};
    static const struct {
        size_t fill; /* numbers in w.bin, of which 6 are tensors */
        bool change;
        inv_layout layout;
        int digests, keys;
    } cases[] = {{6, false, INV_LAYOUT_KEEP, 2, 2},
                 {6, true, INV_LAYOUT_KEEP, 0, 2},
                 {7, false, INV_LAYOUT_KEEP, 0, 2},
                 {6, false, INV_LAYOUT_EXTERNAL, 0, 2},
                 {6, false, INV_LAYOUT_INLINE, 0, 0}};
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    inv_context *ctx = context(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill("w.bin", cases[i].fill);
        pb g = small_graph(keyed("w", "0"));
        pb_msg(&g, 5, keyed("b", "12"));
        pb_msg(&g, 1, node("", "Add", "plus_b", "h b", "h2"));
        pb_msg(&g, 12, value_info("h2", 1, 2, d));
        inv_model *m = load(ctx, save(model_of(g), "m.onnx"));
        assert_int_equal(inv_model_set_layout(m, cases[i].layout), INV_OK);
        written(m, cases[i].change ? &(change){"b", {-1, -2, -3}} : NULL, in_dir("sub/o.onnx"));
        inv_model_destroy(m);
        assert_int_equal(count_text(in_dir("sub/o.onnx"), "digest"), cases[i].digests);
        assert_int_equal(count_text(in_dir("sub/o.onnx"), "mine"), cases[i].keys);
        m = load(ctx, in_dir("sub/o.onnx"));
        assert_memory_equal(value(m, "w")->data.bytes, ((const float[]){0, 1, 2}), 12);
        inv_model_destroy(m);
    }
    inv_context_destroy(ctx);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_overlaps),       TEST(test_hard_links), TEST(test_layout),       TEST(test_distance),
        TEST(test_no_overwriting), TEST(test_unread),     TEST(test_unread_moves), TEST(test_other_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
