/* SPDX-License-Identifier: Apache-2.0
 * What a model was trained on, as entries of its file's metadata: how pictures were made numbers, and the names of
 * classes. `train` writes them; `train` and `eval` read them for what the options do not say, and tell a difference. */
#include <stdlib.h>
#include <string.h>

#include "cli/job/data.h"

#define RESIZE "ai.invonnx.picture.resize"
#define NORMALIZE "ai.invonnx.picture.normalize"
#define CHANNELS "ai.invonnx.picture.channels"
#define CLASSES "ai.invonnx.classes"

/* A list of texts; else none. */
static void read_classes(cli_data *data)
{
    const char *text = inv_model_metadata(data->job->model, CLASSES);
    json_t *list = text ? json_loads(text, 0, NULL) : NULL;
    const size_t n = json_array_size(list);
    char **names = n ? calloc(n, sizeof *names) : NULL;
    for (size_t i = 0; names && i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && (names[i] = strdup(name))) continue;
        data_free_names(names, (int64_t)i);
        names = NULL;
    }
    json_decref(list);
    data->trained.classes = names;
    data->trained.nclasses = names ? (int64_t)n : 0;
}

void cli_trained_on_read(cli_data *data)
{
    inv_model *model = data->job->model;
    const char *resize = inv_model_metadata(model, RESIZE), *normalize = inv_model_metadata(model, NORMALIZE);
    char *end = NULL;
    const long long side = resize ? strtoll(resize, &end, 10) : 0;
    data->trained = (cli_trained_on){.pictures = normalize != NULL, .normalize = normalize};
    if (end && !*end && side > 0 && side <= INT32_MAX) data->trained.resize = side;
    if (!data->job->o->head) read_classes(data); /* a new head has classes of its own */
}

void cli_trained_on_close(cli_data *data)
{
    if (data->trained.classes) data_free_names(data->trained.classes, data->trained.nclasses);
    data->trained = (cli_trained_on){0};
}

static const char *normalize_of(const char *text) { return text ? text : "none"; }

/* "72", or what --resize does without a number. */
static const char *resize_of(int64_t n, char text[32])
{
    snprintf(text, 32, "%lld", (long long)n);
    return n ? text : "none";
}

static void tell_pictures(const cli_data *data)
{
    const cli_options *o = data->job->o;
    const cli_trained_on *was = &data->trained;
    char here[32], there[32];
    if (!was->pictures) return;
    if (o->resize && o->resize != was->resize)
        cli_note("--resize %s: the model was trained with %s, as its file says", resize_of(o->resize, here),
                 resize_of(was->resize, there));
    if (o->normalize && strcmp(normalize_of(o->normalize), normalize_of(was->normalize)) != 0)
        cli_note("--normalize %s: the model was trained with %s, as its file says", o->normalize, was->normalize);
    if (!(o->resize && o->normalize))
        cli_say("pictures are made as in training, as the model's file says: --resize %s, --normalize %s",
                resize_of(o->resize ? o->resize : was->resize, there), o->normalize ? o->normalize : was->normalize);
}

void cli_trained_on_tell(const cli_data *data)
{
    const cli_list *given = &data->job->o->classes;
    const cli_trained_on *was = &data->trained;
    for (size_t i = 0; i < data->ninputs; i++)
        if (data->input[i].source.pictures) {
            tell_pictures(data);
            break;
        }
    bool same = (int64_t)given->n == was->nclasses;
    for (size_t i = 0; i < given->n && same; i++) same = strcmp(given->item[i], was->classes[i]) == 0;
    if (given->n && was->nclasses && !same)
        cli_note("--class: the model was trained on %lld classes with other names or another order, as its file says "
                 "('%s', ...)",
                 (long long)was->nclasses, was->classes[0]);
}

int cli_trained_on_write(const cli_data *data)
{
    inv_model *model = data->job->model;
    const cli_options *o = data->job->o;
    const cli_trained_on *was = &data->trained;
    inv_status s = INV_OK;
    char side[32];
    for (size_t i = 0; i < data->ninputs && s == INV_OK; i++) {
        const data_source *from = &data->input[i].source;
        if (!from->pictures) continue;
        s = inv_model_set_metadata(model, RESIZE, resize_of(o->resize ? o->resize : was->resize, side));
        if (s == INV_OK)
            s = inv_model_set_metadata(model, NORMALIZE, normalize_of(o->normalize ? o->normalize : was->normalize));
        if (s == INV_OK) s = inv_model_set_metadata(model, CHANNELS, from->grey ? "grey" : "RGB");
        break;
    }
    json_t *names = cli_data_class_names(data);
    char *text = names ? json_dumps(names, JSON_COMPACT) : NULL;
    if (s == INV_OK && (text || o->head)) s = inv_model_set_metadata(model, CLASSES, text);
    free(text);
    json_decref(names);
    return s == INV_OK ? CLI_OK : cli_library_failed(data->job, s);
}
