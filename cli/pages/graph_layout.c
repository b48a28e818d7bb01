/* SPDX-License-Identifier: Apache-2.0
 * Layered drawing of a directed graph, after Sugiyama: layers by depth, dummies where an edge passes layers, order in
 * each layer by barycentres, then places that pull neighbours over one another. */
#include "cli/pages/graph_layout.h"

#include <stdint.h>
#include <stdlib.h>

enum { GAP = 18, DUMMY = 10, SWEEPS = 6, MOST_DUMMIES = 30000 };

/* An edge between neighbouring layers. */
typedef struct segment {
    size_t from, to;
} segment;

typedef struct work {
    cli_layout *l;
    segment *seg;
    size_t nseg;
    size_t *start, *up, *down_start, *down; /* neighbours above and below, by box */
    size_t *layer_start, *order;            /* boxes by layer, in their order */
    double *key;
} work;

static void set_layers(cli_layout *l)
{
    l->nlayer = l->nbox > 0;
    for (size_t i = 0; i < l->nbox; i++) l->box[i].layer = 0;
    for (size_t target = 0, e = 0; target < l->nbox; target++) /* lines are sorted by `to` */
        for (; e < l->nline && l->line[e].to == target; e++) {
            size_t depth = l->box[l->line[e].from].layer + 1;
            if (depth > l->box[target].layer) l->box[target].layer = depth;
            if (depth >= l->nlayer) l->nlayer = depth + 1;
        }
}

/* Dummies for the longer edges, as long as there are not too many; the others run straight. */
static bool add_dummies(work *w)
{
    cli_layout *l = w->l;
    size_t dummies = 0, nseg = 0;
    for (size_t e = 0; e < l->nline; e++) {
        cli_line *x = &l->line[e];
        size_t length = l->box[x->to].layer - l->box[x->from].layer;
        x->bends = dummies + length - 1 <= MOST_DUMMIES ? length - 1 : 0;
        x->first = l->nbox + dummies;
        dummies += x->bends;
    }
    l->nall = l->nbox + dummies;
    cli_box *box = realloc(l->box, (l->nall + 1) * sizeof *box);
    if (box) l->box = box;
    w->seg = calloc(l->nline + dummies + 1, sizeof *w->seg);
    if (!box || !w->seg) return false;
    for (size_t e = 0; e < l->nline; e++) {
        const cli_line *x = &l->line[e];
        size_t at = x->from;
        for (size_t k = 0; k < x->bends; k++) {
            box[x->first + k] = (cli_box){box[at].layer + 1, 0, DUMMY};
            w->seg[nseg++] = (segment){at, x->first + k};
            at = x->first + k;
        }
        if (box[at].layer + 1 == box[x->to].layer) w->seg[nseg++] = (segment){at, x->to};
    }
    w->nseg = nseg;
    return true;
}

/* Counting sort of `n` items by key(i) < nkey: start[] and at[]. */
static void layout_fill(size_t n, const segment *seg, bool by_to, size_t *start, size_t *at)
{
    for (size_t i = 0; i < n; i++) start[(by_to ? seg[i].to : seg[i].from) + 2]++;
    for (size_t k = 2; start[k] != SIZE_MAX; k++) start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++) {
        size_t key = by_to ? seg[i].to : seg[i].from;
        at[start[key + 1]++] = by_to ? seg[i].from : seg[i].to;
    }
}

static bool index_all(work *w)
{
    cli_layout *l = w->l;
    size_t n = l->nall;
    w->start = calloc(n + 3, sizeof *w->start);
    w->down_start = calloc(n + 3, sizeof *w->start);
    w->up = calloc(w->nseg + 1, sizeof *w->up);
    w->down = calloc(w->nseg + 1, sizeof *w->up);
    w->layer_start = calloc(l->nlayer + 3, sizeof *w->start);
    w->order = calloc(n + 1, sizeof *w->order);
    w->key = calloc(n + 1, sizeof *w->key);
    if (!w->start || !w->down_start || !w->up || !w->down || !w->layer_start || !w->order || !w->key) return false;
    w->start[n + 2] = w->down_start[n + 2] = SIZE_MAX;
    layout_fill(w->nseg, w->seg, true, w->start, w->up);
    layout_fill(w->nseg, w->seg, false, w->down_start, w->down);
    for (size_t i = 0; i < n; i++) w->layer_start[l->box[i].layer + 2]++;
    for (size_t k = 2; k < l->nlayer + 2; k++) w->layer_start[k] += w->layer_start[k - 1];
    for (size_t i = 0; i < n; i++) w->order[w->layer_start[l->box[i].layer + 1]++] = i;
    return true;
}

/* Mean of `of` over the neighbours above or below; what it has itself where there are none. */
static double mean_of(const work *w, size_t i, bool above)
{
    const size_t *start = above ? w->start : w->down_start, *at = above ? w->up : w->down;
    double sum = 0;
    for (size_t k = start[i]; k < start[i + 1]; k++) sum += w->l->box[at[k]].x;
    return start[i] < start[i + 1] ? sum / (double)(start[i + 1] - start[i]) : w->l->box[i].x;
}

/* By key; stable, so that the drawing is the same everywhere. Layers are narrow or nearly sorted. */
static void sort_layer(work *w, size_t layer)
{
    size_t *at = w->order + w->layer_start[layer], n = w->layer_start[layer + 1] - w->layer_start[layer];
    for (size_t i = 1; i < n; i++) {
        size_t v = at[i], k = i;
        for (; k > 0 && w->key[at[k - 1]] > w->key[v]; k--) at[k] = at[k - 1];
        at[k] = v;
    }
}

/* Places of a layer, in its order: as near to the keys as the widths allow. */
static void place_layer(work *w, size_t layer)
{
    cli_box *box = w->l->box;
    size_t first = w->layer_start[layer], end = w->layer_start[layer + 1];
    double right = 0, off = 0;
    for (size_t k = first; k < end; k++) {
        size_t i = w->order[k];
        double least = right + box[i].width / 2 + GAP;
        box[i].x = k == first || w->key[i] > least ? w->key[i] : least;
        right = box[i].x + box[i].width / 2;
        off += box[i].x - w->key[i];
    }
    for (size_t k = first; k < end; k++) box[w->order[k]].x -= off / (double)(end - first);
}

static void sweep(work *w, bool above, bool sort)
{
    for (size_t s = 0; s < w->l->nlayer; s++) {
        size_t layer = above ? s : w->l->nlayer - 1 - s;
        for (size_t k = w->layer_start[layer]; k < w->layer_start[layer + 1]; k++)
            w->key[w->order[k]] = mean_of(w, w->order[k], above);
        if (sort) sort_layer(w, layer);
        place_layer(w, layer);
    }
}

/* All to the right of 0. */
static void settle(cli_layout *l)
{
    double least = 0, most = 0;
    for (size_t i = 0; i < l->nall; i++) {
        const cli_box *b = &l->box[i];
        if (i == 0 || b->x - b->width / 2 < least) least = b->x - b->width / 2;
        if (i == 0 || b->x + b->width / 2 > most) most = b->x + b->width / 2;
    }
    for (size_t i = 0; i < l->nall; i++) l->box[i].x -= least;
    l->width = most - least;
}

bool cli_layout_find(cli_layout *l)
{
    work w = {.l = l};
    set_layers(l);
    bool ok = add_dummies(&w) && index_all(&w);
    for (size_t i = 0; ok && i < l->nall; i++) l->box[i].x = 0;
    for (int k = 0; ok && k < 2 * SWEEPS; k++) sweep(&w, k % 2 == 0, k < SWEEPS);
    if (ok) settle(l);
    free(w.seg);
    free(w.start);
    free(w.up);
    free(w.down_start);
    free(w.down);
    free(w.layer_start);
    free(w.order);
    free(w.key);
    return ok;
}
