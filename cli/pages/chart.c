/* SPDX-License-Identifier: Apache-2.0
 * Curves as SVG, light or dark as the reader has it; numbers under the pointer. */
#include "cli/pages/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/report_text.h"

enum { WIDTH = 640, HEIGHT = 270, LEFT = 76, RIGHT = 14, TOP = 44, BOTTOM = 38 };
enum { MOST_SPANS = 512, HOVERS = 64 };

/* --- series --- */

void cli_series_fini(cli_series *s)
{
    free(s->at);
    *s = (cli_series){0};
}

static void join(cli_span *a, const cli_span *b)
{
    a->last = b->last;
    a->low = fmin(a->low, b->low);
    a->high = fmax(a->high, b->high);
    a->sum += b->sum;
    a->n += b->n;
}

/* Whether both are in one stretch of the series' width. */
static bool same_stretch(const cli_series *s, double x, double y)
{
    return s->width > 0 && floor(x / s->width) == floor(y / s->width);
}

static void join_neighbours(cli_series *s)
{
    size_t n = 0;
    s->width *= 2;
    for (size_t i = 1; i < s->n; i++) {
        if (same_stretch(s, s->at[n].first, s->at[i].first)) join(&s->at[n], &s->at[i]);
        else s->at[++n] = s->at[i];
    }
    s->n = n + 1;
}

bool cli_series_add(cli_series *s, double x, double y)
{
    const cli_span one = {x, x, y, y, y, 1};
    if (!isfinite(y)) return true;
    if (s->n && same_stretch(s, s->at[s->n - 1].first, x)) {
        join(&s->at[s->n - 1], &one);
        return true;
    }
    while (s->width > 0 && s->n >= MOST_SPANS) join_neighbours(s);
    if (s->n == s->room) {
        const size_t room = 2 * s->room + 64;
        cli_span *grown = realloc(s->at, room * sizeof *grown);
        if (!grown) return false;
        s->at = grown;
        s->room = room;
    }
    s->at[s->n++] = one;
    return true;
}

static double mean_of(const cli_span *p) { return p->sum / (double)p->n; }

/* --- frame --- */

typedef struct frame {
    const cli_chart *chart;
    double left, right, low, high; /* ends of the axes, as logarithms where these are logarithmic */
    bool log_y;
} frame;

static double x_of(const frame *r, double x)
{
    if (r->chart->log_x) x = log10(x);
    return LEFT + (WIDTH - LEFT - RIGHT) * (x - r->left) / (r->right - r->left);
}

static double y_of(const frame *r, double y)
{
    if (r->log_y) y = log10(y);
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - r->low) / (r->high - r->low);
}

/* Numbers that span more than this are drawn on a logarithmic axis. */
static const double much = 30;

static bool find_frame(const cli_chart *chart, frame *r)
{
    *r = (frame){chart, INFINITY, -INFINITY, INFINITY, -INFINITY, false};
    for (size_t k = 0; k < chart->nline; k++) {
        const cli_series *s = chart->line[k].series;
        for (size_t i = 0; i < s->n; i++) {
            r->left = fmin(r->left, s->at[i].first);
            r->right = fmax(r->right, s->at[i].last);
            r->low = fmin(r->low, s->at[i].low);
            r->high = fmax(r->high, s->at[i].high);
        }
    }
    if (r->left > r->right) return false;
    if (chart->from < chart->to) {
        r->left = chart->from;
        r->right = chart->to;
    }
    if (chart->log_x) {
        r->left = log10(r->left);
        r->right = log10(r->right);
    }
    if (r->right - r->left <= 0) {
        r->left -= 0.5;
        r->right += 0.5;
    }
    r->log_y = !chart->bytes && r->low > 0 && r->high > much * r->low;
    if (chart->bytes) r->low = 0;
    if (r->log_y) {
        r->low = log10(r->low);
        r->high = log10(r->high);
    }
    const double margin = r->high > r->low ? 0.04 * (r->high - r->low) : fmax(0.1 * fabs(r->high), 1e-12);
    if (!chart->bytes) r->low -= margin;
    r->high += margin;
    return true;
}

/* --- axes --- */

/* 1, 2 or 5 times a power of ten, so that there are about `n` of them in the range. */
static double tick(double range, int n)
{
    const double unit = pow(10, floor(log10(range / n))), share = range / n / unit;
    return share > 5 ? 10 * unit : share > 2 ? 5 * unit : share > 1 ? 2 * unit : unit;
}

/* A power of two, so that there are at most five. */
static double binary_tick(double range)
{
    double step = 1;
    while (5 * step < range) step *= 2;
    return step;
}

static void put_y_tick(FILE *f, const frame *r, double v)
{
    char text[32];
    if (r->chart->bytes) (void)snprintf(text, sizeof text, "%s", pic_bytes(v));
    else (void)snprintf(text, sizeof text, "%.4g", fabs(v) < 1e-12 * (r->high - r->low) ? 0 : v);
    fprintf(f, "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT,
            y_of(r, v), WIDTH - RIGHT, LEFT - 6, y_of(r, v) + 4, text);
}

static void put_x_tick(FILE *f, const frame *r, double v)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n", x_of(r, v), HEIGHT - BOTTOM + 16, v);
}

/* Of a logarithmic axis: powers of ten, as far apart as there is room, and where there are few also 2 and 5 times
 * these.
 */
static void put_log_ticks(FILE *f, const frame *r, double from, double to,
                          void (*put)(FILE *f, const frame *r, double v))
{
    static const double times[] = {1, 2, 5};
    const bool few = to - from < 2.5;
    const int step = (int)fmax(1, ceil((to - from) / 6));
    for (int e = (int)floor(from); e <= (int)ceil(to); e++) {
        for (size_t i = 0; i < (few ? sizeof times / sizeof *times : 1); i++) {
            const double at = e + log10(times[i]);
            if (at >= from && at <= to && e % step == 0) put(f, r, times[i] * pow(10, e));
        }
    }
}

static void put_axes(FILE *f, const frame *r)
{
    const double y = tick(r->high - r->low, 5), x = tick(r->right - r->left, 6);
    if (r->log_y) put_log_ticks(f, r, r->low, r->high, put_y_tick);
    else if (r->chart->bytes)
        for (double v = 0; v <= r->high; v += binary_tick(r->high)) put_y_tick(f, r, v);
    else
        for (double v = ceil(r->low / y) * y; v <= r->high; v += y) put_y_tick(f, r, v);
    if (r->chart->log_x) put_log_ticks(f, r, r->left, r->right, put_x_tick);
    else
        for (double v = ceil(r->left / x) * x; v <= r->right; v += x)
            if (v == floor(v)) put_x_tick(f, r, v);
    fprintf(f, "<text class=\"s\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", WIDTH - RIGHT, HEIGHT - 6,
            r->chart->x_name);
}

/* --- lines --- */

/* The means as a line; behind it, where spans have many numbers, from the smallest to the largest. */
static void put_series(FILE *f, const frame *r, const cli_series *s, size_t number)
{
    bool many = false;
    for (size_t i = 0; i < s->n && !many; i++) many = s->at[i].low < s->at[i].high;
    if (many) {
        fprintf(f, "<path class=\"a%zu\" d=\"", number);
        for (size_t i = 0; i < s->n; i++)
            fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', x_of(r, (s->at[i].first + s->at[i].last) / 2),
                    y_of(r, s->at[i].high));
        for (size_t i = s->n; i-- > 0;)
            fprintf(f, "L%.1f %.1f", x_of(r, (s->at[i].first + s->at[i].last) / 2), y_of(r, s->at[i].low));
        fputs("Z\"/>\n", f);
    }
    fprintf(f, "<path class=\"l%zu\" d=\"", number);
    for (size_t i = 0; i < s->n; i++)
        fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', x_of(r, (s->at[i].first + s->at[i].last) / 2),
                y_of(r, mean_of(&s->at[i])));
    fputs("\"/>\n", f);
    for (size_t i = 0; i < s->n && s->n <= 40; i++)
        fprintf(f, "<circle class=\"d%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>", number,
                x_of(r, (s->at[i].first + s->at[i].last) / 2), y_of(r, mean_of(&s->at[i])));
}

static void put_value(FILE *f, const frame *r, double v)
{
    if (r->chart->bytes) fputs(pic_bytes(v), f);
    else fprintf(f, "%.5g", v);
}

static void put_legend(FILE *f, const frame *r)
{
    double x = LEFT;
    for (size_t k = 0; k < r->chart->nline; k++) {
        const cli_series *s = r->chart->line[k].series;
        if (!s->n) continue;
        fprintf(
            f,
            "<rect class=\"d%zu\" x=\"%.0f\" y=\"27\" width=\"9\" height=\"9\"/><text class=\"s\" x=\"%.0f\" y=\"36\">",
            k, x, x + 14);
        pic_put_xml(f, r->chart->line[k].label);
        fputs(": last ", f);
        put_value(f, r, mean_of(&s->at[s->n - 1]));
        fputs("</text>\n", f);
        x += 250;
    }
}

/* What lines are between two places, as text under the pointer. */
static void put_hovers(FILE *f, const frame *r)
{
    const double width = (double)(WIDTH - LEFT - RIGHT) / HOVERS;
    size_t at[CLI_CHART_LINES] = {0};
    for (int i = 0; i < HOVERS; i++) {
        const double end = LEFT + width * (i + 1);
        bool any = false;
        for (size_t k = 0; k < r->chart->nline; k++) {
            const cli_series *s = r->chart->line[k].series;
            cli_span all = {0};
            for (; at[k] < s->n && (x_of(r, s->at[at[k]].first) < end || i + 1 == HOVERS); at[k]++) {
                if (all.n) join(&all, &s->at[at[k]]);
                else all = s->at[at[k]];
            }
            if (!all.n) continue;
            if (!any)
                fprintf(f, "<rect class=\"t\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>", end - width,
                        TOP, width, HEIGHT - TOP - BOTTOM);
            fprintf(f, "%s%s %.6g", any ? "\n" : "", r->chart->x_name, all.first);
            if (all.last > all.first) fprintf(f, " to %.6g", all.last);
            fputs(": ", f);
            pic_put_xml(f, r->chart->line[k].label);
            fputc(' ', f);
            put_value(f, r, mean_of(&all));
            if (all.high > all.low) {
                fputs(" (", f);
                put_value(f, r, all.low);
                fputs(" to ", f);
                put_value(f, r, all.high);
                fputc(')', f);
            }
            any = true;
        }
        if (any) fputs("</title></rect>\n", f);
    }
}

void cli_put_chart_style(FILE *f)
{
    fputs("<style>\n.chart{color:#1d2126;font:12px system-ui,sans-serif;--c0:#2f6fb0;--c1:#d9772b}"
          ".chart text{fill:currentColor}.chart .h{font-size:15px;font-weight:600}.chart .s{opacity:.75}"
          ".chart .g{stroke:currentColor;opacity:.15}.chart .k{stroke:currentColor;stroke-dasharray:4 3}"
          ".chart .l0,.chart .l1{fill:none;stroke:var(--c0);stroke-width:1.6;stroke-linejoin:round}"
          ".chart .l1{stroke:var(--c1)}.chart .a0{fill:var(--c0);opacity:.22}.chart .a1{fill:var(--c1);opacity:.22}"
          ".chart .d0{fill:var(--c0)}.chart .d1{fill:var(--c1)}"
          ".chart .t{fill:transparent}.chart .t:hover{fill:currentColor;fill-opacity:.08}\n"
          "@media (prefers-color-scheme:dark){.chart{color:#e3e6ea;--c0:#7fb4ea;--c1:#f0a45a}}\n</style>\n",
          f);
}

static void put_mark(FILE *f, const frame *r)
{
    const double x = x_of(r, r->chart->mark);
    const bool left = x > 0.6 * WIDTH;
    fprintf(f, "<path class=\"k\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">", x, TOP,
            HEIGHT - BOTTOM, left ? x - 6 : x + 6, TOP + 12, left ? "end" : "start");
    pic_put_xml(f, r->chart->mark_label);
    fputs("</text>\n", f);
}

void cli_put_chart(FILE *f, const cli_chart *chart, bool style)
{
    frame r;
    if (!find_frame(chart, &r)) return;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    if (style) cli_put_chart_style(f);
    fprintf(f, "<text class=\"h\" x=\"%d\" y=\"17\">", LEFT);
    pic_put_xml(f, chart->title);
    fprintf(f, "%s</text>\n", r.log_y ? " (logarithmic)" : "");
    put_legend(f, &r);
    put_axes(f, &r);
    for (size_t k = 0; k < chart->nline; k++)
        if (chart->line[k].series->n) put_series(f, &r, chart->line[k].series, k);
    if (isfinite(chart->mark)) put_mark(f, &r);
    put_hovers(f, &r);
    fputs("</svg>\n", f);
}

bool cli_is_svg(const char *path)
{
    const size_t n = strlen(path);
    return n >= 4 && strcmp(path + n - 4, ".svg") == 0;
}
