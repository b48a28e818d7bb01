/* SPDX-License-Identifier: Apache-2.0
 * What a file tells of the program that it was exported from, by which merged parameters are told from shared ones
 * (claims.c). PyTorch's newer exporter lists the program's parameters, and says of each node which module it is of; its
 * older one calls nodes after their modules, and writes an Identity with a parameter's name where it has merged it with
 * another. Simplifiers take such signs away. importer/origins.c reads all this. */
#ifndef INV_CORE_ORIGIN_H
#define INV_CORE_ORIGIN_H

#include "core/ir.h"

typedef struct inv_origin {
    const char *const *param; /* the program's parameters, in its order */
    const bool *kept;         /* per parameter: an initializer is it, or was computed from it */
    uint32_t nparam, nlost;   /* nparam: 0: they are not told; nlost: those that are not kept */
    const uint32_t *of;       /* per initializer (inv_value.init), of nof: the parameter that it is or was computed from
                                 first; UINT32_MAX */
    const char *const *scope; /* per node of the file (inv_node.source): path of its module, "": the outermost; NULL:
                                 not told */
    size_t nof, nscope;
    bool intact;   /* as PyTorch's older exporter has written it */
    bool stripped; /* a simplifier, which merges what is equal, has left no sign of modules */
} inv_origin;

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
