/* SPDX-License-Identifier: Apache-2.0
 * `train --lr-find`: the range test of learning rates (L. N. Smith, arXiv 1506.01186). The rate grows by a constant
 * factor from step to step; where the loss falls fastest over the logarithm of the rate is a rate to train with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/pages/chart.h"
#include "cli/say/signals.h"
#include "cli/train/train.h"

/* Loss and logarithm of the rate are smoothed alike: a mean in which each step back counts as much less. A mean of the
 * losses alone would show what a rate does only at larger rates. */
static const double COUNTS_LESS = 0.9;

typedef struct point {
    double lr, loss, smooth_lr, smooth_loss;
} point;

typedef struct search {
    point *at;
    size_t n, drawn;          /* points, and how many of them are before the loss rose */
    double sum_log, sum_loss; /* means, times what their weights add up to */
    size_t low;               /* the point where smooth_loss is least */
    double best;              /* smooth_loss there */
    const char *ended;        /* why no further steps were made; NULL: all were made */
} search;

/* --- options --- */

int cli_lr_find_options(cli_training *t)
{
    const cli_options *o = t->job.o;
    const char *text = o->lr_range ? o->lr_range : "1e-7:10";
    char *end, *last;
    if (!o->lr_find) return CLI_OK;
    if (o->steps > 0 && o->steps < 10)
        return cli_usage(o, "--steps %lld: --lr-find wants 10 at least", (long long)o->steps);
    t->lr_from = strtod(text, &end);
    t->lr_to = *end == ':' ? strtod(end + 1, &last) : 0;
    if (*end != ':' || end == text || *last || !(t->lr_from > 0 && t->lr_to > t->lr_from && isfinite(t->lr_to)))
        return cli_usage(o, "--lr-range %s: wants FROM:TO, as 1e-7:10, both above 0 and the first one smaller", text);
    return CLI_OK;
}

/* --- steps --- */

/* How far the smoothed loss may rise above its best: to 4 times that; where losses are not above 0, by as much again
 * as three times what it has fallen by. */
static double most_rise(const search *f)
{
    return 3 * (f->best > 0 ? f->best : fmax(f->at[0].loss - f->best, -f->best));
}

static void note_point(search *f, double lr, double loss)
{
    point *p = &f->at[f->n++];
    const double weights = 1 - pow(COUNTS_LESS, (double)f->n);
    f->sum_log = COUNTS_LESS * f->sum_log + (1 - COUNTS_LESS) * log(lr);
    f->sum_loss = COUNTS_LESS * f->sum_loss + (1 - COUNTS_LESS) * loss;
    *p = (point){lr, loss, exp(f->sum_log / weights), f->sum_loss / weights};
    if (f->n == 1 || p->smooth_loss < f->best) {
        f->best = p->smooth_loss;
        f->low = f->n - 1;
    }
    if (p->smooth_loss > f->best + most_rise(f)) f->ended = "the loss rose";
    else f->drawn = f->n;
}

/* Whether numbers of the present batch are not finite themselves. */
static bool is_bad_batch(const cli_training *t)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    const bool bad = f && cli_data_blame(&t->data, f);
    if (f) fclose(f);
    free(text);
    return bad;
}

static int next_point(cli_training *t, search *f)
{
    const double share = (double)f->n / (double)(t->total - 1);
    const double lr = t->lr_from * pow(t->lr_to / t->lr_from, share);
    inv_result result = {0};
    inv_status s;
    if (t->at.batch == t->batches || f->n == 0) {
        t->at.epoch += f->n > 0;
        t->at.batch = 0;
        cli_data_epoch(&t->data, (uint64_t)t->at.epoch);
    }
    if (cli_train_step(t, lr, &result, &s) != CLI_OK) return CLI_FAILED;
    /* With the weights of the file, or with such rows, it is not the rate that is to blame. */
    if (s == INV_E_NUMERIC && f->n > 0 && !is_bad_batch(t)) f->ended = "the loss was not finite any more";
    else if (s != INV_OK) return cli_step_failed(t, s, &result);
    if (s != INV_OK) return CLI_OK;
    t->at.done++;
    note_point(f, lr, result.loss);
    cli_progress_step(&t->progress, t->at.epoch, t->at.done, t->at.samples, result.loss);
    if (cli_train_signal()) f->ended = "interrupted";
    return CLI_OK;
}

/* --- what it found --- */

/* Whether the loss fell, up to its lowest point, by more than single losses scatter about the smoothed one, and by more
 * than they are rounded; else its slopes say nothing. */
static bool has_fallen(const search *f)
{
    const size_t first = f->drawn < 10 ? 1 : f->drawn / 10;
    double begin = 0, scatter = 0;
    for (size_t i = 0; i < first; i++) begin += f->at[i].loss / (double)first;
    for (size_t i = 0; i <= f->low; i++) scatter += pow(f->at[i].loss - f->at[i].smooth_loss, 2) / (double)(f->low + 1);
    return f->low >= first && begin - f->best > sqrt(scatter) + 1e-5 * fabs(begin);
}

/* The rate of the steepest descent, seen over a tenth of the steps; NaN: the loss does not fall. */
static double steepest(const search *f)
{
    const size_t near = f->drawn < 40 ? 1 : f->drawn / 20;
    double least = 0, lr = (double)NAN;
    if (!has_fallen(f)) return lr;
    for (size_t i = near; i + near <= f->low; i++) {
        const point *a = &f->at[i - near], *b = &f->at[i + near];
        const double slope = (b->smooth_loss - a->smooth_loss) / log(b->smooth_lr / a->smooth_lr);
        if (slope >= least) continue;
        least = slope;
        lr = f->at[i].smooth_lr;
    }
    return lr;
}

static int draw(const cli_training *t, const search *f, double suggested)
{
    double *rate = calloc(f->drawn, sizeof *rate), *loss = calloc(f->drawn, sizeof *loss);
    for (size_t i = 0; rate && loss && i < f->drawn; i++) {
        rate[i] = f->at[i].smooth_lr;
        loss[i] = f->at[i].smooth_loss;
    }
    const int status =
        rate && loss ? cli_lr_picture(t->out, rate, loss, f->drawn, suggested) : cli_fail("out of memory");
    free(rate);
    free(loss);
    return status;
}

static int print_search(const cli_training *t, const search *f, double suggested)
{
    json_t *steps = json_array();
    for (size_t i = 0; i < f->n; i++) {
        const point *p = &f->at[i];
        json_array_append_new(steps, json_pack("{s:o, s:o, s:o, s:o}", "lr", cli_json_real(p->lr), "loss",
                                               cli_json_real(p->loss), "smoothed_lr", cli_json_real(p->smooth_lr),
                                               "smoothed_loss", cli_json_real(p->smooth_loss)));
    }
    json_t *found = json_pack("{s:o, s:o, s:s?, s:I, s:s, s:o}", "suggested_lr", cli_json_real(suggested), "lowest_lr",
                              cli_json_real(f->at[f->low].smooth_lr), "ended", f->ended, "steps_done", (json_int_t)f->n,
                              "lr_find", t->job.o->lr_find, "steps", steps);
    const int status = found ? cli_print_json(found) : cli_fail("out of memory");
    json_decref(found);
    return status;
}

static void say_search(const cli_training *t, const search *f, double suggested)
{
    char steps[96];
    (void)snprintf(steps, sizeof steps, "%zu of %lld steps%s%s%s", f->n, (long long)t->total, f->ended ? " (" : "",
                   f->ended ? f->ended : "", f->ended ? ")" : "");
    if (isnan(suggested))
        cli_say("no learning rate is suggested, the loss did not fall between %g and %g; %s; picture in %s", t->lr_from,
                f->at[f->n - 1].lr, steps, t->job.o->lr_find);
    else
        cli_say("suggested: --lr %.2g, where the loss falls fastest; it is lowest at %.2g; %s; picture in %s",
                suggested, f->at[f->low].smooth_lr, steps, t->job.o->lr_find);
}

int cli_lr_find(cli_training *t)
{
    search f = {.at = calloc((size_t)t->total, sizeof *f.at)};
    int status = f.at ? CLI_OK : cli_fail("out of memory");
    cli_train_signals();
    while (status == CLI_OK && !f.ended && f.n < (size_t)t->total) status = next_point(t, &f);
    if (status == CLI_OK) {
        const double suggested = steepest(&f);
        status = draw(t, &f, suggested);
        if (status == CLI_OK) say_search(t, &f, suggested);
        if (status == CLI_OK && t->job.o->json) status = print_search(t, &f, suggested);
    }
    free(f.at);
    return status;
}
