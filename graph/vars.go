package graph

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/moegraph/moegraph/dtype"
)

// Vars holds the parameters and the optimizer state of a model, apart from any Program: programs that
// bind to one Vars (to train, to evaluate, for other capacities) see each other's updates. Its memory
// lies on the device of the first Exec that binds to it.
//
// Scope gives a view of the same Vars whose names begin with a prefix.
type Vars struct {
	s      *varStore
	prefix string
}

type varStore struct {
	seed  uint64
	mu    sync.Mutex // guards the fields below
	order []*variable
	named map[string]*variable
	dev   Device // nil until an Exec binds
	execs int    // open ones that are bound
	err   error

	replay  sync.RWMutex // held by replays: shared to read, exclusive to write
	writing atomic.Bool  // a writing replay is under way or waits for readers
	issued  issued       // replays that were issued and may still run
}

// variable is one parameter or state tensor.
type variable struct {
	store *varStore
	name  string
	kind  Kind
	dt    dtype.DType
	shape []int
	init  Init
	value *Value // the handle that belongs to no graph
	set   []byte // contents before memory exists; nil: by init
	mem   Memory // nil until an Exec binds

	updates atomic.Int64 // replays that wrote it
}

// Init says what a variable starts with. The zero Init is a normal distribution of variance 1/fan-in, where
// the last dimension is the fan-in. Random contents depend on the Vars' seed and the variable's
// name alone, not on the order of creation.
type Init struct {
	kind   initKind
	a      float64
	from   *variable
	pieces int
	read   func(piece int, dst []byte) error
}

type initKind uint8

const (
	initFanIn initKind = iota
	initNormal
	initConst
	initCopy
	initFrom
)

// Normal is a normal distribution of mean 0 and the given standard deviation.
func Normal(std float64) Init { return Init{kind: initNormal, a: std} }

// Const fills a variable with one value.
func Const(x float64) Init { return Init{kind: initConst, a: x} }

// CopyOf starts a variable as a copy of another of the same shape, converted; writing the other one by
// Vars.Write or Vars.Load renews the copy. Master weights of bf16 parameters are such copies. A Value that is no
// variable is a mistake of the variable that is to start with it.
func CopyOf(v *Value) Init {
	if v == nil {
		return Init{kind: initCopy}
	}
	return Init{kind: initCopy, from: v.variable}
}

// NewVars returns an empty Vars. The seed determines all random contents.
func NewVars(seed uint64) *Vars {
	return &Vars{s: &varStore{seed: seed, named: map[string]*variable{}}}
}

// Scope returns a view whose names are below name.
func (v *Vars) Scope(name string) *Vars { return &Vars{s: v.s, prefix: v.prefix + name + "/"} }

// Prefix returns the view's prefix without its last slash, "" for the whole.
func (v *Vars) Prefix() string {
	if v.prefix == "" {
		return ""
	}
	return v.prefix[:len(v.prefix)-1]
}

// Param returns the float32 parameter of that name, made at the first call with the zero Init. A second
// call with the same name is the same parameter; with another shape it is a mistake, which Err returns
// and every graph that uses the result.
func (v *Vars) Param(name string, shape ...int) *Value {
	return v.ParamOf(name, dtype.Float32, Init{}, shape...)
}

// ParamOf is Param with a dtype and an Init.
func (v *Vars) ParamOf(name string, dt dtype.DType, init Init, shape ...int) *Value {
	return v.get(name, Param, dt, init, shape)
}

// State returns the variable of that name that is no parameter: a moment, a counter, an accumulator.
func (v *Vars) State(name string, dt dtype.DType, init Init, shape ...int) *Value {
	return v.get(name, State, dt, init, shape)
}

func (v *Vars) get(name string, kind Kind, dt dtype.DType, init Init, shape []int) *Value {
	full := v.prefix + name
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	fail := func(err error) *Value {
		err = fmt.Errorf("%s %q: %w", kind, full, err)
		v.s.err = errors.Join(v.s.err, err)
		return &Value{name: full, err: err}
	}
	if err := checkShape("shape", dt, shape); err != nil {
		return fail(err)
	}
	if err := checkRows(dt, false, shape); err != nil {
		return fail(err)
	}
	if old, ok := v.s.named[full]; ok {
		if old.kind != kind || old.dt != dt || shapeString(old.shape, false) != shapeString(shape, false) {
			return fail(BadShape("shape", dt.String()+" "+shapeString(shape, false), "%s %s as at the first call", old.kind, old.value.Text()))
		}
		return old.value
	}
	if init.kind == initCopy && init.from == nil {
		return fail(usagef("CopyOf: got a Value that is no variable, want a parameter or a state"))
	}
	if init.kind == initCopy && shapeString(init.from.shape, false) != shapeString(shape, false) {
		return fail(BadShape("shape", shapeString(shape, false), "%s as %q", shapeString(init.from.shape, false), init.from.name))
	}
	x := &variable{store: v.s, name: full, kind: kind, dt: dt, shape: append([]int(nil), shape...), init: init}
	x.value = &Value{name: full, kind: kind, dt: dt, shape: x.shape, variable: x}
	v.s.order = append(v.s.order, x)
	v.s.named[full] = x
	return x.value
}

// Err returns the mistakes made in Param, ParamOf and State.
func (v *Vars) Err() error {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.s.err
}

// All returns the parameters of this view in the order of creation.
func (v *Vars) All() []*Value { return v.list(Param) }

// States returns the variables of this view that are no parameters, in the order of creation.
func (v *Vars) States() []*Value { return v.list(State) }

func (v *Vars) list(kind Kind) []*Value {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	var vs []*Value
	for _, x := range v.s.order {
		if x.kind == kind && len(x.name) >= len(v.prefix) && x.name[:len(v.prefix)] == v.prefix {
			vs = append(vs, x.value)
		}
	}
	return vs
}

// Lookup returns the variable of that name in this view, nil if there is none.
func (v *Vars) Lookup(name string) *Value {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if x, ok := v.s.named[v.prefix+name]; ok {
		return x.value
	}
	return nil
}

// VarsOf returns the whole Vars that a variable belongs to, nil for other Values.
func VarsOf(v *Value) *Vars {
	if v == nil || v.variable == nil {
		return nil
	}
	return &Vars{s: v.variable.store}
}

// VarName returns a variable's full name, "" for other Values.
func VarName(v *Value) string {
	if v == nil || v.variable == nil {
		return ""
	}
	return v.variable.name
}

// VarUpdates returns how many replays have updated a variable, of all Execs, those that are only issued included; 0 for
// other Values. Who keeps something that was computed from it, such as activations, can tell whether it still fits.
func VarUpdates(v *Value) int64 {
	if v == nil || v.variable == nil {
		return 0
	}
	return v.variable.updates.Load()
}

// Read copies a variable into dst: a slice of the variable's number of elements or a *tensor.Dense of its
// shape; floats are converted. It waits for a replay that writes.
func (v *Vars) Read(x *Value, dst any) error {
	vr, err := v.own(x)
	if err != nil {
		return err
	}
	v.s.replay.RLock()
	defer v.s.replay.RUnlock()
	if err := v.s.issued.settle(false); err != nil {
		return err
	}
	data, err := vr.contents()
	if err != nil {
		return err
	}
	_, err = copyOut(x.String(), dst, vr.dt, vr.shape, elems(vr.shape), data)
	return err
}

// Write sets a variable from src: a slice or a *tensor.Dense of its size; floats are converted. Variables
// that started as its copy are renewed. It waits for running replays; the next ones see the new value.
func (v *Vars) Write(x *Value, src any) error {
	vr, err := v.own(x)
	if err != nil {
		return err
	}
	in, err := dataOf(src)
	if err != nil {
		return fmt.Errorf("%s %q: %w", vr.kind, vr.name, err)
	}
	if n := elems(vr.shape); in.elemsOf(vr.dt) != n || (in.shape != nil && shapeString(in.shape, false) != shapeString(vr.shape, false)) {
		return fmt.Errorf("%s %q: %w", vr.kind, vr.name, BadShape("data", in.describe(), "%s", vr.value.Text()))
	}
	buf := make([]byte, vr.dt.Bytes(elems(vr.shape)))
	if err := in.into(vr.dt, buf); err != nil {
		return fmt.Errorf("%s %q: %w", vr.kind, vr.name, err)
	}
	v.s.replay.Lock()
	defer v.s.replay.Unlock()
	if err := v.s.issued.settle(true); err != nil {
		return err
	}
	if err := vr.store1(buf); err != nil {
		return err
	}
	return v.s.renewCopies(vr)
}

func (v *Vars) own(x *Value) (*variable, error) {
	if x == nil || x.variable == nil || x.variable.store != v.s {
		return nil, usagef("%q is no variable of this Vars", x.Name())
	}
	return x.variable, nil
}

// renewCopies resets the variables that are CopyOf from.
func (s *varStore) renewCopies(from *variable) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.order {
		if x.init.kind != initCopy || x.init.from != from {
			continue
		}
		x.set = nil
		if x.mem != nil {
			buf, err := x.initial()
			if err != nil {
				return err
			}
			if err := x.mem.Write(0, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// store1 puts whole contents into the variable.
func (x *variable) store1(buf []byte) error {
	if x.mem != nil {
		return x.mem.Write(0, buf)
	}
	x.set = buf
	return nil
}

// contents returns the variable's bytes: a view or a copy.
func (x *variable) contents() ([]byte, error) {
	if x.mem == nil {
		return x.initial()
	}
	if hm, ok := x.mem.(HostMemory); ok {
		return hm.Bytes(), nil
	}
	buf := make([]byte, x.mem.Size())
	return buf, x.mem.Read(0, buf)
}

// initial returns the bytes that the variable has before any update.
func (x *variable) initial() ([]byte, error) {
	n := elems(x.shape)
	if x.set != nil {
		return x.set, nil
	}
	buf := make([]byte, x.dt.Bytes(n))
	switch x.init.kind {
	case initCopy:
		src, err := x.init.from.contents()
		if err != nil {
			return nil, err
		}
		return buf, dtype.Convert(x.dt, buf, x.init.from.dt, src)
	case initFrom:
		return buf, x.fillFrom(buf)
	case initConst:
		if x.init.a == 0 {
			return buf, nil
		}
	}
	if !x.dt.IsFloat() {
		return nil, usagef("variable %q: a variable in %s starts with Const(0) or with what Write gives it", x.name, x.dt)
	}
	vals := make([]float32, n)
	x.fill(vals)
	return buf, dtype.Convert(x.dt, buf, dtype.Float32, f32Bytes(vals))
}

func (x *variable) fill(vals []float32) {
	std := x.init.a
	switch x.init.kind {
	case initConst:
		for i := range vals {
			vals[i] = float32(std)
		}
		return
	case initFanIn:
		std = 1
		if len(x.shape) > 0 && x.shape[len(x.shape)-1] > 0 {
			std = 1 / math.Sqrt(float64(x.shape[len(x.shape)-1]))
		}
	}
	h := fnv.New64a()
	h.Write([]byte(x.name))
	r := rand.New(rand.NewPCG(x.store.seed, h.Sum64()))
	for i := range vals {
		vals[i] = float32(std * r.NormFloat64())
	}
}

// bind gives every listed variable memory on dev.
func (s *varStore) bind(dev Device, xs []*variable) error {
	s.replay.Lock()
	defer s.replay.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev != nil && s.dev.String() != dev.String() {
		return fmt.Errorf("%w: the variables live on %s, the program runs on %s", ErrDevice, s.dev, dev)
	}
	if err := s.issued.settle(false); err != nil { // a new variable may start as a copy
		return err
	}
	for _, x := range xs {
		if x.mem != nil {
			continue
		}
		mem, err := dev.Alloc(x.value.Bytes(), "variable "+x.name)
		if err != nil {
			return err
		}
		if err := x.start(mem); err != nil {
			return errors.Join(err, mem.Free())
		}
		x.mem, x.set = mem, nil
		s.dev = dev // not before: a device without room keeps nobody from another one
	}
	s.dev = dev
	s.execs++
	return nil
}

// unbind says that an Exec that was bound is closed.
func (s *varStore) unbind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.execs--
}

// start writes what the variable has before any update to its new memory.
func (x *variable) start(mem Memory) error {
	if x.set == nil && x.init.kind == initFrom {
		return x.writeFrom(mem)
	}
	buf, err := x.initial()
	if err != nil {
		return err
	}
	return mem.Write(0, buf)
}

// Free returns the variables' memory to their device; the next Exec that binds to them chooses the device anew, and
// they keep their contents. It is an error while an Exec that is bound to them is open.
func (v *Vars) Free() error {
	v.s.replay.Lock()
	defer v.s.replay.Unlock()
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if n := v.s.execs; n > 0 {
		return usagef("Free of variables: got %s bound to them, want none: close first", plural(n, "open Exec"))
	}
	var errs error
	for _, x := range v.s.order {
		if x.mem == nil {
			continue
		}
		buf := make([]byte, x.mem.Size())
		if err := x.mem.Read(0, buf); err != nil {
			errs = errors.Join(errs, err)
		}
		errs = errors.Join(errs, x.mem.Free())
		x.mem, x.set = nil, buf
	}
	v.s.dev = nil
	return errs
}
