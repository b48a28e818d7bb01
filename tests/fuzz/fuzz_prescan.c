/* SPDX-License-Identifier: Apache-2.0
 * Property: any bytes are either refused with a message, or the scan's skeleton of them is one that protobuf-c takes
 * or refuses, whose records of raw data lie within the bytes. */
#include "fuzz.h"

#include "importer/importer.h"

static void check_tensor(const Onnx__TensorProto *t, size_t size)
{
    inv_raw_record r;
    if (!t->has_raw_data) return;
    if (t->raw_data.len != sizeof r) abort();
    memcpy(&r, t->raw_data.data, sizeof r);
    if (r.offset > size || r.length > size - r.offset) abort();
}

static void check(const Onnx__ModelProto *m, size_t size)
{
    const Onnx__GraphProto *g = m->graph;
    for (size_t i = 0; g && i < g->n_initializer; i++) check_tensor(g->initializer[i], size);
    for (size_t i = 0; g && i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_attribute; k++)
            if (g->node[i]->attribute[k]->t) check_tensor(g->node[i]->attribute[k]->t, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_context *f = fuzz_open();
    inv_arena a;
    ProtobufCMessage *m = NULL;
    inv_arena_init(&a, f->ctx);
    const inv_map map = {.base = data, .nbytes = size};
    if (fuzz_ok(f, inv_unpack(&a, "fuzz", &map, &onnx__model_proto__descriptor, 0, size, &m)))
        check((const Onnx__ModelProto *)(const void *)m, size);
    inv_arena_fini(&a);
    fuzz_close(f);
    return 0;
}
