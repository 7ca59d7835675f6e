package npz

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/moegraph/moegraph/dtype"
)

// attrPrefix begins the keys of attributes.
const attrPrefix = "attr."

// maxExperts bounds the expert of a discrete operand.
const maxExperts = 1024

// Dense is the Expert of a key that names no expert.
const Dense = -1

// suffixed are the formats that NumPy lacks, with the type their codes are stored in. A key tells them by
// a suffix, ".bf16" for one.
var suffixed = map[dtype.DType]string{
	dtype.BFloat16: "<u2", dtype.E4M3: "|u1", dtype.E5M2: "|u1", dtype.E2M1: "|u1", dtype.E8M0: "|u1",
}

// plain are the formats that NumPy has.
var plain = map[dtype.DType]string{
	dtype.Float64: "<f8", dtype.Float32: "<f4", dtype.Float16: "<f2",
	dtype.Int32: "<i4", dtype.Int64: "<i8", dtype.Uint8: "|u1", dtype.Uint64: "<u8",
}

// Key is the name of an array in a file of operands: an attribute "attr.NAME", an operand "NAME",
// "NAME.FORMAT", or one expert's share of it, "NAME.EXPERT" or "NAME.EXPERT.FORMAT".
type Key struct {
	Name   string      // of the operand or attribute, lower case
	Expert int         // of a discrete operand; Dense otherwise
	Suffix dtype.DType // the format that the suffix gives; Invalid without one
	Attr   bool        // an attribute: Expert is Dense, Suffix is Invalid
}

// ParseKey is the inverse of Key.String. Errors wrap ErrInvalid and quote the key.
func ParseKey(key string) (Key, error) {
	if name, ok := strings.CutPrefix(key, attrPrefix); ok {
		if !isName(name) {
			return Key{}, fmt.Errorf("%w: key %q: want a lower-case name behind \"attr.\"", ErrInvalid, key)
		}
		return Key{Name: name, Expert: Dense, Attr: true}, nil
	}
	parts := strings.Split(key, ".")
	k := Key{Name: parts[0], Expert: Dense}
	parts = parts[1:]
	if n := len(parts); n > 0 {
		if dt, err := dtype.Parse(parts[n-1]); err == nil && suffixed[dt] != "" {
			k.Suffix, parts = dt, parts[:n-1]
		}
	}
	if len(parts) == 1 {
		e, err := strconv.Atoi(parts[0])
		if err != nil || e < 0 || e >= maxExperts || strconv.Itoa(e) != parts[0] {
			return Key{}, fmt.Errorf("%w: key %q: got %q, want an expert (0 to %d) or a format (bf16, e4m3, e5m2, e2m1, e8m0)",
				ErrInvalid, key, parts[0], maxExperts-1)
		}
		k.Expert, parts = e, nil
	}
	if len(parts) > 0 || !isName(k.Name) {
		return Key{}, fmt.Errorf("%w: key %q: want NAME, NAME.FORMAT, NAME.EXPERT or NAME.EXPERT.FORMAT", ErrInvalid, key)
	}
	return k, nil
}

// isName reports whether s is a lower-case identifier.
func isName(s string) bool {
	for i, c := range s {
		letter := c == '_' || 'a' <= c && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// String is the key as it stands in a file.
func (k Key) String() string {
	if k.Attr {
		return attrPrefix + k.Name
	}
	s := k.Name
	if k.Expert != Dense {
		s += "." + strconv.Itoa(k.Expert)
	}
	if k.Suffix != dtype.Invalid {
		s += "." + k.Suffix.String()
	}
	return s
}

// Format is the format of an operand's array: the key's suffix, which must go with the stored type, or
// the stored type itself. Types that no operand has are refused.
func (k Key) Format(a Array) (dtype.DType, error) {
	if k.Suffix != dtype.Invalid {
		if want := suffixed[k.Suffix]; a.DType != want {
			return dtype.Invalid, fmt.Errorf("%w: operand %q: %s stored as %s, want %s",
				ErrInvalid, k.String(), k.Suffix, a.DType, want)
		}
		return k.Suffix, nil
	}
	for dt, descr := range plain {
		if a.DType == descr {
			return dt, nil
		}
	}
	return dtype.Invalid, fmt.Errorf("%w: operand %q: stored as %s, which is no operand's format (bf16 codes in <u2 "+
		"need a key that ends in .bf16)", ErrInvalid, k.String(), a.DType)
}

// ValueShape is the shape in elements of an array of the given format. It differs from the stored shape
// for E2M1 only, whose last dimension counts bytes of two codes.
func ValueShape(dt dtype.DType, stored []int) []int {
	shape := append([]int(nil), stored...)
	if n := len(shape); n > 0 && dt == dtype.E2M1 {
		shape[n-1] *= 2
	}
	return shape
}

// NewOperand makes the array of an operand from its bytes: shape is in elements, expert is Dense or an
// index. It is the inverse of Split and writes outputs under the keys that inputs have.
func NewOperand(name string, expert int, dt dtype.DType, shape []int, data []byte) (Array, error) {
	k := Key{Name: name, Expert: expert}
	a := Array{DType: plain[dt], Shape: append([]int{}, shape...), Data: data}
	if descr := suffixed[dt]; descr != "" {
		k.Suffix, a.DType = dt, descr
	}
	a.Name = k.String()
	if n := len(shape); dt == dtype.E2M1 {
		if n == 0 || shape[n-1]%2 != 0 {
			return a, fmt.Errorf("%w: operand %q: shape %v, want an even last dimension (two codes a byte)",
				ErrInvalid, a.Name, shape)
		}
		a.Shape[n-1] /= 2
	}
	if err := a.Check(); err != nil {
		return a, fmt.Errorf("operand %q: %w", a.Name, err)
	}
	return a, nil
}
