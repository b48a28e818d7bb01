/* SPDX-License-Identifier: Apache-2.0
 * ConvTranspose, which lowers to ConvGradX with the filter as it is. */
#include <stdlib.h>
#include <string.h>

#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"

/* A list with one entry per spatial axis, or with those of batch and channels in front; absent: `dflt`. */
static bool axis_ints(const inv_node *n, const char *name, int sd, int64_t dflt, int64_t out[3])
{
    size_t count;
    const int64_t *v = inv_attr_ints(n, name, &count);
    for (int i = 0; i < sd; i++) out[i] = dflt;
    if (count == 0) return true;
    if (count != (size_t)sd && count != (size_t)sd + 2) return false;
    for (int i = 0; i < sd; i++) {
        out[i] = v[(int)count - sd + i];
        if (out[i] < 0 || out[i] > INT32_MAX) return false;
    }
    return true;
}

/* What ConvTranspose is the gradient of: `out` of those extents, convolved with these pads, gives the input. */
typedef struct transposed {
    int64_t out[3], strides[3], dilations[3], pads[6];
} transposed;

/* Axis i, after the specification of ConvTranspose; pads[i] and pads[sd + i] are set if `pads` was. `out` > 0: wanted
 * extent. Negative sums of pads count as none: the rest of the output has no input that reaches it. */
static const char *transposed_axis(transposed *t, int i, int sd, int64_t in, int64_t k, int64_t extra, int64_t out,
                                   bool upper)
{
    int64_t full = t->strides[i] * (in - 1) + (k - 1) * t->dilations[i] + 1, total = full + extra - out;
    if (in < 1) return "a spatial axis of the input has extent 0";
    if (out > 0) {
        total = total < 0 ? 0 : total;
        t->pads[i] = upper ? total / 2 : total - total / 2;
    } else {
        out = full + extra - t->pads[i] - t->pads[sd + i];
    }
    if (out < 1) return "the pads leave nothing of the output";
    int64_t end = full - t->pads[i] - out; /* output_padding first takes back what the pads cut off */
    if (-end >= t->strides[i])
        return "output_padding or output_shape reaches a whole stride or more past the last window, which is not "
               "supported";
    t->pads[sd + i] = end < 0 ? 0 : end;
    t->out[i] = out;
    return NULL;
}

static const char *transposed_of(const inv_node *n, const inv_shape *x, const inv_shape *f, transposed *t)
{
    const int sd = x->rank - 2;
    int64_t extra[3], out[3], kernel[3];
    size_t count;
    memset(t, 0, sizeof *t);
    if (sd < 1 || sd > 3) return "the input needs one batch, one channel and 1 to 3 spatial axes";
    if (f->rank != x->rank) return "the filter must have the rank of the input";
    if (f->dim[0] != x->dim[1]) return "the filter's first extent is not the channels of the input";
    if (!axis_ints(n, "strides", sd, 1, t->strides) || !axis_ints(n, "dilations", sd, 1, t->dilations) ||
        !axis_ints(n, "output_padding", sd, 0, extra) || !axis_ints(n, "output_shape", sd, 0, out) ||
        !axis_ints(n, "kernel_shape", sd, 0, kernel))
        return "strides, dilations, output_padding, output_shape and kernel_shape need one entry per spatial axis";
    const char *pad = inv_attr_string(n, "auto_pad", "NOTSET");
    const bool notset = strcmp(pad, "NOTSET") == 0 || *pad == 0, valid = strcmp(pad, "VALID") == 0;
    const bool upper = strcmp(pad, "SAME_UPPER") == 0, lower = strcmp(pad, "SAME_LOWER") == 0;
    if (!notset && !valid && !upper && !lower) return "auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER";
    const int64_t *pads = inv_attr_ints(n, "pads", &count);
    if (notset && count != 0 && count != 2 * (size_t)sd) return "pads needs two entries per spatial axis";
    for (int i = 0; notset && i < (int)count; i++) {
        if (pads[i] < 0 || pads[i] > INT32_MAX) return "negative pads are not supported";
        t->pads[i] = pads[i];
    }
    for (int i = 0; i < sd; i++) {
        if (t->strides[i] < 1 || t->dilations[i] < 1) return "strides and dilations must be positive";
        if (f->dim[2 + i] < 1 || f->dim[2 + i] > INT32_MAX) return "the kernel's extents must be positive";
        if (kernel[i] != 0 && kernel[i] != f->dim[2 + i]) return "kernel_shape is not the filter's";
        if (x->dim[2 + i] > INT32_MAX) return "the input is too large";
        if ((upper || lower) && out[i] == 0) out[i] = x->dim[2 + i] * t->strides[i];
        const char *why = transposed_axis(t, i, sd, x->dim[2 + i], f->dim[2 + i], extra[i], out[i], upper);
        if (why) return why;
    }
    return NULL;
}

static inv_status conv_transpose_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    transposed t;
    const inv_shape x = *inv_in_shape(g, n, 0), f = *inv_in_shape(g, n, 1);
    const size_t sd = (size_t)(x.rank - 2);
    const int64_t group = inv_attr_int(n, "group", 1);
    const char *why = group < 1 ? "group must be positive" : transposed_of(n, &x, &f, &t);
    if (why && x.rank > 1 && f.rank == x.rank && f.dim[0] != x.dim[1]) inv_note_misfit(g, 1, x.dim[1], f.dim[0]);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    const int64_t m = f.dim[1] * group;
    inv_shape y = inv_shape_of(x.rank, x.dim), b = inv_shape_of(x.rank, (int64_t[]){1, m, 1, 1, 1});
    y.dim[1] = m;
    for (size_t i = 0; i < sd; i++) y.dim[2 + i] = t.out[i];
    out[0] = inv_emit1(g, "ConvGradX", INV_IN(n->in[0], n->in[1]),
                       INV_ATTRS(inv_attr_of_ints("strides", sd, t.strides), inv_attr_of_ints("pads", 2 * sd, t.pads),
                                 inv_attr_of_ints("dilations", sd, t.dilations), inv_attr_of_int("group", group),
                                 inv_attr_of_shape("shape", &y)));
    if (!inv_has_in(n, 2)) return inv_done(g);
    const inv_shape *bias = inv_in_shape(g, n, 2);
    if (bias->rank != 1 || bias->dim[0] != m)
        return inv_node_fail(g, n, INV_E_SHAPE, "the bias needs one number per output channel, %lld", (long long)m);
    out[0] = inv_emit1(g, "Add", INV_IN(out[0], inv_emit_view(g, n->in[2], &b)), INV_NOATTR);
    return inv_done(g);
}

INV_LOWERED_FLAGS(
    conv_transpose, "ConvTranspose", 1, "X W B?", "Y", INV_OP_PRODUCT,
    "transposed convolution: ConvGradX with the filter as it is, plus the bias. ONNX ConvTranspose-1, -11",
    "y = ConvTranspose<strides = [2,2], kernel_shape = [2,2]>(float[2,3,4,3] x, float[3,2,2,2] w, float[2] b)",
    "y = ConvTranspose<strides = [3,2], pads = [1,0,0,2], dilations = [1,2], group = 2, output_padding = [2,1]>"
    "(float[1,4,3,4] x, float[4,3,3,2] w, float[6] b)",
    "y = ConvTranspose<strides = [2,2], auto_pad = \"SAME_UPPER\">(float[1,1,3,3] x, float[1,2,3,3] w)",
    "y = ConvTranspose<strides = [2,2], auto_pad = \"SAME_LOWER\">(float[1,1,3,3] x, float[1,2,3,3] w)",
    "y = ConvTranspose<strides = [3,2], output_shape = [10,8]>(float[1,1,3,3] x, float[1,2,3,3] w)",
    "y = ConvTranspose<pads = [2,1]>(float[2,3,5] x, float[3,4,3] w)",
    "y = ConvTranspose<strides = [2,1,2], group = 2>(float[1,2,2,2,2] x, float[2,1,2,3,1] w)")

const inv_op_def *const inv_ops_conv_transpose[] = {&conv_transpose_row, NULL};
