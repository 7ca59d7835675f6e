package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/memory"
	"github.com/moegraph/moegraph/memory/minimalloc"
)

// buffersFile makes a CSV file.
func buffersFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "buffers.csv")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// fiveBuffers are the example of google/minimalloc: 12 bytes are enough, and first fit in the order of rows needs 16.
const fiveBuffers = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"

// TestPack reads what the command prints back: the rows as they were, and a plan of the least peak.
func TestPack(t *testing.T) {
	path := buffersFile(t, fiveBuffers)
	for _, args := range [][]string{{"pack", path}, {"pack", "-capacity", "12", path}, {"pack", path, "--capacity=100"}} {
		status, stdout, stderr := call(args...)
		if status != exitOK || !strings.HasPrefix(stderr, "buffers 5, peak 12, lower bound 12, optimal") || strings.Count(stderr, "\n") != 1 {
			t.Fatalf("%q: status %d, %q", args, status, stderr)
		}
		placedWithin(t, fiveBuffers, stdout, 12)
	}
}

// placedWithin checks that out is the rows of in with offsets below peak, no two alive at once on the same bytes.
func placedWithin(t *testing.T, in, out string, peak int64) {
	t.Helper()
	rows, placed := strings.Split(strings.TrimSpace(in), "\n"), strings.Split(strings.TrimSpace(out), "\n")
	if len(rows) != len(placed) {
		t.Fatalf("%d rows, want %d:\n%s", len(placed), len(rows), out)
	}
	for i, row := range rows {
		if !strings.HasPrefix(placed[i], row+",") {
			t.Errorf("row %d is %q, want %q and an offset", i, placed[i], row)
		}
	}
	f, err := minimalloc.Read(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	// The offsets are fixed now: Solve refuses those that overlap, and has nothing else to place.
	plan, err := memory.Solve(f.Problem, memory.Options{})
	if err != nil || plan.Peak > peak {
		t.Errorf("got %+v, %v, want a peak of %d at most\n%s", plan, err, peak, out)
	}
}

// TestPack_DoesNotFit: the status says so, standard error says what would, and nothing that looks like a plan is printed.
func TestPack_DoesNotFit(t *testing.T) {
	status, stdout, stderr := call("pack", "-capacity", "11", buffersFile(t, fiveBuffers))
	if status != exitFailed || stdout != "" {
		t.Errorf("status %d, %q on standard output", status, stdout)
	}
	for _, want := range []string{"peak 12, lower bound 12, optimal", "got 11 bytes", "impossible"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("want %q in %q", want, stderr)
		}
	}
}

func TestPack_Variants(t *testing.T) {
	for _, c := range []struct {
		name, text, stderr string
	}{
		{"other names, alignment, hint", "buffer,start,end,size,alignment,hint\na,0,3,5,1,0\nb,2,5,1,8,-1\n", "peak 6, lower bound 6, optimal"},
		{"fixed", "id,lower,upper,size,offset\na,0,3,5,8\nb,2,5,1,\n", "peak 13, lower bound 13, optimal"},
		{"gaps", "id,lower,upper,size,gaps\na,0,9,7,3-6\nb,3,6,7,\n", "peak 7, lower bound 7, optimal"},
		{"a mark of UTF-8 and CR LF", "\ufeffid,lower,upper,size\r\na,0,9,7\r\n", "buffers 1, peak 7"},
		{"no rows", "id,lower,upper,size\n", "buffers 0, peak 0"},
		{"large", "id,lower,upper,size\na,0,2,1099511627776\nb,1,3,2147483648\nc,2,3,1099511627776\nz,0,3,0\n", "peak 1101659111424"},
	} {
		status, stdout, stderr := call("pack", buffersFile(t, c.text))
		if status != exitOK || !strings.Contains(stderr, c.stderr) || !strings.Contains(stdout, "offset") {
			t.Errorf("%s: status %d, %q\n%s", c.name, status, stderr, stdout)
		}
	}
}

func TestPack_Stdin(t *testing.T) {
	var out, notes bytes.Buffer
	if err := pack("-", 0, strings.NewReader(fiveBuffers), &out, &notes); err != nil {
		t.Fatal(err)
	}
	placedWithin(t, fiveBuffers, out.String(), 12)
	if err := pack("-", 0, strings.NewReader("no,columns\n"), &out, &notes); err == nil {
		t.Error("want an error")
	}
}
