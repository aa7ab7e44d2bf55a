// Contexts, several devices, and what a call requires before it. Runs with three devices.
#include "cases.h"

CASE(before_init)
{
	CUmemAllocationProp prop = device_memory(0);
	const char *text;
	GIVES(3, cuDeviceGetCount(&(int){0}));
	GIVES(3, cuDevicePrimaryCtxRetain(&(CUcontext){0}, 0));
	GIVES(3, cuCtxGetCurrent(&(CUcontext){0}));
	GIVES(3, cuMemAddressReserve(&(CUdeviceptr){0}, GRANULE, 0, 0, 0));
	GIVES(3, cuMemCreate(&(CUmemGenericAllocationHandle){0}, GRANULE, &prop, 0));
	GIVES(3, cuMemAlloc_v2(&(CUdeviceptr){0}, 1));
	GIVES(3, cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}));
	STORES(13000, cuDriverGetVersion);
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(!strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"));
	OK(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
	CHECK(!strcmp(text, "an illegal memory access was encountered"));
	GIVES(1, cuGetErrorName((CUresult)12345, &text));
	GIVES(1, cuInit(1));
	OK(cuInit(0));
	OK(cuInit(0));
}

CASE(without_a_context)
{
	OK(cuInit(0));
	GIVES(201, cuMemAlloc_v2(&(CUdeviceptr){0}, 1));
	GIVES(201, cuMemFree_v2(0));
	GIVES(201, cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}));
	GIVES(201, cuCtxSynchronize());
	GIVES(201, cuStreamCreate(&(CUstream){0}, 0));
	GIVES(201, cuEventCreate(&(CUevent){0}, 0));
	GIVES(201, cuMemHostAlloc(&(void *){0}, 1, 0));
	GIVES(201, cuMemsetD8_v2(1, 0, 1));
	GIVES(201, cuStreamSynchronize(NULL));
	GIVES(201, cuCtxGetDevice(&(CUdevice){0}));
	// Memory by handle needs no context.
	CUdeviceptr at = mapped(GRANULE);
	CHECK(!faults(at));
	OK(cuMemUnmap(at, GRANULE));
}

static CUcontext current(void)
{
	CUcontext context;
	OK(cuCtxGetCurrent(&context));
	return context;
}

CASE(the_stack)
{
	OK(cuInit(0));
	CUcontext zero, one, same, popped;
	OK(cuDevicePrimaryCtxRetain(&zero, 0));
	OK(cuDevicePrimaryCtxRetain(&one, 1));
	OK(cuDevicePrimaryCtxRetain(&same, 0));
	CHECK(zero == same && zero != one && current() == NULL);
	OK(cuCtxSetCurrent(zero));
	OK(cuCtxPushCurrent_v2(one));
	CHECK(current() == one);
	STORES(1, cuCtxGetDevice);
	OK(cuCtxSetCurrent(zero)); // replaces the top
	OK(cuCtxPopCurrent_v2(&popped));
	CHECK(popped == zero && current() == zero);
	OK(cuCtxSetCurrent(NULL));
	CHECK(current() == NULL);
	GIVES(201, cuCtxPopCurrent_v2(&popped));
	GIVES(201, cuCtxSetCurrent((CUcontext)0x1230));
	GIVES(201, cuCtxPushCurrent_v2((CUcontext)0x1230));
	GIVES(101, cuDevicePrimaryCtxRetain(&zero, 3));
}

static void *other_thread(void *context)
{
	CHECK(current() == NULL); // each thread has its own stack
	OK(cuCtxSetCurrent(context));
	OK(cuMemGetInfo_v2(&(size_t){0}, NULL));
	return NULL;
}

CASE(per_thread)
{
	CUcontext context = start(0);
	on_a_thread(other_thread, context);
	CHECK(current() == context);
}

CASE(primary_contexts)
{
	unsigned flags;
	int active;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	CHECK(!active);
	CUcontext context = start(1), again;
	OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	CHECK(active);
	CUdeviceptr at = allocate(MIB);
	OK(cuDevicePrimaryCtxRetain(&again, 1));
	OK(cuDevicePrimaryCtxRelease_v2(1));
	CHECK(cudasim_stat("allocations") == 1);
	OK(cuDevicePrimaryCtxRelease_v2(1)); // the last reference: its memory goes
	CHECK(cudasim_stat("allocations") == 0 && faults(at));
	GIVES(201, cuDevicePrimaryCtxRelease_v2(1));
	GIVES(709, cuCtxSynchronize());
	STORES(context, cuDevicePrimaryCtxRetain, 1); // the same handle as before
	OK(cuCtxSynchronize());
	CUdeviceptr vmm = mapped(GRANULE);
	OK(cuDevicePrimaryCtxReset_v2(1));
	CHECK(!faults(vmm)); // memory by handle belongs to no context
	OK(cuCtxPushCurrent_v2(context)); // a thread can push a context that is gone
	GIVES(709, cuCtxSynchronize());
	OK(cuCtxPopCurrent_v2(&again));
	OK(cuDevicePrimaryCtxRetain(&again, 1)); // the reference from before the reset still exists
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuCtxSynchronize());
	OK(cuDevicePrimaryCtxRelease_v2(1));
	GIVES(709, cuCtxSynchronize());
}

CASE(created_contexts)
{
	CUcontext primary = start(0), made, other;
	OK(cuCtxCreate_v4(&made, NULL, 0, 0));
	CHECK(made != primary && current() == made);
	allocate(MIB);
	CUstream stream = stream_new(0);
	OK(cuStreamGetCtx(stream, &other));
	CHECK(other == made);
	OK(cuCtxDestroy_v2(made));
	CHECK(current() == primary && cudasim_stat("allocations") == 0);
	GIVES(400, cuStreamSynchronize(stream));
	GIVES(201, cuCtxDestroy_v2(made));
	GIVES(201, cuCtxDestroy_v2(primary));
}

CASE(devices_are_separate)
{
	int value;
	char name[64];
	size_t total, available;
	CUuuid uuid, other;
	CUdevice device;
	start(0);
	STORES(3, cuDeviceGetCount);
	GIVES(101, cuDeviceGet(&device, 3));
	OK(cuDeviceGetName(name, sizeof name, 1));
	CHECK(!strcmp(name, "cudasim"));
	OK(cuDeviceGetUuid_v2(&uuid, 0));
	OK(cuDeviceGetUuid_v2(&other, 1));
	CHECK(memcmp(&uuid, &other, sizeof uuid));
	OK(cuDeviceTotalMem_v2(&total, 1));
	const int expected[][2] = {{75, 9}, {76, 0}, {102, 1}, {41, 1}, {103, 1}, {115, 1}};
	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
		OK(cuDeviceGetAttribute(&value, expected[i][0], 0));
		CHECK(value == expected[i][1]);
	}
	GIVES(1, cuDeviceGetAttribute(&value, 100000, 0));
	CUmemAllocationProp prop = device_memory(1);
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, 8 * GRANULE, &prop, 0));
	OK(cuMemGetInfo_v2(&available, &total));
	CHECK(available == total); // device 0's
	start(1);
	OK(cuMemGetInfo_v2(&available, &total));
	CHECK(available == total - 8 * GRANULE);
	CHECK(cudasim_stat("used:1") == 8 * GRANULE && cudasim_stat("used:0") == 0);
}

CASE(peers)
{
	CUcontext zero = start(0), one = start(1);
	STORES(1, cuDeviceCanAccessPeer, 0, 1);
	STORES(0, cuDeviceCanAccessPeer, 1, 1);
	OK(cuCtxEnablePeerAccess(zero, 0));
	GIVES(704, cuCtxEnablePeerAccess(zero, 0));
	GIVES(217, cuCtxEnablePeerAccess(one, 0));
	GIVES(1, cuCtxEnablePeerAccess(zero, 1));
	GIVES(201, cuCtxEnablePeerAccess(NULL, 0));
	CUdeviceptr here = allocate(MIB);
	OK(cuMemsetD8_v2(here, 3, MIB));
	OK(cuCtxSetCurrent(zero));
	CUdeviceptr there = allocate(MIB);
	OK(cuMemcpyPeer(there, zero, here, one, MIB));
	CHECK(bytes(there)[MIB - 1] == 3);
	GIVES(201, cuMemcpyPeer(there, zero, here, (CUcontext)0x10, MIB));
	// Access to mapped memory is each device's own.
	CUdeviceptr at = mapped(GRANULE);
	CHECK(access_at(at, 1) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	OK(set_access(at, GRANULE, 1, CU_MEM_ACCESS_FLAGS_PROT_READ));
	CHECK(access_at(at, 1) == CU_MEM_ACCESS_FLAGS_PROT_READ);
	CHECK(access_at(at, 0) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

// Maps memory of a device, with access for the devices in the mask.
static CUdeviceptr mapped_on(int device, unsigned mask)
{
	CUmemAllocationProp prop = device_memory(device);
	CUmemGenericAllocationHandle handle;
	CUmemAccessDesc access[3];
	size_t count = 0;
	CUdeviceptr at = reserve(GRANULE);
	OK(cuMemCreate(&handle, GRANULE, &prop, 0));
	OK(cuMemMap(at, GRANULE, 0, handle, 0));
	OK(cuMemRelease(handle));
	for (int i = 0; i < 3; i++)
		if (mask >> i & 1)
			access[count++] = access_of(i, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemSetAccess(at, GRANULE, access, count));
	return at;
}

// As seen on two H200s, driver 580: a copy is checked against the device of the current context, not of the stream; a
// copy between peers against the named devices; a fill also against peer access.
CASE(access_by_device)
{
	CUcontext zero = start(0), one = start(1);
	CUdeviceptr plain = allocate(GRANULE);
	CUstream streams[] = {NULL, apart()};
	OK(cuCtxSetCurrent(zero));
	streams[0] = apart();
	CUdeviceptr here = mapped_on(0, 1);
	void *host = pinned(GRANULE);
	for (unsigned mask = 1; mask < 4; mask++) {
		CUdeviceptr there = mapped_on(1, mask);
		int zeros = mask & 1 ? 0 : 1, ones = mask & 2 ? 0 : 1;
		for (int i = 0; i < 2; i++) {
			GIVES(zeros, cuMemcpyDtoDAsync_v2(there, here, MIB, streams[i]));
			GIVES(zeros, cuMemcpyDtoDAsync_v2(here, there, MIB, streams[i]));
			GIVES(zeros, cuMemcpyAsync(here, there, MIB, streams[i]));
			GIVES(zeros, cuMemcpyDtoHAsync_v2(host, there, MIB, streams[i]));
			GIVES(ones, cuMemcpyPeerAsync(there, one, here, zero, MIB, streams[i]));
			GIVES(ones, cuMemcpyPeerAsync(here, zero, there, one, MIB, streams[i]));
			GIVES(1, cuMemcpyPeerAsync(here, one, there, one, MIB, streams[i]));
		}
		GIVES(zeros, cuMemsetD8Async(there, 1, MIB, streams[0]));
		OK(cuCtxSetCurrent(one));
		GIVES(1, cuMemcpyDtoDAsync_v2(there, here, MIB, streams[1]));
		OK(cuCtxSetCurrent(zero));
		OK(cuStreamSynchronize(streams[0]));
		OK(cuStreamSynchronize(streams[1]));
	}
	// Memory of cuMemAlloc can be copied from anywhere; filling it takes peer access.
	OK(cuMemcpyDtoDAsync_v2(plain, here, MIB, streams[0]));
	OK(cuMemcpyPeerAsync(plain, zero, here, zero, MIB, streams[0]));
	GIVES(1, cuMemsetD8Async(plain, 1, MIB, streams[0]));
	OK(cuCtxEnablePeerAccess(one, 0));
	OK(cuMemsetD8Async(plain, 1, MIB, streams[0]));
	OK(cuStreamSynchronize(streams[0]));
	CHECK(bytes(plain)[MIB - 1] == 1);
	// Access taken away while a copy is in flight.
	CUdeviceptr there = mapped_on(1, 3);
	OK(cuMemcpyDtoDAsync_v2(there, here, MIB, streams[0]));
	OK(set_access(there, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	GIVES(700, cuStreamSynchronize(streams[0]));
}

CASE(no_peers)
{
	CUcontext zero = start(0), one = start(1);
	STORES(0, cuDeviceCanAccessPeer, 0, 1);
	GIVES(217, cuCtxEnablePeerAccess(zero, 0));
	CUdeviceptr at = mapped_on(0, 1), here;
	CUmemAccessDesc access[] = {access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READ),
				    access_of(1, CU_MEM_ACCESS_FLAGS_PROT_READ)};
	GIVES(101, cuMemSetAccess(at, GRANULE, access, 2));
	CHECK(access_at(at, 0) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE); // nothing has changed
	here = allocate(MIB);
	GIVES(1, cuMemcpyDtoD_v2(here, at, MIB));
	OK(cuMemcpyPeer(here, one, at, zero, MIB)); // staged
}

CASE(one_lost_context_is_not_all)
{
	CUcontext zero = start(0);
	CUdeviceptr at = mapped(GRANULE);
	OK(cuMemsetD8Async(at, 1, 1, CU_STREAM_PER_THREAD));
	OK(cuMemUnmap(at, GRANULE));
	GIVES(700, cuCtxSynchronize());
	start(1);
	OK(cuCtxSynchronize());
	allocate(MIB);
	OK(cuCtxSetCurrent(zero)); // it can still be made current, but every call fails
	GIVES(700, cuCtxSynchronize());
}
