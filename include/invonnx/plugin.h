/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules, operators, and the interface by which plugins register them. docs/adding-an-inverse.md and
 * docs/plugin-abi.md have examples.
 *
 * The ABI is append-only: new fields are added at the ends of structs, and existing fields keep their meaning. Each
 * struct begins with its size; inv_api begins with the number of the ABI and its size. The number changes only if this
 * cannot be kept.
 *
 * A rule has a pattern of forward nodes, and the nodes that compute one value of the pattern back:
 *
 *     match   "y = LeakyRelu(x)"              statements of the text form (docs/text-form.md)
 *     solve   "x = LeakyReluInverse<*>(y)"    may read every value of the pattern but `frees`
 *
 * A pattern may have:
 * - `t = region(x)`: any subgraph with the single entry x
 * - `s, t = region(x)`: the same with several results, at most four
 * - `t = region(xs...)`: a subgraph with two to eight entries. All entries can be solved for from the values that
 *   leave the block
 * - `param(W)`: a value that depends on parameters and constants only
 * - `xs...`: all inputs or outputs of a variadic operator
 * - `A|B(x)`: either operator
 *
 * Operands of commutative operators match in either order. A pattern has no numbers: write `param(c)`, and number(c) ==
 * C in `when`.
 *
 * Operators of solve are canonical ones (`invonnx ops`: forward `yes`) that only compute from their inputs. Each name
 * is assigned once. Operands of solve may also be:
 * - a number, as a constant with the real type of the freed value: `0.5`, `1/3`, `float[2] {0.5, 2}`
 * - `count(x)`: the number of elements of x
 * - `count(x, axis)`: the number of elements along an axis (from the end if negative), or along an attribute's axes
 *
 * Attributes in solve:
 * - `<*>`: all attributes of the matched node
 * - `k = name`: one of them
 * - `k = t.name`: an attribute of the node that computes t
 * - `k = sizes(xs)`: extents of xs along attribute `axis`
 * - `k = invert(perm)`: the inverse permutation
 * - `k = ones(starts)`: as many ones as `starts` has numbers
 * - `k = shape(x)`: the extents of x
 * - `k = matrix(W)`: the first extent of W, and the product of the others
 * - `k = channel(y)`: the extents of y, but 1 for all axes except axis 1
 * - `k = swap(y)`: the permutation that exchanges the last two axes of y
 * - `k = rows(x)`: 1, the number of rows of x, and the number of elements of a row. A row is everything from attribute
 *   `axis` on. If the node has attribute `groups`, a row is one of that many groups of channels of a sample
 *
 * The order of statements does not matter. Statements of a pattern are connected by the values that they share. The
 * matched node is the one that runs last. A pattern of a single node is a local inverse; longer ones also name blocks.
 * Recovery may use any solve text wherever its pattern is found, in addition to the solve texts for the pattern's
 * parts, and it checks the results. A longer pattern without a solve text leaves solving to the inverses of its nodes.
 * Results of a region are values like any other: to solve, they are computed forward again. The entry of a region may
 * be the freed value itself only if another operator of the pattern reads it. */
#ifndef INVONNX_PLUGIN_H
#define INVONNX_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "invonnx/status.h"

#define INV_PLUGIN_ABI 1u /* number of the ABI */

/** How exact the result of a solve text is. BOUNDED: rounded. EXACT: the same bits as the freed value. */
typedef enum inv_exactness { INV_BOUNDED, INV_EXACT } inv_exactness;

/** An inverse rule. A text that the rule does not need is NULL. */
typedef struct inv_inverse_def {
    size_t size;      /* sizeof(inv_inverse_def); fields after it read as zero */
    const char *name; /* unique, lower_snake_case */
    const char *kind; /* name of the kind in `blocks`; NULL: the name of the rule; "": names no block */
    /* Rules with a higher priority are tried first. For an inverse direction, a plugin's rule comes before rules of
     * lower priority; among the others, the smallest gain counts. */
    int32_t priority;
    const char *match; /* the pattern */
    const char *solve; /* NULL: the rule only names (longer patterns) or refuses */
    /* The value of the pattern that `solve` computes, with its shape and type. "xs...": each value of a variadic list.
     * NULL only in a rule of several statements that neither solves nor refuses. */
    const char *frees;
    /* Conditions, separated by ';'. All of them must hold. Any other text is refused with INV_E_PARSE when the rule is
     * registered, also in `gain`.
     *
     * Conditions on shapes:
     * - same_shape(a,b), same_rank(a,b), same_type(a,b)
     * - square(W), tall(W), wide(W): the linear map of W has as many outputs as inputs, more, or fewer. W is a matrix,
     *   or the filter of a convolution, group by group: each output channel is a row (if transposed, a column)
     * - patches(W): the windows of W are adjacent, without overlap, and leave nothing out
     * - has_features(x): x has axes in addition to the batch
     * - per_channel(s,x): s broadcasts against x, with one number per index of axis 1
     * - space_to_depth(x,y): View, Transpose and View lead from one to the other, and the blocks of x's spatial axes
     *   are channels of y
     * - some_leave(ys...): some of them are outputs of the model, but not all
     *
     * Conditions on entries. For parameters, their present values count. For values that are computed from inputs, the
     * bounds that their operators give count (Exp, Sigmoid, sums and products of such values, ...):
     * - cond(W) < C: the condition number
     * - norm(W) < C: the largest singular value
     * - positive(s): every entry is above zero
     * - away_from_zero(s, EPS): the absolute value of every entry is above EPS
     * - complementary(b,c): every entry of b is 0 or 1, c is 1 - b, and training changes neither
     * - odd(k): one odd number
     * - number(k) == C: every entry of k is C
     * - number(k,h) == C: k / h is C
     * - reflects(d,o), for d = x U and o = d V: x - o is a reflection
     *
     * Conditions on attributes:
     * - attr(name) > C, attr(name) < C, attr(name) == C: for a list, all its numbers. `name` may be t.name, as in solve
     * - attr(name, DEFAULT): the same for an attribute that the model may leave out
     * - attr_count(t) == C: the node that computes t has C attributes
     *
     * Conditions on regions:
     * - recoverable(x), where x is the entry of a region: the values that leave the block suffice to solve for x */
    const char *when;
    /* Factor by which solving magnifies an absolute error of the value that it starts from. Entries and bounds count as
     * in `when`.
     * - NULL: 1
     * - "max_inv(s)": 1 / min|s|
     * - "max_abs(s)": max(1, max|s|)
     * - "max_inv(s,var)": 1 / min|s|, of a normalization. This is relative to the spread of its data: an absolute error
     *   is magnified at most max sqrt(var + epsilon)/|s| times, with attribute epsilon. The variance may be given by
     *   `saves`, and may be known only in the run
     * - "inv_slope(s)": max(1, 1 / min|s|)
     * - "expected_inv(s)", "expected_abs(s)": as max_inv and max_abs. If there is no bound, the values of s for
     *   operands of usual size count, and the guard measures
     * - "inv_norm(W)": the norm of the inverse, or of the pseudo-inverse
     * - "norm(W)": the norm of W
     * - "inv_attr(alpha)": max(1, 1/|alpha|), with a default as in attr()
     * - "times(2)": 2
     * - "unbounded": no bound is known */
    const char *gain;
    /* INV_EXACT: solve gives the bits of the freed value. For rules of plugins, selftest checks this. In a step, guards
     * compare the results of such rules even if they are INV_EXACT. */
    inv_exactness exactness;
    const char *refuse;       /* for a rule that refuses: the reason in words; solve is NULL */
    const char *const *cases; /* NULL-terminated: graph texts on which the rule must match and invert */
    const char *doc;          /* equations, source */
    /* log |det dy/dx| of one sample; NULL: not known. x is the freed value. y are the results of the pattern's
     * operators that `solve` starts from. If these have more numbers than x, y is the result of the matched node alone.
     * x and y must have the same number of elements. Other operands of the pattern count as constants. The text is a
     * sum of terms, separated by ';':
     * - "0": volumes do not change
     * - "log_abs(s)", "-log_abs(s)": log |s|, once for each element of x that it is for
     * - "log_abs(s,c)", "-log_abs(s,c)": the same times c, a mask
     * - "log_once(k)", "-log_once(k)": log |k|, each entry once; k has a row for each sample
     * - "log_deriv": log of the derivative of the one matched operator, an activation or Pow
     * - "log_det(W)", "-log_det(W)": log |det W| at every place of x, for a square W (as in `when`)
     * - "-log_std(v)": log of 1 / sqrt(v + attribute epsilon)
     *
     * s and k may be values that `solve` computes. Statements that only they need are left out when x is recovered. */
    const char *logdet;
    const char *remedy; /* for a rule that refuses: the smallest change of the model that would help, for `explain` */
    /* Statements, as in solve, that forward computes if the rule is used. They may read every value of the pattern,
     * also the freed one. Solve may read their results. The results are stored, so they should be small, such as
     * statistics. */
    const char *saves;
} inv_inverse_def;

/* clang-format off */
/* Texts for `cases`. In each case, something in backward must read the value that the rule frees. The loss is on the
 * first output. */
#define INV_CASES(...) (const char *const[]){__VA_ARGS__, NULL}
/* clang-format on */

/* --- operators --- */

/** An operand of an operator, row-major. */
typedef struct inv_op_tensor {
    int32_t dtype, rank; /* dtype as in ONNX's TensorProto.DataType: 1 float32, 11 float64, 7 int64, 9 bool, ... */
    int64_t dims[8];
    int64_t count; /* number of elements */
    void *data;    /* NULL: omitted, not needed, or only shapes are computed */
} inv_op_tensor;

/** The argument of a callback; valid during the call. */
typedef struct inv_op_call inv_op_call;
struct inv_op_call {
    size_t size; /* sizeof(inv_op_call) */
    uint32_t nin, nout;
    const inv_op_tensor *in;
    inv_op_tensor *out; /* `infer` sets dtype, rank and dims; kernels write the data */
    void *workspace;    /* 64-byte aligned; device memory on a device */
    size_t workspace_nbytes;
    void *stream; /* for `cuda`: the cudaStream_t on which to start kernels */
    /* Return an attribute of the node, or `otherwise` if it has none. attr_ints sets *n to the length of the list; NULL
     * and 0 if there is none. */
    int64_t (*attr_int)(const inv_op_call *, const char *name, int64_t otherwise);
    double (*attr_real)(const inv_op_call *, const char *name, double otherwise);
    const char *(*attr_text)(const inv_op_call *, const char *name, const char *otherwise);
    const int64_t *(*attr_ints)(const inv_op_call *, const char *name, size_t *n);
    /* Sets the reason why the callback fails, in words. Returns `code`, so that you can write
     * `return c->fail(c, INV_E_SHAPE, "...")`. */
    inv_status (*fail)(const inv_op_call *, inv_status code, const char *why);
};

/** An operator. Its callbacks are pure functions of the call: they keep nothing, and may run at any time and
 *  repeatedly. Kernels give the same bits for the same inputs, and pass NaN and infinity through. They compute in
 *  float32 and float64. */
typedef struct inv_operator_def {
    size_t size;        /* sizeof(inv_operator_def); fields after it read as zero */
    const char *domain; /* a domain of your own, such as "com.example" */
    const char *name;
    int32_t since;        /* first version of the domain with this operator */
    uint32_t inplace;     /* bit i: the first output may overwrite input i, which must have its shape and type */
    const char *in, *out; /* 1 to 16 names each, separated by blanks; "?" after the name of an input: optional */
    inv_status (*infer)(const inv_op_call *); /* computes types and shapes of the outputs */
    inv_status (*cpu)(const inv_op_call *);   /* computes the outputs */
    /* Starts kernels on c->stream and returns; data are in device memory. NULL: none, and plans for a device report
     * it. */
    inv_status (*cuda)(const inv_op_call *);
    size_t (*workspace)(const inv_op_call *); /* returns the bytes of workspace; NULL: none */
    double (*flops)(const inv_op_call *);     /* NULL: the number of elements of the largest operand */
    /* Statements that compute the gradient `d_NAME` of inputs from inputs, outputs, and the gradients `d_NAME` of
     * outputs. Operators are canonical ones (`invonnx ops`: forward `yes`), or from a plugin. `<*>` and `k = name` use
     * attributes of the node, and `float[] {2}` is a number. Gradients of broadcast inputs are summed automatically.
     * Inputs without a statement get no gradient, but at least one must have a statement. NULL: training through the
     * operator is refused. */
    const char *grad;
    const char *const *cases; /* NULL-terminated, such as "y = com.example.Op<a = 2.0>(float[2,3] x)" */
    const char *doc;          /* equations, source */
} inv_operator_def;

struct inv_registry;
/** The functions of the library that a plugin calls. */
typedef struct inv_api inv_api;
struct inv_api {
    uint32_t abi;  /* INV_PLUGIN_ABI */
    uint32_t size; /* sizeof(inv_api) */
    /* Registers an inverse rule. */
    inv_status (*add_inverse)(struct inv_registry *, const inv_inverse_def *);
    /* Sets the reason why inv_plugin_init fails, in words. Returns `code`, so that you can write
     * `return api->fail(r, INV_E_IO, "...")`. */
    inv_status (*fail)(struct inv_registry *, inv_status code, const char *why);
    /* Registers an operator. */
    inv_status (*add_operator)(struct inv_registry *, const inv_operator_def *);
};

/* One file has one set. Built into the library, it has the function inv_plugin_init_<set>. As a shared object
 * (INV_PLUGIN_SHARED), it exports inv_plugin_init, and the number of the ABI that it was compiled for. Begin the
 * function with INV_PLUGIN(set)(const inv_api *api, struct inv_registry *r) { ... }. A set that has only rules is
 * written as INV_INVERSES(set, &rule, ...). */
#ifdef __cplusplus
#define INV_PLUGIN_EXTERN extern "C"
#else
#define INV_PLUGIN_EXTERN extern
#endif
#ifdef INV_PLUGIN_SHARED
#define INV_PLUGIN_EXPORT INV_PLUGIN_EXTERN __attribute__((visibility("default")))
#define INV_PLUGIN(set)                                                                   \
    INV_PLUGIN_EXPORT const uint32_t inv_plugin_abi;                                      \
    const uint32_t inv_plugin_abi = INV_PLUGIN_ABI;                                       \
    INV_PLUGIN_EXPORT inv_status inv_plugin_init(const inv_api *, struct inv_registry *); \
    inv_status inv_plugin_init
#else
#define INV_PLUGIN(set)                                                                         \
    INV_PLUGIN_EXTERN inv_status inv_plugin_init_##set(const inv_api *, struct inv_registry *); \
    inv_status inv_plugin_init_##set
#endif
#define INV_INVERSES(set, ...)                                    \
    INV_PLUGIN(set)(const inv_api *api, struct inv_registry *r)   \
    {                                                             \
        const inv_inverse_def *const defs[] = {__VA_ARGS__};      \
        if (api->abi != INV_PLUGIN_ABI) return INV_E_ABI;         \
        for (size_t i = 0; i < sizeof defs / sizeof *defs; i++) { \
            inv_status s = api->add_inverse(r, defs[i]);          \
            if (s != INV_OK) return s;                            \
        }                                                         \
        return INV_OK;                                            \
    }

#endif
