/* SPDX-License-Identifier: Apache-2.0
 * The inverse of a block as a function of ordinary ONNX nodes. From what leaves the block, values are derived until
 * those that it frees are known: forward by the file's own nodes, backward by the local inverses of its operators. A
 * coupling needs no code of its own here either:
 *
 *     y1, x2 known -> the nodes of F run forward -> t known -> Add is solved: x1 = Sub(y1, t)
 *
 * If what the rule calls the block's outputs does not suffice, the other values that leave it are taken, then values
 * that forward must save (batch statistics), then inputs that cannot be had in any way. */
#include <math.h>
#include <string.h>

#include "ops/linear.h"
#include "passes/outline.h"

typedef struct derivation {
    inv_outliner *o;
    inv_cut *cut;
    const char **name; /* per value of g: how the body calls it; NULL: not known */
    inv_ids named;     /* values with a name, to be taken back at the end */
    inv_raise r;
    inv_outline_nodes node;
    INV_VEC(const inv_edge *) used;
    INV_VEC(const char *) solver; /* names of initializers that it reads */
} derivation;

static bool has_text(const char *const *list, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], text) == 0) return true;
    return false;
}

/* --- what is known --- */

static const char *name_of(const derivation *d, inv_id v)
{
    if (d->name[v]) return d->name[v];
    return d->o->carries[v] ? d->name[inv_graph_stands(d->o->g, v)] : NULL;
}

static inv_status call_it(derivation *d, inv_id v, const char *name)
{
    if (!name || !inv_vec_push(&d->o->scratch, &d->named, v)) return INV_E_NOMEM;
    d->name[v] = name;
    return INV_OK;
}

static inv_status know(derivation *d, inv_id v, const char *name)
{
    inv_id c = inv_graph_stands(d->o->g, v);
    INV_TRY(call_it(d, v, name));
    return d->name[c] ? INV_OK : call_it(d, c, name);
}

static inv_status know_all(derivation *d, const inv_ids *values, const inv_id *only, uint32_t nonly)
{
    for (size_t i = 0; i < values->n; i++) {
        inv_id v = values->at[i];
        if (name_of(d, v) || (only && !inv_ids_have(only, nonly, inv_graph_stands(d->o->g, v)))) continue;
        INV_TRY(know(d, v, inv_val(d->o->flat, v)->name));
    }
    return INV_OK;
}

static bool in_cut(const derivation *d, uint32_t item) { return item != INV_NONE && d->o->held[item] == d->o->stamp; }

/* The file's name for a value of g, a freed one first; a fresh one if it has none. */
static const char *label(derivation *d, inv_id c)
{
    const inv_outliner *o = d->o;
    for (size_t i = 0; i < d->cut->in.n; i++)
        if (inv_graph_stands(o->g, d->cut->in.at[i]) == c) return inv_val(o->flat, d->cut->in.at[i])->name;
    for (uint32_t k = o->alias_start[c]; k < o->alias_start[c + 1]; k++) {
        inv_id def = inv_val(o->flat, o->alias[k])->def;
        if (def != INV_NONE && in_cut(d, o->item_at[def])) return inv_val(o->flat, o->alias[k])->name;
    }
    return inv_raise_fresh(&d->r);
}

/* --- forward: one of the file's nodes again --- */

static inv_status run_item(derivation *d, uint32_t i, bool *done)
{
    const inv_node *n = inv_item(d->o, i);
    bool wanted = false;
    *done = false;
    if (d->o->ran[i] == d->o->stamp) return INV_OK;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && !name_of(d, n->in[k])) return INV_OK;
    /* Bodies of control flow name what they capture. */
    for (uint32_t k = inv_node_listed(n); k < n->nin; k++)
        if (strcmp(name_of(d, n->in[k]), inv_val(d->o->flat, n->in[k])->name) != 0) return INV_OK;
    for (uint32_t k = 0; k < n->nout; k++) wanted = wanted || (n->out[k] != INV_NONE && !name_of(d, n->out[k]));
    if (!wanted) return INV_OK;
    const char **in = INV_ARENA_NEW(d->o->a, const char *, n->nin + 1);
    const char **out = INV_ARENA_NEW(d->o->a, const char *, n->nout + 1);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nin; k++) in[k] = n->in[k] == INV_NONE ? "" : name_of(d, n->in[k]);
    for (uint32_t k = 0; k < n->nout; k++) {
        out[k] = "";
        if (n->out[k] == INV_NONE) continue;
        bool known = name_of(d, n->out[k]) != NULL;
        out[k] = known ? inv_raise_fresh(&d->r) : inv_val(d->o->flat, n->out[k])->name;
        if (!out[k]) return INV_E_NOMEM;
        if (!known) INV_TRY(know(d, n->out[k], out[k]));
    }
    d->o->ran[i] = d->o->stamp;
    *done = true;
    inv_outline_node copy = {.source = n->source, .in = in, .out = out, .nin = n->nin, .nout = n->nout,
                             .ncaptured = n->nin - inv_node_listed(n)};
    return inv_vec_push(d->o->a, &d->node, copy) ? INV_OK : INV_E_NOMEM;
}

/* --- backward: a local inverse --- */

static bool is_solve(const inv_node *n) { return strcmp(n->op->name, "LinearSolve") == 0; }

static bool makes(const inv_graph *g, const inv_edge *e, inv_id v)
{
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        if (inv_ids_have(n->out, n->nout, v)) return true;
    }
    return false;
}

/* Whether the template uses v as a matrix to solve with only: then it reads the initializer instead. */
static bool is_matrix(const inv_graph *g, const inv_edge *e, inv_id v)
{
    bool matrix = false;
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] != v) continue;
            inv_id out = n->nout == 1 ? n->out[0] : INV_NONE;
            bool here = (is_solve(n) && k == 1) || (out != INV_NONE && out != v && makes(g, e, out) &&
                                                    strcmp(n->op->name, "View") == 0 && is_matrix(g, e, out));
            if (!here) return false;
            matrix = true;
        }
    }
    return matrix;
}

static bool ready(const derivation *d, const inv_edge *e)
{
    const inv_graph *g = d->o->g;
    if (name_of(d, e->frees) || !d->o->carries[e->frees]) return false;
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id v = n->in[k];
            if (v == INV_NONE || makes(g, e, v) || is_matrix(g, e, v)) continue;
            if (!d->name[v] && inv_val(g, v)->role != INV_ROLE_CONST) return false;
        }
    }
    return true;
}

/* Whether the node makes a kernel of a matrix or the other way round: axes of extent 1 behind the first two. */
static bool same_matrix(const inv_graph *g, inv_id node)
{
    if (node == INV_NONE || strcmp(inv_nod(g, node)->op->name, "View") != 0) return false;
    inv_shape a = inv_val(g, inv_nod(g, node)->in[0])->shape, b = inv_val(g, inv_nod(g, node)->out[0])->shape;
    return a.rank > 1 && b.rank > 1 && a.dim[0] == b.dim[0];
}

/* Name of the initializer that holds the pseudo-inverse of `v`, or of what it is a view of. NULL with a reason: none of
 * the file's values is that matrix, so nobody could refresh its inverse. */
static const char *solver_name(derivation *d, inv_id v)
{
    inv_outliner *o = d->o;
    while (same_matrix(o->g, inv_val(o->g, v)->def)) v = inv_nod(o->g, inv_val(o->g, v)->def)->in[0];
    d->r.reason = "its matrix is not a value of the file";
    if (o->alias_start[v] == o->alias_start[v + 1]) return NULL;
    const char *name = NULL, *of = inv_val(o->flat, o->alias[o->alias_start[v]])->name;
    for (size_t i = 0; i < o->solver.n && !name; i++)
        if (o->solver.at[i].matrix == v) name = o->solver.at[i].name;
    if (!name) {
        name = inv__arena_printf(o->a, "%s_inv", of);
        for (uint32_t k = 1; name && inv_graph_find(o->flat, name) != INV_NONE; k++) {
            if (inv_val(o->flat, inv_graph_find(o->flat, name))->inverse_of) break; /* of an earlier rewriting */
            name = inv__arena_printf(o->a, "%s_inv_%u", of, k);
        }
        if (!name || !inv_vec_push(&o->scratch, &o->solver, ((inv_solver){v, of, name}))) return NULL;
    }
    d->r.reason = NULL;
    if (has_text(d->solver.at, d->solver.n, name)) return name;
    return inv_vec_push(&o->scratch, &d->solver, name) ? name : NULL;
}

/* A constant that lowering made: as a node of the body. */
static inv_status put_constant(derivation *d, inv_id v)
{
    inv_outliner *o = d->o;
    inv_attr *attr = INV_ARENA_NEW(o->a, inv_attr, 1);
    const char **out = INV_ARENA_NEW(o->a, const char *, 1);
    inv_data data = inv_val(o->g, v)->data;
    if (!attr || !out || !(out[0] = inv_raise_fresh(&d->r))) return INV_E_NOMEM;
    size_t nelem = (size_t)inv_shape_nelem(&data.shape);
    inv_dtype to = inv_dtype_is_float(data.dtype) ? o->real : data.dtype;
    void *bytes = inv__arena_alloc(o->a, nelem * 8 + 1);
    if (!bytes) return INV_E_NOMEM;
    (void)inv_convert(bytes, to, data.bytes, data.dtype, nelem);
    data = (inv_data){to, data.shape, bytes, nelem * inv_dtype_size(to)};
    *attr = (inv_attr){.name = "value", .kind = INV_ATTR_TENSOR, .tensor = data};
    INV_TRY(call_it(d, v, out[0]));
    inv_outline_node n = {.source = INV_NONE, .domain = "", .op_type = "Constant", .name = "", .out = out, .nout = 1,
                          .attr = attr, .nattr = 1};
    return inv_vec_push(o->a, &d->node, n) ? INV_OK : INV_E_NOMEM;
}

/* Names for the template's outputs: of the values that it frees (a split has several), and fresh ones between. */
static inv_status name_template(derivation *d, const inv_edge *e)
{
    const inv_outliner *o = d->o;
    const inv_graph *g = o->g;
    uint32_t item = o->item_of[e->forward];
    for (uint32_t i = o->edge_start[item]; i < o->edge_start[item + 1]; i++) {
        const inv_edge *other = &g->matches->edge.at[o->edge[i]];
        if (other->node != e->node || name_of(d, other->frees)) continue;
        const char *name = label(d, other->frees);
        INV_TRY(call_it(d, other->result, name));
        INV_TRY(know(d, other->frees, name));
    }
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && !d->name[n->out[k]]) INV_TRY(call_it(d, n->out[k], inv_raise_fresh(&d->r)));
    }
    return INV_OK;
}

static inv_status run_edge(derivation *d, const inv_edge *e, bool *done)
{
    inv_outliner *o = d->o;
    const inv_graph *g = o->g;
    INV_TRY(name_template(d, e));
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        const char *solver = NULL;
        if (n->nout == 1 && is_matrix(g, e, n->out[0])) continue;
        *done = !is_solve(n) || (solver = solver_name(d, n->in[1])) != NULL;
        if (!*done) return o->a->failed || o->scratch.failed ? INV_E_NOMEM : INV_OK;
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE && !(solver && k == 1) && !d->name[n->in[k]]) INV_TRY(put_constant(d, n->in[k]));
        if (inv_raise_node(&d->r, n, solver)) continue;
        if (o->a->failed) return INV_E_NOMEM;
        *done = false;
        return INV_OK;
    }
    *done = true;
    return inv_vec_push(&o->scratch, &d->used, e) ? INV_OK : INV_E_NOMEM;
}

static const inv_edge *best_edge(const derivation *d)
{
    const inv_matches *found = d->o->g->matches;
    const inv_edge *best = NULL;
    for (uint32_t k = 0; k < d->cut->nitem; k++) {
        uint32_t item = d->cut->item[k];
        for (uint32_t i = d->o->edge_start[item]; i < d->o->edge_start[item + 1]; i++) {
            const inv_edge *e = &found->edge.at[d->o->edge[i]];
            if (ready(d, e) && (!best || e->gain < best->gain)) best = e;
        }
    }
    return best;
}

/* Derives all that can be derived, forward first. */
static inv_status close_over(derivation *d, bool *ok)
{
    bool done = true;
    for (*ok = true; *ok && done;) {
        done = false;
        for (uint32_t k = 0; k < d->cut->nitem; k++) {
            bool ran;
            INV_TRY(run_item(d, d->cut->item[k], &ran));
            done = done || ran;
        }
        const inv_edge *e = done ? NULL : best_edge(d);
        if (!e) continue;
        INV_TRY(run_edge(d, e, ok));
        done = true;
    }
    return INV_OK;
}

/* --- how much has to be known --- */

/* What the inverse shall give: inputs of the rule that do not pass through. */
static inv_status find_freed(derivation *d, inv_ids *freed)
{
    const inv_block *b = d->cut->block;
    for (size_t i = 0; i < d->cut->in.n; i++) {
        inv_id v = d->cut->in.at[i], c = inv_graph_stands(d->o->g, v);
        if (!d->o->carries[v] || !inv_ids_have(b->in, b->nrule_in, c)) continue;
        if (inv_ids_have(b->out, b->nrule_out, c)) continue;
        if (!inv_vec_push(&d->o->scratch, freed, v)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static bool is_first(const derivation *d, inv_id v)
{
    return d->cut->block->nrule_in && inv_graph_stands(d->o->g, v) == d->cut->block->in[0];
}

/* Values that the rule reads and that are computed inside of the widened block: forward saves them. */
static inv_status save_statistics(derivation *d)
{
    inv_outliner *o = d->o;
    const inv_block *b = d->cut->block;
    for (uint32_t i = 0; i < b->nrule_in; i++) {
        inv_id c = b->in[i], def = inv_val(o->g, c)->def;
        uint32_t item = def == INV_NONE ? INV_NONE : o->item_of[def];
        if (!in_cut(d, item) || name_of(d, c)) continue;
        if (!inv_vec_push(o->a, &d->cut->saved, c)) return INV_E_NOMEM;
    }
    const char **name = INV_ARENA_NEW(o->a, const char *, d->cut->saved.n + 1);
    for (size_t i = 0; name && i < d->cut->saved.n; i++) {
        const inv_node *n = inv_nod(o->g, inv_val(o->g, d->cut->saved.at[i])->def);
        const inv_node *item = inv_item(o, o->item_of[inv_val(o->g, d->cut->saved.at[i])->def]);
        uint32_t k = 0;
        while (n->out[k] != d->cut->saved.at[i]) k++;
        name[i] = inv__arena_printf(o->a, "%s.saved_%u", inv_val(o->flat, item->out[0])->name, k);
        if (!name[i]) return INV_E_NOMEM;
        INV_TRY(know(d, d->cut->saved.at[i], name[i]));
    }
    d->cut->saved_name = name;
    return name ? INV_OK : INV_E_NOMEM;
}

static bool all_known(const derivation *d, const inv_ids *freed, bool first_only)
{
    for (size_t i = 0; i < freed->n; i++)
        if (!name_of(d, freed->at[i]) && (!first_only || is_first(d, freed->at[i]))) return false;
    return freed->n > 0;
}

static inv_status derive(derivation *d, inv_ids *freed, bool *ok)
{
    const inv_outliner *o = d->o;
    const inv_block *b = d->cut->block;
    for (size_t i = 0; i < d->cut->in.n; i++)
        if (!o->carries[d->cut->in.at[i]])
            INV_TRY(know(d, d->cut->in.at[i], inv_val(o->flat, d->cut->in.at[i])->name));
    INV_TRY(know_all(d, &d->cut->in, b->out, b->nrule_out));
    for (int level = 0; level < 3; level++) {
        if (level < 2) INV_TRY(know_all(d, &d->cut->out, level ? NULL : b->out, b->nrule_out));
        else INV_TRY(save_statistics(d));
        INV_TRY(close_over(d, ok));
        if (!*ok || all_known(d, freed, false)) return INV_OK;
    }
    for (size_t i = 0; i < d->cut->in.n && !all_known(d, freed, true); i++) {
        inv_id v = d->cut->in.at[i];
        if (name_of(d, v) || is_first(d, v)) continue;
        INV_TRY(know(d, v, inv_val(o->flat, v)->name)); /* given */
        for (size_t k = 0; k < freed->n; k++)
            if (freed->at[k] == v) memmove(&freed->at[k], &freed->at[k + 1], (--freed->n - k) * sizeof freed->at[0]);
        INV_TRY(close_over(d, ok));
        if (!*ok) return INV_OK;
    }
    size_t n = 0;
    for (size_t k = 0; k < freed->n; k++)
        if (name_of(d, freed->at[k])) freed->at[n++] = freed->at[k];
    freed->n = n;
    *ok = all_known(d, freed, true);
    return INV_OK;
}

/* --- the function --- */

typedef INV_VEC(const char *) texts;

/* Drops the nodes that the freed values do not come from; `read` gets the names that the others read. */
static inv_status prune(derivation *d, const inv_outline_function *fn, inv_outline_nodes *kept, texts *read)
{
    bool *needed = INV_ARENA_NEW(&d->o->scratch, bool, d->node.n + 1);
    if (!needed) return INV_E_NOMEM;
    for (size_t i = d->node.n; i-- > 0;) {
        const inv_outline_node *n = &d->node.at[i];
        for (uint32_t k = 0; k < n->nout && !needed[i]; k++)
            needed[i] = *n->out[k] &&
                        (has_text(fn->out, fn->nout, n->out[k]) || has_text(read->at, read->n, n->out[k]));
        for (uint32_t k = 0; k < n->nin && needed[i]; k++)
            if (*n->in[k] && !has_text(read->at, read->n, n->in[k]) &&
                !inv_vec_push(&d->o->scratch, read, n->in[k]))
                return INV_E_NOMEM;
    }
    for (size_t i = 0; i < d->node.n; i++)
        if (needed[i] && !inv_vec_push(d->o->a, kept, d->node.at[i])) return INV_E_NOMEM;
    return INV_OK;
}

static bool is_made(const inv_outline_function *fn, const char *name)
{
    for (size_t i = 0; i < fn->node.n; i++)
        if (has_text(fn->node.at[i].out, fn->node.at[i].nout, name)) return true;
    return false;
}

/* The names that are read and not made: outputs of the block, what was saved, what is given, parameters, solvers. */
static inv_status find_inputs(derivation *d, const texts *read, inv_outline_function *fn, inv_outline_block *row)
{
    const inv_outliner *o = d->o;
    const inv_cut *cut = d->cut;
    size_t n = cut->out.n + cut->saved.n + cut->in.n + d->solver.n;
    const char **in = INV_ARENA_NEW(o->a, const char *, n + 1), **given = INV_ARENA_NEW(o->a, const char *, n + 1);
    if (!in || !given) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t k = i;
        const char *name;
        inv_id v = INV_NONE;
        if (k < cut->out.n) name = inv_val(o->flat, cut->out.at[k])->name;
        else if ((k -= cut->out.n) < cut->saved.n) name = cut->saved_name[k];
        else if ((k -= cut->saved.n) < cut->in.n) name = inv_val(o->flat, v = cut->in.at[k])->name;
        else name = d->solver.at[k - cut->in.n];
        if (!has_text(read->at, read->n, name) || has_text(in, fn->nin, name) || is_made(fn, name)) continue;
        in[fn->nin++] = name;
        if (v != INV_NONE && o->carries[v]) given[row->ngiven++] = name;
    }
    fn->in = in;
    row->given = given;
    return INV_OK;
}

static inv_status finish(derivation *d, const inv_ids *freed)
{
    inv_outliner *o = d->o;
    inv_outline_function *fn = &d->cut->inverse;
    inv_outline_block *row = &d->cut->row;
    const char **out = INV_ARENA_NEW(o->a, const char *, freed->n + 1);
    texts read = {0};
    if (!out) return INV_E_NOMEM;
    for (size_t i = 0; i < freed->n; i++) {
        out[i] = inv_val(o->flat, freed->at[i])->name;
        if (strcmp(name_of(d, freed->at[i]), out[i]) == 0) continue;
        const char **from = INV_ARENA_NEW(o->a, const char *, 1);
        if (!from) return INV_E_NOMEM;
        from[0] = name_of(d, freed->at[i]);
        inv_outline_node same = {.source = INV_NONE, .domain = "", .op_type = "Identity", .name = "", .in = from,
                                 .out = &out[i], .nin = 1, .nout = 1};
        if (!inv_vec_push(o->a, &d->node, same)) return INV_E_NOMEM;
    }
    fn->out = row->freed = out;
    fn->nout = row->nfreed = (uint32_t)freed->n;
    INV_TRY(prune(d, fn, &fn->node, &read));
    INV_TRY(find_inputs(d, &read, fn, row));
    row->gain = 1;
    for (size_t i = 0; i < d->used.n; i++) row->gain *= fmax(1, d->used.at[i]->bound);
    return INV_OK;
}

/* What turned out not to be read by the inverse need not be saved. */
static void forget_unread(derivation *d, const inv_outline_function *fn)
{
    size_t n = 0;
    const char **name = d->cut->saved_name;
    for (size_t i = 0; i < d->cut->saved.n; i++) {
        if (!has_text(fn->in, fn->nin, name[i])) continue;
        d->cut->saved.at[n] = d->cut->saved.at[i];
        name[n++] = name[i];
    }
    d->cut->saved.n = n;
}

static void begin(derivation *d)
{
    inv_outliner *o = d->o;
    d->name = o->name;
    o->stamp++;
    for (uint32_t k = 0; k < d->cut->nitem; k++) o->held[d->cut->item[k]] = o->stamp;
    d->r = (inv_raise){.g = o->g, .a = o->a, .opset = inv_graph_opset(o->flat, ""), .real = o->real, .name = d->name,
                       .node = &d->node, .names = o->flat, .gone = o->gone};
}

static void end(derivation *d)
{
    for (size_t i = 0; i < d->named.n; i++) d->name[d->named.at[i]] = NULL;
}

static inv_status inverse(derivation *d)
{
    inv_ids freed = {0};
    bool ok;
    INV_TRY(find_freed(d, &freed));
    INV_TRY(derive(d, &freed, &ok));
    if (ok) {
        INV_TRY(finish(d, &freed));
        forget_unread(d, &d->cut->inverse);
        return INV_OK;
    }
    d->cut->saved.n = 0;
    d->cut->row.reason = d->r.reason ? d->r.reason : "no inverses of its operators lead back to what it frees";
    return INV_OK;
}

inv_status inv_derive_inverse(inv_outliner *o, inv_cut *cut)
{
    derivation d = {.o = o, .cut = cut};
    if (o->real == INV_DT_NONE) {
        cut->row.reason = "the file mixes floating-point types, or has others than float32 and float64";
        return INV_OK;
    }
    begin(&d);
    inv_status s = inverse(&d);
    end(&d);
    return s;
}

static inv_status saved(derivation *d, const inv_cut *cut)
{
    const inv_outliner *o = d->o;
    INV_TRY(know_all(d, &cut->in, NULL, 0));
    for (uint32_t k = 0; k < cut->nitem; k++) {
        const inv_node *n = inv_item(o, cut->item[k]);
        for (uint32_t j = 0; j < n->nout; j++)
            if (n->out[j] != INV_NONE) INV_TRY(know(d, n->out[j], inv_val(o->flat, n->out[j])->name));
    }
    for (size_t i = 0; i < cut->saved.n; i++) INV_TRY(call_it(d, cut->saved.at[i], cut->saved_name[i]));
    for (size_t i = 0; i < cut->saved.n; i++) {
        inv_id def = inv_val(o->g, cut->saved.at[i])->def;
        bool again = i > 0 && def == inv_val(o->g, cut->saved.at[i - 1])->def;
        if (again || inv_raise_node(&d->r, inv_nod(o->g, def), NULL)) continue;
        if (o->a->failed) return INV_E_NOMEM;
        return inv__fail(o->ctx, INV_E_INTERNAL, "block %s: %s", cut->row.function, d->r.reason);
    }
    return INV_OK;
}

inv_status inv_derive_saved(inv_outliner *o, const inv_cut *cut, inv_outline_function *fn)
{
    inv_cut copy = *cut;
    derivation d = {.o = o, .cut = &copy};
    if (!cut->saved.n) return INV_OK;
    begin(&d);
    d.r.node = &fn->node;
    inv_status s = saved(&d, cut);
    end(&d);
    return s;
}
