package memory

import "time"

// Stopwatch starts to measure. The function returned says for how long: in time or, where other processes take the cores,
// in what this one has computed meanwhile, which on an idle machine is no less.
func Stopwatch() func() time.Duration {
	start, cpu := time.Now(), cpuTime()
	return func() time.Duration {
		took := time.Since(start)
		if used := cpuTime() - cpu; used > 0 {
			took = min(took, used)
		}
		return took
	}
}
