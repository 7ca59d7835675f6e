// Package readme holds the tests of what README.md says.
package readme

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/moegraph/moegraph/internal/host"
	"github.com/moegraph/moegraph/internal/runnode"
)

const path = "../../README.md"

// section returns what stands between two markers of README.md.
func section(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "<!-- "+name+" -->\n")
	body, _, ok2 := strings.Cut(after, "<!-- end "+name+" -->")
	if !ok || !ok2 {
		t.Fatalf("README.md lacks the markers of %q", name)
	}
	return body
}

// TestProgram builds and runs README's program as a module of its own, as a user would; the loss must fall.
func TestProgram(t *testing.T) {
	code := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(section(t, "program")), "```go\n"), "```")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", code)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	// Our requirements stand for what `go get` would write; the module itself is this checkout.
	requires := strings.Split(strings.Replace(string(mod), "module github.com/moegraph/moegraph", "module example.com/quickstart", 1), "\ntool ")[0]
	write("go.mod", requires+"\nrequire github.com/moegraph/moegraph v0.0.0\n\nreplace github.com/moegraph/moegraph => "+root+"\n")
	write("go.sum", string(sum))
	cmd := exec.Command("go", "run", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 5 || !(lines[4] < strings.Replace(lines[0], "step 10", "step 50", 1)) {
		t.Errorf("the loss does not fall:\n%s", out)
	}
}

// TestGorgonia: the program is the example's, whose own test runs it.
func TestGorgonia(t *testing.T) {
	code := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(section(t, "gorgonia")), "```go\n"), "```")
	file, err := os.ReadFile("../../examples/gorgonia/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if code != string(file) {
		t.Error("README's gorgonia program is not examples/gorgonia/main.go")
	}
}

// TestGorgoniaIsApart: only who imports the adapter builds gorgonia.
func TestGorgoniaIsApart(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "../../...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	const adapter = "github.com/moegraph/moegraph/gorgop"
	with := 0
	for line := range strings.Lines(string(out)) {
		deps := strings.Fields(line)
		has := func(name string) bool { return slices.Contains(deps, name) }
		if !has("gorgonia.org/gorgonia") {
			continue
		}
		with++
		if !has(adapter) {
			t.Errorf("%s needs gorgonia without importing %s", deps[0], adapter)
		}
	}
	if with < 2 {
		t.Errorf("%d packages need gorgonia, want the adapter and its example: is the list right?", with)
	}
}

// TestOperators: the table is the one that the code generates. MOEGRAPH_UPDATE=1 renews it.
func TestOperators(t *testing.T) {
	want := runnode.Markdown()
	if section(t, "operators") == want {
		return
	}
	if os.Getenv("MOEGRAPH_UPDATE") == "" {
		t.Fatal("the tables of operators are old; MOEGRAPH_UPDATE=1 go test ./internal/readme renews them")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	updated := strings.Replace(string(text), section(t, "operators"), want, 1)
	if section(t, "operators") == "" {
		updated = strings.Replace(string(text), "<!-- operators -->\n", "<!-- operators -->\n"+want, 1)
	}
	if err := os.WriteFile(path, []byte(updated), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCommands: what README tells to run is there.
func TestCommands(t *testing.T) {
	for _, p := range []string{"examples/moe_layer", "cmd/moegraph", "examples/moe_layer/memory.svg", "LICENSE", "nodes/doc.go"} {
		if _, err := os.Stat(filepath.Join("../..", p)); err != nil {
			t.Error(err)
		}
	}
}
