package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: crossEntropy{Ignore: ignoreIndex},
		Doc:     "loss = mean over the labels that are not ignored of logsumexp(logits[t]) - logits[t,label]",
		Options: []string{"ignore_index = -100"}})
	graph.Register(graph.Info{Example: crossEntropyGrad{Ignore: ignoreIndex},
		Doc: "dlogits = upstream/n * (softmax(logits) - one-hot label), 0 in ignored rows", NoGrad: "it makes gradients only"})
}

// CrossEntropyConfig are the options of CrossEntropy.
type CrossEntropyConfig struct {
	IgnoreIndex *int // the label of rows that do not count; default -100; new(0) for label 0
}

const ignoreIndex = -100

// CrossEntropy returns the mean negative log-likelihood of the labels, (1,) in f32.
//
//	loss = 1/n * sum_t (log sum_v exp(logits[t,v]) - logits[t,labels[t]])
//
// over the n rows in use whose label is not IgnoreIndex. logits is (T,V) in bf16, f16, f32 or f64, its rows
// possibly counted; labels is int32 (T,) with the same rows. Computed in float64 row by row and summed in
// the order of rows. As in PyTorch the loss is NaN where n is 0, while the gradient is then 0.
//
// Another label outside [0,V) is an error in debug mode (Debug.Offsets); else the loss and the gradient of that
// row are NaN, so that a training run shows it. The gradient of logits has the format of logits; ignored
// rows are exactly 0. For it the node saves, as its second output, each row's largest logit and the
// logarithm of sum_v exp(logits[t,v] - largest): apart, they keep their digits however large the logits are.
func CrossEntropy(logits, labels *graph.Value, cfg ...CrossEntropyConfig) *graph.Value {
	op := crossEntropy{Ignore: ignoreIndex}
	if len(cfg) > 0 && cfg[0].IgnoreIndex != nil {
		op.Ignore = *cfg[0].IgnoreIndex
	}
	return graph.Apply(op, logits, labels)[0]
}

type crossEntropy struct{ Ignore int }

func (o crossEntropy) Kind() string { return "cross_entropy" }

func (o crossEntropy) Operands() []graph.Operand {
	return []graph.Operand{{Name: "logits"}, {Name: "labels"}}
}

func (o crossEntropy) Outputs() []string { return []string{"loss", "stats"} }

func (o crossEntropy) Infer(in []*graph.Value) ([]graph.Spec, error) {
	logits, labels := in[0], in[1]
	if err := checkLabels(logits, labels, o.Ignore); err != nil {
		return nil, err
	}
	stat := statType(logits.DType())
	return []graph.Spec{
		{DType: stat, Shape: []int{1}},
		{DType: stat, Shape: []int{logits.Dim(0), 2}, Rows: logits.Rows()},
	}, nil
}

func checkLabels(logits, labels *graph.Value, ignore int) error {
	switch {
	case logits.Rank() != 2 || logits.Dim(1) == 0:
		return graph.BadShape("logits", logits.Text(), "a matrix (T,V) with V of at least 1")
	case !plain(logits.DType()):
		return graph.BadDType("logits", logits.DType(), floats)
	case labels.DType() != dtype.Int32:
		return graph.BadDType("labels", labels.DType(), "int32")
	case labels.Rank() != 1:
		return graph.BadShape("labels", labels.Text(), "(%d,)", logits.Dim(0))
	case ignore < math.MinInt32 || ignore > math.MaxInt32:
		return graph.BadShape("ignore_index", ignore, "a number that an int32 label can be")
	}
	return graph.SameRows("labels", logits, labels)
}

// Flops implements graph.Coster: an exponential counts as several operations.
func (o crossEntropy) Flops(n *graph.Node) int64 { return 10 * int64(n.In(0).Elems()) }

// Scratch is a loss for each row.
func (o crossEntropy) Scratch(n *graph.Node) int64 { return 8 * int64(n.In(0).Dim(0)) }

func (o crossEntropy) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	if grads[0] == nil || grads[1] != nil {
		n.Graph().Fail(noGradient(n, "stats", "loss"))
		return make([]*graph.Value, 2)
	}
	op := crossEntropyGrad(o)
	return []*graph.Value{graph.Apply(op, n.In(0), n.In(1), n.Out(1), grads[0])[0], nil}
}

// crossEntropyGrad is the gradient with respect to logits.
type crossEntropyGrad struct{ Ignore int }

func (o crossEntropyGrad) Kind() string { return "cross_entropy_grad" }

func (o crossEntropyGrad) Operands() []graph.Operand {
	return []graph.Operand{{Name: "logits"}, {Name: "labels"}, {Name: "stats"}, {Name: "upstream"}}
}

func (o crossEntropyGrad) Outputs() []string { return []string{"dlogits"} }

func (o crossEntropyGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	logits, labels, stats, up := in[0], in[1], in[2], in[3]
	if err := checkLabels(logits, labels, o.Ignore); err != nil {
		return nil, err
	}
	stat := statType(logits.DType())
	if stats.DType() != stat || stats.Rank() != 2 || stats.Dim(1) != 2 {
		return nil, graph.BadDType("stats", stats.Text(), "%s (%d,2)", stat, logits.Dim(0))
	}
	if err := graph.SameRows("stats", logits, stats); err != nil {
		return nil, err
	}
	if up.Elems() != 1 || !plain(up.DType()) {
		return nil, graph.BadShape("upstream", up.Text(), "one float")
	}
	return []graph.Spec{logits.Spec()}, nil
}

// Flops implements graph.Coster.
func (o crossEntropyGrad) Flops(n *graph.Node) int64 { return 10 * int64(n.In(0).Elems()) }
