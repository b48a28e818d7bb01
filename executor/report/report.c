/* SPDX-License-Identifier: Apache-2.0
 * Reports as JSON: of a session (plan, memory over the step, blocks, drift) and of the registry. */
#include <math.h>
#include <string.h>

#include "core/program/cost.h"
#include "core/program/exchange.h"
#include "core/weights/held.h"
#include "core/weights/trained.h"
#include "executor/report/report.h"
#include "executor/session/improve.h"
#include "executor/session/report_ranks.h"

static const char *const memory_names[] = {"auto", "store", "recompute", "invert"};
static const char *const phase_names[] = {"forward", "backward", "commit"};

static json_t *bytes(size_t n) { return json_integer((json_int_t)n); }

/* Bytes of what a node reads and writes. */
static size_t operand_bytes(const inv_graph *g, const inv_node *n)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < n->nin + n->nout; i++) {
        const inv_id v = i < n->nin ? n->in[i] : n->out[i - n->nin];
        if (v != INV_NONE) sum += inv_value_nbytes(inv_val(g, v));
    }
    return sum;
}

/* `ready`: the same nodes as they ran, with times; NULL: they were not timed. `guard`: for a guard's sake only. `t`:
 * rates of the machine, or NULL. */
static void timeline(inv_json *w, const inv_plan *p, const inv_ready *ready, const inv_cost_table *t)
{
    inv_json_open(w, "timeline", '[');
    for (size_t i = 0; i < p->g->order.n; i++) {
        const inv_node *n = inv_nod(p->g, p->g->order.at[i]);
        const inv_live *l = &p->live[i];
        if (!inv_json_is_text(inv_node_label(n))) continue;
        inv_json_open(w, NULL, '{');
        inv_json_string(w, "node", inv_node_label(n));
        inv_json_string(w, "op", n->op->name);
        inv_json_string(w, "phase", phase_names[n->phase]);
        inv_json_integer(w, "live_bytes", (int64_t)inv_live_total(l));
        inv_json_integer(w, "activation_bytes", (int64_t)(l->bytes[INV_MEM_ACT] + l->workspace));
        inv_json_integer(w, "gradient_bytes", (int64_t)l->bytes[INV_MEM_GRAD]);
        inv_json_integer(w, "data_bytes", (int64_t)l->bytes[INV_MEM_DATA]);
        if (n->guards) inv_json_tree(w, "guard", json_true());
        if (p->seconds) inv_json_tree(w, "predicted_seconds", inv_report_number(p->seconds[i]));
        if (ready && ready[i].runs) {
            inv_json_tree(w, "seconds", inv_report_number(ready[i].seconds / ready[i].runs));
            inv_json_tree(w, "flops", inv_report_number(inv_node_flops(p->g, n)));
            inv_json_integer(w, "operand_bytes", (int64_t)operand_bytes(p->g, n));
            if (t) inv_json_tree(w, "least_seconds", inv_report_number(inv_node_least_seconds(t, p->g, n)));
        }
        inv_json_close(w, '}');
    }
    inv_json_close(w, ']');
}

/* What each class has where the plan needs most; together that is the planned peak. `new_state`: running statistics
 * until they are committed, parameters on their way between ranks; `next_batch`: where it lands while the step
 * computes; `gaps`: between values in the arena; `other_plans`: what evaluation needs more. */
static json_t *classes(const inv_session *s, const inv_plan *p)
{
    const inv_program *pr = s->program;
    const inv_live *l = &p->live[p->peak_at];
    size_t of[INV_STORAGE_CONST + 1] = {0};
    for (size_t i = 0; i < pr->storage.n; i++) of[pr->storage.at[i].kind] += inv_round64(pr->storage.at[i].nbytes);
    const size_t params = of[INV_STORAGE_PARAM] + of[INV_STORAGE_CONST], optim = of[INV_STORAGE_OPTIM];
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "parameters", bytes(params),
                     "gradients", bytes(l->bytes[INV_MEM_GRAD] + of[INV_STORAGE_GRAD]), "optimizer", bytes(optim),
                     "activations", bytes(l->bytes[INV_MEM_ACT]), "workspace", bytes(l->workspace), "data",
                     bytes(l->bytes[INV_MEM_DATA]), "guard", bytes(l->bytes[INV_MEM_GUARD]), "new_state",
                     bytes(l->bytes[INV_MEM_PARAM] + l->bytes[INV_MEM_OPTIM]), "control", bytes(pr->control),
                     "next_batch", bytes(pr->landing), "gaps", bytes(p->transient - p->load), "other_plans",
                     bytes(pr->transient - p->transient));
}

static json_t *drift(const inv_session *s, const inv_plan *p)
{
    static const char *const kind[] = {
        [INV_GUARD_REBUILT] = "rebuilt", [INV_GUARD_DERIVED] = "derived", [INV_GUARD_SIGNS] = "signs"};
    json_t *list = json_array();
    for (size_t i = 0; s->drift && i < p->guarded.n; i++) {
        const inv_guarded_row *row = &p->guarded.at[i];
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:s, s:o, s:o}", "value", inv_val(p->g, row->value)->name, "kind",
                                              kind[row->kind], "drift", inv_report_number(s->drift[i]), "limit",
                                              inv_report_number(inv_guard_limit(row, s->program->max_drift))));
    }
    return json_pack("{s:o, s:o}", "largest", inv_report_number(s->worst_drift), "blocks", list);
}

json_t *inv_report_words(const inv_context *ctx, const char *text)
{
    char spelled[1024];
    return json_string(inv_spell(ctx, text, spelled, sizeof spelled));
}

/* *trained: elements of those that are. */
static void trainables(const inv_plan *p, json_t *train, json_t *frozen, json_t *reasons, int64_t *trained)
{
    const inv_graph *g = p->base;
    json_t *of[INV_UNTRAINED_REASONS] = {NULL};
    *trained = 0;
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        const int64_t nelem = inv_shape_is_static(&v->shape) ? inv_shape_nelem(&v->shape) : 0;
        if (v->trainable) {
            (void)json_array_append_new(train, json_string(v->name));
            *trained += nelem;
            continue;
        }
        const inv_untrained why = v->untrained == INV_TRAINED ? INV_UNTRAINED_UNREACHED : (inv_untrained)v->untrained;
        (void)json_array_append_new(
            frozen, json_pack("{s:s, s:s, s:o, s:I}", "name", v->name, "reason", inv_untrained_key(why), "why",
                              inv_report_words(g->ctx, inv_untrained_text(why)), "elements", (json_int_t)nelem));
        if (!of[why])
            of[why] = json_pack("{s:s, s:i, s:s}", "reason", inv_untrained_key(why), "count", 0, "first", v->name);
        const json_int_t n = json_integer_value(json_object_get(of[why], "count")) + 1;
        (void)json_object_set_new(of[why], "count", json_integer(n));
        (void)json_object_set_new(of[why], "noun", json_string(inv_untrained_noun(why, n > 1)));
    }
    json_int_t updated = 0;
    for (size_t i = 0; i < p->state.n; i++) {
        const inv_id v = inv_graph_find(g, p->state.at[i].name);
        updated += v != INV_NONE && inv_val(g, v)->untrained == INV_UNTRAINED_STATISTIC;
    }
    if (of[INV_UNTRAINED_STATISTIC])
        (void)json_object_set_new(of[INV_UNTRAINED_STATISTIC], "updated", json_integer(updated));
    for (int why = 0; why < INV_UNTRAINED_REASONS; why++)
        if (of[why]) (void)json_array_append_new(reasons, of[why]);
}

static json_t *ties(const inv_program *pr)
{
    json_t *list = json_array();
    for (size_t i = 0; i < pr->tie.n; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:s}", "name", inv_val(pr->source, pr->tie.at[i].copy)->name,
                                                    "of", inv_val(pr->source, pr->tie.at[i].master)->name));
    return list;
}

static json_t *held(const inv_program *pr)
{
    json_t *list = json_array();
    for (size_t i = 0; pr->held && i < pr->source->inits.n; i++) {
        const inv_held *h = pr->held[pr->source->inits.at[i]];
        if (!h) continue;
        json_t *rows = json_array();
        for (size_t k = 0; k < h->nrow; k++) (void)json_array_append_new(rows, json_integer(h->row[k]));
        (void)json_array_append_new(list, json_pack("{s:s, s:I, s:b, s:o, s:s}", "name",
                                                    inv_val(pr->source, pr->source->inits.at[i])->name, "elements",
                                                    (json_int_t)h->elements, "zeros", h->zeros, "rows", rows, "why",
                                                    inv_held_text(h->why)));
    }
    return list;
}

/* What is alive at that position. */
static void alive_at(inv_json *w, const char *key, const inv_plan *p, size_t at)
{
    inv_arena scratch;
    inv_ids alive = {0};
    inv_arena_init(&scratch, w->text.ctx);
    if (inv_plan_alive(p, at, &scratch, &alive) != INV_OK) alive.n = 0;
    inv_json_open(w, key, '[');
    for (size_t i = 0; i < alive.n; i++) {
        const inv_value *val = inv_val(p->g, alive.at[i]);
        size_t nbytes = 0;
        (void)inv_shape_nbytes(&val->shape, val->dtype, &nbytes);
        if (!inv_json_is_text(val->name)) continue;
        inv_json_open(w, NULL, '{');
        inv_json_string(w, "value", val->name);
        inv_json_integer(w, "bytes", (int64_t)nbytes);
        inv_json_close(w, '}');
    }
    inv_json_close(w, ']');
    inv_arena_fini(&scratch);
}

/* Cost over that of a plan that stores everything: of this one, of any within its bytes at least, and how far they are
 * apart. */
static json_t *overhead(const inv_plan *p)
{
    return json_pack("{s:f, s:f, s:f}", "overhead", p->overhead, "bound", p->bound, "gap",
                     (1 + p->overhead) / (1 + p->bound) - 1);
}

/* Of a step of the plan; null without a table of costs. */
static json_t *predicted(const inv_plan *p)
{
    double sum = 0;
    for (size_t i = 0; p->seconds && i < p->g->order.n; i++) sum += p->seconds[i];
    return p->seconds ? inv_report_number(sum) : json_null();
}

static json_t *constant_list(const inv_program *pr)
{
    json_t *list = json_array();
    for (size_t i = 0; i < pr->options.ninputs; i++)
        if (pr->options.inputs[i].data) (void)json_array_append_new(list, json_string(pr->options.inputs[i].name));
    return list;
}

/* What the process takes: beside the arena, and with it, where that is memory of the process, or with what looking at
 * rows took before. Null where the system does not tell. */
static json_t *process(const inv_session *s)
{
    const inv_program *pr = s->program;
    const size_t planned = inv_program_bytes(pr), most = planned > s->probed ? planned : s->probed;
    const bool whole = s->beside && s->device && s->device->host;
    const uint64_t beside = s->beside ? s->beside + inv_improve_bytes(s) : 0;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:i}", "mapped_bytes", bytes(pr->in_place), "beside_bytes",
                     beside ? bytes(beside) : json_null(), "process_bytes", whole ? bytes(most + beside) : json_null(),
                     "timed_seconds", inv_improve_seconds(s) > 0 ? json_real(inv_improve_seconds(s)) : json_null(),
                     "uncorrected_seconds", inv_improve_rated(s) > 0 ? json_real(inv_improve_rated(s)) : json_null(),
                     "plans_taken", inv_improve_taken(s));
}

/* What the device says of itself: bytes in use on it, by contexts, code, graphs and other programs, too, what
 * computes convolutions, and what it is. Null where it has nothing to say. Then how many kernels and copies there are
 * in the recorded parts of a step. */
static json_t *device_facts(const inv_session *s)
{
    inv_device_facts f;
    const size_t nodes = s->run[INV_PLAN_MAIN].graph_nodes;
    if (!s->self || !s->device->facts)
        return json_pack("{s:n, s:n, s:n, s:o}", "device_memory", "convolutions", "device_facts", "recorded_nodes",
                         bytes(nodes));
    s->device->facts(s->self, &f);
    const size_t planned = inv_program_bytes(s->program);
    const size_t beside = f.used > planned ? f.used - planned : 0;
    return json_pack("{s:{s:o, s:o, s:o}, s:s?, s:{s:s, s:i, s:i, s:i, s:i, s:i, s:i}, s:o}", "device_memory",
                     "used_bytes", bytes(f.used), "beside_bytes", bytes(beside), "total_bytes", bytes(f.total),
                     "convolutions", f.convolutions, "device_facts", "name", f.name, "compute_capability", f.capability,
                     "multiprocessors", f.processors, "driver", f.driver, "runtime", f.runtime, "cublaslt", f.cublaslt,
                     "cudnn", f.cudnn, "recorded_nodes", bytes(nodes));
}

/* What it needs, of what is trained. The list of what is not comes at the end of the report. */
static void peaks(inv_json *w, const inv_session *s, json_t **train, json_t **frozen)
{
    const inv_program *pr = s->program;
    const inv_plan *p = &pr->plan[INV_PLAN_MAIN];
    json_t *reasons = json_array();
    int64_t trained;
    *train = json_array();
    *frozen = json_array();
    trainables(p, *train, *frozen, reasons, &trained);
    inv_json_fields(
        w, json_pack(
               "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "memory", memory_names[p->memory], "device",
               pr->options.device ? pr->options.device : "cpu", "planned_peak_bytes", bytes(inv_program_bytes(pr)),
               "peak_bytes", bytes(s->self ? pr->in_place + s->device->peak(s->self) : 0), "activation_peak_bytes",
               bytes(p->activation_peak), "store_peak_bytes", bytes(pr->persistent + pr->control + pr->store_peak),
               "flops", inv_report_number(p->flops), "store_flops", inv_report_number(p->store_flops), "guard_flops",
               inv_report_number(p->guard_flops), "arena_bytes", bytes(p->transient), "live_bytes", bytes(p->load)));
    inv_json_fields(w, json_pack("{s:O, s:I, s:o, s:o, s:o, s:s, s:o, s:o}", "trained", *train, "trained_elements",
                                 (json_int_t)trained, "not_trained", reasons, "tied", ties(pr), "held", held(pr),
                                 "cost", pr->options.costs ? "time" : "flops", "predicted_seconds", predicted(p),
                                 "store_predicted_seconds",
                                 p->seconds ? inv_report_number(p->store_seconds) : json_null()));
}

inv_status inv_session_report(inv_session *s, char **json)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, json);
    enum { ROW = 350 }; /* bytes of the report for each node of the plan, about */
    *json = NULL;
    INV_TRY(inv_session_whole(s));
    const inv_program *pr = s->program;
    const inv_plan *p = &pr->plan[INV_PLAN_MAIN];
    json_t *train, *frozen;
    size_t load = 0;
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (pr->plan[k].g && pr->plan[k].load > load) load = pr->plan[k].load;
    inv_json w;
    inv_json_begin(&w, s->ctx);
    inv_str_reserve(&w.text, ROW * p->g->order.n); /* text that grows is there twice while it is copied */
    inv_json_open(&w, NULL, '{');
    peaks(&w, s, &train, &frozen);
    inv_json_tree(&w, "plan", overhead(p));
    inv_json_tree(&w, "values", inv_report_counts(p));
    inv_report_choices(&w, p);
    inv_report_blocks(&w, pr, p->base);
    inv_report_refused(&w, pr, p->base);
    inv_json_fields(&w,
                    json_pack("{s:o, s:o, s:i, s:o}", "drift", drift(s, p), "max_drift",
                              inv_report_number(pr->max_drift), "fallbacks", s->fallbacks, "classes", classes(s, p)));
    timeline(&w, p, pr->options.profile ? s->run[INV_PLAN_MAIN].node : NULL,
             s->device && s->device->host ? pr->options.costs : NULL);
    alive_at(&w, "alive_at_peak", p, p->peak_at);
    alive_at(&w, "alive_at_activation_peak", p, p->activation_peak_at);
    inv_json_fields(&w, json_pack("{s:o, s:o, s:o, s:o, s:o}", "host_bytes", bytes(pr->host), "live_peak_bytes",
                                  bytes(pr->persistent + pr->control + pr->landing + load), "constant_inputs",
                                  constant_list(pr), "trainable", train, "frozen", frozen));
    json_t *stale = json_array();
    for (size_t i = 0; i < s->stale.n; i++) (void)json_array_append_new(stale, json_string(s->stale.at[i]));
    inv_json_tree(&w, "stale_outputs", stale);
    inv_json_fields(&w, json_pack("{s:o}", "globs", inv_report_globs(p->base, &pr->options)));
    inv_json_fields(&w, process(s));
    inv_json_fields(&w, inv_report_ranks(s));
    inv_json_fields(&w, device_facts(s));
    inv_json_close(&w, '}');
    return inv_json_take(&w, json);
}

/* --- registry --- */

/* {"x": ["float", ...], ...}: float stands for all floating-point types, which are computed as float or double. */
static json_t *type_lists(const inv_op_def *d, const inv_support *f)
{
    json_t *all = json_object();
    const char *at = d->in;
    for (uint32_t i = 0; i < INV_SUPPORT_IN && *at; i++) {
        const size_t n = strcspn(at, " ?*");
        json_t *list = json_array();
        for (int t = 1; t < 32; t++) {
            const char *name = inv_dtype_name((inv_dtype)t);
            if (inv_dtype_is_float((inv_dtype)t) && t != INV_F32) continue;
            if (f->types[i] >> t & 1) (void)json_array_append_new(list, json_string(name));
        }
        (void)json_object_setn_new(all, at, n, list);
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return all;
}

static json_t *op_entry(const inv_op_def *d, const inv_support *f, const char *plugin)
{
    static const char *const gradient[] = {
        [INV_GRAD_NONE] = "none", [INV_GRAD_MISSING] = "missing", [INV_GRAD_PARTLY] = "partly", [INV_GRAD_YES] = "yes"};
    const bool own = d->run || d->flags & (INV_OP_VIEW | INV_OP_TRANSFER);
    json_t *to = json_array();
    for (uint32_t i = 0; i < f->nto && d->lower; i++) (void)json_array_append_new(to, json_string(f->to[i]->name));
    return json_pack("{s:s, s:s, s:i, s:i, s:s, s:s, s:b, s:o, s:b, s:s, s:o, s:s, s:s?}", "name", d->name, "domain",
                     d->domain, "since", d->since, "until", d->until, "forward",
                     own        ? "yes"
                     : d->lower ? "lowered"
                                : "missing",
                     "gradient", gradient[f->gradient], "inverse", f->inverse, "types", type_lists(d, f), "cpu", f->cpu,
                     "cuda",
                     !f->cuda       ? "no"
                     : f->cuda_real ? "float"
                                    : "yes",
                     "lowers_to", to, "doc", d->doc ? d->doc : "", "plugin", plugin);
}

static inv_status op_list(inv_context *ctx, json_t *list)
{
    for (size_t i = 0; i < inv_registry_nops(ctx->registry); i++) {
        const inv_op_def *d = inv_registry_op_at(ctx->registry, i);
        inv_support f;
        INV_TRY(ctx->support(ctx, d, &f));
        (void)json_array_append_new(list, op_entry(d, &f, inv_registry_op_plugin(ctx->registry, i)));
    }
    return INV_OK;
}

static json_t *rule_entry(inv_context *ctx, size_t i)
{
    const inv_inverse_def *d = inv_registry_inverse_at(ctx->registry, i);
    json_t *cases = json_array();
    inv_str text;
    inv_str_init(&text, ctx);
    inv_rule_print(d, &text);
    for (size_t k = 0; d->cases && d->cases[k]; k++) (void)json_array_append_new(cases, json_string(d->cases[k]));
    json_t *o = json_pack("{s:s, s:s, s:i, s:s, s:s, s:o, s:s, s:s?}", "name", d->name, "kind",
                          d->kind ? d->kind : d->name, "priority", (int)d->priority, "exactness",
                          d->exactness == INV_EXACT ? "exact" : "bounded", "doc", d->doc ? d->doc : "", "cases", cases,
                          "text", text.s, "plugin", inv_registry_inverse_plugin(ctx->registry, i));
    for (const inv_rule_field *f = inv_rule_fields; o && f->name; f++)
        if (!json_object_get(o, f->name)) {
            const char *value = inv_rule_text(d, f);
            (void)json_object_set_new(o, f->name, value ? json_string(value) : json_null());
        }
    inv_str_fini(&text);
    return o;
}

static json_t *rule_list(inv_context *ctx)
{
    json_t *list = json_array();
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++)
        (void)json_array_append_new(list, rule_entry(ctx, i));
    return list;
}

inv_status inv_registry_report(inv_context *ctx, const char *what, char **json)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, what);
    INV_GIVEN(ctx, json);
    *json = NULL;
    bool ops = strcmp(what, "ops") == 0;
    INV_CHECK(ops || strcmp(what, "rules") == 0, ctx, INV_E_ARG, "no report is called '%s'; there are: ops, rules",
              what);
    json_t *list = ops ? json_array() : rule_list(ctx);
    inv_status s = ops ? op_list(ctx, list) : INV_OK;
    if (s != INV_OK) {
        json_decref(list);
        return s;
    }
    return inv_report_text(ctx, json_pack("{s:o}", what, list), json);
}
