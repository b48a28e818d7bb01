/* SPDX-License-Identifier: Apache-2.0
 * `inspect`: what an ONNX file declares, and what stands between it and training. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/cmd.h"
#include "cli/job/job.h"
#include "cli/pages/show.h"
#include "pictures/report_text.h"

static void show_value(const json_t *v)
{
    if (json_is_string(v)) {
        fputs(json_string_value(v), stdout);
    } else if (json_is_array(v) && json_array_size(v) && json_is_string(json_array_get(v, 0))) {
        cli_show_names(stdout, v, 16);
    } else {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        fputs(text ? text : "?", stdout);
        free(text);
    }
}

/* "[N,6]": symbols, numbers, and "?" for what the file leaves open. */
static void show_shape(const json_t *shape)
{
    size_t i;
    const json_t *dim;
    putchar('[');
    json_array_foreach(shape, i, dim)
    {
        if (i) putchar(',');
        if (json_is_integer(dim)) printf("%lld", (long long)json_integer_value(dim));
        else fputs(json_string_value(dim) ? json_string_value(dim) : "?", stdout);
    }
    putchar(']');
}

/* One line per entry: its name first, the rest as "key value". */
static void show_entry(const json_t *entry)
{
    const char *key;
    const json_t *v;
    printf("  %s", *pic_string(entry, "name") ? pic_string(entry, "name") : pic_string(entry, "domain"));
    json_object_foreach((json_t *)(uintptr_t)entry, key, v)
    {
        if (strcmp(key, "name") == 0 || strcmp(key, "reason") == 0 || json_is_null(v)) continue; /* `why` says it */
        if (strcmp(key, "evidence") == 0 || strcmp(key, "trainable") == 0) continue;
        if ((json_is_array(v) && json_array_size(v) == 0 && strcmp(key, "shape") != 0) || json_is_false(v)) continue;
        if (json_is_string(v) && !*json_string_value(v)) continue;
        if (strcmp(key, "module") == 0 && json_object_get(entry, "modules")) continue; /* the first of them */
        printf("  %s", strcmp(key, "why") != 0                             ? key
                       : json_is_true(json_object_get(entry, "trainable")) ? "trained:"
                                                                           : "not trained:");
        if (json_is_true(v)) continue;
        putchar(' ');
        if (json_is_array(v) && strcmp(key, "shape") == 0) show_shape(v);
        else show_value(v);
    }
    putchar('\n');
}

static void show_section(const char *title, const json_t *v)
{
    if (json_is_array(v)) {
        const json_t *entry;
        size_t i;
        printf("%s: %zu\n", title, json_array_size(v));
        json_array_foreach(v, i, entry)
        {
            if (json_is_object(entry)) {
                show_entry(entry);
            } else {
                fputs("  ", stdout);
                show_value(entry);
                putchar('\n');
            }
        }
        return;
    }
    printf("%s: ", title);
    if (json_is_object(v)) {
        const char *key, *gap = "";
        const json_t *item;
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            printf("%s%s ", gap, key);
            show_value(item);
            gap = ", ";
        }
    } else {
        show_value(v);
    }
    putchar('\n');
}

/* Numbers of formulas may be hundreds: their names are in one line, not all where they are many. */
static void show_constants(const json_t *list)
{
    json_t *names = json_array();
    const json_t *entry;
    size_t i;
    json_array_foreach(list, i, entry) if (strcmp(pic_string(entry, "why"), "a single number") == 0)
        json_array_append(names, json_object_get(entry, "name"));
    printf("constants: %zu, of them %zu single numbers\n", json_array_size(list), json_array_size(names));
    json_array_foreach(list, i, entry) if (strcmp(pic_string(entry, "why"), "a single number") != 0) show_entry(entry);
    if (json_array_size(names)) {
        fputs("  single numbers: ", stdout);
        cli_show_names(stdout, names, 64);
        putchar('\n');
    }
    json_decref(names);
}

int cli_main_inspect(const cli_options *o)
{
    cli_job job;
    int status = cli_open(&job, o);
    if (status == CLI_OK && o->json) {
        status = cli_print_json(job.inspection);
    } else if (status == CLI_OK) {
        const char *key;
        json_t *v;
        printf("%s\n", job.path);
        json_object_foreach(job.shown, key, v)
        {
            if (strcmp(key, "constants") == 0) show_constants(v);
            else show_section(key, v);
        }
    }
    cli_close(&job);
    return status;
}
