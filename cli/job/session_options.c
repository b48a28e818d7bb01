/* SPDX-License-Identifier: Apache-2.0
 * Session options from the command line: those that stand for themselves, and those whose arguments have parts, as
 * modes, groups of parameters and averages. */
#include "cli/job/session_options.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files/write_files.h"

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

/* --- what a session is given --- */

static int update_options(const cli_options *o, inv_session_options *so, cli_hold *hold)
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

/* "GLOB=mode"; the glob may hold '=' itself, the mode cannot. */
static int read_modes(const cli_options *o, cli_hold *hold)
{
    hold->modes = calloc(o->mode.n + 1, sizeof *hold->modes);
    hold->globs = calloc(o->mode.n + 1, sizeof *hold->globs);
    if (!hold->modes || !hold->globs) return cli_fail("out of memory");
    for (size_t i = 0; i < o->mode.n; i++) {
        const char *text = o->mode.item[i], *equals = strrchr(text, '=');
        int mode = -1;
        for (const cli_choice *c = cli_modes; equals && c->word; c++)
            if (strcmp(c->word, equals + 1) == 0) mode = c->value;
        if (mode < 0 || equals == text)
            return cli_usage(o, "--mode %s: wants GLOB=store|recompute|invert|offload", text);
        hold->globs[i] = strndup(text, (size_t)(equals - text));
        if (!hold->globs[i]) return cli_fail("out of memory");
        hold->modes[i] = (inv_mode_rule){hold->globs[i], (inv_memory)mode};
    }
    return CLI_OK;
}

void cli_hold_fini(cli_hold *hold)
{
    for (size_t i = 0; hold->globs && hold->globs[i]; i++) free(hold->globs[i]);
    free(hold->globs);
    free(hold->modes);
    free(hold->weights);
    free(hold->plan);
    for (size_t i = 0; hold->group_texts && hold->group_texts[i]; i++) free(hold->group_texts[i]);
    free(hold->group_texts);
    free(hold->groups);
    inv_free(hold->ctx, hold->costs);
    *hold = (cli_hold){0};
}

/* The file's numbers, one per class. */
static int read_class_weights(const cli_options *o, cli_hold *hold, inv_session_options *so)
{
    if (!o->class_weights) return CLI_OK;
    npy_array a;
    char *text = NULL;
    size_t ntext = 0;
    FILE *why = open_memstream(&text, &ntext);
    if (!why) return cli_fail("out of memory");
    const bool read = npy_open(o->class_weights, NULL, 0, &a, why);
    fclose(why);
    int status = read ? CLI_OK : cli_fail("%s: %s", o->class_weights, text);
    free(text);
    if (!read) return status;
    const size_t n = a.rank == 1 ? (size_t)a.dims[0] : 0;
    hold->weights = calloc(n + 1, sizeof *hold->weights);
    for (size_t i = 0; hold->weights && i < n; i++) hold->weights[i] = npy_element(a.data, a.dtype, i);
    npy_close(&a);
    if (!hold->weights) return cli_fail("out of memory");
    if (n == 0) return cli_fail("%s: wants one axis, a number per class", o->class_weights);
    so->class_weights = hold->weights;
    so->nclass_weights = n;
    return CLI_OK;
}

/* What decides for time: the option, else the environment, else whether the plan is searched for. Rates
 * measured anew may give another plan, and that other bits: not where they are to be equal. *fixed: the cost was chosen
 * so that plans hang on the model alone. *joined: of ranks that are there, which plan by arithmetic: rates tell what
 * steps take, and are not measured side by side. */
static int choose_cost(const cli_job *job, inv_purpose purpose, bool *time, bool *fixed, bool *joined)
{
    const cli_options *o = job->o;
    const char *word = getenv("INVONNX_COST");
    const bool rated = cli_on_host(o) || strncmp(o->device, "cuda", 4) == 0;
    int cost = o->cost == CLI_COST_DEFAULT && o->deterministic ? CLI_COST_FLOPS : o->cost;
    *joined = job->world && o->command != CLI_CMD_plan; /* ranks that are there; others are predicted */
    *time = false;
    *fixed = true;
    if (purpose != INV_FOR_TRAIN || o->command == CLI_CMD_check || o->command == CLI_CMD_explain) return CLI_OK;
    for (int i = 0; cost == CLI_COST_DEFAULT && word && *word; i++) {
        if (!cli_costs[i].word) return cli_usage(o, "INVONNX_COST=%s: must be time or flops", word);
        if (strcmp(word, cli_costs[i].word) == 0) cost = cli_costs[i].value;
    }
    if (o->cost == CLI_COST_TIME && !rated)
        return cli_usage(o, "--cost time: there are rates of devices cpu and cuda, not of %s", o->device);
    if (o->cost == CLI_COST_TIME && *joined)
        return cli_usage(o, "--cost time: cannot be used with several ranks, because each would measure and plan for "
                            "itself");
    *fixed = cost == CLI_COST_FLOPS;
    if (cost == CLI_COST_DEFAULT)
        cost = o->memory == INV_MEMORY_STORE && !o->profile && !job->world ? CLI_COST_FLOPS : CLI_COST_TIME;
    *time = rated && cost == CLI_COST_TIME;
    return CLI_OK;
}

static int read_costs(const cli_job *job, inv_purpose purpose, inv_session_options *so, cli_hold *hold)
{
    bool time, fixed, joined;
    int status = choose_cost(job, purpose, &time, &fixed, &joined);
    const inv_calibrate_options co = {.size = sizeof co,
                                      .threads = so->threads,
                                      .float64 = so->float64,
                                      .kept = joined,
                                      .device = cli_on_host(job->o) ? NULL : job->o->device};
    /* what is to be the same in every run, or was asked for as it is, stays */
    so->improve = job->o->command == CLI_CMD_train && !fixed && !job->o->plan && !job->o->deterministic;
    if (status != CLI_OK || !time) return status;
    hold->ctx = job->ctx;
    inv_status s = inv_calibrate(job->ctx, &co, &hold->costs);
    if (s != INV_OK) return cli_library_failed(job, s);
    so->costs = hold->costs;
    return CLI_OK;
}

/* As near as an int comes: what is out of its range is out of the library's. */
static int whole(int64_t n) { return n < INT_MIN ? INT_MIN : n > INT_MAX ? INT_MAX : (int)n; }

/* What the command line said, as it stands; what follows from several options is put in behind. */
static inv_session_options options_as_given(const cli_job *job, inv_purpose purpose, const inv_mode_rule *modes)
{
    const cli_options *o = job->o;
    return (inv_session_options){
        .size = sizeof(inv_session_options),
        .purpose = purpose,
        .inputs = job->arrays,
        .ninputs = job->ninputs,
        .target = job->has_target ? &job->target : NULL,
        .loss = (inv_loss)o->loss,
        .loss_outputs = o->loss_output.n ? (const char *const *)o->loss_output.item : NULL,
        .nloss_outputs = o->loss_output.n,
        .logdet = o->logdet,
        .trust_logdet = o->trust_logdet,
        .class_axis = o->class_axis == INT64_MIN ? 0 : whole(o->class_axis),
        .huber_delta = o->huber_delta,
        .ignores = o->ignore_index != INT64_MIN || job->missing,
        .ignore_index = o->ignore_index,
        .label_smoothing = o->label_smoothing,
        .probabilities = o->probabilities,
        .rows_mix = o->rows_mix || o->stacked,
        .effort = o->effort,
        .memory = (inv_memory)o->memory,
        .budget = (uint64_t)o->budget,
        .keep = (const char *const *)o->keep.item,
        .nkeep = o->keep.n,
        .modes = modes,
        .nmodes = o->mode.n,
        .train_only = (const char *const *)o->train_only.item,
        .ntrain_only = o->train_only.n,
        .freeze = (const char *const *)o->freeze.item,
        .nfreeze = o->freeze.n,
        .float64 = o->float64,
        .no_dropout = o->no_dropout,
        .train_bn = o->train_bn,
        .sync_bn = o->sync_bn,
        .send_ahead = o->command == CLI_CMD_train || o->command == CLI_CMD_plan,
        .through_quantization = o->through_quantization,
        .weights = (inv_dtype)o->weights,
        .untie = o->untie,
        .profile = o->profile,
        .early_update = o->early_update,
        .tied = (const char *const *)o->tied.item,
        .ntied = o->tied.n,
        /* where the inputs are given whole; training and evaluation go on to other rows */
        .constants_as_needed = o->command != CLI_CMD_train && o->command != CLI_CMD_eval,
        .device = o->device,
        .guard = (inv_guard)o->guard,
        .precision = (inv_precision)o->precision,
        .shard = (inv_shard)job->shard,
        .max_drift = o->max_drift,
        .weight_decay = o->weight_decay,
        .seed = (uint64_t)o->seed,
        .threads = whole(o->threads),
    };
}

static void put_held(const cli_options *o, inv_session_options *so)
{
    so->hold_zeros = (const char *const *)o->hold_zeros.item;
    so->nhold_zeros = o->hold_zeros.n;
    so->hold_rows = (const char *const *)o->hold_rows.item;
    so->nhold_rows = o->hold_rows.n;
    so->no_hold = (const char *const *)o->no_hold.item;
    so->nno_hold = o->no_hold.n;
}

int cli_session_options(const cli_job *job, inv_purpose purpose, inv_session_options *so, cli_hold *hold)
{
    const cli_options *o = job->o;
    *hold = (cli_hold){0};
    if (o->loss == INV_LOSS_CROSS_ENTROPY && o->class_axis == 0)
        return cli_usage(o, "--class-axis 0: axis 0 is the batch");
    int status = read_modes(o, hold);
    if (status != CLI_OK) return status;
    *so = options_as_given(job, purpose, hold->modes);
    put_held(o, so);
    if ((status = read_class_weights(o, hold, so)) != CLI_OK) return status;
    if ((status = cli_dump_passes(o, so)) != CLI_OK) return status;
    if (o->plan && o->command != CLI_CMD_plan) {
        if (!(hold->plan = cli_text_of_file(o->plan))) return CLI_FAILED;
        so->plan = hold->plan;
    }
    if (purpose == INV_FOR_TRAIN) so->optimizer = (inv_optimizer)o->optimizer;
    /* what is planned is what would be trained */
    if (so->optimizer == INV_OPT_NONE && (o->command == CLI_CMD_train || o->command == CLI_CMD_plan))
        so->optimizer = INV_OPT_SGD;
    if (so->optimizer != INV_OPT_NONE && (status = update_options(o, so, hold)) != CLI_OK) return status;
    inv_status s = inv_session_options_check(job->ctx, so);
    if (s == INV_E_ARG) return cli_usage(o, "%s", inv_context_message(job->ctx));
    return s == INV_OK ? read_costs(job, purpose, so, hold) : cli_library_failed(job, s);
}

int cli_start(cli_job *job, inv_purpose purpose, bool plan_only)
{
    inv_session_options so;
    cli_hold hold;
    int status = cli_session_options(job, purpose, &so, &hold);
    if (status == CLI_OK) {
        so.plan_only = plan_only;
        so.world = job->world;
        so.input_grads = job->o->command == CLI_CMD_grad;
        inv_status s = inv_session_create(job->model, &so, &job->session);
        if (s != INV_OK) status = cli_library_failed(job, s);
        else cli_say_head(job);
    }
    cli_hold_fini(&hold);
    return status;
}
