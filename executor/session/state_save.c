/* SPDX-License-Identifier: Apache-2.0
 * Writing what a training has become (session_state.h says how). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/output_file.h"
#include "executor/run/agree.h"
#include "executor/run/json_text.h"
#include "executor/session/session_state.h"
#include "importer/model_file.h"

/* --- what is in it --- */

bool inv_state_has(const inv_program *p, const inv_storage *h)
{
    if (h->kind == INV_STORAGE_OPTIM) return true;
    return h->kind == INV_STORAGE_PARAM && (h->moved || inv_program_changes(p, h));
}

const inv_shape *inv_state_shape(const inv_storage *h) { return h->shared ? &h->whole : &h->shape; }

const char *inv_state_type(inv_dtype t)
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

/* Names of what is frozen and is not as the model has it. */
static json_t *moved(const inv_program *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *h = &p->storage.at[i];
        if (h->moved && !inv_program_changes(p, h)) (void)json_array_append_new(list, json_string(h->name));
    }
    return list;
}

/* Hashes of pieces of 64 bytes, 64 of a large tensor, which is quick however large the model is, and other weights
 * differ in all of it. */
json_t *inv_state_frozen(const inv_program *p)
{
    enum { PIECE = 64, PIECES = 64 };
    const inv_graph *g = p->source;
    json_t *all = json_object();
    for (size_t i = 0; i < g->inits.n && all; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        const inv_storage *h = inv_program_param(p, v->name);
        const unsigned char *bytes = v->data.bytes;
        const size_t n = v->data.nbytes, apart = n / PIECES > PIECE ? n / PIECES : PIECE;
        if (!bytes || v->dropped || (h && inv_state_has(p, h)) || !is_json_text(v->name)) continue;
        uint64_t hash = n;
        for (size_t at = 0; at < n; at += apart) hash = inv_hash(bytes + at, n - at < PIECE ? n - at : PIECE, hash);
        inv_model_forget_range(p->model, bytes, n);
        char text[17];
        (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
        if (json_object_set_new(all, v->name, json_string(text)) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* `checksums`: the room for them. */
static json_t *metadata_of(const inv_session *s, const char *checksums, const char *plan, const char *note)
{
    json_t *m = json_pack("{s:s, s:s, s:s, s:s}", INV_STATE_CHECKSUMS, checksums, "format", INV_STATE_FORMAT, "plan",
                          plan, "note", note ? note : "");
    put_text(m, "step", json_integer((json_int_t)s->steps));
    put_text(m, "batches", json_integer((json_int_t)s->step.mixed));
    put_text(m, "seed", json_integer((json_int_t)s->step.seed));
    put_text(m, "groups", group_rates(s));
    put_text(m, "rejected", rejected(s->program));
    put_text(m, "frozen", inv_state_frozen(s->program));
    put_text(m, "moved", moved(s->program));
    return m;
}

/* Zeros for the header's and for each tensor's. NULL: out of memory. */
static char *room_for_checksums(const inv_session *s)
{
    size_t n = 1;
    for (size_t i = 0; i < s->program->storage.n; i++) n += inv_state_has(s->program, &s->program->storage.at[i]);
    char *room = inv_alloc(s->ctx, n * INV_STATE_APART);
    if (!room) return NULL;
    memset(room, '0', n * INV_STATE_APART);
    for (size_t i = 1; i < n; i++) room[i * INV_STATE_APART - 1] = ' ';
    room[n * INV_STATE_APART - 1] = 0;
    return room;
}

/* The header as a text; NULL: out of memory. */
static char *header_of(const inv_session *s, const char *plan, const char *note)
{
    char *room = room_for_checksums(s);
    json_t *root = room ? json_pack("{s:o}", INV_STATE_METADATA, metadata_of(s, room, plan, note)) : NULL;
    inv_dealloc(s->ctx, room);
    size_t at = 0;
    bool ok = root != NULL;
    for (size_t i = 0; i < s->program->storage.n && ok; i++) {
        const inv_storage *h = &s->program->storage.at[i];
        if (!inv_state_has(s->program, h)) continue;
        json_t *shape = inv_report_shape(inv_state_shape(h));
        const json_int_t from = (json_int_t)at;
        at += (size_t)inv_shape_nelem(inv_state_shape(h)) * inv_dtype_size(h->dtype);
        json_t *row = json_pack("{s:s, s:o, s:[I, I]}", "dtype", inv_state_type(h->dtype), "shape", shape,
                                "data_offsets", from, (json_int_t)at);
        ok = row && json_object_set_new(root, h->name, row) == 0;
    }
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* --- writing --- */

enum { BROADCAST = 4 << 20 /* bytes */ };

typedef struct state_writer {
    inv_out *out;        /* NULL: another rank writes */
    unsigned char *room; /* BROADCAST, where ranks share tensors; else NULL */
    char *head;          /* what comes before the tensors; NULL: another rank writes */
    size_t nhead;
    char *checksum; /* in it, of the tensor that is written */
    inv_checksum sum;
    inv_status st; /* of writing, so far: what fails there does not keep other ranks waiting */
} state_writer;

/* Bytes of a tensor. */
static void write_bytes(state_writer *to, const void *data, size_t n)
{
    for (size_t at = 0; at < n && to->out && to->st == INV_OK; at += INV_STATE_PIECE) {
        const char *piece = (const char *)data + at;
        const size_t length = n - at < INV_STATE_PIECE ? n - at : INV_STATE_PIECE;
        inv_checksum_add(&to->sum, piece, length);
        to->st = inv_out_write(to->out, piece, length);
    }
}

/* Each rank sends its part in turn. */
static inv_status write_shared(inv_session *s, const inv_storage *h, state_writer *to)
{
    inv_world *w = inv_ranks_world(s);
    const int64_t nelem = inv_shape_nelem(&h->whole), length = inv_shape_nelem(&h->shape);
    for (int r = 0; r < w->size; r++) {
        const size_t all = (size_t)inv_part_count(nelem, length, r) * inv_dtype_size(h->dtype);
        for (size_t at = 0; at < all; at += BROADCAST) {
            const size_t n = all - at < BROADCAST ? all - at : BROADCAST;
            if (r == w->rank) memcpy(to->room, s->persistent + h->offset + at, n);
            INV_TRY(w->calls->broadcast(w, "the saving of the optimizer's state", r, to->room, n));
            write_bytes(to, to->room, n);
        }
    }
    return INV_OK;
}

static inv_status write_tensor(inv_session *s, const inv_storage *h, state_writer *to)
{
    const void *data = s->persistent + h->offset;
    if (h->shared) return write_shared(s, h, to);
    if (!s->device->host) INV_TRY(inv_session_fetch(s, data, h->dtype, &h->shape, &data));
    write_bytes(to, data, h->nbytes);
    return INV_OK;
}

static inv_status write_tensors(inv_session *s, state_writer *to)
{
    for (size_t i = 0; i < s->program->storage.n; i++) {
        if (!inv_state_has(s->program, &s->program->storage.at[i])) continue;
        inv_checksum_begin(&to->sum);
        INV_TRY(write_tensor(s, &s->program->storage.at[i], to));
        if (!to->head) continue;
        to->checksum += INV_STATE_APART;
        inv_checksum_end(&to->sum, to->checksum);
    }
    return to->st;
}

static inv_status write_state(inv_session *s, state_writer *to)
{
    if (to->out) to->st = inv_out_write(to->out, to->head, to->nhead);
    INV_TRY(write_tensors(s, to));
    if (!to->out) return INV_OK;
    inv_checksum_begin(&to->sum);
    inv_checksum_add(&to->sum, to->head, to->nhead);
    inv_checksum_end(&to->sum, to->head + INV_STATE_FIRST);
    INV_TRY(inv_out_overwrite(to->out, 0, to->head, to->nhead));
    INV_TRY(inv_out_sync(to->out));
    return inv_out_publish(to->out);
}

/* Whether ranks share tensors, so that they save a state together. */
static bool shares(const inv_session *s) { return inv_ranks_world(s) && s->program->options.shard != INV_SHARD_NONE; }

inv_status inv_state_agree(inv_session *s, inv_status mine, const char *what, const char *could_not)
{
    inv_world *w = inv_ranks_world(s);
    const int32_t told = (int32_t)mine;
    int32_t *all = inv_alloc(s->ctx, (size_t)w->size * sizeof *all);
    if (!all) return INV_E_NOMEM;
    inv_status st = inv_world_gather(w, what, &told, sizeof told, all);
    for (int r = 0; r < w->size && st == INV_OK && mine == INV_OK; r++)
        if (all[r] != INV_OK) st = inv_fail(s->ctx, INV_E_IO, "rank %d could not %s", r, could_not);
    inv_dealloc(s->ctx, all);
    return mine == INV_OK ? st : mine;
}

inv_status inv_state_may(const inv_session *s)
{
    const inv_session_options *o = &s->program->options;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && s->persistent, s->ctx, INV_E_ARG,
              "this session does not train, so it has no state to keep");
    INV_CHECK(s->accumulated <= 0, s->ctx, INV_E_ARG,
              "a step is not finished: its gradients are accumulated, but not applied. Call inv_session_update first");
    INV_CHECK(!s->averages, s->ctx, INV_E_ARG,
              "the averages are in the place of the weights. Switch back first (inv_session_use_average)");
    return INV_OK;
}

static inv_status check_texts(const inv_session *s, const char *note)
{
    INV_CHECK(!note || is_json_text(note), s->ctx, INV_E_ARG, "the note is no UTF-8, and a state's texts are");
    for (size_t i = 0; i < s->program->storage.n; i++) {
        const inv_storage *h = &s->program->storage.at[i];
        INV_CHECK(!inv_state_has(s->program, h) || (is_json_text(h->name) && strcmp(h->name, INV_STATE_METADATA) != 0),
                  s->ctx, INV_E_UNSUPPORTED_TYPE, "'%s' cannot be kept in a state: rename it in the model, in UTF-8",
                  h->name);
    }
    return INV_OK;
}

static inv_status prepare_to_save(inv_session *s, const char *path, const char *note)
{
    INV_CHECK(path && *path, s->ctx, INV_E_ARG, "no path is given to write the state to");
    INV_TRY(inv_session_whole(s));
    INV_TRY(inv_state_may(s));
    INV_TRY(inv_session_settle(s));
    INV_TRY(inv_stages_enter(s)); /* of a state's step follows what is in it */
    INV_TRY(inv_session_begin_averages(s));
    for (size_t i = 0; i < s->program->storage.n; i++) {
        inv_storage *h = &s->program->storage.at[i];
        INV_TRY(inv_session_moved(s, h, &h->moved));
    }
    return check_texts(s, note);
}

/* What comes before the tensors; they are aligned. */
static inv_status make_head(inv_session *s, const char *note, state_writer *to)
{
    char *plan = NULL;
    INV_TRY(s->program->save(s->program, &plan));
    char *header = header_of(s, plan, note);
    inv_dealloc(s->ctx, plan);
    const size_t n = header ? strlen(header) : 0,
                 padded = n + (INV_STATE_LENGTH - n % INV_STATE_LENGTH) % INV_STATE_LENGTH;
    to->nhead = INV_STATE_LENGTH + padded;
    to->head = header ? inv_alloc(s->ctx, to->nhead) : NULL;
    if (to->head) {
        for (int i = 0; i < INV_STATE_LENGTH; i++) to->head[i] = (char)(uint8_t)(padded >> 8 * i);
        memcpy(to->head + INV_STATE_LENGTH, header, n);
        memset(to->head + INV_STATE_LENGTH + n, ' ', padded - n);
        to->checksum = to->head + INV_STATE_FIRST;
    }
    free(header);
    return to->head ? INV_OK
                    : inv_fail(s->ctx, INV_E_NOMEM, "out of memory while the state of the training was written");
}

inv_status inv_session_save_state(inv_session *s, const char *path, const char *note)
{
    INV_OBJECT(s);
    const bool together = shares(s), writes = !together || inv_world_rank(inv_ranks_world(s)) == 0;
    inv_out o = {.fd = -1};
    state_writer to = {.out = writes ? &o : NULL};
    to.st = prepare_to_save(s, path, note);
    if (to.st == INV_OK && together && !(to.room = inv_alloc(s->ctx, BROADCAST))) to.st = INV_E_NOMEM;
    if (to.st == INV_OK && writes) to.st = make_head(s, note, &to);
    if (to.st == INV_OK && writes) to.st = inv_out_open(s->ctx, path, &o);
    inv_status st = to.st;
    if (together)
        st = inv_state_agree(s, to.st, "the begin of saving a state", "begin to save the state of the training");
    if (st == INV_OK) st = write_state(s, &to);
    inv_out_close(&o);
    inv_dealloc(s->ctx, to.head);
    inv_dealloc(s->ctx, to.room);
    return st;
}
