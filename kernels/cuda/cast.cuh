// y = x in another format, rounded once. Launch: elementwise.cuh.
#include "elementwise.cuh"

struct Same {
    __device__ __forceinline__ float operator()(float x) const { return x; }
};

extern "C" __global__ void __launch_bounds__(256, 4) cast(void* y, const void* x, const int* count, i64 capacity, i64 width) {
    map_rows<Params::XType, Params::YType>(y, x, count, capacity, width, Same{});
}
