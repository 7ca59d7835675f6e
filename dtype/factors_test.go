package dtype

import (
	"bytes"
	"errors"
	"testing"
)

var factorShapes = []FactorLayout{
	{Rows: 1, Cols: 1, Batches: 1}, {Rows: 128, Cols: 4, Batches: 1}, {Rows: 129, Cols: 5, Batches: 1},
	{Rows: 33, Cols: 3, Batches: 2}, {Rows: 256, Cols: 8, Batches: 3}, {Rows: 300, Cols: 13, Batches: 2},
	{Rows: 0, Cols: 4, Batches: 1}, {Rows: 5, Cols: 0, Batches: 1}, {Rows: 5, Cols: 1, Batches: 0},
}

// sixDims is the byte of a factor, from the layout as six nested dimensions and their strides.
func sixDims(f FactorLayout, l, r, c int) int {
	rowBlocks, colBlocks := -(-f.Rows / 128), (f.Cols+3)/4
	if f.Rows%128 != 0 {
		rowBlocks = f.Rows/128 + 1
	}
	dims := [6]struct{ at, stride int }{
		{r % 32, 16},
		{r / 32 % 4, 4},
		{r / 128, colBlocks * 512},
		{c % 4, 1},
		{c / 4, 512},
		{l, rowBlocks * colBlocks * 512},
	}
	sum := 0
	for _, d := range dims {
		sum += d.at * d.stride
	}
	return sum
}

func TestFactorLayout_Pack(t *testing.T) {
	for _, f := range factorShapes {
		src := make([]byte, f.Batches*f.Rows*f.Cols)
		want := make([]byte, f.Bytes())
		taken := map[int]bool{}
		i := 0
		for l := range f.Batches {
			for r := range f.Rows {
				for c := range f.Cols {
					src[i] = byte(1 + i%255)
					at := f.Index(l, r, c)
					if at != sixDims(f, l, r, c) || taken[at] || at >= len(want) {
						t.Fatalf("%+v: index (%d,%d,%d) is %d of %d, want %d", f, l, r, c, at, len(want), sixDims(f, l, r, c))
					}
					taken[at] = true
					want[at] = src[i]
					i++
				}
			}
		}
		got := bytes.Repeat([]byte{0xee}, f.Bytes())
		if err := f.Pack(got, src); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%+v: packed bytes differ", f)
		}
		back := make([]byte, len(src))
		if err := f.Unpack(back, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, src) {
			t.Errorf("%+v: unpacking does not give the factors back", f)
		}
	}
}

func TestFactorLayout_Literals(t *testing.T) {
	f := FactorLayout{Rows: 300, Cols: 9, Batches: 2}
	if got := f.Bytes(); got != 2*3*3*512 {
		t.Errorf("bytes: got %d, want 9216", got)
	}
	for _, c := range []struct{ l, r, c, want int }{
		{0, 0, 0, 0}, {0, 0, 3, 3}, {0, 1, 0, 16}, {0, 32, 0, 4}, {0, 127, 3, 511}, {0, 0, 4, 512},
		{0, 128, 0, 1536}, {1, 0, 0, 4608}, {1, 299, 8, 4608 + 8*512 + 11*16 + 4},
	} {
		if got := f.Index(c.l, c.r, c.c); got != c.want {
			t.Errorf("index (%d,%d,%d): got %d, want %d", c.l, c.r, c.c, got, c.want)
		}
	}
	for _, c := range []struct{ k, vec, want int }{{0, 32, 0}, {1, 32, 1}, {32, 32, 1}, {33, 32, 2}, {48, 16, 3}} {
		if got := FactorCols(c.k, c.vec); got != c.want {
			t.Errorf("factors of %d by %d: got %d, want %d", c.k, c.vec, got, c.want)
		}
	}
}

func TestFactorLayout_Refuses(t *testing.T) {
	f := FactorLayout{Rows: 2, Cols: 2, Batches: 1}
	negative := FactorLayout{Rows: -128, Cols: -4, Batches: 1}
	for i, err := range []error{
		f.Pack(make([]byte, 511), make([]byte, 4)), f.Pack(make([]byte, 512), make([]byte, 5)),
		f.Unpack(make([]byte, 3), make([]byte, 512)), f.Unpack(make([]byte, 4), make([]byte, 513)),
		negative.Pack(make([]byte, 512), make([]byte, 512)),
	} {
		if !errors.Is(err, ErrLength) {
			t.Errorf("call %d: got error %v, want ErrLength", i, err)
		}
	}
}

func BenchmarkFactorLayout_Pack(b *testing.B) {
	f := FactorLayout{Rows: 4096, Cols: 128, Batches: 1}
	src, dst := make([]byte, 4096*128), make([]byte, f.Bytes())
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if err := f.Pack(dst, src); err != nil {
			b.Fatal(err)
		}
	}
}
