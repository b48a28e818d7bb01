/* SPDX-License-Identifier: Apache-2.0
 * A file that appears whole or not at all: written without a name in the same folder, synced, given a temporary name,
 * renamed, and the folder synced. Whatever was at `path` stays as it was until the rename; a program that is killed
 * before leaves nothing behind. File systems that know no files without names get the temporary name at once. */
#define _GNU_SOURCE /* O_TMPFILE, sync_file_range */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/output_file.h"

enum { BUFFER = 1 << 16, TRIES = 100, WRITE_BACK = 8 << 20 };

static inv_status failed(const inv_out *o, const char *what)
{
    return inv_fail(o->ctx, INV_E_IO, "cannot write '%s': %s: %s", o->path, what, strerror(errno));
}

/* The folder of the path, in o->temp. */
static const char *folder_of(inv_out *o)
{
    const char *slash = strrchr(o->path, '/');
    size_t n = slash == o->path ? 1 : slash ? (size_t)(slash - o->path) : 0;
    memcpy(o->temp, slash ? o->path : ".", slash ? n : 1);
    o->temp[slash ? n : 1] = 0;
    return o->temp;
}

/* A free temporary name, taken by a new file or, where there is one without a name, by that. */
static inv_status take_name(inv_out *o)
{
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", o->fd);
    for (int i = 0; i < TRIES; i++) {
        snprintf(o->temp, o->temp_size, "%s.tmp-%ld-%d", o->path, (long)getpid(), i);
        if (o->fd < 0 && (o->fd = open(o->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0) return INV_OK;
        if (o->unnamed && linkat(AT_FDCWD, source, AT_FDCWD, o->temp, AT_SYMLINK_FOLLOW) == 0) return INV_OK;
        if (errno != EEXIST) break;
    }
    o->temp[0] = 0; /* nothing of ours to remove */
    return failed(o, "cannot make a temporary file in its folder");
}

static inv_status open_temp(inv_out *o)
{
    o->fd = access("/proc/self/fd", X_OK) == 0 ? open(folder_of(o), O_RDWR | O_TMPFILE | O_CLOEXEC, 0666) : -1;
    o->unnamed = o->fd >= 0;
    o->temp[0] = 0;
    return o->unnamed ? INV_OK : take_name(o);
}

static inv_status open_beside(inv_context *ctx, const char *path, inv_out *o)
{
    struct stat st;
    size_t n = strlen(path), len = n + 64;
    o->path = inv_alloc(ctx, n + 1);
    o->temp = inv_alloc(ctx, len);
    o->buf = inv_alloc(ctx, BUFFER);
    if (!o->path || !o->temp || !o->buf) return INV_E_NOMEM;
    memcpy(o->path, path, n + 1);
    const bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT) return failed(o, "cannot find out whether it exists");
    if (exists && !S_ISREG(st.st_mode))
        return inv_fail(ctx, INV_E_IO, "cannot write '%s': it exists and is not a regular file", path);
    o->temp_size = len;
    INV_TRY(open_temp(o));
    if (exists && fchmod(o->fd, st.st_mode & 0777) != 0) return failed(o, "permissions");
    return INV_OK;
}

inv_status inv_out_open(inv_context *ctx, const char *path, inv_out *o)
{
    *o = (inv_out){.ctx = ctx, .fd = -1};
    const inv_status st = open_beside(ctx, path, o);
    if (st != INV_OK) inv_out_close(o);
    return st;
}

/* The disk begins with what has been written, so that it works while more of it is made. */
static void write_back(inv_out *o)
{
    const off_t end = lseek(o->fd, 0, SEEK_CUR), n = (off_t)o->behind;
    if (end >= n) (void)sync_file_range(o->fd, end - n, n, SYNC_FILE_RANGE_WRITE);
    o->behind = 0;
}

static inv_status write_all(inv_out *o, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t k = write(o->fd, p, n < ((size_t)1 << 30) ? n : (size_t)1 << 30);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return failed(o, "writing");
        p += k;
        n -= (size_t)k;
        o->behind += (size_t)k;
    }
    if (o->behind >= WRITE_BACK) write_back(o);
    return INV_OK;
}

inv_status inv_out_flush(inv_out *o)
{
    size_t n = o->n;
    o->n = 0;
    return write_all(o, o->buf, n);
}

inv_status inv_out_write(inv_out *o, const void *data, size_t nbytes)
{
    if (!nbytes) return INV_OK;
    o->total += nbytes;
    if (nbytes > BUFFER - o->n) INV_TRY(inv_out_flush(o));
    if (nbytes >= BUFFER) return write_all(o, data, nbytes);
    memcpy(o->buf + o->n, data, nbytes);
    o->n += nbytes;
    return INV_OK;
}

inv_status inv_out_skip(inv_out *o, uint64_t nbytes)
{
    o->total += nbytes;
    INV_TRY(inv_out_flush(o));
    if (nbytes > INT64_MAX || lseek(o->fd, (off_t)nbytes, SEEK_CUR) < 0) return failed(o, "size");
    return INV_OK;
}

inv_status inv_out_overwrite(inv_out *o, uint64_t at, const void *data, size_t nbytes)
{
    INV_TRY(inv_out_flush(o));
    for (size_t done = 0; done < nbytes;) {
        const ssize_t k = pwrite(o->fd, (const uint8_t *)data + done, nbytes - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return failed(o, "writing");
        done += (size_t)k;
    }
    return INV_OK;
}

inv_status inv_out_sync(inv_out *o)
{
    INV_TRY(inv_out_flush(o));
    return fsync(o->fd) == 0 ? INV_OK : failed(o, "sync");
}

inv_status inv_out_sync_folder(inv_out *o)
{
    int fd = open(folder_of(o), /* the temporary name is no longer needed */ O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A folder that may be written but not read, or a file system that syncs no folders: the file is there. */
    bool ok = fd < 0 ? errno == EACCES : fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
    int e = errno;
    if (fd >= 0) close(fd);
    errno = e;
    o->temp[0] = 0;
    return ok ? INV_OK : failed(o, "sync of its folder");
}

inv_status inv_out_name(inv_out *o)
{
    if (o->unnamed) INV_TRY(take_name(o));
    int fd = o->fd;
    o->fd = -1;
    return close(fd) == 0 ? INV_OK : failed(o, "close");
}

inv_status inv_out_rename(inv_out *o) { return rename(o->temp, o->path) == 0 ? INV_OK : failed(o, "rename"); }

inv_status inv_out_publish(inv_out *o)
{
    INV_TRY(inv_out_name(o));
    INV_TRY(inv_out_rename(o));
    return inv_out_sync_folder(o);
}

void inv_out_close(inv_out *o)
{
    if (o->fd >= 0) close(o->fd);
    if (o->temp && o->temp[0]) unlink(o->temp);
    if (o->ctx) {
        inv_dealloc(o->ctx, o->path);
        inv_dealloc(o->ctx, o->temp);
        inv_dealloc(o->ctx, o->buf);
    }
    *o = (inv_out){.fd = -1};
}
