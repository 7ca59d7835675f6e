package nodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/moegraph/moegraph/graph"
)

// Bounds of what a configuration may say, far above any model and far from overflow in products.
const (
	maxConfigBytes = 16 << 20
	maxConfigWidth = 1 << 24
)

// modelConfig reads values of a configuration. The first mistake is kept in err; after it, values are zero.
type modelConfig struct {
	values map[string]json.RawMessage
	err    error
}

// readModel reads a configuration and returns the layer that it describes.
func readModel(path string) (MoE, *architecture, error) {
	raw, err := readConfigFile(path)
	if err != nil {
		return MoE{}, nil, err
	}
	c := &modelConfig{}
	if err := json.Unmarshal(raw, &c.values); err != nil || c.values == nil {
		return MoE{}, nil, graph.BadShape("configuration", fmt.Sprintf("no JSON object (%v)", err), "a config.json")
	}
	modelType := c.text("model_type", "")
	if c.err != nil {
		return MoE{}, nil, c.err
	}
	for _, a := range architectures {
		if a.modelType == modelType {
			cfg := a.config(c)
			if c.err == nil && cfg.TopK > cfg.Experts {
				c.err = graph.BadShape("num_experts_per_tok", cfg.TopK, "at most the %d experts", cfg.Experts)
			}
			return cfg, a, c.err
		}
	}
	var known []string
	for _, a := range architectures {
		known = append(known, a.modelType)
	}
	got := fmt.Sprintf("%.100q", modelType)
	return MoE{}, nil, graph.Unsupported("model_type", got, "one of %s", strings.Join(known, ", "))
}

func readConfigFile(path string) ([]byte, error) {
	// Before opening, because opening a pipe waits for its other end.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("got a folder, device or pipe, want the model's config.json")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(raw) > maxConfigBytes {
		err = fmt.Errorf("got more than %d bytes, want the model's config.json", maxConfigBytes)
	}
	return raw, err
}

// find returns the value of the first of the names that the configuration has; null counts as absent.
func (c *modelConfig) find(names ...string) (name string, value json.RawMessage) {
	for _, n := range names {
		if v, ok := c.values[n]; ok && string(v) != "null" {
			return n, v
		}
	}
	return names[0], nil
}

func (c *modelConfig) fail(name string, value json.RawMessage, want string, args ...any) {
	if c.err != nil {
		return
	}
	got := "none"
	if value != nil {
		got = fmt.Sprintf("%.60s", value)
	}
	c.err = graph.BadShape(name, got, want, args...)
}

// number returns the whole number, from lo to hi, under one of the names.
func (c *modelConfig) number(lo, hi int, names ...string) int {
	name, v := c.find(names...)
	var n json.Number
	if v == nil || decodeNumber(v, &n) != nil {
		c.fail(name, v, "a whole number from %d to %d", lo, hi)
		return 0
	}
	i, err := n.Int64()
	if err != nil || i < int64(lo) || i > int64(hi) {
		c.fail(name, v, "a whole number from %d to %d", lo, hi)
		return 0
	}
	return int(i)
}

// width is number for a width of activations.
func (c *modelConfig) width(name string) int { return c.number(1, maxConfigWidth, name) }

// gluWidth is width for a width that activations come in blocks of.
func (c *modelConfig) gluWidth(name string) int {
	n := c.width(name)
	if n%gluBlock != 0 {
		c.fail(name, c.values[name], "a multiple of %d (gate and up come in blocks of %d)", gluBlock, gluBlock)
	}
	return n
}

func (c *modelConfig) experts() int {
	return c.number(1, MaxExperts, "num_local_experts", "num_experts", "n_routed_experts")
}

func (c *modelConfig) topK() int {
	return c.number(1, MaxExperts, "num_experts_per_tok", "experts_per_token")
}

// positive returns a finite float above 0, the default where it is absent; a default of 0 means that it must be
// given.
func (c *modelConfig) positive(name string, def float64) float64 {
	_, v := c.find(name)
	if v == nil && def != 0 {
		return def
	}
	var n json.Number
	if v == nil || decodeNumber(v, &n) != nil {
		c.fail(name, v, "a number above 0")
		return 1
	}
	f, err := n.Float64()
	if err != nil || !(f > 0) || f > math.MaxFloat32 {
		c.fail(name, v, "a number above 0")
		return 1
	}
	return f
}

// flag returns a bool that must be given.
func (c *modelConfig) flag(name string) bool {
	_, v := c.find(name)
	switch string(bytes.TrimSpace(v)) {
	case "true":
		return true
	case "false":
	default:
		c.fail(name, v, "true or false")
	}
	return false
}

// text returns a string, the default where it is absent; an empty default means that it must be given.
func (c *modelConfig) text(name, def string) string {
	_, v := c.find(name)
	if v == nil && def != "" {
		return def
	}
	var s string
	if v == nil || json.Unmarshal(v, &s) != nil {
		c.fail(name, v, "a string")
	}
	return s
}

// is requires a string, where it is given, to be want.
func (c *modelConfig) is(name, want string) {
	if got := c.text(name, want); c.err == nil && got != want {
		c.err = graph.Unsupported(name, fmt.Sprintf("%.100q", got), "%q", want)
	}
}

// decodeNumber refuses a number in quotes, which json.Number would take.
func decodeNumber(v json.RawMessage, n *json.Number) error {
	if len(v) > 0 && v[0] == '"' {
		return errors.New("a string")
	}
	return json.Unmarshal(v, n)
}
