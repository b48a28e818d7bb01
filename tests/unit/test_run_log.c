/* SPDX-License-Identifier: Apache-2.0
 * The log of a run (cli/log/run_log.c) that is continued: each step stands in it once, whatever a killed run has left,
 * and nothing of a file that is no log is cut off. And what a record costs. Fails if a line is lost, doubled or broken,
 * or if a record takes fifty times what it should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "cli/files/lock.h"
#include "cli/files/write_files.h"
#include "cli/job/output_model.h"
#include "cli/job/ranks.h"
#include "cli/log/run_log.h"
#include "cli/pages/chart.h"
#include "cli/say/rank.h"
#include "pictures/report_text.h"

/* --- what the rest of the program is for the log --- */

static char said[512];

static int say(const char *format, va_list args)
{
    (void)vsnprintf(said, sizeof said, format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    return say(format, args);
}

int cli_usage(const cli_options *o, const char *format, ...)
{
    va_list args;
    (void)o;
    va_start(args, format);
    return say(format, args);
}

size_t cli_log_wanted(const cli_options *o) { return o->log.n + (o->tensorboard != NULL) + (o->html != NULL); }
int cli_rank(void) { return 0; }
int cli_ranks(void) { return 1; }

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)say(format, args);
}

void cli_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)say(format, args);
}

void cli_ranks_trouble(char **trouble, const char *then, const char *format, ...)
{
    va_list args;
    (void)trouble;
    (void)then;
    va_start(args, format);
    (void)say(format, args);
}

int cli_file_check(const cli_options *o, const char *option, const char *given, char **path)
{
    (void)o;
    (void)option;
    *path = strdup(given);
    return CLI_OK;
}

int cli_lock(const char *option, const char *given, const char *path)
{
    (void)option;
    (void)given;
    (void)path;
    return CLI_OK;
}

int cli_make_dir(const char *dir, bool *made)
{
    *made = false;
    return access(dir, W_OK) == 0 ? CLI_OK : CLI_FAILED;
}

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cli_unsigned_nan(double x) { return x; }

const char *pic_bytes(double nbytes)
{
    static char text[32];
    (void)snprintf(text, sizeof text, "%.0f B", nbytes);
    return text;
}

double pic_number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }
const char *pic_string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}
void pic_put_xml(FILE *f, const char *text) { fputs(text, f); }

char *cli_text_of_file(const char *path)
{
    char *text = calloc(1, 1 << 20);
    FILE *f = fopen(path, "r");
    assert_non_null(text);
    assert_non_null(f);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

int cli_file_open(cli_file *file, const char *path)
{
    *file = (cli_file){.f = fopen(path, "w")};
    return file->f ? CLI_OK : CLI_FAILED;
}

int cli_file_close(cli_file *file, bool ok) { return fclose(file->f) == 0 && ok ? CLI_OK : CLI_FAILED; }

/* --- */

static const char lines[] = "run_log.jsonl", table[] = "run_log.csv", drawn[] = "run_log.html", folder[] = ".";
static const cli_metric metrics[] = {{"accuracy", 0, false}, {"f1", 0, false}};

/* Steps first to last, a validation behind every second one. */
static int run(const cli_run_facts *facts, int64_t first, int64_t last)
{
    char *item[] = {(char *)(uintptr_t)lines, (char *)(uintptr_t)table};
    char *model[] = {(char *)(uintptr_t) "model.onnx"};
    const cli_options o = {.argument = {model, 1}, .log = {item, 2}, .html = (char *)(uintptr_t)drawn, .log_every = 1};
    cli_log *log;
    assert_int_equal(cli_log_create(&o, &log), CLI_OK);
    const int status = cli_log_begin(log, facts);
    for (int64_t i = first; status == CLI_OK && i <= last; i++) {
        cli_record r = cli_record_of(false);
        r.step = i;
        r.value[CLI_LOSS] = 1 / (double)(i + 2);
        cli_log_record(log, &r);
        if (i % 2) continue;
        const cli_metric m[] = {{"accuracy", 0.5, false}, {"f1", r.value[CLI_GRAD_NORM], false}};
        r.validation = true;
        r.metrics = m;
        r.nmetrics = 2;
        cli_log_record(log, &r);
    }
    cli_log_end(log);
    return status;
}

/* "1 2 2v 3 ..." of the steps and validations that the file has. */
static void steps_of(const char *path, const char *format, int skip, char *out)
{
    char line[512], split[8];
    long long step;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *out = 0;
    while (fgets(line, sizeof line, f)) {
        if (skip-- > 0) continue;
        assert_int_equal(line[strlen(line) - 1], '\n');
        assert_int_equal(sscanf(line, format, split, &step), 2);
        sprintf(out + strlen(out), "%s%lld%s", *out ? " " : "", step, *split == 'v' ? "v" : "");
    }
    fclose(f);
}

static json_t *curves_on_page(void)
{
    static const char begin[] = "id=\"curves\">";
    char *text = cli_text_of_file(drawn), *at = strstr(text, begin);
    assert_non_null(at);
    json_t *curves = json_loads(at + sizeof begin - 1, JSON_DISABLE_EOF_CHECK, NULL);
    free(text);
    assert_non_null(curves);
    return curves;
}

static const json_t *curve_of(const json_t *curves, const char *split, const char *name)
{
    const json_t *c;
    size_t i;
    json_array_foreach(curves, i,
                       c) if (!strcmp(pic_string(c, "split"), split) && !strcmp(pic_string(c, "name"), name)) return c;
    return NULL;
}

static bool has_step(const json_t *curve, int step)
{
    const json_t *span;
    size_t i;
    json_array_foreach(json_object_get(curve, "spans"), i,
                       span) if (json_integer_value(json_array_get(span, 0)) == step) return true;
    return false;
}

/* In the same form, of the curves of losses. */
static void steps_on_page(char *out)
{
    json_t *curves = curves_on_page();
    const json_t *train = curve_of(curves, "train", "loss"), *val = curve_of(curves, "val", "loss");
    *out = 0;
    for (int step = 1; step < 10; step++) {
        if (has_step(train, step)) sprintf(out + strlen(out), "%s%d", *out ? " " : "", step);
        if (has_step(val, step)) sprintf(out + strlen(out), "%s%dv", *out ? " " : "", step);
    }
    json_decref(curves);
}

static void assert_steps(const char *wanted)
{
    char got[256];
    steps_of(lines, "{\"split\":\"%5[a-z]\",\"step\":%lld,", 0, got);
    assert_string_equal(got, wanted);
    steps_of(table, "%5[a-z],%lld,", 1, got);
    assert_string_equal(got, wanted);
    steps_on_page(got);
    assert_string_equal(got, wanted);
}

static void append(const char *path, const char *text)
{
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static cli_run_facts facts_after(int64_t after, bool validated)
{
    return (cli_run_facts){.metrics = metrics, .nmetrics = 2, .total = 9, .after = after, .validated = validated};
}

static void test_each_step_once(void **state)
{
    (void)state;
    const struct {
        int64_t after;
        bool validated;
        const char *kept;
    } row[] = {{4, true, "1 2 2v 3 4 4v"},
               {4, false, "1 2 2v 3 4"},
               {3, true, "1 2 2v 3"},
               {0, false, ""},
               {9, true, "1 2 2v 3 4 4v 5"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        cli_run_facts facts = facts_after(-1, false);
        assert_int_equal(run(&facts, 1, 5), CLI_OK);
        assert_steps("1 2 2v 3 4 4v 5");
        append(lines, "{\"split\":\"train\",\"step\":6,\"epo");
        append(table, "train,6,1,3");
        facts = facts_after(row[i].after, row[i].validated);
        assert_int_equal(run(&facts, 1, 0), CLI_OK);
        assert_steps(row[i].kept);
    }
    const cli_run_facts on = facts_after(5, true);
    assert_int_equal(run(&on, 6, 7), CLI_OK);
    assert_steps("1 2 2v 3 4 4v 5 6 6v 7");
}

static void test_files_of_others(void **state)
{
    (void)state;
    const cli_run_facts fresh = facts_after(-1, false), on = facts_after(2, true);
    cli_run_facts other = on;
    assert_int_equal(run(&fresh, 1, 3), CLI_OK);
    other.nmetrics = 1;
    assert_int_equal(run(&other, 4, 4), CLI_FAILED);
    assert_non_null(strstr(said, "other columns"));
    FILE *f = fopen(lines, "w");
    assert_non_null(f);
    fputs("my notes\n", f);
    fclose(f);
    assert_int_equal(run(&on, 3, 3), CLI_FAILED);
    assert_non_null(strstr(said, "line 1 is no record"));
    f = fopen(lines, "r");
    char line[32] = "";
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    assert_string_equal(line, "my notes\n");
}

/* However long a run is, its page stays small, and what stands out is seen. */
static void test_long_run(void **state)
{
    (void)state;
    char *model[] = {(char *)(uintptr_t) "model.onnx"};
    const cli_options o = {.argument = {model, 1}, .html = (char *)(uintptr_t)drawn, .log_every = 1};
    const cli_run_facts facts = facts_after(-1, false);
    cli_log *log;
    cli_record r = cli_record_of(false);
    assert_int_equal(cli_log_create(&o, &log), CLI_OK);
    assert_int_equal(cli_log_begin(log, &facts), CLI_OK);
    double sum = 0;
    for (r.step = 1; r.step <= 30000; r.step++) {
        r.value[CLI_LOSS] = r.step == 12345 ? 1000 : 1;
        sum += r.value[CLI_LOSS];
        cli_log_record(log, &r);
    }
    cli_log_end(log);
    json_t *curves = curves_on_page();
    const json_t *spans = json_object_get(curve_of(curves, "train", "loss"), "spans"), *span;
    size_t i;
    double high = 0;
    json_int_t n = 0;
    json_array_foreach(spans, i, span)
    {
        high = json_number_value(json_array_get(span, 3)) > high ? json_number_value(json_array_get(span, 3)) : high;
        sum -= json_number_value(json_array_get(span, 4));
        n += json_integer_value(json_array_get(span, 5));
    }
    assert_in_range(json_array_size(spans), 200, 520);
    assert_true(high == 1000 && n == 30000 && sum > -1e-3 && sum < 1e-3);
    json_decref(curves);
    char *text = cli_text_of_file(drawn);
    assert_in_range(strlen(text), 1000, 200000);
    free(text);
    unlink(drawn);
}

/* Loss over learning rate: a number that is not finite, where training has gone astray, is left out. */
static void test_lr_picture(void **state)
{
    (void)state;
    static const char path[] = "run_log_rates.svg";
    double rate[40], loss[40];
    for (int i = 0; i < 40; i++) {
        rate[i] = 1e-5 * (1 << i / 2) * (i % 2 ? 1.4 : 1);
        loss[i] = i < 38 ? 2 + 100 * (rate[i] - 0.01) * (rate[i] - 0.01) : 1 / 0.0;
    }
    assert_int_equal(cli_lr_picture(path, rate, loss, 40, 0.01), CLI_OK);
    char *text = cli_text_of_file(path);
    assert_ptr_equal(strstr(text, "<svg"), text);
    assert_non_null(strstr(text, "suggested: 0.01"));
    assert_non_null(strstr(text, ">0.001</text>"));
    assert_null(strstr(text, "inf"));
    assert_null(strstr(text, "nan"));
    free(text);
    unlink(path);
}

static void remove_files(const char *start)
{
    const struct dirent *entry;
    DIR *d = opendir(folder);
    while (d && (entry = readdir(d)))
        if (strncmp(entry->d_name, start, strlen(start)) == 0) unlink(entry->d_name);
    if (d) closedir(d);
}

static void test_cost(void **state)
{
    (void)state;
    enum { STEPS = 100000 };
    char *item[] = {(char *)(uintptr_t)lines, (char *)(uintptr_t)table};
    char *model[] = {(char *)(uintptr_t) "model.onnx"};
    const cli_options o = {.argument = {model, 1},
                           .log = {item, 2},
                           .tensorboard = (char *)(uintptr_t)folder,
                           .html = (char *)(uintptr_t)drawn,
                           .log_every = 1};
    const cli_run_facts facts = facts_after(-1, false);
    cli_log *log;
    cli_record r = cli_record_of(false);
    assert_int_equal(cli_log_create(&o, &log), CLI_OK);
    assert_int_equal(cli_log_begin(log, &facts), CLI_OK);
    const clock_t began = clock();
    for (r.step = 1; r.step <= STEPS; r.step++) {
        r.seconds = 1e-3 * (double)r.step;
        r.value[CLI_LOSS] = 1 / r.seconds;
        r.value[CLI_LR] = 1e-3;
        r.value[CLI_GRAD_NORM] = 1 / (r.seconds + 1);
        r.value[CLI_DRIFT] = 1e-7 / r.seconds;
        r.value[CLI_FALLBACKS] = 0;
        cli_log_record(log, &r);
    }
    cli_log_end(log);
    const double each = 1e6 * (double)(clock() - began) / CLOCKS_PER_SEC / STEPS;
    print_message("a record in JSON, CSV, TensorBoard and a page: %.2f us of processor time\n", each);
    assert_true(each < 500); /* 5 to 10; more under an emulator or sanitizers */
    remove_files("events.out.tfevents.");
    unlink(lines);
    unlink(table);
    unlink(drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_step_once), cmocka_unit_test(test_files_of_others),
                                       cmocka_unit_test(test_long_run), cmocka_unit_test(test_lr_picture),
                                       cmocka_unit_test(test_cost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
