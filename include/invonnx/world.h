/* SPDX-License-Identifier: Apache-2.0
 * Ranks: processes that train one model together, each on its part of every batch. A world is the set of these ranks.
 * A launcher (mpirun, srun) starts the processes, and they exchange data by MPI. invonnx.h includes this header. */
#ifndef INVONNX_WORLD_H
#define INVONNX_WORLD_H

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks that train together; made by inv_world_open or inv_world_imagine. */
typedef struct inv_world inv_world;

/** Reads from the environment variables of the launcher how many processes it started. Joins nothing.
 *  @param rank NULL, or gets the number of this process, from 0 on
 *  @param size NULL, or gets the number of processes
 *  @return true if the launcher started several processes. If false, `rank` and `size` do not change */
INV_API bool inv_world_launched(int *rank, int *size);
/** Detects a launcher that starts several processes without MPI: torchrun, accelerate launch, deepspeed or horovodrun.
 *  Such processes cannot be joined, so each of them trains by itself.
 *  @param rank NULL, or gets the number of this process, from 0 on
 *  @param size NULL, or gets the number of processes
 *  @return the name of the launcher. NULL if there is no such launcher: then `rank` and `size` do not change. NULL also
 *          if the processes can be joined: then `rank` and `size` are set as by inv_world_launched */
INV_API const char *inv_world_apart(int *rank, int *size);
/** Joins the processes of the launcher. Every process calls it once.
 *  @param timeout seconds that a process waits for the others in a collective call; finite and above 0
 *  @param out     the world; leave it with inv_world_close
 *  @return INV_OK; INV_E_RANKS if this library was built without MPI, or if MPI fails; INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_world_open(inv_context *ctx, double timeout, inv_world **out);
/** Creates a world of ranks that do not exist, for sessions with `plan_only`. The report of such a session says what
 *  each rank would need and exchange.
 *  @param size    number of ranks, 1 to 1,048,576
 *  @param on_host number of ranks that share a machine, 1 to `size`. Each machine has as many processors as this one
 *  @param latency seconds that a message takes in addition to the time for its bytes, 0 to 1e6
 *  @param bytes_per_second bytes that a rank sends per second while it receives as many, 1 to 1e18
 *  @param busy    share of the transfer time in which the rank itself moves the bytes and cannot compute, 0 to 1. With
 *                 a network card it is 0. Between processes of one machine it is 1
 *  @param out     the world; free it with inv_world_close
 *  @return INV_OK, INV_E_ARG, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_world_imagine(inv_context *ctx, int size, int on_host, double latency,
                                                   double bytes_per_second, double busy, inv_world **out);
/** Leaves the world, together with all other ranks. Destroy the sessions that borrow it first. Does nothing for NULL.
 */
INV_API void inv_world_close(inv_world *world);
/** Selects, among ranks that fail, the one that reports the error and ends all ranks. Rank 0 selects the first rank
 * that asks; it answers between its other work. If rank 0 itself fails before another rank has asked, it selects
 * itself.
 *  @param seconds time to wait for the answer of rank 0
 *  @return 1: this rank, also if it is the only one. 0: another rank. -1: no answer */
INV_API int inv_world_first(inv_world *world, double seconds);
/** Ends the processes of all ranks, without a message, and does not wait for them. This process may run a little
 *  longer. Does nothing for NULL, or for a single process.
 *  @param status exit status for the launcher to return */
INV_API void inv_world_end_all(inv_world *world, int status);
/** Returns the number of this rank, from 0 on. 0 for NULL, that is for a process that trains by itself. */
INV_API int inv_world_rank(const inv_world *world);
/** Returns the number of ranks. 1 for NULL. */
INV_API int inv_world_size(const inv_world *world);
/** Collects the bytes of all ranks on every rank, in the order of the ranks. A single process gets its own bytes.
 *  @param what   name of the data, for the message if other ranks do not come
 *  @param mine   the bytes of this rank
 *  @param nbytes number of bytes of one rank; the same on all ranks
 *  @param all    gets the bytes of all ranks: inv_world_size times `nbytes`
 *  @return INV_OK; INV_E_RANKS; INV_E_ARG if `what` or a buffer is NULL, or if the ranks do not exist */
INV_NODISCARD INV_API inv_status inv_world_gather(inv_world *world, const char *what, const void *mine, size_t nbytes,
                                                  void *all);

#ifdef __cplusplus
}
#endif

#endif
