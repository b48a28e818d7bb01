/* SPDX-License-Identifier: Apache-2.0
 * Numbers for the open dimensions of a model's inputs, for who looks at the model without data. Not every number will
 * do: a network that halves its image five times and joins the halves again wants multiples of 32, one that ends in a
 * matrix of fixed size wants one size alone, and an open number of channels is in truth that of the first filter. The
 * file does not say so, so numbers are tried: each try goes through the passes up to lowering, and what gets farther
 * there is kept, until one gets through. The node where a try ends mostly says which extent it has and which it
 * wants (inv_misfit): how the first grows with a size tells the size. Where it does not say, multiples of what got so
 * far, customary sizes and small numbers are tried in turn. An image of one patch would fit the positions of 196 by
 * being repeated: that counts as a fault, too, as long as some size changes it. */
#include <stdlib.h>
#include <string.h>

#include "passes/front/front.h"

/* Sizes that images, sequences and signals often have: of several numbers that would do, one of these is taken. */
static const int64_t customary[] = {8,   12,  16,   24,   32,   48,   64,   80,   96,   112,   128,  160, 192,
                                    224, 240, 256,  299,  300,  320,  384,  416,  448,  480,   512,  608, 640,
                                    768, 800, 1024, 1280, 1500, 2048, 3000, 4096, 8000, 16000, 48000};
enum {
    NCUSTOMARY = sizeof customary / sizeof *customary,
    FIRST = 8, /* tried first: small sizes are quick to look at */
    NSMALL = 64,
    NMULTIPLES = 64,
    LARGEST = 1 << 20,
    MOST_GROUPS = 64
};
/* Nodes copied and lowered by all tries together: some seconds. */
static const size_t most_work = 2000000;

/* Open dimensions of one symbol, which stand for one number; or one that has no name. */
typedef struct group {
    const char *symbol;
    bool batch; /* a first axis */
} group;

/* How far a try got: nodes that were lowered, then checks of the node where it ended. Higher is better. */
#define SCORE(nodes, check) ((nodes) << 16 | (size_t)(check))
#define THROUGH (SIZE_MAX - 1) /* nothing that other numbers could mend, but a value is empty */
#define DONE SIZE_MAX

/* A number per group, and what came of it. */
typedef struct choice {
    int64_t value[MOST_GROUPS];
    size_t score;
    inv_misfit misfit;
} choice;

typedef struct finder {
    inv_context *ctx;
    const inv_graph *source;
    inv_session_options options;
    inv_arena *arena;
    inv_array *array;
    int64_t **dims;
    size_t **group_of; /* per input and axis; SIZE_MAX: fixed */
    group group[MOST_GROUPS];
    size_t ngroup, work;
    size_t once_from; /* inv_graph.once_from */
    inv_ids once_but; /* and its once_but */
    int64_t least;    /* an extent of 1 fits by being repeated, which says little: 2, then as the last resort 1 */
    bool varies;      /* the last try ended at a value that is not constant */
    bool given;       /* the caller gives numbers for dimensions that the model leaves open */
    choice fault;     /* the first of the best score so far */
    bool same, other; /* tries that ended there too, with the same extents and with others */
} finder;

/* --- what is open --- */

/* The number that an input with this symbol has where it is given, or -1. */
static int64_t extent_number_of(const finder *f, const char *symbol)
{
    for (size_t i = 0; i < f->options.ninputs; i++) {
        const inv_array *is = &f->options.inputs[i];
        const inv_id v = inv_graph_find(f->source, is->name);
        const inv_value *x = v == INV_NONE ? NULL : inv_val(f->source, v);
        for (int d = 0; x && x->dim_param && d < is->rank && d < x->shape.rank; d++)
            if (is->dims[d] >= 0 && x->dim_param[d] && strcmp(x->dim_param[d], symbol) == 0) return is->dims[d];
    }
    return -1;
}

static inv_status add_group(finder *f, const char *symbol, bool batch, size_t *out)
{
    for (size_t i = 0; symbol && i < f->ngroup; i++)
        if (f->group[i].symbol && strcmp(f->group[i].symbol, symbol) == 0) {
            f->group[i].batch = f->group[i].batch || batch;
            *out = i;
            return INV_OK;
        }
    INV_CHECK(f->ngroup < MOST_GROUPS, f->ctx, INV_E_SHAPE,
              "the model's inputs have more than %d open dimensions of different names. Give the sizes of some "
              "({inputs})",
              MOST_GROUPS);
    *out = f->ngroup;
    f->group[f->ngroup++] = (group){symbol, batch};
    return INV_OK;
}

/* Whether the axis is that along which an attention of onnxruntime remembers what came before: training gives it whole
 * sequences, so that is nothing. */
static bool is_past(const inv_graph *g, inv_id v, int axis)
{
    static const struct {
        const char *op;
        uint32_t first, last;
        int axis;
    } past[] = {{"Attention", 4, 4, 3}, {"GroupQueryAttention", 3, 4, 2}, {"MultiHeadAttention", 6, 7, 2}};
    for (size_t i = 0; i < g->order.n && v != INV_NONE; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (size_t k = 0; k < sizeof past / sizeof *past && strcmp(n->domain, "com.microsoft") == 0; k++)
            for (uint32_t slot = past[k].first; slot <= past[k].last && slot < n->nin; slot++)
                if (n->in[slot] == v && past[k].axis == axis && strcmp(n->op_type, past[k].op) == 0) return true;
    }
    return false;
}

static inv_status find_open(finder *f)
{
    inv_arena *a = f->arena;
    const size_t n = f->options.ninputs;
    f->array = INV_ARENA_NEW(a, inv_array, n + 1);
    f->dims = INV_ARENA_NEW(a, int64_t *, n + 1);
    f->group_of = INV_ARENA_NEW(a, size_t *, n + 1);
    if (!f->array || !f->dims || !f->group_of) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const inv_array *is = &f->options.inputs[i];
        const inv_id v = inv_graph_find(f->source, is->name);
        const char *const *symbol = v == INV_NONE ? NULL : (const char *const *)inv_val(f->source, v)->dim_param;
        const int rank = v == INV_NONE ? -1 : inv_val(f->source, v)->shape.rank;
        f->array[i] = *is;
        f->array[i].dims = f->dims[i] = INV_ARENA_NEW(a, int64_t, (size_t)is->rank + 1);
        f->group_of[i] = INV_ARENA_NEW(a, size_t, (size_t)is->rank + 1);
        if (!f->dims[i] || !f->group_of[i]) return INV_E_NOMEM;
        for (int d = 0; d < is->rank; d++) {
            f->dims[i][d] = is->dims[d];
            f->group_of[i][d] = SIZE_MAX;
            f->given = f->given || (is->dims[d] >= 0 && d < rank && inv_val(f->source, v)->shape.dim[d] < 0);
            if (is->dims[d] >= 0) continue;
            f->array[i].data = NULL; /* of how many elements is not known */
            const char *name = symbol && d < rank && symbol[d] && *symbol[d] ? symbol[d] : NULL;
            const int64_t given = name ? extent_number_of(f, name) : -1;
            if (given >= 0) f->dims[i][d] = given;
            else if (is_past(f->source, v, d)) f->dims[i][d] = 0;
            else INV_TRY(add_group(f, name, d == 0, &f->group_of[i][d]));
        }
    }
    f->options.inputs = f->array;
    return INV_OK;
}

/* --- a try --- */

static bool has_empty(const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && inv_shape_nelem(&inv_val(g, n->out[k])->shape) == 0) return true;
    }
    return false;
}

static size_t score_of(const inv_graph *g, inv_status s, int check)
{
    if (s == INV_OK) return has_empty(g) ? THROUGH : DONE;
    /* before lowering, shapes are only compared with what is declared */
    const bool other = s == INV_E_UNSUPPORTED_OP || s == INV_E_UNSUPPORTED_TYPE || s == INV_E_NOT_CONSTANT ||
                       s == INV_E_ARG || !g->lowered;
    return other ? DONE : SCORE(g->lowered, check);
}

static void assign(finder *f, const int64_t *value)
{
    for (size_t i = 0; i < f->options.ninputs; i++)
        for (int d = 0; d < f->array[i].rank; d++)
            if (f->group_of[i][d] != SIZE_MAX) f->dims[i][d] = value[f->group_of[i][d]];
}

static void note_fault(finder *f, const choice *c)
{
    const inv_misfit *a = &f->fault.misfit, *b = &c->misfit;
    if (c->score > f->fault.score) {
        f->fault = *c;
        f->same = f->other = false;
    } else if (c->score == f->fault.score) {
        const bool same = b->check && a->got == b->got && a->wanted == b->wanted;
        f->same = f->same || same;
        f->other = f->other || !same;
    }
}

static inv_status look_at_extents(finder *f, choice *c)
{
    const inv_request rq = {.options = &f->options, .purpose = INV_FOR_EVAL};
    inv_plan plan = {.loss = INV_NONE, .correct = INV_NONE, .total = INV_NONE, .finite = INV_NONE};
    inv_graph *g;
    bool again = false;
    assign(f, c->value);
    INV_TRY(inv_graph_copy(f->source, &g));
    g->real = INV_F32;
    g->eval = true;
    g->once_from = f->once_from;
    g->once_but = &f->once_but;
    f->ctx->misfit = (inv_misfit){0};
    inv_status s = inv_compile_front(g, &rq, &plan);
    if (g->arena.failed) s = INV_E_NOMEM;
    c->misfit = f->ctx->misfit;
    c->score = score_of(g, s, c->misfit.check);
    f->work += g->lowered + f->source->order.n / 4;
    const bool fixes = s == INV_E_NOT_CONSTANT && f->options.constants_as_needed;
    if (fixes && inv_bind_varying(g, &f->options, f->arena, &f->options, &again) != INV_OK) s = INV_E_NOMEM;
    inv_graph_destroy(g);
    if (again) return look_at_extents(f, c);
    f->varies = s == INV_E_NOT_CONSTANT;
    note_fault(f, c);
    INV_TRY(inv_check_stop(f->ctx));
    inv_progress(f->ctx, (double)f->work / (double)most_work);
    return s == INV_E_NOMEM ? s : INV_OK;
}

/* Groups that are changed together, in the ratio that their numbers have: `times` x n. */
typedef struct direction {
    int64_t times[MOST_GROUPS]; /* 0: stays */
    int64_t now, least, most;   /* n */
} direction;

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* False: `set` is empty. */
static bool direct(const finder *f, const choice *from, const bool *set, direction *d)
{
    int64_t most = 1;
    *d = (direction){.least = 1};
    for (size_t i = 0; i < f->ngroup; i++)
        if (set[i]) d->now = common_divisor(from->value[i], d->now);
    for (size_t i = 0; i < f->ngroup; i++) {
        if (!set[i]) continue;
        d->times[i] = from->value[i] / d->now;
        if (d->times[i] > most) most = d->times[i];
        if (d->times[i] == 1 && !f->group[i].batch) d->least = f->least;
    }
    d->most = LARGEST / most;
    return d->now > 0;
}

/* Nothing is tried any more once the work is done that may be done. */
static inv_status extent_at(finder *f, const choice *from, const direction *d, int64_t n, choice *out)
{
    *out = *from;
    out->score = 0;
    for (size_t i = 0; i < f->ngroup; i++)
        if (d->times[i]) out->value[i] = d->times[i] * n;
    return f->work < most_work ? look_at_extents(f, out) : INV_OK;
}

static void keep_better(choice *best, const choice *c)
{
    if (c->score > best->score) *best = *c;
}

/* --- what the node wants --- */

static int64_t gap(const choice *c) { return c->misfit.got - c->misfit.wanted; }

static bool is_same_fault(const choice *a, const choice *b) { return a->score == b->score && a->misfit.check > 0; }

/* A stretch of n, from where the gap is like that at first to where it has the other sign, or what is sought. */
typedef struct stretch {
    int64_t from, to;
    bool found;
    choice at_to;
} stretch;

typedef enum side { UNKNOWN, BEFORE, BEHIND, FOUND } side;

static side side_of(const choice *from, const choice *c)
{
    if (c->score > from->score) return FOUND;
    if (!is_same_fault(from, c)) return UNKNOWN;
    return (gap(c) < 0) == (gap(from) < 0) ? BEFORE : BEHIND;
}

/* By doubling and halving n, as long as the gap becomes smaller. */
static inv_status find_stretch(finder *f, const choice *from, const direction *d, bool up, stretch *s, bool *found)
{
    enum { MOST_STEADY = 3 }; /* extents are rounded */
    int steady = 0;
    int64_t left = llabs(gap(from));
    *found = false;
    s->from = d->now;
    for (s->to = up ? 2 * s->from : s->from / 2; s->to >= d->least && s->to <= d->most && steady < MOST_STEADY;
         s->from = s->to, s->to = up ? 2 * s->from : s->from / 2) {
        INV_TRY(extent_at(f, from, d, s->to, &s->at_to));
        const side is = side_of(from, &s->at_to);
        *found = is == FOUND || is == BEHIND;
        s->found = is == FOUND;
        if (is != BEFORE || llabs(gap(&s->at_to)) > left) break;
        steady = llabs(gap(&s->at_to)) == left ? steady + 1 : 0;
        left = llabs(gap(&s->at_to));
    }
    return INV_OK;
}

/* Halves the stretch down to `unit`. *lost: some number between ends elsewhere. */
static inv_status narrow_extents(finder *f, const choice *from, const direction *d, int64_t unit, stretch *s,
                                 bool *lost)
{
    *lost = false;
    while (llabs(s->to - s->from) > unit && !*lost) {
        choice c;
        const int64_t middle = s->from + (s->to - s->from) / unit / 2 * unit;
        INV_TRY(extent_at(f, from, d, middle, &c));
        const side is = side_of(from, &c);
        if (is == UNKNOWN) *lost = true;
        if (is == BEFORE) s->from = middle;
        if (is != FOUND && is != BEHIND) continue;
        s->to = middle;
        s->found = is == FOUND;
        s->at_to = c;
    }
    return INV_OK;
}

/* Where more numbers follow that do as well, the first customary one of these, else an even one. */
static inv_status prefer_extent(finder *f, const choice *from, const direction *d, int64_t n, choice *c)
{
    choice t;
    for (size_t i = 0; i < NCUSTOMARY && customary[i] < 2 * n && customary[i] <= d->most; i++) {
        if (customary[i] < n) continue;
        if (customary[i] == n) return INV_OK;
        INV_TRY(extent_at(f, from, d, customary[i], &t));
        if (t.score < c->score) break;
        *c = t;
        return INV_OK;
    }
    if (n % 2 == 0) return INV_OK;
    INV_TRY(extent_at(f, from, d, n + 1, &t));
    if (t.score >= c->score) *c = t;
    return INV_OK;
}

/* Changes n so that the extent becomes the one that is wanted. *past, if no n gives that: the first that gives more. */
static inv_status solve_extents(finder *f, const choice *from, const direction *d, choice *best, int64_t *past)
{
    *past = 0;
    for (int up = 1; up >= 0; up--) {
        stretch s, whole;
        bool found, lost = true;
        INV_TRY(find_stretch(f, from, d, up, &whole, &found));
        if (!found) continue;
        s = whole;
        /* Multiples of something may get here alone: then of a divisor of what did. */
        const int64_t both = common_divisor(s.from, s.to);
        for (int64_t unit = 1; unit <= both && lost; unit++) {
            if (both % unit) continue;
            s = whole;
            INV_TRY(narrow_extents(f, from, d, unit, &s, &lost));
        }
        if (!s.found) {
            *past = s.to;
            continue;
        }
        INV_TRY(prefer_extent(f, from, d, s.to, &s.at_to));
        keep_better(best, &s.at_to);
        return INV_OK;
    }
    return INV_OK;
}

/* Two groups or more that no common n gives: another number for one of them, from that on which is too much for all,
 * and the others after it. */
static inv_status solve_apart(finder *f, const choice *from, const direction *d, int64_t past, choice *best)
{
    bool first[MOST_GROUPS] = {false}, others[MOST_GROUPS];
    direction one, rest;
    choice c = *from, next;
    size_t k = 0;
    int64_t none;
    while (!d->times[k]) k++;
    for (size_t i = 0; i < f->ngroup; i++) others[i] = d->times[i] && i != k;
    first[k] = true;
    past *= d->times[k];
    if (!direct(f, from, first, &one) || !direct(f, from, others, &rest)) return INV_OK;
    for (int64_t n = past; n > past / 4 && n > 1 && best->score <= from->score; n--, c = next) {
        if (n == past) INV_TRY(extent_at(f, from, &one, n, &c));
        INV_TRY(extent_at(f, from, &one, n - 1, &next));
        /* the least of those for which the extent is the same */
        if (!is_same_fault(from, &c) || (is_same_fault(from, &next) && gap(&next) == gap(&c))) continue;
        INV_TRY(solve_extents(f, &c, &rest, best, &none));
        const choice found = *best;
        if (found.score > from->score) INV_TRY(prefer_extent(f, &found, &one, n, best));
    }
    return INV_OK;
}

/* The groups on which the extent depends; none if the node says nothing. */
static inv_status find_misfit_causes(finder *f, const choice *from, bool batch, bool *set)
{
    for (size_t i = 0; i < f->ngroup; i++) {
        bool alone[MOST_GROUPS] = {false};
        direction d;
        choice c;
        set[i] = false;
        if (f->group[i].batch != batch || !from->misfit.check) continue;
        alone[i] = true;
        if (!direct(f, from, alone, &d) || 2 * d.now > d.most) continue;
        INV_TRY(extent_at(f, from, &d, 2 * d.now, &c));
        set[i] = c.score > from->score || (is_same_fault(from, &c) && gap(&c) != gap(from));
    }
    return INV_OK;
}

static inv_status follow_extent(finder *f, bool batch, choice *best)
{
    const choice from = *best;
    bool set[MOST_GROUPS];
    direction d;
    int64_t past;
    INV_TRY(find_misfit_causes(f, &from, batch, set));
    if (!direct(f, &from, set, &d)) return INV_OK;
    INV_TRY(solve_extents(f, &from, &d, best, &past));
    if (past && best->score <= from.score) INV_TRY(solve_apart(f, &from, &d, past, best));
    for (size_t i = 0; i < f->ngroup && best->score <= from.score; i++) {
        bool alone[MOST_GROUPS] = {false};
        alone[i] = set[i];
        if (direct(f, &from, alone, &d)) INV_TRY(solve_extents(f, &from, &d, best, &past));
    }
    return INV_OK;
}

/* --- where it does not say --- */

enum { NNUMBERS = NMULTIPLES + NCUSTOMARY + NSMALL };

static int64_t number_extents(int i, int64_t now)
{
    if (i < NMULTIPLES) return (i + 2) * now;
    return i < NMULTIPLES + NCUSTOMARY ? customary[i - NMULTIPLES] : i - NMULTIPLES - NCUSTOMARY + 1;
}

static inv_status vary(finder *f, const choice *from, const bool *set, choice *best)
{
    direction d;
    choice c;
    if (!direct(f, from, set, &d)) return INV_OK;
    for (int i = 0; i < NNUMBERS && best->score < DONE; i++) {
        const int64_t n = number_extents(i, d.now);
        if (n < d.least || n > d.most) continue;
        INV_TRY(extent_at(f, from, &d, n, &c));
        keep_better(best, &c);
    }
    return INV_OK;
}

/* Groups of the same number as group `like`, the batch apart from the others; without one of them. */
static void pick(const finder *f, const choice *c, size_t like, size_t without, bool *set)
{
    for (size_t i = 0; i < f->ngroup; i++)
        set[i] = c->value[i] == c->value[like] && f->group[i].batch == f->group[like].batch && i != without;
}

/* Changes what has one number, then all of that but one, then one alone, until something gets farther. */
static inv_status scan(finder *f, bool batch, choice *best)
{
    const choice from = *best;
    bool set[MOST_GROUPS];
    for (int kind = 0; kind < 3; kind++)
        for (size_t i = 0; i < f->ngroup && best->score <= from.score; i++) {
            if (f->group[i].batch != batch) continue;
            pick(f, &from, i, kind == 1 ? i : SIZE_MAX, set);
            for (size_t k = 0; k < f->ngroup && kind != 1; k++) {
                if (kind == 2) set[k] = k == i;
                else if (k < i && set[k]) memset(set, 0, sizeof set); /* these have been varied */
            }
            INV_TRY(vary(f, &from, set, best));
        }
    return INV_OK;
}

static inv_status climb_extents(finder *f, choice *best)
{
    for (size_t before = 0; best->score < DONE && best->score > before;) {
        before = best->score;
        INV_TRY(follow_extent(f, false, best));
        if (best->score == before && best->misfit.repeats) { /* meant so, if no size changes it */
            f->once_from = (before >> 16) + 1;
            /* the other turns of a loop are of the same source */
            const inv_id source = best->misfit.source;
            if (source != INV_NONE && !inv_vec_push(f->arena, &f->once_but, source)) return INV_E_NOMEM;
            INV_TRY(look_at_extents(f, best));
        }
        if (best->score == before) INV_TRY(scan(f, false, best));
        if (best->score == before) INV_TRY(follow_extent(f, true, best));
        if (best->score == before) INV_TRY(scan(f, true, best));
    }
    return INV_OK;
}

/* What the try that got farthest ended with. */
static inv_status refuse_extents(finder *f)
{
    inv_str text;
    inv_str_init(&text, f->ctx);
    inv_str_add(&text, "no sizes were found for the open dimensions of the inputs that the model accepts. The best "
                       "try,");
    for (size_t i = 0; i < f->options.ninputs; i++) {
        char shape[INV_SHAPE_TEXT];
        const inv_shape s = inv_shape_of(f->array[i].rank, f->dims[i]);
        inv_shape_text(&s, shape);
        inv_str_add(&text, " '%s' %s,", f->array[i].name, shape);
    }
    inv_str_add(&text, " failed: %s. Give the sizes that the model was made for ({inputs})",
                inv_context_message(f->ctx));
    const inv_status s = text.failed ? INV_E_NOMEM : inv_fail(f->ctx, INV_E_SHAPE, "%s", text.s);
    inv_str_fini(&text);
    return s;
}

static inv_status find_extents(finder *f, int64_t batch)
{
    choice first, best;
    INV_TRY(find_open(f));
    for (size_t i = 0; i < f->ngroup; i++) first.value[i] = f->group[i].batch ? batch : FIRST;
    f->once_from = 1;
    INV_TRY(look_at_extents(f, &first));
    best = first;
    for (f->least = 2; f->least > 0 && best.score < DONE; f->least--) {
        choice c = first; /* where an extent of 1 is wanted, others may have led astray */
        INV_TRY(climb_extents(f, &c));
        keep_better(&best, &c);
    }
    const bool theirs = f->other || !f->same || f->given; /* else the fault is the same for all numbers */
    f->once_from = 0;
    INV_TRY(look_at_extents(f, &best));
    if (f->varies) return f->ctx->code; /* what the model accepts depends on values that nobody has given */
    if (best.score >= THROUGH) return INV_OK;
    return theirs ? refuse_extents(f) : f->ctx->code;
}

inv_status inv_extents_find(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                            int64_t batch, int64_t *const *dims)
{
    inv_arena a;
    inv_arena_init(&a, ctx);
    finder *f = INV_ARENA_NEW(&a, finder, 1);
    inv_status s = f ? INV_OK : INV_E_NOMEM;
    if (f) {
        const inv_span around = inv_span_enter(ctx, "finding sizes", 0, 1);
        *f = (finder){.ctx = ctx, .source = source, .options = *options, .arena = &a};
        s = find_extents(f, batch < 1 ? 1 : batch > LARGEST ? LARGEST : batch);
        inv_span_leave(ctx, around);
    }
    for (size_t i = 0; (s == INV_OK || s == INV_E_NOT_CONSTANT) && i < f->options.ninputs; i++)
        if (f->array[i].rank > 0) memcpy(dims[i], f->dims[i], (size_t)f->array[i].rank * sizeof **dims);
    inv_arena_fini(&a);
    return s;
}
