/* SPDX-License-Identifier: Apache-2.0
 * What the attentions of onnxruntime have in common: heads taken apart, masks, and ONNX's Attention in their place.
 * Messages are about the node that is lowered. */
#ifndef INV_OPS_MICROSOFT_MS_ATTEND_H
#define INV_OPS_MICROSOFT_MS_ATTEND_H

#include "core/graph/op.h"

/* One attention while it is lowered: heads as [batch, heads, length, size]. */
typedef struct inv_attending {
    inv_graph *g;
    const inv_node *n;
    int64_t batch, heads, kv; /* kv: heads of keys and values */
    int64_t len, total;       /* queries; keys, past ones with them */
    inv_id q, k, v;
    inv_id past[2]; /* of keys and values, or INV_NONE */
    inv_id mask;    /* is added to the scores; INV_NONE: nothing is */
    bool causal;
    int64_t window;    /* keys that a query sees, itself with those before it; -1: all */
    double scale, cap; /* scale 0: one over the root of the size */
} inv_attending;

inv_status inv_attend_refuse_input(const inv_attending *a, uint32_t i, const char *what, const char *instead);
inv_status inv_attend_refuse_output(const inv_attending *a, uint32_t i, const char *what);
/* An attribute that may only have the value that changes nothing. */
inv_status inv_attend_refuse_attribute(const inv_attending *a, const char *name, int64_t only, const char *instead);
inv_status inv_attend_wrong_shape(const inv_attending *a, uint32_t i, const char *want);
/* v [batch, length, heads * size] as [batch, heads, length, size]. */
inv_status inv_attend_apart(inv_attending *a, inv_id v, int64_t heads, inv_id *out);
void inv_attend_add_to_mask(inv_attending *a, inv_id more);
/* int32 [1,1,1,total]: 0, 1, 2, ... */
inv_id inv_attend_columns(const inv_attending *a);
/* The mask of input i: lengths [batch], ends and starts [2 batch], or numbers that are positive where a key is seen,
 * [batch, total] or [batch, len, total]. */
inv_status inv_attend_mask(inv_attending *a, uint32_t i);
/* Input i is added to the scores. */
inv_status inv_attend_bias(inv_attending *a, uint32_t i);
/* What came before, of the heads v; without anything in it, it is as if not given. */
inv_status inv_attend_past(inv_attending *a, uint32_t i, int which, inv_id v, inv_id past);
/* Queries, keys and values are there: what their shapes say. */
inv_status inv_attend_shapes(inv_attending *a);
/* The result in out[0], [batch, length, heads * size]; keys and values of all positions in *k and *v. */
inv_status inv_attend(inv_attending *a, inv_id *out, inv_id *k, inv_id *v);

#endif
