/* SPDX-License-Identifier: Apache-2.0
 * Canonical operators as ONNX nodes, as their rows say: by a formula (column `onnx`, formula.c), or by a function
 * (column `raise`).
 *
 * requires  names for the inputs, static shapes
 * gives     nodes appended to r->node, in execution order
 * breaks    nothing: the graph is only read */
#include "passes/export/raise.h"

#include "passes/export/formula.h"

enum { OLDEST_OPSET = 7 };

/* The operator of ONNX, or of a plugin, that has the same name, inputs and attributes. */
static bool raise_as_it_is(const inv_raising *b)
{
    const inv_node *n = b->n;
    const char **in = INV_ARENA_NEW(b->r->a, const char *, n->nin + 1);
    if (in == NULL) return false;
    for (uint32_t i = 0; i < n->nin; i++) in[i] = b->in[i] ? b->in[i] : "";
    for (uint32_t i = 0; i < n->nout; i++) b->out[i] = b->out[i] ? b->out[i] : "";
    if (!inv_onnx_nodes(b->r, n->op_type, n->nout, b->out, n->nin, in, n->nattr, n->attr)) return false;
    if (inv_raise_is_of_plugin(n->op)) b->r->node->at[b->r->node->n - 1].domain = n->op->domain;
    return true;
}

/* Images of files have their channels second. */
static bool has_channels_last(const inv_node *n)
{
    for (int i = 0; i < 3 && n->op->images.attr[i].name; i++) {
        const char *name = n->op->images.attr[i].name;
        const inv_axes holds = n->op->images.attr[i].holds;
        if (holds == INV_MARK && inv_attr_int(n, name, 0) != 0) return true;
        if (holds == INV_LAST_AXIS && inv_attr_int(n, name, 1) != 1) return true;
    }
    return false;
}

uint32_t inv_raise_matrix(const inv_node *n)
{
    for (uint32_t i = 0; i < n->nin; i++)
        if (n->op->inverts >> i & 1) return i;
    return INV_NONE;
}

/* The names of what the node takes and gives. */
static bool find_names(inv_raising *b, const char *solver)
{
    const inv_node *n = b->n;
    const uint32_t matrix = b->r->by_operator ? INV_NONE : inv_raise_matrix(n);
    b->in = INV_ARENA_NEW(b->r->a, const char *, n->nin + 1);
    b->out = INV_ARENA_NEW(b->r->a, const char *, n->nout + 1);
    if (b->in == NULL || b->out == NULL) return false;
    for (uint32_t i = 0; i < n->nin; i++) {
        b->in[i] = n->in[i] == INV_NONE ? NULL : i == matrix ? solver : b->r->name[n->in[i]];
        if (b->in[i] || n->in[i] == INV_NONE) continue;
        return inv_onnx_refuse(b->r, i == matrix ? "the inverse of the matrix is not known before the run"
                                                 : "an operand has no name in the function");
    }
    for (uint32_t i = 0; i < n->nout; i++) b->out[i] = n->out[i] == INV_NONE ? NULL : b->r->name[n->out[i]];
    return true;
}

bool inv_raise_node(inv_onnx_body *r, const inv_node *n, const char *solver)
{
    inv_raising b = {.r = r, .n = n};
    const char *onnx = n->op->onnx;
    const int since = onnx && !*onnx && !*n->op->domain && n->op->since > OLDEST_OPSET ? n->op->since : OLDEST_OPSET;
    const uint32_t onto = n->op->onto && n->op->onto < n->nin && n->in[n->op->onto] != INV_NONE ? n->op->onto : 0;
    r->reason = NULL;
    if (!inv_raise_knows(n->op))
        return inv_onnx_refuse(r, inv_arena_printf(r->a, "%s has no form in ONNX", n->op_type));
    if (has_channels_last(n)) return inv_onnx_refuse(r, "its channels are last; in files they are second");
    if (r->opset < since) return inv_onnx_refuse(r, inv_onnx_too_old(r, n->op_type, since));
    if (!find_names(&b, solver)) return false;
    const char *sum = b.out[0];
    if (onto) b.out[0] = inv_onnx_fresh(r);
    const bool whole = (onnx && !*onnx) || (n->op->inverts && r->by_operator);
    if (!(whole ? raise_as_it_is(&b) : onnx ? inv_formula_raise(&b, onnx) : n->op->raise(&b))) return false;
    const char *op = inv_attr_int(n, "minus", 0) ? "Sub" : "Add";
    return !onto || inv_onnx_node(r, sum, op, INV_NAMES(b.in[onto], b.out[0]), INV_NOATTR);
}
