/* SPDX-License-Identifier: Apache-2.0
 * What is held of which parameter (held.h). By itself what the file shows: zeros of a weight that an exporter has
 * computed of a parameter and more, as it does with masks (MADE, pruning), and the row of padding of a table that is
 * only looked up. Where the file does not say whether there is one, the one row of zeros counts as such, unless rows
 * are looked up by constants. The row of padding gets no gradient; weight decay moves it, as in PyTorch. */
#include "core/weights/held.h"

#include <stdlib.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/module_names.h"
#include "core/weights/shared_weights.h"
#include "core/weights/trained.h"

typedef struct finder {
    const inv_graph *g;
    const inv_session_options *o;
    const uint8_t *untrained;
    const uint32_t *roles;
    inv_arena *a;
} finder;

const char *inv_held_text(inv_held_why why)
{
    static const char *const text[INV_HELD_REASONS] = {
        [INV_HELD_ASKED] = "as asked for",
        [INV_HELD_MASKED] = "a mask, which the exporter has multiplied with the weight",
        [INV_HELD_PADDING] = "the row of padding of a table, which gets no gradient"};
    return text[why];
}

static int64_t width_of(const inv_data *d)
{
    return d->shape.dim[0] ? inv_shape_nelem(&d->shape) / d->shape.dim[0] : 0;
}

static bool is_zero(const inv_data *d, int64_t i) { return inv_elem_double(d->bytes, d->dtype, (size_t)i) == 0; }

bool inv_held_element(const inv_held *h, int64_t i)
{
    const int64_t width = width_of(&h->data), row = width ? i / width : 0;
    for (size_t k = 0; k < h->nrow; k++)
        if (h->row[k] == row) return true;
    return h->zeros && is_zero(&h->data, i);
}

static int64_t zeros_of(const inv_data *d)
{
    int64_t n = 0;
    for (int64_t i = 0, all = inv_shape_nelem(&d->shape); i < all; i++) n += is_zero(d, i);
    return n;
}

/* --- by itself --- */

/* PyTorch's older exporter calls what it has computed after the node that reads it; of MatMul that is a transposed
 * weight as a rule. */
static bool is_composed(const finder *f, const inv_value *v)
{
    static const char own[] = "onnx::", transposed[] = "onnx::MatMul_";
    if (v->composed) return true;
    return f->g->from_torch && !f->g->says && !strncmp(v->name, own, sizeof own - 1) &&
           strncmp(v->name, transposed, sizeof transposed - 1) != 0;
}

/* The axis of results of a weight that batch normalization was folded into, as into the bias; -1: it was not. */
static int folded_axis(const finder *f, inv_id id)
{
    for (size_t i = 0; i < f->g->order.n; i++) {
        const inv_node *n = inv_nod(f->g, f->g->order.at[i]);
        if (inv_node_listed(n) < 3 || n->in[1] != id || n->in[2] == INV_NONE) continue;
        if (!is_composed(f, inv_val(f->g, n->in[2]))) continue;
        if (inv_node_is(n, "Conv") || (inv_node_is(n, "Gemm") && inv_attr_int(n, "transB", 0))) return 0;
        if (inv_node_is(n, "ConvTranspose") || inv_node_is(n, "Gemm")) return 1;
    }
    return -1;
}

/* Zeros of which all of one result consists, along the axis. */
static int64_t zeros_of_results(const inv_data *d, int axis)
{
    int64_t inner = 1, zeros = 0, n = inv_shape_nelem(&d->shape);
    const int64_t results = axis < 0 ? 0 : d->shape.dim[axis];
    for (int k = axis + 1; k < d->shape.rank; k++) inner *= d->shape.dim[k];
    for (int64_t r = 0; r < results; r++) {
        bool all = true;
        for (int64_t from = r * inner; from < n && all; from += results * inner)
            for (int64_t i = from; i < from + inner && all; i++) all = is_zero(d, i);
        if (all) zeros += n / results;
    }
    return zeros;
}

/* Zeros of a weight are of a mask, but where a scale of 0 of batch normalization has made them. */
static bool has_mask(const finder *f, inv_id id)
{
    enum { LEAST_SHARE = 16 };
    const inv_value *v = inv_val(f->g, id);
    if (v->shape.rank < 2 || !(f->roles[id] & 1u << INV_USE_WEIGHT) || !is_composed(f, v)) return false;
    const int64_t n = inv_shape_nelem(&v->shape), zeros = zeros_of(&v->data);
    if (zeros == n || zeros < n / LEAST_SHARE + 1) return false;
    return zeros - zeros_of_results(&v->data, folded_axis(f, id)) >= n / LEAST_SHARE + 1;
}

/* A table from which the same rows are taken whatever the data: of positions. */
static bool is_read_by_constants(const finder *f, inv_id id)
{
    for (size_t i = 0; i < f->g->order.n; i++) {
        const inv_node *n = inv_nod(f->g, f->g->order.at[i]);
        if (inv_node_is(n, "Gather") && n->in[0] == id && inv_use_is_given(f->g, n->in[1])) return true;
    }
    return false;
}

/* The row that the file says, or the one row of zeros; -1: none, or several. */
static int64_t padding_row(const finder *f, inv_id id)
{
    enum { FEWEST_ROWS = 4 };
    const inv_value *v = inv_val(f->g, id);
    const int64_t width = v->shape.rank == 2 ? v->shape.dim[1] : 0;
    int64_t found = -1;
    if ((f->roles[id] & INV_USE_ROLES) != 1u << INV_USE_TABLE || v->shape.rank != 2) return -1;
    if (v->padding_told) return v->padding < v->shape.dim[0] ? v->padding : -1;
    if (v->shape.dim[0] < FEWEST_ROWS || width < 2) return -1;
    for (int64_t r = 0; r < v->shape.dim[0]; r++) {
        int64_t k = 0;
        while (k < width && is_zero(&v->data, r * width + k)) k++;
        if (k < width) continue;
        if (found >= 0) return -1;
        found = r;
    }
    return found >= 0 && is_read_by_constants(f, id) ? -1 : found;
}

/* --- as asked for --- */

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds the rows of "GLOB:ROW,ROW" to those of h, where the parameter's name fits. inv_options_read has seen that it
 * has this form. */
static inv_status add_rows(const finder *f, const inv_value *v, const char *text, inv_held *h)
{
    const char *colon = strrchr(text, ':');
    char *glob = inv_arena_strndup(f->a, text, (size_t)(colon - text));
    if (!glob) return INV_E_NOMEM;
    if (!inv_param_fits(glob, v)) return INV_OK;
    size_t n = 1;
    for (const char *p = colon + 1; *p; p++) n += *p == ',';
    int64_t *row = INV_ARENA_NEW(f->a, int64_t, h->nrow + n);
    if (!row) return INV_E_NOMEM;
    for (size_t i = 0; i < h->nrow; i++) row[i] = h->row[i];
    const int64_t rows = v->shape.rank ? v->shape.dim[0] : 0;
    for (const char *p = colon + 1; n > 0; n--) {
        char *end;
        int64_t r = strtoll(p, &end, 10);
        INV_CHECK(r < rows && r >= -rows, f->g->ctx, INV_E_ARG, "{hold_rows}: '%s' has %lld rows, there is no row %lld",
                  v->name, (long long)rows, (long long)r);
        row[h->nrow++] = r < 0 ? r + rows : r;
        p = *end ? end + 1 : end;
    }
    qsort(row, h->nrow, sizeof *row, by_number);
    h->row = row;
    return INV_OK;
}

static inv_status find_asked(const finder *f, inv_id id, inv_held *h)
{
    const inv_value *v = inv_val(f->g, id);
    if (inv_param_fits_any(f->o->hold_zeros, f->o->nhold_zeros, v)) h->zeros = zeros_of(&v->data) > 0;
    for (size_t i = 0; i < f->o->nhold_rows; i++) INV_TRY(add_rows(f, v, f->o->hold_rows[i], h));
    return INV_OK;
}

static void find_shown(const finder *f, inv_id id, inv_held *h, int64_t *room)
{
    if (inv_param_fits_any(f->o->no_hold, f->o->nno_hold, inv_val(f->g, id))) return;
    if (has_mask(f, id)) {
        h->zeros = true;
        h->why = INV_HELD_MASKED;
        return;
    }
    *room = padding_row(f, id);
    if (*room < 0) return;
    h->row = room;
    h->nrow = 1;
    h->why = INV_HELD_PADDING;
}

static inv_status hold(const finder *f, inv_id id, const inv_held **out)
{
    const inv_value *v = inv_val(f->g, id);
    inv_held *h = INV_ARENA_NEW(f->a, inv_held, 1);
    int64_t *room = INV_ARENA_NEW(f->a, int64_t, 1);
    if (!h || !room) return INV_E_NOMEM;
    if (v->added || v->renewed || !v->data.bytes) return INV_OK;
    h->data = v->data;
    INV_TRY(find_asked(f, id, h));
    if (!h->zeros && !h->nrow) find_shown(f, id, h, room);
    if (!h->zeros && !h->nrow) return INV_OK;
    const int64_t width = v->shape.rank ? width_of(&h->data) : 0;
    for (int64_t i = 0, n = inv_shape_nelem(&v->shape); h->zeros && i < n; i++) h->elements += inv_held_element(h, i);
    for (size_t k = 0; k < h->nrow; k++) {
        if (!h->zeros) h->elements += width;
        if (h->why != INV_HELD_ASKED) continue;
        for (int64_t i = 0; i < width && !h->moves; i++) h->moves = !is_zero(&h->data, h->row[k] * width + i);
    }
    *out = h;
    return INV_OK;
}

/* Every pattern has to hold something. */
static inv_status check_globs(const finder *f, const char *option, const char *const *globs, size_t n, bool rows,
                              const inv_held *const *held)
{
    for (size_t k = 0; k < n; k++) {
        const char *colon = rows ? strrchr(globs[k], ':') : NULL;
        char *glob = inv_arena_strndup(f->a, globs[k], colon ? (size_t)(colon - globs[k]) : strlen(globs[k]));
        bool any = false;
        if (!glob) return INV_E_NOMEM;
        inv_near near = inv_near_to(glob);
        for (size_t i = 0; i < f->g->inits.n && !any; i++) {
            const inv_id v = f->g->inits.at[i];
            any = inv_param_fits(glob, inv_val(f->g, v)) && (!held || held[v]);
            inv_param_look(&near, inv_val(f->g, v));
        }
        INV_CHECK(any, f->g->ctx, INV_E_ARG, "%s: '%s' fits no initializer that is trained%s" INV_NEAR_FORMAT,
                  inv_option(f->g->ctx, option), glob,
                  rows   ? ""
                  : held ? " and has zeros"
                         : "",
                  INV_NEAR_ARGS(near));
    }
    return INV_OK;
}

inv_status inv_held_find(const inv_graph *g, const inv_session_options *o, const uint8_t *untrained, inv_arena *a,
                         const inv_held ***out)
{
    static const inv_session_options none = {0};
    uint32_t *roles;
    INV_TRY(inv_param_roles(g, false, a, &roles));
    const finder f = {g, o ? o : &none, untrained, roles, a};
    *out = INV_ARENA_NEW(a, const inv_held *, g->value.n + 1);
    if (!*out) return INV_E_NOMEM;
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_id v = g->inits.at[i];
        if (untrained[v] == INV_TRAINED || untrained[v] == INV_UNTRAINED_LATER) INV_TRY(hold(&f, v, &(*out)[v]));
    }
    INV_TRY(check_globs(&f, "hold_zeros", f.o->hold_zeros, f.o->nhold_zeros, false, *out));
    INV_TRY(check_globs(&f, "hold_rows", f.o->hold_rows, f.o->nhold_rows, true, *out));
    return check_globs(&f, "no_hold", f.o->no_hold, f.o->nno_hold, false, NULL);
}
