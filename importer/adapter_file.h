/* SPDX-License-Identifier: Apache-2.0
 * Files of adapters, in onnxruntime's format (.onnx_adapter): named tensors in a flatbuffer. */
#ifndef INV_IMPORTER_ADAPTER_FILE_H
#define INV_IMPORTER_ADAPTER_FILE_H

#include "core/graph/ir.h"

typedef struct inv_adapter_entry {
    const char *name;
    inv_data data; /* of rank 1 or more, as onnxruntime wants it */
} inv_adapter_entry;

typedef struct inv_adapter_file {
    int32_t format, adapter, model; /* versions: of the format, which is 1; what the writer calls the other two */
    INV_VEC(inv_adapter_entry) entry;
} inv_adapter_file;

/* Into `a`, tensors too. INV_E_IO; INV_E_PARSE with what is wrong. */
inv_status inv_adapter_file_read(inv_context *ctx, const char *path, inv_arena *a, inv_adapter_file *out);
/* By a temporary file, fsync and rename. */
inv_status inv_adapter_file_write(inv_context *ctx, const char *path, const inv_adapter_file *f);

#endif
