/* SPDX-License-Identifier: Apache-2.0
 * `plan`: what a training step would need, from shapes alone. */
#include "cli.h"

int cli_main_plan(const cli_options *o)
{
    cli_job job;
    json_t *report = NULL;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->loss == INV_LOSS_NONE) status = cli_usage(o, "`plan` wants --loss KIND");
    if (status == CLI_OK) status = cli_target(&job, false);
    if (status == CLI_OK) status = cli_shapes(&job);
    if (status == CLI_OK) status = cli_start(&job, INV_FOR_TRAIN, true);
    if (status == CLI_OK && !(report = cli_report(&job))) status = CLI_FAILED;
    if (report && o->html)
        status = cli_picture(o->html, job.path, (const json_t *const[]){report},
                             (const char *const[]){cli_string(report, "memory")}, 1);
    if (report && status == CLI_OK) {
        if (o->json) {
            status = cli_print_json(report);
        } else {
            cli_show_peaks(report);
            cli_show_saving(report);
            cli_show_choices(report);
        }
    }
    json_decref(report);
    cli_close(&job);
    return status;
}
