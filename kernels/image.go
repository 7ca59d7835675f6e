package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/moegraph/moegraph/graph"
)

// Target is what kernels are compiled for.
type Target struct {
	Arch int // compute capability times ten: 80, 90, 120
}

// String returns the compiler's name for the target. Hopper's matrix instructions exist in sm_90a alone.
func (t Target) String() string {
	if t.Arch == 90 {
		return "sm_90a"
	}
	return "sm_" + strconv.Itoa(t.Arch)
}

// flags are the compiler's options, in the order they are passed.
func (t Target) flags() []string {
	return []string{
		"--gpu-architecture=" + t.String(),
		"--std=c++17",
		"--device-as-default-execution-space",
		"-lineinfo",
		"--ptxas-options=-v", // registers and spills in the log
	}
}

// Compiler compiles one translation unit to a cubin.
type Compiler interface {
	// Version tells compilers apart whose output may differ.
	Version() string
	// Compile returns the cubin and the compiler's log. headers are found by #include under their names.
	Compile(name, text string, headers *Sources, flags []string) (cubin []byte, log string, err error)
}

// Image is a compiled kernel.
type Image struct {
	Name   string
	Key    string
	Target string
	Cubin  []byte `json:"-"`
	Usage
}

// Usage is what a kernel takes of a multiprocessor, as the assembler reports it.
type Usage struct {
	Registers   int // of a thread
	StackBytes  int // of a thread
	SpillStores int // bytes
	SpillLoads  int // bytes
	SharedBytes int // static, of a thread block
}

// String returns the figures on one line.
func (u Usage) String() string {
	return fmt.Sprintf("%d registers, %d B stack, %d B spill stores, %d B spill loads, %d B static smem",
		u.Registers, u.StackBytes, u.SpillStores, u.SpillLoads, u.SharedBytes)
}

// unit is a kernel ready to be compiled.
type unit struct {
	kernel graph.Kernel
	stub   string
	key    string
}

func newUnit(k graph.Kernel, src *Sources, t Target, version string) (unit, error) {
	stub, err := Stub(k, src)
	if err != nil {
		return unit{}, err
	}
	h := sha256.New()
	for _, part := range append([]string{formatName, stub, src.hash, version, k.Name}, t.flags()...) {
		fmt.Fprintf(h, "%d %s\n", len(part), part)
	}
	return unit{k, stub, hex.EncodeToString(h.Sum(nil))}, nil
}

// compile makes the image.
func (u unit) compile(c Compiler, src *Sources, t Target) (*Image, error) {
	cubin, log, err := c.Compile(u.kernel.Name+".cu", u.stub, src, t.flags())
	if err != nil {
		return nil, fmt.Errorf("kernel %q for %s: %w\n%s", u.kernel.Name, t, err, with(u.stub, log))
	}
	usage, ok := parseLog(log, u.kernel.Name)
	// A compiler that takes the code from a cache of its own may leave the assembler's log out.
	if !ok && !bytes.Contains(cubin, []byte(".text."+u.kernel.Name)) {
		return nil, fmt.Errorf("kernel %q for %s: the source defines no such extern \"C\" __global__ function\n%s",
			u.kernel.Name, t, with(u.stub, log))
	}
	return &Image{Name: u.kernel.Name, Key: u.key, Target: t.String(), Cubin: cubin, Usage: usage}, nil
}

func with(stub, log string) string {
	return "--- source\n" + stub + "--- log\n" + strings.TrimSpace(log)
}

// parseLog reads the assembler's figures of one entry function. Without the function there are none.
//
//	ptxas info    : Compiling entry function 'f' for 'sm_90a'
//	ptxas info    : Function properties for f
//	    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//	ptxas info    : Used 8 registers, used 0 barriers, 16 bytes smem, 360 bytes cmem[0]
func parseLog(log, name string) (u Usage, ok bool) {
	in, properties := false, false
	for line := range strings.Lines(log) {
		switch {
		case strings.Contains(line, "Compiling entry function"):
			in = strings.Contains(line, "'"+name+"'")
			ok = ok || in
		case strings.Contains(line, "Function properties for"):
			properties = in && strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]) == name
		case properties && strings.Contains(line, "stack frame"):
			u.StackBytes, u.SpillStores, u.SpillLoads = number(line, "bytes stack frame"), number(line, "bytes spill stores"), number(line, "bytes spill loads")
			properties = false
		case in && strings.Contains(line, "Used "):
			u.Registers, u.SharedBytes = number(line, "registers"), number(line, "bytes smem")
			in = false
		}
	}
	return u, ok
}

// number returns the integer before what in line, 0 if there is none.
func number(line, what string) int {
	at := strings.Index(line, what)
	if at < 0 {
		return 0
	}
	fields := strings.Fields(line[:at])
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[len(fields)-1])
	return n
}
