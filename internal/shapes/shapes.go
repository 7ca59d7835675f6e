// Package shapes has the sizes of the layers that are planned, compiled and measured.
package shapes

// Shape is a mixture-of-experts layer by its sizes.
type Shape struct {
	Name         string
	Experts      int // E
	TopK         int // k
	Hidden       int // H
	Intermediate int // I
	Tokens       int // T
}

// Flops returns what the matrix products of forward and backward take.
func (s Shape) Flops() float64 {
	return 18 * float64(s.Tokens) * float64(s.TopK) * float64(s.Hidden) * float64(s.Intermediate)
}

// Saved returns the bytes that the backward pass of the layer in a 16-bit format needs of the forward pass at least,
// without computing anything twice: of each row that an expert gets the input (H), the two halves of the first product
// (2I) and their activation (I).
func (s Shape) Saved() int64 {
	return 2 * int64(s.Tokens) * int64(s.TopK) * int64(s.Hidden+3*s.Intermediate)
}

// All are the layers that are measured: a small one, and those of public models with the tokens of a step.
var All = []Shape{
	{"small", 8, 2, 1024, 2048, 512},
	{"mixtral", 8, 2, 4096, 14336, 8192},
	{"qwen3-30b", 128, 8, 2048, 768, 16384},
	{"olmoe", 64, 8, 2048, 1024, 16384},
	{"dsv3-ep8", 32, 8, 7168, 2048, 4096},
	{"gpt-oss-20b", 32, 4, 2880, 2880, 8192},
}
