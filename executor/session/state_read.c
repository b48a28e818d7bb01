/* SPDX-License-Identifier: Apache-2.0
 * Reading a file of a state (session_state.h says what is in it). All of it is read and held against its checksums
 * before anything of it is used. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/run/json_text.h"
#include "executor/session/session_state.h"

enum { MOST_HEADER = 256 << 20 /* bytes */ };

inv_status inv_state_unreadable(const inv_state_file *f, const char *why)
{
    return inv_fail(f->ctx, INV_E_PARSE, "'%s' is no state of a training: %s", f->path, why);
}

static inv_status damaged(const inv_state_file *f, const char *what)
{
    return inv_fail(f->ctx, INV_E_PARSE,
                    "'%s' is damaged: %s does not agree with its checksum. Use another copy of it, or an older state",
                    f->path, what);
}

inv_status inv_state_bytes(const inv_state_file *f, uint64_t at, void *to, size_t n)
{
    for (size_t got = 0; got < n;) {
        const ssize_t k = pread(f->fd, (char *)to + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR) continue;
        INV_CHECK(k > 0, f->ctx, INV_E_IO, "cannot read '%s': %s", f->path, k < 0 ? strerror(errno) : "it has ended");
        got += (size_t)k;
    }
    return INV_OK;
}

const char *inv_state_text(const inv_state_file *f, const char *key)
{
    return json_string_value(json_object_get(json_object_get(f->header, INV_STATE_METADATA), key));
}

json_t *inv_state_parsed(const inv_state_file *f, const char *key)
{
    const char *text = inv_state_text(f, key);
    return text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
}

inv_status inv_state_copy(const inv_state_file *f, const char *key, char **out)
{
    const char *text = inv_state_text(f, key);
    const size_t n = text ? strlen(text) : 0;
    if (!out) return INV_OK;
    *out = inv_alloc(f->ctx, n + 1);
    if (!*out) return INV_E_NOMEM;
    if (n) memcpy(*out, text, n);
    (*out)[n] = 0;
    return INV_OK;
}

bool inv_state_place(const inv_state_file *f, const json_t *row, uint64_t *from, uint64_t *nbytes)
{
    const json_t *place = json_object_get(row, "data_offsets");
    const json_int_t begin = json_integer_value(json_array_get(place, 0)),
                     end = json_integer_value(json_array_get(place, 1));
    if (json_array_size(place) != 2 || begin < 0 || end < begin || (uint64_t)end > f->nbytes) return false;
    *from = (uint64_t)begin;
    *nbytes = (uint64_t)(end - begin);
    return true;
}

/* --- the header --- */

/* Each tensor begins where the one before it ends, and the last one ends with the file. */
static inv_status check_places(const inv_state_file *f)
{
    const char *name;
    json_t *row;
    uint64_t from, nbytes, end = 0;
    size_t n = 0;
    json_object_foreach(f->header, name, row)
    {
        if (strcmp(name, INV_STATE_METADATA) == 0) continue;
        if (!inv_state_place(f, row, &from, &nbytes) || from != end)
            return inv_state_unreadable(f, "a tensor is not where it should be; the file may have been cut short");
        end += nbytes;
        n++;
    }
    if (end != f->nbytes) return inv_state_unreadable(f, "there are bytes after the last tensor");
    if (f->checksums && strlen(f->checksums) != n * INV_STATE_APART)
        return inv_state_unreadable(f, "it has not one checksum for each tensor");
    return INV_OK;
}

/* The first `n` bytes of the file are what they were when it was written. *has: they have a checksum. */
static inv_status check_head(const inv_state_file *f, char *head, size_t n, bool *has)
{
    char was[INV_CHECKSUM_DIGITS], is[INV_CHECKSUM_DIGITS];
    inv_checksum sum;
    *has = n >= INV_STATE_FIRST + sizeof was &&
           memcmp(head + INV_STATE_LENGTH, INV_STATE_HEAD, sizeof INV_STATE_HEAD - 1) == 0;
    if (!*has) return INV_OK;
    memcpy(was, head + INV_STATE_FIRST, sizeof was);
    memset(head + INV_STATE_FIRST, '0', sizeof was);
    inv_checksum_begin(&sum);
    inv_checksum_add(&sum, head, n);
    inv_checksum_end(&sum, is);
    return memcmp(was, is, sizeof was) == 0 ? INV_OK : damaged(f, "its header");
}

/* A header without checksums is one of the earlier format, or damaged at its begin. */
static inv_status check_format(inv_state_file *f, bool has_checksums)
{
    const char *format = inv_state_text(f, "format"), *checksums = inv_state_text(f, INV_STATE_CHECKSUMS);
    if (has_checksums && format && strcmp(format, INV_STATE_FORMAT) == 0 && checksums) {
        f->checksums = checksums + INV_CHECKSUM_DIGITS;
        return INV_OK;
    }
    if (!has_checksums && format && strcmp(format, INV_STATE_EARLIER_FORMAT) == 0 && !checksums) {
        inv_log(f->ctx, "'%s' was written by an earlier version without checksums, so damage is not found", f->path);
        return INV_OK;
    }
    return inv_state_unreadable(f, "its metadata do not say " INV_STATE_FORMAT ", or its header is damaged");
}

static inv_status parse_header(inv_state_file *f, char *head, size_t n)
{
    bool has_checksums;
    INV_TRY(inv_state_bytes(f, 0, head, n));
    INV_TRY(check_head(f, head, n, &has_checksums));
    f->header = json_loadb(head + INV_STATE_LENGTH, n - INV_STATE_LENGTH, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(f->header)) return inv_state_unreadable(f, "its header is no JSON object");
    INV_TRY(check_format(f, has_checksums));
    return check_places(f);
}

static inv_status read_header(inv_state_file *f)
{
    struct stat st;
    uint8_t length[INV_STATE_LENGTH];
    INV_CHECK(fstat(f->fd, &st) == 0, f->ctx, INV_E_IO, "cannot read '%s': %s", f->path, strerror(errno));
    INV_CHECK(S_ISREG(st.st_mode), f->ctx, INV_E_IO, "cannot read '%s': it is not a regular file", f->path);
    const uint64_t all = (uint64_t)st.st_size;
    if (all < sizeof length) return inv_state_unreadable(f, "it is too short");
    INV_TRY(inv_state_bytes(f, 0, length, sizeof length));
    uint64_t n = 0;
    for (int i = INV_STATE_LENGTH; i-- > 0;) n = n << 8 | length[i];
    if (n > MOST_HEADER || n > all - sizeof length)
        return inv_state_unreadable(f, "its header is longer than the "
                                       "file");
    f->data = sizeof length + n;
    f->nbytes = all - f->data;
    char *head = inv_alloc(f->ctx, f->data);
    const inv_status s = head ? parse_header(f, head, f->data) : INV_E_NOMEM;
    inv_dealloc(f->ctx, head);
    return s;
}

/* --- tensors --- */

static inv_status check_tensor(const inv_state_file *f, const char *name, const json_t *row, const char *was,
                               unsigned char *piece)
{
    char is[INV_CHECKSUM_DIGITS];
    uint64_t from, nbytes;
    inv_checksum sum;
    if (!inv_state_place(f, row, &from, &nbytes)) return INV_E_INTERNAL; /* check_places has looked */
    inv_checksum_begin(&sum);
    for (uint64_t at = 0; at < nbytes; at += INV_STATE_PIECE) {
        const size_t n = nbytes - at < INV_STATE_PIECE ? (size_t)(nbytes - at) : INV_STATE_PIECE;
        INV_TRY(inv_state_bytes(f, f->data + from + at, piece, n));
        inv_checksum_add(&sum, piece, n);
    }
    inv_checksum_end(&sum, is);
    if (memcmp(was, is, sizeof is) == 0) return INV_OK;
    inv_str what;
    inv_str_init(&what, f->ctx);
    inv_str_add(&what, "the tensor '%s'", name);
    const inv_status s = damaged(f, what.failed ? "a tensor" : what.s);
    inv_str_fini(&what);
    return s;
}

static inv_status check_tensors(const inv_state_file *f)
{
    const char *name, *was = f->checksums ? f->checksums + 1 : NULL;
    json_t *row;
    if (!was) return INV_OK;
    unsigned char *piece = inv_alloc(f->ctx, INV_STATE_PIECE);
    inv_status s = piece ? INV_OK : INV_E_NOMEM;
    json_object_foreach(f->header, name, row)
    {
        if (s != INV_OK || strcmp(name, INV_STATE_METADATA) == 0) continue;
        s = check_tensor(f, name, row, was, piece);
        was += INV_STATE_APART;
    }
    inv_dealloc(f->ctx, piece);
    return s;
}

inv_status inv_state_open(inv_context *ctx, const char *path, inv_state_file *f)
{
    *f = (inv_state_file){.ctx = ctx, .path = path, .fd = -1};
    INV_CHECK(path && *path, ctx, INV_E_ARG, "no path is given to read a state from");
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would be waited for */
    INV_CHECK(f->fd >= 0, ctx, INV_E_IO, "cannot read '%s': %s", path, strerror(errno));
    INV_TRY(read_header(f));
    return check_tensors(f);
}

void inv_state_close(inv_state_file *f)
{
    if (f->fd >= 0) close(f->fd);
    json_decref(f->header);
}

/* --- what is asked without a session --- */

inv_status inv_state_read(inv_context *ctx, const char *path, char **note, char **plan)
{
    INV_OBJECT(ctx);
    inv_state_file f;
    if (note) *note = NULL;
    if (plan) *plan = NULL;
    inv_status st = inv_state_open(ctx, path, &f);
    if (st == INV_OK) st = inv_state_copy(&f, "note", note);
    if (st == INV_OK) st = inv_state_copy(&f, "plan", plan);
    if (st != INV_OK && note) {
        inv_dealloc(ctx, *note);
        *note = NULL;
    }
    inv_state_close(&f);
    return st;
}

inv_status inv_state_inspect(inv_context *ctx, const char *path, char **json)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, json);
    inv_state_file f;
    *json = NULL;
    inv_status st = inv_state_open(ctx, path, &f);
    json_t *step = st == INV_OK ? inv_state_parsed(&f, "step") : NULL;
    if (st == INV_OK && !json_is_integer(step)) st = inv_state_unreadable(&f, "its metadata are incomplete");
    const size_t rows = st == INV_OK ? json_object_size(f.header) : 0; /* tensors, and the metadata */
    const json_int_t nbytes = (json_int_t)f.data + (json_int_t)f.nbytes;
    if (st == INV_OK)
        st = inv_report_text(ctx,
                             json_pack("{s:O, s:I, s:I, s:b}", "step", step, "tensors", (json_int_t)rows - 1, "bytes",
                                       nbytes, "checksums", f.checksums != NULL),
                             json);
    json_decref(step);
    inv_state_close(&f);
    return st;
}
