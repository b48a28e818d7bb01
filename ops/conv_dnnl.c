/* SPDX-License-Identifier: Apache-2.0
 * Convolution of channels-last tensors by oneDNN, versions 2 and 3, in float32. x, y and their gradients are used as
 * they are; the filter is brought into the library's own blocked order and back within the workspace. A primitive is
 * made at the first call for its shapes and kept, so a step allocates nothing. Sums over images are split among
 * threads by the library: bits are the same for the same number of threads. */
#include "ops/conv.h"

#ifdef INV_HAVE_DNNL
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ops/parallel.h"

/* --- what differs between the versions: descriptors are structs in 2, objects in 3 --- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout_desc;
typedef const_dnnl_memory_desc_t layout_ref;
#define REF(d) (d)
#define DROP(d) (void)dnnl_memory_desc_destroy(d)
static dnnl_status_t describe(layout_desc *d, int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(d, rank, dims, dnnl_f32, tag);
}
#else
typedef dnnl_memory_desc_t layout_desc;
typedef const dnnl_memory_desc_t *layout_ref;
#define REF(d) (&(d))
#define DROP(d) (void)(d)
static dnnl_status_t describe(layout_desc *d, int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(d, rank, dims, dnnl_f32, tag);
}
#endif

typedef struct shapes {
    layout_desc x, f, b, y, plain; /* plain: the filter as the model has it; b: of the bias, or of no dimension */
    dnnl_dims_t stride, dilate, pad, pad_end;
    bool bias;
} shapes;

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t forward_of(const shapes *s, dnnl_engine_t e, const_dnnl_primitive_attr_t a,
                                dnnl_primitive_desc_t *out)
{
    return dnnl_convolution_forward_primitive_desc_create(out, e, dnnl_forward_training, dnnl_convolution_direct, s->x,
                                                          s->f, s->bias ? s->b : NULL, s->y, s->stride, s->dilate,
                                                          s->pad, s->pad_end, a);
}

static dnnl_status_t backward_of(const shapes *s, inv_conv_part part, dnnl_engine_t e, const_dnnl_primitive_attr_t a,
                                 const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    if (part == INV_CONV_GRAD_X)
        return dnnl_convolution_backward_data_primitive_desc_create(out, e, dnnl_convolution_direct, s->x, s->f, s->y,
                                                                    s->stride, s->dilate, s->pad, s->pad_end, hint, a);
    return dnnl_convolution_backward_weights_primitive_desc_create(out, e, dnnl_convolution_direct, s->x, s->f, NULL,
                                                                   s->y, s->stride, s->dilate, s->pad, s->pad_end,
                                                                   hint, a);
}

static dnnl_status_t reorder_of(layout_ref from, layout_ref to, dnnl_engine_t e, const_dnnl_primitive_attr_t a,
                                dnnl_primitive_desc_t *out)
{
    return dnnl_reorder_primitive_desc_create(out, from, e, to, e, a);
}
#else
static dnnl_status_t forward_of(const shapes *s, dnnl_engine_t e, const_dnnl_primitive_attr_t a,
                                dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t r = dnnl_dilated_convolution_forward_desc_init(
        &d, dnnl_forward_training, dnnl_convolution_direct, &s->x, &s->f, s->bias ? &s->b : NULL, &s->y, s->stride,
        s->dilate, s->pad, s->pad_end);
    return r == dnnl_success ? dnnl_primitive_desc_create(out, &d, a, e, NULL) : r;
}

static dnnl_status_t backward_of(const shapes *s, inv_conv_part part, dnnl_engine_t e, const_dnnl_primitive_attr_t a,
                                 const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
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

static dnnl_status_t reorder_of(layout_ref from, layout_ref to, dnnl_engine_t e, const_dnnl_primitive_attr_t a,
                                dnnl_primitive_desc_t *out)
{
    return dnnl_reorder_primitive_desc_create(out, from, e, to, e, a);
}
#endif

/* --- primitives, kept by shape --- */

typedef struct key {
    inv_conv c;
    int part, bias, threads;
} key;

typedef struct entry {
    struct entry *next;
    key k;
    bool served;
    dnnl_primitive_t conv, turn; /* turn: the filter into or out of its own order; NULL: it is in that already */
    dnnl_memory_t x, f, b, y, plain, conv_scratch, turn_scratch;
    size_t f_nbytes, conv_nbytes, turn_nbytes; /* rounded up */
    pthread_mutex_t busy; /* the memory objects are given their bytes by each call */
} entry;

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static entry *table;
static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void entry_free(entry *e)
{
    dnnl_memory_t m[] = {e->x, e->f, e->b, e->y, e->plain, e->conv_scratch, e->turn_scratch};
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        if (m[i]) (void)dnnl_memory_destroy(m[i]);
    if (e->conv) (void)dnnl_primitive_destroy(e->conv);
    if (e->turn) (void)dnnl_primitive_destroy(e->turn);
    (void)pthread_mutex_destroy(&e->busy);
    free(e);
}

__attribute__((destructor)) static void table_free(void)
{
    while (table) {
        entry *e = table;
        table = e->next;
        entry_free(e);
    }
    if (stream) (void)dnnl_stream_destroy(stream);
    if (engine) (void)dnnl_engine_destroy(engine);
}

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
    dnnl_status_t r = describe(&s->x, sd + 2, x, last[sd - 1]);
    if (r == dnnl_success) r = describe(&s->y, sd + 2, y, last[sd - 1]);
    if (r == dnnl_success) r = describe(&s->f, sd + 2 + grouped, *ff, dnnl_format_tag_any);
    if (r == dnnl_success) r = describe(&s->plain, sd + 2 + grouped, *ff, filter[grouped][sd - 1]);
    if (r == dnnl_success) r = describe(&s->b, 1, b, dnnl_a);
    return r;
}

static dnnl_status_t memory_of(layout_ref d, dnnl_memory_t *out)
{
    return dnnl_memory_create(out, d, engine, DNNL_MEMORY_NONE);
}

static size_t nbytes_of(layout_ref d) { return inv__round64(dnnl_memory_desc_get_size(d)); }

/* The library has plain loops for what it has no code for; those here are no worse. */
static bool is_compiled(const_dnnl_primitive_desc_t d)
{
    const char *name = "";
    return dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
           strncmp(name, "ref", 3) != 0 && strstr(name, "gemm") == NULL;
}

static dnnl_status_t finish_entry(entry *e, const shapes *s, dnnl_primitive_desc_t conv, const_dnnl_primitive_attr_t a)
{
    const bool grad_w = e->k.part == INV_CONV_GRAD_W;
    layout_ref f = dnnl_primitive_desc_query_md(conv, grad_w ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    layout_ref scratch = dnnl_primitive_desc_query_md(conv, dnnl_query_scratchpad_md, 0);
    dnnl_primitive_desc_t turn = NULL;
    dnnl_status_t r = dnnl_primitive_create(&e->conv, conv);
    if (r == dnnl_success) r = memory_of(REF(s->x), &e->x);
    if (r == dnnl_success) r = memory_of(REF(s->y), &e->y);
    if (r == dnnl_success) r = memory_of(REF(s->b), &e->b);
    if (r == dnnl_success) r = memory_of(REF(s->plain), &e->plain);
    if (r == dnnl_success) r = memory_of(f, &e->f);
    if (r == dnnl_success) r = memory_of(scratch, &e->conv_scratch);
    if (r != dnnl_success) return r;
    e->conv_nbytes = nbytes_of(scratch);
    if (dnnl_memory_desc_equal(f, REF(s->plain))) return dnnl_success;
    r = grad_w ? reorder_of(f, REF(s->plain), engine, a, &turn) : reorder_of(REF(s->plain), f, engine, a, &turn);
    if (r != dnnl_success) return r;
    r = dnnl_primitive_create(&e->turn, turn);
    scratch = dnnl_primitive_desc_query_md(turn, dnnl_query_scratchpad_md, 0);
    if (r == dnnl_success) r = memory_of(scratch, &e->turn_scratch);
    e->turn_nbytes = nbytes_of(scratch);
    e->f_nbytes = nbytes_of(f);
    (void)dnnl_primitive_desc_destroy(turn);
    return r;
}

static dnnl_status_t fill_entry(entry *e)
{
    shapes s;
    memset(&s, 0, sizeof s);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t forward = NULL, backward = NULL, conv;
    dnnl_status_t r = engine ? dnnl_success : dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (r == dnnl_success && !stream) r = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    if (r == dnnl_success) r = dnnl_primitive_attr_create(&attr);
    if (r == dnnl_success) r = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (r == dnnl_success) r = make_shapes(&e->k.c, e->k.bias, &s);
    if (r == dnnl_success) r = forward_of(&s, engine, attr, &forward);
    if (r == dnnl_success && e->k.part != INV_CONV_FORWARD)
        r = backward_of(&s, (inv_conv_part)e->k.part, engine, attr, forward, &backward);
    conv = e->k.part == INV_CONV_FORWARD ? forward : backward;
    e->served = r == dnnl_success && is_compiled(conv);
    if (e->served) r = finish_entry(e, &s, conv, attr);
    if (r == dnnl_unimplemented || r == dnnl_invalid_arguments) r = dnnl_success; /* not served, that is all */
    if (forward) (void)dnnl_primitive_desc_destroy(forward);
    if (backward) (void)dnnl_primitive_desc_destroy(backward);
    if (attr) (void)dnnl_primitive_attr_destroy(attr);
    DROP(s.x);
    DROP(s.f);
    DROP(s.b);
    DROP(s.y);
    DROP(s.plain);
    return r;
}

/* NULL: no memory for it. */
static entry *entry_of(const inv_conv *c, inv_conv_part part, bool bias)
{
    key k;
    memset(&k, 0, sizeof k);
    memcpy(&k.c, c, sizeof *c);
    k.part = part;
    k.bias = bias;
    k.threads = inv__threads();
    (void)pthread_mutex_lock(&table_lock);
    entry *e = table;
    while (e && memcmp(&e->k, &k, sizeof k) != 0) e = e->next;
    if (!e && (e = calloc(1, sizeof *e)) != NULL) {
        e->k = k;
        (void)pthread_mutex_init(&e->busy, NULL);
        if (fill_entry(e) == dnnl_success) {
            e->next = table;
            table = e;
        } else {
            entry_free(e);
            e = NULL;
        }
    }
    (void)pthread_mutex_unlock(&table_lock);
    return e;
}

bool inv__dnnl_serves(const inv_conv *c, inv_conv_part part, inv_dtype t)
{
    const bool empty = c->batch == 0 || c->w.outvol == 0 || c->w.invol == 0;
    const entry *e = t == INV_F32 && !empty ? entry_of(c, part, false) : NULL;
    return e && e->served;
}

size_t inv__dnnl_workspace(const inv_conv *c, inv_conv_part part, bool bias)
{
    const entry *e = entry_of(c, part, bias);
    return e && e->served ? e->f_nbytes + e->conv_nbytes + e->turn_nbytes : 0;
}

static dnnl_status_t turn(const entry *e, dnnl_memory_t from, dnnl_memory_t to)
{
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, e->turn_scratch}};
    return dnnl_primitive_execute(e->turn, stream, 3, args);
}

static dnnl_status_t execute(const entry *e)
{
    const inv_conv_part part = (inv_conv_part)e->k.part;
    const dnnl_memory_t f = e->turn ? e->f : e->plain;
    dnnl_exec_arg_t args[] = {
        {part == INV_CONV_GRAD_X ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, e->x},
        {part == INV_CONV_GRAD_W ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, f},
        {part == INV_CONV_FORWARD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, e->y},
        {DNNL_ARG_SCRATCHPAD, e->conv_scratch},
        {DNNL_ARG_BIAS, e->b}};
    dnnl_status_t r = dnnl_success;
    if (e->turn && part != INV_CONV_GRAD_W) r = turn(e, e->plain, e->f);
    if (r == dnnl_success) r = dnnl_primitive_execute(e->conv, stream, e->k.bias ? 5 : 4, args);
    if (r == dnnl_success && e->turn && part == INV_CONV_GRAD_W) r = turn(e, e->f, e->plain);
    if (r == dnnl_success) r = dnnl_stream_wait(stream);
    return r;
}

inv_status inv__dnnl_conv(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws)
{
    entry *e = entry_of(c, part, d->bias != NULL);
    if (!e) return INV_E_NOMEM;
    if (!e->served) return INV_E_UNSUPPORTED_OP;
    char *at = ws;
    (void)pthread_mutex_lock(&e->busy);
    dnnl_status_t r = dnnl_memory_set_data_handle(e->x, d->x);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->y, d->y);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->plain, d->f);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->b, d->bias);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->f, at);
    if (r == dnnl_success) r = dnnl_memory_set_data_handle(e->conv_scratch, at + e->f_nbytes);
    if (r == dnnl_success && e->turn)
        r = dnnl_memory_set_data_handle(e->turn_scratch, at + e->f_nbytes + e->conv_nbytes);
    if (r == dnnl_success) r = execute(e);
    (void)pthread_mutex_unlock(&e->busy);
    return r == dnnl_success ? INV_OK : r == dnnl_out_of_memory ? INV_E_NOMEM : INV_E_INTERNAL;
}
#else
bool inv__dnnl_serves(const inv_conv *c, inv_conv_part part, inv_dtype t)
{
    (void)c, (void)part, (void)t;
    return false;
}

size_t inv__dnnl_workspace(const inv_conv *c, inv_conv_part part, bool bias)
{
    (void)c, (void)part, (void)bias;
    return 0;
}

inv_status inv__dnnl_conv(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws)
{
    (void)c, (void)part, (void)d, (void)ws;
    return INV_E_UNSUPPORTED_OP;
}
#endif
