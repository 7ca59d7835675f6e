// y[m,n] = sum over splits s of parts[s,m,n], in order (+ bias[n]).
//
// Params: Splits, N, YType, BiasType, HasBias.
#include "numeric.cuh"

extern "C" __global__ void __launch_bounds__(256)
    split_sum(const float* __restrict__ parts, const Params::BiasType* __restrict__ bias, Params::YType* __restrict__ y, i64 size) {
    const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
    for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += stride) {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < Params::Splits; s++) {
            sum += parts[s * size + i];
        }
        if (Params::HasBias) {
            sum += to_float(bias[i % Params::N]);
        }
        y[i] = from_float<Params::YType>(sum);
    }
}
