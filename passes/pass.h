/* SPDX-License-Identifier: Apache-2.0
 * The passes, grouped by file. Each takes a graph that inv_graph_check accepts and leaves one. */
#ifndef INV_PASSES_PASS_H
#define INV_PASSES_PASS_H

#include "core/condition.h"
#include "core/cost.h"
#include "core/program.h"
#include "core/trained.h"

/* pipeline.c */
inv_status inv_compile(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                       inv_program **out);

/* homes.c: where what the graph's nodes read and do not compute lives, in homes of the program's */
inv_status inv_house(inv_program *p, inv_graph *g);

/* untie.c: merged initializers are refused, or get copies in a graph of the program's own */
inv_status inv_pass_untie(inv_program *p);

/* rewrite.c: what inv_context.rewrite and inverses point to */
struct inv_rewriting;
inv_status inv_rewrite_blocks(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                              struct inv_rewriting **out);
inv_status inv_rewrite_inverses(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                                struct inv_rewriting **out);

/* reverse_batch.c: what inv_context.reverse points to */
inv_status inv_reverse_model(inv_context *ctx, const inv_graph *source, const inv_session_options *shapes,
                             const inv_reverse_options *options, bool in_memory, struct inv_rewriting **out);

/* likelihood.c: with INV_LOGDET_RULES, unless the model has an output of that name: its log-determinant, in a graph of
 * the program's own */
inv_status inv_pass_likelihood(inv_program *p);
/* What inv_context.volumes points to. */
inv_status inv_volumes_by_rules(inv_context *ctx, const inv_graph *source, const inv_session_options *o, bool compared,
                                inv_volumes *out);

/* support.c: what inv_context.support points to */
inv_status inv_support_of(inv_context *ctx, const inv_op_def *row, inv_support *out);

/* What one plan is compiled for. */
typedef struct inv_request {
    const inv_session_options *options;
    inv_purpose purpose;
    int64_t batch;      /* rows; 0: as the given shapes say */
    bool rebatch;       /* dims[0] may differ from the model's fixed extent */
    bool optimize;      /* emit the update */
} inv_request;

/* pipeline.c: the passes up to matching, on a copy of an imported graph: canonical forward nodes and what was found. */
inv_status inv_compile_front(inv_graph *g, const inv_request *rq, inv_plan *plan);

/* extents.c: numbers that the model accepts for the extents of its inputs that are below 0 in the options; `batch`:
 * what is tried first for a first axis. dims: one list per input of the options. */
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
/* Whether the values of this input, one of the options', are constants of the session. */
bool inv_input_is_constant(const inv_session_options *o, const inv_array *a);
/* After a refusal in g of a value that is not constant: the inputs that it depends on become constants in `o`, as far
 * as `given`, the options that `o` is a copy of, has their values. *more: there were such. */
inv_status inv_bind_varying(const inv_graph *g, const inv_session_options *given, inv_arena *a, inv_session_options *o,
                            bool *more);
/* Turns value v into the output of a Feed node with a new slot; the node. */
inv_id inv_bind_feed(inv_graph *g, inv_plan *plan, inv_id v, bool is_target);
inv_status inv_pass_real(inv_graph *g); /* after inlining: all floating-point arithmetic in g->real */
/* inline.c: calls of model-local functions replaced by their bodies; blocks_only: of those that rewriting made, or that
 * are `open` */
inv_status inv_pass_inline(inv_graph *g, bool blocks_only);
/* A body, of a function or of control flow, that is put into g in place of a node. */
typedef struct inv_expansion {
    inv_graph *g;
    inv_arena *scratch;
    const inv_graph *body;
    inv_id node;          /* in place of it: where its nodes come from */
    const char *label;    /* they and their values are called "LABEL/NAME" ... */
    bool block;           /* ... unless they keep their names */
    bool open;            /* nodes keep their sources; those that the file does not have as they are have none */
    const char *tag;      /* further origin of the nodes; NULL: none */
    const inv_attr *arg;  /* what references in the body refer to */
    uint32_t narg;
    inv_id *map;          /* value of the body -> value of g; INV_NONE: to be made, if a node of the body gives it */
} inv_expansion;
inv_status inv_expand(inv_expansion *x, inv_ids *order); /* nodes of g, appended */
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
/* grad.c: the operator Gradient, which stands for reverse mode between values of the model; out: one per `xs` */
bool inv_is_gradient(const inv_node *n);
inv_status inv_lower_gradient(inv_graph *g, const inv_node *n, inv_id *out);
inv_status inv_unroll(inv_lowering *l, inv_id node, inv_id *out);
/* simplify.c: peepholes on canonical operators, until nothing changes */
inv_status inv_pass_simplify(inv_graph *g);
/* spelling.c: what is written in several operators as the one that says it, by a table */
inv_status inv_pass_spelling(inv_graph *g);
/* overwrite.c: what stands for an update in place (ScatterNDN); INV_NONE: nothing, or g->failed */
inv_id inv_simplify_overwrite(inv_graph *g, const inv_node *n, inv_arena *scratch);
/* match.c: blocks, refusals and local inverses of the forward nodes, into g->matches */
inv_status inv_pass_match(inv_graph *g);
/* check.c: every inverse beside what it frees, and how far it is off */
inv_status inv_pass_check(inv_graph *g, inv_plan *plan);
/* loss.c: loss (and metric) nodes */
inv_status inv_pass_loss(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* tie.c: what is in the file once more, transposed: program->tie, and in a copy of the source */
inv_status inv_pass_ties(inv_program *p);
inv_status inv_tie_apply(const inv_program *p, inv_graph *g);
/* grad.c: backward nodes; gradients of trainable parameters and, if wanted, inputs */
inv_status inv_pass_grad(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* update.c: how many tensors of a parameter's size an optimizer keeps of it */
size_t inv_optimizer_states(const inv_session_options *o);
/* optimizer and running statistics, as commit nodes */
inv_status inv_pass_update(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* layout.c: channels last where convolutions gain by it */
inv_status inv_pass_layout(inv_graph *g);
/* join.c */
inv_status inv_pass_join(inv_graph *g);
/* order.c: forward, backward, commit; feeds sink to their first reader */
inv_status inv_pass_order(inv_graph *g);
/* With early updates, after recovery: they move to where they can be made, into the compute part; with guards (not
 * g->early any more), the counts that they read. */
inv_status inv_advance_updates(inv_graph *g);
/* search.c: recovers a copy of plan->base in the way that suits the memory mode; sets plan->g */
inv_status inv_pass_search(inv_plan *plan, const inv_request *rq, inv_program *program);
/* search.c: what no plan of the base graph can take less than, of transient bytes */
inv_status inv_search_floor(inv_plan *plan, const inv_request *rq, inv_program *program, size_t *nbytes);
/* pipeline.c: of session and step with other options */
inv_status inv_program_floor(const inv_program *p, const inv_session_options *options, size_t *nbytes);
/* refuse.c: logs that the budget is out of reach: a step takes `least` bytes at least, besides so many that persist, or
 * these alone are more (0) */
void inv_refuse_at_once(const inv_program *program, size_t persistent, size_t least);
/* the same before anything is built, if what persists is surely more; sets program->surely */
void inv_refuse_before(inv_program *p);
/* fails with what was noted of the budget, and what would help */
inv_status inv_refuse(inv_program *p);
/* saved.c: program->save */
inv_status inv_plan_save(const inv_program *program, char **json);
/* memplan.c: liveness, peaks and offsets */
inv_status inv_pass_memplan(inv_graph *g, inv_plan *plan);
/* Bytes that values share from one position to another, inclusive. */
typedef struct inv_buffer {
    size_t nbytes;
    uint32_t from, to;
    uint8_t mem;
    inv_id value;      /* first value; INV_NONE: workspace of the node at `from` */
} inv_buffer;
typedef INV_VEC(inv_buffer) inv_buffers;
/* The buffers if no forward value is written over behind forward; of: per value, UINT32_MAX: none. */
inv_status inv_buffers_apart(inv_graph *g, inv_arena *a, inv_buffers *out, uint32_t **of);
/* verify.c: INV_E_INTERNAL if the order does not read what it has written, or values get into each other's bytes */
inv_status inv_plan_verify(const inv_graph *g, const inv_plan *plan);

/* Arithmetic of one node: op->flops, else the elements of its largest operand. */
double inv_node_flops(const inv_graph *g, const inv_node *n);
/* cost.c: what plans are compared by: predicted seconds of one node, or without a table its arithmetic */
double inv_node_cost(const inv_cost_table *t, const inv_graph *g, const inv_node *n);
/* The same of so many bytes that go to host memory and back while other nodes run. */
double inv_offload_cost(const inv_cost_table *t, double nbytes);
/* Predicted times of the plan's nodes, and of the step with everything stored. requires: plan->g, plan->base */
inv_status inv_plan_predict(inv_plan *plan, const inv_cost_table *t);

/* logdet.c: whether it can write the logarithm of the derivative of this canonical operator */
bool inv_has_log_derivative(const char *op);

/* rule.c: rules compiled for matching */
typedef struct inv_rule {
    const inv_inverse_def *def;
    inv_stmts match, solve, saves; /* the last two each behind those that give what it reads */
} inv_rule;
/* Names of a pattern and what they stand for; a variadic holds a list. Names are only added: a copy goes back to what
 * was bound when it was made, as long as nothing else is. */
typedef struct inv_binding {
    const char **name;
    const inv_id **id;
    uint32_t *n_ids;
    uint32_t n, room;
} inv_binding;
bool inv_binding_init(inv_binding *b, inv_arena *a, uint32_t room);
/* An attribute of the matched node, "name", or of the one that gives another value of the pattern, "value.name". */
const inv_attr *inv_rule_attr(const inv_graph *g, const inv_binding *b, const inv_node *node, const char *name);
/* most: names and statements that any of them has */
typedef struct inv_rule_sizes {
    uint32_t names, stmts;
} inv_rule_sizes;
inv_status inv_rules_compile(inv_context *ctx, inv_arena *a, inv_rule **rules, size_t *n, inv_rule_sizes *most);
inv_id inv_binding_get(const inv_binding *b, const char *name); /* INV_NONE */
int inv_binding_find(const inv_binding *b, const char *name);   /* index or -1 */
bool inv_binding_set(inv_binding *b, const char *name, const inv_id *ids, uint32_t n);
/* Whether the conditions hold; if not, *why says so. `node`: the matched node (attributes). */
typedef enum inv_verdict {
    INV_HOLDS,
    INV_UNFIT,  /* shapes, types or attributes are not those that the rule is about */
    INV_REFUSED /* they are, but values forbid it */
} inv_verdict;
struct inv_matcher;
inv_status inv_rule_when(struct inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         inv_verdict *verdict, inv_why *why);
inv_status inv_rule_gain(struct inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         double *gain, double *bound);

/* What is known before the run of a value that depends on parameters only (rule.c). */
typedef struct inv_known {
    bool tried, measured;
    const void *bytes;
    double cond, norm; /* as a matrix, if measured: condition number, norm of the inverse */
} inv_known;

/* A region search: from the exits up to `entry` (INV_NONE: the nearest that is accepted), not through `apart`. Those
 * that found nothing are remembered: rules and swapped operands ask for the same one again. */
#define INV_MAX_EXIT 4
typedef struct inv_walk {
    inv_id exit[INV_MAX_EXIT], entry, apart, known;
    uint32_t nexit;
    bool recoverable, several;
    bool changed;     /* `apart` is computed from the entry, which is there all the same */
    uint8_t loss;     /* inv_region_loss: why nothing was found */
    inv_id at, spoilt; /* the value that it is about; SHARED: the part of it that feeds the branch, INV_NONE: another */
} inv_walk;
typedef enum inv_region_loss {
    INV_LOST_NO_ENTRY, /* no single value feeds the branch */
    INV_LOST_LONG,     /* the search has become too long */
    INV_LOST_FREED,    /* the branch reads `at`, which would be freed */
    INV_LOST_SHARED,   /* the branch and the other operand come from `at` */
    INV_LOST_ENTRY     /* `at` feeds the branch, but does not leave the block */
} inv_region_loss;

typedef struct inv_unsolved {
    const inv_inverse_def *rule;
    inv_id node, frees; /* the pattern's last node, and what it would free */
} inv_unsolved;

/* What matching works on: graph, uses, positions, dependence. */
typedef struct inv_matcher {
    inv_graph *g;
    inv_arena scratch;
    size_t nvalue;   /* values before templates were added */
    inv_uses uses;
    uint32_t *pos;   /* per node: position in order */
    bool *active;    /* per value: depends on a graph input */
    inv_matches *out;
    inv_rule *rule;
    size_t nrule;
    /* work space of matching one rule at one node, enough for the largest: what its pattern binds and what solving
     * adds to that; the nodes found, and which statements are */
    inv_binding pattern, solving;
    inv_id *pattern_node;
    bool *stmt_done;
    bool *paired;    /* per node: in a block of a pattern with several operators */
    INV_VEC(inv_unsolved) unsolved; /* longer patterns that were found, where their own solve text does not do */
    /* per node: it adds to a part of a long sum (or the like) that one of the file's nodes gives. That is no half of a
     * model, and looking for a branch at every term would take all terms times all terms. */
    bool *partial;
    bool *told;      /* per node: of a longer block that values forbid, and that ends there, it was said why */
    uint32_t *height; /* per value that does not depend on inputs: of its expression */
    inv_known *known; /* per value */
    inv_arena entries; /* what `known` points to: weights among them, so it is emptied now and then */
    size_t nentries;   /* bytes */
    inv_ids tried;     /* values that have been looked at since */
    /* edges by the value that they free: edge_of[edge_start[v]] and on; filled before blocks are looked for */
    uint32_t *edge_start, *edge_of;
    /* work space of the region search, allocated once; marked is what holds the newest stamp */
    inv_id *front, *stack, *inside;
    uint32_t *seen, *visited, *in_region; /* per value, value, node */
    uint32_t walk, visit;                 /* stamps: of seen and in_region; of visited */
    inv_walk lost[4];                     /* at the node being looked at */
    uint32_t nlost;
    uint64_t steps; /* that searches for blocks may still take: every node adds some (match.c) */
} inv_matcher;

/* matcher.c: a matcher over a canonical graph; *m needs m->g only. Free with inv_matcher_fini, also after a failure. */
inv_status inv_matcher_init(inv_matcher *m);
void inv_matcher_fini(inv_matcher *m);
/* matcher.c: whether the statement is about the node's operator */
bool inv_pattern_names(const inv_stmt *s, const inv_node *n);
/* matcher.c: binds an operator statement to a node if it fits; `swap`: with the first two inputs exchanged. Names of b
 * may have been added also where it does not. */
bool inv_pattern_bind(inv_matcher *m, const inv_stmt *s, const inv_node *n, bool swap, inv_binding *b);

/* rule.c: the entries of v, which depends on parameters and constants only, in its own type; NULL if they cannot be
 * had. Borrowed from the matcher. */
const void *inv_known_bytes(inv_matcher *m, inv_id v);
/* rule.c: the condition number of a matrix among the bound values, if one was asked for; else 0 */
double inv_known_cond(const inv_matcher *m, const inv_binding *b);
void inv_known_forget(inv_matcher *m, size_t beyond); /* all of these, if they take more bytes than that */
/* rule.c: of s, which depends on parameters only: its least magnitude, least and largest entry; false if not known */
typedef struct inv_extremes {
    double least_abs, least, most;
    size_t at_abs, at_least; /* where the first two are */
} inv_extremes;
bool inv_known_extremes(inv_matcher *m, inv_id s, inv_extremes *out);

/* range.c: bounds of the entries of any value, from the operators that give it. `above`: lo itself is never taken. */
typedef struct inv_range {
    double lo, hi;
    bool above;
} inv_range;
inv_range inv_value_range(inv_matcher *m, inv_id v);
/* What is to be expected where there are no bounds: that what operators do not bound lies between -2 and 2. */
inv_range inv_value_typical(inv_matcher *m, inv_id v);

/* fit.c: the conditions on shapes, types and attributes. *known: whether c is one of them. */
bool inv_condition_on_shapes(inv_matcher *m, const inv_condition *c, const inv_binding *b, const inv_node *node,
                             bool *known);
/* The parameter of a linear map as a matrix, or, of a convolution with groups, as many, one behind the other. */
typedef struct inv_matrix {
    inv_data block; /* of the first, without bytes */
    bool trans;     /* they are out x in */
    int64_t in, out, groups;
} inv_matrix;
bool inv_matrix_of(inv_matcher *m, inv_id w, const inv_node *node, inv_matrix *out);

/* fit.c: what keeps it from holding, where shapes alone do not show that, and what would help if that is not what the
 * table of conditions says. NULL: nothing. */
const char *inv_condition_flaw(inv_matcher *m, const inv_condition *c, inv_id v, const inv_node *node,
                               const char **remedy);
/* excuse.c: the words for what does not hold. `reason`: what is already known of it in words; NULL: nothing. Another
 * condition is joined to those that *why has. */
inv_status inv_excuse_condition(inv_matcher *m, const inv_rule *rule, const inv_condition *c, const inv_binding *b,
                                const inv_node *node, const char *reason, inv_why *why);
inv_status inv_excuse_region(inv_matcher *m, const inv_walk *w, inv_why *why);

/* block.c: a block from the nodes of its pattern and of its regions: with the expressions of parameters that nobody
 * else reads, and what enters and leaves. */
inv_status inv_block_make(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_id *pattern,
                          uint32_t npattern, const inv_id *inside, uint32_t ninside, inv_block *out);

/* When all blocks and edges have been found: how much each block magnifies errors, and what blocks inside of others are
 * called. */
inv_status inv_block_finish(inv_matcher *m);

/* template.c: the nodes that save and solve, outside of the order. */
typedef struct inv_template {
    const inv_id *node, *result; /* result: the values that `frees` names; none if it cannot be made here */
    uint32_t nnode, nsave, nresult;
} inv_template;
inv_status inv_template_emit(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                             inv_template *out);
bool inv_is_variadic(const char *name); /* "xs..." */

/* edge.c: an edge for every value that the rule frees, where its pattern is bound and `node` is its last operator.
 * *made: whether the template could be made and gives what it is for; else *why says why not. */
inv_status inv_edges_add(inv_matcher *m, const inv_rule *rule, const inv_binding *b, inv_id node, bool *made,
                         inv_why *why);
/* Edges by the value that they free, in the order in which they were found: m->edge_start, m->edge_of. */
inv_status inv_edges_index(inv_matcher *m);

/* Edges of other rules that free what one of this rule's does go. */
void inv_edges_favour(inv_matches *out, const inv_inverse_def *rule);

/* region.c: subgraphs with one entry, or several */
#define INV_MAX_ENTRY 8
typedef struct inv_region {
    inv_id entry[INV_MAX_ENTRY];
    inv_id *node;
    uint32_t nentry, nnode;
} inv_region;
/* Takes steps of a search from what is left; false: nothing is. */
bool inv_region_pay(inv_matcher *m, uint32_t steps);
/* The region of a walk, not feeding `apart` either. false: none, w->loss says why. */
inv_status inv_region_find(inv_matcher *m, inv_walk *w,
                           bool (*accept)(inv_matcher *, const inv_region *, inv_id entry, void *), void *opaque,
                           inv_region *out, bool *found);
/* The same with two entries or more, all of which what leaves the block lets be solved for. false: none. */
bool inv_region_spread(inv_matcher *m, inv_walk *w, inv_region *out);
/* Whether x, entry of the region that is being searched for, can be solved for from what leaves the block. */
bool inv_region_recoverable(inv_matcher *m, inv_id x, inv_id apart, inv_id known);

#endif
