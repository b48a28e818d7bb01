/* SPDX-License-Identifier: Apache-2.0
 * For tests: ONNX files written field by field (also wrong ones, which no library would write), folders for them, and
 * an allocator that fails when told. */
#ifndef INV_TEST_ONNX_BUILD_H
#define INV_TEST_ONNX_BUILD_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/mem.h"

#define UNUSED __attribute__((unused))

/* --- protobuf --- */
typedef struct pb {
    unsigned char *p;
    size_t n, cap;
} pb;

static UNUSED void pb_raw(pb *b, const void *data, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}
static UNUSED void pb_varint(pb *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) pb_raw(b, &(unsigned char){(unsigned char)(v | 0x80)}, 1);
    pb_raw(b, &(unsigned char){(unsigned char)v}, 1);
}
static UNUSED void pb_int(pb *b, unsigned field, int64_t v)
{
    pb_varint(b, (uint64_t)field << 3);
    pb_varint(b, (uint64_t)v);
}
static UNUSED void pb_bytes(pb *b, unsigned field, const void *data, size_t n)
{
    pb_varint(b, (uint64_t)field << 3 | 2);
    pb_varint(b, n);
    pb_raw(b, data, n);
}
static UNUSED void pb_str(pb *b, unsigned field, const char *s) { pb_bytes(b, field, s, strlen(s)); }
static UNUSED void pb_float(pb *b, unsigned field, float v)
{
    pb_varint(b, (uint64_t)field << 3 | 5);
    pb_raw(b, &v, sizeof v);
}
/* Takes `inner` over. */
static UNUSED void pb_msg(pb *b, unsigned field, pb inner)
{
    pb_bytes(b, field, inner.p, inner.n);
    free(inner.p);
}

/* --- ONNX --- */
static UNUSED pb tensor_head(const char *name, int dtype, int rank, const int64_t *dims)
{
    pb t = {0};
    for (int i = 0; i < rank; i++) pb_int(&t, 1, dims[i]);
    pb_int(&t, 2, dtype);
    if (name) pb_str(&t, 8, name);
    return t;
}
static UNUSED pb tensor_raw(const char *name, int dtype, int rank, const int64_t *dims, const void *data, size_t n)
{
    pb t = tensor_head(name, dtype, rank, dims);
    pb_bytes(&t, 9, data, n);
    return t;
}
static UNUSED pb pair(const char *key, const char *value)
{
    pb e = {0};
    pb_str(&e, 1, key);
    pb_str(&e, 2, value);
    return e;
}
static UNUSED pb tensor_external(const char *name, int dtype, int rank, const int64_t *dims, const char *location,
                                 const char *offset, const char *length)
{
    pb t = tensor_head(name, dtype, rank, dims);
    pb_msg(&t, 13, pair("location", location));
    if (offset) pb_msg(&t, 13, pair("offset", offset));
    if (length) pb_msg(&t, 13, pair("length", length));
    pb_int(&t, 14, 1);
    return t;
}
/* dims: -1 is the symbol "N" */
static UNUSED pb value_info(const char *name, int dtype, int rank, const int64_t *dims)
{
    pb v = {0}, type = {0}, tensor = {0}, shape = {0};
    for (int i = 0; i < rank; i++) {
        pb d = {0};
        if (dims[i] < 0) pb_str(&d, 2, "N");
        else pb_int(&d, 1, dims[i]);
        pb_msg(&shape, 1, d);
    }
    pb_int(&tensor, 1, dtype);
    pb_msg(&tensor, 2, shape);
    pb_msg(&type, 1, tensor);
    pb_str(&v, 1, name);
    pb_msg(&v, 2, type);
    return v;
}
static UNUSED void words(pb *b, unsigned field, const char *list)
{
    while (*list) {
        size_t n = strcspn(list, " ");
        if (n == 1 && *list == '-') pb_bytes(b, field, "", 0);
        else pb_bytes(b, field, list, n);
        list += n + (list[n] == ' ');
    }
}
/* in, out: names with spaces between, "-" for an omitted one */
static UNUSED pb node(const char *domain, const char *op, const char *name, const char *in, const char *out)
{
    pb n = {0};
    words(&n, 1, in);
    words(&n, 2, out);
    if (*name) pb_str(&n, 3, name);
    pb_str(&n, 4, op);
    if (*domain) pb_str(&n, 7, domain);
    return n;
}
static UNUSED pb attr_int(const char *name, int64_t v)
{
    pb a = {0};
    pb_str(&a, 1, name);
    pb_int(&a, 3, v);
    pb_int(&a, 20, 2);
    return a;
}
static UNUSED pb attr_float(const char *name, float v)
{
    pb a = {0};
    pb_str(&a, 1, name);
    pb_float(&a, 2, v);
    pb_int(&a, 20, 1);
    return a;
}
static UNUSED pb attr_ref(const char *name, const char *ref, int type)
{
    pb a = {0};
    pb_str(&a, 1, name);
    pb_int(&a, 20, type);
    pb_str(&a, 21, ref);
    return a;
}
static UNUSED pb opset(const char *domain, int64_t version)
{
    pb o = {0};
    pb_str(&o, 1, domain);
    pb_int(&o, 2, version);
    return o;
}
/* Takes `graph` over. */
static UNUSED pb model_of(pb graph)
{
    pb m = {0};
    pb_int(&m, 1, 8);
    pb_str(&m, 2, "test");
    pb_msg(&m, 7, graph);
    pb_msg(&m, 8, opset("", 17));
    return m;
}
/* y = Relu(x + w), with the given initializer w; takes `w` over. */
static UNUSED pb small_graph(pb w)
{
    const int64_t d[] = {-1, 3};
    pb g = {0};
    pb_msg(&g, 1, node("", "Add", "add", "x w", "h"));
    pb_msg(&g, 1, node("", "Relu", "relu", "h", "y"));
    pb_str(&g, 2, "g");
    pb_msg(&g, 5, w);
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    pb_msg(&g, 12, value_info("y", 1, 2, d));
    return g;
}

/* --- files --- */
static char test_dir[256];

static UNUSED int dir_setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(test_dir, sizeof test_dir, "%s/invonnx-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(test_dir) ? 0 : -1;
}
static UNUSED int count_files(const char *dir, bool unlink_them)
{
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (unlink_them && unlink(path) != 0) {
            count_files(path, true);
            rmdir(path);
        }
    }
    closedir(d);
    return n;
}
static UNUSED int dir_teardown(void **state)
{
    (void)state;
    count_files(test_dir, true);
    return rmdir(test_dir);
}
static UNUSED const char *in_dir(const char *name)
{
    static char path[4][512];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", test_dir, name);
    return p;
}
static UNUSED void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    if (n) assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}
static UNUSED unsigned char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    unsigned char *p = malloc(*n + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}
static UNUSED bool same_files(const char *a, const char *b)
{
    size_t na, nb;
    unsigned char *pa = read_file(a, &na), *pb_ = read_file(b, &nb);
    bool same = na == nb && !memcmp(pa, pb_, na);
    free(pa);
    free(pb_);
    return same;
}
/* Writes a model into the test's folder and frees it. */
static UNUSED const char *save(pb m, const char *name)
{
    const char *path = in_dir(name);
    write_file(path, m.p, m.n);
    free(m.p);
    return path;
}
/* Folder of the models with golden results; NULL if it is not on this machine. */
static UNUSED const char *shared_models(void)
{
    static const char *const dir = INV_SOURCE_DIR "/../shared/models";
    struct stat st;
    return stat(dir, &st) == 0 ? dir : NULL;
}

/* --- a context whose n-th allocation fails --- */
typedef struct failing {
    long countdown; /* allocations that still succeed; negative: all */
    long live;
} failing;

static UNUSED void *failing_alloc(void *opaque, size_t n)
{
    failing *f = opaque;
    if (f->countdown == 0) return NULL;
    if (f->countdown > 0) f->countdown--;
    f->live++;
    return malloc(n ? n : 1);
}
static UNUSED void failing_free(void *opaque, void *p)
{
    if (p) ((failing *)opaque)->live--;
    free(p);
}
static UNUSED inv_context *context(failing *f)
{
    inv_context *ctx = NULL;
    inv_allocator a = {failing_alloc, failing_free, f};
    inv_context_options o = {.size = sizeof o, .allocator = &a};
    assert_int_equal(inv_context_create(f ? &o : NULL, &ctx), INV_OK);
    return ctx;
}

#define assert_has(text, part)                                                                   \
    do {                                                                                         \
        if (!strstr((text), (part))) fail_msg("\"%s\" does not contain \"%s\"", (text), (part)); \
    } while (0)

#endif
