/* SPDX-License-Identifier: Apache-2.0
 * Private to the importer: writing models. The loaded file itself is the template: it is walked once, and the result is
 * a list of pieces - runs of the file, new headers, new data - that go to disk when all lengths are known. A message
 * that has nothing new inside is part of a run, so all that this library does not know or care about comes out as it
 * went in, byte for byte:
 *
 *     [run of the file][graph: new length][run][initializer: new length][run][raw_data: weights][run] ...
 *
 * Weights are converted to the initializer's own type while they are written; nothing is copied before. */
#ifndef INV_IMPORTER_WRITER_H
#define INV_IMPORTER_WRITER_H

#include "core/base/output_file.h"
#include "core/edits/inference.h"
#include "importer/importer.h"

/* --- pieces.c: a message, piece by piece --- */
typedef struct inv_file_piece {
    const void *data; /* borrowed; NULL: zeros, or the maker's */
    size_t n;         /* bytes; elements if the types differ */
    inv_dtype from, to;
    inv_maker maker;
} inv_file_piece;

typedef struct inv_file_pieces {
    inv_arena *a;
    INV_VEC(inv_file_piece) list;
    uint64_t nbytes; /* of all pieces */
} inv_file_pieces;

/* Bytes as they are, joined to the piece before where they continue it; zeros if data is NULL. */
inv_status inv_put(inv_file_pieces *p, const void *data, size_t nbytes);
inv_status inv_put_elements(inv_file_pieces *p, const inv_weight *x, inv_dtype to);
/* Fields. */
inv_status inv_put_header(inv_file_pieces *p, uint32_t id, uint64_t length);
inv_status inv_put_int(inv_file_pieces *p, uint32_t id, int64_t v);
inv_status inv_put_float(inv_file_pieces *p, uint32_t id, float v);
inv_status inv_put_text(inv_file_pieces *p, uint32_t id, const char *s);
/* A message of two texts, fields 1 and 2: StringStringEntryProto. */
inv_status inv_put_pair(inv_file_pieces *p, uint32_t id, const char *key, const char *value);

/* A message whose length is known when all that is inside is put. */
typedef struct inv_mark {
    size_t at;
    uint64_t nbytes;
} inv_mark;
inv_status inv_put_open(inv_file_pieces *p, inv_mark *m);
inv_status inv_put_close(inv_file_pieces *p, const inv_mark *m, uint32_t id);
void inv_put_undo(inv_file_pieces *p, const inv_mark *m); /* as if it had not been opened */

/* --- pieces.c: and into files --- */
/* An external tensor that goes to a new file. */
typedef struct inv_moved {
    uint64_t at;
    inv_data old;
    const inv_weight *x; /* NULL: unchanged */
} inv_moved;

/* What becomes of a file of external data: it serves the written model too, or a new one takes its place, with every
 * tensor where it was. Or a fresh file, with none before it: one tensor after the other. */
typedef struct inv_data_file {
    bool fresh, move;
    bool trained;     /* some of it is new */
    uint64_t tensors; /* bytes that belong to one */
    uint64_t end;     /* of what is in it, if it is fresh */
    const char *path, *location;
    INV_VEC(inv_moved) tensor;
    inv_file_pieces pieces;
    inv_out out;
} inv_data_file;

/* A field of the file that is not written as it is. */
typedef struct inv_edit {
    size_t body;               /* where its bytes begin */
    const inv_node_edit *node; /* NULL: it is left out */
} inv_edit;

typedef struct inv_function_call {
    uint32_t from, to; /* functions */
} inv_function_call;

/* The functions of the written model (function_order.c). */
typedef struct inv_functions {
    struct inv_writer *w;
    INV_VEC(inv_field) of_file; /* the first ones */
    size_t n;
    inv_names names; /* "DOMAIN::NAME" -> number */
    INV_VEC(inv_function_call) call;
    uint32_t *order; /* as they are written */
} inv_functions;

typedef struct inv_writer {
    inv_model *m;
    inv_impl *impl;
    inv_loader l;
    inv_weight *weight;  /* per initializer; neither data nor maker: unchanged */
    inv_names inits;     /* name -> index */
    inv_data_file *data; /* per file in impl->ext, then the fresh one */
    size_t ndata;
    const char *path;
    inv_file_pieces model;
    inv_inference form;
    INV_VEC(inv_edit) edit;  /* by place */
    inv_functions functions; /* of inv_put_model */
    size_t put;              /* so many of them are written */
} inv_writer;

inv_status inv_writer_begin(inv_writer *w, inv_model *m, const char *path);
inv_status inv_writer_publish(inv_writer *w); /* all files, the model last */
/* The model's file in memory, by a temporary file beside where it would be. */
inv_status inv_writer_map(inv_writer *w, inv_map *out);
void inv_writer_end(inv_writer *w); /* always, also after a failure of begin */
/* The field of the loaded file at `at`. */
inv_status inv_writer_field(const inv_writer *w, size_t at, size_t end, inv_field *f);

/* --- function_order.c: functions of the file, but for those in `without` (or NULL), then those that are added --- */
inv_status inv_functions_begin(inv_functions *x, inv_writer *w, const inv_names *without);
inv_status inv_functions_add(inv_functions *x, const char *domain, const char *name);
/* When all are there: what those that were added call, and the node of the file at [begin, end). */
inv_status inv_functions_call(inv_functions *x, uint32_t from, const char *domain, const char *name);
inv_status inv_functions_call_in(inv_functions *x, uint32_t from, size_t begin, size_t end);
/* When all calls are there. */
inv_status inv_functions_sort(inv_functions *x);

/* metadata.c: whether an entry of the file's metadata_props is written; those that are written besides. */
inv_status inv_entry_stays(inv_writer *w, const inv_field *f, bool *stays);
inv_status inv_put_entries(inv_writer *w);

/* write_weights.c: the whole model's messages, with what has been asked for. */
inv_status inv_put_model(inv_writer *w);

/* --- edit.c: nodes that are not written as they are --- */
/* From now on the form for inference is written. */
inv_status inv_writer_settle(inv_writer *w);
/* NULL: the field whose bytes begin there stays as it is. */
const inv_edit *inv_edit_at(const inv_writer *w, size_t body);
inv_status inv_put_edit(inv_writer *w, const inv_field *f, const inv_edit *e);
/* Parts of it, for nodes that change in other ways, too: whether attribute f gives way; what takes its place; and the
 * nodes beside it that give what it gives no more. */
inv_status inv_edit_replaces(inv_writer *w, const inv_node_edit *e, const inv_field *f, bool *replaces);
inv_status inv_put_edit_attr(inv_writer *w, const inv_node_edit *e);
inv_status inv_put_passed(inv_writer *w, const inv_field *node, const inv_node_edit *e);

/* --- write_weights.c --- */
/* Asks for the present weights of all initializers; source NULL: none changed. */
inv_status inv_writer_ask(inv_writer *w, inv_weight_source source, void *opaque);
/* Field f of a message of type d as it is in the file, but with present weights, if d is the main graph, and with what
 * edit.c says; external tensors inside move if their file does. */
inv_status inv_put_field(inv_writer *w, const ProtobufCMessageDescriptor *d, const inv_field *f);

/* A new initializer, as field `id`. maker: NULL, or in place of d->bytes. */
inv_status inv_put_initializer(inv_writer *w, uint32_t id, const char *name, const inv_data *d, const inv_maker *maker);

/* --- encode.c: messages that are in no file yet --- */
inv_status inv_put_tensor_head(inv_file_pieces *p, const char *name, const inv_data *d); /* all but the data */
/* maker: NULL, or in place of d->bytes. */
inv_status inv_put_tensor(inv_file_pieces *p, uint32_t id, const char *name, const inv_data *d, const inv_maker *maker);
inv_status inv_put_attr(inv_file_pieces *p, uint32_t id, const inv_attr *a);
/* ValueInfoProto of a tensor: of each axis an extent or (below 0) a symbol or neither; symbols NULL: none. */
inv_status inv_put_declaration(inv_file_pieces *p, uint32_t id, const char *name, inv_dtype dtype,
                               const inv_shape *shape, const char *const *symbols);
/* The shape within it, as field `id` of TypeProto.Tensor. */
inv_status inv_put_shape(inv_file_pieces *p, uint32_t id, const inv_shape *shape, const char *const *symbols);
inv_status inv_put_opset(inv_file_pieces *p, uint32_t id, const char *domain, int64_t version);

#endif
