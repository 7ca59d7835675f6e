package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moegraph/moegraph/internal/atomicfile"
)

// formatName begins every file and enters every key: a new layout of files is a new name.
const formatName = "moegraph kernel 1"

// Disk keeps compiled kernels between runs: one file a key, in this layout:
//
//	moegraph kernel 1\n
//	JSON of header, on one line\n
//	the cubin
//
// A file appears whole or not at all (a temporary file, renamed), so that several processes may share a folder. What
// does not check out (cut short, another key, another checksum) counts as absent and is replaced. A nil Disk
// keeps nothing.
type Disk struct{ dir string }

type header struct {
	Image
	Bytes  int
	SHA256 string // of the cubin
}

// OpenDisk returns the Disk that the environment asks for, nil for none. A folder that cannot be made or written is
// no error: then nothing is kept.
func OpenDisk() *Disk { return DiskAt(cacheDir()) }

// DiskAt returns the Disk in a folder, which is made when first needed; nil for "".
func DiskAt(dir string) *Disk {
	if dir == "" {
		return nil
	}
	return &Disk{dir}
}

// Dir returns the folder, "" for none.
func (d *Disk) Dir() string {
	if d == nil {
		return ""
	}
	return d.dir
}

func (d *Disk) path(key string) string { return filepath.Join(d.dir, key[:2], key+".cubin") }

// load returns the kernel of that key, nil if there is none.
func (d *Disk) load(key string) *Image {
	if d == nil {
		return nil
	}
	b, err := os.ReadFile(d.path(key))
	if err != nil {
		return nil
	}
	b, ok := bytes.CutPrefix(b, []byte(formatName+"\n"))
	if !ok {
		return nil
	}
	line, cubin, ok := bytes.Cut(b, []byte("\n"))
	var h header
	if !ok || json.Unmarshal(line, &h) != nil {
		return nil
	}
	sum := sha256.Sum256(cubin)
	if h.Key != key || h.Bytes != len(cubin) || h.SHA256 != hex.EncodeToString(sum[:]) {
		return nil
	}
	h.Image.Cubin = cubin
	return &h.Image
}

// store keeps the image. A failure costs the next run a compile and nothing else.
func (d *Disk) store(img *Image) {
	if d == nil {
		return
	}
	path := d.path(img.Key)
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	sum := sha256.Sum256(img.Cubin)
	line, err := json.Marshal(header{*img, len(img.Cubin), hex.EncodeToString(sum[:])})
	if err != nil {
		return
	}
	_ = atomicfile.Write(path, func(w io.Writer) error {
		for _, part := range [][]byte{[]byte(formatName + "\n"), line, []byte("\n"), img.Cubin} {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
		return nil
	})
	sweep(filepath.Dir(path))
}

// staleAfter is when a temporary file's writer is surely gone.
const staleAfter = time.Hour

// sweep removes the temporary files of writers that died.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
