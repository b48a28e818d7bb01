/* SPDX-License-Identifier: Apache-2.0
 * System calls that fail when a test wants it: the n-th call of one kind, of the program and of every library that it
 * uses. The functions below take the places of the C library's. Included once. */
#ifndef INVONNX_FAILING_CALLS_H
#define INVONNX_FAILING_CALLS_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHORT = -1 }; /* in place of an errno: half of the bytes, and no failure */

typedef enum call_kind {
    CALL_OPEN,
    CALL_CLOSE,
    CALL_READ,
    CALL_WRITE,
    CALL_FSTAT,
    CALL_STAT,
    CALL_LSEEK,
    CALL_MMAP,
    CALL_FSYNC,
    CALL_FCHMOD,
    CALL_LINK,
    CALL_RENAME,
    CALL_MKDIR,
    CALL_ACCESS,
    CALL_REALPATH,
    CALL_MKSTEMP,
    CALL_OPENDIR,
    CALL_READDIR,
    CALL_DLOPEN,
    CALL_FOPEN,
    CALL_FREAD,
    CALL_FWRITE,
    CALL_FSEEK,
    CALL_FFLUSH,
    CALL_FCLOSE,
    CALL_KINDS
} call_kind;

static struct {
    _Atomic bool armed;
    call_kind kind;
    int error;                      /* an errno, or SHORT */
    atomic_size_t made[CALL_KINDS]; /* calls while it is armed */
    size_t fail_at;                 /* the one that fails, from 1 on; 0: none */
} failing;

/* Whether this call is the one. */
static bool call_fails(call_kind kind)
{
    if (!failing.armed) return false;
    const size_t n = atomic_fetch_add(&failing.made[kind], 1) + 1;
    if (failing.kind != kind || n != failing.fail_at) return false;
    if (failing.error != SHORT) errno = failing.error;
    return true;
}

/* The function of the library behind; a pointer to an object is no pointer to a function. */
#define REAL(name)                                     \
    __typeof__(name) *real_;                           \
    do {                                               \
        static void *_Atomic found_;                   \
        if (!found_) found_ = dlsym(RTLD_NEXT, #name); \
        *(void **)(void *)&real_ = (void *)found_;     \
    } while (0)
#define INSTEAD __attribute__((visibility("default")))

/* NAME(...) that gives `failed` when it is the one. */
#define FAILING(kind, type, failed, name, parameters, ...)              \
    INSTEAD type name parameters                                        \
    {                                                                   \
        REAL(name);                                                     \
        return call_fails(CALL_##kind) ? (failed) : real_(__VA_ARGS__); \
    }
/* The same of a call that has some bytes done: all of them, half of them, or none. */
#define PARTIAL(kind, name, parameters, nbytes, all, half)                                                    \
    INSTEAD ssize_t name parameters                                                                           \
    {                                                                                                         \
        REAL(name);                                                                                           \
        if (!call_fails(CALL_##kind)) return real_ all;                                                       \
        return failing.error == SHORT && (nbytes) > 1 ? real_ half : failing.error == SHORT ? real_ all : -1; \
    }

FAILING(FSTAT, int, -1, fstat, (int fd, struct stat *st), fd, st)
FAILING(STAT, int, -1, stat, (const char *path, struct stat *st), path, st)
FAILING(STAT, int, -1, fstatat, (int at, const char *path, struct stat *st, int flags), at, path, st, flags)
FAILING(LSEEK, off_t, -1, lseek, (int fd, off_t offset, int whence), fd, offset, whence)
FAILING(FCHMOD, int, -1, fchmod, (int fd, mode_t mode), fd, mode)
FAILING(LINK, int, -1, linkat, (int a, const char *from, int b, const char *to, int flags), a, from, b, to, flags)
FAILING(RENAME, int, -1, rename, (const char *from, const char *to), from, to)
FAILING(MKDIR, int, -1, mkdir, (const char *path, mode_t mode), path, mode)
FAILING(ACCESS, int, -1, access, (const char *path, int mode), path, mode)
FAILING(REALPATH, char *, NULL, realpath, (const char *path, char *out), path, out)
FAILING(MKSTEMP, int, -1, mkstemp, (char *path), path)
FAILING(OPENDIR, DIR *, NULL, opendir, (const char *path), path)
FAILING(READDIR, struct dirent *, NULL, readdir, (DIR * d), d)
FAILING(DLOPEN, void *, NULL, dlopen, (const char *path, int mode), path, mode)
FAILING(FOPEN, FILE *, NULL, fopen, (const char *path, const char *mode), path, mode)
FAILING(FOPEN, FILE *, NULL, fdopen, (int fd, const char *mode), fd, mode)
FAILING(FSEEK, int, -1, fseek, (FILE * f, long offset, int whence), f, offset, whence)
FAILING(FSEEK, int, -1, fseeko, (FILE * f, off_t offset, int whence), f, offset, whence)
FAILING(FFLUSH, int, EOF, fflush, (FILE * f), f)
PARTIAL(READ, read, (int fd, void *to, size_t n), n, (fd, to, n), (fd, to, n / 2))
PARTIAL(READ, pread, (int fd, void *to, size_t n, off_t at), n, (fd, to, n, at), (fd, to, n / 2, at))
PARTIAL(WRITE, write, (int fd, const void *from, size_t n), n, (fd, from, n), (fd, from, n / 2))
PARTIAL(WRITE, pwrite, (int fd, const void *from, size_t n, off_t at), n, (fd, from, n, at), (fd, from, n / 2, at))

static mode_t mode_of(int flags, va_list ap)
{
    if (flags & (O_CREAT | O_TMPFILE)) return va_arg(ap, mode_t);
    return 0;
}

INSTEAD int open(const char *path, int flags, ...)
{
    REAL(open);
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return call_fails(CALL_OPEN) ? -1 : real_(path, flags, mode);
}

INSTEAD int openat(int at, const char *path, int flags, ...)
{
    REAL(openat);
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return call_fails(CALL_OPEN) ? -1 : real_(at, path, flags, mode);
}

/* No test waits for a disk. */
INSTEAD int fsync(int fd)
{
    (void)fd;
    return call_fails(CALL_FSYNC) ? -1 : 0;
}

/* Of files only, which memory is not. */
INSTEAD void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    REAL(mmap);
    return fd >= 0 && call_fails(CALL_MMAP) ? MAP_FAILED : real_(at, n, protection, flags, fd, offset);
}

/* The descriptor is gone, whatever close says. */
INSTEAD int close(int fd)
{
    REAL(close);
    const bool fails = call_fails(CALL_CLOSE);
    const int error = errno, got = real_(fd);
    if (fails) errno = error;
    return fails ? -1 : got;
}

INSTEAD int fclose(FILE *f)
{
    REAL(fclose);
    const bool fails = call_fails(CALL_FCLOSE);
    const int error = errno, got = real_(f);
    if (fails) errno = error;
    return fails ? EOF : got;
}

enum { STREAM_ERROR = 0x20 }; /* what ferror looks at, in glibc */

INSTEAD size_t fread(void *to, size_t size, size_t n, FILE *f)
{
    REAL(fread);
    if (!call_fails(CALL_FREAD)) return real_(to, size, n, f);
    if (failing.error == SHORT) return real_(to, size, n / 2, f);
    f->_flags |= STREAM_ERROR;
    return 0;
}

INSTEAD size_t fwrite(const void *from, size_t size, size_t n, FILE *f)
{
    REAL(fwrite);
    if (!call_fails(CALL_FWRITE)) return real_(from, size, n, f);
    f->_flags |= STREAM_ERROR;
    return 0;
}

#endif
