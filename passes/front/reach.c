/* SPDX-License-Identifier: Apache-2.0
 * Which of the model's outputs are computed. Files may have outputs and intermediate values that are sequences, maps,
 * optionals or strings, and classifiers end in operators for these; they are written back as they are, and only what is
 * computed has to do without them.
 *
 * requires  the imported graph, inlined and sorted, or canonical nodes; plan->output beside g->outputs
 * gives     without the outputs of such types (plan->left), without those that the loss is not of if operators or types
 *           on their way are missing, and without the nodes that only these needed
 * breaks    nothing */
#include <string.h>

#include "passes/front/front.h"

/* Values that are certain not to be computed. What bodies of control flow read is decided when they are unrolled. */
static bool *find_missing(const inv_graph *g, inv_arena *a)
{
    bool *missing = INV_ARENA_NEW(a, bool, g->value.n + 1);
    if (!missing) return NULL;
    for (size_t v = 0; v < g->value.n; v++)
        missing[v] = inv_val(g, (inv_id)v)->role != INV_ROLE_NODE && inv_value_carried(inv_val(g, (inv_id)v));
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool any = !n->op && !inv_is_control(n);
        for (uint32_t k = 0; k < inv_node_listed(n); k++) any = any || (n->in[k] != INV_NONE && missing[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) missing[n->out[k]] = any;
    }
    return missing;
}

static bool is_wanted_output(const inv_session_options *o, const char *name)
{
    bool found = o->logdet && strcmp(o->logdet, name) == 0;
    for (size_t i = 0; i < o->nloss_outputs && !found; i++) found = strcmp(o->loss_outputs[i], name) == 0;
    return found;
}

/* Whether the loss may be of it, as far as the file tells. */
static bool may_be_loss(const inv_session_options *o, const inv_value *v, const char *name)
{
    if (o->nloss_outputs) return is_wanted_output(o, name);
    return v->dtype == INV_DT_NONE || inv_dtype_is_float(v->dtype) || is_wanted_output(o, name);
}

static inv_status leave_out(inv_graph *g, const inv_request *rq, inv_plan *plan, const bool *missing)
{
    const inv_session_options *o = rq->options;
    size_t n = 0;
    for (size_t i = 0; i < g->outputs.n; i++) {
        inv_id v = g->outputs.at[i];
        inv_value *val = inv_val(g, v);
        const char *name = plan->output.at[i].name;
        bool carried = inv_value_carried(val);
        if (carried && o->loss != INV_LOSS_NONE && is_wanted_output(o, name))
            return inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE, "the loss is to be of output '%s', which is of type %s",
                            name, inv_value_type(val));
        if (carried || (missing[v] && o->loss != INV_LOSS_NONE && !may_be_loss(o, val, name))) {
            inv_left_slot slot = {name, carried ? inv_value_type(val) : NULL};
            val->is_output = false;
            if (!inv_vec_push(&g->arena, &plan->left, slot)) return INV_E_NOMEM;
            continue;
        }
        plan->output.at[n] = plan->output.at[i];
        g->outputs.at[n++] = v;
    }
    g->outputs.n = plan->output.n = n;
    return INV_OK;
}

inv_status inv_pass_reach(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    const bool *missing = find_missing(g, &scratch);
    inv_status s = missing ? leave_out(g, rq, plan, missing) : INV_E_NOMEM;
    inv_arena_fini(&scratch);
    return s == INV_OK ? inv_graph_prune(g) : s;
}

inv_status inv_reach_types(const inv_graph *g, const inv_ids *list)
{
    inv_str text;
    inv_str_init(&text, g->ctx);
    for (size_t i = 0; i < list->n; i++) {
        const inv_node *n = inv_nod(g, list->at[i]);
        for (uint32_t k = 0; k < inv_node_listed(n); k++) {
            const inv_value *v = n->in[k] == INV_NONE ? NULL : inv_val(g, n->in[k]);
            if (!v || v->role == INV_ROLE_NODE || !inv_value_carried(v)) continue;
            inv_str_add(&text, "; %s '%s' of type %s, read by node '%s' (%s)",
                        v->role == INV_ROLE_INPUT ? "input" : "initializer", v->name, inv_value_type(v),
                        inv_expand_label(g, n), n->op_type);
        }
    }
    inv_status s = text.failed ? INV_E_NOMEM : INV_OK;
    if (text.n) s = inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE, "types that cannot be computed with: %s", text.s + 2);
    inv_str_fini(&text);
    return s;
}

inv_status inv_reach_tensors(const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_value *v = n->in[k] == INV_NONE ? NULL : inv_val(g, n->in[k]);
            if (v && v->type)
                return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "it reads '%s', which is %s: no tensor", v->name,
                                     v->type);
        }
    }
    return INV_OK;
}
