package npz

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// npy is a .npy file with any header text.
func npy(version byte, text string, data []byte) []byte {
	b := append([]byte(magic), version, 0)
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	}
	return append(append(b, text...), data...)
}

func dict(descr, order, shape string) string {
	return fmt.Sprintf("{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n", descr, order, shape)
}

// member is a zip member whose declared sizes need not be true.
type member struct {
	name     string
	method   uint16
	content  []byte
	declared uint64 // uncompressed size; 0: the true one
	packed   uint64 // compressed size; 0: the true one
	crc      uint32 // added to the true one
	flags    uint16
}

func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		packed := m.content
		if m.method == zip.Deflate {
			packed = deflate(t, m.content)
		}
		h := &zip.FileHeader{Name: m.name, Method: m.method, Flags: m.flags, CRC32: crc32.ChecksumIEEE(m.content) + m.crc,
			UncompressedSize64: uint64(len(m.content)), CompressedSize64: uint64(len(packed))}
		if m.declared != 0 {
			h.UncompressedSize64 = m.declared
		}
		if m.packed != 0 {
			h.CompressedSize64 = m.packed
		}
		w, err := z.CreateRaw(h)
		if err == nil {
			_, err = w.Write(packed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func deflate(t testing.TB, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRead_RefusesHeaders wraps each header in an archive.
func TestRead_RefusesHeaders(t *testing.T) {
	const f4, no = "'<f4'", "False"
	four := make([]byte, 4)
	for name, c := range map[string]struct {
		content []byte
		want    string // in the error
	}{
		"empty":          {nil, "EOF"},
		"magic":          {[]byte("PK not numpy, it is"), "NUMPY"},
		"version":        {npy(4, dict(f4, no, "()"), four), "version"},
		"cut length":     {[]byte(magic + "\x01\x00\x05"), "EOF"},
		"cut header":     {npy(1, dict(f4, no, "()"), four)[:40], "EOF"},
		"huge header":    {append([]byte(magic+"\x02\x00"), 0xff, 0xff, 0xff, 0x7f), "header"},
		"fortran":        {npy(1, dict(f4, "True", "(1,)"), four), "C order"},
		"big endian":     {npy(1, dict("'>f4'", no, "(1,)"), four), "big endian"},
		"complex":        {npy(1, dict("'<c8'", no, "()"), make([]byte, 8)), "<c8"},
		"object":         {npy(1, dict("'|O'", no, "()"), four), "|O"},
		"record":         {npy(1, dict("[('a', '<f4')]", no, "()"), four), "record"},
		"long string":    {npy(1, dict("'<U99999999999999999999'", no, "()"), four), "<U"},
		"signed string":  {npy(1, dict("'<U+1'", no, "()"), four), "<U"},
		"negative":       {npy(1, dict(f4, no, "(-1,)"), four), "negative"},
		"two negatives":  {npy(1, dict(f4, no, "(-1, -1)"), four), "negative"},
		"overflow":       {npy(1, dict(f4, no, "(4294967296, 4294967296)"), nil), "overflow"},
		"wraps to one":   {npy(1, dict("'|u1'", no, "(3, 12297829382473034411)"), make([]byte, 1)), "number"},
		"behind zero":    {npy(1, dict(f4, no, "(0, 4294967296, 4294967296)"), nil), "overflow"},
		"too few":        {npy(1, dict(f4, no, "(2,)"), four), "want 8"},
		"too many":       {npy(1, dict(f4, no, "(1,)"), make([]byte, 5)), "want 4"},
		"huge shape":     {npy(1, dict("'|u1'", no, "(1000000000000,)"), four), "want 1000000000000"},
		"many dims":      {npy(1, dict(f4, no, "("+strings.Repeat("1, ", 65)+")"), four), "dimensions"},
		"float dim":      {npy(1, dict(f4, no, "(1.5,)"), four), "number"},
		"open tuple":     {npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1", four), "tuple"},
		"open dict":      {npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()", four), "want"},
		"open string":    {npy(1, "{'descr", four), "string"},
		"missing key":    {npy(1, "{'descr': '<f4', 'shape': ()}", four), "fortran_order"},
		"unknown key":    {npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}", four), "unknown"},
		"key twice":      {npy(1, "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", four), "twice"},
		"no comma":       {npy(1, "{'descr': '<f4' 'fortran_order': False, 'shape': ()}", four), "comma"},
		"behind":         {npy(1, dict(f4, no, "()")+"x", four), "behind"},
		"no dict":        {npy(1, "[]", four), "{"},
		"other order":    {npy(1, dict(f4, "Maybe", "()"), four), "False"},
		"shape a number": {npy(1, dict(f4, no, "4"), four), "("},
	} {
		for _, method := range []uint16{zip.Store, zip.Deflate} {
			_, err := readBytes(archive(t, member{name: "x.npy", method: method, content: c.content}))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"x.npy"`) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got error %v, want one about x.npy and %q", name, err, c.want)
			}
		}
	}
}

// TestRead_TakesHeaders has what other writers make of the same header.
func TestRead_TakesHeaders(t *testing.T) {
	for _, text := range []string{
		dict("'<f4'", "False", "(2,)"),
		`{"descr":"<f4","fortran_order":False,"shape":(2,)}`,
		"{'shape': (2L,), 'fortran_order': False, 'descr': '<f4'}" + strings.Repeat(" ", 500) + "\n",
		"{'shape': ( 2 , ) , 'fortran_order': False, 'descr': '<f4', }",
	} {
		for version := range byte(4) {
			if version == 0 {
				continue
			}
			got, err := readBytes(archive(t, member{name: "x.npy", content: npy(version, text, make([]byte, 8))}))
			if err != nil || len(got) != 1 || got[0].DType != "<f4" || len(got[0].Shape) != 1 || got[0].Shape[0] != 2 {
				t.Errorf("version %d, %q: got %+v, error %v", version, text, got, err)
			}
		}
	}
}

func TestRead_RefusesArchives(t *testing.T) {
	content := npy(1, dict("'|u1'", "False", "(3,)"), []byte{1, 2, 3})
	size := uint64(len(content))
	good := member{name: "x.npy", content: content}
	packed := member{name: "x.npy", method: zip.Deflate, content: content}
	with := func(m member, edit func(m *member)) []byte {
		edit(&m)
		return archive(t, m)
	}
	for name, c := range map[string]struct {
		file []byte
		kind error
	}{
		"no zip":            {[]byte("nothing of the kind"), ErrInvalid},
		"empty":             {nil, ErrInvalid},
		"other member":      {with(good, func(m *member) { m.name = "x.txt" }), ErrInvalid},
		"no name":           {with(good, func(m *member) { m.name = ".npy" }), ErrInvalid},
		"twice":             {archive(t, good, good), ErrInvalid},
		"encrypted":         {with(good, func(m *member) { m.flags = 1 }), ErrInvalid},
		"method":            {with(good, func(m *member) { m.method = 12 }), ErrInvalid},
		"stored, more":      {with(good, func(m *member) { m.declared = size + 1 }), ErrInvalid},
		"stored, both more": {with(good, func(m *member) { m.declared, m.packed = size+1, size+1 }), ErrInvalid},
		"stored, fewer":     {with(good, func(m *member) { m.declared, m.packed = size-1, size-1 }), ErrInvalid},
		"beyond the file":   {with(good, func(m *member) { m.declared, m.packed = 1<<40, 1<<40 }), ErrInvalid},
		"deflated, more":    {with(packed, func(m *member) { m.declared = size + 1 }), ErrInvalid},
		"deflated, fewer":   {with(packed, func(m *member) { m.declared = size - 1 }), ErrInvalid},
		"cannot inflate":    {with(packed, func(m *member) { m.declared = 1 << 33 }), ErrInvalid},
		"wrong checksum":    {with(good, func(m *member) { m.crc = 1 }), ErrInvalid},
		"wrong checksum 2":  {with(packed, func(m *member) { m.crc = 1 }), ErrInvalid},
		"wraps around":      {with(good, func(m *member) { m.packed, m.declared = 1<<64-1, 1<<64-1 }), ErrInvalid},
	} {
		if _, err := readBytes(c.file); !errors.Is(err, c.kind) {
			t.Errorf("%s: got error %v, want %v", name, err, c.kind)
		}
	}
}

// TestRead_Overlap has two members share the bytes of one: the second entry of the directory is given
// size, checksum and place of the first.
func TestRead_Overlap(t *testing.T) {
	big := npy(1, dict("'|u1'", "False", "(4096,)"), make([]byte, 4096))
	small := npy(1, dict("'|u1'", "False", "(1,)"), make([]byte, 1))
	file := archive(t, member{name: "a.npy", content: big}, member{name: "b.npy", content: small})
	first := bytes.Index(file, []byte("PK\x01\x02"))
	second := first + 4 + bytes.Index(file[first+4:], []byte("PK\x01\x02"))
	copy(file[second+16:second+28], file[first+16:first+28])
	copy(file[second+42:second+46], file[first+42:first+46])
	if _, err := readBytes(file); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"b.npy"`) {
		t.Errorf("got error %v, want one about b.npy", err)
	}
}

// TestRead_Cut cuts a good archive everywhere and flips every byte: an error or arrays, never a panic.
func TestRead_Cut(t *testing.T) {
	file := mustWrite(t, samples()[:6])
	for n := range file {
		if _, err := readBytes(file[:n]); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%d of %d bytes: got error %v", n, len(file), err)
		}
		flipped := append([]byte(nil), file...)
		flipped[n] ^= 0x55
		if arrays, err := readBytes(flipped); err == nil {
			for _, a := range arrays {
				if err := a.Check(); err != nil {
					t.Fatalf("byte %d flipped: %v", n, err)
				}
			}
		}
	}
}

func TestRead_Limit(t *testing.T) {
	zeros := make([]byte, 1<<20)
	content := npy(1, dict("'|u1'", "False", "(1048576,)"), zeros)
	bomb := archive(t, member{name: "a.npy", method: zip.Deflate, content: content},
		member{name: "b.npy", method: zip.Deflate, content: content})
	if _, err := readBytes(bomb); err != nil {
		t.Fatal(err)
	}
	o := Options{MaxBytes: int64(len(content)) + 1000}
	_, err := o.Read(bytes.NewReader(bomb), int64(len(bomb)))
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), `"b.npy"`) {
		t.Errorf("got error %v, want ErrTooLarge about b.npy", err)
	}
	path := filepath.Join(t.TempDir(), "bomb.npz")
	if err := os.WriteFile(path, bomb, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := o.ReadFile(path); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), path) {
		t.Errorf("got error %v, want ErrTooLarge about %s", err, path)
	}
	if _, err := ReadNPY(bytes.NewReader(content), 1<<50); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one array: got error %v, want ErrTooLarge", err)
	}
}

// TestRead_Allocates shows that memory follows what a file holds, not what it says: here 512 MiB, in a
// deflated member large enough to make them possible, that ends after a few bytes.
func TestRead_Allocates(t *testing.T) {
	const claimed = 512 << 20
	head := npy(1, dict("'|u1'", "False", fmt.Sprintf("(%d,)", claimed)), nil)
	noise := make([]byte, claimed/maxInflation+4096) // behind the end of the deflated stream
	m := member{name: "x.npy", method: zip.Deflate, content: head}
	packed := append(deflate(t, head), noise...)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateRaw(&zip.FileHeader{Name: m.name, Method: m.method, CRC32: 1,
		UncompressedSize64: uint64(len(head)) + claimed, CompressedSize64: uint64(len(packed))})
	if err == nil {
		_, err = w.Write(packed)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = readBytes(b.Bytes())
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got error %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("took %d bytes for a file of %d", took, b.Len())
	}
}

func FuzzRead(f *testing.F) {
	f.Add(mustWrite(f, samples()))
	f.Add(archive(f, member{name: "x.npy", method: zip.Deflate, content: npy(2, dict("'<f4'", "False", "(1, 1)"), make([]byte, 4))}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, file []byte) {
		o := Options{MaxBytes: 1 << 20}
		arrays, err := o.Read(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		again, err := readBytes(mustWrite(t, arrays))
		if err != nil || len(again) != len(arrays) {
			t.Fatalf("written again: got %d arrays of %d, error %v", len(again), len(arrays), err)
		}
		if _, _, err := Split(arrays); err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
	})
}

// FuzzReadNPY reaches the header parser without a zip around it.
func FuzzReadNPY(f *testing.F) {
	f.Add(npy(1, dict("'<f4'", "False", "(1, 1)"), make([]byte, 4)))
	f.Add(npy(3, dict("'<U3'", "False", "()"), make([]byte, 12)))
	f.Fuzz(func(t *testing.T, file []byte) {
		a, err := ReadNPY(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := WriteNPY(&b, a); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadNPY(&b, int64(b.Len())); err != nil || !bytes.Equal(again.Data, a.Data) {
			t.Fatalf("written again: error %v", err)
		}
	})
}
