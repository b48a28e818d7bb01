/* SPDX-License-Identifier: Apache-2.0
 * Every node test's model, of Debian's libonnx-testdata and of the installed onnx package, loads and is saved byte for
 * byte as it was. */
#define _XOPEN_SOURCE 700
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

#include "invonnx/invonnx.h"

#define SAVED "conform_bytes.onnx"

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *bytes = NULL;
    FILE *all = open_memstream(&bytes, n);
    assert_non_null(f);
    assert_non_null(all);
    for (int c; (c = getc(f)) != EOF;) putc(c, all);
    (void)fclose(f);
    (void)fclose(all);
    return bytes;
}

/* Whether the model came back as it was; says so if not. */
static bool comes_back(inv_context *ctx, const char *path)
{
    inv_model *m;
    if (inv_model_load(ctx, path, &m) != INV_OK) {
        print_message("%s\n", inv_context_message(ctx));
        return false;
    }
    inv_status s = inv_model_save(m, NULL, SAVED);
    inv_model_destroy(m);
    if (s != INV_OK) {
        print_message("%s: %s\n", path, inv_context_message(ctx));
        return false;
    }
    size_t before, after;
    char *x = read_file(path, &before), *y = read_file(SAVED, &after);
    bool same = before == after && memcmp(x, y, before) == 0;
    if (!same) print_message("%s: %zu bytes came back as %zu others\n", path, before, after);
    free(x);
    free(y);
    (void)unlink(SAVED);
    return same;
}

static void all_come_back(const char *folder, int want)
{
    inv_context *ctx;
    DIR *d = opendir(folder);
    int found = 0, bad = 0;
    if (!d) fail_msg("cannot open the folder %s", folder);
    assert_int_equal(inv_context_create(NULL, &ctx), INV_OK);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/%s/model.onnx", folder, e->d_name);
        if (e->d_name[0] == '.' || stat(path, &st) != 0) continue;
        found++;
        bad += !comes_back(ctx, path);
    }
    (void)closedir(d);
    inv_context_destroy(ctx);
    print_message("%d of %d in %s\n", found - bad, found, folder);
    assert_int_equal(bad, 0);
    assert_int_equal(found, want);
}

static void test_debian(void **state)
{
    (void)state;
    all_come_back("/usr/share/libonnx-testdata/data/node", 932);
}

static void test_generated(void **state)
{
    (void)state;
    all_come_back(INV_NODE_TESTS, 1884);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_debian), cmocka_unit_test(test_generated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
