package graph_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	hostdev "github.com/moegraph/moegraph/internal/host"
)

// apart is the host device with memory that Go code cannot reach.
type apart struct{ hostdev.Device }

type hidden struct{ graph.Memory }

func (d apart) Alloc(bytes int64, what string) (graph.Memory, error) {
	m, err := d.Device.Alloc(bytes, what)
	return hidden{m}, err
}

// Load replaces the calls' views, which such memory does not give.
func (d apart) Load(*graph.Program, []*graph.Call) (graph.Runner, error) { return nil, nil }

// TestFrom fills a variable piece by piece, before and after an Exec has bound to it.
func TestFrom(t *testing.T) {
	for _, dev := range []graph.Device{hostdev.Device{}, apart{}} {
		vars, calls := graph.NewVars(1), 0
		want := make([]byte, 24)
		for i := range want {
			want[i] = byte(i)
		}
		v := vars.ParamOf("v", dtype.Float32, graph.From(3, func(piece int, dst []byte) error {
			calls++
			copy(dst, want[piece*8:(piece+1)*8])
			return nil
		}), 2, 3)
		read := func() {
			t.Helper()
			for off := range want {
				for end := off; end <= len(want); end++ {
					got := make([]byte, end-off)
					if err := vars.ReadBytes(v, int64(off), got); err != nil || !bytes.Equal(got, want[off:end]) {
						t.Fatalf("bytes %d to %d: got %v, %v", off, end, got, err)
					}
				}
			}
			if err := vars.ReadBytes(v, 20, make([]byte, 5)); !errors.Is(err, graph.ErrUsage) {
				t.Errorf("past the end: got %v", err)
			}
			if err := vars.ReadBytes(v, -1, nil); !errors.Is(err, graph.ErrUsage) {
				t.Errorf("before the start: got %v", err)
			}
		}
		read()
		g := graph.New("from")
		g.Output("v", g.Use(v))
		prog, err := g.Compile(dev, graph.Options{})
		if err != nil {
			t.Fatal(err)
		}
		calls = 0
		e, err := prog.Exec(vars)
		if err != nil {
			t.Fatal(err)
		}
		if calls != 3 {
			t.Errorf("%s: binding read %d pieces, want 3", dev, calls)
		}
		read()
		if err := errors.Join(e.Close(), vars.Free()); err != nil {
			t.Fatal(err)
		}
		read()
		if calls != 3 {
			t.Errorf("%s: read pieces again after binding", dev)
		}
	}
}

// TestFrom_Errors hands on errors of read and of wrong piece counts, and leaves the variable unbound.
func TestFrom_Errors(t *testing.T) {
	broken := errors.New("broken")
	for _, x := range []struct {
		pieces int
		kind   error
	}{{3, broken}, {0, graph.ErrUsage}, {-1, graph.ErrUsage}, {5, graph.ErrUsage}} {
		vars := graph.NewVars(1)
		v := vars.ParamOf("v", dtype.Float32, graph.From(x.pieces, func(int, []byte) error { return broken }), 6)
		g := graph.New("from")
		g.Output("v", g.Use(v))
		prog, err := g.Compile(hostdev.Device{}, graph.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := prog.Exec(vars); !errors.Is(err, x.kind) {
				t.Errorf("%d pieces: exec: got %v, want %v", x.pieces, err, x.kind)
			}
		}
		if err := vars.Read(v, make([]float32, 6)); !errors.Is(err, x.kind) {
			t.Errorf("%d pieces: read: got %v, want %v", x.pieces, err, x.kind)
		}
	}
}
