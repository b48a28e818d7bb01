/* SPDX-License-Identifier: Apache-2.0
 * The log-determinant of a flow in its own direction, by what the rules say of its operators. The inverse direction
 * with its log-determinant (reverse_model.c, logdet.c) is made of the model's own values and of what is solved from its
 * outputs; forward has all of these under the same names, so the nodes that only the log-determinant takes are put
 * behind the model's:
 *
 *     inverse  z -> [solved] -> x, log |dx/dz|         of  s = Exp(h), W, ...
 *     here     x -> [model]  -> z, - log |dx/dz|       of the same s, W, ... */
#include <string.h>

#include "passes/export/export.h"
#include "passes/export/outline.h"
#include "passes/export/reverse_model.h"

typedef struct volumes {
    inv_context *ctx;
    const inv_graph *source;
    const inv_session_options *o;
    inv_arena a;
    inv_ids z, other; /* outputs of `source`: to start from; float ones besides */
    inv_rewriting *r;
    inv_graph *g;     /* what comes out */
    const char *name; /* of the log-determinant of the inverse */
} volumes;

/* --- which outputs --- */

static bool is_wide(const inv_value *v) { return v->shape.rank < 0 || v->shape.rank > 1; }

static bool is_loss_output(const inv_session_options *o, const char *name)
{
    bool named = false;
    for (size_t i = 0; i < o->nloss_outputs; i++) named = named || strcmp(o->loss_outputs[i], name) == 0;
    return named;
}

/* Those that the loss names, else all of floating point, of which numbers per sample come after the others. */
static inv_status find_flow_outputs(volumes *x)
{
    const inv_graph *g = x->source;
    size_t wide = 0;
    for (size_t i = 0; i < g->outputs.n; i++) {
        const inv_value *v = inv_val(g, g->outputs.at[i]);
        wide += is_wide(v) && (inv_dtype_is_float(v->dtype) || v->dtype == INV_DT_NONE);
    }
    for (size_t i = 0; i < g->outputs.n; i++) {
        const inv_value *v = inv_val(g, g->outputs.at[i]);
        bool taken = inv_dtype_is_float(v->dtype) || v->dtype == INV_DT_NONE;
        if (x->o->nloss_outputs) taken = is_loss_output(x->o, v->name);
        else taken = taken && (!wide || is_wide(v)) && !(x->o->logdet && strcmp(x->o->logdet, v->name) == 0);
        if (taken && !inv_vec_push(&x->a, &x->z, g->outputs.at[i])) return INV_E_NOMEM;
    }
    INV_CHECK(x->z.n, x->ctx, INV_E_ARG, "the model has no floating-point output for a likelihood");
    return INV_OK;
}

/* --- the inverse direction --- */

static inv_status reverse_with(volumes *x, const inv_graph *g, const char *const *given, size_t ngiven)
{
    const inv_session_options shapes = {.size = sizeof shapes,
                                        .inputs = x->o->inputs,
                                        .ninputs = x->o->ninputs,
                                        .constant_inputs = x->o->constant_inputs,
                                        .nconstant_inputs = x->o->nconstant_inputs};
    const inv_reverse_options ro = {.size = sizeof ro, .given = given, .ngiven = ngiven, .with_logdet = x->name};
    return inv_reverse_model(x->ctx, g, &shapes, &ro, true, &x->r);
}

/* Of several inputs all are derived, or else one, and the others are its conditions. */
static inv_status reverse_any(volumes *x, const inv_graph *g)
{
    const char **given = INV_ARENA_NEW(&x->a, const char *, g->inputs.n + 1);
    if (!given) return INV_E_NOMEM;
    inv_status s = reverse_with(x, g, NULL, 0);
    if (s == INV_OK || s == INV_E_NOMEM || g->inputs.n < 2) return s;
    const char *why = inv_arena_strdup(&x->a, inv_context_message(x->ctx));
    for (size_t i = 0; i < g->inputs.n; i++) {
        size_t n = 0;
        for (size_t k = 0; k < g->inputs.n; k++)
            if (k != i) given[n++] = inv_val(g, g->inputs.at[k])->name;
        const inv_status one = reverse_with(x, g, given, n);
        if (one == INV_OK || one == INV_E_NOMEM) return one;
    }
    return why ? inv_fail(x->ctx, s, "%s", why) : INV_E_NOMEM;
}

/* From the outputs of the loss alone: what else leaves the model is not what is likely or not. */
static inv_status reverse_flow(volumes *x)
{
    inv_graph *g;
    INV_TRY(inv_graph_copy(x->source, &g));
    for (size_t i = 0; i < g->outputs.n; i++) inv_val(g, g->outputs.at[i])->is_output = false;
    g->outputs.n = 0;
    bool ok = true;
    for (size_t i = 0; i < x->z.n && ok; i++) {
        ok = inv_vec_push(&g->arena, &g->outputs, x->z.at[i]);
        inv_val(g, x->z.at[i])->is_output = true;
    }
    const inv_status s = ok ? reverse_any(x, g) : INV_E_NOMEM;
    inv_graph_destroy(g);
    INV_TRY(s);
    bool trains = x->o->train_bn;
    for (size_t i = 0; i < x->r->nnotes; i++) trains = trains || strncmp(x->r->notes[i], "batch norm", 10) == 0;
    INV_CHECK(!trains || x->o->purpose == INV_FOR_EVAL, x->ctx, INV_E_NOT_INVERTIBLE,
              "in training, batch normalization uses the batch's own mean and variance, but the rules describe the "
              "running ones");
    return INV_OK;
}

/* The loss is of what the inverse starts from, no more and no less. */
static inv_status settle_outputs(volumes *x)
{
    const inv_graph *h = x->r->reversed;
    size_t n = 0;
    for (size_t i = 0; i < x->z.n; i++) {
        const char *name = inv_val(x->source, x->z.at[i])->name;
        bool used = false;
        for (size_t k = 0; k < h->inputs.n; k++) used = used || strcmp(inv_val(h, h->inputs.at[k])->name, name) == 0;
        INV_CHECK(used || !x->o->nloss_outputs, x->ctx, INV_E_NOT_INVERTIBLE,
                  "output '%s' is determined by the others, so it has no likelihood of its own", name);
        if (used) x->z.at[n++] = x->z.at[i];
    }
    x->z.n = n;
    return INV_OK;
}

/* --- the model with it --- */

static inv_status keep_flow_outputs(volumes *x)
{
    inv_graph *g = x->g;
    g->outputs.n = 0;
    for (size_t i = 0; i < x->source->outputs.n; i++) {
        const inv_id v = inv_graph_find(g, inv_val(x->source, x->source->outputs.at[i])->name);
        if (v == INV_NONE) continue;
        inv_val(g, v)->is_output = true;
        if (!inv_vec_push(&g->arena, &g->outputs, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Whether forward has a value of that name. */
static bool is_value_there(const inv_graph *g, const char *name)
{
    const inv_id v = inv_graph_find(g, name);
    if (v == INV_NONE) return false;
    const inv_value *val = inv_val(g, v);
    return val->def != INV_NONE || val->role != INV_ROLE_NODE;
}

static inv_status add_derived_node(volumes *x, const inv_node *n)
{
    const inv_graph *h = x->r->reversed;
    inv_graph *g = x->g;
    inv_id *in = INV_ARENA_NEW(&x->a, inv_id, n->nin + 1), *out = INV_ARENA_NEW(&x->a, inv_id, n->nout + 1);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nin; k++)
        in[k] = n->in[k] == INV_NONE ? INV_NONE : inv_reverse_value(g, inv_val(h, n->in[k])->name);
    for (uint32_t k = 0; k < n->nout; k++)
        out[k] = n->out[k] == INV_NONE ? INV_NONE : inv_reverse_value(g, inv_val(h, n->out[k])->name);
    const inv_id id = inv_graph_node(g, n->domain, n->op_type, NULL, n->nin, in, n->nout, out, n->nattr, n->attr);
    if (id == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
    inv_nod(g, id)->source = INV_NONE;
    if (!inv_reverse_own_tensors(g, inv_nod(g, id))) return INV_E_NOMEM;
    return inv_vec_push(&g->arena, &g->order, id) ? INV_OK : INV_E_NOMEM;
}

/* What the log-determinant is made of and forward does not have. */
static inv_status add_nodes(volumes *x)
{
    const inv_graph *h = x->r->reversed;
    bool *wanted = INV_ARENA_NEW(&x->a, bool, h->value.n + 1), *taken = INV_ARENA_NEW(&x->a, bool, h->node.n + 1);
    if (!wanted || !taken) return INV_E_NOMEM;
    wanted[inv_graph_find(h, x->name)] = true;
    for (size_t i = h->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(h, h->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && wanted[n->out[k]] && !is_value_there(x->g, inv_val(h, n->out[k])->name))
                taken[h->order.at[i]] = true;
        for (uint32_t k = 0; k < n->nin && taken[h->order.at[i]]; k++)
            if (n->in[k] != INV_NONE) wanted[n->in[k]] = true;
    }
    for (size_t i = 0; i < h->order.n; i++)
        if (taken[h->order.at[i]]) INV_TRY(add_derived_node(x, inv_nod(h, h->order.at[i])));
    return INV_OK;
}

/* One more node, and what it gives as an output; NULL: no memory. */
static const char *put_output(inv_graph *g, const char *op, const char *one, const char *two, uint32_t nattr,
                              const inv_attr *attr, bool is_output)
{
    const char *name = inv_graph_fresh(g, "logdet");
    if (!one || !name) return NULL;
    const inv_id in[2] = {inv_graph_find(g, one), two ? inv_graph_find(g, two) : INV_NONE};
    const inv_id out = inv_graph_value(g, name, INV_ROLE_NODE, INV_DT_NONE, NULL);
    if (out == INV_NONE) return NULL;
    const inv_id id = inv_graph_node(g, "", op, NULL, two ? 2 : 1, in, 1, &out, nattr, attr);
    if (id == INV_NONE || !inv_vec_push(&g->arena, &g->order, id)) return NULL;
    inv_nod(g, id)->source = INV_NONE;
    inv_val(g, out)->is_output = is_output;
    if (is_output && !inv_vec_push(&g->arena, &g->outputs, out)) return NULL;
    return inv_val(g, out)->name;
}

/* {-1}, a shape. */
static const char *flat_shape(inv_graph *g)
{
    static const int64_t all = -1, one = 1;
    const inv_attr value = {
        .name = "value", .kind = INV_ATTR_TENSOR, .tensor = {INV_I64, inv_shape_of(1, &one), &all, sizeof all}};
    const char *name = inv_graph_fresh(g, "logdet");
    const inv_id out = name ? inv_graph_value(g, name, INV_ROLE_NODE, INV_DT_NONE, NULL) : INV_NONE;
    const inv_id id = out == INV_NONE ? INV_NONE : inv_graph_node(g, "", "Constant", NULL, 0, NULL, 1, &out, 1, &value);
    if (id == INV_NONE || !inv_vec_push(&g->arena, &g->order, id)) return NULL;
    inv_nod(g, id)->source = INV_NONE;
    return inv_val(g, out)->name;
}

/* The model's own beside it, [N] or one number for all, if it has one, and the sums over the batch that are to be
 * compared. */
static inv_status add_sums(volumes *x, inv_volumes *out)
{
    const inv_attr gone = inv_attr_of_int("keepdims", 0);
    inv_graph *g = x->g;
    out->sum = put_output(g, "ReduceSum", out->by_rules, NULL, 1, &gone, true);
    if (!x->o->logdet) return out->sum ? INV_OK : INV_E_NOMEM;
    INV_CHECK(is_value_there(g, x->o->logdet), x->ctx, INV_E_ARG, "no output is called '%s'", x->o->logdet);
    const char *shape = flat_shape(g);
    const char *own = inv_val(g, inv_graph_find(g, x->o->logdet))->name;
    out->own = shape ? put_output(g, "Reshape", own, shape, 0, NULL, true) : NULL;
    const char *off = out->own ? put_output(g, "Sub", out->by_rules, out->own, 0, NULL, false) : NULL;
    out->difference = put_output(g, "ReduceSum", off, NULL, 1, &gone, true);
    return out->own && out->sum && out->difference ? INV_OK : INV_E_NOMEM;
}

static inv_status name_outputs(const volumes *x, inv_volumes *out)
{
    const char **z = INV_ARENA_NEW(&x->g->arena, const char *, x->z.n + 1);
    if (!z) return INV_E_NOMEM;
    for (size_t i = 0; i < x->z.n; i++)
        z[i] = inv_val(x->g, inv_graph_find(x->g, inv_val(x->source, x->z.at[i])->name))->name;
    out->z = z;
    out->nz = x->z.n;
    const char **derived = INV_ARENA_NEW(&x->g->arena, const char *, x->r->nderived + 1);
    if (!derived) return INV_E_NOMEM;
    for (size_t i = 0; i < x->r->nderived; i++)
        if (!(derived[i] = inv_arena_strdup(&x->g->arena, x->r->derived[i]))) return INV_E_NOMEM;
    out->derived = derived;
    out->nderived = x->r->nderived;
    if (!x->r->stranger) return INV_OK;
    out->stranger = inv_arena_strdup(&x->g->arena, x->r->stranger);
    out->stranger_plugin = inv_arena_strdup(&x->g->arena, x->r->stranger_plugin);
    return out->stranger && out->stranger_plugin ? INV_OK : INV_E_NOMEM;
}

static inv_status make_volumes(volumes *x, bool compared, inv_volumes *out)
{
    x->name = "log_determinant_by_rules";
    while (inv_graph_find(x->source, x->name) != INV_NONE)
        if (!(x->name = inv_arena_printf(&x->a, "%s_", x->name))) return INV_E_NOMEM;
    INV_TRY(find_flow_outputs(x));
    INV_TRY(reverse_flow(x));
    INV_TRY(settle_outputs(x));
    x->g = x->r->flat; /* the file's nodes, under the names that the inverse has */
    x->r->flat = NULL;
    INV_TRY(keep_flow_outputs(x));
    INV_TRY(add_nodes(x));
    out->by_rules = put_output(x->g, "Neg", x->name, NULL, 0, NULL, true);
    if (!out->by_rules) return INV_E_NOMEM;
    INV_TRY(name_outputs(x, out));
    return compared ? add_sums(x, out) : INV_OK;
}

inv_status inv_volumes_by_rules(inv_context *ctx, const inv_graph *source, const inv_session_options *o, bool compared,
                                inv_volumes *out)
{
    volumes x = {.ctx = ctx, .source = source, .o = o};
    *out = (inv_volumes){0};
    inv_arena_init(&x.a, ctx);
    inv_status s = make_volumes(&x, compared, out);
    if (s == INV_OK && x.a.failed) s = INV_E_NOMEM;
    inv_rewriting_destroy(x.r);
    inv_arena_fini(&x.a);
    if (s == INV_OK) out->g = x.g;
    else inv_graph_destroy(x.g);
    return s;
}

inv_status inv_pass_likelihood(inv_program *p)
{
    inv_session_options *o = &p->options;
    inv_volumes v;
    if (o->loss != INV_LOSS_NLL || !o->logdet || strcmp(o->logdet, INV_LOGDET_RULES) != 0) return INV_OK;
    for (size_t i = 0; i < p->source->outputs.n; i++)
        if (strcmp(inv_val(p->source, p->source->outputs.at[i])->name, o->logdet) == 0) return INV_OK;
    const inv_status s = inv_volumes_by_rules(p->ctx, p->source, o, false, &v);
    if (s == INV_E_NOT_INVERTIBLE) {
        char *why = inv_arena_strdup(&p->arena, inv_context_message(p->ctx));
        return why ? inv_fail(p->ctx, s, "the rules give no log-determinant: %s", why) : INV_E_NOMEM;
    }
    INV_TRY(s);
    p->likelihood = v.g;
    p->volumes = v;
    p->source = v.g;
    o->logdet = v.by_rules;
    if (o->nloss_outputs) return INV_OK;
    o->loss_outputs = v.z;
    o->nloss_outputs = v.nz;
    return INV_OK;
}
