/* SPDX-License-Identifier: Apache-2.0
 * `train`: epochs of shuffled batches, validation after each, weights written back into the model. An interrupt or a
 * hang-up ends after the running step and still saves. A step that fails ends training at once; the weights of the
 * steps before it are saved beside the output then. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "data/watch.h"
#include "metrics.h"
#include "run_log.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* JSON lists the losses of so many steps at most. */
#define STEPS_LISTED 1000

static volatile sig_atomic_t interrupted; /* by the signal of this number; 0: not */

static void on_signal(int number)
{
    interrupted = number;
    signal(SIGINT, cli_end_by_signal); /* the second one kills */
    signal(SIGTERM, cli_end_by_signal);
    /* not SIGHUP: shell and terminal may both send one */
}

static bool stop_asked(void) { return interrupted != 0; }

typedef struct training {
    cli_job job;
    cli_data data, held_out;
    bool validates;
    int64_t batch, rest;           /* rows of a step, and of the last one of an epoch; rest 0: none */
    int64_t held_batch, held_rest; /* likewise for validation */
    int64_t steps_per_epoch, total, epochs;
    int64_t done, samples;
    double began, last_loss;
    double took; /* bytes of private memory, the most that was seen between steps */
    cli_score score;
    cli_progress progress;
    cli_log *log; /* NULL: none is written */
    char *out;    /* what is written: -o, or what it links to */
    json_t *epoch_list, *step_list;
} training;

static int check_usage(const cli_options *o, char **out, cli_log **log)
{
    if (o->loss == INV_LOSS_NONE) return cli_usage(o, "`train` wants --loss KIND");
    if (o->epochs && o->steps) return cli_usage(o, "--epochs and --steps exclude each other");
    if (o->shuffle && o->no_shuffle) return cli_usage(o, "--shuffle and --no-shuffle exclude each other");
    if (o->stacked && o->batch > 1)
        return cli_usage(o, "--batch goes with rows; with --stacked a step takes one entry");
    if (o->val_target && o->val_data.n == 0) return cli_usage(o, "--val-target wants --val-data");
    if (o->val_split > 0 && o->val_data.n) return cli_usage(o, "--val-split and --val-data exclude each other");
    if (o->metric.n && o->val_data.n == 0 && o->val_split <= 0)
        return cli_usage(o, "--metric is of validation, which wants --val-data or --val-split");
    if (o->val_split >= 1) return cli_usage(o, "--val-split %g: wants a share between 0 and 1", o->val_split);
    const int status = cli_out_check(o, out);
    return status == CLI_OK ? cli_log_create(o, log) : status;
}

static int open_data(training *t)
{
    const cli_options *o = t->job.o;
    int status = cli_data_open(&t->job, &t->data, &o->data, o->target, "data", NULL);
    if (status == CLI_OK && o->val_data.n) {
        t->validates = true;
        status = cli_data_open(&t->job, &t->held_out, &o->val_data, o->val_target, "val-data", &t->data);
    } else if (status == CLI_OK && o->val_split > 0) {
        t->validates = true;
        status = cli_data_split(&t->data, o->val_split, &t->held_out);
    }
    if (status != CLI_OK) return status;
    int64_t rows = t->data.nrows;
    t->batch = cli_batch_rows(&t->job, rows);
    if (t->batch > rows)
        return cli_fail("the data has %lld rows, but the model's batch is fixed at %lld", (long long)rows,
                        (long long)t->batch);
    t->rest = o->drop_last ? 0 : rows % t->batch;
    if (t->validates) {
        int64_t held = t->held_out.nrows;
        t->held_batch = t->batch <= held ? t->batch : held;
        t->held_rest = held % t->held_batch;
        status = cli_data_reserve(&t->held_out, t->held_batch);
    }
    return status == CLI_OK ? cli_data_reserve(&t->data, t->batch) : status;
}

/* Entries that are held out have the shapes of those that are trained on; the library wants to hear of a batch. */
static int64_t rows_as_planned(const inv_session_options *so)
{
    const inv_array *a = so->target && so->target->rank > 0 ? so->target : so->inputs;
    return a->rank > 0 && a->dims[0] > 0 ? a->dims[0] : 1;
}

/* A model whose batch is fixed may refuse smaller ones. Then the last rows of the order are left out: with
 * shuffling, others in each epoch. */
static inv_status create_session(training *t, inv_session_options *so)
{
    cli_job *job = &t->job;
    so->tail_batch = t->rest;
    so->eval_batch = job->o->stacked && t->validates ? rows_as_planned(so) : t->held_batch;
    so->eval_tail = t->held_rest;
    inv_status s = cli_data_session(job, &t->data, so);
    if (s != INV_E_SHAPE || cli_fixed_batch(job) != t->batch || (t->rest == 0 && t->held_rest == 0)) return s;
    if (t->validates && t->held_batch != t->batch) return s;
    so->tail_batch = so->eval_tail = 0;
    inv_status again = cli_data_session(job, &t->data, so);
    if (again != INV_OK) return again;
    if (t->rest)
        cli_note("the model's batch is fixed at %lld: %lld of the rows are left out of each epoch", (long long)t->batch,
                 (long long)t->rest);
    if (t->held_rest)
        cli_note("the model's batch is fixed at %lld: the last rows (%lld) are left out of validation",
                 (long long)t->batch, (long long)t->held_rest);
    t->rest = t->held_rest = 0;
    return INV_OK;
}

/* On what, and in how much memory; what the planner has to say of it is for those who ask. */
static void say_run(const training *t, const json_t *report)
{
    const cli_options *o = t->job.o;
    const double store = cli_number(report, "store_peak_bytes");
    char beside[64] = "";
    if (o->memory != INV_MEMORY_STORE && store > 0)
        snprintf(beside, sizeof beside, " (storing all: %s)", cli_bytes(store));
    cli_say("%lld rows, batch %lld, %lld step%s; planned peak %s%s", (long long)t->data.nrows, (long long)t->batch,
            (long long)t->total, t->total == 1 ? "" : "s", cli_bytes(cli_number(report, "planned_peak_bytes")), beside);
    const double all = cli_number(report, "process_bytes");
    if (all > 0)
        cli_say("the process takes about %s (%s for program and libraries)", cli_bytes(all),
                cli_bytes(cli_number(report, "beside_bytes")));
    if (o->verbose) cli_say("cost over that of storing everything: %s", cli_overhead(report));
    if (!o->json && !o->quiet) cli_show_saving(report);
}

/* A report is large, and what it took is not to stay beside the arena until training ends. */
static void drop_report(json_t *report)
{
    json_decref(report);
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

static void see_memory(training *t)
{
    const double now = (double)inv_process_bytes();
    if (now > t->took) t->took = now;
}

/* A step in which something was read that is gone by now is not to count. */
static bool may_commit(void *opaque)
{
    (void)opaque;
    return !data_watch_cut();
}

/* Constants may be meant as weights, and are not (importer/weights.c). */
static void note_constants(const json_t *inspection)
{
    const json_t *entry;
    const char *first = NULL, *number = NULL;
    size_t i, n = 0, numbers = 0;
    json_array_foreach(json_object_get(inspection, "constants"), i, entry)
    {
        const bool single = strcmp(cli_string(entry, "why"), "a single number") == 0;
        const char **name = single ? &number : &first;
        if (!*name) *name = cli_string(entry, "name");
        *(single ? &numbers : &n) += 1;
    }
    char *text = NULL;
    size_t length = 0;
    FILE *f = n + numbers ? open_memstream(&text, &length) : NULL;
    if (!f) return;
    if (n) fprintf(f, "'%s'", first);
    if (n > 1) fprintf(f, " and %zu more", n - 1);
    if (numbers)
        fprintf(f, "%s%zu single number%s ('%s'%s)", n ? ", and " : "", numbers, numbers > 1 ? "s" : "", number,
                numbers > 1 ? ", ..." : "");
    fclose(f);
    if (text) cli_say("constants of formulas are not trained: %s; `inspect` lists them", text);
    free(text);
}

static int start(training *t)
{
    cli_job *job = &t->job;
    inv_session_options so;
    cli_hold hold;
    if (cli_data_batch(&t->data, 0, t->batch) != CLI_OK) return CLI_FAILED;
    memcpy(job->arrays, t->data.arrays, job->ninputs * sizeof *job->arrays);
    job->target = t->data.target_array;
    job->has_target = t->data.has_target;
    int status = t->validates ? cli_metrics_create(job) : CLI_OK;
    if (status != CLI_OK) return status;
    status = cli_session_options(job, INV_FOR_TRAIN, &so, &hold);
    so.may_commit = may_commit;
    so.grad_norm = t->log && !job->o->early_update; /* there gradients are never all at hand */
    if (status == CLI_OK) {
        inv_status s = create_session(t, &so);
        if (s != INV_OK) status = cli_library_failed(job, s);
    }
    cli_hold_fini(&hold);
    if (status != CLI_OK) return status;
    const cli_options *o = job->o;
    t->steps_per_epoch = t->data.nrows / t->batch + (t->rest > 0);
    t->total = o->steps ? o->steps : (o->epochs ? o->epochs : 1) * t->steps_per_epoch;
    t->epochs = (t->total + t->steps_per_epoch - 1) / t->steps_per_epoch;
    status = cli_data_check_epochs(&t->data, t->epochs);
    if (status == CLI_OK) status = cli_data_check_epochs(&t->held_out, t->epochs);
    if (status != CLI_OK) return status;
    json_t *report = cli_report(job);
    if (!report) return CLI_FAILED;
    cli_say_trained(report);
    say_run(t, report);
    note_constants(job->inspection);
    cli_progress_start(&t->progress, t->total, t->epochs);
    json_t *about = cli_run_about(job, report, t->data.nrows, t->validates ? t->held_out.nrows : 0, t->batch);
    drop_report(report);
    const cli_run_facts facts = {.about = about,
                                 .metrics = job->metrics ? job->metrics->value : NULL,
                                 .nmetrics = job->metrics ? job->metrics->nvalue : 0,
                                 .total = t->total,
                                 .after = -1};
    status = cli_log_begin(t->log, &facts);
    json_decref(about);
    return status;
}

/* Why the loss is not finite: the library's message, which counts steps from 0 and whose "-nan" has a sign that means
 * nothing, and the rows of the batch. */
static void put_not_finite(const training *t, const inv_result *result, FILE *f)
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
    fprintf(f, "step %lld of %lld: %.*s%s%s%s; ", (long long)t->done + 1, (long long)t->total, head, text,
            sign ? sign + 1 : text, node && !named ? "; first node with a non-finite output: " : "",
            node && !named ? node : "");
    if (cli_data_blame(&t->data, f)) fputs(". Mend these rows or leave them out", f);
    else fputs(node ? ". A smaller --lr may help" : ". Leave them out, or take larger batches (--batch)", f);
}

static int step_failed(training *t, inv_status s, const inv_result *result)
{
    const char *cut = data_watch_cut();
    if (cut)
        return cli_fail("step %lld of %lld: '%s' was cut short while it was read%s", (long long)t->done + 1,
                        (long long)t->total, cut, t->done ? "" : "; nothing was saved");
    if (s != INV_E_NUMERIC) return cli_library_failed(&t->job, s);
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    if (f) put_not_finite(t, result, f);
    if (f) fclose(f);
    int status = cli_fail("%s%s", text ? text : "the loss is not finite", t->done ? "" : "; nothing was saved");
    free(text);
    return status;
}

/* What a record says that is the same of a step and of a validation. */
static cli_record record_now(const training *t, int64_t epoch, bool validation, double loss)
{
    cli_record r = cli_record_of(validation);
    r.step = t->done;
    r.epoch = epoch;
    r.samples = t->samples;
    r.seconds = cli_now() - t->began;
    r.value[CLI_LOSS] = loss;
    return r;
}

static void log_step(training *t, int64_t epoch, const inv_result *result)
{
    cli_record r = record_now(t, epoch, false, result->loss);
    r.value[CLI_LR] = t->job.o->lr;
    r.value[CLI_GRAD_NORM] = result->grad_norm;
    r.value[CLI_DRIFT] = result->drift;
    r.value[CLI_FALLBACKS] = result->fallbacks;
    cli_log_record(t->log, &r);
}

static void log_validation(training *t, int64_t epoch)
{
    cli_record r = record_now(t, epoch, true, t->score.loss);
    r.metrics = t->score.metrics;
    r.nmetrics = t->score.nmetrics;
    r.confusion = t->score.confusion;
    cli_log_record(t->log, &r);
}

/* "  validation loss 0.12345  accuracy 0.9876"; the caller frees it. */
static char *text_of_score(const cli_score *score)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "  validation loss %.5f", cli_unsigned_nan(score->loss));
    for (size_t i = 0; i < score->nmetrics; i++)
        fprintf(f, "  %s %.4f", score->metrics[i].name, cli_unsigned_nan(score->metrics[i].value));
    fclose(f);
    return text;
}

/* Steps of one epoch. `loss`: mean over its rows. */
static int run_epoch(training *t, int64_t epoch, double *loss)
{
    const cli_options *o = t->job.o;
    double sum = 0;
    int64_t rows = 0;
    cli_data_epoch(&t->data, (uint64_t)epoch);
    for (int64_t at = 0, i = 0; i < t->steps_per_epoch && t->done < t->total && !stop_asked(); i++) {
        int64_t n = t->data.nrows - at < t->batch ? t->rest : t->batch;
        inv_result result = {0};
        if (cli_data_batch(&t->data, at, n) != CLI_OK) return CLI_FAILED;
        inv_status s = inv_session_step(t->job.session, t->data.arrays, t->data.ninputs,
                                        t->data.has_target ? &t->data.target_array : NULL, o->lr, &result);
        if (s != INV_OK) return step_failed(t, s, &result);
        at += n;
        rows += n;
        sum += result.loss * (double)n;
        t->done++;
        t->samples += n;
        t->last_loss = result.loss;
        if (t->done == 1) see_memory(t); /* now all of the arena has been touched, and libraries have their buffers */
        if (t->done <= STEPS_LISTED) json_array_append_new(t->step_list, cli_json_real(result.loss));
        cli_progress_step(&t->progress, epoch, t->done, t->samples, result.loss);
        log_step(t, epoch, &result);
    }
    *loss = rows ? sum / (double)rows : 0;
    return CLI_OK;
}

static int end_epoch(training *t, int64_t epoch, double loss, double began)
{
    int status = CLI_OK;
    json_t *entry = json_object();
    json_object_set_new(entry, "epoch", json_integer(epoch));
    json_object_set_new(entry, "train_loss", cli_json_real(loss));
    char *held_out = NULL;
    if (t->validates && !stop_asked()) {
        int64_t nrows = t->held_out.nrows - t->held_out.nrows % t->held_batch + t->held_rest;
        status = cli_score_data(&t->job, &t->held_out, t->held_batch, nrows, stop_asked, &t->score);
        if (status == CLI_OK && t->score.samples == nrows) {
            cli_score_json(entry, "val_", &t->score);
            log_validation(t, epoch);
            held_out = text_of_score(&t->score);
        }
    }
    double seconds = cli_now() - began;
    see_memory(t);
    cli_say("epoch %lld/%lld  train loss %.5f%s  %.2f s", (long long)epoch, (long long)t->epochs,
            cli_unsigned_nan(loss), held_out ? held_out : "", seconds);
    free(held_out);
    json_object_set_new(entry, "seconds", cli_json_real(seconds));
    if (!t->job.o->json) json_array_clear(t->epoch_list); /* the last one is enough */
    json_array_append_new(t->epoch_list, entry);
    data_watch_note(cli_warn);
    return status;
}

static int run_epochs(training *t)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* nohup stays in force */
        sigaction(SIGHUP, &action, NULL);
    t->began = cli_now();
    int status = CLI_OK;
    for (int64_t epoch = 1; status == CLI_OK && t->done < t->total && !stop_asked(); epoch++) {
        double loss = 0, began = cli_now();
        int64_t before = t->done;
        status = run_epoch(t, epoch, &loss);
        if (status == CLI_OK && t->done > before) status = end_epoch(t, epoch, loss, began);
    }
    /* With early updates the step that failed may have changed some weights; then the message has said so. */
    if (status != CLI_OK && t->done)
        cli_out_rescue(&t->job, t->out, t->job.o->early_update ? "" : ", as they were before that,");
    return status;
}

static void show_end(const cli_options *o, const json_t *report)
{
    if (o->verbose) {
        cli_show_peaks(report);
        cli_show_drift(report, false);
    }
    cli_show_profile(report);
}

/* as a shell counts a program that a signal has ended, though the file is written */
static int end_status(int status) { return status == CLI_OK && stop_asked() ? 128 + (int)interrupted : status; }

static int report_end(const training *t, double seconds)
{
    const cli_options *o = t->job.o;
    int status = CLI_OK;
    json_t *report = cli_report(&t->job);
    if (!report) return CLI_FAILED;
    const json_t *last = json_array_get(t->epoch_list, json_array_size(t->epoch_list) - 1), *v;
    if ((v = json_object_get(last, "train_loss"))) json_object_set(report, "loss", (json_t *)(uintptr_t)v);
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)last, key, v) if (strncmp(key, "val_", 4) == 0)
        json_object_set(report, key, (json_t *)(uintptr_t)v);
    cli_data_classes_json(report, &t->data);
    json_object_set_new(report, "last_step_loss", cli_json_real(t->last_loss));
    json_object_set_new(report, "steps_done", json_integer(t->done));
    json_object_set_new(report, "interrupted", json_boolean(stop_asked()));
    json_object_set_new(report, "seconds", cli_json_real(seconds));
    json_object_set_new(report, "private_bytes", t->took > 0 ? json_integer((json_int_t)t->took) : json_null());
    json_object_set_new(report, "out", json_string(o->out));
    json_object_set(report, "epochs", t->epoch_list);
    json_object_set(report, "steps", t->step_list);
    if (t->done > STEPS_LISTED) json_object_set_new(report, "steps_truncated", json_true());
    if (o->json) status = cli_print_json(report);
    else show_end(o, report);
    json_decref(report);
    return status;
}

static int finish_training(training *t)
{
    const cli_options *o = t->job.o;
    int status = cli_out_save(&t->job, t->out);
    if (status != CLI_OK) return status;
    see_memory(t);
    double seconds = cli_now() - t->began;
    char memory[64] = "";
    if (t->took > 0) snprintf(memory, sizeof memory, ", %s of memory", cli_bytes(t->took));
    if (stop_asked() && t->done < t->total)
        cli_say("stopped after step %lld of %lld; weights saved to %s", (long long)t->done, (long long)t->total,
                o->out);
    else
        cli_say("%lld step%s in %.1f s%s; weights saved to %s", (long long)t->done, t->done == 1 ? "" : "s", seconds,
                memory, o->out);
    if (o->verbose) cli_data_say_waits(&t->data);
    if (t->score.confusion && !o->json && !o->quiet) cli_show_confusion(t->score.confusion);
    const bool asked = o->json || ((o->verbose || o->profile) && !o->quiet);
    return end_status(asked ? report_end(t, seconds) : CLI_OK);
}

/* A file may say itself how it is to be trained; that is not what happens. Nor is what is rounded derived. */
static void note_traps(const cli_job *job)
{
    const json_t *trap;
    size_t i;
    json_array_foreach(json_object_get(job->inspection, "traps"), i, trap)
    {
        const char *kind = cli_string(trap, "kind"), *text = cli_string(trap, "text");
        if (!strcmp(kind, "training_info")) cli_note("training_info: %s", text);
        if (!strcmp(kind, "straight_through"))
            cli_note("'%s'%s: %s", json_string_value(json_array_get(json_object_get(trap, "nodes"), 0)),
                     json_array_size(json_object_get(trap, "nodes")) > 1 ? " and others" : "", text);
    }
}

int cli_main_train(const cli_options *o)
{
    training t = {.epoch_list = json_array(), .step_list = json_array()};
    int status = check_usage(o, &t.out, &t.log);
    if (status == CLI_OK) status = cli_open(&t.job, o);
    if (status == CLI_OK) note_traps(&t.job);
    if (status == CLI_OK) status = open_data(&t);
    if (status == CLI_OK) status = start(&t);
    if (status == CLI_OK) status = run_epochs(&t);
    if (status == CLI_OK) status = finish_training(&t);
    cli_log_end(t.log);
    cli_data_close(&t.held_out);
    cli_data_close(&t.data);
    cli_close(&t.job);
    json_decref(t.epoch_list);
    json_decref(t.step_list);
    free(t.out);
    return status;
}
