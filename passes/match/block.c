/* SPDX-License-Identifier: Apache-2.0
 * Makes a named block of the nodes that a rule was matched with: which nodes belong to it, and which values cross its
 * boundary. A value enters if a node of the block reads it and none of them makes it; it leaves if one of them makes it
 * and another node, or the caller, reads it. The values that the rule is about come first on both lists, in the order
 * of the rule, so that a reader of the block finds x1, x2, y1 at fixed places.
 *
 * When all blocks are there, inv_block_finish drops those that are parts of longer ones, and multiplies how much the
 * inverses on the path from what leaves to what is freed magnify errors.
 * requires: a match of match.c; edges for the gains.  gives: inv_block. Time: nodes of the block times their operands,
 * once more for each layer of parameter expressions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/match/match.h"

/* Counts how often the pattern uses a name in each place. */
typedef struct role {
    uint32_t read;    /* input of an operator */
    uint32_t entered; /* entry of a region */
    uint32_t made;    /* output of an operator */
    uint32_t led_to;  /* exit of a region */
} role;

static role role_in_rule(const inv_rule *rule, const char *name)
{
    role r = {0};
    for (size_t i = 0; i < rule->match.n; i++) {
        const inv_stmt *s = rule->match.at[i].s;
        for (uint32_t k = 0; k < s->nin; k++)
            if (strcmp(s->in[k], name) == 0) *(inv_stmt_is_region(s) ? &r.entered : &r.read) += 1;
        for (uint32_t k = 0; k < s->nout; k++)
            if (strcmp(s->out[k], name) == 0) *(inv_stmt_is_region(s) ? &r.led_to : &r.made) += 1;
    }
    return r;
}

static inv_status add_value_once(inv_matcher *m, inv_ids *to, inv_id v)
{
    for (size_t i = 0; i < to->n; i++)
        if (to->at[i] == v) return INV_OK;
    return v == INV_NONE || inv_vec_push(&m->g->arena, to, v) ? INV_OK : INV_E_NOMEM;
}

static inv_status add_bound_values(inv_matcher *m, const inv_binding *b, const char *name, inv_ids *to)
{
    int at = inv_binding_find(b, name);
    for (uint32_t j = 0; at >= 0 && j < b->at[at].n; j++) INV_TRY(add_value_once(m, to, b->at[at].id[j]));
    return INV_OK;
}

/* Adds the values that the rule is about. To `in`: the freed one, then all that the pattern reads and does not make,
 * except parameters (add_node_ends adds those). To `out`: what its operators make and none of them reads, then what
 * only enters a region, as that passes through the block unchanged. */
static inv_status add_rule_ends(inv_matcher *m, const inv_rule *rule, const inv_binding *b, inv_ids *in, inv_ids *out)
{
    INV_TRY(add_bound_values(m, b, rule->def->frees ? rule->def->frees : "", in));
    for (size_t i = 0; i < rule->match.n; i++) {
        const inv_stmt *s = rule->match.at[i].s;
        for (uint32_t k = 0; k < s->nin; k++) {
            role r = role_in_rule(rule, s->in[k]);
            if (!inv_term_is(&rule->match.at[i].in[k], "param") && !r.made && !r.led_to)
                INV_TRY(add_bound_values(m, b, s->in[k], in));
        }
        for (uint32_t k = 0; k < s->nout; k++)
            if (!inv_stmt_is_region(s) && !role_in_rule(rule, s->out[k]).read)
                INV_TRY(add_bound_values(m, b, s->out[k], out));
    }
    for (size_t i = 0; i < rule->match.n; i++) {
        const inv_stmt *s = rule->match.at[i].s;
        if (!inv_stmt_is_region(s)) continue;
        role r = role_in_rule(rule, s->in[0]);
        if (!r.read && !r.made && !r.led_to) INV_TRY(add_bound_values(m, b, s->in[0], out));
    }
    return INV_OK;
}

/* Nodes of the block are marked in m->in_region, as a region's are while it is searched for. */
static bool in_block(const inv_matcher *m, inv_id node) { return m->in_region[node] == m->region_stamp; }

static bool leaves_block(const inv_matcher *m, inv_id v)
{
    bool out = inv_val(m->g, v)->is_output;
    for (uint32_t u = m->uses.start[v]; u < m->uses.start[v + 1] && !out; u++) out = !in_block(m, m->uses.node[u]);
    return out;
}

static inv_status add_block_node(inv_matcher *m, inv_ids *nodes, inv_id node)
{
    if (in_block(m, node)) return INV_OK;
    m->in_region[node] = m->region_stamp;
    return inv_vec_push(&m->g->arena, nodes, node) ? INV_OK : INV_E_NOMEM;
}

/* An expression of parameters that only the block reads belongs to it, and the block then reads the parameter. This is
 * repeated until nothing joins, as the later one of two readers of a node may have joined first. */
static inv_status add_parameter_expressions(inv_matcher *m, inv_ids *nodes)
{
    for (size_t before = 0; before != nodes->n;) {
        before = nodes->n;
        for (size_t i = 0; i < nodes->n; i++) {
            const inv_node *n = inv_nod(m->g, nodes->at[i]);
            for (uint32_t k = 0; k < n->nin; k++) {
                inv_id v = n->in[k], d = v == INV_NONE ? INV_NONE : inv_val(m->g, v)->def;
                if (d == INV_NONE || m->active[v] || in_block(m, d)) continue;
                const inv_node *from = inv_nod(m->g, d);
                bool kept = false;
                for (uint32_t o = 0; o < from->nout; o++)
                    kept = kept || (from->out[o] != INV_NONE && leaves_block(m, from->out[o]));
                if (!kept) INV_TRY(add_block_node(m, nodes, d));
            }
        }
    }
    return INV_OK;
}

/* Adds the other values that enter and leave: first those that depend on the model's inputs, then parameters. Constants
 * do not count, as nobody could pass another one. */
static inv_status add_node_ends(inv_matcher *m, const inv_ids *nodes, inv_ids *in, inv_ids *out)
{
    for (int parameters = 0; parameters < 2; parameters++)
        for (size_t i = 0; i < nodes->n; i++) {
            const inv_node *n = inv_nod(m->g, nodes->at[i]);
            for (uint32_t k = 0; k < n->nin; k++) {
                inv_id v = n->in[k];
                if (v == INV_NONE || m->active[v] == (parameters == 1)) continue;
                const inv_value *val = inv_val(m->g, v);
                bool made = val->def != INV_NONE && in_block(m, val->def);
                if (val->role != INV_ROLE_CONST && !made) INV_TRY(add_value_once(m, in, v));
            }
        }
    for (size_t i = 0; i < nodes->n; i++) {
        const inv_node *n = inv_nod(m->g, nodes->at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && leaves_block(m, n->out[k])) INV_TRY(add_value_once(m, out, n->out[k]));
    }
    return INV_OK;
}

inv_status inv_block_make(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_id *pattern,
                          uint32_t npattern, const inv_id *region, uint32_t nregion, inv_block *out)
{
    inv_ids nodes = {0}, in = {0}, outs = {0};
    m->region_stamp++;
    for (uint32_t i = 0; i < npattern; i++) INV_TRY(add_block_node(m, &nodes, pattern[i]));
    for (uint32_t i = 0; i < nregion; i++) INV_TRY(add_block_node(m, &nodes, region[i]));
    INV_TRY(add_parameter_expressions(m, &nodes));
    INV_TRY(add_rule_ends(m, rule, b, &in, &outs));
    uint32_t nrule_in = (uint32_t)in.n, nrule_out = (uint32_t)outs.n;
    INV_TRY(add_node_ends(m, &nodes, &in, &outs));
    inv_id root = pattern[npattern - 1];
    *out = (inv_block){rule->def,
                       rule->def->kind ? rule->def->kind : rule->def->name,
                       root,
                       m->pos[root],
                       nodes.at,
                       (uint32_t)nodes.n,
                       npattern,
                       in.at,
                       outs.at,
                       (uint32_t)in.n,
                       (uint32_t)outs.n,
                       nrule_in,
                       nrule_out,
                       (double)NAN,
                       (double)NAN};
    return INV_OK;
}

/* --- gains --- */

/* The gain is that of the rule's own solve text. A rule without one leaves solving to the inverses of its operators:
 * then the best of these are followed from the freed value on, until a value that leaves, and their gains multiplied.
 * `head`, `next`: the edges by what they free, counted from 1. */
static void find_block_gain(inv_matcher *m, inv_block *b, const uint32_t *head, const uint32_t *next)
{
    const inv_edge *edge = m->out->edge.at;
    inv_id v = b->nin ? b->in[0] : INV_NONE;
    double gain = 1, bound = 1;
    uint32_t step = 0;
    for (uint32_t i = v == INV_NONE ? 0 : head[v]; i; i = next[i]) {
        if (!inv_edge_of_block(&edge[i - 1], b)) continue;
        b->gain = edge[i - 1].gain;
        b->bound = edge[i - 1].bound;
        return;
    }
    for (; v != INV_NONE && step <= b->npattern && !inv_ids_have(b->out, b->nout, v); step++) {
        const inv_edge *best = NULL;
        for (uint32_t i = head[v]; i; i = next[i])
            if (inv_ids_have(b->node, b->npattern, edge[i - 1].forward) && (!best || edge[i - 1].gain < best->gain))
                best = &edge[i - 1];
        v = best ? inv_nod(m->g, best->forward)->out[0] : INV_NONE;
        gain *= best ? best->gain : 1;
        bound *= best ? best->bound : 1;
    }
    if (v == INV_NONE || step == 0) return;
    b->gain = gain;
    b->bound = bound;
}

static inv_status find_gains(inv_matcher *m)
{
    const size_t n = m->out->edge.n;
    uint32_t *head = INV_ARENA_NEW(&m->scratch, uint32_t, m->nvalue + 1),
             *next = INV_ARENA_NEW(&m->scratch, uint32_t, n + 1);
    if (!head || !next) return INV_E_NOMEM;
    for (uint32_t e = 0; e < n; e++) {
        inv_id frees = m->out->edge.at[e].frees;
        next[e + 1] = head[frees];
        head[frees] = e + 1;
    }
    for (size_t i = 0; i < m->out->block.n; i++) find_block_gain(m, &m->out->block.at[i], head, next);
    return INV_OK;
}

/* --- names --- */

/* Says in the kind of a batch norm or 1x1 convolution that it is in the region of a coupling. By itself it is a step of
 * reversible networks, but in a region it needs no inverse. */
static inv_status name_region_steps(inv_matcher *m, const bool *of_region)
{
    inv_graph *g = m->g;
    for (size_t i = 0; i < m->out->block.n; i++) {
        inv_block *b = &m->out->block.at[i];
        bool step = strncmp(b->kind, "batchnorm", 9) == 0 || strcmp(b->kind, "invertible_conv1x1") == 0;
        if (!step || !of_region[b->root]) continue;
        b->kind = inv_arena_printf(&g->arena, "%s_in_residual_branch", b->kind);
        if (!b->kind) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Drops blocks of one node that are part of a longer pattern. Those whose rule has no solve text are kept. */
static void drop_parts(inv_matcher *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->out->block.n; i++) {
        const inv_block *b = &m->out->block.at[i];
        if (b->npattern > 1 || b->rule->solve == NULL || !m->paired[b->root]) m->out->block.at[n++] = *b;
    }
    m->out->block.n = n;
}

/* Drops refusals of candidates inside of a block's region whose operands come from one value, such as gates x * s(x).
 * A region needs no inverse, so nothing is missing there. */
static inv_status drop_gates(inv_matcher *m, const bool *of_region)
{
    inv_graph *g = m->g;
    size_t n = 0;
    for (size_t i = 0; i < m->out->refusal.n; i++) {
        const inv_refusal r = m->out->refusal.at[i];
        if (!r.one_source || !of_region[r.node]) m->out->refusal.at[n++] = r;
        else if (!inv_vec_push(&g->arena, &m->out->overruled, r)) return INV_E_NOMEM;
    }
    m->out->refusal.n = n;
    return INV_OK;
}

static int by_block_position(const void *a, const void *b)
{
    const inv_block *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->nnode != y->nnode ? (x->nnode > y->nnode ? -1 : 1) : strcmp(x->rule->name, y->rule->name);
}

inv_status inv_block_finish(inv_matcher *m)
{
    bool *of_region = INV_ARENA_NEW(&m->scratch, bool, m->g->node.n + 1);
    if (!of_region) return INV_E_NOMEM;
    for (size_t i = 0; i < m->out->block.n; i++) {
        const inv_block *b = &m->out->block.at[i];
        for (uint32_t k = b->npattern; k < b->nnode; k++) of_region[b->node[k]] = true;
    }
    INV_TRY(drop_gates(m, of_region));
    INV_TRY(name_region_steps(m, of_region));
    drop_parts(m);
    INV_TRY(find_gains(m));
    if (m->out->block.n) qsort(m->out->block.at, m->out->block.n, sizeof *m->out->block.at, by_block_position);
    return INV_OK;
}
