package runnode

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/npz"
)

const blockScaledText = "block-scaled formats are not supported yet"

// ErrBlockScaled is the kind of error of a correct call with block-scaled formats, which no node runs yet. A call
// that breaks their rules gets the error that it deserves.
var ErrBlockScaled = fmt.Errorf("%w: %s", graph.ErrUnsupported, blockScaledText)

// family is one row of the table of block-scaled formats (contracts, section 3): which factors go with which
// values, and how many values share one.
type family struct {
	name           string
	values, factor dtype.DType
	vec            int
}

var families = []family{
	{"mxfp8_e4m3", dtype.E4M3, dtype.E8M0, 32},
	{"mxfp8_e5m2", dtype.E5M2, dtype.E8M0, 32},
	{"mxfp4", dtype.E2M1, dtype.E8M0, 32},
	{"mxfp4", dtype.E2M1, dtype.E8M0, 16},
	{"nvfp4", dtype.E2M1, dtype.E4M3, 16},
}

// narrow says whether values of a format need factors.
func narrow(dt dtype.DType) bool { return dt == dtype.E4M3 || dt == dtype.E5M2 || dt == dtype.E2M1 }

// vecOf is sf_vec_size: as given, else 32 for fp8 and 16 for fp4.
func (c *call) vecOf(values dtype.DType) int {
	switch {
	case c.attr.given["sf_vec_size"]:
		return c.attr.int("sf_vec_size")
	case values == dtype.E2M1:
		return 16
	}
	return 32
}

// scaleOperands and scaleAttrs go with block-scaled operands only.
var (
	scaleOperands = []string{"sfa", "sfb", "norm_const", "global_scale_a", "global_scale_b"}
	scaleAttrs    = []string{"sf_vec_size", "discrete_col_sfd"}
)

// checkScaled holds the rules of block-scaled operands (contracts, sections 3, 7 and 8) against a call of a matrix
// product whose main output is out. Plain operands must come without factors, others without mistakes: then
// the error is ErrBlockScaled.
func checkScaled(out string) func(c *call) error {
	return func(c *call) error {
		a, b := c.in["a"][0], c.in["b"][0]
		if !narrow(a.Format) && !narrow(b.Format) && c.node.Supported() {
			return c.checkPlain(a)
		}
		if !narrow(a.Format) {
			return graph.BadDType("a", a.Format, "e4m3, e5m2 or e2m1, with factors sfa")
		}
		if b.Format != a.Format {
			return graph.BadDType("b", b.Format, "%s as a", a.Format)
		}
		f, err := c.checkFactors(a.Format)
		if err != nil {
			return err
		}
		for _, check := range []func() error{
			func() error { return c.checkFactorSizes(f) },
			func() error { return c.checkScaledOut(out, a.Format) },
			func() error { return c.checkGlobal(f) },
			c.checkScaledLayout,
		} {
			if err := check(); err != nil {
				return err
			}
		}
		return &graph.OperandError{Operand: "a", Got: a.Format.String(), Want: "bf16, f16 or f32 (" + blockScaledText + ")", Kind: ErrBlockScaled}
	}
}

// checkPlain refuses factors and their options beside operands without them.
func (c *call) checkPlain(a npz.Operand) error {
	for _, name := range scaleOperands {
		if c.has(name) {
			return graph.Misuse(name, "an operand beside a in "+a.Format.String(), "none: scales go with e4m3, e5m2 and e2m1 only")
		}
	}
	for _, name := range scaleAttrs {
		if c.attr.given[name] && (name == "sf_vec_size" || c.attr.flag(name)) {
			return graph.Misuse(name, "the attribute beside a in "+a.Format.String(), "none: scales go with e4m3, e5m2 and e2m1 only")
		}
	}
	return nil
}

// checkFactors finds the family of the operands and their factors.
func (c *call) checkFactors(values dtype.DType) (family, error) {
	for _, name := range []string{"sfa", "sfb"} {
		if !c.has(name) {
			return family{}, graph.Misuse(name, "none", "the factors of %s, which %s values need", name[2:], values)
		}
	}
	sfa, sfb := c.in["sfa"][0].Format, c.in["sfb"][0].Format
	if sfa != sfb {
		return family{}, graph.BadDType("sfb", sfb, "%s as sfa", sfa)
	}
	vec := c.vecOf(values)
	factorFits := false
	for _, f := range families {
		if f.values == values && f.factor == sfa {
			if factorFits = true; f.vec == vec {
				return f, nil
			}
		}
	}
	if !factorFits {
		return family{}, graph.BadDType("sfa", fmt.Sprintf("%s factors of %s values", sfa, values), "%s", familyText(values))
	}
	return family{}, graph.BadShape("sf_vec_size", fmt.Sprintf("%d for %s values with %s factors", vec, values, sfa), "%s", familyText(values))
}

// familyText lists the families of a value format.
func familyText(values dtype.DType) string {
	var texts []string
	for _, f := range families {
		if f.values == values {
			texts = append(texts, fmt.Sprintf("%s with sf_vec_size %d", f.factor, f.vec))
		}
	}
	return list(texts)
}

// checkFactorSizes checks the bytes of sfa and sfb where the layout follows from shapes: in wgrad it follows from
// the offsets.
func (c *call) checkFactorSizes(f family) error {
	a := c.in["a"][0]
	weights := 2 // rank of an expert's weight, and of all
	if !c.discrete("b") {
		weights++
	}
	if c.node.Name == "wgrad" || len(a.Shape) != 2 {
		return nil
	}
	layout := dtype.FactorLayout{Rows: a.Shape[0], Cols: dtype.FactorCols(a.Shape[1], f.vec), Batches: 1}
	if err := checkBytes("sfa", c.in["sfa"][0], layout); err != nil {
		return err
	}
	if c.discrete("b") != c.discrete("sfb") || len(c.in["sfb"]) != len(c.in["b"]) {
		return graph.Misuse("sfb", fmt.Sprintf("%d arrays", len(c.in["sfb"])), "%d, dense or expert by expert as b", len(c.in["b"]))
	}
	for i, sfb := range c.in["sfb"] {
		shape := c.in["b"][i].Shape
		if len(shape) != weights {
			return nil // the node's own check names it
		}
		layout := dtype.FactorLayout{Rows: shape[weights-2], Cols: dtype.FactorCols(shape[weights-1], f.vec), Batches: 1}
		if weights == 3 {
			layout.Batches = shape[0]
		}
		if err := checkBytes("sfb", sfb, layout); err != nil {
			return err
		}
	}
	return nil
}

func checkBytes(name string, o npz.Operand, layout dtype.FactorLayout) error {
	if got, want := len(o.Array.Data), layout.Bytes(); got != want {
		return graph.BadShape(name, fmt.Sprintf("%d bytes", got), "%d: %d x (%d rows, %d factors a row) in blocks of 512", want, layout.Batches, layout.Rows, layout.Cols)
	}
	return nil
}

// checkScaledOut checks the format of the main output, and norm_const, which quantized outputs need and others
// refuse.
func (c *call) checkScaledOut(out string, values dtype.DType) error {
	if out == "wgrad" {
		return nil
	}
	dt := c.attr.dtype(out + "_dtype")
	allowed := []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.E4M3, dtype.E5M2, dtype.E2M1}
	if values == dtype.E2M1 {
		allowed = []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}
	}
	var names []string
	for _, x := range allowed {
		names = append(names, x.String())
	}
	switch quantized := narrow(dt); {
	case !contains(names, dt.String()):
		return graph.BadDType(out+"_dtype", fmt.Sprintf("%s of %s operands", dt, values), "%s", list(names))
	case quantized && !c.has("norm_const"):
		return graph.Misuse("norm_const", "none", "(1,) in f32, which a quantized output needs (%s_dtype is %s)", out, dt)
	case !quantized && c.has("norm_const"):
		return graph.Misuse("norm_const", "an operand", "none: %s_dtype is %s, which is not quantized", out, dt)
	case !quantized && c.attr.flag("discrete_col_sfd"):
		return graph.Misuse("discrete_col_sfd", 1, "0: %s_dtype is %s, which is not quantized", out, dt)
	}
	return nil
}

// checkGlobal checks the global scales of wgrad: NVFP4 needs both, other families refuse them.
func (c *call) checkGlobal(f family) error {
	for _, name := range []string{"global_scale_a", "global_scale_b"} {
		if c.node.operand(name) == nil {
			continue
		}
		if want := f.name == "nvfp4"; c.has(name) && !want {
			return graph.Misuse(name, "an operand beside "+f.name, "none: global scales go with nvfp4 only")
		} else if !c.has(name) && want {
			return graph.Misuse(name, "none", "(E,) in f32, which nvfp4 needs")
		}
	}
	return nil
}

// checkScaledLayout checks majors and alignment.
func (c *call) checkScaledLayout() error {
	if align := c.attr.int("alignment"); align != 128 && align != 256 {
		return graph.BadShape("alignment", align, "128 or 256 with block-scaled operands")
	}
	if c.node.Name != "wgrad" {
		if c.attr.text("b_major") != "k" {
			return graph.BadShape("b_major", "n", "k with block-scaled operands")
		}
		return nil
	}
	if c.in["a"][0].Format == dtype.E2M1 && (c.attr.text("a_major") != "k" || c.attr.text("b_major") != "k") {
		return graph.BadShape("a_major and b_major", c.attr.text("a_major")+" and "+c.attr.text("b_major"), "k and k: e2m1 is packed along the tokens")
	}
	return nil
}
