// counts, padded offsets and the maps between rows and slots, from expert ids (contracts, section 9): a stable
// counting sort of the slots by expert whose places begin, for each expert, at a multiple of the alignment.
//
//   dispatch_count, dispatch_scan   counting_sort.cuh, with one more bin for ids outside [-1, E)
//   dispatch_place                  each block derives the layout from the totals, places its slots, marks padding
//
// Rows at or past Capacity are lost: counted in overflow, their slots map to -1. Outputs may be null.
#include "counting_sort.cuh"

constexpr int kExperts = Params::Experts, kBins = kExperts + 1;

// Expert is the sort key of a slot: its expert, kExperts for an invalid id, negative for a dropped slot.
struct Expert {
    const int* ids;
    __device__ __forceinline__ int operator()(i64 slot) const {
        const int e = ids[slot];
        return e == -1 ? -1 : (u32)e < (u32)kExperts ? e : kExperts;
    }
};

extern "C" __global__ void __launch_bounds__(kSortThreads) dispatch_count(int* table, const int* ids, const int* count, i64 tokens, int k) {
    sort_count<kBins>(table, rows_in_use(count, tokens) * k, Expert{ids});
}

extern "C" __global__ void __launch_bounds__(1024) dispatch_scan(int* table, int* totals, int chunks) { sort_scan<kBins>(table, totals, chunks); }

// expert_begins fills begins[e] with the first row of expert e and begins[kExperts] with the end of the last: an
// exclusive sum over the padded totals, a run of neighbouring experts for each thread.
__device__ __forceinline__ void expert_begins(i64* begins, const int* totals, i64 align) {
    constexpr int kRun = (kExperts + kSortThreads - 1) / kSortThreads;
    __shared__ i64 runs[kSortThreads];
    i64 sum = 0;
    for (int i = 0; i < kRun; i++) {
        const int e = threadIdx.x * kRun + i;
        if (e < kExperts) sum += div_up(totals[e], align) * align;
    }
    runs[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 1; d < kSortThreads; d *= 2) {
        const i64 left = threadIdx.x >= d ? runs[threadIdx.x - d] : 0;
        __syncthreads();
        runs[threadIdx.x] += left;
        __syncthreads();
    }
    i64 at = runs[threadIdx.x] - sum;
    for (int i = 0; i < kRun; i++) {
        const int e = threadIdx.x * kRun + i;
        if (e >= kExperts) break;
        begins[e] = at;
        at += div_up(totals[e], align) * align;
        if (e == kExperts - 1) begins[kExperts] = at;
    }
    __syncthreads();
}

// write_layout writes what does not depend on single slots.
__device__ __forceinline__ void write_layout(const i64* begins, const int* totals, i64 capacity, int* counts, int* offsets, int* overflow,
                                             int* invalid, int* assigned) {
    __shared__ i64 spare[kSortWarps + 1];
    i64 lost = 0;
    for (int e = threadIdx.x; e < kExperts; e += kSortThreads) {
        const i64 room = capacity - begins[e] > 0 ? capacity - begins[e] : 0, n = totals[e], kept = n < room ? n : room;
        lost += n - kept;
        if (counts) counts[e] = (int)kept;
        if (offsets) offsets[e] = (int)(begins[e + 1] < capacity ? begins[e + 1] : capacity);
        if (assigned) assigned[e] = (int)n;
    }
    lost = block_sum(lost, spare);
    if (threadIdx.x == 0) {
        if (overflow) *overflow = (int)lost;
        if (invalid) *invalid = totals[kExperts];
    }
}

// Dynamic shared memory: kSortWarps * kBins ints.
extern "C" __global__ void __launch_bounds__(kSortThreads)
    dispatch_place(const int* table, const int* totals, const int* ids, const int* count, i64 tokens, int k, i64 align, i64 capacity, int* counts,
                   int* offsets, int* row_map, int* slot_map, int* overflow, int* invalid, int* assigned) {
    extern __shared__ int next[];
    __shared__ i64 begins[kExperts + 1];
    expert_begins(begins, totals, align);
    if (blockIdx.x == 0) write_layout(begins, totals, capacity, counts, offsets, overflow, invalid, assigned);
    if (slot_map) {
        for (int e = blockIdx.x; e < kExperts; e += gridDim.x) {
            const i64 end = begins[e + 1] < capacity ? begins[e + 1] : capacity;
            for (i64 row = begins[e] + totals[e] + threadIdx.x; row < end; row += kSortThreads) slot_map[row] = -1;
        }
    }
    if (!slot_map && !row_map) return;
    const auto drop = [&](i64 slot) {
        if (row_map) row_map[slot] = -1;
    };
    const auto put = [&](i64 slot, int e, int rank) {
        if (e == kExperts) return drop(slot);
        const i64 row = begins[e] + rank;
        const bool kept = row < capacity;
        if (row_map) row_map[slot] = kept ? (int)row : -1;
        if (slot_map && kept) slot_map[row] = (int)slot;
    };
    sort_place<kBins>(next, table, rows_in_use(count, tokens) * k, Expert{ids}, put, drop);
}
