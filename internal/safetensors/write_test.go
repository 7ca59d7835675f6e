package safetensors

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWriteFile_Bytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	tensors := []Tensor{
		{"z", "U8", []int{3}, []byte{7, 8, 9}},
		{"b<", "F32", nil, []byte{5, 6, 7, 8}},
		{"a", "F32", []int{1, 1}, []byte{1, 2, 3, 4}},
	}
	metadata := map[string]string{"two": "2\n", "one": "é"}
	want := rawFile(`{"__metadata__":{"one":"é","two":"2\n"},`+
		`"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},`+
		`"b\u003c":{"dtype":"F32","shape":[],"data_offsets":[4,8]},`+
		`"z":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}} `, 0)
	want = append(want, 1, 2, 3, 4, 5, 6, 7, 8, 7, 8, 9)
	for range 2 {
		if err := WriteFile(path, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Fatal(diff)
		}
		tensors[0], tensors[2] = tensors[2], tensors[0] // the order given must not matter
	}
	if headerLen := len(want) - 11; headerLen%headerAlign != 0 {
		t.Errorf("data begins at %d, want a multiple of %d", headerLen, headerAlign)
	}
}

func TestWriteFile_Empty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	if err := WriteFile(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Names()) != 0 || len(f.Metadata()) != 0 {
		t.Errorf("got %v, %v, want nothing", f.Names(), f.Metadata())
	}
}

// A file's own views may be written over it: the mapping keeps the old content.
func TestWriteFile_OverItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := WriteFile(path, []Tensor{{"a", "U8", []int{len(big)}, big}}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, _ := f.Tensor("a")
	b := a
	b.Name = "b"
	if err := WriteFile(path, []Tensor{a, b}, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Data, big) {
		t.Error("the open mapping changed")
	}
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, name := range []string{"a", "b"} {
		if got, _ := g.Tensor(name); !bytes.Equal(got.Data, big) {
			t.Errorf("tensor %q: content differs", name)
		}
	}
}

func TestWriteFile_RefusesAndKeepsOldFile(t *testing.T) {
	good := Tensor{"w", "U8", []int{1}, []byte{1}}
	cases := map[string]struct {
		tensors  []Tensor
		metadata map[string]string
		want     string
	}{
		"name twice":         {[]Tensor{good, {"w", "F32", []int{0}, nil}}, nil, `tensor "w": got the name twice`},
		"reserved name":      {[]Tensor{{"__metadata__", "U8", []int{0}, nil}}, nil, "reserved"},
		"name not UTF-8":     {[]Tensor{{"\xff", "U8", []int{0}, nil}}, nil, "UTF-8"},
		"dtype":              {[]Tensor{{"w", "float", []int{0}, nil}}, nil, `dtype: got "float"`},
		"negative shape":     {[]Tensor{{"w", "U8", []int{2, -1}, nil}}, nil, "got -1 at axis 1"},
		"too few bytes":      {[]Tensor{{"w", "F32", []int{2}, make([]byte, 7)}}, nil, "got 7 bytes, want the 8"},
		"metadata not UTF-8": {[]Tensor{good}, map[string]string{"k": "\xff"}, `metadata "k"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.safetensors")
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := WriteFile(path, c.tensors, c.metadata)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q and the file in it", err, c.want)
			}
			if got, _ := os.ReadFile(path); string(got) != "old" {
				t.Errorf("old file: got %q", got)
			}
		})
	}
}
