package graph_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// TestVars_Contents: random contents depend on seed and name alone, not on the order of creation.
func TestVars_Contents(t *testing.T) {
	get := func(seed uint64, names ...string) map[string][]float32 {
		vars := graph.NewVars(seed)
		for _, n := range names {
			vars.Param(n, 64, 16)
		}
		all := map[string][]float32{}
		for _, v := range vars.All() {
			all[v.Name()] = make([]float32, 1024)
			check(t, vars.Read(v, all[v.Name()]))
		}
		return all
	}
	a, b := get(1, "x", "y"), get(1, "y", "x")
	if !reflect.DeepEqual(a, b) {
		t.Error("the order of creation changes the contents")
	}
	if reflect.DeepEqual(a["x"], a["y"]) || reflect.DeepEqual(a["x"], get(2, "x")["x"]) {
		t.Error("name or seed change nothing")
	}
	var sum float64
	for _, v := range a["x"] {
		sum += float64(v) * float64(v)
	}
	if v := sum / 1024 * 16; v < 0.8 || v > 1.2 {
		t.Errorf("variance times fan-in is %v, want about 1", v)
	}
}

// TestVars_WriteAndCopies writes a parameter before and after it has memory: programs see it, and copies that began
// as its copy are renewed.
func TestVars_WriteAndCopies(t *testing.T) {
	vars := graph.NewVars(1)
	w := vars.ParamOf("w", dtype.BFloat16, graph.Const(1), 2)
	master := vars.State("w/master", dtype.Float32, graph.CopyOf(w), 2)
	g := graph.New("g")
	y := g.Output("y", g.Use(w).Scale(2))
	z := g.Output("z", g.Use(master).Scale(3))
	p := compile(t, g, graph.Options{})
	check(t, vars.Write(w, []float32{4, 5}))
	e := open(t, p, vars)
	for _, v := range [][]float32{{4, 5}, {-1, 2}} {
		check(t, vars.Write(w, v))
		replay(t, e)
		if got := read(t, e, y); got[0] != 2*v[0] || got[1] != 2*v[1] {
			t.Errorf("y = %v for w = %v", got, v)
		}
		if got := read(t, e, z); got[0] != 3*v[0] || got[1] != 3*v[1] {
			t.Errorf("z = %v for w = %v", got, v)
		}
	}
	for _, bad := range []any{[]float32{1}, []int32{1, 2}, nil} {
		if vars.Write(w, bad) == nil {
			t.Errorf("Write of %v: no error", bad)
		}
	}
	if err := vars.Write(g.Input("x", dtype.Float32, 1), []float32{1}); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("Write of an input: %v", err)
	}
	if err := vars.Free(); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "1 open Exec") {
		t.Errorf("Free with an open Exec: %v", err)
	}
	check(t, e.Close())
	check(t, vars.Free())
	got := make([]float32, 2)
	check(t, vars.Read(w, got))
	if !reflect.DeepEqual(got, []float32{-1, 2}) {
		t.Errorf("after Free: %v", got)
	}
}

// TestVars_Scopes: views share one store, and list what is below them.
func TestVars_Scopes(t *testing.T) {
	vars := graph.NewVars(1)
	a := vars.Scope("a")
	w := a.Scope("b").Param("w", 1)
	vars.Param("ab", 1)
	a.State("s", dtype.Float32, graph.Const(0), 1)
	if vars.Lookup("a/b/w") != w || a.Lookup("b/w") != w || vars.Lookup("w") != nil {
		t.Error("Lookup")
	}
	if len(vars.All()) != 2 || len(a.All()) != 1 || len(a.States()) != 1 || len(vars.Scope("ab").All()) != 0 {
		t.Error("All, States")
	}
	if a.Param("b/w", 1) != w {
		t.Error("a second call is another parameter")
	}
	if graph.VarName(w) != "a/b/w" || graph.VarsOf(w) == nil || a.Prefix() != "a" || vars.Prefix() != "" {
		t.Error("names")
	}
	if bad := a.Param("b/w", 2); bad.Err() == nil || vars.Err() == nil {
		t.Error("another shape is no mistake")
	}
	if bad := vars.Param("neg", -1); !errors.Is(bad.Err(), graph.ErrShape) {
		t.Error("a negative dimension is no mistake")
	}
}

// TestHazard13_MasterWeights: a change of float32 weights between replays shows in the next one, in their 16-bit
// copies too, in every program that is bound to them.
func TestHazard13_MasterWeights(t *testing.T) {
	vars := graph.NewVars(1)
	w := vars.ParamOf("w", dtype.Float32, graph.Const(1), 8, 8)
	build := func(name string) (*graph.Exec, *graph.Value, *graph.Value) {
		g := graph.New(name)
		x := g.Input("x", dtype.BFloat16, 1, 8)
		y := g.Output("y", nodes.Linear(x, w))
		return open(t, compile(t, g, graph.Options{}), vars), x, y
	}
	a, ax, ay := build("a")
	b, bx, by := build("b")
	ones := []float32{1, 1, 1, 1, 1, 1, 1, 1}
	check(t, a.Write(ax, ones))
	check(t, b.Write(bx, ones))
	for _, v := range []float32{1, 2, -0.5} {
		all := make([]float32, 64)
		for i := range all {
			all[i] = v
		}
		check(t, vars.Write(w, all))
		replay(t, a)
		replay(t, b)
		if got := read(t, a, ay)[3]; got != 8*v {
			t.Errorf("a: %v, want %v", got, 8*v)
		}
		if got := read(t, b, by)[3]; got != 8*v {
			t.Errorf("b: %v, want %v", got, 8*v)
		}
	}
}

// TestVars_FP4 writes, reads, saves and loads a variable of two codes a byte, as codes and as floats.
func TestVars_FP4(t *testing.T) {
	vars := graph.NewVars(1)
	w := vars.State("w", dtype.E2M1, graph.Const(0), 2, 6)
	codes := []byte{0x21, 0x43, 0x65, 0x17, 0x0f, 0x9a}
	check(t, vars.Write(w, codes))
	path := filepath.Join(t.TempDir(), "vars.safetensors")
	check(t, vars.Save(path, nil))
	check(t, vars.Write(w, make([]float32, 12)))
	if _, err := vars.Load(path); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 6)
	check(t, vars.Read(w, got))
	if !bytes.Equal(got, codes) {
		t.Errorf("got codes %x, want %x", got, codes)
	}
	floats := make([]float32, 12)
	check(t, vars.Read(w, floats))
	if want := []float32{0.5, 1, 1.5, 2, 3, 4, 6, 0.5, -6, 0, -1, -0.5}; !slices.Equal(floats, want) {
		t.Errorf("got %v, want %v", floats, want)
	}
	if err := vars.Write(w, make([]byte, 12)); !errors.Is(err, graph.ErrShape) {
		t.Errorf("a byte for each code: got error %v", err)
	}
	if err := vars.Read(w, make([]byte, 5)); !errors.Is(err, graph.ErrShape) {
		t.Errorf("too few bytes: got error %v", err)
	}
	if v := vars.State("odd", dtype.E2M1, graph.Const(0), 2, 5); !errors.Is(v.Err(), graph.ErrShape) {
		t.Errorf("an odd last dimension: got error %v", v.Err())
	}
}
