/* SPDX-License-Identifier: Apache-2.0
 * Device `cuda`, or `cuda:N`: one GPU. A stream per queue, events between them, memory by cudaMalloc (twice per
 * session: the arena's two parts), recorded parts as CUDA graphs. Written for the runtime API of CUDA 12 and later.
 *
 * With CUDA_LAUNCH_BLOCKING=1 nothing is recorded and every node is waited for, so that a fault is reported with the
 * name of the node. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "executor/device/cuda_libs.h"
#include "executor/executor.h"
#include "executor/world/world_open.h"

enum { MOST_BLOCKS = 8 };

typedef struct cuda {
    inv_context *ctx;
    int index;
    inv_gpu gpu;
    cudaStream_t stream[INV_QUEUES];
    inv_arena arena;                   /* list of events */
    INV_VEC(cudaEvent_t) event, stamp; /* the latter with times */
    cudaEvent_t told[INV_TOLDS];
    bool recording;
    void *block[MOST_BLOCKS];
    size_t nbytes[MOST_BLOCKS], now, peak;
    bool blocking;
    inv_gpu_ranks *ranks; /* gpu.ranks, or would be again */
} cuda;

static inv_status fail(const cuda *d, cudaError_t e, const char *what)
{
    (void)cudaGetLastError(); /* else the next kernel would be blamed */
    return inv_fail(d->ctx, INV_E_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

#define CUDA_TRY(d, call, what)                                    \
    do {                                                           \
        cudaError_t cuda_e_ = (call);                              \
        if (cuda_e_ != cudaSuccess) return fail(d, cuda_e_, what); \
    } while (0)

/* What keeps this machine from having a device, and what to do about it. */
static inv_status no_device(const cuda *d, cudaError_t e)
{
    int runtime = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    if (e == cudaErrorInsufficientDriver)
        return inv_fail(d->ctx, INV_E_DEVICE,
                        "device cuda: there is no NVIDIA driver, or it is older than CUDA %d.%d, which this program "
                        "was built with. Install a newer driver, or use device cpu",
                        runtime / 1000, runtime % 1000 / 10);
    if (e == cudaErrorNoDevice || e == cudaSuccess)
        return inv_fail(d->ctx, INV_E_DEVICE,
                        "device cuda: the driver finds no GPU (look at nvidia-smi and CUDA_VISIBLE_DEVICES); use "
                        "device cpu");
    return fail(d, e, "device cuda cannot be used");
}

static inv_status set_up(cuda *d)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) return no_device(d, e);
    if (d->index < 0) d->index = inv_world_local_rank() % count; /* each process of a machine takes one of its own */
    INV_CHECK(d->index < count, d->ctx, INV_E_DEVICE, "there is no device cuda:%d; the driver finds cuda:0 to cuda:%d",
              d->index, count - 1);
    CUDA_TRY(d, cudaSetDevice(d->index), "device cuda cannot be used");
    for (int q = 0; q < INV_QUEUES; q++)
        CUDA_TRY(d, cudaStreamCreateWithFlags(&d->stream[q], cudaStreamNonBlocking), "no stream on the device");
    for (int i = 0; i < INV_TOLDS; i++)
        CUDA_TRY(d, cudaEventCreateWithFlags(&d->told[i], cudaEventDisableTiming), "no event on the device");
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    d->blocking = blocking && strcmp(blocking, "0") != 0;
    d->gpu.stream = d->stream[INV_QUEUE_COMPUTE];
    return inv_cuda_libs_open(d->ctx, &d->gpu);
}

static void cuda_close(void *self);

static inv_status cuda_open(inv_context *ctx, int index, void **self)
{
    cuda *d = inv_alloc(ctx, sizeof *d);
    *self = NULL;
    if (!d) return INV_E_NOMEM;
    d->ctx = ctx;
    d->index = index;
    inv_arena_init(&d->arena, ctx);
    inv_status st = set_up(d);
    if (st != INV_OK) cuda_close(d);
    else *self = d;
    return st;
}

/* The device of this thread, which need not be the one that opened it. */
static inv_status choose(const cuda *d)
{
    CUDA_TRY(d, cudaSetDevice(d->index), "device cuda cannot be used");
    return INV_OK;
}

/* --- memory --- */

static inv_status cuda_alloc(void *self, size_t nbytes, void **out)
{
    cuda *d = self;
    size_t slot = 0, free_nbytes = 0, total = 0;
    *out = NULL;
    while (slot < MOST_BLOCKS && d->block[slot]) slot++;
    INV_CHECK(slot < MOST_BLOCKS, d->ctx, INV_E_INTERNAL, "more than %d blocks of device memory", MOST_BLOCKS);
    INV_TRY(choose(d));
    cudaError_t e = cudaMalloc(out, nbytes ? nbytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* not sticky */
        (void)cudaMemGetInfo(&free_nbytes, &total);
        return inv_fail(d->ctx, INV_E_NOMEM,
                        "out of device memory: %zu bytes are needed, %zu of %zu are free. Use a smaller batch, "
                        "{budget} or {memory} auto",
                        nbytes, free_nbytes, total);
    }
    CUDA_TRY(d, e, "device memory");
    d->block[slot] = *out;
    d->nbytes[slot] = nbytes;
    d->now += nbytes;
    if (d->now > d->peak) d->peak = d->now;
    return INV_OK;
}

static void cuda_free(void *self, void *p)
{
    cuda *d = self;
    for (size_t i = 0; p && i < MOST_BLOCKS; i++) {
        if (d->block[i] != p) continue;
        for (int q = 0; q < INV_QUEUES; q++) (void)cudaStreamSynchronize(d->stream[q]); /* cudaFree need not wait */
        (void)cudaFree(p);
        d->now -= d->nbytes[i];
        d->block[i] = NULL;
    }
}

static void cuda_close(void *self)
{
    cuda *d = self;
    if (!d) return;
    for (size_t i = 0; i < MOST_BLOCKS; i++) cuda_free(d, d->block[i]);
    inv_nccl_close(d->ranks);
    if (d->gpu.library) inv_cuda_libs_close(d->ctx, &d->gpu);
    for (int i = 0; i < INV_TOLDS; i++)
        if (d->told[i]) (void)cudaEventDestroy(d->told[i]);
    for (size_t i = 0; i < d->event.n; i++) (void)cudaEventDestroy(d->event.at[i]);
    for (size_t i = 0; i < d->stamp.n; i++) (void)cudaEventDestroy(d->stamp.at[i]);
    for (int q = 0; q < INV_QUEUES; q++)
        if (d->stream[q]) (void)cudaStreamDestroy(d->stream[q]);
    inv_arena_fini(&d->arena);
    inv_dealloc(d->ctx, d);
}

static void cuda_facts(void *self, inv_device_facts *out)
{
    cuda *d = self;
    size_t left = 0;
    struct cudaDeviceProp p;
    *out = (inv_device_facts){0};
    inv_cuda_libs_facts(&d->gpu, out);
    (void)cudaRuntimeGetVersion(&out->runtime);
    (void)cudaDriverGetVersion(&out->driver);
    if (choose(d) != INV_OK) return;
    if (cudaMemGetInfo(&left, &out->total) == cudaSuccess) out->used = out->total - left;
    if (cudaGetDeviceProperties(&p, d->index) != cudaSuccess) return;
    memcpy(out->name, p.name, sizeof out->name - 1);
    out->capability = 10 * p.major + p.minor;
    out->processors = p.multiProcessorCount;
}

static size_t cuda_peak(void *self) { return ((cuda *)self)->peak; }

static inv_status cuda_pin(void *self, size_t nbytes, void **out)
{
    cuda *d = self;
    INV_TRY(choose(d));
    cudaError_t e = cudaHostAlloc(out, nbytes ? nbytes : 1, cudaHostAllocDefault);
    if (e == cudaSuccess) return INV_OK;
    (void)fail(d, e, "pinned host memory");
    INV_CHECK(e != cudaErrorMemoryAllocation, d->ctx, INV_E_NOMEM, "out of memory: %zu bytes of pinned host memory",
              nbytes);
    return INV_E_DEVICE;
}

static void cuda_unpin(void *self, void *p)
{
    (void)self;
    (void)cudaFreeHost(p);
}

static void cuda_bind(void *self, unsigned char *control, inv_precision precision)
{
    cuda *d = self;
    inv_gpu_bind(&d->gpu, control);
    d->gpu.precision = precision;
}

/* --- queues --- */

static inv_status waited(const cuda *d, cudaError_t e)
{
    if (e == cudaSuccess) return INV_OK;
    return inv_fail(d->ctx, INV_E_DEVICE,
                    "the device failed while it ran the step: %s (%s). To see which node, set "
                    "CUDA_LAUNCH_BLOCKING=1 in the environment",
                    cudaGetErrorString(e), cudaGetErrorName(e));
}

static int queues_done(void *of)
{
    const cuda *d = of;
    cudaError_t e = cudaSuccess;
    for (int q = 0; q < INV_QUEUES && e == cudaSuccess; q++) e = cudaStreamQuery(d->stream[q]);
    return (int)e;
}

static int told_done(void *of) { return (int)cudaEventQuery(*(cudaEvent_t *)of); }

static inv_status cuda_finish(void *self)
{
    cuda *d = self;
    INV_TRY(inv_nccl_wait(d->ranks, queues_done, d));
    for (int q = 0; q < INV_QUEUES; q++) INV_TRY(waited(d, cudaStreamSynchronize(d->stream[q])));
    return INV_OK;
}

/* In a graph the event is a node that outsiders may wait for. */
static inv_status cuda_tell(void *self, inv_told what)
{
    cuda *d = self;
    const unsigned flags = d->recording ? cudaEventRecordExternal : cudaEventRecordDefault;
    CUDA_TRY(d, cudaEventRecordWithFlags(d->told[what], d->stream[INV_QUEUE_COMPUTE], flags), "event on the device");
    return INV_OK;
}

static inv_status cuda_hear(void *self, inv_told what)
{
    cuda *d = self;
    INV_TRY(inv_nccl_wait(d->ranks, told_done, &d->told[what]));
    return waited(d, cudaEventSynchronize(d->told[what]));
}

/* After a node's kernels are queued, with what its row has returned. */
static inv_status queued(cuda *d, const inv_node *node, inv_status st)
{
    if (st == INV_E_UNSUPPORTED_TYPE || st == INV_E_INTERNAL) return inv_node_failed(d->ctx, node, st);
    INV_TRY(st);
    cudaError_t e = cudaGetLastError();
    for (int q = 0; q < INV_QUEUES && e == cudaSuccess && d->blocking; q++) e = cudaStreamSynchronize(d->stream[q]);
    if (e == cudaSuccess) return INV_OK;
    return inv_fail(d->ctx, INV_E_DEVICE, "node '%s' (%s) failed on the device: %s (%s)", inv_node_label(node),
                    node->op->name, cudaGetErrorString(e), cudaGetErrorName(e));
}

static inv_status cuda_judge(void *self, const inv_judged *found)
{
    cuda *d = self;
    INV_TRY(choose(d));
    INV_GPU(&d->gpu, judge, found);
    CUDA_TRY(d, cudaGetLastError(), "the verdict on the step");
    return INV_OK;
}

static inv_status cuda_run(void *self, int queue, const inv_node *node, const inv_call *call)
{
    cuda *d = self;
    inv_call c = *call;
    inv_gpu gpu = d->gpu;
    gpu.stream = d->stream[queue];
    c.gpu = &gpu;
    c.step = NULL;
    INV_TRY(choose(d));
    return queued(d, node, node->op->run(&c));
}

static inv_status cuda_run_many(void *self, const inv_node *first, const inv_call *const *calls, size_t n)
{
    cuda *d = self;
    INV_TRY(choose(d));
    return queued(d, first, first->op->run_many(&d->gpu, calls, n));
}

static inv_status cuda_send(void *self, int queue, void *dst, const void *src, size_t nbytes)
{
    cuda *d = self;
    INV_TRY(choose(d));
    if (nbytes)
        CUDA_TRY(d, cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyHostToDevice, d->stream[queue]), "copy to the device");
    return INV_OK;
}

static inv_status cuda_fetch(void *self, int queue, void *dst, const void *src, size_t nbytes)
{
    cuda *d = self;
    INV_TRY(choose(d));
    if (nbytes)
        CUDA_TRY(d, cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDeviceToHost, d->stream[queue]),
                 "copy from the device");
    return INV_OK;
}

static inv_status cuda_copy(void *self, void *dst, const void *src, size_t nbytes)
{
    cuda *d = self;
    INV_TRY(choose(d));
    if (nbytes)
        CUDA_TRY(d, cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDeviceToDevice, d->stream[INV_QUEUE_COMPUTE]),
                 "copy on the device");
    return INV_OK;
}

/* From memory that is not pinned the runtime copies by itself before it returns. */
static inv_status cuda_upload(void *self, void *dst, const void *src, size_t nbytes)
{
    INV_TRY(cuda_send(self, INV_QUEUE_COMPUTE, dst, src, nbytes));
    return cuda_finish(self);
}

static inv_status cuda_download(void *self, void *dst, const void *src, size_t nbytes)
{
    INV_TRY(cuda_finish(self));
    INV_TRY(cuda_fetch(self, INV_QUEUE_COMPUTE, dst, src, nbytes));
    return cuda_finish(self);
}

static inv_status event_at(cuda *d, size_t i, cudaEvent_t *out)
{
    while (d->event.n <= i) {
        cudaEvent_t fresh = NULL;
        CUDA_TRY(d, cudaEventCreateWithFlags(&fresh, cudaEventDisableTiming), "no event on the device");
        if (!inv_vec_push(&d->arena, &d->event, fresh)) {
            (void)cudaEventDestroy(fresh);
            return INV_E_NOMEM;
        }
    }
    *out = d->event.at[i];
    return INV_OK;
}

static inv_status cuda_stamp(void *self, size_t i)
{
    cuda *d = self;
    while (d->stamp.n <= i) {
        cudaEvent_t fresh = NULL;
        CUDA_TRY(d, cudaEventCreateWithFlags(&fresh, cudaEventDefault), "no event on the device");
        if (!inv_vec_push(&d->arena, &d->stamp, fresh)) {
            (void)cudaEventDestroy(fresh);
            return INV_E_NOMEM;
        }
    }
    CUDA_TRY(d, cudaEventRecord(d->stamp.at[i], d->stream[INV_QUEUE_COMPUTE]), "event on the device");
    return INV_OK;
}

static inv_status cuda_between(void *self, size_t i, double *seconds)
{
    cuda *d = self;
    float ms = 0;
    CUDA_TRY(d, cudaEventElapsedTime(&ms, d->stamp.at[i], d->stamp.at[i + 1]), "times of the device");
    *seconds = 1e-3 * (double)ms;
    return INV_OK;
}

static inv_status cuda_mark(void *self, int queue, size_t i)
{
    cuda *d = self;
    cudaEvent_t e;
    INV_TRY(event_at(d, i, &e));
    CUDA_TRY(d, cudaEventRecord(e, d->stream[queue]), "event on the device");
    return INV_OK;
}

static inv_status cuda_wait(void *self, int queue, size_t i)
{
    cuda *d = self;
    cudaEvent_t e;
    INV_TRY(event_at(d, i, &e));
    CUDA_TRY(d, cudaStreamWaitEvent(d->stream[queue], e, 0), "waiting on the device");
    return INV_OK;
}

/* --- recording: a CUDA graph, captured from the compute stream; the others join by events --- */

static inv_status cuda_record(void *self)
{
    cuda *d = self;
    if (d->blocking) return INV_OK;
    CUDA_TRY(d, cudaStreamBeginCapture(d->stream[INV_QUEUE_COMPUTE], cudaStreamCaptureModeThreadLocal),
             "recording the step");
    d->recording = true;
    return INV_OK;
}

static inv_status cuda_recorded(void *self, void **out, size_t *nodes)
{
    cuda *d = self;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    *out = NULL;
    d->recording = false;
    if (d->blocking) return INV_OK;
    cudaError_t e = cudaStreamEndCapture(d->stream[INV_QUEUE_COMPUTE], &graph);
    if (e == cudaSuccess) e = cudaGraphGetNodes(graph, NULL, nodes);
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    *out = exec;
    CUDA_TRY(d, e, "recording the step");
    return INV_OK;
}

static inv_status cuda_replay(void *self, void *graph)
{
    cuda *d = self;
    INV_TRY(choose(d));
    CUDA_TRY(d, cudaGraphLaunch((cudaGraphExec_t)graph, d->stream[INV_QUEUE_COMPUTE]), "the recorded step");
    return INV_OK;
}

static void cuda_forget(void *self, void *graph)
{
    (void)self;
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

static inv_status cuda_join(void *self, inv_world *world)
{
    cuda *d = self;
    INV_TRY(choose(d));
    if (world && !d->ranks) INV_TRY(inv_nccl_open(d->ctx, world, &d->ranks));
    d->gpu.ranks = world ? d->ranks : NULL;
    return INV_OK;
}

const inv_device inv_device_cuda = {.name = "cuda",
                                    .open = cuda_open,
                                    .close = cuda_close,
                                    .alloc = cuda_alloc,
                                    .free = cuda_free,
                                    .upload = cuda_upload,
                                    .download = cuda_download,
                                    .copy = cuda_copy,
                                    .run = cuda_run,
                                    .run_many = cuda_run_many,
                                    .peak = cuda_peak,
                                    .facts = cuda_facts,
                                    .pin = cuda_pin,
                                    .unpin = cuda_unpin,
                                    .bind = cuda_bind,
                                    .send = cuda_send,
                                    .fetch = cuda_fetch,
                                    .mark = cuda_mark,
                                    .wait = cuda_wait,
                                    .finish = cuda_finish,
                                    .tell = cuda_tell,
                                    .hear = cuda_hear,
                                    .judge = cuda_judge,
                                    .record = cuda_record,
                                    .recorded = cuda_recorded,
                                    .replay = cuda_replay,
                                    .forget = cuda_forget,
                                    .stamp = cuda_stamp,
                                    .between = cuda_between,
                                    .join = cuda_join};
