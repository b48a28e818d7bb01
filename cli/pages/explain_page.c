/* SPDX-License-Identifier: Apache-2.0
 * The page of `explain --html`: the graph drawn, and beneath it the same facts in tables. One file, no scripts, light
 * or dark as the reader has it. */
#include "cli/pages/explain_page.h"

#include <stdarg.h>
#include <string.h>

#include "cli/files/write_files.h"
#include "cli/pages/explain_draw.h"
#include "cli/say/messages.h"
#include "pictures/report_text.h"

static const char *const light[CLI_COLOURS] = {"#bcd7f0", "#c6e3b5", "#f3d19c", "#e3c1e6",
                                               "#f2b9b3", "#b5e2dc", "#dcd6a8", "#cfcbe9"};
static const char *const dark[CLI_COLOURS] = {"#24506f", "#3a5f28", "#6f4d12", "#5d3762",
                                              "#6f2f2a", "#1f5b54", "#575122", "#413b73"};

static void put_style(FILE *f)
{
    fputs("<style>\n:root{color-scheme:light dark;--ink:#1d2126;--paper:#fff;--box:#eef0f2;--line:#9aa1aa;"
          "--stored:#c2571a;--inverted:#2c7d3f;--recomputed:#2f6fb0;--offloaded:#7a4fb5;--refused:#b3261e",
          f);
    for (int k = 0; k < CLI_COLOURS; k++) fprintf(f, ";--k%d:%s", k, light[k]);
    fputs("}\n@media (prefers-color-scheme:dark){:root{--ink:#e3e6ea;--paper:#14171b;--box:#262b31;--line:#6c747e;"
          "--stored:#f0955a;--inverted:#6fc483;--recomputed:#7fb4ea;--offloaded:#c0a0ee;--refused:#ff8a80",
          f);
    for (int k = 0; k < CLI_COLOURS; k++) fprintf(f, ";--k%d:%s", k, dark[k]);
    fputs("}}\nbody{margin:24px;color:var(--ink);background:var(--paper);font:14px/1.4 system-ui,sans-serif}"
          "h1{font-size:20px}h2{font-size:16px;margin-top:28px}"
          "table{border-collapse:collapse}td,th{padding:3px 10px;text-align:left;vertical-align:top;"
          "border-bottom:1px solid var(--box);overflow-wrap:anywhere}td.r{text-align:right;white-space:nowrap}"
          ".scroll{overflow:auto;max-height:80vh;border:1px solid var(--box)}"
          ".legend span{display:inline-block;margin-right:16px}"
          ".legend i{display:inline-block;width:14px;height:14px;margin-right:5px;vertical-align:-2px;"
          "background:var(--box)}\n"
          ".graph{font:11px system-ui,sans-serif}.graph text{fill:var(--ink)}.graph .s{opacity:.75}"
          ".graph rect{fill:var(--box)}.graph .refused rect{stroke:var(--refused);stroke-dasharray:4 2}"
          ".graph .refused .bar{stroke:none}.graph .x{fill:var(--refused)}"
          ".graph .e{fill:none;stroke:var(--line);stroke-width:1.3}.graph .e:hover{stroke-width:4}"
          ".graph .e.stored{stroke:var(--stored);stroke-width:2.2}"
          ".graph .e.inverted{stroke:var(--inverted);stroke-width:2.2}"
          ".graph .e.recomputed{stroke:var(--recomputed);stroke-width:2.2;stroke-dasharray:5 3}"
          ".graph .e.offloaded{stroke:var(--offloaded);stroke-width:2.2;stroke-dasharray:1 3}"
          ".graph circle.offloaded,.legend i.offloaded{fill:var(--offloaded);background:var(--offloaded)}"
          ".graph circle.stored,.legend i.stored{fill:var(--stored);background:var(--stored)}"
          ".graph circle.inverted,.legend i.inverted{fill:var(--inverted);background:var(--inverted)}"
          ".graph circle.recomputed,.legend i.recomputed{fill:var(--recomputed);background:var(--recomputed)}"
          ".legend i.refused{background:none;outline:1px dashed var(--refused)}\n",
          f);
    for (int k = 0; k < CLI_COLOURS; k++)
        fprintf(f, ".graph .k%d>rect,.graph rect.k%d{fill:var(--k%d)}i.k%d{background:var(--k%d)!important}\n", k, k, k,
                k, k);
    fputs("</style>\n", f);
}

static void put_cell(FILE *f, const char *text) { pic_print_xml(f, "<td>%s</td>", text); }

static void put_names(FILE *f, const json_t *names)
{
    const json_t *name;
    size_t i;
    fputs("<td>", f);
    json_array_foreach(names, i, name)
    {
        if (i) fputs(", ", f);
        pic_put_xml(f, json_string_value(name) ? json_string_value(name) : "");
    }
    fputs("</td>", f);
}

static void put_head(FILE *f, const char *title, size_t n, const char *const *columns)
{
    fprintf(f, "<h2>%s: %zu</h2>\n<table><thead><tr>", title, n);
    for (; *columns; columns++) fprintf(f, "<th>%s</th>", *columns);
    fputs("</tr></thead><tbody>\n", f);
}

static void put_swatch(FILE *f, const json_t *kinds, const char *kind)
{
    const json_t *number = json_object_get(kinds, kind);
    if (number) fprintf(f, "<i class=\"k%d\"></i>", (int)(json_integer_value(number) % CLI_COLOURS));
}

static void put_blocks(FILE *f, const json_t *blocks, const json_t *kinds)
{
    const json_t *b;
    size_t i;
    put_head(f, "Blocks", json_array_size(blocks),
             (const char *const[]){"kind", "name", "rule", "takes", "gives", "frees", "gain", "nodes", NULL});
    json_array_foreach(blocks, i, b)
    {
        const json_t *gain = json_object_get(b, "gain");
        fputs("<tr><td class=\"legend\">", f);
        put_swatch(f, kinds, pic_string(b, "kind"));
        pic_print_xml(f, "%s</td>", pic_string(b, "kind"));
        put_cell(f, pic_string(b, "name"));
        put_cell(f, pic_string(b, "rule"));
        put_names(f, json_object_get(b, "inputs"));
        put_names(f, json_object_get(b, "outputs"));
        put_names(f, json_object_get(b, "frees"));
        if (json_is_number(gain)) fprintf(f, "<td class=\"r\">%.3g", json_number_value(gain));
        else fputs("<td class=\"r\">no bound", f);
        fputs(json_is_false(json_object_get(b, "usable")) ? ", too much to be used</td>" : "</td>", f);
        put_names(f, json_object_get(b, "nodes"));
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table>\n", f);
}

static void put_refusals(FILE *f, const json_t *refusals)
{
    static const char *const keys[] = {"kind", "node", "op", "value", "reason", "condition", "remedy"};
    const json_t *r;
    size_t i;
    put_head(f, "Refusals", json_array_size(refusals),
             (const char *const[]){"as", "at node", "operator", "would free", "why not", "condition", "remedy", NULL});
    json_array_foreach(refusals, i, r)
    {
        fputs("<tr>", f);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) put_cell(f, pic_string(r, keys[k]));
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table>\n", f);
}

static void put_choices(FILE *f, const json_t *choices)
{
    const json_t *c;
    size_t i;
    if (json_array_size(choices) == 0) {
        fputs("<p>With --loss, this page also says what backward reads and how it gets it.</p>\n", f);
        return;
    }
    put_head(f, "Values that backward reads", json_array_size(choices),
             (const char *const[]){"how", "bytes", "value", "by which rule or operator, or why", NULL});
    json_array_foreach(choices, i, c)
    {
        const char *why = pic_string(c, "reason");
        fputs("<tr>", f);
        put_cell(f, pic_string(c, "choice"));
        fprintf(f, "<td class=\"r\">%s</td>", pic_bytes(pic_number(c, "bytes")));
        put_cell(f, pic_string(c, "value"));
        put_cell(f, *why ? why : pic_string(c, "by"));
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table>\n", f);
}

static void put_legend(FILE *f, const json_t *kinds, bool chosen)
{
    const char *kind;
    json_t *number;
    fputs("<p class=\"legend\">", f);
    json_object_foreach((json_t *)(uintptr_t)kinds, kind, number)
    {
        fputs("<span>", f);
        put_swatch(f, kinds, kind);
        pic_print_xml(f, "%s</span>", kind);
    }
    fputs("<span><i class=\"refused\"></i>refused</span>", f);
    if (chosen)
        fputs("<span><i class=\"stored\"></i>stored for backward</span><span><i class=\"recomputed\"></i>computed again"
              "</span><span><i class=\"inverted\"></i>rebuilt by an inverse</span><span><i class=\"offloaded\"></i>"
              "copied to host memory and back</span>",
              f);
    fputs("</p>\n"
          "<p>Point at a box or line to see its details. The bar at the left of a box marks the outermost block "
          "around it. In large graphs each outermost block is one box.</p>\n",
          f);
}

static int put_page(FILE *f, const char *heading, const json_t *x, const json_t *kinds)
{
    const json_t *choices = json_object_get(x, "choices");
    pic_print_xml(f,
                  "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                  "content=\"width=device-width\">\n<title>invonnx explain: %s</title>\n",
                  heading);
    put_style(f);
    pic_print_xml(f, "</head>\n<body>\n<h1>%s</h1>\n", heading);
    put_legend(f, kinds, json_array_size(choices) > 0);
    fputs("<div class=\"scroll\">\n", f);
    int status = cli_explain_draw(f, x, kinds);
    fputs("</div>\n", f);
    put_blocks(f, json_object_get(x, "blocks"), kinds);
    put_refusals(f, json_object_get(x, "refusals"));
    put_choices(f, choices);
    fputs("</body>\n</html>\n", f);
    return status;
}

int cli_explain_page(const char *path, const char *heading, const json_t *explanation)
{
    json_t *kinds = json_object();
    const json_t *b;
    size_t i;
    json_array_foreach(json_object_get(explanation, "blocks"), i, b)
    {
        if (!json_object_get(kinds, pic_string(b, "kind")))
            json_object_set_new(kinds, pic_string(b, "kind"), json_integer((json_int_t)json_object_size(kinds)));
    }
    cli_file file;
    int status = cli_file_open(&file, path);
    if (status == CLI_OK) {
        int put = put_page(file.f, heading, explanation, kinds);
        status = cli_file_close(&file, put == CLI_OK);
        if (put != CLI_OK) status = put;
    }
    json_decref(kinds);
    return status;
}
