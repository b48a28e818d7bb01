/* SPDX-License-Identifier: Apache-2.0
 * Files without a name (see the header). /tmp is often memory, /var/tmp is on a disk. */
#define _GNU_SOURCE /* madvise */
#include "data/spool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *spool_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/var/tmp";
}

static bool spool_failed(FILE *why)
{
    fprintf(why, "a temporary file in %s: %s; TMPDIR names another folder", spool_folder(), strerror(errno));
    return false;
}

bool spool_open(spool *s, FILE *why)
{
    static const char name[] = "/invonnx-XXXXXX";
    char *path = malloc(strlen(spool_folder()) + sizeof name);
    *s = (spool){0};
    if (!path) return fputs("out of memory", why), false;
    sprintf(path, "%s%s", spool_folder(), name);
    const int fd = mkstemp(path);
    if (fd >= 0) unlink(path);
    free(path);
    if (fd >= 0) s->f = fdopen(fd, "w+b");
    if (!s->f && fd >= 0) close(fd);
    return s->f || spool_failed(why);
}

bool spool_put(spool *s, const void *p, size_t nbytes, FILE *why)
{
    s->nbytes += nbytes;
    return fwrite(p, 1, nbytes, s->f) == nbytes || spool_failed(why);
}

bool spool_map(spool *s, FILE *why)
{
    if (fflush(s->f) != 0) return spool_failed(why);
    if (s->nbytes == 0) return true;
    s->map = mmap(NULL, s->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(s->f), 0);
    if (s->map != MAP_FAILED) return true;
    s->map = NULL;
    return spool_failed(why);
}

void spool_give_back(const spool *s)
{
    if (s->map) (void)madvise(s->map, s->nbytes, MADV_DONTNEED);
}

void spool_close(spool *s)
{
    if (s->map) munmap(s->map, s->nbytes);
    if (s->f) fclose(s->f);
    *s = (spool){0};
}
