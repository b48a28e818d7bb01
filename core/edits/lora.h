/* SPDX-License-Identifier: Apache-2.0
 * Low-rank adapters of an imported graph (LoRA, arXiv 2106.09685). A product with a frozen weight W of shape [d0, d1]
 * gets a second way beside it, of two trained factors and a number, which are initializers that the file does not have:
 *
 *     x -----[ W ]------------------ + -- y        W' = W + scale P Q,  scale = alpha / rank
 *      \--[ P ]--( scale )--[ Q ]--/               P: [d0, rank], Q: [rank, d1]
 *
 * Of a convolution with G groups W is [M, C/G, kernel], P is [M, rank, 1...], Q is [G rank, C/G, kernel]: each group
 * has factors of its own. The factor that the input meets first is called "W.lora_A", the other one "W.lora_B", the
 * number "W.lora_scale"; B is zero at the start, so that the model computes what it did.
 *
 * An operator that does more with the product than give it (Attention, FusedGemm, FusedConv) gets W' itself, which is
 * computed: W + scale P Q.
 *
 * The nodes are ordinary ones, and W with all that leads from it to the product stays as it is: so W may be quantized,
 * and several products with one W share its factors. */
#ifndef INV_CORE_LORA_H
#define INV_CORE_LORA_H

#include "core/graph/node.h"

/* What a node does with a weight. */
typedef enum inv_lora_form {
    INV_LORA_RIGHT,  /* x W */
    INV_LORA_LEFT,   /* W x */
    INV_LORA_LOOKUP, /* rows of W */
    INV_LORA_CONV,
    INV_LORA_WHOLE /* something of W that a second way cannot be beside: it is given W' */
} inv_lora_form;

typedef struct inv_lora_use {
    inv_id node;
    inv_lora_form form;
    bool turned; /* W transposed takes the place of W */
    uint32_t x;  /* input of the node that W meets; of INV_LORA_WHOLE that which is W or W' */
} inv_lora_use;

/* A weight that an adapter can be put beside. */
typedef struct inv_lora_target {
    inv_id weight;             /* the initializer */
    inv_shape shape;           /* [d0, d1], also where the file has it packed; or [M, C/G, kernel] */
    int64_t group;             /* G; 1 of all else */
    inv_dtype dtype;           /* of the products */
    bool quantized;            /* they read what the initializer stands for, not its elements */
    bool in_first;             /* the input's axis is d0: P is A; else Q is */
    INV_VEC(inv_lora_use) use; /* in execution order; the first one decides in_first */
} inv_lora_target;
typedef INV_VEC(inv_lora_target) inv_lora_targets;

/* All of the main graph, in `a`, in execution order. */
inv_status inv_lora_targets_find(const inv_graph *g, inv_arena *a, inv_lora_targets *out);

/* Extents that the weight is a matrix of: P Q has at most the smaller one as its rank. */
void inv_lora_matrix(const inv_lora_target *t, int64_t *rows, int64_t *columns);

/* What a pattern fits and that is left alone: too narrow for the rank; no weight, by what it is (inv_is_no_weight). */
typedef struct inv_lora_left {
    inv_lora_targets narrow, constant;
} inv_lora_left;

/* Puts adapters into the graph. A is drawn evenly from [-b, b], b = 1 / sqrt(extent of the input), which is Kaiming's
 * uniform rule with a = sqrt(5) (arXiv 1502.01852), by a generator that the seed and its name begin. All of it or, on
 * failure, nothing.
 * @param added NULL, or gets the targets, in `a`
 * @param left NULL, or gets those that are left alone, in `a` */
inv_status inv_lora_add(inv_graph *g, const inv_lora *o, inv_arena *a, inv_lora_targets *added, inv_lora_left *left);

/* An adapter that a graph has. */
typedef struct inv_lora_found {
    inv_lora_target t;
    inv_id a, b, scale; /* W.lora_A, W.lora_B, W.lora_scale */
    int64_t rank;
    inv_ids sum; /* per use of the weight: the node that adds the second way to the product, or P Q to W */
} inv_lora_found;
typedef INV_VEC(inv_lora_found) inv_lora_founds;

/* All of the main graph, in `a`, by their names; INV_E_ARG where nodes or shapes are not those that inv_lora_add
 * makes. */
inv_status inv_lora_find(const inv_graph *g, inv_arena *a, inv_lora_founds *out);
/* W + scale P Q takes the place of W, and the second ways go. INV_E_ARG: W is quantized, or is read by what has no
 * second way. On failure the graph is of no use any more. */
inv_status inv_lora_merge(inv_graph *g, const inv_lora_founds *found);
/* The factors become inputs whose rank is open, zeros of rank 1 without them; the scale one of shape [1]. */
inv_status inv_lora_free(inv_graph *g, const inv_lora_founds *found);

/* The dropout of an adapter that was added, which is for training only: no file gets it. */
static inline bool inv_lora_is_dropout(const inv_graph *g, const inv_node *n)
{
    return g->adapted && n->source == INV_NONE && inv_node_is(n, "Dropout");
}

#endif
