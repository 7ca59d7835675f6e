package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// What the launches of products with block-scaled operands share: scaled_rows.cuh in kernels/cuda, which decodes codes
// to bf16 on the way into mma.sync.
//
// Where groups have many rows each code would be decoded there again and again, for each tile that needs it. There a kernel
// decodes both operands to the node's scratch first, for few bytes beside the work, and the product is the plain one.
//
// What bf16 cannot hold is looked for first, which takes a pass over the factors; a flag in the node's scratch then
// makes a kernel of floats, decoded one by one, do the work instead. Both are launched, and one of them returns at once.

// scaledProduct are the constants of scaled_rows.cuh.
type scaledProduct struct {
	rowProduct
	scaledConsts
}

// scaledConsts are what scaled_rows.cuh and scaled_groups.cuh need beyond their plain kin.
type scaledConsts struct {
	AType                           string // of an A that is not codes
	CodesA, CodesB, Format          string // of types.cuh
	Vec, Align                      int
	HasGlobalA, HasGlobalB, HasAmax bool
	When                            int // scaled_extra.cuh
	Thin                            bool
}

// Values of When.
const (
	always = iota
	unlessExtreme
	ifExtreme
)

// flagBytes is what the flag of extreme factors takes of the scratch.
const flagBytes = 256

// cudaCodes returns the constant of types.cuh for codes in a format.
func cudaCodes(dt dtype.DType) string {
	return map[dtype.DType]string{dtype.E4M3: "kE4M3", dtype.E5M2: "kE5M2", dtype.E2M1: "kE2M1"}[dt]
}

// cudaFactors returns the constant of types.cuh for factors in a format.
func cudaFactors(dt dtype.DType) string {
	return map[dtype.DType]string{dtype.E8M0: "kE8M0Factors", dtype.E4M3: "kE4M3Factors"}[dt]
}

// extremes says whether values of the format may be beyond bf16: fp8 codes with factors that reach far.
func (f BlockFormat) extremes() bool { return f.Values() != dtype.E2M1 }

// scaledCall is a product over rows with codes in A and B, or in B alone.
type scaledCall struct {
	c       *graph.KernelCall
	f       BlockFormat
	w       weightKind
	align   int
	l       Launch
	n       int             // columns of the product
	a       *graph.Tensor   // in a plain format without sfa
	sfa     *graph.Tensor   //
	b, sfb  []*graph.Tensor // as many as w.count
	global  []*graph.Tensor // of A and B, nil where absent
	offsets *graph.Tensor
	counts  *graph.Tensor
	rows    []any         // Counts that bound the rows
	thin    int           // thread blocks of a multiprocessor, of the thin kernel
	amax    *graph.Tensor // of D
}

// decodeRows is the room for rows of a group beyond which operands are decoded first. Less work than that waits for the bytes
// of the weights, which codes are fewer of.
const decodeRows = 256

// decodedBytes returns what both operands, decoded, take of the scratch of a product over m rows of groups: of A, and of A and
// B; 0 if they are not.
func decodedBytes(groups, m, a, b int) (first, all int64) {
	if m <= decodeRows*groups {
		return 0, 0
	}
	first = int64(tiles(a*2, 256) * 256)
	return first, first + int64(tiles(b*2, 256)*256)
}

// scaledPointers is the scratch of discrete weights and of their factors.
func (k weightKind) scaledPointers() int64 { return 2 * pointerBytes(k.Discrete) }

// scaledScratchCUDA is the scratch of a product with such weights: addresses, then the flag.
func (k weightKind) scaledScratchCUDA() int64 { return k.scaledPointers() + flagBytes }

// scaledBothScratch is the scratch of a product with codes in A (m,k) and B (n,k) of each group: that of scaledScratchCUDA, then
// the decoded operands.
func (w weightKind) scaledBothScratch(groups, m, k, n int) int64 {
	_, all := decodedBytes(groups, m, m*k, groups*n*k)
	return w.scaledScratchCUDA() + all
}

// scratch is what the product itself takes of the scratch; what the epilogue needs follows.
func (x scaledCall) scratch() int64 {
	if x.sfa == nil {
		return x.w.scaledScratchCUDA()
	}
	return x.w.scaledBothScratch(x.offsets.Shape[0], x.a.Shape[0], codeWidth(x.a), x.n)
}

// scaledSize describes a product with codes to chooseTile; plain: the format of an A that is not codes, else Invalid.
func scaledSize(f BlockFormat, w weightKind, plain dtype.DType, experts, m, n int) productSize {
	bits := f.Values().Bits()
	s := productSize{dt: dtype.BFloat16, groups: experts, m: m, n: n, perRows: true, codes: codeBits{a: bits, b: bits, alongOuter: w.NMajor}}
	if plain != dtype.Invalid {
		s.codes.a = 0
		if plain != dtype.BFloat16 {
			s.dt = dtype.Float32 // codes are not exact in f16
		}
	}
	return s
}

// scaledProductFor returns the constants of a product over m rows that sums over k, and its size; thin as in scaledCall. The tile
// is that of the plain product where operands are decoded first.
func scaledProductFor(d graph.GPU, f BlockFormat, w weightKind, l Launch, plain dtype.DType, experts, m, k, n, thin int) (scaledProduct, productSize, error) {
	s := scaledSize(f, w, plain, experts, m, n)
	p := scaledProduct{
		rowProduct{OperandType: elemType(s.dt), E: experts, K: k, N: n, NMajor: w.NMajor, Ptrs: w.Ptrs || w.Discrete > 0},
		scaledConsts{AType: "float", CodesA: cudaCodes(f.Values()), CodesB: cudaCodes(f.Values()), Format: cudaFactors(f.Factor()), Vec: f.Vec()},
	}
	if plain != dtype.Invalid {
		p.AType, p.CodesA = elemType(plain), "kNoCodes"
	}
	if t, ok := thinTile(l, d, s, w, thin); ok {
		p.productTile, p.Thin, s.thin = t, true, true
		return p, s, nil
	}
	size := s
	if _, all := decodedBytes(experts, m, 0, 1); all > 0 && plain == dtype.Invalid {
		size.codes = codeBits{}
	}
	var err error
	p.productTile, err = chooseTile(l, d, size)
	return p, s, err
}

// plainFormat is the format of an A without factors, else Invalid.
func (x scaledCall) plainFormat() dtype.DType {
	if x.sfa == nil {
		return x.a.DType
	}
	return dtype.Invalid
}

// product returns the constants but for UpRow, and the size.
func (x scaledCall) product() (scaledProduct, productSize, error) {
	p, s, err := scaledProductFor(x.c.GPU, x.f, x.w, x.l, x.plainFormat(), x.offsets.Shape[0], x.a.Shape[0], codeWidth(x.a), x.n, x.thin)
	p.Align = x.align
	p.HasGlobalA, p.HasGlobalB, p.HasAmax = x.global[0] != nil, x.global[1] != nil, x.amax != nil
	return p, s, err
}

// launches describes the product: name is that of the kernel, params makes its constants of those that it shares, rest are its
// arguments from prob on.
func (x scaledCall) launches(name string, p scaledProduct, s productSize, params func(p scaledProduct) any, rest ...any) []graph.Launch {
	c := x.c
	b, sfb, flag := ptr(x.b[0]), ptr(x.sfb[0]), ptr(nil)
	var launches []graph.Launch
	if x.w.Discrete > 0 {
		at := pointerBytes(x.w.Discrete)
		b, sfb = scratchAt(c, 0), scratchAt(c, int(at))
		launches = append(gatherPointers(c, x.b), gatherPointersAt(c, at, x.sfb)...)
	}
	flags, experts, m := 0, x.offsets.Shape[0], x.a.Shape[0]
	if x.f.extremes() && s.dt != dtype.Float32 {
		flag, flags = scratchAt(c, int(x.w.scaledPointers())), 1
	}
	if flags > 0 || x.amax != nil {
		launches = append(launches, zeros(flag, flags, x.amax))
	}
	first, all := decodedBytes(experts, m, m*p.K, experts*p.N*p.K)
	if x.sfa == nil {
		all = 0
	}
	args := join(ptr(x.a), b, ptr(x.sfa), sfb, flag, ptr(x.offsets), ptr(x.counts), x.rows, rest)
	if all > 0 {
		at := int(x.w.scaledScratchCUDA())
		da, db := scratchAt(c, at), scratchAt(c, at+int(first))
		e := decodeParams{extremeParams: extremeParams{Codes: p.CodesB, E: experts, Rows: m, Cols: p.K, Kind: 1, Align: x.align}, Format: p.Format, Vec: p.Vec, Extremes: flags > 0}
		groups := []any{ptr(x.offsets), ptr(x.counts), rowsOf(x.a), rowsOf(nil), flag, int32(m)}
		launches = append(launches, e.launch(c.GPU, tiles(m, 128)*tiles(p.K, 128), da, ptr(x.a), ptr(x.sfa), groups))
		e.Rows, e.Kind, e.Ptrs = p.N, 0, p.Ptrs
		launches = append(launches, e.launch(c.GPU, experts*tiles(p.N, 128)*tiles(p.K, 128), db, b, sfb, groups))
		plain := p
		plain.CodesA, plain.CodesB, plain.AType, plain.Ptrs = "kNoCodes", "kNoCodes", p.OperandType, false
		if flags > 0 {
			plain.When = unlessExtreme
		}
		launches = append(launches, p.launch(c.GPU, name, params(plain), p.work(m), join(da, db, ptr(nil), ptr(nil), flag, ptr(x.offsets), ptr(x.counts), x.rows, rest)...))
	} else if flags > 0 {
		e := extremeParams{Codes: p.CodesB, E: experts, Cols: p.K, Align: x.align}
		if x.sfa != nil {
			e.Kind = 1
			launches = append(launches, e.launch(c.GPU, m, ptr(x.a), ptr(x.sfa), ptr(x.offsets), ptr(x.counts), rowsOf(x.a), rowsOf(nil), flag, int32(m)))
		}
		e.Rows, e.Kind, e.Ptrs = p.N, 0, p.Ptrs
		if p.NMajor {
			e.Rows, e.Cols = p.K, p.N
		}
		launches = append(launches, e.launch(c.GPU, experts*e.Rows, b, sfb, ptr(nil), ptr(nil), rowsOf(nil), rowsOf(nil), flag, int32(0)))
		p.When = unlessExtreme
	}
	if all == 0 {
		launches = append(launches, p.launch(c.GPU, name, params(p), p.work(m), args...))
	}
	if flags > 0 {
		p.When, p.OperandType, s.dt = ifExtreme, "float", dtype.Float32
		p.Blocks, p.SharedBytes = 1, p.sharedBytes(0, s)
		launches = append(launches, p.launch(c.GPU, name, params(p), p.work(m), args...))
	}
	return launches
}

// zeros returns the launch that clears the flag, if there is one, and amax.
func zeros(flag graph.Pointer, flags int, amax *graph.Tensor) graph.Launch {
	n := 0
	if amax != nil {
		n = amax.Shape[0]
	}
	return launchOf("zeros", "zeros.cuh", noParams{}, 1, blockThreads, flag, ptr(amax), int32(flags), int32(n))
}

// extremePiece is the words of factors of a piece of scaled_extremes.cuh.
const extremePiece = 4096

// extremeParams are the constants of scaled_extremes.cuh.
type extremeParams struct {
	Codes                     string
	E, Rows, Cols, Kind       int
	Ptrs, TokensInner, Ragged bool
	Align                     int
}

// launch describes the search over so many rows of factors in all, a word each where Cols is 0.
func (p extremeParams) launch(d graph.GPU, rows int, args ...any) graph.Launch {
	words := rows * max(1, tiles(p.Cols, 128))
	return launchOf("scaled_extremes", "scaled_extremes.cuh", p, strided(d, words, extremePiece, 8), blockThreads, args...)
}

// decodeParams are the constants of scaled_decode.cuh.
type decodeParams struct {
	extremeParams
	Format   string
	Vec      int
	Extremes bool
}

// launch describes the decoding of so many parts of 128 by 128 codes at most.
func (p decodeParams) launch(d graph.GPU, parts int, args ...any) graph.Launch {
	return launchOf("scaled_decode", "scaled_decode.cuh", p, strided(d, parts, 1, 4), blockThreads, join(args...)...)
}
