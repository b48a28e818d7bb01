/* SPDX-License-Identifier: Apache-2.0 */
#include "planner_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct state {
    double cost;
    uint32_t key; /* step of backward * 2^nvalue + set */
} state;

typedef struct oracle {
    const inv_problem *p;
    size_t budget;
    double *best; /* per key */
    state *heap;
    size_t n, cap;
    size_t *bytes; /* per set */
} oracle;

static void push(oracle *o, double cost, uint32_t key)
{
    if (cost >= o->best[key]) return;
    o->best[key] = cost;
    if (o->n == o->cap) o->heap = realloc(o->heap, (o->cap = 2 * o->cap + 64) * sizeof *o->heap);
    size_t i = o->n++;
    for (; i > 0 && o->heap[(i - 1) / 2].cost > cost; i = (i - 1) / 2) o->heap[i] = o->heap[(i - 1) / 2];
    o->heap[i] = (state){cost, key};
}

static state pop(oracle *o)
{
    state top = o->heap[0], x = o->heap[--o->n];
    size_t i = 0;
    for (size_t c = 1; c < o->n; c = 2 * i + 1) {
        if (c + 1 < o->n && o->heap[c + 1].cost < o->heap[c].cost) c++;
        if (o->heap[c].cost >= x.cost) break;
        o->heap[i] = o->heap[c];
        i = c;
    }
    o->heap[i] = x;
    return top;
}

static uint32_t set_of(const uint32_t *list, uint32_t n)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < n; i++) set |= 1u << list[i];
    return set;
}

/* Whether forward fits if `kept` of its values stay to its end. */
static bool forward_fits(const oracle *o, uint32_t kept)
{
    const inv_problem *p = o->p;
    uint32_t there = 0;
    for (uint32_t t = 0; t < p->forward; t++) {
        const inv_pb_step *s = &p->step[t];
        for (uint32_t v = 0; v < p->nvalue; v++)
            if (p->value[v].def == t) there |= 1u << v;
        size_t need = o->bytes[there] + s->at;
        uint32_t later = kept;
        for (uint32_t u = t + 1; u < p->forward; u++) later |= set_of(p->step[u].read, p->step[u].nread);
        for (uint32_t i = 0; i < s->nread; i++)
            if (s->overwrites >> i & 1 && !(later >> s->read[i] & 1)) {
                need -= p->value[s->read[i]].nbytes;
                break;
            }
        if (need > o->budget) return false;
        there &= later;
    }
    return true;
}

static void fire(oracle *o, const state *x, uint32_t t, uint32_t set, const inv_pb_edge *e)
{
    const uint32_t n = o->p->nvalue, sources = set_of(e->source, e->nsource);
    if (o->p->value[e->target[0]].def == INV_NEVER) return; /* a choice is none before its step */
    if ((set & sources) != sources) return;
    for (uint32_t want = 1; want < 1u << e->ntarget; want++) {
        uint32_t there = set;
        for (uint32_t i = 0; i < e->ntarget; i++)
            if (want >> i & 1) there |= 1u << e->target[i];
        if (there == set) continue;
        const size_t need = o->bytes[there] + e->scratch + o->p->step[t].before;
        if (need <= o->budget) push(o, x->cost + e->cost, (t - o->p->forward) << n | there);
        for (uint32_t i = 0; i < e->nsource; i++)
            if (e->overwrites >> i & 1 && need - o->p->value[e->source[i]].nbytes <= o->budget)
                push(o, x->cost + e->cost, (t - o->p->forward) << n | (there & ~(1u << e->source[i])));
    }
}

/* What the step reads, of choices what is there of them. */
static bool readable(const oracle *o, const inv_pb_step *s, uint32_t set)
{
    for (uint32_t i = 0; i < s->nread; i++) {
        const inv_pb_value *v = &o->p->value[s->read[i]];
        bool any = set >> s->read[i] & 1;
        for (uint32_t k = v->first; v->def == INV_NEVER && k < v->first + v->n; k++) {
            const inv_pb_edge *e = &o->p->edge[o->p->edge_of[k]];
            const uint32_t sources = set_of(e->source, e->nsource);
            any |= (set & sources) == sources;
        }
        if (!any) return false;
    }
    return true;
}

static void advance(oracle *o, const state *x, uint32_t t, uint32_t set)
{
    const inv_pb_step *s = &o->p->step[t];
    const uint32_t n = o->p->nvalue;
    if (!readable(o, s, set)) return;
    const size_t need = o->bytes[set] + s->at;
    if (need <= o->budget) push(o, x->cost, (t + 1 - o->p->forward) << n | set);
    for (uint32_t i = 0; i < s->nread; i++)
        if (s->overwrites >> i & 1 && need - o->p->value[s->read[i]].nbytes <= o->budget)
            push(o, x->cost, (t + 1 - o->p->forward) << n | (set & ~(1u << s->read[i])));
}

static double search(oracle *o)
{
    const inv_problem *p = o->p;
    const uint32_t n = p->nvalue;
    while (o->n) {
        const state x = pop(o);
        const uint32_t t = (x.key >> n) + p->forward, set = x.key & ((1u << n) - 1);
        if (x.cost > o->best[x.key]) continue;
        if (t == p->nstep) return x.cost;
        for (uint32_t v = 0; v < n; v++)
            if (set >> v & 1) push(o, x.cost, (t - p->forward) << n | (set & ~(1u << v)));
        for (uint32_t i = 0; i < p->nedge; i++) fire(o, &x, t, set, &p->edge[i]);
        advance(o, &x, t, set);
    }
    return INFINITY;
}

double oracle_cost(const inv_problem *p, size_t budget)
{
    const size_t sets = (size_t)1 << p->nvalue, keys = sets * (p->nstep - p->forward + 1);
    oracle o = {.p = p, .budget = budget};
    o.best = malloc(keys * sizeof(double));
    o.bytes = malloc(sets * sizeof(size_t));
    double cost = INFINITY;
    if (o.best && o.bytes) {
        for (size_t k = 0; k < keys; k++) o.best[k] = INFINITY;
        uint32_t given = 0;
        for (uint32_t v = 0; v < p->nvalue; v++)
            if (p->value[v].def != INV_NEVER) given |= 1u << v;
        for (uint32_t set = 0; set < sets; set++) {
            o.bytes[set] = 0;
            for (uint32_t v = 0; v < p->nvalue; v++)
                if (set >> v & 1) o.bytes[set] += p->value[v].nbytes;
        }
        for (uint32_t set = 0; set < sets; set++)
            if (!(set & ~given) && forward_fits(&o, set)) push(&o, 0, set);
        cost = search(&o);
    }
    free(o.best);
    free(o.bytes);
    free(o.heap);
    return cost;
}
