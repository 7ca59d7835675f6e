package nvrtc

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// candidates returns the libraries to try, best first. own is what the user's variable holds.
func candidates(own string) []string {
	if own != "" {
		// What the user names is the only choice: another library would hide a mistake.
		if info, err := os.Stat(own); err == nil && info.IsDir() {
			return libraries(own)
		}
		return []string{own}
	}
	var dirs []string
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := os.Getenv(name); home != "" {
			dirs = append(dirs, toolkit(home)...)
		}
	}
	dirs = append(dirs, toolkit("/usr/local/cuda")...)
	homes, _ := filepath.Glob("/usr/local/cuda-*")
	slices.SortFunc(homes, byVersion)
	for _, home := range homes {
		dirs = append(dirs, toolkit(home)...)
	}
	var libs []string
	for _, dir := range dirs {
		libs = append(libs, libraries(dir)...)
	}
	if len(libs) == 0 { // starting python takes a while
		for _, dir := range sitePackages() {
			libs = append(libs, libraries(dir)...)
		}
	}
	return append(libs, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
}

func toolkit(home string) []string {
	dirs := []string{filepath.Join(home, "lib64"), filepath.Join(home, "lib")}
	more, _ := filepath.Glob(filepath.Join(home, "targets", "*", "lib"))
	return append(dirs, more...)
}

// libraries returns the folder's libnvrtc files, the newest first, without the variants beside them.
func libraries(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, "libnvrtc.so*"))
	slices.SortFunc(all, byVersion)
	return all
}

// builtins returns the libraries of built-in headers that lie beside lib, which must be loaded before it.
func builtins(lib string) []string {
	if !strings.Contains(lib, "/") {
		return nil
	}
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(lib), "libnvrtc-builtins.so*"))
	slices.SortFunc(all, byVersion)
	return all
}

// include returns the toolkit's headers that belong to lib, "" if they are not there.
func include(lib string) string {
	if real, err := filepath.EvalSymlinks(lib); err == nil {
		lib = real
	}
	dir := filepath.Dir(lib)
	for _, rel := range []string{"../include", "../../include", "../../../include", "../../cuda_runtime/include"} {
		inc := filepath.Join(dir, rel)
		if _, err := os.Stat(filepath.Join(inc, "cuda_bf16.h")); err == nil {
			return inc
		}
	}
	return ""
}

// byVersion puts the higher numbers at the end of a name first.
func byVersion(a, b string) int {
	va, vb := version(a), version(b)
	return -slices.Compare(va, vb)
}

// version returns the numbers after the last ".so." or "-" of a name.
func version(name string) []int {
	name = filepath.Base(name)
	at := strings.LastIndex(name, ".so.") + len(".so.")
	if at < len(".so.") {
		at = strings.LastIndex(name, "-") + 1
	}
	var v []int
	for part := range strings.SplitSeq(name[at:], ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return v
		}
		v = append(v, n)
	}
	return v
}

// sitePackages returns the folders of NVIDIA's wheels in the python3 on PATH.
func sitePackages() []string {
	out, err := exec.Command("python3", "-c", "import sys; print('\\n'.join(sys.path))").Output()
	if err != nil {
		return nil
	}
	var dirs []string
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		if path == "" {
			continue
		}
		cu, _ := filepath.Glob(filepath.Join(path, "nvidia", "cu[0-9]*", "lib"))
		sort.Sort(sort.Reverse(sort.StringSlice(cu)))
		dirs = append(append(dirs, cu...), filepath.Join(path, "nvidia", "cuda_nvrtc", "lib"))
	}
	return dirs
}
