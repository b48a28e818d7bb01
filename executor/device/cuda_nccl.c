/* SPDX-License-Identifier: Apache-2.0
 * What ranks exchange between GPUs: NCCL, found when several ranks open device `cuda`. Its functions are declared here,
 * since no header of it is needed to build; what is stated of them (numbers of enumerations, a unique id of 128 bytes,
 * argument lists) is the interface of all versions 2.7 and later.
 *
 * All of it goes on one stream and one communicator, in the order of the nodes, which is the same on all ranks; kernels
 * of two communicators could wait for each other crosswise. Reductions are point-to-point messages, a sum in the order
 * of the ranks by a kernel of our own, and an all-gather, as on the host (core/program/exchange.h): NCCL's own sums are
 * in an order that hangs on the machine. */
#include <cuda_runtime_api.h>
#include <sched.h>
#include <time.h>

#include "core/program/exchange.h"
#include "executor/device/cuda_kinds.h"

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTES = 1 /* ncclUint8 */, MOST_REDUCTIONS = 16, SPINS = 200 };
typedef struct communicator *comm; /* ncclComm_t */
typedef struct unique_id {
    char bytes[128];
} unique_id;

/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                                             \
    X(const char *, GetErrorString, (int)) X(int, GetUniqueId, (unique_id *))                                        \
    X(int, CommInitRank, (comm *, int, unique_id, int)) X(int, CommDestroy, (comm)) X(int, CommAbort, (comm))        \
    X(int, CommGetAsyncError, (comm, int *)) X(int, GroupStart, (void)) X(int, GroupEnd, (void))                     \
    X(int, Send, (const void *, size_t, int, int, comm, cudaStream_t))                                               \
    X(int, Recv, (void *, size_t, int, int, comm, cudaStream_t))                                                     \
    X(int, AllGather, (const void *, void *, size_t, int, comm, cudaStream_t))
/* clang-format on */

typedef struct nccl {
    inv_gpu_ranks base;
    inv_context *ctx;
    inv_world *world;
#define FUNCTION(type, f, args) type(*f) args;
    NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    comm comm;
    cudaStream_t stream;
    cudaEvent_t ready, done[MOST_REDUCTIONS];
    const void *bucket[MOST_REDUCTIONS]; /* of those that are on their way, in the order in which they began */
    size_t first, n;
} nccl;

static nccl *nccl_of(const inv_gpu *gpu) { return (nccl *)(void *)gpu->ranks; }

static inv_status failed(const nccl *d, const char *what, const char *why)
{
    (void)cudaGetLastError();
    return inv_fail(d->ctx, INV_E_RANKS, "rank %d of %d, step %llu: %s: NCCL: %s", d->world->rank, d->world->size,
                    d->world->step, what, why);
}

#define NCCL_TRY(d, what, call)                                                  \
    do {                                                                         \
        const int s_ = (call);                                                   \
        if (s_ != NCCL_SUCCESS) return failed(d, what, (d)->GetErrorString(s_)); \
    } while (0)
#define CUDA_TRY(d, what, call)                                                \
    do {                                                                       \
        const cudaError_t e_ = (call);                                         \
        if (e_ != cudaSuccess) return failed(d, what, cudaGetErrorString(e_)); \
    } while (0)

/* --- messages --- */

/* What is queued on NCCL's stream from now on comes behind what is on the other one. */
static inv_status behind(nccl *d, const char *what, const inv_gpu *gpu)
{
    CUDA_TRY(d, what, cudaEventRecord(d->ready, gpu->stream));
    CUDA_TRY(d, what, cudaStreamWaitEvent(d->stream, d->ready, 0));
    return INV_OK;
}

static inv_status gather(const inv_gpu *gpu, const char *what, const void *mine, size_t nbytes, void *all)
{
    nccl *d = nccl_of(gpu);
    INV_TRY(behind(d, what, gpu));
    NCCL_TRY(d, what, d->AllGather(mine, all, nbytes, NCCL_BYTES, d->comm, d->stream));
    CUDA_TRY(d, what, cudaEventRecord(d->ready, d->stream));
    CUDA_TRY(d, what, cudaStreamWaitEvent(gpu->stream, d->ready, 0));
    return INV_OK;
}

/* Every rank gets its chunk of everybody's bucket. */
static int exchange_chunks(const nccl *d, const inv_gpu_reduction *r)
{
    const size_t n = r->chunk_nbytes;
    int s = d->GroupStart();
    for (int i = 0; i < d->base.size && s == NCCL_SUCCESS; i++) {
        s = d->Send(r->bucket + (size_t)i * n, n, NCCL_BYTES, i, d->comm, d->stream);
        if (s == NCCL_SUCCESS) s = d->Recv(r->parts + (size_t)i * n, n, NCCL_BYTES, i, d->comm, d->stream);
    }
    const int end = d->GroupEnd();
    return s == NCCL_SUCCESS ? end : s;
}

static inv_status reduce(const inv_gpu *gpu, const inv_gpu_reduction *r)
{
    nccl *d = nccl_of(gpu);
    inv_gpu on = *gpu;
    unsigned char *own = r->bucket + (size_t)d->base.rank * r->chunk_nbytes;
    INV_CHECK(d->n < MOST_REDUCTIONS, d->ctx, INV_E_INTERNAL, "%s: %zu reductions are on their way", r->what, d->n);
    const size_t at = (d->first + d->n) % MOST_REDUCTIONS;
    INV_TRY(behind(d, r->what, gpu));
    NCCL_TRY(d, r->what, exchange_chunks(d, r));
    on.stream = d->stream;
    r->fold(&on, r, own);
    NCCL_TRY(d, r->what, d->AllGather(own, r->bucket, r->chunk_nbytes, NCCL_BYTES, d->comm, d->stream));
    CUDA_TRY(d, r->what, cudaEventRecord(d->done[at], d->stream));
    d->bucket[at] = r->bucket;
    d->n++;
    return INV_OK;
}

static inv_status reduced(const inv_gpu *gpu, const char *what, const void *bucket)
{
    nccl *d = nccl_of(gpu);
    INV_CHECK(d->n && d->bucket[d->first] == bucket, d->ctx, INV_E_INTERNAL,
              "reductions end in another order than they began");
    CUDA_TRY(d, what, cudaStreamWaitEvent(gpu->stream, d->done[d->first], 0));
    d->first = (d->first + 1) % MOST_REDUCTIONS;
    d->n--;
    return INV_OK;
}

static int own_stream(void *of) { return (int)cudaStreamQuery(((nccl *)of)->stream); }

/* Kernels of NCCL wait for the others without an end, and with them whoever waits for the device. */
inv_status inv_nccl_wait(inv_gpu_ranks *ranks, int (*look)(void *of), void *of)
{
    nccl *d = (nccl *)(void *)ranks;
    struct timespec now, began;
    if (!d || !d->comm) return INV_OK;
    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    for (unsigned looks = 0;; looks++) {
        int state = NCCL_SUCCESS;
        if (look(of) != cudaErrorNotReady && cudaStreamQuery(d->stream) != cudaErrorNotReady)
            return INV_OK; /* what has failed is told by who waits for the queues */
        const int asked = d->CommGetAsyncError(d->comm, &state);
        if (asked != NCCL_SUCCESS) state = asked;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        const double waited = (double)(now.tv_sec - began.tv_sec) + 1e-9 * (double)(now.tv_nsec - began.tv_nsec);
        const bool broken = state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS;
        if (broken || waited > d->world->timeout) {
            const comm lost = d->comm;
            d->comm = NULL;
            (void)d->CommAbort(lost);
            if (broken) return failed(d, "the exchange of devices", d->GetErrorString(state));
            return d->world->calls->late(d->world, "the exchange of devices");
        }
        d->world->calls->progress(d->world); /* others may ask for a sign */
        if (looks < SPINS) sched_yield();
        else nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}

/* --- its life --- */

static bool load(nccl *d)
{
    void *at, *file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!file) return false;
#define FUNCTION(type, f, args)  \
    at = dlsym(file, "nccl" #f); \
    if (!at) return false;       \
    memcpy(&d->f, &at, sizeof at);
    NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    return true;
}

/* All ranks know what rank 0 has made up. */
static inv_status share_id(const nccl *d, unique_id *id)
{
    int made = NCCL_SUCCESS;
    memset(id, 0, sizeof *id);
    if (d->world->rank == 0) made = d->GetUniqueId(id);
    const inv_status s = d->world->calls->broadcast(d->world, "the id of NCCL", 0, id, sizeof *id);
    if (s == INV_OK && made != NCCL_SUCCESS) return failed(d, "its start", d->GetErrorString(made));
    return s;
}

static inv_status join(nccl *d)
{
    unique_id id;
    INV_CHECK(load(d), d->ctx, INV_E_DEVICE,
              "device cuda: libnccl.so.2, which GPUs of several processes exchange data with, is not found or lacks "
              "functions. Put its folder into LD_LIBRARY_PATH, or train with one process");
    INV_TRY(share_id(d, &id));
    CUDA_TRY(d, "a stream", cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    CUDA_TRY(d, "an event", cudaEventCreateWithFlags(&d->ready, cudaEventDisableTiming));
    for (int i = 0; i < MOST_REDUCTIONS; i++)
        CUDA_TRY(d, "an event", cudaEventCreateWithFlags(&d->done[i], cudaEventDisableTiming));
    const int s = d->CommInitRank(&d->comm, d->world->size, id, d->world->rank);
    if (s == NCCL_SUCCESS) return INV_OK;
    d->comm = NULL;
    return failed(d, "joining the others (each wants a GPU of its own)", d->GetErrorString(s));
}

inv_status inv_nccl_open(inv_context *ctx, inv_world *world, inv_gpu_ranks **out)
{
    *out = NULL;
    nccl *d = inv_alloc(ctx, sizeof *d);
    if (!d) return INV_E_NOMEM;
    d->base = (inv_gpu_ranks){world->rank, world->size, gather, reduce, reduced};
    d->ctx = ctx;
    d->world = world;
    const inv_status s = join(d);
    if (s == INV_OK) *out = &d->base;
    else inv_nccl_close(&d->base);
    return s;
}

void inv_nccl_close(inv_gpu_ranks *ranks)
{
    nccl *d = (nccl *)(void *)ranks;
    if (!d) return;
    const inv_error why = inv_error_take(d->ctx); /* of what made this necessary; it stays */
    if (d->stream) (void)inv_nccl_wait(ranks, own_stream, d);
    if (d->stream) (void)cudaStreamSynchronize(d->stream);
    inv_error_put(d->ctx, &why);
    if (d->comm) (void)d->CommDestroy(d->comm);
    for (int i = 0; i < MOST_REDUCTIONS; i++)
        if (d->done[i]) (void)cudaEventDestroy(d->done[i]);
    if (d->ready) (void)cudaEventDestroy(d->ready);
    if (d->stream) (void)cudaStreamDestroy(d->stream);
    inv_dealloc(d->ctx, d);
}
