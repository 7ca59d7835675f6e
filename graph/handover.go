package graph

import "fmt"

// WriteOutput makes an output of another Exec an input's data, in place, in whatever memory it lies: nothing is
// copied. The input has the format and shape of the output at capacity. From must stay open until the input gets other
// data, or e is closed. Where replays are only issued, After says which of them come first.
func (e *Exec) WriteOutput(input *Value, from *Exec, output *Value) error {
	if from == e || from == nil {
		return usagef("WriteOutput of input %q: want an output of another Exec", input.Name())
	}
	from.mu.Lock()
	t, err := from.readable(output)
	if err == nil && from.inputs[output] != nil {
		err = usagef("%q is an input of the Exec given, want an output", output.Name())
	}
	var src Tensor
	if err == nil {
		src = *t
	}
	from.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch st := e.inputs[input]; {
	case err != nil:
	case e.closed:
		return usagef("WriteOutput to a closed Exec of %q", e.p.graph)
	case st == nil:
		return usagef("WriteOutput: %q is no input of program %q", input.Name(), e.p.graph)
	case e.p.dev.String() != from.p.dev.String():
		err = fmt.Errorf("%w: the output lies on %s, the program runs on %s", ErrDevice, from.p.dev, e.p.dev)
	case src.DType != input.dt || shapeString(src.Shape, false) != shapeString(input.shape, false):
		err = BadShape("output", output.String(), "%s", input.Text())
	case input.rows != nil && !input.whole:
		err = Unsupported("input", "rows that Write counts", "an input without a capacity")
	default:
		was := *st.t
		if src.Data != nil {
			st.t.Mem, st.t.Data, st.t.Off = src.Mem, src.Data, src.Off
		} else {
			e.move(st.t, src.Mem)
			st.t.Off = src.Off
		}
		if err = e.checkShared(input); err != nil {
			*st.t = was
			if e.async != nil {
				e.async.Rebind()
			}
			break
		}
		st.written = true
	}
	if err != nil {
		return fmt.Errorf("input %q: %w", input.Name(), err)
	}
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
