package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// optimizer is what SGD and AdamW share: checks, the step counter, rates, state.
type optimizer struct {
	g     *graph.Graph
	kind  string
	name  string
	grads *graph.Grads
	sched Schedule
	step  *graph.Value // int32 (1,): this replay's step
	rates map[dtype.DType]*graph.Value
	err   error
}

const defaultRate = 1e-3

// newOptimizer checks what does not depend on the kind and builds the step counter.
func newOptimizer(kind, name string, grads *graph.Grads, rate float64, s Schedule) *optimizer {
	if name == "" {
		name = kind
	}
	o := &optimizer{g: grads.Graph(), kind: kind, name: name, grads: grads, sched: s, rates: map[dtype.DType]*graph.Value{}}
	switch {
	case o.g == nil || len(grads.Of) == 0 || len(grads.Of) != len(grads.Value):
		return o.fail(graph.Misuse("grads", "none", "the result of Gradients, with at least one parameter"))
	case o.g.Err() != nil:
		return o.fail(o.g.Err())
	case rate != 0 && s.Rate != 0 && rate != s.Rate:
		return o.fail(graph.Misuse("rate", fmt.Sprintf("%g, and %g in the schedule", rate, s.Rate), "one of them"))
	case s.Rate == 0 && rate == 0:
		o.sched.Rate = defaultRate
	case s.Rate == 0:
		o.sched.Rate = rate
	}
	if err := o.sched.check(); err != nil {
		return o.fail(err)
	}
	seen := map[string]bool{}
	for i, p := range grads.Of {
		if err := checkUpdate(p, grads.Value[i], seen); err != nil {
			return o.fail(err)
		}
	}
	count := o.g.Use(graph.VarsOf(grads.Of[0]).State(name+"/step", dtype.Int32, graph.Const(0), 1))
	if o.g.Version(count) > 0 {
		return o.fail(graph.Misuse("name", fmt.Sprintf("%q a second time in this graph", name), "another Name: the optimizers' state lies in one Vars"))
	}
	o.g.NameNext(name + "/step")
	o.step = graph.Apply(counter{}, count, grads.Ready)[0]
	return o
}

func (o *optimizer) fail(err error) *optimizer {
	o.err = fmt.Errorf("%s: %w", o.kind, err)
	return o
}

// checkUpdate checks one parameter and its gradient.
func checkUpdate(p, grad *graph.Value, seen map[string]bool) error {
	name := graph.VarName(p)
	switch {
	case p.Err() != nil:
		return p.Err()
	case name == "":
		return graph.Misuse("grads", fmt.Sprintf("a gradient of %q", p.Name()), "gradients of parameters: only variables can be updated")
	case seen[name]:
		return graph.Misuse("grads", fmt.Sprintf("%q twice", name), "each parameter once")
	case !plain(p.DType()):
		return graph.BadDType(name, p.DType(), floats)
	case grad == nil:
		return graph.Misuse("grads", "none", "a gradient of %q", name)
	case grad.Err() != nil:
		return grad.Err()
	case !plain(grad.DType()) || isWide(grad.DType()) != isWide(p.DType()):
		return graph.BadDType("gradient of "+name, grad.DType(), floats+", f64 only with f64")
	}
	seen[name] = true
	return sameShape("gradient of "+name, p, grad)
}

// rate returns this step's learning rate in format dt.
func (o *optimizer) rate(dt dtype.DType) *graph.Value {
	if o.rates[dt] == nil {
		o.g.NameNext(o.name + "/rate")
		o.rates[dt] = graph.Apply(schedule{Schedule: o.sched, DType: dt}, o.step)[0]
	}
	return o.rates[dt]
}

// state returns the state named "<param>/<optimizer>.<name>": zeros in the parameter's shape.
func (o *optimizer) state(p *graph.Value, name string) *graph.Value {
	return graph.VarsOf(p).State(o.stateName(p, name), statType(p.DType()), graph.Const(0), p.Shape()...)
}

// master returns the float32 copy of a 16-bit parameter that is updated in its place, nil for others.
func (o *optimizer) master(p *graph.Value) *graph.Value {
	if p.DType().Bits() != 16 {
		return nil
	}
	return graph.VarsOf(p).State(o.stateName(p, "master"), dtype.Float32, graph.CopyOf(p), p.Shape()...)
}

func (o *optimizer) stateName(p *graph.Value, name string) string {
	return graph.VarName(p) + "/" + o.name + "." + name
}

// update appends op for each parameter; operands lists its operands, from the parameter on.
func (o *optimizer) update(op graph.Op, operands func(p, grad, rate *graph.Value) []*graph.Value) *graph.Value {
	if o.err != nil {
		return o.g.Fail(o.err)
	}
	for i, p := range o.grads.Of {
		in := operands(p, o.grads.Value[i], o.rate(statType(p.DType())))
		o.g.NameNext(o.name + "/" + graph.VarName(p))
		graph.Apply(op, in...)
	}
	if err := o.g.Err(); err != nil {
		return o.g.Fail(err)
	}
	return o.step
}

// checkState checks the operands of an update that have the parameter's shape: state and gradient.
func checkState(p *graph.Value, operands []graph.Operand, in []*graph.Value) error {
	for i, v := range in {
		if v == nil {
			continue
		}
		if v.Rows() != nil {
			return graph.BadShape(operands[i].Name, v.Text(), "rows that are not counted")
		}
		if err := sameShape(operands[i].Name, p, v); err != nil {
			return err
		}
	}
	return nil
}

// masterOf returns the tensor that an update works on: the master copy where there is one.
func masterOf(param, master *graph.Tensor) *graph.Tensor {
	if master != nil {
		return master
	}
	return param
}
