// Grouped matrix product of block-scaled operands (contracts, section 7), or of block-scaled weights beside a plain A (section 4).
//
//   G = alpha[g] global_a[g] global_b[g] A_g B_g^T;  no bias: C = G, D = prob G;  bias: C = D = G + prob bias[g];  amax[g] = max |D|
//
// D in fp8 or fp4 is quantized along rows and columns: d is its row codes, and the last arguments are the rest; factors are zeros
// before (quant_epilogue.cuh).
//
// Tiles, warps and shared memory: scaled_rows.cuh. Padding rows are written as zeros; rows past the last offset are neither
// read nor written.
//
// Params: those of scaled_rows.cuh, of PlainEpilogue and of QuantOutput.
#include "quant_epilogue.cuh"
#include "scaled_rows.cuh"

extern "C" __global__ void __launch_bounds__(Shape<ScaledRowSpec<Params>>::kThreads, Params::Blocks)
    grouped_gemm_quant(const void* a, const void* b, const unsigned char* sfa, const void* sfb, bf16* left, bf16* right, u32* progress, const int* offsets,
                       const int* counts, const int* rows_a, const int* rows_prob, const float* alpha, const float* global_a, const float* global_b, u32* amax,
                       const float* prob, const Params::BiasType* bias, Params::DType* d, Params::CType* c, int capacity,
                       const float* norm, unsigned char* d_sf, Params::DType* d_col, unsigned char* d_col_sf) {
    using Extra = ScaledExtra<Params>;
    scaled_rows<Params>({a, b, sfa, sfb, left, right, progress}, offsets, counts, rows_in_use(capacity, rows_a, rows_prob), [&](ScaledRowSmem<Params>& smem) {
        return quantizing_or<PlainQuantEpilogue<Params, Extra>>(
            PlainEpilogue<Params, Extra, kCopiedPadding<Params>>{smem.stages, {alpha, global_a, global_b, amax}, prob, bias, d, c},
            QuantOutput<Params, Params::DType, Params::N>{smem.groups, norm, d, d_sf, d_col, d_col_sf, capacity});
    });
}
