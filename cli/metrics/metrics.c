/* SPDX-License-Identifier: Apache-2.0
 * The metrics, a row each: the losses that have them, and their formulas over what was counted. */
#include "cli/metrics/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a metric is computed from. */
typedef enum origin { FROM_LOSS, FROM_SIZES, FROM_COUNTS, FROM_PAIRS, FROM_VALUES, FROM_RANKS } origin;

struct cli_metric_kind {
    const char *name;
    unsigned losses; /* bit per loss */
    origin from;
    double (*value)(const cli_metrics *m, const cli_score *score, const cli_asked *asked); /* NULL: it is a table */
    bool falls;                                                                            /* less of it is better */
};

/* --- formulas --- */

static double precision_of(double hit, double predicted, double actual)
{
    (void)actual;
    return predicted > 0 ? hit / predicted : 0;
}

static double recall_of(double hit, double predicted, double actual)
{
    (void)predicted;
    return actual > 0 ? hit / actual : 0;
}

static double f1_of(double hit, double predicted, double actual)
{
    return predicted + actual > 0 ? 2 * hit / (predicted + actual) : 0;
}

/* The mean over classes. One that no row is of and none was taken for does not count, but for labels. */
static double mean_of_classes(const cli_metrics *m, double (*of)(double, double, double))
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t k = 0; k < m->nclass; k++) {
        const cli_class_counts *c = &m->of_class[k];
        if (!m->binary && c->predicted + c->actual == 0) continue;
        sum += of((double)c->hit, (double)c->predicted, (double)c->actual);
        n++;
    }
    return n ? sum / (double)n : (double)NAN;
}

static double of_all_classes(const cli_metrics *m, double (*of)(double, double, double))
{
    double hit = 0, predicted = 0, actual = 0;
    for (int64_t k = 0; k < m->nclass; k++) {
        hit += (double)m->of_class[k].hit;
        predicted += (double)m->of_class[k].predicted;
        actual += (double)m->of_class[k].actual;
    }
    return m->rows ? of(hit, predicted, actual) : (double)NAN;
}

#define VALUE(name) static double name(const cli_metrics *m, const cli_score *score, const cli_asked *asked)
/* clang-format off */
VALUE(precision) { (void)score; (void)asked; return mean_of_classes(m, precision_of); }
VALUE(precision_micro) { (void)score; (void)asked; return of_all_classes(m, precision_of); }
VALUE(recall) { (void)score; (void)asked; return mean_of_classes(m, recall_of); }
VALUE(recall_micro) { (void)score; (void)asked; return of_all_classes(m, recall_of); }
VALUE(f1) { (void)score; (void)asked; return mean_of_classes(m, f1_of); }
VALUE(f1_micro) { (void)score; (void)asked; return of_all_classes(m, f1_of); }
VALUE(auc) { (void)score; (void)asked; return cli_auc(m); }
VALUE(perplexity) { (void)m; (void)asked; return exp(score->loss); }
VALUE(bits_per_token) { (void)m; (void)asked; return score->loss / log(2); }
VALUE(bits_per_dim) { (void)asked; return score->loss / ((double)m->elements * log(2)); }
/* clang-format on */

VALUE(accuracy)
{
    (void)asked;
    if (score->rows) return (double)score->correct / (double)score->rows; /* the library's count */
    return m->told ? (double)m->correct / (double)m->told : (double)NAN;
}

VALUE(top_k)
{
    (void)score;
    return m->rows ? (double)asked->hits / (double)m->rows : (double)NAN;
}

/* Values of all rows that are not missing. */
static double value_count(const cli_metrics *m)
{
    double n = 0;
    for (int64_t i = 0; i < m->elements && m->of_element; i++) n += m->of_element[i].n;
    return n;
}

VALUE(mean_absolute_error)
{
    (void)score;
    (void)asked;
    const double n = value_count(m);
    return n > 0 ? m->absolute / n : (double)NAN;
}

VALUE(root_mean_squared_error)
{
    double sum = 0;
    (void)score;
    (void)asked;
    for (int64_t i = 0; i < m->elements && m->of_element; i++) sum += m->of_element[i].squares;
    const double n = value_count(m);
    return n > 0 ? sqrt(sum / n) : (double)NAN;
}

/* The mean over the elements of a row that two rows have. Of an element that is the same in all targets it is 1 or 0.
 */
VALUE(r_squared)
{
    double sum = 0;
    int64_t n = 0;
    (void)score;
    (void)asked;
    for (int64_t i = 0; i < m->elements && m->of_element; i++) {
        const cli_value_sums *s = &m->of_element[i];
        if (s->n < 2) continue;
        sum += s->deviations > 0 ? 1 - s->squares / s->deviations : s->squares > 0 ? 0 : 1;
        n++;
    }
    return n ? sum / (double)n : (double)NAN;
}

/* clang-format off */
enum { CE = 1u << INV_LOSS_CROSS_ENTROPY, BCE = 1u << INV_LOSS_BCE, NLL = 1u << INV_LOSS_NLL,
       VALUES = 1u << INV_LOSS_MSE | 1u << INV_LOSS_HUBER };
static const cli_metric_kind kinds[] = {
    {"accuracy", CE | BCE, FROM_COUNTS, accuracy, false},
    {"topK", CE, FROM_COUNTS, top_k, false},
    {"f1", CE | BCE, FROM_COUNTS, f1, false},
    {"f1_micro", CE | BCE, FROM_COUNTS, f1_micro, false},
    {"precision", CE | BCE, FROM_COUNTS, precision, false},
    {"precision_micro", CE | BCE, FROM_COUNTS, precision_micro, false},
    {"recall", CE | BCE, FROM_COUNTS, recall, false},
    {"recall_micro", CE | BCE, FROM_COUNTS, recall_micro, false},
    {"confusion", CE | BCE, FROM_PAIRS, NULL, false},
    {"auc", CE | BCE, FROM_RANKS, auc, false},
    {"perplexity", CE, FROM_LOSS, perplexity, true},
    {"bits_per_token", CE, FROM_LOSS, bits_per_token, true},
    {"bits_per_dim", NLL, FROM_SIZES, bits_per_dim, true},
    {"mae", VALUES, FROM_VALUES, mean_absolute_error, true},
    {"rmse", VALUES, FROM_VALUES, root_mean_squared_error, true},
    {"r2", VALUES, FROM_VALUES, r_squared, false}};
/* clang-format on */
enum { NKINDS = sizeof kinds / sizeof *kinds };

/* --- what was asked for --- */

static const char *kind_at(size_t i) { return kinds[i].name; }

static const cli_metric_kind *kind_named(const char *name, int64_t *k)
{
    char *end;
    *k = 0;
    if (strncmp(name, "top", 3) == 0 && name[3] >= '1' && name[3] <= '9') {
        *k = strtoll(name + 3, &end, 10);
        if (!*end && strlen(name) < sizeof((cli_asked *)0)->name) name = "topK";
    }
    for (size_t i = 0; i < NKINDS; i++)
        if (strcmp(kinds[i].name, name) == 0 && (kinds[i].value != top_k || *k)) return &kinds[i];
    return NULL;
}

static int unknown_metric(const cli_options *o, const char *name)
{
    char *list = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&list, &n);
    const char *near = cli_nearest(name, NKINDS, kind_at);
    if (!f) return cli_fail("out of memory");
    for (size_t i = 0; i < NKINDS; i++) fprintf(f, "%s%s", i ? ", " : "", kinds[i].name);
    fclose(f);
    const int status = cli_usage(o, "--metric %s: there is no such metric%s%s%s; there are %s (top5, top10, ...)", name,
                                 near ? "; did you mean " : "", near ? near : "", near ? "?" : "", list ? list : "");
    free(list);
    return status;
}

/* `labels`: the target is of integers. */
static int check_fit(const cli_options *o, const cli_metric_kind *kind, const char *name, bool labels)
{
    const char *loss = cli_choice_word(cli_losses, o->loss);
    char *list = NULL;
    size_t n = 0;
    if (kind->losses >> o->loss & 1u) {
        if (o->loss != INV_LOSS_CROSS_ENTROPY || kind->from == FROM_LOSS || labels) return CLI_OK;
        return cli_fail("--metric %s: wants integer labels, and the target has soft ones", name);
    }
    FILE *f = open_memstream(&list, &n);
    if (!f) return cli_fail("out of memory");
    for (size_t i = 0; i < NKINDS; i++)
        if (kinds[i].losses >> o->loss & 1u) fprintf(f, "%s%s", ftell(f) ? ", " : "", kinds[i].name);
    fclose(f);
    const int status = cli_usage(o, "--metric %s: cannot be used with --loss %s%s%s", name, loss,
                                 list && *list ? ", which has " : ", which has none", list ? list : "");
    free(list);
    return status;
}

static int ask(cli_metrics *m, const cli_options *o, const char *name, bool labels)
{
    cli_asked *a = &m->asked[m->n];
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->asked[i].name, name) == 0) return CLI_OK;
    a->kind = kind_named(name, &a->k);
    if (!a->kind) return unknown_metric(o, name);
    const int status = check_fit(o, a->kind, name, labels);
    if (status != CLI_OK) return status;
    (void)snprintf(a->name, sizeof a->name, "%s", name);
    /* of labels the library counts what is correct anyway */
    const bool counted = a->kind->value == accuracy && labels && !m->binary;
    m->counts = m->counts || (a->kind->from == FROM_COUNTS && !counted) || a->kind->from == FROM_PAIRS;
    m->places = m->places || a->k > 0;
    m->pairs = m->pairs || a->kind->from == FROM_PAIRS;
    m->values = m->values || a->kind->from == FROM_VALUES || a->kind->from == FROM_SIZES;
    m->ranks = m->ranks || a->kind->from == FROM_RANKS;
    m->n++;
    return CLI_OK;
}

int cli_metrics_create(cli_job *job)
{
    const cli_options *o = job->o;
    const bool labels =
        job->has_target && job->target.dtype != INV_F32 && job->target.dtype != INV_F64 && job->target.dtype != INV_F16;
    cli_metrics *m = job->metrics = calloc(1, sizeof *m);
    if (m) m->asked = calloc(o->metric.n + 1, sizeof *m->asked);
    if (m) m->value = calloc(o->metric.n + 1, sizeof *m->value);
    if (!m || !m->asked || !m->value) return cli_fail("out of memory");
    m->binary = o->loss == INV_LOSS_BCE;
    int status = CLI_OK;
    if (o->loss == INV_LOSS_CROSS_ENTROPY && labels) status = ask(m, o, "accuracy", labels);
    for (size_t i = 0; i < o->metric.n && status == CLI_OK; i++) status = ask(m, o, o->metric.item[i], labels);
    for (size_t i = 0; i < m->n; i++)
        if (m->asked[i].kind->value)
            m->value[m->nvalue++] = (cli_metric){m->asked[i].name, (double)NAN, m->asked[i].kind->falls};
    return status;
}

void cli_metrics_destroy(cli_metrics *m)
{
    if (!m) return;
    free(m->asked);
    free(m->value);
    free(m->output);
    free(m->of_class);
    free(m->pair);
    free(m->of_element);
    free(m->logits);
    free(m->score);
    free(m->label);
    json_decref(m->confusion);
    json_decref(m->class_names);
    free(m);
}

/* --- values --- */

/* A matrix of counts: a row per class, in it what rows of the class were taken for. */
static json_t *confusion_matrix(const cli_metrics *m)
{
    const int64_t n = m->binary ? 2 : m->nclass;
    json_t *matrix = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_t *row = json_array();
        for (int64_t j = 0; j < n; j++) json_array_append_new(row, json_integer(m->pair[i * n + j]));
        json_array_append_new(matrix, row);
    }
    return matrix;
}

void cli_metrics_finish(cli_metrics *m, const cli_data *data, cli_score *score)
{
    size_t at = 0;
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) {
        const cli_asked *a = &m->asked[i];
        if (a->kind->value) m->value[at++].value = a->kind->value(m, score, a);
    }
    json_decref(m->confusion);
    m->confusion = m->pair ? confusion_matrix(m) : NULL;
    score->metrics = m->value;
    score->nmetrics = m->nvalue;
    score->confusion = m->confusion;
    if (m->confusion && !m->binary && !m->class_names) m->class_names = cli_data_class_names(data);
    score->class_names = m->class_names;
}
