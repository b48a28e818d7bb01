/* SPDX-License-Identifier: Apache-2.0 */
#include "planner_chain.h"

#include <stdlib.h>
#include <string.h>

enum { CONV = 100, PER_BLOCK = 4 };

static uint32_t new_value(chain *c, size_t nbytes, uint32_t def)
{
    c->p.value[c->p.nvalue] = (inv_pb_value){.nbytes = nbytes, .def = def};
    return c->p.nvalue++;
}

static const uint32_t *list(chain *c, uint32_t n, uint32_t a, uint32_t b)
{
    uint32_t *at = c->ids + c->nids;
    at[0] = a;
    if (n > 1) at[1] = b;
    c->nids += n;
    return at;
}

static void edge(chain *c, uint32_t n, uint32_t a, uint32_t b, uint32_t to, double cost, bool inverse, uint32_t over)
{
    inv_problem *p = &c->p;
    p->edge[p->nedge] = (inv_pb_edge){.source = list(c, n, a, b),
                                      .nsource = n,
                                      .target = list(c, 1, to, 0),
                                      .ntarget = 1,
                                      .id = p->nedge,
                                      .cost = cost,
                                      .inverse = inverse,
                                      .overwrites = over};
    p->nedge++;
}

static uint32_t apply(chain *c, size_t nbytes, uint32_t n, uint32_t a, uint32_t b, double cost, uint32_t over)
{
    inv_problem *p = &c->p;
    const uint32_t t = p->nstep++, v = new_value(c, nbytes, t);
    p->step[t] = (inv_pb_step){.read = list(c, n, a, b), .nread = n, .overwrites = over};
    edge(c, n, a, b, v, cost, false, over);
    p->cost += 3 * cost;
    return v;
}

/* x + F(z), F: convolution to twice the channels, activation, convolution. Gives what backward reads. */
static uint32_t block(chain *c, uint32_t x, uint32_t z, size_t s, bool inverse, uint32_t hidden[2])
{
    hidden[0] = apply(c, 2 * s, 1, z, 0, CONV, 0);
    hidden[1] = apply(c, 2 * s, 1, hidden[0], 0, 1, 1);
    const uint32_t f = apply(c, s, 1, hidden[1], 0, CONV, 0), y = apply(c, s, 2, x, f, 1, x == z ? 2 : 3);
    if (!inverse) return y;
    edge(c, 1, hidden[1], 0, hidden[0], 1, true, 1);
    edge(c, 2, y, f, x, 1, true, 3);
    edge(c, 2, y, x, f, 1, true, 3);
    return y;
}

static void back(chain *c, uint32_t read, size_t at, size_t before)
{
    inv_problem *p = &c->p;
    p->step[p->nstep++] = (inv_pb_step){
        .read = list(c, 1, read, 0), .nread = 1, .at = at, .before = before, .act_at = at, .act_before = before};
}

static void edges_by_value(chain *c)
{
    inv_problem *p = &c->p;
    for (uint32_t i = 0; i < p->nedge; i++) p->value[p->edge[i].target[0]].n++;
    for (uint32_t v = 1; v < p->nvalue; v++) p->value[v].first = p->value[v - 1].first + p->value[v - 1].n;
    for (uint32_t v = 0; v < p->nvalue; v++) p->value[v].n = 0;
    for (uint32_t i = 0; i < p->nedge; i++) {
        inv_pb_value *v = &p->value[p->edge[i].target[0]];
        c->edge_of[v->first + v->n++] = i;
    }
    p->edge_of = c->edge_of;
}

/* Of a block: the activation's gradient reads its result, a convolution's its operand. */
static void backward(chain *c, uint32_t blocks, const uint32_t (*hidden)[3])
{
    for (uint32_t b = blocks; b-- > 0;) {
        const size_t wide = c->p.value[hidden[b][0]].nbytes, s = wide / 2;
        back(c, hidden[b][1], 2 * s + wide, 2 * s);
        back(c, hidden[b][1], 2 * s + wide, 2 * s + wide);
        back(c, hidden[b][2], 2 * s + wide, 2 * s + wide);
    }
}

/* Makes room for so many blocks and stages. */
static bool new_chain(chain *c, size_t n, uint32_t stages)
{
    memset(c, 0, sizeof *c);
    inv_problem *p = &c->p;
    p->value = calloc(5 * n + stages, sizeof *p->value);
    p->edge = calloc(9 * n + stages, sizeof *p->edge);
    p->step = calloc(7 * n + stages, sizeof *p->step);
    c->ids = calloc(40 * n + 2 * stages, sizeof *c->ids);
    c->edge_of = calloc(9 * n + stages, sizeof *c->edge_of);
    p->max_drift = 1;
    return p->value && p->edge && p->step && c->ids && c->edge_of;
}

bool chain_make(chain *c, uint32_t blocks, uint32_t stages)
{
    inv_problem *p = &c->p;
    const size_t n = blocks + 4;
    uint32_t(*hidden)[3] = calloc(n, sizeof *hidden);
    const bool ok = new_chain(c, n, stages) && hidden;
    if (ok) {
        size_t s = CHAIN_STREAM;
        uint32_t x = new_value(c, s, 0), z = stages ? x : new_value(c, s, 0);
        p->step[p->nstep++] = (inv_pb_step){0};
        for (uint32_t b = 0; b < blocks; b++) {
            if (stages && b && b % ((blocks + stages - 1) / stages) == 0) x = z = apply(c, s /= 2, 1, x, 0, 1, 0);
            hidden[b][2] = z;
            const uint32_t y = block(c, x, z, s, !stages, hidden[b]);
            x = stages ? y : z;
            z = y;
        }
        p->forward = p->nstep;
        backward(c, blocks, (const uint32_t(*)[3])hidden);
        edges_by_value(c);
    }
    free(hidden);
    if (!ok) chain_free(c);
    return ok;
}

bool chain_make_recurrent(chain *c, uint32_t trips)
{
    enum { GATES = 4 };
    inv_problem *p = &c->p;
    const size_t s = CHAIN_STREAM;
    uint32_t(*gate)[GATES + 1] = calloc(trips + (size_t)1, sizeof *gate);
    const bool ok = new_chain(c, 2 * (size_t)trips + 4, 0) && gate;
    if (ok) {
        uint32_t h = new_value(c, s, 0), cell = new_value(c, s, 0);
        p->step[p->nstep++] = (inv_pb_step){0};
        for (uint32_t t = 0; t < trips; t++) {
            for (uint32_t k = 0; k < GATES; k++) gate[t][k] = apply(c, s, 1, h, 0, CONV, 0);
            const uint32_t fresh = apply(c, s, 2, gate[t][0], gate[t][1], 1, 0),
                           old = apply(c, s, 2, gate[t][2], cell, 1, 0), sum = apply(c, s, 2, fresh, old, 1, 3);
            edge(c, 2, sum, old, fresh, 1, true, 3);
            edge(c, 2, sum, fresh, old, 1, true, 3);
            gate[t][GATES] = cell;
            cell = sum;
            h = apply(c, s, 2, gate[t][3], cell, 1, 0);
        }
        p->forward = p->nstep;
        for (uint32_t t = trips; t-- > 0;)
            for (uint32_t k = 0; k <= GATES; k++) back(c, gate[t][k], 2 * s, s);
        edges_by_value(c);
    }
    free(gate);
    if (!ok) chain_free(c);
    return ok;
}

void chain_free(chain *c)
{
    free(c->p.value);
    free(c->p.edge);
    free(c->p.step);
    free(c->ids);
    free(c->edge_of);
    memset(c, 0, sizeof *c);
}
