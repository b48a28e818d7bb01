/* SPDX-License-Identifier: Apache-2.0
 * The gradient of a large table, some of its rows at a time, where weights are updated early. That of an embedding, or
 * of the last product of a language model, or of both, if they are tied, is as large as the table; and each row of it
 * goes into the update of that row alone:
 *
 *     d = MatMulT<transA>(gp, h)            for some rows of W, as a parameter Wi by itself, after the others:
 *     d = GatherGrad(gx, ids, d)            p = h Wi^T, gp = its gradient, d = gp^T h
 *     update(W, d)                          d = GatherGrad(gx, ids, d), of ids among these rows
 *                                           update(Wi, d)
 *
 * so no more than these rows of it are there at once. What it takes is that the columns of gp that belong to the rows
 * are computed a second time, behind all that reads W as a whole: logits again, from what is left of them by row
 * (CrossEntropyMean's third output). It is done for whatever memory mode, since all are to give the same bits.
 * requires: plan->grad, sums in place.  gives: plan->grad with a slot for each section.  O(nodes + sections). */
#include <string.h>

#include "ops/base/emit.h"
#include "ops/base/rows.h"
#include "ops/train/adam8.h"
#include "passes/autodiff/autodiff.h"

#define LEAST_BYTES (8 << 20) /* of a gradient that is worth it */
#define ROOM (12 << 20)       /* for some rows of it and what they are computed from */
enum {
    MOST_SECTIONS = 64,
    MOST_SUMMANDS = 64,
    BOUNDARY = 16 * INV_BLOCK8, /* sections begin at multiples: codes, scales and weights at whole lines of 64 bytes */
    SLOT = 2                    /* of `sum` */
};

typedef struct tabled {
    inv_graph *g;
    inv_id table;
    int64_t rows, width, first, count; /* of the table; of the present section */
    inv_shape shape;                   /* of that */
    inv_id section, sections[MOST_SECTIONS], grads[MOST_SECTIONS];
    uint32_t nsection;
    inv_id summand[MOST_SUMMANDS]; /* nodes, the last one first */
    uint32_t nsummand;
    size_t nvalue; /* before anything is emitted */
    inv_id *made;  /* per value: its columns that belong to the present section */
} tabled;

/* --- columns --- */

static inv_id columns(tabled *t, inv_id v);

/* Shape s, with a column for each row of the section. */
static inv_shape narrowed(const tabled *t, const inv_shape *s)
{
    inv_shape shape = *s;
    shape.dim[shape.rank - 1] = t->count;
    return shape;
}

static bool is_wide(const tabled *t, inv_id v)
{
    const inv_shape *s = &inv_val(t->g, v)->shape;
    return s->rank >= 2 && s->dim[s->rank - 1] == t->rows;
}

/* What an element-wise node reads in place of operand v. INV_NONE: it is not known. */
static inv_id operand_columns(tabled *t, inv_id v, const inv_shape *out)
{
    const inv_value *x = inv_val(t->g, v);
    const int64_t n = inv_shape_nelem(&x->shape);
    if (n == 1) return v;
    if (is_wide(t, v) && n == inv_shape_nelem(out)) return columns(t, v);
    if (x->role != INV_ROLE_PARAM || x->whole != INV_NONE || n != t->rows || x->shape.dim[x->shape.rank - 1] != n)
        return INV_NONE;
    if (t->made[v] != INV_NONE) return t->made[v];
    const inv_shape s = narrowed(t, &x->shape);
    return t->made[v] = inv_graph_section(t->g, v, t->first, &s);
}

/* The node with the operands in[] and, in place of attributes of the same names, attr[]. */
static inv_id emit_changed(tabled *t, const inv_node *n, const inv_id *in, uint32_t nattr, const inv_attr *attr)
{
    inv_attr *all = INV_ARENA_NEW(&t->g->arena, inv_attr, n->nattr + nattr);
    inv_id out = INV_NONE;
    uint32_t count = 0;
    if (!all) return INV_NONE;
    for (uint32_t i = 0; i < n->nattr; i++) {
        bool changes = false;
        for (uint32_t k = 0; k < nattr; k++) changes |= strcmp(attr[k].name, n->attr[i].name) == 0;
        if (!changes) all[count++] = n->attr[i];
    }
    for (uint32_t k = 0; k < nattr; k++) all[count++] = attr[k];
    inv_emit_for(t->g, n);
    return inv_emit_op(t->g, n->op, 1, n->nin, in, count, all, &out) == INV_NONE ? INV_NONE : out;
}

static bool multiplies_table(const tabled *t, const inv_node *n)
{
    if (n->nin < 2 || n->in[1] != t->table) return false;
    if (inv_op_is(n, "MatMulT")) return !inv_attr_int(n, "transA", 0) && inv_attr_int(n, "transB", 0) && n->nin == SLOT;
    return inv_op_is(n, "MatMulPacked") && inv_attr_int(n, "trans", 0) && !inv_attr_int(n, "left", 0);
}

static bool differentiates_loss(const inv_graph *g, const inv_node *n)
{
    const int64_t axis = inv_attr_int(n, "axis", 1);
    return inv_op_is(n, "CrossEntropyGrad") && n->nin == 6 && inv_val(g, n->in[1])->dtype == INV_I64 &&
           (axis < 0 || axis == inv_val(g, n->in[0])->shape.rank - 1);
}

/* The columns of what node n gives, which is wide. INV_NONE: g->failed, or there is no way. */
static inv_id emit_columns(tabled *t, const inv_node *n)
{
    inv_graph *g = t->g;
    const inv_shape out = inv_val(g, n->out[0])->shape, narrow = narrowed(t, &out);
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, n->nin + 1);
    if (!in) return INV_NONE;
    memcpy(in, n->in, n->nin * sizeof *in);
    if (multiplies_table(t, n)) {
        const inv_attr shape = inv_attr_of_shape("shape", &t->shape);
        in[1] = t->section;
        return emit_changed(t, n, in, inv_op_is(n, "MatMulPacked"), &shape);
    }
    if (differentiates_loss(g, n)) {
        const inv_attr attr[] = {inv_attr_of_int("first", t->first), inv_attr_of_int("classes", t->rows)};
        in[0] = columns(t, n->in[0]);
        return in[0] == INV_NONE ? INV_NONE : emit_changed(t, n, in, 2, attr);
    }
    if (inv_op_is(n, "View")) {
        in[0] = is_wide(t, n->in[0]) ? columns(t, n->in[0]) : INV_NONE;
        return in[0] == INV_NONE ? INV_NONE : inv_emit_view(g, in[0], &narrow);
    }
    if (!(n->op->flags & INV_OP_ELEMENTWISE) || n->op->flags & INV_OP_RANDOM) return INV_NONE;
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE) continue;
        in[k] = operand_columns(t, n->in[k], &out);
        if (in[k] == INV_NONE) return INV_NONE;
    }
    return emit_changed(t, n, in, 0, NULL);
}

static inv_id columns(tabled *t, inv_id v)
{
    const inv_node *n = v < t->nvalue ? inv_def_node(t->g, v) : NULL;
    if (!n || n->nout != 1 || t->g->failed) return INV_NONE;
    if (t->made[v] != INV_NONE) return t->made[v];
    const inv_node copy = *n; /* emitting moves the array */
    return t->made[v] = emit_columns(t, &copy);
}

/* --- sections --- */

static bool is_product(const inv_node *n)
{
    return inv_op_is(n, "MatMulT") && inv_attr_int(n, "transA", 0) && !inv_attr_int(n, "transB", 0);
}

/* Lists what the gradient is the sum of; false: it is of another kind. */
static bool find_summands(tabled *t, inv_id grad, const uint32_t *nreader)
{
    const inv_graph *g = t->g;
    for (t->nsummand = 0; t->nsummand < MOST_SUMMANDS;) {
        const inv_node *n = inv_def_node(g, grad);
        const bool gathers = inv_op_is(n, "GatherGrad") && inv_attr_int(n, "axis", 0) == 0;
        if (!n || !(gathers || is_product(n)) || inv_val(g, grad)->keep || nreader[grad] != (t->nsummand > 0)) break;
        if (!gathers && (!is_wide(t, n->in[0]) || inv_val(g, n->in[0])->shape.rank != 2)) break;
        t->summand[t->nsummand++] = inv_val(g, grad)->def;
        if (n->nin <= SLOT || n->in[SLOT] == INV_NONE) return true;
        grad = n->in[SLOT];
    }
    return false;
}

/* Rows of a section: whole lines, and about ROOM with what the rows are computed from. */
static int64_t section_rows(const tabled *t)
{
    int64_t step = BOUNDARY, most = 0;
    while (step % 2 == 0 && step / 2 * t->width % BOUNDARY == 0) step /= 2;
    for (uint32_t i = 0; i < t->nsummand; i++) {
        const inv_node *n = inv_nod(t->g, t->summand[i]);
        const int64_t each = is_product(n) ? inv_val(t->g, n->in[1])->shape.dim[0] : 0;
        most = each > most ? each : most;
    }
    const int64_t size = (int64_t)inv_dtype_size(t->g->real), fit = ROOM / ((most + t->width) * size);
    const int64_t least = t->rows / MOST_SECTIONS + 1, rows = fit > least ? fit : least;
    return (rows + step - 1) / step * step;
}

/* Adds summand i for the section onto `sum`. */
static inv_id emit_summand(tabled *t, uint32_t i, inv_id sum)
{
    const inv_node n = *inv_nod(t->g, t->summand[i]);
    inv_id in[SLOT + 1] = {n.in[0], n.in[1], sum};
    inv_emit_for(t->g, &n);
    const uint32_t nin = sum == INV_NONE ? SLOT : SLOT + 1;
    if (!is_product(&n))
        return inv_emit1(t->g, "GatherGrad", nin, in,
                         INV_ATTRS(inv_attr_of_int("axis", 0), inv_attr_of_shape("shape", &t->shape),
                                   inv_attr_of_int("first", t->first), inv_attr_of_int("extent", t->rows)));
    in[0] = columns(t, n.in[0]);
    return in[0] == INV_NONE ? INV_NONE : inv_emit1(t->g, "MatMulT", nin, in, n.nattr, n.attr);
}

/* Emits the gradient of every section; false: g->failed, or there is no way. */
static bool emit_sections(tabled *t)
{
    const int64_t each = section_rows(t);
    for (t->nsection = 0, t->first = 0; t->first < t->rows; t->first += each) {
        t->count = t->rows - t->first < each ? t->rows - t->first : each;
        for (size_t v = 0; v < t->nvalue; v++) t->made[v] = INV_NONE;
        t->shape = inv_shape_of(2, (int64_t[]){t->count, t->width});
        t->section = inv_graph_section(t->g, t->table, t->first * t->width, &t->shape);
        inv_id sum = INV_NONE;
        for (uint32_t i = t->nsummand; i-- > 0;) {
            sum = t->section == INV_NONE ? INV_NONE : emit_summand(t, i, sum);
            if (sum == INV_NONE) return false;
        }
        t->sections[t->nsection] = t->section;
        t->grads[t->nsection++] = sum;
    }
    return true;
}

/* What was emitted from position `end` on goes to where the gradient was complete. Its summands are read no more. */
static inv_status take_place(inv_graph *g, size_t end, inv_id last)
{
    const inv_ids old = g->order;
    inv_ids now = {0};
    for (size_t i = 0; i < end; i++) {
        if (old.at[i] != last && !inv_vec_push(&g->arena, &now, old.at[i])) return INV_E_NOMEM;
        for (size_t k = end; old.at[i] == last && k < old.n; k++)
            if (!inv_vec_push(&g->arena, &now, old.at[k])) return INV_E_NOMEM;
    }
    g->order = now;
    return INV_OK;
}

/* Slot i of plan->grad becomes one for each section. */
static inv_status replace_slot(tabled *t, inv_plan *plan, size_t i)
{
    for (uint32_t k = 0; k < t->nsection; k++) {
        const inv_result_slot slot = {inv_val(t->g, t->sections[k])->name, t->grads[k]};
        if (k == 0) plan->grad.at[i] = slot;
        else if (!inv_vec_push(&t->g->arena, &plan->grad, slot)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status split_gradient(tabled *t, inv_plan *plan, size_t i, inv_arena *scratch)
{
    inv_graph *g = t->g;
    const size_t end = g->order.n;
    uint32_t *nreader = INV_ARENA_NEW(scratch, uint32_t, g->value.n + 1);
    t->made = INV_ARENA_NEW(scratch, inv_id, g->value.n + 1);
    t->nvalue = g->value.n;
    if (scratch->failed) return INV_E_NOMEM;
    for (size_t k = 0; k < end; k++) {
        const inv_node *n = inv_nod(g, g->order.at[k]);
        for (uint32_t j = 0; j < n->nin; j++)
            if (n->in[j] != INV_NONE) nreader[n->in[j]]++;
    }
    if (!find_summands(t, plan->grad.at[i].value, nreader) || section_rows(t) >= t->rows) return INV_OK;
    const bool all = emit_sections(t);
    inv_emit_for(g, NULL);
    if (g->failed || g->arena.failed) return g->failed ? g->failed : INV_E_NOMEM;
    if (all) INV_TRY(take_place(g, end, t->summand[0]));
    else g->order.n = end;
    return all ? replace_slot(t, plan, i) : INV_OK;
}

inv_status inv_pass_grad_rows(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    inv_arena scratch;
    inv_status s = INV_OK;
    const size_t n = g->early ? plan->grad.n : 0;
    inv_arena_init(&scratch, g->ctx);
    g->phase = INV_BACKWARD;
    for (size_t i = 0; i < n && s == INV_OK; i++) {
        const inv_value *d = inv_val(g, plan->grad.at[i].value);
        tabled t = {.g = g, .table = inv_graph_find(g, plan->grad.at[i].name)};
        if (t.table == INV_NONE || d->shape.rank != 2 || inv_value_nbytes(d) < LEAST_BYTES) continue;
        if (!rq->accumulate && !inv_updated_by_element(g, rq->options, t.table)) continue;
        t.rows = d->shape.dim[0];
        t.width = d->shape.dim[1];
        s = split_gradient(&t, plan, i, &scratch);
    }
    inv_arena_fini(&scratch);
    return s;
}
