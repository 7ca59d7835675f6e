package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

const (
	// lengthBytes is the size of the header's length at the file's start.
	lengthBytes = 8
	// maxHeaderBytes is the reference implementation's limit, for headers and here for indexes too.
	maxHeaderBytes = 100_000_000
	// metadataKey is the one header entry that is no tensor.
	metadataKey = "__metadata__"
)

// FormatError says what is wrong with a file's content, as opposed to reading it.
type FormatError struct {
	Path   string // the file: for a sharded checkpoint the shard
	Tensor string // the tensor, "" where the error is not about one
	Err    error
}

func (e *FormatError) Error() string {
	if e.Tensor != "" {
		return fmt.Sprintf("safetensors %q: tensor %s: %v", e.Path, quote(e.Tensor), e.Err)
	}
	return fmt.Sprintf("safetensors %q: %v", e.Path, e.Err)
}

func (e *FormatError) Unwrap() error { return e.Err }

// entry is one tensor of a header; begin and end (exclusive) count from the end of the header.
type entry struct {
	name       string
	dtype      string
	shape      []int
	begin, end int
}

// parse checks a whole file and returns its tensors as views of raw, and its metadata.
func parse(path string, raw []byte) ([]Tensor, map[string]string, error) {
	fail := func(format string, args ...any) ([]Tensor, map[string]string, error) {
		return nil, nil, &FormatError{Path: path, Err: fmt.Errorf(format, args...)}
	}
	if len(raw) < lengthBytes {
		return fail("file: got %d bytes, want at least %d: truncated", len(raw), lengthBytes)
	}
	headerLen := binary.LittleEndian.Uint64(raw)
	rest := raw[lengthBytes:]
	if headerLen > maxHeaderBytes {
		return fail("header: got length %d, want at most %d: not a safetensors file?", headerLen, maxHeaderBytes)
	}
	if headerLen > uint64(len(rest)) {
		return fail("header: got length %d, but %d bytes follow: truncated", headerLen, len(rest))
	}
	entries, metadata, err := parseHeader(rest[:headerLen])
	if err != nil {
		return nil, nil, formatError(path, err)
	}
	data := rest[headerLen:]
	if err := checkLayout(entries, len(data)); err != nil {
		return nil, nil, formatError(path, err)
	}
	tensors := make([]Tensor, len(entries))
	for i, e := range entries {
		// The capacity ends with the tensor: an append cannot reach into the next one.
		tensors[i] = Tensor{Name: e.name, DType: e.dtype, Shape: e.shape, Data: data[e.begin:e.end:e.end]}
	}
	return tensors, metadata, nil
}

// tensorError carries a tensor's name up to where the file's is known.
type tensorError struct {
	name string
	err  error
}

func (e *tensorError) Error() string { return fmt.Sprintf("tensor %s: %v", quote(e.name), e.err) }

func formatError(path string, err error) error {
	if t, ok := errors.AsType[*tensorError](err); ok {
		return &FormatError{Path: path, Tensor: t.name, Err: t.err}
	}
	return &FormatError{Path: path, Err: err}
}

// parseHeader reads the JSON object, in the file's order. Offsets are in order and as many as the
// shape takes; whether they fit the file is checkLayout's.
func parseHeader(header []byte) ([]entry, map[string]string, error) {
	var entries []entry
	var metadata map[string]string
	err := parseJSON(header, func(dec *json.Decoder, key string) error {
		if key == metadataKey {
			var err error
			metadata, err = parseMetadata(dec)
			return err
		}
		e, err := parseEntry(dec, key)
		if err != nil {
			return &tensorError{key, err}
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	return entries, metadata, nil
}

func parseMetadata(dec *json.Decoder) (map[string]string, error) {
	metadata := map[string]string{}
	err := parseObject(dec, func(key string) error {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		value, ok := token.(string)
		if !ok {
			return fmt.Errorf("%s: got %s, want a string", quote(key), cut(token))
		}
		metadata[key] = value
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", metadataKey, err)
	}
	return metadata, nil
}

func parseEntry(dec *json.Decoder, name string) (entry, error) {
	e := entry{name: name}
	var offsets []int
	seen := 0
	err := parseObject(dec, func(key string) (err error) {
		switch key {
		case "dtype":
			token, err := dec.Token()
			if err != nil {
				return err
			}
			dtype, ok := token.(string)
			if !ok {
				return fmt.Errorf("dtype: got %s, want a string", cut(token))
			}
			e.dtype = dtype
		case "shape":
			e.shape, err = parseInts(dec, key)
		case "data_offsets":
			offsets, err = parseInts(dec, key)
		default: // as the reference implementation, pass over what a later version may add
			var ignored json.RawMessage
			return dec.Decode(&ignored)
		}
		seen++
		return err
	})
	if err != nil {
		return e, err
	}
	if seen != 3 {
		return e, errors.New("got an entry that is incomplete, want dtype, shape and data_offsets")
	}
	if len(offsets) != 2 || offsets[0] > offsets[1] {
		return e, fmt.Errorf("data_offsets: got %s, want a begin and an end not before it", formatShape(offsets))
	}
	e.begin, e.end = offsets[0], offsets[1]
	size, err := byteSize(e.dtype, e.shape)
	if err != nil {
		return e, err
	}
	if size != e.end-e.begin {
		return e, fmt.Errorf("data_offsets: got %v, %d bytes, want the %d that %s of %s takes",
			offsets, e.end-e.begin, size, formatShape(e.shape), e.dtype)
	}
	return e, nil
}

// checkLayout demands that the tensors cover dataBytes one after another, without hole or overlap:
// two readers then cannot see different content in one file. It sorts entries by place.
func checkLayout(entries []entry, dataBytes int) error {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	next := 0
	for _, e := range entries {
		if e.begin != next {
			return &tensorError{e.name, fmt.Errorf("data_offsets: got begin %d, want %d, where the tensor "+
				"before it ends (no hole, no overlap)", e.begin, next)}
		}
		if e.end > dataBytes {
			return &tensorError{e.name, fmt.Errorf("data_offsets: got end %d, but the file holds %d bytes of "+
				"data: truncated", e.end, dataBytes)}
		}
		next = e.end
	}
	if next != dataBytes {
		return fmt.Errorf("data: got %d bytes after the last tensor, want none", dataBytes-next)
	}
	return nil
}

// parseJSON reads data as one JSON object and calls value for each key; value consumes what follows
// from dec.
func parseJSON(data []byte, value func(dec *json.Decoder, key string) error) error {
	if !utf8.Valid(data) {
		return errors.New("not valid UTF-8")
	}
	if !json.Valid(data) { // the token reader below would let some mistakes pass
		return errors.New("not valid JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := parseObject(dec, func(key string) error { return value(dec, key) }); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("got more after the JSON object, want spaces only")
	}
	return nil
}

// parseObject reads one object token by token, because decoding into a map or a struct would let the
// last of two equal keys win silently.
func parseObject(dec *json.Decoder, value func(key string) error) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return fmt.Errorf("got %s, want a JSON object", cut(token))
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key := token.(string) // an object's key: the JSON is valid
		if seen[key] {
			return fmt.Errorf("got the name %s twice", quote(key))
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

func parseInts(dec *json.Decoder, field string) ([]int, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('[') {
		return nil, fmt.Errorf("%s: got %s, want a list of numbers", field, cut(token))
	}
	ints := []int{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%s: got %s, want numbers", field, cut(token))
		}
		n, err := strconv.Atoi(number.String())
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s: got %s, want a whole number from 0 on", field, cut(number))
		}
		ints = append(ints, n)
	}
	_, err = dec.Token()
	return ints, err
}
