/* SPDX-License-Identifier: Apache-2.0
 * What the passes and the executor may know of a loaded model. How the file is held is the importer's business
 * (`impl`), and so is writing it (importer/model_file.h). */
#ifndef INV_CORE_MODEL_H
#define INV_CORE_MODEL_H

#include "core/graph/ir.h"

/* An entry of metadata_props in what is written; value NULL: there is none of that key. */
typedef struct inv_model_entry {
    const char *key, *value;
} inv_model_entry;

/* What a loss that the model computes is divided by. */
typedef enum inv_divisor {
    INV_BY_UNMEASURED,
    INV_BY_ROWS,
    INV_BY_COUNT, /* of labels that count, or the sum of weights of rows */
    INV_BY_NOTHING,
    INV_BY_ROWS_OR_NOTHING, /* by rows where a factor is made of their number */
    INV_BY_UNREAD,          /* nodes do not say: a product of matrices, which may be a sum */
    INV_BY_UNKNOWN
} inv_divisor;

struct inv_model {
    inv_context *ctx;
    size_t held;        /* by so many sessions; the caller holds it, too */
    bool kept;          /* by the registry of its context, which it does not hold then */
    const char *path;   /* as given to inv_model_load */
    inv_graph *graph;   /* as in the file; passes work on copies. Its tensors are views of the mapped file */
    inv_graph *forward; /* if `graph` is the inverse direction: as in the file; else NULL */
    size_t nfile_inits; /* initializers of `graph` that the file has; those of adapters come behind them */
    size_t
        nfile_opsets;  /* the same of its operator sets, of which functions that are opened up may have further ones */
    inv_layout layout; /* of what is written */
    inv_form form;
    const char *const *taken; /* names of constants that the caller calls parameters (inv_model_load_with) */
    size_t ntaken;
    INV_VEC(inv_model_entry) entry;    /* that the file does not have so (importer/metadata.c) */
    inv_divisor divisor;               /* as it was measured for the last session (executor/session/row_probe.c) */
    bool measured;                     /* this is going on */
    void *impl;                        /* importer/: mappings, facts for inspect */
    void (*destroy)(inv_model *model); /* inv_model_destroy, for who does not know the importer */
};

/* Entries that are made when they are written, so that not all of them have to be there at once. *data is valid until
 * the next call. */
typedef struct inv_maker {
    inv_status (*make)(void *opaque, size_t i, const void **data); /* NULL: there is none */
    void *opaque;
    size_t i;
} inv_maker;

/* Present value of an initializer. */
typedef struct inv_weight {
    inv_dtype dtype;
    size_t n;         /* elements */
    const void *data; /* valid and unchanged until inv_model_write returns */
    inv_maker maker;  /* in place of data */
} inv_weight;

/* Fills *out, which is zero, or leaves it: unchanged. It is asked once per initializer. */
typedef inv_status (*inv_weight_source)(void *opaque, const char *initializer, inv_weight *out);

#endif
