/* SPDX-License-Identifier: Apache-2.0
 * What passes and the executor ask of the importer: loading and writing models. */
#ifndef INV_IMPORTER_MODEL_FILE_H
#define INV_IMPORTER_MODEL_FILE_H

#include "core/edits/rewriting.h"
#include "core/graph/model.h"

/* inv_model_load, but weights in Constant nodes stay there: for files whose functions other models take over. */
inv_status inv_model_load_plain(inv_context *ctx, const char *path, inv_model **out);

/* map.c: pages of the model's files that were read go back to the system. Whatever is read of them again is mapped
 * anew. What is read maps what is around it as well, up to tens of MiB. */
void inv_model_forget(const inv_model *m);
/* The same for these bytes, if they are of a mapped file. */
void inv_model_forget_range(const inv_model *m, const void *from, size_t nbytes);

/* Writes the model with the weights of `source` (NULL: none changed), converted to each initializer's own type, and in
 * the form for inference if that is wanted (core/edits/inference.h); every other byte is as in the file. Unless
 * model->layout says otherwise: a file of external data is replaced by a new one, `<path>.data` (further ones
 * `<path>.data.1`, ...), if a tensor in it changed or `path` is in another folder; tensors keep their offsets.
 * Temporary files, fsync, rename: on failure `path` is untouched. Refuses to replace a file that the model is read
 * from. */
inv_status inv_model_write(inv_model *model, inv_weight_source source, void *opaque, bool inference, const char *path);

/* The model in the form for inference, as if it had been loaded so; for what is to be written to `beside`. */
inv_status inv_model_settled(inv_model *model, const char *beside, inv_model **out);

/* write_functions.c: writes the model as `o` says, by temporary file, fsync and rename. What is not spoken of in `o`
 * is as in the file, byte for byte, unknown fields included. If it is `rewritten`, the functions that an earlier
 * rewriting made, and what the metadata say of them, are left out, and those of `o` take their place. If `o` has
 * functions, the operator set ai.invonnx 1 is imported and the IR version is at least 8; if it adds initializers, at
 * least 4. External tensors as inv_model_write does it.
 * @return INV_OK; INV_E_IO, INV_E_NOMEM, INV_E_ARG */
inv_status inv_outline_write(inv_model *model, const inv_outline *o, const char *path);

#endif
