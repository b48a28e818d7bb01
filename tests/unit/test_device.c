/* SPDX-License-Identifier: Apache-2.0
 * Device kernels against the host's, on the cases of every operator row and on the gradients of those cases: the same
 * operands, float32 and float64. Fails where they differ by more than LIMIT units in the last place of the largest
 * entry, where a result is not written, where one output computed alone, as clones are, has other bits, or where an
 * operator that a plan for a device can hold has no device kernel; all that is wrong is listed. Without arguments the
 * kernels are those compiled for the host, on buffers of the exact size. `test_device cuda` runs them on the GPU, and
 * what a faulty kernel does to it; exit status 77 in a build without CUDA. What a case does to the GPU ends the process
 * that ran it; the next cases run in another. Rows whose images may have their channels last are run with such, too. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/executor.h"
#include "interp.h"
#include "ops/gpu/gpu.h"
#include "passes/schedule/channels_last.h"

#define LIMIT 256 /* sums of hundreds of terms in another order; the most that was seen is 104 */

static inv_gpu gpu;
static inv_gpu_step gpu_step;
static double gpu_drift[8];
static uint64_t gpu_fault;
static unsigned gpu_turn;
static double host_drift[8];

/* What has been found, by all processes. */
typedef struct tally {
    int at; /* the case at hand; none before it is left to do */
    int compared, missing, wrong;
    double largest[2]; /* distance, float32 and float64 */
    char missing_names[4096];
} tally;
static tally *seen;
static bool child; /* this process runs cases for another */

/* The GPU; NULL: the emulation. Operands of one call are placed in its memory one after the other. */
static const inv_device *device;
static void *self;
static unsigned char *memory;
static size_t used;
enum { MEMORY = 8 << 20, CONTROL = 512 }; /* the latter as of a session (core/program/program.h) */
_Static_assert(INV_CONTROL_STEP + sizeof gpu_drift <= CONTROL, "operands lie behind the control bytes");

/* Runs on the host for folded shapes only, or on any device by copying (Feed), or is in plans for the host alone. */
static bool never_on_device(const inv_op_def *op)
{
    return op->flags & (INV_OP_VIEW | INV_OP_SOURCE | INV_OP_HOST_ONLY);
}

/* What ranks exchange goes over the host's memory; a session on a device is refused there. */
static void note_missing(const inv_op_def *op)
{
    if (op->flags & INV_OP_EXCHANGES) return;
    if (strstr(seen->missing_names, op->name)) return;
    seen->missing++;
    strncat(seen->missing_names, op->name, sizeof seen->missing_names - strlen(seen->missing_names) - 2);
    strncat(seen->missing_names, " ", 2);
}

static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("WRONG ");
    (void)vprintf(format, args);
    printf("\n");
    (void)fflush(stdout);
    va_end(args);
    seen->wrong++;
}

/* Largest difference in units in the last place of the largest entry. */
static double distance(const void *want, const void *got, inv_dtype t, int64_t n)
{
    double most = 0, worst = 0, unit = t == INV_F64 ? 0x1p-52 : 0x1p-23;
    if (!inv_dtype_is_float(t)) return memcmp(want, got, (size_t)n * inv_dtype_size(t)) == 0 ? 0 : INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double w = inv_elem_double(want, t, (size_t)i), g = inv_elem_double(got, t, (size_t)i);
        if (isfinite(w) && fabs(w) > most) most = fabs(w);
        if (isfinite(w) != isfinite(g) || (!isfinite(w) && !isnan(w) && w != g)) return INFINITY;
        if (isfinite(w) && fabs(w - g) > worst) worst = fabs(w - g);
    }
    return worst == 0 ? 0 : worst / (most * unit);
}

static void need(inv_status s, inv_context *ctx)
{
    if (s == INV_OK) return;
    if (!child) fail_msg("%s", inv_context_message(ctx));
    wrong("case %d: %s", seen->at, inv_context_message(ctx));
    _exit(1);
}

static size_t nbytes_of(const inv_tensor *t) { return (size_t)t->n * inv_dtype_size(t->dtype); }

static void *copy_of(const inv_tensor *t)
{
    void *copy = malloc(nbytes_of(t) + 1);
    assert_non_null(copy);
    return memcpy(copy, t->data, nbytes_of(t));
}

/* Scratch memory as the plan for that device would give it. */
static size_t workspace(interp *it, const inv_node *n, bool on_device)
{
    it->g->gpu = on_device;
    return n->op->workspace ? n->op->workspace(it->g, n) : 0;
}

static inv_status call_here(interp *it, inv_call *c, bool emulated)
{
    const inv_op_def *op = c->node->op;
    c->ws_nbytes = workspace(it, c->node, emulated);
    c->ws = c->ws_nbytes ? aligned_alloc(64, (c->ws_nbytes + 63) / 64 * 64) : NULL;
    if (c->ws) memset(c->ws, 0xff, c->ws_nbytes);
    c->gpu = emulated ? &gpu : NULL;
    c->step = emulated ? NULL : &it->step;
    inv_status s = op->run(c);
    free(c->ws);
    if (inv_emu_failed()) wrong("%s: the threads of a kernel do not meet at its barriers", op->name);
    return s;
}

static void *place(const void *data, size_t nbytes, inv_context *ctx)
{
    unsigned char *at = memory + used;
    used += (nbytes + 63) / 64 * 64;
    if (used > MEMORY) need(inv_fail(ctx, INV_E_NOMEM, "operands of %zu bytes", used), ctx);
    if (data && nbytes) need(device->upload(self, at, data, nbytes), ctx);
    return at;
}

/* The same on the GPU: operands and what is to be overwritten go there and come back. */
static void call_there(interp *it, const inv_call *host)
{
    inv_tensor in[64], out[64];
    inv_context *ctx = it->g->ctx;
    inv_call c = *host;
    used = CONTROL;
    c.in = in;
    c.out = out;
    for (uint32_t i = 0; i < c.nin + c.nout; i++) {
        inv_tensor *t = i < c.nin ? &in[i] : &out[i - c.nin];
        *t = i < c.nin ? host->in[i] : host->out[i - c.nin];
        if (t->data) t->data = place(t->data, nbytes_of(t), ctx);
    }
    c.ws_nbytes = workspace(it, c.node, true);
    c.ws = c.ws_nbytes ? place(NULL, c.ws_nbytes, ctx) : NULL;
    unsigned char control[CONTROL] = {0};
    memcpy(control, &gpu_step, sizeof gpu_step);
    need(device->upload(self, memory, control, sizeof control), ctx);
    need(device->run(self, INV_QUEUE_COMPUTE, c.node, &c), ctx);
    need(device->finish(self), ctx);
    for (uint32_t i = 0; i < c.nin + c.nout; i++) {
        const inv_tensor *t = i < c.nin ? &in[i] : &out[i - c.nin];
        void *back = i < c.nin ? host->in[i].data : host->out[i - c.nin].data;
        if (back && nbytes_of(t)) need(device->download(self, back, t->data, nbytes_of(t)), ctx);
    }
    need(device->download(self, gpu_drift, memory + INV_CONTROL_STEP, sizeof gpu_drift), ctx);
}

/* A clone computes one output only, with the same bits. Here `c` has computed all of them. Of gradients there are no
 * clones. */
static void each_alone(interp *it, const inv_call *c, bool emulated, const char *text)
{
    const inv_op_def *op = c->node->op;
    if (op->flags & INV_OP_NO_CLONE || (!op->grad && !(op->flags & INV_OP_NO_GRAD))) return;
    for (uint32_t k = 0; k < c->nout && c->nout > 1; k++) {
        inv_node node = *c->node;
        inv_id wanted[64];
        inv_tensor out[64] = {{0}};
        inv_call alone = *c;
        if (!c->out[k].data) continue;
        for (uint32_t i = 0; i < c->nout; i++) wanted[i] = i == k ? node.out[i] : INV_NONE;
        node.out = wanted;
        out[k] = c->out[k];
        out[k].data = copy_of(&c->out[k]);
        memset(out[k].data, 0xff, nbytes_of(&out[k]));
        alone.node = &node;
        alone.out = out;
        assert_int_equal(call_here(it, &alone, emulated), INV_OK);
        if (memcmp(out[k].data, c->out[k].data, nbytes_of(&out[k])) != 0)
            wrong("%s: output %u of %s alone, %s: not the bits that it has with the others", text, k, op->name,
                  emulated ? "emulated" : "on the host");
        free(out[k].data);
    }
}

/* An image of that shape with its channels last, into a plain one or from there. */
static void turn(const inv_shape *plain, size_t size, void *last, void *second, bool back)
{
    const int64_t n = inv_shape_nelem(plain), c = plain->dim[1];
    for (int64_t i = 0; i < n; i++) {
        const int64_t area = n / (plain->dim[0] * c), to = (i / (area * c) * area + i % area) * c + i / area % c;
        if (back) memcpy((char *)second + (size_t)i * size, (char *)last + (size_t)to * size, size);
        else memcpy((char *)last + (size_t)to * size, (char *)second + (size_t)i * size, size);
    }
}

/* Whether plans for a device may turn the node, all of whose images have one rank. */
static bool may_turn(interp *it, const inv_node *n, int *rank, uint32_t *in, uint32_t *out)
{
    double gain;
    it->g->gpu = true;
    it->g->precision = INV_PRECISION_TF32;
    bool may = n->op->images.in && !(n->op->flags & INV_OP_RANDOM) && inv_layout_slots(it->g, n, rank, in, out) &&
               (!n->op->channels_last || n->op->channels_last(it->g, n, &gain));
    for (uint32_t i = 0; i < n->nin + n->nout && may; i++) {
        const inv_id v = i < n->nin ? n->in[i] : n->out[i - n->nin];
        may = v == INV_NONE || inv_layout_rank(it->g, v) == *rank ||
              !(i < n->nin ? inv_layout_bit(*in, i) : inv_layout_bit(*out, i - n->nin));
    }
    return may;
}

/* The node of `c`, which has been computed, with channels last. */
static void compare_turned(interp *it, const inv_call *c, const char *text)
{
    inv_tensor operand[64];
    inv_shape plain[64];
    inv_node node = *c->node;
    inv_call turned = *c;
    uint32_t in, out;
    int rank;
    if (c->nin + c->nout > 64 || !may_turn(it, &node, &rank, &in, &out)) return;
    assert_true(inv_layout_turn_attrs(it->g, &node, rank));
    for (uint32_t i = 0; i < c->nin + c->nout; i++) {
        const bool given = i < c->nin, image = given ? inv_layout_bit(in, i) : inv_layout_bit(out, i - c->nin);
        inv_tensor *t = &operand[i];
        *t = given ? c->in[i] : c->out[i - c->nin];
        if (!t->data) continue;
        void *const from = t->data;
        plain[i] = t->shape;
        t->data = copy_of(t);
        if (image) turn(&plain[i], inv_dtype_size(t->dtype), t->data, from, false);
        if (image) t->shape = inv_layout_turn(&plain[i]);
        inv_val(it->g, given ? node.in[i] : node.out[i - c->nin])->shape = t->shape;
        if (!given) memset(t->data, 0xff, nbytes_of(t));
    }
    turned.node = &node;
    turned.in = operand;
    turned.out = operand + c->nin;
    if (device) call_there(it, &turned);
    else assert_int_equal(call_here(it, &turned, true), INV_OK);
    seen->compared++;
    for (uint32_t i = 0; i < c->nin + c->nout; i++) {
        const bool given = i < c->nin;
        const inv_tensor *t = &operand[i], *want = given ? NULL : &c->out[i - c->nin];
        if (!t->data) continue;
        inv_val(it->g, given ? node.in[i] : node.out[i - c->nin])->shape = plain[i];
        void *got = copy_of(t);
        if (want && inv_layout_bit(out, i - c->nin)) turn(&plain[i], inv_dtype_size(t->dtype), t->data, got, true);
        const double d = want ? distance(want->data, got, t->dtype, t->n) : 0;
        if (!(d <= LIMIT)) wrong("%s: %s, channels last: %g ulp from the host's", text, node.op->name, d);
        free(got);
        free(t->data);
    }
}

static void compare_node(interp *it, const inv_node *n, bool forward, const char *text)
{
    inv_tensor in[64], out[64];
    void *want[64] = {NULL};
    const inv_op_def *op = n->op;
    for (uint32_t i = 0; i < n->nin; i++) in[i] = interp_tensor(it, n->in[i]);
    for (uint32_t i = 0; i < n->nout; i++) out[i] = interp_tensor(it, n->out[i]);
    inv_call c = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout};
    if (op->flags & INV_OP_VIEW) memcpy(out[0].data, in[0].data, nbytes_of(&in[0]));
    if (never_on_device(op)) return;
    /* What the node writes: outputs, or operands that change in place, which must start alike both times. */
    bool writes = op->writes != 0;
    inv_tensor *result = writes ? in : out;
    uint32_t nresult = writes ? n->nin : n->nout;
    void *before[64] = {NULL};
    for (uint32_t i = 0; writes && i < nresult; i++) before[i] = copy_of(&result[i]);
    assert_int_equal(call_here(it, &c, false), INV_OK);
    if (forward && !writes) each_alone(it, &c, false, text);
    for (uint32_t i = 0; i < nresult; i++) {
        if (!result[i].data) continue;
        want[i] = copy_of(&result[i]);
        if (writes) memcpy(result[i].data, before[i], nbytes_of(&result[i]));
        else memset(result[i].data, 0xff, nbytes_of(&result[i]));
        free(before[i]);
    }
    const bool runs =
        inv_op_on_device(op) && !(op->flags & INV_OP_DEVICE_REAL && n->nin && !inv_dtype_is_float(in[0].dtype));
    if (runs) {
        if (device) call_there(it, &c);
        else assert_int_equal(call_here(it, &c, true), INV_OK);
        if (!device && forward && !writes) each_alone(it, &c, true, text);
        seen->compared++;
    } else if (!inv_op_on_device(op) && !(op->flags & INV_OP_UNPACKS)) { /* those are not made for a device */
        note_missing(op);
    }
    for (uint32_t i = 0; i < nresult; i++) {
        if (!want[i]) continue;
        double d = runs ? distance(want[i], result[i].data, result[i].dtype, result[i].n) : 0;
        double *largest = &seen->largest[result[i].dtype == INV_F64];
        if (d > *largest) *largest = d;
        if (!(d <= (op->flags & INV_OP_RANDOM ? 0 : LIMIT))) /* random numbers are the same in every bit */
            wrong("%s: %s (%s): %g ulp from the host's", text, op->name, inv_dtype_name(result[i].dtype), d);
        memcpy(result[i].data, want[i], nbytes_of(&result[i]));
        free(want[i]);
    }
    if (runs && !writes) compare_turned(it, &c, text);
    for (int k = 0; k < 8 && runs && op->flags & INV_OP_STEP; k++) {
        if (!(fabs(gpu_drift[k] - host_drift[k]) <= 1e-9 * (1 + fabs(host_drift[k]))))
            wrong("%s: %s: verdict %d is %g, the host's %g", text, op->name, k, gpu_drift[k], host_drift[k]);
        gpu_drift[k] = host_drift[k] = 0; /* a node writes its own */
    }
}

/* Labels are 0 or 1; of names that begin with "var" or "scale", numbers are positive. */
static void fill(interp *it, inv_id v, uint64_t *state)
{
    const inv_value *x = inv_val(it->g, v);
    bool positive =
        !inv_dtype_is_float(x->dtype) || strncmp(x->name, "var", 3) == 0 || strncmp(x->name, "scale", 5) == 0;
    interp_fill(it, v, state);
    for (int64_t i = 0; positive && i < inv_shape_nelem(&x->shape); i++)
        interp_put(it, v, i, fabs(interp_get(it, v, i)));
}

/* The case with its inputs of type `from` as `to`; false: it does not take them. */
static bool parse_as(inv_context *ctx, const char *text, int opset, inv_dtype from, inv_dtype to, inv_graph **g)
{
    need(inv_case_parse(ctx, text, opset, to == INV_F64 ? to : INV_F32, g), ctx);
    for (size_t i = 0; i < (*g)->inputs.n; i++) {
        inv_value *x = inv_val(*g, (*g)->inputs.at[i]);
        if (x->dtype == from) x->dtype = to;
    }
    if (inv_pass_lower(*g) == INV_OK) return true;
    inv_graph_destroy(*g);
    return false;
}

static void compare_case(inv_context *ctx, const char *text, int opset, inv_dtype from, inv_dtype to)
{
    interp it;
    inv_graph *g;
    inv_id grad[64], seed[64];
    uint64_t random = 7;
    if (!parse_as(ctx, text, opset, from, to, &g)) {
        if (from == INV_F32 && inv_dtype_is_float(to)) fail_msg("%s: %s", text, inv_context_message(ctx));
        return;
    }
    const size_t forward = g->order.n;
    for (size_t i = 0; i < g->outputs.n; i++) seed[i] = INV_NONE;
    (void)interp_grad(g, grad, seed); /* as far as there are gradients */
    interp_init(&it, g);
    it.step = (inv_step){.seed = gpu_step.seed,
                         .step = gpu_step.step,
                         .micro = gpu_step.micro,
                         .first_sample = gpu_step.first_sample,
                         .batch = gpu_step.batch,
                         .lr = gpu_step.lr,
                         .drift = host_drift};
    for (size_t i = 0; i < g->inputs.n; i++) fill(&it, g->inputs.at[i], &random);
    for (size_t i = 0; i < g->outputs.n; i++)
        if (seed[i] != INV_NONE) fill(&it, seed[i], &random);
    for (size_t i = 0; i < g->order.n; i++) compare_node(&it, inv_nod(g, g->order.at[i]), i < forward, text);
    interp_fini(&it);
}

/* In every element type that lowering takes: what `invonnx ops` prints, kernels must do. */
static void compare_types(inv_context *ctx, const char *text, int opset)
{
    static const inv_dtype from[] = {INV_F32, INV_I64, INV_I32, INV_I8, INV_U8, INV_BOOL};
    static const inv_dtype to[] = {INV_F32, INV_F64, INV_BOOL, INV_I8,  INV_I16, INV_I32,
                                   INV_I64, INV_U8,  INV_U16,  INV_U32, INV_U64};
    inv_graph *g;
    bool has[32] = {false};
    need(inv_case_parse(ctx, text, opset, INV_F32, &g), ctx);
    for (size_t i = 0; i < g->inputs.n; i++) has[inv_val(g, g->inputs.at[i])->dtype] = true;
    inv_graph_destroy(g);
    for (size_t t = 0; t < sizeof to / sizeof *to; t++) {
        for (size_t f = 0; f < sizeof from / sizeof *from; f++)
            if (has[from[f]] || (from[f] == INV_F32 && inv_dtype_is_float(to[t])))
                compare_case(ctx, text, opset, from[f], to[t]);
    }
}

/* Integers; then operators without cases, because they act on what a graph does not hold. */
#define FUSED1(shape, steps) "y = Fused<shape = " shape ", steps = \"" steps "\">"
#define FUSED(shape, steps) "y, z = Fused<shape = " shape ", steps = \"" steps "\">"
#define THREE "k = Constant<value_ints = [2, -3, 1]>()\n"
/* clang-format off */
static const char *const more[] = {
    "y = Neg(int64[5] x)",
    "y = Abs(int32[5] x)",
    "y = Sign(int8[5] x)",
    "y = Relu(int64[2,2] x)",
    THREE "y = Div(int64[2,3] a, k)",
    THREE "y = ModFloor(int64[2,3] a, k)",
    THREE "y = ModTruncate(int64[2,3] a, k)",
    THREE "y = Pow(k, int64[2,3] a)",
    /* four elements at a time: whole rows of them, one for all, what is left at the end */
    "y = Add(float[5,8] a, float[8] b)",
    "y = Mul(float[2,3,8] a, float[2,1,1] b)",
    "y = Relu(float[11] x)",
    /* joint nodes: more operands than are loaded at once; rows of fours and others, what is left at the end of the last
     * group, one number for a row and for all */
    FUSED("[4,3,8]", "t = Add(x0, x1)  u = Mul(t, x2)  y0 = Sub(u, x3)  v = Tanh(y0)  y1 = Mul(v, x4)")
    "(float[4,3,8] a, float[8] b, float[3,1] c, float[4,1,1] d, float e)",
    FUSED("[5,7]", "t = Exp(x0)  y0 = Mul(t, x1)  y1 = Add(y0, x2)") "(float[5,7] a, float[7] b, float[5,1] c)",
    FUSED1("[1031]", "t = Mul(x0, x1)  y0 = PReluGradX(t, x0, x1)") "(float[1031] a, float[1031] b)",
    /* sums of columns by more than one block, and of more rows than it has warps */
    ("y, h = GRU<hidden_size = 40, linear_before_reset = 1>(float[2,20,3] x, float[1,120,3] w, float[1,120,40] r, "
     "float[1,240] b)"),
    /* more than one tile of rows, columns and numbers of a head (ops/gpu/tile.cuh), whole ones and the rest of one */
    ("o, stats = AttentionCore<scale = 0.1, band = [-100000, 0]>(float[4,72,64] q, float[2,136,64] k, "
     "float[2,136,64] v)"),
    ("o, stats = AttentionCore<scale = 0.1, band = [-70, 66]>(float[1,140,200] q, float[1,137,200] k, "
     "float[1,137,259] v)"),
    ("o, stats = AttentionCore<scale = 0.3, transK = 1, softcap = 1.5>(float[2,66,70] q, float[1,70,132] k, "
     "float[1,132,132] v, float[2,66,132] mask)"),
    "fp = GuardSum<key = 5>(float[3,50] v)\nGuardCheck<key = 5, slot = 1>(float[3,50] w, fp)",
    "y = Neg(float[3,7] g)\nSgdUpdate<weight_decay = 0.1>(float[3,7] w, y)",
    "y = Neg(float[3,7] g)\nMomentumUpdate<momentum = 0.8>(float[3,7] w, y, float[3,7] v)",
    "y = Neg(float[3,7] g)\nAdamUpdate<weight_decay = 0.1>(float[3,7] w, y, float[3,7] m, float[3,7] vary)",
    ("y = Neg(float[3,7] g)\nAdamUpdate<weight_decay = 0.1, decoupled = 1>(float[3,7] w, y, float[3,7] m, "
     "float[3,7] vary)"),
    "y = Neg(float[3,7] g)\nAssign(float[3,7] w, y)"};
/* clang-format on */

/* Whether this case is left to do; from now on it is the one at hand. */
static bool next_case(int *number)
{
    if ((*number)++ < seen->at) return false;
    seen->at = *number - 1;
    return true;
}

/* All that are left to do. */
static void run_cases(void)
{
    inv_context *ctx;
    const char *only = getenv("INVONNX_ONLY"); /* an operator's name, while writing its kernel */
    int number = 0;
    need(inv_context_create(NULL, &ctx), NULL);
    if (device) {
        need(device->open(ctx, 0, &self), ctx);
        need(device->alloc(self, MEMORY, (void **)&memory), ctx);
        device->bind(self, memory, INV_PRECISION_FULL);
    }
    for (size_t r = 0; r < inv_registry_nops(ctx->registry); r++) {
        const inv_op_def *op = inv_registry_op_at(ctx->registry, r);
        if ((only && strcmp(only, op->name) != 0) || strcmp(op->name, "SequenceOf") == 0) continue;
        for (const char *const *text = op->cases; text && *text; text++)
            if (next_case(&number)) compare_types(ctx, *text, op->until);
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (!next_case(&number)) continue;
        compare_case(ctx, more[i], 0, INV_F32, INV_F32);
        compare_case(ctx, more[i], 0, INV_F32, INV_F64);
    }
    if (device) {
        device->free(self, memory);
        device->close(self);
    }
    inv_context_destroy(ctx);
}

/* Processes that run cases until all are done. This one never opens the GPU: a process that has cannot be forked. */
static void run_cases_apart(void)
{
    for (int status = 1; status != 0;) {
        (void)fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            child = true;
            run_cases();
            exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status && (!WIFEXITED(status) || WEXITSTATUS(status) != 1))
            wrong("case %d ended the process (wait status %#x)", seen->at, (unsigned)status);
        if (status) seen->at++;
        assert_true(seen->wrong < 1000);
    }
}

static void every_row(void **state)
{
    (void)state;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);
    gpu.fault = &gpu_fault;
    gpu.turn = &gpu_turn;
    gpu_step = (inv_gpu_step){.seed = 3, .step = 4, .micro = 1, .first_sample = 5, .batch = 2, .lr = 0.1};
    gpu.step = &gpu_step;
    gpu.drift = gpu_drift;
    inv_gpu_emulate(&gpu);
    if (device) run_cases_apart();
    else run_cases();
    assert_true(gpu_fault == 0);
    printf("%d calls compared, %d wrong, largest distance %.0f ulp in float32, %.0f in float64; no device kernel: %s\n",
           seen->compared, seen->wrong, seen->largest[0], seen->largest[1],
           seen->missing ? seen->missing_names : "none");
    assert_true(seen->compared > 0);
    assert_int_equal(seen->wrong, 0);
    if (!getenv("INVONNX_ONLY")) assert_int_equal(seen->missing, 0);
}

/* A kernel that writes where there is no memory: an error, at the latest from `finish`, and nothing hangs. Last, since
 * the GPU can not be used by this process any more. */
static void faulty_kernel(void **state)
{
    (void)state;
    inv_context *ctx;
    interp it;
    inv_graph *g;
    assert_int_equal(inv_context_create(NULL, &ctx), INV_OK);
    need(interp_parse(ctx, "y = Relu(float[1000] x)", INV_F32, &g), ctx);
    need(inv_pass_lower(g), ctx);
    interp_init(&it, g);
    const inv_node *n = inv_nod(g, g->order.at[0]);
    need(device->open(ctx, 0, &self), ctx);
    inv_tensor in = interp_tensor(&it, n->in[0]), out = interp_tensor(&it, n->out[0]);
    in.data = out.data = (void *)(uintptr_t)64;
    inv_call c = {.node = n, .in = &in, .out = &out, .nin = 1, .nout = 1};
    inv_status s = device->run(self, INV_QUEUE_COMPUTE, n, &c);
    if (s == INV_OK) s = device->finish(self);
    assert_int_equal(s, INV_E_DEVICE);
    printf("a faulty kernel: %s\n", inv_context_message(ctx));
    device->close(self);
    interp_fini(&it);
    inv_context_destroy(ctx);
}

/* Whether this build can use one; that there is one is asked of the driver before (tests/gpu/need.py), so that a
 * backend that does not open is a failure. */
static bool find_gpu(void)
{
    inv_context *ctx;
    if (inv_context_create(NULL, &ctx) != INV_OK) return false;
    int index;
    bool found = inv_device_find(ctx, "cuda", &device, &index) == INV_OK;
    if (!found) printf("skipped: %s\n", inv_context_message(ctx));
    inv_context_destroy(ctx);
    return found;
}

int main(int argc, char **argv)
{
    bool on_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row), cmocka_unit_test(faulty_kernel)};
    const struct CMUnitTest emulated[] = {cmocka_unit_test(every_row)};
    if (!on_gpu) return cmocka_run_group_tests(emulated, NULL, NULL);
    return find_gpu() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
