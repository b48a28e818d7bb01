/* SPDX-License-Identifier: Apache-2.0
 * The guard: a fingerprint of a value taken in forward, and its comparison after reconstruction.
 *
 * GuardSum<key>(v) -> float64[6]: four projections of the whole tensor on random signs, the sum of squares, the number
 * of non-finite elements (which count as 0 elsewhere). For an error e of norm |e|, a projection of e has mean 0 and
 * variance |e|^2 whatever the distribution of e over channels, so one bad channel cannot hide. GuardCheck<key, slot>(v,
 * fp) writes sqrt(mean over projections of (p - p')^2) / sqrt(sum of squares), an estimate of the relative L2 error.
 * With `limit` and an output it also counts, on from `before`, that this is over the limit, for updates that are made
 * before the host looks at the verdicts.
 * Attribute `every`: of a sample of the elements (inv_guard_place). What is not real is taken as its bits, each an
 * element 0 or 1: then it is the square root of how many changed for each that was set.
 *
 * The bits of a fingerprint depend on values only: fixed shares, sixteen lanes each, added in order. */
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/gpu/philox.h"
#include "ops/train/guard_gpu.h"

#define PARTS 64   /* shares at most */
#define SHARE 2048 /* elements of a share at least; a multiple of 64 */
#define NPROJ INV_GUARD_NPROJ
#define NSUM INV_GUARD_NSUM
#define COUNT_SHARE 2048 /* elements per block of the count on a device */
#define COUNT_MOST 1024  /* blocks of it */

/* clang-format off */
/* Four signs per nibble. */
static const double sign[16][4] = {
    {1, 1, 1, 1},   {-1, 1, 1, 1},   {1, -1, 1, 1},   {-1, -1, 1, 1},   {1, 1, -1, 1},   {-1, 1, -1, 1},
    {1, -1, -1, 1}, {-1, -1, -1, 1}, {1, 1, 1, -1},   {-1, 1, 1, -1},   {1, -1, 1, -1},  {-1, -1, 1, -1},
    {1, 1, -1, -1}, {-1, 1, -1, -1}, {1, -1, -1, -1}, {-1, -1, -1, -1}};
/* clang-format on */

/* x, or -x where the lowest bit of `minus` is set; all in integers, which vectors of any length do at once. */
static inline float flip_f32(float x, uint32_t minus)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u ^= minus << 31;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline double flip_f64(double x, uint32_t minus)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u ^= (uint64_t)minus << 63;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define INV_BOTH "ops/train/guard_kernels.inc"
#include "ops/base/both_reals.inc"

/* Adds `nbytes` bytes, the first of which begin word `at`; 0 behind them. Sums of whole numbers, exact in any order:
 * bits are counted by byte of a word, in lanes, and of WORDS words these counts are added up. */
INV_SIMD static void project_bits(const uint8_t *x, int64_t nbytes, int64_t at, uint64_t key, int64_t sum[NSUM])
{
    enum { LANES = 8, WORDS = 16 * LANES };
    const uint64_t even = 0x00ff00ff00ff00ffu;
    for (; nbytes > 0; x += 8 * WORDS, nbytes -= 8 * WORDS, at += WORDS) {
        uint64_t word[WORDS] = {0}, ones[NPROJ + 1][LANES] = {{0}};
        int64_t of[NPROJ + 1] = {0};
        memcpy(word, x, (size_t)inv_min64(nbytes, sizeof word));
        for (int w = 0; w < WORDS && 8 * w < nbytes; w += LANES) {
#pragma omp simd
            for (int j = 0; j < LANES; j++) {
                const uint64_t b = (uint64_t)(at + w + j), bits = word[w + j];
                ones[0][j] += inv_guard_byte_ones(bits & inv_guard_signs(key, b, 0));
                ones[1][j] += inv_guard_byte_ones(bits & inv_guard_signs(key, b, 1));
                ones[2][j] += inv_guard_byte_ones(bits & inv_guard_signs(key, b, 2));
                ones[3][j] += inv_guard_byte_ones(bits & inv_guard_signs(key, b, 3));
                ones[NPROJ][j] += inv_guard_byte_ones(bits);
            }
        }
        for (int k = 0; k <= NPROJ; k++)
            for (int j = 0; j < LANES; j++) /* by pairs of bytes, which have room for all */
                of[k] += (int64_t)(((ones[k][j] & even) + (ones[k][j] >> 8 & even)) * 0x0001000100010001u >> 48);
        for (int k = 0; k < NPROJ; k++) sum[k] += of[NPROJ] - 2 * of[k];
        sum[NPROJ] += of[NPROJ];
    }
}

static void fingerprint_bits(const uint8_t *x, int64_t nbytes, uint64_t key, double out[NSUM])
{
    int64_t sum[NSUM] = {0};
#pragma omp parallel for schedule(static) reduction(+ : sum) if (nbytes > INV_OMP_MIN)
    for (int64_t i = 0; i < nbytes; i += SHARE) project_bits(x + i, inv_min64(nbytes - i, SHARE), i / 8, key, sum);
    for (int k = 0; k < NSUM; k++) out[k] = (double)sum[k];
}

/* Without `squares` the sum of them may be left out. */
static void fingerprint(const inv_tensor *v, int64_t every, uint64_t key, bool squares, double out[NSUM])
{
    if (inv_is_real(v->dtype)) INV_REAL(v->dtype, fingerprint, v->data, v->n, every, key, squares, out);
    else fingerprint_bits(v->data, v->n * (int64_t)inv_dtype_size(v->dtype), key, out);
}

static int64_t every_of(const inv_node *n) { return inv_attr_int(n, "every", 1); }

/* What is fingerprinted of v, counted as launches do. */
static int64_t taken(const inv_graph *g, const inv_node *n)
{
    size_t nbytes = 0;
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_shape *s = inv_in_shape(g, n, 0);
    if (inv_is_real(t)) return inv_guard_sampled(inv_shape_nelem(s), every_of(n));
    return inv_shape_nbytes(s, t, &nbytes) ? (int64_t)nbytes : 0;
}

static inv_status sum_infer(inv_graph *g, inv_node *n)
{
    inv_shape s = inv_shape_of(1, (int64_t[]){NSUM});
    inv_set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

static inv_status check_infer(inv_graph *g, inv_node *n)
{
    const inv_shape *s = inv_in_shape(g, n, 1), one = inv_shape_scalar();
    if (inv_in_dtype(g, n, 1) != INV_F64 || s->rank != 1 || s->dim[0] != NSUM)
        return inv_node_fail(g, n, INV_E_SHAPE, "input 1 must be a fingerprint, double[%d]", NSUM);
    if (inv_has_in(n, 2) && (inv_in_dtype(g, n, 2) != INV_F64 || inv_in_shape(g, n, 2)->rank))
        return inv_node_fail(g, n, INV_E_SHAPE, "input 2 must be a count, one number of type double");
    if (n->nout) inv_set_out(g, n, 0, INV_F64, &one);
    return INV_OK;
}

/* Of GuardCheck: how many guards have refused, with those before it. */
static inv_guard_count count_of(const inv_call *c)
{
    return (inv_guard_count){.limit = inv_attr_float(c->node, "limit", HUGE_VAL),
                             .before = c->nin > 2 ? c->in[2].data : NULL,
                             .over = c->nout ? c->out[0].data : NULL};
}

static void on_device(const inv_call *c, double *fp, const double *then, double *drift)
{
    const inv_guard_count count = then ? count_of(c) : (inv_guard_count){0};
    const inv_tensor *v = &c->in[0];
    const uint64_t key = (uint64_t)inv_attr_int(c->node, "key", 0);
    const int64_t every = every_of(c->node);
    if (inv_is_real(v->dtype))
        INV_GPU(c->gpu, guard, v->dtype, inv_guard_sampled(v->n, every), every, key, v->data, c->ws, fp, then, drift,
                &count);
    else
        INV_GPU(c->gpu, guard, INV_U8, v->n * (int64_t)inv_dtype_size(v->dtype), 1, key, v->data, c->ws, fp, then,
                drift, &count);
}

static inv_status guard_sum_run(const inv_call *c)
{
    if (c->gpu) on_device(c, c->out[0].data, NULL, NULL);
    else fingerprint(&c->in[0], every_of(c->node), (uint64_t)inv_attr_int(c->node, "key", 0), true, c->out[0].data);
    return INV_OK;
}

static inv_status check_run(const inv_call *c)
{
    double now[NSUM], d = 0;
    const double *then = c->in[1].data;
    const uint64_t key = (uint64_t)inv_attr_int(c->node, "key", 0);
    const int64_t slot = inv_attr_int(c->node, "slot", 0);
    if (c->gpu) {
        on_device(c, NULL, then, c->gpu->drift + slot);
        return INV_OK;
    }
    if (c->step == NULL || c->step->drift == NULL) return INV_E_INTERNAL;
    fingerprint(&c->in[0], every_of(c->node), key, false, now);
    for (int k = 0; k < NPROJ; k++) d += (now[k] - then[k]) * (now[k] - then[k]);
    d = sqrt(d / NPROJ);
    double drift = d == 0 ? 0 : d / fmax(sqrt(then[NPROJ]), 1e-30);
    if (now[NPROJ + 1] != then[NPROJ + 1] || isnan(drift)) drift = INFINITY;
    c->step->drift[slot] = drift;
    const inv_guard_count count = count_of(c);
    if (count.over) *count.over = (count.before ? *count.before : 0) + (drift > count.limit);
    return INV_OK;
}

/* --- GuardPick --- */

static inv_status pick_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 0));
    const int64_t all = taken(g, n);
    const inv_shape s = every_of(n) > 1 ? inv_shape_of(2, (int64_t[]){8, all / 8}) : inv_shape_of(1, &all);
    for (uint32_t k = 0; k < n->nout; k++) inv_set_out(g, n, k, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status pick_run(const inv_call *c)
{
    const inv_tensor *v = &c->in[0];
    const int64_t every = every_of(c->node), n = inv_guard_sampled(v->n, every);
    void *one = c->nout > 1 ? c->out[1].data : NULL;
    if (c->gpu) INV_GPU(c->gpu, guard_pick, v->dtype, n, every, v->data, c->out[0].data, one);
    else INV_REAL(v->dtype, pick, v->data, n, every, c->out[0].data, one);
    return INV_OK;
}

/* Per element: four signed sums, and one of squares. */
static double guard_flops(const inv_graph *g, const inv_node *n) { return 9.0 * (double)taken(g, n); }

static size_t guard_workspace(const inv_graph *g, const inv_node *n)
{
    return g->gpu ? (size_t)inv_guard_blocks(taken(g, n)) * NSUM * sizeof(double) : 0;
}

/* --- all gradients at once: entries that are not finite, and the norm --- */

static bool is_norm(const inv_node *n) { return strcmp(n->op->name, "GradientNorm") == 0; }

static inv_status count_infer(inv_graph *g, inv_node *n)
{
    for (uint32_t i = 0; i < n->nin; i++) INV_TRY(inv_need_real(g, n, i));
    inv_shape s = inv_shape_scalar();
    inv_set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

/* The host's lists are read at once, the launches pass them on by value. */
static inv_status count_gpu(const inv_call *c)
{
    inv_guard_list list = {.count = 0};
    bool first = true;
    const int64_t blocks = (int64_t)(c->ws_nbytes / sizeof(double));
    for (uint32_t i = 0; i < c->nin; i++) {
        list.x[list.count] = c->in[i].data;
        list.n[list.count] = c->in[i].n;
        list.wide[list.count++] = c->in[i].dtype == INV_F64;
        if (list.count < INV_GUARD_LIST && i + 1 < c->nin) continue;
        INV_GPU(c->gpu, sum_over, is_norm(c->node), &list, blocks, first, c->ws);
        first = false;
        list.count = 0;
    }
    INV_GPU(c->gpu, sum_over_end, is_norm(c->node), first ? 0 : blocks, c->ws, c->out[0].data);
    return INV_OK;
}

static size_t count_workspace(const inv_graph *g, const inv_node *n)
{
    int64_t all = 0;
    for (uint32_t i = 0; i < n->nin && g->gpu; i++) all += inv_shape_nelem(inv_in_shape(g, n, i));
    const int64_t blocks = all / COUNT_SHARE + 1;
    return g->gpu ? (size_t)inv_min64(blocks, COUNT_MOST) * sizeof(double) : 0;
}

/* Shares are fixed and added up in order: the sum does not depend on the number of threads. */
static inv_status count_run(const inv_call *c)
{
    const bool norm = is_norm(c->node);
    double sum = 0;
    if (c->gpu) return count_gpu(c);
    for (uint32_t i = 0; i < c->nin; i++) {
        const inv_tensor *x = &c->in[i];
        const int64_t share = x->n / PARTS + 1;
        double part[PARTS] = {0};
#pragma omp parallel for schedule(static) if (x->n > INV_OMP_MIN)
        for (int p = 0; p < PARTS; p++) {
            const int64_t from = inv_min64(x->n, p * share), to = inv_min64(x->n, from + share);
            if (norm) part[p] = INV_REAL(x->dtype, squares, x->data, from, to);
            else part[p] = INV_REAL(x->dtype, nonfinite, x->data, from, to);
        }
        for (int p = 0; p < PARTS; p++) sum += part[p];
    }
    *(double *)c->out[0].data = norm ? sqrt(sum) : sum;
    return INV_OK;
}

/* clang-format off */
static const inv_op_def guard_sum = {
    .size = sizeof guard_sum, .domain = INV_IR, .name = "GuardSum", .since = 1, .in = "v", .out = "fp",
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = sum_infer, .run = guard_sum_run,
    .work = inv_work_sum,
    .workspace = guard_workspace, .flops = guard_flops,
    .cases = (const char *const[]){"fp = GuardSum<key = 5>(float[3,50] v)", "fp = GuardSum<key = 6>(float[5000] v)",
                                   "v = Log(float[3,1300] x)\nfp = GuardSum<key = 5>(v)",
                                   "fp = GuardSum<key = 7, every = 3>(float[5000] v)",
                                   "v = Log(float[4000] x)\nfp = GuardSum<key = 7, every = 3>(v)",
                                   "fp = GuardSum<key = 8>(uint8[41,101] v)", NULL},
    .doc = "fingerprint of a tensor: four random-sign projections, sum of squares, number of non-finite elements"};

static const inv_op_def guard_pick = {
    .size = sizeof guard_pick, .domain = INV_IR, .name = "GuardPick", .since = 1, .in = "v", .out = "sample one?",
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = pick_infer, .run = pick_run,
    .flops = inv_flops_none, .work = inv_work_stream,
    .cases = (const char *const[]){"s = GuardPick<every = 3>(float[5000] v)", "s, one = GuardPick(float[3,5] v)", NULL},
    .doc = "a sample of a tensor's elements, and as many ones, to compare values computed from them; in eight rows, "
           "fastest for CompareBits"};

static const inv_op_def guard_check = {
    .size = sizeof guard_check, .domain = INV_IR, .name = "GuardCheck", .since = 1, .in = "v fp before?",
    .out = "over?",
    .flags = INV_OP_STEP | INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = check_infer, .run = check_run,
    .work = inv_work_sum,
    .workspace = guard_workspace,
    .flops = guard_flops,
    .doc = "relative L2 error of a reconstructed tensor, estimated from its fingerprint, into step->drift[slot]; "
           "over: `before`, and 1 where it exceeds `limit`"};

static const inv_op_def count_nonfinite = {
    .size = sizeof count_nonfinite,
    .domain = INV_IR,
    .name = "CountNonFinite",
    .since = 1,
    .in = "xs*",
    .out = "n",
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD,
    .infer = count_infer,
    .run = count_run, .work = inv_work_sum,
    .workspace = count_workspace,
    .flops = inv_flops_none,
    .cases =
        (const char *const[]){"n = CountNonFinite(float[3,5] x, float[4] y)", "n = CountNonFinite(float[0] x)",
                              "v = Log(float[3,1300] x)\nn = CountNonFinite(v, float[4] y, v)", NULL},
    .doc = "how many elements are NaN or infinite"};

static const inv_op_def gradient_norm = {
    .size = sizeof gradient_norm,
    .domain = INV_IR,
    .name = "GradientNorm",
    .since = 1,
    .in = "xs*",
    .out = "norm",
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD,
    .infer = count_infer,
    .run = count_run, .work = inv_work_sum,
    .workspace = count_workspace,
    .flops = inv_flops_in,
    .cases = (const char *const[]){"n = GradientNorm(float[3,5] x, float[4] y)", "n = GradientNorm(float[0] x)",
                                   "n = GradientNorm(float[3,1300] v, float[4] y, v)", NULL},
    .doc = "the root of the sum of all squares"};
/* clang-format on */

const inv_op_def *const inv_ops_guard[] = {&guard_sum,       &guard_pick,    &guard_check,
                                           &count_nonfinite, &gradient_norm, NULL};
