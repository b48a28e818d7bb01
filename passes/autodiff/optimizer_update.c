/* SPDX-License-Identifier: Apache-2.0
 * The commit part: optimizer and running statistics. It runs only when every guard has passed.
 * With early updates (g->early) every update is told how many entries of the loss and of the gradients up to its own
 * are not finite, and does nothing if any is: a step that goes wrong can no longer be refused as a whole.
 * requires: plan->grad.  gives: commit nodes, plan->state. */
#include <stdlib.h>
#include <string.h>

#include "passes/autodiff/autodiff.h"

size_t inv_optimizer_states(const inv_session_options *o)
{
    switch (o->optimizer) {
    case INV_OPT_NONE:
    case INV_OPT_SGD: return 0;
    case INV_OPT_MOMENTUM: return 1;
    case INV_OPT_ADAM:
    case INV_OPT_ADAMW: return 2;
    }
    return 0;
}

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

/* `bad`: a count; INV_NONE: the whole commit part waits for it. */
static inv_status update_one(inv_graph *g, const inv_session_options *o, inv_id w, inv_id grad, inv_id bad)
{
    inv_id in[5] = {w, grad, bad, INV_NONE, INV_NONE};
    const uint32_t more = bad != INV_NONE;
    inv_attr decay = inv_attr_of_float("weight_decay", o->weight_decay);
    switch (o->optimizer) {
    case INV_OPT_SGD: (void)inv_emit(g, "SgdUpdate", 0, 2 + more, in, INV_ATTRS(decay)); break;
    case INV_OPT_MOMENTUM:
        INV_TRY(optimizer_state(g, w, "velocity", 0, &in[2]));
        in[3] = bad;
        (void)inv_emit(g, "MomentumUpdate", 0, 3 + more, in,
                       INV_ATTRS(inv_attr_of_float("momentum", o->momentum), decay));
        break;
    case INV_OPT_ADAM:
    case INV_OPT_ADAMW:
        INV_TRY(optimizer_state(g, w, "moment1", 0, &in[2]));
        INV_TRY(optimizer_state(g, w, "moment2", 1, &in[3]));
        in[4] = bad;
        (void)inv_emit(g, "AdamUpdate", 0, 4 + more, in,
                       INV_ATTRS(inv_attr_of_float("beta1", o->beta1), inv_attr_of_float("beta2", o->beta2),
                                 inv_attr_of_float("epsilon", o->epsilon), decay,
                                 inv_attr_of_int("decoupled", o->optimizer == INV_OPT_ADAMW)));
        break;
    case INV_OPT_NONE: break;
    }
    return g->failed;
}

static bool is_read_later(const inv_graph *g, inv_id v, size_t norder)
{
    bool any = false;
    for (size_t i = 0; i < norder && !any; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) any = any || n->in[k] == v;
    }
    return any;
}

/* The node that updates a statistic: another one, where the model itself computes with what this one gives. */
static inv_node *committing(inv_graph *g, inv_node *n, size_t norder)
{
    if (!is_read_later(g, n->out[0], norder)) return n;
    const inv_node of = *n;
    const inv_id again = inv_emit1(g, of.op->name, of.nin, of.in, of.nattr, of.attr);
    return again == INV_NONE ? NULL : inv_nod(g, inv_val(g, again)->def);
}

/* Statistics that several nodes update are updated one after the other. */
static inv_status running_statistics(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    size_t norder = g->order.n;
    for (size_t i = 0; i < norder; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        if (!(n->op->flags & INV_OP_UPDATE)) continue;
        inv_value *out = inv_val(g, n->out[0]);
        out->keep = false;
        for (size_t k = 0; k < g->outputs.n && !rq->optimize; k++) out->keep |= g->outputs.at[k] == n->out[0];
        if (rq->purpose != INV_FOR_TRAIN || inv_val(g, n->in[0])->role != INV_ROLE_PARAM) continue; /* just a result */
        if (!(n = committing(g, n, norder))) return g->failed;
        n->phase = INV_COMMIT;
        inv_val(g, n->out[0])->mem = INV_MEM_PARAM;
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

typedef struct arrival {
    size_t at; /* position of the node that completes it */
    inv_id param, grad;
} arrival;

static int by_arrival(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->param < y->param ? -1 : x->param > y->param;
}

/* Updates in the order in which their gradients are complete, with the count up to there. order.c moves them. */
static inv_status update_early(inv_graph *g, const inv_request *rq, inv_plan *plan, inv_arena *scratch)
{
    const size_t n = plan->grad.n;
    size_t *at = INV_ARENA_NEW(scratch, size_t, g->value.n + 1);
    arrival *list = INV_ARENA_NEW(scratch, arrival, n + 1);
    if (!at || !list) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *node = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < node->nout; k++)
            if (node->out[k] != INV_NONE) at[node->out[k]] = i;
    }
    for (size_t i = 0; i < n; i++) {
        const inv_id grad = plan->grad.at[i].value;
        list[i] = (arrival){at[grad], inv_graph_find(g, plan->grad.at[i].name), grad};
    }
    qsort(list, n, sizeof *list, by_arrival);
    inv_id bad = inv_emit1(g, "CountNonFinite", INV_IN(plan->loss), INV_NOATTR);
    for (size_t i = 0; i < n && !g->failed; i++) {
        const inv_id count = inv_emit1(g, "CountNonFinite", INV_IN(list[i].grad), INV_NOATTR);
        bad = inv_emit1(g, "Add", INV_IN(bad, count), INV_NOATTR);
        if (!g->failed) INV_TRY(update_one(g, rq->options, list[i].param, list[i].grad, bad));
    }
    if (g->failed) return g->failed;
    plan->finite = bad;
    inv_val(g, bad)->keep = true;
    inv_val(g, bad)->mem = INV_MEM_GUARD;
    return INV_OK;
}

inv_status inv_pass_update(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    if (!g->early) INV_TRY(count_nonfinite(g, plan));
    g->phase = INV_COMMIT;
    INV_TRY(running_statistics(g, rq, plan));
    if (!rq->optimize) return INV_OK;
    if (g->early) {
        inv_arena scratch;
        inv__arena_init(&scratch, g->ctx);
        inv_status s = update_early(g, rq, plan, &scratch);
        inv__arena_fini(&scratch);
        return s;
    }
    for (size_t i = 0; i < plan->grad.n; i++) {
        inv_id w = inv_graph_find(g, plan->grad.at[i].name);
        INV_TRY(update_one(g, rq->options, w, plan->grad.at[i].value, INV_NONE));
    }
    return g->failed;
}
