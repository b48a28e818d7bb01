/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules on canonical graphs: which hold where, and why others do not. */
#ifndef INV_PASSES_MATCH_MATCH_H
#define INV_PASSES_MATCH_MATCH_H

#include "core/condition.h"
#include "core/program.h"
#include "passes/match/pattern.h"

/* match.c: blocks, refusals and local inverses of the forward nodes, into g->matches */
inv_status inv_pass_match(inv_graph *g);
/* check_inverses.c: every inverse beside what it frees, and how far it is off */
inv_status inv_pass_check(inv_graph *g, inv_plan *plan);
/* fuse_inverse.c */
inv_status inv_pass_fuse_inverse(inv_graph *g);

/* compiled_rule.c: rules compiled for matching */
typedef struct inv_rule {
    const inv_inverse_def *def;
    inv_pattern match, solve, saves; /* the last two: each statement behind those that give what it reads */
} inv_rule;
/* most: names and statements that any of them has */
typedef struct inv_rule_sizes {
    uint32_t names, stmts;
} inv_rule_sizes;
inv_status inv_rules_compile(inv_context *ctx, inv_arena *a, inv_rule **rules, size_t *n, inv_rule_sizes *most);
/* Whether the conditions hold; if not, *why says so. `node`: the matched node (attributes). */
typedef enum inv_verdict {
    INV_HOLDS,
    INV_UNFIT,  /* shapes, types or attributes are not those that the rule is about */
    INV_REFUSED /* they are, but values forbid it */
} inv_verdict;
struct inv_matcher;
inv_status inv_rule_when(struct inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         inv_verdict *verdict, inv_why *why);
inv_status inv_rule_gain(struct inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         double *gain, double *bound);

/* What is known before the run of a value that depends on parameters only (known_values.c). */
typedef struct inv_known {
    bool tried, measured;
    const void *bytes;
    double cond, norm; /* as a matrix, if measured: condition number, norm of the inverse */
} inv_known;

/* A region search: from the exits up to `entry` (INV_NONE: the nearest that is accepted), not through `partner`. Those
 * that found nothing are remembered: rules and swapped operands ask for the same one again. */
#define INV_MAX_EXIT 4
typedef struct inv_region_query {
    inv_id exit[INV_MAX_EXIT], entry, partner, known;
    uint32_t nexit;
    bool recoverable, several;
    bool changed;    /* `partner` is computed from the entry, which is there all the same */
    uint8_t loss;    /* inv_region_loss: why nothing was found */
    inv_id at, part; /* the value that it is about; SHARED: the part of it that feeds the branch, INV_NONE: another */
} inv_region_query;
typedef enum inv_region_loss {
    INV_LOST_NO_ENTRY, /* no single value feeds the branch */
    INV_LOST_LONG,     /* the search has become too long */
    INV_LOST_FREED,    /* the branch reads `at`, which would be freed */
    INV_LOST_SHARED,   /* the branch and the other operand come from `at` */
    INV_LOST_ENTRY     /* `at` feeds the branch, but does not leave the block */
} inv_region_loss;

typedef struct inv_unsolved {
    const inv_inverse_def *rule;
    inv_id node, frees; /* the pattern's last node, and what it would free */
} inv_unsolved;

/* What matching works on: graph, uses, positions, dependence. */
typedef struct inv_matcher {
    inv_graph *g;
    inv_arena scratch;
    size_t nvalue; /* values before templates were added */
    inv_uses uses;
    uint32_t *pos; /* per node: position in order */
    bool *active;  /* per value: depends on a graph input */
    inv_matches *out;
    inv_rule *rule;
    size_t nrule;
    /* work space of matching one rule at one node, enough for the largest: what its pattern binds and what solving
     * adds to that; the nodes found, and which statements are */
    inv_binding pattern, solving;
    inv_id *pattern_node;
    bool *stmt_done;
    bool *paired;                   /* per node: in a block of a pattern with several operators */
    INV_VEC(inv_unsolved) unsolved; /* longer patterns that were found, where their own solve text does not do */
    /* per node: it adds to a part of a long sum (or the like) that one of the file's nodes gives. That is no half of a
     * model, and looking for a branch at every term would take all terms times all terms. */
    bool *partial;
    bool *reported;    /* per node: of a longer block that values forbid, and that ends there, it was said why */
    uint32_t *height;  /* per value that does not depend on inputs: of its expression */
    inv_known *known;  /* per value */
    inv_arena entries; /* what `known` points to: weights among them, so it is emptied now and then */
    size_t nentries;   /* bytes */
    inv_ids tried;     /* values that have been looked at since */
    /* edges by the value that they free: edge_of[edge_start[v]] and on; filled before blocks are looked for */
    uint32_t *edge_start, *edge_of;
    /* work space of the region search, allocated once; marked is what holds the newest stamp */
    inv_id *front, *stack, *inside;
    uint32_t *seen, *visited, *in_region; /* per value, value, node */
    uint32_t region_stamp, visit_stamp;   /* stamps: of seen and in_region; of visited */
    inv_region_query lost[4];             /* at the node being looked at */
    uint32_t nlost;
    uint64_t steps; /* that searches for blocks may still take: every node adds some (match.c) */
} inv_matcher;

/* matcher.c: a matcher over a canonical graph; *m needs m->g only. Free with inv_matcher_fini, also after a failure. */
inv_status inv_matcher_init(inv_matcher *m);
void inv_matcher_fini(inv_matcher *m);
/* known_values.c: the entries of v, which depends on parameters and constants only, in its own type; NULL if they
 * cannot be had. Borrowed from the matcher. */
const void *inv_known_bytes(inv_matcher *m, inv_id v);
/* The condition number of a matrix among the bound values, if one was asked for; else 0 */
double inv_known_cond(const inv_matcher *m, const inv_binding *b);
enum { INV_MOST_KNOWN = 16 << 20 };                   /* bytes of entries that are kept for the next question */
void inv_known_forget(inv_matcher *m, size_t beyond); /* all of these, if they take more bytes than that */
/* Condition number of the matrix w, and the norm of its inverse; *known false: they cannot be had. */
inv_status inv_known_matrix(inv_matcher *m, inv_id w, const inv_node *node, double *cond, double *norm, bool *known);
/* Of s, which depends on parameters only: its least magnitude, least and largest entry; false if not
 * known */
typedef struct inv_extremes {
    double least_abs, least, most;
    size_t at_abs, at_least; /* where the first two are */
} inv_extremes;
bool inv_known_extremes(inv_matcher *m, inv_id s, inv_extremes *out);

/* value_range.c: bounds of the entries of any value, from the operators that give it. */
inv_bounds inv_value_range(inv_matcher *m, inv_id v);
/* What is to be expected where there are no bounds: that what operators do not bound lies between -2 and 2. */
inv_bounds inv_value_typical(inv_matcher *m, inv_id v);

/* The parameter of a linear map as a matrix, or, of a convolution with groups, as many, one behind the other. */
typedef struct inv_matrix {
    inv_data block; /* of the first, without bytes */
    bool trans;     /* they are out x in */
    int64_t in, out, groups;
} inv_matrix;
bool inv_matrix_of(inv_matcher *m, inv_id w, const inv_node *node, inv_matrix *out);

/* s, broadcast against x, has one entry per index of axis 1 and is constant along the others. */
bool inv_shape_per_channel(const inv_shape *s, const inv_shape *x);

/* A row of core/condition.inc as matching needs it. */
struct inv_question;
struct inv_finding;
typedef struct inv_condition_row {
    bool (*judge)(const struct inv_question *q, struct inv_finding *f);
    const char *args;
    bool values, defines;
    const char *remedy, *computed;
} inv_condition_row;
/* A condition to be judged where a rule's pattern was found. */
typedef struct inv_question {
    inv_matcher *m;
    const inv_condition *c;
    const inv_condition_row *row;
    const inv_binding *b;
    const inv_node *node;  /* the matched node */
    inv_id v[2];           /* what the arguments are bound to; INV_NONE, and x NULL, where they are no values */
    const inv_value *x[2]; /* the same */
} inv_question;
/* What a judge found where the condition fails. What it leaves NULL follows from the condition and its row. */
typedef struct inv_finding {
    const char *reason, *seen, *remedy;
    inv_status status; /* not INV_OK: it could not be judged */
} inv_finding;
/* diagnosis.c: joins the words for a condition that fails to those that *why has. */
inv_status inv_diagnose_condition(const inv_question *q, const inv_rule *rule, const inv_finding *f, inv_why *why);
inv_status inv_diagnose_region(inv_matcher *m, const inv_region_query *w, inv_why *why);

/* block.c: a block from the nodes of its pattern and of its regions: with the expressions of parameters that nobody
 * else reads, and what enters and leaves. */
inv_status inv_block_make(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_id *pattern,
                          uint32_t npattern, const inv_id *inside, uint32_t ninside, inv_block *out);

/* When all blocks and edges have been found: how much each block magnifies errors, and what blocks inside of others are
 * called. */
inv_status inv_block_finish(inv_matcher *m);

/* solve_template.c: the nodes that save and solve, outside of the order. */
typedef struct inv_template {
    const inv_id *node, *result; /* result: the values that `frees` names; none if it cannot be made here */
    uint32_t nnode, nsave, nresult;
} inv_template;
inv_status inv_template_emit(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                             inv_template *out);

/* inverse_edge.c: an edge for every value that the rule frees, where its pattern is bound and `node` is its last
 * operator. *made: whether the template could be made and gives what it is for; else *why says why not. */
inv_status inv_edges_add(inv_matcher *m, const inv_rule *rule, const inv_binding *b, inv_id node, bool *made,
                         inv_why *why);
/* Edges by the value that they free, in the order in which they were found: m->edge_start, m->edge_of. */
inv_status inv_edges_index(inv_matcher *m);

/* Edges of other rules that free what one of this rule's does go. */
void inv_edges_prefer(inv_matches *out, const inv_inverse_def *rule);

/* region.c: subgraphs with one entry, or several */
#define INV_MAX_ENTRY 8
typedef struct inv_region {
    inv_id entry[INV_MAX_ENTRY];
    inv_id *node;
    uint32_t nentry, nnode;
} inv_region;
/* Takes steps of a search from what is left; false: nothing is. */
bool inv_region_spend(inv_matcher *m, uint32_t steps);
/* The region of a walk, not feeding `partner` either. false: none, w->loss says why. */
inv_status inv_region_find(inv_matcher *m, inv_region_query *w,
                           bool (*accept)(inv_matcher *, const inv_region *, inv_id entry, void *), void *opaque,
                           inv_region *out, bool *found);
/* The same with two entries or more, all of which what leaves the block lets be solved for. false: none. */
bool inv_region_find_several(inv_matcher *m, inv_region_query *w, inv_region *out);
/* Whether x, entry of the region that is being searched for, can be solved for from what leaves the block. */
bool inv_region_recoverable(inv_matcher *m, inv_id x, inv_id partner, inv_id known);

#endif
