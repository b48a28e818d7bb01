/* SPDX-License-Identifier: Apache-2.0
 * What is trained and what is not, in one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

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

void cli_say_trained(const json_t *report)
{
    char *text = cli_trained_text(report);
    const json_t *glob;
    size_t i;
    if (text) cli_say("%s", text);
    free(text);
    json_array_foreach(json_object_get(report, "globs"), i, glob)
        cli_warn("%s '%s': %s", pic_string(glob, "option"), pic_string(glob, "glob"), pic_string(glob, "text"));
}
