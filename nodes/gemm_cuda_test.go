package nodes

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// TestProductTile_Chosen: the layers of public models get the tiles that feed the matrix units best, small ones tiles
// that fill the device.
func TestProductTile_Chosen(t *testing.T) {
	h200, small := testGPUs[0], testGPUs[1]
	for _, c := range []struct {
		name    string
		gpu     graph.GPU
		dt      dtype.DType
		l       Launch
		e, m, n int
		want    productTile
	}{
		{"mixtral fc1", h200, dtype.BFloat16, Launch{}, 8, 16384, 28672, productTile{256, 128, 64, 4, 8, 1, 229504}},
		{"dsv3-ep8 fc2", h200, dtype.BFloat16, Launch{}, 32, 32768, 7168, productTile{256, 128, 64, 4, 8, 1, 229888}},
		{"1024 experts", h200, dtype.BFloat16, Launch{Tile: [2]int{128, 256}}, 1024, 65536, 4096, productTile{128, 256, 64, 3, 16, 1, 192640}},
		{"two blocks", h200, dtype.BFloat16, Launch{Tile: [2]int{128, 128}}, 8, 16384, 4096, productTile{128, 128, 64, 3, 16, 2, 114816}},
		{"f32", h200, dtype.Float32, Launch{}, 8, 16384, 4096, productTile{64, 128, 32, 4, 32, 2, 114816}},
		{"few rows", h200, dtype.BFloat16, Launch{}, 8, 128, 1024, productTile{64, 64, 16, 3, 32, 3, 65664}},
		{"99 KiB", small, dtype.BFloat16, Launch{}, 8, 16384, 28672, productTile{128, 128, 64, 2, 16, 1, 82048}},
	} {
		got, err := chooseTile(c.l, c.gpu, productSize{dt: c.dt, groups: c.e, m: c.m, n: c.n, perRows: true})
		must(t, err)
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	_, err := chooseTile(Launch{Tile: [2]int{128, 256}}, small, productSize{dt: dtype.BFloat16, groups: 8, m: 1024, n: 1024})
	var refused *graph.OperandError
	if !errors.Is(err, graph.ErrUnsupported) || !errors.As(err, &refused) || refused.Operand != "tile" {
		t.Errorf("tile 128x256 on 99 KiB: got error %v", err)
	}
}

// TestProductTile_Fits: every tile that options may ask for has a kernel, and takes no more than the device has.
func TestProductTile_Fits(t *testing.T) {
	if len(productTiles) != len(Tiles) {
		t.Errorf("got %d tiles with kernels, want the %d of Tiles", len(productTiles), len(Tiles))
	}
	for _, tile := range Tiles {
		for groups := 1; groups <= MaxExperts; groups *= 2 {
			d := testGPUs[0]
			p, err := chooseTile(Launch{Tile: tile}, d, productSize{dt: dtype.BFloat16, groups: groups, m: 4096, n: 4096})
			must(t, err)
			perSM := p.Blocks * (p.SharedBytes + reservedShared)
			if p.TileM != tile[0] || p.TileN != tile[1] || p.SharedBytes > d.SharedBytes || perSM > d.SharedBytes+reservedShared {
				t.Errorf("tile %v, %d groups: got %+v on %d bytes", tile, groups, p, d.SharedBytes)
			}
			if p.threads() != 128 && p.threads() != 256 {
				t.Errorf("tile %v: got %d threads", tile, p.threads())
			}
		}
	}
}

// TestGEMM_Launches describes the launches of whole layers, forward and backward, and checks them against the sources.
func TestGEMM_Launches(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
		for _, cfg := range []MoE{
			{Experts: 8, TopK: 2, Intermediate: 64, Params: dt},
			{Experts: 96, TopK: 2, Intermediate: 96, Bias: true, Shared: 64, Activation: Activation{Func: "geglu"}, Alignment: 16, Params: dt},
		} {
			g, vars := graph.New("layer"), graph.NewVars(1)
			x := g.Input("x", dt, graph.UpTo(1000), 128)
			y, _ := MoELayer(x, vars.Scope("moe"), cfg)
			g.GradientsFrom([]*graph.Value{y}, []*graph.Value{g.Use(y)}, append(vars.All(), x)...)
			must(t, g.Err())
			kinds := map[string]int{}
			for _, n := range g.Nodes() {
				op, ok := n.Op().(graph.CUDAOp)
				if !ok {
					t.Errorf("%s has no kernel", n.Op().Kind())
					continue
				}
				for _, d := range testGPUs {
					c := kernelCall(n, d)
					launches, err := op.CUDA(c)
					must(t, err)
					for _, l := range launches {
						must(t, checkLaunch(c, l))
						kinds[l.Kernel.Name]++
					}
				}
			}
			for _, want := range []string{"grouped_gemm", "grouped_gemm_glu", "glu_grad", "wgrad", "matmul"} {
				if kinds[want] == 0 {
					t.Errorf("%s: got no launch of %s", dt, want)
				}
			}
		}
	}
}

// TestProductTile_Scaled: products of codes get a tile on every device, for large and for small layers, with the stages that a
// block in decoding asks for.
func TestProductTile_Scaled(t *testing.T) {
	for _, d := range testGPUs {
		for _, codes := range []codeBits{{0, 4, false}, {0, 4, true}, {0, 8, false}, {0, 8, true}} {
			for _, size := range [][3]int{{16384, 28672, 8}, {128, 64, 4}, {32768, 7168, 256}, {4096, 4096, MaxExperts}} {
				s := productSize{dt: dtype.BFloat16, groups: size[2], m: size[0], n: size[1], perRows: true, codes: codes}
				p, err := chooseTile(Launch{}, d, s)
				must(t, err)
				_, _, least := s.stages()
				if p.Stages < least || p.SharedBytes > d.SharedBytes || p.Blocks*(p.SharedBytes+reservedShared) > d.SharedBytes+reservedShared {
					t.Errorf("%+v on %d bytes: got %+v", s, d.SharedBytes, p)
				}
			}
		}
	}
	// Operands that are decoded ahead get the tile of plain products.
	plain := productSize{dt: dtype.BFloat16, groups: 4, m: 65536, n: 28672, perRows: true}
	want, err := chooseTile(Launch{}, testGPUs[0], plain)
	must(t, err)
	plain.codes, plain.decoded = codeBits{a: 8, b: 8}, true
	if got, err := chooseTile(Launch{}, testGPUs[0], plain); got != want || err != nil {
		t.Errorf("decoded: got %+v, %v, want %+v", got, err, want)
	}
}

// TestScaledQuantized_Launches: products make the codes and factors of a quantized output themselves, any of them alone too, in
// tiles whose warps have whole blocks, and without room for the output in the scratch.
func TestScaledQuantized_Launches(t *testing.T) {
	const m, n, k, experts = 4096, 1024, 256, 8
	for _, dt := range []dtype.DType{dtype.E4M3, dtype.E5M2, dtype.E2M1} {
		g := graph.New("quantized")
		factors := func(name string, rows, batches int) *graph.Value {
			return g.Input(name, dtype.E8M0, dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, 32), Batches: batches}.Bytes())
		}
		offsets, counts := g.Input("offsets", dtype.Int32, experts), g.Input("counts", dtype.Int32, experts)
		a, sfa, b, sfb := g.Input("a", dtype.E4M3, m, k), factors("sfa", m, 1), g.Input("b", dtype.E4M3, experts, n, k), factors("sfb", n, experts)
		c, norm := g.Input("c", dtype.BFloat16, m, 2*n), g.Input("norm", dtype.Float32, 1)
		for _, tile := range append([][2]int{{}}, Tiles...) {
			l := Launch{Tile: tile}
			graph.Apply(scaledGEMM{Align: 128, D: dt, Launch: l}, a, offsets, counts, nil, nil, nil, sfa, norm, nil, nil, b, sfb)
			graph.Apply(scaledGLU{Act: defaultAct, Align: 128, D: dt, C: dtype.BFloat16, Launch: l}, a, offsets, counts, nil, nil, nil, sfa, norm, nil, nil, b, sfb)
			graph.Apply(scaledDGLU{Act: defaultAct, Align: 128, DC: dt, ActType: dtype.BFloat16, Launch: l}, a, offsets, counts, nil, nil, c, nil, sfa, norm, nil, nil, b, sfb)
		}
		must(t, g.Err())
		for _, node := range g.Nodes() {
			op, ok := node.Op().(graph.CUDAOp)
			if !ok {
				continue
			}
			for _, d := range testGPUs {
				for only := -1; only < len(node.Op().Outputs()); only++ {
					call := kernelCall(node, d)
					for i := range call.Out {
						if only >= 0 && i != only {
							call.Out[i] = nil
						}
					}
					launches, err := op.CUDA(call)
					if errors.Is(err, graph.ErrUnsupported) && d == testGPUs[1] {
						continue // no room for large tiles
					}
					must(t, err)
					for _, l := range launches {
						must(t, checkLaunch(call, l))
						if l.Kernel.Name == "quantize" {
							t.Errorf("%s: got a launch of quantize", node.Op().Kind())
						}
						if p := fmt.Sprintf("%+v", l.Kernel.Params); strings.Contains(p, "DType:e") && strings.Contains(p, "WarpM:16") {
							t.Errorf("%s: got %s, whose warps have 16 rows", node.Op().Kind(), p)
						}
					}
				}
				decoded := int64(2*k) * (m + experts*n)
				if got := node.Op().(graph.CUDAScratcher).CUDAScratch(node, d); got > decoded+m*n {
					t.Errorf("%s: got %d bytes of scratch, want little beside %d of decoded operands", node.Op().Kind(), got, decoded)
				}
			}
		}
	}
}
