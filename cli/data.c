/* SPDX-License-Identifier: Apache-2.0
 * Rows for training and evaluation. The files stay mapped; a batch is a list of row numbers, and rows are copied
 * only where a file holds them unaligned (members of .npz archives usually are). */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool open_array(npy_array *a, const char *path, const cli_port *port, FILE *why)
{
    const char *members[] = {port->name, "x"};
    char *reason = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&reason, &length);
    if (!f) return false;
    bool ok = npy_open(path, members, 2, a, f);
    if (ok && (a->rank == 0 ? port->rank != 0 : a->dims[0] == 0)) ok = (fputs("it has no rows", f), false);
    fclose(f);
    if (!ok) fprintf(why, "%s: %s\n", path, reason);
    free(reason);
    return ok;
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

static void open_inputs(cli_job *job, cli_data *data, const char *const *files, const char *what, FILE *why)
{
    for (size_t i = 0; i < job->ninputs; i++) {
        const cli_port *port = &job->inputs[i];
        if (!files[i]) {
            fprintf(why, "no %s for input '%s'\n", what, port->label);
            continue;
        }
        data->files[i] = files[i];
        if (!open_array(&data->inputs[i], files[i], port, why)) continue;
        data->whole[i] = is_whole(job, port, &data->inputs[i]);
        const npy_array fed = data->whole[i] ? data->inputs[i] : entry_of(job, &data->inputs[i]);
        char *reason = NULL;
        size_t length = 0;
        FILE *f = open_memstream(&reason, &length);
        if (f && !cli_fits(port, &fed, !job->o->stacked && !data->whole[i], f)) {
            fflush(f);
            fprintf(why, "input '%s', %s: %s\n", port->label, files[i], reason);
        } else if (f) {
            cli_note_integers(port, &data->inputs[i], files[i]);
        }
        if (f) fclose(f);
        free(reason);
        data->arrays[i].name = port->name;
        if (data->whole[i]) continue;
        if (data->nrows == 0) data->nrows = data->inputs[i].dims[0];
        if (data->inputs[i].dims[0] != data->nrows)
            fprintf(why, "%s has %lld rows, %s has %lld\n", files[i], (long long)data->inputs[i].dims[0], files[0],
                    (long long)data->nrows);
    }
}

static void open_target(cli_job *job, cli_data *data, const char *const *files, const char *target, const char *what,
                        FILE *why)
{
    if (!cli_loss_takes_target(job->o->loss)) {
        if (target) fprintf(why, "--loss %s takes no target\n", cli_choice_word(cli_losses, job->o->loss));
        return;
    }
    const char *path = target ? target : files[0] && npz_has_suffix(files[0]) ? files[0] : NULL;
    if (!path) {
        fprintf(why, "--loss %s wants the rows' labels or values, %s FILE\n", cli_choice_word(cli_losses, job->o->loss),
                what);
        return;
    }
    static const char *const members[] = {"y", "target"};
    data->files[data->ninputs] = path;
    if (!npy_open(path, members, 2, &data->target, why)) {
        fprintf(why, " (target %s)\n", path);
    } else if (data->target.rank == 0 || (data->nrows && data->target.dims[0] != data->nrows)) {
        fprintf(why, "%s has %lld rows, the data has %lld\n", path,
                data->target.rank ? (long long)data->target.dims[0] : 0LL, (long long)data->nrows);
    } else {
        data->has_target = true;
        if (data->nrows == 0) data->nrows = data->target.dims[0];
    }
}

/* Whether files disagree about how many rows there are. */
static bool rows_differ(const cli_data *data)
{
    for (size_t i = 0; i < data->ninputs; i++)
        if (data->inputs[i].rank && !data->whole[i] && data->inputs[i].dims[0] != data->nrows) return true;
    return data->target.rank && data->target.dims[0] != data->nrows;
}

int cli_data_open(cli_job *job, cli_data *data, const cli_list *files, const char *target, const char *what)
{
    *data = (cli_data){.ninputs = job->ninputs, .stacked = job->o->stacked};
    bool validation = strncmp(what, "val", 3) == 0;
    const char **file = calloc(job->ninputs + 1, sizeof *file);
    char *text = NULL;
    size_t length = 0;
    FILE *why = open_memstream(&text, &length);
    data->inputs = calloc(job->ninputs + 1, sizeof *data->inputs);
    data->files = calloc(job->ninputs + 1, sizeof *data->files);
    data->whole = calloc(job->ninputs + 1, sizeof *data->whole);
    data->arrays = calloc(job->ninputs + 1, sizeof *data->arrays);
    data->copies = calloc(job->ninputs + 1, sizeof *data->copies);
    data->dims = calloc(job->ninputs + 1, sizeof *data->dims);
    data->target_array.name = "target";
    int status = CLI_OK;
    if (!file || !why || !data->inputs || !data->files || !data->whole || !data->arrays || !data->copies || !data->dims)
        status = cli_fail("out of memory");
    if (status == CLI_OK && files->n == 0)
        status = cli_usage(job->o, "`%s` wants --%s FILE", cli_commands[job->o->command].name, what);
    if (status == CLI_OK) {
        cli_assign(job, files, what, file, why);
        char option[32];
        snprintf(option, sizeof option, "--%s", what);
        open_inputs(job, data, file, option, why);
        open_target(job, data, file, target, validation ? "--val-target" : "--target", why);
        if (data->nrows == 0) data->nrows = 1; /* of inputs that all go whole into every step, and no target */
    }
    if (why) fclose(why);
    while (length && text[length - 1] == '\n') text[--length] = 0;
    const bool hint = length && !data->stacked && data->inputs && rows_differ(data);
    if (status == CLI_OK && length)
        status = cli_fail("%s%s", text,
                          hint ? "\nwhere axis 0 of the model's inputs and outputs is not the batch in all of them, "
                                 "files of whole steps with one more axis in front, and --stacked"
                               : "");
    free(text);
    free(file);
    if (status == CLI_OK && data->has_target) {
        const npy_array labels = entry_of(job, &data->target);
        status = cli_check_labels(job, &labels, "the target");
    }
    if (status == CLI_OK) {
        data->order = malloc((size_t)data->nrows * sizeof *data->order);
        if (!data->order) status = cli_fail("out of memory");
        for (int64_t r = 0; status == CLI_OK && r < data->nrows; r++) data->order[r] = r;
    }
    return status;
}

static const npy_array *array_at(const cli_data *data, size_t i)
{
    return i < data->ninputs ? &data->inputs[i] : &data->target;
}

static size_t row_nbytes(const npy_array *a) { return a->rank ? a->nbytes / (size_t)a->dims[0] : a->nbytes; }

int cli_data_reserve(cli_data *data, int64_t batch)
{
    for (size_t i = 0; i < data->ninputs + data->has_target; i++) {
        const npy_array *a = array_at(data, i);
        if ((uintptr_t)a->data % npy_itemsize(a->dtype) == 0) continue;
        data->copies[i] = malloc(data->whole[i] ? a->nbytes + 1 : (size_t)batch * row_nbytes(a) + 1);
        if (!data->copies[i]) return cli_fail("out of memory");
    }
    return CLI_OK;
}

/* Rows that have been used need not stay in the process's memory, or it would grow to the size of the data. With a row
 * the system maps what lies around it, up to a large page: so much more where rows are not taken in order. */
static void give_back(cli_data *data, int64_t n)
{
    enum { OFTEN = 16 << 20, AROUND = 2 << 20 }; /* bytes */
    for (size_t i = 0; i < data->ninputs + data->has_target; i++) {
        const npy_array *a = array_at(data, i);
        const size_t row = row_nbytes(a), each = data->shuffled && row < AROUND ? AROUND : row;
        if (!data->whole[i] && a->nbytes > OFTEN) data->used += (size_t)n * each;
    }
    if (data->used < OFTEN) return;
    data->used = 0;
    for (size_t i = 0; i < data->ninputs + data->has_target; i++)
        if (!data->whole[i]) npy_give_back(array_at(data, i));
}

void cli_data_batch(cli_data *data, int64_t start, int64_t n)
{
    give_back(data, n);
    for (size_t i = 0; i < data->ninputs + data->has_target; i++) {
        const npy_array *a = array_at(data, i);
        inv_array *out = i < data->ninputs ? &data->arrays[i] : &data->target_array;
        const bool entry = data->stacked && !data->whole[i];
        memcpy(data->dims[i], a->dims, sizeof a->dims);
        if (!data->whole[i]) data->dims[i][0] = n;
        out->dtype = a->dtype;
        out->rank = a->rank - entry;
        out->dims = data->dims[i] + entry;
        out->data = entry ? (const char *)a->data + (size_t)data->order[start] * row_nbytes(a) : a->data;
        out->rows = data->whole[i] || entry ? NULL : data->order + start;
        if (!data->copies[i]) continue;
        if (data->whole[i]) {
            memcpy(data->copies[i], a->data, a->nbytes);
            out->data = data->copies[i];
            continue;
        }
        size_t row = row_nbytes(a);
        for (int64_t r = 0; r < n; r++)
            memcpy((char *)data->copies[i] + (size_t)r * row,
                   (const char *)a->data + (size_t)data->order[start + r] * row, row);
        out->data = data->copies[i];
        out->rows = NULL;
    }
}

void cli_data_close(cli_data *data)
{
    for (size_t i = 0; data->inputs && i < data->ninputs; i++) npy_close(&data->inputs[i]);
    npy_close(&data->target);
    for (size_t i = 0; data->copies && i < data->ninputs + 1; i++) free(data->copies[i]);
    free(data->copies);
    free(data->dims);
    free(data->inputs);
    free(data->files);
    free(data->whole);
    free(data->arrays);
    free(data->order);
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
        if (data->whole[i]) names[so->nconstant_inputs++] = job->inputs[i].name;
    if (so->nconstant_inputs) s = inv_session_create(job->model, so, &job->session);
    so->constant_inputs = NULL;
    so->nconstant_inputs = 0;
    free(names);
    return s;
}

/* --- whose fault it is --- */

enum { LISTED = 64 };

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* "rows 3, 5 to 9 and 12"; ascending numbers. */
static void put_rows(FILE *f, const int64_t *rows, int64_t n)
{
    fputs(n == 1 ? "row" : "rows", f);
    int64_t listed = 0;
    for (int64_t i = 0, next; i < n; i = next) {
        next = i + 1;
        if (listed++ == LISTED) {
            fprintf(f, " and %lld more", (long long)(n - i));
            return;
        }
        while (next < n && rows[next] == rows[next - 1] + 1) next++;
        if (next - i == 2) next--; /* two in a row are two rows */
        fprintf(f, "%s %lld", i == 0 ? "" : next == n ? " and" : ",", (long long)rows[i]);
        if (next - i > 1) fprintf(f, " to %lld", (long long)rows[next - 1]);
    }
}

/* The first of `n` elements that is not finite, "NaN", "inf" or "-inf"; NULL: all are. */
static const char *not_finite(const npy_array *a, size_t first, size_t n)
{
    if (a->dtype != INV_F32 && a->dtype != INV_F64 && a->dtype != INV_F16) return NULL;
    for (size_t i = first; i < first + n; i++) {
        double v = 0;
        if (a->dtype == INV_F16) {
            uint16_t bits;
            memcpy(&bits, (const char *)a->data + 2 * i, sizeof bits);
            if ((bits & 0x7c00) == 0x7c00) v = bits & 0x3ff ? (double)NAN : bits & 0x8000 ? -INFINITY : INFINITY;
        } else {
            v = cli_element(a->data, a->dtype, i);
        }
        if (!isfinite(v)) return isnan(v) ? "NaN" : v < 0 ? "-inf" : "inf";
    }
    return NULL;
}

/* "row 7 of x.npy holds NaN"; `bad` has room for n rows. */
static bool blame_file(const cli_data *data, size_t i, const int64_t *rows, int64_t n, int64_t *bad, FILE *f)
{
    const npy_array *a = array_at(data, i);
    const size_t all = a->nbytes / npy_itemsize(a->dtype), each = a->rank ? all / (size_t)a->dims[0] : all;
    const char *what = NULL;
    int64_t nbad = 0;
    if (i < data->ninputs && data->whole[i]) {
        what = not_finite(a, 0, all);
        if (what) fprintf(f, "%s holds %s", data->files[i], what);
        return what != NULL;
    }
    for (int64_t r = 0; r < n; r++) {
        const char *found = not_finite(a, (size_t)rows[r] * each, each);
        if (!found) continue;
        if (!what) what = found;
        bad[nbad++] = rows[r];
    }
    if (!nbad) return false;
    put_rows(f, bad, nbad);
    fprintf(f, " of %s hold%s %s", data->files[i], nbad == 1 ? "s" : "", what);
    return true;
}

bool cli_data_blame(const cli_data *data, int64_t start, int64_t n, FILE *f)
{
    int64_t *rows = malloc(2 * (size_t)n * sizeof *rows);
    bool any = false;
    if (!rows) return false;
    memcpy(rows, data->order + start, (size_t)n * sizeof *rows);
    qsort(rows, (size_t)n, sizeof *rows, by_number);
    fputs("its batch was ", f);
    put_rows(f, rows, n);
    for (size_t i = 0; i < data->ninputs + data->has_target; i++) {
        char *text = NULL;
        size_t length = 0;
        FILE *one = open_memstream(&text, &length);
        const bool bad = one && blame_file(data, i, rows, n, rows + n, one);
        if (one) fclose(one);
        if (bad) fprintf(f, "%s%s", any ? ", " : "; ", text);
        any = any || bad;
        free(text);
    }
    free(rows);
    return any;
}

/* Counter-based: the number depends on its place only, so an epoch's order needs no state to be had again.
 * The mixing function is that of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_at(uint64_t seed, uint64_t epoch, uint64_t counter)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + epoch * 0xd1b54a32d192ed03u + 0x2545f4914f6cdd1du;
    for (int round = 0; round < 2; round++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        if (round == 0) z += counter * 0x9e3779b97f4a7c15u;
    }
    return z;
}

void cli_data_shuffle(cli_data *data, uint64_t seed, uint64_t epoch)
{
    data->shuffled = true;
    uint64_t counter = 0;
    for (int64_t r = 0; r < data->nrows; r++) data->order[r] = r;
    for (int64_t r = data->nrows - 1; r > 0; r--) {
        uint64_t range = (uint64_t)r + 1, limit = UINT64_MAX - UINT64_MAX % range, v;
        do v = random_at(seed, epoch, counter++);
        while (v >= limit); /* the remainder would favour low rows */
        int64_t k = (int64_t)(v % range), kept = data->order[r];
        data->order[r] = data->order[k];
        data->order[k] = kept;
    }
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

/* The output that the loss is taken of, if it is clear from the declaration. */
static const cli_port *loss_port(const cli_job *job)
{
    const cli_port *found = NULL;
    for (size_t i = 0; i < job->noutputs; i++) {
        const cli_port *port = &job->outputs[i];
        if (job->o->loss_output.n) {
            if (strcmp(port->name, job->o->loss_output.item[0]) == 0) return port;
        } else if (port->dtype == INV_F32 || port->dtype == INV_F64 || port->dtype == INV_F16 ||
                   port->dtype == INV_BF16) {
            if (found) return NULL;
            found = port;
        }
    }
    return found;
}

/* Classes of the output that labels are of, if its declaration and they tell; else -1. */
static int64_t classes_of(const cli_job *job, const cli_port *port, const npy_array *labels)
{
    int64_t axis = job->o->class_axis, found = -1;
    if (!port || port->rank < 2) return -1;
    if (axis != INT64_MIN) {
        if (axis < 0) axis += port->rank;
        return axis >= 0 && axis < port->rank ? port->dims[axis] : -1;
    }
    if (labels->rank != port->rank - 1) return -1;
    for (int k = 1; k < port->rank; k++) {
        bool fits = true;
        for (int d = 1; d < labels->rank && fits; d++) {
            int64_t is = port->dims[d + (d >= k)];
            fits = is < 0 || is == labels->dims[d];
        }
        if (fits && found >= 0) return -1; /* the library decides, or refuses */
        if (fits) found = k;
    }
    return found < 0 ? -1 : port->dims[found];
}

int cli_check_labels(const cli_job *job, const npy_array *labels, const char *path)
{
    if (job->o->loss != INV_LOSS_CROSS_ENTROPY || labels->dtype == INV_F32 || labels->dtype == INV_F64 ||
        labels->dtype == INV_F16)
        return CLI_OK;
    const cli_port *port = loss_port(job);
    const int64_t classes = classes_of(job, port, labels);
    size_t n = labels->nbytes / npy_itemsize(labels->dtype);
    for (size_t i = 0; i < n; i++) {
        if (i % (1 << 20) == 0) {
            cli_busy("checking the labels", (double)i / (double)n);
            npy_give_back(labels);
        }
        double v = cli_element(labels->data, labels->dtype, i);
        if (v == (double)job->o->ignore_index) continue;
        if (v < 0)
            return cli_fail("%s: label %.0f at element %zu; labels count from 0, and --ignore-index %.0f leaves such "
                            "rows out",
                            path, v, i, v);
        if (classes > 0 && v >= (double)classes)
            return cli_fail("%s: label %.0f at element %zu, but output '%s' has %lld classes (labels 0 to %lld)", path,
                            v, i, port->label, (long long)classes, (long long)classes - 1);
    }
    return CLI_OK;
}
