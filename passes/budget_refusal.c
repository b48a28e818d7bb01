/* SPDX-License-Identifier: Apache-2.0
 * What would help where a budget cannot be met, each with what a step takes then at least. */
#include "core/trained.h"
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

typedef struct remedy {
    const char *option, *value; /* of inv_session_options, as JSON */
    bool early, sgd;
    inv_session_options options;
} remedy;

/* The changes that apply, the best first: what costs nothing, what changes the training, what changes its batch. */
static size_t list_remedies(const inv_program *p, remedy *list)
{
    const inv_session_options *o = &p->options;
    size_t n = 0;
    if (o->optimizer != INV_OPT_NONE && !o->early_update) list[n++] = (remedy){"early_update", "true", true, false, *o};
    if (o->optimizer != INV_OPT_NONE && o->optimizer != INV_OPT_SGD)
        list[n++] = (remedy){"optimizer", "\"sgd\"", false, true, *o};
    if (n == 2) list[n++] = (remedy){"early_update, optimizer", "\"true, sgd\"", true, true, *o};
    for (size_t i = 0; i < n; i++) {
        list[i].options.early_update |= list[i].early;
        if (list[i].sgd) list[i].options.optimizer = INV_OPT_SGD;
    }
    return n;
}

inv_status inv_refuse_budget(inv_program *p)
{
    enum { MOST = 3 };
    remedy list[MOST];
    const size_t n = list_remedies(p, list), needed = p->shortfall;
    inv_str text, said;
    const char *message = p->shortfall_text;
    inv__str_init(&text, p->ctx);
    inv__str_init(&said, p->ctx);
    inv__str_add(&text, "{\"budget_bytes\": %llu, \"needed_bytes\": %zu, \"persistent_bytes\": %zu, \"remedies\": [",
                 (unsigned long long)p->options.budget, needed, p->persistent);
    for (size_t i = 0; i < n; i++) {
        char size[32];
        size_t least;
        /* what cannot be planned is no remedy */
        if (inv_program_floor(p, &list[i].options, &least) != INV_OK || least >= needed) continue;
        inv__str_add(&text, "{\"option\": \"%s\", \"value\": %s, \"least_bytes\": %zu}, ", list[i].option,
                     list[i].value, least);
        if (list[i].early) inv__str_add(&said, "%s", inv__option(p->ctx, "early_update"));
        if (list[i].early && list[i].sgd) inv__str_add(&said, " with ");
        if (list[i].sgd) inv__str_add(&said, "%s sgd", inv__option(p->ctx, "optimizer"));
        inv__str_add(&said, " (%s at least), ", inv__bytes_text(least, size));
    }
    inv__str_add(&text, "{\"option\": \"batch\"}]}");
    const inv_status st = inv__fail(p->ctx, INV_E_NOMEM, "%s. What would help%s: %sa smaller batch", message,
                                    n ? ", in this order" : "", said.s ? said.s : "");
    if (text.s) inv__fail_details(p->ctx, text.s);
    inv__str_fini(&text);
    inv__str_fini(&said);
    return st;
}
