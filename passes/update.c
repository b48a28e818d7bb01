/* SPDX-License-Identifier: Apache-2.0
 * The commit part: optimizer and running statistics. It runs only when every guard has passed.
 * requires: plan->grad.  gives: commit nodes, plan->state. */
#include <string.h>

#include "passes/pass.h"

static inv_status optimizer_state(inv_graph *g, inv_id param, const char *what, uint32_t which, inv_id *out)
{
    inv_value p = *inv_val(g, param);
    const char *name = inv__arena_printf(&g->arena, "%s/%s", p.name, what);
    if (!name) return INV_E_NOMEM;
    if (inv_graph_find(g, name) != INV_NONE) name = inv_graph_fresh(g, name);
    *out = name ? inv_graph_value(g, name, INV_ROLE_OPTIM, p.dtype, &p.shape) : INV_NONE;
    if (*out == INV_NONE) return INV_E_NOMEM;
    inv_value *v = inv_val(g, *out);
    v->mem = INV_MEM_OPTIM;
    v->init = p.init;
    v->data.nbytes = which; /* first or second state: no data to hold here */
    return INV_OK;
}

static inv_status update_one(inv_graph *g, const inv_session_options *o, inv_id w, inv_id grad)
{
    inv_id in[4] = {w, grad, INV_NONE, INV_NONE};
    inv_attr decay = inv_attr_of_float("weight_decay", o->weight_decay);
    switch (o->optimizer) {
    case INV_OPT_SGD: (void)inv_emit(g, "SgdUpdate", 0, 2, in, INV_ATTRS(decay)); break;
    case INV_OPT_MOMENTUM:
        INV_TRY(optimizer_state(g, w, "velocity", 0, &in[2]));
        (void)inv_emit(g, "MomentumUpdate", 0, 3, in, INV_ATTRS(inv_attr_of_float("momentum", o->momentum), decay));
        break;
    case INV_OPT_ADAM:
    case INV_OPT_ADAMW:
        INV_TRY(optimizer_state(g, w, "moment1", 0, &in[2]));
        INV_TRY(optimizer_state(g, w, "moment2", 1, &in[3]));
        (void)inv_emit(g, "AdamUpdate", 0, 4, in,
                       INV_ATTRS(inv_attr_of_float("beta1", o->beta1), inv_attr_of_float("beta2", o->beta2),
                                 inv_attr_of_float("epsilon", o->epsilon), decay,
                                 inv_attr_of_int("decoupled", o->optimizer == INV_OPT_ADAMW)));
        break;
    case INV_OPT_NONE: break;
    }
    return g->failed;
}

/* Statistics that several nodes update are updated one after the other. */
static inv_status running_statistics(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    size_t norder = g->order.n;
    for (size_t i = 0; i < norder; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        if (strcmp(n->op->name, "RunningMix") != 0) continue;
        inv_value *out = inv_val(g, n->out[0]);
        out->keep = false;
        for (size_t k = 0; k < g->outputs.n && !rq->optimize; k++) out->keep |= g->outputs.at[k] == n->out[0];
        if (rq->purpose != INV_FOR_TRAIN || inv_val(g, n->in[0])->role != INV_ROLE_PARAM) continue; /* just a result */
        n->phase = INV_COMMIT;
        out->mem = INV_MEM_PARAM;
        const char *name = inv_val(g, n->in[0])->name;
        size_t k = 0;
        while (k < plan->state.n && strcmp(plan->state.at[k].name, name) != 0) k++;
        if (k < plan->state.n) {
            n->in[0] = plan->state.at[k].value;
            plan->state.at[k].value = n->out[0];
            continue;
        }
        inv_result_slot slot = {name, n->out[0]};
        if (!inv_vec_push(&g->arena, &plan->state, slot)) return INV_E_NOMEM;
    }
    for (size_t k = 0; k < plan->state.n; k++) {
        inv_id param = inv_graph_find(g, plan->state.at[k].name);
        if (rq->optimize) (void)inv_emit(g, "Assign", 0, INV_IN(param, plan->state.at[k].value), INV_NOATTR);
        else inv_val(g, plan->state.at[k].value)->keep = true;
    }
    return g->failed;
}

/* Weights are not updated from gradients that are not finite: they are counted before the commit part. */
static inv_status count_nonfinite(inv_graph *g, inv_plan *plan)
{
    inv_ids in = {0};
    for (size_t i = 0; i < plan->grad.n; i++)
        if (!inv_vec_push(&g->arena, &in, plan->grad.at[i].value)) return INV_E_NOMEM;
    if (in.n == 0) return INV_OK;
    g->phase = INV_BACKWARD;
    plan->finite = inv_emit1(g, "CountNonFinite", (uint32_t)in.n, in.at, INV_NOATTR);
    if (plan->finite == INV_NONE) return g->failed;
    inv_val(g, plan->finite)->keep = true;
    inv_val(g, plan->finite)->mem = INV_MEM_GUARD;
    return INV_OK;
}

inv_status inv_pass_update(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    INV_TRY(count_nonfinite(g, plan));
    g->phase = INV_COMMIT;
    INV_TRY(running_statistics(g, rq, plan));
    if (!rq->optimize) return INV_OK;
    for (size_t i = 0; i < plan->grad.n; i++) {
        inv_id w = inv_graph_find(g, plan->grad.at[i].name);
        INV_TRY(update_one(g, rq->options, w, plan->grad.at[i].value));
    }
    return g->failed;
}
