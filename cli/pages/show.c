/* SPDX-License-Identifier: Apache-2.0
 * The tables that people read, made from the library's JSON reports. A field that is not there is left out. */
#include "cli/pages/show.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/report_text.h"

void cli_show_names(FILE *f, const json_t *names, size_t limit)
{
    size_t n = json_array_size(names);
    for (size_t i = 0; i < n && i < limit; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        fprintf(f, "%s%s", i ? ", " : "", name ? name : "?");
    }
    if (n > limit) fprintf(f, ", ... (%zu in all)", n);
}

static void show_classes(const json_t *report)
{
    const json_t *classes = json_object_get(report, "classes"), *bytes;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)classes, name, bytes)
    {
        if (json_number_value(bytes) > 0) printf("    %-20s %12s\n", name, pic_bytes(json_number_value(bytes)));
    }
}

const char *cli_overhead(const json_t *report)
{
    static char text[96];
    const json_t *plan = json_object_get(report, "plan");
    (void)snprintf(text, sizeof text, "plan %+.1f %%, bound %+.1f %%, gap %.1f %%", 100 * pic_number(plan, "overhead"),
                   100 * pic_number(plan, "bound"), 100 * pic_number(plan, "gap"));
    return text;
}

void cli_show_peaks(const json_t *report)
{
    double planned = pic_number(report, "planned_peak_bytes"), store = pic_number(report, "store_peak_bytes");
    double guards = pic_number(report, "guard_flops"), store_flops = pic_number(report, "store_flops");
    double flops = pic_number(report, "flops") + guards;
    printf("memory (%s)\n", *pic_string(report, "memory") ? pic_string(report, "memory") : "as planned");
    printf("  %-22s %12s\n", "planned peak", pic_bytes(planned));
    show_classes(report);
    if (pic_number(report, "peak_bytes") > 0)
        printf("  %-22s %12s\n", "allocated at most", pic_bytes(pic_number(report, "peak_bytes")));
    printf("  %-22s %12s\n", "activation peak", pic_bytes(pic_number(report, "activation_peak_bytes")));
    if (store > 0)
        printf("  %-22s %12s   (%.1f %% of it)\n", "all values stored", pic_bytes(store), 100 * planned / store);
    printf("  %-22s %12s\n", "most alive at once", pic_bytes(pic_number(report, "live_peak_bytes")));
    if (pic_number(report, "host_bytes") > 0)
        printf("  %-22s %12s\n", "host memory", pic_bytes(pic_number(report, "host_bytes")));
    if (pic_number(report, "mapped_bytes") > 0)
        printf("  %-22s %12s   (part of the parameters)\n", "read from the file",
               pic_bytes(pic_number(report, "mapped_bytes")));
    if (pic_number(report, "process_bytes") > 0)
        printf("  %-22s %12s   (the process takes about %s)\n", "program and libraries",
               pic_bytes(pic_number(report, "beside_bytes")), pic_bytes(pic_number(report, "process_bytes")));
    if (store_flops > 0)
        printf("  %-22s %12.4g   (%.3f times a plain step%s)\n", "arithmetic, flops", flops, flops / store_flops,
               guards > 0 ? ", guards included" : "");
    if (json_object_get(report, "plan")) printf("  %s (cost over storing all)\n", cli_overhead(report));
    const double took = pic_number(report, "predicted_seconds"), plain = pic_number(report, "store_predicted_seconds");
    if (took > 0 && plain > 0)
        printf("  %-22s %12.4g   (%.3f times a plain step)\n", "predicted seconds", took, took / plain);
    const json_t *values = json_object_get(report, "values");
    if (values)
        printf("  values for backward: %.0f stored, %.0f recomputed, %.0f inverted, %.0f offloaded\n",
               pic_number(values, "stored"), pic_number(values, "recomputed"), pic_number(values, "inverted"),
               pic_number(values, "offloaded"));
}

void cli_show_saving(const json_t *report)
{
    double planned = pic_number(report, "planned_peak_bytes"), store = pic_number(report, "store_peak_bytes");
    const char *memory = pic_string(report, "memory");
    if (store <= 0 || strcmp(memory, "store") == 0 || planned <= 0.98 * store) return;
    printf("%s saves nothing here; --memory store needs %s\n",
           strcmp(memory, "recompute") == 0 ? "recomputation"
           : strcmp(memory, "invert") == 0  ? "inversion"
                                            : "inversion or recomputation",
           pic_bytes(store));
}

void cli_show_choices(const json_t *report)
{
    const json_t *choices = json_object_get(report, "choices"), *c;
    if (json_array_size(choices) == 0) return;
    printf("choices\n  %-11s %12s  %-32s %s\n", "choice", "bytes", "value", "by");
    size_t i;
    json_array_foreach(choices, i, c)
    {
        printf("  %-11s %12s  %-32s %s\n", pic_string(c, "choice"), pic_bytes(pic_number(c, "bytes")),
               pic_string(c, "value"), pic_string(c, "by"));
    }
    putchar('\n');
}

void cli_show_drift(const json_t *report, bool each)
{
    const json_t *drift = json_object_get(report, "drift"), *blocks = json_object_get(drift, "blocks"), *b;
    if (json_array_size(blocks) > 0) {
        printf("\n"
               "drift: relative error of reconstructed values (limit %.2g) and of what gradients compute from them\n",
               pic_number(report, "max_drift"));
        size_t i;
        json_array_foreach(blocks, i, b)
        {
            if (!each) break;
            const json_t *d = json_object_get(b, "drift");
            const char *kind = pic_string(b, "kind");
            const char *what = strcmp(kind, "derived") == 0 ? ", as gradients use it"
                               : strcmp(kind, "signs") == 0 ? ", signs that change"
                                                            : "";
            if (json_is_number(d)) printf("  %-10.3g %s%s\n", json_number_value(d), pic_string(b, "value"), what);
            else printf("  %-10s %s%s\n", "infinite", pic_string(b, "value"), what);
        }
        printf("  %-10.3g largest\n", pic_number(drift, "largest"));
    }
    const json_t *fallbacks = json_object_get(report, "fallbacks");
    double n = json_is_array(fallbacks) ? (double)json_array_size(fallbacks) : pic_number(report, "fallbacks");
    if (n > 0) printf("\n%.0f value%s kept after the guard refused the reconstruction\n", n, n == 1 ? "" : "s");
}

/* --- --profile --- */

typedef struct share {
    const char *op, *phase, *node;
    double seconds, least; /* least: by the roofline; 0: not known */
    int nodes;
} share;

static int slower(const void *a, const void *b)
{
    const share *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void show_shares(share *s, size_t n, size_t limit, double all)
{
    qsort(s, n, sizeof *s, slower);
    for (size_t i = 0; i < n && i < limit; i++) {
        printf("  %10.3f %6.1f  ", 1e3 * s[i].seconds, 100 * s[i].seconds / all);
        if (s[i].least > 0) printf("%4.0f  ", 100 * s[i].least / s[i].seconds);
        else printf("   -  ");
        printf("%-20s %-9s", s[i].op, s[i].phase);
        if (s[i].node) printf(" %s\n", s[i].node);
        else printf(" %6d\n", s[i].nodes);
    }
}

void cli_show_profile(const json_t *report)
{
    const json_t *timeline = json_object_get(report, "timeline"), *t;
    size_t n = 0, kinds = 0, i, room = json_array_size(timeline) + 1;
    share *node = calloc(room, sizeof *node), *kind = calloc(room, sizeof *kind);
    double all = 0, guards = 0;
    json_array_foreach(timeline, i, t)
    {
        double seconds = pic_number(t, "seconds");
        if (seconds <= 0 || !node || !kind) continue;
        if (json_is_true(json_object_get(t, "guard"))) guards += seconds;
        const share s = {pic_string(t, "op"),
                         pic_string(t, "phase"),
                         pic_string(t, "node"),
                         seconds,
                         pic_number(t, "least_seconds"),
                         1};
        size_t k = 0;
        while (k < kinds && (strcmp(kind[k].op, s.op) != 0 || strcmp(kind[k].phase, s.phase) != 0)) k++;
        if (k == kinds) kind[kinds++] = (share){.op = s.op, .phase = s.phase};
        kind[k].seconds += seconds;
        kind[k].least += s.least;
        kind[k].nodes++;
        node[n++] = s;
        all += seconds;
    }
    if (n > 0) {
        printf("\n"
               "profile: %.3f ms a step in %zu nodes\n"
               "roof: %% of the speed that arithmetic and memory rates allow; above 100 if operands are\n"
               "read only in part, or are in a cache\n"
               "  %10s %6s  %4s  %-20s %-9s %7s\n",
               1e3 * all, n, "ms", "%", "roof", "operator", "phase", "nodes");
        show_shares(kind, kinds, kinds, all);
        if (guards > 0) printf("guards are %.3f ms of it, %.1f %%\n", 1e3 * guards, 100 * guards / all);
        printf("the slowest\n");
        show_shares(node, n, 10, all);
    }
    free(node);
    free(kind);
}
