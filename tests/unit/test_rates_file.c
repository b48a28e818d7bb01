/* SPDX-License-Identifier: Apache-2.0
 * The file of rates keeps what runs have corrected: newest first, no more than there is room for, and whole whenever it
 * is read, whoever else writes. What is no such file is not read. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "executor/rates/costs.h"
#include "with_context.h"

#define assert_near(a, b, off) assert_true(fabs((a) - (b)) <= (off))

static inv_cost_table rates(void)
{
    inv_cost_table t = {.real = INV_F32, .bandwidth = 2e10, .cache = 1 << 20};
    for (int w = 0; w < INV_WORKS; w++) {
        t.rate[w] = 3e9;
        t.fixed[w] = 1e-7;
    }
    return t;
}

typedef struct folder {
    char path[64];
    const char *file;
    inv_arena arena;
} folder;

static const char key[] = "a processor";

static void open_folder(folder *f)
{
    strcpy(f->path, "invonnx-corrections-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    inv_arena_init(&f->arena, ctx);
    f->file = inv_costs_path(&f->arena, f->path, key);
    assert_non_null(f->file);
}

static void close_folder(folder *f)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
    inv_arena_fini(&f->arena);
}

static void corrections_last(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    inv_cost_table t = rates(), other = rates(), back;
    const inv_correction first[] = {{3, 1.5}, {9, 0.25}}, second[] = {{9, 4}, {UINT64_MAX, 2}};
    inv_costs_keep(&f.arena, f.file, key, &t, first, 2);
    assert_false(inv_costs_read(&f.arena, f.file, key, &back)); /* of which rates, nobody knows */
    inv_costs_write(&f.arena, f.file, key, &t);
    inv_costs_keep(&f.arena, f.file, key, &t, first, 2);
    inv_costs_keep(&f.arena, f.file, key, &t, second, 2);
    assert_true(inv_costs_read(&f.arena, f.file, key, &back));
    assert_int_equal(back.nseen, 3);
    assert_near(inv_correction_of(&back, 3), 1.5, 0);
    assert_near(inv_correction_of(&back, 9), 4, 0);
    assert_near(inv_correction_of(&back, UINT64_MAX), 2, 0);
    assert_near(inv_correction_of(&back, 4), 0, 0);
    other.rate[0] *= 2; /* somebody has measured again */
    inv_costs_keep(&f.arena, f.file, key, &other, first, 2);
    assert_true(inv_costs_read(&f.arena, f.file, key, &back));
    assert_near(inv_correction_of(&back, 9), 4, 0);
    inv_costs_write(&f.arena, f.file, key, &other);
    assert_true(inv_costs_read(&f.arena, f.file, key, &back));
    assert_int_equal(back.nseen, 0);
    close_folder(&f);
}

/* Steps that take half of what the rates say: these were measured while other programs ran, and are measured again. */
static void rates_that_are_far_too_slow(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    const inv_cost_table t = rates();
    inv_cost_table back;
    const inv_correction quick[] = {{INV_ALL_NODES, 0.4}, {3, 0.5}}, usual[] = {{INV_ALL_NODES, 0.6}, {3, 0.1}};
    inv_costs_write(&f.arena, f.file, key, &t);
    inv_costs_keep(&f.arena, f.file, key, &t, usual, 2);
    assert_true(inv_costs_read(&f.arena, f.file, key, &back));
    inv_costs_keep(&f.arena, f.file, key, &t, quick, 2);
    assert_false(inv_costs_read(&f.arena, f.file, key, &back));
    close_folder(&f);
}

/* Of more than the file takes, the newest stay. */
static void the_file_stays_small(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    inv_cost_table t = rates(), back;
    inv_correction *list = calloc(INV_MOST_CORRECTIONS, sizeof *list);
    assert_non_null(list);
    inv_costs_write(&f.arena, f.file, key, &t);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < INV_MOST_CORRECTIONS; i++) list[i] = (inv_correction){2 * i + (size_t)k, 1 + k};
        inv_costs_keep(&f.arena, f.file, key, &t, list, INV_MOST_CORRECTIONS);
    }
    assert_true(inv_costs_read(&f.arena, f.file, key, &back));
    assert_int_equal(back.nseen, INV_MOST_CORRECTIONS);
    for (size_t i = 0; i < back.nseen; i++) assert_true(back.seen[i].what % 2 == 1);
    free(list);
    close_folder(&f);
}

static void rewrite(const char *path, const char *from, const char *to)
{
    char text[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = 0;
    char *at = strstr(text, from);
    assert_non_null(at);
    f = fopen(path, "w");
    assert_true(f && fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0 && fclose(f) == 0);
}

static void what_is_no_such_file(void **state)
{
    (void)state;
    static const char *const changes[][2] = {{"\"format\": 2", "\"format\": 1"},
                                             {"\"0000000000000003\"", "\"000000000000000a\""}, /* not in order */
                                             {"1.5", "-1.5"},
                                             {"1.5", "\"1.5\""},
                                             {"1.5", "1.5e300"},
                                             {"}", ""}};
    folder f;
    open_folder(&f);
    const inv_cost_table t = rates();
    const inv_correction list[] = {{3, 1.5}, {9, 0.25}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        inv_cost_table back;
        inv_costs_write(&f.arena, f.file, key, &t);
        inv_costs_keep(&f.arena, f.file, key, &t, list, 2);
        assert_true(inv_costs_read(&f.arena, f.file, key, &back));
        rewrite(f.file, changes[i][0], changes[i][1]);
        if (inv_costs_read(&f.arena, f.file, key, &back)) fail_msg("%s was read", changes[i][1]);
    }
    close_folder(&f);
}

static int write_many(const folder *f, const inv_cost_table *t, uint64_t from)
{
    inv_cost_table back;
    for (uint64_t i = 0; i < 40; i++) {
        const inv_correction c = {from + i, 2};
        inv_costs_keep((inv_arena *)(uintptr_t)&f->arena, f->file, key, t, &c, 1);
        if (!inv_costs_read((inv_arena *)(uintptr_t)&f->arena, f->file, key, &back)) return 1;
    }
    return 0;
}

/* Several programs at once: the file is whole whenever it is read, and has what the last one wrote. */
static void several_write(void **state)
{
    (void)state;
    enum { PROGRAMS = 4 };
    folder f;
    open_folder(&f);
    inv_cost_table t = rates(), back;
    inv_costs_write(&f.arena, f.file, key, &t);
    pid_t child[PROGRAMS];
    for (int i = 0; i < PROGRAMS; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0) _exit(write_many(&f, &t, 1000 * (uint64_t)(i + 1)));
    }
    for (int i = 0; i < PROGRAMS; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_true(inv_costs_read(&f.arena, f.file, key, &back));
    assert_true(back.nseen >= 1);
    char command[160];
    (void)snprintf(command, sizeof command, "test $(ls -A '%s' | wc -l) = 1", f.path);
    assert_int_equal(system(command), 0); /* no temporary file is left */
    close_folder(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_that_are_far_too_slow),
        cmocka_unit_test(corrections_last),
        cmocka_unit_test(the_file_stays_small),
        cmocka_unit_test(what_is_no_such_file),
        cmocka_unit_test(several_write),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
