/* SPDX-License-Identifier: Apache-2.0
 * Low-rank adapters of a loaded model (core/edits/lora.h). */
#include <string.h>

#include "core/edits/edited.h"
#include "core/edits/lora.h"
#include "core/edits/rewriting.h"
#include "core/graph/node.h"
#include "core/program/options.h"
#include "executor/report/report.h"
#include "importer/adapter_file.h"
#include "passes/export/export.h"

static json_t *shape_of(const inv_graph *g, const char *name)
{
    const inv_id v = inv_graph_find(g, name);
    return v == INV_NONE ? json_array() : inv_report_shape(&inv_val(g, v)->shape);
}

static json_t *row(const inv_graph *g, const inv_lora_target *t, inv_arena *a)
{
    const char *weight = inv_val(g, t->weight)->name;
    const char *down = inv_arena_printf(a, "%s.lora_A", weight), *up = inv_arena_printf(a, "%s.lora_B", weight);
    json_t *nodes = json_array();
    for (size_t i = 0; i < t->use.n; i++)
        (void)json_array_append_new(nodes, json_string(inv_node_called(g, inv_nod(g, t->use.at[i].node))));
    if (!down || !up) {
        json_decref(nodes);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:o, s:o, s:s, s:b}", "weight", weight, "nodes", nodes, "A", shape_of(g, down), "B",
                     shape_of(g, up), "dtype", inv_dtype_name(t->dtype), "quantized", t->quantized);
}

static json_t *names_of(const inv_graph *g, const inv_lora_targets *t)
{
    json_t *names = json_array();
    for (size_t i = 0; i < t->n; i++)
        (void)json_array_append_new(names, json_string(inv_val(g, t->at[i].weight)->name));
    return names;
}

static json_t *report(const inv_graph *g, const inv_lora *o, const inv_lora_targets *added, const inv_lora_left *left,
                      inv_arena *a)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < added->n; i++) (void)json_array_append_new(rows, row(g, &added->at[i], a));
    return json_pack("{s:I, s:f, s:f, s:o, s:o, s:o}", "rank", (json_int_t)o->rank, "alpha", o->alpha, "dropout",
                     o->dropout, "adapters", rows, "too_narrow", names_of(g, &left->narrow), "no_weights",
                     names_of(g, &left->constant));
}

inv_status inv_model_add_lora(inv_model *model, const inv_lora *given, char **json)
{
    INV_OBJECT(model);
    inv_context *ctx = model->ctx;
    inv_lora o = {.size = sizeof o};
    inv_lora_targets added = {0};
    inv_lora_left left = {0};
    inv_arena a;
    if (json) *json = NULL;
    INV_CHECK(given, ctx, INV_E_ARG, "lora is NULL: it has to be given");
    INV_TRY(inv_options_take(ctx, "options of adapters", &o, sizeof o, given, given->size));
    INV_CHECK(!model->forward, ctx, INV_E_ARG,
              "the model is the inverse direction of '%s', in memory: adapters go into the file's own direction",
              model->path);
    INV_TRY(inv_functions_open(model->graph));
    inv_arena_init(&a, ctx);
    inv_status s = inv_lora_add(model->graph, &o, &a, &added, &left);
    if (s == INV_OK && json) s = inv_report_text(ctx, report(model->graph, &o, &added, &left, &a), json);
    inv_arena_fini(&a);
    return s;
}

/* --- of a model that has them --- */

static json_t *found_row(const inv_graph *g, const inv_lora_found *f)
{
    const inv_value *a = inv_val(g, f->a), *b = inv_val(g, f->b);
    const inv_data *s = &inv_val(g, f->scale)->data;
    json_t *nodes = json_array();
    for (size_t i = 0; i < f->t.use.n; i++)
        (void)json_array_append_new(nodes, json_string(inv_node_called(g, inv_nod(g, f->t.use.at[i].node))));
    return json_pack("{s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:s, s:b, s:I}", "weight", inv_val(g, f->t.weight)->name,
                     "nodes", nodes, "rank", (json_int_t)f->rank, "scale",
                     s->bytes ? inv_report_number(inv_elem_double(s->bytes, s->dtype, 0)) : json_null(), "shape",
                     inv_report_shape(&f->t.shape), "A", inv_report_shape(&a->shape), "B", inv_report_shape(&b->shape),
                     "dtype", inv_dtype_name(a->dtype), "quantized", f->t.quantized, "bytes",
                     (json_int_t)a->data.nbytes + (json_int_t)b->data.nbytes);
}

static json_t *found_report(const inv_graph *g, const inv_lora_founds *found)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < found->n; i++) (void)json_array_append_new(rows, found_row(g, &found->at[i]));
    return json_pack("{s:o}", "adapters", rows);
}

/* Looks for the adapters of a model; `wants`: there have to be some. */
static inv_status find(inv_model *model, inv_arena *a, bool wants, inv_lora_founds *found)
{
    INV_CHECK(!model->forward, model->ctx, INV_E_ARG,
              "the model is the inverse direction of '%s', in memory: adapters are in the file's own direction",
              model->path);
    INV_TRY(inv_lora_find(model->graph, a, found));
    INV_CHECK(found->n || !wants, model->ctx, INV_E_ARG,
              "'%s' has no adapters: it has no initializers W.lora_A, W.lora_B and W.lora_scale for a weight W",
              model->path);
    return INV_OK;
}

inv_status inv_model_adapters(inv_model *model, char **json)
{
    INV_OBJECT(model);
    INV_GIVEN(model->ctx, json);
    inv_lora_founds found = {0};
    inv_arena a;
    *json = NULL;
    inv_arena_init(&a, model->ctx);
    inv_status s = find(model, &a, false, &found);
    if (s == INV_OK) s = inv_report_text(model->ctx, found_report(model->graph, &found), json);
    inv_arena_fini(&a);
    return s;
}

inv_status inv_model_merge_adapters(inv_model *model, char **json)
{
    INV_OBJECT(model);
    inv_lora_founds found = {0};
    inv_arena a;
    json_t *report = NULL;
    if (json) *json = NULL;
    inv_arena_init(&a, model->ctx);
    inv_status s = find(model, &a, true, &found);
    if (s == INV_OK) report = found_report(model->graph, &found);
    if (s == INV_OK) s = inv_lora_merge(model->graph, &found);
    if (s == INV_OK && json) s = inv_report_text(model->ctx, report, json);
    else json_decref(report);
    inv_arena_fini(&a);
    return s;
}

inv_status inv_model_free_adapters(inv_model *model)
{
    INV_OBJECT(model);
    inv_lora_founds found = {0};
    inv_arena a;
    inv_arena_init(&a, model->ctx);
    inv_status s = find(model, &a, true, &found);
    if (s == INV_OK) s = inv_lora_free(model->graph, &found);
    inv_arena_fini(&a);
    return s;
}

/* --- files of adapters --- */

static inv_status add_entry(inv_model *model, inv_session *session, inv_arena *a, inv_id v, inv_adapter_file *f)
{
    inv_outline_tensor t;
    INV_TRY(inv_present_tensor(session, a, inv_val(model->graph, v), &t));
    inv_adapter_entry e = {t.name, t.data};
    if (e.data.shape.rank == 0) e.data.shape = inv_shape_of(1, (int64_t[]){1}); /* the format has none of rank 0 */
    INV_CHECK(e.data.bytes, model->ctx, INV_E_ARG, "the elements of '%s' are not known", e.name);
    return inv_vec_push(a, &f->entry, e) ? INV_OK : INV_E_NOMEM;
}

/* A number that tells one base from another: of the names and elements of all initializers but adapters, in whatever
 * order. It is the file's "model version", from MARK on, so that those that people count from 1 are none. */
enum { MARK = 1 << 30 };

static uint64_t mixed(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (uint64_t word = 0; n; n -= n < sizeof word ? n : sizeof word, p += sizeof word, word = 0) {
        memcpy(&word, p, n < sizeof word ? n : sizeof word);
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    return h;
}

/* int64 are shapes, bool modes, which the form for inference has others of. */
static bool is_of_base(const inv_value *v)
{
    return !v->dropped && v->dtype != INV_I64 && v->dtype != INV_BOOL && !strstr(v->name, ".lora_");
}

static inv_status fingerprint(inv_model *model, inv_session *session, int32_t *out)
{
    const inv_graph *g = model->graph;
    inv_status s = INV_OK;
    uint64_t sum = 0;
    for (size_t i = 0; i < g->inits.n && s == INV_OK; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        inv_outline_tensor t;
        inv_arena a; /* for one at a time */
        if (!is_of_base(v)) continue;
        inv_arena_init(&a, model->ctx);
        s = inv_present_tensor(session, &a, v, &t);
        if (s == INV_OK && t.data.bytes) sum += mixed(mixed(1, v->name, strlen(v->name)), t.data.bytes, t.data.nbytes);
        inv_arena_fini(&a);
    }
    *out = MARK | (int32_t)((sum ^ sum >> 32) & (MARK - 1));
    return s;
}

inv_status inv_model_save_adapters(inv_model *model, inv_session *session, const char *path)
{
    INV_OBJECT(model);
    inv_lora_founds found = {0};
    inv_adapter_file f = {0};
    inv_arena a;
    INV_CHECK(path && *path, model->ctx, INV_E_ARG, "no path given to write the adapters to");
    if (session) INV_TRY(inv_session_whole(session));
    inv_arena_init(&a, model->ctx);
    inv_status s = find(model, &a, true, &found);
    for (size_t i = 0; i < found.n && s == INV_OK; i++) {
        const inv_id all[] = {found.at[i].a, found.at[i].b, found.at[i].scale};
        for (size_t k = 0; k < 3 && s == INV_OK; k++) s = add_entry(model, session, &a, all[k], &f);
    }
    if (s == INV_OK) s = fingerprint(model, session, &f.model);
    if (s == INV_OK) s = inv_adapter_file_write(model->ctx, path, &f);
    inv_arena_fini(&a);
    return s;
}

static json_t *file_report(const inv_adapter_file *f)
{
    json_t *rows = json_array();
    size_t nbytes = 0;
    for (size_t i = 0; i < f->entry.n; i++) {
        const inv_adapter_entry *e = &f->entry.at[i];
        nbytes += e->data.nbytes;
        (void)json_array_append_new(
            rows, json_pack("{s:s, s:o, s:s, s:I}", "name", e->name, "shape", inv_report_shape(&e->data.shape), "dtype",
                            inv_dtype_name(e->data.dtype), "bytes", (json_int_t)e->data.nbytes));
    }
    return json_pack("{s:i, s:i, s:i, s:I, s:o}", "format_version", f->format, "adapter_version", f->adapter,
                     "model_version", f->model, "bytes", (json_int_t)nbytes, "parameters", rows);
}

inv_status inv_adapters_inspect(inv_context *ctx, const char *path, char **json)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, json);
    inv_adapter_file f;
    inv_arena a;
    *json = NULL;
    inv_arena_init(&a, ctx);
    inv_status s = inv_adapter_file_read(ctx, path, &a, &f);
    if (s == INV_OK) s = inv_report_text(ctx, file_report(&f), json);
    inv_arena_fini(&a);
    return s;
}

static const inv_data *entry_of(const inv_adapter_file *f, const char *name)
{
    for (size_t i = 0; name && i < f->entry.n; i++)
        if (!strcmp(f->entry.at[i].name, name)) return &f->entry.at[i].data;
    return NULL;
}

/* The adapter of a weight, with factors of the rank that the file's have. */
static inv_status have_adapter(inv_model *model, inv_arena *a, const char *weight, const inv_data *file_a)
{
    inv_graph *g = model->graph;
    const char *name = inv_arena_printf(a, "%s.lora_A", weight);
    inv_lora_targets all = {0};
    if (!name) return INV_E_NOMEM;
    if (inv_added_find(g, name) != INV_NONE) return INV_OK;
    INV_TRY(inv_functions_open(g));
    INV_TRY(inv_lora_targets_find(g, a, &all));
    const inv_lora_target *t = NULL;
    for (size_t i = 0; i < all.n; i++)
        if (!strcmp(inv_val(g, all.at[i].weight)->name, weight)) t = &all.at[i];
    INV_CHECK(t, model->ctx, INV_E_ARG,
              "'%s' has no weight '%s' of a product, which the adapter is for: it belongs to another model",
              model->path, weight);
    const int axis = t->in_first ? 1 : 0;
    const int64_t rank = file_a->shape.rank > axis ? file_a->shape.dim[axis] / (t->in_first ? 1 : t->group) : 0;
    const inv_lora o = {.size = sizeof o, .targets = &weight, .ntargets = 1, .rank = rank, .alpha = 1};
    return inv_lora_add(g, &o, a, NULL, NULL);
}

/* Elements of the file for an initializer, which may be of another rank there. */
static inv_status put_elements(inv_model *model, inv_arena *a, const inv_adapter_file *f, const char *weight,
                               const char *what)
{
    inv_graph *g = model->graph;
    const char *name = inv_arena_printf(a, "%s.%s", weight, what);
    const inv_data *d = entry_of(f, name);
    const inv_id id = name ? inv_graph_find(g, name) : INV_NONE;
    INV_CHECK(d && id != INV_NONE && inv_val(g, id)->role == INV_ROLE_PARAM, model->ctx, INV_E_ARG,
              "the adapter of '%s' has no '%s.%s'", weight, weight, what);
    const inv_dtype to = inv_val(g, id)->dtype;
    const bool number = inv_shape_nelem(&d->shape) == 1 && inv_val(g, id)->shape.rank == 0;
    const inv_shape shape = number ? inv_shape_scalar() : d->shape;
    void *bytes = inv_added_renew(g, id, &shape);
    if (!bytes) return INV_E_NOMEM;
    INV_CHECK(inv_convert(bytes, to, d->bytes, d->dtype, (size_t)inv_shape_nelem(&shape)), model->ctx,
              INV_E_UNSUPPORTED_TYPE, "'%s': %s cannot be taken as %s", name, inv_dtype_name(d->dtype),
              inv_dtype_name(to));
    return INV_OK;
}

static inv_status load_all(inv_model *model, inv_arena *a, const char *path, const inv_adapter_file *f)
{
    static const char end[] = ".lora_A";
    inv_lora_founds found = {0};
    size_t n = 0;
    for (size_t i = 0; i < f->entry.n; i++) {
        const char *name = f->entry.at[i].name;
        const size_t length = strlen(name);
        if (length < sizeof end || strcmp(name + length - (sizeof end - 1), end) != 0) continue;
        const char *weight = inv_arena_strndup(a, name, length - (sizeof end - 1));
        if (!weight) return INV_E_NOMEM;
        INV_TRY(have_adapter(model, a, weight, &f->entry.at[i].data));
        INV_TRY(put_elements(model, a, f, weight, "lora_A"));
        INV_TRY(put_elements(model, a, f, weight, "lora_B"));
        INV_TRY(put_elements(model, a, f, weight, "lora_scale"));
        n++;
    }
    INV_CHECK(n && 3 * n == f->entry.n, model->ctx, INV_E_ARG,
              "'%s' has %zu parameters, %zu of them an adapter's W.lora_A with W.lora_B and W.lora_scale. It was "
              "made for another kind of model",
              path, f->entry.n, n);
    return inv_lora_find(model->graph, a, &found); /* that shapes fit */
}

inv_status inv_model_load_adapters(inv_model *model, const char *path, char **json)
{
    INV_OBJECT(model);
    inv_adapter_file f;
    inv_arena a;
    if (json) *json = NULL;
    inv_arena_init(&a, model->ctx);
    int32_t own = 0;
    inv_status s = inv_adapter_file_read(model->ctx, path, &a, &f);
    if (s == INV_OK && f.model >= MARK && json) s = fingerprint(model, NULL, &own);
    if (s == INV_OK) s = load_all(model, &a, path, &f);
    if (s == INV_OK && json) {
        json_t *report = file_report(&f);
        (void)json_object_set_new(report, "base",
                                  json_string(f.model < MARK   ? "unknown"
                                              : f.model == own ? "same"
                                                               : "other"));
        s = inv_report_text(model->ctx, report, json);
    }
    inv_arena_fini(&a);
    return s;
}
