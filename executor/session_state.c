/* SPDX-License-Identifier: Apache-2.0
 * What a training has become, in a file, so that it can go on.
 *
 * The file is a safetensors file: 8 bytes with the length of a header in little-endian order, the header, a JSON object
 * with type, shape and place of each tensor, then the tensors, each as it is in memory. Its `__metadata__` holds texts:
 * the number of the step, the seed, the groups' rates, what guards have rejected, the plan, fingerprints of what is
 * frozen, and the caller's note. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/out_file.h"
#include "executor/agree.h"
#include "executor/report.h"
#include "importer/model_file.h"

#define FORMAT "invonnx-state-1"
#define METADATA "__metadata__"
enum { MOST_HEADER = 256 << 20 /* bytes */ };

/* --- what is in it --- */

/* What a step changes. Accumulated gradients are empty between steps. */
static bool changes(const inv_session *s, const inv_storage *h)
{
    if (h->kind == INV_STORAGE_OPTIM) return true;
    return h->kind == INV_STORAGE_PARAM && inv_session_changes(s, h);
}

/* The file has tensors as they are where ranks share nothing, so that any number of ranks can go on with it. */
static const inv_shape *whole_shape(const inv_storage *h) { return h->shared ? &h->whole : &h->shape; }
static size_t whole_nbytes(const inv_storage *h)
{
    return (size_t)inv_shape_nelem(whole_shape(h)) * inv_dtype_size(h->dtype);
}

static const char *type_word(inv_dtype t)
{
    switch (t) {
    case INV_F32: return "F32";
    case INV_F64: return "F64";
    case INV_F16: return "F16";
    case INV_BF16: return "BF16";
    case INV_I64: return "I64";
    case INV_I32: return "I32";
    case INV_U8: return "U8";
    case INV_BOOL: return "BOOL";
    default: return NULL;
    }
}

static json_t *rejected(const inv_program *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->checkpoint.n; i++)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:b}", "name", p->checkpoint.at[i].name, "derived", p->checkpoint.at[i].derived));
    return list;
}

static json_t *group_rates(const inv_session *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->program->options.ngroups; i++)
        (void)json_array_append_new(list, json_real(s->step.group_lr[i + 1]));
    return list;
}

/* An object as a text, since the metadata of a safetensors file are texts. */
static void put_text(json_t *metadata, const char *key, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY) : NULL;
    (void)json_object_set_new(metadata, key, text ? json_string(text) : NULL);
    free(text);
    json_decref(value);
}

/* The file's header is JSON. */
static bool is_json_text(const char *text)
{
    json_t *t = json_string(text);
    json_decref(t);
    return t != NULL;
}

/* Of what is frozen the state has no elements, so it has fingerprints, by name: hashes of pieces of 64 bytes, 64 of a
 * large tensor, which is quick however large the model is, and other weights differ in all of it. NULL: out of memory.
 */
static json_t *frozen_prints(const inv_session *s)
{
    enum { PIECE = 64, PIECES = 64 };
    const inv_graph *g = s->program->source;
    json_t *all = json_object();
    for (size_t i = 0; i < g->inits.n && all; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        const inv_storage *h = inv_session_storage(s, v->name);
        const unsigned char *bytes = v->data.bytes;
        const size_t n = v->data.nbytes, apart = n / PIECES > PIECE ? n / PIECES : PIECE;
        if (!bytes || v->dropped || (h && changes(s, h)) || !is_json_text(v->name)) continue;
        uint64_t hash = n;
        for (size_t at = 0; at < n; at += apart) hash = inv__hash(bytes + at, n - at < PIECE ? n - at : PIECE, hash);
        inv__model_forget_range(s->model, bytes, n);
        char text[17];
        (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
        if (json_object_set_new(all, v->name, json_string(text)) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

static json_t *metadata_of(const inv_session *s, const char *plan, const char *note)
{
    json_t *m = json_pack("{s:s, s:s, s:s}", "format", FORMAT, "plan", plan, "note", note ? note : "");
    put_text(m, "step", json_integer((json_int_t)s->steps));
    put_text(m, "batches", json_integer((json_int_t)s->step.mixed));
    put_text(m, "seed", json_integer((json_int_t)s->step.seed));
    put_text(m, "groups", group_rates(s));
    put_text(m, "rejected", rejected(s->program));
    put_text(m, "frozen", frozen_prints(s));
    return m;
}

static char *header_of(const inv_session *s, const char *plan, const char *note)
{
    json_t *root = json_pack("{s:o}", METADATA, metadata_of(s, plan, note));
    size_t at = 0;
    bool ok = root != NULL;
    for (size_t i = 0; i < s->program->storage.n && ok; i++) {
        const inv_storage *h = &s->program->storage.at[i];
        if (!changes(s, h)) continue;
        json_t *shape = inv_report_shape(whole_shape(h));
        const size_t nbytes = whole_nbytes(h);
        const json_int_t from = (json_int_t)at, to = from + (json_int_t)nbytes;
        json_t *row =
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_word(h->dtype), "shape", shape, "data_offsets", from, to);
        ok = row && json_object_set_new(root, h->name, row) == 0;
        at += nbytes;
    }
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* --- writing --- */

enum { PIECE = 4 << 20 /* bytes */ };

typedef struct state_writer {
    inv__out *out;       /* NULL: another rank writes */
    unsigned char *room; /* PIECE, where ranks share tensors; else NULL */
    inv_status st;       /* of writing, so far: what fails there does not keep other ranks waiting */
} state_writer;

static void write_bytes(state_writer *to, const void *data, size_t n)
{
    if (to->out && to->st == INV_OK) to->st = inv__out_write(to->out, data, n);
}

/* Each rank sends its part in turn. */
static inv_status write_shared(inv_session *s, const inv_storage *h, state_writer *to)
{
    inv_world *w = inv_ranks_world(s);
    const int64_t nelem = inv_shape_nelem(&h->whole), length = inv_shape_nelem(&h->shape);
    for (int r = 0; r < w->size; r++) {
        const size_t all = (size_t)inv_part_count(nelem, length, r) * inv_dtype_size(h->dtype);
        for (size_t at = 0; at < all; at += PIECE) {
            const size_t n = all - at < PIECE ? all - at : PIECE;
            if (r == w->rank) memcpy(to->room, s->persistent + h->offset + at, n);
            INV_TRY(w->calls->broadcast(w, "the saving of the optimizer's state", r, to->room, n));
            write_bytes(to, to->room, n);
        }
    }
    return INV_OK;
}

static inv_status write_tensors(inv_session *s, state_writer *to)
{
    for (size_t i = 0; i < s->program->storage.n; i++) {
        const inv_storage *h = &s->program->storage.at[i];
        const void *data = s->persistent + h->offset;
        if (!changes(s, h)) continue;
        if (h->shared) {
            INV_TRY(write_shared(s, h, to));
            continue;
        }
        if (!s->device->host) INV_TRY(inv_session_fetch(s, data, h->dtype, &h->shape, &data));
        write_bytes(to, data, h->nbytes);
    }
    return to->st;
}

static inv_status write_state(inv_session *s, state_writer *to, const char *header)
{
    static const char spaces[8] = "        ";
    const size_t n = strlen(header), pad = (8 - n % 8) % 8; /* so that tensors are aligned */
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((n + pad) >> 8 * i);
    write_bytes(to, length, sizeof length);
    write_bytes(to, header, n);
    write_bytes(to, spaces, pad);
    INV_TRY(write_tensors(s, to));
    if (!to->out) return INV_OK;
    INV_TRY(inv__out_sync(to->out));
    return inv__out_publish(to->out);
}

/* Whether ranks share tensors, so that they save a state together. */
static bool shares(const inv_session *s) { return inv_ranks_world(s) && s->program->options.shard != INV_SHARD_NONE; }

/* All ranks have come as far as this, or none goes on. */
static inv_status agree_to_write(inv_session *s, state_writer *to)
{
    inv_world *w = inv_ranks_world(s);
    const int32_t mine = (int32_t)to->st;
    int32_t *all = inv__alloc(s->ctx, (size_t)w->size * sizeof *all);
    if (!all) return INV_E_NOMEM;
    inv_status st = inv_world_gather(w, "the begin of saving a state", &mine, sizeof mine, all);
    for (int r = 0; r < w->size && st == INV_OK && to->st == INV_OK; r++)
        if (all[r] != INV_OK)
            st = inv__fail(s->ctx, INV_E_IO, "rank %d could not begin to save the state of the training", r);
    inv__free(s->ctx, all);
    return to->st == INV_OK ? st : to->st;
}

static inv_status check_between_steps(const inv_session *s)
{
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && s->persistent, s->ctx, INV_E_ARG,
              "this session does not train, so it has no state to keep");
    INV_CHECK(s->accumulated <= 0, s->ctx, INV_E_ARG,
              "a step has been begun: gradients have been accumulated and not been used (inv_session_update)");
    INV_CHECK(!s->averages, s->ctx, INV_E_ARG,
              "the averages have the weights' place now; give it back first (inv_session_use_average)");
    return INV_OK;
}

static inv_status check_texts(const inv_session *s, const char *note)
{
    INV_CHECK(!note || is_json_text(note), s->ctx, INV_E_ARG, "the note is no UTF-8, and a state's texts are");
    for (size_t i = 0; i < s->program->storage.n; i++) {
        const inv_storage *h = &s->program->storage.at[i];
        INV_CHECK(!changes(s, h) || (is_json_text(h->name) && strcmp(h->name, METADATA) != 0), s->ctx,
                  INV_E_UNSUPPORTED_TYPE, "'%s' cannot be kept in a state: rename it in the model, in UTF-8", h->name);
    }
    return INV_OK;
}

static inv_status prepare_to_save(inv_session *s, const char *path, const char *note)
{
    INV_CHECK(path && *path, s->ctx, INV_E_ARG, "no path is given to write the state to");
    INV_TRY(inv_session_whole(s));
    INV_TRY(check_between_steps(s));
    INV_TRY(inv_session_settle(s));
    INV_TRY(inv_stages_enter(s)); /* of a state's step follows what is in it */
    return check_texts(s, note);
}

/* The file is opened, and what goes into its head is there. */
static inv_status begin_to_write(inv_session *s, const char *path, const char *note, inv__out *o, char **header)
{
    char *plan = NULL;
    INV_TRY(s->program->save(s->program, &plan));
    *header = header_of(s, plan, note);
    inv__free(s->ctx, plan);
    if (!*header) return inv__fail(s->ctx, INV_E_NOMEM, "out of memory while the state of the training was written");
    return inv__out_open(s->ctx, path, o);
}

inv_status inv_session_save_state(inv_session *s, const char *path, const char *note)
{
    const bool together = shares(s), writes = !together || inv_world_rank(inv_ranks_world(s)) == 0;
    char *header = NULL;
    inv__out o = {.fd = -1};
    state_writer to = {.out = writes ? &o : NULL};
    bool opened = false;
    to.st = prepare_to_save(s, path, note);
    if (to.st == INV_OK && together && !(to.room = inv__alloc(s->ctx, PIECE))) to.st = INV_E_NOMEM;
    if (to.st == INV_OK && writes) opened = (to.st = begin_to_write(s, path, note, &o, &header)) == INV_OK;
    inv_status st = together ? agree_to_write(s, &to) : to.st;
    if (st == INV_OK) st = write_state(s, &to, writes ? header : "");
    if (opened) inv__out_close(&o);
    free(header);
    inv__free(s->ctx, to.room);
    return st;
}

/* --- reading --- */

typedef struct state_file {
    inv_context *ctx;
    const char *path;
    int fd;
    json_t *header;
    uint64_t data, nbytes; /* where tensors begin; how many bytes of them there are */
} state_file;

static inv_status unreadable(const state_file *f, const char *why)
{
    return inv__fail(f->ctx, INV_E_PARSE, "'%s' is no state of a training: %s", f->path, why);
}

static inv_status read_bytes(const state_file *f, uint64_t at, void *to, size_t n)
{
    for (size_t got = 0; got < n;) {
        const ssize_t k = pread(f->fd, (char *)to + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR) continue;
        INV_CHECK(k > 0, f->ctx, INV_E_IO, "cannot read '%s': %s", f->path, k < 0 ? strerror(errno) : "it has ended");
        got += (size_t)k;
    }
    return INV_OK;
}

static const char *metadata(const state_file *f, const char *key)
{
    return json_string_value(json_object_get(json_object_get(f->header, METADATA), key));
}

/* Where a tensor is among the file's bytes of tensors. false: not within them. */
static bool read_place(const state_file *f, const json_t *row, uint64_t *from, uint64_t *nbytes)
{
    const json_t *place = json_object_get(row, "data_offsets");
    const json_int_t begin = json_integer_value(json_array_get(place, 0)),
                     end = json_integer_value(json_array_get(place, 1));
    if (json_array_size(place) != 2 || begin < 0 || end < begin || (uint64_t)end > f->nbytes) return false;
    *from = (uint64_t)begin;
    *nbytes = (uint64_t)(end - begin);
    return true;
}

/* A file that has been cut short is found here, before anything of it is used. */
static inv_status check_places(const state_file *f)
{
    const char *name;
    json_t *row;
    uint64_t from, nbytes;
    json_object_foreach(f->header, name, row) if (
        strcmp(name, METADATA) != 0 &&
        !read_place(
            f, row, &from,
            &nbytes)) return unreadable(f, "a tensor is not where it should be, perhaps the file has been cut short");
    return INV_OK;
}

static inv_status read_header(state_file *f)
{
    struct stat st;
    uint8_t length[8];
    INV_CHECK(fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode), f->ctx, INV_E_IO, "'%s' is not a regular file", f->path);
    const uint64_t all = (uint64_t)st.st_size;
    if (all < sizeof length) return unreadable(f, "it is too short");
    INV_TRY(read_bytes(f, 0, length, sizeof length));
    uint64_t n = 0;
    for (int i = 8; i-- > 0;) n = n << 8 | length[i];
    if (n > MOST_HEADER || n > all - sizeof length) return unreadable(f, "its header ends behind the file");
    char *text = inv__alloc(f->ctx, n + 1);
    if (!text) return INV_E_NOMEM;
    inv_status s = read_bytes(f, sizeof length, text, n);
    if (s == INV_OK) f->header = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    inv__free(f->ctx, text);
    INV_TRY(s);
    f->data = sizeof length + n;
    f->nbytes = all - f->data;
    if (!json_is_object(f->header)) return unreadable(f, "its header is no JSON object");
    const char *format = metadata(f, "format");
    if (!format || strcmp(format, FORMAT) != 0) return unreadable(f, "its metadata do not say " FORMAT);
    return check_places(f);
}

static inv_status open_state(inv_context *ctx, const char *path, state_file *f)
{
    *f = (state_file){.ctx = ctx, .path = path, .fd = -1};
    INV_CHECK(path && *path, ctx, INV_E_ARG, "no path is given to read a state from");
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    INV_CHECK(f->fd >= 0, ctx, INV_E_IO, "cannot read '%s': %s", path, strerror(errno));
    return read_header(f);
}

static void close_state(state_file *f)
{
    if (f->fd >= 0) close(f->fd);
    json_decref(f->header);
}

/* Where the tensor is that belongs there. */
static inv_status find_tensor(const state_file *f, const inv_storage *h, uint64_t *at)
{
    const json_t *row = json_object_get(f->header, h->name), *shape = json_object_get(row, "shape");
    const char *type = json_string_value(json_object_get(row, "dtype"));
    char wanted[INV_SHAPE_TEXT];
    INV_CHECK(row, f->ctx, INV_E_ARG,
              "'%s' has no '%s', which this training keeps: it is of another model, another optimizer, or other "
              "parameters were trained",
              f->path, h->name);
    const inv_shape *whole = whole_shape(h);
    bool same = type && !strcmp(type, type_word(h->dtype)) && (int)json_array_size(shape) == whole->rank;
    for (int d = 0; d < whole->rank && same; d++)
        same = json_integer_value(json_array_get(shape, (size_t)d)) == whole->dim[d];
    INV_CHECK(same, f->ctx, INV_E_SHAPE, "'%s' of '%s' is not %s%s, as this training keeps it", h->name, f->path,
              inv_dtype_name(h->dtype), inv_shape_text(whole, wanted));
    uint64_t from, nbytes;
    if (!read_place(f, row, &from, &nbytes) || nbytes != whole_nbytes(h))
        return unreadable(f, "a tensor has another number of bytes than its shape");
    *at = f->data + from;
    return INV_OK;
}

/* Moves on from where the tensor is in the file to what this rank keeps of it; the bytes of that. */
static size_t own_place(const inv_session *s, const inv_storage *h, uint64_t *at)
{
    if (!h->shared) return h->nbytes;
    const int64_t length = inv_shape_nelem(&h->shape), rank = inv_world_rank(inv_ranks_world(s));
    const size_t size = inv_dtype_size(h->dtype);
    *at += (uint64_t)(rank * length) * size;
    return (size_t)inv_part_count(inv_shape_nelem(&h->whole), length, rank) * size;
}

/* Looks (put false) for everything that the training has, or reads it. */
static inv_status read_tensors(inv_session *s, const state_file *f, bool put)
{
    size_t n = 0;
    for (size_t i = 0; i < s->program->storage.n; i++) {
        const inv_storage *h = &s->program->storage.at[i];
        uint64_t at = 0;
        if (!changes(s, h)) continue;
        n++;
        INV_TRY(find_tensor(f, h, &at));
        if (!put) continue;
        unsigned char *to = s->persistent + h->offset, *temp = s->device->host ? to : inv__alloc(s->ctx, h->nbytes + 1);
        if (!temp) return INV_E_NOMEM;
        const size_t kept = own_place(s, h, &at);
        inv_status st = read_bytes(f, at, temp, kept);
        memset(temp + kept, 0, h->nbytes - kept);
        if (st == INV_OK && temp != to) st = s->device->upload(s->self, to, temp, h->nbytes);
        if (temp != to) inv__free(s->ctx, temp);
        INV_TRY(st);
    }
    INV_CHECK(n + 1 >= json_object_size(f->header), f->ctx, INV_E_ARG,
              "'%s' has %zu tensors, this training keeps %zu: it is of another model or another optimizer", f->path,
              json_object_size(f->header) - 1, n);
    return INV_OK;
}

/* A member of the metadata that is JSON; NULL: it is not there or not that. */
static json_t *parsed(const state_file *f, const char *key)
{
    const char *text = metadata(f, key);
    return text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
}

static bool all_have_names(const json_t *list)
{
    bool all = json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++)
        all = all && json_is_string(json_object_get(json_array_get(list, i), "name"));
    return all;
}

static inv_status read_rejected(inv_session *s, const json_t *list)
{
    inv_program *p = s->program;
    const json_t *entry;
    size_t i;
    p->checkpoint.n = 0;
    json_array_foreach(list, i, entry)
    {
        const inv_checkpoint c = {inv__arena_strdup(&p->arena, json_string_value(json_object_get(entry, "name"))),
                                  json_is_true(json_object_get(entry, "derived"))};
        if (!c.name || !inv_vec_push(&p->arena, &p->checkpoint, c)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status read_numbers(inv_session *s, const state_file *f)
{
    json_t *step = parsed(f, "step"), *seed = parsed(f, "seed"), *groups = parsed(f, "groups"),
           *list = parsed(f, "rejected"), *batches = parsed(f, "batches"); /* states of earlier versions do not say */
    const size_t ngroups = s->program->options.ngroups;
    inv_status st = INV_OK;
    if (!json_is_integer(step) || json_integer_value(step) < 0 || !json_is_integer(seed) || !all_have_names(list))
        st = unreadable(f, "its metadata are incomplete");
    if (st == INV_OK && json_array_size(groups) == ngroups)
        for (size_t i = 0; i < ngroups; i++) s->step.group_lr[i + 1] = json_real_value(json_array_get(groups, i));
    if (st == INV_OK) st = read_rejected(s, list);
    if (st == INV_OK) {
        s->step.seed = (uint64_t)json_integer_value(seed);
        s->step.mixed = (uint64_t)json_integer_value(json_is_integer(batches) ? batches : step);
        inv_session_set_step(s, (uint64_t)json_integer_value(step), 0);
    }
    json_decref(batches);
    json_decref(step);
    json_decref(seed);
    json_decref(groups);
    json_decref(list);
    return st;
}

static inv_status copy_text(inv_context *ctx, const char *from, char **out)
{
    const size_t n = strlen(from) + 1;
    *out = inv__alloc(ctx, n);
    if (!*out) return INV_E_NOMEM;
    memcpy(*out, from, n);
    return INV_OK;
}

/* What is frozen is what the state was saved beside. States of earlier versions do not say. */
static inv_status check_frozen(const inv_session *s, const state_file *f)
{
    json_t *saved = parsed(f, "frozen"), *here = frozen_prints(s), *print;
    const char *name;
    inv_status st = here ? INV_OK : INV_E_NOMEM;
    json_object_foreach(here, name, print)
    {
        const json_t *was = json_object_get(saved, name);
        if (st != INV_OK || !was || json_equal(was, print)) continue;
        st = inv__fail(f->ctx, INV_E_ARG,
                       "'%s' was saved by a training in which the frozen '%s' had other elements: the model '%s' has "
                       "changed since, or is another one",
                       f->path, name, s->model->path);
    }
    json_decref(saved);
    json_decref(here);
    return st;
}

/* The session is planned for the stage of the state. */
static inv_status enter_its_stage(inv_session *s, const state_file *f)
{
    const uint64_t before = s->steps;
    json_t *step = parsed(f, "step");
    if (json_is_integer(step) && json_integer_value(step) >= 0) s->steps = (uint64_t)json_integer_value(step);
    json_decref(step);
    const inv_status st = inv_stages_enter(s);
    s->steps = before;
    return st;
}

inv_status inv_session_load_state(inv_session *s, const char *path, char **note)
{
    state_file f;
    if (note) *note = NULL;
    INV_TRY(inv_session_whole(s));
    INV_TRY(check_between_steps(s));
    INV_TRY(inv_session_settle(s));
    inv_status st = open_state(s->ctx, path, &f);
    if (st == INV_OK) st = enter_its_stage(s, &f);
    if (st == INV_OK) st = check_frozen(s, &f);
    if (st == INV_OK) st = read_tensors(s, &f, false);
    if (st == INV_OK) st = read_numbers(s, &f);
    if (st == INV_OK) {
        st = read_tensors(s, &f, true);
        if (st != INV_OK) s->lost = "a state of the training was read in part only";
    }
    if (st == INV_OK && note) st = copy_text(s->ctx, metadata(&f, "note") ? metadata(&f, "note") : "", note);
    close_state(&f);
    return st == INV_OK ? inv_ranks_agree(s) : st; /* each has read a file of its own */
}

inv_status inv_state_step(inv_context *ctx, const char *path, uint64_t *step)
{
    state_file f;
    *step = 0;
    inv_status st = open_state(ctx, path, &f);
    if (st == INV_OK) {
        json_t *number = parsed(&f, "step");
        const json_int_t n = json_is_integer(number) ? json_integer_value(number) : -1;
        if (n < 0) st = unreadable(&f, "its metadata are incomplete");
        else *step = (uint64_t)n;
        json_decref(number);
    }
    close_state(&f);
    return st;
}

inv_status inv_state_read(inv_context *ctx, const char *path, char **note, char **plan)
{
    state_file f;
    if (note) *note = NULL;
    if (plan) *plan = NULL;
    inv_status st = open_state(ctx, path, &f);
    if (st == INV_OK && note) st = copy_text(ctx, metadata(&f, "note") ? metadata(&f, "note") : "", note);
    if (st == INV_OK && plan) st = copy_text(ctx, metadata(&f, "plan") ? metadata(&f, "plan") : "", plan);
    close_state(&f);
    return st;
}
