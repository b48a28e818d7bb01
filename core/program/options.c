/* SPDX-License-Identifier: Apache-2.0
 * The options of a session, looked at once, whoever gives them: sizes, enumerations, numbers, lists and arrays. What
 * depends on the model is found where it is used. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/glob.h"
#include "core/base/shape.h"
#include "core/program/options.h"

#define O inv_session_options
#define AT(field) offsetof(O, field)

/* --- the size --- */

/* clang-format off */
/* Every field. A caller's struct may end behind any of them, it may be of an older version, but not within one. */
static const struct {
    size_t at, nbytes;
    const char *name;
} fields[] = {
#define F(field) {AT(field), sizeof(((O *)0)->field), #field}
    F(size), F(purpose), F(inputs), F(ninputs), F(target), F(tail_batch), F(eval_batch), F(eval_tail), F(loss),
    F(loss_outputs), F(nloss_outputs), F(logdet), F(class_axis), F(memory), F(keep), F(nkeep), F(modes), F(nmodes),
    F(train_only), F(freeze), F(ntrain_only), F(nfreeze), F(input_grads), F(float64), F(no_dropout), F(plan_only),
    F(device), F(guard), F(max_drift), F(optimizer), F(momentum), F(beta1), F(beta2), F(epsilon), F(weight_decay),
    F(seed), F(threads), F(budget), F(train_bn), F(untie), F(tied), F(ntied), F(constant_inputs), F(nconstant_inputs),
    F(constants_as_needed), F(huber_delta), F(class_weights), F(nclass_weights), F(ignores), F(ignore_index),
    F(profile), F(early_update), F(trust_logdet), F(costs), F(plan), F(may_commit),
    F(may_commit_opaque), F(after_pass), F(after_pass_opaque), F(groups), F(ngroups), F(decay_all), F(nesterov),
    F(clip_norm), F(clip_value), F(grad_norm), F(accumulate), F(average), F(average_decay), F(average_from),
    F(average_every), F(label_smoothing), F(effort), F(through_quantization),
    F(weights), F(improve), F(cost_cache), F(stages), F(nstages), F(first_step), F(world),
    F(precision), F(shard), F(sync_bn), F(send_ahead), F(probabilities), F(rows_mix),
    F(hold_zeros), F(hold_rows), F(no_hold), F(nhold_zeros), F(nhold_rows), F(nno_hold)
#undef F
};
/* clang-format on */
_Static_assert(AT(nno_hold) + sizeof(size_t) == sizeof(O), "a new field is in the table above and here");

inv_status inv_size_check(inv_context *ctx, const char *what, size_t size, size_t known)
{
    INV_CHECK(size >= sizeof(size_t) && size <= known, ctx, INV_E_ABI,
              "%s of %zu bytes: this library knows at most %zu (set .size to the size of the struct)", what, size,
              known);
    return INV_OK;
}

inv_status inv_options_take(inv_context *ctx, const char *what, void *to, size_t known, const void *given, size_t size)
{
    INV_TRY(inv_size_check(ctx, what, size, known));
    INV_CHECK(size % sizeof(void *) == 0, ctx, INV_E_ABI, "%s of %zu bytes end within a field", what, size);
    memcpy(to, given, size);
    return INV_OK;
}

static inv_status check_size(inv_context *ctx, size_t size)
{
    INV_TRY(inv_size_check(ctx, "session options", size, sizeof(O)));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        INV_CHECK(size <= fields[i].at || size >= fields[i].at + fields[i].nbytes, ctx, INV_E_ABI,
                  "session options of %zu bytes end within the field %s (set .size to the size of the struct)", size,
                  fields[i].name);
    return INV_OK;
}

/* --- numbers --- */

static inv_status check_enums(inv_context *ctx, const O *o)
{
    const struct {
        const char *name;
        unsigned value, last;
    } enums[] = {
        {"purpose", (unsigned)o->purpose, INV_FOR_TRAIN},          {"loss", (unsigned)o->loss, INV_LOSS_OUTSIDE},
        {"memory", (unsigned)o->memory, INV_MEMORY_OFFLOAD},       {"guard", (unsigned)o->guard, INV_GUARD_OFF},
        {"precision", (unsigned)o->precision, INV_PRECISION_BF16}, {"shard", (unsigned)o->shard, INV_SHARD_GRADIENTS},
        {"optimizer", (unsigned)o->optimizer, INV_OPT_ADAMW8}};
    for (size_t i = 0; i < sizeof enums / sizeof *enums; i++)
        INV_CHECK(enums[i].value <= enums[i].last, ctx, INV_E_ARG, "%s is %d: there are 0 to %u",
                  inv_option(ctx, enums[i].name), (int)enums[i].value, enums[i].last);
    return INV_OK;
}

static inv_status check_reals(inv_context *ctx, const O *o)
{
    const bool updates = o->optimizer != INV_OPT_NONE;
    const struct {
        const char *name;
        double value;
        bool share; /* below 1 */
    } reals[] = {{"max_drift", o->max_drift, false},
                 {"huber_delta", o->huber_delta, false},
                 {"clip_norm", o->clip_norm, false},
                 {"clip_value", o->clip_value, false},
                 {"average_decay", o->average_decay, true},
                 {"label_smoothing", o->label_smoothing, true},
                 {"momentum", updates ? o->momentum : 0, false},
                 {"beta1", updates ? o->beta1 : 0, true},
                 {"beta2", updates ? o->beta2 : 0, true},
                 {"epsilon", updates ? o->epsilon : 0, false},
                 {"weight_decay", updates ? o->weight_decay : 0, false}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const double v = reals[i].value;
        INV_CHECK(isfinite(v) && v >= 0 && !(reals[i].share && v >= 1), ctx, INV_E_ARG, "%s is %g: must be %s",
                  inv_option(ctx, reals[i].name), v,
                  reals[i].share ? "at least 0 and below 1" : "finite and not negative");
    }
    return INV_OK;
}

static inv_status check_integers(inv_context *ctx, const O *o)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } integers[] = {
        {"tail_batch", o->tail_batch, 0, INT64_MAX},  {"eval_batch", o->eval_batch, 0, INT64_MAX},
        {"eval_tail", o->eval_tail, 0, INT64_MAX},    {"class_axis", o->class_axis, -INV_MAX_RANK, INV_MAX_RANK - 1},
        {"threads", o->threads, 0, INV_MOST_THREADS}, {"effort", o->effort, 0, INV_MOST_EFFORT}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const int64_t v = integers[i].value;
        INV_CHECK(v >= integers[i].least, ctx, INV_E_ARG, "%s is %lld: must be at least %lld",
                  inv_option(ctx, integers[i].name), (long long)v, (long long)integers[i].least);
        INV_CHECK(v <= integers[i].most, ctx, INV_E_ARG, "%s is %lld: must be at most %lld",
                  inv_option(ctx, integers[i].name), (long long)v, (long long)integers[i].most);
    }
    return INV_OK;
}

/* --- lists --- */

/* "GLOB:ROW,ROW", as 'emb.weight:0,-1'. */
static bool is_rows(const char *text)
{
    const char *p = strrchr(text, ':');
    char *end = NULL;
    if (!p || p == text) return false;
    do {
        strtoll(++p, &end, 10);
        if (end == p) return false;
        p = end;
    } while (*p == ',');
    return !*p;
}

/* Entries that have parts. */
static inv_status check_forms(inv_context *ctx, const O *o)
{
    for (size_t i = 0; i < o->ntied; i++) {
        const char *equals = strchr(o->tied[i], '=');
        INV_CHECK(!equals || (equals > o->tied[i] && equals[1]), ctx, INV_E_ARG,
                  "{tied} %s: one side names nothing; it is GLOB, or GLOB=GLOB of equal initializers", o->tied[i]);
    }
    for (size_t i = 0; i < o->nhold_rows; i++)
        INV_CHECK(is_rows(o->hold_rows[i]), ctx, INV_E_ARG,
                  "{hold_rows} %s: has no list of rows; it is GLOB:ROWS, as 'emb.weight:0' or 'emb*:0,-1'",
                  o->hold_rows[i]);
    return INV_OK;
}

static inv_status check_lists(inv_context *ctx, const O *o)
{
    const struct {
        const char *name;
        const char *const *item;
        size_t n;
    } lists[] = {{"loss_outputs", o->loss_outputs, o->nloss_outputs},
                 {"keep", o->keep, o->nkeep},
                 {"train_only", o->train_only, o->ntrain_only},
                 {"freeze", o->freeze, o->nfreeze},
                 {"tied", o->tied, o->ntied},
                 {"hold_zeros", o->hold_zeros, o->nhold_zeros},
                 {"hold_rows", o->hold_rows, o->nhold_rows},
                 {"no_hold", o->no_hold, o->nno_hold},
                 {"constant_inputs", o->constant_inputs, o->nconstant_inputs}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        INV_CHECK(!lists[i].n || lists[i].item, ctx, INV_E_ARG, "%s is NULL, but its number is %zu",
                  inv_option(ctx, lists[i].name), lists[i].n);
        for (size_t k = 0; k < lists[i].n; k++)
            INV_CHECK(lists[i].item[k], ctx, INV_E_ARG, "entry %zu of %zu of %s is NULL", k + 1, lists[i].n,
                      inv_option(ctx, lists[i].name));
    }
    INV_CHECK(!o->nstages || o->stages, ctx, INV_E_ARG, "{stages} is NULL, but its number is %zu", o->nstages);
    for (size_t i = 0; i < o->nstages; i++)
        INV_CHECK(o->stages[i].glob, ctx, INV_E_ARG, "entry %zu of %zu of {stages} has no glob", i + 1, o->nstages);
    INV_CHECK(!o->nclass_weights || o->class_weights, ctx, INV_E_ARG, "{class_weights} is NULL, but its number is %zu",
              o->nclass_weights);
    return INV_OK;
}

static inv_status check_groups(inv_context *ctx, const O *o)
{
    INV_CHECK(!o->ngroups || o->groups, ctx, INV_E_ARG, "{groups} is NULL, but its number is %zu", o->ngroups);
    INV_CHECK(o->ngroups < INV_MOST_GROUPS, ctx, INV_E_ARG, "{groups} are %zu: at most %d can be", o->ngroups,
              INV_MOST_GROUPS - 1);
    for (size_t i = 0; i < o->ngroups; i++) {
        const inv_param_group *p = &o->groups[i];
        INV_CHECK(p->glob, ctx, INV_E_ARG, "entry %zu of %zu of {groups} has no glob", i + 1, o->ngroups);
        INV_CHECK(isfinite(p->lr) && p->lr >= 0, ctx, INV_E_ARG,
                  "the learning rate factor of {groups} '%s' is %g: must be finite and not negative", p->glob, p->lr);
        INV_CHECK(isfinite(p->weight_decay), ctx, INV_E_ARG, "the weight decay of {groups} '%s' is %g: must be finite",
                  p->glob, p->weight_decay);
        INV_CHECK((unsigned)p->optimizer <= INV_OPT_ADAMW8, ctx, INV_E_ARG,
                  "the optimizer of {groups} '%s' is %d: there are 0 to %d", p->glob, (int)p->optimizer,
                  INV_OPT_ADAMW8);
    }
    return INV_OK;
}

/* What cannot be had together. */
static inv_status check_update(inv_context *ctx, const O *o)
{
    const bool trains = o->purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE;
    const bool asks = o->ngroups || o->clip_norm > 0 || o->clip_value > 0 || o->accumulate || o->average;
    INV_CHECK(
        trains || !asks, ctx, INV_E_ARG,
        "{groups}, {clip_norm}, {clip_value}, {accumulate} and {average} act on updates, so they need {optimizer}");
    INV_CHECK(o->weights == INV_DT_NONE || o->weights == INV_BF16, ctx, INV_E_ARG, "{weights}: there is bfloat16 only");
    INV_CHECK(o->weights == INV_DT_NONE || (trains && !o->float64 && !o->average), ctx, INV_E_ARG,
              "{weights} needs an {optimizer} that trains them in float32, and excludes {float64} and {average}");
    INV_CHECK(!(o->clip_norm > 0 && o->clip_value > 0), ctx, INV_E_ARG,
              "{clip_norm} and {clip_value} exclude each other");
    INV_CHECK(!(o->accumulate && o->early_update && (o->ignores || o->nclass_weights)), ctx, INV_E_ARG,
              "{early_update} with {accumulate} must know the weight of a micro-batch before computing it. "
              "{ignore_index} and {class_weights} tell it only afterwards. Leave one of these out");
    INV_CHECK(!(o->clip_norm > 0 && o->early_update && !o->accumulate), ctx, INV_E_ARG,
              "{clip_norm} needs all gradients before the first update, but {early_update} does not wait for them. "
              "Use {clip_value}, or leave one of the two out");
    return INV_OK;
}

inv_status inv_modes_check(inv_context *ctx, const inv_mode_rule *rules, size_t n)
{
    INV_CHECK(!n || rules, ctx, INV_E_ARG, "{modes} is NULL, but its number is %zu", n);
    for (size_t i = 0; i < n; i++) {
        INV_CHECK(rules[i].glob, ctx, INV_E_ARG, "entry %zu of %zu of {modes} has no glob", i + 1, n);
        INV_CHECK((unsigned)rules[i].mode <= INV_MEMORY_OFFLOAD, ctx, INV_E_ARG,
                  "entry %zu of %zu of {modes}, '%s', has mode %d: there are 0 to %d", i + 1, n, rules[i].glob,
                  (int)rules[i].mode, INV_MEMORY_OFFLOAD);
    }
    return INV_OK;
}

/* --- arrays --- */

/* `least`: of the extents; below 0 an extent is open. */
static inv_status check_array(inv_context *ctx, const char *what, const inv_array *a, int64_t least)
{
    const char *name = a->name ? a->name : "";
    INV_CHECK(a->rank >= 0 && a->rank <= INV_MAX_RANK, ctx, INV_E_SHAPE, "%s '%s' has rank %d, at most %d is supported",
              what, name, a->rank, INV_MAX_RANK);
    INV_CHECK(!a->rank || a->dims, ctx, INV_E_ARG, "%s '%s' has rank %d, but its dims are NULL", what, name, a->rank);
    for (int d = 0; d < a->rank; d++)
        INV_CHECK(a->dims[d] >= least, ctx, INV_E_SHAPE, "%s '%s' has extent %lld in dimension %d", what, name,
                  (long long)a->dims[d], d);
    INV_CHECK(!a->data || inv_dtype_size(a->dtype) > 0, ctx, INV_E_UNSUPPORTED_TYPE,
              "%s '%s' has element type %d, which is not a type of numbers", what, name, (int)a->dtype);
    for (int64_t r = 0; a->rows && a->data && a->rank && r < a->dims[0]; r++)
        INV_CHECK(a->rows[r] >= 0, ctx, INV_E_ARG, "%s '%s': row %lld is to be row %lld of the data", what, name,
                  (long long)r, (long long)a->rows[r]);
    return INV_OK;
}

static inv_status inv_array_check(inv_context *ctx, const char *what, const inv_array *a)
{
    return check_array(ctx, what, a, 0);
}

static inv_status check_inputs(inv_context *ctx, const inv_array *inputs, size_t n, int64_t least)
{
    INV_CHECK(!n || inputs, ctx, INV_E_ARG, "inputs is NULL, but its number is %zu", n);
    for (size_t i = 0; i < n; i++) {
        INV_CHECK(inputs[i].name, ctx, INV_E_ARG, "input %zu of %zu has no name", i + 1, n);
        INV_TRY(check_array(ctx, "input", &inputs[i], least));
    }
    return INV_OK;
}

inv_status inv_arrays_check(inv_context *ctx, const inv_array *inputs, size_t n, const inv_array *target)
{
    INV_TRY(check_inputs(ctx, inputs, n, 0));
    return target ? inv_array_check(ctx, "the target", target) : INV_OK;
}

int64_t inv_arrays_rows(const inv_array *inputs, size_t n, const inv_array *target, int64_t none)
{
    const inv_array *a = target && target->rank > 0 ? target : n ? inputs : NULL;
    return a && a->rank > 0 ? a->dims[0] : none;
}

bool inv_input_is_constant(const inv_session_options *o, const inv_array *a)
{
    for (size_t i = 0; a && a->data && i < o->nconstant_inputs; i++)
        if (inv_glob_fits(o->constant_inputs[i], a->name)) return true;
    return false;
}

/* --- all --- */

inv_status inv_rows_check(inv_context *ctx, const inv_array *inputs, size_t n, const inv_array *target)
{
    INV_CHECK(inv_arrays_rows(inputs, n, target, 1) != 0, ctx, INV_E_SHAPE,
              "a batch without rows has no loss. Give at least one row, or leave this batch out");
    return INV_OK;
}

static inv_status check_together(inv_context *ctx, const O *o)
{
    INV_CHECK(o->nloss_outputs <= 1 || o->loss == INV_LOSS_NLL || o->loss == INV_LOSS_OUTSIDE, ctx, INV_E_ARG,
              "{loss_outputs} names %zu outputs; this loss is of one", o->nloss_outputs);
    INV_CHECK(!o->logdet || o->loss == INV_LOSS_NLL, ctx, INV_E_ARG, "{logdet} needs loss nll");
    INV_CHECK(!o->nclass_weights || o->loss == INV_LOSS_CROSS_ENTROPY, ctx, INV_E_ARG,
              "{class_weights} needs loss cross_entropy");
    INV_CHECK(!o->ignores || o->loss == INV_LOSS_CROSS_ENTROPY || o->loss == INV_LOSS_MSE || o->loss == INV_LOSS_BCE ||
                  o->loss == INV_LOSS_HUBER,
              ctx, INV_E_ARG, "{ignore_index} needs loss cross_entropy, mse, bce or huber");
    INV_CHECK(o->loss != INV_LOSS_OUTSIDE || o->optimizer == INV_OPT_NONE, ctx, INV_E_ARG,
              "{optimizer}: with a loss outside the update is the caller's, too");
    INV_CHECK(!o->early_update || o->optimizer != INV_OPT_NONE, ctx, INV_E_ARG,
              "{early_update}: there is no optimizer that would update anything");
    INV_CHECK(o->label_smoothing <= 0 || o->loss == INV_LOSS_CROSS_ENTROPY, ctx, INV_E_ARG,
              "{label_smoothing} needs loss cross_entropy");
    INV_CHECK(!o->probabilities || o->loss == INV_LOSS_CROSS_ENTROPY || o->loss == INV_LOSS_BCE, ctx, INV_E_ARG,
              "{probabilities} needs loss cross_entropy or bce");
    INV_CHECK(o->precision == INV_PRECISION_FULL || !o->float64, ctx, INV_E_ARG,
              "{precision} is about products in float32: leave it or {float64} out");
    INV_CHECK(o->precision == INV_PRECISION_FULL || inv_device_queues(o->device), ctx, INV_E_UNSUPPORTED_OP,
              "{precision}: device %s computes with all bits of float32; cuda has matrix units for less, sim rounds as "
              "they do",
              o->device ? o->device : "cpu");
    INV_TRY(check_groups(ctx, o));
    return check_update(ctx, o);
}

static inv_status read_options(inv_context *ctx, const O *given, int64_t least, O *o)
{
    memset(o, 0, sizeof *o);
    INV_CHECK(given, ctx, INV_E_ARG, "options is NULL: session options have to be given");
    INV_TRY(check_size(ctx, given->size));
    memcpy(o, given, given->size);
    o->size = sizeof *o;
    INV_TRY(check_enums(ctx, o));
    INV_TRY(check_reals(ctx, o));
    INV_TRY(check_integers(ctx, o));
    INV_TRY(check_lists(ctx, o));
    INV_TRY(check_forms(ctx, o));
    INV_TRY(inv_modes_check(ctx, o->modes, o->nmodes));
    INV_TRY(check_inputs(ctx, o->inputs, o->ninputs, least));
    if (o->target) INV_TRY(inv_array_check(ctx, "the target", o->target));
    return check_together(ctx, o);
}

inv_status inv_options_read(inv_context *ctx, const inv_session_options *given, inv_session_options *o)
{
    return read_options(ctx, given, 0, o);
}

inv_status inv_options_read_open(inv_context *ctx, const inv_session_options *given, inv_session_options *o)
{
    return read_options(ctx, given, INT64_MIN, o);
}

void inv_options_of_gradients(O *o)
{
    o->tail_batch = o->eval_batch = o->eval_tail = 0;
    o->optimizer = INV_OPT_NONE;
    o->weights = INV_DT_NONE;
    o->ngroups = o->nstages = 0;
    o->clip_norm = o->clip_value = 0;
    o->budget = 0;
    o->early_update = o->accumulate = o->average = o->grad_norm = false;
    o->plan_only = o->profile = o->input_grads = false;
    o->improve = o->send_ahead = o->sync_bn = false;
    o->shard = INV_SHARD_NONE;
    o->world = NULL;
    o->may_commit = NULL;
    o->plan = NULL;
}

inv_status inv_session_options_check(inv_context *ctx, const inv_session_options *options)
{
    INV_OBJECT(ctx);
    inv_session_options complete;
    return inv_options_read(ctx, options, &complete);
}

const char *inv_precision_name(inv_precision precision)
{
    static const char *const name[] = {
        [INV_PRECISION_FULL] = "full", [INV_PRECISION_TF32] = "tf32", [INV_PRECISION_BF16] = "bf16"};
    return name[precision];
}

double inv_default_max_drift(bool float64) { return float64 ? 1e-8 : 2e-5; }

bool inv_device_queues(const char *name)
{
    int index;
    return name && (inv_device_is(name, "cuda", &index) || strcmp(name, "sim") == 0);
}

bool inv_device_is(const char *name, const char *kind, int *index)
{
    const size_t n = strlen(kind);
    int i = 0;
    if (strncmp(name, kind, n) != 0) return false;
    *index = 0;
    if (name[n] == 0) return true;
    if (name[n] != ':' || !name[n + 1]) return false;
    for (name += n + 1; *name >= '0' && *name <= '9' && i < 1000; name++) i = 10 * i + *name - '0';
    *index = i;
    return *name == 0;
}
