// The same for floats, by plain fused multiply-adds in the order of the reduction: exact to float32, no TF32. A lane holds the
// outputs that mma.m16n8k16 would give it.
#pragma once
#include "mma_sync.cuh"

template <int kRows, Major kMajorA, Major kMajorB>
struct WarpProduct<float, kRows, kMajorA, kMajorB> {
    static constexpr bool kFragments = false;
    static constexpr int kSteps = 4;  // of 8, in a block of 32
    static constexpr int kPieces = kRows / 16;

    int m, n;  // of the lane's first outputs in the tile

    __device__ __forceinline__ WarpProduct(int warp_m, int warp_n) {
        const int lane = threadIdx.x % 32;
        m = warp_m * kRows + lane / 4;
        n = warp_n * 64 + lane % 4 * 2;
    }

    __device__ __forceinline__ void multiply(Accumulators<kRows>& acc, u32 a, u32 b, int step) const {
#pragma unroll 2
        for (int k = step * 8; k < step * 8 + 8; k++) {
            float x[kPieces][2], y[8][2];
#pragma unroll
            for (int i = 0; i < 2 * kPieces; i++) {
                x[i / 2][i % 2] = ptx::ld_shared(a + element_offset<float, kMajorA>(m + i * 8, k));
            }
#pragma unroll
            for (int j = 0; j < 16; j++) {
                y[j / 2][j % 2] = ptx::ld_shared(b + element_offset<float, kMajorB>(n + j / 2 * 8 + j % 2, k));
            }
#pragma unroll
            for (int i = 0; i < kPieces; i++) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        acc[i][j][c] = fmaf(x[i][c / 2], y[j][c % 2], acc[i][j][c]);
                    }
                }
            }
        }
    }
};
