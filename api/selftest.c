/* SPDX-License-Identifier: Apache-2.0
 * The conformance suite (`invonnx selftest`): rules and operators of a plugin, or the library's rules; the report. */
#include <math.h>
#include <string.h>

#include "api/selftest.h"
#include "executor/report/report.h"

void inv_test_help(inv_tester *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(t->help, sizeof t->help, fmt, ap);
    va_end(ap);
}

static bool passed(inv_tester *t)
{
    *t->help = 0;
    return true;
}

bool inv_test(inv_tester *t, bool fine, const char *what, const char *fmt, ...)
{
    t->checks++;
    if (fine) return passed(t);
    t->failed++;
    va_list ap;
    inv_str text;
    inv_str_init(&text, t->ctx);
    va_start(ap, fmt);
    inv_str_addv(&text, fmt, ap);
    va_end(ap);
    (void)json_array_append_new(t->failures,
                                json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:s}", t->kind, t->name, "check", what,
                                          "case", (int)t->number, "how", t->how, "message", text.s, "help",
                                          t->remedy ? t->remedy : t->help, "text", t->text, "kind", t->kind));
    inv_str_fini(&text);
    *t->help = 0;
    return false;
}

/* Those of this build that a session can be opened on. */
static void find_devices(inv_tester *t)
{
    static const char *const names[INV_MAX_DEVICES] = {"cpu", "checked", "sim", "cuda"};
    for (size_t i = 0; i < INV_MAX_DEVICES; i++) {
        const inv_device *d;
        void *self = NULL;
        int index;
        if (inv_device_find(t->ctx, names[i], &d, &index) != INV_OK || d->open(t->ctx, index, &self) != INV_OK)
            continue;
        d->close(self);
        t->device[t->ndevice++] = names[i];
    }
}

static void put_pair(json_t *o, const char *key, const double pair[2])
{
    (void)json_object_set_new(
        o, key, json_pack("{s:o, s:o}", "float32", inv_report_number(pair[0]), "float64", inv_report_number(pair[1])));
}

static void put_seen(json_t *o, const inv_test_seen *seen)
{
    (void)json_object_set_new(o, "forward_error", inv_report_number(seen->forward));
    (void)json_object_set_new(o, "gradient_error", inv_report_number(seen->gradient));
    put_pair(o, "inverse_error", seen->inverse);
    put_pair(o, "training_error", seen->training);
    put_pair(o, "largest_input", seen->largest);
    put_pair(o, "error_beyond", seen->lost);
    (void)json_object_set_new(o, "changes", json_integer((json_int_t)seen->changes));
    (void)json_object_set_new(o, "changes_in_domain", json_integer((json_int_t)seen->held));
}

static inv_status one(inv_tester *t, const char *kind, const char *name, const inv_inverse_def *rule,
                      const inv_op_def *op)
{
    const size_t checks = t->checks, failed = t->failed;
    t->kind = kind;
    t->name = name;
    t->number = 0;
    t->text = t->how = "";
    t->stated = t->measured = 0;
    t->logdets = 0;
    *t->not_exported = 0;
    t->skipped = false;
    t->seen = (inv_test_seen){0};
    inv_registry_favour(t->ctx->registry, rule);
    inv_status s = rule ? inv_test_rule(t, rule) : inv_test_operator(t, op);
    inv_registry_favour(t->ctx->registry, NULL);
    INV_TRY(s);
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:b}", "kind", kind, "name", name, "cases", (int)t->number, "checks",
                  (int)(t->checks - checks), "failed", (int)(t->failed - failed), "host_only", t->skipped);
    if (rule && t->measured > 0) {
        (void)json_object_set_new(o, "stated_gain", json_real(t->stated));
        (void)json_object_set_new(o, "measured_gain", json_real(t->measured));
    }
    if (rule && t->logdets > 0) {
        (void)json_object_set_new(o, "stated_logdet", inv_report_number(t->stated_logdet));
        (void)json_object_set_new(o, "measured_logdet", inv_report_number(t->measured_logdet));
    }
    if (rule && rule->solve && t->seen.largest[1] > 0) put_seen(o, &t->seen);
    return json_array_append_new(t->results, o) == 0 ? INV_OK : INV_E_NOMEM;
}

static bool of_plugin(const char *from, const char *plugin)
{
    return plugin ? from && strcmp(from, plugin) == 0 : !from;
}

static inv_status all(inv_tester *t, const char *plugin, size_t *rules, size_t *operators)
{
    const inv_registry *r = t->ctx->registry;
    find_devices(t);
    for (size_t i = 0; i < inv_registry_ninverses(r); i++) {
        const inv_inverse_def *d = inv_registry_inverse_at(r, i);
        if (!of_plugin(inv_registry_inverse_plugin(r, i), plugin)) continue;
        INV_TRY(one(t, "rule", d->name, d, NULL));
        (*rules)++;
    }
    for (size_t i = 0; i < inv_registry_nops(r); i++) {
        const inv_op_def *op = inv_registry_op_at(r, i);
        if (!plugin || !of_plugin(inv_registry_op_plugin(r, i), plugin)) continue;
        INV_TRY(one(t, "operator", op->name, NULL, op));
        (*operators)++;
    }
    return INV_OK;
}

inv_status inv_selftest(inv_context *ctx, const char *plugin, char **json)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, json);
    inv_tester t = {.ctx = ctx, .plugin = plugin, .results = json_array(), .failures = json_array()};
    size_t rules = 0, operators = 0;
    *json = NULL;
    inv_status s = all(&t, plugin, &rules, &operators);
    inv_dealloc(ctx, t.narrow);
    if (s == INV_OK && rules + operators == 0)
        s = inv_fail(ctx, INV_E_ARG, "nothing is registered by %s%s%s", plugin ? "plugin '" : "the library",
                     plugin ? plugin : "", plugin ? "'" : "");
    json_t *devices = json_array();
    for (size_t i = 0; i < t.ndevice; i++) (void)json_array_append_new(devices, json_string(t.device[i]));
    json_t *root = json_pack("{s:s?, s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "plugin", plugin, "rules", (int)rules,
                             "operators", (int)operators, "checks", (int)t.checks, "failed", (int)t.failed, "devices",
                             devices, "results", t.results, "failures", t.failures);
    if (s == INV_OK) return inv_report_text(ctx, root, json);
    json_decref(root);
    return s;
}
