package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/atomicfile"
)

// profileReplays is how many replays a profile takes the shortest times of.
const profileReplays = 20

// contender is a plan of the layer that is measured against one stream.
type contender struct {
	name string
	prog *graph.Program
	exec *graph.Exec
	took time.Duration // median
}

// measurePlans prints the layer's time on one stream and as planned: from the cost model, from the steps' measured times,
// and on as many streams as the graph is wide for. The plans take turns, so that a change of clocks hits all alike.
func (b *bench) measurePlans(l layerGraph) (err error) {
	all, err := b.contenders(l)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range all {
			if c.exec != nil {
				err = errors.Join(err, c.exec.Close())
			}
		}
	}()
	for _, c := range all {
		if c.exec, err = b.openLayer(l, c.prog); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	execs := make([]*graph.Exec, len(all))
	for i, c := range all {
		execs[i] = c.exec
	}
	times, err := b.time(1, execs...)
	if err != nil {
		return err
	}
	for i, c := range all {
		c.took = times[i]
	}
	one := all[0]
	for _, c := range all {
		waits := 0
		for _, s := range c.prog.Steps() {
			waits += len(s.Waits)
		}
		same := ""
		if c != one && samePlan(c.prog, one.prog) {
			same = " (the plan of one stream)"
		}
		b.printf("  %-22s %2d streams, %2d waits, workspaces %8.1f MiB, simulated %9.3f ms, measured %9.3f ms, %.4f of one stream%s", c.name+":",
			c.prog.Streams(), waits, mib(c.prog.ArenaBytes()), c.prog.SimulatedUS()/1e3, c.took.Seconds()*1e3, float64(c.took)/float64(one.took), same)
	}
	return nil
}

// contenders compiles the plans, one stream first.
func (b *bench) contenders(l layerGraph) ([]*contender, error) {
	profile, err := b.profile(l)
	if err != nil {
		return nil, err
	}
	var all []*contender
	add := func(name string, prog *graph.Program, err error) error {
		all = append(all, &contender{name: name, prog: prog})
		return err
	}
	compile := func(name string, opt graph.Options) error {
		prog, err := l.g.Compile(b.dev, opt)
		return add(name, prog, err)
	}
	if err := compile("one stream", graph.Options{Streams: 1}); err != nil {
		return nil, err
	}
	if err := compile("chosen by cost model", graph.Options{}); err != nil {
		return nil, err
	}
	chosen, err := all[1].prog.WithProfile(profile)
	if err := add("chosen by times", chosen, err); err != nil {
		return nil, err
	}
	for _, k := range []int{2, 4} {
		forced, err := l.g.Compile(b.dev, graph.Options{Streams: k, ForceStreams: true})
		if err == nil {
			forced, err = forced.WithProfile(profile)
		}
		if err := add(fmt.Sprintf("forced, at most %d", k), forced, err); err != nil {
			return nil, err
		}
	}
	if b.pages != "" {
		path := filepath.Join(b.pages, b.Name+".html")
		if err := atomicfile.Write(path, chosen.WriteHTML); err != nil {
			return nil, err
		}
		b.printf("  wrote %s", path)
	}
	return all, nil
}

// profile measures each step alone.
func (b *bench) profile(l layerGraph) (graph.Profile, error) {
	prog, err := l.g.Compile(b.dev, graph.Options{Streams: 1, Debug: graph.Debug{Eager: true}})
	if err != nil {
		return nil, err
	}
	e, err := b.openLayer(l, prog)
	if err != nil {
		return nil, err
	}
	p, err := e.Profile(b.ctx, profileReplays)
	return p, errors.Join(err, e.Close())
}

// samePlan says whether two Programs issue the same steps in the same order on the same streams.
func samePlan(a, b *graph.Program) bool {
	return slices.EqualFunc(a.Steps(), b.Steps(), func(x, y *graph.Step) bool {
		return x.Name == y.Name && x.Stream == y.Stream && slices.Equal(x.Waits, y.Waits)
	})
}
