// cuMemAlloc, host memory, copies, and queries about a pointer.
#include "fixture.h"

static void allocate_use_free(void)
{
	start(0);
	CUdeviceptr one, other;
	OK(cuMemAlloc_v2(&one, 1000));
	OK(cuMemAlloc_v2(&other, 3 * MIB));
	CHECK(one % 512 == 0 && other % 512 == 0);
	CHECK(cudasim_stat("allocations") == 2);
	char text[32] = "";
	OK(cuMemcpyHtoD_v2(one, "through the device", 19));
	OK(cuMemcpyDtoD_v2(other + 2 * MIB, one, 19));
	OK(cuMemcpyDtoH_v2(text, other + 2 * MIB, 19));
	CHECK(!strcmp(text, "through the device"));
	CUdeviceptr base;
	size_t size;
	OK(cuMemGetAddressRange_v2(&base, &size, one + 999));
	CHECK(base == one && size == 1000);
	OK(cuMemFree_v2(one));
	CHECK(faults(one));
	GIVES(1, cuMemFree_v2(one));
	GIVES(1, cuMemFree_v2(other + 512));
	GIVES(1, cuMemcpyDtoH_v2(text, one, 4));
	OK(cuMemFree_v2(other));
	OK(cuMemFree_v2(0));
	CHECK(cudasim_stat("used:0") == 0);
	GIVES(1, cuMemAlloc_v2(&one, 0));
	GIVES(2, cuMemAlloc_v2(&one, (size_t)1 << 60));
}

static void addresses_are_used_again(void)
{
	start(0);
	CUdeviceptr first, next;
	OK(cuMemAlloc_v2(&first, 5 * MIB));
	memset(bytes(first), 0xAB, 5 * MIB);
	OK(cuMemFree_v2(first));
	OK(cuMemAlloc_v2(&next, 5 * MIB));
	CHECK(next == first);
	CHECK(bytes(next)[123] == 0); // nothing of the old contents is left
}

static void vmm_and_alloc_do_not_mix(void)
{
	start(0);
	CUdeviceptr vmm = mapped(GRANULE), plain;
	CUmemGenericAllocationHandle handle;
	OK(cuMemAlloc_v2(&plain, GRANULE));
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
	GIVES(1, cuMemFree_v2(vmm));
	GIVES(1, cuMemUnmap(plain, GRANULE));
	GIVES(1, cuMemSetAccess(plain, GRANULE, &access, 1));
	GIVES(1, cuMemRetainAllocationHandle(&handle, bytes(plain)));
	GIVES(1, cuMemAddressFree(plain, GRANULE));
}

static void pitch(void)
{
	start(0);
	CUdeviceptr at;
	size_t pitch;
	OK(cuMemAllocPitch_v2(&at, &pitch, 1000, 10, 4));
	CHECK(pitch == 1024);
	char rows[10][100];
	for (int i = 0; i < 10; i++)
		memset(rows[i], i, sizeof rows[i]);
	CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			    .srcHost = rows,
			    .srcPitch = 100,
			    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			    .dstDevice = at,
			    .dstPitch = pitch,
			    .WidthInBytes = 100,
			    .Height = 10};
	OK(cuMemcpy2D_v2(&up));
	CHECK(bytes(at)[3 * pitch + 99] == 3 && bytes(at)[3 * pitch + 100] == 0);
	OK(cuMemsetD2D8_v2(at, pitch, 9, 50, 10));
	CHECK(bytes(at)[3 * pitch + 49] == 9 && bytes(at)[3 * pitch + 50] == 3);
	GIVES(1, cuMemAllocPitch_v2(&at, &pitch, 1000, 10, 3));
	GIVES(1, cuMemsetD2D8_v2(at, 10, 9, 50, 10));
}

static void fills(void)
{
	start(0);
	CUdeviceptr at;
	OK(cuMemAlloc_v2(&at, 4096));
	OK(cuMemsetD8_v2(at, 0x11, 4096));
	OK(cuMemsetD16_v2(at + 16, 0x2233, 8));
	OK(cuMemsetD32_v2(at + 32, 0x44556677, 4));
	CHECK(*(uint64_t *)at == 0x1111111111111111);
	CHECK(*(uint64_t *)(at + 24) == 0x2233223322332233);
	CHECK(*(uint64_t *)(at + 40) == 0x4455667744556677);
	CHECK(*(uint64_t *)(at + 48) == 0x1111111111111111);
	GIVES(1, cuMemsetD32_v2(at + 2, 0, 1));
	GIVES(1, cuMemsetD8_v2(at + 4090, 0, 16));
	char host[16];
	GIVES(1, cuMemsetD8_v2((CUdeviceptr)host, 0, 16));
}

static void copies_that_miss_memory(void)
{
	start(0);
	CUdeviceptr at = reserve(4 * GRANULE), plain;
	back(at, GRANULE);
	back(at + GRANULE, GRANULE);
	OK(cuMemAlloc_v2(&plain, 4096));
	static char host[8 * MIB];
	OK(cuMemcpyHtoD_v2(at, host, 2 * GRANULE)); // across two mappings
	GIVES(1, cuMemcpyHtoD_v2(at, host, 2 * GRANULE + 1));
	GIVES(1, cuMemcpyHtoD_v2(at + 3 * GRANULE, host, 1));
	GIVES(1, cuMemcpyDtoH_v2(host, at + 2 * GRANULE, 1));
	GIVES(1, cuMemcpy((CUdeviceptr)host, plain, 4097));
	GIVES(1, cuMemcpyHtoD_v2((CUdeviceptr)host, host + 1, 16)); // not device memory
	GIVES(1, cuMemcpyDtoH_v2(host, (CUdeviceptr)host + 1, 16));
	OK(cuMemcpy((CUdeviceptr)host, (CUdeviceptr)host + 100, 16));
	CUstream stream;
	OK(cuStreamCreate(&stream, 0));
	GIVES(1, cuMemcpyHtoDAsync_v2(at + 3 * GRANULE, host, 1, stream));
	GIVES(1, cuMemsetD8Async(at + 3 * GRANULE, 0, 1, stream));
}

static void pinned_memory(void)
{
	start(0);
	void *pinned,
		*pointer = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *mine = pointer;
	unsigned flags;
	CUdeviceptr device;
	OK(cuMemHostAlloc(&pinned, MIB, 1));
	memset(pinned, 1, MIB);
	OK(cuMemHostGetFlags(&flags, (char *)pinned + 5));
	CHECK(flags & 1);
	OK(cuMemHostGetDevicePointer_v2(&device, pinned, 0));
	CHECK(device == (CUdeviceptr)pinned);
	OK(cuMemHostRegister_v2(mine, 4 * MIB, 1));
	CHECK(cudasim_stat("registered_bytes") == 4 * MIB && cudasim_stat("host_bytes") == MIB);
	CHECK(cudasim_stat("pinned_bytes") == 5 * MIB);
	GIVES(712, cuMemHostRegister_v2(mine, 4096, 0));
	GIVES(712, cuMemHostRegister_v2(mine + 3 * MIB, 4 * MIB, 0));
	OK(cuMemHostRegister_v2(mine + 4 * MIB, 4 * MIB, 0));
	GIVES(713, cuMemHostUnregister(mine + 4096));
	GIVES(713, cuMemHostUnregister(pinned));
	GIVES(1, cuMemFreeHost(mine));
	OK(cuMemHostUnregister(mine));
	GIVES(713, cuMemHostUnregister(mine));
	GIVES(1, cuMemHostGetFlags(&flags, mine));
	OK(cuMemHostUnregister(mine + 4 * MIB));
	OK(cuMemFreeHost(pinned));
	GIVES(1, cuMemFreeHost(pinned));
	CHECK(faults((CUdeviceptr)pinned));
	munmap(mine + MIB, MIB);
	GIVES(1, cuMemHostRegister_v2(mine, 4 * MIB, 0)); // a hole in it
	GIVES(1, cuMemHostRegister_v2(NULL, MIB, 0));
	GIVES(1, cuMemHostRegister_v2(mine, 0, 0));
	GIVES(1, cuMemHostRegister_v2(bytes(mapped(GRANULE)), GRANULE, 0)); // device memory
	CHECK(cudasim_stat("pinned_bytes") == 0);
}

static void pointer_attributes(void)
{
	CUcontext context = start(0), owner;
	CUdeviceptr plain, vmm = mapped(2 * GRANULE), paused = reserve(GRANULE), at;
	OK(cuMemAlloc_v2(&plain, 100));
	void *pinned, *host;
	OK(cuMemHostAlloc(&pinned, 4096, 0));
	unsigned type;
	int ordinal;
	size_t size;
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain + 50));
	CHECK(type == CU_MEMORYTYPE_DEVICE);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
	CHECK(type == CU_MEMORYTYPE_HOST);
	OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, plain));
	CHECK(owner == context);
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, vmm));
	CHECK(ordinal == 0);
	OK(cuPointerGetAttribute(&at, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, vmm + GRANULE));
	CHECK(at == vmm);
	OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, vmm + GRANULE));
	CHECK(size == 2 * GRANULE);
	OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, (CUdeviceptr)pinned));
	CHECK(host == pinned);
	GIVES(1, cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, plain));
	GIVES(1, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&type));
	GIVES(1, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, paused));
	GIVES(1, cuMemGetAddressRange_v2(NULL, NULL, paused));
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *values[] = {&type, &ordinal};
	OK(cuPointerGetAttributes(2, names, values, (CUdeviceptr)&type)); // not CUDA's: no error, no type
	CHECK(type == 0 && ordinal == -2);
	CUipcMemHandle handle;
	OK(cuIpcGetMemHandle(&handle, plain));
	GIVES(1, cuIpcGetMemHandle(&handle, vmm));
	CUdeviceptr opened;
	GIVES(201, cuIpcOpenMemHandle_v2(&opened, handle, 1)); // its own handle
	GIVES(1, cuIpcOpenMemHandle_v2(&opened, handle, 0));
	GIVES(1, cuIpcCloseMemHandle(plain));
}

static void memory_info_is_honest(void)
{
	start(0);
	size_t before, after, total;
	CUdeviceptr at;
	OK(cuMemGetInfo_v2(&before, &total));
	CHECK(before == total);
	OK(cuMemAlloc_v2(&at, 10 * MIB));
	mapped(GRANULE);
	OK(cuMemGetInfo_v2(&after, NULL));
	CHECK(before - after == 12 * MIB);
	CHECK(cudasim_stat("free:0") == after && cudasim_stat("total:0") == total);
	CHECK(cudasim_stat("used:0") == 12 * MIB);
	CHECK(cudasim_stat("free:1") == UINT64_MAX && cudasim_stat("nonsense") == UINT64_MAX);
}

static void stream_ordered_memory(void)
{
	start(0);
	CUstream stream;
	CUdeviceptr at, plain;
	CUmemoryPool pool, of;
	uint64_t used, threshold = 1 << 20;
	OK(cuStreamCreate(&stream, 0));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&at, 3 * MIB, stream));
	OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
	CHECK(of == pool);
	OK(cuMemsetD8Async(at, 7, 3 * MIB, stream));
	OK(cuMemFreeAsync(at, stream));
	GIVES(1, cuMemFreeAsync(at, stream));	  // twice
	CHECK(cudasim_stat("used:0") == 3 * MIB); // not before its turn
	OK(cuStreamSynchronize(stream));
	CHECK(cudasim_stat("used:0") == 0);
	OK(cuMemAllocFromPoolAsync(&at, 3 * MIB, pool, stream));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	CHECK(used == 3 * MIB);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	threshold = 0;
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	CHECK(threshold == 1 << 20);
	OK(cuMemFree_v2(at)); // either call frees memory of either allocation
	OK(cuMemAlloc_v2(&plain, MIB));
	OK(cuMemFreeAsync(plain, stream));
	OK(cuCtxSynchronize());
	CHECK(cudasim_stat("used:0") == 0);
}

static void freed_in_order_is_found_again(void)
{ // CUDASIM_MEMORY=64M
	start(0);
	CUstream stream;
	CUdeviceptr at, next;
	OK(cuStreamCreate(&stream, 0));
	OK(cuMemAllocAsync(&at, 60 * MIB, stream));
	OK(cuMemFreeAsync(at, stream));
	OK(cuMemAllocAsync(&next, 60 * MIB, stream));
	GIVES(2, cuMemAllocAsync(&at, 60 * MIB, stream));
}

static void reset_drops_everything(void)
{
	start(0);
	CUdeviceptr vmm = mapped(GRANULE), plain;
	void *pinned;
	CUstream stream;
	OK(cuMemAlloc_v2(&plain, MIB));
	OK(cuMemHostAlloc(&pinned, MIB, 0));
	OK(cuStreamCreate(&stream, 0));
	OK(cuMemsetD8Async(vmm, 1, 1, stream));
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	setenv("CUDASIM_DEVICES", "3", 1);
	setenv("CUDASIM_MEMORY", "1G", 1);
	cudasim_reset();
	CHECK(faults(vmm) && faults(plain) && faults((CUdeviceptr)pinned));
	const char *names[] = {"handles",  "handle_bytes", "reservations",     "reserved_bytes",
			       "mappings", "allocations",  "allocation_bytes", "pinned_bytes",
			       "contexts", "streams",	   "events",	       "graphs",
			       "pending",  "used:0",	   "calls:cuInit"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		CHECK(cudasim_stat(names[i]) == 0);
	CHECK(cudasim_stat("devices") == 3 && cudasim_stat("total:2") == 1024 * MIB);
	CUcontext context;
	int count;
	GIVES(3, cuCtxGetCurrent(&context));
	start(2);
	OK(cuDeviceGetCount(&count));
	CHECK(count == 3);
	GIVES(400, cuStreamSynchronize(stream)); // handles from before are recognized as stale
	back(reserve(GRANULE), GRANULE);
}

MAIN(CASE(allocate_use_free), CASE(addresses_are_used_again), CASE(vmm_and_alloc_do_not_mix), CASE(pitch),
     CASE(fills), CASE(copies_that_miss_memory), CASE(pinned_memory), CASE(pointer_attributes),
     CASE(memory_info_is_honest), CASE(stream_ordered_memory), CASE(freed_in_order_is_found_again),
     CASE(reset_drops_everything))
