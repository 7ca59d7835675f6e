//go:build gpu

package nvrtc

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

typedef struct _nvrtcProgram *program;

// The functions of one loaded library. The prototypes are those of nvrtc.h, the same since CUDA 11.1.
typedef struct {
	int (*version)(int *major, int *minor);
	int (*create)(program *prog, const char *src, const char *name, int n, const char *const *headers, const char *const *names);
	int (*destroy)(program *prog);
	int (*compile)(program prog, int n, const char *const *options);
	int (*cubinSize)(program prog, size_t *size);
	int (*cubin)(program prog, char *to);
	int (*logSize)(program prog, size_t *size);
	int (*log)(program prog, char *to);
	const char *(*describe)(int result);
	int (*archCount)(int *n);
	int (*archs)(int *to);
} nvrtc;

static void *openLibrary(const char *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL); }

static int openFunctions(void *lib, nvrtc *f) {
	f->version = dlsym(lib, "nvrtcVersion");
	f->create = dlsym(lib, "nvrtcCreateProgram");
	f->destroy = dlsym(lib, "nvrtcDestroyProgram");
	f->compile = dlsym(lib, "nvrtcCompileProgram");
	f->cubinSize = dlsym(lib, "nvrtcGetCUBINSize");
	f->cubin = dlsym(lib, "nvrtcGetCUBIN");
	f->logSize = dlsym(lib, "nvrtcGetProgramLogSize");
	f->log = dlsym(lib, "nvrtcGetProgramLog");
	f->describe = dlsym(lib, "nvrtcGetErrorString");
	f->archCount = dlsym(lib, "nvrtcGetNumSupportedArchs");
	f->archs = dlsym(lib, "nvrtcGetSupportedArchs");
	return f->version && f->create && f->destroy && f->compile && f->cubinSize && f->cubin && f->logSize &&
		f->log && f->describe;
}

static int getVersion(nvrtc *f, int *major, int *minor) { return f->version(major, minor); }
static int create(nvrtc *f, program *p, const char *src, const char *name, int n, const char *const *headers, const char *const *names) {
	return f->create(p, src, name, n, headers, names);
}
static int destroy(nvrtc *f, program *p) { return f->destroy(p); }
static int compile(nvrtc *f, program p, int n, const char *const *options) { return f->compile(p, n, options); }
static int cubinSize(nvrtc *f, program p, size_t *n) { return f->cubinSize(p, n); }
static int getCubin(nvrtc *f, program p, char *to) { return f->cubin(p, to); }
static int logSize(nvrtc *f, program p, size_t *n) { return f->logSize(p, n); }
static int getLog(nvrtc *f, program p, char *to) { return f->log(p, to); }
static const char *describe(nvrtc *f, int r) { return f->describe(r); }
static int archCount(nvrtc *f, int *n) { return f->archCount ? f->archCount(n) : 1; }
static int archs(nvrtc *f, int *to) { return f->archs ? f->archs(to) : 1; }
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/moegraph/moegraph/kernels"
)

// ErrNotFound says that the machine has no NVRTC.
var ErrNotFound = errors.New("NVRTC was not found")

// Compiler is one loaded library. It implements kernels.Compiler.
type Compiler struct {
	f            C.nvrtc
	path         string
	include      string // folder of the toolkit's headers; "": none
	major, minor int
}

// Open finds and loads the library; the answer is the same for the life of the process.
var Open = sync.OnceValues(func() (*Compiler, error) { return open(candidates(kernels.NVRTCPath())) })

func open(paths []string) (*Compiler, error) {
	var tried []string
	for _, path := range paths {
		c, err := load(path)
		if err == nil {
			return c, nil
		}
		tried = append(tried, err.Error())
	}
	return nil, fmt.Errorf("%w: install a CUDA toolkit, or \"pip install nvidia-cuda-nvrtc nvidia-cuda-runtime\" for the python3 on PATH, "+
		"or set %s to libnvrtc.so; tried: %s", ErrNotFound, kernels.EnvNVRTC, strings.Join(tried, "; "))
}

func load(path string) (*Compiler, error) {
	for _, b := range builtins(path) { // NVRTC asks for it by its bare name and finds the one that is loaded
		if dlopen(b) != nil {
			break
		}
	}
	lib := dlopen(path)
	if lib == nil {
		return nil, errors.New(C.GoString(C.dlerror()))
	}
	c := &Compiler{path: path, include: include(path)}
	if C.openFunctions(lib, &c.f) == 0 {
		return nil, fmt.Errorf("%s lacks functions: want NVRTC of CUDA 11.1 or later", path)
	}
	var major, minor C.int
	if r := C.getVersion(&c.f, &major, &minor); r != 0 {
		return nil, fmt.Errorf("%s: nvrtcVersion: %s", path, c.describe(r))
	}
	c.major, c.minor = int(major), int(minor)
	return c, nil
}

func dlopen(path string) unsafe.Pointer {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	return C.openLibrary(p)
}

// Version implements kernels.Compiler.
func (c *Compiler) Version() string { return fmt.Sprintf("nvrtc %d.%d", c.major, c.minor) }

// Path returns the library's file.
func (c *Compiler) Path() string { return c.path }

// Archs returns the compute capabilities, times ten, that the library compiles for; nil where it does not say.
func (c *Compiler) Archs() []int {
	var n C.int
	if C.archCount(&c.f, &n) != 0 || n <= 0 {
		return nil
	}
	to := make([]C.int, n)
	if C.archs(&c.f, &to[0]) != 0 {
		return nil
	}
	out := make([]int, n)
	for i, a := range to {
		out[i] = int(a)
	}
	return out
}

// Compile implements kernels.Compiler.
func (c *Compiler) Compile(name, text string, headers *kernels.Sources, flags []string) ([]byte, string, error) {
	var a arena
	defer a.free()
	names := headers.Names()
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i], _ = headers.Text(n)
	}
	flags = slices.Clone(flags)
	if c.include != "" {
		flags = append(flags, "--include-path="+c.include)
	}
	if c.major >= 13 {
		// Its own cache gives the code of a program whose PTX it has seen without the assembler's log, which we read.
		flags = append(flags, "--no-cache")
	}
	var p C.program
	if r := C.create(&c.f, &p, a.str(text), a.str(name), C.int(len(names)), a.list(texts), a.list(names)); r != 0 {
		return nil, "", fmt.Errorf("nvrtcCreateProgram: %s", c.describe(r))
	}
	defer C.destroy(&c.f, &p)
	r := C.compile(&c.f, p, C.int(len(flags)), a.list(flags))
	log := c.log(p)
	if r != 0 {
		return nil, log, fmt.Errorf("nvrtcCompileProgram (%s, %s): %s", c.Version(), c.path, c.describe(r))
	}
	var size C.size_t
	if r := C.cubinSize(&c.f, p, &size); r != 0 || size == 0 {
		return nil, log, fmt.Errorf("nvrtcGetCUBINSize: %s, %d bytes", c.describe(r), size)
	}
	cubin := make([]byte, size)
	if r := C.getCubin(&c.f, p, (*C.char)(unsafe.Pointer(&cubin[0]))); r != 0 {
		return nil, log, fmt.Errorf("nvrtcGetCUBIN: %s", c.describe(r))
	}
	return cubin, log, nil
}

func (c *Compiler) log(p C.program) string {
	var size C.size_t
	if C.logSize(&c.f, p, &size) != 0 || size <= 1 {
		return ""
	}
	b := make([]byte, size)
	if C.getLog(&c.f, p, (*C.char)(unsafe.Pointer(&b[0]))) != 0 {
		return ""
	}
	return strings.TrimRight(string(b), "\x00")
}

func (c *Compiler) describe(r C.int) string { return C.GoString(C.describe(&c.f, r)) }

// arena is C memory that lives for one call.
type arena struct{ ptrs []unsafe.Pointer }

func (a *arena) free() {
	for _, p := range a.ptrs {
		C.free(p)
	}
}

func (a *arena) str(s string) *C.char {
	p := C.CString(s)
	a.ptrs = append(a.ptrs, unsafe.Pointer(p))
	return p
}

// list returns a C array of strings, nil for none.
func (a *arena) list(ss []string) **C.char {
	if len(ss) == 0 {
		return nil
	}
	p := C.malloc(C.size_t(len(ss)) * C.size_t(unsafe.Sizeof(uintptr(0))))
	a.ptrs = append(a.ptrs, p)
	array := unsafe.Slice((**C.char)(p), len(ss))
	for i, s := range ss {
		array[i] = a.str(s)
	}
	return (**C.char)(p)
}
