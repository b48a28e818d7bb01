/* SPDX-License-Identifier: Apache-2.0
 * Conformance of an operator that a plugin brings, from its cases: it computes the same on every device, in both
 * precisions and every time; its gradient is that of differences; it changes no input, and hides no bad number. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "api/selftest.h"

/* --- one node --- */

static void put_everywhere(inv_test_values *v, const inv_node *n, double x)
{
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE || !inv_dtype_is_float(inv_val(v->g, n->in[k])->dtype)) continue;
        for (int64_t i = 0; i < inv_shape_nelem(&inv_val(v->g, n->in[k])->shape); i++) inv_test_put(v, n->in[k], i, x);
    }
}

/* Whether an output is floating-point; *finite: all of those that are. */
static bool results(const inv_test_values *v, const inv_node *n, bool *finite)
{
    bool any = false;
    *finite = true;
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE || !inv_dtype_is_float(inv_val(v->g, n->out[k])->dtype)) continue;
        any = true;
        *finite = *finite && inv_test_finite(v, n->out[k]);
    }
    return any;
}

static inv_status runs_alike(inv_tester *t, inv_test_values *v, inv_id id)
{
    const inv_node *n = inv_nod(v->g, id);
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        INV_TRY(inv_test_run(v, id));
        void *once = inv_test_copy(v, n->out[k]);
        if (!once) return INV_E_NOMEM;
        memset(v->at[n->out[k]], INV_POISON,
               inv_value_nbytes(inv_val(v->g, n->out[k]))); /* what it leaves unwritten shows */
        inv_status s = inv_test_run(v, id);
        if (s == INV_OK)
            (void)inv_test(t, memcmp(once, v->at[n->out[k]], inv_value_nbytes(inv_val(v->g, n->out[k]))) == 0,
                           "repetition", "output %u has other bits when it runs again", (unsigned)k);
        inv_dealloc(t->ctx, once);
        INV_TRY(s);
    }
    return INV_OK;
}

/* It runs on numbers of all sizes, alike each time, and NaN comes through. Its inputs are overwritten. */
static inv_status extremes(inv_tester *t, inv_test_values *v, inv_id id)
{
    static const double number[] = {0, 1e-40, -1e30, 1e30, (double)INFINITY};
    const inv_node *n = inv_nod(v->g, id);
    bool finite;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        put_everywhere(v, n, number[i]);
        INV_TRY(runs_alike(t, v, id));
    }
    put_everywhere(v, n, (double)NAN);
    INV_TRY(inv_test_run(v, id));
    if (results(v, n, &finite))
        (void)inv_test(t, !finite, "extreme values", "from inputs that are all NaN it computes ordinary numbers");
    return INV_OK;
}

/* The nodes of the operator in the forward part. */
static inv_status check_nodes(inv_tester *t, const inv_plan *p, const inv_test_case *c, const inv_op_def *op)
{
    inv_test_values v;
    bool any = false, finite;
    inv_status s = inv_test_forward(p, c, &v);
    for (size_t i = 0; i < p->base->order.n && s == INV_OK; i++) {
        inv_id id = p->base->order.at[i];
        const inv_node *n = inv_nod(p->base, id);
        if (n->op != op || n->phase != INV_FORWARD) continue;
        any = true;
        if (results(&v, n, &finite)) (void)inv_test(t, finite, "values", "its results are not finite");
        s = inv_test_aliasing(t, &v, id);
        if (s == INV_OK) s = runs_alike(t, &v, id);
        if (s == INV_OK) s = extremes(t, &v, id);
    }
    if (s == INV_OK) (void)inv_test(t, any, "cases", "this case does not contain the operator");
    inv_test_values_fini(&v);
    return s;
}

/* --- devices --- */

typedef struct trained {
    double *grad, loss;
    size_t n;
} trained;

static inv_status train(inv_tester *t, inv_test_case *c, const char *device, bool wide, trained *out)
{
    inv_session *s;
    inv_result r;
    *out = (trained){0};
    INV_TRY(inv_test_session(c, (inv_test_how){INV_MEMORY_STORE, device, wide}, &s));
    inv_status st = inv_test_gradients(s, c, &r, &out->grad, &out->n);
    out->loss = r.loss;
    inv_session_destroy(s);
    (void)t;
    return st;
}

static void compare_trained(inv_tester *t, const trained *a, const trained *b, double fair)
{
    double off = 0, size = 0;
    (void)inv_test(t, fabs(a->loss - b->loss) <= fair * (1 + fabs(b->loss)), "devices", "loss %.17g, on cpu %.17g",
                   a->loss, b->loss);
    if (!inv_test(t, a->n == b->n, "devices", "%zu gradients, on cpu %zu", a->n, b->n)) return;
    for (size_t i = 0; i < a->n; i++) off += pow(a->grad[i] - b->grad[i], 2), size += pow(b->grad[i], 2);
    (void)inv_test(t, sqrt(off) <= fair * sqrt(size), "devices", "gradients differ from device cpu by %.3g",
                   sqrt(off / fmax(size, DBL_MIN)));
}

static inv_status on_devices(inv_tester *t, inv_test_case *c, const inv_op_def *op, bool wide, trained *host)
{
    INV_TRY(train(t, c, "cpu", wide, host));
    for (size_t d = 1; d < t->ndevice; d++) {
        const inv_device *device;
        trained there;
        char how[64];
        int index;
        INV_TRY(inv_device_find(t->ctx, t->device[d], &device, &index));
        if (!device->host && !inv_op_on_device(op)) {
            t->skipped = true;
            continue;
        }
        snprintf(how, sizeof how, "%s, %s", t->device[d], wide ? "float64" : "float32");
        t->how = how;
        inv_status s = train(t, c, t->device[d], wide, &there);
        if (s == INV_OK) compare_trained(t, &there, host, wide ? 1e-12 : 1e-5);
        else if (s != INV_E_NOMEM) (void)inv_test(t, false, "devices", "%s", inv_context_message(t->ctx));
        if (s == INV_OK) inv_dealloc(t->ctx, there.grad);
        t->how = "";
        if (s == INV_E_NOMEM) return s;
    }
    return INV_OK;
}

static inv_status check_case(inv_tester *t, const inv_op_def *op, inv_test_case *c)
{
    double loss[2] = {0, 0};
    for (int wide = 0; wide < 2; wide++) {
        inv_session *s;
        trained host = {0};
        t->how = wide ? "cpu, float64" : "cpu, float32";
        INV_TRY(inv_test_session(c, (inv_test_how){INV_MEMORY_STORE, "cpu", wide}, &s));
        inv_status st = check_nodes(t, &s->program->plan[INV_PLAN_MAIN], c, op);
        inv_session_destroy(s);
        if (st == INV_OK && c->trains) st = on_devices(t, c, op, wide, &host);
        loss[wide] = host.loss;
        inv_dealloc(t->ctx, host.grad);
        INV_TRY(st);
    }
    if (!c->trains) return INV_OK;
    t->how = "cpu";
    (void)inv_test(t, fabs(loss[0] - loss[1]) <= 1e-4 * (1 + fabs(loss[1])), "precision",
                   "loss %.9g in float32, %.9g in float64", loss[0], loss[1]);
    return op->grad ? inv_test_differences(t, c, INV_MEMORY_STORE) : INV_OK;
}

inv_status inv_test_operator(inv_tester *t, const inv_op_def *op)
{
    for (size_t i = 0; op->cases && op->cases[i]; i++) {
        inv_graph *g;
        inv_test_case c = {0};
        t->number = i + 1;
        t->text = op->cases[i];
        t->how = "";
        inv_status s = inv_case_parse(t->ctx, t->text, 0, INV_F32, &g);
        if (s == INV_OK) {
            s = inv_test_open(t, g, &c);
            if (!op->grad) c.trains = false;
            if (s == INV_OK) s = check_case(t, op, &c);
            inv_test_close(&c);
        }
        if (s == INV_E_NOMEM) return s;
        if (s != INV_OK) (void)inv_test(t, false, "cases", "%s", inv_context_message(t->ctx));
    }
    return INV_OK;
}
