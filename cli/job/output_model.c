/* SPDX-License-Identifier: Apache-2.0
 * Where models are written: everything that can be wrong with -o is found before the first step, and if saving fails
 * all the same, the weights go elsewhere once. */
#include "cli/job/output_model.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/files/lock.h"
#include "cli/files/write_files.h"
#include "cli/say/rank.h"

static int check_kind(const char *option, const char *given, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno == ENOENT) return CLI_OK; /* what is missing is the file itself or its folder, checked next */
        return cli_fail("%s %s: cannot be written: %s", option, given, strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) return cli_fail("%s %s: is a folder; name a file in it", option, given);
    if (!S_ISREG(st.st_mode)) return cli_fail("%s %s: is not a regular file", option, given);
    if (access(path, W_OK) != 0)
        return cli_fail("%s %s: exists and cannot be written: %s", option, given, strerror(errno));
    return CLI_OK;
}

/* The model is written beside its place and renamed, so files must be creatable there: one is, and removed. */
static int check_folder(const char *option, const char *given, const char *path)
{
    char *dir = strdup(path), *probe = malloc(strlen(path) + 40);
    if (!dir || !probe) {
        free(dir);
        free(probe);
        return cli_fail("out of memory");
    }
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = 0;
    const char *where = slash ? dir : ".";
    struct stat st;
    int status = CLI_OK;
    /* as long as the longest of the names that saving makes */
    sprintf(probe, "%s.data.tmp-%ld-0XXXXXX", path, (long)getpid());
    if (stat(where, &st) != 0) {
        status = cli_fail("%s %s: cannot be written, its folder %s: %s", option, given, where, strerror(errno));
    } else if (!S_ISDIR(st.st_mode)) {
        status = cli_fail("%s %s: cannot be written: %s is not a folder", option, given, where);
    } else {
        int fd = mkstemp(probe);
        if (fd < 0) {
            status = cli_fail("%s %s: cannot be written, no file can be made in folder %s: %s", option, given, where,
                              strerror(errno));
        } else {
            close(fd);
            unlink(probe);
        }
    }
    free(dir);
    free(probe);
    return status;
}

/* The path that is written: of a symbolic link what it points to, so that the link stays. NULL after saying why. */
static char *follow(const char *option, const char *given)
{
    struct stat st;
    bool link = lstat(given, &st) == 0 && S_ISLNK(st.st_mode);
    char *path = link ? realpath(given, NULL) : strdup(given);
    if (path) return path;
    if (link) cli_fail("%s %s: is a symbolic link that leads nowhere: %s", option, given, strerror(errno));
    else cli_fail("out of memory");
    return NULL;
}

int cli_out_check(const cli_options *o, char **path)
{
    *path = NULL;
    if (!o->out) return cli_usage(o, "`%s` wants -o OUT.onnx", cli_commands[o->command].name);
    return cli_file_check(o, "-o", o->out, path);
}

int cli_file_check(const cli_options *o, const char *option, const char *given, char **path)
{
    *path = NULL;
    if (given[strlen(given) - 1] == '/') return cli_usage(o, "%s %s: is a folder; name a file in it", option, given);
    *path = follow(option, given);
    if (!*path) return CLI_FAILED;
    int status = check_kind(option, given, *path);
    if (status == CLI_OK) status = check_folder(option, given, *path);
    return status == CLI_OK ? cli_lock(option, given, *path) : status;
}

/* Saves as `dir`/`base`.rescued-PID.onnx; with `dir` NULL beside the original. `arrays`: .npz in place of .onnx. */
static bool rescue_to(const cli_job *job, const char *dir, const char *base, bool arrays, const char *which)
{
    char *path = malloc((dir ? strlen(dir) : 0) + strlen(base) + 48);
    if (!path) return false;
    sprintf(path, "%s%s%s.rescued-%ld.%s", dir ? dir : "", dir ? "/" : "", base, (long)getpid(),
            arrays ? "npz" : "onnx");
    bool ok = arrays ? cli_write_weights(job->session, path) : inv_model_save(job->model, job->session, path) == INV_OK;
    if (ok) cli_warn("the trained weights%s were saved to %s%s", which, path, arrays ? ", arrays by their names" : "");
    free(path);
    return ok;
}

void cli_out_rescue(const cli_job *job, const char *path, const char *which)
{
    if (cli_rank() > 0) return;
    const char *slash = strrchr(path, '/'), *tmp = getenv("TMPDIR");
    if (!tmp || !*tmp) tmp = "/tmp";
    for (int arrays = 0; arrays < 2; arrays++) {
        if (rescue_to(job, NULL, path, arrays, which)) return;
        if (rescue_to(job, tmp, slash ? slash + 1 : path, arrays, which)) return;
    }
    cli_warn("the trained weights could not be saved elsewhere: %s", inv_context_message(job->ctx));
}

/* The name of a file that the model at `path` is read from: beside it, unless it is that. NULL: no memory. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path) + 1 : 0;
    char *file = malloc((size_t)folder + strlen(name) + 1);
    if (file) sprintf(file, "%.*s%s", folder, path, name);
    return file;
}

static bool is_of_base(const cli_job *job, const char *name)
{
    const json_t *entry;
    size_t i;
    json_array_foreach(json_object_get(job->inspection, "data_files"), i,
                       entry) if (json_is_string(entry) && !strcmp(json_string_value(entry), name)) return true;
    return false;
}

json_t *cli_out_files(const cli_job *job, const char *path)
{
    json_t *files = json_array();
    inv_model *m = NULL;
    const char *name;
    size_t nbytes;
    (void)json_array_append_new(files, json_string(path));
    if (inv_model_load(job->ctx, path, &m) != INV_OK) return files;
    for (size_t i = 1; inv_model_file(m, i, &name, &nbytes); i++) {
        char *file = beside(path, name);
        if (file) (void)json_array_append_new(files, json_string(file));
        if (is_of_base(job, name))
            cli_warn("%s reads unchanged weights from %s, a file of %s: keep both and copy both. Or write all "
                     "weights to one file: --layout inline, or --layout external %s.data",
                     path, file ? file : name, job->path, path);
        free(file);
    }
    inv_model_destroy(m);
    return files;
}

int cli_out_save(const cli_job *job, const char *path)
{
    if (cli_rank() > 0) return CLI_OK;
    inv_status s = inv_model_save(job->model, job->session, path);
    if (s == INV_OK && job->o->adapter_out) s = inv_model_save_adapters(job->model, job->session, job->o->adapter_out);
    if (s == INV_OK) return CLI_OK;
    int status = cli_library_failed(job, s);
    cli_out_rescue(job, path, "");
    return status;
}
