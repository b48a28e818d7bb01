/* SPDX-License-Identifier: Apache-2.0
 * The last product and the loss of a model with many classes, some rows at a time. The logits of a language model are
 * far larger than what they are computed from and than what is computed from them, and each row of them is for itself:
 *
 *     logits = h W + b                    h1, .., hn = Split(h)      for each part, one after the other:
 *     loss = CrossEntropyMean(logits)     logits = hi W + b          loss and gradient of these logits, and from it
 *                                                                    those of hi and W, summed up in place
 *
 * Gradients are computed at once, so no product is computed twice and one part of the logits is there at a time. It is
 * done for whatever memory mode, since all are to give the same bits, where the logits are large and nothing else reads
 * them; what it takes is that W is read once per part, so a part has enough rows to be worth that.
 * requires: forward and the loss.  gives: plan->head; in place_head the order of its nodes.  O(nodes). */
#include <string.h>

#include "core/base/glob.h"
#include "ops/base/emit.h"
#include "passes/autodiff/autodiff.h"

#define LEAST_BYTES (4 << 20) /* of logits that are worth it */
enum { LEAST_ROWS = 128, MOST_PARTS = 16 };

typedef struct head {
    inv_graph *g;
    inv_arena *scratch;
    const inv_request *rq;
    size_t at; /* position of the loss */
    int64_t rows, classes;
    inv_uses uses;
    bool *in;    /* per node: is split; the loss, too */
    bool *wide;  /* per value: has an entry per row and class, and a part of the head reads it */
    inv_id **of; /* per value: its parts */
    uint32_t nparts;
    size_t products;
} head;

/* --- what is split --- */

static bool is_wide(const head *h, inv_id v)
{
    const inv_shape *s = &inv_val(h->g, v)->shape;
    return s->rank >= 2 && s->dim[s->rank - 1] == h->classes && inv_shape_nelem(s) == h->rows * h->classes;
}

/* The same for every row: a number, or one per class. */
static bool is_same_for_rows(const head *h, inv_id v)
{
    const inv_shape *s = &inv_val(h->g, v)->shape;
    const int64_t n = inv_shape_nelem(s);
    return n == 1 || (n == h->classes && s->dim[s->rank - 1] == n);
}

/* A product of rows with one matrix for all. */
static bool is_product(const head *h, const inv_node *n)
{
    if (inv_op_is(n, "MatMulT"))
        return !inv_attr_int(n, "transA", 0) && n->nin == 2 && inv_val(h->g, n->in[1])->shape.rank == 2;
    size_t rank;
    (void)inv_attr_ints(n, "shape", &rank);
    return inv_op_is(n, "MatMulPacked") && !inv_attr_int(n, "left", 0) && rank == 2;
}

static bool is_read_by_head(const head *h, inv_id v)
{
    bool all = !inv_val(h->g, v)->keep &&
               !inv_glob_fits_any(h->rq->options->keep, h->rq->options->nkeep, inv_val(h->g, v)->name);
    for (uint32_t u = h->uses.start[v]; u < h->uses.start[v + 1] && all; u++) all = h->in[h->uses.node[u]];
    return all;
}

/* Whether each row of the node's result is computed from the same row of its operands. Notes which of them are wide. */
static bool takes_rows(head *h, const inv_node *n)
{
    if (n->nout != 1 || !is_wide(h, n->out[0]) || !is_read_by_head(h, n->out[0])) return false;
    if (is_product(h, n)) {
        h->products++;
        return true;
    }
    if (!(n->op->flags & INV_OP_ELEMENTWISE) && !inv_op_is(n, "View")) return false;
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE) continue;
        if (is_wide(h, n->in[k])) h->wide[n->in[k]] = true;
        else if (!is_same_for_rows(h, n->in[k])) return false;
    }
    return !(n->op->flags & (INV_OP_RANDOM | INV_OP_NO_GRAD));
}

/* Whether a block has nodes in the head and before it. */
static bool cuts_block(const head *h)
{
    const inv_matches *m = h->g->matches;
    bool any = false;
    for (size_t i = 0; m && i < m->block.n && !any; i++) {
        const inv_block *b = &m->block.at[i];
        uint32_t inside = 0;
        for (uint32_t k = 0; k < b->nnode; k++) inside += h->in[b->node[k]];
        any = inside > 0 && inside < b->nnode;
    }
    return any;
}

/* Inverses of what is split would start from logits as a whole. */
static void drop_inverses(const head *h)
{
    inv_matches *m = h->g->matches;
    size_t n = 0;
    for (size_t i = 0; m && i < m->edge.n; i++)
        if (!h->in[m->edge.at[i].forward]) m->edge.at[n++] = m->edge.at[i];
    if (m) m->edge.n = n;
}

/* Finds the nodes between products and the loss at position h->at. */
static bool find_head(head *h)
{
    const inv_graph *g = h->g;
    const inv_id id = g->order.at[h->at];
    const inv_node *loss = inv_nod(g, id);
    const inv_shape *s = &inv_val(g, loss->in[0])->shape;
    const int64_t axis = inv_attr_int(loss, "axis", 1);
    if (s->rank < 2 || (axis < 0 ? axis + s->rank : axis) != s->rank - 1) return false;
    h->classes = s->dim[s->rank - 1];
    h->rows = h->classes ? inv_shape_nelem(s) / h->classes : 0;
    const int64_t parts = h->rows / LEAST_ROWS;
    h->nparts = parts > MOST_PARTS ? MOST_PARTS : (uint32_t)parts;
    if (h->nparts < 2 || inv_value_nbytes(inv_val(g, loss->in[0])) < LEAST_BYTES) return false;
    memset(h->in, 0, g->node.n * sizeof *h->in);
    h->in[id] = h->wide[loss->in[0]] = true;
    for (size_t i = h->at; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool needed = false;
        for (uint32_t k = 0; k < n->nout && !needed; k++) needed = n->out[k] != INV_NONE && h->wide[n->out[k]];
        if (needed && !takes_rows(h, n)) return false;
        h->in[g->order.at[i]] = needed;
    }
    return h->products > 0 && !cuts_block(h);
}

/* --- splitting --- */

static inv_id *new_parts(head *h, inv_id v)
{
    inv_id *of = INV_ARENA_NEW(h->scratch, inv_id, h->nparts);
    for (uint32_t i = 0; of && i < h->nparts; i++) of[i] = v;
    return h->of[v] = of;
}

/* v as rows of its last axis (of labels: as one axis), some in each part. */
static inv_status split_rows(head *h, inv_id v, bool labels)
{
    inv_graph *g = h->g;
    const inv_shape *s = &inv_val(g, v)->shape;
    const int64_t two[2] = {h->rows, labels ? 1 : s->dim[s->rank - 1]};
    const inv_shape flat = inv_shape_of(labels ? 1 : 2, two);
    int64_t *sizes = INV_ARENA_NEW(h->scratch, int64_t, h->nparts);
    inv_id *of = new_parts(h, v);
    if (!of || !sizes) return INV_E_NOMEM;
    for (uint32_t i = 0; i < h->nparts; i++) sizes[i] = (i + 1) * h->rows / h->nparts - i * h->rows / h->nparts;
    const inv_id rows = inv_emit_view(g, v, &flat);
    const inv_id split = inv_emit(g, "SplitSizes", h->nparts, INV_IN(rows),
                                  INV_ATTRS(inv_attr_of_int("axis", 0), inv_attr_of_ints("sizes", h->nparts, sizes)));
    if (split == INV_NONE) return g->failed;
    memcpy(of, inv_nod(g, split)->out, h->nparts * sizeof *of);
    return INV_OK;
}

/* An operand that is the same for all rows, with no axes that rows have. */
static inv_status give_all(head *h, const inv_node *n, inv_id v)
{
    const inv_shape *s = &inv_val(h->g, v)->shape;
    const int64_t last = s->rank ? s->dim[s->rank - 1] : 1;
    const inv_shape flat = inv_shape_of(1, &last);
    inv_id all = v;
    if (n->op->flags & INV_OP_ELEMENTWISE && s->rank > 1) all = inv_emit_view(h->g, v, &flat);
    inv_id *of = new_parts(h, v);
    if (!of) return INV_E_NOMEM;
    for (uint32_t i = 0; i < h->nparts; i++) of[i] = all;
    return h->g->failed;
}

/* The parts of what enters at the node. */
static inv_status split_operands(head *h, inv_id id)
{
    const inv_node n = *inv_nod(h->g, id); /* emitting moves the array */
    const bool loss = inv_op_is(&n, "CrossEntropyMean"), product = is_product(h, &n);
    for (uint32_t k = 0; k < n.nin; k++) {
        const inv_id v = n.in[k];
        if (v == INV_NONE || h->of[v] || h->wide[v]) continue;
        const bool labels = loss && k == 1 && inv_val(h->g, v)->dtype == INV_I64;
        if ((product && k == 0) || (loss && k == 1)) INV_TRY(split_rows(h, v, labels));
        else INV_TRY(give_all(h, &n, v));
    }
    return INV_OK;
}

/* The node for part i. */
static inv_status emit_part(head *h, inv_id id, uint32_t i)
{
    inv_graph *g = h->g;
    const inv_node n = *inv_nod(g, id);
    const inv_id y = n.out[0];
    inv_id *in = INV_ARENA_NEW(h->scratch, inv_id, n.nin + 1);
    inv_attr *attr = INV_ARENA_NEW(h->scratch, inv_attr, n.nattr + 2);
    if (!in || !attr || (!h->of[y] && !new_parts(h, y))) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n.nin; k++) in[k] = n.in[k] == INV_NONE ? INV_NONE : h->of[n.in[k]][i];
    if (inv_op_is(&n, "View")) {
        h->of[y][i] = in[0];
        return INV_OK;
    }
    uint32_t nattr = 0;
    const bool loss = inv_op_is(&n, "CrossEntropyMean");
    for (uint32_t k = 0; k < n.nattr; k++)
        if (!loss || (strcmp(n.attr[k].name, "axis") != 0 && strcmp(n.attr[k].name, "sum") != 0))
            attr[nattr++] = n.attr[k];
    if (loss) attr[nattr++] = inv_attr_of_int("axis", 1);
    if (loss) attr[nattr++] = inv_attr_of_int("sum", 1);
    inv_emit_for(g, &n);
    return inv_emit_op(g, n.op, 1, n.nin, in, nattr, attr, &h->of[y][i]) == INV_NONE ? g->failed : INV_OK;
}

/* What the sum of the parts' losses is divided by. INV_NONE: by nothing. */
static inv_id emit_total(head *h, const inv_node *loss)
{
    const inv_attr *ignore = inv_attr_find(loss, "ignore_index");
    const bool weighted = loss->nin > 2 && loss->in[2] != INV_NONE;
    if (inv_attr_int(loss, "sum", 0)) return INV_NONE;
    if (inv_val(h->g, loss->in[1])->dtype != INV_I64 || (!ignore && !weighted))
        return inv_graph_const_real(h->g, INV_F64, (double)h->rows);
    const inv_id in[2] = {loss->in[1], weighted ? loss->in[2] : INV_NONE};
    return inv_emit1(h->g, "LabelWeight", weighted ? 2 : 1, in, ignore != NULL, ignore);
}

static void replace_value(inv_graph *g, inv_plan *plan, inv_id old, inv_id by)
{
    for (size_t i = 0; i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] == old) n->in[k] = by;
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i] == old) g->outputs.at[i] = by;
    for (size_t i = 0; i < plan->output.n; i++)
        if (plan->output.at[i].value == old) plan->output.at[i].value = by;
    if (plan->loss == old) plan->loss = by;
    if (plan->total == old) plan->total = by;
    inv_val(g, by)->keep |= inv_val(g, old)->keep;
    inv_val(g, by)->is_output |= inv_val(g, old)->is_output;
    inv_val(g, old)->keep = inv_val(g, old)->is_output = false;
}

/* Outputs of the model that are not computed as a whole are none of the plan. */
static void drop_outputs(head *h, inv_plan *plan)
{
    inv_graph *g = h->g;
    size_t n = 0, m = 0;
    for (size_t i = 0; i < g->outputs.n; i++) {
        if (h->wide[g->outputs.at[i]]) inv_val(g, g->outputs.at[i])->is_output = false;
        else g->outputs.at[n++] = g->outputs.at[i];
    }
    g->outputs.n = n;
    for (size_t i = 0; i < plan->output.n; i++)
        if (!h->wide[plan->output.at[i].value]) plan->output.at[m++] = plan->output.at[i];
    plan->output.n = m;
}

/* Emits all of it at the end of the order, and the loss. */
static inv_status emit_parts(head *h, inv_plan *plan)
{
    inv_graph *g = h->g;
    const inv_node loss = *inv_nod(g, g->order.at[h->at]);
    const inv_id total = emit_total(h, &loss);
    const bool counted = total != INV_NONE && inv_val(g, total)->role == INV_ROLE_NODE;
    const size_t from = g->order.n;
    for (size_t k = 0; k <= h->at && !g->failed; k++)
        if (h->in[g->order.at[k]]) INV_TRY(split_operands(h, g->order.at[k]));
    for (uint32_t i = 0; i < h->nparts && !g->failed; i++)
        for (size_t k = 0; k <= h->at; k++)
            if (h->in[g->order.at[k]]) INV_TRY(emit_part(h, g->order.at[k], i));
    if (g->failed) return g->failed;
    inv_id sum = h->of[loss.out[0]][0];
    for (uint32_t i = 1; i < h->nparts; i++) sum = inv_emit_pair(g, "Add", sum, h->of[loss.out[0]][i]);
    if (total != INV_NONE) sum = inv_emit_pair(g, "Div", sum, total);
    for (size_t k = from; k < g->order.n; k++)
        if (!inv_vec_push(&g->arena, &plan->head, g->order.at[k])) return INV_E_NOMEM;
    if (g->failed) return g->failed;
    replace_value(g, plan, loss.out[0], sum);
    if (loss.nout > 1 && loss.out[1] != INV_NONE && counted) replace_value(g, plan, loss.out[1], total);
    return INV_OK;
}

/* The new nodes, from position `end` on, take the place of the loss. */
static inv_status take_place(head *h, size_t end)
{
    inv_graph *g = h->g;
    const inv_ids old = g->order;
    inv_ids now = {0};
    for (size_t i = 0; i < end; i++) {
        for (size_t k = end; i == h->at && k < old.n; k++)
            if (!inv_vec_push(&g->arena, &now, old.at[k])) return INV_E_NOMEM;
        if (!h->in[old.at[i]] && !inv_vec_push(&g->arena, &now, old.at[i])) return INV_E_NOMEM;
    }
    g->order = now;
    return INV_OK;
}

static inv_status split(head *h, inv_plan *plan)
{
    inv_graph *g = h->g;
    const size_t end = g->order.n;
    size_t found = SIZE_MAX;
    h->in = INV_ARENA_NEW(h->scratch, bool, g->node.n + 1);
    h->wide = INV_ARENA_NEW(h->scratch, bool, g->value.n + 1);
    if (h->scratch->failed) return INV_E_NOMEM;
    INV_TRY(inv_graph_uses(g, h->scratch, &h->uses));
    for (size_t i = 0; i < end; i++)
        if (inv_op_is(inv_nod(g, g->order.at[i]), "CrossEntropyMean")) found = found == SIZE_MAX ? i : end;
    h->at = found;
    if (found >= end || !find_head(h)) return INV_OK; /* one loss, or none */
    h->of = INV_ARENA_NEW(h->scratch, inv_id *, g->value.n + 1);
    if (!h->of) return INV_E_NOMEM;
    drop_outputs(h, plan);
    drop_inverses(h);
    const inv_status s = emit_parts(h, plan);
    inv_emit_for(g, NULL);
    INV_TRY(s);
    return take_place(h, end);
}

inv_status inv_pass_split_head(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    inv_arena scratch;
    if (rq->purpose != INV_FOR_TRAIN || !rq->optimize || plan->loss == INV_NONE) return INV_OK;
    inv_arena_init(&scratch, g->ctx);
    g->phase = INV_FORWARD;
    const inv_status s = split(&(head){.g = g, .scratch = &scratch, .rq = rq}, plan);
    inv_arena_fini(&scratch);
    return s;
}

/* --- the order --- */

typedef struct placing {
    inv_graph *g;
    bool *waits; /* per node: is of the head, and not placed yet */
    inv_ids order;
    size_t left; /* losses that wait */
} placing;

/* Puts node `id` behind those of the head that it reads. */
static inv_status place(placing *p, inv_id id)
{
    inv_graph *g = p->g;
    inv_node *n = inv_nod(g, id);
    for (uint32_t k = 0; k < n->nin; k++) {
        const inv_id def = n->in[k] == INV_NONE ? INV_NONE : inv_val(g, n->in[k])->def;
        if (def != INV_NONE && p->waits[def]) INV_TRY(place(p, def));
    }
    if (p->waits[id]) n->phase = INV_BACKWARD;
    if (p->waits[id] && inv_op_is(n, "CrossEntropyMean")) p->left--;
    p->waits[id] = false;
    return inv_vec_push(&g->arena, &p->order, id) ? INV_OK : INV_E_NOMEM;
}

/* The loss of the logits that the gradient is computed from comes before it: their bytes may become the gradient's. */
static inv_status place_loss_of(placing *p, const inv_plan *plan, const inv_node *reader)
{
    for (size_t i = 0; i < plan->head.n && inv_op_is(reader, "CrossEntropyGrad"); i++) {
        const inv_id id = plan->head.at[i];
        const inv_node *n = inv_nod(p->g, id);
        if (p->waits[id] && inv_op_is(n, "CrossEntropyMean") && n->in[0] == reader->in[0]) return place(p, id);
    }
    return INV_OK;
}

inv_status inv_pass_place_head(inv_graph *g, const inv_plan *plan)
{
    placing p = {.g = g};
    const inv_ids old = g->order;
    if (plan->head.n == 0) return INV_OK;
    p.waits = INV_ARENA_NEW(&g->arena, bool, g->node.n + 1);
    if (!p.waits) return INV_E_NOMEM;
    for (size_t i = 0; i < plan->head.n; i++) {
        p.waits[plan->head.at[i]] = true;
        p.left += inv_op_is(inv_nod(g, plan->head.at[i]), "CrossEntropyMean");
    }
    g->forward_end = 0;
    for (size_t i = 0; i < old.n; i++) {
        const inv_node n = *inv_nod(g, old.at[i]);
        const size_t left = p.left;
        if (p.waits[old.at[i]]) continue;
        if (n.phase == INV_BACKWARD) INV_TRY(place_loss_of(&p, plan, &n));
        INV_TRY(place(&p, old.at[i]));
        if (n.phase == INV_FORWARD) g->forward_end = p.order.n;
        for (size_t k = 0; left && !p.left && k < plan->head.n; k++) /* the sum of all losses */
            if (p.waits[plan->head.at[k]]) INV_TRY(place(&p, plan->head.at[k]));
    }
    for (size_t k = 0; k < plan->head.n; k++) /* without a gradient */
        if (p.waits[plan->head.at[k]]) INV_TRY(place(&p, plan->head.at[k]));
    g->order = p.order;
    return INV_OK;
}
