/* SPDX-License-Identifier: Apache-2.0
 * Replaces what exporters and authors spell out in several operators by the one canonical operator that says it. The
 * spellings are data (passes/canonical/spellings.inc). A row is a pattern and what stands for its last value, both
 * statements of the text form (docs/text-form.md). A pattern fits where its operators and attributes are there, no
 * other node reads what lies between, and the new value has type and extents of the old one. Operands of commutative
 * operators match in either order; attributes that the pattern does not list must be absent.
 *
 * The graph is swept in execution order until a sweep changes nothing, with simplification between, as a replacement
 * may complete another spelling. At each node those rows are tried whose last operator is the node's, and the first
 * that fits is taken. A sweep takes nodes times rows; most rows fail at their first operator.
 * requires, gives: canonical forward graph, after simplification. */
#include <math.h>
#include <string.h>

#include "core/graph/text.h"
#include "passes/canonical/canonical.h"
#include "passes/canonical/spelling.h"

/* A row as it is written. */
typedef struct spelling {
    const char *match, *solve;
    bool shared; /* others may read what lies between */
} spelling;

static const spelling spellings[] = {
#define SPELLING(match, solve) {match, solve, false},
#define SHARED(match, solve) {match, solve, true},
#include "passes/canonical/spellings.inc"
#undef SPELLING
#undef SHARED
};

/* --- rows, compiled --- */

/* Reads a text of a row, with alternative `nth` of every operator `A|B`; *n becomes how many there are. */
static inv_status compile_text(inv_speller *s, const char *text, size_t nth, inv_pattern *out, size_t *n)
{
    inv_stmts st;
    INV_TRY(inv_text_stmts(s->g->ctx, s->rows, text, &st));
    INV_CHECK(st.n > 0 && st.n <= INV_SPELLING_STEPS, s->g->ctx, INV_E_INTERNAL, "spelling of %zu statements: %s", st.n,
              text);
    INV_TRY(inv_pattern_compile(s->rows, &st, true, out));
    for (size_t i = 0; i < st.n; i++) {
        size_t at = 0;
        const char *name = st.at[i].op, *bar;
        for (const char *p = name; (bar = strchr(p, '|')) != NULL; p = bar + 1)
            if (at++ < nth) name = bar + 1;
        if (at >= *n) *n = at + 1;
        name = inv_arena_strndup(s->rows, name, strcspn(name, "|"));
        if (!name) return INV_E_NOMEM;
        const bool any = strcmp(st.at[i].domain, "ai.onnx") != 0; /* else what would have to be lowered is meant */
        const inv_op_def *op = any ? inv_registry_op(s->g->ctx->registry, "ai.invonnx.ir", name, 0) : NULL;
        if (!op) op = inv_registry_op(s->g->ctx->registry, "", name, 0);
        INV_CHECK(op, s->g->ctx, INV_E_INTERNAL, "spelling with an unknown operator %s", name);
        out->at[i].op = op;
    }
    return INV_OK;
}

static inv_status compile_rows(inv_speller *s)
{
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        for (size_t nth = 0, n = 1; nth < n; nth++) {
            inv_spelling_row row = {.shared = spellings[i].shared};
            INV_TRY(compile_text(s, spellings[i].match, nth, &row.match, &n));
            INV_TRY(compile_text(s, spellings[i].solve, nth, &row.solve, &n));
            if (!inv_vec_push(s->rows, &s->row, row)) return INV_E_NOMEM;
        }
    return INV_OK;
}

/* --- replacing --- */

/* Finds or makes an operand of a result: a value of the pattern, or a constant. A scalar of the pattern is taken
 * itself, so that one constant does not become two. */
static inv_id result_operand(const inv_attempt *a, const inv_term *t, inv_dtype type)
{
    inv_graph *g = a->s->g;
    if (t->is_number) return inv_graph_const_real(g, type, t->number);
    const int at = inv_binding_find(&a->value, t->is_call ? t->arg[0] : t->text);
    const inv_bound_name *n = at < 0 ? NULL : &a->value.at[at];
    if (!n || n->attr || (t->is_call && !n->is_number)) return INV_NONE;
    if (t->is_call) return inv_graph_const_real(g, type, inv_term_is(t, "inverse") ? 1 / n->number : -n->number);
    return n->is_number && inv_val(g, *n->id)->shape.rank > 0 ? inv_graph_const_real(g, type, n->number) : *n->id;
}

static inv_status emit_op(inv_graph *g, const inv_pattern_stmt *st, const inv_id *in, const inv_attr *attr, inv_id root,
                          inv_id *out)
{
    const uint32_t nattr = st->s->nattr;
    if (!st->op->lower) {
        (void)inv_emit_op(g, st->op, st->s->nout, st->s->nin, in, nattr, attr, out);
        return g->failed;
    }
    inv_id *ins = INV_ARENA_NEW(&g->arena, inv_id, st->s->nin + 1), *outs = INV_ARENA_NEW(&g->arena, inv_id, 1);
    inv_attr *attrs = INV_ARENA_NEW(&g->arena, inv_attr, nattr + 1);
    if (!ins || !outs || !attrs) return INV_E_NOMEM;
    memcpy(ins, in, st->s->nin * sizeof *in);
    if (nattr) memcpy(attrs, attr, nattr * sizeof *attr);
    outs[0] = root;
    const inv_node n = {.op = st->op,
                        .op_type = st->op->name,
                        .domain = st->op->domain,
                        .name = "",
                        .in = ins,
                        .out = outs,
                        .nin = st->s->nin,
                        .nout = 1,
                        .attr = attrs,
                        .nattr = nattr};
    INV_TRY(st->op->lower(g, &n, out));
    return g->failed;
}

static inv_status emit_step(inv_attempt *a, const inv_pattern_stmt *st, const inv_node *last, inv_id *out)
{
    inv_graph *g = a->s->g;
    enum { MAX_IN = 8, MAX_ATTR = 8 };
    inv_id in[MAX_IN];
    inv_attr attr[MAX_ATTR];
    inv_dtype type = inv_val(g, last->out[0])->dtype;
    if (st->s->nin > MAX_IN || st->s->nattr > MAX_ATTR) return INV_E_INTERNAL;
    for (uint32_t k = 0; k < st->s->nin; k++) {
        in[k] = result_operand(a, &st->in[k], type);
        if (in[k] == INV_NONE) return g->failed ? g->failed : INV_E_INTERNAL;
    }
    for (uint32_t k = 0; k < st->s->nattr; k++)
        if (!inv_pattern_attr(g, &a->value, NULL, st, k, &attr[k])) return INV_E_SHAPE;
    INV_TRY(emit_op(g, st, in, attr, last->out[0], out));
    for (uint32_t k = 0; k < st->s->nout; k++) {
        /* A result may be called like the pattern's, which is not needed any more. */
        int at = inv_binding_find(&a->value, st->s->out[k]);
        if (at >= 0) a->value.at[at] = (inv_bound_name){.name = st->s->out[k], .id = &out[k], .n = 1};
        else if (!inv_binding_set(&a->value, st->s->out[k], &out[k], 1)) return INV_E_INTERNAL;
        if (out[k] == INV_NONE) return INV_E_INTERNAL;
    }
    return INV_OK;
}

/* Emits what stands for the last value of the pattern; INV_NONE: it cannot be said so here. */
static inv_status emit_result(inv_attempt *a, inv_id *to)
{
    inv_graph *g = a->s->g;
    const inv_node last = *a->node[a->row->match.n - 1];
    const size_t order = g->order.n;
    inv_id out[INV_SPELLING_STEPS][4];
    inv_status st = INV_OK;
    for (size_t i = 0; i < a->row->match.n; i++) { /* emitting moves the array of nodes */
        inv_node *copy = INV_ARENA_NEW(a->s->scratch, inv_node, 1);
        if (!copy) return INV_E_NOMEM;
        *copy = *a->node[i];
        a->node[i] = copy;
    }
    for (size_t i = 0; i < a->row->solve.n && st == INV_OK; i++) st = emit_step(a, &a->row->solve.at[i], &last, out[i]);
    if (st == INV_E_NOMEM || g->arena.failed) return INV_E_NOMEM;
    inv_id made = st == INV_OK ? out[a->row->solve.n - 1][0] : INV_NONE, was = last.out[0];
    if (made != INV_NONE && made != was && inv_val(g, made)->dtype == inv_val(g, was)->dtype &&
        inv_shape_equal(&inv_val(g, made)->shape, &inv_val(g, was)->shape)) {
        *to = made;
        return INV_OK;
    }
    g->order.n = order; /* an operator that does not take what the row would give it */
    g->failed = INV_OK;
    return INV_OK;
}

/* --- the pass --- */

static inv_status respell(inv_speller *s, inv_id node, inv_id *to)
{
    *to = INV_NONE;
    for (size_t i = 0; i < s->row.n && *to == INV_NONE; i++) {
        const inv_spelling_row *r = &s->row.at[i];
        const inv_pattern_stmt *last = &r->match.at[r->match.n - 1];
        const inv_node *n = inv_nod(s->g, node);
        if (last->op != n->op || n->nout != 1 || n->out[0] == INV_NONE) continue;
        inv_dtype t = inv_val(s->g, n->out[0])->dtype;
        if (t != INV_F32 && t != INV_F64) return INV_OK;
        inv_bound_name names[INV_SPELLING_NAMES];
        inv_attempt a = {.s = s, .row = r, .value = {names, 0, INV_SPELLING_NAMES}};
        if (inv_binding_set(&a.value, last->s->out[0], &n->out[0], 1) && inv_spelling_fits(&a))
            INV_TRY(emit_result(&a, to));
    }
    if (*to == INV_NONE) INV_TRY(inv_spell_attention(s, inv_nod(s->g, node), to));
    if (*to == INV_NONE) INV_TRY(inv_spell_outer(s, inv_nod(s->g, node), to));
    return *to == INV_NONE ? inv_spell_linear_sum(s, inv_nod(s->g, node), to) : INV_OK;
}

/* Makes axes count from the front. */
static void count_from_front(const inv_graph *g, inv_node *n)
{
    for (uint32_t k = 0; k < n->nattr && n->nin > 0 && n->in[0] != INV_NONE; k++)
        if (strcmp(n->attr[k].name, "axis") == 0 && n->attr[k].kind == INV_ATTR_INT && n->attr[k].i < 0)
            n->attr[k].i += inv_val(g, n->in[0])->shape.rank;
}

/* Puts the operand that does not depend on inputs second, where two operands may change places. */
static inv_status tidy(inv_speller *s)
{
    inv_graph *g = s->g;
    bool *active = s->active = INV_ARENA_NEW(s->scratch, bool, g->value.n + 1);
    if (!active) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        bool any = n->nin == 0;
        count_from_front(g, n);
        for (uint32_t k = 0; k < n->nin; k++) any = any || (n->in[k] != INV_NONE && active[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) active[n->out[k]] = any;
        if (!(n->op->flags & INV_OP_COMMUTATIVE) || n->nin != 2 || active[n->in[0]] || !active[n->in[1]]) continue;
        inv_id own = n->in[0];
        n->in[0] = n->in[1];
        n->in[1] = own;
    }
    return INV_OK;
}

/* Lets `to` stand for `from`. A new value takes over the name; else the name is given up. */
static void replace_value(inv_speller *s, inv_id from, inv_id to)
{
    if (to >= s->fresh) inv_graph_swap_names(s->g, from, to);
    else s->taken_up[to] = true;
    inv_val(s->g, from)->same = to;
    s->changed = true;
}

static inv_status spelling_sweep(inv_speller *s)
{
    inv_graph *g = s->g;
    inv_ids old = g->order;
    s->fresh = g->value.n;
    s->changed = false;
    s->taken_up = INV_ARENA_NEW(s->scratch, bool, s->fresh + 1);
    if (!s->taken_up) return INV_E_NOMEM;
    INV_TRY(tidy(s));
    INV_TRY(inv_graph_uses(g, s->scratch, &s->uses));
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < old.n; i++) {
        inv_node *n = inv_nod(g, old.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) n->in[k] = inv_graph_stands(g, n->in[k]);
        inv_emit_for(g, n);
        inv_id to;
        INV_TRY(respell(s, old.at[i], &to));
        if (to != INV_NONE) replace_value(s, inv_nod(g, old.at[i])->out[0], to);
        else if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
    }
    inv_graph_stand_outputs(g);
    return inv_graph_prune(g);
}

static inv_status spelling_sweeps(inv_speller *s, bool *any)
{
    inv_arena scratch;
    *any = false;
    do {
        inv_arena_init(&scratch, s->g->ctx);
        s->scratch = &scratch;
        inv_status st = spelling_sweep(s);
        inv_arena_fini(&scratch);
        INV_TRY(st);
        *any = *any || s->changed;
    } while (s->changed);
    return INV_OK;
}

inv_status inv_pass_spelling(inv_graph *g)
{
    inv_arena rows;
    inv_arena_init(&rows, g->ctx);
    inv_speller s = {.g = g, .rows = &rows};
    inv_status st = compile_rows(&s);
    g->phase = INV_FORWARD;
    for (bool more = true; st == INV_OK && more;) { /* what stands now may let simplification go on, and back again */
        g->fold = true;
        st = spelling_sweeps(&s, &more);
        g->fold = false;
        if (st == INV_OK && more) st = inv_pass_simplify(g);
    }
    inv_arena_fini(&rows);
    inv_emit_for(g, NULL);
    return st == INV_OK ? g->failed : st;
}
