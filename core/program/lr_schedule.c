/* SPDX-License-Identifier: Apache-2.0
 * Learning rates over the steps of a training. Those that PyTorch has are its closed forms (torch.optim.lr_scheduler),
 * counted from the end of the warm-up, which is its LinearLR with start_factor 1 / (warmup + 1). */
#include <math.h>

#include "core/base/mem.h"

static const double pi = 3.14159265358979323846;

static double lerp(double from, double to, double share) { return from + (to - from) * share; }

/* Half a cosine from one rate to another. */
static double anneal(double from, double to, double share) { return to + (from - to) / 2 * (1 + cos(pi * share)); }

static double one_cycle(const inv_schedule *s, double step)
{
    const double first = s->lr / 25, last = s->min_lr > 0 ? s->min_lr : first / 1e4;
    const double total = (double)s->total, top = (s->warmup ? (double)s->warmup : 0.3 * total) - 1;
    if (step <= top) return anneal(first, s->lr, top > 0 ? step / top : 1);
    return anneal(s->lr, last, total - 1 > top ? fmin(1, (step - top) / (total - 1 - top)) : 1);
}

double inv_lr_at(const inv_schedule *s, uint64_t number)
{
    if (!s) return (double)NAN;
    const double step = (double)number, warmup = (double)s->warmup, total = (double)s->total;
    if (s->kind == INV_SCHEDULE_ONE_CYCLE) return one_cycle(s, step);
    if (step < warmup) return s->lr * (step + 1) / (warmup + 1);
    const double past = fmin(step, total) - warmup, length = total - warmup;
    const double share = length > 0 ? fmax(0, past) / length : 1;
    switch (s->kind) {
    case INV_SCHEDULE_CONSTANT: return s->lr;
    case INV_SCHEDULE_LINEAR: return lerp(s->lr, s->min_lr, share);
    case INV_SCHEDULE_COSINE: return anneal(s->lr, s->min_lr, share);
    case INV_SCHEDULE_POLYNOMIAL: return lerp(s->min_lr, s->lr, pow(1 - share, s->power));
    case INV_SCHEDULE_STEP:
        return fmax(s->min_lr, s->lr * pow(s->factor, s->every ? floor((step - warmup) / (double)s->every) : 0));
    case INV_SCHEDULE_WSD: {
        const double begin = fmax(total - (double)s->decay, warmup); /* there may be fewer steps behind the warm-up */
        return step < begin || begin >= total ? s->lr
                                              : lerp(s->lr, s->min_lr, fmin(1, (step - begin) / (total - begin)));
    }
    case INV_SCHEDULE_ONE_CYCLE: break;
    }
    return (double)NAN;
}
