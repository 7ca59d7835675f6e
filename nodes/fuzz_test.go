package nodes

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// ours says whether an error is a user's mistake, told as such.
func ours(err error) bool {
	for _, kind := range []error{graph.ErrShape, graph.ErrDType, graph.ErrUnsupported, graph.ErrUsage, graph.ErrDevice} {
		if errors.Is(err, kind) {
			return !strings.Contains(err.Error(), "internal")
		}
	}
	return false
}

// seeds are bytes that make graphs worth starting from: each operator alone, and several with gradients.
func fuzzSeeds(f *testing.F) {
	f.Add([]byte{})
	for op := range fuzzOps {
		for variant := range 4 {
			seed := []byte{byte(variant), byte(op), byte(variant), 0, byte(op + variant), byte(variant), 1, byte(op)}
			for i := range 60 {
				seed = append(seed, byte((i*i*(2*variant+1)+i*op)%15))
			}
			f.Add(seed)
		}
	}
}

// FuzzBuild builds graphs from operators with operands and options of all sorts: what is refused is refused with an
// error that says so, and what is not compiles and, where it is small, runs.
func FuzzBuild(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 400)]
		for range 8 {
			b := newFuzzBuilder(data, true)
			buildWild(t, b)
			if len(b.bytes) == 0 {
				return
			}
			data = b.bytes
		}
	})
}

func buildWild(t *testing.T, b *fuzzBuilder) {
	for range 6 {
		if b.odd() {
			defer b.g.Scope("scope")()
			b.g.NameNext("name")
		}
		if b.choose(5) == 4 {
			b.grads()
		} else {
			b.keep(append(fuzzOps[b.choose(len(fuzzOps))](b), nil)...)
		}
		if err := errors.Join(b.g.Err(), b.vars.Err()); err != nil {
			if !ours(err) {
				t.Fatalf("building: %v", err)
			}
			_, _ = b.g.Compile(host.Device{}, graph.Options{})
			return
		}
	}
	b.outputs()
	opt := graph.Options{Streams: b.integer(b.choose(4)), ForceStreams: b.choose(2) == 1, NoFuse: b.choose(2) == 1, Debug: graph.Debug{Poison: true}}
	p, err := b.g.Compile(host.Device{}, opt)
	if err != nil {
		if !ours(err) {
			t.Fatalf("compiling: %v", err)
		}
		return
	}
	if err := p.Verify(); err != nil {
		t.Fatal(err)
	}
	if b.noExec || b.size(p) > 1<<22 {
		return
	}
	e, err := p.Exec(b.vars)
	if err != nil {
		if !ours(err) {
			t.Fatalf("opening: %v", err)
		}
		return
	}
	defer e.Close()
	few := 0
	err = b.write(e, func(capacity int) int {
		if b.ragged {
			few++
		}
		return min(capacity, 3+few%3*7)
	})
	for range 2 {
		if err == nil {
			err = e.Replay(t.Context())
		}
	}
	if err != nil && !ours(err) {
		t.Fatalf("running: %v\n%s", err, p)
	}
}

// size is what an Exec of p would allocate.
func (b *fuzzBuilder) size(p *graph.Program) int64 {
	n := p.ArenaBytes()
	for _, name := range p.Outputs() {
		n += p.Output(name).Bytes()
	}
	for _, in := range b.inputs {
		n += in.v.Bytes()
	}
	for _, v := range append(b.vars.All(), b.vars.States()...) {
		n += v.Bytes()
	}
	return n
}

// FuzzCompile compiles graphs of sane operators with gradients and updates in several ways: plans are right, replays
// of the same graph give the same bits on any number of streams and after any replay before, and fused or not
// where nothing is rounded to 16 bits.
func FuzzCompile(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 300)]
		fusing := len(data)%2 == 0
		want := runSane(t, data, graph.Options{Streams: 1, NoFuse: !fusing})
		if want == nil {
			return
		}
		compareRuns(t, "streams", runSane(t, data, graph.Options{Streams: 4, ForceStreams: true, NoFuse: !fusing}), want)
		if newFuzzBuilder(data, false).exact() {
			compareRuns(t, "fusing", runSane(t, data, graph.Options{Streams: 2, ForceStreams: true, NoFuse: fusing}), want)
		}
	})
}

// exact says whether no number of the graph is rounded to 16 bits.
func (b *fuzzBuilder) exact() bool { return b.dt == dtype.Float64 }

func compareRuns(t *testing.T, what string, got, want [][][]byte) {
	t.Helper()
	for r := range want {
		for i := range want[r] {
			if !bytes.Equal(got[r][i], want[r][i]) {
				t.Fatalf("%s: output %d of replay %d differs", what, i, r)
			}
		}
	}
}

// runSane builds, compiles and replays, with two numbers of rows in turn. It returns the outputs of each replay, nil
// where the bytes make no graph.
func runSane(t *testing.T, data []byte, opt graph.Options) (results [][][]byte) {
	b, outs := buildSane(data, true)
	if b.g.Err() != nil {
		b, outs = buildSane(data, false)
	}
	if err := errors.Join(b.g.Err(), b.vars.Err()); err != nil {
		if !ours(err) {
			t.Fatalf("building: %v", err)
		}
		return nil
	}
	opt.Debug = graph.Debug{Poison: true}
	p, err := b.g.Compile(host.Device{}, opt)
	if err != nil {
		t.Fatalf("compiling: %v", err)
	}
	if err := p.Verify(); err != nil {
		t.Fatal(err)
	}
	if b.size(p) > 1<<23 {
		return nil
	}
	e, err := p.Exec(b.vars)
	if err != nil {
		t.Fatalf("opening: %v", err)
	}
	defer e.Close()
	for r, rows := range []func(int) int{func(c int) int { return c }, func(c int) int { return c / 2 }, func(c int) int { return c }, func(int) int { return 0 }} {
		if err := b.write(e, rows); err != nil {
			t.Fatalf("writing: %v", err)
		}
		if err := e.Replay(t.Context()); err != nil {
			t.Fatalf("replay %d: %v\n%s", r, err, p)
		}
		var all [][]byte
		for _, v := range outs {
			all = append(all, readBytes(t, e, v))
		}
		results = append(results, all)
	}
	if !b.updated {
		compareRuns(t, "the same rows again", results[2:3], results[:1])
	}
	return results
}

func buildSane(data []byte, grads bool) (*fuzzBuilder, []*graph.Value) {
	b := newFuzzBuilder(slices.Clone(data), false)
	for range 1 + b.choose(4) {
		b.keep(append(fuzzOps[b.choose(len(fuzzOps))](b), nil)...)
	}
	if grads {
		b.grads()
	}
	return b, b.outputs()
}

func readBytes(t *testing.T, e *graph.Exec, v *graph.Value) []byte {
	t.Helper()
	var dst any
	switch n := v.Elems(); v.DType() {
	case dtype.Int32:
		dst = make([]int32, n)
	case dtype.Uint64:
		dst = make([]uint64, n)
	case dtype.BFloat16, dtype.Float16:
		dst = make([]uint16, n)
	case dtype.Float32:
		dst = make([]float32, n)
	default:
		dst = make([]float64, n)
	}
	if _, err := e.Read(v, dst); err != nil {
		t.Fatalf("reading %s: %v", v, err)
	}
	return fmt.Append(nil, dst)
}
