/* SPDX-License-Identifier: Apache-2.0
 * Low-rank adapters are put into a graph (lora.h). */
#include <math.h>
#include <string.h>

#include "core/edits/edited.h"
#include "core/edits/lora.h"
#include "core/graph/node.h"
#include "core/weights/module_names.h"
#include "core/weights/trained.h"

enum { MOST_LISTED = 24, OPSET_LEAST = 7, OPSET_DROPOUT_INPUTS = 12 };

/* --- what is asked for --- */

typedef enum naming { UNNAMED, BY_PATTERN, BY_NAME } naming; /* what says more is larger */

static naming by(const char *glob, const char *name)
{
    return strcmp(glob, name) == 0 ? BY_NAME : inv_glob_fits(glob, name) ? BY_PATTERN : UNNAMED;
}

static naming fits(const inv_graph *g, const inv_lora_target *t, const char *glob)
{
    const inv_value *w = inv_val(g, t->weight);
    naming how = inv_param_is_called(glob, w) ? BY_NAME : inv_param_fits(glob, w) ? BY_PATTERN : UNNAMED;
    for (size_t i = 0; i < t->use.n; i++) {
        const inv_node *n = inv_nod(g, t->use.at[i].node);
        const naming its = *n->name ? by(glob, n->name) : UNNAMED;
        if (its > how) how = its;
    }
    return how;
}

/* Whether it is a factor of an adapter, by its name. */
static bool is_factor(const inv_graph *g, const inv_lora_targets *all, const char *name)
{
    const char *end = strrchr(name, '.');
    if (!end || (strcmp(end, ".lora_A") != 0 && strcmp(end, ".lora_B") != 0)) return false;
    for (size_t i = 0; i < all->n; i++) {
        const char *w = inv_val(g, all->at[i].weight)->name;
        if (strlen(w) == (size_t)(end - name) && strncmp(w, name, strlen(w)) == 0) return true;
    }
    return false;
}

/* Leaves those that may have an adapter: a new head is trained itself, and factors of adapters have none. */
static void leave_weights(const inv_graph *g, inv_lora_targets *all)
{
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        const inv_value *w = inv_val(g, all->at[i].weight);
        if (!w->added && !is_factor(g, all, w->name)) all->at[n++] = all->at[i];
    }
    all->n = n;
}

static inv_status refuse_glob(const inv_graph *g, const inv_lora_targets *all, const char *glob)
{
    char shape[INV_SHAPE_TEXT];
    inv_str text;
    inv_str_init(&text, g->ctx);
    for (size_t i = 0; i < all->n && i < MOST_LISTED; i++) {
        const inv_lora_target *t = &all->at[i];
        const inv_node *n = inv_nod(g, t->use.at[0].node);
        const inv_value *w = inv_val(g, t->weight);
        inv_str_add(&text, "%s'%s' %s of %s '%s'", i ? ", " : "", w->nalso ? w->also[0] : w->name,
                    inv_shape_text(&t->shape, shape), n->op_type, inv_node_called(g, n));
    }
    if (all->n > MOST_LISTED) inv_str_add(&text, " and %zu more", all->n - MOST_LISTED);
    for (size_t i = 0; i < g->function.n; i++)
        if (g->function.at[i].shut)
            inv_str_add(&text, "; function '%s' was not searched: %s", g->function.at[i].name, g->function.at[i].shut);
    inv_status s =
        inv_fail(g->ctx, INV_E_ARG, "{lora} '%s' matches neither a weight that can have an adapter nor its node; %s%s",
                 glob, all->n ? "there are: " : "the model has none", text.s);
    inv_str_fini(&text);
    return s;
}

/* The largest rank that says more than the matrix itself. */
static int64_t most_rank(const inv_lora_target *t)
{
    int64_t rows, columns;
    inv_lora_matrix(t, &rows, &columns);
    return rows < columns ? rows : columns;
}

static inv_status refuse_rank(const inv_graph *g, const inv_lora_target *t, int64_t rank)
{
    char shape[INV_SHAPE_TEXT];
    int64_t rows, columns;
    inv_lora_matrix(t, &rows, &columns);
    return inv_fail(g->ctx, INV_E_ARG,
                    "{rank} %lld: the weight '%s' %s, %s of %lld x %lld, allows a rank of at most %lld. Choose a "
                    "smaller rank, or leave this weight out",
                    (long long)rank, inv_val(g, t->weight)->name, inv_shape_text(&t->shape, shape),
                    t->group > 1 ? "matrices" : "a matrix", (long long)rows, (long long)columns,
                    (long long)most_rank(t));
}

static inv_status check_dropout(const inv_graph *g, const inv_lora_target *t, double dropout)
{
    for (size_t i = 0; i < t->use.n && dropout > 0; i++) {
        const inv_node *n = inv_nod(g, t->use.at[i].node);
        INV_CHECK(t->use.at[i].form != INV_LORA_WHOLE, g->ctx, INV_E_ARG,
                  "{lora_dropout} %g: node '%s' (%s) computes with '%s' and its adapter at once, so the adapter has "
                  "no input to drop. Train without dropout, or leave this weight out",
                  dropout, inv_node_called(g, n), n->op_type, inv_val(g, t->weight)->name);
    }
    return INV_OK;
}

static inv_status check_options(const inv_graph *g, const inv_lora *o)
{
    INV_CHECK(o->targets && o->ntargets, g->ctx, INV_E_ARG, "{targets}: no weight is named");
    for (size_t i = 0; i < o->ntargets; i++)
        INV_CHECK(o->targets[i], g->ctx, INV_E_ARG, "entry %zu of %zu of {targets} is NULL", i + 1, o->ntargets);
    INV_CHECK(o->rank >= 1, g->ctx, INV_E_ARG, "{rank} is %lld: must be at least 1", (long long)o->rank);
    INV_CHECK(isfinite(o->alpha) && o->alpha != 0, g->ctx, INV_E_ARG, "{alpha} is %g: must be finite and not zero",
              o->alpha);
    INV_CHECK(o->dropout >= 0 && o->dropout < 1, g->ctx, INV_E_ARG,
              "{lora_dropout} is %g: must be at least 0 and below 1", o->dropout);
    INV_CHECK(inv_graph_opset(g, "") >= OPSET_LEAST, g->ctx, INV_E_ARG,
              "{lora}: the model is of operator set %lld; from %d on there are adapters",
              (long long)inv_graph_opset(g, ""), OPSET_LEAST);
    return INV_OK;
}

static naming named_by(const inv_graph *g, const inv_lora_target *t, const inv_lora *o)
{
    naming how = UNNAMED;
    for (size_t k = 0; k < o->ntargets; k++) {
        const naming its = fits(g, t, o->targets[k]);
        if (its > how) how = its;
    }
    return how;
}

static inv_status choose_one(const inv_graph *g, const inv_lora *o, const inv_lora_target *t, inv_arena *a,
                             inv_lora_targets *chosen)
{
    INV_TRY(check_dropout(g, t, o->dropout));
    const char *name = inv_arena_printf(a, "%s.lora_A", inv_val(g, t->weight)->name);
    if (!name || !inv_vec_push(a, chosen, *t)) return INV_E_NOMEM;
    INV_CHECK(inv_added_find(g, name) == INV_NONE, g->ctx, INV_E_EXISTS,
              "'%s' has an adapter already, '%s'; merge that into the weight first", inv_val(g, t->weight)->name, name);
    return INV_OK;
}

static inv_status refuse_all(const inv_graph *g, const inv_lora *o, const inv_lora_left *left, const uint8_t *why)
{
    if (left->narrow.n) return refuse_rank(g, &left->narrow.at[0], o->rank);
    const inv_id first = left->constant.at[0].weight;
    return inv_fail(g->ctx, INV_E_ARG, "{lora} matches no weights: '%s' is %s. Name it in full to give it an adapter",
                    inv_val(g, first)->name, inv_untrained_text(why[first]));
}

/* A pattern passes over weights that are too narrow for the rank, as filters of one channel are, and over what is none
 * though a product reads it, as a permutation or a Fourier transform. */
static inv_status choose(const inv_graph *g, const inv_lora *o, inv_arena *a, inv_lora_targets *chosen,
                         inv_lora_left *left)
{
    inv_lora_targets all = {0};
    uint8_t *why;
    INV_TRY(inv_lora_targets_find(g, a, &all));
    leave_weights(g, &all);
    INV_TRY(inv_trained_find(g, NULL, a, &why));
    for (size_t k = 0; k < o->ntargets; k++) {
        size_t n = 0;
        for (size_t i = 0; i < all.n; i++) n += fits(g, &all.at[i], o->targets[k]) != UNNAMED;
        if (!n) return refuse_glob(g, &all, o->targets[k]);
    }
    for (size_t i = 0; i < all.n; i++) {
        const inv_lora_target *t = &all.at[i];
        const naming how = named_by(g, t, o);
        if (how == UNNAMED) continue;
        if (how == BY_PATTERN && inv_is_no_weight(why[t->weight])) {
            if (!inv_vec_push(a, &left->constant, *t)) return INV_E_NOMEM;
        } else if (o->rank <= most_rank(t)) INV_TRY(choose_one(g, o, t, a, chosen));
        else if (how == BY_NAME) return refuse_rank(g, t, o->rank);
        else if (!inv_vec_push(a, &left->narrow, *t)) return INV_E_NOMEM;
    }
    return chosen->n ? INV_OK : refuse_all(g, o, left, why);
}

/* --- the factors --- */

typedef struct adapter {
    inv_graph *g;
    const inv_lora *o;
    const inv_lora_target *t;
    inv_id p, q, scale; /* P and Q of lora.h */
    inv_ids order;      /* the graph's, anew */
} adapter;

/* A value whose name begins so, and is in use nowhere else. */
static inv_id new_value(adapter *x, const char *stem, const char *what, inv_dtype dtype)
{
    const char *name = inv_arena_printf(&x->g->arena, "%s.%s", stem, what);
    if (name && inv_graph_find(x->g, name) != INV_NONE) name = inv_graph_fresh(x->g, name);
    return name ? inv_graph_value(x->g, name, INV_ROLE_NODE, dtype, NULL) : INV_NONE;
}

static inv_id new_initializer(adapter *x, const char *what, const inv_shape *shape)
{
    inv_graph *g = x->g;
    const char *name = inv_arena_printf(&g->arena, "%s.%s", inv_val(g, x->t->weight)->name, what);
    const inv_id id = name ? inv_added_initializer(g, name, x->t->dtype, shape) : INV_NONE;
    if (id == INV_NONE) return INV_NONE;
    inv_val(g, id)->said = INV_SAID_PARAMETER;
    inv_val(g, id)->added = shape->rank > 0;
    return id;
}

/* Whole numbers that a node reads. */
static inv_id new_shape(adapter *x, const char *what, const inv_shape *shape, const int64_t *numbers)
{
    inv_graph *g = x->g;
    const char *name = inv_arena_printf(&g->arena, "%s.%s", inv_val(g, x->t->weight)->name, what);
    const inv_id id = name ? inv_added_initializer(g, name, INV_I64, shape) : INV_NONE;
    if (id != INV_NONE) memcpy(inv_added_bytes(inv_val(g, id)), numbers, (size_t)shape->dim[0] * sizeof *numbers);
    return id;
}

static inv_status add_factors(adapter *x)
{
    const inv_lora_target *t = x->t;
    inv_shape p = t->shape, q = t->shape, none = inv_shape_scalar();
    int64_t rows, columns;
    inv_lora_matrix(t, &rows, &columns);
    for (int i = 1; i < p.rank; i++) p.dim[i] = i == 1 ? x->o->rank : 1;
    q.dim[0] = t->group * x->o->rank;
    const inv_id a = new_initializer(x, "lora_A", t->in_first ? &p : &q);
    const inv_id b = new_initializer(x, "lora_B", t->in_first ? &q : &p);
    x->scale = new_initializer(x, "lora_scale", &none);
    if (a == INV_NONE || b == INV_NONE || x->scale == INV_NONE) return INV_E_NOMEM;
    x->p = t->in_first ? a : b;
    x->q = t->in_first ? b : a;
    inv_added_draw(inv_val(x->g, a), x->o->seed, 1 / sqrt((double)(t->in_first ? rows : columns)));
    const double s = x->o->alpha / (double)x->o->rank;
    return inv_convert(inv_added_bytes(inv_val(x->g, x->scale)), t->dtype, &s, INV_F64, 1) ? INV_OK : INV_E_INTERNAL;
}

/* --- the nodes --- */

/* A node of the second way of `at`, called like its result. */
static inv_id put_node(adapter *x, const inv_node *at, const char *op, const char *what, uint32_t nin, const inv_id *in,
                       uint32_t nattr, const inv_attr *attr)
{
    inv_graph *g = x->g;
    const char *stem = inv_val(g, at->out[0])->name;
    const inv_id out = new_value(x, stem, what, INV_DT_NONE);
    if (out == INV_NONE) return INV_NONE;
    const inv_id n = inv_graph_node(g, "", op, inv_val(g, out)->name, nin, in, 1, &out, nattr, attr);
    if (n == INV_NONE || !inv_vec_push(&g->arena, &x->order, n)) return INV_NONE;
    inv_nod(g, n)->source = INV_NONE;
    return out;
}

static inv_id turn(adapter *x, const inv_node *at, const char *what, inv_id v)
{
    static const int64_t perm[] = {1, 0};
    return put_node(x, at, "Transpose", what, INV_IN(v), INV_ATTRS(inv_attr_of_ints("perm", 2, perm)));
}

/* In training only: it is not written. */
static inv_id drop(adapter *x, const inv_node *at, inv_id v)
{
    const float ratio = (float)x->o->dropout;
    const bool on = true;
    const inv_shape none = inv_shape_scalar();
    if (ratio == 0) return v;
    if (inv_graph_opset(x->g, "") < OPSET_DROPOUT_INPUTS)
        return put_node(x, at, "Dropout", "lora_dropout", INV_IN(v), INV_ATTRS(inv_attr_of_float("ratio", ratio)));
    const inv_id r = inv_graph_const(x->g, INV_F32, &none, &ratio),
                 training = inv_graph_const(x->g, INV_BOOL, &none, &on);
    return put_node(x, at, "Dropout", "lora_dropout", INV_IN(v, r, training), INV_NOATTR);
}

static inv_id scaled(adapter *x, const inv_node *at, inv_id v)
{
    return put_node(x, at, "Mul", "lora_scaled", INV_IN(v, x->scale), INV_NOATTR);
}

/* (x P) Q for x W, and Q and P transposed the other way round for x W transposed; P (Q x) for W x. */
static inv_id put_product(adapter *x, const inv_node *at, const inv_lora_use *use, inv_id in)
{
    const bool right = use->form == INV_LORA_RIGHT, gemm = inv_node_is(at, "Gemm");
    inv_id first = right != use->turned ? x->p : x->q, second = right != use->turned ? x->q : x->p;
    if (gemm && inv_attr_int(at, right ? "transA" : "transB", 0)) in = turn(x, at, "lora_input", in);
    if (use->turned) first = turn(x, at, "lora_first", first);
    if (use->turned) second = turn(x, at, "lora_second", second);
    inv_id v = put_node(x, at, "MatMul", "lora_down", INV_IN(right ? in : first, right ? first : in), INV_NOATTR);
    v = scaled(x, at, v);
    const double alpha = gemm ? inv_attr_float(at, "alpha", 1) : 1;
    const inv_id pair[] = {right ? v : second, right ? second : v};
    if (alpha != 1) return put_node(x, at, "Gemm", "lora_up", 2, pair, INV_ATTRS(inv_attr_of_float("alpha", alpha)));
    return put_node(x, at, "MatMul", "lora_up", 2, pair, INV_NOATTR);
}

/* Rows of P, times Q. */
static inv_id put_lookup(adapter *x, const inv_node *at, inv_id index)
{
    inv_id v = put_node(x, at, "Gather", "lora_down", INV_IN(x->p, index), INV_NOATTR);
    v = scaled(x, at, v);
    return put_node(x, at, "MatMul", "lora_up", INV_IN(v, x->q), INV_NOATTR);
}

/* Windows as the convolution has them, then one of 1 x 1. */
static inv_id put_conv(adapter *x, const inv_node *at, inv_id in)
{
    inv_id v = put_node(x, at, "Conv", "lora_down", INV_IN(in, x->q), at->nattr, at->attr);
    v = scaled(x, at, v);
    return put_node(x, at, "Conv", "lora_up", INV_IN(v, x->p), INV_ATTRS(inv_attr_of_int("group", x->t->group)));
}

/* Factor v with G matrices in it, of which one extent is the rank, whatever that is. */
static inv_id split_groups(adapter *x, const inv_node *at, const char *what, inv_id v, int64_t rows, int64_t columns)
{
    const inv_shape three = inv_shape_of(1, (int64_t[]){3});
    const int64_t to[] = {x->t->group, rows, columns};
    const inv_id shape = new_shape(x, what, &three, to);
    return shape == INV_NONE ? INV_NONE : put_node(x, at, "Reshape", what, INV_IN(v, shape), INV_NOATTR);
}

/* scale P Q in the shape of W. */
static inv_id put_whole(adapter *x, const inv_node *at)
{
    const inv_shape *w = &x->t->shape, extents = inv_shape_of(1, (int64_t[]){w->rank});
    const bool plain = w->rank == 2 && x->t->group == 1;
    int64_t rows, columns;
    inv_lora_matrix(x->t, &rows, &columns);
    const inv_id p = plain ? x->p : split_groups(x, at, "lora_rows", x->p, rows, -1),
                 q = plain ? x->q : split_groups(x, at, "lora_columns", x->q, -1, columns);
    if (p == INV_NONE || q == INV_NONE) return INV_NONE;
    const inv_id v = scaled(x, at, put_node(x, at, "MatMul", "lora_product", INV_IN(p, q), INV_NOATTR));
    const inv_id shape = plain ? INV_NONE : new_shape(x, "lora_whole", &extents, w->dim);
    if (plain) return v;
    return shape == INV_NONE ? INV_NONE : put_node(x, at, "Reshape", "lora_whole", INV_IN(v, shape), INV_NOATTR);
}

/* The node reads W' from now on. */
static inv_status put_in_place(adapter *x, const inv_lora_use *use)
{
    inv_graph *g = x->g;
    const inv_node at = *inv_nod(g, use->node);
    const inv_id v = put_whole(x, &at);
    const inv_id sum = v == INV_NONE ? v : put_node(x, &at, "Add", "lora", INV_IN(x->t->weight, v), INV_NOATTR);
    if (sum == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
    inv_nod(g, use->node)->in[use->x] = sum;
    return INV_OK;
}

static inv_id put_way(adapter *x, const inv_node *at, const inv_lora_use *use)
{
    if (use->form == INV_LORA_LOOKUP) return put_lookup(x, at, at->in[use->x]);
    const inv_id in = drop(x, at, at->in[use->x]);
    return use->form == INV_LORA_CONV ? put_conv(x, at, in) : put_product(x, at, use, in);
}

/* The result of the node is the sum from now on; what the node itself gives has a new name. */
static inv_status put_beside(adapter *x, const inv_lora_use *use)
{
    inv_graph *g = x->g;
    const inv_node at = *inv_nod(g, use->node);
    const inv_id y = at.out[0];
    const inv_id v = put_way(x, &at, use);
    const inv_id base = new_value(x, inv_val(g, y)->name, "lora_base", inv_val(g, y)->dtype);
    if (v == INV_NONE || base == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
    inv_nod(g, use->node)->out[0] = base;
    inv_val(g, base)->def = use->node;
    inv_val(g, y)->def = INV_NONE;
    const char *name = inv_arena_printf(&g->arena, "%s.lora", inv_node_called(g, &at));
    const inv_id n = name ? inv_graph_node(g, "", "Add", name, INV_IN(base, v), 1, &y, INV_NOATTR) : INV_NONE;
    if (n == INV_NONE || !inv_vec_push(&g->arena, &x->order, n)) return g->failed ? g->failed : INV_E_NOMEM;
    inv_nod(g, n)->source = INV_NONE;
    return INV_OK;
}

static int64_t use_at(const inv_lora_target *t, inv_id node)
{
    for (size_t i = 0; i < t->use.n; i++)
        if (t->use.at[i].node == node) return (int64_t)i;
    return -1;
}

/* Factors first, then the nodes, each behind the product that it is beside, or in front of who reads it. */
static inv_status add_all(adapter *x, const inv_lora_targets *chosen, inv_arena *a)
{
    inv_graph *g = x->g;
    const size_t nnode = g->node.n;
    adapter *each = INV_ARENA_NEW(a, adapter, chosen->n + 1);
    uint32_t *of = INV_ARENA_NEW(a, uint32_t, nnode + 1); /* 1 + target */
    if (!each || !of) return INV_E_NOMEM;
    for (size_t i = 0; i < chosen->n; i++) {
        each[i] = *x;
        each[i].t = &chosen->at[i];
        INV_TRY(add_factors(&each[i]));
        for (size_t k = 0; k < chosen->at[i].use.n; k++) of[chosen->at[i].use.at[k].node] = (uint32_t)i + 1;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_id n = g->order.at[i];
        adapter *own = n < nnode && of[n] ? &each[of[n] - 1] : x;
        const inv_lora_use *use = own == x ? NULL : &own->t->use.at[use_at(own->t, n)];
        const bool whole = use && use->form == INV_LORA_WHOLE;
        own->order = x->order;
        if (whole) INV_TRY(put_in_place(own, use));
        if (!inv_vec_push(&g->arena, &own->order, n)) return INV_E_NOMEM;
        if (use && !whole) INV_TRY(put_beside(own, use));
        x->order = own->order;
    }
    g->order = x->order;
    return INV_OK;
}

inv_status inv_lora_add(inv_graph *g, const inv_lora *o, inv_arena *a, inv_lora_targets *added, inv_lora_left *left)
{
    inv_lora_targets chosen = {0};
    inv_lora_left passed = {0};
    adapter x = {.g = g, .o = o};
    INV_TRY(check_options(g, o));
    INV_TRY(choose(g, o, a, &chosen, &passed));
    INV_TRY(add_all(&x, &chosen, a));
    g->adapted = g->edited = true;
    if (added) *added = chosen;
    if (left) *left = passed;
    return inv_graph_check(g, false);
}
