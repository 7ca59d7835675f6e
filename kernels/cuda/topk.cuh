// The k experts of each token and their probabilities, and the gradient of the logits (contracts, section 9).
//
// A warp for each token, scores in float64 as on the host: the same ids, the lower expert first among equals, NaNs
// last. The k largest are found one after another by a warp-wide maximum over order-preserving integer keys.
// Launch: Params::Warps warps a block, the grid strides over tokens; shared memory is static.
#include "scores.cuh"

constexpr int kTop = Params::K, kOrder = Params::Order, kWarps = Params::Warps;

// sort_key rises with x: NaN below -Inf, +0 and -0 the same. 0 is below all keys.
__device__ __forceinline__ u64 sort_key(double x) {
    if (x != x) return 1;
    const u64 bits = (u64)__double_as_longlong(x + 0.0);
    return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

// largest fills chosen with the experts of the largest keys in falling order.
__device__ __forceinline__ void largest(int* chosen, u64 (&key)[kPerLane], int lane) {
    for (int s = 0; s < kTop; s++) {
        u64 best = 0;
        for_experts(lane, [&](int i, int) { best = key[i] > best ? key[i] : best; });
        const u32 high = __reduce_max_sync(kFullWarp, (u32)(best >> 32));
        const u32 low = __reduce_max_sync(kFullWarp, (u32)(best >> 32) == high ? (u32)best : 0u);
        const u64 top = (u64)high << 32 | low;
        u32 expert = 0xffffffffu;
        for_experts(lane, [&](int i, int e) {
            if (key[i] == top && (u32)e < expert) expert = e;
        });
        expert = __reduce_min_sync(kFullWarp, expert);
        for_experts(lane, [&](int i, int e) {
            if ((u32)e == expert) key[i] = 0;
        });
        if (lane == 0) chosen[s] = (int)expert;
    }
}

// Raw is the score of a chosen expert, softmax over the chosen for topk_softmax; factor() is what normalization and
// scale multiply it by.
struct Raw {
    const double* score; // of all experts, shared
    const int* chosen;   // shared
    double top = 0, total = 1;

    __device__ __forceinline__ double operator()(int slot) const {
        const double x = score[chosen[slot]];
        return kOrder == kTopKSoftmax ? quotient(exp_of(x - top), total) : x;
    }
    __device__ __forceinline__ void prepare(int lane) {
        if constexpr (kOrder == kTopKSoftmax) {
            double most = -__longlong_as_double(0x7ff0000000000000ll), sum = 0;
            for (int s = lane; s < kTop; s += 32) most = fmax(most, score[chosen[s]]);
            top = warp_max(most);
            for (int s = lane; s < kTop; s += 32) sum += exp_of(score[chosen[s]] - top);
            total = warp_sum(sum);
        }
    }
    __device__ __forceinline__ double factor(double scale, int lane) const {
        if constexpr (!Params::Normalize) return scale;
        double sum = 0;
        for (int s = lane; s < kTop; s += 32) sum += (*this)(s);
        return scale / (warp_sum(sum) + kNormEps);
    }
};

// limit sets the selecting values outside the TopKGroups best of Groups groups of neighbouring experts to 0; a group
// counts as much as the sum of its two largest. value is shared, one double for each group; lane l ranks groups l,
// l + 32, ...: a group is kept where less than TopKGroups come before it.
__device__ __forceinline__ void limit(double* sel, double* value, int lane) {
    constexpr int kGroups = Params::Groups, kSize = kExperts / (kGroups > 0 ? kGroups : 1);
    for (int g = lane; g < kGroups; g += 32) {
        const double* x = sel + g * kSize;
        double first = x[0], second = x[1];
        if (sort_key(second) > sort_key(first)) first = x[1], second = x[0];
        for (int i = 2; i < kSize; i++) {
            if (sort_key(x[i]) > sort_key(first))
                second = first, first = x[i];
            else if (sort_key(x[i]) > sort_key(second))
                second = x[i];
        }
        value[g] = first + second;
    }
    __syncwarp();
    for (int g = lane; g < kGroups; g += 32) {
        const u64 mine = sort_key(value[g]);
        int before = 0;
        for (int h = 0; h < kGroups; h++) before += sort_key(value[h]) > mine || (h < g && sort_key(value[h]) == mine);
        if (before >= Params::TopKGroups)
            for (int i = 0; i < kSize; i++) sel[g * kSize + i] = 0;
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    topk(int* idx, float* prob, const float* logits, const float* bias, const int* count, i64 tokens, double scale) {
    constexpr bool kLimited = Params::TopKGroups < Params::Groups;
    __shared__ double shared_score[kWarps][kExperts], shared_value[kWarps][kLimited ? Params::Groups : 1];
    __shared__ int shared_chosen[kWarps][kTop];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double* score = shared_score[warp];
    int* chosen = shared_chosen[warp];
    const i64 n = rows_in_use(count, tokens);
    for (i64 t = (i64)blockIdx.x * kWarps + warp; t < n; t += (i64)gridDim.x * kWarps) {
        const float* l = logits + t * kExperts;
        double p[kPerLane];
        scores<kOrder>(p, l, lane);
        u64 key[kPerLane];
        for_experts(lane, [&](int i, int e) {
            double x = p[i];
            if (Params::Bias)
                x += (double)bias[e];
            else if (!kLimited && x == x)
                x = (double)l[e]; // softmax and sigmoid rise with the logit, and the logit has no ties of its own
            key[i] = sort_key(x);
            score[e] = kLimited ? x : p[i];
        });
        if constexpr (kLimited) {
            __syncwarp();
            limit(score, shared_value[warp], lane);
            for_experts(lane, [&](int i, int e) {
                key[i] = sort_key(score[e]);
                score[e] = p[i];
            });
        }
        largest(chosen, key, lane);
        __syncwarp();
        if (idx)
            for (int s = lane; s < kTop; s += 32) idx[t * kTop + s] = chosen[s];
        if (prob) {
            Raw raw{score, chosen};
            raw.prepare(lane);
            const double f = raw.factor(scale, lane);
            for (int s = lane; s < kTop; s += 32) prob[t * kTop + s] = (float)(raw(s) * f);
        }
        __syncwarp();
    }
}

// topk_grad: with p = raw * f, f = scale/(sum of raw + eps) or scale, and then through the scores.
extern "C" __global__ void __launch_bounds__(32 * kWarps)
    topk_grad(float* dlogits, const float* logits, const int* idx, const float* dprob, const int* count, i64 tokens, double scale) {
    __shared__ double shared_score[kWarps][kExperts], shared_grad[kWarps][kExperts];
    __shared__ int shared_chosen[kWarps][kTop];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double *score = shared_score[warp], *grad = shared_grad[warp];
    int* chosen = shared_chosen[warp];
    const i64 n = rows_in_use(count, tokens);
    for (i64 t = (i64)blockIdx.x * kWarps + warp; t < n; t += (i64)gridDim.x * kWarps) {
        double p[kPerLane];
        scores<kOrder>(p, logits + t * kExperts, lane);
        for_experts(lane, [&](int i, int e) {
            score[e] = p[i];
            grad[e] = 0;
        });
        for (int s = lane; s < kTop; s += 32) {
            const int e = idx[t * kTop + s];
            chosen[s] = e < 0 ? 0 : e < kExperts ? e : kExperts - 1; // ids are those of topk; never outside the arrays
        }
        __syncwarp();
        Raw raw{score, chosen};
        raw.prepare(lane);
        const double f = raw.factor(scale, lane);
        const float* dp = dprob + t * kTop;
        double inner = 0, outer = 0; // what normalization and the softmax over the chosen subtract
        if constexpr (Params::Normalize) {
            for (int s = lane; s < kTop; s += 32) inner += (double)dp[s] * raw(s);
            inner = warp_sum(inner) * (f * f / scale);
        }
        if constexpr (kOrder != kSigmoid) {
            for (int s = lane; s < kTop; s += 32) outer += ((double)dp[s] * f - inner) * raw(s);
            outer = warp_sum(outer);
        }
        for (int s = lane; s < kTop; s += 32) {
            const double draw = (double)dp[s] * f - inner, r = raw(s);
            grad[chosen[s]] = kOrder == kSigmoid ? draw * r * (1 - r) : kOrder == kTopKSoftmax ? r * (draw - outer) : draw;
        }
        __syncwarp();
        for_experts(lane, [&](int i, int e) {
            const double g = kOrder == kSoftmaxTopK ? p[i] * (grad[e] - outer) : grad[e];
            dlogits[t * kExperts + e] = (float)g;
        });
        __syncwarp();
    }
}
