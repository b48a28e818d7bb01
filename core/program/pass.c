/* SPDX-License-Identifier: Apache-2.0
 * A graph after a pass as text: the text form, and behind it, in comments, what was matched. */
#include "core/program/pass.h"

#include "core/graph/node.h"
#include "core/graph/text.h"

/* Words of a message, which may quote names with line ends in them, on one line. */
static void print_words(inv_str *b, const char *s)
{
    for (; s && *s; s++) inv_str_add(b, "%c", (unsigned char)*s < 0x20 ? ' ' : *s);
}

static void print_names(inv_str *b, const inv_graph *g, const inv_id *v, uint32_t n)
{
    const char *between = " ";
    for (uint32_t i = 0; i < n; i++) {
        if (v[i] == INV_NONE) continue;
        inv_str_add(b, "%s", between);
        inv_print_name(b, inv_val(g, v[i])->name);
        between = ", ";
    }
}

static void print_edge(inv_str *b, const inv_graph *g, const inv_edge *e)
{
    inv_str_add(b, "# edge: ");
    inv_print_name(b, inv_val(g, e->frees)->name);
    inv_str_add(b, " by %s, errors grow by %.3g, at most %.3g\n", e->rule->name, e->gain, e->bound);
    for (uint32_t i = 0; i < e->nnode; i++) {
        inv_str_add(b, "#");
        inv_print_node(b, g, inv_nod(g, e->node[i]));
    }
}

static void print_matches(inv_str *b, const inv_graph *g, const inv_matches *m)
{
    for (size_t i = 0; i < m->block.n; i++) {
        const inv_block *k = &m->block.at[i];
        inv_str_add(b, "# block: %s, from", k->kind);
        print_names(b, g, k->in, k->nrule_in);
        inv_str_add(b, " to");
        print_names(b, g, k->out, k->nrule_out);
        inv_str_add(b, "; %u node%s\n", k->nnode, k->nnode == 1 ? "" : "s");
    }
    for (size_t i = 0; i < m->edge.n; i++) print_edge(b, g, &m->edge.at[i]);
    for (size_t i = 0; i < m->refusal.n; i++) {
        const inv_refusal *r = &m->refusal.at[i];
        inv_str_add(b, "# refused: %s at ", r->kind);
        inv_print_name(b, inv_node_label(inv_nod(g, r->node)));
        inv_str_add(b, ": ");
        print_words(b, r->why.reason);
        inv_str_add(b, "\n");
    }
}

static inv_status tell(const inv_request *rq, const inv_graph *g, bool matched, const char *name)
{
    const inv_session_options *o = rq->options;
    inv_str b;
    inv_str_init(&b, g->ctx);
    inv_status s = inv_graph_print(g, &b);
    if (s == INV_OK && matched && g->matches) print_matches(&b, g, g->matches);
    if (s == INV_OK && b.failed) s = INV_E_NOMEM;
    if (s == INV_OK && !o->after_pass(o->after_pass_opaque, rq->plan, name, b.s))
        s = inv_fail(g->ctx, INV_E_IO, "compiling ends after pass '%s', as it could not be handed on", name);
    inv_str_fini(&b);
    return s;
}

inv_status inv_pass_done(const inv_request *rq, const inv_graph *g, inv_pass_left left, const char *name)
{
    INV_TRY(inv_check_stop(g->ctx));
    INV_TRY(inv_graph_check(g, left != INV_LEFT_IMPORTED));
    return rq->plan && rq->options->after_pass ? tell(rq, g, left == INV_LEFT_MATCHED, name) : INV_OK;
}
