package runnode

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// Attr is one attribute of a Node: an option that a file gives as attr.NAME and -set as NAME=value.
type Attr struct {
	Name    string
	Kind    AttrKind
	Default any    // int, float64 or string as Kind says; nil: none, Note says what holds then
	Note    string // what Default does not tell; "required" where there must be a value
	Choices []string

	ok   func(v any) bool // beyond Kind and Choices, optional
	want string           // what ok accepts
}

// AttrKind is the type of an attribute's values.
type AttrKind uint8

// The kinds, with the Go types of values.
const (
	Int   AttrKind = iota // int
	Flag                  // int, 0 or 1
	Float                 // float64, never NaN; files may give an int
	Text                  // string, one of Choices if there are any
)

// String returns the kind's name.
func (k AttrKind) String() string { return [...]string{"integer", "flag", "number", "text"}[k] }

// Required says whether a value must be given.
func (a *Attr) Required() bool { return a.Default == nil && a.Note == required }

const required = "required"

// DefaultText says what holds where no value is given: "256", "required", "chosen".
func (a *Attr) DefaultText() string {
	if a.Default != nil {
		return fmt.Sprint(a.Default)
	}
	return a.Note
}

// Wants says which values the attribute takes.
func (a *Attr) Wants() string {
	switch {
	case len(a.Choices) > 0:
		return list(a.Choices)
	case a.want != "":
		return a.want
	case a.Kind == Flag:
		return "0 or 1"
	case a.Kind == Float:
		return "a number"
	case a.Kind == Int:
		return "an integer"
	}
	return "text"
}

// Parse turns the text of -set into a value.
func (a *Attr) Parse(text string) (any, error) {
	switch a.Kind {
	case Int, Flag:
		if n, err := strconv.Atoi(text); err == nil {
			return n, nil
		}
		return nil, a.bad(strconv.Quote(text))
	case Float:
		if x, err := strconv.ParseFloat(text, 64); err == nil {
			return x, nil
		}
		return nil, a.bad(strconv.Quote(text))
	}
	return text, nil
}

// value checks a given value and returns it in the kind's Go type.
func (a *Attr) value(v any) (any, error) {
	got := fmt.Sprint(v)
	ok := false
	switch x := v.(type) {
	case int:
		ok = a.Kind == Int || a.Kind == Float || a.Kind == Flag && (x == 0 || x == 1)
		if a.Kind == Float {
			v = float64(x)
		}
	case float64:
		ok = a.Kind == Float && !math.IsNaN(x)
		got += " (a number with a fraction)"
	case string:
		got = strconv.Quote(x)
		ok = a.Kind == Text && (len(a.Choices) == 0 || contains(a.Choices, x))
	}
	if !ok || a.ok != nil && !a.ok(v) {
		return nil, a.bad(got)
	}
	return v, nil
}

func (a *Attr) bad(got string) error { return graph.BadShape(a.Name, got, "%s", a.Wants()) }

// values are a node's attributes: what was given and the defaults.
type values struct {
	of    map[string]any
	given map[string]bool
}

// resolve checks the attributes given and fills in the defaults.
func (n *Node) resolve(attrs map[string]any) (values, error) {
	r := values{of: map[string]any{}, given: map[string]bool{}}
	names := make([]string, 0, len(attrs))
	for name := range attrs {
		names = append(names, name)
	}
	sort.Strings(names) // so that the first error is always the same one
	for _, name := range names {
		a := n.Attr(name)
		if a == nil {
			return r, graph.Misuse(name, fmt.Sprintf("attribute %q", name), "one of the node's attributes: %s", n.attrNames())
		}
		v, err := a.value(attrs[name])
		if err != nil {
			return r, err
		}
		r.of[name], r.given[name] = v, true
	}
	for _, a := range n.Attrs {
		switch {
		case r.given[a.Name]:
		case a.Default != nil:
			r.of[a.Name] = a.Default
		case a.Required():
			return r, graph.Misuse(a.Name, "none", "%s: set attribute %s", a.Wants(), a.Name)
		}
	}
	return r, nil
}

func (n *Node) attrNames() string {
	if len(n.Attrs) == 0 {
		return "it has none"
	}
	names := make([]string, len(n.Attrs))
	for i, a := range n.Attrs {
		names[i] = a.Name
	}
	return strings.Join(names, ", ")
}

// The getters of a value that the table declares with the type in question; the zero value where there is none.

func (v values) int(name string) int       { n, _ := v.of[name].(int); return n }
func (v values) flag(name string) bool     { return v.int(name) != 0 }
func (v values) float(name string) float64 { x, _ := v.of[name].(float64); return x }
func (v values) text(name string) string   { s, _ := v.of[name].(string); return s }

// dtype returns a format attribute; its choices are names of formats.
func (v values) dtype(name string) dtype.DType {
	dt, _ := dtype.Parse(v.text(name))
	return dt
}

// pair reads "128x256", whose form the attribute's check has approved; zero where it is absent.
func (v values) pair(name string) [2]int {
	p, _ := parsePair(v.text(name))
	return p
}

func parsePair(text string) (p [2]int, err error) {
	if text == "" {
		return p, nil
	}
	x, y, _ := strings.Cut(text, "x")
	if p[0], err = strconv.Atoi(x); err != nil {
		return p, err
	}
	p[1], err = strconv.Atoi(y)
	return p, err
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// list is "a", "a or b", "a, b or c".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
