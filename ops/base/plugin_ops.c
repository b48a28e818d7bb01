/* SPDX-License-Identifier: Apache-2.0
 * Operators of plugins: each becomes a row like any other, whose functions call those of the plugin, and whose gradient
 * is text. */
#include <stdio.h>
#include <string.h>

#include "core/graph/node.h"
#include "ops/base/families.h"
#include "ops/base/util.h"
#include "ops/gpu/gpu.h"

enum { MOST_OPERANDS = 16, MOST_VALUES = 64 };

typedef struct plugin_op {
    inv_op_def row; /* first: n->op is this */
    inv_operator_def def;
    inv_context *ctx;
    const char *plugin;
    const char *in[MOST_OPERANDS], *out[MOST_OPERANDS];
    uint32_t nin, nout;
    inv_stmts grad;
} plugin_op;

static const plugin_op *op_of(const inv_node *n) { return (const plugin_op *)(const void *)n->op; }

/* --- a call of a callback --- */

typedef struct running {
    inv_op_call call; /* first: callbacks give it back */
    const inv_node *node;
    inv_op_tensor in[MOST_OPERANDS], out[MOST_OPERANDS];
    inv_status code; /* what it said by `fail` */
    char why[512];
} running;

static const running *of_call(const inv_op_call *c) { return (const running *)(const void *)c; }

static int64_t attr_int(const inv_op_call *c, const char *name, int64_t otherwise)
{
    return inv_attr_int(of_call(c)->node, name, otherwise);
}

static double attr_real(const inv_op_call *c, const char *name, double otherwise)
{
    return inv_attr_float(of_call(c)->node, name, otherwise);
}

static const char *attr_text(const inv_op_call *c, const char *name, const char *otherwise)
{
    return inv_attr_string(of_call(c)->node, name, otherwise);
}

static const int64_t *attr_ints(const inv_op_call *c, const char *name, size_t *n)
{
    return inv_attr_ints(of_call(c)->node, name, n);
}

static inv_status fail(const inv_op_call *c, inv_status code, const char *why)
{
    union {
        const inv_op_call *given;
        running *own; /* it is on our stack, and not constant there */
    } r = {c};
    r.own->code = code == INV_OK ? INV_E_ARG : code;
    (void)snprintf(r.own->why, sizeof r.own->why, "%s", why ? why : "");
    return r.own->code;
}

static void begin_call(running *r, const inv_node *n)
{
    *r = (running){.node = n};
    r->call = (inv_op_call){.size = sizeof r->call,
                            .nin = op_of(n)->nin,
                            .nout = op_of(n)->nout,
                            .in = r->in,
                            .out = r->out,
                            .attr_int = attr_int,
                            .attr_real = attr_real,
                            .attr_text = attr_text,
                            .attr_ints = attr_ints,
                            .fail = fail};
}

static inv_op_tensor operand(inv_dtype t, const inv_shape *s, void *data)
{
    inv_op_tensor o = {.dtype = (int32_t)t, .rank = s->rank, .count = inv_shape_nelem(s), .data = data};
    for (int d = 0; d < s->rank; d++) o.dims[d] = s->dim[d];
    return o;
}

static void shapes(running *r, const inv_graph *g, bool outputs)
{
    const inv_node *n = r->node;
    for (uint32_t k = 0; k < n->nin && k < r->call.nin; k++)
        if (n->in[k] != INV_NONE) r->in[k] = operand(inv_val(g, n->in[k])->dtype, &inv_val(g, n->in[k])->shape, NULL);
    for (uint32_t k = 0; outputs && k < n->nout && k < r->call.nout; k++)
        if (n->out[k] != INV_NONE)
            r->out[k] = operand(inv_val(g, n->out[k])->dtype, &inv_val(g, n->out[k])->shape, NULL);
}

/* What a callback has come to; `what` is its field. */
static inv_status verdict(running *r, inv_status s, const char *what)
{
    const plugin_op *p = op_of(r->node);
    if (s == INV_OK) s = r->code;
    if (s == INV_OK) return INV_OK;
    return inv_fail(p->ctx, s, "node '%s' (%s.%s): %s of plugin '%s' has failed: %s", inv_node_label(r->node),
                    p->row.domain, p->row.name, what, p->plugin, *r->why ? r->why : inv_status_text(s));
}

/* --- the functions of a row --- */

/* Numbers that plans are made of: any bytes that there may be, and no less than no work. */
static inv_status check_costs(const inv_graph *g, inv_node *n)
{
    const plugin_op *p = op_of(n);
    const size_t most = (size_t)1 << 46;
    running r;
    begin_call(&r, n);
    shapes(&r, g, true);
    const size_t nbytes = p->def.workspace ? p->def.workspace(&r.call) : 0;
    INV_TRY(verdict(&r, INV_OK, "workspace"));
    if (nbytes > most)
        return inv_node_fail(g, n, INV_E_ARG, "workspace of plugin '%s' asks for %zu bytes", p->plugin, nbytes);
    const double flops = p->def.flops ? p->def.flops(&r.call) : 0;
    INV_TRY(verdict(&r, INV_OK, "flops"));
    if (!(flops >= 0 && flops < 1e30))
        return inv_node_fail(g, n, INV_E_ARG, "flops of plugin '%s' gives %g", p->plugin, flops);
    return INV_OK;
}

static inv_status plugin_infer(inv_graph *g, inv_node *n)
{
    const plugin_op *p = op_of(n);
    running r;
    if (n->nin > p->nin || n->nout > p->nout)
        return inv_node_fail(g, n, INV_E_GRAPH, "at most %u inputs and %u outputs", p->nin, p->nout);
    begin_call(&r, n);
    shapes(&r, g, false);
    INV_TRY(verdict(&r, p->def.infer(&r.call), "infer"));
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        const inv_op_tensor *o = &r.out[k];
        bool fine = o->rank >= 0 && o->rank <= INV_MAX_RANK && inv_dtype_size((inv_dtype)o->dtype) > 0;
        for (int d = 0; fine && d < o->rank; d++) fine = o->dims[d] >= 0;
        if (!fine)
            return inv_node_fail(g, n, INV_E_SHAPE, "infer of plugin '%s' gives no type and shape for output '%s'",
                                 p->plugin, p->out[k]);
        inv_val(g, n->out[k])->dtype = (inv_dtype)o->dtype;
        inv_val(g, n->out[k])->shape = inv_shape_of(o->rank, o->dims);
    }
    return check_costs(g, n);
}

static size_t plugin_workspace(const inv_graph *g, const inv_node *n)
{
    running r;
    begin_call(&r, n);
    shapes(&r, g, true);
    return op_of(n)->def.workspace(&r.call);
}

static double plugin_flops(const inv_graph *g, const inv_node *n)
{
    running r;
    begin_call(&r, n);
    shapes(&r, g, true);
    return op_of(n)->def.flops(&r.call);
}

static void tensors(running *r, const inv_call *c)
{
    begin_call(r, c->node);
    for (uint32_t k = 0; k < c->nin; k++)
        if (c->in[k].data || c->in[k].dtype) r->in[k] = operand(c->in[k].dtype, &c->in[k].shape, c->in[k].data);
    for (uint32_t k = 0; k < c->nout; k++)
        if (c->out[k].data || c->out[k].dtype) r->out[k] = operand(c->out[k].dtype, &c->out[k].shape, c->out[k].data);
    r->call.workspace = c->ws;
    r->call.workspace_nbytes = c->ws_nbytes;
}

/* The simulated device has no CUDA: there the kernel for the host stands in for the launcher. */
static inv_status plugin_run(const inv_call *c)
{
    const plugin_op *p = op_of(c->node);
    running r;
    tensors(&r, c);
    if (!c->gpu) return verdict(&r, p->def.cpu(&r.call), "cpu");
    r.call.stream = c->gpu->stream;
    if (!c->gpu->emulated) return verdict(&r, p->def.cuda(&r.call), "cuda");
    if (inv_emu_guard) inv_emu_guard(true);
    inv_status s = p->def.cpu(&r.call);
    if (inv_emu_guard) inv_emu_guard(false);
    return verdict(&r, s, "cpu (on the simulated device)");
}

/* --- gradients, from text --- */

typedef struct scope {
    const plugin_op *p;
    inv_grad *b;
    const char *name[MOST_VALUES];
    inv_id value[MOST_VALUES];
    size_t n;
} scope;

/* The gradient of an output that none reaches. */
static inv_id zeros_like(inv_graph *g, inv_id like)
{
    const inv_shape s = *inv_shape_of_value(g, like);
    return inv_emit_zeros(g, inv_val(g, like)->dtype, &s);
}

static int index_of(const char *const *names, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return (int)i;
    return -1;
}

static inv_id look_up(scope *x, const char *name)
{
    const plugin_op *p = x->p;
    for (size_t i = x->n; i-- > 0;)
        if (strcmp(x->name[i], name) == 0) return x->value[i];
    const inv_node *n = inv_nod(x->b->g, x->b->node);
    int i = index_of(p->in, p->nin, name), o = index_of(p->out, p->nout, name);
    int d = strncmp(name, "d_", 2) == 0 ? index_of(p->out, p->nout, name + 2) : -1;
    if (i >= 0) return (uint32_t)i < n->nin ? n->in[i] : INV_NONE;
    if (o >= 0) return inv_node_want(x->b->g, x->b->node, (uint32_t)o);
    if (d >= 0 && (uint32_t)d < n->nout && x->b->out_grad[d] != INV_NONE) return x->b->out_grad[d];
    if (d < 0) return INV_NONE;
    inv_id like = inv_node_want(x->b->g, x->b->node, (uint32_t)d);
    return like == INV_NONE ? INV_NONE : zeros_like(x->b->g, like);
}

static inv_id literal(inv_graph *g, const inv_data *d)
{
    inv_dtype t = inv_dtype_is_float(d->dtype) ? g->real : d->dtype;
    size_t n = (size_t)inv_shape_nelem(&d->shape);
    void *bytes = inv_arena_alloc(&g->arena, n * inv_dtype_size(t) + 1);
    if (!bytes || !inv_convert(bytes, t, d->bytes, d->dtype, n)) return INV_NONE;
    return inv_graph_const(g, t, &d->shape, bytes);
}

/* Attributes of a statement: copies of the node's, `k = name` and `<*>`, or its own. */
static bool attributes(const inv_stmt *s, const inv_node *n, inv_attr *out, uint32_t *count)
{
    *count = 0;
    for (uint32_t i = 0; i < s->nattr; i++) {
        inv_attr a = s->attr[i];
        const bool all = strcmp(a.name, "*") == 0;
        for (uint32_t k = 0; all && k < n->nattr && *count < MOST_OPERANDS; k++) out[(*count)++] = n->attr[k];
        if (all) continue;
        if (a.kind == INV_ATTR_OTHER) {
            const inv_attr *from = inv_attr_find(n, a.s);
            if (!from) continue; /* the node leaves it out, and so does what takes it over */
            a = *from;
            a.name = s->attr[i].name;
        }
        if (*count == MOST_OPERANDS) return false;
        out[(*count)++] = a;
    }
    return true;
}

static inv_status statement(scope *x, const inv_stmt *s)
{
    inv_graph *g = x->b->g;
    inv_id in[MOST_OPERANDS], out[MOST_OPERANDS];
    inv_attr attr[MOST_OPERANDS];
    uint32_t nattr;
    for (uint32_t k = 0; k < s->nin; k++) {
        in[k] = s->in_type[k].bytes ? literal(g, &s->in_type[k]) : look_up(x, s->in[k]);
        if (in[k] == INV_NONE && !g->failed)
            return inv_fail(g->ctx, INV_E_ARG, "grad of %s.%s (plugin '%s'): this node has no '%s'", x->p->row.domain,
                            x->p->row.name, x->p->plugin, s->in[k]);
    }
    const inv_node n = *inv_nod(g, x->b->node);
    if (!attributes(s, &n, attr, &nattr)) return INV_E_ARG;
    if (inv_emit_op(g, inv_registry_named(g->ctx->registry, s), s->nout, s->nin, in, nattr, attr, out) == INV_NONE)
        return g->failed;
    for (uint32_t k = 0; k < s->nout && x->n < MOST_VALUES; k++) {
        x->name[x->n] = s->out[k];
        x->value[x->n++] = out[k];
    }
    return INV_OK;
}

static inv_status check_type(const inv_grad *b, uint32_t k, inv_id gradient)
{
    const inv_dtype got = inv_val(b->g, gradient)->dtype, want = inv_val(b->g, inv_I(b, k))->dtype;
    const plugin_op *p = op_of(inv_nod(b->g, b->node));
    if (b->g->failed) return b->g->failed;
    INV_CHECK(got == want, p->ctx, INV_E_ARG, "grad of %s.%s (plugin '%s'): 'd_%s' is of type %s, the input of type %s",
              p->row.domain, p->row.name, p->plugin, p->in[k], inv_dtype_name(got), inv_dtype_name(want));
    return INV_OK;
}

static inv_status plugin_grad(inv_grad *b)
{
    const plugin_op *p = op_of(inv_nod(b->g, b->node));
    scope x = {.p = p, .b = b};
    for (size_t i = 0; i < p->grad.n; i++) INV_TRY(statement(&x, &p->grad.at[i]));
    for (uint32_t k = 0; k < inv_nod(b->g, b->node)->nin; k++) {
        char name[128];
        if (!inv_wants(b, k)) continue;
        (void)snprintf(name, sizeof name, "d_%s", p->in[k]);
        for (size_t i = x.n; i-- > 0;)
            if (strcmp(x.name[i], name) == 0) {
                INV_TRY(check_type(b, k, x.value[i]));
                inv_grad_set(b, k, inv_emit_sum_to(b->g, x.value[i], inv_I(b, k)));
                break;
            }
    }
    return b->g->failed;
}

/* --- registration --- */

/* In messages: plugins may say anything. */
static const char *shown(const char *s)
{
    for (const char *p = s; p && *p; p++)
        if (*p < ' ' || *p > '~') return "?";
    return s ? s : "?";
}

static inv_status refuse(inv_registry *r, const inv_operator_def *d, const char *why)
{
    return inv_fail(inv_registry_context(r), INV_E_ARG, "operator '%.60s.%.60s': %s", shown(d->domain), shown(d->name),
                    why);
}

/* Letters, digits and "_", as in texts, and what else is given. */
static bool is_word(const char *s, const char *also)
{
    size_t n = 0;
    for (; s[n]; n++) {
        const char c = s[n];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        if (!letter && !strchr(also, c)) return false;
    }
    return n > 0 && n <= 60;
}

/* "x w b?" as names without marks, each given once. */
static inv_status split_names(inv_registry *r, const plugin_op *p, const char *list, const char **name, uint32_t *n)
{
    static const char few[] = "in and out are lists of 1 to 16 names";
    inv_arena *a = inv_registry_arena(r);
    if (!list) return refuse(r, &p->def, few);
    for (*n = 0;; (*n)++) {
        list += strspn(list, " ");
        size_t len = strcspn(list, " ");
        if (len == 0) return *n ? INV_OK : refuse(r, &p->def, few);
        if (*n == MOST_OPERANDS) return refuse(r, &p->def, few);
        const bool optional = name == p->in && list[len - 1] == '?';
        const char *one = inv_arena_strndup(a, list, len - optional);
        if (!one) return INV_E_NOMEM;
        INV_CHECK(is_word(one, ""), p->ctx, INV_E_ARG,
                  "operator '%s.%s': the name '%.60s' of an operand is not one word of letters, digits and _",
                  p->def.domain, p->def.name, shown(one));
        INV_CHECK(index_of(p->in, p->nin, one) < 0 && index_of(name, *n, one) < 0, p->ctx, INV_E_ARG,
                  "operator '%s.%s': two operands are called '%s'", p->def.domain, p->def.name, one);
        name[*n] = one;
        list += len;
    }
}

/* Whether statement i gives the gradient of an input, or what a later one reads. */
static bool is_of_use(const plugin_op *p, size_t i)
{
    const inv_stmt *s = &p->grad.at[i];
    for (uint32_t k = 0; k < s->nout; k++) {
        if (strncmp(s->out[k], "d_", 2) == 0 && index_of(p->in, p->nin, s->out[k] + 2) >= 0) return true;
        for (size_t j = i + 1; j < p->grad.n; j++)
            if (index_of(p->grad.at[j].in, p->grad.at[j].nin, s->out[k]) >= 0) return true;
    }
    return false;
}

/* Whether statement i of the gradient may read this name. */
static bool is_there(const plugin_op *p, size_t i, const char *name)
{
    bool there = index_of(p->in, p->nin, name) >= 0 || index_of(p->out, p->nout, name) >= 0 ||
                 (strncmp(name, "d_", 2) == 0 && index_of(p->out, p->nout, name + 2) >= 0);
    for (size_t j = 0; j < i && !there; j++) there = index_of(p->grad.at[j].out, p->grad.at[j].nout, name) >= 0;
    return there;
}

static inv_status check_grad(inv_registry *r, const plugin_op *p)
{
    inv_context *ctx = p->ctx;
    size_t values = 0;
    for (size_t i = 0; i < p->grad.n; i++) {
        const inv_stmt *s = &p->grad.at[i];
        const inv_op_def *op = inv_registry_named(r, s);
        INV_CHECK(op && inv_op_computes(op), ctx, INV_E_UNSUPPORTED_OP,
                  "operator '%s.%s', grad: '%s' is no canonical operator (`invonnx ops`: forward yes) that only "
                  "computes from its inputs",
                  p->row.domain, p->row.name, s->op);
        INV_CHECK(s->nin && s->nin <= MOST_OPERANDS && s->nout && s->nout <= MOST_OPERANDS, ctx, INV_E_PARSE,
                  "operator '%s.%s', grad: %s has no operands, or too many", p->row.domain, p->row.name, s->op);
        for (uint32_t k = 0; k < s->nin; k++) {
            const char *name = s->in[k];
            INV_CHECK(s->in_type[k].bytes || is_there(p, i, name), ctx, INV_E_PARSE,
                      "operator '%s.%s', grad: nothing gives '%s'", p->row.domain, p->row.name, name);
        }
        for (uint32_t k = 0; k < s->nout; k++) {
            const char *name = s->out[k];
            INV_CHECK(!*name || (!is_there(p, i, name) && index_of(s->out, k, name) < 0), ctx, INV_E_PARSE,
                      "operator '%s.%s', grad: '%s' is there already", p->row.domain, p->row.name, name);
        }
        INV_CHECK(is_of_use(p, i), ctx, INV_E_PARSE,
                  "operator '%s.%s', grad: '%s' is no gradient d_NAME of an input, and nothing reads it", p->row.domain,
                  p->row.name, s->out[0]);
        values += s->nout;
    }
    INV_CHECK(p->grad.n || !p->def.grad, ctx, INV_E_PARSE, "operator '%s.%s', grad: it is empty", p->row.domain,
              p->row.name);
    INV_CHECK(values <= MOST_VALUES, ctx, INV_E_PARSE, "operator '%s.%s', grad: more than %d values", p->row.domain,
              p->row.name, MOST_VALUES);
    return INV_OK;
}

static inv_status copy_texts(inv_registry *r, plugin_op *p)
{
    inv_arena *a = inv_registry_arena(r);
    const char **text[] = {&p->def.domain, &p->def.name, &p->def.in, &p->def.out, &p->def.grad, &p->def.doc};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (*text[i] && !(*text[i] = inv_arena_strdup(a, *text[i]))) return INV_E_NOMEM;
    size_t n = 0;
    while (p->def.cases && p->def.cases[n]) n++;
    const char **cases = INV_ARENA_NEW(a, const char *, n + 1);
    for (size_t i = 0; cases && i < n; i++)
        if (!(cases[i] = inv_arena_strdup(a, p->def.cases[i]))) return INV_E_NOMEM;
    p->def.cases = cases;
    return cases ? INV_OK : INV_E_NOMEM;
}

static void fill_row(plugin_op *p)
{
    const inv_operator_def *d = &p->def;
    p->row = (inv_op_def){.size = sizeof(inv_op_def),
                          .domain = d->domain,
                          .name = d->name,
                          .since = d->since,
                          .in = d->in,
                          .out = d->out,
                          .inplace = d->inplace,
                          .onnx = "",
                          .cases = d->cases,
                          .doc = d->doc};
    p->row.flags = INV_OP_EXPLAINS | INV_OP_DEVICE_REAL | (d->cuda ? 0 : INV_OP_HOST_ONLY);
    p->row.infer = plugin_infer;
    p->row.run = plugin_run;
    if (d->workspace) p->row.workspace = plugin_workspace;
    if (d->flops) {
        p->row.flops = plugin_flops;
        p->row.work = inv_work_scalar;
    }
    if (d->grad) p->row.grad = plugin_grad;
}

static inv_status add_operator(struct inv_registry *r, const inv_operator_def *d)
{
    inv_arena *a = inv_registry_arena(r);
    inv_context *ctx = inv_registry_context(r);
    INV_CHECK(d->size >= offsetof(inv_operator_def, cuda) && d->size <= sizeof *d, ctx, INV_E_ABI,
              "operator of %zu bytes, this library knows %zu", d->size, sizeof *d);
    plugin_op *p = inv_arena_alloc(a, sizeof *p);
    if (!p) return INV_E_NOMEM;
    memcpy(&p->def, d, d->size);
    p->ctx = ctx;
    p->plugin = inv_registry_loading(r) ? inv_registry_loading(r) : "built in";
    d = &p->def;
    if (!d->domain || !is_word(d->domain, ".-") || !d->name || !is_word(d->name, ""))
        return refuse(r, d,
                      "domain and name must be words of letters, digits and _, as com.example and Twice; a domain "
                      "may also have . and -");
    if (strncmp(d->domain, "ai.onnx", 7) == 0 || strncmp(d->domain, "ai.invonnx", 10) == 0)
        return refuse(r, d, "it must have a domain of its own, as com.example");
    if (d->since < 1 || !d->infer || !d->cpu || !d->cases || !d->cases[0])
        return refuse(r, d, "since, infer, cpu and cases are required");
    uint32_t nin;
    INV_TRY(split_names(r, p, d->in, p->in, &nin));
    p->nin = nin;
    INV_TRY(split_names(r, p, d->out, p->out, &p->nout));
    INV_TRY(copy_texts(r, p));
    if (d->grad) {
        inv_status s = inv_text_formulas(ctx, a, d->grad, &p->grad);
        if (s == INV_E_PARSE)
            return inv_fail(ctx, s, "operator '%s.%s', grad: %s", d->domain, d->name, inv_context_message(ctx));
        INV_TRY(s);
    }
    fill_row(p);
    INV_TRY(inv_registry_add_op(r, &p->row));
    return check_grad(r, p);
}

static inv_status api_fail(struct inv_registry *r, inv_status code, const char *why)
{
    return inv_fail(inv_registry_context(r), code == INV_OK ? INV_E_ARG : code, "%s", why ? why : "");
}

const inv_api inv_plugin_api = {INV_PLUGIN_ABI, sizeof(inv_api), inv_registry_add_inverse, api_fail, add_operator};
