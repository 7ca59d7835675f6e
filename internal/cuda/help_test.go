//go:build gpu

package cuda

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// childOf is set in the processes that tests start of this test program, to run tests in a process of its own: one
// that breaks the context, or that has the driver of testdata/fakecuda.c.
var childOf = flag.String("child-of", "", "the test that started this program again")

// inChild says whether this is the process that runChild started for this test.
func inChild(t *testing.T) bool { return *childOf == t.Name() }

// runChild runs tests of this program in another process and returns what they print.
func runChild(t *testing.T, tests string, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^("+tests+")$", "-test.v", "-child-of="+t.Name())
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "no tests to run") {
		t.Fatalf("no test %s", tests)
	}
	return string(out)
}

// fakeDriver builds testdata/fakecuda.c and returns the setting that makes a process use it.
func fakeDriver(t *testing.T, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler for the stand-in driver: %v", err)
	}
	dir := t.TempDir()
	args := append(flags, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/fakecuda.c")
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, out)
	}
	return "LD_LIBRARY_PATH=" + dir
}

// open returns the first device, or skips the test.
func open(t testing.TB) *Device {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	d := must(Open(0))(t)
	t.Cleanup(func() { check(t, d.Close()) })
	return d
}

func isFake(d *Device) bool { return d.Name == "fake" }

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stream returns a new stream that closes with the test.
func stream(t testing.TB, d *Device, name string) *Stream {
	t.Helper()
	s := must(d.NewStream(name))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// memory returns a new block, filled with 0xFF, that is freed with the test.
func memory(t testing.TB, d *Device, bytes int64, what string) *Memory {
	t.Helper()
	m := must(d.Alloc(bytes, what))(t)
	t.Cleanup(func() { _ = m.Free() })
	fill := make([]byte, bytes)
	for i := range fill {
		fill[i] = 0xFF
	}
	check(t, m.Write(0, fill))
	return m
}

// function returns a kernel of testdata/kernels.cu.
func function(t testing.TB, d *Device, name string) *Function {
	t.Helper()
	m := must(d.LoadModule(must(os.ReadFile("testdata/kernels.ptx"))(t), "kernels.ptx"))(t)
	t.Cleanup(func() { _ = m.Close() })
	return must(m.Function(name))(t)
}

// event returns a new event that closes with the test.
func event(t testing.TB, d *Device) *Event {
	t.Helper()
	e := must(d.NewEvent(false))(t)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// wantError checks that an error holds all the texts.
func wantError(t testing.TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", texts)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("got %q\nwant %q in it", err, s)
		}
	}
}
