package gorgop

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/moegraph/moegraph/graph"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// site is one application of a Layer in a gorgonia graph: it has Execs of its own, since what a forward replay keeps
// must stay until the backward one, whatever other applications do in between.
type site struct {
	l       *Layer
	g       *gorgonia.ExprGraph
	id      uint32
	dt      tensor.Dtype   // of every float node
	nodes   gorgonia.Nodes // the operands
	in      []tensor.Shape // of the data inputs and parameters
	inType  []tensor.Dtype
	out     tensor.Shape
	diff    []bool         // which inputs have a gradient
	handle  *gorgonia.Node // with ProgramWeights
	derived bool           // gradient nodes exist: what they read must be kept

	mu     sync.Mutex
	eval   bool // a VM in evaluation mode
	closed bool
	fwd    *graph.Exec // keeps what back reads, from its first use on
	noGrad *graph.Exec // keeps nothing
	back   *graph.Exec
	last   *graph.Exec // of fwd and noGrad the one that ran last
	kept   bool        // fwd has run since back did
	seen   int64       // updates of the weights before fwd ran
	y      *result
	grads  []*result
}

// forward begins one replay on the values of the inputs. output waits for it.
func (s *site) forward(vals []gorgonia.Value) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: %s was released", graph.ErrUsage, s)
	}
	keep := s.derived || !s.eval
	e, err := s.forwardExec(keep)
	if err != nil {
		return err
	}
	if keep && s.back != nil {
		// What the backward replay reads must not change under it.
		if err := e.After(s.back); err != nil {
			return err
		}
	}
	for i, in := range s.l.d.In {
		if err := s.write(e, in, i, vals[i]); err != nil {
			return err
		}
	}
	s.kept, s.seen = false, s.l.updates()
	if err := e.Replay(context.Background()); err != nil {
		return err
	}
	s.l.forward.Add(1)
	s.kept = keep
	s.last = e
	return s.y.start(e, s.l.d.Y)
}

// output waits for the last forward replay and returns what it made.
func (s *site) output() (gorgonia.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return nil, fmt.Errorf("%w: %s has not run, or was released", graph.ErrUsage, s)
	}
	return s.y.get(s.last, s.l.d.Y)
}

// forwardExec returns the Exec of the forward half, made at the first call.
func (s *site) forwardExec(keep bool) (e *graph.Exec, err error) {
	p, at := s.l.eval, &s.noGrad
	if keep {
		p, at = s.l.train, &s.fwd
	}
	if *at == nil {
		if *at, err = p.Exec(s.l.vars); err != nil {
			return nil, err
		}
	}
	return *at, nil
}

// write gives an input the value of its node: in place where the device and the formats allow it.
func (s *site) write(e *graph.Exec, in *graph.Value, i int, v gorgonia.Value) error {
	d, err := dense(v)
	scalar := s.in[i].Dims() == 0
	if err == nil && (!d.Shape().Eq(s.in[i]) && !(scalar && d.Size() == 1) || d.Dtype() != s.inType[i]) {
		err = graph.BadShape("value", fmt.Sprintf("%v %v", d.Dtype(), d.Shape()), "%v %v as its node", s.inType[i], s.in[i])
	}
	if err != nil {
		return fmt.Errorf("input %q: %w", in.Name(), err)
	}
	return e.Write(in, data(d, scalar))
}

// data is what Exec.Write takes: a scalar as a slice, whose shape is nobody's business.
func data(d *tensor.Dense, scalar bool) any {
	if scalar {
		return d.Data()
	}
	return d
}

// backward runs one replay on what the last forward one had and kept, and the gradient of the output. Gradients are
// read by gradient.
func (s *site) backward(dy gorgonia.Value) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("%w: %s was released", graph.ErrUsage, s)
	case !s.kept && s.eval && !s.derived:
		return fmt.Errorf("%w: gradient of %s: the forward pass ran in evaluation mode, which keeps no activations: "+
			"make the machine that trains without EvalMode, and after those that evaluate", graph.ErrUsage, s)
	case !s.kept:
		return fmt.Errorf("%w: gradient of %s: it needs a forward pass of its own before it", graph.ErrUsage, s)
	case s.seen != s.l.updates():
		return fmt.Errorf("%w: gradient of %s: another application has updated the weights since its forward pass: "+
			"apply a layer with program weights once a step, make one Layer of both applications, or use node weights",
			graph.ErrUsage, s)
	}
	if err := s.openBack(); err != nil {
		return err
	}
	d := s.l.d
	for i, in := range d.BackIn {
		if in != nil {
			if err := s.back.WriteFrom(in, s.fwd, d.In[i]); err != nil {
				return err
			}
		}
	}
	g, err := dense(dy)
	if err == nil && !g.Shape().Eq(s.out) && !(s.l.scalar && g.Size() == 1) {
		err = graph.BadShape("value", g.Shape(), "%v", s.out)
	}
	if err == nil {
		err = s.back.Write(d.Seed, data(g, s.l.scalar))
	}
	if err != nil {
		return fmt.Errorf("gradient of %s: %w", s, err)
	}
	if err := s.back.After(s.fwd); err != nil {
		return err
	}
	s.kept = false
	if err := s.back.Replay(context.Background()); err != nil {
		return err
	}
	s.l.reverse.Add(1)
	for i, dv := range d.Grads {
		if dv != nil {
			if err := s.grads[i].start(s.back, dv); err != nil {
				return err
			}
		}
	}
	return nil
}

// openBack makes the Exec of the backward half, which reads what the forward one keeps where that is.
func (s *site) openBack() (err error) {
	if s.back != nil {
		return nil
	}
	e, err := s.l.back.Exec(s.l.vars)
	if err != nil {
		return err
	}
	for _, x := range s.l.d.Saved {
		if err := e.WriteFrom(x.To, s.fwd, x.From); err != nil {
			return errors.Join(err, e.Close())
		}
	}
	s.back = e
	return nil
}

// gradient returns the gradient of an input, of the last backward replay.
func (s *site) gradient(i int) (gorgonia.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.back == nil {
		return nil, fmt.Errorf("%w: gradient of %s: no backward replay yet", graph.ErrUsage, s)
	}
	return s.grads[i].get(s.back, s.l.d.Grads[i])
}

func (s *site) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, r := range append(s.grads, s.y) {
		r.drop()
	}
	var errs error
	for _, e := range []*graph.Exec{s.back, s.fwd, s.noGrad} {
		if e != nil {
			errs = errors.Join(errs, e.Close())
		}
	}
	s.back, s.fwd, s.noGrad, s.last = nil, nil, nil, nil
	return errs
}

// String names the application in errors.
func (s *site) String() string { return fmt.Sprintf("%s#%d", s.l.name, s.id) }
