/* SPDX-License-Identifier: Apache-2.0
 * Initializers that are equal to the bit (copies.h). */
#include "core/weights/copies.h"

#include <stdlib.h>
#include <string.h>

#include "core/weights/trained.h"

enum { SAMPLED = 61 };

typedef struct keyed {
    uint64_t key;
    size_t at; /* in the graph's initializers */
} keyed;

static int by_key(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* A hash of the type, the extents, and a few elements: nearly all that differ do so in these. */
static uint64_t key_of(const inv_value *v)
{
    const inv_data *d = &v->data;
    const size_t size = inv_dtype_size(d->dtype), n = inv_data_count(d), step = n / SAMPLED + 1;
    uint64_t h = inv_hash(&v->dtype, sizeof v->dtype, 0);
    h = inv_hash(v->shape.dim, (size_t)v->shape.rank * sizeof *v->shape.dim, h);
    for (size_t k = 0; k < n; k += step) h = inv_hash((const char *)d->bytes + k * size, size, h);
    return h;
}

static bool is_candidate(const inv_value *v)
{
    return !v->type && inv_dtype_is_float(v->dtype) && !v->within && !v->dropped && v->source == INV_NONE &&
           v->shape.rank > 0 && v->data.bytes && v->data.nbytes && inv_shape_is_static(&v->shape);
}

static bool is_equal(const inv_value *x, const inv_value *y)
{
    return x->dtype == y->dtype && inv_shape_equal(&x->shape, &y->shape) &&
           !memcmp(x->data.bytes, y->data.bytes, x->data.nbytes);
}

static bool is_plain(const inv_value *v)
{
    const size_t size = inv_dtype_size(v->dtype);
    return !memcmp(v->data.bytes, (const char *)v->data.bytes + size, v->data.nbytes - size);
}

/* Those of one key: groups of equal ones; who is alone is left out. */
static inv_status group(const inv_graph *g, const keyed *sorted, size_t n, bool *taken, inv_arena *a, inv_copies *out)
{
    for (size_t i = 0; i < n; i++) {
        const inv_value *first = inv_val(g, g->inits.at[sorted[i].at]);
        const uint32_t of = (uint32_t)out->n;
        for (size_t k = i + 1; k < n && !taken[i]; k++) {
            const inv_id v = g->inits.at[sorted[k].at];
            if (taken[k] || !is_equal(first, inv_val(g, v))) continue;
            const inv_copy lead = {g->inits.at[sorted[i].at], of, is_plain(first)}, copy = {v, of, lead.plain};
            if (out->n == of && !inv_vec_push(a, out, lead)) return INV_E_NOMEM;
            if (!inv_vec_push(a, out, copy)) return INV_E_NOMEM;
            taken[k] = true;
        }
    }
    return INV_OK;
}

inv_status inv_copies_find(const inv_graph *g, inv_arena *a, inv_copies *out)
{
    keyed *sorted = INV_ARENA_NEW(a, keyed, g->inits.n + 1);
    bool *taken = INV_ARENA_NEW(a, bool, g->inits.n + 1);
    size_t n = 0;
    if (!sorted || !taken) return INV_E_NOMEM;
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        if (is_candidate(v)) sorted[n++] = (keyed){key_of(v), i};
    }
    qsort(sorted, n, sizeof *sorted, by_key);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end].key == sorted[i].key;) end++;
        INV_TRY(group(g, sorted + i, end - i, taken + i, a, out));
    }
    return INV_OK;
}

bool inv_copies_are_told(const inv_graph *g, const inv_value *x, const inv_value *y)
{
    if (x->said == INV_SAID_PARAMETER && y->said == INV_SAID_PARAMETER) return true;
    const bool made = x->said == INV_SAID_OF_PARAMETERS || y->said == INV_SAID_OF_PARAMETERS ||
                      inv_name_is_generated(x->name) || inv_name_is_generated(y->name);
    return g->from_torch && !made;
}
