package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// What the launches of products with block-scaled operands share: scaled_rows.cuh in kernels/cuda, which decodes codes
// to bf16 on the way into mma.sync.
//
// Where groups have many rows each code would be decoded there again and again, for each tile that needs it. There the kernel
// decodes both operands to the node's scratch, a while ahead of a product that is the plain one (scaled_ahead.cuh). Where they
// have few, the bytes of the weights are the work, and thin_cuda.go has a kernel for it. Weights beside a plain A are never
// decoded in memory, so that a model with such experts takes no more of it.
//
// What bf16 cannot hold is looked for: beside a plain A before the product, in a pass over the factors, else while operands are
// decoded. A flag in the node's scratch then makes a kernel of floats, decoded one by one, do the work instead, or again. It is
// always launched, and returns at once where the flag is not set. The kernel for few rows makes the tiles again that have it.

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

// progressBytes is what Progress of scaled_ahead.cuh, which begins with the flag, takes of it.
func progressBytes(experts int) int64 {
	return int64(tiles(4*progressWords(experts), flagBytes) * flagBytes)
}

func progressWords(experts int) int { return tiles(64+experts, 32)*32 + experts }

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
	thin    int           // most rows of a tile of the thin kernel
	amax    *graph.Tensor // of D
	quant   quantOutput
}

// scaledPointers is the scratch of discrete weights and of their factors.
func (k weightKind) scaledPointers() int64 { return 2 * pointerBytes(k.Discrete) }

// scaledScratchCUDA is the scratch of a product with such weights whose operands are not decoded in memory: addresses, then the flag.
func (k weightKind) scaledScratchCUDA() int64 { return k.scaledPointers() + flagBytes }

// scaledShape is what the constants of a product over m rows that sums over k depend on.
type scaledShape struct {
	f                       BlockFormat
	w                       weightKind
	l                       Launch
	plain                   dtype.DType // the format of an A that is not codes, else Invalid
	experts, m, k, n, align int
	thin                    int         // most rows of a tile of the thin kernel
	quant                   dtype.DType // the format of an output in fp8 or fp4, else Invalid
}

// size describes the product to chooseTile.
func (x scaledShape) size() productSize {
	bits := x.f.Values().Bits()
	s := productSize{dt: dtype.BFloat16, groups: x.experts, m: x.m, n: x.n, perRows: true, codes: codeBits{a: bits, b: bits, alongOuter: x.w.NMajor}, vec: x.f.Vec()}
	if x.plain != dtype.Invalid {
		s.codes.a = 0
		if x.plain != dtype.BFloat16 {
			s.dt = dtype.Float32 // codes are not exact in f16
		}
	}
	if x.quant != dtype.Invalid {
		s.warpM = quantRows
	}
	return s
}

// product returns the constants, and the size. The tile is that of the plain product where operands are decoded ahead.
func (x scaledShape) product(d graph.GPU) (scaledProduct, productSize, error) {
	s := x.size()
	p := scaledProduct{
		rowProduct{OperandType: elemType(s.dt), E: x.experts, K: x.k, N: x.n, NMajor: x.w.NMajor, Ptrs: x.w.Ptrs || x.w.Discrete > 0},
		scaledConsts{AType: "float", CodesA: cudaCodes(x.f.Values()), CodesB: cudaCodes(x.f.Values()), Format: cudaFactors(x.f.Factor()), Vec: x.f.Vec(), Align: x.align},
	}
	if x.plain != dtype.Invalid {
		p.AType, p.CodesA, p.Align = elemType(x.plain), "kNoCodes", 1
	}
	if t, ok := thinTile(x, d, s); ok {
		p.productTile, p.Thin, s.thin = t, true, true
		return p, s, nil
	}
	s.decoded = x.plain == dtype.Invalid
	var err error
	p.productTile, err = chooseTile(x.l, d, s)
	return p, s, err
}

// decodedBytes returns what both operands, of so many elements, take of the scratch when decoded: of A, and of both.
func decodedBytes(a, b int) (first, all int64) {
	first = int64(tiles(a*2, 256) * 256)
	return first, first + int64(tiles(b*2, 256)*256)
}

// scratch is what the product itself takes of the scratch: that of scaledScratchCUDA, or with progress instead of the
// flag, then the decoded operands.
func (x scaledShape) scratch(d graph.GPU) int64 {
	_, s, _ := x.product(d)
	if !s.decoded {
		return x.w.scaledScratchCUDA()
	}
	_, all := decodedBytes(x.m*x.k, x.experts*x.n*x.k)
	return x.w.scaledPointers() + progressBytes(x.experts) + all
}

// plainFormat is the format of an A without factors, else Invalid.
func (x scaledCall) plainFormat() dtype.DType {
	if x.sfa == nil {
		return x.a.DType
	}
	return dtype.Invalid
}

// shape is what the constants depend on.
func (x scaledCall) shape() scaledShape {
	return scaledShape{x.f, x.w, x.l, x.plainFormat(), x.offsets.Shape[0], x.a.Shape[0], codeWidth(x.a), x.n, x.align, x.thin, x.quant.dt}
}

// scratch is what the product itself takes of the scratch; what the epilogue needs follows.
func (x scaledCall) scratch() int64 { return x.shape().scratch(x.c.GPU) }

// product returns the constants but for UpRow, and the size.
func (x scaledCall) product() (scaledProduct, productSize, error) {
	p, s, err := x.shape().product(x.c.GPU)
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
	experts, m := x.offsets.Shape[0], x.a.Shape[0]
	extremes := x.f.extremes() && s.dt != dtype.Float32 && !s.thin // the thin kernel looks by itself
	words, left, right := 0, ptr(nil), ptr(nil)
	if extremes || s.decoded {
		flag, words = scratchAt(c, int(x.w.scaledPointers())), 1
	}
	if s.decoded {
		words = progressWords(experts)
		first, _ := decodedBytes(m*p.K, 0)
		at := int(x.w.scaledPointers() + progressBytes(experts))
		left, right = scratchAt(c, at), scratchAt(c, at+int(first))
	}
	if words > 0 || x.amax != nil || x.quant.rowSF != nil || x.quant.colSF != nil {
		launches = append(launches, zeros(c.GPU, ptr(nil), flag, words, x.amax, x.quant.rowSF, x.quant.colSF))
	}
	product := func(p scaledProduct) {
		args := join(ptr(x.a), b, ptr(x.sfa), sfb, left, right, flag, ptr(x.offsets), ptr(x.counts), x.rows, rest, x.quant.args())
		work := p.work(m)
		if s.decoded && s.plain() { // some thread blocks decode
			work = math.MaxInt
		}
		launches = append(launches, p.launch(c.GPU, name, params(p), work, args...))
	}
	if extremes && !s.decoded {
		e := extremeParams{p.CodesB, experts, p.N, p.K, p.Ptrs}
		if p.NMajor {
			e.Rows, e.Cols = p.K, p.N
		}
		launches = append(launches, e.launch(c.GPU, b, sfb, flag))
		p.When = unlessExtreme
	}
	product(p)
	if extremes {
		if s.decoded && x.amax != nil { // of the product that is made again
			launches = append(launches, zeros(c.GPU, flag, ptr(nil), 0, x.amax))
		}
		p.When, p.OperandType, s.dt = ifExtreme, "float", dtype.Float32
		p.Blocks, p.SharedBytes = 1, p.sharedBytes(0, s)
		product(p)
	}
	return launches
}

// zeros returns the launch that clears count words, amax, and up to two tensors of factors; where the flag is given, only if it
// is set.
func zeros(d graph.GPU, flag, words graph.Pointer, count int, amax *graph.Tensor, factors ...*graph.Tensor) graph.Launch {
	const unit = 16 // bytes
	n, at, units, all := 0, [2]graph.Pointer{}, [2]int64{}, 0
	if amax != nil {
		n = amax.Shape[0]
	}
	for i, t := range factors {
		if t != nil {
			at[i], units[i] = ptr(t), int64(t.Shape[0]/unit) // whole blocks of 512
			all += t.Shape[0] / unit
		}
	}
	return launchOf("zeros", "zeros.cuh", noParams{}, strided(d, all, blockThreads, 8), blockThreads, flag, words, ptr(amax), at[0], at[1], int32(count), int32(n), units[0], units[1])
}

// extremePiece is the words of factors of a piece of scaled_extremes.cuh.
const extremePiece = 4096

// extremeParams are the constants of scaled_extremes.cuh.
type extremeParams struct {
	Codes         string
	E, Rows, Cols int
	Ptrs          bool
}

// launch describes the search.
func (p extremeParams) launch(d graph.GPU, args ...any) graph.Launch {
	return launchOf("scaled_extremes", "scaled_extremes.cuh", p, strided(d, p.E*p.Rows*tiles(p.Cols, 128), extremePiece, 8), blockThreads, args...)
}

// decodeParams are the constants of scaled_decode.cuh.
type decodeParams struct {
	Codes, Format                 string
	Vec                           int
	E, Rows, Align                int
	TokensInner, Ragged, Extremes bool
}

// launch describes the decoding of so many parts of 128 by 128 codes at most.
func (p decodeParams) launch(d graph.GPU, parts int, args ...any) graph.Launch {
	return launchOf("scaled_decode", "scaled_decode.cuh", p, strided(d, parts, 1, 4), blockThreads, join(args...)...)
}
