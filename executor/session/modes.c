/* SPDX-License-Identifier: Apache-2.0
 * Modes that change between steps: the session is planned again from the graphs it has, so all that persists stays
 * where it is. Scopes are a stack: what holds now, and behind it what each `pop` restores. */
#include "executor/executor.h"

/* The memory mode and the rules, with their texts, in an arena of their own. */
typedef struct inv_mode_set {
    struct inv_mode_set *outer; /* what the end of the scope restores */
    inv_arena arena;
    inv_memory memory;
    const char **keep;
    inv_mode_rule *rule;
    size_t nkeep, nrule;
} mode_set;

static void set_free(inv_context *ctx, mode_set *m)
{
    inv_arena_fini(&m->arena);
    inv_dealloc(ctx, m);
}

void inv_modes_forget(inv_session *s)
{
    for (mode_set *m = s->modes, *outer; m; m = outer) {
        outer = m->outer;
        set_free(s->ctx, m);
    }
}

static bool modes_fill(mode_set *m, const inv_session_options *o, const inv_modes *change)
{
    inv_arena *a = &m->arena;
    const size_t nkeep = change->replace ? 0 : o->nkeep, nrule = change->replace ? 0 : o->nmodes;
    m->memory = change->memory ? *change->memory : o->memory;
    m->keep = INV_ARENA_NEW(a, const char *, nkeep + 1);
    m->rule = INV_ARENA_NEW(a, inv_mode_rule, nrule + change->nrules + 1);
    if (!m->keep || !m->rule) return false;
    for (; m->nkeep < nkeep; m->nkeep++)
        if (!(m->keep[m->nkeep] = inv_arena_strdup(a, o->keep[m->nkeep]))) return false;
    for (; m->nrule < nrule + change->nrules; m->nrule++) {
        m->rule[m->nrule] = m->nrule < nrule ? o->modes[m->nrule] : change->rules[m->nrule - nrule];
        if (!(m->rule[m->nrule].glob = inv_arena_strdup(a, m->rule[m->nrule].glob))) return false;
    }
    return true;
}

/* The modes that hold now, changed; `change` NULL: a copy. */
static inv_status set_make(inv_session *s, const inv_modes *change, mode_set **out)
{
    const inv_modes none = {.size = sizeof none};
    mode_set *m = *out = inv_alloc(s->ctx, sizeof *m);
    if (!m) return INV_E_NOMEM;
    inv_arena_init(&m->arena, s->ctx);
    if (modes_fill(m, &s->program->options, change ? change : &none)) return INV_OK;
    set_free(s->ctx, m);
    *out = NULL;
    return INV_E_NOMEM;
}

/* Plans with these modes. What was computed last is gone then. */
static inv_status apply_modes(inv_session *s, const mode_set *m)
{
    inv_program *p = s->program;
    const inv_program former = *p;
    INV_TRY(inv_session_settle(s));
    p->options.memory = m->memory;
    p->options.keep = m->keep;
    p->options.nkeep = m->nkeep;
    p->options.modes = m->rule;
    p->options.nmodes = m->nrule;
    p->transient = p->control = p->host = 0;
    s->newest = -1;
    INV_TRY(inv_session_plan_again(s, &former));
    inv_log(s->ctx, "step %llu: other modes, planned again: peak %zu bytes", (unsigned long long)s->steps,
            inv_program_bytes(p));
    return INV_OK;
}

static inv_status check(inv_session *s, const inv_modes *change)
{
    INV_TRY(inv_session_whole(s));
    INV_CHECK(s->program->options.purpose == INV_FOR_TRAIN, s->ctx, INV_E_ARG,
              "this session does not train, so nothing is rebuilt and there are no modes to change");
    if (!change) return INV_OK;
    INV_CHECK(change->size == sizeof *change, s->ctx, INV_E_ABI,
              "modes of %zu bytes: this library knows %zu (set .size)", change->size, sizeof *change);
    INV_CHECK(!change->memory || (unsigned)*change->memory <= INV_MEMORY_OFFLOAD, s->ctx, INV_E_ARG,
              "no memory mode has number %d", change->memory ? (int)*change->memory : 0);
    return inv_modes_check(s->ctx, change->rules, change->nrules);
}

/* `scope`: the modes of before are kept behind, for pop. */
static inv_status change_modes(inv_session *s, const inv_modes *change, bool scope)
{
    mode_set *m;
    INV_OBJECT(s);
    INV_CHECK(change, s->ctx, INV_E_ARG, "modes is NULL: it has to be given");
    INV_TRY(check(s, change));
    /* the first set is that of the options, which are in the program's arena */
    if (!s->modes) INV_TRY(set_make(s, NULL, &s->modes));
    INV_TRY(set_make(s, change, &m));
    inv_status st = apply_modes(s, m);
    if (st != INV_OK) {
        set_free(s->ctx, m);
        return st;
    }
    m->outer = scope ? s->modes : s->modes->outer;
    if (!scope) set_free(s->ctx, s->modes);
    s->modes = m;
    return INV_OK;
}

inv_status inv_session_set_modes(inv_session *s, const inv_modes *modes) { return change_modes(s, modes, false); }

inv_status inv_session_push_modes(inv_session *s, const inv_modes *modes) { return change_modes(s, modes, true); }

inv_status inv_session_pop_modes(inv_session *s)
{
    INV_OBJECT(s);
    INV_TRY(check(s, NULL));
    mode_set *inner = s->modes;
    INV_CHECK(inner && inner->outer, s->ctx, INV_E_ARG, "no scope is open (inv_session_push_modes)");
    INV_TRY(apply_modes(s, inner->outer));
    s->modes = inner->outer;
    set_free(s->ctx, inner);
    return INV_OK;
}
