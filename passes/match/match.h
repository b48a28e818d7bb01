/* SPDX-License-Identifier: Apache-2.0
 * Matches inverse rules against canonical graphs, and says which hold where and why others do not. A rule
 * (invonnx/plugin.h) has a pattern (`match`), conditions (`when`), a text that solves for one of the pattern's values
 * (`solve`, which `frees` it), and says how much that magnifies errors (`gain`). Its texts become, one after the other:
 *
 *   rule texts -> inv_rule -> inv_binding (the pattern's names bound to values) -> inv_question (is the condition met?)
 *              -> inv_template (nodes that solve) -> inv_edge;  inv_block;  or inv_refusal with an inv_why
 *
 * inv_edge, inv_block, inv_refusal and inv_why outlive matching and are in core/program/program.h. */
#ifndef INV_PASSES_MATCH_MATCH_H
#define INV_PASSES_MATCH_MATCH_H

#include "core/program/program.h"
#include "core/rules/condition.h"
#include "passes/match/pattern.h"

/* Finds blocks, refusals and inverse edges, into g->matches (match.c). */
inv_status inv_pass_match(inv_graph *g);
/* Emits every inverse beside what it frees, and what measures how far it is off (check_inverses.c). */
inv_status inv_pass_check(inv_graph *g, inv_plan *plan);
/* Fuses inverses that are sums with the operator that gives what is summed (fuse_inverse.c). */
inv_status inv_pass_fuse_inverse(inv_graph *g);

/* Holds a rule and its texts as patterns (compiled_rule.c). */
typedef struct inv_rule {
    const inv_inverse_def *def;
    const char *plugin;              /* the file that it is from; NULL: the library */
    bool exact;                      /* of the library, and exact */
    bool asked;                      /* of a plugin: whoever brings it asks why it does not hold; but near_fit.c says
                                        more of one that is being tested */
    inv_pattern match, solve, saves; /* the last two: each statement behind those that give what it reads */
} inv_rule;
/* Holds how many names and statements the largest rule has, so that work space is allocated once. */
typedef struct inv_rule_sizes {
    uint32_t names, stmts;
} inv_rule_sizes;
inv_status inv_rules_compile(inv_context *ctx, inv_arena *a, inv_rule **rules, size_t *n, inv_rule_sizes *most);
/* What the conditions of a rule say where its pattern was found. */
typedef enum inv_verdict {
    INV_HOLDS,
    INV_UNFIT,  /* a condition fails: shapes, types, attributes, or values without a reason (inv_finding) */
    INV_REFUSED /* what was judged before it fits, but values forbid it, and there is a reason */
} inv_verdict;
struct inv_matcher;
/* Judges the conditions; *why says what fails, if any does. `node`: the matched node, for its attributes. */
inv_status inv_rule_when(struct inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         inv_verdict *verdict, inv_why *why);
/* Computes by how much an error of the value started from is magnified: what to expect, and a bound (rule_gain.c). */
inv_status inv_rule_gain(struct inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         double *gain, double *bound);

/* Holds the least magnitude and the least and largest entry of a value that depends on parameters only. */
typedef struct inv_extremes {
    double least_abs, least, most;
    size_t at_abs, at_least; /* where the first two are */
} inv_extremes;

/* Holds the entries of a value that depends on parameters only, as they are known before the run (known_values.c). */
typedef struct inv_known {
    bool tried;        /* bytes are the entries, or NULL if they cannot be had */
    bool measured;     /* cond and norm are known */
    bool looked, seen; /* its entries were looked at, and `extremes` is known */
    void *bytes;       /* in the value's own type; owned */
    size_t nbytes, at; /* at: which of `tried` it is */
    double cond, norm; /* as a matrix: condition number, and norm of the inverse */
    inv_extremes extremes;
} inv_known;

/* Says what is known of values in some of their entries, the same ones of all (value_range.c). */
typedef struct inv_supposition {
    inv_id v;
    inv_bounds in;
} inv_supposition;
typedef INV_VEC(inv_supposition) inv_suppositions;

/* Holds the bounds of what a node gives, once they were asked for (value_range.c). */
typedef struct inv_range {
    inv_bounds bounds;
    bool is, wide; /* wide: as inv_matcher.looks_spent */
} inv_range;

/* A search for a region, from its exits up to an entry (region.c), and why it found nothing. Searches that found
 * nothing are remembered, as rules and swapped operands ask for the same one again. */
#define INV_MAX_EXIT 4
typedef struct inv_region_query {
    /* The question. */
    inv_id exit[INV_MAX_EXIT]; /* values that the region gives */
    uint32_t nexit;
    inv_id entry;     /* where it has to begin; INV_NONE: at the nearest value that is accepted */
    inv_id partner;   /* the operand that the exit is combined with, which the block frees: not to be read inside */
    inv_id combined;  /* what comes out where they are combined: there when the entry is solved for */
    bool recoverable; /* the rule asks that the entry can be solved for */
    bool several;     /* the region may have several entries */
    /* The answer. */
    bool changed; /* `partner` is computed from the entry, but as another half that was changed by it before
                   * (region.c) */
    uint8_t loss; /* inv_region_loss: why nothing was found */
    inv_id at;    /* the value that the loss is about */
    inv_id part;  /* INV_LOST_SHARED: the part of `at` that feeds the branch; INV_NONE: it is no part of it */
} inv_region_query;
/* Why a search found no region. */
typedef enum inv_region_loss {
    INV_LOST_NO_ENTRY, /* no single value feeds the branch */
    INV_LOST_LONG,     /* the search has become too long */
    INV_LOST_FREED,    /* the branch reads `at`, which would be freed */
    INV_LOST_SHARED,   /* the branch and the other operand come from `at` */
    INV_LOST_ENTRY     /* `at` feeds the branch, but does not leave the block */
} inv_region_loss;

/* A longer pattern that was found where the rule's own solve text does not fit. */
typedef struct inv_unsolved {
    const inv_inverse_def *rule;
    inv_id node, frees; /* the pattern's last node, and what it would free */
} inv_unsolved;

/* A coupling by a mask, which is named when the rules have had their turn (masked.c). */
typedef struct inv_masked {
    inv_id x, y;
    inv_ids step, inner; /* nodes: those that lead from x to y, and what gives their other operands */
    bool scales;
} inv_masked;

/* Holds all that one run of the pass works with: the graph and facts of its values, the compiled rules, what was found,
 * and the work space of the searches. */
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
    /* Work space of matching one rule at one node, enough for the largest rule: what its pattern binds, and what
     * solving adds to that; which node each operator is, and which statements are found. */
    inv_binding pattern, solving;
    inv_id *pattern_node;
    bool *stmt_done;
    bool *paired; /* per node: in a block of a pattern with several operators */
    INV_VEC(inv_unsolved) unsolved;
    INV_VEC(inv_masked) masked;
    size_t norder; /* nodes in the order before templates were added */
    /* Per node: it gives only a part of a long sum (or of another chain of one operator) that is one node of the file.
     * No coupling ends at such a part, and looking for a region at every term would take time that is quadratic in the
     * terms. */
    bool *partial;
    bool *reported;             /* per node: a longer block ends there that values forbid, and this was reported */
    bool *stays;                /* per value: depends on parameters only, none of which training changes */
    inv_known *known;           /* per value: weights among them, so entries are forgotten now and then */
    size_t nentries;            /* bytes */
    inv_range *range, *typical; /* per node */
    inv_ids tried;              /* values whose entries were asked for since */
    /* edges by the value that they free: edge_of[edge_start[v]] and on; filled before blocks are looked for */
    uint32_t *edge_start, *edge_of;
    /* Work space of the region search, allocated once. A value or node is marked if it holds the newest stamp, so that
     * nothing has to be cleared. */
    inv_id *front, *stack, *region_node, *region_entry, *alone;
    bool *vain;               /* per value: a region from there on up would come to the model's inputs (region.c) */
    uint32_t *seen, *visited; /* per value */
    uint32_t *in_region;      /* per node: it is in the region that is searched for, or in the block that is made */
    uint32_t region_stamp;    /* of seen and in_region */
    uint32_t visit_stamp;     /* of visited */
    inv_region_query lost[4]; /* searches that found nothing, at the node being looked at */
    uint32_t nlost;
    const inv_suppositions *where; /* what holds in the entries that bounds are asked of; NULL: of all entries */
    uint32_t where_from;           /* `where` tells something of nodes from this place of the order on */
    bool looks_spent;              /* the newest bounds may be wide: conditions are nested too deeply to be followed */
    uint64_t budget;               /* what searches for blocks may still spend: every node adds some (match.c) */
} inv_matcher;

/* matcher.c: a matcher over a canonical graph; *m needs m->g only. Free with inv_matcher_fini, also after a failure. */
inv_status inv_matcher_init(inv_matcher *m);
void inv_matcher_fini(inv_matcher *m);
/* known_values.c: the entries of v, which depends on parameters and constants only, in its own type; NULL if they
 * cannot be had. Borrowed from the matcher. */
const void *inv_known_bytes(inv_matcher *m, inv_id v);
/* Gives the condition number of the first matrix among the bound values that one was computed of; else 0. */
double inv_known_cond(const inv_matcher *m, const inv_binding *b);
enum { INV_MOST_KNOWN = 16 << 20 }; /* bytes of entries that are kept for the next question */
/* Forgets all entries if they take more bytes than that. What was borrowed is gone then. */
void inv_known_forget(inv_matcher *m, size_t beyond);
/* Computes the condition number of the matrix w and the norm of its inverse; *known false: they cannot be had. */
inv_status inv_known_matrix(inv_matcher *m, inv_id w, const inv_node *node, double *cond, double *norm, bool *known);
/* The extremes of s, which depends on parameters and constants only. false: they are not known. */
bool inv_known_extremes(inv_matcher *m, inv_id s, inv_extremes *out);

/* value_range.c: finds bounds of the entries of any value, from the operators that give it, where m->where holds. */
inv_bounds inv_value_range(inv_matcher *m, inv_id v);
/* Does the same, but takes what operators do not bound to lie between -2 and 2, as is usual. */
inv_bounds inv_value_typical(inv_matcher *m, inv_id v);

/* rule_gain.c: by how much dividing by s (or, if `inverse` is false, multiplying with it) magnifies an error: what to
 * expect, and a bound. */
void inv_factor_gain(inv_matcher *m, inv_id s, bool inverse, double *gain, double *bound);

/* masked.c: finds couplings by masks, in any arrangement: their edges, and, when the rules have had their turn, their
 * blocks. */
inv_status inv_masked_find(inv_matcher *m);
inv_status inv_masked_name(inv_matcher *m);

/* Describes the parameter of a linear map as a matrix, or that of a convolution with groups as one matrix for each
 * group, one behind the other. */
typedef struct inv_matrix {
    inv_data block; /* type and shape of the first; bytes stay NULL */
    bool trans;     /* they are stored as [out, in], not as [in, out] */
    int64_t in, out, groups;
} inv_matrix;
bool inv_matrix_of(inv_matcher *m, inv_id w, const inv_node *node, inv_matrix *out);

/* Says whether s, broadcast against x, has one entry per index of axis 1 and is constant along the others. */
bool inv_shape_per_channel(const inv_shape *s, const inv_shape *x);

/* A row of core/rules/condition.inc as matching needs it. */
struct inv_question;
struct inv_finding;
typedef struct inv_condition_row {
    bool (*judge)(const struct inv_question *q, struct inv_finding *f);
    const char *args; /* a 'v' is one value that has to be bound */
    bool values, identifies;
    const char *remedy, *computed;
} inv_condition_row;
/* Asks whether a condition holds where a rule's pattern was found. */
typedef struct inv_question {
    inv_matcher *m;
    const inv_condition *c;
    const inv_condition_row *row;
    const inv_binding *b;
    const inv_node *node;  /* the matched node */
    inv_id v[2];           /* what the arguments are bound to; INV_NONE where they are no values */
    const inv_value *x[2]; /* these values; NULL */
} inv_question;
/* What a judge found where the condition fails, as words for inv_why. Where it leaves a text NULL, a general one is
 * made of the condition and its row. Of a condition on values, `reason` also decides: with one, values forbid the rule
 * (INV_REFUSED); without, what stands there only does not fit (INV_UNFIT), such as masks of other numbers than 0 and 1.
 */
typedef struct inv_finding {
    const char *reason, *seen, *remedy;
    inv_status status; /* not INV_OK: it could not be judged */
} inv_finding;
/* diagnosis.c: joins the words for a condition that fails to those that *why has. */
inv_status inv_diagnose_condition(const inv_question *q, const inv_rule *rule, const inv_finding *f, inv_why *why);
inv_status inv_diagnose_region(inv_matcher *m, const inv_region_query *w, inv_why *why);
/* Puts the rule's name before the reason if it is asked for: whoever wrote it knows it by that. */
inv_status inv_diagnose_owner(inv_matcher *m, const inv_rule *rule, inv_why *why);

/* Makes a block of the nodes of its pattern and of its regions. Expressions of parameters that nobody else reads join
 * it. The block lists what enters and what leaves (block.c). */
inv_status inv_block_make(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_id *pattern,
                          uint32_t npattern, const inv_id *region, uint32_t nregion, inv_block *out);

/* To be called when all blocks and edges have been found: drops parts of longer blocks and refusals inside of regions,
 * says in the kind of a step that it is in a region, and computes how much each block magnifies errors. */
inv_status inv_block_finish(inv_matcher *m);

/* The nodes that save and solve, outside of the order (solve_template.c). */
typedef struct inv_template {
    const inv_id *node; /* the first nsave are forward's, the others solve */
    uint32_t nnode, nsave;
    const inv_id *result; /* the values that `frees` names; none if it cannot be made here */
    uint32_t nresult;
    inv_binding given; /* what its statements give, until the next one is made */
} inv_template;
inv_status inv_template_emit(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                             inv_template *out);

/* Adds an edge for every value that the rule frees, where its pattern is bound and `node` is its last operator. *made
 * false: the template cannot be made or gives something else, and *why says which (inverse_edge.c). */
inv_status inv_edges_add(inv_matcher *m, const inv_rule *rule, const inv_binding *b, inv_id node, bool *made,
                         inv_why *why);
static inline const char *inv_rule_kind(const inv_inverse_def *d) { return d->kind ? d->kind : d->name; }
/* Tries the rules of one operator at a node (match_local.c). */
inv_status inv_match_locals(inv_matcher *m, inv_id node);
inv_status inv_report_refusal(inv_matcher *m, const inv_inverse_def *rule, inv_id node, inv_id value,
                              const inv_why *why);
/* Reports each candidate as a block or a refusal, not as both: a refusal counts as overruled where another rule has
 * taken the same value, and where an earlier one has the same reason. */
inv_status inv_report_once(inv_matcher *m, size_t from, inv_id taken);
/* If nothing was found or said of the rule, adds to `overruled` why no node fits it (near_fit.c). */
inv_status inv_near_fit(inv_matcher *m, const inv_rule *rule);
/* Indexes the edges by the value that they free: m->edge_start, m->edge_of. */
inv_status inv_edges_index(inv_matcher *m);

/* Drops edges of other rules for values that this rule frees. */
void inv_edges_prefer(inv_matches *out, const inv_inverse_def *rule);

/* A subgraph between entries and exits (region.c). */
typedef struct inv_region {
    inv_id *entry, *node; /* work space of the matcher, until the next search */
    uint32_t nentry, nnode;
} inv_region;
/* Takes from the budget of all searches; false: nothing is left. */
bool inv_region_spend(inv_matcher *m, uint32_t amount);
/* Finds the region of a query; the first entry is taken that `accept` likes. *found false: there is none, and w->loss
 * says why. */
inv_status inv_region_find(inv_matcher *m, inv_region_query *w,
                           bool (*accept)(inv_matcher *, const inv_region *, inv_id entry, void *), void *opaque,
                           inv_region *out, bool *found);
/* The same with two entries or more, all of which can be solved for from what leaves the block. false: none. */
bool inv_region_find_several(inv_matcher *m, inv_region_query *w, inv_region *out);
/* x, an entry of the region that is being searched for, can be solved for from what leaves the block. */
bool inv_region_recoverable(inv_matcher *m, inv_id x, inv_id partner, inv_id combined);

#endif
