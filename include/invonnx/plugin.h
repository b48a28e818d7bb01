/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules as data, operators, and the door through which they come in: docs/adding-an-inverse.md and
 * docs/plugin-abi.md. The ABI is append-only: fields are added at the ends of structs, each of which begins with its
 * size (inv_api: with the number of the ABI and its size), and what is there keeps its meaning. The number changes only
 * if that has to be broken.
 *
 * A rule is a pattern over forward nodes and the nodes that compute one value of it back:
 *
 *     match   "y = LeakyRelu(x)"              statements of the text form (docs/text-form.md)
 *     solve   "x = LeakyReluInverse<*>(y)"    may read every value of the pattern but `frees`
 *
 * In patterns: `t = region(x)` any single-entry subgraph that starts at x, `s, t = region(x)` one that gives several
 * values (at most four), `t = region(xs...)` one that starts at two values or more (at most eight), all of which can be
 * solved for from what leaves the block; `param(W)` a value that depends on parameters and constants only; `xs...` all
 * inputs or outputs of a variadic operator; `A|B(x)` either operator. Operands of commutative operators match in either
 * order. Operators of solve are canonical ones (`invonnx ops`: forward `yes`) that only compute from their inputs, and
 * names are given once. Among the operands of solve a number stands for a constant, in the real type of what is freed:
 * `0.5`, `1/3`, `float[2] {0.5, 2}`; `count(x)` is how many elements x has, `count(x, axis)` how many along an axis (a
 * number, from the end if negative) or an attribute's axes. A pattern has no numbers: `param(c)` is named there, and
 * `when` asks number(c) == C. In solve: `<*>` all attributes of the matched node; `k = name` one of them; `k = t.name`
 * one of the node that gives t; `k = sizes(xs)` extents of xs along its `axis`; `k = invert(perm)` the inverse
 * permutation; `k = ones(starts)` as many ones; `k = shape(x)` the extents of x; `k = matrix(W)` those of W with all
 * axes but the first made one; `k = channel(y)` those of y where all but that of axis 1 are 1; `k = swap(y)` the
 * permutation that exchanges the last two axes of y; `k = rows(x)` three extents: 1, how many rows x has, and how many
 * elements each of them has: all from attribute `axis` on, or those of one of as many groups of channels as attribute
 * `groups` says.
 *
 * The order of statements does not matter, in either text. Those of a pattern hang together by the values that they
 * share; the matched node is that which runs last. One of a single node is a local inverse, longer ones also name
 * blocks. Recovery may use any solve text wherever its pattern is found, beside those of the pattern's parts, and
 * checks what it gives. A longer pattern without one leaves solving to the inverses of its nodes. What comes out of a
 * region is a value like any other: to solve, it is computed forward again. The entry of a region may be the freed
 * value itself only where another operator of the pattern reads it. */
#ifndef INVONNX_PLUGIN_H
#define INVONNX_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "invonnx/status.h"

#define INV_PLUGIN_ABI 1u

typedef enum inv_exactness { INV_BOUNDED, INV_EXACT } inv_exactness;

typedef struct inv_inverse_def {
    size_t size;      /* sizeof(inv_inverse_def); fields past it read as zero */
    const char *name; /* unique, lower_snake_case */
    const char *kind; /* what `blocks` calls it; NULL: the name; "": names no block */
    int32_t priority; /* higher is tried first; an inverse direction takes a plugin's before lower ones */
    const char *match;
    const char *solve; /* NULL: nothing to solve; the rule only names (longer patterns) or refuses */
    /* The value of the pattern that `solve` computes, with its shape and type; "xs..." each one of a variadic. NULL
     * only in a rule of several statements that neither solves nor refuses. */
    const char *frees;
    /* Conditions, all must hold, separated by ';'.
     * Of shapes: same_shape(a,b) same_rank(a,b) same_type(a,b); square(W) tall(W) wide(W), of a matrix, or of a
     * convolution's filter with a row per output channel, group by group (of a transposed one, a column); patches(W),
     * its windows lie side by side and leave nothing out;
     * has_features(x), axes besides the batch; per_channel(s,x), s broadcasts against x with one number per index of
     * axis 1; space_to_depth(x,y), View, Transpose and View lead from one to the other, and y has the blocks of x's
     * spatial axes as channels; some_leave(ys...), some of them are outputs of the model, not all.
     * Of values: cond(W) < C  norm(W) < C  positive(s)  away_from_zero(s, EPS): parameters are judged by the values at
     * hand, what is computed from inputs by the bounds that its operators give (Exp, Sigmoid, sums and products of
     * such, ...); complementary(b,c), every entry of b is 0 or 1, and c is 1 - b, and no training changes them; odd(k),
     * one odd number; number(k) == C, every entry of k is C, number(k,h) == C, k / h is. Of attributes: attr(name) > C
     * attr(name) < C  attr(name) == C, of a list all numbers; attr(name, DEFAULT) where the model may leave it out;
     * name may be t.name, as in solve; attr_count(t) == C, the node that gives t has C of them. reflects(d,o), for d =
     * x U and o = d V: x - o is a reflection. recoverable(x), of a region's entry: what leaves the block lets it be
     * solved for. Anything else is refused with INV_E_PARSE when the rule is registered, as it is in `gain`. */
    const char *when;
    /* How much an absolute error of the value started from is magnified: NULL 1; "max_inv(s)" = 1/min|s| and
     * "max_abs(s)" = max(1, max|s|), by values or bounds as above; "max_inv(s,var)" = 1/min|s| of a normalization:
     * relative to its data's spread, so that an absolute error is magnified at most max sqrt(var + epsilon)/|s| times
     * (of attribute epsilon; var may be given by `saves`, and be known only in the run); "inv_slope(s)" = max(1,
     * 1/min|s|); "expected_inv(s)", "expected_abs(s)" as max_inv and max_abs, but where there is no bound, of what s is
     * for operands of usual size, for the guard to measure; "inv_norm(W)" = norm of the (pseudo-)inverse, "norm(W)" of
     * W; "inv_attr(alpha)" = max(1, 1/|alpha|), with a default as in attr(); "times(2)" = 2; "unbounded". */
    const char *gain;
    /* INV_EXACT: solve gives the bits of what is freed. Of a plugin's rule selftest holds it to that; in a step
     * whatever such a rule gives is compared, as of any other. */
    inv_exactness exactness;
    const char *refuse;       /* rule that refuses: the reason in words; solve is NULL */
    const char *const *cases; /* NULL-terminated; graph text on which the rule must match and invert */
    const char *doc;          /* equations, source */
    /* log |det dy/dx| of one sample, x being what is freed and y the results of the pattern's operators that `solve`
     * starts from (of the matched node alone, if they are more numbers than x), where x and y have as many elements;
     * what the pattern takes besides x is held. Terms, separated by ';', are added. "0": it keeps volumes.
     * "log_abs(s)", "-log_abs(s)": of s, once for each element of x that it is for; "log_abs(s,c)", "-log_abs(s,c)":
     * the same times c, a mask; "log_once(k)", "-log_once(k)": of k, which has a row for each
     * sample, each entry once; "log_deriv": of the derivative of the one matched operator, an activation or Pow;
     * "log_det(W)", "-log_det(W)": of a square W (as in `when`) at every place of x; "-log_std(v)": of
     * 1 / sqrt(v + attribute epsilon). s and k may be values that `solve` gives; statements that only
     * they need are left out where x is recovered. NULL: not known. */
    const char *logdet;
    const char *remedy; /* rule that refuses: the smallest change of the model that would help, as explain gives it */
    /* Statements like those of solve that forward computes if the rule is used. They may read every value of the
     * pattern, the freed one too, and solve may read what they give. That is kept: small values only, statistics. */
    const char *saves;
} inv_inverse_def;

/* clang-format off */
/* For `cases`. In a case, something in backward must want what the rule frees, and the loss is on the first output. */
#define INV_CASES(...) (const char *const[]){__VA_ARGS__, NULL}
/* clang-format on */

/* --- operators --- */

/* An operand: `dtype` as in ONNX's TensorProto.DataType (1 float32, 11 float64, 7 int64, 9 bool, ...), row-major. */
typedef struct inv_op_tensor {
    int32_t dtype, rank;
    int64_t dims[8];
    int64_t count; /* elements */
    void *data;    /* NULL: omitted, not wanted, or only shapes are asked for */
} inv_op_tensor;

/* What a callback is given; valid during the call. */
typedef struct inv_op_call inv_op_call;
struct inv_op_call {
    size_t size; /* sizeof(inv_op_call) */
    uint32_t nin, nout;
    const inv_op_tensor *in;
    inv_op_tensor *out; /* `infer` sets dtype, rank and dims; kernels write the data */
    void *workspace;    /* 64-byte aligned; on a device, memory of the device */
    size_t workspace_nbytes;
    void *stream; /* `cuda`: the cudaStream_t to start kernels on */
    /* Attributes of the node; what it has none of is `otherwise`. Of lists *n gets the length; NULL and 0: none. */
    int64_t (*attr_int)(const inv_op_call *, const char *name, int64_t otherwise);
    double (*attr_real)(const inv_op_call *, const char *name, double otherwise);
    const char *(*attr_text)(const inv_op_call *, const char *name, const char *otherwise);
    const int64_t *(*attr_ints)(const inv_op_call *, const char *name, size_t *n);
    /* Says in words why the callback fails; returns `code`, so that `return c->fail(c, INV_E_SHAPE, "...")` does. */
    inv_status (*fail)(const inv_op_call *, inv_status code, const char *why);
};

/* An operator. Callbacks are pure functions of the call: they keep nothing and may run at any time, again too. Kernels
 * give the same bits for the same inputs, and let NaN and infinity through. */
typedef struct inv_operator_def {
    size_t size;        /* sizeof(inv_operator_def); fields past it read as zero */
    const char *domain; /* one of your own, as "com.example" */
    const char *name;
    int32_t since;        /* version of the domain from which on it is so */
    uint32_t inplace;     /* bit i: the first output may be written over input i, which has its shape and type */
    const char *in, *out; /* names, separated by blanks, at most 16; "?" after that of an input: it may be left out */
    inv_status (*infer)(const inv_op_call *); /* types and shapes of the outputs */
    inv_status (*cpu)(const inv_op_call *);
    inv_status (*cuda)(const inv_op_call *);  /* starts kernels on c->stream and returns; data are device memory. NULL:
                                                 none, and a plan for a device says so */
    size_t (*workspace)(const inv_op_call *); /* bytes; NULL: none */
    double (*flops)(const inv_op_call *);     /* NULL: elements of the largest operand */
    /* Statements that compute the gradient `d_NAME` of inputs from inputs, outputs, and the gradients `d_NAME` of
     * outputs. Operators are those that `invonnx ops` calls canonical (forward `yes`), or of a plugin; `<*>` and
     * `k = name` take attributes of the node, `float[] {2}` is a number. What is broadcast is summed by itself. Inputs
     * without a statement pass none on, but one has to have one. NULL: training through the operator is refused. */
    const char *grad;
    const char *const *cases; /* as "y = com.example.Op<a = 2.0>(float[2,3] x)" */
    const char *doc;
} inv_operator_def;

struct inv_registry;
typedef struct inv_api inv_api;
struct inv_api {
    uint32_t abi;  /* INV_PLUGIN_ABI */
    uint32_t size; /* sizeof(inv_api) */
    inv_status (*add_inverse)(struct inv_registry *, const inv_inverse_def *);
    /* Says in words why inv_plugin_init fails; returns `code`, so that `return api->fail(r, INV_E_IO, "...")` does. */
    inv_status (*fail)(struct inv_registry *, inv_status code, const char *why);
    inv_status (*add_operator)(struct inv_registry *, const inv_operator_def *);
};

/* One file, one set: built in as inv_plugin_init_<set>, as a shared object exporting inv_plugin_init and the number of
 * the ABI that it was compiled for. INV_PLUGIN(set)(const inv_api *api, struct inv_registry *r) { ... } */
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
