package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/nodes"
)

func init() { runCommands = append(runCommands, newRunLayer) }

// layerFlags are the flags of running a layer of a checkpoint.
type layerFlags struct {
	weights, config, in, out, grads, params, device string
	layer                                           int
}

func newRunLayer() *cobra.Command {
	var f layerFlags
	cmd := &cobra.Command{
		Use:   "moe-layer -weights FILE -in FILE -out FILE",
		Short: "a mixture-of-experts layer of a checkpoint, forward and backward",
		Long: `Run one mixture-of-experts layer of a checkpoint: Mixtral, Qwen3-MoE, OLMoE, gpt-oss or DeepSeek-V3.

Operands: x (T,H), in f32, f16 or bf16, which is the format of the computation, and dy, of the same shape
and format, optional. Outputs: y (T,H), topk_idx and topk_prob (T,k), and with dy also dx (T,H).
-grads writes the gradient of every weight for dy under the weight's name, in float32.`,
		Example: "  moegraph run moe-layer -weights model.safetensors -config config.json -in x.npz -out y.npz -grads g.safetensors",
		Args:    cobra.NoArgs,
		RunE:    action(func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.weights, "weights", "", "a safetensors `file`, the index of a sharded checkpoint, or its folder")
	flags.StringVar(&f.config, "config", "", "the model's configuration, a `file`; default config.json beside the weights")
	flags.IntVar(&f.layer, "layer", 0, "the layer's `number`, counted from 0")
	flags.StringVar(&f.params, "params", "f32", "the `format` that parameters are kept in: f32, bf16, f16")
	flags.StringVar(&f.in, "in", "", "x and dy, an .npz `file`")
	flags.StringVar(&f.out, "out", "", "outputs, an .npz `file`")
	flags.StringVar(&f.grads, "grads", "", "gradients of the weights, a safetensors `file`; needs dy")
	addDevice(cmd, &f.device, "run on")
	for _, name := range []string{"weights", "in", "out"} {
		must(cmd.MarkFlagRequired(name))
	}
	for name, ext := range map[string][]string{"weights": {"safetensors", "json"}, "config": {"json"}, "in": {"npz"}, "out": {"npz"}, "grads": {"safetensors"}} {
		must(cmd.MarkFlagFilename(name, ext...))
	}
	must(cmd.RegisterFlagCompletionFunc("params", cobra.FixedCompletions([]string{"f32", "bf16", "f16"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (f *layerFlags) run(cmd *cobra.Command) error {
	dev, err := graph.Open(f.device)
	if err != nil {
		return fmt.Errorf("-device: %w", err)
	}
	params, err := dtype.Parse(f.params)
	if err != nil {
		return fmt.Errorf("-params: %w", err)
	}
	x, dy, err := f.operands()
	if err != nil {
		return fmt.Errorf("-in: %w", err)
	}
	vars := graph.NewVars(1)
	layer, err := nodes.LoadMoE(vars, nodes.LoadConfig{Weights: f.weights, Config: f.config, Layer: f.layer, Params: params})
	if err != nil {
		return err
	}
	r := layerRun{layer: layer, vars: vars}
	err = r.run(dev, x, dy, f.grads != "")
	if err == nil {
		err = r.write(f, cmd)
	}
	return errors.Join(err, r.close())
}

// operands reads x and dy, which is nil where it is absent.
func (f *layerFlags) operands() (x, dy *npz.Operand, err error) {
	arrays, err := npz.ReadFile(f.in)
	if err != nil {
		return nil, nil, pathError(f.in, err)
	}
	operands, attrs, err := npz.Split(arrays)
	if err == nil {
		err = npz.CheckOperands(operands)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.in, err)
	}
	for name := range attrs {
		return nil, nil, graph.Misuse("attr."+name, "an attribute", "none: the configuration says what the layer computes")
	}
	for i := range operands {
		o := &operands[i]
		switch {
		case o.Expert != npz.Dense || o.Name != "x" && o.Name != "dy":
			return nil, nil, graph.Misuse(o.Array.Name, "an operand that the layer does not have", "x and dy")
		case o.Format != dtype.Float32 && o.Format != dtype.BFloat16 && o.Format != dtype.Float16:
			return nil, nil, graph.BadDType(o.Name, o.Format, "f32, bf16 or f16")
		case len(o.Shape) != 2:
			return nil, nil, graph.BadShape(o.Name, fmt.Sprint(o.Shape), "(T,H)")
		case o.Name == "x":
			x = o
		default:
			dy = o
		}
	}
	switch {
	case x == nil:
		return nil, nil, graph.Misuse("x", "none", "(T,H)")
	case dy != nil && (dy.Format != x.Format || dy.Shape[0] != x.Shape[0] || dy.Shape[1] != x.Shape[1]):
		return nil, nil, graph.BadShape("dy", fmt.Sprintf("%s %v", dy.Format, dy.Shape), "%s %v as x", x.Format, x.Shape)
	case dy == nil && f.grads != "":
		return nil, nil, graph.Misuse("dy", "none", "the gradient of y, which -grads needs")
	}
	return x, dy, nil
}

// layerRun is a layer with its program.
type layerRun struct {
	layer *nodes.LoadedMoE
	vars  *graph.Vars
	exec  *graph.Exec
	grads *graph.Grads
	outs  []layerOutput
}

type layerOutput struct {
	name string
	v    *graph.Value
}

// run builds the layer, with the gradients of the parameters if wanted, and replays it once.
func (r *layerRun) run(dev graph.Device, x, dy *npz.Operand, params bool) error {
	g := graph.New("moe-layer")
	in := g.Input("x", x.Format, x.Shape...)
	y, aux := r.layer.Layer(in)
	r.outs = []layerOutput{{"y", y}, {"topk_idx", aux.TopKIdx}, {"topk_prob", aux.TopKProb}}
	written := map[*graph.Value]*npz.Operand{in: x}
	if dy != nil {
		seed := g.Input("dy", dy.Format, dy.Shape...)
		written[seed] = dy
		wrt := []*graph.Value{in}
		if params {
			wrt = append(wrt, r.layer.Parameters()...)
		}
		r.grads = g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, wrt...)
		r.outs = append(r.outs, layerOutput{"dx", r.grads.Value[0]})
		for i, v := range r.grads.Value[1:] {
			g.Output("gradient of "+wrt[1+i].Name(), v)
		}
	}
	for _, o := range r.outs {
		g.Output(o.name, o.v)
	}
	prog, err := g.Compile(dev, graph.Options{Debug: graph.Debug{Offsets: true, Poison: true}})
	if err != nil {
		return err
	}
	if r.exec, err = prog.Exec(r.vars); err != nil {
		return err
	}
	for v, o := range written {
		if err := r.exec.Write(v, layerElements(o)); err != nil {
			return err
		}
	}
	return r.exec.Replay(context.Background())
}

// layerElements views an operand's bytes as what Exec.Write takes.
func layerElements(o *npz.Operand) any {
	if o.Format == dtype.Float32 {
		return graph.View[float32](o.Array.Data)
	}
	return graph.View[uint16](o.Array.Data)
}

// write writes the gradients, then the outputs.
func (r *layerRun) write(f *layerFlags, cmd *cobra.Command) error {
	var arrays []npz.Array
	for _, o := range r.outs {
		a, err := r.array(o)
		if err != nil {
			return err
		}
		arrays = append(arrays, a)
	}
	if f.grads != "" {
		if err := r.layer.SaveGradients(f.grads, r.exec, r.grads); err != nil {
			return fmt.Errorf("-grads: %w", err)
		}
	}
	if err := npz.WriteFile(f.out, arrays); err != nil {
		return fmt.Errorf("-out: %w", pathError(f.out, err))
	}
	for _, a := range arrays {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %v\n", a.Name, a.Shape)
	}
	return nil
}

func (r *layerRun) array(o layerOutput) (npz.Array, error) {
	var dst any
	switch n := o.v.Elems(); o.v.DType() {
	case dtype.Float32:
		dst = make([]float32, n)
	case dtype.Int32:
		dst = make([]int32, n)
	default:
		dst = make([]uint16, n)
	}
	if _, err := r.exec.Read(o.v, dst); err != nil {
		return npz.Array{}, err
	}
	data, err := binary.Append(nil, binary.LittleEndian, dst)
	if err != nil {
		return npz.Array{}, err
	}
	return npz.NewOperand(o.name, npz.Dense, o.v.DType(), o.v.Shape(), data)
}

// close lets go of program and checkpoint. The variables go with the process: Vars.Free would copy them first.
func (r *layerRun) close() error {
	var err error
	if r.exec != nil {
		err = r.exec.Close()
	}
	return errors.Join(err, r.layer.Close())
}
