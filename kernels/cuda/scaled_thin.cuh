// The main loop of products over few rows, where copying the weights is all the work: scaled_pipeline.cuh for one warp row of
// 32 or 64 rows. The weights' codes go from the ring to registers, and each is decoded once, by the warp that multiplies it.
// A's are decoded by all threads, a block ahead, to one of two tiles of bf16, for all warps.
//
// A block is 32 bytes of codes of each row: 32 codes of 8 bits, 64 of 4. Lane 4g+q reads bytes [8q, 8q+8) of row g of a
// piece, of A as of B, so that both meet in the same order of the reduction whatever the order of decoded pairs, and all
// codes of a lane share their factor. A word of four factors lasts for kPeriod blocks; it lies in a ring of its own.
//
// A's tile of bf16 is units of 16 bytes, fragments as mma.sync takes them: unit (step, piece, lane) has two decoded pairs of
// row g and of row g+8 of the piece's 16.
//
// Thread blocks take units, a group's columns [TileN c, TileN (c+1)), a grid apart: all of its row tiles one after the other, so
// that equal groups are equal work, and weights that several row tiles read are read from memory once.
#pragma once
#include "epilogue.cuh"
#include "scaled_operand.cuh"

// Codes that are NaN or Inf, and factors that leave bf16's range, are only looked for on the way. A tile that has any is made
// again, element by element, in float (exact_tile).
//
// Spec: that of scaled_pipeline.cuh, of one operand. kBlock: codes of a block. kUp: what is decoded is 2^kUp times as large, as
// the other operand is as much smaller. kFolded: a code's two multiplications (decode.cuh) are one, so that the factor's range is less.
template <class Spec, int kThreads, bool kTailed, int kUp = 0, bool kFolded = false>
struct ThinCodes {
    using Format = CodeFormat<Spec::kCodes>;
    static constexpr int kBits = Format::kBits, kChunk = Format::kChunk, kBlock = 2 * kChunk;
    static constexpr int kStride = kThreads / 2, kPasses = ceil_div(Spec::kRows, kStride), kWords = ceil_div(Spec::kRows, kThreads);
    static constexpr int kSlotBytes = Spec::kRows * 32, kWordBytes = Spec::kRows * 4;
    static constexpr int kPeriod = 4 * Spec::kVec / kBlock;
    static constexpr int kPairs = 64 / kBits / 2;  // that a lane has of a row
    static constexpr bool kPowers = Spec::kFactors == kE8M0Factors;
    static constexpr u32 kMagnitudes = kBits == 8 ? 0x7f7f7f7fu : 0x77777777u;
    // The exponents of the least code that is not zero and of the largest, and what a folded factor is larger by.
    static constexpr int kLow = Spec::kCodes == kE4M3 ? -9 : Spec::kCodes == kE5M2 ? -16 : -1;
    static constexpr int kHigh = Spec::kCodes == kE4M3 ? 8 : Spec::kCodes == kE5M2 ? 15 : 2;
    static constexpr int kRaised = kUp + (kFolded ? 127 - Format::kBias : 0);
    // The e8m0 factors from kLeast to kMost give normal numbers, and values that are multiples of 2^-133 and below 2^128.
    static constexpr int kLeast = kPowers ? max_of(0, max_of(1 - kRaised, -6 - kLow - kUp)) : 0;
    static constexpr int kMost = min_of(254 - kRaised, 254 - kHigh - kUp);
    static_assert(!kPowers || (kLeast < 128 && kMost >= 128), "any_outside looks at bits 7 first");
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

    // Whether one of four factors is beyond kMost, or NaN.
    static __device__ __forceinline__ u32 any_large(u32 four) {
        return (kPowers ? ((four & 0x7f7f7f7fu) + (0xff - kMost) * 0x01010101u) & four : specials<kE4M3>(four)) & 0x80808080u;
    }
    // Whether one is below kLeast.
    static __device__ __forceinline__ u32 any_small(u32 four) {
        return kLeast == 0 ? 0 : ~(((four | 0x80808080u) - kLeast * 0x01010101u) | four) & 0x80808080u;
    }

    // The word of factors of row `row`.
    static __device__ __forceinline__ u32 factors_of_row(u32 words, int row) { return ptx::ld_shared4(words + row * 4); }
    // Which of them is this lane's; at: of the block among those of its word.
    static __device__ __forceinline__ int factor_index(int at) { return at * (kBlock / Spec::kVec) + threadIdx.x % 4 * (kBlock / 4) / Spec::kVec; }

    // The factor of this lane's codes, in both halves, as they are multiplied by it.
    static __device__ __forceinline__ u32 factor_of_row(u32 words, int row, int at) {
        const u32 four = factors_of_row(words, row);
        if constexpr (kPowers) {
            return ptx::pick_bytes(four, 0, 0x4040 + 0x0101 * factor_index(at)) * 128 + kRaised * 0x00800080;
        }
        constexpr u32 kBy = static_cast<u32>(127 + kRaised) << 7;
        return ptx::mul_bf16x2(byte_pair<kE4M3>(ptx::pick_bytes(four, 0, 0x0404 + 0x1010 * factor_index(at))), kBy * 0x00010001u);
    }

    // Decodes this lane's codes of row `row` from word kFirst of its two on. top is what see makes of them.
    template <int kFirst, int kCount>
    static __device__ __forceinline__ void read(u32 (&out)[kPairs / 2 * kCount], u32& top, u32 slot, int row, u32 factor) {
        u32 w[2];
        const u32 from = slot + row * 32 + threadIdx.x % 4 * 8;
        if constexpr (kCount == 2) {
            ptx::ld_shared8(w, from);
        } else {
            w[0] = ptx::ld_shared4(from + kFirst * 4);
        }
#pragma unroll
        for (int i = 0; i < kCount; i++) {
            if constexpr (kBits == 8) {
                out[2 * i] = byte_bits<Spec::kCodes>(w[i] << 8);
                out[2 * i + 1] = byte_bits<Spec::kCodes>(w[i]);
                see(top, out[2 * i]);
                see(top, out[2 * i + 1]);
            } else {
                repeat<0, 4>([&](auto k) { out[4 * i + decltype(k)::value] = nibble_bits<decltype(k)::value>(w[i]); });
            }
        }
#pragma unroll
        for (int i = 0; i < kPairs / 2 * kCount; i++) {
            out[i] = ptx::mul_bf16x2(kFolded ? out[i] : restored<Spec::kCodes>(out[i]), factor);
        }
    }

    // Whether this lane has a code that is not zero in row `row` of a block.
    static __device__ __forceinline__ bool any_code(u32 slot, int row) {
        u32 w[2];
        ptx::ld_shared8(w, slot + row * 32 + threadIdx.x % 4 * 8);
        return ((w[0] | w[1]) & kMagnitudes) != 0;
    }

    // Whether top has seen NaN or Inf.
    static __device__ __forceinline__ bool any_special(u32 top) {
        return kBits == 8 && ((kMaxima ? (top & 0x7fff7fffu) + kBelow : top) & 0x80008000u) != 0;
    }

private:
    static constexpr bool kMaxima = ptx::kArch >= 860;  // has maxima of magnitudes
    // What takes the moved bits of NaN and Inf to bit 15, and none below.
    static constexpr u32 kBelow = (0x8000 - (Spec::kCodes == kE4M3 ? 0x7f << 4 : 0x7c << 5)) * 0x00010001u;

    static __device__ __forceinline__ void see(u32& top, u32 pair) {
        if constexpr (kMaxima) {
            top = ptx::max_abs_bf16x2(top, pair);
        } else {
            top |= (pair & 0x7fff7fffu) + kBelow;
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

    static __device__ __forceinline__ u32 factor_of_row(u32, int, int) { return 0; }
    static __device__ __forceinline__ u32 factors_of_row(u32, int) { return 0; }
    static __device__ __forceinline__ u32 any_large(u32) { return 0; }
    static __device__ __forceinline__ bool any_special(u32) { return false; }

    template <int kFirst, int kCount>
    static __device__ __forceinline__ void read(u32 (&out)[kPairs / 2], u32&, u32 slot, int row, u32) {
        static_assert(kCount == 1, "as much as goes with a word of codes");
        constexpr int kWords = kPairs / 2, kApart = Codes::kBits == 8 ? 2 : 4;  // of the elements; the elements between those of a pair
        u32 w[kWords];
        if constexpr (kWords == 2) {
            ptx::ld_shared8(w, slot + place(row, threadIdx.x % 4) + kFirst * 8);
        } else {
            ptx::ld_shared16(w, slot + place(row, threadIdx.x % 4 * 2 + kFirst));
        }
#pragma unroll
        for (int k = 0; k < kWords; k++) {  // the pair's first element is k
            out[k] = ptx::pick_bytes(w[k / 2], w[(k + kApart) / 2], k % 2 == 0 ? 0x5410 : 0x7632);
        }
    }
};

template <class Spec>
struct ThinShape {
    static constexpr int kThreads = Shape<Spec>::kThreads;
    // Beside codes, B is smaller and A larger by a power that leaves room for both multiplications in one.
    static constexpr bool kFolded = Spec::A::kCodes != kNoCodes;
    static constexpr int kUp = !kFolded ? 0 : Spec::B::kFactors == kE4M3Factors ? 8 : 32;
    using B = ThinCodes<typename Spec::B, kThreads, Spec::kThinTailed, -kUp, kFolded>;
    template <class A, bool kPlain>
    struct Other {
        using Type = ThinCodes<A, kThreads, Spec::kThinTailed, kUp>;
    };
    template <class A>
    struct Other<A, true> {
        using Type = ThinPlain<A, B, kThreads, Spec::kThinTailed>;
    };
    using A = typename Other<typename Spec::A, Spec::A::kCodes == kNoCodes>::Type;
    // A slot: A, B; then the rings of factors, A's and B's words in each.
    static constexpr int kSlotBytes = A::kSlotBytes + B::kSlotBytes, kWordBytes = A::kWordBytes + B::kWordBytes;
    static constexpr int kBlock = B::kBlock, kPeriod = B::kPeriod;
    static constexpr int kSteps = B::kPairs / 2, kStepBytes = Spec::kTileM * 32, kTileBytes = kSteps * kStepBytes;
    static_assert(Spec::kTileM == Spec::kWarpM && kThreads % 32 == 0, "one warp row");
    static_assert(Spec::kStages >= 3, "a block is copied while another is awaited");
};

template <class Spec, int kGroups>
struct ThinSmem {
    using S = ThinShape<Spec>;
    alignas(128) unsigned char slots[2 * S::kTileBytes + Spec::kStages * (S::kSlotBytes + S::kWordBytes)];  // A's tiles, the rings
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
    int words;        // where the next words go
    u32 base;

    __device__ __forceinline__ ThinFeeder(const Work& w, u32 slots) : work(w), cursor{static_cast<int>(blockIdx.x), 0}, words(0), base(slots) { find(); }

    // Copies the next block to a slot.
    __device__ __forceinline__ void issue(int slot) {
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

// Where the block that is worked on is in the rings.
template <class Spec>
struct ThinPlace {
    using S = ThinShape<Spec>;

    int slot = 0, words = 0, at = 0;  // at: of the block among those of its word of factors

    // last: of the tile.
    __device__ __forceinline__ void advance(bool last) {
        slot = slot == Spec::kStages - 1 ? 0 : slot + 1;
        at = at == S::kPeriod - 1 || last ? 0 : at + 1;
        if (at == 0) {
            words = words == Spec::kStages - 1 ? 0 : words + 1;
        }
    }

    // In rings that begin at base.
    __device__ __forceinline__ u32 slot_at(u32 base) const { return base + slot * S::kSlotBytes; }
    __device__ __forceinline__ u32 words_at(u32 base) const { return base + Spec::kStages * S::kSlotBytes + words * S::kWordBytes; }
};

// What a thread has met in a tile.
struct ThinSeen {
    u32 top_a = 0, top_b = 0;  // ThinCodes::read
    u32 large = 0;             // not 0: a factor too large, or a small one of a code that is not zero
    u32 small = 0;             // not 0: in the word at hand is a factor of B that may be too small
};

// Looks at the words of factors at place p.
template <class Spec>
__device__ __forceinline__ void see_factors(ThinSeen& seen, u32 rings, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    seen.small = 0;
#pragma unroll
    for (int i = 0; i < S::B::kWords; i++) {
        const int row = threadIdx.x + i * S::kThreads;
        if (Spec::kTileN % S::kThreads == 0 || row < Spec::kTileN) {
            const u32 four = S::B::factors_of_row(p.words_at(rings) + S::A::kWordBytes, row);
            seen.large |= S::B::any_large(four);
            seen.small |= S::B::any_small(four);
        }
    }
    if (threadIdx.x < Spec::kTileM) {
        seen.large |= S::A::any_large(S::A::factors_of_row(p.words_at(rings), threadIdx.x));
    }
}

// Decodes the first kPieces times 16 rows of A's block at place p to the tile at `to`. All threads call it.
template <class Spec, int kPieces>
__device__ __forceinline__ void decode_thin(ThinSeen& seen, u32 to, u32 rings, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    constexpr int kHalf = S::kSteps / 2, kUnits = kPieces * 64;  // steps of a word of codes; words of two rows
#pragma unroll
    for (int pass = 0; pass < ceil_div(kUnits, S::kThreads); pass++) {
        const int unit = pass * S::kThreads + threadIdx.x, piece = unit / 64, lane = threadIdx.x % 32, row = piece * 16 + lane / 4;
        if (kUnits % S::kThreads != 0 && unit >= kUnits) {
            break;
        }
        const u32 upper = S::A::factor_of_row(p.words_at(rings), row, p.at), lower = S::A::factor_of_row(p.words_at(rings), row + 8, p.at);
        const auto decode = [&](auto word) {
            constexpr int kWord = decltype(word)::value;
            u32 one[2 * kHalf], two[2 * kHalf];
            S::A::template read<kWord, 1>(one, seen.top_a, p.slot_at(rings), row, upper);
            S::A::template read<kWord, 1>(two, seen.top_a, p.slot_at(rings), row + 8, lower);
#pragma unroll
            for (int i = 0; i < kHalf; i++) {
                const u32 fragment[4] = {one[2 * i], two[2 * i], one[2 * i + 1], two[2 * i + 1]};
                ptx::st_shared16(to + (kWord * kHalf + i) * S::kStepBytes + piece * 512 + lane * 16, fragment);
            }
        };
        if (unit / 32 % 2 == 0) {
            decode(Int<0>{});
        } else {
            decode(Int<1>{});
        }
    }
}

// The first kPieces times 16 rows of a tile by the block at place p: a is A's tile.
template <class Spec, int kPieces>
__device__ __forceinline__ void multiply_thin_block(Accumulators<Spec::kWarpM>& acc, ThinSeen& seen, u32 a, u32 rings, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    constexpr int kCount = S::B::kBits == 4 && kPieces > 2 ? 1 : 2;  // words of codes at once, as registers allow
    constexpr int kSteps = S::kSteps / 2 * kCount;
    const int column = threadIdx.x / 32 * 64 + threadIdx.x % 32 / 4;
    const u32 slot = p.slot_at(rings) + S::A::kSlotBytes, words = p.words_at(rings) + S::A::kWordBytes;
    u32 factors[4];  // of columns 2i and 2i+1
    repeat<0, 2 / kCount>([&](auto number) {
        constexpr int kFirst = decltype(number)::value;
        u32 left[kSteps][kPieces][4];
#pragma unroll
        for (int step = 0; step < kSteps; step++) {
#pragma unroll
            for (int i = 0; i < kPieces; i++) {
                ptx::ld_shared16(left[step][i], a + (kFirst * kSteps + step) * S::kStepBytes + i * 512 + threadIdx.x % 32 * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            u32 factor, b[2 * kSteps];
            if constexpr (kFirst == 0) {
                factor = S::B::factor_of_row(words, column + 8 * j, p.at);
                factors[j / 2] = j % 2 == 0 ? factor : ptx::pick_bytes(factors[j / 2], factor, 0x5410);
            } else {
                factor = ptx::pick_bytes(factors[j / 2], 0, j % 2 == 0 ? 0x1010 : 0x3232);
            }
            S::B::template read<kFirst, kCount>(b, seen.top_b, slot, column + 8 * j, factor);
#pragma unroll
            for (int step = 0; step < kSteps; step++) {
#pragma unroll
                for (int i = 0; i < kPieces; i++) {
                    ptx::mma_bf16(acc[i][j], left[step][i], b[2 * step], b[2 * step + 1]);
                }
            }
        }
    });
}

// Looks for codes beside factors that are too small for them, in the warp's columns of the block at place p.
template <class Spec>
__device__ __forceinline__ void see_small(ThinSeen& seen, u32 rings, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    const u32 slot = p.slot_at(rings) + S::A::kSlotBytes, words = p.words_at(rings) + S::A::kWordBytes;
#pragma unroll 1
    for (int j = 0; j < 8; j++) {
        const int column = threadIdx.x / 32 * 64 + threadIdx.x % 32 / 4 + 8 * j;
        const u32 factor = S::B::factors_of_row(words, column) >> 8 * S::B::factor_index(p.at) & 0xff;
        seen.large |= static_cast<int>(factor) < S::B::kLeast && S::B::any_code(slot, column);
    }
}

// A tile's accumulators again, each by itself, whatever its codes and factors are.
template <class Spec, class SourceA, class SourceB>
__device__ __forceinline__ void exact_tile(Accumulators<Spec::kWarpM>& acc, const SourceA& a, const SourceB& b, int depth) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x / 32 * 64 + threadIdx.x % 4 * 2;
#pragma unroll 1
    for (int at = 0; at < Spec::kWarpM / 2; at++) {  // acc[at / 8][at % 8]
        const int r = at / 8 * 16 + row, c = at % 8 * 8 + column;
        float sum[4] = {};
#pragma unroll 1
        for (int k = 0; k < depth; k++) {
            float left[2], right[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                left[i] = r + 8 * i < a.extent ? element<typename Spec::A>(a, r + 8 * i, k) : 0;
                right[i] = c + i < b.extent ? element<typename Spec::B>(b, c + i, k) : 0;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] = __fmaf_rn(left[i / 2], right[i % 2], sum[i]);  // a product alone could overflow
            }
        }
#pragma unroll
        for (int i = 0; i < Spec::kWarpM / 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[i / 8][i % 8][k] = i == at ? sum[k] : acc[i / 8][i % 8][k];
            }
        }
    }
}

// memory: A's tiles, then the rings.
template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_thin(unsigned char* memory, const Work& work, Epilogue& epilogue) {
    using S = ThinShape<Spec>;
    const u32 tiles = ptx::shared_address(memory), rings = tiles + 2 * S::kTileBytes;
    const int warp = threadIdx.x / 32;
    ThinPlace<Spec> place;
    u32 tile = tiles;
    ThinFeeder<Spec, Work, Epilogue::kPads> feeder(work, rings);
    for (int i = 0; i < Spec::kStages - 1; i++) {
        feeder.issue(i);
    }
    ThinCursor cursor{static_cast<int>(blockIdx.x), 0};
    typename Work::Tile t;
    for (ThinCursor next = cursor; work.template take<Epilogue::kPads>(next, t); next = cursor) {
        epilogue.begin(t, 0, warp);
        ThinSeen seen;
        Accumulators<Spec::kWarpM> acc;
        clear<Spec::kWarpM>(acc);
        const auto multiply = [&](auto pieces) {
            constexpr int kPieces = decltype(pieces)::value;
            const auto prepare = [&] {
                if (S::kPeriod == 1 || place.at == 0) {
                    see_factors<Spec>(seen, rings, place);
                }
                decode_thin<Spec, kPieces>(seen, tile, rings, place);
            };
            ptx::cp_async_wait<Spec::kStages - 2>();
            __syncthreads();  // the first block has arrived for all threads, and all have done with the tile before
            prepare();
#pragma unroll 1
            for (int left = t.depth; left > 0; left -= S::kBlock) {
                const bool last = left <= S::kBlock;
                ptx::cp_async_wait<Spec::kStages - 3>();
                // The next block has arrived, A's tile of this one is whole, and all have done with the one before.
                const bool small = S::B::kLeast != 0 ? __syncthreads_or(seen.small) : (__syncthreads(), false);
                feeder.issue(place.slot == 0 ? Spec::kStages - 1 : place.slot - 1);
                const ThinPlace<Spec> here = place;
                const u32 a = tile;
                place.advance(last);
                tile = 2 * tiles + S::kTileBytes - tile;  // the other one
                if (!last) {
                    prepare();
                }
                multiply_thin_block<Spec, kPieces>(acc, seen, a, rings, here);
                if constexpr (S::B::kLeast != 0) {
                    if (small) {
                        see_small<Spec>(seen, rings, here);
                    }
                }
            }
        };
        if (Spec::kWarpM > 32 && t.rows > 32) {
            multiply(Int<Spec::kWarpM / 16>{});
        } else if (t.rows > 16) {
            multiply(Int<2>{});
        } else if (t.rows > 0) {
            multiply(Int<1>{});
        }
        if (__syncthreads_or(seen.large != 0 || S::A::any_special(seen.top_a) || S::B::any_special(seen.top_b))) {
            exact_tile<Spec>(acc, work.a(t), work.b(t), t.depth);
        }
        work.template take<Epilogue::kPads>(cursor, t);  // again: meanwhile it would take registers
        epilogue(t, 0, warp, acc);
    }
    ptx::cp_async_wait<0>();
}
