/* SPDX-License-Identifier: Apache-2.0
 * The model written back with new weights. The loaded file itself is the template: it is walked once, and the result
 * is a list of pieces - runs of the file, new weights, new headers. A message that has nothing new inside is part of a
 * run, so all that this library does not know or care about comes out as it went in, byte for byte:
 *
 *     [run of the file][graph: new length][run][initializer: new length][run][raw_data: weights][run] ...
 *
 * Weights are converted to the initializer's own type while they are written; nothing is copied before. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "importer/importer.h"

enum { ALIGN = 64, CHUNK = 4096 };

typedef struct piece {
    const void *data; /* NULL: zeros */
    size_t n;         /* bytes to write; elements if the types differ */
    inv_dtype from, to;
} piece;

typedef INV_VEC(piece) pieces;

typedef struct weight {
    const void *data; /* NULL: unchanged */
    inv_dtype dtype;
    size_t n;
} weight;

typedef struct writer {
    inv_model *m;
    inv__impl *impl;
    inv__loader l;
    weight *weight;   /* per initializer */
    inv__names inits; /* name -> index */
    bool move;        /* external tensors go to a new file */
    const char *data_path, *location;
    pieces model, data;
    uint64_t data_nbytes;
} writer;

#define PUT(w, list, ...)                                                                                             \
    do {                                                                                                               \
        if (!inv_vec_push(&(w)->l.scratch, (list), ((piece){__VA_ARGS__}))) return INV_E_NOMEM;                        \
    } while (0)

/* --- what changed --- */

static inv_status ask_weight(writer *w, inv_weight_source source, void *opaque, size_t i)
{
    const inv_graph *g = w->m->graph;
    const inv_value *v = inv_val(g, g->inits.at[i]);
    weight *x = &w->weight[i];
    bool taken;
    INV_TRY(inv__names_put(&w->inits, v->name, (uint32_t)i, &taken));
    if (!source) return INV_OK;
    INV_TRY(source(opaque, v->name, &x->dtype, &x->data, &x->n));
    if (!x->data) return INV_OK;
    uint8_t probe[16];
    if (x->n != (size_t)inv_shape_nelem(&v->shape) || !inv_dtype_size(v->dtype) ||
        (x->n && x->dtype != v->dtype && !inv_convert(probe, v->dtype, x->data, x->dtype, 1)))
        return inv__fail(g->ctx, INV_E_ARG,
                         "initializer '%s': %zu elements of %s do not fit its type %s and %lld elements", v->name,
                         x->n, inv_dtype_name(x->dtype), inv_dtype_name(v->dtype),
                         (long long)inv_shape_nelem(&v->shape));
    return INV_OK;
}

static bool is_external(const writer *w, const inv_data *d)
{
    for (size_t i = 0; i < w->impl->ext.n; i++) {
        uintptr_t base = (uintptr_t)w->impl->ext.at[i].base, p = (uintptr_t)d->bytes;
        if (p >= base && p <= base + w->impl->ext.at[i].nbytes) return true;
    }
    return false;
}

/* --- tensors --- */

static inv_status put_header(writer *w, pieces *list, uint32_t id, uint64_t length, uint64_t *size)
{
    uint8_t *h = inv__arena_alloc(&w->l.scratch, 2 * INV__VARINT_MAX);
    if (!h) return INV_E_NOMEM;
    size_t n = inv__wire_put_varint(h, (uint64_t)id << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED);
    n += inv__wire_put_varint(h + n, length);
    PUT(w, list, .data = h, .n = n);
    *size += n;
    return INV_OK;
}

static inv_status put_weight(writer *w, pieces *list, const weight *x, inv_dtype to)
{
    if (x->dtype == to)
        PUT(w, list, .data = x->data, .n = x->n * inv_dtype_size(to));
    else
        PUT(w, list, .data = x->data, .n = x->n, .from = x->dtype, .to = to);
    return INV_OK;
}

static inv_status put_entry(writer *w, const char *key, const char *value, uint64_t *size)
{
    size_t nk = strlen(key), nv = strlen(value);
    uint8_t head[2 * INV__VARINT_MAX];
    size_t inside = nk + nv + 2;
    inside += inv__wire_put_varint(head, nk) + inv__wire_put_varint(head, nv);
    INV_TRY(put_header(w, &w->model, INV__TENSOR_EXTERNAL_DATA, inside, size));
    INV_TRY(put_header(w, &w->model, 1, nk, size));
    PUT(w, &w->model, .data = key, .n = nk);
    INV_TRY(put_header(w, &w->model, 2, nv, size));
    PUT(w, &w->model, .data = value, .n = nv);
    *size += nk + nv;
    return INV_OK;
}

/* The tensor's bytes go to the data file, its new place into the model. */
static inv_status put_external(writer *w, size_t begin, size_t end, const weight *x, uint64_t *size)
{
    static const uint8_t location[] = {INV__TENSOR_DATA_LOCATION << 3, INV__LOCATION_EXTERNAL};
    ProtobufCMessage *message;
    inv_data d;
    INV_TRY(inv__unpack(&w->l.scratch, w->m->path, &w->impl->file, &onnx__tensor_proto__descriptor, begin, end,
                        &message));
    INV_TRY(inv__tensor_read(&w->l, &w->l.scratch, (const Onnx__TensorProto *)(const void *)message, "a tensor", &d));
    INV_TRY(inv__defects_report(&w->l.defects, w->m->path));
    size_t pad = (size_t)(-w->data_nbytes % ALIGN);
    if (pad) PUT(w, &w->data, .data = NULL, .n = pad);
    w->data_nbytes += pad;
    const char *offset = inv__arena_printf(&w->l.scratch, "%" PRIu64, w->data_nbytes);
    const char *length = inv__arena_printf(&w->l.scratch, "%zu", d.nbytes);
    if (!offset || !length) return INV_E_NOMEM;
    if (x)
        INV_TRY(put_weight(w, &w->data, x, d.dtype));
    else
        PUT(w, &w->data, .data = d.bytes, .n = d.nbytes);
    w->data_nbytes += d.nbytes;
    INV_TRY(put_entry(w, "location", w->location, size));
    INV_TRY(put_entry(w, "offset", offset, size));
    INV_TRY(put_entry(w, "length", length, size));
    PUT(w, &w->model, .data = location, .n = sizeof location);
    *size += sizeof location;
    return INV_OK;
}

static inv_status put_raw(writer *w, const weight *x, inv_dtype to, uint64_t *size)
{
    uint64_t n = (uint64_t)x->n * inv_dtype_size(to);
    INV_TRY(put_header(w, &w->model, INV__TENSOR_RAW_DATA, n, size));
    INV_TRY(put_weight(w, &w->model, x, to));
    *size += n;
    return INV_OK;
}

/* Fields that say where data are: 4 to 7, 9 to 11, 13, 14. */
static bool is_data_field(uint32_t id)
{
    return (id >= 4 && id <= 7) || (id >= 9 && id <= 11) || id == INV__TENSOR_EXTERNAL_DATA ||
           id == INV__TENSOR_DATA_LOCATION;
}

static inv_status rewrite_tensor(writer *w, size_t begin, size_t end, const weight *x, inv_dtype to, bool external,
                                 uint64_t *size)
{
    const uint8_t *base = w->impl->file.base;
    uint32_t place = external ? INV__TENSOR_EXTERNAL_DATA : INV__TENSOR_RAW_DATA;
    bool done = false;
    inv__field f;
    for (size_t pos = begin; pos < end; pos = f.end) {
        (void)inv__wire_field(base, pos, end, &f);
        if (is_data_field(f.id)) continue;
        if (!done && f.id > place) {
            INV_TRY(external ? put_external(w, begin, end, x, size) : put_raw(w, x, to, size));
            done = true;
        }
        PUT(w, &w->model, .data = base + f.at, .n = f.end - f.at);
        *size += f.end - f.at;
    }
    if (done) return INV_OK;
    return external ? put_external(w, begin, end, x, size) : put_raw(w, x, to, size);
}

static inv_status tensor(writer *w, size_t begin, size_t end, bool initializer, uint64_t *size, bool *changed)
{
    const uint8_t *base = w->impl->file.base;
    const inv_graph *g = w->m->graph;
    const char *name = "";
    uint64_t location = 0;
    inv__field f;
    *changed = false;
    for (size_t pos = begin; pos < end; pos = f.end) {
        (void)inv__wire_field(base, pos, end, &f);
        if (f.id == 8 && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
            name = inv__arena_strndup(&w->l.scratch, (const char *)base + f.body, f.end - f.body);
        if (!name) return INV_E_NOMEM;
        if (f.id == INV__TENSOR_DATA_LOCATION && f.wire == PROTOBUF_C_WIRE_TYPE_VARINT) {
            size_t at = f.body;
            (void)inv__wire_varint(base, &at, f.end, &location);
        }
    }
    uint32_t i = initializer ? inv__names_get(&w->inits, name) : INV_NONE;
    const weight *x = i != INV_NONE && w->weight[i].data ? &w->weight[i] : NULL;
    bool external = location == INV__LOCATION_EXTERNAL;
    if (!x && !(external && w->move)) return INV_OK;
    *changed = true;
    inv_dtype to = x ? inv_val(g, g->inits.at[i])->dtype : INV_DT_NONE;
    return rewrite_tensor(w, begin, end, x, to, external, size);
}

/* --- messages around them --- */

typedef enum place { AT_MODEL, AT_GRAPH, AT_INITIALIZER, ELSEWHERE } place;

static place place_of(place outer, uint32_t id)
{
    if (outer == AT_MODEL && id == INV__MODEL_GRAPH) return AT_GRAPH;
    if (outer == AT_GRAPH && id == INV__GRAPH_INITIALIZER) return AT_INITIALIZER;
    return ELSEWHERE;
}

/* Appends the message's pieces; *size is its new length. If nothing changed, there may be pieces that the caller
 * drops again. */
static inv_status build(writer *w, const ProtobufCMessageDescriptor *d, place at, size_t begin, size_t end,
                        uint64_t *size, bool *changed)
{
    const uint8_t *base = w->impl->file.base;
    size_t run = begin;
    inv__field f;
    *size = 0;
    *changed = false;
    if (d == &onnx__tensor_proto__descriptor) return tensor(w, begin, end, at == AT_INITIALIZER, size, changed);
    for (size_t pos = begin; pos < end; pos = f.end) {
        const char *wrong = inv__wire_field(base, pos, end, &f);
        if (wrong)
            return inv__fail(w->l.ctx, INV_E_IO, "'%s' was changed while it was loaded: byte %zu: %s", w->m->path, pos,
                             wrong);
        const ProtobufCMessageDescriptor *child =
            f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED ? inv__wire_child(d, f.id) : NULL;
        if (!child) continue;
        size_t mark = w->model.n;
        uint64_t inside, header = 0;
        bool inner;
        PUT(w, &w->model, .data = base + run, .n = f.at - run);
        PUT(w, &w->model, .data = NULL, .n = 0); /* the header, when the length is known */
        INV_TRY(build(w, child, place_of(at, f.id), f.body, f.end, &inside, &inner));
        if (!inner) {
            w->model.n = mark;
            continue;
        }
        pieces head = {0};
        INV_TRY(put_header(w, &head, f.id, inside, &header));
        w->model.at[mark + 1] = head.at[0];
        *size += f.at - run + header + inside;
        *changed = true;
        run = f.end;
    }
    PUT(w, &w->model, .data = base + run, .n = end - run);
    *size += end - run;
    return INV_OK;
}

/* --- files --- */

static inv_status write_piece(inv__out *o, const piece *p)
{
    static const uint8_t zeros[ALIGN];
    uint8_t buf[CHUNK * 16];
    if (!p->data) return inv__out_write(o, zeros, p->n);
    if (p->from == p->to) return inv__out_write(o, p->data, p->n);
    size_t from = inv_dtype_size(p->from), to = inv_dtype_size(p->to);
    for (size_t i = 0; i < p->n; i += CHUNK) {
        size_t k = p->n - i < CHUNK ? p->n - i : CHUNK;
        if (!inv_convert(buf, p->to, (const uint8_t *)p->data + i * from, p->from, k))
            return inv__fail(o->ctx, INV_E_INTERNAL, "no conversion from %s to %s", inv_dtype_name(p->from),
                             inv_dtype_name(p->to));
        INV_TRY(inv__out_write(o, buf, k * to));
    }
    return INV_OK;
}

static inv_status write_pieces(inv__out *o, const pieces *list)
{
    for (size_t i = 0; i < list->n; i++) INV_TRY(write_piece(o, &list->at[i]));
    return inv__out_sync(o);
}

/* Replacing a file that is mapped would be harmless (the rename leaves the mapping alone), but a user who names the
 * loaded file by accident loses the original; so it is refused. */
static inv_status refuse_loaded(const writer *w, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return INV_OK;
    for (size_t i = 0; i <= w->impl->ext.n; i++) {
        const inv__map *m = i ? &w->impl->ext.at[i - 1] : &w->impl->file;
        if (m->dev == st.st_dev && m->ino == st.st_ino)
            return inv__fail(w->l.ctx, INV_E_IO, "'%s' is a file that the model is loaded from; choose another name",
                             path);
    }
    return INV_OK;
}

static inv_status same_folder(writer *w, const char *path, bool *same)
{
    struct stat a, b;
    const char *slash = strrchr(path, '/');
    size_t n = slash && slash != path ? (size_t)(slash - path) : 1;
    const char *dir = slash ? inv__arena_strndup(&w->l.scratch, path, n) : ".";
    if (!dir) return INV_E_NOMEM;
    *same = w->impl->dir >= 0 && fstat(w->impl->dir, &a) == 0 && stat(dir, &b) == 0 && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino;
    return INV_OK;
}

static inv_status prepare(writer *w, inv_weight_source source, void *opaque, const char *path)
{
    const inv_graph *g = w->m->graph;
    w->weight = INV_ARENA_NEW(&w->l.scratch, weight, g->inits.n + 1);
    w->data_path = inv__arena_printf(&w->l.scratch, "%s.data", path);
    if (!w->weight || !w->data_path) return INV_E_NOMEM;
    const char *slash = strrchr(w->data_path, '/');
    w->location = slash ? slash + 1 : w->data_path;
    bool same;
    INV_TRY(same_folder(w, path, &same));
    w->move = w->impl->ext.n && !same;
    for (size_t i = 0; i < g->inits.n; i++) {
        INV_TRY(ask_weight(w, source, opaque, i));
        if (w->weight[i].data && is_external(w, &inv_val(g, g->inits.at[i])->data)) w->move = true;
    }
    INV_TRY(refuse_loaded(w, path));
    return w->move ? refuse_loaded(w, w->data_path) : INV_OK;
}

static inv_status write_files(writer *w, const char *path, inv__out *model, inv__out *data)
{
    uint64_t size;
    bool changed;
    INV_TRY(build(w, &onnx__model_proto__descriptor, AT_MODEL, 0, w->impl->file.nbytes, &size, &changed));
    INV_TRY(inv__out_open(w->l.ctx, path, model));
    if (w->move) {
        INV_TRY(inv__out_open(w->l.ctx, w->data_path, data));
        INV_TRY(write_pieces(data, &w->data));
    }
    INV_TRY(write_pieces(model, &w->model));
    if (model->total != size || data->total != w->data_nbytes)
        return inv__fail(w->l.ctx, INV_E_INTERNAL, "'%s': wrong lengths", path);
    /* The model appears last: a model file that is seen has its data. */
    if (w->move) INV_TRY(inv__out_publish(data));
    return inv__out_publish(model);
}

inv_status inv__model_write(inv_model *m, inv_weight_source source, void *opaque, const char *path)
{
    inv__out model = {.fd = -1}, data = {.fd = -1};
    INV_CHECK(path && *path, m->ctx, INV_E_ARG, "no path given to write the model to");
    writer w = {.m = m, .impl = m->impl, .l = {.ctx = m->ctx, .model = m, .impl = m->impl}};
    inv__arena_init(&w.l.scratch, m->ctx);
    inv__defects_init(&w.l.defects, m->ctx);
    w.inits.a = &w.l.scratch;
    inv_status s = prepare(&w, source, opaque, path);
    if (s == INV_OK) s = write_files(&w, path, &model, &data);
    inv__out_close(&model);
    inv__out_close(&data);
    inv__defects_fini(&w.l.defects);
    inv__arena_fini(&w.l.scratch);
    return s;
}
