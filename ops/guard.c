/* SPDX-License-Identifier: Apache-2.0
 * The guard: a fingerprint of a value taken in forward, and its comparison after reconstruction.
 *
 * GuardSum<key>(v) -> float64[6]: four projections of the whole tensor on random signs, the sum of squares, the number
 * of non-finite elements (which count as 0 elsewhere). For an error e of norm |e|, a projection of e has mean 0 and
 * variance |e|^2 whatever the distribution of e over channels, so one bad channel cannot hide. GuardCheck<key, slot>(v,
 * fp) writes sqrt(mean over projections of (p - p')^2) / sqrt(sum of squares), an estimate of the relative L2 error.
 *
 * The bits of a fingerprint depend on values only: PARTS fixed shares, four lanes each, added in order. */
#include "ops/builtin.h"
#include "ops/parallel.h"
#include "ops/philox.h"
#include "ops/util.h"

#define PARTS 64
#define NPROJ 4
#define NSUM (NPROJ + 2)

/* Four signs per nibble. */
static const double sign[16][4] = {
    {1, 1, 1, 1},   {-1, 1, 1, 1},   {1, -1, 1, 1},   {-1, -1, 1, 1},   {1, 1, -1, 1},   {-1, 1, -1, 1},
    {1, -1, -1, 1}, {-1, -1, -1, 1}, {1, 1, 1, -1},   {-1, 1, 1, -1},   {1, -1, 1, -1},  {-1, -1, 1, -1},
    {1, 1, -1, -1}, {-1, 1, -1, -1}, {1, -1, -1, -1}, {-1, -1, -1, -1}};

#define REAL float
#define FN(x) x##_f32
#include "ops/guard_kernels.inc"
#undef REAL
#undef FN
#define REAL double
#define FN(x) x##_f64
#include "ops/guard_kernels.inc"
#undef REAL
#undef FN

static void fingerprint(const inv_tensor *v, uint64_t key, double out[NSUM])
{
    if (v->dtype == INV_F32)
        fingerprint_f32(v->data, v->n, key, out);
    else
        fingerprint_f64(v->data, v->n, key, out);
}

static inv_status sum_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv__need(g, n, 1));
    INV_TRY(inv__need_real(g, n, 0));
    inv_shape s = inv_shape_of(1, (int64_t[]){NSUM});
    inv__set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

static inv_status check_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv__need(g, n, 2));
    INV_TRY(inv__need_real(g, n, 0));
    const inv_shape *s = inv__in_shape(g, n, 1);
    if (inv__in_dtype(g, n, 1) == INV_F64 && s->rank == 1 && s->dim[0] == NSUM) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input 1 must be a fingerprint, double[%d]", NSUM);
}

static inv_status sum_cpu(const inv_call *c)
{
    fingerprint(&c->in[0], (uint64_t)inv_attr_int(c->node, "key", 0), c->out[0].data);
    return INV_OK;
}

static inv_status check_cpu(const inv_call *c)
{
    double now[NSUM], d = 0;
    const double *then = c->in[1].data;
    if (c->step == NULL || c->step->drift == NULL) return INV_E_INTERNAL;
    fingerprint(&c->in[0], (uint64_t)inv_attr_int(c->node, "key", 0), now);
    for (int k = 0; k < NPROJ; k++) d += (now[k] - then[k]) * (now[k] - then[k]);
    d = sqrt(d / NPROJ);
    double drift = d == 0 ? 0 : d / fmax(sqrt(then[NPROJ]), 1e-30);
    if (now[NPROJ + 1] != then[NPROJ + 1] || isnan(drift)) drift = INFINITY;
    c->step->drift[inv_attr_int(c->node, "slot", 0)] = drift;
    return INV_OK;
}

static inv_status count_infer(inv_graph *g, inv_node *n)
{
    for (uint32_t i = 0; i < n->nin; i++) INV_TRY(inv__need_real(g, n, i));
    inv_shape s = inv_shape_scalar();
    inv__set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

static inv_status count_cpu(const inv_call *c)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < c->nin; i++) {
        int64_t n = c->in[i].n;
        const float *f = c->in[i].dtype == INV_F32 ? c->in[i].data : NULL;
        const double *d = f ? NULL : c->in[i].data;
#pragma omp parallel for schedule(static) reduction(+ : count) if (n > INV_OMP_MIN)
        for (int64_t k = 0; k < n; k++) count += f ? !isfinite(f[k]) : !isfinite(d[k]);
    }
    *(double *)c->out[0].data = (double)count;
    return INV_OK;
}

static const inv_op_def guard_sum = {
    .size = sizeof guard_sum, .domain = INV_IR, .name = "GuardSum", .since = 1, .in = "v", .out = "fp",
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = sum_infer, .cpu = sum_cpu, .flops = inv__flops_none,
    .cases = (const char *const[]){"fp = GuardSum<key = 5>(float[3,50] v)", NULL},
    .doc = "fingerprint of a tensor: four random-sign projections, sum of squares, number of non-finite elements"};

static const inv_op_def guard_check = {
    .size = sizeof guard_check, .domain = INV_IR, .name = "GuardCheck", .since = 1, .in = "v fp", .out = "",
    .flags = INV_OP_STEP | INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = check_infer, .cpu = check_cpu,
    .flops = inv__flops_none,
    .doc = "relative L2 error of a reconstructed tensor, estimated from its fingerprint, into step->drift[slot]"};

static const inv_op_def count_nonfinite = {
    .size = sizeof count_nonfinite,
    .domain = INV_IR,
    .name = "CountNonFinite",
    .since = 1,
    .in = "xs*",
    .out = "n",
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD,
    .infer = count_infer,
    .cpu = count_cpu,
    .flops = inv__flops_none,
    .cases =
        (const char *const[]){"n = CountNonFinite(float[3,5] x, float[4] y)", "n = CountNonFinite(float[0] x)", NULL},
    .doc = "how many elements are NaN or infinite"};

const inv_op_def *const inv_ops_guard[] = {&guard_sum, &guard_check, &count_nonfinite, NULL};
