/* SPDX-License-Identifier: Apache-2.0
 * Gradients of large tables, some rows at a time (passes/autodiff/grad_rows.c): early updates are those of the whole
 * gradient, for every kind of target; modes, devices and bfloat16 have it; the gradient is never there as a whole; and
 * what persists is called as ever. Fails if a row is left out or counted twice, if a section is updated before the last
 * reader of its rows, or if what is updated as a whole is split. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "graph_text.h"
#include "passes/schedule/schedule.h"

/* The table's gradient has just over 8 MiB in float32. */
enum { FEW = 64, MANY = 256, WORDS = 16390, WIDTH = 128, TABLE = WORDS * WIDTH };

#define HEAD "(int64[1,L] x) => (y) {\nparam float[128,128] w\nparam float[16390] b\nparam float[16390,128] table\n"
/* An embedding that is the last product's matrix, too; an index counts from the end. */
static const char tied[] =
    "tied" HEAD "e = Gather(table, x)\na = MatMul(e, w)\nh = Tanh(a)\nt = Transpose<perm = [1,0]>(table)\n"
    "p = MatMul(h, t)\ny = Add(p, b)\n}\n";
/* The last product's matrix alone, with a cap on logits. */
static const char capped[] =
    "capped" HEAD "f = Cast<to = 1>(x)\ng = Constant<value_ints = [1,-1,1]>()\nr = Reshape(f, g)\n"
    "v = Constant<value_float = 0.001>()\nu = Mul(r, v)\nk = Constant<value_ints = [1,1,128]>()\nq = Expand(u, k)\n"
    "a = MatMul(q, w)\nh = Tanh(a)\nt = Transpose<perm = [1,0]>(table)\np = MatMul(h, t)\ns = Add(p, b)\n"
    "c = Tanh(s)\nd = Constant<value_float = 5.0>()\ny = Mul(c, d)\n}\n";
/* An embedding alone, with as many classes as it has columns. */
static const char embedded[] = "embedded" HEAD "e = Gather(table, x)\na = MatMul(e, w)\nh = Tanh(a)\n"
                               "m = ReduceSum<keepdims = 0>(b)\ny = Add(h, m)\n}\n";

static int64_t ids[MANY], labels[MANY], rows[2] = {1, MANY};
static double class_weights[WORDS];

typedef struct run {
    inv_model model;
    inv_session *s;
    inv_array x, y;
    inv_result result;
} run;

static void need(inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

/* With many rows, logits are made in parts (head_parts.c). */
static void begin_with(run *r, const char *text, inv_session_options o, int64_t length)
{
    static const char *const out[] = {"y"};
    const int64_t classes = text == embedded ? WIDTH : WORDS;
    for (int i = 0; i < MANY; i++) {
        ids[i] = i % 9 ? (i * 3701 + 5) % WORDS : -1 - i;
        labels[i] = i % 7 ? (i * 5303 + 1) % classes : 7;
    }
    for (int k = 0; k < WORDS; k++) class_weights[k] = 0.5 + k % 5;
    rows[1] = length;
    *r = (run){.model = {.ctx = ctx, .path = "text", .graph = parse(text)}};
    r->x = (inv_array){.name = "x", .dtype = INV_I64, .rank = 2, .dims = rows, .data = ids};
    r->y = (inv_array){.name = "target", .dtype = INV_I64, .rank = 2, .dims = rows, .data = labels};
    o.size = sizeof o;
    o.purpose = INV_FOR_TRAIN;
    o.inputs = &r->x;
    o.ninputs = 1;
    o.target = &r->y;
    o.loss = INV_LOSS_CROSS_ENTROPY;
    o.class_axis = 2;
    o.loss_outputs = out;
    o.nloss_outputs = 1;
    if (o.class_weights) o.nclass_weights = (size_t)classes;
    need(inv_session_create(&r->model, &o, &r->s));
}

static void begin(run *r, const char *text, inv_session_options o) { begin_with(r, text, o, FEW); }

static void end(run *r)
{
    inv_session_destroy(r->s);
    inv_graph_destroy(r->model.graph);
}

static const inv_graph *planned(const run *r) { return r->s->program->plan[INV_PLAN_MAIN].g; }

static size_t count(const run *r, const char *op)
{
    const inv_graph *g = planned(r);
    size_t n = 0;
    for (size_t i = 0; i < g->order.n; i++) n += inv_op_is(inv_nod(g, g->order.at[i]), op);
    return n;
}

/* Nodes that write the table or some of its rows. */
static size_t updates(const run *r)
{
    const inv_graph *g = planned(r);
    const inv_id table = inv_graph_find(g, "table");
    size_t n = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *u = inv_nod(g, g->order.at[i]);
        n += u->op->writes & 1 && (u->in[0] == table || inv_val(g, u->in[0])->whole == table);
    }
    return n;
}

static double *get(run *r, inv_what what, const char *name, size_t n)
{
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[8], all = 1;
    double *to = malloc(n * sizeof *to);
    assert_non_null(to);
    need(inv_session_get(r->s, what, name, &data, &dt, &rank, dims));
    for (int d = 0; d < rank; d++) all *= dims[d];
    assert_int_equal(all, n);
    assert_true(inv_convert(to, INV_F64, data, dt, n));
    return to;
}

/* How far a is from b, both over the size of b. */
static double off(const double *a, const double *b, size_t n)
{
    double sum = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
        all += b[i] * b[i];
    }
    assert_true(all > 0);
    return sqrt(sum / all);
}

typedef struct kind {
    const char *name, *text;
    bool ignores, weighted;
    double smooth;
} kind;

static const kind kinds[] = {{.name = "labels", .text = tied},
                             {.name = "ignored, weighted", .text = tied, .ignores = true, .weighted = true},
                             {.name = "all", .text = capped, .ignores = true, .weighted = true, .smooth = 0.1},
                             {.name = "embedding", .text = embedded}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static inv_session_options options_of(const kind *k)
{
    inv_session_options o = {.memory = INV_MEMORY_STORE, .label_smoothing = k->smooth};
    o.ignores = k->ignores;
    o.ignore_index = 7;
    o.class_weights = k->weighted ? class_weights : NULL;
    return o;
}

static void updates_are_those_of_the_whole(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        inv_session_options o = options_of(&kinds[i]);
        run part, whole;
        o.float64 = true;
        begin_with(&whole, kinds[i].text, o, i ? FEW : MANY);
        o.optimizer = INV_OPT_SGD;
        o.early_update = true;
        begin_with(&part, kinds[i].text, o, i ? FEW : MANY);
        assert_true(updates(&part) >= 2);
        need(inv_session_grad(whole.s, &whole.x, 1, &whole.y, &whole.result));
        double *want = get(&whole, INV_GET_GRAD, "table", TABLE), *old = get(&part, INV_GET_PARAM, "table", TABLE);
        need(inv_session_step(part.s, &part.x, 1, &part.y, 0.5, &part.result));
        double *now = get(&part, INV_GET_PARAM, "table", TABLE);
        for (size_t k = 0; k < TABLE; k++) now[k] = (old[k] - now[k]) / 0.5;
        const double error = off(now, want, TABLE);
        if (!(error < 1e-10)) fail_msg("%s: off by %g", kinds[i].name, error);
        assert_true(fabs(part.result.loss - whole.result.loss) <= 1e-12 * whole.result.loss);
        free(want), free(old), free(now);
        end(&part);
        end(&whole);
    }
}

/* Sums of several batches are added to by sections, and updated as a whole. */
static void accumulated_gradients_have_it(void **state)
{
    (void)state;
    inv_session_options o = options_of(&kinds[0]);
    run part, whole;
    o.float64 = true;
    begin(&whole, tied, o);
    o.optimizer = INV_OPT_LAMB;
    o.accumulate = o.early_update = true;
    begin(&part, tied, o);
    assert_true(updates(&part) == 0 && count(&part, "GatherGrad") >= 2);
    need(inv_session_grad(whole.s, &whole.x, 1, &whole.y, &whole.result));
    for (int i = 0; i < 2; i++) need(inv_session_accumulate(part.s, &part.x, 1, &part.y, &part.result));
    double *want = get(&whole, INV_GET_GRAD, "table", TABLE), *got = get(&part, INV_GET_GRAD, "table", TABLE);
    assert_true(off(got, want, TABLE) < 1e-10);
    free(want), free(got);
    end(&part);
    end(&whole);
}

/* The table after two steps. */
static double *trained(const kind *k, inv_session_options o)
{
    run r;
    begin(&r, k->text, o);
    assert_true(updates(&r) >= 2);
    for (int i = 0; i < 2; i++) need(inv_session_step(r.s, &r.x, 1, &r.y, 1e-2, &r.result));
    double *table = get(&r, INV_GET_PARAM, "table", TABLE);
    end(&r);
    return table;
}

static void modes_give_equal_bits(void **state)
{
    (void)state;
    for (int i = 1; i < 3; i++) {
        inv_session_options o = options_of(&kinds[i]);
        o.optimizer = i == 1 ? INV_OPT_ADAMW8 : INV_OPT_ADAMW;
        o.weights = i == 1 ? INV_BF16 : INV_DT_NONE;
        o.beta1 = 0.9;
        o.beta2 = 0.999;
        o.epsilon = 1e-8;
        o.early_update = true;
        double *first = trained(&kinds[i], o);
        for (int m = 0; m < 3; m++) {
            o.memory = m == 0 ? INV_MEMORY_STORE : m == 1 ? INV_MEMORY_RECOMPUTE : INV_MEMORY_AUTO;
            o.device = m == 0 ? "checked" : "cpu";
            double *other = trained(&kinds[i], o);
            if (memcmp(first, other, TABLE * sizeof *first) != 0) fail_msg("%s, mode %d", kinds[i].name, m);
            free(other);
        }
        free(first);
    }
}

static void devices_have_it_too(void **state)
{
    (void)state;
    for (int i = 1; i < 3; i++) {
        inv_session_options o = options_of(&kinds[i]);
        o.optimizer = INV_OPT_SGD;
        o.early_update = true;
        double *host = trained(&kinds[i], o);
        o.device = "sim";
        double *device = trained(&kinds[i], o);
        assert_true(off(device, host, TABLE) < 1e-5);
        free(host), free(device);
    }
}

static void the_gradient_is_never_there(void **state)
{
    const inv_shape table = inv_shape_of(2, (int64_t[]){WORDS, WIDTH});
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        inv_session_options o = options_of(&kinds[i]);
        run r;
        o.float64 = true;
        o.optimizer = INV_OPT_SGD;
        o.early_update = true;
        begin(&r, kinds[i].text, o);
        const inv_graph *g = planned(&r);
        for (size_t k = 0; k < g->order.n; k++) {
            const inv_node *n = inv_nod(g, g->order.at[k]);
            for (uint32_t j = 0; j < n->nout; j++)
                if (n->out[j] != INV_NONE) assert_false(inv_shape_equal(&inv_val(g, n->out[j])->shape, &table));
        }
        end(&r);
    }
}

/* Checkpoints know the table's state by one name each, whichever rows it was updated by. */
static void states_are_those_of_the_whole(void **state)
{
    (void)state;
    inv_session_options o = options_of(&kinds[0]);
    run early, late;
    o.optimizer = INV_OPT_ADAMW8;
    o.average = true;
    o.average_decay = 0.9;
    begin(&late, tied, o);
    o.early_update = true;
    begin(&early, tied, o);
    assert_int_equal(early.s->program->persistent, late.s->program->persistent);
    size_t n = 0;
    for (const char *name; (name = inv_session_name(late.s, INV_GET_OPTIM, n)); n++)
        if (!inv_session_persistent(early.s, INV_STORAGE_OPTIM, name)) fail_msg("%s is missing", name);
    assert_null(inv_session_name(early.s, INV_GET_OPTIM, n));
    end(&early);
    end(&late);
}

/* What computes with the tensor as a whole gets it as a whole. */
static void others_are_not_split(void **state)
{
    (void)state;
    const inv_optimizer whole[] = {INV_OPT_LAMB, INV_OPT_ADAFACTOR};
    for (int i = 0; i < 3; i++) {
        inv_session_options o = options_of(&kinds[0]);
        run r;
        o.optimizer = i < 2 ? whole[i] : INV_OPT_SGD;
        o.early_update = i < 2;
        begin(&r, tied, o);
        assert_int_equal(updates(&r), 1);
        end(&r);
    }
}

/* A section may be updated while others are still read, but neither while it is, nor while all rows are. */
static void the_check_of_plans_knows_sections(void **state)
{
    (void)state;
    inv_session_options o = options_of(&kinds[0]);
    run r;
    o.optimizer = INV_OPT_SGD;
    o.early_update = true;
    begin(&r, tied, o);
    inv_plan *plan = &r.s->program->plan[INV_PLAN_MAIN];
    inv_graph *g = plan->g;
    const inv_id table = inv_graph_find(g, "table");
    size_t update = SIZE_MAX, own = 0, whole = 0, other = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (update == SIZE_MAX && n->op->writes && inv_val(g, n->in[0])->whole == table) update = i;
    }
    assert_true(update < g->order.n);
    const inv_id section = inv_nod(g, g->order.at[update])->in[0];
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin && !n->op->writes; k++) {
            if (n->in[k] == section) own = i;
            if (n->in[k] == table) whole = i;
            if (n->in[k] != section && n->in[k] != INV_NONE && inv_val(g, n->in[k])->whole == table) other = i;
        }
    }
    assert_true(whole < update && own < update && update < other);
    assert_int_equal(inv_plan_verify(g, plan, NULL), INV_OK);
    inv_node *n = inv_nod(g, g->order.at[other]);
    for (uint32_t k = 0; k < n->nin; k++) {
        const inv_id was = n->in[k];
        if (was == INV_NONE || inv_val(g, was)->whole != table) continue;
        n->in[k] = section;
        assert_int_equal(inv_plan_verify(g, plan, NULL), INV_E_INTERNAL);
        assert_non_null(strstr(inv_context_message(ctx), "'table:0' after its update"));
        n->in[k] = table;
        assert_int_equal(inv_plan_verify(g, plan, NULL), INV_E_INTERNAL);
        assert_non_null(strstr(inv_context_message(ctx), "'table' after its update"));
        n->in[k] = was;
    }
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_are_those_of_the_whole), cmocka_unit_test(accumulated_gradients_have_it),
        cmocka_unit_test(modes_give_equal_bits),          cmocka_unit_test(devices_have_it_too),
        cmocka_unit_test(the_gradient_is_never_there),    cmocka_unit_test(states_are_those_of_the_whole),
        cmocka_unit_test(others_are_not_split),           cmocka_unit_test(the_check_of_plans_knows_sections)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
