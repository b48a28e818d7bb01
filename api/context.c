/* SPDX-License-Identifier: Apache-2.0
 * Joins the parts: a context with every built-in operator family and rule set, and the compiler. Rule sets come in by
 * the same entry point as a plugin's. */
#include "core/rules/plugin.h"
#include "ops/base/families.h"
#include "passes/export/export.h"
#include "passes/front/front.h"
#include "passes/pipeline.h"

#define RULE_SETS(X) X(coupling) X(linear) X(batchnorm) X(norm) X(activations) X(rearrange)

#define DECLARE(set) inv_status inv_plugin_init_##set(const inv_api *, struct inv_registry *);
RULE_SETS(DECLARE)
#undef DECLARE

static inv_status add_ops(inv_registry *r)
{
    static const inv_op_def *const *const families[] = {
#define FAMILY(family) inv_ops_##family,
        INV_OP_FAMILIES(FAMILY)
#undef FAMILY
    };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (const inv_op_def *const *row = families[f]; *row; row++) INV_TRY(inv_registry_add_op(r, *row));
    return INV_OK;
}

static inv_status add_rules(inv_registry *r)
{
    static inv_status (*const sets[])(const inv_api *, struct inv_registry *) = {
#define SET(set) inv_plugin_init_##set,
        RULE_SETS(SET)
#undef SET
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) INV_TRY(sets[i](&inv_plugin_api, r));
    return INV_OK;
}

static bool bare(const inv_context_options *o)
{
    return o && o->size >= offsetof(inv_context_options, no_rules) + sizeof o->no_rules && o->no_rules;
}

inv_status inv_context_create(const inv_context_options *options, inv_context **out)
{
    INV_OBJECT(out);
    *out = NULL;
    inv_context *ctx;
    INV_TRY(inv_context_init(options, &ctx));
    inv_status s = inv_registry_create(ctx, &ctx->registry);
    ctx->api = &inv_plugin_api;
    if (s == INV_OK) inv_registry_set_pairs(ctx->registry, inv_pairs_load);
    if (s == INV_OK) s = add_ops(ctx->registry);
    if (s == INV_OK && !bare(options)) s = add_rules(ctx->registry);
    if (s != INV_OK) {
        inv_context_destroy(ctx);
        return s;
    }
    ctx->compile = inv_compile;
    ctx->volumes = inv_volumes_by_rules;
    ctx->support = inv_support_of;
    *out = ctx;
    return INV_OK;
}

void inv_context_destroy(inv_context *ctx)
{
    if (!ctx) return;
    ctx->log = NULL; /* the caller's functions may go now, but for the allocator's */
    ctx->progress = NULL;
    ctx->stopped = NULL;
    ctx->option_name = NULL;
    inv_context_leave(ctx);
}
