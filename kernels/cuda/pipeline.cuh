// The main loop of every matrix product: persistent thread blocks, each of which takes tiles step() apart; a ring of
// kStages slots in shared memory that cp.async fills ahead, across the borders of tiles, so that an epilogue runs while the
// next tile's operands arrive.
//
// Spec: T; kTileM, kTileN; kWarpM, the rows of a warp, whose columns are 64; kStages; kTailed; A and B, as Loader wants them.
// Work: int tiles(); Tile tile(int); Source<T> a(tile), b(tile); first, step and await, as ReadyWork has them. Tile: int depth, the length of
// the reduction, 0 for none; int rows, those that need a product. Every warp calls epilogue.begin(tile, warp_m, warp_n) before the
// product and epilogue(tile, warp_m, warp_n, accumulators) after it.
//
// Every warp copies and multiplies. One block of the reduction, in four steps (with fragments, which are loaded a step ahead):
//   steps 0-2   load the next step's fragments; copy quarters 1-3 of the block kStages-1 ahead; multiply
//   step 3      wait for the next block, barrier, load its first fragments, copy quarter 0 into the slot just freed; multiply
#pragma once
#include "mma_simt.cuh"

template <class Spec>
struct Shape {
    static constexpr int kWarpsM = Spec::kTileM / Spec::kWarpM, kWarpsN = Spec::kTileN / 64;
    static constexpr int kThreads = kWarpsM * kWarpsN * 32;
    static constexpr int kTileBytesA = Spec::kTileM * 128, kTileBytesB = Spec::kTileN * 128;
    static constexpr int kSlotBytes = kTileBytesA + kTileBytesB;
    static constexpr int kBlock = Depth<typename Spec::T>::kBlock;
    static_assert(Spec::kTileM % Spec::kWarpM == 0 && Spec::kTileN % 64 == 0 && Spec::kWarpM % 16 == 0, "tiles of whole warps");
    static_assert(Spec::kStages >= 2, "a slot is filled while another is read");
};

// Work whose operands are there when the kernel starts.
struct ReadyWork {
    // The thread block's first tile, and how far apart its tiles are.
    __device__ __forceinline__ int first() const { return blockIdx.x; }
    __device__ __forceinline__ int step() const { return gridDim.x; }
    // Returns when the operands of a tile may be copied.
    template <class Tile>
    __device__ __forceinline__ void await(const Tile&) const {}
};

// Where the copies of a thread block are: in the reduction of one of its tiles. A and B: start(source), advance().
template <class Work, class A, class B>
struct TileReader {
    const Work& work;
    A a;
    B b;
    int next, left;  // the tile after the current one; what remains of the current reduction, 0 when all work is done

    __device__ __forceinline__ explicit TileReader(const Work& w) : work(w), next(w.first()) { find(); }

    // Goes kBlock on, or to the next tile.
    template <int kBlock>
    __device__ __forceinline__ void advance() {
        if (left > kBlock) {
            left -= kBlock;
            a.advance();
            b.advance();
        } else if (left > 0) {
            find();
        }
    }

private:
    // Goes to this block's next tile that has a product.
    __device__ __forceinline__ void find() {
        left = 0;
        while (left == 0 && next < work.tiles()) {
            const typename Work::Tile t = work.tile(next);
            next += work.step();
            if (t.depth > 0) {
                work.await(t);
                left = t.depth;
                a.start(work.a(t));
                b.start(work.b(t));
            }
        }
    }
};

// Fills the ring. Quarters of a block are issued one by one, in order.
template <class Spec, class Work>
struct Feeder : TileReader<Work, Loader<typename Spec::A, Shape<Spec>::kThreads, Spec::kTailed>, Loader<typename Spec::B, Shape<Spec>::kThreads, Spec::kTailed>> {
    using S = Shape<Spec>;
    using LoaderA = Loader<typename Spec::A, S::kThreads, Spec::kTailed>;
    using LoaderB = Loader<typename Spec::B, S::kThreads, Spec::kTailed>;
    static_assert(LoaderA::kPasses % 4 == 0 && LoaderB::kPasses % 4 == 0, "quarters of whole passes");

    u32 last;        // the last slot
    u32 to_a, to_b;  // where this thread's first copies of the next block go

    __device__ __forceinline__ Feeder(const Work& w, u32 slots)
        : Feeder::TileReader(w), last(slots + (Spec::kStages - 1) * S::kSlotBytes), to_a(slots + LoaderA::place()),
          to_b(slots + S::kTileBytesA + LoaderB::place()) {}

    template <int kQuarter>
    __device__ __forceinline__ void issue() {
#pragma unroll
        for (int i = 0; i < LoaderA::kPasses / 4; i++) {
            this->a.copy(to_a, kQuarter * (LoaderA::kPasses / 4) + i, this->left);
        }
#pragma unroll
        for (int i = 0; i < LoaderB::kPasses / 4; i++) {
            this->b.copy(to_b, kQuarter * (LoaderB::kPasses / 4) + i, this->left);
        }
        if constexpr (kQuarter == 3) {
            ptx::cp_async_commit();
            const int by = to_a >= last ? -(Spec::kStages - 1) * S::kSlotBytes : S::kSlotBytes;
            to_a += by;
            to_b += by;
            this->template advance<S::kBlock>();
        }
    }

    __device__ __forceinline__ void issue_all() {
        repeat<0, 4>([&](auto quarter) { issue<decltype(quarter)::value>(); });
    }
};

template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_tiles(unsigned char* slots, const Work& work, Epilogue& epilogue) {
    using S = Shape<Spec>;
    using Warp = WarpProduct<typename Spec::T, Spec::kWarpM, Spec::A::kMajor, Spec::B::kMajor>;
    const int warp = threadIdx.x / 32, warp_m = warp % S::kWarpsM, warp_n = warp / S::kWarpsM;
    const u32 base = ptx::shared_address(slots);
    const Warp product(warp_m, warp_n);
    u32 slot = base;  // being read
    const auto freed = [&] {  // the next block has arrived for all threads, and all have done with this one
        ptx::cp_async_wait<Spec::kStages - 2>();
        __syncthreads();
        slot = slot == base + (Spec::kStages - 1) * S::kSlotBytes ? base : slot + S::kSlotBytes;
    };

    Feeder<Spec, Work> feeder(work, base);
    for (int i = 0; i < Spec::kStages - 1; i++) {
        feeder.issue_all();
    }
    ptx::cp_async_wait<Spec::kStages - 2>();
    __syncthreads();
    if constexpr (Warp::kFragments) {
        feeder.template issue<0>();
    } else {
        feeder.issue_all();
    }

    for (int index = work.first(); index < work.tiles(); index += work.step()) {
        const typename Work::Tile tile = work.tile(index);
        const int blocks = ceil_div(tile.depth, S::kBlock);
        const bool idle = warp_m * Spec::kWarpM >= tile.rows;
        epilogue.begin(tile, warp_m, warp_n);
        Accumulators<Spec::kWarpM> acc;
        clear<Spec::kWarpM>(acc);
        if constexpr (Warp::kFragments) {
            if (idle) {
                for (int block = 0; block < blocks; block++) {
                    feeder.template issue<1>();
                    feeder.template issue<2>();
                    feeder.template issue<3>();
                    freed();
                    feeder.template issue<0>();
                }
            } else {
                typename Warp::Fragments fragments[2];
                product.load(fragments[0], slot, slot + S::kTileBytesA, 0);
                for (int block = 0; block < blocks; block++) {
                    repeat<0, 4>([&](auto number) {
                        constexpr int kStep = decltype(number)::value, kNext = (kStep + 1) % 4;
                        if constexpr (kStep == 3) {
                            freed();
                        }
                        product.load(fragments[kNext % 2], slot, slot + S::kTileBytesA, kNext);
                        feeder.template issue<kNext>();
                        Warp::multiply(acc, fragments[kStep % 2]);
                    });
                }
            }
        } else {
            for (int block = 0; block < blocks; block++) {
                if (!idle) {
#pragma unroll 1
                    for (int step = 0; step < Warp::kSteps; step++) {
                        product.multiply(acc, slot, slot + S::kTileBytesA, step);
                    }
                }
                freed();
                feeder.issue_all();
            }
        }
        epilogue(tile, warp_m, warp_n, acc);
    }
    ptx::cp_async_wait<0>();
}
