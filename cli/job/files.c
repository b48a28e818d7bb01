/* SPDX-License-Identifier: Apache-2.0
 * What a command reads is never what it writes: every file to be written is compared with all files that are read and
 * with all others that are written, before anything is done. */
#include "cli/job/files.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/image.h"

static const struct {
    const char *option;
    size_t list;
} read_lists[] = {{"--feed", offsetof(cli_options, feed)},
                  {"--data", offsetof(cli_options, data)},
                  {"--val-data", offsetof(cli_options, val_data)},
                  {"--plugin", offsetof(cli_options, plugin)},
                  {"--options", offsetof(cli_options, options)}};

static const struct {
    const char *option;
    size_t text;
} read_texts[] = {{"--target", offsetof(cli_options, target)},
                  {"--val-target", offsetof(cli_options, val_target)},
                  {"--class-weights", offsetof(cli_options, class_weights)},
                  {"--plan", offsetof(cli_options, plan)}};

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strndup(slash ? path : ".", slash == path ? 1 : slash ? (size_t)(slash - path) : 1);
}

static bool same_inode(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether both paths name one file, which need not be there yet. */
static bool same_file(const char *a, const char *b)
{
    if (same_inode(a, b)) return true;
    const char *x = strrchr(a, '/'), *y = strrchr(b, '/');
    if (strcmp(x ? x + 1 : a, y ? y + 1 : b) != 0) return false;
    char *folder_a = folder_of(a), *folder_b = folder_of(b);
    bool same = !folder_a || !folder_b || same_inode(folder_a, folder_b);
    free(folder_a);
    free(folder_b);
    return same;
}

/* Whether `text` names the file: itself, by a pattern, or as one of a class in a folder of pictures. */
static bool names_file(const char *path, const char *text)
{
    if (same_file(path, text) || fnmatch(text, path, FNM_PATHNAME) == 0) return true;
    struct stat st;
    if (stat(text, &st) != 0 || !S_ISDIR(st.st_mode)) return false;
    char *class_folder = folder_of(path), *folder = class_folder ? folder_of(class_folder) : NULL;
    const bool named = folder && same_inode(folder, text) && image_has_suffix(path);
    free(class_folder);
    free(folder);
    return named;
}

/* The same of FILE or NAME=FILE; names may hold '=' themselves. */
static bool named_in(const char *path, const char *text)
{
    bool named = names_file(path, text);
    for (const char *equals = strchr(text, '='); equals && !named; equals = strchr(equals + 1, '='))
        named = names_file(path, equals + 1);
    return named;
}

/* External data is named relative to the model's folder. */
static bool is_data_of_model(const cli_job *job, const char *path)
{
    const json_t *entry;
    size_t i;
    char *folder = folder_of(job->path);
    bool same = !folder;
    json_array_foreach(json_object_get(job->inspection, "data_files"), i, entry)
    {
        const char *location = json_string_value(entry);
        if (same || !location) break;
        char *file = malloc(strlen(folder) + strlen(location) + 2);
        if (file) sprintf(file, "%s/%s", folder, location);
        same = !file || same_file(path, file);
        free(file);
    }
    free(folder);
    return same;
}

/* What reads the file; NULL: nothing. */
static const char *reader_of(const cli_job *job, const char *path)
{
    const char *o = (const char *)job->o;
    if (same_file(path, job->path) || is_data_of_model(job, path)) return "MODEL";
    for (size_t k = 0; k < sizeof read_lists / sizeof *read_lists; k++) {
        const cli_list *list = (const cli_list *)(const void *)(o + read_lists[k].list);
        for (size_t i = 0; i < list->n; i++)
            if (named_in(path, list->item[i])) return read_lists[k].option;
    }
    for (size_t k = 0; k < sizeof read_texts / sizeof *read_texts; k++) {
        const char *text = *(char *const *)(const void *)(o + read_texts[k].text);
        if (text && text == job->o->plan && job->o->command == CLI_CMD_plan) continue; /* which writes it */
        if (text && names_file(path, text)) return read_texts[k].option;
    }
    return NULL;
}

int cli_check_write(const cli_job *job, const char *option, const char *given, const char *path)
{
    const char *reader = reader_of(job, path);
    if (!reader) return CLI_OK;
    return cli_fail("%s %s: would overwrite %s, which %s reads; choose another name", option, given, path, reader);
}

/* The i-th file beside models that options name to be written; NULL past the end. */
static const char *written_text(const cli_options *o, size_t i, const char **option)
{
    const struct {
        const char *option, *path;
    } texts[] = {{"--report", o->report},
                 {"--html", o->html},
                 {"--lr-find", o->lr_find},
                 {"--adapter-out", o->adapter_out},
                 {"--plan", o->command == CLI_CMD_plan ? o->plan : NULL}};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        *option = texts[k].option;
        if (texts[k].path && i-- == 0) return texts[k].path;
    }
    *option = "--log";
    return i < o->log.n ? o->log.item[i] : NULL;
}

/* None of these files from the first on is `path`, which `writer` writes. */
static int check_texts(const cli_options *o, size_t first, const char *path, const char *writer)
{
    const char *text, *option;
    for (size_t i = first; (text = written_text(o, i, &option)); i++)
        if (same_file(text, path))
            return cli_fail("%s %s: would overwrite %s, which %s writes; choose another name", option, text, path,
                            writer);
    return CLI_OK;
}

/* The files beside `path` that weights go into, if any: as many as the model has, or one. */
static int check_weights(const cli_job *job, const char *option, const char *given, const char *path)
{
    const cli_options *o = job->o;
    size_t n = o->layout == INV_LAYOUT_EXTERNAL ? 1 : 0;
    if (o->layout == INV_LAYOUT_KEEP) n = json_array_size(json_object_get(job->inspection, "data_files"));
    char *data = malloc(strlen(path) + 32);
    if (!data) return cli_fail("out of memory");
    int status = CLI_OK;
    for (size_t i = 0; i < n && status == CLI_OK; i++) {
        sprintf(data, "%s.data", path);
        if (i) sprintf(data + strlen(data), ".%zu", i);
        status = cli_check_write(job, option, given, data);
        if (status == CLI_OK) status = check_texts(o, 0, data, option);
    }
    free(data);
    return status;
}

static int check_model(const cli_job *job, const char *option, const char *path)
{
    if (!path) return CLI_OK;
    int status = cli_check_write(job, option, path, path);
    if (status == CLI_OK) status = check_texts(job->o, 0, path, option);
    if (status != CLI_OK) return status;
    char *linked = realpath(path, NULL); /* weights go beside what it links to */
    status = check_weights(job, option, path, linked ? linked : path);
    free(linked);
    return status;
}

int cli_check_writes(const cli_job *job)
{
    const cli_options *o = job->o;
    const char *text, *option;
    int status = CLI_OK;
    for (size_t i = 0; status == CLI_OK && (text = written_text(o, i, &option)); i++) {
        status = cli_check_write(job, option, text, text);
        if (status == CLI_OK) status = check_texts(o, i + 1, text, option);
    }
    if (status == CLI_OK) status = check_model(job, "-o", o->out);
    if (status == CLI_OK) status = check_model(job, "--inverse-out", o->inverse_out);
    if (status == CLI_OK) status = check_model(job, "--model-out", o->model_out);
    return status;
}
