/* SPDX-License-Identifier: Apache-2.0
 * Which parameter stood at a use of an initializer, by the signs in the file (exported.h):
 *
 *   - The newer exporter of PyTorch lists all parameters. Where an initializer is there for each of them, nothing was
 *     merged. Else the call that became the node says which parameter it was given; where it was given what others have
 *     computed, its module does: "b.weight" in module b, where module a reads "a.weight". If that is lost, it was
 *     merged, or tied to the other by the model itself. Equal tensors are merged into the first of the list, or into a
 *     constant; of tied ones the exporter keeps the last.
 *   - The older one writes an Identity with the name of each parameter that it merges, and none where the model ties.
 *   - Where a simplifier has taken these signs away, two modules are taken for copies if each reads the same
 *     initializers in the same way, and more than one. Where it has left no sign of modules, nodes that read an
 *     initializer in the same way are taken for those of different modules, but for tables. */
#include <stdlib.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/exported.h"
#include "core/weights/module_names.h"
#include "core/weights/shared_weights.h"
#include "core/weights/trained.h"

/* A module: all that is read in it. */
typedef struct module {
    const char *path; /* not ended by a NUL: `n` bytes */
    size_t n;
    uint64_t sum; /* of hashes of what is read, and how */
    inv_id param; /* one that is read */
    bool several, nodes;
} module;

typedef struct name_at {
    const char *name;
    uint32_t at;
} name_at;

struct inv_claims {
    const inv_graph *g;
    const inv_exported *exported;
    inv_param_use *const *use; /* per value */
    const size_t *nuse;
    inv_arena *a;
    module *slot; /* by path; path NULL: free */
    size_t cap;
    name_at *param; /* sorted by name */
    bool *lost_at;  /* per slot: a parameter of this module is lost */
    bool aliases;   /* some use goes by an Identity that has a name of a parameter */
};

/* --- modules --- */

static module *slot_of(const inv_claims *c, const char *path, size_t n)
{
    size_t at = (size_t)inv_hash(path, n, 0) & (c->cap - 1);
    while (c->slot[at].path && (c->slot[at].n != n || memcmp(c->slot[at].path, path, n) != 0))
        at = (at + 1) & (c->cap - 1);
    return &c->slot[at];
}

static const char *scope_of(const inv_claims *c, const inv_param_use *u) { return inv_nod(c->g, u->node)->module; }

/* The length of the path without its last name; 0: it has one only. */
static size_t parent(const char *path, size_t n)
{
    while (n && path[n - 1] != '.') n--;
    return n ? n - 1 : 0;
}

static void note_use(const inv_claims *c, inv_id v, const inv_param_use *u)
{
    const char *s = scope_of(c, u);
    const size_t all = s ? strlen(s) : 0;
    for (size_t n = all; n; n = parent(s, n)) {
        module *m = slot_of(c, s, n);
        uint64_t h = inv_hash(s + n, all - n, inv_hash(&u->slot, sizeof u->slot, 0));
        h = inv_hash(&v, sizeof v, inv_hash(u->op_type, strlen(u->op_type), h));
        if (!m->path) *m = (module){.path = s, .n = n, .param = v};
        m->several = m->several || m->param != v;
        m->sum += h;
    }
}

/* The modules that have nodes, of which a lost parameter may have been one's own. */
static void note_lost(inv_claims *c)
{
    const inv_exported *o = c->exported;
    for (size_t i = 0; i < c->g->order.n; i++) {
        const char *path = inv_nod(c->g, c->g->order.at[i])->module;
        if (!path) continue;
        module *m = slot_of(c, path, strlen(path));
        if (!m->path) *m = (module){.path = path, .n = strlen(path), .param = INV_NONE};
        m->nodes = true;
    }
    for (uint32_t i = 0; i < o->nparam; i++) {
        if (o->kept[i] != INV_KEPT_NOT) continue;
        size_t n = parent(o->param[i], strlen(o->param[i]));
        while (n && !slot_of(c, o->param[i], n)->nodes) n = parent(o->param[i], n);
        c->lost_at[slot_of(c, o->param[i], n) - c->slot] = true;
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const name_at *)a)->name, ((const name_at *)b)->name);
}

inv_status inv_claims_init(const inv_graph *g, inv_param_use *const *use, const size_t *nuse, inv_arena *a,
                           inv_claims **out)
{
    *out = NULL;
    if (!g->exported || !g->exported->torch) return INV_OK;
    inv_claims *c = INV_ARENA_NEW(a, inv_claims, 1);
    if (!c) return INV_E_NOMEM;
    *c = (inv_claims){.g = g, .exported = g->exported, .use = use, .nuse = nuse, .a = a, .cap = 16};
    size_t most = g->order.n + 1;
    for (size_t i = 0; i < g->order.n; i++)
        for (const char *p = inv_nod(g, g->order.at[i])->module; p && *p; p++) most += *p == '.';
    while (c->cap < 2 * most) c->cap *= 2;
    c->slot = INV_ARENA_NEW(a, module, c->cap);
    c->lost_at = INV_ARENA_NEW(a, bool, c->cap);
    c->param = INV_ARENA_NEW(a, name_at, (size_t)g->exported->nparam + 1);
    if (!c->slot || !c->lost_at || !c->param) return INV_E_NOMEM;
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_id v = g->inits.at[i];
        for (size_t k = 0; k < nuse[v]; k++) {
            note_use(c, v, &use[v][k]);
            c->aliases = c->aliases || use[v][k].alias;
        }
    }
    note_lost(c);
    for (uint32_t i = 0; i < g->exported->nparam; i++) c->param[i] = (name_at){g->exported->param[i], i};
    qsort(c->param, g->exported->nparam, sizeof *c->param, by_name);
    *out = c;
    return INV_OK;
}

/* --- two modules --- */

/* Two paths without what both have in front and behind: `own` is from..own_to, `other` from..other_to. */
typedef struct fork {
    size_t from, own_to, other_to;
} fork;

static fork fork_of(const char *own, const char *other)
{
    const size_t n = strlen(own), m = strlen(other);
    size_t front = 0, same = 0, back = 0;
    while (own[same] && own[same] == other[same]) {
        same++;
        if ((own[same] == '.' || !own[same]) && (other[same] == '.' || !other[same])) front = same;
    }
    for (size_t k = 1; k <= n && k <= m && own[n - k] == other[m - k]; k++) {
        const bool whole = (k == n || own[n - k - 1] == '.') && (k == m || other[m - k - 1] == '.');
        if (whole && n - k >= front && m - k >= front) back = k;
    }
    fork f = {front, n - back, m - back};
    if (back && f.own_to > front) f.own_to--; /* the dot in front of what is the same behind */
    if (back && f.other_to > front) f.other_to--;
    return f;
}

/* The name that a parameter of module `own` has in module `other`; NULL: it is not in that part of `own`. */
static const char *counterpart(const inv_claims *c, const char *name, const char *own, const char *other)
{
    const fork f = fork_of(own, other);
    if (strncmp(name, own, f.own_to) != 0 || (f.own_to && name[f.own_to] != '.')) return NULL;
    const char *rest = name + f.own_to + (f.own_to ? 1 : 0);
    return f.other_to ? inv_arena_printf(c->a, "%.*s.%s", (int)f.other_to, other, rest) : rest;
}

/* Whether the parts by which two paths differ read the same initializers in the same way, several of them. */
static bool are_copies(const inv_claims *c, const char *own, const char *other)
{
    const fork f = fork_of(own, other);
    if (f.own_to <= f.from || f.other_to <= f.from) return false;
    const module *x = slot_of(c, own, f.own_to), *y = slot_of(c, other, f.other_to);
    return x->path && y->path && x->several && x->sum == y->sum;
}

/* The module of an initializer's own reader: the one that its name is in, else that of the first. */
static const char *own_scope(const inv_claims *c, inv_id v, const char *name)
{
    const char *own = NULL;
    for (size_t i = 0; i < c->nuse[v]; i++) {
        const char *s = scope_of(c, &c->use[v][i]);
        const size_t n = s ? strlen(s) : 0;
        if (!s || c->use[v][i].alias || (n && (strncmp(name, s, n) != 0 || name[n] != '.'))) continue;
        if (!own || n > strlen(own)) own = s;
    }
    for (size_t i = 0; i < c->nuse[v] && (!own || !*own); i++) {
        const char *s = scope_of(c, &c->use[v][i]);
        if (s && (!own || strchr(name, '.'))) own = s;
        if (own) break;
    }
    return own;
}

/* --- the claims --- */

static void claim_as(inv_claim *to, const char *was, const char *key)
{
    *to = (inv_claim){.was = was, .key = inv_hash(key, strlen(key), 0) | 16, .known = true};
}

static void claim_listed(const inv_claims *c, inv_id v, const char *name, uint32_t listed, const char *own,
                         const inv_param_use *u, inv_claim *to)
{
    const inv_exported *o = c->exported;
    const inv_node *n = inv_nod(c->g, u->node);
    const char *scope = n->module;
    const uint32_t given = inv_param_given(c->g, n, u->slot, v);
    const bool of_constants = listed == UINT32_MAX && inv_said_none(inv_val(c->g, v));
    to->known = o->nlost == 0 || given == listed;
    if (to->known && listed != UINT32_MAX) return;
    if (given != UINT32_MAX && o->kept[given] == INV_KEPT_NOT && (given > listed || of_constants)) {
        claim_as(to, o->param[given], o->param[given]);
        return;
    }
    to->known = o->nlost == 0 || of_constants;
    if (to->known || listed == UINT32_MAX || !own || !scope) return;
    const name_at wanted = {strcmp(own, scope) != 0 ? counterpart(c, name, own, scope) : NULL, 0};
    const name_at *q = wanted.name ? bsearch(&wanted, c->param, o->nparam, sizeof wanted, by_name) : NULL;
    if (q && o->kept[q->at] == INV_KEPT_NOT && q->at > listed) claim_as(to, q->name, q->name);
    else to->known = q || !c->lost_at[slot_of(c, scope, strlen(scope)) - c->slot];
}

static void claim_called(const inv_claims *c, inv_id v, const char *own, const inv_param_use *u, inv_claim *to)
{
    const char *name = inv_val(c->g, v)->name, *scope = scope_of(c, u);
    const inv_param_use *first = c->use[v];
    if (u->alias && !inv_name_is_generated(u->alias)) claim_as(to, u->alias, u->alias);
    else if (!u->alias && !inv_name_is_generated(name) && (c->exported->intact || c->aliases)) to->known = true;
    else if (own && scope && strcmp(own, scope) != 0 && are_copies(c, own, scope)) claim_as(to, NULL, scope);
    else if (c->exported->stripped && u->slot == first->slot && !strcmp(u->op_type, first->op_type) &&
             u->role != INV_USE_TABLE && strcmp(u->label, first->label) != 0)
        claim_as(to, NULL, u->label);
}

inv_status inv_claims_find(const inv_claims *c, inv_id v, inv_claim *claim)
{
    const inv_exported *o = c->exported;
    const inv_id init = inv_val(c->g, v)->init;
    const uint32_t listed = init < o->nof ? o->of[init] : UINT32_MAX;
    const char *name = listed != UINT32_MAX ? o->param[listed] : inv_val(c->g, v)->name;
    const char *own = own_scope(c, v, name);
    for (size_t i = 0; i < c->nuse[v]; i++) {
        claim[i] = (inv_claim){0};
        if (o->nparam) claim_listed(c, v, name, listed, own, &c->use[v][i], &claim[i]);
        else claim_called(c, v, own, &c->use[v][i], &claim[i]);
    }
    return c->a->failed ? INV_E_NOMEM : INV_OK;
}

const char *inv_claims_alias(const inv_graph *g, const inv_node *n)
{
    if (!g->exported || g->exported->nparam || !g->from_torch || n->nin != 1 || n->nout != 1 || n->in[0] == INV_NONE ||
        n->out[0] == INV_NONE || !inv_node_is(n, "Identity") || inv_val(g, n->in[0])->role != INV_ROLE_PARAM)
        return NULL;
    const char *name = inv_val(g, n->out[0])->name;
    return *name == '/' || !name[strspn(name, "0123456789")] ? NULL : name;
}
