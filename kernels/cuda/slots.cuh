// What moves one number between slots and rows, and the product that the gradient of a probability is:
//
//   permute_prob: prob[row] = topk_prob[slot of row], zero in padding rows
//   slot_gather:  y[t,s] = x[row of slot], zero where the slot has no row
//
// float32. Launch: a thread for each number of the output, the grid strides.
#include "common.cuh"

// gather writes y[i] = x[index[i]] for i in [0, n), zero where the index is not in [0, limit).
__device__ __forceinline__ void gather(float* y, const float* x, const int* index, i64 n, i64 limit) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const i64 at = index[i];
        y[i] = at >= 0 && at < limit ? x[at] : 0.f;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    permute_prob(float* prob, const float* topk_prob, const int* slot_map, const int* row_count, i64 rows, const int* token_count, i64 tokens, int k) {
    gather(prob, topk_prob, slot_map, rows_in_use(row_count, rows), rows_in_use(token_count, tokens) * k);
}

extern "C" __global__ void __launch_bounds__(256)
    slot_gather(float* y, const float* x, const int* row_map, const int* token_count, i64 tokens, int k, const int* row_count, i64 rows) {
    gather(y, x, row_map, rows_in_use(token_count, tokens) * k, rows_in_use(row_count, rows));
}
