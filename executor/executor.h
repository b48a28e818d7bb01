/* SPDX-License-Identifier: Apache-2.0
 * The executor: walks a plan over one arena, on a device. */
#ifndef INV_EXECUTOR_EXECUTOR_H
#define INV_EXECUTOR_EXECUTOR_H

#include <string.h>

#include "core/graph/model.h"
#include "core/graph/node.h"
#include "core/program/options.h"
#include "core/program/program.h"
#include "ops/gpu/gpu.h"
#include "ops/train/guard_gpu.h"

/* A device is a table of functions. `self` is its own state. All return statuses; none allocates in a step.
 *
 * Host devices do at once what they are told. The others have queues (streams), one for kernels, one for copies, one
 * for kernels beside those of the first, and one for the next step's batch, and do it some time before `finish`
 * returns: what stands in one queue in its order, what stands in different ones in any order that `mark` and `wait`
 * allow. Host memory given to `send` and `fetch` comes from `pin` and must stay as it is until `finish`, or until
 * `hear` has returned of what stands behind it. */
enum { INV_QUEUE_COMPUTE, INV_QUEUE_COPY, INV_QUEUE_BESIDE, INV_QUEUE_AHEAD, INV_QUEUES };
/* What the compute queue tells of: a step's batch has been taken to its place; the step's result is there. */
typedef enum inv_told { INV_TOLD_FED, INV_TOLD_FOUND, INV_TOLDS } inv_told;

typedef struct inv_device_facts {
    size_t used, total;       /* bytes of the device: by everybody, with contexts, code and graphs, and all there are */
    const char *convolutions; /* by what they are computed; NULL: there was none yet */
    char name[128];
    int capability, processors; /* 90: compute capability 9.0; streaming multiprocessors */
    int driver, runtime;        /* CUDA's version that the driver has, and that of this build: 12040 is 12.4 */
    int cublaslt, cudnn;        /* versions as these say them; 0: not opened, for lack of need or of the library */
} inv_device_facts;

typedef struct inv_device {
    const char *name;
    bool host; /* memory of the host, kernels of the column `cpu`; the functions below `peak` are NULL */
    inv_status (*open)(inv_context *ctx, int index,
                       void **self); /* the index-th of its kind, from 0; -1: this rank's */
    void (*close)(void *self);
    inv_status (*alloc)(void *self, size_t nbytes, void **out); /* 64-byte aligned */
    void (*free)(void *self, void *p);
    inv_status (*upload)(void *self, void *dst, const void *src, size_t nbytes);   /* done when it returns, after all */
    inv_status (*download)(void *self, void *dst, const void *src, size_t nbytes); /* that was queued before */
    inv_status (*copy)(void *self, void *dst, const void *src, size_t nbytes);     /* on the device; compute queue */
    inv_status (*run)(void *self, int queue, const inv_node *node, const inv_call *call);
    /* Of n neighbouring nodes whose row has run_many; NULL: one by one. The calls stay where they are. */
    inv_status (*run_many)(void *self, const inv_node *first, const inv_call *const *calls, size_t n);
    /* A buffer begins (nothing in it may be read) or ends its life; NULL: nobody cares. */
    inv_status (*begin)(void *self, int queue, void *p, size_t nbytes);
    inv_status (*end)(void *self, int queue, void *p, size_t nbytes);
    size_t (*peak)(void *self);                       /* most bytes ever allocated at once */
    void (*facts)(void *self, inv_device_facts *out); /* NULL: there is nothing to say */

    inv_status (*pin)(void *self, size_t nbytes, void **out); /* host memory; freed by unpin */
    void (*unpin)(void *self, void *p);
    /* Device memory, laid out as `control` of the program: step values for kernels, faults and verdicts from them; and
     * what products are computed in. */
    void (*bind)(void *self, unsigned char *control, inv_precision precision);
    inv_status (*send)(void *self, int queue, void *dst, const void *src, size_t nbytes);  /* to the device */
    inv_status (*fetch)(void *self, int queue, void *dst, const void *src, size_t nbytes); /* to the host */
    /* The queue goes on after all that stood before the newest `mark` of that event. Events count from 0. */
    inv_status (*mark)(void *self, int queue, size_t event);
    inv_status (*wait)(void *self, int queue, size_t event);
    inv_status (*finish)(void *self); /* waits; says what failed since the last time */
    /* `hear` waits until the compute queue has come by the newest `tell` of that, and says what failed; what stands
     * behind it may still be to do. Only one of a graph's nodes may tell of it, and it counts from the graph's `replay`
     * on. */
    inv_status (*tell)(void *self, inv_told what);
    inv_status (*hear)(void *self, inv_told what);
    /* Compute queue: what was found in the step so far decides whether what follows is committed (inv_judged). */
    inv_status (*judge)(void *self, const inv_judged *found);
    /* What is queued between the two is not done but kept, to be queued as a whole by `replay`. */
    inv_status (*record)(void *self);
    /* Ends the recording, also a failed one. nodes: of the graph, kernels and copies */
    inv_status (*recorded)(void *self, void **graph, size_t *nodes);
    inv_status (*replay)(void *self, void *graph);
    void (*forget)(void *self, void *graph);
    /* Notes when the compute queue comes by, as the i-th time. After `finish`: seconds from that to the next one. */
    inv_status (*stamp)(void *self, size_t i);
    inv_status (*between)(void *self, size_t i, double *seconds);
    /* From now on nodes exchange with devices of these ranks, each of which calls it; NULL: with none, and for `begin`
     * they begin again. */
    inv_status (*join)(void *self, inv_world *world);
} inv_device;

extern const inv_device inv_device_cpu, inv_device_checked, inv_device_sim;
#ifdef INV_HAVE_CUDA
extern const inv_device inv_device_cuda;
#endif
/* By name, of which there may be several: cuda, cuda:1. INV_E_DEVICE names those of this build. */
inv_status inv_device_find(inv_context *ctx, const char *name, const inv_device **out, int *index);

/* One node ready to run. */
typedef struct inv_ready {
    const inv_node *node;
    inv_call call;
    uint32_t first_event, nevents; /* buffers that begin before and end after it */
    uint32_t first_read, nreads;   /* what it is the last for some time to read of the model's file */
    uint32_t runs;                 /* while the session is profiled: those that count */
    bool warm;                     /* the first one does not, as there are others */
    double seconds;                /* of all of them */
    double last;                   /* while it is watched (node_times.h): of the newest */
} inv_ready;

typedef struct inv_event {
    size_t offset, nbytes;
    bool begin;
} inv_event;

/* A copy between host and device memory on a device with queues: a feed, or what is offloaded or fetched (transfer.c).
 * The copy queue makes it while the compute queue goes on. Also a node that is computed beside others, `until` then.
 * Positions are those of the order; what is to be before a node may be behind the last one, the end of the compute
 * part. */
typedef struct inv_transfer {
    bool out;              /* to the host, OUT; else to the device */
    bool watched;          /* OUT: that life's end is told to the device by the copy queue, behind the copy */
    size_t at;             /* of its node */
    size_t from;           /* it is queued before the node there: its bytes on the device are free then; OUT: filled */
    size_t done;           /* OUT: its buffer's life ends behind the node there */
    size_t until;          /* the compute queue waits for it before the node there */
    size_t staged, nbytes; /* offset in the pinned host memory */
    unsigned char *device;
} inv_transfer;

typedef struct inv_runnable {
    inv_ready *node;
    const inv_call **call; /* of each node */
    uint32_t *many;        /* how many from it on are run at once, on devices that do so (run_many) */
    size_t n, commit_begin;
    size_t last_feed; /* position of the last Feed */
    inv_event *event;
    size_t nevent;
    inv_ids read;           /* values */
    inv_transfer *transfer; /* copies, by `from`; behind them, by `at`, `nbeside` nodes */
    size_t ntransfer;
    bool warm; /* has run once, so that all is loaded: from now on it is recorded */
    uint32_t nbeside;
    void *graph; /* the step as recorded; NULL: not yet */
    size_t graph_nodes;
} inv_runnable;

/* What a training call is fed, by slots of its plan. */
typedef struct inv_batch {
    int kind; /* its plan; -1: none */
    inv_feed *feed;
} inv_batch;

#define INV_NO_SAMPLES UINT64_MAX
struct inv_session {
    inv_context *ctx;
    inv_model *model;
    inv_program *program;
    const inv_device *device;
    void *self;
    unsigned char *persistent, *transient; /* device memory: the two parts of the arena */
    unsigned char *control; /* device memory before `transient`, program->control bytes: step values, guard verdicts */
    unsigned char *landing; /* between both, program->landing bytes */
    size_t persistent_nbytes, transient_nbytes; /* the second counts `control` and `landing` */
    /* Of the transient part, and of the persistent one: whether addresses were given out (inv_session_view), and what
     * was not freed because of that when it was moved. */
    bool lent[2];
    INV_VEC(void *) retired[2];
    uint64_t beside;   /* bytes that the process took beside the arena when the session was made; 0: not known */
    size_t probed;     /* bytes that looking at rows took before that (row_probe.c) */
    inv_arena lasting; /* what lives as long as the session */
    inv_arena memory;  /* run tables, one per plan; rebuilt when planned again */
    inv_runnable run[INV_PLAN_KINDS];
    inv_step step;
    double *drift;         /* per guard slot, of the plan at hand */
    unsigned char *pinned; /* host memory that queues read and write: a mirror of `control`, results, what is offloaded,
                            * feeds */
    size_t staged;         /* offset in it of feeds, slot by slot (inv_plan_feed_at) */
    inv_feed *feed;
    inv_batch next, landed; /* ahead.c: the one behind the next training call's, and the one in `landing` */
    bool sending;           /* that may still be on its way */
    int threads;            /* workers; 0: not known yet */
    int newest;             /* plan of the newest call, -1: none */
    bool halfway;           /* its forward part has run, and its backward part may follow */
    bool wrote;             /* the call at hand has begun to change what persists */
    const char *lost; /* why no step can be made any more: planning again or the device has failed; NULL: it can */
    uint64_t steps;
    uint64_t micro;     /* batches of the step so far */
    uint64_t samples;   /* rows of them, of all ranks; INV_NO_SAMPLES: not known */
    uint64_t fed;       /* rows of the batch at hand, of all ranks */
    double accumulated; /* weight of the micro-batches since the last update, of all ranks */
    double mean_loss;   /* of them, */
    double most_drift;  /* their largest drift, */
    int fell_back;      /* and all their fallbacks */
    double own;         /* weight of this rank's */
    int there;          /* ranks that have rows of the batch at hand */
    void *gathered;     /* room for what ranks say of a step (agree.c) */
    bool averages;      /* averages are read in place of the weights */
    bool swapped;       /* and have changed places with them: not before anything is averaged */
    bool averaged;      /* an update, a state or the caller has set averages; before, they are the weights */
    int fallbacks;
    double worst_drift;
    struct inv_mode_set *modes; /* modes.c: those at hand; behind, what open scopes restore; NULL: never set */
    void *host;                 /* download buffer for inv_session_get, grows */
    size_t host_nbytes;
    struct inv_improve *improve; /* improve.c; NULL: plans stay as they are */
    bool watching;               /* which times the nodes of the main plan now */
    INV_VEC(const char *) stale; /* outputs of the file that are no log-determinant of the weights as they train */
    char bad_node[256];
};

/* Rows of the step before the batch at hand. In the middle of a step that inv_session_set_step has named, as if all of
 * its batches had as many rows as this one. */
static inline uint64_t inv_samples_before(const inv_session *s)
{
    return s->samples == INV_NO_SAMPLES ? s->micro * s->fed : s->samples;
}

/* save_model.c. An initializer with its present elements, in its own type; s NULL: as loaded. In `a`. */
struct inv_outline_tensor;
inv_status inv_present_tensor(inv_session *s, inv_arena *a, const inv_value *v, struct inv_outline_tensor *out);

/* fed_values.c: what kernels cannot report. Targets are such as the loss takes. */
inv_status inv_check_target(inv_session *s, const inv_plan *plan, const inv_array *target);
/* span NULL: anything is taken. */
inv_status inv_check_lengths(inv_session *s, const inv_lengths *span, const inv_array *a);
/* The array of that name; NULL: there is none. */
const inv_array *inv_array_named(const inv_array *arrays, size_t n, const char *name);
/* Inputs that are constants of the session have the values that they had when it was made. */
inv_status inv_check_constants(inv_session *s, const inv_array *inputs, size_t n);
/* Elements are of a kind that the plan takes: fractions would be lost, labels taken for shares. */
inv_status inv_check_kind(inv_session *s, const inv_plan *plan, const inv_feed_slot *slot, const inv_array *a);

/* stages.c. That the last stage can be planned, before there is a session. */
inv_status inv_stages_try(inv_session *s, const inv_session_options *o);
/* Before a step: if it is the first of a stage, the session is planned for that. On failure it is as it was. */
inv_status inv_stages_enter(inv_session *s);
/* The program of another step's stage; NULL: the session's is of that stage. */
inv_status inv_stages_program(const inv_session *s, uint64_t step, inv_program **out);
/* session.c. Another program of the same model takes the place of the session's, with all that persists. On failure
 * the session is as it was, and the program is gone. */
inv_status inv_session_take_program(inv_session *s, inv_program *fresh);
/* Gives what persists there its first contents: those of the model, or zeros. */
inv_status inv_session_fill(inv_session *s, const inv_storage *h);

/* Gives freed memory of the heap back to the system (process.c). */
void inv_process_trim(void);

/* The message of a kernel that gave only a status. */
static inline inv_status inv_node_failed(inv_context *ctx, const inv_node *n, inv_status s)
{
    if (n->op->flags & INV_OP_EXPLAINS) return s;
    return inv_fail(ctx, s, "node '%s' (%s): %s", inv_node_label(n), n->op->name,
                    s == INV_E_NUMERIC ? "an index is outside its axis, or an integer is divided by zero"
                                       : inv_status_text(s));
}

static inline inv_status inv_run_on_host(inv_context *ctx, const inv_node *n, const inv_call *call)
{
    inv_outside outside = {0, -1};
    inv_call asking = *call;
    asking.outside = &outside;
    inv_status s = n->op->run(&asking);
    if (s == INV_E_NUMERIC && outside.extent >= 0)
        return inv_fail(ctx, s, "node '%s' (%s): index %lld is outside its axis, which has %lld", inv_node_label(n),
                        n->op->name, (long long)outside.index, (long long)outside.extent);
    return s == INV_OK ? s : inv_node_failed(ctx, n, s);
}

static inline void inv_gpu_bind(inv_gpu *gpu, unsigned char *control)
{
    gpu->step = (inv_gpu_step *)(void *)control;
    gpu->fault = (uint64_t *)(void *)(control + INV_CONTROL_FAULT);
    gpu->turn = (unsigned *)(void *)(control + INV_CONTROL_TURN);
    gpu->drift = (double *)(void *)(control + INV_CONTROL_STEP);
}

/* Poisoned memory, of devices that watch it: all bits set, a NaN in float32 and float64. */
enum { INV_POISON = 0xff };
/* The first byte that is not poison; nbytes: there is none. */
static inline size_t inv_first_unpoisoned(const unsigned char *p, size_t nbytes)
{
    size_t i = 0;
    if (nbytes == 0 || (p[0] == INV_POISON && memcmp(p, p + 1, nbytes - 1) == 0)) return nbytes;
    while (p[i] == INV_POISON) i++;
    return i;
}

/* session.c: the mean of a loss is over rows. What the model itself, or the caller, makes of none is theirs. */
inv_status inv_session_check_rows(const inv_session *s, const inv_session_options *o);
/* session.c: an error for sessions that have no plan any more */
inv_status inv_session_whole(const inv_session *s);
/* inv_session_create of options that have been read (core/program/options.h), which may be for a purpose of our own. */
inv_status inv_session_make(inv_model *model, const inv_session_options *options, inv_session **out);
/* This process may compute: the worker threads are its own (workers.c). */
inv_status inv_workers_own(inv_context *ctx);
/* The calling thread works with as many as the session was made for, which its workspaces are planned for. */
void inv_workers_use(inv_session *s);
/* The program as it was; its arena holds what has come since. */
void inv_program_restore(inv_program *p, const inv_program *former);
/* session.c: plans again after the program's options, modes or checkpoints have changed, and moves the arena;
 * parameters and all that persists keep their bytes. `former`: the program as it was before; on failure it is that
 * again. */
inv_status inv_session_plan_again(inv_session *s, const inv_program *former);
/* guard_fallback.c: notes the largest error that the guards of plan `kind` have measured, and returns whether one of
 * them refuses the step. An error that is not a number counts as infinite. */
bool inv_guards_refuse(inv_session *s, int kind, inv_result *result);
/* guard_fallback.c: after a refusal; values are kept from now on, and the session is planned again. */
inv_status inv_guards_fall_back(inv_session *s, int kind);
/* step.c: waits for what is queued, the newest update too */
inv_status inv_session_settle(inv_session *s);
/* modes.c: what inv_session_set_modes has left */
void inv_modes_forget(inv_session *s);

/* likelihood.c: the log-determinant that a flow's loss takes beside that of the rules, on the data of `given`; needs
 * s->program alone. INV_E_ARG if they differ */
inv_status inv_compare_logdet(inv_session *s, const inv_session_options *given);
/* volume_check.c: the log-determinant that a plugin's rules state beside differences of the outputs, on the first row
 * of `given`; p->volumes has such a rule. INV_E_ARG if they differ */
inv_status inv_check_volumes(inv_context *ctx, const inv_program *p, const inv_session_options *given);
/* row_probe.c: options of a session for the forward part alone, beside the one of these; `inputs` is the caller's. */
inv_session_options inv_forward_options(const inv_session_options *of);
/* row_probe.c: whether axis 0 is the batch, on the data of `given`; needs nothing of the session. INV_E_ARG if not */
inv_status inv_probe_rows(inv_session *s, const inv_session_options *given);
/* session_values.c: where what persists lives, by its name; NULL: nowhere in this session */
const inv_storage *inv_session_persistent(const inv_session *s, inv_storage_kind kind, const char *name);
/* Makes each average equal to its weight, unless something has been averaged already. */
inv_status inv_session_begin_averages(inv_session *s);
/* Finds the place of an average: its weight's while the two have changed places. Before anything is averaged it is the
 * weight's, too, unless it is to have its `own`, equal to the weight's. Other states stay where they are. */
inv_status inv_session_average_place(inv_session *s, bool own, const inv_storage **h);
/* From now on the averages are numbers of their own, if h is one. */
void inv_session_average_was_set(inv_session *s, const inv_storage *h);
/* session_values.c: where an initializer lives; NULL: nowhere in this session */
const inv_storage *inv_session_storage(const inv_session *s, const char *name);
/* whether steps of a program change an initializer that lives there: it is trained, or a running statistic */
bool inv_program_changes(const inv_program *p, const inv_storage *h);
/* whether it is not as the model has it, though no step of this stage changes it */
inv_status inv_session_moved(inv_session *s, const inv_storage *h, bool *moved);
const inv_storage *inv_session_master(const inv_session *s, const char *name); /* of one that follows another */
/* Whether the nodes of plan `kind` are timed. */
static inline bool inv_session_watches(const inv_session *s, int kind) { return s->watching && kind == INV_PLAN_MAIN; }
inv_status inv_session_room(inv_session *s, size_t nbytes); /* s->host, for what is given out */
/* a device tensor in host memory, valid until the next call */
inv_status inv_session_fetch(inv_session *s, const void *address, inv_dtype dtype, const inv_shape *shape,
                             const void **data);

/* run.c */
typedef enum inv_part { INV_PART_COMPUTE, INV_PART_COMMIT } inv_part;
void *inv_value_address(const inv_session *s, const inv_value *v);
const void *inv_storage_address(const inv_session *s, const inv_storage *h);
inv_status inv_runnable_build(inv_session *s, int kind);
/* Runs nodes [from, to) of a plan. `bad`, unless NULL: stops at the first output that is not finite (s->bad_node). */
inv_status inv_runnable_compute(inv_session *s, int kind, size_t from, size_t to, bool *bad);

/* Tells the device of the buffers that begin with a node. */
inv_status inv_buffers_begin(inv_session *s, const inv_runnable *r, const inv_ready *n, int queue);

/* transfer.c: copies between the memories, and nodes beside others, of devices with queues */
/* Finds them. What is offloaded is staged from `host` on. */
inv_status inv_transfers_note(inv_session *s, int kind, size_t host);
/* Before the node at that position, of a run that began `from` there: queues the copies that may begin, and waits for
 * those that must be through. */
inv_status inv_transfers_begin(inv_session *s, const inv_runnable *r, size_t from, size_t at);
inv_status inv_transfers_await(inv_session *s, const inv_runnable *r, size_t from, size_t at);
/* Whether that node runs beside others: on its queue, begun by inv_transfers_fork and ended by inv_transfers_end. */
bool inv_runs_beside(const inv_runnable *r, size_t at);
inv_status inv_transfers_fork(inv_session *s, const inv_runnable *r, size_t at);
/* Behind it: tells the device of the buffers that end. */
inv_status inv_transfers_end(inv_session *s, const inv_runnable *r, size_t at);

/* ahead.c: batches that are sent while the step before computes */
/* Whether a plan's feeds come by way of `landing`. */
bool inv_lands(const inv_session *s, int kind);
/* What is fed to the step of that plan is staged, and where it lands, on its way there. */
inv_status inv_ahead_begin(inv_session *s, int kind);
/* The compute queue goes on when it has landed. */
inv_status inv_ahead_await(inv_session *s, int kind);
/* In the compute queue: a Feed takes its part of it, and the last one tells. */
inv_status inv_ahead_take(inv_session *s, const inv_runnable *r, const inv_ready *n);
/* When the step is queued: the batch that has been named as the next is staged and sent. */
inv_status inv_ahead_send(inv_session *s, int kind);
/* What is named, has landed, or may be on its way is forgotten: nothing is queued, and its memory goes. */
void inv_ahead_forget(inv_session *s);
/* step.c: which plan arrays are for, of [first, last], and what is fed to its slots then. */
inv_status inv_session_feed(inv_session *s, int first, int last, const inv_array *inputs, size_t n,
                            const inv_array *target, inv_batch *out);

/* queue.c: all of it does what the device needs, on those of the host very little */
inv_status inv_queues_ready(inv_session *s); /* after the run tables are built */
void inv_queues_forget(inv_session *s);      /* before they go */
/* Waits until the compute queue has come by what it tells of. */
inv_status inv_queues_hear(inv_session *s, inv_told what);
/* Queues that: a word is fetched, and it is told. */
inv_status inv_queues_tell(inv_session *s, inv_told what);
void inv_queues_drain(inv_session *s); /* waits for what is left of a step that failed, whatever comes of it */
inv_status inv_queues_begin(inv_session *s, int kind); /* makes feeds and step values ready to be sent */
enum { INV_FETCHED = 4 };
/* The compute part, and contents of small values (INV_NONE: none; at most 16 bytes) and the verdicts in s->drift once
 * it is done. A device with queues has the commit part behind it by then, which does nothing if the step is refused.
 * *at: the part that was being queued when this failed. */
inv_status inv_queues_step(inv_session *s, int kind, const inv_id value[INV_FETCHED],
                           unsigned char bytes[INV_FETCHED][16], inv_part *at);
/* The commit part, where it is not queued by then: once it is known that the step counts. */
inv_status inv_queues_commit(inv_session *s, int kind);
/* The compute part up to the first output that is not finite. */
inv_status inv_queues_find_bad(inv_session *s, int kind, bool *bad);

#endif
