/* SPDX-License-Identifier: Apache-2.0
 * Members of .npz archives, by minizip. A stored member is used where it lies in the mapped file. */
#define _GNU_SOURCE /* madvise */

#include <errno.h>
#include <minizip/unzip.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "data/npy.h"

/* No deflate stream expands further than this; a larger claim is a damaged or hostile archive. */
#define LARGEST_RATIO 1032

bool npz_has_suffix(const char *path)
{
    size_t n = strlen(path);
    return n >= 4 && strcmp(path + n - 4, ".npz") == 0;
}

/* minizip does not say why; the system does, of what it was asked for. `errno` is 0 before. */
static bool damaged(FILE *why, const char *otherwise) { return fputs(errno ? strerror(errno) : otherwise, why), false; }

static bool inflate_member(unzFile zip, const unz_file_info64 *info, npy_array *out, FILE *why)
{
    if (info->uncompressed_size / LARGEST_RATIO > info->compressed_size + 64 || info->uncompressed_size > SIZE_MAX / 2)
        return fprintf(why, "the archive claims an impossible size"), false;
    size_t total = (size_t)info->uncompressed_size, done = 0;
    unsigned char *bytes = malloc(total ? total : 1);
    if (!bytes) return fprintf(why, "out of memory for %zu bytes", total), false;
    while (done < total) {
        size_t want = total - done < (1u << 30) ? total - done : (1u << 30);
        int got = unzReadCurrentFile(zip, bytes + done, (unsigned)want);
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (done != total || unzCloseCurrentFile(zip) != UNZ_OK) {
        free(bytes);
        return damaged(why, "the archive is damaged");
    }
    out->owned = bytes;
    return npy_parse(bytes, total, out, why);
}

/* The checksum of a stored member, in parts; the pages of each go back to the system, so that the file does not stay in
 * memory as a whole because it was looked at once. */
static bool sum_holds(const unsigned char *bytes, size_t nbytes, unsigned long wanted)
{
    const size_t part = (size_t)64 << 20, page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned long sum = crc32(0, NULL, 0);
    for (size_t at = 0; at < nbytes; at += part) {
        const size_t n = nbytes - at < part ? nbytes - at : part;
        sum = crc32(sum, bytes + at, (unsigned)n);
        const uintptr_t first = ((uintptr_t)bytes + at) / page * page;
        (void)madvise((void *)first, (uintptr_t)bytes + at + n - first, MADV_DONTNEED);
    }
    return sum == wanted;
}

static bool read_member(unzFile zip, npy_array *out, FILE *why)
{
    unz_file_info64 info;
    if (unzGetCurrentFileInfo64(zip, &info, NULL, 0, NULL, 0, NULL, 0) != UNZ_OK)
        return damaged(why, "the archive is damaged");
    if (info.flag & 1) return fprintf(why, "encrypted archives are not supported"), false;
    if (info.compression_method != 0 && info.compression_method != 8)
        return fprintf(why, "compression method %lu is not supported", info.compression_method), false;
    if (unzOpenCurrentFile(zip) != UNZ_OK) return damaged(why, "the archive is damaged");
    if (info.compression_method == 8) return inflate_member(zip, &info, out, why);

    ZPOS64_T at = unzGetCurrentFileZStreamPos64(zip);
    if (info.compressed_size != info.uncompressed_size || at > out->map_nbytes ||
        info.uncompressed_size > out->map_nbytes - at)
        return fprintf(why, "the archive is damaged"), false;
    if (!sum_holds((const unsigned char *)out->map + at, (size_t)info.uncompressed_size, info.crc))
        return fprintf(why, "the archive is damaged: the member's bytes do not have its checksum"), false;
    return npy_parse((const unsigned char *)out->map + at, (size_t)info.uncompressed_size, out, why);
}

/* Finds the first of `members` that is there; with one member in all, that one. Leaves `zip` at it. */
static bool find_member(unzFile zip, const char *const *members, size_t nmembers, FILE *why)
{
    for (size_t i = 0; i < nmembers; i++) {
        char file[300];
        if (snprintf(file, sizeof file, "%s.npy", members[i]) >= (int)sizeof file) continue;
        if (unzLocateFile(zip, file, 1) == UNZ_OK || unzLocateFile(zip, members[i], 1) == UNZ_OK) return true;
    }
    unz_global_info64 all;
    if (unzGetGlobalInfo64(zip, &all) == UNZ_OK && all.number_entry == 1 && unzGoToFirstFile(zip) == UNZ_OK)
        return true;
    if (errno) return damaged(why, "");
    if (nmembers) fputs("the archive has no member named", why);
    for (size_t i = 0; i < nmembers; i++) {
        size_t same = 0;
        while (strcmp(members[same], members[i]) != 0) same++;
        if (same < i) continue; /* an input 'x' is looked for as 'x' and as the usual 'x' */
        fputs(i ? " or " : " ", why);
        npy_put_name(why, members[i]);
    }
    fputs(nmembers ? "; it has" : "the archive is to have one member; it has", why);
    char file[256];
    int shown = 0;
    for (int s = unzGoToFirstFile(zip); s == UNZ_OK && shown < 20; s = unzGoToNextFile(zip), shown++) {
        if (unzGetCurrentFileInfo64(zip, NULL, file, sizeof file, NULL, 0, NULL, 0) != UNZ_OK) break;
        file[sizeof file - 1] = 0;
        fputs(shown ? ", " : " ", why);
        npy_put_name(why, file);
    }
    if (shown == 0) fprintf(why, " none");
    return false;
}

bool npz_member(const char *path, const char *const *members, size_t nmembers, npy_array *out, FILE *why)
{
    errno = 0;
    unzFile zip = unzOpen64(path);
    if (!zip) return damaged(why, "not a .npz archive");
    bool ok = find_member(zip, members, nmembers, why) && read_member(zip, out, why);
    unzClose(zip);
    return ok;
}
