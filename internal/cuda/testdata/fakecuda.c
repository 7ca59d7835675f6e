/* A driver for tests on machines without one: "device" memory is the host's, streams run at once, and a call on a
 * thread without a current context is refused, as the real driver does. Kernels do what their names say, see
 * kernels.cu. One capture at a time; memory has a limit of 1 GiB.
 *	cc -shared -fPIC -o libcuda.so.1 fakecuda.c
 * With -DNO_DEVICE, cuInit says that no device is visible; with -DSTUB it does what the toolkit's stub library does. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status;
typedef uint64_t dptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_BINARY = 209, INVALID_CONTEXT = 201, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
	CAPTURE_UNSUPPORTED = 900, UNJOINED = 904 };

#if defined(NO_DEVICE)
status cuInit(unsigned int flags) { return 100; }
#elif defined(STUB)
status cuInit(unsigned int flags) { return 34; }
#else

#define LIMIT ((int64_t)1 << 30)
#define CONTEXT ((void *)0x1000)
#define NEED if (current != CONTEXT) return INVALID_CONTEXT; if (broken) return broken

static __thread void *current;
static int broken;
static int64_t used;

typedef struct { char name[32]; } function;
static function functions[] = {{"echo"}, {"add"}, {"fault"}, {"shared"}};

typedef struct {
	unsigned int grid[3], block[3], shared;
	void *stream, *attrs;
	unsigned int num_attrs;
} launch_config;

/* A captured launch, the nodes it comes after, and a graph of them. */
typedef struct node {
	function *f;
	launch_config c;
	size_t size, num_deps;
	unsigned char args[512];
	struct node *deps[8];
} node;
typedef struct { size_t num; node nodes[64]; } graph;

/* A stream or an event: whether it is in the capture under way, and the nodes that what follows comes after. */
typedef struct { int capture; size_t num_deps; node *deps[8]; } point;
static graph *captured;
static point *origin, *joined[16];
static int capture_id, num_joined;

static int capturing(point *p) { return p && captured && p->capture == capture_id; }
static void add_dep(point *p, node *n) {
	for (size_t i = 0; i < p->num_deps; i++)
		if (p->deps[i] == n) return;
	p->deps[p->num_deps++] = n;
}

status cuInit(unsigned int flags) { return OK; }
status cuDriverGetVersion(int *v) { *v = 12000; return OK; }
status cuDeviceGetCount(int *n) { *n = 1; return OK; }
status cuDeviceGet(int *d, int i) { *d = i; return OK; }
status cuDeviceGetName(char *s, int n, int d) { strncpy(s, "fake", n); return OK; }
status cuDeviceTotalMem_v2(size_t *n, int d) { *n = LIMIT; return OK; }
status cuDeviceGetAttribute(int *v, int a, int d) {
	*v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : a == 97 ? 232448 : a == 8 ? 49152 : 1;
	return OK;
}
status cuDevicePrimaryCtxRetain(void **c, int d) { *c = CONTEXT; return OK; }
status cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
status cuCtxSetCurrent(void *c) { current = c; return OK; }
status cuCtxSynchronize(void) { NEED; return captured ? CAPTURE_UNSUPPORTED : OK; }

/* Every block has its size before it. */
status cuMemAlloc_v2(dptr *p, size_t n) {
	NEED;
	if (__atomic_add_fetch(&used, n, __ATOMIC_SEQ_CST) > LIMIT) {
		__atomic_sub_fetch(&used, n, __ATOMIC_SEQ_CST);
		return OUT_OF_MEMORY;
	}
	char *q = aligned_alloc(256, (n + 511) / 256 * 256);
	*(size_t *)q = n;
	*p = (dptr)(uintptr_t)(q + 256);
	return OK;
}
status cuMemFree_v2(dptr p) {
	NEED;
	char *q = (char *)(uintptr_t)p - 256;
	__atomic_sub_fetch(&used, *(size_t *)q, __ATOMIC_SEQ_CST);
	free(q);
	return OK;
}
status cuMemGetInfo_v2(size_t *f, size_t *t) { NEED; *f = LIMIT - used, *t = LIMIT; return OK; }
status cuMemHostAlloc(void **p, size_t n, unsigned int flags) { NEED; *p = malloc(n); return OK; }
status cuMemFreeHost(void *p) { NEED; free(p); return OK; }
status cuMemcpyHtoDAsync_v2(dptr d, const void *s, size_t n, void *st) { NEED; memcpy((void *)(uintptr_t)d, s, n); return OK; }
status cuMemcpyDtoHAsync_v2(void *d, dptr s, size_t n, void *st) { NEED; memcpy(d, (void *)(uintptr_t)s, n); return OK; }
status cuMemcpyDtoDAsync_v2(dptr d, dptr s, size_t n, void *st) { NEED; memcpy((void *)(uintptr_t)d, (void *)(uintptr_t)s, n); return OK; }
status cuMemsetD8Async(dptr d, unsigned char v, size_t n, void *st) { NEED; memset((void *)(uintptr_t)d, v, n); return OK; }
status cuMemsetD32Async(dptr d, unsigned int v, size_t n, void *st) {
	NEED;
	for (size_t i = 0; i < n; i++) ((unsigned int *)(uintptr_t)d)[i] = v;
	return OK;
}

status cuStreamCreate(point **s, unsigned int flags) { NEED; *s = calloc(1, sizeof **s); return OK; }
status cuStreamDestroy_v2(point *s) { NEED; free(s); return OK; }
status cuStreamSynchronize(point *s) { NEED; return capturing(s) ? CAPTURE_UNSUPPORTED : OK; }
status cuStreamQuery(point *s) { NEED; return capturing(s) ? CAPTURE_UNSUPPORTED : OK; }
status cuStreamWaitEvent(point *s, point *e, unsigned int flags) {
	NEED;
	if (!capturing(e)) return OK;
	if (!capturing(s)) {
		joined[num_joined++] = s;
		s->capture = capture_id, s->num_deps = 0;
	}
	for (size_t i = 0; i < e->num_deps; i++) add_dep(s, e->deps[i]);
	return OK;
}
status cuEventCreate(point **e, unsigned int flags) { NEED; *e = calloc(1, sizeof **e); return OK; }
status cuEventDestroy_v2(point *e) { NEED; free(e); return OK; }
status cuEventRecord(point *e, point *s) { NEED; *e = *s; return OK; }
status cuEventSynchronize(point *e) { NEED; return OK; }
status cuEventElapsedTime(float *ms, void *a, void *b) { NEED; *ms = 1.5f; return OK; }
status cuEventElapsedTime_v2(float *ms, void *a, void *b) { NEED; *ms = 1.5f; return OK; }

status cuModuleLoadData(void **m, const void *image) { NEED; *m = malloc(1); return memcmp(image, "\x7f" "ELF", 4) ? OK : NO_BINARY; }
status cuModuleUnload(void *m) { NEED; free(m); return OK; }
status cuModuleGetFunction(function **f, void *m, const char *name) {
	NEED;
	for (int i = 0; i < 4; i++)
		if (strcmp(functions[i].name, name) == 0) { *f = &functions[i]; return OK; }
	return NOT_FOUND;
}
status cuFuncGetAttribute(int *v, int a, function *f) { NEED; *v = 1; return OK; }
status cuFuncSetAttribute(function *f, int a, int v) { NEED; return v <= 232448 ? OK : INVALID_VALUE; }

static status execute(node *n) {
	unsigned char *a = n->args;
	if (strcmp(n->f->name, "echo") == 0) { /* unsigned char, Big, unsigned int, unsigned long long, pointer */
		uint64_t *out = *(uint64_t **)(a + 144);
		out[0] = a[0], out[1] = *(uint32_t *)(a + 132), out[2] = *(uint64_t *)(a + 136);
		for (int i = 0; i < 32; i++) out[3 + i] = ((uint32_t *)(a + 4))[i];
	} else if (strcmp(n->f->name, "add") == 0) {
		int *x = *(int **)a, num = *(int *)(a + 8), v = *(int *)(a + 12);
		for (int i = 0; i < num; i++) x[i] += v;
	} else if (strcmp(n->f->name, "shared") == 0) {
		**(int **)a = *(int *)(a + 8) - 1;
	} else {
		return broken = ILLEGAL_ADDRESS;
	}
	return OK;
}

status cuLaunchKernelEx(const launch_config *c, function *f, void **params, void **extra) {
	NEED;
	node n = {f, *c, *(size_t *)extra[3], 0};
	if (c->block[0] * c->block[1] * c->block[2] > 1024 || n.size > sizeof n.args) return INVALID_VALUE;
	memcpy(n.args, extra[1], n.size);
	point *s = c->stream;
	if (!capturing(s)) return execute(&n);
	memcpy(n.deps, s->deps, sizeof n.deps);
	n.num_deps = s->num_deps;
	captured->nodes[captured->num] = n;
	s->deps[0] = &captured->nodes[captured->num++], s->num_deps = 1;
	return OK;
}

status cuStreamBeginCapture_v2(point *s, int mode) {
	NEED;
	if (captured || mode != 1) return INVALID_VALUE;
	captured = calloc(1, sizeof *captured);
	origin = s, s->capture = ++capture_id, s->num_deps = 0, num_joined = 0;
	return OK;
}
static int comes_before(node *n, node *const *deps, size_t num) {
	for (size_t i = 0; i < num; i++)
		if (deps[i] == n || comes_before(n, deps[i]->deps, deps[i]->num_deps)) return 1;
	return 0;
}
status cuStreamEndCapture(point *s, graph **g) {
	NEED;
	if (s != origin || !captured) return INVALID_VALUE;
	status r = OK;
	for (int i = 0; i < num_joined; i++)
		for (size_t j = 0; j < joined[i]->num_deps; j++)
			if (!comes_before(joined[i]->deps[j], s->deps, s->num_deps)) r = UNJOINED;
	*g = r ? NULL : captured;
	captured = NULL;
	return r;
}
status cuStreamGetCaptureInfo_v2(point *s, int *state, uint64_t *id, graph **g, node *const **deps, size_t *num) {
	NEED;
	*state = capturing(s), *id = capturing(s) ? capture_id : 0;
	if (capturing(s)) *g = captured, *deps = s->deps, *num = s->num_deps;
	return OK;
}
status cuGraphDestroy(graph *g) { NEED; free(g); return OK; }
status cuGraphInstantiateWithParams(graph **x, graph *g, void *p) { NEED; *x = malloc(sizeof *g); **x = *g; return OK; }
status cuGraphExecDestroy(graph *x) { NEED; free(x); return OK; }
status cuGraphUpload(graph *x, void *s) { NEED; return OK; }
status cuGraphLaunch(graph *x, void *s) {
	NEED;
	for (size_t i = 0; i < x->num; i++) {
		status r = execute(&x->nodes[i]);
		if (r) return r;
	}
	return OK;
}
status cuGraphExecUpdate_v2(graph *x, graph *g, int *info) {
	NEED;
	*info = x->num == g->num ? 0 : 2;
	if (x->num != g->num) return 910;
	*x = *g;
	return OK;
}
status cuGraphGetNodes(graph *g, node **nodes, size_t *n) {
	NEED;
	for (size_t i = 0; nodes && i < g->num; i++) nodes[i] = &g->nodes[i];
	*n = g->num;
	return OK;
}
status cuGraphGetEdges(graph *g, node **from, node **to, size_t *n) {
	NEED;
	*n = 0;
	for (size_t i = 0; i < g->num; i++)
		for (size_t j = 0; j < g->nodes[i].num_deps; j++) {
			if (from) from[*n] = g->nodes[i].deps[j], to[*n] = &g->nodes[i];
			++*n;
		}
	return OK;
}
status cuGraphNodeGetType(node *n, int *type) { NEED; *type = 0; return OK; }
status cuGraphKernelNodeGetParams_v2(node *n, void *p) {
	NEED;
	*(function **)p = n->f;
	memcpy((char *)p + 8, &n->c, 7 * sizeof(int));
	return OK;
}
#endif
