// What a router computes of one token's logits, in float64, by one warp: lane l holds experts l, l+32, ...
#pragma once
#include "common.cuh"

constexpr int kSoftmaxTopK = 0, kTopKSoftmax = 1, kSigmoid = 2; // nodes.Order
constexpr double kNormEps = 1e-20;

// kExperts experts are kPerLane a lane; those from kExperts on do not exist.
constexpr int kExperts = Params::Experts, kPerLane = (kExperts + 31) / 32;

__device__ __forceinline__ double warp_max(double x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x = fmax(x, __shfl_xor_sync(kFullWarp, x, d));
    return x;
}

// Exponentials and quotients of float64 are long; unrolled over a lane's experts they would take seconds to compile.
__device__ __noinline__ double exp_of(double x) { return exp(x); }
__device__ __noinline__ double quotient(double a, double b) { return a / b; }

__device__ __forceinline__ double sigmoid(double x) { return quotient(1, 1 + exp_of(-x)); }

// for_experts calls f(i, expert) for the experts of this lane; i is a constant once unrolled.
template <class F> __device__ __forceinline__ void for_experts(int lane, const F& f) {
#pragma unroll
    for (int i = 0; i < kPerLane; i++)
        if (lane + 32 * i < kExperts) f(i, lane + 32 * i);
}

// softmax fills p with e^x / sum e^x and returns log(sum e^x). A NaN makes all of them NaN.
__device__ __forceinline__ double softmax(double (&p)[kPerLane], const float* logits, int lane) {
    double top = -__longlong_as_double(0x7ff0000000000000ll), total = 0;
    for_experts(lane, [&](int i, int e) {
        p[i] = logits[e];
        top = fmax(top, p[i]);
    });
    top = warp_max(top);
    for_experts(lane, [&](int i, int) {
        p[i] = exp_of(p[i] - top);
        total += p[i];
    });
    total = warp_sum(total);
    for_experts(lane, [&](int i, int) { p[i] = quotient(p[i], total); });
    return top + log(total);
}

// scores fills p with softmax, the logits or sigmoids.
template <int Order> __device__ __forceinline__ void scores(double (&p)[kPerLane], const float* logits, int lane) {
    if constexpr (Order == kSoftmaxTopK) softmax(p, logits, lane);
    if constexpr (Order == kTopKSoftmax) for_experts(lane, [&](int i, int e) { p[i] = logits[e]; });
    if constexpr (Order == kSigmoid) for_experts(lane, [&](int i, int e) { p[i] = sigmoid((double)logits[e]); });
}
