// y[t,s] = sum over h of x[t,h] d[row of slot,h] in float32, zero where the slot has no row.
// Launch: a warp for each slot (rows.cuh with 32 lanes): a token's slots are neighbours, so that x comes from the L1.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(256, 3)
    slot_dot(float* y, const void* x, const void* d, const int* row_map, const int* count, i64 tokens, int k, const int* d_count, i64 d_capacity,
             int width) {
    const i64 d_rows = rows_in_use(d_count, d_capacity);
    constexpr int kElems = Params::Elems, kUnroll = kElems * (sizeof(Params::XType) + sizeof(Params::DType)) > 32 ? 2 : 4;
    for_rows<32>(rows_in_use(count, tokens) * k, [&](i64 slot, int lane) {
        const i64 row = row_map[slot], t = slot / k;
        if (row < 0 || row >= d_rows) {
            if (lane == 0) y[slot] = 0;
            return;
        }
        float acc[kElems] = {};
        for (int i = lane * kElems; i < width; i += kUnroll * 32 * kElems) {
            Pack<Params::XType, kElems> a[kUnroll];
            Pack<Params::DType, kElems> b[kUnroll];
#pragma unroll
            for (int u = 0; u < kUnroll; u++) {
                const int at = i + u * 32 * kElems;
                if (at >= width) continue;
                a[u].load(x, t * width + at);
                b[u].load(d, row * width + at);
            }
#pragma unroll
            for (int u = 0; u < kUnroll; u++) {
                if (i + u * 32 * kElems >= width) continue;
#pragma unroll
                for (int j = 0; j < kElems; j++) acc[j] = fmaf(a[u].get(j), b[u].get(j), acc[j]);
            }
        }
        float sum = acc[0];
#pragma unroll
        for (int j = 1; j < kElems; j++) sum += acc[j];
        sum = warp_sum(sum);
        if (lane == 0) y[slot] = sum;
    });
}
