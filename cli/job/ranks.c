/* SPDX-License-Identifier: Apache-2.0
 * A run of `train` on several processes that a launcher has started: each reads its part of every batch, rank 0 alone
 * speaks, and writes files. */
#include "cli/job/ranks.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/option_rows.h"
#include "cli/say/rank.h"

int cli_ranks_check(const cli_options *o)
{
    int r, n;
    const char *apart = o->command == CLI_CMD_train ? inv_world_apart(&r, &n) : NULL;
    if (apart)
        cli_warn(
            "%s started %d processes, this is number %d. They cannot train together: each trains alone, on all data. "
            "Start them with `mpirun -n %d invonnx train` (docs/scaling.md), or start one",
            apart, n, r, n);
    if (cli_ranks() < 2 || o->command == CLI_CMD_train) return CLI_OK;
    return cli_fail("`%s` runs in one process, but %d were started. Only `train` uses several",
                    cli_commands[o->command].name, cli_ranks());
}

int cli_ranks_join(cli_job *job)
{
    if (cli_ranks() < 2) return CLI_OK;
    const inv_status s = inv_world_open(job->ctx, job->o->rank_timeout, &job->world);
    cli_ranks_joined(job->world);
    if (s != INV_OK) return cli_library_failed(job, s);
    if (inv_world_size(job->world) == cli_ranks() && inv_world_rank(job->world) == cli_rank()) return CLI_OK;
    return cli_fail("this is rank %d of %d for the launcher, but rank %d of %d for MPI: they belong to different MPI "
                    "installations",
                    cli_rank(), cli_ranks(), inv_world_rank(job->world), inv_world_size(job->world));
}

void cli_ranks_leave(cli_job *job, int status)
{
    if (status == CLI_FAILED || status == CLI_USAGE) return; /* cli_ranks_end */
    inv_world_close(job->world);
    job->world = NULL;
    cli_ranks_joined(NULL);
}

void cli_ranks_trouble(char **trouble, const char *then, const char *format, ...)
{
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    va_list args;
    va_start(args, format);
    if (f) vfprintf(f, format, args);
    va_end(args);
    if (f) fclose(f);
    if (cli_ranks() < 2) cli_warn("%s%s", text ? text : format, then);
    if (cli_ranks() < 2 || *trouble) free(text);
    else *trouble = text;
}

int cli_ranks_gather(const cli_job *job, const char *what, const void *mine, size_t nbytes, void **all)
{
    *all = malloc((size_t)cli_ranks() * nbytes + 1);
    if (!*all) return cli_fail("out of memory");
    const inv_status s = inv_world_gather(job->world, what, mine, nbytes, *all);
    if (s == INV_OK) return CLI_OK;
    cli_ranks_known();
    free(*all);
    *all = NULL;
    return cli_library_failed(job, s);
}

int cli_ranks_add(const cli_job *job, const char *what, double *x, size_t n)
{
    void *all;
    if (cli_ranks() < 2) return CLI_OK;
    const int status = cli_ranks_gather(job, what, x, n * sizeof *x, &all);
    if (status != CLI_OK) return status;
    memset(x, 0, n * sizeof *x);
    for (size_t i = 0; i < (size_t)cli_ranks() * n; i++) x[i % n] += ((const double *)all)[i];
    free(all);
    return CLI_OK;
}

int cli_ranks_most(const cli_job *job, const char *what, int64_t *x)
{
    void *all;
    if (cli_ranks() < 2) return CLI_OK;
    const int status = cli_ranks_gather(job, what, x, sizeof *x, &all);
    for (int i = 0; status == CLI_OK && i < cli_ranks(); i++)
        if (((const int64_t *)all)[i] > *x) *x = ((const int64_t *)all)[i];
    free(all);
    return status;
}

int cli_ranks_follow(const cli_job *job, const char *what, void *x, size_t nbytes)
{
    void *all;
    if (cli_ranks() < 2) return CLI_OK;
    const int status = cli_ranks_gather(job, what, x, nbytes, &all);
    if (status == CLI_OK) memcpy(x, all, nbytes);
    free(all);
    return status;
}

int cli_ranks_same(const cli_job *job, const char *const *names, const double *x, size_t n)
{
    void *all;
    if (cli_ranks() < 2) return CLI_OK;
    int status = cli_ranks_gather(job, "the comparison of their data", x, n * sizeof *x, &all);
    for (size_t i = n; i < (size_t)cli_ranks() * n && status == CLI_OK; i++) {
        const double other = ((const double *)all)[i], first = ((const double *)all)[i % n];
        if (!(other < first || other > first)) continue;
        cli_ranks_known();
        status = cli_fail("rank %d has %s %.15g, and rank 0 %.15g: the ranks must have the same data and options",
                          (int)(i / n), names[i % n], other, first);
    }
    free(all);
    return status;
}

/* --- options --- */

/* What is said, and how data is prepared, is a rank's own. */
static bool is_own(const cli_row *r)
{
    static const char *const names[] = {"quiet", "json", "data-threads", "rank-timeout"};
    if (r->kind == CLI_ROW_GROUP) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(r->name, names[i]) == 0) return true;
    return false;
}

/* Files and folders may lie elsewhere on each machine: only whether there are any is compared. */
static bool is_path(const cli_row *r)
{
    return r->argument && (strstr(r->argument, "FILE") || strstr(r->argument, "DIR"));
}

static void put_value(FILE *f, const cli_options *o, const cli_row *r)
{
    const void *at = (const char *)o + r->offset;
    const char *word = r->kind == CLI_ROW_CHOICE ? cli_choice_word(r->choices, *(const int *)at) : NULL;
    if (is_path(r)) {
        const bool given = r->kind == CLI_ROW_LIST ? ((const cli_list *)at)->n > 0 : *(char *const *)at != NULL;
        fputs(given ? "given" : "unset", f);
        return;
    }
    switch (r->kind) {
    case CLI_ROW_FLAG: fputs(*(const bool *)at ? "yes" : "no", f); break;
    case CLI_ROW_TEXT: fputs(*(char *const *)at ? *(char *const *)at : "unset", f); break;
    case CLI_ROW_INT:
    case CLI_ROW_SIZE: fprintf(f, "%lld", (long long)*(const int64_t *)at); break;
    case CLI_ROW_REAL: fprintf(f, "%.17g", *(const double *)at); break;
    case CLI_ROW_CHOICE: fputs(word && *word != '?' ? word : "unset", f); break;
    default:
        for (size_t i = 0; i < ((const cli_list *)at)->n; i++) fprintf(f, " %s", ((const cli_list *)at)->item[i]);
    }
}

/* A line of each option, "--lr 0.001\n". NULL: out of memory. */
static char *options_text(const cli_options *o)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (size_t i = 0; i < CLI_NROWS && f; i++) {
        if (is_own(&cli_rows[i])) continue;
        fprintf(f, "--%s ", cli_rows[i].name);
        put_value(f, o, &cli_rows[i]);
        fputc('\n', f);
    }
    if (f) fclose(f);
    return text;
}

static int tell_other_option(int other, const char *its, const char *first)
{
    while (*its == *first) its++, first++; /* they differ, and each has a line of every option */
    const char *line = its;
    const char *own = first;
    for (; line[-1] != '\n' && line[-1] != 0; line--) own--;
    cli_ranks_known();
    return cli_fail("rank %d has %.*s, and rank 0 %.*s: the ranks must have the same data and options", other,
                    (int)strcspn(line, "\n"), line, (int)strcspn(own, "\n"), own);
}

int cli_ranks_same_options(const cli_job *job)
{
    if (cli_ranks() < 2) return CLI_OK;
    char *mine = options_text(job->o), *padded = NULL;
    void *all = NULL;
    int64_t most = mine ? (int64_t)strlen(mine) + 2 : 2;
    int status = cli_ranks_most(job, "the comparison of their options", &most);
    if (status == CLI_OK && !(mine && (padded = calloc((size_t)most, 1)))) status = cli_fail("out of memory");
    if (status == CLI_OK) strcpy(padded + 1, mine); /* a zero in front ends the way back */
    if (status == CLI_OK) status = cli_ranks_gather(job, "the comparison of their options", padded, (size_t)most, &all);
    for (int r = 1; status == CLI_OK && r < cli_ranks(); r++) {
        const char *its = (const char *)all + (size_t)r * (size_t)most + 1, *first = (const char *)all + 1;
        if (strcmp(its, first) != 0) status = tell_other_option(r, its, first);
    }
    free(mine);
    free(padded);
    free(all);
    return status;
}
