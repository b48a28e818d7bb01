/* SPDX-License-Identifier: Apache-2.0
 * Initializers that an exporter merged because their values were equal (docs/exporting.md). Exporters join equal
 * tensors to save space: all biases that are zero yet, all scales that are one. Training would tie them; and what is a
 * running statistic in one place and a parameter in another could not be trained at all.
 *
 * A use is an input of a node that reads an initializer: directly, or by Identity, Cast, Transpose and whatever else
 * computes with this one initializer and constants only. Uses belong together, in one group, if they are
 *
 *   - of an initializer with different elements: exporters do not meet two of these by accident, so it is shared on
 *     purpose; but running statistics are apart from all else;
 *   - of an initializer whose elements are all equal: in one layer, that is, at the same input of nodes of one type
 *     that read the same initializers with different elements, or whose operands come from nodes that do; where all
 *     uses are of parts that are cut out of it, those of different parts belong together, too: the packed bias of
 *     several layers;
 *   - arithmetic with a single number, which is part of a formula (a square root of a width) and no parameter.
 *
 * What the file itself says comes before that (exported.h, claims.c): which parameter stood at a use, or that nothing
 * was merged.
 *
 * An initializer whose uses make more than one group is taken for merged. */
#ifndef INV_CORE_SHARED_WEIGHTS_H
#define INV_CORE_SHARED_WEIGHTS_H

#include "core/graph/ir.h"

typedef enum inv_use_role {
    INV_USE_NONE,
    INV_USE_MEAN, /* running statistics that training updates */
    INV_USE_VARIANCE,
    INV_USE_FIXED, /* running statistics that it does not */
    INV_USE_SCALE,
    INV_USE_BIAS,
    INV_USE_SHIFT, /* of a normalization */
    INV_USE_WEIGHT,
    INV_USE_TABLE,
    INV_USE_QUANTIZATION, /* scale or zero point */
    INV_USE_ROTATION,     /* cosines or sines of rotary positions */
    INV_USE_STEERS,       /* must be known before the run: a size, a threshold, a condition */
    INV_USE_CONSTANT,     /* an exponent, what is compared, values of OneHot: no framework trains these */
    INV_USE_BASE,         /* what a scatter writes or adds to, or what a loop begins with */
    INV_USE_STATE,        /* the state that a recurrent layer begins with, row by row */
    INV_USE_OPERAND,
    /* Beside the role: */
    INV_USE_SCORES,    /* added to what a Softmax reads, or by which Where changes it; mask of an Attention */
    INV_USE_SCALED,    /* and one of them is multiplied with what is no data, or stands beside it in a Where */
    INV_USE_FACTOR,    /* multiplied with, or chosen by Where */
    INV_USE_EXPONENTS, /* divided by its own sum */
    INV_USE_ADDED,     /* added to a product with a weight */
    INV_USE_ALONE,     /* and that product has one result */
    INV_USE_RESCALED,  /* of a value: multiplied or divided by what is no data */
    INV_USE_OF_INPUT,  /* taken from the model's input, or what divides or multiplies that difference */
    INV_USE_SINE,      /* a factor of what a Sin reads */
    INV_USE_COSINE     /* of what a Cos reads */
} inv_use_role;

#define INV_USE_ROLES ((1u << INV_USE_SCORES) - 1) /* as bits: the roles alone */
/* As bits: uses through which no gradient goes, or by which nobody means to train. */
#define INV_USE_NO_WEIGHT (1u << INV_USE_STEERS | 1u << INV_USE_CONSTANT)

/* Inside of functions and of bodies of control flow as well, once per call. */
typedef struct inv_param_use {
    inv_id node; /* of the graph: that which reads it, or that in which it is read */
    uint32_t slot, group;
    inv_use_role role;
    const char *label, *op_type; /* of the node that reads it: "CALL/INNER" */
    const char *alias;           /* the name under which an Identity brings it (exported.h); NULL */
    const char *was;             /* the parameter that stood there, by the file (exported.h); NULL: not known */
    uint64_t key;                /* equal: one layer */
    uint64_t cut;                /* equal: the same part of it; 0: all of it */
} inv_param_use;

typedef struct inv_merge {
    inv_id param;
    inv_param_use *use; /* in execution order; the first is of group 0 */
    uint32_t nuse, ngroup;
    bool updates; /* is among other things a running statistic that training updates */
} inv_merge;
typedef struct inv_merges {
    inv_merge *at;
    size_t n, cap;
    bool cut; /* functions or bodies were too many or too deep to look into all of them */
} inv_merges;

typedef struct inv_merge_options {
    bool train_bn;                                            /* batch normalization in evaluation mode trains too */
    bool (*tied)(const void *opaque, const inv_value *param); /* shared on purpose; NULL: none */
    const void *opaque;
} inv_merge_options;

const char *inv_use_role_name(inv_use_role role);
/* What input `slot` of a node is to it; of calls, control flow and quantization: an operand. */
inv_use_role inv_use_role_at(const inv_node *n, uint32_t slot, bool train_bn);
/* not_weights.c: whether input `slot` of node n of g says how numbers were quantized. */
bool inv_use_quantizes(const inv_graph *g, const inv_node *n, uint32_t slot);
/* Whether a value is the same for all data: made of constants, initializers and shapes. */
bool inv_use_is_given(const inv_graph *g, inv_id v);
/* What is to be noted beside the role of that input, as bits; `roles`: of the values that n gives. By these and what
 * hands a value on (inv_node_hands), uses are seen through what stands between. */
uint32_t inv_use_marks(const inv_graph *g, const inv_node *n, uint32_t slot, const uint32_t *roles);
/* steers.c: sets inv_value.steers of the initializers of an imported graph. */
inv_status inv_mark_steering(const inv_graph *g, inv_arena *a);
/* The initializer that a value is, or is computed of together with constants only; INV_NONE. Per value of g. */
inv_status inv_param_roots(const inv_graph *g, inv_arena *a, inv_id **out);
/* Roles of all uses of a value of g, and what is beside them, as bits: 1 << role. Per value. */
inv_status inv_plain_roles(const inv_graph *g, bool train_bn, inv_arena *a, uint32_t **out);
/* functions_in_place.c: the same, as if the nodes of functions stood in the graph. */
inv_status inv_param_roles(const inv_graph *g, bool train_bn, inv_arena *a, uint32_t **out);
/* Whether an initializer has one element and several nodes do arithmetic with it: exporters put the numbers of formulas
 * so. Per value. */
inv_status inv_param_numbers(const inv_graph *g, inv_arena *a, bool **out);
/* shared_weight_parts.c: what a node cuts out of its first input as its result `out`, by the constants that say it;
 * `before`: of what that is a part. */
uint64_t inv_part_of(const inv_graph *g, const inv_node *n, uint32_t out, uint64_t before);
/* Where all uses are of parts: the key becomes the number of the layer among those that use the same part. */
inv_status inv_parts_number(inv_arena *a, inv_param_use *use, uint32_t n);
/* Whether some use was of a parameter of the program, by the file: it matters then though the initializer is a
 * constant.
 */
bool inv_merge_hides(const inv_merge *m);
/* The merged initializers of an imported graph, in their order. */
inv_status inv_merges_find(const inv_graph *g, const inv_merge_options *o, inv_arena *a, inv_merges *out);

#endif
