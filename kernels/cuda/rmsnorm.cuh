// y[t,h] = x[t,h] * rstd[t] * weight[h], rstd[t] = 1/sqrt(mean_h x^2 + eps), the squares added in float64; and the
// gradients, with n = x*rstd:
//
//   dx = rstd * (weight*dy - n * mean_h(weight*dy*n)),  dweight = sum_t dy*n
//
// Params::Team threads, a warp or a whole block, take a row, Params::Held vectors of Params::Elems elements a thread,
// which stay in registers between the two passes; with Held 0 the row is read again, from the cache.
// dweight: with Held above 0 each thread adds up its columns of all its rows, else columns.cuh does; partials are added in
// order by rmsnorm_grad_finish. Launch: Team > 32: a row a block, blocks of Team threads; else 256 threads, 8 rows a
// block; the grid strides over rows, with 1536 threads a multiprocessor, 768 for the gradient.
#include "columns.cuh"

constexpr int kTeam = Params::Team, kHeld = Params::Held, kElems = Params::Elems;
constexpr int kBlock = kTeam > 32 ? kTeam : 256, kTeams = kBlock / kTeam;
constexpr int kKept = kHeld > 0 ? kHeld : 1; // vectors that are in registers at a time

// resident returns the blocks that a multiprocessor holds at a time when it holds so many threads.
constexpr int resident(int threads) { return threads / kBlock > 1 ? threads / kBlock : 1; }

// team_sum adds up x over the team.
__device__ __forceinline__ double team_sum(double x, double* spare) {
    if constexpr (kTeam == 32) return warp_sum(x);
    return block_sum(x, spare);
}

// for_pieces calls f(piece, column) for this thread's vectors in a row. With Held they have numbers below Held.
template <class F> __device__ __forceinline__ void for_pieces(int thread, int width, const F& f) {
    if constexpr (kHeld > 0) {
#pragma unroll
        for (int i = 0; i < kHeld; i++)
            if ((i * kTeam + thread) * kElems < width) f(i, (i * kTeam + thread) * kElems);
    } else {
        for (int column = thread * kElems; column < width; column += kTeam * kElems) f(0, column);
    }
}

extern "C" __global__ void __launch_bounds__(kBlock, resident(1536))
    rmsnorm(void* y, float* rstd, const void* x, const void* weight, const int* count, i64 capacity, int width, double eps) {
    __shared__ double spare[33];
    const int thread = threadIdx.x % kTeam;
    const double share = 1.0 / (width > 1 ? width : 1);
    const i64 rows = rows_in_use(count, capacity);
    for (i64 row = (i64)blockIdx.x * kTeams + threadIdx.x / kTeam; row < rows; row += (i64)gridDim.x * kTeams) {
        Pack<Params::XType, kElems> xs[kKept];
        double squares = 0;
        if constexpr (kHeld > 0) for_pieces(thread, width, [&](int i, int column) { xs[i].load(x, row * width + column); });
        for_pieces(thread, width, [&](int i, int column) {
            if constexpr (kHeld == 0) xs[i].load(x, row * width + column);
#pragma unroll
            for (int j = 0; j < kElems; j++) squares = fma((double)xs[i].get(j), (double)xs[i].get(j), squares);
        });
        const float rs = (float)rsqrt(team_sum(squares, spare) * share + eps);
        if (rstd && thread == 0) rstd[row] = rs;
        if (!y) continue;
        for_pieces(thread, width, [&](int i, int column) {
            Pack<Params::WeightType, kElems> w;
            w.load(weight, column);
            if constexpr (kHeld == 0) xs[i].load(x, row * width + column);
            float out[kElems];
#pragma unroll
            for (int j = 0; j < kElems; j++) out[j] = xs[i].get(j) * rs * w.get(j);
            Pack<Params::YType, kElems> p;
            p.put(out);
            p.store(y, row * width + column);
        });
    }
}

// rmsnorm_grad writes dx, and with Held the block's sums of dweight to partial[blockIdx.x].
extern "C" __global__ void __launch_bounds__(kBlock, resident(768))
    rmsnorm_grad(void* dx, float* partial, const void* x, const void* weight, const float* rstd, const void* dy, const int* count, i64 capacity,
                 int width) {
    __shared__ double spare[33];
    const int thread = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
    const double share = 1.0 / (width > 1 ? width : 1);
    const i64 rows = rows_in_use(count, capacity);
    float sums[kKept][kElems] = {};
    for (i64 row = (i64)blockIdx.x * kTeams + team; row < rows; row += (i64)gridDim.x * kTeams) {
        Pack<Params::XType, kElems> xs[kKept];
        Pack<Params::DYType, kElems> dys[kKept];
        const auto load = [&](int i, int column) {
            xs[i].load(x, row * width + column);
            dys[i].load(dy, row * width + column);
        };
        const float rs = rstd[row];
        double dot = 0;
        if constexpr (kHeld > 0) for_pieces(thread, width, load);
        for_pieces(thread, width, [&](int i, int column) {
            if constexpr (kHeld == 0) load(i, column);
            Pack<Params::WeightType, kElems> w;
            w.load(weight, column);
#pragma unroll
            for (int j = 0; j < kElems; j++) {
                const float n = xs[i].get(j) * rs, d = dys[i].get(j);
                sums[i][j] += d * n;
                dot = fma((double)(w.get(j) * d), (double)n, dot);
            }
        });
        if (!dx) continue;
        const float mean = (float)(team_sum(dot, spare) * share);
        for_pieces(thread, width, [&](int i, int column) {
            if constexpr (kHeld == 0) load(i, column);
            Pack<Params::WeightType, kElems> w;
            w.load(weight, column);
            float out[kElems];
#pragma unroll
            for (int j = 0; j < kElems; j++)
                out[j] = rs * __fsub_rn(__fmul_rn(w.get(j), dys[i].get(j)), __fmul_rn(__fmul_rn(xs[i].get(j), rs), mean));
            Pack<Params::XType, kElems> p;
            p.put(out);
            p.store(dx, row * width + column);
        });
    }
    if constexpr (kHeld > 0) {
        if (!partial) return;
        __shared__ float all[kTeams > 1 ? kTeams : 1][kTeams > 1 ? kHeld * kTeam * kElems : 1];
        for_pieces(thread, width, [&](int i, int column) {
#pragma unroll
            for (int j = 0; j < kElems; j++) {
                if constexpr (kTeams > 1)
                    all[team][column + j] = sums[i][j];
                else
                    partial[(i64)blockIdx.x * width + column + j] = sums[i][j];
            }
        });
        if constexpr (kTeams > 1) {
            __syncthreads();
            for (int c = threadIdx.x; c < width; c += kBlock) {
                float sum = all[0][c];
                for (int t = 1; t < kTeams; t++) sum += all[t][c];
                partial[(i64)blockIdx.x * width + c] = sum;
            }
        }
    }
}

// rmsnorm_grad_columns adds up dweight where rows are too long for registers. Launch: columns.cuh.
extern "C" __global__ void __launch_bounds__(256)
    rmsnorm_grad_columns(float* partial, const void* x, const float* rstd, const void* dy, const int* count, i64 capacity, int width) {
    column_partials<32, kElems>(partial, rows_in_use(count, capacity), width, [&](float (&acc)[kElems], i64 row, int column) {
        Pack<Params::XType, kElems> xs;
        Pack<Params::DYType, kElems> dys;
        xs.load(x, row * width + column);
        dys.load(dy, row * width + column);
        const float rs = rstd[row];
#pragma unroll
        for (int j = 0; j < kElems; j++) acc[j] += dys.get(j) * (xs.get(j) * rs);
    });
}

extern "C" __global__ void __launch_bounds__(1024) rmsnorm_grad_finish(void* dweight, const float* partial, int count, int width) {
    column_finish<Params::DWeightType>(dweight, partial, count, width);
}
