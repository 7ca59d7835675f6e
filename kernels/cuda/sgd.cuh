// One step of SGD on one parameter, in place, in float32:
//
//   g = g + decay*w ;  b = g in the first step, then momentum*b + (1-dampening)*g
//   w = w - rate * b        nesterov: rate * (g + momentum*b)        without momentum: rate * g
//
// Each product and sum is rounded on its own, as host code does. w is the master copy where there is one; the
// parameter is then its rounding. Nothing changes where *ready is 0. Launch: elementwise.cuh.
#include "elementwise.cuh"

struct SGD {
    void* param;
    float *buffer, *master;
    const void* grad;
    float rate, decay, momentum, rest;
    bool first;
    template <int W> struct State {
        Pack<float, W> w, b;
        Pack<Params::GradType, W> g;
    };
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const {
        s.w.load(Params::Master ? (void*)master : param, at);
        s.g.load(grad, at);
        if (Params::Momentum && !first) s.b.load(buffer, at);
    }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float ws[W], bs[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            float g = Params::Maximize ? -s.g.get(i) : s.g.get(i);
            if (decay != 0) g = __fadd_rn(g, __fmul_rn(decay, s.w.get(i)));
            if constexpr (Params::Momentum) {
                bs[i] = first ? g : __fadd_rn(__fmul_rn(momentum, s.b.get(i)), __fmul_rn(rest, g));
                g = Params::Nesterov ? __fadd_rn(g, __fmul_rn(momentum, bs[i])) : bs[i];
            }
            ws[i] = __fsub_rn(s.w.get(i), __fmul_rn(rate, g));
        }
        Pack<float, W> p;
        if constexpr (Params::Momentum) {
            p.put(bs);
            p.store(buffer, at);
        }
        p.put(ws);
        p.store(Params::Master ? (void*)master : param, at);
        if constexpr (Params::Master) {
            Pack<Params::ParamType, W> q;
            q.put(ws);
            q.store(param, at);
        }
    }
};

extern "C" __global__ void __launch_bounds__(256, 4)
    sgd(void* param, float* buffer, float* master, const void* grad, const int* step, const float* rate, const int* ready, i64 n, float decay,
        float momentum, float rest) {
    if (ready && *ready == 0) return;
    each<4, 2>(n, SGD{param, buffer, master, grad, *rate, decay, momentum, rest, *step == 1});
}
