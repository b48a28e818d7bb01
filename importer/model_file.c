/* SPDX-License-Identifier: Apache-2.0
 * inv_model: load and destroy. What lives as long as the model: the mappings and the imported graph, whose
 * tensors are views of them. protobuf-c's messages go as soon as the import is done. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "importer/model_file.h"
#include "importer/writer.h"

static inv_status open_folder(inv_model *m, inv_impl *impl)
{
    const char *slash = strrchr(m->path, '/');
    const char *dir = !slash             ? "."
                      : slash == m->path ? "/"
                                         : inv_arena_strndup(&impl->arena, m->path, (size_t)(slash - m->path));
    if (!dir) return INV_E_NOMEM;
    /* If it cannot be opened (search permission only), external data will say so. */
    impl->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    impl->no_dir = errno;
    return INV_OK;
}

/* A file that was not read as ONNX: what it is says more than where reading it ended. */
static inv_status tell_kind(inv_loader *l, inv_status failed)
{
    const inv_map *f = &l->impl->file;
    const char *is = failed == INV_E_PARSE && !l->model->graph ? inv_file_kind(&l->scratch, f->base, f->nbytes) : NULL;
    return is ? inv_fail(l->ctx, failed, "'%s' is not an ONNX model: it is %s", l->model->path, is) : failed;
}

/* What is mapped already is not read from the path. */
static inv_status import(inv_loader *l)
{
    inv_impl *impl = l->impl;
    const char *path = l->model->path;
    ProtobufCMessage *message = NULL;
    if (!impl->file.base) INV_TRY(inv_map_path(l->ctx, path, &impl->file));
    INV_TRY(open_folder(l->model, impl));
    if (!impl->file.nbytes) return inv_fail(l->ctx, INV_E_PARSE, "'%s' is empty: it is not an ONNX model", path);
    INV_TRY(inv_unpack(&l->scratch, path, &impl->file, &onnx__model_proto__descriptor, 0, impl->file.nbytes, &message));
    const Onnx__ModelProto *p = (const Onnx__ModelProto *)(const void *)message;
    impl->ir_version = p->has_ir_version ? p->ir_version : 0;
    impl->producer = inv_arena_strdup(&impl->arena, p->producer_name ? p->producer_name : "");
    impl->producer_version = inv_arena_strdup(&impl->arena, p->producer_version ? p->producer_version : "");
    if (!impl->producer || !impl->producer_version) return INV_E_NOMEM;
    INV_TRY(inv_import_model(l, p));
    l->model->nfile_inits = l->model->graph->inits.n;
    l->model->nfile_opsets = l->model->graph->opset.n;
    return INV_OK;
}

static inv_status create(inv_context *ctx, const char *path, inv_model **out)
{
    inv_model *m = inv_alloc(ctx, sizeof *m);
    inv_impl *impl = inv_alloc(ctx, sizeof *impl);
    *out = NULL;
    if (!m || !impl) {
        inv_dealloc(ctx, m);
        inv_dealloc(ctx, impl);
        return INV_E_NOMEM;
    }
    m->ctx = ctx;
    inv_context_hold(ctx);
    m->impl = impl;
    m->destroy = inv_model_destroy;
    impl->dir = -1;
    inv_arena_init(&impl->arena, ctx);
    m->path = inv_arena_strdup(&impl->arena, path);
    *out = m;
    return m->path ? INV_OK : INV_E_NOMEM;
}

static inv_status copy_taken(inv_model *m, const char *const *names, size_t n)
{
    inv_arena *a = &((inv_impl *)m->impl)->arena;
    const char **copy = INV_ARENA_NEW(a, const char *, n + 1);
    if (!copy) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (!(copy[i] = inv_arena_strdup(a, names[i]))) return INV_E_NOMEM;
    m->taken = copy;
    m->ntaken = n;
    return INV_OK;
}

/* How a file is loaded. */
typedef struct manner {
    bool plain;          /* weights in Constant nodes stay there */
    const inv_map *file; /* NULL, or what it consists of, which is the model's then */
    const char *const *taken;
    size_t ntaken;
} manner;

static inv_status load_file(inv_context *ctx, const char *path, manner how, inv_model **out)
{
    const inv_map *file = how.file;
    inv_model *m;
    *out = NULL;
    inv_status s = create(ctx, path, &m);
    if (s == INV_OK) s = copy_taken(m, how.taken, how.ntaken);
    if (file && m) ((inv_impl *)m->impl)->file = *file;
    else if (file) inv_map_close(&(inv_map){.base = file->base, .nbytes = file->nbytes});
    if (s == INV_OK) {
        inv_loader l = {.ctx = ctx, .model = m, .impl = m->impl, .plain = how.plain};
        inv_arena_init(&l.scratch, ctx);
        inv_defects_init(&l.defects, ctx);
        s = tell_kind(&l, import(&l));
        inv_defects_fini(&l.defects);
        inv_arena_fini(&l.scratch);
    }
    if (s != INV_OK) {
        inv_model_destroy(m);
        return s;
    }
    *out = m;
    return INV_OK;
}

inv_status inv_model_load(inv_context *ctx, const char *path, inv_model **out)
{
    return inv_model_load_with(ctx, path, NULL, 0, out);
}

inv_status inv_model_load_with(inv_context *ctx, const char *path, const char *const *names, size_t nnames,
                               inv_model **out)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, out);
    *out = NULL;
    INV_CHECK(path && *path, ctx, INV_E_ARG, "inv_model_load: no path given");
    for (size_t i = 0; i < nnames; i++)
        INV_CHECK(names && names[i], ctx, INV_E_ARG, "inv_model_load_with: names[%zu] is NULL", i);
    return load_file(ctx, path, (manner){.taken = names, .ntaken = nnames}, out);
}

inv_status inv_model_load_plain(inv_context *ctx, const char *path, inv_model **out)
{
    *out = NULL;
    INV_CHECK(path && *path, ctx, INV_E_ARG, "inv_model_load: no path given");
    return load_file(ctx, path, (manner){.plain = true}, out);
}

inv_status inv_model_settled(inv_model *m, const char *beside, inv_model **out)
{
    inv_writer w;
    inv_map file;
    const inv_layout layout = m->layout;
    *out = NULL;
    m->layout = INV_LAYOUT_KEEP; /* external data are read where they are */
    inv_status s = inv_writer_begin(&w, m, beside);
    for (size_t i = 0; s == INV_OK && i < w.ndata; i++) w.data[i].move = false;
    if (s == INV_OK) s = inv_writer_settle(&w);
    if (s == INV_OK) s = inv_put_model(&w);
    if (s == INV_OK) s = inv_writer_map(&w, &file);
    inv_writer_end(&w);
    m->layout = layout;
    if (s == INV_OK)
        s = load_file(m->ctx, m->path, (manner){.file = &file, .taken = m->taken, .ntaken = m->ntaken}, out);
    if (s == INV_OK) (*out)->layout = layout;
    return s;
}

inv_status inv_model_set_layout(inv_model *m, inv_layout layout)
{
    INV_OBJECT(m);
    INV_CHECK(layout == INV_LAYOUT_KEEP || layout == INV_LAYOUT_INLINE || layout == INV_LAYOUT_EXTERNAL, m->ctx,
              INV_E_ARG, "there is no layout %d", (int)layout);
    const inv_impl *impl = m->impl;
    uint64_t nbytes = impl->file.nbytes; /* at least; writing knows it all, but then a training may be over */
    for (size_t i = 0; i < impl->external.n; i++) nbytes += impl->external.at[i].d.nbytes;
    INV_CHECK(layout != INV_LAYOUT_INLINE || nbytes < INV_PB_INLINE_END, m->ctx, INV_E_ARG,
              "'%s' with all tensors inside would have %llu bytes; ONNX files are limited to 2 GiB. Keep the layout, "
              "or put tensors outside",
              m->path, (unsigned long long)nbytes);
    m->layout = layout;
    return INV_OK;
}

inv_status inv_model_set_form(inv_model *m, inv_form form)
{
    INV_OBJECT(m);
    INV_CHECK(form == INV_FORM_DEFAULT || form == INV_FORM_INFERENCE || form == INV_FORM_AS_LOADED, m->ctx, INV_E_ARG,
              "there is no form %d", (int)form);
    m->form = form;
    return INV_OK;
}

void inv_model_destroy(inv_model *m)
{
    if (!m || !inv_leave(&m->held)) return;
    inv_impl *impl = m->impl;
    inv_graph_destroy(m->graph);
    inv_graph_destroy(m->forward);
    inv_map_close(&impl->file);
    for (size_t i = 0; i < impl->ext.n; i++) inv_map_close(&impl->ext.at[i]);
    if (impl->dir >= 0) close(impl->dir);
    inv_arena_fini(&impl->arena);
    inv_context *ctx = m->ctx;
    const bool kept = m->kept;
    inv_dealloc(ctx, impl);
    inv_dealloc(ctx, m);
    if (!kept) inv_context_leave(ctx);
}
