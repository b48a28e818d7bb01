/* SPDX-License-Identifier: Apache-2.0
 * The program `invonnx`: finds the command, reads its options, runs it. Messages go to stderr, results to stdout. */
#include "cli.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "watch.h"

const cli_command cli_commands[CLI_NCOMMANDS] = {
#define COMMAND(name, args, line, example) {#name, args, line, example, cli_main_##name},
#include "commands.inc"
#undef COMMAND
};

static bool quiet, with_json;

void cli_hush(bool q, bool json)
{
    quiet = q;
    with_json = json;
}

static void message(const char *format, va_list args)
{
    fflush(stdout);
    cli_progress_clear();
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f) {
        vfprintf(f, format, args);
        fclose(f);
    }
    fputs("invonnx: ", stderr);
    if (text) cli_put_plain(stderr, text, n);
    fputc('\n', stderr);
    free(text);
}

int cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message(format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_usage(const cli_options *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message(format, args);
    va_end(args);
    if (o)
        fprintf(stderr, "`invonnx %s --help` shows the options\n", cli_commands[o->command].name);
    else
        fputs("`invonnx --help` shows the commands\n", stderr);
    return CLI_USAGE;
}

void cli_note(const char *format, ...)
{
    va_list args;
    if (quiet) return;
    va_start(args, format);
    message(format, args);
    va_end(args);
}

void cli_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message(format, args);
    va_end(args);
}

int cli_run_fd(void)
{
    return with_json ? STDERR_FILENO : STDOUT_FILENO;
}

void cli_say(const char *format, ...)
{
    va_list args;
    char *text = NULL;
    size_t n = 0;
    FILE *f = quiet ? NULL : open_memstream(&text, &n);
    if (!f) return;
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    fputc('\n', f);
    fclose(f);
    cli_progress_clear();
    if (text && with_json) cli_put_plain(stderr, text, n);
    else if (text) fputs(text, stdout); /* as it comes, for those who look into the file meanwhile */
    fflush(with_json ? stderr : stdout);
    free(text);
}

double cli_unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* OpenBLAS and OpenMP read their environment when they are loaded, so it must stand before the program starts:
 * set it and start once more. OpenBLAS 0.3.21 does not know newer cores and falls back to kernels of half the speed;
 * waiting threads that spin take the time of those that work. */
static void set_environment(char **argv)
{
    bool changed = false;
#if defined(__x86_64__)
    if (!getenv("OPENBLAS_CORETYPE") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        changed = setenv("OPENBLAS_CORETYPE", "SkylakeX", 0) == 0;
#endif
    if (!getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 0) == 0) changed = true;
    if (changed) execv("/proc/self/exe", argv); /* where that fails, the work is done all the same, slower */
}

static int find_command(const char *name)
{
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        if (strcmp(cli_commands[i].name, name) == 0) return i;
    }
    return -1;
}

static int check_arguments(const cli_options *o)
{
    const char *args = cli_commands[o->command].args;
    size_t least = strncmp(args, "MODEL", 5) == 0, most = least + (strstr(args, "[NODE]") != NULL);
    if (o->argument.n < least) return cli_usage(o, "`%s` wants a MODEL", cli_commands[o->command].name);
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
        status = check_arguments(&o);
        cli_hush(o.quiet, o.json);
        cli_progress_init(o.quiet);
        if (status == CLI_OK) status = cli_commands[command].main(&o);
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
        if (argc > 2 && command < 0) return cli_usage(NULL, "unknown command '%s'", argv[2]);
        cli_help(command);
        return CLI_OK;
    }
    int command = find_command(word);
    if (command >= 0) return run_command(command, argc - 2, argv + 2);
    return cli_usage(NULL, "unknown %s '%s'", *word == '-' ? "option" : "command", word);
}

int main(int argc, char **argv)
{
    set_environment(argv);
    cli_plain_stdout();
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is a failed write, which is reported */
    int status = dispatch(argc, argv);
    const char *cut = status == CLI_FAILED ? NULL : cli_watch_cut();
    if (cut) status = cli_fail("'%s' was cut short while it was read, so the results are wrong", cut);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (status == CLI_OK) status = cli_fail("standard output cannot be written");
    }
    return status;
}
