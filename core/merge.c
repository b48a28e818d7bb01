/* SPDX-License-Identifier: Apache-2.0
 * Which initializers look merged (merge.h). */
#include "core/merge.h"

#include <string.h>

#include "core/op.h"

/* A graph, a function's body for one call, or the body of a control flow node. */
typedef struct frame {
    const inv_graph *g;
    const struct frame *outer; /* NULL: the main graph */
    const inv_id *arg;         /* per value: the value of `outer` that it is; INV_NONE. NULL: main graph */
    inv_id *root;              /* per value: the main graph's initializer that it comes from; INV_NONE */
    uint32_t *slot;            /* per value with a root: the input of main graph's `node` that brings it */
    bool *fixed;               /* per value: nothing changes it */
    inv_id node;
    const char *label; /* put before the names of nodes inside, with a slash; "" */
    unsigned depth;
} frame;

typedef INV_VEC(inv_param_use) use_list;

enum { MAX_DEPTH = 64, MAX_NODES = 500000 }; /* such models are refused when they are compiled */

typedef struct finder {
    const inv_graph *g;
    inv_arena *a;
    bool train_bn;
    uint32_t **formal; /* per function and formal input: roles inside */
    use_list *use;     /* per value of g: of the initializer */
    size_t looked;     /* nodes in frames so far */
    int8_t *varied;    /* per value: its elements differ; -1: not looked yet */
    const inv_graph *body; /* newest body of control flow that was looked into ... */
    uint32_t *inside;      /* ... and the roles of its values */
} finder;

const char *inv_use_role_name(inv_use_role role)
{
    static const char *const name[] = {"nothing",
                                       "running mean",
                                       "running variance",
                                       "running statistic",
                                       "scale",
                                       "bias",
                                       "weight",
                                       "table",
                                       "operand"};
    return name[role];
}

static bool is_op(const inv_node *n, const char *name)
{
    return !strcmp(n->op_type, name) && !*n->domain;
}

static inv_id function_of(const inv_graph *g, const inv_node *n)
{
    for (size_t i = 0; i < g->function.n; i++)
        if (!strcmp(g->function.at[i].name, n->op_type) && !strcmp(g->function.at[i].domain, n->domain))
            return (inv_id)i;
    return INV_NONE;
}

/* --- roles --- */

static inv_use_role role_of(const finder *f, const inv_node *n, uint32_t slot)
{
    static const struct {
        const char *op;
        inv_use_role role[4];
    } table[] = {
        {"BatchNormalization", {INV_USE_OPERAND, INV_USE_SCALE, INV_USE_BIAS, INV_USE_MEAN}},
        {"InstanceNormalization", {INV_USE_OPERAND, INV_USE_SCALE, INV_USE_BIAS, INV_USE_OPERAND}},
        {"GroupNormalization", {INV_USE_OPERAND, INV_USE_SCALE, INV_USE_BIAS, INV_USE_OPERAND}},
        {"LayerNormalization", {INV_USE_OPERAND, INV_USE_SCALE, INV_USE_BIAS, INV_USE_OPERAND}},
        {"RMSNormalization", {INV_USE_OPERAND, INV_USE_SCALE, INV_USE_OPERAND, INV_USE_OPERAND}},
        {"PRelu", {INV_USE_OPERAND, INV_USE_SCALE, INV_USE_OPERAND, INV_USE_OPERAND}},
        {"Conv", {INV_USE_OPERAND, INV_USE_WEIGHT, INV_USE_BIAS, INV_USE_OPERAND}},
        {"ConvTranspose", {INV_USE_OPERAND, INV_USE_WEIGHT, INV_USE_BIAS, INV_USE_OPERAND}},
        {"Gemm", {INV_USE_WEIGHT, INV_USE_WEIGHT, INV_USE_BIAS, INV_USE_OPERAND}},
        {"MatMul", {INV_USE_WEIGHT, INV_USE_WEIGHT, INV_USE_OPERAND, INV_USE_OPERAND}},
        {"Gather", {INV_USE_TABLE, INV_USE_OPERAND, INV_USE_OPERAND, INV_USE_OPERAND}},
        {"RNN", {INV_USE_OPERAND, INV_USE_WEIGHT, INV_USE_WEIGHT, INV_USE_BIAS}},
        {"GRU", {INV_USE_OPERAND, INV_USE_WEIGHT, INV_USE_WEIGHT, INV_USE_BIAS}},
        {"LSTM", {INV_USE_OPERAND, INV_USE_WEIGHT, INV_USE_WEIGHT, INV_USE_BIAS}},
    };
    if (is_op(n, "BatchNormalization") && slot >= 3) {
        bool trains = n->op && n->op->since >= 14 ? inv_attr_int(n, "training_mode", 0) != 0 : n->nout > 1;
        if (!trains && !f->train_bn) return INV_USE_FIXED;
        return slot == 3 ? INV_USE_MEAN : INV_USE_VARIANCE;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table && slot < 4; i++)
        if (is_op(n, table[i].op)) return table[i].role[slot];
    return INV_USE_OPERAND;
}

static void find_roles(finder *f, const inv_graph *g, uint32_t *roles);

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
            f->body = a->graph;
            f->inside = roles;
        }
        const inv_ids *in = &a->graph->inputs;
        bits |= f->inside[in->at[in->n - a->ncaptured + (slot - a->captured)]];
    }
    return bits;
}

/* As bits; of a call, what the function does with it. */
static uint32_t roles_at(finder *f, const inv_node *n, uint32_t slot)
{
    if (slot >= inv_node_listed(n)) return roles_inside(f, n, slot);
    inv_id fn = function_of(f->g, n);
    if (fn == INV_NONE) return 1u << role_of(f, n, slot);
    return slot < f->g->function.at[fn].body->inputs.n ? f->formal[fn][slot] : 0;
}

/* --- what hands an initializer on --- */

/* A value that neither training nor the caller changes. */
static bool is_fixed(const inv_graph *g, inv_id v, const bool *fixed)
{
    const inv_value *x = inv_val(g, v);
    if (x->role == INV_ROLE_PARAM) return x->shape.rank == 0 || !inv_dtype_is_float(x->dtype);
    return x->role == INV_ROLE_CONST || fixed[v];
}

/* Whether a node hands on its input `slot` and nothing else that can change. */
static bool hands_on(const inv_graph *g, const inv_node *n, const inv_id *root, const bool *fixed, uint32_t *slot)
{
    bool found = false;
    if (n->nout != 1 || n->out[0] == INV_NONE || !n->op || n->op->flags & INV_OP_RANDOM) return false;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id v = n->in[k];
        if (v == INV_NONE || is_fixed(g, v, fixed)) continue;
        if (root[v] == INV_NONE || found) return false;
        found = true;
        *slot = k;
    }
    return found;
}

static void note_fixed(const inv_graph *g, const inv_node *n, bool *fixed)
{
    bool all = n->op && !(n->op->flags & INV_OP_RANDOM);
    for (uint32_t k = 0; k < n->nin && all; k++) all = n->in[k] == INV_NONE || is_fixed(g, n->in[k], fixed);
    for (uint32_t k = 0; k < n->nout && all; k++)
        if (n->out[k] != INV_NONE) fixed[n->out[k]] = true;
}

/* Roots of the values of a frame, from those of the values around it. */
static inv_status find_roots(const inv_graph *functions, frame *x, inv_arena *a)
{
    const inv_graph *g = x->g;
    size_t nv = g->value.n;
    x->root = INV_ARENA_NEW(a, inv_id, nv + 1);
    x->slot = INV_ARENA_NEW(a, uint32_t, nv + 1);
    x->fixed = INV_ARENA_NEW(a, bool, nv + 1);
    if (!x->root || !x->slot || !x->fixed) return INV_E_NOMEM;
    for (inv_id v = 0; v < nv; v++) {
        const inv_value *val = inv_val(g, v);
        inv_id outside = x->arg ? x->arg[v] : INV_NONE;
        bool param = val->role == INV_ROLE_PARAM && inv_dtype_is_float(val->dtype) && val->shape.rank > 0;
        x->root[v] = outside != INV_NONE ? x->outer->root[outside] : param ? v : INV_NONE;
        if (outside != INV_NONE) x->fixed[v] = is_fixed(x->outer->g, outside, x->outer->fixed);
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        uint32_t k;
        note_fixed(g, n, x->fixed);
        if (function_of(functions, n) != INV_NONE || !hands_on(g, n, x->root, x->fixed, &k)) continue;
        x->root[n->out[0]] = x->root[n->in[k]];
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
            if (n->in[k] != INV_NONE && x->root[n->in[k]] != INV_NONE) x->slot[n->out[0]] = x->slot[n->in[k]];
    }
}

inv_status inv_param_roots(const inv_graph *g, inv_arena *a, inv_id **out)
{
    frame x = {.g = g};
    INV_TRY(find_roots(g, &x, a));
    *out = x.root;
    return INV_OK;
}

/* --- roles of all values --- */

/* Roles that input 0 of a node has because its result has them. Statistics are known only where nothing but the name
 * changes. */
static uint32_t roles_of_result(const inv_node *n, const uint32_t *roles)
{
    static const char *const views[] = {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten"};
    const uint32_t statistic = 1u << INV_USE_MEAN | 1u << INV_USE_VARIANCE | 1u << INV_USE_FIXED;
    if (!n->nout || n->out[0] == INV_NONE) return 0;
    uint32_t of = roles[n->out[0]];
    if (is_op(n, "Identity") || is_op(n, "Cast")) return of;
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (is_op(n, views[i])) return of & statistic ? 0 : of;
    return 0;
}

/* Against the order; what only hands a value on passes the roles of its result. */
static void find_roles(finder *f, const inv_graph *g, uint32_t *roles)
{
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        uint32_t through = roles_of_result(n, roles);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) roles[n->in[k]] |= k == 0 && through ? through : roles_at(f, n, k);
    }
}

/* Functions may call functions: once per level of calls. */
static inv_status find_formal_roles(finder *f)
{
    const inv_graph *g = f->g;
    size_t nf = g->function.n;
    bool again = true;
    f->formal = INV_ARENA_NEW(f->a, uint32_t *, nf + 1);
    if (!f->formal) return INV_E_NOMEM;
    for (size_t i = 0; i < nf; i++)
        if (!(f->formal[i] = INV_ARENA_NEW(f->a, uint32_t, g->function.at[i].body->inputs.n + 1))) return INV_E_NOMEM;
    for (size_t round = 0; again && round <= nf; round++) {
        again = false;
        for (size_t i = 0; i < nf; i++) {
            const inv_graph *body = g->function.at[i].body;
            uint32_t *roles = INV_ARENA_NEW(f->a, uint32_t, body->value.n + 1);
            if (!roles) return INV_E_NOMEM;
            find_roles(f, body, roles);
            for (size_t k = 0; k < body->inputs.n; k++) {
                again = again || f->formal[i][k] != roles[body->inputs.at[k]];
                f->formal[i][k] = roles[body->inputs.at[k]];
            }
        }
    }
    return INV_OK;
}

inv_status inv_param_roles(const inv_graph *g, bool train_bn, inv_arena *a, uint32_t **out)
{
    finder f = {.g = g, .a = a, .train_bn = train_bn};
    INV_TRY(find_formal_roles(&f));
    *out = INV_ARENA_NEW(a, uint32_t, g->value.n + 1);
    if (!*out) return INV_E_NOMEM;
    find_roles(&f, g, *out);
    return a->failed ? INV_E_NOMEM : INV_OK;
}

/* --- groups --- */

static bool varied(finder *f, inv_id v)
{
    if (f->varied[v] < 0) {
        const inv_data *d = &inv_val(f->g, v)->data;
        size_t size = inv_dtype_size(d->dtype);
        const char *p = d->bytes;
        f->varied[v] = p && size && d->nbytes > size && memcmp(p, p + size, d->nbytes - size) != 0;
    }
    return f->varied[v] > 0;
}

/* The initializers with different elements that a node reads; false: none. */
static bool varied_inputs(finder *f, const frame *x, const inv_node *n, uint64_t *key)
{
    bool any = false;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id r = n->in[k] == INV_NONE ? INV_NONE : x->root[n->in[k]];
        if (r == INV_NONE || !varied(f, r)) continue;
        *key = inv__hash(&r, sizeof r, inv__hash(&k, sizeof k, *key));
        any = true;
    }
    return any;
}

/* Two uses of one initializer with equal elements are of one layer if their keys are equal. */
static uint64_t layer_key(finder *f, const frame *x, const inv_node *n, uint32_t slot, const char *label)
{
    uint64_t key = inv__hash(&slot, sizeof slot, inv__hash(n->op_type, strlen(n->op_type), 0));
    bool any = varied_inputs(f, x, n, &key);
    for (uint32_t k = 0; k < n->nin && !any; k++) {
        inv_id v = n->in[k];
        const frame *y = x;
        if (v == INV_NONE || x->root[v] != INV_NONE) continue;
        for (; y->arg && y->arg[v] != INV_NONE; y = y->outer) v = y->arg[v];
        inv_id def = inv_val(y->g, v)->def;
        if (def != INV_NONE) any = varied_inputs(f, y, inv_nod(y->g, def), &key);
    }
    return any ? key : inv__hash(label, strlen(label), key);
}

static bool is_statistic(inv_use_role r) { return r == INV_USE_MEAN || r == INV_USE_VARIANCE || r == INV_USE_FIXED; }

static inv_status find_groups(finder *f, const inv_merge_options *o, inv_merge *m, inv_param_use *use)
{
    const inv_value *v = inv_val(f->g, m->param);
    bool number = inv_shape_nelem(&v->shape) == 1;
    uint64_t *key = INV_ARENA_NEW(f->a, uint64_t, m->nuse + 1);
    if (!key) return INV_E_NOMEM;
    for (uint32_t i = 0; i < m->nuse; i++) number = number && use[i].role == INV_USE_OPERAND;
    bool shared = number || varied(f, m->param) || (o->tied && o->tied(o->opaque, v->name));
    m->ngroup = 0;
    for (uint32_t i = 0; i < m->nuse; i++) {
        inv_use_role r = use[i].role;
        m->updates = m->updates || r == INV_USE_MEAN || r == INV_USE_VARIANCE;
        key[i] = r == INV_USE_FIXED ? 1 : !shared ? use[i].key : is_statistic(r) ? r : 0;
        uint32_t k = 0;
        while (k < i && key[k] != key[i]) k++;
        use[i].group = k < i ? use[k].group : m->ngroup++;
    }
    m->use = use;
    return INV_OK;
}

/* --- uses, inside of functions and bodies too --- */

static inv_status look(finder *f, const frame *x);

/* Name of node n, told from all others by what it is inside of. */
static const char *label_of(finder *f, const frame *x, const inv_node *n)
{
    const char *name = *n->name || !n->nout || n->out[0] == INV_NONE ? n->name : inv_val(x->g, n->out[0])->name;
    return *x->label ? inv__arena_printf(f->a, "%s/%s", x->label, name) : name;
}

/* Goes into `body`, whose inputs from `first` on are inputs from `slot` on of node `id` of frame x. */
static inv_status enter(finder *f, const frame *x, inv_id id, const inv_graph *body, size_t first, uint32_t slot,
                        uint32_t count, const char *label)
{
    const inv_node *n = inv_nod(x->g, id);
    frame y = {.g = body, .outer = x, .node = x->outer ? x->node : id, .label = label, .depth = x->depth + 1};
    inv_id *arg = INV_ARENA_NEW(f->a, inv_id, body->value.n + 1);
    if (!label || !arg) return INV_E_NOMEM;
    f->looked += body->order.n;
    if (y.depth > MAX_DEPTH || f->looked > MAX_NODES) return INV_OK;
    memset(arg, 0xff, body->value.n * sizeof *arg);
    for (uint32_t k = 0; k < count && first + k < body->inputs.n && slot + k < n->nin; k++)
        arg[body->inputs.at[first + k]] = n->in[slot + k];
    y.arg = arg;
    INV_TRY(find_roots(f->g, &y, f->a));
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

/* Nodes that only hand a value on do not use it. */
static inv_status look(finder *f, const frame *x)
{
    const inv_graph *g = x->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        inv_id fn = function_of(f->g, n);
        uint32_t listed = inv_node_listed(n);
        bool inside = false;
        if (n->nout && n->out[0] != INV_NONE && x->root[n->out[0]] != INV_NONE) continue;
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id r = n->in[k] == INV_NONE ? INV_NONE : x->root[n->in[k]];
            if (r == INV_NONE) continue;
            inside = inside || fn != INV_NONE || k >= listed;
            if (fn != INV_NONE || k >= listed) continue;
            inv_param_use u = {.node = x->outer ? x->node : g->order.at[i], .slot = x->outer ? x->slot[n->in[k]] : k,
                               .role = role_of(f, n, k), .label = label_of(f, x, n), .op_type = n->op_type};
            if (!u.label) return INV_E_NOMEM;
            u.key = layer_key(f, x, n, k, u.label);
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
        (*out)[v] = s->rank > 0 && inv_shape_nelem(s) == 1 && count[v] > 1 && roles[v] == 1u << INV_USE_OPERAND;
    }
    return INV_OK;
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
    INV_TRY(find_roots(g, &x, a));
    INV_TRY(look(&f, &x));
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_id v = g->inits.at[i];
        if (f.use[v].n < 2) continue;
        inv_merge m = {.param = v, .nuse = (uint32_t)f.use[v].n};
        INV_TRY(find_groups(&f, o, &m, f.use[v].at));
        if (m.ngroup > 1 && !inv_vec_push(a, out, m)) return INV_E_NOMEM;
    }
    return a->failed ? INV_E_NOMEM : INV_OK;
}
