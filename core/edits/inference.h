/* SPDX-License-Identifier: Apache-2.0
 * The form for inference of an imported graph: what has to change in its nodes so that any runtime computes what
 * evaluation computes here. Batch normalization goes by its running statistics, dropout lets everything through:
 *
 *   y, m, v = BatchNormalization<training_mode = 1>(...)  ->  y = BatchNormalization<training_mode = 0>(...)
 *   y = Dropout(x, ratio, true)                           ->  y = Dropout(x, ratio)
 *   y = Mul(x, Div(Cast(Less(RandomUniformLike(s), c)), c)) ->  y = Identity(x)
 *   y = Mul(Div(x, c), Floor(Add(RandomUniformLike(s), c))) ->  y = Identity(x)
 *
 * in the main graph, in functions and in bodies of control flow. New statistics that are outputs of the model go; where
 * something else reads them, it gets the running ones, as in evaluation. */
#ifndef INV_CORE_INFERENCE_H
#define INV_CORE_INFERENCE_H

#include "core/graph/ir.h"

/* What becomes of one node of the file. */
typedef struct inv_node_edit {
    bool gone;          /* but for what `pass` says */
    uint32_t nin, nout; /* the first of its listed inputs and of its outputs stay */
    const char *attr;   /* integer attribute that it gets, in place of one of that name; NULL: none */
    int64_t value;
    uint32_t pass; /* bit k: output k goes, but is read: it is input 0 (k = 0), 3 (k odd) or 4 from now on */
} inv_node_edit;

/* Of one graph: the model's, a function's, or a body's. */
typedef struct inv_graph_edit {
    const inv_graph *g;
    inv_node_edit **node; /* per node; NULL: it stays as it is */
    bool *drop;           /* per value: its initializer and declarations go */
} inv_graph_edit;

typedef struct inv_inference {
    inv_graph_edit *graph; /* by address */
    size_t ngraph;
    size_t norms, dropouts; /* changed nodes */
    bool blocks;            /* some of the norms are in functions of a rewriting, whose inverses do not fit then */
    const char *kept;       /* a Dropout that stays as it is because its mode is fed; NULL: there is none */
    const char *fed;        /* the input that decides */
} inv_inference;

/* What dropout that is written out lets through, of which n, of an imported graph or of one that is being lowered, is
 * the last node; INV_NONE: n is none. It multiplies by a mask that is 1 / c with probability c, else 0, as PyTorch's
 * exporter writes stochastic depth (arXiv 1603.09382). */
inv_id inv_inference_dropped(const inv_graph *g, const inv_node *n);
/* In `a`, of a graph as it was imported. */
inv_status inv_inference_find(const inv_graph *g, inv_arena *a, inv_inference *out);
const inv_graph_edit *inv_inference_of(const inv_inference *f, const inv_graph *g);
static inline bool inv_inference_any(const inv_inference *f) { return f->norms || f->dropouts; }

#endif
