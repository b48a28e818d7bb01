/* SPDX-License-Identifier: Apache-2.0
 * `plan`: what a training step would need, from shapes alone. */
#include <math.h>
#include <stdlib.h>

#include "cli/commands/cmd.h"
#include "cli/files/write_files.h"
#include "cli/job/feed.h"
#include "cli/job/output_model.h"
#include "cli/job/plan_ranks.h"
#include "cli/job/session_options.h"
#include "cli/pages/picture_file.h"
#include "cli/pages/show.h"
#include "cli/say/progress_bar.h"
#include "pictures/report_text.h"

static int write_plan(const cli_job *job)
{
    char *text;
    cli_file file;
    inv_status s = inv_session_plan(job->session, &text);
    if (s != INV_OK) return cli_library_failed(job, s);
    int status = cli_file_open(&file, job->o->plan);
    if (status == CLI_OK) {
        fprintf(file.f, "%s\n", text);
        status = cli_file_close(&file, true);
    }
    inv_free(job->ctx, text);
    return status;
}

static int add_point(json_t *curve, const inv_trial *t)
{
    json_t *point =
        json_pack("{s:I, s:f, s:f}", "peak_bytes", (json_int_t)t->peak, "overhead", t->overhead, "bound", t->bound);
    return json_array_append_new(curve, point) == 0 ? CLI_OK : cli_fail("out of memory");
}

static int by_peak(const void *a, const void *b)
{
    const inv_trial *s = a, *t = b;
    if (s->peak != t->peak) return s->peak < t->peak ? -1 : 1;
    return (s->overhead > t->overhead) - (s->overhead < t->overhead);
}

/* Overhead against peak, from the smallest peak to where all is stored, at budgets evenly apart and at the bytes of the
 * plan itself. All are trials, so that a budget gives what a point shows. Searches are not exact: a point that takes no
 * less bytes than another and no less time is left out. */
static int find_curve(const cli_job *job, json_t *report)
{
    enum { BUDGETS = 9 };
    const double store = pic_number(report, "store_peak_bytes");
    inv_trial found[BUDGETS + 1] = {0}, end = {sizeof end, (uint64_t)store, 0, 0};
    int n = 0, status = CLI_OK;
    for (; n <= BUDGETS && status == CLI_OK && (n == 0 || (double)found[0].peak < store); n++) {
        const double smallest = (double)found[0].peak;
        const double budget = n < BUDGETS ? smallest + (store - smallest) * n / BUDGETS
                                          : fmax(pic_number(report, "planned_peak_bytes"), smallest);
        cli_busy_part("curve", n, BUDGETS + 1);
        found[n].size = sizeof found[n];
        inv_status s = inv_session_try_budget(job->session, n ? (uint64_t)budget : 0, &found[n]);
        if (s != INV_OK) status = cli_library_failed(job, s);
    }
    cli_busy_part(NULL, 0, 0);
    qsort(found, (size_t)n, sizeof *found, by_peak);
    json_t *curve = json_array();
    double least = INFINITY;
    for (int i = 0; i < n && status == CLI_OK && found[i].peak < end.peak; i++) {
        if (found[i].overhead >= least) continue;
        least = found[i].overhead;
        status = add_point(curve, &found[i]);
    }
    if (status == CLI_OK) status = add_point(curve, &end);
    json_object_set_new(report, "curve", curve);
    return status;
}

static void show_curve(const json_t *report)
{
    const json_t *curve = json_object_get(report, "curve"), *point;
    size_t i;
    if (!curve) return;
    printf("curve\n  %12s %12s %12s\n", "peak", "plan", "bound");
    json_array_foreach(curve, i, point)
    {
        printf("  %12s %+10.1f %% %+10.1f %%\n", pic_bytes(pic_number(point, "peak_bytes")),
               100 * pic_number(point, "overhead"), 100 * pic_number(point, "bound"));
    }
    putchar('\n');
}

/* The same step with everything stored. */
static int stored(cli_job *job, json_t **report)
{
    inv_session_options so;
    cli_hold hold;
    inv_session *planned = job->session;
    int status = cli_session_options(job, INV_FOR_TRAIN, &so, &hold);
    if (status != CLI_OK) return status;
    so.plan_only = true;
    so.world = job->world;
    so.memory = INV_MEMORY_STORE;
    so.nmodes = 0;
    so.budget = 0;
    inv_status s = inv_session_create(job->model, &so, &job->session);
    if (s != INV_OK) status = cli_library_failed(job, s);
    else if (!(*report = cli_report(job))) status = CLI_FAILED;
    if (s == INV_OK) inv_session_destroy(job->session);
    job->session = planned;
    cli_hold_fini(&hold);
    return status;
}

static int draw(cli_job *job, json_t *report)
{
    json_t *store = NULL, *explanation = NULL;
    int status = stored(job, &store);
    if (status == CLI_OK && !(explanation = cli_explanation(job))) status = CLI_FAILED;
    if (status == CLI_OK) {
        const pic_memory drawn = {
            job->path,  {store, report}, {"all values stored", "as planned"}, 2, json_object_get(report, "curve"),
            explanation};
        status = cli_picture(job->o->html, &drawn);
    }
    json_decref(store);
    json_decref(explanation);
    return status;
}

static int show_plan(const cli_options *o, const json_t *report)
{
    if (o->json) return cli_print_json(report);
    if (o->verbose) cli_show_choices(report);
    show_curve(report);
    cli_show_peaks(report);
    cli_show_ranks(report);
    if (!o->verbose && json_array_size(json_object_get(report, "choices")) > 0) printf("  choices of each value: -v\n");
    cli_show_saving(report);
    return CLI_OK;
}

int cli_main_plan(const cli_options *o)
{
    cli_job job;
    json_t *report = NULL;
    char *page = NULL;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->html) status = cli_file_check(o, "--html", o->html, &page); /* before the searches */
    free(page);
    if (status == CLI_OK && o->loss == INV_LOSS_NONE) status = cli_usage(o, "`plan` wants --loss KIND");
    if (status == CLI_OK) status = cli_imagine_ranks(&job);
    if (status == CLI_OK) status = cli_target(&job, false);
    if (status == CLI_OK) status = cli_shapes(&job);
    const bool as_it_is = o->json && !o->curve && !o->html && !job.world; /* nothing is asked of the report */
    if (status == CLI_OK) status = as_it_is ? cli_start(&job, INV_FOR_TRAIN, true) : cli_plan_ranks(&job, &report);
    if (status == CLI_OK) cli_say_head(&job);
    if (status == CLI_OK && (o->curve || o->html)) status = find_curve(&job, report);
    if (status == CLI_OK && o->html) status = draw(&job, report);
    if (status == CLI_OK && o->plan) status = write_plan(&job);
    if (status == CLI_OK) status = as_it_is ? cli_print_report(&job) : show_plan(o, report);
    json_decref(report);
    inv_session_destroy(job.session);
    job.session = NULL;
    inv_world_close(job.world);
    cli_close(&job);
    return status;
}
