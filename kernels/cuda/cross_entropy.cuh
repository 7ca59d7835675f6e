// loss = mean over the labels that count of logsumexp(logits[t]) - logits[t,label], and its gradient:
//
//   dlogits = upstream/n * (softmax(logits) - one-hot label), 0 in ignored rows, NaN in rows of other labels out of range
//
//   cross_entropy         a team of Params::Team threads (a warp or a block) reads a row once      -> stats, row_loss
//   cross_entropy_final   one block adds the rows' losses in fixed order                           -> loss
//   cross_entropy_factor  one block counts labels: upstream/n                                      -> factor
//   cross_entropy_grad    a team for each row
//
// The row's largest logit and the sum of exponentials of distances to it are kept apart, and the terms that are
// exactly 1, those of the largest logit, are counted apart from the sum of the others: the logarithm of a sum near 1 keeps
// its digits. Rows need not begin at multiples of 16 bytes: what lies before the first vector and after
// the last is done one by one. Launch: Team > 32: blocks of Team threads, else 256; the grid strides over rows; final and factor
// 1024 threads.
#include "common.cuh"

constexpr int kTeam = Params::Team, kBlock = kTeam > 32 ? kTeam : 256, kTeams = kBlock / kTeam;
using X = Params::XType;
constexpr int kElems = narrow_vector<X>(), kUnroll = 4;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// exp_near returns e^d for d <= 0; of 16-bit logits, whose loop is short of time, with a relative error of about
// |d| * 2^-24 + 2^-22.
__device__ __forceinline__ float exp_near(float d) {
    if constexpr (sizeof(X) == 4) return expf(d);
    return ptx::exp2_approx(d * 1.4426950408889634f);
}

// Sum stands for ones + rest times e^top.
struct Sum {
    float top, ones, rest;

    // raise makes most the reference, which is at least top.
    __device__ __forceinline__ void raise(float most) {
        if (most == top) return;
        if (top != -infinity()) rest = (rest + ones) * expf(top - most);
        ones = 0;
        top = most;
    }
    template <int N> __device__ __forceinline__ void add(const Pack<X, N>& x) {
        float most = top;
#pragma unroll
        for (int i = 0; i < N; i++) most = fmaxf(most, x.get(i));
        raise(most);
        if (top == -infinity()) { // nothing but -Inf and NaN so far
#pragma unroll
            for (int i = 0; i < N; i++) rest += x.get(i) == x.get(i) ? 0.f : x.get(i);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool one = x.get(i) == top;
            const float e = exp_near(x.get(i) - top);
            ones += one ? 1.f : 0.f;
            rest += one ? 0.f : e;
        }
    }
    __device__ __forceinline__ void add(Sum b) {
        const float most = fmaxf(top, b.top);
        raise(most);
        b.raise(most);
        ones += b.ones;
        rest += b.rest;
    }
};

// team_add combines the sums of the team's threads in fixed order; every thread gets the result.
__device__ __forceinline__ Sum team_add(Sum s, Sum* spare) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        Sum other;
        other.top = __shfl_xor_sync(kFullWarp, s.top, d);
        other.ones = __shfl_xor_sync(kFullWarp, s.ones, d);
        other.rest = __shfl_xor_sync(kFullWarp, s.rest, d);
        s.add(other);
    }
    if constexpr (kTeam == 32) return s;
    if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = s;
    __syncthreads();
    Sum total = spare[0];
    for (int w = 1; w < kTeam / 32; w++) total.add(Sum(spare[w]));
    __syncthreads();
    return total;
}

// for_row calls f(pack, element) for this thread's vectors of elements [begin, end), several loads in flight, and for
// single elements at both ends.
template <class F> __device__ __forceinline__ void for_row(const void* base, i64 begin, i64 end, int thread, const F& f) {
    i64 first = div_up(begin, kElems) * kElems, last = end / kElems * kElems;
    if (first > end) first = end;
    if (last < first) last = first;
    for (i64 i = first + (i64)thread * kElems; i < last; i += kUnroll * kTeam * kElems) {
        Pack<X, kElems> x[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * kTeam * kElems < last) x[u].load(base, i + u * kTeam * kElems);
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * kTeam * kElems < last) f(x[u], i + u * kTeam * kElems);
    }
    for (i64 i = begin + thread; i < end; i += kTeam) {
        if (i >= first && i < last) i += (last - i + kTeam - 1) / kTeam * kTeam;
        if (i >= end) break;
        Pack<X, 1> x;
        x.load(base, i);
        f(x, i);
    }
}

extern "C" __global__ void __launch_bounds__(kBlock)
    cross_entropy(float* stats, double* row_loss, const void* logits, const int* labels, const int* count, i64 capacity, i64 vocab, int ignore) {
    __shared__ Sum spare[32];
    const int thread = threadIdx.x % kTeam;
    const i64 rows = rows_in_use(count, capacity);
    for (i64 row = (i64)blockIdx.x * kTeams + threadIdx.x / kTeam; row < rows; row += (i64)gridDim.x * kTeams) {
        Sum s{-infinity(), 0, 0};
        for_row(logits, row * vocab, (row + 1) * vocab, thread, [&](const auto& x, i64) { s.add(x); });
        s = team_add(s, spare);
        if (thread != 0) continue;
        const double nan = __longlong_as_double(0x7ff8000000000000ll);
        const bool infinite = s.top == infinity() || s.top == -infinity();
        const double top = s.rest != s.rest ? nan : (double)s.top;
        const double log_sum = infinite || s.rest != s.rest ? nan : s.ones == 1 ? log1p((double)s.rest) : log((double)s.ones + (double)s.rest);
        if (stats) {
            stats[2 * row] = (float)top;
            stats[2 * row + 1] = (float)log_sum;
        }
        const int label = labels[row];
        double loss = nan;
        if (label == ignore)
            loss = 0;
        else if (label >= 0 && label < vocab)
            loss = top - (double)load_float<X>(logits, row * vocab + label) + log_sum;
        row_loss[row] = loss;
    }
}

// counting returns how many labels are not ignored, to all threads of a block of 1024.
__device__ __forceinline__ i64 counting(const int* labels, i64 rows, int ignore, i64* spare) {
    i64 n = 0;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < rows; i += 1024) n += labels[i] != ignore;
    return block_sum(n, spare);
}

extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_final(float* loss, const double* row_loss, const int* labels, const int* count, i64 capacity, int ignore) {
    __shared__ i64 counts[33];
    __shared__ double sums[33];
    const i64 rows = rows_in_use(count, capacity), n = counting(labels, rows, ignore, counts);
    double sum = 0;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < rows; i += 1024) sum += row_loss[i];
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) *loss = (float)(sum / (double)n);
}

extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_factor(double* factor, const void* upstream, const int* labels, const int* count, i64 capacity, int ignore) {
    __shared__ i64 counts[33];
    const i64 n = counting(labels, rows_in_use(count, capacity), ignore, counts);
    if (threadIdx.x == 0) *factor = (double)load_float<Params::UpstreamType>(upstream, 0) / (double)n;
}

// Count is the number of elements of a pack.
template <class P> struct Count;
template <int N> struct Count<const Pack<X, N>&> {
    static constexpr int kValue = N;
};

// label_gradient is that of the label's logit; expm1 keeps the digits of a probability near 1.
__device__ __noinline__ float label_gradient(double factor, float x, float top, float log_sum) {
    return (float)(factor * expm1((double)x - (double)top - (double)log_sum));
}

extern "C" __global__ void __launch_bounds__(kBlock)
    cross_entropy_grad(void* dlogits, const void* logits, const int* labels, const float* stats, const double* factor, const int* count, i64 capacity,
                       i64 vocab, int ignore) {
    const int thread = threadIdx.x % kTeam;
    const i64 rows = rows_in_use(count, capacity);
    for (i64 row = (i64)blockIdx.x * kTeams + threadIdx.x / kTeam; row < rows; row += (i64)gridDim.x * kTeams) {
        const int label = labels[row];
        const bool ignored = label == ignore, valid = label >= 0 && label < vocab;
        const float top = stats[2 * row], log_sum = stats[2 * row + 1];
        const float f = valid ? (float)*factor : __uint_as_float(0x7fffffffu);
        const i64 begin = row * vocab, target = valid ? begin + label : -1;
        for_row(logits, begin, begin + vocab, thread, [&](const auto& x, i64 at) {
            constexpr int kN = Count<decltype(x)>::kValue;
            float out[kN];
#pragma unroll
            for (int i = 0; i < kN; i++) out[i] = ignored ? 0.f : f * expf(x.get(i) - top - log_sum);
            if (!ignored && target >= at && target < at + kN) {
                const float g = label_gradient(*factor, load_float<X>(logits, target), top, log_sum);
#pragma unroll
                for (int i = 0; i < kN; i++) out[i] = at + i == target ? g : out[i];
            }
            Pack<X, kN> p;
            p.put(out);
            p.store(dlogits, at);
        });
    }
}
