/* SPDX-License-Identifier: Apache-2.0
 * Training in stages: parameters that are frozen up to some step. Each stage is a program of its own, without
 * gradients and states of what is frozen in it; when one begins, what persists is carried over by name. */
#include "executor/executor.h"

static bool is_other(const inv_session_options *o, uint64_t step)
{
    bool other = false;
    for (size_t i = 0; i < o->nstages; i++)
        other = other || (o->stages[i].from <= o->first_step) != (o->stages[i].from <= step);
    return other;
}

inv_status inv_stages_try(inv_session *s, const inv_session_options *o)
{
    inv_session_options last = *o;
    inv_program *p;
    for (size_t i = 0; i < o->nstages; i++)
        if (o->stages[i].from > last.first_step) last.first_step = o->stages[i].from;
    if (o->purpose != INV_FOR_TRAIN || last.first_step == o->first_step) return INV_OK;
    last.plan = NULL;
    last.after_pass = NULL;
    INV_TRY(s->ctx->compile(s->model, &last, NULL, &p));
    inv_log(s->ctx, "in the last stage, from step %llu on, the planned peak is %zu bytes",
            (unsigned long long)last.first_step + 1, inv_program_bytes(p));
    p->destroy(p);
    return INV_OK;
}

static size_t trained(const inv_program *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->storage.n; i++)
        n += p->storage.at[i].kind == INV_STORAGE_PARAM && p->storage.at[i].trainable;
    return n;
}

inv_status inv_stages_program(const inv_session *s, uint64_t step, inv_program **out)
{
    inv_session_options o = s->program->options;
    *out = NULL;
    if (!is_other(&o, step)) return INV_OK;
    o.first_step = step;
    o.plan = NULL;
    return s->ctx->compile(s->model, &o, s->program, out);
}

inv_status inv_stages_enter(inv_session *s)
{
    inv_program *p;
    if (!is_other(&s->program->options, s->steps)) return INV_OK;
    INV_TRY(inv_session_settle(s));
    INV_TRY(inv_stages_program(s, s->steps, &p));
    const size_t before = trained(s->program);
    INV_TRY(inv_session_take_program(s, p));
    inv_log(s->ctx, "step %llu: a stage begins, with %zu trained parameters in place of %zu; planned peak %zu bytes",
            (unsigned long long)s->steps + 1, trained(s->program), before, inv_program_bytes(s->program));
    return INV_OK;
}
