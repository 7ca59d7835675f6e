// Zeros: a, of n words, b, of m words, and c and d, of so many times 16 bytes. Each may be null; nothing where *when is 0. Thread blocks
// take all a grid apart.
#include "numeric.cuh"

template <class T>
__device__ __forceinline__ void clear_all(T* x, i64 count) {
    const i64 threads = static_cast<i64>(gridDim.x) * blockDim.x;
    for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
        x[i] = T{};
    }
}

extern "C" __global__ void __launch_bounds__(256) zeros(const u32* when, u32* a, u32* b, void* c, void* d, int n, int m, i64 c_units, i64 d_units) {
    if (when != nullptr && *when == 0) {
        return;
    }
    clear_all(a, n);
    clear_all(b, m);
    clear_all(static_cast<Vec16*>(c), c_units);
    clear_all(static_cast<Vec16*>(d), d_units);
}
