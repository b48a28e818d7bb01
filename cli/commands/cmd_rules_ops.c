/* SPDX-License-Identifier: Apache-2.0
 * `rules` and `ops`: what the library has registered. What else `rules` does is in rules_new.c and cmd_selftest.c. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/job.h"
#include "pictures/report_text.h"

#define EVERY_TYPE 10 /* float, bool, eight integers */

static void show_names(const json_t *list)
{
    const json_t *name;
    size_t i;
    if (json_array_size(list) == EVERY_TYPE && strcmp(json_string_value(json_array_get(list, 0)), "float") == 0) {
        printf("any");
        return;
    }
    json_array_foreach(list, i, name) printf("%s%s", i ? " " : "", json_string_value(name));
}

/* Element types; neighbouring inputs that take the same are one group, and a single group needs no names. */
static void show_types(json_t *types)
{
    const char *key;
    json_t *list, *last = NULL;
    size_t groups = 0;
    json_object_foreach(types, key, list)
    {
        if (json_array_size(list) == 0) continue;
        groups += !last || !json_equal(list, last);
        last = list;
    }
    last = NULL;
    json_object_foreach(types, key, list)
    {
        if (json_array_size(list) == 0) continue;
        const bool fresh = !last || !json_equal(list, last);
        if (last && fresh) {
            printf(": ");
            show_names(last);
            printf("; ");
        }
        if (groups > 1) printf("%s%s", last && !fresh ? " " : "", key);
        last = list;
    }
    if (groups > 1) printf(": ");
    show_names(last);
}

static void show_op(const json_t *op)
{
    char since[32] = "";
    const char *domain = pic_string(op, "domain");
    double until = pic_number(op, "until");
    if (until > 0 && until < 1000) snprintf(since, sizeof since, "%.0f-%.0f", pic_number(op, "since"), until);
    else snprintf(since, sizeof since, "%.0f-", pic_number(op, "since"));
    printf("%-22s %-8s %-8s %-8s %-8s %-4s %-6s %-14s ", pic_string(op, "name"), since, pic_string(op, "forward"),
           pic_string(op, "gradient"), json_is_true(json_object_get(op, "inverse")) ? "yes" : "-",
           json_is_true(json_object_get(op, "cpu")) ? "yes" : "no", pic_string(op, "cuda"),
           *domain ? domain : "ai.onnx");
    show_types(json_object_get(op, "types"));
    printf("  %s", pic_string(op, "doc"));
    if (json_array_size(json_object_get(op, "lowers_to"))) {
        printf(" -> ");
        show_names(json_object_get(op, "lowers_to"));
    }
    printf("\n");
}

/* As a plugin may have it. */
static void show_rule(const json_t *rule)
{
    if (*pic_string(rule, "plugin")) printf("# of %s\n", pic_string(rule, "plugin"));
    printf("%s\n", pic_string(rule, "text"));
}

static int show_registry(const cli_options *o, const char *what)
{
    inv_context *ctx = cli_context(o);
    char *text = NULL;
    if (!ctx) return CLI_FAILED;
    inv_status s = inv_registry_report(ctx, what, &text);
    if (s != INV_OK) {
        int status = cli_fail("%s", *inv_context_message(ctx) ? inv_context_message(ctx) : inv_status_text(s));
        inv_context_destroy(ctx);
        return status;
    }
    json_t *report = json_loads(text, 0, NULL);
    inv_free(ctx, text);
    inv_context_destroy(ctx);
    if (!report) return cli_fail("the library's report cannot be read");
    int status = CLI_OK;
    if (o->json) {
        status = cli_print_json(report);
    } else {
        bool ops = strcmp(what, "ops") == 0;
        const json_t *entry;
        size_t i;
        if (ops)
            printf("%-22s %-8s %-8s %-8s %-8s %-4s %-6s %-14s %s\n", "operator", "opsets", "forward", "gradient",
                   "inverse", "cpu", "cuda", "domain", "types  doc -> what runs in its place");
        json_array_foreach(json_object_get(report, what), i, entry)
        {
            if (ops) show_op(entry);
            else show_rule(entry);
        }
    }
    json_decref(report);
    return status;
}

int cli_main_rules(const cli_options *o)
{
    const char *what = o->argument.n ? o->argument.item[0] : NULL;
    if (!what) return show_registry(o, "rules");
    const bool create = strcmp(what, "new") == 0;
    if (!create && strcmp(what, "test") != 0)
        return cli_usage(o, "`rules` wants new NAME or test FILE, or nothing, not '%s'", what);
    if (o->argument.n < 2) return cli_usage(o, "`rules %s` wants a %s", what, create ? "NAME" : "FILE");
    return create ? cli_rules_new(o) : cli_rules_test(o);
}

int cli_main_ops(const cli_options *o) { return show_registry(o, "ops"); }
