/* SPDX-License-Identifier: Apache-2.0
 * `explain`: which parts of the model have an inverse, by which rule; which have none, by which condition, and what
 * would help; and why values are stored. */
#include <math.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/feed.h"
#include "cli/job/session_options.h"
#include "cli/pages/explain_page.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

static const char *const lists[] = {"blocks", "refusals", "choices", "inverses", "nodes", "tensors"};
enum { NLISTS = sizeof lists / sizeof *lists, LIKE = 3 /* shown of refusals that are alike */ };

static bool is_name(const json_t *v, const char *name)
{
    const char *s = json_string_value(v);
    return s && strcmp(s, name) == 0;
}

/* Whether an entry of the lists speaks of the node, value or block `name`. */
static bool concerns(const json_t *entry, const char *name)
{
    static const char *const keys[] = {"name", "node", "value", "nodes", "inputs", "outputs"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const json_t *v = json_object_get(entry, keys[k]), *item;
        size_t i;
        if (is_name(v, name)) return true;
        json_array_foreach(v, i, item)
        {
            if (is_name(item, name)) return true;
        }
    }
    return false;
}

/* The same lists with the entries alone that concern `name`. New reference. */
static json_t *about(const json_t *explanation, const char *name)
{
    json_t *answer = json_object();
    for (size_t k = 0; k < NLISTS; k++) {
        json_t *list = json_array(), *entry;
        size_t i;
        json_array_foreach(json_object_get(explanation, lists[k]), i, entry)
        {
            if (concerns(entry, name)) json_array_append(list, entry);
        }
        if (json_object_set_new(answer, lists[k], list) != 0) {
            json_decref(answer);
            return NULL;
        }
    }
    return answer;
}

static size_t count_entries(const json_t *report, const char *key)
{
    return json_array_size(json_object_get(report, key));
}

/* --- text --- */

static void show_gain(const json_t *entry)
{
    const json_t *gain = json_object_get(entry, "gain");
    if (json_is_number(gain)) printf("gain %.3g", json_number_value(gain));
    else printf("gain without bound");
    if (json_is_false(json_object_get(entry, "usable"))) printf(", too much to be used");
}

static void show_blocks(const json_t *report, bool nodes)
{
    const json_t *b;
    size_t i;
    printf("blocks: %zu\n", count_entries(report, "blocks"));
    json_array_foreach(json_object_get(report, "blocks"), i, b)
    {
        printf("  %s  %s  (rule %s): ", pic_string(b, "kind"), pic_string(b, "name"), pic_string(b, "rule"));
        cli_show_names(stdout, json_object_get(b, "inputs"), 6);
        printf(" -> ");
        cli_show_names(stdout, json_object_get(b, "outputs"), 6);
        printf("; frees ");
        cli_show_names(stdout, json_object_get(b, "frees"), 6);
        printf(", ");
        show_gain(b);
        if (nodes) {
            printf("\n      nodes ");
            cli_show_names(stdout, json_object_get(b, "nodes"), SIZE_MAX);
        }
        putchar('\n');
    }
}

static bool alike(const json_t *a, const json_t *b)
{
    return strcmp(pic_string(a, "kind"), pic_string(b, "kind")) == 0 &&
           strcmp(pic_string(a, "condition"), pic_string(b, "condition")) == 0;
}

/* The refusals that are like the one at `first`, which is the first of them. */
static void show_alike(const json_t *list, size_t first)
{
    const json_t *one = json_array_get(list, first), *r;
    size_t n = 0, i;
    printf("  %s", pic_string(one, "kind"));
    if (*pic_string(one, "condition")) printf("  by %s", pic_string(one, "condition"));
    putchar('\n');
    json_array_foreach(list, i, r)
    {
        if (!alike(one, r) || n++ >= LIKE) continue;
        printf("      %s (%s), which would free %s: %s\n", pic_string(r, "node"), pic_string(r, "op"),
               pic_string(r, "value"), pic_string(r, "reason"));
    }
    if (n > LIKE) printf("      and %zu more like it\n", n - LIKE);
    if (*pic_string(one, "remedy")) printf("      remedy: %s\n", pic_string(one, "remedy"));
}

static void show_refusals(const json_t *report)
{
    const json_t *list = json_object_get(report, "refusals");
    printf("\nrefusals: %zu\n", json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t before = 0;
        while (before < i && !alike(json_array_get(list, before), json_array_get(list, i))) before++;
        if (before == i) show_alike(list, i);
    }
}

static void show_choices(const json_t *report)
{
    const json_t *c;
    size_t i;
    if (count_entries(report, "choices") == 0) return;
    printf("\nwhat backward reads: %zu values\n  %-11s %12s  %-32s %s\n", count_entries(report, "choices"), "how",
           "bytes", "value", "by which rule or operator, or why");
    json_array_foreach(json_object_get(report, "choices"), i, c)
    {
        const char *why = pic_string(c, "reason");
        printf("  %-11s %12s  %-32s %s\n", pic_string(c, "choice"), pic_bytes(pic_number(c, "bytes")),
               pic_string(c, "value"), *why ? why : pic_string(c, "by"));
    }
}

/* Nodes and values of a name, and the inverses of single operators there. */
static void show_things(const json_t *answer, const char *name, bool trained)
{
    const json_t *e;
    size_t i;
    json_array_foreach(json_object_get(answer, "nodes"), i, e)
    {
        if (!is_name(json_object_get(e, "name"), name)) continue;
        printf("node %s (%s, computed as %s): ", name, pic_string(e, "op"), pic_string(e, "computes"));
        cli_show_names(stdout, json_object_get(e, "inputs"), SIZE_MAX);
        printf(" -> ");
        cli_show_names(stdout, json_object_get(e, "outputs"), SIZE_MAX);
        putchar('\n');
    }
    json_array_foreach(json_object_get(answer, "tensors"), i, e)
    {
        printf("value %s: %s, %s%s%s%s\n", name, pic_string(e, "type"), pic_bytes(pic_number(e, "bytes")),
               json_is_true(json_object_get(e, "input")) ? ", model input" : "",
               json_is_true(json_object_get(e, "output")) ? ", model output" : "",
               trained && count_entries(answer, "choices") == 0 ? ", which backward does not read" : "");
    }
    json_array_foreach(json_object_get(answer, "inverses"), i, e)
    {
        printf("inverse of %s at %s by rule %s, ", pic_string(e, "value"), pic_string(e, "node"),
               pic_string(e, "rule"));
        show_gain(e);
        putchar('\n');
    }
}

static int show_explanation(const json_t *answer, const char *name, bool trained)
{
    if (name) show_things(answer, name, trained);
    if (name &&
        count_entries(answer, "blocks") + count_entries(answer, "refusals") + count_entries(answer, "choices") == 0) {
        printf("%s: no rule has a candidate here\n", name);
        return CLI_OK;
    }
    if (!name || count_entries(answer, "blocks")) show_blocks(answer, name != NULL);
    if (!name || count_entries(answer, "refusals")) show_refusals(answer);
    show_choices(answer);
    return CLI_OK;
}

static int deliver_explanation(const cli_options *o, const json_t *explanation)
{
    const char *name = o->argument.n > 1 ? o->argument.item[1] : NULL;
    json_t *answer = name ? about(explanation, name) : json_incref((json_t *)(uintptr_t)explanation);
    if (!answer) return cli_fail("out of memory");
    size_t found = 0;
    for (size_t k = 0; k < NLISTS; k++) found += count_entries(answer, lists[k]);
    int status = CLI_OK;
    if (name && found == 0)
        status = cli_fail("the model has no node, value or block named '%s' that a rule looks at", name);
    else status = o->json ? cli_print_json(answer) : show_explanation(answer, name, o->loss != INV_LOSS_NONE);
    json_decref(answer);
    return status;
}

int cli_main_explain(const cli_options *o)
{
    cli_job job;
    json_t *explanation = NULL;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->loss != INV_LOSS_NONE) status = cli_target(&job, false);
    if (status == CLI_OK) status = cli_shapes(&job);
    if (status == CLI_OK) status = cli_start(&job, o->loss == INV_LOSS_NONE ? INV_FOR_RUN : INV_FOR_TRAIN, true);
    if (status == CLI_OK && !(explanation = cli_explanation(&job))) status = CLI_FAILED;
    if (explanation && o->html) status = cli_explain_page(o->html, job.path, explanation);
    if (explanation && status == CLI_OK) status = deliver_explanation(o, explanation);
    json_decref(explanation);
    cli_close(&job);
    return status;
}
