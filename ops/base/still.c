/* SPDX-License-Identifier: Apache-2.0
 * Where a value is nowhere below zero, all that it is made of stands still wherever it is zero: a sum of squares has
 * the gradient 0 there. A root or a logarithm of it has an infinite slope at that point, and 0 times infinity is no
 * number, though the norm of a vector has the subgradient 0 at the zero vector. */
#include <string.h>

#include "ops/base/still.h"

enum { MOST_LOOKS = 64, MOST_ENTRIES = 1 << 20 };

static bool is_one_of(const char *op, const char *const *names)
{
    while (*names && strcmp(op, *names) != 0) names++;
    return *names != NULL;
}

/* As the file has it: exporters fold squares of weights. */
static bool stored_not_below_zero(const inv_value *v)
{
    if ((v->role != INV_ROLE_CONST && v->role != INV_ROLE_PARAM) || !v->data.bytes) return false;
    if (!inv_dtype_is_float(v->data.dtype)) return false;
    const int64_t n = inv_shape_nelem(&v->data.shape);
    for (int64_t i = 0; i < n && n <= MOST_ENTRIES; i++)
        if (!(inv_elem_double(v->data.bytes, v->data.dtype, (size_t)i) >= 0)) return false;
    return n > 0 && n <= MOST_ENTRIES;
}

/* The number that all entries of an operand are; NaN. */
static double number(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    const bool known = inv_const_known(g, v) && x->data.bytes && inv_shape_nelem(&x->data.shape) == 1;
    return known ? inv_elem_double(x->data.bytes, x->data.dtype, 0) : NAN;
}

/* The value that v is another arrangement of. */
static inv_id arranged(const inv_graph *g, inv_id v)
{
    static const char *const moves[] = {"View", "Transpose", NULL};
    for (int i = 0; i < MOST_LOOKS && inv_val(g, v)->role == INV_ROLE_NODE; i++) {
        const inv_node *n = inv_nod(g, inv_val(g, v)->def);
        if (!is_one_of(n->op_type, moves)) break;
        v = n->in[0];
    }
    return v;
}

/* Products of vectors with themselves. */
static bool product_is_still(const inv_graph *g, const inv_node *n)
{
    const inv_shape *s = inv_shape_of_value(g, n->out[0]);
    return s->rank >= 2 && s->dim[s->rank - 1] == 1 && s->dim[s->rank - 2] == 1 &&
           arranged(g, n->in[0]) == arranged(g, n->in[1]);
}

typedef struct look {
    const inv_graph *g;
    int left, found; /* operands that may still be looked at; squares and their kin that were */
} look;

static bool found(look *l, bool is)
{
    l->found += is;
    return is;
}

static bool is_still(look *l, inv_id v)
{
    static const char *const always[] = {"Exp", "Abs", "Relu", "Sigmoid", "Softplus", "Softmax", NULL};
    static const char *const first[] = {
        "View",           "Transpose",     "BroadcastTo",   "SliceRange", "PadRange", "ReduceSumAxes",
        "ReduceMeanAxes", "ReduceMaxAxes", "ReduceMinAxes", "SumTo",      "SumPoolN", "AveragePoolN",
        "MaxPoolN",       "Permute",       "SplitSizes",    "Gather",     "Sqrt",     NULL};
    static const char *const all[] = {"Add", "Mul", "Max", "Min", "Div", "Concat", "Where", NULL};
    const inv_graph *g = l->g;
    const inv_value *x = inv_val(g, v);
    if (--l->left < 0) return false;
    if (x->role != INV_ROLE_NODE || x->def == INV_NONE) return stored_not_below_zero(x);
    const inv_node *n = inv_nod(g, x->def);
    const char *op = n->op_type;
    if (is_one_of(op, always) || (strcmp(op, "Mul") == 0 && n->in[0] == n->in[1])) return found(l, true);
    if (is_one_of(op, first)) return is_still(l, n->in[0]);
    if (strcmp(op, "Pow") == 0) {
        const double e = number(g, n->in[1]);
        return found(l, e > 1 && fmod(e, 2) == 0) || (e > 0 && is_still(l, n->in[0]));
    }
    if (strcmp(op, "MatMulT") == 0) return found(l, product_is_still(g, n));
    if (strcmp(op, "ClipRange") == 0)
        return found(l, inv_attr_float(n, "min", -HUGE_VAL) >= 0) || is_still(l, n->in[0]);
    if (!is_one_of(op, all)) return false;
    for (uint32_t k = strcmp(op, "Where") == 0; k < n->nin; k++)
        if (!is_still(l, n->in[k])) return false;
    return true;
}

bool inv_stands_still(const inv_graph *g, inv_id v)
{
    look l = {g, MOST_LOOKS, 0};
    return is_still(&l, v) && l.found;
}

inv_id inv_still_where(inv_graph *g, inv_id y, double at, inv_id slope)
{
    const inv_dtype t = inv_val(g, y)->dtype;
    const inv_id there = inv_emit1(g, "Equal", INV_IN(y, inv_graph_const_real(g, t, at)), INV_NOATTR);
    return inv_emit1(g, "Where", INV_IN(there, inv_graph_const_real(g, t, 0), slope), INV_NOATTR);
}
