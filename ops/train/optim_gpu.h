/* SPDX-License-Identifier: Apache-2.0
 * Optimizer updates: what one is told, and the numbers that follow for a step, on the host and on the device alike.
 * On a device the kernels read learning rate and number of the step from gpu->step. */
#ifndef INV_OPS_TRAIN_OPTIM_GPU_H
#define INV_OPS_TRAIN_OPTIM_GPU_H

#include <math.h>

#include "ops/gpu/many.h"

typedef enum inv_update_kind {
    INV_UPDATE_SGD,
    INV_UPDATE_MOMENTUM,
    INV_UPDATE_RMSPROP,
    INV_UPDATE_LION,
    INV_UPDATE_ADAM,
    INV_UPDATE_ADAM8
} inv_update_kind;

/* The attributes of an update. */
typedef struct inv_update {
    inv_update_kind kind;
    int group;      /* its learning rate is step->lr times that of the group; 0: step->lr */
    uint64_t since; /* number of the first step that updated it, from 0 on */
    double momentum, beta1, beta2, epsilon, decay;
    double clip_value; /* entries of the gradient are brought into [-clip_value, clip_value]; infinite: they are not */
    double clip_norm;  /* the gradient shrinks so that the norm of all together is at most this */
    bool decoupled;    /* the decay is that of AdamW */
    bool nesterov;
} inv_update;

/* What an update computes its elements with in one step. */
typedef struct inv_update_rates {
    double lr;
    double l2, keep;   /* weight decay in the gradient; or 1 - lr * decay, decoupled */
    double scale;      /* of the gradient, by its norm */
    double rate, root; /* ADAM, ADAM8: lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */
} inv_update_rates;

INV_HD double inv_group_lr(double lr, const double *group_lr, int group)
{
    return group > 0 ? lr * group_lr[group] : lr;
}

/* How many steps there were, this one among them, since that one was the first. */
INV_HD double inv_step_since(uint64_t step, uint64_t since) { return step > since ? (double)(step - since + 1) : 1; }

/* The factor by which all gradients shrink, as in PyTorch's clip_grad_norm_. norm NULL: they do not. */
INV_HD double inv_clip_scale(double clip_norm, const double *norm)
{
    const double scale = norm ? clip_norm / (*norm + 1e-6) : 1;
    return scale < 1 ? scale : 1;
}

/* lr: the group's; step: number of the step, from 0 on; norm: of all gradients, NULL: it does not matter. */
INV_HD inv_update_rates inv_update_rates_of(const inv_update *u, double lr, uint64_t step, const double *norm)
{
    const double t = inv_step_since(step, u->since);
    inv_update_rates r;
    r.lr = r.rate = lr;
    r.root = 1;
    r.l2 = u->decoupled ? 0 : u->decay;
    r.keep = u->decoupled ? 1 - lr * u->decay : 1;
    r.scale = inv_clip_scale(u->clip_norm, norm);
    if (u->kind == INV_UPDATE_ADAM || u->kind == INV_UPDATE_ADAM8) {
        r.rate = lr / (1 - pow(u->beta1, t));
        r.root = 1 / sqrt(1 - pow(u->beta2, t));
    }
    return r;
}

/* The state of Adam in 8 bits, as ops/train/adam8.h has it. */
typedef struct inv_moments8 {
    uint8_t *first, *second;           /* n codes */
    float *first_scale, *second_scale; /* one per block of INV_BLOCK8 elements */
} inv_moments8;

/* By what the sum so far, or a micro-batch, counts where they are added up and not averaged. */
INV_HD double inv_accumulated(double share, bool whole) { return whole ? share > 0 : share; }

#ifdef __cplusplus
extern "C" {
#endif
/* Of each tensor: parameter, gradient, and the state, as far as the kind has it; float32 or float64. Nothing is written
 * if *bad > 0; NULL: it is not asked. This and all below write nothing either if gpu->step->refused. */
INV_LAUNCHER(update, inv_dtype t, const inv_many *m, const inv_update *u, const double *bad, const double *norm);
/* Adam with moments in 8 bits, as ops/train/adam8.h has them: the codes in the place of the state, and in the next
 * place (inv_many_more) their scales. */
INV_LAUNCHER(update8, inv_dtype t, const inv_many *m, const inv_update *u, const double *bad, const double *norm);
/* Of each tensor: sum = step->kept * sum + step->added * g, or, if `whole`, sum + g; where kept is 0, sum is not
 * read. */
INV_LAUNCHER(accumulate, inv_dtype t, const inv_many *m, const double *bad, bool whole);
/* Of each tensor, by words of four bytes or by bytes: parameter = value, unless *bad > 0. bad may be NULL. */
INV_LAUNCHER(assign, const inv_many *m, bool words, const double *bad);
/* Of each tensor: average = keep * average + (1 - keep) * w, with keep as inv_average_keep has it for step->step. */
INV_LAUNCHER(average, inv_dtype t, const inv_many *m, double decay, uint64_t from, uint64_t every);
#ifdef __cplusplus
}
#endif

/* What is kept of an average after that step. Up to step `from` the average is the weights themselves. After it, with a
 * decay above 0, it is an exponential moving average; else the mean of the weights after every `every`th step. */
INV_HD double inv_average_keep(double decay, uint64_t from, uint64_t every, uint64_t step)
{
    if (step <= from) return 0;
    if (decay > 0) return decay;
    const uint64_t n = (step - from) / every;
    return (step - from) % every ? 1 : (double)n / (double)(n + 1);
}

#endif
