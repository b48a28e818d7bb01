/* SPDX-License-Identifier: Apache-2.0
 * Plugins: a file of rules and operators, of one of three kinds, put into the registry of a context, all of it or
 * nothing. A shared object stays loaded until the registry goes, because rows hold its functions. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/graph/ir_internal.h"
#include "core/graph/model.h"

enum { MOST_TEXT = 1 << 20 };

typedef struct opened {
    FILE *f;
    size_t nbytes;
    unsigned char head[512];
    size_t nhead;
} opened;

/* `errno` was 0 before, and is so where the file has ended too early. */
static inv_status cannot_read(inv_context *ctx)
{
    return inv_fail(ctx, INV_E_IO, "it cannot be read to its end: %s", errno ? strerror(errno) : "it was cut short");
}

/* --- a shared object --- */

typedef inv_status (*init_fn)(const inv_api *, struct inv_registry *);

static inv_status missing(inv_registry *r, const char *symbol)
{
    return inv_fail(r->ctx, INV_E_ABI,
                    "it does not export %s, so it is no plugin. Write INV_INVERSES or INV_PLUGIN of "
                    "invonnx/plugin.h in it, and compile it with -DINV_PLUGIN_SHARED",
                    symbol);
}

/* A function pointer cannot be had from an object pointer otherwise in standard C. */
static init_fn as_init(void *symbol)
{
    init_fn f;
    memcpy(&f, &symbol, sizeof f);
    return f;
}

/* The dynamic linker takes a file at its word, and dies of one that has been cut off. Objects for other machines are
 * its to refuse. */
static bool cut_off(const opened *o)
{
    Elf64_Ehdr h;
    Elf64_Phdr s;
    if (o->nhead < sizeof h) return true;
    memcpy(&h, o->head, sizeof h);
    if (h.e_ident[EI_CLASS] != ELFCLASS64) return false;
    if (h.e_shoff > o->nbytes || (uint64_t)h.e_shnum * h.e_shentsize > o->nbytes - h.e_shoff) return true;
    for (unsigned i = 0; i < h.e_phnum && h.e_phentsize == sizeof s; i++) {
        const uint64_t at = h.e_phoff + (uint64_t)i * sizeof s;
        if (h.e_phoff > o->nbytes || at > o->nbytes - sizeof s || fseek(o->f, (long)at, SEEK_SET) != 0 ||
            fread(&s, sizeof s, 1, o->f) != 1)
            return true;
        if (s.p_offset > o->nbytes || s.p_filesz > o->nbytes - s.p_offset) return true;
    }
    return false;
}

static inv_status load_object(inv_registry *r, inv_plugin *p, const opened *o)
{
    errno = 0;
    const bool cut = cut_off(o);
    if (cut && errno) return cannot_read(r->ctx);
    INV_CHECK(!cut, r->ctx, INV_E_IO,
              "it is a truncated shared object: its header names parts after its end at %zu bytes", o->nbytes);
    /* Without a slash it would be looked for among the system's libraries. */
    const char *path = strchr(p->path, '/') ? p->path : inv_arena_printf(&r->arena, "./%s", p->path);
    if (!path) return INV_E_NOMEM;
    p->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!p->handle) {
        const char *why = dlerror();
        return inv_fail(r->ctx, INV_E_IO, "it cannot be loaded: %s", why ? why : "dlopen says nothing");
    }
    const uint32_t *abi = dlsym(p->handle, "inv_plugin_abi");
    void *init = dlsym(p->handle, "inv_plugin_init");
    if (!init) return missing(r, "inv_plugin_init");
    if (!abi) return missing(r, "inv_plugin_abi");
    INV_CHECK(*abi == INV_PLUGIN_ABI, r->ctx, INV_E_ABI,
              "it is built for ABI number %u, this library has %u. Compile it with the header of this library",
              (unsigned)*abi, INV_PLUGIN_ABI);
    r->ctx->code = INV_OK;
    inv_status s = as_init(init)(r->ctx->api, r);
    /* It may have gone on after a failure of the api, or failed without a word. */
    if (s == INV_OK && r->ctx->code != INV_OK) s = r->ctx->code;
    else if (s != INV_OK && r->ctx->code == INV_OK)
        s = inv_fail(r->ctx, s, "it says nothing more than '%s'", inv_status_text(s));
    if (s != INV_OK && s != INV_E_NOMEM)
        (void)inv_fail(r->ctx, s, "its inv_plugin_init has failed: %s", inv_context_message(r->ctx));
    return s;
}

/* --- files --- */

static inv_status open_file(inv_context *ctx, const char *path, opened *o)
{
    struct stat st;
    INV_CHECK(stat(path, &st) == 0, ctx, INV_E_IO, "it cannot be read: %s", strerror(errno));
    INV_CHECK(S_ISREG(st.st_mode), ctx, INV_E_IO, "it is not a regular file");
    o->nbytes = (size_t)st.st_size;
    o->f = fopen(path, "rb");
    INV_CHECK(o->f, ctx, INV_E_IO, "it cannot be read: %s", strerror(errno));
    errno = 0;
    o->nhead = fread(o->head, 1, sizeof o->head, o->f);
    if (o->nhead < sizeof o->head && o->nhead < o->nbytes) return cannot_read(ctx);
    INV_CHECK(o->nhead, ctx, INV_E_PARSE, "it is empty");
    return INV_OK;
}

static inv_status load_text(inv_registry *r, const opened *o)
{
    INV_CHECK(o->nbytes <= MOST_TEXT, r->ctx, INV_E_PARSE, "a text of rules has at most %d bytes, this one has %zu",
              MOST_TEXT, o->nbytes);
    char *text = inv_alloc(r->ctx, o->nbytes + 1);
    if (!text) return INV_E_NOMEM;
    inv_status s = INV_OK;
    errno = 0;
    if (fseek(o->f, 0, SEEK_SET) != 0 || fread(text, 1, o->nbytes, o->f) != o->nbytes) s = cannot_read(r->ctx);
    if (s == INV_OK) s = inv_rules_read(r, text, o->nbytes);
    inv_dealloc(r->ctx, text);
    return s;
}

/* The first line that says something, is it `rule NAME`? */
static bool begins_with_rule(const opened *o)
{
    size_t i = inv_text_mark(o->head, o->nhead);
    while (i < o->nhead && (strchr(" \t\r\n", o->head[i]) || o->head[i] == '#')) {
        if (o->head[i] == '#')
            while (i + 1 < o->nhead && o->head[i + 1] != '\n') i++;
        i++;
    }
    return i == o->nhead || (o->nhead - i > 4 && memcmp(o->head + i, "rule", 4) == 0 && strchr(" \t", o->head[i + 4]));
}

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

static inv_status load_by_kind(inv_registry *r, inv_plugin *p)
{
    opened o = {0};
    inv_status s = open_file(r->ctx, p->path, &o);
    if (s == INV_OK) {
        if (o.nhead >= 4 && memcmp(o.head, "\177ELF", 4) == 0) s = load_object(r, p, &o);
        else if (ends_with(p->path, ".onnx")) s = r->pairs(r, p->path);
        else if (ends_with(p->path, ".rules") || begins_with_rule(&o)) s = load_text(r, &o);
        else
            s = inv_fail(r->ctx, INV_E_PARSE,
                         "it is no plugin: that is a shared object, a text that begins with 'rule NAME', or a model "
                         "NAME.onnx");
    }
    if (o.f) fclose(o.f);
    return s;
}

/* --- all or nothing --- */

static void drop_plugin(inv_registry *r, inv_plugin *p)
{
    size_t n = 0;
    for (size_t i = 0; i < r->op.n; i++)
        if (r->op.at[i].from != p) r->op.at[n++] = r->op.at[i];
    r->op.n = n;
    inv_rules_drop(r, p);
    if (p->handle) (void)dlclose(p->handle);
    p->handle = NULL;
    if (p->model) p->model->destroy(p->model);
    p->model = NULL;
}

void inv_registry_set_pairs(inv_registry *r, inv_pairs_fn fn) { r->pairs = fn; }

inv_status inv_registry_keep_model(inv_registry *r, inv_model *model)
{
    if (!r->loading) {
        model->destroy(model);
        return INV_E_INTERNAL;
    }
    r->loading->model = model;
    model->kept = true; /* a context that is held by what it owns would never go */
    (void)inv_leave(&r->ctx->held);
    return INV_OK;
}

inv_model *inv_registry_model_at(const inv_registry *r, size_t i)
{
    for (size_t k = 0; k < r->plugin.n; k++)
        if (r->plugin.at[k]->model && i-- == 0) return r->plugin.at[k]->model;
    return NULL;
}

inv_status inv_context_load_plugin(inv_context *ctx, const char *path)
{
    INV_OBJECT(ctx);
    inv_registry *r = ctx->registry;
    INV_CHECK(path && *path, ctx, INV_E_ARG, "inv_context_load_plugin: no path given");
    inv_plugin *p = inv_arena_alloc(&r->arena, sizeof *p);
    if (!p || !(p->path = inv_arena_strdup(&r->arena, path)) || !inv_vec_push(&r->arena, &r->plugin, p))
        return INV_E_NOMEM;
    r->loading = p;
    inv_status s = load_by_kind(r, p);
    if (s == INV_OK) s = inv_rules_settle(r, p);
    r->loading = NULL;
    if (s == INV_OK) return INV_OK;
    if (s != INV_E_NOMEM) (void)inv_fail(ctx, s, "plugin '%s': %s", path, inv_context_message(ctx));
    drop_plugin(r, p);
    r->plugin.n--;
    return s;
}

void inv_registry_destroy(inv_registry *r)
{
    if (!r) return;
    while (r->plugin.n) drop_plugin(r, r->plugin.at[--r->plugin.n]);
    inv_arena_fini(&r->arena);
    inv_dealloc(r->ctx, r);
}

void inv_context_hold(inv_context *ctx) { inv_hold(&ctx->held); }

void inv_context_leave(inv_context *ctx)
{
    if (!ctx || !inv_leave(&ctx->held)) return;
    inv_registry_destroy(ctx->registry);
    inv_context_fini(ctx);
}
