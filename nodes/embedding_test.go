package nodes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

func randomIDs(r *rand.Rand, n, limit int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(limit))
	}
	return ids
}

func TestEmbedding_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for _, dt := range formats {
		for _, s := range []struct{ t, n, v, d int }{{1, 1, 1, 1}, {6, 1, 4, 3}, {9, 3, 5, 7}, {200, 8, 256, 16}, {50, 2, 1000, 40}} {
			g := graph.New("embedding")
			dims := []int{graph.UpTo(s.t), s.n}
			if s.n == 1 {
				dims = dims[:1]
			}
			ids := g.Input("ids", dtype.Int32, dims...)
			table := g.Input("table", dt, s.v, s.d)
			y := Embedding(ids, table)
			seed := g.Input("seed", dt, graph.UpTo(s.t), s.n*s.d)
			dtable := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, table).Value[0]
			tv := random(r, dt, s.v*s.d)
			tr := try(t, g, nil, data{table: tv}, y, dtable)
			for _, rows := range rowCounts(s.t) {
				iv, sv := randomIDs(r, rows*s.n, s.v), random(r, dt, rows*s.n*s.d)
				tr.check(tr.exec.Write(ids, iv))
				tr.check(tr.exec.Write(seed, sv))
				tr.run()
				want, wantGrad := make([]float64, 0, len(sv)), make([]float64, len(tv))
				for i, id := range iv {
					want = append(want, tv[int(id)*s.d:(int(id)+1)*s.d]...)
					for j := range s.d {
						wantGrad[int(id)*s.d+j] += sv[i*s.d+j]
					}
				}
				what := fmt.Sprintf("%v rows %d", s, rows)
				near(t, what, dt, tr.floats(y), want, 0)
				near(t, what+" gradient", dt, tr.floats(dtable), wantGrad, slack(dt))
			}
		}
	}
}

// TestEmbedding_Order: each row of the table's gradient is the sum in the order of tokens, in float32.
func TestEmbedding_Order(t *testing.T) {
	g := graph.New("order")
	ids, seed := g.Input("ids", dtype.Int32, 400), g.Input("seed", dtype.Float32, 400, 3)
	dtable := g.GradientsFrom([]*graph.Value{Embedding(ids, g.Input("table", dtype.Float32, 5, 3))}, []*graph.Value{seed},
		g.Nodes()[0].In(1)).Value[0]
	r := rand.New(rand.NewPCG(3, 2))
	iv, sv := randomIDs(r, 400, 5), make([]float32, 1200)
	want := make([]float32, 15)
	for i := range sv {
		sv[i] = float32(r.NormFloat64())
		want[int(iv[i/3])*3+i%3] += sv[i]
	}
	tr := try(t, g, nil, data{ids: iv, seed: sv}, dtable).run()
	for i, got := range tr.floats(dtable) {
		if float32(got) != want[i] {
			t.Fatalf("element %d: got %v, want %v to the bit", i, got, want[i])
		}
	}
}

// TestEmbedding_OutOfRange: such ids are zeros without a gradient, and an error in debug mode.
func TestEmbedding_OutOfRange(t *testing.T) {
	for _, bad := range []int32{-1, 4, 1 << 30, -1 << 31} {
		g := graph.New("range")
		ids, table := g.Input("ids", dtype.Int32, 3, 2), g.Input("table", dtype.Float32, 4, 2)
		seed := g.Input("seed", dtype.Float32, 3, 4)
		y := g.Output("y", Embedding(ids, table))
		dtable := g.Output("dtable", g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, table).Value[0])
		for _, debug := range []bool{true, false} {
			prog, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Offsets: debug, Poison: true}})
			if err != nil {
				t.Fatal(err)
			}
			exec, err := prog.Exec(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer exec.Close()
			tr := &trial{t: t, exec: exec}
			tr.check(exec.Write(ids, []int32{0, 1, 2, bad, 1, 1}))
			tr.check(exec.Write(table, []float32{1, 2, 3, 4, 5, 6, 7, 8}))
			tr.check(exec.Write(seed, []float32{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6}))
			if debug {
				err := exec.Replay(context.Background())
				// The backward node checks too, and may be the first to run.
				if !errors.Is(err, graph.ErrShape) || !strings.HasPrefix(err.Error(), "embedding") ||
					!strings.Contains(err.Error(), fmt.Sprintf(`": ids: got %d in row 1, want 0 to 3`, bad)) {
					t.Errorf("id %d: got error %v, want one that names the node, the row and the id", bad, err)
				}
				continue
			}
			tr.run()
			near(t, "y", dtype.Float32, tr.floats(y), []float64{1, 2, 3, 4, 5, 6, 0, 0, 3, 4, 3, 4}, 0)
			near(t, "dtable", dtype.Float32, tr.floats(dtable), []float64{1, 1, 13, 13, 3, 3, 0, 0}, 0)
		}
	}
}

func TestEmbedding_Grad(t *testing.T) {
	vars := graph.NewVars(4)
	table := vars.ParamOf("table", dtype.Float64, graph.Normal(1), 5, 3)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		y := Embedding(g.Input("ids", dtype.Int32, graph.UpTo(7), 2), table)
		return []*graph.Value{graph.Apply(square{Factor: 2}, y)[0], Embedding(g.Input("more", dtype.Int32, 2), table)}
	}, map[string]any{"ids": []int32{0, 1, 1, 1, 4, 0, 2, 1}, "more": []int32{3, 1}})
}

func TestEmbedding_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph)
	}{
		{"ids", graph.ErrDType, "ids", func(g *graph.Graph) {
			Embedding(g.Input("i", dtype.Int64, 2), g.Input("t", dtype.Float32, 2, 2))
		}},
		{"rank", graph.ErrShape, "ids", func(g *graph.Graph) {
			Embedding(g.Input("i", dtype.Int32, 2, 2, 2), g.Input("t", dtype.Float32, 2, 2))
		}},
		{"table", graph.ErrShape, "table", func(g *graph.Graph) {
			Embedding(g.Input("i", dtype.Int32, 2), g.Input("t", dtype.Float32, 2))
		}},
		{"counted table", graph.ErrShape, "table", func(g *graph.Graph) {
			Embedding(g.Input("i", dtype.Int32, 2), g.Input("t", dtype.Float32, graph.UpTo(2), 2))
		}},
		{"codes", graph.ErrDType, "table", func(g *graph.Graph) {
			Embedding(g.Input("i", dtype.Int32, 2), g.Input("t", dtype.E4M3, 2, 2))
		}},
	} {
		g := graph.New("refuses")
		c.build(g)
		refuses(t, c.what, g, c.kind, c.operand)
	}
}
