/* SPDX-License-Identifier: Apache-2.0
 * `--dump-passes DIR`: the graph after each pass as DIR/NNN-PASS.txt, numbered as the passes come; of other plans than
 * the main one in a folder of DIR by the plan's name. Numbers go on where a command compiles more than once. */
#include <stdlib.h>
#include <string.h>

#include "cli/files/write_files.h"
#include "cli/job/session_options.h"

enum { MOST_PLANS = 8 };

/* Of the one command that this process runs. */
static struct {
    const char *dir;
    char *plan[MOST_PLANS];
    int written[MOST_PLANS];
} dump;

/* The number of the plan's next file; 0: no room. */
static int next_number(const char *plan)
{
    int i = 0;
    while (i < MOST_PLANS && dump.plan[i] && strcmp(dump.plan[i], plan) != 0) i++;
    if (i == MOST_PLANS || (!dump.plan[i] && !(dump.plan[i] = strdup(plan)))) return 0;
    return ++dump.written[i];
}

static bool write_pass(void *opaque, const char *plan, const char *pass, const char *text)
{
    const bool main_plan = strcmp(plan, "main") == 0;
    const int number = next_number(plan);
    char *path = malloc(strlen(dump.dir) + strlen(plan) + strlen(pass) + 32);
    bool made;
    cli_file file;
    (void)opaque;
    int status = path && number ? CLI_OK : cli_fail("out of memory");
    if (status == CLI_OK && !main_plan) {
        sprintf(path, "%s/%s", dump.dir, plan);
        status = cli_make_dir(path, &made);
    }
    if (status == CLI_OK) {
        sprintf(path, "%s/%s%s%03d-%s.txt", dump.dir, main_plan ? "" : plan, main_plan ? "" : "/", number, pass);
        status = cli_file_open(&file, path);
    }
    if (status == CLI_OK) {
        fputs(text, file.f);
        status = cli_file_close(&file, true);
    }
    free(path);
    return status == CLI_OK;
}

int cli_dump_passes(const cli_options *o, inv_session_options *so)
{
    bool made;
    if (!o->dump_passes) return CLI_OK;
    dump.dir = o->dump_passes;
    so->after_pass = write_pass;
    return cli_make_dir(dump.dir, &made);
}
