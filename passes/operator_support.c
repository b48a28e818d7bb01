/* SPDX-License-Identifier: Apache-2.0
 * What an operator supports, seen and not said: each case of its row is lowered, with every element type in turn, and
 * what then stands there tells which types are taken, what runs, and whether gradient, inverse and device kernels are
 * complete. So the matrix cannot differ from what compiling does. */
#include <string.h>

#include "passes/front/front.h"
#include "passes/pipeline.h"

static const inv_dtype tried[] = {INV_F32, INV_F64, INV_BOOL, INV_I8,  INV_I16, INV_I32,
                                  INV_I64, INV_U8,  INV_U16,  INV_U32, INV_U64};

/* The last node of the row's operator, before lowering; INV_NONE: the case is about something else. */
static inv_id lowered_target_of(const inv_graph *g, const inv_op_def *row)
{
    for (size_t i = g->order.n; i-- > 0;)
        if (inv_nod(g, g->order.at[i])->op == row) return g->order.at[i];
    return INV_NONE;
}

typedef struct lowered {
    inv_graph *g; /* NULL: the case does not lower so */
    inv_id target;
    const char *origin; /* of the nodes that the target became */
} lowered;

/* The case lowered, its inputs of type `from` being of type `to`. */
static inv_status lower_case(inv_context *ctx, const inv_op_def *row, const char *text, inv_dtype from, inv_dtype to,
                             lowered *out)
{
    inv_graph *g;
    *out = (lowered){0};
    INV_TRY(inv_case_parse(ctx, text, row->until, to == INV_F64 ? to : INV_F32, &g));
    out->target = lowered_target_of(g, row);
    if (out->target == INV_NONE) {
        inv_graph_destroy(g);
        return INV_OK;
    }
    const inv_node *n = inv_nod(g, out->target);
    out->origin = n->nout && n->out[0] != INV_NONE ? inv_val(g, n->out[0])->name : n->op_type;
    g->train = true;
    for (size_t i = 0; i < g->inputs.n; i++) {
        inv_value *v = inv_val(g, g->inputs.at[i]);
        if (v->dtype == from) v->dtype = to;
    }
    inv_status s = inv_pass_lower(g);
    if (g->arena.failed) s = INV_E_NOMEM;
    if (s == INV_OK) out->g = g;
    else inv_graph_destroy(g);
    return s == INV_E_NOMEM ? s : INV_OK;
}

/* Types at the operator's inputs, other than constants. */
static void note_types(const lowered *l, inv_support *out)
{
    const inv_node *n = inv_nod(l->g, l->target);
    for (uint32_t i = 0; i < n->nin && i < INV_SUPPORT_IN; i++) {
        const inv_value *v = n->in[i] == INV_NONE ? NULL : inv_val(l->g, n->in[i]);
        if (v && v->role != INV_ROLE_CONST && (unsigned)v->dtype < 32) out->types[i] |= (uint32_t)1 << v->dtype;
    }
}

/* All inputs of the case that are of one type change together. */
static inv_status note_types_seen(inv_context *ctx, const inv_op_def *row, const char *text, inv_support *out)
{
    inv_graph *g;
    uint32_t given = (uint32_t)1 << INV_F32;
    INV_TRY(inv_case_parse(ctx, text, row->until, INV_F32, &g));
    for (size_t i = 0; i < g->inputs.n; i++) given |= (uint32_t)1 << inv_val(g, g->inputs.at[i])->dtype;
    inv_graph_destroy(g);
    for (size_t t = 0; t < sizeof tried / sizeof *tried; t++) {
        for (int from = 1; from < 32; from++) {
            lowered l;
            if (!(given >> from & 1)) continue;
            INV_TRY(lower_case(ctx, row, text, (inv_dtype)from, tried[t], &l));
            if (l.g) note_types(&l, out);
            inv_graph_destroy(l.g);
        }
    }
    return INV_OK;
}

static bool made_by(const inv_node *n, const char *origin) { return n->norigin && strcmp(n->origin[0], origin) == 0; }

static bool has_rule(const inv_registry *r, const inv_op_def *op)
{
    for (size_t k = 0; k < inv_registry_ninverses(r); k++) {
        const inv_inverse_def *rule = inv_registry_inverse_at(r, k);
        const char *at = rule->solve && !strchr(rule->match, ';') ? strstr(rule->match, op->name) : NULL;
        const size_t n = strlen(op->name);
        if (at && at > rule->match && (at[-1] == ' ' || at[-1] == '.') && (at[n] == '(' || at[n] == '<')) return true;
    }
    return false;
}

/* Whether gradients of the case's outputs come to its floating-point inputs. */
static inv_status see_gradient(const inv_graph *g, bool *some, bool *missing)
{
    inv_arena a;
    inv_arena_init(&a, g->ctx);
    bool *on = INV_ARENA_NEW(&a, bool, g->value.n + 1);
    for (size_t i = 0; on && i < g->inputs.n; i++)
        on[g->inputs.at[i]] = inv_dtype_is_float(inv_val(g, g->inputs.at[i])->dtype);
    for (size_t i = 0; on && i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool reached = false;
        for (uint32_t k = 0; k < n->nin; k++) reached = reached || (n->in[k] != INV_NONE && on[n->in[k]]);
        if (!reached || n->op->flags & INV_OP_NO_GRAD) continue;
        if (!n->op->grad) *missing = true;
        for (uint32_t k = 0; k < n->nout && n->op->grad; k++)
            if (n->out[k] != INV_NONE) on[n->out[k]] = inv_dtype_is_float(inv_val(g, n->out[k])->dtype);
    }
    for (size_t i = 0; on && i < g->outputs.n; i++) *some = *some || on[g->outputs.at[i]];
    inv_status s = on ? INV_OK : INV_E_NOMEM;
    inv_arena_fini(&a);
    return s;
}

static void see_operator(inv_support *out, const inv_op_def *op)
{
    for (uint32_t i = 0; i < out->nto; i++)
        if (out->to[i] == op) return;
    if (out->nto < INV_SUPPORT_OPS) out->to[out->nto++] = op;
}

static inv_status see_case(inv_context *ctx, const inv_op_def *row, const char *text, inv_support *out, bool *some,
                           bool *missing)
{
    lowered l;
    bool all = true;
    uint32_t count = 0;
    INV_TRY(lower_case(ctx, row, text, INV_F32, INV_F32, &l));
    if (!l.g) return INV_OK;
    for (size_t i = 0; i < l.g->order.n; i++) {
        const inv_node *n = inv_nod(l.g, l.g->order.at[i]);
        if (!made_by(n, l.origin)) continue;
        see_operator(out, n->op);
        all = all && has_rule(ctx->registry, n->op);
        count++;
    }
    out->inverse = out->inverse || (count && all);
    inv_status s = see_gradient(l.g, some, missing);
    inv_graph_destroy(l.g);
    return s;
}

static void see_kernels(const inv_op_def *op, inv_support *out)
{
    const bool none = op->flags & (INV_OP_VIEW | INV_OP_TRANSFER);
    out->cpu = out->cpu && (none || op->run);
    out->cuda = out->cuda && (none || op->flags & INV_OP_SOURCE || inv_op_on_device(op));
    out->cuda_real = out->cuda_real || (!none && op->flags & INV_OP_DEVICE_REAL);
}

inv_status inv_support_of(inv_context *ctx, const inv_op_def *row, inv_support *out)
{
    bool some = false, missing = false;
    *out = (inv_support){.cpu = true, .cuda = true};
    for (const char *const *text = row->cases; text && *text; text++) {
        INV_TRY(note_types_seen(ctx, row, *text, out));
        if (row->lower) INV_TRY(see_case(ctx, row, *text, out, &some, &missing));
    }
    if (!row->lower) {
        out->to[out->nto++] = row;
        out->inverse = has_rule(ctx->registry, row);
        some = row->grad;
        missing = !row->grad && !(row->flags & INV_OP_NO_GRAD);
    }
    out->gradient = some && missing ? INV_GRAD_PARTLY
                    : some          ? INV_GRAD_YES
                    : missing       ? INV_GRAD_MISSING
                                    : INV_GRAD_NONE;
    for (uint32_t i = 0; i < out->nto; i++) see_kernels(out->to[i], out);
    return INV_OK;
}
