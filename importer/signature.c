/* SPDX-License-Identifier: Apache-2.0
 * What a file says of its initializers. PyTorch's newer exporter writes into the graph's metadata which inputs of the
 * exported program were parameters, buffers and constants, into that of each of them (of the value of its name, or of
 * the tensor) which it is, and of what its optimizer has computed the others. Read from the file, because older schemas
 * do not know the fields.
 * gives: inv_value.said, inv_graph.says, from_torch and exported, but for what modules.c adds to that. */
#include <string.h>

#include "core/weights/module_names.h"
#include "core/weights/trained.h"
#include "importer/importer.h"

enum { GRAPH_METADATA = 16, TENSOR_METADATA = 16, VALUE_METADATA = 4, VALUE_NAME = 1 };

inv_byte_span inv_entry(const inv_impl *impl, const inv_field *in, uint32_t id, const char *key)
{
    const uint8_t *base = impl->file.base;
    inv_field f, e;
    for (size_t pos = in->body; pos < in->end && !inv_wire_field(base, pos, in->end, &f); pos = f.end) {
        inv_byte_span k = {0}, v = {0};
        if (f.id != id || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        for (size_t at = f.body; at < f.end && !inv_wire_field(base, at, f.end, &e); at = e.end) {
            if (e.id == INV_PB_ENTRY_KEY) k = (inv_byte_span){(const char *)base + e.body, e.end - e.body};
            if (e.id == INV_PB_ENTRY_VALUE) v = (inv_byte_span){(const char *)base + e.body, e.end - e.body};
        }
        if (k.n == strlen(key) && !memcmp(k.text, key, k.n)) return v;
    }
    return (inv_byte_span){0};
}

const char *inv_span_find(inv_byte_span s, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= s.n; i++)
        if (!memcmp(s.text + i, what, n)) return s.text + i;
    return NULL;
}

typedef struct reader {
    inv_loader *l;
    inv_graph *g;
    inv_names param;            /* names of the program's parameters */
    INV_VEC(const char *) name; /* in order */
    uint8_t *kept;              /* per parameter: inv_kept */
    uint32_t *of;               /* per initializer: the parameter that it is, or was computed from first; INV_NONE */
} reader;

/* The next of the names in quotes, of which there are `left` bytes; NULL: no more, or no memory. */
static const char *next_name(reader *r, inv_byte_span *left)
{
    const char *p = left->n ? memchr(left->text, '\'', left->n) : NULL;
    if (!p) return NULL;
    const char *last = left->text + left->n, *end = memchr(p + 1, '\'', (size_t)(last - p - 1));
    if (!end) return NULL;
    *left = (inv_byte_span){end + 1, (size_t)(last - end - 1)};
    return inv_arena_strndup(&r->l->scratch, p + 1, (size_t)(end - p - 1));
}

static inv_value *initializer(const inv_graph *g, const char *name)
{
    inv_id v = name ? inv_graph_find(g, name) : INV_NONE;
    return v != INV_NONE && inv_val(g, v)->role == INV_ROLE_PARAM ? inv_val(g, v) : NULL;
}

/* The last word in front of `end`. */
static const char *word_before(reader *r, const char *begin, const char *end)
{
    const char *p = end;
    while (p > begin && p[-1] != '\n' && p[-1] != ' ') p--;
    return inv_arena_strndup(&r->l->scratch, p, (size_t)(end - p));
}

/* Lines such as "p_a_weight: PARAMETER target='a.weight'". */
static inv_status read_targets(reader *r, inv_byte_span s, const char *mark, inv_said said)
{
    for (const char *p; (p = inv_span_find(s, mark)) != NULL;) {
        const char *argument = said == INV_SAID_PARAMETER ? word_before(r, s.text, p) : NULL;
        s.n -= (size_t)(p - s.text);
        s.text = p;
        const char *name = next_name(r, &s);
        if (!name) break;
        inv_value *v = initializer(r->g, name);
        if (v) v->said = (uint8_t)said;
        if (said != INV_SAID_PARAMETER) continue;
        bool taken, again;
        INV_TRY(inv_names_put(&r->param, name, (uint32_t)r->name.n, &taken));
        if (argument) INV_TRY(inv_names_put(&r->l->arguments, argument, inv_names_get(&r->param, name), &again));
        if (!taken && !inv_vec_push(&r->l->scratch, &r->name, name)) return INV_E_NOMEM;
    }
    return r->l->scratch.failed ? INV_E_NOMEM : INV_OK;
}

/* Whether a parameter of which the exporter has made `name` has the same numbers there: what was computed is called
 * after the function that did it, steps inside of one are numbered. */
static bool is_rearranged(const char *name)
{
    static const char *const function[] = {"t",         "transpose", "permute", "view",   "reshape", "_unsafe_view",
                                           "unsqueeze", "squeeze",   "expand",  "slice",  "select",  "clone",
                                           "_to_copy",  "to",        "alias",   "detach", "flatten", "contiguous",
                                           "movedim",   "getitem",   "split",   "narrow", "numpy_T", "split_with_sizes",
                                           "chunk",     "unbind",    "mT",      "unfold", "repeat",  "index_select"};
    size_t n = strlen(name);
    while (n && name[n - 1] >= '0' && name[n - 1] <= '9') n--;
    if (n < strlen(name) && n > 1 && name[n - 1] == '_') n--;
    for (size_t i = 0; i < sizeof function / sizeof *function; i++)
        if (strlen(function[i]) == n && !memcmp(function[i], name, n)) return true;
    return inv_name_is_generated(name);
}

/* A list such as "['a.weight', 'val_1']": of what the exporter has computed it. */
static inv_status read_sources(reader *r, inv_byte_span list, inv_value *v)
{
    inv_impl *impl = r->l->impl;
    bool more = false;
    v->said = INV_SAID_OF_CONSTANTS;
    for (const char *name; (name = next_name(r, &list)) != NULL;) {
        const uint32_t p = inv_names_get(&r->param, name);
        more = more || p == INV_NONE || v->said == INV_SAID_OF_PARAMETERS;
        if (p == INV_NONE) continue;
        v->said = INV_SAID_OF_PARAMETERS;
        r->kept[p] = INV_KEPT_COMPUTED;
        if (r->of[v->init] == INV_NONE) r->of[v->init] = p;
        const char *own = inv_arena_strdup(&r->g->arena, name);
        if (!own) return INV_E_NOMEM;
        INV_TRY(inv_param_call(r->g, (inv_id)(v - r->g->value.at), own));
    }
    v->composed = more && v->said == INV_SAID_OF_PARAMETERS;
    const bool computed = v->said == INV_SAID_OF_PARAMETERS && (more || !is_rearranged(v->name));
    const inv_id id = (inv_id)(v - r->g->value.at);
    return !computed || inv_vec_push(&impl->arena, &impl->computed, id) ? INV_OK : INV_E_NOMEM;
}

/* `field`: a value or a tensor of the graph; `id`: of its metadata. */
static inv_status read_one(reader *r, const inv_field *field, uint32_t name_id, uint32_t id)
{
    const inv_impl *impl = r->l->impl;
    const char *name = NULL;
    inv_field f;
    for (size_t pos = field->body; pos < field->end && !inv_wire_field(impl->file.base, pos, field->end, &f) && !name;
         pos = f.end)
        if (f.id == name_id && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
            name = inv_arena_strndup(&r->l->scratch, (const char *)impl->file.base + f.body, f.end - f.body);
    inv_value *v = initializer(r->g, name);
    if (!v) return INV_OK;
    inv_byte_span kind = inv_entry(impl, field, id, "pkg.torch.export.graph_signature.InputSpec.kind");
    inv_byte_span folded = inv_entry(impl, field, id, "pkg.onnxscript.optimizer.folded_from");
    if (kind.n) {
        v->said = inv_span_find(kind, "PARAMETER")         ? INV_SAID_PARAMETER
                  : inv_span_find(kind, "BUFFER")          ? INV_SAID_BUFFER
                  : inv_span_find(kind, "CONSTANT_TENSOR") ? INV_SAID_CONSTANT
                                                           : v->said;
    } else if (folded.n && r->name.n && v->said == INV_SAID_NOTHING) return read_sources(r, folded, v);
    return INV_OK;
}

/* What a program without parameters calls constants may be its weights. And what this program has once set apart
 * (passes/front/untie.c) is named after what it was. */
static inv_status settle(reader *r)
{
    inv_graph *g = r->g;
    inv_impl *impl = r->l->impl;
    for (size_t i = 0; i < g->inits.n; i++) g->says = g->says || inv_val(g, g->inits.at[i])->said == INV_SAID_PARAMETER;
    g->says = g->says || r->name.n;
    for (size_t i = 0; i < g->inits.n && g->says; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        if (v->said == INV_SAID_NOTHING && strstr(v->name, "_untied_")) v->said = INV_SAID_OF_PARAMETERS;
    }
    const char **name = INV_ARENA_NEW(&impl->arena, const char *, r->name.n + 1);
    inv_exported *e = &impl->exported;
    *e = (inv_exported){.param = name, .kept = r->kept, .nparam = (uint32_t)r->name.n, .of = r->of, .nof = g->inits.n};
    for (size_t i = 0; name && i < r->name.n; i++) {
        const inv_value *own = initializer(g, r->name.at[i]);
        if (own) r->kept[i] = INV_KEPT_NAMED;
        if (own) r->of[own->init] = (uint32_t)i;
        e->nlost += r->kept[i] == INV_KEPT_NOT;
        name[i] = inv_arena_strdup(&impl->arena, r->name.at[i]);
    }
    g->exported = e;
    return impl->arena.failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_import_signature(inv_loader *l)
{
    const inv_impl *impl = l->impl;
    const uint8_t *base = impl->file.base;
    inv_field graph = {0}, f;
    reader r = {.l = l, .g = l->model->graph, .param.a = &l->scratch};
    for (size_t pos = 0; pos < impl->file.nbytes && !inv_wire_field(base, pos, impl->file.nbytes, &f); pos = f.end)
        if (f.id == INV_PB_MODEL_GRAPH) graph = f;
    r.g->from_torch = !strcmp(impl->producer, "pytorch");
    l->arguments.a = &l->scratch;
    inv_byte_span s = inv_entry(impl, &graph, GRAPH_METADATA, "pkg.torch.export.ExportedProgram.graph_signature");
    INV_TRY(read_targets(&r, s, ": CONSTANT_TENSOR target='", INV_SAID_CONSTANT));
    INV_TRY(read_targets(&r, s, ": BUFFER target='", INV_SAID_BUFFER));
    INV_TRY(read_targets(&r, s, ": PARAMETER target='", INV_SAID_PARAMETER));
    const size_t nof = r.g->inits.n;
    r.kept = INV_ARENA_NEW(&l->impl->arena, uint8_t, r.name.n + 1);
    r.of = INV_ARENA_NEW(&l->impl->arena, uint32_t, nof + 1);
    if (!r.kept || !r.of) return INV_E_NOMEM;
    memset(r.of, 0xff, nof * sizeof *r.of);
    for (size_t pos = graph.body; pos < graph.end && !inv_wire_field(base, pos, graph.end, &f); pos = f.end) {
        if (f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (f.id == INV_PB_GRAPH_VALUE_INFO) INV_TRY(read_one(&r, &f, VALUE_NAME, VALUE_METADATA));
        if (f.id == INV_PB_GRAPH_INITIALIZER) INV_TRY(read_one(&r, &f, INV_PB_TENSOR_NAME, TENSOR_METADATA));
    }
    return l->scratch.failed ? INV_E_NOMEM : settle(&r);
}
