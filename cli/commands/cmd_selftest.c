/* SPDX-License-Identifier: Apache-2.0
 * `selftest`: the conformance suite, of each plugin that is named, or of the built-in rules. `rules test`: the same of
 * one file, with what was measured of each rule. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/job.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

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

/* --- rules test: what holds of each rule, in ten lines --- */

static double of_type(const json_t *r, const char *key, const char *type)
{
    return pic_number(json_object_get(r, key), type);
}

static void show_pair(const json_t *r, const char *label, const char *text, const char *key)
{
    printf("  %-9s %s %.2g in float32, %.2g in float64\n", label, text, of_type(r, key, "float32"),
           of_type(r, key, "float64"));
}

/* How large inputs may be, and what is stated of parameters. */
static void show_domain(const json_t *r)
{
    static const char *const types[] = {"float32", "float64"};
    const double most = of_type(r, "largest_input", types[0]), changes = pic_number(r, "changes");
    printf("  domain    ");
    if (most == of_type(r, "largest_input", types[1])) printf("inputs times 0.001 to %g come back", most);
    for (size_t i = 0; i < 2 && most != of_type(r, "largest_input", types[1]); i++) {
        const double lost = of_type(r, "error_beyond", types[i]);
        printf("%s %s inputs times 0.001 to %g come back", i ? ", in" : "in", types[i],
               of_type(r, "largest_input", types[i]));
        if (lost > 0) printf(" (larger ones off by %.2g)", lost);
    }
    if (changes > 0)
        printf("; `when` accepts %.0f of %.0f changes of numbers", pic_number(r, "changes_in_domain"), changes);
    printf("\n");
}

static void show_measured(const json_t *r)
{
    if (!json_object_get(r, "inverse_error")) return;
    printf("  forward   float32 within %.2g of float64; gradients within %.2g of differences\n",
           pic_number(r, "forward_error"), pic_number(r, "gradient_error"));
    show_pair(r, "inverse", "the freed value is restored within", "inverse_error");
    if (json_object_get(r, "stated_logdet"))
        printf("  logdet    %.4g stated, %.4g by differences\n", pic_number(r, "stated_logdet"),
               pic_number(r, "measured_logdet"));
    else printf("  logdet    not stated, so models with this rule have no density\n");
    if (json_object_get(r, "stated_gain"))
        printf("  gain      %.4g stated, %.4g measured, where they are closest\n", pic_number(r, "stated_gain"),
               pic_number(r, "measured_gain"));
    else printf("  gain      no bound is stated, so training stores the value instead; `rewrite` writes the inverse\n");
    show_domain(r);
    show_pair(r, "training", "gradients differ from --memory store by", "training_error");
}

enum { MOST_SHOWN = 2 }; /* failures of a rule */

/* The first failures of a rule or operator, of each check one. */
static void show_failures(const json_t *failures, const char *kind, const char *name)
{
    const json_t *f;
    const char *last = "";
    size_t i, shown = 0, n = 0;
    json_array_foreach(failures, i, f)
    {
        if (strcmp(pic_string(f, "kind"), kind) != 0 || strcmp(pic_string(f, kind), name) != 0) continue;
        n++;
        if (shown == MOST_SHOWN || strcmp(pic_string(f, "check"), last) == 0) continue;
        shown++;
        last = pic_string(f, "check");
        const char *how = pic_string(f, "how"), *help = pic_string(f, "help");
        printf("  wrong     %s%s%s, case %.0f: %s\n", last, *how ? " on " : "", how, pic_number(f, "case"),
               pic_string(f, "message"));
        if (*help) printf("  help      %s\n", help);
    }
    if (n > shown) printf("  and %zu more checks failed; --json has them all\n", n - shown);
}

static void show_test(const json_t *report)
{
    const json_t *r;
    size_t i;
    json_array_foreach(json_object_get(report, "results"), i, r)
    {
        const char *kind = pic_string(r, "kind"), *name = pic_string(r, "name");
        const double failed = pic_number(r, "failed");
        printf("%s%s %s: %s (%.0f case%s, %.0f checks on ", i ? "\n" : "", kind, name,
               failed > 0 ? "does not hold" : "holds", pic_number(r, "cases"), pic_number(r, "cases") == 1 ? "" : "s",
               pic_number(r, "checks"));
        cli_show_names(stdout, json_object_get(report, "devices"), 8);
        printf(")\n");
        show_measured(r);
        show_failures(json_object_get(report, "failures"), kind, name);
    }
}

/* --- both commands --- */

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

/* Those of `tested`, which are among the plugins of o; of an empty list the built-in rules. */
static int test_all(const cli_options *o, const cli_list *tested, void (*show)(const json_t *report))
{
    inv_context *ctx = cli_context(o);
    if (!ctx) return CLI_FAILED;
    json_t *reports = json_array(), *report;
    double failed = 0;
    size_t i;
    int status = tested->n ? CLI_OK : test_one(ctx, NULL, reports, &failed);
    for (i = 0; i < tested->n && status == CLI_OK; i++) status = test_one(ctx, tested->item[i], reports, &failed);
    inv_context_destroy(ctx);
    if (status == CLI_OK && o->json) {
        json_t *root = json_pack("{s:I, s:O}", "failed", (json_int_t)failed, "reports", reports);
        status = cli_print_json(root);
        json_decref(root);
    } else if (status == CLI_OK) {
        json_array_foreach(reports, i, report) show(report);
    }
    json_decref(reports);
    return status == CLI_OK && failed > 0 ? cli_fail("%.0f checks failed", failed) : status;
}

int cli_main_selftest(const cli_options *o) { return test_all(o, &o->plugin, show_selftest); }

/* The file behind those of --plugin, which are loaded and not tested. */
int cli_rules_test(const cli_options *o)
{
    const cli_list tested = {.item = o->argument.item + 1, .n = 1};
    cli_options with = *o;
    with.plugin.item = malloc((o->plugin.n + 1) * sizeof *with.plugin.item);
    if (!with.plugin.item) return cli_fail("out of memory");
    if (o->plugin.n) memcpy(with.plugin.item, o->plugin.item, o->plugin.n * sizeof *with.plugin.item);
    with.plugin.item[with.plugin.n++] = tested.item[0];
    const int status = test_all(&with, &tested, show_test);
    free(with.plugin.item);
    return status;
}
