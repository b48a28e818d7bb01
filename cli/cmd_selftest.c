/* SPDX-License-Identifier: Apache-2.0
 * `selftest`: the conformance suite, of each plugin that is named, or of the built-in rules. */
#include "cli.h"

#include <string.h>

static void show_result(const json_t *r)
{
    double failed = pic_number(r, "failed");
    printf("%-8s %-28s %6.0f %7.0f  %-6s", pic_string(r, "kind"), pic_string(r, "name"), pic_number(r, "cases"),
           pic_number(r, "checks"), failed > 0 ? "FAILED" : "passed");
    if (json_object_get(r, "stated_gain"))
        printf("  gain %.4g stated, %.4g measured", pic_number(r, "stated_gain"), pic_number(r, "measured_gain"));
    if (json_object_get(r, "stated_logdet"))
        printf("  log |det| %.4g stated, %.4g measured", pic_number(r, "stated_logdet"),
               pic_number(r, "measured_logdet"));
    if (json_is_true(json_object_get(r, "host_only"))) printf("  on the host only: there is no CUDA kernel");
    printf("\n");
}

static void show_failure(const json_t *f)
{
    const char *kind = pic_string(f, "kind");
    printf("\n%s %s, case %.0f: %s%s%s: %s\n    %s\n", kind, pic_string(f, kind), pic_number(f, "case"),
           pic_string(f, "check"), *pic_string(f, "how") ? " on " : "", pic_string(f, "how"), pic_string(f, "message"),
           pic_string(f, "text"));
}

static void show_selftest(const json_t *report)
{
    const json_t *entry;
    size_t i;
    printf("%-8s %-28s %6s %7s\n", "", "", "cases", "checks");
    json_array_foreach(json_object_get(report, "results"), i, entry) show_result(entry);
    json_array_foreach(json_object_get(report, "failures"), i, entry) show_failure(entry);
    const char *plugin = pic_string(report, "plugin");
    printf("\n%s: %.0f rules and %.0f operators, %.0f checks on ", *plugin ? plugin : "built in",
           pic_number(report, "rules"), pic_number(report, "operators"), pic_number(report, "checks"));
    cli_show_names(stdout, json_object_get(report, "devices"), 8);
    printf(", %.0f failed\n", pic_number(report, "failed"));
}

/* One plugin, or with NULL the built-in rules, into `reports`. */
static int test_one(inv_context *ctx, const char *plugin, json_t *reports, double *failed)
{
    char *text = NULL;
    inv_status s = inv_selftest(ctx, plugin, &text);
    if (s != INV_OK) return cli_fail("%s", *inv_context_message(ctx) ? inv_context_message(ctx) : inv_status_text(s));
    json_t *report = json_loads(text, 0, NULL);
    inv_free(ctx, text);
    if (!report || json_array_append_new(reports, report) != 0) return cli_fail("the library's report cannot be read");
    *failed += pic_number(report, "failed");
    return CLI_OK;
}

int cli_main_selftest(const cli_options *o)
{
    inv_context *ctx = cli_context(o);
    if (!ctx) return CLI_FAILED;
    json_t *reports = json_array(), *report;
    double failed = 0;
    size_t i;
    int status = o->plugin.n ? CLI_OK : test_one(ctx, NULL, reports, &failed);
    for (i = 0; i < o->plugin.n && status == CLI_OK; i++) status = test_one(ctx, o->plugin.item[i], reports, &failed);
    inv_context_destroy(ctx);
    if (status == CLI_OK && o->json) {
        json_t *root = json_pack("{s:I, s:O}", "failed", (json_int_t)failed, "reports", reports);
        status = cli_print_json(root);
        json_decref(root);
    } else if (status == CLI_OK) {
        json_array_foreach(reports, i, report) show_selftest(report);
    }
    json_decref(reports);
    return status == CLI_OK && failed > 0 ? cli_fail("%.0f checks failed", failed) : status;
}
