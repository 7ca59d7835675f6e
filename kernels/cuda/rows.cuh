// Loops over rows, a group of Lanes lanes for each: lanes take a row's units in turn, several loads in flight.
// Launch: 256 threads a block, 3 blocks a multiprocessor (nodes/launch_cuda.go: rowLaunch); the grid strides.
// A row has less than 2^31 units.
#pragma once
#include "common.cuh"

// for_rows runs body(row, lane) for rows [0, n) on groups of Lanes neighbouring lanes, a power of two up to 32.
template <int Lanes, class Body> __device__ __forceinline__ void for_rows(i64 n, const Body& body) {
    const int lane = threadIdx.x % Lanes;
    const i64 groups = (i64)gridDim.x * (blockDim.x / Lanes);
    for (i64 row = (i64)blockIdx.x * (blockDim.x / Lanes) + threadIdx.x / Lanes; row < n; row += groups) body(row, lane);
}

// copy_row copies the units of a row, or writes zeros where from is null.
template <int Lanes, class U> __device__ __forceinline__ void copy_row(U* to, const U* from, int units, int lane) {
    constexpr int kUnroll = 4;
    if (!from) {
        for (int i = lane; i < units; i += Lanes) to[i] = U{};
        return;
    }
    for (int i = lane; i < units; i += kUnroll * Lanes) {
        U held[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * Lanes < units) held[u] = from[i + u * Lanes];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * Lanes < units) to[i + u * Lanes] = held[u];
    }
}
