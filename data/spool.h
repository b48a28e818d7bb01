/* SPDX-License-Identifier: Apache-2.0
 * Numbers that are written one behind the other into a file without a name and then mapped: an array of any length that
 * takes no memory. The file is in $TMPDIR or /var/tmp, and gone when the program is. */
#ifndef INVONNX_DATA_SPOOL_H
#define INVONNX_DATA_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct spool {
    FILE *f;
    void *map; /* after spool_map; may be written to */
    size_t nbytes;
} spool;

/** @param why on failure the reason with the folder, no newline */
bool spool_open(spool *s, FILE *why);
bool spool_put(spool *s, const void *p, size_t nbytes, FILE *why);
/** Ends writing. An empty spool has no map. */
bool spool_map(spool *s, FILE *why);
/** Pages that have been read go back to the system. */
void spool_give_back(const spool *s);
void spool_close(spool *s);

#endif
