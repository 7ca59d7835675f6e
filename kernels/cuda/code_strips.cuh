// Decodes rows of codes with factors along them to bf16 in device memory, laid out as the codes are: for products of so many rows that
// their main loop would decode each code over and over.
//
//   out = code * factor
//
// A warp takes a strip of rows and needs nobody else. Values that bf16 does not hold are found: codes that are not zero beside a factor
// below CodeFormat::kLeastFactor.
#pragma once
#include "decode.cuh"

// Rows of codes, one after the other in memory, and where their values go.
struct Strip {
    const unsigned char* codes;
    bf16* out;
    int rows;
    const unsigned char* factors;  // of the first row
};

// The work of a warp: a ring of kSlots steps of kTurns times 256 codes in shared memory, which copies fill ahead.
//
// Of each four codes of 8 bits, and each eight of 4, the values are in another order, which takes fewer instructions: the same in both
// operands of a product, which sums over them.
//
// P, the constants: CodesB, Format, Vec, K, the codes of a row, a multiple of 8.
template <class P, int kTurns, int kSlots>
struct StripDecoder {
    using Format = CodeFormat<P::CodesB>;
    static constexpr int kChunk = 8, kBytes = Format::kBits;                   // codes of a lane at once, and the bytes that they are
    static constexpr int kSpan = 4 * P::Vec, kWords = ceil_div(P::K, kSpan);   // codes of a word of factors; words of a row
    static constexpr int kStep = kTurns * 32 * kChunk, kStepWords = kStep / kSpan;
    static constexpr bool kWhole = P::K % kSpan == 0;                          // the codes of a strip's words follow one another
    static constexpr bool kBulk = ptx::kBulk && kWhole;                        // a step's values go to memory by one copy
    static constexpr int kLast = ceil_div(P::K, P::Vec) - 4 * (kWords - 1);    // factors in a row's last word, and their bits
    static constexpr u32 kLastFactors = ~0u >> (32 - 8 * kLast);
    static constexpr bool kExtremes = Format::kLeastFactor > 0;                // there can be values that bf16 does not hold
    static_assert(kStepWords <= 32, "a lane has at most one word of factors");

    struct Slot {
        alignas(16) unsigned char codes[kTurns][32][kBytes];
        u32 factors[32];

        // The word with the factor of the lane's chunk of a turn.
        __device__ __forceinline__ u32 factor(int turn) const { return factors[(turn * 32 + lane()) * kChunk / kSpan]; }
    };
    // A warp's shared memory. values: of two steps.
    struct Shared {
        alignas(128) bf16 values[kBulk ? 2 : 1][kBulk ? kStep : 8];
        Slot slots[kSlots];
    };

    Shared& shared;
    bool found = false;  // values that bf16 does not hold

    __device__ __forceinline__ explicit StripDecoder(Shared& s) : shared(s) {}

    // Starts the copies of a strip, when the one before it has been decoded.
    __device__ __forceinline__ void begin(const Strip& s) const {
        const int all = steps(s);
        __syncwarp();  // all lanes have read that one's factors
#pragma unroll 1
        for (int k = 0; k < kSlots - 1; k++) {
            if (k < all) {
                copy(s, k);
            }
            ptx::cp_async_commit();
        }
    }

    // Decodes the strip that has begun.
    __device__ __forceinline__ void decode(const Strip& s) {
        const int all = steps(s);
#pragma unroll 1
        for (int step = 0; step < all; step++) {
            ptx::cp_async_wait<kSlots - 2>();
            if constexpr (kBulk) {  // the step before the last has left
                ptx::cp_bulk_wait_read<1>();
            }
            __syncwarp();
            decode(s, step);
            if (step + kSlots - 1 < all) {
                copy(s, step + kSlots - 1);
            }
            ptx::cp_async_commit();
        }
    }

    static __device__ __forceinline__ constexpr i64 bytes(i64 codes) { return codes * Format::kBits / 8; }

    // Returns when the lane sees what it has decoded in memory, and may tell others.
    static __device__ __forceinline__ void finish() {
        if constexpr (kBulk) {
            ptx::cp_bulk_wait();
        }
    }

private:
    static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
    static __device__ __forceinline__ int steps(const Strip& s) { return ceil_div(s.rows * kWords, kStepWords); }

    // The lane's chunks of a step among the strip's codes.
    struct Place {
        int step, rows, first;

        __device__ __forceinline__ Place(int step, int rows) : step(step), rows(rows), first(step * kStep + lane() * kChunk) {}
        // That of a turn, from the first one on, and whether it exists.
        __device__ __forceinline__ int operator()(int turn, bool& exists) const {
            if constexpr (kWhole) {
                exists = turn * (32 * kChunk) < rows * P::K - first;
                return turn * (32 * kChunk);
            }
            const int word = step * kStepWords + (turn * 32 + lane()) * kChunk / kSpan, row = word / kWords;
            const int col = word % kWords * kSpan + lane() * kChunk % kSpan;
            exists = row < rows && col < P::K;
            return row * P::K + col - first;
        }
    };

    // Starts the copies of a step, of which only what exists is read.
    __device__ __forceinline__ void copy(const Strip& s, int step) const {
        const Slot& slot = shared.slots[step % kSlots];
        const Place place(step, s.rows);
        const u32 to = ptx::shared_address(slot.codes[0][lane()]);
        const unsigned char* from = s.codes + bytes(place.first);
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
            bool exists;
            const unsigned char* source = from + bytes(place(turn, exists));
            if constexpr (kBytes == 8) {
                ptx::cp_async8_zero(to + turn * 32 * kBytes, source, exists ? kBytes : 0);
            } else {
                ptx::cp_async4_zero(true, to + turn * 32 * kBytes, source, exists ? kBytes : 0);
            }
        }
        const int word = step * kStepWords + lane(), row = word / kWords;
        if (lane() < kStepWords && row < s.rows) {
            ptx::cp_async4_zero(true, ptx::shared_address(&slot.factors[lane()]), s.factors + static_cast<i64>(word % kWords) * 512 + factor_row(row, 0), 4);
        }
    }

    __device__ __forceinline__ void decode(const Strip& s, int step) {
        const Slot& slot = shared.slots[step % kSlots];
        bf16* values = shared.values[kBulk ? step % 2 : 0];
        u32 special = 0;
        const int word = step * kStepWords + lane();
        if (lane() < kStepWords && word / kWords < s.rows) {
            special = odd_factors(slot.factors[lane()]) & (word % kWords == kWords - 1 ? kLastFactors : ~0u);
        }
        const Place place(step, s.rows);
        const auto to = [&](int turn, int at) { return kBulk ? values + (turn * 32 + lane()) * kChunk : s.out + place.first + at; };
        u32 words[kTurns][kBytes / 4], factors[kTurns];
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
#pragma unroll
            for (int k = 0; k < kBytes / 4; k++) {
                words[turn][k] = reinterpret_cast<const u32*>(slot.codes[turn][lane()])[k];
            }
            factors[turn] = slot.factor(turn);
        }
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
            bool exists;
            const int at = place(turn, exists);
            Vec16 eight;
            special |= decode_chunk(eight.word, words[turn], factor_pair(factors[turn]));
            if (kBulk || exists) {
                *reinterpret_cast<Vec16*>(to(turn, at)) = eight;
            }
        }
        if (__any_sync(0xffffffffu, (special & 0x80808080u) != 0)) {
#pragma unroll 1
            for (int turn = 0; turn < kTurns; turn++) {
                bool exists;
                const int at = place(turn, exists);
                const u32 factor = code_of(slot.factor(turn));
                if (exists && is_special(slot.codes[turn][lane()], factor)) {
                    decode_each(to(turn, at), slot.codes[turn][lane()], factor_value<P::Format>(factor));
                }
            }
        }
        if constexpr (kBulk) {
            ptx::bulk_fence();
            __syncwarp();
            if (ptx::elect()) {
                const int left = s.rows * P::K - step * kStep;
                ptx::cp_bulk(s.out + step * kStep, ptx::shared_address(values), min_of(left, kStep) * static_cast<int>(sizeof(bf16)));
                ptx::cp_bulk_commit();
            }
        }
    }

    // The factor of the lane's chunk of a turn, as a code.
    static __device__ __forceinline__ u32 code_of(u32 word) { return ptx::pick_bytes(word, 0, 0x4440 | lane() * kChunk / P::Vec % 4); }

    // The same as two of bf16, if it is not odd.
    static __device__ __forceinline__ u32 factor_pair(u32 word) {
        if constexpr (P::Format == kE8M0Factors) {
            return code_of(word) * 0x00800080u;
        }
        return byte_pair<kE4M3>(code_of(word) * 0x01000100u);
    }

    // Bits 7 of the bytes are set where a factor is not a normal number of bf16, or so small that values may not be.
    static __device__ __forceinline__ u32 odd_factors(u32 four) {
        if constexpr (P::Format == kE8M0Factors) {
            return factors_below(four, max_of(1, Format::kLeastFactor)) | factors_below(~four, 1);
        }
        return specials<kE4M3>(four);
    }

    // Whether decode_chunk is wrong: codes or a factor that are no numbers, or codes that are not zero beside a factor that is odd.
    static __device__ __forceinline__ bool is_special(const unsigned char* codes, u32 factor) {
        u32 special = 0, magnitude = 0;
#pragma unroll
        for (int k = 0; k < kBytes / 4; k++) {
            const u32 word = reinterpret_cast<const u32*>(codes)[k];
            special |= specials<P::CodesB>(word);
            magnitude |= word & Format::kMagnitude * (kBytes == 4 ? 0x11111111u : 0x01010101u);
        }
        const bool odd = (odd_factors(factor * 0x01010101u) & 0x80) != 0, number = P::Format == kE8M0Factors && factor != 0xff;
        return (special & 0x80808080u) != 0 || (odd && (magnitude != 0 || !number));
    }

    // Decodes a chunk; codes that are no numbers, of which the result says whether there are any, wrongly.
    static __device__ __forceinline__ u32 decode_chunk(u32 (&eight)[4], const u32 (&words)[kBytes / 4], u32 factor) {
        u32 special = 0;
        if constexpr (kBytes == 4) {
            repeat<0, 4>([&](auto i) { eight[decltype(i)::value] = restored<kE2M1>(nibble_bits<decltype(i)::value>(words[0])); });
        } else {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                even_and_odd(eight[2 * k], eight[2 * k + 1], words[k]);
                special |= specials<P::CodesB>(words[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            eight[k] = ptx::mul_bf16x2(eight[k], factor);
        }
        return special;
    }

    // Codes 0 and 2, 1 and 3, of four of 8 bits.
    static __device__ __forceinline__ void even_and_odd(u32& even, u32& odd, u32 word) {
        even = byte_pair<P::CodesB>(word * 256);
        odd = byte_pair<P::CodesB>(word);
    }

    // The code whose value is number i of a chunk.
    static __device__ __forceinline__ int order(int i) { return kBytes == 4 ? i / 2 + i % 2 * 4 : (i & 4) + i % 2 * 2 + i / 2 % 2; }

    // Decodes a chunk again, code by code, and looks for values that bf16 does not hold.
    __device__ __forceinline__ void decode_each(bf16* out, const unsigned char* codes, float factor) {
#pragma unroll 1
        for (int i = 0; i < kChunk; i++) {
            const u32 code = code_at<P::CodesB>(codes, order(i));
            out[i] = from_float<bf16>(__fmul_rn(code_value<P::CodesB>(code), factor));
            found |= kExtremes && __float_as_uint(factor) >> 23 < Format::kLeastFactor && (code & Format::kMagnitude) != 0;
        }
    }
};
