// The main loop of products over few rows, where copying the weights is all the work: scaled_pipeline.cuh for one warp row of
// 32 rows, without tiles of bf16. Codes go from the ring to registers, and each code of the weights is decoded once, by the
// warp that multiplies it; those of A, of which there are few, by every warp.
//
// A block is 32 bytes of codes of each row: 32 codes of 8 bits, 64 of 4. Lane 4g+q reads bytes [8q, 8q+8) of row g of a
// piece, of A as of B, so that both meet in the same order of the reduction whatever the order of decoded pairs, and all
// codes of a lane share their factor. A word of four factors lasts for kPeriod blocks; it lies in a ring of its own.
//
// Thread blocks take units, a group's columns [TileN c, TileN (c+1)), a grid apart: all of its row tiles one after the other, so
// that equal groups are equal work, and weights that several row tiles read are read from memory once.
#pragma once
#include "epilogue.cuh"
#include "scaled_operand.cuh"

// NaN codes and NaN factors make all of a row or a column NaN, whatever they meet; they are counted beside the decoding, and
// made up for once a tile. Only e5m2, which has Inf, is put right on the way.
//
// Spec: that of scaled_pipeline.cuh, of one operand. kBlock: codes of a block. kFolded: a code's two multiplications (decode.cuh)
// are one, with factors that are kFold, a bf16, times as large; without, kFold, unless 0, is only that.
template <class Spec, int kThreads, bool kTailed, bool kFolded = false, u32 kFold = 0>
struct ThinCodes {
    using Format = CodeFormat<Spec::kCodes>;
    static constexpr int kBits = Format::kBits, kChunk = Format::kChunk, kBlock = 2 * kChunk;
    static constexpr int kStride = kThreads / 2, kPasses = ceil_div(Spec::kRows, kStride), kWords = ceil_div(Spec::kRows, kThreads);
    static constexpr int kSlotBytes = Spec::kRows * 32, kWordBytes = Spec::kRows * 4;
    static constexpr int kPeriod = 4 * Spec::kVec / kBlock;
    static constexpr int kPairs = 64 / kBits / 2;  // that a lane has of a row
    static constexpr bool kInf = Spec::kCodes == kE5M2;
    static_assert(Spec::kMajor == kReduction && !Spec::kAlongOuter && kStride % 64 == 0 && kPeriod >= 1, "rows of the reduction");

    // Thread i's rows i and i+kThreads: tiles begin at a multiple of 128 rows, so that words of rows 128 apart are so as well.
    static constexpr bool kEven = Spec::kUpRow == 0 && kThreads % 128 == 0;
    static constexpr int kPointers = kEven ? 1 : kWords;
    static constexpr int kBetween = kThreads / 128 * ceil_div(static_cast<int>(Spec::kLd), 4 * Spec::kVec) * 512;

    const unsigned char* from;
    const unsigned char* factors[kPointers];
    int extent;

    static __device__ __forceinline__ constexpr i64 bytes(i64 codes) { return codes * kBits / 8; }

    __device__ __forceinline__ void start(const CodeSource& s) {
        const int row = threadIdx.x / 2;
        from = s.codes + bytes(weight_row<Spec>(row) * Spec::kLd) + threadIdx.x % 2 * 16;
        extent = s.extent;
#pragma unroll
        for (int i = 0; i < kPointers; i++) {
            factors[i] = s.factors + factor_row(s.row + static_cast<int>(weight_row<Spec>(threadIdx.x + i * kThreads)), s.words);
        }
    }

    // Copies the block; left: what remains of the reduction, 0 for nothing to copy.
    __device__ __forceinline__ void issue(u32 slot, int left) const {
        int n = 16;
        if constexpr (kTailed) {
            n = static_cast<int>(bytes(clamp_of(left - static_cast<int>(threadIdx.x) % 2 * kChunk, 0, kChunk) + (kBits == 4)));
        }
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            const int row = threadIdx.x / 2 + pass * kStride;
            const bool mine = Spec::kRows % kStride == 0 || row < Spec::kRows;
            // What does not exist becomes zero: stale codes must not look like NaNs.
            ptx::cp_async16_zero(left > 0 && mine, slot + (pass * kThreads + threadIdx.x) * 16, from + bytes(weight_row<Spec>(pass * kStride) * Spec::kLd),
                                 Spec::kFull || row < extent ? n : 0);
        }
    }

    // Copies the words of factors of the kPeriod blocks from this one on.
    __device__ __forceinline__ void issue_factors(u32 words, int left) const {
        const int n = kTailed ? clamp_of(ceil_div(left, Spec::kVec), 0, 4) : 4;  // factors past the end may be NaN
#pragma unroll
        for (int i = 0; i < kWords; i++) {
            const int row = threadIdx.x + i * kThreads;
            const bool mine = Spec::kRows % kThreads == 0 || row < Spec::kRows;
            ptx::cp_async4_zero(left > 0 && mine, words + row * 4, kEven ? factors[0] + i * kBetween : factors[i], Spec::kFull || row < extent ? n : 0);
        }
    }

    // last: the word of factors ends with this block.
    __device__ __forceinline__ void advance(bool last) {
        from += 32;
#pragma unroll
        for (int i = 0; i < kPointers; i++) {
            factors[i] += last ? 512 : 0;
        }
    }

    // This lane's codes of row `row`; at: of the block among those of its word. Bits 7 of special's bytes are set where codes or
    // factor are NaN and the values are not.
    static __device__ __forceinline__ void read(u32 (&out)[kPairs], u32& special, u32 slot, u32 words, int row, int at) {
        const int q = threadIdx.x % 4;
        u32 w[2];
        ptx::ld_shared8(w, slot + row * 32 + q * 8);
        const u32 four = ptx::ld_shared4(words + row * 4);
        const int block = at * (kBlock / Spec::kVec) + q * (kBlock / 4) / Spec::kVec;
        u32 factor;
        if constexpr (kBits == 8) {
            // Factor 0 is left 0 here: its codes are zeros, or another kernel runs (scaled_pipeline.cuh).
            factor = ptx::pick_bytes(four, 0, 0x4040 + 0x0101 * block) << 7;
            special |= (factor + 0x00800080u) & 0x80008000u;
        } else if constexpr (Spec::kFactors == kE4M3Factors) {
            const u32 codes = ptx::pick_bytes(four, 0, 0x0404 + 0x1010 * block);
            factor = byte_pair<kE4M3>(codes);
            special |= specials<kE4M3>(codes);
        } else {
            factor = factor_pair<Spec::kFactors>(four >> 8 * block & 0xff);
        }
        if constexpr (kFold != 0) {
            factor = ptx::mul_bf16x2(factor, kFold * 0x00010001u);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (kBits == 8) {
                out[2 * i] = byte_bits<Spec::kCodes>(w[i] << 8);
                out[2 * i + 1] = byte_bits<Spec::kCodes>(w[i]);
                special |= kInf ? 0 : specials<Spec::kCodes>(w[i]);
            } else {
                repeat<0, 4>([&](auto k) { out[4 * i + decltype(k)::value] = nibble_bits<decltype(k)::value>(w[i]); });
            }
        }
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            out[i] = ptx::mul_bf16x2(kFolded ? out[i] : restored<Spec::kCodes>(out[i]), factor);
        }
        if constexpr (kInf) {
            if (((specials<Spec::kCodes>(w[0]) | specials<Spec::kCodes>(w[1])) & 0x80808080u) != 0) {
                restore(out, w);
            }
        }
    }

private:
    // Puts Inf and NaN where codes are.
    static __device__ __forceinline__ void restore(u32 (&out)[kPairs], const u32 (&w)[2]) {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            const u32 codes = i % 2 == 0 ? w[i / 2] << 8 : w[i / 2];
            const u32 where = (specials<Spec::kCodes>(codes) >> 15 & 0x00010001u) * 0xffff;
            out[i] = (out[i] & ~where) | (((codes & 0x80008000u) | 0x7f807f80u | (codes >> 3 & 0x00600060u)) & where);
        }
    }
};

// A plain A beside such codes: like names, the same order of the reduction.
template <class Spec, class Codes, int kThreads, bool kTailed>
struct ThinPlain {
    static constexpr int kBlock = Codes::kBlock, kPairs = Codes::kPairs, kPeriod = Codes::kPeriod;
    static constexpr int kLine = kBlock * 2, kChunks = kLine / 16, kStride = kThreads / kChunks, kPasses = ceil_div(Spec::kRows, kStride);
    static constexpr int kSlotBytes = Spec::kRows * kLine, kWordBytes = 0;
    static_assert(sizeof(typename Spec::T) == 2 && Spec::kRows % kStride == 0, "bf16, whole passes");

    const unsigned char* from;
    int extent;

    // Chunks of 128 bytes change place so that two rows' chunks, every other one, meet no bank twice.
    static __device__ __forceinline__ u32 place(int row, int chunk) { return row * kLine + ((kChunks == 8 ? chunk ^ (row & 7) : chunk) << 4); }

    __device__ __forceinline__ void start(const Source<typename Spec::T>& s) {
        from = reinterpret_cast<const unsigned char*>(s.first + threadIdx.x / kChunks * Spec::kLd) + threadIdx.x % kChunks * 16;
        extent = s.extent;
    }

    __device__ __forceinline__ void issue(u32 slot, int left) const {
        const int chunk = threadIdx.x % kChunks, n = kTailed ? clamp_of(left - chunk * 8, 0, 8) * 2 : 16;
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            const int row = threadIdx.x / kChunks + pass * kStride;
            ptx::cp_async16_zero(left > 0, slot + place(row, chunk), from + pass * kStride * Spec::kLd * 2, row < extent ? n : 0);
        }
    }

    __device__ __forceinline__ void issue_factors(u32, int) const {}
    __device__ __forceinline__ void advance(bool) { from += kLine; }

    static __device__ __forceinline__ void read(u32 (&out)[kPairs], u32&, u32 slot, u32, int row, int) {
        constexpr int kApart = Codes::kBits == 8 ? 2 : 4;  // of the codes of a decoded pair
        const int q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < kPairs / 4; i++) {
            u32 w[4];
            ptx::ld_shared16(w, slot + place(row, q * (kPairs / 4) + i));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int e = kApart == 4 ? k : k / 2 * 4 + k % 2;  // the pair's first element
                out[4 * i + k] = ptx::pick_bytes(w[e / 2], w[(e + kApart) / 2], e % 2 == 0 ? 0x5410 : 0x7632);
            }
        }
    }
};

template <class Spec>
struct ThinShape {
    static constexpr int kThreads = Shape<Spec>::kThreads;
    // e2m1 with factors e4m3: 2^-8 of the weights' value has room for both multiplications in one, and 2^8 of A's makes up for it.
    static constexpr bool kFolded = Spec::A::kCodes == kE2M1 && Spec::B::kFactors == kE4M3Factors;
    static constexpr u32 kFoldA = kFolded ? (127 + 8) << 7 : 0, kFoldB = kFolded ? CodeFormat<kE2M1>::kRestore - (8 << 7) : 0;
    using B = ThinCodes<typename Spec::B, kThreads, Spec::kThinTailed, kFolded, kFoldB>;
    template <class A, bool kPlain>
    struct Other {
        using Type = ThinCodes<A, kThreads, Spec::kThinTailed, false, kFoldA>;
    };
    template <class A>
    struct Other<A, true> {
        using Type = ThinPlain<A, B, kThreads, Spec::kThinTailed>;
    };
    using A = typename Other<typename Spec::A, Spec::A::kCodes == kNoCodes>::Type;
    // A slot: A, B; then the rings of factors, A's and B's words in each.
    static constexpr int kSlotBytes = A::kSlotBytes + B::kSlotBytes, kWordBytes = A::kWordBytes + B::kWordBytes;
    static constexpr int kBlock = B::kBlock, kPeriod = B::kPeriod;
    static_assert(Spec::kTileM == 32 && Spec::kWarpM == 32, "one warp row");
    static_assert(Spec::kStages >= 3, "a block is copied while another is awaited");
};

template <class Spec, int kGroups>
struct ThinSmem {
    using S = ThinShape<Spec>;
    alignas(128) unsigned char slots[Spec::kStages * (S::kSlotBytes + S::kWordBytes)];
    Stage stages[Shape<Spec>::kThreads / 32];
    Groups<kGroups> groups;
};

// Where a thread block is among its units' row tiles.
struct ThinCursor {
    int unit, row;
};

// Fills the ring. Work: bool take<kPads>(ThinCursor&, Tile&), the next tile; a(tile), b(tile).
template <class Spec, class Work, bool kPads>
struct ThinFeeder {
    using S = ThinShape<Spec>;

    const Work& work;
    typename S::A a;
    typename S::B b;
    ThinCursor cursor;
    int left, at;     // of the reduction; the block among those of a word of factors
    int slot, words;  // where the next block and the next words go
    u32 base;

    __device__ __forceinline__ ThinFeeder(const Work& w, u32 slots) : work(w), cursor{static_cast<int>(blockIdx.x), 0}, slot(0), words(0), base(slots) { find(); }

    __device__ __forceinline__ void issue() {
        const u32 to = base + slot * S::kSlotBytes;
        a.issue(to, left);
        b.issue(to + S::A::kSlotBytes, left);
        if (at == 0) {
            const u32 factors = base + Spec::kStages * S::kSlotBytes + words * S::kWordBytes;
            a.issue_factors(factors, left);
            b.issue_factors(factors + S::A::kWordBytes, left);
            words = words == Spec::kStages - 1 ? 0 : words + 1;
        }
        ptx::cp_async_commit();
        slot = slot == Spec::kStages - 1 ? 0 : slot + 1;
        if (left > S::kBlock) {
            const bool last = at == S::kPeriod - 1;
            left -= S::kBlock;
            at = last ? 0 : at + 1;
            a.advance(last);
            b.advance(last);
        } else if (left > 0) {
            find();
        }
    }

private:
    __device__ __forceinline__ void find() {
        typename Work::Tile t;
        left = at = 0;
        while (left == 0 && work.template take<kPads>(cursor, t)) {
            if (t.depth > 0) {
                left = t.depth;
                a.start(work.a(t));
                b.start(work.b(t));
            }
        }
    }
};

// Rows and columns of a warp's piece that hold a NaN: bit i of lane 4g+q stands for what it reads of row 8i+g, of column 8j+g.
struct ThinNaNs {
    u32 rows, columns;

    template <int kRows>
    __device__ __forceinline__ void put(Accumulators<kRows>& acc) const {
        const int q = threadIdx.x % 4;
        u32 r = rows, c = columns;
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
            r |= __shfl_xor_sync(0xffffffffu, r, d);
            c |= __shfl_xor_sync(0xffffffffu, c, d);
        }
        const u32 here[2] = {__shfl_sync(0xffffffffu, c, 8 * q), __shfl_sync(0xffffffffu, c, 8 * q + 4)};  // columns 2q, 2q+1
        if ((r | here[0] | here[1]) == 0) {
            return;
        }
#pragma unroll
        for (int i = 0; i < kRows / 16; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (((r >> (2 * i + k / 2) | here[k % 2] >> j) & 1) != 0) {
                        acc[i][j][k] = __uint_as_float(0x7fffffffu);
                    }
                }
            }
        }
    }
};

// One block of the first kPieces times 16 rows of a tile, in slot and words.
template <class Spec, int kPieces>
__device__ __forceinline__ void multiply_thin_block(Accumulators<Spec::kWarpM>& acc, ThinNaNs& nans, u32 slot, u32 words, int at) {
    using S = ThinShape<Spec>;
    constexpr int kSteps = S::B::kPairs / 2;
    const int g = threadIdx.x % 32 / 4, column = threadIdx.x / 32 * 64 + g;
    const auto read_a = [&](u32 (&out)[S::A::kPairs], u32& special, int i) { S::A::read(out, special, slot, words, 8 * i + g, at); };
    const auto read_b = [&](u32 (&out)[S::B::kPairs], u32& special, int j) {
        S::B::read(out, special, slot + S::A::kSlotBytes, words + S::A::kWordBytes, column + 8 * j, at);
    };
    u32 a[2 * kPieces][S::A::kPairs], special = 0;
#pragma unroll
    for (int i = 0; i < 2 * kPieces; i++) {
        read_a(a[i], special, i);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        u32 b[S::B::kPairs];
        read_b(b, special, j);
#pragma unroll
        for (int step = 0; step < kSteps; step++) {
#pragma unroll
            for (int i = 0; i < kPieces; i++) {
                const u32 left[4] = {a[2 * i][2 * step], a[2 * i + 1][2 * step], a[2 * i][2 * step + 1], a[2 * i + 1][2 * step + 1]};
                ptx::mma_bf16(acc[i][j], left, b[2 * step], b[2 * step + 1]);
            }
        }
    }
    if ((special & 0x80808080u) != 0) {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {  // which, again
            u32 out[S::A::kPairs], values[S::B::kPairs], row = 0, col = 0;
            if (i < 2 * kPieces) {
                read_a(out, row, i);
            }
            read_b(values, col, i);
            nans.rows |= (row & 0x80808080u) != 0 ? 1 << i : 0;
            nans.columns |= (col & 0x80808080u) != 0 ? 1 << i : 0;
        }
    }
}

template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_thin(unsigned char* slots, const Work& work, Epilogue& epilogue) {
    using S = ThinShape<Spec>;
    const u32 base = ptx::shared_address(slots);
    const int warp = threadIdx.x / 32;
    int slot = 0, words = 0;
    ThinFeeder<Spec, Work, Epilogue::kPads> feeder(work, base);
    for (int i = 0; i < Spec::kStages - 1; i++) {
        feeder.issue();
    }
    ThinCursor cursor{static_cast<int>(blockIdx.x), 0};
    typename Work::Tile t;
    for (ThinCursor next = cursor; work.template take<Epilogue::kPads>(next, t); next = cursor) {
        epilogue.begin(t, 0, warp);
        ThinNaNs nans{0, 0};
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
        const auto multiply = [&](auto pieces) {
            int at = 0;
#pragma unroll 1
            for (int left = t.depth; left > 0; left -= S::kBlock) {
                ptx::cp_async_wait<Spec::kStages - 2>();
                __syncthreads();  // the block has arrived for all threads, and all have done with the one before it
                feeder.issue();
                multiply_thin_block<Spec, decltype(pieces)::value>(acc, nans, base + slot * S::kSlotBytes, base + Spec::kStages * S::kSlotBytes + words * S::kWordBytes, at);
                slot = slot == Spec::kStages - 1 ? 0 : slot + 1;
                at = at == S::kPeriod - 1 ? 0 : at + 1;
                if (at == 0 || left <= S::kBlock) {
                    words = words == Spec::kStages - 1 ? 0 : words + 1;
                }
            }
        };
        if (t.rows > 16) {
            multiply(Int<2>{});
        } else {
            multiply(Int<1>{});
        }
        nans.put<Spec::kWarpM>(acc);
        work.template take<Epilogue::kPads>(cursor, t);  // again: meanwhile it would take registers
        epilogue(t, 0, warp, acc);
    }
    ptx::cp_async_wait<0>();
}
