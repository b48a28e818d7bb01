/* SPDX-License-Identifier: Apache-2.0
 * What a training has become, in a file, so that it can go on.
 *
 * The file is a safetensors file: 8 bytes with the length of a header in little-endian order, the header, a JSON object
 * with type, shape and place of each tensor, then the tensors in the same order, each as it is in memory. Its
 * `__metadata__` holds texts: checksums, the number of the step, the seed, the groups' rates, what guards have
 * rejected, the plan, fingerprints of what is frozen, and the caller's note.
 *
 * Checksums (core/base/checksum.h) come first, of 16 digits each, with a blank between two: one of the 8 bytes and the
 * header, with zeros for its own digits, then one of each tensor. Their place in the file is known, so that they are
 * written last. Files of the earlier format have none. */
#ifndef INV_EXECUTOR_SESSION_STATE_H
#define INV_EXECUTOR_SESSION_STATE_H

#include <jansson.h>

#include "core/base/checksum.h"
#include "executor/executor.h"

#define INV_STATE_FORMAT "invonnx-state-2"
#define INV_STATE_EARLIER_FORMAT "invonnx-state-1"
#define INV_STATE_METADATA "__metadata__"
#define INV_STATE_CHECKSUMS "checksums"
/* What every header begins with, up to the first checksum. */
#define INV_STATE_HEAD "{\"" INV_STATE_METADATA "\":{\"" INV_STATE_CHECKSUMS "\":\""
enum {
    INV_STATE_LENGTH = 8,                                                /* bytes before the header */
    INV_STATE_FIRST = INV_STATE_LENGTH + (int)sizeof INV_STATE_HEAD - 1, /* place of the first checksum */
    INV_STATE_APART = INV_CHECKSUM_DIGITS + 1,                           /* from one to the next */
    INV_STATE_PIECE = 256 << 10 /* bytes that are read or written at once: a cache has them for the checksum */
};

/* --- state_save.c: what is in it, and writing --- */

/* Whether a state has it: what a step changes, and what is frozen and not as the model has it. Accumulated gradients
 * are empty between steps. */
bool inv_state_has(const inv_program *p, const inv_storage *h);
/* The file has tensors as they are where ranks share nothing, so that any number of ranks can go on with it. */
const inv_shape *inv_state_shape(const inv_storage *h);
const char *inv_state_type(inv_dtype t);
/* Of what is frozen the state has no elements, so it has fingerprints, by name. NULL: out of memory. */
json_t *inv_state_frozen(const inv_program *p);
/* Whether the session is between two steps of a training. INV_E_ARG */
inv_status inv_state_may(const inv_session *s);
/* All ranks have come as far as this, by `mine`, or none goes on. */
inv_status inv_state_agree(inv_session *s, inv_status mine, const char *what, const char *could_not);

/* --- state_read.c: a file of a state, whole or refused --- */

typedef struct inv_state_file {
    inv_context *ctx;
    const char *path;
    int fd;
    json_t *header;
    const char *checksums; /* of the tensors, in the header; NULL: the earlier format has none */
    uint64_t data, nbytes; /* where tensors begin; how many bytes of them there are */
} inv_state_file;

/* Opens it and reads all of it: whatever is damaged is found here. inv_state_close in any case.
 * @return INV_OK; INV_E_IO, INV_E_NOMEM; INV_E_PARSE: it is no state, or damaged */
inv_status inv_state_open(inv_context *ctx, const char *path, inv_state_file *f);
void inv_state_close(inv_state_file *f);
inv_status inv_state_unreadable(const inv_state_file *f, const char *why);
inv_status inv_state_bytes(const inv_state_file *f, uint64_t at, void *to, size_t n);
/* Where the tensor of a row of the header is, and of how many bytes. false: it is not behind `begin`, or not within the
 * file. */
bool inv_state_place(const inv_state_file *f, const json_t *row, uint64_t *from, uint64_t *nbytes);
/* A text of the metadata, or what it says in JSON, for the caller to free; NULL: it is not there, or not that. */
const char *inv_state_text(const inv_state_file *f, const char *key);
json_t *inv_state_parsed(const inv_state_file *f, const char *key);
/* The text, "" if it is not there, for inv_free; nothing where `out` is NULL. */
inv_status inv_state_copy(const inv_state_file *f, const char *key, char **out);

#endif
