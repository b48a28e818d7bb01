/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a run: what the launcher says of them, and the public calls. What carries them is MPI (world_mpi.c), in
 * builds that have it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "executor/world/world_open.h"

/* Where launchers say a process's rank and how many there are: Open MPI's mpirun, MPICH's and Slurm's PMI. A job of
 * Slurm alone (SLURM_NTASKS) is no launcher: a batch script has these variables, too, and is one process. */
static const struct {
    const char *rank, *size;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}, {"PMIX_RANK", "SLURM_NTASKS"}};

static bool number(const char *name, int *out)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return false;
    const long n = strtol(text, &end, 10);
    *out = (int)n;
    return !*end && n >= 0 && n <= 1 << 24;
}

/* *several: whether the two variables are of a launcher that has started several processes. False: they are of none. */
static bool read_launcher(const char *rank_name, const char *size_name, int *rank, int *size, bool *several)
{
    int r, n;
    if (!number(rank_name, &r) || !number(size_name, &n)) return false;
    *several = n > 1 && r < n;
    if (*several) *rank = r, *size = n;
    return true;
}

bool inv_world_launched(int *rank, int *size)
{
    bool several = false;
    int other[2];
    rank = rank ? rank : &other[0];
    size = size ? size : &other[1];
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (read_launcher(launchers[i].rank, launchers[i].size, rank, size, &several)) break;
    return several;
}

/* Launchers that set up no MPI. RANK and WORLD_SIZE alone say nothing: notebooks and clusters have them in a single
 * process, too. Of rows with the same variables the first counts of which there is the one that tells it. */
static const struct {
    const char *name, *rank, *size, *tells;
} others[] = {{"horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_RANK"},
              {"accelerate launch", "RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"},
              {"deepspeed", "RANK", "WORLD_SIZE", "CROSS_RANK"},
              {"torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
              {"a launcher like torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"}};

const char *inv_world_apart(int *rank, int *size)
{
    bool several;
    int local, other[2];
    rank = rank ? rank : &other[0];
    size = size ? size : &other[1];
    if (inv_world_launched(rank, size)) return NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const bool bare = strcmp(others[i].rank, "RANK") == 0;
        if (!getenv(others[i].tells) || (bare && !number("LOCAL_RANK", &local))) continue;
        if (read_launcher(others[i].rank, others[i].size, rank, size, &several) && several) return others[i].name;
    }
    return NULL;
}

int inv_world_local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    int rank = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (number(names[i], &rank)) return rank;
    return 0;
}

static void own(inv_world *w, inv_context *ctx)
{
    w->owner = ctx;
    inv_context_hold(ctx);
}

/* --- ranks that are not there --- */

/* So that all times that follow are finite. */
enum { MOST_RANKS = 1 << 20 };
#define MOST_LATENCY 1e6
#define MOST_RATE 1e18

static inv_status nobody(inv_context *ctx)
{
    return inv_fail(ctx, INV_E_ARG, "these ranks are not there: sessions with them are for planning only");
}
static inv_status imagined_gather(inv_world *w, const char *what, const void *mine, size_t nbytes, void *all)
{
    (void)what, (void)mine, (void)nbytes, (void)all;
    return nobody(w->ctx);
}
static inv_status imagined_broadcast(inv_world *w, const char *what, int root, void *data, size_t nbytes)
{
    (void)what, (void)root, (void)data, (void)nbytes;
    return nobody(w->ctx);
}
static inv_status imagined_reduce(inv_world *w, const inv_reduction *r) { return (void)r, nobody(w->ctx); }
static inv_status imagined_reduced(inv_world *w, const void *bucket) { return (void)bucket, nobody(w->ctx); }
static inv_status imagined_late(inv_world *w, const char *what) { return (void)what, nobody(w->ctx); }
static int imagined_first(inv_world *w, double seconds) { return (void)w, (void)seconds, 1; }
static void imagined_progress(inv_world *w) { (void)w; }
static void imagined_end(inv_world *w, int status) { (void)w, (void)status; }
static void imagined_close(inv_world *w) { inv_dealloc(w->ctx, w); }

static const inv_world_calls imagined = {imagined_gather, imagined_broadcast, imagined_reduce,
                                         imagined_first,  imagined_progress,  imagined_reduced,
                                         imagined_late,   imagined_end,       imagined_close};

inv_status inv_world_imagine(inv_context *ctx, int size, int on_host, double latency, double bytes_per_second,
                             double busy, inv_world **out)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, out);
    *out = NULL;
    INV_CHECK(size >= 1 && size <= MOST_RANKS, ctx, INV_E_ARG, "{size} %d: there can be 1 to %d ranks", size,
              MOST_RANKS);
    INV_CHECK(on_host >= 1 && on_host <= size, ctx, INV_E_ARG,
              "{on_host}: %d ranks on a machine: wanted are 1 to all %d", on_host, size);
    INV_CHECK(latency >= 0 && latency <= MOST_LATENCY, ctx, INV_E_ARG,
              "{latency} is %g seconds a message: must be 0 to %g", latency, MOST_LATENCY);
    INV_CHECK(bytes_per_second >= 1 && bytes_per_second <= MOST_RATE, ctx, INV_E_ARG,
              "{bytes_per_second}: a rank sends %g bytes a second: wanted are 1 to %g", bytes_per_second, MOST_RATE);
    INV_CHECK(busy >= 0 && busy <= 1, ctx, INV_E_ARG, "{busy}: the share of the rank's processor is %g: must be 0 to 1",
              busy);
    inv_world *w = inv_alloc(ctx, sizeof *w);
    if (!w) return INV_E_NOMEM;
    *w = (inv_world){.calls = &imagined, .ctx = ctx, .size = size, .imagined = true};
    w->on_host = on_host;
    w->latency = latency;
    w->bytes_per_second = bytes_per_second;
    w->busy = busy;
    own(w, ctx);
    *out = w;
    return INV_OK;
}

inv_status inv_world_open(inv_context *ctx, double timeout, inv_world **out)
{
    INV_OBJECT(ctx);
    INV_GIVEN(ctx, out);
    *out = NULL;
    INV_CHECK(isfinite(timeout) && timeout > 0, ctx, INV_E_ARG,
              "timeout, the time that ranks wait for each other, is %g s: must be finite and above 0", timeout);
    const inv_status s = inv_world_open_mpi(ctx, timeout, out);
    if (*out) own(*out, ctx);
    return s;
}

#ifndef INV_HAVE_MPI
inv_status inv_world_open_mpi(inv_context *ctx, double timeout, inv_world **out)
{
    (void)timeout;
    (void)out;
    return inv_fail(ctx, INV_E_RANKS,
                    "several processes were started to train together, but this build has no MPI. Install MPI (Debian: "
                    "libopenmpi-dev openmpi-bin) and build again with -DINVONNX_MPI=ON, or start one process");
}
#endif

void inv_world_close(inv_world *w)
{
    if (!w) return;
    inv_context *owner = w->ctx = w->owner;
    w->calls->close(w);
    inv_context_leave(owner);
}

int inv_world_first(inv_world *w, double seconds) { return inv_world_several(w) ? w->calls->first(w, seconds) : 1; }

void inv_world_end_all(inv_world *w, int status)
{
    if (inv_world_several(w)) w->calls->end_all(w, status);
}

int inv_world_rank(const inv_world *w) { return w ? w->rank : 0; }
int inv_world_size(const inv_world *w) { return w ? w->size : 1; }

inv_status inv_world_gather(inv_world *w, const char *what, const void *mine, size_t nbytes, void *all)
{
    INV_CHECK(what && (!nbytes || (mine && all)), w ? w->ctx : NULL, INV_E_ARG, "%s is NULL: it has to be given",
              !what   ? "what"
              : !mine ? "mine"
                      : "all");
    if (inv_world_several(w)) return w->calls->gather(w, what, mine, nbytes, all);
    if (nbytes) memcpy(all, mine, nbytes);
    return INV_OK;
}
