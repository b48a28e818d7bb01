/* SPDX-License-Identifier: Apache-2.0
 * Ranks by MPI. Every call is one of its non-blocking collectives (MPI 3.0, section 5.12), which is looked after until
 * it is through or the time is up: MPI itself waits without an end. Reductions have two halves, each on a communicator
 * of its own, because a rank begins the second half when its first one is through, and on one communicator all ranks
 * must begin everything in one order.
 *
 * The library is opened when there are several ranks: a process by itself neither loads nor needs it. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "executor/world/world_open.h"

#define MOST_COUNTED 0.1 /* seconds */
#define SIGN_WITHIN 1.0  /* seconds in which a rank that is alive answers */
enum { MOST_REDUCTIONS = 16, SPINS = 200, MOST_NAMED = 8 };
/* Tags of short messages, which go past the collectives: whether a rank is to tell why it fails, and the answer; how
 * many exchanges a rank has begun, with and without the question how many the other has. */
enum { TAG_FIRST, TAG_ASKS, TAG_TELLS };

/* clang-format off */
#define FUNCTIONS(X)                                                                                                   \
    X(Init_thread) X(Initialized) X(Finalize) X(Abort) X(Test) X(Iallgather) X(Ialltoall) X(Ibcast) X(Send) X(Isend)   \
        X(Recv) X(Iprobe) X(Comm_rank) X(Comm_size) X(Comm_dup) X(Comm_free) X(Comm_set_errhandler) X(Error_string)
/* clang-format on */

static struct {
    bool there;
#define FUNCTION(f) __typeof__(&MPI_##f) f;
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    MPI_Comm all;
    MPI_Datatype byte, no_datatype;
    MPI_Errhandler errors_return;
} mpi;

/* Its parts look for what it has among all that is loaded. */
static bool open_library(void)
{
    void *at, *file = mpi.there ? NULL : dlopen(INV_MPI_NAME, RTLD_NOW | RTLD_GLOBAL);
    if (!file) return mpi.there;
#define FUNCTION(f)              \
    at = dlsym(file, "MPI_" #f); \
    if (!at) return false;       \
    memcpy(&mpi.f, &at, sizeof mpi.f);
    FUNCTIONS(FUNCTION)
#undef FUNCTION
#ifdef OPEN_MPI /* its handles are addresses of what is in the library, others' are numbers */
    mpi.all = dlsym(file, "ompi_mpi_comm_world");
    mpi.byte = dlsym(file, "ompi_mpi_byte");
    mpi.no_datatype = dlsym(file, "ompi_mpi_datatype_null");
    mpi.errors_return = dlsym(file, "ompi_mpi_errors_return");
    mpi.there = mpi.all && mpi.byte && mpi.no_datatype && mpi.errors_return;
#else
    mpi.all = MPI_COMM_WORLD;
    mpi.byte = MPI_BYTE;
    mpi.no_datatype = MPI_DATATYPE_NULL;
    mpi.errors_return = MPI_ERRORS_RETURN;
    mpi.there = true;
#endif
    return mpi.there;
}

typedef enum half { SCATTERING, SCATTERED, SPREADING, THROUGH } half;

typedef struct pending {
    inv_reduction r;
    half half;
    uint64_t number; /* among the exchanges */
    MPI_Request request;
} pending;

typedef struct mpi_world {
    inv_world base;
    MPI_Comm gathers, scatters, spreads;
    pending queue[MOST_REDUCTIONS]; /* in the order in which they began */
    size_t first, n;
    double since;           /* when the oldest of them began */
    bool failed;            /* nothing waits for anything any more */
    bool told;              /* rank 0: one has failed, and tells why */
    uint64_t begun, asking; /* exchanges, the same ones on all ranks; of these, when the others were asked */
    uint64_t *has_begun;    /* per rank, as it has told; 0: it has not */
} mpi_world;

static mpi_world *world_of(inv_world *w) { return (mpi_world *)(void *)w; }

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inv_status mpi_failed(mpi_world *w, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    w->failed = true;
    (void)mpi.Error_string(code, text, &n);
    return inv_fail(w->base.ctx, INV_E_RANKS, "rank %d of %d, step %llu: %s: MPI: %s", w->base.rank, w->base.size,
                    w->base.step, what, text);
}

/* A wait for others, who are looked for again and again. Where this process stood still itself, because it was stopped
 * or had no processor, the others are not late by that: little of the time between two looks counts. */
typedef struct waiting {
    double since, counted; /* seconds: of the last look; that others have let this rank wait */
    unsigned looks;
} waiting;

static waiting wait_from_now(void) { return (waiting){.since = seconds_now()}; }

/* Behind a look that has found nothing, whether the time is up. Before the next one, first at once, then the processor
 * is others', which with more ranks than cores is who is waited for. */
static bool rested_enough(waiting *w, double timeout)
{
    const struct timespec little = {0, 50000};
    const double now = seconds_now();
    w->counted += fmin(now - w->since, MOST_COUNTED);
    w->since = now;
    if (w->counted > timeout) return true;
    if (++w->looks < SPINS) sched_yield();
    else nanosleep(&little, NULL);
    return false;
}

/* --- short messages --- */

/* Rank 0: who asks first whether it is to tell why it fails is. */
static void answer_first(mpi_world *w, int from)
{
    char yes = !w->told;
    w->told = true;
    if (mpi.Recv(&(char){0}, 1, mpi.byte, from, TAG_FIRST, w->gathers, MPI_STATUS_IGNORE) == MPI_SUCCESS)
        (void)mpi.Send(&yes, 1, mpi.byte, from, TAG_FIRST, w->gathers);
}

static void note_begun(mpi_world *w, int from, int tag)
{
    uint64_t n = 0;
    if (mpi.Recv(&n, (int)sizeof n, mpi.byte, from, tag, w->gathers, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    w->has_begun[from] = n;
    if (tag == TAG_ASKS) (void)mpi.Send(&w->begun, (int)sizeof w->begun, mpi.byte, from, TAG_TELLS, w->gathers);
}

/* Between what else a rank does. */
static void answer(mpi_world *w)
{
    int there = 0;
    MPI_Status from;
    if (mpi.Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, w->gathers, &there, &from) != MPI_SUCCESS || !there) return;
    if (from.MPI_TAG != TAG_FIRST) note_begun(w, from.MPI_SOURCE, from.MPI_TAG);
    else if (w->base.rank == 0) answer_first(w, from.MPI_SOURCE);
}

static int first(inv_world *base, double seconds)
{
    mpi_world *w = world_of(base);
    waiting wait = wait_from_now();
    int there = 0;
    char yes = !w->told;
    w->told = true;
    if (base->rank == 0) return yes;
    if (mpi.Send(&yes, 1, mpi.byte, 0, TAG_FIRST, w->gathers) != MPI_SUCCESS) return -1;
    while (!there) {
        if (mpi.Iprobe(0, TAG_FIRST, w->gathers, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS) return -1;
        if (!there && rested_enough(&wait, seconds)) return -1;
    }
    return mpi.Recv(&yes, 1, mpi.byte, 0, TAG_FIRST, w->gathers, MPI_STATUS_IGNORE) == MPI_SUCCESS ? yes : -1;
}

/* --- who is late --- */

typedef enum sign { SILENT, BEHIND, COME } sign;

static sign sign_of(const mpi_world *w, int rank, uint64_t number)
{
    if (rank == w->base.rank) return COME;
    return w->has_begun[rank] == 0 ? SILENT : w->has_begun[rank] < number ? BEHIND : COME;
}

/* "rank 3", "ranks 0, 2, 5 and 9 more": those that have given that sign. Gives how many. */
static int put_ranks(const mpi_world *w, uint64_t number, sign those, inv_str *s)
{
    int n = 0, put = 0;
    for (int r = 0; r < w->base.size; r++) n += sign_of(w, r, number) == those;
    if (n) inv_str_add(s, n > 1 ? "ranks " : "rank ");
    for (int r = 0; r < w->base.size && put < MOST_NAMED; r++)
        if (sign_of(w, r, number) == those) inv_str_add(s, "%s%d", put++ ? ", " : "", r);
    if (n > put) inv_str_add(s, " and %d more", n - put);
    return n;
}

/* The others are asked how many exchanges they have begun. Who waits, too, or computes, answers; who has no more time
 * itself asks. */
static void ask_all(mpi_world *w, uint64_t number)
{
    waiting wait = wait_from_now();
    MPI_Request sent; /* those that stand still take it never: nobody waits for that */
    w->asking = w->begun;
    for (int r = 0; r < w->base.size; r++)
        if (r != w->base.rank)
            (void)mpi.Isend(&w->asking, (int)sizeof w->asking, mpi.byte, r, TAG_ASKS, w->gathers, &sent);
    for (bool all = false; !all && !rested_enough(&wait, SIGN_WITHIN);) {
        all = true;
        answer(w);
        for (int r = 0; r < w->base.size; r++) all = all && sign_of(w, r, number) != SILENT;
    }
}

/* The others have let this rank wait at that exchange for too long. */
static inv_status timed_out(mpi_world *w, const char *what, uint64_t number)
{
    inv_str s;
    w->failed = true;
    ask_all(w, number);
    inv_str_init(&s, w->base.ctx);
    const int silent = put_ranks(w, number, SILENT, &s);
    if (silent > 1) inv_str_add(&s, " do not respond: they hang, or are busy for longer than ranks wait; ");
    if (silent == 1) inv_str_add(&s, " does not respond: it hangs, or is busy for longer than ranks wait; ");
    const int behind = put_ranks(w, number, BEHIND, &s);
    if (behind) inv_str_add(&s, " %s, but not there yet; ", behind > 1 ? "are alive" : "is alive");
    const int come = put_ranks(w, number, COME, &s);
    inv_str_add(&s, come > 1 ? " have arrived" : " has arrived");
    const inv_status status =
        inv_fail(w->base.ctx, INV_E_RANKS,
                 "rank %d of %d, step %llu: timed out at %s, after waiting %g s for others "
                 "({rank_timeout}): %s",
                 w->base.rank, w->base.size, w->base.step, what, w->base.timeout, s.failed ? "out of memory" : s.s);
    inv_str_fini(&s);
    return status;
}

static inv_status wait_for(mpi_world *w, const char *what, MPI_Request *request)
{
    waiting wait = wait_from_now();
    for (int done = 0;;) {
        const int code = mpi.Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return mpi_failed(w, what, code);
        if (done) return INV_OK;
        answer(w);
        if (rested_enough(&wait, w->base.timeout)) return timed_out(w, what, w->begun);
    }
}

static inv_status gather(inv_world *base, const char *what, const void *mine, size_t nbytes, void *all)
{
    mpi_world *w = world_of(base);
    MPI_Request request;
    INV_CHECK(nbytes <= INT_MAX, base->ctx, INV_E_RANKS, "%s: %zu bytes are too many for one message", what, nbytes);
    w->begun++;
    const int code = mpi.Iallgather(mine, (int)nbytes, mpi.byte, all, (int)nbytes, mpi.byte, w->gathers, &request);
    return code == MPI_SUCCESS ? wait_for(w, what, &request) : mpi_failed(w, what, code);
}

static inv_status broadcast(inv_world *base, const char *what, int root, void *data, size_t nbytes)
{
    mpi_world *w = world_of(base);
    MPI_Request request;
    INV_CHECK(nbytes <= INT_MAX, base->ctx, INV_E_RANKS, "%s: %zu bytes are too many for one message", what, nbytes);
    w->begun++;
    const int code = mpi.Ibcast(data, (int)nbytes, mpi.byte, root, w->gathers, &request);
    return code == MPI_SUCCESS ? wait_for(w, what, &request) : mpi_failed(w, what, code);
}

/* --- reductions --- */

static pending *pending_at(mpi_world *w, size_t i) { return &w->queue[(w->first + i) % MOST_REDUCTIONS]; }

/* Second halves begin in one order on all ranks, that in which reductions began. */
static bool may_spread(mpi_world *w, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (pending_at(w, k)->half < SPREADING) return false;
    return true;
}

/* What can be done for the one at place i. */
static int advance(mpi_world *w, size_t i)
{
    pending *p = pending_at(w, i);
    int done = 1;
    if (p->half == SCATTERING || p->half == SPREADING) {
        const int code = mpi.Test(&p->request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || !done) return code;
        if (p->half == SCATTERING)
            p->r.fold(&p->r, w->base.size, p->r.parts, p->r.bucket + (size_t)w->base.rank * p->r.chunk_nbytes);
        p->half = p->half == SCATTERING && p->r.halves & INV_SPREAD ? SCATTERED : THROUGH;
    }
    if (p->half != SCATTERED || !may_spread(w, i)) return MPI_SUCCESS;
    p->half = SPREADING;
    return mpi.Iallgather(MPI_IN_PLACE, 0, mpi.no_datatype, p->r.bucket, (int)p->r.chunk_nbytes, mpi.byte, w->spreads,
                          &p->request);
}

static int advance_all(mpi_world *w)
{
    int code = MPI_SUCCESS;
    for (size_t i = 0; i < w->n && code == MPI_SUCCESS; i++) code = advance(w, i);
    return code;
}

static void progress(inv_world *base)
{
    mpi_world *w = world_of(base);
    answer(w);
    if (!w->n || w->failed) return;
    const double began = seconds_now();
    (void)advance_all(w); /* what fails is told by who waits for it */
    const double took = seconds_now() - began;
    base->waited += took;
    base->moved += took;
}

static inv_status reduce(inv_world *base, const inv_reduction *r)
{
    mpi_world *w = world_of(base);
    INV_CHECK(w->n < MOST_REDUCTIONS, base->ctx, INV_E_INTERNAL, "%s: %zu reductions are on their way", r->what, w->n);
    INV_CHECK(r->chunk_nbytes <= INT_MAX, base->ctx, INV_E_RANKS, "%s: %zu bytes are too many for one message", r->what,
              r->chunk_nbytes);
    pending *p = pending_at(w, w->n);
    *p = (pending){.r = *r, .half = r->halves & INV_SCATTER ? SCATTERING : SCATTERED, .number = ++w->begun};
    const int n = (int)r->chunk_nbytes;
    int code = MPI_SUCCESS;
    if (w->n++ == 0) w->since = seconds_now();
    if (p->half == SCATTERING)
        code = mpi.Ialltoall(r->bucket, n, mpi.byte, r->parts, n, mpi.byte, w->scatters, &p->request);
    else code = advance(w, w->n - 1);
    return code == MPI_SUCCESS ? INV_OK : mpi_failed(w, r->what, code);
}

static inv_status reduced(inv_world *base, const void *bucket)
{
    mpi_world *w = world_of(base);
    const pending *p = w->n ? pending_at(w, 0) : NULL;
    waiting wait = wait_from_now();
    const double began = wait.since;
    INV_CHECK(p && p->r.bucket == bucket, base->ctx, INV_E_INTERNAL, "reductions end in another order than they began");
    while (p->half != THROUGH) {
        const int code = advance_all(w);
        if (code != MPI_SUCCESS) return mpi_failed(w, p->r.what, code);
        if (p->half == THROUGH) break;
        answer(w);
        if (rested_enough(&wait, base->timeout)) return timed_out(w, p->r.what, p->number);
    }
    const double now = seconds_now();
    w->first = (w->first + 1) % MOST_REDUCTIONS;
    w->n--;
    base->waited += now - began;
    if (w->n == 0) base->under_way += now - w->since;
    return INV_OK;
}

static inv_status late(inv_world *base, const char *what)
{
    return timed_out(world_of(base), what, world_of(base)->begun);
}

/* --- its life --- */

static void end_all(inv_world *base, int status) { (void)mpi.Abort(world_of(base)->gathers, status); }

/* MPI waits for the others when it ends; after a failure they may never come. */
static void close_world(inv_world *base)
{
    mpi_world *w = world_of(base);
    if (!w->failed && !w->n) {
        (void)mpi.Comm_free(&w->gathers);
        (void)mpi.Comm_free(&w->scatters);
        (void)mpi.Comm_free(&w->spreads);
        (void)mpi.Finalize();
    }
    inv_dealloc(base->ctx, w->has_begun);
    inv_dealloc(base->ctx, w);
}

static const inv_world_calls calls = {gather, broadcast, reduce, first, progress, reduced, late, end_all, close_world};

/* The calling thread alone speaks to the others. */
static bool join(mpi_world *w)
{
    int level;
    if (mpi.Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return false;
    (void)mpi.Comm_set_errhandler(mpi.all, mpi.errors_return); /* the others have it from there */
    return mpi.Comm_rank(mpi.all, &w->base.rank) == MPI_SUCCESS &&
           mpi.Comm_size(mpi.all, &w->base.size) == MPI_SUCCESS && mpi.Comm_dup(mpi.all, &w->gathers) == MPI_SUCCESS &&
           mpi.Comm_dup(mpi.all, &w->scatters) == MPI_SUCCESS && mpi.Comm_dup(mpi.all, &w->spreads) == MPI_SUCCESS;
}

/* --- what the network does --- */

enum {
    ROUNDS = 5,
    SMALL = 64,
    LARGE = 1 << 22 /* bytes of a bucket: more than caches hold */,
    SLICE = 4096,
    MOST_SLICES = 1 << 14
};

static void take_first(const inv_reduction *r, int n, const unsigned char *parts, unsigned char *out)
{
    (void)n;
    memcpy(out, parts, r->chunk_nbytes);
}

/* Computes, and looks after what is on its way now and then. Gives the seconds that it took. */
static double compute(mpi_world *w, int slices)
{
    const double began = seconds_now();
    volatile double x = 1;
    for (int i = 0; i < slices; i++) {
        for (int k = 0; k < SLICE; k++) x = x * 0.999 + 1e-3;
        progress(&w->base);
    }
    return seconds_now() - began;
}

/* The quickest of some reductions of so many bytes, with so much to compute meanwhile. */
static inv_status time_reduction(mpi_world *w, unsigned char *room, size_t nbytes, int slices, double *seconds)
{
    const size_t chunk = nbytes / (size_t)w->base.size + 1;
    const inv_reduction r = {.what = "the measuring of the network",
                             .halves = INV_BOTH_HALVES,
                             .bucket = room,
                             .parts = room + chunk * (size_t)w->base.size,
                             .chunk_nbytes = chunk,
                             .fold = take_first};
    *seconds = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        const double began = seconds_now();
        INV_TRY(reduce(&w->base, &r));
        (void)compute(w, slices);
        INV_TRY(reduced(&w->base, r.bucket));
        *seconds = fmin(*seconds, seconds_now() - began);
    }
    return INV_OK;
}

/* How much longer than alone as much computing takes beside a reduction of so many seconds, by these. */
static inv_status time_beside(mpi_world *w, unsigned char *room, double seconds, double *busy)
{
    double alone = INFINITY, both;
    const double few = fmax(compute(w, ROUNDS), 1e-9);
    const int slices = (int)fmin(seconds * ROUNDS / few + 1, MOST_SLICES);
    for (int i = 0; i < ROUNDS; i++) alone = fmin(alone, compute(w, slices));
    INV_TRY(time_reduction(w, room, LARGE, slices, &both));
    *busy = fmin(fmax((both - alone) / seconds, 0), 1);
    return INV_OK;
}

/* How many ranks have the name of this one's machine. */
static inv_status count_neighbours(mpi_world *w)
{
    char name[256] = "";
    (void)gethostname(name, sizeof name - 1);
    const uint64_t mine = inv_hash(name, strlen(name), 0);
    uint64_t *all = inv_alloc(w->base.ctx, (size_t)w->base.size * sizeof *all);
    if (!all) return INV_E_NOMEM;
    const inv_status s = gather(&w->base, "the names of machines", &mine, sizeof mine, all);
    for (int r = 0; r < w->base.size && s == INV_OK; r++) w->base.on_host += all[r] == mine;
    inv_dealloc(w->base.ctx, all);
    return s;
}

/* Once per world; what rank 0 has seen counts for all, whose plans are to be the same. */
static inv_status measure(mpi_world *w)
{
    enum { SHORT, LONG, BUSY, SEEN };
    const size_t most = 2 * ((size_t)LARGE + (size_t)w->base.size);
    unsigned char *room = inv_alloc(w->base.ctx, most);
    double *all = inv_alloc(w->base.ctx, SEEN * (size_t)w->base.size * sizeof *all), mine[SEEN] = {0};
    inv_status s = room && all ? INV_OK : INV_E_NOMEM;
    if (s == INV_OK) s = time_reduction(w, room, SMALL, 0, &mine[SHORT]);
    if (s == INV_OK) s = time_reduction(w, room, LARGE, 0, &mine[LONG]);
    if (s == INV_OK) s = time_beside(w, room, mine[LONG], &mine[BUSY]);
    if (s == INV_OK) s = gather(&w->base, "the measuring of the network", mine, sizeof mine, all);
    if (s == INV_OK) {
        const double messages = 2 * (w->base.size - 1), share = (double)LARGE / w->base.size;
        w->base.latency = all[SHORT] / messages;
        w->base.bytes_per_second = messages * share / fmax(all[LONG] - all[SHORT], 1e-6);
        w->base.busy = all[BUSY];
    }
    w->base.waited = w->base.under_way = w->base.moved = 0; /* of steps alone */
    inv_dealloc(w->base.ctx, room);
    inv_dealloc(w->base.ctx, all);
    return s;
}

inv_status inv_world_open_mpi(inv_context *ctx, double timeout, inv_world **out)
{
    int there = 0;
    INV_CHECK(open_library(), ctx, INV_E_RANKS,
              "several processes were started to train together, but MPI cannot be loaded. Install it (Debian: "
              "openmpi-bin), or start one process: %s",
              dlerror());
    mpi_world *w = inv_alloc(ctx, sizeof *w);
    if (!w) return INV_E_NOMEM;
    w->base = (inv_world){.calls = &calls, .ctx = ctx, .size = 1, .timeout = timeout};
    if (mpi.Initialized(&there) != MPI_SUCCESS || there || !join(w)) {
        inv_dealloc(ctx, w);
        return inv_fail(ctx, INV_E_RANKS,
                        there ? "MPI has been joined before, and a process does that once"
                              : "MPI cannot be joined; was this started by the mpirun of that MPI?");
    }
    *out = &w->base;
    if (w->base.size == 1) return INV_OK;
    w->has_begun = inv_alloc(ctx, (size_t)w->base.size * sizeof *w->has_begun);
    if (!w->has_begun) return INV_E_NOMEM;
    memset(w->has_begun, 0, (size_t)w->base.size * sizeof *w->has_begun);
    INV_TRY(count_neighbours(w));
    return measure(w);
}
