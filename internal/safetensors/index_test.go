package safetensors

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shardedDir holds two shards with a, b and c, d (one byte each, in the order of the letters), and
// this index.
func shardedDir(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	for shard, names := range map[string]string{"s1.safetensors": "ab", "sub/s2.safetensors": "cd"} {
		var tensors []Tensor
		for _, name := range names {
			tensors = append(tensors, Tensor{string(name), "U8", []int{1}, []byte(string(name))})
		}
		path := filepath.Join(dir, filepath.FromSlash(shard))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(path, tensors, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, IndexName), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpen_Index(t *testing.T) {
	dir := shardedDir(t, `{"metadata":{"total_size":4,"kind":"x"},"later":[],"weight_map":{`+
		`"a":"s1.safetensors","c":"sub/s2.safetensors","d":"sub/s2.safetensors"}}`)
	for _, path := range []string{dir, filepath.Join(dir, IndexName)} {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if diff := cmp.Diff([]string{"a", "c", "d"}, f.Names()); diff != "" {
			t.Error("names:", diff)
		}
		if diff := cmp.Diff(map[string]string{"total_size": "4", "kind": "x"}, f.Metadata()); diff != "" {
			t.Error("metadata:", diff)
		}
		for _, name := range f.Names() {
			got, _ := f.Tensor(name)
			if string(got.Data) != name {
				t.Errorf("tensor %q: got data %q", name, got.Data)
			}
		}
	}
}

func TestOpen_FolderWithOneFile(t *testing.T) {
	dir := t.TempDir()
	if err := WriteFile(filepath.Join(dir, SingleName), []Tensor{{"a", "U8", []int{1}, []byte("a")}}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, ok := f.Tensor("a"); !ok || !bytes.Equal(got.Data, []byte("a")) {
		t.Errorf("got %v (%v)", got, ok)
	}
}

func TestOpen_IndexRefuses(t *testing.T) {
	cases := map[string]struct{ index, want string }{
		"not JSON":          {`{`, "not valid JSON"},
		"no map":            {`{"metadata":{}}`, "no weight_map"},
		"map a list":        {`{"weight_map":[]}`, "want a JSON object"},
		"shard a number":    {`{"weight_map":{"a":1}}`, "want a file's name"},
		"name twice":        {`{"weight_map":{"a":"s1.safetensors","a":"s1.safetensors"}}`, "twice"},
		"parent folder":     {`{"weight_map":{"a":"../s1.safetensors"}}`, "inside the index's folder"},
		"through a folder":  {`{"weight_map":{"a":"sub/../../s1.safetensors"}}`, "inside the index's folder"},
		"absolute":          {`{"weight_map":{"a":"/s1.safetensors"}}`, "inside the index's folder"},
		"empty name":        {`{"weight_map":{"a":""}}`, "inside the index's folder"},
		"a folder":          {`{"weight_map":{"a":"sub"}}`, "regular file"},
		"not in its shard":  {`{"weight_map":{"c":"s1.safetensors"}}`, `tensor "c": the index places it in "s1.safetensors"`},
		"in no shard":       {`{"weight_map":{"a":"s1.safetensors","z":"s1.safetensors"}}`, `tensor "z"`},
		"the index a shard": {`{"weight_map":{"a":"` + IndexName + `"}}`, "header"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Open(shardedDir(t, c.index))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestOpen_IndexMissingShards(t *testing.T) {
	dir := shardedDir(t, `{"weight_map":{"a":"s1.safetensors","x":"s3.safetensors","y":"s4.safetensors"}}`)
	_, err := Open(dir)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "2 of 3 shards are missing (s3") {
		t.Errorf("got %v, want both missing shards named", err)
	}
}
