/* SPDX-License-Identifier: Apache-2.0
 * Files in memory. Private read-only mappings, so weights need no copy. */
#define _DEFAULT_SOURCE /* madvise */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "importer/importer.h"

static const uint8_t nothing[1];

inv_status inv_map_fd(inv_context *ctx, int fd, const char *what, inv_map *out)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return inv_fail(ctx, INV_E_IO, "cannot read '%s': %s", what, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return inv_fail(ctx, INV_E_IO, "cannot read '%s': not a regular file%s", what,
                        S_ISDIR(st.st_mode) ? ", but a folder" : "");
    *out = (inv_map){.base = nothing,
                     .nbytes = (size_t)st.st_size,
                     .dev = st.st_dev,
                     .ino = st.st_ino,
                     .changed = {st.st_mtim.tv_sec, st.st_mtim.tv_nsec}};
    if (!out->nbytes) return INV_OK;
    void *p = mmap(NULL, out->nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        out->base = NULL;
        return inv_fail(ctx, INV_E_IO, "cannot map '%s': %s", what, strerror(errno));
    }
    out->base = p;
    return INV_OK;
}

inv_status inv_map_path(inv_context *ctx, const char *path, inv_map *out)
{
    /* O_NONBLOCK: opening a pipe must not wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return inv_fail(ctx, INV_E_IO, "cannot open '%s': %s", path, strerror(errno));
    inv_status s = inv_map_fd(ctx, fd, path, out);
    close(fd);
    return s;
}

void inv_map_close(inv_map *m)
{
    if (m->base && m->nbytes) munmap((void *)(uintptr_t)m->base, m->nbytes);
    m->base = NULL;
}

static void forget_pages(const inv_map *m)
{
    if (m->nbytes) (void)madvise((void *)(uintptr_t)m->base, m->nbytes, MADV_DONTNEED);
}

void inv_files_forget(const inv_impl *impl)
{
    forget_pages(&impl->file);
    for (size_t f = 0; f < impl->ext.n; f++) forget_pages(&impl->ext.at[f]);
}

void inv_model_forget(const inv_model *m)
{
    if (m->impl) inv_files_forget(m->impl);
}

static bool forget_range(const inv_map *m, const uint8_t *from, size_t nbytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (from < m->base || nbytes > m->nbytes || from - m->base > (ptrdiff_t)(m->nbytes - nbytes)) return false;
    const size_t skip = (size_t)(from - m->base) % page;
    (void)madvise((void *)(uintptr_t)(from - skip), nbytes + skip, MADV_DONTNEED);
    return true;
}

void inv_model_forget_range(const inv_model *m, const void *from, size_t nbytes)
{
    const inv_impl *impl = m->impl;
    if (!impl || !nbytes || forget_range(&impl->file, from, nbytes)) return;
    for (size_t f = 0; f < impl->ext.n; f++)
        if (forget_range(&impl->ext.at[f], from, nbytes)) return;
}

/* The name by which the model's folder has that file. */
static const char *file_name_of(const inv_impl *impl, size_t file)
{
    size_t i = 0;
    while (impl->ext_at.at[i] != file) i++;
    return impl->ext_name.at[i];
}

inv_status inv_files_unchanged(const inv_model *m)
{
    const inv_impl *impl = m->impl;
    for (size_t i = 0; i <= impl->ext.n; i++) {
        const inv_map *map = i ? &impl->ext.at[i - 1] : &impl->file;
        const char *path = i ? file_name_of(impl, i - 1) : m->path;
        struct stat st;
        if (fstatat(i ? impl->dir : AT_FDCWD, path, &st, 0) != 0 || st.st_dev != map->dev || st.st_ino != map->ino)
            continue; /* removed or replaced: the mapping still has it */
        if ((size_t)st.st_size == map->nbytes && st.st_mtim.tv_sec == map->changed[0] &&
            st.st_mtim.tv_nsec == map->changed[1])
            continue;
        return inv_fail(m->ctx, INV_E_IO,
                        "'%s' has changed since it was loaded (%zu bytes then, %llu now), so its other parts cannot "
                        "be copied to a new file",
                        path, map->nbytes, (unsigned long long)st.st_size);
    }
    return INV_OK;
}

const void *inv_model_file(const inv_model *m, size_t i, const char **path, size_t *nbytes)
{
    const inv_impl *impl = m ? m->impl : NULL;
    if (!m || i > impl->ext.n) return NULL;
    const inv_map *map = i ? &impl->ext.at[i - 1] : &impl->file;
    if (path) *path = i ? file_name_of(impl, i - 1) : m->path;
    if (nbytes) *nbytes = map->nbytes;
    return map->base;
}

static bool parse_size(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        unsigned d = (unsigned)(*s - '0');
        if (v > (UINT64_MAX - d) / 10) return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

static inv_status remember(inv_impl *impl, const char *loc, uint32_t at)
{
    const char *name = inv_arena_strdup(&impl->arena, loc);
    if (!name || !inv_vec_push(&impl->arena, &impl->ext_name, name)) return INV_E_NOMEM;
    if (!inv_vec_push(&impl->arena, &impl->ext_at, at)) return INV_E_NOMEM;
    return INV_OK;
}

/* The mapping of a location; INV_NONE, and its tensor is noted as lost, if there is none. */
static inv_status find_map(inv_loader *l, const char *loc, const char *what, uint32_t *out)
{
    inv_impl *impl = l->impl;
    inv_map m = {0};
    *out = INV_NONE;
    for (uint32_t i = 0; i < impl->ext_at.n; i++)
        if (!strcmp(impl->ext_name.at[i], loc)) {
            *out = impl->ext_at.at[i];
            return INV_OK;
        }
    bool known, elsewhere;
    int fd;
    INV_TRY(inv_lost_again(l, loc, &known));
    if (known) return INV_OK;
    INV_TRY(inv_location_open(l, loc, what, &fd, &elsewhere));
    if (fd < 0) return INV_OK;
    inv_status s = inv_map_fd(l->ctx, fd, loc, &m);
    close(fd);
    if (s != INV_OK) return inv_fail(l->ctx, s, "'%s': %s", l->model->path, inv_context_message(l->ctx));
    m.elsewhere = elsewhere;
    if (inv_is_lfs_pointer(m.base, m.nbytes)) {
        inv_map_close(&m);
        return inv_lose(l, loc, what, INV_E_PARSE,
                        "the external data file '%s' is a Git LFS pointer, not the file itself. Fetch that with "
                        "'git lfs pull', or download it",
                        loc);
    }
    for (uint32_t i = 0; i < impl->ext.n; i++)
        if (impl->ext.at[i].dev == m.dev && impl->ext.at[i].ino == m.ino) *out = i;
    if (*out != INV_NONE) {
        inv_map_close(&m);
    } else if (!inv_vec_push(&impl->arena, &impl->ext, m)) {
        inv_map_close(&m);
        return INV_E_NOMEM;
    } else {
        *out = (uint32_t)impl->ext.n - 1;
    }
    return remember(impl, loc, *out);
}

inv_status inv_external_place(inv_loader *l, const Onnx__TensorProto *t, const char *what, size_t nbytes,
                              uint32_t *file, uint64_t *offset)
{
    const char *loc = "";
    uint64_t length = nbytes;
    *file = INV_NONE;
    *offset = 0;
    for (size_t i = 0; i < t->n_external_data; i++) {
        const Onnx__StringStringEntryProto *e = t->external_data[i];
        const char *k = e->key ? e->key : "", *v = e->value ? e->value : "";
        uint64_t *number = !strcmp(k, "offset") ? offset : !strcmp(k, "length") ? &length : NULL;
        if (!strcmp(k, "location")) loc = v;
        if (number && !parse_size(v, number)) {
            inv_defect(&l->defects, INV_E_PARSE, "%s: external data: '%s' is no valid %s", what, v, k);
            return INV_OK;
        }
    }
    uint32_t at;
    INV_TRY(find_map(l, loc, what, &at));
    if (at == INV_NONE) return INV_OK;
    const inv_map *m = &l->impl->ext.at[at];
    if (length != nbytes)
        inv_defect(&l->defects, INV_E_PARSE, "%s: %llu bytes of external data in '%s', but its shape and type need %zu",
                   what, (unsigned long long)length, loc, nbytes);
    else if (*offset > m->nbytes)
        return inv_lose(l, loc, what, INV_E_PARSE,
                        "external data from byte %llu of '%s', which has only %zu: the download is incomplete, or "
                        "it is another model's file",
                        (unsigned long long)*offset, loc, m->nbytes);
    else if (length > m->nbytes - *offset)
        return inv_lose(l, loc, what, INV_E_PARSE,
                        "external data at bytes %llu to %llu of '%s', which has only %zu: the download is "
                        "incomplete, or it is another model's file",
                        (unsigned long long)*offset, (unsigned long long)*offset + length, loc, m->nbytes);
    else *file = at;
    return INV_OK;
}

uint32_t inv_map_of(const inv_impl *impl, const inv_data *d)
{
    for (uint32_t i = 0; i < impl->ext.n; i++) {
        uintptr_t base = (uintptr_t)impl->ext.at[i].base, p = (uintptr_t)d->bytes;
        if (p >= base && p + d->nbytes <= base + impl->ext.at[i].nbytes) return i;
    }
    return INV_NONE;
}
