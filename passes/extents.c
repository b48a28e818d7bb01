/* SPDX-License-Identifier: Apache-2.0
 * Numbers for the open dimensions of a model's inputs, for who looks at the model without data. Not every number will
 * do: a network that halves its image five times and joins the halves again wants multiples of 32, one that ends in a
 * matrix of fixed size wants one size alone, and an open number of channels is in truth that of the first filter. The
 * file does not say so, so numbers are tried: those that images, sequences and windows often have, those that occur in
 * the model, and sums of others (past and present make the length of a mask). A try goes through the passes up to
 * lowering; what gets farther in the order of the nodes is kept, until one gets through. */
#include <string.h>

#include "passes/pass.h"

/* Tried first, in this order: small ones are quick to look at, the others are customary. */
static const int64_t customary[] = {8,   16,  32,  64,  128, 224, 256, 48,  96,  192, 320,  384,  448, 512, 640,
                                    112, 160, 240, 299, 300, 416, 608, 768, 800, 1024, 1280, 2048, 4096,
                                    1,   2,   3,   4,   5,   6,   7,   9,   10,  12,  14,   20,   24,  28,  40, 80};
enum { NCUSTOMARY = sizeof customary / sizeof *customary, MOST_NUMBERS = 160, LARGEST = 1 << 16, MOST_GROUPS = 64 };
/* Nodes copied and lowered by all tries together: some seconds. */
static const size_t most_work = 2000000;

/* Open dimensions of one symbol, which stand for one number; or one that has no name. */
typedef struct group {
    const char *symbol;
    bool batch; /* a first axis */
} group;

typedef struct finder {
    inv_context *ctx;
    const inv_graph *source;
    inv_session_options options;
    inv_array *array;
    int64_t **dims;
    size_t **group_of; /* per input and axis; SIZE_MAX: fixed */
    group group[MOST_GROUPS];
    size_t ngroup, work;
    int64_t number[MOST_NUMBERS];
    size_t nnumber;
} finder;

/* How far a try got: nodes that were lowered, and that no value was empty. */
typedef struct reached {
    size_t nodes;
    bool whole, filled;
    inv_status status;
} reached;

static bool is_better(const reached *a, const reached *b)
{
    if (a->whole != b->whole) return a->whole;
    return a->nodes != b->nodes ? a->nodes > b->nodes : a->filled && !b->filled;
}

static bool is_done(const reached *r) { return r->whole && r->filled; }

/* --- what is open --- */

static inv_status add_group(finder *f, const char *symbol, bool batch, size_t *out)
{
    for (size_t i = 0; symbol && *symbol && i < f->ngroup; i++)
        if (f->group[i].symbol && strcmp(f->group[i].symbol, symbol) == 0) {
            f->group[i].batch = f->group[i].batch || batch;
            *out = i;
            return INV_OK;
        }
    INV_CHECK(f->ngroup < MOST_GROUPS, f->ctx, INV_E_SHAPE,
              "the model's inputs have more than %d open dimensions of different names: give their shapes",
              MOST_GROUPS);
    *out = f->ngroup;
    f->group[f->ngroup++] = (group){symbol && *symbol ? symbol : NULL, batch};
    return INV_OK;
}

static inv_status find_open(finder *f, inv_arena *a)
{
    const size_t n = f->options.ninputs;
    f->array = INV_ARENA_NEW(a, inv_array, n + 1);
    f->dims = INV_ARENA_NEW(a, int64_t *, n + 1);
    f->group_of = INV_ARENA_NEW(a, size_t *, n + 1);
    if (!f->array || !f->dims || !f->group_of) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const inv_array *is = &f->options.inputs[i];
        const inv_id v = is->name ? inv_graph_find(f->source, is->name) : INV_NONE;
        const char *const *symbol = v == INV_NONE ? NULL : (const char *const *)inv_val(f->source, v)->dim_param;
        const int rank = v == INV_NONE ? -1 : inv_val(f->source, v)->shape.rank;
        f->array[i] = *is;
        f->array[i].dims = f->dims[i] = INV_ARENA_NEW(a, int64_t, (size_t)is->rank + 1);
        f->group_of[i] = INV_ARENA_NEW(a, size_t, (size_t)is->rank + 1);
        if (!f->dims[i] || !f->group_of[i]) return INV_E_NOMEM;
        for (int d = 0; d < is->rank; d++) {
            f->dims[i][d] = is->dims[d];
            f->group_of[i][d] = SIZE_MAX;
            if (is->dims[d] >= 0) continue;
            INV_TRY(add_group(f, symbol && d < rank ? symbol[d] : NULL, d == 0, &f->group_of[i][d]));
        }
    }
    f->options.inputs = f->array;
    return INV_OK;
}

/* --- what is tried --- */

static void add_number(finder *f, int64_t n)
{
    for (size_t i = 0; i < f->nnumber; i++)
        if (f->number[i] == n) return;
    if (n > 0 && n <= LARGEST && f->nnumber < sizeof f->number / sizeof *f->number) f->number[f->nnumber++] = n;
}

/* Extents of tensors; numbers in lists as short as shapes are, and their products, which an axis is split into. */
static void find_numbers(finder *f)
{
    enum { LONGEST = 8, MOST = MOST_NUMBERS - 48 }; /* the rest is for sums */
    for (size_t i = 0; i < NCUSTOMARY; i++) add_number(f, customary[i]);
    for (size_t v = 0; v < f->source->value.n && f->nnumber < MOST; v++) {
        const inv_value *x = inv_val(f->source, (inv_id)v);
        for (int d = 0; d < x->shape.rank; d++) add_number(f, x->shape.dim[d]);
        if (x->data.dtype != INV_I64 || !x->data.bytes || x->data.nbytes > LONGEST * sizeof(int64_t)) continue;
        int64_t product = 1;
        for (size_t i = 0; i < x->data.nbytes / sizeof(int64_t); i++) {
            int64_t n;
            memcpy(&n, (const char *)x->data.bytes + i * sizeof n, sizeof n);
            add_number(f, n);
            if (n > 0 && n <= LARGEST && product <= LARGEST) product *= n;
        }
        add_number(f, product);
    }
}

static bool has_empty(const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && inv_shape_nelem(&inv_val(g, n->out[k])->shape) == 0) return true;
    }
    return false;
}

/* Whether other numbers cannot help. */
static bool is_final(inv_status s)
{
    return s == INV_OK || s == INV_E_UNSUPPORTED_OP || s == INV_E_UNSUPPORTED_TYPE || s == INV_E_NOT_CONSTANT ||
           s == INV_E_ARG;
}

static void assign(finder *f, const int64_t *value)
{
    for (size_t i = 0; i < f->options.ninputs; i++)
        for (int d = 0; d < f->array[i].rank; d++)
            if (f->group_of[i][d] != SIZE_MAX) f->dims[i][d] = value[f->group_of[i][d]];
}

/* One number per group. */
static inv_status try(finder *f, const int64_t *value, reached *out)
{
    const inv_request rq = {.options = &f->options, .purpose = INV_FOR_EVAL};
    inv_plan plan = {.loss = INV_NONE, .correct = INV_NONE, .finite = INV_NONE};
    inv_graph *g;
    assign(f, value);
    INV_TRY(inv_graph_copy(f->source, &g));
    g->real = INV_F32;
    g->eval = true;
    inv_status s = inv_compile_front(g, &rq, &plan);
    if (g->arena.failed) s = INV_E_NOMEM;
    *out = (reached){g->lowered, is_final(s), s != INV_OK || !has_empty(g), s};
    f->work += g->lowered + f->source->order.n / 4;
    inv_graph_destroy(g);
    return s == INV_E_NOMEM ? s : INV_OK;
}

typedef struct choice {
    int64_t value[MOST_GROUPS];
    reached reached;
} choice;

/* The groups of `set` with each number from `least` on in turn; the best of these and what there was is in `best`. */
static inv_status vary(finder *f, const bool *set, int64_t least, choice *best)
{
    const choice from = *best;
    const size_t known = f->nnumber;
    for (size_t i = 0; i < f->ngroup; i++)
        for (size_t j = 0; j <= i; j++) add_number(f, from.value[i] + from.value[j]);
    for (size_t i = 0; i < f->ngroup; i++) add_number(f, from.value[i] + 1);
    const size_t n = f->nnumber;
    f->nnumber = known;
    for (size_t i = 0; i < n && !is_done(&best->reached) && f->work < most_work; i++) {
        choice t = from;
        if (f->number[i] < least) continue;
        for (size_t k = 0; k < f->ngroup; k++)
            if (set[k]) t.value[k] = f->number[i];
        INV_TRY(try(f, t.value, &t.reached));
        if (is_better(&t.reached, &best->reached)) *best = t;
    }
    return INV_OK;
}

/* Groups that have the same number as group `like`, the batch apart from the others; without one of them. */
static bool pick(const finder *f, const choice *c, size_t like, size_t without, bool *set)
{
    size_t first = 0, count = 0;
    while (c->value[first] != c->value[like] || f->group[first].batch != f->group[like].batch) first++;
    for (size_t i = 0; i < f->ngroup; i++) {
        set[i] = c->value[i] == c->value[like] && f->group[i].batch == f->group[like].batch && i != without;
        count += set[i];
    }
    return first == like && count > 0;
}

/* Changes what goes together, then all of it but one, then one alone, until something gets farther. *more: it did. */
static inv_status climb(finder *f, int64_t least, choice *best, bool *more)
{
    const reached before = best->reached;
    bool set[MOST_GROUPS];
    for (int batch = 0; batch < 2; batch++)
        for (int kind = 0; kind < 3; kind++)
            for (size_t i = 0; i < f->ngroup; i++)
                for (size_t k = 0; k < (kind == 1 ? f->ngroup : 1); k++) {
                    if (f->group[i].batch != (batch == 1)) continue;
                    if (kind < 2 && !pick(f, best, i, kind ? k : SIZE_MAX, set)) continue;
                    for (size_t j = 0; kind == 2 && j < f->ngroup; j++) set[j] = j == i;
                    INV_TRY(vary(f, set, least, best));
                    *more = is_better(&best->reached, &before);
                    if (*more) return INV_OK;
                }
    *more = false;
    return INV_OK;
}

/* What the try that got farthest ended with. */
static inv_status refuse(finder *f, const choice *best)
{
    reached last;
    inv_str text;
    INV_TRY(try(f, best->value, &last));
    inv__str_init(&text, f->ctx);
    inv__str_add(&text, "no numbers were found for the open dimensions of the inputs that the model accepts. The try "
                 "that got farthest,");
    for (size_t i = 0; i < f->options.ninputs; i++) {
        char shape[INV_SHAPE_TEXT];
        const inv_shape s = inv_shape_of(f->array[i].rank, f->dims[i]);
        inv_shape_text(&s, shape);
        inv__str_add(&text, " '%s' %s,", f->array[i].name, shape);
    }
    inv__str_add(&text, " ended so: %s. Give the shapes of the inputs", inv_context_message(f->ctx));
    const inv_status s = text.failed ? INV_E_NOMEM : inv__fail(f->ctx, INV_E_SHAPE, "%s", text.s);
    inv__str_fini(&text);
    return s;
}

static inv_status find(finder *f, int64_t batch, inv_arena *a)
{
    choice best;
    INV_TRY(find_open(f, a));
    find_numbers(f);
    for (size_t i = 0; i < f->ngroup; i++) best.value[i] = f->group[i].batch ? batch : customary[0];
    INV_TRY(try(f, best.value, &best.reached));
    /* An extent of 1 fits by being repeated, which says little: it is the last resort. */
    for (int64_t least = 2; least > 0; least--)
        for (bool more = f->ngroup > 0; more && !is_done(&best.reached);) INV_TRY(climb(f, least, &best, &more));
    if (!best.reached.whole) return refuse(f, &best);
    assign(f, best.value);
    return INV_OK;
}

inv_status inv_extents_find(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                            int64_t batch, int64_t *const *dims)
{
    inv_arena a;
    inv__arena_init(&a, ctx);
    finder *f = INV_ARENA_NEW(&a, finder, 1);
    inv_status s = f ? INV_OK : INV_E_NOMEM;
    if (f) {
        memset(f, 0, sizeof *f);
        f->ctx = ctx;
        f->source = source;
        memcpy(&f->options, options, options->size < sizeof f->options ? options->size : sizeof f->options);
        s = find(f, batch > 0 ? batch : 1, &a);
    }
    for (size_t i = 0; s == INV_OK && i < f->options.ninputs; i++)
        if (f->array[i].rank > 0) memcpy(dims[i], f->dims[i], (size_t)f->array[i].rank * sizeof **dims);
    inv__arena_fini(&a);
    return s;
}
