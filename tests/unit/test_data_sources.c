/* SPDX-License-Identifier: Apache-2.0
 * Every kind of source, through the threads that prepare batches: what is in a batch is what the files hold, whichever
 * thread has read it and in whatever order. Files that are damaged in any way are refused or read, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/loader.h"

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[8][160];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", folder, name);
    return path[at];
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    if (n) assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t read_bytes(const char *path, unsigned char *bytes, size_t room)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, room, f);
    fclose(f);
    return n;
}

/* float32[rows, 3], element i of row r is 10 r + i, r counted from `first`. */
static size_t npy_bytes(unsigned char *out, int first, int rows)
{
    char text[119];
    snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 3), }", rows);
    memcpy(out, "\x93NUMPY\x01\x00\x76\x00", 10);
    memset(out + 10, ' ', 118);
    memcpy(out + 10, text, strlen(text));
    out[127] = '\n';
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 3; i++) {
            const float v = (float)(10 * (first + r) + i);
            memcpy(out + 128 + 4 * (3 * r + i), &v, 4);
        }
    return 128 + 12 * (size_t)rows;
}

static void no_note(const char *format, ...) { (void)format; }
static void no_busy(const char *stage, double share)
{
    (void)stage;
    (void)share;
}

static data_request request(int rank, const int64_t *dims)
{
    return (data_request){.rank = rank,
                          .dims = dims,
                          .dtype = INV_F32,
                          .labels = true,
                          .outputs = -1,
                          .threads = 2,
                          .note = no_note,
                          .busy = no_busy};
}

/* All rows of an epoch, in any order and by several threads, go through `check`. */
static void read_all(data_source *s, int threads, bool shuffled,
                     void (*check)(int64_t row, const void *x, const void *y))
{
    const bool wanted[1][DATA_FIELDS] = {{true, s->field[DATA_TARGET].dtype != INV_DT_NONE}};
    data_source *sources[] = {s};
    const data_loader_options o = {.sources = sources,
                                   .nsources = 1,
                                   .wanted = wanted,
                                   .order = {.nrows = s->nrows, .shuffled = shuffled, .seed = 5},
                                   .batch = 7,
                                   .threads = threads};
    data_loader *l;
    assert_true(data_loader_create(&o, &l, stderr));
    for (uint64_t epoch = 1; epoch < (s->stream ? 2 : 4); epoch++) {
        for (int64_t at = 0; at < s->nrows; at += 7) {
            const data_batch *b;
            assert_true(data_loader_take(l, epoch, at, s->nrows - at < 7 ? s->nrows - at : 7, &b, stderr));
            for (int64_t i = 0; i < b->n; i++) {
                const void *value[DATA_FIELDS];
                for (int f = 0; f < DATA_FIELDS; f++) {
                    const data_field *field = &s->field[f];
                    value[f] = field->base    ? (const char *)field->base + (size_t)b->rows[i] * field->nbytes
                               : wanted[0][f] ? (const char *)b->buffer[0][f] + (size_t)i * field->nbytes
                                              : NULL;
                }
                check(b->rows[i], value[DATA_INPUT], value[DATA_TARGET]);
            }
        }
    }
    data_loader_destroy(l);
}

static data_source open_it(const data_request *q, const char *path)
{
    data_source s;
    assert_true(data_source_open(q, path, &s, stderr));
    return s;
}

static void check_numbers(int64_t row, const void *x, const void *y)
{
    (void)y;
    for (int i = 0; i < 3; i++) assert_true(((const float *)x)[i] == (float)(10 * row + i));
}

static void test_shards(void **state)
{
    (void)state;
    static unsigned char bytes[8192];
    int first = 0;
    for (int k = 8; k < 13; k++) {
        char name[32];
        snprintf(name, sizeof name, "x-%d.npy", k);
        write_bytes(name, bytes, npy_bytes(bytes, first, k));
        first += k;
    }
    const int64_t dims[] = {-1, 3};
    const data_request q = request(2, dims);
    data_source s = open_it(&q, path_of("x-*.npy"));
    assert_int_equal(s.nrows, 50);
    for (int threads = 0; threads < 3; threads++) read_all(&s, threads, true, check_numbers);
    int64_t number;
    const char *unit;
    assert_string_equal(s.calls->place(&s, 8, &number, &unit), path_of("x-9.npy"));
    assert_int_equal(number, 0);
    data_source_close(&s);
}

static void test_pipe(void **state)
{
    (void)state;
    static unsigned char bytes[8192];
    const size_t n = npy_bytes(bytes, 0, 40);
    for (int threads = 0; threads < 2; threads++) {
        int ends[2];
        char path[40];
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], bytes, n), n);
        snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
        const int64_t dims[] = {-1, 3};
        const data_request q = request(2, dims);
        data_source s = open_it(&q, path);
        assert_true(s.stream);
        read_all(&s, threads, false, check_numbers);
        data_source_close(&s);
        close(ends[0]);
        close(ends[1]);
    }
}

static void check_windows(int64_t row, const void *x, const void *y)
{
    for (int i = 0; i < 5; i++) {
        assert_int_equal(((const int64_t *)x)[i], row * 5 + i);
        assert_int_equal(((const int64_t *)y)[i], row * 5 + i + 1);
    }
}

static void test_tokens(void **state)
{
    (void)state;
    uint16_t token[203];
    for (int i = 0; i < 203; i++) token[i] = (uint16_t)i;
    write_bytes("t.bin", token, sizeof token);
    const int64_t dims[] = {-1, 5};
    data_request q = request(2, dims);
    q.tokens = 2;
    q.dtype = INV_I64;
    data_source s = open_it(&q, path_of("t.bin"));
    assert_int_equal(s.nrows, 40);
    for (int threads = 0; threads < 3; threads++) read_all(&s, threads, true, check_windows);
    /* at random places: still one token after the other, within the file, and not into rows that are held out */
    const data_order order = {.nrows = s.nrows, .nheld = 8, .in_sequence = true, .seed = 3};
    int moved = 0;
    for (uint64_t epoch = 1; epoch < 40; epoch++) {
        const data_draw draw = {3, epoch, &order, true};
        for (int64_t p = 0; p < data_order_count(&order); p++) {
            const int64_t row = data_order_row(&order, epoch, p);
            int64_t x[5], y[5];
            void *out[] = {x, y};
            assert_true(s.calls->fill(&s, &draw, row, out, stderr));
            assert_in_range(x[0], row * 5, row * 5 + 4);
            moved += x[0] != row * 5;
            for (int i = 0; i < 5; i++) {
                assert_int_equal(y[i], x[0] + i + 1);
                assert_false(data_order_holds(&order, x[i] / 5));
            }
        }
    }
    assert_in_range(moved, 800, 1100); /* four of five of 1248 */
    data_source_close(&s);
}

static void check_lines(int64_t row, const void *x, const void *y)
{
    for (int i = 0; i < 2; i++) assert_true(((const float *)x)[i] == (float)(row * 2 + i));
    assert_int_equal(*(const int64_t *)y, row % 3);
}

static void test_table(void **state)
{
    (void)state;
    static const char *const kinds[] = {"a", "b", "c"};
    char text[4096];
    size_t n = (size_t)snprintf(text, sizeof text, "p,kind,q\n");
    for (int r = 0; r < 60; r++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%d,%s,\"%d\"\n%s", 2 * r, kinds[r % 3], 2 * r + 1,
                              r == 9 ? "\n" : "");
    write_bytes("t.csv", text, n);
    const int64_t dims[] = {-1, 2};
    data_request q = request(2, dims);
    q.target_columns = "kind";
    data_source s = open_it(&q, path_of("t.csv"));
    assert_int_equal(s.nclasses, 3);
    assert_string_equal(s.classes[2], "c");
    for (int threads = 0; threads < 3; threads++) read_all(&s, threads, true, check_lines);
    const int64_t rows[] = {9, 10};
    char *said = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&said, &length);
    data_put_places(f, &s, rows, 2);
    fclose(f);
    char want[200];
    snprintf(want, sizeof want, "lines 11 and 13 of %s", path_of("t.csv"));
    assert_string_equal(said, want);
    free(said);
    data_source_close(&s);
}

static void check_pictures(int64_t row, const void *x, const void *y)
{
    assert_int_equal(*(const int64_t *)y, row / 4);
    const float *p = x;
    for (int i = 0; i < 3 * 16 * 24; i++) assert_true(p[i] >= 0 && p[i] <= 1);
}

/* Folders of the test's pictures; what the build cannot decode is left out. */
static int64_t make_folders(void)
{
    static unsigned char bytes[8192];
#ifdef INV_HAVE_JPEG
    const size_t n = read_bytes(INV_TEST_DATA "/pictures/colour.jpg", bytes, sizeof bytes);
#else
    const size_t n = 0;
#endif
    mkdir(path_of("photos"), 0700);
    for (int k = 0; k < 5 && n; k++) {
        char name[64];
        snprintf(name, sizeof name, "photos/%c", 'a' + k);
        mkdir(path_of(name), 0700);
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "photos/%c/%d.jpg", 'a' + k, i);
            write_bytes(name, bytes, n);
        }
    }
    return n ? 20 : 0;
}

static void test_pictures(void **state)
{
    (void)state;
    const int64_t dims[] = {-1, 3, 16, 24}, n = make_folders();
    data_request q = request(4, dims);
    q.skip_bad = true;
    if (n == 0) skip();
    data_source s = open_it(&q, path_of("photos"));
    assert_int_equal(s.nrows, n);
    for (int threads = 0; threads < 5; threads++) read_all(&s, threads, true, check_pictures);
    data_source_close(&s);
}

/* --- damaged files --- */

/* Opens what may be damaged and reads all rows; what comes of it does not matter. */
static void try_file(const data_request *q, const char *path)
{
    data_source s;
    FILE *why = fopen("/dev/null", "w");
    if (data_source_open(q, path, &s, why)) {
        const data_draw draw = {0};
        for (int64_t row = 0; row < s.nrows && row < 100 && s.calls->fill; row++) {
            void *out[] = {s.field[0].dtype ? malloc(s.field[0].nbytes + 1) : NULL,
                           s.field[1].dtype ? malloc(s.field[1].nbytes + 1) : NULL};
            const bool ok = s.calls->fill(&s, &draw, row, out, why);
            free(out[0]);
            free(out[1]);
            if (!ok) break;
        }
        data_source_close(&s);
    }
    fclose(why);
}

static void damage(const data_request *q, const char *source, const char *name, const char *path, int times)
{
    static unsigned char bytes[8192], other[8192];
    const size_t n = read_bytes(source, bytes, sizeof bytes);
    for (int i = 0; i < times; i++) {
        memcpy(other, bytes, n);
        size_t length = n;
        for (uint64_t k = 0; k < 1 + (uint64_t)i % 4; k++) {
            const uint64_t r = data_random_at((uint64_t)n, (uint64_t)i, k);
            if (r % 5 == 0) length = (size_t)(r >> 8) % (n + 1);
            else other[(r >> 8) % n] = (unsigned char)(r >> 40);
        }
        write_bytes(name, other, length);
        try_file(q, path);
    }
}

static void test_damage(void **state)
{
    (void)state;
    const int64_t two[] = {-1, 3}, four[] = {-1, 3, 16, 24}, windows[] = {-1, 5};
    data_request q = request(2, two);
    char path[160];
    strcpy(path, path_of("x-8.npy"));
    damage(&q, path, "y.npy", path_of("y.npy"), 300);
    strcpy(path, path_of("t.csv"));
    q.target_columns = "kind";
    damage(&q, path, "y.csv", path_of("y.csv"), 200);
    q = request(2, windows);
    q.tokens = 2;
    q.outputs = 150;
    strcpy(path, path_of("t.bin"));
    damage(&q, path, "y.bin", path_of("y.bin"), 100);
    q = request(4, four);
    mkdir(path_of("bad"), 0700);
    mkdir(path_of("bad/a"), 0700);
    for (const char *const *p = (const char *const[]){"colour.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", NULL};
         *p; p++) {
        snprintf(path, sizeof path, "%s/pictures/%s", INV_TEST_DATA, *p);
        damage(&q, path, "bad/a/y.jpg", path_of("bad"), 200);
    }
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "invonnx-data-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards), cmocka_unit_test(test_pipe),     cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_table),  cmocka_unit_test(test_pictures), cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
