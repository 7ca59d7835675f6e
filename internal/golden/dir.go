package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// envShared names the shared folder where it is not beside the project.
const envShared = "MOEGRAPH_SHARED"

// Dir is the shared folder, which holds cases and layers, and whether there is one. MOEGRAPH_SHARED says
// where, if it is set; otherwise the folder is "../shared" of the working directory or of a folder above.
func Dir() (string, bool) {
	if dir := os.Getenv(envShared); dir != "" {
		return dir, isShared(dir)
	}
	at, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		up := filepath.Dir(at)
		if dir := filepath.Join(up, "shared"); isShared(dir) {
			return dir, true
		}
		if up == at {
			return "", false
		}
		at = up
	}
}

func isShared(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "cases"))
	return err == nil && info.IsDir()
}

// Require is the folder sub ("cases", "layers") of the shared folder. Where it is absent the test is
// skipped, and says so.
func Require(t testing.TB, sub string) string {
	t.Helper()
	shared, ok := Dir()
	if ok {
		dir := filepath.Join(shared, sub)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	t.Skipf("%s: skipped: no folder ../shared/%s beside the project (or in %s)", t.Name(), sub, envShared)
	return ""
}

// Names are the cases of a folder, without suffixes, in order.
func Names(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffixOut))
	if err != nil {
		return nil, err
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), suffixOut)
	}
	return files, nil
}
