// y = factor * x in float32, rounded once. Launch: elementwise.cuh.
#include "elementwise.cuh"

struct Times {
    float factor;
    __device__ __forceinline__ float operator()(float x) const { return factor * x; }
};

extern "C" __global__ void __launch_bounds__(256, 4) scale(void* y, const void* x, const int* count, i64 capacity, i64 width, float factor) {
    map_rows<Params::XType, Params::YType>(y, x, count, capacity, width, Times{factor});
}

// scale_by takes the factor from the device: one float32 that a kernel before has computed.
extern "C" __global__ void __launch_bounds__(256, 4) scale_by(void* y, const void* x, const int* count, i64 capacity, i64 width, const float* factor) {
    map_rows<Params::XType, Params::YType>(y, x, count, capacity, width, Times{*factor});
}
