/* SPDX-License-Identifier: Apache-2.0
 * All external tensors of the file, also those that the graph does not read (in training_info, in attributes of another
 * type): a file that is loaded can be written, so what is wrong with one of them is said now, and writing works from
 * this list. The file is walked as it is when it is written. */
#include <stdlib.h>

#include "importer/importer.h"

/* A message, and those around it. */
typedef struct level {
    const struct level *outer; /* NULL: the model */
    const ProtobufCMessageDescriptor *d;
    uint32_t id; /* as field of the message around it */
    size_t begin, end;
} level;

/* Adds message x to `text`: "initializer 'w'" + " in " + "training_info". */
static inv_status add_place(inv_loader *l, const level *x, const char **text)
{
    static const struct {
        const ProtobufCMessageDescriptor *d;
        uint32_t name;
        const char *kind;
    } kinds[] = {{&onnx__tensor_proto__descriptor, INV_PB_TENSOR_NAME, "tensor"},
                 {&onnx__attribute_proto__descriptor, INV_PB_ATTR_NAME, "attribute"},
                 {&onnx__node_proto__descriptor, INV_PB_NODE_NAME, "node"},
                 {&onnx__function_proto__descriptor, INV_PB_FUNCTION_NAME, "function"},
                 {&onnx__training_info_proto__descriptor, 0, "training_info"}};
    inv_arena *a = &l->impl->arena;
    size_t k = 0, n = sizeof kinds / sizeof *kinds;
    while (k < n && kinds[k].d != x->d) k++;
    if (k == n) return INV_OK;
    const char *name = "", *kind = kinds[k].kind;
    inv_field f;
    for (size_t pos = x->begin; kinds[k].name && pos < x->end; pos = f.end) {
        INV_TRY(inv_loader_field(l, pos, x->end, &f));
        if (f.id != kinds[k].name || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        name = inv_arena_strndup(a, (const char *)l->impl->file.base + f.body, f.end - f.body);
        if (!name) return INV_E_NOMEM;
    }
    if (!k && x->outer && x->outer->d == &onnx__graph_proto__descriptor && x->id == INV_PB_GRAPH_INITIALIZER)
        kind = "initializer";
    const char *quote = *name ? "'" : "";
    *text =
        inv_arena_printf(a, "%s%s%s%s%s%s%s", *text, **text ? " in " : "", kind, *name ? " " : "", quote, name, quote);
    return *text ? INV_OK : INV_E_NOMEM;
}

static inv_status is_external(inv_loader *l, const level *x, bool *external)
{
    uint64_t location = 0;
    inv_field f;
    for (size_t pos = x->begin; pos < x->end; pos = f.end) {
        INV_TRY(inv_loader_field(l, pos, x->end, &f));
        size_t at = f.body;
        if (f.id == INV_PB_TENSOR_DATA_LOCATION && f.wire == PROTOBUF_C_WIRE_TYPE_VARINT)
            (void)inv_wire_varint(l->impl->file.base, &at, f.end, &location);
    }
    *external = (uint32_t)location == INV_PB_LOCATION_EXTERNAL; /* as protobuf takes it */
    return INV_OK;
}

static inv_status tensor(inv_loader *l, const level *x)
{
    inv_impl *impl = l->impl;
    inv_external e = {.at = x->begin, .end = x->end, .what = ""};
    ProtobufCMessage *message;
    bool external;
    INV_TRY(is_external(l, x, &external));
    if (!external) return INV_OK;
    for (const level *in = x; in; in = in->outer) INV_TRY(add_place(l, in, &e.what));
    INV_TRY(inv_unpack(&l->scratch, l->model->path, &impl->file, x->d, x->begin, x->end, &message));
    const Onnx__TensorProto *t = (const Onnx__TensorProto *)(const void *)message;
    INV_TRY(inv_tensor_read(l, &l->scratch, t, e.what, &e.d));
    if (!e.d.bytes) return INV_OK;
    INV_TRY(inv_external_place(l, t, e.what, e.d.nbytes, &e.file, &e.offset));
    return inv_vec_push(&impl->arena, &impl->external, e) ? INV_OK : INV_E_NOMEM;
}

static inv_status walk(inv_loader *l, const level *x)
{
    inv_field f;
    if (x->d == &onnx__tensor_proto__descriptor) return tensor(l, x);
    for (size_t pos = x->begin; pos < x->end; pos = f.end) {
        INV_TRY(inv_loader_field(l, pos, x->end, &f));
        const ProtobufCMessageDescriptor *child =
            f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED ? inv_wire_child(x->d, f.id) : NULL;
        if (child) INV_TRY(walk(l, &(level){x, child, f.id, f.body, f.end}));
    }
    return INV_OK;
}

static int by_place(const void *a, const void *b)
{
    const inv_external *x = *(const inv_external *const *)a, *y = *(const inv_external *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->d.nbytes != y->d.nbytes) return x->d.nbytes < y->d.nbytes ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static const char *location_of(const inv_impl *impl, uint32_t file)
{
    size_t i = 0;
    while (i + 1 < impl->ext_at.n && impl->ext_at.at[i] != file) i++;
    return impl->ext_name.at[i];
}

/* A defect for tensors that share bytes: they could not be written back with new weights. */
static inv_status check_overlaps(inv_loader *l)
{
    const inv_impl *impl = l->impl;
    size_t n = impl->external.n;
    const inv_external **sorted = INV_ARENA_NEW(&l->scratch, const inv_external *, n + 1), *last = NULL;
    if (!sorted) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) sorted[i] = &impl->external.at[i];
    if (n) qsort(sorted, n, sizeof *sorted, by_place);
    for (size_t i = 0; i < n; i++) {
        const inv_external *e = sorted[i];
        uint64_t end = e->offset + e->d.nbytes, reached = last ? last->offset + last->d.nbytes : 0;
        if (!e->d.nbytes) continue;
        if (last && last->file == e->file && e->offset < reached)
            inv_defect(&l->defects, INV_E_PARSE, "%s and %s overlap in '%s': bytes %llu to %llu and %llu to %llu",
                       last->what, e->what, location_of(impl, e->file), (unsigned long long)last->offset,
                       (unsigned long long)reached, (unsigned long long)e->offset, (unsigned long long)end);
        if (!last || last->file != e->file || end > reached) last = e; /* that which reaches furthest */
    }
    return INV_OK;
}

inv_status inv_external_all(inv_loader *l)
{
    INV_TRY(walk(l, &(level){.d = &onnx__model_proto__descriptor, .end = l->impl->file.nbytes}));
    return check_overlaps(l);
}

const inv_external *inv_external_at(const inv_impl *impl, size_t at)
{
    size_t low = 0, high = impl->external.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (impl->external.at[mid].at < at) low = mid + 1;
        else high = mid;
    }
    return low < impl->external.n && impl->external.at[low].at == at ? &impl->external.at[low] : NULL;
}
