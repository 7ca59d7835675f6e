package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rawFile builds a file from a header as text, whatever is in it, and dataBytes bytes of data.
func rawFile(header string, dataBytes int) []byte {
	raw := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	raw = append(raw, header...)
	for i := range dataBytes {
		raw = append(raw, byte(i))
	}
	return raw
}

func writeRaw(t testing.TB, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.safetensors")
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const goodHeader = `{"__metadata__":{"step":"7"},` +
	`"b":{"dtype":"F32","shape":[1,2],"data_offsets":[3,11]},` +
	`"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3],"later":{"x":[1]}},` +
	`"none":{"dtype":"I64","shape":[0,9],"data_offsets":[3,3]},` +
	`"scalar":{"dtype":"BF16","shape":[],"data_offsets":[11,13]},` +
	`"packed":{"dtype":"F4","shape":[4],"data_offsets":[13,15]}}   `

func TestOpen(t *testing.T) {
	f, err := Open(writeRaw(t, rawFile(goodHeader, 15)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "none", "packed", "scalar"}, f.Names()); diff != "" {
		t.Error("names:", diff)
	}
	if diff := cmp.Diff(map[string]string{"step": "7"}, f.Metadata()); diff != "" {
		t.Error("metadata:", diff)
	}
	for _, want := range []Tensor{
		{"a", "U8", []int{3}, []byte{0, 1, 2}},
		{"b", "F32", []int{1, 2}, []byte{3, 4, 5, 6, 7, 8, 9, 10}}, // at an odd address
		{"none", "I64", []int{0, 9}, []byte{}},
		{"scalar", "BF16", nil, []byte{11, 12}},
		{"packed", "F4", []int{4}, []byte{13, 14}},
	} {
		got, ok := f.Tensor(want.Name)
		if !ok || got.Name != want.Name || got.DType != want.DType ||
			!slices.Equal(got.Shape, want.Shape) || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("got %v (%v), want %v", got, ok, want)
		}
		if cap(got.Data) != len(got.Data) {
			t.Errorf("%s: capacity %d reaches beyond its %d bytes", got.Name, cap(got.Data), len(got.Data))
		}
	}
	if _, ok := f.Tensor("absent"); ok {
		t.Error("absent tensor: found")
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error("close:", err)
		}
	}
	if _, ok := f.Tensor("a"); ok {
		t.Error("after Close: found")
	}
}

func TestOpen_RefusesDamage(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"w":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	two := func(aOffsets, bOffsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":"U8","shape":[2],"data_offsets":%s},`+
			`"b":{"dtype":"U8","shape":[2],"data_offsets":%s}}`, aOffsets, bOffsets)
	}
	tooLong := slices.Concat(binary.LittleEndian.AppendUint64(nil, 1<<63), []byte("{}"))
	overLimit := slices.Concat(binary.LittleEndian.AppendUint64(nil, maxHeaderBytes+1), []byte("{}"))
	pastEnd := slices.Concat(binary.LittleEndian.AppendUint64(nil, 3), []byte("{}"))
	cases := map[string]struct {
		raw    []byte
		tensor string
		want   string
	}{
		"empty file":         {nil, "", "truncated"},
		"half a length":      {[]byte{1, 0, 0}, "", "truncated"},
		"length of 2^63":     {tooLong, "", "want at most 100000000"},
		"length over limit":  {overLimit, "", "want at most 100000000"},
		"length past end":    {pastEnd, "", "truncated"},
		"no header":          {rawFile("", 0), "", "not valid JSON"},
		"half a header":      {rawFile(`{"w":{"dtype":"U8"`, 0), "", "not valid JSON"},
		"a list":             {rawFile(`[1]`, 0), "", "want a JSON object"},
		"two objects":        {rawFile(`{}{}`, 0), "", "not valid JSON"},
		"missing comma":      {rawFile(`{"a":{} "b":{}}`, 0), "", "not valid JSON"},
		"deep nesting":       {rawFile(strings.Repeat(`{"a":`, 20000), 0), "", "not valid JSON"},
		"bytes not UTF-8":    {rawFile("{\"\xff\":{}}", 0), "", "UTF-8"},
		"name twice":         {rawFile(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0077":{}}`, 0), "", `"w" twice`},
		"field twice":        {rawFile(`{"w":{"dtype":"U8","dtype":"U8","shape":[0]}}`, 0), "w", `"dtype" twice`},
		"metadata twice":     {rawFile(`{"__metadata__":{},"__metadata__":{}}`, 0), "", "twice"},
		"metadata a number":  {rawFile(`{"__metadata__":{"a":1}}`, 0), "", "want a string"},
		"metadata a string":  {rawFile(`{"__metadata__":"a"}`, 0), "", "want a JSON object"},
		"tensor a number":    {rawFile(`{"w":1}`, 0), "w", "want a JSON object"},
		"no offsets":         {rawFile(`{"w":{"dtype":"U8","shape":[0]}}`, 0), "w", "incomplete"},
		"dtype null":         {rawFile(one(`null`, `[0]`, `[0,0]`), 0), "w", "dtype: got <nil>"},
		"dtype unknown":      {rawFile(one(`"F17"`, `[1]`, `[0,1]`), 1), "w", `dtype: got "F17"`},
		"dtype lower case":   {rawFile(one(`"f32"`, `[1]`, `[0,4]`), 4), "w", `dtype: got "f32"`},
		"shape null":         {rawFile(one(`"U8"`, `null`, `[0,0]`), 0), "w", "shape: got <nil>"},
		"shape of null":      {rawFile(one(`"U8"`, `[null]`, `[0,0]`), 0), "w", "shape: got <nil>"},
		"shape of text":      {rawFile(one(`"U8"`, `["1"]`, `[0,1]`), 1), "w", "want numbers"},
		"shape negative":     {rawFile(one(`"U8"`, `[-1]`, `[0,1]`), 1), "w", "got -1, want a whole number"},
		"shape of fractions": {rawFile(one(`"U8"`, `[1.0]`, `[0,1]`), 1), "w", "got 1.0, want a whole number"},
		"shape over 64 bits": {rawFile(one(`"U8"`, `[18446744073709551616]`, `[0,1]`), 1), "w", "whole number"},
		"product overflow":   {rawFile(one(`"U8"`, `[4294967296,4294967296]`, `[0,0]`), 0), "w", "overflows"},
		"size overflow":      {rawFile(one(`"F64"`, `[4611686018427387904]`, `[0,0]`), 0), "w", "addressed"},
		"shape not bytes":    {rawFile(one(`"F32"`, `[3]`, `[0,8]`), 8), "w", "want the 12"},
		"half a byte":        {rawFile(one(`"F4"`, `[3]`, `[0,1]`), 1), "w", "whole bytes"},
		"offsets one":        {rawFile(one(`"U8"`, `[1]`, `[1]`), 1), "w", "data_offsets"},
		"offsets three":      {rawFile(one(`"U8"`, `[1]`, `[0,1,2]`), 1), "w", "data_offsets"},
		"offsets backwards":  {rawFile(one(`"U8"`, `[1]`, `[1,0]`), 1), "w", "data_offsets"},
		"offsets negative":   {rawFile(one(`"U8"`, `[1]`, `[-1,0]`), 1), "w", "data_offsets: got -1"},
		"data truncated":     {rawFile(one(`"U8"`, `[9]`, `[0,9]`), 8), "w", "truncated"},
		"bytes left over":    {rawFile(one(`"U8"`, `[9]`, `[0,9]`), 10), "", "got 1 bytes after"},
		"no tensor but data": {rawFile(`{}`, 1), "", "got 1 bytes after"},
		"hole at the start":  {rawFile(one(`"U8"`, `[1]`, `[1,2]`), 2), "w", "no hole"},
		"hole":               {rawFile(two(`[0,2]`, `[3,5]`), 5), "b", "no hole"},
		"overlap":            {rawFile(two(`[0,2]`, `[1,3]`), 3), "b", "no overlap"},
		"same place":         {rawFile(two(`[0,2]`, `[0,2]`), 2), "b", "no overlap"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := writeRaw(t, c.raw)
			_, err := Open(path)
			damage, ok := errors.AsType[*FormatError](err)
			if !ok {
				t.Fatalf("got %v, want a FormatError", err)
			}
			if damage.Path != path || damage.Tensor != c.tensor {
				t.Errorf("got file %q, tensor %q, want %q, %q", damage.Path, damage.Tensor, path, c.tensor)
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q and the file in it", err, c.want)
			}
		})
	}
}

func TestOpen_LongNamesGiveShortErrors(t *testing.T) {
	name := strings.Repeat("x", 1<<20)
	for _, header := range []string{`{"` + name + `":1}`, `{"w":"` + name + `"}`,
		`{"w":{"dtype":"` + name + `","shape":[],"data_offsets":[0,0]}}`,
		`{"w":{"dtype":"U8","shape":[` + strings.Repeat("1,", 1<<19) + `2],"data_offsets":[0,0]}}`,
		`{"w":{"dtype":"U8","shape":[` + strings.Repeat("1", 1<<20) + `],"data_offsets":[0,0]}}`} {
		_, err := Open(writeRaw(t, rawFile(header, 0)))
		if err == nil || len(err.Error()) > 1000 {
			t.Errorf("%.30s: got %.1000v, want a short error", header, err)
		}
	}
}

func TestOpen_RefusesPaths(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: got %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), IndexName) {
		t.Errorf("empty folder: got %v", err)
	}
	if _, err := os.Stat(os.DevNull); err == nil {
		if _, err := Open(os.DevNull); err == nil || !strings.Contains(err.Error(), "regular file") {
			t.Errorf("device: got %v", err)
		}
	}
}

// FuzzOpen: whatever the bytes, an error or a file whose every tensor can be read.
func FuzzOpen(f *testing.F) {
	f.Add(rawFile(goodHeader, 15))
	f.Add(rawFile(`{}`, 0))
	f.Add(rawFile(`{"w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}`, 4))
	f.Add(rawFile(`{"w":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tensors, _, err := parse("fuzz", raw)
		if err != nil {
			if _, ok := errors.AsType[*FormatError](err); !ok {
				t.Errorf("got %v (%T), want a FormatError", err, err)
			}
			return
		}
		total := 0
		for _, tensor := range tensors {
			size, err := byteSize(tensor.DType, tensor.Shape)
			if err != nil || size != len(tensor.Data) {
				t.Errorf("tensor %q: got %d bytes, want %d (%v)", tensor.Name, len(tensor.Data), size, err)
			}
			total += len(tensor.Data)
		}
		headerLen := int(binary.LittleEndian.Uint64(raw))
		if total != len(raw)-lengthBytes-headerLen {
			t.Errorf("tensors cover %d bytes of %d", total, len(raw)-lengthBytes-headerLen)
		}
		// What was read can be written, and comes back the same.
		path := filepath.Join(t.TempDir(), "f.safetensors")
		if err := WriteFile(path, tensors, nil); err != nil {
			t.Fatal("write:", err)
		}
		again, err := Open(path)
		if err != nil {
			t.Fatal("open what was written:", err)
		}
		defer again.Close()
		for _, want := range tensors {
			got, ok := again.Tensor(want.Name)
			if !ok || got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) ||
				!bytes.Equal(got.Data, want.Data) {
				t.Errorf("tensor %q: got %v, want %v", want.Name, got, want)
			}
		}
	})
}
