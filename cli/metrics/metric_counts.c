/* SPDX-License-Identifier: Apache-2.0
 * What is gathered for metrics from the output that the loss is taken of and the targets, batch by batch. Which labels
 * count, and along which axis classes are, is as the loss has it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/job/labels.h"
#include "cli/metrics/metrics.h"

enum { MOST_SCORES = 1 << 26 /* that are kept for AUC */, MOST_PAIRED = 256 /* classes of a confusion matrix */ };

/* An output, and the target that belongs to it. */
typedef struct pairing {
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8];
    const inv_array *target;
    int64_t per_row; /* elements of a row of the target */
    bool probabilities;
} pairing;

static int64_t product(const int64_t *dims, int first, int end)
{
    int64_t n = 1;
    for (int d = first; d < end; d++) n *= dims[d];
    return n;
}

/* Element i of the batch's target, whose rows may lie anywhere in the data. */
static double target_at(const pairing *p, int64_t i)
{
    if (p->target->rows) i = p->target->rows[i / p->per_row] * p->per_row + i % p->per_row;
    return npy_element(p->target->data, p->target->dtype, (size_t)i);
}

static double output_at(const pairing *p, int64_t i)
{
    return p->dtype == INV_F32 ? (double)((const float *)p->data)[i] : ((const double *)p->data)[i];
}

/* Logits that give the output's probabilities: by a Softmax, or each by itself. */
static double softmax_logit(const pairing *p, int64_t i)
{
    return p->probabilities ? log(output_at(p, i)) : output_at(p, i);
}

static double sigmoid_logit(const pairing *p, int64_t i)
{
    const double x = output_at(p, i);
    return p->probabilities ? log(x) - log1p(-x) : x;
}

/* --- cross entropy --- */

/* The axis that the target's labels leave for classes; of several one of more than one class, as the library takes it.
 */
static int class_axis(const cli_options *o, const pairing *p)
{
    int found = 1;
    bool any = false;
    if (o->class_axis != INT64_MIN) return (int)(o->class_axis < 0 ? o->class_axis + p->rank : o->class_axis);
    for (int axis = 1; axis < p->rank; axis++) {
        bool fits = p->target->rank == p->rank - 1;
        for (int d = 0; d < p->target->rank && fits; d++) fits = p->target->dims[d] == p->dims[d + (d >= axis)];
        if (!fits || (any && p->dims[axis] <= 1)) continue;
        found = axis;
        any = true;
    }
    return found;
}

/* How many classes stand before `label` in the order of their logits, the first of equal ones in front. */
static int64_t place_of(const double *logits, int64_t n, int64_t label)
{
    int64_t before = 0;
    for (int64_t k = 0; k < n; k++) before += logits[k] > logits[label] || (logits[k] == logits[label] && k < label);
    return before;
}

static int64_t largest_of(const double *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}

static void count_row(cli_metrics *m, int64_t label)
{
    const int64_t taken = largest_of(m->logits, m->nclass);
    m->of_class[taken].predicted++;
    m->of_class[label].actual++;
    m->of_class[label].hit += taken == label;
    if (m->pair) m->pair[label * m->nclass + taken]++;
    if (!m->places) return;
    const int64_t place = place_of(m->logits, m->nclass, label);
    for (size_t i = 0; i < m->n; i++) m->asked[i].hits += m->asked[i].k > place;
}

static bool make_score_room(cli_metrics *m)
{
    if (m->nscored < m->room) return true;
    const size_t room = 2 * m->room + 1024;
    double *score = realloc(m->score, room * m->columns * sizeof *score);
    if (score) m->score = score;
    int32_t *label = realloc(m->label, room * (m->binary ? m->columns : 1) * sizeof *label);
    if (label) m->label = label;
    if (score && label) m->room = room;
    return score && label;
}

static int scores_failed(const cli_metrics *m)
{
    if (m->nscored * m->columns >= MOST_SCORES)
        return cli_fail("--metric auc: keeps a score per row and class, and these are more than %d", MOST_SCORES);
    return cli_fail("out of memory");
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rows are compared by their probabilities of a class, of which logarithms have the order. The sum is taken in the
 * order of the logits, not of the classes, and differences of float32 are exact in double, so rows tie whose logits are
 * the same in another order, or all larger by one number. */
static void keep_probabilities(cli_metrics *m, int64_t label)
{
    const size_t n = (size_t)m->nclass;
    double *sorted = m->logits + n, sum = 0;
    memcpy(sorted, m->logits, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    const double top = sorted[n - 1];
    for (size_t k = 0; k < n; k++) sum += exp(sorted[k] - top);
    double *score = m->score + m->nscored * m->columns;
    for (size_t c = 0; c < m->columns; c++) {
        const double logit = m->logits[m->columns == 1 ? 1 : c];
        score[c] = logit - top - log(sum);
    }
    m->label[m->nscored++] = (int32_t)label;
}

static int add_classes(cli_metrics *m, const cli_options *o, const pairing *p)
{
    const int axis = class_axis(o, p);
    const int64_t inner = product(p->dims, axis + 1, p->rank), outer = product(p->dims, 0, axis);
    m->columns = m->nclass == 2 ? 1 : (size_t)m->nclass;
    for (int64_t i = 0; i < outer * inner; i++) {
        const double label = target_at(p, i);
        if (cli_is_missing(o, label)) continue;
        const int64_t first = i / inner * m->nclass * inner + i % inner;
        for (int64_t k = 0; k < m->nclass; k++) m->logits[k] = softmax_logit(p, first + k * inner);
        if (m->counts) count_row(m, (int64_t)label);
        if (m->ranks && (m->nscored * m->columns >= MOST_SCORES || !make_score_room(m))) return scores_failed(m);
        if (m->ranks) keep_probabilities(m, (int64_t)label);
        m->rows++;
    }
    return CLI_OK;
}

/* --- binary cross entropy: labels along axis 1, which a row has or has not; without one there is one label --- */

static int add_labels(cli_metrics *m, const cli_options *o, const pairing *p)
{
    const int64_t inner = product(p->dims, 2, p->rank), outer = p->rank ? p->dims[0] : 1;
    m->columns = (size_t)m->nclass;
    for (int64_t i = 0; i < outer * inner; i++) {
        const int64_t first = i / inner * m->nclass * inner + i % inner;
        if (m->ranks && (m->nscored * m->columns >= MOST_SCORES || !make_score_room(m))) return scores_failed(m);
        for (int64_t k = 0; k < m->nclass; k++) {
            const double logit = sigmoid_logit(p, first + k * inner), target = target_at(p, first + k * inner);
            const bool actual = target > 0.5, predicted = logit > 0, missing = cli_is_missing(o, target);
            if (m->ranks) {
                m->score[m->nscored * m->columns + (size_t)k] = logit;
                m->label[m->nscored * m->columns + (size_t)k] = missing ? -1 : actual;
            }
            if (missing) continue;
            m->told++;
            m->of_class[k].predicted += predicted;
            m->of_class[k].actual += actual;
            m->of_class[k].hit += actual && predicted;
            m->correct += actual == predicted;
            if (m->pair) m->pair[2 * actual + predicted]++;
        }
        m->nscored += m->ranks;
        m->rows++;
    }
    return CLI_OK;
}

/* --- values --- */

/* Means and deviations as each row comes (Welford 1962), since squares of large numbers would cancel. */
static void add_values(cli_metrics *m, const cli_options *o, const pairing *p)
{
    const int64_t rows = p->rank ? p->dims[0] : 1;
    for (int64_t r = 0; r < rows; r++) {
        m->rows++;
        for (int64_t e = 0; e < m->elements; e++) {
            cli_value_sums *s = &m->of_element[e];
            const double wanted = target_at(p, r * m->elements + e), off = output_at(p, r * m->elements + e) - wanted;
            if (cli_is_missing(o, wanted)) continue;
            const double delta = wanted - s->mean;
            s->mean += delta / ++s->n;
            s->deviations += delta * (wanted - s->mean);
            s->squares += off * off;
            m->absolute += fabs(off);
        }
    }
}

/* --- any --- */

static bool is_float(inv_dtype t) { return t == INV_F32 || t == INV_F64; }

/* The output that the loss is taken of; of a flow's the first. */
static int find_output(cli_job *job)
{
    cli_metrics *m = job->metrics;
    const char *name = inv_session_name(job->session, INV_GET_LOSS_OUTPUT, 0);
    if (name) m->output = strdup(name);
    return m->output ? CLI_OK : cli_fail("--metric %s: there is no output to take it of", m->asked[m->n - 1].name);
}

static int read_output(cli_job *job, const char *name, const inv_array *target, pairing *p)
{
    *p = (pairing){.target = target, .per_row = 1, .probabilities = job->o->probabilities};
    const inv_status s = inv_session_get(job->session, INV_GET_OUTPUT, name, &p->data, &p->dtype, &p->rank, p->dims);
    if (s != INV_OK) return cli_library_failed(job, s);
    if (!is_float(p->dtype)) return cli_fail("output '%s' is of type %s", name, cli_dtype_name(p->dtype));
    if (target) p->per_row = product(target->dims, 1, target->rank);
    return CLI_OK;
}

int cli_metrics_room(cli_metrics *m, int64_t nclass, int64_t elements)
{
    m->nclass = nclass;
    m->elements = elements;
    if (m->pairs && m->binary && m->nclass > 1)
        return cli_fail("--metric confusion: rows have %lld labels each, and a matrix is of one", (long long)m->nclass);
    if (m->pairs && m->nclass > MOST_PAIRED)
        return cli_fail("--metric confusion: there are %lld classes, and a matrix is of %d at most",
                        (long long)m->nclass, MOST_PAIRED);
    const size_t n = (size_t)m->nclass, pairs = m->binary ? 4 : n * n;
    m->of_class = calloc(n + 1, sizeof *m->of_class);
    m->logits = calloc(2 * n + 1, sizeof *m->logits);
    m->of_element = calloc(m->values ? (size_t)elements + 1 : 1, sizeof *m->of_element);
    if (m->pairs) m->pair = calloc(pairs + 1, sizeof *m->pair);
    return m->of_class && m->logits && m->of_element && (m->pair || !m->pairs) ? CLI_OK : cli_fail("out of memory");
}

static int make_room(cli_metrics *m, const cli_options *o, const pairing *p)
{
    const int64_t elements = product(p->dims, 1, p->rank);
    int64_t nclass = 0;
    if (m->nclass || m->elements) return CLI_OK;
    if (o->loss == INV_LOSS_CROSS_ENTROPY) nclass = p->dims[class_axis(o, p)];
    if (m->binary) nclass = p->rank > 1 ? p->dims[1] : 1;
    return cli_metrics_room(m, nclass, elements);
}

/* Elements of a row in all outputs that a negative log-likelihood is taken of. */
static int add_sizes(cli_job *job)
{
    cli_metrics *m = job->metrics;
    const char *name;
    int64_t elements = 0;
    pairing p;
    for (size_t i = 0; m->elements == 0 && (name = inv_session_name(job->session, INV_GET_LOSS_OUTPUT, i)); i++) {
        const int status = read_output(job, name, NULL, &p);
        if (status != CLI_OK) return status;
        elements += product(p.dims, 1, p.rank);
    }
    if (m->elements == 0) m->elements = elements;
    return CLI_OK;
}

int cli_metrics_add(cli_job *job, const inv_array *target)
{
    cli_metrics *m = job->metrics;
    const cli_options *o = job->o;
    pairing p;
    if (!m || !(m->counts || m->values || m->ranks)) return CLI_OK;
    int status = m->output ? CLI_OK : find_output(job);
    if (status == CLI_OK && o->loss == INV_LOSS_NLL) return add_sizes(job);
    if (status == CLI_OK) status = read_output(job, m->output, target, &p);
    if (status == CLI_OK) status = make_room(m, o, &p);
    if (status != CLI_OK) return status;
    if (o->loss == INV_LOSS_CROSS_ENTROPY) return add_classes(m, o, &p);
    if (m->binary) return add_labels(m, o, &p);
    add_values(m, o, &p);
    return CLI_OK;
}

void cli_metrics_reset(cli_metrics *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) m->asked[i].hits = 0;
    if (m->of_class) memset(m->of_class, 0, ((size_t)m->nclass + 1) * sizeof *m->of_class);
    if (m->pair) memset(m->pair, 0, (m->binary ? 4 : (size_t)(m->nclass * m->nclass)) * sizeof *m->pair);
    if (m->of_element && m->values) memset(m->of_element, 0, (size_t)m->elements * sizeof *m->of_element);
    m->rows = m->correct = m->told = 0;
    m->absolute = 0;
    m->nscored = 0;
}
