/* SPDX-License-Identifier: Apache-2.0
 * The order of rows as a function of its place, and the ring of prepared batches: a batch is the same whoever prepares
 * it, whenever and after whatever else was asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "data/loader.h"

/* --- the order --- */

static void is_permutation(const data_order *o, uint64_t epoch, char *seen)
{
    for (int64_t p = 0; p < data_order_count(o); p++) {
        const int64_t row = data_order_row(o, epoch, p);
        assert_in_range(row, 0, o->nrows - 1);
        assert_int_equal(seen[row], 0);
        seen[row] = 1;
    }
}

static void test_order_takes_every_row_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 4096, 4097};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint64_t epoch = 1; epoch < 4; epoch++) {
            const data_order o = {.nrows = sizes[i], .shuffled = true, .seed = 7};
            char *seen = calloc((size_t)sizes[i], 1);
            is_permutation(&o, epoch, seen);
            free(seen);
        }
    }
}

static void test_order_differs_by_seed_and_epoch(void **state)
{
    (void)state;
    const data_order a = {.nrows = 1000, .shuffled = true, .seed = 1}, b = {.nrows = 1000, .shuffled = true, .seed = 2};
    int same_epoch = 0, same_seed = 0, fixed = 0;
    for (int64_t p = 0; p < 1000; p++) {
        same_epoch += data_order_row(&a, 1, p) == data_order_row(&b, 1, p);
        same_seed += data_order_row(&a, 1, p) == data_order_row(&a, 2, p);
        fixed += data_order_row(&a, 1, p) == p;
    }
    assert_in_range(same_epoch, 0, 9); /* one is expected */
    assert_in_range(same_seed, 0, 9);
    assert_in_range(fixed, 0, 9);
}

/* Every row gets to every place equally often: chi squared of 8 rows and 8 places, 49 degrees of freedom. */
static void test_order_is_even(void **state)
{
    (void)state;
    enum { N = 8, EPOCHS = 16000 };
    const data_order o = {.nrows = N, .shuffled = true, .seed = 3};
    double count[N][N] = {{0}}, chi = 0;
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
        for (int p = 0; p < N; p++) count[p][data_order_row(&o, epoch, p)]++;
    for (int p = 0; p < N; p++)
        for (int r = 0; r < N; r++) {
            const double d = count[p][r] - (double)EPOCHS / N;
            chi += d * d / ((double)EPOCHS / N);
        }
    assert_true(chi < 100); /* one time in a hundred thousand */
}

static void test_split_divides_the_rows(void **state)
{
    (void)state;
    for (int64_t n = 2; n < 70; n++) {
        for (int64_t k = 1; k < n; k++) {
            for (int run = 0; run < 2; run++) {
                data_order o = {.nrows = n, .nheld = k, .in_sequence = run, .seed = (uint64_t)n};
                char *seen = calloc((size_t)n, 1);
                is_permutation(&o, 1, seen);
                int64_t before = -1;
                for (int64_t p = 0; p < data_order_count(&o); p++) { /* as they come */
                    assert_false(data_order_holds(&o, data_order_row(&o, 1, p)));
                    assert_true(data_order_row(&o, 1, p) > before);
                    before = data_order_row(&o, 1, p);
                }
                o.held = true;
                is_permutation(&o, 1, seen);
                for (int64_t p = 0; p < k; p++) assert_true(data_order_holds(&o, data_order_row(&o, 1, p)));
                assert_null(memchr(seen, 0, (size_t)n));
                if (run) assert_int_equal(data_order_row(&o, 1, k - 1) - data_order_row(&o, 1, 0), k - 1);
                o.held = false;
                o.shuffled = true;
                memset(seen, 0, (size_t)n);
                is_permutation(&o, 5, seen);
                free(seen);
            }
        }
    }
}

/* --- a source that computes its rows --- */

enum { ROWS = 103, WIDTH = 5, BAD = 77 };

static void row_of(const data_draw *draw, int64_t row, float *out)
{
    for (int i = 0; i < WIDTH; i++) out[i] = (float)(row * WIDTH + i) + 1000 * (draw->augment ? (float)draw->epoch : 0);
}

static bool made_fill(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS], FILE *why)
{
    if (s->state && row == BAD) return fprintf(why, "row %d of nothing is bad", BAD), false;
    row_of(draw, row, out[DATA_INPUT]);
    if (out[DATA_TARGET]) *(int64_t *)out[DATA_TARGET] = row;
    return true;
}

static const char *made_place(const data_source *s, int64_t row, int64_t *number, const char **unit)
{
    (void)s;
    *number = row;
    *unit = "row";
    return "nothing";
}

static void made_close(data_source *s) { (void)s; }

static const data_calls made = {made_fill, made_place, NULL, made_close};

static data_source make_source(bool bad)
{
    data_source s = {.calls = &made, .state = bad ? &s : NULL, .nrows = ROWS, .varies = true, .computes = true};
    s.field[DATA_INPUT] = (data_field){.dtype = INV_F32, .rank = 1, .dims = {WIDTH}};
    s.field[DATA_TARGET] = (data_field){.dtype = INV_I64};
    data_field_size(&s.field[DATA_INPUT]);
    data_field_size(&s.field[DATA_TARGET]);
    return s;
}

static const bool both[1][DATA_FIELDS] = {{true, true}};

static data_loader *peeking_loader(data_source *const *sources, int threads, int64_t batch, bool peeks)
{
    const data_loader_options o = {.sources = sources,
                                   .nsources = 1,
                                   .wanted = both,
                                   .order = {.nrows = ROWS, .shuffled = true, .seed = 11},
                                   .augment = true,
                                   .batch = batch,
                                   .peeks = peeks,
                                   .threads = threads};
    data_loader *l;
    assert_true(data_loader_create(&o, &l, stderr));
    return l;
}

static data_loader *make_loader(data_source *const *sources, int threads, int64_t batch)
{
    return peeking_loader(sources, threads, batch, false);
}

static void check_rows(const data_batch *b, uint64_t epoch, int64_t start, int64_t n)
{
    const data_order order = {.nrows = ROWS, .shuffled = true, .seed = 11};
    const data_draw draw = {.seed = 11, .epoch = epoch, .augment = true};
    assert_int_equal(b->n, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = data_order_row(&order, epoch, start + i);
        float want[WIDTH];
        row_of(&draw, row, want);
        assert_int_equal(b->rows[i], row);
        assert_int_equal(((const int64_t *)b->buffer[0][DATA_TARGET])[i], row);
        assert_memory_equal((const float *)b->buffer[0][DATA_INPUT] + i * WIDTH, want, sizeof want);
    }
}

static void check_batch(data_loader *l, uint64_t epoch, int64_t start, int64_t n)
{
    const data_batch *b;
    assert_true(data_loader_take(l, epoch, start, n, &b, stderr));
    check_rows(b, epoch, start, n);
}

static void test_batches_are_those_of_their_place(void **state)
{
    (void)state;
    data_source s = make_source(false), *sources[] = {&s};
    for (int threads = 0; threads < 5; threads++) {
        data_loader *l = make_loader(sources, threads, 10);
        for (uint64_t epoch = 1; epoch < 6; epoch++) /* in order, the last one smaller */
            for (int64_t at = 0; at < ROWS; at += 10) check_batch(l, epoch, at, at + 10 < ROWS ? 10 : ROWS - at);
        for (uint64_t epoch = 6; epoch < 9; epoch++) /* without it */
            for (int64_t at = 0; at + 10 <= ROWS; at += 10) check_batch(l, epoch, at, 10);
        for (int i = 0; i < 40; i++) /* anywhere, and the same again */
            for (int again = 0; again < 2; again++) check_batch(l, (uint64_t)(i % 3), i * 7 % 90, 1 + i % 10);
        data_loader_destroy(l);
    }
}

/* The batch behind the one at hand is seen beside it, and stays where it is when it is taken; what is taken in its
 * stead comes to another place. */
static void test_peeking(void **state)
{
    (void)state;
    data_source s = make_source(false), *sources[] = {&s};
    for (int threads = 0; threads < 4; threads++) {
        data_loader *l = peeking_loader(sources, threads, 10, true);
        for (int k = 0; k < 60; k++) {
            const uint64_t epoch = 1 + (uint64_t)(k / 11), after = 1 + (uint64_t)((k + 1) / 11);
            const int64_t at = 10 * (k % 11), next = 10 * ((k + 1) % 11), other = k % 3 || !next ? next : 3;
            const int64_t n = at < 100 ? 10 : 3, rest = next < 100 ? 10 : 3;
            const struct timespec moment = {0, 1000000}; /* ns */
            const data_batch *now, *then;
            data_batch ahead;
            assert_true(data_loader_take(l, epoch, at, n, &now, stderr));
            bool there = data_loader_peek(l, after, next, rest, &ahead);
            for (int i = 0; i < 20000 && threads && !there; i++) {
                nanosleep(&moment, NULL);
                there = data_loader_peek(l, after, next, rest, &ahead);
            }
            assert_true(there);
            check_rows(&ahead, after, next, rest);
            check_rows(now, epoch, at, n);
            assert_false(data_loader_peek(l, after, next, rest - 1, &ahead));
            assert_true(data_loader_take(l, after, other, rest, &then, stderr));
            check_rows(then, after, other, rest);
            assert_true((then->buffer == ahead.buffer) == (other == next));
            assert_true((then->rows == ahead.rows) == (other == next));
        }
        data_loader_destroy(l);
        l = make_loader(sources, threads, 10);
        data_batch none;
        check_batch(l, 1, 0, 10);
        assert_false(data_loader_peek(l, 1, 10, 10, &none));
        data_loader_destroy(l);
    }
}

/* Who peeks does not hear of a bad row; who takes the batch does. */
static void test_peeking_at_a_bad_row(void **state)
{
    (void)state;
    data_source s = make_source(true), *sources[] = {&s};
    const data_order order = {.nrows = ROWS, .shuffled = true, .seed = 11};
    int64_t bad = 0;
    while (data_order_row(&order, 1, bad) != 77) bad++;
    for (int threads = 0; threads < 3; threads++) {
        data_loader *l = peeking_loader(sources, threads, 10, true);
        const data_batch *b;
        data_batch ahead;
        char text[100] = "";
        const int64_t at = bad - bad % 10, before = at ? 0 : 50;
        check_batch(l, 1, before, 10);
        for (int i = 0; i < 3; i++) assert_false(data_loader_peek(l, 1, at, 10, &ahead));
        FILE *why = fmemopen(text, sizeof text, "w");
        assert_false(data_loader_take(l, 1, at, 10, &b, why));
        fclose(why);
        assert_string_equal(text, "row 77 of nothing is bad");
        data_loader_destroy(l);
    }
}

static void test_a_bad_row_fails_its_batch(void **state)
{
    (void)state;
    data_source s = make_source(true), *sources[] = {&s};
    for (int threads = 0; threads < 4; threads++) {
        data_loader *l = make_loader(sources, threads, ROWS);
        const data_batch *b;
        char text[100] = "";
        FILE *why = fmemopen(text, sizeof text, "w");
        assert_false(data_loader_take(l, 1, 0, ROWS, &b, why));
        fclose(why);
        assert_string_equal(text, "row 77 of nothing is bad");
        data_loader_destroy(l);
    }
}

static atomic_int filled;

static bool counted_fill(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS],
                         FILE *why)
{
    const bool ok = made_fill(s, draw, row, out, why);
    atomic_fetch_add(&filled, 1);
    return ok;
}

/* While the caller has a batch, the two behind it are read, and then no more: reading does not wait for the next call.
 */
static void test_reading_goes_on_beside_the_step(void **state)
{
    (void)state;
    static const data_calls counted = {counted_fill, made_place, NULL, made_close};
    const struct timespec moment = {0, 1000000}; /* ns */
    data_source s = make_source(false), *sources[] = {&s};
    s.calls = &counted;
    for (int threads = 1; threads < 4; threads++) {
        atomic_store(&filled, 0);
        data_loader *l = make_loader(sources, threads, 10);
        check_batch(l, 1, 0, 10);
        for (int i = 0; i < 20000 && atomic_load(&filled) < 30; i++) nanosleep(&moment, NULL);
        for (int i = 0; i < 20; i++) nanosleep(&moment, NULL);
        assert_int_equal(atomic_load(&filled), 30);
        check_batch(l, 1, 10, 10);
        for (int i = 0; i < 20000 && atomic_load(&filled) < 40; i++) nanosleep(&moment, NULL);
        assert_int_equal(atomic_load(&filled), 40);
        data_loader_destroy(l);
    }
}

/* What nobody has asked for yet may be left alone at any moment. */
static void test_it_ends_at_any_time(void **state)
{
    (void)state;
    data_source s = make_source(false), *sources[] = {&s};
    for (int i = 0; i < 50; i++) {
        data_loader *l = make_loader(sources, 1 + i % 4, 10);
        for (int k = 0; k < i % 5; k++) check_batch(l, 1, 10 * k, 10);
        assert_true(data_loader_waits(l).threads == 1 + i % 4);
        data_loader_destroy(l);
    }
}

static void test_names_are_in_the_order_of_their_numbers(void **state)
{
    (void)state;
    const char *names[] = {"x-10.npy", "x-9.npy", "x-1.npy", "x-01.npy", "x-2b.npy", "a", "x-2.npy"};
    const char *want[] = {"a", "x-01.npy", "x-1.npy", "x-2.npy", "x-2b.npy", "x-9.npy", "x-10.npy"};
    qsort(names, 7, sizeof *names, data_by_name);
    for (int i = 0; i < 7; i++) assert_string_equal(names[i], want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_takes_every_row_once),
        cmocka_unit_test(test_order_differs_by_seed_and_epoch),
        cmocka_unit_test(test_order_is_even),
        cmocka_unit_test(test_split_divides_the_rows),
        cmocka_unit_test(test_batches_are_those_of_their_place),
        cmocka_unit_test(test_peeking),
        cmocka_unit_test(test_peeking_at_a_bad_row),
        cmocka_unit_test(test_a_bad_row_fails_its_batch),
        cmocka_unit_test(test_reading_goes_on_beside_the_step),
        cmocka_unit_test(test_it_ends_at_any_time),
        cmocka_unit_test(test_names_are_in_the_order_of_their_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
