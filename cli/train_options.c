/* SPDX-License-Identifier: Apache-2.0
 * Options of `train` whose arguments have parts: groups of parameters, averages, warm-up, periods. */
#include "train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- groups --- */

static bool read_number(const char *text, double *x)
{
    char *end;
    *x = strtod(text, &end);
    return end != text && !*end && isfinite(*x) && *x >= 0;
}

static bool read_optimizer(const char *word, inv_optimizer *out)
{
    for (const cli_choice *c = cli_optimizers; c->word; c++) {
        if (strcmp(c->word, word) != 0) continue;
        *out = (inv_optimizer)c->value;
        return true;
    }
    return false;
}

/* One KEY=VALUE of a group. */
static bool read_setting(const cli_options *o, const char *text, inv_param_group *group)
{
    const char *equals = strchr(text, '=');
    const size_t n = equals ? (size_t)(equals - text) : 0;
    double rate;
    if (n == 2 && !strncmp(text, "lr", n) && read_number(equals + 1, &rate) && (o->lr > 0 || rate <= 0)) {
        group->lr = rate > 0 ? rate / o->lr : 0;
        return true;
    }
    if (n == 12 && !strncmp(text, "weight-decay", n)) return read_number(equals + 1, &group->weight_decay);
    if (n == 9 && !strncmp(text, "optimizer", n)) return read_optimizer(equals + 1, &group->optimizer);
    return false;
}

/* "GLOB:lr=1e-4,weight-decay=0,optimizer=adamw"; names may hold ':' themselves, so the last one counts. */
static int read_group(const cli_options *o, char *text, inv_param_group *group)
{
    char *colon = strrchr(text, ':'), *rest = colon ? colon + 1 : NULL, *setting, *next = NULL;
    *group = (inv_param_group){.glob = text, .lr = 1, .weight_decay = -1};
    bool ok = colon && colon > text && *rest;
    if (colon) *colon = 0;
    for (setting = ok ? strtok_r(rest, ",", &next) : NULL; setting && ok; setting = strtok_r(NULL, ",", &next))
        ok = read_setting(o, setting, group);
    return ok ? CLI_OK
              : cli_usage(o, "--group: wants GLOB:lr=X,weight-decay=X,optimizer=NAME, some of these, numbers not "
                             "negative");
}

static int read_groups(const cli_options *o, inv_session_options *so, cli_hold *hold)
{
    if (o->group.n == 0) return CLI_OK;
    hold->groups = calloc(o->group.n, sizeof *hold->groups);
    hold->group_texts = calloc(o->group.n + 1, sizeof *hold->group_texts);
    if (!hold->groups || !hold->group_texts) return cli_fail("out of memory");
    for (size_t i = 0; i < o->group.n; i++) {
        if (!(hold->group_texts[i] = strdup(o->group.item[i]))) return cli_fail("out of memory");
        const int status = read_group(o, hold->group_texts[i], &hold->groups[i]);
        if (status != CLI_OK) return status;
    }
    so->groups = hold->groups;
    so->ngroups = o->group.n;
    return CLI_OK;
}

/* --- averages --- */

/* ":FROM" or ":FROM:EVERY" or nothing. */
static bool read_swa(const char *text, uint64_t *from, uint64_t *every)
{
    char *end = NULL;
    *from = 0;
    *every = 1;
    if (!*text) return true;
    if (text[0] != ':' || text[1] < '0' || text[1] > '9') return false;
    *from = strtoull(text + 1, &end, 10);
    if (*end != ':' || end[1] < '1' || end[1] > '9') return !*end;
    *every = strtoull(end + 1, &end, 10);
    return !*end;
}

/* "ema:0.999" or "swa", "swa:FROM", "swa:FROM:EVERY", in steps. */
static int read_average(const cli_options *o, inv_session_options *so)
{
    const char *text = o->average;
    if (!text) return CLI_OK;
    so->average = true;
    if (!strncmp(text, "ema:", 4) && read_number(text + 4, &so->average_decay) && so->average_decay < 1 &&
        so->average_decay > 0)
        return CLI_OK;
    so->average_decay = 0;
    if (!strncmp(text, "swa", 3) && read_swa(text + 3, &so->average_from, &so->average_every)) return CLI_OK;
    return cli_usage(o, "--average %s: wants ema:DECAY, as ema:0.999, or swa:FROM:EVERY in steps", text);
}

bool cli_average_of_several(const cli_options *o, int64_t step)
{
    inv_session_options so = {0};
    const uint64_t steps = (uint64_t)step;
    if (read_average(o, &so) != CLI_OK || so.average_decay > 0) return true;
    return so.average_from < steps && so.average_every <= steps - so.average_from;
}

int cli_average_check(const cli_options *o, int64_t total)
{
    inv_session_options so = {0};
    const long long steps = (long long)total;
    if (!o->average || cli_average_of_several(o, total)) return CLI_OK;
    const int status = read_average(o, &so);
    if (status != CLI_OK) return status;
    if (so.average_from >= (uint64_t)total)
        return cli_usage(o,
                         "--average %s: the mean begins at step %llu, but this training has %lld steps, so OUT would "
                         "have no mean. Use a FROM below %lld, or more steps (--steps, --epochs)",
                         o->average, (unsigned long long)so.average_from, steps, steps);
    return cli_usage(
        o,
        "--average %s: no step after %llu is averaged in a training of %lld steps, so OUT would have the weights of "
        "step %llu. Use an EVERY of at most %lld, or more steps (--steps, --epochs)",
        o->average, (unsigned long long)so.average_from, steps, (unsigned long long)so.average_from,
        steps - (long long)so.average_from);
}

int cli_update_options(const cli_options *o, inv_session_options *so, cli_hold *hold)
{
    const inv_optimizer_numbers numbers = inv_optimizer_defaults(so->optimizer);
    so->momentum = isnan(o->momentum) ? numbers.momentum : o->momentum;
    so->beta1 = isnan(o->beta1) ? numbers.beta1 : o->beta1;
    so->beta2 = isnan(o->beta2) ? numbers.beta2 : o->beta2;
    so->epsilon = isnan(o->epsilon) ? numbers.epsilon : o->epsilon;
    so->nesterov = o->nesterov;
    so->decay_all = o->decay_all;
    so->clip_norm = o->clip_norm;
    so->clip_value = o->clip_value;
    so->accumulate = o->accumulate > 1;
    const int status = read_average(o, so);
    return status == CLI_OK ? read_groups(o, so, hold) : status;
}

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
