/* SPDX-License-Identifier: Apache-2.0
 * `adapter`: adapters of a model merged into its weights, taken out into a file of their own, or shown. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/output_model.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

/* The options without the word that says what is to be done: the first argument is the file then. */
static cli_options of_file(const cli_options *o)
{
    cli_options rest = *o;
    rest.argument.item++;
    rest.argument.n--;
    return rest;
}

static int save(const cli_job *job, const char *path)
{
    const inv_status s = inv_model_save(job->model, NULL, path);
    if (s == INV_OK) json_decref(cli_out_files(job, path)); /* for what it says */
    return s == INV_OK ? CLI_OK : cli_library_failed(job, s);
}

/* Prints a report of the library, which goes with it. */
static int finish(const cli_job *job, char *text, void (*show)(const json_t *report))
{
    json_t *report = cli_parse_report(job, text);
    int status = report ? CLI_OK : CLI_FAILED;
    if (report && job->o->json) status = cli_print_json(report);
    else if (report) show(report);
    json_decref(report);
    return status;
}

static void put_shape(const json_t *shape)
{
    const json_t *n;
    size_t i;
    putchar('[');
    json_array_foreach(shape, i, n) printf("%s%lld", i ? "," : "", (long long)json_integer_value(n));
    putchar(']');
}

static void show_adapters(const json_t *report)
{
    const json_t *a;
    size_t i;
    double nbytes = 0;
    json_array_foreach(json_object_get(report, "adapters"), i, a)
    {
        printf("%s ", pic_string(a, "weight"));
        put_shape(json_object_get(a, "shape"));
        printf("%s: rank %.0f, scale %g, A ", json_is_true(json_object_get(a, "quantized")) ? " quantized" : "",
               pic_number(a, "rank"), pic_number(a, "scale"));
        put_shape(json_object_get(a, "A"));
        printf(" B ");
        put_shape(json_object_get(a, "B"));
        printf(" %s, %s, of ", pic_string(a, "dtype"), pic_bytes(pic_number(a, "bytes")));
        cli_show_names(stdout, json_object_get(a, "nodes"), 4);
        putchar('\n');
        nbytes += pic_number(a, "bytes");
    }
    const size_t n = json_array_size(json_object_get(report, "adapters"));
    printf("%zu adapter%s, %s\n", n, n == 1 ? "" : "s", pic_bytes(nbytes));
}

static void show_file(const json_t *report)
{
    const json_t *p;
    size_t i;
    const double model = pic_number(report, "model_version"), mark = 1 << 30; /* from there on a fingerprint */
    printf("format version %.0f, adapter version %.0f, ", pic_number(report, "format_version"),
           pic_number(report, "adapter_version"));
    if (model < mark) printf("model version %.0f\n", model);
    else printf("fingerprint of the base %08lx\n", (unsigned long)model);
    json_array_foreach(json_object_get(report, "parameters"), i, p)
    {
        printf("%s ", pic_string(p, "name"));
        put_shape(json_object_get(p, "shape"));
        printf(" %s, %s\n", pic_string(p, "dtype"), pic_bytes(pic_number(p, "bytes")));
    }
    printf("%zu parameters, %s\n", json_array_size(json_object_get(report, "parameters")),
           pic_bytes(pic_number(report, "bytes")));
}

/* --- what is to be done --- */

/* Its file is put on the model, and one that was trained beside other weights is told of. */
static inv_status load(const cli_job *job, const char *path)
{
    char *text = NULL;
    const inv_status s = inv_model_load_adapters(job->model, path, &text);
    json_t *report = s == INV_OK ? cli_parse_report(job, text) : NULL;
    if (report && !strcmp(pic_string(report, "base"), "other"))
        cli_warn("%s was trained with another base than %s: elements or names of the weights differ. The result may "
                 "be wrong. Give the base that the adapter was trained with",
                 path, job->path);
    json_decref(report);
    return s;
}

static int merge(const cli_options *o)
{
    cli_job job = {0};
    char *path = NULL, *text = NULL;
    int status = cli_out_check(o, &path);
    if (status == CLI_OK) status = cli_open(&job, o);
    if (status == CLI_OK) {
        inv_status s = o->adapter ? load(&job, o->adapter) : INV_OK;
        if (s == INV_OK) s = inv_model_merge_adapters(job.model, &text);
        status = s == INV_OK ? save(&job, path) : cli_library_failed(&job, s);
    }
    if (status == CLI_OK) status = finish(&job, text, show_adapters);
    cli_close(&job);
    free(path);
    return status;
}

static int extract(const cli_options *o)
{
    cli_job job = {0};
    char *path = NULL, *model_path = NULL, *text = NULL;
    int status = cli_out_check(o, &path);
    if (status == CLI_OK && o->model_out) status = cli_file_check(o, "--model-out", o->model_out, &model_path);
    if (status == CLI_OK && model_path && strcmp(path, model_path) == 0)
        status = cli_usage(o, "--model-out %s: is where the adapters go (-o)", o->model_out);
    if (status == CLI_OK) status = cli_open(&job, o);
    if (status == CLI_OK) {
        inv_status s = inv_model_adapters(job.model, &text);
        if (s == INV_OK) s = inv_model_save_adapters(job.model, NULL, path);
        if (s == INV_OK && model_path) s = inv_model_free_adapters(job.model);
        status = s == INV_OK ? CLI_OK : cli_library_failed(&job, s);
    }
    if (status == CLI_OK && model_path) status = save(&job, model_path);
    if (status == CLI_OK) status = finish(&job, text, show_adapters);
    cli_close(&job);
    free(path);
    free(model_path);
    return status;
}

/* Whether it says that it is one; what cannot be read is found out by whoever reads it. */
static bool is_adapter_file(const char *path)
{
    char head[8] = "";
    FILE *f = fopen(path, "rb");
    const bool is = f && fread(head, 1, sizeof head, f) == sizeof head && memcmp(head + 4, "TORT", 4) == 0;
    if (f) fclose(f);
    return is;
}

static int show(const cli_options *o)
{
    cli_job job = {.o = o, .path = o->argument.item[0]};
    char *text = NULL;
    const bool file = is_adapter_file(job.path);
    int status = CLI_OK;
    if (file) job.ctx = cli_context(o);
    else status = cli_open(&job, o);
    if (status == CLI_OK && (!file || job.ctx)) {
        const inv_status s =
            file ? inv_adapters_inspect(job.ctx, job.path, &text) : inv_model_adapters(job.model, &text);
        status = s == INV_OK ? finish(&job, text, file ? show_file : show_adapters) : cli_library_failed(&job, s);
    } else if (status == CLI_OK) {
        status = CLI_FAILED;
    }
    cli_close(&job);
    return status;
}

int cli_main_adapter(const cli_options *o)
{
    const char *what = o->argument.item[0];
    const cli_options rest = of_file(o);
    if (strcmp(what, "merge") == 0) return merge(&rest);
    if (strcmp(what, "extract") == 0) return extract(&rest);
    if (strcmp(what, "show") == 0) return show(&rest);
    return cli_usage(o, "`adapter` wants merge, extract or show, not '%s'", what);
}
