/* SPDX-License-Identifier: Apache-2.0
 * Private to rewriting: blocks as sets of the file's nodes (outline.c), in which order they are written
 * (written_order.c), and bodies that invert them (derive.c, block_inverse.c). */
#ifndef INV_PASSES_EXPORT_OUTLINE_H
#define INV_PASSES_EXPORT_OUTLINE_H

#include "core/edits/rewriting.h"
#include "core/program/program.h"
#include "passes/export/raise.h"

/* A block as a set of items, nodes of the file. */
typedef struct inv_cut {
    const inv_block *block;
    uint32_t *item; /* positions in flat->order, ascending */
    uint32_t nitem;
    inv_ids in, out;         /* values of flat that enter and leave; the rule's own in front */
    inv_ids saved;           /* values of g that the forward function gives besides, for its inverse ... */
    const char **saved_name; /* ... and how they are called */
    bool made;               /* into a function; else row.reason says why not */
    const inv_node *part;    /* an item that gives others than the block's canonical nodes, too; NULL: none does */
    inv_outline_function inverse;
    inv_outline_block row;
    uint32_t parent;               /* the cut around it; INV_NONE: the main graph */
    inv_ids order_cut, order_item; /* how its body is written: functions called (INV_NONE: none) and items */
} inv_cut;

/* A value of g whose pseudo-inverse becomes an initializer. */
typedef struct inv_solver {
    inv_id matrix;    /* the value of g; of a convolution's kernel, all axes but the first are one */
    const char *of;   /* the file's name for it */
    const char *name; /* of the initializer */
    int64_t groups;   /* of a convolution, each with a matrix of its own; else 1 */
    bool logdet;      /* it is the number log |det|, of all groups together, not the inverse */
} inv_solver;

/* Value ids of `flat` mean the same values in `g`, where others may have taken their place (inv_graph_stands). */
typedef struct inv_outliner {
    inv_context *ctx;
    inv_arena *a; /* of what is handed out */
    inv_arena scratch;
    const inv_graph *source; /* the file's, as it was imported */
    const char **shut;       /* per function of that: why it cannot be opened up; NULL: it can, or is a block */
    const bool *open;        /* per function: it is to be opened up; NULL: none is */
    inv_graph *flat; /* the file's nodes, blocks of an earlier rewriting and such functions opened up; until all is
                        done, `source` of these and of g's nodes is the item ... */
    inv_id *file;    /* ... and this, per item, the number in the file; INV_NONE: it is not there as it is */
    size_t nitem;
    inv_graph *g;      /* canonical, with what was matched */
    inv_plan plan;     /* of g; nobody reads it */
    bool *gone;        /* per value of flat: given by a node that an earlier rewriting put there, and dropped */
    bool *carries;     /* per value of flat or g: data that depend on the model's inputs; not shapes that were folded */
    inv_uses uses;     /* of flat */
    uint32_t *item_at; /* per node of flat: its item; INV_NONE: not in the order */
    uint32_t *item_of; /* per node of g: its item; INV_NONE: none */
    uint32_t *made_start;
    bool *live;   /* per node of g: in the order */
    inv_id *made; /* nodes of g in order, by item: made[made_start[i]] and on */
    uint32_t *alias_start;
    inv_id *alias;                     /* values of flat, by the value of g that stands for them */
    uint32_t *edge_start, *edge;       /* indices of local inverses, by the item of the node that they solve */
    const char **name;                 /* work space of derive.c, per value of g: all NULL between calls, ... */
    const char **other;                /* ... the same value in another type, if the body has it, ... */
    inv_dtype *name_type, *other_type; /* ... and of what type these are */
    uint32_t *watch;                   /* ... and the first of what waits for its name, plus one: all 0 */
    const inv_edge **foremost;         /* ... by a plugin, of those that are ready: all NULL */
    uint32_t *seen, look;              /* ... which look at an inverse met it last, twice, plus one if it was at hand */
    uint32_t *held, *ran, stamp;       /* the same, per item */
    inv_dtype real; /* of the file's floating-point tensors; INV_DT_NONE: they are of several types, or in half
                       precision: then these are `type`, per value of flat, as far as they are known */
    inv_dtype *type;
    size_t ntype;
    bool wide; /* float64 is among them */
    INV_VEC(inv_solver) solver;
    const inv_reverse_options *reverse; /* the model is turned round (reverse_model.c); NULL: no */
    inv_ids barred;   /* blocks, by their place in the matches, that get no inverse: it would hold for one size */
    bool by_operator; /* what solves equations is the operator LinearSolve, not an initializer */
    inv_outline *out;
} inv_outliner;

static inline const inv_node *inv_item(const inv_outliner *o, uint32_t i)
{
    return inv_nod(o->flat, o->flat->order.at[i]);
}
/* The item that gives v; INV_NONE: it is an input or initializer. */
static inline uint32_t inv_item_giving(const inv_outliner *o, inv_id v)
{
    inv_id d = inv_val(o->flat, v)->def;
    return d == INV_NONE ? INV_NONE : o->item_at[d];
}

/* An inverse that a derivation made use of, and its nodes in the body. */
typedef struct inv_derived {
    const inv_edge *edge;
    size_t first, end;
    inv_ids freed; /* values of g that were not known before */
} inv_derived;

typedef struct inv_waiting {
    inv_id v;
    uint32_t who, next;
} inv_waiting;

/* Values being derived from others, as a body of ONNX nodes. Set o and cut, of which item, in and out are read. */
typedef struct inv_derivation {
    inv_outliner *o;
    inv_cut *cut;
    const char **name; /* per value of g: how the body calls it; NULL: not known */
    inv_ids named;     /* values with a name, to be taken back at the end */
    inv_onnx_body r;
    inv_outline_nodes node;
    INV_VEC(inv_derived) used;
    /* What may come next: the cut's items, then their local inverses, both by their number in this order. */
    inv_ids edge;                 /* the inverses, as indices of the matches */
    bool *asked;                  /* per candidate: it is to be looked at */
    size_t nasked;                /* items of these */
    inv_ids look, ready;          /* inverses to be looked at; those that can be written, by their number */
    INV_VEC(inv_waiting) waiting; /* for a value to be known, as lists that begin at o->watch */
    INV_VEC(const char *) solver; /* names of initializers that it reads ... */
    INV_VEC(const char *) cast;   /* ... and by which they are read, ... */
    INV_VEC(inv_dtype) cast_type; /* ... in that type */
} inv_derivation;

/* Work on all blocks of a model. */
typedef struct inv_cutter {
    inv_outliner *o;
    uint32_t *mark, stamp;           /* per item: in the cut that is being made */
    uint32_t *after;                 /* per item: computed from an item of the cut */
    bool *needed;                    /* per item: an item of the cut is computed from it */
    uint32_t *owner;                 /* per item: the innermost cut; INV_NONE */
    uint32_t *unit_of, *unit_of_cut; /* work space of written_order.c */
    uint32_t *written;               /* per item: its place in the written model */
    inv_cut *cut;
    size_t ncut;
    const inv_inverse_def **rule; /* those that have functions ... */
    uint32_t *count;              /* ... and how many */
    size_t nrule;
    uint32_t circular; /* a cut that waits for one that waits for it; INV_NONE: none does */
    inv_cut all;       /* the main graph; only its order matters */
    inv_ids turn;      /* cuts as they are written: those of the main graph, then what is inside of these, and so on */
} inv_cutter;

bool inv_texts_have(const char *const *list, size_t n, const char *text); /* block_inverse.c */
/* outline.c: fills o->out from the matches of o->g. */
inv_status inv_outline_cut(inv_outliner *o);
/* Constant nodes that are parameters of g, copied from o->flat; read: NULL, or per value of g whether it is. */
inv_status inv_outline_weights(inv_outliner *o, const inv_graph *g, const bool *read);
/* written_order.c: fills the order of c->all and of every cut that is made, and c->turn. */
inv_status inv_outline_order(inv_cutter *c);

/* derive.c */
void inv_derive_begin(inv_derivation *d);
void inv_derive_end(inv_derivation *d);
/* How the body calls a value of flat or g; NULL: not known. */
const char *inv_derive_name(const inv_derivation *d, inv_id v);
/* The same for the value in that type, by a Cast if need be. NULL: not known, or out of memory. */
/* Runs a node that only asks for the extents of a value that is not known (derive_extents.c). *ran: there was one. */
inv_status inv_derive_extents(inv_derivation *d, bool *ran);
/* Writes a constant of the graph that has no name yet. */
inv_status inv_derive_constant(inv_derivation *d, inv_id v);
const char *inv_derive_as(inv_derivation *d, inv_id v, inv_dtype type);
/* Gives a known value of the file the name and the type that it has there. */
inv_status inv_derive_output(inv_derivation *d, inv_id v);
inv_status inv_derive_know(inv_derivation *d, inv_id v, const char *name); /* a value of flat, and what stands for it */
inv_status inv_derive_call(inv_derivation *d, inv_id v, const char *name); /* a value of g, in type d->r.real */
/* inv_raise_node in type d->r.real: operands that are called in another one are cast. */
bool inv_derive_raise(inv_derivation *d, const inv_node *n, const char *solver);
/* Derives all that can be derived: by inverses that only move entries, else forward, else by other inverses. *ok false:
 * one of them cannot be written, d->r.reason. */
inv_status inv_derive_close(inv_derivation *d, bool *ok);
static inline bool inv_derive_within(const inv_derivation *d, uint32_t item)
{
    return item != INV_NONE && d->o->held[item] == d->o->stamp;
}

/* block_inverse.c: the function that gives the values freed by a block from what leaves it, yet without a name:
 * cut->inverse, cut->saved, cut->row. Without outputs: there is none, for cut->row.reason. */
inv_status inv_derive_inverse(inv_outliner *o, inv_cut *cut);
/* block_inverse.c: appends the nodes that compute cut->saved to the forward function. */
inv_status inv_derive_saved(inv_outliner *o, const inv_cut *cut, inv_outline_function *fn);
/* outline.c: what item n->source is in the file, or in full where the file does not have it */
void inv_outline_settle(const inv_outliner *o, inv_outline_node *n);
/* opened_functions.c: those of o->open (of a reversal all) that can be are to be opened up in `flat`, a copy of
 * `source`. */
inv_status inv_outline_openings(inv_outliner *o, const inv_graph *source, inv_graph *flat);
/* Whether opening functions up may give inverses to blocks that have none, and which: per function of `source`. */
bool inv_outline_wants(const inv_rewriting *r, const inv_graph *source, const inv_ids *barred, bool *open);
/* Of these, those by which it has; `all`: every one of them. false: none has. */
bool inv_outline_gains(const inv_rewriting *r, const inv_rewriting *before, const inv_graph *source, bool *open,
                       bool *all);
/* What keeps a function from being opened up that an item of the cut calls, in words; NULL: nothing does. */
const char *inv_outline_shut(const inv_outliner *o, const inv_cut *cut);
/* rewrite.c: the model of `source` opened up in `o`, as a session would compile it for that purpose; and the tables. */
inv_status inv_outline_open(inv_outliner *o, const inv_graph *source, const inv_session_options *options,
                            inv_purpose purpose);
inv_status inv_outline_tables(inv_outliner *o);
/* What is computed besides the file's own nodes is computed in its type, but never in half precision. */
static inline inv_dtype inv_outline_work(const inv_outliner *o) { return o->real ? o->real : INV_F32; }
/* The floating-point type of a value of flat in the file; INV_DT_NONE: that of all, or not known. */
static inline inv_dtype inv_outline_type(const inv_outliner *o, inv_id v)
{
    const inv_dtype t = o->type && v < o->ntype ? o->type[v] : INV_DT_NONE;
    return inv_dtype_is_float(t) ? t : INV_DT_NONE;
}
/* rewrite.c: runs `make` on a copy of `o` (flags only) and adds the tensors that o->solver names. */
typedef inv_status (*inv_outline_fn)(inv_outliner *o, const inv_graph *source, const inv_session_options *options,
                                     inv_rewriting *out);
inv_status inv_outline_make(const inv_outliner *flags, const inv_graph *source, const inv_session_options *options,
                            inv_outline_fn make, inv_rewriting **out);
/* solver_tensors.c: the initializer to be added for a matrix or its log-determinant (`groups` as of inv_solver), by the
 * name of the file's value, in type d->r.real, which that of the value `like` is (NULL: none is at hand). NULL: out of
 * memory, or with d->r.reason none of the file's values is that matrix. */
const char *inv_derive_solver(inv_derivation *d, inv_id v, int64_t groups, bool logdet, const char *like);
/* An initializer for each solver, made when it is written ... */
inv_status inv_outline_put_inverses(inv_outliner *o, inv_rewriting *r);
/* ... and the fact that says what it is the inverse of. */
inv_status inv_outline_solvers(inv_outliner *o);

#endif
