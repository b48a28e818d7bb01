/* SPDX-License-Identifier: Apache-2.0
 * Initializers that an exporter merged (core/weights/shared_weights.h) are refused for training, or get a copy for each
 * group of uses.
 *
 * requires  an imported graph
 * gives     with --untie: program->own, a copy of the source in which group 0 keeps the initializer, and group k reads
 *           a new one, NAME_untied_k, by copies of the nodes that hand it on. The file's nodes keep their `source`, so
 *           that the model can be written so (api/save_model.c). Where the file lists the program's parameters,
 *           the new one has the name of the one that it was.
 * breaks    nothing */
#include <stdlib.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/exported.h"
#include "core/weights/module_names.h"
#include "core/weights/shared_weights.h"
#include "core/weights/trained.h"
#include "passes/front/front.h"

enum { MAX_NAMED = 3 };

static bool is_tied(const void *opaque, const inv_value *v)
{
    const inv_session_options *o = opaque;
    for (size_t i = 0; i < o->ntied; i++)
        if (inv_tied_fits(o->tied[i], v)) return true;
    return false;
}

static bool is_trained(const inv_graph *g, const inv_session_options *o, const inv_value *v)
{
    const bool by_name = o->ntrain_only || g->adapted;
    if (by_name && !inv_param_fits_any(o->train_only, o->ntrain_only, v)) return false;
    return !inv_param_fits_any(o->freeze, o->nfreeze, v);
}

/* --- refusing --- */

static void name_merge(inv_str *text, const inv_graph *g, const inv_merge *m)
{
    inv_str_add(text, "'%s' is ", inv_val(g, m->param)->name);
    uint32_t named = 0;
    for (uint32_t i = 0; i < m->nuse && named < MAX_NAMED; i++) {
        if (m->use[i].group != named) continue; /* groups are numbered as they are met */
        inv_str_add(text, "%s%s of '%s' (%s)", named++ ? ", " : "", inv_use_role_name(m->use[i].role), m->use[i].label,
                    m->use[i].op_type);
        if (m->use[i].was) inv_str_add(text, ", where the file names '%s'", m->use[i].was);
    }
    if (m->ngroup > named) inv_str_add(text, " and %u more", m->ngroup - named);
}

/* Only what can help: running statistics are apart from all else, and those that training updates do not freeze. */
static void add_remedies(inv_str *text, const inv_merges *merges)
{
    size_t statistics = 0, updated = 0;
    for (size_t i = 0; i < merges->n; i++) {
        const inv_merge *m = &merges->at[i];
        bool any = false;
        for (uint32_t k = 0; k < m->nuse && !any; k++) {
            inv_use_role r = m->use[k].role;
            any = r == INV_USE_MEAN || r == INV_USE_VARIANCE || r == INV_USE_FIXED;
        }
        statistics += any;
        updated += m->updates;
    }
    if (statistics < merges->n) inv_str_add(text, "; {tied} says that they are shared on purpose");
    if (statistics) inv_str_add(text, "; {tied} does not help where one use is a running statistic");
    if (updated < merges->n) inv_str_add(text, "; {freeze} leaves them as they are");
    if (updated && updated < merges->n) inv_str_add(text, ", unless training updates them as running statistics");
}

static inv_status refuse_merged(const inv_graph *g, const inv_merges *merges)
{
    inv_str text;
    inv_str_init(&text, g->ctx);
    for (size_t i = 0; i < merges->n && i < MAX_NAMED; i++) {
        inv_str_add(&text, "%s", i ? "; " : "");
        name_merge(&text, g, &merges->at[i]);
    }
    if (merges->n > MAX_NAMED) inv_str_add(&text, "; and %zu more initializers", merges->n - MAX_NAMED);
    inv_str_add(&text, ". {untie} gives each its own copy");
    add_remedies(&text, merges);
    inv_status s = inv_fail(g->ctx, INV_E_ARG,
                            "the exporter merged tensors with equal values, and training would tie them: %s", text.s);
    inv_str_fini(&text);
    return s;
}

/* --- separating --- */

typedef struct untier {
    inv_graph *g;
    inv_arena *scratch;
    const inv_id *root;
    inv_id param, fresh; /* at hand: the merged initializer, and what takes its place */
    uint32_t group;
    inv_id *copy;   /* per value: what stands for it in this group; INV_NONE: nothing yet */
    inv_ids copied; /* those that have one */
    size_t nvalue;
    const inv_param_use **by_slot; /* per input of the node at hand: the first use there */
    inv_stand_ins stand_ins;       /* new initializers, and the parameters that they are by the file */
} untier;

static const char *untied_name(untier *u, const char *name)
{
    const char *own = inv_arena_printf(&u->g->arena, "%s_untied_%u", name, u->group);
    if (own && inv_graph_find(u->g, own) != INV_NONE) own = inv_graph_fresh(u->g, own);
    return own;
}

/* Whether it is a parameter of the program as it was, and no other has the name `was`, by the file its own. */
static bool can_be_called(const untier *u, const inv_value *old, const char *was)
{
    const inv_exported *o = u->g->exported;
    if (!was || !o || old->init >= o->nof || o->of[old->init] == UINT32_MAX) return false;
    return !strcmp(o->param[o->of[old->init]], old->name) && inv_graph_find(u->g, was) == INV_NONE;
}

static inv_status add_param(untier *u, const char *was)
{
    inv_graph *g = u->g;
    inv_value old = *inv_val(g, u->param);
    const char *name = can_be_called(u, &old, was) ? was : untied_name(u, old.name);
    u->fresh = name ? inv_graph_value(g, name, INV_ROLE_PARAM, old.dtype, &old.shape) : INV_NONE;
    if (u->fresh == INV_NONE) return INV_E_NOMEM;
    inv_value *v = inv_val(g, u->fresh);
    v->mem = old.mem;
    v->data = old.data;
    /* what the file says is about one of the uses; of a constant, about all that were no parameters */
    v->said = (uint8_t)(was || !inv_said_none(&old) ? INV_SAID_OF_PARAMETERS : old.said);
    v->init = (inv_id)g->inits.n;
    const inv_stand_in stands = {u->fresh, was};
    const bool ok = !was || inv_vec_push(u->scratch, &u->stand_ins, stands);
    return ok && inv_vec_push(&g->arena, &g->inits, u->fresh) ? INV_OK : INV_E_NOMEM;
}

/* A copy of a node that hands the initializer on, which reads `from` for it; one that changes nothing is left out. */
static inv_status repeat_node(untier *u, inv_id node, inv_id from)
{
    inv_graph *g = u->g;
    const inv_node n = *inv_nod(g, node);
    const bool same = !strcmp(n.op_type, "Identity");
    inv_id *in = INV_ARENA_NEW(u->scratch, inv_id, n.nin), *out = INV_ARENA_NEW(u->scratch, inv_id, n.nout);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n.nin; k++) in[k] = n.in[k] != INV_NONE && u->root[n.in[k]] == u->param ? from : n.in[k];
    for (uint32_t k = 0; k < n.nout; k++) {
        out[k] = same ? from : INV_NONE;
        if (n.out[k] == INV_NONE) continue;
        const inv_value old = *inv_val(g, n.out[k]);
        const char *name = same ? old.name : untied_name(u, old.name);
        if (!same && name) out[k] = inv_graph_value(g, name, INV_ROLE_NODE, old.dtype, &old.shape);
        if (out[k] == INV_NONE || !inv_vec_push(u->scratch, &u->copied, n.out[k])) return INV_E_NOMEM;
        u->copy[n.out[k]] = out[k];
    }
    const char *label = same ? "" : untied_name(u, inv_node_called(g, &n));
    if (same || !label) return label ? INV_OK : INV_E_NOMEM;
    const inv_id made = inv_graph_node(g, n.domain, n.op_type, label, n.nin, in, n.nout, out, n.nattr, n.attr);
    if (made == INV_NONE || !inv_vec_push(&g->arena, &g->order, made)) return INV_E_NOMEM;
    inv_nod(g, made)->op = n.op;
    inv_nod(g, made)->source = INV_NONE;
    return INV_OK;
}

/* The nodes from the initializer to v, for this group. */
static inv_status stand_in_for(untier *u, inv_id v, inv_id *out)
{
    inv_graph *g = u->g;
    inv_ids chain = {0};
    while (v != u->param && u->copy[v] == INV_NONE) {
        if (!inv_vec_push(u->scratch, &chain, v)) return INV_E_NOMEM;
        const inv_node *n = inv_nod(g, inv_val(g, v)->def);
        uint32_t k = 0;
        while (n->in[k] == INV_NONE || u->root[n->in[k]] != u->param) k++;
        v = n->in[k];
    }
    *out = v == u->param ? u->fresh : u->copy[v];
    for (size_t i = chain.n; i-- > 0;) {
        INV_TRY(repeat_node(u, inv_val(g, chain.at[i])->def, *out));
        *out = u->copy[chain.at[i]];
    }
    return INV_OK;
}

static inv_status cannot_untie(const untier *u, const inv_param_use *a, const inv_param_use *b)
{
    return inv_fail(u->g->ctx, INV_E_UNSUPPORTED_OP,
                    "{untie}: '%s' is %s of '%s' (%s) and %s of '%s' (%s), inside of functions or control flow, "
                    "where names cannot be changed. Inline the model's functions first (onnx.inliner), or use {tied}",
                    inv_val(u->g, u->param)->name, inv_use_role_name(a->role), a->label, a->op_type,
                    inv_use_role_name(b->role), b->label, b->op_type);
}

/* What is inside of bodies keeps the name that they read it by: it is of group 0 then. And one input of a call cannot
 * be two. */
static inv_status arrange_uses(const untier *u, inv_merge *m)
{
    const inv_param_use *in_body = NULL;
    for (uint32_t i = 0; i < m->nuse; i++) {
        const inv_param_use *a = &m->use[i];
        bool body = a->slot >= inv_node_listed(inv_nod(u->g, a->node));
        if (body && in_body && in_body->group != a->group) return cannot_untie(u, in_body, a);
        if (body) in_body = a;
        const inv_param_use *b = u->by_slot[a->slot];
        bool same = b && b->node == a->node && b->slot == a->slot; /* uses of a node are together */
        if (same && b->group != a->group) return cannot_untie(u, b, a);
        if (!same) u->by_slot[a->slot] = a;
    }
    uint32_t first = in_body ? in_body->group : 0, own = 0;
    while (own < m->nuse && (m->use[own].was || m->use[own].alias)) own++; /* its own reader keeps its name ... */
    for (uint32_t i = 0; own == m->nuse && i < m->nuse; i++)
        if (!m->use[i].was) own = i; /* ... or what no other parameter stood for */
    if (!in_body && own < m->nuse) first = m->use[own].group;
    for (uint32_t i = 0; i < m->nuse; i++) {
        uint32_t *group = &m->use[i].group;
        *group = *group == first ? 0 : *group == 0 ? first : *group;
    }
    return INV_OK;
}

static int by_group(const void *a, const void *b)
{
    const inv_param_use *x = *(const inv_param_use *const *)a, *y = *(const inv_param_use *const *)b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x < y ? -1 : x > y; /* in execution order */
}

static inv_status separate(untier *u, inv_merge *m)
{
    u->param = m->param;
    inv_value *first = inv_val(u->g, m->param);
    INV_TRY(arrange_uses(u, m));
    if (u->g->says && first->said != INV_SAID_PARAMETER && !inv_said_none(first)) first->said = INV_SAID_OF_PARAMETERS;
    const inv_param_use **use = INV_ARENA_NEW(u->scratch, const inv_param_use *, m->nuse);
    if (!use) return INV_E_NOMEM;
    for (uint32_t i = 0; i < m->nuse; i++) use[i] = &m->use[i];
    qsort(use, m->nuse, sizeof *use, by_group);
    u->group = 0;
    for (uint32_t i = 0; i < m->nuse; i++) {
        inv_id own;
        if (!use[i]->group) continue;
        if (use[i]->group != u->group) {
            for (size_t k = 0; k < u->copied.n; k++) u->copy[u->copied.at[k]] = INV_NONE;
            u->copied.n = 0;
            u->group = use[i]->group;
            INV_TRY(add_param(u, use[i]->was));
        }
        inv_id old = inv_nod(u->g, use[i]->node)->in[use[i]->slot];
        if (old >= u->nvalue || u->root[old] != u->param) continue; /* done: a call that uses it twice */
        INV_TRY(stand_in_for(u, old, &own));
        inv_nod(u->g, use[i]->node)->in[use[i]->slot] = own;
    }
    return INV_OK;
}

/* Each is called by the modules that read it now; values from `before` on are new. */
static inv_status call_anew(inv_graph *g, inv_arena *scratch, const inv_merges *merges, inv_id before)
{
    bool *which = INV_ARENA_NEW(scratch, bool, g->value.n + 1);
    if (!which) return INV_E_NOMEM;
    for (size_t v = before; v < g->value.n; v++) which[v] = true;
    for (size_t i = 0; i < merges->n; i++) {
        which[merges->at[i].param] = true;
        inv_val(g, merges->at[i].param)->nalso = 0;
    }
    return inv_module_names_find(g, scratch, which);
}

static inv_status separate_all(inv_program *p, inv_arena *scratch, inv_merges *merges)
{
    inv_id *root;
    if (!p->own) INV_TRY(inv_graph_copy(p->source, &p->own));
    inv_graph *g = p->own;
    const inv_id before = (inv_id)g->value.n;
    INV_TRY(inv_param_roots(g, scratch, &root));
    untier u = {.g = g, .scratch = scratch, .root = root, .nvalue = g->value.n};
    uint32_t widest = 0;
    for (size_t i = 0; i < g->node.n; i++)
        if (inv_nod(g, (inv_id)i)->nin > widest) widest = inv_nod(g, (inv_id)i)->nin;
    u.copy = INV_ARENA_NEW(scratch, inv_id, u.nvalue + 1);
    u.by_slot = INV_ARENA_NEW(scratch, const inv_param_use *, (size_t)widest + 1);
    if (!u.copy || !u.by_slot) return INV_E_NOMEM;
    memset(u.copy, 0xff, u.nvalue * sizeof *u.copy);
    for (size_t i = 0; i < merges->n; i++) INV_TRY(separate(&u, &merges->at[i]));
    INV_TRY(inv_lost_biases_put(g, &u.stand_ins, scratch));
    INV_TRY(inv_graph_sort(g));
    INV_TRY(call_anew(g, scratch, merges, before));
    p->source = g;
    return INV_OK;
}

/* --- both --- */

/* Whether an Identity says that another parameter was merged with it. */
static bool has_alias(const inv_merge *m)
{
    bool any = false;
    for (uint32_t i = 0; i < m->nuse && !any; i++) any = m->use[i].alias != NULL;
    return any;
}

/* Whether training would tie what was merged. A running statistic may be somebody's bias as well; what the file calls a
 * buffer or a constant stands for these alone, because of equal tensors PyTorch keeps the parameter: but where it says
 * that a parameter stood there, which was reshaped before it was merged. */
static bool matters(const inv_program *p, const inv_merge *m, inv_untrained why)
{
    const inv_value *v = inv_val(p->source, m->param);
    if (v->added) return false; /* of a weight that is shared; zeros at the start */
    if (m->updates || why == INV_TRAINED) return true;
    if (why == INV_UNTRAINED_CONSTANT && inv_merge_hides(m)) return !p->options.ntrain_only && !p->source->adapted;
    if (why == INV_UNTRAINED_LATER && p->options.untie) return true; /* as in the stage that trains it */
    if (why == INV_UNTRAINED_FROZEN && p->options.untie) /* by what one of its modules calls it, not by all its names */
        return has_alias(m) || !inv_param_fits_in_full(p->options.freeze, p->options.nfreeze, v);
    return why == INV_UNTRAINED_STATISTIC && is_trained(p->source, &p->options, v);
}

inv_status inv_pass_untie(inv_program *p, inv_arena *scratch)
{
    const inv_session_options *o = &p->options;
    const inv_merge_options how = {.train_bn = o->train_bn, .tied = is_tied, .opaque = o};
    inv_merges all = {0}, merges = {0};
    uint8_t *untrained;
    INV_TRY(inv_merges_find(p->source, &how, scratch, &all));
    INV_TRY(inv_trained_find(p->source, o, scratch, &untrained));
    INV_CHECK(!all.cut, p->ctx, INV_E_GRAPH,
              "too many or too deep function calls to find all merged initializers in them, which training would "
              "tie. Inline the model's functions first (onnx.inliner)");
    for (size_t i = 0; i < all.n; i++) {
        const inv_untrained why = (inv_untrained)untrained[all.at[i].param];
        if (matters(p, &all.at[i], why) && !inv_vec_push(scratch, &merges, all.at[i])) return INV_E_NOMEM;
    }
    if (!o->untie) return merges.n ? refuse_merged(p->source, &merges) : INV_OK;
    if (!merges.n && !inv_lost_biases_any(p->source, scratch)) return INV_OK;
    return separate_all(p, scratch, &merges);
}
