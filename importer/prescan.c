/* SPDX-License-Identifier: Apache-2.0
 * The step before protobuf-c. Called on a file directly, protobuf-c recurses without limit, copies every tensor and
 * stops at 2 GiB. So the file is walked here first: nesting and lengths are checked, and all but the raw data of
 * tensors is copied into a skeleton, which is what protobuf-c unpacks. In place of raw data stands where it is in the
 * file:
 *
 *     file      .. TensorProto { dims name raw_data = <400 MB> } ..
 *     skeleton  .. TensorProto { dims name raw_data = <offset, length> } ..
 *
 * Every raw_data is replaced, whatever its size, so that there is nothing to tell apart later. Lengths of
 * messages in the skeleton are written as 5 bytes, because they are known only after the content.
 *
 * Two bytes of a file can be a message, which is hundreds of bytes once it is unpacked. So nodes are counted, and what
 * all will take is estimated, before anything is unpacked; files that no exporter writes are refused. */
#include <limits.h>
#include <string.h>

#include "importer/importer.h"

enum { MAX_DEPTH = 100, LENGTH_BYTES = 5, LONGEST_NAME = 65535 };
/* Estimates of bytes: for a field, for one that the schema does not know, for a message beyond its struct, for a graph
 * of its own (a body, a function). */
enum { FIELD_COST = 32, UNKNOWN_COST = 128, MESSAGE_COST = 64, GRAPH_COST = 8192 };
/* What may be taken: so much, and so many times the file's size without its raw data. */
enum { MOST_COST = 64 << 20, MOST_COST_PER_BYTE = 24 };

typedef struct scan {
    inv_context *ctx;
    const char *path;
    const inv_map *map;
    uint8_t *out;
    size_t n, cap;
    size_t nodes, cost, small; /* so far; small: bytes that are not raw data */
} scan;

static inv_status reserve(scan *s, size_t more)
{
    if (more <= s->cap - s->n) return INV_OK;
    if (s->n + more > INT_MAX)
        return inv_fail(s->ctx, INV_E_PARSE,
                        "'%s': more than 2 GiB outside the raw data of tensors. Export it with raw or external data",
                        s->path);
    size_t cap = s->cap < 32768 ? 65536 : s->cap * 2;
    if (cap < s->n + more) cap = s->n + more;
    uint8_t *out = inv_alloc(s->ctx, cap);
    if (!out) return INV_E_NOMEM;
    if (s->n) memcpy(out, s->out, s->n);
    inv_dealloc(s->ctx, s->out);
    s->out = out;
    s->cap = cap;
    return INV_OK;
}

static inv_status put_bytes(scan *s, const void *data, size_t n)
{
    if (!n) return INV_OK;
    INV_TRY(reserve(s, n));
    memcpy(s->out + s->n, data, n);
    s->n += n;
    return INV_OK;
}

static void fill_length(uint8_t *at, size_t n)
{
    for (int i = 0; i < LENGTH_BYTES; i++, n >>= 7) at[i] = (uint8_t)((n & 0x7f) | (i < LENGTH_BYTES - 1 ? 0x80 : 0));
}

static inv_status put_raw_record(scan *s, const inv_field *f)
{
    uint8_t tag[INV_PB_VARINT_MAX];
    inv_raw_record r = {f->body, f->end - f->body};
    INV_TRY(put_bytes(s, tag,
                      inv_wire_put_varint(tag, INV_PB_TENSOR_RAW_DATA << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)));
    INV_TRY(put_bytes(s, &(uint8_t){sizeof r}, 1));
    return put_bytes(s, &r, sizeof r);
}

static inv_status count_field(scan *s, const ProtobufCMessageDescriptor *d, const inv_field *f,
                              const ProtobufCMessageDescriptor *child, bool raw)
{
    s->small += f->body - f->at + (child || raw ? 0 : f->end - f->body);
    s->cost += child                                               ? child->sizeof_message + MESSAGE_COST
               : protobuf_c_message_descriptor_get_field(d, f->id) ? FIELD_COST
                                                                   : UNKNOWN_COST;
    if (child == &onnx__graph_proto__descriptor || child == &onnx__function_proto__descriptor) s->cost += GRAPH_COST;
    if (child == &onnx__node_proto__descriptor && ++s->nodes > INV_MAX_NODES)
        return inv_fail(s->ctx, INV_E_PARSE, "'%s' has more than %d nodes, which is not supported", s->path,
                        INV_MAX_NODES);
    if (s->cost > MOST_COST && (s->cost - MOST_COST) / MOST_COST_PER_BYTE > s->small)
        return inv_fail(s->ctx, INV_E_PARSE,
                        "'%s': byte %zu: too many tiny fields: reading them would take far more memory than the "
                        "file's size. No exporter writes such a file",
                        s->path, f->at);
    return INV_OK;
}

/* Documentation and metadata may be long, names may not. */
static inv_status check_name(scan *s, const ProtobufCMessageDescriptor *d, const inv_field *f)
{
    size_t n = f->end - f->body;
    const char *wrong = n > LONGEST_NAME                            ? "is longer than 65535 bytes"
                        : n && memchr(s->map->base + f->body, 0, n) ? "has a zero byte in it"
                                                                    : NULL;
    if (!wrong || d == &onnx__string_string_entry_proto__descriptor) return INV_OK;
    const ProtobufCFieldDescriptor *p = protobuf_c_message_descriptor_get_field(d, f->id);
    if (!p || p->type != PROTOBUF_C_TYPE_STRING || strcmp(p->name, "doc_string") == 0) return INV_OK;
    return inv_fail(s->ctx, INV_E_PARSE, "'%s': byte %zu, in %s: a name (field %s) %s", s->path, f->at, d->short_name,
                    p->name, wrong);
}

static inv_status scan_message(scan *s, const ProtobufCMessageDescriptor *d, size_t begin, size_t end, int depth)
{
    const uint8_t *base = s->map->base;
    size_t run = begin; /* start of what is to be copied as it is */
    inv_field f;
    for (size_t pos = begin; pos < end; pos = f.end) {
        const char *wrong = inv_wire_field(base, pos, end, &f);
        if (wrong)
            return inv_fail(s->ctx, INV_E_PARSE, "'%s' is not a readable ONNX file: byte %zu, in %s: %s%s", s->path,
                            pos, d->short_name, wrong,
                            depth == 1 && pos > 0 ? "; a download that was not finished ends like this" : "");
        bool prefixed = f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
        bool raw = prefixed && d == &onnx__tensor_proto__descriptor && f.id == INV_PB_TENSOR_RAW_DATA;
        const ProtobufCMessageDescriptor *child = raw || !prefixed ? NULL : inv_wire_child(d, f.id);
        INV_TRY(count_field(s, d, &f, child, raw));
        if (!raw && !child) {
            if (prefixed) INV_TRY(check_name(s, d, &f));
            continue;
        }
        INV_TRY(put_bytes(s, base + run, f.at - run));
        run = f.end;
        if (raw) {
            INV_TRY(put_raw_record(s, &f));
            continue;
        }
        if (depth >= MAX_DEPTH)
            return inv_fail(s->ctx, INV_E_PARSE, "'%s': byte %zu, in %s: more than %d messages inside each other",
                            s->path, pos, d->short_name, MAX_DEPTH);
        uint8_t tag[INV_PB_VARINT_MAX];
        INV_TRY(
            put_bytes(s, tag, inv_wire_put_varint(tag, (uint64_t)f.id << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)));
        INV_TRY(reserve(s, LENGTH_BYTES));
        size_t length_at = s->n;
        s->n += LENGTH_BYTES;
        INV_TRY(scan_message(s, child, f.body, f.end, depth + 1));
        fill_length(s->out + length_at, s->n - length_at - LENGTH_BYTES);
    }
    return put_bytes(s, base + run, end - run);
}

inv_status inv_prescan(inv_context *ctx, const char *path, const inv_map *m, const ProtobufCMessageDescriptor *d,
                       size_t begin, size_t end, uint8_t **skeleton, size_t *nbytes)
{
    scan s = {.ctx = ctx, .path = path, .map = m};
    *skeleton = NULL;
    *nbytes = 0;
    inv_status st = scan_message(&s, d, begin, end, 1);
    if (st != INV_OK) {
        inv_dealloc(ctx, s.out);
        return st;
    }
    *skeleton = s.out;
    *nbytes = s.n;
    return INV_OK;
}

typedef struct arena_hook {
    inv_arena *a;
    bool failed;
} arena_hook;

static void *hook_alloc(void *opaque, size_t n)
{
    arena_hook *h = opaque;
    void *p = inv_arena_alloc(h->a, n ? n : 1);
    if (!p) h->failed = true;
    return p;
}

static void hook_free(void *opaque, void *p)
{
    (void)opaque;
    (void)p;
}

inv_status inv_unpack_skeleton(inv_arena *a, const char *path, const ProtobufCMessageDescriptor *d,
                               const uint8_t *skeleton, size_t nbytes, ProtobufCMessage **out)
{
    arena_hook hook = {.a = a};
    ProtobufCAllocator allocator = {hook_alloc, hook_free, &hook};
    *out = protobuf_c_message_unpack(d, &allocator, nbytes, skeleton);
    if (*out && !hook.failed) return INV_OK;
    *out = NULL;
    if (hook.failed) return INV_E_NOMEM;
    return inv_fail(a->ctx, INV_E_PARSE, "'%s' is not a readable ONNX file: its fields do not fit the ONNX schema",
                    path);
}

inv_status inv_unpack(inv_arena *a, const char *path, const inv_map *m, const ProtobufCMessageDescriptor *d,
                      size_t begin, size_t end, ProtobufCMessage **out)
{
    uint8_t *skeleton;
    size_t n;
    *out = NULL;
    INV_TRY(inv_prescan(a->ctx, path, m, d, begin, end, &skeleton, &n));
    /* An empty message has no skeleton, but protobuf-c wants an address. */
    inv_status s = inv_unpack_skeleton(a, path, d, skeleton ? skeleton : (const uint8_t *)"", n, out);
    inv_dealloc(a->ctx, skeleton);
    return s;
}
