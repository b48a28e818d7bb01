/* SPDX-License-Identifier: Apache-2.0
 * The tools of the conformance suite: data for a case, sessions on it, its nodes run one by one. */
#include <math.h>
#include <string.h>

#include "api/selftest.h"
#include "ops/base/util.h"

/* --- cases --- */

static double noise(uint64_t *h)
{
    *h ^= *h << 13, *h ^= *h >> 7, *h ^= *h << 17;
    return (double)(*h >> 11) * 0x1p-53 - 0.5;
}

enum { MOST_NBYTES = 64 << 20 }; /* of an operand: a case is small */

/* Elements of an operand that is to be filled, eight bytes each at most. */
static inv_status count_operand(inv_context *ctx, const char *name, const inv_shape *s, size_t *ne)
{
    size_t nbytes;
    INV_CHECK(inv_shape_is_static(s), ctx, INV_E_SHAPE, "'%s' has no fixed shape", name);
    INV_CHECK(inv_shape_nbytes(s, INV_F64, &nbytes) && nbytes <= MOST_NBYTES, ctx, INV_E_SHAPE,
              "'%s' has more elements than a case may have (%d)", name, MOST_NBYTES / 8);
    *ne = nbytes / 8;
    return INV_OK;
}

static inv_status fill_params(inv_graph *g)
{
    uint64_t h = 88172645463325252u;
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        size_t ne = 0;
        if (v->data.bytes) continue;
        INV_TRY(count_operand(g->ctx, v->name, &v->shape, &ne));
        float *data = INV_ARENA_NEW(&g->arena, float, ne);
        if (!data) return INV_E_NOMEM;
        for (size_t k = 0; k < ne; k++) data[k] = (float)(0.6 * noise(&h));
        v->data = (inv_data){INV_F32, v->shape, data, ne * sizeof *data};
    }
    return INV_OK;
}

/* Integers are 0 or 1: good for labels, indices and truth values. */
static inv_status test_fill(inv_test_case *c, size_t at, inv_array *a, const char *name, inv_dtype dtype,
                            const inv_shape *s)
{
    size_t ne = 0;
    INV_TRY(count_operand(c->model.ctx, name, s, &ne));
    bool real = inv_dtype_is_float(dtype);
    if (real) dtype = INV_F64;
    unsigned char *data = inv_arena_alloc(&c->arena, ne * 8 + 64);
    if (!data) return INV_E_NOMEM;
    for (size_t i = 0; i < ne; i++) {
        double x = sin(0.7 * (double)i + 0.3 + (double)at);
        if (real) memcpy(data + 8 * i, &x, sizeof x);
        else inv_put_int(data, dtype, (int64_t)i, x > 0);
    }
    c->feeds.data[at] = data;
    memcpy(c->feeds.dims[at], s->dim, sizeof s->dim);
    *a = (inv_array){.name = name, .dtype = dtype, .rank = s->rank, .dims = c->feeds.dims[at], .data = data};
    return INV_OK;
}

static inv_status fill_feeds(inv_test_case *c)
{
    const inv_graph *g = c->model.graph;
    INV_CHECK(g->inputs.n >= 1 && g->inputs.n <= INV_TEST_INPUTS && g->outputs.n >= 1, g->ctx, INV_E_ARG,
              "a case has 1 to %d inputs and an output", INV_TEST_INPUTS);
    c->feeds.n = g->inputs.n;
    for (size_t i = 0; i < c->feeds.n; i++) {
        const inv_value *v = inv_val(g, g->inputs.at[i]);
        c->trains = c->trains || inv_dtype_is_float(v->dtype);
        INV_TRY(test_fill(c, i, &c->feeds.in[i], v->name, v->dtype, &v->shape));
    }
    /* A plan without a loss tells the shape of a target. */
    inv_session *s;
    inv_session_options o = {.size = sizeof o, .inputs = c->feeds.in, .ninputs = c->feeds.n, .plan_only = true};
    INV_TRY(inv_session_create(&c->model, &o, &s));
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    inv_status st = INV_OK;
    c->trains = c->trains && p->output.n > 0;
    if (c->trains) {
        const inv_value *y = inv_val(p->g, p->output.at[0].value);
        c->trains = inv_dtype_is_float(y->dtype);
        if (c->trains) st = test_fill(c, c->feeds.n, &c->feeds.target, "target", y->dtype, &y->shape);
    }
    inv_session_destroy(s);
    return st;
}

inv_status inv_test_open(inv_tester *t, inv_graph *g, inv_test_case *c)
{
    *c = (inv_test_case){.model = {.ctx = t->ctx, .path = "case", .graph = g}};
    inv_arena_init(&c->arena, t->ctx);
    INV_TRY(inv_graph_sort(g)); /* statements may stand in any order */
    INV_TRY(fill_params(g));
    return fill_feeds(c);
}

void inv_test_close(inv_test_case *c)
{
    inv_arena_fini(&c->arena);
    inv_graph_destroy(c->model.graph);
    c->model.graph = NULL;
}

/* --- sessions: the loss is MSE of the first output --- */

inv_status inv_test_session(inv_test_case *c, inv_test_how how, inv_session **out)
{
    const char *first = inv_val(c->model.graph, c->model.graph->outputs.at[0])->name;
    inv_session_options o = {.size = sizeof o, .inputs = c->feeds.in, .ninputs = c->feeds.n};
    if (c->trains) {
        o.purpose = INV_FOR_TRAIN;
        o.loss = INV_LOSS_MSE;
        o.nloss_outputs = 1;
        o.loss_outputs = &first;
        o.target = &c->feeds.target;
        o.input_grads = true;
    }
    o.memory = how.memory;
    o.device = how.device;
    o.float64 = how.float64;
    return inv_session_create(&c->model, &o, out);
}

static inv_status append_gradients(inv_session *s, inv_what kind, double **out, size_t *n)
{
    const char *name;
    for (size_t i = 0; (name = inv_session_name(s, kind, i)); i++) {
        const void *data;
        inv_dtype dt;
        int rank;
        int64_t dims[INV_MAX_RANK], ne = 1;
        INV_TRY(inv_session_get(s, kind, name, &data, &dt, &rank, dims));
        for (int d = 0; d < rank; d++) ne *= dims[d];
        double *grown = inv_alloc(s->ctx, (*n + (size_t)ne + 1) * sizeof *grown);
        if (!grown) return INV_E_NOMEM;
        if (*n) memcpy(grown, *out, *n * sizeof *grown);
        inv_dealloc(s->ctx, *out);
        *out = grown;
        for (int64_t e = 0; e < ne; e++) grown[(*n)++] = inv_elem_double(data, dt, (size_t)e);
    }
    return INV_OK;
}

/* With the random numbers of the first step. */
static inv_status grad_again(inv_session *s, inv_test_case *c, inv_result *r)
{
    inv_session_set_step(s, 0, 0);
    return inv_session_grad(s, c->feeds.in, c->feeds.n, &c->feeds.target, r);
}

/* Twice: what a step leaves behind must not change the next one. */
inv_status inv_test_gradients(inv_session *s, inv_test_case *c, inv_result *r, double **out, size_t *n)
{
    *out = NULL;
    *n = 0;
    for (int twice = 0; twice < 2; twice++) INV_TRY(grad_again(s, c, r));
    inv_status st = append_gradients(s, INV_GET_GRAD, out, n);
    if (st == INV_OK) st = append_gradients(s, INV_GET_INPUT_GRAD, out, n);
    if (st != INV_OK) inv_dealloc(s->ctx, *out);
    return st;
}

/* --- differences --- */

enum { MOST_ELEMENTS = 24 }; /* of an input that are compared */

static inv_status loss_at(inv_session *s, inv_test_case *c, double *x, double value, double *loss)
{
    const double old = *x;
    inv_result r;
    *x = value;
    inv_status st = grad_again(s, c, &r);
    *x = old;
    *loss = r.loss;
    return st;
}

static inv_status difference_quotient(inv_session *s, inv_test_case *c, double *x, double h, double *out)
{
    double up, down;
    INV_TRY(loss_at(s, c, x, *x + h, &up));
    INV_TRY(loss_at(s, c, x, *x - h, &down));
    *out = (up - down) / (2 * h);
    return INV_OK;
}

static inv_status compare_input(inv_tester *t, inv_session *s, inv_test_case *c, size_t at, const double *grad)
{
    inv_array *a = &c->feeds.in[at];
    double *data = c->feeds.data[at], worst = 0, got = 0, want = 0;
    int64_t ne = 1, where = 0;
    for (int d = 0; d < a->rank; d++) ne *= a->dims[d];
    for (int64_t k = 0; k < ne; k += 1 + ne / MOST_ELEMENTS) {
        double near, far, off;
        INV_TRY(difference_quotient(s, c, &data[k], 1e-5, &near));
        off = fabs(grad[k] - near) / (1 + fabs(near));
        if (!(off <= 1e-7)) { /* of fourth order, where that of second order is not enough */
            INV_TRY(difference_quotient(s, c, &data[k], 2e-5, &far));
            near = (4 * near - far) / 3;
            off = fabs(grad[k] - near) / (1 + fabs(near));
        }
        if (off <= worst) continue;
        worst = off;
        where = k;
        got = grad[k];
        want = near;
    }
    t->seen.gradient = fmax(t->seen.gradient, worst);
    (void)inv_test(t, worst <= 1e-6, "gradient", "by %s[%lld]: %.9g, by differences of the loss %.9g", a->name,
                   (long long)where, got, want);
    return INV_OK;
}

inv_status inv_test_differences(inv_tester *t, inv_test_case *c, inv_memory memory)
{
    inv_session *s;
    inv_result r;
    t->how = "cpu, float64";
    INV_TRY(inv_test_session(c, (inv_test_how){memory, "cpu", true}, &s));
    inv_status st = grad_again(s, c, &r);
    for (size_t i = 0; i < c->feeds.n && st == INV_OK; i++) {
        const char *name;
        bool has = false;
        for (size_t k = 0; (name = inv_session_name(s, INV_GET_INPUT_GRAD, k)) && !has; k++)
            has = strcmp(name, c->feeds.in[i].name) == 0;
        if (!has || c->feeds.in[i].dtype != INV_F64) continue;
        const void *data;
        inv_dtype dt;
        int rank;
        int64_t dims[INV_MAX_RANK], ne = 1;
        st = inv_session_get(s, INV_GET_INPUT_GRAD, c->feeds.in[i].name, &data, &dt, &rank, dims);
        for (int d = 0; st == INV_OK && d < rank; d++) ne *= dims[d];
        double *grad = st == INV_OK ? inv_alloc(t->ctx, (size_t)ne * sizeof *grad + 1) : NULL;
        for (int64_t k = 0; grad && k < ne; k++) grad[k] = inv_elem_double(data, dt, (size_t)k);
        if (st == INV_OK) st = grad ? compare_input(t, s, c, i, grad) : INV_E_NOMEM;
        inv_dealloc(t->ctx, grad);
        if (st == INV_OK) st = grad_again(s, c, &r);
    }
    inv_session_destroy(s);
    return st;
}

/* --- values of nodes, one buffer each --- */

double inv_test_get(const inv_test_values *v, inv_id value, int64_t i)
{
    return inv_elem_double(v->at[value], inv_val(v->g, value)->dtype, (size_t)i);
}

void inv_test_put(inv_test_values *v, inv_id value, int64_t i, double x)
{
    if (inv_val(v->g, value)->dtype == INV_F64) ((double *)v->at[value])[i] = x;
    else if (inv_val(v->g, value)->dtype == INV_F32) ((float *)v->at[value])[i] = (float)x;
}

bool inv_test_finite(const inv_test_values *v, inv_id value)
{
    for (int64_t i = 0; i < inv_shape_nelem(&inv_val(v->g, value)->shape); i++)
        if (!isfinite(inv_test_get(v, value, i))) return false;
    return true;
}

void *inv_test_copy(inv_test_values *v, inv_id value)
{
    void *copy = inv_alloc(v->g->ctx, inv_value_nbytes(inv_val(v->g, value)) + 1);
    if (copy) memcpy(copy, v->at[value], inv_value_nbytes(inv_val(v->g, value)));
    return copy;
}

static inv_status test_tensor(inv_test_values *v, inv_id id, bool input, inv_tensor *out)
{
    *out = (inv_tensor){0};
    if (id == INV_NONE) return INV_OK;
    const inv_value *x = inv_val(v->g, id);
    size_t ne = (size_t)inv_shape_nelem(&x->shape);
    if (!v->at[id]) {
        unsigned char *room = inv_arena_alloc(&v->arena, inv_value_nbytes(inv_val(v->g, id)) + 64);
        if (!room) return INV_E_NOMEM;
        v->at[id] = room + (64 - (uintptr_t)room % 64) % 64;
        INV_CHECK(!input || inv_convert(v->at[id], x->dtype, x->data.bytes, x->data.dtype, ne), v->g->ctx,
                  INV_E_INTERNAL, "'%s' has no data", x->name);
    }
    *out = (inv_tensor){v->at[id], x->dtype, x->shape, (int64_t)ne};
    return INV_OK;
}

static inv_status scratch(inv_test_values *v, size_t nbytes)
{
    if (nbytes <= v->ws_nbytes) return INV_OK;
    inv_dealloc(v->g->ctx, v->ws);
    v->ws = inv_alloc(v->g->ctx, nbytes);
    v->ws_nbytes = v->ws ? nbytes : 0;
    return v->ws ? INV_OK : INV_E_NOMEM;
}

enum { MOST_OPERANDS = 64 };

/* `over`: this output is written over that input. */
static inv_status run_over(inv_test_values *v, inv_id id, int over)
{
    const inv_node *n = inv_nod(v->g, id);
    inv_tensor in[MOST_OPERANDS], out[MOST_OPERANDS];
    INV_CHECK(n->nin <= MOST_OPERANDS && n->nout <= MOST_OPERANDS, v->g->ctx, INV_E_ARG,
              "%s has more operands than a case may have", n->op->name);
    for (uint32_t k = 0; k < n->nin; k++) INV_TRY(test_tensor(v, n->in[k], true, &in[k]));
    for (uint32_t k = 0; k < n->nout; k++) INV_TRY(test_tensor(v, n->out[k], false, &out[k]));
    if (n->op->flags & INV_OP_VIEW) {
        memcpy(out[0].data, in[0].data, inv_value_nbytes(inv_val(v->g, n->out[0])));
        return INV_OK;
    }
    if (over >= 0) out[n->op->inplace_out].data = in[over].data;
    size_t ws = n->op->workspace ? n->op->workspace(v->g, n) : 0;
    INV_TRY(scratch(v, ws));
    inv_call call = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout, .ws = v->ws, .ws_nbytes = ws};
    call.step = &v->step;
    return inv_run_on_host(v->g->ctx, n, &call);
}

inv_status inv_test_run(inv_test_values *v, inv_id node) { return run_over(v, node, -1); }

inv_status inv_test_forward(const inv_plan *p, const inv_test_case *c, inv_test_values *v)
{
    const inv_graph *g = p->base;
    *v = (inv_test_values){.g = g};
    inv_arena_init(&v->arena, g->ctx);
    v->step = (inv_step){.feed = v->feed, .seed = 1, .step = 1};
    v->at = INV_ARENA_NEW(&v->arena, void *, g->value.n + 1);
    if (!v->at) return INV_E_NOMEM;
    for (size_t i = 0; i < p->feed.n && i <= INV_TEST_INPUTS; i++) {
        const inv_array *a = &c->feeds.target;
        for (size_t k = 0; k < c->feeds.n; k++)
            if (!p->feed.at[i].is_target && strcmp(c->feeds.in[k].name, p->feed.at[i].name) == 0) a = &c->feeds.in[k];
        v->feed[i] = (inv_feed){a->data, a->dtype, NULL};
    }
    size_t end = g->forward_end ? g->forward_end : g->order.n;
    for (size_t i = 0; i < end; i++) INV_TRY(inv_test_run(v, g->order.at[i]));
    return INV_OK;
}

void inv_test_values_fini(inv_test_values *v)
{
    inv_dealloc(v->g->ctx, v->ws);
    inv_arena_fini(&v->arena);
}

/* --- aliasing --- */

static bool same(const inv_test_values *v, inv_id value, const void *bytes)
{
    return memcmp(v->at[value], bytes, inv_value_nbytes(inv_val(v->g, value))) == 0;
}

static inv_status inputs_stay(inv_tester *t, inv_test_values *v, const inv_node *n, inv_id id)
{
    void *before[MOST_OPERANDS] = {NULL};
    inv_status s = INV_OK;
    for (uint32_t k = 0; k < n->nin && s == INV_OK; k++)
        if (n->in[k] != INV_NONE && !(before[k] = inv_test_copy(v, n->in[k]))) s = INV_E_NOMEM;
    if (s == INV_OK) s = inv_test_run(v, id);
    for (uint32_t k = 0; k < n->nin; k++) {
        if (s == INV_OK && before[k] && !(n->op->writes >> k & 1))
            (void)inv_test(t, same(v, n->in[k], before[k]), "aliasing", "%s changes its input %u, which others read",
                           n->op->name, (unsigned)k);
        inv_dealloc(t->ctx, before[k]);
    }
    return s;
}

inv_status inv_test_aliasing(inv_tester *t, inv_test_values *v, inv_id id)
{
    const inv_node *n = inv_nod(v->g, id);
    if (n->nin > MOST_OPERANDS || n->op->flags & (INV_OP_VIEW | INV_OP_SOURCE | INV_OP_STEP)) return INV_OK;
    INV_TRY(inputs_stay(t, v, n, id));
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        inv_id y = n->nout > n->op->inplace_out ? n->out[n->op->inplace_out] : INV_NONE, x = n->in[k];
        if (!(n->op->inplace >> k & 1) || x == INV_NONE || y == INV_NONE) continue;
        if (inv_value_nbytes(inv_val(v->g, x)) != inv_value_nbytes(inv_val(v->g, y))) continue;
        void *want = inv_test_copy(v, y), *was = inv_test_copy(v, x);
        inv_status s = want && was ? run_over(v, id, (int)k) : INV_E_NOMEM;
        if (s == INV_OK)
            (void)inv_test(t, same(v, x, want), "aliasing", "%s gives other numbers when it writes over its input %u",
                           n->op->name, (unsigned)k);
        if (was) memcpy(v->at[x], was, inv_value_nbytes(inv_val(v->g, x)));
        if (want) memcpy(v->at[y], want, inv_value_nbytes(inv_val(v->g, y)));
        inv_dealloc(t->ctx, want);
        inv_dealloc(t->ctx, was);
        INV_TRY(s);
    }
    return INV_OK;
}
