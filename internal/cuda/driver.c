//go:build gpu

#define _GNU_SOURCE
#include "driver.h"
#include "driver_enter.h"
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *moe_error_name(int status) {
	const char *s = NULL;
	return cuGetErrorName((CUresult)status, &s) == CUDA_SUCCESS ? s : NULL;
}

const char *moe_error_text(int status) {
	const char *s = NULL;
	return cuGetErrorString((CUresult)status, &s) == CUDA_SUCCESS ? s : NULL;
}

int moe_thread(void) { return (int)syscall(SYS_gettid); }

/* Streams and events. */

int moe_stream_sync(CUcontext ctx, CUstream s) {
	ENTER(ctx);
	return cuStreamSynchronize(s);
}

int moe_stream_query(CUcontext ctx, CUstream s) {
	ENTER(ctx);
	return cuStreamQuery(s);
}

int moe_stream_wait(CUcontext ctx, CUstream s, CUevent e) {
	ENTER(ctx);
	return cuStreamWaitEvent(s, e, 0);
}

int moe_event_record(CUcontext ctx, CUevent e, CUstream s) {
	ENTER(ctx);
	return cuEventRecord(e, s);
}

int moe_event_sync(CUcontext ctx, CUevent e) {
	ENTER(ctx);
	return cuEventSynchronize(e);
}

int moe_event_query(CUcontext ctx, CUevent e) {
	ENTER(ctx);
	return cuEventQuery(e);
}

int moe_context_sync(CUcontext ctx) {
	ENTER(ctx);
	return cuCtxSynchronize();
}

/* Memory. */

int moe_write(CUcontext ctx, CUstream s, CUdeviceptr dst, const void *src, size_t n) {
	ENTER(ctx);
	TRY(cuMemcpyHtoDAsync(dst, src, n, s));
	return cuStreamSynchronize(s);
}

int moe_read(CUcontext ctx, CUstream s, void *dst, CUdeviceptr src, size_t n) {
	ENTER(ctx);
	TRY(cuMemcpyDtoHAsync(dst, src, n, s));
	return cuStreamSynchronize(s);
}

int moe_write_async(CUcontext ctx, CUstream s, CUdeviceptr dst, uintptr_t src, size_t n) {
	ENTER(ctx);
	return cuMemcpyHtoDAsync(dst, (const void *)src, n, s);
}

int moe_read_async(CUcontext ctx, CUstream s, uintptr_t dst, CUdeviceptr src, size_t n) {
	ENTER(ctx);
	return cuMemcpyDtoHAsync((void *)dst, src, n, s);
}

int moe_copy_async(CUcontext ctx, CUstream s, CUdeviceptr dst, CUdeviceptr src, size_t n) {
	ENTER(ctx);
	return cuMemcpyDtoDAsync(dst, src, n, s);
}

int moe_fill8_async(CUcontext ctx, CUstream s, CUdeviceptr dst, unsigned char value, size_t n) {
	ENTER(ctx);
	return cuMemsetD8Async(dst, value, n, s);
}

int moe_fill32_async(CUcontext ctx, CUstream s, CUdeviceptr dst, unsigned int value, size_t n) {
	ENTER(ctx);
	return cuMemsetD32Async(dst, value, n, s);
}

int moe_pinned_alloc(CUcontext ctx, uintptr_t *p, size_t n) {
	void *q = NULL;
	ENTER(ctx);
	TRY(cuMemHostAlloc(&q, n, CU_MEMHOSTALLOC_PORTABLE));
	*p = (uintptr_t)q;
	return 0;
}

int moe_pinned_free(CUcontext ctx, uintptr_t p) {
	ENTER(ctx);
	return cuMemFreeHost((void *)p);
}

/* Functions and launches. */

static CUlaunchConfig launch_config(const moe_launch_config *c, CUstream s, CUlaunchAttribute attrs[2]) {
	CUlaunchConfig l;
	memset(&l, 0, sizeof l);
	l.gridDimX = c->grid[0], l.gridDimY = c->grid[1], l.gridDimZ = c->grid[2];
	l.blockDimX = c->block[0], l.blockDimY = c->block[1], l.blockDimZ = c->block[2];
	l.sharedMemBytes = c->shared_bytes;
	l.hStream = s;
	l.attrs = attrs;
	memset(attrs, 0, 2 * sizeof attrs[0]);
	if (c->cluster > 0) {
		CUlaunchAttribute *a = &attrs[l.numAttrs++];
		a->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
		a->value.clusterDim.x = c->cluster, a->value.clusterDim.y = 1, a->value.clusterDim.z = 1;
	}
	if (c->programmatic) {
		CUlaunchAttribute *a = &attrs[l.numAttrs++];
		a->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
		a->value.programmaticStreamSerializationAllowed = 1;
	}
	return l;
}

int moe_launch(CUcontext ctx, CUstream s, CUfunction f, const moe_launch_config *c, const void *args, size_t size) {
	CUlaunchAttribute attrs[2];
	CUlaunchConfig l = launch_config(c, s, attrs);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
		CU_LAUNCH_PARAM_END};
	ENTER(ctx);
	return cuLaunchKernelEx(&l, f, NULL, size > 0 ? extra : NULL);
}

int moe_function_set(CUcontext ctx, CUfunction f, int attribute, int value) {
	ENTER(ctx);
	return cuFuncSetAttribute(f, (CUfunction_attribute)attribute, value);
}

int moe_function_param(CUcontext ctx, CUfunction f, size_t index, size_t *offset, size_t *size) {
	ENTER(ctx);
	return cuFuncGetParamInfo(f, index, offset, size);
}

int moe_function_name(CUcontext ctx, CUfunction f, const char **name) {
	ENTER(ctx);
	return cuFuncGetName(name, f);
}

int moe_max_clusters(CUcontext ctx, CUfunction f, const moe_launch_config *c, int *clusters) {
	CUlaunchAttribute attrs[2];
	CUlaunchConfig l = launch_config(c, NULL, attrs);
	ENTER(ctx);
	return cuOccupancyMaxActiveClusters(clusters, f, &l);
}

/* Tensor maps. */

int moe_tensor_map(void *out, int type, unsigned int rank, uint64_t address, const uint64_t *dims,
	const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,
	int promotion, int fill) {
	CUtensorMap map; /* aligned as the driver wants it, which Go memory need not be */
	cuuint64_t d[5], st[5];
	for (unsigned int i = 0; i < rank && i < 5; i++) {
		d[i] = dims[i];
		if (i + 1 < rank)
			st[i] = strides[i];
	}
	TRY(cuTensorMapEncodeTiled(&map, (CUtensorMapDataType)type, rank, (void *)(uintptr_t)address, d, st, box, steps,
		(CUtensorMapInterleave)interleave, (CUtensorMapSwizzle)swizzle, (CUtensorMapL2promotion)promotion,
		(CUtensorMapFloatOOBfill)fill));
	memcpy(out, &map, sizeof map);
	return 0;
}
