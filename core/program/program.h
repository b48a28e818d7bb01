/* SPDX-License-Identifier: Apache-2.0
 * What compiling gives and the executor runs: up to five plans of one model over one arena.
 *
 *     arena = [ persistent: parameters, constants, optimizer state | control | landing | transient: the largest plan's
 * ]
 *
 * `control` is there for devices with queues: what changes from step to step (INV_CONTROL_STEP bytes), and the guards'
 * verdicts and limits. `landing` is where they get a batch before its step (executor/run/ahead.c). */
#ifndef INV_CORE_PROGRAM_H
#define INV_CORE_PROGRAM_H

#include <math.h>
#include <string.h>

#include "core/graph/model.h"
#include "core/graph/op.h"
#include "core/weights/tie.h"

/* --- what matching finds (passes/match/match.c) --- */

/* log |det| of what an edge solves (inv_inverse_def.logdet), its names bound. */
typedef struct inv_volume_term {
    const char *form;  /* "log_abs", ... */
    inv_id arg, times; /* INV_NONE: takes none */
} inv_volume_term;
typedef struct inv_volume {
    const inv_id *from; /* results of the pattern's operators that the edge starts from, as many as it frees */
    const inv_id *held; /* what the pattern takes besides that which is freed */
    const char *const *held_name; /* ... and how it calls these; NULL: the rule is not being tested */
    uint32_t nfrom, nheld;
    bool known;
    inv_volume_term *term;
    uint32_t nterm;
    uint32_t nmore; /* nodes behind those that the edge solves with, which only give arguments of terms */
} inv_volume;

/* A model with the log-determinant of its own direction, by the rules, as an output besides. Names are those of
 * values of g. */
typedef struct inv_volumes {
    inv_graph *g;
    const char *by_rules; /* [N] */
    const char *const *z; /* the outputs that it is about */
    size_t nz;
    const char *const *derived; /* the inputs that it transforms */
    size_t nderived;
    const char *stranger, *stranger_plugin; /* a rule of a plugin that by_rules goes by; NULL: none */
    /* if compared: sum of by_rules over the batch; the model's own, [N] or [1], and the sum of by_rules less that; NULL
     * without an output of its own */
    const char *sum, *own, *difference;
} inv_volumes;

/* One way to get a value from others: the nodes are a template outside of the order. */
typedef struct inv_edge {
    const inv_inverse_def *rule;
    inv_id frees;   /* forward value */
    inv_id forward; /* the node that is solved */
    inv_id result;  /* template value that equals `frees` */
    const inv_id *node;
    uint32_t nnode;
    double flops;
    double gain, bound; /* expected of the error, and at most; INFINITY if unbounded */
    inv_id spread;      /* a variance of the run, the square root of which the bound is to be multiplied by; INV_NONE */
    uint32_t nsave;     /* the first nodes are forward's: they may read `frees`, and what the others read is kept */
    double kept;        /* bytes of that */
    double cond;        /* condition number of the matrix that the rule asked about; 0: of none */
    const inv_volume *volume;
    const char *plugin; /* the file that the rule is from; NULL: the library */
    bool fused;         /* the node that gives an operand is part of it (passes/match/fuse_inverse.c) */
    bool exact;         /* gives the bits of `frees`: a rule of the library says so. What a plugin says is guarded */
} inv_edge;
typedef struct inv_block {
    const inv_inverse_def *rule;
    const char *kind;
    inv_id root;              /* last node of the pattern */
    uint32_t at;              /* its position */
    const inv_id *node;       /* pattern nodes and the regions' nodes */
    uint32_t nnode, npattern; /* the first npattern are the pattern's own */
    const inv_id *in, *out;   /* values */
    uint32_t nin, nout;
    uint32_t nrule_in, nrule_out; /* the first of them are those that the rule is about */
    double gain, bound; /* of errors of what leaves, on the way to what is freed, in[0]; INFINITY; NAN: no way */
} inv_block;
/* The relative error that an inverse adds by rounding, before its gain magnifies it. What is solved for (column
 * `inverts`) may have been multiplied in less than the precision of its type. */
static inline double inv_edge_rounding(const inv_graph *g, const inv_edge *e)
{
    static const double of[] = {
        [INV_PRECISION_FULL] = 0x1p-23, [INV_PRECISION_TF32] = 0x1p-10, [INV_PRECISION_BF16] = 0x1p-7};
    if (g->real == INV_F64) return 0x1p-52;
    for (uint32_t i = 0; i < e->nnode; i++)
        if (inv_nod(g, e->node[i])->op->inverts) return of[g->precision];
    return 0x1p-23;
}
/* The bound in a run whose largest entry of `spread` is this. */
static inline double inv_edge_bound(const inv_graph *g, const inv_edge *e, double variance)
{
    return e->spread == INV_NONE ? e->bound
                                 : e->bound * sqrt(variance + inv_attr_float(inv_nod(g, e->forward), "epsilon", 1e-5));
}
/* Whether the edge is the block's rule applied to the block, rather than the inverse of one of its operators. */
static inline bool inv_edge_of_block(const inv_edge *e, const inv_block *b)
{
    return e->rule == b->rule && e->forward == b->root;
}
/* Why a rule does not hold somewhere. Several conditions that fail are joined by "; ". */
typedef struct inv_why {
    const char *reason;    /* in words, with the names and numbers that were seen */
    const char *condition; /* as the rule has it; NULL: none of its conditions, but its match or the rule itself */
    const char *seen;      /* number, shape or name that fails it; NULL: nothing to show */
    const char *remedy;    /* the smallest change that would make it hold; NULL: none is known */
    uint32_t missed;       /* conditions that fail; UINT32_MAX: it is not the kind of thing that the rule inverts */
} inv_why;
typedef struct inv_refusal {
    const char *kind;
    inv_id node;
    const inv_inverse_def *rule;
    inv_id value; /* what would have been freed; INV_NONE: not known */
    inv_why why;
    bool one_source; /* of a region: the other operand comes from its entry, too */
} inv_refusal;
typedef struct inv_matches {
    INV_VEC(inv_edge) edge;
    INV_VEC(inv_block) block;
    INV_VEC(inv_refusal) refusal;
    INV_VEC(inv_refusal) overruled; /* where another rule has taken or refused the same, and of those without a name */
} inv_matches;

/* --- plans --- */

typedef enum inv_plan_kind {
    INV_PLAN_MAIN, /* run, eval or train, as the purpose says */
    INV_PLAN_TAIL, /* train on the last, smaller batch */
    INV_PLAN_EVAL,
    INV_PLAN_EVAL_TAIL,
    INV_PLAN_UPDATE, /* the optimizer alone, from accumulated gradients */
    INV_PLAN_KINDS
} inv_plan_kind;

typedef enum inv_choice { INV_STORED, INV_RECOMPUTED, INV_INVERTED, INV_OFFLOADED, INV_CHOICES } inv_choice;

/* Why a value is stored. */
typedef enum inv_stored_why {
    INV_STORED_NOT,     /* it is not */
    INV_STORED_ALL,     /* everything is */
    INV_STORED_RESULT,  /* the caller reads it */
    INV_STORED_ASKED,   /* keep or a mode names it */
    INV_STORED_GUARD,   /* the guard has refused its reconstruction */
    INV_STORED_PROOF,   /* a plan without it was wrong */
    INV_STORED_ONCE,    /* its operator is never run twice */
    INV_STORED_INPUT,   /* the caller's: not computed, so it would be copied again */
    INV_STORED_BASE,    /* others are rebuilt from it */
    INV_STORED_CHEAPER, /* than the arithmetic that gives it back, within the bytes there are; or all that could is
                         * ruled out */
    INV_STORED_WHYS
} inv_stored_why;

/* What inverse rules can do for a value. */
typedef enum inv_way {
    INV_WAY_NONE,      /* no rule frees it */
    INV_WAY_OFF,       /* inverses are not to be used, or not for this value */
    INV_WAY_UNBOUNDED, /* rules that free it magnify errors without bound */
    INV_WAY_INEXACT,   /* the error would exceed max_drift */
    INV_WAY_OPEN,      /* a rule may be used */
    INV_WAYS
} inv_way;

/* How backward gets one forward value that it reads. */
typedef struct inv_choice_row {
    inv_id value;
    inv_choice choice;
    const char *by;      /* rule, for inverted; node, for recomputed */
    bool moved;          /* by rearranging alone, without arithmetic */
    uint8_t stored, way; /* inv_stored_why, inv_way */
    const char *rule;    /* the best rule that frees it; NULL: none */
} inv_choice_row;

typedef struct inv_feed_slot {
    const char *name; /* model input; "target" for the target; model output, for its gradient */
    inv_id value;
    bool is_target;
    inv_id gradient_of; /* value: its gradient, which the caller has only when forward is done; INV_NONE */
} inv_feed_slot;

/* Bytes live while one node of the order runs. */
typedef struct inv_live {
    size_t bytes[INV_MEM_CLASSES];
    size_t workspace;
} inv_live;

/* A named value of the model that can be read after a call. */
typedef struct inv_result_slot {
    const char *name;
    inv_id value;
} inv_result_slot;

/* An output that is not computed. */
typedef struct inv_left_slot {
    const char *name, *type; /* type NULL: the loss does not need it */
} inv_left_slot;

/* What the purpose `check` computes of one inverse (passes/match/check_inverses.c): values of the plan. Fingerprints as
 * GuardSum gives them: element 4 is the sum of squares, element 5 the number of elements that are not finite. */
typedef struct inv_check {
    uint32_t edge;               /* index in the matches */
    inv_id value, off;           /* fingerprints: of what is freed, of what comes back less that */
    inv_id most;                 /* largest magnitude of that difference */
    inv_id spread;               /* largest entry of the edge's `spread`; INV_NONE */
    inv_id start, moved, change; /* float64: fingerprints of what the inverse starts from, of by how much that was
                                    moved, of by how much its result moved. INV_NONE: not measured */
} inv_check;
/* A purpose of no public name: forward as in training, and every inverse beside it. */
#define INV_FOR_CHECK ((inv_purpose)(INV_FOR_TRAIN + 1))

/* One rematerialisation of the plan, as the search has decided it. Ids are those of the base graph. */
typedef struct inv_remat_row {
    uint32_t step; /* position in the base's order before whose node it comes */
    inv_id node;   /* the node that runs again, is solved by the rule, or gave the value that was offloaded */
    const inv_inverse_def *rule; /* NULL: it is recomputed or offloaded */
    bool joined;                 /* by an edge that fuse_inverse.c has made of the rule's */
    bool offload;
    const inv_id *value; /* the values that are wanted */
    uint32_t nvalue;
} inv_remat_row;

/* What a guard compares with what forward had. */
typedef enum inv_guard_kind {
    INV_GUARD_REBUILT, /* what recovery has given back */
    INV_GUARD_DERIVED, /* computed from something that an inverse with rounding has given, and read by a gradient */
    INV_GUARD_SIGNS    /* bits that a gradient reads, of comparisons of such a value */
} inv_guard_kind;

typedef struct inv_guarded_row {
    inv_id value; /* forward's */
    inv_guard_kind kind;
    double nbits; /* SIGNS: how many there are */
} inv_guarded_row;

/* The relative error over which a step is not committed. A drift d of units of unit spread changes the sign of about
 * 0.4 d of them, and so moves a gradient by the square root of that: by as much, at the limit of what is rebuilt, may
 * what is derived be off. Of signs it is the share that changes of those that are set, taken to be half: twice as many
 * as that, and a few. */
static inline double inv_guard_limit(const inv_guarded_row *row, double max_drift)
{
    const double few = 4, flips = 0.4 * max_drift;
    if (row->kind == INV_GUARD_REBUILT) return max_drift;
    return sqrt(row->kind == INV_GUARD_DERIVED ? flips : 2 * (few / (row->nbits + 1) + 2 * flips));
}

/* What a search for a plan is to find. */
typedef enum inv_aim {
    INV_AIM_OPTIONS, /* what the options ask for, within the budget if there is one */
    INV_AIM_FEWEST,  /* the fewest bytes, whatever they cost */
    INV_AIM_SOON     /* the same by a short search */
} inv_aim;

typedef struct inv_plan {
    inv_graph *base; /* forward and backward before recovery, with the matches; NULL if the plan does not exist */
    inv_graph *g;    /* the graph with recovery: order, offsets */
    inv_memory memory;
    INV_VEC(inv_choice_row) choice;
    INV_VEC(inv_remat_row) remat; /* of a plan for training, in order */
    INV_VEC(inv_feed_slot) feed;
    INV_VEC(inv_result_slot) output, grad, input_grad, state;
    INV_VEC(const char *) loss_output; /* names of those that the loss is taken of */
    INV_VEC(inv_left_slot) left;
    INV_VEC(inv_check) check;
    INV_VEC(inv_guarded_row) guarded; /* by guard slot */
    inv_ids lost;                     /* values of the base's forward that are kept, as a plan without them was wrong */
    inv_id loss, correct;             /* values; INV_NONE */
    inv_id total;        /* value: what the labels count that loss is the mean of; INV_NONE: all rows alike */
    inv_id seed;         /* value: the gradient of the loss that backward starts from; INV_NONE: 1 */
    inv_id weights;      /* value: what ranks count for in means, a number each; INV_NONE: there is no such mean yet */
    inv_divisor divisor; /* of a loss that the model computes; INV_BY_NOTHING: micro-batches are added up */
    inv_id lone;         /* node: batch normalization of all ranks, of one value per channel on this one; INV_NONE */
    inv_id finite;       /* value: how many entries of the gradients are not finite; INV_NONE */
    inv_id loss_finite;  /* value: the same of the loss, where early updates count on from it; INV_NONE */
    int64_t classes, inner; /* of the loss, if it is one of classes that the session adds: how many there are, and how
                               many elements apart in soft targets; else 0 */
    inv_ids head;         /* nodes of forward that compute and use logits part by part (passes/autodiff/head_parts.c) */
    inv_id norm;          /* value: the norm of all gradients together; INV_NONE: it is not asked for */
    inv_live *live;       /* per position of g->order */
    double *seconds;      /* per position: predicted by options.costs; NULL: there are none */
    double store_seconds; /* predicted of the step with everything stored */
    double flops, store_flops, guard_flops;
    double overhead, bound; /* cost over that of storing everything, as a share of it; a lower bound on that of any plan
                               within the budget or, without one, these bytes */
    size_t transient, activation_peak, workspace_peak; /* bytes */
    size_t host;                                       /* bytes of host memory, for what is offloaded */
    inv_aim aim;                        /* OPTIONS; or, if it is over the budget, the search that it came from */
    const char *called;                 /* in messages */
    size_t enough;                      /* bytes for its buffers; 0: as few as can be */
    size_t load;                        /* most bytes live at once: a lower bound of `transient` for this order */
    size_t store_transient;             /* of the same plan with everything stored */
    size_t peak_at, activation_peak_at; /* positions: of `load`, of the activation peak */
} inv_plan;

/* Whether updates that are asked to be early wait for the plan's guards. */
static inline bool inv_updates_wait(const inv_plan *p) { return p->base->early && !p->g->early; }
/* program.c: lists the first values of the buffers that are live while position `at` of the order runs. */
inv_status inv_plan_alive(const inv_plan *p, size_t at, inv_arena *a, inv_ids *out);
size_t inv_live_total(const inv_live *l);
/* Predicts the times of the plan's nodes (plan->g), and of the step with everything stored (plan->base). */
inv_status inv_plan_predict(inv_plan *plan, const inv_cost_table *t);
/* Predicted seconds of the step; without a table, its cost in steps that store everything. */
double inv_plan_cost(const inv_plan *plan);

/* Whether backward gets v (INV_NONE: any value) by an inverse, by that rule if one is named. */
static inline bool inv_plan_inverts(const inv_plan *p, inv_id v, const char *by)
{
    for (size_t i = 0; i < p->choice.n; i++) {
        const inv_choice_row *c = &p->choice.at[i];
        if (c->choice == INV_INVERTED && (v == INV_NONE || c->value == v) && (!by || strcmp(c->by, by) == 0))
            return true;
    }
    return false;
}

typedef enum inv_storage_kind {
    INV_STORAGE_PARAM,
    INV_STORAGE_OPTIM,
    INV_STORAGE_GRAD, /* accumulated */
    INV_STORAGE_CONST
} inv_storage_kind;
/* What stands behind "NAME/" in the names of what persists beside a parameter. */
#define INV_STATE_GRADIENT "gradient"
#define INV_STATE_AVERAGE "average"

/* Where a value is in the persistent region of the arena, and what is there at first. */
typedef struct inv_storage {
    uint8_t kind;
    inv_id init;      /* PARAM, OPTIM, GRAD: index of the initializer in the model */
    const char *name; /* PARAM: the initializer's */
    inv_dtype dtype;  /* dtype in the arena */
    inv_shape shape;
    inv_data data; /* initial contents; bytes NULL: zeros */
    bool trainable;
    /* PARAM: steps of another stage or the caller may have changed it; they have, looked at when a state is saved. */
    bool touched, moved;
    bool in_place; /* PARAM, CONST: read from `data`, the model's; not in the arena */
    bool shared;   /* OPTIM: this is a rank's part (core/program/exchange.h) of a tensor of the shape `whole` */
    inv_shape whole;
    size_t offset, nbytes;
} inv_storage;

#define INV_CONTROL_STEP 384
#define INV_CONTROL_FAULT 376 /* within them: the node that met data it cannot use */
#define INV_CONTROL_TURN 368  /* and how many blocks of a kernel have come by (inv_last_block), between kernels 0 */
/* With a verdict and a limit for each guard. */
static inline size_t inv_control_nbytes(size_t guards) { return inv_round64(INV_CONTROL_STEP + 16 * guards); }

/* A value that is stored because a guard has rejected what stood for it. derived: that was computed from rebuilt
 * values, so its error says nothing of the others'. */
typedef struct inv_checkpoint {
    const char *name;
    bool derived;
} inv_checkpoint;

typedef struct inv_program {
    inv_context *ctx;
    inv_arena arena;
    const inv_model *model;
    inv_divisor divisor;          /* as it was measured (core/graph/model.h) */
    const inv_graph *source;      /* the model's graph, `own` or `likelihood` */
    inv_graph *own;               /* with merged initializers apart (passes/front/untie.c); NULL: nothing was merged */
    size_t surely;                /* a lower bound of what persists, known before anything is built */
    const struct inv_held **held; /* per value of `source`: core/weights/held.h; NULL: nothing is trained */
    uint8_t *untrained;    /* per value of `source`: inv_untrained (core/weights/trained.h); NULL: nothing is trained */
    inv_ties tie;          /* of values of `source`: initializers that follow others (passes/front/tied_weights.c) */
    inv_graph *likelihood; /* `source`, if it is the model with the log-determinant of the rules; else NULL */
    inv_volumes volumes;   /* of it */
    inv_session_options options; /* deep copy in `arena`; data only of constant inputs */
    inv_plan plan[INV_PLAN_KINDS];
    INV_VEC(inv_storage) storage;
    struct inv_storage_index *storage_index; /* passes/schedule/persistent_storage.c */
    INV_VEC(inv_checkpoint) checkpoint;      /* values that guards have rejected, in the order in which that happened */
    double max_drift;
    size_t budget_left;         /* of options.budget for control and the transient part; 0: there is none */
    size_t shortfall;           /* the bytes that the plans take, if the budget has no room for them; else 0 */
    size_t shortfall_rest;      /* what of them persists */
    const char *shortfall_text; /* the message for these plans */
    size_t persistent, control, landing, transient, store_peak;
    size_t in_place; /* bytes of `persistent` that are read from the model's file, and not in the arena */
    size_t host;     /* bytes of host memory for offloaded values, of the plan with the most */
    inv_aim aim;     /* without a budget; with one, OPTIONS */
    /* Plans again from the graphs at hand, with the options' memory, keep and modes and the checkpoints as they are
     * now. `transient` and `control` may grow. On failure the plans are as before. */
    inv_status (*replan)(struct inv_program *p);
    const char *proposal; /* a plan as text, which the next `replan` takes in place of a search; NULL: it searches */
    /* A program in a context of its own, for another thread to plan again: it reads this one's base graphs and options,
     * which must stay meanwhile, and has no plans at first. */
    inv_status (*twin)(const struct inv_program *p, inv_context *ctx, struct inv_program **out);
    /* Drops the graphs of `plan`, an earlier or later state of the array `plan`, that are not the program's now. */
    void (*drop)(struct inv_program *p, inv_plan *plan);
    /* The plans for training as JSON (passes/recover/saved_plan.c). Owned by the context. */
    inv_status (*save)(const struct inv_program *p, char **json);
    void (*destroy)(struct inv_program *p);
} inv_program;

/* program.c: notes a value that a guard has rejected; the name is copied */
inv_status inv_program_reject(inv_program *p, const char *name, bool derived);

/* program.c: where it keeps an initializer; NULL: nowhere */
inv_storage *inv_program_param(const inv_program *p, const char *name);

static inline size_t inv_program_bytes(const inv_program *p)
{
    return p->persistent + p->control + p->landing + p->transient;
}
/* What makes one plan better than another, the less the better: within a budget the step's cost, in mode invert bytes,
 * else bytes times cost. */
double inv_program_goal(const inv_program *p);

/* What one plan is compiled for. */
typedef struct inv_request {
    const inv_session_options *options;
    inv_purpose purpose;
    int64_t batch;    /* rows; 0: as the given shapes say */
    bool rebatch;     /* dims[0] may differ from the model's fixed extent */
    bool optimize;    /* emit the update */
    bool accumulate;  /* instead of it: gradients are added to accumulators that persist */
    bool update;      /* nothing but the update, from these */
    const char *plan; /* what options->after_pass is told that it is; NULL: it is told nothing */
} inv_request;

/* Turns value v into the output of a Feed node with a new slot; the node. */
inv_id inv_bind_feed(inv_graph *g, inv_plan *plan, inv_id v, bool is_target);
/* Where what is fed to a slot begins, of a batch whose slots lie one behind the other; behind the last: its bytes. */
size_t inv_plan_feed_at(const inv_plan *plan, size_t slot);

#endif
