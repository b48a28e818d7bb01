/* SPDX-License-Identifier: Apache-2.0
 * What is trained and what is not, in one line. */
#include "cli/pages/trained_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/say/messages.h"
#include "pictures/report_text.h"

/* "11.2 M numbers"; from ten thousand on rounded. */
static void put_numbers(FILE *f, double n)
{
    if (n < 1e4) fprintf(f, "%.0f number%s", n, n == 1 ? "" : "s");
    else if (n < 1e6) fprintf(f, "%.1f k numbers", n / 1e3);
    else fprintf(f, "%.1f M numbers", n / 1e6);
}

char *cli_trained_text(const json_t *report)
{
    const json_t *entry, *trained = json_object_get(report, "trained");
    const char *gap = "; not trained: ";
    char *text = NULL;
    size_t i, n = 0, count = json_array_size(trained);
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "trains %zu tensor%s (", count, count == 1 ? "" : "s");
    put_numbers(f, pic_number(report, "trained_elements"));
    fputc(')', f);
    json_array_foreach(json_object_get(report, "not_trained"), i, entry)
    {
        const double updated = pic_number(entry, "updated"); /* by batches */
        if (updated > 0) fprintf(f, ", updates %.0f running statistic%s", updated, updated > 1 ? "s" : "");
    }
    json_array_foreach(json_object_get(report, "not_trained"), i, entry)
    {
        const double of = pic_number(entry, "count") - pic_number(entry, "updated");
        if (of <= 0) continue;
        if (!strcmp(pic_string(entry, "reason"), "type")) continue; /* integers are nobody's weights */
        fprintf(f, "%s%.0f %s ('%s'%s)", gap, of, pic_string(entry, "noun"), pic_string(entry, "first"),
                of > 1 ? ", ..." : "");
        gap = ", ";
    }
    fclose(f);
    return text;
}

/* Elements that stay as they are: one line a tensor, as few have any. */
static void say_held(const json_t *report)
{
    const json_t *entry, *row;
    size_t i, k;
    json_array_foreach(json_object_get(report, "held"), i, entry)
    {
        const json_t *rows = json_object_get(entry, "rows");
        char *text = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        if (!f) return;
        const bool zeros = json_is_true(json_object_get(entry, "zeros"));
        fprintf(f, "holds %.0f elements of '%s' as they are: ", pic_number(entry, "elements"),
                pic_string(entry, "name"));
        if (json_array_size(rows)) fprintf(f, "row%s", json_array_size(rows) > 1 ? "s" : "");
        json_array_foreach(rows, k, row) fprintf(f, "%s %lld", k ? "," : "", (long long)json_integer_value(row));
        fprintf(f, "%s%s (%s)", zeros && json_array_size(rows) ? ", and " : "", zeros ? "zeros" : "",
                pic_string(entry, "why"));
        fclose(f);
        const bool asked = !strcmp(pic_string(entry, "why"), "as asked for");
        cli_say("%s%s", text, asked ? "" : "; --no-hold trains them");
        free(text);
    }
}

void cli_say_trained(const json_t *report)
{
    char *text = cli_trained_text(report);
    const json_t *glob;
    size_t i;
    if (text) cli_say("%s", text);
    free(text);
    say_held(report);
    json_array_foreach(json_object_get(report, "globs"), i, glob)
        cli_warn("%s '%s': %s", pic_string(glob, "option"), pic_string(glob, "glob"), pic_string(glob, "text"));
}
