/* SPDX-License-Identifier: Apache-2.0
 * The loss, as nodes. Definitions: enum inv_loss in invonnx.h; every loss is a float64 scalar, but INV_LOSS_OUTPUT.
 * requires: canonical graph, plan->output.  gives: plan->loss, plan->correct, the target's Feed, or those of gradients.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/autodiff/autodiff.h"

static inv_id output_named(const inv_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->output.n; i++)
        if (strcmp(plan->output.at[i].name, name) == 0) return plan->output.at[i].value;
    return INV_NONE;
}

/* What the file calls it: nodes that only hand it on are gone. */
static const char *loss_output_name(const inv_graph *g, const inv_plan *plan, inv_id output)
{
    for (size_t i = 0; i < plan->output.n; i++)
        if (plan->output.at[i].value == output) return plan->output.at[i].name;
    return inv_val(g, output)->name;
}

/* Those that can be computed, and then the others, with what they are. */
static void list_outputs(const inv_graph *g, const inv_plan *plan, inv_str *text)
{
    for (size_t i = 0; i < plan->output.n; i++) {
        char shape[INV_SHAPE_TEXT];
        const inv_value *v = inv_val(g, plan->output.at[i].value);
        inv_str_add(text, "%s'%s' %s%s", i ? ", " : "", plan->output.at[i].name, inv_dtype_name(v->dtype),
                    inv_shape_text(&v->shape, shape));
    }
    for (size_t i = 0; i < plan->left.n; i++) {
        const inv_left_slot *left = &plan->left.at[i];
        inv_str_add(text, "%s'%s' (%s%s)", i + plan->output.n ? ", " : "", left->name,
                    left->type ? "carried along, not computed: " : "needs operators that are missing",
                    left->type ? left->type : "");
    }
}

static inv_status fail_outputs(inv_graph *g, const inv_plan *plan, const char *what, const char *name)
{
    inv_str text;
    inv_str_init(&text, g->ctx);
    list_outputs(g, plan, &text);
    inv_status s = inv_fail(g->ctx, INV_E_ARG, "%s%s; the model's outputs: %s", what, name, text.s);
    inv_str_fini(&text);
    return s;
}

/* The outputs that the loss is of. */
static inv_status loss_values(inv_graph *g, const inv_request *rq, const inv_plan *plan, inv_ids *out)
{
    const inv_session_options *o = rq->options;
    for (size_t i = 0; i < o->nloss_outputs; i++) {
        inv_id v = output_named(plan, o->loss_outputs[i]);
        if (v == INV_NONE) return fail_outputs(g, plan, "no output for the loss is called ", o->loss_outputs[i]);
        if (!inv_vec_push(&g->arena, out, v)) return INV_E_NOMEM;
    }
    if (out->n) return INV_OK;
    for (size_t i = 0; i < plan->output.n; i++) {
        inv_id v = plan->output.at[i].value;
        bool logdet = o->logdet && strcmp(o->logdet, plan->output.at[i].name) == 0;
        const inv_value *val = inv_val(g, v);
        if (inv_dtype_is_float(val->dtype) && !val->stated && !logdet && !val->state &&
            !inv_vec_push(&g->arena, out, v))
            return INV_E_NOMEM;
    }
    if (out->n == 0)
        return fail_outputs(g, plan,
                            "no floating-point output for the loss: if the graph computes one inside, make it an "
                            "output of the model",
                            "");
    if (out->n == 1 || o->loss == INV_LOSS_OUTSIDE) return INV_OK;
    const char *of = inv_option(g->ctx, "loss_outputs"), *logdet = inv_option(g->ctx, "logdet");
    char what[256] = "several floating-point outputs: name the one for the loss with ";
    if (o->loss == INV_LOSS_NLL && !o->logdet)
        (void)snprintf(what, sizeof what,
                       "several floating-point outputs: name the log-determinant with %s. If more than one is left, "
                       "name the output of the loss with ",
                       logdet);
    return fail_outputs(g, plan, what, of);
}

static inv_status list_loss_outputs(inv_graph *g, inv_plan *plan, const inv_ids *outputs)
{
    plan->loss_output.n = 0;
    for (size_t i = 0; i < outputs->n; i++)
        if (!inv_vec_push(&g->arena, &plan->loss_output, loss_output_name(g, plan, outputs->at[i]))) return INV_E_NOMEM;
    return INV_OK;
}

/* A Feed for the target, of the shape at hand; labels become int64, all else the real type. For planning alone it may
 * be missing: then it is of the usual kind, integer labels or values, and of the shape that the loss wants. */
static inv_status feed_target(inv_graph *g, const inv_request *rq, inv_plan *plan, const inv_shape *usual, bool labels,
                              inv_id *out)
{
    const inv_array *t = rq->options->target;
    if (!t && !rq->options->plan_only) return inv_fail(g->ctx, INV_E_ARG, "this loss needs a target ({target})");
    inv_shape shape = t ? inv_shape_of(t->rank, t->dims) : *usual;
    if (rq->batch > 0 && shape.rank > 0) shape.dim[0] = rq->batch;
    bool real = t ? inv_dtype_is_float(t->dtype) : !labels;
    *out = inv_graph_value(g, inv_graph_fresh(g, "target"), INV_ROLE_NODE, real ? g->real : INV_I64, &shape);
    if (*out == INV_NONE) return INV_E_NOMEM;
    return inv_bind_feed(g, plan, *out, true) == INV_NONE ? INV_E_NOMEM : INV_OK;
}

static bool same_but_ones(const inv_shape *a, const inv_shape *b)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < a->rank && a->dim[i] == 1) i++;
        while (j < b->rank && b->dim[j] == 1) j++;
        if (i == a->rank || j == b->rank) return i == a->rank && j == b->rank;
        if (a->dim[i++] != b->dim[j++]) return false;
    }
}

/* Where axes of one element alone are between a target and what is wanted: how it is brought into that shape. */
static void reshape_of(const inv_shape *is, const inv_shape *wanted, char *text, size_t size)
{
    if (wanted->rank == 0 || is->rank == 0 || is->dim[0] != wanted->dim[0] || !same_but_ones(is, wanted)) return;
    size_t n = (size_t)snprintf(text, size, "; in NumPy y.reshape(-1");
    for (int d = 1; d < wanted->rank && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, ", %lld", (long long)wanted->dim[d]);
    if (n < size) (void)snprintf(text + n, size - n, ") fits");
}

/* Where the rows of a target are along another axis of the output, that may be the batch. */
static void axis_of(inv_context *ctx, const inv_shape *is, const inv_shape *output, char *text, size_t size)
{
    const char *stacked = inv_option(ctx, "stacked");
    int axis = 1;
    if (is->rank < 1 || output->rank < 2 || is->dim[0] == output->dim[0]) return;
    while (axis < output->rank && output->dim[axis] != is->dim[0]) axis++;
    const size_t n = strlen(text);
    if (axis < output->rank)
        (void)snprintf(
            text + n, size - n,
            ". Axis %d of the output, not axis 0, may be the batch: add a Transpose after it, or use files of whole "
            "steps (%s)",
            axis, stacked);
}

static inv_status fail_target(inv_graph *g, const inv_plan *plan, inv_id output, inv_id target, const char *want,
                              const inv_shape *wanted)
{
    char a[INV_SHAPE_TEXT], b[INV_SHAPE_TEXT];
    const inv_value *o = inv_val(g, output), *t = inv_val(g, target);
    char remedy[INV_SHAPE_TEXT + 320] = "";
    reshape_of(&t->shape, wanted, remedy, sizeof remedy);
    axis_of(g->ctx, &t->shape, &o->shape, remedy, sizeof remedy);
    return inv_fail(g->ctx, INV_E_SHAPE, "target %s%s does not fit output '%s' %s%s: wanted %s%s",
                    inv_dtype_name(t->dtype), inv_shape_text(&t->shape, b), loss_output_name(g, plan, output),
                    inv_dtype_name(o->dtype), inv_shape_text(&o->shape, a), want, remedy);
}

static inv_status class_weights(inv_graph *g, const inv_request *rq, const inv_plan *plan, inv_id output,
                                int64_t classes, inv_id *out)
{
    const inv_session_options *o = rq->options;
    const inv_shape s = inv_shape_of(1, &classes);
    double *v;
    if (!o->nclass_weights) return INV_OK;
    if ((int64_t)o->nclass_weights != classes)
        return inv_fail(g->ctx, INV_E_SHAPE, "%zu class weights are given, output '%s' has %lld classes",
                        o->nclass_weights, loss_output_name(g, plan, output), (long long)classes);
    double sum = 0;
    for (size_t i = 0; i < o->nclass_weights; sum += o->class_weights[i++])
        INV_CHECK(isfinite(o->class_weights[i]) && o->class_weights[i] >= 0, g->ctx, INV_E_ARG,
                  "the weight of class %zu is %g: class weights are finite and not negative", i, o->class_weights[i]);
    INV_CHECK(sum > 0, g->ctx, INV_E_ARG, "all class weights are 0: nothing would be learned");
    if (!(v = INV_ARENA_NEW(&g->arena, double, o->nclass_weights))) return INV_E_NOMEM;
    if (!inv_convert(v, g->real, o->class_weights, INV_F64, o->nclass_weights)) return INV_E_INTERNAL;
    *out = inv_graph_const(g, g->real, &s, v);
    return g->failed;
}

static inv_shape without_axis(const inv_shape *x, int axis)
{
    inv_shape rows = *x;
    rows.rank = x->rank - 1;
    for (int d = axis; d < rows.rank; d++) rows.dim[d] = x->dim[d + 1];
    return rows;
}

/* Whether a target leaves this axis for classes: labels by being without it, soft targets by having the output's shape.
 * How many samples there are is not asked. */
static bool leaves_axis(const inv_shape *x, int axis, const inv_array *t)
{
    const inv_shape want = inv_dtype_is_float(t->dtype) ? *x : without_axis(x, axis);
    bool fits = t->rank == want.rank;
    for (int d = 1; d < want.rank && fits; d++) fits = t->dims[d] == want.dim[d];
    return fits;
}

static inv_status fail_axes(inv_graph *g, const inv_plan *plan, inv_id logits, const inv_array *t, int first,
                            int second)
{
    char a[INV_SHAPE_TEXT], b[INV_SHAPE_TEXT];
    const inv_value *o = inv_val(g, logits);
    const inv_shape shape = inv_shape_of(t->rank, t->dims);
    return inv_fail(g->ctx, INV_E_ARG,
                    "the class axis of output '%s' %s%s is unclear: with target %s%s it may be %d or %d. Name it "
                    "({class_axis}); for a language model's [batch, time, vocabulary] it is 2",
                    loss_output_name(g, plan, logits), inv_dtype_name(o->dtype), inv_shape_text(&o->shape, a),
                    inv_dtype_name(t->dtype), inv_shape_text(&shape, b), first, second);
}

/* Where it is not said: the one axis that the target leaves for classes, of more than one where there are such. If none
 * does, one by which messages tell what was wanted. */
static inv_status find_class_axis(inv_graph *g, const inv_request *rq, const inv_plan *plan, inv_id logits, int *axis)
{
    const inv_array *t = rq->options->target;
    const inv_shape x = inv_val(g, logits)->shape;
    char shape[INV_SHAPE_TEXT];
    int found = 0;
    *axis = 1;
    if (x.rank <= 2) return INV_OK;
    for (int d = 1; t && d < x.rank; d++) {
        if (!leaves_axis(&x, d, t)) continue;
        const bool more = x.dim[d] > 1 && found && x.dim[found] <= 1, less = x.dim[d] <= 1 && found;
        if (found && !more && !less) return fail_axes(g, plan, logits, t, found, d);
        if (!less) found = d;
    }
    for (int d = x.rank - 1; t && !found && d > 0; d--) { /* the first but for axes of one, as the message then says */
        const inv_shape is = inv_shape_of(t->rank, t->dims), want = without_axis(&x, d);
        if (same_but_ones(&is, &want)) *axis = d;
    }
    if (found) *axis = found;
    if (found <= 1 && t) return INV_OK;
    if (rq->batch) return INV_OK; /* said for the first plan */
    inv_log(g->ctx, "classes are along axis %d of output '%s' %s%s", *axis, loss_output_name(g, plan, logits),
            inv_shape_text(&x, shape),
            t ? ", the only one that the target leaves for them"
              : ", as long as no target and no class axis say otherwise");
    return INV_OK;
}

/* Whether axis `a` of x is axis `b` of y, of which one is a view of the other. */
static bool is_same_axis(const inv_shape *x, int64_t a, const inv_shape *y, int64_t b)
{
    int64_t before = 1, there = 1;
    for (int64_t d = 0; d < a; d++) before *= x->dim[d];
    for (int64_t d = 0; d < b; d++) there *= y->dim[d];
    return before == there && x->dim[a] == y->dim[b];
}

/* The output holds probabilities of the other loss of classes: likely that one is meant. */
static inv_status given_by_other(inv_graph *g, const inv_request *rq, const char *name, const char *op)
{
    const bool softmax = !strcmp(op, "Softmax");
    const char *loss = softmax ? "cross_entropy" : "bce", *wanted = softmax ? "bce" : "cross_entropy";
    const char *which = softmax ? "one class of several" : "any number of classes, each by itself";
    INV_CHECK(!rq->options->probabilities, g->ctx, INV_E_ARG,
              "{probabilities}: output '%s' comes from a %s, as probabilities of %s. Their loss is %s, not %s", name,
              op, which, loss, wanted);
    if (!rq->batch) /* said for the first plan */
        inv_log(g->ctx,
                "output '%s' comes from a %s, as probabilities of %s, but loss %s takes it as logits. Use %s with "
                "%s, the loss of the input of the %s",
                name, op, which, wanted, loss, inv_option(g->ctx, "probabilities"), op);
    return INV_OK;
}

/* Logits of an output that holds probabilities, as operator `op` gives them of what it reads, also where the output is
 * a view of what that gives; the output itself unless the caller says so. axis: of a Softmax; -1 of a Sigmoid. */
static inv_status find_logits(inv_graph *g, const inv_request *rq, const inv_plan *plan, const char *op, int axis,
                              inv_id output, inv_id *logits)
{
    const inv_shape shape = inv_val(g, output)->shape;
    inv_id v = output;
    while (inv_val(g, v)->def != INV_NONE && inv_op_is(inv_nod(g, inv_val(g, v)->def), "View"))
        v = inv_nod(g, inv_val(g, v)->def)->in[0];
    const inv_shape *s = &inv_val(g, v)->shape;
    const inv_node *n = inv_val(g, v)->def == INV_NONE ? NULL : inv_nod(g, inv_val(g, v)->def);
    const char *name = loss_output_name(g, plan, output);
    const int64_t written = n ? inv_attr_int(n, "axis", -1) : -1, along = written < 0 ? written + s->rank : written;
    const bool given = n && inv_op_is(n, op) && (axis < 0 || is_same_axis(s, along, &shape, axis));
    const char *other = axis < 0 ? "Softmax" : "Sigmoid"; /* what gives probabilities to the other loss */
    *logits = output;
    if (n && inv_op_is(n, other)) return given_by_other(g, rq, name, other);
    if (rq->options->probabilities) {
        INV_CHECK(given, g->ctx, INV_E_ARG,
                  "{probabilities}: output '%s' does not come from a %s%s, so there are no logits for the loss", name,
                  op, axis < 0 ? "" : " along the axis of the classes");
        const inv_attr as = inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim);
        *logits = v == output ? n->in[0] : inv_emit1(g, "View", INV_IN(n->in[0]), INV_ATTRS(as));
    } else if (given && !rq->batch) { /* said for the first plan */
        inv_log(g->ctx,
                "output '%s' comes from a %s, but the loss takes it as logits. With %s the loss takes the input of "
                "the %s",
                name, op, inv_option(g->ctx, "probabilities"), op);
    }
    return g->failed;
}

/* Neither labels nor soft targets; maybe what would be by another type. */
static inv_status fail_classes(inv_graph *g, const inv_plan *plan, inv_id output, inv_id target, const inv_shape *rows,
                               int axis)
{
    const inv_shape *x = &inv_val(g, output)->shape, *t = &inv_val(g, target)->shape;
    const bool labels = inv_val(g, target)->dtype == INV_I64;
    char one_hot[160] = "integer labels of the output's shape without the class axis";
    const size_t n = strlen(one_hot);
    if (inv_shape_equal(x, t))
        (void)snprintf(one_hot + n, sizeof one_hot - n,
                       "; from ones and zeros per class, y.argmax(%d) in NumPy makes labels, y.astype('f') soft "
                       "targets",
                       axis);
    return fail_target(g, plan, output, target,
                       labels ? one_hot
                       : inv_shape_equal(rows, t)
                           ? "soft targets of the output's shape, or integer labels; in NumPy y.astype(numpy.int64) "
                             "makes them"
                           : "soft targets of the output's shape",
                       labels ? rows : x);
}

static inv_status cross_entropy(inv_graph *g, const inv_request *rq, inv_plan *plan, inv_id output)
{
    const inv_shape x = inv_val(g, output)->shape;
    int axis = rq->options->class_axis;
    if (!axis) INV_TRY(find_class_axis(g, rq, plan, output, &axis));
    if (axis < 0) axis += x.rank;
    if (axis < 0 || axis >= x.rank)
        return inv_fail(g->ctx, INV_E_ARG, "{class_axis} %d: is outside of output '%s' of rank %d",
                        rq->options->class_axis, loss_output_name(g, plan, output), x.rank);
    inv_id logits, target;
    INV_TRY(find_logits(g, rq, plan, "Softmax", axis, output, &logits));
    const inv_shape rows = without_axis(&x, axis);
    INV_TRY(feed_target(g, rq, plan, &rows, true, &target));
    const inv_value *t = inv_val(g, target);
    bool labels = t->dtype == INV_I64;
    if (!inv_shape_equal(labels ? &rows : &x, &t->shape)) return fail_classes(g, plan, output, target, &rows, axis);
    inv_id weights = INV_NONE;
    INV_TRY(class_weights(g, rq, plan, output, x.dim[axis], &weights));
    plan->classes = x.dim[axis];
    plan->inner = 1;
    for (int d = axis + 1; d < x.rank; d++) plan->inner *= x.dim[d];
    const bool ignores = rq->options->ignores;
    INV_CHECK(!ignores || labels, g->ctx, INV_E_ARG,
              "{ignore_index} is about integer labels; the target for '%s' is of soft targets",
              loss_output_name(g, plan, output));
    inv_attr attr[3] = {inv_attr_of_int("axis", axis), inv_attr_of_int("ignore_index", rq->options->ignore_index)};
    uint32_t nattr = ignores ? 2 : 1;
    if (rq->options->label_smoothing > 0 && rq->purpose == INV_FOR_TRAIN)
        attr[nattr++] = inv_attr_of_float("smooth", rq->options->label_smoothing);
    plan->loss =
        inv_emit1(g, "CrossEntropyMean", weights == INV_NONE ? 2 : 3, (inv_id[]){logits, target, weights}, nattr, attr);
    if (g->failed) return g->failed;
    if (labels && (ignores || weights != INV_NONE)) plan->total = inv_node_want(g, inv_val(g, plan->loss)->def, 1);
    if (labels && rq->purpose == INV_FOR_EVAL)
        plan->correct = inv_emit1(g, "CorrectCount", INV_IN(logits, target), ignores ? 2 : 1, attr);
    return g->failed;
}

static inv_status elementwise_loss(inv_graph *g, const inv_request *rq, inv_plan *plan, inv_id output, const char *op)
{
    const double delta = rq->options->huber_delta;
    inv_id target, read = output;
    const inv_shape shape = inv_val(g, output)->shape;
    if (rq->options->loss == INV_LOSS_BCE) INV_TRY(find_logits(g, rq, plan, "Sigmoid", -1, output, &read));
    INV_TRY(feed_target(g, rq, plan, &shape, false, &target));
    if (inv_val(g, target)->dtype == INV_I64) inv_val(g, target)->dtype = g->real;
    if (!inv_shape_equal(&inv_val(g, target)->shape, &inv_val(g, output)->shape))
        return fail_target(g, plan, output, target, "the output's shape", &inv_val(g, output)->shape);
    inv_attr attr[2];
    uint32_t nattr = 0;
    if (rq->options->loss == INV_LOSS_HUBER) attr[nattr++] = inv_attr_of_float("delta", delta > 0 ? delta : 1);
    if (rq->options->ignores) attr[nattr++] = inv_attr_of_int("ignore_index", rq->options->ignore_index);
    plan->loss = inv_emit1(g, op, INV_IN(read, target), nattr, attr);
    if (!g->failed && rq->options->ignores) plan->total = inv_node_want(g, inv_val(g, plan->loss)->def, 1);
    return g->failed;
}

/* A log-determinant that is one number for all samples, as a number per sample of z. */
static inv_id for_each_sample(inv_graph *g, inv_id logdet, inv_id z)
{
    const inv_shape *s = &inv_val(g, z)->shape;
    const int64_t one = 1, batch = s->rank > 0 ? s->dim[0] : 1;
    if (batch == 1 || inv_shape_nelem(&inv_val(g, logdet)->shape) != 1) return logdet;
    const inv_id flat = inv_emit1(g, "View", INV_IN(logdet), INV_ATTRS(inv_attr_of_ints("shape", 1, &one)));
    return inv_emit1(g, "BroadcastTo", INV_IN(flat), INV_ATTRS(inv_attr_of_ints("shape", 1, &batch)));
}

static inv_status flow_nll(inv_graph *g, const inv_request *rq, inv_plan *plan, const inv_ids *z)
{
    inv_ids in = {0};
    inv_id logdet = INV_NONE;
    if (rq->options->logdet) {
        logdet = output_named(plan, rq->options->logdet);
        if (logdet == INV_NONE)
            return fail_outputs(g, plan, "no log-determinant output is called ", rq->options->logdet);
        logdet = for_each_sample(g, logdet, z->at[0]);
    }
    if (!inv_vec_push(&g->arena, &in, logdet)) return INV_E_NOMEM;
    for (size_t i = 0; i < z->n; i++)
        if (!inv_vec_push(&g->arena, &in, z->at[i])) return INV_E_NOMEM;
    plan->loss = inv_emit1(g, "NllMean", (uint32_t)in.n, in.at, INV_NOATTR);
    return g->failed;
}

/* A loss that the caller computes: training is fed with its gradients in the outputs, when backward begins. */
static inv_status feed_gradients(inv_graph *g, const inv_request *rq, inv_plan *plan, const inv_ids *outputs)
{
    if (rq->purpose != INV_FOR_TRAIN) return INV_OK;
    g->phase = INV_BACKWARD;
    for (size_t i = 0; i < outputs->n; i++) {
        const inv_value of = *inv_val(g, outputs->at[i]);
        const char *name = loss_output_name(g, plan, outputs->at[i]);
        INV_CHECK(inv_dtype_is_float(of.dtype), g->ctx, INV_E_ARG, "output '%s' is of type %s, which has no gradient",
                  name, inv_dtype_name(of.dtype));
        const inv_id d = inv_graph_value(g, inv_graph_fresh(g, "gradient"), INV_ROLE_NODE, of.dtype, &of.shape);
        if (d == INV_NONE || inv_bind_feed(g, plan, d, false) == INV_NONE) return INV_E_NOMEM;
        inv_feed_slot *slot = &plan->feed.at[plan->feed.n - 1];
        slot->name = name;
        slot->gradient_of = outputs->at[i];
    }
    g->phase = INV_FORWARD;
    return INV_OK;
}

inv_status inv_pass_loss(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    plan->loss = plan->correct = plan->total = INV_NONE;
    g->phase = INV_FORWARD;
    if (rq->options->loss == INV_LOSS_NONE) return INV_OK;
    inv_ids outputs = {0};
    INV_TRY(loss_values(g, rq, plan, &outputs));
    INV_TRY(list_loss_outputs(g, plan, &outputs));
    if (rq->options->loss == INV_LOSS_OUTSIDE) return feed_gradients(g, rq, plan, &outputs);
    if (rq->options->loss != INV_LOSS_NLL && outputs.n != 1)
        return inv_fail(g->ctx, INV_E_ARG, "this loss is of one output, %zu were named", outputs.n);
    switch (rq->options->loss) {
    case INV_LOSS_CROSS_ENTROPY: INV_TRY(cross_entropy(g, rq, plan, outputs.at[0])); break;
    case INV_LOSS_MSE: INV_TRY(elementwise_loss(g, rq, plan, outputs.at[0], "MseMean")); break;
    case INV_LOSS_BCE: INV_TRY(elementwise_loss(g, rq, plan, outputs.at[0], "BceMean")); break;
    case INV_LOSS_HUBER: INV_TRY(elementwise_loss(g, rq, plan, outputs.at[0], "HuberMean")); break;
    case INV_LOSS_NLL: INV_TRY(flow_nll(g, rq, plan, &outputs)); break;
    case INV_LOSS_OUTPUT:
        if (inv_shape_nelem(&inv_val(g, outputs.at[0])->shape) != 1)
            return fail_outputs(g, plan,
                                "loss 'output' wants an output of one element: ", inv_val(g, outputs.at[0])->name);
        plan->loss = outputs.at[0];
        INV_TRY(inv_inner_loss(g, rq, plan, loss_output_name(g, plan, plan->loss)));
        break;
    case INV_LOSS_OUTSIDE:
    case INV_LOSS_NONE:
    default: return inv_fail(g->ctx, INV_E_ARG, "{loss} is %d: there is no such loss", (int)rq->options->loss);
    }
    inv_val(g, plan->loss)->keep = true;
    if (plan->correct != INV_NONE) inv_val(g, plan->correct)->keep = true;
    if (plan->total != INV_NONE) inv_val(g, plan->total)->keep = true;
    return INV_OK;
}
