/* SPDX-License-Identifier: Apache-2.0
 * Protobuf's wire format, one field at a time, with every bound checked. Used for reading (prescan.c) and for
 * writing (write_weights.c), so both see a file alike. Source: protobuf.dev, "Encoding". */
#include "importer/importer.h"

bool inv_wire_varint(const uint8_t *base, size_t *at, size_t end, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < INV_PB_VARINT_MAX && *at < end; i++) {
        uint8_t b = base[(*at)++];
        if (i == INV_PB_VARINT_MAX - 1 && b > 1) return false;
        v |= (uint64_t)(b & 0x7f) << (7 * i);
        if (b < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

size_t inv_wire_put_varint(uint8_t buf[INV_PB_VARINT_MAX], uint64_t v)
{
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) buf[n++] = (uint8_t)(v | 0x80);
    buf[n++] = (uint8_t)v;
    return n;
}

const char *inv_wire_field(const uint8_t *base, size_t at, size_t end, inv_field *f)
{
    uint64_t tag, n;
    size_t pos = at;
    f->at = at;
    if (!inv_wire_varint(base, &pos, end, &tag)) return "the field's tag is cut off or too long";
    if (tag > UINT32_MAX || tag >> 3 == 0) return "the field number is out of range";
    f->id = (uint32_t)(tag >> 3);
    f->wire = (unsigned)(tag & 7);
    f->body = pos;
    switch (f->wire) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        if (!inv_wire_varint(base, &pos, end, &n)) return "a number is cut off or too long";
        f->end = pos;
        return NULL;
    case PROTOBUF_C_WIRE_TYPE_64BIT: n = 8; break;
    case PROTOBUF_C_WIRE_TYPE_32BIT: n = 4; break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        if (!inv_wire_varint(base, &pos, end, &n)) return "a length is cut off or too long";
        f->body = pos;
        break;
    case 3:
    case 4: return "groups are not used by ONNX";
    default: return "the wire type is not known";
    }
    if (n > end - pos) return "the field is longer than the rest of the message around it";
    f->end = pos + (size_t)n;
    return NULL;
}

const ProtobufCMessageDescriptor *inv_wire_child(const ProtobufCMessageDescriptor *d, uint32_t id)
{
    if (d == &onnx__function_proto__descriptor && id == INV_PB_FUNCTION_ATTRIBUTE_PROTO)
        return &onnx__attribute_proto__descriptor;
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(d, id);
    return f && f->type == PROTOBUF_C_TYPE_MESSAGE ? f->descriptor : NULL;
}

inv_status inv_loader_field(inv_loader *l, size_t at, size_t end, inv_field *f)
{
    const char *wrong = inv_wire_field(l->impl->file.base, at, end, f);
    if (!wrong) return INV_OK;
    return inv_fail(l->ctx, INV_E_IO, "'%s' was changed while it was loaded: byte %zu: %s", l->model->path, at, wrong);
}
