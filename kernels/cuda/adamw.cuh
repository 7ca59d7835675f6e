// One step of AdamW (Loshchilov and Hutter, 2019) on one parameter, in place, in float32:
//
//   m = beta1*m + (1-beta1)*g        v = beta2*v + (1-beta2)*g^2
//   w = w*(1 - rate*decay) - rate/(1-beta1^t) * m / (sqrt(v)/sqrt(1-beta2^t) + eps)
//
// Each product and sum is rounded on its own, as host code does. w is the master copy where there is one; the
// parameter is then its rounding. Nothing changes where *ready is 0. Launch: elementwise.cuh.
#include "elementwise.cuh"

struct AdamW {
    void* param;
    float *m, *v, *master;
    const void* grad;
    float keep, size, root, beta1, beta2, rest1, rest2, eps;
    template <int W> struct State {
        Pack<float, W> w, m, v;
        Pack<Params::GradType, W> g;
    };
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const {
        s.w.load(Params::Master ? (void*)master : param, at);
        s.m.load(m, at);
        s.v.load(v, at);
        s.g.load(grad, at);
    }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float ws[W], ms[W], vs[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float g = Params::Maximize ? -s.g.get(i) : s.g.get(i);
            ms[i] = __fadd_rn(__fmul_rn(beta1, s.m.get(i)), __fmul_rn(rest1, g));
            vs[i] = __fadd_rn(__fmul_rn(beta2, s.v.get(i)), __fmul_rn(__fmul_rn(rest2, g), g));
            const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(vs[i]), root), eps);
            ws[i] = __fsub_rn(__fmul_rn(s.w.get(i), keep), __fmul_rn(size, __fdiv_rn(ms[i], denominator)));
        }
        Pack<float, W> p;
        p.put(ms);
        p.store(m, at);
        p.put(vs);
        p.store(v, at);
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
    adamw(void* param, float* m, float* v, float* master, const void* grad, const int* step, const float* rate, const int* ready, i64 n,
          double beta1, double beta2, double decay, float eps) {
    __shared__ float now[3];
    if (ready && *ready == 0) return;
    if (threadIdx.x == 0) {
        const double t = *step, lr = *rate;
        now[0] = (float)(1 - __dmul_rn(lr, decay));
        now[1] = (float)(lr / (1 - pow(beta1, t)));
        now[2] = (float)sqrt(1 - pow(beta2, t));
    }
    __syncthreads();
    const AdamW body{param,        m,      v,  master, grad, now[0], now[1], now[2], (float)beta1, (float)beta2, (float)(1 - beta1),
                     (float)(1 - beta2), eps};
    each<4, 1>(n, body);
}
