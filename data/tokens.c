/* SPDX-License-Identifier: Apache-2.0
 * Files of tokens: unsigned integers one behind the other, raw (as nanoGPT writes them) or behind a header of 256 int32
 * (as llm.c does). A row is a window of T tokens, its target the same window one token later:
 *
 *      file    t0 t1 t2 t3 t4 t5 t6 t7 t8        T = 4: two windows
 *      row 0   t0 t1 t2 t3           target  t1 t2 t3 t4
 *      row 1               t4 t5 t6 t7               t5 t6 t7 t8
 *
 * At random places, row r begins up to T - 1 tokens further on, by seed and epoch, so that in every epoch all of the
 * file is read about once, and in the end each token stands at every place of a window. */
#include <stdlib.h>
#include <string.h>

#include "data/row_order.h"
#include "data/source.h"

enum { HEADER = 256 * 4, MAGIC_U16 = 20240520, MAGIC_U32 = 20240801 };

typedef struct token_file {
    npy_array file; /* mapped */
    char *path;
    const unsigned char *token;
    size_t size;            /* of a token, bytes */
    int64_t ntokens, first; /* number of its first window */
} token_file;

typedef struct tokens {
    size_t n;
    token_file *file;
    int64_t window, vocabulary; /* -1: not known */
    bool sequential;
} tokens;

static uint32_t token_at(const token_file *f, int64_t i)
{
    const unsigned char *p = f->token + (size_t)i * f->size;
    uint32_t v = 0;
    for (size_t k = 0; k < f->size; k++) v |= (uint32_t)p[k] << (8 * k);
    return v;
}

static const token_file *token_file_of(const tokens *t, int64_t row)
{
    size_t low = 0, high = t->n;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (t->file[middle].first <= row) low = middle;
        else high = middle;
    }
    return &t->file[low];
}

static void put_token(void *out, inv_dtype dtype, int64_t i, uint32_t v)
{
    if (dtype == INV_I32) ((int32_t *)out)[i] = (int32_t)v;
    else ((int64_t *)out)[i] = (int64_t)v;
}

/* Where a window begins. It does not reach into rows that are held out, but for its last target. */
static int64_t token_start(const tokens *t, const token_file *f, const data_draw *draw, int64_t row)
{
    const int64_t start = (row - f->first) * t->window;
    if (t->sequential || !draw->augment) return start;
    if (draw->order && data_order_holds(draw->order, row + 1)) return start;
    int64_t places = f->ntokens - t->window - start;
    if (places > t->window) places = t->window;
    return start + (int64_t)(data_random_at(draw->seed, draw->epoch, (uint64_t)row) % (uint64_t)places);
}

static bool tokens_fill(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS],
                        FILE *why)
{
    const tokens *t = s->state;
    const token_file *f = token_file_of(t, row);
    const int64_t start = token_start(t, f, draw, row);
    for (int64_t i = 0; i <= t->window; i++) {
        const int64_t place = start + i;
        const uint32_t v = token_at(f, place);
        if (t->vocabulary >= 0 && (int64_t)v >= t->vocabulary) {
            fprintf(why, "%s: token %u at place %lld, but the model has %lld classes (tokens 0 to %lld)", f->path, v,
                    (long long)place, (long long)t->vocabulary, (long long)t->vocabulary - 1);
            return false;
        }
        if (out[DATA_INPUT] && i < t->window) put_token(out[DATA_INPUT], s->field[DATA_INPUT].dtype, i, v);
        if (out[DATA_TARGET] && i > 0) put_token(out[DATA_TARGET], INV_I64, i - 1, v);
    }
    return true;
}

static const char *tokens_place(const data_source *s, int64_t row, int64_t *number, const char **unit)
{
    const token_file *f = token_file_of(s->state, row);
    *number = row - f->first;
    *unit = "window";
    return f->path;
}

static void tokens_give_back(const data_source *s)
{
    const tokens *t = s->state;
    for (size_t i = 0; i < t->n; i++) npy_give_back(&t->file[i].file);
}

static void tokens_close(data_source *s)
{
    tokens *t = s->state;
    if (!t) return;
    for (size_t i = 0; t->file && i < t->n; i++) {
        npy_close(&t->file[i].file);
        free(t->file[i].path);
    }
    free(t->file);
    free(t);
}

static const data_calls calls = {tokens_fill, tokens_place, tokens_give_back, tokens_close};

static uint32_t header_word(const npy_array *file, size_t i)
{
    const unsigned char *p = (const unsigned char *)file->map + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* What the file says of itself; else what the option says. */
static bool read_layout(token_file *f, size_t asked, FILE *why)
{
    const size_t nbytes = f->file.map_nbytes;
    const uint32_t magic = nbytes >= HEADER ? header_word(&f->file, 0) : 0;
    f->token = f->file.map;
    f->size = asked;
    size_t header = 0;
    if (magic == MAGIC_U16 || magic == MAGIC_U32) {
        header = HEADER;
        f->size = magic == MAGIC_U16 ? 2 : 4;
        if (asked && asked != f->size)
            return fprintf(why, "its header says uint%zu, --tokens says uint%zu", 8 * f->size, 8 * asked), false;
        if ((nbytes - header) / f->size != header_word(&f->file, 2))
            return fprintf(why, "its header promises %u tokens, there are %zu", header_word(&f->file, 2),
                           (nbytes - header) / f->size),
                   false;
    }
    if (f->size == 0)
        return fputs("it has no header with the type of its tokens. Give --tokens uint16 (as nanoGPT writes), uint32, "
                     "or uint8 for bytes",
                     why),
               false;
    f->token += header;
    if ((nbytes - header) % f->size != 0)
        return fprintf(why, "its %zu bytes are no whole number of tokens of %zu bytes", nbytes - header, f->size),
               false;
    f->ntokens = (int64_t)((nbytes - header) / f->size);
    return true;
}

static bool open_token_file(tokens *t, token_file *f, const data_request *q, const char *path, FILE *why)
{
    char *reason = NULL;
    size_t length = 0;
    FILE *one = open_memstream(&reason, &length);
    f->path = strdup(path);
    bool ok = one && f->path && npy_map(path, &f->file, one) && read_layout(f, (size_t)q->tokens, one);
    if (ok && f->ntokens <= t->window) {
        fprintf(one, "its %lld tokens are fewer than a window of %lld and the token after it", (long long)f->ntokens,
                (long long)t->window);
        ok = false;
    }
    if (one) fclose(one);
    if (!ok) fprintf(why, "%s%s%s", t->n > 1 ? path : "", t->n > 1 ? ": " : "", reason ? reason : "out of memory");
    free(reason);
    return ok;
}

/* Tokens of a window, as the model fixes them or the option says. */
static bool choose_window(tokens *t, const data_request *q, FILE *why)
{
    const int64_t declared = q->rank == 2 ? q->dims[1] : -1;
    if (q->rank >= 0 && q->rank != 2)
        return fprintf(why, "tokens are fed as [rows, window], but the model's input has %d axes", q->rank), false;
    if (declared > 0 && q->window > 0 && declared != q->window)
        return fprintf(why, "--window %lld, but the model wants %lld tokens", (long long)q->window,
                       (long long)declared),
               false;
    t->window = declared > 0 ? declared : q->window;
    if (t->window <= 0) return fputs("the model takes windows of any length: give --window T", why), false;
    return true;
}

bool data_open_tokens(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why)
{
    tokens *t = calloc(1, sizeof *t);
    out->calls = &calls;
    out->state = t;
    if (!t || !(t->file = calloc(npaths, sizeof *t->file))) return fputs("out of memory", why), false;
    t->n = npaths;
    t->sequential = q->sequential;
    t->vocabulary = q->labels ? q->outputs : -1;
    if (!choose_window(t, q, why)) return false;
    for (size_t i = 0; i < npaths; i++) {
        token_file *f = &t->file[i];
        if (!open_token_file(t, f, q, paths[i], why)) return false;
        f->first = out->nrows;
        out->nrows += (f->ntokens - 1) / t->window;
        out->mapped_nbytes += f->file.map_nbytes;
    }
    for (int k = 0; k < DATA_FIELDS; k++) {
        data_field *field = &out->field[k];
        field->dtype = k == DATA_INPUT && q->dtype == INV_I32 ? INV_I32 : INV_I64;
        field->rank = 1;
        field->dims[0] = t->window;
        data_field_size(field);
    }
    out->in_sequence = true;
    out->varies = !t->sequential;
    return true;
}
