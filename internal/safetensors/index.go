package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// openIndex opens the shards of an index: {"metadata": {...}, "weight_map": {tensor: file}}. What a
// shard holds beyond the map is left out: the map says what the checkpoint is.
func (f *File) openIndex(path string) error {
	raw, err := readIndex(path)
	if err != nil {
		return err
	}
	shardOf, metadata, err := parseIndex(raw)
	if err != nil {
		return &FormatError{Path: path, Err: err}
	}
	f.metadata = metadata
	dir := filepath.Dir(path)
	shards := slices.Compact(slices.Sorted(maps.Values(shardOf)))
	if err := checkShards(path, dir, shards); err != nil {
		return err
	}
	for _, shard := range shards {
		tensors, _, err := f.openShard(filepath.Join(dir, filepath.FromSlash(shard)))
		if err != nil {
			return err
		}
		for _, t := range tensors {
			if shardOf[t.Name] == shard {
				f.tensors[t.Name] = t
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shardOf)) {
		if _, ok := f.tensors[name]; !ok {
			return &FormatError{path, name, fmt.Errorf("the index places it in %s, which does not hold it",
				quote(shardOf[name]))}
		}
	}
	return nil
}

func readIndex(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("safetensors: open %q: got a folder, device or pipe, want an index file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxHeaderBytes+1))
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if len(raw) > maxHeaderBytes {
		return nil, &FormatError{Path: path, Err: fmt.Errorf("index: got over %d bytes, want fewer", maxHeaderBytes)}
	}
	return raw, nil
}

func parseIndex(raw []byte) (shardOf, metadata map[string]string, err error) {
	err = parseJSON(raw, func(dec *json.Decoder, key string) error {
		switch key {
		case "metadata":
			metadata = map[string]string{}
			return parseObject(dec, func(key string) error {
				var value json.RawMessage
				if err := dec.Decode(&value); err != nil {
					return err
				}
				var text string
				if json.Unmarshal(value, &text) != nil {
					text = string(value)
				}
				metadata[key] = text
				return nil
			})
		case "weight_map":
			shardOf = map[string]string{}
			return parseObject(dec, func(name string) error {
				token, err := dec.Token()
				if err != nil {
					return err
				}
				shard, ok := token.(string)
				if !ok {
					return fmt.Errorf("weight_map: tensor %s: got %s, want a file's name", quote(name), cut(token))
				}
				// Links inside the folder may lead out of it, as in a download cache; the index,
				// which comes with the download, may not.
				if !filepath.IsLocal(filepath.FromSlash(shard)) {
					return fmt.Errorf("weight_map: tensor %s: got file %s, want one inside the index's folder",
						quote(name), quote(shard))
				}
				shardOf[name] = shard
				return nil
			})
		default:
			var ignored json.RawMessage
			return dec.Decode(&ignored)
		}
	})
	if err == nil && shardOf == nil {
		err = errors.New("got no weight_map")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	return shardOf, metadata, nil
}

// checkShards finds all missing shards at once: a download broke off, and each costs minutes.
func checkShards(indexPath, dir string, shards []string) error {
	var missing []string
	for _, shard := range shards {
		_, err := os.Stat(filepath.Join(dir, filepath.FromSlash(shard)))
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, shard)
		} else if err != nil {
			return fmt.Errorf("safetensors: %w", err)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	const most = 8
	named := cut(strings.Join(missing[:min(most, len(missing))], ", "))
	return fmt.Errorf("safetensors %q: %d of %d shards are missing (%s): %w",
		indexPath, len(missing), len(shards), named, fs.ErrNotExist)
}
