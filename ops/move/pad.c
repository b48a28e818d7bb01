/* SPDX-License-Identifier: Apache-2.0
 * Pad, all opsets: by a constant to PadRange (slice.c), in the other modes to Gather. */
#include <string.h>

#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/move/slice.h"

/* Source index of position i of a padded axis that mirrors, repeats its edge, or wraps. */
static int64_t pad_source(const char *mode, int64_t i, int64_t d)
{
    if (strcmp(mode, "edge") == 0) return i < 0 ? 0 : i < d ? i : d - 1;
    if (strcmp(mode, "wrap") == 0) return (i % d + d) % d;
    const int64_t period = d > 1 ? 2 * (d - 1) : 1;
    i = (i % period + period) % period;
    return i < d ? i : period - i;
}

static inv_status pad_by_index(inv_graph *g, const inv_node *n, const char *mode, const int64_t *before,
                               const int64_t *after, inv_id *out)
{
    inv_id v = n->in[0];
    for (int a = 0; a < inv_in_shape(g, n, 0)->rank; a++) {
        const int64_t d = inv_in_shape(g, n, 0)->dim[a], size = d + before[a] + after[a];
        if (before[a] == 0 && after[a] == 0) continue;
        if (d == 0 || size < 0) return inv_node_fail(g, n, INV_E_SHAPE, "axis %d cannot be padded", a);
        int64_t *index = INV_ARENA_NEW(&g->arena, int64_t, (size_t)size);
        if (index == NULL) return INV_E_NOMEM;
        for (int64_t i = 0; i < size; i++) index[i] = pad_source(mode, i - before[a], d);
        inv_id k = inv_graph_const_ints(g, (size_t)size, index);
        v = inv_emit1(g, "Gather", INV_IN(v, k), INV_ATTRS(inv_attr_of_int("axis", a)));
    }
    out[0] = v;
    return inv_done(g);
}

static inv_status pad_amounts(const inv_graph *g, const inv_node *n, int64_t *before, int64_t *after)
{
    int64_t pads[INV_MAX_RANK * 2], axes[INV_MAX_RANK * 2];
    size_t count, naxes;
    bool given, some;
    const int rank = inv_in_shape(g, n, 0)->rank;
    INV_TRY(inv_ints_of(g, n, "pads", 1, pads, &count, &given));
    INV_TRY(inv_ints_of(g, n, "axes", 3, axes, &naxes, &some));
    if (!some) naxes = (size_t)rank;
    if (count != 2 * naxes) return inv_node_fail(g, n, INV_E_SHAPE, "%zu pads; two per axis are wanted", count);
    for (size_t k = 0; k < naxes; k++) {
        int i;
        INV_TRY(inv_axis(g, n, some ? axes[k] : (int64_t)k, rank, &i));
        before[i] = pads[k];
        after[i] = pads[k + naxes];
    }
    return INV_OK;
}

static inv_status pad_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t before[INV_MAX_RANK] = {0}, after[INV_MAX_RANK] = {0}, starts[INV_MAX_RANK], sizes[INV_MAX_RANK];
    const int64_t ones[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    const char *mode = inv_attr_string(n, "mode", "constant");
    double value = inv_attr_float(n, "value", 0);
    INV_TRY(pad_amounts(g, n, before, after));
    if (strcmp(mode, "constant") != 0) return pad_by_index(g, n, mode, before, after, out);
    if (inv_has_in(n, 2)) {
        const inv_value *v = inv_val(g, n->in[2]);
        INV_TRY(inv_node_need_const(g, n, n->in[2], "constant_value"));
        value = inv_shape_nelem(&v->shape) ? inv_elem_double(v->data.bytes, v->data.dtype, 0) : 0;
    }
    inv_shape s = *inv_in_shape(g, n, 0);
    bool padded = false;
    for (int i = 0; i < s.rank; i++) {
        const int64_t most = INT64_MAX / 4; /* no sum of these overflows */
        if (before[i] > most || after[i] > most || s.dim[i] > most)
            return inv_node_fail(g, n, INV_E_SHAPE, "axis %d is padded to more than memory can hold", i);
        if (before[i] < -s.dim[i] || after[i] < -s.dim[i] || before[i] + after[i] < -s.dim[i])
            return inv_node_fail(g, n, INV_E_SHAPE, "axis %d is cut by more than its extent", i);
        starts[i] = before[i] < 0 ? -before[i] : 0; /* negative pads cut */
        sizes[i] = s.dim[i] - starts[i] + (after[i] < 0 ? after[i] : 0);
        before[i] = before[i] < 0 ? 0 : before[i];
        s.dim[i] = sizes[i] + before[i] + (after[i] < 0 ? 0 : after[i]);
        padded = padded || s.dim[i] != sizes[i];
    }
    out[0] = inv_emit_slice(g, n->in[0], starts, ones, sizes);
    if (padded)
        out[0] = inv_emit1(g, "PadRange", INV_IN(out[0]),
                           INV_ATTRS(inv_attr_of_shape("shape", &s), inv_attr_of_ints("starts", (size_t)s.rank, before),
                                     inv_attr_of_float("value", value)));
    return inv_done(g);
}

/* clang-format off */
const inv_op_def inv_op_pad = {
    .size = sizeof inv_op_pad, .domain = "", .name = "Pad", .since = 2, .in = "x pads? value? axes?", .out = "y",
    .lower = pad_lower,
    .cases = (const char *const[]){INV_INTS("p", "0, 1, 2, -1") "y = Pad(float[2,3] x, p)",
                                   INV_INTS("p", "1, 2") INV_INTS("a", "-1")
                                       "y = Pad<mode = \"reflect\">(float[2,3] x, p, , a)",
                                   INV_INTS("p", "1, 2") INV_INTS("a", "0")
                                       "y = Pad<mode = \"edge\">(float[1,3] x, p, , a)",
                                   NULL},
    .doc = "constant to PadRange, other modes to Gather. ONNX Pad-2, -11, -13, -18, -19"};
/* clang-format on */
