/* SPDX-License-Identifier: Apache-2.0
 * `train`: epochs of shuffled batches, validation after each, weights written back into the model. An interrupt or a
 * hang-up ends after the running step and still saves. A step that fails ends training at once; the weights of the
 * steps before it are saved beside the output then. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/output_model.h"
#include "cli/job/ranks.h"
#include "cli/job/session_options.h"
#include "cli/metrics/metrics.h"
#include "cli/pages/show.h"
#include "cli/pages/trained_line.h"
#include "cli/say/rank.h"
#include "cli/say/signals.h"
#include "cli/train/train.h"
#include "data/watch.h"
#include "pictures/report_text.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

static int check_adapter_out(const cli_options *o, const char *out)
{
    char *path = NULL;
    int status = cli_file_check(o, "--adapter-out", o->adapter_out, &path);
    if (status == CLI_OK && strcmp(path, out) == 0)
        status = cli_usage(o, "--adapter-out %s: is where the model goes (-o)", o->adapter_out);
    free(path);
    return status;
}

static int check_usage(const cli_options *o, char **out, cli_log **log)
{
    if (o->loss == INV_LOSS_NONE) return cli_usage(o, "`train` wants --loss KIND");
    if (o->epochs && o->steps) return cli_usage(o, "--epochs and --steps exclude each other");
    if (o->shuffle && o->no_shuffle) return cli_usage(o, "--shuffle and --no-shuffle exclude each other");
    if (o->val_split > 0 && o->val_data.n) return cli_usage(o, "--val-split and --val-data exclude each other");
    if (cli_ranks() > 1 && o->lr_find)
        return cli_usage(o, "--lr-find is for one process, and %d were started", cli_ranks());
    if (o->dry_run) return CLI_OK;                     /* nothing is written */
    if (cli_rank() > 0) return cli_log_create(o, log); /* all else is by another */
    if (o->lr_find) return cli_file_check(o, "--lr-find", o->lr_find, out);
    int status = cli_out_check(o, out);
    if (status == CLI_OK && o->adapter_out) status = check_adapter_out(o, *out);
    return status == CLI_OK ? cli_log_create(o, log) : status;
}

/* How many rows a batch of a rank has, and the last ones of all ranks. Where --batch does not say it, a rank has no
 * more than the even share of all rows. */
static int share_rows(cli_training *t)
{
    const cli_options *o = t->job.o;
    const int64_t rows = t->data.nrows, ranks = cli_ranks(), even = (rows + ranks - 1) / ranks;
    if (t->data.stacked && ranks > 1)
        return cli_usage(o, "--stacked is for one process, and %d were started", cli_ranks());
    t->batch = cli_batch_rows(&t->job, rows);
    if (o->batch <= 0 && cli_fixed_batch(&t->job) < 1 && t->batch > even) t->batch = even;
    if (t->batch > rows)
        return cli_fail("the data has %lld rows, but the model's batch is fixed at %lld", (long long)rows,
                        (long long)t->batch);
    t->rest = rows % (t->batch * ranks);
    if (o->drop_last) t->rest -= t->rest % t->batch;
    return CLI_OK;
}

/* What ranks count steps, draw and update by: where one has others, they part without a word. */
static int compare_ranks(const cli_training *t)
{
    static const char *const names[] = {"rows of data:", "rows of validation:"};
    const double mine[] = {(double)t->data.nrows, t->validates ? (double)t->held_out.nrows : 0};
    const int status = cli_ranks_same(&t->job, names, mine, sizeof mine / sizeof *mine);
    return status == CLI_OK ? cli_ranks_same_options(&t->job) : status;
}

static int open_data(cli_training *t)
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
    status = share_rows(t);
    if (status == CLI_OK) status = compare_ranks(t);
    if (status != CLI_OK) return status;
    if (t->validates) {
        int64_t held = t->held_out.nrows;
        t->held_batch = t->batch <= held ? t->batch : held;
        t->held_rest = held % t->held_batch;
        status = cli_data_reserve(&t->held_out, t->held_batch);
    }
    status = cli_trained_on_write(&t->data);
    if (status != CLI_OK) return status;
    t->data.ahead = !cli_on_host(t->job.o);
    return status == CLI_OK ? cli_data_reserve(&t->data, t->batch) : status;
}

/* Entries that are held out have the shapes of those that are trained on; the library wants to hear of a batch. */
static int64_t rows_as_planned(const inv_session_options *so)
{
    const inv_array *a = so->target && so->target->rank > 0 ? so->target : so->inputs;
    return a->rank > 0 && a->dims[0] > 0 ? a->dims[0] : 1;
}

/* A model whose batch is fixed may refuse smaller ones. Then the last rows of the order are left out: with
 * shuffling, others in each epoch. All ranks plan for the last batch, so that all find that out. */
static inv_status create_session(cli_training *t, inv_session_options *so)
{
    cli_job *job = &t->job;
    const int64_t last = t->rest % t->batch;
    so->tail_batch = last;
    so->eval_batch = job->o->stacked && t->validates ? rows_as_planned(so) : t->held_batch;
    so->eval_tail = t->held_rest;
    inv_status s = cli_data_session(job, &t->data, so);
    if (s != INV_E_SHAPE || cli_fixed_batch(job) != t->batch || (last == 0 && t->held_rest == 0)) return s;
    if (t->validates && t->held_batch != t->batch) return s;
    so->tail_batch = so->eval_tail = 0;
    t->rest -= last; /* an epoch may have a step less then */
    (void)cli_train_stages(t, so);
    t->rest += last;
    inv_status again = cli_data_session(job, &t->data, so);
    if (again != INV_OK) return again;
    if (last)
        cli_note("the model's batch is fixed at %lld: %lld of the rows are left out of each epoch", (long long)t->batch,
                 (long long)last);
    if (t->held_rest)
        cli_note("the model's batch is fixed at %lld: the last rows (%lld) are left out of validation",
                 (long long)t->batch, (long long)t->held_rest);
    t->rest -= last;
    t->held_rest = 0;
    return INV_OK;
}

/* On what, and in how much memory; what the planner has to say of it is for those who ask. */
static void say_run(cli_training *t, const json_t *report)
{
    const cli_options *o = t->job.o;
    const double store = pic_number(report, "store_peak_bytes");
    char beside[64] = "";
    if (o->memory != INV_MEMORY_STORE && store > 0)
        snprintf(beside, sizeof beside, " (storing all: %s)", pic_bytes(store));
    char ranks[32] = "";
    if (cli_ranks() > 1) snprintf(ranks, sizeof ranks, " on each of %d ranks", cli_ranks());
    cli_say("%lld row%s, batch %lld%s, %lld step%s; planned peak %s%s", (long long)t->data.nrows,
            t->data.nrows == 1 ? "" : "s", (long long)t->batch, ranks, (long long)t->total, t->total == 1 ? "" : "s",
            pic_bytes(pic_number(report, "planned_peak_bytes")), beside);
    const double all = pic_number(report, "process_bytes");
    t->mapped = pic_number(report, "mapped_bytes");
    if (all > 0)
        cli_say("the process takes about %s (%s for program and libraries)", pic_bytes(all),
                pic_bytes(pic_number(report, "beside_bytes")));
    if (o->verbose) cli_say("cost over storing everything: %s", cli_overhead(report));
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
        const bool single = strcmp(pic_string(entry, "why"), "a single number") == 0;
        const char **name = single ? &number : &first;
        if (!*name) *name = pic_string(entry, "name");
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

/* The session; for a run that goes on with the plan and the state of its checkpoint. */
static int open_session(cli_training *t)
{
    cli_job *job = &t->job;
    inv_session_options so;
    cli_hold hold;
    int status = cli_session_options(job, INV_FOR_TRAIN, &so, &hold);
    so.may_commit = may_commit;
    so.world = job->world;
    so.grad_norm = cli_log_wanted(job->o) && !job->o->early_update; /* there gradients are never all at hand */
    if (status == CLI_OK) {
        if (!so.plan) so.plan = t->plan;
        status = cli_train_stages(t, &so);
    }
    if (status == CLI_OK) {
        inv_status s = create_session(t, &so);
        if (s == INV_E_ARG && so.plan && so.plan == t->plan) {
            char *why = strdup(inv_context_message(job->ctx));
            so.plan = NULL;
            s = create_session(t, &so);
            if (s == INV_OK) /* else it was not the plan */
                cli_note("the checkpoint's plan does not fit these options, so the last digits may differ from an "
                         "uninterrupted run: %s",
                         why ? why : "out of memory");
            free(why);
        }
        if (s == INV_E_RANKS) cli_ranks_known();
        if (s != INV_OK) status = cli_library_failed(job, s);
    }
    if (status == CLI_OK) status = cli_checkpoint_load(t);
    for (size_t i = 0; status == CLI_OK && t->resumed && i < so.ngroups; i++) { /* as the options have them now */
        const inv_status s = inv_session_set_group_lr(job->session, i, so.groups[i].lr);
        if (s != INV_OK) status = cli_library_failed(job, s);
    }
    cli_hold_fini(&hold);
    return status;
}

static int count_steps(cli_training *t)
{
    const cli_options *o = t->job.o;
    t->batches = cli_train_batches(t);
    const int64_t steps = (t->batches + t->accumulate - 1) / t->accumulate;
    t->total = o->steps ? o->steps : o->lr_find ? 100 : (o->epochs ? o->epochs : 1) * steps;
    t->epochs = (t->total + steps - 1) / steps;
    int status = cli_data_check_epochs(&t->data, t->epochs, t->resumed);
    if (status == CLI_OK) status = cli_data_check_epochs(&t->held_out, t->epochs, t->resumed);
    if (status == CLI_OK) status = cli_average_check(o, t->total);
    return status == CLI_OK ? cli_schedule_options(o, t->total, &t->schedule) : status;
}

static int begin_log(cli_training *t, const json_t *report)
{
    const cli_job *job = &t->job;
    json_t *about = cli_run_about(job, report, t->data.nrows, t->validates ? t->held_out.nrows : 0, cli_train_rows(t));
    const cli_run_facts facts = {.about = about,
                                 .metrics = job->metrics ? job->metrics->value : NULL,
                                 .nmetrics = job->metrics ? job->metrics->nvalue : 0,
                                 .total = t->total,
                                 .after = t->resumed ? t->at.done : -1,
                                 .validated = t->at.validated == t->at.done};
    const int status = cli_log_begin(t->log, &facts);
    json_decref(about);
    return status;
}

/* Validation measures what the best model is to be found by. */
static int check_best(const cli_job *job)
{
    const char *best = job->o->best;
    bool there = !best || !strcmp(best, "loss");
    for (size_t i = 0; !there && i < job->metrics->nvalue; i++) there = !strcmp(job->metrics->value[i].name, best);
    return there ? CLI_OK
                 : cli_usage(job->o, "--best %s: validation does not measure that; --metric %s does", best, best);
}

static int start(cli_training *t)
{
    cli_job *job = &t->job;
    const int64_t own = cli_rank() * t->batch; /* where a rank's first rows are, if there are so many */
    if (cli_data_batch(&t->data, own + t->batch <= t->data.nrows ? own : 0, t->batch) != CLI_OK) return CLI_FAILED;
    memcpy(job->arrays, t->data.arrays, job->ninputs * sizeof *job->arrays);
    job->target = t->data.target_array;
    job->has_target = t->data.has_target;
    int status = t->validates ? cli_metrics_create(job) : CLI_OK;
    if (status == CLI_OK) status = check_best(job);
    if (status == CLI_OK && !job->o->dry_run) status = cli_checkpoint_open(t);
    if (status == CLI_OK) status = open_session(t);
    if (status == CLI_OK) status = count_steps(t);
    if (status == CLI_OK && !job->o->dry_run) status = cli_checkpoint_keep_options(t);
    if (status != CLI_OK) return status;
    json_t *report = cli_report(job);
    if (!report) return CLI_FAILED;
    cli_say_head(job);
    cli_say_trained(report);
    say_run(t, report);
    note_constants(job->inspection);
    cli_progress_start(&t->progress, t->total, t->epochs);
    status = begin_log(t, report);
    drop_report(report);
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

/* As a shell counts a program that a signal has ended, though the file is written. What a rank could not write, rank 0
 * fails by, who has written what could be; the others wait for it. */
static int end_status(const cli_training *t, int status)
{
    if (status == CLI_OK && t->failed) return cli_rank() == 0 ? CLI_FAILED : CLI_OK;
    if (status == CLI_OK && cli_train_signal()) return 128 + cli_train_signal();
    return status == CLI_OK && t->unsaved ? cli_fail("the newest checkpoint could not be written") : status;
}

/* `files`: that were written, or are read beside them. */
static int report_end(const cli_training *t, double seconds, json_t *files)
{
    const cli_options *o = t->job.o;
    int status = CLI_OK;
    json_t *report = cli_report(&t->job);
    if (!report) return CLI_FAILED;
    const json_t *last = json_array_get(t->epoch_list, json_array_size(t->epoch_list) - 1), *v;
    if ((v = json_object_get(last, "train_loss"))) json_object_set(report, "loss", (json_t *)(uintptr_t)v);
    const char *key;
    /* of the weights that are saved */
    json_object_foreach((json_t *)(uintptr_t)(t->best ? t->best : last), key, v) if (strncmp(key, "val_", 4) == 0)
        json_object_set(report, key, (json_t *)(uintptr_t)v);
    cli_data_classes_json(report, &t->data);
    json_object_set_new(report, "last_step_loss", cli_json_real(t->last_loss));
    json_object_set_new(report, "steps_done", json_integer(t->at.done));
    json_object_set_new(report, "interrupted", json_boolean(cli_train_signal() != 0));
    json_object_set_new(report, "seconds", cli_json_real(seconds));
    json_object_set_new(report, "private_bytes", t->took > 0 ? json_integer((json_int_t)t->took) : json_null());
    json_object_set_new(report, "out", json_string(o->out));
    json_object_set(report, "files", files);
    json_object_set(report, "epochs", t->epoch_list);
    json_object_set(report, "steps", t->step_list);
    if (t->at.best_step) {
        json_object_set_new(report, "best_step", json_integer(t->at.best_step));
        json_object_set_new(report, "best", cli_json_real(t->at.best));
    }
    if (t->at.done > (int64_t)json_array_size(t->step_list))
        json_object_set_new(report, "steps_truncated", json_true());
    if (o->json) status = cli_print_json(report);
    else show_end(o, report);
    json_decref(report);
    return status;
}

/* "the best weights, of step 36 (validation loss 1.0785, f1 0.27621)," */
static void put_best(const cli_training *t, char *text, size_t room)
{
    const char *key;
    json_t *v;
    bool any = false;
    FILE *f = fmemopen(text, room, "w");
    if (!f) return;
    fprintf(f, "the best weights, of step %lld (validation", (long long)t->at.best_step);
    json_object_foreach(t->best, key, v)
    {
        if (json_is_array(v)) continue;
        fprintf(f, "%s %s %.5g", any ? "," : "", key + strlen("val_"), pic_number(t->best, key));
        any = true;
    }
    if (!any) fprintf(f, " %s %.5g", t->job.o->best, t->at.best);
    fputs("),", f);
    fclose(f);
}

/* Of the weights that are saved. */
static void show_confusion(const cli_training *t)
{
    cli_score score = t->score;
    if (t->best) score.confusion = json_object_get(t->best, "val_confusion");
    json_t *names = score.class_names ? NULL : cli_data_class_names(&t->data);
    if (names) score.class_names = names;
    if (score.confusion) cli_show_confusion(&score);
    json_decref(names);
}

/* Where training ended early, or a validation before the average began was the best one. */
static void warn_average(const cli_training *t)
{
    const cli_options *o = t->job.o;
    const int64_t step = o->best && t->at.best_step > 0 ? t->at.best_step : t->at.done;
    if (o->average && !cli_average_of_several(o, step))
        cli_warn("--average %s: there was no mean after step %lld, so %s has the weights of that single step",
                 o->average, (long long)step, o->out);
}

/* How far it came and why no further, and where the weights are. */
static void say_end(const cli_training *t, double seconds)
{
    const char *out = t->job.o->out;
    const bool best = t->job.o->best && t->at.best_step > 0;
    char memory[128] = "", where[1024] = "weights", steps[128];
    if (t->took > 0)
        snprintf(memory, sizeof memory, ", %s of memory%s%s%s", pic_bytes(t->took), t->mapped > 0 ? " and " : "",
                 t->mapped > 0 ? pic_bytes(t->mapped) : "", t->mapped > 0 ? " of the model's file" : "");
    if (best) put_best(t, where, sizeof where);
    else if (t->job.o->average && cli_average_of_several(t->job.o, t->at.done))
        snprintf(where, sizeof where, "averages of weights");
    if ((cli_train_signal() || t->stopped) && t->at.done < t->total)
        snprintf(steps, sizeof steps, "stopped after step %lld of %lld%s%s%s", (long long)t->at.done,
                 (long long)t->total, t->stopped ? " (" : "", t->stopped ? t->stopped : "", t->stopped ? ")" : "");
    else snprintf(steps, sizeof steps, "%lld step%s", (long long)t->at.done, t->at.done == 1 ? "" : "s");
    cli_say("%s in %.1f s%s; %s saved to %s", steps, seconds, memory, where, out);
}

/* The loss went by the rules; the file has the outputs that it had. */
static void warn_stale(const cli_training *t)
{
    const cli_options *o = t->job.o;
    const json_t *name;
    size_t i;
    if (o->loss != INV_LOSS_NLL || !o->logdet) return;
    json_t *report = cli_report(&t->job);
    json_array_foreach(json_object_get(report, "stale_outputs"), i, name) cli_warn(
        "output '%s' of %s is not the log-determinant of the trained weights, so its users get a wrong likelihood. "
        "Use `eval --logdet rules`, or the negative from `invonnx rewrite %s --inverse-out INVERSE.onnx "
        "--with-logdet NAME`",
        json_string_value(name), o->out, o->out);
    json_decref(report);
}

static int save_model(cli_training *t)
{
    const cli_options *o = t->job.o;
    if (o->best && t->at.best_step > 0) return CLI_OK; /* it is there */
    const inv_status s = o->average ? inv_session_use_average(t->job.session, true) : INV_OK;
    return s == INV_OK ? cli_out_save(&t->job, t->out) : cli_library_failed(&t->job, s);
}

static int finish_training(cli_training *t)
{
    const cli_options *o = t->job.o;
    int status = save_model(t);
    if (status != CLI_OK) return status;
    cli_see_memory(t);
    const double seconds = cli_now() - t->began;
    say_end(t, seconds);
    warn_average(t);
    warn_stale(t);
    if (o->verbose) cli_data_say_waits(&t->data);
    if (!o->json && !o->quiet) show_confusion(t);
    const bool asked = o->json || ((o->verbose || o->profile) && !o->quiet);
    json_t *files = cli_rank() == 0 ? cli_out_files(&t->job, o->out) : json_array();
    if (asked) status = report_end(t, seconds, files);
    json_decref(files);
    return end_status(t, status);
}

/* All steps. One that fails ends the training; the weights of those before it are saved elsewhere then. */
static int run_steps(cli_training *t)
{
    const int status = cli_train_run(t);
    /* With early updates the step that failed may have changed some weights; then the message has said so. */
    if (status != CLI_OK && t->at.done)
        cli_out_rescue(&t->job, t->out, t->job.o->early_update ? "" : ", as they were before that,");
    return status;
}

static int train(cli_training *t)
{
    const int status = run_steps(t);
    return status == CLI_OK ? finish_training(t) : status;
}

static int find_rate(cli_training *t) { return end_status(t, cli_lr_find(t)); }

/* All that `inspect` has found, in one line: kinds, and how many tensors or nodes each is of. */
static void say_traps(const json_t *traps)
{
    const json_t *trap, *of;
    const size_t n = json_array_size(traps);
    char *text = NULL;
    size_t i, length = 0;
    FILE *f = n ? open_memstream(&text, &length) : NULL;
    if (!f) return;
    json_array_foreach(traps, i, trap)
    {
        if (!(of = json_object_get(trap, "nodes"))) of = json_object_get(trap, "initializers");
        if (!of) of = json_object_get(trap, "parameters");
        const char *kind = pic_string(trap, "kind"), *one = pic_string(trap, "initializer");
        fprintf(f, "%s%s", i ? ", " : "", kind);
        if (json_array_size(of)) fprintf(f, " (%zu)", json_array_size(of));
        else if (*one) fprintf(f, " ('%s')", one);
    }
    fclose(f);
    cli_say("%zu trap%s of the export, which `inspect` explains: %s", n, n > 1 ? "s" : "", text);
    free(text);
}

/* A file may say itself how it is to be trained; that is not what happens. Nor is what is rounded derived, nor what was
 * detached left alone. */
static void note_traps(const cli_job *job)
{
    const json_t *trap;
    size_t i;
    say_traps(json_object_get(job->inspection, "traps"));
    json_array_foreach(json_object_get(job->inspection, "traps"), i, trap)
    {
        const char *kind = pic_string(trap, "kind"), *text = pic_string(trap, "text");
        if (!strcmp(kind, "training_info")) cli_note("training_info: %s", text);
        if (!strcmp(kind, "lost_detach") || (!strcmp(kind, "straight_through") && !job->o->through_quantization))
            cli_note("'%s'%s: %s", json_string_value(json_array_get(json_object_get(trap, "nodes"), 0)),
                     json_array_size(json_object_get(trap, "nodes")) > 1 ? " and others" : "", text);
    }
}

int cli_main_train(const cli_options *o)
{
    cli_training t = {.job = {.o = o},
                      .epoch_list = json_array(),
                      .step_list = json_array(),
                      .saved_step = -1,
                      .tried_step = -1,
                      .at = {.epoch = 1, .best = (double)NAN}};
    cli_train_checkpoint_signal();
    int status = check_usage(o, &t.out, &t.log);
    if (status == CLI_OK) status = cli_train_options(&t);
    if (status == CLI_OK) status = cli_open(&t.job, o);
    if (status == CLI_OK) status = cli_ranks_join(&t.job);
    if (status == CLI_OK) note_traps(&t.job);
    if (status == CLI_OK) status = open_data(&t);
    if (status == CLI_OK) status = start(&t);
    if (status == CLI_OK && !o->dry_run) status = o->lr_find ? find_rate(&t) : train(&t);
    const int logged = cli_log_end(t.log);
    if (status == CLI_OK) status = logged;
    cli_data_close(&t.held_out);
    cli_data_close(&t.data);
    inv_session_destroy(t.job.session);
    t.job.session = NULL;
    cli_ranks_leave(&t.job, status);
    cli_metrics_destroy(t.job.metrics);
    cli_close(&t.job);
    json_decref(t.epoch_list);
    json_decref(t.step_list);
    json_decref(t.best);
    free(t.stages);
    free(t.plan);
    free(t.trouble);
    free(t.out);
    return status;
}
