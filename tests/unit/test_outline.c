/* SPDX-License-Identifier: Apache-2.0
 * Writing a model with blocks as functions: fails if a byte changes that the outline does not speak of, if what it says
 * does not arrive, if taking the functions apart again does not give the file as it was, or if a failure leaves a
 * trace. */
#define _XOPEN_SOURCE 700
#include "load_model.h"

#include "importer/model_file.h"

static const float two[] = {2, 2, 2};

/* --- outlines --- */

typedef struct sheet {
    inv_arena a;
    inv_outline o;
} sheet;

#define PUSH(s, vec, ...) assert_true(inv_vec_push(&(s)->a, (vec), (__VA_ARGS__)))

/* Names with spaces between, "-" for an omitted one. */
static const char *const *texts(sheet *s, const char *list, uint32_t *n)
{
    const char **out = INV_ARENA_NEW(&s->a, const char *, strlen(list) + 1);
    assert_non_null(out);
    for (*n = 0; *list;) {
        size_t k = strcspn(list, " ");
        out[(*n)++] = k == 1 && *list == '-' ? "" : inv_arena_strndup(&s->a, list, k);
        list += k + (list[k] == ' ');
    }
    return out;
}

static void kept(sheet *s, inv_outline_nodes *to, uint32_t source, const char *in, const char *out)
{
    inv_outline_node n = {.source = source};
    n.in = texts(s, in, &n.nin);
    n.out = texts(s, out, &n.nout);
    PUSH(s, to, n);
}

static inv_outline_node *made(sheet *s, inv_outline_nodes *to, const char *domain, const char *op, const char *name,
                              const char *in, const char *out)
{
    inv_outline_node n = {.source = INV_NONE, .domain = domain, .op_type = op, .name = name};
    n.in = texts(s, in, &n.nin);
    n.out = texts(s, out, &n.nout);
    PUSH(s, to, n);
    return &to->at[to->n - 1];
}

static const char *const *names_of(sheet *s, const inv_graph *g, const inv_id *v, uint32_t n)
{
    const char **out = INV_ARENA_NEW(&s->a, const char *, n + 1);
    assert_non_null(out);
    for (uint32_t i = 0; i < n; i++) out[i] = v[i] == INV_NONE ? "" : inv_val(g, v[i])->name;
    return out;
}

/* Node n of a graph, under the names that it has there. */
static void as_in(sheet *s, const inv_graph *g, const inv_node *n)
{
    inv_outline_node x = {.source = n->source, .nin = n->nin, .nout = n->nout};
    x.in = names_of(s, g, n->in, n->nin);
    x.out = names_of(s, g, n->out, n->nout);
    PUSH(s, &s->o.node, x);
}

static void begin(sheet *s, inv_context *ctx)
{
    *s = (sheet){0};
    inv_arena_init(&s->a, ctx);
    s->o.rewritten = true;
}

/* All nodes where they are. */
static void identity(sheet *s, const inv_model *m)
{
    begin(s, m->ctx);
    for (size_t i = 0; i < m->graph->node.n; i++) as_in(s, m->graph, inv_nod(m->graph, (inv_id)i));
}

static void writes(inv_model *m, const inv_outline *o, const char *path)
{
    if (inv_outline_write(m, o, path) != INV_OK) fail_msg("%s", inv_context_message(m->ctx));
}

static bool file_has(const char *path, const char *text)
{
    size_t n, k = strlen(text);
    unsigned char *p = read_file(path, &n);
    bool found = false;
    for (size_t i = 0; i + k <= n; i++) found = found || !memcmp(p + i, text, k);
    free(p);
    return found;
}

/* --- models --- */

static pb one_node_function(const char *domain, const char *name)
{
    pb f = {0};
    pb_str(&f, 1, name);
    pb_str(&f, 4, "p");
    pb_str(&f, 5, "q");
    pb_msg(&f, 7, node("", "Neg", "neg", "p", "q"));
    pb_msg(&f, 9, opset("", 17));
    pb_str(&f, 10, domain);
    pb_str(&f, 98, "unknown in function");
    return f;
}

/* y = Relu(Clip(x + w, , w)) * s, z = my::f(y), with fields from the future everywhere and an order of its own: a
 * function before the graph, a node behind the initializers. */
static pb odd_model(int ir)
{
    const int64_t d[] = {-1, 3}, k[] = {3};
    pb g = {0}, m = {0}, clip = node("", "Clip", "clip", "h - w", "c"), add = node("", "Add", "add", "x w", "h");
    pb_str(&add, 6, "doc of add");
    pb_str(&add, 97, "unknown in node");
    pb_str(&clip, 97, "also in clip");
    pb_msg(&g, 1, add);
    pb_str(&g, 99, "unknown in graph");
    pb_msg(&g, 1, clip);
    pb_msg(&g, 1, node("", "Relu", "relu", "c", "r"));
    pb_str(&g, 2, "g");
    pb_msg(&g, 5, w3());
    pb_msg(&g, 5, tensor_raw("s", 1, 1, k, two, sizeof two));
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    pb_msg(&g, 12, value_info("y", 1, 2, d));
    pb_msg(&g, 12, value_info("z", 1, 2, d));
    pb_msg(&g, 1, node("", "Mul", "mul", "r s", "y"));
    pb_msg(&g, 13, value_info("h", 1, 2, d));
    pb_msg(&g, 1, node("my", "f", "call", "y", "z"));
    pb_msg(&m, 25, one_node_function("my", "f"));
    pb_int(&m, 1, ir);
    pb_msg(&m, 8, opset("", 17));
    pb_msg(&m, 7, g);
    pb_msg(&m, 8, opset("my", 1));
    pb_msg(&m, 14, pair("key", "value"));
    pb_str(&m, 1000, "the future");
    return m;
}

/* Add and Clip as a function with an inverse, Relu as it is, Mul with another scale, the call as it is. */
static void outline_odd(sheet *s, inv_context *ctx)
{
    static const int64_t ints[] = {-1, 0, INT64_MAX};
    static const double floats[] = {0.5, -1};
    static const char *strings[] = {"a", "", "bc"};
    static const inv_attr attr[] = {
        {.name = "i", .kind = INV_ATTR_INT, .i = -7},
        {.name = "f", .kind = INV_ATTR_FLOAT, .f = 0.25},
        {.name = "s", .kind = INV_ATTR_STRING, .s = "text"},
        {.name = "is", .kind = INV_ATTR_INTS, .ints = ints, .n = 3},
        {.name = "fs", .kind = INV_ATTR_FLOATS, .floats = floats, .n = 2},
        {.name = "ss", .kind = INV_ATTR_STRINGS, .strings = strings, .n = 3},
        {.name = "t", .kind = INV_ATTR_TENSOR, .tensor = {INV_F64, {.rank = 2, .dim = {1, 2}}, floats, 16}},
        {.name = "none", .kind = INV_ATTR_INTS},
    };
    begin(s, ctx);
    made(s, &s->o.node, INV_OUTLINE_DOMAIN, "Pair_0", "Pair_0", "x w", "c");
    kept(s, &s->o.node, 2, "c", "r");
    kept(s, &s->o.node, 3, "r s2", "y");
    kept(s, &s->o.node, 4, "y", "z");
    inv_outline_function f = {.name = "Pair_0", .doc = "a pair"}, inv = {.name = "Pair_0_inverse"};
    f.in = texts(s, "x w", &f.nin);
    f.out = texts(s, "c", &f.nout);
    kept(s, &f.node, 0, "x w", "h");
    kept(s, &f.node, 1, "h - w", "c");
    inv.in = texts(s, "c w", &inv.nin);
    inv.out = texts(s, "x", &inv.nout);
    inv_outline_node *n = made(s, &inv.node, "my", "Kinds", "", "c -", "d");
    n->attr = attr;
    n->nattr = sizeof attr / sizeof *attr;
    made(s, &inv.node, "", "Sub", "minus", "d w", "e");
    made(s, &inv.node, INV_OUTLINE_DOMAIN, "Pair_0", "again", "e w", "x");
    PUSH(s, &s->o.function, f);
    PUSH(s, &s->o.function, inv);
    PUSH(s, &s->o.tensor,
         (inv_outline_tensor){"s2", {INV_F32, {.rank = 1, .dim = {3}}, two, sizeof two}, {NULL, NULL, 0}});
    PUSH(s, &s->o.fact, (inv_outline_fact){"ai.invonnx.version", "1"});
    PUSH(s, &s->o.fact, (inv_outline_fact){"ai.invonnx.fn.Pair_0", "rule=pair;inverse=Pair_0_inverse;free=x"});
    PUSH(s, &s->o.fact, (inv_outline_fact){"ai.invonnx.inv.s2", "s"});
}

/* --- nothing to do --- */

static void check_identity(inv_context *ctx, const char *path)
{
    inv_model *m = load(ctx, path);
    sheet s;
    identity(&s, m);
    writes(m, &s.o, in_dir("same.onnx"));
    assert_true(same_files(path, in_dir("same.onnx")));
    inv_arena_fini(&s.a);
    inv_model_destroy(m);
}

static void test_identity(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    check_identity(ctx, save(odd_model(7), "in.onnx"));
    pb g = {0};
    pb_msg(&g, 5, w3());
    pb_msg(&g, 12, value_info("w", 1, 1, (const int64_t[]){3}));
    check_identity(ctx, save(model_of(g), "in.onnx"));
    assert_int_equal(count_files(test_dir, false), 2);
    inv_context_destroy(ctx);
}

static void copy_into(const char *dir, const char *name)
{
    char from[1024];
    size_t n;
    snprintf(from, sizeof from, "%s/%s", dir, name);
    if (access(from, R_OK) != 0) return;
    unsigned char *p = read_file(from, &n);
    write_file(in_dir(name), p, n);
    free(p);
}

static void test_models(void **state)
{
    (void)state;
    const char *dir = shared_models();
    if (!dir) dir = INV_TEST_DATA "/models";
    DIR *d = opendir(dir);
    assert_non_null(d);
    inv_context *ctx = context(NULL);
    int seen = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char sub[1024], path[1100];
        snprintf(sub, sizeof sub, "%s/%s", dir, e->d_name);
        snprintf(path, sizeof path, "%s/model.onnx", sub);
        if (access(path, R_OK) != 0) continue;
        copy_into(sub, "model.onnx");
        copy_into(sub, "weights.bin");
        check_identity(ctx, in_dir("model.onnx"));
        seen++;
    }
    closedir(d);
    inv_context_destroy(ctx);
    assert_true(seen > 10);
}

/* --- there and back --- */

static void check_node(const inv_graph *g, const inv_node *n, const char *name, const char *op, uint32_t source,
                       const char *in, const char *out)
{
    char text[256] = "";
    assert_string_equal(n->name, name);
    assert_string_equal(n->op_type, op);
    assert_int_equal(n->source, source);
    for (uint32_t i = 0; i < n->nin + n->nout; i++) {
        inv_id v = i < n->nin ? n->in[i] : n->out[i - n->nin];
        size_t k = strlen(text);
        snprintf(text + k, sizeof text - k, "%s%s",
                 !k            ? ""
                 : i == n->nin ? "|"
                               : " ",
                 v == INV_NONE ? "-" : inv_val(g, v)->name);
    }
    char want[256];
    snprintf(want, sizeof want, "%s|%s", in, out);
    assert_string_equal(text, want);
}

static void check_kinds(const inv_node *n)
{
    size_t k;
    assert_int_equal(n->nattr, 8);
    assert_int_equal(n->nin, 2);
    assert_true(n->in[1] == INV_NONE);
    assert_int_equal(inv_attr_int(n, "i", 0), -7);
    assert_true(inv_attr_float(n, "f", 0) == 0.25);
    assert_string_equal(inv_attr_string(n, "s", ""), "text");
    const int64_t *is = inv_attr_ints(n, "is", &k);
    assert_int_equal(k, 3);
    assert_true(is[0] == -1 && is[1] == 0 && is[2] == INT64_MAX);
    const inv_attr *fs = inv_attr_find(n, "fs"), *ss = inv_attr_find(n, "ss"), *t = inv_attr_find(n, "t");
    assert_true(fs->kind == INV_ATTR_FLOATS && fs->n == 2 && fs->floats[0] == 0.5 && fs->floats[1] == -1);
    assert_true(ss->kind == INV_ATTR_STRINGS && ss->n == 3);
    assert_string_equal(ss->strings[1], "");
    assert_string_equal(ss->strings[2], "bc");
    assert_true(t->kind == INV_ATTR_TENSOR && t->tensor.dtype == INV_F64 && t->tensor.shape.rank == 2);
    assert_true(inv_elem_double(t->tensor.bytes, INV_F64, 1) == -1);
    (void)inv_attr_ints(n, "none", &k);
    assert_int_equal(k, 0);
    assert_int_equal(inv_attr_find(n, "none")->kind, INV_ATTR_INTS);
}

/* Numbers: 4 nodes in the graph, then those of my::f, of Pair_0, and of its inverse. */
static void check_rewritten(inv_context *ctx, const char *path)
{
    inv_model *m = load(ctx, path);
    const inv_graph *g = m->graph;
    assert_int_equal(g->order.n, 4);
    check_node(g, inv_nod(g, g->order.at[0]), "Pair_0", "Pair_0", 0, "x w", "c");
    check_node(g, inv_nod(g, g->order.at[1]), "relu", "Relu", 1, "c", "r");
    check_node(g, inv_nod(g, g->order.at[2]), "mul", "Mul", 2, "r s2", "y");
    check_node(g, inv_nod(g, g->order.at[3]), "call", "f", 3, "y", "z");
    assert_int_equal(g->function.n, 3);
    assert_string_equal(g->function.at[0].domain, "my");
    const inv_graph *pair = g->function.at[1].body, *inv = g->function.at[2].body;
    check_node(pair, inv_nod(pair, pair->order.at[0]), "add", "Add", 5, "x w", "h");
    check_node(pair, inv_nod(pair, pair->order.at[1]), "clip", "Clip", 6, "h - w", "c");
    check_node(inv, inv_nod(inv, inv->order.at[0]), "", "Kinds", 7, "c -", "d");
    check_node(inv, inv_nod(inv, inv->order.at[2]), "again", "Pair_0", 9, "e w", "x");
    check_kinds(inv_nod(inv, inv->order.at[0]));
    for (size_t i = 1; i < 3; i++) {
        const inv_graph *body = g->function.at[i].body;
        assert_string_equal(g->function.at[i].domain, INV_OUTLINE_DOMAIN);
        assert_int_equal(inv_graph_opset(body, ""), 17);
        assert_int_equal(inv_graph_opset(body, "my"), 1);
        assert_int_equal(inv_graph_opset(body, INV_OUTLINE_DOMAIN), 1);
    }
    assert_int_equal(inv_graph_opset(g, INV_OUTLINE_DOMAIN), 1);
    assert_memory_equal(value(m, "s2")->data.bytes, two, sizeof two);
    assert_string_equal(value(m, "s2")->inverse_of, "s");
    assert_null(value(m, "s")->inverse_of);
    static const char *const there[] = {"the future", "unknown in graph",    "unknown in node", "also in clip",
                                        "doc of add", "unknown in function", "a pair",          NULL};
    for (const char *const *t = there; *t; t++) assert_true(file_has(path, *t));
    char *json;
    assert_int_equal(inv_model_inspect(m, &json), INV_OK);
    assert_has(json, "\"ir_version\": 8");
    assert_has(json, "inverse of another parameter");
    inv_free(ctx, json);
    inv_model_destroy(m);
}

/* The file at `path` with its functions taken apart: Mul gets its old scale back. */
static void undo(inv_context *ctx, const char *path, const char *to)
{
    inv_model *m = load(ctx, path);
    inv_graph *g;
    sheet s;
    begin(&s, ctx);
    assert_int_equal(inv_graph_copy(m->graph, &g), INV_OK);
    if (inv_pass_inline(g, true) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_int_equal(g->order.n, 5);
    for (size_t i = 0; i < 5; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (!strcmp(n->op_type, "Mul")) kept(&s, &s.o.node, n->source, "r s", "y");
        else as_in(&s, g, n);
    }
    PUSH(&s, &s.o.drop, "s2");
    writes(m, &s.o, to);
    inv_arena_fini(&s.a);
    inv_graph_destroy(g);
    inv_model_destroy(m);
}

static void test_there_and_back(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    for (int ir = 7; ir <= 10; ir++) {
        sheet s;
        inv_model *m = load(ctx, save(odd_model(ir), "in.onnx"));
        outline_odd(&s, ctx);
        writes(m, &s.o, in_dir("out.onnx"));
        inv_arena_fini(&s.a);
        inv_model_destroy(m);
        if (ir <= 8) check_rewritten(ctx, in_dir("out.onnx"));
        undo(ctx, in_dir("out.onnx"), in_dir("back.onnx"));
        if (ir >= 8) { /* not lower: the version stays raised */
            assert_false(file_has(in_dir("back.onnx"), INV_OUTLINE_DOMAIN));
            inv_model *back = load(ctx, in_dir("back.onnx"));
            check_node(back->graph, inv_nod(back->graph, 3), "mul", "Mul", 3, "r s", "y");
            inv_model_destroy(back);
        }
    }
    inv_context_destroy(ctx);
}

/* Without holes between its nodes and with fields in ascending order, as libraries write it. */
static pb plain_model(void)
{
    pb m = model_of(small_graph(w3()));
    pb_msg(&m, 14, pair("key", "value"));
    return m;
}

static void outline_plain(sheet *s, inv_context *ctx, uint32_t relu)
{
    begin(s, ctx);
    kept(s, &s->o.node, 0, "x w", "h");
    made(s, &s->o.node, INV_OUTLINE_DOMAIN, "R_0", "R_0", "h", "y");
    inv_outline_function f = {.name = "R_0", .doc = ""};
    f.in = texts(s, "h", &f.nin);
    f.out = texts(s, "y", &f.nout);
    kept(s, &f.node, relu, "h", "y");
    PUSH(s, &s->o.function, f);
    PUSH(s, &s->o.tensor,
         (inv_outline_tensor){"w_inv", {INV_F32, {.rank = 1, .dim = {3}}, two, sizeof two}, {NULL, NULL, 0}});
    PUSH(s, &s->o.drop, "w_inv");
    PUSH(s, &s->o.fact, (inv_outline_fact){"ai.invonnx.fn.R_0", "rule=r"});
    PUSH(s, &s->o.fact, (inv_outline_fact){"ai.invonnx.inv.w_inv", "w"});
}

/* Rewritten twice is rewritten once, and taken apart it is what it was, to the byte. */
static void test_again(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(plain_model(), "in.onnx"));
    sheet s;
    outline_plain(&s, ctx, 1);
    writes(m, &s.o, in_dir("once.onnx"));
    inv_arena_fini(&s.a);
    inv_model_destroy(m);
    m = load(ctx, in_dir("once.onnx"));
    outline_plain(&s, ctx, 2);
    writes(m, &s.o, in_dir("twice.onnx"));
    assert_true(same_files(in_dir("once.onnx"), in_dir("twice.onnx")));
    inv_arena_fini(&s.a);
    begin(&s, ctx);
    kept(&s, &s.o.node, 0, "x w", "h");
    kept(&s, &s.o.node, 2, "h", "y");
    PUSH(&s, &s.o.drop, "w_inv");
    writes(m, &s.o, in_dir("back.onnx"));
    assert_true(same_files(in_dir("in.onnx"), in_dir("back.onnx")));
    inv_arena_fini(&s.a);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* --- external data --- */

static void test_external(void **state)
{
    (void)state;
    static const float file[] = {0, 1, 2, 3, 2, 3, 4};
    const int64_t d[] = {3};
    inv_context *ctx = context(NULL);
    pb g = small_graph(tensor_external("w", 1, 1, d, "in.bin", "4", "12"));
    pb c = node("", "Constant", "c", "", "k"), a = {0};
    pb_str(&a, 1, "value");
    pb_msg(&a, 5, tensor_external(NULL, 1, 1, d, "in.bin", "16", "12"));
    pb_int(&a, 20, 4);
    pb_msg(&c, 5, a);
    pb_msg(&g, 1, c);
    write_file(in_dir("in.bin"), file, sizeof file);
    inv_model *m = load(ctx, save(model_of(g), "in.onnx")), *back;
    sheet s;
    begin(&s, ctx);
    kept(&s, &s.o.node, 0, "x w", "h");
    kept(&s, &s.o.node, 1, "h", "y");
    made(&s, &s.o.node, INV_OUTLINE_DOMAIN, "C_0", "C_0", "", "k2");
    inv_outline_function f = {.name = "C_0"};
    f.out = texts(&s, "k2", &f.nout);
    kept(&s, &f.node, 2, "", "k2");
    PUSH(&s, &s.o.function, f);
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    const char *const to[] = {in_dir("out.onnx"), in_dir("sub/out.onnx")};
    for (int i = 0; i < 2; i++) {
        writes(m, &s.o, to[i]);
        back = load(ctx, to[i]);
        const inv_graph *body = back->graph->function.at[0].body;
        assert_memory_equal(value(back, "w")->data.bytes, file + 1, 12);
        assert_memory_equal(inv_attr_find(inv_nod(body, 0), "value")->tensor.bytes, file + 4, 12);
        inv_model_destroy(back);
    }
    assert_int_equal(access(in_dir("out.onnx.data"), F_OK), -1);
    assert_int_equal(access(in_dir("sub/out.onnx.data"), F_OK), 0);
    inv_arena_fini(&s.a);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

/* --- failures --- */

static void refuses(inv_model *m, const sheet *s, const char *part)
{
    size_t n;
    assert_int_equal(inv_outline_write(m, &s->o, in_dir("out.onnx")), INV_E_ARG);
    assert_has(inv_context_message(m->ctx), part);
    unsigned char *p = read_file(in_dir("out.onnx"), &n);
    assert_int_equal(n, 3);
    assert_memory_equal(p, "old", 3);
    free(p);
    assert_int_equal(count_files(test_dir, false), 2);
}

static void test_refused(void **state)
{
    (void)state;
    static const inv_attr graph = {.name = "g", .kind = INV_ATTR_OTHER}, ref = {.name = "r", .ref = "alpha"};
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(plain_model(), "in.onnx"));
    sheet s;
    write_file(in_dir("out.onnx"), "old", 3);
    outline_plain(&s, ctx, 2);
    refuses(m, &s, "no node number 2");
    s.o.function.at[0].node.at[0].source = 1;
    s.o.node.at[1].nattr = 1;
    s.o.node.at[1].attr = &graph;
    refuses(m, &s, "attribute 'g'");
    s.o.node.at[1].attr = &ref;
    refuses(m, &s, "attribute 'r'");
    s.o.node.at[1].nattr = 0;
    s.o.tensor.at[0].data.nbytes = 8;
    refuses(m, &s, "tensor 'w_inv'");
    s.o.tensor.at[0].data.nbytes = 12;
    assert_int_equal(inv_outline_write(m, &s.o, ""), INV_E_ARG);
    assert_int_equal(inv_outline_write(m, &s.o, in_dir("in.onnx")), INV_E_IO);
    writes(m, &s.o, in_dir("out.onnx"));
    inv_arena_fini(&s.a);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static void test_allocations(void **state)
{
    (void)state;
    failing f = {.countdown = -1};
    inv_context *ctx = context(&f);
    inv_model *m = load(ctx, save(odd_model(7), "in.onnx"));
    sheet s;
    outline_odd(&s, ctx);
    PUSH(&s, &s.o.drop, "gone");
    write_file(in_dir("out.onnx"), "old", 3);
    for (long n = 0;; n++) {
        f.countdown = n;
        inv_status st = inv_outline_write(m, &s.o, in_dir("out.onnx"));
        f.countdown = -1;
        if (st == INV_OK) break;
        assert_int_equal(st, INV_E_NOMEM);
        assert_true(file_has(in_dir("out.onnx"), "old"));
        assert_int_equal(count_files(test_dir, false), 2);
    }
    check_rewritten(ctx, in_dir("out.onnx"));
    inv_arena_fini(&s.a);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
    assert_int_equal(f.live, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_identity), TEST(test_models),  TEST(test_there_and_back), TEST(test_again),
        TEST(test_external), TEST(test_refused), TEST(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
