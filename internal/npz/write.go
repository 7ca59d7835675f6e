package npz

import (
	"archive/zip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// maxNameBytes is what a zip directory can hold of a name, less ".npy".
const maxNameBytes = 1<<16 - 1 - len(".npy")

// Write writes an .npz file: every array as a stored member NAME.npy, in order, with the same bytes for
// the same arrays. All arrays are checked before the first byte is written; names must differ.
func Write(w io.Writer, arrays []Array) error {
	seen := make(map[string]bool, len(arrays))
	for _, a := range arrays {
		switch {
		case a.Name == "" || len(a.Name) > maxNameBytes || !utf8.ValidString(a.Name):
			return fmt.Errorf("%w: array %.40q: want a name of 1 to %d bytes of UTF-8", ErrInvalid, a.Name, maxNameBytes)
		case seen[a.Name]:
			return fmt.Errorf("%w: array %q: two of that name", ErrInvalid, a.Name)
		}
		seen[a.Name] = true
		if err := a.Check(); err != nil {
			return fmt.Errorf("array %q: %w", a.Name, err)
		}
	}
	z := zip.NewWriter(w)
	for _, a := range arrays {
		member, err := z.CreateHeader(&zip.FileHeader{Name: a.Name + ".npy", Method: zip.Store})
		if err != nil {
			return fmt.Errorf("array %q: %w", a.Name, err)
		}
		if err := WriteNPY(member, a); err != nil {
			return fmt.Errorf("array %q: %w", a.Name, err)
		}
	}
	return z.Close()
}

// WriteNPY writes one array as a .npy file, without its name.
func WriteNPY(w io.Writer, a Array) error {
	if err := a.Check(); err != nil {
		return err
	}
	head, err := header(a)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err = w.Write(a.Data)
	return err
}

// WriteFile writes an .npz file under another name in the same folder and renames it: path holds either
// what it held before or all of the new file.
func WriteFile(path string, arrays []Array) (err error) {
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	if err := Write(f, arrays); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// createBeside opens a new file in the folder of path, with the permissions a plain creation gives.
func createBeside(path string) (*os.File, error) {
	dir, base := filepath.Split(path)
	for try := 0; ; try++ {
		name := filepath.Join(dir, fmt.Sprintf(".%s.%08x.tmp", base, rand.Uint32()))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil || !os.IsExist(err) || try == 100 {
			return f, err
		}
	}
}
