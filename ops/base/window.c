/* SPDX-License-Identifier: Apache-2.0
 * Geometry of sliding windows, after the ONNX specification of Conv and the pooling operators. */
#include "ops/base/window.h"

#include <string.h>

#include "ops/base/util.h"

static const char *read_ints(const inv_node *n, const char *name, int sd, int64_t least, int64_t *out)
{
    size_t count;
    const int64_t *v = inv_attr_ints(n, name, &count);
    for (int i = 0; i < 3; i++) out[i] = 1;
    if (count == 0) return NULL;
    if (count != (size_t)sd) return "strides and dilations need one entry per spatial axis";
    for (int i = 0; i < sd; i++) {
        if (v[i] < least || v[i] > INT32_MAX) return "strides and dilations must be positive";
        out[3 - sd + i] = v[i];
    }
    return NULL;
}

static const char *read_pads(const inv_node *n, inv_window *w)
{
    size_t count;
    const int64_t *v = inv_attr_ints(n, "pads", &count);
    if (count == 0) return NULL;
    if (count != 2 * (size_t)w->sd) return "pads needs two entries per spatial axis";
    for (int i = 0; i < w->sd; i++) {
        int at = 3 - w->sd + i;
        w->pad[at] = v[i];
        w->pad_end[at] = v[w->sd + i];
        if (v[i] < 0 || v[w->sd + i] < 0 || v[i] > INT32_MAX || v[w->sd + i] > INT32_MAX)
            return "negative pads are not supported";
    }
    return NULL;
}

/* SAME: as many outputs as input / stride, rounded up; the odd pad at the end (upper) or the beginning (lower). */
static void same_pads(inv_window *w, int i, bool lower)
{
    int64_t out = (w->in[i] + w->stride[i] - 1) / w->stride[i], reach = (w->k[i] - 1) * w->dil[i] + 1;
    int64_t total = (out - 1) * w->stride[i] + reach - w->in[i];
    if (total < 0) total = 0;
    w->pad[i] = lower ? total - total / 2 : total / 2;
    w->pad_end[i] = total - w->pad[i];
    w->out[i] = out;
}

static const char *extent(inv_window *w, int i, bool ceil_mode)
{
    int64_t reach = (w->k[i] - 1) * w->dil[i] + 1, span = w->in[i] + w->pad[i] + w->pad_end[i] - reach;
    if (span < 0) return "the kernel is larger than the padded input";
    w->out[i] = span / w->stride[i] + 1;
    if (ceil_mode) w->out[i] = (span + w->stride[i] - 1) / w->stride[i] + 1;
    if (ceil_mode && w->out[i] > 1 && (w->out[i] - 1) * w->stride[i] >= w->in[i] + w->pad[i])
        w->out[i]--; /* only windows that begin inside the input or its leading pad */
    return NULL;
}

const char *inv_window_of(const inv_node *n, int sd, const int64_t *in, const int64_t *k, bool ceil_mode, inv_window *w)
{
    memset(w, 0, sizeof *w);
    if (sd < 1 || sd > 3) return "only 1, 2 or 3 spatial axes are supported";
    w->sd = sd;
    const char *why = read_ints(n, "strides", sd, 1, w->stride);
    if (why == NULL) why = read_ints(n, "dilations", sd, 1, w->dil);
    const char *pad = inv_attr_string(n, "auto_pad", "NOTSET");
    bool notset = strcmp(pad, "NOTSET") == 0 || *pad == 0, valid = strcmp(pad, "VALID") == 0;
    bool upper = strcmp(pad, "SAME_UPPER") == 0, lower = strcmp(pad, "SAME_LOWER") == 0;
    if (!notset && !valid && !upper && !lower) return "auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER";
    if (why == NULL && notset) why = read_pads(n, w);
    w->invol = w->outvol = w->kvol = 1;
    for (int i = 0; i < 3 && why == NULL; i++) {
        int at = i - (3 - sd);
        w->in[i] = at < 0 ? 1 : in[at];
        w->k[i] = at < 0 ? 1 : k[at];
        if (w->k[i] < 1 || w->k[i] > INT32_MAX) return "the kernel's extents must be positive";
        if (upper || lower) same_pads(w, i, lower);
        else if ((why = extent(w, i, ceil_mode)) != NULL) w->tight = i + 1;
        w->invol *= w->in[i];
        w->outvol *= w->out[i];
        w->kvol *= w->k[i];
    }
    return why;
}

void inv_window_note(const inv_graph *g, const inv_window *w)
{
    const int i = w->tight - 1;
    if (w->tight) inv_note_misfit(g, 2 + i, w->in[i] + w->pad[i] + w->pad_end[i], (w->k[i] - 1) * w->dil[i] + 1);
}

void inv_window_attrs_of(const inv_window *w, inv_window_attrs *a)
{
    size_t sd = (size_t)w->sd;
    for (int i = 0; i < w->sd; i++) {
        int at = 3 - w->sd + i;
        a->strides[i] = w->stride[at];
        a->dilations[i] = w->dil[at];
        a->kernel[i] = w->k[at];
        a->pads[i] = w->pad[at];
        a->pads[w->sd + i] = w->pad_end[at];
    }
    a->attr[0] = inv_attr_of_ints("strides", sd, a->strides);
    a->attr[1] = inv_attr_of_ints("pads", 2 * sd, a->pads);
    a->attr[2] = inv_attr_of_ints("dilations", sd, a->dilations);
    a->attr[3] = inv_attr_of_ints("kernel_shape", sd, a->kernel);
}
