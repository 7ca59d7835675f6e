package golden

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/npz"
)

// Suffixes of the two files of a case.
const (
	suffixIn  = ".in.npz"
	suffixOut = ".out.npz"
)

// Case is what a node is given and what it must answer.
type Case struct {
	Name        string
	Node        string         // as on the command line: "grouped-gemm"
	Operands    []npz.Operand  // as the file has them, conflicts among them included
	Attrs       map[string]any // int, float64 or string
	Outputs     []Output
	ExpectError []string // not empty: the node must refuse, naming one of these; no Outputs
}

// Output is one expected output, with the rules of its comparison.
type Output struct {
	Key    string      // of the file: "d.bf16"
	Name   string      // without format: "d", "wgrad.0"
	Format dtype.DType // Invalid for types that only a comparison to the byte takes
	Array  npz.Array
	Mask   *npz.Array // bool over leading axes: compare these elements only
	Equal  *npz.Array // bool over leading axes: these elements must be equal
	Exact  bool       // every bit must agree, NaN payloads aside
	Tol    float64    // relative Frobenius error; 0: the format's, and elements are bounded too
}

// Load reads the case of a path without suffix: path+".in.npz" and path+".out.npz". A file's own name will
// do, too. Operands that conflict are no error: cases that must be refused have them.
func Load(path string) (Case, error) {
	path = strings.TrimSuffix(strings.TrimSuffix(path, suffixIn), suffixOut)
	c := Case{Name: filepath.Base(path)}
	if err := c.loadOut(path + suffixOut); err != nil {
		return c, err
	}
	return c, c.loadIn(path + suffixIn)
}

// ForNode reads all cases of a node in a folder.
func ForNode(dir, node string) ([]Case, error) {
	names, err := Names(dir)
	if err != nil {
		return nil, err
	}
	var cases []Case
	for _, name := range names {
		c := Case{Name: name}
		if err := c.loadOut(filepath.Join(dir, name+suffixOut)); err != nil {
			return nil, err
		}
		if c.Node != node {
			continue
		}
		if err := c.loadIn(filepath.Join(dir, name+suffixIn)); err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func (c *Case) loadIn(path string) error {
	arrays, err := npz.ReadFile(path)
	if err != nil {
		return err
	}
	if c.Operands, c.Attrs, err = npz.Split(arrays); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (c *Case) loadOut(path string) error {
	arrays, err := npz.ReadFile(path)
	if err != nil {
		return err
	}
	if err := c.expect(arrays); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Operand is the operand of a name, for discrete ones that of an expert; npz.Dense otherwise.
func (c Case) Operand(name string, expert int) (npz.Operand, bool) {
	for _, o := range c.Operands {
		if o.Name == name && o.Expert == expert {
			return o, true
		}
	}
	return npz.Operand{}, false
}

// expect sorts the arrays of an expected file into outputs and the rules for them.
func (c *Case) expect(out []npz.Array) error {
	rules := map[string]npz.Array{}
	for _, a := range out {
		head, _, dotted := strings.Cut(a.Name, ".")
		isRule := dotted && (head == "mask" || head == "exact" || head == "tol")
		if isRule || a.Name == "node" || a.Name == "exact" || a.Name == "expect_error" {
			rules[a.Name] = a
			continue
		}
		name, format := splitOutput(a)
		c.Outputs = append(c.Outputs, Output{Key: a.Name, Name: name, Format: format, Array: a})
	}
	var err error
	texts := map[string]string{}
	for _, key := range []string{"node", "exact", "expect_error"} {
		if a, ok := rules[key]; ok {
			if texts[key], err = a.Text(); err != nil {
				return err
			}
		}
	}
	c.Node = texts["node"]
	if names := texts["expect_error"]; names != "" {
		c.ExpectError = strings.Split(names, "|")
	}
	for i := range c.Outputs {
		o := &c.Outputs[i]
		for _, name := range strings.Split(texts["exact"], ",") {
			o.Exact = o.Exact || name == o.Name
		}
		if a, ok := rules["mask."+o.Name]; ok {
			o.Mask = &a
		}
		if a, ok := rules["exact."+o.Name]; ok {
			o.Equal = &a
		}
		if a, ok := rules["tol."+o.Name]; ok {
			if o.Tol, err = number(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// splitOutput is the name of an output without format, and the format.
func splitOutput(a npz.Array) (string, dtype.DType) {
	head, tail, found := cutLast(a.Name, ".")
	if dt, err := dtype.Parse(tail); err == nil && found && head != "" {
		switch dt {
		case dtype.BFloat16, dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0:
			return head, dt
		}
	}
	switch a.DType {
	case "<f4":
		return a.Name, dtype.Float32
	case "<f2":
		return a.Name, dtype.Float16
	}
	return a.Name, dtype.Invalid
}

// cutLast is strings.Cut around the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// number reads a scalar tolerance.
func number(a npz.Array) (float64, error) {
	format := map[string]dtype.DType{"<f4": dtype.Float32, "<f8": dtype.Float64}[a.DType]
	var v [1]float64
	if err := dtype.Float64s(format, v[:], a.Data); err != nil {
		return 0, fmt.Errorf("%q: want a scalar float: %w", a.Name, err)
	}
	if v[0] <= 0 {
		return 0, fmt.Errorf("%q: got %g, want more than 0", a.Name, v[0])
	}
	return v[0], nil
}
