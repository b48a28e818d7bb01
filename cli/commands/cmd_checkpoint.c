/* SPDX-License-Identifier: Apache-2.0
 * `checkpoint`: whether what a run can go on from is whole. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/commands/cmd.h"
#include "cli/train/train.h"
#include "pictures/report_text.h"

/* What is found of one file. NULL: out of memory. */
static json_t *verify(const cli_job *job, const char *path)
{
    char *text = NULL;
    const inv_status s = inv_state_inspect(job->ctx, path, &text);
    if (s == INV_E_NOMEM) return NULL;
    if (s != INV_OK) {
        json_t *why = json_string(inv_context_message(job->ctx));
        return json_pack("{s:s?, s:b, s:o}", "file", path, "whole", 0, "error", why ? why : json_string("not text"));
    }
    json_t *found = cli_parse_report(job, text), *one = json_pack("{s:s?, s:b}", "file", path, "whole", 1);
    if (found) json_object_update(one, found);
    json_decref(found);
    return one;
}

static int verify_folder(const cli_job *job, json_t *list)
{
    int64_t *steps;
    const int64_t n = cli_checkpoint_steps(job->path, &steps);
    int status = n < 0 ? cli_fail("%s: cannot be read: %s", job->path, strerror(errno)) : CLI_OK;
    if (n == 0) status = cli_fail("no checkpoint (step-N.safetensors) is in %s", job->path);
    for (int64_t i = 0; i < n && status == CLI_OK; i++) {
        char *path = cli_checkpoint_path(job->path, steps[i]);
        json_t *one = path ? verify(job, path) : NULL;
        if (!one) status = cli_fail("out of memory");
        else if (!json_object_get(one, "step")) json_object_set_new(one, "step", json_integer((json_int_t)steps[i]));
        if (one) json_array_append_new(list, one);
        free(path);
    }
    free(steps);
    return status;
}

static void show(const json_t *list)
{
    const json_t *one, *step;
    size_t i;
    json_array_foreach(list, i, one)
    {
        if ((step = json_object_get(one, "step"))) printf("step %lld: ", (long long)json_integer_value(step));
        if (!json_is_true(json_object_get(one, "whole"))) printf("not whole: %s\n", pic_string(one, "error"));
        else
            printf("whole: %s, %.0f tensors, %s%s\n", pic_string(one, "file"), pic_number(one, "tensors"),
                   pic_bytes(pic_number(one, "bytes")),
                   json_is_true(json_object_get(one, "checksums"))
                       ? ""
                       : "; of an earlier version, without checksums: damage to tensors is not found");
    }
}

static int verify_all(const cli_job *job, json_t *list)
{
    struct stat st;
    if (stat(job->path, &st) != 0) return cli_fail("%s: cannot be read: %s", job->path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return verify_folder(job, list);
    return json_array_append_new(list, verify(job, job->path)) == 0 ? CLI_OK : cli_fail("out of memory");
}

int cli_main_checkpoint(const cli_options *o)
{
    cli_job job = {.o = o, .path = o->argument.item[0]};
    const json_t *one;
    size_t i, damaged = 0;
    if (!o->verify) return cli_usage(o, "`checkpoint` needs --verify, which checks each checkpoint in %s", job.path);
    json_t *list = json_array(), *report = json_pack("{s:o}", "checkpoints", list);
    job.ctx = cli_context(o);
    int status = job.ctx ? verify_all(&job, list) : CLI_FAILED;
    json_array_foreach(list, i, one) damaged += !json_is_true(json_object_get(one, "whole"));
    if (!o->json) show(list);
    if (status == CLI_OK && damaged) {
        status = cli_fail("%zu of %zu checkpoints in %s %s not whole", damaged, json_array_size(list), job.path,
                          damaged == 1 ? "is" : "are");
        cli_fail_details(report);
    } else if (status == CLI_OK && o->json) {
        status = cli_print_json(report);
    }
    json_decref(report);
    cli_close(&job);
    return status;
}
