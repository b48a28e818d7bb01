/* SPDX-License-Identifier: Apache-2.0
 * A parameter that the file holds twice, the second time transposed: PyTorch's exporters fold `weight.t()` into an
 * initializer of its own where a weight is tied, such as that of an embedding and of the head behind. Trained apart,
 * the two would come apart. */
#ifndef INV_CORE_TIE_H
#define INV_CORE_TIE_H

#include "core/graph/ir.h"

typedef struct inv_tie {
    inv_id master, copy; /* copy[i,j] = master[j,i], to the bit */
} inv_tie;
typedef INV_VEC(inv_tie) inv_ties;

/* The ties among the initializers of an imported graph, functions and bodies included, of which one is to be trained by
 * `untrained` (core/weights/trained.h): the other follows it, though train_only does not name it. Not taken for tied:
 * what the file calls two parameters, or a PyTorch exporter names as two; what `o`'s train_only names both in full;
 * tensors that are all one number, and symmetric ones. o: NULL: no options. */
inv_status inv_ties_find(const inv_graph *g, const inv_session_options *o, const uint8_t *untrained, inv_arena *a,
                         inv_ties *out);
/* `to`[j,i] = `from`[i,j], of rows x columns elements of `size` bytes. */
void inv_transpose(void *to, const void *from, size_t rows, size_t columns, size_t size);

#endif
