/* SPDX-License-Identifier: Apache-2.0
 * A whole model turned round: from its outputs, values are derived (derive.c) until its inputs are known. What comes
 * out is a graph of the file's nodes and of ONNX nodes that solve them, either to be written as a file or to be
 * compiled and trained like any other.
 *
 *     model    x -> [coupling] -> [1x1 convolution] -> z, logdet
 *     inverse  z -> [solved]   -> [solved]          -> x            (and log |det dx/dz|, logdet.c)
 *
 * It is the inverse of the model in evaluation: running statistics, no dropout. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "passes/export/outline.h"
#include "passes/export/raise.h"
#include "passes/export/reverse_model.h"

/* --- which values it is about --- */

static inv_id find_among(const inv_graph *g, const inv_ids *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(inv_val(g, list->at[i])->name, name) == 0) return list->at[i];
    return INV_NONE;
}

static inv_status list_names(const inv_graph *g, const inv_ids *list, inv_str *text)
{
    for (size_t i = 0; i < list->n; i++) inv_str_add(text, "%s'%s'", i ? ", " : "", inv_val(g, list->at[i])->name);
    return text->failed ? INV_E_NOMEM : INV_OK;
}

static inv_status no_such(const inv_outliner *o, const inv_ids *list, const char *what, const char *name)
{
    inv_str text;
    inv_str_init(&text, o->ctx);
    inv_status s = list_names(o->flat, list, &text);
    if (s == INV_OK) s = inv_fail(o->ctx, INV_E_ARG, "the model has no %s '%s'; it has %s", what, name, text.s);
    inv_str_fini(&text);
    return s;
}

static inv_status find_wanted_inputs(inv_reversal *x)
{
    inv_outliner *o = x->o;
    const inv_reverse_options *r = o->reverse;
    for (size_t i = 0; i < r->ngiven; i++) {
        inv_id v = find_among(o->flat, &o->flat->inputs, r->given[i]);
        if (v == INV_NONE) return no_such(o, &o->flat->inputs, "input", r->given[i]);
        if (!inv_ids_have(x->given.at, x->given.n, v) && !inv_vec_push(&o->scratch, &x->given, v)) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < o->flat->inputs.n; i++) {
        inv_id v = o->flat->inputs.at[i];
        if (!inv_ids_have(x->given.at, x->given.n, v) && !inv_vec_push(&o->scratch, &x->wanted, v)) return INV_E_NOMEM;
    }
    INV_CHECK(x->wanted.n, o->ctx, INV_E_ARG, "all inputs of the model are given: there is none to derive");
    return INV_OK;
}

/* A number per row, as log-determinants are. */
static bool is_per_sample(const inv_reversal *x, inv_id v)
{
    const inv_graph *g = x->o->g;
    inv_id like = inv_graph_stands(g, x->wanted.at[0]);
    const inv_shape *s = &inv_val(g, inv_graph_stands(g, v))->shape, *rows = &inv_val(g, like)->shape;
    return s->rank == 1 && rows->rank > 1 && s->dim[0] == rows->dim[0];
}

/* Outputs to start from, and those of which it is only seen later whether they are needed. */
static inv_status find_known_outputs(inv_reversal *x)
{
    inv_outliner *o = x->o;
    const char *logdet = o->reverse->logdet;
    if (logdet && (x->logdet = find_among(o->flat, &o->flat->outputs, logdet)) == INV_NONE)
        return no_such(o, &o->flat->outputs, "output", logdet);
    for (size_t i = 0; i < o->flat->outputs.n; i++) {
        inv_id v = o->flat->outputs.at[i], is = inv_graph_stands(o->g, v);
        if (v == x->logdet || !inv_dtype_is_float(inv_val(o->g, is)->dtype)) continue;
        if (!inv_vec_push(&o->scratch, is_per_sample(x, v) ? &x->aside : &x->known, v)) return INV_E_NOMEM;
    }
    if (x->known.n == 0) {
        x->known = x->aside;
        x->aside = (inv_ids){0};
    }
    if (x->known.n) return INV_OK;
    return inv_fail(o->ctx, INV_E_NOT_INVERTIBLE, "the model has no floating-point output to start from%s%s%s",
                    logdet ? " besides the log-determinants '" : "", logdet ? logdet : "", logdet ? "'" : "");
}

/* --- deriving --- */

static inv_status know_names(inv_reversal *x, const inv_ids *values)
{
    for (size_t i = 0; i < values->n; i++) {
        const char *name = inv_val(x->o->flat, values->at[i])->name;
        if (!inv_derive_name(&x->d, values->at[i])) INV_TRY(inv_derive_know(&x->d, values->at[i], name));
    }
    return INV_OK;
}

bool inv_reversal_done(const inv_reversal *x)
{
    for (size_t i = 0; i < x->wanted.n; i++)
        if (!inv_derive_name(&x->d, x->wanted.at[i])) return false;
    return true;
}

static inv_status take_all(inv_reversal *x)
{
    inv_outliner *o = x->o;
    x->cut = (inv_cut){.nitem = (uint32_t)o->flat->order.n, .in = x->wanted, .out = x->known};
    x->cut.item = INV_ARENA_NEW(&o->scratch, uint32_t, x->cut.nitem + 1);
    if (!x->cut.item) return INV_E_NOMEM;
    for (uint32_t i = 0; i < x->cut.nitem; i++) x->cut.item[i] = i;
    return INV_OK;
}

inv_status inv_reversal_attempt(inv_reversal *x, bool *ok)
{
    if (x->d.o) inv_derive_end(&x->d);
    x->o->solver.n = 0;
    x->d = (inv_derivation){.o = x->o, .cut = &x->cut};
    inv_derive_begin(&x->d);
    INV_TRY(know_names(x, &x->o->flat->inits));
    INV_TRY(know_names(x, &x->given));
    INV_TRY(know_names(x, &x->known));
    INV_TRY(inv_derive_close(&x->d, ok));
    *ok = *ok && inv_reversal_done(x);
    return INV_OK;
}

/* --- the graph --- */

inv_id inv_reverse_value(inv_graph *h, const char *name)
{
    if (!*name) return INV_NONE;
    inv_id v = inv_graph_find(h, name);
    return v != INV_NONE ? v : inv_graph_value(h, name, INV_ROLE_NODE, INV_DT_NONE, NULL);
}

bool inv_reverse_own_tensors(inv_graph *h, inv_node *n)
{
    for (uint32_t i = 0; i < n->nattr; i++) {
        inv_data *t = &n->attr[i].tensor;
        if (n->attr[i].kind != INV_ATTR_TENSOR) continue;
        void *copy = inv_arena_alloc(&h->arena, t->nbytes + 1);
        if (!copy) return false;
        memcpy(copy, t->bytes, t->nbytes);
        t->bytes = copy;
    }
    return true;
}

static inv_status add_body_node(inv_reversal *x, const inv_outline_node *n)
{
    inv_graph *h = x->h;
    inv_id *in = INV_ARENA_NEW(&x->o->scratch, inv_id, n->nin + 1);
    inv_id *out = INV_ARENA_NEW(&x->o->scratch, inv_id, n->nout + 1);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nin; k++) in[k] = inv_reverse_value(h, n->in[k]);
    for (uint32_t k = 0; k < n->nout; k++) out[k] = inv_reverse_value(h, n->out[k]);
    const inv_node *like = n->source == INV_NONE ? NULL : inv_item(x->o, n->source);
    inv_id id = like ? inv_graph_node(h, like->domain, like->op_type, like->name, n->nin, in, n->nout, out, like->nattr,
                                      like->attr)
                     : inv_graph_node(h, n->domain, n->op_type, n->name, n->nin, in, n->nout, out, n->nattr, n->attr);
    if (id == INV_NONE) return h->failed ? h->failed : INV_E_NOMEM;
    inv_nod(h, id)->source = n->source;
    if (!like && !inv_reverse_own_tensors(h, inv_nod(h, id))) return INV_E_NOMEM;
    return inv_vec_push(&h->arena, &h->order, id) ? INV_OK : INV_E_NOMEM;
}

/* Before nodes are put in: the values of the file, those that are known as inputs. */
static inv_status begin_graph(inv_reversal *x)
{
    INV_TRY(inv_graph_copy(x->o->flat, &x->h));
    inv_graph *h = x->h;
    h->order.n = h->inputs.n = h->outputs.n = 0;
    for (size_t v = 0; v < h->value.n; v++) {
        inv_value *val = inv_val(h, (inv_id)v);
        val->def = INV_NONE;
        val->is_output = false;
        if (val->role == INV_ROLE_INPUT && !inv_ids_have(x->given.at, x->given.n, (inv_id)v)) val->role = INV_ROLE_NODE;
    }
    for (size_t i = 0; i < x->known.n; i++) {
        inv_value *val = inv_val(h, x->known.at[i]);
        const inv_value *is = inv_val(x->o->g, inv_graph_stands(x->o->g, x->known.at[i]));
        if (val->role == INV_ROLE_PARAM) continue;
        val->role = INV_ROLE_INPUT;
        val->mem = INV_MEM_DATA;
        const inv_dtype type = inv_outline_type(x->o, x->known.at[i]);
        if (val->dtype == INV_DT_NONE && !inv_dtype_is_float(is->dtype)) val->dtype = is->dtype;
        if (val->dtype == INV_DT_NONE) val->dtype = type ? type : inv_outline_work(x->o);
    }
    return INV_OK;
}

/* Names of the model's inputs for what was derived; `logdet` is an output besides. */
static inv_status end_graph(inv_reversal *x)
{
    inv_graph *h = x->h;
    for (size_t i = 0; i < x->wanted.n; i++) {
        inv_id v = inv_graph_find(h, inv_val(x->o->flat, x->wanted.at[i])->name);
        inv_val(h, v)->is_output = true;
        if (!inv_vec_push(&h->arena, &h->outputs, v)) return INV_E_NOMEM;
    }
    if (!x->logdet_name) return INV_OK;
    inv_id logdet = inv_graph_find(h, x->logdet_name);
    inv_val(h, logdet)->is_output = true;
    return inv_vec_push(&h->arena, &h->outputs, logdet) ? INV_OK : INV_E_NOMEM;
}

static inv_status build_graph(inv_reversal *x)
{
    inv_graph_destroy(x->h);
    x->h = NULL;
    INV_TRY(begin_graph(x));
    for (size_t i = 0; i < x->d.node.n; i++) INV_TRY(add_body_node(x, &x->d.node.at[i]));
    return end_graph(x);
}

/* Drops what its outputs do not come from. */
static inv_status prune_reversal(inv_reversal *x)
{
    inv_graph *h = x->h;
    bool *read = INV_ARENA_NEW(&x->o->scratch, bool, h->value.n + 1);
    if (!read) return INV_E_NOMEM;
    INV_TRY(inv_graph_prune(h));
    for (size_t i = 0; i < h->order.n; i++)
        for (uint32_t k = 0; k < inv_nod(h, h->order.at[i])->nin; k++)
            if (inv_nod(h, h->order.at[i])->in[k] != INV_NONE) read[inv_nod(h, h->order.at[i])->in[k]] = true;
    for (size_t i = 0; i < h->outputs.n; i++) read[h->outputs.at[i]] = true;
    for (size_t i = 0; i < x->known.n; i++)
        if (read[x->known.at[i]] && inv_val(h, x->known.at[i])->role == INV_ROLE_INPUT &&
            !inv_vec_push(&h->arena, &h->inputs, x->known.at[i]))
            return INV_E_NOMEM;
    for (size_t i = 0; i < x->given.n; i++)
        if (!inv_vec_push(&h->arena, &h->inputs, x->given.at[i])) return INV_E_NOMEM;
    x->read = read;
    return INV_OK;
}

/* --- as a file --- */

static const char *const *value_names(inv_arena *a, const inv_graph *h, const inv_id *v, uint32_t n)
{
    const char **name = INV_ARENA_NEW(a, const char *, n + 1);
    for (uint32_t i = 0; name && i < n; i++) {
        name[i] = v[i] == INV_NONE ? "" : inv_arena_strdup(a, inv_val(h, v[i])->name);
        if (!name[i]) return NULL;
    }
    return name;
}

static inv_status write_nodes(inv_reversal *x)
{
    inv_outliner *o = x->o;
    const inv_graph *h = x->h;
    INV_TRY(inv_outline_weights(o, h, x->read));
    for (size_t i = 0; i < h->order.n; i++) {
        const inv_node *n = inv_nod(h, h->order.at[i]);
        inv_outline_node w = {.source = n->source,
                              .domain = inv_arena_strdup(o->a, n->domain),
                              .op_type = inv_arena_strdup(o->a, n->op_type),
                              .name = inv_arena_strdup(o->a, n->name),
                              .nin = n->nin,
                              .nout = n->nout,
                              .ncaptured = n->nin - inv_node_listed(n),
                              .nattr = n->nattr};
        w.in = value_names(o->a, h, n->in, n->nin);
        w.out = value_names(o->a, h, n->out, n->nout);
        /* converters call what they put in by the nodes beside it */
        if (n->source == INV_NONE && w.out && n->nout) w.name = inv_arena_printf(o->a, "inverse/%s", w.out[0]);
        w.attr = n->attr; /* of h, which is kept until it is written */
        inv_outline_settle(o, &w);
        if (!w.domain || !w.op_type || !w.name || !w.in || !w.out || !inv_vec_push(o->a, &o->out->node, w))
            return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Initializers that nothing reads, and declarations of values that are no longer there. */
static inv_status drop_unread(inv_reversal *x)
{
    inv_outliner *o = x->o;
    o->out->drop.n = 0;
    for (size_t v = 0; v < o->flat->value.n; v++) {
        const inv_value *val = inv_val(x->h, (inv_id)v);
        const char *name = inv_val(o->flat, (inv_id)v)->name;
        bool gone = val->role != INV_ROLE_NODE || val->def == INV_NONE;
        /* the inverse that an earlier rewriting put there gives way to the one of the same name */
        if (val->role == INV_ROLE_PARAM) gone = !x->read[v] || val->inverse_of;
        if (gone && *name && !inv_vec_push(o->a, &o->out->drop, name)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status write_ports(inv_reversal *x)
{
    inv_outliner *o = x->o;
    const inv_graph *h = x->h;
    o->out->ports = true;
    for (size_t i = 0; i < h->inputs.n; i++) {
        inv_outline_port p = {.name = inv_val(o->flat, h->inputs.at[i])->name};
        if (!inv_vec_push(o->a, &o->out->in, p)) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < x->wanted.n; i++) {
        inv_outline_port p = {.name = inv_val(o->flat, x->wanted.at[i])->name};
        if (!inv_vec_push(o->a, &o->out->out, p)) return INV_E_NOMEM;
    }
    if (!x->logdet_name) return INV_OK;
    const inv_value *first = inv_val(o->flat, x->wanted.at[0]);
    const int64_t batch = first->shape.rank > 0 ? first->shape.dim[0] : -1;
    const inv_outline_port p = {x->logdet_name, inv_outline_work(o), inv_shape_of(1, &batch),
                                first->shape.rank > 0 ? first->dim_param : NULL};
    return inv_vec_push(o->a, &o->out->out, p) ? INV_OK : INV_E_NOMEM;
}

/* --- the whole --- */

static inv_status note_training(inv_reversal *x)
{
    const inv_outliner *o = x->o;
    const char **note = INV_ARENA_NEW(o->a, const char *, 1);
    for (uint32_t i = 0; note && i < o->flat->order.n; i++) {
        const inv_node *n = inv_item(o, i);
        if (strcmp(n->op_type, "BatchNormalization") != 0) continue;
        if (n->nout <= 1 && !inv_attr_int(n, "training_mode", 0)) continue;
        note[0] = "batch normalization in training mode is inverted by its running statistics, as in evaluation";
        x->out->notes = note;
        x->out->nnotes = 1;
        return INV_OK;
    }
    return note ? INV_OK : INV_E_NOMEM;
}

/* Of the outputs to start from, the one that is computed first of those not tried yet: its place, or their number. */
static size_t earliest(const inv_reversal *x, const inv_ids *tried)
{
    size_t best = x->known.n;
    for (size_t i = 0; i < x->known.n; i++) {
        inv_id v = x->known.at[i];
        if (inv_ids_have(tried->at, tried->n, v)) continue;
        if (best == x->known.n || inv_item_giving(x->o, v) + 1 < inv_item_giving(x->o, x->known.at[best]) + 1) best = i;
    }
    return best;
}

/* Outputs that the others determine are not needed: values on the way that are outputs, too. */
static inv_status spare(inv_reversal *x)
{
    inv_ids tried = {0};
    bool ok = true;
    for (size_t i; x->known.n > 1 && (i = earliest(x, &tried)) < x->known.n;) {
        inv_id v = x->known.at[i];
        if (!inv_vec_push(&x->o->scratch, &tried, v)) return INV_E_NOMEM;
        memmove(&x->known.at[i], &x->known.at[i + 1], (--x->known.n - i) * sizeof v);
        INV_TRY(inv_reversal_attempt(x, &ok));
        if (ok) continue;
        memmove(&x->known.at[i + 1], &x->known.at[i], (x->known.n++ - i) * sizeof v);
        x->known.at[i] = v;
    }
    return ok ? INV_OK : inv_reversal_attempt(x, &ok);
}

static inv_status derive_inputs(inv_reversal *x)
{
    bool ok;
    INV_TRY(take_all(x));
    INV_TRY(inv_reversal_attempt(x, &ok));
    if (!ok && x->aside.n && !x->d.r.reason) {
        const size_t first = x->known.n;
        for (size_t i = 0; i < x->aside.n; i++)
            if (!inv_vec_push(&x->o->scratch, &x->known, x->aside.at[i])) return INV_E_NOMEM;
        INV_TRY(inv_reversal_attempt(x, &ok));
        if (!ok) { /* what these stop at besides is no reason */
            x->known.n = first;
            INV_TRY(inv_reversal_attempt(x, &ok));
        }
    }
    return ok ? spare(x) : inv_reversal_refuse(x);
}

/* A rule of a plugin states a log-determinant, which is then checked where there are data. */
static void note_stranger(inv_reversal *x, const inv_edge *e)
{
    if (!e->plugin || !e->volume || !e->volume->nterm || x->out->stranger) return;
    x->out->stranger = inv_arena_strdup(&x->out->a, e->rule->name);
    x->out->stranger_plugin = inv_arena_strdup(&x->out->a, e->plugin);
}

static inv_status note_derived(inv_reversal *x)
{
    const char **name = INV_ARENA_NEW(&x->out->a, const char *, x->wanted.n + 1);
    for (size_t i = 0; name && i < x->wanted.n; i++)
        if (!(name[i] = inv_arena_strdup(&x->out->a, inv_val(x->o->flat, x->wanted.at[i])->name))) return INV_E_NOMEM;
    x->out->derived = name;
    x->out->nderived = x->wanted.n;
    return name ? INV_OK : INV_E_NOMEM;
}

static inv_status finish_reversal(inv_reversal *x)
{
    x->out->gain = 1;
    INV_TRY(note_derived(x));
    for (size_t i = 0; i < x->wanted.n; i++) INV_TRY(inv_derive_output(&x->d, x->wanted.at[i]));
    INV_TRY(build_graph(x));
    INV_TRY(prune_reversal(x));
    if (x->o->reverse->with_logdet) {
        INV_TRY(inv_reversal_logdet(x));
        INV_TRY(build_graph(x));
        INV_TRY(prune_reversal(x));
    }
    for (size_t i = 0; i < x->d.used.n; i++) {
        if (!inv_reversal_needs(x, &x->d.used.at[i])) continue;
        x->out->ninverse++;
        note_stranger(x, x->d.used.at[i].edge);
        x->out->gain *= fmax(1, x->d.used.at[i].edge->bound);
    }
    INV_TRY(note_training(x));
    if (!x->o->by_operator) {
        INV_TRY(write_nodes(x));
        INV_TRY(drop_unread(x));
        INV_TRY(write_ports(x));
    }
    return INV_OK;
}

bool inv_reversal_needs(const inv_reversal *x, const inv_derived *u)
{
    for (size_t i = u->first; i < u->end; i++) {
        const inv_outline_node *n = &x->d.node.at[i];
        for (uint32_t k = 0; k < n->nout; k++) {
            inv_id v = *n->out[k] ? inv_graph_find(x->h, n->out[k]) : INV_NONE;
            if (v != INV_NONE && x->read[v]) return true;
        }
    }
    return false;
}

static inv_status reverse_graph(inv_outliner *o, const inv_graph *source, const inv_session_options *shapes,
                                inv_rewriting *out)
{
    inv_reversal x = {.o = o, .out = out, .logdet = INV_NONE};
    o->out->rewritten = true;
    INV_TRY(inv_outline_open(o, source, shapes, INV_FOR_EVAL));
    INV_TRY(inv_outline_tables(o));
    INV_TRY(find_wanted_inputs(&x));
    INV_TRY(find_known_outputs(&x));
    inv_status s = derive_inputs(&x);
    if (s == INV_OK) s = finish_reversal(&x);
    inv_derive_end(&x.d);
    out->reversed = x.h;
    return s;
}

inv_status inv_reverse_as_given(inv_context *ctx, const inv_graph *source, const inv_session_options *shapes,
                                const inv_reverse_options *options, bool in_memory, inv_rewriting **out)
{
    inv_reverse_options all = {0};
    if (options) memcpy(&all, options, options->size < sizeof all ? options->size : sizeof all);
    const inv_outliner flags = {.ctx = ctx, .reverse = &all, .by_operator = in_memory};
    return inv_outline_make(&flags, source, shapes, reverse_graph, out);
}
