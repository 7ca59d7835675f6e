package dtype

import "fmt"

// Geometry of a block of scale factors, as tensor cores read it: 128 rows of 4 factors.
const (
	factorBlockRows  = 128
	factorBlockCols  = 4
	factorBlockBytes = factorBlockRows * factorBlockCols
)

// FactorLayout places the scale factors of Batches matrices, each of Rows rows of Cols factors, one
// byte a factor. Cols is ceil(K/vec) for rows of K elements. Factor (r, c) of batch l stands at byte
//
//	((l*RB + r/128)*CB + c/4)*512 + (r%32)*16 + ((r%128)/32)*4 + c%4
//
// with RB = ceil(Rows/128) and CB = ceil(Cols/4), which is the layout (32, 4, RB, 4, CB, L) of NVIDIA's
// block-scaled matrix instructions. Bytes of the last blocks that belong to no factor are 0.
type FactorLayout struct {
	Rows    int // R, rows of a matrix
	Cols    int // C, factors in a row
	Batches int // L, matrices: experts of a dense weight, else 1
}

// FactorCols is ceil(k/vec), the number of factors that cover k elements, vec elements a factor.
func FactorCols(k, vec int) int { return (k + vec - 1) / vec }

// blocks returns RB and CB.
func (f FactorLayout) blocks() (rowBlocks, colBlocks int) {
	return (f.Rows + factorBlockRows - 1) / factorBlockRows, (f.Cols + factorBlockCols - 1) / factorBlockCols
}

// Bytes is the size of the whole array, unused bytes of the last blocks included.
func (f FactorLayout) Bytes() int {
	rowBlocks, colBlocks := f.blocks()
	return f.Batches * rowBlocks * colBlocks * factorBlockBytes
}

// Index is the byte of factor c of row r of batch l. The caller keeps 0 <= l < Batches, 0 <= r < Rows,
// 0 <= c < Cols.
func (f FactorLayout) Index(l, r, c int) int {
	rowBlocks, colBlocks := f.blocks()
	block := (l*rowBlocks+r/factorBlockRows)*colBlocks + c/factorBlockCols
	return block*factorBlockBytes + r%32*16 + r%factorBlockRows/32*4 + c%factorBlockCols
}

// Pack moves factors from a plain row-major (Batches, Rows, Cols) array into the block layout and
// writes 0 to every unused byte. dst must be f.Bytes() long and src Batches*Rows*Cols, else the error
// wraps ErrLength. The slices must not overlap.
func (f FactorLayout) Pack(dst, src []byte) error {
	if err := f.checkLengths("pack", len(dst), len(src)); err != nil {
		return err
	}
	clear(dst)
	f.eachQuad(func(block, plain, n int) { copy(dst[block:block+n], src[plain:plain+n]) })
	return nil
}

// Unpack is the inverse of Pack: dst is plain and row-major, src in the block layout, whose unused
// bytes are not read. Lengths are checked as in Pack.
func (f FactorLayout) Unpack(dst, src []byte) error {
	if err := f.checkLengths("unpack", len(src), len(dst)); err != nil {
		return err
	}
	f.eachQuad(func(block, plain, n int) { copy(dst[plain:plain+n], src[block:block+n]) })
	return nil
}

// eachQuad calls move for every run of up to four factors that are neighbours in both orders, with
// their first bytes in the block layout and in the plain array.
func (f FactorLayout) eachQuad(move func(block, plain, n int)) {
	plain := 0
	for l := range f.Batches {
		for r := range f.Rows {
			block := f.Index(l, r, 0)
			for c := 0; c < f.Cols; c += factorBlockCols {
				n := min(factorBlockCols, f.Cols-c)
				move(block, plain, n)
				plain += n
				block += factorBlockBytes
			}
		}
	}
}

// checkLengths refuses negative sizes and slices that are not those of the layout.
func (f FactorLayout) checkLengths(op string, numBlock, numPlain int) error {
	if f.Rows < 0 || f.Cols < 0 || f.Batches < 0 {
		return fmt.Errorf("%w: %s factors: got %d rows, %d columns, %d batches, want none negative",
			ErrLength, op, f.Rows, f.Cols, f.Batches)
	}
	if numBlock != f.Bytes() {
		return fmt.Errorf("%w: %s factors (L=%d, R=%d, C=%d): got %d bytes in blocks, want %d",
			ErrLength, op, f.Batches, f.Rows, f.Cols, numBlock, f.Bytes())
	}
	if want := f.Batches * f.Rows * f.Cols; numPlain != want {
		return fmt.Errorf("%w: %s factors (L=%d, R=%d, C=%d): got %d plain bytes, want %d",
			ErrLength, op, f.Batches, f.Rows, f.Cols, numPlain, want)
	}
	return nil
}
