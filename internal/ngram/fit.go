package ngram

import (
	"fmt"
	"math"
)

const (
	// maxIterations and minGainBits (bits per byte) end the fit of a model's weights.
	maxIterations = 200
	minGainBits   = 1e-7
	// floorShare goes to all weights alike after the fit, so that a byte the fit text never had is not
	// impossible. It costs at most log2(1/(1-floorShare)), 1.5e-6 bits per byte.
	floorShare = 1e-6
)

// event is a trigram of the fit text: its components, and how often it comes.
type event struct {
	p     [maxOrder + 1]float64
	count float64
}

// Fit finds the weights of all three models on a text other than the counted one.
func (c *Counts) Fit(data []byte) (*Model, error) {
	fit, err := Count(data)
	if err != nil {
		return nil, fmt.Errorf("fit: %w", err)
	}
	// Equal trigrams have equal components: an iteration costs the distinct ones, not the bytes.
	var events []event
	for trigram, count := range fit.all() {
		events = append(events, event{c.components(trigram), float64(count)})
	}
	m := &Model{counts: c}
	for i, w := range []*Weights{&m.Unigram, &m.Bigram, &m.Trigram} {
		*w = expectationMaximization(events, i+1, nil)
		for j := range i + 2 {
			w[j] = (1-floorShare)*w[j] + floorShare/float64(i+2)
		}
	}
	return m, nil
}

// expectationMaximization starts from equal weights of p_0 .. p_order and returns those at which the
// events' bits per byte stop falling. An iteration replaces each weight by the mean share that its
// component has in the events' probability; that never raises the bits (Dempster, Laird and Rubin,
// 1977). Where trace is not nil, it gets the bits before each iteration.
func expectationMaximization(events []event, order int, trace func(bits float64)) Weights {
	var w Weights
	for i := range order + 1 {
		w[i] = 1 / float64(order+1)
	}
	last := math.Inf(1)
	for range maxIterations {
		var shares Weights
		total, bits := 0., 0.
		for i := range events {
			e := &events[i]
			prob := w.dot(e.p)
			for j, p := range e.p {
				shares[j] += e.count * w[j] * p / prob
			}
			total += e.count
			bits -= e.count * math.Log2(prob)
		}
		bits /= total
		if trace != nil {
			trace(bits)
		}
		if last-bits < minGainBits {
			break
		}
		last = bits
		for j := range w {
			w[j] = shares[j] / total
		}
	}
	return w
}
