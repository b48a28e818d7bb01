/* SPDX-License-Identifier: Apache-2.0
 * A sum of linear maps of one value is a linear map of it:
 *
 *     x W + (x V + b) c - x  =  x (W + V c - 1) + b c
 *
 * for matrices W and V, a term b and a factor c of each column that depend on parameters only. So rules see one product
 * with a square or tall matrix, where they would see operands none of which is known without the others. What has fewer
 * columns than x is left as it is: that is cheaper, and nothing inverts it. So is what has more than MOST_COLUMNS,
 * where the product takes long.
 * requires, gives: as spelling.c, which asks about each sum. */
#include <string.h>

#include "core/graph/node.h"
#include "passes/canonical/spelling.h"

enum { MOST_LOOKS = 1024, MOST_COLUMNS = 1024 }; /* MOST_LOOKS limits the recursion */

typedef struct sum {
    const inv_speller *s;
    inv_graph *g;
    inv_id x;    /* what all maps are of */
    inv_shape y; /* of the sum */
    bool turned; /* matrices have their rows in x's place of columns, as transB says */
    uint32_t looks, products, terms;
} sum;

/* x matrix + rest; INV_NONE: without. */
typedef struct linear {
    inv_id matrix, rest;
} linear;

static bool is_sum(const inv_node *n) { return inv_op_is(n, "Add") || inv_op_is(n, "Sub"); }

/* The value that the first product with a matrix is of; INV_NONE: there is none. */
static inv_id find_x(sum *f, const inv_node *n)
{
    inv_id x = INV_NONE;
    if (!n || f->looks++ > MOST_LOOKS) return INV_NONE;
    if (inv_op_is(n, "MatMulT")) {
        f->turned = inv_attr_int(n, "transB", 0) != 0;
        return n->in[0];
    }
    if (!is_sum(n) && !inv_spell_is_factor(n) && !inv_op_is(n, "Neg")) return INV_NONE;
    for (uint32_t k = 0; k < n->nin && x == INV_NONE; k++) x = find_x(f, inv_spell_maker(f->s, n->in[k]));
    return x;
}

/* One number for each column, or for all. */
static bool is_row(const sum *f, inv_id v)
{
    const inv_shape *s = &inv_val(f->g, v)->shape;
    const int64_t n = inv_shape_nelem(s);
    return n == 1 || (n == f->y.dim[f->y.rank - 1] && s->dim[s->rank - 1] == n);
}

static bool is_linear(sum *f, inv_id v, const inv_node *n)
{
    if (inv_spell_is_known(f->s, v)) return true;
    if (f->looks++ > MOST_LOOKS || !inv_shape_equal(&inv_val(f->g, v)->shape, &f->y)) return false;
    if (v == f->x) return ++f->terms;
    if (!n) return false;
    if (is_sum(n))
        return is_linear(f, n->in[0], inv_spell_maker(f->s, n->in[0])) &&
               is_linear(f, n->in[1], inv_spell_maker(f->s, n->in[1]));
    if (inv_op_is(n, "Neg")) return is_linear(f, n->in[0], inv_spell_maker(f->s, n->in[0]));
    if (inv_spell_is_factor(n))
        return inv_spell_is_known(f->s, n->in[1]) && is_row(f, n->in[1]) &&
               is_linear(f, n->in[0], inv_spell_maker(f->s, n->in[0]));
    if (!inv_op_is(n, "MatMulT") || n->in[0] != f->x || inv_attr_int(n, "transA", 0) != 0) return false;
    f->products++;
    f->terms++;
    return inv_spell_is_known(f->s, n->in[1]) && inv_val(f->g, n->in[1])->shape.rank == 2;
}

static inv_id emit(sum *f, const char *op, inv_id a, inv_id b)
{
    if (a == INV_NONE || b == INV_NONE) return INV_NONE;
    return inv_emit1(f->g, op, INV_IN(a, b), INV_NOATTR);
}

static inv_id transposed(sum *f, inv_id v)
{
    static const int64_t swapped[] = {1, 0};
    return inv_emit1(f->g, "Transpose", INV_IN(v), INV_ATTRS(inv_attr_of_ints("perm", 2, swapped)));
}

static inv_id identity(sum *f)
{
    const int64_t n = f->y.dim[f->y.rank - 1];
    const inv_shape s = inv_shape_of(2, (int64_t[]){n, n});
    const inv_dtype type = inv_val(f->g, f->x)->dtype;
    double *entry = INV_ARENA_NEW(f->s->scratch, double, (size_t)(n * n));
    void *bytes = inv_arena_alloc(f->s->scratch, (size_t)(n * n) * sizeof *entry);
    if (!entry || !bytes) return INV_NONE;
    for (int64_t i = 0; i < n * n; i++) entry[i] = i % (n + 1) == 0;
    (void)inv_convert(bytes, type, entry, INV_F64, (size_t)(n * n));
    return inv_graph_const(f->g, type, &s, bytes);
}

/* The factor as it stands to a matrix. */
static inv_id beside(sum *f, inv_id factor)
{
    const int64_t n = inv_shape_nelem(&inv_val(f->g, factor)->shape), shape[] = {f->turned ? n : 1, f->turned ? 1 : n};
    return inv_emit1(f->g, "View", INV_IN(factor), INV_ATTRS(inv_attr_of_ints("shape", 2, shape)));
}

static inv_id joined(sum *f, const char *op, inv_id a, inv_id b)
{
    if (b == INV_NONE) return a;
    if (a != INV_NONE) return emit(f, op, a, b);
    return *op == 'S' ? inv_emit1(f->g, "Neg", INV_IN(b), INV_NOATTR) : b;
}

/* What is_linear() has looked through. */
static linear emit_parts(sum *f, inv_id v)
{
    if (inv_spell_is_known(f->s, v)) return (linear){INV_NONE, v};
    if (v == f->x) return (linear){identity(f), INV_NONE};
    const inv_node n = *inv_def_node(f->g, v); /* emitting moves the array */
    if (inv_op_is(&n, "MatMulT")) {
        const bool as_it_is = (inv_attr_int(&n, "transB", 0) != 0) == f->turned;
        return (linear){as_it_is ? n.in[1] : transposed(f, n.in[1]), INV_NONE};
    }
    const linear a = emit_parts(f, n.in[0]);
    if (is_sum(&n)) {
        const linear b = emit_parts(f, n.in[1]);
        return (linear){joined(f, n.op->name, a.matrix, b.matrix), joined(f, n.op->name, a.rest, b.rest)};
    }
    if (inv_op_is(&n, "Neg")) return (linear){joined(f, "Sub", INV_NONE, a.matrix), joined(f, "Sub", INV_NONE, a.rest)};
    return (linear){a.matrix == INV_NONE ? INV_NONE : emit(f, n.op->name, a.matrix, beside(f, n.in[1])),
                    a.rest == INV_NONE ? INV_NONE : emit(f, n.op->name, a.rest, n.in[1])};
}

inv_status inv_spell_linear_sum(const inv_speller *s, const inv_node *node, inv_id *to)
{
    sum f = {.s = s, .g = s->g};
    inv_graph *g = s->g;
    *to = INV_NONE;
    if (!is_sum(node) || (f.x = find_x(&f, node)) == INV_NONE) return INV_OK;
    const inv_id y = node->out[0];
    const inv_shape *x = &inv_val(g, f.x)->shape;
    f.y = inv_val(g, y)->shape;
    f.looks = 0;
    if (x->rank < 2 || f.y.rank != x->rank || f.y.dim[x->rank - 1] < x->dim[x->rank - 1]) return INV_OK;
    if (f.y.dim[x->rank - 1] > MOST_COLUMNS || !is_linear(&f, y, node) || !f.products || f.terms < 2) return INV_OK;
    const size_t order = g->order.n;
    const linear l = emit_parts(&f, y);
    const inv_id m = l.matrix == INV_NONE
                         ? INV_NONE
                         : inv_emit1(g, "MatMulT", INV_IN(f.x, l.matrix),
                                     INV_ATTRS(inv_attr_of_int("transA", 0), inv_attr_of_int("transB", f.turned)));
    *to = joined(&f, "Add", m, l.rest);
    if (g->failed == INV_E_NOMEM || g->arena.failed || s->scratch->failed) return INV_E_NOMEM;
    if (m != INV_NONE && *to != INV_NONE && inv_shape_equal(&inv_val(g, *to)->shape, &f.y)) return INV_OK;
    g->order.n = order;
    g->failed = INV_OK;
    *to = INV_NONE;
    return INV_OK;
}
