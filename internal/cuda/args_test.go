package cuda

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// Offsets of the parameters of f(uint8, struct of 32 words, uint32, uint64), as compilers lay them out.
func TestArgBuffer_Layout(t *testing.T) {
	var a ArgBuffer
	for range 2 { // the second time in the same memory
		a.Reset()
		a.Uint8(0xAB)
		a.Struct(bytes.Repeat([]byte{0xCD}, 128), 4)
		a.Uint32(0x01020304)
		a.Uint64(0x1112131415161718)
		want := append([]byte{0xAB, 0, 0, 0}, bytes.Repeat([]byte{0xCD}, 128)...)
		want = append(want, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11)
		if !bytes.Equal(a.Data(), want) {
			t.Fatalf("got % x\nwant % x", a.Data(), want)
		}
	}
	a.Uint8(1)
	a.TensorMap(&TensorMap{0: 7, 127: 9})
	if a.Len() != 192+128 || a.Data()[192] != 7 || a.Data()[319] != 9 {
		t.Fatalf("tensor map: got %d bytes in all, want it at 192 to 320", a.Len())
	}
}

func TestArgBuffer_Add(t *testing.T) {
	var a, b ArgBuffer
	for _, v := range []any{uint8(1), int32(-2), float32(0.5), int64(-3), uint32(4), float64(0.25), uint64(5), &TensorMap{1}} {
		if err := a.Add(v); err != nil {
			t.Fatal(err)
		}
	}
	b.Uint8(1)
	b.Int32(-2)
	b.Float32(0.5)
	b.Int64(-3)
	b.Uint32(4)
	b.Float64(0.25)
	b.Ptr(5)
	b.TensorMap(&TensorMap{1})
	if !bytes.Equal(a.Data(), b.Data()) {
		t.Fatalf("got % x\nwant % x", a.Data(), b.Data())
	}
	if err := a.Add(3); err == nil || !strings.Contains(err.Error(), "got a int, want uint8") {
		t.Fatalf("an int, whose size Go does not fix: got error %v", err)
	}
	if n := testing.AllocsPerRun(100, func() {
		a.Reset()
		a.Uint8(1)
		a.Int64(2)
		a.TensorMap(&TensorMap{})
	}); n != 0 {
		t.Errorf("a used buffer: got %v allocations, want 0", n)
	}
}

func TestCubinArch(t *testing.T) {
	image, err := os.ReadFile("testdata/sm75.cubin")
	if err != nil {
		t.Fatal(err)
	}
	if got := cubinArch(image); got != 75 {
		t.Errorf("CUDA 13: got %d, want 75", got)
	}
	old := bytes.Clone(image)
	old[8] = 7
	copy(old[48:52], []byte{90, 5, 90, 0})
	if got := cubinArch(old); got != 90 {
		t.Errorf("CUDA 12: got %d, want 90", got)
	}
	for _, b := range [][]byte{nil, []byte(".version 7.0"), make([]byte, 100)} {
		if got := cubinArch(b); got != 0 {
			t.Errorf("no cubin: got %d, want 0", got)
		}
	}
}
