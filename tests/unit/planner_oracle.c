/* SPDX-License-Identifier: Apache-2.0 */
#include "planner_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is there before a step: of values a bit each, of their errors two, of edges that keep something for themselves
 * whether it has been kept for one more rematerialisation, or two; whether the refused value has been read. */
enum { SIDES = 2, TWICE = 2, AT_SET = 0, AT_ERR = 20, AT_SIDE = 44, AT_HEED = 48, AT_STEP = 49 };

typedef struct state {
    double cost;
    uint64_t key;
} state;

typedef struct oracle {
    const inv_problem *p;
    size_t budget;
    state *best; /* by key, hashed; key 0 is made another by its lowest bit */
    size_t nbest, room;
    state *heap;
    size_t n, cap;
    size_t *bytes;               /* per set */
    uint32_t side[SIDES], nside; /* edges */
} oracle;

/* --- states --- */

static state *find(const oracle *o, uint64_t key)
{
    uint64_t h = (key + 1) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h >> 20) & (o->room - 1);
    while (o->best[i].key && o->best[i].key != key + 1) i = (i + 1) & (o->room - 1);
    return &o->best[i];
}

static void grow(oracle *o)
{
    state *old = o->best;
    const size_t room = o->room;
    o->room = room ? 4 * room : 1 << 12;
    o->best = calloc(o->room, sizeof *o->best);
    for (size_t i = 0; i < room; i++)
        if (old[i].key) *find(o, old[i].key - 1) = old[i];
    free(old);
}

static void push(oracle *o, double cost, uint64_t key)
{
    if (2 * o->nbest >= o->room) grow(o);
    state *s = find(o, key);
    if (s->key && cost >= s->cost) return;
    o->nbest += !s->key;
    *s = (state){cost, key + 1};
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

static uint32_t set_in(uint64_t key) { return (uint32_t)(key & ((1u << ORACLE_MOST) - 1)); }
static uint32_t step_in(uint64_t key) { return (uint32_t)(key >> AT_STEP); }
static uint32_t error_in(uint64_t key, uint32_t v)
{
    return v < ORACLE_ERRS ? (uint32_t)(key >> (AT_ERR + 2 * v)) & 3 : 0;
}

static uint64_t with_error(uint64_t key, uint32_t v, uint32_t err)
{
    if (v >= ORACLE_ERRS) return key;
    return (key & ~((uint64_t)3 << (AT_ERR + 2 * v))) | (uint64_t)err << (AT_ERR + 2 * v);
}

static uint64_t without(uint64_t key, uint32_t v) { return with_error(key & ~((uint64_t)1 << v), v, 0); }

/* Bytes that edges keep for rematerialisations to come; at step `t` of forward, or behind it. */
static size_t sides(const oracle *o, uint64_t key, uint32_t t)
{
    size_t sum = 0;
    for (uint32_t k = 0; k < o->nside * TWICE; k++) {
        const inv_pb_edge *e = &o->p->edge[o->side[k / TWICE]];
        if (key >> (AT_SIDE + k) & 1 && o->p->value[e->target[0]].def <= t) sum += e->side;
    }
    return sum;
}

/* --- forward --- */

/* Whether forward fits if what `key` has stays to its end. */
static bool forward_fits(const oracle *o, uint64_t key)
{
    const inv_problem *p = o->p;
    uint32_t there = 0;
    for (uint32_t t = 0; t < p->forward; t++) {
        const inv_pb_step *s = &p->step[t];
        for (uint32_t v = 0; v < p->nvalue; v++)
            if (p->value[v].def == t) there |= 1u << v;
        size_t need = o->bytes[there] + s->at + sides(o, key, t);
        uint32_t later = set_in(key);
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

/* What forward may leave. */
static void start(oracle *o)
{
    const inv_problem *p = o->p;
    uint32_t no_store = 0;
    for (uint32_t v = 0; v < p->nvalue; v++)
        if (p->value[v].no_store) no_store |= 1u << v;
    for (uint32_t set = 0; set < 1u << p->nvalue; set++)
        for (uint32_t k = 0; k < 1u << (o->nside * TWICE); k++) {
            const uint64_t key = set | (uint64_t)k << AT_SIDE;
            double cost = 0;
            for (uint32_t v = 0; v < p->nvalue; v++) cost += set & no_store & 1u << v ? ORACLE_KEPT : 0;
            if (forward_fits(o, key)) push(o, cost, key | (uint64_t)p->forward << AT_STEP);
        }
}

/* --- backward --- */

/* After the refused value has been read for the first time, whatever was rebuilt inexactly is as bad as can be. */
static uint64_t heed(const oracle *o, uint64_t key, const inv_pb_edge *e)
{
    const inv_problem *p = o->p;
    bool read = false;
    for (uint32_t i = 0; i < e->nsource; i++) read |= p->value[e->source[i]].rejected;
    if (!read || key >> AT_HEED & 1) return key;
    for (uint32_t v = 0; v < p->nvalue; v++)
        if (error_in(key, v)) key = with_error(key, v, (uint32_t)p->max_drift);
    return key | (uint64_t)1 << AT_HEED;
}

/* The error of what the edge gives; more than 3: too much. */
static uint32_t error_of(const oracle *o, uint64_t key, const inv_pb_edge *e)
{
    double worst = 0;
    for (uint32_t i = 0; i < e->nsource; i++) worst = fmax(worst, error_in(key, e->source[i]));
    if (e->inverse) worst = e->error_gain * worst + e->added_error;
    return worst > o->p->max_drift ? 4 : (uint32_t)worst;
}

/* What the edge has kept is used up; false: nothing has been. */
static bool spend(const oracle *o, const inv_pb_edge *e, uint64_t *key)
{
    if (!e->side) return true;
    for (uint32_t k = 0; k < o->nside * TWICE; k++) {
        const uint64_t bit = (uint64_t)1 << (AT_SIDE + k);
        if (&o->p->edge[o->side[k / TWICE]] != e || !(*key & bit)) continue;
        *key &= ~bit;
        return true;
    }
    return false;
}

/* Whether the targets in `want` may be had so. */
static bool may_give(const oracle *o, const inv_pb_edge *e, uint32_t want, uint32_t err)
{
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const inv_pb_value *v = &o->p->value[e->target[i]];
        if (!(want >> i & 1)) continue;
        if (v->pinned || (e->inverse && err && err * v->sensitivity > o->p->max_drift)) return false;
    }
    return true;
}

static void rematerialise(oracle *o, const state *x, const inv_pb_edge *e)
{
    const inv_problem *p = o->p;
    const uint32_t t = step_in(x->key), set = set_in(x->key), sources = set_of(e->source, e->nsource);
    if ((set & sources) != sources) return;
    const uint64_t key = heed(o, x->key, e);
    const uint32_t err = error_of(o, key, e);
    uint64_t spent = key;
    if (err > 3 || !spend(o, e, &spent)) return;
    for (uint32_t want = 1; want < 1u << e->ntarget; want++) {
        uint64_t after = spent;
        if (!may_give(o, e, want, err)) continue;
        for (uint32_t i = 0; i < e->ntarget; i++)
            if (want >> i & 1) after = with_error(after | (uint64_t)1 << e->target[i], e->target[i], err);
        if (after == x->key) continue;
        const size_t need = o->bytes[set_in(after)] + e->scratch + p->step[t].before + sides(o, key, t);
        if (need <= o->budget) push(o, x->cost + e->cost, after);
        for (uint32_t i = 0; i < e->nsource; i++)
            if (e->overwrites >> i & 1 && need - p->value[e->source[i]].nbytes <= o->budget)
                push(o, x->cost + e->cost, without(after, e->source[i]));
    }
}

static void advance(oracle *o, const state *x)
{
    const uint32_t t = step_in(x->key), set = set_in(x->key);
    const inv_pb_step *s = &o->p->step[t];
    const uint64_t next = x->key + ((uint64_t)1 << AT_STEP);
    if (set_of(s->read, s->nread) & ~set) return;
    const size_t need = o->bytes[set] + s->at + sides(o, x->key, t);
    if (need <= o->budget) push(o, x->cost, next);
    for (uint32_t i = 0; i < s->nread; i++)
        if (s->overwrites >> i & 1 && need - o->p->value[s->read[i]].nbytes <= o->budget)
            push(o, x->cost, without(next, s->read[i]));
}

static double search(oracle *o)
{
    const inv_problem *p = o->p;
    while (o->n) {
        const state x = pop(o);
        if (x.cost > find(o, x.key)->cost) continue;
        if (step_in(x.key) == p->nstep) return x.cost;
        for (uint32_t v = 0; v < p->nvalue; v++)
            if (set_in(x.key) >> v & 1) push(o, x.cost, without(x.key, v));
        for (uint32_t i = 0; i < p->nedge; i++) rematerialise(o, &x, &p->edge[i]);
        advance(o, &x);
    }
    return INFINITY;
}

double oracle_cost(const inv_problem *p, size_t budget)
{
    const size_t sets = (size_t)1 << p->nvalue;
    oracle o = {.p = p, .budget = budget};
    o.bytes = calloc(sets, sizeof *o.bytes);
    double cost = INFINITY;
    for (uint32_t i = 0; i < p->nedge; i++)
        if (p->edge[i].side && o.nside < SIDES) o.side[o.nside++] = i;
    if (o.bytes) {
        grow(&o);
        for (uint32_t set = 0; set < sets; set++)
            for (uint32_t v = 0; v < p->nvalue; v++)
                if (set >> v & 1) o.bytes[set] += p->value[v].nbytes;
        start(&o);
        cost = search(&o);
    }
    free(o.best);
    free(o.bytes);
    free(o.heap);
    return cost;
}
