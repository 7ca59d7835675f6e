//go:build gpu

/* Capture and graphs; see driver.h. */

#include "driver.h"
#include "driver_enter.h"
#include "shim.h"
#include <string.h>

/* Whether a status says that the driver is too old to have the call. */
#define LACKS(r) ((r) == SHIM_NO_DRIVER || (r) == SHIM_OLD_DRIVER)

int moe_capture_begin(CUcontext ctx, CUstream s) {
	ENTER(ctx);
	return cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

int moe_capture_end(CUcontext ctx, CUstream s, CUgraph *g) {
	ENTER(ctx);
	return cuStreamEndCapture(s, g);
}

int moe_capture_info_of(CUcontext ctx, CUstream s, moe_capture_info *info) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	cuuint64_t id = 0;
	const CUgraphNode *deps = NULL;
	memset(info, 0, sizeof *info);
	ENTER(ctx);
	const CUgraphEdgeData *kinds = NULL;
	CUresult r = cuStreamGetCaptureInfo_v3(s, &status, &id, &info->graph, &deps, &kinds, &info->num_deps);
	if (LACKS(r))
		r = cuStreamGetCaptureInfo_v2(s, &status, &id, &info->graph, &deps, &info->num_deps);
	TRY(r);
	info->status = (int)status;
	if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
		info->num_deps = 0;
		return 0;
	}
	info->id = id;
	for (size_t i = 0; i < info->num_deps && i < sizeof info->deps / sizeof info->deps[0]; i++)
		info->deps[i] = deps[i];
	return 0;
}

int moe_graph_nodes(CUcontext ctx, CUgraph g, CUgraphNode *nodes, size_t *num) {
	ENTER(ctx);
	return cuGraphGetNodes(g, nodes, num);
}

int moe_graph_edges(CUcontext ctx, CUgraph g, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *kind, size_t *num) {
	ENTER(ctx);
	/* The first version refuses edges with data, such as those of programmatic launches. */
	CUresult r = cuGraphGetEdges_v2(g, from, to, kind, num);
	return LACKS(r) ? cuGraphGetEdges(g, from, to, num) : r;
}

static int kernel_info(CUgraphNode n, moe_node_info *info) {
	CUDA_KERNEL_NODE_PARAMS p;
	memset(&p, 0, sizeof p);
	TRY(cuGraphKernelNodeGetParams(n, &p));
	info->function = p.func;
	info->grid[0] = p.gridDimX, info->grid[1] = p.gridDimY, info->grid[2] = p.gridDimZ;
	info->block[0] = p.blockDimX, info->block[1] = p.blockDimY, info->block[2] = p.blockDimZ;
	info->shared_bytes = p.sharedMemBytes;
	return 0;
}

static int copy_info(CUgraphNode n, moe_node_info *info) {
	CUDA_MEMCPY3D p;
	memset(&p, 0, sizeof p);
	TRY(cuGraphMemcpyNodeGetParams(n, &p));
	info->src_kind = (int)p.srcMemoryType, info->dst_kind = (int)p.dstMemoryType;
	info->src = p.srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p.srcHost : (uint64_t)p.srcDevice;
	info->dst = p.dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p.dstHost : (uint64_t)p.dstDevice;
	info->bytes = (uint64_t)p.WidthInBytes * p.Height * p.Depth;
	return 0;
}

static int fill_info(CUgraphNode n, moe_node_info *info) {
	CUDA_MEMSET_NODE_PARAMS p;
	memset(&p, 0, sizeof p);
	TRY(cuGraphMemsetNodeGetParams(n, &p));
	info->dst = p.dst;
	info->bytes = (uint64_t)p.elementSize * p.width * p.height;
	return 0;
}

int moe_node_info_of(CUcontext ctx, CUgraphNode n, moe_node_info *info) {
	CUgraphNodeType type;
	memset(info, 0, sizeof *info);
	ENTER(ctx);
	TRY(cuGraphNodeGetType(n, &type));
	info->type = (int)type;
	switch (type) {
	case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_info(n, info);
	case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_info(n, info);
	case CU_GRAPH_NODE_TYPE_MEMSET: return fill_info(n, info);
	default: return 0;
	}
}

int moe_graph_instantiate(CUcontext ctx, CUgraph g, CUgraphExec *exec, moe_graph_fault *fault) {
	CUDA_GRAPH_INSTANTIATE_PARAMS p;
	memset(&p, 0, sizeof p);
	memset(fault, 0, sizeof *fault);
	ENTER(ctx);
	CUresult r = cuGraphInstantiateWithParams(exec, g, &p);
	fault->result = (int)p.result_out;
	fault->node = p.hErrNode_out;
	return (int)r;
}

int moe_graph_update(CUcontext ctx, CUgraphExec exec, CUgraph g, moe_graph_fault *fault) {
	CUgraphExecUpdateResultInfo info;
	memset(&info, 0, sizeof info);
	memset(fault, 0, sizeof *fault);
	ENTER(ctx);
	CUresult r = cuGraphExecUpdate(exec, g, &info);
	fault->result = (int)info.result;
	fault->node = info.errorNode;
	return (int)r;
}

int moe_graph_upload(CUcontext ctx, CUgraphExec exec, CUstream s) {
	ENTER(ctx);
	return cuGraphUpload(exec, s);
}

int moe_graph_launch(CUcontext ctx, CUgraphExec exec, CUstream s) {
	ENTER(ctx);
	return cuGraphLaunch(exec, s);
}

int moe_graph_memory(CUcontext ctx, CUdevice d, uint64_t *bytes) {
	cuuint64_t n = 0;
	ENTER(ctx);
	TRY(cuDeviceGetGraphMemAttribute(d, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &n));
	*bytes = n;
	return 0;
}
