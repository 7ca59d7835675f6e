//go:build gpu

package cudadev

import (
	"errors"
	"fmt"

	"github.com/moegraph/moegraph/internal/cuda"
	"gorgonia.org/cu"
)

// lanes are the streams and events of one issue of all steps: the origin first.
type lanes struct {
	streams []*cuda.Stream
	fork    *cuda.Event   // the start, on the origin
	done    []*cuda.Event // of each step that another stream waits for; else nil
	join    []*cuda.Event // of each side stream, its end; nil for the origin
}

// newLanes makes streams and events for the plan. Without an origin it makes one.
func (r *Runner) newLanes(origin *cuda.Stream, timing bool) (l *lanes, err error) {
	l = &lanes{done: make([]*cuda.Event, len(r.steps)), join: make([]*cuda.Event, r.streams)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close(origin))
		}
	}()
	for i := range r.streams {
		s := origin
		if i > 0 || origin == nil {
			name := "origin"
			if i > 0 {
				name = fmt.Sprintf("side %d", i)
			}
			if s, err = r.d.dev.NewStream(name); err != nil {
				return nil, err
			}
		}
		l.streams = append(l.streams, s)
	}
	event := func(e **cuda.Event) {
		if err == nil && *e == nil {
			*e, err = r.d.dev.NewEvent(timing)
		}
	}
	event(&l.fork)
	for i := 1; i < r.streams; i++ {
		event(&l.join[i])
	}
	for i := range r.steps {
		for _, w := range r.steps[i].Waits {
			event(&l.done[w])
		}
	}
	return l, err
}

// close gives all back but the origin that newLanes was given.
func (l *lanes) close(origin *cuda.Stream) error {
	var errs error
	for _, e := range append(append([]*cuda.Event{l.fork}, l.done...), l.join...) {
		if e != nil {
			errs = errors.Join(errs, e.Close())
		}
	}
	for _, s := range l.streams {
		if s != origin {
			errs = errors.Join(errs, s.Close())
		}
	}
	return errs
}

// issue gives every step to its stream: side streams fork from the origin, wait for what the plan says, and are
// joined at the end. around, if not nil, is called before and after each step.
func (r *Runner) issue(l *lanes, launched func(step int, on *cuda.Stream) error, around func(step int, on *cuda.Stream, before bool) error) error {
	origin := l.streams[0]
	if err := origin.Record(l.fork); err != nil {
		return err
	}
	forked := make([]bool, len(l.streams))
	var buf cuda.ArgBuffer
	for i := range r.steps {
		s := &r.steps[i]
		on := l.streams[s.Stream]
		if err := r.issueStep(l, i, on, &forked[s.Stream], &buf, launched, around); err != nil {
			return fmt.Errorf("%s %q on stream %q: %w", s.Op.Kind(), s.Name, on, err)
		}
	}
	for i, on := range l.streams[1:] {
		if !forked[i+1] {
			continue
		}
		if err := on.Record(l.join[i+1]); err != nil {
			return err
		}
		if err := origin.WaitEvent(l.join[i+1]); err != nil {
			return fmt.Errorf("joining stream %q: %w", on, err)
		}
	}
	return nil
}

func (r *Runner) issueStep(l *lanes, i int, on *cuda.Stream, forked *bool, buf *cuda.ArgBuffer,
	launched func(int, *cuda.Stream) error, around func(int, *cuda.Stream, bool) error) error {
	s := &r.steps[i]
	if !*forked && s.Stream > 0 {
		if err := on.WaitEvent(l.fork); err != nil {
			return err
		}
	}
	*forked = true
	for _, w := range s.Waits {
		if err := on.WaitEvent(l.done[w]); err != nil {
			return err
		}
	}
	if around != nil {
		if err := around(i, on, true); err != nil {
			return err
		}
	}
	for k := range s.Launches {
		if err := r.launch(s, k, on, buf); err != nil {
			return err
		}
		if launched != nil {
			if err := launched(i, on); err != nil {
				return err
			}
		}
	}
	if around != nil {
		if err := around(i, on, false); err != nil {
			return err
		}
	}
	if e := l.done[i]; e != nil {
		return on.Record(e)
	}
	return nil
}

// capture makes the Program one executable graph. A failure leaves the one there was, if any, and the next replay
// tries again.
func (r *Runner) capture() (err error) {
	l, err := r.newLanes(nil, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close(nil)) }()
	nodes := make([][]cu.Node, len(r.steps))
	g, err := l.streams[0].Capture(r.name, func() error {
		return r.issue(l, func(step int, on *cuda.Stream) error {
			n, err := on.Captured()
			if err == nil && len(n) != 1 {
				err = fmt.Errorf("internal: a launch made %d nodes", len(n))
			}
			nodes[step] = append(nodes[step], n...)
			return err
		}, nil)
	})
	if err != nil {
		return err
	}
	if err := r.instantiate(g); err != nil {
		return errors.Join(err, g.Close())
	}
	if r.graph != nil {
		err = r.graph.Close()
	}
	r.graph, r.nodes, r.dirty = g, nodes, false
	return err
}

// instantiate makes g what is replayed: by an update of the executable graph where its topology allows, else anew.
func (r *Runner) instantiate(g *cuda.Graph) error {
	if r.exec != nil {
		if _, err := r.exec.Update(g); err == nil {
			return r.exec.Upload(r.stream)
		}
	}
	x, err := g.Instantiate(r.name)
	if err != nil {
		return err
	}
	if err := x.Upload(r.stream); err != nil {
		return errors.Join(err, x.Close())
	}
	if r.exec != nil {
		err = r.exec.Close() // CUDA finishes its launches first
	}
	r.exec = x
	return err
}

// Captured is the captured graph as CUDA tells it.
type Captured struct {
	Nodes []cuda.Node
	Edges []cuda.Edge
	Steps [][]int // the nodes of each step's launches, as indices of Nodes
}

// Captured reads the graph of the last replay back.
func (r *Runner) Captured() (*Captured, error) {
	if r.graph == nil {
		return nil, fmt.Errorf("%w: program %q was not captured: replay it first, and not node by node", errUsage, r.name)
	}
	c := &Captured{Steps: make([][]int, len(r.nodes))}
	var err error
	if c.Nodes, err = r.graph.Nodes(); err != nil {
		return nil, err
	}
	if c.Edges, err = r.graph.Edges(); err != nil {
		return nil, err
	}
	index := map[cu.Node]int{}
	for i, n := range c.Nodes {
		index[n.Handle] = i
	}
	for i, handles := range r.nodes {
		for _, h := range handles {
			at, ok := index[h]
			if !ok {
				return nil, fmt.Errorf("internal: a node of step %q is not in the graph", r.steps[i].Name)
			}
			c.Steps[i] = append(c.Steps[i], at)
		}
	}
	return c, nil
}

// Order returns the order of steps that the edges imply: [a, b] says that all of step a is done before any of
// step b starts.
func (c *Captured) Order() [][2]int {
	n := len(c.Nodes)
	next := make([][]int, n)
	for _, e := range c.Edges {
		if !e.Programmatic {
			next[e.From] = append(next[e.From], e.To)
		}
	}
	reach := make([][]bool, n) // of each node, those after it
	var visit func(i int) []bool
	visit = func(i int) []bool {
		if reach[i] == nil {
			seen := make([]bool, n)
			for _, j := range next[i] {
				seen[j] = true
				for k, after := range visit(j) {
					seen[k] = seen[k] || after
				}
			}
			reach[i] = seen
		}
		return reach[i]
	}
	var order [][2]int
	for a, from := range c.Steps {
		for b, to := range c.Steps {
			if a != b && visit(from[len(from)-1])[to[0]] {
				order = append(order, [2]int{a, b})
			}
		}
	}
	return order
}
