/* SPDX-License-Identifier: Apache-2.0
 * The executor: walks a plan over one arena, on a device. */
#ifndef INV_EXECUTOR_EXECUTOR_H
#define INV_EXECUTOR_EXECUTOR_H

#include "core/model.h"
#include "core/program.h"

/* A device is a table of functions. `self` is its own state. All return statuses; none allocates in a step. */
typedef struct inv_device {
    const char *name;
    bool host; /* its memory can be read in place */
    inv_status (*open)(inv_context *ctx, void **self);
    void (*close)(void *self);
    inv_status (*alloc)(void *self, size_t nbytes, void **out); /* 64-byte aligned */
    void (*free)(void *self, void *p);
    inv_status (*upload)(void *self, void *dst, const void *src, size_t nbytes);
    inv_status (*download)(void *self, void *dst, const void *src, size_t nbytes);
    inv_status (*copy)(void *self, void *dst, const void *src, size_t nbytes); /* on the device */
    inv_status (*run)(void *self, const inv_node *node, const inv_call *call);
    /* A buffer begins (nothing in it may be read) or ends its life; NULL: nobody cares. */
    inv_status (*begin)(void *self, void *p, size_t nbytes);
    inv_status (*end)(void *self, void *p, size_t nbytes);
    size_t (*peak)(void *self); /* most bytes ever allocated at once */
} inv_device;

extern const inv_device inv_device_cpu, inv_device_checked;
const inv_device *inv_device_find(const char *name); /* NULL: none of that name */

/* One node ready to run. */
typedef struct inv_ready {
    const inv_node *node;
    inv_call call;
    uint32_t first_event, nevents; /* buffers that begin before and end after it */
} inv_ready;

typedef struct inv_event {
    size_t offset, nbytes;
    bool begin;
} inv_event;

typedef struct inv_runnable {
    inv_ready *node;
    size_t n, commit_begin;
    inv_event *event;
    size_t nevent;
} inv_runnable;

struct inv_session {
    inv_context *ctx;
    inv_model *model;
    inv_program *program;
    const inv_device *device;
    void *self;
    unsigned char *persistent, *transient; /* device memory: the two parts of the arena */
    size_t persistent_nbytes, transient_nbytes;
    inv_arena memory;     /* run tables, one per plan; rebuilt when planned again */
    inv_runnable run[INV_PLAN_KINDS];
    inv_step step;
    double *drift;        /* per guard slot, of the plan at hand */
    inv_feed *feed;
    int newest;           /* plan of the newest call, -1: none */
    bool lost;            /* planning again has failed: no plan fits what the arena holds */
    uint64_t steps;
    int fallbacks;
    double worst_drift;
    void *host;           /* download buffer for inv_session_get, grows */
    size_t host_nbytes;
    char bad_node[256];
};

/* session.c: an error for sessions that have no plan any more */
inv_status inv_session_whole(const inv_session *s);
/* What a message calls a node: the model's name for it. */
static inline const char *inv_node_label(const inv_node *n)
{
    return n->norigin ? n->origin[0] : n->name && *n->name ? n->name : n->op_type;
}

/* run.c */
void *inv_value_address(const inv_session *s, const inv_value *v);
inv_status inv_runnable_build(inv_session *s, int kind);
inv_status inv_runnable_compute(inv_session *s, int kind, size_t from, size_t to, bool find_bad, bool *bad);

#endif
