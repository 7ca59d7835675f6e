package graph_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
	"gorgonia.org/tensor"
)

// TestExec_WriteFormats gives one input in every form that fits it.
func TestExec_WriteFormats(t *testing.T) {
	want := []float32{1, -2, 3, 4, 5, 6}
	bits := make([]uint16, 6)
	dtype.EncodeBF16(bits, want)
	wide := make([]float64, 6)
	for i, v := range want {
		wide[i] = float64(v)
	}
	for name, data := range map[string]any{
		"float32": want, "float64": wide, "bits": bits,
		"dense32": tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(append([]float32(nil), want...))),
		"dense64": tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(append([]float64(nil), wide...))),
	} {
		t.Run(name, func(t *testing.T) {
			g := graph.New("g")
			x := g.Input("x", dtype.BFloat16, graph.UpTo(4), 3)
			y := g.Output("y", x.Scale(2))
			e := open(t, compile(t, g, graph.Options{Debug: graph.Debug{Poison: true}}), nil)
			check(t, e.Write(x, data))
			replay(t, e)
			got := make([]float32, 12)
			rows, err := e.Read(y, got)
			check(t, err)
			if rows != 2 || !reflect.DeepEqual(got[:7], []float32{2, -4, 6, 8, 10, 12, 0}) {
				t.Errorf("%d rows, %v", rows, got)
			}
			d, err := e.Dense(y)
			check(t, err)
			if !reflect.DeepEqual([]int(d.Shape()), []int{2, 3}) || !reflect.DeepEqual(d.Data().([]float32), got[:6]) {
				t.Errorf("Dense: %v", d)
			}
		})
	}
}

// TestExec_InPlace uses the caller's bytes where they fit: a change of the slice shows without a Write.
func TestExec_InPlace(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 3)
	y := g.Output("y", x.Scale(2))
	e := open(t, compile(t, g, graph.Options{}), nil)
	data := []float32{1, 2, 3}
	check(t, e.Write(x, data))
	data[0] = 10
	replay(t, e)
	if got := read(t, e, y); got[0] != 20 {
		t.Errorf("got %v: the data was copied", got)
	}
	d, err := e.Dense(y)
	check(t, err)
	again, err := e.Dense(y)
	check(t, err)
	if unsafe.SliceData(d.Data().([]float32)) != unsafe.SliceData(again.Data().([]float32)) {
		t.Error("Dense copies float32")
	}
}

// TestExec_WriteKeepsWhatWas: after an error of Write a replay uses the data from before.
func TestExec_WriteKeepsWhatWas(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, graph.UpTo(4), 2)
	y := g.Output("y", x.Scale(2))
	e := open(t, compile(t, g, graph.Options{}), nil)
	check(t, e.Write(x, []float32{1, 2, 3, 4}))
	replay(t, e)
	own, err := e.Dense(y)
	check(t, err)
	for _, bad := range []any{[]int32{5, 6}, []float32{7}, own, own.Data()} {
		if err := e.Write(x, bad); err == nil {
			t.Errorf("Write of %v: no error", bad)
		}
		replay(t, e)
		if got := read(t, e, y); !reflect.DeepEqual(got[:4], []float32{2, 4, 6, 8}) {
			t.Errorf("after Write of %T: got %v", bad, got)
		}
	}
	if err := e.Write(x, own); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), `output "scale" shares bytes`) {
		t.Errorf("an output as the input: %v", err)
	}
}

// TestExec_DenseOfVariable is a copy: other Execs may update the variable while the caller looks at it.
func TestExec_DenseOfVariable(t *testing.T) {
	vars := graph.NewVars(1)
	v := vars.ParamOf("v", dtype.Float32, graph.Const(1), 2)
	n := vars.State("n", dtype.Int32, graph.Const(0), 2)
	g := graph.New("g")
	graph.Apply(bumpOp{By: 1}, g.Use(v))
	g.Output("n", g.Use(n))
	e := open(t, compile(t, g, graph.Options{}), vars)
	d, err := e.Dense(v)
	check(t, err)
	ints, err := e.Dense(n)
	check(t, err)
	replay(t, e)
	if got := d.Data().([]float32); got[0] != 1 {
		t.Errorf("got %v: a view", got)
	}
	if got := ints.Data().([]int32); len(got) != 2 {
		t.Errorf("got %v", got)
	}
}

// TestExec_TooLarge: what no machine holds is an error, before anything is allocated.
func TestExec_TooLarge(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	g.Output("y", g.Use(vars.Param("w", 1<<21, 1<<21)).Scale(2))
	_, err := compile(t, g, graph.Options{}).Exec(vars)
	if !errors.Is(err, graph.ErrDevice) || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("got %v", err)
	}
}

// TestExec_Refuses goes through wrong data and calls in the wrong order.
func TestExec_Refuses(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, graph.UpTo(4), 3)
	i := g.Input("i", dtype.Int32, 2)
	hidden := x.Scale(3)
	y := g.Output("y", hidden.Scale(2))
	g.Output("i", i)
	e := open(t, compile(t, g, graph.Options{}), nil)
	view, err := tensor.New(tensor.WithShape(3, 4), tensor.WithBacking(make([]float32, 12))).Slice(nil, tensor.S(0, 3))
	check(t, err)
	turned := tensor.New(tensor.WithShape(3, 2), tensor.WithBacking(make([]float32, 6)))
	check(t, turned.T())
	for _, tc := range []struct {
		name string
		v    *graph.Value
		data any
		want string
	}{
		{"broken row", x, make([]float32, 7), "multiple of 3"},
		{"too many rows", x, make([]float32, 15), "at most 4 rows"},
		{"too few", i, make([]int32, 1), "2 elements"},
		{"integers for floats", x, make([]int32, 3), "[]float32"},
		{"floats for integers", i, make([]float32, 2), "[]int32"},
		{"a string", x, "abc", "string"},
		{"nothing", x, nil, "nil"},
		{"nil tensor", x, (*tensor.Dense)(nil), "nil"},
		{"other width", x, tensor.New(tensor.WithShape(3, 2), tensor.WithBacking(make([]float32, 6))), "(3,2)"},
		{"strided view", x, view, "contiguous"},
		{"transposed", x, turned, "contiguous"},
		{"no input", y, make([]float32, 3), "no input"},
		{"nil input", nil, make([]float32, 3), "no input"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := e.Write(tc.v, tc.data); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that says %s", err, tc.want)
			}
		})
	}
	if err := e.Replay(context.Background()); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("replay without data: %v", err)
	}
	check(t, e.Write(x, make([]float32, 6)))
	check(t, e.Write(i, make([]int32, 2)))
	replay(t, e)
	for _, v := range []*graph.Value{hidden, nil} {
		if _, err := e.Read(v, make([]float32, 12)); !errors.Is(err, graph.ErrUsage) {
			t.Errorf("reading no output: %v", err)
		}
	}
	if _, err := e.Read(y, make([]float32, 5)); !errors.Is(err, graph.ErrShape) {
		t.Errorf("reading into too little: %v", err)
	}
	if _, err := e.Scalar(y); !errors.Is(err, graph.ErrShape) {
		t.Errorf("Scalar of many: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Replay(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	check(t, e.Close())
	check(t, e.Close())
	for _, err := range []error{e.Write(x, make([]float32, 6)), e.Replay(context.Background()), second(e.Read(y, make([]float32, 12)))} {
		if !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "closed") {
			t.Errorf("after Close: %v", err)
		}
	}
}

func second(_ int, err error) error { return err }

// TestExec_RowCountsMustAgree checks at each replay what only Write knows.
func TestExec_RowCountsMustAgree(t *testing.T) {
	g := graph.New("g")
	a := g.Input("a", dtype.Float32, graph.UpTo(4), 1)
	b := g.Input("b", dtype.Float32, graph.UpTo(4), 1)
	y := g.Output("y", a.Plus(b))
	e := open(t, compile(t, g, graph.Options{}), nil)
	check(t, e.Write(a, make([]float32, 3)))
	check(t, e.Write(b, make([]float32, 2)))
	if err := e.Replay(context.Background()); !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), "b.rows") {
		t.Errorf("got %v", err)
	}
	for _, n := range []int{0, 1, 4} {
		check(t, e.Write(a, make([]float32, n)))
		check(t, e.Write(b, make([]float32, n)))
		replay(t, e)
		if got := read(t, e, y); len(got) != n {
			t.Errorf("%d rows, want %d", len(got), n)
		}
	}
}

// TestExec_NodeErrors: an error or a panic of a node names it, ends the replay on every stream, and the next replay
// works.
func TestExec_NodeErrors(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 2)
	bad := graph.ApplyAs("fragile", failOp{}, x)[0]
	y := g.Output("y", nodes.Add(bad.Scale(2), graph.Apply(copyOp{}, x)[0]))
	e := open(t, compile(t, g, graph.Options{Streams: 2, ForceStreams: true}), nil)
	for _, tc := range []struct {
		x    float32
		want string
	}{{-1, "negative"}, {float32(nan()), "a NaN"}} {
		check(t, e.Write(x, []float32{tc.x, 0}))
		if err := e.Replay(context.Background()); err == nil || !strings.Contains(err.Error(), `"fragile"`) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v", err)
		}
	}
	check(t, e.Write(x, []float32{1, 2}))
	replay(t, e)
	if got := read(t, e, y); !reflect.DeepEqual(got, []float32{3, 6}) {
		t.Errorf("got %v", got)
	}
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}

// TestHazard01_UnusedRows is the situation "capacity 64 rows, 37 used, everything filled with 0xFF before each of 3
// replays": outputs and gradients are finite and bit-equal, and rows past the count are untouched.
func TestHazard01_UnusedRows(t *testing.T) {
	for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		l := newLayer(64, compute)
		e := open(t, compile(t, l.g, graph.Options{Debug: graph.Debug{Poison: true}}), l.vars)
		var first [][]float32
		for range 3 {
			got := l.run(t, e, 4, 37)
			for i, out := range got {
				for _, v := range out {
					if v != v || v > 1e30 || v < -1e30 {
						t.Fatalf("output %d holds %v", i, v)
					}
				}
			}
			if first != nil && !reflect.DeepEqual(got, first) {
				t.Fatal("replays differ")
			}
			first = got
		}
		d, err := e.Dense(l.outs[0])
		check(t, err)
		whole := unsafe.Slice(unsafe.SliceData(d.Data().([]float32)), 64*layerWidth)
		for i, v := range whole[37*layerWidth:] {
			if v == v {
				t.Fatalf("element %d past the rows in use was written: %v", i, v)
			}
		}
	}
}

// TestExec_ManyAtOnce replays execs of one program in goroutines; they share variables that nobody writes.
func TestExec_ManyAtOnce(t *testing.T) {
	l := newLayer(32, dtype.Float32)
	p := compile(t, l.g, graph.Options{Streams: 2, ForceStreams: true})
	want := make([][][]float32, 4)
	for i := range want {
		want[i] = l.run(t, open(t, p, l.vars), uint64(i), 20+i)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			e, err := p.Exec(l.vars)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			for range 5 {
				k := i % 4
				if got := l.run(t, e, uint64(k), 20+k); !reflect.DeepEqual(got, want[k]) {
					t.Errorf("exec %d: other numbers than alone", i)
				}
			}
		})
	}
	wg.Wait()
}

// bumper is a program that adds one to a variable and one that reads it.
func bumper(t *testing.T) (vars *graph.Vars, w *graph.Value, write, look func() (*graph.Exec, *graph.Value)) {
	vars = graph.NewVars(1)
	w = vars.ParamOf("w", dtype.Float32, graph.Const(0), 1000)
	write = func() (*graph.Exec, *graph.Value) {
		g := graph.New("bump")
		v := g.Use(w)
		before := g.Output("before", v.Scale(1))
		slow := graph.Apply(copyOp{Pause: time.Millisecond}, v)[0]
		graph.Apply(bumpOp{By: 1}, v, slow)
		g.Output("after", v.Scale(1))
		return open(t, compile(t, g, graph.Options{}), vars), before
	}
	look = func() (*graph.Exec, *graph.Value) {
		g := graph.New("look")
		y := g.Output("y", graph.Apply(copyOp{Pause: time.Millisecond}, g.Use(w))[0])
		return open(t, compile(t, g, graph.Options{}), vars), y
	}
	return
}

// TestExec_VariablesInTheOrderOfBuilding: a reader built before an update sees the old value, one built after
// it the new one, on one stream and on several.
func TestExec_VariablesInTheOrderOfBuilding(t *testing.T) {
	for _, streams := range []int{1, 4} {
		vars := graph.NewVars(1)
		w := vars.ParamOf("w", dtype.Float32, graph.Const(5), 1)
		g := graph.New("g")
		v := g.Use(w)
		before := g.Output("before", graph.Apply(copyOp{Pause: 5 * time.Millisecond}, v)[0])
		graph.Apply(bumpOp{By: 1}, v)
		after := g.Output("after", v.Scale(1))
		graph.Apply(bumpOp{By: 10}, v)
		e := open(t, compile(t, g, graph.Options{Streams: streams, ForceStreams: streams > 1}), vars)
		for i := range 3 {
			replay(t, e)
			base := float32(5 + 11*i)
			if a, b := read(t, e, before)[0], read(t, e, after)[0]; a != base || b != base+1 {
				t.Errorf("%d streams, replay %d: before %v, after %v, want %v and %v", streams, i, a, b, base, base+1)
			}
			if now := read(t, e, w)[0]; now != base+11 {
				t.Errorf("the variable is %v, want %v", now, base+11)
			}
		}
	}
}

// TestExec_WritersAndReaders: readers replay at once; a writer and the readers wait for each other; a second
// writer gets an error, not a race.
func TestExec_WritersAndReaders(t *testing.T) {
	vars, w, write, look := bumper(t)
	_ = w
	writer, _ := write()
	second, _ := write()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		e, y := look()
		wg.Go(func() {
			dst := make([]float32, 1000)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := e.Replay(context.Background()); err != nil {
					t.Error(err)
				}
				if _, err := e.Read(y, dst); err != nil {
					t.Error(err)
				}
				for _, v := range dst {
					if v != dst[0] {
						t.Errorf("a reader saw a half-done update: %v and %v", dst[0], v)
						return
					}
				}
			}
		})
	}
	refused := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := second.Replay(context.Background()); err != nil {
				if !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "another Exec") {
					t.Error(err)
				}
				refused++
			}
		}
	})
	for range 50 {
		if err := writer.Replay(context.Background()); err != nil {
			if !errors.Is(err, graph.ErrUsage) {
				t.Error(err)
			}
			refused++
		}
	}
	close(stop)
	wg.Wait()
	if refused == 0 {
		t.Log("no two writers met")
	}
	got := make([]float32, 1000)
	check(t, vars.Read(vars.Lookup("w"), got))
	if got[0] < 1 {
		t.Errorf("the variable is %v", got[0])
	}
}

// TestExec_WrongVars names the variable and what is wrong.
func TestExec_WrongVars(t *testing.T) {
	vars := graph.NewVars(1)
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 1, 2)
	g.Output("y", nodes.Linear(x, vars.Param("w", 2, 2)))
	p := compile(t, g, graph.Options{})
	for _, v := range []*graph.Vars{nil, graph.NewVars(1)} {
		if _, err := p.Exec(v); !errors.Is(err, graph.ErrUsage) || !strings.Contains(fmt.Sprint(err), `"w"`) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := g.Compile(nil, graph.Options{}); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("no device: %v", err)
	}
	if _, err := g.Compile(host(t), graph.Options{Streams: -1}); !errors.Is(err, graph.ErrShape) {
		t.Errorf("streams: %v", err)
	}
	if _, err := graph.Open("cloud"); !errors.Is(err, graph.ErrDevice) || !strings.Contains(err.Error(), "host") {
		t.Errorf("Open: %v", err)
	}
}

// TestExec_Mistakes: a nil context and a copy of what is no variable are errors that say so.
func TestExec_Mistakes(t *testing.T) {
	vars := graph.NewVars(1)
	g := graph.New("mistakes")
	x := g.Input("x", dtype.Float32, 4)
	g.Output("y", graph.Apply(copyOp{}, x)[0])
	e := openOn(t, host(t), g, vars)
	check(t, e.Write(x, four(1)))
	var none context.Context
	if err := e.Replay(none); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "context") {
		t.Errorf("Replay without a context: got error %v", err)
	}
	for name, from := range map[string]*graph.Value{"nil": nil, "input": x} {
		v := graph.NewVars(1)
		v.ParamOf("copy", dtype.Float32, graph.CopyOf(from), 4)
		if err := v.Err(); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "CopyOf") {
			t.Errorf("CopyOf %s: got error %v", name, err)
		}
	}
}

// TestExec_ScalarFormats: whatever a counter is in, Scalar reads it.
func TestExec_ScalarFormats(t *testing.T) {
	for dt, data := range map[dtype.DType]any{
		dtype.Int32: []int32{7}, dtype.Int64: []int64{7}, dtype.Uint64: []uint64{7}, dtype.Float32: []float32{7}, dtype.Float64: []float64{7},
	} {
		g := graph.New("scalar")
		x := g.Input("x", dt, 1)
		g.Output("x", x)
		e := openOn(t, host(t), g, nil)
		check(t, e.Write(x, data))
		if got, err := e.Scalar(x); err != nil || got != 7 {
			t.Errorf("%s: got %v, %v", dt, got, err)
		}
	}
}
