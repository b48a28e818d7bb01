/* SPDX-License-Identifier: Apache-2.0
 * oneDNN, versions 2 and 3: primitives kept by shape, and the operators besides convolution that it serves. Which those
 * are is a matter of measurement (bench/results/kernels.md) and of what the library promises: its largest element of a
 * window and its softmax lose NaN, so these are kernels of our own, and so are statistics of batches, which it has no
 * primitive for. Gradients of scale and bias are sums over rows that it splits among threads: bits are the same for the
 * same number of threads. */
#include "ops/onednn/dnnl.h"

#include <string.h>

#include "ops/base/parallel.h"

inv_dnnl_op inv_dnnl_op_of(inv_dnnl_kind kind, int64_t rows, int64_t lanes)
{
    inv_dnnl_op o;
    memset(&o, 0, sizeof o);
    o.kind = (int)kind;
    o.threads = inv_all_threads();
    o.rows = rows;
    o.lanes = lanes;
    return o;
}

#ifdef INV_HAVE_DNNL
#include <stdlib.h>

#include "ops/onednn/dnnl_api.h"

/* --- primitives, kept --- */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static inv_dnnl_entry *table;
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_primitive_attr_t attributes;

dnnl_engine_t inv_dnnl_engine(void) { return engine; }
dnnl_stream_t inv_dnnl_stream(void) { return stream; }

static void entry_free(inv_dnnl_entry *e)
{
    for (int i = 0; i < INV_DNNL_MEMORIES; i++)
        if (e->mem[i]) (void)dnnl_memory_destroy(e->mem[i]);
    for (int i = 0; i < 2; i++)
        if (e->run[i]) (void)dnnl_primitive_destroy(e->run[i]);
    (void)pthread_mutex_destroy(&e->busy);
    free(e);
}

__attribute__((destructor)) static void table_free(void)
{
    while (table) {
        inv_dnnl_entry *e = table;
        table = e->next;
        entry_free(e);
    }
    if (attributes) (void)dnnl_primitive_attr_destroy(attributes);
    if (stream) (void)dnnl_stream_destroy(stream);
    if (engine) (void)dnnl_engine_destroy(engine);
}

static dnnl_status_t begin(void)
{
    dnnl_status_t r = engine ? dnnl_success : dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (r == dnnl_success && !stream) r = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    if (r != dnnl_success || attributes) return r;
    r = dnnl_primitive_attr_create(&attributes);
    return r == dnnl_success ? dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user) : r;
}

inv_dnnl_entry *inv_dnnl_entry_of(const void *key, size_t nbytes,
                                  dnnl_status_t (*dnnl_fill)(inv_dnnl_entry *, const void *, dnnl_primitive_attr_t))
{
    (void)pthread_mutex_lock(&table_lock);
    inv_dnnl_entry *e = table;
    while (e && (e->fill != dnnl_fill || e->key_nbytes != nbytes || memcmp(e->key, key, nbytes) != 0)) e = e->next;
    if (!e && nbytes <= INV_DNNL_KEY && (e = calloc(1, sizeof *e)) != NULL) {
        e->fill = dnnl_fill;
        e->key_nbytes = nbytes;
        memcpy(e->key, key, nbytes);
        (void)pthread_mutex_init(&e->busy, NULL);
        dnnl_status_t r = begin();
        if (r == dnnl_success) r = dnnl_fill(e, key, attributes);
        if (r == dnnl_unimplemented || r == dnnl_invalid_arguments) r = dnnl_success; /* not served, that is all */
        if (r == dnnl_success) {
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

dnnl_status_t inv_dnnl_describe(inv_dnnl_desc *d, int rank, const dnnl_dims_t dims, dnnl_data_type_t t,
                                dnnl_format_tag_t tag)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(d, rank, dims, t, tag);
#else
    return dnnl_memory_desc_init_by_tag(d, rank, dims, t, tag);
#endif
}

dnnl_status_t inv_dnnl_memory(inv_dnnl_entry *e, int slot, inv_dnnl_ref d, bool in_workspace)
{
    if (in_workspace) e->nbytes[slot] = inv_round64(dnnl_memory_desc_get_size(d));
    return dnnl_memory_create(&e->mem[slot], d, engine, DNNL_MEMORY_NONE);
}

size_t inv_dnnl_place(const inv_dnnl_entry *e)
{
    size_t n = 0;
    for (int i = 0; i < INV_DNNL_MEMORIES; i++) n += e->nbytes[i];
    return n;
}

dnnl_status_t inv_dnnl_take(inv_dnnl_entry *e, void *ws)
{
    dnnl_status_t r = dnnl_success;
    char *at = ws;
    for (int i = 0; i < INV_DNNL_MEMORIES && r == dnnl_success; i++) {
        if (e->nbytes[i]) r = dnnl_memory_set_data_handle(e->mem[i], at);
        at += e->nbytes[i];
    }
    return r;
}

bool inv_dnnl_name(const_dnnl_primitive_desc_t d, const char **name)
{
    return dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, name) == dnnl_success;
}

/* --- what differs between the versions --- */

typedef struct shapes {
    inv_dnnl_desc x, y, row, column; /* y: pooled; row: one element per lane, column: one per row */
    dnnl_dims_t stride, kernel, dilate, pad, pad_end;
} shapes;

static dnnl_alg_kind_t algorithm(const inv_dnnl_op *o)
{
    if (o->kind == INV_DNNL_MAX_POOL_GRAD) return dnnl_pooling_max;
    return o->padded ? dnnl_pooling_avg_include_padding : dnnl_pooling_avg_exclude_padding;
}

static unsigned norm_flags(const inv_dnnl_op *o) { return dnnl_use_scale | (o->bias ? dnnl_use_shift : 0u); }

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t pool(const inv_dnnl_op *o, const shapes *s, const_dnnl_primitive_desc_t hint,
                          const_dnnl_primitive_attr_t a, dnnl_primitive_desc_t *out)
{
    if (hint)
        return dnnl_pooling_backward_primitive_desc_create(out, engine, algorithm(o), s->x, s->y, s->stride, s->kernel,
                                                           s->dilate, s->pad, s->pad_end, hint, a);
    return dnnl_pooling_forward_primitive_desc_create(out, engine, dnnl_forward_training, algorithm(o), s->x, s->y,
                                                      s->stride, s->kernel, s->dilate, s->pad, s->pad_end, a);
}

static dnnl_status_t norm(const inv_dnnl_op *o, const shapes *s, const_dnnl_primitive_desc_t hint,
                          const_dnnl_primitive_attr_t a, dnnl_primitive_desc_t *out)
{
    const bool grad = o->kind == INV_DNNL_LAYER_NORM_GRAD;
    if (hint)
        return dnnl_layer_normalization_backward_primitive_desc_create(out, engine, dnnl_backward, s->x, s->x, s->x,
                                                                       s->column, o->eps, norm_flags(o), hint, a);
    return dnnl_layer_normalization_forward_primitive_desc_create(out, engine,
                                                                  grad ? dnnl_forward_training : dnnl_forward_inference,
                                                                  s->x, s->x, s->column, o->eps, norm_flags(o), a);
}
#else
static dnnl_status_t pool(const inv_dnnl_op *o, const shapes *s, const_dnnl_primitive_desc_t hint,
                          const_dnnl_primitive_attr_t a, dnnl_primitive_desc_t *out)
{
    dnnl_pooling_v2_desc_t d;
    const dnnl_status_t r =
        hint ? dnnl_pooling_v2_backward_desc_init(&d, algorithm(o), &s->x, &s->y, s->stride, s->kernel, s->dilate,
                                                  s->pad, s->pad_end)
             : dnnl_pooling_v2_forward_desc_init(&d, dnnl_forward_training, algorithm(o), &s->x, &s->y, s->stride,
                                                 s->kernel, s->dilate, s->pad, s->pad_end);
    return r == dnnl_success ? dnnl_primitive_desc_create(out, &d, a, engine, hint) : r;
}

static dnnl_status_t norm(const inv_dnnl_op *o, const shapes *s, const_dnnl_primitive_desc_t hint,
                          const_dnnl_primitive_attr_t a, dnnl_primitive_desc_t *out)
{
    const bool grad = o->kind == INV_DNNL_LAYER_NORM_GRAD;
    dnnl_layer_normalization_desc_t d;
    const dnnl_status_t r =
        hint ? dnnl_layer_normalization_backward_desc_init(&d, dnnl_backward, &s->x, &s->x, &s->column, o->eps,
                                                           norm_flags(o))
             : dnnl_layer_normalization_forward_desc_init(&d, grad ? dnnl_forward_training : dnnl_forward_inference,
                                                          &s->x, &s->column, o->eps, norm_flags(o));
    return r == dnnl_success ? dnnl_primitive_desc_create(out, &d, a, engine, hint) : r;
}
#endif

/* --- operators --- */

/* What an operand is to the library, and which of the shapes it has. */
typedef struct operand {
    int arg;
    enum { WHOLE, POOLED, PER_LANE, PER_ROW, TAPS } shape;
} operand;

/* clang-format off */
static const struct kind {
    bool is_grad, is_pool;
    int n;
    operand operand[INV_DNNL_OPERANDS];
} kinds[] = {
    [INV_DNNL_MAX_POOL_GRAD] = {true, true, 3,
                                {{DNNL_ARG_DIFF_DST, POOLED}, {DNNL_ARG_WORKSPACE, TAPS}, {DNNL_ARG_DIFF_SRC, WHOLE}}},
    [INV_DNNL_AVERAGE_POOL] = {false, true, 2, {{DNNL_ARG_SRC, WHOLE}, {DNNL_ARG_DST, POOLED}}},
    [INV_DNNL_AVERAGE_POOL_GRAD] = {true, true, 2, {{DNNL_ARG_DIFF_DST, POOLED}, {DNNL_ARG_DIFF_SRC, WHOLE}}},
    [INV_DNNL_LAYER_NORM] = {false, false, 4,
                             {{DNNL_ARG_SRC, WHOLE}, {DNNL_ARG_SCALE, PER_LANE}, {DNNL_ARG_SHIFT, PER_LANE},
                              {DNNL_ARG_DST, WHOLE}}},
    [INV_DNNL_LAYER_NORM_GRAD] = {true, false, 8,
                                  {{DNNL_ARG_SRC, WHOLE}, {DNNL_ARG_DIFF_DST, WHOLE}, {DNNL_ARG_SCALE, PER_LANE},
                                   {DNNL_ARG_MEAN, PER_ROW}, {DNNL_ARG_VARIANCE, PER_ROW}, {DNNL_ARG_DIFF_SRC, WHOLE},
                                   {DNNL_ARG_DIFF_SCALE, PER_LANE}, {DNNL_ARG_DIFF_SHIFT, PER_LANE}}}};
/* clang-format on */

#define SCRATCH INV_DNNL_OPERANDS
#define MOST_AVERAGED 64
_Static_assert(sizeof(inv_dnnl_op) <= INV_DNNL_KEY, "an entry has room for its key");

static dnnl_status_t make_shapes(const inv_dnnl_op *o, shapes *s)
{
    static const dnnl_format_tag_t last[] = {dnnl_nwc, dnnl_nhwc, dnnl_ndhwc};
    const inv_window *w = &o->w;
    dnnl_dims_t x = {o->rows, o->lanes}, y = {o->rows, o->lanes};
    const bool is_pool = kinds[o->kind].is_pool;
    const int rank = 2 + (is_pool ? w->sd : 0);
    const dnnl_format_tag_t tag = is_pool ? last[w->sd - 1] : dnnl_ab;
    for (int i = 0; i < rank - 2; i++) {
        const int at = 3 - w->sd + i;
        x[2 + i] = w->in[at];
        y[2 + i] = w->out[at];
        s->kernel[i] = w->k[at];
        s->stride[i] = w->stride[at];
        s->pad[i] = w->pad[at];
        s->pad_end[i] = (w->out[at] - 1) * w->stride[at] + w->k[at] - w->in[at] - w->pad[at];
    }
    dnnl_status_t r = inv_dnnl_describe(&s->x, rank, x, dnnl_f32, tag);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->y, rank, y, dnnl_f32, tag);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->row, 1, (dnnl_dims_t){o->lanes}, dnnl_f32, dnnl_a);
    if (r == dnnl_success) r = inv_dnnl_describe(&s->column, 1, (dnnl_dims_t){o->rows}, dnnl_f32, dnnl_a);
    return r;
}

/* Windows as the library understands them: each has an element inside of the input, and what it counts as padded is
 * what we do. Sums of more elements than a few are not for float32. */
static bool windows_agree(const inv_dnnl_op *o)
{
    const inv_window *w = &o->w;
    if (o->kind != INV_DNNL_MAX_POOL_GRAD && w->kvol > MOST_AVERAGED) return false;
    for (int i = 3 - w->sd; i < 3; i++) {
        const int64_t at = (w->out[i] - 1) * w->stride[i] - w->pad[i];
        if (w->dil[i] != 1 || w->pad[i] >= w->k[i] || at >= w->in[i]) return false;
        if (o->padded && at + w->k[i] > w->in[i] + w->pad_end[i]) return false;
    }
    return true;
}

/* The library has plain loops for what it has no code for; those here are no worse. */
static bool is_compiled(const_dnnl_primitive_desc_t d)
{
    const char *name = "";
    return inv_dnnl_name(d, &name) &&
           (strncmp(name, "jit", 3) == 0 || strncmp(name, "simple_layer_normalization", 26) == 0);
}

static dnnl_status_t dnnl_finish(inv_dnnl_entry *e, const inv_dnnl_op *o, const shapes *s,
                                 const_dnnl_primitive_desc_t d)
{
    const struct kind *k = &kinds[o->kind];
    const inv_dnnl_ref of[] = {[WHOLE] = INV_DNNL_REF(s->x),
                               [POOLED] = INV_DNNL_REF(s->y),
                               [PER_LANE] = INV_DNNL_REF(s->row),
                               [PER_ROW] = INV_DNNL_REF(s->column),
                               [TAPS] = dnnl_primitive_desc_query_md(d, dnnl_query_workspace_md, 0)};
    dnnl_status_t r = dnnl_primitive_create(&e->run[0], d);
    for (int i = 0; i < k->n && r == dnnl_success; i++) r = inv_dnnl_memory(e, i, of[k->operand[i].shape], false);
    if (r == dnnl_success)
        r = inv_dnnl_memory(e, SCRATCH, dnnl_primitive_desc_query_md(d, dnnl_query_scratchpad_md, 0), true);
    e->served = r == dnnl_success;
    return r;
}

/* The bytes in which MaxPoolN notes its taps are the library's. */
static bool taps_agree(const inv_dnnl_op *o, const_dnnl_primitive_desc_t d)
{
    if (o->kind != INV_DNNL_MAX_POOL_GRAD) return true;
    inv_dnnl_desc bytes;
    static const dnnl_format_tag_t last[] = {dnnl_nwc, dnnl_nhwc, dnnl_ndhwc};
    dnnl_dims_t y = {o->rows, o->lanes};
    for (int i = 0; i < o->w.sd; i++) y[2 + i] = o->w.out[3 - o->w.sd + i];
    memset(&bytes, 0, sizeof bytes);
    if (inv_dnnl_describe(&bytes, 2 + o->w.sd, y, dnnl_u8, last[o->w.sd - 1]) != dnnl_success) return false;
    const bool same =
        dnnl_memory_desc_equal(dnnl_primitive_desc_query_md(d, dnnl_query_workspace_md, 0), INV_DNNL_REF(bytes));
    INV_DNNL_DROP(bytes);
    return same;
}

static dnnl_status_t dnnl_fill(inv_dnnl_entry *e, const void *key, dnnl_primitive_attr_t a)
{
    const inv_dnnl_op *o = key;
    const struct kind *k = &kinds[o->kind];
    dnnl_status_t (*const make)(const inv_dnnl_op *, const shapes *, const_dnnl_primitive_desc_t,
                                const_dnnl_primitive_attr_t, dnnl_primitive_desc_t *) = k->is_pool ? pool : norm;
    shapes s;
    memset(&s, 0, sizeof s);
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    if (o->rows == 0 || o->lanes == 0 || (k->is_pool && !windows_agree(o))) return dnnl_success;
    dnnl_status_t r = make_shapes(o, &s);
    if (r == dnnl_success) r = make(o, &s, NULL, a, &forward);
    if (r == dnnl_success && k->is_grad) r = make(o, &s, forward, a, &backward);
    const dnnl_primitive_desc_t d = k->is_grad ? backward : forward;
    if (r == dnnl_success && is_compiled(d) && taps_agree(o, d)) r = dnnl_finish(e, o, &s, d);
    if (forward) (void)dnnl_primitive_desc_destroy(forward);
    if (backward) (void)dnnl_primitive_desc_destroy(backward);
    INV_DNNL_DROP(s.x);
    INV_DNNL_DROP(s.y);
    INV_DNNL_DROP(s.row);
    INV_DNNL_DROP(s.column);
    return r;
}

bool inv_dnnl_has(const inv_dnnl_op *o)
{
    const inv_dnnl_entry *e = inv_dnnl_entry_of(o, sizeof *o, dnnl_fill);
    return e && e->served;
}

size_t inv_dnnl_op_workspace(const inv_dnnl_op *o)
{
    const inv_dnnl_entry *e = inv_dnnl_entry_of(o, sizeof *o, dnnl_fill);
    return e && e->served ? inv_dnnl_place(e) : 0;
}

inv_status inv_dnnl_run(const inv_dnnl_op *o, void *const *data, void *ws)
{
    inv_dnnl_entry *e = inv_dnnl_entry_of(o, sizeof *o, dnnl_fill);
    if (!e) return INV_E_NOMEM;
    if (!e->served) return INV_E_UNSUPPORTED_OP;
    const struct kind *k = &kinds[o->kind];
    dnnl_exec_arg_t args[INV_DNNL_OPERANDS + 2];
    int n = 0;
    (void)pthread_mutex_lock(&e->busy);
    dnnl_status_t r = inv_dnnl_take(e, ws);
    for (int i = 0; i < k->n && r == dnnl_success; i++) {
        if (!data[i]) continue;
        r = dnnl_memory_set_data_handle(e->mem[i], data[i]);
        args[n++] = (dnnl_exec_arg_t){k->operand[i].arg, e->mem[i]};
    }
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, e->mem[SCRATCH]};
    if (o->kind == INV_DNNL_LAYER_NORM_GRAD) /* version 2 asks for a bias that it does not read */
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SHIFT, e->mem[2]};
    if (r == dnnl_success) r = dnnl_primitive_execute(e->run[0], stream, n, args);
    if (r == dnnl_success) r = dnnl_stream_wait(stream);
    (void)pthread_mutex_unlock(&e->busy);
    return r == dnnl_success ? INV_OK : r == dnnl_out_of_memory ? INV_E_NOMEM : INV_E_INTERNAL;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
const char *inv_dnnl_version(void)
{
    return "oneDNN " TEXT(DNNL_VERSION_MAJOR) "." TEXT(DNNL_VERSION_MINOR) "." TEXT(DNNL_VERSION_PATCH);
}
#else
bool inv_dnnl_has(const inv_dnnl_op *o)
{
    (void)o;
    return false;
}

size_t inv_dnnl_op_workspace(const inv_dnnl_op *o)
{
    (void)o;
    return 0;
}

inv_status inv_dnnl_run(const inv_dnnl_op *o, void *const *data, void *ws)
{
    (void)o, (void)data, (void)ws;
    return INV_E_UNSUPPORTED_OP;
}

const char *inv_dnnl_version(void) { return "no oneDNN"; }
#endif
