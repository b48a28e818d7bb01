/* SPDX-License-Identifier: Apache-2.0
 * Private to the importer: describing a model as JSON. inspect.c says what is there, traps.c what exporters have done
 * to it that training will meet. */
#ifndef INV_IMPORTER_VIEW_H
#define INV_IMPORTER_VIEW_H

#include <jansson.h>

#include "core/graph/node.h"
#include "core/weights/tie.h"
#include "importer/importer.h"

typedef struct inv_model_view {
    inv_context *ctx;
    const inv_model *m;
    const inv_graph *g;
    inv_arena scratch;
    bool *called; /* per function */
    inv_callees callees;
    const uint32_t *roles;    /* per value of g: of its uses, as bits (core/weights/shared_weights.h) */
    const uint8_t *untrained; /* per value of g: inv_untrained (core/weights/trained.h) */
    uint8_t *evidence;        /* per value of g: a row of the table (inv_evidence_find) */
    inv_ties ties;            /* initializers that are others transposed */
    json_t *root, *operators, *missing, *groups, *traps, *constants;
    json_t *trap_nodes; /* kind of trap -> names of nodes */
    bool optimized;     /* rules of the exporter's optimizer are named in the file */
    bool failed;        /* jansson had no memory */
} inv_model_view;

/* inspect.c */
void inv_view_set(inv_model_view *w, json_t *object, const char *key, json_t *v);
void inv_view_append(inv_model_view *w, json_t *array, json_t *v);
json_t *inv_view_text(inv_model_view *w, const char *s);
json_t *inv_view_words(inv_model_view *w, const char *s); /* our own, {field} of options in it */

/* constants.c: adds those of one graph to w->constants; `prefix`: of names. */
inv_status inv_constants_look(inv_model_view *w, const inv_graph *g, const char *prefix, bool body);

/* traps.c */
/* Notes what one node is a sign of; `name`: as reported. */
void inv_traps_look(inv_model_view *w, const inv_graph *g, const inv_node *n, const char *name);
/* All traps, into w->traps. */
inv_status inv_traps_report(inv_model_view *w);

#endif
