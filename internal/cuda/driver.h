/* Calls of the driver that set the calling thread's context first. A goroutine may change threads between two cgo
 * calls, so nothing here relies on what was current before. All return 0, the driver's status, or the negative
 * status of cuCtxSetCurrent. Arguments are plain values and flat memory: no Go pointer to a Go pointer. */
#ifndef MOEGRAPH_DRIVER_H
#define MOEGRAPH_DRIVER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#if CUDA_VERSION < 12000
#error "CUDA headers: want version 12.0 or later"
#endif

/* Entry points that differ between CUDA 12 and 13, or that early versions of 12 lack, by their full names. */
#if CUDA_VERSION < 12030
typedef struct {
	unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
#endif
CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
	const CUgraphNode **, size_t *);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
	const CUgraphNode **, const CUgraphEdgeData **, size_t *);
CUresult CUDAAPI cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *);
CUresult CUDAAPI cuFuncGetName(const char **, CUfunction);
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction, size_t, size_t *, size_t *);

const char *moe_error_name(int status);
const char *moe_error_text(int status);
int moe_thread(void);

/* Streams and events. */
int moe_stream_sync(CUcontext, CUstream);
int moe_stream_query(CUcontext, CUstream);
int moe_stream_wait(CUcontext, CUstream, CUevent);
int moe_event_record(CUcontext, CUevent, CUstream);
int moe_event_sync(CUcontext, CUevent);
int moe_event_query(CUcontext, CUevent);
int moe_context_sync(CUcontext);

/* Memory. The copies without a stream's name come back when done; the caller's memory may be Go's. */
int moe_write(CUcontext, CUstream, CUdeviceptr dst, const void *src, size_t n);
int moe_read(CUcontext, CUstream, void *dst, CUdeviceptr src, size_t n);
int moe_write_async(CUcontext, CUstream, CUdeviceptr dst, uintptr_t src, size_t n);
int moe_read_async(CUcontext, CUstream, uintptr_t dst, CUdeviceptr src, size_t n);
int moe_copy_async(CUcontext, CUstream, CUdeviceptr dst, CUdeviceptr src, size_t n);
int moe_fill8_async(CUcontext, CUstream, CUdeviceptr dst, unsigned char value, size_t n);
int moe_fill32_async(CUcontext, CUstream, CUdeviceptr dst, unsigned int value, size_t n);
int moe_pinned_alloc(CUcontext, uintptr_t *p, size_t n);
int moe_pinned_free(CUcontext, uintptr_t p);

/* Functions and launches. */
typedef struct {
	unsigned int grid[3], block[3];
	unsigned int shared_bytes;
	unsigned int cluster; /* thread blocks along x; 0: none */
	int programmatic;     /* may start before its predecessor ends */
} moe_launch_config;

int moe_launch(CUcontext, CUstream, CUfunction, const moe_launch_config *, const void *args, size_t size);
int moe_function_set(CUcontext, CUfunction, int attribute, int value);
int moe_function_param(CUcontext, CUfunction, size_t index, size_t *offset, size_t *size);
int moe_function_name(CUcontext, CUfunction, const char **name);
int moe_max_clusters(CUcontext, CUfunction, const moe_launch_config *, int *clusters);

/* Capture and graphs. */
typedef struct {
	uint64_t id; /* 0: not capturing */
	int status;  /* CUstreamCaptureStatus */
	CUgraph graph;
	CUgraphNode deps[64]; /* the first of num_deps nodes that the stream's next one would depend on */
	size_t num_deps;
} moe_capture_info;

typedef struct {
	int type; /* CUgraphNodeType */
	CUfunction function;
	unsigned int grid[3], block[3];
	unsigned int shared_bytes;
	int src_kind, dst_kind; /* CUmemorytype of a copy */
	uint64_t src, dst;      /* addresses of a copy; dst of a fill */
	uint64_t bytes;
} moe_node_info;

typedef struct {
	int result;     /* CUgraphInstantiateResult or CUgraphExecUpdateResult */
	CUgraphNode node; /* the node at fault; NULL: none */
} moe_graph_fault;

int moe_capture_begin(CUcontext, CUstream);
int moe_capture_end(CUcontext, CUstream, CUgraph *);
int moe_capture_info_of(CUcontext, CUstream, moe_capture_info *);
int moe_graph_nodes(CUcontext, CUgraph, CUgraphNode *nodes, size_t *num);
int moe_graph_edges(CUcontext, CUgraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *kind, size_t *num);
int moe_node_info_of(CUcontext, CUgraphNode, moe_node_info *);
int moe_graph_instantiate(CUcontext, CUgraph, CUgraphExec *, moe_graph_fault *);
int moe_graph_update(CUcontext, CUgraphExec, CUgraph, moe_graph_fault *);
int moe_graph_upload(CUcontext, CUgraphExec, CUstream);
int moe_graph_launch(CUcontext, CUgraphExec, CUstream);
int moe_graph_memory(CUcontext, CUdevice, uint64_t *bytes);

/* Tensor maps. */
int moe_tensor_map(void *out, int type, unsigned int rank, uint64_t address, const uint64_t *dims,
	const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,
	int promotion, int fill);

#endif
