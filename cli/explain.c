/* SPDX-License-Identifier: Apache-2.0
 * `explain`: which parts of the model have an inverse, by which rule, and why others have none. */
#include "cli.h"

#include <string.h>

static bool is_name(const json_t *v, const char *name)
{
    const char *s = json_string_value(v);
    return s && strcmp(s, name) == 0;
}

/* Whether an entry of blocks, refusals, choices or the timeline speaks of the node or value `name`. */
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

/* The entries of report[key] that concern `name`; all if it is NULL. New reference. */
static json_t *entries(const json_t *report, const char *key, const char *name)
{
    json_t *list = json_array(), *entry;
    size_t i;
    json_array_foreach(json_object_get(report, key), i, entry)
    {
        if (!name || concerns(entry, name)) json_array_append(list, entry);
    }
    return list;
}

static int deliver(const cli_options *o, const json_t *report)
{
    const char *name = o->argument.n > 1 ? o->argument.item[1] : NULL;
    json_t *answer = json_pack("{s:o, s:o, s:o}", "blocks", entries(report, "blocks", name), "refusals",
                               entries(report, "refusals", name), "choices", entries(report, "choices", name));
    if (!answer) return cli_fail("out of memory");
    bool found = json_array_size(json_object_get(answer, "blocks")) ||
                 json_array_size(json_object_get(answer, "refusals")) ||
                 json_array_size(json_object_get(answer, "choices"));
    int status = CLI_OK;
    if (name && !found) {
        json_t *steps = entries(report, "timeline", name);
        if (json_array_size(steps) == 0)
            status = cli_fail("the model has no node or value named '%s' that a rule looks at", name);
        json_decref(steps);
    }
    if (status == CLI_OK && o->json) {
        status = cli_print_json(answer);
    } else if (status == CLI_OK && !found && name) {
        printf("%s: no rule has a candidate here\n", name);
    } else if (status == CLI_OK) {
        cli_show_blocks(answer);
        cli_show_refusals(answer);
        if (o->loss != INV_LOSS_NONE) cli_show_choices(answer);
    }
    json_decref(answer);
    return status;
}

int cli_main_explain(const cli_options *o)
{
    cli_job job;
    json_t *report = NULL;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->loss != INV_LOSS_NONE) status = cli_target(&job, false);
    if (status == CLI_OK) status = cli_shapes(&job);
    if (status == CLI_OK) status = cli_start(&job, o->loss == INV_LOSS_NONE ? INV_FOR_RUN : INV_FOR_TRAIN, true);
    if (status == CLI_OK && !(report = cli_report(&job))) status = CLI_FAILED;
    if (report) status = deliver(o, report);
    json_decref(report);
    cli_close(&job);
    return status;
}
