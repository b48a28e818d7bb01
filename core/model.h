/* SPDX-License-Identifier: Apache-2.0
 * What the passes and the executor may know of a loaded model, and the door through which weights are
 * written back. How the file is held is the importer's business (`impl`). */
#ifndef INV_CORE_MODEL_H
#define INV_CORE_MODEL_H

#include "core/ir.h"

struct inv_model {
    inv_context *ctx;
    const char *path; /* as given to inv_model_load */
    inv_graph *graph; /* as in the file; passes work on copies. Its tensors are views of the mapped file */
    void *impl;       /* importer/: mappings, facts for inspect */
};

/* Present value of an initializer: sets *data (NULL: unchanged), its type and its number of elements.
 * The data stay valid and unchanged until inv__model_write returns; it asks once per initializer. */
typedef inv_status (*inv_weight_source)(void *opaque, const char *initializer, inv_dtype *dtype, const void **data,
                                        size_t *n);

/* Writes the model with the weights of `source` (NULL: none changed), converted to each initializer's own
 * type; every other byte is as in the file. External tensors go to one new file `<basename>.data` beside
 * `path` if one of them changed or `path` is in another folder. Temporary files, fsync, rename: on failure
 * `path` is untouched. Refuses to replace a file that the model is read from. */
inv_status inv__model_write(inv_model *model, inv_weight_source source, void *opaque, const char *path);

#endif
