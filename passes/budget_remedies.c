/* SPDX-License-Identifier: Apache-2.0
 * What would help where a budget cannot be met, each with what a step takes then at least. */
#include <string.h>

#include "core/weights/trained.h"
#include "passes/autodiff/autodiff.h"
#include "passes/pipeline.h"
#include "passes/recover/recover.h"

void inv_bound_persistent(inv_program *p)
{
    p->surely = 0;
    for (size_t i = 0; p->untrained && i < p->source->inits.n; i++) {
        const inv_value *v = inv_val(p->source, p->source->inits.at[i]);
        size_t nbytes;
        if (p->untrained[p->source->inits.at[i]] == INV_TRAINED && inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
            p->surely += nbytes + inv_optimizer_nbytes(&p->options, nbytes);
    }
    if (p->options.budget && p->surely >= p->options.budget) inv_tell_hopeless(p, p->surely, 0);
}

/* Changes of options that are made together. */
typedef struct remedy {
    bool automatic, early, sgd;
} remedy;

/* The changes that apply, the best first: what costs time, what changes the training, what changes its batch. Bounds
 * are those of any plan, so where all is stored they go with automatic mode. Evaluation is the same in all modes. */
static size_t list_remedies(const inv_session_options *o, remedy *list)
{
    const bool searches = o->purpose == INV_FOR_TRAIN, automatic = searches && o->memory == INV_MEMORY_STORE;
    const bool trains = o->optimizer != INV_OPT_NONE;
    const bool early = trains && !o->early_update, sgd = trains && (o->optimizer != INV_OPT_SGD || o->momentum > 0);
    size_t n = 0;
    if (searches && o->memory != INV_MEMORY_AUTO) list[n++] = (remedy){.automatic = true};
    if (early) list[n++] = (remedy){automatic, true, false};
    if (sgd) list[n++] = (remedy){automatic, false, true};
    if (early && sgd) list[n++] = (remedy){automatic, true, true};
    return n;
}

static inv_session_options with_remedy(const inv_session_options *o, remedy r)
{
    inv_session_options with = *o;
    if (r.automatic) with.memory = INV_MEMORY_AUTO;
    if (r.sgd) with.optimizer = INV_OPT_SGD, with.momentum = 0;
    with.early_update |= r.early;
    return with;
}

/* Adds what is changed to the message, and, as options and their values, to the details. */
static void tell_remedy(inv_context *ctx, const inv_session_options *o, remedy r, size_t least, inv_str *said,
                        inv_str *text)
{
    const bool is_sgd = o->optimizer == INV_OPT_SGD; /* with momentum, which takes a state */
    const struct {
        bool on;
        const char *option, *value, *text;
    } part[] = {{r.automatic, "memory", "auto", " auto"},
                {r.early, "early_update", "true", ""},
                {r.sgd, is_sgd ? "momentum" : "optimizer", is_sgd ? "0" : "sgd",
                 is_sgd                             ? " 0"
                 : o->optimizer == INV_OPT_MOMENTUM ? " sgd without momentum"
                                                    : " sgd"}};
    char size[32];
    const char *option_gap = "", *gap = "";
    inv_str value;
    inv_str_init(&value, ctx);
    inv_str_add(text, "{\"option\": \"");
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i].on) continue;
        inv_str_add(said, "%s%s%s", gap, inv_option(ctx, part[i].option), part[i].text);
        inv_str_add(text, "%s%s", option_gap, part[i].option);
        inv_str_add(&value, "%s%s", option_gap, part[i].value);
        gap = *gap ? " and " : " with ";
        option_gap = ", ";
    }
    const char *quote = strcmp(value.s, "true") == 0 ? "" : "\""; /* several values are one text */
    inv_str_add(text, "\", \"value\": %s%s%s, \"least_bytes\": %zu}, ", quote, value.s, quote, least);
    inv_str_add(said, " (%s at least), ", inv_bytes_text(least, size));
    inv_str_fini(&value);
}

inv_status inv_refuse_budget(inv_program *p)
{
    enum { MOST = 4 };
    remedy list[MOST];
    const size_t n = list_remedies(&p->options, list), needed = p->shortfall;
    inv_str text, said;
    const char *message = p->shortfall_text;
    inv_str_init(&text, p->ctx);
    inv_str_init(&said, p->ctx);
    inv_str_add(&text, "{\"budget_bytes\": %llu, \"needed_bytes\": %zu, \"persistent_bytes\": %zu, \"remedies\": [",
                (unsigned long long)p->options.budget, needed, p->shortfall_rest);
    for (size_t i = 0; i < n; i++) {
        const inv_session_options with = with_remedy(&p->options, list[i]);
        size_t least;
        /* what cannot be planned is no remedy */
        if (inv_program_floor(p, &with, &least) != INV_OK || least >= needed) continue;
        tell_remedy(p->ctx, &p->options, list[i], least, &said, &text);
    }
    inv_str_add(&text, "{\"option\": \"batch\"}]}");
    const inv_status st = inv_fail(p->ctx, INV_E_NOMEM, "%s. Remedies%s: %sa smaller batch", message,
                                   said.n ? ", in this order" : "", said.s);
    if (!text.failed) inv_fail_details(p->ctx, text.s);
    inv_str_fini(&text);
    inv_str_fini(&said);
    return st;
}
