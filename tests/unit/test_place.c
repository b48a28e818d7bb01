/* SPDX-License-Identifier: Apache-2.0
 * Offsets (passes/schedule/place.c): boxes that live at once never share bytes, the arena is the load or at most half a
 * percent more on lifetimes of training steps, made up and recorded, and many boxes are placed fast. Fails if the
 * placement forgets a neighbour, if it is first fit alone (12 % too much on a recorded U-Net), if it packs large and
 * small boxes alike (2 % on a recorded ResNet-50), if large boxes leave no room for those that pile up beside them
 * (12 % on a recorded RevNet-110), or if its time grows as n^2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "passes/schedule/place.h"
#include "with_context.h"

typedef struct boxes {
    inv_box *at;
    size_t n, cap;
} boxes;

static uint64_t seed;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static void add(boxes *b, size_t nbytes, uint32_t from, uint32_t to)
{
    if (b->n == b->cap) { /* seldom: a sanitizer's realloc copies each time */
        b->cap = b->cap ? 2 * b->cap : 64;
        b->at = realloc(b->at, b->cap * sizeof *b->at);
        assert_non_null(b->at);
    }
    b->at[b->n++] = (inv_box){(nbytes + 63) / 64 * 64, 1, from, to};
}

/* A step of n operators: of the activations that many in 256 are stored, the others computed again; gradients of them
 * and of parameters, and workspaces. */
static boxes step_of(uint32_t n, uint32_t stored)
{
    boxes b = {0};
    for (uint32_t i = 0; i < n / 2; i++) {
        const size_t size = (size_t)4096 << below(5);
        const uint32_t back = n - 1 - i;
        if (below(256) < stored) {
            add(&b, size, i, back + below(3));
        } else {
            add(&b, size, i, i + 1 + below(4));
            add(&b, size, back > 2 ? back - 2 : 0, back + 1);
        }
        if (below(3) == 0) add(&b, 1000 * (size_t)below(50), i, i);
        add(&b, size, back, back + 1 + below(4));
        if (below(3) == 0) add(&b, 100 + (size_t)below(40000), back, n + 4);
    }
    return b;
}

/* Of any kind, some very large. */
static boxes anything(uint32_t n)
{
    boxes b = {0};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t from = below(n);
        add(&b, (size_t)below(1000) << below(14), from, from + below(below(8) ? 20 : n));
    }
    return b;
}

static int by_time(const void *a, const void *b)
{
    const inv_box *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* The excess over the load, as a share of it, of boxes that are placed in `need` bytes. All pairs that live at once are
 * compared. */
static double excess_in(boxes *b, size_t need)
{
    size_t load = 0;
    qsort(b->at, b->n, sizeof *b->at, by_time);
    for (size_t i = 0; i < b->n; i++) {
        size_t live = 0;
        const inv_box *x = &b->at[i];
        assert_true(x->offset + x->nbytes <= need && x->offset % INV_PLACE_ALIGN == 0);
        for (size_t k = 0; k < b->n && b->at[k].from <= x->from; k++)
            if (b->at[k].to >= x->from) live += b->at[k].nbytes;
        for (size_t k = i + 1; k < b->n && b->at[k].from <= x->to; k++) {
            const inv_box *y = &b->at[k];
            if (x->nbytes && y->nbytes && x->offset < y->offset + y->nbytes && y->offset < x->offset + x->nbytes)
                fail_msg("boxes %zu and %zu live at once and share bytes", i, k);
        }
        if (live > load) load = live;
    }
    for (size_t k = 0; k < b->n; k++) { /* at its begin, all that begin then count */
        size_t live = 0;
        for (size_t i = 0; i < b->n && b->at[i].from <= b->at[k].from; i++)
            if (b->at[i].to >= b->at[k].from) live += b->at[i].nbytes;
        if (live > load) load = live;
    }
    assert_true(need >= load);
    free(b->at);
    b->at = NULL;
    return load ? (double)(need - load) / (double)load : (double)need;
}

/* Places them; the excess over the load, as a share of it. */
static double excess(boxes *b)
{
    size_t need;
    assert_int_equal(inv_place(ctx, b->at, b->n, 2, 0, &need), INV_OK);
    return excess_in(b, need);
}

static void steps_take_their_load(void **state)
{
    (void)state;
    seed = 1;
    for (int k = 0; k < 30; k++) {
        const uint32_t n = 4 + below(k % 10 ? 150 : 1500), stored = 64 + below(192);
        boxes b = step_of(n, stored);
        const double more = excess(&b);
        if (more > 0.005) fail_msg("trial %d: %zu boxes take %.3f %% more than their load", k, b.n, 100 * more);
    }
}

static void recorded_steps_take_their_load(void **state)
{
    (void)state;
    FILE *f = fopen(INV_TEST_DATA "/lifetimes.txt", "r");
    assert_non_null(f);
    size_t n, load, sets = 0;
    double sum = 0;
    while (fscanf(f, "%zu %zu", &n, &load) == 2) {
        boxes b = {0};
        for (size_t i = 0; i < n; i++) {
            size_t nbytes;
            unsigned from, to;
            assert_int_equal(fscanf(f, "%zu %u %u", &nbytes, &from, &to), 3);
            add(&b, nbytes, from, to);
        }
        const double more = excess(&b);
        if (more > 0.01) fail_msg("%zu recorded boxes take %.3f %% more than their load", n, 100 * more);
        sum += more;
        sets++;
    }
    (void)fclose(f);
    assert_int_equal(sets, 8);
    assert_true(sum / 8 < 0.004);
}

static void anything_is_placed(void **state)
{
    (void)state;
    seed = 2;
    for (int k = 0; k < 40; k++) {
        boxes b = anything(1 + below(120));
        (void)excess(&b);
    }
    boxes none = {0};
    size_t need = 1;
    assert_int_equal(inv_place(ctx, none.at, 0, 2, 0, &need), INV_OK);
    assert_int_equal(need, 0);
}

static void placed_alike(void **state)
{
    (void)state;
    seed = 3;
    boxes a = step_of(400, 100);
    inv_box *b = malloc(a.n * sizeof *b);
    assert_non_null(b);
    memcpy(b, a.at, a.n * sizeof *b);
    size_t need[2];
    assert_int_equal(inv_place(ctx, a.at, a.n, 2, 0, &need[0]), INV_OK);
    assert_int_equal(inv_place(ctx, b, a.n, 2, 0, &need[1]), INV_OK);
    assert_int_equal(need[0], need[1]);
    for (size_t i = 0; i < a.n; i++) assert_int_equal(a.at[i].offset, b[i].offset);
    free(a.at);
    free(b);
}

/* Boxes that come with a packing are packed no worse, however little effort is made. */
static void begins_with_packing(void **state)
{
    (void)state;
    seed = 9;
    for (int k = 0; k < 12; k++) {
        boxes b = step_of(300, 100);
        size_t tight, again;
        assert_int_equal(inv_place(ctx, b.at, b.n, 2, 0, &tight), INV_OK);
        assert_int_equal(inv_place(ctx, b.at, b.n, 0, 0, &again), INV_OK);
        assert_true(again <= tight);
        (void)excess_in(&b, again);
    }
}

/* Places boxes from nothing; the bytes needed. */
static size_t place_anew(boxes *b, unsigned effort, size_t enough)
{
    size_t need;
    for (size_t i = 0; i < b->n; i++) b->at[i].offset = 0;
    assert_int_equal(inv_place(ctx, b->at, b->n, effort, enough, &need), INV_OK);
    return need;
}

static void effort_pays(void **state)
{
    (void)state;
    seed = 6;
    size_t smaller = 0;
    for (int k = 0; k < 12; k++) {
        boxes b = step_of(300, 100);
        const size_t little = place_anew(&b, 0, 0), much = place_anew(&b, 1, 0), between = (little + much) / 2;
        assert_true(much <= little);
        smaller += much < little;
        const size_t enough = place_anew(&b, 1, between);
        assert_in_range(enough, much, between);
        (void)excess_in(&b, enough);
    }
    assert_true(smaller > 0);
}

/* Seconds of processor time, ten times the usual; a build without optimization takes four times as long. */
static void many_are_placed_fast(void **state)
{
    (void)state;
    static const struct {
        uint32_t operators;
        double seconds;
    } rows[] = {{10000, 4}, {40000, 15}};
    seed = 4;
    for (size_t r = 0; r < 2; r++)
        for (uint32_t stored = 0; stored <= 256; stored += 128) {
            boxes b = step_of(rows[r].operators, stored);
            size_t need;
            const clock_t began = clock();
            assert_int_equal(inv_place(ctx, b.at, b.n, 2, 0, &need), INV_OK);
            const double took = (double)(clock() - began) / CLOCKS_PER_SEC;
            free(b.at);
#ifdef __OPTIMIZE__
            const double most = rows[r].seconds;
#elif !defined(__SANITIZE_ADDRESS__)
            const double most = 4 * rows[r].seconds;
#else
            const double most = 300;
#endif
            if (took > most) fail_msg("%zu boxes took %.2f s to place", b.n, took);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_take_their_load), cmocka_unit_test(recorded_steps_take_their_load),
        cmocka_unit_test(anything_is_placed),    cmocka_unit_test(placed_alike),
        cmocka_unit_test(begins_with_packing),   cmocka_unit_test(effort_pays),
        cmocka_unit_test(many_are_placed_fast),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
