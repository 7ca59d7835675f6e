package graph_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// FuzzExec calls the methods of graphs, programs and executions in any order, with data of any size: there is no panic
// and no error that is not one of the user's, and of two Execs of one graph, compiled for one stream and for
// many, the outputs are the same.
func FuzzExec(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 1, 2, 0, 1, 3, 0, 2, 4, 5, 9, 9, 9, 6, 3, 6, 6, 7, 7})
	f.Add([]byte{1, 4, 0, 1, 1, 0, 2, 1, 1, 4, 3, 2, 5, 6, 0, 2, 3, 7, 8, 1, 5, 6, 1, 7, 9})
	for seed := range 24 {
		var data []byte
		for i := range 90 {
			data = append(data, byte((i*i*(seed+3)+7*i*seed)%31))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &calls{t: t, data: data[:min(len(data), 300)], g: graph.New("fuzz"), vars: graph.NewVars(1)}
		c.pool = append(c.pool, c.g.Input("x", dtype.Float32, graph.UpTo(4), 3), c.vars.Param("w", 4, 3))
		for len(c.data) > 0 {
			c.one()
		}
		for _, e := range c.execs {
			c.check("Close", e.exec.Close())
		}
	})
}

// calls is the state of one sequence of calls.
type calls struct {
	t     *testing.T
	data  []byte
	g     *graph.Graph
	vars  *graph.Vars
	pool  []*graph.Value
	outs  []*graph.Value
	execs []opened
}

// opened is an Exec with the number of outputs that its graph had.
type opened struct {
	exec *graph.Exec
	outs int
}

func (c *calls) choose(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	x := int(c.data[0])
	c.data = c.data[1:]
	return x % max(n, 1)
}

func (c *calls) value() *graph.Value {
	if c.choose(24) == 23 {
		return nil
	}
	return c.pool[c.choose(len(c.pool))]
}

// check takes users' mistakes only.
func (c *calls) check(what string, err error) {
	c.t.Helper()
	if err == nil {
		return
	}
	for _, kind := range []error{graph.ErrShape, graph.ErrDType, graph.ErrUnsupported, graph.ErrUsage, graph.ErrDevice} {
		if errors.Is(err, kind) && !bytes.Contains([]byte(err.Error()), []byte("internal")) {
			return
		}
	}
	c.t.Fatalf("%s: %v", what, err)
}

func (c *calls) keep(v *graph.Value) {
	if v.Err() == nil {
		c.pool = append(c.pool, v)
	}
	c.check("building", v.Err())
}

func (c *calls) one() {
	if c.g.Err() != nil { // go on with another graph; the programs of this one stay
		c.g = graph.New("next")
		c.pool = []*graph.Value{c.g.Input("x", dtype.Float32, graph.UpTo(4), 3), c.vars.Lookup("w")}
		c.outs = nil
		for _, e := range c.execs {
			c.check("Close", e.exec.Close())
		}
		c.execs = nil
	}
	switch c.choose(10) {
	case 0:
		dims := []int{[]int{4, graph.UpTo(4), graph.UpTo(2), 0, 1}[c.choose(5)], []int{3, 1, 0}[c.choose(3)]}
		c.keep(c.g.Input(fmt.Sprintf("in%d", c.choose(9)), []dtype.DType{dtype.Float32, dtype.Int32, dtype.BFloat16}[c.choose(3)], dims[:1+c.choose(2)]...))
	case 1:
		c.keep(nodes.Add(c.value(), c.value()))
	case 2:
		c.keep(nodes.Scale(c.value(), 0.5))
	case 3:
		w := c.vars.Param([]string{"w", "v"}[c.choose(2)], 4, 3)
		c.pool = append(c.pool, w)
	case 4:
		v := c.value()
		if c.g.Output(fmt.Sprintf("out%d", c.choose(12)), v); c.g.Err() == nil {
			c.outs = append(c.outs, v)
		}
	case 5:
		gr := c.g.GradientsFrom([]*graph.Value{c.value(), c.value()}, []*graph.Value{nil, c.value()}, c.value())
		c.keep(gr.Value[0])
		if c.choose(3) == 2 {
			c.keep(nodes.SGD(gr, nodes.SGDConfig{Momentum: 0.5}))
		}
	case 6:
		c.open()
	case 7, 8:
		c.write()
	default:
		c.replay()
	}
}

// open compiles the graph as it is now, once for one stream and once for several.
func (c *calls) open() {
	if len(c.execs) >= 6 {
		return
	}
	for _, streams := range []int{1, 3} {
		p, err := c.g.Compile(host(c.t), graph.Options{Streams: streams, ForceStreams: true, NoFuse: c.choose(2) == 1, Debug: graph.Debug{Poison: true}})
		if c.check("Compile", err); err != nil {
			return
		}
		if err := p.Verify(); err != nil {
			c.t.Fatal(err)
		}
		e, err := p.Exec(c.vars)
		if c.check("Exec", err); err != nil {
			return
		}
		c.execs = append(c.execs, opened{e, len(c.outs)})
	}
}

// write gives data, mostly of the right format, to some value of all Execs.
func (c *calls) write() {
	v := c.value()
	n := []int{12, 6, 4, 3, 0, 1, 13}[c.choose(7)]
	var data any
	switch x := make([]float32, n); {
	case c.choose(16) == 15:
		data = "text"
	case v.DType() == dtype.Int32:
		data = make([]int32, n)
	default:
		for i := range x {
			x[i] = float32(i+c.choose(5)) / 4
		}
		data = x
	}
	for _, e := range c.execs {
		c.check("Write", e.exec.Write(v, data))
	}
}

// replay replays all Execs and compares those that were opened together where nothing is updated.
func (c *calls) replay() {
	var last [][]float32
	lastErr := error(nil)
	for i, e := range c.execs {
		err := e.exec.Replay(c.t.Context())
		c.check("Replay", err)
		var got [][]float32
		if err == nil {
			for _, v := range c.outs[:e.outs] {
				x := make([]float32, 16)
				if !v.DType().IsFloat() {
					continue
				}
				rows, err := e.exec.Read(v, x)
				c.check("Read", err)
				if width := max(1, v.Dim(1)); err == nil {
					x = x[:rows*width]
				}
				got = append(got, x)
			}
		}
		if i%2 == 1 && len(c.vars.States()) == 0 {
			if (err == nil) != (lastErr == nil) {
				c.t.Fatalf("on one stream: %v; on several: %v", lastErr, err)
			}
			for k := range got {
				if !slices.Equal(got[k], last[k]) {
					c.t.Fatalf("output %q differs between one stream and several: %v, %v", c.outs[k].Name(), last[k], got[k])
				}
			}
		}
		last, lastErr = got, err
	}
}
