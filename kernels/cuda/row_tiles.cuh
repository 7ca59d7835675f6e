// Elementwise work over the rows of groups: persistent thread blocks take row tiles gridDim.x apart.
#pragma once
#include "tile.cuh"

// Calls body(RowTile) for this block's tiles of at most kTile rows. kGroups 0: rows without groups, as one group.
template <int kGroups, int kTile, class Body>
__device__ __forceinline__ void for_row_tiles(const int* offsets, const int* counts, int limit, Body body) {
    constexpr int kSize = kGroups > 0 ? kGroups : 1;
    __shared__ Groups<kSize> groups;
    groups.template read<kTile>(kGroups > 0 ? offsets : nullptr, counts, limit);
    for (int i = blockIdx.x; i < groups.tiles[kSize]; i += gridDim.x) {
        body(groups.template at<kTile>(groups.find(i), i));
    }
}

// Calls body(row, col) for every row of the tile and every eighth of width columns, spread over the block's threads.
template <int kWidth, class Body>
__device__ __forceinline__ void for_eights(const RowTile& t, Body body) {
    constexpr int kChunks = ceil_div(kWidth, 8);
    const int size = (t.last - t.first) * kChunks;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        body(t.first + i / kChunks, i % kChunks * 8);
    }
}
