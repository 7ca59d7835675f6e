package corpus

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
)

// Context writes the bytes before pos to dst, the oldest first. Before the file's start it is 0.
func (s *Split) Context(dst []int32, pos int) {
	i := len(dst) - 1
	for ; i >= 0; i-- {
		pos--
		b := s.data[pos] // data[0] is a file's start, which ends the loop
		if b == fileStart {
			break
		}
		dst[i] = int32(b)
	}
	for ; i >= 0; i-- {
		dst[i] = fileStart
	}
}

// Fill writes the model's input and target for each position: tokens[t*context : (t+1)*context] are
// the bytes before positions[t], the oldest first, labels[t] is the byte there. It allocates nothing.
func (s *Split) Fill(positions []int, context int, tokens, labels []int32) error {
	if err := checkBatch(len(positions), context, tokens, labels); err != nil {
		return err
	}
	for t, pos := range positions {
		if pos < 0 || pos >= len(s.data) || s.data[pos] == fileStart {
			return fmt.Errorf("batch: position %d: got %d, want the index of a text byte", t, pos)
		}
		s.Context(tokens[t*context:(t+1)*context], pos)
		labels[t] = int32(s.data[pos])
	}
	return nil
}

// Positions returns numWanted positions in order, spread evenly over the text: the k-th is text byte
// k*Len/numWanted. With 0, or more than there are, it returns all.
func (s *Split) Positions(numWanted int) []int {
	numBytes := s.Len()
	if numWanted <= 0 || numWanted > numBytes {
		numWanted = numBytes
	}
	positions := make([]int, 0, numWanted)
	ordinal := 0 // of the text byte at pos
	for pos, b := range s.data {
		if b == fileStart {
			continue
		}
		k := len(positions)
		if k < numWanted && ordinal == spread(k, numBytes, numWanted) {
			positions = append(positions, pos)
		}
		ordinal++
	}
	return positions
}

// spread is k*n/m without overflow, for k < m.
func spread(k, n, m int) int {
	hi, lo := bits.Mul64(uint64(k), uint64(n))
	quotient, _ := bits.Div64(hi, lo, uint64(m))
	return int(quotient)
}

// Sampler draws batches from a split, the same for the same seed and step, in any order of steps: it
// carries no state, so a resumed run sees what an unbroken one does.
type Sampler struct {
	split   *Split
	seed    uint64
	context int
}

// NewSampler returns a sampler of the split with context bytes before each position.
func (s *Split) NewSampler(seed uint64, context int) (*Sampler, error) {
	if context < 1 {
		return nil, fmt.Errorf("sampler: context: got %d bytes, want at least 1", context)
	}
	if s.Len() < 1 {
		return nil, fmt.Errorf("sampler: got a split without text")
	}
	return &Sampler{s, seed, context}, nil
}

// Batch fills T = len(labels) positions drawn uniformly, with replacement, over the split's text, in
// the layout of [Split.Fill]. It allocates nothing.
func (s *Sampler) Batch(step int, tokens, labels []int32) error {
	if err := checkBatch(len(labels), s.context, tokens, labels); err != nil {
		return err
	}
	// Two words of state out of seed and step; without mixing, neighbouring steps would begin in
	// neighbouring states.
	mixed := mix(s.seed ^ mix(uint64(step)))
	var random rand.PCG
	random.Seed(mixed, mix(mixed))
	data := s.split.data
	for t := range labels {
		pos := 0
		for data[pos] == fileStart { // draw again for the byte before a file: it is no text
			hi, _ := bits.Mul64(random.Uint64(), uint64(len(data)))
			pos = int(hi)
		}
		s.split.Context(tokens[t*s.context:(t+1)*s.context], pos)
		labels[t] = int32(data[pos])
	}
	return nil
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood, 2014) after one step of its sequence: a
// bijection in which every input bit moves every output bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func checkBatch(numTokens, context int, tokens, labels []int32) error {
	if context < 1 {
		return fmt.Errorf("batch: context: got %d bytes, want at least 1", context)
	}
	if len(labels) != numTokens {
		return fmt.Errorf("batch: labels: got %d, want %d, one for each position", len(labels), numTokens)
	}
	if len(tokens)%context != 0 || len(tokens)/context != numTokens {
		return fmt.Errorf("batch: tokens: got %d, want %d labels * %d bytes of context",
			len(tokens), numTokens, context)
	}
	return nil
}
