/* SPDX-License-Identifier: Apache-2.0
 * `compare`: the same step with all values stored and as planned otherwise: loss, gradients, memory, time. The first
 * mode is the measure for the others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/files/write_files.h"
#include "cli/job/data.h"
#include "cli/job/feed.h"
#include "cli/job/session_options.h"
#include "cli/pages/picture_file.h"
#include "cli/say/progress_bar.h"
#include "pictures/report_text.h"

enum { MOST_MODES = PIC_PANELS, LISTED = 10 };

/* Gradients of one mode, one array of doubles per parameter. */
typedef struct gradients {
    size_t n;
    double **values;
    size_t *counts;
    char **names;
} gradients;

typedef struct outcome {
    const char *title;
    json_t *report;
    gradients grads;
    inv_result result;
    double seconds;  /* of a step, median */
    double distance; /* largest over the parameters */
    json_t *distances;
} outcome;

static void gradients_fini(gradients *g)
{
    for (size_t i = 0; i < g->n; i++) {
        free(g->values[i]);
        free(g->names[i]);
    }
    free(g->values);
    free(g->names);
    free(g->counts);
    *g = (gradients){0};
}

static int take_gradients(cli_job *job, gradients *g)
{
    size_t n = 0;
    const char *name;
    while (inv_session_name(job->session, INV_GET_GRAD, n)) n++;
    g->values = calloc(n + 1, sizeof *g->values);
    g->counts = calloc(n + 1, sizeof *g->counts);
    g->names = calloc(n + 1, sizeof *g->names);
    if (!g->values || !g->counts || !g->names) return cli_fail("out of memory");
    for (; (name = inv_session_name(job->session, INV_GET_GRAD, g->n)); g->n++) {
        const void *data;
        inv_dtype dtype;
        int rank;
        int64_t dims[NPY_MAX_RANK];
        inv_status s = inv_session_get(job->session, INV_GET_GRAD, name, &data, &dtype, &rank, dims);
        if (s != INV_OK) return cli_library_failed(job, s);
        size_t count = cli_nelem(rank, dims);
        double *copy = malloc((count + 1) * sizeof *copy);
        char *text = strdup(name);
        if (!copy || !text) {
            free(copy);
            free(text);
            return cli_fail("out of memory");
        }
        for (size_t i = 0; i < count; i++) copy[i] = npy_element(data, dtype, i);
        g->values[g->n] = copy;
        g->names[g->n] = text;
        g->counts[g->n] = count;
    }
    return CLI_OK;
}

static double relative_distance(const double *a, const double *b, size_t n)
{
    double diff = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        diff += (a[i] - b[i]) * (a[i] - b[i]);
        sum += b[i] * b[i];
    }
    if (diff == 0) return 0;
    return sum > 0 ? sqrt(diff / sum) : INFINITY;
}

static void measure_distances(outcome *out, const outcome *first)
{
    out->distances = json_array();
    for (size_t i = 0; i < out->grads.n && i < first->grads.n; i++) {
        double d = relative_distance(out->grads.values[i], first->grads.values[i], out->grads.counts[i]);
        if (!(d <= out->distance)) out->distance = d;
        json_array_append_new(out->distances,
                              json_pack("{s:s, s:o}", "name", out->grads.names[i], "distance", cli_json_real(d)));
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int time_steps(cli_job *job, outcome *out)
{
    int64_t n = job->o->repeat;
    double *times = malloc((size_t)n * sizeof *times);
    if (!times) return cli_fail("out of memory");
    int status = CLI_OK;
    for (int64_t i = -1; i < n && status == CLI_OK; i++) { /* the first one warms up */
        char stage[64];
        snprintf(stage, sizeof stage, "timing steps, %s", out->title);
        cli_busy(stage, (double)(i + 1) / (double)(n + 1));
        double began = cli_now();
        inv_session_set_step(job->session, 0, 0); /* the same masks each time, as `grad` has them */
        inv_status s = inv_session_grad(job->session, job->arrays, job->ninputs, job->has_target ? &job->target : NULL,
                                        &out->result);
        if (s != INV_OK) status = cli_library_failed(job, s);
        if (i >= 0) times[i] = cli_now() - began;
    }
    if (status == CLI_OK) {
        qsort(times, (size_t)n, sizeof *times, by_value);
        out->seconds = times[n / 2];
    }
    free(times);
    return status;
}

static int run_mode(cli_job *job, int mode, outcome *out)
{
    inv_session_options so;
    cli_hold hold;
    out->title = cli_choice_word(cli_memories, mode);
    int status = cli_session_options(job, INV_FOR_TRAIN, &so, &hold);
    if (status == CLI_OK) {
        so.memory = (inv_memory)mode;
        if (mode == INV_MEMORY_STORE) { /* plain means plain */
            so.nmodes = 0;
            so.plan = NULL;
            so.budget = 0;
        }
        inv_status s = inv_session_create(job->model, &so, &job->session);
        if (s != INV_OK) status = cli_library_failed(job, s);
    }
    cli_hold_fini(&hold);
    if (status == CLI_OK) cli_say_head(job);
    if (status == CLI_OK) status = time_steps(job, out);
    if (status == CLI_OK) status = take_gradients(job, &out->grads);
    if (status == CLI_OK && !(out->report = cli_report(job))) status = CLI_FAILED;
    inv_session_destroy(job->session);
    job->session = NULL;
    return status;
}

static double drift_of(const outcome *out)
{
    const json_t *d = json_object_get(json_object_get(out->report, "drift"), "largest");
    return json_is_number(d) ? json_number_value(d) : out->result.drift;
}

static void show_comparison(const outcome *outs, size_t n)
{
    printf("%-9s %10s %9s %8s %9s %11s %8s %7s\n", "memory", "loss", "grad dist", "planned", "allocated", "activations",
           "s/step", "drift");
    for (size_t i = 0; i < n; i++) {
        const outcome *out = &outs[i];
        printf("%-9s %10.9g %9.3g %8s %9s %11s %8.4f %7.2g\n", out->title, cli_unsigned_nan(out->result.loss),
               out->distance, pic_bytes(pic_number(out->report, "planned_peak_bytes")),
               pic_bytes(pic_number(out->report, "peak_bytes")),
               pic_bytes(pic_number(out->report, "activation_peak_bytes")), out->seconds, drift_of(out));
    }
    for (size_t i = 0; i < n; i++) {
        const int kept = outs[i].result.fallbacks;
        if (kept) printf("%s: %d value%s kept after the guard refused\n", outs[i].title, kept, kept == 1 ? "" : "s");
    }
    const outcome *last = &outs[n - 1];
    printf("\ngradient distance per parameter, %s against %s (relative L2)\n", last->title, outs[0].title);
    size_t shown = 0;
    double limit = INFINITY;
    while (shown < LISTED) { /* the largest first; equal ones together */
        double next = -1;
        for (size_t i = 0; i < last->grads.n; i++) {
            double d = relative_distance(last->grads.values[i], outs[0].grads.values[i], last->grads.counts[i]);
            if ((d < limit || shown == 0) && d > next) next = d;
        }
        if (next < 0) break;
        for (size_t i = 0; i < last->grads.n && shown < LISTED; i++) {
            double d = relative_distance(last->grads.values[i], outs[0].grads.values[i], last->grads.counts[i]);
            if (d == next && ++shown) printf("  %-10.3g %s\n", d, last->grads.names[i]);
        }
        limit = next;
    }
    if (last->grads.n > LISTED) printf("  ... %zu parameters in all\n", last->grads.n);
}

static json_t *to_json(const outcome *outs, size_t n)
{
    json_t *modes = json_array();
    for (size_t i = 0; i < n; i++) {
        const outcome *out = &outs[i];
        json_t *entry = json_copy(out->report);
        json_object_set_new(entry, "memory", json_string(out->title));
        json_object_set_new(entry, "loss", cli_json_real(out->result.loss));
        json_object_set_new(entry, "seconds_per_step", cli_json_real(out->seconds));
        json_object_set_new(entry, "gradient_distance", cli_json_real(out->distance));
        json_object_set(entry, "gradient_distances", out->distances);
        json_array_append_new(modes, entry);
    }
    return json_pack("{s:o}", "modes", modes);
}

static int deliver_comparison(const cli_job *job, const outcome *outs, size_t n)
{
    int status = CLI_OK;
    if (job->o->html) {
        pic_memory drawn = {.heading = job->path, .n = n};
        for (size_t i = 0; i < n; i++) {
            drawn.reports[i] = outs[i].report;
            drawn.titles[i] = outs[i].title;
        }
        status = cli_picture(job->o->html, &drawn);
    }
    if (status != CLI_OK) return status;
    if (!job->o->json) {
        show_comparison(outs, n);
        return CLI_OK;
    }
    json_t *report = to_json(outs, n);
    status = cli_print_json(report);
    json_decref(report);
    return status;
}

/* The batch: from --feed and --target, or the first rows of --data. */
static int take_batch(cli_job *job, cli_data *data)
{
    const cli_options *o = job->o;
    if (o->data.n && o->feed.n) return cli_usage(o, "--data and --feed exclude each other");
    if (o->data.n == 0) {
        int status = cli_target(job, true);
        return status == CLI_OK ? cli_feed(job) : status;
    }
    if (o->loss == INV_LOSS_NONE) return cli_usage(o, "`compare` wants --loss KIND");
    int status = cli_data_open(job, data, &o->data, o->target, "data", NULL);
    if (status != CLI_OK) return status;
    int64_t batch = cli_batch_rows(job, data->nrows);
    if (batch > data->nrows)
        return cli_fail("the data has %lld rows, the batch %lld", (long long)data->nrows, (long long)batch);
    status = cli_data_reserve(data, batch);
    if (status != CLI_OK) return status;
    if (cli_data_batch(data, 0, batch) != CLI_OK) return CLI_FAILED;
    memcpy(job->arrays, data->arrays, job->ninputs * sizeof *job->arrays);
    job->target = data->target_array;
    job->has_target = data->has_target;
    return CLI_OK;
}

int cli_main_compare(const cli_options *o)
{
    int modes[MOST_MODES] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE, INV_MEMORY_INVERT};
    size_t n = MOST_MODES;
    if (o->memory == INV_MEMORY_RECOMPUTE || o->memory == INV_MEMORY_INVERT || o->plan) { /* made for one mode */
        modes[1] = o->memory;
        n = 2;
    }
    outcome outs[MOST_MODES] = {0};
    cli_job job;
    cli_data data = {0};
    int status = cli_open(&job, o);
    if (status == CLI_OK) status = take_batch(&job, &data);
    for (size_t i = 0; i < n && status == CLI_OK; i++) {
        status = run_mode(&job, modes[i], &outs[i]);
        if (status == CLI_OK) measure_distances(&outs[i], &outs[0]);
    }
    if (status == CLI_OK) status = deliver_comparison(&job, outs, n);
    for (size_t i = 0; i < n; i++) {
        gradients_fini(&outs[i].grads);
        json_decref(outs[i].report);
        json_decref(outs[i].distances);
    }
    cli_data_close(&data);
    cli_close(&job);
    return status;
}
