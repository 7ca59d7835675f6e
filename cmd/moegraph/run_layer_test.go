package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// writeLayer makes a checkpoint of an OLMoE layer with E 2, k 1, H 32, I 32 in a new folder, and x and dy.
func writeLayer(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	tensor := func(name string, shape ...int) safetensors.Tensor {
		values := make([]float32, shape[0]*shape[1])
		for i := range values {
			values[i] = float32(math.Sin(float64(i*i+len(name)))) / 4
		}
		data := make([]byte, 4*len(values))
		if err := dtype.Encode(dtype.Float32, data, values); err != nil {
			t.Fatal(err)
		}
		return safetensors.Tensor{Name: "model.layers.3.mlp." + name, DType: "F32", Shape: shape, Data: data}
	}
	list := []safetensors.Tensor{tensor("gate.weight", 2, 32)}
	for _, of := range []string{"experts.0.", "experts.1."} {
		for _, m := range []string{"gate_proj", "up_proj", "down_proj"} {
			list = append(list, tensor(of+m+".weight", 32, 32))
		}
	}
	config, err := json.Marshal(map[string]any{"model_type": "olmoe", "hidden_size": 32, "intermediate_size": 32, "num_experts": 2, "num_experts_per_tok": 1, "norm_topk_prob": true})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666)
	}
	if err == nil {
		err = safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), list, nil)
	}
	x := make([]float32, 3*32)
	for i := range x {
		x[i] = float32(math.Cos(float64(7 * i)))
	}
	for file, arrays := range map[string][]npz.Array{
		"both.npz":  {npz.Float32s("x", []int{3, 32}, x...), npz.Float32s("dy", []int{3, 32}, x...)},
		"x.npz":     {npz.Float32s("x", []int{3, 32}, x...)},
		"b16.npz":   {{Name: "x.bf16", DType: "<u2", Shape: []int{3, 32}, Data: make([]byte, 2*3*32)}},
		"wide.npz":  {npz.Float32s("x", []int{3, 31}, x[:93]...)},
		"more.npz":  {npz.Float32s("x", []int{3, 32}, x...), npz.Float32s("z", []int{1}, 1)},
		"attr.npz":  {npz.Float32s("x", []int{3, 32}, x...), npz.Int32s("attr.top_k", nil, 1)},
		"none.npz":  {},
		"other.npz": {npz.Float32s("x", []int{3, 32}, x...), npz.Float32s("dy", []int{2, 32}, x[:64]...)},
	} {
		if err == nil {
			err = npz.WriteFile(filepath.Join(dir, file), arrays)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// layer runs the command with files of dir.
func runLayer(dir, in string, args ...string) (status int, output string) {
	var out bytes.Buffer
	all := append([]string{"run", "moe-layer", "-weights", dir, "-layer", "3", "-in", filepath.Join(dir, in), "-out", filepath.Join(dir, "out.npz")}, args...)
	status = execute(all, &out, &out)
	return status, out.String()
}

func TestRunLayer(t *testing.T) {
	dir := writeLayer(t)
	grads := filepath.Join(dir, "grads.safetensors")
	for _, x := range []struct {
		in   string
		args []string
		want []string
	}{
		{"both.npz", []string{"-grads", grads}, []string{"y", "topk_idx", "topk_prob", "dx"}},
		{"both.npz", []string{"-params", "bf16"}, []string{"y", "topk_idx", "topk_prob", "dx"}},
		{"x.npz", []string{"-device", "host"}, []string{"y", "topk_idx", "topk_prob"}},
		{"b16.npz", nil, []string{"y.bf16", "topk_idx", "topk_prob"}},
	} {
		if status, output := runLayer(dir, x.in, x.args...); status != exitOK {
			t.Fatalf("%s %v: status %d: %s", x.in, x.args, status, output)
		}
		arrays, err := npz.ReadFile(filepath.Join(dir, "out.npz"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, a := range arrays {
			names = append(names, a.Name)
		}
		if strings.Join(names, " ") != strings.Join(x.want, " ") {
			t.Errorf("%s: got %v, want %v", x.in, names, x.want)
		}
	}
	f, err := safetensors.Open(grads)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := len(f.Names()); n != 7 {
		t.Errorf("got %d gradients, want 7", n)
	}
}

// TestRunLayer_Refuses wants one line that says what is wrong, and no file.
func TestRunLayer_Refuses(t *testing.T) {
	dir := writeLayer(t)
	for _, x := range []struct {
		in   string
		args []string
		want []string
	}{
		{"both.npz", []string{"-layer", "4"}, []string{"layers.4.mlp"}},
		{"both.npz", []string{"-params", "f17"}, []string{"-params", "f17"}},
		{"both.npz", []string{"-params", "f16"}, []string{"Params", "f32"}},
		{"both.npz", []string{"-device", "abacus"}, []string{"-device", "abacus"}},
		{"both.npz", []string{"-config", "absent.json"}, []string{"absent.json"}},
		{"x.npz", []string{"-grads", filepath.Join(dir, "g.safetensors")}, []string{"dy", "-grads"}},
		{"both.npz", []string{"-grads", filepath.Join(dir, "absent", "g.safetensors")}, []string{"-grads", "absent"}},
		{"wide.npz", nil, []string{"32", "31"}},
		{"more.npz", nil, []string{"z", "x and dy"}},
		{"attr.npz", nil, []string{"attr.top_k"}},
		{"none.npz", nil, []string{"x", "(T,H)"}},
		{"other.npz", nil, []string{"dy", "[2 32]"}},
		{"absent.npz", nil, []string{"-in", "absent.npz"}},
	} {
		status, output := runLayer(dir, x.in, x.args...)
		if status != exitFailed || strings.Count(output, "\n") != 1 {
			t.Errorf("%s %v: got status %d: %q", x.in, x.args, status, output)
		}
		for _, w := range x.want {
			if !strings.Contains(output, w) {
				t.Errorf("%s %v: got %q, want it to say %q", x.in, x.args, output, w)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "out.npz")); err == nil {
		t.Error("a refused call wrote a file")
	}
	if status, _ := runLayer(dir, "x.npz", "-layer", "three"); status != exitUsage {
		t.Errorf("a layer that is no number: got status %d, want %d", status, exitUsage)
	}
}

// TestRunLayer_Layers runs the layers of public models from file to file.
func TestRunLayer_Layers(t *testing.T) {
	dir := golden.Require(t, "layers")
	files, err := filepath.Glob(filepath.Join(dir, "*.io.npz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no layers in %s (%v)", dir, err)
	}
	for _, file := range files {
		stem := strings.TrimSuffix(file, ".io.npz")
		t.Run(filepath.Base(stem), func(t *testing.T) {
			arrays, err := npz.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]npz.Array{}
			var in []npz.Array
			for _, a := range arrays {
				want[a.Name] = a
				if a.Name == "x" || a.Name == "dy" {
					in = append(in, a)
				}
			}
			tmp := t.TempDir()
			inFile, outFile := filepath.Join(tmp, "in.npz"), filepath.Join(tmp, "out.npz")
			if err := npz.WriteFile(inFile, in); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			if execute([]string{"run", "moe-layer", "-weights", stem + ".safetensors", "-config", stem + ".json", "-in", inFile, "-out", outFile}, &log, &log) != exitOK {
				t.Fatal(log.String())
			}
			got, err := npz.ReadFile(outFile)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range got {
				if a.Name == "y" || a.Name == "dx" {
					if d := distance(t, a, want[a.Name]); !(d <= 1e-5) {
						t.Errorf("%s: relative error %.2g, want at most 1e-5", a.Name, d)
					}
				}
			}
		})
	}
}

// distance is the relative Frobenius error of float32 arrays.
func distance(t *testing.T, got, want npz.Array) float64 {
	t.Helper()
	var v [2][]float64
	for i, a := range []npz.Array{got, want} {
		v[i] = make([]float64, a.Len())
		if err := dtype.Float64s(dtype.Float32, v[i], a.Data); err != nil {
			t.Fatal(err)
		}
	}
	if len(v[0]) != len(v[1]) {
		return math.Inf(1)
	}
	var diff, norm float64
	for i, w := range v[1] {
		diff += (v[0][i] - w) * (v[0][i] - w)
		norm += w * w
	}
	return math.Sqrt(diff / norm)
}
