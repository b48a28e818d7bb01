/* SPDX-License-Identifier: Apache-2.0
 * Rows for training and evaluation: sources (data/) put together with the model's inputs and the loss's target, and
 * batches of them as the library takes them. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A source of one array with the axis that counts rows, as a file would hold it. */
static npy_array shape_of(const data_source *s, int field)
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

/* What options and the model say of an input, or of the target (port NULL). */
static data_request request_for(const cli_job *job, const cli_port *port, const char *const *members, size_t nmembers)
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
                      .sequential = job->o->windows == CLI_WINDOWS_SEQUENTIAL,
                      .labels = job->o->loss == INV_LOSS_CROSS_ENTROPY,
                      .note = cli_note,
                      .busy = cli_busy};
    if (!port) return q;
    const npy_array labels = {.rank = 2, .dims = {0, port->rank == 2 && port->dims[1] > 0 ? port->dims[1] : q.window}};
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
    const npy_array file = shape_of(&part->source, DATA_INPUT);
    data_request q = request_for(job, port, NULL, 0);
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
        const data_request q = request_for(job, port, members, 2);
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
    if (!cli_loss_takes_target(job->o->loss)) {
        if (target) fprintf(why, "--loss %s takes no target\n", loss);
        return;
    }
    cli_data_part *own = &data->input[data->ninputs];
    for (size_t i = 0; i < data->ninputs && !target; i++) {
        if (data->input[i].source.field[DATA_TARGET].dtype == INV_DT_NONE) continue;
        data->target_from = i;
        data->has_target = true;
        return;
    }
    const char *path = target ? target : files[0] && npz_has_suffix(files[0]) ? files[0] : NULL;
    if (!path) {
        fprintf(why, "--loss %s wants the rows' labels or values, %s FILE\n", loss, what);
        return;
    }
    static const char *const members[] = {"y", "target"};
    const data_request q = request_for(job, NULL, members, 2);
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

static const data_source *target_source(const cli_data *data) { return &data->input[data->target_from].source; }

/* Labels that are mapped are looked at before anything is run; others when their batch is. */
static int check_target(cli_job *job, cli_data *data)
{
    const data_source *s = target_source(data);
    const npy_array file = shape_of(s, DATA_TARGET), labels = entry_of(job, &file);
    data->classes = cli_classes(job, &labels);
    return file.data ? cli_check_labels(job, &labels, "the target", s) : CLI_OK;
}

static bool make_room(cli_data *data)
{
    const size_t n = data->ninputs + 1;
    data->input = calloc(n, sizeof *data->input);
    data->arrays = calloc(n, sizeof *data->arrays);
    data->dims = calloc(n, sizeof *data->dims);
    data->fed = calloc(n, sizeof *data->fed);
    data->wanted = calloc(n, sizeof *data->wanted);
    return data->input && data->arrays && data->dims && data->fed && data->wanted;
}

int cli_data_open(cli_job *job, cli_data *data, const cli_list *files, const char *target, const char *what)
{
    const cli_options *o = job->o;
    const bool validation = strncmp(what, "val", 3) == 0;
    *data = (cli_data){.job = job, .ninputs = job->ninputs, .stacked = o->stacked, .epoch = 1};
    data->order.shuffled = o->command == CLI_CMD_train && !validation && !o->no_shuffle;
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
                          hint ? "\nwhere axis 0 of the model's inputs and outputs is not the batch in all of them, "
                                 "files of whole steps with one more axis in front, and --stacked"
                               : "");
    free(text);
    free(file);
    data->nrows = data_order_count(&data->order);
    return status == CLI_OK && data->has_target ? check_target(job, data) : status;
}

int cli_data_split(cli_data *data, double share, cli_data *held)
{
    const int64_t n = data->order.nrows, k = (int64_t)(share * (double)n + 0.5);
    for (size_t i = 0; i <= data->ninputs; i++) {
        if (data->input[i].source.stream)
            return cli_fail("--val-split: %s is a pipe, which is read once; give --val-data", data->input[i].path);
        data->order.in_sequence |= data->input[i].source.in_sequence;
    }
    if (k < 1 || k >= n)
        return cli_fail("--val-split %g: of %lld rows that leaves %lld to validate on and %lld to train on", share,
                        (long long)n, (long long)k, (long long)(n - k));
    data->order.nheld = k;
    data->nrows = data_order_count(&data->order);
    *held = *data;
    held->borrowed = held->order.held = true;
    held->order.shuffled = false;
    held->nrows = data_order_count(&held->order);
    if (!make_room(held)) return cli_fail("out of memory");
    memcpy(held->input, data->input, (data->ninputs + 1) * sizeof *held->input);
    for (size_t i = 0; i < data->ninputs; i++) held->arrays[i].name = data->arrays[i].name;
    cli_say("%lld of %lld rows are held out for validation", (long long)k, (long long)n);
    return CLI_OK;
}

/* --- batches --- */

/* Threads beside the step: as many as it has itself where rows take arithmetic, one where they are read from files,
 * none where they lie in memory. */
static int threads_for(const cli_data *data)
{
    enum { MOST = 16, SMALL = 16 << 20 };
    const cli_options *o = data->job->o;
    int threads = 0;
    for (size_t k = 0; k < data->nfed; k++) {
        const data_source *s = data->fed[k];
        bool filled = false;
        for (int f = 0; f < DATA_FIELDS; f++) filled |= data->wanted[k][f] && !s->field[f].base;
        if (threads == 0 && (filled || s->mapped_nbytes > SMALL)) threads = 1;
        if (s->computes) threads = o->threads ? (int)o->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    }
    if (o->data_threads >= 0) return (int)o->data_threads;
    return threads < MOST ? threads : MOST;
}

/* The file's data, aligned for their type. */
static bool copy_whole(cli_data_part *p)
{
    const data_field *f = &p->source.field[DATA_INPUT];
    if (f->base) return true;
    p->copy = malloc((size_t)p->source.nrows * f->nbytes + 1);
    const data_draw draw = {0};
    for (int64_t r = 0; p->copy && r < p->source.nrows; r++) {
        void *out[DATA_FIELDS] = {(char *)p->copy + (size_t)r * f->nbytes, NULL};
        p->source.calls->fill(&p->source, &draw, r, out, stderr);
    }
    return p->copy != NULL;
}

int cli_data_reserve(cli_data *data, int64_t batch)
{
    for (size_t i = 0; i <= data->ninputs; i++) {
        cli_data_part *p = &data->input[i];
        if (!p->source.calls) continue;
        if (p->whole && !copy_whole(p)) return cli_fail("out of memory");
        if (p->whole) continue;
        p->fed = data->nfed;
        data->wanted[data->nfed][DATA_INPUT] = i < data->ninputs;
        data->wanted[data->nfed][DATA_TARGET] = data->has_target && i == data->target_from;
        data->fed[data->nfed++] = &p->source;
    }
    const data_loader_options lo = {.sources = data->fed,
                                    .nsources = data->nfed,
                                    .wanted = (const bool(*)[DATA_FIELDS])data->wanted,
                                    .order = data->order,
                                    .augment = data->order.shuffled,
                                    .batch = batch,
                                    .threads = threads_for(data)};
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    const bool ok = why && data_loader_create(&lo, &data->loader, why);
    if (why) fclose(why);
    const int status = ok ? CLI_OK : cli_fail("%s", text ? text : "out of memory");
    free(text);
    return status;
}

/* One array of the batch: where the source has its rows, or where they were put. */
static void give_array(cli_data *data, const cli_data_part *p, int field, const data_batch *b, size_t slot,
                       inv_array *out)
{
    const data_field *f = &p->source.field[field];
    const npy_array file = shape_of(&p->source, field);
    const bool entry = data->stacked && !p->whole;
    memcpy(data->dims[slot], file.dims, sizeof file.dims);
    out->dtype = f->dtype;
    out->rank = file.rank - entry;
    out->dims = data->dims[slot] + entry;
    out->rows = NULL;
    if (p->whole) {
        out->data = f->base ? f->base : p->copy;
        return;
    }
    data->dims[slot][0] = b->n;
    out->data = f->base ? f->base : b->buffer[p->fed][field];
    if (!f->base) return;
    if (entry) out->data = (const char *)f->base + (size_t)b->rows[0] * f->nbytes;
    else out->rows = b->rows;
}

/* Labels that were not looked at before. */
static int check_batch(cli_data *data)
{
    const data_source *s = target_source(data);
    if (s->field[DATA_TARGET].base) return CLI_OK;
    npy_array labels = {.dtype = data->target_array.dtype, .data = data->target_array.data};
    labels.nbytes = (size_t)data->batch->n * s->field[DATA_TARGET].nbytes;
    size_t at;
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    const bool bad = why && cli_bad_label(data->job, &labels, data->classes, &at, why);
    if (why) fclose(why);
    int status = CLI_OK;
    if (bad) {
        const double v = npy_element(labels.data, labels.dtype, at);
        const int64_t row = data->batch->rows[at / (s->field[DATA_TARGET].nbytes / npy_itemsize(labels.dtype))];
        char *place = NULL;
        FILE *f = open_memstream(&place, &length);
        if (f) data_put_places(f, s, &row, 1);
        if (f) fclose(f);
        status = cli_fail("%s: label %.0f%s %s", place ? place : "the target", v, v < 0 ? ";" : ", but", text);
        free(place);
    }
    free(text);
    return status;
}

int cli_data_batch(cli_data *data, int64_t start, int64_t n)
{
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    const bool ok = why && data_loader_take(data->loader, data->epoch, start, n, &data->batch, why);
    if (why) fclose(why);
    int status = ok ? CLI_OK : cli_fail("%s", text ? text : "out of memory");
    free(text);
    if (!ok) return status;
    for (size_t i = 0; i < data->ninputs; i++)
        give_array(data, &data->input[i], DATA_INPUT, data->batch, i, &data->arrays[i]);
    if (!data->has_target) return CLI_OK;
    data->target_array.name = "target";
    give_array(data, &data->input[data->target_from], DATA_TARGET, data->batch, data->ninputs, &data->target_array);
    return check_batch(data);
}

void cli_data_epoch(cli_data *data, uint64_t epoch) { data->epoch = epoch; }

void cli_data_say_waits(const cli_data *data)
{
    const data_waits w = data_loader_waits(data->loader);
    cli_say("data: prepared by %d thread%s; the step waited %.3f s for them, and they %.3f s for the step", w.threads,
            w.threads == 1 ? "" : "s", w.step, w.reading);
}

void cli_data_close(cli_data *data)
{
    data_loader_destroy(data->loader);
    for (size_t i = 0; data->input && i <= data->ninputs; i++) {
        if (!data->borrowed) data_source_close(&data->input[i].source);
        free(data->input[i].copy);
    }
    free(data->input);
    free(data->arrays);
    free(data->dims);
    free(data->fed);
    free(data->wanted);
    *data = (cli_data){0};
}

inv_status cli_data_session(cli_job *job, const cli_data *data, inv_session_options *so)
{
    inv_status s = inv_session_create(job->model, so, &job->session);
    if (s != INV_E_NOT_CONSTANT) return s;
    const char **names = calloc(data->ninputs + 1, sizeof *names);
    if (!names) return INV_E_NOMEM;
    so->constant_inputs = names;
    for (size_t i = 0; i < data->ninputs; i++)
        if (data->input[i].whole) names[so->nconstant_inputs++] = job->inputs[i].name;
    if (so->nconstant_inputs) s = inv_session_create(job->model, so, &job->session);
    so->constant_inputs = NULL;
    so->nconstant_inputs = 0;
    free(names);
    return s;
}

/* --- whose fault it is --- */

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The first of `n` elements that is not finite, "NaN", "inf" or "-inf"; NULL: all are. */
static const char *not_finite(const void *data, inv_dtype dtype, size_t first, size_t n)
{
    if (dtype != INV_F32 && dtype != INV_F64 && dtype != INV_F16) return NULL;
    for (size_t i = first; i < first + n; i++) {
        double v = 0;
        if (dtype == INV_F16) {
            uint16_t bits;
            memcpy(&bits, (const char *)data + 2 * i, sizeof bits);
            if ((bits & 0x7c00) == 0x7c00) v = bits & 0x3ff ? (double)NAN : bits & 0x8000 ? -INFINITY : INFINITY;
        } else {
            v = npy_element(data, dtype, i);
        }
        if (!isfinite(v)) return isnan(v) ? "NaN" : v < 0 ? "-inf" : "inf";
    }
    return NULL;
}

/* "row 7 of x.npy holds NaN"; `bad` has room for the batch's rows. */
static bool blame_part(const cli_data *data, const cli_data_part *p, int field, int64_t *bad, FILE *f)
{
    const data_source *s = &p->source;
    const data_field *a = &s->field[field];
    const size_t each = a->nbytes / npy_itemsize(a->dtype);
    if (p->whole) {
        const void *all = a->base ? a->base : p->copy;
        const char *what = not_finite(all, a->dtype, 0, (size_t)s->nrows * each);
        if (what) fprintf(f, "%s holds %s", p->path, what);
        return what != NULL;
    }
    const char *what = NULL;
    int64_t nbad = 0;
    for (int64_t r = 0; r < data->batch->n; r++) {
        const int64_t row = data->batch->rows[r];
        const void *rows = a->base ? a->base : data->batch->buffer[p->fed][field];
        const char *found = not_finite(rows, a->dtype, (size_t)(a->base ? row : r) * each, each);
        if (!found) continue;
        if (!what) what = found;
        bad[nbad++] = row;
    }
    if (!nbad) return false;
    qsort(bad, (size_t)nbad, sizeof *bad, by_number);
    data_put_places(f, s, bad, nbad);
    fprintf(f, " hold%s %s", nbad == 1 ? "s" : "", what);
    return true;
}

bool cli_data_blame(const cli_data *data, FILE *f)
{
    const int64_t n = data->batch->n;
    int64_t *rows = malloc(2 * (size_t)n * sizeof *rows);
    bool any = false;
    if (!rows) return false;
    memcpy(rows, data->batch->rows, (size_t)n * sizeof *rows);
    qsort(rows, (size_t)n, sizeof *rows, by_number);
    fputs("its batch was ", f);
    data_put_rows(f, "row", rows, n);
    for (size_t i = 0; i < data->ninputs + data->has_target; i++) {
        const bool target = i == data->ninputs;
        char *text = NULL;
        size_t length = 0;
        FILE *one = open_memstream(&text, &length);
        const bool bad = one && blame_part(data, &data->input[target ? data->target_from : i],
                                           target ? DATA_TARGET : DATA_INPUT, rows + n, one);
        if (one) fclose(one);
        if (bad) fprintf(f, "%s%s", any ? ", " : "; ", text);
        any = any || bad;
        free(text);
    }
    free(rows);
    return any;
}

int64_t cli_fixed_batch(const cli_job *job)
{
    return job->ninputs && job->inputs[0].rank > 0 ? job->inputs[0].dims[0] : -1;
}

int64_t cli_batch_rows(const cli_job *job, int64_t nrows)
{
    if (job->o->stacked) return 1;
    int64_t fixed = cli_fixed_batch(job), batch = job->o->batch > 0 ? job->o->batch : fixed > 0 ? fixed : 32;
    if (batch <= nrows || (fixed > 0 && batch == fixed)) return batch;
    return nrows;
}
