/* SPDX-License-Identifier: Apache-2.0
 * Memory over one step as a picture: stacked areas by class, forward left of backward, the peak marked. SVG on its
 * own or in an HTML page; needs nothing else, and follows the reader's light or dark setting. */
#include "pictures/picture.h"
#include "pictures/report_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = PIC_WIDTH, LEFT = 84, RIGHT = 16, PLOT = 220, HEAD = 46, FOOT = 58, COLUMNS = 1000, ALIVE_LETTERS = 88 };

enum { BAND_PARAMETERS, BAND_OPTIMIZER, BAND_DATA, BAND_GRADIENTS, BAND_ACTIVATIONS, NBANDS };
static const struct {
    const char *css, *label, *light, *dark;
} bands[NBANDS] = {{"p", "parameters", "#8a8f98", "#7d828c"},
                   {"o", "optimizer", "#b08bbb", "#a680b3"},
                   {"d", "data", "#5b9bb5", "#4f93b0"},
                   {"g", "parameter gradients", "#7fae5e", "#78aa55"},
                   {"a", "activations and workspace", "#e2913f", "#e0893a"}};

/* Some consecutive nodes of the step, the fullest of them standing for all. */
typedef struct column {
    double top[NBANDS]; /* upper edge of each band, bytes */
    const json_t *node;
    size_t index;
} column;

typedef struct panel {
    const json_t *report;
    const char *title;
    column *columns;
    size_t n, ncolumns, backward, commit; /* first columns of the later phases */
    size_t peak;
} panel;

static void edges(const json_t *report, const json_t *node, double *top)
{
    const json_t *classes = json_object_get(report, "classes");
    double sum = top[BAND_PARAMETERS] = pic_number(classes, "parameters");
    top[BAND_OPTIMIZER] = sum += pic_number(classes, "optimizer");
    top[BAND_DATA] = sum += pic_number(node, "data_bytes");
    top[BAND_GRADIENTS] = sum += pic_number(node, "gradient_bytes");
    top[BAND_ACTIVATIONS] = sum + pic_number(node, "activation_bytes");
}

static bool fill_panel(panel *p, const json_t *report, const char *title)
{
    const json_t *timeline = json_object_get(report, "timeline");
    *p = (panel){.report = report, .title = title, .n = json_array_size(timeline)};
    p->ncolumns = p->n < COLUMNS ? p->n : COLUMNS;
    p->columns = calloc(p->ncolumns + 1, sizeof *p->columns);
    if (!p->columns) return false;
    p->backward = p->commit = p->ncolumns;
    for (size_t i = 0; i < p->n; i++) {
        const json_t *node = json_array_get(timeline, i);
        size_t c = i * p->ncolumns / p->n;
        double top[NBANDS];
        edges(report, node, top);
        if (!p->columns[c].node || top[NBANDS - 1] > p->columns[c].top[NBANDS - 1]) {
            memcpy(p->columns[c].top, top, sizeof top);
            p->columns[c].node = node;
            p->columns[c].index = i;
        }
        const char *phase = pic_string(node, "phase");
        if (p->backward == p->ncolumns && strcmp(phase, "backward") == 0) p->backward = c;
        if (p->commit == p->ncolumns && strcmp(phase, "commit") == 0) p->commit = c;
    }
    for (size_t c = 1; c < p->ncolumns; c++) {
        if (p->columns[c].top[NBANDS - 1] > p->columns[p->peak].top[NBANDS - 1]) p->peak = c;
    }
    return true;
}

static void put_style(FILE *f)
{
    fputs("<style>\n.mem{color:#1d2126;background:#fff;font:12px system-ui,sans-serif}\n", f);
    for (int b = 0; b < NBANDS; b++) fprintf(f, ".mem .%s{fill:%s}", bands[b].css, bands[b].light);
    fputs("\n.mem text{fill:currentColor}.mem .h{font-size:15px;font-weight:600}.mem .s{opacity:.72}"
          ".mem .l{stroke:currentColor;opacity:.3;fill:none}.mem .k{stroke:currentColor;stroke-dasharray:4 3;fill:none}"
          ".mem .n{paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-opacity:.75}"
          ".mem .t{fill:transparent}.mem .t:hover{fill:currentColor;fill-opacity:.25}\n"
          "@media (prefers-color-scheme:dark){.mem{color:#e3e6ea;background:#14171b}",
          f);
    for (int b = 0; b < NBANDS; b++) fprintf(f, ".mem .%s{fill:%s}", bands[b].css, bands[b].dark);
    fputs(".mem .n{stroke:#14171b}}\n</style>\n", f);
}

static double x_of(const panel *p, size_t c)
{
    return LEFT + (double)(WIDTH - LEFT - RIGHT) * (double)c / (double)(p->ncolumns ? p->ncolumns : 1);
}

static void put_band(FILE *f, const panel *p, int band, double y0, double scale)
{
    fprintf(f, "<path class=\"%s\" d=\"M%.1f %.1f", bands[band].css, x_of(p, 0), y0);
    for (size_t c = 0; c < p->ncolumns; c++)
        fprintf(f, "V%.1fH%.1f", y0 - p->columns[c].top[band] * scale, x_of(p, c + 1));
    for (size_t c = p->ncolumns; c-- > 0;)
        fprintf(f, "V%.1fH%.1f", y0 - (band ? p->columns[c].top[band - 1] * scale : 0), x_of(p, c));
    fputs("Z\"/>\n", f);
}

static void put_axis(FILE *f, double y0, double top, double scale)
{
    double step = 1;
    while (step * 5 < top) step *= step * 10 < top ? 4 : 2;
    for (double v = 0; v <= top; v += step) {
        fprintf(f, "<path class=\"l\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                LEFT, y0 - v * scale, WIDTH - RIGHT, LEFT - 8, y0 - v * scale + 4, pic_bytes(v));
    }
}

static void put_titles(FILE *f, const panel *p, double y0)
{
    for (size_t c = 0; c < p->ncolumns; c++) {
        const column *col = &p->columns[c];
        fprintf(f, "<rect class=\"t\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>", x_of(p, c),
                y0 - PLOT, x_of(p, c + 1) - x_of(p, c), PLOT);
        fprintf(f, "%zu", col->index);
        pic_print_xml(f, "  %s  %s", pic_string(col->node, "op"), pic_string(col->node, "node"));
        fprintf(f, "\n%s, %s in all\nactivations %s, gradients %s, data %s", pic_string(col->node, "phase"),
                pic_bytes(col->top[NBANDS - 1]), pic_bytes(pic_number(col->node, "activation_bytes")),
                pic_bytes(pic_number(col->node, "gradient_bytes")), pic_bytes(pic_number(col->node, "data_bytes")));
        fputs("</title></rect>\n", f);
    }
}

/* The values that fill the peak, largest first. */
static void put_alive(FILE *f, const panel *p, double y0)
{
    const json_t *alive = json_object_get(p->report, "alive_at_peak"), *v;
    size_t n = json_array_size(alive), i, shown = 0, room = ALIVE_LETTERS;
    double limit = INFINITY;
    if (n == 0) return;
    fprintf(f, "<text class=\"s\" x=\"%d\" y=\"%.1f\">alive at the peak: ", LEFT, y0 + 36);
    while (shown < n && room > 0) {
        double next = -1;
        json_array_foreach(alive, i, v) if (pic_number(v, "bytes") < limit) next = fmax(next, pic_number(v, "bytes"));
        json_array_foreach(alive, i, v)
        {
            size_t letters = strlen(pic_string(v, "value")) + 2;
            if (pic_number(v, "bytes") != next || room == 0) continue;
            if (letters > room) {
                room = 0;
                continue;
            }
            room -= letters;
            fputs(shown++ ? ", " : "", f);
            pic_put_xml(f, pic_string(v, "value"));
        }
        limit = next;
    }
    if (shown < n) fprintf(f, ", and %zu more", n - shown);
    fputs("</text>\n", f);
}

/* What storing everything takes, where this panel takes less; named on the side where the peak is not. */
static void put_store(FILE *f, const panel *p, double y0, double scale)
{
    const double store = pic_number(p->report, "store_peak_bytes"), y = y0 - store * scale;
    const bool left = x_of(p, p->peak) > WIDTH * 0.5;
    if (store <= pic_number(p->report, "planned_peak_bytes")) return;
    fprintf(f,
            "<path class=\"k\" d=\"M%d %.1fH%d\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"%s\">all values stored: %s</text>\n",
            LEFT, y, WIDTH - RIGHT, left ? LEFT + 4 : WIDTH - RIGHT - 4, y - 5, left ? "start" : "end",
            pic_bytes(store));
}

static void put_peak(FILE *f, const panel *p, double y0, double scale)
{
    const column *col = &p->columns[p->peak];
    double x = (x_of(p, p->peak) + x_of(p, p->peak + 1)) / 2, y = y0 - col->top[NBANDS - 1] * scale;
    bool left = x > WIDTH * 0.6;
    fprintf(
        f,
        "<path class=\"k\" d=\"M%.1f %.1fV%.1f\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"currentColor\"/>\n",
        x, y0, y, x, y);
    fprintf(f, "<text class=\"n\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">peak: %s alive at ", left ? x - 8 : x + 8,
            y - 5, left ? "end" : "start", pic_bytes(col->top[NBANDS - 1]));
    pic_print_xml(f, "%s</text>\n", pic_string(col->node, "node"));

    put_alive(f, p, y0);
}

static void put_phase(FILE *f, const panel *p, size_t first, const char *label, double y0)
{
    double x = x_of(p, first);
    if (first >= p->ncolumns) return;
    fprintf(f, "<path class=\"l\" d=\"M%.1f %.1fV%.1f\"/><text class=\"s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y0,
            y0 - PLOT, x, y0 + 18, label);
}

static void put_panel(FILE *f, const panel *p, double y, double top)
{
    double y0 = y + HEAD + PLOT, scale = PLOT / top;
    fprintf(f, "<text class=\"h\" x=\"%d\" y=\"%.1f\">", LEFT, y + 16);
    pic_put_xml(f, p->title);
    fprintf(f,
            "</text><text class=\"s\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%zu nodes, activation peak %s</text>\n",
            WIDTH - RIGHT, y + 16, p->n, pic_bytes(pic_number(p->report, "activation_peak_bytes")));
    put_axis(f, y0, top, scale);
    for (int b = 0; b < NBANDS; b++) put_band(f, p, b, y0, scale);
    put_store(f, p, y0, scale);
    fprintf(f, "<text class=\"s\" x=\"%d\" y=\"%.1f\">forward</text>\n", LEFT, y0 + 18);
    put_phase(f, p, p->backward, "backward", y0);
    put_phase(f, p, p->commit, "update", y0);
    if (p->ncolumns) put_peak(f, p, y0, scale);
    put_titles(f, p, y0);
}

static void put_legend(FILE *f, double y)
{
    double x = LEFT;
    for (int b = 0; b < NBANDS; b++) {
        fprintf(f,
                "<rect class=\"%s\" x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\"/><text x=\"%.0f\" "
                "y=\"%.0f\">%s</text>\n",
                bands[b].css, x, y, x + 17, y + 10, bands[b].label);
        x += 34 + 7.0 * (double)strlen(bands[b].label);
    }
}

static void put_svg(FILE *f, const pic_memory *drawn, const panel *panels)
{
    const char *heading = drawn->heading;
    const size_t n = drawn->n;
    double top = 1;
    for (size_t i = 0; i < n; i++) {
        double store = pic_number(panels[i].report, "store_peak_bytes");
        const panel *p = &panels[i];
        if (p->ncolumns && p->columns[p->peak].top[NBANDS - 1] > top) top = p->columns[p->peak].top[NBANDS - 1];
        if (store > top) top = store;
    }
    top *= 1.06;
    int panel_height = HEAD + PLOT + FOOT, panels_end = 70 + panel_height * (int)n;
    int height = panels_end + pic_curve_height(drawn->curve);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"mem\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "role=\"img\">\n",
            WIDTH, height, WIDTH, height);
    put_style(f);
    pic_print_xml(f, "<title>Memory over one training step: %s</title>\n", heading);
    const char *slash = strrchr(heading, '/'), *shown = strlen(heading) > 60 && slash ? slash + 1 : heading;
    fprintf(f, "<text class=\"h\" x=\"%d\" y=\"24\">", LEFT);
    pic_print_xml(f, "Memory over one training step: %s</text>\n", shown);
    put_legend(f, 36);
    for (size_t i = 0; i < n; i++) put_panel(f, &panels[i], 66 + (double)panel_height * (double)i, top);
    if (drawn->curve) pic_put_curve(f, drawn, panels_end);
    fputs("</svg>\n", f);
}

static void put_file(FILE *f, const pic_memory *drawn, const panel *panels, bool page)
{
    if (page)
        fputs("<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
              "<title>invonnx: memory over one step</title>\n<style>body{margin:24px auto;max-width:1000px}"
              "svg{max-width:100%;height:auto}@media (prefers-color-scheme:dark){body{background:#14171b}}</style>\n",
              f);
    put_svg(f, drawn, panels);
    if (page && drawn->explanation) pic_put_block_plans(f, drawn->explanation);
}

bool pic_put_memory(FILE *f, const pic_memory *drawn, bool page)
{
    panel panels[PIC_PANELS] = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < drawn->n; i++) ok = fill_panel(&panels[i], drawn->reports[i], drawn->titles[i]);
    if (ok) put_file(f, drawn, panels, page);
    for (size_t i = 0; i < drawn->n; i++) free(panels[i].columns);
    return ok;
}
