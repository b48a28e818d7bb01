/* SPDX-License-Identifier: Apache-2.0
 * The steps of `train`: epochs of batches, each step of one or of several of them, validation, checkpoints. An
 * interrupt or a hang-up ends after the running step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/job/output_model.h"
#include "cli/job/ranks.h"
#include "cli/say/rank.h"
#include "cli/say/signals.h"
#include "cli/train/train.h"
#include "data/watch.h"

/* JSON lists the losses of so many steps at most. */
enum { STEPS_LISTED = 1000 };

static int heeded; /* of several ranks: the signal that all of them end by; 0: none */

int cli_train_signal(void) { return cli_ranks() > 1 ? heeded : cli_train_interrupted(); }

static bool stop_asked(void) { return cli_train_signal() != 0; }

/* --- a step --- */

/* Which rows of the batch are to blame, as the rank with the node says; of many files it has no room for all. */
enum { BLAME = 2000 };
typedef struct blame {
    bool any;         /* some row holds what is not finite */
    char text[BLAME]; /* which rows, and what they hold; "": that is not known */
} blame;

/* No label of the batch counts, of no rank: the loss is a mean of nothing. */
static bool is_of_nothing(const inv_result *result) { return result->weight == 0 && isnan(result->loss); }

/* Of a batch in which none is to blame more than others, the rows of all ranks. All call it. */
static int find_rows(const cli_training *t, blame *out)
{
    const data_batch *b = t->data.batch;
    const size_t each = (size_t)t->batch + 1; /* how many a rank has, and which */
    int64_t *mine = calloc(each, sizeof *mine);
    void *all = NULL;
    if (mine && b) mine[0] = b->n, memcpy(&mine[1], b->rows, (size_t)b->n * sizeof *mine);
    int status = mine ? cli_ranks_gather(&t->job, "the search for the rows of a batch", mine, each * sizeof *mine, &all)
                      : cli_fail("out of memory");
    free(mine);
    if (status != CLI_OK) return status;
    int64_t *rows = all, n = 0;
    for (size_t r = 0; r < (size_t)cli_ranks(); r++) {
        const int64_t has = rows[r * each];
        memmove(&rows[n], &rows[r * each + 1], (size_t)has * sizeof *rows);
        n += has;
    }
    qsort(rows, (size_t)n, sizeof *rows, cli_by_number);
    FILE *f = fmemopen(out->text, sizeof out->text, "w");
    if (f) fputs("its batch was ", f), data_put_rows(f, "row", rows, n), fclose(f);
    free(all);
    return CLI_OK;
}

/* All ranks call it. @return CLI_OK, or what was said */
static int find_blame(const cli_training *t, const inv_result *result, blame *out)
{
    char *text = NULL;
    size_t length = 0;
    void *all = NULL;
    int status = CLI_OK;
    *out = (blame){0};
    if (cli_ranks() > 1 && is_of_nothing(result)) return find_rows(t, out);
    FILE *f = open_memstream(&text, &length);
    if (f) out->any = cli_data_blame(&t->data, f);
    if (f) fclose(f);
    if (text) snprintf(out->text, sizeof out->text, "%s", text);
    free(text);
    if (cli_ranks() < 2) return CLI_OK;
    if (result->bad_node)
        status = cli_ranks_gather(&t->job, "the search for rows that are not finite", out, sizeof *out, &all);
    if (!all) *out = (blame){0};
    for (int r = cli_ranks(); all && r-- > 0;) /* a node that is not found again is of the first that has such rows */
        if (r == result->bad_rank || (result->bad_rank < 0 && ((blame *)all)[r].any)) *out = ((blame *)all)[r];
    free(all);
    return status;
}

/* Why the loss is not finite: the library's message, which counts steps from 0 and whose "-nan" has a sign that means
 * nothing, and the rows of the batch. */
static void put_not_finite(const cli_training *t, const inv_result *result, const blame *rows, FILE *f)
{
    const char *text = inv_context_message(t->job.ctx), *node = result->bad_node;
    const char *colon = text ? strstr(text, ": ") : NULL;
    if (!text || !*text) text = "the loss is not finite";
    if (colon && strncmp(text, "step ", 5) == 0) text = colon + 2;
    static const char before[] = "the loss is ";
    const char *sign = strstr(text, "the loss is -nan");
    if (sign) sign += sizeof before - 1;
    int head = sign ? (int)(sign - text) : 0;
    bool named = node && strstr(text, node);
    fprintf(f, "step %lld of %lld: %.*s%s%s%s%s%s", (long long)t->at.done + 1, (long long)t->total, head, text,
            sign ? sign + 1 : text, node && !named ? "; first node with a non-finite output: " : "",
            node && !named ? node : "", *rows->text ? "; " : "", rows->text);
    if (rows->any) fputs(". Mend these rows or leave them out", f);
    else if (node) fputs(". A smaller --lr may help", f);
    else if (is_of_nothing(result))
        fprintf(f, ". %s larger batches (--batch)", *rows->text ? "Leave them out, or take" : "Take");
}

int cli_step_failed(cli_training *t, inv_status s, const inv_result *result)
{
    const char *cut = data_watch_cut();
    if (cut)
        return cli_fail("step %lld of %lld: '%s' was cut short while it was read%s", (long long)t->at.done + 1,
                        (long long)t->total, cut, t->at.done ? "" : "; nothing was saved");
    if (s == INV_E_RANKS || (s == INV_E_NUMERIC && (result->bad_node || is_of_nothing(result)))) cli_ranks_known();
    if (s != INV_E_NUMERIC) return cli_library_failed(&t->job, s);
    blame rows;
    int status = find_blame(t, result, &rows);
    if (status != CLI_OK) return status;
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    if (f) put_not_finite(t, result, &rows, f);
    if (f) fclose(f);
    status = cli_fail("%s%s", text ? text : "the loss is not finite", t->at.done ? "" : "; nothing was saved");
    free(text);
    return status;
}

/* What a record says that is the same of a step and of a validation. */
static cli_record record_now(const cli_training *t, bool validation, double loss)
{
    cli_record r = cli_record_of(validation);
    r.step = t->at.done;
    r.epoch = t->at.epoch;
    r.samples = t->at.samples;
    r.seconds = t->at.seconds + cli_now() - t->began;
    r.value[CLI_LOSS] = loss;
    return r;
}

static void log_step(const cli_training *t, double lr, const inv_result *result)
{
    cli_record r = record_now(t, false, result->loss);
    r.value[CLI_LR] = lr;
    r.value[CLI_GRAD_NORM] = result->grad_norm;
    r.value[CLI_DRIFT] = result->drift;
    r.value[CLI_FALLBACKS] = result->fallbacks;
    cli_log_record(t->log, &r);
}

static void log_validation(const cli_training *t)
{
    cli_record r = record_now(t, true, t->score.loss);
    r.metrics = t->score.metrics;
    r.nmetrics = t->score.nmetrics;
    r.confusion = t->score.confusion;
    r.class_names = t->score.class_names;
    cli_log_record(t->log, &r);
}

void cli_see_memory(cli_training *t)
{
    const double now = (double)inv_process_bytes();
    if (now > t->took) t->took = now;
}

/* This rank's part of a batch of an epoch, from *start on; *n: rows of all ranks. They have them as one process has
 * them in micro-batches: of the last, smaller batch low ranks have as many as of others, one may have fewer, high ranks
 * none.
 */
static int64_t rows_of(const cli_training *t, int64_t batch, int64_t *start, int64_t *n)
{
    const int64_t all = cli_train_rows(t), at = batch * all, before = cli_rank() * t->batch;
    *n = t->data.nrows - at < all ? t->rest : all;
    *start = at + before;
    return *n < before ? 0 : *n < before + t->batch ? *n - before : t->batch;
}

/* Names the batch behind the next step's, that of the next epoch if there is one, so that it is sent meanwhile. It is
 * an offer: what is wrong with it its own step says. */
static void name_next(cli_training *t)
{
    const bool over = t->at.batch == t->batches;
    int64_t start, n;
    if (t->at.done + 1 >= t->total) return;
    const int64_t own = rows_of(t, over ? 0 : t->at.batch, &start, &n);
    const inv_array *a = cli_data_ahead(&t->data, (uint64_t)t->at.epoch + over, start, own);
    if (a) (void)inv_session_next(t->job.session, a, t->data.ninputs, t->data.has_target ? &a[t->data.ninputs] : NULL);
}

static int next_batch(cli_training *t, int64_t *n)
{
    int64_t start;
    const int64_t own = rows_of(t, t->at.batch, &start, n);
    if (cli_data_batch(&t->data, start, own) != CLI_OK) return CLI_FAILED;
    t->at.batch++;
    name_next(t);
    return CLI_OK;
}

/* Gradients of up to t->accumulate batches, then the update; the loss is the mean over their rows. */
static int accumulated_step(cli_training *t, double lr, inv_result *result, inv_status *s)
{
    inv_session *session = t->job.session;
    for (int64_t k = 0; k < t->accumulate && t->at.batch < t->batches; k++) {
        int64_t n;
        if (next_batch(t, &n) != CLI_OK) return CLI_FAILED;
        *s = inv_session_accumulate(session, t->data.arrays, t->data.ninputs,
                                    t->data.has_target ? &t->data.target_array : NULL, result);
        if (*s != INV_OK) return CLI_OK;
        t->at.samples += n;
    }
    *s = inv_session_update(session, lr, result);
    return CLI_OK;
}

static int single_step(cli_training *t, double lr, inv_result *result, inv_status *s)
{
    int64_t n;
    if (next_batch(t, &n) != CLI_OK) return CLI_FAILED;
    *s = inv_session_step(t->job.session, t->data.arrays, t->data.ninputs,
                          t->data.has_target ? &t->data.target_array : NULL, lr, result);
    t->at.samples += *s == INV_OK ? n : 0;
    return CLI_OK;
}

int cli_train_step(cli_training *t, double lr, inv_result *result, inv_status *s)
{
    return t->accumulate > 1 ? accumulated_step(t, lr, result, s) : single_step(t, lr, result, s);
}

static int make_step(cli_training *t)
{
    const double lr = inv_lr_at(&t->schedule, (uint64_t)t->at.done);
    inv_result result = {0};
    inv_status s;
    const int status = cli_train_step(t, lr, &result, &s);
    if (status != CLI_OK) return status;
    if (s != INV_OK) return cli_step_failed(t, s, &result);
    t->at.sum += result.loss * result.weight;
    t->at.weight += result.weight;
    t->at.done++;
    t->last_loss = result.loss;
    if (t->took <= 0) cli_see_memory(t); /* now all of the arena has been touched, and libraries have their buffers */
    if (json_array_size(t->step_list) < STEPS_LISTED) json_array_append_new(t->step_list, cli_json_real(result.loss));
    cli_progress_step(&t->progress, t->at.epoch, t->at.done, t->at.samples, result.loss);
    log_step(t, lr, &result);
    return CLI_OK;
}

/* --- validation --- */

/* "  validation loss 0.12345  accuracy 0.9876"; the caller frees it. */
static char *text_of_score(const cli_score *score)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "  validation loss %.6g", cli_unsigned_nan(score->loss));
    for (size_t i = 0; i < score->nmetrics; i++)
        fprintf(f, "  %s %.4f", score->metrics[i].name, cli_unsigned_nan(score->metrics[i].value));
    fclose(f);
    return text;
}

/* What --best and --patience go by. */
static cli_metric judged(const cli_training *t)
{
    const char *name = t->job.o->best;
    for (size_t i = 0; name && i < t->score.nmetrics; i++)
        if (!strcmp(t->score.metrics[i].name, name)) return t->score.metrics[i];
    return (cli_metric){"loss", t->score.loss, true};
}

/* Notes whether this was the best validation so far; then its model is written, with --best. */
static int judge(cli_training *t)
{
    const cli_options *o = t->job.o;
    const cli_metric by = judged(t);
    const bool better = by.falls ? by.value < t->at.best : by.value > t->at.best;
    if (better || (isnan(t->at.best) && !isnan(by.value))) {
        t->at.best = by.value;
        t->at.best_step = t->at.done;
        t->at.worse = 0;
        if (!o->best) return CLI_OK;
        json_decref(t->best);
        t->best = json_object();
        cli_score_json(t->best, "val_", &t->score);
        return cli_out_save(&t->job, t->out);
    }
    t->at.worse++;
    return CLI_OK;
}

/* With averages of the weights in their place, if they are kept. *text: what it found, the caller frees it. */
static int validate(cli_training *t, json_t *entry, char **text)
{
    const bool averages = t->job.o->average != NULL;
    const int64_t nrows = t->held_out.nrows - t->held_out.nrows % t->held_batch + t->held_rest;
    inv_status s = averages ? inv_session_use_average(t->job.session, true) : INV_OK;
    int status = s == INV_OK ? cli_score_data(&t->job, &t->held_out, t->held_batch, nrows, stop_asked, &t->score)
                             : cli_library_failed(&t->job, s);
    const bool whole = status == CLI_OK && t->score.samples == nrows;
    if (whole) {
        t->at.validated = t->at.done;
        if (entry) cli_score_json(entry, "val_", &t->score);
        log_validation(t);
        *text = text_of_score(&t->score);
        status = judge(t);
    }
    s = averages ? inv_session_use_average(t->job.session, false) : INV_OK;
    return s == INV_OK ? status : cli_library_failed(&t->job, s);
}

/* --- epochs --- */

/* Whether there is to be a validation now: behind epochs as --val-epochs says, behind the last step, and after those
 * that --val-every names. One that a signal has cut short is still to be made, by the run that goes on from here. */
static bool must_validate(const cli_training *t)
{
    const int64_t steps = t->job.o->val_every, epochs = t->job.o->val_epochs;
    if (!t->validates || t->at.validated == t->at.done) return false;
    if (t->at.done == t->total || (steps > 0 && t->at.done % steps == 0)) return true;
    return t->at.batch == t->batches && epochs > 0 && t->at.epoch % epochs == 0;
}

/* Of more than a hundred epochs one in a second is enough to read; the logs have all. */
static void say_epoch(cli_training *t, double loss, const char *held_out, double seconds)
{
    const double now = cli_now();
    const bool last = t->at.done >= t->total || t->stopped || stop_asked();
    if (t->epochs > 100 && t->said > 0 && now - t->said < 1 && !last) return;
    cli_say("epoch %lld/%lld  train loss %.6g%s  %.2f s", (long long)t->at.epoch, (long long)t->epochs,
            cli_unsigned_nan(loss), held_out ? held_out : "", seconds);
    t->said = now;
}

static int end_epoch(cli_training *t, double began)
{
    int status = CLI_OK;
    const double loss = t->at.weight > 0 ? t->at.sum / t->at.weight : 0;
    json_t *entry = json_object();
    char *held_out = NULL;
    json_object_set_new(entry, "epoch", json_integer(t->at.epoch));
    json_object_set_new(entry, "train_loss", cli_json_real(loss));
    if (must_validate(t) && !stop_asked() && !t->stopped) status = validate(t, entry, &held_out);
    const double seconds = cli_now() - began;
    cli_see_memory(t);
    say_epoch(t, loss, held_out, seconds);
    free(held_out);
    json_object_set_new(entry, "seconds", cli_json_real(seconds));
    if (!t->job.o->json) json_array_clear(t->epoch_list); /* the last one is enough */
    json_array_append_new(t->epoch_list, entry);
    data_watch_note(cli_warn);
    return status;
}

/* Validation within an epoch. */
static int validate_between(cli_training *t)
{
    char *text = NULL;
    if (!must_validate(t) || t->at.batch == t->batches || t->at.done == t->total) return CLI_OK;
    const int status = validate(t, NULL, &text);
    if (text) cli_say("step %lld%s", (long long)t->at.done, text);
    free(text);
    return status;
}

static bool goes_on(cli_training *t)
{
    const int64_t patience = t->job.o->patience;
    if (patience > 0 && !t->stopped && t->at.worse >= patience) t->stopped = "--patience";
    return t->at.done < t->total && !t->stopped && !stop_asked();
}

/* What the first of the ranks with trouble cannot write is said; the run ends as by a signal, with all written that can
 * be. */
static int say_trouble(cli_training *t)
{
    enum { ROOM = 2000 };
    char mine[ROOM] = "";
    void *all;
    if (t->trouble) snprintf(mine, sizeof mine, "%s", t->trouble);
    const int status = cli_ranks_gather(&t->job, "the question what cannot be written", mine, sizeof mine, &all);
    if (status != CLI_OK) return status;
    const char *text = all;
    int r = 0;
    while (!*text && r + 1 < cli_ranks()) text += ROOM, r++;
    if (cli_rank() == 0 && r > 0) cli_warn("rank %d: %s; the run ends", r, text);
    else if (cli_rank() == 0) cli_warn("%s; the run ends", text);
    free(all);
    if (!t->stopped) t->stopped = "a file cannot be written";
    t->failed = true;
    return CLI_OK;
}

/* Before a step: what one rank ends by, all do. A time is up when it is on rank 0. */
static int agree_to_stop(cli_training *t)
{
    enum { TROUBLE = 1 << 20 }; /* above the numbers of signals */
    if (!t->trouble) t->trouble = cli_log_trouble(t->log);
    int64_t mine = cli_train_interrupted() + (t->trouble && !t->failed ? TROUBLE : 0),
            out = t->time_limit > 0 && cli_now() - t->began >= t->time_limit;
    int status = cli_ranks_most(&t->job, "the question whether to stop", &mine);
    if (status == CLI_OK && t->time_limit > 0)
        status = cli_ranks_follow(&t->job, "the question whether the time is up", &out, sizeof out);
    heeded = (int)(mine % TROUBLE);
    if (out && !t->stopped) t->stopped = "--time-limit";
    return status == CLI_OK && mine >= TROUBLE ? say_trouble(t) : status;
}

static int checkpoint(cli_training *t) { return cli_checkpoint_save(t, cli_train_checkpoint_wanted()); }

static int run_epoch(cli_training *t)
{
    const double began = cli_now();
    const int64_t first = t->at.done;
    cli_data_epoch(&t->data, (uint64_t)t->at.epoch);
    int status = validate_between(t);
    if (status == CLI_OK) status = agree_to_stop(t);
    while (status == CLI_OK && t->at.batch < t->batches && goes_on(t)) {
        status = make_step(t);
        if (status == CLI_OK) status = agree_to_stop(t);
        if (status == CLI_OK) status = validate_between(t);
        if (status == CLI_OK && t->at.batch < t->batches) status = checkpoint(t);
    }
    if (status != CLI_OK || (t->at.done == first && t->at.batch < t->batches)) return status;
    status = end_epoch(t, began);
    if (t->at.batch < t->batches || must_validate(t)) return status; /* it has been stopped within */
    t->at.epoch++;
    t->at.batch = 0;
    t->at.sum = t->at.weight = 0;
    return status == CLI_OK ? checkpoint(t) : status;
}

int cli_train_run(cli_training *t)
{
    cli_train_signals();
    t->began = t->last_saved = cli_now();
    int status = CLI_OK;
    while (status == CLI_OK && (goes_on(t) || (must_validate(t) && !t->stopped && !stop_asked())))
        status = run_epoch(t);
    if (status == CLI_OK) status = cli_checkpoint_save(t, true);
    cli_log_flush(t->log);
    return status == CLI_OK ? agree_to_stop(t) : status;
}
