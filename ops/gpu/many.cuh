/* SPDX-License-Identifier: Apache-2.0
 * What a block of a launch for many tensors (many.h) has to do: elements first to end of tensor `at`. */
#ifndef INV_OPS_GPU_MANY_CUH
#define INV_OPS_GPU_MANY_CUH

#include "ops/gpu/device.cuh"
#include "ops/gpu/many.h"

struct inv_piece_of_many {
    int at;
    int64_t first, end;
};

/* The last tensor whose blocks begin at this one or before it. */
INV_DEVICE inv_piece_of_many inv_many_piece(const inv_many &m)
{
    const int64_t block = blockIdx.x;
    int low = 0, high = m.n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (m.at[middle].first <= block) low = middle;
        else high = middle;
    }
    const int64_t first = (block - m.at[low].first) * INV_MANY_PIECE, end = first + INV_MANY_PIECE;
    return {low, first, end < m.at[low].n ? end : m.at[low].n};
}

/* This thread's share of a piece. */
#define INV_EACH_OF_MANY(i, piece) for (int64_t i = (piece).first + threadIdx.x; i < (piece).end; i += blockDim.x)

#endif
