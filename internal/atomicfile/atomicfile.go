// Package atomicfile replaces files as a whole: a reader sees the old content or the new one, never
// a part, and a failed write (a full disk, an error in the content's producer) leaves the old file.
//
// The one function is [Write]. In order: checks on the target, a temporary file in the same folder,
// the content, fsync, permissions, rename, fsync of the folder. Writes to different paths may run at
// the same time; of several to one path the last rename stays.
package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// tempPrefix begins the name of every temporary file; the target's name is no part of it, so that a
// name of the longest allowed length still works.
const tempPrefix = ".atomicfile-"

// bufferBytes gathers small writes; larger ones pass through without a copy.
const bufferBytes = 64 << 10

// Write replaces path by what fill writes.
//
// On any error (fill's own, which is wrapped, a short write, a failed fsync or rename) the temporary
// file is removed and path keeps its old content. A new file gets mode 0666 less the umask, a
// replaced one keeps its permissions. A symbolic link is followed: the file it names is replaced, the
// link stays. A folder, a device and a file without the owner's write permission are refused before
// fill runs.
func Write(path string, fill func(io.Writer) error) error {
	return write(path, fill, createTemp)
}

// file is what write needs of an [os.File]; tests put failing ones in its place.
type file interface {
	io.WriteCloser
	Name() string
	Sync() error
	Chmod(fs.FileMode) error
}

func write(path string, fill func(io.Writer) error, create func(dir string) (file, error)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %q: %w", path, err)
		}
	}()
	target, old, err := resolve(path)
	if err != nil {
		return err
	}
	f, err := create(filepath.Dir(target))
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // also on the way of a panic in fill
			f.Close()
			os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriterSize(f, bufferBytes)
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if old != nil {
		if err := f.Chmod(old.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), target); err != nil {
		return err
	}
	done = true
	return syncDir(filepath.Dir(target))
}

// resolve follows links and says what is at path now: nil for nothing.
func resolve(path string) (target string, old fs.FileInfo, err error) {
	if path == "" {
		return "", nil, errors.New("the path is empty")
	}
	target, err = filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		// A link to nothing would be replaced by the rename, and its meaning lost.
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return "", nil, errors.New("is a symbolic link to a file that does not exist; remove the link")
		}
		return path, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	old, err = os.Stat(target)
	switch {
	case err != nil:
		return "", nil, err
	case old.IsDir():
		return "", nil, errors.New("is a folder, want a file")
	case !old.Mode().IsRegular():
		return "", nil, errors.New("is a device or pipe, want a regular file")
	case old.Mode().Perm()&0o200 == 0:
		return "", nil, errors.New("is read-only: make it writable, or choose another name")
	}
	return target, old, nil
}

// createTemp makes a new file in dir. [os.CreateTemp] would give mode 0600, which a checkpoint that
// others may read does not want.
func createTemp(dir string) (file, error) {
	for {
		name := filepath.Join(dir, fmt.Sprintf("%s%016x", tempPrefix, rand.Uint64()))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return f, nil
	}
}

// syncDir makes the rename itself durable. Systems and file systems that cannot fsync a folder say
// so with EINVAL or an unsupported operation; there the rename is as durable as it gets.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil // a folder that may be written but not read
	}
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}
