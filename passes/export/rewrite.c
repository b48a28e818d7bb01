/* SPDX-License-Identifier: Apache-2.0
 * Rewriting a model: the file's graph beside the canonical one, and what a written model looks like (outline.c,
 * derive.c), for one batch and then for others. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/program/pass.h"
#include "ops/linear/linear_solve.h"
#include "passes/export/batches.h"
#include "passes/export/export.h"
#include "passes/export/outline.h"
#include "passes/front/front.h"
#include "passes/match/match.h"

/* --- tables --- */

/* Lists by key, all in one array: list[start[k]] and on. Filled in the order of the items. */
static bool by_key(inv_arena *a, size_t nkey, size_t n, const uint32_t *key, const uint32_t *item, uint32_t **start,
                   uint32_t **list)
{
    uint32_t *s = INV_ARENA_NEW(a, uint32_t, nkey + 3), *l = INV_ARENA_NEW(a, uint32_t, n + 1);
    if (!s || !l) return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] != INV_NONE) s[key[i] + 2]++; /* two places on: filling moves it to where it belongs */
    for (size_t k = 2; k < nkey + 2; k++) s[k] += s[k - 1];
    for (size_t i = 0; i < n; i++)
        if (key[i] != INV_NONE) l[s[key[i] + 1]++] = item[i];
    *start = s;
    *list = l;
    return true;
}

/* Adds a type to what is known of the file's floating-point types; false: they differ. */
static bool same_real(inv_dtype *real, inv_dtype t)
{
    if (!inv_dtype_is_float(t)) return true;
    if (*real == INV_DT_NONE) *real = t;
    return *real == t;
}

/* Types that nodes ask for: of a Cast and the like, of constants. */
static bool same_in_nodes(inv_dtype *real, const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nattr; k++) {
            const inv_attr *at = &n->attr[k];
            bool type = at->kind == INV_ATTR_INT && (strcmp(at->name, "to") == 0 || strcmp(at->name, "dtype") == 0);
            if (type && !same_real(real, (inv_dtype)at->i)) return false;
            if (at->kind == INV_ATTR_TENSOR && !same_real(real, at->tensor.dtype)) return false;
        }
    }
    return true;
}

/* An inverse that an earlier rewriting put there: it has a type of its own. */
static bool is_left_over(const inv_outliner *o, inv_id v)
{
    const inv_value *val = inv_val(o->flat, v);
    return val->inverse_of && !val->is_output && o->uses.start[v] == o->uses.start[v + 1];
}

/* The one floating-point type of the file; INV_DT_NONE: there are several, or inverses are not written for it. */
static inv_dtype real_of_file(const inv_outliner *o)
{
    const inv_graph *flat = o->flat;
    inv_dtype real = INV_DT_NONE;
    bool same = same_in_nodes(&real, flat);
    for (size_t i = 0; i < flat->function.n && same; i++)
        same = flat->function.at[i].block || same_in_nodes(&real, flat->function.at[i].body);
    for (size_t v = 0; v < flat->value.n && same; v++) {
        const inv_value *val = inv_val(flat, (inv_id)v);
        const bool param = val->role == INV_ROLE_PARAM && !is_left_over(o, (inv_id)v);
        if (param || val->role == INV_ROLE_INPUT) same = same_real(&real, val->dtype);
    }
    if (same && real == INV_DT_NONE) return INV_F32;
    return same && (real == INV_F32 || real == INV_F64) ? real : INV_DT_NONE;
}

/* The types of a file that has several: values keep their numbers where functions are opened. */
static inv_status find_types(inv_outliner *o)
{
    inv_graph *g = NULL;
    INV_TRY(inv_graph_copy(o->flat, &g));
    inv_status s = inv_pass_inline(g, false);
    if (s == INV_OK) s = inv_graph_sort(g);
    o->ntype = o->flat->value.n;
    o->type = INV_ARENA_NEW(&o->scratch, inv_dtype, g->value.n + 1);
    if (s == INV_OK) s = o->type ? inv_types_of(g, o->type) : INV_E_NOMEM;
    for (size_t v = 0; v < o->ntype && s == INV_OK; v++)
        o->wide = o->wide || (o->type[v] == INV_F64 && !is_left_over(o, (inv_id)v));
    inv_graph_destroy(g);
    return s;
}

/* The values of flat by what stands for each: first what no item gives, then in the order of items. Rewriting changes
 * the numbers of values, but not this order. */
static size_t list_values(const inv_outliner *o, uint32_t *key, uint32_t *value)
{
    const inv_graph *flat = o->flat;
    size_t n = 0;
    for (uint32_t v = 0; v < flat->value.n; v++)
        if (inv_item_giving(o, v) == INV_NONE) value[n++] = v;
    for (uint32_t i = 0; i < flat->order.n; i++)
        for (uint32_t k = 0; k < inv_item(o, i)->nout; k++)
            if (inv_item(o, i)->out[k] != INV_NONE) value[n++] = inv_item(o, i)->out[k];
    for (size_t i = 0; i < n; i++) key[i] = inv_graph_stands(o->g, value[i]);
    return n;
}

static inv_status items(inv_outliner *o)
{
    inv_arena *s = &o->scratch;
    const inv_graph *flat = o->flat, *g = o->g;
    size_t nn = g->order.n, nv = flat->value.n, ne = g->matches->edge.n;
    size_t nkey = nn > nv ? nn : nv;
    nkey = nkey > ne ? nkey : ne;
    uint32_t *key = INV_ARENA_NEW(s, uint32_t, nkey + 1), *item = INV_ARENA_NEW(s, uint32_t, nkey + 1);
    o->item_at = INV_ARENA_NEW(s, uint32_t, flat->node.n + 1);
    o->item_of = INV_ARENA_NEW(s, uint32_t, g->node.n + 1);
    o->live = INV_ARENA_NEW(s, bool, g->node.n + 1);
    if (!o->live || !key || !item || !o->item_at || !o->item_of) return INV_E_NOMEM;
    memset(o->item_at, 0xff, flat->node.n * sizeof *o->item_at);
    memset(o->item_of, 0xff, g->node.n * sizeof *o->item_of);
    for (uint32_t i = 0; i < flat->order.n; i++) o->item_at[flat->order.at[i]] = i;
    for (size_t i = 0; i < nn; i++) {
        o->live[g->order.at[i]] = true;
        item[i] = g->order.at[i];
        key[i] = o->item_of[g->order.at[i]] = inv_nod(g, g->order.at[i])->source;
    }
    if (!by_key(s, flat->order.n, nn, key, item, &o->made_start, &o->made)) return INV_E_NOMEM;
    if (!by_key(s, g->value.n, list_values(o, key, item), key, item, &o->alias_start, &o->alias)) return INV_E_NOMEM;
    for (uint32_t e = 0; e < ne; e++) {
        item[e] = e;
        key[e] = o->item_of[g->matches->edge.at[e].forward];
    }
    return by_key(s, flat->order.n, ne, key, item, &o->edge_start, &o->edge) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_outline_tables(inv_outliner *o)
{
    size_t ni = o->flat->order.n + 1;
    INV_TRY(items(o));
    o->name = INV_ARENA_NEW(&o->scratch, const char *, o->g->value.n + 1);
    o->other = INV_ARENA_NEW(&o->scratch, const char *, o->g->value.n + 1);
    o->name_type = INV_ARENA_NEW(&o->scratch, inv_dtype, o->g->value.n + 1);
    o->other_type = INV_ARENA_NEW(&o->scratch, inv_dtype, o->g->value.n + 1);
    o->watch = INV_ARENA_NEW(&o->scratch, uint32_t, o->g->value.n + 1);
    o->foremost = INV_ARENA_NEW(&o->scratch, const inv_edge *, o->g->value.n + 1);
    o->seen = INV_ARENA_NEW(&o->scratch, uint32_t, o->g->value.n + 1);
    o->held = INV_ARENA_NEW(&o->scratch, uint32_t, ni);
    o->ran = INV_ARENA_NEW(&o->scratch, uint32_t, ni);
    const bool made =
        o->name && o->other && o->name_type && o->other_type && o->watch && o->foremost && o->seen && o->held && o->ran;
    return made ? INV_OK : INV_E_NOMEM;
}

/* --- the whole --- */

/* What an earlier rewriting has put into functions besides the file's nodes, to save values for inverses. */
static inv_status drop_saved(inv_outliner *o, const inv_graph *source)
{
    inv_graph *flat = o->flat;
    bool *live = INV_ARENA_NEW(&o->scratch, bool, flat->value.n + 1);
    size_t n = 0;
    o->gone = INV_ARENA_NEW(&o->scratch, bool, flat->value.n + 1);
    if (!live || !o->gone) return INV_E_NOMEM;
    for (size_t i = flat->order.n; i-- > 0;) {
        const inv_node *x = inv_nod(flat, flat->order.at[i]);
        bool needed = x->source < source->node.n;
        for (uint32_t k = 0; k < x->nout && !needed; k++)
            needed = x->out[k] != INV_NONE && (live[x->out[k]] || inv_val(flat, x->out[k])->is_output);
        if (!needed) flat->order.at[i] = INV_NONE;
        for (uint32_t k = 0; k < x->nin && needed; k++)
            if (x->in[k] != INV_NONE) live[x->in[k]] = true;
        for (uint32_t k = 0; k < x->nout && !needed; k++)
            if (x->out[k] != INV_NONE) o->gone[x->out[k]] = true;
    }
    for (size_t i = 0; i < flat->order.n; i++)
        if (flat->order.at[i] != INV_NONE) flat->order.at[n++] = flat->order.at[i];
    flat->order.n = n;
    return INV_OK;
}

static inv_status find_data(inv_outliner *o)
{
    inv_matcher m = {.g = o->g};
    inv_status s = inv_matcher_init(&m);
    o->carries = INV_ARENA_NEW(&o->scratch, bool, o->g->value.n + 1);
    if (s == INV_OK && !o->carries) s = INV_E_NOMEM;
    if (s == INV_OK) memcpy(o->carries, m.active, o->g->value.n * sizeof *o->carries);
    inv_matcher_fini(&m);
    INV_TRY(s);
    /* Values between merged nodes live in the file only. */
    for (uint32_t i = 0; i < o->flat->order.n; i++) {
        const inv_node *n = inv_item(o, i);
        bool any = false;
        for (uint32_t k = 0; k < n->nin; k++) any = any || (n->in[k] != INV_NONE && o->carries[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE)
                o->carries[n->out[k]] = any && inv_val(o->g, inv_graph_stands(o->g, n->out[k]))->role != INV_ROLE_CONST;
    }
    return INV_OK;
}

/* Whether an initializer is what an earlier rewriting put there, for inverses only to read; the metadata alone do not
 * prove it. */
static bool is_inverse(const inv_outliner *o, inv_id v)
{
    const inv_value *val = inv_val(o->flat, v);
    inv_id of = val->inverse_of ? inv_graph_find(o->flat, val->inverse_of) : INV_NONE;
    if (of == INV_NONE || of == v || o->carries[of] || val->is_output || !inv_dtype_is_float(val->dtype) ||
        o->uses.start[v] != o->uses.start[v + 1])
        return false;
    inv_shape s = inv_val(o->g, inv_graph_stands(o->g, of))->shape;
    const inv_shape *is = &val->shape;
    const int64_t groups = is->rank == 3 ? is->dim[0] : 1;
    if (s.rank < 2 || (is->rank != 2 && is->rank != 3) || s.dim[0] < 1 || groups < 1) return false;
    return is->dim[is->rank - 1] * groups == s.dim[0] && is->dim[is->rank - 2] == inv_shape_nelem(&s) / s.dim[0];
}

static bool is_block_function(const inv_graph *source, inv_id f)
{
    return f != INV_NONE && source->function.at[f].block;
}

/* A call of a function that a rewriting made, from where it cannot be opened up; NULL: none. */
static const inv_node *stray_call(const inv_graph *source, const inv_callees *c, const inv_graph *g, bool here)
{
    const inv_node *found = NULL;
    for (size_t i = 0; i < g->order.n && !found; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (here && is_block_function(source, inv_callee(c, n))) found = n;
        for (uint32_t k = 0; k < n->nattr && !found; k++)
            if (n->attr[k].kind == INV_ATTR_GRAPH && n->attr[k].graph)
                found = stray_call(source, c, n->attr[k].graph, true);
    }
    return found;
}

/* The second call of one function of a rewriting in a list of nodes; counts those before. NULL: there is none. */
static const inv_node *second_call(const inv_graph *source, const inv_callees *c, const inv_graph *g, uint32_t *calls)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const inv_id f = inv_callee(c, n);
        if (is_block_function(source, f) && ++calls[f] == 2) return n;
    }
    return NULL;
}

/* Names, and what the metadata say, are those of one call, of the main graph or of another such function. */
static inv_status refuse_calls(inv_outliner *o, const inv_graph *source)
{
    inv_callees c;
    uint32_t *calls = INV_ARENA_NEW(&o->scratch, uint32_t, source->function.n + 1);
    if (!calls) return INV_E_NOMEM;
    INV_TRY(inv_callees_init(&c, source, &o->scratch));
    const inv_node *stray = stray_call(source, &c, source, false), *second = second_call(source, &c, source, calls);
    for (size_t i = 0; i < source->function.n; i++) {
        const inv_function *f = &source->function.at[i];
        if (!stray) stray = stray_call(source, &c, f->body, !f->block);
        if (!second && f->block) second = second_call(source, &c, f->body, calls);
    }
    INV_CHECK(!stray, o->ctx, INV_E_GRAPH,
              "function '%s' of an earlier rewriting is called from a function or control flow. Inline the model's "
              "functions first (onnx.inliner), then rewrite it",
              stray->op_type);
    INV_CHECK(!second, o->ctx, INV_E_GRAPH,
              "function '%s' of an earlier rewriting is called twice. Inline the model's functions first "
              "(onnx.inliner), then rewrite it",
              second->op_type);
    return INV_OK;
}

/* From here on nodes have the numbers of items. */
static inv_status renumber_nodes(inv_outliner *o)
{
    o->nitem = o->flat->order.n;
    o->file = INV_ARENA_NEW(&o->scratch, inv_id, o->nitem + 1);
    for (uint32_t i = 0; o->file && i < o->nitem; i++) {
        inv_node *n = inv_nod(o->flat, o->flat->order.at[i]);
        o->file[i] = n->source;
        n->source = i;
    }
    return o->file ? INV_OK : INV_E_NOMEM;
}

/* Whoever gets the graphs finds the numbers of the file in them. */
static void restore_numbers(const inv_outliner *o, inv_graph *g)
{
    for (size_t i = 0; g && o->file && i < g->node.n; i++) {
        inv_node *n = inv_nod(g, (inv_id)i);
        if (n->source < o->nitem) n->source = o->file[n->source];
    }
}

/* The passes up to matching, over a copy of the flat graph. An input whose values are given may decide branches. */
static inv_status compile_flat(inv_outliner *o, const inv_session_options *options, inv_purpose purpose)
{
    inv_session_options with = *options;
    const inv_request rq = {.options = &with, .purpose = purpose, .plan = o->reverse ? "inverse" : "main"};
    for (;;) {
        bool more = false;
        inv_graph_destroy(o->g);
        INV_TRY(inv_graph_copy(o->flat, &o->g));
        if (o->real == INV_F64 || o->wide || o->reverse) o->g->real = INV_F64;
        o->g->told = o->real;
        o->g->eval = o->reverse != NULL;
        o->plan = (inv_plan){0};
        const inv_status s = inv_compile_front(o->g, &rq, &o->plan);
        if (s == INV_E_NOT_CONSTANT && with.constants_as_needed)
            INV_TRY(inv_bind_varying(o->g, options, &o->scratch, &with, &more));
        for (size_t i = 0; !more && i < with.nconstant_inputs; i++)
            if (!inv_vec_push(o->a, &o->out->fixed, inv_arena_strdup(o->a, with.constant_inputs[i])))
                return INV_E_NOMEM;
        if (more) continue;
        INV_TRY(s);
        /* evaluation matches nothing, but its inverse is made of what is matched */
        if (o->reverse && !o->g->matches) INV_PASS(&rq, o->g, INV_LEFT_MATCHED, "match", inv_pass_match(o->g));
        return INV_OK;
    }
}

inv_status inv_outline_open(inv_outliner *o, const inv_graph *source, const inv_session_options *options,
                            inv_purpose purpose)
{
    INV_TRY(inv_graph_copy(source, &o->flat));
    INV_TRY(inv_outline_openings(o, source, o->flat));
    INV_TRY(inv_pass_inline(o->flat, true));
    INV_TRY(drop_saved(o, source));
    INV_TRY(renumber_nodes(o));
    INV_TRY(inv_graph_uses(o->flat, &o->scratch, &o->uses));
    o->real = real_of_file(o);
    if (o->real == INV_DT_NONE) INV_TRY(find_types(o));
    INV_TRY(compile_flat(o, options, purpose));
    INV_TRY(find_data(o));
    for (size_t i = 0; i < o->flat->inits.n; i++) {
        inv_id v = o->flat->inits.at[i];
        if (!is_inverse(o, v)) inv_val(o->flat, v)->inverse_of = NULL;
        else if (!inv_vec_push(o->a, &o->out->drop, inv_val(o->flat, v)->name)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status make_outline(inv_outliner *o, const inv_graph *source, const inv_session_options *options,
                               inv_rewriting *out)
{
    (void)out;
    o->out->rewritten = true;
    INV_TRY(refuse_calls(o, source));
    INV_TRY(inv_outline_open(o, source, options, INV_FOR_RUN));
    INV_TRY(inv_outline_tables(o));
    return inv_outline_cut(o);
}

/* The initializers that are inverses of others, for the weights of `source`. */
static inv_status refresh(inv_outliner *o, const inv_graph *source, const inv_session_options *options,
                          inv_rewriting *out)
{
    (void)out;
    INV_TRY(inv_outline_open(o, source, options, INV_FOR_EVAL));
    for (size_t i = 0; i < source->inits.n; i++) {
        const inv_value *v = inv_val(o->flat, o->flat->inits.at[i]);
        if (!v->inverse_of) continue;
        inv_solver s = {inv_graph_stands(o->g, inv_graph_find(o->flat, v->inverse_of)), v->inverse_of, v->name,
                        v->shape.rank == 3 ? v->shape.dim[0] : 1, false};
        if (!inv_vec_push(&o->scratch, &o->solver, s)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_outline_make(const inv_outliner *flags, const inv_graph *source, const inv_session_options *options,
                            inv_outline_fn make, inv_rewriting **out)
{
    inv_context *ctx = flags->ctx;
    *out = NULL;
    inv_rewriting *r = inv_alloc(ctx, sizeof *r);
    if (!r) return INV_E_NOMEM;
    r->ctx = ctx;
    inv_arena_init(&r->a, ctx);
    inv_outliner o = *flags;
    o.a = &r->a;
    o.out = &r->outline;
    inv_arena_init(&o.scratch, ctx);
    inv_session_options all = {0};
    memcpy(&all, options, options->size < sizeof all ? options->size : sizeof all);
    inv_status s = make(&o, source, &all, r);
    if (s == INV_OK) s = inv_outline_put_inverses(&o, r);
    if (s == INV_OK && (r->a.failed || o.scratch.failed)) s = INV_E_NOMEM;
    restore_numbers(&o, o.flat);
    restore_numbers(&o, o.g);
    restore_numbers(&o, r->reversed);
    inv_arena_fini(&o.scratch);
    r->flat = o.flat;
    r->g = o.g;
    if (s == INV_OK) *out = r;
    else inv_rewriting_destroy(r);
    return s;
}

/* --- for every batch and extent --- */

static bool same_texts(const char *const *a, uint32_t na, const char *const *b, uint32_t nb)
{
    bool same = na == nb;
    for (uint32_t i = 0; i < na && same; i++) same = strcmp(a[i], b[i]) == 0;
    return same;
}

static bool same_outline_node(const inv_outline_node *a, const inv_outline_node *b)
{
    bool same = a->source == b->source && a->nattr == b->nattr && same_texts(a->in, a->nin, b->in, b->nin) &&
                same_texts(a->out, a->nout, b->out, b->nout);
    if (a->source != INV_NONE || !same) return same;
    for (uint32_t i = 0; i < a->nattr && same; i++) same = inv_attr_same(&a->attr[i], &b->attr[i]);
    return same && strcmp(a->op_type, b->op_type) == 0;
}

/* Whether the other outline has the same function. */
static bool has_function(const inv_outline *o, const inv_outline_function *f)
{
    for (size_t i = 0; i < o->function.n; i++) {
        const inv_outline_function *x = &o->function.at[i];
        if (strcmp(x->name, f->name) != 0) continue;
        bool same = x->node.n == f->node.n && same_texts(x->in, x->nin, f->in, f->nin) &&
                    same_texts(x->out, x->nout, f->out, f->nout);
        for (size_t k = 0; k < f->node.n && same; k++) same = same_outline_node(&x->node.at[k], &f->node.at[k]);
        return same;
    }
    return false;
}

/* Functions of the file are opened up where blocks get inverses by that, and nowhere else. */
static inv_status open_some(const inv_batch_job *job, inv_outliner *flags, const inv_session_options *shapes,
                            bool *open, inv_rewriting **out)
{
    inv_rewriting *opened;
    bool all;
    if (!inv_outline_wants(*out, job->source, &flags->barred, open)) return INV_OK;
    flags->open = open;
    INV_TRY(inv_outline_make(flags, job->source, shapes, make_outline, &opened));
    const bool gains = inv_outline_gains(opened, *out, job->source, open, &all);
    if (gains) {
        inv_rewriting *closed = *out;
        *out = opened;
        opened = closed;
    }
    inv_rewriting_destroy(opened);
    if (!gains || all) return INV_OK;
    inv_rewriting_destroy(*out);
    return inv_outline_make(flags, job->source, shapes, make_outline, out);
}

static inv_status make_with(const inv_batch_job *job, inv_outliner *flags, const inv_session_options *shapes,
                            inv_rewriting **out)
{
    inv_arena scratch;
    inv_arena_init(&scratch, job->ctx);
    bool *open = INV_ARENA_NEW(&scratch, bool, job->source->function.n + 1);
    inv_status s = open ? inv_outline_make(flags, job->source, shapes, make_outline, out) : INV_E_NOMEM;
    if (s == INV_OK) s = open_some(job, flags, shapes, open, out);
    if (s != INV_OK) {
        inv_rewriting_destroy(*out);
        *out = NULL;
    }
    inv_arena_fini(&scratch);
    return s;
}

static inv_status make_blocks(const inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out)
{
    return make_with(job, &(inv_outliner){.ctx = job->ctx}, shapes, out);
}

/* Blocks of which the inverse is another one for another batch or extent get none. */
static inv_status bar_inverses(const inv_batch_job *job, const inv_session_options *shapes, bool others,
                               inv_rewriting *made[3])
{
    const inv_outline *a = &made[0]->outline;
    inv_outliner flags = {.ctx = job->ctx};
    inv_arena scratch;
    (void)others;
    inv_arena_init(&scratch, job->ctx);
    inv_status s = INV_OK;
    for (size_t i = 0; i < a->block.n && s == INV_OK; i++) {
        const inv_outline_block *row = &a->block.at[i];
        bool holds = true;
        for (int k = 1; k < 3 && row->inverse; k++)
            holds = holds && (!made[k] || has_function(&made[k]->outline, &a->function.at[row->at + 1]));
        if (!holds && !inv_vec_push(&scratch, &flags.barred, row->block)) s = INV_E_NOMEM;
    }
    if (s == INV_OK && flags.barred.n) {
        inv_rewriting_destroy(made[0]);
        s = make_with(job, &flags, shapes, &made[0]);
    }
    inv_arena_fini(&scratch);
    return s;
}

inv_status inv_rewrite_blocks(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                              inv_rewriting **out)
{
    const inv_batch_job job = {.ctx = ctx, .source = source, .make = make_blocks, .settle = bar_inverses};
    return inv_for_every_batch(&job, options, out);
}

inv_status inv_rewrite_inverses(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                                inv_rewriting **out)
{
    return inv_outline_make(&(inv_outliner){.ctx = ctx}, source, options, refresh, out);
}
