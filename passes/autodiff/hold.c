/* SPDX-License-Identifier: Apache-2.0
 * Gradients of elements that are held (core/weights/held.h) are zero, whatever they were:
 *
 *     d = ...     becomes     d = Where(held, 0, ...)
 *
 * requires: plan->grad.  gives: plan->grad, masked.  O(elements of what is held). */
#include "core/weights/held.h"
#include "ops/base/emit.h"
#include "passes/autodiff/autodiff.h"

/* Of a parameter, or a section of one: whether each element is held; by row, where whole rows are. */
static inv_id mask_of(inv_graph *g, const inv_held *h, inv_id w)
{
    const inv_value x = *inv_val(g, w);
    const int64_t first = x.whole == INV_NONE ? 0 : x.first, n = inv_shape_nelem(&x.shape);
    const int64_t width = x.shape.dim[0] ? n / x.shape.dim[0] : 0, step = h->zeros ? 1 : width;
    inv_shape shape = x.shape;
    uint8_t *held = inv_arena_array(&g->arena, (size_t)(step ? n / step : 0) + 1, 1);
    if (!held || !step) return INV_NONE;
    for (int64_t i = 0; i < n; i += step) held[i / step] = inv_held_element(h, first + i);
    for (int d = 1; d < shape.rank && !h->zeros; d++) shape.dim[d] = 1;
    return inv_graph_const(g, INV_BOOL, &shape, held);
}

inv_status inv_pass_hold(inv_graph *g, inv_plan *plan)
{
    g->phase = INV_BACKWARD;
    for (size_t i = 0; i < plan->grad.n; i++) {
        const inv_id w = inv_graph_find(g, plan->grad.at[i].name), d = plan->grad.at[i].value;
        const inv_value x = *inv_val(g, w);
        const inv_held *h = x.whole == INV_NONE ? x.held : inv_val(g, x.whole)->held;
        if (!h) continue;
        const inv_id mask = mask_of(g, h, w), zero = inv_graph_const_real(g, inv_val(g, d)->dtype, 0);
        if (mask == INV_NONE || zero == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
        const inv_id masked = inv_emit1(g, "Where", INV_IN(mask, zero, d), INV_NOATTR);
        if (masked == INV_NONE) return g->failed;
        inv_val(g, masked)->mem = INV_MEM_GRAD;
        inv_val(g, masked)->keep = inv_val(g, d)->keep;
        inv_val(g, d)->keep = false;
        plan->grad.at[i].value = masked;
    }
    return g->failed;
}

/* Rows of w, which an update has changed, or of its average, as they were in the file. */
inv_status inv_hold_rows(inv_graph *g, inv_id param, inv_id w)
{
    const inv_value p = *inv_val(g, param), x = *inv_val(g, w);
    const inv_held *h = p.whole == INV_NONE ? p.held : inv_val(g, p.whole)->held;
    if (!h || !h->moves) return INV_OK;
    const int64_t rows = p.shape.dim[0], width = inv_shape_nelem(&p.shape) / rows;
    const int64_t first = p.whole == INV_NONE ? 0 : p.first / width;
    const size_t from = inv_dtype_size(h->data.dtype), to = inv_dtype_size(x.dtype);
    int64_t *row = INV_ARENA_NEW(&g->arena, int64_t, h->nrow + 1), n = 0;
    char *bytes = inv_arena_array(&g->arena, h->nrow * (size_t)width + 1, to);
    if (!row || !bytes) return INV_E_NOMEM;
    for (size_t k = 0; k < h->nrow; k++) {
        if (h->row[k] < first || h->row[k] >= first + rows) continue;
        const char *data = (const char *)h->data.bytes + (size_t)(h->row[k] * width) * from;
        if (!inv_convert(bytes + (size_t)(n * width) * to, x.dtype, data, h->data.dtype, (size_t)width))
            return inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE, "{hold_rows}: rows of '%s' cannot be held in %s", p.name,
                            inv_dtype_name(x.dtype));
        row[n++] = h->row[k] - first;
    }
    if (!n) return INV_OK;
    const inv_shape shape = inv_shape_of(2, (int64_t[]){n, width});
    const inv_id values = inv_graph_const(g, x.dtype, &shape, bytes);
    (void)inv_emit(g, "HoldRows", 0, INV_IN(w, values), INV_ATTRS(inv_attr_of_ints("rows", (size_t)n, row)));
    return g->failed;
}
