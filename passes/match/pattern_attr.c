/* SPDX-License-Identifier: Apache-2.0
 * Computes attributes of statements from what is bound, `name = function(arguments)`: one row for each function. The
 * patterns and results of spellings and the solve texts of rules may use all of them. Rules may come from plugins, so
 * an attribute may be absent, of another kind, or name axes that the values do not have: then there is no such
 * attribute, and the statement does not apply.
 * requires: a binding.  gives: inv_attr. Time: the ranks of the values, or the lengths of the lists. */
#include <string.h>

#include "core/base/shape.h"
#include "passes/match/pattern.h"

/* One call. The row says which of `list` and `x` the function may rely on. */
typedef struct attr_call {
    inv_graph *g;
    const inv_binding *b;
    const inv_node *node; /* the matched one; NULL: none */
    const inv_term *t;
    const inv_attr *list; /* the first argument as an attribute that is a list; NULL: it is none */
    const inv_shape *x;   /* extents of the value that the last argument names; NULL: it names none */
    inv_attr *out;        /* its name is set */
} attr_call;

static bool give_int(const attr_call *c, int64_t i)
{
    *c->out = inv_attr_of_int(c->out->name, i);
    return true;
}

static bool give_ints(const attr_call *c, size_t n, const int64_t *ints)
{
    if (ints) *c->out = inv_attr_of_ints(c->out->name, n, ints);
    return ints;
}

static int64_t *new_ints(const attr_call *c, size_t n) { return INV_ARENA_NEW(&c->g->arena, int64_t, n + 1); }

static bool give_extents(const attr_call *c, int first, int n)
{
    int64_t *ints = new_ints(c, (size_t)n);
    for (int i = 0; ints && i < n; i++) ints[i] = c->x->dim[first + i];
    return give_ints(c, (size_t)n, ints);
}

/* Counts an axis from the front: 0 to `rank`, which stands for no axis at all; -1: there is none of that number. */
static int axis_from_front(int64_t axis, int rank)
{
    return axis < -rank || axis > rank ? -1 : (int)(axis < 0 ? axis + rank : axis);
}

/* --- of a list --- */

static bool attr_only(const attr_call *c) { return c->list->n == 1 && give_int(c, c->list->ints[0]); }

static bool attr_at(const attr_call *c)
{
    const inv_attr *k = c->t->nargs > 1 ? inv_binding_attr(c->g, c->b, c->node, c->t->arg[1]) : NULL;
    return k && k->kind == INV_ATTR_INT && k->i >= 0 && (size_t)k->i < c->list->n && give_int(c, c->list->ints[k->i]);
}

static bool attr_ones(const attr_call *c)
{
    int64_t *ints = new_ints(c, c->list->n);
    for (size_t k = 0; ints && k < c->list->n; k++) ints[k] = 1;
    return give_ints(c, c->list->n, ints);
}

/* The inverse of a permutation, which has each of 0 to n - 1 once. */
static bool attr_invert(const attr_call *c)
{
    const int64_t *p = c->list->ints;
    const size_t n = c->list->n;
    int64_t *out = new_ints(c, n);
    for (size_t i = 0; out && i < n; i++) out[i] = -1;
    for (size_t i = 0; out && i < n; i++) {
        if (p[i] < 0 || (size_t)p[i] >= n || out[p[i]] >= 0) return false;
        out[p[i]] = (int64_t)i;
    }
    return give_ints(c, n, out);
}

/* The first of axes that reach to the last one of x. */
static bool attr_trailing(const attr_call *c)
{
    const int64_t n = (int64_t)c->list->n;
    for (int64_t i = 0; i < n; i++)
        if (c->list->ints[i] != c->x->rank - n + i) return false;
    return n > 0 && give_int(c, c->list->ints[0]);
}

/* --- of a value's extents --- */

static bool attr_last(const attr_call *c) { return give_int(c, c->x->rank - 1); }
static bool attr_shape(const attr_call *c) { return give_extents(c, 0, c->x->rank); }
static bool attr_column(const attr_call *c) { return c->x->dim[1] == 1 && give_extents(c, 0, 1); }
static bool attr_channels(const attr_call *c) { return give_extents(c, 1, 1); }

static bool attr_all_but_channels(const attr_call *c)
{
    int64_t *ints = new_ints(c, (size_t)c->x->rank);
    for (int d = 0; ints && d < c->x->rank; d++) ints[d > 1 ? d - 1 : 0] = d > 1 ? d : 0;
    return give_ints(c, (size_t)c->x->rank - 1, ints);
}

static bool attr_matrix(const attr_call *c)
{
    int64_t *ints = new_ints(c, 2);
    if (!ints) return false;
    ints[0] = c->x->dim[0];
    ints[1] = inv_shape_nelem(c->x) / (ints[0] ? ints[0] : 1);
    return give_ints(c, 2, ints);
}

static bool attr_channel(const attr_call *c)
{
    int64_t *ints = new_ints(c, (size_t)c->x->rank);
    for (int d = 0; ints && d < c->x->rank; d++) ints[d] = d == 1 ? c->x->dim[1] : 1;
    return give_ints(c, (size_t)c->x->rank, ints);
}

static bool attr_swap(const attr_call *c)
{
    const int n = c->x->rank;
    int64_t *ints = new_ints(c, (size_t)n);
    for (int d = 0; ints && d < n; d++) ints[d] = d + 2 == n ? n - 1 : d + 1 == n ? n - 2 : d;
    return give_ints(c, (size_t)n, ints);
}

/* --- with an attribute of the matched node --- */

/* Extents along `axis` of each value of the list. */
static bool attr_sizes(const attr_call *c)
{
    char *list = c->node ? inv_arena_printf(&c->g->arena, "%s...", c->t->arg[0]) : NULL;
    const int at = list ? inv_binding_find(c->b, list) : -1;
    int64_t *sizes = at < 0 ? NULL : new_ints(c, c->b->at[at].n);
    for (uint32_t k = 0; sizes && k < c->b->at[at].n; k++) {
        const inv_id v = c->b->at[at].id[k];
        if (v == INV_NONE) return false;
        const inv_shape *s = &inv_val(c->g, v)->shape;
        const int along = axis_from_front(inv_attr_int(c->node, "axis", 0), s->rank);
        if (along < 0 || along == s->rank) return false;
        sizes[k] = s->dim[along];
    }
    return sizes && give_ints(c, c->b->at[at].n, sizes);
}

/* x as rows: a row is everything from `axis` on, or one of the groups that its channels are in. */
static bool attr_rows(const attr_call *c)
{
    const inv_shape *s = c->x;
    int64_t *d = c->node ? new_ints(c, 3) : NULL;
    if (!d) return false;
    const int64_t groups = inv_attr_int(c->node, "groups", 0);
    const int rows = groups ? 1 : axis_from_front(inv_attr_int(c->node, "axis", -1), s->rank);
    if (groups < 0 || groups > inv_shape_nelem(s) || rows < 0 || rows > s->rank) return false;
    d[0] = d[1] = 1;
    for (int i = 0; i < rows; i++) d[1] *= s->dim[i];
    d[1] *= groups ? groups : 1;
    d[2] = d[1] ? inv_shape_nelem(s) / d[1] : 0;
    return d[2] > 0 && give_ints(c, 3, d);
}

/* --- the functions --- */

static const struct {
    const char *name;
    bool (*f)(const attr_call *);
    bool list; /* the first argument is a list */
    int rank;  /* the last argument is a value of so many axes at least; -1: it need not be one */
} functions[] = {{"only", attr_only, true, -1},         {"at", attr_at, true, -1},
                 {"ones", attr_ones, true, -1},         {"invert", attr_invert, true, -1},
                 {"trailing", attr_trailing, true, 1},  {"last", attr_last, false, 1},
                 {"shape", attr_shape, false, 0},       {"column", attr_column, false, 2},
                 {"channels", attr_channels, false, 2}, {"all_but_channels", attr_all_but_channels, false, 2},
                 {"matrix", attr_matrix, false, 1},     {"channel", attr_channel, false, 0},
                 {"swap", attr_swap, false, 2},         {"sizes", attr_sizes, false, -1},
                 {"rows", attr_rows, false, 0}};

static bool call_function(attr_call *c)
{
    const inv_attr *list = c->t->nargs ? inv_binding_attr(c->g, c->b, c->node, c->t->arg[0]) : NULL;
    const inv_id v = c->t->nargs ? inv_binding_get(c->b, c->t->arg[c->t->nargs - 1]) : INV_NONE;
    if (!c->t->nargs) return false;
    c->list = list && list->kind == INV_ATTR_INTS ? list : NULL;
    c->x = v == INV_NONE ? NULL : &inv_val(c->g, v)->shape;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, c->t->what) == 0)
            return (c->list || !functions[i].list) &&
                   (functions[i].rank < 0 || (c->x && c->x->rank >= functions[i].rank)) && functions[i].f(c);
    return false;
}

bool inv_pattern_attr(inv_graph *g, const inv_binding *b, const inv_node *node, const inv_pattern_stmt *s, uint32_t k,
                      inv_attr *out)
{
    const inv_term *t = &s->attr[k];
    *out = s->s->attr[k];
    if (out->kind != INV_ATTR_OTHER) return true;
    const char *name = out->name;
    if (t->is_call) return call_function(&(attr_call){.g = g, .b = b, .node = node, .t = t, .out = out});
    const inv_attr *from = inv_binding_attr(g, b, node, t->text);
    const int at = inv_binding_find(b, t->text);
    if (!from && (at < 0 || !b->at[at].is_number)) return false;
    *out = from ? *from : inv_attr_of_float(name, b->at[at].number);
    out->name = name;
    return true;
}
