/* SPDX-License-Identifier: Apache-2.0
 * `plan`: what a training step would need, from shapes alone. */
#include "cli.h"

#include <math.h>

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
    json_t *point = json_pack("{s:I, s:f, s:f}", "peak_bytes", (json_int_t)t->peak, "overhead", t->overhead, "bound",
                              t->bound);
    return json_array_append_new(curve, point) == 0 ? CLI_OK : cli_fail("out of memory");
}

/* Overhead against peak, from the smallest peak to where all is stored, at budgets evenly apart. Searches are not
 * exact: a point that takes more bytes than another and no less time is left out. */
static int find_curve(const cli_job *job, json_t *report)
{
    enum { POINTS = 10 };
    const double store = cli_number(report, "store_peak_bytes");
    json_t *curve = json_array();
    inv_trial t = {.size = sizeof t};
    double smallest = 0, least = INFINITY;
    int status = CLI_OK;
    for (int i = 0; i + 1 < POINTS && status == CLI_OK; i++) {
        const double budget = i ? smallest + (store - smallest) * i / (POINTS - 1) : 0;
        if (i && smallest >= store) break;
        cli_note("curve: point %d of %d", i + 1, POINTS);
        inv_status s = inv_session_try_budget(job->session, (uint64_t)budget, &t);
        if (s != INV_OK) status = cli_library_failed(job, s);
        if (i == 0) smallest = (double)t.peak;
        if (status != CLI_OK || t.overhead >= least || (double)t.peak >= store) continue;
        least = t.overhead;
        status = add_point(curve, &t);
    }
    t = (inv_trial){sizeof t, (uint64_t)store, 0, 0};
    if (status == CLI_OK) status = add_point(curve, &t);
    json_object_set_new(report, "curve", curve);
    return status;
}

static void show_curve(const json_t *report)
{
    const json_t *curve = json_object_get(report, "curve"), *point;
    size_t i;
    if (!curve) return;
    printf("\ncurve\n  %12s %12s %12s\n", "peak", "plan", "bound");
    json_array_foreach(curve, i, point)
    {
        printf("  %12s %+10.1f %% %+10.1f %%\n", cli_bytes(cli_number(point, "peak_bytes")),
               100 * cli_number(point, "overhead"), 100 * cli_number(point, "bound"));
    }
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
    so.memory = INV_MEMORY_STORE;
    so.nmodes = 0;
    so.budget = 0;
    inv_status s = inv_session_create(job->model, &so, &job->session);
    if (s != INV_OK)
        status = cli_library_failed(job, s);
    else if (!(*report = cli_report(job)))
        status = CLI_FAILED;
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
        const cli_drawn drawn = {job->path, {store, report}, {"all values stored", "as planned"}, 2,
                                 json_object_get(report, "curve"), explanation};
        status = cli_picture(job->o->html, &drawn);
    }
    json_decref(store);
    json_decref(explanation);
    return status;
}

static int show(const cli_options *o, const json_t *report)
{
    if (o->json) return cli_print_json(report);
    cli_show_peaks(report);
    cli_show_saving(report);
    show_curve(report);
    cli_show_choices(report);
    return CLI_OK;
}

int cli_main_plan(const cli_options *o)
{
    cli_job job;
    json_t *report = NULL;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->loss == INV_LOSS_NONE) status = cli_usage(o, "`plan` wants --loss KIND");
    if (status == CLI_OK) status = cli_target(&job, false);
    if (status == CLI_OK) status = cli_shapes(&job);
    if (status == CLI_OK) status = cli_start(&job, INV_FOR_TRAIN, true);
    if (status == CLI_OK && !(report = cli_report(&job))) status = CLI_FAILED;
    if (status == CLI_OK && (o->curve || o->html)) status = find_curve(&job, report);
    if (status == CLI_OK && o->html) status = draw(&job, report);
    if (status == CLI_OK && o->plan) status = write_plan(&job);
    if (status == CLI_OK) status = show(o, report);
    json_decref(report);
    cli_close(&job);
    return status;
}
