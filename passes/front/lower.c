/* SPDX-License-Identifier: Apache-2.0
 * Lowering: one sweep in execution order rewrites ONNX's operators, in the spelling of whatever opset, into canonical
 * ones. Inputs of the node at hand are lowered already and static, so shape arithmetic folds as it goes.
 * requires: inlined graph with static inputs.  gives: canonical operators, static shapes, folded constants.
 * breaks: node ids of the import (origins stay) */
#include <string.h>

#include "core/edits/inference.h"
#include "core/graph/node.h"
#include "passes/autodiff/autodiff.h"
#include "passes/front/front.h"

static bool is_unknown_operator(const inv_node *n) { return !n->op && !inv_is_control(n) && !inv_is_gradient(n); }

/* The nodes of one operator that is not registered. */
static void name_nodes(const inv_graph *g, const inv_ids *list, size_t first, inv_str *text)
{
    enum { MOST_NODES = 20 };
    const inv_node *n = inv_nod(g, list->at[first]);
    inv_str_add(text, "; %s%s%s (node", n->domain, *n->domain ? "::" : "", n->op_type);
    size_t count = 0;
    for (size_t j = first; j < list->n; j++) {
        const inv_node *m = inv_nod(g, list->at[j]);
        if (!is_unknown_operator(m) || strcmp(m->op_type, n->op_type) != 0 || strcmp(m->domain, n->domain) != 0)
            continue;
        if (++count <= MOST_NODES) inv_str_add(text, "%s'%s'", count > 1 ? ", " : " ", inv_expand_label(g, m));
    }
    if (count > MOST_NODES) inv_str_add(text, " and %zu more", count - MOST_NODES);
    inv_str_add(text, ", opset %lld)", (long long)inv_graph_opset(g, n->domain));
}

/* What is to be done about an operator that is not registered. */
static const char *remedy_for(const inv_graph *g, const inv_node *n)
{
    enum { OLD = 7 };
    if (!*n->domain && inv_graph_opset(g, "") < OLD)
        return "Operators differed before opset 7. Convert the file in Python: import onnx, onnx.version_converter "
               "as v; onnx.save(v.convert_version(onnx.load('MODEL'), 17), 'OUT')";
    return strcmp(n->domain, "com.microsoft.nchwc") == 0
               ? "Operators of com.microsoft.nchwc are for the processor that onnxruntime optimized the file on. "
                 "Save it with ORT_ENABLE_EXTENDED, not ORT_ENABLE_ALL"
               : "'invonnx ops' lists what it has";
}

/* The operators that are not registered, with their nodes, in one message. */
static inv_status name_unknown(const inv_graph *g, const inv_ids *list)
{
    enum { MOST_OPERATORS = 50 };
    const inv_node *seen[MOST_OPERATORS];
    size_t nseen = 0;
    bool more = false;
    inv_str text;
    inv_str_init(&text, g->ctx);
    for (size_t i = 0; i < list->n; i++) {
        const inv_node *n = inv_nod(g, list->at[i]);
        if (!is_unknown_operator(n)) continue;
        size_t k = 0;
        while (k < nseen && (strcmp(seen[k]->op_type, n->op_type) != 0 || strcmp(seen[k]->domain, n->domain) != 0)) k++;
        if (k < nseen) continue;
        more = nseen == MOST_OPERATORS;
        if (more) break;
        seen[nseen++] = n;
        name_nodes(g, list, i, &text);
    }
    inv_status s = INV_OK;
    if (text.failed) s = INV_E_NOMEM;
    else if (text.n)
        s = inv_fail(g->ctx, INV_E_UNSUPPORTED_OP, "operators that this version does not have: %s%s. %s", text.s + 2,
                     more ? "; and more" : "", remedy_for(g, seen[0]));
    inv_str_fini(&text);
    return s;
}

/* The name of the model goes to the value that now stands for it, unless that one has a name of the model itself. */
static void take_file_name(inv_graph *g, inv_id from, inv_id to, const bool *named)
{
    if (from != to && inv_val(g, to)->role == INV_ROLE_NODE && !named[to]) inv_graph_swap_names(g, from, to);
}

inv_status inv_lower_origin(inv_graph *g, const inv_node *n)
{
    inv_emit_for(g, n);
    if (!g->emit_type) g->emit_type = n->op_type;
    if (n->norigin) return INV_OK;
    const char **origin = INV_ARENA_NEW(&g->arena, const char *, 1);
    if (!origin) return INV_E_NOMEM;
    origin[0] = inv_node_called(g, n);
    g->emit_origin = origin;
    g->emit_norigin = 1;
    return INV_OK;
}

/* An attribute that the operator reads, of another type than it wants. */
static inv_status check_attributes(const inv_graph *g, const inv_node *n)
{
    for (uint32_t i = 0; i < n->nattr; i++)
        if (n->attr[i].wanted)
            return inv_node_fail(g, n, INV_E_GRAPH, "attribute '%s' is of type %s; the operator wants %s",
                                 n->attr[i].name, inv_attr_kind_name(n->attr[i].kind), n->attr[i].wanted);
    return INV_OK;
}

/* Whether output i of n is of strings, as names of classes are, and nobody wants it. */
static bool is_left(const inv_graph *g, const inv_ids *list, const inv_node *n, uint32_t i)
{
    const inv_value *v = inv_val(g, n->out[i]);
    if (v->dtype != INV_STRING || v->is_output) return false;
    for (size_t at = 0; at < list->n; at++) {
        const inv_node *reader = inv_nod(g, list->at[at]);
        for (uint32_t k = 0; k < inv_node_listed(reader); k++)
            if (reader->in[k] == n->out[i]) return false;
    }
    return true;
}

/* Lowers one node of a list; out[] gets the values that stand for its outputs. */
static inv_status lower_node(inv_graph *g, const inv_ids *list, inv_id id, inv_id *out)
{
    inv_status s = inv_node_infer(g, id);
    inv_node n = *inv_nod(g, id);     /* a copy: emitting moves the array */
    INV_TRY(check_attributes(g, &n)); /* the default that was taken instead may be why it failed */
    INV_TRY(s);
    const inv_id through = g->eval || g->no_dropout ? inv_inference_dropped(g, &n) : INV_NONE;
    if (through != INV_NONE && inv_shape_equal(&inv_val(g, through)->shape, &inv_val(g, n.out[0])->shape)) {
        out[0] = through;
        return INV_OK;
    }
    if (n.op->lower) {
        for (uint32_t i = 0; i < n.nout; i++) out[i] = INV_NONE;
        s = n.op->lower(g, &n, out);
        INV_TRY(check_attributes(g, &n));
        INV_TRY(s);
        if (g->failed) return g->failed;
        for (uint32_t i = 0; i < n.nout; i++)
            if (n.out[i] != INV_NONE && out[i] == INV_NONE && !is_left(g, list, &n, i))
                return inv_node_fail(g, &n, INV_E_UNSUPPORTED_OP, "output %u is not computed by this version", i);
        return INV_OK;
    }
    if (inv_node_foldable(g, inv_nod(g, id))) {
        inv_id folded = inv_emit_op(g, n.op, n.nout, n.nin, n.in, n.nattr, n.attr, out);
        return folded == INV_NONE && g->failed ? g->failed : INV_OK;
    }
    for (uint32_t i = 0; i < n.nout; i++) out[i] = n.out[i];
    inv_nod(g, id)->origin = g->emit_origin;
    inv_nod(g, id)->norigin = g->emit_norigin;
    inv_nod(g, id)->origin_type = g->emit_type;
    return inv_vec_push(&g->arena, &g->order, id) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_lower_nodes(inv_lowering *l, const inv_ids *list)
{
    inv_graph *g = l->g;
    INV_TRY(inv_reach_types(g, list));
    INV_TRY(name_unknown(g, list));
    for (size_t i = 0; i < list->n; i++) {
        inv_node *n = inv_nod(g, list->at[i]);
        INV_TRY(inv_lower_origin(g, n));
        uint32_t nout = n->nout;
        inv_id *out = INV_ARENA_NEW(&l->scratch, inv_id, nout + 1);
        if (!out) return INV_E_NOMEM;
        if (inv_is_control(n)) {
            INV_TRY(inv_unroll(l, list->at[i], out));
        } else {
            for (uint32_t k = 0; k < n->nin; k++) n->in[k] = inv_graph_stands(g, n->in[k]);
            INV_TRY(inv_is_gradient(n) ? inv_lower_gradient(g, n, out) : lower_node(g, list, list->at[i], out));
        }
        n = inv_nod(g, list->at[i]);
        for (uint32_t k = 0; k < nout; k++)
            if (n->out[k] != INV_NONE && n->out[k] != out[k]) inv_val(g, n->out[k])->same = out[k];
        g->lowered++;
    }
    return INV_OK;
}

/* Values that the model named, or a body that was put in place, give their names to what stands for them. */
static inv_status take_names(inv_graph *g, inv_arena *scratch, size_t nold)
{
    bool *named = INV_ARENA_NEW(scratch, bool, g->value.n + 1);
    if (!named) return INV_E_NOMEM;
    for (size_t v = 0; v < nold; v++) named[v] = inv_val(g, (inv_id)v)->same == INV_NONE;
    for (size_t v = 0; v < g->value.n; v++) {
        inv_id to = inv_graph_stands(g, (inv_id)v);
        if (to == v || to < nold || named[to]) continue;
        take_file_name(g, (inv_id)v, to, named);
        named[to] = true;
    }
    return INV_OK;
}

inv_status inv_pass_lower(inv_graph *g)
{
    inv_lowering l = {.g = g};
    size_t nold = g->value.n;
    inv_ids old = g->order;
    memset(&g->order, 0, sizeof g->order);
    g->fold = true;
    g->phase = INV_FORWARD;
    g->lowered = 1;
    inv_arena_init(&l.scratch, g->ctx);
    inv_status s = inv_lower_nodes(&l, &old);
    if (s == INV_OK) s = take_names(g, &l.scratch, nold);
    inv_arena_fini(&l.scratch);
    INV_TRY(s);
    inv_graph_stand_outputs(g);
    g->fold = false;
    inv_emit_for(g, NULL);
    /* running statistics have no reader yet: commit nodes come later (optimizer_update.c) */
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (n->op->flags & INV_OP_UPDATE) inv_val(g, n->out[0])->keep = true;
    }
    return inv_graph_prune(g);
}
