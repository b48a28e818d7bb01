/* SPDX-License-Identifier: Apache-2.0
 * The page of a run (`train --html FILE`): what is trained and how far it is, and curves of all that records measure.
 * One file without scripts, rewritten as the run goes, each time as a whole. The curves' numbers stand in it as JSON,
 * from which a run that is resumed goes on. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/files/write_files.h"
#include "cli/log/run_log.h"
#include "cli/pages/chart.h"
#include "pictures/report_text.h"

enum { EVERY = 5 /* seconds between two pages */, NAME = 24, SPLITS = 2 };

/* One curve: a measure or a metric, of training or of validation. */
typedef struct curve {
    char name[NAME];
    cli_series series[SPLITS];
} curve;

typedef struct page {
    curve *curve;
    size_t ncurve;
    cli_record newest[SPLITS]; /* step 0: none yet */
    json_t *confusion, *class_names;
    double written, cost; /* when the page was last written, and how long that took */
    bool failed;          /* out of memory */
} page;

/* --- curves --- */

static curve *curve_named(page *p, const char *name)
{
    for (size_t i = 0; i < p->ncurve; i++)
        if (strcmp(p->curve[i].name, name) == 0) return &p->curve[i];
    curve *grown = realloc(p->curve, (p->ncurve + 1) * sizeof *grown);
    if (!grown) return NULL;
    p->curve = grown;
    curve *fresh = &grown[p->ncurve++];
    *fresh = (curve){.series = {{.width = 1}, {.width = 1}}};
    (void)snprintf(fresh->name, sizeof fresh->name, "%s", name);
    return fresh;
}

static void add_number(page *p, const char *name, bool validation, int64_t step, double y)
{
    if (!isfinite(y)) return;
    curve *c = curve_named(p, name);
    p->failed = p->failed || !c || !cli_series_add(&c->series[validation], (double)step, y);
}

static void record_on_page(cli_sink *s, const cli_record *r)
{
    page *p = s->state;
    for (int i = 0; i < CLI_NSCALARS; i++) add_number(p, cli_scalar_name[i], r->validation, r->step, r->value[i]);
    for (size_t i = 0; i < r->nmetrics; i++)
        add_number(p, r->metrics[i].name, r->validation, r->step, r->metrics[i].value);
    p->newest[r->validation] = *r;
    if (!r->confusion) return;
    json_decref(p->confusion);
    json_decref(p->class_names);
    p->confusion = json_incref((json_t *)(uintptr_t)r->confusion);
    p->class_names = json_incref((json_t *)(uintptr_t)r->class_names);
}

/* Whether there is something to see: what is zero all the time, as the drift of a run that stores everything, is not.
 */
static bool is_drawn(const curve *c)
{
    for (int k = 0; k < SPLITS; k++)
        for (size_t i = 0; i < c->series[k].n; i++)
            if (c->series[k].at[i].low != 0 || c->series[k].at[i].high != 0) return true;
    return strcmp(c->name, cli_scalar_name[CLI_LOSS]) == 0;
}

/* --- numbers in the page --- */

static const char numbers_begin[] = "<script type=\"application/json\" id=\"curves\">";
static const char numbers_end[] = "</script>";

static void put_numbers(FILE *f, const page *p)
{
    const char *between = "";
    fprintf(f, "%s\n[", numbers_begin);
    for (size_t i = 0; i < p->ncurve; i++) {
        for (int k = 0; k < SPLITS; k++) {
            const cli_series *s = &p->curve[i].series[k];
            if (!s->n) continue;
            fprintf(f, "%s{\"name\":\"%s\",\"split\":\"%s\",\"width\":%.0f,\"spans\":[", between, p->curve[i].name,
                    k ? "val" : "train", s->width);
            for (size_t j = 0; j < s->n; j++)
                fprintf(f, "%s[%.0f,%.0f,%.8g,%.8g,%.8g,%lld]", j ? "," : "", s->at[j].first, s->at[j].last,
                        s->at[j].low, s->at[j].high, s->at[j].sum, (long long)s->at[j].n);
            fputs("]}", f);
            between = ",\n";
        }
    }
    fprintf(f, "]\n%s\n", numbers_end);
}

static double number_at(const json_t *list, size_t i) { return json_number_value(json_array_get(list, i)); }

static bool take_span(cli_series *s, const json_t *span, const cli_run_facts *facts, bool validation)
{
    const double first = number_at(span, 0), after = (double)facts->after;
    if (first > after || (validation && first == after && !facts->validated)) return true;
    if (!cli_series_add(s, first, number_at(span, 2))) return false;
    s->at[s->n - 1] = (cli_span){first,
                                 fmin(number_at(span, 1), after),
                                 number_at(span, 2),
                                 number_at(span, 3),
                                 number_at(span, 4),
                                 (int64_t)number_at(span, 5)};
    return true;
}

static void take_curves(page *p, const json_t *curves, const cli_run_facts *facts)
{
    const json_t *entry, *span;
    size_t i, j;
    json_array_foreach(curves, i, entry)
    {
        const bool validation = strcmp(pic_string(entry, "split"), "val") == 0;
        curve *c = curve_named(p, pic_string(entry, "name"));
        cli_series *s = c ? &c->series[validation] : NULL;
        if (s && pic_number(entry, "width") >= 1) s->width = pic_number(entry, "width");
        json_array_foreach(json_object_get(entry, "spans"), j, span) p->failed =
            p->failed || !s || !take_span(s, span, facts, validation);
    }
}

/* The curves of the page that a resumed run goes on from, if it is there. */
static int take_up(cli_sink *s, const cli_run_facts *facts)
{
    struct stat st;
    if (facts->after < 0 || stat(s->path, &st) != 0) return CLI_OK;
    char *text = cli_text_of_file(s->path);
    if (!text) return CLI_FAILED;
    const char *begin = strstr(text, numbers_begin), *end = begin ? strstr(begin, numbers_end) : NULL;
    json_t *curves = NULL;
    if (end)
        curves =
            json_loadb(begin + sizeof numbers_begin - 1, (size_t)(end - begin) - sizeof numbers_begin + 1, 0, NULL);
    free(text);
    if (!json_is_array(curves)) {
        json_decref(curves);
        return cli_fail("%s %s: is no page of a run; name another file", s->option, s->path);
    }
    take_curves(s->state, curves, facts);
    json_decref(curves);
    return CLI_OK;
}

/* --- the page --- */

static void put_head(FILE *f, const cli_sink *s, bool end)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n",
          f);
    if (!end) fprintf(f, "<meta http-equiv=\"refresh\" content=\"%d\">\n", 2 * EVERY);
    fputs("<title>invonnx train: ", f);
    pic_put_xml(f, s->o->argument.item[0]);
    fputs("</title>\n<style>\nbody{margin:24px auto;padding:0 16px;max-width:1320px;color:#1d2126;background:#fff;"
          "font:14px/1.45 system-ui,sans-serif}h1{font-size:20px}h2{font-size:16px;margin-top:28px}"
          "table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top;"
          "overflow-wrap:anywhere}th{font-weight:600;white-space:nowrap}"
          ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:20px;"
          "margin-top:20px}"
          "svg{width:100%;height:auto}.m td,.m th{padding:3px 6px;text-align:right;font-variant-numeric:tabular-nums}\n"
          "@media (prefers-color-scheme:dark){body{color:#e3e6ea;background:#14171b}}\n</style>\n",
          f);
    cli_put_chart_style(f);
    fputs("</head>\n<body>\n", f);
}

static void put_fact(FILE *f, const char *name, const char *text)
{
    fprintf(f, "<tr><th>%s</th><td>", name);
    pic_put_xml(f, text);
    fputs("</td></tr>\n", f);
}

static void put_progress(FILE *f, const cli_sink *s, bool end)
{
    const page *p = s->state;
    const cli_record *step = &p->newest[0], *held = &p->newest[1];
    char text[160];
    if (step->step == 0) return;
    const double left = step->seconds * (double)(s->facts->total - step->step) / (double)step->step;
    int n = snprintf(text, sizeof text, "step %lld of %lld, epoch %lld, %.0f s", (long long)step->step,
                     (long long)s->facts->total, (long long)step->epoch, step->seconds);
    if (!end && n > 0) n += snprintf(text + n, sizeof text - (size_t)n, ", about %.0f s left", left);
    if (n > 0 && end) (void)snprintf(text + n, sizeof text - (size_t)n, "; ended");
    put_fact(f, "progress", text);
    n = snprintf(text, sizeof text, "%.6g", step->value[CLI_LOSS]);
    if (held->step && n > 0)
        (void)snprintf(text + n, sizeof text - (size_t)n, ", validation %.6g after step %lld", held->value[CLI_LOSS],
                       (long long)held->step);
    put_fact(f, "loss", text);
}

static void put_facts(FILE *f, const cli_sink *s, bool end)
{
    const char *name;
    const json_t *text;
    fputs("<h1>", f);
    pic_put_xml(f, s->o->argument.item[0]);
    fputs("</h1>\n<table>\n", f);
    json_object_foreach((json_t *)(uintptr_t)s->facts->about, name, text) put_fact(f, name, json_string_value(text));
    put_progress(f, s, end);
    fputs("</table>\n", f);
}

static const char *title_of(const char *name)
{
    static const char *const titles[CLI_NSCALARS] = {
        [CLI_LR] = "learning rate", [CLI_GRAD_NORM] = "gradient norm", [CLI_MEMORY] = "memory of the process"};
    for (int i = 0; i < CLI_NSCALARS; i++)
        if (titles[i] && strcmp(name, cli_scalar_name[i]) == 0) return titles[i];
    return name;
}

/* All have one x axis, up to the newest record. */
static void put_charts(FILE *f, const page *p)
{
    static const char *const splits[SPLITS] = {"training", "validation"};
    const double newest = (double)(p->newest[1].step > p->newest[0].step ? p->newest[1].step : p->newest[0].step);
    fputs("<div class=\"charts\">\n", f);
    for (size_t i = 0; i < p->ncurve; i++) {
        const curve *c = &p->curve[i];
        const bool bytes = strcmp(c->name, cli_scalar_name[CLI_MEMORY]) == 0;
        cli_chart chart = {.title = title_of(c->name),
                           .x_name = "step",
                           .nline = bytes ? 1 : SPLITS,
                           .bytes = bytes,
                           .to = newest,
                           .mark = (double)NAN};
        for (size_t k = 0; k < SPLITS; k++) chart.line[k] = (cli_chart_line){splits[k], &c->series[k]};
        if (is_drawn(c)) cli_put_chart(f, &chart, false);
    }
    fputs("</div>\n", f);
}

/* A class by its name, or by its label where it has none. */
static void put_class(FILE *f, const page *p, size_t i)
{
    const char *name = json_string_value(json_array_get(p->class_names, i));
    fputs("<th>", f);
    if (name) pic_put_xml(f, name);
    else fprintf(f, "%zu", i);
    fputs("</th>", f);
}

/* Counts per class, the more of a row's the stronger. */
static void put_confusion(FILE *f, const page *p)
{
    const json_t *row, *cell;
    size_t i, j;
    if (!p->confusion) return;
    fputs("<h2>Confusion matrix of the newest validation</h2>\n"
          "<p>Rows: the true class. Columns: the predicted class.</p>\n"
          "<table class=\"m\">\n"
          "<tr><th></th>",
          f);
    for (i = 0; i < json_array_size(p->confusion); i++) put_class(f, p, i);
    fputs("</tr>\n", f);
    json_array_foreach(p->confusion, i, row)
    {
        double sum = 0;
        fputs("<tr>", f);
        put_class(f, p, i);
        json_array_foreach(row, j, cell) sum += json_number_value(cell);
        json_array_foreach(row, j, cell)
            fprintf(f, "<td style=\"background:rgba(%s,%.2f)\">%lld</td>", i == j ? "70,150,90" : "210,110,50",
                    sum > 0 ? 0.8 * json_number_value(cell) / sum : 0, (long long)json_integer_value(cell));
        fputs("</tr>\n", f);
    }
    fputs("</table>\n", f);
}

/* By a temporary file and rename, so that a reader always finds a whole page. */
static bool write_page(const cli_sink *s, bool end)
{
    const page *p = s->state;
    char *temporary = malloc(strlen(s->path) + 32);
    if (!temporary) return false;
    sprintf(temporary, "%s.tmp-%ld", s->path, (long)getpid());
    FILE *f = fopen(temporary, "w");
    bool ok = f != NULL;
    if (f) {
        put_head(f, s, end);
        put_facts(f, s, end);
        put_charts(f, p);
        put_confusion(f, p);
        put_numbers(f, p);
        fputs("</body>\n</html>\n", f);
        ok = !ferror(f) && fflush(f) == 0;
        ok = fclose(f) == 0 && ok;
    }
    ok = ok && rename(temporary, s->path) == 0;
    const int error = errno;
    if (!ok) unlink(temporary);
    free(temporary);
    errno = error;
    return ok;
}

/* Pages take a hundredth of the time at most. */
static bool flush_page(cli_sink *s, bool validated, bool end)
{
    page *p = s->state;
    const double now = cli_now(), wait = fmax(validated ? 1 : EVERY, 100 * p->cost);
    if (p->failed) errno = ENOMEM;
    if (p->failed) return false;
    if (!end && p->written > 0 && now - p->written < wait) return true;
    const bool ok = write_page(s, end);
    p->written = cli_now();
    p->cost = p->written - now;
    return ok;
}

static int begin_page(cli_sink *s, const cli_run_facts *facts)
{
    s->state = calloc(1, sizeof(page));
    return s->state ? take_up(s, facts) : cli_fail("out of memory");
}

static void close_page(cli_sink *s)
{
    page *p = s->state;
    for (size_t i = 0; p && i < p->ncurve; i++)
        for (int k = 0; k < SPLITS; k++) cli_series_fini(&p->curve[i].series[k]);
    if (p) free(p->curve);
    if (p) json_decref(p->confusion);
    if (p) json_decref(p->class_names);
    free(p);
}

const cli_sink_kind cli_sink_page = {begin_page, record_on_page, flush_page, close_page};
