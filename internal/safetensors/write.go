package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/moegraph/moegraph/internal/atomicfile"
)

// headerAlign is what the header is padded to, with spaces: the data begins at a multiple of it.
const headerAlign = 8

// WriteFile writes tensors and metadata (may be nil) to path, complete or not at all: on an error the
// file that was there stays. Data goes out as it is, without a copy, so it may be views of an open
// [File], also of the one at path.
//
// The file's bytes depend on content only, not on the order of tensors: wide element types come first
// (every tensor then begins at a multiple of its element's size), then by name; metadata by key.
// Equal names, an unknown dtype, Data whose length is not the shape's, and text that is not UTF-8 are
// refused before anything is written.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	sorted, err := checkTensors(tensors)
	if err != nil {
		return fmt.Errorf("safetensors: write %q: %w", path, err)
	}
	header, err := buildHeader(sorted, metadata)
	if err != nil {
		return fmt.Errorf("safetensors: write %q: %w", path, err)
	}
	err = atomicfile.Write(path, func(w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		for _, t := range sorted {
			if _, err := w.Write(t.Data); err != nil {
				return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// checkTensors returns tensors in the file's order.
func checkTensors(tensors []Tensor) ([]Tensor, error) {
	for _, t := range tensors {
		size, err := byteSize(t.DType, t.Shape)
		switch {
		case err != nil:
		case t.Name == metadataKey:
			err = errors.New("the name is reserved by the format")
		case !utf8.ValidString(t.Name):
			err = errors.New("the name is not UTF-8")
		case len(t.Data) != size:
			err = fmt.Errorf("data: got %d bytes, want the %d that %s of %s takes",
				len(t.Data), size, formatShape(t.Shape), t.DType)
		}
		if err != nil {
			return nil, &tensorError{t.Name, err}
		}
	}
	sorted := slices.Clone(tensors)
	slices.SortFunc(sorted, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(dtypeBits[b.DType], dtypeBits[a.DType]), cmp.Compare(a.Name, b.Name))
	})
	seen := map[string]bool{}
	for _, t := range sorted {
		if seen[t.Name] {
			return nil, &tensorError{t.Name, errors.New("got the name twice")}
		}
		seen[t.Name] = true
	}
	return sorted, nil
}

// buildHeader is everything before the data: length, JSON and padding.
func buildHeader(sorted []Tensor, metadata map[string]string) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, lengthBytes))
	b.WriteByte('{')
	if len(metadata) > 0 {
		fmt.Fprintf(b, "%s:{", quoteJSON(metadataKey))
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, fmt.Errorf("metadata %s: got text that is not UTF-8", quote(key))
			}
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(b, "%s:%s", quoteJSON(key), quoteJSON(metadata[key]))
		}
		b.WriteByte('}')
	}
	offset := 0
	for i, t := range sorted {
		if i > 0 || len(metadata) > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "%s:{%q:%q,%q:[", quoteJSON(t.Name), "dtype", t.DType, "shape")
		for axis, dim := range t.Shape {
			if axis > 0 {
				b.WriteByte(',')
			}
			fmt.Fprint(b, dim)
		}
		fmt.Fprintf(b, "],%q:[%d,%d]}", "data_offsets", offset, offset+len(t.Data))
		offset += len(t.Data)
	}
	b.WriteByte('}')
	for b.Len()%headerAlign != 0 {
		b.WriteByte(' ')
	}
	headerLen := b.Len() - lengthBytes
	if headerLen > maxHeaderBytes {
		return nil, fmt.Errorf("header: got %d bytes of names, shapes and metadata, want at most %d",
			headerLen, maxHeaderBytes)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(headerLen))
	return b.Bytes(), nil
}

// quoteJSON is s as a JSON string; s is valid UTF-8, so there is no error.
func quoteJSON(s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("safetensors: a string as JSON: %v", err))
	}
	return text
}
