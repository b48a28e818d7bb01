/* SPDX-License-Identifier: Apache-2.0
 * The one graph type, from import to execution.
 *
 * A graph owns nodes and values in arrays; both are named by 32-bit ids that never change. `order`
 * lists the live nodes in execution order; a node not in it is dead. A value is defined by at most
 * one node (single assignment). Values without a node are inputs, parameters or constants.
 *
 * Invariants (held by inv_graph_check after every pass):
 *  - every id in range; each live node's inputs are sources or outputs of earlier live nodes;
 *  - no value is defined twice; required inputs are present; output arity fits the operator;
 *  - after lowering: static shapes, known dtypes, canonical operators only;
 *  - `writes` operators stand in the commit part only.
 * The plan is the same graph with an offset per value, so the executor needs no header of passes. */
#ifndef INV_CORE_IR_H
#define INV_CORE_IR_H

#include "core/base/mem.h"
#include "core/base/shape.h"

typedef uint32_t inv_id;
#define INV_NONE ((inv_id)0xffffffffu)

struct inv_op_def;
struct inv_graph;

typedef enum inv_attr_kind {
    INV_ATTR_INT,
    INV_ATTR_FLOAT,
    INV_ATTR_STRING,
    INV_ATTR_INTS,
    INV_ATTR_FLOATS,
    INV_ATTR_STRINGS,
    INV_ATTR_TENSOR,
    INV_ATTR_GRAPH,
    INV_ATTR_OTHER /* sparse tensors, types, lists of graphs: kept by name only; an operator that needs one refuses */
} inv_attr_kind;

/* Raw tensor data: borrowed (mapping or graph arena), perhaps unaligned. */
typedef struct inv_data {
    inv_dtype dtype;
    inv_shape shape;
    const void *bytes;
    size_t nbytes;
} inv_data;

/* Elements that are there: of strings, and where bytes are missing, none. */
static inline size_t inv_data_count(const inv_data *d)
{
    const size_t size = inv_dtype_size(d->dtype);
    return d->bytes && size ? d->nbytes / size : 0;
}

/* GRAPH: the body of an If, Loop or Scan, an imported graph of its own. Its inputs are the formal ones and then a value
 * for each one of the graph around it that it reads. Those are inputs of its node, in[captured] and on, behind the
 * listed ones; so what looks at uses need not look into bodies. Initializers of a body are values of role CONST. */
typedef struct inv_attr {
    const char *name;
    inv_attr_kind kind;
    int64_t i;
    double f;
    const char *s;        /* NUL-terminated */
    const int64_t *ints;  /* n */
    const double *floats; /* n */
    const char **strings; /* n */
    size_t n;
    inv_data tensor;
    const struct inv_graph *graph; /* borrowed by copies, as data are; NULL: in a function body, `ref` */
    uint32_t captured, ncaptured;  /* GRAPH: the node's inputs behind the graph's formal ones */
    const struct inv_attr *args;   /* GRAPH: n attributes that references inside refer to, once the function around is
                                      inlined */
    const char *ref;               /* inside a function body: the attribute of the call that it takes; else NULL */
    const char *wanted; /* NULL, or the type that an operator tried in vain to read it as (inv_attr_int, ...) */
} inv_attr;

typedef enum inv_role {
    INV_ROLE_NODE,  /* computed by a node */
    INV_ROLE_INPUT, /* graph input, fed by the caller */
    INV_ROLE_PARAM, /* initializer of the model, or a weight in a Constant node; lives in the session, shared by its
                       plans. In a function or body: stands for the main graph's inits.at[init] */
    INV_ROLE_CONST, /* known data: Constant nodes and folded shape arithmetic */
    INV_ROLE_OPTIM  /* optimizer state; zero at the start, lives in the session */
} inv_role;

/* What the file says of an initializer (importer/signature.c). */
typedef enum inv_said {
    INV_SAID_NOTHING,
    INV_SAID_PARAMETER,
    INV_SAID_BUFFER,
    INV_SAID_CONSTANT,
    INV_SAID_NAMED,         /* by its name, which PyTorch's older exporter gives to parameters and buffers alone */
    INV_SAID_OF_PARAMETERS, /* computed by the exporter from others, parameters among them */
    INV_SAID_OF_CONSTANTS   /* ... none of them a parameter */
} inv_said;

/* What the bytes of a value count as. */
typedef enum inv_mem_class {
    INV_MEM_ACT,   /* forward values, clones, gradients of activations, workspace */
    INV_MEM_PARAM, /* parameters, running statistics, constants needed at run time */
    INV_MEM_GRAD,  /* gradients of parameters */
    INV_MEM_OPTIM,
    INV_MEM_DATA,  /* the arena's copy of inputs and targets */
    INV_MEM_GUARD, /* fingerprints of the guard */
    INV_MEM_HOST,  /* copies in host memory, which has an arena of its own: part of no sum */
    INV_MEM_CLASSES
} inv_mem_class;

/* Integers that are fed, and the node that takes no others (inv_takes_lengths). */
typedef struct inv_lengths {
    int64_t least, most;
    const char *by;
} inv_lengths;

typedef struct inv_value {
    const char *name; /* unique among live values that have one; never NULL */
    const char *type; /* what it is if it is no tensor, as "seq(tensor(float))"; else NULL */
    inv_dtype dtype;
    inv_dtype
        stated; /* the small type (core/base/shape.h) that it is rounded to, where dtype only carries it; else NONE */
    inv_shape shape;
    const char *const *dim_param; /* inputs: symbol per dim or NULL; NULL: none */
    inv_id def;                   /* node that defines it, INV_NONE for sources */
    uint8_t role;                 /* inv_role */
    uint8_t mem;                  /* inv_mem_class */
    bool is_output;               /* named as graph output */
    bool keep;                    /* lives to the end of the step (results that are read out) */
    bool trainable;               /* PARAM: gets a gradient and an update */
    bool state;                   /* PARAM: running statistic, written by commit */
    uint8_t said;                 /* PARAM: inv_said */
    uint8_t untrained;            /* PARAM: inv_untrained (core/weights/trained.h): why it is not to be trained */
    inv_id same;                  /* the value that took its place (lowering, simplification); INV_NONE */
    inv_data data;                /* PARAM, CONST: its data; bytes NULL if unknown */
    bool of_model;                /* CONST: its data are the model's, which outlives every graph and session of it */
    bool added;                   /* PARAM: trained in any case: of an adapter (core/edits/lora.h), of a new head */
    bool renewed;                 /* PARAM: the file does not have these elements (core/edits/edited.h) */
    bool dropped;                 /* PARAM: nothing reads it any more, and no written file has it */
    bool steers;                  /* PARAM: a constant, which must be known before the run (core/weights/steers.c) */
    bool composed;                /* PARAM: computed by the exporter of a parameter and more */
    bool padding_told;            /* PARAM: the file says which of its rows stands for padding */
    int64_t padding;              /* PARAM: that row; -1: none */
    const struct inv_held *held;  /* PARAM: elements that are not trained (core/weights/held.h); NULL: none */
    bool optional;                /* PARAM: written as an input, too: what is fed there takes its place */
    bool restated;                /* its extents are not those that the file states */
    const char *inverse_of;       /* PARAM: the value whose (pseudo-)inverse a rewriting put here; else NULL */
    const char *within;           /* PARAM: the function or body of control flow that it is in; NULL: main graph */
    const char *const *also; /* PARAM: nalso names by which modules that read it call it (core/weights/module_names.h);
                                borrowed by copies */
    uint32_t nalso;
    inv_id init;             /* PARAM: index in graph->inits of the imported graph; OPTIM: of its parameter */
    inv_id source;           /* PARAM: the file's Constant node that it is (inv_node.source), where that is a node
                                of the main graph or of a block, or in a function of that; INV_NONE */
    inv_id whole;            /* PARAM, OPTIM: the value of which it is the elements from `first` on; INV_NONE */
    int64_t first;           /* element of `whole`, where there is one */
    const inv_shape *shared; /* OPTIM: the shape of the whole, of which each rank has a part (core/program/exchange.h);
                                NULL: this is the whole */
    bool in_place;           /* storage: read where its data are, not from the arena */
    const struct inv_lengths *lengths; /* fed integers: between which they have to be; NULL: anything */
    inv_id buffer;                     /* memplan: id of the value whose storage it shares (itself: own) */
    size_t offset;                     /* memplan: byte offset in the arena, or in that of host memory (INV_MEM_HOST) */
} inv_value;

typedef enum inv_phase { INV_FORWARD, INV_BACKWARD, INV_COMMIT } inv_phase;

typedef struct inv_node {
    const struct inv_op_def *op; /* NULL: not registered (import keeps it, compile names it) */
    const char *op_type, *domain, *name;
    inv_id *in;  /* INV_NONE: omitted optional input */
    inv_id *out; /* INV_NONE: output not wanted */
    uint32_t nin, nout;
    inv_attr *attr;
    uint32_t nattr;
    uint8_t phase;               /* inv_phase */
    inv_id clone_of;             /* recover: the forward node that this one repeats */
    inv_id solves;               /* recover: the forward node that this one inverts */
    bool guards;                 /* recover: part of a guard, which nothing else needs */
    size_t ws_offset, ws_nbytes; /* memplan: its workspace */
    inv_id source;      /* import: number of the file's node: the main graph's first, then function by function */
    const char *module; /* of an imported node: the module that it computes for, "a.b"; NULL. Borrowed by copies */
    const uint32_t
        *given; /* ... the parameters (core/weights/exported.h) that the call which became it was given; borrowed */
    uint32_t ngiven;
    const char *const *origin; /* names of the model's nodes that it stands for */
    uint32_t norigin;
    const char *origin_type;       /* operator of that node, which users know; NULL: its own */
    const struct inv_fused *fused; /* core/graph/op.h: what its row has read in attribute `steps`; else NULL */
} inv_node;

typedef struct inv_function {
    const char *domain, *name;
    struct inv_graph *body; /* inputs and outputs in order; attributes by `ref` */
    const inv_attr *defaults;
    uint32_t ndefaults;
    bool block;       /* made by a rewriting: a block of the model, or the inverse of one (docs/rewriting.md) */
    bool open;        /* its nodes are put in place of calls, with their own numbers in the file (inv_node.source) */
    const char *shut; /* why that could not be done; NULL: nobody has tried in vain */
} inv_function;

typedef struct inv_opset {
    const char *domain; /* "" for ai.onnx */
    int64_t version;
} inv_opset;

typedef INV_VEC(inv_id) inv_ids;

struct inv_matches; /* passes/match/match.c: what was found; in the graph's arena */

typedef struct inv_graph {
    inv_context *ctx;
    inv_arena arena;
    const char *name;
    INV_VEC(inv_value) value;
    INV_VEC(inv_node) node;
    inv_ids order;
    inv_ids inputs, outputs; /* values, in the model's order; initializers listed as inputs are not in `inputs` */
    inv_ids inits;           /* values, in the model's order */
    INV_VEC(inv_opset) opset;
    INV_VEC(inv_function) function;
    INV_VEC(struct inv_graph *) body;    /* owned: of its nodes' GRAPH attributes. Copies of the graph own none */
    bool from_torch;                     /* written by an exporter of PyTorch */
    bool says;                           /* the file says which of its initializers are parameters (inv_said) */
    bool adapted;                        /* adapters were added: what else is trained has to be named */
    bool edited;                         /* it is not as the file has it (core/edits/edited.h) */
    const struct inv_exported *exported; /* what it tells of the program that it was exported from:
                                            core/weights/exported.h; borrowed; NULL: not read from a file */
    struct inv_matches *matches;
    size_t forward_end, commit_begin; /* positions in order, set by grad/order */
    uint8_t phase;                    /* phase given to emitted nodes */
    bool fold;                        /* emit folds nodes whose inputs are all constants */
    inv_dtype real;                   /* type of all floating-point arithmetic: INV_F32 or INV_F64 */
    inv_dtype told;                   /* what messages call that; INV_DT_NONE: by its name */
    bool eval;                        /* lowering: running statistics are used, dropout is off */
    bool train;                       /* lowering: for training steps */
    bool no_dropout;                  /* lowering: dropout is off */
    inv_dtype small;                  /* of weights that are trained; INV_DT_NONE: that of computing */
    bool through_quantization;        /* grad: quantizers let gradients pass straight through */
    bool train_bn;                    /* lowering: batch normalization in inference form trains */
    struct {
        uint32_t trained, kept; /* batch normalizations that train by `train_bn`, and that cannot */
        const char *first_kept; /* the name of the first of these */
        uint32_t means;         /* whose running statistics are means over all batches */
        const char *first_mean;
    } norm;
    bool gpu;                       /* will run on kernels of a device */
    inv_precision precision;        /* of products there */
    bool early;                     /* updates stand where their gradients are complete, in the compute part */
    const char *const *emit_origin; /* given to emitted nodes (inv_emit_for) */
    uint32_t emit_norigin;
    const char *emit_type;
    inv_id emit_source;
    inv_status failed;                /* sticky: first failure of a builder call */
    uint32_t fresh;                   /* counter for fresh names */
    size_t lowered;                   /* 1 + nodes that lowering went through: how far it got; 0: it did not begin */
    size_t once_from;                 /* from that node on nothing computed is repeated for what is stored; 0: it is */
    const inv_ids *once_but;          /* but by nodes with these sources; NULL: with none */
    size_t arena_nbytes, host_nbytes; /* memplan: bytes of the transient part; of the arena in host memory */
    inv_id *name_index;               /* hash of value names (id + 1), for find and fresh */
    size_t name_cap;
} inv_graph;

/* Nodes of a file, of its functions put in place; and of the graph that comes of them. More are
 * taken for an attack. */
enum { INV_MAX_NODES = 500000, INV_MAX_EMITTED = 2 * INV_MAX_NODES };

inv_status inv_graph_create(inv_context *ctx, const char *name, inv_graph **out);
void inv_graph_destroy(inv_graph *g); /* NULL is fine */
/* Deep copy of structure; tensor data and bodies of control flow stay borrowed from wherever they live. */
inv_status inv_graph_copy(const inv_graph *g, inv_graph **out);
/* The same, but that texts and attributes of the nodes and values stay borrowed, too, and may not be changed: for a
 * copy that g outlives, and of which no node is lowered any more, since that may note what an attribute was wanted as.
 */
inv_status inv_graph_variant(const inv_graph *g, inv_graph **out);

int64_t inv_graph_opset(const inv_graph *g, const char *domain); /* 0: not imported */

/* --- building: ids; on failure INV_NONE and the sticky status, so that callers may check once at the end --- */
inv_id inv_graph_value(inv_graph *g, const char *name, inv_role role, inv_dtype t, const inv_shape *s);
/* The elements of `whole`, a parameter or an optimizer state, from `first` on as a value by itself: it is read and
 * written where they are. */
inv_id inv_graph_section(inv_graph *g, inv_id whole, int64_t first, const inv_shape *s);
/* Appends a node with no order entry. in/out/attr are copied. `name` may be NULL. op may be unknown. */
inv_id inv_graph_node(inv_graph *g, const char *domain, const char *op_type, const char *name, uint32_t nin,
                      const inv_id *in, uint32_t nout, const inv_id *out, uint32_t nattr, const inv_attr *attr);
inv_id inv_graph_find(const inv_graph *g, const char *value_name); /* INV_NONE */
void inv_graph_swap_names(inv_graph *g, inv_id a, inv_id b);
inv_id inv_graph_stands(const inv_graph *g, inv_id v); /* the value that has taken the place of v, or v */
void inv_graph_stand_outputs(inv_graph *g);            /* the outputs are those that stand for them */
void inv_emit_for(inv_graph *g, const inv_node *n);    /* emitted nodes come from where n does; NULL: from nowhere */
const char *inv_graph_fresh(inv_graph *g, const char *stem);                              /* unique name "stem.N" */
inv_id inv_graph_const(inv_graph *g, inv_dtype t, const inv_shape *s, const void *bytes); /* copies bytes */
inv_id inv_graph_const_ints(inv_graph *g, size_t n, const int64_t *v);                    /* int64[n] */
inv_id inv_graph_const_real(inv_graph *g, inv_dtype t, double v);                         /* scalar */

/* The value of the main graph g that parameter `v` of one of its functions or bodies is. */
static inline inv_id inv_graph_param(const inv_graph *g, const inv_value *v) { return g->inits.at[v->init]; }

/* Of a type that files may hold and nothing here computes with; its name. */
bool inv_value_carried(const inv_value *v);
const char *inv_value_type(const inv_value *v);

static inline inv_value *inv_val(const inv_graph *g, inv_id v) { return &g->value.at[v]; }

/* Of a value of static shape and of a type whose elements have a size; 0 for others. */
static inline size_t inv_value_nbytes(const inv_value *v)
{
    size_t nbytes;
    return inv_shape_nbytes(&v->shape, v->dtype, &nbytes) ? nbytes : 0;
}
static inline inv_node *inv_nod(const inv_graph *g, inv_id n) { return &g->node.at[n]; }

/* --- attributes --- */
inv_attr inv_attr_of_int(const char *name, int64_t v);
inv_attr inv_attr_of_float(const char *name, double v);
inv_attr inv_attr_of_string(const char *name, const char *v);
inv_attr inv_attr_of_ints(const char *name, size_t n, const int64_t *v);
/* Whether two attributes say the same, numbers to the bit. Of graphs, which only nodes of the file have, it is not
 * known: false. */
bool inv_attr_same(const inv_attr *a, const inv_attr *b);
const inv_attr *inv_attr_find(const inv_node *n, const char *name); /* NULL */
const char *inv_attr_kind_name(inv_attr_kind k);
int64_t inv_attr_int(const inv_node *n, const char *name, int64_t dflt);
double inv_attr_float(const inv_node *n, const char *name, double dflt);
const char *inv_attr_string(const inv_node *n, const char *name, const char *dflt);
/* Inputs that the file lists for the node; those behind them are what its GRAPH attributes capture. */
uint32_t inv_node_listed(const inv_node *n);
/* NULL and *n = 0 when absent. */
const int64_t *inv_attr_ints(const inv_node *n, const char *name, size_t *count);

/* --- emitting operators (ops and passes): infers types, folds if g->fold, appends to order --- */
/* Returns the node, or INV_NONE with the sticky status. Outputs are fresh values. */
inv_id inv_emit(inv_graph *g, const char *op, uint32_t nout, uint32_t nin, const inv_id *in, uint32_t nattr,
                const inv_attr *attr);
/* One output: returns the value (perhaps a folded constant). */
inv_id inv_emit1(inv_graph *g, const char *op, uint32_t nin, const inv_id *in, uint32_t nattr, const inv_attr *attr);
/* The same with the row at hand; out[nout] gets the values (perhaps folded constants). */
inv_id inv_emit_op(inv_graph *g, const struct inv_op_def *op, uint32_t nout, uint32_t nin, const inv_id *in,
                   uint32_t nattr, const inv_attr *attr, inv_id *out);
/* Whether emitting the node, its outputs' types known, would fold it: all its inputs are known, and g->fold. */
bool inv_node_foldable(const inv_graph *g, const inv_node *n);
/* Output i of a node that was emitted without it, for a gradient that reads what nobody else does: now it is made. */
inv_id inv_node_want(inv_graph *g, inv_id node, uint32_t i);
/* clang-format off */
#define INV_IN(...) (uint32_t)(sizeof((inv_id[]){__VA_ARGS__}) / sizeof(inv_id)), (inv_id[]){__VA_ARGS__}
/* clang-format on */
#define INV_ATTRS(...) \
    (uint32_t)(sizeof((inv_attr[]){__VA_ARGS__}) / sizeof(inv_attr)), (inv_attr[]) { __VA_ARGS__ }
#define INV_NOATTR 0, NULL
/* e.g. inv_emit1(g, "Add", INV_IN(a, b), INV_NOATTR) */

/* A PARAM that is never trained: integers, bool, and floats of rank 0 that the file does not call parameters. */
bool inv_value_fixed(const inv_value *v);
/* Whether the file says that it is no parameter. */
static inline bool inv_said_none(const inv_value *v)
{
    return v->said == INV_SAID_BUFFER || v->said == INV_SAID_CONSTANT || v->said == INV_SAID_OF_CONSTANTS;
}
/* Constant contents: false if v is neither INV_ROLE_CONST nor such a PARAM. At most `cap` read. */
bool inv_const_known(const inv_graph *g, inv_id v);
bool inv_const_ints(const inv_graph *g, inv_id v, size_t cap, int64_t *out, size_t *n);

/* constant.c: INV_E_NOT_CONSTANT for a value that must be known before the run, with what it depends on. `what` as in
 * "trip count"; `called`: its name in the model, NULL: the value's own. */
inv_status inv_node_fail_varying(const inv_graph *g, const inv_node *n, inv_id v, const char *what, const char *called);
/* INV_OK if v is known (inv_const_known), else that failure. */
inv_status inv_node_need_const(const inv_graph *g, const inv_node *n, inv_id v, const char *what);
/* Inputs, outputs of Feed nodes, on which the value depends that the newest such failure was about. */
inv_status inv_graph_varying(const inv_graph *g, inv_arena *scratch, inv_ids *inputs);

/* Runs op->infer on a node; on failure the message names node, operator, shapes. */
inv_status inv_node_infer(inv_graph *g, inv_id node);
/* Error about a node: prefix "node 'NAME' (Op), inputs float[2,3], ...: " + printf text. */
inv_status inv_node_fail(const inv_graph *g, const inv_node *n, inv_status code, const char *fmt, ...) INV_PRINTF(4, 5);

/* Notes which extent does not fit (inv_misfit), in front of inv_node_fail. */
static inline void inv_note_misfit(const inv_graph *g, int check, int64_t got, int64_t wanted)
{
    g->ctx->misfit = (inv_misfit){.check = check, .got = got, .wanted = wanted};
}
/* The same of the first axis, from the last, in which two shapes differ; `repeats`: an extent of 1 fits any. */
void inv_note_shapes(const inv_graph *g, int check, const inv_shape *got, const inv_shape *wanted, bool repeats);

/* --- analysis --- */
/* Uses of every value by the nodes in order: CSR arrays in `scratch`. */
typedef struct inv_uses {
    uint32_t *start; /* nvalue + 1 */
    inv_id *node;    /* user node, in execution order */
    uint32_t *slot;  /* which input */
} inv_uses;
inv_status inv_graph_uses(const inv_graph *g, inv_arena *scratch, inv_uses *out);
/* Stable topological order of all nodes now in `order`; INV_E_GRAPH names a cycle. */
inv_status inv_graph_sort(inv_graph *g);
/* Drops from order the nodes whose outputs nobody uses (not outputs, not keep, no writes). */
inv_status inv_graph_prune(inv_graph *g);
/* Gives back the contents of large constants that no node reads: what others were folded from. Before anything outside
 * of the order, such as templates of inverses, reads constants. */
inv_status inv_graph_drop_constants(inv_graph *g);
/* ir_check.c: the invariants above. `canonical`: after lowering. */
inv_status inv_graph_check(const inv_graph *g, bool canonical);

/* --- ir_text.c: text form, a documented subset of ONNX's textual syntax (docs/text-form.md) --- */
inv_status inv_graph_print(const inv_graph *g, inv_str *out);
inv_status inv_graph_parse(inv_context *ctx, const char *text, inv_graph **out);

/* One parsed statement `a, b = Op<k = v, ...>(x, y)`; used for graphs and for rules. */
typedef struct inv_stmt {
    const char *op, *domain;
    const char **in, **out; /* "" for omitted; a trailing "..." of a variadic is kept in the name */
    uint32_t nin, nout;
    inv_attr *attr; /* bare words and calls such as `sizes(xs)`: INV_ATTR_OTHER with the text in s; `*`: name "*" */
    uint32_t nattr;
    const char *name; /* of the node: `[name] y = Op(x)`; "" if none */
    /* Per input and output: what is written before the name, `float[2,3] x` or `int64[2] {3, 2}`; dtype
     * INV_DT_NONE: nothing; bytes NULL: no data. */
    inv_data *in_type, *out_type;
} inv_stmt;
typedef INV_VEC(inv_stmt) inv_stmts;
inv_status inv_text_stmts(inv_context *ctx, inv_arena *a, const char *text, inv_stmts *out);
/* The same of what computes in whatever real type a graph has: real numbers among inputs, `float[] {0.1}`, are kept in
 * double, INV_F64. */
inv_status inv_text_formulas(inv_context *ctx, inv_arena *a, const char *text, inv_stmts *out);
/* Each behind those that give what it reads, else in the order in which they are; those of a circle come last. */
inv_status inv_stmts_sort(inv_arena *a, inv_stmts *io);

/* Whether v, or a value that it is computed from, is such. Without memory for that: false, and the graph has failed. */
bool inv_graph_comes_of(inv_graph *g, inv_id v, bool (*is_such)(inv_graph *g, inv_id v));
bool inv_ids_have(const inv_id *list, size_t n, inv_id v);
bool inv_nodes_give(const inv_graph *g, const inv_id *node, size_t n, inv_id v); /* one of them has the result v */

#endif
