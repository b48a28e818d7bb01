/* SPDX-License-Identifier: Apache-2.0
 * What pictures of `plan` have beside memory over the step: the curve of time against memory, and what becomes of each
 * block's values. */
#include "pictures/picture.h"
#include "pictures/report_text.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 84, RIGHT = 40, HEAD = 46, PLOT = 220 };

/* Bytes to the right, time over that of a plain step upwards. */
typedef struct frame {
    double least, most, top, y0;
} frame;

static double x_of(const frame *r, double nbytes)
{
    return LEFT + (PIC_WIDTH - LEFT - RIGHT) * (nbytes - r->least) / (r->most - r->least);
}

static double y_of(const frame *r, double overhead) { return r->y0 - PLOT * fmax(overhead, 0) / r->top; }

static frame frame_of(const json_t *curve, const json_t *report, double y)
{
    frame r = {pic_number(report, "planned_peak_bytes"), 0, pic_number(json_object_get(report, "plan"), "overhead"),
               y + HEAD + PLOT};
    const json_t *point;
    size_t i;
    r.most = r.least;
    json_array_foreach(curve, i, point)
    {
        r.least = fmin(r.least, pic_number(point, "peak_bytes"));
        r.most = fmax(r.most, pic_number(point, "peak_bytes"));
        r.top = fmax(r.top, pic_number(point, "overhead"));
    }
    const double margin = fmax(0.04 * (r.most - r.least), 1);
    r.least = fmax(r.least - margin, 0);
    r.most += margin;
    r.top = fmax(1.1 * r.top, 0.01);
    return r;
}

/* 1, 2 or 5 times a power of ten, about a fifth of the whole. */
static double tick(double top)
{
    const double unit = pow(10, floor(log10(top / 5)));
    return top / 5 > 5 * unit ? 10 * unit : top / 5 > 2 * unit ? 5 * unit : 2 * unit;
}

static void put_axes(FILE *f, const frame *r)
{
    for (double v = 0; v <= r->top; v += tick(r->top))
        fprintf(f,
                "<path class=\"l\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%+.3g %%"
                "</text>\n",
                LEFT, y_of(r, v), PIC_WIDTH - RIGHT, LEFT - 8, y_of(r, v) + 4, 100 * v);
    for (int i = 0; i <= 5; i++) {
        const double nbytes = r->least + (r->most - r->least) * i / 5;
        fprintf(f, "<text class=\"s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x_of(r, nbytes),
                r->y0 + 18, pic_bytes(nbytes));
    }
}

static void put_curve(FILE *f, const frame *r, const json_t *curve, const char *key, const char *style)
{
    const json_t *point;
    size_t i;
    fprintf(f, "<path style=\"fill:none;stroke-width:2;%s\" d=\"", style);
    json_array_foreach(curve, i, point) fprintf(
        f, "%c%.1f %.1f", i ? 'L' : 'M', x_of(r, pic_number(point, "peak_bytes")), y_of(r, pic_number(point, key)));
    fputs("\"/>\n", f);
}

static void put_points(FILE *f, const frame *r, const json_t *curve)
{
    const json_t *point;
    size_t i;
    json_array_foreach(curve, i, point)
    {
        const double nbytes = pic_number(point, "peak_bytes"), overhead = pic_number(point, "overhead");
        fprintf(f,
                "<circle class=\"a\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s: %+.2f %%, no plan below %+.2f %%"
                "</title></circle>\n",
                x_of(r, nbytes), y_of(r, overhead), pic_bytes(nbytes), 100 * overhead,
                100 * pic_number(point, "bound"));
    }
}

static void put_chosen(FILE *f, const frame *r, const json_t *report)
{
    const double nbytes = pic_number(report, "planned_peak_bytes"),
                 overhead = pic_number(json_object_get(report, "plan"), "overhead");
    const double x = x_of(r, nbytes), y = y_of(r, overhead);
    const bool left = x > PIC_WIDTH * 0.6;
    fprintf(f,
            "<circle class=\"k\" style=\"stroke-width:2;stroke-dasharray:none\" cx=\"%.1f\" cy=\"%.1f\" r=\"8\"/>"
            "<text class=\"n\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">this plan: %s, %+.1f %%</text>\n",
            x, y, left ? x - 12 : x + 12, y - 10, left ? "end" : "start", pic_bytes(nbytes), 100 * overhead);
}

/* Of one point, where nothing is gained, words are all. */
static bool is_drawn(const json_t *curve) { return json_array_size(curve) > 1; }

int pic_curve_height(const json_t *curve) { return !curve ? 0 : is_drawn(curve) ? 330 : 90; }

void pic_put_curve(FILE *f, const pic_memory *drawn, double y)
{
    const json_t *report = drawn->reports[drawn->n - 1];
    const frame r = frame_of(drawn->curve, report, y);
    fprintf(f,
            "<text class=\"h\" x=\"%d\" y=\"%.1f\">Time against memory</text>"
            "<text class=\"s\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s over that of storing everything, by bytes of "
            "session and step; dashed: no plan is below</text>\n",
            LEFT, y + 16, PIC_WIDTH - RIGHT, y + 16,
            *pic_string(report, "cost") == 't' ? "predicted time" : "arithmetic");
    if (!is_drawn(drawn->curve)) {
        fprintf(f,
                "<text x=\"%d\" y=\"%.1f\">No plan that was found takes less memory than storing everything, %s."
                "</text>\n",
                LEFT, y + HEAD + 16, pic_bytes(pic_number(report, "store_peak_bytes")));
        return;
    }
    put_axes(f, &r);
    put_curve(f, &r, drawn->curve, "bound", "stroke:currentColor;stroke-dasharray:4 3;opacity:.6");
    put_curve(f, &r, drawn->curve, "overhead", "stroke:#e2913f");
    put_points(f, &r, drawn->curve);
    put_chosen(f, &r, report);
}

/* --- blocks --- */

enum { STORED, RECOMPUTED, INVERTED, OFFLOADED, UNREAD, NFATES };
static const char *const fates[] = {"stored", "recomputed", "inverted", "offloaded"};

typedef struct tally {
    int n[NFATES];
    double nbytes[NFATES];
} tally;

static bool has_name(const json_t *names, const char *name)
{
    const json_t *each;
    size_t i;
    json_array_foreach(names, i, each) if (strcmp(json_string_value(each), name) == 0) return true;
    return false;
}

/* A value that is had in two ways counts for both. `choices`: its rows, by value. */
static void count_choice(tally *t, const json_t *choices, const char *value)
{
    const json_t *rows = json_object_get(choices, value), *row;
    size_t i;
    if (!rows) t->n[UNREAD]++;
    json_array_foreach(rows, i, row)
    {
        for (int k = 0; k < UNREAD; k++) {
            if (strcmp(pic_string(row, "choice"), fates[k]) != 0) continue;
            t->n[k]++;
            t->nbytes[k] += pic_number(row, "bytes");
        }
    }
}

/* Per block, of what it takes and computes inside; what it gives is taken by others. */
static tally *tally_blocks(const json_t *blocks, const json_t *nodes, const json_t *choices)
{
    tally *tallies = calloc(json_array_size(blocks) + 1, sizeof *tallies);
    const json_t *block, *node, *name, *in;
    size_t i, j, k;
    if (!tallies) return NULL;
    json_array_foreach(blocks, i, block) json_array_foreach(json_object_get(block, "inputs"), k, name)
        count_choice(&tallies[i], choices, json_string_value(name));
    json_array_foreach(nodes, i, node) json_array_foreach(json_object_get(node, "in"), j, in)
    {
        const size_t number = (size_t)json_integer_value(in);
        const json_t *given = json_object_get(json_array_get(blocks, number), "outputs");
        json_array_foreach(json_object_get(node, "outputs"), k, name) if (!has_name(given, json_string_value(name)))
            count_choice(&tallies[number], choices, json_string_value(name));
    }
    return tallies;
}

static json_t *by_value(const json_t *choices)
{
    json_t *map = json_object();
    const json_t *row;
    size_t i;
    json_array_foreach(choices, i, row)
    {
        const char *value = pic_string(row, "value");
        if (!json_object_get(map, value)) json_object_set_new(map, value, json_array());
        json_array_append(json_object_get(map, value), (json_t *)(uintptr_t)row);
    }
    return map;
}

static void put_row(FILE *f, const json_t *block, const tally *t)
{
    pic_print_xml(f, "<tr><td>%s</td><td>%s</td>", pic_string(block, "name"), pic_string(block, "kind"));
    for (int k = 0; k < UNREAD; k++) {
        if (t->n[k]) fprintf(f, "<td>%d: %s</td>", t->n[k], pic_bytes(t->nbytes[k]));
        else fputs("<td></td>", f);
    }
    fprintf(f, "<td>%d</td></tr>\n", t->n[UNREAD]);
}

void pic_put_block_plans(FILE *f, const json_t *explanation)
{
    const json_t *blocks = json_object_get(explanation, "blocks"), *block;
    json_t *choices = by_value(json_object_get(explanation, "choices"));
    tally *tallies = tally_blocks(blocks, json_object_get(explanation, "nodes"), choices);
    size_t i;
    fputs("<style>body{color:#1d2126;font:13px system-ui,sans-serif}table{border-collapse:collapse}"
          "td,th{padding:3px 12px 3px 0;text-align:left;border-bottom:1px solid #9aa1aa55;overflow-wrap:anywhere}"
          "@media (prefers-color-scheme:dark){body{color:#e3e6ea}}</style>\n",
          f);
    fprintf(f,
            "<h3>What each block does: %zu</h3>\n<p>Of what it takes and computes inside, the values that backward "
            "reads.</p>\n<table><thead><tr><th>block</th><th>kind</th><th>stored</th><th>recomputed</th>"
            "<th>inverted</th><th>offloaded</th><th>not read</th></tr></thead><tbody>\n",
            json_array_size(blocks));
    json_array_foreach(blocks, i, block) if (tallies) put_row(f, block, &tallies[i]);
    fputs("</tbody></table>\n", f);
    free(tallies);
    json_decref(choices);
}
