// y[t,:] = sum over slots s of (prob[t,s] *) d[row of slot (t,s),:], in slot order in float32, each product rounded
// on its own, the sum rounded once. Slots without a row that is in use add
// nothing. Params::K is the number of slots of a token.
// Launch: rows.cuh, a row for each token.
#include "rows.cuh"

constexpr int kElems = Params::Elems; // elements of one load
constexpr int kFlight = 4;            // slots whose loads are in flight together
constexpr int kParts = Params::Parts; // loads of one slot in flight together

// add_slots adds up slots [first, first + kFlight) of a token, up to K, for elements [at, at + kElems) and those
// kParts - 1 times Lanes * kElems further.
__device__ __forceinline__ void add_slots(float (&acc)[kParts][kElems], const void* d, const int* rows, const float* prob, int first, int at,
                                          i64 d_rows, int width) {
    Pack<Params::DType, kElems> x[kFlight][kParts];
    bool used[kFlight];
#pragma unroll
    for (int s = 0; s < kFlight; s++) {
        const i64 row = first + s < Params::K ? rows[first + s] : -1;
        used[s] = row >= 0 && row < d_rows;
#pragma unroll
        for (int p = 0; p < kParts; p++) {
            const int column = at + p * Params::Lanes * kElems;
            if (used[s] && column < width) x[s][p].load(d, row * width + column);
        }
    }
#pragma unroll
    for (int s = 0; s < kFlight; s++) {
        if (!used[s]) continue;
        const float f = Params::Prob ? prob[first + s] : 1.f;
#pragma unroll
        for (int p = 0; p < kParts; p++)
#pragma unroll
            for (int i = 0; i < kElems; i++) acc[p][i] = __fadd_rn(acc[p][i], Params::Prob ? __fmul_rn(x[s][p].get(i), f) : x[s][p].get(i));
    }
}

extern "C" __global__ void __launch_bounds__(256, 3)
    combine(void* y, const void* d, const int* row_map, const float* prob, const int* y_count, i64 y_rows, const int* d_count, i64 d_capacity,
            int width) {
    const i64 d_rows = rows_in_use(d_count, d_capacity);
    for_rows<Params::Lanes>(rows_in_use(y_count, y_rows), [&](i64 t, int lane) {
        for (int at = lane * kElems; at < width; at += kParts * Params::Lanes * kElems) {
            float acc[kParts][kElems] = {};
#pragma unroll 1
            for (int s = 0; s < Params::K; s += kFlight) add_slots(acc, d, row_map + t * Params::K, prob + t * Params::K, s, at, d_rows, width);
#pragma unroll
            for (int p = 0; p < kParts; p++) {
                const int column = at + p * Params::Lanes * kElems;
                if (column >= width) continue;
                Pack<Params::YType, kElems> out;
                out.put(acc[p]);
                out.store(y, t * width + column);
            }
        }
    });
}
