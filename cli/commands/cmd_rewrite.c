/* SPDX-License-Identifier: Apache-2.0
 * `rewrite`: the model with its blocks as functions, and their inverses beside them. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/files/write_files.h"
#include "cli/job/feed.h"
#include "cli/job/output_model.h"
#include "cli/job/session_options.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

/* model.onnx -> model.inv.onnx */
static char *default_out(const char *model)
{
    static const char ending[] = ".onnx";
    size_t n = strlen(model), k = sizeof ending - 1;
    if (n > k && strcmp(model + n - k, ending) == 0) n -= k;
    char *path = malloc(n + sizeof ".inv.onnx");
    if (path) sprintf(path, "%.*s.inv.onnx", (int)n, model);
    return path;
}

/* Inverses of what a given value chose say so. */
static void show_fixed(const json_t *report)
{
    const json_t *fixed = json_object_get(report, "constant_inputs");
    if (json_array_size(fixed) == 0) return;
    printf("  the inverses hold only for the given values of ");
    cli_show_names(stdout, fixed, 6);
    puts(", which decide shapes or branches");
}

static void show_rewritten(const json_t *report)
{
    const json_t *row;
    size_t i;
    printf("%s: %.0f functions, %.0f of them with an inverse\n", pic_string(report, "model"),
           pic_number(report, "functions"), pic_number(report, "inverses"));
    show_fixed(report);
    json_array_foreach(json_object_get(report, "blocks"), i, row)
    {
        const json_t *function = json_object_get(row, "function"), *inverse = json_object_get(row, "inverse");
        const char *reason = pic_string(row, "reason");
        printf("  %s  %s", pic_string(row, "kind"), pic_string(row, "name"));
        if (json_is_null(function)) printf("  is left as it was: %s", reason);
        else printf("  -> %s", pic_string(function, "name"));
        if (!json_is_null(function) && json_is_null(inverse)) printf(", without an inverse: %s", reason);
        putchar('\n');
        if (json_is_null(inverse)) continue;
        printf("      %s(", pic_string(inverse, "name"));
        cli_show_names(stdout, json_object_get(inverse, "inputs"), 6);
        printf(") -> ");
        cli_show_names(stdout, json_object_get(inverse, "outputs"), 6);
        putchar('\n');
    }
}

static void show_inverse(const json_t *report)
{
    size_t i;
    const json_t *note;
    printf("%s: ", pic_string(report, "model"));
    cli_show_names(stdout, json_object_get(report, "inputs"), 6);
    printf(" -> ");
    cli_show_names(stdout, json_object_get(report, "outputs"), 6);
    printf(", by %.0f inverses\n", pic_number(report, "inverses"));
    show_fixed(report);
    json_array_foreach(json_object_get(report, "notes"), i, note) printf("  %s\n", json_string_value(note));
}

/* The inverse direction into a file. */
static int invert(cli_job *job, const inv_session_options *so, const char *path, json_t **report)
{
    const cli_options *o = job->o;
    const inv_reverse_options ro = {.size = sizeof ro,
                                    .given = (const char *const *)o->given.item,
                                    .ngiven = o->given.n,
                                    .logdet = o->logdet,
                                    .with_logdet = o->with_logdet};
    char *text = NULL;
    inv_status s = inv_model_write_inverse(job->model, so, &ro, path, &text);
    if (s != INV_OK) return cli_library_failed(job, s);
    *report = cli_parse_report(job, text);
    return *report ? CLI_OK : CLI_FAILED;
}

/* The model with its blocks as functions, into a file. */
static int outline(cli_job *job, const inv_session_options *so, const char *path, json_t **report)
{
    char *text = NULL;
    inv_status s = inv_model_rewrite(job->model, so, path, &text);
    if (s != INV_OK) return cli_library_failed(job, s);
    *report = cli_parse_report(job, text);
    return *report ? CLI_OK : CLI_FAILED;
}

/* `path` or `inverse_path` may be NULL: that is not written then. */
static int rewrite(cli_job *job, const char *path, const char *inverse_path, FILE *to)
{
    inv_session_options so = {
        .size = sizeof so, .inputs = job->arrays, .ninputs = job->ninputs, .constants_as_needed = true};
    json_t *inverse = NULL, *report = path ? NULL : json_object();
    int status = cli_dump_passes(job->o, &so);
    /* the inverse direction first: if there is none, nothing is written */
    if (status == CLI_OK && inverse_path) status = invert(job, &so, inverse_path, &inverse);
    if (status == CLI_OK && path) status = outline(job, &so, path, &report);
    if (report && inverse) (void)json_object_set(report, "inverse_direction", inverse);
    if (status == CLI_OK && to &&
        (json_dumpf(report, to, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) || fputc('\n', to) == EOF))
        status = cli_fail("--report %s: cannot be written", job->o->report);
    if (status == CLI_OK && job->o->json) status = cli_print_json(report);
    else if (status == CLI_OK && path) show_rewritten(report);
    if (status == CLI_OK && inverse && !job->o->json) show_inverse(inverse);
    json_decref(report);
    json_decref(inverse);
    return status;
}

int cli_main_rewrite(const cli_options *o)
{
    cli_options with_out = *o;
    cli_job job = {0};
    cli_file report = {0};
    const bool asked = o->out || !o->inverse_out; /* who wants the inverse direction alone gets that alone */
    char *made = !o->out && asked ? default_out(o->argument.item[0]) : NULL, *path = NULL, *inverse = NULL;
    if (!o->out && asked && !made) return cli_fail("out of memory");
    if (made) with_out.out = made;
    int status = asked ? cli_out_check(&with_out, &path) : CLI_OK;
    if (status == CLI_OK && o->inverse_out) status = cli_file_check(o, "--inverse-out", o->inverse_out, &inverse);
    if (status == CLI_OK && inverse && path && strcmp(inverse, path) == 0)
        status = cli_usage(o, "--inverse-out %s: is where the rewritten model goes (-o)", o->inverse_out);
    if (status == CLI_OK) {
        status = cli_open(&job, &with_out);
        /* that it can be written is known before the model is */
        if (status == CLI_OK && o->report) status = cli_file_open(&report, o->report);
        if (status == CLI_OK) status = cli_shapes(&job);
        if (status == CLI_OK) status = rewrite(&job, path, inverse, report.f);
        cli_close(&job);
    }
    if (report.f && cli_file_close(&report, status == CLI_OK) != CLI_OK) status = CLI_FAILED;
    free(inverse);
    free(path);
    free(made);
    return status;
}
