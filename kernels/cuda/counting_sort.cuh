// A stable counting sort of items [0, n) by a key below Bins, at most 1024, in three launches and without atomics
// whose order could show:
//
//   count   each block counts the keys of its chunk of items            -> table[chunk][bin]
//   scan    each bin's counts become the numbers of its items before    -> table[chunk][bin], totals[bin]
//   place   each block ranks the items of its chunk in order and hands each its place among those of its key
//
// A chunk is cut into a part for each warp, in order. Within a warp, lanes with one key find each other by match.sync,
// so that an item's rank is the number of items of its key before it. An item whose key is negative is left out.
// Launch: count and place Params::Chunks blocks of 256 threads; scan a block of 1024 threads for 32 bins.
#pragma once
#include "common.cuh"

constexpr int kSortThreads = 256, kSortWarps = kSortThreads / 32;

// part_of returns the items [from, to) of this warp. Parts depend on n and the number of chunks alone.
__device__ __forceinline__ void part_of(i64 n, i64& from, i64& to) {
    const i64 part = div_up(div_up(n, (i64)gridDim.x * kSortWarps), 32) * 32;
    from = ((i64)blockIdx.x * kSortWarps + threadIdx.x / 32) * part;
    if (from > n) from = n;
    to = from + part < n ? from + part : n;
}

// count_part adds the keys of this warp's part to bins, shared by whoever calls with the same array.
template <class Key> __device__ __forceinline__ void count_part(int* bins, i64 n, const Key& key) {
    i64 from, to;
    part_of(n, from, to);
    for (i64 i = from + threadIdx.x % 32; i < to; i += 32) {
        const int k = key(i);
        if (k >= 0) atomicAdd(&bins[k], 1);
    }
}

template <int Bins, class Key> __device__ __forceinline__ void sort_count(int* table, i64 n, const Key& key) {
    __shared__ int bins[Bins];
    for (int b = threadIdx.x; b < Bins; b += kSortThreads) bins[b] = 0;
    __syncthreads();
    count_part(bins, n, key);
    __syncthreads();
    for (int b = threadIdx.x; b < Bins; b += kSortThreads) table[(i64)blockIdx.x * Bins + b] = bins[b];
}

// sort_scan: thread (x, y) sums bin 32*blockIdx + x over the y-th part of the chunks; blockDim is (32, 32).
template <int Bins> __device__ __forceinline__ void sort_scan(int* table, int* totals, int chunks) {
    __shared__ int sums[32][33];
    const int bin = blockIdx.x * 32 + threadIdx.x, part = (chunks + 31) / 32;
    const int from = min(chunks, (int)threadIdx.y * part), to = min(chunks, from + part);
    int sum = 0;
    if (bin < Bins)
        for (int c = from; c < to; c++) sum += table[(i64)c * Bins + bin];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    int before = 0, total = 0;
    for (int y = 0; y < 32; y++) {
        if (y == threadIdx.y) before = total;
        total += sums[y][threadIdx.x];
    }
    if (bin >= Bins) return;
    for (int c = from; c < to; c++) {
        const int n = table[(i64)c * Bins + bin];
        table[(i64)c * Bins + bin] = before;
        before += n;
    }
    if (threadIdx.y == 0) totals[bin] = total;
}

// sort_place calls put(i, key, rank) for every item of the chunk, rank being the number of items before i that have
// its key, and left_out(i) for those without one. next is shared: Bins ints a warp.
template <int Bins, class Key, class Put, class LeftOut>
__device__ __forceinline__ void sort_place(int* next, const int* table, i64 n, const Key& key, const Put& put, const LeftOut& left_out) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int* mine = next + warp * Bins;
    for (int b = threadIdx.x; b < kSortWarps * Bins; b += kSortThreads) next[b] = 0;
    __syncthreads();
    count_part(mine, n, key);
    __syncthreads();
    for (int b = threadIdx.x; b < Bins; b += kSortThreads) {
        int at = table[(i64)blockIdx.x * Bins + b];
        for (int w = 0; w < kSortWarps; w++) {
            const int c = next[w * Bins + b];
            next[w * Bins + b] = at;
            at += c;
        }
    }
    __syncthreads();
    i64 from, to;
    part_of(n, from, to);
    for (i64 i = from; i < to; i += 32) {
        const bool valid = i + lane < to;
        const int k = valid ? key(i + lane) : -1;
        const u32 equal = __match_any_sync(kFullWarp, k);
        const int before = __popc(equal & ((1u << lane) - 1)), first = __ffs(equal) - 1;
        int base = 0;
        if (lane == first && k >= 0) {
            base = mine[k];
            mine[k] = base + __popc(equal);
        }
        base = __shfl_sync(kFullWarp, base, first);
        if (k >= 0)
            put(i + lane, k, base + before);
        else if (valid)
            left_out(i + lane);
        __syncwarp();
    }
}
