package nodes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// inPlaceCases apply each operator that may work in place to a workspace that nobody needs any more.
var inPlaceCases = map[string]func(h, x, draw *graph.Value) *graph.Value{
	"sum":      func(h, x, _ *graph.Value) *graph.Value { return Add(h, x, x, x, x, x, x, x, x, x) }, // two launches on a GPU
	"scale":    func(h, _, _ *graph.Value) *graph.Value { return Scale(h, 3) },
	"scale_by": func(h, x, _ *graph.Value) *graph.Value { return graph.Apply(scaleBy{}, h, one(x))[0] },
	"cast": func(h, _, _ *graph.Value) *graph.Value {
		return Cast(h, map[dtype.DType]dtype.DType{dtype.BFloat16: dtype.Float16, dtype.Float16: dtype.BFloat16}[h.DType()])
	},
	"fill":    func(h, _, _ *graph.Value) *graph.Value { return fillLike(h, 7) },
	"dropout": func(h, _, draw *graph.Value) *graph.Value { return Dropout(h, draw, 0.5) },
	"jitter":  func(h, _, draw *graph.Value) *graph.Value { return Jitter(h, draw, 0.1) },
}

// one is a float32 on the device.
func one(x *graph.Value) *graph.Value {
	return Cast(fillLike(x.Graph().Input("one", dtype.Float32, 1), 1.5), statType(x.DType()))
}

// TestInPlace: every operator that says it may work in place does, and gives the bits that it gives with every workspace
// apart; and no operator says so without a case here.
func TestInPlace(t *testing.T) {
	for _, info := range graph.Operators() {
		_, is := info.Example.(graph.InPlacer)
		if _, has := inPlaceCases[info.Example.Kind()]; has != is {
			t.Errorf("%s: in place %v, a case %v", info.Example.Kind(), is, has)
		}
	}
	dev, err := graph.Open("host")
	if err != nil {
		t.Fatal(err)
	}
	testInPlace(t, dev, dtype.BFloat16, dtype.Float16, dtype.Float32, dtype.Float64)
}

// testInPlace holds the bits of each case beside those with every workspace apart.
func testInPlace(t *testing.T, dev graph.Device, formats ...dtype.DType) {
	for kind, apply := range inPlaceCases {
		for _, dt := range formats {
			if kind == "cast" && dt.Bits() != 16 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", kind, dt), func(t *testing.T) {
				var want []float64
				for _, apart := range []bool{true, false} {
					g, vars := graph.New("in-place"), graph.NewVars(1)
					x := g.Input("x", dt, graph.UpTo(9000), 7)
					draw := NewRandom(vars, "random", 5).Draw(g)
					h := Scale(x, 2)
					h.Named("h")
					y := Scale(apply(h, x, draw).Named("y"), 0.5)
					g.Output("out", y)
					prog := mustCompile(t, dev, g, graph.Options{Debug: graph.Debug{Poison: true, Apart: apart}})
					over := ""
					for _, b := range prog.Workspaces() {
						if b.Name == "y" {
							over = b.Over
						}
					}
					if (over == "h") == apart {
						t.Fatalf("apart %v: y lies over %q\n%s", apart, over, prog)
					}
					got := runInPlace(t, prog, vars, x, y)
					if apart {
						want = got
					} else if !reflect.DeepEqual(got, want) {
						t.Errorf("other bits than apart")
					}
				}
			})
		}
	}
}

func mustCompile(t *testing.T, dev graph.Device, g *graph.Graph, opt graph.Options) *graph.Program {
	t.Helper()
	prog, err := g.Compile(dev, opt)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// runInPlace replays once, on 8,500 of 9,000 rows.
func runInPlace(t *testing.T, prog *graph.Program, vars *graph.Vars, x, y *graph.Value) []float64 {
	t.Helper()
	e, err := prog.Exec(vars)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := rand.New(rand.NewPCG(1, 1))
	data := make([]float64, 8500*7)
	for i := range data {
		data[i] = r.NormFloat64()
	}
	if err := e.Write(x, data); err != nil {
		t.Fatal(err)
	}
	for _, in := range prog.Steps() {
		for _, v := range in.In {
			if v.Name() == "one" {
				if err := e.Write(v, []float32{0}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := e.Replay(context.Background()); err != nil {
		t.Fatal(err)
	}
	out := make([]float64, len(data))
	if _, err := e.Read(y, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestInPlace_Refused: an operand that is read later, twice, or by another stream's step, or that is an output of the
// graph, stays.
func TestInPlace_Refused(t *testing.T) {
	dev, err := graph.Open("host")
	if err != nil {
		t.Fatal(err)
	}
	for name, build := range map[string]func(g *graph.Graph, h *graph.Value){
		"read later":  func(g *graph.Graph, h *graph.Value) { g.Output("z", Add(Scale(Scale(h, 3), 5), h)) },
		"twice":       func(g *graph.Graph, h *graph.Value) { g.Output("z", Scale(Add(h, h, h), 2)) },
		"an output":   func(g *graph.Graph, h *graph.Value) { g.Output("h", h); g.Output("z", Scale(Scale(h, 2), 2)) },
		"wider":       func(g *graph.Graph, h *graph.Value) { g.Output("z", Scale(Cast(h, dtype.Float64), 2)) },
		"not x1":      func(g *graph.Graph, h *graph.Value) { g.Output("z", Scale(Add(Scale(h, 3), h), 2)) },
		"two readers": func(g *graph.Graph, h *graph.Value) { g.Output("z", Add(Scale(h, 3), Scale(h, 5))) },
	} {
		g := graph.New(name)
		x := g.Input("x", dtype.Float32, 64)
		h := Scale(x, 2)
		h.Named("h")
		build(g, h)
		prog := mustCompile(t, dev, g, graph.Options{Streams: 4, ForceStreams: true})
		for _, b := range prog.Workspaces() {
			if b.Over == "h" && name != "two readers" && !(name == "not x1") {
				t.Errorf("%s: %q lies over h\n%s", name, b.Name, prog)
			}
			if b.Over == "h" && prog.Streams() > 1 {
				t.Errorf("%s: %q lies over h, which another stream reads\n%s", name, b.Name, prog)
			}
		}
		e, err := prog.Exec(nil)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]float32, 64)
		for i := range data {
			data[i] = float32(i)
		}
		if err := e.Write(x, data); err != nil {
			t.Fatal(err)
		}
		if err := e.Replay(context.Background()); err != nil {
			t.Fatal(err)
		}
		z := make([]float32, 64)
		if _, err := e.Read(prog.Output("z"), z); err != nil {
			t.Fatal(err)
		}
		factor := map[string]float32{"read later": 32, "twice": 12, "an output": 8, "wider": 4, "not x1": 16, "two readers": 16}[name]
		for i, got := range z {
			if got != factor*data[i] {
				t.Fatalf("%s: element %d: got %v, want %v", name, i, got, factor*data[i])
			}
		}
		e.Close()
	}
}

// TestInPlace_Kernels: the kernels of operators that may work in place promise the compiler nothing about addresses.
func TestInPlace_Kernels(t *testing.T) {
	for _, name := range []string{"elementwise", "sum", "scale", "cast", "fill", "random", "common"} {
		text, err := os.ReadFile("../kernels/cuda/" + name + ".cuh")
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			for _, promise := range []string{"__restrict", "__ldg", "ld.global.nc"} {
				if strings.Contains(code, promise) {
					t.Errorf("%s.cuh:%d: %s", name, i+1, promise)
				}
			}
		}
	}
}
