/* SPDX-License-Identifier: Apache-2.0
 * Rows along axis 0 of .npy and .npz files. One aligned file is used where it is mapped; of several (shards) rows are
 * copied, and so they are of a file that holds them unaligned, as members of .npz archives usually are. */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"

typedef struct arrays {
    size_t n;
    npy_array *shard;
    char **path;
    int64_t *first; /* row of each shard, and the number of all */
    size_t part;    /* the field that they are */
} arrays;

static size_t shard_of(const arrays *a, int64_t row)
{
    size_t low = 0, high = a->n;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (a->first[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

static bool arrays_fill(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS],
                        FILE *why)
{
    const arrays *a = s->state;
    const size_t k = shard_of(a, row), nbytes = s->field[a->part].nbytes;
    (void)draw;
    (void)why;
    if (out[a->part])
        memcpy(out[a->part], (const char *)a->shard[k].data + (size_t)(row - a->first[k]) * nbytes, nbytes);
    return true;
}

static const char *arrays_place(const data_source *s, int64_t row, int64_t *number, const char **unit)
{
    const arrays *a = s->state;
    const size_t k = shard_of(a, row);
    *number = row - a->first[k];
    *unit = "row";
    return a->path[k];
}

static void arrays_give_back(const data_source *s)
{
    const arrays *a = s->state;
    for (size_t i = 0; i < a->n; i++) npy_give_back(&a->shard[i]);
}

static void arrays_close(data_source *s)
{
    arrays *a = s->state;
    if (!a) return;
    for (size_t i = 0; a->shard && i < a->n; i++) npy_close(&a->shard[i]);
    data_free_names(a->path, (int64_t)a->n);
    free(a->shard);
    free(a->first);
    free(a);
}

static const data_calls calls = {arrays_fill, arrays_place, arrays_give_back, arrays_close};

/* Two shards have rows of one kind. */
static bool same_rows(const npy_array *a, const npy_array *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           (a->rank < 2 || memcmp(a->dims + 1, b->dims + 1, (size_t)(a->rank - 1) * sizeof *a->dims) == 0);
}

static void put_rows_of(FILE *f, const char *path, const npy_array *a)
{
    fprintf(f, "%s has rows [", path);
    for (int i = 1; i < a->rank; i++) fprintf(f, "%s%lld", i > 1 ? ", " : "", (long long)a->dims[i]);
    fprintf(f, "] of %s", npy_type_name(a->dtype));
}

static bool open_shard(arrays *a, const data_request *q, size_t i, const char *path, FILE *why)
{
    npy_array *shard = &a->shard[i];
    a->path[i] = strdup(path);
    if (!a->path[i]) return fputs("out of memory", why), false;
    char *reason = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&reason, &length);
    bool ok = f && npy_open(path, q->members, q->nmembers, shard, f);
    if (ok && shard->rank == 0 && a->n > 1) ok = (fputs("it is a single number and has no rows", f), false);
    if (ok && shard->rank > 0 && shard->dims[0] == 0) ok = (fputs("it has no rows", f), false);
    if (f) fclose(f);
    if (!ok) fprintf(why, "%s%s%s", a->n > 1 ? path : "", a->n > 1 ? ": " : "", reason ? reason : "out of memory");
    free(reason);
    if (ok && !same_rows(shard, &a->shard[0])) {
        put_rows_of(why, path, shard);
        fputs(", ", why);
        put_rows_of(why, a->path[0], &a->shard[0]);
        ok = false;
    }
    return ok;
}

bool data_open_arrays(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why)
{
    arrays *a = calloc(1, sizeof *a);
    out->calls = &calls;
    out->state = a;
    if (!a) return fputs("out of memory", why), false;
    a->n = npaths;
    a->part = q->target ? DATA_TARGET : DATA_INPUT;
    a->shard = calloc(npaths, sizeof *a->shard);
    a->path = calloc(npaths, sizeof *a->path);
    a->first = calloc(npaths + 1, sizeof *a->first);
    if (!a->shard || !a->path || !a->first) return fputs("out of memory", why), false;
    for (size_t i = 0; i < npaths; i++) {
        if (!open_shard(a, q, i, paths[i], why)) return false;
        a->first[i + 1] = a->first[i] + (a->shard[i].rank ? a->shard[i].dims[0] : 1);
        out->mapped_nbytes += a->shard[i].nbytes;
    }
    const npy_array *one = &a->shard[0];
    data_field *f = &out->field[a->part];
    f->dtype = one->dtype;
    f->rank = one->rank ? one->rank - 1 : 0;
    out->single = one->rank == 0;
    memcpy(f->dims, one->dims + 1, (size_t)f->rank * sizeof *f->dims);
    data_field_size(f);
    if (npaths == 1 && (uintptr_t)one->data % npy_itemsize(one->dtype) == 0) f->base = one->data;
    out->nrows = a->first[npaths];
    return true;
}
