/* SPDX-License-Identifier: Apache-2.0
 * Batches of a data set as the library takes them, prepared by threads beside the step, and whose fault it is when one
 * of them is no good. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/job/labels.h"
#include "cli/say/rank.h"

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
        if (s->computes) threads = cli_data_threads(o);
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
                                    .augment = data->augment,
                                    .batch = batch,
                                    .first = cli_rank() * batch,
                                    .apart = cli_ranks() > 1 ? cli_ranks() * batch : 0,
                                    .peeks = data->ahead,
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
static void give_array(const cli_data *data, const cli_data_part *p, int field, const data_batch *b, int64_t *dims,
                       inv_array *out)
{
    const data_field *f = &p->source.field[field];
    const npy_array file = cli_source_shape(&p->source, field);
    const bool entry = data->stacked && !p->whole;
    memcpy(dims, file.dims, sizeof file.dims);
    out->dtype = f->dtype;
    out->rank = file.rank - entry;
    out->dims = dims + entry;
    out->rows = NULL;
    if (p->whole) {
        out->data = f->base ? f->base : p->copy;
        return;
    }
    dims[0] = b->n;
    out->data = f->base || b->n == 0 ? f->base : b->buffer[p->fed][field];
    if (!f->base) return;
    if (entry) out->data = (const char *)f->base + (size_t)b->rows[0] * f->nbytes;
    else out->rows = b->rows;
}

static void give_batch(const cli_data *data, const data_batch *b, inv_array *arrays, int64_t (*dims)[NPY_MAX_RANK],
                       inv_array *target)
{
    for (size_t i = 0; i < data->ninputs; i++) give_array(data, &data->input[i], DATA_INPUT, b, dims[i], &arrays[i]);
    if (!data->has_target) return;
    target->name = "target";
    give_array(data, &data->input[data->target_from], DATA_TARGET, b, dims[data->ninputs], target);
}

/* A target that was not looked at before. */
static int check_batch(cli_data *data)
{
    const data_source *s = &data->input[data->target_from].source;
    if (s->field[DATA_TARGET].base) return CLI_OK;
    const inv_array *a = &data->target_array;
    npy_array t = {.dtype = a->dtype, .data = a->data, .rank = a->rank};
    memcpy(t.dims, a->dims, (size_t)a->rank * sizeof *a->dims);
    t.nbytes = (size_t)data->batch->n * s->field[DATA_TARGET].nbytes;
    size_t at;
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    const bool bad = why && cli_bad_target(data->job, &t, data->classes, &at, why);
    if (why) fclose(why);
    int status = CLI_OK;
    if (bad) {
        const int64_t row = data->batch->rows[at / (s->field[DATA_TARGET].nbytes / npy_itemsize(t.dtype))];
        char *place = NULL;
        FILE *f = open_memstream(&place, &length);
        if (f) data_put_places(f, s, &row, 1);
        if (f) fclose(f);
        const bool label = strncmp(text, "label ", 6) == 0;
        status = cli_fail("%s%s%s", place ? place : "the target", label ? ": " : " has ", text);
        free(place);
    } else if (!data->told_missing && data->job->missing && cli_count_missing(data->job, &t)) {
        cli_note("%s has entries that are missing, which do not count", data->input[data->target_from].path);
        data->told_missing = true;
    }
    free(text);
    return status;
}

static const data_batch no_rows;

int cli_data_batch(cli_data *data, int64_t start, int64_t n)
{
    if (n == 0) {
        data->batch = NULL;
        give_batch(data, &no_rows, data->arrays, data->dims, &data->target_array);
        return CLI_OK;
    }
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    const bool ok = why && data_loader_take(data->loader, data->epoch, start, n, &data->batch, why);
    if (why) fclose(why);
    int status = ok ? CLI_OK : cli_fail("%s", text ? text : "out of memory");
    free(text);
    if (!ok) return status;
    give_batch(data, data->batch, data->arrays, data->dims, &data->target_array);
    return data->has_target ? check_batch(data) : CLI_OK;
}

const inv_array *cli_data_ahead(cli_data *data, uint64_t epoch, int64_t start, int64_t n)
{
    data_batch b = no_rows;
    if (!data->ahead || (n > 0 && !data_loader_peek(data->loader, epoch, start, n, &b))) return NULL;
    for (size_t i = 0; i < data->ninputs; i++) data->next[i].name = data->arrays[i].name;
    give_batch(data, &b, data->next, data->next_dims, &data->next[data->ninputs]);
    return data->next;
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
    if (!data->borrowed) cli_trained_on_close(data);
    free(data->input);
    free(data->arrays);
    free(data->dims);
    free(data->next);
    free(data->next_dims);
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

int cli_by_number(const void *a, const void *b)
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
    qsort(bad, (size_t)nbad, sizeof *bad, cli_by_number);
    data_put_places(f, s, bad, nbad);
    fprintf(f, " hold%s %s", nbad == 1 ? "s" : "", what);
    return true;
}

bool cli_data_blame(const cli_data *data, FILE *f)
{
    const int64_t n = data->batch ? data->batch->n : 0;
    int64_t *rows = n ? malloc(2 * (size_t)n * sizeof *rows) : NULL;
    bool any = false;
    if (!rows) return false;
    memcpy(rows, data->batch->rows, (size_t)n * sizeof *rows);
    qsort(rows, (size_t)n, sizeof *rows, cli_by_number);
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
