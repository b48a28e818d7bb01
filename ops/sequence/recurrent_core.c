/* SPDX-License-Identifier: Apache-2.0
 * One direction of a recurrent layer: its states after every step. What the cells read of x is computed outside, one
 * product for all steps; here a step is the product with the recurrent weights and the cell. Where a gradient will ask
 * for them the gates of all steps are kept, in the place of what the cells have read of x; backward puts the gradients
 * of these reads in the place of the gates. The gradient of the weights is one product for all steps. */
#include "ops/base/float_math.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/gpu/parts_gpu.h"
#include "ops/linear/gemm.h"
#include "ops/sequence/recurrent.h"
#include "ops/sequence/recurrent_gpu.h"

#define LANES 64
#define LEAST_WORK 16384 /* gates that are worth threads */
#define V(f) FN(inv_##f)

#define INV_BOTH "ops/sequence/recurrent_kernels.inc"
#include "ops/base/both_reals.inc"

/* Inputs of Recurrent; those of its gradient are the same, with the gates for xw, then hs, cs and their gradients. */
enum { XW, WEIGHT, H0, C0, PEEP, RBIAS, LENS, HS, CS, GH, GC };
enum { STATES, CELLS, GATES };
enum { DXW, DWEIGHT, DH0, DC0, DPEEP, DRBIAS };

static const struct {
    const char *name;
    int nargs;
    double dflt[2];
} activations[] = {
    [INV_ACT_SIGMOID] = {"Sigmoid", 0, {0, 0}},
    [INV_ACT_TANH] = {"Tanh", 0, {0, 0}},
    [INV_ACT_RELU] = {"Relu", 0, {0, 0}},
    [INV_ACT_LEAKY_RELU] = {"LeakyRelu", 1, {0.01, 0}},
    [INV_ACT_THRESHOLDED_RELU] = {"ThresholdedRelu", 1, {1, 0}},
    [INV_ACT_ELU] = {"Elu", 1, {1, 0}},
    [INV_ACT_HARD_SIGMOID] = {"HardSigmoid", 2, {0.2, 0.5}},
    [INV_ACT_SOFTSIGN] = {"Softsign", 0, {0, 0}},
    [INV_ACT_SOFTPLUS] = {"Softplus", 0, {0, 0}},
    [INV_ACT_SCALED_TANH] = {"ScaledTanh", 2, {1, 1}},
    [INV_ACT_AFFINE] = {"Affine", 2, {1, 0}},
};

int inv_recurrent_activation(const char *name, int *nargs, double dflt[2])
{
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        if (strcmp(activations[i].name, name) != 0) continue;
        *nargs = activations[i].nargs;
        dflt[0] = activations[i].dflt[0], dflt[1] = activations[i].dflt[1];
        return (int)i;
    }
    return -1;
}

/* NULL, or what is wrong. */
static const char *recurrent_of(const inv_node *n, const inv_shape *xw, const inv_shape *h0, inv_recurrent *r)
{
    static const char *const cells[] = {"RNN", "GRU", "GRULinear", "LSTM"};
    static const char *const names[] = {"f", "g", "h"}, *const alpha[] = {"f_alpha", "g_alpha", "h_alpha"},
                             *const beta[] = {"f_beta", "g_beta", "h_beta"};
    const char *cell = inv_attr_string(n, "cell", "");
    int nargs;
    memset(r, 0, sizeof *r);
    r->cell = -1;
    for (int i = 0; i < 4; i++)
        if (strcmp(cells[i], cell) == 0) r->cell = i;
    if (r->cell < 0) return "attribute `cell` is none of RNN, GRU, GRULinear, LSTM";
    r->gates = r->cell == INV_CELL_RNN ? 1 : r->cell == INV_CELL_LSTM ? 4 : 3;
    for (int i = 0; i < 3; i++) {
        const char *dflt = i == 0 && r->cell != INV_CELL_RNN ? "Sigmoid" : "Tanh";
        r->act[i] = inv_recurrent_activation(inv_attr_string(n, names[i], dflt), &nargs, r->arg[i]);
        if (r->act[i] < 0) return "an activation that is not known";
        r->arg[i][0] = inv_attr_float(n, alpha[i], r->arg[i][0]);
        r->arg[i][1] = inv_attr_float(n, beta[i], r->arg[i][1]);
    }
    r->clip = inv_attr_float(n, "clip", 0);
    r->reverse = inv_attr_int(n, "reverse", 0) != 0;
    r->coupled = inv_attr_int(n, "coupled", 0) != 0;
    if (xw->rank != 3 || h0->rank != 2) return "the inputs of cells need three axes, the first state two";
    r->steps = xw->dim[0], r->batch = xw->dim[1], r->hidden = h0->dim[1];
    if (xw->dim[2] != r->gates * r->hidden || h0->dim[0] != r->batch)
        return "the first state does not fit what the cells read";
    return NULL;
}

static inv_status need_operands(inv_graph *g, const inv_node *n, inv_recurrent *r)
{
    INV_TRY(inv_need_real(g, n, XW));
    const char *why = recurrent_of(n, inv_in_shape(g, n, XW), inv_in_shape(g, n, H0), r);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    const int64_t h = r->hidden;
    const inv_shape state = inv_shape_of(2, (int64_t[]){r->batch, h});
    const inv_shape states = inv_shape_of(3, (int64_t[]){r->steps, r->batch, h});
    const inv_shape want[] = {*inv_in_shape(g, n, XW),
                              inv_shape_of(2, (int64_t[]){r->gates * h, h}),
                              state,
                              state,
                              inv_shape_of(1, (int64_t[]){3 * h}),
                              inv_shape_of(1, &h),
                              inv_shape_of(1, &r->batch),
                              states,
                              states,
                              states,
                              states};
    for (uint32_t i = 0; i < n->nin; i++) {
        if (!inv_has_in(n, i)) continue;
        const inv_dtype t = i == LENS ? INV_I64 : inv_in_dtype(g, n, XW);
        if (inv_in_dtype(g, n, i) != t)
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "input %u must be %s", i, inv_dtype_name(t));
        if (!inv_shape_equal(inv_in_shape(g, n, i), &want[i])) {
            char text[INV_SHAPE_TEXT];
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be %s", i, inv_shape_text(&want[i], text));
        }
    }
    if ((r->cell == INV_CELL_LSTM) != inv_has_in(n, C0))
        return inv_node_fail(g, n, INV_E_GRAPH, "an LSTM, and nothing else, has a first cell state");
    return INV_OK;
}

static inv_status recurrent_infer(inv_graph *g, inv_node *n)
{
    inv_recurrent r;
    INV_TRY(need_operands(g, n, &r));
    const inv_shape s = inv_shape_of(3, (int64_t[]){r.steps, r.batch, r.hidden});
    for (uint32_t i = 0; i < GATES; i++) inv_set_out(g, n, i, inv_in_dtype(g, n, XW), &s);
    inv_set_out(g, n, GATES, inv_in_dtype(g, n, XW), inv_in_shape(g, n, XW));
    return INV_OK;
}

static inv_status recurrent_grad_infer(inv_graph *g, inv_node *n)
{
    inv_recurrent r;
    INV_TRY(need_operands(g, n, &r));
    if (!inv_has_in(n, HS) || !inv_has_out(n, DXW))
        return inv_node_fail(g, n, INV_E_GRAPH, "the states, and the gradient of what cells read, must be there");
    for (uint32_t i = 0; i < n->nout && i < LENS; i++) {
        if (inv_has_in(n, i)) inv_set_out(g, n, i, inv_in_dtype(g, n, XW), inv_in_shape(g, n, i));
    }
    return INV_OK;
}

/* --- a call: operands, and what works on them on either machine --- */
typedef struct job {
    const inv_call *c;
    inv_recurrent r;
    size_t size;
    int64_t state, wide; /* elements of a state, and of what its gates read */
    char *scratch;       /* behind what products use */
} job;

static size_t product_bytes(const inv_recurrent *r, bool gpu, bool grad)
{
    if (!gpu) return 0;
    const int64_t wide = r->gates * r->hidden;
    size_t most = inv_gpu_gemm_workspace(r->batch, wide, inv_max64(r->hidden, wide), r->dtype);
    if (grad) {
        const size_t all = inv_gpu_gemm_workspace(r->batch * r->steps, wide, r->hidden, r->dtype);
        const size_t weights = inv_gpu_gemm_workspace(wide, r->hidden, r->batch * r->steps, r->dtype);
        most = most > all ? most : all;
        most = most > weights ? most : weights;
    }
    return (most + 255) / 256 * 256;
}

static inv_status begin_job(job *w, const inv_call *c, bool grad)
{
    if (recurrent_of(c->node, &c->in[XW].shape, &c->in[H0].shape, &w->r)) return INV_E_SHAPE;
    w->c = c;
    w->r.dtype = c->in[XW].dtype;
    w->size = inv_dtype_size(w->r.dtype);
    w->state = w->r.batch * w->r.hidden;
    w->wide = w->state * w->r.gates;
    w->scratch = (char *)c->ws + product_bytes(&w->r, c->gpu != NULL, grad);
    return INV_OK;
}

static const void *input(const job *w, uint32_t i) { return i < w->c->nin ? w->c->in[i].data : NULL; }
static void *output(const job *w, uint32_t i) { return i < w->c->nout ? w->c->out[i].data : NULL; }
/* Element i of an array; NULL for none. */
static void *at(const job *w, const void *p, int64_t i)
{
    return p ? (char *)(uintptr_t)p + i * (int64_t)w->size : NULL;
}

typedef struct matrix {
    const void *p;
    int64_t ld;
    bool t;
} matrix;

static inv_status product(const job *w, int64_t m, int64_t n, int64_t k, matrix a, matrix b, bool add, void *out,
                          int64_t ldc)
{
    const inv_call *c = w->c;
    if (m == 0 || n == 0 || (k == 0 && add)) return INV_OK;
    if (c->gpu) {
        const inv_gemm g = {.dtype = w->r.dtype,
                            .ta = a.t,
                            .tb = b.t,
                            .onto = add ? INV_ADDED_TO : INV_INSTEAD,
                            .m = m,
                            .n = n,
                            .k = k,
                            .lda = a.ld,
                            .ldb = b.ld,
                            .ldc = ldc,
                            .batch = 1,
                            .a = a.p,
                            .b = b.p,
                            .c = out};
        return c->gpu->gemm(c->gpu, &g, c->ws, (size_t)(w->scratch - (char *)c->ws));
    }
    INV_REAL(w->r.dtype, inv_gemm, a.t, b.t, m, n, k, a.p, a.ld, b.p, b.ld, add, out, ldc);
    return INV_OK;
}

static void cell(const job *w, const inv_cell *s)
{
    if (w->state == 0) return;
    if (w->c->gpu) INV_GPU(w->c->gpu, cell, &w->r, s);
    else INV_REAL(w->r.dtype, cell, &w->r, s);
}

static void column_sums(const job *w, int64_t rows, int64_t n, const void *a, int64_t lda, const void *b, bool add,
                        void *out)
{
    const int64_t ldb = w->r.hidden;
    if (w->c->gpu) INV_GPU(w->c->gpu, column_sums, w->r.dtype, rows, n, a, lda, b, ldb, add, out);
    else INV_REAL(w->r.dtype, column_sums, rows, n, a, lda, b, ldb, add, out);
}

/* Time of the step that is done s-th; state before it, from all states and the first one. */
static int64_t time_of(const job *w, int64_t s) { return w->r.reverse ? w->r.steps - 1 - s : s; }
static const void *before(const job *w, const void *states, const void *first, int64_t s)
{
    return s == 0 ? first : at(w, states, time_of(w, s - 1) * w->state);
}

/* The last gate of a GRU reads a product with the reset state, not with the state. */
static bool resets_state(const job *w) { return w->r.cell == INV_CELL_GRU; }
static int64_t direct_gates(const job *w) { return resets_state(w) ? 2 : w->r.gates; }

/* Row of the recurrent weights where gate k begins. */
static matrix weight(const job *w, int64_t k, bool t)
{
    return (matrix){at(w, input(w, WEIGHT), k * w->r.hidden * w->r.hidden), w->r.hidden, t};
}

static inv_cell step_of(const job *w, int part, int64_t s, const void *hs, const void *cs)
{
    const int64_t t = time_of(w, s);
    return (inv_cell){.part = part,
                      .t = t,
                      .lens = input(w, LENS),
                      .h = before(w, hs, input(w, H0), s),
                      .c = input(w, C0) ? before(w, cs, input(w, C0), s) : NULL,
                      .p = input(w, PEEP),
                      .rb = input(w, RBIAS)};
}

/* --- forward: scratch is what gates read of the state, for a GRU the reset state, and states that nobody wants --- */
static inv_status recurrent_run(const inv_call *c)
{
    job w;
    INV_TRY(begin_job(&w, c, false));
    const int64_t b = w.r.batch, h = w.r.hidden, ld = w.r.gates * h, direct = direct_gates(&w);
    char *z = w.scratch, *rh = at(&w, z, w.wide), *unwanted = at(&w, rh, w.state);
    char *hs = output(&w, STATES), *cs = output(&w, CELLS);
    if (!cs) cs = unwanted;
    if (!hs) hs = output(&w, CELLS) || w.r.cell != INV_CELL_LSTM ? unwanted : at(&w, unwanted, w.r.steps * w.state);
    for (int64_t s = 0; s < w.r.steps; s++) {
        inv_cell e = step_of(&w, INV_CELL_RESET, s, hs, cs);
        e.x = at(&w, input(&w, XW), e.t * w.wide);
        e.z = z;
        INV_TRY(product(&w, b, direct * h, h, (matrix){e.h, h, false}, weight(&w, 0, true), false, z, ld));
        if (resets_state(&w)) {
            e.hy = rh;
            cell(&w, &e);
            INV_TRY(product(&w, b, h, h, (matrix){rh, h, false}, weight(&w, 2, true), false, at(&w, z, 2 * h), ld));
        }
        e.part = INV_CELL_STEP;
        e.y = at(&w, output(&w, GATES), e.t * w.wide);
        e.hy = at(&w, hs, e.t * w.state);
        e.cy = w.r.cell == INV_CELL_LSTM ? at(&w, cs, e.t * w.state) : NULL;
        cell(&w, &e);
    }
    return INV_OK;
}

/* --- backward --- */

/* Runs of neighbouring steps and the states before them: the first step, and all others. */
typedef struct run {
    int64_t t, steps;
    const void *h, *c;
} run;

static void runs_of(const job *w, run out[2])
{
    const int64_t t = w->r.reverse ? w->r.steps - 1 : 0, rest = w->r.reverse ? 0 : 1, from = w->r.reverse ? 1 : 0;
    const void *cs = input(w, CS);
    out[0] = (run){t, w->r.steps > 0, input(w, H0), input(w, C0)};
    out[1] = (run){rest, w->r.steps > 0 ? w->r.steps - 1 : 0, at(w, input(w, HS), from * w->state),
                   at(w, cs, from * w->state)};
}

/* GRULinear: the products that its reset gates work on, for all steps; gates do not tell them. */
static inv_status products_again(const job *w, const run runs[2], char *rec)
{
    const int64_t h = w->r.hidden;
    for (int i = 0; i < 2; i++)
        INV_TRY(product(w, runs[i].steps * w->r.batch, h, h, (matrix){runs[i].h, h, false}, weight(w, 2, true), false,
                        at(w, rec, runs[i].t * w->state), h));
    return INV_OK;
}

/* Back through step s; dh and dc, gradients of the states behind it, become those of the states before it. */
static inv_status step_back(const job *w, int64_t s, char *rec, char *drh, char *dh, char *dc)
{
    const int64_t h = w->r.hidden, ld = w->r.gates * h, b = w->r.batch;
    const bool linear = w->r.cell == INV_CELL_GRU_LINEAR;
    inv_cell e = step_of(w, INV_CELL_GRAD, s, input(w, HS), input(w, CS));
    e.y = at(w, input(w, XW), e.t * w->wide);
    e.z = at(w, output(w, DXW), e.t * w->wide);
    e.cy = at(w, input(w, CS), e.t * w->state);
    e.gy = at(w, input(w, GH), e.t * w->state);
    e.gc = at(w, input(w, GC), e.t * w->state);
    e.dh = dh;
    e.dc = input(w, C0) ? dc : NULL;
    e.rec = w->r.gates == 3 ? at(w, rec, e.t * w->state) : NULL;
    cell(w, &e);
    if (resets_state(w)) {
        INV_TRY(product(w, b, h, h, (matrix){at(w, e.z, 2 * h), ld, false}, weight(w, 2, false), false, drh, h));
        e.part = INV_CELL_GRAD_RESET;
        e.drh = drh;
        cell(w, &e);
    }
    const int64_t direct = linear ? 2 : direct_gates(w);
    INV_TRY(product(w, b, h, direct * h, (matrix){e.z, ld, false}, weight(w, 0, false), true, dh, h));
    if (linear) INV_TRY(product(w, b, h, h, (matrix){e.rec, h, false}, weight(w, 2, false), true, dh, h));
    return INV_OK;
}

/* Gradients of weights, once those of all gates are there. */
static inv_status weight_grads(const job *w, const run runs[2], const char *rec)
{
    const int64_t h = w->r.hidden, ld = w->r.gates * h, rows = w->r.batch;
    const bool linear = w->r.cell == INV_CELL_GRU_LINEAR;
    const int64_t direct = linear ? 2 : direct_gates(w);
    char *z = output(w, DXW), *dw = output(w, DWEIGHT), *dp = output(w, DPEEP), *drb = output(w, DRBIAS);
    for (int i = 0; i < 2 && dw; i++) {
        const int64_t k = runs[i].steps * rows;
        const matrix states = {runs[i].h, h, false};
        INV_TRY(product(w, direct * h, h, k, (matrix){at(w, z, runs[i].t * w->wide), ld, true}, states, i == 1, dw, h));
        if (linear)
            INV_TRY(product(w, h, h, k, (matrix){at(w, rec, runs[i].t * w->state), h, true}, states, i == 1,
                            at(w, dw, 2 * h * h), h));
    }
    if (dw && resets_state(w))
        INV_TRY(product(w, h, h, w->r.steps * rows, (matrix){at(w, z, 2 * h), ld, true}, (matrix){rec, h, false}, false,
                        at(w, dw, 2 * h * h), h));
    for (int i = 0; i < 2 && dp; i++) { /* input, output (of the new state), forget */
        const char *part = at(w, z, runs[i].t * w->wide);
        const void *now = at(w, input(w, CS), runs[i].t * w->state);
        column_sums(w, runs[i].steps * rows, h, part, ld, runs[i].c, i == 1, dp);
        column_sums(w, runs[i].steps * rows, h, at(w, part, h), ld, now, i == 1, at(w, dp, h));
        column_sums(w, runs[i].steps * rows, h, at(w, part, 2 * h), ld, runs[i].c, i == 1, at(w, dp, 2 * h));
    }
    if (drb) column_sums(w, w->r.steps * rows, h, rec, h, NULL, false, drb);
    return INV_OK;
}

static inv_status recurrent_grad_run(const inv_call *c)
{
    job w;
    run runs[2];
    INV_TRY(begin_job(&w, c, true));
    const int64_t b = w.r.batch, h = w.r.hidden;
    const bool gru = w.r.cell == INV_CELL_GRU || w.r.cell == INV_CELL_GRU_LINEAR, lstm = w.r.cell == INV_CELL_LSTM;
    char *dh = output(&w, DH0), *dc = output(&w, DC0), *free_at = w.scratch;
    char *rec = free_at, *drh;
    if (gru) free_at = at(&w, free_at, w.r.steps * w.state);
    drh = free_at;
    if (gru) free_at = at(&w, free_at, w.state);
    if (!dh) dh = free_at, free_at = at(&w, free_at, w.state);
    if (!dc) dc = free_at;
    const matrix none = {c->in[H0].data, inv_max64(h, 1), false};
    INV_TRY(product(&w, b, h, 0, none, none, false, dh, h)); /* zeros */
    if (lstm) INV_TRY(product(&w, b, h, 0, none, none, false, dc, h));
    runs_of(&w, runs);
    if (w.r.cell == INV_CELL_GRU_LINEAR) INV_TRY(products_again(&w, runs, rec));
    for (int64_t s = w.r.steps; s-- > 0;) INV_TRY(step_back(&w, s, rec, drh, dh, dc));
    return weight_grads(&w, runs, rec);
}

static size_t recurrent_workspace(const inv_graph *g, const inv_node *n)
{
    inv_recurrent r;
    if (recurrent_of(n, inv_in_shape(g, n, XW), inv_in_shape(g, n, H0), &r)) return 0;
    r.dtype = inv_in_dtype(g, n, XW);
    const bool grad = n->op == &inv_op_recurrent_grad, gru = r.gates == 3;
    const int64_t state = r.batch * r.hidden;
    const int64_t unwanted = !inv_has_out(n, STATES) + (r.cell == INV_CELL_LSTM && !inv_has_out(n, CELLS));
    const int64_t states = grad ? (gru ? r.steps + 1 : 0) + 2 : r.gates + 1 + unwanted * r.steps;
    return product_bytes(&r, g->gpu, grad) + (size_t)(states * state) * inv_dtype_size(r.dtype);
}

static double recurrent_flops(const inv_graph *g, const inv_node *n)
{
    inv_recurrent r;
    if (recurrent_of(n, inv_in_shape(g, n, XW), inv_in_shape(g, n, H0), &r)) return 0;
    const double gates = (double)r.steps * (double)r.batch * (double)r.hidden * r.gates;
    return gates * (2.0 * (double)r.hidden + 10) * (n->op == &inv_op_recurrent_grad ? 2 : 1);
}

static inv_status recurrent_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node n = *inv_nod(g, b->node);
    inv_id in[GC + 1] = {0};
    for (uint32_t i = 0; i <= GC; i++) in[i] = i < n.nin && i <= LENS ? n.in[i] : INV_NONE;
    in[HS] = inv_O(b, 0);
    in[CS] = n.nout > 1 ? inv_O(b, 1) : INV_NONE;
    in[GH] = inv_GO(b, 0);
    in[GC] = n.nout > 1 ? inv_GO(b, 1) : INV_NONE;
    if (in[GH] == INV_NONE && in[GC] == INV_NONE) return INV_OK;
    in[XW] = inv_node_want(g, b->node, GATES);
    const inv_id grad = inv_emit(g, "RecurrentGrad", DRBIAS + 1, GC + 1, in, n.nattr, n.attr);
    for (uint32_t i = 0; i <= DRBIAS && grad != INV_NONE; i++) {
        inv_id *out = &inv_nod(g, grad)->out[i];
        if (i < n.nin && n.in[i] != INV_NONE && inv_wants(b, i)) {
            inv_grad_set(b, i, *out);
        } else if (i != DXW) {
            inv_drop_out(g, grad, i);
        }
    }
    return inv_grad_done(b);
}

/* clang-format off */
const inv_op_def inv_op_recurrent = {
    .size = sizeof inv_op_recurrent, .domain = INV_IR, .name = "Recurrent", .since = 1,
    .in = "xw R h0 c0? P? rb? lens?", .out = "hs cs? gates?", .inplace = 1 << XW, .inplace_out = GATES,
    .infer = recurrent_infer, .grad = recurrent_grad,
    .run = recurrent_run,
    .work = inv_work_matrix, .workspace = recurrent_workspace, .flops = recurrent_flops,
    .cases = (const char *const[]){
        "hs, cs = Recurrent<cell = \"LSTM\">(float[3,2,20] xw, float[20,5] r, float[2,5] h, float[2,5] c)",
        "hs, cs = Recurrent<cell = \"LSTM\", reverse = 1, clip = 1.1, coupled = 1, g = \"ScaledTanh\", g_alpha = 1.2, "
        "g_beta = 0.7, h = \"Softsign\">(float[4,3,8] xw, float[8,2] r, float[3,2] h, float[3,2] c, float[6] p, , "
        "int64[3] {4, 0, 2})",
        "hs = Recurrent<cell = \"GRULinear\">(float[4,3,6] xw, float[6,2] r, float[3,2] h, , , float[2] rb, "
        "int64[3] {3, 4, 1})",
        "hs = Recurrent<cell = \"GRULinear\", reverse = 1, f = \"HardSigmoid\", g = \"Softplus\">(float[3,2,6] xw, "
        "float[6,2] r, float[2,2] h)",
        "hs = Recurrent<cell = \"GRU\", g = \"Elu\", g_alpha = 0.7>(float[4,3,6] xw, float[6,2] r, float[3,2] h)",
        "hs = Recurrent<cell = \"GRU\", reverse = 1, f = \"Affine\", f_alpha = 0.3, f_beta = 0.4>(float[4,2,6] xw, "
        "float[6,2] r, float[2,2] h, , , , int64[2] {2, 4})",
        "hs = Recurrent<cell = \"RNN\", f = \"LeakyRelu\", f_alpha = 0.2>(float[3,2,70] xw, float[70,70] r, "
        "float[2,70] h)",
        "hs = Recurrent<cell = \"RNN\">(float[0,2,3] xw, float[3,3] r, float[2,3] h)",
        "hs = Recurrent<cell = \"RNN\", f = \"Relu\">(float[1,2,3] xw, float[3,3] r, float[2,3] h)", NULL},
    .doc = "states of a recurrent layer after every step, for all inputs at once: RNN, GRU, GRULinear or LSTM as in "
           "ONNX, one direction"};

const inv_op_def inv_op_recurrent_grad = {
    .size = sizeof inv_op_recurrent_grad, .domain = INV_IR, .name = "RecurrentGrad", .since = 1,
    .in = "gates R h0 c0? P? rb? lens? hs? cs? gh? gc?", .out = "dxw dR? dh0? dc0? dP? drb?", .inplace = 1 << XW,
    .infer = recurrent_grad_infer, .run = recurrent_grad_run, .work = inv_work_matrix,
    .workspace = recurrent_workspace, .flops = recurrent_flops,
    .cases = (const char *const[]){
        "dxw, dr, dh, dc, dp = RecurrentGrad<cell = \"LSTM\">(float[3,2,12] gates, float[12,3] r, float[2,3] h, "
        "float[2,3] c, float[9] p, , , float[3,2,3] hs, float[3,2,3] cs, float[3,2,3] gh, float[3,2,3] gc)",
        "dxw, dr, dh = RecurrentGrad<cell = \"GRULinear\", reverse = 1>(float[3,2,9] gates, float[9,3] r, "
        "float[2,3] h, , , float[3] rb, , float[3,2,3] hs, , float[3,2,3] gh)", NULL},
    .doc = "gradient of Recurrent, from the gates and states of all steps"};
/* clang-format on */
