/* SPDX-License-Identifier: Apache-2.0
 * Types that are no dense tensors, in words: "seq(tensor(float))", "map(int64,tensor(string))". Source: the type
 * strings of ONNX's operator schemas. */
#include <string.h>

#include "importer/importer.h"

static const char *element_name(int32_t t) { return inv_dtype_name((inv_dtype)t); }

const char *inv_type_text(inv_arena *a, const Onnx__TypeProto *p)
{
    const Onnx__TypeProto *inner = NULL;
    const char *outer = "seq", *text;
    if (!p) return "?";
    switch ((int)p->value_case) {
    case ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE:
        return inv_arena_printf(a, "tensor(%s)", element_name(p->tensor_type->elem_type));
    case ONNX__TYPE_PROTO__VALUE_SPARSE_TENSOR_TYPE:
        return inv_arena_printf(a, "sparse_tensor(%s)", element_name(p->sparse_tensor_type->elem_type));
    case ONNX__TYPE_PROTO__VALUE_MAP_TYPE:
        text = inv_type_text(a, p->map_type->value_type);
        return text ? inv_arena_printf(a, "map(%s,%s)", element_name(p->map_type->key_type), text) : NULL;
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE: inner = p->sequence_type->elem_type; break;
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE:
        inner = p->optional_type->elem_type;
        outer = "optional";
        break;
    default: return "opaque"; /* of a domain's own, or newer than the schema */
    }
    text = inv_type_text(a, inner); /* as deep as messages may be nested (prescan.c) */
    return text ? inv_arena_printf(a, "%s(%s)", outer, text) : NULL;
}
