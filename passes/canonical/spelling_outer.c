/* SPDX-License-Identifier: Apache-2.0
 * x less an outer product of a column of x and a row, in one form, however its factors are written:
 *
 *     x - (2 (x u)) v / |v|^2,   x - 2 (sum of x v) v,   x - (x u) v c   ->   x - (x u) (v c)
 *
 * for a column u, a row v and factors c that depend on parameters only. Reflections are written so, and rules know them
 * in that form. requires, gives: as spelling.c, which asks about each difference. */
#include "core/graph/node.h"
#include "passes/canonical/spelling.h"

/* A difference: what is taken from x is x `column`, times `row`; INV_NONE: 1. */
typedef struct outer {
    const inv_speller *s;
    inv_graph *g;
    inv_id x, column, row;
    uint32_t products; /* of the form that the rules know */
    bool other;        /* there is something else in it */
} outer;

static bool is_total(const inv_graph *g, const inv_node *n)
{
    size_t count = 0;
    const int64_t *axes = inv_op_is(n, "ReduceSumAxes") ? inv_attr_ints(n, "axes", &count) : NULL;
    const int rank = axes ? inv_val(g, n->in[0])->shape.rank : 0;
    return axes && count == 1 && (axes[0] < 0 ? axes[0] + rank : axes[0]) == rank - 1;
}

/* As many entries as x has columns. */
static bool is_row(const outer *f, inv_id v)
{
    const inv_shape *s = &inv_val(f->g, f->x)->shape;
    return inv_spell_is_known(f->s, v) && inv_shape_nelem(&inv_val(f->g, v)->shape) == s->dim[s->rank - 1];
}

/* One number, or one for each column, as the last axis. */
static bool is_one_or_row(const outer *f, inv_id v)
{
    const inv_shape *s = &inv_val(f->g, v)->shape;
    const int64_t n = inv_shape_nelem(s);
    return inv_spell_is_known(f->s, v) && (n == 1 || (is_row(f, v) && s->dim[s->rank - 1] == n));
}

/* Whether v is x times a column and factors, from the last to the first. */
static bool is_outer(outer *f, inv_id v)
{
    for (const inv_node *n = inv_spell_maker(f->s, v); n; n = inv_spell_maker(f->s, v)) {
        v = n->in[0];
        if (inv_op_is(n, "MatMulT")) {
            f->products++;
            if (inv_attr_int(n, "transA", 0) != 0 || !is_row(f, n->in[1])) return false;
            if (v == f->x) return true;
        } else if (is_total(f->g, n)) {
            const inv_node *of = inv_spell_maker(f->s, v);
            f->other = true;
            return of && inv_op_is(of, "Mul") && of->in[0] == f->x && is_row(f, of->in[1]);
        } else if (inv_spell_is_factor(n)) {
            if (!is_one_or_row(f, n->in[1])) return false;
            f->other = f->other || *n->op->name == 'D' || f->products++ > 0;
        } else if (inv_op_is(n, "View") || inv_op_is(n, "Neg")) {
            f->other = true;
        } else {
            return false;
        }
    }
    return false;
}

static inv_id as_matrix(outer *f, inv_id v, bool column)
{
    const int64_t n = inv_shape_nelem(&inv_val(f->g, v)->shape), shape[] = {column ? n : 1, column ? 1 : n};
    return inv_emit1(f->g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_ints("shape", 2, shape)));
}

static inv_id one(outer *f)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){1, 1});
    const inv_dtype type = inv_val(f->g, f->x)->dtype;
    const double number = 1;
    char bytes[sizeof number];
    (void)inv_convert(bytes, type, &number, INV_F64, 1);
    return inv_graph_const(f->g, type, &s, bytes);
}

static void join(outer *f, const char *op, inv_id factor)
{
    if (f->row == INV_NONE && *op == 'M') {
        f->row = factor;
        return;
    }
    if (f->row == INV_NONE) f->row = one(f);
    if (f->row != INV_NONE && factor != INV_NONE) f->row = inv_emit1(f->g, op, INV_IN(f->row, factor), INV_NOATTR);
}

/* Emits the column and the row of what is_outer() has looked through. */
static void emit_parts(outer *f, inv_id v)
{
    const inv_node n = *inv_def_node(f->g, v); /* emitting moves the array */
    if (is_total(f->g, &n)) {
        f->column = as_matrix(f, inv_def_node(f->g, n.in[0])->in[1], true);
        return;
    }
    if (inv_op_is(&n, "MatMulT") && n.in[0] == f->x) {
        f->column = as_matrix(f, n.in[1], true);
        return;
    }
    emit_parts(f, n.in[0]);
    if (inv_op_is(&n, "MatMulT")) join(f, "Mul", as_matrix(f, n.in[1], false));
    else if (inv_spell_is_factor(&n)) join(f, n.op->name, as_matrix(f, n.in[1], false));
    else if (inv_op_is(&n, "Neg")) {
        if (f->row == INV_NONE) f->row = one(f);
        if (f->row != INV_NONE) f->row = inv_emit1(f->g, "Neg", INV_IN(f->row), INV_NOATTR);
    }
}

inv_status inv_spell_outer(const inv_speller *s, const inv_node *node, inv_id *to)
{
    inv_graph *g = s->g;
    outer f = {.s = s, .g = g, .column = INV_NONE, .row = INV_NONE};
    *to = INV_NONE;
    if (!inv_op_is(node, "Sub")) return INV_OK;
    f.x = node->in[0];
    const inv_id y = node->out[0];
    if (inv_val(g, f.x)->shape.rank < 2 || !inv_shape_equal(&inv_val(g, f.x)->shape, &inv_val(g, y)->shape) ||
        !is_outer(&f, node->in[1]) || !f.other)
        return INV_OK;
    const size_t order = g->order.n;
    emit_parts(&f, node->in[1]);
    static const inv_attr plain[] = {{.name = "transA", .kind = INV_ATTR_INT},
                                     {.name = "transB", .kind = INV_ATTR_INT}};
    const inv_id d = f.column == INV_NONE ? INV_NONE : inv_emit1(g, "MatMulT", INV_IN(f.x, f.column), 2, plain),
                 o = d == INV_NONE || f.row == INV_NONE ? INV_NONE : inv_emit1(g, "Mul", INV_IN(d, f.row), INV_NOATTR);
    if (o != INV_NONE) *to = inv_emit1(g, "Sub", INV_IN(f.x, o), INV_NOATTR);
    if (g->failed == INV_E_NOMEM || g->arena.failed || s->scratch->failed) return INV_E_NOMEM;
    if (*to != INV_NONE && inv_shape_equal(&inv_val(g, *to)->shape, &inv_val(g, y)->shape)) return INV_OK;
    g->order.n = order;
    g->failed = INV_OK;
    *to = INV_NONE;
    return INV_OK;
}
