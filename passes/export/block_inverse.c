/* SPDX-License-Identifier: Apache-2.0
 * The inverse of a block as a function: how much of what leaves the block has to be known, what it frees, and which
 * inputs its body (derive.c) comes to have. If what the rule calls the block's outputs does not suffice, the other
 * values that leave it are taken, then values that forward must save (batch statistics), then inputs that cannot be had
 * in any way. */
#include <math.h>
#include <string.h>

#include "passes/export/outline.h"

bool inv_texts_have(const char *const *list, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], text) == 0) return true;
    return false;
}

/* --- how much has to be known --- */

static inv_status know_all(inv_derivation *d, const inv_ids *values, const inv_id *only, uint32_t nonly)
{
    for (size_t i = 0; i < values->n; i++) {
        inv_id v = values->at[i];
        if (inv_derive_name(d, v) || (only && !inv_ids_have(only, nonly, inv_graph_stands(d->o->g, v)))) continue;
        INV_TRY(inv_derive_know(d, v, inv_val(d->o->flat, v)->name));
    }
    return INV_OK;
}

/* What the inverse shall give: inputs of the rule that do not pass through. */
static inv_status list_freed(inv_derivation *d, inv_ids *freed)
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

static bool is_first(const inv_derivation *d, inv_id v)
{
    return d->cut->block->nrule_in && inv_graph_stands(d->o->g, v) == d->cut->block->in[0];
}

/* Values that the rule reads and that are computed inside of the widened block: forward saves them. */
static inv_status save_statistics(inv_derivation *d)
{
    inv_outliner *o = d->o;
    const inv_block *b = d->cut->block;
    for (uint32_t i = 0; i < b->nrule_in; i++) {
        inv_id c = b->in[i], def = inv_val(o->g, c)->def;
        uint32_t item = def == INV_NONE ? INV_NONE : o->item_of[def];
        if (!inv_derive_within(d, item) || inv_derive_name(d, c)) continue;
        if (!inv_vec_push(o->a, &d->cut->saved, c)) return INV_E_NOMEM;
    }
    const char **name = INV_ARENA_NEW(o->a, const char *, d->cut->saved.n + 1);
    for (size_t i = 0; name && i < d->cut->saved.n; i++) {
        const inv_node *n = inv_nod(o->g, inv_val(o->g, d->cut->saved.at[i])->def);
        const inv_node *item = inv_item(o, o->item_of[inv_val(o->g, d->cut->saved.at[i])->def]);
        uint32_t k = 0;
        while (n->out[k] != d->cut->saved.at[i]) k++;
        name[i] = inv_arena_printf(o->a, "%s.saved_%u", inv_val(o->flat, item->out[0])->name, k);
        if (!name[i]) return INV_E_NOMEM;
        INV_TRY(inv_derive_call(d, d->cut->saved.at[i], name[i]));
    }
    d->cut->saved_name = name;
    return name ? INV_OK : INV_E_NOMEM;
}

static bool all_freed_known(const inv_derivation *d, const inv_ids *freed, bool first_only)
{
    for (size_t i = 0; i < freed->n; i++)
        if (!inv_derive_name(d, freed->at[i]) && (!first_only || is_first(d, freed->at[i]))) return false;
    return freed->n > 0;
}

static inv_status derive_freed(inv_derivation *d, inv_ids *freed, bool *ok)
{
    const inv_outliner *o = d->o;
    const inv_block *b = d->cut->block;
    for (size_t i = 0; i < d->cut->in.n; i++)
        if (!o->carries[d->cut->in.at[i]])
            INV_TRY(inv_derive_know(d, d->cut->in.at[i], inv_val(o->flat, d->cut->in.at[i])->name));
    INV_TRY(know_all(d, &d->cut->in, b->out, b->nrule_out));
    for (int level = 0; level < 3; level++) {
        if (level < 2) INV_TRY(know_all(d, &d->cut->out, level ? NULL : b->out, b->nrule_out));
        else INV_TRY(save_statistics(d));
        INV_TRY(inv_derive_close(d, ok));
        if (!*ok || all_freed_known(d, freed, false)) return INV_OK;
    }
    for (size_t i = 0; i < d->cut->in.n && !all_freed_known(d, freed, true); i++) {
        inv_id v = d->cut->in.at[i];
        if (inv_derive_name(d, v) || is_first(d, v)) continue;
        INV_TRY(inv_derive_know(d, v, inv_val(o->flat, v)->name)); /* given */
        for (size_t k = 0; k < freed->n; k++)
            if (freed->at[k] == v) memmove(&freed->at[k], &freed->at[k + 1], (--freed->n - k) * sizeof freed->at[0]);
        INV_TRY(inv_derive_close(d, ok));
        if (!*ok) return INV_OK;
    }
    size_t n = 0;
    for (size_t k = 0; k < freed->n; k++)
        if (inv_derive_name(d, freed->at[k])) freed->at[n++] = freed->at[k];
    freed->n = n;
    *ok = all_freed_known(d, freed, true);
    return INV_OK;
}

/* --- the function --- */

typedef INV_VEC(const char *) texts;

/* Drops the nodes that the freed values do not come from; `read` gets the names that the others read. */
static inv_status prune_body(inv_derivation *d, const inv_outline_function *fn, inv_outline_nodes *kept, texts *read)
{
    bool *needed = INV_ARENA_NEW(&d->o->scratch, bool, d->node.n + 1);
    if (!needed) return INV_E_NOMEM;
    for (size_t i = d->node.n; i-- > 0;) {
        const inv_outline_node *n = &d->node.at[i];
        for (uint32_t k = 0; k < n->nout && !needed[i]; k++)
            needed[i] = *n->out[k] &&
                        (inv_texts_have(fn->out, fn->nout, n->out[k]) || inv_texts_have(read->at, read->n, n->out[k]));
        for (uint32_t k = 0; k < n->nin && needed[i]; k++)
            if (*n->in[k] && !inv_texts_have(read->at, read->n, n->in[k]) &&
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
        if (inv_texts_have(fn->node.at[i].out, fn->node.at[i].nout, name)) return true;
    return false;
}

/* The names that are read and not made: outputs of the block, what was saved, what is given, parameters, solvers. */
static inv_status find_body_inputs(inv_derivation *d, const texts *read, inv_outline_function *fn,
                                   inv_outline_block *row)
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
        if (!inv_texts_have(read->at, read->n, name) || inv_texts_have(in, fn->nin, name)) continue;
        if (is_made(fn, name)) continue;
        in[fn->nin++] = name;
        if (v != INV_NONE && o->carries[v]) given[row->ngiven++] = name;
    }
    fn->in = in;
    row->given = given;
    return INV_OK;
}

static inv_status finish_inverse(inv_derivation *d, const inv_ids *freed)
{
    inv_outliner *o = d->o;
    inv_outline_function *fn = &d->cut->inverse;
    inv_outline_block *row = &d->cut->row;
    const char **out = INV_ARENA_NEW(o->a, const char *, freed->n + 1);
    texts read = {0};
    if (!out) return INV_E_NOMEM;
    for (size_t i = 0; i < freed->n; i++) {
        out[i] = inv_val(o->flat, freed->at[i])->name;
        INV_TRY(inv_derive_output(d, freed->at[i]));
    }
    fn->out = row->freed = out;
    fn->nout = row->nfreed = (uint32_t)freed->n;
    INV_TRY(prune_body(d, fn, &fn->node, &read));
    for (size_t i = 0; i < fn->node.n; i++) inv_outline_settle(o, &fn->node.at[i]);
    INV_TRY(find_body_inputs(d, &read, fn, row));
    row->gain = 1;
    for (size_t i = 0; i < d->used.n; i++) row->gain *= fmax(1, d->used.at[i].edge->bound);
    return INV_OK;
}

/* What turned out not to be read by the inverse need not be saved. */
static void forget_unread(inv_derivation *d, const inv_outline_function *fn)
{
    size_t n = 0;
    const char **name = d->cut->saved_name;
    for (size_t i = 0; i < d->cut->saved.n; i++) {
        if (!inv_texts_have(fn->in, fn->nin, name[i])) continue;
        d->cut->saved.at[n] = d->cut->saved.at[i];
        name[n++] = name[i];
    }
    d->cut->saved.n = n;
}

static inv_status inverse(inv_derivation *d)
{
    inv_ids freed = {0};
    bool ok;
    INV_TRY(list_freed(d, &freed));
    INV_TRY(derive_freed(d, &freed, &ok));
    if (ok) {
        INV_TRY(finish_inverse(d, &freed));
        forget_unread(d, &d->cut->inverse);
        return INV_OK;
    }
    d->cut->saved.n = 0;
    const char *shut = d->r.reason ? NULL : inv_outline_shut(d->o, d->cut);
    d->cut->row.reason = d->r.reason ? d->r.reason
                         : shut      ? shut
                                     : "no inverses of its operators lead back to what it frees";
    return INV_OK;
}

inv_status inv_derive_inverse(inv_outliner *o, inv_cut *cut)
{
    inv_derivation d = {.o = o, .cut = cut};
    if (inv_ids_have(o->barred.at, o->barred.n, cut->row.block)) {
        cut->row.reason = "the batch or other dimensions are open, but the inverse has constants that hold for one "
                          "size only";
        return INV_OK;
    }
    inv_derive_begin(&d);
    inv_status s = inverse(&d);
    inv_derive_end(&d);
    return s;
}

static inv_status saved(inv_derivation *d, const inv_cut *cut)
{
    const inv_outliner *o = d->o;
    INV_TRY(know_all(d, &cut->in, NULL, 0));
    for (uint32_t k = 0; k < cut->nitem; k++) {
        const inv_node *n = inv_item(o, cut->item[k]);
        for (uint32_t j = 0; j < n->nout; j++)
            if (n->out[j] != INV_NONE) INV_TRY(inv_derive_know(d, n->out[j], inv_val(o->flat, n->out[j])->name));
    }
    for (size_t i = 0; i < cut->saved.n; i++) INV_TRY(inv_derive_call(d, cut->saved.at[i], cut->saved_name[i]));
    for (size_t i = 0; i < cut->saved.n; i++) {
        inv_id def = inv_val(o->g, cut->saved.at[i])->def;
        bool again = i > 0 && def == inv_val(o->g, cut->saved.at[i - 1])->def;
        if (again || inv_derive_raise(d, inv_nod(o->g, def), NULL)) continue;
        if (o->a->failed) return INV_E_NOMEM;
        return inv_fail(o->ctx, INV_E_INTERNAL, "block %s: %s", cut->row.function, d->r.reason);
    }
    return INV_OK;
}

inv_status inv_derive_saved(inv_outliner *o, const inv_cut *cut, inv_outline_function *fn)
{
    inv_cut copy = *cut;
    inv_derivation d = {.o = o, .cut = &copy};
    if (!cut->saved.n) return INV_OK;
    inv_derive_begin(&d);
    d.r.node = &fn->node;
    inv_status s = saved(&d, cut);
    inv_derive_end(&d);
    return s;
}
