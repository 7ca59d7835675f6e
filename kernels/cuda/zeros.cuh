// a[i] = 0 for i < n; b[i] = 0 for i < m; either may be null. One thread block.
#include "numeric.cuh"

extern "C" __global__ void __launch_bounds__(256) zeros(u32* a, u32* b, int n, int m) {
    for (int i = threadIdx.x; i < n; i += 256) {
        a[i] = 0;
    }
    for (int i = threadIdx.x; i < m; i += 256) {
        b[i] = 0;
    }
}
