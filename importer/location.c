/* SPDX-License-Identifier: Apache-2.0
 * Where external data are: opens the file that a tensor names. Read are regular files below the folder of the model's
 * path as it is given, and below the folder of the file that this path leads to: caches such as Hugging Face's have
 * links in one folder to files of another,
 *
 *     snapshots/REVISION/model.onnx       -> ../../blobs/c6ed
 *     snapshots/REVISION/model.onnx_data  -> ../../blobs/b879
 *
 * Every component is opened without following symbolic links; where there is one, the file that it leads to is opened
 * in the same way below one of the two folders. So a model cannot make the program read anything else.
 * What cannot be had is noted per file, and told once, however many tensors are in it. */
#define _XOPEN_SOURCE 700

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "importer/importer.h"

/* --- what is lost --- */

inv_status inv_lose(inv_loader *l, const char *loc, const char *what, inv_status code, const char *fmt, ...)
{
    inv_str wrong;
    va_list ap;
    bool known;
    INV_TRY(inv_lost_again(l, loc, &known));
    if (known) return INV_OK;
    inv_str_init(&wrong, l->ctx);
    va_start(ap, fmt);
    inv_str_addv(&wrong, fmt, ap);
    va_end(ap);
    inv_lost x = {.what = what, .code = code, .tensors = 1};
    x.wrong = wrong.failed ? NULL : inv_arena_strdup(&l->scratch, wrong.s);
    inv_str_fini(&wrong);
    const char *key = inv_arena_strdup(&l->scratch, loc);
    if (!x.wrong || !key) return INV_E_NOMEM;
    l->lost_at.a = &l->scratch;
    INV_TRY(inv_names_put(&l->lost_at, key, (uint32_t)l->lost.n, &known));
    return inv_vec_push(&l->scratch, &l->lost, x) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_lost_again(inv_loader *l, const char *loc, bool *known)
{
    const uint32_t at = inv_names_get(&l->lost_at, loc);
    *known = at != INV_NONE;
    if (*known) l->lost.at[at].tensors++;
    return INV_OK;
}

void inv_lost_tell(inv_loader *l)
{
    for (size_t i = 0; i < l->lost.n; i++) {
        const inv_lost *x = &l->lost.at[i];
        const size_t more = x->tensors - 1;
        if (!more) inv_defect(&l->defects, x->code, "%s: %s", x->what, x->wrong);
        else
            inv_defect(&l->defects, x->code, "%s and %zu more tensor%s: %s", x->what, more, more > 1 ? "s" : "",
                       x->wrong);
    }
    l->lost.n = 0;
    l->lost_at = (inv_names){.a = &l->scratch};
}

/* --- opening --- */

/* Why a location is not allowed; NULL if it is. */
static const char *location_refused(const char *loc)
{
    if (!*loc) return "the external data name no file";
    if (*loc == '/') return "the external data have an absolute path; only files in the model's folder are read";
    for (const char *p = loc;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') return "the external data leave the model's folder by '..'";
        if (!p[n]) return NULL;
        p += n;
    }
}

/* fd, or -1 with errno. Folder by folder, no symbolic links. */
static int open_below(int dir, const char *loc)
{
    char part[256];
    int at = dir;
    for (;;) {
        size_t n = strcspn(loc, "/");
        if (n >= sizeof part) {
            errno = ENAMETOOLONG;
            break;
        }
        memcpy(part, loc, n);
        part[n] = 0;
        bool last = !loc[n];
        int fd = openat(at, n ? part : ".", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (last ? O_NONBLOCK : O_DIRECTORY));
        int e = errno;
        if (at != dir) close(at);
        errno = e;
        if (fd < 0 || last) return fd;
        at = fd;
        loc += n + 1;
    }
    if (at != dir) {
        close(at);
        errno = ENAMETOOLONG;
    }
    return -1;
}

/* The part of `real` below `folder`; NULL: it is not below. */
static const char *below(const char *real, const char *folder)
{
    size_t n = strlen(folder);
    while (n && folder[n - 1] == '/') n--; /* the root */
    return !strncmp(real, folder, n) && real[n] == '/' ? real + n + 1 : NULL;
}

/* The folder of path as it is given, or of what it leads to; false: it cannot be told. */
static bool folder_of(const char *path, bool real, char out[PATH_MAX])
{
    char at[PATH_MAX], *end;
    if (real ? !realpath(path, at) : strlen(path) >= sizeof at) return false;
    if (!real) strcpy(at, path); /* NOLINT: it fits */
    end = strrchr(at, '/');
    if (!end) return realpath(".", out) != NULL;
    end[end == at] = 0;
    return realpath(at, out) != NULL;
}

/* Opens what a symbolic link leads to; -1 with errno, which is EXDEV if it lies elsewhere. */
static int open_link(const char *path, const char *loc, char real[PATH_MAX], bool *elsewhere)
{
    char folder[PATH_MAX], whole[PATH_MAX];
    if (!folder_of(path, false, folder)) return -1;
    if (strlen(folder) + strlen(loc) + 2 > sizeof whole) return errno = ENAMETOOLONG, -1;
    strcat(strcat(strcpy(whole, folder), "/"), loc); /* NOLINT: it fits */
    if (!realpath(whole, real)) return -1;
    for (int of_file = 0; of_file < 2; of_file++) {
        if (of_file && !folder_of(path, true, folder)) return -1;
        const char *rest = below(real, folder);
        if (!rest) continue;
        const int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (dir < 0) return -1;
        const int fd = open_below(dir, rest), e = errno;
        close(dir);
        errno = e;
        *elsewhere = of_file;
        return fd;
    }
    errno = EXDEV;
    return -1;
}

inv_status inv_location_open(inv_loader *l, const char *loc, const char *what, int *fd, bool *elsewhere)
{
    const char *refused = location_refused(loc), *file = "the external data file";
    char real[PATH_MAX] = "";
    bool link = false;
    struct stat st;
    *fd = -1;
    *elsewhere = false;
    if (refused) return inv_lose(l, loc, what, INV_E_IO, "%s ('%s')", refused, loc);
    int at = l->impl->dir < 0 ? -1 : open_below(l->impl->dir, loc);
    if (l->impl->dir < 0) errno = l->impl->no_dir;
    if (at < 0 && (errno == ELOOP || errno == ENOTDIR)) {
        at = open_link(l->model->path, loc, real, elsewhere);
        link = true;
    }
    if (at < 0 && errno == EXDEV)
        return inv_lose(l, loc, what, INV_E_IO,
                        "%s '%s' is a symbolic link to a file outside of the model's folder, '%s'. Copy the folder "
                        "with linked files (cp -rL FOLDER COPY), and load the copy",
                        file, loc, real);
    if (at < 0 && errno == ENOENT)
        return inv_lose(l, loc, what, INV_E_IO,
                        link ? "%s '%s' cannot be opened: it is a broken symbolic link. Download it again"
                             : "%s '%s' cannot be opened: it is missing. It must be in the model's folder, under "
                               "this name",
                        file, loc);
    if (at < 0) return inv_lose(l, loc, what, INV_E_IO, "%s '%s' cannot be opened: %s", file, loc, strerror(errno));
    const char *wrong = fstat(at, &st) != 0    ? strerror(errno)
                        : !S_ISREG(st.st_mode) ? "is not a regular file"
                        : st.st_nlink > 1      ? "has another name elsewhere (a hard link); make a copy of it"
                                               : NULL;
    if (!wrong) return *fd = at, INV_OK;
    close(at);
    return inv_lose(l, loc, what, INV_E_IO, "%s '%s' %s", file, loc, wrong);
}
