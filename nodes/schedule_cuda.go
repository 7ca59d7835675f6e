package nodes

import "github.com/moegraph/moegraph/graph"

// Numbers of the kinds of schedule in scalars.cuh.
var scheduleKinds = map[ScheduleKind]int32{"": 0, ConstantRate: 0, LinearDecay: 1, CosineDecay: 2}

func (o schedule) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	s := o.Schedule
	return oneThread("schedule", "scalars.cuh", ptr(c.In[0]), ptr(c.Out[0]), s.Rate, s.Min, int64(s.Warmup), int64(s.Total),
		scheduleKinds[s.Kind]), refuseWide(c)
}

func (counter) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return oneThread("counter", "scalars.cuh", ptr(c.In[0]), ptr(c.In[1]), ptr(c.Out[0])), nil
}
