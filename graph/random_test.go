package graph_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// randomGraph is a graph of operators, most of which may work in place, on values that are also inputs, variables,
// outputs, read twice or by several.
type randomGraph struct {
	g    *graph.Graph
	vars *graph.Vars
	x    *graph.Value
	outs []*graph.Value
	rows int
}

func newRandomGraph(seed uint64) *randomGraph {
	r := rand.New(rand.NewPCG(seed, 11))
	c := &randomGraph{g: graph.New("random"), vars: graph.NewVars(seed), rows: 1 + r.IntN(40)}
	x := c.g.Input("x", dtype.Float32, graph.UpTo(40), 8)
	w := c.g.Use(c.vars.Param("w", 40, 8))
	counted, fixed := []*graph.Value{x}, []*graph.Value{w}
	c.x = x
	pick := func(pool []*graph.Value) *graph.Value { // mostly late ones
		if r.IntN(3) > 0 {
			return pool[len(pool)-1-r.IntN(min(3, len(pool)))]
		}
		return pool[r.IntN(len(pool))]
	}
	var all []*graph.Value
	for range 4 + r.IntN(26) {
		pool := &counted
		if r.IntN(4) == 0 {
			pool = &fixed
		}
		var made []*graph.Value
		v := pick(*pool)
		switch r.IntN(8) {
		case 0, 1:
			made = []*graph.Value{nodes.Add(v, pick(*pool))}
		case 2:
			made = []*graph.Value{nodes.Add(v, pick(*pool), pick(*pool))}
		case 3, 4:
			made = []*graph.Value{nodes.Scale(v, 1-r.Float64())}
		case 5:
			made = graph.Apply(copyOp{}, v)
		case 6:
			h := nodes.Cast(v, dtype.BFloat16)
			for range r.IntN(4) {
				h = nodes.Scale(nodes.Cast(nodes.Cast(h, dtype.Float16), dtype.BFloat16), 0.5)
			}
			made = []*graph.Value{nodes.Cast(h, dtype.Float32)}
		case 7:
			if pool == &fixed && v != w {
				graph.Apply(bumpOp{By: 0.25}, w, v)
			}
		}
		*pool = append(*pool, made...)
		all = append(all, made...)
	}
	for i, v := range all {
		if i == len(all)-1 || r.IntN(5) == 0 {
			c.outs = append(c.outs, c.g.Output(fmt.Sprintf("out%d", i), v))
		}
	}
	return c
}

// run replays once and returns the outputs.
func (c *randomGraph) run(t *testing.T, p *graph.Program) [][]float32 {
	t.Helper()
	e := open(t, p, c.vars)
	defer e.Close()
	check(t, e.Write(c.x, normal(1, c.rows*8)))
	replay(t, e)
	var got [][]float32
	for _, v := range c.outs {
		got = append(got, read(t, e, v))
	}
	return got
}

// TestRandom_Bits: random graphs give the same bits with workspaces that share on several streams as with every one apart
// on one.
func TestRandom_Bits(t *testing.T) {
	seeds, over := 40, 0
	if n, err := strconv.Atoi(os.Getenv("MOEGRAPH_TEST_GRAPHS")); err == nil {
		seeds = n
	}
	for seed := range uint64(seeds) {
		opt := graph.Options{Streams: 1, Debug: graph.Debug{Poison: true, Apart: true}}
		c := newRandomGraph(seed)
		want := c.run(t, compile(t, c.g, opt))
		opt = graph.Options{Streams: 1 + int(seed%5), ForceStreams: true, Debug: graph.Debug{Poison: true, Jitter: seed % 3}}
		for range 2 {
			c = newRandomGraph(seed) // with variables that no replay has changed
			p := compile(t, c.g, opt)
			if got := c.run(t, p); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: other bits than with every workspace apart\n%s", seed, p)
			}
			plan := text(t, p.Plan())
			back := new(graph.Plan)
			check(t, back.UnmarshalText(plan))
			if again := text(t, p.Replan(t, back).Plan()); !bytes.Equal(again, plan) {
				t.Fatalf("seed %d: another plan\n%s\n%s", seed, plan, again)
			}
			for _, b := range p.Workspaces() {
				if b.Over != "" {
					over++
				}
			}
			opt.MaxWorkspace = max(1, p.ArenaBytes()) // as it is, then with edges that save memory
			if least := leastWorkspace(t, c.g, opt); least > 0 {
				opt.MaxWorkspace = least
			}
		}
	}
	if over < seeds {
		t.Errorf("only %d workspaces made in place in %d graphs", over, seeds)
	}
}

// leastWorkspace is what the error of an impossible limit says can be had, 0 where a byte will do.
func leastWorkspace(t *testing.T, g *graph.Graph, opt graph.Options) (least int64) {
	t.Helper()
	opt.MaxWorkspace = 1
	_, err := g.Compile(host(t), opt)
	if err == nil {
		return 0
	}
	_, after, _ := strings.Cut(err.Error(), "want at least ")
	if _, e := fmt.Sscan(after, &least); e != nil || !errors.Is(err, graph.ErrShape) {
		t.Fatal(err)
	}
	return least
}

// TestMaxWorkspace_Least: the least that an error names can be had, and so can all above it; also where the peak of a plan
// is above the bound that its order of steps has.
func TestMaxWorkspace_Least(t *testing.T) {
	for _, seed := range []uint64{32, 262, 276, 304, 360, 494, 499} {
		g := newRandomGraph(seed).g
		opt := graph.Options{Streams: 1 + int(seed%5), ForceStreams: true}
		free := compile(t, g, opt).ArenaBytes()
		least := leastWorkspace(t, g, opt)
		for limit := least; limit <= free; limit += 128 {
			opt.MaxWorkspace = limit
			if p, err := g.Compile(host(t), opt); err != nil || p.ArenaBytes() > limit {
				t.Errorf("seed %d: the least is %d, and %d bytes give %v", seed, least, limit, err)
			}
		}
	}
}
