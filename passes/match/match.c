/* SPDX-License-Identifier: Apache-2.0
 * Matches inverse rules against the graph. A rule is a pattern of operators and regions (subgraphs of any content),
 * with conditions and a way to solve for one of its values. Three things come out: inverse edges (ways to get a value
 * back), blocks (named places, such as a coupling), and refusals (candidates that almost match, with the reason).
 *
 * 1. Rules of one operator are tried at each node: match_local.c.
 * 2. Longer rules without regions give edges, too, and then edges are indexed: a search for a region asks which of its
 *    entries can be recovered, so it needs them.
 * 3. Longer rules are tried at each node that may be their first operator: match_block. An attempt binds one statement
 *    after the other, always the one that may stand for the fewest nodes, and goes back where nothing fits
 *    (backtracking over copies of the binding). A region is searched for as soon as its exits are bound (region.c).
 *
 * A statement is tried at every node that it may stand for, and a commutative operator with its operands either way
 * round, so neither order keeps a pattern from being found. Where several bindings fit, the first is taken, by the
 * order of nodes; a region begins at the nearest entry that is accepted; and a node is in the pattern of one longer
 * block, the first that takes it. What is found need not be used: the planner decides that. Patterns have a handful of
 * operators, so an attempt is quick; regions may be as long as the graph, so all searches of a graph share one budget
 * (SEARCH_BUDGET), which they get twice: once at the start, and once in parts, a part for each node.
 * requires: canonical forward graph.  gives: g->matches; templates of solving nodes, outside of the order. */
#include <string.h>

#include "core/rules/condition.h"
#include "passes/match/match.h"

/* candidate nodes, and nodes and inputs on walks for regions, that are looked at */
enum { SEARCH_BUDGET = 20000000 };

/* --- blocks of several nodes --- */

/* How far an attempt got before it failed; that which got furthest is reported. */
enum {
    NOTHING,   /* operators of the pattern are missing, which is not reported */
    NO_REGION, /* the operators in front of it are there, but there is no region */
    NO_FIT,    /* all of the pattern is there, but a condition fails (INV_UNFIT) */
    FORBIDDEN  /* all of the pattern is there, but values forbid it (INV_REFUSED) */
};
/* Why an attempt failed. */
typedef struct diagnosis {
    int stage;
    inv_region_query query; /* of NO_REGION; report_diagnosis puts it into words */
    inv_why why;            /* of the later stages */
    const inv_inverse_def *rule;
    inv_id value, last; /* the last node of the pattern, if it was found */
} diagnosis;

/* Holds what one attempt to match a rule has bound and found so far. Going back means to take an older copy; copies
 * share the arrays, of which the older counts say how much is valid, and `done`, which is set back entry by entry. */
typedef struct attempt {
    inv_matcher *m;
    const inv_rule *rule;
    inv_binding b;
    inv_id *node; /* m->pattern_node */
    uint32_t nnode;
    inv_id *region; /* nodes of the regions found so far */
    uint32_t nregion;
    bool *done;   /* m->stmt_done */
    bool step;    /* it looks for a shorter block inside of a longer one that begins at the same node */
    bool changed; /* a region's query had `changed` (match.h) */
    diagnosis why;
} attempt;

/* Of two attempts that found no region, that which came to a value says more. */
static bool says_less(const diagnosis *e, const diagnosis *than)
{
    return e->stage == NO_REGION && than->stage == NO_REGION && e->query.loss == INV_LOST_NO_ENTRY &&
           than->query.loss != INV_LOST_NO_ENTRY;
}

static void keep_later(diagnosis *e, const diagnosis *other)
{
    if (other->stage > e->stage || says_less(e, other)) *e = *other;
}

static inv_status report_diagnosis(inv_matcher *m, const diagnosis *e, inv_id node)
{
    inv_why why = e->why;
    if (e->stage == FORBIDDEN) m->reported[e->last] = true;
    if (e->stage == NO_REGION) INV_TRY(inv_diagnose_region(m, &e->query, &why));
    INV_TRY(inv_report_refusal(m, e->rule, node, e->value, &why));
    m->out->refusal.at[m->out->refusal.n - 1].one_source = e->stage == NO_REGION && e->query.loss == INV_LOST_SHARED;
    return INV_OK;
}

static bool condition_names(const char *when, const char *what, const char *arg)
{
    bool named = false;
    inv_condition c;
    while (when && !named && inv_condition_next(&when, INV_IN_WHEN, &c) > 0)
        named = strcmp(c.name, what) == 0 && strcmp(c.arg[0], arg) == 0;
    return named;
}

static bool leads_to(const inv_stmt *region, const char *name)
{
    for (uint32_t i = 0; i < region->nout; i++)
        if (strcmp(region->out[i], name) == 0) return true;
    return false;
}

/* All exits of the region are bound here. *partner becomes the other operand of the first statement that reads one of
 * them, *combined what the last such statement gives. */
static void region_context(const attempt *a, const inv_stmt *region, inv_id *partner, inv_id *combined)
{
    *partner = *combined = INV_NONE;
    for (size_t i = 0; i < a->rule->match.n; i++) {
        const inv_pattern_stmt *p = &a->rule->match.at[i];
        const inv_stmt *s = p->s;
        uint32_t exits = 0, other = 0;
        for (uint32_t k = 0; k < s->nin && !inv_stmt_is_region(s); k++) {
            if (leads_to(region, s->in[k])) exits++;
            else other = k;
        }
        if (!exits) continue;
        if (*partner == INV_NONE && exits < s->nin && !inv_term_is(&p->in[other], "param"))
            *partner = inv_binding_get(&a->b, s->in[other]);
        *combined = inv_binding_get(&a->b, s->out[0]);
    }
}

/* Statement i is a region that has not been found yet, and all its exits are bound. */
static bool region_is_next(const attempt *a, size_t i)
{
    const inv_stmt *s = a->rule->match.at[i].s;
    if (a->done[i] || !inv_stmt_is_region(s)) return false;
    for (uint32_t k = 0; k < s->nout; k++)
        if (inv_binding_get(&a->b, s->out[k]) == INV_NONE) return false;
    return true;
}

/* The value that would be freed may be the region's entry as well if an operator of the pattern reads it, too, and so
 * can be solved for it; or in a step of a longer block, as that has been found to be invertible. */
static bool may_read_freed(const attempt *a, const inv_stmt *region)
{
    bool read = a->step;
    for (size_t i = 0; i < a->rule->match.n && !read; i++) {
        const inv_stmt *s = a->rule->match.at[i].s;
        for (uint32_t k = 0; k < s->nin && !inv_stmt_is_region(s); k++)
            read = read || strcmp(s->in[k], region->in[0]) == 0;
    }
    return read;
}

static bool accept_entry(inv_matcher *m, const inv_region *r, inv_id entry, void *opaque)
{
    const attempt *a = opaque;
    const inv_stmt *region = NULL;
    for (size_t i = 0; i < a->rule->match.n && !region; i++)
        if (region_is_next(a, i)) region = a->rule->match.at[i].s;
    if (!region || r->nnode == 0) return false;
    inv_id partner, combined;
    region_context(a, region, &partner, &combined);
    /* The freed value may be the entry only there, and then has to be recoverable even if the rule does not ask it. */
    if (entry == partner && !may_read_freed(a, region)) return false;
    bool asked = condition_names(a->rule->def->when, "recoverable", region->in[0]);
    return (!asked && entry != partner) || inv_region_recoverable(m, entry, partner, combined);
}

/* The same search may have failed before, at this node, and it may have been a long one. */
static bool lost_before(const inv_matcher *m, inv_region_query *w)
{
    for (uint32_t i = 0; i < m->nlost; i++) {
        const inv_region_query *l = &m->lost[i];
        if (l->nexit == w->nexit && memcmp(l->exit, w->exit, w->nexit * sizeof *w->exit) == 0 && l->entry == w->entry &&
            l->partner == w->partner && l->combined == w->combined && l->recoverable == w->recoverable &&
            l->several == w->several) {
            *w = *l;
            return true;
        }
    }
    return false;
}

static inv_status match_rest(attempt *a, bool *found);

static inv_status match_region(attempt *a, size_t i, bool *found)
{
    const inv_stmt *s = a->rule->match.at[i].s;
    inv_region r;
    bool have = false;
    inv_region_query w = {.entry = inv_binding_get(&a->b, s->in[0]), .nexit = s->nout};
    if (s->nout > INV_MAX_EXIT) return INV_OK;
    region_context(a, s, &w.partner, &w.combined);
    for (uint32_t k = 0; k < s->nout; k++) w.exit[k] = inv_binding_get(&a->b, s->out[k]);
    w.recoverable = condition_names(a->rule->def->when, "recoverable", s->in[0]);
    w.several = inv_is_variadic(s->in[0]);
    bool lost = lost_before(a->m, &w);
    if (!lost && w.several) have = inv_region_find_several(a->m, &w, &r);
    else if (!lost) INV_TRY(inv_region_find(a->m, &w, accept_entry, a, &r, &have));
    if (!have) {
        /* That no set of entries fits has no single value to name, so it is not reported. */
        if (!w.several) keep_later(&a->why, &(diagnosis){.stage = NO_REGION, .query = w});
        if (!lost && a->m->nlost < sizeof a->m->lost / sizeof *a->m->lost) a->m->lost[a->m->nlost++] = w;
        return INV_OK;
    }
    attempt saved = *a;
    inv_id *entry = INV_ARENA_NEW(&a->m->scratch, inv_id, r.nentry);
    inv_id *region = INV_ARENA_NEW(&a->m->scratch, inv_id, a->nregion + r.nnode + 1);
    if (!entry || !region) return INV_E_NOMEM;
    memcpy(entry, r.entry, r.nentry * sizeof *entry);
    if (a->nregion) memcpy(region, a->region, a->nregion * sizeof *region);
    memcpy(region + a->nregion, r.node, r.nnode * sizeof *region);
    a->region = region;
    a->nregion += r.nnode;
    a->changed = a->changed || w.changed;
    a->done[i] = true;
    if (inv_binding_set(&a->b, s->in[0], entry, r.nentry)) INV_TRY(match_rest(a, found));
    if (!*found) {
        diagnosis why = a->why;
        *a = saved;
        a->why = why;
        a->done[i] = false;
    }
    return INV_OK;
}

/* Lists the nodes that an operator statement may stand for: the one that gives a bound output, else the users of the
 * bound input that has fewest. 0: none of its operands is bound, or nothing is left. *one: room for a list of one. */
static uint32_t candidate_nodes(const attempt *a, const inv_stmt *s, inv_id *one, const inv_id **list)
{
    const inv_matcher *m = a->m;
    uint32_t least = UINT32_MAX;
    *list = one;
    for (uint32_t k = 0; k < s->nout; k++) {
        const inv_id out = inv_binding_get(&a->b, s->out[k]);
        if (out == INV_NONE) continue;
        *one = inv_val(m->g, out)->def;
        return *one != INV_NONE;
    }
    for (uint32_t k = 0; k < s->nin; k++) {
        const inv_id in = inv_binding_get(&a->b, s->in[k]);
        if (in == INV_NONE || m->uses.start[in + 1] - m->uses.start[in] >= least) continue;
        least = m->uses.start[in + 1] - m->uses.start[in];
        *list = &m->uses.node[m->uses.start[in]];
    }
    return least == UINT32_MAX ? 0 : least;
}

static inv_status match_operator(attempt *a, size_t i, bool *found)
{
    const inv_pattern_stmt *s = &a->rule->match.at[i];
    inv_matcher *m = a->m;
    inv_id one;
    const inv_id *from;
    const uint32_t n = candidate_nodes(a, s->s, &one, &from);
    const inv_op_def *other = NULL; /* that the statement is not about, so that users of one kind (there may be
                                       thousands) are compared once */
    attempt saved = *a;
    for (uint32_t u = 0; u < n && !*found; u++) {
        inv_id node = from[u];
        if (!inv_region_spend(m, 1)) break;
        if (inv_nod(m->g, node)->op == other || m->partial[node]) continue;
        if (!inv_pattern_names(s, inv_nod(m->g, node))) {
            other = inv_nod(m->g, node)->op;
            continue;
        }
        for (int swap = 0; swap < 2 && !*found; swap++) {
            if (!inv_pattern_bind(m->g, m->active, s, inv_nod(m->g, node), swap, &a->b)) {
                *a = saved;
                continue;
            }
            a->node[a->nnode++] = node;
            a->done[i] = true;
            INV_TRY(match_rest(a, found));
            if (!*found) {
                keep_later(&saved.why, &a->why);
                *a = saved;
                a->done[i] = false;
            }
        }
    }
    return INV_OK;
}

/* Chooses, among the operator statements that are left and share a value with what is bound, the one that may stand for
 * the fewest nodes. If none is left, the result is the number of statements. */
static size_t next_operator(const attempt *a)
{
    const inv_pattern *st = &a->rule->match;
    size_t next = st->n;
    uint32_t fewest = 0;
    for (size_t i = 0; i < st->n; i++) {
        inv_id one;
        const inv_id *list;
        if (a->done[i] || inv_stmt_is_region(st->at[i].s)) continue;
        const uint32_t n = candidate_nodes(a, st->at[i].s, &one, &list);
        if (n == 0 || (next < st->n && n >= fewest)) continue;
        next = i;
        fewest = n;
    }
    return next;
}

static bool has_region(const inv_rule *rule)
{
    bool any = false;
    for (size_t i = 0; i < rule->match.n && !any; i++) any = inv_stmt_is_region(rule->match.at[i].s);
    return any;
}

static inv_status match_rest(attempt *a, bool *found)
{
    size_t n = a->rule->match.n, next = n;
    for (size_t i = 0; i < n && next == n; i++)
        if (region_is_next(a, i)) next = i;
    if (next < n) return match_region(a, next, found);
    next = next_operator(a);
    if (next < n) return match_operator(a, next, found);
    for (size_t i = 0; i < n; i++)
        if (!a->done[i]) return INV_OK;
    for (uint32_t k = 0; k + 1 < a->nnode; k++) { /* the one that comes last in the order stands last */
        const inv_id one = a->node[k], end = a->node[a->nnode - 1];
        if (a->m->pos[one] > a->m->pos[end]) a->node[a->nnode - 1] = one, a->node[k] = end;
    }
    diagnosis e = {.stage = NO_FIT, .last = a->node[a->nnode - 1]};
    inv_node last = *inv_nod(a->m->g, e.last);
    inv_verdict verdict;
    INV_TRY(inv_rule_when(a->m, a->rule, &a->b, &last, &verdict, &e.why));
    *found = verdict == INV_HOLDS;
    if (verdict == INV_REFUSED) e.stage = FORBIDDEN;
    /* Without a region, operators that do not fit are no candidate at all, but for whoever brings the rule. */
    if (e.why.reason && (has_region(a->rule) || verdict == INV_REFUSED || a->rule->asked)) keep_later(&a->why, &e);
    return INV_OK;
}

static bool all_active(const attempt *a, const inv_pattern_stmt *s)
{
    for (uint32_t k = 0; k < s->s->nin; k++) {
        if (inv_term_is(&s->in[k], "param")) continue;
        inv_id v = inv_binding_get(&a->b, s->s->in[k]);
        if (v == INV_NONE || !a->m->active[v]) return false;
    }
    return true;
}

static inv_id freed_by(const attempt *a)
{
    return a->rule->def->frees ? inv_binding_get(&a->b, a->rule->def->frees) : INV_NONE;
}

static bool is_unsolved(const attempt *a)
{
    const inv_matcher *m = a->m;
    bool is = false;
    for (size_t i = 0; i < m->unsolved.n && !is; i++) {
        const inv_unsolved *u = &m->unsolved.at[i];
        is = u->rule == a->rule->def && u->node == a->node[a->nnode - 1] && u->frees == freed_by(a);
    }
    return is;
}

/* The attempt is one operator of a longer block, and another operator of that block gives what it would free. Then that
 * value is only an intermediate one of the longer block: the two operators make one change of a half, not two. */
static bool within_longer(const attempt *a)
{
    const inv_matcher *m = a->m;
    const inv_id freed = freed_by(a), giver = freed == INV_NONE ? INV_NONE : inv_val(m->g, freed)->def;
    bool within = false;
    if (!a->changed || a->nnode > 1 || giver == INV_NONE || !m->paired[a->node[0]] || !m->paired[giver]) return false;
    for (size_t i = m->out->block.n; i-- > 0 && !within;) {
        const inv_block *b = &m->out->block.at[i];
        within = inv_ids_have(b->node, b->npattern, a->node[0]) && inv_ids_have(b->node, b->npattern, giver);
    }
    return within;
}

/* Adds the block if it may claim its nodes. Patterns of several operators do not overlap. Inside of a longer block that
 * begins at the same node, a shorter one is a step if what it gives leaves the longer one. */
static inv_status claim_block(attempt *a, uint32_t longer, bool *found)
{
    inv_matcher *m = a->m;
    inv_block b;
    bool may_claim = longer == INV_NONE;
    *found = false;
    for (uint32_t k = 0; k < a->nnode && a->nnode > 1; k++)
        if (m->paired[a->node[k]]) return INV_OK;
    if (is_unsolved(a) || within_longer(a)) return INV_OK;
    INV_TRY(inv_block_make(m, a->rule, &a->b, a->node, a->nnode, a->region, a->nregion, &b));
    for (uint32_t k = 0; !may_claim && b.nout && k < m->out->block.at[longer].nout; k++)
        may_claim = m->out->block.at[longer].out[k] == b.out[0];
    if (!may_claim) return INV_OK;
    for (uint32_t k = 0; k < a->nnode && a->nnode > 1; k++) m->paired[a->node[k]] = true;
    *found = true;
    return inv_vec_push(&m->g->arena, &m->out->block, b) ? INV_OK : INV_E_NOMEM;
}

/* Adds the edges of a pattern that has been found: it is a way to solve for what it frees, whatever blocks its nodes
 * come to be in. */
static inv_status solve_block(attempt *a, uint32_t longer, bool *found)
{
    (void)longer, (void)found;
    inv_matcher *m = a->m;
    const inv_inverse_def *rule = a->rule->def;
    const inv_id node = a->node[a->nnode - 1];
    bool made;
    inv_why why;
    INV_TRY(inv_edges_add(m, a->rule, &a->b, node, &made, &why));
    if (made || !*inv_rule_kind(rule)) return INV_OK;
    const inv_unsolved u = {rule, node, freed_by(a)};
    if (!inv_vec_push(&m->scratch, &m->unsolved, u)) return INV_E_NOMEM;
    return inv_report_refusal(m, rule, node, u.frees, &why);
}

/* Reports what a pattern of a rule that refuses was found for. */
static inv_status refuse_block(attempt *a, uint32_t longer, bool *found)
{
    (void)longer, (void)found;
    const inv_inverse_def *rule = a->rule->def;
    if (!rule->refuse) return INV_OK;
    const inv_why why = {.reason = rule->refuse, .remedy = rule->remedy};
    return inv_report_refusal(a->m, rule, a->node[a->nnode - 1], freed_by(a), &why);
}

/* Matches the rule where its first operator statement is this node, and calls `then` for what was found; that may set
 * *found back to false, and then the other order of the node's operands is tried, too. */
static inv_status match_block(inv_matcher *m, const inv_rule *rule, inv_id node, uint32_t longer,
                              inv_status (*then)(attempt *, uint32_t longer, bool *found), bool *found, diagnosis *why)
{
    size_t first = 0;
    while (first < rule->match.n && inv_stmt_is_region(rule->match.at[first].s)) first++;
    if (first == rule->match.n) return INV_OK;
    const inv_pattern_stmt *s = &rule->match.at[first];
    for (int swap = 0; swap < 2 && !*found; swap++) {
        attempt a = {.m = m,
                     .rule = rule,
                     .step = longer != INV_NONE,
                     .b = m->pattern,
                     .node = m->pattern_node,
                     .done = m->stmt_done};
        memset(a.done, 0, rule->match.n * sizeof *a.done);
        if (!inv_pattern_bind(m->g, m->active, s, inv_nod(m->g, node), swap, &a.b) || !all_active(&a, s)) continue;
        a.node[a.nnode++] = node;
        a.done[first] = true;
        INV_TRY(match_rest(&a, found));
        if (*found) {
            INV_TRY(then(&a, longer, found));
            continue;
        }
        if (a.why.stage <= why->stage) continue;
        *why = a.why;
        why->rule = rule->def;
        why->value = freed_by(&a);
    }
    return INV_OK;
}

/* Adds the edges of longer patterns at a node. Those without regions come first, as the search for regions relies on
 * edges. */
static inv_status match_edges(inv_matcher *m, inv_id node, bool regions)
{
    for (size_t i = 0; i < m->nrule; i++) {
        const inv_rule *rule = &m->rule[i];
        if (rule->match.n < 2 || !rule->def->solve || has_region(rule) != regions) continue;
        bool found = false;
        diagnosis e = {0};
        m->nlost = 0;
        INV_TRY(match_block(m, rule, node, INV_NONE, solve_block, &found, &e));
    }
    return INV_OK;
}

/* Of a plugin's rule whose pattern is there, says which condition fails, whatever else is found or refused there.
 * One that names nothing is heard where the inverse direction stops. */
static inv_status report_owner(inv_matcher *m, const inv_rule *rule, inv_id node, diagnosis *e)
{
    INV_TRY(inv_diagnose_owner(m, rule, &e->why));
    const inv_refusal r = {inv_rule_kind(rule->def), node, rule->def, e->value, e->why, false};
    if (*r.kind) return inv_report_refusal(m, rule->def, node, e->value, &e->why);
    return inv_vec_push(&m->g->arena, &m->out->overruled, r) ? INV_OK : INV_E_NOMEM;
}

/* Tries the longer rules that refuse, but not what a block frees; and those of plugins, which conditions may keep away.
 */
static inv_status match_refusals(inv_matcher *m, inv_id node)
{
    for (size_t i = 0; i < m->nrule; i++) {
        const inv_rule *rule = &m->rule[i];
        const size_t before = m->out->refusal.n;
        bool found = false;
        diagnosis e = {0};
        m->nlost = 0;
        if (rule->match.n < 2 || (!rule->def->refuse && !rule->asked)) continue;
        INV_TRY(match_block(m, rule, node, INV_NONE, refuse_block, &found, &e));
        if (!found && !rule->def->refuse && e.stage >= NO_FIT) {
            INV_TRY(report_owner(m, rule, node, &e));
            continue;
        }
        if (m->out->refusal.n == before) continue;
        const inv_id value = m->out->refusal.at[before].value;
        bool freed = false;
        for (size_t k = 0; k < m->out->block.n && !freed; k++)
            freed = m->out->block.at[k].nin && m->out->block.at[k].in[0] == value;
        INV_TRY(inv_report_once(m, before, freed ? value : INV_NONE));
    }
    return INV_OK;
}

static inv_status match_node(inv_matcher *m, inv_id node)
{
    diagnosis why = {0};
    uint32_t longer = INV_NONE;
    bool one = false;
    m->nlost = 0;
    for (size_t i = 0; i < m->nrule && !one; i++) {
        const inv_rule *rule = &m->rule[i];
        if (rule->match.n < 2 || !*inv_rule_kind(rule->def) || rule->def->refuse) continue;
        bool found = false;
        diagnosis e = {0};
        INV_TRY(match_block(m, rule, node, longer, claim_block, &found, &e));
        if (!found && rule->asked && e.stage >= NO_FIT) continue; /* match_refusals tells of it */
        /* Of the attempts that got furthest the last is reported: rules come by falling priority, and those with longer
         * patterns first, so it has the shortest one. But where values forbid several rules of one kind, the first is
         * reported, which has the longest pattern. */
        const bool like =
            e.stage == FORBIDDEN && why.rule && strcmp(inv_rule_kind(e.rule), inv_rule_kind(why.rule)) == 0;
        if (!found && e.stage >= why.stage + like && !says_less(&e, &why)) why = e;
        /* A longer block and the shorter one in it are both named; of one length only the first. */
        if (found && longer == INV_NONE) {
            longer = (uint32_t)m->out->block.n - 1;
            m->nlost = 0; /* regions of steps are looked for with other conditions */
        }
        if (found) one = rule->match.n == 2;
    }
    /* A longer block that only values forbid is reported beside the shorter one that there is. */
    const bool alone = !one && !m->paired[node] && !m->reported[node];
    return why.stage && (alone || (one && why.stage == FORBIDDEN)) ? report_diagnosis(m, &why, node) : INV_OK;
}

static inv_status match_all(inv_matcher *m)
{
    inv_graph *g = m->g;
    g->phase = INV_BACKWARD;
    g->fold = false;
    size_t norder = g->order.n;
    for (size_t i = 0; i < norder; i++) INV_TRY(inv_match_locals(m, g->order.at[i]));
    m->budget = SEARCH_BUDGET;
    m->norder = norder;
    INV_TRY(inv_masked_find(m));
    for (size_t i = 0; i < norder; i++) INV_TRY(match_edges(m, g->order.at[i], false));
    INV_TRY(inv_edges_index(m));
    for (size_t i = 0; i < norder; i++) {
        m->budget += SEARCH_BUDGET / norder;
        if (m->partial[g->order.at[i]]) continue;
        INV_TRY(match_edges(m, g->order.at[i], true));
        INV_TRY(match_node(m, g->order.at[i]));
    }
    for (size_t i = 0; i < norder; i++) INV_TRY(match_refusals(m, g->order.at[i]));
    INV_TRY(inv_masked_name(m));
    INV_TRY(inv_block_finish(m));
    const inv_inverse_def *favoured = inv_registry_favoured(g->ctx->registry);
    if (favoured) inv_edges_prefer(m->out, favoured);
    return favoured && m->nrule && m->rule->def == favoured ? inv_near_fit(m, m->rule) : INV_OK;
}

inv_status inv_pass_match(inv_graph *g)
{
    inv_matcher m = {.g = g};
    inv_status st = inv_matcher_init(&m);
    if (st == INV_OK) st = match_all(&m);
    /* A node that could not be looked at for want of memory must not pass for one where no rule holds. */
    if (m.scratch.failed || g->arena.failed)
        st = inv_fail(g->ctx, INV_E_NOMEM, "out of memory while matching inverse rules");
    if (st == INV_OK) g->matches = m.out;
    inv_matcher_fini(&m);
    return st;
}
