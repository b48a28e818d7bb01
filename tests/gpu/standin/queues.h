/* SPDX-License-Identifier: Apache-2.0
 * What streams, events, captures and graphs of the stand-in are made of (runtime.c, graphs.c). */
#ifndef STANDIN_QUEUES_H
#define STANDIN_QUEUES_H

#include <pthread.h>

#include "standin.h"

enum { MOST_STREAMS = 16 };

typedef struct work {
    bool (*ready)(void *arg); /* NULL: it waits for nothing */
    void (*run)(void *arg);
    void *arg;
} work;

/* A node of a graph comes behind those that it lists. */
typedef struct node {
    work work;
    cudaEvent_t event; /* which it records; NULL: it is work */
    size_t ndep;
    int *dep;
} node;
struct CUgraph_st {
    int users; /* the graph, what was made of it */
    node *at;
    size_t n;
};
struct CUgraphExec_st {
    struct CUgraph_st *graph;
    int queued;
};

/* A set of nodes of a capture. */
typedef struct ends {
    int *at;
    size_t n;
} ends;
typedef struct capture {
    struct CUgraph_st *graph;
    cudaStream_t origin;
    pthread_t thread;
    bool broken;
} capture;
struct CUevent_st {
    size_t queued, done;
    bool timed;
    size_t at;        /* when it was come by, of a clock that goes on with every task */
    capture *capture; /* it was last recorded in this one, which may have ended */
    ends ends;
    size_t captures; /* that had begun then */
};

typedef enum kind { WORK, RECORD, WAIT, GRAPH } kind;
typedef struct task {
    kind kind;
    work work;
    cudaEvent_t event;
    size_t count;
    cudaGraphExec_t exec;
} task;
struct CUstream_st {
    int device;
    task *task;
    size_t n, head, room;
    bool *done; /* of the graph at the head */
    size_t ndone;
    capture *capture;
    ends ends;
};

extern cudaStream_t standin_streams[MOST_STREAMS];
extern capture *standin_capture; /* at most one at a time */
extern size_t standin_captures;  /* begun so far */

void *standin_grown(void *p, size_t nbytes);
cudaError_t standin_noted(cudaError_t e); /* what cudaGetLastError gives, unless it is none */
cudaError_t standin_failed(void);         /* of a function that standin_enter lets fail */
#define ENTER \
    if (standin_enter(__func__)) return standin_failed()
void standin_do(const work *w, bool keep); /* keep: its argument */
void standin_push(cudaStream_t s, task t);

static inline bool standin_may_begin(const work *w) { return !w->ready || w->ready(w->arg); }

/* graphs.c. One node of the graph at the head of a stream, whose `done` is NULL behind the last; false: all that are
 * left wait. */
bool standin_do_node(cudaStream_t s, const struct CUgraph_st *g);
void standin_add_end(ends *e, int i);
/* Work as a node of the capture that the stream is in; arg becomes the graph's. */
cudaError_t standin_add_node(cudaStream_t s, work w, cudaEvent_t event);

#endif
