// Names that constants of Params may refer to: every stub includes this first.
#pragma once

struct bf16;  // numeric.cuh
struct f16;
struct e4m3;  // formats.cuh
struct e5m2;
struct e2m1;
struct e8m0;

// Which axis of an operand of a matrix product is contiguous in memory.
enum Major {
    kReduction,  // the axis that is summed over
    kOuter,      // the other one
};

// The order of gate and up columns (nodes.Layout).
enum GLULayout {
    kInterleaved32,  // blocks of 32 gate, 32 up
    kConcat,         // all gate, then all up
    kPairs,          // gate and up alternate
};

// Where the norm of Quantize comes from.
enum NormKind {
    kNormOne,    // it is 1
    kNormConst,  // given
    kNormScale,  // one over a global scale
    kNormAuto,   // 448*6 over the largest finite magnitude
};

// How the elements of an operand of a matrix product are stored: as they are, or as codes with a factor a block.
enum CodeKind {
    kNoCodes,
    kE4M3,
    kE5M2,
    kE2M1,  // two a byte
};

// The format of the factors.
enum FactorKind {
    kE8M0Factors,
    kE4M3Factors,
};
