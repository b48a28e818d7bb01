/* SPDX-License-Identifier: Apache-2.0
 * What is to be written: lists of pieces, and from these to files that appear together or not at all. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "importer/writer.h"

enum { CHUNK = 4096 };

/* --- pieces --- */

static inv_status push(inv_file_pieces *p, inv_file_piece x, uint64_t nbytes)
{
    if (!inv_vec_push(p->a, &p->list, x)) return INV_E_NOMEM;
    p->nbytes += nbytes;
    return INV_OK;
}

inv_status inv_put(inv_file_pieces *p, const void *data, size_t nbytes)
{
    if (!nbytes) return INV_OK;
    inv_file_piece *last = p->list.n ? &p->list.at[p->list.n - 1] : NULL;
    if (last && last->data && last->from == last->to && (const uint8_t *)last->data + last->n == data) {
        last->n += nbytes;
        p->nbytes += nbytes;
        return INV_OK;
    }
    return push(p, (inv_file_piece){.data = data, .n = nbytes}, nbytes);
}

inv_status inv_put_elements(inv_file_pieces *p, const inv_weight *x, inv_dtype to)
{
    uint64_t nbytes = (uint64_t)x->n * inv_dtype_size(to);
    if (!x->maker.make && x->dtype == to) return inv_put(p, x->data, (size_t)nbytes);
    inv_file_piece made = {.data = x->data, .n = x->dtype == to ? (size_t)nbytes : x->n, .maker = x->maker};
    if (x->dtype != to) {
        made.from = x->dtype;
        made.to = to;
    }
    return push(p, made, nbytes);
}

static size_t put_tag(uint8_t *h, uint32_t id, unsigned wire)
{
    return inv_wire_put_varint(h, (uint64_t)id << 3 | wire);
}

static inv_file_piece header(inv_file_pieces *p, uint32_t id, uint64_t length)
{
    uint8_t *h = inv_arena_alloc(p->a, 2 * INV_PB_VARINT_MAX);
    if (!h) return (inv_file_piece){0};
    size_t n = put_tag(h, id, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED);
    return (inv_file_piece){.data = h, .n = n + inv_wire_put_varint(h + n, length)};
}

inv_status inv_put_header(inv_file_pieces *p, uint32_t id, uint64_t length)
{
    inv_file_piece h = header(p, id, length);
    return h.data ? push(p, h, h.n) : INV_E_NOMEM;
}

inv_status inv_put_int(inv_file_pieces *p, uint32_t id, int64_t v)
{
    uint8_t *h = inv_arena_alloc(p->a, 2 * INV_PB_VARINT_MAX);
    if (!h) return INV_E_NOMEM;
    size_t n = put_tag(h, id, PROTOBUF_C_WIRE_TYPE_VARINT);
    return inv_put(p, h, n + inv_wire_put_varint(h + n, (uint64_t)v));
}

inv_status inv_put_float(inv_file_pieces *p, uint32_t id, float v)
{
    uint8_t *h = inv_arena_alloc(p->a, INV_PB_VARINT_MAX + sizeof v);
    if (!h) return INV_E_NOMEM;
    size_t n = put_tag(h, id, PROTOBUF_C_WIRE_TYPE_32BIT);
    memcpy(h + n, &v, sizeof v);
    return inv_put(p, h, n + sizeof v);
}

inv_status inv_put_text(inv_file_pieces *p, uint32_t id, const char *s)
{
    size_t n = strlen(s);
    INV_TRY(inv_put_header(p, id, n));
    return inv_put(p, s, n);
}

inv_status inv_put_pair(inv_file_pieces *p, uint32_t id, const char *key, const char *value)
{
    inv_mark m;
    INV_TRY(inv_put_open(p, &m));
    INV_TRY(inv_put_text(p, 1, key));
    INV_TRY(inv_put_text(p, 2, value));
    return inv_put_close(p, &m, id);
}

/* An empty piece keeps the header's place; nothing joins it. */
inv_status inv_put_open(inv_file_pieces *p, inv_mark *m)
{
    *m = (inv_mark){p->list.n, p->nbytes};
    return push(p, (inv_file_piece){0}, 0);
}

inv_status inv_put_close(inv_file_pieces *p, const inv_mark *m, uint32_t id)
{
    inv_file_piece h = header(p, id, p->nbytes - m->nbytes);
    if (!h.data) return INV_E_NOMEM;
    p->list.at[m->at] = h;
    p->nbytes += h.n;
    return INV_OK;
}

void inv_put_undo(inv_file_pieces *p, const inv_mark *m)
{
    p->list.n = m->at;
    p->nbytes = m->nbytes;
}

/* --- files --- */

/* A run of a file that the model is mapped from, or bytes that were made. The mapped pages are given back each time
 * that the file has grown by so much. */
static inv_status write_run(inv_out *o, const inv_impl *impl, const uint8_t *data, size_t n)
{
    enum { OFTEN = 8 << 20 };
    for (size_t i = 0; i < n; i += OFTEN) {
        const size_t before = o->total / OFTEN;
        INV_TRY(inv_out_write(o, data + i, n - i < OFTEN ? n - i : OFTEN));
        if (o->total / OFTEN != before) inv_files_forget(impl);
    }
    return INV_OK;
}

static inv_status write_piece(inv_out *o, const inv_impl *impl, const inv_file_piece *p)
{
    uint8_t buf[CHUNK * 16];
    const void *data = p->data;
    if (p->maker.make) INV_TRY(p->maker.make(p->maker.opaque, p->maker.i, &data));
    if (!data) return inv_out_skip(o, p->n);
    if (p->from == p->to) return write_run(o, impl, data, p->n);
    size_t from = inv_dtype_size(p->from), to = inv_dtype_size(p->to);
    for (size_t i = 0; i < p->n; i += CHUNK) {
        size_t k = p->n - i < CHUNK ? p->n - i : CHUNK;
        if (!inv_convert(buf, p->to, (const uint8_t *)data + i * from, p->from, k))
            return inv_fail(o->ctx, INV_E_INTERNAL, "no conversion from %s to %s", inv_dtype_name(p->from),
                            inv_dtype_name(p->to));
        INV_TRY(inv_out_write(o, buf, k * to));
    }
    return INV_OK;
}

static inv_status put_pieces(inv_out *o, const inv_impl *impl, const char *path, const inv_file_pieces *p)
{
    INV_TRY(inv_out_open(p->a->ctx, path, o));
    inv_files_forget(impl);
    for (size_t i = 0; i < p->list.n; i++) INV_TRY(write_piece(o, impl, &p->list.at[i]));
    return INV_OK;
}

static inv_status write_pieces(inv_out *o, const inv_impl *impl, const char *path, const inv_file_pieces *p)
{
    INV_TRY(put_pieces(o, impl, path, p));
    INV_TRY(inv_out_sync(o));
    if (o->total == p->nbytes) return INV_OK;
    return inv_fail(o->ctx, INV_E_INTERNAL, "'%s': wrong lengths", path);
}

/* Replacing a file that is mapped would be harmless (the rename leaves the mapping alone), but a user who names the
 * loaded file by accident loses the original; so it is refused. */
static inv_status refuse_loaded(const inv_writer *w, const char *path)
{
    struct stat st;
    const bool there = stat(path, &st) == 0;
    if (!there && errno == ENOENT) return INV_OK;
    INV_CHECK(there, w->l.ctx, INV_E_IO, "cannot write '%s': cannot find out whether the model is loaded from it: %s",
              path, strerror(errno));
    for (size_t i = 0; i <= w->impl->ext.n; i++) {
        const inv_map *m = i ? &w->impl->ext.at[i - 1] : &w->impl->file;
        if (m->dev == st.st_dev && m->ino == st.st_ino)
            return inv_fail(w->l.ctx, INV_E_IO, "'%s' is a file that the model is loaded from; choose another name",
                            path);
    }
    return INV_OK;
}

static inv_status same_folder(inv_writer *w, bool *same)
{
    struct stat a, b;
    const char *slash = strrchr(w->path, '/');
    size_t n = slash && slash != w->path ? (size_t)(slash - w->path) : 1;
    const char *dir = slash ? inv_arena_strndup(&w->l.scratch, w->path, n) : ".";
    if (!dir) return INV_E_NOMEM;
    *same = w->impl->dir >= 0 && fstat(w->impl->dir, &a) == 0 && stat(dir, &b) == 0 && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino;
    return INV_OK;
}

inv_status inv_writer_begin(inv_writer *w, inv_model *m, const char *path)
{
    *w = (inv_writer){.m = m, .impl = m->impl, .l = {.ctx = m->ctx, .model = m, .impl = m->impl}, .path = path};
    inv_arena_init(&w->l.scratch, m->ctx);
    inv_defects_init(&w->l.defects, m->ctx);
    w->inits.a = w->model.a = &w->l.scratch;
    INV_CHECK(path && *path, m->ctx, INV_E_ARG, "no path given to write the model to");
    w->weight = INV_ARENA_NEW(&w->l.scratch, inv_weight, m->graph->inits.n + 1);
    w->data = INV_ARENA_NEW(&w->l.scratch, inv_data_file, w->impl->ext.n + 1);
    if (!w->weight || !w->data) return INV_E_NOMEM;
    bool same;
    INV_TRY(inv_files_unchanged(m));
    INV_TRY(same_folder(w, &same));
    w->ndata = w->impl->ext.n + 1;
    for (size_t i = 0; i < w->ndata; i++)
        w->data[i] = (inv_data_file){.fresh = i == w->impl->ext.n,
                                     .move = i < w->impl->ext.n && m->layout == INV_LAYOUT_KEEP &&
                                             (!same || w->impl->ext.at[i].elsewhere),
                                     .pieces.a = &w->l.scratch,
                                     .out.fd = -1};
    for (size_t i = 0; i < w->impl->external.n; i++) {
        const inv_external *e = &w->impl->external.at[i];
        w->data[e->file].tensors += e->d.nbytes;
    }
    return refuse_loaded(w, path);
}

static int by_place(const void *a, const void *b)
{
    const inv_moved *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->old.nbytes < y->old.nbytes ? -1 : x->old.nbytes > y->old.nbytes;
}

static inv_status write_data(inv_writer *w, inv_data_file *f)
{
    inv_file_pieces *p = &f->pieces;
    if (f->tensor.n) qsort(f->tensor.at, f->tensor.n, sizeof *f->tensor.at, by_place);
    for (size_t i = 0; i < f->tensor.n; i++) {
        const inv_moved *t = &f->tensor.at[i];
        if (!t->old.nbytes) continue;
        INV_CHECK(t->at >= p->nbytes, w->l.ctx, INV_E_INTERNAL, "'%s': tensors overlap", f->path);
        INV_TRY(inv_put(p, NULL, (size_t)(t->at - p->nbytes)));
        INV_TRY(t->x ? inv_put_elements(p, t->x, t->old.dtype) : inv_put(p, t->old.bytes, t->old.nbytes));
    }
    INV_TRY(refuse_loaded(w, f->path));
    return write_pieces(&f->out, w->impl, f->path, p);
}

static inv_status publish(inv_writer *w, inv_out *model)
{
    INV_CHECK(w->m->layout != INV_LAYOUT_INLINE || w->model.nbytes < INV_PB_INLINE_END, w->l.ctx, INV_E_ARG,
              "cannot write '%s': with all tensors inside it would have %llu bytes; ONNX files are limited to 2 GiB. "
              "Keep the layout, or put tensors outside",
              w->path, (unsigned long long)w->model.nbytes);
    for (size_t i = 0; i < w->ndata; i++)
        if (w->data[i].move) INV_TRY(write_data(w, &w->data[i]));
    INV_TRY(write_pieces(model, w->impl, w->path, &w->model));
    INV_TRY(inv_files_unchanged(w->m)); /* what was read for it was still right */
    /* The model appears last: a model file that is seen has its data. */
    for (size_t i = 0; i < w->ndata; i++)
        if (w->data[i].move) INV_TRY(inv_out_name(&w->data[i].out));
    INV_TRY(inv_out_name(model));
    for (size_t i = 0; i < w->ndata; i++)
        if (w->data[i].move) INV_TRY(inv_out_rename(&w->data[i].out));
    INV_TRY(inv_out_rename(model));
    for (size_t i = 0; i < w->ndata; i++)
        if (w->data[i].move) INV_TRY(inv_out_sync_folder(&w->data[i].out));
    return inv_out_sync_folder(model);
}

static void tell_form(const inv_writer *w)
{
    const inv_inference *f = &w->form;
    inv_context *ctx = w->l.ctx;
    const char *const norm = f->norms == 1 ? "batch normalization" : "batch normalizations";
    const char *const drop = f->dropouts == 1 ? "dropout" : "dropouts";
    if (f->norms && f->dropouts)
        inv_log(ctx, "written for inference: %zu %s and %zu %s in evaluation mode", f->norms, norm, f->dropouts, drop);
    else if (inv_inference_any(f))
        inv_log(ctx, "written for inference: %zu %s in evaluation mode", f->norms ? f->norms : f->dropouts,
                f->norms ? norm : drop);
    if (f->kept)
        inv_log(ctx, "'%s' (Dropout) is written as it was: input '%s' decides whether it drops", f->kept, f->fed);
}

inv_status inv_writer_publish(inv_writer *w)
{
    inv_out model = {.fd = -1};
    inv_status s = publish(w, &model);
    if (s == INV_OK) tell_form(w);
    inv_out_close(&model);
    for (size_t i = 0; i < w->ndata; i++) inv_out_close(&w->data[i].out);
    return s;
}

inv_status inv_writer_map(inv_writer *w, inv_map *out)
{
    inv_out o = {.fd = -1};
    inv_status s = put_pieces(&o, w->impl, w->path, &w->model);
    if (s == INV_OK) s = inv_out_flush(&o);
    if (s == INV_OK) s = inv_map_fd(w->l.ctx, o.fd, w->path, out);
    inv_out_close(&o);
    if (s == INV_OK) tell_form(w);
    return s;
}

void inv_writer_end(inv_writer *w)
{
    inv_defects_fini(&w->l.defects);
    inv_arena_fini(&w->l.scratch);
}

inv_status inv_writer_field(const inv_writer *w, size_t at, size_t end, inv_field *f)
{
    const char *wrong = inv_wire_field(w->impl->file.base, at, end, f);
    if (!wrong) return INV_OK;
    return inv_fail(w->l.ctx, INV_E_IO, "'%s' was changed while it was loaded: byte %zu: %s", w->m->path, at, wrong);
}
