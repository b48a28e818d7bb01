/* SPDX-License-Identifier: Apache-2.0
 * The program `invonnx`: finds the command, reads its options, runs it. Messages go to stderr, results to stdout. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/cmd.h"
#include "cli/job/ranks.h"
#include "cli/options/manual.h"
#include "cli/say/progress_bar.h"
#include "cli/say/rank.h"
#include "cli/say/terminal.h"
#include "data/watch.h"

static int (*const mains[CLI_NCOMMANDS])(const cli_options *) = {
#define COMMAND(name, args, line, about, first, example) cli_main_##name,
#include "cli/options/commands.inc"
#undef COMMAND
};

/* OpenBLAS and OpenMP read their environment when they are loaded, so it must stand before the program starts:
 * set it and start once more. OpenBLAS 0.3.21 does not know newer cores and falls back to kernels of half the speed;
 * waiting threads that spin take the time of those that work. */
static void set_environment(char **argv)
{
    bool changed = false;
    char path[4096];
#if defined(__x86_64__)
    if (!getenv("OPENBLAS_CORETYPE") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        changed = setenv("OPENBLAS_CORETYPE", "SkylakeX", 0) == 0;
#endif
    if (!getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 0) == 0) changed = true;
    const ssize_t n = changed ? readlink("/proc/self/exe", path, sizeof path - 1) : -1;
    if (n < 0) return;
    path[n] = 0;
    execv(path, argv); /* by the link the process would be called "exe", and pkill not find it by its name */
    execv("/proc/self/exe", argv); /* where that fails, the work is done all the same, slower */
}

static const char *command_at(size_t i) { return cli_commands[i].name; }

static int unknown_command(const char *word)
{
    const char *near = cli_nearest(word, CLI_NCOMMANDS, command_at);
    return cli_usage(NULL, "unknown %s '%s'%s%s%s", *word == '-' ? "option" : "command", word,
                     near ? "; did you mean `" : "", near ? near : "", near ? "`?" : "");
}

static int find_command(const char *name)
{
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        if (strcmp(cli_commands[i].name, name) == 0) return i;
    }
    return -1;
}

/* The words before those of options. */
static size_t required(const char *args)
{
    size_t n = 0;
    for (; *args && *args != '[' && *args != '-'; n++) {
        args += strcspn(args, " ");
        args += strspn(args, " ");
    }
    return n;
}

/* The words in brackets, of which none is an option: "[NODE]", "[new|test FILE]". */
static size_t optional(const char *args)
{
    const char *at = strchr(args, '[');
    size_t n = at && at[1] != '-';
    for (; n && *at && *at != ']'; at++) n += *at == ' ';
    return n;
}

static int check_arguments(const cli_options *o)
{
    const char *args = cli_commands[o->command].args;
    const bool model = strncmp(args, "MODEL", 5) == 0;
    size_t least = required(args), most = least + optional(args);
    if (o->argument.n < least)
        return cli_usage(o, "`%s` wants %s", cli_commands[o->command].name, model ? "a MODEL" : args);
    if (o->argument.n > most) return cli_usage(o, "unexpected argument '%s'", o->argument.item[most]);
    return CLI_OK;
}

static int run_command(int command, int argc, char **argv)
{
    cli_options o;
    int status = cli_options_read(&o, command, argc, argv);
    if (status == CLI_OK && o.help) {
        cli_help(command);
    } else if (status == CLI_OK && o.version) {
        printf("invonnx %s\n", inv_version());
    } else if (status == CLI_OK) {
        if (cli_rank() > 0) o.quiet = true; /* rank 0 speaks for all */
        if (cli_rank() > 0) cli_hush(false, o.json = false);
        status = cli_ranks_check(&o);
        if (status == CLI_OK) status = check_arguments(&o);
        if (status == CLI_OK) status = cli_options_check(&o);
        cli_hush(o.quiet, o.json);
        cli_progress_init(o.quiet);
        if (status == CLI_OK) status = mains[command](&o);
        cli_progress_clear();
    }
    cli_options_fini(&o);
    return status;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) return cli_usage(NULL, "no command given");
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0) {
        printf("invonnx %s\n", inv_version());
        return CLI_OK;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        int command = argc > 2 ? find_command(argv[2]) : -1;
        if (argc > 2 && command < 0) return unknown_command(argv[2]);
        cli_help(command);
        return CLI_OK;
    }
    if (strcmp(word, "--write-pages") == 0 && argc == 3) return cli_write_pages(argv[2]); /* the build's */
    int command = find_command(word);
    if (command >= 0) return run_command(command, argc - 2, argv + 2);
    return unknown_command(word);
}

int main(int argc, char **argv)
{
    set_environment(argv);
    cli_ranks_find();
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is a failed write, which is reported */
    bool json = false;
    for (int i = 1; i < argc; i++) json |= strcmp(argv[i], "--json") == 0; /* also where options are wrong */
    cli_hush(false, json);
    cli_plain_stdout(!json);
    int status = dispatch(argc, argv);
    const char *cut = status == CLI_FAILED ? NULL : data_watch_cut();
    if (cut) status = cli_fail("'%s' was cut short while it was read, so the results are wrong", cut);
    cli_end_messages(status);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (status == CLI_OK) status = cli_fail("standard output cannot be written");
    }
    if (status == CLI_FAILED || status == CLI_USAGE) cli_ranks_end(status);
    return status;
}
