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
typedef struct inv__piece {
    const void *data; /* borrowed; NULL: zeros, or the maker's */
    size_t n;         /* bytes; elements if the types differ */
    inv_dtype from, to;
    inv_maker maker;
} inv__piece;

typedef struct inv__pieces {
    inv_arena *a;
    INV_VEC(inv__piece) list;
    uint64_t nbytes; /* of all pieces */
} inv__pieces;

/* Bytes as they are, joined to the piece before where they continue it; zeros if data is NULL. */
inv_status inv__put(inv__pieces *p, const void *data, size_t nbytes);
inv_status inv__put_elements(inv__pieces *p, const inv_weight *x, inv_dtype to);
/* Fields. */
inv_status inv__put_header(inv__pieces *p, uint32_t id, uint64_t length);
inv_status inv__put_int(inv__pieces *p, uint32_t id, int64_t v);
inv_status inv__put_float(inv__pieces *p, uint32_t id, float v);
inv_status inv__put_text(inv__pieces *p, uint32_t id, const char *s);
/* A message of two texts, fields 1 and 2: StringStringEntryProto. */
inv_status inv__put_pair(inv__pieces *p, uint32_t id, const char *key, const char *value);

/* A message whose length is known when all that is inside is put. */
typedef struct inv__mark {
    size_t at;
    uint64_t nbytes;
} inv__mark;
inv_status inv__put_open(inv__pieces *p, inv__mark *m);
inv_status inv__put_close(inv__pieces *p, const inv__mark *m, uint32_t id);
void inv__put_undo(inv__pieces *p, const inv__mark *m); /* as if it had not been opened */

/* --- pieces.c: and into files --- */
/* An external tensor that goes to a new file. */
typedef struct inv__moved {
    uint64_t at;
    inv_data old;
    const inv_weight *x; /* NULL: unchanged */
} inv__moved;

/* What becomes of a file of external data: it serves the written model too, or a new one takes its place, with every
 * tensor where it was. Or a fresh file, with none before it: one tensor after the other. */
typedef struct inv__data_file {
    bool fresh, move;
    bool trained;     /* some of it is new */
    uint64_t tensors; /* bytes that belong to one */
    uint64_t end;     /* of what is in it, if it is fresh */
    const char *path, *location;
    INV_VEC(inv__moved) tensor;
    inv__pieces pieces;
    inv__out out;
} inv__data_file;

/* A field of the file that is not written as it is. */
typedef struct inv__edit {
    size_t body;               /* where its bytes begin */
    const inv_node_edit *node; /* NULL: it is left out */
} inv__edit;

typedef struct inv__call {
    uint32_t from, to; /* functions */
} inv__call;

/* The functions of the written model (function_order.c). */
typedef struct inv__functions {
    struct inv__writer *w;
    INV_VEC(inv__field) of_file; /* the first ones */
    size_t n;
    inv__names names; /* "DOMAIN::NAME" -> number */
    INV_VEC(inv__call) call;
    uint32_t *order; /* as they are written */
} inv__functions;

typedef struct inv__writer {
    inv_model *m;
    inv__impl *impl;
    inv__loader l;
    inv_weight *weight;   /* per initializer; neither data nor maker: unchanged */
    inv__names inits;     /* name -> index */
    inv__data_file *data; /* per file in impl->ext, then the fresh one */
    size_t ndata;
    const char *path;
    inv__pieces model;
    inv_inference form;
    INV_VEC(inv__edit) edit;  /* by place */
    inv__functions functions; /* of inv__put_model */
    size_t put;               /* so many of them are written */
} inv__writer;

inv_status inv__writer_begin(inv__writer *w, inv_model *m, const char *path);
inv_status inv__writer_publish(inv__writer *w); /* all files, the model last */
/* The model's file in memory, by a temporary file beside where it would be. */
inv_status inv__writer_map(inv__writer *w, inv__map *out);
void inv__writer_end(inv__writer *w); /* always, also after a failure of begin */
/* The field of the loaded file at `at`. */
inv_status inv__writer_field(const inv__writer *w, size_t at, size_t end, inv__field *f);

/* --- function_order.c: functions of the file, but for those in `without` (or NULL), then those that are added --- */
inv_status inv__functions_begin(inv__functions *x, inv__writer *w, const inv__names *without);
inv_status inv__functions_add(inv__functions *x, const char *domain, const char *name);
/* When all are there: what those that were added call, and the node of the file at [begin, end). */
inv_status inv__functions_call(inv__functions *x, uint32_t from, const char *domain, const char *name);
inv_status inv__functions_call_in(inv__functions *x, uint32_t from, size_t begin, size_t end);
/* When all calls are there. */
inv_status inv__functions_sort(inv__functions *x);

/* metadata.c: whether an entry of the file's metadata_props is written; those that are written besides. */
inv_status inv__entry_stays(inv__writer *w, const inv__field *f, bool *stays);
inv_status inv__put_entries(inv__writer *w);

/* write_weights.c: the whole model's messages, with what has been asked for. */
inv_status inv__put_model(inv__writer *w);

/* --- edit.c: nodes that are not written as they are --- */
/* From now on the form for inference is written. */
inv_status inv__writer_settle(inv__writer *w);
/* NULL: the field whose bytes begin there stays as it is. */
const inv__edit *inv__edit_at(const inv__writer *w, size_t body);
inv_status inv__put_edit(inv__writer *w, const inv__field *f, const inv__edit *e);
/* Parts of it, for nodes that change in other ways, too: whether attribute f gives way; what takes its place; and the
 * nodes beside it that give what it gives no more. */
inv_status inv__edit_replaces(inv__writer *w, const inv_node_edit *e, const inv__field *f, bool *replaces);
inv_status inv__put_edit_attr(inv__writer *w, const inv_node_edit *e);
inv_status inv__put_passed(inv__writer *w, const inv__field *node, const inv_node_edit *e);

/* --- write_weights.c --- */
/* Asks for the present weights of all initializers; source NULL: none changed. */
inv_status inv__writer_ask(inv__writer *w, inv_weight_source source, void *opaque);
/* Field f of a message of type d as it is in the file, but with present weights, if d is the main graph, and with what
 * edit.c says; external tensors inside move if their file does. */
inv_status inv__put_field(inv__writer *w, const ProtobufCMessageDescriptor *d, const inv__field *f);

/* A new initializer, as field `id`. maker: NULL, or in place of d->bytes. */
inv_status inv__put_initializer(inv__writer *w, uint32_t id, const char *name, const inv_data *d,
                                const inv_maker *maker);

/* --- encode.c: messages that are in no file yet --- */
inv_status inv__put_tensor_head(inv__pieces *p, const char *name, const inv_data *d); /* all but the data */
/* maker: NULL, or in place of d->bytes. */
inv_status inv__put_tensor(inv__pieces *p, uint32_t id, const char *name, const inv_data *d, const inv_maker *maker);
inv_status inv__put_attr(inv__pieces *p, uint32_t id, const inv_attr *a);
/* ValueInfoProto of a tensor: of each axis an extent or (below 0) a symbol or neither; symbols NULL: none. */
inv_status inv__put_declaration(inv__pieces *p, uint32_t id, const char *name, inv_dtype dtype, const inv_shape *shape,
                                const char *const *symbols);
/* The shape within it, as field `id` of TypeProto.Tensor. */
inv_status inv__put_shape(inv__pieces *p, uint32_t id, const inv_shape *shape, const char *const *symbols);
inv_status inv__put_opset(inv__pieces *p, uint32_t id, const char *domain, int64_t version);

#endif
