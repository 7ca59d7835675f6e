// The gated activations and their derivatives (contracts, sections 5 and 6).
//
//   swiglu:  up * gate * sigmoid(gate)
//   geglu:   gate = min(gate, max); up = clamp(up, min, max);  (up + offset) * gate * sigmoid(alpha * gate)
//
// Act: struct of constants GeGLU, LinearOffset, Alpha, Cmax, Cmin. kFast: to the accuracy of 16-bit outputs. A NaN survives the clamps.
#pragma once
#include "numeric.cuh"

// 1/(1+e^-x) to float32's last digits at both ends: e^-|x| never overflows.
template <bool kFast>
__device__ __forceinline__ float sigmoid(float x) {
    if constexpr (kFast) {
        const float e = ptx::exp2_approx(fabsf(x) * -1.44269504f), r = ptx::rcp_approx(1.0f + e);
        return x < 0 ? e * r : r;
    }
    const float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

template <class Act>
__device__ __forceinline__ float clamp_gate(float gate) {
    return gate > static_cast<float>(Act::Cmax) ? static_cast<float>(Act::Cmax) : gate;
}

template <class Act>
__device__ __forceinline__ float clamp_up(float up) {
    up = up < static_cast<float>(Act::Cmin) ? static_cast<float>(Act::Cmin) : up;
    return up > static_cast<float>(Act::Cmax) ? static_cast<float>(Act::Cmax) : up;
}

template <class Act, bool kFast>
__device__ __forceinline__ float activate(float gate, float up) {
    if constexpr (!Act::GeGLU) {
        return up * gate * sigmoid<kFast>(gate);
    }
    gate = clamp_gate<Act>(gate);
    return (clamp_up<Act>(up) + static_cast<float>(Act::LinearOffset)) * gate * sigmoid<kFast>(static_cast<float>(Act::Alpha) * gate);
}

// The activation and its derivatives. At equality with a clamp the derivative passes.
template <class Act, bool kFast>
__device__ __forceinline__ float activate(float gate, float up, float& d_gate, float& d_up) {
    if constexpr (!Act::GeGLU) {
        const float s = sigmoid<kFast>(gate), gs = gate * s;
        d_gate = up * s * (1.0f + gate * (1.0f - s));
        d_up = gs;
        return up * gs;
    }
    const bool stop_gate = gate > static_cast<float>(Act::Cmax);
    const bool stop_up = up < static_cast<float>(Act::Cmin) || up > static_cast<float>(Act::Cmax);
    gate = clamp_gate<Act>(gate);
    const float a = static_cast<float>(Act::Alpha), s = sigmoid<kFast>(a * gate), gs = gate * s;
    const float linear = clamp_up<Act>(up) + static_cast<float>(Act::LinearOffset);
    d_gate = linear * s * (1.0f + a * gate * (1.0f - s));
    d_up = gs;
    if (stop_gate) {
        d_gate *= 0.0f;  // a NaN stays
    }
    if (stop_up) {
        d_up *= 0.0f;
    }
    return linear * gs;
}
