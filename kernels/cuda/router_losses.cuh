// A router's losses and the gradient of its logits (contracts, section 9), in float64:
//
//   load_balance = E * sum_e f_e P_e, f_e = counts_e/(T k), P_e the mean over tokens of the shares
//   z_loss = mean over tokens of logsumexp(logits)^2
//
//   router_losses_sum    each block adds up its tokens' shares and squares, a warp a token -> partial[block][E+1]
//   router_losses_final  one block adds the partials in order
//   router_losses_grad   a warp a token
//
// Launch: router_losses_sum and _grad 4 warps a block; _final 1024 threads. Without tokens both losses are 0.
#include "scores.cuh"

constexpr int kWarps = 4;

// shares fills p with the token's shares; soft with its softmax. It returns the logsumexp.
__device__ __forceinline__ double shares(double (&p)[kPerLane], const float* logits, int lane) {
    const double lse = softmax(p, logits, lane);
    if constexpr (Params::Order == kSigmoid) {
        double total = 0;
        for_experts(lane, [&](int i, int e) {
            p[i] = sigmoid((double)logits[e]);
            total += p[i];
        });
        total = warp_sum(total) + kNormEps;
        for_experts(lane, [&](int i, int) { p[i] = quotient(p[i], total); });
    }
    return lse;
}

extern "C" __global__ void __launch_bounds__(32 * kWarps) router_losses_sum(double* partial, const float* logits, const int* count, i64 tokens) {
    __shared__ double sums[kWarps][kExperts + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 n = rows_in_use(count, tokens);
    double acc[kPerLane] = {}, squares = 0, p[kPerLane];
    for (i64 t = (i64)blockIdx.x * kWarps + warp; t < n; t += (i64)gridDim.x * kWarps) {
        const double lse = shares(p, logits + t * kExperts, lane);
        for_experts(lane, [&](int i, int) { acc[i] += p[i]; });
        squares += lse * lse;
    }
    for_experts(lane, [&](int i, int e) { sums[warp][e] = acc[i]; });
    if (lane == 0) sums[warp][kExperts] = squares;
    __syncthreads();
    for (int e = threadIdx.x; e <= kExperts; e += 32 * kWarps) {
        double sum = sums[0][e];
        for (int w = 1; w < kWarps; w++) sum += sums[w][e];
        partial[(i64)blockIdx.x * (kExperts + 1) + e] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    router_losses_final(float* balance, float* z, const double* partial, int blocks, const int* counts, const int* count, i64 tokens, int k) {
    __shared__ double spare[33];
    const double t = (double)rows_in_use(count, tokens);
    double weighted = 0, squares = 0;
    for (int e = threadIdx.x; e <= kExperts; e += 1024) {
        double sum = 0;
#pragma unroll 8
        for (int b = 0; b < blocks; b++) sum += partial[(i64)b * (kExperts + 1) + e];
        if (e == kExperts)
            squares = sum;
        else
            weighted += (double)counts[e] * sum;
    }
    weighted = block_sum(weighted, spare);
    squares = block_sum(squares, spare);
    if (threadIdx.x != 0) return;
    if (balance) *balance = t > 0 ? (float)(weighted * ((double)kExperts / (t * (double)k * t))) : 0.f;
    if (z) *z = t > 0 ? (float)(squares / t) : 0.f;
}

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    router_losses_grad(float* dlogits, const float* logits, const int* counts, const float* dbalance, const float* dz, const int* count, i64 tokens,
                       int k) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 rows = rows_in_use(count, tokens);
    const double n = (double)rows;
    const double gb = dbalance ? (double)*dbalance * kExperts / (n * (double)k * n) : 0, gz = dz ? (double)*dz / n : 0;
    for (i64 t = (i64)blockIdx.x * kWarps + warp; t < rows; t += (i64)gridDim.x * kWarps) {
        const float* l = logits + t * kExperts;
        double soft[kPerLane], p[kPerLane], inner = 0;
        const double lse = softmax(soft, l, lane);
        shares(p, l, lane);
        for_experts(lane, [&](int i, int e) { inner += (double)counts[e] * p[i]; });
        inner = warp_sum(inner);
        for_experts(lane, [&](int i, int e) {
            double g = gb * p[i] * ((double)counts[e] - inner);
            if (Params::Order == kSigmoid) g *= 1 - sigmoid((double)l[e]);
            dlogits[t * kExperts + e] = (float)(g + gz * 2 * lse * soft[i]);
        });
    }
}
