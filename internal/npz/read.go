package npz

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	// DefaultMaxBytes is the limit on the arrays of a file unless Options says otherwise: 16 GiB.
	DefaultMaxBytes = 16 << 30
	// maxInflation is more than deflate can expand: 258 bytes cost at least two bits.
	maxInflation = 1040
	// firstBytes is what is taken for a deflated member before any of it has been seen.
	firstBytes = 1 << 20
)

// Options bound what reading takes. The zero value is the default.
type Options struct {
	MaxBytes int64 // of all members of a file, headers included; 0: DefaultMaxBytes
}

func (o Options) maxBytes() int64 {
	if o.MaxBytes > 0 {
		return o.MaxBytes
	}
	return DefaultMaxBytes
}

// ReadFile reads all arrays of an .npz file with default options.
func ReadFile(path string) ([]Array, error) { return Options{}.ReadFile(path) }

// Read reads all arrays of an .npz file of size bytes with default options.
func Read(r io.ReaderAt, size int64) ([]Array, error) { return Options{}.Read(r, size) }

// ReadNPY reads a .npy file of size bytes with default options. The array has no name.
func ReadNPY(r io.Reader, size int64) (Array, error) {
	if limit := (Options{}).maxBytes(); size > limit {
		return Array{}, fmt.Errorf("%w: %d bytes, want at most %d", ErrTooLarge, size, limit)
	}
	return readArray(r, size, firstBytes)
}

// ReadFile reads all arrays of an .npz file, in the file's order. Errors name the file and the member.
func (o Options) ReadFile(path string) ([]Array, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	arrays, err := o.Read(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return arrays, nil
}

// Read reads all arrays of an .npz file of size bytes, in the file's order. Errors name the member.
func (o Options) Read(r io.ReaderAt, size int64) ([]Array, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := o.checkDirectory(z, size); err != nil {
		return nil, err
	}
	arrays := make([]Array, 0, len(z.File))
	for _, f := range z.File {
		a, err := readMember(f)
		if err != nil {
			return nil, fmt.Errorf("member %q: %w", f.Name, err)
		}
		a.Name = strings.TrimSuffix(f.Name, ".npy")
		arrays = append(arrays, a)
	}
	return arrays, nil
}

// checkDirectory holds the declared sizes of all members against each other, the file and the limit,
// before any of them is read. Afterwards compressed sizes fit into the file together, so no bytes serve
// two members, and no member can be larger than what deflate makes of its compressed bytes.
func (o Options) checkDirectory(z *zip.Reader, size int64) error {
	seen := make(map[string]bool, len(z.File))
	packed, total := uint64(0), uint64(0)
	for _, f := range z.File {
		n, c := f.UncompressedSize64, f.CompressedSize64
		switch {
		case !strings.HasSuffix(f.Name, ".npy") || f.Name == ".npy":
			return fmt.Errorf("%w: member %q: want a name that ends in .npy", ErrInvalid, f.Name)
		case seen[f.Name]:
			return fmt.Errorf("%w: member %q: two of that name", ErrInvalid, f.Name)
		case f.Flags&1 != 0:
			return fmt.Errorf("%w: member %q: encrypted", ErrInvalid, f.Name)
		case f.Method != zip.Store && f.Method != zip.Deflate:
			return fmt.Errorf("%w: member %q: compression method %d, want stored or deflated", ErrInvalid, f.Name, f.Method)
		case c > uint64(size)-packed:
			return fmt.Errorf("%w: member %q: %d bytes, more than the file of %d has for it", ErrInvalid, f.Name, c, size)
		case f.Method == zip.Store && c != n || c < n/maxInflation:
			return fmt.Errorf("%w: member %q: %d bytes cannot come from %d", ErrInvalid, f.Name, n, c)
		case n > uint64(o.maxBytes())-total:
			return fmt.Errorf("%w: member %q: %d bytes after %d of others, want at most %d in all",
				ErrTooLarge, f.Name, n, total, o.maxBytes())
		}
		seen[f.Name] = true
		packed += c
		total += n
	}
	return nil
}

// readMember reads one array and, by reading to its end, has the checksum compared.
func readMember(f *zip.File) (Array, error) {
	r, err := f.Open()
	if err != nil {
		return Array{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	defer r.Close()
	first := int64(firstBytes)
	if f.Method == zip.Store { // checkDirectory: the file holds these bytes
		first = int64(f.UncompressedSize64)
	}
	return readArray(r, int64(f.UncompressedSize64), first)
}

// readArray reads an array that takes size bytes with its header. At most first bytes are allocated before
// data has arrived; from there the buffer doubles as it fills.
func readArray(r io.Reader, size, first int64) (Array, error) {
	a, numHeader, err := readHeader(r)
	if err != nil {
		return a, err
	}
	want, err := dataSize(a.DType, a.Shape)
	if err != nil {
		return a, err
	}
	if want != size-numHeader {
		return a, fmt.Errorf("%w: data: got %d bytes, want %d (shape %v of %s)",
			ErrInvalid, size-numHeader, want, a.Shape, a.DType)
	}
	a.Data, err = readExactly(r, want, first)
	if err != nil {
		return a, fmt.Errorf("%w: data: %w", ErrInvalid, err)
	}
	switch n, err := io.ReadFull(r, make([]byte, 1)); {
	case n != 0:
		return a, fmt.Errorf("%w: data: more than the %d bytes of shape %v", ErrInvalid, want, a.Shape)
	case err != io.EOF:
		return a, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return a, nil
}

// readExactly reads want bytes into a buffer that starts at no more than first.
func readExactly(r io.Reader, want, first int64) ([]byte, error) {
	data := make([]byte, min(want, first))
	filled := 0
	for {
		n, err := io.ReadFull(r, data[filled:])
		if filled += n; err != nil && filled < len(data) {
			return nil, noEOF(err)
		}
		if int64(filled) == want {
			return data, nil
		}
		grown := make([]byte, min(want, 2*int64(len(data))))
		copy(grown, data)
		data = grown
	}
}
