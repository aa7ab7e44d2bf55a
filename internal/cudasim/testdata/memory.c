// cuMemAlloc, host memory, copies, and queries about a pointer.
#include "cases.h"

STARTED(allocate_use_free)
{
	CUdeviceptr one = allocate(1000), other = allocate(3 * MIB);
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

STARTED(addresses_are_used_again)
{
	CUdeviceptr first = allocate(5 * MIB);
	memset(bytes(first), 0xAB, 5 * MIB);
	OK(cuMemFree_v2(first));
	CHECK(allocate(5 * MIB) == first);
	CHECK(bytes(first)[123] == 0); // nothing of the old contents is left
}

STARTED(vmm_and_alloc_do_not_mix)
{
	CUdeviceptr vmm = mapped(GRANULE), plain = allocate(GRANULE);
	CUmemGenericAllocationHandle handle;
	GIVES(1, cuMemFree_v2(vmm));
	GIVES(1, cuMemUnmap(plain, GRANULE));
	GIVES(1, set_access(plain, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
	GIVES(1, cuMemRetainAllocationHandle(&handle, bytes(plain)));
	GIVES(1, cuMemAddressFree(plain, GRANULE));
}

STARTED(pitch)
{
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
	GIVES(1, cuMemAllocPitch_v2(&at, &pitch, 1000, 10, 3));
}

STARTED(fills)
{
	CUdeviceptr at = allocate(4096);
	OK(cuMemsetD8_v2(at, 0x11, 4096));
	OK(cuMemsetD32_v2(at + 32, 0x44556677, 4));
	CHECK(*(uint64_t *)at == 0x1111111111111111);
	CHECK(*(uint64_t *)(at + 40) == 0x4455667744556677);
	CHECK(*(uint64_t *)(at + 48) == 0x1111111111111111);
	GIVES(1, cuMemsetD32_v2(at + 2, 0, 1));
	GIVES(1, cuMemsetD8_v2(at + 4090, 0, 16));
	char host[16];
	GIVES(1, cuMemsetD8_v2((CUdeviceptr)host, 0, 16));
}

STARTED(copies_that_miss_memory)
{
	CUdeviceptr at = reserve(4 * GRANULE), plain = allocate(4096);
	back(at, GRANULE);
	back(at + GRANULE, GRANULE);
	static char host[8 * MIB];
	OK(cuMemcpyHtoD_v2(at, host, 2 * GRANULE)); // across two mappings
	GIVES(1, cuMemcpyHtoD_v2(at, host, 2 * GRANULE + 1));
	GIVES(1, cuMemcpyHtoD_v2(at + 3 * GRANULE, host, 1));
	GIVES(1, cuMemcpyDtoH_v2(host, at + 2 * GRANULE, 1));
	GIVES(1, cuMemcpy((CUdeviceptr)host, plain, 4097));
	GIVES(1, cuMemcpyHtoD_v2((CUdeviceptr)host, host + 1, 16)); // not device memory
	GIVES(1, cuMemcpyDtoH_v2(host, (CUdeviceptr)host + 1, 16));
	OK(cuMemcpy((CUdeviceptr)host, (CUdeviceptr)host + 100, 16));
	CUstream stream = stream_new(0);
	GIVES(1, cuMemcpyHtoDAsync_v2(at + 3 * GRANULE, host, 1, stream));
	GIVES(1, cuMemsetD8Async(at + 3 * GRANULE, 0, 1, stream));
}

STARTED(pinned_memory)
{
	void *pinned,
		*pointer = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *mine = pointer;
	unsigned flags;
	OK(cuMemHostAlloc(&pinned, MIB, 1));
	memset(pinned, 1, MIB);
	OK(cuMemHostGetFlags(&flags, (char *)pinned + 5));
	CHECK(flags & 1);
	STORES((CUdeviceptr)pinned, cuMemHostGetDevicePointer_v2, pinned, 0);
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

CASE(pointer_attributes)
{
	CUcontext context = start(0);
	CUdeviceptr plain = allocate(100), vmm = mapped(2 * GRANULE), paused = reserve(GRANULE);
	void *locked = pinned(4096), *host;
	unsigned type;
	int ordinal;
	STORES(CU_MEMORYTYPE_DEVICE, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain + 50);
	STORES(CU_MEMORYTYPE_HOST, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)locked);
	STORES(context, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_CONTEXT, plain);
	STORES(0, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, vmm);
	STORES(vmm, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, vmm + GRANULE);
	STORES(2 * GRANULE, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_RANGE_SIZE, vmm + GRANULE);
	STORES(locked, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_HOST_POINTER, (CUdeviceptr)locked);
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

STARTED(memory_info_is_honest)
{
	size_t before, after, total;
	OK(cuMemGetInfo_v2(&before, &total));
	CHECK(before == total);
	allocate(10 * MIB);
	mapped(GRANULE);
	OK(cuMemGetInfo_v2(&after, NULL));
	CHECK(before - after == 12 * MIB);
	CHECK(cudasim_stat("free:0") == after && cudasim_stat("total:0") == total);
	CHECK(cudasim_stat("used:0") == 12 * MIB);
	CHECK(cudasim_stat("free:1") == UINT64_MAX && cudasim_stat("nonsense") == UINT64_MAX);
}

STARTED(stream_ordered_memory)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at;
	CUmemoryPool pool;
	uint64_t threshold = 1 << 20;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&at, 3 * MIB, stream));
	STORES(pool, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
	OK(cuMemsetD8Async(at, 7, 3 * MIB, stream));
	OK(cuMemFreeAsync(at, stream));
	GIVES(1, cuMemFreeAsync(at, stream));	  // twice
	CHECK(cudasim_stat("used:0") == 3 * MIB); // not before its turn
	OK(cuStreamSynchronize(stream));
	CHECK(cudasim_stat("used:0") == 0);
	OK(cuMemAllocFromPoolAsync(&at, 3 * MIB, pool, stream));
	uint64_t used;
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	CHECK(used == 3 * MIB);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	threshold = 0;
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	CHECK(threshold == 1 << 20);
	OK(cuMemFree_v2(at)); // either call frees memory of either allocation
	OK(cuMemFreeAsync(allocate(MIB), stream));
	OK(cuCtxSynchronize());
	CHECK(cudasim_stat("used:0") == 0);
}

STARTED(a_pool_serves_streams_of_other_devices)
{ // CUDASIM_DEVICES=2
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	CUstream stream = stream_new(0);
	CUmemoryPool pool;
	CUdeviceptr at;
	int device = -1;
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&at, MIB, pool, stream));
	OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
	CHECK(device == 1 && cudasim_stat("used:1") == MIB);
	OK(cuMemFreeAsync(at, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(cudasim_stat("used:1") == 0);
}

STARTED(freed_in_order_is_found_again)
{ // CUDASIM_MEMORY=64M
	CUstream stream = stream_new(0);
	CUdeviceptr at, next;
	OK(cuMemAllocAsync(&at, 60 * MIB, stream));
	OK(cuMemFreeAsync(at, stream));
	OK(cuMemAllocAsync(&next, 60 * MIB, stream));
	GIVES(2, cuMemAllocAsync(&at, 60 * MIB, stream));
}

STARTED(reset_drops_everything)
{
	CUdeviceptr vmm = mapped(GRANULE), plain = allocate(MIB), locked = (CUdeviceptr)pinned(MIB);
	CUstream stream = stream_new(0);
	OK(cuMemsetD8Async(vmm, 1, 1, stream));
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	setenv("CUDASIM_DEVICES", "3", 1);
	setenv("CUDASIM_MEMORY", "1G", 1);
	cudasim_reset();
	CHECK(faults(vmm) && faults(plain) && faults(locked));
	const char *names[] = {"handles",  "handle_bytes", "reservations",     "reserved_bytes",
			       "mappings", "allocations",  "allocation_bytes", "pinned_bytes",
			       "contexts", "streams",	   "events",	       "graphs",
			       "pending",  "used:0",	   "calls:cuInit"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		CHECK(cudasim_stat(names[i]) == 0);
	CHECK(cudasim_stat("devices") == 3 && cudasim_stat("total:2") == 1024 * MIB);
	CUcontext context;
	GIVES(3, cuCtxGetCurrent(&context));
	start(2);
	STORES(3, cuDeviceGetCount);
	GIVES(400, cuStreamSynchronize(stream)); // handles from before are recognized as stale
	back(reserve(GRANULE), GRANULE);
}
