/* SPDX-License-Identifier: Apache-2.0
 * What every command begins with: the context, the model and its declared inputs and outputs. What the library says of
 * them: failures and reports. */
#include <stdlib.h>
#include <string.h>

#include "cli/job/files.h"
#include "cli/say/progress_bar.h"
#include "data/watch.h"
#include "pictures/report_text.h"

static inv_dtype dtype_of(const json_t *text)
{
    if (json_is_integer(text)) return (inv_dtype)json_integer_value(text);
    return json_is_string(text) ? cli_dtype_named(json_string_value(text)) : INV_DT_NONE;
}

int cli_library_failed(const cli_job *job, inv_status status)
{
    const char *text = job->ctx ? inv_context_message(job->ctx) : "";
    json_t *details = job->ctx ? json_loads(inv_context_details(job->ctx), 0, NULL) : NULL;
    char window[96] = "";
    if (status == INV_E_SHAPE && job->o->window > 0) /* the model may have positions for fewer tokens */
        snprintf(window, sizeof window, "; rows are windows of %lld tokens: a smaller --window may fit the model",
                 (long long)job->o->window);
    int failed = cli_fail("%s%s", text && *text ? text : inv_status_text(status), window);
    if (details) cli_fail_details(details);
    json_decref(details);
    return failed;
}

/* Without those of types that cannot be fed, strings and sequences among them. */
static int read_ports(const cli_job *job, const char *key, cli_port **out, size_t *n)
{
    const json_t *list = json_object_get(job->inspection, key), *shown = json_object_get(job->shown, key);
    size_t all = json_array_size(list);
    *n = 0;
    *out = calloc(all ? all : 1, sizeof **out);
    if (!*out) return cli_fail("out of memory");
    for (size_t i = 0; i < all; i++) {
        const json_t *item = json_array_get(list, i), *shape = json_object_get(item, "shape");
        if (json_is_true(json_object_get(item, "carried"))) continue;
        cli_port *port = &(*out)[(*n)++];
        port->name = pic_string(item, "name");
        port->label = pic_string(json_array_get(shown, i), "name");
        port->dtype = dtype_of(json_object_get(item, "dtype"));
        port->rank = json_is_array(shape) && json_array_size(shape) <= NPY_MAX_RANK ? (int)json_array_size(shape) : -1;
        for (int d = 0; d < port->rank; d++) {
            const json_t *dim = json_array_get(shape, (size_t)d);
            port->dims[d] = json_is_integer(dim) && json_integer_value(dim) >= 0 ? json_integer_value(dim) : -1;
            const char *symbol = json_string_value(dim);
            port->symbol[d] = symbol && strcmp(symbol, "?") != 0 ? symbol : NULL;
        }
    }
    return CLI_OK;
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *object = text ? json_loads(text, JSON_ALLOW_NUL, &error) : NULL;
    if (!object) cli_fail("the library's report cannot be read: %s", text ? error.text : "out of memory");
    return object;
}

/* For listings, where a line break in a name would make a line of its own: it comes out as \u000a. `text` is JSON. */
static json_t *parse_shown(const char *text)
{
    size_t n = 0, extra = 0;
    for (const char *s = text; *s; s++)
        if (*s == '\\' && *++s == 'n') extra++;
    char *shown = malloc(strlen(text) + 5 * extra + 1);
    for (const char *s = text; shown && *s; s++) {
        shown[n++] = *s;
        if (*s != '\\') continue;
        if (*++s == 'n') n += (size_t)sprintf(shown + n, "\\u000a");
        else shown[n++] = *s;
    }
    if (shown) shown[n] = 0;
    json_t *object = parse(shown);
    free(shown);
    return object;
}

json_t *cli_parse_report(const cli_job *job, char *text)
{
    json_t *object = job->o->json ? parse(text) : parse_shown(text);
    inv_free(job->ctx, text);
    return object;
}

/* Remarks of the library, such as that a value is kept from now on. One that repeats the one before, as with a model
 * that is written again and again, is left out. */
static void log_line(void *opaque, const char *line)
{
    static char last[512];
    (void)opaque;
    if (strncmp(line, last, sizeof last - 1) == 0) return;
    snprintf(last, sizeof last, "%s", line);
    cli_note("%s", line);
}

static void on_progress(void *opaque, const char *stage, double share)
{
    (void)opaque;
    cli_busy(stage, share);
}

inv_context *cli_context(const cli_options *o)
{
    const inv_context_options co = {.size = sizeof co,
                                    .log = log_line,
                                    .no_rules = o->no_rules,
                                    .progress = on_progress,
                                    .option_name = cli_option_name};
    inv_context *ctx = NULL;
    cli_option_names_for(o->command);
    inv_status s = inv_context_create(&co, &ctx);
    for (size_t i = 0; i < o->plugin.n && s == INV_OK; i++) s = inv_context_load_plugin(ctx, o->plugin.item[i]);
    if (s == INV_OK) return ctx;
    cli_fail("%s", ctx && *inv_context_message(ctx) ? inv_context_message(ctx) : inv_status_text(s));
    inv_context_destroy(ctx);
    return NULL;
}

static void watch_model(const cli_job *job)
{
    const char *path, *slash = strrchr(job->path, '/');
    const int folder = slash ? (int)(slash - job->path) + 1 : 0;
    const void *base;
    size_t nbytes;
    for (size_t i = 0; (base = inv_model_file(job->model, i, &path, &nbytes)); i++) {
        char *full = malloc((size_t)folder + strlen(path) + 1);
        if (!full) return;
        sprintf(full, "%.*s%s", i ? folder : 0, job->path, path); /* external data are named from the model's folder */
        data_watch(full, base, nbytes,
                   job->o->command == CLI_CMD_train
                       ? "; frozen weights may have changed, and trained ones will be saved as arrays, not as a model"
                       : "");
        free(full);
    }
}

static void unwatch_model(const cli_job *job)
{
    const char *path;
    const void *base;
    size_t nbytes;
    for (size_t i = 0; job->model && (base = inv_model_file(job->model, i, &path, &nbytes)); i++) data_unwatch(base);
}

/* Constants that are named in full are parameters, whatever part they play. */
static inv_status load_model(cli_job *job)
{
    const cli_list *only = &job->o->train_only, *freeze = &job->o->freeze;
    const char **names = calloc(only->n + freeze->n + 1, sizeof *names);
    if (!names) return INV_E_NOMEM;
    for (size_t i = 0; i < only->n; i++) names[i] = only->item[i];
    for (size_t i = 0; i < freeze->n; i++) names[only->n + i] = freeze->item[i];
    const inv_status s = inv_model_load_with(job->ctx, job->path, names, only->n + freeze->n, &job->model);
    free(names);
    return s;
}

static inv_status add_lora(const cli_job *job)
{
    const cli_options *o = job->o;
    const inv_lora lora = {.size = sizeof lora,
                           .targets = (const char *const *)o->lora.item,
                           .ntargets = o->lora.n,
                           .rank = o->rank,
                           .alpha = o->alpha,
                           .dropout = o->lora_dropout,
                           .seed = (uint64_t)o->seed};
    char *text = NULL;
    if (!o->lora.n) return INV_OK;
    const inv_status s = inv_model_add_lora(job->model, &lora, &text);
    json_t *r = s == INV_OK ? cli_parse_report(job, text) : NULL;
    const json_t *narrow = json_object_get(r, "too_narrow"), *none = json_object_get(r, "no_weights");
    if (json_array_size(none))
        cli_note("%zu matches of --lora are not weights and stay unchanged ('%s'%s); `inspect` says why",
                 json_array_size(none), json_string_value(json_array_get(none, 0)),
                 json_array_size(none) > 1 ? ", ..." : "");
    if (json_array_size(narrow))
        cli_note("--rank %lld: %zu weights that --lora matches are too narrow for it and stay unchanged ('%s'%s)",
                 (long long)o->rank, json_array_size(narrow), json_string_value(json_array_get(narrow, 0)),
                 json_array_size(narrow) > 1 ? ", ..." : "");
    json_decref(r);
    return s;
}

void cli_say_head(cli_job *job)
{
    const json_t *r = job->head, *bias = json_object_get(r, "bias");
    if (r)
        cli_note("new head: %s '%s', %.0f classes in place of %.0f; '%s'%s%s%s%s", pic_string(r, "operator"),
                 pic_string(r, "node"), pic_number(r, "classes"), pic_number(r, "before"),
                 pic_string(json_object_get(r, "weight"), "name"), json_is_object(bias) ? " and '" : "",
                 json_is_object(bias) ? pic_string(bias, "name") : "", json_is_object(bias) ? "'" : "",
                 json_is_object(bias) ? " begin anew" : " begins anew");
    json_decref(job->head);
    job->head = NULL;
}

/* "N" or "NODE=N"; a name may hold '=' itself. */
static int set_head(cli_job *job)
{
    const cli_options *o = job->o;
    const char *text = o->head, *equals = text ? strrchr(text, '=') : NULL, *number = equals ? equals + 1 : text;
    char *end, *node = NULL;
    if (!text) return CLI_OK;
    const long long classes = strtoll(number, &end, 10);
    if (end == number || *end || classes < 1 || equals == text)
        return cli_usage(o, "--head %s: wants a number of classes, N or NODE=N", text);
    if (equals && !(node = strndup(text, (size_t)(equals - text)))) return cli_fail("out of memory");
    const inv_head head = {.size = sizeof head,
                           .classes = classes,
                           .node = node,
                           .output = o->loss_output.n ? o->loss_output.item[0] : NULL,
                           .seed = (uint64_t)o->seed};
    char *report = NULL;
    const inv_status s = inv_model_set_head(job->model, &head, &report);
    if (s == INV_OK) job->head = cli_parse_report(job, report);
    free(node);
    return s == INV_OK ? CLI_OK : cli_library_failed(job, s);
}

int cli_open(cli_job *job, const cli_options *o)
{
    *job = (cli_job){
        .o = o, .shard = o->shard < 0 ? INV_SHARD_NONE : o->shard, .path = o->argument.n ? o->argument.item[0] : NULL};
    job->ctx = cli_context(o);
    if (!job->ctx) return CLI_FAILED;
    int status = CLI_OK;
    inv_status s = load_model(job);
    if (s == INV_OK) watch_model(job);
    if (s == INV_OK && (status = set_head(job)) != CLI_OK) return status;
    if (s == INV_OK) s = add_lora(job);
    if (s == INV_OK) s = inv_model_set_layout(job->model, (inv_layout)o->layout);
    if (s == INV_OK && o->keep_training_mode) s = inv_model_set_form(job->model, INV_FORM_AS_LOADED);
    if (s == INV_OK && o->for_inference) s = inv_model_set_form(job->model, INV_FORM_INFERENCE);
    if (s != INV_OK) return cli_library_failed(job, s);
    char *text = NULL;
    s = inv_model_inspect(job->model, &text);
    if (s != INV_OK) return cli_library_failed(job, s);
    job->inspection = parse(text);
    /* as many as there are weights, and nobody else looks at them */
    if (o->command != CLI_CMD_inspect) (void)json_object_del(job->inspection, "initializers");
    if (job->inspection) job->shown = strstr(text, "\\n") ? parse_shown(text) : json_incref(job->inspection);
    inv_free(job->ctx, text);
    if (!job->shown) return CLI_FAILED;
    status = cli_check_writes(job);
    if (status == CLI_OK) status = read_ports(job, "inputs", &job->inputs, &job->ninputs);
    if (status == CLI_OK) status = read_ports(job, "outputs", &job->outputs, &job->noutputs);
    if (status != CLI_OK) return status;
    job->feeds = calloc(job->ninputs + 1, sizeof *job->feeds);
    job->arrays = calloc(job->ninputs + 1, sizeof *job->arrays);
    return job->feeds && job->arrays ? CLI_OK : cli_fail("out of memory");
}

void cli_close(cli_job *job)
{
    inv_session_destroy(job->session);
    unwatch_model(job);
    inv_model_destroy(job->model);
    inv_context_destroy(job->ctx);
    for (size_t i = 0; job->feeds && i < job->ninputs; i++) npy_close(&job->feeds[i]);
    npy_close(&job->target_file);
    free(job->feeds);
    free(job->arrays);
    free(job->inputs);
    free(job->outputs);
    json_decref(job->inspection);
    json_decref(job->shown);
    json_decref(job->head);
    *job = (cli_job){0};
}

int64_t cli_fixed_batch(const cli_job *job)
{
    return job->ninputs && job->inputs[0].rank > 0 ? job->inputs[0].dims[0] : -1;
}

static json_t *parse_given(const cli_job *job, inv_status (*give)(inv_session *, char **))
{
    char *text = NULL;
    inv_status s = give(job->session, &text);
    if (s == INV_OK) return cli_parse_report(job, text);
    cli_library_failed(job, s);
    return NULL;
}

json_t *cli_report(const cli_job *job) { return parse_given(job, inv_session_report); }

int cli_print_report(const cli_job *job)
{
    char *text;
    const inv_status s = inv_session_report(job->session, &text);
    if (s != INV_OK) return cli_library_failed(job, s);
    const int status = cli_print_text(text);
    inv_free(job->ctx, text);
    return status;
}

json_t *cli_explanation(const cli_job *job) { return parse_given(job, inv_session_explain); }
