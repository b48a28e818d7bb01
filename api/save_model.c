/* SPDX-License-Identifier: Apache-2.0
 * Writing models: with their blocks as functions, and with a session's present weights. */
#include <math.h>
#include <string.h>

#include "core/edits/inference.h"
#include "core/edits/lora.h"
#include "executor/report/report.h"
#include "importer/model_file.h"
#include "passes/export/export.h"

static json_t *texts(const char *const *text, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) (void)json_array_append_new(list, json_string(text[i]));
    return list;
}

static json_t *signature(const inv_outline_function *f)
{
    return f ? json_pack("{s:s, s:o, s:o}", "name", f->name, "inputs", texts(f->in, f->nin), "outputs",
                         texts(f->out, f->nout))
             : json_null();
}

static json_t *block(const inv_rewriting *r, const inv_outline_block *row)
{
    const inv_outline_function *f = row->function ? &r->outline.function.at[row->at] : NULL;
    json_t *b = inv_report_block(r->g, &r->g->matches->block.at[row->block]);
    json_t *more = json_pack("{s:o, s:s?, s:o, s:o, s:o, s:o, s:s?}", "function", signature(f), "called_by",
                             row->parent, "inverse", signature(row->inverse ? f + 1 : NULL), "frees",
                             texts(row->freed, row->nfreed), "given", texts(row->given, row->ngiven), "gain",
                             isfinite(row->gain) ? json_real(row->gain) : json_null(), "reason", row->reason);
    if (b && more) (void)json_object_update(b, more);
    json_decref(more);
    return b;
}

static json_t *report(const inv_rewriting *r, const char *path)
{
    const inv_outline *o = &r->outline;
    json_t *blocks = json_array(), *added = json_array();
    size_t functions = 0, inverses = 0;
    for (size_t i = 0; i < o->block.n; i++) {
        functions += o->block.at[i].function != NULL;
        inverses += o->block.at[i].inverse != NULL;
        (void)json_array_append_new(blocks, block(r, &o->block.at[i]));
    }
    for (size_t i = 0; i < o->tensor.n; i++) (void)json_array_append_new(added, json_string(o->tensor.at[i].name));
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "model", path, "functions", (int)functions, "inverses",
                     (int)inverses, "initializers_added", added, "constant_inputs", texts(o->fixed.at, o->fixed.n),
                     "blocks", blocks);
}

/* What is written are the file's nodes, in their own direction. */
static inv_status need_file(const inv_model *model)
{
    INV_CHECK(!model->forward, model->ctx, INV_E_ARG,
              "the model is the inverse direction of '%s', in memory; load that file to rewrite it", model->path);
    INV_CHECK(!model->graph->edited, model->ctx, INV_E_ARG,
              "'%s' was changed in memory, by adapters or a new head. Save the model, and load the saved file",
              model->path);
    return INV_OK;
}

static inv_status rewrite(inv_model *model, const inv_session_options *options, const char *path, char **json)
{
    inv_rewriting *r;
    INV_TRY(inv_rewrite_blocks(model->ctx, model->graph, options, &r));
    inv_status s = inv_outline_write(model, &r->outline, path);
    if (s == INV_OK && json) s = inv_report_text(model->ctx, report(r, path), json);
    inv_rewriting_destroy(r);
    return s;
}

/* Where there can be no functions, that is said, and the form is there all the same. */
static inv_status write_settled(inv_model *settled, const char *path, char **json)
{
    inv_context *ctx = settled->ctx;
    json_t *said = json_pack("{s:s, s:i, s:i, s:[], s:[], s:[], s:s}", "model", path, "functions", 0, "inverses", 0,
                             "initializers_added", "constant_inputs", "blocks", "reason", inv_context_message(ctx));
    inv_log(ctx, "no functions are written: %s", inv_context_message(ctx));
    inv_status s = inv_model_write(settled, NULL, NULL, false, path);
    if (s == INV_OK && json) return inv_report_text(ctx, said, json);
    json_decref(said);
    return s;
}

inv_status inv_model_rewrite(inv_model *model, const inv_session_options *options, const char *path, char **json)
{
    INV_OBJECT(model);
    inv_session_options shapes = {.size = sizeof shapes};
    inv_model *settled = NULL;
    if (json) *json = NULL;
    INV_CHECK(path && *path, model->ctx, INV_E_ARG, "no path given to write the model to");
    if (options) INV_TRY(inv_options_read(model->ctx, options, &shapes));
    INV_TRY(need_file(model));
    INV_TRY(inv_workers_own(model->ctx));
    if (model->form == INV_FORM_INFERENCE) INV_TRY(inv_model_settled(model, path, &settled));
    inv_status s = rewrite(settled ? settled : model, &shapes, path, json);
    if (settled && s != INV_OK && s != INV_E_NOMEM && s != INV_E_IO) s = write_settled(settled, path, json);
    inv_model_destroy(settled);
    return s;
}

/* --- the inverse direction --- */

static json_t *ports(const inv_graph *g, const inv_ids *list)
{
    json_t *names = json_array();
    for (size_t i = 0; i < list->n; i++) (void)json_array_append_new(names, json_string(inv_val(g, list->at[i])->name));
    return names;
}

static json_t *inverse_report(const inv_rewriting *r, const char *path)
{
    json_t *added = json_array();
    for (size_t i = 0; i < r->outline.tensor.n; i++)
        (void)json_array_append_new(added, json_string(r->outline.tensor.at[i].name));
    return json_pack("{s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "model", path, "inputs",
                     ports(r->reversed, &r->reversed->inputs), "outputs", ports(r->reversed, &r->reversed->outputs),
                     "inverses", (int)r->ninverse, "gain", isfinite(r->gain) ? json_real(r->gain) : json_null(),
                     "initializers_added", added, "constant_inputs", texts(r->outline.fixed.at, r->outline.fixed.n),
                     "notes", texts(r->notes, r->nnotes));
}

/* The caller's struct, whole: fields that his version does not have are zero. */
static inv_status read_reverse(inv_context *ctx, const inv_reverse_options *given, inv_reverse_options *o)
{
    *o = (inv_reverse_options){.size = sizeof *o};
    if (!given) return INV_OK;
    INV_TRY(inv_size_check(ctx, "options of the inverse direction", given->size, sizeof *o));
    INV_CHECK(given->size % sizeof(void *) == 0, ctx, INV_E_ABI,
              "options of the inverse direction of %zu bytes end within a field", given->size); /* all are pointers */
    memcpy(o, given, given->size);
    o->size = sizeof *o;
    INV_CHECK(!o->ngiven || o->given, ctx, INV_E_ARG, "{given} is NULL, but its number is %zu", o->ngiven);
    for (size_t i = 0; i < o->ngiven; i++)
        INV_CHECK(o->given[i], ctx, INV_E_ARG, "entry %zu of %zu of {given} is NULL", i + 1, o->ngiven);
    return INV_OK;
}

static inv_status reverse(inv_model *model, const inv_session_options *shapes, const inv_reverse_options *options,
                          bool in_memory, inv_rewriting **r)
{
    inv_session_options whole = {.size = sizeof whole};
    inv_reverse_options direction;
    if (shapes) INV_TRY(inv_options_read(model->ctx, shapes, &whole));
    INV_TRY(read_reverse(model->ctx, options, &direction));
    INV_TRY(need_file(model));
    INV_TRY(inv_workers_own(model->ctx));
    return inv_reverse_model(model->ctx, model->graph, &whole, &direction, in_memory, r);
}

inv_status inv_model_write_inverse(inv_model *model, const inv_session_options *shapes,
                                   const inv_reverse_options *options, const char *path, char **json)
{
    INV_OBJECT(model);
    inv_rewriting *r;
    if (json) *json = NULL;
    INV_CHECK(path && *path, model->ctx, INV_E_ARG, "no path given to write the model to");
    INV_TRY(reverse(model, shapes, options, false, &r));
    inv_status s = inv_outline_write(model, &r->outline, path);
    if (s == INV_OK && json) s = inv_report_text(model->ctx, inverse_report(r, path), json);
    inv_rewriting_destroy(r);
    return s;
}

inv_status inv_model_reverse(inv_model *model, const inv_session_options *shapes, const inv_reverse_options *options,
                             inv_model **out)
{
    INV_OBJECT(model);
    INV_GIVEN(model->ctx, out);
    inv_rewriting *r = NULL;
    *out = NULL;
    INV_TRY(need_file(model));
    inv_model *m;
    /* its tensors stay in a mapping of its own */
    INV_TRY(inv_model_load_with(model->ctx, model->path, model->taken, model->ntaken, &m));
    m->layout = model->layout;
    inv_status s = reverse(m, shapes, options, true, &r);
    if (s == INV_OK) {
        m->forward = m->graph;
        m->graph = r->reversed;
        r->reversed = NULL;
        *out = m;
    } else inv_model_destroy(m);
    inv_rewriting_destroy(r);
    return s;
}

/* --- present weights --- */

typedef struct source {
    inv_session *session;
    inv_arena copies;        /* of weights that are not where they can be read */
    inv_rewriting *inverses; /* of the present weights; NULL: the model has none */
} source;

/* A copy in `a` of one storage, turned over if it is for what follows that transposed. */
static inv_status copy_storage(inv_session *s, inv_arena *a, const inv_storage *h, bool turn, const void **data)
{
    char *copy = inv_arena_alloc(a, h->nbytes + 1), *turned = turn ? inv_arena_alloc(a, h->nbytes + 1) : NULL;
    if (!copy || (turn && !turned)) return INV_E_NOMEM;
    INV_TRY(s->device->download(s->self, copy, s->persistent + h->offset, h->nbytes));
    if (turn) inv_transpose(turned, copy, (size_t)h->shape.dim[0], (size_t)h->shape.dim[1], inv_dtype_size(h->dtype));
    *data = turn ? turned : copy;
    return INV_OK;
}

/* Parameters that are not as the model has them, what follows them, and running statistics; of others *out stays as it
 * is. */
static inv_status session_weight(inv_session *s, inv_arena *a, const char *name, inv_weight *out)
{
    const inv_storage *h = inv_session_storage(s, name), *master = h ? NULL : inv_session_master(s, name);
    if (master) h = master;
    bool moved = false;
    if (h) INV_TRY(inv_session_moved(s, h, &moved));
    if (!h || !(moved || inv_program_changes(s->program, h))) return INV_OK;
    out->dtype = h->dtype;
    out->n = (size_t)inv_shape_nelem(&h->shape);
    if (master || !s->device->host) return copy_storage(s, a, h, master != NULL, &out->data);
    out->data = s->persistent + h->offset;
    return INV_OK;
}

static inv_status present_weight(void *opaque, const char *name, inv_weight *out)
{
    source *from = opaque;
    for (size_t i = 0; from->inverses && i < from->inverses->outline.tensor.n; i++) {
        const inv_outline_tensor *t = &from->inverses->outline.tensor.at[i];
        if (strcmp(t->name, name) != 0) continue;
        *out = (inv_weight){t->data.dtype, (size_t)inv_shape_nelem(&t->data.shape), t->data.bytes, t->maker};
        return INV_OK;
    }
    return session_weight(from->session, &from->copies, name, out);
}

static inv_status give_weights(inv_session *s, inv_arena *a, inv_graph *g)
{
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        inv_weight w = {0};
        INV_TRY(session_weight(s, a, v->name, &w));
        if (w.data) v->data = (inv_data){w.dtype, v->data.shape, w.data, w.n * inv_dtype_size(w.dtype)};
    }
    return INV_OK;
}

/* The inverses of present weights, by a copy of the model that holds these. */
static inv_status invert_weights(inv_session *s, inv_arena *a, inv_rewriting **out)
{
    const inv_graph *model = s->model->graph;
    inv_graph *g;
    bool any = false;
    *out = NULL;
    for (size_t i = 0; i < model->inits.n; i++) any = any || inv_val(model, model->inits.at[i])->inverse_of;
    if (!any) return INV_OK;
    INV_TRY(inv_graph_copy(model, &g));
    inv_status st = give_weights(s, a, g);
    if (st == INV_OK) st = inv_rewrite_inverses(s->ctx, g, &s->program->options, out);
    inv_graph_destroy(g);
    if (st == INV_OK || st == INV_E_NOMEM) return st;
    inv_log(s->ctx, "the inverses in the model belong to the old weights: %s", inv_context_message(s->ctx));
    return INV_OK; /* the weights are what counts */
}

/* --- what the file does not have: merged initializers, written apart, adapters, new heads (core/edits/edited.h) --- */

/* Such an initializer, in its own type. */
inv_status inv_present_tensor(inv_session *s, inv_arena *a, const inv_value *v, inv_outline_tensor *out)
{
    inv_weight w = {0};
    *out = (inv_outline_tensor){.name = v->name, .data = v->data};
    if (s) INV_TRY(session_weight(s, a, v->name, &w));
    if (!w.data) return INV_OK;
    void *bytes = inv_arena_alloc(a, v->data.nbytes ? v->data.nbytes : 1);
    if (!bytes) return INV_E_NOMEM;
    INV_CHECK(inv_convert(bytes, v->dtype, w.data, w.dtype, w.n), s->ctx, INV_E_UNSUPPORTED_TYPE,
              "initializer '%s': %s cannot be written as %s", v->name, inv_dtype_name(w.dtype),
              inv_dtype_name(v->dtype));
    out->data.bytes = bytes;
    return INV_OK;
}

/* What is written for a value: an adapter's dropout gives its input. */
static inv_id undropped(const inv_graph *g, inv_id v)
{
    const inv_node *n = inv_val(g, v)->def == INV_NONE ? NULL : inv_nod(g, inv_val(g, v)->def);
    return n && inv_lora_is_dropout(g, n) ? n->in[0] : v;
}

static inv_status value_names(const inv_graph *g, inv_arena *a, uint32_t n, const inv_id *v, const char *const **out)
{
    const char **name = INV_ARENA_NEW(a, const char *, n + 1);
    if (!name) return INV_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) name[i] = v[i] == INV_NONE ? "" : inv_val(g, undropped(g, v[i]))->name;
    *out = name;
    return INV_OK;
}

/* Declarations that are not what the file says, and, where some initializers become inputs, all inputs and outputs. */
static inv_status outline_ports(const inv_graph *g, inv_arena *a, inv_outline *o)
{
    for (size_t v = 0; v < g->value.n; v++) {
        const inv_value *x = inv_val(g, (inv_id)v);
        const inv_outline_port p = {.name = x->name, .shape = x->shape, .symbols = x->dim_param};
        o->ports = o->ports || x->optional;
        if (!x->restated && !x->renewed) continue;
        const bool known = x->role == INV_ROLE_PARAM || (x->is_output && x->shape.rank >= 0);
        if (!(known ? inv_vec_push(a, &o->restate, p) : inv_vec_push(a, &o->drop, x->name))) return INV_E_NOMEM;
    }
    for (size_t i = 0; o->ports && i < g->inputs.n; i++) {
        const inv_outline_port p = {.name = inv_val(g, g->inputs.at[i])->name};
        if (!inv_vec_push(a, &o->in, p)) return INV_E_NOMEM;
    }
    for (size_t i = 0; o->ports && i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        inv_outline_port p = {v->name, v->dtype, v->shape, v->dim_param};
        for (int d = 0; v->optional && d < p.shape.rank; d++)
            if (v->dim_param[d]) p.shape.dim[d] = -1; /* what is fed may have another extent than what is there */
        if (v->optional && !inv_vec_push(a, &o->in, p)) return INV_E_NOMEM;
    }
    for (size_t i = 0; o->ports && i < g->outputs.n; i++) {
        const inv_outline_port p = {.name = inv_val(g, g->outputs.at[i])->name};
        if (!inv_vec_push(a, &o->out, p)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Initializers that the file does not have, has with other elements, or is to have no more. */
static inv_status outline_tensors(inv_model *model, inv_session *s, const inv_graph *g, inv_arena *a, inv_outline *o)
{
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        inv_outline_tensor t;
        if (v->dropped && !inv_vec_push(a, &o->drop, v->name)) return INV_E_NOMEM;
        if (v->dropped || (i < model->nfile_inits && !v->renewed)) continue;
        INV_TRY(inv_present_tensor(s, a, v, &t));
        if (!inv_vec_push(a, &o->tensor, t)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Whether the graph has blocks, all of them opened up: it is a rewritten model no more. */
static bool is_rewritten_no_more(const inv_graph *g)
{
    size_t shut = 0, blocks = 0;
    for (size_t i = 0; i < g->function.n; i++) {
        blocks += g->function.at[i].block;
        shut += g->function.at[i].block && !g->function.at[i].open;
    }
    return blocks && !shut;
}

static inv_status outline_apart(inv_model *model, inv_session *s, inv_arena *a, inv_outline *o)
{
    const inv_graph *g = s && s->program->own ? s->program->own : model->graph;
    INV_TRY(outline_ports(g, a, o));
    INV_TRY(inv_outline_opened(g, model->nfile_opsets, a, o));
    o->rewritten = is_rewritten_no_more(g);
    for (size_t i = 0; i < g->inits.n; i++) { /* weights in Constant nodes, which are in no order */
        const inv_value *v = inv_val(g, g->inits.at[i]);
        inv_outline_node x = {.source = v->source, .nout = 1};
        if (v->source == INV_NONE || v->dropped || v->renewed) continue;
        INV_TRY(value_names(g, a, 1, &g->inits.at[i], &x.out));
        if (!inv_vec_push(a, &o->node, x)) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        inv_outline_node x = {.source = n->source,
                              .domain = n->domain,
                              .op_type = n->op_type,
                              .name = n->name,
                              .renamed = n->norigin > 0, /* functions that are called twice give names twice */
                              .nin = inv_node_listed(n),
                              .nout = n->nout,
                              .attr = n->attr,
                              .nattr = n->nattr};
        if (inv_lora_is_dropout(g, n)) continue;
        INV_TRY(value_names(g, a, x.nin, n->in, &x.in));
        INV_TRY(value_names(g, a, n->nout, n->out, &x.out));
        if (!inv_vec_push(a, &o->node, x)) return INV_E_NOMEM;
    }
    return outline_tensors(model, s, g, a, o);
}

static inv_status save_apart(inv_model *model, source *from, bool inference, const char *path)
{
    inv_outline o = {.source = from->session ? present_weight : NULL, .opaque = from, .inference = inference};
    inv_arena a;
    inv_arena_init(&a, model->ctx);
    inv_status s = outline_apart(model, from->session, &a, &o);
    if (s == INV_OK) s = inv_outline_write(model, &o, path);
    inv_arena_fini(&a);
    return s;
}

/* --- functions of a rewriting whose inverses are those of the form for training --- */

/* Another rewriting makes them for the form for inference. */
static inv_status save_blocks(inv_model *model, source *from, const char *path)
{
    inv_session *s = from->session;
    inv_model *settled;
    inv_rewriting *r = NULL;
    INV_TRY(inv_model_settled(model, path, &settled));
    inv_status st = give_weights(s, &from->copies, settled->graph);
    if (st == INV_OK) st = inv_rewrite_blocks(s->ctx, settled->graph, &s->program->options, &r);
    if (st == INV_OK) {
        r->outline.source = present_weight;
        r->outline.opaque = from;
        st = inv_outline_write(settled, &r->outline, path);
    }
    inv_rewriting_destroy(r);
    inv_model_destroy(settled);
    return st;
}

static inv_status has_trained_blocks(const inv_model *model, bool *has)
{
    inv_inference f;
    inv_arena a;
    inv_arena_init(&a, model->ctx);
    inv_status s = inv_inference_find(model->forward ? model->forward : model->graph, &a, &f);
    *has = s == INV_OK && f.blocks;
    inv_arena_fini(&a);
    return s;
}

static inv_status save_trained(inv_model *model, source *from, bool inference, const char *path)
{
    const bool apart = from->session->program->own || model->graph->edited;
    bool blocks = false;
    if (inference) INV_TRY(has_trained_blocks(model, &blocks));
    if (blocks && !apart) {
        inv_status s = save_blocks(model, from, path);
        if (s == INV_OK || s == INV_E_NOMEM || s == INV_E_IO) return s;
    }
    if (blocks) inv_log(model->ctx, "the inverses in the model belong to batch normalization in training mode");
    INV_TRY(invert_weights(from->session, &from->copies, &from->inverses));
    return apart ? save_apart(model, from, inference, path)
                 : inv_model_write(model, present_weight, from, inference, path);
}

inv_status inv_model_save(inv_model *model, inv_session *session, const char *path)
{
    INV_OBJECT(model);
    const bool trained = session && session->program->options.purpose == INV_FOR_TRAIN;
    const bool inference = model->form == INV_FORM_INFERENCE || (model->form == INV_FORM_DEFAULT && trained);
    if (!session || !session->persistent)
        return model->graph->edited ? save_apart(model, &(source){0}, inference, path)
                                    : inv_model_write(model, NULL, NULL, inference, path);
    INV_TRY(inv_session_whole(session)); /* which running statistics to write is no longer known */
    source from = {.session = session};
    inv_arena_init(&from.copies, session->ctx);
    inv_status s = save_trained(model, &from, inference, path);
    inv_rewriting_destroy(from.inverses);
    inv_arena_fini(&from.copies);
    return s;
}
