/* SPDX-License-Identifier: Apache-2.0
 * Private header of the importer: ONNX files in and out. Nobody outside this folder and its tests includes it.
 *
 *   map.c      files in memory: the model and its external data;  location.c  where these are
 *   external.c  all external tensors of a file;  file_kind.c  what a file is that is no ONNX model
 *   wire.c     protobuf's wire format, one field at a time
 *   prescan.c  checks the file and makes the skeleton: the file without its tensors' raw data
 *   tables.c   names, lists of defects
 *   tensor.c   TensorProto -> inv_data (views of the mapping where possible)
 *   type.c     TypeProto in words
 *   attr.c     AttributeProto -> inv_attr
 *   import.c   GraphProto -> inv_graph, bodies of control flow included
 *   signature.c  what the file says of its initializers
 *   modules.c  of the modules that read them
 *   weights.c  weights in Constant nodes and bodies become parameters;  placed.c  where their data are
 *   function.c model-local functions;  model_file.c  load and destroy
 *   write_weights.c   the file with new weights;  write_functions.c  with blocks as functions;  encode.c  messages that
 * are new
 *   pieces.c   files as lists of pieces (writer.h), written by core/base/output_file.c
 *   metadata.c  entries of the model's metadata;  inspect.c  the model as JSON */
#ifndef INV_IMPORTER_IMPORTER_H
#define INV_IMPORTER_IMPORTER_H

#include <sys/types.h>

#include "core/graph/model.h"
#include "core/weights/exported.h"
#include "onnx.pb-c.h"

/* --- map.c --- */
typedef struct inv_map {
    const uint8_t *base; /* never NULL once open, also for an empty file */
    size_t nbytes;
    dev_t dev;
    ino_t ino;
    int64_t changed[2]; /* seconds, nanoseconds of its last change by then */
    bool elsewhere;     /* external data that links of a cache lead to: not below the folder of the model's path */
} inv_map;

/* Maps a regular file that is open as fd (which may be closed then). `what` names it in messages. */
inv_status inv_map_fd(inv_context *ctx, int fd, const char *what, inv_map *out);
inv_status inv_map_path(inv_context *ctx, const char *path, inv_map *out);
void inv_map_close(inv_map *m);
/* Whether all files of the model are still what was mapped; one that another took the place of is. */
inv_status inv_files_unchanged(const inv_model *m);

/* An external tensor of the file, wherever it stands there. */
typedef struct inv_external {
    size_t at, end;   /* its message in the file */
    inv_data d;       /* a view of the mapping */
    uint32_t file;    /* in inv_impl.ext */
    uint64_t offset;  /* there */
    const char *what; /* "initializer 'w' in training_info" */
} inv_external;

/* Where the file has the data of a parameter that is no initializer of the main graph: its TensorProto, or the
 * attribute with its numbers. */
typedef struct inv_file_place {
    size_t at;
    uint32_t init; /* in the graph's inits */
} inv_file_place;

/* What inv_model.impl points to. */
typedef struct inv_impl {
    inv_arena arena;
    inv_map file;
    INV_VEC(inv_map) ext;           /* external data, one mapping per file */
    INV_VEC(const char *) ext_name; /* locations already resolved ... */
    INV_VEC(uint32_t) ext_at;       /* ... and the mapping of each */
    INV_VEC(inv_external) external; /* all, in the file's order; nothing is added after loading */
    INV_VEC(inv_file_place) placed; /* in the file's order */
    int dir;                        /* the model's folder; -1, with `no_dir`, an errno */
    int no_dir;
    int64_t ir_version;
    const char *producer, *producer_version;
    inv_exported exported; /* what the graph's points to */
    inv_ids computed;      /* initializers of which the file says that they were computed from parameters and more */
} inv_impl;

/* --- tables.c --- */
typedef struct inv_name {
    const char *key; /* borrowed */
    uint32_t id;
} inv_name;
typedef struct inv_names {
    inv_arena *a;
    inv_name *slot;
    size_t cap, n;
} inv_names;
/* INV_NONE: not there. */
uint32_t inv_names_get(const inv_names *t, const char *key);
/* *taken: the key was there already and keeps its id. */
inv_status inv_names_put(inv_names *t, const char *key, uint32_t id, bool *taken);

/* What is wrong with a file, for one message: all of it, up to a number and a length that are of use to nobody. The
 * code is that of the first defect. */
typedef struct inv_defects {
    inv_str text;
    size_t n, told;
    inv_status code;
} inv_defects;
void inv_defects_init(inv_defects *d, inv_context *ctx);
void inv_defects_fini(inv_defects *d);
void inv_defect(inv_defects *d, inv_status code, const char *fmt, ...) INV_PRINTF(3, 4);
/* INV_OK if there are none. */
inv_status inv_defects_report(const inv_defects *d, const char *path);

/* --- wire.c --- */
typedef struct inv_field {
    uint32_t id;
    unsigned wire;    /* ProtobufCWireType */
    size_t at;        /* of the tag */
    size_t body, end; /* payload, without a length prefix */
} inv_field;
#define INV_PB_VARINT_MAX 10
#define INV_PB_INLINE_END INT32_MAX /* bytes that protobuf's users stop at */
/* NULL, or what is wrong with the field at `at`. */
const char *inv_wire_field(const uint8_t *base, size_t at, size_t end, inv_field *f);
bool inv_wire_varint(const uint8_t *base, size_t *at, size_t end, uint64_t *out);
size_t inv_wire_put_varint(uint8_t buf[INV_PB_VARINT_MAX], uint64_t v); /* bytes written */
/* Type of a message-typed field; NULL if it is something else or unknown. Knows the one newer field with
 * tensors inside, whatever the schema's age: FunctionProto.attribute_proto. */
const ProtobufCMessageDescriptor *inv_wire_child(const ProtobufCMessageDescriptor *d, uint32_t id);

enum {
    INV_PB_MODEL_IR_VERSION = 1,
    INV_PB_MODEL_GRAPH = 7,
    INV_PB_MODEL_OPSET_IMPORT = 8,
    INV_PB_MODEL_METADATA = 14,
    INV_PB_MODEL_TRAINING_INFO = 20,
    INV_PB_MODEL_FUNCTION = 25,
    INV_PB_TRAINING_UPDATE_BINDING = 4,
    INV_PB_NODE_METADATA = 9,
    INV_PB_ENTRY_KEY = 1, /* of metadata */
    INV_PB_ENTRY_VALUE = 2,
    INV_PB_GRAPH_NODE = 1,
    INV_PB_GRAPH_INITIALIZER = 5,
    INV_PB_GRAPH_INPUT = 11,
    INV_PB_GRAPH_OUTPUT = 12,
    INV_PB_GRAPH_VALUE_INFO = 13,
    INV_PB_FUNCTION_NAME = 1,
    INV_PB_FUNCTION_INPUT = 4,
    INV_PB_FUNCTION_OUTPUT = 5,
    INV_PB_FUNCTION_NODE = 7,
    INV_PB_FUNCTION_DOC = 8,
    INV_PB_FUNCTION_OPSET_IMPORT = 9,
    INV_PB_FUNCTION_DOMAIN = 10,
    INV_PB_FUNCTION_ATTRIBUTE_PROTO = 11,
    INV_PB_NODE_INPUT = 1,
    INV_PB_NODE_OUTPUT = 2,
    INV_PB_NODE_NAME = 3,
    INV_PB_NODE_OP_TYPE = 4,
    INV_PB_NODE_ATTRIBUTE = 5,
    INV_PB_NODE_DOMAIN = 7,
    INV_PB_ATTR_NAME = 1,
    INV_PB_ATTR_F = 2,
    INV_PB_ATTR_I = 3,
    INV_PB_ATTR_S = 4,
    INV_PB_ATTR_T = 5,
    INV_PB_ATTR_G = 6,
    INV_PB_ATTR_FLOATS = 7,
    INV_PB_ATTR_INTS = 8,
    INV_PB_ATTR_STRINGS = 9,
    INV_PB_ATTR_GRAPHS = 11,
    INV_PB_ATTR_TYPE = 20,
    INV_PB_TENSOR_DIMS = 1,
    INV_PB_TENSOR_DATA_TYPE = 2,
    INV_PB_INFO_TYPE = 2, /* ValueInfoProto, TypeProto, TypeProto.Tensor */
    INV_PB_INFO_TENSOR = 1,
    INV_PB_INFO_ELEMENT = 1,
    INV_PB_INFO_SHAPE = 2,
    INV_PB_TENSOR_NAME = 8,
    INV_PB_TENSOR_RAW_DATA = 9,
    INV_PB_TENSOR_EXTERNAL_DATA = 13,
    INV_PB_TENSOR_DATA_LOCATION = 14,
    INV_PB_LOCATION_EXTERNAL = 1
};

/* AttributeProto.AttributeType. */
enum {
    INV_PB_TYPE_UNDEFINED,
    INV_PB_TYPE_FLOAT,
    INV_PB_TYPE_INT,
    INV_PB_TYPE_STRING,
    INV_PB_TYPE_TENSOR,
    INV_PB_TYPE_GRAPH,
    INV_PB_TYPE_FLOATS,
    INV_PB_TYPE_INTS,
    INV_PB_TYPE_STRINGS
};

/* --- prescan.c --- */
/* In the skeleton every TensorProto.raw_data holds this, whatever its size was. */
typedef struct inv_raw_record {
    uint64_t offset, length;
} inv_raw_record;
/* Checks the wire format of bytes [begin, end) of the mapping as a message of type `d` and gives the
 * skeleton (inv_dealloc it). `path` is for messages. */
inv_status inv_prescan(inv_context *ctx, const char *path, const inv_map *m, const ProtobufCMessageDescriptor *d,
                       size_t begin, size_t end, uint8_t **skeleton, size_t *nbytes);
/* Unpacks bytes [begin, end) of the mapping into `a`; nothing to free but the arena. */
inv_status inv_unpack(inv_arena *a, const char *path, const inv_map *m, const ProtobufCMessageDescriptor *d,
                      size_t begin, size_t end, ProtobufCMessage **out);
/* The same for a skeleton that is made already. */
inv_status inv_unpack_skeleton(inv_arena *a, const char *path, const ProtobufCMessageDescriptor *d,
                               const uint8_t *skeleton, size_t nbytes, ProtobufCMessage **out);

/* --- file_kind.c --- */
/* "a zip archive: unpack it first", of bytes that are no ONNX model; NULL: it is not known what they are. */
const char *inv_file_kind(inv_arena *a, const uint8_t *base, size_t n);
bool inv_is_lfs_pointer(const uint8_t *base, size_t n);

/* --- import --- */
/* An external data file that is not as it should be. */
typedef struct inv_lost {
    const char *what, *wrong; /* its first tensor */
    inv_status code;
    size_t tensors;
} inv_lost;

typedef struct inv_loader {
    inv_context *ctx;
    inv_model *model;
    inv_impl *impl;
    inv_arena scratch; /* gone after the import: protobuf-c's messages, tables */
    inv_defects defects;
    INV_VEC(inv_lost) lost; /* one defect each (location.c) ... */
    inv_names lost_at;      /* ... by location */
    inv_id source;          /* number of the file's next node (inv_node.source) */
    inv_names arguments;    /* what the exported program calls its parameters ("p_a_weight"), as it lists them */
    bool plain;             /* weights in Constant nodes stay there */
} inv_loader;

/* wire.c. The next field of the file as it lies in memory, which may have been changed since it was looked at first. */
inv_status inv_loader_field(inv_loader *l, size_t at, size_t end, inv_field *f);

/* tensor.c. Only a want of memory is a failure; what is wrong with the tensor is a defect, with
 * out->bytes NULL then. String tensors also have bytes NULL. `what` as in "initializer 'w'". */
inv_status inv_tensor_read(inv_loader *l, inv_arena *into, const Onnx__TensorProto *t, const char *what, inv_data *out);
/* Text of a type that is no tensor, "map(int64,tensor(float))"; NULL: no memory. */
const char *inv_type_text(inv_arena *a, const Onnx__TypeProto *p);
/* map.c: where the bytes of an external tensor of nbytes bytes are: file in impl->ext, and offset; INV_NONE and a
 * defect if they cannot be had. */
inv_status inv_external_place(inv_loader *l, const Onnx__TensorProto *t, const char *what, size_t nbytes,
                              uint32_t *file, uint64_t *offset);
/* location.c: notes what is wrong with the data file `loc`, of which `what` is the first tensor to say so, or counts
 * one more of its tensors. */
inv_status inv_lose(inv_loader *l, const char *loc, const char *what, inv_status code, const char *fmt, ...)
    INV_PRINTF(5, 6);
inv_status inv_lost_again(inv_loader *l, const char *loc, bool *known);
/* Makes defects of what is lost. */
void inv_lost_tell(inv_loader *l);
/* *fd: -1, and noted as lost, if the file may not or cannot be read. */
inv_status inv_location_open(inv_loader *l, const char *loc, const char *what, int *fd, bool *elsewhere);
/* map.c: pages of all files go back to the system; they are read anew when needed. */
void inv_files_forget(const inv_impl *impl);
/* map.c: the file in impl->ext that the bytes are in; INV_NONE: they are in none. */
uint32_t inv_map_of(const inv_impl *impl, const inv_data *d);
/* external.c: finds all external tensors of the file; defects for those that cannot be had or that share bytes. */
inv_status inv_external_all(inv_loader *l);
/* The one whose message is at `at`; NULL: there is none. */
const inv_external *inv_external_at(const inv_impl *impl, size_t at);

/* A graph that is being made, and the names of its values. */
typedef struct inv_scope {
    inv_graph *g;
    inv_names names;
    Onnx__TensorProto *const *init; /* for messages: what defines values */
    Onnx__NodeProto *const *node;
    size_t ninit, nnode;
    struct inv_scope *outer; /* of a body of control flow: the graph around it; else NULL */
    inv_ids captured;        /* values of `outer` that g reads; each has an input of g, behind the formal ones */
    const char *where;       /* for messages: " in function 'f'", or "" */
    bool in_function;        /* references to the call's attributes are allowed */
} inv_scope;

/* attr.c: an attribute of node `what`. Graphs are left to inv_import_body. */
inv_status inv_attr_read(inv_loader *l, inv_graph *g, const Onnx__AttributeProto *p, const char *what, bool in_function,
                         inv_attr *out);

/* import.c */
inv_status inv_import_model(inv_loader *l, const Onnx__ModelProto *m);
inv_status inv_import_opsets(inv_loader *l, inv_graph *g, size_t n, Onnx__OperatorSetIdProto *const *p,
                             const char *what);
/* Nodes and their outputs; s->names holds the values known so far and gets the new ones. */
inv_status inv_import_nodes(inv_loader *l, inv_scope *s, size_t n, Onnx__NodeProto *const *p);
const char *inv_domain(const char *d); /* "" for ai.onnx in all spellings */

/* signature.c: what the file says of its initializers */
inv_status inv_import_signature(inv_loader *l);
/* modules.c: for which modules nodes compute, what those call the parameters that they read, and whether somebody has
 * changed what the exporter wrote. */
inv_status inv_import_modules(inv_loader *l);
typedef struct inv_byte_span {
    const char *text;
    size_t n;
} inv_byte_span;
/* The value of the metadata entry `key` in message `in`, whose entries are fields `id`. Loading has checked the
 * file. */
inv_byte_span inv_entry(const inv_impl *impl, const inv_field *in, uint32_t id, const char *key);
const char *inv_span_find(inv_byte_span s, const char *what); /* NULL: not in it */

/* function.c */
inv_status inv_import_functions(inv_loader *l, const Onnx__ModelProto *m);

/* weights.c: makes parameters of the weights in Constant nodes and bodies of the imported graph. */
inv_status inv_lift_weights(inv_loader *l);
/* placed.c: where they are; keys: of graph and value, to the index in inits. */
inv_status inv_place_weights(inv_loader *l, const inv_names *keys);
/* The parameter whose message is at `at` (inv_file_place); INV_NONE. */
uint32_t inv_placed_at(const inv_impl *impl, size_t at);

#endif
