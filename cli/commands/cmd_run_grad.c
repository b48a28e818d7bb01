/* SPDX-License-Identifier: Apache-2.0
 * `run` and `grad`: one forward, or one forward and backward, with results as files or as a table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/cmd.h"
#include "cli/files/write_files.h"
#include "cli/job/feed.h"
#include "cli/job/files.h"
#include "cli/job/session_options.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

static const struct {
    inv_what what;
    const char *prefix, *key;
} kinds[] = {{INV_GET_OUTPUT, "out_", "outputs"},
             {INV_GET_GRAD, "grad_", "gradients"},
             {INV_GET_INPUT_GRAD, "gradin_", "input_gradients"},
             {INV_GET_STATE, "state_", "states"}};

static double norm(const void *data, inv_dtype dtype, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double v = npy_element(data, dtype, i);
        sum += v * v;
    }
    return sqrt(sum);
}

static json_t *describe_array(const char *name, const char *file, const void *data, inv_dtype dtype, int rank,
                              const int64_t *dims)
{
    json_t *shape = json_array(), *entry;
    for (int i = 0; i < rank; i++) json_array_append_new(shape, json_integer(dims[i]));
    entry = json_pack("{s:s, s:s, s:o, s:o}", "name", name, "dtype", cli_dtype_name(dtype), "shape", shape, "l2",
                      cli_json_real(norm(data, dtype, cli_nelem(rank, dims))));
    if (file) json_object_set_new(entry, "file", json_string(file));
    return entry;
}

/* Everything of one kind: written if `dump`, described in `report` under its key. */
static int collect_kind(cli_job *job, size_t kind, const char *dump, json_t *report, json_t *files, bool *shortened)
{
    json_t *list = json_array();
    int status = CLI_OK;
    const char *name;
    for (size_t i = 0; status == CLI_OK && (name = inv_session_name(job->session, kinds[kind].what, i)); i++) {
        const void *data;
        inv_dtype dtype;
        int rank;
        int64_t dims[NPY_MAX_RANK];
        inv_status s = inv_session_get(job->session, kinds[kind].what, name, &data, &dtype, &rank, dims);
        if (s != INV_OK) {
            status = cli_library_failed(job, s);
            break;
        }
        char *path = dump ? cli_dump_path(dump, kinds[kind].prefix, name, shortened) : NULL;
        if (dump && !path) status = cli_fail("out of memory");
        if (path) status = cli_write_npy(path, data, dtype, rank, dims, job->o->float64);
        json_array_append_new(list, describe_array(name, path, data, dtype, rank, dims));
        if (path && status == CLI_OK) json_array_append_new(files, json_string(path));
        free(path);
    }
    json_object_set_new(report, kinds[kind].key, list);
    return status;
}

static char *index_path(const char *dump)
{
    char *path = malloc(strlen(dump) + 16);
    if (path) sprintf(path, "%s/index.json", dump);
    return path;
}

/* Names and files, where some of the files could not have their names. */
static int write_index(const char *dump, const json_t *report, json_t *files)
{
    json_t *index = json_object();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        json_t *list = json_array();
        const json_t *entry;
        size_t i;
        json_array_foreach(json_object_get(report, kinds[k].key), i, entry)
        {
            const char *file = pic_string(entry, "file"), *slash = strrchr(file, '/');
            json_array_append_new(
                list, json_pack("{s:s, s:s}", "name", pic_string(entry, "name"), "file", slash ? slash + 1 : file));
        }
        if (json_array_size(list)) json_object_set(index, kinds[k].key, list);
        json_decref(list);
    }
    char *path = index_path(dump), *text = json_dumps(index, JSON_INDENT(2));
    json_decref(index);
    cli_file file;
    int status = path && text ? cli_file_open(&file, path) : cli_fail("out of memory");
    if (status == CLI_OK) {
        fprintf(file.f, "%s\n", text);
        status = cli_file_close(&file, true);
    }
    if (status == CLI_OK) json_array_append_new(files, json_string(path));
    free(text);
    free(path);
    return status;
}

static int write_loss(const char *dump, double loss, json_t *files)
{
    char *path = malloc(strlen(dump) + 16);
    if (!path) return cli_fail("out of memory");
    sprintf(path, "%s/loss.npy", dump);
    int status = cli_write_npy(path, &loss, INV_F64, 1, (const int64_t[]){1}, true);
    if (status == CLI_OK) json_array_append_new(files, json_string(path));
    free(path);
    return status;
}

/* None of the files of a dump is read by the command: before anything is computed. */
static int check_dump(cli_job *job)
{
    const char *dump = job->o->dump, *name;
    bool backward = job->o->command == CLI_CMD_grad, shortened = false;
    int status = CLI_OK;
    if (!dump) return CLI_OK;
    for (size_t k = 0; k < (backward ? sizeof kinds / sizeof *kinds : 1); k++) {
        for (size_t i = 0; status == CLI_OK && (name = inv_session_name(job->session, kinds[k].what, i)); i++) {
            char *path = cli_dump_path(dump, kinds[k].prefix, name, &shortened);
            status = path ? cli_check_write(job, "--dump", dump, path) : cli_fail("out of memory");
            free(path);
        }
    }
    char *loss = backward && status == CLI_OK ? cli_dump_path(dump, "loss", "", NULL) : NULL;
    if (loss) status = cli_check_write(job, "--dump", dump, loss);
    free(loss);
    char *index = shortened && status == CLI_OK ? index_path(dump) : NULL;
    if (index) status = cli_check_write(job, "--dump", dump, index);
    free(index);
    return status;
}

/* A dump is complete or not there. */
static void drop_dump(const char *dump, const json_t *files, bool made)
{
    size_t i;
    const json_t *file;
    json_array_foreach(files, i, file) unlink(json_string_value(file));
    if (made) rmdir(dump);
}

static void show_tensors(const json_t *report, const char *key, const char *title)
{
    const json_t *list = json_object_get(report, key), *t;
    if (json_array_size(list) == 0) return;
    printf("\n%s\n", title);
    size_t i;
    json_array_foreach(list, i, t)
    {
        char *shape = json_dumps(json_object_get(t, "shape"), JSON_COMPACT);
        printf("  %-12.6g %-9s %-18s %s\n", pic_number(t, "l2"), pic_string(t, "dtype"), shape ? shape : "",
               pic_string(t, "name"));
        free(shape);
    }
}

static void show_results(const cli_job *job, const json_t *report)
{
    bool backward = job->o->command == CLI_CMD_grad;
    if (backward) printf("loss %.9g\n", cli_unsigned_nan(pic_number(report, "loss")));
    show_tensors(report, "outputs", "outputs (L2 norm, type, shape)");
    if (!backward) {
        cli_show_profile(report);
        return;
    }
    show_tensors(report, "gradients", "gradients of initializers");
    show_tensors(report, "input_gradients", "gradients of inputs");
    putchar('\n');
    cli_show_peaks(report);
    cli_show_saving(report);
    cli_show_choices(report);
    cli_show_drift(report, true);
    cli_show_profile(report);
}

/* After a successful step: files, then JSON or tables. */
static int deliver_results(cli_job *job, const inv_result *result)
{
    const cli_options *o = job->o;
    bool backward = o->command == CLI_CMD_grad;
    json_t *report = cli_report(job);
    if (!report) return CLI_FAILED;
    json_t *files = json_array();
    bool made = false, shortened = false;
    int status = o->dump ? cli_make_dir(o->dump, &made) : CLI_OK;
    for (size_t k = 0; k < (backward ? sizeof kinds / sizeof *kinds : 1) && status == CLI_OK; k++)
        status = collect_kind(job, k, o->dump, report, files, &shortened);
    if (backward && o->dump && status == CLI_OK) status = write_loss(o->dump, result->loss, files);
    if (shortened && status == CLI_OK) status = write_index(o->dump, report, files);
    if (status != CLI_OK && o->dump) drop_dump(o->dump, files, made);
    if (backward) json_object_set_new(report, "loss", cli_json_real(result->loss));
    json_object_set_new(report, "files", files);
    if (status == CLI_OK) {
        if (o->json) status = cli_print_json(report);
        else if (o->dump)
            cli_note("wrote %zu .npy to %s%s", json_array_size(files) - shortened, o->dump,
                     shortened ? "; some names are too long for files: index.json there says which is which" : "");
        else show_results(job, report);
    }
    json_decref(report);
    return status;
}

static int result_not_finite(const cli_job *job, inv_status s, const inv_result *result)
{
    const char *text = inv_context_message(job->ctx), *node = result->bad_node;
    if (s != INV_E_NUMERIC || !node || (text && strstr(text, node))) return cli_library_failed(job, s);
    return cli_fail("%s; first node with a non-finite output: %s", text && *text ? text : inv_status_text(s), node);
}

/* One batch through the model, with or without gradients. */
static int run_once(const cli_options *o, bool grad)
{
    cli_job job;
    inv_result result = {0};
    int status = cli_open(&job, o);
    if (status == CLI_OK && grad) status = cli_target(&job, true);
    if (status == CLI_OK) status = cli_feed(&job);
    if (status == CLI_OK) status = cli_start(&job, grad ? INV_FOR_TRAIN : INV_FOR_RUN, false);
    if (status == CLI_OK) status = check_dump(&job);
    if (status == CLI_OK) {
        const inv_array *target = job.has_target ? &job.target : NULL;
        inv_status s = grad ? inv_session_grad(job.session, job.arrays, job.ninputs, target, &result)
                            : inv_session_eval(job.session, job.arrays, job.ninputs, target, &result);
        status = s == INV_OK ? deliver_results(&job, &result) : result_not_finite(&job, s, &result);
    }
    cli_close(&job);
    return status;
}

int cli_main_run(const cli_options *o) { return run_once(o, false); }
int cli_main_grad(const cli_options *o) { return run_once(o, true); }
