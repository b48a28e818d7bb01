/* SPDX-License-Identifier: Apache-2.0
 * A run of `train` on several processes that a launcher has started: each reads its part of every batch, rank 0 alone
 * speaks, and writes files. Whatever ends one of them ends all, with one message. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int rank, size = 1;   /* as the launcher says */
static inv_world *joined;    /* NULL: not yet, or this process is alone */
static bool known_to_others; /* what has failed: they have the same message, and the first one speaks */

int cli_rank(void) { return rank; }
int cli_ranks(void) { return size; }

void cli_ranks_find(void) { (void)inv_world_launched(&rank, &size); }

int cli_ranks_check(const cli_options *o)
{
    if (size < 2 || o->command == CLI_CMD_train) return CLI_OK;
    return cli_fail("`%s` is one process, and %d were started: only `train` shares its work among several",
                    cli_commands[o->command].name, size);
}

int cli_ranks_join(cli_job *job)
{
    if (size < 2) return CLI_OK;
    const inv_status s = inv_world_open(job->ctx, job->o->rank_timeout, &joined);
    job->world = joined;
    if (s != INV_OK) return cli_library_failed(job, s);
    if (inv_world_size(joined) == size && inv_world_rank(joined) == rank) return CLI_OK;
    return cli_fail("the launcher says that this is rank %d of %d, and MPI rank %d of %d: they are of different MPIs",
                    rank, size, inv_world_rank(joined), inv_world_size(joined));
}

void cli_ranks_leave(cli_job *job, int status)
{
    if (status == CLI_FAILED || status == CLI_USAGE) return; /* cli_ranks_end */
    inv_world_close(joined);
    job->world = joined = NULL;
}

void cli_ranks_end(int status)
{
    fflush(stdout);
    fflush(stderr);
    inv_world_end_all(joined, status);
}

void cli_ranks_known(void) { known_to_others = true; }

void cli_ranks_turn(void)
{
    const double seconds = joined ? (known_to_others ? 5 : 0.3) : 2, later = 0.05 * (rank < 40 ? rank : 40);
    const double wait = rank ? seconds + later : 0;
    struct timespec t = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
    while (nanosleep(&t, &t) != 0) {
    } /* the launcher ends processes by a signal first, which `train` lives through */
}

int cli_ranks_gather(const cli_job *job, const char *what, const void *mine, size_t nbytes, void **all)
{
    *all = malloc((size_t)size * nbytes + 1);
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
    if (size < 2) return CLI_OK;
    const int status = cli_ranks_gather(job, what, x, n * sizeof *x, &all);
    if (status != CLI_OK) return status;
    memset(x, 0, n * sizeof *x);
    for (size_t i = 0; i < (size_t)size * n; i++) x[i % n] += ((const double *)all)[i];
    free(all);
    return CLI_OK;
}

int cli_ranks_most(const cli_job *job, const char *what, int64_t *x)
{
    void *all;
    if (size < 2) return CLI_OK;
    const int status = cli_ranks_gather(job, what, x, sizeof *x, &all);
    for (int i = 0; status == CLI_OK && i < size; i++)
        if (((const int64_t *)all)[i] > *x) *x = ((const int64_t *)all)[i];
    free(all);
    return status;
}

int cli_ranks_follow(const cli_job *job, const char *what, void *x, size_t nbytes)
{
    void *all;
    if (size < 2) return CLI_OK;
    const int status = cli_ranks_gather(job, what, x, nbytes, &all);
    if (status == CLI_OK) memcpy(x, all, nbytes);
    free(all);
    return status;
}

int cli_ranks_same(const cli_job *job, const char *const *names, const double *x, size_t n)
{
    void *all;
    if (size < 2) return CLI_OK;
    int status = cli_ranks_gather(job, "the comparison of their data and options", x, n * sizeof *x, &all);
    for (size_t i = n; i < (size_t)size * n && status == CLI_OK; i++) {
        const double other = ((const double *)all)[i], first = ((const double *)all)[i % n];
        if (!(other < first || other > first)) continue;
        cli_ranks_known();
        status = cli_fail("rank %d has %s %.15g, and rank 0 %.15g: the ranks must have the same data and options",
                          (int)(i / n), names[i % n], other, first);
    }
    free(all);
    return status;
}

int64_t cli_ranks_rows(int64_t rows, int of, int64_t *before)
{
    const int64_t each = rows / size, more = rows % size;
    *before = of * each + (of < more ? of : more);
    return each + (of < more);
}
