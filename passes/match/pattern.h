/* SPDX-License-Identifier: Apache-2.0
 * Compares one statement of a pattern with one node, for the patterns of inverse rules and of spellings alike. Both are
 * statements of the text form (docs/text-form.md). In which order statements are tried, and on which nodes, is the
 * search's own matter (match.c for rules, passes/canonical/spelling_match.c for spellings). */
#ifndef INV_PASSES_MATCH_PATTERN_H
#define INV_PASSES_MATCH_PATTERN_H

#include "core/graph/op.h"

/* What a name of a pattern stands for: a value, a list of them for a variadic "xs...", an attribute of a matched node,
 * or a constant whose entries are all one number. */
typedef struct inv_bound_name {
    const char *name;
    const inv_id *id; /* borrowed from the graph's nodes */
    uint32_t n;       /* values; 0 for an attribute */
    const inv_attr *attr;
    bool is_number;
    double number;
} inv_bound_name;

/* Names of a pattern and what they stand for. Names are only added: a copy of this struct goes back to what was bound
 * when it was made, as long as nothing else is. */
typedef struct inv_binding {
    inv_bound_name *at;
    uint32_t n, room;
} inv_binding;

bool inv_binding_init(inv_binding *b, inv_arena *a, uint32_t room);
int inv_binding_find(const inv_binding *b, const char *name);   /* index or -1 */
inv_id inv_binding_get(const inv_binding *b, const char *name); /* the first value; INV_NONE */
/* false: the name stands for something else already, or there is no room. */
bool inv_binding_set(inv_binding *b, const char *name, const inv_id *ids, uint32_t n);
/* An attribute that is bound to the name; else that of `node` (NULL: none) or, where it is "value.name", that of the
 * node that gives the value. NULL: there is none. */
const inv_attr *inv_binding_attr(const inv_graph *g, const inv_binding *b, const inv_node *node, const char *name);

/* An operand or an attribute of a statement: a number, a name, or `what(arg, ...)`. */
enum { INV_TERM_ARGS = 3 };
typedef struct inv_term {
    const char *text;
    bool is_number, is_call;
    double number;
    const char *what, *arg[INV_TERM_ARGS];
    uint32_t nargs;
} inv_term;

/* A statement with its operands and attributes read. */
typedef struct inv_pattern_stmt {
    const inv_stmt *s;    /* param(W) stands among its inputs as W */
    const inv_op_def *op; /* a node must be of this operator, and have the listed attributes and no others; NULL: of one
                             that s->op names, and it may have others */
    inv_term *in, *attr;  /* attr: only of those that are words or calls */
} inv_pattern_stmt;
typedef struct inv_pattern {
    inv_pattern_stmt *at;
    size_t n;
} inv_pattern;

/* Reads statements. `numbers`: an operand that is a number stands for a constant, and not for a name. */
inv_status inv_pattern_compile(inv_arena *a, const inv_stmts *list, bool numbers, inv_pattern *out);
bool inv_term_is(const inv_term *t, const char *what); /* it is a call of that function */
/* count(x): how many elements x has; count(x, axes): along these axes, a number or an attribute. false: x does
 * not have them. */
bool inv_term_count(const inv_graph *g, const inv_binding *b, const inv_node *node, const inv_term *t, double *out);
bool inv_is_variadic(const char *name);     /* "xs..." */
bool inv_stmt_is_region(const inv_stmt *s); /* it stands for a subgraph, `y = region(x)` */
/* The statement is about the node's operator. */
bool inv_pattern_names(const inv_pattern_stmt *s, const inv_node *n);
/* Binds the statement to a node if it fits; `swap`: with the first two inputs exchanged. Names of b may have been added
 * also where it does not fit. `active`: per value, whether it depends on inputs (for param(W)). An operand that is
 * computed from other values, count(x, axes) or share(x, axes), is skipped here, neither bound nor checked. */
bool inv_pattern_bind(const inv_graph *g, const bool *active, const inv_pattern_stmt *s, const inv_node *n, bool swap,
                      inv_binding *b);
/* Attribute k of a statement, which is written out, or named, or computed. Lists are of the graph's arena. false: it
 * has no value here. */
bool inv_pattern_attr(inv_graph *g, const inv_binding *b, const inv_node *node, const inv_pattern_stmt *s, uint32_t k,
                      inv_attr *out);
/* The same numbers, up to the rounding of float32, whichever of integer and real they are; or the same list. */
bool inv_attr_near(const inv_attr *a, const inv_attr *b);
/* Equal up to the rounding of float32, as exporters round constants on the way. */
bool inv_number_near(double a, double b);
/* v is a constant whose entries are all the number *out: a Constant, or an initializer of rank 0, which nothing trains.
 */
bool inv_value_uniform(const inv_graph *g, inv_id v, double *out);

#endif
