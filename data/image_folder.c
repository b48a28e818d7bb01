/* SPDX-License-Identifier: Apache-2.0
 * A folder that has a folder of pictures per class:
 *
 *      photos/cat/1.jpg   photos/cat/2.jpg   photos/dog/a.png
 *
 * Classes are counted in the order of their names, byte by byte as everybody else does; a row is a picture and its
 * class. Of the files only the names are kept, and each is decoded whenever it is drawn. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/image.h"
#include "data/row_order.h"
#include "data/source.h"

typedef struct folder {
    char *root;
    char **class_name; /* of the folders here */
    int64_t nclasses, *label;
    char *names; /* of all files, each ended by 0 */
    size_t names_nbytes, names_room;
    struct entry {
        size_t name;
        int64_t of; /* number of its folder */
    } * entry;
    int64_t n, room;
    image_form form;
    bool crop, flip;
} folder;

/* --- what there is --- */

static bool see_directory(const char *root, const char *name, bool *is, FILE *why)
{
    char *path = malloc(strlen(root) + strlen(name) + 2);
    struct stat st;
    if (!path) return fputs("out of memory", why), false;
    sprintf(path, "%s/%s", root, name);
    *is = stat(path, &st) == 0;
    const bool seen = *is || errno == ENOENT; /* a link that leads nowhere */
    if (!seen) fprintf(why, "%s: %s", path, strerror(errno));
    *is = *is && S_ISDIR(st.st_mode);
    free(path);
    return seen;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Names in a folder, sorted, without those that begin with a dot. NULL after writing why. */
static char **list_names(const char *path, int64_t *n, FILE *why)
{
    DIR *d = opendir(path);
    if (!d) return fprintf(why, "%s: %s", path, strerror(errno)), NULL;
    char **names = NULL;
    int64_t room = 0;
    *n = 0;
    errno = 0;
    for (struct dirent *e; (e = readdir(d)); errno = 0) {
        if (e->d_name[0] == '.') continue;
        if (*n == room) {
            room = room ? 2 * room : 64;
            char **grown = realloc(names, (size_t)room * sizeof *names);
            if (!grown) break;
            names = grown;
        }
        names[*n] = strdup(e->d_name);
        if (!names[(*n)++]) break;
    }
    const int ended = errno;
    closedir(d);
    if (!names) names = calloc(1, sizeof *names);
    if (ended || !names || (*n && !names[*n - 1])) {
        fprintf(why, "%s: %s", path, ended ? strerror(ended) : "out of memory");
        data_free_names(names, *n);
        return NULL;
    }
    qsort(names, (size_t)*n, sizeof *names, by_bytes);
    return names;
}

static bool add_file(folder *t, int64_t of, const char *name)
{
    const size_t nbytes = strlen(name) + 1;
    if (t->names_nbytes + nbytes > t->names_room) {
        const size_t room = 2 * t->names_room + nbytes + 4096;
        char *grown = realloc(t->names, room);
        if (!grown) return false;
        t->names = grown;
        t->names_room = room;
    }
    if (t->n == t->room) {
        const int64_t room = 2 * t->room + 256;
        struct entry *grown = realloc(t->entry, (size_t)room * sizeof *grown);
        if (!grown) return false;
        t->entry = grown;
        t->room = room;
    }
    t->entry[t->n++] = (struct entry){t->names_nbytes, of};
    memcpy(t->names + t->names_nbytes, name, nbytes);
    t->names_nbytes += nbytes;
    return true;
}

static char *path_of(const folder *t, int64_t row)
{
    const char *class_name = t->class_name[t->entry[row].of], *name = t->names + t->entry[row].name;
    char *path = malloc(strlen(t->root) + strlen(class_name) + strlen(name) + 3);
    if (path) sprintf(path, "%s/%s/%s", t->root, class_name, name);
    return path;
}

static bool list_class(folder *t, int64_t of, int64_t *others, FILE *why)
{
    char *path = malloc(strlen(t->root) + strlen(t->class_name[of]) + 2);
    if (!path) return fputs("out of memory", why), false;
    sprintf(path, "%s/%s", t->root, t->class_name[of]);
    const int64_t before = t->n;
    int64_t n = 0;
    char **names = list_names(path, &n, why);
    bool ok = names != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        if (image_has_suffix(names[i])) ok = add_file(t, of, names[i]) || (fputs("out of memory", why), false);
        else (*others)++;
    }
    if (names) data_free_names(names, n);
    if (ok && t->n == before) ok = (fprintf(why, "%s has no .jpg, .jpeg or .png file", path), false);
    free(path);
    return ok;
}

static void put_unknown_class(const data_request *q, const char *name, FILE *why)
{
    enum { SHOWN = 20 };
    fprintf(why, "folder '%s' is none of the %lld classes that are known%s (", name, (long long)q->nclasses,
            q->classes_from ? q->classes_from : "");
    for (int64_t k = 0; k < q->nclasses && k < SHOWN; k++) fprintf(why, "%s%s", k ? ", " : "", q->classes[k]);
    fprintf(why, "%s)%s", q->nclasses > SHOWN ? ", ..." : "",
            q->classes_from
                ? "; for other classes give the model a new head (`train --head N`), or their names (--class)"
                : "");
}

/* Labels by the names of classes that are given, as those of the data that were trained on; else by their order. */
static bool label_classes(folder *t, const data_request *q, FILE *why)
{
    t->label = calloc((size_t)t->nclasses + 1, sizeof *t->label);
    if (!t->label) return fputs("out of memory", why), false;
    for (int64_t i = 0; i < t->nclasses; i++) {
        t->label[i] = q->classes ? -1 : i;
        for (int64_t k = 0; k < q->nclasses && t->label[i] < 0; k++)
            if (strcmp(q->classes[k], t->class_name[i]) == 0) t->label[i] = k;
        if (t->label[i] < 0) return put_unknown_class(q, t->class_name[i], why), false;
    }
    return true;
}

static bool list_folder(folder *t, const data_request *q, FILE *why)
{
    int64_t n = 0, others = 0;
    char **names = list_names(t->root, &n, why);
    if (!names) return false;
    t->class_name = names;
    bool ok = true;
    for (int64_t i = 0; i < n; i++) {
        bool is = false;
        ok = ok && see_directory(t->root, names[i], &is, why);
        if (is) names[t->nclasses++] = names[i];
        else free(names[i]);
        others += !is;
    }
    if (!ok) return false;
    if (t->nclasses < 1) return fputs("it has no folders; a folder of pictures has one per class", why), false;
    for (int64_t i = 0; i < t->nclasses; i++) {
        q->busy("listing pictures", (double)i / (double)t->nclasses);
        if (!list_class(t, i, &others, why)) return false;
    }
    if (others)
        q->note("%s: %lld file%s left out that %s neither .jpg, .jpeg nor .png in a class's folder", t->root,
                (long long)others, others == 1 ? "" : "s", others == 1 ? "is" : "are");
    return label_classes(t, q, why);
}

/* --- rows --- */

static bool read_row(const folder *t, int64_t row, const data_draw *draw, void *out, FILE *why)
{
    char *path = path_of(t, row), *reason = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&reason, &length);
    image m = {0};
    image_choice choice = {0};
    const bool crop = draw->augment && t->crop;
    if (draw->augment) {
        uint64_t r[3];
        for (uint64_t k = 0; k < 3; k++) r[k] = data_random_at(draw->seed, draw->epoch, (uint64_t)row * 3 + k);
        choice = (image_choice){(double)(r[0] >> 11) * 0x1p-53, (double)(r[1] >> 11) * 0x1p-53, t->flip && r[2] >> 63};
    }
    const bool ok = path && f && image_read(path, &m, f) && image_fit(&m, &t->form, &choice, !crop, out, f);
    if (f) fclose(f);
    if (!ok) fprintf(why, "%s: %s", path ? path : t->root, reason ? reason : "out of memory");
    image_fini(&m);
    free(reason);
    free(path);
    return ok;
}

static bool folder_fill(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS],
                        FILE *why)
{
    const folder *t = s->state;
    if (out[DATA_TARGET]) *(int64_t *)out[DATA_TARGET] = t->label[t->entry[row].of];
    return !out[DATA_INPUT] || read_row(t, row, draw, out[DATA_INPUT], why);
}

static const char *folder_place(const data_source *s, int64_t row, int64_t *number, const char **unit)
{
    static _Thread_local char text[4096];
    const folder *t = s->state;
    *number = row;
    *unit = NULL;
    snprintf(text, sizeof text, "%s/%s/%s", t->root, t->class_name[t->entry[row].of], t->names + t->entry[row].name);
    return text;
}

static void folder_close(data_source *s)
{
    folder *t = s->state;
    if (!t) return;
    data_free_names(t->class_name, t->nclasses);
    free(t->label);
    free(t->names);
    free(t->entry);
    free(t->root);
    free(t);
}

static const data_calls calls = {folder_fill, folder_place, NULL, folder_close};

/* --- bad pictures, found before anything is trained --- */

typedef struct search {
    const folder *t;
    const data_request *q;
    size_t nbytes;
    _Atomic int64_t next;
    char **trouble; /* per row; NULL: none */
} search;

static void *search_rows(void *opaque)
{
    search *s = opaque;
    const data_draw draw = {0};
    void *out = malloc(s->nbytes + 1);
    for (int64_t row; out && (row = atomic_fetch_add(&s->next, 1)) < s->t->n;) {
        size_t length = 0;
        FILE *f = open_memstream(&s->trouble[row], &length);
        const bool ok = f && read_row(s->t, row, &draw, out, f);
        if (f) fclose(f);
        if (!ok) continue;
        free(s->trouble[row]);
        s->trouble[row] = NULL;
    }
    free(out);
    return NULL;
}

static bool drop_bad(folder *t, const data_request *q, size_t nbytes, FILE *why)
{
    enum { MOST = 16, SAID = 20 };
    search s = {.t = t, .q = q, .nbytes = nbytes, .trouble = calloc((size_t)t->n, sizeof *s.trouble)};
    pthread_t thread[MOST];
    int started = 0;
    if (!s.trouble) return fputs("out of memory", why), false;
    q->busy("looking for bad pictures", 0);
    while (started < q->threads - 1 && started < MOST && pthread_create(&thread[started], NULL, search_rows, &s) == 0)
        started++;
    search_rows(&s);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    int64_t kept = 0, bad = 0;
    for (int64_t row = 0; row < t->n; row++) {
        if (!s.trouble[row]) t->entry[kept++] = t->entry[row];
        else if (bad++ < SAID) q->note("%s; left out", s.trouble[row]);
        free(s.trouble[row]);
    }
    free(s.trouble);
    if (bad) q->note("%s: %lld of %lld pictures are left out", t->root, (long long)bad, (long long)t->n);
    t->n = kept;
    return kept > 0 || (fputs("none of its pictures can be read", why), false);
}

/* --- what the model takes --- */

/* Up to three numbers, all of a channel or one for all. */
static bool read_numbers(const char *text, char **end, int channels, float out[3])
{
    int n = 0;
    for (;;) {
        const float v = strtof(text, end);
        if (*end == text || n == 3) return false;
        out[n++] = v;
        if (**end != ',') break;
        text = *end + 1;
    }
    if (n == 1) out[1] = out[2] = out[0];
    return n == 1 || n == channels;
}

bool data_read_normalize(const char *text, int channels, float mean[3], float deviation[3])
{
    /* what ImageNet's pictures have, as networks that were trained on them expect; of grey ones the mean of these */
    static const float means[3] = {0.485f, 0.456f, 0.406f}, deviations[3] = {0.229f, 0.224f, 0.225f};
    const bool imagenet = text && strcmp(text, "imagenet") == 0, plain = !text || strcmp(text, "none") == 0;
    for (int c = 0; c < 3; c++) {
        mean[c] = imagenet ? channels == 1 ? 0.449f : means[c] : 0;
        deviation[c] = imagenet ? channels == 1 ? 0.226f : deviations[c] : 1;
    }
    char *end = NULL;
    bool ok = imagenet || plain;
    if (!ok && read_numbers(text, &end, channels, mean) && *end == '/')
        ok = read_numbers(end + 1, &end, channels, deviation) && !*end;
    for (int c = 0; c < 3 && ok; c++) ok = deviation[c] > 0;
    return ok;
}

static bool read_normalize(image_form *f, const char *text, FILE *why)
{
    if (data_read_normalize(text, f->channels, f->mean, f->deviation)) return true;
    fprintf(why, "--normalize %s: wants one number each for MEAN/DEVIATION, or one for each of %d channels", text,
            f->channels);
    return false;
}

static bool choose_form(folder *t, const data_request *q, data_field *field, FILE *why)
{
    image_form *f = &t->form;
    const int64_t *d = q->dims;
    if (q->rank != 3 && q->rank != 4)
        return fprintf(why, "the model's input has %d axes; pictures fill [N,C,H,W], [N,H,W,C] or [N,H,W]", q->rank),
               false;
    f->channels_last = q->rank == 4 && d[1] != 1 && d[1] != 3 && (d[3] == 1 || d[3] == 3);
    const int64_t channels = q->rank == 3 ? 1 : f->channels_last ? d[3] : d[1];
    if (channels != 1 && channels != 3 && channels >= 0)
        return fprintf(why, "the model's input has %lld channels; pictures have 1 or 3", (long long)channels), false;
    f->channels = channels < 0 ? 3 : (int)channels;
    const int64_t *extents = q->rank == 3 || f->channels_last ? d + 1 : d + 2;
    f->resize = q->resize;
    f->height = extents[0] > 0 ? extents[0] : q->resize;
    f->width = extents[1] > 0 ? extents[1] : q->resize;
    if (f->height <= 0 || f->width <= 0)
        return fputs("the model takes pictures of any size. Give --resize N to feed squares of N x N", why), false;
    if (q->resize && q->resize < (f->width < f->height ? f->width : f->height))
        return fprintf(why, "--resize %lld is less than the model's %lld x %lld", (long long)q->resize,
                       (long long)f->width, (long long)f->height),
               false;
    t->crop = q->augment_crop;
    t->flip = q->augment_flip;
    if (t->crop && !q->resize)
        return fprintf(why, "--augment crop wants --resize N, larger than the model's %lld x %lld, to have room for it",
                       (long long)f->width, (long long)f->height),
               false;
    f->dtype = q->dtype == INV_U8 ? INV_U8 : INV_F32;
    field->dtype = f->dtype;
    field->rank = q->rank - 1;
    memcpy(field->dims,
           f->channels_last || q->rank == 3 ? (int64_t[]){f->height, f->width, f->channels}
                                            : (int64_t[]){f->channels, f->height, f->width},
           3 * sizeof(int64_t));
    data_field_size(field);
    return read_normalize(f, q->normalize, why);
}

bool data_open_images(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why)
{
    folder *t = calloc(1, sizeof *t);
    out->calls = &calls;
    out->state = t;
    if (!t || !(t->root = strdup(paths[0]))) return fputs("out of memory", why), false;
    for (size_t n = strlen(t->root); n > 1 && t->root[n - 1] == '/'; n--) t->root[n - 1] = 0;
    if (npaths > 1) return fputs("the pattern names several folders; name the one that holds the classes", why), false;
    if (q->target) return fputs("a folder of pictures brings its labels; no target is wanted", why), false;
    if (!choose_form(t, q, &out->field[DATA_INPUT], why) || !list_folder(t, q, why)) return false;
    if (q->skip_bad && !drop_bad(t, q, out->field[DATA_INPUT].nbytes, why)) return false;
    out->field[DATA_TARGET].dtype = INV_I64;
    data_field_size(&out->field[DATA_TARGET]);
    out->nrows = t->n;
    out->computes = out->pictures = true;
    out->grey = t->form.channels == 1;
    out->varies = t->crop || t->flip;
    const int64_t n = q->classes ? q->nclasses : t->nclasses;
    out->classes = calloc((size_t)n, sizeof *out->classes);
    for (int64_t i = 0; out->classes && i < n; i++) {
        out->classes[i] = strdup(q->classes ? q->classes[i] : t->class_name[i]);
        if (!out->classes[i]) return fputs("out of memory", why), false;
        out->nclasses = i + 1;
    }
    if (q->labels && q->outputs >= 0 && n > q->outputs)
        return fprintf(why, "it has %lld classes, but the model's output has %lld", (long long)n,
                       (long long)q->outputs),
               false;
    return true;
}
