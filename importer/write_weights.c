/* SPDX-License-Identifier: Apache-2.0
 * The model written back with new weights: which bytes of the file change (writer.h), namely those of initializers with
 * new weights, and of external tensors that move to a new file. */
#include <inttypes.h>
#include <string.h>

#include "importer/model_file.h"
#include "importer/writer.h"

/* What other tools take for small, too; and the page size, which ONNX's documentation advises offsets to be
 * multiples of. */
enum { EXTERNAL_LEAST = 1024, EXTERNAL_ALIGN = 4096 };

/* --- what changed --- */

static bool is_new(const inv_weight *x) { return x->data || x->maker.make; }

static inv_data_file *fresh_file(const inv_writer *w) { return &w->data[w->ndata - 1]; }

static inv_status ask_weight(inv_writer *w, inv_weight_source source, void *opaque, size_t i)
{
    const inv_graph *g = w->m->graph;
    const inv_value *v = inv_val(g, g->inits.at[i]);
    inv_weight *x = &w->weight[i];
    bool taken;
    INV_TRY(inv_names_put(&w->inits, v->name, (uint32_t)i, &taken));
    if (!source) return INV_OK;
    INV_TRY(source(opaque, v->name, x));
    if (!is_new(x)) return INV_OK;
    const uint8_t zero[16] = {0};
    uint8_t probe[16];
    if (x->n != (size_t)inv_shape_nelem(&v->shape) || !inv_dtype_size(v->dtype) ||
        (x->n && x->dtype != v->dtype && !inv_convert(probe, v->dtype, zero, x->dtype, 1)))
        return inv_fail(g->ctx, INV_E_ARG,
                        "initializer '%s': %zu elements of %s do not fit its type %s and %lld elements", v->name, x->n,
                        inv_dtype_name(x->dtype), inv_dtype_name(v->dtype), (long long)inv_shape_nelem(&v->shape));
    return INV_OK;
}

/* "OUT.data", "OUT.data.1", ... in the order in which the model names the files that they replace. */
static inv_status name_files(inv_writer *w)
{
    unsigned n = 0;
    for (size_t i = 0; i < w->ndata; i++) {
        inv_data_file *f = &w->data[i];
        bool may = f->fresh && w->m->layout == INV_LAYOUT_EXTERNAL;
        if (!f->move && !may) continue;
        f->path = n ? inv_arena_printf(&w->l.scratch, "%s.data.%u", w->path, n)
                    : inv_arena_printf(&w->l.scratch, "%s.data", w->path);
        if (!f->path) return INV_E_NOMEM;
        const char *slash = strrchr(f->path, '/');
        f->location = slash ? slash + 1 : f->path;
        n++;
    }
    return INV_OK;
}

inv_status inv_writer_ask(inv_writer *w, inv_weight_source source, void *opaque)
{
    const inv_graph *g = w->m->graph;
    for (size_t i = 0; i < g->inits.n; i++) {
        INV_TRY(ask_weight(w, source, opaque, i));
        uint32_t file = is_new(&w->weight[i]) ? inv_map_of(w->impl, &inv_val(g, g->inits.at[i])->data) : INV_NONE;
        if (file == INV_NONE) continue;
        w->data[file].trained = true;
        if (w->m->layout == INV_LAYOUT_KEEP) w->data[file].move = true;
    }
    return name_files(w);
}

/* --- tensors --- */

/* Where a tensor was and goes. */
typedef struct move {
    inv_data d;
    const inv_external *from; /* NULL: it was in the model's file */
    inv_data_file *to;        /* NULL: into the model's file */
} move;

/* A tensor of the model's own file; v->d.bytes NULL: the library cannot read it. */
static inv_status read_tensor(inv_writer *w, size_t begin, size_t end, move *v)
{
    ProtobufCMessage *message;
    inv_arena *a = &w->l.scratch;
    INV_TRY(inv_unpack(a, w->m->path, &w->impl->file, &onnx__tensor_proto__descriptor, begin, end, &message));
    INV_TRY(inv_tensor_read(&w->l, a, (const Onnx__TensorProto *)(const void *)message, "a tensor", &v->d));
    inv_defects_fini(&w->l.defects); /* not of interest: it stays as it is */
    inv_defects_init(&w->l.defects, w->l.ctx);
    return INV_OK;
}

static bool goes_outside(const inv_writer *w, const inv_data *d)
{
    return w->m->layout == INV_LAYOUT_EXTERNAL && d->nbytes >= EXTERNAL_LEAST;
}

/* *moves: its data are to be in another file than before. */
static inv_status decide(inv_writer *w, size_t begin, size_t end, bool initializer, move *v, bool *moves)
{
    inv_layout layout = w->m->layout;
    *v = (move){.from = inv_external_at(w->impl, begin)};
    *moves = false;
    if (v->from) {
        v->d = v->from->d;
        if (layout == INV_LAYOUT_KEEP) v->to = &w->data[v->from->file];
        *moves = !v->to || v->to->move;
    } else if (layout == INV_LAYOUT_EXTERNAL && initializer) {
        INV_TRY(read_tensor(w, begin, end, v));
        *moves = v->d.bytes && goes_outside(w, &v->d);
    }
    if (*moves && layout == INV_LAYOUT_EXTERNAL) v->to = fresh_file(w);
    return INV_OK;
}

/* The file's digest still holds if all bytes of the file come along and none is new. */
static bool same_bytes(const inv_writer *w, const move *v)
{
    return !v->to->fresh && !v->to->trained && v->to->tensors == w->impl->ext.at[v->from->file].nbytes;
}

static bool is_key(const uint8_t *base, const inv_field *f, const char *key)
{
    return f->end - f->body == strlen(key) && !memcmp(base + f->body, key, f->end - f->body);
}

/* Whether an entry of external_data still holds where the tensor goes. */
static inv_status still_holds(inv_writer *w, const move *v, const inv_field *entry, bool *holds)
{
    const uint8_t *base = w->impl->file.base;
    inv_field f;
    *holds = true;
    for (size_t pos = entry->body; pos < entry->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, entry->end, &f));
        if (f.id != 1) continue;
        *holds = !is_key(base, &f, "location") && !is_key(base, &f, "offset") && !is_key(base, &f, "length") &&
                 (!is_key(base, &f, "checksum") || same_bytes(w, v));
    }
    return INV_OK;
}

/* What else the file says of the tensor's data. */
static inv_status put_other_keys(inv_writer *w, const move *v)
{
    inv_field f;
    for (size_t pos = v->from ? v->from->at : 0; v->from && pos < v->from->end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, v->from->end, &f));
        bool holds = f.id == INV_PB_TENSOR_EXTERNAL_DATA && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
        if (holds) INV_TRY(still_holds(w, v, &f, &holds));
        if (holds) INV_TRY(inv_put(&w->model, w->impl->file.base + f.at, f.end - f.at));
    }
    return INV_OK;
}

/* The tensor's bytes go to the data file, its place there into the model. */
static inv_status put_external(inv_writer *w, const move *v, const inv_weight *x)
{
    inv_arena *a = &w->l.scratch;
    inv_data_file *f = v->to;
    inv_moved moved = {0, v->d, x};
    if (!f->fresh) {
        moved.at = v->from->offset;
    } else {
        /* Nothing at all lies anywhere, but not behind the end. */
        if (v->d.nbytes) moved.at = (f->end + EXTERNAL_ALIGN - 1) / EXTERNAL_ALIGN * EXTERNAL_ALIGN;
        f->end = v->d.nbytes ? moved.at + v->d.nbytes : f->end;
        f->move = true;
    }
    const char *offset = inv_arena_printf(a, "%" PRIu64, moved.at), *length = inv_arena_printf(a, "%zu", v->d.nbytes);
    if (!offset || !length || !inv_vec_push(a, &f->tensor, moved)) return INV_E_NOMEM;
    INV_TRY(inv_put_pair(&w->model, INV_PB_TENSOR_EXTERNAL_DATA, "location", f->location));
    INV_TRY(inv_put_pair(&w->model, INV_PB_TENSOR_EXTERNAL_DATA, "offset", offset));
    INV_TRY(inv_put_pair(&w->model, INV_PB_TENSOR_EXTERNAL_DATA, "length", length));
    INV_TRY(put_other_keys(w, v));
    return inv_put_int(&w->model, INV_PB_TENSOR_DATA_LOCATION, INV_PB_LOCATION_EXTERNAL);
}

/* Fields that say where data are: 4 to 7, 9 to 11, 13, 14. */
static bool is_data_field(uint32_t id)
{
    return (id >= 4 && id <= 7) || (id >= 9 && id <= 11) || id == INV_PB_TENSOR_EXTERNAL_DATA ||
           id == INV_PB_TENSOR_DATA_LOCATION;
}

/* `to`: the tensor's own type, of new elements x. */
static inv_status put_data(inv_writer *w, const move *v, const inv_weight *x, inv_dtype to)
{
    if (v->to) return put_external(w, v, x);
    INV_TRY(inv_put_header(&w->model, INV_PB_TENSOR_RAW_DATA, x ? (uint64_t)x->n * inv_dtype_size(to) : v->d.nbytes));
    return x ? inv_put_elements(&w->model, x, to) : inv_put(&w->model, v->d.bytes, v->d.nbytes);
}

/* In the place of its first data field; a file may have its fields in any order. */
static inv_status rewrite_tensor(inv_writer *w, size_t begin, size_t end, const move *v, const inv_weight *x,
                                 inv_dtype to)
{
    bool done = false;
    inv_field f;
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, end, &f));
        bool data = is_data_field(f.id);
        if (data && !done) INV_TRY(put_data(w, v, x, to));
        if (data) done = true;
        else INV_TRY(inv_put(&w->model, w->impl->file.base + f.at, f.end - f.at));
    }
    return done ? INV_OK : put_data(w, v, x, to);
}

inv_status inv_put_initializer(inv_writer *w, uint32_t id, const char *name, const inv_data *d, const inv_maker *maker)
{
    inv_file_pieces *p = &w->model;
    move v = {.d = *d, .to = fresh_file(w)};
    inv_mark m;
    if (!goes_outside(w, d)) return inv_put_tensor(p, id, name, d, maker);
    inv_weight *x = INV_ARENA_NEW(&w->l.scratch, inv_weight, 1);
    if (!x) return INV_E_NOMEM;
    *x = (inv_weight){.dtype = d->dtype, .n = d->nbytes / inv_dtype_size(d->dtype), .data = d->bytes};
    if (maker) x->maker = *maker;
    INV_TRY(inv_put_open(p, &m));
    INV_TRY(inv_put_tensor_head(p, name, d));
    INV_TRY(put_external(w, &v, x));
    return inv_put_close(p, &m, id);
}

typedef enum place { AT_MODEL, AT_GRAPH, IN_GRAPH, AT_INITIALIZER, AT_INNER_INITIALIZER, ELSEWHERE } place;

static inv_status tensor(inv_writer *w, size_t begin, size_t end, place at, bool *changed)
{
    const uint8_t *base = w->impl->file.base;
    const inv_graph *g = w->m->graph;
    const char *name = "";
    inv_field f;
    move v;
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, end, &f));
        if (f.id == INV_PB_TENSOR_NAME && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
            name = inv_arena_strndup(&w->l.scratch, (const char *)base + f.body, f.end - f.body);
        if (!name) return INV_E_NOMEM;
    }
    uint32_t i = at == AT_INITIALIZER ? inv_names_get(&w->inits, name) : inv_placed_at(w->impl, begin);
    const inv_weight *x = i != INV_NONE && is_new(&w->weight[i]) && w->weight[i].n ? &w->weight[i] : NULL;
    bool moves;
    INV_TRY(decide(w, begin, end, at == AT_INITIALIZER || at == AT_INNER_INITIALIZER, &v, &moves));
    *changed = x || moves;
    if (!*changed) return INV_OK;
    return rewrite_tensor(w, begin, end, &v, x, x ? inv_val(g, g->inits.at[i])->dtype : INV_DT_NONE);
}

/* New numbers in attribute value_floats, each list of them where it was: the file may have one number a field. */
static inv_status numbers(inv_writer *w, size_t begin, size_t end, const inv_weight *x, inv_dtype to)
{
    const uint8_t *base = w->impl->file.base;
    size_t done = 0, size = inv_dtype_size(x->dtype);
    inv_field f;
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, end, &f));
        bool list = f.id == INV_PB_ATTR_FLOATS;
        inv_weight part = *x;
        INV_TRY(inv_put(&w->model, base + f.at, (list ? f.body : f.end) - f.at));
        if (!list) continue;
        part.n = (f.end - f.body) / sizeof(float);
        INV_CHECK(!x->maker.make && part.n <= x->n - done, w->l.ctx, INV_E_INTERNAL,
                  "'%s': byte %zu: more numbers "
                  "than when it was loaded",
                  w->m->path, pos);
        part.data = (const uint8_t *)x->data + done * size;
        done += part.n;
        INV_TRY(inv_put_elements(&w->model, &part, to));
    }
    return INV_OK;
}

/* --- messages around them --- */

static place place_of(const ProtobufCMessageDescriptor *d, place outer, uint32_t id)
{
    if (outer == AT_MODEL) return id == INV_PB_MODEL_GRAPH ? AT_GRAPH : ELSEWHERE;
    if (outer != AT_GRAPH && outer != IN_GRAPH) return ELSEWHERE;
    if (d != &onnx__graph_proto__descriptor || id != INV_PB_GRAPH_INITIALIZER) return IN_GRAPH;
    return outer == AT_GRAPH ? AT_INITIALIZER : AT_INNER_INITIALIZER;
}

static inv_status write_message(inv_writer *w, const ProtobufCMessageDescriptor *d, place at, size_t begin, size_t end,
                                bool *changed);

/* The function that is written in the place of the next one of the file. */
static const inv_field *next_function(inv_writer *w)
{
    const inv_functions *x = &w->functions;
    return &x->of_file.at[x->order[w->put++]];
}

/* *changed is set if it is not as in the file. */
static inv_status field(inv_writer *w, const ProtobufCMessageDescriptor *d, place at, const inv_field *f, bool *changed)
{
    const ProtobufCMessageDescriptor *child =
        f->wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED ? inv_wire_child(d, f->id) : NULL;
    if (at == AT_MODEL && f->id == INV_PB_MODEL_METADATA) {
        bool stays;
        INV_TRY(inv_entry_stays(w, f, &stays));
        if (!stays) {
            *changed = true;
            return INV_OK;
        }
    }
    if (child && at == AT_MODEL && f->id == INV_PB_MODEL_FUNCTION) f = next_function(w);
    const inv_edit *e = child ? inv_edit_at(w, f->body) : NULL;
    if (e) {
        *changed = true;
        return inv_put_edit(w, f, e);
    }
    if (child) {
        inv_mark m;
        bool inner;
        INV_TRY(inv_put_open(&w->model, &m));
        INV_TRY(write_message(w, child, place_of(d, at, f->id), f->body, f->end, &inner));
        if (inner) {
            *changed = true;
            return inv_put_close(&w->model, &m, f->id);
        }
        inv_put_undo(&w->model, &m);
    }
    return inv_put(&w->model, w->impl->file.base + f->at, f->end - f->at);
}

/* If nothing changed, there may be pieces missing, because the caller takes the file's bytes. */
static inv_status write_message(inv_writer *w, const ProtobufCMessageDescriptor *d, place at, size_t begin, size_t end,
                                bool *changed)
{
    inv_field f;
    *changed = false;
    if (d == &onnx__tensor_proto__descriptor) return tensor(w, begin, end, at, changed);
    uint32_t i = d == &onnx__attribute_proto__descriptor ? inv_placed_at(w->impl, begin) : INV_NONE;
    if (i != INV_NONE && is_new(&w->weight[i])) {
        *changed = true;
        return numbers(w, begin, end, &w->weight[i], inv_val(w->m->graph, w->m->graph->inits.at[i])->dtype);
    }
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, end, &f));
        INV_TRY(field(w, d, at, &f, changed));
    }
    return INV_OK;
}

inv_status inv_put_field(inv_writer *w, const ProtobufCMessageDescriptor *d, const inv_field *f)
{
    bool changed;
    place at = d == &onnx__graph_proto__descriptor  ? AT_GRAPH
               : d == &onnx__node_proto__descriptor ? IN_GRAPH
                                                    : ELSEWHERE;
    return field(w, d, at, f, &changed);
}

inv_status inv_put_model(inv_writer *w)
{
    bool changed;
    INV_TRY(inv_functions_begin(&w->functions, w, NULL));
    INV_TRY(inv_functions_sort(&w->functions));
    INV_TRY(write_message(w, &onnx__model_proto__descriptor, AT_MODEL, 0, w->impl->file.nbytes, &changed));
    return inv_put_entries(w);
}

inv_status inv_model_write(inv_model *m, inv_weight_source source, void *opaque, bool inference, const char *path)
{
    inv_writer w;
    inv_status s = inv_writer_begin(&w, m, path);
    if (s == INV_OK && inference) s = inv_writer_settle(&w);
    if (s == INV_OK) s = inv_writer_ask(&w, source, opaque);
    if (s == INV_OK) s = inv_put_model(&w);
    if (s == INV_OK) s = inv_writer_publish(&w);
    inv_writer_end(&w);
    return s;
}
