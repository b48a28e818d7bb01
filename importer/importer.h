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
typedef struct inv__map {
    const uint8_t *base; /* never NULL once open, also for an empty file */
    size_t nbytes;
    dev_t dev;
    ino_t ino;
    int64_t changed[2]; /* seconds, nanoseconds of its last change by then */
    bool elsewhere;     /* external data that links of a cache lead to: not below the folder of the model's path */
} inv__map;

/* Maps a regular file that is open as fd (which may be closed then). `what` names it in messages. */
inv_status inv__map_fd(inv_context *ctx, int fd, const char *what, inv__map *out);
inv_status inv__map_path(inv_context *ctx, const char *path, inv__map *out);
void inv__map_close(inv__map *m);
/* Whether all files of the model are still what was mapped; one that another took the place of is. */
inv_status inv__files_unchanged(const inv_model *m);

/* An external tensor of the file, wherever it stands there. */
typedef struct inv__external {
    size_t at, end;   /* its message in the file */
    inv_data d;       /* a view of the mapping */
    uint32_t file;    /* in inv__impl.ext */
    uint64_t offset;  /* there */
    const char *what; /* "initializer 'w' in training_info" */
} inv__external;

/* Where the file has the data of a parameter that is no initializer of the main graph: its TensorProto, or the
 * attribute with its numbers. */
typedef struct inv__place {
    size_t at;
    uint32_t init; /* in the graph's inits */
} inv__place;

/* What inv_model.impl points to. */
typedef struct inv__impl {
    inv_arena arena;
    inv__map file;
    INV_VEC(inv__map) ext;           /* external data, one mapping per file */
    INV_VEC(const char *) ext_name;  /* locations already resolved ... */
    INV_VEC(uint32_t) ext_at;        /* ... and the mapping of each */
    INV_VEC(inv__external) external; /* all, in the file's order; nothing is added after loading */
    INV_VEC(inv__place) placed;      /* in the file's order */
    int dir;                         /* the model's folder; -1, with `no_dir`, an errno */
    int no_dir;
    int64_t ir_version;
    const char *producer, *producer_version;
    inv_exported exported; /* what the graph's points to */
    inv_ids computed;      /* initializers of which the file says that they were computed from parameters and more */
} inv__impl;

/* --- tables.c --- */
typedef struct inv__name {
    const char *key; /* borrowed */
    uint32_t id;
} inv__name;
typedef struct inv__names {
    inv_arena *a;
    inv__name *slot;
    size_t cap, n;
} inv__names;
/* INV_NONE: not there. */
uint32_t inv__names_get(const inv__names *t, const char *key);
/* *taken: the key was there already and keeps its id. */
inv_status inv__names_put(inv__names *t, const char *key, uint32_t id, bool *taken);

/* What is wrong with a file, for one message: all of it, up to a number and a length that are of use to nobody. The
 * code is that of the first defect. */
typedef struct inv__defects {
    inv_str text;
    size_t n, told;
    inv_status code;
} inv__defects;
void inv__defects_init(inv__defects *d, inv_context *ctx);
void inv__defects_fini(inv__defects *d);
void inv__defect(inv__defects *d, inv_status code, const char *fmt, ...) INV_PRINTF(3, 4);
/* INV_OK if there are none. */
inv_status inv__defects_report(const inv__defects *d, const char *path);

/* --- wire.c --- */
typedef struct inv__field {
    uint32_t id;
    unsigned wire;    /* ProtobufCWireType */
    size_t at;        /* of the tag */
    size_t body, end; /* payload, without a length prefix */
} inv__field;
#define INV__VARINT_MAX 10
#define INV__INLINE_END INT32_MAX /* bytes that protobuf's users stop at */
/* NULL, or what is wrong with the field at `at`. */
const char *inv__wire_field(const uint8_t *base, size_t at, size_t end, inv__field *f);
bool inv__wire_varint(const uint8_t *base, size_t *at, size_t end, uint64_t *out);
size_t inv__wire_put_varint(uint8_t buf[INV__VARINT_MAX], uint64_t v); /* bytes written */
/* Type of a message-typed field; NULL if it is something else or unknown. Knows the one newer field with
 * tensors inside, whatever the schema's age: FunctionProto.attribute_proto. */
const ProtobufCMessageDescriptor *inv__wire_child(const ProtobufCMessageDescriptor *d, uint32_t id);

enum {
    INV__MODEL_IR_VERSION = 1,
    INV__MODEL_GRAPH = 7,
    INV__MODEL_OPSET_IMPORT = 8,
    INV__MODEL_METADATA = 14,
    INV__MODEL_TRAINING_INFO = 20,
    INV__MODEL_FUNCTION = 25,
    INV__TRAINING_UPDATE_BINDING = 4,
    INV__NODE_METADATA = 9,
    INV__ENTRY_KEY = 1, /* of metadata */
    INV__ENTRY_VALUE = 2,
    INV__GRAPH_NODE = 1,
    INV__GRAPH_INITIALIZER = 5,
    INV__GRAPH_INPUT = 11,
    INV__GRAPH_OUTPUT = 12,
    INV__GRAPH_VALUE_INFO = 13,
    INV__FUNCTION_NAME = 1,
    INV__FUNCTION_INPUT = 4,
    INV__FUNCTION_OUTPUT = 5,
    INV__FUNCTION_NODE = 7,
    INV__FUNCTION_DOC = 8,
    INV__FUNCTION_OPSET_IMPORT = 9,
    INV__FUNCTION_DOMAIN = 10,
    INV__FUNCTION_ATTRIBUTE_PROTO = 11,
    INV__NODE_INPUT = 1,
    INV__NODE_OUTPUT = 2,
    INV__NODE_NAME = 3,
    INV__NODE_OP_TYPE = 4,
    INV__NODE_ATTRIBUTE = 5,
    INV__NODE_DOMAIN = 7,
    INV__ATTR_NAME = 1,
    INV__ATTR_F = 2,
    INV__ATTR_I = 3,
    INV__ATTR_S = 4,
    INV__ATTR_T = 5,
    INV__ATTR_G = 6,
    INV__ATTR_FLOATS = 7,
    INV__ATTR_INTS = 8,
    INV__ATTR_STRINGS = 9,
    INV__ATTR_GRAPHS = 11,
    INV__ATTR_TYPE = 20,
    INV__TENSOR_DIMS = 1,
    INV__TENSOR_DATA_TYPE = 2,
    INV__INFO_TYPE = 2, /* ValueInfoProto, TypeProto, TypeProto.Tensor */
    INV__INFO_TENSOR = 1,
    INV__INFO_ELEMENT = 1,
    INV__INFO_SHAPE = 2,
    INV__TENSOR_NAME = 8,
    INV__TENSOR_RAW_DATA = 9,
    INV__TENSOR_EXTERNAL_DATA = 13,
    INV__TENSOR_DATA_LOCATION = 14,
    INV__LOCATION_EXTERNAL = 1
};

/* AttributeProto.AttributeType. */
enum {
    INV__TYPE_UNDEFINED,
    INV__TYPE_FLOAT,
    INV__TYPE_INT,
    INV__TYPE_STRING,
    INV__TYPE_TENSOR,
    INV__TYPE_GRAPH,
    INV__TYPE_FLOATS,
    INV__TYPE_INTS,
    INV__TYPE_STRINGS
};

/* --- prescan.c --- */
/* In the skeleton every TensorProto.raw_data holds this, whatever its size was. */
typedef struct inv__raw_record {
    uint64_t offset, length;
} inv__raw_record;
/* Checks the wire format of bytes [begin, end) of the mapping as a message of type `d` and gives the
 * skeleton (inv__free it). `path` is for messages. */
inv_status inv__prescan(inv_context *ctx, const char *path, const inv__map *m, const ProtobufCMessageDescriptor *d,
                        size_t begin, size_t end, uint8_t **skeleton, size_t *nbytes);
/* Unpacks bytes [begin, end) of the mapping into `a`; nothing to free but the arena. */
inv_status inv__unpack(inv_arena *a, const char *path, const inv__map *m, const ProtobufCMessageDescriptor *d,
                       size_t begin, size_t end, ProtobufCMessage **out);
/* The same for a skeleton that is made already. */
inv_status inv__unpack_skeleton(inv_arena *a, const char *path, const ProtobufCMessageDescriptor *d,
                                const uint8_t *skeleton, size_t nbytes, ProtobufCMessage **out);

/* --- file_kind.c --- */
/* "a zip archive: unpack it first", of bytes that are no ONNX model; NULL: it is not known what they are. */
const char *inv__file_kind(inv_arena *a, const uint8_t *base, size_t n);
bool inv__is_lfs_pointer(const uint8_t *base, size_t n);

/* --- import --- */
/* An external data file that is not as it should be. */
typedef struct inv__lost {
    const char *what, *wrong; /* its first tensor */
    inv_status code;
    size_t tensors;
} inv__lost;

typedef struct inv__loader {
    inv_context *ctx;
    inv_model *model;
    inv__impl *impl;
    inv_arena scratch; /* gone after the import: protobuf-c's messages, tables */
    inv__defects defects;
    INV_VEC(inv__lost) lost; /* one defect each (location.c) ... */
    inv__names lost_at;      /* ... by location */
    inv_id source;           /* number of the file's next node (inv_node.source) */
    inv__names arguments;    /* what the exported program calls its parameters ("p_a_weight"), as it lists them */
    bool plain;              /* weights in Constant nodes stay there */
} inv__loader;

/* wire.c. The next field of the file as it lies in memory, which may have been changed since it was looked at first. */
inv_status inv__loader_field(inv__loader *l, size_t at, size_t end, inv__field *f);

/* tensor.c. Only a want of memory is a failure; what is wrong with the tensor is a defect, with
 * out->bytes NULL then. String tensors also have bytes NULL. `what` as in "initializer 'w'". */
inv_status inv__tensor_read(inv__loader *l, inv_arena *into, const Onnx__TensorProto *t, const char *what,
                            inv_data *out);
/* Text of a type that is no tensor, "map(int64,tensor(float))"; NULL: no memory. */
const char *inv__type_text(inv_arena *a, const Onnx__TypeProto *p);
/* map.c: where the bytes of an external tensor of nbytes bytes are: file in impl->ext, and offset; INV_NONE and a
 * defect if they cannot be had. */
inv_status inv__external_place(inv__loader *l, const Onnx__TensorProto *t, const char *what, size_t nbytes,
                               uint32_t *file, uint64_t *offset);
/* location.c: notes what is wrong with the data file `loc`, of which `what` is the first tensor to say so, or counts
 * one more of its tensors. */
inv_status inv__lose(inv__loader *l, const char *loc, const char *what, inv_status code, const char *fmt, ...)
    INV_PRINTF(5, 6);
inv_status inv__lost_again(inv__loader *l, const char *loc, bool *known);
/* Makes defects of what is lost. */
void inv__lost_tell(inv__loader *l);
/* *fd: -1, and noted as lost, if the file may not or cannot be read. */
inv_status inv__location_open(inv__loader *l, const char *loc, const char *what, int *fd, bool *elsewhere);
/* map.c: pages of all files go back to the system; they are read anew when needed. */
void inv__files_forget(const inv__impl *impl);
/* map.c: the file in impl->ext that the bytes are in; INV_NONE: they are in none. */
uint32_t inv__map_of(const inv__impl *impl, const inv_data *d);
/* external.c: finds all external tensors of the file; defects for those that cannot be had or that share bytes. */
inv_status inv__external_all(inv__loader *l);
/* The one whose message is at `at`; NULL: there is none. */
const inv__external *inv__external_at(const inv__impl *impl, size_t at);

/* A graph that is being made, and the names of its values. */
typedef struct inv__scope {
    inv_graph *g;
    inv__names names;
    Onnx__TensorProto *const *init; /* for messages: what defines values */
    Onnx__NodeProto *const *node;
    size_t ninit, nnode;
    struct inv__scope *outer; /* of a body of control flow: the graph around it; else NULL */
    inv_ids captured;         /* values of `outer` that g reads; each has an input of g, behind the formal ones */
    const char *where;        /* for messages: " in function 'f'", or "" */
    bool in_function;         /* references to the call's attributes are allowed */
} inv__scope;

/* attr.c: an attribute of node `what`. Graphs are left to inv__import_body. */
inv_status inv__attr_read(inv__loader *l, inv_graph *g, const Onnx__AttributeProto *p, const char *what,
                          bool in_function, inv_attr *out);

/* import.c */
inv_status inv__import_model(inv__loader *l, const Onnx__ModelProto *m);
inv_status inv__import_opsets(inv__loader *l, inv_graph *g, size_t n, Onnx__OperatorSetIdProto *const *p,
                              const char *what);
/* Nodes and their outputs; s->names holds the values known so far and gets the new ones. */
inv_status inv__import_nodes(inv__loader *l, inv__scope *s, size_t n, Onnx__NodeProto *const *p);
const char *inv__domain(const char *d); /* "" for ai.onnx in all spellings */

/* signature.c: what the file says of its initializers */
inv_status inv__import_signature(inv__loader *l);
/* modules.c: for which modules nodes compute, what those call the parameters that they read, and whether somebody has
 * changed what the exporter wrote. */
inv_status inv__import_modules(inv__loader *l);
typedef struct inv__span {
    const char *text;
    size_t n;
} inv__span;
/* The value of the metadata entry `key` in message `in`, whose entries are fields `id`. Loading has checked the
 * file. */
inv__span inv__entry(const inv__impl *impl, const inv__field *in, uint32_t id, const char *key);
const char *inv__span_find(inv__span s, const char *what); /* NULL: not in it */

/* function.c */
inv_status inv__import_functions(inv__loader *l, const Onnx__ModelProto *m);

/* weights.c: makes parameters of the weights in Constant nodes and bodies of the imported graph. */
inv_status inv__lift_weights(inv__loader *l);
/* placed.c: where they are; keys: of graph and value, to the index in inits. */
inv_status inv__place_weights(inv__loader *l, const inv__names *keys);
/* The parameter whose message is at `at` (inv__place); INV_NONE. */
uint32_t inv__placed_at(const inv__impl *impl, size_t at);

#endif
