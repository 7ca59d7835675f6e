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
// Value's own format on the host device, DeviceMemory elsewhere; of its whole size (a capacity's too), 16-byte
// aligned. Replays write outputs there and read and update variables there; nothing is copied. What replays
// write may overlap neither each other nor anything they read. The memory must stay alive, and be left alone during replays, until
// it is bound anew or the Exec is closed. Inputs are bound by Write.
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
	mem, data, err := e.boundMemory(w, memory)
	if err != nil {
		return fmt.Errorf("%s: %w", v, err)
	}
	t := e.tensors[w]
	old := *t
	t.Mem, t.Data, t.Off = mem, data, 0
	if err := e.checkShared(w); err != nil {
		*t = old
		return err
	}
	if e.async != nil {
		e.async.Rebind()
	}
	return nil
}

// boundMemory checks memory that Bind was given for v.
func (e *Exec) boundMemory(v *Value, memory any) (Memory, []byte, error) {
	if m, ok := memory.(DeviceMemory); ok {
		mem, err := e.wrapDevice(m)
		if err == nil && m.Bytes != v.Bytes() {
			err = BadShape("memory", fmt.Sprintf("%d bytes", m.Bytes), "%d bytes for %s", v.Bytes(), v.Text())
		}
		return mem, nil, err
	}
	wrap, ok := e.p.dev.(Wrapper)
	if !ok {
		return nil, nil, fmt.Errorf("%w: %s cannot use Go memory in place, want DeviceMemory", ErrDevice, e.p.dev)
	}
	d, err := dataOf(memory)
	if err == nil {
		err = checkBound(v, d)
	}
	if err != nil {
		return nil, nil, err
	}
	return wrap.Wrap(d.bytes), d.bytes, nil
}

// wrapDevice makes Memory of the caller's device memory.
func (e *Exec) wrapDevice(m DeviceMemory) (Memory, error) {
	w, ok := e.p.dev.(DeviceWrapper)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: %s cannot use device memory, want a slice or a *tensor.Dense", ErrDevice, e.p.dev)
	case m.Bytes < 0 || m.Addr == 0 && m.Bytes > 0:
		return nil, Misuse("memory", fmt.Sprintf("%d bytes at address %#x", m.Bytes, m.Addr), "an address")
	case m.Addr%bindAlign != 0:
		return nil, Misuse("memory", fmt.Sprintf("address %#x", m.Addr), "a multiple of %d", bindAlign)
	}
	return w.WrapDevice(m), nil
}

// writeDevice makes the caller's device memory the input's data and returns its number of rows.
func (e *Exec) writeDevice(input *Value, st *inputState, m DeviceMemory) (rows int, err error) {
	mem, err := e.wrapDevice(m)
	if err != nil {
		return 0, err
	}
	rows = input.Dim(0)
	row := int64(input.dt.Bytes(rowElems(input)))
	switch {
	case (input.rows == nil || input.whole) && m.Bytes != input.Bytes():
		return 0, BadShape("data", fmt.Sprintf("%d bytes", m.Bytes), "%d for %s", input.Bytes(), input.Text())
	case input.rows != nil && !input.whole:
		if row == 0 || m.Bytes%row != 0 || m.Bytes/row > int64(rows) {
			return 0, BadShape("data", fmt.Sprintf("%d bytes", m.Bytes), "a multiple of %d bytes, at most %d rows, for %s", row, rows, input.Text())
		}
		rows = int(m.Bytes / row)
	}
	e.move(st.t, mem)
	return rows, nil
}

// move gives a tensor other memory that Go cannot reach, and tells the runner if the address is another.
func (e *Exec) move(t *Tensor, mem Memory) {
	was, known := t.Mem.(Addressed)
	now, _ := mem.(Addressed)
	same := known && now != nil && was.Addr()+uint64(t.Off) == now.Addr()
	t.Mem, t.Off, t.Data = mem, 0, nil
	if !same && e.async != nil {
		e.async.Rebind()
	}
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

// region is a tensor that may lie in memory of the caller.
type region struct {
	v       *Value
	t       *Tensor
	written bool // by replays
}

// listRegions lists inputs, outputs and variables, in an order that does not change.
func (e *Exec) listRegions() {
	listed := map[*Value]bool{}
	add := func(v *Value, written bool) {
		if !listed[v] {
			listed[v] = true
			e.regions = append(e.regions, region{v, e.tensors[v], written})
		}
	}
	for _, in := range e.p.inputs {
		add(in, false)
	}
	for _, v := range e.p.external {
		add(v, true)
	}
	for _, update := range []bool{true, false} {
		for _, s := range e.p.steps {
			ops := s.Op.Operands()
			for i, v := range s.In {
				if v != nil && v.variable != nil && ops[i].Update == update {
					add(v, update)
				}
			}
		}
	}
	for _, o := range e.p.outputs {
		if o.v.variable != nil {
			add(o.v, false)
		}
	}
}

// checkShared refuses memory of v that shares bytes with other memory of the Exec, if a replay writes either.
func (e *Exec) checkShared(v *Value) error {
	var mine region
	for _, r := range e.regions {
		if r.v == v {
			mine = r
		}
	}
	if mine.v == nil {
		return nil
	}
	from, n := extent(v, mine.t)
	for _, r := range e.regions {
		if r.v == v || !r.written && !mine.written {
			continue
		}
		if at, m := extent(r.v, r.t); n > 0 && m > 0 && from < at+m && at < from+n {
			a, b := mine, r
			if !a.written {
				a, b = b, a
			}
			return usagef("%s shares bytes with %s: give it memory of its own", a.role(), b.role())
		}
	}
	return nil
}

// role names the region for an error.
func (r region) role() string {
	if r.v.kind == Workspace {
		return fmt.Sprintf("output %q", r.v.Name())
	}
	return fmt.Sprintf("%s %q", r.v.kind, r.v.Name())
}

// extent returns where t's bytes are and how many; none for an input without data.
func extent(v *Value, t *Tensor) (from, n uint64) {
	if len(t.Data) > 0 {
		return uint64(uintptr(unsafe.Pointer(&t.Data[0]))), uint64(len(t.Data))
	}
	if m, ok := t.Mem.(Addressed); ok {
		return m.Addr() + uint64(t.Off), uint64(max(0, min(v.Bytes(), m.Size()-t.Off)))
	}
	return 0, 0
}
