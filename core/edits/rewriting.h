/* SPDX-License-Identifier: Apache-2.0
 * A model as it shall be written with its blocks as functions (docs/rewriting.md). passes/export/outline.c says what,
 * importer/write_functions.c writes it. Everything is in one arena; texts may also be borrowed from the model's graph.
 * */
#ifndef INV_CORE_REWRITING_H
#define INV_CORE_REWRITING_H

#include "core/graph/model.h"

#define INV_OUTLINE_DOMAIN "ai.invonnx"

/* A node of the file, perhaps with other names (raw bytes else), or a new one: a call, or part of an inverse. */
typedef struct inv_outline_node {
    uint32_t source;                    /* inv_node.source of the file's node; INV_NONE: new */
    const char *domain, *op_type;       /* of new nodes; domain "" is ai.onnx */
    const char *name;                   /* of new nodes; may be "" */
    bool renamed;                       /* ... of a node of the file, too */
    const char *const *in, *const *out; /* value names, "" where omitted; of nodes of either kind */
    uint32_t nin, nout;
    uint32_t ncaptured;   /* of the inputs, the last: what bodies of control flow read, which the file does not list */
    const inv_attr *attr; /* of new nodes: ints, floats, strings, lists of them, tensors */
    uint32_t nattr;
} inv_outline_node;

typedef INV_VEC(inv_outline_node) inv_outline_nodes;

typedef struct inv_outline_function {
    const char *name, *doc;             /* in domain ai.invonnx */
    const char *const *in, *const *out; /* formal names */
    uint32_t nin, nout;
    inv_outline_nodes node; /* in execution order */
} inv_outline_function;

typedef struct inv_outline_tensor {
    const char *name;
    inv_data data;   /* float32 or float64, row-major */
    inv_maker maker; /* of the entries, in place of data.bytes */
} inv_outline_tensor;

/* An input or output of the main graph. */
typedef struct inv_outline_port {
    const char *name;           /* as one of the file's inputs or outputs, whose declaration is taken; */
    inv_dtype dtype;            /* or, if this is not NONE, a new one, */
    inv_shape shape;            /* with extents, those below 0 open, */
    const char *const *symbols; /* which these name; NULL: none has a name */
} inv_outline_port;

typedef struct inv_outline_fact {
    const char *key, *value; /* entry of the model's metadata_props; keys begin with "ai.invonnx." */
} inv_outline_fact;

/* What became of a block: a row of the report. */
typedef struct inv_outline_block {
    uint32_t block;                          /* index in the matches of the graph that was looked at */
    uint32_t at;                             /* index of the function; its inverse, if it has one, is the next */
    const char *function;                    /* NULL: left as it was, for `reason` */
    const char *parent;                      /* function that calls it; NULL: the main graph */
    const char *inverse;                     /* NULL: has none, for `reason` */
    const char *const *freed, *const *given; /* values that the inverse gives; others that it needs besides outputs */
    uint32_t nfreed, ngiven;
    double gain; /* product of the gains of the inverses used; INFINITY: unbounded */
    const char *reason;
} inv_outline_block;

typedef struct inv_outline {
    bool rewritten;         /* the blocks of an earlier rewriting give way to those here */
    inv_outline_nodes node; /* of the main graph, in execution order */
    INV_VEC(inv_outline_function) function;
    INV_VEC(inv_outline_tensor) tensor; /* initializers to add */
    INV_VEC(const char *) drop;         /* initializers and value infos to leave out */
    /* Whose declarations, as inputs, outputs and value infos, get this shape; initializers among them give way to those
     * in `tensor`. */
    INV_VEC(inv_outline_port) restate;
    INV_VEC(const char *) opened; /* functions of the file to leave out, "DOMAIN::NAME": their nodes are here */
    INV_VEC(inv_opset) opset;     /* further ones that the model comes to import */
    bool ports; /* the graph has these inputs and outputs, besides initializers that are listed as inputs: */
    INV_VEC(inv_outline_port) in, out;
    INV_VEC(inv_outline_fact) fact;
    INV_VEC(inv_outline_block) block;
    INV_VEC(const char *) fixed; /* inputs whose given values decided what was looked at: inverses hold for these */
    bool inference;              /* the file's nodes in the form for inference (core/edits/inference.h) */
    inv_weight_source source;    /* of the file's initializers; NULL: none changed */
    void *opaque;
} inv_outline;

/* Notes the functions whose nodes are in the graph now, and what these need: its operator sets from `nopset` on. */
inv_status inv_outline_opened(const inv_graph *g, size_t nopset, inv_arena *a, inv_outline *o);

/* What inv_rewrite_fn gives. `outline.block` speaks of the matches of g. */
typedef struct inv_rewriting {
    inv_context *ctx;
    inv_arena a;
    inv_graph *flat, *g; /* the file's nodes, and the canonical ones; may be NULL */
    inv_outline outline;
    inv_graph *reversed;                    /* the inverse direction in memory, in an arena of its own; else NULL */
    size_t ninverse;                        /* of a reversal: local inverses used, ... */
    double gain;                            /* ... product of their gains */
    const char *stranger, *stranger_plugin; /* ... a rule of a plugin whose log-determinant it takes; NULL: none */
    const char *const *derived;             /* ... the inputs that it gives */
    size_t nderived;
    const char *const *notes; /* ... and what else there is to say */
    size_t nnotes;
    void *maker; /* of the outline's tensors (passes/export/rewrite.c) */
    void (*release)(void *maker);
} inv_rewriting;

static inline void inv_rewriting_destroy(inv_rewriting *r)
{
    if (!r) return;
    inv_context *ctx = r->ctx;
    if (r->maker) r->release(r->maker);
    inv_graph_destroy(r->g);
    inv_graph_destroy(r->flat);
    inv_graph_destroy(r->reversed);
    inv_arena_fini(&r->a);
    inv_dealloc(ctx, r);
}

#endif
