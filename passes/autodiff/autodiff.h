/* SPDX-License-Identifier: Apache-2.0
 * The loss, backward and the update as nodes of the graph. */
#ifndef INV_PASSES_AUTODIFF_AUTODIFF_H
#define INV_PASSES_AUTODIFF_AUTODIFF_H

#include "core/program/program.h"

/* emit_loss.c: loss (and metric) nodes */
inv_status inv_pass_loss(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* head_parts.c: where nothing but the loss reads the logits of a product, and they are large, both are computed some
 * rows at a time; gives plan->head. Before grad, so that gradients come in the same parts. */
inv_status inv_pass_split_head(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* moves each part to where its gradient is; no part of the logits is there beside another one */
inv_status inv_pass_place_head(inv_graph *g, const inv_plan *plan);
/* sum_in_place.c: sums of gradients of a parameter become operands of the products that they are summed from */
inv_status inv_pass_sum_in_place(inv_graph *g, const inv_plan *plan);
/* grad_rows.c, where weights are updated early: gradients of large tables come some rows at a time, behind each other;
 * a slot of plan->grad for each section of the parameter */
inv_status inv_pass_grad_rows(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* inner_loss.c: what a loss that the model computes is divided by; plan->total, plan->divisor. `output`: its
 * name */
inv_status inv_inner_loss(inv_graph *g, const inv_request *rq, inv_plan *plan, const char *output);
/* norm_values.c: INV_E_ARG where training would normalize single values; plan->lone */
inv_status inv_check_norms(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* hold.c: gradients of elements that are held are zero */
inv_status inv_pass_hold(inv_graph *g, inv_plan *plan);
/* behind the update of w, which is parameter `param`, a section of one, or its average: rows that decay moves */
inv_status inv_hold_rows(inv_graph *g, inv_id param, inv_id w);
/* sync_norms.c, of ranks that train together: batch statistics are those of all of them; plan->seed */
inv_status inv_pass_sync_norms(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* grad.c: backward nodes; gradients of trainable parameters and, if wanted, inputs */
inv_status inv_pass_grad(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* reduce_gradients.c, of ranks that train together: plan->grad is the means over all of them from now on, or each
 * rank's parts of these (shard gradients) */
inv_status inv_pass_reduce_gradients(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* plan->weights is there, emitted at the end of the order if it was not */
inv_status inv_rank_weights(inv_graph *g, int64_t ranks, inv_plan *plan);
/* bytes of a bucket */
size_t inv_bucket_nbytes(const inv_world *w);
/* shard_update.c: whether ranks share updates */
bool inv_shards(const inv_session_options *o);
/* optimizer_update.c: bytes that persist beside a parameter of so many, at least */
size_t inv_optimizer_nbytes(const inv_session_options *o, size_t nbytes);
/* elements of a rank's part of parameter w */
int64_t inv_shard_length(const inv_graph *g, const inv_session_options *o, inv_id w);
/* whether each element of parameter w is updated by itself, so that sections of it can be */
bool inv_updated_by_element(const inv_graph *g, const inv_session_options *o, inv_id w);
/* optimizer and running statistics, as commit nodes */
inv_status inv_pass_update(inv_graph *g, const inv_request *rq, inv_plan *plan);
/* the graph of a plan that is the update alone: the parameters that `main` has gradients of, and plan->grad, which are
 * accumulated ones */
inv_status inv_update_graph(const inv_plan *main, inv_plan *plan);
/* grad.c: the operator Gradient, which stands for reverse mode between values of the model; out: one per `xs` */
bool inv_is_gradient(const inv_node *n);
inv_status inv_lower_gradient(inv_graph *g, const inv_node *n, inv_id *out);

/* INV_E_UNSUPPORTED_OP if nodes between what is wanted and the values `from`, where gradients start, let none pass
 * (gradient_way.c). `wanted`: per value, whether something that a gradient is wanted of leads there. */
inv_status inv_check_way(const inv_graph *g, inv_arena *scratch, const bool *wanted, const inv_ids *from);
/* Lets backward expand quantized constants itself (unpack_again.c). */
inv_status inv_pass_unpack_again(inv_graph *g);

#endif
