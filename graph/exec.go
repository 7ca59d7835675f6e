package graph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/moegraph/moegraph/dtype"
	"gorgonia.org/tensor"
)

// Exec is a Program bound to variables and to memory of its own: inputs, outputs and an arena. It is made by
// Program.Exec and serves one call at a time.
type Exec struct {
	mu      sync.Mutex
	p       *Program
	store   *varStore   // nil if the Program uses no variable
	writes  bool        // the Program updates variables
	updates []*variable // those
	tensors map[*Value]*Tensor
	inputs  map[*Value]*inputState
	counted map[*Value]*inputState // the inputs by their row counts
	owned   []Memory               // freed by Close
	arena   Memory
	checked bool     // inputs are ready, as of the last replay; a Write takes it back
	regions []region // what may lie in memory of the caller
	runner  Runner
	async   AsyncRunner // runner, if it only issues; else nil
	closed  bool
}

type inputState struct {
	t       *Tensor
	mem     Memory // for data that must be converted or copied; made when first needed
	written bool
	used    bool    // some step or output needs it
	rows    int     // of the last Write, where rows are counted
	count   [4]byte // rows, as the device reads it
}

// Exec binds the Program to vars, which may be nil if it uses no variables, and allocates what a replay needs.
func (p *Program) Exec(vars *Vars) (exec *Exec, err error) {
	e := &Exec{p: p, tensors: map[*Value]*Tensor{}, inputs: map[*Value]*inputState{}, counted: map[*Value]*inputState{}}
	defer func() {
		if r := recover(); r != nil {
			exec, err = nil, errors.Join(fmt.Errorf("program %q: internal error: %v", p.graph, r), e.release())
		}
	}()
	if err := e.open(vars); err != nil {
		return nil, errors.Join(fmt.Errorf("program %q: %w", p.graph, err), e.release())
	}
	return e, nil
}

func (e *Exec) open(vars *Vars) error {
	if vars != nil {
		if err := vars.Err(); err != nil {
			return err
		}
	}
	p := e.p
	if d, ok := p.dev.(Sizer); ok {
		if err := d.Fits(p.bytes()); err != nil {
			return err
		}
	}
	if err := e.bindVars(vars); err != nil {
		return err
	}
	var err error
	if e.arena, err = e.alloc(p.plan.Peak, fmt.Sprintf("arena of %q with %d workspaces", p.graph, len(p.buffers))); err != nil {
		return err
	}
	scratch := map[int]*Tensor{}
	for _, b := range p.buffers {
		t := &Tensor{DType: dtype.Uint8, Shape: []int{int(b.Size)}, Mem: e.arena, Off: b.Offset}
		if b.value != nil {
			t.DType, t.Shape = b.value.dt, b.value.shape
			e.tensors[b.value] = t
		} else {
			scratch[b.step] = t
		}
		t.Data = view(e.arena, b.Offset, b.Size)
	}
	for _, v := range p.external {
		mem, err := e.alloc(v.Bytes(), "output "+v.Name())
		if err != nil {
			return err
		}
		e.tensors[v] = &Tensor{DType: v.dt, Shape: v.shape, Mem: mem, Data: view(mem, 0, v.Bytes())}
	}
	for _, in := range p.inputs {
		if err := e.openInput(in); err != nil {
			return err
		}
	}
	for v, t := range e.tensors {
		t.Count = e.tensors[v.rows]
	}
	e.listRegions()
	calls := make([]*Call, len(p.steps))
	for i, s := range p.steps {
		calls[i] = &Call{Name: s.Name, Op: s.Op, In: e.list(s.In), Out: e.list(s.Out)}
		if t := scratch[i]; t != nil {
			calls[i].Scratch, calls[i].Shared = t.Data, t
		}
	}
	e.runner, err = p.dev.Load(p, calls)
	e.async, _ = e.runner.(AsyncRunner)
	return err
}

func (e *Exec) list(vs []*Value) []*Tensor {
	ts := make([]*Tensor, len(vs))
	for i, v := range vs {
		if v != nil {
			ts[i] = e.tensors[v]
		}
	}
	return ts
}

func (e *Exec) alloc(bytes int64, what string) (Memory, error) {
	mem, err := e.p.dev.Alloc(bytes, what)
	if err == nil {
		e.owned = append(e.owned, mem)
	}
	return mem, err
}

// view returns the bytes of host memory, nil for memory that Go cannot reach.
func view(mem Memory, off, n int64) []byte {
	if hm, ok := mem.(HostMemory); ok {
		return hm.Bytes()[off : off+n : off+n]
	}
	return nil
}

// bindVars gives the variables memory and tensors.
func (e *Exec) bindVars(vars *Vars) error {
	seen := map[*variable]bool{}
	var xs []*variable
	use := func(v *Value, update bool) error {
		if v == nil || v.variable == nil {
			return nil
		}
		if update && !slices.Contains(e.updates, v.variable) {
			e.writes, e.updates = true, append(e.updates, v.variable)
		}
		if vars == nil {
			return usagef("want the Vars that holds %q", v.Name())
		}
		if v.variable.store != vars.s {
			return usagef("variable %q belongs to another Vars than the one given", v.Name())
		}
		if !seen[v.variable] {
			seen[v.variable] = true
			xs = append(xs, v.variable)
			e.tensors[v] = &Tensor{DType: v.dt, Shape: v.shape}
		}
		return nil
	}
	for _, s := range e.p.steps {
		ops := s.Op.Operands()
		for i, v := range s.In {
			if err := use(v, ops[i].Update); err != nil {
				return err
			}
		}
	}
	for _, o := range e.p.outputs {
		if err := use(o.v, false); err != nil {
			return err
		}
	}
	if len(xs) == 0 {
		return nil
	}
	if err := vars.s.bind(e.p.dev, xs); err != nil {
		return err
	}
	e.store = vars.s
	for v, t := range e.tensors {
		t.Mem = v.variable.mem
		t.Data = view(t.Mem, 0, t.Mem.Size())
	}
	return nil
}

func (e *Exec) openInput(in *Value) error {
	st := &inputState{t: &Tensor{DType: in.dt, Shape: in.shape}, used: e.p.needs(in)}
	e.inputs[in] = st
	e.tensors[in] = st.t
	if in.rows == nil || in.whole {
		return nil // a whole input's count is another input
	}
	e.counted[in.rows] = st
	mem, err := e.alloc(4, "row count of input "+in.name)
	if err != nil {
		return err
	}
	e.tensors[in.rows] = &Tensor{DType: dtype.Int32, Shape: []int{1}, Mem: mem, Data: view(mem, 0, 4)}
	return nil
}

// needs says whether a step or an output uses the input or its row count.
func (p *Program) needs(in *Value) bool {
	is := func(v *Value) bool { return v == in || (v != nil && v == in.rows) }
	for _, s := range p.steps {
		if slices.ContainsFunc(s.reads(), is) {
			return true
		}
	}
	return slices.ContainsFunc(p.outputs, func(o output) bool { return is(o.v) })
}

// find returns the Exec's Value for v, which may be a variable's handle.
func (e *Exec) find(v *Value) *Value {
	if v == nil {
		return nil
	}
	if _, ok := e.tensors[v]; ok {
		return v
	}
	if v.variable != nil {
		for w := range e.tensors {
			if w.variable == v.variable {
				return w
			}
		}
	}
	return nil
}

// Write gives an input its data for the replays that follow: a slice, a *tensor.Dense, or DeviceMemory. The number
// of rows is the data's; where the input's first dimension is no capacity it must match. On the host device
// data of the input's own format is used in place: it must not change until the replay has returned; elsewhere
// DeviceMemory is. Everything else is copied, floats of another format converted, into memory of the Exec, after
// the replays issued so far and before the next; the caller's slice may change once Write has returned. Data may
// share no byte with what a replay writes. After an error the input has the data that it had.
func (e *Exec) Write(input *Value, data any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return usagef("Write to a closed Exec of %q", e.p.graph)
	}
	st := e.inputs[input]
	if st == nil {
		return usagef("Write: %q is no input of program %q", input.Name(), e.p.graph)
	}
	was := *st.t
	e.checked = false
	rows, err := e.write(input, st, data)
	if err == nil {
		err = e.checkShared(input)
	}
	if err != nil {
		*st.t = was
		if e.async != nil {
			e.async.Rebind()
		}
		return fmt.Errorf("input %q: %w", input.Name(), err)
	}
	if err := e.setRows(input, st, rows); err != nil {
		return fmt.Errorf("input %q: %w", input.Name(), err)
	}
	st.written = true
	return nil
}

// write makes data that of the input and returns its number of rows. An error leaves the data as it was.
func (e *Exec) write(input *Value, st *inputState, data any) (rows int, err error) {
	if m, ok := data.(DeviceMemory); ok {
		return e.writeDevice(input, st, m)
	}
	d, err := dataOf(data)
	if err != nil {
		return 0, err
	}
	if rows, err = rowsOf(input, d); err != nil {
		return 0, err
	}
	if !d.fits(input.dt) && !d.converts(input.dt) {
		return 0, BadDType("data", d.what, "%s", goTypes(input.dt))
	}
	n := input.dt.Bytes(rows * rowElems(input))
	if w, ok := e.p.dev.(Wrapper); ok && d.fits(input.dt) {
		st.t.Mem, st.t.Data = w.Wrap(d.bytes), d.bytes
		return rows, nil
	}
	return rows, e.copyIn(input, st, d, n)
}

// setRows tells the device how many rows the input has.
func (e *Exec) setRows(input *Value, st *inputState, rows int) error {
	if input.rows == nil || input.whole || (st.written && st.rows == rows) {
		return nil
	}
	st.rows = rows
	st.count = [4]byte{byte(rows), byte(rows >> 8), byte(rows >> 16), byte(rows >> 24)}
	return e.put(e.tensors[input.rows].Mem, st.count[:])
}

// put copies src to the start of m, between the replays issued so far and the next.
func (e *Exec) put(m Memory, src []byte) error {
	if e.async != nil {
		return e.async.Put(m, 0, src)
	}
	return m.Write(0, src)
}

// copyIn converts or copies d into memory of the Exec.
func (e *Exec) copyIn(input *Value, st *inputState, d hostData, n int) error {
	if st.mem == nil {
		mem, err := e.alloc(input.Bytes(), "input "+input.name)
		if err != nil {
			return err
		}
		st.mem = mem
	}
	if st.t.Data = view(st.mem, 0, st.mem.Size()); st.t.Data != nil {
		st.t.Mem = st.mem
		return d.into(input.dt, st.t.Data[:n])
	}
	e.move(st.t, st.mem)
	src := d.bytes
	if !d.fits(input.dt) {
		src = make([]byte, n)
		if err := d.into(input.dt, src); err != nil {
			return err
		}
	}
	return e.put(st.mem, src[:n])
}

func rowElems(v *Value) int {
	n := 1
	for _, d := range v.shape[min(1, len(v.shape)):] {
		n *= d
	}
	return n
}

// rowsOf checks the data's size and returns its number of rows.
func rowsOf(input *Value, d hostData) (int, error) {
	have, width := d.elemsOf(input.dt), rowElems(input)
	if d.shape != nil && (len(d.shape) != len(input.shape) || shapeString(d.shape[1:], false) != shapeString(input.shape[1:], false)) {
		return 0, BadShape("data", d.describe(), "%s", input.Text())
	}
	if input.rows == nil || input.whole {
		if have != input.Elems() {
			return 0, BadShape("data", d.describe(), "%d elements for %s", input.Elems(), input.Text())
		}
		if len(input.shape) == 0 {
			return 1, nil
		}
		return input.shape[0], nil
	}
	if width == 0 {
		return 0, BadShape("data", d.describe(), "rows of at least one element")
	}
	if have%width != 0 || have/width > input.shape[0] {
		return 0, BadShape("data", d.describe(), "a multiple of %d elements, at most %d rows, for %s", width, input.shape[0], input.Text())
	}
	return have / width, nil
}

// Replay runs the Program once. The context is looked at before the start: a replay runs whole or not at
// all. An error of a node leaves outputs and updated variables unspecified. On a GPU it returns when the
// replay is issued: Wait, Read, Scalar and Dense wait for it, a Write comes after it.
func (e *Exec) Replay(ctx context.Context) error { return e.replay(ctx, nil) }

// ReplayOn is Replay on a stream of the caller, such as a cu.Stream: after what was put on it before, and
// before what is put on it later. The host device has no streams of the caller.
func (e *Exec) ReplayOn(ctx context.Context, stream any) error {
	if stream == nil {
		return usagef("ReplayOn of %q: got no stream", e.p.graph)
	}
	return e.replay(ctx, stream)
}

// Wait returns when everything that was issued is done, with the device's error if there was one.
func (e *Exec) Wait() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return usagef("Wait for a closed Exec of %q", e.p.graph)
	}
	return e.wait()
}

func (e *Exec) wait() error {
	if e.async == nil {
		return nil
	}
	return e.async.Wait()
}

// Program returns what the Exec replays.
func (e *Exec) Program() *Program { return e.p }

// Runner returns what the device made of the Program, for tools that know the device.
func (e *Exec) Runner() Runner { return e.runner }

func (e *Exec) replay(ctx context.Context, stream any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return usagef("Replay of a closed Exec of %q", e.p.graph)
	}
	if stream != nil && e.async == nil {
		return fmt.Errorf("ReplayOn of %q: %w", e.p.graph,
			Unsupported("stream", fmt.Sprintf("%T", stream), "Replay: %s has no streams of the caller", e.p.dev))
	}
	if ctx == nil {
		return usagef("Replay of %q: got no context, want one, such as context.Background()", e.p.graph)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return err
	}
	if e.store != nil {
		if !e.writes {
			e.store.replay.RLock()
			defer e.store.replay.RUnlock()
		} else {
			if !e.store.writing.CompareAndSwap(false, true) {
				return usagef("Replay of %q: another Exec is updating the same variables: replay one after the other", e.p.graph)
			}
			defer e.store.writing.Store(false)
			e.store.replay.Lock()
			defer e.store.replay.Unlock()
			for _, x := range e.updates {
				x.updates.Add(1)
			}
		}
		if e.async != nil {
			if err := e.store.issued.order(e.async, e.writes); err != nil {
				return err
			}
		}
	}
	if e.p.opt.Debug.Poison {
		if err := e.fillFF(e.arena); err != nil {
			return err
		}
		for _, v := range e.p.external {
			if err := e.fillFF(e.tensors[v].Mem); err != nil {
				return err
			}
		}
	}
	if stream != nil {
		return e.async.ReplayOn(stream)
	}
	return e.runner.Replay()
}

// ready checks that every input has data and that row counts agree.
func (e *Exec) ready() error {
	if e.checked {
		return nil
	}
	for _, in := range e.p.inputs {
		if st := e.inputs[in]; st.used && !st.written {
			return usagef("Replay of %q: input %q has no data: call Write first", e.p.graph, in.name)
		}
	}
	for _, pair := range e.p.equal {
		a, b := e.counted[pair[0]], e.counted[pair[1]]
		if a != nil && b != nil && a.rows != b.rows {
			return fmt.Errorf("Replay of %q: %w", e.p.graph,
				BadShape(pair[1].name, fmt.Sprint(b.rows), "%d, as %s", a.rows, pair[0].name))
		}
	}
	e.checked = true
	return nil
}

func (e *Exec) fillFF(m Memory) error {
	if e.async != nil {
		return e.async.Fill(m, 0xff)
	}
	if hm, ok := m.(HostMemory); ok {
		b := hm.Bytes()
		for i := range b {
			b[i] = 0xff
		}
		return nil
	}
	b := make([]byte, m.Size())
	for i := range b {
		b[i] = 0xff
	}
	return m.Write(0, b)
}

// Read copies an output, an input or a variable into dst, a slice or a *tensor.Dense that is large enough, and
// returns the number of rows in use; what lies beyond them in dst is left alone. Floats are converted.
func (e *Exec) Read(v *Value, dst any) (rows int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.readable(v)
	if err != nil {
		return 0, err
	}
	if v.variable != nil {
		e.store.replay.RLock()
		defer e.store.replay.RUnlock()
		if err := e.store.issued.settle(false); err != nil {
			return 0, err
		}
	}
	if rows, err = e.rows(t); err != nil {
		return 0, err
	}
	n := rows * t.Width()
	data := t.Data
	if data == nil && n > 0 {
		data = make([]byte, t.DType.Bytes(n))
		if err := e.readInto(data, t); err != nil {
			return 0, err
		}
	}
	_, err = copyOut(v.String(), dst, t.DType, t.Shape, n, data)
	return rows, err
}

// rows waits for what was issued and returns t's number of rows in use.
func (e *Exec) rows(t *Tensor) (int, error) {
	if err := e.wait(); err != nil {
		return 0, err
	}
	c := t.Count
	if c == nil || c.Data != nil {
		return t.Rows(), nil
	}
	var last [4]byte
	at := c.Off + int64(c.DType.Bytes(elems(c.Shape))) - int64(len(last))
	if err := c.Mem.Read(at, last[:]); err != nil {
		return 0, err
	}
	known := *t
	known.Count = &Tensor{Data: last[:]}
	return known.Rows(), nil
}

func (e *Exec) readable(v *Value) (*Tensor, error) {
	if e.closed {
		return nil, usagef("Read from a closed Exec of %q", e.p.graph)
	}
	w := e.find(v)
	if w == nil || (w.kind == Workspace && !e.isOutput(w)) {
		return nil, usagef("Read: %q is no output of program %q: mark it with Graph.Output before Compile", v.Name(), e.p.graph)
	}
	if st := e.inputs[w]; st != nil && !st.written {
		return nil, usagef("Read: input %q has no data", v.Name())
	}
	return e.tensors[w], nil
}

func (e *Exec) isOutput(v *Value) bool {
	for _, o := range e.p.external {
		if o == v {
			return true
		}
	}
	return false
}

// Scalar returns the only element of an output, such as a loss.
func (e *Exec) Scalar(v *Value) (float64, error) {
	if v.Elems() != 1 {
		return 0, fmt.Errorf("Scalar of %q: %w", v.Name(), BadShape("value", v.Text(), "one element"))
	}
	switch v.dt {
	case dtype.Int32:
		return scalarOf[int32](e, v)
	case dtype.Int64:
		return scalarOf[int64](e, v)
	case dtype.Uint64:
		return scalarOf[uint64](e, v)
	}
	return scalarOf[float64](e, v)
}

func scalarOf[T int32 | int64 | uint64 | float64](e *Exec, v *Value) (float64, error) {
	var x [1]T
	_, err := e.Read(v, x[:])
	return float64(x[0]), err
}

// Dense returns an output's rows in use as a tensor: a view of the Exec's memory where the format is float32,
// float64 or an integer and the device is the host, valid until the next replay; else a copy, of floats in
// float32. Variables, which other Execs may update, are copied.
func (e *Exec) Dense(v *Value) (*tensor.Dense, error) {
	e.mu.Lock()
	t, err := e.readable(v)
	var rows int
	if err == nil {
		rows, err = e.rows(t)
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	shape := append([]int(nil), t.Shape...)
	if len(shape) > 0 {
		shape[0] = rows
	}
	n := elems(shape)
	if n == 0 {
		return nil, fmt.Errorf("Dense of %q: %w", v.Name(), BadShape("value", "no rows", "at least one row: a tensor.Dense cannot be empty"))
	}
	if backing := typed(t, n); backing != nil && v.variable == nil {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing)), nil
	}
	backing := newSlice(t.DType, n)
	if _, err := e.Read(v, backing); err != nil {
		return nil, err
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing)), nil
}

// Close frees what the Exec holds. The variables stay with their Vars. A second Close does nothing.
func (e *Exec) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	return e.release()
}

func (e *Exec) release() error {
	var errs error
	if e.async != nil {
		// Nobody may follow or wait for a runner that is gone. Its work is done first, also if it failed.
		errs = e.async.Wait()
		if e.store != nil {
			e.store.issued.forget(e.async)
		}
	}
	if e.runner != nil {
		errs = errors.Join(errs, e.runner.Close())
	}
	for _, m := range e.owned {
		errs = errors.Join(errs, m.Free())
	}
	if e.store != nil {
		e.store.unbind()
	}
	e.owned, e.runner, e.async, e.store = nil, nil, nil, nil
	return errs
}
