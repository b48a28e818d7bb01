/* SPDX-License-Identifier: Apache-2.0
 * Low-rank adapters that a graph has (lora.h): found by their names and nodes, merged into their weights, and turned
 * into inputs. */
#include <string.h>

#include "core/edits/edited.h"
#include "core/edits/lora.h"
#include "core/weights/weight_origin.h"

enum { MOST_NODES = 32 }; /* of a second way, and more than there are */

/* --- which there are --- */

static inv_id named(const inv_graph *g, inv_arena *a, const char *weight, const char *what)
{
    const char *name = inv_arena_printf(a, "%s.%s", weight, what);
    const inv_id v = name ? inv_added_find(g, name) : INV_NONE;
    return v != INV_NONE && inv_val(g, v)->role == INV_ROLE_PARAM ? v : INV_NONE;
}

static inv_status check_shapes(const inv_graph *g, inv_lora_found *f)
{
    const inv_value *p = inv_val(g, f->t.in_first ? f->a : f->b), *q = inv_val(g, f->t.in_first ? f->b : f->a);
    const inv_shape *w = &f->t.shape;
    bool fits = p->shape.rank == w->rank && q->shape.rank == w->rank && p->shape.dim[0] == w->dim[0] &&
                inv_shape_nelem(&inv_val(g, f->scale)->shape) == 1;
    f->rank = fits ? p->shape.dim[1] : 0;
    for (int i = 2; fits && i < w->rank; i++) fits = p->shape.dim[i] == 1;
    for (int i = 1; fits && i < w->rank; i++) fits = q->shape.dim[i] == w->dim[i];
    char ps[INV_SHAPE_TEXT], qs[INV_SHAPE_TEXT], ws[INV_SHAPE_TEXT];
    INV_CHECK(fits && f->rank > 0 && q->shape.dim[0] == f->t.group * f->rank, g->ctx, INV_E_ARG,
              "'%s' %s and '%s' %s are no adapter of '%s' %s", p->name, inv_shape_text(&p->shape, ps), q->name,
              inv_shape_text(&q->shape, qs), inv_val(g, f->t.weight)->name, inv_shape_text(w, ws));
    return INV_OK;
}

/* Whether v is computed from x, A, B and the scale alone, by what an adapter is made of; *seen counts the latter.
 * *left: values that may still be looked at, since an adapter has few. */
static bool is_way(const inv_graph *g, const inv_lora_found *f, inv_id x, inv_id v, int *seen, int *left)
{
    static const char *const ops[] = {"MatMul",   "Gemm", "Conv",    "Gather",  "Mul", "Transpose",
                                      "Identity", "Cast", "Dropout", "Reshape", NULL};
    if (v == x) return true;
    if (--*left < 0) return false;
    if (v == f->a || v == f->b || v == f->scale) {
        ++*seen;
        return true;
    }
    const inv_id def = v == INV_NONE ? INV_NONE : inv_val(g, v)->def;
    const inv_node *n = def == INV_NONE ? NULL : inv_nod(g, def);
    if (!n || !inv_node_is_any(n, ops) || !n->nin) return false;
    const uint32_t nin = inv_node_is(n, "Dropout") || inv_node_is(n, "Reshape") ? 1 : n->nin;
    for (uint32_t k = 0; k < nin; k++)
        if (!is_way(g, f, x, n->in[k], seen, left)) return false;
    return true;
}

static inv_status refuse_changed(const inv_graph *g, const inv_lora_found *f, const inv_node *n)
{
    return inv_fail(g->ctx, INV_E_ARG,
                    "node '%s' (%s) reads '%s', but its result lacks the adapter '%s': the file was changed after "
                    "the adapter was written",
                    inv_node_called(g, n), n->op_type, inv_val(g, f->t.weight)->name, inv_val(g, f->a)->name);
}

/* W', which the node of `use` reads. */
static inv_status find_whole(const inv_graph *g, const inv_lora_found *f, const inv_lora_use *use, inv_id *sum)
{
    const inv_node *n = inv_nod(g, use->node);
    const inv_id v = n->in[use->x];
    int seen = 0, left = MOST_NODES;
    *sum = inv_val(g, v)->def;
    const inv_node *add = *sum == INV_NONE ? NULL : inv_nod(g, *sum);
    const bool way = add && inv_node_is(add, "Add") && add->nin == 2 && add->in[0] == f->t.weight &&
                     is_way(g, f, INV_NONE, add->in[1], &seen, &left) && seen == 3;
    return way && !inv_val(g, v)->is_output ? INV_OK : refuse_changed(g, f, n);
}

/* The sum of what node `use` gives and the second way beside it. */
static inv_status find_sum(const inv_graph *g, const inv_lora_found *f, const inv_lora_use *use, inv_id *sum)
{
    const inv_node *n = inv_nod(g, use->node);
    const inv_id base = n->out[0];
    size_t readers = 0;
    bool way = false;
    *sum = INV_NONE;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *r = inv_nod(g, g->order.at[i]);
        if (!inv_ids_have(r->in, r->nin, base)) continue;
        readers++;
        int seen = 0, left = MOST_NODES;
        if (!inv_node_is(r, "Add") || r->nin != 2) continue;
        way = is_way(g, f, n->in[use->x], r->in[r->in[0] == base ? 1 : 0], &seen, &left) && seen == 3;
        *sum = g->order.at[i];
    }
    return way && readers == 1 && !inv_val(g, base)->is_output ? INV_OK : refuse_changed(g, f, n);
}

static inv_status look_at(const inv_graph *g, inv_arena *a, const inv_lora_target *t, inv_lora_founds *out)
{
    const char *weight = inv_val(g, t->weight)->name;
    inv_lora_found f = {.t = *t,
                        .a = named(g, a, weight, "lora_A"),
                        .b = named(g, a, weight, "lora_B"),
                        .scale = named(g, a, weight, "lora_scale")};
    if (f.a == INV_NONE || f.b == INV_NONE || f.scale == INV_NONE) return INV_OK;
    INV_TRY(check_shapes(g, &f));
    for (size_t i = 0; i < t->use.n; i++) {
        inv_id sum;
        const inv_lora_use *use = &t->use.at[i];
        INV_TRY(use->form == INV_LORA_WHOLE ? find_whole(g, &f, use, &sum) : find_sum(g, &f, use, &sum));
        if (!inv_vec_push(a, &f.sum, sum)) return INV_E_NOMEM;
    }
    return inv_vec_push(a, out, f) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_lora_find(const inv_graph *g, inv_arena *a, inv_lora_founds *out)
{
    static const char end[] = ".lora_A";
    inv_lora_targets all = {0};
    INV_TRY(inv_lora_targets_find(g, a, &all));
    for (size_t i = 0; i < all.n; i++) INV_TRY(look_at(g, a, &all.at[i], out));
    for (size_t i = 0; i < g->inits.n; i++) {
        const char *name = inv_val(g, g->inits.at[i])->name;
        const size_t n = strlen(name);
        bool known = n < sizeof end || strcmp(name + n - (sizeof end - 1), end) != 0;
        for (size_t k = 0; k < out->n && !known; k++) known = out->at[k].a == g->inits.at[i];
        INV_CHECK(known || inv_val(g, g->inits.at[i])->dropped, g->ctx, INV_E_ARG,
                  "'%s' has the name of an adapter, but there is no weight '%.*s' of a product with it, '.lora_B' "
                  "and '.lora_scale'",
                  name, (int)(n - (sizeof end - 1)), name);
    }
    return INV_OK;
}

/* --- merging --- */

/* Row i of a group's P Q, in float64, times the scale. */
static void product_row(const inv_lora_found *f, const inv_data *p, const inv_data *q, double scale, int64_t i,
                        int64_t columns, double *row)
{
    const int64_t group = i / (f->t.shape.dim[0] / f->t.group);
    memset(row, 0, (size_t)columns * sizeof *row);
    for (int64_t k = 0; k < f->rank; k++) {
        const double x = scale * inv_elem_double(p->bytes, p->dtype, (size_t)(i * f->rank + k));
        const size_t from = (size_t)((group * f->rank + k) * columns);
        for (int64_t j = 0; j < columns; j++) row[j] += x * inv_elem_double(q->bytes, q->dtype, from + (size_t)j);
    }
}

static inv_status add_product(inv_graph *g, inv_arena *a, const inv_lora_found *f)
{
    const inv_data *p = &inv_val(g, f->t.in_first ? f->a : f->b)->data,
                   *q = &inv_val(g, f->t.in_first ? f->b : f->a)->data;
    const inv_data old = inv_val(g, f->t.weight)->data, *s = &inv_val(g, f->scale)->data;
    const inv_shape shape = f->t.shape;
    int64_t rows, columns;
    inv_lora_matrix(&f->t, &rows, &columns);
    INV_CHECK(old.bytes && p->bytes && q->bytes && s->bytes, g->ctx, INV_E_ARG, "the elements of '%s' are not known",
              inv_val(g, f->t.weight)->name);
    char *to = inv_added_renew(g, f->t.weight, &shape);
    double *row = INV_ARENA_NEW(a, double, (size_t)columns);
    if (!to || !row) return INV_E_NOMEM;
    const size_t size = inv_dtype_size(old.dtype);
    for (int64_t i = 0; i < shape.dim[0]; i++) {
        product_row(f, p, q, inv_elem_double(s->bytes, s->dtype, 0), i, columns, row);
        for (int64_t j = 0; j < columns; j++)
            row[j] += inv_elem_double(old.bytes, old.dtype, (size_t)(i * columns + j));
        if (!inv_convert(to + (size_t)(i * columns) * size, old.dtype, row, INV_F64, (size_t)columns))
            return INV_E_INTERNAL;
    }
    return INV_OK;
}

/* What reads a weight that changes has to be what had the adapter. */
static inv_status check_readers(const inv_graph *g, inv_arena *a, const inv_lora_found *f)
{
    const inv_value *w = inv_val(g, f->t.weight);
    bool *of = INV_ARENA_NEW(a, bool, g->value.n + 1);
    if (!of) return INV_E_NOMEM;
    of[f->t.weight] = true;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool reads = false, uses = false;
        for (uint32_t k = 0; k < n->nin; k++)
            reads = reads || (n->in[k] != INV_NONE && of[n->in[k]] && !inv_node_reads_form(n, k));
        for (size_t k = 0; k < f->t.use.n; k++)
            uses = uses || f->t.use.at[k].node == g->order.at[i] || f->sum.at[k] == g->order.at[i];
        if (!reads || uses) continue;
        const bool hands = inv_node_is(n, "Transpose") || inv_node_is(n, "Cast") || inv_node_is(n, "Identity");
        INV_CHECK(hands, g->ctx, INV_E_ARG,
                  "'%s' cannot be merged with its adapter: node '%s' (%s) also reads it, without the adapter. Deploy "
                  "the model unmerged, or the adapter alone (adapter extract)",
                  w->name, inv_node_called(g, n), n->op_type);
        of[n->out[0]] = true;
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        INV_CHECK(
            !of[g->outputs.at[i]], g->ctx, INV_E_ARG,
            "'%s' cannot be merged with its adapter: it is also the output '%s', which the adapter does not change. "
            "Remove that output, deploy the model unmerged, or the adapter alone (adapter extract)",
            w->name, inv_val(g, g->outputs.at[i])->name);
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        INV_CHECK(!v->inverse_of || strcmp(v->inverse_of, w->name) != 0, g->ctx, INV_E_ARG,
                  "'%s' cannot be merged with its adapter: the rewritten model holds its inverse '%s'. Merge before "
                  "`rewrite`",
                  w->name, v->name);
    }
    return INV_OK;
}

/* The product gives what the sum gave, or reads W again, and the second way is read by nobody. */
static inv_status take_away(inv_graph *g, const inv_lora_found *f, size_t k)
{
    const inv_id node = f->t.use.at[k].node, sum = f->sum.at[k];
    if (f->t.use.at[k].form == INV_LORA_WHOLE) {
        inv_nod(g, node)->in[f->t.use.at[k].x] = f->t.weight;
        return inv_added_remove(g, sum);
    }
    const inv_id base = inv_nod(g, node)->out[0], y = inv_nod(g, sum)->out[0];
    inv_nod(g, sum)->out[0] = INV_NONE;
    inv_nod(g, node)->out[0] = y;
    inv_val(g, base)->def = INV_NONE;
    inv_val(g, y)->def = node;
    return inv_added_remove(g, sum);
}

static inv_status merge_one(inv_graph *g, inv_arena *a, const inv_lora_found *f)
{
    const char *weight = inv_val(g, f->t.weight)->name;
    INV_CHECK(!f->t.quantized, g->ctx, INV_E_ARG,
              "'%s' is quantized: merging its adapter would round it again and lose the training. Deploy the model "
              "unmerged, or the adapter alone (adapter extract)",
              weight);
    INV_CHECK(inv_val(g, f->t.weight)->role == INV_ROLE_PARAM, g->ctx, INV_E_ARG,
              "'%s' is a constant that an adapter cannot be merged into", weight);
    INV_TRY(check_readers(g, a, f));
    INV_TRY(add_product(g, a, f));
    for (size_t i = 0; i < f->sum.n; i++) INV_TRY(take_away(g, f, i));
    const inv_id all[] = {f->a, f->b, f->scale};
    for (size_t i = 0; i < 3; i++)
        INV_CHECK(inv_val(g, all[i])->dropped, g->ctx, INV_E_ARG,
                  "'%s' cannot be merged: something else than the adapter of '%s' reads it", inv_val(g, all[i])->name,
                  weight);
    return INV_OK;
}

inv_status inv_lora_merge(inv_graph *g, const inv_lora_founds *found)
{
    inv_arena a;
    inv_status s = INV_OK;
    inv_arena_init(&a, g->ctx);
    for (size_t i = 0; i < found->n && s == INV_OK; i++) s = merge_one(g, &a, &found->at[i]);
    inv_arena_fini(&a);
    return s == INV_OK ? inv_graph_check(g, false) : s;
}

/* --- as inputs --- */

static inv_status free_one(inv_graph *g, inv_id v, const inv_shape *shape, int open, const char *symbol)
{
    const char **symbols = INV_ARENA_NEW(&g->arena, const char *, (size_t)shape->rank + 1);
    if (!symbols || !symbol || !inv_added_renew(g, v, shape)) return INV_E_NOMEM;
    if (open >= 0) symbols[open] = symbol;
    inv_val(g, v)->dim_param = symbols;
    inv_val(g, v)->optional = true;
    return INV_OK;
}

inv_status inv_lora_free(inv_graph *g, const inv_lora_founds *found)
{
    const inv_shape one = inv_shape_of(1, (int64_t[]){1});
    for (size_t i = 0; i < found->n; i++) {
        const inv_lora_found *f = &found->at[i];
        const char *weight = inv_val(g, f->t.weight)->name;
        const char *rank = inv_arena_printf(&g->arena, "%s.lora_rank", weight);
        const char *ranks = f->t.group > 1 ? inv_arena_printf(&g->arena, "%s.lora_ranks", weight) : rank;
        const inv_id p = f->t.in_first ? f->a : f->b, q = f->t.in_first ? f->b : f->a;
        inv_shape ps = inv_val(g, p)->shape, qs = inv_val(g, q)->shape;
        ps.dim[1] = 1;
        qs.dim[0] = f->t.group;
        INV_TRY(free_one(g, p, &ps, 1, rank));
        INV_TRY(free_one(g, q, &qs, 0, ranks));
        INV_TRY(free_one(g, f->scale, &one, -1, ""));
    }
    return INV_OK;
}
