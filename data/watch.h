/* SPDX-License-Identifier: Apache-2.0
 * Mapped files that change under a run (watch.c). A read of what has been cut off would end the program by SIGBUS; with
 * a watch it reads zeros, and it is noted whose they are. */
#ifndef INVONNX_DATA_WATCH_H
#define INVONNX_DATA_WATCH_H

#include <stdbool.h>
#include <stddef.h>

/** `path` is mapped at `base`. `consequence`: NULL of data, which are read all the time; else what it means for later
 *  that the file changes, as a clause. It is borrowed. */
void data_watch(const char *path, const void *base, size_t nbytes, const char *consequence);
/** It is about to be unmapped. */
void data_unwatch(const void *base);
/** A file of which something was read that is no longer there, or of data, may have been; NULL: none. */
const char *data_watch_cut(void);
/** Remarks on files that were changed otherwise, once on each. `warn` is given a complete message. */
void data_watch_note(void (*warn)(const char *format, ...));

#endif
