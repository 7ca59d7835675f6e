// norm = square root of the sum of all squares of x1, ..., xn; coef = min(1, max_norm/(norm + 1e-6)), a NaN stays.
//
//   global_norm        one launch for each operand: each block adds up squares in float64    -> partial[block]
//   global_norm_final  one block adds all partials in fixed order
//
// Launch: elementwise.cuh; final 1024 threads.
#include "elementwise.cuh"

// Squares is a Body of each: it adds up what its thread sees.
struct Squares {
    const void* x;
    double* sum; // of this thread
    template <int W> using State = Pack<Params::XType, W>;
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const { s.load(x, at); }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64) const {
#pragma unroll
        for (int i = 0; i < W; i++) *sum = fma((double)s.get(i), (double)s.get(i), *sum);
    }
};

extern "C" __global__ void __launch_bounds__(256, 4) global_norm(double* partial, const void* x, const int* count, i64 capacity, i64 width) {
    __shared__ double spare[9];
    double sum = 0;
    each<narrow_vector<Params::XType>(), 4>(rows_in_use(count, capacity) * width, Squares{x, &sum});
    sum = block_sum(sum, spare);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) global_norm_final(float* norm, float* coef, const double* partial, int n, float max_norm) {
    __shared__ double spare[33];
    double sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += 1024) sum += partial[i];
    sum = block_sum(sum, spare);
    if (threadIdx.x != 0) return;
    const float x = (float)sqrt(sum), c = __fdiv_rn(max_norm, __fadd_rn(x, 1e-6f));
    if (norm) *norm = x;
    if (coef) *coef = c > 1 ? 1.f : c;
}
