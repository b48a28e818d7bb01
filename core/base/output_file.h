/* SPDX-License-Identifier: Apache-2.0
 * A file that appears whole or not at all (output_file.c says how). Every function fails with INV_E_IO, named. */
#ifndef INV_CORE_OUTPUT_FILE_H
#define INV_CORE_OUTPUT_FILE_H

#include "core/base/mem.h"

typedef struct inv__out {
    inv_context *ctx;
    char *path, *temp; /* owned; temp[0] 0: no temporary name is taken */
    size_t temp_size;
    bool unnamed;
    int fd;
    uint8_t *buf;
    size_t n, behind; /* bytes: in `buf`; written, but not yet on the way to the disk */
    uint64_t total;
} inv__out;
inv_status inv__out_open(inv_context *ctx, const char *path, inv__out *o); /* on failure nothing is left of it */
inv_status inv__out_write(inv__out *o, const void *data, size_t nbytes);
inv_status inv__out_skip(inv__out *o, uint64_t nbytes); /* zeros, where possible without taking up space */
/* In place of what was written from there on; the next bytes go behind all. */
inv_status inv__out_overwrite(inv__out *o, uint64_t at, const void *data, size_t nbytes);
inv_status inv__out_flush(inv__out *o);   /* all in the file, as far as its readers can tell */
inv_status inv__out_sync(inv__out *o);    /* all on disk under the temporary name */
inv_status inv__out_publish(inv__out *o); /* renames and makes the rename last */
/* The same in its steps, for files that appear together: the first may fail, the second hardly. */
inv_status inv__out_name(inv__out *o);
inv_status inv__out_rename(inv__out *o);
inv_status inv__out_sync_folder(inv__out *o);
void inv__out_close(inv__out *o); /* removes the temporary file if it is still there */

#endif
