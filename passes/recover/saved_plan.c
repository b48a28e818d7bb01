/* SPDX-License-Identifier: Apache-2.0
 * Plans as JSON, so that one that was searched for once can be looked at and used again. All is said by names, since a
 * session may have other nodes besides, as those of the update. A value is found by its name; what gives it again, by
 * the way ("how"), the rule, the operator and the file's node; the node of backward before which that happens, by its
 * operator and the file's node. "which" counts those that are alike in this, from 0. The number at the end of a made
 * name is left out, since it depends on what else was made. `made_with` only helps to explain why a plan does not fit.
 * `checksum` (core/base/checksum.h) is of all the rest, without blanks and with sorted keys; "edited" in its place is
 * of a plan that somebody has changed on purpose. Version 1 had none.
 *   {"invonnx_plan": 2, "memory", "made_with": {option: text, ...}, "plans": [
 *      {"shapes": {input: [extent, ...]}, "forward", "firings": [
 *         {"values": [{"name", "which"}, ...], "how": "recompute", "invert" or "offload", "rule" if it inverts,
 *          "joined": true if the inverse is fused with an operator (fuse_inverse.c), "op", "node",
 *          "before": {"op", "node", "which"}}],
 *       "updates": "late", where early ones were asked for and wait for guards}], "checksum"}
 * A firing, as files and messages say, is a rematerialisation.
 * requires: inv_recovery.
 * gives: text, or rematerialisations of its problem. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checksum.h"
#include "core/graph/node.h"
#include "core/program/options.h"
#include "passes/planner/problem.h"
#include "passes/recover/recover.h"

enum { VERSION = 2, WITHOUT_CHECKSUM = 1 };
static const char *const memory_names[] = {"auto", "store", "recompute", "invert"};

#define LATE "late"
#define CHECKSUM "checksum"
#define EDITED "edited"
#define MISFIT "the saved plan does not fit: "

/* --- names --- */

/* By names that a plan's file may hold, "OP LABEL" of nodes of backward and the stems of values of forward: an array of
 * the positions of those that are called so, nodes by their place in the order, values by their ids. Per position, its
 * index in that array. */
typedef struct names {
    json_t *positions;
    uint32_t *which;
} names;

static bool add_name(names *x, const char *name, uint32_t position)
{
    json_t *list = json_object_get(x->positions, name);
    if (!list && json_object_set_new_nocheck(x->positions, name, list = json_array()) != 0) return false;
    x->which[position] = (uint32_t)json_array_size(list);
    return json_array_append_new(list, json_integer(position)) == 0;
}

static const char *node_name(const char *op, const char *label, inv_arena *a)
{
    return inv_arena_printf(a, "%s %s", op, label);
}

static bool name_backward(const inv_graph *b, inv_arena *a, names *out)
{
    *out = (names){json_object(), INV_ARENA_NEW(a, uint32_t, b->order.n + 1)};
    bool ok = !a->failed;
    for (size_t i = b->forward_end; i < b->order.n && ok; i++) {
        const inv_node *n = inv_nod(b, b->order.at[i]);
        const char *name = node_name(n->op->name, inv_node_label(n), a);
        ok = name && add_name(out, name, (uint32_t)i);
    }
    return ok;
}

/* The name without a number at its end ("." and digits). */
static const char *stem_of(const char *name, inv_arena *a)
{
    size_t n = strlen(name), end = n;
    while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9') end--;
    char *copy = inv_arena_strdup(a, name);
    if (copy && end < n && end > 1 && name[end - 1] == '.') copy[end - 1] = 0;
    return copy;
}

static bool name_values(const inv_graph *b, inv_arena *a, names *out)
{
    *out = (names){json_object(), INV_ARENA_NEW(a, uint32_t, b->value.n + 1)};
    bool *forward = INV_ARENA_NEW(a, bool, b->value.n + 1);
    for (size_t i = 0; i < b->forward_end && !a->failed; i++) {
        const inv_node *n = inv_nod(b, b->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) forward[n->out[k]] = true;
    }
    bool ok = !a->failed;
    for (size_t v = 0; v < b->value.n && ok; v++) { /* in the order of ids, which files count by */
        const char *stem = forward[v] ? stem_of(inv_val(b, (inv_id)v)->name, a) : NULL;
        ok = !a->failed && (!stem || add_name(out, stem, (uint32_t)v));
    }
    return ok;
}

/* The position of the `which`-th of this name; both come from a file. UINT32_MAX: there is none. */
static uint32_t find_name(const names *x, const char *name, const json_t *which)
{
    const json_int_t nth = json_is_integer(which) ? json_integer_value(which) : -1;
    const json_t *list = json_object_get(x->positions, name);
    if (nth < 0 || nth >= (json_int_t)json_array_size(list)) return UINT32_MAX;
    return (uint32_t)json_integer_value(json_array_get(list, (size_t)nth));
}

/* Of a plan that has none yet. false: out of memory. */
static bool checksum_of(const json_t *root, char digits[INV_CHECKSUM_DIGITS + 1])
{
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    inv_checksum sum;
    if (!text) return false;
    inv_checksum_begin(&sum);
    inv_checksum_add(&sum, text, strlen(text));
    inv_checksum_end(&sum, digits);
    digits[INV_CHECKSUM_DIGITS] = 0;
    free(text);
    return true;
}

/* --- writing --- */

/* The row of an edge, without step and values: the node that it computes again, solves, or copies the result of. */
static inv_remat_row row_of(const inv_recovery *r, const inv_pb_edge *e)
{
    const inv_edge *inverse = e->inverse ? &r->edge[e->id] : NULL;
    const inv_id node = e->offload ? inv_val(r->base, r->value[e->target[0]])->def
                        : inverse  ? inverse->forward
                                   : (inv_id)e->id;
    return (inv_remat_row){.node = node,
                           .rule = inverse ? inverse->rule : NULL,
                           .joined = inverse && inverse->fused,
                           .offload = e->offload};
}

inv_status inv_plan_note(const inv_recovery *r, const inv_remats *remats, inv_plan *plan)
{
    inv_arena *a = &plan->g->arena;
    memset(&plan->remat, 0, sizeof plan->remat);
    for (size_t k = 0; k < remats->n; k++) {
        const inv_remat *m = &remats->at[k];
        const inv_pb_edge *e = &r->p.edge[m->edge];
        inv_id *value = INV_ARENA_NEW(a, inv_id, e->ntarget + 1);
        inv_remat_row x = row_of(r, e);
        x.step = m->step;
        x.value = value;
        for (uint32_t i = 0; value && i < e->ntarget; i++)
            if (m->want >> i & 1) value[x.nvalue++] = r->value[e->target[i]];
        if (!value || !inv_vec_push(a, &plan->remat, x)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static const char *way_name(const inv_remat_row *m)
{
    return m->offload ? "offload" : m->rule ? "invert" : "recompute";
}

/* `before` is by position in the order, `which` by id of the value. */
static json_t *remat_to_json(const inv_graph *b, const inv_remat_row *m, const uint32_t *before, const uint32_t *which)
{
    const inv_node *n = inv_nod(b, m->node), *next = inv_nod(b, b->order.at[m->step]);
    json_t *values = json_array();
    for (uint32_t i = 0; i < m->nvalue; i++)
        (void)json_array_append_new(values, json_pack("{s:s, s:I}", "name", inv_val(b, m->value[i])->name, "which",
                                                      (json_int_t)which[m->value[i]]));
    return json_pack("{s:o, s:s, s:s*, s:o*, s:s, s:s, s:{s:s, s:s, s:I}}", "values", values, "how", way_name(m),
                     "rule", m->rule ? m->rule->name : NULL, "joined", m->joined ? json_true() : NULL, "op",
                     n->op->name, "node", inv_node_label(n), "before", "op", next->op->name, "node",
                     inv_node_label(next), "which", (json_int_t)before[m->step]);
}

/* The shapes of inputs and target that the plan was made for. */
static json_t *shapes_of(const inv_plan *p)
{
    json_t *all = json_object();
    for (size_t i = 0; i < p->feed.n; i++) {
        const inv_shape *s = &inv_val(p->base, p->feed.at[i].value)->shape;
        json_t *dims = json_array();
        for (int32_t d = 0; d < s->rank; d++) (void)json_array_append_new(dims, json_integer(s->dim[d]));
        (void)json_object_set_new(all, p->feed.at[i].is_target ? "(target)" : p->feed.at[i].name, dims);
    }
    return all;
}

static json_t *plan_entry(const inv_plan *p, inv_arena *a)
{
    const inv_graph *b = p->base;
    names backward = {0}, value = {0};
    json_t *list = json_array();
    bool ok = name_backward(b, a, &backward) && name_values(b, a, &value);
    for (size_t i = 0; i < p->remat.n && ok; i++)
        ok = json_array_append_new(list, remat_to_json(b, &p->remat.at[i], backward.which, value.which)) == 0;
    json_decref(backward.positions);
    json_decref(value.positions);
    if (ok)
        return json_pack("{s:o, s:I, s:o, s:s*}", "shapes", shapes_of(p), "forward", (json_int_t)b->forward_end,
                         "firings", list, "updates", inv_updates_wait(p) ? LATE : NULL);
    json_decref(list);
    return NULL;
}

static json_t *quoted_names(const char *const *text, size_t n, inv_context *ctx)
{
    inv_str s;
    inv_str_init(&s, ctx);
    for (size_t i = 0; i < n; i++) inv_str_add(&s, "%s'%s'", i ? " " : "", text[i]);
    json_t *all = json_string(n ? s.s : "none");
    inv_str_fini(&s);
    return all;
}

/* The options that change a model's nodes, or the ways to have its values, by their fields. */
static json_t *made_with(const inv_session_options *o, inv_context *ctx)
{
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o}", "device",
                     o->device ? o->device : "cpu", "arithmetic", o->float64 ? "float64" : "float32", "precision",
                     inv_precision_name(o->precision), "train_only", quoted_names(o->train_only, o->ntrain_only, ctx),
                     "freeze", quoted_names(o->freeze, o->nfreeze, ctx), "train_bn", o->train_bn ? "yes" : "no",
                     "sync_bn", o->sync_bn ? "yes" : "no", "no_dropout", o->no_dropout ? "yes" : "no", "untie",
                     o->untie ? "yes" : "no", "weights", o->weights ? inv_dtype_name(o->weights) : "as computed with",
                     "through_quantization", o->through_quantization ? "yes" : "no", "hold_zeros",
                     quoted_names(o->hold_zeros, o->nhold_zeros, ctx), "hold_rows",
                     quoted_names(o->hold_rows, o->nhold_rows, ctx), "no_hold",
                     quoted_names(o->no_hold, o->nno_hold, ctx));
}

inv_status inv_plan_save(const inv_program *program, char **out)
{
    inv_context *ctx = program->ctx;
    *out = NULL;
    INV_CHECK(program->options.purpose == INV_FOR_TRAIN, ctx, INV_E_ARG,
              "this session is not for training: there is no plan to save");
    inv_arena scratch;
    inv_arena_init(&scratch, ctx);
    json_t *plans = json_array();
    bool ok = true;
    for (int k = INV_PLAN_MAIN; k <= INV_PLAN_TAIL && ok; k++)
        if (program->plan[k].g) ok = json_array_append_new(plans, plan_entry(&program->plan[k], &scratch)) == 0;
    inv_arena_fini(&scratch);
    json_t *root =
        json_pack("{s:i, s:s, s:o, s:o}", "invonnx_plan", VERSION, "memory", memory_names[program->options.memory],
                  "made_with", made_with(&program->options, ctx), "plans", plans);
    char sum[INV_CHECKSUM_DIGITS + 1];
    ok = ok && root && checksum_of(root, sum) && json_object_set_new(root, CHECKSUM, json_string(sum)) == 0;
    char *text = ok ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (text && (*out = inv_alloc(ctx, strlen(text) + 1))) memcpy(*out, text, strlen(text) + 1);
    free(text);
    return *out ? INV_OK : inv_fail(ctx, INV_E_NOMEM, "out of memory while a plan was written");
}

/* --- reading --- */

/* A plan while it is read. */
typedef struct loader {
    const inv_recovery *r;
    inv_context *ctx;
    names value, backward;
    uint32_t k;    /* index of the rematerialisation that is read */
    bool needless; /* this session does not need all of the rematerialisations */
} loader;

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Reads before which node of backward the rematerialisation stands. */
static inv_status read_saved_step(const loader *x, const json_t *before, uint32_t first, uint32_t *step)
{
    const json_t *which = json_object_get(before, "which");
    const char *op = text_of(before, "op"), *label = text_of(before, "node"), *name = node_name(op, label, x->r->a);
    if (!name) return INV_E_NOMEM;
    const uint32_t at = find_name(&x->backward, name, which);
    INV_CHECK(at != UINT32_MAX, x->ctx, INV_E_ARG,
              MISFIT "firing %u is before node '%s' (%s, number %lld) of backward, which is not there", x->k, label, op,
              (long long)json_integer_value(which));
    INV_CHECK(at >= first, x->ctx, INV_E_ARG,
              MISFIT "firing %u is before node '%s' (%s), and comes earlier than the firing in front of it", x->k,
              label, op);
    *step = at;
    return INV_OK;
}

static bool is_way(const inv_recovery *r, const inv_pb_edge *e, const json_t *o)
{
    const inv_remat_row m = row_of(r, e);
    const inv_node *n = inv_nod(r->base, m.node);
    return strcmp(text_of(o, "how"), way_name(&m)) == 0 &&
           strcmp(text_of(o, "rule"), m.rule ? m.rule->name : "") == 0 &&
           json_is_true(json_object_get(o, "joined")) == m.joined && strcmp(text_of(o, "op"), n->op->name) == 0 &&
           strcmp(text_of(o, "node"), inv_node_label(n)) == 0;
}

/* The edge that gives v in this way; INV_NO_REMAT: there is none. */
static uint32_t find_way(const inv_recovery *r, uint32_t v, const json_t *o)
{
    for (uint32_t i = 0; i < r->p.value[v].n; i++) {
        const uint32_t e = r->p.edge_of[r->p.value[v].first + i];
        if (is_way(r, &r->p.edge[e], o)) return e;
    }
    return INV_NO_REMAT;
}

/* Whether the value is live to the end of the step, as the model's outputs are in sessions that are asked for them. */
static bool is_result(const inv_recovery *r, uint32_t number)
{
    bool any = false;
    for (size_t v = 0; v < r->base->value.n && !any; v++)
        any = r->number[v] == number && inv_val(r->base, (inv_id)v)->keep;
    return any;
}

/* Reads one of the values that the rematerialisation gives. What is a result in this session need not be given. */
static inv_status read_saved_value(loader *x, const json_t *o, const json_t *value, inv_remat *m)
{
    const inv_recovery *r = x->r;
    const char *name = text_of(value, "name"), *stem = stem_of(name, r->a), *rule = text_of(o, "rule");
    if (!stem) return INV_E_NOMEM;
    const inv_id v = find_name(&x->value, stem, json_object_get(value, "which"));
    INV_CHECK(v != INV_NONE && r->value[r->number[v]] == v, x->ctx, INV_E_ARG,
              MISFIT "firing %u gives '%s', which is no value of forward here", x->k, name);
    const uint32_t number = r->number[v];
    if (r->p.value[number].pinned && is_result(r, number)) {
        x->needless = true;
        return INV_OK;
    }
    INV_CHECK(!r->p.value[number].pinned, x->ctx, INV_E_ARG,
              MISFIT "firing %u gives '%s', which is stored ({keep} or {modes})", x->k, name);
    const uint32_t e = find_way(r, number, o);
    INV_CHECK(e != INV_NO_REMAT && (m->edge == INV_NO_REMAT || e == m->edge), x->ctx, INV_E_ARG,
              MISFIT "firing %u: there is no way to %s '%s' by node '%s' (%s)%s%s here. Maybe the plan was made with "
                     "other rules or a higher {max_drift}",
              x->k, text_of(o, "how"), name, text_of(o, "node"), text_of(o, "op"), *rule ? " and rule " : "", rule);
    m->edge = e;
    for (uint32_t t = 0; t < r->p.edge[e].ntarget; t++)
        if (r->p.edge[e].target[t] == number) m->want |= 1u << t;
    return INV_OK;
}

/* Reads one rematerialisation. m->edge is INV_NO_REMAT if nothing of it is needed. */
static inv_status read_saved_remat(loader *x, const json_t *o, uint32_t first, inv_remat *m)
{
    const json_t *values = json_object_get(o, "values");
    *m = (inv_remat){0, INV_NO_REMAT, 0};
    INV_CHECK(json_array_size(values) > 0, x->ctx, INV_E_ARG, MISFIT "firing %u names no value", x->k);
    INV_TRY(read_saved_step(x, json_object_get(o, "before"), first, &m->step));
    for (size_t i = 0; i < json_array_size(values); i++) INV_TRY(read_saved_value(x, o, json_array_get(values, i), m));
    return INV_OK;
}

static inv_status read_saved_remats(loader *x, const json_t *list, inv_remats *out)
{
    const inv_recovery *r = x->r;
    if (!name_values(r->base, r->a, &x->value) || !name_backward(r->base, r->a, &x->backward)) return INV_E_NOMEM;
    INV_CHECK(json_is_array(list), x->ctx, INV_E_ARG, MISFIT "it has no list of firings");
    memset(out, 0, sizeof *out);
    inv_remat m = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        x->k = (uint32_t)i;
        INV_TRY(read_saved_remat(x, json_array_get(list, i), m.step, &m));
        if (m.edge != INV_NO_REMAT && !inv_vec_push(r->a, out, m)) return INV_E_NOMEM;
    }
    const size_t n = out->n;
    INV_TRY(inv_plan_prune(r->a, &r->p, out));
    INV_CHECK(out->n == n || x->needless, x->ctx, INV_E_ARG, MISFIT "%zu of its %zu firings give what nothing reads",
              n - out->n, n);
    return INV_OK;
}

/* The entry for these shapes; NULL: there is none. */
static const json_t *entry_for(const json_t *plans, const json_t *shapes)
{
    for (size_t i = 0; i < json_array_size(plans); i++) {
        const json_t *entry = json_array_get(plans, i);
        if (json_equal(json_object_get(entry, "shapes"), shapes)) return entry;
    }
    return NULL;
}

static inv_status no_entry(const loader *x, const json_t *plans, const json_t *shapes)
{
    const json_t *first = json_object_get(json_array_get(plans, 0), "shapes");
    char *made = json_dumps(first, JSON_ENCODE_ANY), *wanted = json_dumps(shapes, JSON_ENCODE_ANY);
    inv_status st = inv_fail(x->ctx, INV_E_ARG, MISFIT "it was made for inputs of %s, the session's are %s",
                             made ? made : "no shape", wanted ? wanted : "others");
    free(made);
    free(wanted);
    return st;
}

/* The plan is as it was saved. Takes the checksum out. */
static inv_status check_saved(inv_context *ctx, json_t *root)
{
    const json_t *said = json_object_get(root, "invonnx_plan");
    const json_int_t version = json_is_integer(said) ? json_integer_value(said) : 0;
    char is[INV_CHECKSUM_DIGITS + 1];
    INV_CHECK(version == VERSION || version == WITHOUT_CHECKSUM, ctx, INV_E_ARG,
              "this is no saved plan, or it is of another version of the program (invonnx_plan is not %d)", VERSION);
    json_t *kept = json_incref(json_object_get(root, CHECKSUM));
    (void)json_object_del(root, CHECKSUM);
    bool same = version == WITHOUT_CHECKSUM ? !kept : kept && checksum_of(root, is);
    if (same && version == VERSION) {
        const char *text = json_is_string(kept) ? json_string_value(kept) : "";
        same = strcmp(text, EDITED) == 0 || strcmp(text, is) == 0;
    }
    json_decref(kept);
    INV_CHECK(same, ctx, INV_E_ARG,
              "the saved plan does not agree with its checksum: it is damaged, or was changed. Save it again; to "
              "accept the change, write \"" CHECKSUM "\": \"" EDITED "\" into it");
    return INV_OK;
}

static inv_status load_saved(loader *x, const json_t *root, const inv_plan *plan, const inv_request *rq,
                             inv_remats *out, bool *late, bool *found)
{
    const inv_graph *b = plan->base;
    const char *memory = memory_names[rq->options->memory];
    const json_t *plans = json_object_get(root, "plans");
    INV_CHECK(json_is_array(plans), x->ctx, INV_E_ARG, "this is no saved plan: it has no list of plans");
    INV_CHECK(strcmp(text_of(root, "memory"), memory) == 0, x->ctx, INV_E_ARG,
              MISFIT "it was made with {memory} %s, the session is in mode %s", text_of(root, "memory"), memory);
    json_t *shapes = shapes_of(plan);
    if (!shapes) return INV_E_NOMEM;
    const json_t *entry = entry_for(plans, shapes);
    *found = entry != NULL;
    *late = strcmp(text_of(entry, "updates"), LATE) == 0;
    inv_status st = entry || rq->batch > 0 ? INV_OK : no_entry(x, plans, shapes);
    json_decref(shapes);
    if (st != INV_OK || !entry) return st;
    const json_int_t forward = json_integer_value(json_object_get(entry, "forward"));
    INV_CHECK(forward == (json_int_t)b->forward_end, x->ctx, INV_E_ARG,
              MISFIT "it is of a model with %lld steps in forward, this one has %zu", (long long)forward,
              b->forward_end);
    return read_saved_remats(x, json_object_get(entry, "firings"), out);
}

/* Adds to the message in which options the plan was made with others. */
static inv_status explain_misfit(const json_t *root, const inv_session_options *o, inv_context *ctx, inv_status st)
{
    json_t *here = made_with(o, ctx), *wanted;
    const json_t *made = json_object_get(root, "made_with");
    const char *key, *link = ". It was made with";
    inv_str text;
    inv_str_init(&text, ctx);
    inv_str_add(&text, "%s", inv_context_message(ctx));
    json_object_foreach(here, key, wanted)
    {
        if (!json_is_string(json_object_get(made, key)) || json_equal(json_object_get(made, key), wanted)) continue;
        inv_str_add(&text, "%s %s %s (here %s)", link, inv_option(ctx, key), text_of(made, key),
                    json_string_value(wanted));
        link = ",";
    }
    if (*link == ',') st = inv_fail(ctx, st, "%s", text.s);
    inv_str_fini(&text);
    json_decref(here);
    return st;
}

inv_status inv_plan_load(const inv_recovery *r, const inv_plan *plan, const inv_request *rq, inv_remats *out,
                         bool *late, bool *found)
{
    loader x = {.r = r, .ctx = r->base->ctx};
    json_error_t error;
    *found = false;
    json_t *root = json_loads(rq->options->plan, JSON_REJECT_DUPLICATES, &error);
    INV_CHECK(root, x.ctx, INV_E_ARG, "the saved plan is no JSON, or cut short: line %d: %s", error.line, error.text);
    inv_status st = check_saved(x.ctx, root);
    if (st == INV_OK) {
        st = load_saved(&x, root, plan, rq, out, late, found);
        if (st == INV_E_ARG) st = explain_misfit(root, rq->options, x.ctx, st);
    }
    json_decref(x.value.positions);
    json_decref(x.backward.positions);
    json_decref(root);
    return st;
}
