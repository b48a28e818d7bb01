/* SPDX-License-Identifier: Apache-2.0
 * How processes find each other (world_open.c) and exchange bytes (world_mpi.c). */
#ifndef INV_EXECUTOR_WORLD_OPEN_H
#define INV_EXECUTOR_WORLD_OPEN_H

#include "core/program/exchange.h"

/* world_mpi.c, or world_open.c in builds without MPI */
inv_status inv_world_open_mpi(inv_context *ctx, double timeout, inv_world **out);

/* The number of this process among those of its machine, as the launcher says; 0 where it does not. */
int inv_world_local_rank(void);

#endif
