// a[row,:] = x[token of row,:] (times prob of its slot), zeros in padding rows and in rows whose slot is not in use.
// Copies bytes in units of Params::Unit where there is no prob, else rounds the float32 product once.
// Launch: rows.cuh.
#include "rows.cuh"

// scaled_row writes p * x for one row.
template <class T, int N> __device__ __forceinline__ void scaled_row(char* to, const char* from, float p, int width, int lane) {
    constexpr int kUnroll = 4, kStep = Params::Lanes * N;
    for (int i = lane * N; i < width; i += kUnroll * kStep) {
        Pack<T, N> x[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * kStep < width) x[u].load(from, i + u * kStep);
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            float out[N];
#pragma unroll
            for (int j = 0; j < N; j++) out[j] = p * x[u].get(j);
            x[u].put(out);
            if (i + u * kStep < width) x[u].store(to, i + u * kStep);
        }
    }
}

// x_count and x_rows count the tokens, a_count and a_rows the rows; width is in elements.
extern "C" __global__ void __launch_bounds__(256, 3)
    permute(char* a, const char* x, const int* slot_map, const float* prob, const int* a_count, i64 a_rows, const int* x_count, i64 x_rows,
            int k, int width) {
    using U = Unit<Params::Unit>;
    const i64 slots = rows_in_use(x_count, x_rows) * k, row_bytes = (i64)width * (i64)sizeof(Params::XType);
    for_rows<Params::Lanes>(rows_in_use(a_count, a_rows), [&](i64 row, int lane) {
        const int s = slot_map[row];
        const bool used = s >= 0 && s < slots;
        const char* from = used ? x + s / k * row_bytes : nullptr;
        if constexpr (Params::Prob) {
            if (used) {
                scaled_row<Params::XType, (int)(Params::Unit / sizeof(Params::XType))>(a + row * row_bytes, from, prob[s], width, lane);
                return;
            }
        }
        copy_row<Params::Lanes>((U*)(a + row * row_bytes), (const U*)from, (int)(row_bytes / Params::Unit), lane);
    });
}
