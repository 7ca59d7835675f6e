//go:build emulate

package nodes

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/atomicfile"
	"github.com/moegraph/moegraph/kernels"
)

// The kernels of matrix products and of activations run here on the processor, by testdata/emulate, beside the host
// code: what they compute, where they read and write, and that no barrier is missing, but not how fast. It takes g++ and
// some minutes, so it has a build tag:
//
//	go test -tags emulate -run Emulate ./nodes

// emulator builds kernels into libraries, in a folder that lasts, and the program that runs them.
type emulator struct{ dir, sources, main string }

func newEmulator(t *testing.T) *emulator {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++ to build the emulation with")
	}
	e := &emulator{dir: filepath.Join(os.TempDir(), "moegraph-emulate")}
	h := sha256.New()
	for _, name := range kernels.Embedded().Names() {
		text, _ := kernels.Embedded().Text(name)
		fmt.Fprintf(h, "%s\n%s", name, text)
	}
	for _, name := range []string{"emulate.h", "ptx.cuh", "main.cpp"} {
		text, err := os.ReadFile(filepath.Join("testdata/emulate", name))
		must(t, err)
		fmt.Fprintf(h, "%s\n%s", name, text)
	}
	e.sources = filepath.Join(e.dir, hex.EncodeToString(h.Sum(nil))[:16])
	must(t, os.MkdirAll(e.sources, 0o755))
	texts := map[string][]byte{}
	for _, name := range kernels.Embedded().Names() {
		text, _ := kernels.Embedded().Text(name)
		texts[name] = []byte(text)
	}
	for _, name := range []string{"emulate.h", "ptx.cuh", "main.cpp"} { // this ptx.cuh takes the place of the other
		texts[name], _ = os.ReadFile(filepath.Join("testdata/emulate", name))
	}
	for name, text := range texts { // whole files: another process may be compiling them
		must(t, atomicfile.Write(filepath.Join(e.sources, name), func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		}))
	}
	e.main = e.build(t, "main.cpp", "main", "-ldl")
	return e
}

// build compiles a file of the sources unless it has been.
func (e *emulator) build(t *testing.T, source, target string, more ...string) string {
	t.Helper()
	out := filepath.Join(e.sources, target)
	if _, err := os.Stat(out); err == nil {
		return out
	}
	tmp := out + fmt.Sprint(os.Getpid())
	args := append([]string{"-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-gnu-unique", "-fsanitize=alignment,bounds,shift,integer-divide-by-zero",
		"-fsanitize-undefined-trap-on-error", "-Wno-unknown-pragmas", "-o", tmp, filepath.Join(e.sources, source)}, more...)
	if log, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
		t.Fatalf("g++ %s: %v\n%s", strings.Join(args, " "), err, log)
	}
	must(t, os.Rename(tmp, out))
	return out
}

// library returns the kernel built as a library; bulk: with the bulk copies of sm_90, else as for sm_80.
func (e *emulator) library(t *testing.T, k graph.Kernel, bulk bool) string {
	t.Helper()
	stub, err := kernels.Stub(k, kernels.Embedded())
	must(t, err)
	text := map[bool]string{true: "#define EMULATE_BULK\n"}[bulk] + "#include \"emulate.h\"\n" + stub + fmt.Sprintf(`
extern "C" void emulate_run(emulate::Index grid, emulate::Index dim, unsigned shared, bool late, const std::vector<emulate::Range>& ranges, void** args, int count) {
    emulate::run(%s, "%[1]s", grid, dim, shared, late, ranges, args, count);
}
`, k.Name)
	sum := sha256.Sum256([]byte(text))
	name := k.Name + "-" + hex.EncodeToString(sum[:8])
	must(t, os.WriteFile(filepath.Join(e.sources, name+".cpp"), []byte(text), 0o644))
	return e.build(t, name+".cpp", name+".so", "-shared", "-fPIC")
}

// arenaBase is where the emulation maps device memory.
const arenaBase = 0x600000000000

// arena lays tensors out in one block of device memory, with room between them that nobody may touch.
type arena struct {
	data   []byte
	at     map[*graph.Tensor]int
	ranges [][2]int
}

func (a *arena) place(t *graph.Tensor, data []byte) {
	if _, ok := a.at[t]; ok || t == nil {
		return
	}
	const gap = 512
	a.data = append(a.data, bytes.Repeat([]byte{0xff}, gap+(256-len(a.data)%256)%256)...)
	a.at[t] = len(a.data)
	a.ranges = append(a.ranges, [2]int{len(a.data), len(a.data) + len(data)})
	a.data = append(a.data, data...)
}

// serial is a loop on one goroutine.
type serial func(w *graph.Worker, lo, hi int)

func (s serial) Run(n, grain int) {
	w := new(graph.Worker)
	for lo := 0; lo < n; lo += grain {
		s(w, lo, min(lo+grain, n))
	}
}

// emulation is one node with its operands' contents.
type emulation struct {
	rand *rand.Rand
	g    *graph.Graph
	data map[*graph.Value][]byte
	want func(i int) bool // whether output i is asked for; nil: all
	sum  int              // length of the sums, for the tolerance
	gpu  int              // of testGPUs
	rows bool             // errors are measured against the largest of each row, not of all
	// exact: outputs agree in every byte, not within a tolerance
	exact bool
	// near1: codes behind an activation may be one step apart, but few
	near1 bool
	// without: operands that the step lacks, as a fused one may
	without []*graph.Value
}

func newEmulation(seed uint64) *emulation {
	return &emulation{rand: rand.New(rand.NewPCG(seed, 1)), g: graph.New("emulate"), data: map[*graph.Value][]byte{}, sum: 256}
}

// value makes an input that holds x.
func (m *emulation) value(name string, dt dtype.DType, x []float32, dims ...int) *graph.Value {
	v := m.g.Input(name, dt, dims...)
	b := make([]byte, dt.Bytes(v.Elems()))
	if err := dtype.Convert(dt, b[:dt.Bytes(len(x))], dtype.Float32, bytesOf(x)); err != nil {
		panic(err)
	}
	for i := dt.Bytes(len(x)); i < len(b); i++ {
		b[i] = 0xff
	}
	m.data[v] = b
	return v
}

// normals makes an input of random numbers.
func (m *emulation) normals(name string, dt dtype.DType, dims ...int) *graph.Value {
	n := 1
	for _, d := range dims {
		n *= d
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(m.rand.NormFloat64())
	}
	return m.value(name, dt, x, dims...)
}

func (m *emulation) ints(name string, x []int32) *graph.Value {
	v := m.g.Input(name, dtype.Int32, len(x))
	b := make([]byte, 4*len(x))
	for i, n := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(n))
	}
	m.data[v] = b
	return v
}

// counted makes an input of whose capacity rows are in use.
func (m *emulation) counted(name string, dt dtype.DType, rows, capacity int, dims ...int) *graph.Value {
	v := m.g.Input(name, dt, append([]int{graph.UpTo(capacity)}, dims...)...)
	x := make([]float32, rows*v.Elems()/capacity)
	for i := range x {
		x[i] = float32(m.rand.NormFloat64())
	}
	b := bytes.Repeat([]byte{0xff}, dt.Bytes(v.Elems()))
	_ = dtype.Convert(dt, b[:dt.Bytes(len(x))], dtype.Float32, bytesOf(x))
	m.data[v] = b
	m.data[v.Rows()] = binary.LittleEndian.AppendUint32(nil, uint32(rows))
	return v
}

// spoil fills rows [lo,hi) of v with 0xFF.
func (m *emulation) spoil(v *graph.Value, lo, hi int) {
	if v == nil {
		return
	}
	row := len(m.data[v]) / v.Dim(0)
	for i := lo * row; i < hi*row; i++ {
		m.data[v][i] = 0xff
	}
}

// run applies the op, runs it on the host and in the emulation, and compares.
func (m *emulation) run(t *testing.T, e *emulator, op graph.Op, in ...*graph.Value) {
	t.Helper()
	graph.Apply(op, in...)
	must(t, m.g.Err())
	node := m.g.Nodes()[len(m.g.Nodes())-1]
	d := testGPUs[m.gpu]
	d.Units = 3 // so that thread blocks take several tiles
	for _, late := range []bool{true, false} {
		m.compare(t, e, node, d, late)
	}
}

func (m *emulation) compare(t *testing.T, e *emulator, n *graph.Node, d graph.GPU, late bool) {
	t.Helper()
	tensors := map[*graph.Value]*graph.Tensor{}
	a := &arena{at: map[*graph.Tensor]int{}}
	var tensor func(v *graph.Value) *graph.Tensor
	tensor = func(v *graph.Value) *graph.Tensor {
		if v == nil || tensors[v] != nil {
			return tensors[v]
		}
		x := &graph.Tensor{DType: v.DType(), Shape: v.Shape()}
		if b, ok := m.data[v]; ok {
			x.Data = append([]byte(nil), b...)
		} else {
			x.Data = bytes.Repeat([]byte{0xff}, v.DType().Bytes(v.Elems()))
		}
		tensors[v] = x
		x.Count = tensor(v.Rows())
		a.place(x, x.Data)
		return x
	}
	call := &graph.Call{Name: n.Name(), Op: n.Op(), NewLoop: func(body func(w *graph.Worker, lo, hi int)) graph.Loop { return serial(body) }}
	device := &graph.KernelCall{Name: n.Name(), Op: n.Op(), GPU: d}
	for i := range n.Op().Operands() {
		var x *graph.Tensor
		if !slices.Contains(m.without, n.In(i)) {
			x = tensor(n.In(i))
		}
		call.In = append(call.In, x)
	}
	for i := range n.Op().Outputs() {
		var x *graph.Tensor
		if n.Out(i) != nil && (m.want == nil || m.want(i)) {
			x = tensor(n.Out(i))
		}
		call.Out = append(call.Out, x)
	}
	device.In, device.Out = call.In, call.Out
	if s, ok := n.Op().(graph.CUDAScratcher); ok {
		if size := s.CUDAScratch(n, d); size > 0 {
			device.Scratch = &graph.Tensor{DType: dtype.Uint8, Shape: []int{int(size)}}
			a.place(device.Scratch, bytes.Repeat([]byte{0xff}, int(size)))
		}
	}
	a.data = append(a.data, bytes.Repeat([]byte{0xff}, 8192)...)
	launches, err := n.Op().(graph.CUDAOp).CUDA(device)
	must(t, err)
	got := a.launch(t, e, launches, late, d)

	if s, ok := n.Op().(graph.Scratcher); ok {
		call.Scratch = make([]byte, s.Scratch(n))
	}
	must(t, n.Op().(graph.HostOp).Host(call)())
	for i, x := range call.Out {
		if x != nil {
			m.check(t, fmt.Sprintf("%s, %d SMs of sm_%d, late %v", n.Op().Outputs()[i], d.Units, d.Arch, late), x, got[a.at[x]:])
		}
	}
	for i, o := range n.Op().Operands() {
		if x := call.In[i]; x != nil && o.Update {
			m.check(t, o.Name, x, got[a.at[x]:])
		}
	}
	a.untouched(t, got, call, device)
}

// launch runs the launches and returns what device memory then holds.
func (a *arena) launch(t *testing.T, e *emulator, launches []graph.Launch, late bool, d graph.GPU) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "arena")
	must(t, os.WriteFile(file, a.data, 0o644))
	var job strings.Builder
	fmt.Fprintf(&job, "arena %s %d\n", file, len(a.data))
	for _, r := range a.ranges {
		fmt.Fprintf(&job, "range %d %d\n", r[0], r[1])
	}
	for _, l := range launches {
		must(t, checkLaunch(&graph.KernelCall{GPU: d}, l))
		fmt.Fprintf(&job, "launch %s %d %d %d %d %d %d", e.library(t, l.Kernel, d.Arch >= 90), l.Grid[0], l.Grid[1], l.Block[0], l.Block[1], l.SharedBytes, map[bool]int{true: 1}[late])
		for _, arg := range l.Args {
			switch x := arg.(type) {
			case graph.Pointer:
				if x.T == nil {
					job.WriteString(" z")
				} else {
					fmt.Fprintf(&job, " p%d", a.at[x.T]+int(x.Offset))
				}
			case graph.Count:
				if x.T == nil || x.T.Count == nil {
					job.WriteString(" z")
				} else {
					c := x.T.Count
					fmt.Fprintf(&job, " p%d", a.at[c]+4*(c.Shape[0]-1))
				}
			case int32:
				fmt.Fprintf(&job, " i%d", uint32(x))
			case uint32:
				fmt.Fprintf(&job, " i%d", x)
			case float32:
				fmt.Fprintf(&job, " i%d", math.Float32bits(x))
			case int64:
				fmt.Fprintf(&job, " i%d", uint64(x))
			default:
				t.Fatalf("argument %T", arg)
			}
		}
		job.WriteString("\n")
	}
	cmd := exec.Command(e.main)
	cmd.Stdin = strings.NewReader(job.String())
	if log, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, log, job.String())
	}
	got, err := os.ReadFile(file)
	must(t, err)
	return got
}

// untouched checks what lies between the tensors, and the operands that are not written.
func (a *arena) untouched(t *testing.T, got []byte, c *graph.Call, d *graph.KernelCall) {
	t.Helper()
	mine := make([]bool, len(got)) // bytes that may change
	mark := func(x *graph.Tensor, n int) {
		for i := range n {
			mine[a.at[x]+i] = true
		}
	}
	for _, x := range c.Out {
		if x != nil {
			mark(x, len(x.Data))
		}
	}
	for i, o := range c.Op.Operands() {
		if c.In[i] != nil && (o.Update || o.Name == "wgrad_ptrs") {
			mark(c.In[i], len(c.In[i].Data))
		}
	}
	if d.Scratch != nil {
		mark(d.Scratch, d.Scratch.Shape[0])
	}
	for i, b := range got {
		if !mine[i] && b != a.data[i] {
			t.Fatalf("byte %d of device memory, which is no output: got %#x, want %#x", i, b, a.data[i])
		}
	}
}

// checkCodes lets one code of a thousand be one step apart (contracts, section 10).
func (m *emulation) checkCodes(t *testing.T, name string, want *graph.Tensor, got []byte) {
	t.Helper()
	bits, apart := want.DType.Bits(), 0
	half := byte(1) << (bits - 1)
	for i := range len(want.Data) * 8 / bits {
		code := func(b []byte) (byte, int) {
			x := b[i*bits/8] >> (i * bits % 8) & (2*half - 1)
			return x, int(x&(half-1)) * (1 - 2*int(x/half))
		}
		x, a := code(want.Data)
		y, b := code(got)
		if x == y {
			continue
		}
		if apart++; a-b > 1 || b-a > 1 || apart > len(want.Data)*8/bits/1000 {
			t.Fatalf("%s: code %d of %v, the %dth that is apart: got %#x, want %#x", name, i, want.Shape, apart, y, x)
		}
	}
}

// check compares the emulation's bytes with the host's tensor: NaNs in the same places, the rest within the tolerance
// of a sum in another order and one rounding.
func (m *emulation) check(t *testing.T, name string, want *graph.Tensor, got []byte) {
	t.Helper()
	if m.near1 && narrow(want.DType) {
		m.checkCodes(t, name, want, got)
		return
	}
	if want.DType.Bits() <= 8 && !bytes.Equal(got[:len(want.Data)], want.Data) {
		for i, b := range want.Data {
			if got[i] != b {
				t.Fatalf("%s: byte %d of %v: got %#x, want %#x", name, i, want.Shape, got[i], b)
			}
		}
	}
	n := len(want.Data) * 8 / want.DType.Bits()
	x, y := make([]float32, n), make([]float32, n)
	must(t, dtype.Convert(dtype.Float32, bytesOf(x), want.DType, want.Data))
	must(t, dtype.Convert(dtype.Float32, bytesOf(y), want.DType, got[:len(want.Data)]))
	ulp := map[dtype.DType]float64{dtype.Float32: 0, dtype.BFloat16: 1.0 / 128, dtype.Float16: 1.0 / 1024}[want.DType]
	bound := 4e-6 * (1 + float64(m.sum)/2048)
	var sum, diff, top float64
	width := n
	if m.rows {
		width = want.Width()
	}
	bad := 0
	for i := range x {
		if i%width == 0 {
			top = 0
			for _, v := range x[i : i+width] {
				if v == v && !math.IsInf(float64(v), 0) {
					top = max(top, math.Abs(float64(v)))
				}
			}
		}
		a, b := float64(x[i]), float64(y[i])
		if m.exact && math.Float32bits(x[i]) != math.Float32bits(y[i]) && (a == a || b == b) {
			t.Fatalf("%s: element %d of %v: got %v, want %v and nothing else", name, i, want.Shape, b, a)
		}
		if a == b || (a != a && b != b) {
			sum += a * a
			continue
		}
		sum, diff = sum+a*a, diff+(a-b)*(a-b)
		if !(math.Abs(a-b) <= ulp*math.Abs(a)+64*bound*top) {
			if bad++; bad < 6 {
				t.Errorf("%s: element %d of %v: got %v, want %v", name, i, want.Shape, b, a)
			}
		}
	}
	if bad > 0 {
		t.Fatalf("%s: %d of %d elements are wrong", name, bad, n)
	}
	if sum == sum && diff > sum*(ulp/3+bound)*(ulp/3+bound) {
		t.Fatalf("%s: relative error %.2g", name, math.Sqrt(diff/sum))
	}
}
