package kernels

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moegraph/moegraph/graph"
)

// fakeCompiler "compiles" to the stub itself.
type fakeCompiler struct {
	calls atomic.Int64
	pause time.Duration
	fail  string // the name of a kernel that does not compile
}

func (c *fakeCompiler) Version() string { return "fake 1" }

func (c *fakeCompiler) Compile(name, text string, _ *Sources, _ []string) ([]byte, string, error) {
	c.calls.Add(1)
	time.Sleep(c.pause)
	name = strings.TrimSuffix(name, ".cu")
	if name == c.fail {
		return nil, "k.cuh(3): error: no", errors.New("compilation failed")
	}
	return []byte(text), fmt.Sprintf("Compiling entry function '%s' for 'x'\nUsed 10 registers\n", name), nil
}

// fakeModule knows whether it is loaded.
type fakeModule struct{ loaded *atomic.Int64 }

func (m *fakeModule) Unload() error {
	m.loaded.Add(-1)
	m.loaded = nil // a second unload would crash
	return nil
}

type world struct {
	c      *Cache
	comp   *fakeCompiler
	loaded atomic.Int64
}

func newWorld(disk *Disk, modules int, bytes int64) *world {
	w := &world{comp: &fakeCompiler{}}
	w.c = NewCache(Config{Compiler: w.comp, Target: Target{90}, Disk: disk, Sources: NewSources(map[string]string{"k.cuh": "x"}),
		MaxModules: modules, MaxBytes: bytes,
		Load: func(img *Image) (Module, error) {
			w.loaded.Add(1)
			return &fakeModule{&w.loaded}, nil
		}})
	return w
}

func kernel(i int) graph.Kernel {
	return graph.Kernel{Name: "k", Source: "k.cuh", Params: common{Width: i}}
}

func (w *world) acquire(t *testing.T, ids ...int) *Set {
	t.Helper()
	var ks []graph.Kernel
	for _, i := range ids {
		ks = append(ks, kernel(i))
	}
	s, err := w.c.Acquire(ks, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCache_Pins: a module that a Set holds stays loaded in a cache of size 1; once let go, it goes when another comes.
func TestCache_Pins(t *testing.T) {
	w := newWorld(nil, 1, 0)
	a := w.acquire(t, 1, 2, 1)
	b := w.acquire(t, 2, 3)
	if got := w.c.Stats(); got.Loaded != 3 || got.Pinned != 3 || w.loaded.Load() != 3 {
		t.Fatalf("got %+v, want 3 modules, all pinned", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{2, 3} {
		m, _, err := b.Module(kernel(i))
		if err != nil || m.(*fakeModule).loaded == nil {
			t.Errorf("kernel %d was unloaded while it is held: %v", i, err)
		}
	}
	if _, _, err := b.Module(kernel(1)); err == nil {
		t.Error("a Set gave a kernel that it was not asked for")
	}
	if got := w.c.Stats(); got.Loaded != 2 {
		t.Errorf("got %+v, want the 2 that are held", got)
	}
	b.Close()
	if got := w.c.Stats(); got.Loaded != 1 || got.Pinned != 0 {
		t.Errorf("got %+v, want 1, the limit", got)
	}
	if err := w.c.Purge(); err != nil || w.loaded.Load() != 0 {
		t.Errorf("%d loaded after Purge, %v", w.loaded.Load(), err)
	}
}

func TestCache_Bytes(t *testing.T) {
	w := newWorld(nil, 0, 1)
	w.acquire(t, 1, 2, 3).Close()
	if got := w.c.Stats(); got.Loaded != 0 || got.Bytes != 0 {
		t.Errorf("got %+v, want nothing above 1 byte", got)
	}
}

// TestCache_Once: however many ask for a key, and on however many devices, it is compiled once.
func TestCache_Once(t *testing.T) {
	dir := t.TempDir()
	a, b := newWorld(DiskAt(dir), 0, 0), newWorld(DiskAt(dir), 0, 0)
	b.comp = a.comp
	b.c.cfg.Compiler = a.comp
	a.comp.pause = 20 * time.Millisecond
	var wg sync.WaitGroup
	for i := range 64 {
		w := a
		if i%2 == 0 {
			w = b
		}
		wg.Go(func() {
			s, err := w.c.Acquire([]graph.Kernel{kernel(1), kernel(2)}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
	if got := a.comp.calls.Load(); got != 2 {
		t.Errorf("compiled %d times, want 2", got)
	}
}

func TestCache_Error(t *testing.T) {
	w := newWorld(nil, 0, 0)
	w.comp.fail = "bad"
	bad := graph.Kernel{Name: "bad", Source: "k.cuh"}
	_, err := w.c.Acquire([]graph.Kernel{kernel(1), bad, kernel(2)}, nil)
	if err == nil || !strings.Contains(err.Error(), `kernel "bad" for sm_90a: compilation failed`) || !strings.Contains(err.Error(), "k.cuh(3): error: no") {
		t.Errorf("got %v, want the name and the log", err)
	}
	if got := w.c.Stats(); got.Pinned != 0 {
		t.Errorf("got %+v after a failure, want nothing held", got)
	}
	w.comp.fail = ""
	s, err := w.c.Acquire([]graph.Kernel{bad}, nil)
	if err != nil {
		t.Fatalf("a second try: %v", err)
	}
	s.Close()
}

// TestCache_Random: goroutines take and let go at random; what is held is loaded, the counters agree in the end.
func TestCache_Random(t *testing.T) {
	w := newWorld(nil, 3, 0)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				a, b := (g*7+i*3)%6, (g+i*5)%6
				s, err := w.c.Acquire([]graph.Kernel{kernel(a), kernel(b)}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for _, k := range []int{a, b} {
					m, img, err := s.Module(kernel(k))
					if err != nil || m.(*fakeModule).loaded == nil || !strings.Contains(string(img.Cubin), fmt.Sprintf("Width = %d;", k)) {
						t.Errorf("kernel %d: not loaded, or another's: %v", k, err)
					}
				}
				s.Close()
			}
		})
	}
	wg.Wait()
	if got := w.c.Stats(); got.Pinned != 0 || got.Loaded > 3 || int64(got.Loaded) != w.loaded.Load() {
		t.Errorf("got %+v with %d loaded", got, w.loaded.Load())
	}
}

func TestCache_Progress(t *testing.T) {
	w := newWorld(nil, 0, 0)
	var seen []int
	s, err := w.c.Acquire([]graph.Kernel{kernel(1), kernel(2), kernel(1)}, func(done, all int) { seen = append(seen, 10*done+all) })
	if err != nil || fmt.Sprint(seen) != "[12 22]" {
		t.Errorf("got %v, %v", seen, err)
	}
	s.Close()
}

// TestDisk_Damage: files that are cut short, changed, foreign or another key's are compiled anew and replaced.
func TestDisk_Damage(t *testing.T) {
	dir := t.TempDir()
	disk := DiskAt(dir)
	newWorld(disk, 0, 0).acquire(t, 1).Close()
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.cubin"))
	if len(files) != 1 {
		t.Fatalf("got files %v, want one", files)
	}
	good, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(disk, 0, 0)
	w.acquire(t, 1).Close()
	if got := w.c.Stats(); got.FromDisk != 1 || got.Compiled != 0 {
		t.Fatalf("got %+v, want one from the disk", got)
	}
	bad := map[string][]byte{"empty": nil, "foreign": []byte("something else"), "other layout": append([]byte("x"), good...)}
	for _, n := range []int{1, 20, len(good) / 2, len(good) - 1} {
		bad[fmt.Sprintf("cut to %d", n)] = good[:n]
	}
	for _, at := range []int{3, len(formatName) + 12, len(good) - 2} {
		b := append([]byte(nil), good...)
		b[at] ^= 0x11
		bad[fmt.Sprintf("bit at %d", at)] = b
	}
	for what, b := range bad {
		if err := os.WriteFile(files[0], b, 0o644); err != nil {
			t.Fatal(err)
		}
		w := newWorld(disk, 0, 0)
		w.acquire(t, 1).Close()
		if got := w.c.Stats(); got.Compiled != 1 {
			t.Errorf("%s: got %+v, want a compile", what, got)
		}
		if again, _ := os.ReadFile(files[0]); string(again) != string(good) {
			t.Errorf("%s: the file was not replaced", what)
		}
	}
}

// TestDisk_Unwritable: without a folder to write kernels are compiled all the same.
func TestDisk_Unwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	newWorld(DiskAt(filepath.Join(file, "below")), 0, 0).acquire(t, 1).Close()
}

// TestDisk_Stale: what a dead writer left is removed; what may be another's work in progress is not.
func TestDisk_Stale(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(DiskAt(dir), 0, 0)
	w.acquire(t, 1).Close()
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.cubin"))
	sub := filepath.Dir(files[0])
	old, young := filepath.Join(sub, ".atomicfile-old"), filepath.Join(sub, ".atomicfile-young")
	for _, f := range []string{old, young} {
		if err := os.WriteFile(f, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * staleAfter)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	sweep(sub)
	if _, err := os.Stat(old); err == nil {
		t.Error("the old temporary file is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("the young temporary file is gone")
	}
}

// TestDisk_Processes: two processes fill one folder at the same time, and one of them is killed.
func TestDisk_Processes(t *testing.T) {
	const env = "MOEGRAPH_TEST_FILL"
	fill := func(dir string, rounds int) {
		for range rounds {
			w := newWorld(DiskAt(dir), 0, 0)
			w.acquire(t, 1, 2, 3, 4, 5, 6, 7, 8).Close()
			files, _ := filepath.Glob(filepath.Join(dir, "*", "*.cubin"))
			for _, f := range files { // so that the next round writes again
				os.Remove(f)
			}
		}
	}
	if dir := os.Getenv(env); dir != "" {
		fill(dir, 1<<30)
		return
	}
	dir := t.TempDir()
	var others []*exec.Cmd
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDisk_Processes$")
		cmd.Env = append(os.Environ(), env+"="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		others = append(others, cmd)
	}
	fill(dir, 20)
	for _, cmd := range others {
		cmd.Process.Kill()
		cmd.Wait()
	}
	w := newWorld(DiskAt(dir), 0, 0)
	s := w.acquire(t, 1, 2, 3, 4, 5, 6, 7, 8)
	for i := 1; i <= 8; i++ {
		if _, img, err := s.Module(kernel(i)); err != nil || !strings.Contains(string(img.Cubin), fmt.Sprintf("Width = %d;", i)) {
			t.Errorf("kernel %d: %v", i, err)
		}
	}
	s.Close()
}
