/* SPDX-License-Identifier: Apache-2.0
 * Area under the receiver operating characteristic, exact: the share of pairs of a row of the class and another row in
 * which the first has the larger score, equal ones counting half (Mann and Whitney 1947), by the sum of ranks. */
#include <math.h>
#include <stdlib.h>

#include "cli/metrics/metrics.h"

typedef struct ranked {
    double score;
    bool inside;
} ranked;

static int by_score(const void *a, const void *b)
{
    const double x = ((const ranked *)a)->score, y = ((const ranked *)b)->score;
    return (x > y) - (x < y);
}

static double area(ranked *row, size_t n)
{
    double inside = 0, rank_sum = 0;
    qsort(row, n, sizeof *row, by_score);
    for (size_t i = 0, end; i < n; i = end) {
        double equal = 0;
        for (end = i; end < n && row[end].score == row[i].score; end++) equal += row[end].inside;
        rank_sum += equal * ((double)(i + 1) + (double)end) / 2; /* the mean of ranks i + 1 to end */
        inside += equal;
    }
    const double outside = (double)n - inside;
    if (inside == 0 || outside == 0) return (double)NAN;
    return (rank_sum - inside * (inside + 1) / 2) / (inside * outside);
}

/* Whether a row is of the class of column `c`. With two classes the one column is of the second. */
static bool is_inside(const cli_metrics *m, size_t row, size_t c)
{
    if (m->binary) return m->label[row * m->columns + c] != 0;
    return m->label[row] == (int32_t)(m->columns == 1 ? 1 : c);
}

double cli_auc(const cli_metrics *m)
{
    ranked *row = calloc(m->nscored + 1, sizeof *row);
    double sum = 0;
    size_t n = 0;
    for (size_t c = 0; row && c < m->columns; c++) {
        bool numbers = true;
        size_t told = 0;
        for (size_t i = 0; i < m->nscored; i++) {
            if (m->binary && m->label[i * m->columns + c] < 0) continue;
            row[told] = (ranked){m->score[i * m->columns + c], is_inside(m, i, c)};
            numbers = numbers && !isnan(row[told++].score);
        }
        const double a = numbers ? area(row, told) : (double)NAN;
        if (isnan(a)) continue;
        sum += a;
        n++;
    }
    free(row);
    return n ? sum / (double)n : (double)NAN;
}
