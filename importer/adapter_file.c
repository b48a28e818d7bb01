/* SPDX-License-Identifier: Apache-2.0
 * Files of adapters (adapter_file.h). A flatbuffer, little-endian:
 *
 *     offset of the root table | "TORT" | tables, vectors, strings, each aligned to its elements
 *
 * A table begins with the distance back to its vtable: its size, the table's size, and for each field where it is in
 * the table, 0 for none. Strings, vectors and tables inside are distances forward. The root table has format, adapter
 * and model version (int32) and a vector of tables; these have a name, dims (int64), the type by ONNX's number (int32)
 * and the bytes, aligned to 8. What reads one checks every distance, since files come from anywhere. */
#include "importer/adapter_file.h"

#include <string.h>

#include "core/base/output_file.h"
#include "importer/importer.h"

#define IDENTIFIER "TORT"
enum { FORMAT_VERSION = 1, FIELDS = 4, VTABLE = 4 + 2 * FIELDS, TABLE = 4 + 4 * FIELDS };

/* --- reading --- */

typedef struct reader {
    inv_context *ctx;
    const char *path;
    const uint8_t *base;
    size_t n;
} reader;

static inv_status broken(const reader *r, const char *what)
{
    return inv_fail(r->ctx, INV_E_PARSE, "'%s' is no file of adapters (.onnx_adapter): %s", r->path, what);
}

static bool get_u32(const reader *r, size_t at, uint32_t *out)
{
    if (at > r->n || r->n - at < 4) return false;
    const uint8_t *p = r->base + at;
    *out = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    return true;
}

static bool get_u16(const reader *r, size_t at, uint32_t *out)
{
    if (at > r->n || r->n - at < 2) return false;
    *out = (uint32_t)r->base[at] | (uint32_t)r->base[at + 1] << 8;
    return true;
}

/* Where field `i` of the table at `at` is; 0: it has none. */
static bool get_field(const reader *r, size_t at, uint32_t i, size_t *field)
{
    uint32_t back, size, offset;
    *field = 0;
    if (!get_u32(r, at, &back)) return false;
    const int64_t vtable = (int64_t)at - (int32_t)back;
    if (vtable < 0 || !get_u16(r, (size_t)vtable, &size)) return false;
    if (size < 4 + 2 * i + 2) return true;
    if (!get_u16(r, (size_t)vtable + 4 + 2 * i, &offset)) return false;
    *field = offset ? at + offset : 0;
    return true;
}

static bool get_int(const reader *r, size_t table, uint32_t i, int32_t *out)
{
    size_t at;
    uint32_t v = 0;
    if (!get_field(r, table, i, &at) || (at && !get_u32(r, at, &v))) return false;
    *out = (int32_t)v;
    return true;
}

/* The vector or string that field i leads to: its elements of `size` bytes, which are all there. */
static bool get_vector(const reader *r, size_t table, uint32_t i, size_t size, size_t *begin, uint32_t *count)
{
    size_t at;
    uint32_t forward;
    *begin = *count = 0;
    if (!get_field(r, table, i, &at)) return false;
    if (!at) return true;
    if (!get_u32(r, at, &forward) || !get_u32(r, at + forward, count)) return false;
    *begin = at + forward + 4;
    return *count <= (r->n - *begin) / size;
}

static inv_status read_shape(const reader *r, size_t begin, uint32_t rank, const char *name, inv_shape *shape)
{
    INV_CHECK(rank >= 1 && rank <= INV_MAX_RANK, r->ctx, INV_E_PARSE,
              "'%s': parameter '%s' is of rank %u: 1 to %d can be", r->path, name, rank, INV_MAX_RANK);
    *shape = inv_shape_unknown();
    shape->rank = (int32_t)rank;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t low = 0, high = 0;
        (void)get_u32(r, begin + 8 * i, &low);
        (void)get_u32(r, begin + 8 * i + 4, &high);
        shape->dim[i] = (int64_t)((uint64_t)high << 32 | low);
        INV_CHECK(shape->dim[i] >= 0, r->ctx, INV_E_PARSE, "'%s': parameter '%s' has a negative extent", r->path, name);
    }
    return INV_OK;
}

static inv_status read_entry(const reader *r, size_t table, inv_arena *a, inv_adapter_entry *e)
{
    size_t name, dims, raw, nbytes;
    uint32_t nname, ndims, nraw;
    int32_t type;
    if (!get_vector(r, table, 0, 1, &name, &nname) || !get_vector(r, table, 1, 8, &dims, &ndims) ||
        !get_int(r, table, 2, &type) || !get_vector(r, table, 3, 1, &raw, &nraw))
        return broken(r, "a parameter reaches beyond the file");
    if (!nname || memchr(r->base + name, 0, nname)) return broken(r, "a parameter has no name");
    e->name = inv_arena_strndup(a, (const char *)r->base + name, nname);
    if (!e->name) return INV_E_NOMEM;
    INV_TRY(read_shape(r, dims, ndims, e->name, &e->data.shape));
    e->data.dtype = (inv_dtype)type;
    INV_CHECK(type > 0 && inv_dtype_size((inv_dtype)type), r->ctx, INV_E_PARSE,
              "'%s': parameter '%s' is of element type %d, whose elements have no size here", r->path, e->name, type);
    INV_CHECK(inv_shape_nbytes(&e->data.shape, e->data.dtype, &nbytes) && nbytes == nraw, r->ctx, INV_E_PARSE,
              "'%s': parameter '%s' has %u bytes, which its shape and type do not have", r->path, e->name, nraw);
    void *bytes = inv_arena_alloc(a, nbytes + 1);
    if (!bytes) return INV_E_NOMEM;
    memcpy(bytes, r->base + raw, nbytes);
    e->data.bytes = bytes;
    e->data.nbytes = nbytes;
    return INV_OK;
}

static inv_status read_all(const reader *r, inv_arena *a, inv_adapter_file *out)
{
    uint32_t root, count, forward;
    size_t list;
    if (r->n < 8 || memcmp(r->base + 4, IDENTIFIER, 4) != 0) return broken(r, "it does not say " IDENTIFIER);
    if (!get_u32(r, 0, &root) || !get_int(r, root, 0, &out->format) || !get_int(r, root, 1, &out->adapter) ||
        !get_int(r, root, 2, &out->model) || !get_vector(r, root, 3, 4, &list, &count))
        return broken(r, "it reaches beyond its end");
    INV_CHECK(out->format == FORMAT_VERSION, r->ctx, INV_E_PARSE, "'%s' is of version %d of the format; %d is known",
              r->path, out->format, FORMAT_VERSION);
    for (uint32_t i = 0; i < count; i++) {
        inv_adapter_entry e = {0};
        if (!get_u32(r, list + 4 * (size_t)i, &forward)) return broken(r, "it reaches beyond its end");
        INV_TRY(read_entry(r, list + 4 * (size_t)i + forward, a, &e));
        for (size_t k = 0; k < out->entry.n; k++)
            INV_CHECK(strcmp(out->entry.at[k].name, e.name) != 0, r->ctx, INV_E_PARSE, "'%s' has parameter '%s' twice",
                      r->path, e.name);
        if (!inv_vec_push(a, &out->entry, e)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_adapter_file_read(inv_context *ctx, const char *path, inv_arena *a, inv_adapter_file *out)
{
    inv_map map;
    *out = (inv_adapter_file){0};
    INV_CHECK(path && *path, ctx, INV_E_ARG, "no path given to read adapters from");
    INV_TRY(inv_map_path(ctx, path, &map));
    const reader r = {ctx, path, map.base, map.nbytes};
    const inv_status s = read_all(&r, a, out);
    inv_map_close(&map);
    return s;
}

/* --- writing: everything once, in the order of the file, first to know where it is, then into it --- */

typedef struct writer {
    inv_out *o; /* NULL: places only */
    size_t at;
    inv_status status;
} writer;

static void put(writer *w, const void *data, size_t n)
{
    w->at += n;
    if (w->o && w->status == INV_OK) w->status = inv_out_write(w->o, data, n);
}

static void put_number(writer *w, uint64_t v, int nbytes)
{
    uint8_t b[8];
    for (int i = 0; i < nbytes; i++) b[i] = (uint8_t)(v >> 8 * i);
    put(w, b, (size_t)nbytes);
}

/* So that what comes `ahead` bytes later is aligned. */
static void align(writer *w, size_t to, size_t ahead)
{
    static const uint8_t zero[8];
    put(w, zero, (to - (w->at + ahead) % to) % to);
}

/* The vtable of both tables: four fields of four bytes, one behind the other. */
static void put_vtable(writer *w)
{
    put_number(w, VTABLE, 2);
    put_number(w, TABLE, 2);
    for (int i = 0; i < FIELDS; i++) put_number(w, 4 + 4 * (uint64_t)i, 2);
}

typedef struct place {
    size_t table, name, dims, bytes;
} place;

static void put_entry(writer *w, const inv_adapter_entry *e, size_t vtable, place *p)
{
    const inv_data *d = &e->data;
    align(w, 4, 0);
    const size_t table = w->at, name = p->name, dims = p->dims, bytes = p->bytes;
    p->table = table;
    put_number(w, table - vtable, 4);
    put_number(w, name - (table + 4), 4);
    put_number(w, dims - (table + 8), 4);
    put_number(w, (uint64_t)d->dtype, 4);
    put_number(w, bytes - (table + 16), 4);
    p->name = w->at;
    put_number(w, strlen(e->name), 4);
    put(w, e->name, strlen(e->name) + 1);
    align(w, 8, 4);
    p->dims = w->at;
    put_number(w, (uint64_t)d->shape.rank, 4);
    for (int i = 0; i < d->shape.rank; i++) put_number(w, (uint64_t)d->shape.dim[i], 8);
    align(w, 8, 4);
    p->bytes = w->at;
    put_number(w, d->nbytes, 4);
    put(w, d->bytes, d->nbytes);
}

static void put_all(writer *w, const inv_adapter_file *f, place *places)
{
    const size_t vtable = 8, root = vtable + VTABLE, list = root + TABLE;
    put_number(w, root, 4);
    put(w, IDENTIFIER, 4);
    put_vtable(w);
    put_number(w, root - vtable, 4);
    put_number(w, FORMAT_VERSION, 4);
    put_number(w, (uint32_t)f->adapter, 4);
    put_number(w, (uint32_t)f->model, 4);
    put_number(w, list - (root + 16), 4);
    put_number(w, f->entry.n, 4);
    for (size_t i = 0; i < f->entry.n; i++) put_number(w, places[i].table - (list + 4 + 4 * i), 4);
    for (size_t i = 0; i < f->entry.n; i++) put_entry(w, &f->entry.at[i], vtable, &places[i]);
    align(w, 8, 0);
}

inv_status inv_adapter_file_write(inv_context *ctx, const char *path, const inv_adapter_file *f)
{
    inv_arena a;
    inv_out o;
    writer w = {0};
    inv_arena_init(&a, ctx);
    place *places = INV_ARENA_NEW(&a, place, f->entry.n + 1);
    inv_status s = places ? INV_OK : INV_E_NOMEM;
    if (s == INV_OK) {
        put_all(&w, f, places);
        if (w.at > INT32_MAX)
            s = inv_fail(ctx, INV_E_ARG,
                         "the adapters have %zu bytes; a file of adapters (.onnx_adapter) ends at 2 GiB", w.at);
    }
    if (s == INV_OK) {
        s = inv_out_open(ctx, path, &o);
        w = (writer){.o = &o};
        if (s == INV_OK) put_all(&w, f, places);
        if (s == INV_OK) s = w.status;
        if (s == INV_OK) s = inv_out_sync(&o);
        if (s == INV_OK) s = inv_out_publish(&o);
        inv_out_close(&o);
    }
    inv_arena_fini(&a);
    return s;
}
