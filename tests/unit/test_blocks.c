/* SPDX-License-Identifier: Apache-2.0
 * Blocks: found whatever the order of nodes and operands and however an exporter spells them, with boundaries that make
 * their nodes a graph of its own. */
#include "rule_test.h"

#define HEAD "g(float[4,6] in) => (z) { param float[6,5] B; param float[3,3] A; param float[6,6] F; x = Sin(in); "
#define TAIL " z = MatMul(y, B) }"
#define HALVES HEAD "x1, x2 = Split<axis = 1, num_outputs = 2>(x); "

/* --- what makes no difference --- */

/* "KIND(in...)->(out...)" of every block, sorted. */
static void blocks_text(const char *text, char *out, size_t cap)
{
    feeds f;
    char line[32][256];
    size_t n = 0, used = 0;
    inv_model m = {.ctx = ctx, .path = "text", .graph = parse(text)};
    make_feeds(&m, &f);
    inv_session *s = session(&m, INV_MEMORY_INVERT, &f, true);
    const inv_graph *g = s->program->plan[INV_PLAN_MAIN].base;
    for (size_t i = 0; i < g->matches->block.n && n < 32; i++) {
        const inv_block *b = &g->matches->block.at[i];
        int k = snprintf(line[n], sizeof line[n], "%s", b->kind);
        for (uint32_t v = 0; v < b->nin + b->nout; v++) {
            const inv_value *x = inv_val(g, v < b->nin ? b->in[v] : b->out[v - b->nin]);
            k += snprintf(line[n] + k, sizeof line[n] - (size_t)k, "%s%s", v == b->nin ? " -> " : " ", x->name);
        }
        n++;
    }
    qsort(line, n, sizeof *line, (int (*)(const void *, const void *))strcmp);
    out[0] = 0;
    for (size_t i = 0; i < n; i++) used += (size_t)snprintf(out + used, cap - used, "%s\n", line[i]);
    inv_session_destroy(s);
    drop_feeds(&f);
    inv_graph_destroy(m.graph);
}

static void test_order_makes_no_difference(void **state)
{
    (void)state;
    static const char *const forms[] = {
        HALVES
        "param float[6] s = {1, 2, 3, 4, 5, 6}; f = MatMul(x2, A); t = Tanh(f); y1 = Add(x1, t); g = MatMul(y1, A); "
        "u = Sigmoid(g); y2 = Add(x2, u); c = Concat<axis = 1>(y1, y2); y = Mul(c, s);" TAIL,
        HALVES
        "param float[6] s = {1, 2, 3, 4, 5, 6}; f = MatMul(x2, A); t = Tanh(f); y1 = Add(t, x1); g = MatMul(y1, A); "
        "u = Sigmoid(g); y2 = Add(u, x2); c = Concat<axis = 1>(y1, y2); y = Mul(s, c);" TAIL,
        "g(float[4,6] in) => (z) { param float[6,5] B; param float[3,3] A; param float[6] s = {1, 2, 3, 4, 5, 6}; "
        "z = MatMul(y, B); y = Mul(c, s); c = Concat<axis = 1>(y1, y2); y2 = Add(u, x2); u = Sigmoid(g); g = "
        "MatMul(y1, A); "
        "y1 = Add(x1, t); t = Tanh(f); f = MatMul(x2, A); x1, x2 = Split<axis = 1, num_outputs = 2>(x); x = Sin(in) }",
    };
    char first[2048], other[2048];
    blocks_text(forms[0], first, sizeof first);
    assert_non_null(strstr(first, "additive_block_fg x1 x2 A -> y1 y2"));
    assert_non_null(strstr(first, "additive_coupling x1 x2 A -> y1 x2"));
    assert_non_null(strstr(first, "scale c s -> y"));
    for (size_t i = 1; i < sizeof forms / sizeof *forms; i++) {
        blocks_text(forms[i], other, sizeof other);
        assert_string_equal(first, other);
    }
}

/* --- boundaries --- */

static bool listed(const inv_id *list, uint32_t n, inv_id v)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

/* What the nodes of a block read is made by them, enters, or is constant; what others read of them leaves; nothing else
 * enters; all that leaves is made or passes through. */
static void check_boundary(const inv_graph *g, const inv_block *b, const char *text)
{
    bool *entered = calloc(g->value.n, sizeof *entered), ok = true;
    for (uint32_t i = 0; i < b->nnode; i++) {
        const inv_node *n = inv_nod(g, b->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_value *v = n->in[k] == INV_NONE ? NULL : inv_val(g, n->in[k]);
            if (!v || v->role == INV_ROLE_CONST || (v->def != INV_NONE && listed(b->node, b->nnode, v->def))) continue;
            entered[n->in[k]] = true;
            ok = ok && listed(b->in, b->nin, n->in[k]);
        }
    }
    for (uint32_t i = 0; i < b->nin; i++) ok = ok && entered[b->in[i]];
    for (size_t i = 0; i < g->forward_end; i++) {
        inv_id id = g->order.at[i];
        const inv_node *n = inv_nod(g, id);
        if (listed(b->node, b->nnode, id) || strstr(n->op->name, "Bits")) continue; /* a mask, for a gradient */
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id d = n->in[k] == INV_NONE ? INV_NONE : inv_val(g, n->in[k])->def;
            if (d != INV_NONE && listed(b->node, b->nnode, d)) ok = ok && listed(b->out, b->nout, n->in[k]);
        }
    }
    for (uint32_t i = 0; i < b->nout; i++) {
        inv_id d = inv_val(g, b->out[i])->def;
        ok = ok && ((d != INV_NONE && listed(b->node, b->nnode, d)) || listed(b->in, b->nin, b->out[i]));
    }
    free(entered);
    if (!ok) fail_msg("block %s does not have the boundary that it states, in\n%s", b->kind, text);
}

static void test_boundaries(void **state)
{
    (void)state;
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++) {
        const inv_inverse_def *rule = inv_registry_inverse_at(ctx->registry, i);
        for (size_t c = 0; rule->cases[c]; c++) {
            feeds f;
            inv_model m = {.ctx = ctx, .path = "text", .graph = parse(rule->cases[c])};
            make_feeds(&m, &f);
            inv_session *s = session(&m, INV_MEMORY_INVERT, &f, true);
            const inv_graph *g = s->program->plan[INV_PLAN_MAIN].base;
            for (size_t b = 0; b < g->matches->block.n; b++)
                check_boundary(g, &g->matches->block.at[b], rule->cases[c]);
            inv_session_destroy(s);
            drop_feeds(&f);
            inv_graph_destroy(m.graph);
        }
    }
}

/* --- one form for what exporters write --- */

static void test_steps_and_pairs(void **state)
{
    (void)state;
    char got[2048];
    /* both halves of the first block are one tensor: the pair is a block, each half of it a step */
    blocks_text("g(float[4,3] in) => (z) { param float[3,3] A; param float[6,5] B; x = Sin(in); f = MatMul(x, A); "
                "t = Tanh(f); y1 = Add(x, t); h = MatMul(y1, A); u = Sigmoid(h); y2 = Add(x, u); "
                "y = Concat<axis = 1>(y1, y2);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "additive_block_fg x A -> y1 y2"));
    assert_non_null(strstr(got, "additive_coupling x A -> y1"));
    assert_non_null(strstr(got, "additive_coupling x y1 A -> y2"));
    /* three streams, one after the other: a stream that the branch reads is solved for before */
    blocks_text(HEAD "param float[2,2] C; x1, x2, x3 = Split<axis = 1, num_outputs = 3>(x); p = Mul(x3, x2); "
                     "q = MatMul(p, C); t = Tanh(q); y1 = Add(t, x1); k = Mul(x3, y1); u = Tanh(k); y2 = Sub(x2, u); "
                     "l = Mul(y1, y2); v = Tanh(l); y3 = Add(x3, v); y = Concat<axis = 1>(y1, y2, y3);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "additive_coupling x1 x2 x3 C -> y1 x2 x3"));
    assert_non_null(strstr(got, "additive_coupling x2 x3 y1 -> y2 x3 y1"));
    assert_non_null(strstr(got, "additive_coupling x3 y1 y2 -> y3 y1 y2"));
    /* a step of a Hamiltonian system is one block, and each half of it is a step */
    blocks_text(HALVES "f = MatMul(x2, A); s = Tanh(f); t = Mul(s, float[] {0.1}); y1 = Sub(x1, t); "
                       "u = Mul(float[] {0.1}, y1); y2 = Add(u, x2); y = Concat<axis = 1>(y1, y2);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "leapfrog x1 x2 A -> y1 y2"));
    assert_non_null(strstr(got, "additive_coupling x1 x2 A -> y1 x2"));
    /* momentum and what it pushes on are one block, and so is the step of the momentum; its decay is no block */
    blocks_text(HALVES "a = Mul(x1, float[] {0.9}); f = MatMul(x2, A); t = Tanh(f); w = Add(t, a); y2 = Add(w, x2); "
                       "y = Concat<axis = 1>(w, y2);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "momentum_residual x1 x2 A -> "));
    assert_non_null(strstr(got, "additive_coupling a x2 A -> w x2"));
    assert_null(strstr(got, "scale"));
}

static void test_several_branches(void **state)
{
    (void)state;
    char got[2048];
    /* one half is read by three branches: each step is found, and a gate inside of a branch is none */
    blocks_text(HALVES "param float[3,3] C; f = MatMul(x2, A); t = Tanh(f); s = Exp(t); m = Mul(x1, s); "
                       "u = MatMul(x2, C); k = Sigmoid(x2); v = Mul(u, k); w = Add(m, v); h = Sin(x2); y1 = Sub(w, h); "
                       "y = Concat<axis = 1>(y1, x2);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "affine_coupling x1 x2 C A -> w x2"));
    assert_non_null(strstr(got, "additive_coupling w x2 -> y1 x2"));
    assert_null(strstr(got, "coupling m"));
    assert_null(strstr(got, "coupling u"));
    /* a third branch of what is not there again, but for w, is no step */
    blocks_text(HALVES "f = MatMul(x2, A); t = Tanh(f); w = Add(x1, t); h = Sin(x2); y1 = Sub(w, h); "
                       "y = Concat<axis = 1>(y1, h);" TAIL,
                got, sizeof got);
    assert_null(strstr(got, "additive_coupling w"));
}

static void test_affine_forms(void **state)
{
    (void)state;
    char got[2048];
    /* scales that are positive as they are computed */
    static const char *const scales[] = {"Pow(float[] {2}, t)",
                                         "Pow(f, float[] {2}); s = Add(p, float[] {0.5})",
                                         "Cosh(f)",
                                         "Sin(f); s = Add(p, float[] {1.5})",
                                         "Abs(f); s = Add(p, float[] {0.1})",
                                         "Softplus(f)"};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 HALVES "f = MatMul(x2, A); t = Tanh(f); %s = %s; m = Mul(x1, s); y1 = Add(m, t); "
                        "y = Concat<axis = 1>(y1, x2);" TAIL,
                 strchr(scales[i], ';') ? "p" : "s", scales[i]);
        blocks_text(text, got, sizeof got);
        if (!strstr(got, "affine_coupling x1 x2 A -> y1 x2")) fail_msg("%s: %s", scales[i], got);
    }
    blocks_text(HALVES "f = MatMul(x2, A); s = Pow(f, float[] {3}); t = Tanh(f); m = Mul(x1, s); y1 = Add(m, t); "
                       "y = Concat<axis = 1>(y1, x2);" TAIL,
                got, sizeof got);
    assert_null(strstr(got, "affine_coupling"));
    /* an update in place, by indices, with transposes around it */
    blocks_text("g(float[4,6] in) => (z) { param float[6,5] B; param float[3,3] A; const int64[3,1] i = {3, 4, 5}; "
                "x = Sin(in); x1, x2 = Split<axis = 1, num_outputs = 2>(x); f = MatMul(x1, A); t = Tanh(f); "
                "c = Add(x2, t); ct = Transpose(c); xt = Transpose(x); st = ScatterND(xt, i, ct); "
                "y = Transpose(st);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "additive_coupling x2 x1 A -> c x1"));
    /* what an affine coupling shifts by is no coupling of its own; the log of its scale leaves with the rest */
    blocks_text(HALVES "f = MatMul(x2, A); l = Tanh(f); s = Exp(l); a = Add(x1, f); y1 = Mul(a, s); "
                       "y2 = Concat<axis = 1>(y1, x2); l2 = Concat<axis = 1>(l, l); y = Add(y2, l2);" TAIL,
                got, sizeof got);
    assert_non_null(strstr(got, "affine_coupling x1 x2 A -> y1 x2"));
    assert_null(strstr(got, "additive_coupling x1"));
}

/* --- pieces --- */

#define SLICE(start, end, step) \
    "Slice(x, int64[1] {" #start "}, int64[1] {" #end "}, int64[1] {1}, int64[1] {" #step "})"
#define TAKE(...) "Gather<axis = 1>(x, int64[3] {" #__VA_ARGS__ "})"

/* What takes each entry once is a split, of a permutation if need be; so the value can be put together again. */
static void test_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *pieces, *ops, *indices;
    } cases[] = {
        {"a = " TAKE(4, 0, 3) "; b = " TAKE(1, 5, 2) "; y = Concat<axis = 1>(a, b);", "Permute SplitSizes Concat",
         "4 0 3 1 5 2"},
        {"a = " TAKE(-1, 1, 2) "; b = " TAKE(-2, 0, -3) "; y = Concat<axis = 1>(a, b);", "Permute SplitSizes Concat",
         "4 0 3 5 1 2"},
        {"a = " SLICE(0, 6, 2) "; b = " SLICE(1, 6, 2) "; y = Concat<axis = 1>(a, b);", "Permute SplitSizes Concat",
         "0 2 4 1 3 5"},
        {"a = " TAKE(4, 1, 2) "; b = " SLICE(0, 1, 1) "; c = " SLICE(5, 2, -2) "; y = Concat<axis = 1>(a, b, c);",
         "Permute SplitSizes Concat", "0 4 1 2 5 3"},
        {"a = " SLICE(3, 6, 1) "; b = " TAKE(0, 1, 2) "; y = Concat<axis = 1>(a, b);", "SplitSizes Concat", ""},
        {"y = " SLICE(5, -7, -1) ";", "Permute", "5 4 3 2 1 0"},
        {"y = Gather<axis = 1>(p, int64[6] {5, 3, 0, 1, 2, 4}); p = Gather<axis = 1>(x, int64[6] {1, 2, 0, 3, 5, 4});",
         "Permute", "4 3 1 2 0 5"},
        /* an entry twice and one not at all; as many entries as x has, but not the same */
        {"a = " TAKE(4, 0, 3) "; b = " TAKE(1, 4, 2) "; y = Concat<axis = 1>(a, b);", "Gather Gather Concat", ""},
        {"a = " SLICE(0, 6, 2) "; b = " SLICE(1, 4, 2) "; c = " SLICE(0, 1, 1) "; y = Concat<axis = 1>(a, b, c);",
         "SliceRange SliceRange SliceRange Concat", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024], ops[256] = "", indices[64] = "", want[256];
        feeds f;
        (void)snprintf(text, sizeof text, HEAD "%s" TAIL, cases[i].pieces);
        (void)snprintf(want, sizeof want, "Feed Sin %s MatMulT ", cases[i].ops);
        inv_model m = {.ctx = ctx, .path = "text", .graph = parse(text)};
        make_feeds(&m, &f);
        inv_session *s = session(&m, INV_MEMORY_INVERT, &f, true);
        const inv_graph *g = s->program->plan[INV_PLAN_MAIN].base;
        size_t used = 0, at = 0, count;
        for (size_t k = 0; k < g->forward_end && strstr(ops, "MatMulT") == NULL; k++) {
            const inv_node *n = inv_nod(g, g->order.at[k]);
            used += (size_t)snprintf(ops + used, sizeof ops - used, "%s ", n->op->name);
            const int64_t *list = inv_attr_ints(n, "indices", &count);
            for (size_t e = 0; list && e < count; e++)
                at += (size_t)snprintf(indices + at, sizeof indices - at, e ? " %d" : "%d", (int)list[e]);
        }
        if (strcmp(ops, want) != 0 || strcmp(indices, cases[i].indices) != 0)
            fail_msg("%s: %s(%s), not %s(%s)", text, ops, indices, want, cases[i].indices);
        inv_session_destroy(s);
        drop_feeds(&f);
        inv_graph_destroy(m.graph);
    }
}

/* --- sizes and repetitions --- */

enum { PARTS = 70 };

/* A split into many parts, and their concatenation in reverse order: both are solved. */
static void test_many_parts(void **state)
{
    (void)state;
    char text[8192];
    int n = snprintf(text, sizeof text, "g(float[4,%d] in) => (z) { param float[%d,5] B; x = Tanh(in); ", PARTS, PARTS);
    for (int i = 0; i < PARTS; i++) n += snprintf(text + n, sizeof text - (size_t)n, "%ss%d", i ? ", " : "", i);
    n += snprintf(text + n, sizeof text - (size_t)n, " = Split<axis = 1, num_outputs = %d>(x); y = Concat<axis = 1>(",
                  PARTS);
    for (int i = PARTS; i-- > 0;) n += snprintf(text + n, sizeof text - (size_t)n, "s%d%s", i, i ? ", " : "");
    (void)snprintf(text + n, sizeof text - (size_t)n, "); z = MatMul(y, B) }");
    feeds f;
    inv_model m = {.ctx = ctx, .path = "text", .graph = parse(text)};
    make_feeds(&m, &f);
    inv_session *s = session(&m, INV_MEMORY_INVERT, &f, true);
    const inv_matches *found = s->program->plan[INV_PLAN_MAIN].base->matches;
    size_t split = 0, concat = 0;
    for (size_t e = 0; e < found->edge.n; e++) {
        split += strcmp(found->edge.at[e].rule->name, "split") == 0;
        concat += strcmp(found->edge.at[e].rule->name, "concat") == 0;
    }
    assert_int_equal(split, 1);
    assert_int_equal(concat, PARTS);
    inv_session_destroy(s);
    drop_feeds(&f);
    inv_graph_destroy(m.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_makes_no_difference),
        cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_steps_and_pairs),
        cmocka_unit_test(test_several_branches),
        cmocka_unit_test(test_affine_forms),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_many_parts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
