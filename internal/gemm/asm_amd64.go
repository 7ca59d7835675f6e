package gemm

// hasAsm says whether the assembly kernels run on this processor.
var hasAsm = detect()

// detect asks for AVX2, FMA and F16C, and for an operating system that saves the wide registers
// (Intel SDM volume 1, sections 14.3 to 14.7).
func detect() bool {
	const (
		fma, osxsave, avx, f16c = 1 << 12, 1 << 27, 1 << 28, 1 << 29 // leaf 1, ECX
		avx2                    = 1 << 5                             // leaf 7, EBX
		xmmAndYmm               = 1<<1 | 1<<2                        // XCR0
	)
	if maxLeaf, _, _, _ := cpuid(0, 0); maxLeaf < 7 {
		return false
	}
	const want = fma | osxsave | avx | f16c
	if _, _, ecx, _ := cpuid(1, 0); ecx&want != want {
		return false
	}
	if xgetbv()&xmmAndYmm != xmmAndYmm {
		return false
	}
	_, ebx, _, _ := cpuid(7, 0)
	return ebx&avx2 != 0
}

func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)
func xgetbv() (eax uint32)

// The kernels compute a full tile of C. Strides are in elements; A[i][p] is at a[i*rsA+p],
// row p of B is the 16 floats at b[p*rsB]. add chooses C + alpha*AB over alpha*AB. k may be 0.

//go:noescape
func kernel6x16(k int, a *float32, rsA int, b *float32, rsB int, c *float32, ldc int, alpha float32, add bool)

//go:noescape
func kernel4x16(k int, a *float32, rsA int, b *float32, rsB int, c *float32, ldc int, alpha float32, add bool)

// The copies move rows of pieces of 16 elements: piece q of row i goes to dst[i*ldDst+q*step]. The
// transposes move n blocks of 8x8: element (i, 8*block+j) of src becomes (8*block+j, i) of dst. Strides
// are in elements, counts at least 1.

//go:noescape
func copy16F32(dst *float32, ldDst, step int, src *float32, ldSrc, rows, pieces int)

//go:noescape
func copy16BF16(dst *float32, ldDst, step int, src *uint16, ldSrc, rows, pieces int)

//go:noescape
func copy16F16(dst *float32, ldDst, step int, src *uint16, ldSrc, rows, pieces int)

//go:noescape
func trans8F32(dst *float32, ldDst int, src *float32, ldSrc int, n int)

//go:noescape
func trans8BF16(dst *float32, ldDst int, src *uint16, ldSrc int, n int)

//go:noescape
func trans8F16(dst *float32, ldDst int, src *uint16, ldSrc int, n int)
