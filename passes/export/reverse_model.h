/* SPDX-License-Identifier: Apache-2.0
 * Private to the inverse direction of a model: the derivation (reverse_model.c), why there is none
 * (not_reversible.c), its log-determinant (logdet.c), and whether it holds for every batch (reverse_batch.c). */
#ifndef INV_PASSES_EXPORT_REVERSE_H
#define INV_PASSES_EXPORT_REVERSE_H

#include "passes/export/outline.h"

typedef struct inv_reversal {
    inv_outliner *o;
    inv_rewriting *out;
    inv_cut cut; /* all of the file */
    inv_derivation d;
    inv_ids wanted, given;   /* inputs of the model: to be derived, and not */
    inv_ids known, aside;    /* outputs of the model: to start from, and only if those are not enough */
    inv_id logdet;           /* the output that is the log-determinant; INV_NONE */
    const char *logdet_name; /* of the output to add; NULL */
    inv_graph *h;            /* the inverse */
    bool *read;              /* per value of h */
} inv_reversal;

/* Derives what can be from x->known and x->given. *ok: all that is wanted is known. If not, what is known stays so. */
inv_status inv_reversal_attempt(inv_reversal *x, bool *ok);
bool inv_reversal_done(const inv_reversal *x);
/* not_reversible.c: behind an attempt that has failed, why. INV_E_NOT_INVERTIBLE */
inv_status inv_reversal_refuse(inv_reversal *x);

/* Whether the wanted inputs come from this inverse; once the graph is pruned. */
bool inv_reversal_needs(const inv_reversal *x, const inv_derived *u);

/* logdet.c: appends the log-determinant to the body, as x->logdet_name. The graph is pruned, and made again after. */
inv_status inv_reversal_logdet(inv_reversal *x);

/* The value of that name in a graph that is being made; it is made if it is not there. INV_NONE for an empty name. */
inv_id inv_reverse_value(inv_graph *h, const char *name);
/* Copies the tensors among the attributes of a new node, so that they live as long as its graph. false: no memory. */
bool inv_reverse_own_tensors(inv_graph *h, inv_node *n);

/* The inverse direction for these shapes. */
inv_status inv_reverse_as_given(inv_context *ctx, const inv_graph *source, const inv_session_options *shapes,
                                const inv_reverse_options *options, bool in_memory, inv_rewriting **out);

#endif
