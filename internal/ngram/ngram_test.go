package ngram

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustCount(t testing.TB, text string) *Counts {
	t.Helper()
	c, err := Count([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func trigram(s string) uint32 { return uint32(s[0])<<16 | uint32(s[1])<<8 | uint32(s[2]) }

func near(a, b float64) bool { return math.Abs(a-b) < 1e-12 }

func TestCount_ByHand(t *testing.T) {
	c := mustCount(t, "\x00aba\x00ab")
	got := map[string]uint32{}
	for trigram, count := range c.all() {
		got[string([]byte{byte(trigram >> 16), byte(trigram >> 8), byte(trigram)})] = count
	}
	// No trigram has bytes of both files: "ba" is followed by a file's end.
	if diff := cmp.Diff(map[string]uint32{"\x00\x00a": 2, "\x00ab": 2, "aba": 1}, got); diff != "" {
		t.Error(diff)
	}
	// Unigrams: a 3, b 2 of 5. Bigrams: 0a 2, ab 2, ba 1, so 0 -> a, a -> b and b -> a are certain.
	for text, want := range map[string][4]float64{
		"aba":    {1. / 256, 3. / 5, 1, 1},
		"abb":    {1. / 256, 2. / 5, 0, 0},
		"bba":    {1. / 256, 3. / 5, 1, 1},           // bb never seen: p_3 is p_2
		"bbb":    {1. / 256, 2. / 5, 0, 0},           // so too
		"azb":    {1. / 256, 2. / 5, 2. / 5, 2. / 5}, // z never seen: both are p_1
		"azz":    {1. / 256, 0, 0, 0},
		"\x00ab": {1. / 256, 2. / 5, 1, 1},
	} {
		got := c.components(trigram(text))
		for i := range want {
			if !near(got[i], want[i]) {
				t.Errorf("%q: p_%d: got %v, want %v", text, i, got[i], want[i])
			}
		}
	}
}

func TestModel_BitsByHand(t *testing.T) {
	m := &Model{
		counts:  mustCount(t, "\x00aba\x00ab"),
		Unigram: Weights{0.5, 0.5},
		Bigram:  Weights{0.25, 0.25, 0.5},
		Trigram: Weights{0.1, 0.2, 0.3, 0.4},
	}
	held := []byte("\x00bb")
	// At 1, after (0, 0): p_1 = 2/5, p_2 = p_3 = 0. At 2, after (0, b), a context never seen: p_1 = 2/5,
	// p_2 = p_3 = 0 (after b there was only a).
	got, err := m.Bits(held, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	want := Bits{
		Unigram: -math.Log2(0.5/256 + 0.5*2/5),
		Bigram:  -math.Log2(0.25/256 + 0.25*2/5),
		Trigram: -math.Log2(0.1/256 + 0.2*2/5),
	}
	if !near(got.Unigram, want.Unigram) || !near(got.Bigram, want.Bigram) || !near(got.Trigram, want.Trigram) {
		t.Errorf("got %v, want %v", got, want)
	}
	got, err = m.Bits([]byte("\x00zab\x00a"), []int{2, 5})
	if err != nil {
		t.Fatal(err)
	}
	// At 2, after (0, z): p_1 = p_2 = p_3 = 3/5. At 5, after (0, 0): p_1 = 3/5, p_2 = p_3 = 1.
	wantTrigram := -(math.Log2(0.1/256+0.9*3/5) + math.Log2(0.1/256+0.2*3/5+0.7)) / 2
	if !near(got.Trigram, wantTrigram) {
		t.Errorf("trigram: got %v, want %v", got.Trigram, wantTrigram)
	}
}

// randomText draws from a chain in which the last two bytes matter, over few byte values.
func randomText(seed uint64, n int) string {
	random := rand.New(rand.NewPCG(seed, 1))
	text := []byte{0}
	a, b := 0, 0
	for i := range n {
		if i%500 == 499 {
			text = append(text, 0)
			a, b = 0, 0
		}
		x := (a*3 + b*5 + random.IntN(4)*random.IntN(3)) % 20
		text = append(text, byte('a'+x))
		a, b = b, x
	}
	return string(text)
}

func TestFit_Distribution(t *testing.T) {
	c := mustCount(t, randomText(1, 5000))
	m, err := c.Fit([]byte(randomText(2, 3000)))
	if err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]Weights{"unigram": m.Unigram, "bigram": m.Bigram, "trigram": m.Trigram} {
		// Contexts seen, unseen after a seen byte, and wholly unseen.
		for _, context := range []string{"ab", "\x00\x00", "za", "zz"} {
			sum := 0.
			for x := range numBytes {
				p := w.dot(c.components(trigram(context + string([]byte{byte(x)}))))
				if p <= 0 {
					t.Fatalf("%s: P(%d|%q): got %v, want more than 0", name, x, context, p)
				}
				sum += p
			}
			if !near(sum, 1) {
				t.Errorf("%s: sum of P(x|%q): got %v, want 1", name, context, sum)
			}
		}
	}
	if m.Unigram[2] != 0 || m.Unigram[3] != 0 || m.Bigram[3] != 0 {
		t.Errorf("weights above the order: got %v, %v", m.Unigram, m.Bigram)
	}
	held := []byte(randomText(3, 3000))
	var positions []int
	for i, x := range held {
		if x != 0 {
			positions = append(positions, i)
		}
	}
	bits, err := m.Bits(held, positions)
	if err != nil {
		t.Fatal(err)
	}
	if !(bits.Trigram < bits.Bigram && bits.Bigram < bits.Unigram && bits.Unigram < 8) {
		t.Errorf("got %+v, want each order to gain on this text", bits)
	}
}

func fitEvents(t *testing.T) []event {
	t.Helper()
	c, fit := mustCount(t, randomText(1, 2000)), mustCount(t, randomText(2, 1000))
	var events []event
	for trigram, count := range fit.all() {
		events = append(events, event{c.components(trigram), float64(count)})
	}
	return events
}

func TestFit_Monotone(t *testing.T) {
	events := fitEvents(t)
	for order := 1; order <= maxOrder; order++ {
		var trace []float64
		expectationMaximization(events, order, func(bits float64) { trace = append(trace, bits) })
		if len(trace) < 3 {
			t.Errorf("order %d: got %d iterations", order, len(trace))
		}
		for i := 1; i < len(trace); i++ {
			if trace[i] > trace[i-1]+1e-12 {
				t.Errorf("order %d: iteration %d: bits rise from %v to %v", order, i, trace[i-1], trace[i])
			}
		}
	}
}

// TestFit_Optimum compares with a search over all weights of the bigram in steps of 1/50.
func TestFit_Optimum(t *testing.T) {
	events := fitEvents(t)
	bits := func(w Weights) float64 {
		sum, total := 0., 0.
		for _, e := range events {
			sum -= e.count * math.Log2(w.dot(e.p))
			total += e.count
		}
		return sum / total
	}
	fitted := bits(expectationMaximization(events, 2, nil))
	const steps = 50
	best := math.Inf(1)
	for i := 1; i < steps; i++ {
		for j := 0; i+j <= steps; j++ {
			best = min(best, bits(Weights{float64(i) / steps, float64(j) / steps, float64(steps-i-j) / steps}))
		}
	}
	if fitted > best+1e-4 {
		t.Errorf("got %v bits, a search over weights finds %v", fitted, best)
	}
}

func TestRefuses(t *testing.T) {
	for _, text := range []string{"", "\x00", "\x00\x00"} {
		if _, err := Count([]byte(text)); err == nil || !strings.Contains(err.Error(), "no text") {
			t.Errorf("count %q: got %v, want no text", text, err)
		}
	}
	c := mustCount(t, "\x00ab")
	if _, err := c.Fit(nil); err == nil {
		t.Error("fit on nothing: got no error")
	}
	m, err := c.Fit([]byte("\x00ab"))
	if err != nil {
		t.Fatal(err)
	}
	for _, positions := range [][]int{nil, {-1}, {0}, {3}} {
		if _, err := m.Bits([]byte("\x00ab"), positions); err == nil {
			t.Errorf("bits at %v: got no error", positions)
		}
	}
}

// A byte that neither training nor fit text had costs bits, but finitely many.
func TestBits_UnseenByte(t *testing.T) {
	m, err := mustCount(t, randomText(1, 5000)).Fit([]byte(randomText(2, 5000)))
	if err != nil {
		t.Fatal(err)
	}
	bits, err := m.Bits([]byte("\x00~"), []int{1})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []float64{bits.Unigram, bits.Bigram, bits.Trigram} {
		if b < 8 || b > 31 {
			t.Errorf("got %v bits, want between 8 and 31, of the weight's floor", b)
		}
	}
}
