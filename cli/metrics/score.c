/* SPDX-License-Identifier: Apache-2.0
 * Loss and metrics over rows: what `eval` gives, and what `train` validates with. */
#include "cli/metrics/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/job/ranks.h"
#include "cli/metrics/metrics.h"
#include "cli/say/rank.h"
#include "data/watch.h"

/* The first loss of a rank's batches that is not finite: where it was, and the rows of its batch. */
typedef struct bad_batch {
    int64_t at; /* -1: there was none */
    double loss;
    char rows[512];
} bad_batch;

static void note_bad(bad_batch *bad, const cli_data *data, int64_t at, double loss)
{
    if (bad->at >= 0) return;
    FILE *f = fmemopen(bad->rows, sizeof bad->rows - 1, "w");
    *bad = (bad_batch){.at = at, .loss = loss};
    if (f) cli_data_blame(data, f);
    if (f) fclose(f);
}

/* That of the first batch, whichever rank had it: `eval` has no result then, training goes on. */
static int tell_bad(const cli_job *job, const bad_batch *mine)
{
    void *all;
    int status = cli_ranks_gather(job, "the losses of validation", mine, sizeof *mine, &all);
    if (status != CLI_OK) return status;
    const bad_batch *bad = mine, *of = all;
    for (int r = 0; r < cli_ranks(); r++)
        if (of[r].at >= 0 && (bad->at < 0 || of[r].at < bad->at)) bad = &of[r];
    if (bad->at >= 0 && job->o->command == CLI_CMD_eval)
        status = cli_fail("the loss is %g; %s", cli_unsigned_nan(bad->loss), bad->rows);
    else if (bad->at >= 0) cli_warn("validation: the loss is %g; %s", cli_unsigned_nan(bad->loss), bad->rows);
    free(all);
    return status;
}

/* What a batch gives, as numbers that ranks add: each batch is of one of them, and the others have zeros there. */
typedef struct batch_score {
    double loss, weight, rows, correct, samples;
} batch_score;
enum { NUMBERS = sizeof(batch_score) / sizeof(double) };

static int score_batch(cli_job *job, cli_data *data, int64_t at, int64_t n, bad_batch *bad, batch_score *b)
{
    inv_result result = {0};
    if (cli_data_batch(data, at, n) != CLI_OK) return CLI_FAILED;
    const inv_status s = inv_session_eval(job->session, data->arrays, data->ninputs,
                                          data->has_target ? &data->target_array : NULL, &result);
    if (s != INV_OK) return cli_library_failed(job, s);
    const char *cut = data_watch_cut();
    if (cut) return cli_fail("'%s' was cut short while it was read", cut);
    *b = (batch_score){result.loss, result.weight, (double)result.rows, (double)result.correct, (double)n};
    if (result.weight > 0 && !isfinite(result.loss)) note_bad(bad, data, at, result.loss);
    return cli_metrics_add(job, &data->target_array);
}

/* The sums over batches, in their order however ranks have shared them. *weight: what labels count. */
static void add_batches(const batch_score *b, size_t n, cli_score *score, double *weight)
{
    double sum = 0;
    *weight = 0;
    for (size_t i = 0; i < n; i++) {
        if (b[i].weight > 0) { /* else no label counts here, and the loss is NaN */
            sum += b[i].loss * b[i].weight;
            *weight += b[i].weight;
        }
        score->samples += (int64_t)b[i].samples;
        score->rows += (int64_t)b[i].rows;
        score->correct += (int64_t)b[i].correct;
    }
    if (score->samples) score->loss = sum / *weight;
}

static int score_batches(cli_job *job, cli_data *data, int64_t batch, int64_t nrows, bool (*stop)(void), batch_score *b)
{
    bad_batch bad = {.at = -1};
    size_t i = 0;
    for (int64_t at = 0; at < nrows && !(stop && stop()); at += batch, i++) {
        if (i % (size_t)cli_ranks() != (size_t)cli_rank()) continue;
        const int status = score_batch(job, data, at, nrows - at < batch ? nrows - at : batch, &bad, &b[i]);
        if (status != CLI_OK) return status;
        if (bad.at >= 0 && job->o->command == CLI_CMD_eval) break;
    }
    return tell_bad(job, &bad);
}

int cli_score_data(cli_job *job, cli_data *data, int64_t batch, int64_t nrows, bool (*stop)(void), cli_score *score)
{
    const size_t n = (size_t)((nrows + batch - 1) / batch);
    batch_score *b = calloc(n + 1, sizeof *b);
    double weight = 0;
    *score = (cli_score){0};
    if (!b) return cli_fail("out of memory");
    cli_metrics_reset(job->metrics);
    int status = score_batches(job, data, batch, nrows, stop, b);
    if (status == CLI_OK) status = cli_ranks_add(job, "the losses of validation", &b[0].loss, NUMBERS * n);
    if (status == CLI_OK) status = cli_metrics_join(job);
    if (status == CLI_OK) add_batches(b, n, score, &weight);
    free(b);
    if (status != CLI_OK) return status;
    cli_metrics_finish(job->metrics, data, score);
    if (!score->samples || weight > 0) return CLI_OK;
    static const char none[] = "no label counts: all are ignored, or of classes of weight 0";
    if (job->o->command == CLI_CMD_eval) return cli_fail("%s", none);
    cli_warn("validation: %s", none);
    return CLI_OK;
}

void cli_score_json(json_t *object, const char *prefix, const cli_score *score)
{
    char key[48];
    snprintf(key, sizeof key, "%sloss", prefix);
    json_object_set_new(object, key, cli_json_real(score->loss));
    for (size_t i = 0; i < score->nmetrics; i++) {
        snprintf(key, sizeof key, "%s%s", prefix, score->metrics[i].name);
        json_object_set_new(object, key, cli_json_real(score->metrics[i].value));
    }
    snprintf(key, sizeof key, "%sconfusion", prefix);
    if (score->confusion) json_object_set(object, key, (json_t *)(uintptr_t)score->confusion);
}

static json_int_t count_at(const json_t *matrix, size_t row, size_t column)
{
    return json_integer_value(json_array_get(json_array_get(matrix, row), column));
}

/* The name of a class stands behind its row; columns have labels, which fit. */
void cli_show_confusion(const cli_score *score)
{
    enum { MOST = 20 };
    const json_t *matrix = score->confusion;
    const size_t n = json_array_size(matrix);
    if (n > MOST) {
        printf("  confusion: %zu classes, too many for a screen; --json and --log have them\n", n);
        return;
    }
    int width = 3;
    for (size_t i = 0; i < n * n; i++) {
        const int digits = snprintf(NULL, 0, "%lld", (long long)count_at(matrix, i / n, i % n));
        if (digits > width) width = digits;
    }
    printf("  class, and what its rows were taken for\n  %6s", "");
    for (size_t j = 0; j < n; j++) printf(" %*zu", width, j);
    for (size_t i = 0; i < n; i++) {
        printf("\n  %6zu", i);
        for (size_t j = 0; j < n; j++) printf(" %*lld", width, (long long)count_at(matrix, i, j));
        const char *name = json_string_value(json_array_get(score->class_names, i));
        if (name) printf("  %s", name);
    }
    putchar('\n');
}
