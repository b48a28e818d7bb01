/* SPDX-License-Identifier: Apache-2.0
 * Emitting operators: a node, its output values, their types, and the fold of what is known already. */
#include <stdio.h>
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/node.h"

#define OWN_DOMAIN "ai.invonnx.ir"
#define FOLD_NBYTES_MAX ((size_t)16 << 20) /* larger results are cheaper to compute in the step than to keep */
#define LISTED_INPUTS 8u

/* --- errors about a node --- */

/* "float[2,3]" appended. */
static void append_type(inv_str *b, inv_dtype t, const inv_shape *s)
{
    char text[INV_SHAPE_TEXT];
    inv_str_add(b, "%s%s", inv_dtype_name(t), inv_shape_text(s, text));
}

static void describe_node(inv_str *b, const inv_graph *g, const inv_node *n)
{
    const char *domain = n->origin_type ? "" : n->domain;
    inv_str_add(b, "node '%s' (%s%s%s)", inv_node_called(g, n), domain, *domain ? "." : "", inv_node_kind(n));
    for (uint32_t i = 0; i < n->nin && i < LISTED_INPUTS; i++) {
        inv_str_add(b, "%s", i ? ", " : ", inputs ");
        if (n->in[i] < g->value.n) append_type(b, inv_val(g, n->in[i])->dtype, &inv_val(g, n->in[i])->shape);
        else inv_str_add(b, "none");
    }
    if (n->nin > LISTED_INPUTS) inv_str_add(b, ", ... (%u in all)", (unsigned)n->nin);
    inv_str_add(b, ": ");
}

inv_status inv_node_fail(const inv_graph *g, const inv_node *n, inv_status code, const char *fmt, ...)
{
    inv_str b;
    va_list ap;
    inv_str_init(&b, g->ctx);
    describe_node(&b, g, n);
    va_start(ap, fmt);
    inv_str_addv(&b, fmt, ap);
    va_end(ap);
    /* A failed text has recorded the want of memory; the code still says what went wrong. */
    if (!b.failed) (void)inv_fail(g->ctx, code, "%s", b.s);
    inv_str_fini(&b);
    return code;
}

void inv_note_shapes(const inv_graph *g, int check, const inv_shape *got, const inv_shape *wanted, bool repeats)
{
    for (int i = 1; i <= got->rank && i <= wanted->rank; i++) {
        const int64_t a = got->dim[got->rank - i], b = wanted->dim[wanted->rank - i];
        if (a == b || (repeats && (a == 1 || b == 1))) continue;
        inv_note_misfit(g, check + i - 1, a, b);
        return;
    }
}

/* Extents that are known, of more elements than memory can hold. */
static inv_status check_sizes(const inv_graph *g, const inv_node *n)
{
    for (uint32_t i = 0; i < n->nout; i++) {
        size_t nbytes;
        if (n->out[i] == INV_NONE) continue;
        const inv_value *v = inv_val(g, n->out[i]);
        bool given = v->shape.rank >= 0 && inv_dtype_size(v->dtype) > 0;
        for (int k = 0; k < v->shape.rank; k++) given = given && v->shape.dim[k] >= 0;
        if (given && !inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
            return inv_node_fail(g, n, INV_E_SHAPE, "its output %u is larger than memory can be", i);
    }
    return INV_OK;
}

/* The inputs that the row requires are given, and the shapes of all given ones are known. */
static inv_status check_operands(const inv_graph *g, const inv_node *n)
{
    bool optional, variadic;
    for (uint32_t i = 0; inv_op_slot(n->op->in, i, &optional, &variadic); i++) {
        if ((!optional || (variadic && i < n->nin)) && (i >= n->nin || n->in[i] == INV_NONE))
            return inv_node_fail(g, n, INV_E_GRAPH, "input %u is required but missing", i);
        if (variadic && i + 1 >= n->nin) break;
    }
    for (uint32_t i = 0; i < n->nin; i++)
        if (n->in[i] != INV_NONE && !inv_shape_is_static(&inv_val(g, n->in[i])->shape))
            return inv_node_fail(g, n, INV_E_SHAPE, "the shape of input %u is not known; give input shapes", i);
    return INV_OK;
}

inv_status inv_node_infer(inv_graph *g, inv_id node)
{
    inv_node *n = inv_nod(g, node);
    if (!n->op)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "operator not known at opset %lld of domain '%s'",
                             (long long)inv_graph_opset(g, n->domain), n->domain);
    INV_TRY(check_operands(g, n));
    if (n->op->infer) INV_TRY(n->op->infer(g, n));
    return g->failed ? g->failed : check_sizes(g, inv_nod(g, node));
}

/* --- folding --- */

bool inv_node_foldable(const inv_graph *g, const inv_node *n)
{
    const inv_op_def *op = n->op;
    const uint32_t never = INV_OP_RANDOM | INV_OP_SOURCE | INV_OP_STEP | INV_OP_UNPACKS;
    if (!g->fold || op->writes || op->flags & never) return false;
    if (!op->run && !(op->flags & INV_OP_VIEW)) return false;
    for (uint32_t i = 0; i < n->nin; i++)
        if (n->in[i] != INV_NONE && !inv_const_known(g, n->in[i])) return false;
    size_t total = 0;
    for (uint32_t i = 0; i < n->nout; i++) {
        size_t nbytes;
        if (n->out[i] == INV_NONE) continue;
        const inv_value *v = inv_val(g, n->out[i]);
        if (inv_dtype_size(v->dtype) == 0 || !inv_shape_nbytes(&v->shape, v->dtype, &nbytes)) return false;
        if (!inv_add_size(total, nbytes, &total) || total > FOLD_NBYTES_MAX) return false;
    }
    return n->nout > 0;
}

/* 64-byte aligned, as kernels may expect of arena memory. */
static void *aligned(inv_arena *a, size_t nbytes)
{
    size_t padded;
    if (!inv_add_size(nbytes, 64, &padded)) return NULL;
    char *p = inv_arena_alloc(a, padded);
    if (!p) return NULL;
    size_t past = (uintptr_t)p % 64;
    return p + (past ? 64 - past : 0);
}

/* Data as a kernel wants it: aligned, and of the value's type (float64 mode keeps the file's float32). */
static inv_status fold_input(inv_graph *g, inv_arena *scratch, const inv_node *n, uint32_t i, inv_tensor *t)
{
    if (n->in[i] == INV_NONE) return INV_OK;
    const inv_value *v = inv_val(g, n->in[i]);
    size_t nbytes, have;
    int64_t nelem = inv_shape_nelem(&v->shape);
    *t = (inv_tensor){.dtype = v->dtype, .shape = v->shape, .n = nelem};
    if (!inv_shape_nbytes(&v->shape, v->dtype, &nbytes) || !inv_shape_nbytes(&v->shape, v->data.dtype, &have) ||
        have > v->data.nbytes)
        return inv_node_fail(g, n, INV_E_INTERNAL, "data of constant '%s' does not fit its shape", v->name);
    union {
        const void *from;
        void *to;
    } borrowed = {v->data.bytes}; /* kernels do not write to inputs; `writes` rows are not folded */
    bool as_is = v->dtype == v->data.dtype && (uintptr_t)v->data.bytes % 16 == 0;
    t->data = as_is ? borrowed.to : aligned(scratch, nbytes);
    if (!t->data) return INV_E_NOMEM;
    if (!as_is && !inv_convert(t->data, v->dtype, v->data.bytes, v->data.dtype, (size_t)nelem))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "constant '%s' cannot be read as %s", v->name,
                             inv_dtype_name(v->dtype));
    return INV_OK;
}

static inv_status fold_run(inv_graph *g, inv_arena *scratch, inv_node *n, const inv_tensor *in, inv_tensor *out)
{
    const inv_op_def *op = n->op;
    if (op->flags & INV_OP_VIEW) {
        size_t nbytes;
        if (n->nin == 0 || !in[0].data || !out[0].data || in[0].n != out[0].n || in[0].dtype != out[0].dtype)
            return inv_node_fail(g, n, INV_E_INTERNAL, "a view of another size or type");
        if (inv_shape_nbytes(&out[0].shape, out[0].dtype, &nbytes)) memcpy(out[0].data, in[0].data, nbytes);
        return INV_OK;
    }
    inv_call call = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout};
    if (op->workspace) call.ws_nbytes = op->workspace(g, n);
    if (call.ws_nbytes && !(call.ws = aligned(scratch, call.ws_nbytes))) return INV_E_NOMEM;
    return op->run(&call);
}

/* Computes the outputs and turns them into constants. *done false: the kernel does not take these types; the
 * node stays. */
static inv_status fold(inv_graph *g, inv_arena *scratch, inv_node *n, bool *done)
{
    inv_tensor *in = INV_ARENA_NEW(scratch, inv_tensor, n->nin), *out = INV_ARENA_NEW(scratch, inv_tensor, n->nout);
    *done = false;
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t i = 0; i < n->nin; i++) INV_TRY(fold_input(g, scratch, n, i, &in[i]));
    for (uint32_t i = 0; i < n->nout; i++) {
        if (n->out[i] == INV_NONE) continue;
        const inv_value *v = inv_val(g, n->out[i]);
        size_t nbytes;
        if (!inv_shape_nbytes(&v->shape, v->dtype, &nbytes)) return INV_E_INTERNAL;
        out[i] = (inv_tensor){aligned(&g->arena, nbytes), v->dtype, v->shape, inv_shape_nelem(&v->shape)};
        if (!out[i].data) return INV_E_NOMEM;
    }
    inv_status s = fold_run(g, scratch, n, in, out);
    if (s == INV_E_UNSUPPORTED_TYPE || s == INV_E_UNSUPPORTED_OP) return INV_OK;
    if (s == INV_E_NOMEM || s == INV_E_INTERNAL) return s;
    if (s != INV_OK)
        return inv_node_fail(g, n, s, "its inputs are constants, but it cannot be computed: %s", inv_status_text(s));
    for (uint32_t i = 0; i < n->nout; i++) {
        if (n->out[i] == INV_NONE) continue;
        inv_value *v = inv_val(g, n->out[i]);
        size_t nbytes;
        (void)inv_shape_nbytes(&v->shape, v->dtype, &nbytes);
        v->role = INV_ROLE_CONST;
        v->mem = INV_MEM_PARAM;
        v->def = INV_NONE;
        v->data = (inv_data){v->dtype, v->shape, out[i].data, nbytes};
    }
    *done = true;
    return INV_OK;
}

/* --- emitting --- */

static inv_status check_inputs(inv_graph *g, const inv_op_def *op, uint32_t nin, const inv_id *in)
{
    bool optional, variadic;
    for (uint32_t i = 0; i < nin; i++)
        INV_CHECK(in[i] == INV_NONE || in[i] < g->value.n, g->ctx, INV_E_INTERNAL, "input %u of %s: no value %u",
                  (unsigned)i, op->name, (unsigned)in[i]);
    for (uint32_t i = 0;; i++) {
        bool slot = inv_op_slot(op->in, i, &optional, &variadic);
        INV_CHECK(slot || i >= nin, g->ctx, INV_E_INTERNAL, "%s takes only %u inputs, %u are given", op->name,
                  (unsigned)i, (unsigned)nin);
        if (!slot) return INV_OK;
        bool given = i < nin && in[i] != INV_NONE;
        INV_CHECK(given || (optional && !(variadic && i < nin)), g->ctx, INV_E_INTERNAL, "%s lacks its input %u",
                  op->name, (unsigned)i);
        if (variadic && i + 1 >= nin) return INV_OK;
    }
}

static bool make_outputs(inv_graph *g, const char *stem, uint32_t nout, inv_id *out)
{
    for (uint32_t i = 0; i < nout; i++) {
        const char *name = inv_graph_fresh(g, stem);
        out[i] = name ? inv_graph_value(g, name, INV_ROLE_NODE, INV_DT_NONE, NULL) : INV_NONE;
        if (out[i] == INV_NONE) return false;
    }
    return true;
}

/* inv_graph_node, but of this very row. */
static inv_id emit_node(inv_graph *g, const inv_op_def *op, uint32_t nout, uint32_t nin, const inv_id *in,
                        uint32_t nattr, const inv_attr *attr)
{
    inv_id *out = INV_ARENA_NEW(&g->arena, inv_id, nout);
    if (!out) {
        inv_graph_fail(g, INV_E_NOMEM);
        return INV_NONE;
    }
    if (!make_outputs(g, g->emit_norigin ? g->emit_origin[0] : op->name, nout, out)) return INV_NONE;
    inv_id id = inv_graph_node(g, op->domain, op->name, NULL, nin, in, nout, out, nattr, attr);
    if (id != INV_NONE) inv_nod(g, id)->op = op;
    return id;
}

static const inv_op_def *row_named(inv_graph *g, const char *name)
{
    const inv_op_def *op = inv_registry_op(g->ctx->registry, OWN_DOMAIN, name, 0);
    if (!op) op = inv_registry_op(g->ctx->registry, "", name, 0);
    if (!op) inv_graph_fail(g, inv_fail(g->ctx, INV_E_UNSUPPORTED_OP, "operator %s is not registered", name));
    return op;
}

static inv_status emit(inv_graph *g, const inv_op_def *op, uint32_t nout, uint32_t nin, const inv_id *in,
                       uint32_t nattr, const inv_attr *attr, inv_id *id)
{
    INV_TRY(check_inputs(g, op, nin, in));
    *id = emit_node(g, op, nout, nin, in, nattr, attr);
    if (*id == INV_NONE) return g->failed;
    INV_TRY(inv_node_infer(g, *id));
    if (inv_node_foldable(g, inv_nod(g, *id))) {
        inv_arena scratch;
        bool done;
        inv_arena_init(&scratch, g->ctx);
        inv_status s = fold(g, &scratch, inv_nod(g, *id), &done);
        inv_arena_fini(&scratch);
        if (s != INV_OK || done) return s;
    }
    return inv_vec_push(&g->arena, &g->order, *id) ? INV_OK : INV_E_NOMEM;
}

inv_id inv_emit(inv_graph *g, const char *op, uint32_t nout, uint32_t nin, const inv_id *in, uint32_t nattr,
                const inv_attr *attr)
{
    if (g->failed) return INV_NONE;
    inv_id id = INV_NONE;
    const inv_op_def *row = row_named(g, op);
    if (!row) return INV_NONE;
    inv_status s = emit(g, row, nout, nin, in, nattr, attr, &id);
    if (s == INV_OK) return id;
    inv_graph_fail(g, s);
    return INV_NONE;
}

inv_id inv_emit_op(inv_graph *g, const inv_op_def *op, uint32_t nout, uint32_t nin, const inv_id *in, uint32_t nattr,
                   const inv_attr *attr, inv_id *out)
{
    inv_id id = INV_NONE;
    inv_status s = g->failed ? g->failed : emit(g, op, nout, nin, in, nattr, attr, &id);
    if (s != INV_OK) {
        inv_graph_fail(g, s);
        return INV_NONE;
    }
    for (uint32_t i = 0; i < nout; i++) out[i] = inv_nod(g, id)->out[i];
    return id;
}

inv_id inv_emit1(inv_graph *g, const char *op, uint32_t nin, const inv_id *in, uint32_t nattr, const inv_attr *attr)
{
    inv_id id = inv_emit(g, op, 1, nin, in, nattr, attr);
    return id == INV_NONE ? INV_NONE : inv_nod(g, id)->out[0];
}

inv_id inv_node_want(inv_graph *g, inv_id node, uint32_t i)
{
    if (g->failed) return INV_NONE;
    const inv_node n = *inv_nod(g, node);
    if (i < n.nout && n.out[i] != INV_NONE) return n.out[i];
    const uint32_t nout = i < n.nout ? n.nout : i + 1;
    inv_id *out = INV_ARENA_NEW(&g->arena, inv_id, nout);
    const char *name = inv_graph_fresh(g, n.norigin ? n.origin[0] : n.op_type);
    inv_id v = name ? inv_graph_value(g, name, INV_ROLE_NODE, INV_DT_NONE, NULL) : INV_NONE;
    if (!out || v == INV_NONE) {
        inv_graph_fail(g, INV_E_NOMEM);
        return INV_NONE;
    }
    for (uint32_t k = 0; k < nout; k++) out[k] = k < n.nout ? n.out[k] : INV_NONE;
    out[i] = v;
    inv_val(g, v)->def = node;
    inv_nod(g, node)->out = out;
    inv_nod(g, node)->nout = nout;
    const inv_status s = inv_node_infer(g, node);
    if (s == INV_OK) return v;
    inv_graph_fail(g, s);
    return INV_NONE;
}
