/* SPDX-License-Identifier: Apache-2.0
 * General rates of a GPU, by which plans for device cuda are compared, whether or not there is one: those that a H200
 * reached (docs/gpu.md). Another one has other numbers, but what matters to a plan are their ratios: of arithmetic to
 * bytes, of both to what a node takes whatever its extent, and to copies between the memories. */
#include "executor/rates/costs.h"

#define BANDWIDTH 4.0e12 /* of sums over large tensors */
#define PRODUCTS 51.2e12 /* of large matrix products in float32, without tensor cores */

/* clang-format off */
static const double of_float32[INV_WORKS] = {
    [INV_WORK_STREAM] = 0.85 * BANDWIDTH,      /* Relu, Add: 0.7 to 0.98 */
    [INV_WORK_MOVE] = 0.6 * BANDWIDTH,         /* Transpose, Concat, Split: 0.56 to 0.64 */
    [INV_WORK_SUM] = 0.3 * BANDWIDTH,          /* statistics, gradients of normalisations: 0.2 to 0.4 */
    [INV_WORK_APPLY] = 0.5 * BANDWIDTH,        /* normalising: 0.35 to 0.6 */
    [INV_WORK_MATH] = 0.8 * BANDWIDTH / 8,     /* Gelu: 0.8, of one number in and one out */
    [INV_WORK_SCALAR] = 0.05 * PRODUCTS,       /* pooling: 0.03 to 0.14 of the bandwidth */
    [INV_WORK_MATRIX] = 0.8 * PRODUCTS,        /* products 0.85, attention 0.3 to 0.45 */
    [INV_WORK_CONV] = 0.57 * PRODUCTS,         /* of ResNet-50 together: 0.55 to 0.6 */
    [INV_WORK_CONV_POINT] = 0.57 * PRODUCTS,
    [INV_WORK_CONV_DEPTH] = 0.05 * PRODUCTS,   /* not measured */
    [INV_WORK_FILTER] = 0.55 * PRODUCTS,
    [INV_WORK_FILTER_POINT] = 0.55 * PRODUCTS,
    [INV_WORK_FILTER_DEPTH] = 0.05 * PRODUCTS, /* not measured */
};
/* clang-format on */

void inv_costs_of_gpu(inv_dtype real, inv_cost_table *out)
{
    *out = (inv_cost_table){.real = real, .bandwidth = 0.85 * BANDWIDTH, .cache = 50e6, .copy = 20e9};
    for (int w = 0; w < INV_WORKS; w++) {
        out->rate[w] = of_float32[w];
        if (w >= INV_WORK_MATH && real == INV_F64) out->rate[w] /= 2; /* units of float64 are half as many */
        out->fixed[w] = 2.25e-6;                                      /* of a node of a recorded step: 2 to 2.5 */
    }
}
