/* SPDX-License-Identifier: Apache-2.0
 * One run at a time writes an output: beside it lies OUT.lock, locked by the run that will write it. The system lets go
 * of the lock when a run ends, however it does, so a lock file that a killed run has left is in nobody's way. */
#include "cli/files/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/say/messages.h"
#include "cli/say/signals.h"

static char *held[16]; /* the lock files that go with this run; NULL behind them */

static void drop_lock(void)
{
    for (size_t i = 0; i < sizeof held / sizeof *held && held[i]; i++) unlink(held[i]);
}

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

/* Signals that end a program end this one, too, but not without taking the lock file away. That nobody reads any more
 * what it says, as behind `| head` or when Ctrl-C has ended `| tee`, is no reason to end without the output. */
static void drop_at_end(void)
{
    static bool done;
    if (done) return;
    done = true;
    const struct sigaction action = {.sa_handler = cli_end_by_signal, .sa_flags = SA_RESTART};
    atexit(drop_lock);
    cli_before_signal(drop_lock);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
}

/* The holder takes its file away when it ends; who has opened it before then holds a lock that nobody else sees. */
static bool still_there(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

/* The lock file, open and locked; -1 if it cannot be made, -2 if another run, `*holder`, has it. */
static int lock_file(const char *path, pid_t *holder)
{
    for (;;) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (fd < 0) return -1;
        const bool locked = fcntl(fd, F_SETLK, &lock) == 0, taken = !locked && (errno == EAGAIN || errno == EACCES);
        if (locked && still_there(fd, path)) return fd;
        if (taken && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) *holder = lock.l_pid;
        close(fd);
        if (!locked) return taken ? -2 : -1;
    }
}

static int lock(const char *option, const char *given, const char *path)
{
    pid_t holder = 0;
    struct stat st;
    char *name = malloc(strlen(path) + sizeof ".lock");
    if (!name) return cli_fail("out of memory");
    sprintf(name, "%s.lock", path);
    size_t mine = 0;
    while (mine < sizeof held / sizeof *held && held[mine] && strcmp(held[mine], name) != 0) mine++;
    if (mine == sizeof held / sizeof *held || held[mine]) {
        free(name);
        return CLI_OK;
    }
    int fd = lock_file(name, &holder), status = CLI_OK;
    if (fd == -2) {
        char process[48] = "";
        if (holder > 0) snprintf(process, sizeof process, " (process %ld)", (long)holder);
        status = cli_fail("%s %s: another run is going to write it%s; wait for its end, or name another file", option,
                          given, process);
    }
    /* Where locks cannot be had, as on some network file systems, there are none. A file that somebody else has filled
     * is not ours to remove. */
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0) {
        held[mine] = name;
        drop_at_end();
        return status;
    }
    free(name);
    return status;
}

/* A signal waits until the lock file is known to what takes it away. */
int cli_lock(const char *option, const char *given, const char *path)
{
    sigset_t ends, before;
    sigemptyset(&ends);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&ends, numbers[i]);
    sigprocmask(SIG_BLOCK, &ends, &before);
    const int status = lock(option, given, path);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
