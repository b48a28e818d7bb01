/* SPDX-License-Identifier: Apache-2.0
 * Canonical operators written as ONNX nodes. Every operator that a rule's `solve` names has such a form; every form
 * computes what the operator's kernel does on the operator's own cases, for all opsets that it is written for; no
 * extent of the batch is in it. */
#include "interp.h"
#include "passes/export/formula.h"
#include "passes/export/raise.h"
#include "with_context.h"

static const int64_t opsets[] = {7, 8, 9, 10, 11, 13, 18, 24};

/* --- what is raised, as text: "y = Op<k = 1>(x); ..." --- */

static void add_numbers(inv_str *s, const inv_data *t)
{
    char text[INV_DOUBLE_TEXT];
    inv_str_add(s, "[");
    for (int64_t i = 0; i < inv_shape_nelem(&t->shape); i++) {
        inv_str_add(s, "%s", i ? "," : "");
        if (inv_dtype_is_float(t->dtype))
            inv_str_add(s, "%s", inv_double_text(inv_elem_double(t->bytes, t->dtype, (size_t)i), text));
        else inv_str_add(s, "%lld", (long long)inv_elem_int(t->bytes, t->dtype, (size_t)i));
    }
    inv_str_add(s, "]");
}

static void add_attr(inv_str *s, const inv_attr *a)
{
    char text[INV_DOUBLE_TEXT];
    const int64_t n = (int64_t)a->n;
    const inv_data list = {INV_I64, inv_shape_of(1, &n), a->ints, a->n * sizeof n};
    if (a->kind != INV_ATTR_TENSOR) inv_str_add(s, "%s = ", a->name);
    if (a->kind == INV_ATTR_INT) inv_str_add(s, "%lld", (long long)a->i);
    if (a->kind == INV_ATTR_FLOAT) inv_str_add(s, "%s", inv_double_text(a->f, text));
    if (a->kind == INV_ATTR_INTS) add_numbers(s, &list);
    if (a->kind == INV_ATTR_TENSOR) {
        inv_str_add(s, "%s", inv_dtype_name(a->tensor.dtype));
        add_numbers(s, &a->tensor);
    }
}

static void add_node(inv_str *s, const inv_outline_node *n)
{
    if (s->n) inv_str_add(s, "; ");
    for (uint32_t i = 0; i < n->nout; i++) inv_str_add(s, "%s%s", i ? ", " : "", n->out[i]);
    inv_str_add(s, " = %s", n->op_type);
    for (uint32_t i = 0; i < n->nattr; i++) {
        inv_str_add(s, i ? ", " : "<");
        add_attr(s, &n->attr[i]);
    }
    inv_str_add(s, "%s(", n->nattr ? ">" : "");
    for (uint32_t i = 0; i < n->nin; i++) inv_str_add(s, "%s%s", i ? ", " : "", n->in[i]);
    inv_str_add(s, ")");
}

/* --- raising whole graphs --- */

static const char **names_of(inv_arena *a, const inv_graph *g)
{
    const char **name = INV_ARENA_NEW(a, const char *, g->value.n + 1);
    assert_non_null(name);
    for (size_t i = 0; i < g->value.n; i++) name[i] = g->value.at[i].name;
    return name;
}

static inv_graph *canonical(const char *text, int written_for, inv_dtype real)
{
    inv_graph *g = NULL;
    if (inv_case_parse(ctx, text, written_for, real, &g) != INV_OK || inv_pass_lower(g) != INV_OK)
        fail_msg("%s: %s", text, inv_context_message(ctx));
    return g;
}

/* What the one node of the text is raised to, or "refused: REASON". */
static void expect(const char *text, int64_t opset, inv_dtype real, const char *want)
{
    inv_graph *g = canonical(text, 0, real);
    inv_arena a;
    inv_str s;
    inv_outline_nodes nodes = {0};
    inv_arena_init(&a, ctx);
    inv_str_init(&s, ctx);
    const char **name = names_of(&a, g);
    inv_onnx_body r = {.g = g, .a = &a, .opset = opset, .real = real, .name = name, .node = &nodes};
    const inv_node *n = inv_nod(g, g->order.at[g->order.n - 1]);
    for (uint32_t i = 0; i < n->nout; i++)
        if (strcmp(name[n->out[i]], "unwanted") == 0) name[n->out[i]] = NULL;
    bool ok = inv_raise_node(&r, n, strstr(text, "solver") ? "solver" : NULL);
    for (size_t i = 0; i < nodes.n && ok; i++) add_node(&s, &nodes.at[i]);
    if (!ok) inv_str_add(&s, "refused: %s", r.reason ? r.reason : "(no reason)");
    assert_string_equal(s.s, want);
    inv_str_fini(&s);
    inv_arena_fini(&a);
    inv_graph_destroy(g);
}

static void test_forms(void **state)
{
    (void)state;
    /* by the slope itself, which is a float32 number also in float64 */
    expect("x = LeakyReluInverse<alpha = 0.25>(float[3] y)", 17, INV_F64,
           "_v0 = Constant<double[0]>(); _v1 = Less(y, _v0); _v2 = Constant<double[0.25]>(); _v3 = Div(y, _v2); "
           "x = Where(_v1, _v3, y)");
    expect("x = PReluInverse(float[2,3] y, float[3] s)", 17, INV_F32, "_v0 = Reciprocal(s); x = PRelu(y, _v0)");
    expect("x = TanhInverse(float[3] y)", 17, INV_F32, "x = Atanh(y)");
    expect("y = Mish(float[3] x)", 17, INV_F32, "_v0 = Softplus(x); _v1 = Tanh(_v0); y = Mul(x, _v1)");
    expect("y = Elu<alpha = 0.5>(float[3] x)", 17, INV_F32, "y = Elu<alpha = 0.5>(x)");
    /* of operator sets that have no Where, no Atanh, no inputs of Slice, no steps */
    expect("x = LeakyReluInverse<alpha = 0.25>(float[3] y)", 8, INV_F32,
           "_v0 = Relu(y); _v1 = Sub(y, _v0); _v2 = Constant<float[0.25]>(); _v3 = Div(_v1, _v2); x = Add(_v0, _v3)");
    expect("x = TanhInverse(float[3] y)", 8, INV_F32,
           "_v0 = Cast<to = 11>(y); _v1 = Constant<double[1]>(); _v2 = Add(_v1, _v0); _v3 = Sub(_v1, _v0); "
           "_v4 = Div(_v2, _v3); _v5 = Log(_v4); _v6 = Cast<to = 1>(_v5); _v7 = Constant<float[0.5]>(); "
           "x = Mul(_v6, _v7)");
    expect("y = SliceRange<starts = [0,1], steps = [1,1], sizes = [4,3]>(float[4,8] x)", 9, INV_F32,
           "y = Slice<axes = [1], ends = [4], starts = [1]>(x)");
    expect("y = SliceRange<starts = [1,7], steps = [1,-2], sizes = [3,4]>(float[4,8] x)", 9, INV_F32,
           "_v0 = Slice<axes = [0], ends = [4], starts = [1]>(x); _v1 = Constant<int64[7,5,3,1]>(); "
           "y = Gather<axis = 1>(_v0, _v1)");
    /* constants are of the model's type */
    expect("x = SoftsignInverse(float[3] y)", 17, INV_F64,
           "_v0 = Abs(y); _v1 = Constant<double[1]>(); _v2 = Sub(_v1, _v0); x = Div(y, _v2)");
    /* the solver is that of the matrix as it is */
    expect("x = LinearSolve(float[6,4] solver, float[4,4] W)", 17, INV_F32, "x = MatMul(solver, solver)");
    expect("x = LinearSolve<transB = 1>(float[6,4] solver, float[4,4] W)", 17, INV_F32,
           "_v0 = Transpose<perm = [1,0]>(solver); x = MatMul(solver, _v0)");
    expect("P = FilterInverse(float[4,1,2,2] solver)", 17, INV_F32,
           "_v0 = Transpose<perm = [1,0]>(solver); _v1 = Constant<int64[4,1,2,2]>(); P = Reshape(_v0, _v1)");
    expect("P = FilterInverse<group = 2>(float[4,2,1] solver)", 17, INV_F32,
           "_v0 = Transpose<perm = [0,2,1]>(solver); _v1 = Constant<int64[4,2,1]>(); P = Reshape(_v0, _v1)");
    /* the last window reaches one place over the end, by two pads, or does not reach it */
    expect("x = ConvGradX<strides = [2], pads = [0,2], shape = [1,2,5]>(float[1,4,3] y, float[4,2,2] w)", 17, INV_F32,
           "x = ConvTranspose<strides = [2], dilations = [1], pads = [0,1], group = 1, output_padding = [0]>(y, w)");
    expect("x = ConvGradX<strides = [2], shape = [1,2,7]>(float[1,4,3] y, float[4,2,2] w)", 17, INV_F32,
           "x = ConvTranspose<strides = [2], dilations = [1], pads = [0,0], group = 1, output_padding = [1]>(y, w)");
    /* axes and sizes as attributes or inputs */
    expect("mean, unwanted = BatchStats(float[4,3] x)", 17, INV_F32,
           "_v0 = ReduceMean<keepdims = 1, axes = [0]>(x); _v1 = Constant<int64[-1]>(); mean = Reshape(_v0, _v1)");
    expect("mean, unwanted = BatchStats(float[4,3] x)", 18, INV_F32,
           "_v1 = Constant<int64[0]>(); _v0 = ReduceMean<keepdims = 1>(x, _v1); _v2 = Constant<int64[-1]>(); "
           "mean = Reshape(_v0, _v2)");
    expect("a, b = SplitSizes<axis = 1, sizes = [1,3]>(float[2,4] x)", 11, INV_F32,
           "a, b = Split<axis = 1, split = [1,3]>(x)");
    expect("a, unwanted = SplitSizes<axis = 1, sizes = [1,3]>(float[2,4] x)", 13, INV_F32,
           "_v1 = Constant<int64[1,3]>(); a, _v0 = Split<axis = 1>(x, _v1)");
    expect("a, b = SplitSizes<axis = 0, sizes = [2,2]>(float[4,2] x)", 13, INV_F32, "a, b = Split<axis = 0>(x)");
    expect("a, b = SplitSizes<axis = 0, sizes = [2,2]>(float[4,2] x)", 18, INV_F32,
           "a, b = Split<axis = 0, num_outputs = 2>(x)");
}

static void test_batch(void **state)
{
    (void)state;
#define RESHAPE(dims) "_v0 = Constant<int64[" dims "]>(); y = Reshape(x, _v0)"
    expect("y = View<shape = [4,2,3]>(float[4,6] x)", 17, INV_F32, RESHAPE("0,-1,3"));
    expect("y = View<shape = [4,6]>(float[4,2,3] x)", 17, INV_F32, RESHAPE("0,-1"));
    expect("y = View<shape = [24]>(float[4,2,3] x)", 17, INV_F32, RESHAPE("-1"));
    expect("y = View<shape = [2,2,6]>(float[4,6] x)", 17, INV_F32, RESHAPE("-1,2,6"));
    expect("y = View<shape = [5,4,2,3]>(float[5,4,6] x)", 17, INV_F32, RESHAPE("0,0,-1,3")); /* batch on axis 1 */
    expect("y = View<shape = [3,4,2]>(float[3,8] x)", 17, INV_F32, RESHAPE("0,-1,2"));       /* was split from axis 1 */
    expect("y = View<shape = [4,6,1]>(float[4,6] x)", 17, INV_F32, RESHAPE("0,0,-1"));
    expect("y = View<shape = [0,6]>(float[0,2,3] x)", 17, INV_F32, "refused: an extent of 0 makes the shape ambiguous");
#undef RESHAPE
    expect("y = SliceRange<starts = [0,0], steps = [1,1], sizes = [4,6]>(float[4,6] x)", 17, INV_F32,
           "y = Identity(x)");
#define SLICE(from, to, axes, by)                                                                    \
    "_v0 = Constant<int64[" from "]>(); _v1 = Constant<int64[" to "]>(); _v2 = Constant<int64[" axes \
    "]>(); _v3 = Constant<int64[" by "]>(); y = Slice(x, _v0, _v1, _v2, _v3)"
    expect("y = SliceRange<starts = [0,1], steps = [1,2], sizes = [4,3]>(float[4,8] x)", 17, INV_F32,
           SLICE("1", "7", "1", "2"));
    expect("y = SliceRange<starts = [0,7], steps = [1,-1], sizes = [4,8]>(float[4,8] x)", 17, INV_F32,
           SLICE("7", "-9223372036854775808", "1", "-1"));
#undef SLICE
}

static void test_refusals(void **state)
{
    (void)state;
    expect("x = LinearSolve(float[6,4] y, float[4,4] W)", 17, INV_F32,
           "refused: the inverse of the matrix is not known before the run");
    expect("P = FilterInverse(float[4,4] w)", 17, INV_F32,
           "refused: the inverse of the matrix is not known before the run");
    expect("y = Neg(float[3] x)", 6, INV_F32,
           "refused: Neg needs operator set 7, the model has 6: convert it (onnx.version_converter)");
    expect("x = AsinhInverse(float[3] y)", 8, INV_F32,
           "refused: Sinh needs operator set 9, the model has 8: convert it (onnx.version_converter)");
    expect("y = Softmax(float[2,3] x)", 17, INV_F32, "refused: Softmax has no form in ONNX");
}

static void *no_memory(void *opaque, size_t nbytes)
{
    bool *out = opaque;
    return *out ? NULL : calloc(1, nbytes);
}

static void give_back(void *opaque, void *p)
{
    (void)opaque;
    free(p);
}

static void test_no_memory(void **state)
{
    (void)state;
    bool out = false;
    const inv_allocator allocator = {no_memory, give_back, &out};
    const inv_context_options o = {.size = sizeof o, .allocator = &allocator};
    inv_context *poor = NULL;
    inv_graph *g = canonical("x = SeluInverse(float[3] y)", 0, INV_F32);
    inv_arena a, names;
    inv_outline_nodes nodes = {0};
    assert_int_equal(inv_context_create(&o, &poor), INV_OK);
    inv_arena_init(&names, ctx);
    inv_arena_init(&a, poor);
    inv_onnx_body r = {.g = g, .a = &a, .opset = 17, .real = INV_F32, .name = names_of(&names, g), .node = &nodes};
    out = true;
    assert_false(inv_raise_node(&r, inv_nod(g, g->order.at[0]), NULL));
    assert_true(a.failed && r.reason == NULL);
    inv_arena_fini(&a);
    inv_arena_fini(&names);
    inv_context_destroy(poor);
    inv_graph_destroy(g);
}

/* --- every rule --- */

static void test_rules(void **state)
{
    (void)state;
    size_t nstmt = 0;
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++) {
        const inv_inverse_def *rule = inv_registry_inverse_at(ctx->registry, i);
        inv_arena a;
        inv_stmts solve = {0};
        if (rule->solve == NULL) continue;
        inv_arena_init(&a, ctx);
        assert_int_equal(inv_text_stmts(ctx, &a, rule->solve, &solve), INV_OK);
        for (size_t k = 0; k < solve.n; k++, nstmt++)
            if (!inv_raise_knows(inv_registry_named(ctx->registry, &solve.at[k])))
                fail_msg("rule %s solves by %s", rule->name, solve.at[k].op);
        inv_arena_fini(&a);
    }
    assert_true(nstmt > 25);
}

/* --- every form computes what the operator does --- */

typedef struct written {
    inv_graph *g;     /* the same inputs and outputs */
    inv_arena a;      /* of the nodes */
    inv_id solver;    /* of what solves equations: an input more, */
    inv_id solver_of; /* the same as this value of the canonical graph */
} written;

/* Emits nodes of the canonical graph that turn a filter's inverse into the matrices of its groups, side by side. */
static inv_id emit_blocks(inv_graph *g, const inv_node *n)
{
    const inv_shape w = inv_val(g, n->in[0])->shape;
    const int64_t groups = inv_attr_int(n, "group", 1), rows = w.dim[0] / groups;
    const int64_t dims[3] = {groups, rows, inv_shape_nelem(&w) / w.dim[0]}, perm[3] = {0, 2, 1}, turned[2] = {1, 0};
    const bool many = groups > 1;
    inv_id v = inv_emit1(g, "View", INV_IN(n->out[0]),
                         INV_ATTRS(inv_attr_of_ints("shape", many ? 3 : 2, many ? dims : dims + 1)));
    return inv_emit1(g, "Transpose", INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("perm", many ? 3 : 2, many ? perm : turned)));
}

/* Emits nodes of the canonical graph that compute the matrix's pseudo-inverse: what the identity is solved to. */
static inv_id emit_solver(inv_graph *g, const inv_node *n)
{
    if (strcmp(n->op_type, "FilterInverse") == 0) return emit_blocks(g, n);
    const int64_t trans = inv_attr_int(n, "transB", 0), extent = inv_val(g, n->in[1])->shape.dim[trans ? 0 : 1],
                  dims[2] = {extent, extent}, perm[2] = {1, 0};
    const inv_shape s = inv_shape_of(2, dims);
    const inv_dtype real = inv_val(g, n->in[0])->dtype;
    double *eye = calloc((size_t)(extent * extent), sizeof *eye);
    void *bytes = malloc((size_t)(extent * extent) * sizeof *eye);
    for (int64_t i = 0; i < extent; i++) eye[i * extent + i] = 1;
    assert_true(inv_convert(bytes, real, eye, INV_F64, (size_t)(extent * extent)));
    inv_id w = n->in[1], at = inv_graph_const(g, real, &s, bytes);
    free(eye);
    free(bytes);
    at = inv_emit1(g, "LinearSolve", INV_IN(at, w), INV_ATTRS(inv_attr_of_int("transB", trans)));
    return trans ? inv_emit1(g, "Transpose", INV_IN(at), INV_ATTRS(inv_attr_of_ints("perm", 2, perm))) : at;
}

static inv_id value_of(inv_graph *g, const char *name)
{
    inv_id v = inv_graph_find(g, name);
    return v != INV_NONE ? v : inv_graph_value(g, name, INV_ROLE_NODE, INV_DT_NONE, NULL);
}

static void add_to_graph(inv_graph *g, const inv_outline_node *n)
{
    inv_id in[16], out[16];
    assert_true(n->nin <= 16 && n->nout <= 16);
    for (uint32_t i = 0; i < n->nin; i++) in[i] = *n->in[i] ? value_of(g, n->in[i]) : INV_NONE;
    for (uint32_t i = 0; i < n->nout; i++) out[i] = value_of(g, n->out[i]);
    inv_id id = inv_graph_node(g, n->domain, n->op_type, NULL, n->nin, in, n->nout, out, n->nattr, n->attr);
    assert_true(id != INV_NONE && inv_vec_push(&g->arena, &g->order, id));
}

/* The same computation as a graph of ONNX nodes; false: some operator is none that can be raised. */
static bool write_graph(written *w, inv_graph *of, int64_t opset, inv_dtype real)
{
    inv_outline_nodes nodes = {0};
    const inv_opset set = {"", opset};
    const size_t count = of->order.n, nvalue = of->value.n;
    *w = (written){.solver = INV_NONE, .solver_of = INV_NONE};
    inv_arena_init(&w->a, ctx);
    for (size_t i = 0; i < count; i++) {
        const inv_node *n = inv_nod(of, of->order.at[i]);
        if (!inv_raise_knows(n->op)) return false;
    }
    assert_int_equal(inv_graph_create(ctx, "written", &w->g), INV_OK);
    w->g->real = real;
    assert_true(inv_vec_push(&w->g->arena, &w->g->opset, set));
    for (size_t v = 0; v < nvalue; v++) {
        const inv_value *x = inv_val(of, (inv_id)v);
        if (x->role == INV_ROLE_NODE) continue;
        inv_id made = inv_graph_value(w->g, x->name, (inv_role)x->role, x->dtype, &x->shape);
        inv_val(w->g, made)->data = x->data;
    }
    for (size_t i = 0; i < of->inputs.n; i++) {
        inv_id v = inv_graph_find(w->g, inv_val(of, of->inputs.at[i])->name);
        assert_true(inv_vec_push(&w->g->arena, &w->g->inputs, v));
    }
    const char **name = names_of(&w->a, of);
    inv_onnx_body r = {.g = of, .a = &w->a, .opset = opset, .real = real, .name = name, .node = &nodes};
    for (size_t i = 0; i < count; i++) {
        const inv_node n = *inv_nod(of, of->order.at[i]);
        if (inv_raise_matrix(&n) != INV_NONE) {
            w->solver_of = emit_solver(of, &n);
            w->solver = inv_graph_value(w->g, "solver", INV_ROLE_INPUT, real, &inv_val(of, w->solver_of)->shape);
        }
        if (!inv_raise_node(&r, &n, w->solver == INV_NONE ? NULL : "solver")) {
            if (r.reason && strstr(r.reason, "needs operator set")) return false;
            if (r.reason && strstr(r.reason, "ambiguous")) return false;
            if (r.reason && strstr(r.reason, "channels are last")) return false;
            fail_msg("%s: %s", n.op_type, r.reason ? r.reason : inv_context_message(ctx));
        }
    }
    for (size_t i = 0; i < nodes.n; i++) add_to_graph(w->g, &nodes.at[i]);
    for (size_t i = 0; i < of->outputs.n; i++) {
        inv_id v = value_of(w->g, inv_val(of, of->outputs.at[i])->name);
        assert_true(inv_vec_push(&w->g->arena, &w->g->outputs, v));
    }
    if (inv_pass_lower(w->g) != INV_OK) fail_msg("opset %d: %s", (int)opset, inv_context_message(ctx));
    return true;
}

static void copy_value(interp *to, inv_id at, interp *from, inv_id v)
{
    size_t nbytes = 0;
    assert_true(inv_shape_equal(&inv_val(to->g, at)->shape, &inv_val(from->g, v)->shape));
    assert_true(inv_shape_nbytes(&inv_val(from->g, v)->shape, inv_val(from->g, v)->dtype, &nbytes));
    memcpy(interp_data(to, at), interp_data(from, v), nbytes);
}

static void compare(const char *text, interp *have, interp *want, double limit)
{
    for (size_t i = 0; i < want->g->outputs.n; i++) {
        inv_id a = have->g->outputs.at[i], b = want->g->outputs.at[i];
        double error = 0, norm = 0;
        assert_true(inv_shape_equal(&inv_val(have->g, a)->shape, &inv_val(want->g, b)->shape));
        assert_int_equal(inv_val(have->g, a)->dtype, inv_val(want->g, b)->dtype);
        for (int64_t k = 0; k < inv_shape_nelem(&inv_val(want->g, b)->shape); k++) {
            double x = interp_get(want, b, k), d = interp_get(have, a, k) - x;
            if (isnan(x) || isinf(x)) continue;
            error += d * d;
            norm += x * x;
        }
        if (!(sqrt(error) <= limit * sqrt(norm))) fail_msg("%s: output %zu is off by %g", text, i, sqrt(error / norm));
    }
}

/* Runs the case as it is and as written; false: it cannot be written for this opset. */
static bool check_case(const char *text, int written_for, inv_dtype real, int64_t opset)
{
    uint64_t state = 7;
    inv_graph *g = canonical(text, written_for, real);
    written w;
    interp want, have;
    bool ok = write_graph(&w, g, opset, real);
    if (ok) {
        interp_init(&want, g);
        interp_init(&have, w.g);
        for (size_t i = 0; i < g->inputs.n; i++) {
            interp_fill(&want, g->inputs.at[i], &state);
            copy_value(&have, w.g->inputs.at[i], &want, g->inputs.at[i]);
        }
        assert_int_equal(interp_run(&want), INV_OK);
        if (w.solver != INV_NONE) copy_value(&have, w.solver, &want, w.solver_of);
        assert_int_equal(interp_run(&have), INV_OK);
        compare(text, &have, &want, real == INV_F64 ? 1e-10 : 2e-5);
        interp_fini(&have);
        interp_fini(&want);
    } else {
        inv_graph_destroy(w.g);
        inv_graph_destroy(g);
    }
    inv_arena_fini(&w.a);
    return ok;
}

/* Attributes other than the defaults, and values far from zero. */
static const char *const more[] = {
    "y = LeakyRelu<alpha = 2.0>(float[2,3] u)\nx = LeakyReluInverse<alpha = 2.0>(y)",
    "y = Elu<alpha = 0.5>(float[2,3] u)\nx = EluInverse<alpha = 0.5>(y)",
    "y = Celu<alpha = 2.0>(float[2,3] u)\nx = CeluInverse<alpha = 2.0>(y)",
    "y = Selu<alpha = 1.2, gamma = 0.8>(float[2,3] u)\nx = SeluInverse<alpha = 1.2, gamma = 0.8>(y)",
    "v = Exp(float[2,3] u)\nw = Mul(v, v)\nx = SoftplusInverse(w)",
    "v = Exp(float[2,3] u)\nw = Reciprocal(v)\np = Mul(w, w)\nq = Mul(p, p)\nx = SoftplusInverse(q)",
    "v = Neg(float[2,3] u)\nw = Sub(v, u)\ny = Sigmoid(w)\nx = SigmoidInverse(y)"};

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        for (size_t o = 0; o < sizeof opsets / sizeof *opsets; o++) {
            bool old = opsets[o] < 12 && strstr(more[i], "Celu");
            assert_int_equal(check_case(more[i], 0, INV_F32, opsets[o]), !old);
            assert_int_equal(check_case(more[i], 0, INV_F64, opsets[o]), !old);
        }
    for (size_t i = 0; i < inv_registry_nops(ctx->registry); i++) {
        const inv_op_def *op = inv_registry_op_at(ctx->registry, i);
        size_t written_at[2] = {0, 0};
        for (const char *const *c = op->cases; c && *c; c++)
            for (size_t o = 0; o < sizeof opsets / sizeof *opsets; o++) {
                written_at[0] += check_case(*c, op->until, INV_F32, opsets[o]);
                written_at[1] += check_case(*c, op->until, INV_F64, opsets[o]);
            }
        if (!op->lower && inv_raise_knows(op) && (!written_at[0] || !written_at[1]))
            fail_msg("no case of %s was compared", op->name);
    }
}

/* --- formulas of rows --- */

/* Its calls are of operators that ONNX has, with as many operands as these take. */
static void read_formula(const inv_op_def *op, const char *column, const char *text)
{
    const char *value[16] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"};
    const inv_node n = {.op_type = op->name, .op = op, .domain = op->domain};
    inv_arena a;
    inv_outline_nodes nodes = {0};
    inv_arena_init(&a, ctx);
    inv_onnx_body r = {.a = &a, .opset = 24, .real = INV_F32, .node = &nodes};
    if (!inv_formula_write(&r, &n, text, value, NULL))
        fail_msg("row %s, column %s: %s", op->name, column, r.reason ? r.reason : "out of memory");
    for (size_t i = 0; i < nodes.n; i++) {
        const inv_op_def *used = inv_registry_op(ctx->registry, "", nodes.at[i].op_type, r.opset);
        bool optional, variadic;
        if (!used || *used->domain ||
            (nodes.at[i].nin && !inv_op_slot(used->in, nodes.at[i].nin - 1, &optional, &variadic)))
            fail_msg("row %s, column %s: ONNX has no %s of %u operands", op->name, column, nodes.at[i].op_type,
                     nodes.at[i].nin);
        if (used && inv_op_slot(used->in, nodes.at[i].nin, &optional, &variadic) && !optional)
            fail_msg("row %s, column %s: %s takes more operands", op->name, column, nodes.at[i].op_type);
    }
    inv_arena_fini(&a);
}

static void test_formulas(void **state)
{
    (void)state;
    size_t count = 0;
    for (size_t i = 0; i < inv_registry_nops(ctx->registry); i++) {
        const inv_op_def *op = inv_registry_op_at(ctx->registry, i);
        const bool form = op->onnx && *op->onnx;
        if (form) read_formula(op, "onnx", op->onnx);
        if (op->log_slope) read_formula(op, "log_slope", op->log_slope);
        count += (size_t)form + (op->log_slope != NULL);
    }
    assert_true(count > 25);
}

/* What stands where it cannot be read is told by the operator's name. */
static void test_bad_formulas(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"Neg(z)", "the row of MinE has a formula that cannot be read from 'z)' on"},
        {"u = Neg(y; u", "the row of MinE has a formula that cannot be read from '; u' on"},
        {"Neg(y) Neg(y)", "the row of MinE has a formula that cannot be read from ' Neg(y)' on"}};
    const inv_op_def op = {.name = "MinE", .in = "y", .out = "x"};
    const inv_node n = {.op_type = op.name, .op = &op, .domain = ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        inv_arena a;
        inv_outline_nodes nodes = {0};
        inv_arena_init(&a, ctx);
        inv_onnx_body r = {.a = &a, .opset = 24, .real = INV_F32, .node = &nodes};
        assert_null(inv_formula_write(&r, &n, bad[i][0], (const char *[]){"y", "x"}, NULL));
        assert_string_equal(r.reason, bad[i][1]);
        inv_arena_fini(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),    cmocka_unit_test(test_forms),        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_values),
        cmocka_unit_test(test_formulas), cmocka_unit_test(test_bad_formulas),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
