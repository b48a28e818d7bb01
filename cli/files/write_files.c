/* SPDX-License-Identifier: Apache-2.0
 * Files that the program writes: .npy arrays and pictures, each by a temporary file beside it and rename. */
#include "cli/files/write_files.h"

#include <errno.h>
#include <fcntl.h>
#include <minizip/zip.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/say/messages.h"
#include "data/npy.h"

static bool plain(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

/* File systems take names of 255 bytes, and cli_file_open adds ten. */
enum { LONGEST_FILE = 245, HASH_DIGITS = 16, SUFFIX = 4 };

static uint64_t hash_of(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

/* Cuts an encoded name, but no %XX, so that a hash of the whole fits behind it. */
static size_t cut(char *file)
{
    const uint64_t hash = hash_of(file);
    size_t n = LONGEST_FILE - SUFFIX - HASH_DIGITS - 1;
    for (size_t k = 1; k <= 2; k++)
        if (file[n - k] == '%') n -= k;
    return n + (size_t)sprintf(file + n, "-%016llx", (unsigned long long)hash);
}

char *cli_dump_path(const char *dir, const char *prefix, const char *name, bool *shortened)
{
    size_t folder = strlen(dir) + 1, need = folder + strlen(prefix) + 3 * strlen(name) + SUFFIX + HASH_DIGITS + 8;
    char *path = malloc(need);
    if (!path) return NULL;
    int n = snprintf(path, need, "%s/%s", dir, prefix);
    char *p = path + n;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        if (plain(*c)) *p++ = (char)*c;
        else p += snprintf(p, 4, "%%%02X", *c);
    }
    *p = 0;
    size_t length = (size_t)(p - path) - folder;
    bool over = length + SUFFIX > LONGEST_FILE;
    if (over) length = cut(path + folder);
    if (shortened) *shortened = *shortened || over;
    memcpy(path + folder + length, ".npy", SUFFIX + 1);
    return path;
}

int cli_make_dir(const char *dir, bool *made)
{
    *made = false;
    char *path = strdup(dir);
    if (!path) return cli_fail("out of memory");
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0777); /* what matters is whether the last one is there */
        *p = '/';
    }
    int status = CLI_OK;
    struct stat st;
    if (mkdir(path, 0777) == 0) *made = true;
    else if (errno != EEXIST || stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        status = cli_fail("%s: directory cannot be made: %s", dir, strerror(errno));
    free(path);
    return status;
}

int cli_file_open(cli_file *file, const char *path)
{
    struct stat st;
    if (!*path) return cli_fail("a file to be written has an empty name");
    /* A rename would put a file in the place of a device, a pipe or what a link leads to. */
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) return cli_fail("%s: exists and is not a regular file", path);
    *file = (cli_file){.path = strdup(path), .temporary = malloc(strlen(path) + 12)};
    if (!file->path || !file->temporary) {
        free(file->path);
        free(file->temporary);
        return cli_fail("out of memory");
    }
    sprintf(file->temporary, "%s.tmpXXXXXX", path);
    int fd = mkstemp(file->temporary);
    if (fd >= 0) {
        /* mkstemp makes it private; give it the mode that fopen would have given */
        mode_t mask = umask(0);
        umask(mask);
        fchmod(fd, 0666 & ~mask);
        file->f = fdopen(fd, "wb");
        if (!file->f) close(fd);
    }
    if (file->f) {
        errno = 0;
        return CLI_OK;
    }
    int status = cli_fail("%s: cannot be written: %s", path, strerror(errno));
    free(file->path);
    free(file->temporary);
    return status;
}

int cli_file_close(cli_file *file, bool ok)
{
    int status = ok ? CLI_OK : CLI_FAILED;
    /* After a failed write nothing but further failed writes came: errno, 0 since the opening, still says why. */
    if (!ferror(file->f)) errno = 0;
    bool written = !ferror(file->f) && fflush(file->f) == 0 && fsync(fileno(file->f)) == 0;
    int error = written ? 0 : errno;
    if (fclose(file->f) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && ok && rename(file->temporary, file->path) != 0) {
        written = false;
        error = errno;
    }
    if (ok && !written) status = cli_fail("%s: cannot be written: %s", file->path, strerror(error ? error : EIO));
    if (status != CLI_OK) unlink(file->temporary);
    free(file->path);
    free(file->temporary);
    *file = (cli_file){0};
    return status;
}

char *cli_text_of_file(const char *path)
{
    const size_t most = (size_t)256 << 20; /* of a file that grows */
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would be waited for */
    if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        close(fd);
        cli_fail("%s: cannot be read: not a regular file", path);
        return NULL;
    }
    FILE *f = fd >= 0 ? fdopen(fd, "rb") : NULL;
    char *text = NULL;
    size_t n = 0, room = 0;
    bool ok = f != NULL;
    if (!f && fd >= 0) close(fd);
    while (ok && !feof(f)) {
        char *grown = realloc(text, room = 2 * room + 65536);
        if (grown) text = grown;
        if ((ok = grown != NULL)) n += fread(text + n, 1, room - n - 1, f);
        ok = ok && !ferror(f);
        if (ok && n > most) errno = EFBIG;
        ok = ok && n <= most;
    }
    if (!ok) {
        cli_fail("%s: cannot be read: %s", path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (text) text[n] = 0;
    if (f) fclose(f);
    return text;
}

size_t cli_nelem(int rank, const int64_t *dims)
{
    size_t n = 1;
    for (int i = 0; i < rank; i++) n *= (size_t)dims[i];
    return n;
}

static const char *descr_of(inv_dtype t)
{
    switch (t) {
    case INV_F32: return "<f4";
    case INV_F64: return "<f8";
    case INV_F16: return "<f2";
    case INV_I8: return "|i1";
    case INV_U8: return "|u1";
    case INV_BOOL: return "|b1";
    case INV_I16: return "<i2";
    case INV_U16: return "<u2";
    case INV_I32: return "<i4";
    case INV_U32: return "<u4";
    case INV_I64: return "<i8";
    case INV_U64: return "<u8";
    default: return NULL;
    }
}

/* Version 1.0: the header ends with a newline at a multiple of 64 bytes. */
static void write_header(FILE *f, const char *descr, int rank, const int64_t *dims)
{
    char text[512];
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < rank; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld%s", i ? " " : "", (long long)dims[i],
                      i + 1 < rank || rank == 1 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    int total = (10 + n + 1 + 63) / 64 * 64, length = total - 10;
    fwrite("\x93NUMPY\x01\x00", 1, 8, f);
    fputc(length & 255, f);
    fputc(length >> 8, f);
    fprintf(f, "%-*s\n", length - 1, text);
}

int cli_write_npy(const char *path, const void *data, inv_dtype dtype, int rank, const int64_t *dims, bool wide)
{
    bool real = dtype == INV_F32 || dtype == INV_F64;
    inv_dtype stored = real ? (wide ? INV_F64 : INV_F32) : dtype;
    const char *descr = descr_of(stored);
    if (!descr) return cli_fail("%s: a %s tensor has no place in a .npy file", path, cli_dtype_name(dtype));
    cli_file file;
    if (cli_file_open(&file, path) != CLI_OK) return CLI_FAILED;
    write_header(file.f, descr, rank, dims);
    size_t n = cli_nelem(rank, dims);
    if (stored == dtype) {
        if (n) fwrite(data, npy_itemsize(dtype), n, file.f);
    } else {
        for (size_t i = 0; i < n; i++) {
            double d = npy_element(data, dtype, i);
            float s = (float)d;
            if (stored == INV_F64) fwrite(&d, sizeof d, 1, file.f);
            else fwrite(&s, sizeof s, 1, file.f);
        }
    }
    return cli_file_close(&file, true);
}

/* --- archives --- */

static bool put_entry(zipFile zip, const char *name, const void *data, inv_dtype dtype, int rank, const int64_t *dims)
{
    enum { STORED = 0, UTF8 = 1 << 11, PART = 1 << 30 };
    const char *descr = descr_of(dtype);
    const size_t nbytes = cli_nelem(rank, dims) * npy_itemsize(dtype);
    char *file = malloc(strlen(name) + sizeof ".npy"), *head = NULL;
    size_t nhead = 0;
    FILE *f = descr && file ? open_memstream(&head, &nhead) : NULL;
    if (f) write_header(f, descr, rank, dims);
    if (f) fclose(f);
    bool ok = file && head;
    if (ok) sprintf(file, "%s.npy", name);
    ok = ok && zipOpenNewFileInZip4_64(zip, file, NULL, NULL, 0, NULL, 0, NULL, STORED, 0, 0, 0, 0, 0, NULL, 0, 0, UTF8,
                                       1) == ZIP_OK;
    ok = ok && zipWriteInFileInZip(zip, head, (unsigned)nhead) == ZIP_OK;
    for (size_t at = 0; ok && at < nbytes; at += PART)
        ok = zipWriteInFileInZip(zip, (const char *)data + at, (unsigned)(nbytes - at < PART ? nbytes - at : PART)) ==
             ZIP_OK;
    ok = ok && zipCloseFileInZip(zip) == ZIP_OK;
    free(file);
    free(head);
    return ok || !descr; /* a type that .npy has no word for is no parameter's */
}

bool cli_write_weights(inv_session *session, const char *path)
{
    zipFile zip = zipOpen64(path, APPEND_STATUS_CREATE);
    bool ok = zip != NULL;
    const char *name;
    for (size_t i = 0; ok && (name = inv_session_name(session, INV_GET_HELD, i)); i++) {
        const void *data;
        inv_dtype dtype;
        int rank;
        int64_t dims[NPY_MAX_RANK];
        inv_view there;
        if (inv_session_view(session, INV_GET_HELD, name, &there) == INV_OK && !there.persists) continue;
        ok = inv_session_get(session, INV_GET_HELD, name, &data, &dtype, &rank, dims) == INV_OK &&
             put_entry(zip, name, data, dtype, rank, dims);
    }
    if (zip) ok = zipClose(zip, NULL) == ZIP_OK && ok;
    int fd = ok ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ok = ok && fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    if (zip && !ok) unlink(path);
    return ok;
}
