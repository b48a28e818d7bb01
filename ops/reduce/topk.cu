/* SPDX-License-Identifier: Apache-2.0
 * The k first of a line on the device. A block finds the k-th key digit by digit (8 bits, from the highest), each time
 * counting the elements that share what is known of it; then it lists what comes before, and as many of those with that
 * very key as are missing, by rising index; the place of each in the result is how many of the list come before it. */
#include "ops/gpu/device.cuh"
#include "ops/reduce/topk_gpu.h"

/* The key of the last element that is taken; *missing: how many of that key are. */
INV_DEVICE uint64_t last_key(const inv_topk *p, const void *x, int64_t base, int bytes, int64_t *missing)
{
    INV_SHARED(unsigned, count, [256]);
    uint64_t known = 0, mask = 0;
    int64_t need = p->k;
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
        for (int b = (int)threadIdx.x; b < 256; b += INV_SYNC_THREADS) count[b] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < p->d; i += INV_SYNC_THREADS) {
            const uint64_t key = inv_topk_key(p, x, base + i * p->inner);
            if ((key & mask) == known) atomicAdd(&count[(key >> shift) & 255], 1u);
        }
        __syncthreads();
        int digit = 0;
        while (digit < 255 && (int64_t)count[digit] < need) need -= count[digit++];
        known |= (uint64_t)digit << shift;
        mask |= (uint64_t)255 << shift;
        __syncthreads();
    }
    *missing = need;
    return known;
}

/* list[0..k-1]: the elements that are taken, by rising index. A thread looks at neighbours. */
INV_DEVICE void list_taken(const inv_topk *p, const void *x, int64_t base, uint64_t last, int64_t missing,
                           int64_t *list)
{
    INV_SHARED(int64_t, before, [INV_SYNC_THREADS]);
    INV_SHARED(int64_t, equal, [INV_SYNC_THREADS]);
    const int64_t each = (p->d + INV_SYNC_THREADS - 1) / INV_SYNC_THREADS, from = threadIdx.x * each,
                  to = from + each < p->d ? from + each : p->d;
    int64_t less = 0, same = 0, all = 0;
    for (int64_t i = from; i < to; i++) {
        const uint64_t key = inv_topk_key(p, x, base + i * p->inner);
        less += key < last;
        same += key == last;
    }
    before[threadIdx.x] = less;
    equal[threadIdx.x] = same;
    __syncthreads();
    less = same = 0;
    for (unsigned t = 0; t < INV_SYNC_THREADS; t++) {
        if (t < threadIdx.x) {
            less += before[t];
            same += equal[t];
        }
        all += equal[t];
    }
    const int64_t first = p->last ? all - missing : 0; /* of those with the last key */
    int64_t at = less + (same < first ? 0 : same - first < missing ? same - first : missing);
    for (int64_t i = from; i < to; i++) {
        const uint64_t key = inv_topk_key(p, x, base + i * p->inner);
        const bool taken = key < last || (key == last && same >= first && same < first + missing);
        same += key == last;
        if (taken) list[at++] = i;
    }
    __syncthreads();
}

template <class T>
INV_KERNEL topk_kernel(inv_topk p, int bytes, const T *x, T *values, int64_t *indices, int64_t *ws)
{
    for (int64_t line = blockIdx.x; line < p.rows * p.inner; line += gridDim.x) {
        const int64_t row = line / p.inner, base = row * p.d * p.inner + (line - row * p.inner),
                      to = row * p.k * p.inner + (line - row * p.inner);
        int64_t missing, *list = ws + line * p.k;
        const uint64_t last = last_key(&p, x, base, bytes, &missing);
        list_taken(&p, x, base, last, missing, list);
        for (int64_t s = threadIdx.x; s < p.k; s += INV_SYNC_THREADS) {
            const int64_t i = list[s];
            const uint64_t key = inv_topk_key(&p, x, base + i * p.inner);
            int64_t place = 0;
            for (int64_t u = 0; u < p.k; u++) {
                const int64_t j = list[u];
                place += inv_topk_before(&p, inv_topk_key(&p, x, base + j * p.inner), j, key, i);
            }
            if (values) values[to + place * p.inner] = x[base + i * p.inner];
            if (indices) indices[to + place * p.inner] = i;
        }
    }
}

template <class T>
static void topk_as(const inv_gpu *gpu, const inv_topk *p, int bytes, const void *x, void *values, int64_t *indices,
                    int64_t *ws)
{
    const int64_t lines = p->rows * p->inner;
    inv_start_sync(gpu, topk_kernel<T>, lines < 65536 ? lines : 65536, INV_SYNC_THREADS, *p, bytes, (const T *)x,
                   (T *)values, indices, ws);
}

extern "C" void INV_GPU_NAME(topk)(const inv_gpu *gpu, const inv_topk *p, const void *x, void *values,
                                   int64_t *indices, int64_t *ws)
{
    const int bytes = p->t == INV_F32 ? 4 : 8;
    switch (p->t) {
    case INV_F64:
    case INV_I64:
    case INV_U64: topk_as<uint64_t>(gpu, p, bytes, x, values, indices, ws); break;
    case INV_F32:
    case INV_I32:
    case INV_U32: topk_as<uint32_t>(gpu, p, bytes, x, values, indices, ws); break;
    case INV_I16:
    case INV_U16: topk_as<uint16_t>(gpu, p, bytes, x, values, indices, ws); break;
    default: topk_as<uint8_t>(gpu, p, bytes, x, values, indices, ws);
    }
}
