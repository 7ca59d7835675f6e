#include "textflag.h"

// Packing: 16-wide copies and 8x8 transposes into float32, decoding bf16 and f16 on the way.
// Strides arrive in elements; R8 is the source's, R12 the destination's, both in bytes.

// LOAD8F32, LOAD8BF16 and LOAD8F16 bring 8 elements into a register as float32.
#define LOAD8F32(src, y) \
	VMOVUPS src, y

#define LOAD8BF16(src, y) \
	VPMOVZXWD src, y;     \
	VPSLLD    $16, y, y

#define LOAD8F16(src, y) \
	VCVTPH2PS src, y

#define COPY16(LOAD, half, srcShift) \
	MOVQ dst+0(FP), DI;     \
	MOVQ ldDst+8(FP), R12;  \
	MOVQ step+16(FP), R13;  \
	MOVQ src+24(FP), SI;    \
	MOVQ ldSrc+32(FP), R8;  \
	MOVQ rows+40(FP), CX;   \
	MOVQ pieces+48(FP), R9; \
	SHLQ $2, R12;           \
	SHLQ $2, R13;           \
	SHLQ $srcShift, R8;     \
row:                        \
	MOVQ SI, AX;            \
	MOVQ DI, BX;            \
	MOVQ R9, DX;            \
piece:                      \
	LOAD((AX), Y0);         \
	LOAD(half(AX), Y1);     \
	ADDQ $(2*half), AX;     \
	VMOVUPS Y0, (BX);       \
	VMOVUPS Y1, 32(BX);     \
	ADDQ R13, BX;           \
	DECQ DX;                \
	JNZ  piece;             \
	ADDQ R8, SI;            \
	ADDQ R12, DI;           \
	DECQ CX;                \
	JNZ  row;               \
	VZEROUPPER;             \
	RET

// PAIRS interleaves rows r0 r1 and r2 r3: each 128-bit lane of s0..s3 is one column of four values.
#define PAIRS(r0, r1, r2, r3, t0, t1, t2, t3) \
	VUNPCKLPS r1, r0, t0;       \
	VUNPCKHPS r1, r0, t1;       \
	VUNPCKLPS r3, r2, t2;       \
	VUNPCKHPS r3, r2, t3;       \
	VSHUFPS   $0x44, t2, t0, r0; \
	VSHUFPS   $0xEE, t2, t0, r1; \
	VSHUFPS   $0x44, t3, t1, r2; \
	VSHUFPS   $0xEE, t3, t1, r3

// OUT2 joins the upper rows' column (s0) with the lower rows' (s1): columns j and j+4 of the block.
#define OUT2(s0, s1, row0, row1) \
	VPERM2F128 $0x20, s1, s0, Y8; \
	VPERM2F128 $0x31, s1, s0, Y9; \
	VMOVUPS    Y8, row0;          \
	VMOVUPS    Y9, row1

// TRANS8 transposes n blocks of 8x8, side by side in the source, one below the other in the
// destination. R9 R10 R11 are 3, 5 and 7 source strides, R13 BX DX the same of the destination.
#define TRANS8(LOAD, blockBytes, srcShift) \
	MOVQ dst+0(FP), DI;        \
	MOVQ ldDst+8(FP), R12;     \
	MOVQ src+16(FP), SI;       \
	MOVQ ldSrc+24(FP), R8;     \
	MOVQ n+32(FP), CX;         \
	SHLQ $2, R12;              \
	SHLQ $srcShift, R8;        \
	LEAQ (R8)(R8*2), R9;       \
	LEAQ (R8)(R8*4), R10;      \
	LEAQ (R9)(R8*4), R11;      \
	LEAQ (R12)(R12*2), R13;    \
	LEAQ (R12)(R12*4), BX;     \
	LEAQ (R13)(R12*4), DX;     \
block:                         \
	LOAD((SI), Y0);            \
	LOAD((SI)(R8*1), Y1);      \
	LOAD((SI)(R8*2), Y2);      \
	LOAD((SI)(R9*1), Y3);      \
	LOAD((SI)(R8*4), Y4);      \
	LOAD((SI)(R10*1), Y5);     \
	LOAD((SI)(R9*2), Y6);      \
	LOAD((SI)(R11*1), Y7);     \
	PAIRS(Y0, Y1, Y2, Y3, Y8, Y9, Y10, Y11);      \
	PAIRS(Y4, Y5, Y6, Y7, Y12, Y13, Y14, Y15);    \
	OUT2(Y0, Y4, (DI), (DI)(R12*4));              \
	OUT2(Y1, Y5, (DI)(R12*1), (DI)(BX*1));        \
	OUT2(Y2, Y6, (DI)(R12*2), (DI)(R13*2));       \
	OUT2(Y3, Y7, (DI)(R13*1), (DI)(DX*1));        \
	ADDQ $blockBytes, SI;            \
	LEAQ (DI)(R12*8), DI;      \
	DECQ CX;                   \
	JNZ  block;                \
	VZEROUPPER;                \
	RET

// func copy16F32(dst *float32, ldDst, step int, src *float32, ldSrc, rows, pieces int)
TEXT ·copy16F32(SB), NOSPLIT, $0-56
	COPY16(LOAD8F32, 32, 2)

// func copy16BF16(dst *float32, ldDst, step int, src *uint16, ldSrc, rows, pieces int)
TEXT ·copy16BF16(SB), NOSPLIT, $0-56
	COPY16(LOAD8BF16, 16, 1)

// func copy16F16(dst *float32, ldDst, step int, src *uint16, ldSrc, rows, pieces int)
TEXT ·copy16F16(SB), NOSPLIT, $0-56
	COPY16(LOAD8F16, 16, 1)

// func trans8F32(dst *float32, ldDst int, src *float32, ldSrc int, n int)
TEXT ·trans8F32(SB), NOSPLIT, $0-40
	TRANS8(LOAD8F32, 32, 2)

// func trans8BF16(dst *float32, ldDst int, src *uint16, ldSrc int, n int)
TEXT ·trans8BF16(SB), NOSPLIT, $0-40
	TRANS8(LOAD8BF16, 16, 1)

// func trans8F16(dst *float32, ldDst int, src *uint16, ldSrc int, n int)
TEXT ·trans8F16(SB), NOSPLIT, $0-40
	TRANS8(LOAD8F16, 16, 1)
