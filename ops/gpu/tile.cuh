/* SPDX-License-Identifier: Apache-2.0
 * Products of matrices a tile at a time. A block keeps square tiles in shared memory; each of its threads has a piece
 * of ROWS x 4 entries of the result in registers, and adds to them by fused multiplications. All threads of the block
 * call these functions together, with barriers between loading and multiplying that the caller sets. */
#ifndef INV_OPS_GPU_TILE_CUH
#define INV_OPS_GPU_TILE_CUH

#include "ops/gpu/device.cuh"

/* N x N numbers; three tiles fill the 48 KiB of shared memory that every device has. Entry (k, c) lies where groups of
 * four columns have changed places by k, so that neither rows nor columns fall on the same bank of shared memory. */
template <class X> struct inv_tile {
    enum { N = sizeof(X) == 4 ? 64 : 32, ROWS = sizeof(X) == 4 ? 8 : 4, THREADS = N / ROWS * (N / 4) };
    inv_four<X> quad[N * N / 4];
};

/* Where entries (k, c) to (k, c + 3) lie, c being a multiple of four. Of the k up to the next multiple of four that is
 * N / 4 apart. */
template <class X> INV_DEVICE int inv_four_at(int k, int c)
{
    return k * (inv_tile<X>::N / 4) + (int)((unsigned)(c ^ (k & ~3)) / 4);
}

/* This thread's piece of an N x N result: rows from inv_piece_row() on, columns from inv_piece_col() on. */
template <class X> struct inv_piece {
    X at[inv_tile<X>::ROWS][4];
};
template <class X> INV_DEVICE int inv_piece_row()
{
    return (int)threadIdx.x / (inv_tile<X>::N / 4) * inv_tile<X>::ROWS;
}
template <class X> INV_DEVICE int inv_piece_col() { return (int)threadIdx.x % (inv_tile<X>::N / 4) * 4; }

template <class X> INV_DEVICE void inv_piece_clear(inv_piece<X> &p)
{
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        INV_UNROLL
        for (int j = 0; j < 4; j++) p.at[i][j] = 0;
    }
}

/* Four quads of a thread are on their way at a time. */
template <bool WIDE, class X>
INV_DEVICE void inv_tile_load_as(inv_tile<X> &to, const X *from, int64_t ld, int rows, int cols, bool across)
{
    enum { N = inv_tile<X>::N, STEP = inv_tile<X>::THREADS / (N / 4) };
    const int c = inv_piece_col<X>();
    INV_ROLLED
    for (int first = (int)threadIdx.x / (N / 4); first < N; first += 4 * STEP) {
        inv_four<X> some[4];
        INV_UNROLL
        for (int u = 0; u < 4; u++) {
            const int r = first + u * STEP;
            const X *p = from + r * ld + c;
            INV_UNROLL
            for (int q = 0; q < 4; q++) some[u].v[q] = 0;
            if (WIDE && r < rows && c < cols) some[u] = *(const inv_four<X> *)p;
            INV_UNROLL
            for (int q = 0; q < 4; q++)
                if (!WIDE && r < rows && c + q < cols) some[u].v[q] = p[q];
        }
        INV_UNROLL
        for (int u = 0; u < 4; u++) {
            const int r = first + u * STEP;
            INV_UNROLL
            for (int q = 0; q < 4; q++)
                if (across) ((X *)to.quad)[(c + q) * N + (r ^ c)] = some[u].v[q];
            if (!across) to.quad[inv_four_at<X>(r, c)] = some[u];
        }
    }
}

/* A row-major matrix of up to N x N numbers, with zeros around it; `across`: transposed. */
template <class X>
INV_DEVICE void inv_tile_load(inv_tile<X> &to, const X *from, int64_t ld, int rows, int cols, bool across)
{
    if (((ld | cols) & 3) == 0 && ((uintptr_t)from & 15) == 0) inv_tile_load_as<true>(to, from, ld, rows, cols, across);
    else inv_tile_load_as<false>(to, from, ld, rows, cols, across);
}

/* The pieces of an N x N result, transposed. */
template <class X> INV_DEVICE void inv_tile_put_across(inv_tile<X> &to, const inv_piece<X> &p)
{
    enum { N = inv_tile<X>::N };
    const int row = inv_piece_row<X>(), col = inv_piece_col<X>();
    INV_UNROLL
    for (int j = 0; j < 4; j++) {
        INV_UNROLL
        for (int i = 0; i < inv_tile<X>::ROWS; i += 4) {
            inv_four<X> x;
            INV_UNROLL
            for (int q = 0; q < 4; q++) x.v[q] = p.at[i + q][j];
            to.quad[inv_four_at<X>(col, row + i) + j * (N / 4)] = x;
        }
    }
}

/* p[i][j] += sum over k < n of a(k, i) b(k, j), where only `rows` and `cols` of the result matter. */
template <class X>
INV_DEVICE void inv_tile_multiply(const inv_tile<X> &a, const inv_tile<X> &b, int n, int rows, int cols,
                                  inv_piece<X> &p)
{
    enum { N = inv_tile<X>::N, ROWS = inv_tile<X>::ROWS };
    const int row = inv_piece_row<X>(), col = inv_piece_col<X>();
    if (row >= rows || col >= cols) return;
    for (int k = 0; k < n; k += 4) {
        INV_UNROLL
        for (int q = 0; q < 4; q++) {
            const inv_four<X> y = b.quad[inv_four_at<X>(k, col) + q * (N / 4)];
            INV_UNROLL
            for (int h = 0; h < ROWS; h += 4) {
                const inv_four<X> x = a.quad[inv_four_at<X>(k, row + h) + q * (N / 4)];
                INV_UNROLL
                for (int i = 0; i < 4; i++) {
                    INV_UNROLL
                    for (int j = 0; j < 4; j++) p.at[h + i][j] = inv_fma(x.v[i], y.v[j], p.at[h + i][j]);
                }
            }
        }
    }
}

/* To a row-major matrix; `across`: transposed. */
template <class X>
INV_DEVICE void inv_piece_store(X *to, int64_t ld, int rows, int cols, bool across, const inv_piece<X> &p)
{
    const int row = inv_piece_row<X>(), col = inv_piece_col<X>();
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        INV_UNROLL
        for (int j = 0; j < 4; j++)
            if (row + i < rows && col + j < cols)
                to[across ? (col + j) * ld + row + i : (row + i) * ld + col + j] = p.at[i][j];
    }
}

#endif
