/* SPDX-License-Identifier: Apache-2.0
 * Convolution of channels-last tensors by oneDNN, in float32. x, y and their gradients are used as they are; the filter
 * is brought into the library's own blocked order and back within the workspace. Sums over images are split among
 * threads by the library: bits are the same for the same number of threads. */
#include "ops/conv/conv.h"

#ifdef INV_HAVE_DNNL
#include <string.h>

#include "ops/base/parallel.h"
#include "ops/onednn/dnnl_api.h"

typedef struct shapes {
    inv_dnnl_desc x, f, b, y, plain; /* plain: the filter as the model has it; b: of the bias, or of no dimension */
    dnnl_dims_t stride, dilate, pad, pad_end;
    bool bias;
} shapes;

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t forward_of(const shapes *s, const_dnnl_primitive_attr_t a, dnnl_primitive_desc_t *out)
{
    return dnnl_convolution_forward_primitive_desc_create(out, inv_dnnl_engine(), dnnl_forward_training,
                                                          dnnl_convolution_direct, s->x, s->f, s->bias ? s->b : NULL,
                                                          s->y, s->stride, s->dilate, s->pad, s->pad_end, a);
}

static dnnl_status_t backward_of(const shapes *s, inv_conv_part part, const_dnnl_primitive_attr_t a,
                                 const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    const dnnl_engine_t e = inv_dnnl_engine();
    if (part == INV_CONV_GRAD_X)
        return dnnl_convolution_backward_data_primitive_desc_create(out, e, dnnl_convolution_direct, s->x, s->f, s->y,
                                                                    s->stride, s->dilate, s->pad, s->pad_end, hint, a);
    return dnnl_convolution_backward_weights_primitive_desc_create(
        out, e, dnnl_convolution_direct, s->x, s->f, NULL, s->y, s->stride, s->dilate, s->pad, s->pad_end, hint, a);
}
#else
static dnnl_status_t forward_of(const shapes *s, const_dnnl_primitive_attr_t a, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t r = dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct,
                                                                 &s->x, &s->f, s->bias ? &s->b : NULL, &s->y, s->stride,
                                                                 s->dilate, s->pad, s->pad_end);
    return r == dnnl_success ? dnnl_primitive_desc_create(out, &d, a, inv_dnnl_engine(), NULL) : r;
}

static dnnl_status_t backward_of(const shapes *s, inv_conv_part part, const_dnnl_primitive_attr_t a,
                                 const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    const dnnl_engine_t e = inv_dnnl_engine();
    dnnl_convolution_desc_t d;
    dnnl_status_t r;
    if (part == INV_CONV_GRAD_X)
        r = dnnl_dilated_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &s->x, &s->f, &s->y,
                                                             s->stride, s->dilate, s->pad, s->pad_end);
    else
        r = dnnl_dilated_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, &s->x, &s->f, NULL, &s->y,
                                                                s->stride, s->dilate, s->pad, s->pad_end);
    return r == dnnl_success ? dnnl_primitive_desc_create(out, &d, a, e, hint) : r;
}
#endif

/* --- primitives --- */

enum { CONV, TURN }; /* TURN: the filter into or out of its own order; NULL: it is in that already */
enum { X, F, B, Y, PLAIN, CONV_SCRATCH, TURN_SCRATCH };

typedef struct key {
    inv_conv c;
    int part, bias, threads;
} key;

static dnnl_status_t make_shapes(const inv_conv *c, bool bias, shapes *s)
{
    static const dnnl_format_tag_t last[] = {dnnl_nwc, dnnl_nhwc, dnnl_ndhwc};
    static const dnnl_format_tag_t filter[2][3] = {{dnnl_oiw, dnnl_oihw, dnnl_oidhw},
                                                   {dnnl_goiw, dnnl_goihw, dnnl_goidhw}};
    const inv_window *w = &c->w;
    const int sd = w->sd, grouped = c->group > 1;
    dnnl_dims_t x = {c->batch, c->group * c->cg}, y = {c->batch, c->group * c->mg}, b = {c->group * c->mg};
    dnnl_dims_t f = {c->group, c->mg, c->cg}, *ff = &f;
    if (!grouped) {
        f[0] = c->mg;
        f[1] = c->cg;
    }
    for (int i = 0; i < sd; i++) {
        const int at = 3 - sd + i;
        x[2 + i] = w->in[at];
        y[2 + i] = w->out[at];
        f[2 + grouped + i] = w->k[at];
        s->stride[i] = w->stride[at];
        s->dilate[i] = w->dil[at] - 1;
        s->pad[i] = w->pad[at];
        s->pad_end[i] = (w->out[at] - 1) * w->stride[at] + (w->k[at] - 1) * w->dil[at] + 1 - w->in[at] - w->pad[at];
    }
    s->bias = bias;
    dnnl_status_t r = inv_dnnl_describe(&s->x, sd + 2, x, dnnl_f32, last[sd - 1]);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->y, sd + 2, y, dnnl_f32, last[sd - 1]);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->f, sd + 2 + grouped, *ff, dnnl_f32, dnnl_format_tag_any);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->plain, sd + 2 + grouped, *ff, dnnl_f32, filter[grouped][sd - 1]);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->b, 1, b, dnnl_f32, dnnl_a);
    return r;
}

/* The library has plain loops for what it has no code for; those here are no worse. */
static bool is_compiled(const_dnnl_primitive_desc_t d)
{
    const char *name = "";
    return inv_dnnl_name(d, &name) && strncmp(name, "ref", 3) != 0 && strstr(name, "gemm") == NULL;
}

/* The filter's gradient of a strided convolution by single elements: the library gathers what it reads in scratch
 * memory that it makes too small for fewer channels than a vector holds, and writes beyond it (its issue 6035). */
static bool overflows(const key *k)
{
    const inv_window *w = &k->c.w;
    return k->part == INV_CONV_GRAD_W && w->kvol == 1 && k->c.cg < 16 &&
           (w->stride[0] > 1 || w->stride[1] > 1 || w->stride[2] > 1);
}

static dnnl_status_t conv_dnnl_finish(inv_dnnl_entry *e, const shapes *s, bool grad_w, const_dnnl_primitive_desc_t conv,
                                      const_dnnl_primitive_attr_t a)
{
    const dnnl_engine_t engine = inv_dnnl_engine();
    inv_dnnl_ref f = dnnl_primitive_desc_query_md(conv, grad_w ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    inv_dnnl_ref plain = INV_DNNL_REF(s->plain);
    const bool turned = !dnnl_memory_desc_equal(f, plain);
    dnnl_primitive_desc_t turn = NULL;
    dnnl_status_t r = dnnl_primitive_create(&e->run[CONV], conv);
    if (r == dnnl_success) r = inv_dnnl_memory(e, X, INV_DNNL_REF(s->x), false);
    if (r == dnnl_success) r = inv_dnnl_memory(e, Y, INV_DNNL_REF(s->y), false);
    if (r == dnnl_success) r = inv_dnnl_memory(e, B, INV_DNNL_REF(s->b), false);
    if (r == dnnl_success) r = inv_dnnl_memory(e, PLAIN, plain, false);
    if (r == dnnl_success)
        r = inv_dnnl_memory(e, CONV_SCRATCH, dnnl_primitive_desc_query_md(conv, dnnl_query_scratchpad_md, 0), true);
    if (r != dnnl_success || !turned) return r;
    r = inv_dnnl_memory(e, F, f, true);
    if (r == dnnl_success)
        r = dnnl_reorder_primitive_desc_create(&turn, grad_w ? f : plain, engine, grad_w ? plain : f, engine, a);
    if (r != dnnl_success) return r;
    r = dnnl_primitive_create(&e->run[TURN], turn);
    if (r == dnnl_success)
        r = inv_dnnl_memory(e, TURN_SCRATCH, dnnl_primitive_desc_query_md(turn, dnnl_query_scratchpad_md, 0), true);
    (void)dnnl_primitive_desc_destroy(turn);
    return r;
}

static dnnl_status_t conv_dnnl_fill(inv_dnnl_entry *e, const void *of, dnnl_primitive_attr_t a)
{
    const key *k = of;
    const inv_conv_part part = (inv_conv_part)k->part;
    shapes s;
    memset(&s, 0, sizeof s);
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    dnnl_status_t r = make_shapes(&k->c, k->bias, &s);
    if (r == dnnl_success) r = forward_of(&s, a, &forward);
    if (r == dnnl_success && part != INV_CONV_FORWARD) r = backward_of(&s, part, a, forward, &backward);
    const dnnl_primitive_desc_t conv = part == INV_CONV_FORWARD ? forward : backward;
    e->served = r == dnnl_success && is_compiled(conv) && !overflows(k);
    if (e->served) r = conv_dnnl_finish(e, &s, part == INV_CONV_GRAD_W, conv, a);
    if (forward) (void)dnnl_primitive_desc_destroy(forward);
    if (backward) (void)dnnl_primitive_desc_destroy(backward);
    INV_DNNL_DROP(s.x);
    INV_DNNL_DROP(s.f);
    INV_DNNL_DROP(s.b);
    INV_DNNL_DROP(s.y);
    INV_DNNL_DROP(s.plain);
    return r;
}

static inv_dnnl_entry *entry_of(const inv_conv *c, inv_conv_part part, bool bias)
{
    key k;
    memset(&k, 0, sizeof k);
    memcpy(&k.c, c, sizeof *c);
    k.part = (int)part;
    k.bias = bias;
    k.threads = inv_threads();
    return inv_dnnl_entry_of(&k, sizeof k, conv_dnnl_fill);
}

bool inv_dnnl_serves(const inv_conv *c, inv_conv_part part, inv_dtype t)
{
    const bool empty = c->batch == 0 || c->w.outvol == 0 || c->w.invol == 0;
    const inv_dnnl_entry *e = t == INV_F32 && !empty ? entry_of(c, part, false) : NULL;
    return e && e->served;
}

size_t inv_dnnl_workspace(const inv_conv *c, inv_conv_part part, bool bias)
{
    const inv_dnnl_entry *e = entry_of(c, part, bias);
    return e && e->served ? inv_dnnl_place(e) : 0;
}

static dnnl_status_t turn(const inv_dnnl_entry *e, dnnl_memory_t from, dnnl_memory_t to)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, e->mem[TURN_SCRATCH]}};
    return dnnl_primitive_execute(e->run[TURN], inv_dnnl_stream(), 3, args);
}

static dnnl_status_t execute(const inv_dnnl_entry *e, inv_conv_part part, bool bias)
{
    const bool turned = e->run[TURN] != NULL;
    const dnnl_memory_t f = e->mem[turned ? F : PLAIN];
    const dnnl_exec_arg_t args[] = {{part == INV_CONV_GRAD_X ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, e->mem[X]},
                                    {part == INV_CONV_GRAD_W ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, f},
                                    {part == INV_CONV_FORWARD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, e->mem[Y]},
                                    {DNNL_ARG_SCRATCHPAD, e->mem[CONV_SCRATCH]},
                                    {DNNL_ARG_BIAS, e->mem[B]}};
    dnnl_status_t r = dnnl_success;
    if (turned && part != INV_CONV_GRAD_W) r = turn(e, e->mem[PLAIN], f);
    if (r == dnnl_success) r = dnnl_primitive_execute(e->run[CONV], inv_dnnl_stream(), bias ? 5 : 4, args);
    if (r == dnnl_success && turned && part == INV_CONV_GRAD_W) r = turn(e, f, e->mem[PLAIN]);
    if (r == dnnl_success) r = dnnl_stream_wait(inv_dnnl_stream());
    return r;
}

inv_status inv_dnnl_conv(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws)
{
    inv_dnnl_entry *e = entry_of(c, part, d->bias != NULL);
    if (!e) return INV_E_NOMEM;
    if (!e->served) return INV_E_UNSUPPORTED_OP;
    (void)pthread_mutex_lock(&e->busy);
    dnnl_status_t r = inv_dnnl_take(e, ws);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->mem[X], d->x);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->mem[Y], d->y);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->mem[PLAIN], d->f);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->mem[B], d->bias);
    if (r == dnnl_success) r = execute(e, part, d->bias != NULL);
    (void)pthread_mutex_unlock(&e->busy);
    return r == dnnl_success ? INV_OK : r == dnnl_out_of_memory ? INV_E_NOMEM : INV_E_INTERNAL;
}
#else
bool inv_dnnl_serves(const inv_conv *c, inv_conv_part part, inv_dtype t)
{
    (void)c, (void)part, (void)t;
    return false;
}

size_t inv_dnnl_workspace(const inv_conv *c, inv_conv_part part, bool bias)
{
    (void)c, (void)part, (void)bias;
    return 0;
}

inv_status inv_dnnl_conv(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws)
{
    (void)c, (void)part, (void)d, (void)ws;
    return INV_E_UNSUPPORTED_OP;
}
#endif
