/* SPDX-License-Identifier: Apache-2.0
 * Plans: Feed nodes, what is alive while one node runs, what a step takes. */
#include "core/program/program.h"

#include "core/program/cost.h"

static void touch(const inv_graph *g, inv_id v, uint8_t bit, uint8_t *state)
{
    if (v != INV_NONE && inv_val(g, v)->role == INV_ROLE_NODE && inv_val(g, v)->mem != INV_MEM_HOST)
        state[inv_val(g, v)->buffer] |= bit;
}

/* Buffers that begin by then and are read then or later. */
inv_status inv_plan_alive(const inv_plan *p, size_t at, inv_arena *a, inv_ids *out)
{
    const inv_graph *g = p->g;
    enum { BEGUN = 1, NEEDED = 2 };
    uint8_t *state = INV_ARENA_NEW(a, uint8_t, g->value.n + 1);
    if (!state) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout && i <= at; k++) {
            const bool kept = n->out[k] != INV_NONE && inv_val(g, n->out[k])->keep;
            touch(g, n->out[k], kept || i == at ? BEGUN | NEEDED : BEGUN, state);
        }
        for (uint32_t k = 0; k < n->nin && i >= at; k++) touch(g, n->in[k], NEEDED, state);
    }
    for (inv_id v = 0; v < g->value.n; v++)
        if (state[v] == (BEGUN | NEEDED) && !inv_vec_push(a, out, v)) return INV_E_NOMEM;
    return INV_OK;
}

size_t inv_live_total(const inv_live *l)
{
    size_t sum = l->workspace;
    for (int c = 0; c < INV_MEM_HOST; c++) sum += l->bytes[c];
    return sum;
}

inv_id inv_bind_feed(inv_graph *g, inv_plan *plan, inv_id v, bool is_target)
{
    inv_value *val = inv_val(g, v);
    inv_attr attr[] = {inv_attr_of_int("slot", (int64_t)plan->feed.n),
                       inv_attr_of_ints("shape", (size_t)val->shape.rank, val->shape.dim),
                       inv_attr_of_int("dtype", val->dtype)};
    inv_feed_slot slot = {val->name, v, is_target, INV_NONE};
    val->role = INV_ROLE_NODE;
    inv_id n = inv_graph_node(g, "ai.invonnx.ir", "Feed", val->name, 0, NULL, 1, &v, 3, attr);
    if (n == INV_NONE || !inv_vec_push(&g->arena, &plan->feed, slot) || !inv_vec_push(&g->arena, &g->order, n))
        return INV_NONE;
    inv_val(g, v)->mem = INV_MEM_DATA;
    return n;
}

inv_storage *inv_program_param(const inv_program *p, const char *name)
{
    for (size_t i = 0; i < p->storage.n; i++)
        if (p->storage.at[i].kind == INV_STORAGE_PARAM && !strcmp(p->storage.at[i].name, name))
            return &p->storage.at[i];
    return NULL;
}

size_t inv_plan_feed_at(const inv_plan *plan, size_t slot)
{
    size_t at = 0;
    for (size_t i = 0; i < slot; i++) at += inv_round64(inv_value_nbytes(inv_val(plan->base, plan->feed.at[i].value)));
    return at;
}

inv_status inv_plan_predict(inv_plan *plan, const inv_cost_table *t)
{
    plan->seconds = NULL;
    plan->store_seconds = 0;
    if (!t) return INV_OK;
    inv_graph *g = plan->g;
    plan->seconds = INV_ARENA_NEW(&g->arena, double, g->order.n + 1);
    if (!plan->seconds) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) plan->seconds[i] = inv_node_seconds(t, g, inv_nod(g, g->order.at[i]));
    /* A plain step's nodes would be joined as the plan's are. So it is not predicted by its own, which are not: how
     * many times as much the plan costs was found where neither were. */
    plan->store_seconds = inv_plan_cost(plan) / (1 + plan->overhead);
    return INV_OK;
}

double inv_plan_cost(const inv_plan *plan)
{
    double sum = 0;
    if (!plan->seconds) return 1 + plan->overhead;
    for (size_t i = 0; i < plan->g->order.n; i++) sum += plan->seconds[i];
    return sum;
}

double inv_program_goal(const inv_program *p)
{
    const double cost = inv_plan_cost(&p->plan[INV_PLAN_MAIN]), nbytes = (double)inv_program_bytes(p);
    if (p->options.budget) return cost;
    return p->options.memory == INV_MEMORY_INVERT ? nbytes : nbytes * cost;
}

inv_status inv_program_reject(inv_program *p, const char *name, bool derived)
{
    const inv_checkpoint c = {inv_arena_strdup(&p->arena, name), derived};
    return c.name && inv_vec_push(&p->arena, &p->checkpoint, c) ? INV_OK : INV_E_NOMEM;
}
