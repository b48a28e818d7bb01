/* SPDX-License-Identifier: Apache-2.0
 * The model written back with new weights: which bytes of the file change (writer.h), namely those of initializers with
 * new weights, and of external tensors that move to a new file. */
#include <inttypes.h>
#include <string.h>

#include "importer/writer.h"

/* --- what changed --- */

static bool is_new(const inv_weight *x) { return x->data || x->maker.make; }

static inv_status ask_weight(inv__writer *w, inv_weight_source source, void *opaque, size_t i)
{
    const inv_graph *g = w->m->graph;
    const inv_value *v = inv_val(g, g->inits.at[i]);
    inv_weight *x = &w->weight[i];
    bool taken;
    INV_TRY(inv__names_put(&w->inits, v->name, (uint32_t)i, &taken));
    if (!source) return INV_OK;
    INV_TRY(source(opaque, v->name, x));
    if (!is_new(x)) return INV_OK;
    const uint8_t zero[16] = {0};
    uint8_t probe[16];
    if (x->n != (size_t)inv_shape_nelem(&v->shape) || !inv_dtype_size(v->dtype) ||
        (x->n && x->dtype != v->dtype && !inv_convert(probe, v->dtype, zero, x->dtype, 1)))
        return inv__fail(g->ctx, INV_E_ARG,
                         "initializer '%s': %zu elements of %s do not fit its type %s and %lld elements", v->name,
                         x->n, inv_dtype_name(x->dtype), inv_dtype_name(v->dtype),
                         (long long)inv_shape_nelem(&v->shape));
    return INV_OK;
}

/* The file of external data that the bytes are in; INV_NONE: they are in the model's own. */
static uint32_t file_of(const inv__writer *w, const inv_data *d)
{
    for (uint32_t i = 0; i < w->impl->ext.n; i++) {
        uintptr_t base = (uintptr_t)w->impl->ext.at[i].base, p = (uintptr_t)d->bytes;
        if (p >= base && p + d->nbytes <= base + w->impl->ext.at[i].nbytes) return i;
    }
    return INV_NONE;
}

/* "OUT.data", "OUT.data.1", ... in the order in which the model names the files that they replace. */
static inv_status name_files(inv__writer *w)
{
    unsigned n = 0;
    for (size_t i = 0; i < w->impl->ext.n; i++) {
        inv__data_file *f = &w->data[i];
        if (!f->move) continue;
        f->path = n ? inv__arena_printf(&w->l.scratch, "%s.data.%u", w->path, n)
                    : inv__arena_printf(&w->l.scratch, "%s.data", w->path);
        if (!f->path) return INV_E_NOMEM;
        const char *slash = strrchr(f->path, '/');
        f->location = slash ? slash + 1 : f->path;
        n++;
    }
    return INV_OK;
}

inv_status inv__writer_ask(inv__writer *w, inv_weight_source source, void *opaque)
{
    const inv_graph *g = w->m->graph;
    for (size_t i = 0; i < g->inits.n; i++) {
        INV_TRY(ask_weight(w, source, opaque, i));
        uint32_t file = is_new(&w->weight[i]) ? file_of(w, &inv_val(g, g->inits.at[i])->data) : INV_NONE;
        if (file != INV_NONE) w->data[file].move = true;
    }
    return name_files(w);
}

/* --- tensors --- */

/* *file: where the external tensor lies, if that file moves; else INV_NONE. */
static inv_status read_moved(inv__writer *w, size_t begin, size_t end, uint32_t *file, inv_data *d)
{
    ProtobufCMessage *message;
    inv_arena *a = &w->l.scratch;
    INV_TRY(inv__unpack(a, w->m->path, &w->impl->file, &onnx__tensor_proto__descriptor, begin, end, &message));
    INV_TRY(inv__tensor_read(&w->l, a, (const Onnx__TensorProto *)(const void *)message, "a tensor", d));
    INV_TRY(inv__defects_report(&w->l.defects, w->m->path));
    *file = file_of(w, d);
    if (*file != INV_NONE && !w->data[*file].move) *file = INV_NONE;
    return INV_OK;
}

/* The tensor's bytes go to the new data file, its place there into the model. */
static inv_status put_external(inv__writer *w, uint32_t file, const inv_data *d, const inv_weight *x)
{
    inv_arena *a = &w->l.scratch;
    inv__data_file *f = &w->data[file];
    inv__moved moved = {(uint64_t)((const uint8_t *)d->bytes - w->impl->ext.at[file].base), *d, x};
    const char *offset = inv__arena_printf(a, "%" PRIu64, moved.at), *length = inv__arena_printf(a, "%zu", d->nbytes);
    if (!offset || !length || !inv_vec_push(a, &f->tensor, moved)) return INV_E_NOMEM;
    INV_TRY(inv__put_pair(&w->model, INV__TENSOR_EXTERNAL_DATA, "location", f->location));
    INV_TRY(inv__put_pair(&w->model, INV__TENSOR_EXTERNAL_DATA, "offset", offset));
    INV_TRY(inv__put_pair(&w->model, INV__TENSOR_EXTERNAL_DATA, "length", length));
    return inv__put_int(&w->model, INV__TENSOR_DATA_LOCATION, INV__LOCATION_EXTERNAL);
}

static inv_status put_raw(inv__writer *w, const inv_weight *x, inv_dtype to)
{
    INV_TRY(inv__put_header(&w->model, INV__TENSOR_RAW_DATA, (uint64_t)x->n * inv_dtype_size(to)));
    return inv__put_elements(&w->model, x, to);
}

/* Fields that say where data are: 4 to 7, 9 to 11, 13, 14. */
static bool is_data_field(uint32_t id)
{
    return (id >= 4 && id <= 7) || (id >= 9 && id <= 11) || id == INV__TENSOR_EXTERNAL_DATA ||
           id == INV__TENSOR_DATA_LOCATION;
}

/* `to`: the tensor's own type. file INV_NONE: its data are in the model's file. */
static inv_status put_data(inv__writer *w, uint32_t file, const inv_data *d, const inv_weight *x, inv_dtype to)
{
    return file == INV_NONE ? put_raw(w, x, to) : put_external(w, file, d, x);
}

static inv_status rewrite_tensor(inv__writer *w, size_t begin, size_t end, uint32_t file, const inv_data *d,
                                 const inv_weight *x, inv_dtype to)
{
    uint32_t place = file == INV_NONE ? INV__TENSOR_RAW_DATA : INV__TENSOR_EXTERNAL_DATA;
    bool done = false;
    inv__field f;
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv__writer_field(w, pos, end, &f));
        if (is_data_field(f.id)) continue;
        if (!done && f.id > place) {
            INV_TRY(put_data(w, file, d, x, to));
            done = true;
        }
        INV_TRY(inv__put(&w->model, w->impl->file.base + f.at, f.end - f.at));
    }
    return done ? INV_OK : put_data(w, file, d, x, to);
}

static inv_status tensor(inv__writer *w, size_t begin, size_t end, bool initializer, bool *changed)
{
    const uint8_t *base = w->impl->file.base;
    const inv_graph *g = w->m->graph;
    const char *name = "";
    uint64_t location = 0;
    inv__field f;
    *changed = false;
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv__writer_field(w, pos, end, &f));
        if (f.id == INV__TENSOR_NAME && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
            name = inv__arena_strndup(&w->l.scratch, (const char *)base + f.body, f.end - f.body);
        if (!name) return INV_E_NOMEM;
        if (f.id == INV__TENSOR_DATA_LOCATION && f.wire == PROTOBUF_C_WIRE_TYPE_VARINT) {
            size_t at = f.body;
            (void)inv__wire_varint(base, &at, f.end, &location);
        }
    }
    uint32_t i = initializer ? inv__names_get(&w->inits, name) : INV_NONE, file = INV_NONE;
    const inv_weight *x = i != INV_NONE && is_new(&w->weight[i]) ? &w->weight[i] : NULL;
    inv_data d = {0};
    if (location == INV__LOCATION_EXTERNAL) INV_TRY(read_moved(w, begin, end, &file, &d));
    if (!x && file == INV_NONE) return INV_OK;
    *changed = true;
    return rewrite_tensor(w, begin, end, file, &d, x, x ? inv_val(g, g->inits.at[i])->dtype : INV_DT_NONE);
}

/* --- messages around them --- */

typedef enum place { AT_MODEL, AT_GRAPH, AT_INITIALIZER, ELSEWHERE } place;

static place place_of(place outer, uint32_t id)
{
    if (outer == AT_MODEL && id == INV__MODEL_GRAPH) return AT_GRAPH;
    if (outer == AT_GRAPH && id == INV__GRAPH_INITIALIZER) return AT_INITIALIZER;
    return ELSEWHERE;
}

static inv_status message(inv__writer *w, const ProtobufCMessageDescriptor *d, place at, size_t begin, size_t end,
                          bool *changed);

/* *changed is set if it is not as in the file. */
static inv_status field(inv__writer *w, const ProtobufCMessageDescriptor *d, place at, const inv__field *f,
                        bool *changed)
{
    const ProtobufCMessageDescriptor *child =
        f->wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED ? inv__wire_child(d, f->id) : NULL;
    if (child) {
        inv__mark m;
        bool inner;
        INV_TRY(inv__put_open(&w->model, &m));
        INV_TRY(message(w, child, place_of(at, f->id), f->body, f->end, &inner));
        if (inner) {
            *changed = true;
            return inv__put_close(&w->model, &m, f->id);
        }
        inv__put_undo(&w->model, &m);
    }
    return inv__put(&w->model, w->impl->file.base + f->at, f->end - f->at);
}

/* If nothing changed, there may be pieces missing, because the caller takes the file's bytes. */
static inv_status message(inv__writer *w, const ProtobufCMessageDescriptor *d, place at, size_t begin, size_t end,
                          bool *changed)
{
    inv__field f;
    *changed = false;
    if (d == &onnx__tensor_proto__descriptor) return tensor(w, begin, end, at == AT_INITIALIZER, changed);
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv__writer_field(w, pos, end, &f));
        INV_TRY(field(w, d, at, &f, changed));
    }
    return INV_OK;
}

inv_status inv__put_field(inv__writer *w, const ProtobufCMessageDescriptor *d, const inv__field *f)
{
    bool changed;
    return field(w, d, d == &onnx__graph_proto__descriptor ? AT_GRAPH : ELSEWHERE, f, &changed);
}

inv_status inv__model_write(inv_model *m, inv_weight_source source, void *opaque, const char *path)
{
    inv__writer w;
    bool changed;
    inv_status s = inv__writer_begin(&w, m, path);
    if (s == INV_OK) s = inv__writer_ask(&w, source, opaque);
    if (s == INV_OK)
        s = message(&w, &onnx__model_proto__descriptor, AT_MODEL, 0, w.impl->file.nbytes, &changed);
    if (s == INV_OK) s = inv__writer_publish(&w);
    inv__writer_end(&w);
    return s;
}
