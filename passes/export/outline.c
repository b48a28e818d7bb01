/* SPDX-License-Identifier: Apache-2.0
 * What a rewritten model looks like: which of the file's nodes become functions, with which inputs and outputs, and in
 * which order everything stands. A block is known by its canonical nodes; here it is widened to whole nodes of the file
 * ("items"), because these are written as they are.
 *
 *     block of canonical nodes -> items they come from -> what lies between them -> constants that only they read
 *
 * Blocks are nested or apart: a step inside of a longer block becomes a function that the longer one calls. */
#include <stdlib.h>
#include <string.h>

#include "passes/export/outline.h"

static bool add_new(inv_arena *a, inv_ids *to, inv_id v)
{
    return v == INV_NONE || inv_ids_have(to->at, to->n, v) || inv_vec_push(a, to, v);
}

/* --- a block as items --- */

static inv_status take_item(inv_cutter *c, inv_ids *items, uint32_t i)
{
    if (i == INV_NONE || c->mark[i] == c->stamp) return INV_OK;
    c->mark[i] = c->stamp;
    return inv_vec_push(&c->o->scratch, items, i) ? INV_OK : INV_E_NOMEM;
}

static bool is_within_cut(const inv_cutter *c, uint32_t item) { return item != INV_NONE && c->mark[item] == c->stamp; }

/* What the canonical nodes of the block give, or one of its inputs. */
static bool belongs(const inv_outliner *o, const inv_block *b, inv_id canonical)
{
    inv_id d = inv_val(o->g, canonical)->def;
    return inv_ids_have(b->in, b->nin, canonical) || (d != INV_NONE && inv_ids_have(b->node, b->nnode, d));
}

/* Of several items that became one node (slices, a split), only the first is its source: the others are those that
 * give its values from what belongs to the block. */
static inv_status take_merged(inv_cutter *c, const inv_block *b, inv_ids *items, inv_id canonical)
{
    const inv_outliner *o = c->o;
    uint32_t found = INV_NONE;
    for (uint32_t k = o->alias_start[canonical]; k < o->alias_start[canonical + 1]; k++) {
        uint32_t i = inv_item_giving(o, o->alias[k]);
        if (is_within_cut(c, i)) return INV_OK;
        bool inside = i != INV_NONE && found == INV_NONE;
        for (uint32_t j = 0; inside && j < inv_item(o, i)->nin; j++) {
            inv_id v = inv_item(o, i)->in[j];
            inside = v == INV_NONE || !o->carries[v] || belongs(o, b, inv_graph_stands(o->g, v));
        }
        if (inside) found = i;
    }
    return take_item(c, items, found);
}

/* Items whose results others have taken up (one reshape after another) give what no canonical node reads. */
static inv_status take_absorbed(inv_cutter *c, const inv_block *b, inv_ids *items)
{
    const inv_outliner *o = c->o;
    for (size_t at = 0; at < items->n; at++) {
        const inv_node *n = inv_item(o, items->at[at]);
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id v = n->in[k], is = v == INV_NONE ? INV_NONE : inv_graph_stands(o->g, v);
            if (v == INV_NONE || !o->carries[v] || belongs(o, b, is)) continue;
            inv_id def = inv_val(o->g, is)->def;
            if (def == INV_NONE || !o->live[def]) INV_TRY(take_item(c, items, inv_item_giving(o, v)));
        }
    }
    return INV_OK;
}

static inv_status take_block(inv_cutter *c, const inv_block *b, inv_ids *items)
{
    const inv_outliner *o = c->o;
    for (uint32_t k = 0; k < b->nnode; k++) INV_TRY(take_item(c, items, o->item_of[b->node[k]]));
    for (uint32_t k = 0; k < b->nnode; k++) {
        const inv_node *n = inv_nod(o->g, b->node[k]);
        for (uint32_t j = 0; j < n->nout; j++)
            if (n->out[j] != INV_NONE) INV_TRY(take_merged(c, b, items, n->out[j]));
    }
    return take_absorbed(c, b, items);
}

/* Items between items of the cut: renamings and casts that no canonical node stands for. Anything else there means that
 * the cut cannot be one node. */
static inv_status take_between(inv_cutter *c, const inv_block *b, inv_ids *items, const char **reason)
{
    const inv_outliner *o = c->o;
    uint32_t first = UINT32_MAX, last = 0;
    for (size_t k = 0; k < items->n; k++) {
        if (items->at[k] < first) first = items->at[k];
        if (items->at[k] > last) last = items->at[k];
    }
    for (uint32_t i = first; i <= last; i++) {
        const inv_node *n = inv_item(o, i);
        bool after = is_within_cut(c, i);
        for (uint32_t k = 0; k < n->nin && !after; k++) {
            uint32_t p = n->in[k] == INV_NONE ? INV_NONE : inv_item_giving(o, n->in[k]);
            after = p != INV_NONE && p >= first && c->after[p] == c->stamp;
        }
        if (after) c->after[i] = c->stamp;
    }
    for (uint32_t i = last + 1; i-- > first;) {
        const inv_node *n = inv_item(o, i);
        c->needed[i] = is_within_cut(c, i);
        for (uint32_t k = 0; k < n->nout && !c->needed[i]; k++) {
            if (n->out[k] == INV_NONE) continue;
            for (uint32_t u = o->uses.start[n->out[k]]; u < o->uses.start[n->out[k] + 1] && !c->needed[i]; u++) {
                uint32_t user = o->item_at[o->uses.node[u]];
                c->needed[i] = user <= last && c->needed[user];
            }
        }
    }
    for (uint32_t i = first; i <= last; i++) {
        if (!c->needed[i] || c->after[i] != c->stamp || is_within_cut(c, i)) continue;
        for (uint32_t k = o->made_start[i]; k < o->made_start[i + 1]; k++)
            if (!inv_ids_have(b->node, b->nnode, o->made[k]))
                *reason = "between its nodes there are others that do not belong to it";
        INV_TRY(take_item(c, items, i));
    }
    return INV_OK;
}

/* Whether the item computes from constants, and what the cut has, something that is no data. */
static bool is_constant(const inv_cutter *c, const inv_node *n)
{
    const inv_outliner *o = c->o;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && o->carries[n->in[k]] && !is_within_cut(c, inv_item_giving(o, n->in[k])))
            return false;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && o->carries[n->out[k]]) return false;
    return true;
}

/* Whether the item is equal to one of the block: canonical nodes have it once. */
static bool is_twin(const inv_outliner *o, const inv_block *b, const inv_node *n)
{
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && o->carries[n->in[k]] && !belongs(o, b, inv_graph_stands(o->g, n->in[k])))
            return false;
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        const inv_id def = inv_val(o->g, inv_graph_stands(o->g, n->out[k]))->def;
        if (def == INV_NONE || !inv_ids_have(b->node, b->nnode, def)) return false;
    }
    return true;
}

static bool is_read_within(const inv_cutter *c, const inv_node *n)
{
    const inv_outliner *o = c->o;
    for (uint32_t k = 0; k < n->nout; k++) {
        const inv_id v = n->out[k];
        if (v == INV_NONE) continue;
        if (inv_val(o->flat, v)->is_output) return false;
        for (uint32_t u = o->uses.start[v]; u < o->uses.start[v + 1]; u++)
            if (!is_within_cut(c, o->item_at[o->uses.node[u]])) return false;
    }
    return true;
}

/* Constants, shape arithmetic and equal nodes that nothing else reads go with the block. Of equal nodes the first
 * stands for all; one left outside would come first in the rewritten model, and take its place. */
static inv_status take_unshared(inv_cutter *c, const inv_block *b, inv_ids *items)
{
    const inv_outliner *o = c->o;
    for (size_t at = 0; at < items->n; at++) {
        const inv_node *n = inv_item(o, items->at[at]);
        for (uint32_t k = 0; k < n->nin; k++) {
            uint32_t p = n->in[k] == INV_NONE ? INV_NONE : inv_item_giving(o, n->in[k]);
            if (p == INV_NONE || is_within_cut(c, p)) continue;
            const inv_node *from = inv_item(o, p);
            if (is_read_within(c, from) && (is_constant(c, from) || is_twin(o, b, from)))
                INV_TRY(take_item(c, items, p));
        }
    }
    return INV_OK;
}

static bool leaves_cut(const inv_cutter *c, inv_id v)
{
    const inv_outliner *o = c->o;
    bool out = inv_val(o->flat, v)->is_output;
    for (uint32_t u = o->uses.start[v]; u < o->uses.start[v + 1] && !out; u++)
        out = !is_within_cut(c, o->item_at[o->uses.node[u]]);
    return out;
}

/* Parameters in the order of the file: nodes come in another order when a rewritten model is rewritten again. */
static void sort_parameters(const inv_graph *flat, inv_ids *ids)
{
    for (size_t i = 1; i < ids->n; i++)
        for (size_t k = i; k-- > 0;) {
            const inv_id v = ids->at[k], next = ids->at[k + 1];
            if (inv_val(flat, v)->init <= inv_val(flat, next)->init) break;
            ids->at[k] = next;
            ids->at[k + 1] = v;
        }
}

/* The block's own ends first, in the order of the rule; then what carries data; then shapes; then parameters. */
static inv_status sort_ends(const inv_outliner *o, const inv_ids *all, const inv_id *first, uint32_t nfirst,
                            inv_ids *to)
{
    inv_ids params = {0}, rest = {0};
    for (size_t i = 0; i < all->n; i++) {
        const bool param = inv_val(o->flat, all->at[i])->role == INV_ROLE_PARAM;
        if (!inv_vec_push(o->a, param ? &params : &rest, all->at[i])) return INV_E_NOMEM;
    }
    for (uint32_t k = 0; k < nfirst; k++)
        for (size_t i = 0; i < rest.n; i++)
            if (inv_graph_stands(o->g, rest.at[i]) == first[k] && !add_new(o->a, to, rest.at[i])) return INV_E_NOMEM;
    for (int data = 1; data >= 0; data--)
        for (size_t i = 0; i < rest.n; i++)
            if (o->carries[rest.at[i]] == (data == 1) && !add_new(o->a, to, rest.at[i])) return INV_E_NOMEM;
    sort_parameters(o->flat, &params);
    for (size_t i = 0; i < params.n; i++)
        if (!add_new(o->a, to, params.at[i])) return INV_E_NOMEM;
    return INV_OK;
}

static inv_status find_ends(inv_cutter *c, inv_cut *cut)
{
    inv_outliner *o = c->o;
    inv_ids in = {0}, out = {0};
    for (uint32_t k = 0; k < cut->nitem; k++) {
        const inv_node *n = inv_item(o, cut->item[k]);
        for (uint32_t j = 0; j < n->nin; j++)
            if (n->in[j] != INV_NONE && !is_within_cut(c, inv_item_giving(o, n->in[j])) &&
                !add_new(&o->scratch, &in, n->in[j]))
                return INV_E_NOMEM;
        for (uint32_t j = 0; j < n->nout; j++)
            if (n->out[j] != INV_NONE && leaves_cut(c, n->out[j]) && !add_new(&o->scratch, &out, n->out[j]))
                return INV_E_NOMEM;
    }
    INV_TRY(sort_ends(o, &in, cut->block->in, cut->block->nin, &cut->in));
    return sort_ends(o, &out, cut->block->out, cut->block->nout, &cut->out);
}

static int by_item_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static inv_status make_cut(inv_cutter *c, uint32_t index)
{
    inv_outliner *o = c->o;
    inv_cut *cut = &c->cut[index];
    inv_ids items = {0};
    *cut = (inv_cut){.block = &o->g->matches->block.at[index], .row = {.block = index, .gain = 1}, .parent = INV_NONE};
    c->stamp++;
    INV_TRY(take_block(c, cut->block, &items));
    if (items.n) INV_TRY(take_between(c, cut->block, &items, &cut->row.reason));
    else cut->row.reason = "no operator of the file corresponds to it";
    INV_TRY(take_unshared(c, cut->block, &items));
    if (items.n) qsort(items.at, items.n, sizeof *items.at, by_item_number);
    cut->item = items.at;
    cut->nitem = (uint32_t)items.n;
    for (uint32_t k = 0; k < cut->nitem; k++)
        for (uint32_t j = o->made_start[cut->item[k]]; j < o->made_start[cut->item[k] + 1]; j++)
            if (!inv_ids_have(cut->block->node, cut->block->nnode, o->made[j])) cut->part = inv_item(o, cut->item[k]);
    return find_ends(c, cut);
}

/* The cut with its inverse. Of a part of an operator's work nothing is made if it has none. */
static inv_status derive_cut(inv_outliner *o, inv_cut *cut)
{
    if (cut->row.reason) return INV_OK;
    INV_TRY(inv_derive_inverse(o, cut));
    cut->made = cut->inverse.nout || !cut->part;
    if (cut->made) return INV_OK;
    const char *shut = inv_outline_shut(o, cut);
    cut->row.reason =
        inv_arena_printf(o->a, "it is only a part of node '%s' (%s), and has no inverse without the rest%s%s",
                         cut->part->name, cut->part->op_type, shut ? "; " : "", shut ? shut : "");
    return cut->row.reason ? INV_OK : INV_E_NOMEM;
}

/* --- nesting --- */

typedef struct turn {
    uint32_t nitem, cut;
} turn;

static int by_cut_size(const void *a, const void *b)
{
    const turn *x = a, *y = b;
    if (x->nitem != y->nitem) return x->nitem > y->nitem ? -1 : 1;
    return x->cut < y->cut ? -1 : 1;
}

/* The largest first: each must lie inside of one that is there already, or apart from all. */
static inv_status nest(inv_cutter *c)
{
    turn *t = INV_ARENA_NEW(&c->o->scratch, turn, c->ncut + 1);
    if (!t) return INV_E_NOMEM;
    for (uint32_t i = 0; i < c->ncut; i++) t[i] = (turn){c->cut[i].nitem, i};
    if (c->ncut) qsort(t, c->ncut, sizeof *t, by_cut_size);
    for (size_t i = 0; i < c->ncut; i++) {
        inv_cut *cut = &c->cut[t[i].cut];
        if (!cut->made) continue;
        cut->parent = c->owner[cut->item[0]];
        for (uint32_t k = 1; k < cut->nitem && cut->made; k++) cut->made = c->owner[cut->item[k]] == cut->parent;
        if (!cut->made) {
            cut->row.reason = "it overlaps another block";
            continue;
        }
        for (uint32_t k = 0; k < cut->nitem; k++) c->owner[cut->item[k]] = t[i].cut;
    }
    return INV_OK;
}

/* How many functions of a rule there are yet. */
static uint32_t *rule_counter(inv_cutter *c, const inv_inverse_def *rule)
{
    size_t i = 0;
    while (i + 1 < c->nrule && c->rule[i] != rule && c->rule[i]) i++;
    c->rule[i] = rule;
    return &c->count[i];
}

/* Whether a function of the file that no rewriting made has the name, or that of its inverse, or ONNX has it. */
static bool is_foreign(const inv_graph *flat, const char *name)
{
    /* ONNX's evaluator takes these for operators of ONNX, and asks for attributes that those need */
    static const char *const versions[] = {"Concat_4", "Concat_11", "Concat_13", "Unsqueeze_1", "Unsqueeze_11"};
    size_t n = strlen(name);
    if (inv_texts_have(versions, sizeof versions / sizeof *versions, name)) return true;
    for (size_t i = 0; i < flat->function.n; i++)
        if (!flat->function.at[i].block && strcmp(flat->function.at[i].domain, INV_OUTLINE_DOMAIN) == 0 &&
            strncmp(flat->function.at[i].name, name, n) == 0 &&
            (!flat->function.at[i].name[n] || strcmp(flat->function.at[i].name + n, "_inverse") == 0))
            return true;
    return false;
}

/* "affine_coupling" -> "AffineCoupling_3": the fourth of its rule, in the order in which they are written, so that a
 * rewritten model gets the same names again. */
static inv_status name_functions(inv_cutter *c)
{
    inv_arena *a = c->o->a;
    for (size_t i = 0; i < c->turn.n; i++) {
        inv_cut *cut = &c->cut[c->turn.at[i]];
        const char *rule = cut->block->rule->name;
        char *camel = inv_arena_strdup(&c->o->scratch, rule);
        if (!camel) return INV_E_NOMEM;
        size_t n = 0;
        for (size_t k = 0; rule[k]; k++) {
            if (rule[k] == '_') continue;
            bool begins = (k == 0 || rule[k - 1] == '_') && rule[k] >= 'a' && rule[k] <= 'z';
            camel[n++] = (char)(begins ? rule[k] - 'a' + 'A' : rule[k]);
        }
        camel[n] = 0;
        do cut->row.function = inv_arena_printf(a, "%s_%u", camel, *rule_counter(c, cut->block->rule));
        while (cut->row.function && is_foreign(c->o->flat, cut->row.function) && ++*rule_counter(c, cut->block->rule));
        if (!cut->row.function) return INV_E_NOMEM;
        ++*rule_counter(c, cut->block->rule);
        if (!cut->inverse.nout) continue;
        cut->inverse.name = cut->row.inverse = inv_arena_printf(a, "%s_inverse", cut->row.function);
        cut->inverse.doc = inv_arena_printf(a, "Inverse of %s.", cut->row.function);
        if (!cut->inverse.name || !cut->inverse.doc) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* --- writing down --- */

static const char *const *file_names_of(inv_outliner *o, const inv_id *v, size_t n)
{
    const char **name = INV_ARENA_NEW(o->a, const char *, n + 1);
    for (size_t i = 0; name && i < n; i++) name[i] = v[i] == INV_NONE ? "" : inv_val(o->flat, v[i])->name;
    return name;
}

void inv_outline_settle(const inv_outliner *o, inv_outline_node *n)
{
    if (n->source == INV_NONE) return;
    const inv_node *item = inv_item(o, n->source);
    n->source = o->file[n->source];
    n->domain = item->domain;
    n->op_type = item->op_type;
    n->name = item->name;
    n->renamed = n->source != INV_NONE && *n->name;
    if (n->source != INV_NONE) return;
    n->attr = item->attr;
    n->nattr = item->nattr;
}

static inv_status put_unit(inv_cutter *c, uint32_t cut, uint32_t at, inv_outline_nodes *to)
{
    inv_outliner *o = c->o;
    inv_outline_node n = {.source = INV_NONE, .domain = INV_OUTLINE_DOMAIN};
    if (cut == INV_NONE) {
        const inv_node *item = inv_item(o, at);
        n = (inv_outline_node){
            .source = at, .nin = item->nin, .nout = item->nout, .ncaptured = item->nin - inv_node_listed(item)};
        inv_outline_settle(o, &n);
        n.in = file_names_of(o, item->in, n.nin);
        n.out = file_names_of(o, item->out, item->nout);
    } else {
        const inv_outline_function *f = &o->out->function.at[c->cut[cut].row.at];
        n.op_type = n.name = f->name;
        n.in = f->in;
        n.out = f->out;
        n.nin = f->nin;
        n.nout = f->nout;
    }
    return n.in && n.out && inv_vec_push(o->a, to, n) ? INV_OK : INV_E_NOMEM;
}

static inv_status put_body(inv_cutter *c, const inv_cut *around, inv_outline_nodes *to)
{
    for (size_t k = 0; k < around->order_cut.n; k++)
        INV_TRY(put_unit(c, around->order_cut.at[k], around->order_item.at[k], to));
    return INV_OK;
}

/* A node of what a body of control flow holds: an initializer of its own, or a Constant node, which has no number. */
static inv_status put_constant_of_body(inv_outliner *o, const inv_value *v, inv_outline_node *n)
{
    inv_attr *value = INV_ARENA_NEW(o->a, inv_attr, 1);
    if (!value) return INV_E_NOMEM;
    *value = (inv_attr){.name = "value", .kind = INV_ATTR_TENSOR, .tensor = v->data};
    n->domain = n->name = "";
    n->op_type = "Constant";
    n->attr = value;
    n->nattr = 1;
    return INV_OK;
}

/* The file's Constant nodes that are parameters stand before all else, wherever they were. */
inv_status inv_outline_weights(inv_outliner *o, const inv_graph *g, const bool *read)
{
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        const bool of_body = read && v->within && v->source == INV_NONE; /* which is not written */
        if ((v->source == INV_NONE && !of_body) || (read && !read[g->inits.at[i]])) continue;
        inv_outline_node n = {.source = v->source, .nout = 1};
        if (of_body) INV_TRY(put_constant_of_body(o, v, &n));
        const char **out = INV_ARENA_NEW(o->a, const char *, 1);
        if (!out || !(out[0] = inv_arena_strdup(o->a, v->name))) return INV_E_NOMEM;
        n.out = out;
        if (!inv_vec_push(o->a, &o->out->node, n)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* --- all of it --- */

static inv_status put_outline_fact(inv_outliner *o, const char *key, const char *value)
{
    return key && value && inv_vec_push(o->a, &o->out->fact, ((inv_outline_fact){key, value})) ? INV_OK : INV_E_NOMEM;
}

/* Names in facts: all but letters, digits and . _ / : - as %XX, so that commas and semicolons part them. */
static const char *encode(inv_arena *a, const char *const *name, size_t n)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t length = 1;
    for (size_t i = 0; i < n; i++) length += 3 * strlen(name[i]) + 1;
    char *text = INV_ARENA_NEW(a, char, length), *t = text;
    for (size_t i = 0; text && i < n; i++) {
        if (i) *t++ = ',';
        for (const char *s = name[i]; *s; s++) {
            unsigned char b = (unsigned char)*s;
            bool plain =
                (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || strchr("._/:-", b);
            if (plain) *t++ = *s;
            else *t++ = '%', *t++ = hex[b >> 4], *t++ = hex[b & 15];
        }
    }
    return text;
}

static inv_status put_facts(inv_outliner *o, const inv_cut *cut)
{
    const inv_outline_block *row = &cut->row;
    inv_arena *a = o->a;
    const char *key = inv_arena_printf(a, "ai.invonnx.fn.%s", row->function), *rule = cut->block->rule->name, *value;
    if (!row->inverse) {
        value = inv_arena_printf(a, "rule=%s", rule);
    } else {
        const char *freed = encode(a, row->freed, row->nfreed);
        const char *saved = encode(a, cut->saved_name, cut->saved.n);
        if (!freed || !saved) return INV_E_NOMEM;
        value = inv_arena_printf(a, "rule=%s;inverse=%s;free=%s;gain=%.6g%s%s", rule, row->inverse, freed, row->gain,
                                 cut->saved.n ? ";aux=" : "", saved);
    }
    return put_outline_fact(o, key, value);
}

static inv_status add_function(inv_outliner *o, inv_cut *cut)
{
    inv_outline_function forward = {.name = cut->row.function, .doc = cut->block->rule->doc};
    forward.in = file_names_of(o, cut->in.at, cut->in.n);
    forward.nin = (uint32_t)cut->in.n;
    const char **out = INV_ARENA_NEW(o->a, const char *, cut->out.n + cut->saved.n + 1);
    if (!forward.in || !out) return INV_E_NOMEM;
    for (size_t k = 0; k < cut->out.n; k++) out[k] = inv_val(o->flat, cut->out.at[k])->name;
    for (size_t k = 0; k < cut->saved.n; k++) out[cut->out.n + k] = cut->saved_name[k];
    forward.out = out;
    forward.nout = (uint32_t)(cut->out.n + cut->saved.n);
    cut->row.at = (uint32_t)o->out->function.n;
    if (!inv_vec_push(o->a, &o->out->function, forward)) return INV_E_NOMEM;
    if (cut->row.inverse && !inv_vec_push(o->a, &o->out->function, cut->inverse)) return INV_E_NOMEM;
    return put_facts(o, cut);
}

/* Numbers the items as they are written. */
static void number_cut_items(inv_cutter *c, const inv_cut *around, uint32_t *next)
{
    for (size_t k = 0; k < around->order_cut.n; k++) {
        uint32_t cut = around->order_cut.at[k];
        if (cut == INV_NONE) c->written[around->order_item.at[k]] = (*next)++;
        else number_cut_items(c, &c->cut[cut], next); /* as deep as blocks are nested */
    }
}

/* A cut lists its items as the file does. Where they are written in another order, it is made again in that one, so
 * that a rewritten model is rewritten to the same bytes. */
static inv_status reorder(inv_cutter *c, inv_cut *cut)
{
    bool moved = false;
    for (uint32_t k = 1; k < cut->nitem; k++) {
        uint32_t item = cut->item[k], at = k;
        for (; at > 0 && c->written[cut->item[at - 1]] > c->written[item]; at--) cut->item[at] = cut->item[at - 1];
        cut->item[at] = item;
        moved = moved || at != k;
    }
    if (!moved) return INV_OK;
    c->stamp++;
    for (uint32_t k = 0; k < cut->nitem; k++) c->mark[cut->item[k]] = c->stamp;
    cut->in = cut->out = cut->saved = (inv_ids){0};
    cut->inverse = (inv_outline_function){0};
    cut->row = (inv_outline_block){.block = cut->row.block, .gain = 1};
    INV_TRY(find_ends(c, cut));
    return inv_derive_inverse(c->o, cut);
}

static inv_status reorder_all(inv_cutter *c)
{
    uint32_t next = 0;
    number_cut_items(c, &c->all, &next);
    for (size_t i = 0; i < c->turn.n; i++) INV_TRY(reorder(c, &c->cut[c->turn.at[i]]));
    return INV_OK;
}

static inv_status cut_all(inv_cutter *c)
{
    inv_outliner *o = c->o;
    size_t n = o->flat->order.n + 1;
    c->ncut = o->g->matches->block.n;
    c->mark = INV_ARENA_NEW(&o->scratch, uint32_t, n);
    c->after = INV_ARENA_NEW(&o->scratch, uint32_t, n);
    c->needed = INV_ARENA_NEW(&o->scratch, bool, n);
    c->owner = INV_ARENA_NEW(&o->scratch, uint32_t, n);
    c->unit_of = INV_ARENA_NEW(&o->scratch, uint32_t, n);
    c->unit_of_cut = INV_ARENA_NEW(&o->scratch, uint32_t, c->ncut + 1);
    c->written = INV_ARENA_NEW(&o->scratch, uint32_t, n);
    c->cut = INV_ARENA_NEW(&o->scratch, inv_cut, c->ncut + 1);
    c->nrule = inv_registry_ninverses(o->ctx->registry) + 1;
    c->rule = INV_ARENA_NEW(&o->scratch, const inv_inverse_def *, c->nrule);
    c->count = INV_ARENA_NEW(&o->scratch, uint32_t, c->nrule);
    if (!c->mark || !c->after || !c->needed || !c->owner || !c->unit_of || !c->unit_of_cut || !c->written || !c->cut ||
        !c->rule || !c->count)
        return INV_E_NOMEM;
    memset(c->owner, 0xff, n * sizeof *c->owner);
    for (uint32_t i = 0; i < c->ncut; i++) {
        INV_TRY(make_cut(c, i));
        INV_TRY(derive_cut(o, &c->cut[i]));
    }
    INV_TRY(nest(c));
    INV_TRY(inv_outline_order(c));
    INV_TRY(reorder_all(c));
    return name_functions(c);
}

inv_status inv_outline_cut(inv_outliner *o)
{
    inv_cutter c = {.o = o};
    INV_TRY(cut_all(&c));
    for (size_t i = 0; i < c.turn.n; i++) INV_TRY(add_function(o, &c.cut[c.turn.at[i]]));
    for (size_t i = 0; i < c.turn.n; i++) {
        inv_cut *cut = &c.cut[c.turn.at[i]];
        inv_outline_function *f = &o->out->function.at[cut->row.at];
        if (cut->parent != INV_NONE) cut->row.parent = c.cut[cut->parent].row.function;
        INV_TRY(put_body(&c, cut, &f->node));
        INV_TRY(inv_derive_saved(o, cut, f));
    }
    for (size_t i = 0; i < c.ncut; i++)
        if (!inv_vec_push(o->a, &o->out->block, c.cut[i].row)) return INV_E_NOMEM;
    INV_TRY(inv_outline_weights(o, o->flat, NULL));
    INV_TRY(put_body(&c, &c.all, &o->out->node));
    INV_TRY(inv_outline_solvers(o));
    return o->out->function.n ? put_outline_fact(o, "ai.invonnx.version", "1") : INV_OK;
}
