package gemm

import "github.com/moegraph/moegraph/dtype"

// Scaled is a row-major matrix of block-scaled codes: an element is its code times the factor of its block. Both
// are decoded exactly to float32 on the way into the packed operands, subnormals too.
//
// Element (row, col) as stored has its code at element At + row*LD + col of Codes. Its block lies along the rows as
// stored, or down the columns with Down; the factors are a matrix in dtype.FactorLayout's blocks, of which the
// operand begins at (Row, Col) in elements:
//
//	factor row Row+row, factor column (Col+col)/Vec          blocks along rows
//	factor row Col+col, factor column (Row+row)/Vec          Down
type Scaled struct {
	Codes    []byte
	Values   dtype.DType // of Codes: E4M3, E5M2 or E2M1
	At       int
	Factors  []byte // from the first factor of the matrix on
	Factor   dtype.DType
	Vec      int
	Layout   dtype.FactorLayout // of one batch
	Row, Col int
	Down     bool
}

// Decode writes len(dst) elements of a row as stored, from column col on; ld is the operand's stride.
func (s *Scaled) Decode(dst []float32, ld, row, col int) {
	i := s.At + row*ld + col
	if s.Values != dtype.E2M1 {
		_ = dtype.Decode(s.Values, dst, s.Codes[i:i+len(dst)])
	} else {
		codes, head := dst, 0
		if i%2 == 1 && len(dst) > 0 { // the second of two codes in a byte
			codes[0] = dtype.E2M1Decode(s.Codes[i/2] >> 4)
			head = 1
		}
		codes = codes[head:]
		_ = dtype.Decode(s.Values, codes, s.Codes[(i+head)/2:(i+head)/2+s.Values.Bytes(len(codes))])
	}
	values := factorValues(s.Factor)
	if s.Down {
		s.scaleDown(dst, values, s.Col+col, (s.Row+row)/s.Vec)
		return
	}
	r, c := s.Row+row, s.Col+col
	for n := 0; n < len(dst); {
		end := min(len(dst), n+s.Vec-(c+n)%s.Vec)
		f := values[s.Factors[s.Layout.Index(0, r, (c+n)/s.Vec)]]
		for j := n; j < end; j++ {
			dst[j] *= f
		}
		n = end
	}
}

// scaleDown multiplies dst[j] by factor (r+j, c). In the block layout 32 rows that follow one another are 16 bytes
// apart.
func (s *Scaled) scaleDown(dst []float32, values *[256]float32, r, c int) {
	for n := 0; n < len(dst); {
		end := min(len(dst), n+32-(r+n)%32)
		at := s.Layout.Index(0, r+n, c)
		for j := n; j < end; j++ {
			dst[j] *= values[s.Factors[at]]
			at += 16
		}
		n = end
	}
}

// factorValues is the table of a factor format.
func factorValues(dt dtype.DType) *[256]float32 {
	if dt == dtype.E8M0 {
		return &e8m0Values
	}
	return &e4m3Values
}

var e8m0Values, e4m3Values = factorTable(dtype.E8M0Decode), factorTable(dtype.E4M3Decode)

func factorTable(decode func(uint8) float32) (t [256]float32) {
	for code := range t {
		t[code] = decode(uint8(code))
	}
	return t
}
