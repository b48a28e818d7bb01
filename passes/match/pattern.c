/* SPDX-License-Identifier: Apache-2.0
 * Finds whether one statement of a pattern fits one node, and what its names stand for then.
 *
 * A statement is compiled once: its operands and attributes become terms. Binding goes through attributes, outputs and
 * inputs; each name is bound to what stands there, and a name that is bound already must stand for the same. That takes
 * time in proportion to the names of the pattern for each operand, and patterns have a dozen at most.
 * requires: statements that were checked when they were registered (core/rules/rule.c), or are the program's own.
 * gives: inv_pattern, and names in an inv_binding. */
#include "passes/match/pattern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/shape.h"
#include "core/graph/text.h"

/* --- bindings --- */

bool inv_binding_init(inv_binding *b, inv_arena *a, uint32_t room)
{
    *b = (inv_binding){INV_ARENA_NEW(a, inv_bound_name, room + 1), 0, room};
    return b->at;
}

int inv_binding_find(const inv_binding *b, const char *name)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (strcmp(b->at[i].name, name) == 0) return (int)i;
    return -1;
}

inv_id inv_binding_get(const inv_binding *b, const char *name)
{
    const int i = inv_binding_find(b, name);
    return i >= 0 && b->at[i].n > 0 ? b->at[i].id[0] : INV_NONE;
}

static bool add_bound(inv_binding *b, inv_bound_name x)
{
    if (b->n == b->room) return false;
    b->at[b->n++] = x;
    return true;
}

bool inv_binding_set(inv_binding *b, const char *name, const inv_id *ids, uint32_t n)
{
    const int i = inv_binding_find(b, name);
    if (i < 0) return add_bound(b, (inv_bound_name){.name = name, .id = ids, .n = n});
    return !b->at[i].attr && b->at[i].n == n && (n == 0 || memcmp(b->at[i].id, ids, n * sizeof *ids) == 0);
}

static bool bind_attr(inv_binding *b, const char *name, const inv_attr *attr)
{
    const int i = inv_binding_find(b, name);
    if (i < 0) return add_bound(b, (inv_bound_name){.name = name, .attr = attr});
    return b->at[i].attr && inv_attr_near(attr, b->at[i].attr);
}

static bool bind_number(inv_binding *b, const char *name, const inv_id *v, double number)
{
    const int i = inv_binding_find(b, name);
    if (i < 0)
        return add_bound(b, (inv_bound_name){.name = name, .id = v, .n = 1, .is_number = true, .number = number});
    return b->at[i].is_number && b->at[i].number == number;
}

const inv_attr *inv_binding_attr(const inv_graph *g, const inv_binding *b, const inv_node *node, const char *name)
{
    const int at = inv_binding_find(b, name);
    if (at >= 0 && b->at[at].attr) return b->at[at].attr;
    const char *dot = strrchr(name, '.');
    if (!dot) return node ? inv_attr_find(node, name) : NULL;
    for (uint32_t i = 0; i < b->n; i++) {
        const inv_bound_name *x = &b->at[i];
        if (strlen(x->name) != (size_t)(dot - name) || memcmp(x->name, name, (size_t)(dot - name)) != 0 || !x->n)
            continue;
        const inv_id def = inv_val(g, x->id[0])->def;
        return def == INV_NONE ? NULL : inv_attr_find(inv_nod(g, def), dot + 1);
    }
    return NULL;
}

/* --- terms --- */

bool inv_is_variadic(const char *name)
{
    const size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, "...") == 0;
}

bool inv_stmt_is_region(const inv_stmt *s) { return strcmp(s->op, "region") == 0; }

bool inv_term_is(const inv_term *t, const char *what) { return t->is_call && strcmp(t->what, what) == 0; }

static inv_status compile_term(inv_arena *a, const char *text, bool numbers, inv_term *out)
{
    *out = (inv_term){.text = text, .what = text};
    out->is_number = numbers && inv_word_number(text, &out->number);
    const char *p = strchr(text, '(');
    if (!p) return INV_OK;
    out->is_call = true;
    out->what = inv_arena_strndup(a, text, (size_t)(p - text));
    if (!out->what) return INV_E_NOMEM;
    while ((*p == '(' || *p == ',') && out->nargs < INV_TERM_ARGS) {
        const size_t n = strcspn(++p, ",)");
        const char *arg = inv_arena_strndup(a, p, n);
        if (!arg) return INV_E_NOMEM;
        out->arg[out->nargs++] = arg;
        p += n;
    }
    return INV_OK;
}

inv_status inv_pattern_compile(inv_arena *a, const inv_stmts *list, bool numbers, inv_pattern *out)
{
    *out = (inv_pattern){INV_ARENA_NEW(a, inv_pattern_stmt, list->n + 1), list->n};
    if (!out->at) return INV_E_NOMEM;
    for (size_t i = 0; i < list->n; i++) {
        inv_pattern_stmt *to = &out->at[i];
        const inv_stmt *s = to->s = &list->at[i];
        to->in = INV_ARENA_NEW(a, inv_term, s->nin + 1);
        to->attr = INV_ARENA_NEW(a, inv_term, s->nattr + 1);
        if (!to->in || !to->attr) return INV_E_NOMEM;
        for (uint32_t k = 0; k < s->nin; k++) {
            INV_TRY(compile_term(a, s->in[k], numbers, &to->in[k]));
            if (inv_term_is(&to->in[k], "param")) s->in[k] = to->in[k].arg[0];
        }
        for (uint32_t k = 0; k < s->nattr; k++)
            if (s->attr[k].kind == INV_ATTR_OTHER)
                INV_TRY(compile_term(a, s->attr[k].s ? s->attr[k].s : "", numbers, &to->attr[k]));
    }
    return INV_OK;
}

bool inv_term_count(const inv_graph *g, const inv_binding *b, const inv_node *node, const inv_term *t, double *out)
{
    const inv_id x = inv_binding_get(b, t->nargs ? t->arg[0] : "");
    int64_t one = 0;
    if (x == INV_NONE) return false;
    const inv_shape *s = &inv_val(g, x)->shape;
    *out = 1;
    if (t->nargs < 2) {
        for (int d = 0; d < s->rank; d++) *out *= (double)s->dim[d];
        return inv_shape_is_static(s) && *out > 0;
    }
    const inv_attr *attr = inv_word_int(t->arg[1], &one) ? NULL : inv_binding_attr(g, b, node, t->arg[1]);
    if (attr && attr->kind == INV_ATTR_INT) one = attr->i;
    else if (attr ? attr->kind != INV_ATTR_INTS : !inv_word_int(t->arg[1], &one)) return false;
    const bool list = attr && attr->kind == INV_ATTR_INTS;
    for (size_t i = 0; i < (list ? attr->n : 1); i++) {
        const int64_t axis = list ? attr->ints[i] : one, at = axis < 0 ? axis + s->rank : axis;
        if (at < 0 || at >= s->rank) return false;
        *out *= (double)s->dim[at];
        if (s->dim[at] <= 0) return false;
    }
    return true;
}

/* --- comparing --- */

bool inv_number_near(double a, double b) { return a == b || fabs(a - b) <= 0x1p-23 * fabs(b); }

bool inv_attr_near(const inv_attr *a, const inv_attr *b)
{
    const bool numbers = (a->kind == INV_ATTR_INT || a->kind == INV_ATTR_FLOAT) &&
                         (b->kind == INV_ATTR_INT || b->kind == INV_ATTR_FLOAT);
    if (numbers)
        return inv_number_near(a->kind == INV_ATTR_INT ? (double)a->i : a->f,
                               b->kind == INV_ATTR_INT ? (double)b->i : b->f);
    return a->kind == INV_ATTR_INTS && b->kind == INV_ATTR_INTS && a->n == b->n &&
           (a->n == 0 || memcmp(a->ints, b->ints, a->n * sizeof *a->ints) == 0);
}

bool inv_value_uniform(const inv_graph *g, inv_id v, double *out)
{
    const inv_value *x = inv_val(g, v);
    bool fixed = x->role == INV_ROLE_CONST ||
                 (x->role == INV_ROLE_PARAM && x->shape.rank == 0 && !x->state && !x->trainable && inv_value_fixed(x));
    int64_t n = fixed && x->data.bytes && inv_dtype_is_float(x->dtype) ? inv_shape_nelem(&x->data.shape) : 0;
    for (int64_t i = 0; i < n; i++) {
        double e = inv_elem_double(x->data.bytes, x->data.dtype, (size_t)i);
        if (i == 0) *out = e;
        else if (e != *out) return false;
    }
    return n > 0;
}

/* --- binding a statement --- */

static bool names_op(const char *alternatives, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = alternatives; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == '|' || p[n] == 0)) return true;
    return false;
}

/* Without a domain a pattern speaks of canonical operators, not of somebody else's of that name. */
static bool of_domain(const inv_stmt *s, const inv_node *n)
{
    const char *d = n->op->domain;
    return *s->domain ? strcmp(d, s->domain) == 0 : !*d || strcmp(d, "ai.invonnx.ir") == 0;
}

bool inv_pattern_names(const inv_pattern_stmt *s, const inv_node *n)
{
    return s->op ? n->op == s->op : names_op(s->s->op, n->op->name) && of_domain(s->s, n);
}

/* const(c), const(c, lo, hi), power2(c): the number is known as c from then on. */
static bool bind_wanted_constant(const inv_term *t, const inv_id *v, double number, inv_binding *b)
{
    double lo = -INFINITY, hi = INFINITY;
    int exponent;
    if (inv_term_is(t, "power2")) { /* float32 has its reciprocal as well */
        if (fabs(frexp(number, &exponent)) != 0.5 || abs(exponent) >= 120) return false;
    } else if (t->nargs == 3 && (!inv_word_double(t->arg[1], &lo) || !inv_word_double(t->arg[2], &hi))) {
        return false;
    }
    return number >= lo && number <= hi && bind_number(b, t->arg[0], v, number);
}

static bool bind_operand(const inv_graph *g, const bool *active, const inv_term *t, const inv_id *v, inv_binding *b)
{
    double c;
    if (*v == INV_NONE) return false;
    if (t->is_number) return inv_value_uniform(g, *v, &c) && inv_number_near(c, t->number);
    if (inv_term_is(t, "const") || inv_term_is(t, "power2"))
        return inv_value_uniform(g, *v, &c) && bind_wanted_constant(t, v, c, b);
    if (inv_term_is(t, "count") || inv_term_is(t, "share") || inv_term_is(t, "inverse")) return true;
    if (inv_term_is(t, "param") && active[*v]) return false;
    return inv_binding_set(b, t->is_call ? t->arg[0] : t->text, v, 1);
}

static bool bind_attrs(const inv_pattern_stmt *s, const inv_node *n, inv_binding *b)
{
    for (uint32_t k = 0; k < s->s->nattr; k++) {
        const inv_attr *want = &s->s->attr[k], *have = inv_attr_find(n, want->name);
        if (!have) return false;
        if (want->kind != INV_ATTR_OTHER ? !inv_attr_near(have, want)
                                         : !s->attr[k].is_call && !bind_attr(b, s->attr[k].text, have))
            return false;
    }
    return !s->op || s->s->nattr == n->nattr;
}

/* Operands that are left out at the end are as good as none. */
static uint32_t count_given(const inv_id *ids, uint32_t n)
{
    while (n > 0 && ids[n - 1] == INV_NONE) n--;
    return n;
}

bool inv_pattern_bind(const inv_graph *g, const bool *active, const inv_pattern_stmt *s, const inv_node *n, bool swap,
                      inv_binding *b)
{
    const inv_stmt *st = s->s;
    const bool in_list = st->nin == 1 && inv_is_variadic(st->in[0]);
    const bool out_list = st->nout == 1 && inv_is_variadic(st->out[0]);
    if (!inv_pattern_names(s, n)) return false;
    if (swap && (!(n->op->flags & INV_OP_COMMUTATIVE) || n->nin < 2 || n->in[0] == n->in[1] || in_list)) return false;
    if (!bind_attrs(s, n, b)) return false;
    if (!out_list && count_given(n->out, n->nout) != st->nout) return false;
    if (!in_list && count_given(n->in, n->nin) != st->nin) return false;
    if (out_list && !inv_binding_set(b, st->out[0], n->out, n->nout)) return false;
    for (uint32_t k = 0; k < st->nout && !out_list; k++)
        if (n->out[k] == INV_NONE || !inv_binding_set(b, st->out[k], &n->out[k], 1)) return false;
    if (in_list) return inv_binding_set(b, st->in[0], n->in, n->nin);
    for (uint32_t k = 0; k < st->nin; k++)
        if (!bind_operand(g, active, &s->in[k], &n->in[swap && k < 2 ? 1 - k : k], b)) return false;
    return true;
}
