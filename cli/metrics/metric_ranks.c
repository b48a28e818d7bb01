/* SPDX-License-Identifier: Apache-2.0
 * What several ranks have counted of their parts of a validation, made one: counts are added, sums of squares joined by
 * the means that they are about (Chan, Golub, LeVeque 1979), scores laid one behind the other. A rank that had no batch
 * has counted nothing, and does not know how many classes there are. */
#include <stdlib.h>
#include <string.h>

#include "cli/job/ranks.h"
#include "cli/metrics/metrics.h"
#include "cli/say/rank.h"

typedef struct sizes {
    int64_t rows, nclass, elements, columns, nscored;
} sizes;

static const char what[] = "the metrics of validation";

/* Whole numbers, exact as double. */
static int add_counts(const cli_job *job, int64_t *x, size_t n)
{
    double *sums = malloc((n + 1) * sizeof *sums);
    if (!sums) return cli_fail("out of memory");
    for (size_t i = 0; i < n; i++) sums[i] = (double)x[i];
    const int status = cli_ranks_add(job, what, sums, n);
    for (size_t i = 0; i < n && status == CLI_OK; i++) x[i] = (int64_t)sums[i];
    free(sums);
    return status;
}

static int add_all_counts(const cli_job *job, cli_metrics *m)
{
    const size_t n = (size_t)m->nclass;
    _Static_assert(sizeof(cli_class_counts) == 3 * sizeof(int64_t), "the counts of a class are three numbers");
    int status = add_counts(job, &m->correct, 1);
    if (status == CLI_OK) status = add_counts(job, &m->told, 1);
    if (status == CLI_OK && n) status = add_counts(job, &m->of_class[0].hit, 3 * n);
    if (status == CLI_OK && m->pair) status = add_counts(job, m->pair, m->binary ? 4 : n * n);
    for (size_t i = 0; i < m->n && status == CLI_OK; i++) status = add_counts(job, &m->asked[i].hits, 1);
    return status;
}

static void join_values(cli_value_sums *to, const cli_value_sums *from)
{
    if (!(from->n > 0)) return;
    const double delta = from->mean - to->mean, all = to->n + from->n;
    to->mean += delta * (from->n / all);
    to->deviations += from->deviations + delta * delta * (to->n * from->n / all);
    to->squares += from->squares;
    to->n = all;
}

static int join_all_values(const cli_job *job, cli_metrics *m)
{
    void *all;
    const size_t n = (size_t)m->elements;
    int status = cli_ranks_add(job, what, &m->absolute, 1);
    if (status == CLI_OK) status = cli_ranks_gather(job, what, m->of_element, n * sizeof *m->of_element, &all);
    if (status != CLI_OK) return status;
    memset(m->of_element, 0, n * sizeof *m->of_element);
    for (int r = 0; r < cli_ranks(); r++) {
        const cli_value_sums *from = (const cli_value_sums *)all + (size_t)r * n;
        for (size_t e = 0; e < n; e++) join_values(&m->of_element[e], &from[e]);
    }
    free(all);
    return CLI_OK;
}

/* Those of all ranks, of which each has `most` at most, of nbytes each. */
static int join_rows(const cli_job *job, void **rows, size_t nbytes, size_t own, size_t most, const sizes *of)
{
    char *mine = calloc(most + 1, nbytes), *joined = NULL;
    void *all = NULL;
    int status = mine ? CLI_OK : cli_fail("out of memory");
    if (status == CLI_OK && own) memcpy(mine, *rows, own * nbytes);
    if (status == CLI_OK) status = cli_ranks_gather(job, what, mine, most * nbytes, &all);
    if (status == CLI_OK && !(joined = malloc((size_t)cli_ranks() * most * nbytes + 1)))
        status = cli_fail("out of memory");
    size_t at = 0;
    for (int r = 0; r < cli_ranks() && status == CLI_OK; r++) {
        const size_t n = (size_t)of[r].nscored * nbytes;
        memcpy(joined + at, (char *)all + (size_t)r * most * nbytes, n);
        at += n;
    }
    if (status == CLI_OK) {
        free(*rows);
        *rows = joined;
    }
    free(mine);
    free(all);
    return status;
}

static int join_scores(const cli_job *job, cli_metrics *m, const sizes *of)
{
    size_t most = 0, all = 0;
    for (int r = 0; r < cli_ranks(); r++) {
        if ((size_t)of[r].nscored > most) most = (size_t)of[r].nscored;
        all += (size_t)of[r].nscored;
    }
    void *score = m->score, *label = m->label;
    int status = join_rows(job, &score, m->columns * sizeof *m->score, m->nscored, most, of);
    m->score = score;
    if (status == CLI_OK)
        status = join_rows(job, &label, (m->binary ? m->columns : 1) * sizeof *m->label, m->nscored, most, of);
    m->label = label;
    m->nscored = all;
    m->room = all;
    return status;
}

int cli_metrics_join(cli_job *job)
{
    cli_metrics *m = job->metrics;
    void *all;
    if (!m || cli_ranks() < 2 || !(m->counts || m->values || m->ranks)) return CLI_OK;
    const sizes mine = {m->rows, m->nclass, m->elements, (int64_t)m->columns, (int64_t)m->nscored};
    int status = cli_ranks_gather(job, what, &mine, sizeof mine, &all);
    if (status != CLI_OK) return status;
    const sizes *of = all;
    m->rows = 0;
    for (int r = 0; r < cli_ranks() && status == CLI_OK; r++) {
        if (!m->nclass && !m->elements) status = cli_metrics_room(m, of[r].nclass, of[r].elements);
        if (m->columns == 0) m->columns = (size_t)of[r].columns;
        m->rows += of[r].rows;
    }
    if (status == CLI_OK && job->o->loss != INV_LOSS_NLL) status = add_all_counts(job, m);
    if (status == CLI_OK && m->of_element && m->values && m->elements) status = join_all_values(job, m);
    if (status == CLI_OK && m->ranks) status = join_scores(job, m, of);
    free(all);
    return status;
}
