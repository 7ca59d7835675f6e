package graph

import (
	"fmt"
	"unsafe"
)

// Alone makes a Program of one operator, and an Exec of it, without a model: build adds inputs that describe the
// operands (formats, shapes, layouts; no data), applies the operator and marks what it wants as outputs.
// The error says what is not supported, as Compile's would. Accumulators and other variables are those
// of vars, which may be nil. The Exec compiles nothing more: Write and Bind give it the caller's
// memory, also with other numbers of rows from call to call, and Replay runs it.
//
//	exec, err := graph.Alone(dev, nil, graph.Options{}, func(g *graph.Graph) {
//		a = g.Input("a", dtype.BFloat16, graph.UpTo(4096), 512)
//		...
//		d, _ := nodes.GroupedGEMM{A: a, B: nodes.Dense(b), PaddedOffsets: offsets}.Apply()
//		g.Output("d", d)
//	})
func Alone(dev Device, vars *Vars, opt Options, build func(g *Graph)) (*Exec, error) {
	g := New("alone")
	build(g)
	p, err := g.Compile(dev, opt)
	if err != nil {
		return nil, err
	}
	if len(p.steps) != 1 {
		return nil, usagef("Alone: got %d nodes, want one operator", len(p.steps))
	}
	return p.Exec(vars)
}

// bindAlign is what addresses of bound memory are multiples of, in bytes.
const bindAlign = 16

// Bind makes an output or a variable of this Exec live in the caller's memory: a slice or a *tensor.Dense in the
// Value's own format, of its whole size (a capacity's too), 16-byte aligned. Replays write outputs there and
// read and update variables there; nothing is copied. Outputs may overlap neither each other nor an
// input. The memory must stay alive, and be left alone during replays, until it is bound anew or the
// Exec is closed. Inputs are bound by Write.
func (e *Exec) Bind(v *Value, memory any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return usagef("Bind to a closed Exec of %q", e.p.graph)
	}
	w := e.find(v)
	if w == nil || (w.kind != Param && w.kind != State && !e.isOutput(w)) {
		return usagef("Bind: %q is neither an output nor a variable of program %q", v.Name(), e.p.graph)
	}
	wrap, ok := e.p.dev.(Wrapper)
	if !ok {
		return fmt.Errorf("%w: %s cannot use Go memory in place", ErrDevice, e.p.dev)
	}
	d, err := dataOf(memory)
	if err == nil {
		err = checkBound(w, d)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", v, err)
	}
	t := e.tensors[w]
	oldMem, oldData := t.Mem, t.Data
	t.Mem, t.Data = wrap.Wrap(d.bytes), d.bytes
	e.bound = true
	if err := e.checkOverlaps(); err != nil {
		t.Mem, t.Data = oldMem, oldData
		return err
	}
	return nil
}

func checkBound(v *Value, d hostData) error {
	switch {
	case !d.fits(v.dt):
		return BadDType("memory", d.what, "%s", goTypes(v.dt))
	case int64(len(d.bytes)) != v.Bytes():
		return BadShape("memory", d.describe(), "%d bytes for %s", v.Bytes(), v.Text())
	case len(d.bytes) > 0 && uintptr(unsafe.Pointer(&d.bytes[0]))%bindAlign != 0:
		return Misuse("memory", fmt.Sprintf("address %p", &d.bytes[0]), "a multiple of %d", bindAlign)
	}
	return nil
}

// checkOverlaps refuses an output that shares bytes with another output, an input or a variable.
func (e *Exec) checkOverlaps() error {
	type region struct {
		v        *Value
		from, to uintptr
		written  bool
	}
	var regions []region
	for v, t := range e.tensors {
		if len(t.Data) == 0 || (v.kind == Workspace && !e.isOutput(v)) {
			continue
		}
		from := uintptr(unsafe.Pointer(&t.Data[0]))
		regions = append(regions, region{v, from, from + uintptr(len(t.Data)), e.isOutput(v)})
	}
	for i, a := range regions {
		for _, b := range regions[:i] {
			if (a.written || b.written) && a.from < b.to && b.from < a.to {
				if !a.written {
					a, b = b, a
				}
				return usagef("output %q shares bytes with %s %q: give it memory of its own", a.v.Name(), b.v.kind, b.v.Name())
			}
		}
	}
	return nil
}
