/* SPDX-License-Identifier: Apache-2.0
 * The order in which a rewritten model is written: of the main graph, and of the body of each function. */
#include <string.h>

#include "passes/export/outline.h"

/* Units of one body, the nodes of the file and the functions called in their place, in an order that is as near to the
 * file's as dependence allows. */
typedef struct unit {
    uint32_t cut, item; /* cut INV_NONE: the item itself; else the item is the first of the cut */
    uint32_t waits;     /* for so many of its inputs */
    uint32_t links;     /* 1 + the first of the links to those that read it; 0: none */
} unit;

typedef struct link {
    uint32_t to, next; /* unit; 1 + link, 0 at the end */
} link;

typedef struct body {
    inv_cutter *c;
    uint32_t around; /* cut, INV_NONE: main graph */
    unit *unit;
    uint32_t nunit;
    uint32_t *unit_of; /* per item; INV_NONE: elsewhere */
    INV_VEC(link) link;
    uint32_t *ready; /* heap of units by their first item */
    uint32_t nready;
} body;

/* The cut directly inside of `around` that holds the item, INV_NONE if the item is not in one. */
static uint32_t child_of(const inv_cutter *c, uint32_t around, uint32_t item)
{
    uint32_t at = c->owner[item], child = INV_NONE;
    for (; at != around && at != INV_NONE; at = c->cut[at].parent) child = at;
    return child;
}

static void find_units(body *b, const uint32_t *item, uint32_t nitem)
{
    for (uint32_t k = 0; k < nitem; k++) {
        uint32_t i = item ? item[k] : k, child = child_of(b->c, b->around, i);
        uint32_t *known = child == INV_NONE ? &b->unit_of[i] : &b->c->unit_of_cut[child];
        if (*known == INV_NONE) {
            *known = b->nunit;
            b->unit[b->nunit++] = (unit){.cut = child, .item = i};
        }
        b->unit_of[i] = *known;
    }
}

static void push_ready(body *b, uint32_t u)
{
    uint32_t i = b->nready++;
    for (; i > 0 && b->unit[b->ready[(i - 1) / 2]].item > b->unit[u].item; i = (i - 1) / 2)
        b->ready[i] = b->ready[(i - 1) / 2];
    b->ready[i] = u;
}

static uint32_t pop_ready(body *b)
{
    uint32_t top = b->ready[0], last = b->ready[--b->nready], i = 0;
    for (uint32_t k = 1; k < b->nready; k = 2 * i + 1) {
        if (k + 1 < b->nready && b->unit[b->ready[k + 1]].item < b->unit[b->ready[k]].item) k++;
        if (b->unit[last].item <= b->unit[b->ready[k]].item) break;
        b->ready[i] = b->ready[k];
        i = k;
    }
    b->ready[i] = last;
    return top;
}

/* Links every unit to those that read what it gives. */
static inv_status link_units(body *b)
{
    inv_outliner *o = b->c->o;
    for (uint32_t u = 0; u < b->nunit; u++) {
        const inv_cut *cut = b->unit[u].cut == INV_NONE ? NULL : &b->c->cut[b->unit[u].cut];
        const inv_node *item = inv_item(o, b->unit[u].item);
        size_t nin = cut ? cut->in.n : item->nin;
        for (size_t k = 0; k < nin; k++) {
            inv_id v = cut ? cut->in.at[k] : item->in[k];
            uint32_t p = v == INV_NONE ? INV_NONE : inv_item_giving(o, v);
            if (p == INV_NONE || b->unit_of[p] == INV_NONE) continue;
            unit *from = &b->unit[b->unit_of[p]];
            if (!inv_vec_push(&o->scratch, &b->link, ((link){u, from->links}))) return INV_E_NOMEM;
            from->links = (uint32_t)b->link.n;
            b->unit[u].waits++;
        }
    }
    return INV_OK;
}

/* Of the units that wait for one another in a circle, the cut with the fewest items. Any unit that still waits leads
 * there, since one of those that it waits for waits, too. */
static uint32_t find_smallest_in_circle(body *b)
{
    const inv_cutter *c = b->c;
    uint32_t *before = b->ready, u = 0, smallest = INV_NONE; /* nothing is ready any more */
    for (uint32_t i = 0; i < b->nunit; i++) {
        if (!b->unit[i].waits) continue;
        u = i;
        for (uint32_t l = b->unit[i].links; l; l = b->link.at[l - 1].next) before[b->link.at[l - 1].to] = i;
    }
    for (uint32_t i = 0; i < b->nunit; i++) u = before[u];
    uint32_t first = u;
    do {
        uint32_t cut = b->unit[u].cut;
        if (cut != INV_NONE && (smallest == INV_NONE || c->cut[cut].nitem < c->cut[smallest].nitem ||
                                (c->cut[cut].nitem == c->cut[smallest].nitem && cut > smallest)))
            smallest = cut;
        u = before[u];
    } while (u != first);
    return smallest;
}

static inv_status order_units(body *b, inv_ids *cuts, inv_ids *items)
{
    inv_arena *s = &b->c->o->scratch;
    uint32_t done = 0;
    INV_TRY(link_units(b));
    for (uint32_t u = 0; u < b->nunit; u++)
        if (!b->unit[u].waits) push_ready(b, u);
    for (; b->nready; done++) {
        uint32_t u = pop_ready(b);
        if (!inv_vec_push(s, cuts, b->unit[u].cut) || !inv_vec_push(s, items, b->unit[u].item)) return INV_E_NOMEM;
        for (uint32_t l = b->unit[u].links; l; l = b->link.at[l - 1].next)
            if (--b->unit[b->link.at[l - 1].to].waits == 0) push_ready(b, b->link.at[l - 1].to);
    }
    if (done < b->nunit) b->c->circular = find_smallest_in_circle(b);
    return INV_OK;
}

/* Fills the cut's order, of INV_NONE the main graph's: by unit the cut (INV_NONE: none) and the item. */
static inv_status order_body(inv_cutter *c, uint32_t around)
{
    inv_arena *s = &c->o->scratch;
    inv_cut *cut = around == INV_NONE ? &c->all : &c->cut[around];
    size_t nitem = c->o->flat->order.n;
    uint32_t n = around == INV_NONE ? (uint32_t)nitem : cut->nitem;
    body b = {.c = c, .around = around, .unit_of = c->unit_of};
    b.unit = INV_ARENA_NEW(s, unit, n + 1);
    b.ready = INV_ARENA_NEW(s, uint32_t, n + 1);
    if (!b.unit || !b.ready) return INV_E_NOMEM;
    memset(c->unit_of, 0xff, (nitem + 1) * sizeof *c->unit_of);
    memset(c->unit_of_cut, 0xff, (c->ncut + 1) * sizeof *c->unit_of_cut);
    find_units(&b, around == INV_NONE ? NULL : cut->item, n);
    return order_units(&b, &cut->order_cut, &cut->order_item);
}

static inv_status order_inside(inv_cutter *c, const inv_cut *around)
{
    for (size_t k = 0; k < around->order_cut.n; k++) {
        uint32_t cut = around->order_cut.at[k];
        if (cut == INV_NONE) continue;
        INV_TRY(order_body(c, cut));
        if (!inv_vec_push(&c->o->scratch, &c->turn, cut)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status order_all(inv_cutter *c)
{
    c->circular = INV_NONE;
    c->turn.n = 0;
    c->all.order_cut.n = c->all.order_item.n = 0;
    for (size_t i = 0; i < c->ncut; i++) c->cut[i].order_cut.n = c->cut[i].order_item.n = 0;
    INV_TRY(order_body(c, INV_NONE));
    INV_TRY(order_inside(c, &c->all));
    for (size_t i = 0; i < c->turn.n; i++) INV_TRY(order_inside(c, &c->cut[c->turn.at[i]]));
    return INV_OK;
}

/* What is inside of the cut is then inside of the one around it. */
static void open_cut(inv_cutter *c, uint32_t cut)
{
    uint32_t around = c->cut[cut].parent;
    c->cut[cut].made = false;
    c->cut[cut].row.reason = "it needs what another block gives, which needs what it gives";
    for (uint32_t k = 0; k < c->cut[cut].nitem; k++)
        if (c->owner[c->cut[cut].item[k]] == cut) c->owner[c->cut[cut].item[k]] = around;
    for (size_t i = 0; i < c->ncut; i++)
        if (c->cut[i].parent == cut) c->cut[i].parent = around;
}

/* Nodes have an order, but functions in their place may need each other's results: as many are opened as that takes. */
inv_status inv_outline_order(inv_cutter *c)
{
    for (;;) {
        INV_TRY(order_all(c));
        if (c->circular == INV_NONE) return INV_OK;
        open_cut(c, c->circular);
    }
}
