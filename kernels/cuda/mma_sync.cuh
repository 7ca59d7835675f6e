// A warp's part of a product of 16-bit tiles: kRows by 64 outputs by mma.m16n8k16, fragments by ldmatrix.
#pragma once
#include "operand.cuh"

__device__ __forceinline__ void mma_16816(bf16, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { ptx::mma_bf16(d, a, b0, b1); }
__device__ __forceinline__ void mma_16816(f16, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { ptx::mma_f16(d, a, b0, b1); }

// Accumulators of a warp: acc[i][j] is the 16x8 piece at row 16i and column 8j as mma.m16n8k16 spreads it.
template <int kRows>
using Accumulators = float[kRows / 16][8][4];

template <int kRows>
__device__ __forceinline__ void clear(Accumulators<kRows>& acc) {
#pragma unroll
    for (int i = 0; i < kRows / 16; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                acc[i][j][c] = 0;
            }
        }
    }
}

template <class T, int kRows, Major kMajorA, Major kMajorB>
struct WarpProduct {
    static constexpr bool kFragments = true;  // a step works on registers alone
    static constexpr int kSteps = 4;          // of 16, in a block of 64
    static constexpr int kPieces = kRows / 16;

    struct Fragments {
        u32 a[kPieces][4];
        u32 b[4][4];  // of columns 16p: b0 and b1 of the first eight, then of the others
    };

    // Offsets inside the tiles of what this lane points at for piece 0 and step 0, without the swizzled chunk; and that chunk.
    u32 line_a, chunk_a, line_b, chunk_b;

    __device__ __forceinline__ WarpProduct(int warp_m, int warp_n) {
        const int lane = threadIdx.x % 32, row = lane & 7, matrix = lane >> 3;
        const int m = warp_m * kRows;
        // A's matrices: rows 0 and 8 of columns 0, then of columns 8.
        if constexpr (kMajorA == kReduction) {
            line_a = (m + (matrix & 1) * 8 + row) * 128;
            chunk_a = ((matrix >> 1) ^ row) << 4;
        } else {
            line_a = m / 64 * (64 * 128) + ((matrix >> 1) * 8 + row) * 128;
            chunk_a = ((m % 64 / 8 + (matrix & 1)) ^ row) << 4;
        }
        // B's: rows 0 and 8 of columns 0, then of columns 8.
        if constexpr (kMajorB == kReduction) {
            line_b = (warp_n * 64 + (matrix >> 1) * 8 + row) * 128;
            chunk_b = ((matrix & 1) ^ row) << 4;
        } else {
            line_b = warp_n * (64 * 128) + ((matrix & 1) * 8 + row) * 128;
            chunk_b = ((matrix >> 1) ^ row) << 4;
        }
    }

    // Two chunks are 16 elements: a step of the reduction, or a piece of the outer axis.
    __device__ __forceinline__ void load(Fragments& f, u32 a, u32 b, int step) const {
#pragma unroll
        for (int i = 0; i < kPieces; i++) {
            if constexpr (kMajorA == kReduction) {
                ptx::ldmatrix_x4(f.a[i], a + line_a + (chunk_a ^ (step << 5)) + i * (16 * 128));
            } else {
                ptx::ldmatrix_x4_trans(f.a[i], a + line_a + (chunk_a ^ (i << 5)) + step * (16 * 128));
            }
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if constexpr (kMajorB == kReduction) {
                ptx::ldmatrix_x4(f.b[p], b + line_b + (chunk_b ^ (step << 5)) + p * (16 * 128));
            } else {
                ptx::ldmatrix_x4_trans(f.b[p], b + line_b + (chunk_b ^ (p << 5)) + step * (16 * 128));
            }
        }
    }

    static __device__ __forceinline__ void multiply(Accumulators<kRows>& acc, const Fragments& f) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int i = 0; i < kPieces; i++) {
                const int row = j % 2 == 0 ? i : kPieces - 1 - i;  // back and forth: the next one shares an operand
                mma_16816(T{}, acc[row][j], f.a[row], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
};
