/* SPDX-License-Identifier: Apache-2.0
 * Mapped files that change under a run. Where a file has been cut short, the handler of SIGBUS puts zeros in the place
 * of what is gone, so that the reader goes on; whoever uses what was read asks data_watch_cut before he believes it. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */

#include "data/watch.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct watched {
    struct watched *next;
    const char *path, *consequence;
    uintptr_t base; /* 0: no longer mapped */
    size_t nbytes;
    struct stat st;
    volatile sig_atomic_t cut;
    bool noted;
} watched;

/* Entries are added in front, complete, and stay: the handler may walk the list at any time. */
static watched *volatile list;
static uintptr_t page;

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr & ~(page - 1);
    for (watched *w = list; w; w = w->next) {
        const uintptr_t end = w->base + (w->nbytes + page - 1) / page * page;
        if (!w->base || at < w->base || at >= end) continue;
        w->cut = 1;
        /* what is behind is gone, too */
        void *p = mmap((void *)at, end - at, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) return;
    }
    signal(number, SIG_DFL); /* the instruction is run again, and ends the program */
}

void data_watch(const char *path, const void *base, size_t nbytes, const char *consequence)
{
    watched *w = calloc(1, sizeof *w);
    char *name = strdup(path);
    if (!w || !name) { /* goes on without a watch */
        free(w);
        free(name);
        return;
    }
    *w = (watched){.next = list, .path = name, .consequence = consequence, .base = (uintptr_t)base, .nbytes = nbytes};
    if (stat(path, &w->st) != 0) w->st.st_ino = 0;
    if (!list) {
        struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
        page = (uintptr_t)sysconf(_SC_PAGESIZE);
        sigaction(SIGBUS, &action, NULL);
    }
    list = w;
}

void data_unwatch(const void *base)
{
    for (watched *w = list; w; w = w->next)
        if (w->base == (uintptr_t)base) w->base = 0;
}

/* Whether the file that is mapped, not one that has taken its place, is now of another size or younger. */
static bool changed(const watched *w, off_t *nbytes)
{
    struct stat st;
    if (!w->base || !w->st.st_ino || stat(w->path, &st) != 0) return false;
    if (st.st_dev != w->st.st_dev || st.st_ino != w->st.st_ino) return false;
    *nbytes = st.st_size;
    return st.st_size != w->st.st_size || st.st_mtim.tv_sec != w->st.st_mtim.tv_sec ||
           st.st_mtim.tv_nsec != w->st.st_mtim.tv_nsec;
}

const char *data_watch_cut(void)
{
    off_t nbytes;
    for (const watched *w = list; w; w = w->next)
        if (w->cut || (!w->consequence && changed(w, &nbytes) && (size_t)nbytes < w->nbytes)) return w->path;
    return NULL;
}

void data_watch_note(void (*warn)(const char *format, ...))
{
    off_t nbytes;
    for (watched *w = list; w; w = w->next) {
        if (w->noted || !changed(w, &nbytes)) continue;
        w->noted = true;
        warn("another program changed '%s' after it had been opened (%zu bytes then, %lld now)%s", w->path, w->nbytes,
             (long long)nbytes, w->consequence ? w->consequence : "; its rows may be other ones now");
    }
}
