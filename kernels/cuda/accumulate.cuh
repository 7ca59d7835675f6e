// sum = x where count is 1, else sum + x, in place; mean = sum / count. float32. Launch: elementwise.cuh.
#include "elementwise.cuh"

struct Accumulate {
    float* total;
    const void* x;
    float* mean;
    int count;
    template <int W> struct State {
        Pack<float, W> total;
        Pack<Params::XType, W> x;
    };
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const {
        s.x.load(x, at);
        if (count != 1) s.total.load(total, at);
    }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float acc[W];
#pragma unroll
        for (int i = 0; i < W; i++) acc[i] = count == 1 ? s.x.get(i) : s.total.get(i) + s.x.get(i);
        Pack<float, W> p;
        p.put(acc);
        p.store(total, at);
        if constexpr (Params::Mean) {
#pragma unroll
            for (int i = 0; i < W; i++) acc[i] = __fdiv_rn(acc[i], (float)count);
            p.put(acc);
            p.store(mean, at);
        }
    }
};

extern "C" __global__ void __launch_bounds__(256, 4) accumulate(float* total, const void* x, const int* count, float* mean, i64 n) {
    each<narrow_vector<Params::XType>(), 2>(n, Accumulate{total, x, mean, *count});
}
