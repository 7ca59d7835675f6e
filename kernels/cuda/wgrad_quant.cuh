// Gradient of grouped weights from block-scaled operands (contracts, section 8).
//
//   wgrad[e] = alpha[e] global_a[e] global_b[e] a[:, tokens of e] b[tokens of e, :] (+ wgrad[e])
//
// Tiles, warps and shared memory: scaled_groups.cuh; M is hidden, N intermediate. An expert without tokens gets zeros, or is
// left alone when accumulating.
#include "scaled_groups.cuh"

extern "C" __global__ void __launch_bounds__(Shape<ScaledGroupSpec<Params>>::kThreads, Params::Blocks)
    wgrad_quant(const unsigned char* a, const unsigned char* b, const unsigned char* sfa, const unsigned char* sfb, const u32* extreme, const int* offsets,
                const int* counts, const int* rows_a, const int* rows_b, const float* alpha, const float* global_a, const float* global_b, void* out,
                int capacity) {
    using Smem = ScaledGroupSmem<Params>;
    static_assert(sizeof(Smem) == Params::SharedBytes, "the launch gives SharedBytes of shared memory");
    if (!wanted<Params>(extreme)) {
        return;
    }
    Smem& smem = *reinterpret_cast<Smem*>(ptx::dynamic_shared());
    smem.groups.read<1>(offsets, counts, rows_in_use(capacity, rows_a, rows_b), Params::Align);
    GroupEpilogue<Params, ScaledExtra<Params, true>> epilogue{smem.stages, {alpha, global_a, global_b, nullptr}, nullptr, out};
    if constexpr (Params::CodesA == kNoCodes) {
        using T = Params::OperandType;
        const GroupWork<Params> work{{}, smem.groups, reinterpret_cast<const T*>(a), reinterpret_cast<const T*>(b), capacity};
        multiply_tiles<GroupSpec<Params>>(smem.slots, work, epilogue);
    } else {
        const ScaledGroupWork<Params> work{{}, {{}, smem.groups, nullptr, nullptr, capacity}, a, b, sfa, sfb};
        multiply_floats<ScaledGroupSpec<Params>>(smem.slots, work, epilogue);
    }
}
