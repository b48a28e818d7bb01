/* SPDX-License-Identifier: Apache-2.0
 * `rules` and `ops`: what the library has registered. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const char *mark(const json_t *op, const char *key)
{
    const json_t *v = json_object_get(op, key);
    if (json_is_string(v)) return json_string_value(v);
    return json_is_true(v) || (json_is_integer(v) && json_integer_value(v)) ? "yes" : "-";
}

static void show_op(const json_t *op)
{
    char since[32] = "";
    const char *domain = cli_string(op, "domain");
    double until = cli_number(op, "until");
    if (until > 0 && until < 1000)
        snprintf(since, sizeof since, "%.0f-%.0f", cli_number(op, "since"), until);
    else
        snprintf(since, sizeof since, "%.0f-", cli_number(op, "since"));
    printf("%-22s %-8s %-12s %-12s %-8s %-15s %s\n", cli_string(op, "name"), since, mark(op, "forward"),
           mark(op, "gradient"), mark(op, "inverse"), *domain ? domain : "ai.onnx", cli_string(op, "doc"));
}

static void show_rule(const json_t *rule)
{
    static const char *const keys[] = {"match", "solve", "frees", "when", "gain", "exactness", "refuse", "doc"};
    printf("%s", cli_string(rule, "name"));
    if (*cli_string(rule, "kind") && strcmp(cli_string(rule, "kind"), cli_string(rule, "name")) != 0)
        printf("  kind %s", cli_string(rule, "kind"));
    printf("  priority %.0f\n", cli_number(rule, "priority"));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = cli_string(rule, keys[i]);
        if (*text) printf("    %-10s %s\n", keys[i], text);
    }
}

static int show_registry(const cli_options *o, const char *what)
{
    inv_context *ctx = NULL;
    char *text = NULL;
    inv_status s = inv_context_create(NULL, &ctx);
    if (s == INV_OK) s = inv_registry_report(ctx, what, &text);
    if (s != INV_OK) {
        int status = cli_fail("%s", ctx && *inv_context_message(ctx) ? inv_context_message(ctx) : inv_status_text(s));
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
            printf("%-22s %-8s %-12s %-12s %-8s %-15s\n", "operator", "opsets", "forward", "gradient", "inverse",
                   "domain");
        json_array_foreach(json_object_get(report, what), i, entry)
        {
            if (ops)
                show_op(entry);
            else
                show_rule(entry);
        }
    }
    json_decref(report);
    return status;
}

int cli_main_rules(const cli_options *o)
{
    return show_registry(o, "rules");
}

int cli_main_ops(const cli_options *o)
{
    return show_registry(o, "ops");
}
