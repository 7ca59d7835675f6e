// The main loop of products of block-scaled operands, and of block-scaled weights beside a plain A: pipeline.cuh with a step
// between copy and multiplication, which decodes a block while the one before it is multiplied.
//
// Spec: that of pipeline.cuh with T = bf16, kCodes and the rest of scaled_operand.cuh in A and B. kStages: slots of the ring. Work,
// Tile and Epilogue as there; a(tile) and b(tile) give a CodeSource for codes.
//
// While block i is multiplied, block i+1 goes from its slot to the tiles of bf16, and a block kAhead on is copied. Steps:
//   0-2   load the next step's fragments; copy quarters 1-3; multiply; decode a part
//   3     wait for the slots of block i+2, barrier, load the first fragments of block i+1, copy quarter 0, multiply
// A slot of codes is free once it is decoded; one of a plain operand only when it is multiplied, so that copies then are one
// block less ahead.
//
// What bf16 cannot hold (extreme factors beside fp8 codes: CodeFormat::kLeastFactor) is found before by scaled_extremes.cuh,
// which sets a flag. Then the kernel of floats runs (multiply_decoded), else this one: an accumulator, or a maximum, cannot be
// made twice.
#pragma once
#include "epilogue.cuh"
#include "scaled_operand.cuh"

template <class Spec>
struct ScaledShape {
    using S = Shape<Spec>;
    using A = ScaledLoader<typename Spec::A, S::kThreads, Spec::kTailed>;
    using B = ScaledLoader<typename Spec::B, S::kThreads, Spec::kTailed>;
    static constexpr bool kPlain = A::kTileBytes == 0 || B::kTileBytes == 0;
    static constexpr int kAhead = kPlain ? Spec::kStages - 1 : Spec::kStages;
    static constexpr int kTilesBytes = 2 * (A::kTileBytes + B::kTileBytes);
    // A slot: A, B, and what thread 0 says about the block.
    static constexpr int kAboutAt = A::kSlotBytes + B::kSlotBytes, kSlotBytes = ceil_div(kAboutAt + 16, 128) * 128;
    static constexpr bool kAbout = Spec::A::kOdd || Spec::B::kOdd || Spec::B::kAlongOuter;
    static_assert(kAhead >= 2, "a block is decoded while another arrives");
    static_assert(!Spec::A::kAlongOuter, "what is said of columns is B's");
};

// The shared memory of such a product: before it the tiles of bf16. The kernel of floats decodes into one slot, without a ring.
template <class Spec, int kGroups, class T = typename Spec::T>
struct ScaledSmem {
    using S = ScaledShape<Spec>;
    alignas(128) unsigned char tiles[S::kTilesBytes];
    alignas(128) unsigned char slots[Spec::kStages * S::kSlotBytes];
    Stage stages[Shape<Spec>::kThreads / 32];
    Groups<kGroups> groups;
};
template <class Spec, int kGroups>
struct ScaledSmem<Spec, kGroups, float> : ProductSmem<Spec, kGroups, 1> {};

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
            if (S::kAbout && threadIdx.x == 0) {
                ptx::st_shared4(to + S::kAboutAt, this->left);
                ptx::st_shared4(to + S::kAboutAt + 4, this->b.column);
            }
            to = to == last ? last - (Spec::kStages - 1) * S::kSlotBytes : to + S::kSlotBytes;
            this->template advance<64>();
        }
    }

    __device__ __forceinline__ void issue_all() {
        repeat<0, 4>([&](auto quarter) { issue<decltype(quarter)::value>(); });
    }
};

// tiles: those of bf16; slots: the ring.
template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_scaled(unsigned char* tiles, unsigned char* slots, const Work& work, Epilogue& epilogue) {
    using S = ScaledShape<Spec>;
    using Base = Shape<Spec>;
    using Warp = WarpProduct<bf16, Spec::kWarpM, Spec::A::kMajor, Spec::B::kMajor>;
    constexpr int kTileBytes = S::A::kTileBytes + S::B::kTileBytes;
    const int warp = threadIdx.x / 32, warp_m = warp % Base::kWarpsM, warp_n = warp / Base::kWarpsM;
    const u32 base = ptx::shared_address(slots), decoded = ptx::shared_address(tiles);
    const Warp product(warp_m, warp_n);
    u32 slot = base, tile = decoded;  // of the block that is multiplied
    const auto after = [&](u32 s) { return s == base + (Spec::kStages - 1) * S::kSlotBytes ? base : s + S::kSlotBytes; };
    const auto left_of = [&] { return S::A::kTileBytes != 0 ? tile : slot; };
    const auto right_of = [&] { return S::B::kTileBytes != 0 ? tile + S::A::kTileBytes : slot + S::A::kSlotBytes; };
    // A third of the block in slot from, which goes to the tiles at to; half: block number is odd.
    const auto decode = [&](auto third, u32 from, u32 to, bool half) {
        constexpr int kThird = decltype(third)::value;
        const int left = S::kAbout ? ptx::ld_shared4(from + S::kAboutAt) : 0, column = S::kAbout ? ptx::ld_shared4(from + S::kAboutAt + 4) : 0;
        S::A::template decode<kThird * S::A::kPasses / 3, (kThird + 1) * S::A::kPasses / 3>(from, to, half, column, left);
        S::B::template decode<kThird * S::B::kPasses / 3, (kThird + 1) * S::B::kPasses / 3>(from + S::A::kSlotBytes, to + S::A::kTileBytes, half, column, left);
    };
    const auto freed = [&] {
        ptx::cp_async_wait<S::kAhead - 2>();
        __syncthreads();
        slot = after(slot);
        tile = decoded + (tile == decoded ? kTileBytes : 0);
    };

    ScaledFeeder<Spec, Work> feeder(work, base);
    if (S::kAbout && threadIdx.x < Spec::kStages) {  // so that all blocks, also those that never come, are of some column
        ptx::st_shared4(base + threadIdx.x * S::kSlotBytes + S::kAboutAt + 4, 0);
    }
    __syncthreads();
    for (int i = 0; i < S::kAhead; i++) {
        feeder.issue_all();
    }
    ptx::cp_async_wait<S::kAhead - 2>();
    __syncthreads();
    repeat<0, 3>([&](auto third) { decode(third, slot, tile, false); });
    __syncthreads();
    feeder.template issue<0>();

    for (int index = blockIdx.x; index < work.tiles(); index += gridDim.x) {
        const typename Work::Tile t = work.tile(index);
        const int blocks = ceil_div(t.depth, 64);
        const bool idle = warp_m * Spec::kWarpM >= t.rows;
        epilogue.begin(t, warp_m, warp_n);
        Accumulators<Spec::kWarpM> acc;
#pragma unroll
        for (int i = 0; i < Spec::kWarpM / 16; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    acc[i][j][c] = 0;
                }
            }
        }
        if (idle) {
            for (int block = 0; block < blocks; block++) {
                const bool half = block + 1 < blocks && block % 2 == 0;
                repeat<0, 3>([&](auto number) {
                    decode(number, after(slot), decoded + (tile == decoded ? kTileBytes : 0), half);
                    feeder.template issue<decltype(number)::value + 1>();
                });
                freed();
                feeder.template issue<0>();
            }
        } else {
            typename Warp::Fragments fragments[2];
            product.load(fragments[0], left_of(), right_of(), 0);
            for (int block = 0; block < blocks; block++) {
                const bool half = block + 1 < blocks && block % 2 == 0;  // the next block's
                repeat<0, 4>([&](auto number) {
                    constexpr int kStep = decltype(number)::value, kNext = (kStep + 1) % 4;
                    if constexpr (kStep == 3) {
                        freed();
                    }
                    product.load(fragments[kNext % 2], left_of(), right_of(), kNext);
                    feeder.template issue<kNext>();
                    Warp::multiply(acc, fragments[kStep % 2]);
                    if constexpr (kStep < 3) {  // when the step's fragments no longer take registers
                        decode(number, after(slot), decoded + (tile == decoded ? kTileBytes : 0), half);
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
__device__ __forceinline__ void multiply_decoded(unsigned char* slots, const Work& work, Epilogue& epilogue) {
    using Base = Shape<Spec>;
    using Warp = WarpProduct<float, Spec::kWarpM, kReduction, kReduction>;
    const int warp = threadIdx.x / 32, warp_m = warp % Base::kWarpsM, warp_n = warp / Base::kWarpsM;
    const u32 base = ptx::shared_address(slots);
    const Warp product(warp_m, warp_n);
    for (int index = blockIdx.x; index < work.tiles(); index += gridDim.x) {
        const typename Work::Tile t = work.tile(index);
        epilogue.begin(t, warp_m, warp_n);
        Accumulators<Spec::kWarpM> acc;
#pragma unroll
        for (int i = 0; i < Spec::kWarpM / 16; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    acc[i][j][c] = 0;
                }
            }
        }
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

// The one that goes with Spec::T, over the shared memory that it takes.
template <class Spec, class Smem, class Work, class Epilogue>
__device__ __forceinline__ void multiply_codes(Smem& smem, const Work& work, Epilogue& epilogue) {
    if constexpr (sizeof(typename Spec::T) == 4) {
        multiply_decoded<Spec>(smem.slots, work, epilogue);
    } else {
        multiply_scaled<Spec>(smem.tiles, smem.slots, work, epilogue);
    }
}
