package corpus

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newSplit(t testing.TB, parts ...string) *Split {
	t.Helper()
	var raw [][]byte
	for _, part := range parts {
		raw = append(raw, []byte(part))
	}
	s, err := NewSplit(raw...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSplit_Fill(t *testing.T) {
	s := newSplit(t, "abcd", "x\xff")
	positions := s.Positions(0)
	if diff := cmp.Diff([]int{1, 2, 3, 4, 6, 7}, positions); diff != "" {
		t.Fatal(diff)
	}
	tokens, labels := make([]int32, 3*6), make([]int32, 6)
	for i := range tokens {
		tokens[i] = -1
	}
	if err := s.Fill(positions, 3, tokens, labels); err != nil {
		t.Fatal(err)
	}
	want := []int32{0, 0, 0, 0, 0, 'a', 0, 'a', 'b', 'a', 'b', 'c', 0, 0, 0, 0, 0, 'x'}
	if diff := cmp.Diff(want, tokens); diff != "" {
		t.Error("tokens:", diff)
	}
	if diff := cmp.Diff([]int32{'a', 'b', 'c', 'd', 'x', 0xff}, labels); diff != "" {
		t.Error("labels:", diff)
	}
	for name, c := range map[string]struct {
		positions      []int
		context        int
		tokens, labels []int32
		want           string
	}{
		"file start":   {[]int{5}, 1, make([]int32, 1), make([]int32, 1), "position 0: got 5"},
		"past the end": {[]int{8}, 1, make([]int32, 1), make([]int32, 1), "position 0: got 8"},
		"negative":     {[]int{-1}, 1, make([]int32, 1), make([]int32, 1), "position 0: got -1"},
		"labels":       {[]int{1}, 1, make([]int32, 1), make([]int32, 2), "labels: got 2, want 1"},
		"tokens":       {[]int{1}, 2, make([]int32, 3), make([]int32, 1), "tokens: got 3, want 1 labels * 2"},
		"context":      {[]int{1}, 0, nil, make([]int32, 1), "context: got 0"},
	} {
		if err := s.Fill(c.positions, c.context, c.tokens, c.labels); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestSplit_PositionsSpread(t *testing.T) {
	s := newSplit(t, "0123456", "789") // text byte k is the digit k
	for numWanted, want := range map[int]string{1: "0", 3: "036", 4: "0257", 10: "0123456789", 99: "0123456789"} {
		var got []byte
		for _, pos := range s.Positions(numWanted) {
			got = append(got, s.Data()[pos])
		}
		if string(got) != want {
			t.Errorf("%d: got %s, want %s", numWanted, got, want)
		}
	}
}

func TestNewSplit_Refuses(t *testing.T) {
	if _, err := NewSplit([]byte("a"), []byte("b\x00")); err == nil {
		t.Error("byte 0: got no error")
	}
}

func batch(t testing.TB, s *Sampler, step int) ([]int32, []int32) {
	t.Helper()
	tokens, labels := make([]int32, 64*s.context), make([]int32, 64)
	if err := s.Batch(step, tokens, labels); err != nil {
		t.Fatal(err)
	}
	return tokens, labels
}

// TestSampler_RandomAccess: a batch depends on seed and step only, not on the batches before it.
func TestSampler_RandomAccess(t *testing.T) {
	split := newSplit(t, strings.Repeat("the quick brown fox. ", 50), strings.Repeat("jumps ", 50))
	newSampler := func(seed uint64) *Sampler {
		s, err := split.NewSampler(seed, 4)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	unbroken := newSampler(7)
	var tokens, labels [10][]int32
	for step := range 10 {
		tokens[step], labels[step] = batch(t, unbroken, step)
	}
	for _, step := range []int{9, 3, 0, 5} {
		gotTokens, gotLabels := batch(t, newSampler(7), step)
		if !slices.Equal(gotTokens, tokens[step]) || !slices.Equal(gotLabels, labels[step]) {
			t.Errorf("step %d: differs when drawn alone", step)
		}
	}
	for step := range 9 {
		if slices.Equal(tokens[step], tokens[step+1]) {
			t.Errorf("steps %d and %d: equal batches", step, step+1)
		}
	}
	if other, _ := batch(t, newSampler(8), 0); slices.Equal(other, tokens[0]) {
		t.Error("seeds 7 and 8: equal batches")
	}
}

// TestSampler_Frozen: the batches of a seed are part of what -resume promises, across versions too.
func TestSampler_Frozen(t *testing.T) {
	s, err := newSplit(t, "abcdefghijklmnopqrstuvwxyz").NewSampler(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for step := range 2 {
		tokens, labels := make([]int32, 12), make([]int32, 12)
		if err := s.Batch(step, tokens, labels); err != nil {
			t.Fatal(err)
		}
		for _, label := range labels {
			got = append(got, byte(label))
		}
	}
	if want := "vcjsneyoosugnjeidhsobsdd"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSampler_Uniform(t *testing.T) {
	// 10 text bytes, 4 of them behind a file start; each must come up equally often.
	s, err := newSplit(t, "0", "1", "23", "456789").NewSampler(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	const numTokens, numSteps = 1000, 100
	tokens, labels := make([]int32, 2*numTokens), make([]int32, numTokens)
	var counts [10]int
	for step := range numSteps {
		if err := s.Batch(step, tokens, labels); err != nil {
			t.Fatal(err)
		}
		for i, label := range labels {
			counts[label-'0']++
			if label == '4' && (tokens[2*i] != 0 || tokens[2*i+1] != 0) {
				t.Fatal("context of a file's first byte: got bytes of the file before it")
			}
		}
	}
	const want, sigma = numTokens * numSteps / 10, 95 // sqrt(n*p*(1-p))
	for digit, got := range counts {
		if got < want-5*sigma || got > want+5*sigma {
			t.Errorf("byte %d: got %d draws, want about %d", digit, got, want)
		}
	}
}

func TestSampler_Allocs(t *testing.T) {
	s, err := newSplit(t, strings.Repeat("text ", 100)).NewSampler(1, 8)
	if err != nil {
		t.Fatal(err)
	}
	tokens, labels := make([]int32, 8*128), make([]int32, 128)
	step := 0
	if got := testing.AllocsPerRun(10, func() {
		if err := s.Batch(step, tokens, labels); err != nil {
			t.Fatal(err)
		}
		step++
	}); got != 0 {
		t.Errorf("got %v allocations a batch, want none", got)
	}
}

func TestSampler_Refuses(t *testing.T) {
	s := newSplit(t, "text")
	if _, err := s.NewSampler(1, 0); err == nil {
		t.Error("no context: got no error")
	}
	if _, err := newSplit(t).NewSampler(1, 1); err == nil {
		t.Error("no text: got no error")
	}
	sampler, err := s.NewSampler(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := sampler.Batch(0, make([]int32, 3), make([]int32, 2)); err == nil || !strings.Contains(err.Error(), "tokens: got 3") {
		t.Errorf("got %v, want an error about tokens", err)
	}
}

func BenchmarkSampler(b *testing.B) {
	s, err := newSplit(b, strings.Repeat("0123456789abcdef", 1<<22)).NewSampler(1, 16)
	if err != nil {
		b.Fatal(err)
	}
	tokens, labels := make([]int32, 16*8192), make([]int32, 8192)
	step := 0
	for b.Loop() {
		if err := s.Batch(step, tokens, labels); err != nil {
			b.Fatal(err)
		}
		step++
	}
}
