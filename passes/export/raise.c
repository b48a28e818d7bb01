/* SPDX-License-Identifier: Apache-2.0
 * Canonical operators as ONNX nodes: by the formula in an operator's row (formula.c), or by a function here.
 *
 * requires  names for the inputs, static shapes
 * gives     nodes appended to r->node, in execution order
 * breaks    nothing: the graph is only read */
#include "passes/export/formula.h"
#include "passes/export/raise_write.h"

#include <math.h>
#include <string.h>

#include "core/op.h"

enum { OLDEST_OPSET = 7, CONSTANT_OF_ANY_TYPE = 9 };

/* One node being raised. */
typedef struct raising {
    inv_raise *r;
    const inv_node *n;
    const char *solver;
} raising;

/* --- the node's own values --- */

const char *inv_raise_fresh(inv_raise *r)
{
    const char *name;
    inv_id taken;
    do {
        name = inv__arena_printf(r->a, "_v%u", r->fresh++);
        taken = name && r->names ? inv_graph_find(r->names, name) : INV_NONE;
    } while ((taken != INV_NONE && !r->gone[taken]) || (name && r->reserved && strcmp(name, r->reserved) == 0));
    return name;
}

static const char *input(const raising *b, uint32_t i)
{
    const char *name = i < b->n->nin && b->n->in[i] != INV_NONE ? b->r->name[b->n->in[i]] : NULL;
    if (name == NULL) refuse(b->r, "an operand has no name in the function");
    return name;
}

static bool wanted(const raising *b, uint32_t i)
{
    return i < b->n->nout && b->n->out[i] != INV_NONE && b->r->name[b->n->out[i]] != NULL;
}

static const char *output(const raising *b, uint32_t i)
{
    return wanted(b, i) ? b->r->name[b->n->out[i]] : inv_raise_fresh(b->r);
}

static const inv_shape *shape_of(const raising *b, uint32_t i) { return &inv_val(b->r->g, b->n->in[i])->shape; }

/* The same into output 0. */
static bool last1(const raising *b, const char *op, const char *x)
{
    return emit(b->r, output(b, 0), op, NAMES(x), INV_NOATTR) != NULL;
}

static bool last2(const raising *b, const char *op, const char *x, const char *y)
{
    return emit(b->r, output(b, 0), op, NAMES(x, y), INV_NOATTR) != NULL;
}

const char *inv_raise_cast(inv_raise *r, const char *x, inv_dtype to)
{
    return emit(r, inv_raise_fresh(r), "Cast", NAMES(x), INV_ATTRS(inv_attr_of_int("to", (int64_t)to)));
}

const char *inv_raise_constant(inv_raise *r, const inv_data *data)
{
    inv_attr value = {.name = "value", .kind = INV_ATTR_TENSOR, .tensor = *data};
    const bool whole = !inv_dtype_is_float(data->dtype);
    if (r->opset >= CONSTANT_OF_ANY_TYPE || !whole) return emit(r, inv_raise_fresh(r), "Constant", 0, NULL, 1, &value);
    const size_t n = (size_t)inv_shape_nelem(&data->shape);
    double *numbers = INV_ARENA_NEW(r->a, double, n + 1);
    if (numbers == NULL || !inv_convert(numbers, INV_F64, data->bytes, data->dtype, n)) return NULL;
    value.tensor = (inv_data){INV_F64, data->shape, numbers, n * sizeof *numbers};
    return inv_raise_cast(r, emit(r, inv_raise_fresh(r), "Constant", 0, NULL, 1, &value), data->dtype);
}

/* --- operators that are what ONNX calls so --- */

static bool plain(const raising *b)
{
    const char **in = INV_ARENA_NEW(b->r->a, const char *, b->n->nin + 1);
    if (in == NULL) return false;
    for (uint32_t i = 0; i < b->n->nin; i++) in[i] = b->n->in[i] == INV_NONE ? "" : input(b, i);
    return emit(b->r, output(b, 0), b->n->op_type, b->n->nin, in, b->n->nattr, b->n->attr) != NULL;
}

/* --- movement --- */

/* Leading extents that agree are copied, the next one is inferred, so that whatever axis the batch is on need not be
 * known. */
static bool view(const raising *b)
{
    const inv_shape *in = shape_of(b, 0), *out = &inv_val(b->r->g, b->n->out[0])->shape;
    int64_t want[INV_MAX_RANK];
    int same = 0;
    bool infer = false, ambiguous = false;
    while (same < out->rank && same < in->rank && in->dim[same] == out->dim[same]) same++;
    for (int i = 0; i < out->rank; i++) {
        want[i] = i < same ? 0 : i == same ? -1 : out->dim[i];
        infer = infer || want[i] == -1;
    }
    for (int i = 0; i < out->rank; i++) ambiguous = ambiguous || (infer && out->dim[i] == 0);
    if (ambiguous) return refuse(b->r, "an extent of 0 makes the shape ambiguous");
    return last2(b, "Reshape", input(b, 0), ints(b->r, (size_t)out->rank, want));
}

static bool permute(const raising *b)
{
    size_t n;
    const int64_t *indices = inv_attr_ints(b->n, "indices", &n), axis = inv_attr_int(b->n, "axis", 0);
    return emit(b->r, output(b, 0), "Gather", NAMES(input(b, 0), ints(b->r, n, indices)),
                INV_ATTRS(inv_attr_of_int("axis", axis))) != NULL;
}

/* Equal parts need no sizes. */
static bool split(const raising *b)
{
    inv_raise *r = b->r;
    size_t n;
    const int64_t *sizes = inv_attr_ints(b->n, "sizes", &n);
    const char **out = INV_ARENA_NEW(r->a, const char *, b->n->nout + 1), *in[2] = {input(b, 0), NULL};
    inv_attr attr[2] = {inv_attr_of_int("axis", inv_attr_int(b->n, "axis", 0)), {0}};
    uint32_t nin = 1, nattr = 1;
    bool equal = true;
    for (size_t i = 1; i < n; i++) equal = equal && sizes[i] == sizes[0];
    if (out == NULL) return false;
    for (uint32_t i = 0; i < b->n->nout; i++) out[i] = output(b, i);
    if (equal && r->opset >= 18) attr[nattr++] = inv_attr_of_int("num_outputs", b->n->nout);
    if (!equal && r->opset >= 13) in[nin++] = ints(r, n, sizes);
    if (!equal && r->opset < 13) {
        const int64_t *copy = copy_ints(r, n, sizes);
        if (copy == NULL) return false;
        attr[nattr++] = inv_attr_of_ints("split", n, copy);
    }
    return emit_all(r, "Split", b->n->nout, out, nin, in, nattr, attr);
}

/* Of operator sets that know no steps: what is stepped over is gathered. */
static bool slice_by_attributes(const raising *b, size_t n, const int64_t *axis)
{
    inv_raise *r = b->r;
    size_t count;
    const int64_t *starts = inv_attr_ints(b->n, "starts", &count), *steps = inv_attr_ints(b->n, "steps", &count);
    const int64_t *sizes = inv_attr_ints(b->n, "sizes", &count);
    const char *x = input(b, 0);
    for (size_t i = 0; i < n && x; i++) {
        const int64_t d = axis[i], end = starts[d] + sizes[d];
        const char *to = i + 1 == n ? output(b, 0) : inv_raise_fresh(r);
        if (steps[d] == 1) {
            x = emit_slice(r, to, x, d, starts[d], end);
            continue;
        }
        int64_t *at = INV_ARENA_NEW(r->a, int64_t, (size_t)sizes[d] + 1);
        if (!at) return false;
        for (int64_t k = 0; k < sizes[d]; k++) at[k] = starts[d] + k * steps[d];
        x = emit(r, to, "Gather", NAMES(x, ints(r, (size_t)sizes[d], at)), INV_ATTRS(inv_attr_of_int("axis", d)));
    }
    return x != NULL;
}

static bool slice(const raising *b)
{
    inv_raise *r = b->r;
    const inv_shape *s = shape_of(b, 0);
    int64_t from[INV_MAX_RANK], to[INV_MAX_RANK], axis[INV_MAX_RANK], by[INV_MAX_RANK];
    size_t count, n = 0;
    const int64_t *starts = inv_attr_ints(b->n, "starts", &count), *steps = inv_attr_ints(b->n, "steps", &count);
    const int64_t *sizes = inv_attr_ints(b->n, "sizes", &count);
    for (int i = 0; i < s->rank; i++) {
        if (starts[i] == 0 && sizes[i] == s->dim[i] && (steps[i] == 1 || sizes[i] <= 1)) continue;
        from[n] = starts[i];
        to[n] = starts[i] + sizes[i] * steps[i];
        if (to[n] < 0) to[n] = INT64_MIN; /* past the first element; -1 would be the last one */
        axis[n] = i;
        by[n++] = steps[i];
    }
    if (n == 0) return last1(b, "Identity", input(b, 0));
    if (r->opset < INPUTS_OF_SLICE) return slice_by_attributes(b, n, axis);
    const int64_t *const lists[4] = {from, to, axis, by};
    const char *in[5] = {input(b, 0)};
    for (int i = 0; i < 4; i++) in[1 + i] = ints(r, n, lists[i]);
    return emit(r, output(b, 0), "Slice", 5, in, INV_NOATTR) != NULL;
}

/* --- linear maps --- */

/* x = y - (y moved on by one along the axis, 0 in front). */
static bool cum_sum_inv(const raising *b)
{
    inv_raise *r = b->r;
    const inv_shape *s = shape_of(b, 0);
    const int64_t axis = inv_attr_int(b->n, "axis", 0), reverse = inv_attr_int(b->n, "reverse", 0) != 0;
    const int64_t from = reverse, to = s->dim[axis] - 1 + reverse;
    int64_t pads[INV_MAX_RANK * 2] = {0};
    pads[axis + (reverse ? s->rank : 0)] = 1;
    if (s->dim[axis] < 1) return last1(b, "Identity", input(b, 0));
    const char *y = input(b, 0), *rest = emit_slice(r, inv_raise_fresh(r), y, axis, from, to);
    return last2(b, "Sub", y, op2(r, "Pad", rest, ints(r, (size_t)s->rank * 2, pads)));
}

static const char *turned(inv_raise *r, const char *m, int rank)
{
    int64_t perm[INV_MAX_RANK];
    for (int i = 0; i < rank; i++) perm[i] = i < rank - 2 ? i : 2 * rank - 3 - i;
    const int64_t *copy = copy_ints(r, (size_t)rank, perm);
    if (copy == NULL) return NULL;
    return emit(r, inv_raise_fresh(r), "Transpose", NAMES(m), INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, copy)));
}

static bool matmul(const raising *b)
{
    const char *x = input(b, 0), *y = input(b, 1);
    if (b->n->nin > 2) return refuse(b->r, "a product with a sum");
    if (inv_attr_int(b->n, "transA", 0)) x = turned(b->r, x, shape_of(b, 0)->rank);
    if (inv_attr_int(b->n, "transB", 0)) y = turned(b->r, y, shape_of(b, 1)->rank);
    return last2(b, "MatMul", x, y);
}

/* x = y M+; if x M' = y, then x = y M+'. */
static bool linear_solve(const raising *b)
{
    const char *m = b->solver;
    if (b->r->by_operator) return plain(b);
    if (m == NULL) return refuse(b->r, "the inverse of the matrix is not known before the run");
    if (inv_attr_int(b->n, "transB", 0)) m = turned(b->r, m, 2);
    return last2(b, "MatMul", input(b, 0), m);
}

/* --- convolutions --- */

static const char *channels_last = "its channels are last; in files they are second";

static uint32_t onto(const raising *b)
{
    const uint32_t slot = b->n->op->onto;
    return slot < b->n->nin && b->n->in[slot] != INV_NONE ? slot : 0;
}

/* What the result by itself is called. */
static const char *summand(const raising *b) { return onto(b) ? inv_raise_fresh(b->r) : output(b, 0); }

/* `y`, by itself, added to what it goes onto. */
static bool added(const raising *b, const char *y)
{
    const char *op = inv_attr_int(b->n, "minus", 0) ? "Sub" : "Add";
    return y && (!onto(b) || last2(b, op, input(b, onto(b)), y));
}

static bool conv(const raising *b)
{
    static const char *const names[] = {"strides", "pads", "dilations", "group"};
    const char *in[3] = {input(b, 0), input(b, 1), NULL};
    const bool bias = b->n->nin > 2 && b->n->in[2] != INV_NONE;
    inv_attr attr[4];
    uint32_t nattr = 0;
    if (inv_attr_int(b->n, "channels_last", 0)) return refuse(b->r, channels_last);
    for (int i = 0; i < 4; i++) {
        const inv_attr *a = inv_attr_find(b->n, names[i]);
        if (a) attr[nattr++] = *a;
    }
    if (bias) in[2] = input(b, 2);
    return added(b, emit(b->r, summand(b), "Conv", bias ? 3 : 2, in, nattr, attr));
}

/* The pads at the end are those that give the extents of `shape`, which a stride over 1 leaves open. */
static bool conv_grad_x(const raising *b)
{
    inv_raise *r = b->r;
    const inv_shape *y = shape_of(b, 0), *f = shape_of(b, 1), *x = &inv_val(r->g, b->n->out[0])->shape;
    const int sd = f->rank - 2;
    int64_t s[INV_MAX_RANK], d[INV_MAX_RANK], pads[2 * INV_MAX_RANK] = {0}, more[INV_MAX_RANK] = {0};
    size_t ns, np, nd;
    const int64_t *strides = inv_attr_ints(b->n, "strides", &ns), *dilations = inv_attr_ints(b->n, "dilations", &nd);
    const int64_t *front = inv_attr_ints(b->n, "pads", &np);
    if (inv_attr_int(b->n, "channels_last", 0)) return refuse(r, channels_last);
    for (int i = 0; i < sd; i++) {
        s[i] = (size_t)i < ns ? strides[i] : 1;
        d[i] = (size_t)i < nd ? dilations[i] : 1;
        pads[i] = (size_t)i < np ? front[i] : 0;
        const int64_t end = s[i] * (y->dim[2 + i] - 1) + (f->dim[2 + i] - 1) * d[i] + 1 - pads[i] - x->dim[2 + i];
        pads[sd + i] = end > 0 ? end : 0;
        more[i] = end < 0 ? -end : 0;
    }
    const size_t n = (size_t)sd;
    const inv_attr attr[] = {inv_attr_of_ints("strides", n, copy_ints(r, n, s)),
                             inv_attr_of_ints("dilations", n, copy_ints(r, n, d)),
                             inv_attr_of_ints("pads", 2 * n, copy_ints(r, 2 * n, pads)),
                             inv_attr_of_int("group", inv_attr_int(b->n, "group", 1)),
                             inv_attr_of_ints("output_padding", n, copy_ints(r, n, more))};
    for (int i = 0; i < 5; i++)
        if (attr[i].kind == INV_ATTR_INTS && attr[i].ints == NULL) return false;
    return added(b, emit(r, summand(b), "ConvTranspose", NAMES(input(b, 0), input(b, 1)), 5, attr));
}

/* Of each group the transpose, as a filter. */
static bool filter_inverse(const raising *b)
{
    const inv_shape *s = shape_of(b, 0);
    if (b->r->by_operator) return plain(b);
    if (b->solver == NULL) return refuse(b->r, "the inverse of the filter is not known before the run");
    const char *m = turned(b->r, b->solver, inv_attr_int(b->n, "group", 1) > 1 ? 3 : 2);
    return last2(b, "Reshape", m, ints(b->r, (size_t)s->rank, s->dim));
}

/* --- batch normalisation --- */

/* x = (y - bias) (sqrt(var + epsilon) / scale) + mean; the factor is made while it is one number per channel. */
static bool batch_norm_inv(const raising *b)
{
    static const int64_t to[INV_MAX_RANK] = {-1, 1, 1, 1, 1, 1, 1, 1};
    inv_raise *r = b->r;
    const int rank = shape_of(b, 0)->rank;
    const char *bias = input(b, 2), *mean = input(b, 3);
    const char *std = op1(r, "Sqrt", op2(r, "Add", input(b, 4), real(r, inv_attr_float(b->n, "epsilon", 1e-5))));
    const char *factor = op2(r, "Div", std, input(b, 1));
    if (rank > 2) {
        const char *shape = ints(r, (size_t)rank - 1, to);
        bias = op2(r, "Reshape", bias, shape);
        factor = op2(r, "Reshape", factor, shape);
        mean = op2(r, "Reshape", mean, shape);
    }
    return last2(b, "Add", op2(r, "Mul", op2(r, "Sub", input(b, 0), bias), factor), mean);
}

/* Mean over all axes but 1. */
static const char *channel_mean(inv_raise *r, const char *x, int rank, bool keep, const char *out)
{
    int64_t axes[INV_MAX_RANK];
    size_t n = 0;
    for (int i = 0; i < rank; i++)
        if (i != 1) axes[n++] = i;
    const inv_attr keepdims = inv_attr_of_int("keepdims", keep);
    if (r->opset >= 18) return emit(r, out, "ReduceMean", NAMES(x, ints(r, n, axes)), 1, &keepdims);
    const int64_t *copy = copy_ints(r, n, axes);
    return copy == NULL ? NULL
                        : emit(r, out, "ReduceMean", NAMES(x), INV_ATTRS(keepdims, inv_attr_of_ints("axes", n, copy)));
}

static bool batch_stats(const raising *b)
{
    static const int64_t flat = -1;
    inv_raise *r = b->r;
    const int rank = shape_of(b, 0)->rank;
    const char *x = input(b, 0), *mean = channel_mean(r, x, rank, true, inv_raise_fresh(r));
    if (mean == NULL) return false;
    if (wanted(b, 0) && !last2(b, "Reshape", mean, ints(r, 1, &flat))) return false;
    if (!wanted(b, 1)) return true;
    const char *d = op2(r, "Sub", x, mean);
    return channel_mean(r, op2(r, "Mul", d, d), rank, false, output(b, 1)) != NULL;
}

/* --- the table --- */

/* Operators whose form depends on more than their operands and numbers: a formula in the row cannot say it. */
/* clang-format off */
static const struct {
    const char *op;
    bool (*raise)(const raising *b);
} forms[] = {{"View", view}, {"Permute", permute}, {"SplitSizes", split}, {"SliceRange", slice},
             {"LinearSolve", linear_solve}, {"FilterInverse", filter_inverse}, {"MatMulT", matmul},
             {"CumSumInverse", cum_sum_inv}, {"ConvN", conv}, {"ConvGradX", conv_grad_x},
             {"BatchNormInverse", batch_norm_inv}, {"BatchStats", batch_stats}};
/* clang-format on */

static bool (*form_of(const inv_op_def *op))(const raising *)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].op, op->name) == 0) return forms[i].raise;
    return NULL;
}

bool inv_raise_knows(const inv_op_def *op) { return op->onnx || form_of(op); }

uint32_t inv_raise_matrix(const inv_node *n)
{
    if (strcmp(n->op_type, "LinearSolve") == 0) return 1;
    return strcmp(n->op_type, "FilterInverse") == 0 ? 0 : INV_NONE;
}

bool inv_raise_node(inv_raise *r, const inv_node *n, const char *solver)
{
    const raising b = {.r = r, .n = n, .solver = solver};
    const char *onnx = n->op->onnx;
    const int since = onnx && !*n->op->domain && n->op->since > OLDEST_OPSET ? n->op->since : OLDEST_OPSET;
    bool (*raise)(const raising *) = form_of(n->op);
    r->reason = NULL;
    if (strncmp(n->op_type, "Batch", 5) == 0 && inv_attr_int(n, "axis", 1) != 1) return refuse(r, channels_last);
    if (!onnx && !raise) return refuse(r, inv__arena_printf(r->a, "%s has no form in ONNX", n->op_type));
    if (r->opset < since) return refuse(r, too_old(r, n->op_type, since));
    if (!onnx) return raise(&b);
    return *onnx ? inv_formula_raise(r, n, onnx, output(&b, 0)) : plain(&b);
}
