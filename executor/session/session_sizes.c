/* SPDX-License-Identifier: Apache-2.0
 * A session for batches of other sizes: a program of its own, which takes the place of the former one. What a session
 * is lies in the session and in the options of its program, so it is all there afterwards. */
#include "core/program/options.h"
#include "executor/executor.h"

static bool same_shape(const inv_array *a, const inv_array *b)
{
    if (!a || !b) return a == b;
    if (a->rank != b->rank || a->dtype != b->dtype || (a->name && b->name && strcmp(a->name, b->name) != 0))
        return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d] != b->dims[d]) return false;
    return true;
}

static bool same_batch(const inv_session_options *a, const inv_session_options *b)
{
    bool same = a->ninputs == b->ninputs && same_shape(a->target, b->target);
    for (size_t i = 0; i < a->ninputs && same; i++) same = same_shape(&a->inputs[i], &b->inputs[i]);
    return same;
}

static inv_status with_sizes(const inv_session *s, const inv_session_sizes *given, inv_session_options *out)
{
    inv_session_sizes sizes = {0};
    inv_session_options o = s->program->options;
    INV_CHECK(given, s->ctx, INV_E_ARG, "sizes is NULL: it has to be given");
    INV_TRY(inv_options_take(s->ctx, "sizes", &sizes, sizeof sizes, given, given->size));
    if (sizes.inputs) {
        o.inputs = sizes.inputs;
        o.ninputs = sizes.ninputs;
        o.target = sizes.target;
    }
    o.tail_batch = sizes.tail_batch;
    o.eval_batch = sizes.eval_batch;
    o.eval_tail = sizes.eval_tail;
    o.plan = sizes.plan;
    INV_TRY(inv_options_read(s->ctx, &o, out));
    return inv_session_check_rows(s, out);
}

/* The steps of a batch that stays as it was keep their plan. */
static inv_status compile(inv_session *s, inv_session_options *o, inv_program **fresh)
{
    const inv_program *former = s->program;
    char *plan = NULL;
    if (!o->plan && o->purpose == INV_FOR_TRAIN && same_batch(o, &former->options)) {
        INV_TRY(former->save(former, &plan));
        o->plan = plan;
    }
    inv_status st = s->ctx->compile(s->model, o, former, fresh);
    if (st == INV_E_ARG && plan) {
        o->plan = NULL;
        st = s->ctx->compile(s->model, o, former, fresh);
    }
    inv_dealloc(s->ctx, plan);
    return st;
}

inv_status inv_session_resize(inv_session *s, const inv_session_sizes *sizes)
{
    INV_OBJECT(s);
    inv_session_options o;
    inv_program *fresh;
    INV_TRY(inv_session_whole(s));
    INV_TRY(with_sizes(s, sizes, &o));
    INV_TRY(inv_session_settle(s));
    inv_workers_use(s);
    INV_TRY(compile(s, &o, &fresh));
    INV_TRY(inv_session_take_program(s, fresh));
    inv_log(s->ctx, "step %llu: planned for other sizes: peak %zu bytes", (unsigned long long)s->steps + 1,
            inv_program_bytes(s->program));
    return INV_OK;
}
