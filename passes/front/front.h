/* SPDX-License-Identifier: Apache-2.0
 * From the graph as imported to canonical operators with static shapes. Each pass takes a graph that inv_graph_check
 * accepts and leaves one. */
#ifndef INV_PASSES_FRONT_FRONT_H
#define INV_PASSES_FRONT_FRONT_H

#include "core/program/program.h"
#include "core/weights/trained.h"

/* pipeline.c: the passes up to matching, on a copy of an imported graph: canonical forward nodes and what was found. */
inv_status inv_compile_front(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* join_copies.c: equal initializers that the caller calls one */
inv_status inv_pass_join(inv_program *p, inv_arena *scratch);
/* Whether one of the caller's `tied`, GLOB or GLOB=GLOB, says of an initializer that it is shared on purpose. */
bool inv_tied_fits(const char *tied, const inv_value *v);
/* untie.c: merged initializers are refused, or get copies in a graph of the program's own */
inv_status inv_pass_untie(inv_program *p, inv_arena *scratch);
/* lost_biases.c: biases of zeros that the exporter left out come back; `s`: initializers that stand for parameters of
 * the program under other names. */
typedef struct inv_stand_in {
    inv_id param;
    const char *name;
} inv_stand_in;
typedef INV_VEC(inv_stand_in) inv_stand_ins;
bool inv_lost_biases_any(const inv_graph *g, inv_arena *a);
inv_status inv_lost_biases_put(inv_graph *g, const inv_stand_ins *s, inv_arena *a);
/* tied_weights.c: what is in the file once more, transposed: program->tie, and in a copy of the source */
inv_status inv_pass_ties(inv_program *p);
inv_status inv_tie_apply(const inv_program *p, inv_graph *g);
/* open_extents.c: numbers that the model accepts for the extents of its inputs that are below 0 in the options;
 * `batch`: what is tried first for a first axis. dims: one list per input of the options. */
inv_status inv_extents_find(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                            int64_t batch, int64_t *const *dims);
/* reach.c: outputs of types that nothing here computes with are left out, and what only they need */
inv_status inv_pass_reach(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* Names every input and initializer of such a type that nodes of the list read. */
inv_status inv_reach_types(const inv_graph *g, const inv_ids *list);
/* Names a canonical node that reads a sequence or an optional, which only exist while lowering. */
inv_status inv_reach_tensors(const inv_graph *g);
/* types.c: no operator of the file is given two floating-point types where ONNX wants one */
inv_status inv_pass_types(const inv_graph *g);
/* The types in the file of g's values, as far as they are known (else INV_DT_NONE); `type` is empty before. */
inv_status inv_types_of(const inv_graph *g, inv_dtype *type);
/* bind.c: static shapes for the inputs, all arithmetic in g->real.
 * requires: imported graph.  gives: static input shapes, Feed nodes.  breaks: nothing */
inv_status inv_pass_bind(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* After a refusal in g of a value that is not constant: the inputs that it depends on become constants in `o`, as far
 * as `given`, the options that `o` is a copy of, has their values. *more: there were such. */
inv_status inv_bind_varying(const inv_graph *g, const inv_session_options *given, inv_arena *a, inv_session_options *o,
                            bool *more);
inv_status inv_pass_real(inv_graph *g); /* after inlining: all floating-point arithmetic in g->real */
/* inline.c: calls of model-local functions replaced by their bodies; blocks_only: of those that rewriting made, or that
 * are `open` */
inv_status inv_pass_inline(inv_graph *g, bool blocks_only);
/* The same for blocks and what is `open`, in a graph that stays as imported: it keeps its functions. */
inv_status inv_inline_open(inv_graph *g);
/* A body, of a function or of control flow, that is put into g in place of a node. */
typedef struct inv_expansion {
    inv_graph *g;
    inv_arena *scratch;
    const inv_graph *body;
    inv_id node;         /* in place of it: where its nodes come from */
    const char *label;   /* they and their values are called "LABEL/NAME" ... */
    bool block;          /* ... unless they keep their names */
    bool open;           /* nodes keep their sources; those that the file does not have as they are have none */
    const char *tag;     /* further origin of the nodes; NULL: none */
    const inv_attr *arg; /* what references in the body refer to */
    uint32_t narg;
    inv_id *map; /* value of the body -> value of g; INV_NONE: to be made, if a node of the body gives it */
} inv_expansion;
inv_status inv_expand(inv_expansion *x, inv_ids *order);             /* nodes of g, appended */
const char *inv_expand_label(const inv_graph *g, const inv_node *n); /* its name, or what stands for it */
/* The same as the pass, for a list of nodes. */
inv_status inv_inline_calls(inv_graph *g, inv_arena *scratch, inv_ids *list, bool blocks_only);
/* bind.c: the same for a tensor, and for attributes of nodes */
bool inv_real_tensor(inv_graph *g, inv_data *t);
inv_status inv_real_nodes(inv_graph *g, const inv_ids *list);
/* lower.c: canonical operators, constants folded, static shapes everywhere, control flow unrolled. Names every unknown
 * operator at once. */
inv_status inv_pass_lower(inv_graph *g);
typedef struct inv_lowering {
    inv_graph *g;
    inv_arena scratch;
    size_t unrolled; /* nodes so far */
    unsigned depth;  /* of bodies inside each other */
} inv_lowering;
/* Lowers nodes of g that are not in the order yet; values that others stand for then say so (inv_value.same). */
inv_status inv_lower_nodes(inv_lowering *l, const inv_ids *list);
inv_status inv_lower_origin(inv_graph *g, const inv_node *n); /* what is emitted from now on comes from n */
/* unroll.c: what control flow computes in place of the node; out[] gets the values that stand for its outputs. */
bool inv_is_control(const inv_node *n);
inv_status inv_unroll(inv_lowering *l, inv_id node, inv_id *out);

#endif
