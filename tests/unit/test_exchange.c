/* SPDX-License-Identifier: Apache-2.0
 * What ranks exchange, with ranks that are a part of the test: the order of sums, and ranks that do not count.
 * Fails if a mean has other bits than the sum in the order of the ranks, or if what does not count is read. */
#include "core/program/exchange.h"
#include "ops_run.h"

enum { RANKS = 3, MINE = 1, NUMBERS = 40 };

/* A network in which the other ranks have sent what the test says. */
typedef struct fake {
    inv_world base;
    const double *weight;
    float other[RANKS][NUMBERS];
    inv_reduction r;
} fake;

static inv_status fake_gather(inv_world *w, const char *what, const void *mine, size_t nbytes, void *all)
{
    fake *f = (fake *)(void *)w;
    (void)what;
    assert_int_equal(nbytes, sizeof(double));
    memcpy(all, f->weight, RANKS * nbytes);
    assert_true(*(const double *)mine == f->weight[MINE]);
    return INV_OK;
}

static inv_status fake_reduce(inv_world *w, const inv_reduction *r)
{
    fake *f = (fake *)(void *)w;
    f->r = *r;
    return INV_OK;
}

/* All chunks are folded here, as each rank does its own. */
static inv_status fake_reduced(inv_world *w, const void *bucket)
{
    fake *f = (fake *)(void *)w;
    const size_t n = f->r.chunk_nbytes;
    unsigned char *own = malloc(RANKS * n);
    assert_ptr_equal(bucket, f->r.bucket);
    assert_true(n * RANKS >= sizeof f->other[0]);
    memcpy(own, f->r.bucket, RANKS * n);
    for (size_t c = 0; c < RANKS; c++) {
        for (size_t r = 0; r < RANKS; r++) {
            unsigned char *part = f->r.parts + r * n;
            memset(part, 0, n);
            for (size_t i = 0; i < n; i++)
                if (r == MINE) part[i] = own[c * n + i];
                else if (c * n + i < sizeof f->other[r]) part[i] = ((unsigned char *)f->other[r])[c * n + i];
        }
        f->r.fold(&f->r, RANKS, f->r.parts, f->r.bucket + c * n);
    }
    free(own);
    return INV_OK;
}

static inv_status no_broadcast(inv_world *w, const char *what, int root, void *data, size_t nbytes)
{
    (void)w, (void)what, (void)root, (void)data, (void)nbytes;
    return INV_OK;
}
static int no_first(inv_world *w, double seconds) { return (void)w, (void)seconds, 1; }
static void no_progress(inv_world *w) { (void)w; }
static inv_status no_late(inv_world *w, const char *what) { return (void)w, (void)what, INV_E_RANKS; }
static void no_end(inv_world *w, int status) { (void)w, (void)status; }
static void no_close(inv_world *w) { (void)w; }

static const inv_world_calls calls = {fake_gather,  no_broadcast, fake_reduce, no_first, no_progress,
                                      fake_reduced, no_late,      no_end,      no_close};

/* A case of several statements. */
static void load_case(ops_env *e, const char *text)
{
    ops_expect_ok(e, inv_case_parse(e->ctx, text, 0, INV_F32, &e->g));
    for (size_t i = 0; i < e->g->order.n; i++) {
        inv_node *n = inv_nod(e->g, e->g->order.at[i]);
        if (!n->op) n->op = inv_registry_op(e->ctx->registry, n->domain, n->op_type, 0);
        assert_non_null(n->op);
        ops_expect_ok(e, inv_node_infer(e->g, e->g->order.at[i]));
    }
    for (size_t i = 0; i < e->g->inputs.n; i++) ops_fill(e, e->g->inputs.at[i]);
}

/* The mean over ranks of these weights; the rank whose weight is 0 has NaN. */
static void mean_of(const double *weight)
{
    ops_env e;
    fake f = {.base = {.calls = &calls, .rank = MINE, .size = RANKS}, .weight = weight};
    float want[NUMBERS] = {0};
    ops_begin(&e);
    load_case(&e, "w = RankWeights<ranks = 3>()\nb, p = AllReduce<ranks = 3>(w, float[40] x)\n"
                  "y = AllReduceEnd<extents = [1, 40]>(b, p, w)");
    const inv_id x = e.g->inputs.at[0], y = e.g->outputs.at[0];
    for (int i = 0; i < NUMBERS; i++) {
        float before = 0;
        double all = 0;
        for (int r = 0; r < RANKS; r++) f.other[r][i] = weight[r] > 0 ? (float)ops_random() : NAN;
        ops_set(&e, x, i, (double)f.other[MINE][i]);
        for (int r = 0; r < RANKS; r++) {
            if (!(weight[r] > 0)) continue;
            const float keep = (float)(all / (all + weight[r])), add = (float)(weight[r] / (all + weight[r]));
            before = all > 0 ? keep * before + add * f.other[r][i] : add * f.other[r][i];
            all += weight[r];
        }
        want[i] = before;
    }
    e.step.world = &f.base;
    e.step.weight = weight[MINE];
    ops_run(&e, 0);
    assert_memory_equal(e.data[y], want, sizeof want);
    ops_end(&e);
}

static void sums_have_one_order(void **state)
{
    (void)state;
    mean_of((const double[]){3, 5, 2});
    mean_of((const double[]){0, 5, 2});
    mean_of((const double[]){3, 0, 2});
    mean_of((const double[]){0, 0, 0});
}

/* Of a process by itself: what goes in comes out. */
static void alone(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    load_case(&e, "w = RankWeights<ranks = 1>()\nb, p = AllReduce<ranks = 1>(w, float[3] x, float[2,2] u)\n"
                  "y, v = AllReduceEnd<extents = [1, 3, 2, 2, 2]>(b, p, w)");
    for (size_t k = 0; k < 2; k++)
        for (int64_t i = 0; i < ops_n(&e, e.g->inputs.at[k]); i++)
            ops_set(&e, e.g->inputs.at[k], i, (double)k * 10 + (double)i);
    ops_run(&e, 0);
    for (size_t k = 0; k < 2; k++)
        for (int64_t i = 0; i < ops_n(&e, e.g->outputs.at[k]); i++)
            assert_true(ops_get(&e, e.g->outputs.at[k], i) == (double)k * 10 + (double)i);
    ops_end(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_have_one_order), cmocka_unit_test(alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
