/* SPDX-License-Identifier: Apache-2.0
 * Which of several processes this is, and which of them speaks. Whatever ends one of them ends all, with one message.
 */
#include "cli/say/rank.h"

#include <stdio.h>
#include <time.h>

#include "cli/say/signals.h"

#define FEW 5.0 /* seconds: who has the word, and who tells who has it, need no longer */
/* Seconds from one rank's word to the end of the others: mpirun waits one, sends TERM, and waits again. */
#define TURN 2.5
enum { LAST_TURN = 8 };

static int rank, size = 1;   /* as the launcher says */
static inv_world *joined;    /* NULL: not yet, or this process is alone */
static bool known_to_others; /* what has failed: they have the same message, and rank 0 tells it */

int cli_rank(void) { return rank; }
int cli_ranks(void) { return size; }

void cli_ranks_find(void) { (void)inv_world_launched(&rank, &size); }

void cli_ranks_joined(inv_world *world) { joined = world; }

/* false: meanwhile this process was told to end. Launchers do so first by a signal that `train` lives through, srun
 * half a minute before the one that it does not. */
static bool sleep_for(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    const bool before = cli_train_interrupted();
    while (nanosleep(&t, &t) != 0) {
    }
    return before || !cli_train_interrupted();
}

void cli_ranks_end(int status)
{
    fflush(stdout);
    fflush(stderr);
    if (joined) (void)sleep_for(0.1); /* the launcher drops what it has not handed on when it ends all */
    inv_world_end_all(joined, status);
}

void cli_ranks_known(void) { known_to_others = true; }

/* What fails before the others are joined: then they are joined to ask them. */
static void join_to_ask(void)
{
    static inv_context *ctx;
    if (joined || rank == 0 || inv_context_create(NULL, &ctx) != INV_OK) return;
    if (inv_world_open(ctx, FEW, &joined) != INV_OK) joined = NULL;
}

bool cli_ranks_turn(void)
{
    static bool asked, mine;
    if (size < 2 || asked) return size < 2 || mine;
    asked = true;
    /* Whoever was told to end, and then waits for others in vain, is not the first: they have ended by the same. */
    if (known_to_others && cli_train_interrupted()) (void)sleep_for(2 * FEW);
    join_to_ask();
    int is_first = rank ? -1 : inv_world_first(joined, FEW);
    if (rank && joined && !known_to_others) is_first = inv_world_first(joined, FEW);
    /* Where rank 0 does not tell, the lowest one that is alive does, and ends the others before it is their turn. */
    if (is_first < 0 && !sleep_for(FEW + TURN * (rank < LAST_TURN ? rank - 1 : LAST_TURN))) is_first = 0;
    if (is_first == 0) (void)sleep_for(2 * FEW); /* another one's word ends this one */
    return mine = is_first != 0;
}
