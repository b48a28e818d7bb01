/* SPDX-License-Identifier: Apache-2.0
 * What a node is, which function it calls, and what it is called in messages. */
#ifndef INV_CORE_NODE_H
#define INV_CORE_NODE_H

#include <string.h>

#include "core/graph/ir.h"

/* Of the operators that ONNX itself defines. */
static inline bool inv_node_is(const inv_node *n, const char *op_type)
{
    return !strcmp(n->op_type, op_type) && !*n->domain;
}

/* One of these, the list ending with NULL. */
static inline bool inv_node_is_any(const inv_node *n, const char *const *op_types)
{
    for (; *op_types; op_types++)
        if (inv_node_is(n, *op_types)) return true;
    return false;
}

/* Whether the node reads nothing of input k but its shape or type, so that other elements change nothing. */
static inline bool inv_node_reads_form(const inv_node *n, uint32_t k)
{
    static const char *const of_first[] = {"Shape", "Size", "EyeLike", "RandomNormalLike", "RandomUniformLike", NULL};
    return k == 0 ? inv_node_is_any(n, of_first) : inv_node_is(n, "CastLike");
}

/* The node's name; where it has none, that of the file's node that it comes from, else that of its first result. */
static inline const char *inv_node_called(const inv_graph *g, const inv_node *n)
{
    if (n->name && *n->name) return n->name;
    if (n->norigin && *n->origin[0]) return n->origin[0];
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] < g->value.n) return inv_val(g, n->out[k])->name;
    return g->emit_norigin ? g->emit_origin[0] : n->op_type; /* while it is being emitted */
}

/* The name that the file's node has, or its own: what blocks are called. */
static inline const char *inv_node_label(const inv_node *n)
{
    return n->norigin && *n->origin[0] ? n->origin[0] : n->name && *n->name ? n->name : n->op_type;
}

/* The operator that the file's node has, or its own. */
static inline const char *inv_node_kind(const inv_node *n) { return n->origin_type ? n->origin_type : n->op_type; }

/* What an operator's result is of its first input: the same elements, at the same places or at others, or some of them,
 * maybe several times. A weight is a weight behind any of these. */
typedef enum inv_hands { INV_HANDS_NOTHING, INV_HANDS_SAME, INV_HANDS_ALL, INV_HANDS_SOME } inv_hands;
inv_hands inv_node_hands(const inv_node *n);
/* The value whose bytes v has under another shape; v itself if it is no view. */
inv_id inv_seen_through_views(const inv_graph *g, inv_id v);

/* The functions of a graph by domain and name. */
typedef struct inv_callees {
    const inv_graph *g;
    inv_id *slot; /* 1 + function; 0: empty */
    size_t cap;
} inv_callees;
/* In `a`. */
inv_status inv_callees_init(inv_callees *c, const inv_graph *g, inv_arena *a);
/* INV_NONE: the node calls none. */
inv_id inv_callee(const inv_callees *c, const inv_node *n);

#endif
