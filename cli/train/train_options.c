/* SPDX-License-Identifier: Apache-2.0
 * Options of `train` whose arguments have parts: stages, warm-up, periods. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/say/rank.h"
#include "cli/train/train.h"

/* --- batches --- */

int64_t cli_train_rows(const cli_training *t) { return t->batch * cli_ranks(); }
int64_t cli_train_batches(const cli_training *t) { return t->data.nrows / cli_train_rows(t) + (t->rest > 0); }

/* --- stages --- */

int cli_train_stages(cli_training *t, inv_session_options *so)
{
    const cli_options *o = t->job.o;
    const int64_t batches = cli_train_batches(t), steps = (batches + t->accumulate - 1) / t->accumulate;
    free(t->stages);
    t->stages = calloc(o->unfreeze_after.n + 1, sizeof *t->stages);
    if (!t->stages) return cli_fail("out of memory");
    for (size_t i = 0; i < o->unfreeze_after.n; i++) {
        const char *text = o->unfreeze_after.item[i];
        char *end;
        const long long epoch = strtoll(text, &end, 10);
        if (end == text || *end != ' ' || !end[1] || epoch < 0 || epoch > INT32_MAX)
            return cli_usage(o, "--unfreeze-after %s: wants a number of epochs and a GLOB, as 2 'layer4*'", text);
        t->stages[i] = (inv_stage){.glob = end + 1, .from = (uint64_t)(epoch * steps)};
    }
    so->stages = t->stages;
    so->nstages = o->unfreeze_after.n;
    so->first_step = (uint64_t)t->at.done;
    return CLI_OK;
}

/* --- schedules --- */

/* Steps, "500", or a share of all, "5%". */
static bool read_steps(const char *text, int64_t total, uint64_t *steps)
{
    char *end;
    const double x = strtod(text, &end);
    if (end == text || !isfinite(x) || x < 0) return false;
    if (!strcmp(end, "%") && x <= 100) *steps = (uint64_t)llround(x / 100 * (double)total);
    else if (!*end && x == floor(x) && x < 1e15) *steps = (uint64_t)x;
    else return false;
    return true;
}

int cli_schedule_options(const cli_options *o, int64_t total, inv_schedule *s)
{
    *s = (inv_schedule){.size = sizeof *s,
                        .kind = (inv_schedule_kind)o->schedule,
                        .lr = o->lr,
                        .min_lr = o->min_lr,
                        .total = (uint64_t)total,
                        .power = o->power,
                        .every = (uint64_t)o->step_every,
                        .factor = o->step_factor,
                        .decay = (uint64_t)(total / 5)};
    if (o->warmup && !read_steps(o->warmup, total, &s->warmup))
        return cli_usage(o, "--warmup %s: wants a number of steps, or a share of all as 5%%", o->warmup);
    if (o->decay_steps && !read_steps(o->decay_steps, total, &s->decay))
        return cli_usage(o, "--decay-steps %s: wants a number of steps, or a share of all as 20%%", o->decay_steps);
    if (s->warmup > s->total)
        return cli_usage(o, "--warmup %s: is longer than the training of %lld steps", o->warmup, (long long)total);
    if (o->min_lr > o->lr) return cli_usage(o, "--min-lr %g is above --lr %g", o->min_lr, o->lr);
    if (s->kind == INV_SCHEDULE_STEP && o->step_every == 0) return cli_usage(o, "--schedule step wants --step-every N");
    return CLI_OK;
}

/* --- periods --- */

/* "90", "90s", "10m", "2h", "1d" in seconds; *plain: without a unit. */
static bool read_time(const char *text, double *seconds, bool *plain)
{
    char *end;
    const double x = strtod(text, &end);
    const double unit = !strcmp(end, "s")   ? 1
                        : !strcmp(end, "m") ? 60
                        : !strcmp(end, "h") ? 3600
                        : !strcmp(end, "d") ? 86400
                                            : 0;
    *plain = !*end;
    *seconds = x * (*plain ? 1 : unit);
    return end != text && isfinite(x) && x > 0 && (*plain || unit > 0);
}

static int read_period(const cli_options *o, const char *option, const char *text, cli_period *period)
{
    double x;
    bool plain;
    *period = (cli_period){0};
    if (!text) return CLI_OK;
    if (!read_time(text, &x, &plain) || (plain && x != floor(x)))
        return cli_usage(o, "%s %s: wants a number of steps, or a time as 90s, 10m, 2h", option, text);
    if (plain) period->steps = (int64_t)x;
    else period->seconds = x;
    return CLI_OK;
}

int cli_train_options(cli_training *t)
{
    const cli_options *o = t->job.o;
    bool plain;
    t->accumulate = o->accumulate > 0 ? o->accumulate : 1;
    t->kept = o->keep_checkpoints;
    if (o->time_limit && !read_time(o->time_limit, &t->time_limit, &plain))
        return cli_usage(o, "--time-limit %s: wants a time, as 3600, 90s, 10m, 2h", o->time_limit);
    int status = read_period(o, "--every", o->every, &t->every);
    /* how many steps there are is not known yet: what is wrong whatever that is, is said before anything is read */
    if (status == CLI_OK) status = cli_schedule_options(o, o->steps ? o->steps : INT32_MAX, &t->schedule);
    return status == CLI_OK ? cli_lr_find_options(t) : status;
}
