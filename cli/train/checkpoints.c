/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints: a folder with files step-NNNNNNNNN.safetensors, each all that a run is after that step: the session's
 * state and, as its note, the place in the data and what has been counted. A file appears whole or not at all, so a run
 * that is killed at any moment loses no more than the steps since the newest. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/files/lock.h"
#include "cli/files/write_files.h"
#include "cli/job/ranks.h"
#include "cli/say/rank.h"
#include "cli/train/train.h"
#include "pictures/report_text.h"

#define NAME_FORMAT "step-%09lld.safetensors"
enum { ROOM = 48 /* bytes for a file's name */ };

/* --- the folder --- */

int64_t cli_checkpoint_steps(const char *dir, int64_t **steps)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;
    int64_t n = 0;
    *steps = NULL;
    while (d && (entry = readdir(d))) {
        char name[ROOM];
        if (strncmp(entry->d_name, "step-", 5) != 0) continue;
        const long long step = strtoll(entry->d_name + 5, NULL, 10);
        snprintf(name, sizeof name, NAME_FORMAT, step);
        if (strcmp(name, entry->d_name) != 0) continue; /* a file of somebody else's */
        int64_t *grown = realloc(*steps, (size_t)(n + 1) * sizeof *grown);
        if (!grown) break;
        *steps = grown;
        (*steps)[n++] = step;
    }
    if (d) closedir(d);
    if (n) qsort(*steps, (size_t)n, sizeof **steps, cli_by_number);
    return d ? n : -1;
}

/* What a run has left that was killed while it wrote. */
static void drop_half_written(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;
    while (d && (entry = readdir(d)))
        if ((strncmp(entry->d_name, "step-", 5) == 0 && strstr(entry->d_name, ".safetensors.tmp-")) ||
            strncmp(entry->d_name, "options.tmp", 11) == 0)
            (void)unlinkat(dirfd(d), entry->d_name, 0);
    if (d) closedir(d);
}

char *cli_checkpoint_path(const char *dir, int64_t step)
{
    char *path = malloc(strlen(dir) + ROOM);
    if (path) sprintf(path, "%s/" NAME_FORMAT, dir, (long long)step);
    return path;
}

/* Of those up to the one that was written or read last. Files of later steps are such as this run could not read. */
static void drop_old(const cli_training *t)
{
    const char *dir = t->job.o->checkpoint;
    int64_t *steps;
    int64_t n = cli_checkpoint_steps(dir, &steps);
    while (n > 0 && steps[n - 1] > t->saved_step) n--;
    for (int64_t i = 0; i + t->kept < n && t->kept > 0; i++) {
        char *path = cli_checkpoint_path(dir, steps[i]);
        if (path) unlink(path);
        free(path);
    }
    free(steps);
}

/* --- the note --- */

/* What decides which rows a step gets: a run that goes on has to have the same. Ranks and --accumulate share a step out
 * each in its way, and may be others then; a step that has room for more rows than there are is one of all of them. */
static json_t *rows_of_steps(const cli_training *t)
{
    const cli_options *o = t->job.o;
    const int64_t rows = t->data.nrows, room = cli_train_rows(t) * t->accumulate, step = room < rows ? room : rows,
                  left_out = o->drop_last ? rows % t->batch : 0;
    return json_pack("{s:I, s:I, s:I, s:I, s:b}", "rows", (json_int_t)rows, "rows of a step", (json_int_t)step,
                     "rows left out", (json_int_t)left_out, "seed", (json_int_t)o->seed, "no-shuffle", o->no_shuffle);
}

/* How many rows of its epoch the run has had. */
static int64_t rows_had(const cli_training *t)
{
    const int64_t each = cli_train_rows(t), had = t->at.batch * each, all = t->data.nrows / each * each + t->rest;
    return had < all ? had : all;
}

static char *note_of(const cli_training *t)
{
    const cli_place *at = &t->at;
    json_t *best = isnan(at->best) ? json_null() : json_real(at->best);
    json_t *note = json_pack("{s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:s?, s:o, s:I, s:I, s:I, s:O?}",
                             "rows_of_steps", rows_of_steps(t), "done", (json_int_t)at->done, "samples",
                             (json_int_t)at->samples, "epoch", (json_int_t)at->epoch, "row", (json_int_t)rows_had(t),
                             "sum", at->sum, "weight", at->weight, "seconds", at->seconds + cli_now() - t->began,
                             "best_by", t->job.o->best, "best", best, "best_step", (json_int_t)at->best_step, "worse",
                             (json_int_t)at->worse, "validated", (json_int_t)at->validated, "best_scores", t->best);
    char *text = note ? json_dumps(note, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(note);
    return text;
}

/* Both as the options have them. */
static int check_rows(const cli_training *t, const json_t *was, const char *path)
{
    json_t *is = rows_of_steps(t);
    const char *key;
    json_t *value;
    int status = is ? CLI_OK : cli_fail("out of memory");
    json_object_foreach(is, key, value)
    {
        const json_t *former = json_object_get(was, key);
        if (status != CLI_OK || json_equal(value, former)) continue;
        char *a = json_dumps(former, JSON_ENCODE_ANY), *b = json_dumps(value, JSON_ENCODE_ANY);
        status =
            cli_fail("%s: its run used other rows: %s %s there, %s here. Give the same data and options (rows of a "
                     "step: --batch x --accumulate x ranks), or train from its model",
                     path, key, a ? a : "missing", b ? b : "?");
        free(a);
        free(b);
    }
    json_decref(is);
    return status;
}

static int64_t whole(const json_t *note, const char *key) { return json_integer_value(json_object_get(note, key)); }

/* The best model so far is OUT, if the run has kept one by this metric, and nobody has removed it. */
static void look_for_best(cli_training *t, const json_t *note)
{
    const char *by = t->job.o->best, *was = json_string_value(json_object_get(note, "best_by"));
    const bool same = by ? was && !strcmp(by, was) : !was;
    if (t->at.best_step == 0 || (same && (!by || access(t->out, F_OK) == 0))) return;
    if (by)
        cli_note("--best %s: %s has no best model of this run yet. It will have the best one from now on", by, t->out);
    t->at.best = (double)NAN;
    t->at.best_step = t->at.worse = 0;
    json_decref(t->best);
    t->best = NULL;
}

static int read_note(cli_training *t, const char *text, const char *path)
{
    json_t *note = json_loads(text, 0, NULL);
    const json_t *best = json_object_get(note, "best");
    const bool says = json_is_integer(json_object_get(note, "row"));
    if (!says || whole(note, "epoch") < 1 || whole(note, "done") < 0 || whole(note, "row") < 0) {
        json_decref(note);
        return cli_fail("%s: does not record how far its run was. Another version of invonnx wrote it, or not "
                        "`train`. Train from its model",
                        path);
    }
    const int64_t row = whole(note, "row");
    t->at = (cli_place){.done = whole(note, "done"),
                        .samples = whole(note, "samples"),
                        .epoch = whole(note, "epoch"),
                        .batch = row ? (row - 1) / cli_train_rows(t) + 1 : 0,
                        .sum = pic_number(note, "sum"),
                        .weight = pic_number(note, "weight"),
                        .seconds = pic_number(note, "seconds"),
                        .best = json_is_number(best) ? json_number_value(best) : (double)NAN,
                        .best_step = whole(note, "best_step"),
                        .worse = whole(note, "worse"),
                        .validated = whole(note, "validated")};
    t->best = json_incref(json_object_get(note, "best_scores"));
    if (!json_is_object(t->best)) json_decref(t->best), t->best = NULL;
    look_for_best(t, note);
    const int status = check_rows(t, json_object_get(note, "rows_of_steps"), path);
    json_decref(note);
    return status;
}

/* --- going on --- */

enum { WHY = 512 /* bytes of a message that ranks tell each other */ };

/* Why the checkpoint is not whole, on any of the ranks, each of which reads a file of its own; "": it is. */
static int ask_ranks(const cli_training *t, const char mine[WHY], char why[WHY])
{
    void *all = NULL;
    memcpy(why, mine, WHY);
    if (cli_ranks() < 2) return CLI_OK;
    const int status = cli_ranks_gather(&t->job, "the question whether a checkpoint is whole", mine, WHY, &all);
    for (int r = 1; r < cli_ranks() && status == CLI_OK && !*why; r++) {
        const char *other = (const char *)all + (size_t)r * WHY;
        if (*other) snprintf(why, WHY, "rank %d: %.*s", r, WHY - 32, other);
    }
    free(all);
    return status;
}

/* Reads it, if it is whole on all ranks; else says why it is not. */
static int try_one(cli_training *t, int64_t step, bool *taken)
{
    char *path = cli_checkpoint_path(t->job.o->checkpoint, step), *note = NULL, *plan = NULL, mine[WHY] = "", why[WHY];
    if (!path) return cli_fail("out of memory");
    const inv_status s = inv_state_read(t->job.ctx, path, &note, &plan);
    if (s == INV_E_NOMEM) {
        free(path);
        return cli_library_failed(&t->job, s);
    }
    if (s != INV_OK) {
        const char *message = inv_context_message(t->job.ctx);
        snprintf(mine, sizeof mine, "%s", *message ? message : inv_status_text(s));
    }
    int status = ask_ranks(t, mine, why);
    *taken = status == CLI_OK && !*why;
    if (status == CLI_OK && *why) cli_warn("%s; an older checkpoint is looked for", why);
    if (*taken) {
        if (cli_rank() == 0) status = read_note(t, note, path);
        t->resumed = true;
        t->saved_step = t->tried_step = step;
        if (*plan) t->plan = strdup(plan);
    }
    inv_free(t->job.ctx, note);
    inv_free(t->job.ctx, plan);
    free(path);
    return status;
}

static int none_is_whole(const cli_training *t, const int64_t *steps, int64_t n)
{
    char *names = NULL;
    size_t length;
    FILE *f = open_memstream(&names, &length);
    for (int64_t i = n; f && i-- > 0;) fprintf(f, "%s" NAME_FORMAT, i + 1 < n ? ", " : "", (long long)steps[i]);
    if (f) fclose(f);
    const int status = cli_fail(
        "--resume: none of the %lld checkpoints in %s is complete%s (%s). Copy a complete one into it, or start a "
        "new run in another folder",
        (long long)n, t->job.o->checkpoint, cli_ranks() > 1 ? " on all ranks" : "", names ? names : "all are damaged");
    free(names);
    return status;
}

/* The newest that is whole, of those that rank 0 has found; what is not is said. */
static int find_newest(cli_training *t, const int64_t *steps, int64_t n)
{
    bool taken = false;
    int status = CLI_OK;
    for (int64_t i = n; status == CLI_OK && !taken;) {
        int64_t step = i-- > 0 ? steps[i] : -1;
        status = cli_ranks_follow(&t->job, "the choice of a checkpoint", &step, sizeof step);
        if (step < 0) break;
        if (status == CLI_OK) status = try_one(t, step, &taken);
    }
    return status == CLI_OK && !taken && n > 0 ? none_is_whole(t, steps, n) : status;
}

/* The folder is there, and no other run's. Its checkpoints' steps; the caller frees them. */
static int open_folder(const cli_training *t, int64_t **steps, int64_t *n)
{
    const cli_options *o = t->job.o;
    const char *dir = o->checkpoint;
    bool made;
    int status = cli_make_dir(dir, &made);
    char *place = status == CLI_OK ? malloc(strlen(dir) + sizeof "/run") : NULL;
    if (status == CLI_OK && !place) status = cli_fail("out of memory");
    if (status == CLI_OK) {
        sprintf(place, "%s/run", dir);
        status = access(dir, W_OK | X_OK) == 0
                     ? cli_lock("--checkpoint", dir, place)
                     : cli_fail("--checkpoint %s: cannot be written: %s", dir, strerror(errno));
    }
    free(place);
    if (status != CLI_OK) return status;
    drop_half_written(dir);
    *n = cli_checkpoint_steps(dir, steps);
    if (*n < 0) return cli_fail("--checkpoint %s: cannot be read: %s", dir, strerror(errno));
    if (*n > 0 && !o->resume)
        return cli_fail("--checkpoint %s: has checkpoints of another run. Continue that run with --resume, or name "
                        "another folder",
                        dir);
    if (*n == 0 && o->resume) cli_note("--resume: no checkpoint is in %s yet; the run begins", dir);
    return CLI_OK;
}

int cli_checkpoint_open(cli_training *t)
{
    int64_t *steps = NULL, n = 0;
    if (!t->job.o->checkpoint) return CLI_OK;
    int status = cli_rank() == 0 ? open_folder(t, &steps, &n) : CLI_OK;
    if (status == CLI_OK) status = find_newest(t, steps, n);
    if (status == CLI_OK) status = cli_ranks_follow(&t->job, "the place to resume", &t->at, sizeof t->at);
    free(steps);
    return status;
}

int cli_checkpoint_load(cli_training *t)
{
    if (!t->resumed) return CLI_OK;
    char *path = cli_checkpoint_path(t->job.o->checkpoint, t->saved_step);
    if (!path) return cli_fail("out of memory");
    const inv_status s = inv_session_load_state(t->job.session, path, NULL);
    if (s == INV_E_RANKS) cli_ranks_known();
    if (s == INV_OK) cli_say("resumes from %s", path);
    if (s == INV_OK && cli_rank() == 0) drop_old(t); /* a run that was killed may not have come to it */
    free(path);
    return s == INV_OK ? CLI_OK : cli_library_failed(&t->job, s);
}

/* --- keeping --- */

static const char options_head[] =
    "# options of `invonnx train`; to resume: invonnx train --options THIS_FILE --resume\n";

/* Whether nobody else has written the file. */
static bool is_ours(const char *path)
{
    char head[sizeof options_head] = "";
    FILE *f = fopen(path, "r");
    if (!f) return true;
    const bool same = fgets(head, sizeof head, f) && strcmp(head, options_head) == 0;
    fclose(f);
    return same;
}

int cli_checkpoint_keep_options(const cli_training *t)
{
    const cli_options *o = t->job.o;
    cli_file file;
    if (!o->checkpoint || cli_rank() > 0) return CLI_OK;
    char *path = malloc(strlen(o->checkpoint) + sizeof "/options");
    if (!path) return cli_fail("out of memory");
    sprintf(path, "%s/options", o->checkpoint);
    int status = is_ours(path) ? cli_file_open(&file, path)
                               : cli_fail("--checkpoint %s: its file `options`, where a run's options go, was not "
                                          "written by a run. Move that file, or name another folder",
                                          o->checkpoint);
    if (status == CLI_OK) {
        fputs(options_head, file.f);
        cli_options_put(o, file.f, "\n");
        fputc('\n', file.f);
        status = cli_file_close(&file, true);
    }
    free(path);
    return status;
}

static bool is_due(const cli_training *t)
{
    const cli_period *p = &t->every;
    if (p->steps > 0 && t->at.done % p->steps == 0) return true;
    return p->seconds > 0 && cli_now() - t->last_saved >= p->seconds;
}

int cli_checkpoint_save(cli_training *t, bool now)
{
    const char *dir = t->job.o->checkpoint;
    const bool together = t->job.shard != INV_SHARD_NONE && cli_ranks() > 1;
    if (!dir || (cli_rank() > 0 && !together)) return CLI_OK;
    bool due = t->tried_step != t->at.done && (now || is_due(t));
    if (together) {
        const int status = cli_ranks_follow(&t->job, "the question whether to save", &due, sizeof due);
        if (status != CLI_OK) return status;
    }
    if (!due) return CLI_OK;
    t->tried_step = t->at.done;
    char *path = cli_checkpoint_path(dir, t->at.done), *note = note_of(t);
    cli_log_flush(t->log);
    const inv_status s = path && note ? inv_session_save_state(t->job.session, path, note) : INV_E_NOMEM;
    t->last_saved = cli_now();
    t->unsaved = s != INV_OK;
    if (s == INV_E_RANKS) cli_ranks_known();
    if (s == INV_OK) {
        t->saved_step = t->at.done;
        if (cli_rank() == 0) drop_old(t);
    } else if (s != INV_E_RANKS) {
        cli_ranks_trouble(&t->trouble, "", "step %lld: no checkpoint: %s", (long long)t->at.done,
                          path && note ? inv_context_message(t->job.ctx) : "out of memory");
    }
    free(path);
    free(note);
    return s == INV_E_RANKS ? cli_library_failed(&t->job, s) : CLI_OK;
}
