package graph

// From starts a variable with contents that the caller makes piece by piece: read fills dst with the piece-th of
// the given number of equal pieces, in the variable's own format. The pieces are made in order when an Exec
// first binds to the variable, in the device's memory itself where Go can reach it, elsewhere in a buffer of
// one piece; so contents out of a mapped file exist once. Until then Vars.Read and Vars.ReadBytes call
// read each time. After Vars.Write or Vars.Load, and after Vars.Free, read is not called any more.
//
// The number of pieces divides the variable's size in bytes. An error of read is the error of Program.Exec. read
// must not call methods of the Vars, and it must always make the same bytes.
func From(pieces int, read func(piece int, dst []byte) error) Init {
	return Init{kind: initFrom, pieces: pieces, read: read}
}

// piece returns the size of one piece in bytes.
func (x *variable) piece() (int, error) {
	n, size := x.init.pieces, x.dt.Bytes(elems(x.shape))
	if n < 1 || size%n != 0 || x.init.read == nil {
		return 0, usagef("variable %q: From: got %d pieces, want a divisor of its %d bytes, and a function", x.name, n, size)
	}
	return size / n, nil
}

// fillFrom makes all pieces into buf.
func (x *variable) fillFrom(buf []byte) error {
	size, err := x.piece()
	for i := 0; err == nil && i < x.init.pieces; i++ {
		err = x.init.read(i, buf[i*size:(i+1)*size:(i+1)*size])
	}
	return err
}

// writeFrom makes all pieces into the memory of a device.
func (x *variable) writeFrom(mem Memory) error {
	if hm, ok := mem.(HostMemory); ok {
		return x.fillFrom(hm.Bytes())
	}
	size, err := x.piece()
	if err != nil {
		return err
	}
	buf := make([]byte, size)
	for i := range x.init.pieces {
		if err := x.init.read(i, buf); err != nil {
			return err
		}
		if err := mem.Write(int64(i)*int64(size), buf); err != nil {
			return err
		}
	}
	return nil
}

// ReadBytes copies the len(dst) bytes from off on of a variable's contents, in its own format, into dst: parts of
// a variable that is too large for a second copy. It waits for a replay that writes.
func (v *Vars) ReadBytes(x *Value, off int64, dst []byte) error {
	vr, err := v.own(x)
	if err != nil {
		return err
	}
	if size := x.Bytes(); off < 0 || off > size || int64(len(dst)) > size-off {
		return usagef("ReadBytes of %q: got bytes %d to %d, want some of its %d", vr.name, off, off+int64(len(dst)), size)
	}
	v.s.replay.RLock()
	defer v.s.replay.RUnlock()
	if err := v.s.issued.settle(false); err != nil {
		return err
	}
	switch {
	case vr.mem != nil:
		return vr.mem.Read(off, dst)
	case vr.set == nil && vr.init.kind == initFrom:
		return vr.readFrom(int(off), dst)
	}
	data, err := vr.initial()
	if err != nil {
		return err
	}
	copy(dst, data[off:])
	return nil
}

// readFrom makes the pieces that dst overlaps.
func (x *variable) readFrom(off int, dst []byte) error {
	size, err := x.piece()
	if err != nil {
		return err
	}
	var buf []byte
	for len(dst) > 0 {
		i, at := off/size, off%size
		n := min(size-at, len(dst))
		if n == size {
			err = x.init.read(i, dst[:n:n])
		} else {
			if buf == nil {
				buf = make([]byte, size)
			}
			err = x.init.read(i, buf)
			copy(dst[:n], buf[at:])
		}
		if err != nil {
			return err
		}
		dst, off = dst[n:], off+n
	}
	return nil
}
