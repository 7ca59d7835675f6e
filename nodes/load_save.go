package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// saveMetadata is what readers of these checkpoints ask for.
var saveMetadata = map[string]string{"format": "pt"}

// Save writes the layer to one safetensors file, complete or not at all: the tensors that LoadMoE read, under
// their names, in their shapes and formats, with the values that the variables have now. A layer that nothing has
// updated comes out bit for bit (codes of NaN aside), unless Params rounded it. The path may be the file
// that the layer was loaded from. Of a sharded checkpoint too one file is written, for this layer alone.
// No replay may update the variables meanwhile.
//
// Memory: one copy of the layer in the file's format while it is written.
func (l *LoadedMoE) Save(path string) error {
	err := l.save(path, false, func(p *loadParam) (blockReader, dtype.DType, error) {
		return func(block int, dst []byte) error {
			return l.vars.ReadBytes(p.value, int64(block)*int64(len(dst)), dst)
		}, p.dt, nil
	})
	if err != nil {
		return fmt.Errorf("save_moe: %w", err)
	}
	return nil
}

// SaveGradients writes the gradients of all parameters, which exec holds as outputs, to one safetensors file
// under the names and in the shapes of the checkpoint's tensors, in float32. Tensors without a gradient, as
// DeepSeek-V3's selection bias, are left out.
func (l *LoadedMoE) SaveGradients(path string, exec *graph.Exec, grads *graph.Grads) error {
	err := l.save(path, true, func(p *loadParam) (blockReader, dtype.DType, error) {
		v := grads.Get(p.value)
		if v == nil {
			got := fmt.Sprintf("none of %q", p.value.Name())
			return nil, 0, graph.Misuse("grads", got, "the gradient of every parameter of the layer")
		}
		dense, err := exec.Dense(v) // a view where it is float32 on the host
		if err != nil {
			return nil, 0, err
		}
		all, ok := dense.Data().([]float32)
		if !ok {
			return nil, 0, graph.BadDType("grads", v.Text(), "f32, bf16 or f16")
		}
		n := p.rows * p.cols
		return func(block int, dst []byte) error {
			copy(dst, bytesOf(all[block*n:(block+1)*n]))
			return nil
		}, dtype.Float32, nil
	})
	if err != nil {
		return fmt.Errorf("save_moe: gradients: %w", err)
	}
	return nil
}

// blockReader reads a block of a variable or of its gradient.
type blockReader func(block int, dst []byte) error

// save converts variables or gradients back, block by block. values returns what reads the blocks, and the
// format that it reads.
func (l *LoadedMoE) save(path string, grads bool, values func(*loadParam) (blockReader, dtype.DType, error)) error {
	out := map[*loadTensor]safetensors.Tensor{}
	for _, p := range l.params {
		if grads && p.kind != graph.Param {
			continue
		}
		read, dt, err := values(p)
		if err != nil {
			return err
		}
		block := make([]byte, p.blockBytes())
		if grads {
			block = make([]byte, dt.Bytes(p.rows*p.cols))
		}
		for i, parts := range p.blocks {
			if err := read(i, block); err != nil {
				return err
			}
			for _, part := range parts {
				t := part.tensor
				to := t.dt
				if grads {
					to = dtype.Float32
				}
				if _, ok := out[t]; !ok {
					out[t] = t.empty(to)
				}
				if err := part.move(block, dt, p.cols, out[t].Data, to, true); err != nil {
					return fmt.Errorf("tensor %q: %w", t.name, err)
				}
			}
		}
	}
	var list []safetensors.Tensor
	for _, t := range l.tensors {
		if st, ok := out[t]; ok {
			list = append(list, st)
		}
	}
	return safetensors.WriteFile(path, list, saveMetadata)
}

// empty is a tensor of the same name and shape with room for its elements in format dt.
func (t *loadTensor) empty(dt dtype.DType) safetensors.Tensor {
	n := 1
	for _, d := range t.shape {
		n *= d
	}
	st := safetensors.Tensor{Name: t.name, Shape: t.shape, Data: make([]byte, dt.Bytes(n))}
	if dt == dtype.Uint8 {
		st.DType = packedType
	}
	for name, f := range loadFormats {
		if f == dt {
			st.DType = name
		}
	}
	return st
}
