/* SPDX-License-Identifier: Apache-2.0
 * `eval`: loss and accuracy over data, dropout off and running statistics used. */
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/session_options.h"
#include "cli/metrics/metrics.h"

/* A session for `batch` rows and, if `*rest` is not 0, for that many. A model whose batch is fixed may refuse the
 * second; then the rest is left out, aloud. */
static int start(cli_job *job, cli_data *data, int64_t batch, int64_t *rest)
{
    inv_session_options so;
    cli_hold hold;
    if (cli_data_batch(data, 0, batch) != CLI_OK) return CLI_FAILED;
    memcpy(job->arrays, data->arrays, job->ninputs * sizeof *job->arrays);
    job->target = data->target_array;
    job->has_target = data->has_target;
    int status = cli_metrics_create(job);
    if (status != CLI_OK) return status;
    status = cli_session_options(job, INV_FOR_EVAL, &so, &hold);
    if (status == CLI_OK) {
        so.tail_batch = *rest;
        inv_status s = cli_data_session(job, data, &so);
        if (s == INV_E_SHAPE && *rest && cli_fixed_batch(job) == batch) {
            cli_note("the model's batch is fixed at %lld: the last rows (%lld) are left out", (long long)batch,
                     (long long)*rest);
            so.tail_batch = *rest = 0;
            s = cli_data_session(job, data, &so);
        }
        if (s != INV_OK) status = cli_library_failed(job, s);
    }
    cli_hold_fini(&hold);
    return status;
}

/* What the first line has not said, by name. */
static void show_metrics(const cli_score *score)
{
    size_t longest = 0;
    for (size_t i = 0; i < score->nmetrics; i++)
        if (strlen(score->metrics[i].name) > longest) longest = strlen(score->metrics[i].name);
    for (size_t i = 0; i < score->nmetrics; i++)
        if (!score->rows || strcmp(score->metrics[i].name, "accuracy") != 0)
            printf("  %-*s  %.6g\n", (int)longest, score->metrics[i].name, cli_unsigned_nan(score->metrics[i].value));
    if (score->confusion) cli_show_confusion(score);
}

static int deliver_evaluation(cli_job *job, const cli_data *data, const cli_score *score, double seconds)
{
    if (!job->o->json) {
        printf("loss %.6g", cli_unsigned_nan(score->loss));
        if (score->rows)
            printf("  accuracy %.4f (%lld of %lld)", (double)score->correct / (double)score->rows,
                   (long long)score->correct, (long long)score->rows);
        printf("  %lld samples in %.2f s\n", (long long)score->samples, seconds);
        show_metrics(score);
        return CLI_OK;
    }
    json_t *report = cli_report(job);
    if (!report) return CLI_FAILED;
    cli_score_json(report, "", score);
    cli_data_classes_json(report, data);
    json_object_set_new(report, "samples", json_integer(score->samples));
    json_object_set_new(report, "rows", json_integer(score->rows));
    json_object_set_new(report, "correct", json_integer(score->correct));
    json_object_set_new(report, "seconds", cli_json_real(seconds));
    int status = cli_print_json(report);
    json_decref(report);
    return status;
}

int cli_main_eval(const cli_options *o)
{
    cli_job job;
    cli_data data = {0};
    cli_score score;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->loss == INV_LOSS_NONE) status = cli_usage(o, "`eval` wants --loss KIND");
    if (status == CLI_OK) status = cli_data_open(&job, &data, &o->data, o->target, "data", NULL);
    if (status == CLI_OK) {
        int64_t batch = cli_batch_rows(&job, data.nrows), rest = data.nrows % batch;
        if (batch > data.nrows)
            status = cli_fail("the data has %lld rows, but the model's batch is fixed at %lld", (long long)data.nrows,
                              (long long)batch);
        if (status == CLI_OK) status = cli_data_reserve(&data, batch);
        if (status == CLI_OK) status = start(&job, &data, batch, &rest);
        double began = cli_now();
        if (status == CLI_OK)
            status = cli_score_data(&job, &data, batch, data.nrows - data.nrows % batch + rest, NULL, &score);
        if (status == CLI_OK) status = deliver_evaluation(&job, &data, &score, cli_now() - began);
    }
    cli_data_close(&data);
    cli_metrics_destroy(job.metrics);
    cli_close(&job);
    return status;
}
