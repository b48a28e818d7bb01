/* SPDX-License-Identifier: Apache-2.0
 * Arrays from .npy files (mapped) and .npz archives (stored members mapped, compressed ones inflated).
 * NumPy format 1.0 to 3.0, little-endian, C order. What is refused is said in words. */
#ifndef INVONNX_DATA_NPY_H
#define INVONNX_DATA_NPY_H

#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "invonnx/invonnx.h"

#define NPY_MAX_RANK 8

typedef struct npy_array {
    inv_dtype dtype;
    int rank;
    int64_t dims[NPY_MAX_RANK];
    const void *data; /* may be unaligned: the file decides */
    size_t nbytes;
    void *map; /* the mapped file, or NULL */
    size_t map_nbytes;
    void *owned; /* inflated bytes, or an aligned copy; or NULL */
} npy_array;

/** Opens a .npy file, or of a .npz archive the first member named in `members` (without .npy), or its only one.
 *  @param why gets the reason on failure, no newline */
bool npy_open(const char *path, const char *const *members, size_t nmembers, npy_array *out, FILE *why);
/** Maps a file as it is: `map` and `map_nbytes` alone. */
bool npy_map(const char *path, npy_array *out, FILE *why);
/** Fills dtype, dims and nbytes from the first bytes of a .npy file. `data`: where its elements begin. */
bool npy_parse_header(const unsigned char *p, size_t nbytes, npy_array *out, size_t *data, FILE *why);
/** The same and `data`, from all bytes of the file. */
bool npy_parse(const unsigned char *p, size_t nbytes, npy_array *out, FILE *why);
/** The part for archives; `out->map` is the mapped file. */
bool npz_member(const char *path, const char *const *members, size_t nmembers, npy_array *out, FILE *why);
bool npz_has_suffix(const char *path);
void npy_close(npy_array *a);
/** The file's pages go back to the system; what is read again is mapped anew. */
void npy_give_back(const npy_array *a);
/** A name out of a file, in quotes, control characters as \u000a. */
void npy_put_name(FILE *f, const char *name);
size_t npy_itemsize(inv_dtype t);
/** numpy's code of a type, "f4"; "?" of one that files cannot have. */
const char *npy_type_name(inv_dtype t);
/** Element i as double, whatever the type. */
double npy_element(const void *data, inv_dtype dtype, size_t i);
/** Makes the data aligned for its type, by a copy if the file has it otherwise. @return false: no memory */
bool npy_align(npy_array *a);

#endif
