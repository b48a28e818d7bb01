/* SPDX-License-Identifier: Apache-2.0
 * Processes that train one model together, each on its part of every batch: ranks of a world. A launcher starts them
 * (mpirun, srun); what they exchange goes by MPI. A part of invonnx.h, which includes it. */
#ifndef INVONNX_WORLD_H
#define INVONNX_WORLD_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct inv_world inv_world;

/** What the launcher's environment says, before anything is joined: the number of this process among those that it has
 *  started, from 0 on, and how many these are; either may be NULL. @return true if it has started several; false leaves
 * both as they are */
INV_API bool inv_world_launched(int *rank, int *size);
/** A launcher that has started several processes and sets up no MPI: torchrun, accelerate launch, deepspeed,
 *  horovodrun. They cannot be joined, so each of them trains by itself.
 *  @return what it is called; NULL: there is none, or they can be joined, and both are left as they are */
INV_API const char *inv_world_apart(int *rank, int *size);
/** Joins the processes of the launcher. Every one of them calls it, once.
 *  @param timeout seconds that a process waits for the others in a collective call, above 0
 *  @return INV_OK; INV_E_RANKS if this library was built without MPI, or MPI fails; INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_world_open(inv_context *ctx, double timeout, inv_world **out);
/** Ranks that are not there, for sessions with `plan_only`: what each would need, and exchange.
 *  @param on_host how many of them share a machine, with as many processors as this one has: 1 to all of them
 *  @param latency seconds that a message takes beside its bytes
 *  @param bytes_per_second that a rank sends while it receives as many
 *  @param busy the share of that time in which the rank itself moves bytes and cannot compute: 0, where a network card
 *         does, to 1, as between the processes of one machine
 *  @return INV_OK, INV_E_ARG, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_world_imagine(inv_context *ctx, int size, int on_host, double latency,
                                                   double bytes_per_second, double busy, inv_world **out);
/** Leaves it, together with all others. Sessions that borrow it come first. Nothing on NULL. */
INV_API void inv_world_close(inv_world *world);
/** Of ranks that fail, the one that is first tells why, and ends all. Rank 0 says which that is, between what else it
 *  does; where it fails itself and nobody was before it, it is the first.
 *  @param seconds that its answer is waited for
 *  @return 1: this one; 0: another; -1: there was no answer */
INV_API int inv_world_first(inv_world *world, double seconds);
/** Ends the processes of all ranks, without a word and without waiting for them; this one may live a little longer.
 *  @param status what the launcher returns */
INV_API void inv_world_end_all(inv_world *world, int status);
/** Of NULL, a process by itself: 0 and 1. */
INV_API int inv_world_rank(const inv_world *world);
INV_API int inv_world_size(const inv_world *world);
/** What each rank gives, in the order of the ranks, is in `all` of every one. A process by itself gets its own.
 *  @param what named in the message if others do not come
 *  @param mine nbytes, the same number on all ranks; `all` has room for size times as many
 *  @return INV_OK, INV_E_RANKS */
INV_NODISCARD INV_API inv_status inv_world_gather(inv_world *world, const char *what, const void *mine, size_t nbytes,
                                                  void *all);

#ifdef __cplusplus
}
#endif

#endif
