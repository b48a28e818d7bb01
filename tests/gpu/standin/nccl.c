/* SPDX-License-Identifier: Apache-2.0
 * The stand-in's NCCL: ranks are processes of this machine, which meet in a file of shared memory that the unique id
 * names. Every call is held to its contract: a stream of the communicator's device, memory of that device, a place of
 * its own for what is sent or the one in the result that is allowed, messages in groups that have their other half, the
 * same calls with the same sizes on all ranks. What a rank has sent can be read once all have come as far; nothing
 * waits but the stream. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

enum {
    MOST_RANKS = 8,
    ROOM = 4 << 20,
    TURNS = 2,
    MOST_MESSAGES = 64,
    SUCCESS = 0,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5
};
typedef struct unique_id {
    char bytes[128];
} unique_id;

/* What a rank has sent in its newest two calls. */
typedef struct letter {
    char kind; /* 'a': to all, 'm': messages */
    size_t nbytes[MOST_RANKS];
    unsigned char data[ROOM];
} letter;
typedef struct desk {
    _Atomic uint64_t sent, read; /* calls */
    _Atomic bool aborted;
    letter letter[TURNS];
} desk;

typedef struct communicator {
    int rank, size, device;
    uint64_t calls; /* that have been queued */
    desk *desk;     /* of each rank */
    size_t mapped;
} communicator;

typedef struct message {
    bool sends;
    int peer;
    void *p;
    size_t nbytes;
} message;

/* A call, or what is between GroupStart and GroupEnd. */
typedef struct call {
    communicator *comm;
    cudaStream_t stream;
    char kind;
    bool sent;
    uint64_t number; /* 0: gets it when it begins, so that a graph's have new ones each time */
    const void *from;
    void *to;
    size_t nbytes;
    int n;
    message message[MOST_MESSAGES];
} call;

static int depth;
static call group;

static void read_others(const call *c)
{
    const communicator *k = c->comm;
    const desk *own = &k->desk[k->rank];
    for (int r = 0; r < k->size; r++) {
        const letter *l = &k->desk[r].letter[c->number % TURNS];
        if (l->kind != c->kind) standin_undefined("ranks make other calls of NCCL at the same time");
        if (c->kind == 'a' && l->nbytes[0] != c->nbytes) standin_undefined("ranks gather other numbers of bytes");
        if (c->kind == 'a') memmove((char *)c->to + (size_t)r * c->nbytes, l->data, c->nbytes);
    }
    for (int i = 0; i < c->n; i++) {
        const message *m = &c->message[i];
        const letter *l = &k->desk[m->peer].letter[c->number % TURNS];
        size_t at = 0;
        if (m->sends) continue;
        for (int r = 0; r < k->rank; r++) at += l->nbytes[r];
        if (l->nbytes[k->rank] != m->nbytes) standin_undefined("a message is received that was not sent so");
        memcpy(m->p, l->data + at, m->nbytes);
    }
    atomic_store(&((desk *)(uintptr_t)own)->read, c->number);
}

/* What is sent is laid out by receiver. */
static void send_own(call *c)
{
    communicator *k = c->comm;
    desk *own = &k->desk[k->rank];
    letter *l = &own->letter[c->number % TURNS];
    size_t at = 0;
    memset(l->nbytes, 0, sizeof l->nbytes);
    l->kind = c->kind;
    if (c->kind == 'a') {
        l->nbytes[0] = c->nbytes;
        memcpy(l->data, c->from, c->nbytes);
    }
    for (int r = 0; r < k->size && c->kind == 'm'; r++) {
        for (int i = 0; i < c->n; i++) {
            const message *m = &c->message[i];
            if (!m->sends || m->peer != r) continue;
            if (l->nbytes[r]) standin_undefined("two messages to one rank in one group");
            if (at + m->nbytes > ROOM) standin_undefined("more bytes than the stand-in's NCCL has room for");
            memcpy(l->data + at, m->p, m->nbytes);
            l->nbytes[r] = m->nbytes;
            at += m->nbytes;
        }
    }
    atomic_store(&own->sent, c->number);
}

/* Whether it can be done now; what it sends is sent as soon as all have read what was there before. */
static bool arrived(void *arg)
{
    call *c = arg;
    communicator *k = c->comm;
    bool all = true;
    if (!c->sent) {
        c->number = atomic_load(&k->desk[k->rank].sent) + 1;
        for (int r = 0; r < k->size; r++)
            if (atomic_load(&k->desk[r].read) + TURNS < c->number) return false;
        standin_protect(true);
        send_own(c);
        standin_protect(false);
        c->sent = true;
    }
    for (int r = 0; r < k->size; r++) all = all && atomic_load(&k->desk[r].sent) >= c->number;
    return all;
}

static void do_call(void *arg)
{
    call *c = arg;
    read_others(c);
    c->sent = false;
}

static int queue(const call *c)
{
    standin_check_stream(c->stream);
    if (standin_stream_device(c->stream) != c->comm->device) return INVALID_ARGUMENT;
    return standin_queue_when(c->stream, 'n', arrived, do_call, c, sizeof *c) == cudaSuccess ? SUCCESS : 1;
}

/* --- the functions --- */

static const char *get_error_string(int s)
{
    return s == SUCCESS ? "no error" : s == INVALID_USAGE ? "invalid usage" : "unhandled cuda error";
}

static int get_unique_id(unique_id *id)
{
    if (standin_enter("ncclGetUniqueId")) return 1;
    static int made;
    memset(id, 0, sizeof *id);
    (void)snprintf(id->bytes, sizeof id->bytes, "/dev/shm/standin-nccl-%d-%d", (int)getpid(), made++);
    return SUCCESS;
}

/* As the real one, it waits for all ranks. */
static int comm_init_rank(communicator **out, int size, unique_id id, int rank)
{
    *out = NULL;
    if (standin_enter("ncclCommInitRank") || standin_capturing()) return 1;
    if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    communicator *k = calloc(1, sizeof *k);
    const size_t nbytes = (size_t)size * sizeof(desk);
    const int file = open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (!k || file < 0 || ftruncate(file, (off_t)nbytes) != 0) standin_undefined("no shared memory for ranks");
    *k = (communicator){.rank = rank, .size = size, .device = standin_device(), .mapped = nbytes};
    k->desk = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (k->desk == MAP_FAILED) standin_undefined("no shared memory for ranks");
    atomic_store(&k->desk[rank].sent, 1);
    atomic_store(&k->desk[rank].read, 1);
    for (int r = 0; r < size; r++)
        for (unsigned i = 0; atomic_load(&k->desk[r].sent) == 0; i++) {
            if (i == 60000) standin_undefined("a rank has not come to ncclCommInitRank");
            (void)usleep(1000);
        }
    if (rank == 0) (void)unlink(id.bytes); /* all have it open by now, as they have said so */
    standin_leaks++;
    *out = k;
    return SUCCESS;
}

static int comm_end(communicator *k)
{
    (void)munmap(k->desk, k->mapped);
    free(k);
    standin_leaks--;
    return SUCCESS;
}

static int comm_destroy(communicator *k)
{
    (void)standin_enter("ncclCommDestroy");
    return comm_end(k);
}

/* What is queued ends without having been done. */
static int comm_abort(communicator *k)
{
    (void)standin_enter("ncclCommAbort");
    standin_sticky = cudaErrorLaunchFailure;
    return comm_end(k);
}

static int comm_get_async_error(communicator *k, int *out)
{
    (void)k;
    *out = standin_enter("ncclCommGetAsyncError") ? 1 : SUCCESS;
    return SUCCESS;
}

static int group_start(void)
{
    if (depth++ == 0) group = (call){.kind = 'm'};
    return standin_enter("ncclGroupStart") ? 1 : SUCCESS;
}

static int group_end(void)
{
    if (depth-- < 1) standin_undefined("ncclGroupEnd without a start");
    if (standin_enter("ncclGroupEnd")) return 1;
    if (depth > 0 || group.n == 0) return SUCCESS;
    return queue(&group);
}

static int add_message(bool sends, void *p, size_t count, int type, int peer, communicator *k, cudaStream_t s)
{
    if (standin_enter(sends ? "ncclSend" : "ncclRecv")) return 1;
    if (depth == 0) standin_undefined("a message outside of a group, whose other half may wait for it");
    if (type != 1 || peer < 0 || peer >= k->size || group.n == MOST_MESSAGES) return INVALID_ARGUMENT;
    if (group.n && (group.comm != k || group.stream != s)) standin_undefined("a group of several streams");
    standin_needs(sends ? "ncclSend" : "ncclRecv", p, count, s);
    group.comm = k;
    group.stream = s;
    group.message[group.n++] = (message){sends, peer, p, count};
    return SUCCESS;
}

static int send_to(const void *p, size_t count, int type, int peer, communicator *k, cudaStream_t s)
{
    return add_message(true, (void *)(uintptr_t)p, count, type, peer, k, s);
}

static int receive_from(void *p, size_t count, int type, int peer, communicator *k, cudaStream_t s)
{
    return add_message(false, p, count, type, peer, k, s);
}

static int all_gather(const void *from, void *to, size_t count, int type, communicator *k, cudaStream_t s)
{
    const char *begin = to, *place = begin + (size_t)k->rank * count;
    if (standin_enter("ncclAllGather")) return 1;
    if (type != 1 || depth > 0) return INVALID_ARGUMENT;
    standin_needs("ncclAllGather", from, count, s);
    standin_needs("ncclAllGather", to, count * (size_t)k->size, s);
    if (count > ROOM) standin_undefined("more bytes than the stand-in's NCCL has room for");
    if (from != place && (const char *)from < begin + count * (size_t)k->size && (const char *)from + count > begin)
        standin_undefined("what ncclAllGather sends lies in its result, and not at its place there");
    const call c = {.comm = k, .stream = s, .kind = 'a', .from = from, .to = to, .nbytes = count};
    return queue(&c);
}

/* --- how it is found --- */

static char handle;

void *standin_nccl_open(void) { return getenv("STANDIN_NO_NCCL") ? NULL : &handle; }

void *standin_nccl_find(const void *file, const char *name)
{
    if (file != &handle) return NULL;
    OURS("ncclGetErrorString", get_error_string)
    OURS("ncclGetUniqueId", get_unique_id)
    OURS("ncclCommInitRank", comm_init_rank)
    OURS("ncclCommDestroy", comm_destroy)
    OURS("ncclCommAbort", comm_abort)
    OURS("ncclCommGetAsyncError", comm_get_async_error)
    OURS("ncclGroupStart", group_start)
    OURS("ncclGroupEnd", group_end)
    OURS("ncclSend", send_to)
    OURS("ncclRecv", receive_from)
    OURS("ncclAllGather", all_gather)
    return NULL;
}
