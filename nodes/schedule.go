package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: schedule{Schedule: Schedule{Rate: 1e-3, Kind: CosineDecay, Total: 100}, DType: dtype.Float32},
		Doc:     "rate = the learning rate of a step, from the step counter",
		Options: []string{"rate = that of the optimizer", "warmup = 0", "total = 0", "kind = constant", "min = 0"},
		NoGrad:  "the output does not depend on floats"})
	graph.Register(graph.Info{Example: counter{}, Doc: "value = count = count + 1, where ready is absent or not 0",
		NoGrad: "it works on integers only"})
}

// ScheduleKind says how a learning rate goes on after its warm-up.
type ScheduleKind string

// The kinds of schedule.
const (
	ConstantRate ScheduleKind = "constant" // Rate; the same as ""
	LinearDecay  ScheduleKind = "linear"   // from Rate to Min on a line
	CosineDecay  ScheduleKind = "cosine"   // from Rate to Min on half a wave
)

// Schedule is a learning rate as a function of the step, which is 1 in the first update of an optimizer. It
// is evaluated on the device from the optimizer's step counter.
//
//	step <= Warmup:          Rate * step/Warmup
//	after it, constant:      Rate
//	linear:                  Min + (Rate-Min) * (1-p)              p = (step-1-Warmup) / (Total-Warmup),
//	cosine:                  Min + (Rate-Min) * (1+cos(pi*p))/2    at most 1
//
// Without warm-up these are PyTorch's CosineAnnealingLR(T_max=Total, eta_min=Min) up to step Total+1 and
// LinearLR(start_factor=1, end_factor=Min/Rate, total_iters=Total).
type Schedule struct {
	Rate   float64      // the highest rate; default the optimizer's Rate
	Warmup int          // steps of linear rise; default 0
	Total  int          // the number of steps; linear and cosine need it, above Warmup
	Kind   ScheduleKind // default ConstantRate
	Min    float64      // the rate at the end, for linear and cosine; default 0
}

// At returns the rate of a step; the first is 1.
func (s Schedule) At(step int) float64 {
	step = max(step, 1)
	if step <= s.Warmup {
		return s.Rate * float64(step) / float64(s.Warmup)
	}
	p := min(1, float64(step-1-s.Warmup)/float64(max(1, s.Total-s.Warmup)))
	switch s.Kind {
	case LinearDecay:
		return s.Min + (s.Rate-s.Min)*(1-p)
	case CosineDecay:
		return s.Min + (s.Rate-s.Min)*(1+math.Cos(math.Pi*p))/2
	}
	return s.Rate
}

func (s Schedule) check() error {
	finite := func(x float64) bool { return x >= 0 && x <= math.MaxFloat64 }
	switch {
	case s.Kind != "" && s.Kind != ConstantRate && s.Kind != LinearDecay && s.Kind != CosineDecay:
		return graph.Unsupported("kind", string(s.Kind), "%s, %s or %s", ConstantRate, LinearDecay, CosineDecay)
	case !finite(s.Rate):
		return graph.BadShape("rate", s.Rate, "a number of at least 0")
	case s.Warmup < 0:
		return graph.BadShape("warmup", s.Warmup, "at least 0 steps")
	case s.Kind == "" || s.Kind == ConstantRate:
		return nil
	case s.Total <= s.Warmup:
		return graph.BadShape("total", s.Total, "more steps than the %d of warmup, since the rate decays", s.Warmup)
	case !finite(s.Min) || s.Min > s.Rate:
		return graph.BadShape("min", s.Min, "0 to the rate, %g", s.Rate)
	}
	return nil
}

// Rate returns the learning rate of a step counter, which an optimizer returned, as a value (1,) in f32: to be
// read beside the loss.
func Rate(step *graph.Value, s Schedule) *graph.Value {
	return graph.Apply(schedule{Schedule: s, DType: dtype.Float32}, step)[0]
}

type schedule struct {
	Schedule Schedule
	DType    dtype.DType
}

func (o schedule) Kind() string              { return "schedule" }
func (o schedule) Operands() []graph.Operand { return []graph.Operand{{Name: "step"}} }
func (o schedule) Outputs() []string         { return []string{"rate"} }

func (o schedule) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if err := o.Schedule.check(); err != nil {
		return nil, err
	}
	if err := checkOne("step", in[0], dtype.Int32); err != nil {
		return nil, err
	}
	return []graph.Spec{{DType: o.DType, Shape: []int{1}}}, nil
}

func (o schedule) Host(c *graph.Call) func() error {
	return func() error {
		rate := o.Schedule.At(int(ints(c.In[0])[0]))
		if o.DType == dtype.Float64 {
			graph.View[float64](c.Out[0].Data)[0] = rate
		} else {
			graph.View[float32](c.Out[0].Data)[0] = float32(rate)
		}
		return nil
	}
}

// counter counts the replays in which ready is absent or not 0.
type counter struct{}

func (counter) Kind() string { return "counter" }

func (counter) Operands() []graph.Operand {
	return []graph.Operand{{Name: "count", Update: true}, {Name: "ready", Optional: true}}
}

func (counter) Outputs() []string { return []string{"value"} }

func (counter) Infer(in []*graph.Value) ([]graph.Spec, error) {
	for i, name := range []string{"count", "ready"} {
		if err := checkOne(name, in[i], dtype.Int32); err != nil {
			return nil, err
		}
	}
	return []graph.Spec{{DType: dtype.Int32, Shape: []int{1}}}, nil
}

func (counter) Host(c *graph.Call) func() error {
	return func() error {
		count := ints(c.In[0])
		if isReady(c.In[1]) {
			count[0]++
		}
		if c.Out[0] != nil {
			ints(c.Out[0])[0] = count[0]
		}
		return nil
	}
}

// isReady says whether an optimizer acts in this replay.
func isReady(ready *graph.Tensor) bool { return ready == nil || ints(ready)[0] != 0 }
