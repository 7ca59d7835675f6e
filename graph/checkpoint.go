package graph

import (
	"fmt"
	"sort"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// fileTypes are the safetensors names of the formats.
var fileTypes = map[dtype.DType]string{
	dtype.Float64: "F64", dtype.Float32: "F32", dtype.Float16: "F16", dtype.BFloat16: "BF16",
	dtype.Int32: "I32", dtype.Int64: "I64", dtype.Uint8: "U8", dtype.Uint64: "U64",
	dtype.E4M3: "F8_E4M3", dtype.E5M2: "F8_E5M2", dtype.E8M0: "F8_E8M0", dtype.E2M1: "F4",
}

// Save writes every variable, parameters and state, to a safetensors file, under its name. The file appears whole
// or not at all. It waits for replays that write.
func (v *Vars) Save(path string, metadata map[string]string) error {
	v.s.replay.RLock()
	defer v.s.replay.RUnlock()
	if err := v.s.issued.settle(false); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	var ts []safetensors.Tensor
	for _, x := range v.s.order {
		data, err := x.contents()
		if err != nil {
			return err
		}
		ts = append(ts, safetensors.Tensor{Name: x.name, DType: fileTypes[x.dt], Shape: x.shape, Data: data})
	}
	return safetensors.WriteFile(path, ts, metadata)
}

// Load sets every variable from a file that Save wrote and returns the file's metadata. The file must hold exactly
// the variables that exist, in their formats and shapes; else nothing is changed.
func (v *Vars) Load(path string) (map[string]string, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	v.s.replay.Lock()
	defer v.s.replay.Unlock()
	if err := v.s.issued.settle(true); err != nil {
		return nil, err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if err := v.s.matches(f); err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	for _, x := range v.s.order {
		t, _ := f.Tensor(x.name)
		if err := x.store1(append([]byte(nil), t.Data...)); err != nil {
			return nil, err
		}
	}
	return f.Metadata(), nil
}

// matches compares names, formats and shapes.
func (s *varStore) matches(f *safetensors.File) error {
	var missing []string
	for _, x := range s.order {
		t, ok := f.Tensor(x.name)
		if !ok {
			missing = append(missing, x.name)
			continue
		}
		if t.DType != fileTypes[x.dt] || shapeString(t.Shape, false) != shapeString(x.shape, false) {
			return fmt.Errorf("%q: %w", x.name, BadShape("tensor", t.DType+" "+shapeString(t.Shape, false), "%s %s", fileTypes[x.dt], shapeString(x.shape, false)))
		}
	}
	var extra []string
	for _, name := range f.Names() {
		if s.named[name] == nil {
			extra = append(extra, name)
		}
	}
	if len(missing)+len(extra) > 0 {
		sort.Strings(missing)
		return usagef("the variables differ: missing from the file [%s], unknown [%s]", strings.Join(missing, ", "), strings.Join(extra, ", "))
	}
	return nil
}
