package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func fillWith(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// wantOnly checks that dir holds the one file name with this content: no temporary file is left.
func wantOnly(t *testing.T, dir, name, content string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("folder: got %v, want only %q", entries, name)
	}
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != content {
		t.Errorf("content: got %q, want %q", got, content)
	}
}

func TestWrite_CreatesAndReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	large := strings.Repeat("0123456789", 3*bufferBytes/10)
	for _, content := range []string{"first", "", large, "last"} {
		if err := Write(path, fillWith(content)); err != nil {
			t.Fatal(err)
		}
		wantOnly(t, dir, "f", content)
	}
}

func TestWrite_LongestName(t *testing.T) {
	dir := t.TempDir()
	name := strings.Repeat("n", 255)
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Skip("names of 255 bytes:", err)
	}
	if err := Write(filepath.Join(dir, name), fillWith("x")); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, dir, name, "x")
}

func TestWrite_KeepsPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("windows has one permission bit")
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, fillWith("new")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o640 {
		t.Errorf("mode: got %o, want 640", got)
	}
}

func TestWrite_FollowsLink(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(other, "f"), link); err != nil {
		t.Skip("no symbolic links:", err)
	}
	if err := Write(link, fillWith("x")); err == nil {
		t.Error("link to nothing: got no error")
	}
	if err := os.WriteFile(filepath.Join(other, "f"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, fillWith("new")); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, other, "f", "new")
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("link: got mode %v (%v), want it still a link", info.Mode(), err)
	}
}

// faultyFile fails at the named call, after passing limit bytes through for "write".
type faultyFile struct {
	file
	at    string
	limit int
	err   error
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if f.at == "write" && len(p) > f.limit {
		n, _ := f.file.Write(p[:f.limit])
		f.limit = 0
		return n, f.err
	}
	return f.file.Write(p)
}

func (f *faultyFile) Sync() error {
	if f.at == "sync" {
		return f.err
	}
	return f.file.Sync()
}

func (f *faultyFile) Close() error {
	err := f.file.Close()
	if f.at == "close" {
		return f.err
	}
	return err
}

func (f *faultyFile) Chmod(m fs.FileMode) error {
	if f.at == "chmod" {
		return f.err
	}
	return f.file.Chmod(m)
}

func TestWrite_FailureKeepsOldFile(t *testing.T) {
	for _, at := range []string{"create", "write", "chmod", "sync", "close"} {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := write(path, fillWith(strings.Repeat("new", 1000)), func(dir string) (file, error) {
				if at == "create" {
					return nil, syscall.ENOSPC
				}
				f, err := createTemp(dir)
				return &faultyFile{file: f, at: at, limit: 100, err: syscall.ENOSPC}, err
			})
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want ENOSPC that names %s", err, path)
			}
			wantOnly(t, dir, "f", "old")
		})
	}
}

func TestWrite_FillFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	wrong := errors.New("wrong")
	err := Write(path, func(w io.Writer) error {
		w.Write(bytes.Repeat([]byte("x"), 2*bufferBytes))
		return wrong
	})
	if !errors.Is(err, wrong) {
		t.Errorf("got %v, want fill's error", err)
	}
	wantOnly(t, dir, "f", "old")

	func() {
		defer func() {
			if recover() == nil {
				t.Error("panic in fill: got none")
			}
		}()
		Write(path, func(io.Writer) error { panic("in fill") })
	}()
	wantOnly(t, dir, "f", "old")
}

// devFull sends the content to a device that is always full, as the system reports it.
type devFull struct {
	file
	full *os.File
}

func (f devFull) Write(p []byte) (int, error) { return f.full.Write(p) }

func TestWrite_FullDevice(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full:", err)
	}
	defer full.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The error of a small write shows at the flush only: fill itself sees none.
	err = write(path, fillWith("new"), func(dir string) (file, error) {
		f, err := createTemp(dir)
		return devFull{f, full}, err
	})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v, want no space left on device", err)
	}
	wantOnly(t, dir, "f", "old")
}

func TestWrite_Refuses(t *testing.T) {
	dir := t.TempDir()
	readOnly := filepath.Join(dir, "readonly")
	if err := os.WriteFile(readOnly, []byte("old"), 0o444); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	cases := map[string]struct{ path, want string }{
		"folder":         {dir, "is a folder"},
		"read-only file": {readOnly, "is read-only"},
		"no such folder": {filepath.Join(dir, "none", "f"), "none"},
		"empty path":     {"", "path is empty"},
	}
	if os.Symlink(loop, loop) == nil {
		cases["link loop"] = struct{ path, want string }{loop, "link"}
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		cases["device"] = struct{ path, want string }{"/dev/full", "want a regular file"}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			called := false
			err := Write(c.path, func(io.Writer) error { called = true; return nil })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if called {
				t.Error("fill ran")
			}
		})
	}
	if got, _ := os.ReadFile(readOnly); string(got) != "old" {
		t.Errorf("read-only file: got %q, want the old content", got)
	}
}
