// Gradient of grouped weights (contracts, section 8).
//
//   wgrad[e] = alpha[e] a[:, tokens of e] b[tokens of e, :] (+ wgrad[e])
//
// Tiles, warps and shared memory: group_product.cuh; M is hidden, N intermediate. An expert without tokens gets zeros, or is
// left alone when accumulating. Unit: offsets are kept multiples of it, so that a copy of 16 bytes is aligned.
#include "group_product.cuh"

extern "C" __global__ void __launch_bounds__(Shape<GroupSpec<Params>>::kThreads, Params::Blocks)
    wgrad(const Params::OperandType* a, const Params::OperandType* b, const int* offsets, const int* counts, const int* rows_a,
          const int* rows_b, const float* alpha, void* out, int capacity) {
    using Smem = GroupSmem<Params>;
    static_assert(sizeof(Smem) == Params::SharedBytes, "the launch gives SharedBytes of shared memory");
    Smem& smem = *reinterpret_cast<Smem*>(ptx::dynamic_shared());
    const int limit = rows_in_use(capacity, rows_a, rows_b);
    smem.groups.read<1>(offsets, counts, limit, Params::Unit);
    const GroupWork<Params> work{{}, smem.groups, a, b, capacity};
    GroupEpilogue<Params> epilogue{smem.stages, alpha, nullptr, out};
    multiply_tiles<GroupSpec<Params>>(smem.slots, work, epilogue);
}
