/* SPDX-License-Identifier: Apache-2.0
 * The scan before protobuf-c: fails if a malformed file gets through to it, if a good one is refused, or if the
 * skeleton is not the message with records in place of raw data. */
#define _XOPEN_SOURCE 700
#include "onnx_build.h"

#include "importer/importer.h"

static inv_status scan(inv_context *ctx, const void *data, size_t n, uint8_t **out, size_t *nout)
{
    /* A copy of exactly n bytes, so that a read past the end is seen. */
    unsigned char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    if (n) memcpy(copy, data, n);
    inv_map map = {.base = copy, .nbytes = n};
    inv_status s = inv_prescan(ctx, "f.onnx", &map, &onnx__model_proto__descriptor, 0, n, out, nout);
    free(copy);
    return s;
}

static void refuses(const void *data, size_t n, const char *why)
{
    inv_context *ctx = context(NULL);
    uint8_t *out;
    size_t nout;
    assert_int_equal(scan(ctx, data, n, &out, &nout), INV_E_PARSE);
    assert_null(out);
    assert_has(inv_context_message(ctx), "f.onnx");
    assert_has(inv_context_message(ctx), why);
    inv_context_destroy(ctx);
}

#define REFUSES(why, ...) \
    refuses((const unsigned char[]){__VA_ARGS__}, sizeof((const unsigned char[]){__VA_ARGS__}), why)

static void test_malformed(void **state)
{
    (void)state;
    REFUSES("tag is cut off", 0x80);
    REFUSES("field number", 0x00, 0x01);
    REFUSES("field number", 0xf8, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01);
    REFUSES("groups", 0x0b);
    REFUSES("groups", 0x0c);
    REFUSES("wire type", 0x0e);
    REFUSES("wire type", 0x0f);
    REFUSES("longer than the rest", 0x3a, 0x05, 0x00);
    REFUSES("longer than the rest", 0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01);
    REFUSES("length is cut off or too long", 0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f);
    REFUSES("number is cut off", 0x08, 0x80);
    REFUSES("longer than the rest", 0x09, 0, 0, 0);
    REFUSES("longer than the rest", 0x0d, 0, 0, 0);
    /* inside: graph { initializer { raw_data: 3 of 2 bytes } }, named by place and message */
    REFUSES("byte 4, in TensorProto", 0x3a, 0x06, 0x2a, 0x04, 0x4a, 0x03, 0x00, 0x00);
}

static void test_depth(void **state)
{
    (void)state;
    /* GraphProto { node { attribute { g { ... } } } }: three levels each time. */
    for (int levels = 30; levels <= 40; levels += 10) {
        pb g = {0};
        pb_str(&g, 2, "inner");
        for (int i = 0; i < levels; i++) {
            pb a = {0}, n = {0}, outer = {0};
            pb_msg(&a, 6, g);
            pb_msg(&n, 5, a);
            pb_msg(&outer, 1, n);
            g = outer;
        }
        pb m = model_of(g);
        inv_context *ctx = context(NULL);
        uint8_t *out;
        size_t n;
        inv_status s = scan(ctx, m.p, m.n, &out, &n);
        assert_int_equal(s, levels == 30 ? INV_OK : INV_E_PARSE);
        if (s != INV_OK) assert_has(inv_context_message(ctx), "inside each other");
        inv_dealloc(ctx, out);
        inv_context_destroy(ctx);
        free(m.p);
    }
}

static void unpack(pb m, void (*check)(const Onnx__ModelProto *, const pb *))
{
    inv_context *ctx = context(NULL);
    inv_arena a;
    inv_arena_init(&a, ctx);
    inv_map map = {.base = m.p, .nbytes = m.n};
    ProtobufCMessage *msg;
    assert_int_equal(inv_unpack(&a, "f", &map, &onnx__model_proto__descriptor, 0, m.n, &msg), INV_OK);
    check((const Onnx__ModelProto *)(const void *)msg, &m);
    inv_arena_fini(&a);
    inv_context_destroy(ctx);
    free(m.p);
}

static void check_records(const Onnx__ModelProto *p, const pb *m)
{
    static const char *const want[] = {"", "0123456789ab", "a string of more than sixteen bytes"};
    assert_int_equal(p->graph->n_initializer, 3);
    for (int i = 0; i < 3; i++) {
        const Onnx__TensorProto *t = p->graph->initializer[i];
        inv_raw_record r;
        assert_int_equal(t->raw_data.len, sizeof r);
        memcpy(&r, t->raw_data.data, sizeof r);
        assert_int_equal(r.length, strlen(want[i]));
        assert_memory_equal(m->p + r.offset, want[i], r.length);
        assert_string_equal(t->name, "w");
        assert_string_equal(t->doc_string, "after");
    }
    assert_string_equal(p->producer_name, "test");
    assert_int_equal(p->opset_import[0]->version, 17);
}

static void test_records(void **state)
{
    (void)state;
    static const char *const data[] = {"", "0123456789ab", "a string of more than sixteen bytes"};
    pb g = {0};
    for (int i = 0; i < 3; i++) {
        pb t = tensor_raw("w", 2, 0, NULL, data[i], strlen(data[i]));
        pb_str(&t, 12, "after");
        pb_msg(&g, 5, t);
    }
    unpack(model_of(g), check_records);
}

/* Every prefix of a good file, and many files with a few bytes changed: no crash, and either a message or a refusal. */
static void test_mutations(void **state)
{
    (void)state;
    const int64_t d[] = {3};
    const float w[] = {1, 2, 3};
    inv_context *ctx = context(NULL);
    pb m = model_of(small_graph(tensor_raw("w", 1, 1, d, w, sizeof w)));
    uint64_t seed = 1;
    for (size_t round = 0; round < m.n + 20000; round++) {
        size_t n = round < m.n ? round : m.n;
        unsigned char *copy = malloc(n ? n : 1);
        assert_non_null(copy);
        memcpy(copy, m.p, n);
        for (int k = 0; round >= m.n && k < 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            copy[(seed >> 33) % n] = (unsigned char)(seed >> 20);
        }
        inv_arena a;
        inv_arena_init(&a, ctx);
        inv_map map = {.base = copy, .nbytes = n};
        ProtobufCMessage *msg;
        inv_status s = inv_unpack(&a, "f", &map, &onnx__model_proto__descriptor, 0, n, &msg);
        assert_true(s == INV_OK ? msg != NULL : s == INV_E_PARSE);
        inv_arena_fini(&a);
        free(copy);
    }
    free(m.p);
    inv_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
