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
    inv_graph *forward; /* if `graph` is the inverse direction: as in the file; else NULL */
    inv_layout layout; /* of what is written */
    inv_form form;
    const char *const *taken; /* names of constants that the caller calls parameters (inv_model_load_with) */
    size_t ntaken;
    void *impl;       /* importer/: mappings, facts for inspect */
};

/* inv_model_load, but weights in Constant nodes stay there: for files whose functions other models take over. */
inv_status inv__model_load_plain(inv_context *ctx, const char *path, inv_model **out);

/* Entries that are made when they are written, so that not all of them have to be there at once. *data is valid until
 * the next call. */
typedef struct inv_maker {
    inv_status (*make)(void *opaque, size_t i, const void **data); /* NULL: there is none */
    void *opaque;
    size_t i;
} inv_maker;

/* Present value of an initializer. */
typedef struct inv_weight {
    inv_dtype dtype;
    size_t n;         /* elements */
    const void *data; /* valid and unchanged until inv__model_write returns */
    inv_maker maker;  /* in place of data */
} inv_weight;

/* Fills *out, which is zero, or leaves it: unchanged. It is asked once per initializer. */
typedef inv_status (*inv_weight_source)(void *opaque, const char *initializer, inv_weight *out);

/* Writes the model with the weights of `source` (NULL: none changed), converted to each initializer's own type, and in
 * the form for inference if that is wanted (core/inference.h); every other byte is as in the file. Unless model->layout
 * says otherwise: a file of external data is replaced by a new one, `<path>.data` (further ones `<path>.data.1`, ...),
 * if a tensor in it changed or `path` is in another folder; tensors keep their offsets.
 * Temporary files, fsync, rename: on failure `path` is untouched. Refuses to replace a file that the model is read
 * from. */
inv_status inv__model_write(inv_model *model, inv_weight_source source, void *opaque, bool inference, const char *path);

/* The model in the form for inference, as if it had been loaded so; for what is to be written to `beside`. */
inv_status inv__model_settled(inv_model *model, const char *beside, inv_model **out);

#endif
