/* SPDX-License-Identifier: Apache-2.0
 * Tables (.csv, .tsv): a row per line, numbers of which some columns are fed and one or a few are the target. They are
 * read once, at the start, into files without a name that are then mapped like an array: every bad cell is found before
 * anything is trained, and a table may be larger than memory.
 *
 * A target of labels may be text; its values are classes then, sorted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "data/source.h"
#include "data/spool.h"
#include "data/table_lines.h"

enum { MOST_CLASSES = 65536, SAID = 20 };

typedef struct table {
    const data_request *q; /* while it is opened */
    size_t n;
    char **path;
    int64_t *first; /* row of each file, and the number of all */
    char **column;  /* names, of the first file */
    size_t ncolumns;
    bool header;
    size_t *feature, nfeatures, *target, ntargets; /* numbers of columns */
    spool features, targets, lines;
    char **found; /* different texts of the target; in `slot`, number + 1 by hash */
    int64_t nfound;
    uint32_t *slot;
    double *row;
    int64_t nbad;
} table;

/* --- columns --- */

static bool is_number(const char *text, double *v)
{
    char *end;
    *v = strtod(text, &end);
    return end > text && !*end;
}

static void put_columns(const table *t, FILE *why)
{
    for (size_t i = 0; i < t->ncolumns && i < 30; i++) fprintf(why, "%s%s", i ? ", " : "", t->column[i]);
    if (t->ncolumns > 30) fprintf(why, " and %zu more", t->ncolumns - 30);
}

/* By its name, else by its number from 1 on. */
static bool find_column(const table *t, const char *word, size_t length, size_t *out, FILE *why)
{
    for (size_t i = 0; t->header && i < t->ncolumns; i++)
        if (strlen(t->column[i]) == length && strncmp(t->column[i], word, length) == 0) return *out = i, true;
    char *end;
    const long k = strtol(word, &end, 10);
    if (end == word + length && k >= 1 && (size_t)k <= t->ncolumns) return *out = (size_t)k - 1, true;
    fprintf(why, "it has no column '%.*s'; its columns are ", (int)length, word);
    if (t->header) put_columns(t, why);
    else fprintf(why, "1 to %zu", t->ncolumns);
    return false;
}

/* "a,b,c" as numbers of columns; `list` has room for all there are. */
static bool find_columns(const table *t, const char *words, size_t *list, size_t *n, FILE *why)
{
    for (const char *at = words;; at++) {
        const size_t length = strcspn(at, ",");
        if (*n == t->ncolumns) return fprintf(why, "'%s' names more columns than there are", words), false;
        if (!find_column(t, at, length, &list[(*n)++], why)) return false;
        at += length;
        if (!*at) return true;
    }
}

static bool choose_columns(table *t, FILE *why)
{
    const data_request *q = t->q;
    t->feature = calloc(t->ncolumns, sizeof *t->feature);
    t->target = calloc(t->ncolumns, sizeof *t->target);
    t->row = calloc(2 * t->ncolumns, sizeof *t->row); /* a column may be fed and be a target */
    if (!t->feature || !t->target || !t->row) return fputs("out of memory", why), false;
    if (q->target_columns && !find_columns(t, q->target_columns, t->target, &t->ntargets, why)) return false;
    if (q->labels && t->ntargets > 1) return fputs("labels are in one column, --target-column names more", why), false;
    if (q->columns) return find_columns(t, q->columns, t->feature, &t->nfeatures, why);
    for (size_t i = 0; i < t->ncolumns; i++) {
        bool is_target = false;
        for (size_t k = 0; k < t->ntargets; k++) is_target |= t->target[k] == i;
        if (!is_target) t->feature[t->nfeatures++] = i;
    }
    return t->nfeatures || (fputs("no column is left that could be fed", why), false);
}

/* Whether the only text of the first line is in the target's column, which was told by its number: a class, no name. */
static bool only_a_class(const table *t)
{
    double v;
    if (t->ntargets != 1 || strcmp(t->column[t->target[0]], t->q->target_columns) == 0) return false;
    for (size_t i = 0; i < t->ncolumns; i++)
        if (i != t->target[0] && !is_number(t->column[i], &v)) return false;
    return true;
}

/* The first line names columns, or it is a row like the others. Of further files the header must be the same. */
static bool read_header(table *t, const table_lines *lines, FILE *why)
{
    double v;
    if (t->column) {
        if (lines->ncells != t->ncolumns)
            return fprintf(why, "it has %zu columns, %s has %zu", lines->ncells, t->path[0], t->ncolumns), false;
        for (size_t i = 0; t->header && i < t->ncolumns; i++)
            if (strcmp(table_cell(lines, i), t->column[i]) != 0)
                return fprintf(why, "column %zu is '%s', in %s it is '%s'", i + 1, table_cell(lines, i), t->path[0],
                               t->column[i]),
                       false;
        return true;
    }
    t->ncolumns = lines->ncells;
    t->column = calloc(t->ncolumns, sizeof *t->column);
    bool text = false, ok = t->column != NULL;
    for (size_t i = 0; ok && i < t->ncolumns; i++) {
        text |= !is_number(table_cell(lines, i), &v);
        ok = (t->column[i] = strdup(table_cell(lines, i))) != NULL;
    }
    t->header = text;
    if (!ok) return fputs("out of memory", why), false;
    if (!choose_columns(t, why)) return false;
    if (only_a_class(t)) t->header = false;
    return true;
}

/* --- rows --- */

static bool bad_cell(const table *t, const table_lines *lines, size_t column, const char *what, FILE *why)
{
    enum { SHOWN = 100 };
    const char *text = table_cell(lines, column);
    size_t n = strlen(text);
    fprintf(why, "line %lld, column ", (long long)lines->line);
    if (t->header) fprintf(why, "'%s': ", t->column[column]);
    else fprintf(why, "%zu: ", column + 1);
    if (n > SHOWN)
        for (n = SHOWN; n > 0 && (text[n] & 0xc0) == 0x80;) n--; /* not within a character of UTF-8 */
    if (*text) fprintf(why, "'%.*s%s' %s", (int)n, text, text[n] ? "..." : "", what);
    else fputs("it is empty", why);
    return false;
}

static uint32_t hash_of(const char *text)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

/* The number of a text among those of the target that were found so far; -1: too many, -2: no memory. */
static int64_t find_text(table *t, const char *text)
{
    enum { SLOTS = 4 * MOST_CLASSES };
    if (!t->slot) t->slot = calloc(SLOTS, sizeof *t->slot);
    if (!t->found) t->found = calloc(MOST_CLASSES, sizeof *t->found);
    if (!t->slot || !t->found) return -2;
    uint32_t at = hash_of(text) % SLOTS;
    for (; t->slot[at]; at = (at + 1) % SLOTS)
        if (strcmp(t->found[t->slot[at] - 1], text) == 0) return t->slot[at] - 1;
    if (t->nfound == MOST_CLASSES) return -1;
    t->found[t->nfound] = strdup(text);
    if (!t->found[t->nfound]) return -2;
    t->slot[at] = (uint32_t)++t->nfound;
    return t->nfound - 1;
}

/* A label is written as the number of its text, for now. */
static bool read_label(table *t, const table_lines *lines, int64_t *label, FILE *why)
{
    const char *text = table_cell(lines, t->target[0]);
    if (!*text) return bad_cell(t, lines, t->target[0], "", why);
    *label = -1;
    for (int64_t k = 0; k < t->q->nclasses && *label < 0; k++)
        if (strcmp(t->q->classes[k], text) == 0) *label = k;
    if (*label >= 0) return true;
    double v; /* labels of a file whose model knows names may be numbers */
    if (t->q->classes_from && is_number(text, &v) && v == (double)(int64_t)v) return *label = (int64_t)v, true;
    if (t->q->classes) return bad_cell(t, lines, t->target[0], "is none of the classes that are known", why);
    *label = find_text(t, text);
    if (*label == -2) return fputs("out of memory", why), false;
    if (*label == -1) return bad_cell(t, lines, t->target[0], "is one class too many; is it a number?", why);
    return true;
}

static bool put_number(spool *s, inv_dtype dtype, double v, FILE *why)
{
    const float single = (float)v;
    const int64_t whole = (int64_t)v;
    if (dtype == INV_F32) return spool_put(s, &single, sizeof single, why);
    return dtype == INV_F64 ? spool_put(s, &v, sizeof v, why) : spool_put(s, &whole, sizeof whole, why);
}

/* One line, all or nothing. false: it is bad, or, with *fatal, nothing can go on. */
static bool read_row(table *t, const table_lines *lines, inv_dtype dtype, bool *fatal, FILE *why)
{
    *fatal = false;
    if (lines->ncells != t->ncolumns) {
        fprintf(why, "line %lld has %zu columns, the first one %zu", (long long)lines->line, lines->ncells,
                t->ncolumns);
        return false;
    }
    const size_t n = t->nfeatures + (t->q->labels ? 0 : t->ntargets);
    for (size_t i = 0; i < n; i++) {
        const size_t column = i < t->nfeatures ? t->feature[i] : t->target[i - t->nfeatures];
        double v;
        if (!is_number(table_cell(lines, column), &v))
            return bad_cell(t, lines, column,
                            t->q->target_columns
                                ? "is no number"
                                : "is not a number. Name the target with --target-column and the inputs with "
                                  "--columns",
                            why);
        if (i < t->nfeatures && dtype == INV_I64 && !(v > -0x1p53 && v < 0x1p53 && v == (double)(int64_t)v))
            return bad_cell(t, lines, column, "is no whole number, and the model wants these", why);
        t->row[i] = v;
    }
    int64_t label;
    if (t->q->labels && t->ntargets && !read_label(t, lines, &label, why)) return false;
    *fatal = true;
    bool ok = spool_put(&t->lines, &lines->line, sizeof lines->line, why);
    for (size_t i = 0; ok && i < n; i++)
        ok = put_number(i < t->nfeatures ? &t->features : &t->targets, i < t->nfeatures ? dtype : INV_F32, t->row[i],
                        why);
    if (ok && t->q->labels && t->ntargets) ok = spool_put(&t->targets, &label, sizeof label, why);
    return ok;
}

/* --- a file --- */

static bool read_lines(table *t, table_lines *lines, const char *path, inv_dtype dtype, double size, FILE *why)
{
    int got = table_next_line(lines, why);
    if (got == 0) fputs("it has no lines", why);
    if (got != 1 || !read_header(t, lines, why)) return false;
    if (t->header) got = table_next_line(lines, why);
    char *reason = NULL; /* of the newest bad line: its first `length` bytes, behind which an older one may go on */
    size_t length = 0;
    FILE *f = open_memstream(&reason, &length);
    bool ok = f != NULL;
    if (!ok) fputs("out of memory", why);
    for (int64_t k = 0; ok && got == 1; k++) {
        bool fatal = false;
        if (k % 65536 == 0) t->q->busy("reading the table", (double)lines->nbytes / (size + 1));
        ok = read_row(t, lines, dtype, &fatal, f);
        if (!ok) fflush(f);
        if (!ok && !fatal && t->q->skip_bad) {
            if (t->nbad++ < SAID) t->q->note("%s: %.*s; left out", path, (int)length, reason);
            rewind(f);
            ok = true;
        } else if (!ok) {
            (void)fwrite(reason, 1, length, why);
        }
        got = ok ? table_next_line(lines, why) : 0;
    }
    if (f) fclose(f);
    free(reason);
    return ok && got == 0;
}

static bool read_file(table *t, const char *path, inv_dtype dtype, FILE *why)
{
    const size_t n = strlen(path);
    table_lines lines = {.separator = n > 4 && strcasecmp(path + n - 4, ".tsv") == 0 ? '\t' : ','};
    struct stat st;
    lines.f = fopen(path, "rb");
    bool ok = lines.f && fstat(fileno(lines.f), &st) == 0;
    if (!ok) fputs(strerror(errno), why);
    else if (!S_ISREG(st.st_mode)) ok = (fputs("not a regular file", why), false);
    ok = ok && read_lines(t, &lines, path, dtype, (double)st.st_size, why);
    table_lines_fini(&lines);
    return ok;
}

/* --- labels --- */

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Whole numbers are labels as they are; other texts are classes, counted in the order of the alphabet. */
static bool name_labels(table *t, data_source *out, FILE *why)
{
    int64_t *label = t->targets.map, *number = calloc((size_t)t->nfound + 1, sizeof *number);
    char **sorted = calloc((size_t)t->nfound + 1, sizeof *sorted);
    bool whole = true, ok = number && sorted;
    double v;
    for (int64_t i = 0; ok && i < t->nfound; i++) {
        whole = whole && is_number(t->found[i], &v) && v == (double)(int64_t)v;
        if (whole) number[i] = (int64_t)v;
        sorted[i] = t->found[i];
    }
    if (ok && !whole) {
        qsort(sorted, (size_t)t->nfound, sizeof *sorted, by_text);
        for (int64_t i = 0; i < t->nfound; i++)
            number[i] = (char **)bsearch(&t->found[i], sorted, (size_t)t->nfound, sizeof *sorted, by_text) - sorted;
        out->classes = sorted;
        out->nclasses = t->nfound;
        sorted = NULL;
    }
    for (int64_t i = 0; ok && i < out->nrows; i++) label[i] = number[label[i]];
    if (ok && !whole) { /* the names are the source's now */
        free(t->found);
        t->found = NULL;
        t->nfound = 0;
    }
    free(number);
    free(sorted);
    free(t->slot);
    t->slot = NULL;
    return ok || (fputs("out of memory", why), false);
}

static bool copy_classes(const data_request *q, data_source *out, FILE *why)
{
    out->classes = calloc((size_t)q->nclasses, sizeof *out->classes);
    for (int64_t i = 0; out->classes && i < q->nclasses; i++) {
        out->classes[i] = strdup(q->classes[i]);
        if (!out->classes[i]) return fputs("out of memory", why), false;
        out->nclasses = i + 1;
    }
    return out->classes || (fputs("out of memory", why), false);
}

/* --- the source --- */

static const char *table_place(const data_source *s, int64_t row, int64_t *number, const char **unit)
{
    const table *t = s->state;
    size_t k = 0;
    while (k + 1 < t->n && t->first[k + 1] <= row) k++;
    *number = ((const int64_t *)t->lines.map)[row];
    *unit = "line";
    return t->path[k];
}

static void table_give_back(const data_source *s)
{
    const table *t = s->state;
    spool_give_back(&t->features);
    spool_give_back(&t->targets);
}

static void table_close(data_source *s)
{
    table *t = s->state;
    if (!t) return;
    spool_close(&t->features);
    spool_close(&t->targets);
    spool_close(&t->lines);
    data_free_names(t->path, (int64_t)t->n);
    data_free_names(t->column, (int64_t)t->ncolumns);
    data_free_names(t->found, t->nfound);
    free(t->slot);
    free(t->first);
    free(t->feature);
    free(t->target);
    free(t->row);
    free(t);
}

static const data_calls calls = {NULL, table_place, table_give_back, table_close};

/* A row has the axes of the model's input where they hold as many numbers, else one. */
static void shape_fields(const table *t, inv_dtype dtype, data_source *out)
{
    const data_request *q = t->q;
    data_field *x = &out->field[DATA_INPUT], *y = &out->field[DATA_TARGET];
    int64_t n = 1;
    for (int i = 1; i < q->rank && n >= 0; i++) n = q->dims[i] < 0 ? -1 : n * q->dims[i];
    x->dtype = dtype;
    x->rank = n == (int64_t)t->nfeatures && q->rank > 0 ? q->rank - 1 : 1;
    x->dims[0] = (int64_t)t->nfeatures;
    if (n == (int64_t)t->nfeatures)
        for (int i = 1; i < q->rank; i++) x->dims[i - 1] = q->dims[i];
    x->base = t->features.map;
    data_field_size(x);
    if (!t->ntargets) return;
    y->dtype = q->labels ? INV_I64 : INV_F32;
    y->rank = !q->labels && (t->ntargets > 1 || q->column);
    y->dims[0] = (int64_t)t->ntargets;
    y->base = t->targets.map;
    data_field_size(y);
}

static bool read_files(table *t, char *const *paths, inv_dtype dtype, FILE *why)
{
    for (size_t i = 0; i < t->n; i++) {
        char *reason = NULL;
        size_t length = 0;
        FILE *f = open_memstream(&reason, &length);
        const bool ok = f && (t->path[i] = strdup(paths[i])) && read_file(t, paths[i], dtype, f);
        if (f) fclose(f);
        if (!ok) fprintf(why, "%s%s%s", t->n > 1 ? paths[i] : "", t->n > 1 ? ": " : "", reason ? reason : "no memory");
        free(reason);
        if (!ok) return false;
        t->first[i + 1] = (int64_t)(t->lines.nbytes / sizeof(int64_t));
    }
    if (t->nbad) t->q->note("%lld lines are left out", (long long)t->nbad);
    return true;
}

bool data_open_table(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why)
{
    table *t = calloc(1, sizeof *t);
    out->calls = &calls;
    out->state = t;
    if (!t) return fputs("out of memory", why), false;
    t->q = q;
    t->n = npaths;
    t->path = calloc(npaths, sizeof *t->path);
    t->first = calloc(npaths + 1, sizeof *t->first);
    if (!t->path || !t->first) return fputs("out of memory", why), false;
    if (q->target) return fputs("a table brings its target, by --target-column; no other is wanted", why), false;
    const bool integers = q->dtype == INV_I64 || q->dtype == INV_I32;
    const inv_dtype dtype = integers ? INV_I64 : q->dtype == INV_F64 ? INV_F64 : INV_F32;
    if (!spool_open(&t->features, why) || !spool_open(&t->targets, why) || !spool_open(&t->lines, why) ||
        !read_files(t, paths, dtype, why))
        return false;
    out->nrows = t->first[npaths];
    if (out->nrows == 0) return fputs("it has no rows", why), false;
    if (!spool_map(&t->features, why) || !spool_map(&t->targets, why) || !spool_map(&t->lines, why)) return false;
    shape_fields(t, dtype, out);
    out->mapped_nbytes = t->features.nbytes + t->targets.nbytes;
    if (q->labels && t->ntargets && !(q->classes ? copy_classes(q, out, why) : name_labels(t, out, why))) return false;
    if (out->nclasses && q->outputs >= 0 && out->nclasses > q->outputs)
        return fprintf(why, "its target has %lld classes, but the model's output has %lld", (long long)out->nclasses,
                       (long long)q->outputs),
               false;
    return true;
}
