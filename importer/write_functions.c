/* SPDX-License-Identifier: Apache-2.0
 * The model written with its blocks as functions (core/edits/rewriting.h). Four messages of the file are not taken as
 * they are: the model, its graph, and the nodes that read or give other names than before. For each of them a list of
 * edits says, field by field, which entries stay and which are new. New entries take the places of those that go, one
 * by one, so what has not changed is where it was; more than that stand behind the last entry, or where the field's
 * number puts them. */
#include <string.h>

#include "importer/model_file.h"
#include "importer/writer.h"

enum { IR_VERSION = 8, IR_FREE_INITIALIZERS = 4, DOMAIN_VERSION = 1 };

typedef struct span {
    size_t begin, end;
} span;

typedef struct outliner {
    inv_writer w;
    const inv_outline *o;
    INV_VEC(span) source; /* the file's nodes, by inv_node.source */
    INV_VEC(span) graph;  /* one, but protobuf allows parts */
    inv_names drop, restate;
    inv_names optional;      /* inputs that are declared anew */
    inv_names gone;          /* functions of an earlier rewriting and those that were opened up, "DOMAIN::NAME" */
    bool foreign;            /* there are others in their domain */
    inv_functions functions; /* as they are written */
    struct edit *in_graph;   /* continued from part to part */
} outliner;

/* What becomes of the entries of one field of a message. */
typedef struct edit {
    uint32_t field;
    /* Whether an entry stays; may count it as a new one (e->at++). NULL: none stays. */
    inv_status (*keep)(outliner *x, struct edit *e, const inv_field *f, bool *keep);
    inv_status (*put)(outliner *x, const struct edit *e, size_t i); /* the i-th new entry */
    size_t n, at;                                                   /* new entries; those done */
    const void *opaque;
    size_t left; /* entries of the file's message that are still to come */
} edit;

/* --- editing a message --- */

static inv_status put_rest(outliner *x, edit *e)
{
    while (e->at < e->n) INV_TRY(e->put(x, e, e->at++));
    return INV_OK;
}

static inv_status edit_entry(outliner *x, const ProtobufCMessageDescriptor *d, edit *e, const inv_field *f)
{
    bool keep = false;
    if (e->keep) INV_TRY(e->keep(x, e, f, &keep));
    if (keep) INV_TRY(inv_put_field(&x->w, d, f));
    else if (e->at < e->n) INV_TRY(e->put(x, e, e->at++));
    return --e->left ? INV_OK : put_rest(x, e);
}

static inv_status count_entries(outliner *x, span m, edit *e, size_t n)
{
    inv_field f;
    for (size_t k = 0; k < n; k++) e[k].left = 0;
    for (size_t pos = m.begin; pos < m.end; pos = f.end) {
        INV_TRY(inv_writer_field(&x->w, pos, m.end, &f));
        for (size_t k = 0; k < n; k++) e[k].left += f.id == e[k].field;
    }
    return INV_OK;
}

static inv_status edit_message(outliner *x, const ProtobufCMessageDescriptor *d, span m, edit *e, size_t n)
{
    inv_field f;
    INV_TRY(count_entries(x, m, e, n));
    for (size_t pos = m.begin; pos < m.end; pos = f.end) {
        edit *own = NULL;
        INV_TRY(inv_writer_field(&x->w, pos, m.end, &f));
        for (size_t k = 0; k < n; k++) {
            if (e[k].field == f.id) own = &e[k];
            if (!e[k].left && e[k].field < f.id) INV_TRY(put_rest(x, &e[k]));
        }
        INV_TRY(own ? edit_entry(x, d, own, &f) : inv_put_field(&x->w, d, &f));
    }
    for (size_t k = 0; k < n; k++) INV_TRY(put_rest(x, &e[k]));
    return INV_OK;
}

/* --- looking into the file --- */

/* Bytes of the last entry of a field in message `in`; none if there is none. */
static inv_status text_in(const outliner *x, const inv_field *in, uint32_t id, span *out)
{
    inv_field f;
    *out = (span){0};
    for (size_t pos = in->body; pos < in->end; pos = f.end) {
        INV_TRY(inv_writer_field(&x->w, pos, in->end, &f));
        if (f.id == id && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) *out = (span){f.body, f.end};
    }
    return INV_OK;
}

static bool begins_with(const outliner *x, span s, const char *text)
{
    size_t n = strlen(text);
    return s.end - s.begin >= n && !memcmp(x->w.impl->file.base + s.begin, text, n);
}

static bool is_text(const outliner *x, span s, const char *text)
{
    return s.end - s.begin == strlen(text) && begins_with(x, s, text);
}

/* The nodes in all messages `outer` of the model: the graph's, or the functions'. */
static inv_status find_nodes(outliner *x, uint32_t outer, uint32_t inner)
{
    size_t end = x->w.impl->file.nbytes;
    inv_field f, n;
    for (size_t pos = 0; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(&x->w, pos, end, &f));
        if (f.id != outer) continue;
        if (outer == INV_PB_MODEL_GRAPH && !inv_vec_push(&x->w.l.scratch, &x->graph, ((span){f.body, f.end})))
            return INV_E_NOMEM;
        for (size_t at = f.body; at < f.end; at = n.end) {
            INV_TRY(inv_writer_field(&x->w, at, f.end, &n));
            if (n.id == inner && !inv_vec_push(&x->w.l.scratch, &x->source, ((span){n.body, n.end})))
                return INV_E_NOMEM;
        }
    }
    return INV_OK;
}

/* --- nodes --- */

static inv_status same_name(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    const char *const *name = e->opaque;
    *keep = e->at < e->n && is_text(x, (span){f->body, f->end}, name[e->at]);
    e->at += *keep;
    return INV_OK;
}

/* The name of a node stays unless another one is given. */
static inv_status same_label(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    *keep = !e->n;
    return e->n ? same_name(x, e, f, keep) : INV_OK;
}

static inv_status put_name(outliner *x, const edit *e, size_t i)
{
    const char *const *name = e->opaque;
    return inv_put_text(&x->w.model, e->field, name[i]);
}

static inv_status put_new(inv_file_pieces *p, const inv_outline_node *n)
{
    for (uint32_t i = 0; i < n->nin; i++) INV_TRY(inv_put_text(p, INV_PB_NODE_INPUT, n->in[i]));
    for (uint32_t i = 0; i < n->nout; i++) INV_TRY(inv_put_text(p, INV_PB_NODE_OUTPUT, n->out[i]));
    if (*n->name) INV_TRY(inv_put_text(p, INV_PB_NODE_NAME, n->name));
    INV_TRY(inv_put_text(p, INV_PB_NODE_OP_TYPE, n->op_type));
    for (uint32_t i = 0; i < n->nattr; i++) INV_TRY(inv_put_attr(p, INV_PB_NODE_ATTRIBUTE, &n->attr[i]));
    return *n->domain ? inv_put_text(p, INV_PB_NODE_DOMAIN, n->domain) : INV_OK;
}

/* The attribute that the form for inference gives the node. */
static inv_status other_attr(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    bool replaces = false;
    if (e->opaque) INV_TRY(inv_edit_replaces(&x->w, e->opaque, f, &replaces));
    *keep = !replaces;
    return INV_OK;
}

static inv_status put_attr(outliner *x, const edit *e, size_t i)
{
    (void)i;
    return inv_put_edit_attr(&x->w, e->opaque);
}

static inv_status put_node(outliner *x, uint32_t field, const inv_outline_node *n)
{
    inv_file_pieces *p = &x->w.model;
    const inv_edit *settled = n->source < x->source.n ? inv_edit_at(&x->w, x->source.at[n->source].begin) : NULL;
    const inv_node_edit *s = settled ? settled->node : NULL;
    const uint32_t listed = n->nin - n->ncaptured;
    edit parts[] = {
        {.field = INV_PB_NODE_INPUT,
         .keep = same_name,
         .put = put_name,
         .n = s && s->nin < listed ? s->nin : listed,
         .opaque = n->in},
        {.field = INV_PB_NODE_OUTPUT,
         .keep = same_name,
         .put = put_name,
         .n = s && s->nout < n->nout ? s->nout : n->nout,
         .opaque = n->out},
        {.field = INV_PB_NODE_ATTRIBUTE, .keep = other_attr, .put = put_attr, .n = s && s->attr, .opaque = s},
        {.field = INV_PB_NODE_NAME, .keep = same_label, .put = put_name, .n = n->renamed, .opaque = &n->name},
    };
    inv_mark m;
    if (!s || !s->gone) {
        INV_TRY(inv_put_open(p, &m));
        if (n->source == INV_NONE) INV_TRY(put_new(p, n));
        else if (n->source < x->source.n)
            INV_TRY(edit_message(x, &onnx__node_proto__descriptor, x->source.at[n->source], parts,
                                 sizeof parts / sizeof *parts));
        else return inv_fail(x->w.l.ctx, INV_E_ARG, "'%s' has no node number %u", x->w.m->path, n->source);
        INV_TRY(inv_put_close(p, &m, field));
    }
    if (!s) return INV_OK;
    const span at = x->source.at[n->source];
    return inv_put_passed(&x->w, &(inv_field){.id = field, .body = at.begin, .end = at.end}, s);
}

/* --- the graph --- */

static inv_status put_graph_node(outliner *x, const edit *e, size_t i)
{
    return put_node(x, e->field, &x->o->node.at[i]);
}

/* The bytes of message `in`, a ValueInfoProto or (within it, level 1 and 2) a type, with another shape. */
static inv_status put_other_shape(outliner *x, span in, int level, const inv_outline_port *port)
{
    static const uint32_t way[] = {INV_PB_INFO_TYPE, INV_PB_INFO_TENSOR, INV_PB_INFO_SHAPE};
    inv_file_pieces *p = &x->w.model;
    bool done = false;
    inv_field f;
    inv_mark m;
    for (size_t pos = in.begin; pos < in.end; pos = f.end) {
        INV_TRY(inv_writer_field(&x->w, pos, in.end, &f));
        if (f.id != way[level]) {
            INV_TRY(inv_put(p, x->w.impl->file.base + f.at, f.end - f.at));
            continue;
        }
        if (level == 2) {
            if (!done) INV_TRY(inv_put_shape(p, f.id, &port->shape, port->symbols));
        } else {
            INV_TRY(inv_put_open(p, &m));
            INV_TRY(put_other_shape(x, (span){f.body, f.end}, level + 1, port));
            INV_TRY(inv_put_close(p, &m, f.id));
        }
        done = true;
    }
    return INV_OK;
}

static inv_status put_restated(outliner *x, uint32_t field, span in, uint32_t at)
{
    inv_mark m;
    INV_TRY(inv_put_open(&x->w.model, &m));
    INV_TRY(put_other_shape(x, in, 0, &x->o->restate.at[at]));
    return inv_put_close(&x->w.model, &m, field);
}

/* Initializers, inputs, outputs, value infos: unless they are to be left out. Those whose shape is another one are put
 * here. */
static inv_status keep_named(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    const bool initializer = e->field == INV_PB_GRAPH_INITIALIZER;
    const char *name;
    span s;
    *keep = true;
    if (!x->drop.n && !x->restate.n) return INV_OK;
    INV_TRY(text_in(x, f, initializer ? INV_PB_TENSOR_NAME : 1, &s));
    name = inv_arena_strndup(&x->w.l.scratch, (const char *)x->w.impl->file.base + s.begin, s.end - s.begin);
    if (!name) return INV_E_NOMEM;
    const uint32_t at = inv_names_get(&x->restate, name);
    *keep = inv_names_get(&x->drop, name) == INV_NONE && at == INV_NONE;
    return at == INV_NONE || initializer ? INV_OK : put_restated(x, e->field, (span){f->body, f->end}, at);
}

static inv_status put_initializer(outliner *x, const edit *e, size_t i)
{
    const inv_outline_tensor *t = &x->o->tensor.at[i];
    return inv_put_initializer(&x->w, e->field, t->name, &t->data, t->maker.make ? &t->maker : NULL);
}

/* --- ports: inputs and outputs that are declared anew, by what the file says of the value --- */

/* Of inputs, those that stand for initializers. */
static inv_status keep_port(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    span s;
    *keep = false;
    if (e->field != INV_PB_GRAPH_INPUT) return INV_OK;
    INV_TRY(text_in(x, f, 1, &s));
    const char *at = (const char *)x->w.impl->file.base + s.begin;
    const char *name = inv_arena_strndup(&x->w.l.scratch, at, s.end - s.begin);
    if (!name) return INV_E_NOMEM;
    if (inv_names_get(&x->w.inits, name) == INV_NONE) return INV_OK;
    return inv_names_get(&x->optional, name) == INV_NONE ? keep_named(x, e, f, keep) : INV_OK;
}

/* The newest declaration of an input or output of the file's graph by that name. */
static inv_status find_declaration(const outliner *x, const char *name, span *out)
{
    inv_field f;
    span s;
    *out = (span){0};
    for (size_t i = 0; i < x->graph.n; i++)
        for (size_t pos = x->graph.at[i].begin; pos < x->graph.at[i].end; pos = f.end) {
            INV_TRY(inv_writer_field(&x->w, pos, x->graph.at[i].end, &f));
            if (f.id != INV_PB_GRAPH_INPUT && f.id != INV_PB_GRAPH_OUTPUT) continue;
            INV_TRY(text_in(x, &f, 1, &s));
            if (is_text(x, s, name)) *out = (span){f.body, f.end};
        }
    return out->end ? INV_OK : inv_fail(x->w.l.ctx, INV_E_ARG, "'%s' has no input or output '%s'", x->w.m->path, name);
}

static inv_status put_port(outliner *x, const edit *e, size_t i)
{
    const inv_outline_port *port = e->field == INV_PB_GRAPH_INPUT ? &x->o->in.at[i] : &x->o->out.at[i];
    inv_file_pieces *p = &x->w.model;
    span s;
    if (port->dtype != INV_DT_NONE)
        return inv_put_declaration(p, e->field, port->name, port->dtype, &port->shape, port->symbols);
    INV_TRY(find_declaration(x, port->name, &s));
    const uint32_t at = inv_names_get(&x->restate, port->name);
    if (at != INV_NONE) return put_restated(x, e->field, s, at);
    INV_TRY(inv_put_header(p, e->field, s.end - s.begin));
    return inv_put(p, x->w.impl->file.base + s.begin, s.end - s.begin);
}

enum { GRAPH_EDITS = 5 };

static inv_status put_graph(outliner *x, const edit *e, size_t i)
{
    inv_mark m;
    INV_TRY(inv_put_open(&x->w.model, &m));
    INV_TRY(edit_message(x, &onnx__graph_proto__descriptor, x->graph.at[i], x->in_graph, GRAPH_EDITS));
    return inv_put_close(&x->w.model, &m, e->field);
}

/* --- functions --- */

/* A function has the imports of the model, and may call other functions. */
static inv_status put_opsets(outliner *x)
{
    const inv_graph *g = x->w.m->graph;
    inv_file_pieces *p = &x->w.model;
    for (size_t i = 0; i < g->opset.n; i++)
        INV_TRY(inv_put_opset(p, INV_PB_FUNCTION_OPSET_IMPORT, g->opset.at[i].domain, g->opset.at[i].version));
    for (size_t i = 0; i < x->o->opset.n; i++)
        INV_TRY(inv_put_opset(p, INV_PB_FUNCTION_OPSET_IMPORT, x->o->opset.at[i].domain, x->o->opset.at[i].version));
    if (inv_graph_opset(g, INV_OUTLINE_DOMAIN)) return INV_OK;
    return inv_put_opset(p, INV_PB_FUNCTION_OPSET_IMPORT, INV_OUTLINE_DOMAIN, DOMAIN_VERSION);
}

static inv_status put_function(outliner *x, uint32_t field, const inv_outline_function *f)
{
    inv_file_pieces *p = &x->w.model;
    inv_mark m;
    INV_TRY(inv_put_open(p, &m));
    INV_TRY(inv_put_text(p, INV_PB_FUNCTION_NAME, f->name));
    for (uint32_t k = 0; k < f->nin; k++) INV_TRY(inv_put_text(p, INV_PB_FUNCTION_INPUT, f->in[k]));
    for (uint32_t k = 0; k < f->nout; k++) INV_TRY(inv_put_text(p, INV_PB_FUNCTION_OUTPUT, f->out[k]));
    for (size_t k = 0; k < f->node.n; k++) INV_TRY(put_node(x, INV_PB_FUNCTION_NODE, &f->node.at[k]));
    if (f->doc && *f->doc) INV_TRY(inv_put_text(p, INV_PB_FUNCTION_DOC, f->doc));
    INV_TRY(put_opsets(x));
    INV_TRY(inv_put_text(p, INV_PB_FUNCTION_DOMAIN, INV_OUTLINE_DOMAIN));
    return inv_put_close(p, &m, field);
}

/* Those of the file that stay, and new ones, in the order that calls ask for. */
static inv_status list_functions(outliner *x)
{
    inv_functions *list = &x->functions;
    const inv_outline *o = x->o;
    INV_TRY(inv_functions_begin(list, &x->w, &x->gone));
    for (size_t i = 0; i < o->function.n; i++)
        INV_TRY(inv_functions_add(list, INV_OUTLINE_DOMAIN, o->function.at[i].name));
    for (size_t i = 0; i < o->function.n; i++)
        for (size_t k = 0; k < o->function.at[i].node.n; k++) {
            const inv_outline_node *n = &o->function.at[i].node.at[k];
            const uint32_t from = (uint32_t)(list->of_file.n + i);
            if (n->source == INV_NONE) INV_TRY(inv_functions_call(list, from, n->domain, n->op_type));
            else if (n->source < x->source.n)
                INV_TRY(inv_functions_call_in(list, from, x->source.at[n->source].begin, x->source.at[n->source].end));
        }
    return inv_functions_sort(list);
}

static inv_status put_listed(outliner *x, const edit *e, size_t i)
{
    const inv_functions *list = &x->functions;
    const size_t k = list->order[i], n = list->of_file.n;
    if (k < n) return inv_put_field(&x->w, &onnx__model_proto__descriptor, &list->of_file.at[k]);
    return put_function(x, e->field, &x->o->function.at[k - n]);
}

/* --- the model --- */

static inv_status keep_version(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    (void)x;
    (void)f;
    *keep = !e->n;
    return INV_OK;
}

static inv_status put_version(outliner *x, const edit *e, size_t i)
{
    (void)i;
    return inv_put_int(&x->w.model, e->field, x->o->function.n ? IR_VERSION : IR_FREE_INITIALIZERS);
}

static inv_status keep_import(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    (void)e;
    span s;
    INV_TRY(text_in(x, f, 1, &s));
    *keep = !x->o->rewritten || x->o->function.n || x->foreign || !is_text(x, s, INV_OUTLINE_DOMAIN);
    return INV_OK;
}

static inv_status put_import(outliner *x, const edit *e, size_t i)
{
    const inv_outline *o = x->o;
    if (i < o->opset.n) return inv_put_opset(&x->w.model, e->field, o->opset.at[i].domain, o->opset.at[i].version);
    return inv_put_opset(&x->w.model, e->field, INV_OUTLINE_DOMAIN, DOMAIN_VERSION);
}

static inv_status keep_fact(outliner *x, edit *e, const inv_field *f, bool *keep)
{
    (void)e;
    span s;
    INV_TRY(text_in(x, f, 1, &s));
    *keep = !x->o->rewritten ||
            !(begins_with(x, s, INV_OUTLINE_DOMAIN ".fn.") || begins_with(x, s, INV_OUTLINE_DOMAIN ".inv.") ||
              is_text(x, s, INV_OUTLINE_DOMAIN ".version"));
    bool stays;
    INV_TRY(inv_entry_stays(&x->w, f, &stays));
    *keep = *keep && stays;
    return INV_OK;
}

static inv_status put_fact(outliner *x, const edit *e, size_t i)
{
    return inv_put_pair(&x->w.model, e->field, x->o->fact.at[i].key, x->o->fact.at[i].value);
}

static inv_status build(outliner *x)
{
    const inv_outline *o = x->o;
    bool functions = o->function.n, taken;
    for (size_t i = 0; i < o->drop.n; i++) INV_TRY(inv_names_put(&x->drop, o->drop.at[i], 0, &taken));
    for (size_t i = 0; i < o->restate.n; i++)
        INV_TRY(inv_names_put(&x->restate, o->restate.at[i].name, (uint32_t)i, &taken));
    for (size_t i = 0; i < o->in.n; i++)
        if (o->in.at[i].dtype != INV_DT_NONE) INV_TRY(inv_names_put(&x->optional, o->in.at[i].name, 0, &taken));
    INV_TRY(find_nodes(x, INV_PB_MODEL_GRAPH, INV_PB_GRAPH_NODE));
    INV_TRY(find_nodes(x, INV_PB_MODEL_FUNCTION, INV_PB_FUNCTION_NODE));
    INV_TRY(list_functions(x));
    edit in_graph[GRAPH_EDITS] = {
        {.field = INV_PB_GRAPH_NODE, .put = put_graph_node, .n = o->node.n},
        {.field = INV_PB_GRAPH_INITIALIZER, .keep = keep_named, .put = put_initializer, .n = o->tensor.n},
        {.field = INV_PB_GRAPH_INPUT, .keep = o->ports ? keep_port : keep_named, .put = put_port, .n = o->in.n},
        {.field = INV_PB_GRAPH_OUTPUT, .keep = o->ports ? keep_port : keep_named, .put = put_port, .n = o->out.n},
        {.field = INV_PB_GRAPH_VALUE_INFO, .keep = keep_named},
    };
    int64_t needs = functions ? IR_VERSION : o->tensor.n ? IR_FREE_INITIALIZERS : 0;
    bool old = x->w.impl->ir_version < needs, imported = inv_graph_opset(x->w.m->graph, INV_OUTLINE_DOMAIN) != 0;
    edit in_model[] = {
        {.field = INV_PB_MODEL_IR_VERSION, .keep = keep_version, .put = put_version, .n = old},
        {.field = INV_PB_MODEL_GRAPH, .put = put_graph, .n = x->graph.n},
        {.field = INV_PB_MODEL_OPSET_IMPORT,
         .keep = keep_import,
         .put = put_import,
         .n = o->opset.n + (functions && !imported)},
        {.field = INV_PB_MODEL_METADATA, .keep = keep_fact, .put = put_fact, .n = o->fact.n},
        {.field = INV_PB_MODEL_FUNCTION, .put = put_listed, .n = x->functions.n},
    };
    x->in_graph = in_graph;
    span all = {0, x->w.impl->file.nbytes};
    INV_TRY(edit_message(x, &onnx__model_proto__descriptor, all, in_model, sizeof in_model / sizeof *in_model));
    return inv_put_entries(&x->w);
}

static inv_status find_gone(outliner *x)
{
    const inv_graph *g = x->w.m->graph;
    bool taken;
    for (size_t i = 0; i < g->function.n; i++) {
        const inv_function *f = &g->function.at[i];
        const char *full = inv_arena_printf(&x->w.l.scratch, "%s::%s", f->domain, f->name);
        if (!full) return INV_E_NOMEM;
        if (!f->block) x->foreign = x->foreign || strcmp(f->domain, INV_OUTLINE_DOMAIN) == 0;
        else if (x->o->rewritten) INV_TRY(inv_names_put(&x->gone, full, 0, &taken));
    }
    for (size_t i = 0; i < x->o->opened.n; i++) INV_TRY(inv_names_put(&x->gone, x->o->opened.at[i], 0, &taken));
    return INV_OK;
}

inv_status inv_outline_write(inv_model *model, const inv_outline *o, const char *path)
{
    outliner x = {.o = o};
    inv_status s = inv_writer_begin(&x.w, model, path);
    x.drop.a = x.restate.a = x.optional.a = x.gone.a = &x.w.l.scratch;
    if (s == INV_OK && o->inference) s = inv_writer_settle(&x.w);
    if (s == INV_OK) s = find_gone(&x);
    if (s == INV_OK) s = inv_writer_ask(&x.w, o->source, o->opaque);
    if (s == INV_OK) s = build(&x);
    if (s == INV_OK) s = inv_writer_publish(&x.w);
    inv_writer_end(&x.w);
    return s;
}
