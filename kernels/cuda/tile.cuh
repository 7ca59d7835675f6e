// From a number to the work that it stands for: the groups of rows that offsets and counts describe, cut into tiles,
// and the order in which thread blocks take them.
#pragma once
#include "numeric.cuh"

// Rows that all of several tensors have in use, by their counts: in [0, capacity]; a null count means all.
template <class... Count>
__device__ __forceinline__ int rows_in_use(int capacity, Count... counts) {
    const int* all[] = {counts...};
    int rows = capacity;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof...(counts)); i++) {
        rows = all[i] == nullptr ? rows : clamp_of(*all[i], 0, rows);
    }
    return rows;
}

// One group's piece of rows: [first, last), of which those before mid are real and the others padding.
struct RowTile {
    int group, index;  // index: of the tile among those of all groups
    int first, mid, last;
};

// The group that thing number index belongs to, where first holds the number of each group's first one, and of all.
template <int kGroups>
__device__ __forceinline__ int group_of(const int (&first)[kGroups], int index) {
    int g = 0, high = kGroups - 2;
    while (g < high) {  // the last group whose first one is at most index: empty ones are passed over
        const int mid = (g + high + 1) / 2;
        if (first[mid] <= index) {
            g = mid;
        } else {
            high = mid - 1;
        }
    }
    return g;
}

// The groups of one launch, in shared memory. Offsets are never trusted: they are kept inside [0, limit] and from
// decreasing, and rounded down to a multiple of unit.
template <int kGroups>
struct Groups {
    int end[kGroups];        // one past the last row
    int real[kGroups];       // one past the last real row
    int tiles[kGroups + 1];  // number of the group's first tile; the last element counts all tiles

    __device__ __forceinline__ int begin(int g) const { return g == 0 ? 0 : end[g - 1]; }

    // Takes in offsets and counts (either may be null: one group of all rows, no padding). All threads of the block
    // call it; it ends with a barrier. A group has ceil(rows/kTile) tiles.
    template <int kTile>
    __device__ __forceinline__ void read(const int* offsets, const int* counts, int limit, int unit = 1) {
        for (int g = threadIdx.x; g < kGroups; g += blockDim.x) {
            end[g] = offsets == nullptr ? limit : offsets[g];
            real[g] = counts == nullptr ? 0x7fffffff : counts[g];
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            scan<kTile>(limit, unit);
        }
        __syncthreads();
    }

    // Cuts rows evenly, each group but the last a multiple of unit; no tiles are counted.
    __device__ __forceinline__ void split(int rows, int unit) {
        const int size = ceil_div(ceil_div(rows, kGroups), unit) * unit;
        for (int g = threadIdx.x; g < kGroups; g += blockDim.x) {
            end[g] = real[g] = static_cast<int>(min_of64(static_cast<i64>(g + 1) * size, rows));
        }
        __syncthreads();
    }

    // The group of a row tile, whose number is below tiles[kGroups].
    __device__ __forceinline__ int find(int index) const { return group_of(tiles, index); }

    // Row tile index, which is one of group g.
    template <int kTile>
    __device__ __forceinline__ RowTile at(int g, int index) const {
        RowTile t;
        t.group = g;
        t.index = index;
        t.first = begin(g) + (index - tiles[g]) * kTile;
        t.last = min_of(t.first + kTile, end[g]);
        t.mid = clamp_of(real[g], t.first, t.last);
        return t;
    }

private:
    static __device__ __forceinline__ i64 min_of64(i64 a, i64 b) { return a < b ? a : b; }

    // One warp, 32 groups a step: running maximum of the offsets, running sum of the tiles.
    template <int kTile>
    __device__ __forceinline__ void scan(int limit, int unit) {
        const int lane = threadIdx.x;
        int top = 0, sum = 0;  // of the groups before this step
        for (int base = 0; base < kGroups; base += 32) {
            const int g = base + lane;
            int e = g < kGroups ? end[g] : 0;
            for (int d = 1; d < 32; d *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, e, d);
                e = lane >= d ? max_of(e, other) : e;
            }
            e = clamp_of(max_of(e, top), 0, limit);
            e -= e % unit;
            int b = __shfl_up_sync(0xffffffffu, e, 1);
            b = lane == 0 ? top : b;
            int n = ceil_div(e - b, kTile);
            for (int d = 1; d < 32; d *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, n, d);
                n = lane >= d ? n + other : n;
            }
            __syncwarp();  // a shuffle does not order accesses to memory
            if (g < kGroups) {
                end[g] = e;
                real[g] = b + clamp_of(real[g], 0, e - b);
                tiles[g + 1] = sum + n;
            }
            top = __shfl_sync(0xffffffffu, e, 31);
            sum += __shfl_sync(0xffffffffu, n, 31);
        }
        if (lane == 0) {
            tiles[0] = 0;
        }
    }
};

// Tiles of a matrix of rows by columns of tiles in bands of kBand rows, down each band's columns: thread blocks that run at
// once then share both operands in the L2 cache.
template <int kBand>
__device__ __forceinline__ void banded(int index, int rows, int cols, int& row, int& col) {
    const int band = index / (kBand * cols);
    const int inside = index - band * (kBand * cols);
    const int height = min_of(kBand, rows - band * kBand);
    col = inside / height;
    row = band * kBand + inside - col * height;
}
