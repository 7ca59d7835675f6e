package npz

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// samples has every type, scalars, empty arrays and names that are not ASCII.
func samples() []Array {
	arrays := []Array{
		{Name: "empty", DType: "<f4", Shape: []int{0, 5}, Data: []byte{}},
		{Name: "scalar", DType: "<f8", Shape: []int{}, Data: make([]byte, 8)},
		{Name: "b.0.bf16", DType: "<u2", Shape: []int{2, 3}, Data: []byte("abcdefghijkl")},
		{Name: "größe", DType: "|b1", Shape: []int{1, 1, 1, 1, 3}, Data: []byte{0, 1, 0}},
		{Name: "words", DType: "<U2", Shape: []int{2}, Data: []byte("a\x00\x00\x00b\x00\x00\x00c\x00\x00\x00\x00\x00\x00\x00")},
		Text("attr.order", "softmax_topk"), Text("none", ""), Text("é", "日本 😀"),
		Int32s("idx", []int{3}, -1, 0, 1), Float32s("f", []int{1, 2}, 1.5, -2),
	}
	for _, descr := range []string{"<f2", "<f4", "<f8", "|i1", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"} {
		data := bytes.Repeat([]byte{1}, 7*itemSizes[descr])
		arrays = append(arrays, Array{Name: "type " + descr[1:], DType: descr, Shape: []int{7}, Data: data})
	}
	for i := range arrays {
		if arrays[i].Shape == nil {
			arrays[i].Shape = []int{}
		}
	}
	return arrays
}

func mustWrite(t testing.TB, arrays []Array) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, arrays); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readBytes(b []byte) ([]Array, error) { return Read(bytes.NewReader(b), int64(len(b))) }

func TestRoundTrip(t *testing.T) {
	want := samples()
	file := mustWrite(t, want)
	if again := mustWrite(t, want); !bytes.Equal(file, again) {
		t.Error("two archives of the same arrays differ")
	}
	got, err := readBytes(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	for _, a := range want {
		var b bytes.Buffer
		if err := WriteNPY(&b, a); err != nil {
			t.Fatal(err)
		}
		if head := b.Len() - len(a.Data); head%headerAlign != 0 {
			t.Errorf("%s: data starts at %d, want a multiple of %d", a.Name, head, headerAlign)
		}
		got, err := ReadNPY(&b, int64(b.Len()))
		a.Name = ""
		if diff := cmp.Diff(a, got); diff != "" || err != nil {
			t.Errorf("one array: error %v, want (-), got (+):\n%s", err, diff)
		}
	}
	if got, err := readBytes(mustWrite(t, nil)); err != nil || len(got) != 0 {
		t.Errorf("an archive of nothing: got %v, error %v", got, err)
	}
}

func TestText(t *testing.T) {
	for _, s := range []string{"", "swiglu", "日本 😀"} {
		if got, err := Text("x", s).Text(); got != s || err != nil {
			t.Errorf("got %q, error %v, want %q", got, err, s)
		}
	}
	surrogate := Array{Name: "x", DType: "<U1", Data: []byte{0, 0xd8, 0, 0}}
	beyond := Array{Name: "x", DType: "<U1", Data: []byte{0, 0, 0x11, 0}}
	short := Array{Name: "x", DType: "<U2", Data: make([]byte, 4)}
	row := Array{Name: "x", DType: "<U1", Shape: []int{1}, Data: make([]byte, 4)}
	for _, a := range []Array{surrogate, beyond, short, row, Int32s("x", nil, 1)} {
		if got, err := a.Text(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%+v: got %q, error %v", a, got, err)
		}
	}
}

func TestWrite_Refuses(t *testing.T) {
	good := Int32s("x", nil, 1)
	for name, arrays := range map[string][]Array{
		"no name":      {{DType: "|u1", Data: []byte{1}}},
		"long name":    {{Name: strings.Repeat("x", 1<<16), DType: "|u1", Data: []byte{1}}},
		"broken name":  {{Name: "\xff", DType: "|u1", Data: []byte{1}}},
		"twice":        {good, good},
		"type":         {{Name: "x", DType: ">f4", Data: make([]byte, 4)}},
		"no type":      {{Name: "x"}},
		"short":        {{Name: "x", DType: "<f4", Shape: []int{2}, Data: make([]byte, 7)}},
		"negative":     {{Name: "x", DType: "<f4", Shape: []int{-1}}},
		"overflow":     {{Name: "x", DType: "<f4", Shape: []int{1 << 40, 1 << 40}}},
		"hidden by 0":  {{Name: "x", DType: "<f4", Shape: []int{1 << 40, 1 << 40, 0}}},
		"one huge dim": {{Name: "x", DType: "|u1", Shape: []int{0, 1 << 57}}},
		"many dims":    {{Name: "x", DType: "|u1", Shape: make([]int, 65)}},
	} {
		var b bytes.Buffer
		if err := Write(&b, arrays); !errors.Is(err, ErrInvalid) || b.Len() != 0 {
			t.Errorf("%s: got error %v and %d bytes", name, err, b.Len())
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.npz")
	if err := WriteFile(path, samples()); err != nil {
		t.Fatal(err)
	}
	bad := []Array{Int32s("x", nil, 1), {Name: "y", DType: "<f4", Shape: []int{3}, Data: make([]byte, 4)}}
	if err := WriteFile(path, bad); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), `"y"`) {
		t.Errorf("got error %v, want one that names file and array", err)
	}
	got, err := ReadFile(path)
	if diff := cmp.Diff(samples(), got); diff != "" || err != nil {
		t.Errorf("after a failed write: error %v, want (-), got (+):\n%s", err, diff)
	}
	if err := WriteFile(filepath.Join(dir, "none", "x.npz"), nil); err == nil {
		t.Error("no folder: got no error")
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "folder"), nil); err == nil {
		t.Error("onto a folder: got no error")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("got %v, want x.npz and folder only", left)
	}
}

// TestNumPy has NumPy read what is written here and write it again.
func TestNumPy(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import numpy").Run() != nil {
		t.Skip("skipped: no python3 with numpy")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "x.npz")
	if err := WriteFile(path, samples()); err != nil {
		t.Fatal(err)
	}
	const script = `
import sys, numpy as np
z = np.load(sys.argv[1], allow_pickle=False)
assert str(z["attr.order"]) == "softmax_topk" and z["idx"].tolist() == [-1, 0, 1] and z["f"].tolist() == [[1.5, -2]]
assert z["empty"].shape == (0, 5) and z["words"].tolist() == ["ab", "c"] and str(z["é"]) == "日本 😀"
np.savez(sys.argv[2], **{k: z[k] for k in z.files})
np.savez_compressed(sys.argv[3], **{k: z[k] for k in z.files})
`
	stored, deflated := filepath.Join(dir, "stored.npz"), filepath.Join(dir, "deflated.npz")
	if out, err := exec.Command(python, "-c", script, path, stored, deflated).CombinedOutput(); err != nil {
		t.Fatalf("numpy: %v\n%s", err, out)
	}
	for _, p := range []string{stored, deflated} {
		got, err := ReadFile(p)
		if diff := cmp.Diff(samples(), got); diff != "" || err != nil {
			t.Errorf("%s: error %v, want (-), got (+):\n%s", filepath.Base(p), err, diff)
		}
	}
}

// TestReadFile_Shared reads every array file of ../shared.
func TestReadFile_Shared(t *testing.T) {
	shared := os.Getenv("MOEGRAPH_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	files, err := filepath.Glob(filepath.Join(shared, "*", "*.npz"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("skipped: no array files in ../shared beside the project")
	}
	for _, f := range files {
		arrays, err := ReadFile(f)
		if err != nil || len(arrays) == 0 {
			t.Errorf("got %d arrays, error %v", len(arrays), err)
		}
		again, err := readBytes(mustWrite(t, arrays))
		if err != nil || !slices.EqualFunc(arrays, again, sameArray) {
			t.Errorf("%s written again: other arrays, error %v", filepath.Base(f), err)
		}
	}
}

// sameArray is cmp.Equal, quick on large arrays.
func sameArray(a, b Array) bool {
	return a.Name == b.Name && a.DType == b.DType && slices.Equal(a.Shape, b.Shape) && bytes.Equal(a.Data, b.Data)
}
