/* SPDX-License-Identifier: Apache-2.0
 * Several element-wise operators as one, which passes/schedule/fuse.c makes: attribute `steps` says in the text form
 * what is computed from inputs x0, x1, ... and gives outputs y0, y1, ...; other names are results that only later steps
 * read. All are of one shape, to which the inputs broadcast.
 *
 *     y0, y1 = Fused<shape = [8,3], steps = "t = Add(x0, x1)  y0 = Tanh(t)  y1 = Mul(y0, x2)">(x, bias, s)
 *
 * The steps are worked through piece by piece, so that what one leaves is in the nearest cache when the next one reads
 * it, and what nobody else reads is never written to memory. Each step is done by the very code that the operator alone
 * is run by (column `piece`), so the bits are the same. Operands that are repeated along an axis are written out for
 * the piece, once for all of a thread's pieces where these are alike. On a device one kernel takes 16 bytes at a time
 * through all steps (ops/elementwise/fused.cu). */
#include "core/graph/text.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/elementwise/fused_gpu.h"

enum { PIECE = 4096, ROOMS = 2 * INV_FUSED_STEPS }; /* bytes of a piece; pieces that a thread has room for */

/* --- what the steps say --- */

typedef struct reading {
    inv_graph *g;
    const inv_node *n;
    inv_stmts steps;
    inv_fused f;
} reading;

static inv_status refuse(const reading *r, const inv_stmt *s, const char *what)
{
    return inv_node_fail(r->g, r->n, INV_E_GRAPH, "attribute steps: %s: %s", s->op, what);
}

/* The number in a name such as x12; -1: it is none. */
static int64_t numbered(const char *name, char letter, uint32_t below)
{
    int64_t at;
    return *name == letter && inv_word_int(name + 1, &at) && at >= 0 && at < (int64_t)below ? at : -1;
}

static bool gives_codes(const inv_fused_step *s) { return s->op->flags & INV_OP_COMPARES; }

static inv_status read_operand(reading *r, const inv_stmt *s, inv_fused_step *step, uint32_t k)
{
    const int64_t at = numbered(s->in[k], 'x', r->n->nin);
    const bool takes = step->op->codes >> k & 1;
    if (at >= 0 && !takes) {
        step->in[k] = (uint8_t)at;
        return INV_OK;
    }
    for (uint32_t i = 0; i < r->f.nstep; i++) {
        if (strcmp(r->steps.at[i].out[0], s->in[k]) != 0) continue;
        step->in[k] = (uint8_t)(INV_FUSED_IN + i);
        return gives_codes(&r->f.step[i]) == takes ? INV_OK
                                                   : refuse(r, s, "it takes codes for numbers, or the reverse");
    }
    return refuse(r, s, "an operand is neither an input nor the result of an earlier step");
}

static inv_status read_step(reading *r, const inv_stmt *s)
{
    inv_fused_step *step = &r->f.step[r->f.nstep];
    step->op = inv_registry_named(r->g->ctx->registry, s);
    if (!step->op || !step->op->piece) return refuse(r, s, "it is no operator that has pieces");
    if (r->g->gpu && step->op->piece->opcode == INV_NO_OPCODE) return refuse(r, s, "it is not joined on a device");
    bool optional = true, variadic, more = inv_op_slot(step->op->in, s->nin, &optional, &variadic);
    step->nin = s->nin;
    if (s->nin == 0 || s->nin > 3 || s->nout != 1 || (more && !optional) ||
        !inv_op_slot(step->op->in, s->nin - 1, &optional, &variadic))
        return refuse(r, s, "it has other operands or results");
    for (uint32_t k = 0; k < s->nin; k++) INV_TRY(read_operand(r, s, step, k));
    const int64_t at = numbered(s->out[0], 'y', r->n->nout);
    step->out = at < 0 ? INV_FUSED_ROOM : (uint8_t)at;
    for (uint32_t i = 0; i < r->f.nstep; i++)
        if (strcmp(r->steps.at[i].out[0], s->out[0]) == 0) return refuse(r, s, "its result has a name that is taken");
    if (at >= 0 && gives_codes(step)) return refuse(r, s, "codes are no output");
    const inv_node as = {.op = step->op, .attr = s->attr, .nattr = s->nattr};
    inv_op_numbers(&as, 4, step->real);
    r->f.nstep++;
    return INV_OK;
}

/* Frees the rooms of those results that step i is the last to read. */
static void free_rooms(const inv_fused *f, uint32_t i, const uint32_t *last, bool *taken)
{
    for (uint32_t j = 0; j < i; j++)
        if (last[j] == i && f->step[j].out == INV_FUSED_ROOM) taken[f->step[j].room] = false;
}

/* Results that nobody else reads get rooms, which are free again with the last step that reads them; behind it, where
 * codes are of another size than what they are made of, or choose. */
static void give_rooms(inv_fused *f)
{
    bool taken[INV_FUSED_STEPS + 1] = {false};
    uint32_t last[INV_FUSED_STEPS] = {0};
    for (uint32_t i = 0; i < f->nstep; i++)
        for (uint32_t k = 0; k < f->step[i].nin; k++)
            if (f->step[i].in[k] >= INV_FUSED_IN) last[f->step[i].in[k] - INV_FUSED_IN] = i;
    for (uint32_t i = 0; i < f->nstep; i++) {
        inv_fused_step *s = &f->step[i];
        const bool apart = s->op->codes || gives_codes(s);
        if (!apart) free_rooms(f, i, last, taken);
        if (s->out == INV_FUSED_ROOM) {
            while (taken[s->room]) s->room++;
            taken[s->room] = last[i] > i;
            if (s->room >= f->nroom) f->nroom = s->room + 1u;
        }
        if (apart) free_rooms(f, i, last, taken);
    }
}

static inv_status read_steps(reading *r, inv_arena *a)
{
    const inv_node *n = r->n;
    uint32_t given = 0;
    INV_TRY(inv_text_stmts(r->g->ctx, a, inv_attr_string(n, "steps", ""), &r->steps));
    if (r->steps.n == 0 || r->steps.n > INV_FUSED_STEPS || n->nin > INV_FUSED_IN || n->nout > INV_FUSED_STEPS)
        return inv_node_fail(r->g, n, INV_E_GRAPH, "attribute steps: %zu steps, %u inputs; at most %d and %d are taken",
                             r->steps.n, (unsigned)n->nin, INV_FUSED_STEPS, INV_FUSED_IN);
    for (size_t i = 0; i < r->steps.n; i++) INV_TRY(read_step(r, &r->steps.at[i]));
    for (uint32_t i = 0; i < r->f.nstep; i++) given |= r->f.step[i].out < 32 ? 1u << r->f.step[i].out : 0;
    if (given != (1u << n->nout) - 1)
        return inv_node_fail(r->g, n, INV_E_GRAPH, "attribute steps: an output is not given");
    give_rooms(&r->f);
    uint8_t place[INV_FUSED_STEPS];
    const uint32_t places = inv_fused_places(&r->f, n->nin, place);
    if (r->g->gpu && places > INV_FUSED_PLACES)
        return inv_node_fail(r->g, n, INV_E_GRAPH,
                             "attribute steps: %u values are there at once; at most %d are taken on a device",
                             (unsigned)places, INV_FUSED_PLACES);
    return INV_OK;
}

static inv_status fused_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_attr_shape(n, "shape");
    reading r = {.g = g, .n = n};
    inv_arena a;
    INV_TRY(inv_need_reals(g, n, n->nin));
    if (!inv_shape_is_static(&s)) return inv_node_fail(g, n, INV_E_SHAPE, "attribute `shape` is not a static shape");
    INV_TRY(inv_need_size(g, n, &s));
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_shape both;
        if (!inv_shape_broadcast(inv_in_shape(g, n, k), &s, &both) || !inv_shape_equal(&both, &s))
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u does not broadcast to attribute `shape`", (unsigned)k);
    }
    inv_arena_init(&a, g->ctx);
    const inv_status st = read_steps(&r, &a);
    inv_arena_fini(&a);
    INV_TRY(st);
    for (uint32_t k = 0; k < n->nout; k++) inv_set_out(g, n, k, inv_in_dtype(g, n, 0), &s);
    n->fused = inv_arena_copy(&g->arena, &r.f, sizeof r.f);
    return n->fused ? INV_OK : INV_E_NOMEM;
}

/* Those inputs that no step behind the one that gives the output reads. */
static uint32_t fused_overwrites(const inv_graph *g, const inv_node *n, uint32_t k)
{
    const inv_fused *f = n->fused;
    uint32_t bits = 0;
    for (uint32_t i = 0; f && i < n->nin; i++)
        if (inv_shape_nelem(inv_in_shape(g, n, i)) == inv_shape_nelem(inv_shape_of_value(g, n->out[k])))
            bits |= 1u << i;
    for (uint32_t i = f ? f->nstep : 0; i-- > 0 && f->step[i].out != k;)
        for (uint32_t o = 0; o < f->step[i].nin; o++)
            if (f->step[i].in[o] < INV_FUSED_IN) bits &= ~(1u << f->step[i].in[o]);
    return bits;
}

static double fused_flops(const inv_graph *g, const inv_node *n)
{
    return (n->fused ? n->fused->nstep : 1) * inv_flops_out(g, n);
}

static inv_work fused_work(const inv_graph *g, const inv_node *n)
{
    for (uint32_t i = 0; n->fused && i < n->fused->nstep; i++) {
        const inv_op_def *op = n->fused->step[i].op;
        if (op->work && op->work(g, n) == INV_WORK_MATH) return INV_WORK_MATH;
    }
    return INV_WORK_STREAM;
}

/* --- running --- */

/* The axes of the results, neighbours along which every operand either has all or is repeated as one; at least one. */
static int merged_axes(const inv_call *c, int64_t dim[INV_MAX_RANK], int64_t stride[INV_FUSED_IN][INV_MAX_RANK])
{
    const inv_shape s = inv_attr_shape(c->node, "shape"); /* not each output is wanted */
    memset(stride, 0, INV_FUSED_IN * sizeof *stride);
    for (uint32_t k = 0; k < c->nin; k++) inv_broadcast_strides(&c->in[k].shape, &s, stride[k]);
    const int rank = inv_merge_axes(&s, (int)c->nin, stride, dim);
    if (rank == 0) dim[0] = 1;
    return rank ? rank : 1;
}

/* How an operand is walked. The result's last axis is of `inner` elements; those before are `rows`. */
typedef struct operand {
    const char *data;
    bool whole;    /* of the result's shape: nothing is repeated */
    bool repeated; /* along the last axes */
    bool alike;    /* in all rows */
    int room;      /* where it is written out; -1: nowhere */
    int64_t stride[INV_MAX_RANK];
} operand;

typedef struct walk {
    const inv_fused *f;
    size_t size; /* bytes of an element */
    int rank;    /* axes of `rows` */
    int64_t dim[INV_MAX_RANK], rows, inner;
    int64_t each, of; /* rows of a piece; pieces of a row. One of the two is 1 */
    int64_t weight;   /* of an element: the time of its steps, in those of simple ones */
    uint32_t nin, nroom;
    operand in[INV_FUSED_IN];
    char *out[INV_FUSED_STEPS];
    uint32_t room[INV_FUSED_STEPS]; /* of results that are no outputs, or of outputs that are not wanted */
    inv_piece piece[INV_FUSED_STEPS];
    union {
        float f32[4];
        double f64[4];
    } real[INV_FUSED_STEPS];
} walk;

static void set_operand(walk *w, operand *o, const inv_tensor *t, const int64_t *stride)
{
    *o = (operand){.data = t->data,
                   .whole = t->n == w->rows * w->inner,
                   .repeated = stride[w->rank] == 0,
                   .alike = true,
                   .room = -1};
    for (int i = 0; i < w->rank; i++) {
        o->stride[i] = stride[i];
        o->alike = o->alike && stride[i] == 0;
    }
    if (!o->whole && (o->repeated || w->each > 1)) o->room = (int)w->nroom++;
}

static bool prepare(walk *w, const inv_call *c)
{
    int64_t stride[INV_FUSED_IN][INV_MAX_RANK];
    *w = (walk){.f = c->node->fused, .size = inv_dtype_size(c->in[0].dtype), .rows = 1, .inner = 1, .nin = c->nin};
    const int64_t most = PIECE / (int64_t)w->size;
    w->rank = merged_axes(c, w->dim, stride) - 1;
    for (int i = 0; i < w->rank; i++) w->rows *= w->dim[i];
    w->inner = w->dim[w->rank];
    w->each = w->inner < most ? most / inv_max64(w->inner, 1) : 1;
    w->of = (w->inner + most - 1) / most;
    w->nroom = w->f->nroom;
    for (uint32_t k = 0; k < c->nin; k++) set_operand(w, &w->in[k], &c->in[k], stride[k]);
    for (uint32_t i = 0; i < w->f->nstep; i++) {
        const inv_fused_step *step = &w->f->step[i];
        w->piece[i] = c->in[0].dtype == INV_F64 ? step->op->piece->f64 : step->op->piece->f32;
        for (int k = 0; k < 4; k++) {
            if (c->in[0].dtype == INV_F64) w->real[i].f64[k] = step->real[k];
            else w->real[i].f32[k] = (float)step->real[k];
        }
        w->weight +=
            step->op->work && step->op->work(NULL, c->node) == INV_WORK_MATH ? INV_OMP_STREAM / INV_OMP_MIN : 1;
        w->out[i] = step->out == INV_FUSED_ROOM ? NULL : c->out[step->out].data;
        w->room[i] = step->out == INV_FUSED_ROOM || w->out[i] ? step->room : w->nroom++;
    }
    return w->rows * w->inner > 0 && w->nroom <= ROOMS;
}

static int64_t row_offset(const walk *w, const operand *o, int64_t row)
{
    int64_t at = 0;
    for (int i = w->rank - 1; i >= 0 && !o->alike; i--) {
        at += row % w->dim[i] * o->stride[i];
        row /= w->dim[i];
    }
    return at;
}

static void repeat(char *to, const char *from, int64_t n, size_t size)
{
    if (size == sizeof(float)) {
        for (int64_t i = 0; i < n; i++) memcpy(to + i * (int64_t)sizeof(float), from, sizeof(float));
    } else {
        for (int64_t i = 0; i < n; i++) memcpy(to + i * (int64_t)sizeof(double), from, sizeof(double));
    }
}

/* Writes out an operand for `rows` rows from `row` on, of each `n` elements. */
static void write_out(const walk *w, const operand *o, char *to, int64_t row, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++, to += n * (int64_t)w->size) {
        const char *from = o->data + row_offset(w, o, row + r) * (int64_t)w->size;
        if (o->repeated) repeat(to, from, n, w->size);
        else memcpy(to, from, (size_t)n * w->size);
    }
}

/* Works through the pieces from `first` to `end`. */
static void run_pieces(const walk *w, int64_t first, int64_t end)
{
    _Alignas(64) char room[ROOMS][PIECE];
    const int64_t size = (int64_t)w->size, cut = PIECE / size;
    bool written[INV_FUSED_IN] = {false};
    for (int64_t p = first; p < end; p++) {
        const void *at[INV_FUSED_IN + INV_FUSED_STEPS];
        const int64_t row = p / w->of * w->each, from = p % w->of * cut;
        const int64_t rows = inv_min64(w->each, w->rows - row), n = inv_min64(w->inner - from, cut);
        for (uint32_t k = 0; k < w->nin; k++) {
            const operand *o = &w->in[k];
            if (o->whole) at[k] = o->data + (row * w->inner + from) * size;
            else if (o->room < 0) at[k] = o->data + (row_offset(w, o, row) + from) * size;
            else at[k] = room[o->room];
            if (o->room < 0 || (o->alike && written[k])) continue;
            written[k] = rows == w->each && n == inv_min64(w->inner, cut); /* a smaller one comes at the end only */
            write_out(w, o, room[o->room], row, rows, n);
        }
        for (uint32_t i = 0; i < w->f->nstep; i++) {
            const inv_fused_step *s = &w->f->step[i];
            const void *in[3] = {NULL, NULL, NULL};
            char *out = w->out[i] ? w->out[i] + (row * w->inner + from) * size : room[w->room[i]];
            for (uint32_t k = 0; k < s->nin; k++) in[k] = at[s->in[k]];
            w->piece[i](out, in, rows * n, &w->real[i]);
            at[INV_FUSED_IN + i] = out;
        }
    }
}

static inv_status run_on_device(const inv_call *c)
{
    const inv_fused *f = c->node->fused;
    int64_t stride[INV_FUSED_IN][INV_MAX_RANK];
    uint8_t place[INV_FUSED_STEPS];
    inv_fused_call call;
    memset(&call, 0, sizeof call);
    if (inv_fused_places(f, c->nin, place) > INV_FUSED_PLACES) return INV_E_INTERNAL;
    call.rank = merged_axes(c, call.dim, stride);
    call.n = 1;
    for (int i = 0; i < call.rank; i++) call.n *= call.dim[i];
    if (call.n == 0) return INV_OK;
    call.nin = (int)c->nin;
    call.nstep = (int)f->nstep;
    for (uint32_t k = 0; k < c->nin; k++) {
        call.in[k].data = c->in[k].data;
        memcpy(call.in[k].stride, stride[k], sizeof stride[k]);
    }
    for (uint32_t i = 0; i < f->nstep; i++) {
        const inv_fused_step *s = &f->step[i];
        call.step[i].opcode = (uint8_t)s->op->piece->opcode;
        call.step[i].place = place[i];
        call.step[i].out = s->out == INV_FUSED_ROOM ? NULL : c->out[s->out].data;
        call.step[i].nin = (uint8_t)s->nin;
        for (uint32_t k = 0; k < s->nin; k++)
            call.step[i].in[k] = s->in[k] < INV_FUSED_IN ? s->in[k] : place[s->in[k] - INV_FUSED_IN];
        memcpy(call.real[i], s->real, sizeof s->real);
    }
    INV_GPU(c->gpu, fused, c->in[0].dtype, &call);
    return INV_OK;
}

static inv_status fused_run(const inv_call *c)
{
    walk w;
    if (!c->node->fused) return INV_E_INTERNAL;
    if (c->gpu) return run_on_device(c);
    if (!prepare(&w, c)) return w.nroom > ROOMS ? INV_E_INTERNAL : INV_OK;
    const int64_t blocks = (w.rows + w.each - 1) / w.each, pieces = blocks * w.of;
    const int64_t work = w.rows * w.inner * w.weight;
    const int threads = work > INV_OMP_STREAM ? (int)inv_min64(inv_all_threads(), pieces) : 1;
    if (threads == 1) {
        run_pieces(&w, 0, pieces);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) run_pieces(&w, pieces * t / threads, pieces * (t + 1) / threads);
    return INV_OK;
}

#define STEPS(text) "steps = \"" text "\""
INV_CASE_LIST(fused, "y = Fused<shape = [2,3], " STEPS("t = Add(x0, x1)  y0 = Tanh(t)") ">(float[2,3] a, float[3] b)",
              "y, z = Fused<shape = [4,2,3], " STEPS(
                  "y0 = Mul(x0, x1)  t = Exp(y0)  u = LeakyRelu<alpha = 0.5f>(x2)  y1 = Sub(t, u)") ">(float[2,1] a, "
                                                                                                    "float[4,1,3] b, "
                                                                                                    "float c)",
              "y = Fused<shape = [1], " STEPS("y0 = Sigmoid(x0)") ">(float[1] a)",
              "y = Fused<shape = [0,3], " STEPS("t = Neg(x0)  y0 = Add(t, x0)") ">(float[0,3] a)",
              "y = Fused<shape = [3,1500], " STEPS(
                  "t = BroadcastTo<shape = [3,1500]>(x1)  u = Mul(t, x0)  y0 = Add(u, x2)") ">(float[3,1500] a, "
                                                                                            "float[3,1] b, "
                                                                                            "float[1500] c)")
/* clang-format off */
static const inv_op_def fused_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "Fused", .since = 1, .in = "x*", .out = "y*",
    .flags = INV_OP_NO_GRAD | INV_OP_VARIADIC_OUT, .overwrites = fused_overwrites,
    .infer = fused_infer, .run = fused_run, .flops = fused_flops, .work = fused_work, .cases = fused_cases,
    .doc = "element-wise operators one after the other, piece by piece"};
/* clang-format on */

const inv_op_def *const inv_ops_fused[] = {&fused_row, NULL};
