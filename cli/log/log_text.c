/* SPDX-License-Identifier: Apache-2.0
 * Records as text, a line each: JSON (`--log FILE`), or comma-separated values with a head (`--log FILE.csv`). Numbers
 * have 17 digits, so that what is read back is what was computed. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/log/run_log.h"

static const char *split_of(const cli_record *r) { return r->validation ? "val" : "train"; }

/* Counts as they are, which is quicker than as floating-point numbers. */
static void put_number(cli_growing *g, double x)
{
    if (x == floor(x) && fabs(x) < 1e15) cli_growing_print(g, "%lld", (long long)x);
    else cli_growing_print(g, "%.17g", x);
}

/* --- continuing a file --- */

/* Records are in the order of their steps, so those that stay are in front. */
static bool stays(const cli_run_facts *facts, const char *split, long long step)
{
    const bool validation = strcmp(split, "val") == 0;
    return step < facts->after || (step == facts->after && (!validation || facts->validated));
}

/* How many bytes of a file stay: all of its head, and the lines of `format`, which finds split and step, up to the
 * first that goes or has no end. -1 after saying why it is not continued. */
static int64_t bytes_that_stay(const cli_sink *s, const char *head, const char *format)
{
    char *line = NULL, split[8];
    size_t room = 0, number = 0;
    int64_t kept = 0;
    ssize_t n = 0;
    FILE *f = s->facts->after < 0 ? NULL : fopen(s->path, "r");
    if (!f) return 0;
    while (kept >= 0 && (n = getline(&line, &room, f)) > 0 && line[n - 1] == '\n') {
        long long step = -1;
        number++;
        if (number == 1 && head) {
            if (strcmp(line, head) == 0) kept += n;
            else kept = (cli_fail("%s %s: has other columns than this run; name another file", s->option, s->path), -1);
        } else if (sscanf(line, format, split, &step) != 2) {
            kept =
                (cli_fail("%s %s: line %zu is no record of a run; name another file", s->option, s->path, number), -1);
        } else if (!stays(s->facts, split, step)) {
            break;
        } else {
            kept += n;
        }
    }
    fclose(f);
    free(line);
    return kept;
}

static int open_text(cli_sink *s, const char *head, const char *format)
{
    const int64_t kept = bytes_that_stay(s, head, format);
    if (kept < 0) return CLI_FAILED;
    if (!cli_growing_open(&s->file, s->path, kept))
        return cli_fail("%s %s: cannot be written: %s", s->option, s->path, strerror(errno));
    if (head && kept == 0) cli_growing_add(&s->file, head, strlen(head));
    return CLI_OK;
}

/* --- JSON --- */

static int begin_lines(cli_sink *s, const cli_run_facts *facts)
{
    (void)facts;
    return open_text(s, NULL, "{\"split\":\"%5[a-z]\",\"step\":%lld,");
}

static void put_member(cli_growing *g, const char *name, double x)
{
    cli_growing_print(g, ",\"%s\":", name);
    if (isfinite(x)) put_number(g, x);
    else cli_growing_add(g, "null", 4);
}

/* Nothing, if it is NULL. */
static void put_table(cli_growing *g, const char *name, const json_t *table)
{
    char *text = table ? json_dumps(table, JSON_COMPACT) : NULL;
    if (text) {
        cli_growing_print(g, ",\"%s\":", name);
        cli_growing_add(g, text, strlen(text));
    }
    free(text);
}

static void record_line(cli_sink *s, const cli_record *r)
{
    cli_growing *g = &s->file;
    cli_growing_print(g, "{\"split\":\"%s\",\"step\":%lld,\"epoch\":%lld,\"samples\":%lld,\"seconds\":%.6f",
                      split_of(r), (long long)r->step, (long long)r->epoch, (long long)r->samples, r->seconds);
    for (int i = 0; i < CLI_NSCALARS; i++)
        if (i == CLI_LOSS || !isnan(r->value[i])) put_member(g, cli_scalar_name[i], r->value[i]);
    for (size_t i = 0; i < r->nmetrics; i++) put_member(g, r->metrics[i].name, r->metrics[i].value);
    put_table(g, "confusion", r->confusion);
    put_table(g, "class_names", r->class_names);
    cli_growing_add(g, "}\n", 2);
}

const cli_sink_kind cli_sink_lines = {begin_lines, record_line, NULL, NULL};

/* --- CSV --- */

static int begin_csv(cli_sink *s, const cli_run_facts *facts)
{
    char *head = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&head, &n);
    if (!f) return cli_fail("out of memory");
    fputs("split,step,epoch,samples,seconds", f);
    for (int i = 0; i < CLI_NSCALARS; i++) fprintf(f, ",%s", cli_scalar_name[i]);
    for (size_t i = 0; i < facts->nmetrics; i++) fprintf(f, ",%s", facts->metrics[i].name);
    fputc('\n', f);
    const int status = fclose(f) == 0 ? open_text(s, head, "%5[a-z],%lld,") : cli_fail("out of memory");
    free(head);
    return status;
}

/* What was not measured is left empty; a loss that is no number is said. */
static void put_cell(cli_growing *g, double x, bool measured)
{
    cli_growing_add(g, ",", 1);
    if (isfinite(x)) put_number(g, x);
    else if (measured) cli_growing_print(g, "%g", cli_unsigned_nan(x));
}

static void record_csv(cli_sink *s, const cli_record *r)
{
    cli_growing *g = &s->file;
    cli_growing_print(g, "%s,%lld,%lld,%lld,%.6f", split_of(r), (long long)r->step, (long long)r->epoch,
                      (long long)r->samples, r->seconds);
    for (int i = 0; i < CLI_NSCALARS; i++) put_cell(g, r->value[i], i == CLI_LOSS || isinf(r->value[i]));
    for (size_t i = 0; i < s->facts->nmetrics; i++) {
        const cli_metric *m = i < r->nmetrics ? &r->metrics[i] : NULL;
        put_cell(g, m ? m->value : (double)NAN, m != NULL);
    }
    cli_growing_add(g, "\n", 1);
}

const cli_sink_kind cli_sink_csv = {begin_csv, record_csv, NULL, NULL};
