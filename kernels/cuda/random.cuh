// dropout: y = x / (1-p) with probability 1-p, else 0;  jitter: y = x * u, u uniform in [1-eps, 1+eps);
// random_next: hands out key and counter and advances the counter. Launch: elementwise.cuh; random_next one thread.
//
// The numbers are Philox4x32-10 of (element/4, replay, node), the same bits as on the host.
#include "elementwise.cuh"
#include "philox.cuh"

template <bool Jitter> struct RandomScale {
    void* y;
    const void* x;
    Draw draw;
    float p, keep; // keep is 1/(1-p)
    template <int W> using State = Pack<Params::XType, W>;

    __device__ __forceinline__ float factor(u32 bits) const {
        const float u = (float)(bits >> 8) * 0x1p-24f; // [0,1), exact
        if constexpr (Jitter) return __fadd_rn(1.f, __fmul_rn(p, __fsub_rn(2.f * u, 1.f)));
        return u < p ? 0.f : keep;
    }
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const { s.load(x, at); }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float out[W];
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            const uint4 four = draw.four((u64)(at + i) / 4);
            if constexpr (W == 1) {
                const int lane = (int)(at % 4);
                out[0] = s.get(0) * factor(lane == 0 ? four.x : lane == 1 ? four.y : lane == 2 ? four.z : four.w);
            } else {
                out[i] = s.get(i) * factor(four.x);
                out[i + 1] = s.get(i + 1) * factor(four.y);
                out[i + 2] = s.get(i + 2) * factor(four.z);
                out[i + 3] = s.get(i + 3) * factor(four.w);
            }
        }
        Pack<Params::XType, W> r;
        r.put(out);
        r.store(y, at);
    }
};

template <bool Jitter>
__device__ __forceinline__ void scale_at_random(void* y, const void* x, const u64* draw, const int* count, i64 capacity, i64 width, u32 salt,
                                                float p, float keep) {
    const RandomScale<Jitter> body{y, x, {draw[0], draw[1], salt}, p, keep};
    each<narrow_vector<Params::XType>(), 2>(rows_in_use(count, capacity) * width, body);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    dropout(void* y, const void* x, const u64* draw, const int* count, i64 capacity, i64 width, u32 salt, float p, float keep) {
    scale_at_random<false>(y, x, draw, count, capacity, width, salt, p, keep);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    jitter(void* y, const void* x, const u64* draw, const int* count, i64 capacity, i64 width, u32 salt, float p, float keep) {
    scale_at_random<true>(y, x, draw, count, capacity, width, salt, p, keep);
}

extern "C" __global__ void random_next(u64* state, u64* draw) {
    if (draw) {
        draw[0] = state[0];
        draw[1] = state[1];
    }
    state[1]++;
}
