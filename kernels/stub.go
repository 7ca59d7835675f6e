package kernels

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/moegraph/moegraph/graph"
)

// preludeName is the source that every stub includes first, where there is one: it names the types and constants
// that constants of Params may refer to.
const preludeName = "types.cuh"

// Stub returns the translation unit of a kernel: struct Params, then the source.
//
//	// rmsnorm
//	#include "types.cuh"
//	struct Params {
//	  static constexpr int Width = 768;
//	  using InType = bf16;
//	};
//	#include "rmsnorm.cuh"
//
// Integers become int where they fit and long long elsewhere, floats float or double constants of the same bits, a
// string the constant of that name, or the type where the field's name ends in Type. A field that is a struct
// becomes a struct inside Params; an embedded one gives its fields to Params; an array becomes an array.
func Stub(k graph.Kernel, src *Sources) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "// %s\n", k.Name)
	if _, ok := src.Text(preludeName); ok {
		fmt.Fprintf(&b, "#include %q\n", preludeName)
	}
	b.WriteString("struct Params {\n")
	if k.Params != nil {
		v := reflect.ValueOf(k.Params)
		if v.Kind() != reflect.Struct || !v.Type().Comparable() {
			return "", kernelError(k, "Params: got %T, want a comparable struct", k.Params)
		}
		if err := fields(&b, v, "  "); err != nil {
			return "", kernelError(k, "Params.%w", err)
		}
	}
	b.WriteString("};\n")
	if k.Inline {
		b.WriteString(k.Source)
		return b.String(), nil
	}
	if _, ok := src.Text(k.Source); !ok {
		return "", kernelError(k, "got no source %q, want one of %s", k.Source, strings.Join(src.names, ", "))
	}
	fmt.Fprintf(&b, "#include %q\n", k.Source)
	return b.String(), nil
}

func kernelError(k graph.Kernel, format string, args ...any) error {
	return fmt.Errorf("kernel %q: %w", k.Name, fmt.Errorf(format, args...))
}

func fields(b *strings.Builder, v reflect.Value, indent string) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		x := v.Field(i)
		switch {
		case f.Name == "_":
			continue
		case f.Anonymous && x.Kind() == reflect.Struct:
			if err := fields(b, x, indent); err != nil {
				return err
			}
		case x.Kind() == reflect.Struct:
			fmt.Fprintf(b, "%sstruct %s {\n", indent, f.Name)
			if err := fields(b, x, indent+"  "); err != nil {
				return fmt.Errorf("%s.%w", f.Name, err)
			}
			fmt.Fprintf(b, "%s};\n", indent)
		case x.Kind() == reflect.String && strings.HasSuffix(f.Name, "Type"):
			if err := checkName(x.String()); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			fmt.Fprintf(b, "%susing %s = %s;\n", indent, f.Name, x.String())
		default:
			decl, err := constant(f.Name, x)
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			fmt.Fprintf(b, "%sstatic constexpr %s;\n", indent, decl)
		}
	}
	return nil
}

// constant returns "type name = value".
func constant(name string, x reflect.Value) (string, error) {
	if x.Kind() != reflect.Array {
		typ, val, err := literal(x)
		return fmt.Sprintf("%s %s = %s", typ, name, val), err
	}
	if x.Len() == 0 {
		return "", fmt.Errorf("got an array of no elements, want at least one")
	}
	var typ string
	vals := make([]string, x.Len())
	for i := range vals {
		t, v, err := literal(x.Index(i))
		if err != nil {
			return "", err
		}
		if typ == "" || t == "long long" {
			typ = t
		}
		vals[i] = v
	}
	return fmt.Sprintf("%s %s[%d] = {%s}", typ, name, len(vals), strings.Join(vals, ", ")), nil
}

// literal returns a value's C++ type and spelling.
func literal(x reflect.Value) (typ, val string, err error) {
	switch x.Kind() {
	case reflect.Bool:
		return "bool", strconv.FormatBool(x.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n := x.Int()
		switch {
		case n > math.MinInt32 && n <= math.MaxInt32:
			return "int", strconv.FormatInt(n, 10), nil
		case n == math.MinInt64:
			return "long long", "(-9223372036854775807LL - 1)", nil
		}
		return "long long", strconv.FormatInt(n, 10) + "LL", nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n := x.Uint()
		switch {
		case n <= math.MaxInt32:
			return "int", strconv.FormatUint(n, 10), nil
		case n <= math.MaxUint32:
			return "unsigned", strconv.FormatUint(n, 10) + "u", nil
		}
		return "unsigned long long", strconv.FormatUint(n, 10) + "ull", nil
	case reflect.Float32:
		return float("float", "f", x.Float(), 32)
	case reflect.Float64:
		return float("double", "", x.Float(), 64)
	case reflect.String:
		return "auto", x.String(), checkName(x.String())
	}
	return "", "", fmt.Errorf("got a %s, want an integer, bool, float, string, array or struct of these", x.Type())
}

func float(typ, suffix string, x float64, bits int) (string, string, error) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "", "", fmt.Errorf("got %v, want a finite number", x)
	}
	return typ, strconv.FormatFloat(x, 'x', -1, bits) + suffix, nil
}

// checkName lets pass what names a C++ type or constant, templates and scopes included, and nothing that could end
// the declaration.
func checkName(s string) error {
	ok := s != ""
	for _, r := range s {
		ok = ok && (r == '_' || r == ':' || r == '<' || r == '>' || r == ',' || r == ' ' || r == '*' ||
			r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}
	if !ok {
		return fmt.Errorf("got %q, want the name of a C++ type or constant", s)
	}
	return nil
}
