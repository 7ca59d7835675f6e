package runnode

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/npz"
)

// TestTable walks the table: every row is complete, its defaults are values that it takes, its operators exist,
// and its help names everything.
func TestTable(t *testing.T) {
	kinds := map[string]bool{}
	for _, info := range graph.Operators() {
		kinds[info.Example.Kind()] = true
	}
	seen := map[string]bool{}
	for _, n := range Nodes() {
		t.Run(n.Name, func(t *testing.T) {
			if seen[n.Name] || n.Doc == "" || n.Example == "" || len(n.Operands) == 0 || len(n.Outputs) == 0 {
				t.Error("want a name of its own, a doc, an example, operands and outputs")
			}
			seen[n.Name] = true
			for _, k := range n.Kinds {
				if !kinds[k] {
					t.Errorf("operator %q is not registered", k)
				}
			}
			if n.build == nil || len(n.Kinds) == 0 || len(n.devices()) == 0 {
				t.Errorf("want build, operators and a device: got %v", n.devices())
			}
			checkAttrs(t, n)
			checkHelp(t, n)
			checkExample(t, n)
		})
	}
}

func checkAttrs(t *testing.T, n *Node) {
	for i, a := range n.Attrs {
		if n.Attr(a.Name) != &n.Attrs[i] {
			t.Errorf("attribute %s stands twice", a.Name)
		}
		if a.Default == nil && a.Note == "" {
			t.Errorf("attribute %s: want a default, or a note on what holds without one", a.Name)
		}
		if a.Default != nil {
			if v, err := a.value(a.Default); err != nil || v != a.Default {
				t.Errorf("attribute %s: default %v: %v", a.Name, a.Default, err)
			}
		}
		if _, err := a.value([]byte("no attribute is of this type")); err == nil || !strings.Contains(err.Error(), a.Name+": ") {
			t.Errorf("attribute %s takes anything, or the error does not name it: %v", a.Name, err)
		}
	}
}

func checkHelp(t *testing.T, n *Node) {
	help, row := n.Help(), NodesMarkdown()
	for _, o := range n.Operands {
		if !strings.Contains(help, "\n  "+o.Name+" ") || !strings.Contains(row, "`"+o.Name+"`") {
			t.Errorf("help or table lacks operand %s", o.Name)
		}
	}
	for _, a := range n.Attrs {
		if !strings.Contains(help, "\n  "+a.Name+" ") || !strings.Contains(row, "`"+a.Name+"`") {
			t.Errorf("help or table lacks attribute %s", a.Name)
		}
	}
}

// checkExample parses the example's attributes.
func checkExample(t *testing.T, n *Node) {
	attrs := map[string]any{}
	for _, s := range strings.Fields(n.Example) {
		name, text, _ := strings.Cut(s, "=")
		a := n.Attr(name)
		if a == nil {
			t.Errorf("example: no attribute %s", name)
			continue
		}
		var err error
		if attrs[name], err = a.Parse(text); err != nil {
			t.Error(err)
		}
	}
	if _, err := n.resolve(attrs); err != nil {
		t.Errorf("example: %v", err)
	}
}

// TestTable_Cases: every node of the golden cases is in the table.
func TestTable_Cases(t *testing.T) {
	dir := golden.Require(t, "cases")
	for _, n := range Nodes() {
		cases, err := golden.ForNode(dir, n.Name)
		if err != nil {
			t.Fatal(err)
		}
		if len(cases) == 0 && n.Name != "glu" {
			t.Errorf("%s: no golden case", n.Name)
		}
	}
}

func TestMarkdown(t *testing.T) {
	text := Markdown()
	if text != NodesMarkdown()+"\n"+OperatorsMarkdown() {
		t.Error("want the nodes, then the operators")
	}
	for _, info := range graph.Operators() {
		if strings.Count(OperatorsMarkdown(), "\n| `"+info.Example.Kind()+"` | "+strings.ReplaceAll(info.Doc, "|", `\|`)+" |") != 1 {
			t.Errorf("want one row for operator %s", info.Example.Kind())
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); line != "" && n != 7 {
			t.Errorf("got %d cells, want 6: %s", n-1, line)
		}
	}
}

// bf16 makes an operand of small numbers.
func bf16(name string, shape ...int) npz.Operand { return operand(name, dtype.BFloat16, shape...) }

func operand(name string, dt dtype.DType, shape ...int) npz.Operand {
	n := 1
	for _, d := range shape {
		n *= d
	}
	vals, data := make([]float32, n), make([]byte, dt.Bytes(n))
	for i := range vals {
		vals[i] = float32(i%7) - 3
	}
	raw, err := binary.Append(nil, binary.LittleEndian, vals)
	if err == nil && dt.IsFloat() {
		err = dtype.Convert(dt, data, dtype.Float32, raw)
	}
	if err != nil {
		panic(err)
	}
	return made(name, dt, shape, data)
}

func int32s(name string, values ...int32) npz.Operand {
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	return made(name, dtype.Int32, []int{len(values)}, data)
}

func made(name string, dt dtype.DType, shape []int, data []byte) npz.Operand {
	a, err := npz.NewOperand(name, npz.Dense, dt, shape, data)
	if err != nil {
		panic(err)
	}
	return npz.Operand{Name: name, Expert: npz.Dense, Format: dt, Shape: shape, Array: a}
}

// TestRun_Capacity: rows beyond those in use come back as zeros, and only outputs that were asked for.
func TestRun_Capacity(t *testing.T) {
	ops := []npz.Operand{bf16("a", 24, 8), bf16("b", 2, 8, 8), int32s("padded_offsets", 8, 16)}
	outs, err := Run("grouped-gemm", ops, map[string]any{"alignment": 8, "d_dtype": "f32"}, Option{Debug: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(outs) != 1 || outs[0].Name != "d" || outs[0].Shape[0] != 24 {
		t.Fatalf("got %v, want d with 24 rows", outs)
	}
	used, spare := 0, 0
	for i := 0; i < len(outs[0].Data); i += 4 {
		if x := binary.LittleEndian.Uint32(outs[0].Data[i:]); x != 0 && i < 16*8*4 {
			used++
		} else if x != 0 {
			spare++
		}
	}
	if used == 0 || spare != 0 {
		t.Errorf("got %d numbers that are not zero in use and %d beyond", used, spare)
	}
}

// TestRun_UnaskedOutput: the rules on the rows of C do not matter where nobody asks for it.
func TestRun_UnaskedOutput(t *testing.T) {
	ops := []npz.Operand{bf16("a", 8, 8), bf16("b", 1, 4, 8), int32s("padded_offsets", 8)}
	attrs := map[string]any{"alignment": 8, "d_dtype": "f32"} // rows of 4: 16 bytes in f32, 8 in bf16
	if _, err := Run("grouped-gemm", ops, attrs, Option{Debug: true}); err != nil {
		t.Error(err)
	}
	attrs["generate_c"] = 1
	if _, err := Run("grouped-gemm", ops, attrs, Option{Debug: true}); err == nil || !strings.Contains(err.Error(), "bf16 in c") {
		t.Errorf("with c: got %v", err)
	}
}

// TestRun_GLU checks the node that no golden case has against its formula.
func TestRun_GLU(t *testing.T) {
	c := operand("c", dtype.Float32, 2, 64)
	prob := made("prob", dtype.Float32, []int{2}, must(binary.Append(nil, binary.LittleEndian, []float32{0.5, 2})))
	outs, err := Run("glu", []npz.Operand{c, prob}, map[string]any{"d_dtype": "f32"}, Option{Debug: true})
	if err != nil {
		t.Fatal(err)
	}
	in, got := graph.View[float32](c.Array.Data), graph.View[float32](outs[0].Data)
	for m, p := range []float64{0.5, 2} {
		for j := range 32 {
			gate, up := float64(in[m*64+j]), float64(in[m*64+32+j])
			want := p * up * gate / (1 + math.Exp(-gate))
			if x := float64(got[m*32+j]); math.Abs(x-want) > 1e-6*math.Max(1, math.Abs(want)) {
				t.Fatalf("row %d column %d: got %v, want %v", m, j, x, want)
			}
		}
	}
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func TestRun_Refuses(t *testing.T) {
	gemm := []npz.Operand{bf16("a", 16, 8), bf16("b", 2, 8, 8), int32s("padded_offsets", 8, 16)}
	small := map[string]any{"alignment": 8}
	ragged := append([]npz.Operand{}, gemm...)
	ragged[1].Expert = 0
	for _, c := range []struct {
		name, node string
		operands   []npz.Operand
		attrs      map[string]any
		kind       error
		names      string
	}{
		{"node", "gemm", nil, nil, graph.ErrUsage, "grouped-gemm"},
		{"no operands", "grouped-gemm", nil, nil, graph.ErrUsage, "a: "},
		{"unknown operand", "grouped-gemm", append(gemm[:3:3], bf16("gamma", 8)), small, graph.ErrUsage, "gamma: "},
		{"twice", "grouped-gemm", append(gemm[:3:3], operand("a", dtype.Float32, 16, 8)), small, npz.ErrInvalid, `"a"`},
		{"expert by expert", "grouped-gemm", append(gemm[1:3:3], npz.Operand{Name: "a", Format: dtype.BFloat16, Array: npz.Array{Name: "a.0.bf16"}}), small, graph.ErrUsage, "a: "},
		{"one expert of two", "grouped-gemm", ragged, small, graph.ErrUsage, "b: "},
		{"unknown attribute", "grouped-gemm", gemm, map[string]any{"epsilon": 1}, graph.ErrUsage, "epsilon: "},
		{"text for a number", "grouped-gemm", gemm, map[string]any{"alignment": "8"}, graph.ErrShape, "alignment: "},
		{"fraction", "grouped-gemm", gemm, map[string]any{"alignment": 8.5}, graph.ErrShape, "alignment: "},
		{"zero alignment", "grouped-gemm", gemm, map[string]any{"alignment": 0}, graph.ErrShape, "alignment: "},
		{"flag of 2", "grouped-gemm", gemm, map[string]any{"generate_c": 2}, graph.ErrShape, "generate_c: "},
		{"choice", "grouped-gemm", gemm, map[string]any{"b_major": "m"}, graph.ErrShape, "b_major: "},
		{"tile", "grouped-gemm", gemm, map[string]any{"alignment": 8, "tile": "3x3"}, graph.ErrUnsupported, "tile: "},
		{"tile text", "grouped-gemm", gemm, map[string]any{"alignment": 8, "tile": "wide"}, graph.ErrShape, "tile: "},
		{"narrow output", "grouped-gemm", gemm, map[string]any{"alignment": 8, "d_dtype": "e4m3"}, graph.ErrDType, "d_dtype: "},
		{"required", "router", []npz.Operand{bf16("x", 4, 8), bf16("wr", 4, 8)}, nil, graph.ErrUsage, "top_k: "},
		{"scale 0", "router", []npz.Operand{bf16("x", 4, 8), bf16("wr", 4, 8)}, map[string]any{"top_k": 1, "scale": 0}, graph.ErrShape, "scale: "},
		{"eps NaN", "rmsnorm", []npz.Operand{bf16("x", 4, 8), bf16("weight", 8)}, map[string]any{"eps": math.NaN()}, graph.ErrShape, "eps: "},
		{"memory", "dispatch", []npz.Operand{made("topk_idx", dtype.Int32, []int{1, 1}, make([]byte, 4)), bf16("x", 1, 1024)},
			map[string]any{"num_experts": 1, "alignment": 1, "capacity": 1 << 30}, graph.ErrShape, "outputs and workspaces: "},
		{"accumulate", "wgrad", []npz.Operand{bf16("a", 8, 8), bf16("b", 8, 8), int32s("offsets", 8), bf16("wgrad", 1, 8, 8)}, small, graph.ErrUsage, "wgrad: "},
		{"offsets of wgrad", "wgrad", []npz.Operand{bf16("a", 8, 16), bf16("b", 16, 8), int32s("offsets", 12)}, small, graph.ErrShape, " offsets: "},
		{"row_map", "combine", []npz.Operand{bf16("d", 4, 8), made("row_map", dtype.Int32, []int{1, 1}, []byte{4, 0, 0, 0})}, nil, graph.ErrShape, "row_map: "},
		{"encode", "encode", []npz.Operand{bf16("x", 4)}, map[string]any{"format": "e4m3"}, graph.ErrDType, "x: "},
		{"odd e2m1", "encode", []npz.Operand{operand("x", dtype.Float32, 3)}, map[string]any{"format": "e2m1"}, graph.ErrShape, "x: "},
		{"decode", "decode", []npz.Operand{bf16("x", 4)}, map[string]any{"format": "e4m3"}, graph.ErrDType, "x: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Run(c.node, c.operands, c.attrs, Option{Debug: true})
			if err == nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("got %v, want kind %q and %q in it", err, c.kind, c.names)
			}
		})
	}
}

// scaled makes a correct call of an MXFP8 product, to be spoiled.
func scaled() ([]npz.Operand, map[string]any) {
	return []npz.Operand{
		operand("a", dtype.E4M3, 128, 32), operand("b", dtype.E4M3, 1, 32, 32), operand("sfa", dtype.E8M0, 512), operand("sfb", dtype.E8M0, 512),
		int32s("padded_offsets", 128), operand("prob", dtype.Float32, 128),
	}, map[string]any{"alignment": 128}
}

// TestRun_BlockScaled: a correct call with block-scaled operands runs; one that breaks a rule of the formats is refused
// for that rule.
func TestRun_BlockScaled(t *testing.T) {
	ops, attrs := scaled()
	if outs, err := Run("grouped-gemm-quant", ops, attrs, Option{}); err != nil || len(outs) != 2 {
		t.Errorf("a correct call: got %d outputs and error %v, want d and amax", len(outs), err)
	}
	replace := func(o npz.Operand) func([]npz.Operand, map[string]any) []npz.Operand {
		return func(ops []npz.Operand, _ map[string]any) []npz.Operand {
			for i := range ops {
				if ops[i].Name == o.Name {
					ops[i] = o
					return ops
				}
			}
			return append(ops, o)
		}
	}
	set := func(name string, v any) func([]npz.Operand, map[string]any) []npz.Operand {
		return func(ops []npz.Operand, attrs map[string]any) []npz.Operand {
			attrs[name] = v
			return ops
		}
	}
	for name, c := range map[string]struct {
		spoil func([]npz.Operand, map[string]any) []npz.Operand
		names string
	}{
		"a plain":          {replace(bf16("a", 128, 32)), "a: "},
		"b plain":          {replace(bf16("b", 1, 32, 32)), "b: "},
		"b other":          {replace(operand("b", dtype.E5M2, 1, 32, 32)), "b: "},
		"sfa short":        {replace(operand("sfa", dtype.E8M0, 511)), "sfa: "},
		"sfb long":         {replace(operand("sfb", dtype.E8M0, 1024)), "sfb: "},
		"sfb other":        {replace(operand("sfb", dtype.E4M3, 512)), "sfb: "},
		"vec":              {set("sf_vec_size", 16), "sf_vec_size: "},
		"vec 8":            {set("sf_vec_size", 8), "sf_vec_size: "},
		"to f32":           {set("d_dtype", "f32"), "d_dtype: "},
		"no norm_const":    {set("d_dtype", "e2m1"), "norm_const: "},
		"norm_const":       {replace(operand("norm_const", dtype.Float32, 1)), "norm_const: "},
		"discrete_col_sfd": {set("discrete_col_sfd", 1), "discrete_col_sfd: "},
		"alignment":        {set("alignment", 64), "alignment: "},
		"b_major":          {set("b_major", "n"), "b_major: "},
	} {
		ops, attrs := scaled()
		ops = c.spoil(ops, attrs)
		_, err := Run("grouped-gemm-quant", ops, attrs, Option{})
		if err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: got %v, want an error that names %q", name, err, c.names)
		}
	}
}

// TestRun_Codec runs every format there and back, in shapes of every rank.
func TestRun_Codec(t *testing.T) {
	for _, format := range []string{"bf16", "f16", "e4m3", "e5m2", "e2m1", "e8m0"} {
		for _, shape := range [][]int{{}, {2}, {3, 4}, {2, 3, 6}} {
			if len(shape) == 0 && format == "e2m1" {
				continue // two codes a byte need a dimension
			}
			x := operand("x", dtype.Float32, shape...)
			for i := 0; i < len(x.Array.Data); i += 4 {
				binary.LittleEndian.PutUint32(x.Array.Data[i:], math.Float32bits(float32(int(1)<<(i/4%3))))
			}
			codes, err := Run("encode", []npz.Operand{x}, map[string]any{"format": format}, Option{})
			if err != nil {
				t.Fatalf("encode %s %v: %v", format, shape, err)
			}
			dt, _ := dtype.Parse(format)
			back, err := Run("decode", []npz.Operand{{Name: "x", Expert: npz.Dense, Format: dt, Shape: shape, Array: codes[0]}}, map[string]any{"format": format}, Option{})
			if err != nil {
				t.Fatalf("decode %s %v: %v", format, shape, err)
			}
			if !slices.Equal(back[0].Data, x.Array.Data) {
				t.Errorf("%s %v: 1, 2 and 4 came back as %x", format, shape, back[0].Data)
			}
		}
	}
}
