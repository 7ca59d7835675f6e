package kernels

import (
	"math"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

type common struct {
	Width int
	Fast  bool
}

type everything struct {
	common
	Format dtype.DType
	Big    int
	Low    int64
	Mask   uint32
	Huge   uint64
	Scale  float32
	Wide   float64
	InType string
	Mode   string
	Act    struct{ Alpha float32 }
	Tile   [2]int
}

func TestStub(t *testing.T) {
	src := NewSources(map[string]string{"k.cuh": "x"})
	p := everything{common: common{768, true}, Format: dtype.BFloat16, Big: 1 << 40, Low: math.MinInt64, Mask: 1 << 31,
		Huge: math.MaxUint64, Scale: 0.1, Wide: 0.1, InType: "Pair<float, 2>", Mode: "kMode::Fast", Tile: [2]int{64, 128}}
	p.Act.Alpha = 1.5
	got, err := Stub(graph.Kernel{Name: "k", Source: "k.cuh", Params: p}, src)
	if err != nil {
		t.Fatal(err)
	}
	want := `// k
struct Params {
  static constexpr int Width = 768;
  static constexpr bool Fast = true;
  static constexpr int Format = 4;
  static constexpr long long Big = 1099511627776LL;
  static constexpr long long Low = (-9223372036854775807LL - 1);
  static constexpr unsigned Mask = 2147483648u;
  static constexpr unsigned long long Huge = 18446744073709551615ull;
  static constexpr float Scale = 0x1.99999ap-04f;
  static constexpr double Wide = 0x1.999999999999ap-04;
  using InType = Pair<float, 2>;
  static constexpr auto Mode = kMode::Fast;
  struct Act {
    static constexpr float Alpha = 0x1.8p+00f;
  };
  static constexpr int Tile[2] = {64, 128};
};
#include "k.cuh"
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	src = NewSources(map[string]string{"k.cuh": "x", "types.cuh": ""})
	if got, err := Stub(graph.Kernel{Name: "k", Source: "k.cuh"}, src); err != nil || got != "// k\n#include \"types.cuh\"\nstruct Params {\n};\n#include \"k.cuh\"\n" {
		t.Errorf("with a prelude: %q, %v", got, err)
	}
	src = NewSources(map[string]string{"k.cuh": "x"})
	inline, err := Stub(graph.Kernel{Name: "k", Source: "extern ...", Inline: true}, src)
	if err != nil || inline != "// k\nstruct Params {\n};\nextern ..." {
		t.Errorf("inline: %q, %v", inline, err)
	}
}

func TestStub_Refuses(t *testing.T) {
	src := NewSources(map[string]string{"k.cuh": "x", "m.cuh": "y"})
	for _, c := range []struct {
		k    graph.Kernel
		want string
	}{
		{graph.Kernel{Name: "k", Source: "none.cuh"}, `kernel "k": got no source "none.cuh", want one of k.cuh, m.cuh`},
		{graph.Kernel{Name: "k", Source: "k.cuh", Params: 3}, "Params: got int, want a comparable struct"},
		{graph.Kernel{Name: "k", Source: "k.cuh", Params: struct{ X any }{}}, "Params.X: got a interface {}"},
		{graph.Kernel{Name: "k", Source: "k.cuh", Params: struct{ X string }{"1; bad"}}, `Params.X: got "1; bad", want the name`},
		{graph.Kernel{Name: "k", Source: "k.cuh", Params: struct{ XType string }{}}, `Params.XType: got ""`},
		{graph.Kernel{Name: "k", Source: "k.cuh", Params: struct{ X float64 }{math.Inf(1)}}, "want a finite number"},
	} {
		if _, err := Stub(c.k, src); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// TestKey: everything that a cubin depends on enters its key, and nothing else.
func TestKey(t *testing.T) {
	src := NewSources(map[string]string{"k.cuh": "x", "h.cuh": "h"})
	base := graph.Kernel{Name: "k", Source: "k.cuh", Params: common{Width: 1}}
	key := func(k graph.Kernel, src *Sources, target Target, version string) string {
		u, err := newUnit(k, src, target, version)
		if err != nil {
			t.Fatal(err)
		}
		return u.key
	}
	want := key(base, src, Target{90}, "v")
	if again := key(graph.Kernel{Name: "k", Source: "k.cuh", Params: common{Width: 1}}, NewSources(map[string]string{"h.cuh": "h", "k.cuh": "x"}), Target{90}, "v"); again != want {
		t.Error("equal kernels have different keys")
	}
	other := base
	other.Params = common{Width: 2}
	name := base
	name.Name = "l"
	for what, got := range map[string]string{
		"a constant": key(other, src, Target{90}, "v"),
		"the name":   key(name, src, Target{90}, "v"),
		"a header":   key(base, NewSources(map[string]string{"k.cuh": "x", "h.cuh": "i"}), Target{90}, "v"),
		"the target": key(base, src, Target{80}, "v"),
		"version":    key(base, src, Target{90}, "w"),
	} {
		if got == want {
			t.Errorf("%s does not enter the key", what)
		}
	}
}

func TestParseLog(t *testing.T) {
	const log = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
    8 bytes stack frame, 9 bytes spill stores, 10 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes smem, 360 bytes cmem[0]
`
	got, ok := parseLog(log, "f")
	if want := (Usage{40, 16, 4, 12, 16}); !ok || got != want {
		t.Errorf("got %+v, %v, want %+v", got, ok, want)
	}
	if _, ok := parseLog(log, "g"); ok {
		t.Error("found a function that is not there")
	}
}

func TestEnv(t *testing.T) {
	names := map[string]bool{}
	for _, row := range Env() {
		names[row[0]] = true
		if row[1] == "" {
			t.Errorf("%s has no text", row[0])
		}
	}
	for _, name := range []string{EnvCache, EnvNVRTC, EnvEager} {
		if !names[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
	t.Setenv(EnvCache, "off")
	if OpenDisk() != nil {
		t.Error("off is a folder")
	}
	t.Setenv(EnvCache, "/somewhere")
	if got := OpenDisk().Dir(); got != "/somewhere" {
		t.Errorf("got folder %q", got)
	}
}
