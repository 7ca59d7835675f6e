// Package ngram has the byte models that a language model must beat: unigram, bigram and trigram,
// counted on a text and smoothed by linear interpolation.
//
// In order: [Count] on the training text, [Counts.Fit] of the interpolation weights on another text,
// [Model.Bits] on the positions of a third. All three take bytes in the layout of package corpus: a
// byte 0 before each file, no other; counts do not reach across it, and the context of a file's first
// bytes is byte 0, as that of the language model.
//
//	P_k(x | a b) = sum over i = 0..k of w[k][i] * p_i,   k = 1 unigram, 2 bigram, 3 trigram
//	p_0 = 1/256, p_1 = c(x)/c(), p_2 = c(b x)/c(b), p_3 = c(a b x)/c(a b)
//
// where p_i of a context never seen is p_(i-1), so that each p_i, and P, sums to 1 over x. The weights
// maximize the probability of the fit text (deleted interpolation: Jelinek and Mercer, 1980).
//
// Counts and Models do not change after they are made; several goroutines may use them.
package ngram

import (
	"errors"
	"fmt"
	"iter"
	"math"
)

const (
	numBytes = 256 // the alphabet
	// fileStart stands before each file of a text.
	fileStart = 0
	// maxOrder is that of the trigram: two bytes of context.
	maxOrder = 3
)

// Counts are the trigrams of a text, and the sums over them that the shorter contexts need.
type Counts struct {
	trigrams []uint32 // 1<<24 (64 MiB): a<<16 | b<<8 | x, oldest byte first
	contexts []uint32 // 1<<16: a<<8 | b, how often anything follows
	bigrams  []uint32 // 1<<16: b<<8 | x
	context1 [numBytes]uint32
	unigrams [numBytes]uint32
	total    uint32
}

// Count counts a text. It is refused where it holds nothing, or more bytes than a count can hold.
func Count(data []byte) (*Counts, error) {
	if int64(len(data)) > math.MaxUint32 {
		return nil, fmt.Errorf("ngram: count: got %d bytes, want at most %d", len(data), uint32(math.MaxUint32))
	}
	c := &Counts{
		trigrams: make([]uint32, 1<<24),
		contexts: make([]uint32, 1<<16),
		bigrams:  make([]uint32, 1<<16),
	}
	context := uint32(0) // a<<8 | b
	for _, x := range data {
		if x == fileStart {
			context = 0
			continue
		}
		c.trigrams[context<<8|uint32(x)]++
		c.contexts[context]++
		context = (context<<8 | uint32(x)) & 0xffff
	}
	for trigram, count := range c.all() {
		c.bigrams[trigram&0xffff] += count
	}
	for i, count := range c.bigrams {
		c.context1[i>>8] += count
		c.unigrams[i&0xff] += count
		c.total += count
	}
	if c.total == 0 {
		return nil, errors.New("ngram: count: got no text")
	}
	return c, nil
}

// all goes through the trigrams that occur, in order. Most contexts do not: their rows are skipped.
func (c *Counts) all() iter.Seq2[uint32, uint32] {
	return func(yield func(trigram, count uint32) bool) {
		for context, n := range c.contexts {
			if n == 0 {
				continue
			}
			first := context << 8
			for x, count := range c.trigrams[first : first+numBytes] {
				if count != 0 && !yield(uint32(first+x), count) {
					return
				}
			}
		}
	}
}

// components returns p_0 .. p_3 of trigram a<<16 | b<<8 | x.
func (c *Counts) components(trigram uint32) [maxOrder + 1]float64 {
	p := [maxOrder + 1]float64{1. / numBytes, float64(c.unigrams[trigram&0xff]) / float64(c.total)}
	p[2], p[3] = p[1], p[1]
	if n := c.context1[trigram>>8&0xff]; n > 0 {
		p[2] = float64(c.bigrams[trigram&0xffff]) / float64(n)
		p[3] = p[2]
	}
	if n := c.contexts[trigram>>8]; n > 0 {
		p[3] = float64(c.trigrams[trigram]) / float64(n)
	}
	return p
}

// Weights are the shares of p_0 .. p_3 in one model; they sum to 1, and those above its order are 0.
type Weights [maxOrder + 1]float64

// Model is counts with weights.
type Model struct {
	counts                   *Counts
	Unigram, Bigram, Trigram Weights
}

// Bits is the mean of -log2 P over some positions, in bits per byte.
type Bits struct {
	Unigram, Bigram, Trigram float64
}

// Bits measures the models where data holds the bytes to predict; positions are indexes of text
// bytes, not of a byte 0.
func (m *Model) Bits(data []byte, positions []int) (Bits, error) {
	if len(positions) == 0 {
		return Bits{}, errors.New("ngram: bits: got no positions")
	}
	weights := [maxOrder]*Weights{&m.Unigram, &m.Bigram, &m.Trigram}
	var sums [maxOrder]float64
	for i, pos := range positions {
		if pos < 0 || pos >= len(data) || data[pos] == fileStart {
			return Bits{}, fmt.Errorf("ngram: bits: position %d: got %d, want the index of a text byte", i, pos)
		}
		p := m.counts.components(trigramAt(data, pos))
		for order, w := range weights {
			sums[order] -= math.Log2(w.dot(p))
		}
	}
	n := float64(len(positions))
	return Bits{sums[0] / n, sums[1] / n, sums[2] / n}, nil
}

func trigramAt(data []byte, pos int) uint32 {
	trigram := uint32(data[pos])
	if pos > 0 && data[pos-1] != fileStart {
		trigram |= uint32(data[pos-1]) << 8
		if pos > 1 {
			trigram |= uint32(data[pos-2]) << 16 // a byte 0 adds nothing, as it should
		}
	}
	return trigram
}

func (w *Weights) dot(p [maxOrder + 1]float64) float64 {
	return w[0]*p[0] + w[1]*p[1] + w[2]*p[2] + w[3]*p[3]
}
