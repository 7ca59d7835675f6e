// Grouped matrix product of block-scaled operands, or of block-scaled weights beside a plain A, with a gated activation
// (contracts, sections 5 and 7): FC1.
//
//   C = alpha[g] global_a[g] global_b[g] A_g B_g^T (+ bias[g]);  D = prob act(gate, up);  amax[g] = max |D|
//
// Tiles, warps and shared memory: scaled_rows.cuh; outputs: glu_epilogue.cuh; those of a quantized D, as grouped_gemm_quant.cuh
// has them: glu_quant_epilogue.cuh.
//
// Params: those of scaled_rows.cuh, of GLUEpilogue and of QuantOutput.
#include "glu_quant_epilogue.cuh"
#include "scaled_rows.cuh"

extern "C" __global__ void __launch_bounds__(Shape<ScaledRowSpec<Params>>::kThreads, Params::Blocks)
    grouped_gemm_glu_quant(const void* a, const void* b, const unsigned char* sfa, const void* sfb, bf16* left, bf16* right, u32* progress, const int* offsets,
                           const int* counts, const int* rows_a, const int* rows_prob, const float* alpha, const float* global_a, const float* global_b, u32* amax,
                           const float* prob, const Params::BiasType* bias, Params::DType* d, Params::CType* c, int capacity,
                           const float* norm, unsigned char* d_sf, Params::DType* d_col, unsigned char* d_col_sf) {
    using Extra = ScaledExtra<Params>;
    scaled_rows<Params>({a, b, sfa, sfb, left, right, progress}, offsets, counts, rows_in_use(capacity, rows_a, rows_prob), [&](ScaledRowSmem<Params>& smem) {
        return quantizing_or<GLUQuantEpilogue<Params, Extra>>(
            GLUEpilogue<Params, Extra, kCopiedPadding<Params>>{smem.stages, {alpha, global_a, global_b, amax}, prob, bias, d, c},
            QuantOutput<Params, Params::DType, Params::N / 2>{smem.groups, norm, d, d_sf, d_col, d_col_sf, capacity});
    });
}
