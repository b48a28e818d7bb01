/* SPDX-License-Identifier: Apache-2.0
 * `check`: what the inverses of a model do on data at hand, and what to do about it. */
#include <math.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/feed.h"
#include "cli/job/session_options.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

/* A number or, where the report has none, a dash; null stands for what is not finite where `lost`. */
static void cell(const json_t *object, const char *key, int width, bool lost)
{
    const json_t *v = json_object_get(object, key);
    if (json_is_number(v)) printf("  %*.2e", width, json_number_value(v));
    else printf("  %*s", width, lost && v ? "lost" : "-");
}

static void show_numbers(const json_t *row)
{
    cell(row, "gain", 9, false);
    cell(row, "gain_bound", 9, false);
    cell(row, "gain_measured", 9, false);
    cell(row, "condition", 9, false);
}

static void show_refused(const json_t *row)
{
    if (json_is_string(json_object_get(row, "refused"))) printf(": not used, %s", pic_string(row, "refused"));
    putchar('\n');
}

static void show_blocks(const json_t *report)
{
    const json_t *list = json_object_get(report, "blocks"), *row;
    size_t i;
    printf("blocks: %zu\n", json_array_size(list));
    if (json_array_size(list))
        printf("relative error of the round trip (L2); error growth: estimated, upper bound of the\n"
               "rule, measured; condition number of the matrix; each the worst of the block\n"
               "  %9s  %9s  %9s  %9s  %9s  %9s\n",
               "float32", "float64", "expected", "at most", "measured", "condition");
    json_array_foreach(list, i, row)
    {
        cell(row, "float32", 9, true);
        cell(row, "float64", 9, true);
        show_numbers(row);
        printf("  %s  %s", pic_string(row, "kind"), pic_string(row, "name"));
        show_refused(row);
    }
}

static void show_inverse(const json_t *row)
{
    cell(json_object_get(row, "float32"), "relative", 9, true);
    cell(json_object_get(row, "float64"), "relative", 9, true);
    show_numbers(row);
    printf("  %s of %s -> %s", pic_string(row, "rule"), pic_string(row, "node"), pic_string(row, "value"));
    show_refused(row);
}

/* Only those that are not used; --json has them all. */
static void show_inverses(const json_t *report)
{
    const json_t *row, *list = json_object_get(report, "inverses");
    size_t i, exact = 0, unused = 0;
    json_array_foreach(list, i, row)
    {
        exact += json_is_true(json_object_get(row, "exact"));
        unused += json_is_string(json_object_get(row, "refused"));
    }
    printf("\ninverses: %zu, %zu of them rearrangements; not used: %zu\n", json_array_size(list), exact, unused);
    json_array_foreach(list, i, row)
    {
        if (json_is_string(json_object_get(row, "refused"))) show_inverse(row);
    }
}

/* At most so many rows of a long model; the last one is always there. */
enum { DEPTHS = 24 };

static void show_chain(const json_t *report)
{
    const json_t *chain = json_object_get(report, "chain"), *list = json_object_get(chain, "values"), *row;
    const size_t n = json_array_size(list), every = (n + DEPTHS - 1) / DEPTHS;
    size_t i;
    if (json_is_string(json_object_get(chain, "not_looked_at"))) {
        printf("\na training step could not be looked at: %s\n", pic_string(chain, "not_looked_at"));
        return;
    }
    if (n == 0) return;
    printf("\n"
           "all inverses in sequence, from the end of the model (--memory invert without a\n"
           "limit): accumulated relative error\n"
           "  %5s  %9s  %9s\n",
           "", "float32", "float64");
    json_array_foreach(list, i, row)
    {
        if (i % every && i + 1 < n) continue;
        printf("  %5zu", i + 1);
        cell(row, "float32", 9, true);
        cell(row, "float64", 9, true);
        printf("  %s\n", pic_string(row, "value"));
    }
    if (pic_number(chain, "growth") > 1)
        printf("  from one to the next the error grows %.3g-fold\n", pic_number(chain, "growth"));
    const json_t *kept = json_object_get(chain, "kept_by_guard");
    if (json_array_size(kept)) {
        printf("  within the limit the guard keeps ");
        cli_show_names(stdout, kept, 8);
        putchar('\n');
    }
}

static void show_check(const json_t *report)
{
    const json_t *limit = json_object_get(report, "max_drift");
    const json_t *gradient = json_object_get(report, "gradient_distance");
    const json_t *list = json_object_get(report, "suggestions"), *refusals = json_object_get(report, "refusals"), *row;
    size_t i;
    show_blocks(report);
    show_inverses(report);
    printf("limit (--max-drift): %.2g in float32, %.2g in float64\n", pic_number(limit, "float32"),
           pic_number(limit, "float64"));
    show_chain(report);
    if (json_is_object(gradient))
        printf("\n"
               "relative error of the gradient, against float64 with everything stored:\n"
               "%.2e with store, %.2e with invert, %.2e without a guard\n",
               pic_number(gradient, "store"), pic_number(gradient, "invert"), pic_number(gradient, "invert_unguarded"));
    if (json_array_size(refusals))
        printf("\n%zu refused before the run (`invonnx explain`)\n", json_array_size(refusals));
    printf("\n%s\n", json_array_size(list) ? "suggestions" : "nothing to suggest");
    json_array_foreach(list, i, row) printf("  %s\n", pic_string(row, "text"));
}

int cli_main_check(const cli_options *o)
{
    cli_job job;
    cli_hold hold = {0};
    inv_session_options so;
    json_t *report = NULL;
    int status = cli_open(&job, o);
    if (status == CLI_OK) status = cli_feed(&job);
    if (status == CLI_OK && o->loss != INV_LOSS_NONE) status = cli_target(&job, true);
    if (status == CLI_OK) status = cli_session_options(&job, INV_FOR_TRAIN, &so, &hold);
    if (status == CLI_OK) {
        char *text = NULL;
        cli_say_head(&job);
        const inv_status s = inv_model_check(job.model, &so, &text);
        if (s != INV_OK) status = cli_library_failed(&job, s);
        else if (!(report = cli_parse_report(&job, text))) status = CLI_FAILED;
    }
    if (report && o->json) status = cli_print_json(report);
    else if (report) show_check(report);
    json_decref(report);
    cli_hold_fini(&hold);
    cli_close(&job);
    return status;
}
