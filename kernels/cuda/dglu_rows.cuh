// dprob[m] = sum over blocks of row_parts[block, m], in order, for the rows below the last offset. A thread takes a row.
//
// Params: E, 0 without groups; Blocks.
#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(256)
    dglu_rows(const float* row_parts, const int* offsets, const int* rows_a, const int* rows_c, const int* rows_prob,
              float* dprob, int capacity) {
    __shared__ int highest;  // offset of all
    const int limit = rows_in_use(capacity, rows_a, rows_c, rows_prob);
    if (threadIdx.x == 0) {
        highest = Params::E == 0 ? limit : 0;
    }
    __syncthreads();
    int top = 0;
    for (int g = threadIdx.x; g < Params::E; g += blockDim.x) {
        top = max_of(top, offsets[g]);
    }
    if (Params::E > 0) {
        atomicMax(&highest, top);
    }
    __syncthreads();
    const int rows = min_of(highest, limit);
    for (int m = blockIdx.x * blockDim.x + threadIdx.x; m < rows; m += gridDim.x * blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int b = 0; b < Params::Blocks; b++) {
            sum += row_parts[static_cast<i64>(b) * capacity + m];
        }
        dprob[m] = sum;
    }
}
