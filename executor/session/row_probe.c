/* SPDX-License-Identifier: Apache-2.0
 * What a batch is: once, before the first step, on a few rows of the first batch.
 *
 * Whether axis 0 is the batch. The forward part is run twice, in evaluation mode, the second time with one row
 * replaced. In what the loss is taken of only that row may change. Where another axis holds all that changes, that axis
 * is the batch; where none does, rows act on each other. Random numbers are those of their places, so they are the same
 * both times.
 *
 * Whether a loss that the model computes is a sum over rows, a mean, or divided by a count, if steps have several
 * micro-batches: it is compared with the losses of the same rows alone. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/program/exchange.h"
#include "core/program/options.h"
#include "executor/executor.h"

enum { FEW = 4 }; /* the second one has neighbours on both sides, and is not in the middle, where flipping leaves it */

typedef struct probe {
    inv_context *ctx;
    inv_model *model;
    const inv_session_options *given;
    inv_arena a;
    int64_t batch, first, rows;    /* of the first batch; of what is run: from where on, and how many */
    size_t planned, beside, bytes; /* of a session, of the rows and outputs that are kept, and the most of both */
    bool open;                     /* the model takes any number of rows */
    bool *has_rows;                /* per input; others go whole into every step */
    inv_array *in;
    char **change; /* per input: its rows with one replaced */
    inv_str wrong; /* what was found, if it is not empty */
} probe;

inv_session_options inv_forward_options(const inv_session_options *of)
{
    inv_session_options o = *of;
    o.purpose = INV_FOR_EVAL;
    o.target = NULL;
    inv_options_of_gradients(&o);
    o.loss = INV_LOSS_NONE;
    o.loss_outputs = NULL;
    o.nloss_outputs = 0;
    o.logdet = NULL;
    o.memory = INV_MEMORY_STORE;
    o.nkeep = o.nmodes = 0;
    o.precision = INV_PRECISION_FULL;
    o.no_dropout = true;
    o.device = "cpu";
    o.guard = INV_GUARD_OFF;
    o.costs = NULL;
    o.after_pass = NULL;
    return o;
}

/* --- what is fed --- */

/* Which inputs have rows, as binding has it (passes/front/bind.c). false: there is nothing to look at. */
static bool find_rows(probe *p)
{
    const inv_graph *g = p->model->graph;
    const inv_session_options *o = p->given;
    bool open = false, any = false;
    p->batch = inv_arrays_rows(o->inputs, o->ninputs, o->target, 0);
    p->has_rows = INV_ARENA_NEW(&p->a, bool, o->ninputs + 1);
    p->in = INV_ARENA_NEW(&p->a, inv_array, o->ninputs + 1);
    p->change = INV_ARENA_NEW(&p->a, char *, o->ninputs + 1);
    if (p->a.failed) return false;
    for (size_t i = 0; i < g->inputs.n; i++) {
        const inv_shape *s = &inv_val(g, g->inputs.at[i])->shape;
        open = open || (s->rank > 0 && s->dim[0] < 0);
    }
    p->open = true;
    for (size_t i = 0; i < o->ninputs; i++) {
        const inv_array *x = &o->inputs[i];
        const inv_id v = inv_graph_find(g, x->name);
        const inv_shape *s = v == INV_NONE ? NULL : &inv_val(g, v)->shape;
        p->in[i] = *x;
        const bool declared = s && s->rank > 0 && s->dim[0] >= 0;
        if (x->rank < 1 || x->dims[0] != p->batch || (open && declared && s->dim[0] == x->dims[0])) continue;
        if (inv_input_is_constant(o, x) || !inv_dtype_size(x->dtype)) continue;
        p->has_rows[i] = any = true;
        p->open = p->open && !declared;
    }
    return any && p->batch > 0;
}

static size_t row_bytes(const inv_array *x)
{
    size_t n = inv_dtype_size(x->dtype);
    for (int d = 1; d < x->rank; d++) n *= (size_t)x->dims[d];
    return n;
}

static const char *row_of(const probe *p, size_t i, int64_t r)
{
    const inv_array *x = &p->given->inputs[i];
    r %= p->batch;
    return (const char *)x->data + (size_t)(x->rows ? x->rows[r] : r) * row_bytes(x);
}

/* A row of the batch that is another than row r, of those behind the ones that are run first; -1: there is none. */
static int64_t other_row(const probe *p, int64_t r)
{
    for (int64_t k = 0; k < p->batch; k++) {
        const int64_t other = (p->rows + k) % p->batch;
        for (size_t i = 0; i < p->given->ninputs; i++)
            if (p->has_rows[i] && memcmp(row_of(p, i, r), row_of(p, i, other), row_bytes(&p->given->inputs[i])) != 0)
                return other;
    }
    return -1;
}

/* The elements of a row from the last to the first: values that the data have. */
static void put_reversed(char *to, const char *from, size_t nbytes, size_t each)
{
    for (size_t at = 0; at < nbytes; at += each) memcpy(to + at, from + nbytes - each - at, each);
}

/* Rows of the batch, which begin anew where it has not so many. */
static inv_status take_rows(probe *p)
{
    for (size_t i = 0; i < p->given->ninputs; i++) {
        if (!p->has_rows[i]) continue;
        const size_t each = row_bytes(&p->in[i]);
        char *data = inv_arena_alloc(&p->a, (size_t)p->rows * each + 1);
        int64_t *dims = INV_ARENA_NEW(&p->a, int64_t, (size_t)p->in[i].rank);
        p->change[i] = inv_arena_alloc(&p->a, (size_t)p->rows * each + 1);
        p->beside += 2 * (size_t)p->rows * each;
        if (!data || !dims || !p->change[i]) return INV_E_NOMEM;
        for (int64_t r = 0; r < p->rows; r++) memcpy(data + (size_t)r * each, row_of(p, i, p->first + r), each);
        memcpy(dims, p->given->inputs[i].dims, (size_t)p->in[i].rank * sizeof *dims);
        dims[0] = p->rows;
        p->in[i].dims = dims;
        p->in[i].data = data;
        p->in[i].rows = NULL;
    }
    return INV_OK;
}

static void change_row(const probe *p, int64_t r, inv_array *in)
{
    const int64_t other = other_row(p, r);
    for (size_t i = 0; i < p->given->ninputs; i++) {
        in[i] = p->in[i];
        if (!p->has_rows[i]) continue;
        const size_t each = row_bytes(&p->in[i]);
        memcpy(p->change[i], p->in[i].data, (size_t)p->rows * each);
        if (other >= 0) memcpy(p->change[i] + (size_t)r * each, row_of(p, i, other), each);
        else put_reversed(p->change[i] + (size_t)r * each, row_of(p, i, r), each, inv_dtype_size(p->in[i].dtype));
        in[i].data = p->change[i];
    }
}

/* --- what changes --- */

typedef struct output {
    const char *name;
    inv_dtype dtype;
    inv_shape shape;
    const void *was, *is; /* before the row was replaced, a copy, and now */
} output;

static inv_status read_output(inv_session *s, output *out)
{
    return inv_session_get(s, INV_GET_OUTPUT, out->name, &out->is, &out->dtype, &out->shape.rank, out->shape.dim);
}

static inv_status keep_output(probe *p, output *out)
{
    const size_t nbytes = (size_t)inv_shape_nelem(&out->shape) * inv_dtype_size(out->dtype);
    void *copy = inv_arena_alloc(&p->a, nbytes + 1);
    if (!copy) return INV_E_NOMEM;
    out->was = memcpy(copy, out->is, nbytes);
    p->beside += nbytes;
    return INV_OK;
}

/* How far apart two outputs are outside of the slice `at` of `parts` equal ones along an axis; beyond rounding. */
static double outside(const probe *p, const output *out, int axis, int64_t parts, int64_t at)
{
    int64_t inner = 1;
    const int64_t n = inv_shape_nelem(&out->shape), extent = out->shape.rank ? out->shape.dim[axis] : 1;
    double most = 0, size = 0;
    for (int d = axis + 1; d < out->shape.rank; d++) inner *= out->shape.dim[d];
    for (int64_t i = 0; i < n; i++) {
        const double was = inv_elem_double(out->was, out->dtype, (size_t)i),
                     is = inv_elem_double(out->is, out->dtype, (size_t)i), d = fabs(is - was);
        if (isfinite(was)) size = fmax(size, fabs(was));
        if (i / inner % extent / (extent / parts) == at) continue;
        if (isnan(is) != isnan(was)) most = INFINITY;
        else if (d > most) most = d;
    }
    return most > (p->given->float64 ? 1e-10 : 1e-5) * size ? most : 0;
}

static void say_axis(probe *p, const output *out, int axis)
{
    char shape[INV_SHAPE_TEXT];
    inv_str_add(&p->wrong,
                "axis %d of output '%s' %s%s is the batch, not axis 0: changing an input row changes it along axis "
                "%d. Add a Transpose after it, use files of whole steps ({stacked}), or accept it ({rows_mix})",
                axis, out->name, inv_dtype_name(out->dtype), inv_shape_text(&out->shape, shape), axis);
}

static void say_mixed(probe *p, const output *out, double by)
{
    char shape[INV_SHAPE_TEXT];
    inv_str_add(
        &p->wrong,
        "the rows of a batch affect each other: changing one of %lld rows changes output '%s' %s%s by %.3g in other "
        "rows. If axis 0 is not the batch, use files of whole steps ({stacked}). If intended: {rows_mix}",
        (long long)p->rows, out->name, inv_dtype_name(out->dtype), inv_shape_text(&out->shape, shape), by);
}

static void judge(probe *p, const output *out, int64_t row)
{
    const inv_shape *s = &out->shape;
    if (inv_shape_nelem(s) < 1 || p->wrong.n) return;
    const bool fits = s->rank > 0 && s->dim[0] % p->rows == 0; /* axes may be folded into that of the rows */
    const double by = outside(p, out, 0, fits ? p->rows : 1, fits ? row : 1);
    if (by == 0) return;
    for (int d = 1; d < s->rank; d++)
        if (s->dim[d] == p->rows && outside(p, out, d, p->rows, row) == 0) {
            say_axis(p, out, d);
            return;
        }
    if (p->rows > 1) say_mixed(p, out, by);
}

static inv_status run(const probe *p, inv_session *s, const inv_array *in)
{
    inv_result r;
    return inv_session_eval(s, in, p->given->ninputs, NULL, &r);
}

/* The outputs that the loss is of; where nobody says which, all: but one of them has to be no floating-point one. */
static inv_status find_outputs(probe *p, output **out, size_t *n)
{
    const inv_session_options *o = p->given;
    const inv_graph *g = p->model->graph;
    *out = INV_ARENA_NEW(&p->a, output, g->outputs.n + o->nloss_outputs + 1);
    if (!*out) return INV_E_NOMEM;
    for (size_t i = 0; i < o->nloss_outputs; i++) (*out)[(*n)++].name = o->loss_outputs[i];
    for (size_t i = 0; i < g->outputs.n; i++) {
        const inv_value *v = inv_val(g, g->outputs.at[i]);
        const bool logdet = o->logdet && !strcmp(o->logdet, v->name);
        if (inv_dtype_is_float(v->dtype) && (logdet || !o->nloss_outputs)) (*out)[(*n)++].name = v->name;
    }
    return INV_OK;
}

static inv_status compare_runs(probe *p, inv_session *s)
{
    output *out;
    size_t n = 0;
    INV_TRY(find_outputs(p, &out, &n));
    inv_array *in = INV_ARENA_NEW(&p->a, inv_array, p->given->ninputs + 1);
    if (!in) return INV_E_NOMEM;
    INV_TRY(run(p, s, p->in));
    for (size_t k = 0; k < n; k++) {
        INV_TRY(read_output(s, &out[k]));
        INV_TRY(keep_output(p, &out[k]));
    }
    const int64_t first = p->rows < FEW ? 0 : 1, last = p->rows < FEW ? p->rows - 1 : first;
    for (int64_t row = first; row <= last; row++) {
        change_row(p, row, in);
        INV_TRY(run(p, s, in));
        for (size_t k = 0; k < n; k++) {
            INV_TRY(read_output(s, &out[k]));
            judge(p, &out[k], row);
        }
    }
    return INV_OK;
}

/* The forward part of p->rows rows; with the loss, if the model computes it. */
static inv_status open_forward(probe *p, inv_session **out)
{
    INV_TRY(take_rows(p));
    inv_session_options o = inv_forward_options(p->given);
    o.inputs = p->in;
    if (p->given->loss == INV_LOSS_OUTPUT) {
        o.loss = INV_LOSS_OUTPUT;
        o.loss_outputs = p->given->loss_outputs;
        o.nloss_outputs = p->given->nloss_outputs;
    }
    INV_TRY(inv_session_make(p->model, &o, out));
    p->planned = inv_program_bytes((*out)->program) - (*out)->program->in_place;
    return INV_OK;
}

static void close_forward(probe *p, inv_session *s)
{
    if (p->planned + p->beside > p->bytes) p->bytes = p->planned + p->beside;
    inv_session_destroy(s);
}

static inv_status probe_rows(probe *p, int64_t rows)
{
    inv_session *s;
    p->rows = rows;
    inv_str_fini(&p->wrong);
    inv_str_init(&p->wrong, p->ctx);
    INV_TRY(open_forward(p, &s));
    const inv_status st = compare_runs(p, s);
    close_forward(p, s);
    return st;
}

/* --- whether it is asked --- */

/* Scales of all of a tensor, by which rows act on each other a little, and are to. */
static bool is_of_all(const inv_graph *g)
{
    for (size_t i = 0; i < g->node.n; i++)
        if (!strncmp(inv_nod(g, (inv_id)i)->op_type, "DynamicQuantize", strlen("DynamicQuantize"))) return true;
    for (size_t i = 0; i < g->function.n; i++)
        if (is_of_all(g->function.at[i].body)) return true;
    return false;
}

/* Whether steps or evaluation go over rows that are here; if the model computes the loss, whether steps have parts that
 * are put together. */
static bool is_asked(const inv_session *s, const inv_session_options *o)
{
    const bool train = o->purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE, own = o->loss == INV_LOSS_OUTPUT;
    bool asked = !o->plan_only && o->ninputs > 0 && o->loss != INV_LOSS_NONE && o->loss != INV_LOSS_OUTSIDE;
    if (own) asked = asked && train && (o->accumulate || inv_world_several(o->world));
    else asked = asked && !o->rows_mix && (train || o->purpose == INV_FOR_EVAL);
    for (size_t i = 0; i < o->ninputs; i++) asked = asked && o->inputs[i].data;
    return asked && !is_of_all(s->model->graph);
}

/* No more than a step has, if that has several. */
static int64_t few_rows(const probe *p) { return p->batch < 2 ? 2 : p->batch < FEW ? p->batch : FEW; }

/* A few rows; all where the model fixes their number, has it in its shapes, or these are found to act on each other. */
static inv_status look_at_rows(probe *p)
{
    const int64_t few = p->open ? few_rows(p) : p->batch;
    inv_status st = probe_rows(p, few);
    if ((st != INV_OK || p->wrong.n) && p->batch > few) st = probe_rows(p, p->batch);
    return st;
}

/* --- a loss that the model computes --- */

static bool is_random(const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++)
        if (inv_nod(g, g->order.at[i])->op->flags & INV_OP_RANDOM) return true;
    return false;
}

/* The loss of the rows from `first` on, and what their labels count, or how many they are. */
static inv_status loss_from(probe *p, inv_session *s, int64_t first, inv_result *r)
{
    p->first = first;
    INV_TRY(take_rows(p));
    return inv_session_eval(s, p->in, p->given->ninputs, NULL, r);
}

/* The loss of n rows together, and what it is divided by as nodes say then. */
static inv_status loss_together(probe *p, int64_t n, inv_result *all, inv_divisor *by, bool *random)
{
    inv_session *s;
    p->rows = n;
    INV_TRY(open_forward(p, &s));
    const inv_plan *plan = &s->program->plan[INV_PLAN_MAIN];
    *by = plan->divisor;
    *random = is_random(plan->g);
    const inv_status st = loss_from(p, s, 0, all);
    close_forward(p, s);
    return st;
}

/* Sums over parts of a batch, and of absolute values. */
typedef struct apart {
    double loss, size, count, numerator, numerator_size;
} apart;

/* The losses of n rows, each alone. */
static inv_status losses_apart(probe *p, int64_t n, apart *sum)
{
    inv_session *s;
    inv_status st = INV_OK;
    p->rows = 1;
    INV_TRY(open_forward(p, &s));
    for (int64_t r = 0; r < n && st == INV_OK; r++) {
        inv_result one = {0};
        st = loss_from(p, s, r, &one);
        sum->loss += one.loss;
        sum->size += fabs(one.loss);
        sum->count += one.weight;
        if (one.weight == 0) continue;
        sum->numerator += one.loss * one.weight;
        sum->numerator_size += fabs(one.loss * one.weight);
    }
    close_forward(p, s);
    return st;
}

/* Nodes say what kind of loss it is, numbers say whether that is so. */
static inv_status measure_loss(probe *p, inv_divisor *found)
{
    const int64_t n = few_rows(p);
    const double rows = (double)n, unlike = 1e-3;
    inv_result all = {0};
    apart sum = {0};
    bool random;
    if (!p->open) return INV_OK;
    INV_TRY(loss_together(p, n, &all, found, &random));
    const bool unread = *found == INV_BY_UNREAD, unsure = unread || *found == INV_BY_ROWS_OR_NOTHING;
    if (unsure && random) *found = INV_BY_UNKNOWN;
    if (*found == INV_BY_UNKNOWN || random) return INV_OK;
    p->model->divisor = *found == INV_BY_COUNT ? INV_BY_COUNT : INV_BY_UNMEASURED; /* what one row does not tell */
    INV_TRY(losses_apart(p, n, &sum));
    if (*found == INV_BY_COUNT) {
        const bool counts = fabs(all.weight - sum.count) <= unlike * fabs(sum.count);
        const double off = all.weight == 0 ? 0 : fabs(all.loss * all.weight - sum.numerator);
        if (!counts || off > unlike * sum.numerator_size) *found = INV_BY_UNKNOWN;
        return INV_OK;
    }
    const bool is_sum = fabs(all.loss - sum.loss) <= unlike * sum.size,
               is_mean = fabs(all.loss - sum.loss / rows) <= unlike * sum.size / rows;
    if (is_sum != is_mean) *found = is_sum ? INV_BY_NOTHING : unread ? INV_BY_UNKNOWN : INV_BY_ROWS;
    else if (unsure || !is_sum) *found = INV_BY_UNKNOWN; /* both: of losses of 0, for which nodes may say enough */
    return INV_OK;
}

/* --- the verdict --- */

/* What cannot be run is left to the session to refuse. */
inv_status inv_probe_rows(inv_session *s, const inv_session_options *given)
{
    inv_context *ctx = s->ctx;
    if (s->model->measured) return INV_OK;
    s->model->divisor = INV_BY_UNMEASURED;
    if (!is_asked(s, given)) return INV_OK;
    s->model->measured = true;
    probe p = {.ctx = ctx, .model = s->model, .given = given};
    const inv_log_fn log = ctx->log;
    const inv_progress_fn progress = ctx->progress;
    inv_divisor found = INV_BY_UNMEASURED;
    ctx->log = NULL; /* all of it is said when the session is made */
    ctx->progress = NULL;
    inv_arena_init(&p.a, ctx);
    inv_str_init(&p.wrong, ctx);
    inv_status st = INV_OK;
    if (find_rows(&p)) st = given->loss == INV_LOSS_OUTPUT ? measure_loss(&p, &found) : look_at_rows(&p);
    ctx->log = log;
    ctx->progress = progress;
    if (st == INV_OK && p.wrong.n) st = inv_fail(ctx, INV_E_ARG, "%s", p.wrong.s);
    else if (p.a.failed || p.wrong.failed) st = INV_E_NOMEM;
    else if (st != INV_E_STOPPED && st != INV_E_NOMEM) st = INV_OK; /* the session itself says what else is wrong */
    s->probed = p.bytes;
    s->model->divisor = found; /* looking makes sessions, too */
    s->model->measured = false;
    inv_str_fini(&p.wrong);
    inv_arena_fini(&p.a);
    return st;
}
