/* SPDX-License-Identifier: Apache-2.0
 * The kinds of sources, and what they share: file names, patterns of them, places of rows. */
#include "data/source.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* --- names of files --- */

static int compare_names(const char *x, const char *y)
{
    const char *a = x, *b = y;
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0");
            b += strspn(b, "0");
            const size_t n = strspn(a, "0123456789"), m = strspn(b, "0123456789");
            if (n != m) return n < m ? -1 : 1;
            const int order = memcmp(a, b, n);
            if (order) return order;
            a += n;
            b += m;
        } else {
            if (*a != *b) return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            a++;
            b++;
        }
    }
    if (*a || *b) return *a ? 1 : -1;
    return strcmp(x, y); /* x-1 and x-01 */
}

int data_by_name(const void *a, const void *b) { return compare_names(*(char *const *)a, *(char *const *)b); }

void data_free_names(char **names, int64_t n)
{
    for (int64_t i = 0; names && i < n; i++) free(names[i]);
    free(names);
}

static bool is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static bool matches(const char *path, glob_t *found)
{
    *found = (glob_t){0};
    if (!strpbrk(path, "*?[") || is_there(path)) return false;
    if (glob(path, GLOB_NOSORT, NULL, found) == 0) return true;
    globfree(found);
    return false;
}

bool data_is_pattern(const char *path)
{
    glob_t found;
    if (!matches(path, &found)) return false;
    globfree(&found);
    return true;
}

/* --- the kinds --- */

static bool has_suffix(const char *path, const char *suffix)
{
    const size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcasecmp(path + n - m, suffix) == 0;
}

static bool is_pipe(const data_request *q, const char *path)
{
    struct stat st;
    (void)q;
    return strcmp(path, "-") == 0 || (stat(path, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)));
}

static bool is_folder(const data_request *q, const char *path)
{
    struct stat st;
    (void)q;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* An option that speaks of tokens is about inputs: a target beside it is an array. */
static bool is_tokens(const data_request *q, const char *path)
{
    if (has_suffix(path, ".bin")) return true;
    return q->tokens && !q->target && !has_suffix(path, ".npy") && !has_suffix(path, ".npz");
}

static bool is_table(const data_request *q, const char *path)
{
    (void)q;
    return has_suffix(path, ".csv") || has_suffix(path, ".tsv");
}

/* A file that is there and is no array, neither by its suffix nor by how it begins. */
static bool is_unknown(const data_request *q, const char *path)
{
    static const char magic[] = "\x93NUMPY";
    char start[sizeof magic] = "";
    (void)q;
    if (has_suffix(path, ".npy") || has_suffix(path, ".npz")) return false;
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(start, 1, sizeof magic - 1, f) : 0;
    if (f) fclose(f);
    return n > 0 && memcmp(start, magic, sizeof magic - 1) != 0;
}

static bool refuse_unknown(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why)
{
    (void)paths;
    (void)npaths;
    (void)out;
    fputs("not a .npy file, nor a table by its suffix (.csv, .tsv)", why);
    if (!q->target)
        fputs("; for a text or another file of tokens give its type: --tokens uint8, uint16 or uint32", why);
    return false;
}

static bool is_any(const data_request *q, const char *path)
{
    (void)q;
    (void)path;
    return true;
}

/* The first that recognises a path has it. */
static const struct {
    const char *what;
    bool (*recognises)(const data_request *q, const char *path);
    bool (*open)(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why);
} kinds[] = {
    [DATA_PIPE] = {"a pipe", is_pipe, data_open_pipe},
    [DATA_PICTURES] = {"a folder of pictures", is_folder, data_open_images},
    [DATA_TOKENS] = {"tokens", is_tokens, data_open_tokens},
    [DATA_TABLE] = {"a table", is_table, data_open_table},
    [DATA_UNKNOWN] = {"a file of an unknown kind", is_unknown, refuse_unknown},
    [DATA_ARRAYS] = {"arrays (.npy)", is_any, data_open_arrays},
};

static size_t kind_of(const data_request *q, const char *path)
{
    size_t k = 0;
    while (!kinds[k].recognises(q, path)) k++;
    return k;
}

data_kind data_kind_of(const data_request *q, const char *path)
{
    glob_t found;
    if (!matches(path, &found)) return (data_kind)kind_of(q, path);
    size_t k = kind_of(q, found.gl_pathv[0]);
    for (size_t i = 1; i < found.gl_pathc; i++)
        if (kind_of(q, found.gl_pathv[i]) != k) k = DATA_UNKNOWN;
    globfree(&found);
    return (data_kind)k;
}

bool data_is_array(const data_request *q, const char *path) { return data_kind_of(q, path) == DATA_ARRAYS; }

bool data_source_open(const data_request *q, const char *path, data_source *out, FILE *why)
{
    glob_t found;
    *out = (data_source){0};
    char *one[] = {(char *)(uintptr_t)path};
    if (!matches(path, &found)) {
        if (kinds[kind_of(q, path)].open(q, one, 1, out, why)) return true;
        data_source_close(out);
        return false;
    }
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, data_by_name);
    const size_t k = kind_of(q, found.gl_pathv[0]);
    bool ok = true;
    for (size_t i = 1; i < found.gl_pathc && ok; i++) {
        if (kind_of(q, found.gl_pathv[i]) == k) continue;
        ok = false;
        fprintf(why, "%s is %s, but %s is %s; name files of one kind", found.gl_pathv[0], kinds[k].what,
                found.gl_pathv[i], kinds[kind_of(q, found.gl_pathv[i])].what);
    }
    ok = ok && kinds[k].open(q, found.gl_pathv, found.gl_pathc, out, why);
    globfree(&found);
    if (!ok) data_source_close(out);
    return ok;
}

void data_source_close(data_source *s)
{
    if (s->calls) s->calls->close(s);
    data_free_names(s->classes, s->nclasses);
    *s = (data_source){0};
}

void data_field_size(data_field *f)
{
    f->nbytes = npy_itemsize(f->dtype);
    for (int i = 0; i < f->rank; i++) f->nbytes *= (size_t)f->dims[i];
}

/* --- places --- */

enum { LISTED = 64 };

void data_put_rows(FILE *f, const char *unit, const int64_t *rows, int64_t n)
{
    fprintf(f, "%s%s", unit, n == 1 ? "" : "s");
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

void data_put_places(FILE *f, const data_source *s, const int64_t *rows, int64_t n)
{
    int64_t *numbers = malloc((size_t)n * sizeof *numbers);
    int64_t listed = 0;
    for (int64_t i = 0, next; numbers && i < n; i = next) {
        const char *unit, *other, *file = s->calls->place(s, rows[i], &numbers[0], &unit);
        if (listed++ == LISTED) {
            fprintf(f, " and %lld more", (long long)(n - i));
            break;
        }
        fputs(i ? ", " : "", f);
        next = i + 1;
        if (!unit) {
            fputs(file, f);
            continue;
        }
        while (next < n && strcmp(s->calls->place(s, rows[next], &numbers[next - i], &other), file) == 0) next++;
        data_put_rows(f, unit, numbers, next - i);
        fprintf(f, " of %s", file);
    }
    free(numbers);
}
