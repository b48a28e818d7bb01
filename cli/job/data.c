/* SPDX-License-Identifier: Apache-2.0
 * Rows for training and evaluation: sources (data/) put together with the model's inputs and the loss's target, and
 * batches of them as the library takes them. */
#include "cli/job/data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/job/feed.h"
#include "cli/job/labels.h"
#include "cli/say/progress_bar.h"
#include "cli/say/rank.h"

npy_array cli_source_shape(const data_source *s, int field)
{
    const data_field *f = &s->field[field];
    npy_array a = {.dtype = f->dtype, .rank = f->rank + !s->single, .data = f->base};
    a.dims[0] = s->nrows;
    memcpy(a.dims + !s->single, f->dims, (size_t)f->rank * sizeof *f->dims);
    a.nbytes = (size_t)s->nrows * f->nbytes;
    return a;
}

/* What the model sees of a file: all axes, or with --stacked those behind the first, which counts entries. */
static npy_array entry_of(const cli_job *job, const npy_array *a)
{
    npy_array entry = *a;
    if (!job->o->stacked || a->rank == 0) return entry;
    entry.rank--;
    memmove(entry.dims, entry.dims + 1, (size_t)entry.rank * sizeof *entry.dims);
    return entry;
}

/* What has no rows goes whole into every step: a number, and an input whose first extent is declared, and is another
 * than the batch or the batch is open, if the file is just as declared. Among stacked files, what has the model's axes
 * and none in front. */
static bool is_whole(const cli_job *job, const cli_port *port, const npy_array *a)
{
    if (job->o->stacked || a->rank == 0) return port->rank >= 0 && a->rank == port->rank;
    return port->rank > 0 && port->dims[0] >= 0 && port->dims[0] != cli_fixed_batch(job) && a->dims[0] == port->dims[0];
}

int cli_data_threads(const cli_options *o) { return o->threads ? (int)o->threads : (int)sysconf(_SC_NPROCESSORS_ONLN); }

/* Whether --augment, a list of words, has this one. */
static bool augments(const cli_options *o, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = o->augment; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && strncmp(at, word, n) == 0) return true;
    return false;
}

/* What options and the model say of an input, or of the target (port NULL). */
static data_request request_for(const cli_job *job, const cli_data *data, const cli_port *port,
                                const char *const *members, size_t nmembers)
{
    data_request q = {.members = members,
                      .nmembers = nmembers,
                      .target = !port,
                      .rank = port ? port->rank : -1,
                      .dims = port ? port->dims : NULL,
                      .dtype = port ? port->dtype : INV_DT_NONE,
                      .outputs = -1,
                      .tokens = job->o->tokens,
                      .window = job->o->window,
                      .sequential = job->o->windows == CLI_WINDOWS_SEQUENTIAL || job->o->no_shuffle,
                      .labels = job->o->loss == INV_LOSS_CROSS_ENTROPY,
                      .note = cli_note,
                      .columns = job->o->columns,
                      .target_columns = job->o->target_column,
                      .resize = job->o->resize ? job->o->resize : data->trained.resize,
                      .normalize = job->o->normalize ? job->o->normalize : data->trained.normalize,
                      .augment_crop = augments(job->o, "crop"),
                      .augment_flip = augments(job->o, "flip"),
                      .skip_bad = job->o->skip_bad,
                      .threads = cli_data_threads(job->o),
                      .classes = data->known ? data->known->classes : job->o->classes.item,
                      .nclasses = data->known ? data->known->nclasses : (int64_t)job->o->classes.n,
                      .busy = cli_busy};
    if (!q.classes && data->trained.classes) {
        q.classes = data->trained.classes;
        q.nclasses = data->trained.nclasses;
        q.classes_from = " to the model, as its file says";
    }
    const cli_port *output = cli_loss_port(job);
    q.column = output && output->rank == 2;
    if (!port) return q;
    /* tokens have a label each, pictures and lines of tables one */
    const npy_array labels = {.rank = port->rank == 2 && port->dtype != INV_F32 ? 2 : 1,
                              .dims = {0, port->rank == 2 && port->dims[1] > 0 ? port->dims[1] : q.window}};
    q.outputs = cli_classes(job, &labels);
    return q;
}

static bool open_source(const cli_job *job, const data_request *q, const char *path, data_source *s, FILE *why)
{
    if (!data_is_array(q, path) && job->o->stacked) return fputs("--stacked is for .npy and .npz files", why), false;
    return data_source_open(q, path, s, why);
}

/* Whether the model takes what the source has, and whether all of it goes into every step. */
static void look_at_input(cli_job *job, cli_data *data, size_t i, const char *path, FILE *why)
{
    const cli_port *port = &job->inputs[i];
    cli_data_part *part = &data->input[i];
    const npy_array file = cli_source_shape(&part->source, DATA_INPUT);
    data_request q = request_for(job, data, port, NULL, 0);
    part->whole = data_is_array(&q, path) && is_whole(job, port, &file);
    const npy_array fed = part->whole ? file : entry_of(job, &file);
    char *reason = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&reason, &length);
    if (f && !cli_fits(port, &fed, !job->o->stacked && !part->whole, f)) {
        fflush(f);
        fprintf(why, "input '%s', %s: %s\n", port->label, path, reason);
    } else if (f) {
        cli_note_integers(port, &file, path);
    }
    if (f) fclose(f);
    free(reason);
    data->arrays[i].name = port->name;
}

static void open_inputs(cli_job *job, cli_data *data, const char *const *files, const char *what, FILE *why)
{
    for (size_t i = 0; i < job->ninputs; i++) {
        const cli_port *port = &job->inputs[i];
        if (!files[i]) {
            fprintf(why, "no %s for input '%s'\n", what, port->label);
            continue;
        }
        const char *members[] = {port->name, "x"};
        const data_request q = request_for(job, data, port, members, 2);
        data_source *s = &data->input[i].source;
        char *reason = NULL;
        size_t length = 0;
        FILE *f = open_memstream(&reason, &length);
        const bool ok = f && open_source(job, &q, files[i], s, f);
        if (f) fclose(f);
        if (!ok) fprintf(why, "%s: %s\n", files[i], reason ? reason : "out of memory");
        free(reason);
        if (!ok) continue;
        data->input[i].path = files[i];
        look_at_input(job, data, i, files[i], why);
        if (data->input[i].whole) continue;
        if (data->order.nrows == 0) data->order.nrows = s->nrows;
        if (s->nrows != data->order.nrows)
            fprintf(why, "%s has %lld rows, %s has %lld\n", files[i], (long long)s->nrows, files[0],
                    (long long)data->order.nrows);
    }
}

/* The target comes with the rows of an input, or it is a source of its own. */
static void open_target(cli_job *job, cli_data *data, const char *const *files, const char *target, const char *what,
                        FILE *why)
{
    const char *loss = cli_choice_word(cli_losses, job->o->loss);
    if (!cli_loss_takes_target(job->o->loss)) return;
    cli_data_part *own = &data->input[data->ninputs];
    for (size_t i = 0; i < data->ninputs && !target; i++) {
        if (data->input[i].source.field[DATA_TARGET].dtype == INV_DT_NONE) continue;
        data->target_from = i;
        data->has_target = true;
        return;
    }
    const char *path = target ? target : files[0] && npz_has_suffix(files[0]) ? files[0] : NULL;
    for (size_t i = 0; i < data->ninputs; i++)
        if (!path && files[i] && !data->input[i].source.calls) return; /* it may have had one */
    if (!path) {
        const data_request q = request_for(job, data, NULL, NULL, 0);
        const bool array = !files[0] || data_is_array(&q, files[0]);
        fprintf(why, "--loss %s wants the rows' labels or values, %s FILE%s\n", loss, what,
                array ? "" : ", or --target-column NAME of a table");
        return;
    }
    static const char *const members[] = {"y", "target"};
    const data_request q = request_for(job, data, NULL, members, 2);
    own->path = path;
    if (!open_source(job, &q, path, &own->source, why)) {
        fprintf(why, " (target %s)\n", path);
    } else if (own->source.single || (data->order.nrows && own->source.nrows != data->order.nrows)) {
        fprintf(why, "%s has %lld rows, the data has %lld\n", path,
                own->source.single ? 0LL : (long long)own->source.nrows, (long long)data->order.nrows);
    } else {
        data->target_from = data->ninputs;
        data->has_target = true;
        if (data->order.nrows == 0) data->order.nrows = own->source.nrows;
    }
}

/* Whether files disagree about how many rows there are. */
static bool rows_differ(const cli_data *data)
{
    for (size_t i = 0; i <= data->ninputs; i++) {
        const cli_data_part *p = &data->input[i];
        if (p->source.calls && !p->source.single && !p->whole && p->source.nrows != data->order.nrows) return true;
    }
    return false;
}

/* The source whose labels are classes with names; NULL: none. */
static const data_source *named_classes(const cli_data *data)
{
    const data_source *s = data->has_target ? &data->input[data->target_from].source : NULL;
    return s && s->nclasses ? s : NULL;
}

static void say_classes(const cli_data *data)
{
    enum { SHOWN = 20 };
    const data_source *s = named_classes(data);
    if (!s) return;
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    if (!f) return;
    for (int64_t i = 0; i < s->nclasses && i < SHOWN; i++) fprintf(f, "%s%s", i ? ", " : "", s->classes[i]);
    if (s->nclasses > SHOWN) fprintf(f, " and %lld more", (long long)s->nclasses - SHOWN);
    fclose(f);
    cli_say("%lld classes, labels from 0 on: %s", (long long)s->nclasses, text);
    free(text);
}

/* A model that was made for more classes than there are may be meant to have a head for these. */
static void say_fewer(const cli_job *job, const cli_data *data)
{
    const data_source *s = named_classes(data);
    if (!s || s->nclasses >= data->classes || job->o->loss != INV_LOSS_CROSS_ENTROPY) return;
    cli_warn(
        "the data have %lld classes, output '%s' has %lld: labels 0 to %lld use its first classes, the others never "
        "occur. Add --head %lld to `train` for a head with the data's classes",
        (long long)s->nclasses, cli_loss_port(job)->label, (long long)data->classes, (long long)s->nclasses - 1,
        (long long)s->nclasses);
}

json_t *cli_data_class_names(const cli_data *data)
{
    const data_source *s = named_classes(data);
    json_t *names = s ? json_array() : NULL;
    for (int64_t i = 0; names && i < s->nclasses; i++) {
        json_t *name = json_string(s->classes[i]);
        json_array_append_new(names, name ? name : json_null()); /* it is not UTF-8 */
    }
    return names;
}

void cli_data_classes_json(json_t *report, const cli_data *data)
{
    json_t *names = cli_data_class_names(data);
    if (names) json_object_set_new(report, "class_names", names);
}

static const data_source *target_source(const cli_data *data) { return &data->input[data->target_from].source; }

/* Targets that are mapped are looked at before anything is run; others when their batch is. */
static int check_target(cli_job *job, cli_data *data)
{
    const data_source *s = target_source(data);
    const npy_array file = cli_source_shape(s, DATA_TARGET), labels = entry_of(job, &file);
    data->classes = cli_classes(job, &labels);
    if (file.data) return cli_check_target(job, &labels, "the target", s);
    /* early updates want to know before what a batch counts */
    job->missing |= (file.dtype == INV_F32 || file.dtype == INV_F64 || file.dtype == INV_F16) &&
                    job->o->loss != INV_LOSS_CROSS_ENTROPY && !job->o->early_update;
    return CLI_OK;
}

/* What comes once and in order cannot be shuffled. */
static int take_streams(cli_data *data)
{
    for (size_t i = 0; i <= data->ninputs; i++) {
        if (!data->input[i].source.stream) continue;
        if (cli_ranks() > 1)
            return cli_usage(data->job->o, "%s is a pipe, which one process reads, and %d were started",
                             data->input[i].path, cli_ranks());
        data->order.shuffled = false;
    }
    return CLI_OK;
}

int cli_data_check_epochs(const cli_data *data, int64_t epochs, bool resumed)
{
    for (size_t i = 0; data->input && i <= data->ninputs; i++) {
        if (!data->input[i].source.stream) continue;
        if (epochs > 1)
            return cli_fail("%s is a pipe, whose rows come once: not for %lld epochs", data->input[i].path,
                            (long long)epochs);
        if (resumed)
            return cli_fail("--resume: %s is a pipe, which cannot skip the rows that the run has used. Give the data "
                            "as files",
                            data->input[i].path);
    }
    return CLI_OK;
}

static bool make_room(cli_data *data)
{
    const size_t n = data->ninputs + 1;
    data->input = calloc(n, sizeof *data->input);
    data->arrays = calloc(n, sizeof *data->arrays);
    data->dims = calloc(n, sizeof *data->dims);
    data->next = calloc(n, sizeof *data->next);
    data->next_dims = calloc(n, sizeof *data->next_dims);
    data->fed = calloc(n, sizeof *data->fed);
    data->wanted = calloc(n, sizeof *data->wanted);
    return data->input && data->arrays && data->dims && data->next && data->next_dims && data->fed && data->wanted;
}

/* What is open: whether it can be served, and what is to be told of it. first: it is no validation beside it. */
static int look_at_all(cli_job *job, cli_data *data, bool first)
{
    int status = take_streams(data);
    data->nrows = data_order_count(&data->order);
    if (status == CLI_OK && first) say_classes(data);
    if (status == CLI_OK && first) cli_trained_on_tell(data);
    if (status == CLI_OK && data->has_target) status = check_target(job, data);
    if (status == CLI_OK && data->has_target && first) cli_tell_copied(data);
    if (status == CLI_OK && first) say_fewer(job, data);
    return status;
}

int cli_data_open(cli_job *job, cli_data *data, const cli_list *files, const char *target, const char *what,
                  const cli_data *like)
{
    const cli_options *o = job->o;
    const bool validation = strncmp(what, "val", 3) == 0;
    *data = (cli_data){.job = job, .ninputs = job->ninputs, .stacked = o->stacked, .epoch = 1};
    if (like) data->known = named_classes(like);
    cli_trained_on_read(data);
    data->order.shuffled = o->command == CLI_CMD_train && !validation && !o->no_shuffle;
    data->augment = o->command == CLI_CMD_train && !validation;
    data->order.seed = (uint64_t)o->seed;
    const char **file = calloc(job->ninputs + 1, sizeof *file);
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    int status = CLI_OK;
    if (!file || !why || !make_room(data)) status = cli_fail("out of memory");
    if (status == CLI_OK && files->n == 0)
        status = cli_usage(o, "`%s` wants --%s FILE", cli_commands[o->command].name, what);
    if (status == CLI_OK) {
        cli_assign(job, files, what, file, why);
        char option[32];
        snprintf(option, sizeof option, "--%s", what);
        open_inputs(job, data, file, option, why);
        open_target(job, data, file, target, validation ? "--val-target" : "--target", why);
        if (data->order.nrows == 0) data->order.nrows = 1; /* all inputs go whole into every step, and no target */
    }
    if (why) fclose(why);
    while (length && text[length - 1] == '\n') text[--length] = 0;
    const bool hint = length && !data->stacked && data->input && rows_differ(data);
    if (status == CLI_OK && length)
        status = cli_fail("%s%s", text,
                          hint ? "\n"
                                 "If axis 0 of some inputs or outputs is not the batch: give files with one more "
                                 "axis in front, an entry per step, and --stacked"
                               : "");
    free(text);
    free(file);
    return status == CLI_OK ? look_at_all(job, data, !like) : status;
}

int cli_data_split(cli_data *data, double share, cli_data *held)
{
    const int64_t n = data->order.nrows, k = (int64_t)(share * (double)n + 0.5);
    for (size_t i = 0; i <= data->ninputs; i++) data->order.in_sequence |= data->input[i].source.in_sequence;
    if (k < 1 || k >= n)
        return cli_fail("--val-split %g: %lld rows give %lld for validation and %lld for training", share, (long long)n,
                        (long long)k, (long long)(n - k));
    data->order.nheld = k;
    data->nrows = data_order_count(&data->order);
    *held = *data;
    held->borrowed = held->order.held = true;
    held->order.shuffled = held->augment = false;
    held->nrows = data_order_count(&held->order);
    if (!make_room(held)) return cli_fail("out of memory");
    memcpy(held->input, data->input, (data->ninputs + 1) * sizeof *held->input);
    for (size_t i = 0; i < data->ninputs; i++) held->arrays[i].name = data->arrays[i].name;
    cli_say("%lld of %lld rows are held out for validation", (long long)k, (long long)n);
    return CLI_OK;
}

int64_t cli_batch_rows(const cli_job *job, int64_t nrows)
{
    if (job->o->stacked) return 1;
    int64_t fixed = cli_fixed_batch(job), batch = job->o->batch > 0 ? job->o->batch : fixed > 0 ? fixed : 32;
    if (batch <= nrows || (fixed > 0 && batch == fixed)) return batch;
    return nrows;
}
