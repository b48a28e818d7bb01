/* SPDX-License-Identifier: Apache-2.0
 * Every kind of data, with each of the system calls that read it failing in turn (failing_sweep.h). */
#define _GNU_SOURCE /* RTLD_NEXT, O_TMPFILE */

#include "failing_sweep.h"

#include <minizip/zip.h>

#include "data/source.h"

enum { ROWS = 6, WIDTH = 8 };
static float numbers[ROWS * WIDTH];

/* --- what the program is fed --- */

static void no_note(const char *format, ...) { (void)format; }
static void no_busy(const char *stage, double share)
{
    (void)stage;
    (void)share;
}

/* All rows, whose bytes must be `sum` where that is not 0. */
static inv_status read_source(attempt *a, const data_request *q, const char *name, int64_t nrows)
{
    data_source s;
    const data_draw draw = {0};
    FILE *why = fmemopen(a->why, sizeof a->why, "w");
    bool ok = data_source_open(q, in_folder(name), &s, why);
    if (ok) assert_int_equal(s.nrows, nrows);
    for (int64_t r = 0; ok && s.calls->fill && r < s.nrows; r++) {
        char room[2][4 * 3 * 16 * 24];
        void *out[] = {room[0], room[1]};
        ok = s.calls->fill(&s, &draw, r, out, why);
    }
    data_source_close(&s);
    const bool armed = failing.armed;
    failing.armed = false;
    fclose(why);
    failing.armed = armed;
    return ok ? INV_OK : INV_E_IO;
}

static data_request request(int rank, const int64_t *dims)
{
    return (data_request){.rank = rank,
                          .dims = dims,
                          .dtype = INV_F32,
                          .labels = true,
                          .outputs = -1,
                          .threads = 1,
                          .note = no_note,
                          .busy = no_busy};
}

static const int64_t flat[] = {-1, WIDTH}, pair[] = {-1, 2}, windows[] = {-1, 5}, pixels[] = {-1, 3, 16, 24};

static inv_status read_array(attempt *a)
{
    const data_request q = request(2, flat);
    return read_source(a, &q, "x.npy", ROWS);
}
static inv_status read_archive(attempt *a)
{
    const data_request q = request(2, flat);
    return read_source(a, &q, "x.npz", ROWS);
}
static inv_status read_table(attempt *a)
{
    data_request q = request(2, pair);
    q.target_columns = "kind";
    return read_source(a, &q, "t.csv", 3);
}
static inv_status read_tokens(attempt *a)
{
    data_request q = request(2, windows);
    q.tokens = 2;
    q.dtype = INV_I64;
    return read_source(a, &q, "t.bin", 3);
}
static inv_status read_pictures(attempt *a)
{
    const data_request q = request(4, pixels);
    return read_source(a, &q, "photos", 2);
}

static void test_data(void **state)
{
    (void)state;
    SWEEP("array", nothing, read_array, .file = NULL);
    SWEEP("archive", nothing, read_archive, .file = NULL);
    SWEEP("table", nothing, read_table, .file = NULL);
    SWEEP("tokens", nothing, read_tokens, .file = NULL);
    SWEEP("pictures", nothing, read_pictures, .file = NULL);
}

/* A table that cannot be read to its end is not shorter. */
static void test_table_that_ends_early(void **state)
{
    (void)state;
    attempt a = {0};
    data_request q = request(2, pair);
    q.target_columns = "kind";
    assert_int_equal(symlink("/proc/self/mem", in_folder("bad.csv")), 0); /* its first page is not there */
    assert_int_equal(read_source(&a, &q, "bad.csv", 0), INV_E_IO);
    if (!strstr(a.why, strerror(EIO))) fail_msg("%s", a.why);
}

/* --- the files --- */

static void make_data(void)
{
    static const char table[] = "p,kind,q\n0,a,1\n2,b,3\n4,\"a\",5\n";
    const uint16_t token[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    char npy[128 + sizeof numbers], text[119];
    snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", ROWS, WIDTH);
    memcpy(npy, "\x93NUMPY\x01\x00\x76\x00", 10);
    memset(npy + 10, ' ', 118);
    memcpy(npy + 10, text, strlen(text));
    npy[127] = '\n';
    memcpy(npy + 128, numbers, sizeof numbers);
    write_file("x.npy", npy, sizeof npy);
    write_file("t.csv", table, sizeof table - 1);
    write_file("t.bin", token, sizeof token);
    zipFile zip = zipOpen64(in_folder("x.npz"), APPEND_STATUS_CREATE);
    assert_int_equal(zipOpenNewFileInZip(zip, "x.npy", NULL, NULL, 0, NULL, 0, NULL, Z_DEFLATED, 6), ZIP_OK);
    assert_int_equal(zipWriteInFileInZip(zip, npy, sizeof npy), ZIP_OK);
    assert_int_equal(zipCloseFileInZip(zip), ZIP_OK);
    assert_int_equal(zipClose(zip, NULL), ZIP_OK);
    for (int i = 0; i < 2; i++) {
        mkdir(in_folder("photos"), 0700);
        mkdir(in_folder(i ? "photos/b" : "photos/a"), 0700);
        copy_file(INV_TEST_DATA "/pictures/colour.jpg", i ? "photos/b/1.jpg" : "photos/a/1.jpg");
    }
}

static int make_files(void **state)
{
    (void)state;
    if (make_folder()) return -1;
    for (int i = 0; i < ROWS * WIDTH; i++) numbers[i] = (float)(i % 7) / 7;
    make_data();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_data), cmocka_unit_test(test_table_that_ends_early)};
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
