package graph

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/moegraph/moegraph/memory"
)

// Plan is what planning decides about a graph: order, streams, waits and offsets. As text it can be kept, read and
// compared; Options.Plan makes Compile use it. It is plain data: Compile checks all of it.
type Plan struct {
	Key        string // of what was planned: steps, costs, sizes, options; see Program.PlanKey
	How        string // the schedule was found, for people
	Method     string // the offsets were found, for people
	Streams    int
	MakespanUS float64 // simulated
	Peak       int64   // bytes of the arena
	LowerBound int64   // bytes
	Pinned     []int   // indices of Buffers that need the bound at once
	Steps      []PlanStep
	Control    [][2]int // edges added to save memory, between steps as built
	Buffers    []PlanBuffer
}

// PlanStep is a step, in the order of issue.
type PlanStep struct {
	Name           string
	Built          int // its index in the order of building, after fusing
	Stream         int
	Waits          []int   // positions in the order of issue
	StartUS, EndUS float64 // simulated
}

// PlanBuffer is a workspace or a step's scratch, in the order of the steps that make them.
type PlanBuffer struct {
	Name   string
	Offset int64 // bytes
	Size   int64 // bytes
	Over   int   // index of the buffer that it overwrites in place, -1: none
}

// planFormat is the first line of a plan. A new layout is a new name.
const planFormat = "moegraph plan 1"

// planner is the planner's version, and part of every key: raise it with what changes plans, so that kept ones are
// made anew.
const planner = "2"

// Plan returns the Program's plan.
func (p *Program) Plan() *Plan {
	out := &Plan{Key: p.key, How: p.how, Method: p.plan.Method, Streams: p.streams, MakespanUS: p.makespanUS, Peak: p.plan.Peak,
		LowerBound: p.plan.LowerBound, Pinned: slices.Clone(p.plan.Pinned), Control: slices.Clone(p.control)}
	for _, s := range p.steps {
		out.Steps = append(out.Steps, PlanStep{s.Name, s.built, s.Stream, slices.Clone(s.Waits), s.StartUS, s.EndUS})
	}
	for _, b := range p.buffers {
		out.Buffers = append(out.Buffers, PlanBuffer{b.Name, b.Offset, b.Size, b.over})
	}
	return out
}

// PlanKey is the identity of what was planned: everything that a plan depends on, the device by its rates. Equal keys
// have equal plans.
func (p *Program) PlanKey() string { return p.key }

// setKey hashes everything that a plan depends on.
func (c *compilation) setKey() {
	h := sha256.New()
	put := func(format string, args ...any) { fmt.Fprintf(h, format+"\n", args...) }
	o := c.opt
	put("planner %s, options %d %v %d %v", planner, o.Streams, o.ForceStreams, o.MaxWorkspace, o.Debug.Apart)
	r := c.dev.Rates()
	put("rates %b %b %b %b %d %b", r.Flops, r.Bytes, r.LaunchUS, r.WaitUS, r.Units, r.Grain)
	w := c.listWorkspaces()
	for _, s := range c.built {
		us, measured := c.profile[s.Name]
		put("step %q %d %d %d %v %b %v", s.Name, s.Cost.Flops, s.Cost.Bytes, s.scratch, measured, us, s.deps)
	}
	for b, x := range w.p.buffers {
		put("buffer %q %d %v", x.Name, x.Size, w.p.accesses[b])
	}
	put("in place %v", w.may)
	c.prog.key = hex.EncodeToString(h.Sum(nil))
}

// adopt makes plan the Program's, after checking that it is one of these steps.
func (c *compilation) adopt(plan *Plan) error {
	if plan.Key != c.prog.key {
		return usagef("plan: got one of key %.16s, want %.16s: it is of another graph, device, profile, or other options", plan.Key, c.prog.key)
	}
	n := len(c.built)
	wrong := func(format string, args ...any) error {
		return usagef("plan: %s", fmt.Sprintf(format, args...))
	}
	if len(plan.Steps) != n || plan.Streams < 0 || plan.Streams > max(n, 1) {
		return wrong("got %d steps on %d streams, want %d steps", len(plan.Steps), plan.Streams, n)
	}
	for _, e := range plan.Control {
		if min(e[0], e[1]) < 0 || max(e[0], e[1]) >= n {
			return wrong("got an edge between steps %v, want two of %d", e, n)
		}
	}
	if !isTime(plan.MakespanUS) {
		return wrong("got a simulated time of %g us", plan.MakespanUS)
	}
	s := &schedule{how: plan.How, stream: make([]int, n), start: make([]float64, n), end: make([]float64, n), makespan: plan.MakespanUS, used: plan.Streams}
	seen := make([]bool, n)
	for i, st := range plan.Steps {
		if st.Built < 0 || st.Built >= n || seen[st.Built] || st.Name != c.built[st.Built].Name || st.Stream < 0 || st.Stream >= plan.Streams {
			return wrong("step %d: got %q as number %d on stream %d", i, st.Name, st.Built, st.Stream)
		}
		if !isTime(st.StartUS) || !isTime(st.EndUS) || st.EndUS < st.StartUS {
			return wrong("step %d %q: got a simulated time from %g to %g us", i, st.Name, st.StartUS, st.EndUS)
		}
		if slices.ContainsFunc(st.Waits, func(w int) bool { return w < 0 || w >= i }) {
			return wrong("step %d %q: got waits for %v, want earlier ones", i, st.Name, st.Waits)
		}
		seen[st.Built] = true
		s.order = append(s.order, st.Built)
		s.stream[st.Built], s.start[st.Built], s.end[st.Built] = st.Stream, st.StartUS, st.EndUS
		s.waits = append(s.waits, slices.Clone(st.Waits))
	}
	c.built = slices.Clone(c.built)
	for _, e := range plan.Control {
		st := *c.built[e[1]]
		st.deps = append(slices.Clone(st.deps), e[0])
		c.built[e[1]] = &st
	}
	c.apply(s)
	p := c.prog
	p.control = slices.Clone(plan.Control)
	p.listBuffers()
	if len(plan.Buffers) != len(p.buffers) {
		return wrong("got %d buffers, want %d", len(plan.Buffers), len(p.buffers))
	}
	p.plan = &memory.Plan{Peak: plan.Peak, LowerBound: plan.LowerBound, Proven: plan.Peak == plan.LowerBound, Method: plan.Method}
	for i, b := range plan.Buffers {
		x := &p.buffers[i]
		if b.Name != x.Name || b.Size != x.Size || b.Over < -1 || b.Over >= len(p.buffers) {
			return wrong("buffer %d: got %q of %d bytes, want %q of %d", i, b.Name, b.Size, x.Name, x.Size)
		}
		x.Offset, x.over = b.Offset, b.Over
		if b.Over >= 0 {
			x.Over = plan.Buffers[b.Over].Name
		}
		p.plan.Offsets = append(p.plan.Offsets, b.Offset)
	}
	peak := int64(0)
	for _, b := range p.buffers {
		if b.Offset < 0 || b.Offset > math.MaxInt64-b.Size {
			return wrong("buffer %q: got offset %d for %d bytes", b.Name, b.Offset, b.Size)
		}
		peak = max(peak, b.Offset+b.Size)
	}
	if limit := c.opt.MaxWorkspace; plan.Peak != peak || limit > 0 && peak > limit || plan.LowerBound < 0 || plan.LowerBound > peak {
		return wrong("got a peak of %d bytes and a bound of %d, want them for buffers that end at %d of at most %d (0: any) bytes", plan.Peak, plan.LowerBound, peak, limit)
	}
	for _, i := range plan.Pinned {
		if i < 0 || i >= len(p.buffers) {
			return wrong("got buffer %d as one that pins the peak, want one of %d", i, len(p.buffers))
		}
	}
	p.plan.Pinned = slices.Clone(plan.Pinned)
	return p.Verify()
}

// isTime says whether simulations have such times.
func isTime(us float64) bool { return us >= 0 && !math.IsInf(us, 1) }

// MarshalText writes the plan: a line for each step and buffer, and last a checksum.
func (p *Plan) MarshalText() ([]byte, error) {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(planFormat)
	line("key %s", p.Key)
	line("schedule %d %s %q", p.Streams, number(p.MakespanUS), p.How)
	line("arena %d %d %q", p.Peak, p.LowerBound, p.Method)
	line("pinned %s", ints(p.Pinned))
	for _, s := range p.Steps {
		line("step %d %d %s %s %s %q", s.Built, s.Stream, number(s.StartUS), number(s.EndUS), ints(s.Waits), s.Name)
	}
	for _, e := range p.Control {
		line("edge %d %d", e[0], e[1])
	}
	for _, x := range p.Buffers {
		line("buffer %d %d %d %q", x.Offset, x.Size, x.Over, x.Name)
	}
	sum := sha256.Sum256([]byte(b.String()))
	line("sum %x", sum)
	return []byte(b.String()), nil
}

// number writes a float64 such that it reads back to the bit.
func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// UnmarshalText reads what MarshalText wrote. A text that was cut short or changed is an error that says where.
func (p *Plan) UnmarshalText(text []byte) error {
	all := string(text)
	at := strings.LastIndex(all, "sum ")
	if !strings.HasPrefix(all, planFormat+"\n") || at < 0 {
		return usagef("plan: got text that begins with %.20q, want %q and a checksum at the end", all, planFormat)
	}
	if want := fmt.Sprintf("sum %x\n", sha256.Sum256(text[:at])); all[at:] != want {
		return usagef("plan: the checksum does not fit: the text was cut short or changed")
	}
	var q Plan
	for i, line := range strings.Split(strings.TrimSuffix(all[:at], "\n"), "\n")[1:] {
		r := planReader{rest: line}
		if err := q.read(&r); err != nil {
			return fmt.Errorf("plan: line %d: %w", i+2, err)
		}
	}
	*p = q
	return nil
}

// read takes one line.
func (p *Plan) read(r *planReader) error {
	switch word := r.word(); word {
	case "key":
		p.Key = r.word()
	case "schedule":
		p.Streams, p.MakespanUS, p.How = int(r.int()), r.float(), r.text()
	case "arena":
		p.Peak, p.LowerBound, p.Method = r.int(), r.int(), r.text()
	case "pinned":
		p.Pinned = r.ints()
	case "step":
		p.Steps = append(p.Steps, PlanStep{Built: int(r.int()), Stream: int(r.int()), StartUS: r.float(), EndUS: r.float(), Waits: r.ints(), Name: r.text()})
	case "edge":
		p.Control = append(p.Control, [2]int{int(r.int()), int(r.int())})
	case "buffer":
		p.Buffers = append(p.Buffers, PlanBuffer{Offset: r.int(), Size: r.int(), Over: int(r.int()), Name: r.text()})
	default:
		return usagef("got %q, want key, schedule, arena, pinned, step, edge or buffer", word)
	}
	if r.err == nil && r.rest != "" {
		return usagef("got %q at the end of a line", r.rest)
	}
	return r.err
}

// planReader takes words from a line; the first mistake stays.
type planReader struct {
	rest string
	err  error
}

func (r *planReader) word() string {
	w, rest, _ := strings.Cut(r.rest, " ")
	r.rest = rest
	return w
}

func (r *planReader) keep(w string, err error) {
	if err != nil && r.err == nil {
		r.err = usagef("got %q: %v", w, err)
	}
}

func (r *planReader) int() int64 {
	w := r.word()
	x, err := strconv.ParseInt(w, 10, 64)
	r.keep(w, err)
	return x
}

func (r *planReader) float() float64 {
	w := r.word()
	x, err := strconv.ParseFloat(w, 64)
	r.keep(w, err)
	return x
}

// ints reads what ints wrote: numbers with commas between, or "-".
func (r *planReader) ints() []int {
	w := r.word()
	if w == "-" {
		return nil
	}
	var xs []int
	for _, part := range strings.Split(w, ",") {
		x, err := strconv.Atoi(part)
		r.keep(w, err)
		xs = append(xs, x)
	}
	return xs
}

// text reads the quoted rest of the line.
func (r *planReader) text() string {
	s, err := strconv.Unquote(r.rest)
	r.keep(r.rest, err)
	r.rest = ""
	return s
}
