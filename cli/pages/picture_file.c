/* SPDX-License-Identifier: Apache-2.0
 * Pictures of memory as files. */
#include "cli/pages/picture_file.h"

#include "cli/files/write_files.h"
#include "cli/pages/chart.h"
#include "cli/say/messages.h"

int cli_picture(const char *path, const pic_memory *drawn)
{
    cli_file file;
    int status = cli_file_open(&file, path);
    if (status != CLI_OK) return status;
    const bool drew = pic_put_memory(file.f, drawn, !cli_is_svg(path));
    status = cli_file_close(&file, drew);
    return drew ? status : cli_fail("out of memory");
}
