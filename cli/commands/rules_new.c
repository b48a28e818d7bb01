/* SPDX-License-Identifier: Apache-2.0
 * `rules new NAME`: a file with a rule and its case, which `rules test` passes as it stands. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/job.h"
#include "pictures/report_text.h"

/* clang-format off */
static const char skeleton[] =
    "# A rule: what a piece of a model looks like, and how a value of it is computed back. Change it line by line.\n"
    "# `invonnx rules test %s.rules` says what holds. docs/adding-an-inverse.md tells of every line.\n"
    "rule %s\n"
    "# What `explain` calls the block; \"\" names none.\n"
    "    kind       %s\n"
    "# Rules of higher priority come first; the library's have 0 to 30 for one operator, up to 140 for several.\n"
    "    priority   70\n"
    "# The piece, in operators that `invonnx ops` calls forward `yes`. param(s) depends on parameters only.\n"
    "    match      a = Add(x, param(b)); y = Mul(a, param(s))\n"
    "# How x is computed back, from every other value of the piece; numbers may stand here, as Mul(u, 0.5).\n"
    "    solve      q = Div(y, s); x = Sub(q, b)\n"
    "    frees      x\n"
    "# Where this is right: the domain. Nothing else is matched.\n"
    "    when       same_shape(x, y); away_from_zero(s, 1e-6)\n"
    "# How many times larger an error of y becomes, at most: times(2), max_inv(s), inv_norm(W), unbounded, ...\n"
    "    gain       max_inv(s)\n"
    "# log |det dy/dx| of a sample, for densities: 0, log_abs(s), log_det(W), log_deriv, ... It may be left out.\n"
    "    logdet     log_abs(s)\n"
    "    doc        y = (x + b) * s: x = y / s - b\n"
    "# A model with the piece. x goes through LeakyRelu before, so that backward wants it; z is the loss's output.\n"
    "    case       g(float[4,6] in) => (z) { param float[6,5] B; param float[6] b;\n"
    "             | param float[6] s = {1.5, -2, 0.25, 1, 3, -0.5};\n"
    "             | x = LeakyRelu<alpha = 0.9>(in); a = Add(x, b); y = Mul(a, s); z = MatMul(y, B) }\n";
/* clang-format on */

/* A lower-case word of letters, digits and '_', as rules are called. */
static bool is_name(const char *name)
{
    if (!islower((unsigned char)*name) || strlen(name) > 100) return false;
    for (; *name; name++)
        if (!islower((unsigned char)*name) && !isdigit((unsigned char)*name) && *name != '_') return false;
    return true;
}

/* Whether the library, or a plugin that --plugin names, has a rule of this name. */
static int check_taken(const cli_options *o, const char *name)
{
    inv_context *ctx = cli_context(o);
    char *text = NULL;
    const json_t *rule;
    size_t i;
    if (!ctx) return CLI_FAILED;
    const inv_status s = inv_registry_report(ctx, "rules", &text);
    json_t *report = s == INV_OK ? json_loads(text, 0, NULL) : NULL;
    int status = report
                     ? CLI_OK
                     : cli_fail("%s", s == INV_OK ? "the library's report cannot be read" : inv_context_message(ctx));
    json_array_foreach(json_object_get(report, "rules"), i, rule)
    {
        if (status != CLI_OK || strcmp(pic_string(rule, "name"), name) != 0) continue;
        const char *of = pic_string(rule, "plugin");
        status = cli_fail("a rule is called '%s' already, of %s; choose another name", name, *of ? of : "the library");
    }
    inv_free(ctx, text);
    json_decref(report);
    inv_context_destroy(ctx);
    return status;
}

int cli_rules_new(const cli_options *o)
{
    const char *name = o->argument.item[1];
    char path[128];
    if (!is_name(name))
        return cli_usage(o, "`rules new` wants a name of lower-case letters, digits and _, as my_rule, not '%s'", name);
    const int status = check_taken(o, name);
    if (status != CLI_OK) return status;
    snprintf(path, sizeof path, "%s.rules", name);
    FILE *f = fopen(path, "wx");
    if (!f && errno == EEXIST) return cli_fail("%s is there already, and is left as it is; choose another name", path);
    if (!f) return cli_fail("%s cannot be written: %s", path, strerror(errno));
    fprintf(f, skeleton, name, name, name);
    const bool failed = ferror(f);
    if (fclose(f) != 0 || failed) return cli_fail("%s cannot be written: %s", path, strerror(errno));
    if (o->json) {
        json_t *root = json_pack("{s:s, s:s}", "rule", name, "file", path);
        const int printed = cli_print_json(root);
        json_decref(root);
        return printed;
    }
    printf("%s is written: change it, then `invonnx rules test %s`\n", path, path);
    return CLI_OK;
}
