/* SPDX-License-Identifier: Apache-2.0
 * What a file tells of the program that it was exported from, by which merged parameters are told from shared ones
 * (claims.c). PyTorch's newer exporter lists the program's parameters, and says of each node which module it is of; its
 * older one calls nodes after their modules, and writes an Identity with a parameter's name where it has merged it with
 * another. Simplifiers take such signs away. importer/signature.c reads the list, importer/modules.c the modules
 * (inv_node.module). */
#ifndef INV_CORE_EXPORTED_H
#define INV_CORE_EXPORTED_H

#include "core/graph/ir.h"

typedef enum inv_kept {
    INV_KEPT_NOT,
    INV_KEPT_COMPUTED, /* some initializer was computed from it */
    INV_KEPT_NAMED     /* an initializer has its name */
} inv_kept;

typedef struct inv_exported {
    const char *const *param; /* the program's parameters, in its order */
    const uint8_t *kept;      /* per parameter: inv_kept */
    uint32_t nparam, nlost;   /* nparam: 0: they are not told; nlost: those that are not kept */
    const uint32_t *of;       /* per initializer (inv_value.init), of nof: the parameter that it is or was computed from
                                 first; UINT32_MAX */
    size_t nof;
    bool torch;    /* it comes from PyTorch, as far as one can see: else merged parameters have no signs */
    bool intact;   /* as PyTorch's older exporter has written it */
    bool stripped; /* a simplifier, which merges what is equal, has left no sign of modules */
} inv_exported;

/* Whether some parameter may be in no initializer; without a list nobody knows. */
static inline bool inv_has_lost(const inv_exported *e) { return e && (!e->nparam || e->nlost); }

/* What is said of one use of a parameter. */
typedef struct inv_claim {
    const char *was; /* the parameter that stood there, by the file; NULL: not known, or the initializer itself */
    uint64_t key;    /* equal: one parameter; 0: the initializer itself */
    bool known;      /* else the file says nothing */
} inv_claim;

struct inv_param_use;
typedef struct inv_claims inv_claims;

/* Makes ready to ask; *out: NULL: the file tells nothing. uses, nuse: per value of g. */
inv_status inv_claims_init(const inv_graph *g, struct inv_param_use *const *uses, const size_t *nuse, inv_arena *a,
                           inv_claims **out);
/* claim: room for as many as the parameter has uses. */
inv_status inv_claims_find(const inv_claims *c, inv_id param, inv_claim *claim);
/* The name by which the older exporter says that node n, an Identity of a parameter, stands for another; NULL. */
const char *inv_claims_alias(const inv_graph *g, const inv_node *n);

#endif
