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

#include "data/watch.h"
#include "ranks.h"

const cli_command cli_commands[CLI_NCOMMANDS] = {
#define COMMAND(name, args, line, about, first, example) {#name, args, line, about, first, example, cli_main_##name},
#include "commands.inc"
#undef COMMAND
};

static bool quiet, with_json;
static char *failure; /* the first message of a failure */
static json_t *failure_details;
static bool has_printed; /* there is a JSON object on stdout */

int cli_print_json(const json_t *object)
{
    has_printed = true;
    if (json_dumpf(object, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) != 0)
        return cli_fail("standard output cannot be written");
    putchar('\n');
    return CLI_OK;
}

int cli_print_text(const char *object)
{
    has_printed = true;
    return puts(object) == EOF ? cli_fail("standard output cannot be written") : CLI_OK;
}

void cli_hush(bool q, bool json)
{
    quiet = q;
    with_json = json;
}

enum { REMARK, WARNING, FAILURE };

/* false: another rank has the word. */
static bool put_message(int kind, const char *format, va_list args)
{
    static const char *const colours[] = {[REMARK] = "", [WARNING] = "\033[33m", [FAILURE] = "\033[1;31m"};
    const bool coloured = kind != REMARK && cli_has_colours(STDERR_FILENO);
    if (kind == FAILURE ? !cli_ranks_turn() : cli_rank() > 0) return false;
    fflush(stdout);
    cli_progress_clear();
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f) {
        vfprintf(f, format, args);
        fclose(f);
    }
    fprintf(stderr, "%sinvonnx:%s ", coloured ? colours[kind] : "", coloured ? "\033[0m" : "");
    if (cli_rank() > 0 && text && strncmp(text, "rank ", 5) != 0) fprintf(stderr, "rank %d: ", cli_rank());
    if (text) cli_put_plain(stderr, text, n, strlen("invonnx: "));
    fputc('\n', stderr);
    if (kind == FAILURE && !failure) failure = text;
    else free(text);
    return true;
}

int cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)put_message(FAILURE, format, args);
    va_end(args);
    return CLI_FAILED;
}

void cli_fail_details(json_t *details)
{
    if (!failure_details) failure_details = json_incref(details);
}

/* What failed, for programs: with --json there is always one object on stdout. */
static void print_failure(int status)
{
    json_t *object = json_object(), *text = failure ? json_string(failure) : NULL;
    if (!text) text = json_string(failure ? "the message is not text" : "failed");
    json_object_set_new(object, "error", text);
    json_object_set_new(object, "status", json_integer(status));
    if (failure_details) json_object_update_missing(object, failure_details);
    if (!has_printed) (void)cli_print_json(object);
    json_decref(object);
}

int cli_usage(const cli_options *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const bool said = put_message(FAILURE, format, args);
    va_end(args);
    if (!said) return CLI_USAGE;
    if (o) fprintf(stderr, "`invonnx %s --help` shows the options\n", cli_commands[o->command].name);
    else fputs("`invonnx --help` shows the commands\n", stderr);
    return CLI_USAGE;
}

void cli_note(const char *format, ...)
{
    va_list args;
    if (quiet) return;
    va_start(args, format);
    (void)put_message(REMARK, format, args);
    va_end(args);
}

void cli_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)put_message(WARNING, format, args);
    va_end(args);
}

int cli_run_fd(void) { return with_json ? STDERR_FILENO : STDOUT_FILENO; }

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
    if (text && with_json) cli_put_plain(stderr, text, n, 0);
    else if (text) fputs(text, stdout); /* as it comes, for those who look into the file meanwhile */
    fflush(with_json ? stderr : stdout);
    free(text);
}

double cli_unsigned_nan(double x) { return isnan(x) ? (double)NAN : x; }

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

const char *cli_nearest(const char *word, size_t n, const char *(*name_at)(size_t i))
{
    const char *nearest = NULL;
    size_t least = strlen(word) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = name_at(i);
        size_t off = name ? inv_name_distance(word, name) : SIZE_MAX;
        if (off > least || (nearest && off == least)) continue;
        least = off;
        nearest = name;
    }
    return nearest;
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
        if (cli_rank() > 0) with_json = o.json = false;
        status = cli_ranks_check(&o);
        if (status == CLI_OK) status = check_arguments(&o);
        if (status == CLI_OK) status = cli_options_check(&o);
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
    for (int i = 1; i < argc; i++) with_json |= strcmp(argv[i], "--json") == 0; /* also where options are wrong */
    cli_plain_stdout(!with_json);
    int status = dispatch(argc, argv);
    const char *cut = status == CLI_FAILED ? NULL : data_watch_cut();
    if (cut) status = cli_fail("'%s' was cut short while it was read, so the results are wrong", cut);
    if (with_json && status != CLI_OK) print_failure(status);
    free(failure);
    json_decref(failure_details);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (status == CLI_OK) status = cli_fail("standard output cannot be written");
    }
    if (status == CLI_FAILED || status == CLI_USAGE) cli_ranks_end(status);
    return status;
}
