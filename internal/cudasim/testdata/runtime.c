// The runtime library, built once for each major (CUDART_MAJOR). Runs with two devices.
#include <dlfcn.h>

#include "../runtime/types.h"
#include "cases.h"

cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMallocAsync(void **, size_t, cudaStream_t);
cudaError_t cudaFreeAsync(void *, cudaStream_t);
cudaError_t cudaMallocFromPoolAsync(void **, size_t, cudaMemPool_t, cudaStream_t);
cudaError_t cudaMallocPitch(void **, size_t *, size_t, size_t);
cudaError_t cudaMalloc3D(struct cudaPitchedPtr *, struct cudaExtent);
cudaError_t cudaMallocManaged(void **, size_t, unsigned);
cudaError_t cudaMallocHost(void **, size_t);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaHostRegister(void *, size_t, unsigned);
cudaError_t cudaHostUnregister(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, enum cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemcpyPeer(void *, int, const void *, int, size_t);
cudaError_t cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, enum cudaMemcpyKind);
cudaError_t cudaMemset(void *, int, size_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t cudaMemsetAsync_ptsz(void *, int, size_t, cudaStream_t);
cudaError_t cudaMemcpy_ptds(void *, const void *, size_t, enum cudaMemcpyKind);
cudaError_t cudaMemGetInfo(size_t *, size_t *);
cudaError_t cudaGetDevice(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceCount(int *);
#if CUDART_MAJOR < 13
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *, int);
cudaError_t cudaDeviceGetAttribute(int *, int, int);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned);
cudaError_t cudaDeviceCanAccessPeer(int *, int, int);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *, int);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaStreamBeginCapture(cudaStream_t, CUstreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaStreamIsCapturing(cudaStream_t, CUstreamCaptureStatus *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaEventCreate(cudaEvent_t *);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void *);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
unsigned __cudaPushCallConfiguration(void); // a compiler's code for a launch begins with this
const char *cudaGetErrorName(cudaError_t);
const char *cudaGetErrorString(cudaError_t);
cudaError_t cudaRuntimeGetVersion(int *);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *, const void *);
cudaError_t cudaGetDriverEntryPoint(const char *, void **, unsigned long long,
				    CUdriverProcAddressQueryResult *);
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long,
					     CUdriverProcAddressQueryResult *);

// Stands in front of the library's own, like an interposing library.
static int interposed;
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags)
{
	(void)pointer, (void)size, (void)flags;
	interposed++;
	return cudaErrorUnknown;
}

CASE(memory)
{
	char *at, *other, text[16] = "";
	size_t available, total, pitch;
	OK(cudaFree(NULL)); // starts CUDA
	CHECK(cudasim_stat("contexts") == 1);
	OK(cudaMalloc((void **)&at, 0));
	CHECK(at == NULL);
	OK(cudaMalloc((void **)&at, 1000));
	OK(cudaMalloc((void **)&other, 1000));
	OK(cudaMemcpy(at, "copied around", 14, cudaMemcpyHostToDevice));
	OK(cudaMemcpy(other, at, 14, cudaMemcpyDeviceToDevice));
	OK(cudaMemcpy(text, other, 14, cudaMemcpyDefault));
	CHECK(!strcmp(text, "copied around"));
	GIVES(21, cudaMemcpy(text, other, 14, (enum cudaMemcpyKind)9));
	OK(cudaMemset(at, 'x', 3));
	OK(cudaMemcpy_ptds(text, at, 14, cudaMemcpyDeviceToHost));
	CHECK(!strncmp(text, "xxxied", 6));
	OK(cudaMemGetInfo(&available, &total));
	CHECK(total - available == 8192);
	struct cudaPointerAttributes attributes;
	OK(cudaPointerGetAttributes(&attributes, at + 10));
	CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 &&
	      attributes.devicePointer == at + 10);
	OK(cudaPointerGetAttributes(&attributes, text));
	CHECK(attributes.type == cudaMemoryTypeUnregistered && attributes.device == -2);
	OK(cudaFree(at));
	GIVES(1, cudaFree(at));
	GIVES(1, cudaMemcpy(text, at, 14, cudaMemcpyDeviceToHost));
	OK(cudaMallocPitch((void **)&at, &pitch, 100, 4));
	CHECK(pitch == 512);
	OK(cudaMemcpy2D(at, pitch, "abcdefgh", 2, 2, 4, cudaMemcpyHostToDevice));
	CHECK(at[3 * pitch] == 'g');
	struct cudaPitchedPtr pitched;
	OK(cudaMalloc3D(&pitched, (struct cudaExtent){100, 4, 2}));
	CHECK(pitched.pitch == 512 && pitched.xsize == 100 && pitched.ysize == 4);
	GIVES(1, cudaMallocManaged((void **)&at, 100, 0));
	OK(cudaMallocManaged((void **)&at, 100, 1));
	at[99] = 7;
	OK(cudaMemcpy(text, at + 99, 1, cudaMemcpyDeviceToHost));
	CHECK(text[0] == 7);
	OK(cudaFree(at));
}

CASE(errors)
{
	void *at;
	GIVES(2, cudaMalloc(&at, (size_t)1 << 50));
	CHECK(at == NULL);
	CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
	OK(cudaMalloc(&at, 1)); // success does not clear it
	CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
	CHECK(__cudaPushCallConfiguration() == cudaErrorNotSupported && cudaGetLastError() == cudaErrorNotSupported);
	CHECK(!strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
	CHECK(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
	cudasim_fail("cuMemAlloc", 1, 2);
	GIVES(2, cudaMalloc(&at, 1));
	OK(cudaMalloc(&at, 1));
}

CASE(versions)
{
	int version;
	OK(cudaRuntimeGetVersion(&version));
	CHECK(version / 1000 == CUDART_MAJOR);
	STORES(13000, cudaDriverGetVersion);
}

static void *choose(void *device)
{
	STORES(0, cudaGetDevice); // each thread starts with device 0
	OK(cudaSetDevice((int)(intptr_t)device));
	STORES((int)(intptr_t)device, cudaGetDevice);
	return NULL;
}

CASE(devices)
{
	struct {
		struct cudaDeviceProp prop;
		char guard[64];
	} space;
	STORES(2, cudaGetDeviceCount);
	OK(cudaSetDevice(1));
	GIVES(101, cudaSetDevice(2));
	STORES(1, cudaGetDevice);
	on_a_thread(choose, (void *)1);
	memset(&space, 0x55, sizeof space);
	OK(cudaGetDeviceProperties(&space.prop, 1));
	CHECK(!strcmp(space.prop.name, "cudasim") && space.prop.major == 9 &&
	      space.prop.totalGlobalMem == 8192 * MIB);
	CHECK(space.prop.warpSize == 32 && space.prop.memoryPoolsSupported == 1 && space.guard[0] == 0x55);
	STORES(9, cudaDeviceGetAttribute, 75, 1);
	void *here, *there;
	OK(cudaMalloc(&here, MIB));
	CHECK(cudasim_stat("used:1") == MIB);
	OK(cudaMemset(here, 7, MIB));
	OK(cudaSetDevice(0));
	OK(cudaMalloc(&there, MIB));
	OK(cudaMemcpyPeer(there, 0, here, 1, MIB));
	CHECK(((char *)there)[5] == 7);
	int can;
	OK(cudaDeviceCanAccessPeer(&can, 0, 1));
	CHECK(can == 1);
	GIVES(217, cudaDeviceEnablePeerAccess(0, 0)); // itself
	OK(cudaDeviceEnablePeerAccess(1, 0));
	GIVES(704, cudaDeviceEnablePeerAccess(1, 0));
	// The runtime's context is the driver's current one.
	CUcontext context;
	OK(cuDevicePrimaryCtxRetain(&context, 1));
	OK(cuCtxPushCurrent_v2(context));
	STORES(1, cudaGetDevice);
}

static int calls;
static void call(void *data)
{
	calls += *(int *)data;
}

CASE(streams_and_graphs)
{
	cudaStream_t stream;
	cudaEvent_t event;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CUstreamCaptureStatus status;
	char *at;
	int one = 1;
	OK(cudaMalloc((void **)&at, MIB));
	OK(cudaStreamCreateWithFlags(&stream, 1));
	OK(cudaEventCreate(&event));
	OK(cudaMemsetAsync(at, 1, MIB, stream));
	OK(cudaEventRecord(event, stream));
	OK(cudaStreamWaitEvent(stream, event, 0));
	CHECK(at[0] == 0);
	OK(cudaEventSynchronize(event));
	CHECK(at[0] == 1);
	OK(cudaMemsetAsync_ptsz(at, 2, 1, NULL));
	CHECK(at[0] == 1);
	OK(cudaStreamSynchronize(CU_STREAM_PER_THREAD));
	CHECK(at[0] == 2);
	OK(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cudaMemsetAsync(at, 3, MIB, stream));
	OK(cudaLaunchHostFunc(stream, call, &one));
	OK(cudaStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cudaStreamEndCapture(stream, &graph));
	OK(cudaGraphInstantiate(&exec, graph, 0));
	OK(cudaGraphLaunch(exec, stream));
	GIVES(600, cudaStreamQuery(stream)); // the host function has a thread of its own
	COMES_TRUE(cudaStreamQuery(stream));
	OK(cudaGetLastError());
	CHECK(at[9] == 3 && calls == 1);
	OK(cudaLaunchHostFunc(stream, call, &one));
	OK(cudaEventRecord(event, stream));
	GIVES(600, cudaEventQuery(event));
	COMES_TRUE(cudaEventQuery(event));
	CHECK(calls == 2);
	OK(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GIVES(900, cudaMalloc((void **)&at, MIB));
	GIVES(901, cudaStreamEndCapture(stream, &graph));
	OK(cudaMallocAsync((void **)&at, MIB, stream));
	OK(cudaFreeAsync(at, stream));
	cudaMemPool_t pool;
	OK(cudaDeviceGetDefaultMemPool(&pool, 0));
	OK(cudaMallocFromPoolAsync((void **)&at, MIB, pool, stream));
	OK(cudaMemPoolTrimTo(pool, 0));
	OK(cudaStreamDestroy(stream));
}

CASE(host_memory)
{
	char *pinned, *mine = malloc(MIB), *at;
	OK(cudaMallocHost((void **)&pinned, MIB));
	CHECK(interposed == 0); // the library does not call itself through the interposer
	OK(cudaHostRegister(mine, MIB, 0));
	OK(cudaMalloc((void **)&at, MIB));
	strcpy(mine, "mine");
	OK(cudaMemcpyAsync(at, mine, 5, cudaMemcpyHostToDevice, NULL));
	OK(cudaMemcpyAsync(pinned, at, 5, cudaMemcpyDeviceToHost, NULL));
	CHECK(strcmp(pinned, "mine"));
	OK(cudaDeviceSynchronize());
	CHECK(!strcmp(pinned, "mine"));
	OK(cudaHostUnregister(mine));
	OK(cudaFreeHost(pinned));
	GIVES(1, cudaFreeHost(mine));
}

CASE(entry_points)
{
	// Every way to a driver function leads to the same function.
	void *function, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	CUdriverProcAddressQueryResult status;
	const struct {
		const char *name, *symbol;
		int version;
	} wanted[] = {
		{"cuMemCreate", "cuMemCreate", 10020},
		{"cuMemMap", "cuMemMap", 12000},
		{"cuMemAddressReserve", "cuMemAddressReserve", 12000},
		{"cuMemSetAccess", "cuMemSetAccess", 12000},
		{"cuMemUnmap", "cuMemUnmap", 12000},
		{"cuMemRelease", "cuMemRelease", 13000},
		{"cuMemAlloc", "cuMemAlloc_v2", 12000},
		{"cuMemAlloc", "cuMemAlloc_v2", 3020},
		{"cuMemHostRegister", "cuMemHostRegister_v2", 12000},
		{"cuDeviceGetUuid", "cuDeviceGetUuid", 11020},
		{"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 12000},
		{"cuCtxCreate", "cuCtxCreate_v4", 13000},
		{"cuCtxCreate", "cuCtxCreate_v2", 11000},
		{"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000},
		{"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
		{"cuEventElapsedTime", "cuEventElapsedTime_v2", 13000},
	};
	CHECK(library);
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		void *expected = dlsym(library, wanted[i].symbol);
		CHECK(expected);
		OK(cudaGetDriverEntryPointByVersion(wanted[i].name, &function, (unsigned)wanted[i].version, 0,
						    &status));
		CHECK(function == expected && status == CU_GET_PROC_ADDRESS_SUCCESS);
		OK(cuGetProcAddress_v2(wanted[i].name, &function, wanted[i].version, 0, &status));
		CHECK(function == expected);
	}
	OK(cudaGetDriverEntryPoint("cuMemMap", &function, 0, &status));
	CHECK(function == dlsym(library, "cuMemMap"));
	OK(cuGetProcAddress_v2("cuMemcpyHtoDAsync", &function, 12000, 2, NULL)); // per-thread default stream
	CHECK(function == dlsym(library, "cuMemcpyHtoDAsync_v2_ptsz"));
	OK(cuGetProcAddress_v2("cuMemMap", &function, 12000, 2, NULL)); // which has no such variant
	CHECK(function == dlsym(library, "cuMemMap"));
	OK(cudaGetDriverEntryPointByVersion("cuNoSuch", &function, 12000, 0, &status));
	CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	OK(cudaGetDriverEntryPointByVersion("cuMemMap", &function, 10010, 0, &status));
	CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	GIVES(1, cudaGetDriverEntryPointByVersion("cuMemMap", &function, 99000, 0, &status));
	GIVES(500, cuGetProcAddress("cuNoSuch", &function, 12000, 0));
}

CASE(reset)
{
	void *at;
	OK(cudaSetDevice(1));
	OK(cudaMalloc(&at, MIB));
	OK(cudaDeviceReset());
	CHECK(faults((CUdeviceptr)at));
	OK(cudaMalloc(&at, MIB)); // starts again, on the same device
	CHECK(cudasim_stat("used:1") == MIB);
	cudasim_reset();
	OK(cudaMalloc(&at, MIB));
	CHECK(cudasim_stat("used:1") == MIB);
	OK(cudaDeviceSynchronize());
}

CASE(lost_context)
{
	void *at;
	CUdeviceptr vmm;
	OK(cudaFree(NULL));
	vmm = mapped(GRANULE);
	OK(cudaMemsetAsync((void *)vmm, 1, 1, NULL));
	OK(cuMemUnmap(vmm, GRANULE));
	GIVES(700, cudaDeviceSynchronize());
	GIVES(700, cudaMalloc(&at, 1));
	GIVES(700, cudaGetLastError());
	OK(cudaDeviceReset());
	OK(cudaMalloc(&at, 1));
}

// Said once: only that libcudart looks this function up.
CASE(asked_by_nvidias_own)
{
	void *function = &function;
	for (int i = 0; i < 2; i++) {
		GIVES(500, cuGetProcAddress("cuGetExportTable", &function, 12000, 0));
		CHECK(!function);
	}
}
