/* SPDX-License-Identifier: Apache-2.0
 * A file that appears whole or not at all (output_file.c says how). Every function fails with INV_E_IO, named. */
#ifndef INV_CORE_OUTPUT_FILE_H
#define INV_CORE_OUTPUT_FILE_H

#include "core/base/mem.h"

typedef struct inv_out {
    inv_context *ctx;
    char *path, *temp; /* owned; temp[0] 0: no temporary name is taken */
    size_t temp_size;
    bool unnamed;
    int fd;
    uint8_t *buf;
    size_t n, behind; /* bytes: in `buf`; written, but not yet on the way to the disk */
    uint64_t total;
} inv_out;
inv_status inv_out_open(inv_context *ctx, const char *path, inv_out *o); /* on failure nothing is left of it */
inv_status inv_out_write(inv_out *o, const void *data, size_t nbytes);
inv_status inv_out_skip(inv_out *o, uint64_t nbytes); /* zeros, where possible without taking up space */
/* In place of what was written from there on; the next bytes go behind all. */
inv_status inv_out_overwrite(inv_out *o, uint64_t at, const void *data, size_t nbytes);
inv_status inv_out_flush(inv_out *o);   /* all in the file, as far as its readers can tell */
inv_status inv_out_sync(inv_out *o);    /* all on disk under the temporary name */
inv_status inv_out_publish(inv_out *o); /* renames and makes the rename last */
/* The same in its steps, for files that appear together: the first may fail, the second hardly. */
inv_status inv_out_name(inv_out *o);
inv_status inv_out_rename(inv_out *o);
inv_status inv_out_sync_folder(inv_out *o);
void inv_out_close(inv_out *o); /* removes the temporary file if it is still there */

#endif
