// Package toolkit finds the CUDA headers of this machine and says how cgo gets at them: builds with the tag gpu
// need CUDA 12 or 13's cuda.h, with a header of ours before it that gorgonia.org/cu needs with CUDA 13. It needs no CUDA
// itself. What runs needs no toolkit, only the driver.
//
// In order: [Find], which looks where CUDA_HOME and CUDA_PATH say, in /usr/local/cuda, in .cuda of the working
// directory and those above it, and among the packages of the python3 on PATH; then [Toolkit.CFlags].
package toolkit

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

//go:embed include/cuda.h
var header []byte

// Versions of CUDA that we build with, as in CUDA_VERSION: below MaxVersion.
const (
	MinVersion = 12000
	MaxVersion = 14000
)

// Install is what to do where there is no toolkit.
const Install = `install a CUDA toolkit, or only its headers from PyPI: "make cuda-headers" in a checkout of moegraph, ` +
	`"pip install --no-deps nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88" elsewhere; or set CUDA_HOME`

// Toolkit is a set of CUDA headers.
type Toolkit struct {
	Include string // folder of cuda.h
	Version int    // CUDA_VERSION: 13000 for 13.0
}

// Find returns the first usable toolkit. A CUDA_HOME that has none is an error: someone meant it.
func Find() (Toolkit, error) {
	var tried []string
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		root := os.Getenv(name)
		if root == "" {
			continue
		}
		for _, dir := range within(root) {
			t, err := Open(dir)
			if err == nil {
				return t, nil
			}
			tried = append(tried, err.Error())
		}
		return Toolkit{}, fmt.Errorf("%s=%s: no usable CUDA headers: %s", name, root, strings.Join(tried, "; "))
	}
	for _, dir := range places() {
		t, err := Open(dir)
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			tried = append(tried, err.Error())
		}
	}
	why := ""
	if len(tried) > 0 {
		why = " (" + strings.Join(tried, "; ") + ")"
	}
	return Toolkit{}, fmt.Errorf("no CUDA headers found%s: %s", why, Install)
}

// within returns the folders of a toolkit, or of a folder of PyPI packages, that may hold cuda.h.
func within(root string) []string {
	dirs := []string{filepath.Join(root, "include")}
	targets, _ := filepath.Glob(filepath.Join(root, "targets", "*", "include"))
	wheels, _ := filepath.Glob(filepath.Join(root, "nvidia", "cu[0-9]*", "include"))
	dirs = append(append(dirs, targets...), wheels...)
	return append(dirs, filepath.Join(root, "nvidia", "cuda_runtime", "include"))
}

// places returns where to look without a word from the user.
func places() []string {
	dirs := within("/usr/local/cuda")
	if wd, err := os.Getwd(); err == nil {
		for ; ; wd = filepath.Dir(wd) {
			dirs = append(dirs, within(filepath.Join(wd, ".cuda"))...)
			if wd == filepath.Dir(wd) {
				break
			}
		}
	}
	out, err := exec.Command("python3", "-c", "import sys; print('\\n'.join(sys.path))").Output()
	if err != nil {
		return dirs // no Python: nothing to look at
	}
	for _, line := range strings.Split(string(out), "\n") {
		if line != "" {
			dirs = append(dirs, within(line)...)
		}
	}
	return dirs
}

var versionLine = regexp.MustCompile(`(?m)^#define\s+CUDA_VERSION\s+(\d+)`)

// Open returns the toolkit whose cuda.h is in a folder.
func Open(include string) (Toolkit, error) {
	path := filepath.Join(include, "cuda.h")
	text, err := os.ReadFile(path)
	if err != nil {
		return Toolkit{}, err
	}
	m := versionLine.FindSubmatch(text)
	if m == nil {
		return Toolkit{}, fmt.Errorf("%s: no CUDA_VERSION in it", path)
	}
	version, err := strconv.Atoi(string(m[1]))
	if err != nil || version < MinVersion || version >= MaxVersion {
		return Toolkit{}, fmt.Errorf("%s: got CUDA_VERSION %s, want %d to below %d", path, m[1], MinVersion, MaxVersion)
	}
	abs, err := filepath.Abs(include)
	return Toolkit{Include: abs, Version: version}, err
}

// CFlags returns the value of CGO_CFLAGS for builds with the tag gpu. It writes our header to the user's cache
// folder, since it must lie in a folder of its own, outside of any module.
func (t Toolkit) CFlags() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "moegraph", fmt.Sprintf("cgo-%.6x", sha256.Sum256(header)))
	if err := install(dir); err != nil {
		return "", fmt.Errorf("write a header for cgo: %w", err)
	}
	return "-O2 -g " + quote("-I"+dir) + " " + quote("-I"+t.Include), nil
}

// install writes our header to a folder whole, also where several processes do at once.
func install(dir string) error {
	path := filepath.Join(dir, "cuda.h")
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, header) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(header)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// quote makes one word of a flag, as cgo reads them.
func quote(flag string) string {
	if strings.ContainsAny(flag, " \t'") {
		return `"` + flag + `"`
	}
	return flag
}
