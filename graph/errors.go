package graph

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of error, for errors.Is.
var (
	ErrShape       = errors.New("shape")       // a shape, stride, count or size does not fit
	ErrDType       = errors.New("dtype")       // a number format that the operator does not take
	ErrUnsupported = errors.New("unsupported") // a combination without a kernel or a gradient
	ErrDevice      = errors.New("device")      // a device is missing, full, or has failed
	ErrUsage       = errors.New("usage")       // calls in the wrong order, closed objects, missing operands
)

// OperandError says what is wrong with one operand or option of one node.
//
//	grouped_gemm "layer0/fc2": K: got 1004, want a multiple of 8 (16-byte rows of bf16)
type OperandError struct {
	Op, Node string // the operator's kind and the node's path name; filled in by Apply
	Operand  string // operand, option or axis
	Got      string // what was given
	Want     string // what is allowed, with a remedy where there is one
	Kind     error  // one of the Err kinds
}

// Error implements error.
func (e *OperandError) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op + " ")
	}
	if e.Node != "" {
		fmt.Fprintf(&b, "%q: ", e.Node)
	}
	b.WriteString(e.Operand + ": ")
	if e.Got != "" {
		b.WriteString("got " + e.Got + ", ")
	}
	b.WriteString("want " + e.Want)
	return b.String()
}

// Unwrap returns the error's kind.
func (e *OperandError) Unwrap() error { return e.Kind }

// BadShape is the error of an operand whose shape, size or option value does not fit.
func BadShape(operand string, got any, want string, args ...any) error {
	return bad(ErrShape, operand, got, want, args)
}

// BadDType is the error of an operand in a format that the operator does not take.
func BadDType(operand string, got any, want string, args ...any) error {
	return bad(ErrDType, operand, got, want, args)
}

// Unsupported is the error of a combination of options or operands that has no kernel.
func Unsupported(operand string, got any, want string, args ...any) error {
	return bad(ErrUnsupported, operand, got, want, args)
}

// Misuse is the error of a missing or superfluous operand.
func Misuse(operand string, got any, want string, args ...any) error {
	return bad(ErrUsage, operand, got, want, args)
}

func bad(kind error, operand string, got any, want string, args []any) error {
	text := fmt.Sprint(got)
	if s, ok := got.(shapeText); ok {
		text = string(s)
	}
	return &OperandError{Operand: operand, Got: text, Want: fmt.Sprintf(want, args...), Kind: kind}
}

type shapeText string

// usagef is an error about calls rather than operands.
func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}
