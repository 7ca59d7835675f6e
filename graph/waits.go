package graph

import "slices"

// findWaits returns, for steps given in issue order by their streams and dependencies (positions), the fewest waits that
// enforce the dependencies: none where stream order or an earlier wait, also one of another stream's, implies it.
func findWaits(stream []int, deps [][]int) [][]int {
	streams := 0
	for _, t := range stream {
		streams = max(streams, t+1)
	}
	// known[i][t] is the last step of stream t that is complete before step i starts; -1: none.
	known := make([][]int, len(stream))
	waits := make([][]int, len(stream))
	last := make([]int, streams)
	for t := range last {
		last[t] = -1
	}
	for i, on := range stream {
		k := make([]int, streams)
		for t := range k {
			k[t] = -1
		}
		learn := func(j int) {
			for t := range k {
				k[t] = max(k[t], known[j][t])
			}
			k[stream[j]] = max(k[stream[j]], j)
		}
		if p := last[on]; p >= 0 {
			learn(p)
		}
		for d := len(deps[i]) - 1; d >= 0; d-- { // the latest first: it may imply the others
			j := deps[i][d]
			if j <= k[stream[j]] {
				continue
			}
			waits[i] = append(waits[i], j)
			learn(j)
		}
		slices.Sort(waits[i])
		known[i] = k
		last[on] = i
	}
	return waits
}

// setWaits gives steps in issue order their waits.
func setWaits(steps []*Step) {
	stream, deps := make([]int, len(steps)), make([][]int, len(steps))
	for i, s := range steps {
		stream[i], deps[i] = s.Stream, s.deps
	}
	for i, w := range findWaits(stream, deps) {
		steps[i].Waits = w
	}
}
