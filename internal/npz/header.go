package npz

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	magic = "\x93NUMPY"
	// maxHeaderBytes bounds the text before the data. NumPy itself reads at most 10,000 characters.
	maxHeaderBytes = 1 << 16
	headerAlign    = 64 // data starts at a multiple of it
)

// readHeader reads what stands before the data of a .npy file, and says how many bytes that was.
func readHeader(r io.Reader) (a Array, headerBytes int64, err error) {
	var start [8]byte
	if _, err := io.ReadFull(r, start[:]); err != nil {
		return a, 0, fmt.Errorf("%w: header: %w", ErrInvalid, noEOF(err))
	}
	if string(start[:6]) != magic {
		return a, 0, fmt.Errorf("%w: got %q at the start, want %q", ErrInvalid, start[:6], magic)
	}
	var length [4]byte
	numLength := 4
	switch major := start[6]; major {
	case 1:
		numLength = 2
	case 2, 3:
	default:
		return a, 0, fmt.Errorf("%w: version: got %d.%d, want 1.0, 2.0 or 3.0", ErrInvalid, major, start[7])
	}
	if _, err := io.ReadFull(r, length[:numLength]); err != nil {
		return a, 0, fmt.Errorf("%w: header: %w", ErrInvalid, noEOF(err))
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > maxHeaderBytes {
		return a, 0, fmt.Errorf("%w: header: got %d bytes, want at most %d", ErrInvalid, n, maxHeaderBytes)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return a, 0, fmt.Errorf("%w: header: %w", ErrInvalid, noEOF(err))
	}
	a, err = parseHeader(string(text))
	return a, int64(len(start)+numLength) + int64(n), err
}

// noEOF names an early end for what it is.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseHeader reads the Python dictionary of a header: descr, fortran_order and shape, each once.
func parseHeader(text string) (Array, error) {
	var a Array
	p := headerParser{rest: text}
	seen := map[string]bool{}
	p.expect("{")
	for p.err == nil && !p.accept("}") {
		key := p.quoted()
		p.expect(":")
		if p.err == nil && seen[key] {
			p.fail("key %q twice", key)
		}
		seen[key] = true
		switch key {
		case "descr":
			if p.peek("[") {
				p.fail("descr is a record type, want a plain one")
			}
			a.DType = p.quoted()
		case "fortran_order":
			if p.accept("True") {
				p.fail("fortran_order is True, want C order (numpy.ascontiguousarray before saving)")
			} else {
				p.expect("False")
			}
		case "shape":
			a.Shape = p.tuple()
		default:
			p.fail("unknown key %q", key)
		}
		if !p.accept(",") && !p.peek("}") {
			p.fail("want a comma or the end")
		}
	}
	if p.err == nil && strings.TrimSpace(p.rest) != "" {
		p.fail("text behind the dictionary")
	}
	if p.err == nil && len(seen) != 3 {
		p.fail("want the keys descr, fortran_order and shape")
	}
	return a, p.err
}

// headerParser walks the text. After the first failure, which err keeps, no method moves on.
type headerParser struct {
	rest string
	err  error
}

func (p *headerParser) fail(format string, args ...any) {
	if p.err == nil {
		near := p.rest[:min(len(p.rest), 24)]
		p.err = fmt.Errorf("%w: header: %s (near %q)", ErrInvalid, fmt.Sprintf(format, args...), near)
	}
}

func (p *headerParser) peek(token string) bool {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	return p.err == nil && strings.HasPrefix(p.rest, token)
}

func (p *headerParser) accept(token string) bool {
	if !p.peek(token) {
		return false
	}
	p.rest = p.rest[len(token):]
	return true
}

func (p *headerParser) expect(token string) {
	if !p.accept(token) {
		p.fail("want %q", token)
	}
}

// quoted reads a string without escapes, which none of the keys and types need.
func (p *headerParser) quoted() string {
	quote := "'"
	if p.peek(`"`) {
		quote = `"`
	}
	p.expect(quote)
	end := strings.Index(p.rest, quote)
	if p.err != nil || end < 0 {
		p.fail("want a string")
		return ""
	}
	s := p.rest[:end]
	p.rest = p.rest[end+1:]
	return s
}

// tuple reads "()", "(3,)" or "(3, 4)", with the L that Python 2 put behind long numbers.
func (p *headerParser) tuple() []int {
	shape := []int{}
	p.expect("(")
	for p.err == nil && !p.accept(")") {
		p.peek("")
		end := strings.IndexAny(p.rest, ",) ")
		if end < 0 {
			p.fail("want a tuple of dimensions")
			break
		}
		word := p.rest[:end]
		d, err := strconv.Atoi(strings.TrimSuffix(word, "L"))
		if err != nil {
			p.fail("dimension %.24q is no number that fits", word)
			break
		}
		p.rest = p.rest[end:]
		if shape = append(shape, d); len(shape) > maxDims {
			p.fail("more than %d dimensions", maxDims)
		}
		if !p.accept(",") && !p.peek(")") {
			p.fail("want a comma or a bracket")
		}
	}
	return shape
}

// header is what stands before the data of an array, in format 1.0, padded so that data is aligned.
func header(a Array) ([]byte, error) {
	shape := make([]string, len(a.Shape))
	for i, d := range a.Shape {
		shape[i] = strconv.Itoa(d)
	}
	tuple := "(" + strings.Join(shape, ", ") + ")"
	if len(shape) == 1 {
		tuple = "(" + shape[0] + ",)"
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", a.DType, tuple)
	before := len(magic) + 2 + 2
	pad := headerAlign - (before+len(text)+1)%headerAlign
	text += strings.Repeat(" ", pad%headerAlign) + "\n"
	if len(text) > 1<<16-1 {
		return nil, fmt.Errorf("%w: header of %d bytes, want less than 65536", ErrInvalid, len(text))
	}
	b := append([]byte(magic), 1, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...), nil
}
