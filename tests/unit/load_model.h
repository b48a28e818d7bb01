/* SPDX-License-Identifier: Apache-2.0
 * For tests of what is made of ONNX files: loading, refusals, and the sweep of failing allocations. */
#ifndef INV_TEST_LOAD_MODEL_H
#define INV_TEST_LOAD_MODEL_H

#include "onnx_build.h"

#include "core/graph/model.h"
#include "passes/front/front.h"

static UNUSED inv_model *load(inv_context *ctx, const char *path)
{
    inv_model *m;
    if (inv_model_load(ctx, path, &m) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return m;
}

/* The model is refused with this code, and the message has all of the given parts. */
static UNUSED void refused(pb model, inv_status code, const char *const *parts)
{
    inv_context *ctx = context(NULL);
    inv_model *m;
    const char *path = save(model, "m.onnx");
    assert_int_equal(inv_model_load(ctx, path, &m), code);
    assert_null(m);
    for (; *parts; parts++) assert_has(inv_context_message(ctx), *parts);
    inv_context_destroy(ctx);
}
#define REFUSED(model, code, ...) refused((model), (code), (const char *const[]){__VA_ARGS__, NULL})

static UNUSED const inv_value *value(const inv_model *m, const char *name)
{
    inv_id v = inv_graph_find(m->graph, name);
    assert_true(v != INV_NONE);
    return inv_val(m->graph, v);
}

static UNUSED pb w3(void)
{
    static const float w[] = {1, 2, 3};
    return tensor_raw("w", 1, 1, (const int64_t[]){3}, w, sizeof w);
}

/* Load, inspect, copy, inline with the n-th allocation failing, for every n until all succeed. */
static UNUSED void sweep(const char *path)
{
    for (long n = 0;; n++) {
        failing f = {.countdown = -1};
        inv_context *ctx = context(&f);
        long before = f.live;
        inv_model *m;
        inv_graph *g = NULL;
        char *json = NULL;
        f.countdown = n;
        inv_status s = inv_model_load(ctx, path, &m);
        if (s == INV_OK) s = inv_model_inspect(m, &json);
        if (s == INV_OK) s = inv_graph_copy(m->graph, &g);
        if (s == INV_OK) s = inv_pass_inline(g, false);
        bool done = f.countdown != 0;
        if (!done && s != INV_OK) {
            assert_int_equal(s, INV_E_NOMEM);
            assert_true(*inv_context_message(ctx));
        }
        f.countdown = -1;
        inv_free(ctx, json);
        inv_graph_destroy(g);
        inv_model_destroy(m);
        assert_in_range(f.live, 0, before + 1); /* + 1: the message */
        inv_context_destroy(ctx);
        assert_int_equal(f.live, 0);
        if (!done) continue;
        assert_int_equal(s, INV_OK);
        return;
    }
}

#endif
