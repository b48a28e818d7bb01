/* SPDX-License-Identifier: Apache-2.0
 * The picture of a search for a learning rate: the loss over rates that grow from step to step. */
#include <math.h>
#include <string.h>

#include "cli/files/write_files.h"
#include "cli/pages/chart.h"
#include "cli/say/messages.h"

int cli_lr_picture(const char *path, const double *rate, const double *loss, size_t n, double suggested)
{
    cli_series series = {0};
    char mark[64];
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) ok = !(rate[i] > 0) || cli_series_add(&series, rate[i], loss[i]);
    (void)snprintf(mark, sizeof mark, "suggested: %.3g", suggested);
    const cli_chart chart = {.title = "Loss over learning rate",
                             .x_name = "learning rate",
                             .line = {{"loss", &series}},
                             .nline = 1,
                             .log_x = true,
                             .mark = suggested > 0 ? suggested : (double)NAN,
                             .mark_label = mark};
    cli_file file;
    int status = ok ? cli_file_open(&file, path) : cli_fail("out of memory");
    if (status == CLI_OK) {
        const bool page = !cli_is_svg(path);
        if (page)
            fputs("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"color-scheme\" "
                  "content=\"light dark\">\n<title>invonnx: learning rate</title>\n<style>body{margin:24px auto;"
                  "max-width:1000px}svg{width:100%;height:auto}@media (prefers-color-scheme:dark){body{background:"
                  "#14171b}}</style>\n",
                  file.f);
        cli_put_chart(file.f, &chart, true);
        if (page) fputs("</html>\n", file.f);
        status = cli_file_close(&file, true);
    }
    cli_series_fini(&series);
    return status;
}
