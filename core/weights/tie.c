/* SPDX-License-Identifier: Apache-2.0
 * Initializers that are others transposed (tie.h). */
#include "core/weights/tie.h"

#include <stdlib.h>
#include <string.h>

#include "core/weights/exported.h"
#include "core/weights/trained.h"

enum { BLOCK = 32, SAMPLED = 61 };

void inv_transpose(void *to, const void *from, size_t rows, size_t columns, size_t size)
{
    for (size_t i0 = 0; i0 < rows; i0 += BLOCK)
        for (size_t j0 = 0; j0 < columns; j0 += BLOCK)
            for (size_t i = i0; i < rows && i < i0 + BLOCK; i++)
                for (size_t j = j0; j < columns && j < j0 + BLOCK; j++)
                    memcpy((char *)to + (j * rows + i) * size, (const char *)from + (i * columns + j) * size, size);
}

typedef struct matrix {
    const char *p;
    size_t rows, columns, size;
} matrix;

static matrix matrix_of(const inv_value *v)
{
    return (matrix){v->data.bytes, (size_t)v->shape.dim[0], (size_t)v->shape.dim[1], inv_dtype_size(v->dtype)};
}

static bool same(const matrix *x, const matrix *y, size_t i, size_t j)
{
    return memcmp(x->p + (i * x->columns + j) * x->size, y->p + (j * y->columns + i) * x->size, x->size) == 0;
}

/* A few elements first: nearly all pairs differ in these. */
static bool is_transposed(const matrix *x, const matrix *y)
{
    if (x->rows != y->columns || x->columns != y->rows || x->size != y->size) return false;
    const size_t n = x->rows * x->columns, step = n / SAMPLED + 1;
    for (size_t k = 0; k < n; k += step)
        if (!same(x, y, k / x->columns, k % x->columns)) return false;
    for (size_t i0 = 0; i0 < x->rows; i0 += BLOCK)
        for (size_t j0 = 0; j0 < x->columns; j0 += BLOCK)
            for (size_t i = i0; i < x->rows && i < i0 + BLOCK; i++)
                for (size_t j = j0; j < x->columns && j < j0 + BLOCK; j++)
                    if (!same(x, y, i, j)) return false;
    return true;
}

/* Equal by accident, not transposed on purpose: initial values such as zeros, or the identity. */
static bool is_plain(const matrix *x, const matrix *y)
{
    const size_t nbytes = x->rows * x->columns * x->size;
    return memcmp(x->p, x->p + x->size, nbytes - x->size) == 0 ||
           (x->rows == x->columns && memcmp(x->p, y->p, nbytes) == 0);
}

static bool named(const inv_session_options *o, const char *name)
{
    for (size_t i = 0; o && i < o->ntrain_only; i++)
        if (!strcmp(o->train_only[i], name)) return true;
    return false;
}

/* Whether one of the two is nobody's parameter of its own. */
static bool may_be(const inv_graph *g, const inv_session_options *o, const inv_value *x, const inv_value *y)
{
    const bool made = x->said == INV_SAID_OF_PARAMETERS || y->said == INV_SAID_OF_PARAMETERS ||
                      inv_name_is_generated(x->name) || inv_name_is_generated(y->name);
    if (x->said == INV_SAID_PARAMETER && y->said == INV_SAID_PARAMETER) return false;
    if (named(o, x->name) && named(o, y->name)) return false;
    /* "t", "permute_1": without metadata, what PyTorch's newer exporter has computed is known by having no module */
    const bool plain = g->exported && g->exported->stripped && (!strchr(x->name, '.') || !strchr(y->name, '.'));
    return made || ((!g->from_torch || plain) && x->shape.dim[0] > 1 && x->shape.dim[1] > 1);
}

/* Which of the two has the name that the model's author gave it. */
static bool is_own(const inv_value *v)
{
    if (v->said == INV_SAID_PARAMETER || v->said == INV_SAID_NAMED) return true;
    return v->said == INV_SAID_NOTHING && !inv_name_is_generated(v->name);
}

static bool is_candidate(const inv_graph *g, inv_id v, const uint8_t *untrained, const bool *read)
{
    const inv_value *x = inv_val(g, v);
    return (untrained[v] == INV_TRAINED || untrained[v] == INV_UNTRAINED_UNNAMED) && (read[v] || x->within) &&
           !x->is_output && x->shape.rank == 2 && x->data.bytes && inv_shape_nelem(&x->shape) > 1;
}

/* A candidate, and what it has in common with all that could be it transposed. */
typedef struct keyed_matrix {
    uint64_t key;
    size_t at; /* in the list of candidates */
} keyed_matrix;

/* A hash of the type, the extents without their order, and the first and last element, which transposing leaves. */
static uint64_t key_of(const inv_value *v)
{
    const matrix m = matrix_of(v);
    const uint64_t extents[] = {(uint64_t)v->dtype, m.rows < m.columns ? m.rows : m.columns, m.rows * m.columns};
    uint64_t h = inv_hash(extents, sizeof extents, 0);
    h = inv_hash(m.p, m.size, h);
    return inv_hash(m.p + (m.rows * m.columns - 1) * m.size, m.size, h);
}

static int by_key(const void *a, const void *b)
{
    const keyed_matrix *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Finds the pairs among matrices that are sorted by key, candidate i as number place[i]: each candidate, in their own
 * order, is compared with those of its key behind it. */
static inv_status find_pairs(const inv_graph *g, const inv_session_options *o, const uint8_t *untrained, inv_arena *a,
                             inv_ids *list, const keyed_matrix *sorted, const size_t *place, inv_ties *out)
{
    for (size_t n = 0; n < list->n; n++) {
        const size_t s = place[n];
        const inv_id i = list->at[n];
        if (i == INV_NONE || untrained[i] != INV_TRAINED) continue;
        const inv_value *x = inv_val(g, i);
        const matrix master = matrix_of(x);
        for (size_t k = s + 1; k < list->n && sorted[k].key == sorted[s].key; k++) {
            inv_id *other = &list->at[sorted[k].at];
            const inv_value *y = *other == INV_NONE ? NULL : inv_val(g, *other);
            if (!y || y->dtype != x->dtype || !may_be(g, o, x, y)) continue;
            const matrix copy = matrix_of(y);
            if (!is_transposed(&master, &copy) || is_plain(&master, &copy)) continue;
            const inv_tie tie = {i, *other};
            if (!inv_vec_push(a, out, tie)) return INV_E_NOMEM;
            *other = INV_NONE;
        }
    }
    return INV_OK;
}

inv_status inv_ties_find(const inv_graph *g, const inv_session_options *o, const uint8_t *untrained, inv_arena *a,
                         inv_ties *out)
{
    bool *read = INV_ARENA_NEW(a, bool, g->value.n + 1);
    inv_ids list = {0};
    if (!read) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) read[n->in[k]] = true;
    }
    for (int rank = 3; rank >= 0; rank--) /* masters first: what is trained, by its own name */
        for (size_t i = 0; i < g->inits.n; i++) {
            const inv_id v = g->inits.at[i];
            if (is_candidate(g, v, untrained, read) &&
                2 * (untrained[v] == INV_TRAINED) + is_own(inv_val(g, v)) == rank && !inv_vec_push(a, &list, v))
                return INV_E_NOMEM;
        }
    keyed_matrix *sorted = INV_ARENA_NEW(a, keyed_matrix, list.n + 1);
    size_t *place = INV_ARENA_NEW(a, size_t, list.n + 1);
    if (!sorted || !place) return INV_E_NOMEM;
    for (size_t i = 0; i < list.n; i++) sorted[i] = (keyed_matrix){key_of(inv_val(g, list.at[i])), i};
    qsort(sorted, list.n, sizeof *sorted, by_key);
    for (size_t s = 0; s < list.n; s++) place[sorted[s].at] = s;
    return find_pairs(g, o, untrained, a, &list, sorted, place, out);
}
