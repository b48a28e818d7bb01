/* SPDX-License-Identifier: Apache-2.0
 * A call that opens files, with each of its system calls failing in turn: the n-th of a kind, for n = 1, 2, ..., until
 * the call runs through. Whoever calls is told which file and why, or the failure does not matter and all is as without
 * it. Nothing is left over: no descriptor, no memory, no file; what was in a file's place is there, or all of the new
 * one. And the same call succeeds afterwards. Included once. */
#ifndef INVONNX_FAILING_SWEEP_H
#define INVONNX_FAILING_SWEEP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "counting.h"
#include "failing_calls.h"
#include "invonnx/invonnx.h"

enum { LONGEST = 1 << 20 };
static const char old[] = "what was there before";

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[8][200];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", folder, name);
    return path[at];
}

/* --- files --- */

static size_t read_file(const char *path, char *out)
{
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(out, 1, LONGEST, f) : 0;
    if (f) fclose(f);
    return n;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void copy_file(const char *from, const char *name)
{
    static char bytes[LONGEST];
    const size_t n = read_file(from, bytes);
    assert_in_range(n, 1, LONGEST - 1);
    write_file(name, bytes, n);
}

static size_t count_entries(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static size_t descriptors(void) { return count_entries("/proc/self/fd"); }

/* --- what is attempted --- */

typedef struct attempt {
    failing_memory c;
    inv_allocator allocator;
    inv_context *ctx;
    inv_model *model, *other;
    inv_session *session;
    char *json;
    char why[4096]; /* what a call without a context says */
} attempt;

typedef struct work {
    const char *what;
    void (*ready)(attempt *);
    inv_status (*call)(attempt *);
    const char *file;   /* what a message names */
    const char *out[2]; /* files that are written */
    bool spent;         /* after a failure the model is of no use */
    bool silent;        /* whatever fails: the call goes on without the file */
    bool no_rules;
} work;

static void nothing(attempt *a) { (void)a; }

/* --- the sweep --- */

static void open_attempt(attempt *a, const work *w)
{
    *a = (attempt){.allocator = {counted_alloc, counted_free, NULL}};
    a->allocator.opaque = &a->c;
    const inv_context_options o = {.size = sizeof o, .allocator = &a->allocator, .no_rules = w->no_rules};
    assert_int_equal(inv_context_create(&o, &a->ctx), INV_OK);
    w->ready(a);
}

static void drop_results(attempt *a)
{
    inv_free(a->ctx, a->json);
    inv_model_destroy(a->other);
    a->json = NULL;
    a->other = NULL;
}

static void close_attempt(attempt *a)
{
    drop_results(a);
    inv_session_destroy(a->session);
    inv_model_destroy(a->model);
    inv_context_destroy(a->ctx);
}

/* What the files are without a failure. */
static char right[2][LONGEST];
static size_t right_nbytes[2];

static void put_outs(const work *w, bool there)
{
    for (int i = 0; i < 2 && w->out[i]; i++) {
        if (there) write_file(w->out[i], old, sizeof old);
        else (void)remove(in_folder(w->out[i]));
    }
}

static size_t count_outs(const work *w)
{
    size_t n = 0;
    for (int i = 0; i < 2 && w->out[i]; i++) n += access(in_folder(w->out[i]), F_OK) == 0;
    return n;
}

/* 1: all of the new file, 0: what was there before, -1: anything else. */
static int what_is_at(const work *w, int i, bool there)
{
    static char bytes[LONGEST];
    const char *path = in_folder(w->out[i]);
    const size_t n = read_file(path, bytes);
    if (n == right_nbytes[i] && memcmp(bytes, right[i], n) == 0) return 1;
    if (!there) return access(path, F_OK) == 0 ? -1 : 0;
    return n == sizeof old && memcmp(bytes, old, n) == 0 ? 0 : -1;
}

static const char *const call_names[] = {"open",     "close",   "read",    "write",   "fstat",  "stat",  "lseek",
                                         "mmap",     "fsync",   "fchmod",  "link",    "rename", "mkdir", "access",
                                         "realpath", "mkstemp", "opendir", "readdir", "dlopen", "fopen", "fread",
                                         "fwrite",   "fseek",   "fflush",  "fclose"};
_Static_assert(sizeof call_names / sizeof *call_names == CALL_KINDS, "a name for each");

typedef struct failure {
    const work *w;
    call_kind kind;
    int error;
    size_t n;
    bool there;
} failure;

static const char *told(const failure *p)
{
    static char text[300];
    snprintf(text, sizeof text, "%s, %s %zu fails with '%s'%s", p->w->what, call_names[p->kind], p->n,
             p->error == SHORT ? "half of the bytes" : strerror(p->error), p->there ? ", a file there" : "");
    return text;
}

static void check_message(const failure *p, const attempt *a)
{
    const char *message = p->w->file ? inv_context_message(a->ctx) : a->why;
    if (!*message || strstr(message, "Success") || strstr(message, "--")) fail_msg("%s: %s", told(p), message);
    if (p->w->file && !strstr(message, p->w->file)) fail_msg("%s: the file is not named: %s", told(p), message);
    if (!p->w->file && p->kind == CALL_STAT) return; /* what is there is tried as one kind after the other */
    if (p->kind == CALL_DLOPEN) return;              /* the linker was not asked */
    if (p->error != SHORT && !strstr(message, strerror(p->error))) fail_msg("%s: no cause: %s", told(p), message);
}

static void check_outs(const failure *p, inv_status s)
{
    const work *w = p->w;
    for (int i = 0, before = 0; i < 2 && w->out[i]; i++) {
        const int at = what_is_at(w, i, p->there);
        if (at < 0 || (s == INV_OK && at == 0 && !w->silent)) fail_msg("%s: '%s' is not whole", told(p), w->out[i]);
        if (i && at != before && p->kind != CALL_RENAME)
            fail_msg("%s: '%s' and '%s' are not of one model", told(p), w->out[0], w->out[i]);
        before = at;
    }
}

static inv_status run_armed(const work *w, attempt *a, size_t fail_at)
{
    failing.fail_at = fail_at;
    for (int kind = 0; kind < CALL_KINDS; kind++) failing.made[kind] = 0;
    failing.armed = true;
    const inv_status s = w->call(a);
    failing.armed = false;
    return s;
}

/* Whether the call was made n times at all. */
static bool try_once(const failure *p)
{
    const work *w = p->w;
    attempt a;
    put_outs(w, p->there);
    const size_t none = descriptors();
    open_attempt(&a, w);
    const size_t before = descriptors(), files = count_entries(folder) - count_outs(w);
    failing.kind = p->kind;
    failing.error = p->error;
    inv_status s = run_armed(w, &a, p->n);
    const bool failed = failing.made[p->kind] >= p->n;
    if (s != INV_OK && !failed) fail_msg("%s: %s", told(p), w->file ? inv_context_message(a.ctx) : a.why);
    if (s != INV_OK) check_message(p, &a);
    if (s != INV_OK && w->silent) fail_msg("%s: %s", told(p), inv_context_message(a.ctx));
    check_outs(p, s);
    if (count_entries(folder) - count_outs(w) != files) fail_msg("%s: a file is left over", told(p));
    if (s != INV_OK && (a.other || a.json)) fail_msg("%s: gives something", told(p));
    if (s != INV_OK && descriptors() != before) fail_msg("%s: a descriptor is left", told(p));
    drop_results(&a);
    if (s != INV_OK && !w->spent) {
        s = w->call(&a);
        if (s != INV_OK) fail_msg("after %s: %s", told(p), w->file ? inv_context_message(a.ctx) : a.why);
        check_outs(p, s);
    }
    close_attempt(&a);
    if (a.c.live) fail_msg("%s: %zu blocks are left", told(p), a.c.live);
    if (descriptors() != none) fail_msg("%s: a descriptor is left at the end", told(p));
    return failed;
}

static const int errors[CALL_KINDS][4] = {[CALL_OPEN] = {EMFILE, EIO},
                                          [CALL_CLOSE] = {EIO},
                                          [CALL_READ] = {EIO, EINTR, SHORT},
                                          [CALL_WRITE] = {ENOSPC, EINTR, SHORT},
                                          [CALL_FSTAT] = {EIO},
                                          [CALL_STAT] = {EIO},
                                          [CALL_LSEEK] = {EIO},
                                          [CALL_MMAP] = {ENOMEM},
                                          [CALL_FSYNC] = {EIO},
                                          [CALL_FCHMOD] = {EPERM},
                                          [CALL_LINK] = {EMLINK},
                                          [CALL_RENAME] = {EIO},
                                          [CALL_MKDIR] = {ENOSPC},
                                          [CALL_ACCESS] = {EIO},
                                          [CALL_REALPATH] = {EIO},
                                          [CALL_MKSTEMP] = {EMFILE},
                                          [CALL_OPENDIR] = {EMFILE},
                                          [CALL_READDIR] = {EIO},
                                          [CALL_DLOPEN] = {ENOMEM},
                                          [CALL_FOPEN] = {EMFILE},
                                          [CALL_FREAD] = {EIO, SHORT},
                                          [CALL_FWRITE] = {ENOSPC},
                                          [CALL_FSEEK] = {EIO},
                                          [CALL_FFLUSH] = {ENOSPC},
                                          [CALL_FCLOSE] = {EIO}};

/* Keeps what the call writes when nothing fails; which system calls it makes is in failing.made. */
static void run_right(const work *w, bool there)
{
    attempt a;
    put_outs(w, there);
    open_attempt(&a, w);
    if (run_armed(w, &a, 0) != INV_OK) fail_msg("%s: %s", w->what, w->file ? inv_context_message(a.ctx) : a.why);
    close_attempt(&a);
    for (int i = 0; i < 2 && w->out[i]; i++) assert_true(right_nbytes[i] = read_file(in_folder(w->out[i]), right[i]));
}

static void sweep(const work *w)
{
    size_t tried = 0;
    for (int there = 0; there <= (w->out[0] != NULL); there++) {
        size_t made[CALL_KINDS];
        run_right(w, there);
        for (int kind = 0; kind < CALL_KINDS; kind++) made[kind] = failing.made[kind];
        for (int kind = 0; kind < CALL_KINDS; kind++)
            for (int e = 0; e < 4 && errors[kind][e] && made[kind]; e++) {
                failure p = {w, (call_kind)kind, errors[kind][e], 1, there};
                while (try_once(&p)) p.n++;
                tried += p.n - 1;
            }
    }
    put_outs(w, false);
    if (tried == 0) fail_msg("%s: no call was made that could fail", w->what);
}

#define SWEEP(title, before, does, ...) sweep(&(const work){.what = title, .ready = before, .call = does, __VA_ARGS__})

/* In memory, where there is a file system of it: thousands of files are made. */
static int make_folder(void)
{
    const bool memory = access("/dev/shm", W_OK) == 0;
    snprintf(folder, sizeof folder, "%sfailing-files-XXXXXX", memory ? "/dev/shm/" : "");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_files(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#endif
