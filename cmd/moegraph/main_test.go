package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/internal/runnode"
)

// asProgram makes the test binary behave as the program, so that a test can start it as another process.
const asProgram = "MOEGRAPH_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// call runs a command line in this process.
func call(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = execute(args, &out, &err)
	return status, out.String(), err.String()
}

// write makes a file of arrays.
func write(t *testing.T, arrays ...npz.Array) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.npz")
	if err := npz.WriteFile(path, arrays); err != nil {
		t.Fatal(err)
	}
	return path
}

// encodeInput is the smallest call there is: four numbers to encode.
func encodeInput(t *testing.T) string {
	return write(t, npz.Float32s("x", []int{4}, 1, -2, 1000, 0.25), npz.Text("attr.format", "e4m3"))
}

func TestRun(t *testing.T) {
	in, out := encodeInput(t), filepath.Join(t.TempDir(), "out.npz")
	for _, args := range [][]string{
		{"run", "encode", "-in", in, "-out", out},
		{"run", "encode", "--in", in, "--out=" + out, "-device", "host"},
		{"run", "-in=" + in, "-out", out, "encode"},
	} {
		os.Remove(out)
		status, stdout, stderr := call(args...)
		if status != exitOK || stdout != "y.e4m3 [4]\n" || stderr != "" {
			t.Fatalf("%q: status %d, %q, %q", args, status, stdout, stderr)
		}
		arrays, err := npz.ReadFile(out)
		if err != nil || len(arrays) != 1 || !bytes.Equal(arrays[0].Data, []byte{0x38, 0xc0, 0x7e, 0x28}) {
			t.Fatalf("%q: got %v, %v", args, arrays, err)
		}
	}
	// -set wins over the file.
	if status, stdout, stderr := call("run", "encode", "-in", in, "-out", out, "-set", "format=bf16"); status != exitOK || stdout != "y.bf16 [4]\n" {
		t.Errorf("-set: status %d, %q, %q", status, stdout, stderr)
	}
}

// TestRun_NegativeValues: a value may begin with a dash, as a word of its own and behind an equals sign.
func TestRun_NegativeValues(t *testing.T) {
	in := write(t, npz.Float32s("logits", []int{2, 2}, 1, 2, 3, 4), npz.Int32s("labels", []int{2}, -7, 1))
	out := filepath.Join(t.TempDir(), "-odd.npz")
	if status, _, stderr := call("run", "cross-entropy", "-in", in, "-out", out, "-set", "ignore_index=-7"); status != exitOK {
		t.Errorf("status %d, %q", status, stderr)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	if status, _, stderr := call("run", "cross-entropy", "-in", in, "-out", "-odd", "-set=ignore_index=-7"); status != exitOK {
		t.Errorf("status %d, %q", status, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "-odd")); err != nil {
		t.Error(err)
	}
}

// TestRun_Refuses: nothing is written, the status says what kind of mistake it was, and one line says which.
func TestRun_Refuses(t *testing.T) {
	in := encodeInput(t)
	whole, err := os.ReadFile(in)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	out := filepath.Join(t.TempDir(), "out.npz")
	for _, c := range []struct {
		name   string
		args   []string
		status int
		names  string
	}{
		{"unknown command", []string{"walk"}, exitUsage, `"walk"`},
		{"unknown node", []string{"run", "grouped-gem", "-in", in, "-out", out}, exitUsage, `"grouped-gem"`},
		{"no node", []string{"run", "-in", in, "-out", out}, exitUsage, "node: got none"},
		{"unknown flag", []string{"run", "encode", "-in", in, "-out", out, "-colour"}, exitUsage, "-colour"},
		{"no -out", []string{"run", "encode", "-in", in}, exitUsage, `"out"`},
		{"no value", []string{"run", "encode", "-in", in, "-out"}, exitUsage, "-out"},
		{"two nodes", []string{"run", "encode", "decode", "-in", in, "-out", out}, exitUsage, `"decode"`},
		{"missing file", []string{"run", "encode", "-in", "nowhere.npz", "-out", out}, exitFailed, "nowhere.npz"},
		{"a folder", []string{"run", "encode", "-in", t.TempDir(), "-out", out}, exitFailed, "-in: "},
		{"no folder", []string{"run", "encode", "-in", in, "-out", filepath.Join(out, "x", "y.npz")}, exitFailed, "y.npz"},
		{"truncated", []string{"run", "encode", "-in", file("t.npz", whole[:len(whole)/2]), "-out", out}, exitFailed, "t.npz"},
		{"empty", []string{"run", "encode", "-in", file("e.npz", nil), "-out", out}, exitFailed, "e.npz"},
		{"bomb", []string{"run", "encode", "-in", file("b.npz", bomb(t)), "-out", out}, exitFailed, "b.npz"},
		{"no zip", []string{"run", "encode", "-in", file("n.npz", bytes.Repeat([]byte("moe"), 1000)), "-out", out}, exitFailed, "n.npz"},
		{"bad key", []string{"run", "encode", "-in", write(t, npz.Float32s("x.y.z", nil, 1)), "-out", out}, exitFailed, "x.y.z"},
		{"device", []string{"run", "encode", "-in", in, "-out", out, "-device", "abacus"}, exitFailed, `"abacus"`},
		{"attribute", []string{"run", "encode", "-in", in, "-out", out, "-set", "colour=red"}, exitFailed, "colour: "},
		{"attribute value", []string{"run", "encode", "-in", in, "-out", out, "-set", "format=e9m9"}, exitFailed, "format: "},
		{"attribute text", []string{"run", "router", "-in", in, "-out", out, "-set", "top_k=two"}, exitFailed, "top_k: "},
		{"attribute form", []string{"run", "encode", "-in", in, "-out", out, "-set", "format"}, exitFailed, "name=value"},
		{"attribute twice", []string{"run", "encode", "-in", in, "-out", out, "-set", "format=e4m3", "-set", "format=bf16"}, exitFailed, "format: "},
		{"plan shape", []string{"plan", "-shape", "round"}, exitFailed, `"round"`},
		{"plan experts", []string{"plan", "-experts", "-4"}, exitFailed, "-experts: got -4"},
		{"plan topk", []string{"plan", "-topk", "9"}, exitFailed, "TopK: got 9"},
		{"plan streams", []string{"plan", "-streams", "65"}, exitFailed, "-streams: got 65"},
		{"plan number", []string{"plan", "-tokens", "many"}, exitUsage, "-tokens"},
		{"plan device", []string{"plan", "-device", "plan:sm_1"}, exitFailed, `"plan:sm_1"`},
		{"plan argument", []string{"plan", "mixtral"}, exitUsage, `"mixtral"`},
		{"pack nothing", []string{"pack"}, exitUsage, "arg"},
		{"pack two", []string{"pack", "a.csv", "b.csv"}, exitUsage, "arg"},
		{"pack missing", []string{"pack", "nowhere.csv"}, exitFailed, "nowhere.csv"},
		{"pack capacity", []string{"pack", "-capacity", "-1", in}, exitFailed, "-capacity: got -1"},
		{"pack columns", []string{"pack", file("c.csv", []byte("id,size\n"))}, exitFailed, `column "lower": missing`},
		{"pack number", []string{"pack", file("d.csv", []byte("id,lower,upper,size\na,0,1,many\n"))}, exitFailed, `line 2: column "size": got "many"`},
		{"pack size", []string{"pack", file("e.csv", []byte("id,lower,upper,size\na,0,1,-1\n"))}, exitFailed, "size: got -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, stdout, stderr := call(c.args...)
			if status != c.status || stdout != "" || !strings.Contains(stderr, c.names) || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "moegraph: ") {
				t.Errorf("status %d, want %d; %q on standard output; %q, want one line with %q", status, c.status, stdout, stderr, c.names)
			}
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an output was written: %v", err)
			}
		})
	}
}

// bomb is a small file whose member claims and has far more bytes than the limit on files: 2^35 zeros would take
// deflate's best 32 MB, so the directory lies about them.
func bomb(t *testing.T) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateRaw(&zip.FileHeader{Name: "x.npy", Method: zip.Deflate, CompressedSize64: 1 << 10, UncompressedSize64: 1 << 35})
	if err == nil {
		_, err = w.Write(make([]byte, 1<<10))
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestProgram starts the program itself on a golden case, on a refused one and on a damaged file.
func TestProgram(t *testing.T) {
	dir := golden.Require(t, "cases")
	out := filepath.Join(t.TempDir(), "out.npz")
	start := func(args ...string) (int, string) {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		stderr := new(bytes.Buffer)
		cmd.Stderr = stderr
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), stderr.String()
	}
	c, err := golden.Load(filepath.Join(dir, "gemm-dense"))
	if err != nil {
		t.Fatal(err)
	}
	if status, stderr := start("run", c.Node, "-in", filepath.Join(dir, "gemm-dense.in.npz"), "-out", out); status != exitOK || stderr != "" {
		t.Fatalf("status %d, %q", status, stderr)
	}
	arrays, err := npz.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range golden.Compare(c, golden.Map(arrays)) {
		if !r.OK {
			t.Error(r)
		}
	}
	os.Remove(out)
	refused, err := golden.Load(filepath.Join(dir, "err-offsets-decrease"))
	if err != nil {
		t.Fatal(err)
	}
	status, stderr := start("run", refused.Node, "-in", filepath.Join(dir, "err-offsets-decrease.in.npz"), "-out", out)
	if r := golden.Refused(refused, errors.New(stderr)); status != exitFailed || !r.OK {
		t.Errorf("status %d, %v", status, r)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "gemm-dense.in.npz"))
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.npz")
	if err := os.WriteFile(cut, whole[:len(whole)-100], 0o666); err != nil {
		t.Fatal(err)
	}
	if status, stderr := start("run", c.Node, "-in", cut, "-out", out); status != exitFailed || strings.Count(stderr, "\n") != 1 {
		t.Errorf("truncated: status %d, %q", status, stderr)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an output was written: %v", err)
	}
}

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	dot, trace, svg := filepath.Join(dir, "p.dot"), filepath.Join(dir, "p.json"), filepath.Join(dir, "p.svg")
	for _, s := range measured {
		status, stdout, stderr := call("plan", "-shape", s.Name, "-backward", "-dot", dot, "-trace", trace, "-svg", svg)
		if status != exitOK || stderr != "" || !strings.Contains(stdout, `program "`+s.Name+`" on host`) || !strings.Contains(stdout, "grouped_gemm_dglu") || !strings.Contains(stdout, "saved for backward, in theory: ") {
			t.Errorf("%s: status %d, %q, %.200q", s.Name, status, stderr, stdout)
		}
	}
	data := map[string][]byte{}
	for _, path := range []string{dot, trace, svg} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[path] = b
	}
	if !bytes.HasPrefix(data[dot], []byte("digraph")) {
		t.Errorf("DOT begins with %.30q", data[dot])
	}
	if !json.Valid(data[trace]) {
		t.Error("the trace is no JSON")
	}
	for d := xml.NewDecoder(bytes.NewReader(data[svg])); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
	status, stdout, stderr := call("plan", "-experts", "4", "-topk", "1", "-hidden", "64", "-intermediate", "32", "-tokens", "10", "-compute", "f32",
		"-alignment", "8", "-order", "sigmoid", "-no-fuse", "-streams", "1", "-device", "plan:sm_90")
	if status != exitOK || !strings.Contains(stdout, "f32 (<=10,64)") || strings.Contains(stdout, "bf16") {
		t.Errorf("flags: status %d, %q\n%s", status, stderr, stdout)
	}
}

// TestPlan_SaveAndLoad: a plan that was saved plans the same layer, and no other; a page is written; a limit holds.
func TestPlan_SaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	saved, page := filepath.Join(dir, "p.plan"), filepath.Join(dir, "p.html")
	layer := []string{"plan", "-shape", "small", "-backward"}
	status, first, stderr := call(append(layer, "-save", saved, "-html", page)...)
	if status != exitOK || !strings.Contains(first, "wrote "+saved) {
		t.Fatalf("status %d, %s", status, stderr)
	}
	table, _, _ := strings.Cut(first, "wrote ")
	if status, again, stderr := call(append(layer, "-load", saved)...); status != exitOK || again != table {
		t.Errorf("status %d, %s, another table:\n%s", status, stderr, again)
	}
	if b, err := os.ReadFile(page); err != nil || !bytes.HasPrefix(b, []byte("<!DOCTYPE html>")) {
		t.Errorf("no page: %v", err)
	}
	if status, stdout, stderr := call(append(layer, "-max-workspace", "250000000")...); status != exitOK {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	for _, c := range []struct {
		args  []string
		names string
	}{
		{[]string{"plan", "-shape", "small", "-load", saved}, "another graph"},
		{append(layer, "-load", page), "-load: "},
		{append(layer, "-load", "nowhere"), "nowhere"},
		{append(layer, "-max-workspace", "-1"), "-max-workspace: got -1"},
		{append(layer, "-max-workspace", "1000"), "MaxWorkspace: got 1000 bytes, want at least"},
	} {
		if status, stdout, stderr := call(c.args...); status != exitFailed || stdout != "" || !strings.Contains(stderr, c.names) {
			t.Errorf("%q: status %d, %q, %q", c.args, status, stdout, stderr)
		}
	}
}

func TestInfo(t *testing.T) {
	status, stdout, stderr := call("info")
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d, %q", status, stderr)
	}
	for _, want := range []string{"Go ", "cores ", "devices ", "host"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("want %q in\n%s", want, stdout)
		}
	}
	_, operators, _ := call("info", "-operators")
	if !strings.HasSuffix(stdout, operators) {
		t.Error("info does not end with what info -operators prints")
	}
	for _, info := range graph.Operators() {
		if !regexp.MustCompile(`(?m)^  ` + info.Example.Kind() + ` `).MatchString(operators) {
			t.Errorf("info lacks operator %s", info.Example.Kind())
		}
	}
	if _, markdown, _ := call("info", "-operators", "-markdown"); markdown != runnode.Markdown() {
		t.Error("-markdown does not print the tables")
	}
}

// TestHelp: every command has help with an example, and shows flags with one dash.
func TestHelp(t *testing.T) {
	for _, path := range [][]string{{}, {"run"}, {"plan"}, {"pack"}, {"info"}, {"run", "grouped-gemm"}, {"run", "dispatch"}} {
		status, stdout, stderr := call(append(path, "-h")...)
		if status != exitOK || stderr != "" || !strings.Contains(stdout, "Examples:\n  moegraph") {
			t.Errorf("%v: status %d, %q\n%s", path, status, stderr, stdout)
		}
		if i := strings.Index(stdout, "\nFlags:\n"); i < 0 || strings.Contains(stdout[i:], " --") {
			t.Errorf("%v: want flags, with one dash\n%s", path, stdout)
		}
	}
}

func TestCompletion(t *testing.T) {
	complete := func(args ...string) []string {
		_, stdout, _ := call(append([]string{"__complete"}, args...)...)
		var words []string
		for _, line := range strings.Split(stdout, "\n") {
			word, _, _ := strings.Cut(line, "\t")
			words = append(words, word)
		}
		return words
	}
	nodes := complete("run", "")
	for _, name := range runnode.Names() {
		if !slices.Contains(nodes, name) {
			t.Errorf("run: no completion %s", name)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "encode", "-device", ""}, "host"},
		{[]string{"run", "encode", "-set", ""}, "format=e4m3"},
		{[]string{"run", "grouped-gemm", "-set", "gen"}, "generate_c=1"},
		{[]string{"plan", "-shape", "mi"}, "mixtral"},
		{[]string{"plan", "-compute", ""}, "f32"},
		{[]string{"plan", "-device", ""}, "plan:sm_90"},
	} {
		if got := complete(c.args...); !slices.Contains(got, c.want) {
			t.Errorf("%q: got %q, want %q among them", c.args, got, c.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if status, stdout, _ := call("completion", shell); status != exitOK || !strings.Contains(stdout, "moegraph") {
			t.Errorf("%s: status %d, %d bytes", shell, status, len(stdout))
		}
	}
}

func TestDoubleDashes(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"run encode -in a -out b", "run encode --in a --out b"},
		{"run encode --in a --out b", "run encode --in a --out b"},
		{"run encode -in=-a -h", "run encode --in=-a -h"},
		{"run encode -in -ab -out -out", "run encode --in -ab --out -out"},
		{"plan -experts -3 -backward -svg x", "plan --experts -3 --backward --svg x"},
		{"run x -5 -1e3 -.5 -", "run x -5 -1e3 -.5 -"},
		{"run x -unknown-flag -- -in", "run x --unknown-flag -- -in"},
		{"run x -set a=-1 -set b=-c", "run x --set a=-1 --set b=-c"},
	} {
		if got := strings.Join(doubleDashes(newRoot(), strings.Fields(c.in)), " "); got != c.want {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
	}
}
