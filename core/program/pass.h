/* SPDX-License-Identifier: Apache-2.0
 * What is done after every pass, in one place: the graph is checked, and who listens is told (pass.c). */
#ifndef INV_CORE_PASS_H
#define INV_CORE_PASS_H

#include "core/program/program.h"

/* What a pass leaves. */
typedef enum inv_pass_left {
    INV_LEFT_IMPORTED,  /* operators as the file has them */
    INV_LEFT_CANONICAL, /* canonical ones, with static shapes */
    INV_LEFT_MATCHED    /* the same, and what was matched in them is new */
} inv_pass_left;

/* Checks the graph, and gives its text to the session's `after_pass`. INV_E_IO if that says no. */
inv_status inv_pass_done(const inv_request *rq, const inv_graph *g, inv_pass_left left, const char *name);

/* One pass. Whatever compiles calls its passes by this. Where arrays of values and nodes have grown, a pass may still
 * read the smaller ones; behind it they go. */
#define INV_PASS(rq, g, left, name, call)              \
    do {                                               \
        INV_TRY(call);                                 \
        inv_arena_tidy(&(g)->arena);                   \
        INV_TRY(inv_pass_done((rq), (g), left, name)); \
    } while (0)

#endif
