package graph

import "fmt"

// WriteFrom makes an output of another Exec, or an input's data there, the data of an input, in place, in whatever
// memory it lies: nothing is copied. It has the input's format and shape, at capacity. It stays the input's data until
// the input gets other data; from must stay open as long. Where replays are only issued, After orders them.
func (e *Exec) WriteFrom(input *Value, from *Exec, v *Value) error {
	if from == e || from == nil {
		return usagef("WriteFrom to input %q: want another Exec", input.Name())
	}
	src, rows, err := from.handOut(v)
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.inputs[input]
	switch {
	case e.closed:
		return usagef("WriteFrom to a closed Exec of %q", e.p.graph)
	case st == nil:
		return usagef("WriteFrom: %q is no input of program %q", input.Name(), e.p.graph)
	case err != nil:
	case e.p.dev.String() != from.p.dev.String():
		err = fmt.Errorf("%w: the data lies on %s, the program runs on %s", ErrDevice, from.p.dev, e.p.dev)
	case src.DType != input.dt || shapeString(src.Shape, false) != shapeString(input.shape, false):
		err = BadShape("data", v.String(), "%s", input.Text())
	case rows < 0 && input.rows != nil && !input.whole:
		err = Unsupported("data", v.String(), "an input whose rows are counted, since those of %q are", input.Name())
	default:
		err = e.take(input, st, src, rows)
	}
	if err != nil {
		return fmt.Errorf("input %q: %w", input.Name(), err)
	}
	return nil
}

// handOut returns where a value lies, and for an input with a capacity how many rows it has, else -1.
func (e *Exec) handOut(v *Value) (src Tensor, rows int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.readable(v)
	if err != nil {
		return Tensor{}, 0, err
	}
	rows = -1
	if st := e.inputs[v]; st != nil && v.rows != nil && !v.whole {
		rows = st.rows
	}
	return *t, rows, nil
}

// take makes src the input's data.
func (e *Exec) take(input *Value, st *inputState, src Tensor, rows int) error {
	was := *st.t
	if src.Data != nil {
		st.t.Mem, st.t.Data, st.t.Off = src.Mem, src.Data, src.Off
	} else {
		e.move(st.t, src.Mem)
		st.t.Off = src.Off
	}
	if err := e.checkShared(input); err != nil {
		*st.t = was
		if e.async != nil {
			e.async.Rebind()
		}
		return err
	}
	if rows >= 0 {
		if err := e.setRows(input, st, rows); err != nil {
			return err
		}
	}
	st.written = true
	return nil
}

// After makes what is issued next on e come after what has been issued on other so far. On the host device, where a
// replay is done when Replay returns, it does nothing.
func (e *Exec) After(other *Exec) error {
	if other == e {
		return nil
	}
	other.mu.Lock()
	runner, closed := other.async, other.closed
	other.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || closed {
		return usagef("After of %q and %q: one is closed", e.p.graph, other.p.graph)
	}
	if e.async == nil || runner == nil {
		return nil
	}
	return e.async.Follow(runner)
}
