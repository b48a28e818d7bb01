/* SPDX-License-Identifier: Apache-2.0
 * What an operator is: one row that says everything, and the registry of rows and inverse rules. */
#ifndef INV_CORE_OP_H
#define INV_CORE_OP_H

#include <math.h>
#include <string.h>

#include "core/graph/ir.h"
#include "core/graph/joint.h"
#include "invonnx/plugin.h"

typedef struct inv_tensor {
    void *data; /* NULL: omitted */
    inv_dtype dtype;
    inv_shape shape;
    int64_t n; /* elements */
} inv_tensor;

/* One fed input or target for one step: rows of a host array. Where there are none, zeros stand for them. */
typedef struct inv_feed {
    const void *data;    /* host, row-major, borrowed for the step; may be unaligned. NULL: no rows */
    inv_dtype dtype;     /* converted to the value's type */
    const int64_t *rows; /* row r of the batch is row rows[r] of data; NULL: row r */
} inv_feed;

/* What changes from step to step. */
typedef struct inv_step {
    uint64_t seed, step, micro; /* micro: number of the batch among those of the step, of all ranks */
    uint64_t first_sample;      /* number of the batch's first row among those of the step, of all ranks */
    int64_t batch;              /* rows of the batch; 0: not known */
    uint64_t mixed;             /* batches of training before this one: what cumulative statistics are means of */
    double weight;              /* by what this rank's gradients count in the mean over ranks */
    struct inv_world *world;    /* the ranks that the step is made with; NULL: this one alone */
    bool absent;                /* this rank has no rows of the batch: what it computes counts for nothing */
    double lr;
    double group_lr[INV_MOST_GROUPS]; /* by the `group` attribute of updates: what lr is multiplied by */
    double kept, added; /* of a mean over micro-batches: the weights of what was accumulated before, and of this one */
    const inv_feed *feed; /* by the `slot` attribute of Feed nodes */
    double *drift;        /* guard verdicts, by the `slot` attribute of GuardCheck nodes */
} inv_step;

/* An index that is outside of its axis. */
typedef struct inv_outside {
    int64_t index, extent;
} inv_outside;

typedef struct inv_call {
    const inv_node *node;
    const inv_tensor *in;
    inv_tensor *out; /* data NULL: output not wanted */
    uint32_t nin, nout;
    void *ws; /* 64-byte aligned, at least op->workspace bytes */
    size_t ws_nbytes;
    const inv_step *step;      /* NULL while folding constants, and where `gpu` is set */
    const struct inv_gpu *gpu; /* ops/gpu/gpu.h; NULL on the host */
    inv_outside *outside;      /* what a kernel on the host that fails for such an index notes; NULL: nobody asks */
} inv_call;

/* Gradient under construction: op->grad emits nodes with inv_emit1 and calls inv_grad_set. What it emits with g->phase
 * set to INV_FORWARD is put beside the node: what is to be kept of its operands (ops/elementwise/bits.h); or, where
 * backward reads the operand anyway, behind that reader. */
typedef struct inv_grad {
    inv_graph *g;
    inv_id node;
    const inv_id *out_grad; /* per output: gradient value or INV_NONE (no gradient reaches it) */
    inv_id *in_grad;        /* per input: set by the row; stays INV_NONE if not wanted */
    const bool *wanted;     /* per input */
} inv_grad;

/* Bounds of the entries of a value. */
typedef struct inv_bounds {
    double lo, hi;
    bool above; /* lo itself is never taken */
} inv_bounds;
#define INV_UNBOUNDED ((inv_bounds){-HUGE_VAL, HUGE_VAL, false})
static inline bool inv_bounds_positive(inv_bounds b) { return b.lo > 0 || (b.lo == 0 && b.above); }

/* The question what bounds a node's result. Rows ask for the bounds of those operands that they need. */
typedef struct inv_bounding {
    const inv_node *node;
    inv_bounds (*operand)(const struct inv_bounding *q, uint32_t i);
} inv_bounding;

/* What an attribute holds that changes when a node's images come to have their channels last. */
typedef enum inv_axes {
    INV_AXIS,      /* an axis */
    INV_AXES,      /* axes */
    INV_PER_AXIS,  /* a number per axis */
    INV_LAST_AXIS, /* the axis of channels: becomes the last one */
    INV_MARK       /* whether channels are last: becomes 1 */
} inv_axes;
#define INV_ALL_SLOTS 0xffffffffu
typedef struct inv_images {
    /* Bit i: slot i holds an image. INV_ALL_SLOTS: each does. No input at all: channels must stay second. */
    uint32_t in, out;
    struct {
        const char *name;
        inv_axes holds;
    } attr[3];
} inv_images;
/* clang-format off */
#define INV_IMAGES(in, out, ...) {in, out, {__VA_ARGS__}}
/* clang-format on */

/* Attributes that are real numbers, and what they are where a node has none. */
typedef struct inv_reals {
    const char *name[4];
    double dflt[4];
} inv_reals;

enum {
    INV_OP_COMMUTATIVE = 1 << 0, /* first two inputs */
    INV_OP_RANDOM = 1 << 1,      /* differs from step to step: reads inv_call.step; never folded */
    INV_OP_NO_GRAD = 1 << 2,     /* has none: gradients stop here (shapes, comparisons, rounding) */
    INV_OP_VIEW = 1 << 3,        /* output 0 is input 0's bytes with another shape; no kernel runs */
    INV_OP_NO_CLONE = 1 << 4,    /* outputs are always stored (batch statistics: tiny; losses) */
    INV_OP_SOURCE = 1 << 5,      /* reads the caller's memory (Feed) */
    INV_OP_STEP = 1 << 6,        /* has an effect outside the graph (guard verdicts): never pruned */
    INV_OP_VARIADIC_OUT = 1 << 7,
    /* Whole ranges of inputs give one output (Relu: 0), and the gradient tells by that very output which branch was
     * taken: it must never be rebuilt with rounding. */
    INV_OP_ATOMS = 1 << 8,
    /* The gradient is computed from the output, where an error counts times the gain of the operator's inverse. */
    INV_OP_FROM_OUT = 1 << 9,
    INV_OP_DEVICE_REAL = 1 << 10, /* its kernels on a device take float32 and float64 only */
    /* Operands broadcast; no attribute is about axes. Each element of the operands is read before the output's element
     * at that index is written, and not later. Operators without this flag read their operands anywhere, at any time.
     */
    INV_OP_ELEMENTWISE = 1 << 11,
    INV_OP_STRAIGHT = 1 << 12,  /* its gradient is a convention, not the derivative */
    INV_OP_EXPLAINS = 1 << 13,  /* where its kernels fail, the context has a message already */
    INV_OP_TRANSFER = 1 << 14,  /* a copy to host memory or back; the device does it, no kernel runs */
    INV_OP_SLOPE = 1 << 15,     /* input 0 times a factor that the same element of the others decides (TanhGrad, Div) */
    INV_OP_KINK = 1 << 16,      /* input 0 times one factor or another, as the sign of input 1 says (LeakyReluGrad) */
    INV_OP_HOST_ONLY = 1 << 17, /* the column `run` has no kernels for a device */
    INV_OP_PRODUCT = 1 << 18,   /* sums of products: of its first two inputs; if the first is variadic, of all */
    INV_OP_COMPARES = 1 << 19,  /* its output is bits that say how its operands compare */
    INV_OP_UPDATE = 1 << 20,    /* output 0 takes the place of statistic `state` after the step, once per node */
    INV_OP_AFTER_UPDATE = 1 << 21, /* it reads parameters as their updates have left them */
    INV_OP_EXCHANGES = 1 << 23,    /* ranks that train together run it together (core/program/exchange.h) */
    INV_OP_UNPACKS = 1 << 22       /* its result is larger than the constants that it is computed from: never folded */
};

/* What the time of an operator grows with: one measured rate each (core/program/cost.h). */
typedef enum inv_work {
    INV_WORK_STREAM,     /* bytes, in order: element-wise arithmetic. What rows are that say nothing else */
    INV_WORK_MOVE,       /* bytes, out of order: transposing, splitting, joining, gathering */
    INV_WORK_SUM,        /* bytes: sums, statistics, gradients with such */
    INV_WORK_APPLY,      /* bytes: normalising by statistics that are known, or by those of a row */
    INV_WORK_MATH,       /* elements of the largest operand: exponentials and their like */
    INV_WORK_SCALAR,     /* flops, in loops of their own */
    INV_WORK_MATRIX,     /* flops of matrix products */
    INV_WORK_CONV,       /* flops of convolutions, and of their gradients by the input */
    INV_WORK_CONV_POINT, /* ... with filters of one element */
    INV_WORK_CONV_DEPTH, /* ... in groups */
    INV_WORK_FILTER,     /* flops of the gradients by the filter, likewise */
    INV_WORK_FILTER_POINT,
    INV_WORK_FILTER_DEPTH,
    INV_WORKS
} inv_work;

struct inv_raising; /* core/edits/onnx_body.h */

/* n elements of an element-wise operator: `out` and all operands lie without gaps, `out` may be an operand. `real`: the
 * four numbers of column `real` in their type. An operand that is left out is NULL. */
typedef void (*inv_piece)(void *out, const void *const *in, int64_t n, const void *real);
/* The same for float32, for float64, and as a step of the kernel that devices have for it: an inv_opcode
 * (ops/elementwise/fused_gpu.h); 0 is the operand as it is. INV_NO_OPCODE: nodes are joined on the host only. */
#define INV_NO_OPCODE (-1)
typedef struct inv_pieces {
    inv_piece f32, f64;
    int opcode;
} inv_pieces;

typedef struct inv_op_def {
    size_t size;        /* sizeof(inv_op_def) */
    const char *domain; /* "" ai.onnx; "ai.invonnx.ir" for operators of our own */
    const char *name;
    int since;            /* first opset of this form */
    int until;            /* last opset of this form; 0: newest */
    const char *in, *out; /* names, space separated; "?" after a name: optional; "*": variadic last */
    uint32_t flags;
    /* Bit i: output `inplace_out` may overwrite input i when nobody reads it later, and no other operand has its bytes
     * (inv_node_overwrites). */
    uint32_t inplace;
    uint32_t inplace_out;
    /* Where that hangs on the node: the inputs that output k may overwrite, as bits. NULL: see `inplace`. */
    uint32_t (*overwrites)(const inv_graph *g, const inv_node *n, uint32_t k);
    /* Slot of an optional input of the result's shape that the result is added to, or from which it is taken away if
     * attribute `minus` is 1 (passes/autodiff/grad.c, passes/match/fuse_inverse.c). 0: has none. */
    uint32_t onto;
    uint32_t writes; /* bit i: input i is modified (persistent values, commit part only) */
    /* Bit i: input i is a statistic that training updates and does not train, unless attribute `training` is 1. */
    uint32_t state;
    /* Sets dtype and shape of the outputs; INV_OK or an error made by inv_node_fail. The inputs that `in` requires are
     * given, all shapes static. NULL: other operators run in its place, whose functions tell. */
    inv_status (*infer)(inv_graph *g, inv_node *n);
    /* Rewrites to canonical operators: out[] gets one value per output. NULL: canonical itself.
     * Inputs of n are already lowered, and as `infer` has them. */
    inv_status (*lower)(inv_graph *g, const inv_node *n, inv_id *out);
    /* Emits the gradient, if one reaches an output and is wanted of an input. NULL without INV_OP_NO_GRAD: not written,
     * and compile says so. */
    inv_status (*grad)(inv_grad *b);
    /* Computes the outputs. Where c->gpu is set, it starts kernels there instead and returns (ops/gpu/gpu.h), unless
     * the row has INV_OP_HOST_ONLY. NULL: other operators run in its place (`lower`), or nothing has to. */
    inv_status (*run)(const inv_call *c);
    /* By what nodes of such operators are one (passes/schedule/fuse.c): the output has the operands' type, and its
     * shape is that to which they broadcast, or attribute `shape`. NULL: `run` alone. Bits of comparisons
     * (INV_OP_COMPARES) are codes there, a byte per element: `codes` has the operands that are such. */
    const inv_pieces *piece;
    uint32_t codes;
    /* On a device: n neighbouring nodes of this row at once, which know nothing of each other. NULL: one by one. */
    inv_status (*run_many)(const struct inv_gpu *gpu, const inv_call *const *c, size_t n);
    /* Interval arithmetic: what bounds every output for operands within theirs (passes/match/value_range.c). Rounding
     * is the caller's concern. INV_UNBOUNDED, or no function: nothing is known. */
    inv_bounds (*bounds)(const inv_bounding *q);
    /* The same result by operators of ONNX, as a formula (passes/export/formula.h) over the names of `in` and the
     * attributes of `real`. "": the operator of ONNX that has this name. NULL: see `raise`. */
    const char *onnx;
    /* The same where the form depends on shapes and attributes: appends nodes of ONNX that give the outputs
     * (core/edits/onnx_body.h). What it is added `onto` is the caller's concern. NULL, and `onnx`, too: has no such
     * form. */
    bool (*raise)(const struct inv_raising *b);
    /* Bit i: input i is a matrix, or a filter, that the node solves with. */
    uint32_t inverts;
    /* The logarithm of |d output / d first input| where that is element-wise, likewise, also over the names of `out`.
     * NULL: is not known, so no rule may state `log_deriv` of it. */
    const char *log_slope;
    /* Whether images may have either order of axes, and what changes with it (passes/schedule/channels_last_ops.c).
     * INV_OP_ELEMENTWISE says that of itself: all slots, no attributes. */
    inv_images images;
    /* Where only some nodes can have their channels last: whether this one can, which has them second, and what that
     * saves, in nanoseconds of one thread; on a device in elements that need not be moved. NULL: what `images` says
     * holds for all, and none is faster. */
    bool (*channels_last)(const inv_graph *g, const inv_node *n, double *gain);
    inv_reals real; /* read by inv_op_reals, and by formulas; the row may have others besides */
    size_t (*workspace)(const inv_graph *g, const inv_node *n); /* bytes, for the device of g; NULL: none */
    /* Bytes of workspace with which it is the quickest, and gives the same bits: it has them where the arena has room
     * at its step. NULL: more than `workspace` is of no use. */
    size_t (*quick)(const inv_graph *g, const inv_node *n);
    double (*flops)(const inv_graph *g, const inv_node *n); /* NULL: elements of the largest operand */
    /* Whether output k is a run of input 0's bytes, from *offset on: where it stands there nothing is copied. NULL: it
     * is not. */
    bool (*part)(const inv_graph *g, const inv_node *n, uint32_t k, size_t *offset);
    inv_work (*work)(const inv_graph *g, const inv_node *n); /* NULL: INV_WORK_STREAM */
    const char *const *cases; /* NULL-terminated, e.g. "y = LeakyRelu<alpha = 0.1>(float[2,3] x)" */
    const char *doc;          /* one line: what, formula, source */
} inv_op_def;

/* The first `count` of the node's numbers for the column `real`; most rows have two at most. */
static inline void inv_op_numbers(const inv_node *n, int count, double *v)
{
    const inv_reals *r = &n->op->real;
    for (int i = 0; i < count; i++) v[i] = r->name[i] ? inv_attr_float(n, r->name[i], r->dflt[i]) : 0;
}
static inline void inv_op_reals(const inv_node *n, double v[2]) { inv_op_numbers(n, 2, v); }

/* The inputs that output k of the node may overwrite when nobody reads them later, as bits. Where one value is given
 * twice the other operand would be overwritten, too, so only an operator that reads element by element may do that. */
static inline uint32_t inv_node_overwrites(const inv_graph *g, const inv_node *n, uint32_t k)
{
    uint32_t bits = n->op->overwrites ? n->op->overwrites(g, n, k) : k == n->op->inplace_out ? n->op->inplace : 0;
    if (n->op->flags & INV_OP_ELEMENTWISE) return bits;
    for (uint32_t i = 0; i < n->nin && i < 32 && bits; i++)
        for (uint32_t j = 0; j < n->nin && bits >> i & 1; j++)
            if (i != j && n->in[i] == n->in[j]) bits &= ~(1u << i);
    return bits;
}

static inline bool inv_op_on_device(const inv_op_def *op) { return op->run && !(op->flags & INV_OP_HOST_ONLY); }

/* --- inside grad callbacks --- */
static inline inv_id inv_I(const inv_grad *b, uint32_t i) { return inv_nod(b->g, b->node)->in[i]; }
static inline inv_id inv_O(const inv_grad *b, uint32_t i) { return inv_nod(b->g, b->node)->out[i]; }
static inline inv_id inv_GO(const inv_grad *b, uint32_t i) { return b->out_grad[i]; }
static inline bool inv_wants(const inv_grad *b, uint32_t i) { return b->wanted[i]; }
static inline void inv_grad_set(inv_grad *b, uint32_t i, inv_id v) { b->in_grad[i] = v; }

/* --- registry --- */
typedef struct inv_registry inv_registry;
/* Adds the rules of an ONNX file's pairs of functions (core/rules/plugin.h). */
typedef inv_status (*inv_pairs_fn)(inv_registry *r, const char *path);
inv_status inv_registry_create(inv_context *ctx, inv_registry **out);
void inv_registry_destroy(inv_registry *r);
inv_status inv_registry_add_op(inv_registry *r, const inv_op_def *def);
inv_status inv_registry_add_inverse(inv_registry *r, const inv_inverse_def *def); /* INV_E_EXISTS, INV_E_PARSE */
/* domain "" also finds our own operators ("ai.invonnx.ir"); opset 0: newest. NULL if none. */
const inv_op_def *inv_registry_op(const inv_registry *r, const char *domain, const char *name, int64_t opset);
size_t inv_registry_nops(const inv_registry *r);
const inv_op_def *inv_registry_op_at(const inv_registry *r, size_t i);
size_t inv_registry_ninverses(const inv_registry *r);
const inv_inverse_def *inv_registry_inverse_at(const inv_registry *r, size_t i); /* by falling priority */
/* The rule that is being tested, one of the registry's: matching tries it before all others, and what it frees no other
 * one does. NULL: none is. */
void inv_registry_favour(inv_registry *r, const inv_inverse_def *rule);
const inv_inverse_def *inv_registry_favoured(const inv_registry *r);
inv_context *inv_registry_context(const inv_registry *r);
/* The node runs the canonical operator of that name. */
static inline bool inv_op_is(const inv_node *n, const char *name)
{
    return n && n->op && strcmp(n->op->name, name) == 0;
}
/* The node that gives v; NULL: none does. */
static inline const inv_node *inv_def_node(const inv_graph *g, inv_id v)
{
    return v == INV_NONE || inv_val(g, v)->def == INV_NONE ? NULL : inv_nod(g, inv_val(g, v)->def);
}
/* Whether texts of rules and gradients may use it: it has a kernel, and does nothing but compute from its inputs. */
bool inv_op_computes(const inv_op_def *op);
/* While a plugin is being loaded: its path, else NULL. What is made for it lives in the arena of the registry. */
const char *inv_registry_loading(const inv_registry *r);
inv_arena *inv_registry_arena(inv_registry *r);
/* Path of the plugin that brought it; NULL: the library did. */
const char *inv_registry_op_plugin(const inv_registry *r, size_t i);
const char *inv_registry_inverse_plugin(const inv_registry *r, size_t i);
/* The texts of a rule, in the order in which they are printed; `name` NULL ends the list. */
typedef struct inv_rule_field {
    const char *name;
    size_t offset; /* of a `const char *` in inv_inverse_def */
} inv_rule_field;
extern const inv_rule_field inv_rule_fields[];
static inline const char *inv_rule_text(const inv_inverse_def *d, const inv_rule_field *f)
{
    return *(const char *const *)(const void *)((const char *)d + f->offset);
}
/* rule_text.c: the rule as `invonnx rules` prints it and a plugin may have it (docs/text-form.md) */
void inv_rule_print(const inv_inverse_def *d, inv_str *out);
/* The operator that a statement names, where canonical ones are named. NULL */
const inv_op_def *inv_registry_named(const inv_registry *r, const inv_stmt *s);
/* Slot i of a row's `in` or `out` list; false: the operator has no such slot. A variadic slot covers all
 * that follow; its first is required if nothing stands before it. */
bool inv_op_slot(const char *list, uint32_t i, bool *optional, bool *variadic);

/* op_case.c: a case as a graph, not lowered. Typed names that nothing defines are inputs, the last statement's results
 * are outputs; float inputs are of type `real`. opset 0: the newest. */
inv_status inv_case_parse(inv_context *ctx, const char *text, int opset, inv_dtype real, inv_graph **out);

/* What the cases of a row show when they are lowered (passes/operator_support.c, called through inv_context.support).
 * */
enum { INV_SUPPORT_IN = 16, INV_SUPPORT_OPS = 12 };
typedef enum inv_support_grad { INV_GRAD_NONE, INV_GRAD_MISSING, INV_GRAD_PARTLY, INV_GRAD_YES } inv_support_grad;
typedef struct inv_support {
    uint32_t types[INV_SUPPORT_IN]; /* per name of `in`: 1 << inv_dtype of what it may be; 0: a constant, or not seen */
    const inv_op_def *to[INV_SUPPORT_OPS]; /* canonical operators that run in its place, by first appearance */
    uint32_t nto;
    inv_support_grad gradient;
    bool inverse; /* in one case at least every one of `to` has an inverse rule of its own */
    bool cpu, cuda;
    bool cuda_real; /* on a device floating-point numbers only */
} inv_support;

#endif
