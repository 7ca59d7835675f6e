//go:build gpu

package nodes

import (
	"fmt"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// BenchmarkGPU_Quantize reports the bytes that Quantize and Dequantize read and write in a second, beside those of a copy
// of the same matrix, which is what they are measured by.
func BenchmarkGPU_Quantize(b *testing.B) {
	dev := openGPU(b)
	const rows, cols = 8192, 16384
	x := make([]uint16, rows*cols)
	state := uint32(1)
	for i := range x { // both signs, magnitudes from 2^-8 to 2^8
		state = state*1664525 + 1013904223
		x[i] = uint16(state>>16)&0x87ff + 0x3b80
	}
	quantized := func(o Quantize) func(v *graph.Value) []*graph.Value {
		return func(v *graph.Value) []*graph.Value {
			o.X = v
			q := o.Apply()
			return []*graph.Value{q.Row, q.RowSF, q.Col, q.ColSF, q.GlobalScale}
		}
	}
	for _, c := range []struct {
		name  string
		reads int // of x
		build func(v *graph.Value) []*graph.Value
	}{
		{"copy", 1, func(v *graph.Value) []*graph.Value { return []*graph.Value{Scale(v, 1)} }},
		{"mxfp8/row", 1, quantized(Quantize{Format: MXFP8})},
		{"mxfp8/col", 1, quantized(Quantize{Format: MXFP8, Axis: AlongCol})},
		{"mxfp8/both", 1, quantized(Quantize{Format: MXFP8, Axis: AlongBoth})},
		{"mxfp8/both,transposed", 1, quantized(Quantize{Format: MXFP8, Axis: AlongBoth, TransposeCol: true})},
		{"mxfp4/both,transposed", 1, quantized(Quantize{Format: MXFP4, Axis: AlongBoth, TransposeCol: true})},
		{"nvfp4/row", 1, quantized(Quantize{Format: NVFP4})},
		{"nvfp4/both,transposed", 1, quantized(Quantize{Format: NVFP4, Axis: AlongBoth, TransposeCol: true})},
		{"nvfp4/row,auto_norm", 2, quantized(Quantize{Format: NVFP4, AutoNorm: true})},
	} {
		b.Run(c.name, func(b *testing.B) {
			g := graph.New(c.name)
			v := g.Input("x", bf16, rows, cols)
			bytes := c.reads * 2 * rows * cols
			for i, out := range c.build(v) {
				if out != nil {
					bytes += int(g.Output(fmt.Sprint("out", i), out).Bytes())
				}
			}
			measure(b, dev, g, map[*graph.Value]any{v: x}, bytes)
		})
	}
	for _, axis := range []Axis{AlongRow, AlongCol} {
		b.Run("dequantize/"+axis.String(), func(b *testing.B) {
			g := graph.New("dequantize")
			codes, sf := g.Input("codes", dtype.E4M3, rows, cols), g.Input("sf", dtype.E8M0, rows*cols/32)
			y := g.Output("y", Dequantize{X: codes, SF: sf, Format: MXFP8, Axis: axis, DType: bf16}.Apply())
			data := make([]byte, rows*cols)
			for i := range data {
				data[i] = byte(x[i])
			}
			measure(b, dev, g, map[*graph.Value]any{codes: data, sf: make([]byte, sf.Bytes())}, len(data)+len(data)/32+int(y.Bytes()))
		})
	}
}

// measure replays a graph that reads and writes so many bytes, one replay issued after the other.
func measure(b *testing.B, dev graph.Device, g *graph.Graph, data map[*graph.Value]any, bytes int) {
	must(b, g.Err())
	p, err := g.Compile(dev, graph.Options{})
	must(b, err)
	e, err := p.Exec(nil)
	must(b, err)
	defer e.Close()
	for v, x := range data {
		must(b, e.Write(v, x))
	}
	must(b, e.Replay(b.Context()))
	must(b, e.Wait())
	b.ResetTimer()
	for range b.N {
		must(b, e.Replay(b.Context()))
	}
	must(b, e.Wait())
	b.ReportMetric(float64(bytes)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
}
