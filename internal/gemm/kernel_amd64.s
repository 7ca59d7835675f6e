#include "textflag.h"

// Microkernels: a tile of C, 6x16 or 4x16, held in registers over the whole k loop.
//
//	acc[i][j] = fma(A[i][p], B[p][j], acc[i][j])   p ascending, from acc = 0
//	C[i][j]   = alpha*acc, or fma(alpha, acc, C[i][j]) when add is set
//
// An element sees the same operations in both kernels. Rows of A are contiguous and rsA apart, those
// of B hold 16 floats and are rsB apart. Registers: Y0 Y1 row of B, Y2 Y3 broadcasts of A, Y4-Y15 acc.
//
//	AX a   R8 rsA   R9 3*rsA   R10 5*rsA     BX b   R12 rsB     strides in bytes
//	DX c   SI ldc   R13 3*ldc  DI row 4 of C           CX steps left

#define LOADB \
	VMOVUPS (BX), Y0;   \
	VMOVUPS 32(BX), Y1; \
	ADDQ    R12, BX

// ROWS2 adds the products of two rows of A to their accumulators.
#define ROWS2(a0, a1, acc00, acc01, acc10, acc11) \
	VBROADCASTSS a0, Y2;         \
	VBROADCASTSS a1, Y3;         \
	VFMADD231PS  Y0, Y2, acc00;  \
	VFMADD231PS  Y1, Y2, acc01;  \
	VFMADD231PS  Y0, Y3, acc10;  \
	VFMADD231PS  Y1, Y3, acc11

// STEP4 and STEP6 take one step of k, off bytes after AX.
#define STEP4(off) \
	LOADB; \
	ROWS2(off(AX), off(AX)(R8*1), Y4, Y5, Y6, Y7);       \
	ROWS2(off(AX)(R8*2), off(AX)(R9*1), Y8, Y9, Y10, Y11)

#define STEP6(off) \
	STEP4(off); \
	ROWS2(off(AX)(R8*4), off(AX)(R10*1), Y12, Y13, Y14, Y15)

// STORE and ADDTO finish one row of C; Y0 holds alpha in all lanes.
#define STORE(row0, row1, acc0, acc1) \
	VMULPS  Y0, acc0, acc0; \
	VMULPS  Y0, acc1, acc1; \
	VMOVUPS acc0, row0;     \
	VMOVUPS acc1, row1

#define ADDTO(row0, row1, acc0, acc1) \
	VFMADD213PS row0, Y0, acc0; \
	VFMADD213PS row1, Y0, acc1; \
	VMOVUPS     acc0, row0;     \
	VMOVUPS     acc1, row1

#define ARGS \
	MOVQ k+0(FP), CX;     \
	MOVQ a+8(FP), AX;     \
	MOVQ rsA+16(FP), R8;  \
	MOVQ b+24(FP), BX;    \
	MOVQ rsB+32(FP), R12; \
	MOVQ c+40(FP), DX;    \
	MOVQ ldc+48(FP), SI;  \
	SHLQ $2, R8;          \
	SHLQ $2, R12;         \
	SHLQ $2, SI;          \
	LEAQ (R8)(R8*2), R9;  \
	LEAQ (R8)(R8*4), R10; \
	LEAQ (SI)(SI*2), R13; \
	LEAQ (DX)(SI*4), DI

// ZERO4 clears the accumulators of rows 0 to 3 and fetches their part of C.
#define ZERO4 \
	PREFETCHT0 (DX);          \
	PREFETCHT0 (DX)(SI*1);    \
	PREFETCHT0 (DX)(SI*2);    \
	PREFETCHT0 (DX)(R13*1);   \
	VXORPS Y4, Y4, Y4;        \
	VXORPS Y5, Y5, Y5;        \
	VXORPS Y6, Y6, Y6;        \
	VXORPS Y7, Y7, Y7;        \
	VXORPS Y8, Y8, Y8;        \
	VXORPS Y9, Y9, Y9;        \
	VXORPS Y10, Y10, Y10;     \
	VXORPS Y11, Y11, Y11

// func kernel6x16(k int, a *float32, rsA int, b *float32, rsB int, c *float32, ldc int, alpha float32, add bool)
TEXT ·kernel6x16(SB), NOSPLIT, $0-61
	ARGS
	ZERO4
	PREFETCHT0 (DI)
	PREFETCHT0 (DI)(SI*1)
	VXORPS Y12, Y12, Y12
	VXORPS Y13, Y13, Y13
	VXORPS Y14, Y14, Y14
	VXORPS Y15, Y15, Y15
	SUBQ   $4, CX
	JLT    rest6

	PCALIGN $32
loop6:
	STEP6(0)
	STEP6(4)
	STEP6(8)
	STEP6(12)
	ADDQ $16, AX
	SUBQ $4, CX
	JGE  loop6

rest6:
	ADDQ $4, CX
	JZ   done6

one6:
	STEP6(0)
	ADDQ $4, AX
	DECQ CX
	JNZ  one6

done6:
	VBROADCASTSS alpha+56(FP), Y0
	MOVBLZX      add+60(FP), AX
	TESTL        AX, AX
	JZ           store6
	ADDTO((DX), 32(DX), Y4, Y5)
	ADDTO((DX)(SI*1), 32(DX)(SI*1), Y6, Y7)
	ADDTO((DX)(SI*2), 32(DX)(SI*2), Y8, Y9)
	ADDTO((DX)(R13*1), 32(DX)(R13*1), Y10, Y11)
	ADDTO((DI), 32(DI), Y12, Y13)
	ADDTO((DI)(SI*1), 32(DI)(SI*1), Y14, Y15)
	VZEROUPPER
	RET

store6:
	STORE((DX), 32(DX), Y4, Y5)
	STORE((DX)(SI*1), 32(DX)(SI*1), Y6, Y7)
	STORE((DX)(SI*2), 32(DX)(SI*2), Y8, Y9)
	STORE((DX)(R13*1), 32(DX)(R13*1), Y10, Y11)
	STORE((DI), 32(DI), Y12, Y13)
	STORE((DI)(SI*1), 32(DI)(SI*1), Y14, Y15)
	VZEROUPPER
	RET

// func kernel4x16(k int, a *float32, rsA int, b *float32, rsB int, c *float32, ldc int, alpha float32, add bool)
TEXT ·kernel4x16(SB), NOSPLIT, $0-61
	ARGS
	ZERO4
	SUBQ $4, CX
	JLT  rest4

	PCALIGN $32
loop4:
	STEP4(0)
	STEP4(4)
	STEP4(8)
	STEP4(12)
	ADDQ $16, AX
	SUBQ $4, CX
	JGE  loop4

rest4:
	ADDQ $4, CX
	JZ   done4

one4:
	STEP4(0)
	ADDQ $4, AX
	DECQ CX
	JNZ  one4

done4:
	VBROADCASTSS alpha+56(FP), Y0
	MOVBLZX      add+60(FP), AX
	TESTL        AX, AX
	JZ           store4
	ADDTO((DX), 32(DX), Y4, Y5)
	ADDTO((DX)(SI*1), 32(DX)(SI*1), Y6, Y7)
	ADDTO((DX)(SI*2), 32(DX)(SI*2), Y8, Y9)
	ADDTO((DX)(R13*1), 32(DX)(R13*1), Y10, Y11)
	VZEROUPPER
	RET

store4:
	STORE((DX), 32(DX), Y4, Y5)
	STORE((DX)(SI*1), 32(DX)(SI*1), Y6, Y7)
	STORE((DX)(SI*2), 32(DX)(SI*2), Y8, Y9)
	STORE((DX)(R13*1), 32(DX)(R13*1), Y10, Y11)
	VZEROUPPER
	RET
