/* SPDX-License-Identifier: Apache-2.0
 * What the inverses of a model do on data at hand: each by itself in float32 and float64
 * (passes/match/check_inverses.c), all of them one after the other as a training step uses them, and what comes of the
 * gradient. A session is made for each look; no two are there at a time. */
#include <math.h>
#include <string.h>

#include "api/check.h"
#include "core/program/options.h"

/* A training step: all stored, inverted as guards and limits allow, inverted whatever the errors. */
enum { LOOK_STORED, LOOK_GUARDED, LOOK_FREE };

typedef struct check {
    inv_model *model;
    inv_context *ctx;
    inv_session_options options; /* as given */
    inv_arena arena;
    inv_findings found;
    const char **outputs; /* of the loss that stands in where none was given */
    size_t noutputs;
    INV_VEC(const char *) stored; /* values, in a guarded step as it is planned first */
    const char *no_steps;         /* why no training step could be looked at; NULL: they were */
    double *reference;            /* gradients in float64, everything stored, one after the other */
    size_t nreference;
    double distance[3]; /* from them, of the type that is trained in; per look; < 0: none */
    json_t *refusals, *advice, *blocks;
} check;

static const char *copied(check *c, const char *text) { return text ? inv_arena_strdup(&c->arena, text) : NULL; }

/* --- each inverse by itself --- */

typedef struct fingerprint {
    double norm, nonfinite; /* L2, over the finite elements */
} fingerprint;

static inv_status read_value(inv_session *s, inv_id id, const void **data)
{
    const inv_value *v = inv_val(s->program->plan[INV_PLAN_MAIN].g, id);
    return inv_session_fetch(s, inv_value_address(s, v), v->dtype, &v->shape, data);
}

static inv_status read_fingerprint(inv_session *s, inv_id id, fingerprint *out)
{
    const void *data;
    double all[6];
    *out = (fingerprint){0, 0};
    if (id == INV_NONE) return INV_OK;
    INV_TRY(read_value(s, id, &data));
    memcpy(all, data, sizeof all);
    *out = (fingerprint){sqrt(all[4]), all[5]};
    return INV_OK;
}

static json_t *at_least_zero(double x) { return x < 0 ? json_null() : inv_report_number(x); }

static double ratio(double a, double b) { return a > 0 ? a / fmax(b, 1e-300) : 0; }

static inv_status read_off(inv_session *s, const inv_check *c, inv_tried *t, int type)
{
    const void *data;
    fingerprint value, off, start, moved, change;
    INV_TRY(read_fingerprint(s, c->value, &value));
    INV_TRY(read_fingerprint(s, c->off, &off));
    INV_TRY(read_value(s, c->most, &data));
    const inv_value *most = inv_val(s->program->plan[INV_PLAN_MAIN].g, c->most);
    inv_off *o = &t->off[type];
    *o = (inv_off){true, ratio(off.norm, value.norm), inv_elem_double(data, most->dtype, 0),
                   fmax(off.nonfinite - value.nonfinite, 0)};
    if (o->nonfinite > 0) o->relative = INFINITY;
    if (c->spread != INV_NONE) {
        const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
        const inv_edge *e = &p->base->matches->edge.at[c->edge];
        INV_TRY(read_value(s, c->spread, &data));
        t->bound = inv_edge_bound(p->base, e, inv_elem_double(data, inv_val(p->g, c->spread)->dtype, 0));
        t->spread = t->bound / e->bound;
    }
    if (c->change == INV_NONE) return INV_OK;
    INV_TRY(read_fingerprint(s, c->start, &start));
    INV_TRY(read_fingerprint(s, c->moved, &moved));
    INV_TRY(read_fingerprint(s, c->change, &change));
    if (moved.norm <= 0) return INV_OK;
    t->magnified = change.norm / moved.norm;
    t->relative = ratio(ratio(change.norm, value.norm), ratio(moved.norm, start.norm));
    return INV_OK;
}

/* The smallest block that the node is in, one of whose pattern it is of before others. */
static const inv_block *smallest_block(const inv_graph *g, inv_id node)
{
    const inv_block *best = NULL;
    bool own = false;
    for (size_t i = 0; i < g->matches->block.n; i++) {
        const inv_block *b = &g->matches->block.at[i];
        uint32_t k = 0;
        while (k < b->nnode && b->node[k] != node) k++;
        const bool pattern = k < b->npattern;
        if (k == b->nnode || (best && (own != pattern ? own : b->nnode >= best->nnode))) continue;
        best = b;
        own = pattern;
    }
    return best;
}

static bool same_inverse(const inv_tried *t, const inv_graph *g, const inv_edge *e)
{
    return t->rule == e->rule && strcmp(t->value, inv_val(g, e->frees)->name) == 0 &&
           strcmp(t->node, inv_node_label(inv_nod(g, e->forward))) == 0;
}

/* The row of an inverse, new if it has none. */
static inv_status row_for(check *c, const inv_graph *g, const inv_edge *e, inv_tried **out)
{
    for (size_t i = 0; i < c->found.tried.n; i++) {
        *out = &c->found.tried.at[i];
        if (same_inverse(*out, g, e)) return INV_OK;
    }
    const inv_node *n = inv_nod(g, e->forward);
    const inv_block *b = smallest_block(g, e->forward);
    const inv_tried t = {.value = copied(c, inv_val(g, e->frees)->name),
                         .node = copied(c, inv_node_label(n)),
                         .op = n->op->name,
                         .kind = b ? copied(c, b->kind) : NULL,
                         .block = b ? copied(c, inv_node_label(inv_nod(g, b->root))) : NULL,
                         .rule = e->rule,
                         .exact = e->exact,
                         .gain = e->gain,
                         .bound = e->bound,
                         .cond = e->cond,
                         .spread = 1,
                         .magnified = -1,
                         .relative = -1};
    if (c->arena.failed || !inv_vec_push(&c->arena, &c->found.tried, t)) return INV_E_NOMEM;
    *out = &c->found.tried.at[c->found.tried.n - 1];
    return INV_OK;
}

/* Whether the inverse serves to solve the block for what it takes: by its rule's own solve text if it has one, else by
 * way of its pattern's own values. */
static bool serves(const inv_graph *g, const inv_block *b, const inv_edge *e)
{
    if (b->rule->solve) return inv_edge_of_block(e, b);
    bool solved = false, wanted = false;
    const inv_id def = inv_val(g, e->frees)->def;
    for (uint32_t k = 0; k < b->npattern; k++) {
        solved = solved || b->node[k] == e->forward;
        wanted = wanted || b->node[k] == def;
    }
    for (uint32_t k = 0; k < b->nrule_in; k++) wanted = wanted || b->in[k] == e->frees;
    return solved && wanted;
}

/* The worst of the inverses that a block is solved by. */
static json_t *block_json(const check *c, const inv_graph *g, const inv_block *b)
{
    const inv_findings *f = &c->found;
    double off[2] = {-1, -1}, gain = -1, bound = -1, magnified = -1, cond = 0;
    const char *refused = NULL;
    for (size_t i = 0; i < g->matches->edge.n; i++) {
        const inv_edge *e = &g->matches->edge.at[i];
        if (!serves(g, b, e)) continue;
        for (size_t k = 0; k < f->tried.n; k++) {
            const inv_tried *t = &f->tried.at[k];
            if (!same_inverse(t, g, e)) continue;
            for (int type = 0; type < 2; type++)
                if (t->off[type].known) off[type] = fmax(off[type], t->off[type].relative);
            gain = fmax(gain, t->gain);
            bound = fmax(bound, t->bound);
            magnified = fmax(magnified, t->magnified);
            cond = fmax(cond, t->cond);
            if (!refused) refused = inv_tried_refused(f, t);
        }
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s?}", "kind", b->kind, "name",
                     inv_node_label(inv_nod(g, b->root)), "rule", b->rule->name, "float32", at_least_zero(off[0]),
                     "float64", at_least_zero(off[1]), "gain", at_least_zero(gain), "gain_bound", at_least_zero(bound),
                     "gain_measured", at_least_zero(magnified), "condition", at_least_zero(cond > 0 ? cond : -1),
                     "refused", refused);
}

static json_t *blocks_json(const check *c, const inv_graph *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < g->matches->block.n; i++)
        (void)json_array_append_new(list, block_json(c, g, &g->matches->block.at[i]));
    return list;
}

/* What stands in for a loss: half the sum of squares of all outputs, as far as they are made of the same rows. */
static inv_status note_outputs(check *c, const inv_plan *p)
{
    int64_t rows = -1;
    c->outputs = INV_ARENA_NEW(&c->arena, const char *, p->output.n + 1);
    for (size_t i = 0; c->outputs && i < p->output.n; i++) {
        const inv_value *v = inv_val(p->g, p->output.at[i].value);
        if (!inv_dtype_is_float(v->dtype) || v->stated || v->state || v->shape.rank < 1) continue;
        if (rows < 0) rows = v->shape.dim[0];
        if (v->shape.dim[0] == rows) c->outputs[c->noutputs++] = copied(c, p->output.at[i].name);
    }
    return c->arena.failed || !c->outputs ? INV_E_NOMEM : INV_OK;
}

static inv_status try_inverses(check *c, inv_session *s, int type)
{
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    inv_result r;
    INV_TRY(inv_session_eval(s, c->options.inputs, c->options.ninputs, NULL, &r));
    for (size_t i = 0; i < p->check.n; i++) {
        inv_tried *t;
        INV_TRY(row_for(c, p->base, &p->base->matches->edge.at[p->check.at[i].edge], &t));
        INV_TRY(read_off(s, &p->check.at[i], t, type));
    }
    if (type == 1) c->blocks = blocks_json(c, p->base); /* the other has been tried */
    if (type != c->found.trained) return INV_OK;
    c->advice = json_array();
    if (!(c->refusals = inv_report_refusals(s->program, p->base))) return INV_E_NOMEM;
    INV_TRY(inv_refusal_advice(p->base, c->advice));
    return note_outputs(c, p);
}

static inv_status open_check(check *c, int type, inv_session **out)
{
    inv_session_options o = c->options;
    o.purpose = INV_FOR_CHECK;
    o.loss = INV_LOSS_NONE;
    o.target = NULL;
    o.loss_outputs = NULL;
    o.nloss_outputs = 0;
    o.logdet = NULL;
    o.float64 = type == 1;
    if (o.float64) o.precision = INV_PRECISION_FULL;
    return inv_session_make(c->model, &o, out);
}

/* --- one after the other, in a training step --- */

/* Above every error, below what marks values that are never rebuilt with rounding. */
#define ANY_DRIFT 1e300

static inv_status open_step(check *c, int type, inv_memory memory, double max_drift, inv_session **out)
{
    inv_session_options o = c->options;
    o.purpose = INV_FOR_TRAIN;
    o.memory = memory;
    o.float64 = type == 1;
    if (o.float64) o.precision = INV_PRECISION_FULL;
    o.max_drift = max_drift;
    o.guard = INV_GUARD_ON;
    if (memory == INV_MEMORY_STORE) o.nmodes = 0;
    if (o.loss == INV_LOSS_NONE) {
        o.loss = INV_LOSS_NLL;
        o.target = NULL;
        o.loss_outputs = c->outputs;
        o.nloss_outputs = c->noutputs;
    }
    return inv_session_create(c->model, &o, out);
}

/* One forward and backward; nothing is looked at if that cannot be had for this model. */
static inv_status step_once(check *c, inv_session *s)
{
    inv_result r;
    inv_session_set_step(s, 0, 0);
    return inv_session_grad(s, c->options.inputs, c->options.ninputs,
                            c->options.loss == INV_LOSS_NONE ? NULL : c->options.target, &r);
}

static const char *choice_word(const inv_choice_row *r, const inv_inverse_def *rule)
{
    if (r->choice == INV_OFFLOADED) return "offloaded";
    if (r->choice != INV_INVERTED) return r->choice == INV_STORED ? "stored" : "recomputed";
    return strcmp(r->by, rule->name) == 0 ? "inverted" : "inverted otherwise";
}

/* The limit as it is: how each value is had, and what the guard does not let pass. */
static inv_status look_at_guarded(check *c, inv_session *s)
{
    const inv_program *pr = s->program;
    const inv_plan *p = &pr->plan[INV_PLAN_MAIN];
    for (size_t i = 0; i < p->choice.n; i++)
        for (size_t k = 0; k < c->found.tried.n; k++)
            if (strcmp(c->found.tried.at[k].value, inv_val(p->base, p->choice.at[i].value)->name) == 0)
                c->found.tried.at[k].choice = choice_word(&p->choice.at[i], c->found.tried.at[k].rule);
    for (size_t i = 0; i < p->choice.n && pr->checkpoint.n; i++) {
        const char *name = inv_val(p->base, p->choice.at[i].value)->name;
        bool before = p->choice.at[i].choice != INV_STORED;
        for (size_t k = 0; k < c->stored.n && !before; k++) before = strcmp(c->stored.at[k], name) == 0;
        if (before) continue;
        if (!(name = copied(c, name)) || !inv_vec_push(&c->arena, &c->found.kept, name)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* What the plan stores before a guard has refused anything. */
static inv_status note_stored(check *c, const inv_session *s)
{
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    for (size_t i = 0; i < p->choice.n; i++) {
        if (p->choice.at[i].choice != INV_STORED) continue;
        const char *name = copied(c, inv_val(p->base, p->choice.at[i].value)->name);
        if (!name || !inv_vec_push(&c->arena, &c->stored, name)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status depth_for(check *c, const char *value, const char *by, inv_depth **out)
{
    for (size_t i = 0; i < c->found.depth.n; i++) {
        *out = &c->found.depth.at[i];
        if (strcmp((*out)->value, value) == 0) return INV_OK;
    }
    const inv_depth d = {copied(c, value), by, {-1, -1}};
    if (!d.value || !inv_vec_push(&c->arena, &c->found.depth, d)) return INV_E_NOMEM;
    *out = &c->found.depth.at[c->found.depth.n - 1];
    return INV_OK;
}

/* Without a limit: what has come of the errors at each value that was rebuilt from rebuilt ones. */
static inv_status look_at_depth(check *c, inv_session *s, int type)
{
    const inv_program *pr = s->program;
    const inv_plan *p = &pr->plan[INV_PLAN_MAIN];
    inv_depth *d;
    for (size_t i = 0; i < p->guarded.n; i++) {
        const inv_id v = p->guarded.at[i].value;
        const char *by = "";
        if (p->guarded.at[i].kind != INV_GUARD_REBUILT) continue;
        for (size_t k = 0; k < p->choice.n; k++)
            if (p->choice.at[k].value == v) by = p->choice.at[k].by;
        INV_TRY(depth_for(c, inv_val(p->g, v)->name, by, &d));
        d->drift[type] = s->drift[i];
    }
    for (size_t i = 0; i < pr->checkpoint.n; i++) { /* not even finite */
        if (pr->checkpoint.at[i].derived) continue;
        INV_TRY(depth_for(c, pr->checkpoint.at[i].name, "", &d));
        d->drift[type] = INFINITY;
    }
    return INV_OK;
}

/* --- gradients --- */

static inv_status gradients(check *c, inv_session *s, double *distance)
{
    const bool first = !c->reference;
    const char *name;
    size_t at = 0;
    double error = 0, norm = 0;
    const void *data;
    inv_dtype t;
    int rank;
    int64_t dims[INV_MAX_RANK];
    for (size_t i = 0; first && (name = inv_session_name(s, INV_GET_GRAD, i)); i++) {
        INV_TRY(inv_session_get(s, INV_GET_GRAD, name, &data, &t, &rank, dims));
        const inv_shape shape = inv_shape_of(rank, dims);
        c->nreference += (size_t)inv_shape_nelem(&shape);
    }
    if (first && !(c->reference = inv_alloc(c->ctx, (c->nreference + 1) * sizeof *c->reference))) return INV_E_NOMEM;
    for (size_t i = 0; (name = inv_session_name(s, INV_GET_GRAD, i)); i++) {
        INV_TRY(inv_session_get(s, INV_GET_GRAD, name, &data, &t, &rank, dims));
        const inv_shape shape = inv_shape_of(rank, dims);
        for (size_t k = 0; k < (size_t)inv_shape_nelem(&shape) && at < c->nreference; k++, at++) {
            const double g = inv_elem_double(data, t, k), r = first ? g : c->reference[at];
            c->reference[at] = r;
            error += (g - r) * (g - r);
            norm += r * r;
        }
    }
    if (distance) *distance = ratio(sqrt(error), sqrt(norm));
    return INV_OK;
}

/* --- all looks --- */

static inv_status look(check *c, int kind, int type)
{
    inv_session *s;
    const bool compare = c->options.loss != INV_LOSS_NONE;
    const double limit = kind == LOOK_GUARDED ? c->found.limit[type] : kind == LOOK_FREE ? ANY_DRIFT : 0;
    INV_TRY(open_step(c, type, kind == LOOK_STORED ? INV_MEMORY_STORE : INV_MEMORY_INVERT, limit, &s));
    inv_status st = kind == LOOK_GUARDED ? note_stored(c, s) : INV_OK;
    if (st == INV_OK) st = step_once(c, s);
    if (st == INV_OK && kind == LOOK_GUARDED) st = look_at_guarded(c, s);
    if (st == INV_OK && kind == LOOK_FREE) st = look_at_depth(c, s, type);
    if (st == INV_OK && compare && !c->reference) st = gradients(c, s, NULL);
    else if (st == INV_OK && compare && type == c->found.trained) st = gradients(c, s, &c->distance[kind]);
    inv_session_destroy(s);
    return st;
}

/* What this model has no training step for is not a failure of the check, except where the caller gave the loss. */
static inv_status looks(check *c)
{
    const int trained = c->found.trained;
    const struct {
        int kind, type;
    } order[] = {{LOOK_STORED, 1}, {LOOK_FREE, 0}, {LOOK_FREE, 1}, {LOOK_GUARDED, trained}, {LOOK_STORED, trained}};
    const bool compare = c->options.loss != INV_LOSS_NONE;
    if (!compare && c->noutputs == 0) {
        c->no_steps = "the model has no floating-point output, so there is nothing to take gradients of";
        return INV_OK;
    }
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (!compare && order[i].kind == LOOK_STORED) continue;
        const inv_status s = look(c, order[i].kind, order[i].type);
        if (s == INV_E_NOMEM || (compare && s != INV_OK)) return s;
        if (s != INV_OK) {
            c->no_steps = copied(c, inv_context_message(c->ctx));
            return c->no_steps ? INV_OK : INV_E_NOMEM;
        }
    }
    return INV_OK;
}

static inv_status all(check *c)
{
    for (int type = 0; type < 2; type++) {
        inv_session *s;
        INV_TRY(open_check(c, type, &s));
        const inv_status st = try_inverses(c, s, type);
        inv_session_destroy(s);
        INV_TRY(st);
    }
    return looks(c);
}

/* --- the report --- */

static json_t *off_json(const inv_off *o)
{
    if (!o->known) return json_null();
    return json_pack("{s:o, s:o, s:o}", "relative", inv_report_number(o->relative), "max_abs",
                     inv_report_number(o->largest), "nonfinite", inv_report_number(o->nonfinite));
}

static json_t *inverse_json(const inv_findings *f, const inv_tried *t)
{
    json_t *block = t->kind ? json_pack("{s:s, s:s}", "kind", t->kind, "name", t->block) : json_null();
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?, s:s?}", "value", t->value,
                     "node", t->node, "op", t->op, "rule", t->rule->name, "block", block, "exact", t->exact, "float32",
                     off_json(&t->off[0]), "float64", off_json(&t->off[1]), "gain", inv_report_number(t->gain),
                     "gain_bound", inv_report_number(t->bound), "gain_measured", at_least_zero(t->magnified),
                     "relative_gain_measured", at_least_zero(t->relative), "condition",
                     t->cond > 0 ? inv_report_number(t->cond) : json_null(), "refused", inv_tried_refused(f, t),
                     "choice", t->choice);
}

static json_t *depth_json(const check *c)
{
    const inv_findings *f = &c->found;
    json_t *list = json_array(), *kept = json_array();
    for (size_t i = 0; i < f->depth.n; i++) {
        const inv_depth *d = &f->depth.at[i];
        json_t *row = json_pack("{s:s, s:s}", "value", d->value, "by", d->by);
        for (int type = 0; type < 2; type++) /* a plan for the other type may not rebuild it */
            if (d->drift[type] >= 0)
                (void)json_object_set_new(row, inv_real_names[type], inv_report_number(d->drift[type]));
        (void)json_array_append_new(list, row);
    }
    for (size_t i = 0; i < f->kept.n; i++) (void)json_array_append_new(kept, json_string(f->kept.at[i]));
    return json_pack("{s:o, s:o, s:o, s:s?}", "values", list, "growth", at_least_zero(inv_depth_growth(f, f->trained)),
                     "kept_by_guard", kept, "not_looked_at", c->no_steps);
}

static json_t *report(check *c)
{
    const inv_findings *f = &c->found;
    json_t *list = json_array();
    for (size_t i = 0; i < f->tried.n; i++) (void)json_array_append_new(list, inverse_json(f, &f->tried.at[i]));
    json_t *gradient = c->options.loss == INV_LOSS_NONE
                           ? json_null()
                           : json_pack("{s:o, s:o, s:o}", "store", at_least_zero(c->distance[LOOK_STORED]), "invert",
                                       at_least_zero(c->distance[LOOK_GUARDED]), "invert_unguarded",
                                       at_least_zero(c->distance[LOOK_FREE]));
    json_t *root = json_pack("{s:{s:f, s:f}, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "max_drift", "float32", f->limit[0],
                             "float64", f->limit[1], "computed_in", inv_real_names[f->trained], "blocks", c->blocks,
                             "inverses", list, "chain", depth_json(c), "gradient_distance", gradient, "refusals",
                             c->refusals, "suggestions", c->advice);
    c->refusals = c->advice = c->blocks = NULL;
    return root;
}

static size_t count_not_finite(const inv_array *a)
{
    size_t n = a->dtype == INV_F32 || a->dtype == INV_F64, bad = 0;
    for (int k = 0; k < a->rank; k++) n *= (size_t)a->dims[k];
    for (size_t i = 0; i < n && !a->rows; i++) bad += isfinite(inv_elem_double(a->data, a->dtype, i)) ? 0 : 1;
    return bad;
}

inv_status inv_model_check(inv_model *model, const inv_session_options *options, char **json)
{
    INV_OBJECT(model);
    INV_GIVEN(model->ctx, json);
    check c = {.model = model, .ctx = model->ctx, .distance = {-1, -1, -1}};
    *json = NULL;
    inv_session_options *o = &c.options;
    INV_TRY(inv_options_read(model->ctx, options, o));
    inv_options_of_gradients(o);
    for (size_t i = 0; i < o->ninputs; i++) {
        INV_CHECK(o->inputs[i].data, model->ctx, INV_E_ARG, "input '%s' is given without values: a check wants data",
                  o->inputs[i].name);
        const size_t bad = count_not_finite(&o->inputs[i]);
        INV_CHECK(bad == 0, model->ctx, INV_E_ARG,
                  "input '%s' has %zu elements that are not finite, so nothing can be checked. Use data without them",
                  o->inputs[i].name, bad);
    }
    c.found.trained = o->float64;
    for (int type = 0; type < 2; type++)
        c.found.limit[type] = o->max_drift > 0 && type == c.found.trained ? o->max_drift : inv_default_max_drift(type);
    inv_arena_init(&c.arena, c.ctx);
    inv_status s = all(&c);
    if (s == INV_OK) s = inv_check_advice(c.ctx, &c.found, c.advice);
    if (s == INV_OK) s = inv_report_text(c.ctx, report(&c), json);
    json_decref(c.refusals);
    json_decref(c.advice);
    json_decref(c.blocks);
    inv_dealloc(c.ctx, c.reference);
    inv_arena_fini(&c.arena);
    return s;
}
