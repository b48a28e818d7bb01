/* SPDX-License-Identifier: Apache-2.0
 * Reading of data, shared by the examples. */
#ifndef INVONNX_EXAMPLES_NPY_H
#define INVONNX_EXAMPLES_NPY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 8 };

typedef struct rows {
    int rank;
    int64_t dims[MAX_RANK];
    void *data;
} rows;

/* Reads a .npy file of version 1.0 whose elements are `descr`, C order. A real program would do with less trust. */
static int read_npy(const char *path, const char *descr, size_t elem, rows *out)
{
    unsigned char head[10];
    char text[1 << 12] = "";
    FILE *f = fopen(path, "rb");
    int ok = f && fread(head, 1, sizeof head, f) == sizeof head && memcmp(head, "\x93NUMPY\x01", 7) == 0;
    size_t length = ok ? head[8] + 256u * head[9] : 0;
    ok = ok && length < sizeof text && fread(text, 1, length, f) == length && strstr(text, descr);
    char *p = ok ? strstr(text, "'shape': (") : NULL;
    size_t n = elem;
    *out = (rows){0};
    for (p = p ? p + strlen("'shape': (") : NULL; p && *p >= '0' && *p <= '9' && out->rank < MAX_RANK; out->rank++) {
        out->dims[out->rank] = strtoll(p, &p, 10);
        n *= (size_t)out->dims[out->rank];
        p += strspn(p, ", ");
    }
    out->data = out->rank > 0 ? malloc(n) : NULL;
    ok = out->data && fread(out->data, 1, n, f) == n;
    if (f) fclose(f);
    if (!ok) fprintf(stderr, "%s: not a .npy file of %s\n", path, descr);
    return ok;
}

#endif
