/* SPDX-License-Identifier: Apache-2.0
 * Which initializers look merged (shared_weights.h). */
#include "core/weights/shared_weights.h"

#include <string.h>

#include "core/graph/node.h"
#include "core/graph/op.h"
#include "core/weights/exported.h"

/* A graph, a function's body for one call, or the body of a control flow node. */
typedef struct frame {
    const inv_graph *g;
    const struct frame *outer; /* NULL: the main graph */
    const inv_id *arg;         /* per value: the value of `outer` that it is; INV_NONE. NULL: main graph */
    inv_id *root;              /* per value: the main graph's initializer that it comes from; INV_NONE */
    uint32_t *slot;            /* per value with a root: the input of main graph's `node` that brings it */
    bool *fixed;               /* per value: nothing changes it */
    uint64_t *cut;             /* per value with a root: which part of it; 0: all */
    const char **alias;        /* per value with a root: the name under which an Identity brings it; NULL */
    uint64_t *reads;           /* per node: its initializers with different elements, hashed; 1: none; 0: not looked */
    inv_id node;
    const char *label; /* put before the names of nodes inside, with a slash; "" */
    unsigned depth;
} frame;

typedef INV_VEC(inv_param_use) use_list;

/* MAX_LOOKED: nodes and values. Beyond, the search says that it was cut. */
enum { MAX_DEPTH = 1000, MAX_LOOKED = 4000000 };
/* Of tensors of more bytes than that so many elements tell whether all are equal, until it matters. */
enum { READ_WHOLE = 1 << 20, SAMPLED = 32 };

typedef struct finder {
    const inv_graph *g;
    inv_arena *a;
    inv_callees callees;
    bool train_bn, cut;
    uint32_t **formal;     /* per function and formal input: roles inside */
    use_list *use;         /* per value of g: of the initializer */
    size_t looked;         /* nodes and values in frames so far */
    int8_t *varied;        /* per value: its elements differ; -1: not looked yet; 0: those that were looked at do not */
    const inv_graph *body; /* newest body of control flow that was looked into ... */
    uint32_t *inside;      /* ... and the roles of its values */
    uint32_t *inner;       /* per parameter of g: roles inside of functions and bodies; NULL: it has none there */
} finder;

/* --- roles --- */

static inv_use_role role_of(const finder *f, const inv_graph *g, const inv_node *n, uint32_t slot)
{
    const inv_use_role r = inv_use_role_at(n, slot, f->train_bn);
    return r == INV_USE_OPERAND && inv_use_quantizes(g, n, slot) ? INV_USE_QUANTIZATION : r;
}

static void find_roles(finder *f, const inv_graph *g, uint32_t *roles);

/* Parameters inside of g, a function or body, have these roles. */
static void note_inner(finder *f, const inv_graph *g, const uint32_t *roles)
{
    for (inv_id v = 0; v < g->value.n && f->inner; v++)
        if (inv_val(g, v)->role == INV_ROLE_PARAM) f->inner[inv_val(g, v)->init] |= roles[v];
}

/* What the bodies of a node do with a value that they read from around them. */
static uint32_t roles_inside(finder *f, const inv_node *n, uint32_t slot)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        if (a->kind != INV_ATTR_GRAPH || !a->graph || slot < a->captured || slot - a->captured >= a->ncaptured)
            continue;
        if (f->body != a->graph) {
            uint32_t *roles = INV_ARENA_NEW(f->a, uint32_t, a->graph->value.n + 1);
            if (!roles) return bits; /* f->a->failed says so */
            find_roles(f, a->graph, roles);
            note_inner(f, a->graph, roles);
            f->body = a->graph;
            f->inside = roles;
        }
        const inv_ids *in = &a->graph->inputs;
        bits |= f->inside[in->at[in->n - a->ncaptured + (slot - a->captured)]];
    }
    return bits;
}

/* As bits; of a call, what the function does with it. */
static uint32_t roles_at(finder *f, const inv_graph *g, const inv_node *n, uint32_t slot)
{
    if (slot >= inv_node_listed(n)) return roles_inside(f, n, slot);
    inv_id fn = inv_callee(&f->callees, n);
    if (fn == INV_NONE) return 1u << role_of(f, g, n, slot);
    return slot < f->g->function.at[fn].body->inputs.n ? f->formal[fn][slot] : 0;
}

/* --- what hands an initializer on --- */

/* A value that neither training nor the caller changes. */
static bool is_fixed(const inv_graph *g, inv_id v, const bool *fixed)
{
    const inv_value *x = inv_val(g, v);
    if (x->role == INV_ROLE_PARAM) return inv_value_fixed(x);
    return x->role == INV_ROLE_CONST || fixed[v];
}

/* Whether a node hands on its input `slot` and nothing else that can change; all its results are of that. */
static bool hands_on(const inv_graph *g, const inv_node *n, const inv_id *root, const bool *fixed, uint32_t *slot)
{
    bool found = false;
    if (inv_node_reads_form(n, 0)) return false;
    if (n->nout != 1 && !inv_node_is(n, "Split")) return false;
    if (!n->nout || n->out[0] == INV_NONE || !n->op || n->op->flags & INV_OP_RANDOM) return false;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id v = n->in[k];
        if (v == INV_NONE || is_fixed(g, v, fixed)) continue;
        if (root[v] == INV_NONE || found) return false;
        found = true;
        *slot = k;
    }
    return found;
}

/* The form of an initializer is known, whatever its elements are. */
static void note_fixed(const inv_graph *g, const inv_node *n, const inv_id *root, bool *fixed)
{
    bool all = n->op && !(n->op->flags & INV_OP_RANDOM);
    for (uint32_t k = 0; k < n->nin && all; k++)
        all = n->in[k] == INV_NONE || is_fixed(g, n->in[k], fixed) ||
              (inv_node_reads_form(n, k) && root[n->in[k]] != INV_NONE);
    for (uint32_t k = 0; k < n->nout && all; k++)
        if (n->out[k] != INV_NONE) fixed[n->out[k]] = true;
}

/* Result j of a node is what its input `from` is, or a part of that. */
static void hand_on(frame *x, const inv_node *n, inv_id from, uint32_t j)
{
    const inv_id to = n->out[j];
    x->root[to] = x->root[from];
    x->cut[to] = inv_node_hands(n) == INV_HANDS_SOME ? inv_part_of(x->g, n, j, x->cut[from]) : x->cut[from];
    x->alias[to] = x->outer || x->alias[from] ? x->alias[from] : inv_claims_alias(x->g, n);
}

/* Roots of the values of a frame, from those of the values around it. */
static inv_status find_roots(const inv_callees *callees, frame *x, inv_arena *a)
{
    const inv_graph *g = x->g;
    size_t nv = g->value.n;
    x->root = INV_ARENA_NEW(a, inv_id, nv + 1);
    x->slot = INV_ARENA_NEW(a, uint32_t, nv + 1);
    x->fixed = INV_ARENA_NEW(a, bool, nv + 1);
    x->reads = INV_ARENA_NEW(a, uint64_t, g->node.n + 1);
    x->alias = INV_ARENA_NEW(a, const char *, nv + 1);
    x->cut = INV_ARENA_NEW(a, uint64_t, nv + 1);
    if (!x->root || !x->slot || !x->fixed || !x->reads || !x->alias || !x->cut) return INV_E_NOMEM;
    for (inv_id v = 0; v < nv; v++) {
        const inv_value *val = inv_val(g, v);
        inv_id outside = x->arg ? x->arg[v] : INV_NONE;
        bool param = val->role == INV_ROLE_PARAM && !inv_value_fixed(val);
        x->root[v] = outside != INV_NONE ? x->outer->root[outside]
                     : !param            ? INV_NONE
                     : x->outer          ? inv_graph_param(callees->g, val)
                                         : v;
        if (outside != INV_NONE) x->fixed[v] = is_fixed(x->outer->g, outside, x->outer->fixed);
        if (outside != INV_NONE) x->alias[v] = x->outer->alias[outside];
        if (outside != INV_NONE) x->cut[v] = x->outer->cut[outside];
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        uint32_t k;
        note_fixed(g, n, x->root, x->fixed);
        if (inv_callee(callees, n) != INV_NONE || !hands_on(g, n, x->root, x->fixed, &k)) continue;
        for (uint32_t j = 0; j < n->nout; j++)
            if (n->out[j] != INV_NONE) hand_on(x, n, n->in[k], j);
    }
    return INV_OK;
}

/* Which input of the main graph's node brings each value with a root. */
static void find_slots(frame *x)
{
    const inv_graph *g = x->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (!n->nout || n->out[0] == INV_NONE || x->root[n->out[0]] == INV_NONE) continue;
        for (uint32_t k = 0; k < n->nin; k++)
            for (uint32_t j = 0; j < n->nout && n->in[k] != INV_NONE && x->root[n->in[k]] != INV_NONE; j++)
                if (n->out[j] != INV_NONE) x->slot[n->out[j]] = x->slot[n->in[k]];
    }
}

inv_status inv_param_roots(const inv_graph *g, inv_arena *a, inv_id **out)
{
    frame x = {.g = g};
    inv_callees callees;
    INV_TRY(inv_callees_init(&callees, g, a));
    INV_TRY(find_roots(&callees, &x, a));
    *out = x.root;
    return INV_OK;
}

/* --- roles of all values --- */

/* Roles that input 0 of a node has because its results have them. Statistics are known only where nothing but the name
 * changes. */
static uint32_t roles_of_result(const inv_node *n, const uint32_t *roles)
{
    const uint32_t statistic = 1u << INV_USE_MEAN | 1u << INV_USE_VARIANCE | 1u << INV_USE_FIXED;
    const bool rounds = inv_node_is(n, "QuantizeLinear") || inv_node_is(n, "DequantizeLinear");
    const inv_hands hands = rounds ? INV_HANDS_SAME : inv_node_hands(n);
    uint32_t of = 0;
    for (uint32_t k = 0; hands != INV_HANDS_NOTHING && k < n->nout; k++)
        if (n->out[k] != INV_NONE) of |= roles[n->out[k]];
    if (hands != INV_HANDS_SAME && of & statistic) return 0;
    /* a state that the model learns is repeated for each row */
    if (hands == INV_HANDS_SOME && of & 1u << INV_USE_STATE) of = (of & ~(1u << INV_USE_STATE)) | 1u << INV_USE_OPERAND;
    /* what is looked up is a table, whatever is done with it but to scale integers */
    const uint32_t kept = 1u << INV_USE_QUANTIZATION | ~INV_USE_ROLES;
    return inv_node_is(n, "Gather") ? of & kept : of;
}

/* Bodies that read nothing from around them. */
static void find_body_roles(finder *f, const inv_node *n)
{
    for (uint32_t i = 0; i < n->nattr && f->inner; i++) {
        const inv_attr *a = &n->attr[i];
        if (a->kind != INV_ATTR_GRAPH || !a->graph || a->ncaptured) continue;
        uint32_t *roles = INV_ARENA_NEW(f->a, uint32_t, a->graph->value.n + 1);
        if (!roles) return; /* f->a->failed says so */
        find_roles(f, a->graph, roles);
        note_inner(f, a->graph, roles);
    }
}

/* The roles of what constants alone are computed for, where no weight can have them: all that they are computed of has
 * these, too. 0: none. */
static uint32_t roles_of_constant(const inv_graph *g, const inv_node *n, const uint32_t *roles)
{
    const uint32_t of = n->nout == 1 && n->out[0] != INV_NONE ? roles[n->out[0]] & INV_USE_ROLES : 0;
    return of && !(of & ~INV_USE_NO_WEIGHT) && inv_use_is_given(g, n->out[0]) ? of : 0;
}

/* Against the order; what only hands a value on passes the roles of its result. */
static void find_roles(finder *f, const inv_graph *g, uint32_t *roles)
{
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        uint32_t through = roles_of_result(n, roles);
        const uint32_t constant = roles_of_constant(g, n, roles);
        find_body_roles(f, n);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE)
                roles[n->in[k]] |= (k == 0 ? through : 0) |
                                   (constant                          ? constant
                                    : k || !(through & INV_USE_ROLES) ? roles_at(f, g, n, k)
                                                                      : 0) |
                                   inv_use_marks(g, n, k, roles);
    }
}

/* Functions that g calls, those in bodies of control flow among them. */
static bool list_calls(const finder *f, const inv_graph *g, inv_ids *out)
{
    for (size_t i = 0; i < g->body.n; i++)
        if (!list_calls(f, g->body.at[i], out)) return false; /* as deep as messages may be nested */
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id fn = inv_callee(&f->callees, inv_nod(g, g->order.at[i]));
        if (fn != INV_NONE && !inv_vec_push(f->a, out, fn)) return false;
    }
    return true;
}

static inv_status find_formal_roles_of(finder *f, inv_id fn)
{
    const inv_graph *body = f->g->function.at[fn].body;
    uint32_t *roles = INV_ARENA_NEW(f->a, uint32_t, body->value.n + 1);
    if (!roles) return INV_E_NOMEM;
    find_roles(f, body, roles);
    note_inner(f, body, roles);
    for (size_t k = 0; k < body->inputs.n; k++) f->formal[fn][k] = roles[body->inputs.at[k]];
    return INV_OK;
}

/* Functions may call functions: what is called comes first. Cycles are refused when a model is compiled. */
static inv_status find_formal_roles(finder *f)
{
    const inv_graph *g = f->g;
    size_t nf = g->function.n;
    inv_ids *calls = INV_ARENA_NEW(f->a, inv_ids, nf + 1);
    inv_ids stack = {0};
    bool *seen = INV_ARENA_NEW(f->a, bool, nf + 1);
    f->formal = INV_ARENA_NEW(f->a, uint32_t *, nf + 1);
    if (!f->formal || !calls || !seen) return INV_E_NOMEM;
    for (size_t i = 0; i < nf; i++) {
        const inv_graph *body = g->function.at[i].body;
        f->formal[i] = INV_ARENA_NEW(f->a, uint32_t, body->inputs.n + 1);
        if (!f->formal[i] || !list_calls(f, body, &calls[i])) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < nf; i++) {
        if (!seen[i] && !inv_vec_push(f->a, &stack, (inv_id)i)) return INV_E_NOMEM;
        seen[i] = true;
        while (stack.n) {
            inv_id top = stack.at[stack.n - 1];
            if (!calls[top].n) {
                stack.n--;
                INV_TRY(find_formal_roles_of(f, top));
                continue;
            }
            inv_id next = calls[top].at[--calls[top].n];
            if (!seen[next] && !inv_vec_push(f->a, &stack, next)) return INV_E_NOMEM;
            seen[next] = true;
        }
    }
    return INV_OK;
}

inv_status inv_plain_roles(const inv_graph *g, bool train_bn, inv_arena *a, uint32_t **out)
{
    finder f = {.g = g, .a = a, .train_bn = train_bn};
    for (size_t i = 0; i < g->inits.n && !f.inner; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        if (!v->within && (v->source == INV_NONE || !g->function.n)) continue;
        f.inner = INV_ARENA_NEW(a, uint32_t, g->inits.n + 1);
        if (!f.inner) return INV_E_NOMEM;
    }
    INV_TRY(inv_callees_init(&f.callees, g, a));
    INV_TRY(find_formal_roles(&f));
    *out = INV_ARENA_NEW(a, uint32_t, g->value.n + 1);
    if (!*out) return INV_E_NOMEM;
    find_roles(&f, g, *out);
    for (size_t i = 0; i < g->inits.n && f.inner; i++) (*out)[g->inits.at[i]] |= f.inner[i];
    return a->failed ? INV_E_NOMEM : INV_OK;
}

/* --- groups --- */

/* Whether elements differ: of a large tensor by a sample, since all of it would have to be read from the file. */
static bool varied(finder *f, inv_id v)
{
    if (f->varied[v] < 0) {
        const inv_data *d = &inv_val(f->g, v)->data;
        size_t size = inv_dtype_size(d->dtype), n = inv_data_count(d);
        size_t step = d->nbytes <= READ_WHOLE ? 1 : n / SAMPLED + 1;
        const char *p = d->bytes;
        f->varied[v] = 0;
        for (size_t i = step; i < n && !f->varied[v]; i += step) f->varied[v] = memcmp(p, p + i * size, size) != 0;
    }
    return f->varied[v] > 0;
}

/* The same of all elements. */
static bool all_varied(finder *f, inv_id v)
{
    const inv_data *d = &inv_val(f->g, v)->data;
    size_t size = inv_dtype_size(d->dtype);
    const char *p = d->bytes;
    if (varied(f, v)) return true;
    return p && size && d->nbytes > size && memcmp(p, p + size, d->nbytes - size) != 0;
}

/* The initializers with different elements that a node reads, as a hash; 1: none. */
static uint64_t varied_inputs(finder *f, const frame *x, inv_id id)
{
    const inv_node *n = inv_nod(x->g, id);
    uint64_t key = 0;
    bool any = false;
    if (x->reads[id]) return x->reads[id];
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id r = n->in[k] == INV_NONE ? INV_NONE : x->root[n->in[k]];
        if (r == INV_NONE || !varied(f, r)) continue;
        key = inv_hash(&r, sizeof r, inv_hash(&k, sizeof k, key));
        any = true;
    }
    return x->reads[id] = any ? key | 2 : 1;
}

/* What tells the layer of a node: initializers that it reads, else those that its operands come from; 1: nothing. */
static uint64_t layer_of(finder *f, const frame *x, inv_id id)
{
    const inv_node *n = inv_nod(x->g, id);
    uint64_t key = varied_inputs(f, x, id);
    for (uint32_t k = 0; k < n->nin && key == 1; k++) {
        inv_id v = n->in[k];
        const frame *y = x;
        if (v == INV_NONE || x->root[v] != INV_NONE) continue;
        for (; y->arg && y->arg[v] != INV_NONE; y = y->outer) v = y->arg[v];
        inv_id def = inv_val(y->g, v)->def;
        if (def != INV_NONE) key = varied_inputs(f, y, def);
    }
    return key;
}

/* Two uses of one initializer with equal elements are of one layer if their keys are equal. */
static uint64_t layer_key(uint64_t layer, const inv_node *n, uint32_t slot, const char *label)
{
    uint64_t key = inv_hash(&slot, sizeof slot, inv_hash(n->op_type, strlen(n->op_type), layer));
    return layer != 1 ? key : inv_hash(label, strlen(label), key);
}

static bool is_statistic(inv_use_role r) { return r == INV_USE_MEAN || r == INV_USE_VARIANCE || r == INV_USE_FIXED; }

static inv_status find_groups(finder *f, const inv_merge_options *o, const inv_claims *claims, inv_merge *m,
                              inv_param_use *use)
{
    const inv_value *v = inv_val(f->g, m->param);
    bool number = inv_shape_nelem(&v->shape) == 1;
    size_t cap = 4;
    while (cap < 2 * (size_t)m->nuse) cap *= 2;
    struct {
        uint64_t key;
        uint32_t group1;
    } *slot = inv_arena_array(f->a, cap, sizeof *slot);
    inv_claim *claim = INV_ARENA_NEW(f->a, inv_claim, m->nuse);
    if (!slot || !claim) return INV_E_NOMEM;
    for (uint32_t i = 0; i < m->nuse; i++)
        number = number && (use[i].role == INV_USE_OPERAND || 1u << use[i].role & INV_USE_NO_WEIGHT);
    const bool tied = o->tied && o->tied(o->opaque, v);
    const bool shared = number || inv_shape_nelem(&v->shape) == 0 || tied || all_varied(f, m->param);
    if (!shared) INV_TRY(inv_parts_number(f->a, use, m->nuse));
    if (claims && !tied) INV_TRY(inv_claims_find(claims, m->param, claim));
    m->ngroup = 0;
    for (uint32_t i = 0; i < m->nuse; i++) {
        inv_use_role r = use[i].role;
        m->updates = m->updates || r == INV_USE_MEAN || r == INV_USE_VARIANCE;
        const bool apart = claim[i].key && (claim[i].was || !number);
        uint64_t key = r == INV_USE_FIXED           ? 1
                       : apart                      ? claim[i].key
                       : !shared && !claim[i].known ? use[i].key
                       : is_statistic(r)            ? r
                                                    : 0;
        use[i].was = claim[i].was;
        size_t at = (size_t)inv_hash(&key, sizeof key, 0) & (cap - 1);
        while (slot[at].group1 && slot[at].key != key) at = (at + 1) & (cap - 1);
        if (!slot[at].group1) {
            slot[at].key = key;
            slot[at].group1 = ++m->ngroup;
        }
        use[i].group = slot[at].group1 - 1;
    }
    m->use = use;
    return INV_OK;
}

/* --- uses, inside of functions and bodies too --- */

static inv_status look(finder *f, const frame *x);

/* Name of node n, told from all others by what it is inside of. */
static const char *label_of(finder *f, const frame *x, const inv_node *n)
{
    const char *name = inv_node_called(x->g, n);
    return *x->label ? inv_arena_printf(f->a, "%s/%s", x->label, name) : name;
}

/* Goes into `body`, whose inputs from `first` on are inputs from `slot` on of node `id` of frame x. */
static inv_status enter(finder *f, const frame *x, inv_id id, const inv_graph *body, size_t first, uint32_t slot,
                        uint32_t count, const char *label)
{
    const inv_node *n = inv_nod(x->g, id);
    frame y = {.g = body, .outer = x, .node = x->outer ? x->node : id, .label = label, .depth = x->depth + 1};
    f->looked += body->order.n + body->value.n + 1;
    if (y.depth > MAX_DEPTH || f->looked > MAX_LOOKED) {
        f->cut = true;
        return INV_OK;
    }
    inv_id *arg = INV_ARENA_NEW(f->a, inv_id, body->value.n + 1);
    if (!label || !arg) return INV_E_NOMEM;
    memset(arg, 0xff, body->value.n * sizeof *arg);
    for (uint32_t k = 0; k < count && first + k < body->inputs.n && slot + k < n->nin; k++)
        arg[body->inputs.at[first + k]] = n->in[slot + k];
    y.arg = arg;
    INV_TRY(find_roots(&f->callees, &y, f->a));
    for (uint32_t k = 0; k < count && first + k < body->inputs.n && slot + k < n->nin; k++)
        if (n->in[slot + k] != INV_NONE)
            y.slot[body->inputs.at[first + k]] = x->outer ? x->slot[n->in[slot + k]] : slot + k;
    find_slots(&y);
    return look(f, &y);
}

static inv_status enter_all(finder *f, const frame *x, inv_id id, inv_id fn)
{
    const inv_node *n = inv_nod(x->g, id);
    const char *label = label_of(f, x, n);
    if (fn != INV_NONE) {
        const inv_function *call = &f->g->function.at[fn];
        return enter(f, x, id, call->body, 0, 0, inv_node_listed(n), call->block ? x->label : label);
    }
    for (uint32_t i = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        if (a->kind != INV_ATTR_GRAPH || !a->graph || !a->ncaptured) continue;
        INV_TRY(enter(f, x, id, a->graph, a->graph->inputs.n - a->ncaptured, a->captured, a->ncaptured, label));
    }
    return INV_OK;
}

/* Whether v, of a frame, is what comes into it by another name at most: what is computed of an initializer is no
 * statistic that somebody keeps. */
static bool is_kept(const inv_graph *g, inv_id v)
{
    while (v != INV_NONE && inv_val(g, v)->def != INV_NONE) {
        const inv_node *n = inv_nod(g, inv_val(g, v)->def);
        if (inv_node_hands(n) != INV_HANDS_SAME || !n->nin) return false;
        v = n->in[0];
    }
    return true;
}

/* Nodes that only hand a value on do not use it. */
static inv_status look(finder *f, const frame *x)
{
    const inv_graph *g = x->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        inv_id fn = inv_callee(&f->callees, n);
        uint32_t listed = inv_node_listed(n);
        bool inside = false;
        uint64_t layer = 0;
        if (n->nout && n->out[0] != INV_NONE && x->root[n->out[0]] != INV_NONE) continue;
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id r = n->in[k] == INV_NONE ? INV_NONE : x->root[n->in[k]];
            if (r == INV_NONE || inv_val(f->g, r)->within) continue; /* those inside of functions no exporter merges */
            inside = inside || fn != INV_NONE || k >= listed;
            if (fn != INV_NONE || k >= listed || inv_node_reads_form(n, k)) continue;
            inv_param_use u = {.node = x->outer ? x->node : g->order.at[i],
                               .slot = x->outer ? x->slot[n->in[k]] : k,
                               .role = role_of(f, g, n, k),
                               .label = label_of(f, x, n),
                               .op_type = n->op_type,
                               .alias = x->alias[n->in[k]],
                               .cut = x->cut[n->in[k]]};
            if (is_statistic(u.role) && !is_kept(g, n->in[k])) u.role = INV_USE_OPERAND;
            if (!u.label) return INV_E_NOMEM;
            if (!layer) layer = layer_of(f, x, g->order.at[i]);
            u.key = layer_key(layer, n, k, u.label);
            if (!inv_vec_push(f->a, &f->use[r], u)) return INV_E_NOMEM;
        }
        if (inside) INV_TRY(enter_all(f, x, g->order.at[i], fn));
    }
    return INV_OK;
}

inv_status inv_param_numbers(const inv_graph *g, inv_arena *a, bool **out)
{
    uint32_t *roles, *count = INV_ARENA_NEW(a, uint32_t, g->value.n + 1);
    INV_TRY(inv_param_roles(g, false, a, &roles));
    *out = INV_ARENA_NEW(a, bool, g->value.n + 1);
    if (!*out || !count) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) count[n->in[k]]++;
    }
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_id v = g->inits.at[i];
        const inv_shape *s = &inv_val(g, v)->shape;
        (*out)[v] = s->rank > 0 && inv_shape_nelem(s) == 1 && count[v] > 1 &&
                    (roles[v] & INV_USE_ROLES & ~INV_USE_NO_WEIGHT) == 1u << INV_USE_OPERAND;
    }
    return INV_OK;
}

bool inv_merge_hides(const inv_merge *m)
{
    bool any = false;
    for (uint32_t i = 0; i < m->nuse && !any; i++) any = m->use[i].was != NULL;
    return any;
}

inv_status inv_merges_find(const inv_graph *g, const inv_merge_options *o, inv_arena *a, inv_merges *out)
{
    finder f = {.g = g, .a = a, .train_bn = o->train_bn};
    frame x = {.g = g, .node = INV_NONE, .label = ""};
    size_t nv = g->value.n;
    f.use = INV_ARENA_NEW(a, use_list, nv + 1);
    f.varied = INV_ARENA_NEW(a, int8_t, nv + 1);
    if (!f.use || !f.varied) return INV_E_NOMEM;
    memset(f.varied, -1, nv);
    INV_TRY(inv_callees_init(&f.callees, g, a));
    INV_TRY(find_roots(&f.callees, &x, a));
    INV_TRY(look(&f, &x));
    out->cut = f.cut;
    inv_param_use **use = INV_ARENA_NEW(a, inv_param_use *, nv + 1);
    size_t *nuse = INV_ARENA_NEW(a, size_t, nv + 1);
    inv_claims *claims;
    if (!use || !nuse) return INV_E_NOMEM;
    for (size_t v = 0; v < nv; v++) {
        use[v] = f.use[v].at;
        nuse[v] = f.use[v].n;
    }
    INV_TRY(inv_claims_init(g, use, nuse, a, &claims));
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_id v = g->inits.at[i];
        if (f.use[v].n < 2) continue;
        inv_merge m = {.param = v, .nuse = (uint32_t)f.use[v].n};
        INV_TRY(find_groups(&f, o, claims, &m, f.use[v].at));
        if (m.ngroup > 1 && !inv_vec_push(a, out, m)) return INV_E_NOMEM;
    }
    return a->failed ? INV_E_NOMEM : INV_OK;
}
