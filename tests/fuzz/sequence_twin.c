/* SPDX-License-Identifier: Apache-2.0
 * A training in float64 (sequence_twin.h). */
#include "tests/fuzz/sequence_twin.h"

#include <math.h>
#include <string.h>

const twin_param twin_params[TWIN_PARAMS] = {{"w0", TWIN_W0, TWIN_W1, 2, {TWIN_IN, TWIN_HIDDEN}},
                                             {"w1", TWIN_W1, TWIN_B1 - TWIN_W1, 2, {TWIN_HIDDEN, TWIN_OUT}},
                                             {"b1", TWIN_B1, TWIN_ALL - TWIN_B1, 1, {TWIN_OUT, 1}}};

void twin_begin(twin *t, const double *weights, uint64_t step)
{
    memcpy(t->w, weights, sizeof t->w);
    memcpy(t->averages, weights, sizeof t->averages);
    memset(t->m, 0, sizeof t->m);
    memset(t->v, 0, sizeof t->v);
    memset(t->sum, 0, sizeof t->sum);
    t->rows = 0;
    t->steps = t->stage = step;
    t->reads_averages = t->averaged = t->swapped = false;
}

bool twin_trains(const twin *t, int param) { return t->begins[param] <= t->stage; }

double twin_weight(const twin *t, int param, int i)
{
    return (t->swapped && twin_trains(t, param) ? t->averages : t->w)[twin_params[param].at + i];
}

double twin_average(const twin *t, int param, int i)
{
    return (t->averaged ? t->averages : t->w)[twin_params[param].at + i];
}

static void present(const twin *t, double *w)
{
    for (int p = 0; p < TWIN_PARAMS; p++)
        for (int i = 0; i < twin_params[p].n; i++) w[twin_params[p].at + i] = twin_weight(t, p, i);
}

static double leaky(double x) { return x < 0 ? TWIN_SLOPE * x : x; }

/* The loss; gradients and outputs may be NULL. */
static double row_by_row(const double *w, const twin_batch *b, double *gradient, double *outputs)
{
    double loss = 0;
    const double count = (double)(b->rows * TWIN_OUT);
    for (int64_t r = 0; r < b->rows; r++) {
        const double *x = b->x + r * TWIN_IN;
        double a[TWIN_HIDDEN] = {0}, back[TWIN_HIDDEN] = {0};
        for (int i = 0; i < TWIN_IN; i++)
            for (int k = 0; k < TWIN_HIDDEN; k++) a[k] += x[i] * w[TWIN_W0 + i * TWIN_HIDDEN + k];
        for (int j = 0; j < TWIN_OUT; j++) {
            double y = w[TWIN_B1 + j];
            for (int k = 0; k < TWIN_HIDDEN; k++) y += leaky(a[k]) * w[TWIN_W1 + k * TWIN_OUT + j];
            if (outputs) outputs[r * TWIN_OUT + j] = y;
            const double d = y - b->y[r * TWIN_OUT + j], g = 2 * d / count;
            loss += d * d / count;
            if (!gradient) continue;
            gradient[TWIN_B1 + j] += g;
            for (int k = 0; k < TWIN_HIDDEN; k++) {
                gradient[TWIN_W1 + k * TWIN_OUT + j] += g * leaky(a[k]);
                back[k] += g * w[TWIN_W1 + k * TWIN_OUT + j] * (a[k] < 0 ? TWIN_SLOPE : 1);
            }
        }
        for (int i = 0; i < TWIN_IN && gradient; i++)
            for (int k = 0; k < TWIN_HIDDEN; k++) gradient[TWIN_W0 + i * TWIN_HIDDEN + k] += x[i] * back[k];
    }
    return loss;
}

double twin_loss(const twin *t, const twin_batch *b, double *outputs)
{
    double w[TWIN_ALL];
    present(t, w);
    return row_by_row(w, b, NULL, outputs);
}

void twin_enter(twin *t)
{
    for (int p = 0; p < TWIN_PARAMS; p++) {
        if (twin_trains(t, p) == (t->begins[p] <= t->steps)) continue;
        for (int i = twin_params[p].at; i < twin_params[p].at + twin_params[p].n; i++) {
            t->m[i] = t->v[i] = 0;
            t->averages[i] = t->w[i];
        }
    }
    t->stage = t->steps;
}

void twin_accumulate(twin *t, const twin_batch *b)
{
    double gradient[TWIN_ALL] = {0};
    (void)row_by_row(t->w, b, gradient, NULL);
    for (int i = 0; i < TWIN_ALL; i++) t->sum[i] += gradient[i] * (double)b->rows;
    t->rows += (double)b->rows;
}

/* Of one element in the n-th step that trains it; `decay`: of weights. */
static void change(twin *t, int i, double lr, double decay, double n)
{
    const inv_optimizer_numbers *k = &t->numbers;
    double g = t->sum[i] / t->rows;
    if (t->optimizer == INV_OPT_MOMENTUM) {
        t->m[i] = k->momentum * t->m[i] + g;
        g = t->nesterov ? g + k->momentum * t->m[i] : t->m[i];
    } else if (t->optimizer == INV_OPT_ADAM || t->optimizer == INV_OPT_ADAMW) {
        t->m[i] = k->beta1 * t->m[i] + (1 - k->beta1) * g;
        t->v[i] = k->beta2 * t->v[i] + (1 - k->beta2) * g * g;
        g = t->m[i] / (1 - pow(k->beta1, n)) / (sqrt(t->v[i] / (1 - pow(k->beta2, n))) + k->epsilon);
    }
    t->w[i] = t->w[i] * (1 - lr * decay) - lr * g;
}

static double kept_of_average(const twin *t)
{
    if (t->steps <= t->average_from) return 0;
    if (t->average_decay > 0) return t->average_decay;
    const uint64_t after = t->steps - t->average_from, n = after / t->average_every;
    return after % t->average_every ? 1 : (double)n / (double)(n + 1);
}

void twin_update(twin *t, double lr)
{
    const double keep = kept_of_average(t);
    twin_begin_averages(t);
    for (int p = 0; p < TWIN_PARAMS; p++) {
        const double decay = t->optimizer == INV_OPT_ADAMW && twin_params[p].rank > 1 ? t->numbers.weight_decay : 0;
        if (!twin_trains(t, p)) continue;
        for (int i = twin_params[p].at; i < twin_params[p].at + twin_params[p].n; i++) {
            change(t, i, p == t->grouped ? lr * t->factor : lr, decay, (double)(t->steps - t->begins[p] + 1));
            t->averages[i] = keep * t->averages[i] + (1 - keep) * t->w[i];
        }
    }
    twin_set_step(t, t->steps + 1, 0);
}

void twin_set_step(twin *t, uint64_t step, uint64_t micro)
{
    t->steps = step;
    if (micro) return;
    memset(t->sum, 0, sizeof t->sum);
    t->rows = 0;
}

void twin_read_averages(twin *t, bool average)
{
    if (average && !t->reads_averages) t->swapped = t->averaged;
    if (!average) t->swapped = false;
    t->reads_averages = average;
}

void twin_begin_averages(twin *t)
{
    if (!t->averaged) memcpy(t->averages, t->w, sizeof t->averages);
    if (!t->averaged) t->swapped = t->reads_averages;
    t->averaged = true;
}
