/* SPDX-License-Identifier: Apache-2.0
 * The graph of `explain --html` as SVG. Small graphs are drawn node by node; of larger ones each outermost block is one
 * box, and what lies between two of them another. Everything said of a box or value is in its title. */
#include "cli/pages/explain_draw.h"

#include <stdlib.h>
#include <string.h>

#include "cli/pages/graph_layout.h"
#include "cli/say/messages.h"
#include "pictures/report_text.h"

enum { EACH_NODE = 300, MOST_BOXES = 1200, WIDTH = 172, HEIGHT = 36, LAYER = 74, LETTERS = 22, TITLES = 12 };

typedef struct drawn {
    const json_t *node;      /* the first of its nodes */
    json_int_t inner, outer; /* blocks; -1: none */
    size_t nodes;
    bool folded; /* several nodes, for lack of room */
    const json_t *refusal;
    size_t refusals;
} drawn;

typedef struct drawing {
    const json_t *x, *kinds;
    const json_t *nodes, *blocks;
    json_t *choice, *tensor, *refused; /* by value; by node: list */
    drawn *box;
    size_t nbox;
    size_t *box_of;     /* per node */
    size_t *block_size; /* nodes of the graph per block */
    json_t **values;    /* per line of the layout: names of the values that it stands for */
    cli_layout layout;
} drawing;

/* --- what is drawn --- */

static json_t *index_by(const json_t *list, const char *key)
{
    json_t *index = json_object(), *row;
    size_t i;
    json_array_foreach(list, i, row) json_object_set(index, pic_string(row, key), row);
    return index;
}

static json_t *lists_by(const json_t *list, const char *key)
{
    json_t *index = json_object(), *row;
    size_t i;
    json_array_foreach(list, i, row)
    {
        json_t *of = json_object_get(index, pic_string(row, key));
        if (!of) json_object_set_new(index, pic_string(row, key), of = json_array());
        json_array_append(of, row);
    }
    return index;
}

/* The smallest and the largest block that the node is in. */
static void blocks_of(const drawing *d, const json_t *node, json_int_t *inner, json_int_t *outer)
{
    const json_t *b;
    size_t i;
    *inner = *outer = -1;
    json_array_foreach(json_object_get(node, "in"), i, b)
    {
        json_int_t k = json_integer_value(b);
        if (*inner < 0 || d->block_size[k] < d->block_size[*inner]) *inner = k;
        if (*outer < 0 || d->block_size[k] > d->block_size[*outer]) *outer = k;
    }
}

/* Whether the node goes into the box that was made last. */
static bool joins(const drawing *d, const json_t *node, json_int_t outer, bool each)
{
    const drawn *last = d->nbox ? &d->box[d->nbox - 1] : NULL;
    if (!last) return false;
    if (d->nbox >= MOST_BOXES) return true;
    if (each) return strcmp(pic_string(last->node, "name"), pic_string(node, "name")) == 0;
    return outer < 0 && last->outer < 0;
}

/* Boxes of all nodes. `each`: one per node of the file; else outermost blocks and runs of other nodes. */
static bool make_boxes(drawing *d, bool each)
{
    size_t n = json_array_size(d->nodes), nblocks = json_array_size(d->blocks), i;
    size_t *box_of_block = calloc(nblocks + 1, sizeof *box_of_block); /* counted from 1 */
    const json_t *node;
    if (!box_of_block) return false;
    memset(d->box, 0, (n + 1) * sizeof *d->box);
    d->nbox = 0;
    json_array_foreach(d->nodes, i, node)
    {
        json_int_t inner, outer;
        blocks_of(d, node, &inner, &outer);
        size_t at = !each && outer >= 0 ? box_of_block[outer] : 0;
        if (!at && joins(d, node, outer, each)) at = d->nbox;
        if (!at) {
            d->box[d->nbox++] = (drawn){.node = node, .inner = each ? inner : outer, .outer = outer};
            at = d->nbox;
            if (!each && outer >= 0) box_of_block[outer] = at;
        }
        drawn *b = &d->box[at - 1];
        b->nodes++;
        if (each && inner >= 0 && (b->inner < 0 || d->block_size[inner] < d->block_size[b->inner])) b->inner = inner;
        if (strcmp(pic_string(b->node, "name"), pic_string(node, "name")) != 0) b->folded = true;
        d->box_of[i] = at - 1;
    }
    free(box_of_block);
    return true;
}

static void add_refusals(drawing *d)
{
    const json_t *node;
    size_t i;
    json_array_foreach(d->nodes, i, node)
    {
        const json_t *list = json_object_get(d->refused, pic_string(node, "name"));
        drawn *b = &d->box[d->box_of[i]];
        if (!list || (i > 0 && d->box_of[i - 1] == d->box_of[i] &&
                      json_object_get(d->refused, pic_string(json_array_get(d->nodes, i - 1), "name")) == list))
            continue;
        if (!b->refusal) b->refusal = list;
        b->refusals += json_array_size(list);
    }
}

/* --- lines --- */

static int by_target(const void *a, const void *b)
{
    const cli_line *x = a, *y = b;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void line_key(char text[48], size_t from, size_t to) { snprintf(text, 48, "%zu>%zu", from, to); }

/* One line per pair of boxes, with the values that it stands for. Lines that would run upwards are left out: there are
 * some only where blocks are folded that other nodes stand in the midst of. */
static bool make_lines(drawing *d)
{
    json_t *maker = json_object(), *found = json_object(), *name;
    const json_t *node;
    size_t i, k, n = 0;
    char key[48];
    json_array_foreach(d->nodes, i, node)
    {
        json_array_foreach(json_object_get(node, "inputs"), k, name)
        {
            const json_t *from = json_object_get(maker, json_string_value(name));
            if (!from || (size_t)json_integer_value(from) >= d->box_of[i]) continue;
            line_key(key, (size_t)json_integer_value(from), d->box_of[i]);
            json_t *list = json_object_get(found, key);
            if (!list) json_object_set_new(found, key, list = json_array());
            json_array_append(list, name);
        }
        json_array_foreach(json_object_get(node, "outputs"), k, name)
            json_object_set_new(maker, json_string_value(name), json_integer((json_int_t)d->box_of[i]));
    }
    d->layout.line = calloc(json_object_size(found) + 1, sizeof *d->layout.line);
    d->values = calloc(json_object_size(found) + 1, sizeof *d->values);
    const char *pair;
    json_t *list;
    json_object_foreach(found, pair, list)
    {
        char *end;
        if (!d->layout.line) break;
        size_t from = strtoul(pair, &end, 10), to = strtoul(end + 1, NULL, 10);
        d->layout.line[n++] = (cli_line){from, to, 0, 0};
    }
    d->layout.nline = n;
    if (n) qsort(d->layout.line, n, sizeof *d->layout.line, by_target);
    for (i = 0; d->values && i < n; i++) {
        line_key(key, d->layout.line[i].from, d->layout.line[i].to);
        d->values[i] = json_incref(json_object_get(found, key));
    }
    json_decref(maker);
    json_decref(found);
    return d->layout.line && d->values;
}

/* --- titles --- */

static void put_refusal(FILE *f, const json_t *r)
{
    pic_print_xml(f, "\nrefused as %s: %s", pic_string(r, "kind"), pic_string(r, "reason"));
    if (*pic_string(r, "remedy")) pic_print_xml(f, "\nremedy: %s", pic_string(r, "remedy"));
}

static void put_value(FILE *f, const drawing *d, const char *name)
{
    const json_t *t = json_object_get(d->tensor, name), *c = json_object_get(d->choice, name);
    pic_put_xml(f, name);
    fprintf(f, "  %s", pic_string(t, "type"));
    if (!c) return;
    fprintf(f, "  %s", pic_string(c, "choice"));
    const char *why = pic_string(c, "reason"), *by = pic_string(c, "by");
    if (*why || *by) fputs(*why ? ": " : " by ", f);
    pic_put_xml(f, *why ? why : by);
}

static void put_block(FILE *f, const json_t *b)
{
    const json_t *gain = json_object_get(b, "gain");
    pic_print_xml(f, "\nblock %s %s (rule %s", pic_string(b, "kind"), pic_string(b, "name"), pic_string(b, "rule"));
    if (json_is_number(gain)) fprintf(f, ", gain %.3g)", json_number_value(gain));
    else fputs(", gain without bound)", f);
}

static void put_title(FILE *f, const drawing *d, const drawn *b)
{
    const json_t *name, *block = NULL;
    size_t i;
    pic_print_xml(f, "<title>%s %s", pic_string(b->node, "op"), pic_string(b->node, "name"));
    if (b->folded) fprintf(f, " and more, %zu operators in all", b->nodes);
    json_array_foreach(json_object_get(b->node, "in"), i, name)
    {
        block = json_array_get(d->blocks, (size_t)json_integer_value(name));
        if (!b->folded || json_integer_value(name) == b->outer) put_block(f, block);
    }
    for (i = 0; i < json_array_size(b->refusal) && i < TITLES; i++) put_refusal(f, json_array_get(b->refusal, i));
    if (b->refusals > json_array_size(b->refusal)) fprintf(f, "\n%zu refusals in all", b->refusals);
    json_array_foreach(json_object_get(b->node, "outputs"), i, name)
    {
        if (b->folded) break;
        fputs("\ngives ", f);
        put_value(f, d, json_string_value(name));
    }
    fputs("</title>", f);
}

/* --- the picture --- */

/* The end of a name tells more than its beginning. */
static void put_label(FILE *f, const char *text)
{
    size_t n = strlen(text);
    if (n > LETTERS) {
        text += n - LETTERS + 1;
        while ((*text & 0xc0) == 0x80) text++;
        fputs("\u2026", f);
    }
    pic_put_xml(f, text);
}

static int colour_of(const drawing *d, json_int_t block)
{
    if (block < 0) return -1;
    const char *kind = pic_string(json_array_get(d->blocks, (size_t)block), "kind");
    return (int)(json_integer_value(json_object_get(d->kinds, kind)) % CLI_COLOURS);
}

static const char *state_of(const drawing *d, const json_t *names)
{
    static const char *const states[] = {"stored", "offloaded", "inverted", "recomputed"};
    const json_t *name;
    size_t i;
    for (size_t s = 0; s < sizeof states / sizeof *states; s++) json_array_foreach(names, i, name)
        {
            const json_t *c = json_object_get(d->choice, json_string_value(name));
            if (strcmp(pic_string(c, "choice"), states[s]) == 0) return states[s];
        }
    return NULL;
}

static double top_of(const drawing *d, size_t i) { return 8 + (double)(d->layout.box[i].layer * LAYER); }

static void put_line(FILE *f, const drawing *d, size_t i)
{
    const cli_line *l = &d->layout.line[i];
    const cli_box *box = d->layout.box;
    const char *state = state_of(d, d->values[i]);
    const json_t *name;
    size_t k;
    double x = box[l->from].x, y = top_of(d, l->from) + HEIGHT;
    fprintf(f, "<path class=\"e%s%s\" d=\"M%.1f %.1f", state ? " " : "", state ? state : "", x, y);
    for (k = 0; k <= l->bends; k++) {
        size_t to = k < l->bends ? l->first + k : l->to;
        double y1 = top_of(d, to), mid = (y + y1) / 2;
        fprintf(f, "C%.1f %.1f %.1f %.1f %.1f %.1f", x, mid, box[to].x, mid, box[to].x, y1);
        x = box[to].x;
        y = y1;
        if (k < l->bends) fprintf(f, "V%.1f", y += HEIGHT);
    }
    fputs("\"><title>", f);
    json_array_foreach(d->values[i], k, name)
    {
        if (k >= TITLES) break;
        if (k) fputs("\n", f);
        put_value(f, d, json_string_value(name));
    }
    fputs("</title></path>\n", f);
}

static void put_box(FILE *f, const drawing *d, size_t i)
{
    const drawn *b = &d->box[i];
    double x = d->layout.box[i].x - WIDTH / 2.0, y = top_of(d, i);
    int inner = colour_of(d, b->inner), outer = colour_of(d, b->outer);
    const json_t *block = b->folded && b->outer >= 0 ? json_array_get(d->blocks, (size_t)b->outer) : NULL;
    fputs("<g class=\"n", f);
    if (inner >= 0) fprintf(f, " k%d", inner);
    if (b->refusals) fputs(" refused", f);
    fputs("\">", f);
    put_title(f, d, b);
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"5\"/>", x, y, WIDTH, HEIGHT);
    if (outer >= 0)
        fprintf(f, "<rect class=\"bar k%d\" x=\"%.1f\" y=\"%.1f\" width=\"5\" height=\"%d\"/>", outer, x, y, HEIGHT);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">", x + 10, y + 15);
    if (block) put_label(f, pic_string(block, "kind"));
    else if (b->folded) fprintf(f, "%zu operators", b->nodes);
    else put_label(f, pic_string(b->node, "op"));
    fprintf(f, "</text><text class=\"s\" x=\"%.1f\" y=\"%.1f\">", x + 10, y + 29);
    put_label(f, pic_string(block ? block : b->node, "name"));
    fputs("</text>", f);
    if (b->refusals) fprintf(f, "<text class=\"x\" x=\"%.1f\" y=\"%.1f\">\u2715</text>", x + WIDTH - 16, y + 15);
    const char *state = b->folded ? NULL : state_of(d, json_object_get(b->node, "outputs"));
    if (state)
        fprintf(f, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", state, x + WIDTH - 10, y + HEIGHT - 9);
    fputs("</g>\n", f);
}

static void put_svg(FILE *f, const drawing *d)
{
    double width = d->layout.width + 16, height = (double)(d->layout.nlayer * LAYER) + 8;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"graph\" viewBox=\"-8 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" role=\"img\">\n<title>The graph, from inputs above to outputs below</title>\n",
            width, height, width, height);
    for (size_t i = 0; i < d->layout.nline; i++) put_line(f, d, i);
    for (size_t i = 0; i < d->nbox; i++) put_box(f, d, i);
    fputs("</svg>\n", f);
}

static bool prepare(drawing *d)
{
    size_t n = json_array_size(d->nodes), i, k;
    const json_t *node, *b;
    d->box = calloc(n + 1, sizeof *d->box);
    d->box_of = calloc(n + 1, sizeof *d->box_of);
    d->block_size = calloc(json_array_size(d->blocks) + 1, sizeof *d->block_size);
    if (!d->box || !d->box_of || !d->block_size) return false;
    json_array_foreach(d->nodes, i, node)
    {
        json_array_foreach(json_object_get(node, "in"), k, b) d->block_size[json_integer_value(b)]++;
    }
    if (!make_boxes(d, true) || (d->nbox > EACH_NODE && !make_boxes(d, false))) return false;
    add_refusals(d);
    d->layout.nbox = d->nbox;
    d->layout.box = calloc(d->nbox + 1, sizeof *d->layout.box);
    for (i = 0; d->layout.box && i < d->nbox; i++) d->layout.box[i].width = WIDTH;
    return d->layout.box && make_lines(d) && cli_layout_find(&d->layout);
}

int cli_explain_draw(FILE *f, const json_t *explanation, const json_t *kinds)
{
    drawing d = {.x = explanation,
                 .kinds = kinds,
                 .nodes = json_object_get(explanation, "nodes"),
                 .blocks = json_object_get(explanation, "blocks"),
                 .choice = index_by(json_object_get(explanation, "choices"), "value"),
                 .tensor = index_by(json_object_get(explanation, "tensors"), "name"),
                 .refused = lists_by(json_object_get(explanation, "refusals"), "node")};
    bool ok = prepare(&d);
    if (ok) put_svg(f, &d);
    for (size_t i = 0; d.values && i < d.layout.nline; i++) json_decref(d.values[i]);
    json_decref(d.choice);
    json_decref(d.tensor);
    json_decref(d.refused);
    free(d.values);
    free(d.layout.line);
    free(d.layout.box);
    free(d.box);
    free(d.box_of);
    free(d.block_size);
    return ok ? CLI_OK : cli_fail("out of memory");
}
