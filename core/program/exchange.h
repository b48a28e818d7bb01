/* SPDX-License-Identifier: Apache-2.0
 * The ranks that train together, as kernels and sessions see them (executor/world/world_open.c). All calls are
 * collective: every rank makes the same ones in the same order, with the same sizes. They wait no longer than
 * `timeout`. */
#ifndef INV_CORE_EXCHANGE_H
#define INV_CORE_EXCHANGE_H

#include "core/base/mem.h"

/* A sum over ranks that is on its way. Every rank has a bucket of size * chunk elements. First each rank is sent its
 * chunk of everybody's bucket, and folds these into its own (the first half); then chunks go to all (the second). So a
 * sum has one order, that of the ranks, whatever the network does, every rank has the same bits, and a rank receives
 * 2 (size - 1) chunks, as many as in a ring. Each half can be had by itself: a rank is left with its chunk of the sum,
 * or has given its chunk of something to all. */
typedef enum inv_halves { INV_SCATTER = 1, INV_SPREAD = 2, INV_BOTH_HALVES = INV_SCATTER | INV_SPREAD } inv_halves;
typedef struct inv_reduction {
    const char *what; /* for messages */
    inv_halves halves;
    unsigned char *bucket; /* gets the result; what stands there must stay as it is until inv_world_calls.reduced */
    unsigned char *parts;  /* room for size chunks: this rank's of every bucket; not of INV_SPREAD alone */
    size_t chunk_nbytes;
    const double *weight; /* per rank; this and what follows not of INV_SPREAD alone */
    inv_dtype dtype;
    /* Writes the sum of `size` parts, one behind the other, to `out`. */
    void (*fold)(const struct inv_reduction *r, int size, const unsigned char *parts, unsigned char *out);
} inv_reduction;

typedef struct inv_world_calls {
    inv_status (*gather)(inv_world *w, const char *what, const void *mine, size_t nbytes, void *all);
    /* data of rank `root` becomes that of all */
    inv_status (*broadcast)(inv_world *w, const char *what, int root, void *data, size_t nbytes);
    inv_status (*reduce)(inv_world *w,
                         const inv_reduction *r); /* begins it; they go on in the order in which they begin */
    int (*first)(inv_world *w, double seconds);   /* inv_world_first */
    void (*progress)(inv_world *w);               /* does what can be done without waiting */
    inv_status (*reduced)(inv_world *w, const void *bucket); /* waits for its end */
    inv_status (*late)(inv_world *w, const char *what); /* INV_E_RANKS: says who has not come to it for `timeout` */
    void (*end_all)(inv_world *w, int status);
    void (*close)(inv_world *w);
} inv_world_calls;

struct inv_world {
    const inv_world_calls *calls;
    inv_context *ctx;   /* gets the messages: that of the session at hand */
    inv_context *owner; /* has its memory */
    int rank, size;
    double timeout;           /* seconds */
    unsigned long long step;  /* for messages */
    double latency;           /* seconds that a message takes beside its bytes, equal on all ranks */
    double bytes_per_second;  /* that a rank sends or receives, likewise */
    double busy;              /* share of a reduction's time that keeps the rank from computing, likewise: 0 to 1 */
    double waited, under_way; /* seconds for reductions: that this rank did nothing else, and that there were any */
    double moved;             /* of `waited`: that it looked after them between nodes */
    int on_host;              /* of the ranks, those on this one's machine; 0: not known */
    bool imagined;            /* ranks that are not there, to be planned for */
};

/* Whether steps are made with others. */
static inline bool inv_world_several(const inv_world *w) { return w && w->size > 1; }

/* What a reduction of so many bytes takes if nothing else goes on: for each half, size - 1 messages of a share of the
 * bucket, one after the other. */
static inline double inv_world_seconds(const inv_world *w, double nbytes, inv_halves halves)
{
    const int rounds = (halves == INV_BOTH_HALVES ? 2 : 1) * (w->size - 1);
    return rounds * (w->latency + nbytes / w->size / w->bytes_per_second);
}

/* Elements of a part, where ranks share so many: the same number on all, in whole `unit`s, so that the last ranks may
 * have less to keep in it, or nothing. */
static inline int64_t inv_part_length(int64_t nelem, int64_t ranks, int64_t unit)
{
    const int64_t share = (nelem + ranks - 1) / ranks;
    return (share + unit - 1) / unit * unit;
}

/* How many of these elements lie in the part of a rank, which begins at element rank * length. */
static inline int64_t inv_part_count(int64_t nelem, int64_t length, int64_t rank)
{
    const int64_t left = nelem - rank * length;
    return left < 0 ? 0 : left < length ? left : length;
}

#endif
