// The main loop of products of block-scaled weights beside a plain A: pipeline.cuh with a step between copy and multiplication,
// which decodes a block of B while the one before it is multiplied.
//
// Spec: that of pipeline.cuh with T = bf16, kCodes and the rest of scaled_operand.cuh in B. kStages: slots of the ring. Work, Tile
// and Epilogue as there; b(tile) gives a CodeSource.
//
// While block i is multiplied, block i+1 goes from its slot to a tile of bf16, and one kStages-1 on is copied. Steps:
//   0-2   load the next step's fragments; copy quarters 1-3; multiply; decode a part
//   3     wait for the slots of block i+2, barrier, load the first fragments of block i+1, copy quarter 0, multiply
//
// What bf16 cannot hold (extreme factors beside fp8 codes: CodeFormat::kLeastFactor) is found before by scaled_extremes.cuh, which sets
// a flag. Then the kernel of floats runs (multiply_floats), else this one.
#pragma once
#include "epilogue.cuh"
#include "scaled_operand.cuh"

template <class Spec>
struct ScaledShape {
    using S = Shape<Spec>;
    using A = PlainLoader<typename Spec::A, S::kThreads, Spec::kTailed>;
    using B = CodeLoader<typename Spec::B, S::kThreads, Spec::kTailed>;
    // A slot: A, B, and where B's tile begins if its factors run along the outer axis, which thread 0 says.
    static constexpr int kColumnAt = A::kSlotBytes + B::kSlotBytes, kSlotBytes = ceil_div(kColumnAt + 16, 128) * 128;
    static constexpr bool kColumn = Spec::B::kAlongOuter;
    static_assert(Spec::kStages >= 3, "a block is decoded while another arrives");
};

// The shared memory of such a product: before it two tiles of B in bf16.
template <class Spec, int kGroups>
struct ScaledSmem {
    using S = ScaledShape<Spec>;
    alignas(128) unsigned char tiles[2 * S::B::kTileBytes];
    alignas(128) unsigned char slots[Spec::kStages * S::kSlotBytes];
    Stage stages[Shape<Spec>::kThreads / 32];
    Groups<kGroups> groups;
};

// That of the kernel of floats, which decodes into one slot.
template <class Spec, int kGroups>
using FloatSmem = ProductSmem<Spec, kGroups, 1>;

// Fills the ring, as Feeder does.
template <class Spec, class Work>
struct ScaledFeeder : TileReader<Work, typename ScaledShape<Spec>::A, typename ScaledShape<Spec>::B> {
    using S = ScaledShape<Spec>;

    u32 to, last;  // the slot that the next block goes to; the last one

    __device__ __forceinline__ ScaledFeeder(const Work& w, u32 slots)
        : ScaledFeeder::TileReader(w), to(slots), last(slots + (Spec::kStages - 1) * S::kSlotBytes) {}

    template <int kQuarter>
    __device__ __forceinline__ void issue() {
        this->a.template issue<kQuarter>(to, this->left);
        this->b.template issue<kQuarter>(to + S::A::kSlotBytes, this->left);
        if constexpr (kQuarter == 3) {
            ptx::cp_async_commit();
            if (S::kColumn && threadIdx.x == 0) {
                ptx::st_shared4(to + S::kColumnAt, this->b.column);
            }
            to = to == last ? last - (Spec::kStages - 1) * S::kSlotBytes : to + S::kSlotBytes;
            this->template advance<64>();
        }
    }

    __device__ __forceinline__ void issue_all() {
        repeat<0, 4>([&](auto quarter) { issue<decltype(quarter)::value>(); });
    }
};

// tiles: those of B in bf16; slots: the ring.
template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_scaled(unsigned char* tiles, unsigned char* slots, const Work& work, Epilogue& epilogue) {
    using S = ScaledShape<Spec>;
    using Base = Shape<Spec>;
    using Warp = WarpProduct<bf16, Spec::kWarpM, Spec::A::kMajor, Spec::B::kMajor>;
    const int warp = threadIdx.x / 32, warp_m = warp % Base::kWarpsM, warp_n = warp / Base::kWarpsM;
    const u32 base = ptx::shared_address(slots), decoded = ptx::shared_address(tiles);
    const Warp product(warp_m, warp_n);
    u32 slot = base, tile = decoded;  // of the block that is multiplied
    const auto after = [&](u32 s) { return s == base + (Spec::kStages - 1) * S::kSlotBytes ? base : s + S::kSlotBytes; };
    // A third of the block in slot from, which goes to the tile at to; half: block number is odd.
    const auto decode = [&](auto third, u32 from, u32 to, bool half) {
        constexpr int kThird = decltype(third)::value;
        const int column = S::kColumn ? ptx::ld_shared4(from + S::kColumnAt) : 0;
        S::B::template decode<kThird * S::B::kPasses / 3, (kThird + 1) * S::B::kPasses / 3>(from + S::A::kSlotBytes, to, half, column);
    };
    const auto other = [&](u32 t) { return t == decoded ? decoded + S::B::kTileBytes : decoded; };
    const auto freed = [&] {
        ptx::cp_async_wait<Spec::kStages - 3>();
        __syncthreads();
        slot = after(slot);
        tile = other(tile);
    };

    ScaledFeeder<Spec, Work> feeder(work, base);
    if (S::kColumn && threadIdx.x < Spec::kStages) {  // so that all blocks, also those that never come, are of some column
        ptx::st_shared4(base + threadIdx.x * S::kSlotBytes + S::kColumnAt, 0);
    }
    __syncthreads();
    for (int i = 0; i < Spec::kStages - 1; i++) {
        feeder.issue_all();
    }
    ptx::cp_async_wait<Spec::kStages - 3>();
    __syncthreads();
    repeat<0, 3>([&](auto third) { decode(third, slot, tile, false); });
    __syncthreads();
    feeder.template issue<0>();

    for (int index = work.first(); index < work.tiles(); index += work.step()) {
        const typename Work::Tile t = work.tile(index);
        const int blocks = ceil_div(t.depth, 64);
        const bool idle = warp_m * Spec::kWarpM >= t.rows;
        epilogue.begin(t, warp_m, warp_n);
        Accumulators<Spec::kWarpM> acc;
        clear<Spec::kWarpM>(acc);
        if (idle) {
            for (int block = 0; block < blocks; block++) {
                const bool half = block + 1 < blocks && block % 2 == 0;
                repeat<0, 3>([&](auto number) {
                    decode(number, after(slot), other(tile), half);
                    feeder.template issue<decltype(number)::value + 1>();
                });
                freed();
                feeder.template issue<0>();
            }
        } else {
            typename Warp::Fragments fragments[2];
            product.load(fragments[0], slot, tile, 0);
            for (int block = 0; block < blocks; block++) {
                const bool half = block + 1 < blocks && block % 2 == 0;  // the next block's
                repeat<0, 4>([&](auto number) {
                    constexpr int kStep = decltype(number)::value, kNext = (kStep + 1) % 4;
                    if constexpr (kStep == 3) {
                        freed();
                    }
                    product.load(fragments[kNext % 2], slot, tile, kNext);
                    feeder.template issue<kNext>();
                    Warp::multiply(acc, fragments[kStep % 2]);
                    if constexpr (kStep < 3) {  // when the step's fragments no longer take registers
                        decode(number, after(slot), other(tile), half);
                    }
                });
            }
        }
        epilogue(t, warp_m, warp_n, acc);
    }
    ptx::cp_async_wait<0>();
}

// The same of floats, decoded element by element, with plain multiply-adds: exact whatever the factors, and slow. slots: one
// tile of A and one of B, a row of 32 floats each.
template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_floats(unsigned char* slots, const Work& work, Epilogue& epilogue) {
    using Base = Shape<Spec>;
    using Warp = WarpProduct<float, Spec::kWarpM, kReduction, kReduction>;
    const int warp = threadIdx.x / 32, warp_m = warp % Base::kWarpsM, warp_n = warp / Base::kWarpsM;
    const u32 base = ptx::shared_address(slots);
    const Warp product(warp_m, warp_n);
    for (int index = work.first(); index < work.tiles(); index += work.step()) {
        const typename Work::Tile t = work.tile(index);
        epilogue.begin(t, warp_m, warp_n);
        Accumulators<Spec::kWarpM> acc;
        clear<Spec::kWarpM>(acc);
        for (int first = 0; first < t.depth; first += Base::kBlock) {
            __syncthreads();
            gather<typename Spec::A, Base::kThreads>(base, work.a(t), first, t.depth);
            gather<typename Spec::B, Base::kThreads>(base + Base::kTileBytesA, work.b(t), first, t.depth);
            __syncthreads();
            if (warp_m * Spec::kWarpM < t.rows) {
#pragma unroll 1
                for (int step = 0; step < Warp::kSteps; step++) {
                    product.multiply(acc, base, base + Base::kTileBytesA, step);
                }
            }
        }
        epilogue(t, warp_m, warp_n, acc);
    }
}
