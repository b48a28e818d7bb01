/* SPDX-License-Identifier: Apache-2.0
 * What the process takes, as the system counts it: sessions' arenas, and beside them the program, models, what was
 * compiled, and what libraries have for themselves. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "executor/executor.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Pages that are resident less those of files: the second number of the file less the third. */
uint64_t inv_process_bytes(void)
{
    char text[256];
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = text;
    uint64_t pages[3] = {0};
    for (int i = 0; i < 3; i++) pages[i] = strtoull(at, &at, 10);
    return pages[1] > pages[2] ? (pages[1] - pages[2]) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void inv_process_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}
