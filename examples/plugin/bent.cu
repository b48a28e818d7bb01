// SPDX-License-Identifier: Apache-2.0
// The kernels of bent.c for a CUDA device. In double, as on the host: both then round in the same place.

__device__ static double bend(double x)
{
    return (sqrt(x * x + 1) - 1) / 2 + x;
}

__device__ static double unbend(double y)
{
    double c = 2 * y + 1;
    return (2 * c - sqrt(c * c + 3)) / 3;
}

template <typename real>
__global__ static void each(int inverse, long long n, const real *x, real *y)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        y[i] = (real)(inverse ? unbend((double)x[i]) : bend((double)x[i]));
}

extern "C" void bent_launch(int wide, int inverse, long long n, const void *x, void *y, void *stream)
{
    const int blocks = (int)(n < 256 * 1024 ? (n + 255) / 256 : 1024);
    if (n == 0) return;
    if (wide)
        each<<<blocks, 256, 0, (cudaStream_t)stream>>>(inverse, n, (const double *)x, (double *)y);
    else
        each<<<blocks, 256, 0, (cudaStream_t)stream>>>(inverse, n, (const float *)x, (float *)y);
}
