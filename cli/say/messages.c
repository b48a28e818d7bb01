/* SPDX-License-Identifier: Apache-2.0
 * What the program says: messages and remarks on stderr, what a run is for people, results as JSON on stdout. */
#include "cli/say/messages.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/say/progress_bar.h"
#include "cli/say/rank.h"
#include "cli/say/terminal.h"

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

bool cli_put_failure(const char *format, va_list args) { return put_message(FAILURE, format, args); }

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

void cli_end_messages(int status)
{
    if (with_json && status != CLI_OK) print_failure(status);
    free(failure);
    json_decref(failure_details);
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

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cli_unsigned_nan(double x) { return isnan(x) ? (double)NAN : x; }

json_t *cli_json_real(double x)
{
    json_t *number = json_real(x);
    return number ? number : json_null();
}

static const struct {
    inv_dtype dtype;
    const char *name;
} dtype_names[] = {{INV_F32, "float"},  {INV_U8, "uint8"},     {INV_I8, "int8"},    {INV_U16, "uint16"},
                   {INV_I16, "int16"},  {INV_I32, "int32"},    {INV_I64, "int64"},  {INV_STRING, "string"},
                   {INV_BOOL, "bool"},  {INV_F16, "float16"},  {INV_F64, "double"}, {INV_U32, "uint32"},
                   {INV_U64, "uint64"}, {INV_BF16, "bfloat16"}};

const char *cli_dtype_name(inv_dtype t)
{
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++) {
        if (dtype_names[i].dtype == t) return dtype_names[i].name;
    }
    return "unknown type";
}

inv_dtype cli_dtype_named(const char *name)
{
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++) {
        if (strcmp(dtype_names[i].name, name) == 0) return dtype_names[i].dtype;
    }
    return INV_DT_NONE;
}
