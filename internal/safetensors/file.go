package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// IndexName and SingleName are what a checkpoint folder holds by convention: an index over
	// shards, or one file.
	IndexName  = "model.safetensors.index.json"
	SingleName = "model.safetensors"
	// indexSuffix tells an index from a file of tensors.
	indexSuffix = ".index.json"
)

// Tensor is one tensor of a checkpoint.
type Tensor struct {
	Name  string // any UTF-8 but "__metadata__"
	DType string // as the format writes it: "F32", "BF16", "F16", "F8_E4M3", "F8_E8M0", "U8", "I64", ...
	Shape []int  // axes from the outermost in; none for a scalar
	// Data is the elements in C order, little-endian. Out of a File it is a view of the mapping:
	// read-only (a write faults), valid until Close, and aligned to nothing in particular.
	Data []byte
}

// File is an open checkpoint: one file, or all shards of one.
type File struct {
	path     string
	tensors  map[string]Tensor
	names    []string // sorted
	metadata map[string]string
	mappings []mapping
}

// mapping is one file's content and how to let go of it.
type mapping struct {
	data  []byte
	unmap func() error
}

// Open opens a checkpoint: a file of tensors, an index (a name that ends in ".index.json"), or a
// folder that holds model.safetensors.index.json or else model.safetensors.
//
// The content is checked as a whole: header, names, types, shapes and that the tensors cover the file
// without hole or overlap; for an index also that every shard it names lies in its folder and holds
// the tensors it is said to hold. What is wrong with the content comes as a [*FormatError].
func Open(path string) (*File, error) {
	f := &File{path: path, tensors: map[string]Tensor{}}
	if err := f.open(path); err != nil {
		f.Close()
		return nil, err
	}
	f.names = slices.Sorted(maps.Keys(f.tensors))
	return f, nil
}

func (f *File) open(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if info.IsDir() {
		path, err = findInFolder(path)
		if err != nil {
			return err
		}
	}
	if strings.HasSuffix(path, indexSuffix) {
		return f.openIndex(path)
	}
	tensors, metadata, err := f.openShard(path)
	if err != nil {
		return err
	}
	f.metadata = metadata
	for _, t := range tensors {
		f.tensors[t.Name] = t
	}
	return nil
}

// openShard maps one file of tensors; the mapping is f's to release, also after an error.
func (f *File) openShard(path string) ([]Tensor, map[string]string, error) {
	m, err := openMapping(path)
	if err != nil {
		return nil, nil, fmt.Errorf("safetensors: %w", err)
	}
	f.mappings = append(f.mappings, m)
	return parse(path, m.data)
}

func openMapping(path string) (mapping, error) {
	// Before opening, because opening a pipe waits for its other end.
	info, err := os.Stat(path)
	if err != nil {
		return mapping{}, err
	}
	if !info.Mode().IsRegular() {
		return mapping{}, fmt.Errorf("open %q: got a folder, device or pipe, want a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return mapping{}, err
	}
	defer file.Close() // a mapping outlives its descriptor
	// Again, from the descriptor: this size belongs to the file that is mapped.
	info, err = file.Stat()
	if err != nil {
		return mapping{}, err
	}
	size := int(info.Size())
	if int64(size) != info.Size() || size < 0 {
		return mapping{}, fmt.Errorf("open %q: got %d bytes, more than can be addressed", path, info.Size())
	}
	if size == 0 { // which no system maps
		return mapping{unmap: func() error { return nil }}, nil
	}
	m, err := mapFile(file, size)
	if err != nil {
		return mapping{}, fmt.Errorf("map %q, %d bytes: %w", path, size, err)
	}
	return m, nil
}

func findInFolder(dir string) (string, error) {
	for _, name := range []string{IndexName, SingleName} {
		path := filepath.Join(dir, name)
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("safetensors: %w", err)
		}
	}
	return "", fmt.Errorf("safetensors: folder %q: got neither %s nor %s: name the file: %w",
		dir, IndexName, SingleName, fs.ErrNotExist)
}

// Path is what [Open] was given.
func (f *File) Path() string { return f.path }

// Names lists the tensors, sorted.
func (f *File) Names() []string { return slices.Clone(f.names) }

// Tensor finds a tensor by its name. After Close there is none.
func (f *File) Tensor(name string) (Tensor, bool) {
	t, ok := f.tensors[name]
	t.Shape = slices.Clone(t.Shape)
	return t, ok
}

// Metadata is the file's own text entries; of a sharded checkpoint the index's, values that are no
// strings as their JSON text.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Close releases the mapping: Data of every tensor got from f must not be read any more. A second
// call does nothing.
func (f *File) Close() error {
	var errs []error
	for _, m := range f.mappings {
		errs = append(errs, m.unmap())
	}
	f.mappings, f.tensors, f.names = nil, nil, nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("safetensors %q: close: %w", f.path, err)
	}
	return nil
}
