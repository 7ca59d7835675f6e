package nodes

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// naiveChoice is the limited choice of one token in the words of DeepSeek-V3's code, in float64.
func naiveChoice(o TopK, logits, bias []float64) (idx []int, prob []float64) {
	e := len(logits)
	score := make([]float64, e)
	total := 0.0
	for _, l := range logits {
		total += math.Exp(l)
	}
	for i, l := range logits {
		switch o.Order {
		case SoftmaxTopK:
			score[i] = math.Exp(l) / total
		case TopKSoftmax:
			score[i] = l
		default:
			score[i] = 1 / (1 + math.Exp(-l))
		}
	}
	choice := slices.Clone(score)
	for i := range bias {
		choice[i] += bias[i]
	}
	best := func(v []float64, k int) []int {
		order := make([]int, len(v))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case v[a] > v[b]:
				return -1
			case v[a] < v[b]:
				return 1
			}
			return 0
		})
		return order[:k]
	}
	if o.Groups > 0 {
		size := e / o.Groups
		sums := make([]float64, o.Groups)
		for g := range sums {
			two := best(choice[g*size:(g+1)*size], 2)
			sums[g] = choice[g*size+two[0]] + choice[g*size+two[1]]
		}
		kept := best(sums, o.TopKGroups)
		for i := range choice {
			if !slices.Contains(kept, i/size) {
				choice[i] = 0
			}
		}
	}
	idx = best(choice, o.K)
	sum := 0.0
	for _, i := range idx {
		p := score[i]
		if o.Order == TopKSoftmax {
			p = math.Exp(p)
		}
		prob = append(prob, p)
		sum += p
	}
	for s := range prob {
		if o.Order == TopKSoftmax || o.Normalize != nil && *o.Normalize {
			prob[s] /= sum
		}
		prob[s] *= o.Scale
	}
	return idx, prob
}

// TestTopK_Groups compares the choice among groups of experts with the naive one, in float32 and float64, with and
// without a bias, which also makes selecting values negative.
func TestTopK_Groups(t *testing.T) {
	const tokens = 50
	yes := true
	for _, tc := range []TopK{
		{K: 8, Groups: 8, TopKGroups: 4},
		{K: 1, Groups: 32, TopKGroups: 1},
		{K: 8, Groups: 1, TopKGroups: 1},
		{K: 6, Groups: 4, TopKGroups: 4},
		{K: 32, Groups: 2, TopKGroups: 1},
	} {
		for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
			for _, spread := range []float64{0, 0.3, 2} { // of the bias; 2 makes many values negative
				t.Run(fmt.Sprint(tc.K, tc.Groups, tc.TopKGroups, order, spread), func(t *testing.T) {
					const e = 64
					r := rand.New(rand.NewPCG(uint64(tc.Groups), uint64(spread*10)))
					logits, bias := normals(r, tokens*e), normals(r, e)
					for i := range logits {
						logits[i] = float64(float32(logits[i]))
					}
					for i := range bias {
						bias[i] = float64(float32(spread * bias[i]))
					}
					for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
						o := tc
						o.Order, o.Normalize, o.Scale = order, &yes, 2.5
						g := graph.New("g")
						in := g.Input("logits", dt, graph.UpTo(tokens), e)
						data := map[*graph.Value]any{in: logits}
						o.Logits = in
						var b []float64
						if spread > 0 {
							o.SelectBias, b = g.Input("bias", dt, e), bias
							data[o.SelectBias] = bias
						}
						idx, prob := o.Apply()
						g.Output("idx", idx)
						g.Output("prob", prob)
						ex := start(t, g, nil, data)
						must(t, ex.Replay(t.Context()))
						gotIdx, gotProb := fetch[int32](t, ex, idx), fetch[float64](t, ex, prob)
						for tok := range tokens {
							wantIdx, wantProb := naiveChoice(o, logits[tok*e:(tok+1)*e], b)
							for s := range wantIdx {
								at := tok*o.K + s
								if int(gotIdx[at]) != wantIdx[s] {
									t.Fatalf("%s, token %d, slot %d: expert %d, want %d", dt, tok, s, gotIdx[at], wantIdx[s])
								}
								if math.Abs(gotProb[at]-wantProb[s]) > 1e-6*wantProb[s] {
									t.Fatalf("%s, token %d, slot %d: prob %v, want %v", dt, tok, s, gotProb[at], wantProb[s])
								}
							}
						}
					}
				})
			}
		}
	}
}

// TestTopK_GroupsLiterals: the best group is that of the two best experts together, not of the best one; the
// experts of the other group count 0, which is more than a negative value; NaN and ties do no harm.
func TestTopK_GroupsLiterals(t *testing.T) {
	nan := float32(math.NaN())
	for _, tc := range []struct {
		name         string
		logits, bias []float32
		k            int
		want         []int32
	}{
		{"two together", []float32{0, 0, 0, 0, 0, 0}, []float32{3, 0, 0, 2, 2, 0}, 2, []int32{3, 4}},
		{"zero before negative", []float32{0, 0, 0, 0, 0, 0}, []float32{-2, -2, -2, 1, -2, -2}, 3, []int32{3, 0, 1}},
		{"equal groups", []float32{1, 1, 1, 1, 1, 1}, []float32{0, 0, 0, 0, 0, 0}, 3, []int32{0, 1, 2}},
		{"all NaN", []float32{nan, nan, nan, nan, nan, nan}, []float32{0, 0, 0, 0, 0, 0}, 3, []int32{3, 4, 5}},
		{"a group of NaN", []float32{nan, nan, nan, 1, 2, 3}, []float32{0, 0, 0, 0, 0, 0}, 3, []int32{5, 4, 3}},
	} {
		g := graph.New("g")
		l, b := g.Input("logits", dtype.Float32, 1, 6), g.Input("bias", dtype.Float32, 6)
		idx, prob := TopK{Logits: l, SelectBias: b, K: tc.k, Order: Sigmoid, Groups: 2, TopKGroups: 1}.Apply()
		g.Output("idx", idx)
		g.Output("prob", prob)
		e := start(t, g, nil, map[*graph.Value]any{l: tc.logits, b: tc.bias})
		must(t, e.Replay(t.Context()))
		if got := fetch[int32](t, e, idx); !slices.Equal(got, tc.want) {
			t.Errorf("%s: experts %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestTopK_GroupsGrad: the gradient goes through the probabilities of the experts chosen.
func TestTopK_GroupsGrad(t *testing.T) {
	for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
		vars := graph.NewVars(5)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			o := TopK{Logits: g.Use(wide(vars, "logits", 9, 8)), K: 3, Order: order, Scale: 2.5, Groups: 4, TopKGroups: 2,
				SelectBias: g.Input("select", dtype.Float64, 8)}
			_, prob := o.Apply()
			return []*graph.Value{prob}
		}, map[string]any{"select": []float64{1, -1, 0.5, 0, 2, -2, 0, 0.3}})
	}
}

func TestTopK_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    TopK
		kind error
		want string
	}{
		{"no k", TopK{}, graph.ErrShape, "top_k: got 0"},
		{"k above the experts", TopK{K: 13}, graph.ErrShape, "top_k: got 13"},
		{"order", TopK{K: 1, Order: 3}, graph.ErrUnsupported, "order"},
		{"groups that do not divide", TopK{K: 1, Groups: 5, TopKGroups: 1}, graph.ErrShape, "groups: got 5, want a divisor of the 12 experts"},
		{"negative groups", TopK{K: 1, Groups: -2, TopKGroups: 1}, graph.ErrShape, "groups: got -2"},
		{"groups alone", TopK{K: 1, Groups: 4}, graph.ErrShape, "top_k_groups: got 0"},
		{"chosen groups alone", TopK{K: 1, TopKGroups: 2}, graph.ErrShape, "groups: got 0"},
		{"too many groups", TopK{K: 1, Groups: 4, TopKGroups: 5}, graph.ErrShape, "top_k_groups: got 5"},
		{"groups of one", TopK{K: 1, Groups: 12, TopKGroups: 2}, graph.ErrShape, "at most 6"},
		{"too few experts left", TopK{K: 7, Groups: 4, TopKGroups: 2}, graph.ErrShape, "2 groups of 3 experts, want at least the 7"},
	} {
		g := graph.New("g")
		tc.o.Logits = g.Input("logits", dtype.Float32, 2, 12)
		tc.o.Apply()
		if err := g.Err(); !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want a %v error that says %q", tc.name, err, tc.kind, tc.want)
		}
		m := MoE{Experts: 12, TopK: tc.o.K, Intermediate: 32, Order: tc.o.Order, Groups: tc.o.Groups, TopKGroups: tc.o.TopKGroups}
		g, vars := graph.New("g"), graph.NewVars(1)
		MoELayer(g.Input("x", dtype.Float32, 2, 4), vars, m)
		if g.Err() == nil {
			t.Errorf("%s: the layer is built", tc.name)
		}
		if tc.o.Groups != 0 && len(vars.All()) > 0 {
			t.Errorf("%s: the refused layer left variables", tc.name)
		}
	}
}
