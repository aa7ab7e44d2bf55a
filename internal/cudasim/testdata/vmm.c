// Ranges, handles, mappings: how they behave, and what is refused.
#include <stdbool.h>
#include <sys/resource.h>

#include "cases.h"

STARTED(unmapped_memory_faults)
{
	CUdeviceptr at = reserve(2 * GRANULE);
	CHECK(faults(at));
	CUmemGenericAllocationHandle handle = create(GRANULE);
	OK(cuMemMap(at, GRANULE, 0, handle, 0));
	CHECK(faults(at)); // mapped, no access yet
	allow(at, GRANULE);
	CHECK(!faults(at));
	CHECK(!faults(at + GRANULE - 1));
	CHECK(faults(at + GRANULE));
	OK(cuMemUnmap(at, GRANULE));
	CHECK(faults(at));
	OK(cuMemRelease(handle));
	OK(cuMemAddressFree(at, 2 * GRANULE));
	CHECK(faults(at));
}

STARTED(read_only_memory_can_be_read)
{
	CUdeviceptr at = mapped(GRANULE);
	bytes(at)[7] = 42;
	OK(set_access(at, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
	CHECK(((volatile char *)at)[7] == 42);
	CHECK(faults(at)); // writes fault too
	GIVES(1, cuMemsetD8_v2(at, 1, 16));
	char copy[8];
	OK(cuMemcpyDtoH_v2(copy, at, 8));
	CHECK(copy[7] == 42);
	OK(set_access(at, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	GIVES(1, cuMemcpyDtoH_v2(copy, at, 8));
	CHECK(access_at(at, 0) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

STARTED(fresh_memory_is_zero)
{
	CUdeviceptr at = reserve(GRANULE);
	for (int round = 0; round < 5; round++) {
		back(at, GRANULE);
		for (size_t i = 0; i < GRANULE; i += 509)
			CHECK(bytes(at)[i] == 0);
		memset(bytes(at), 0xAB, GRANULE);
		OK(cuMemUnmap(at, GRANULE));
	}
}

STARTED(contents_stay_with_the_handle)
{
	CUmemGenericAllocationHandle handle = create(GRANULE);
	CUdeviceptr one = reserve(GRANULE), other = reserve(GRANULE);
	place(one, GRANULE, handle);
	strcpy(bytes(one), "kept");
	OK(cuMemUnmap(one, GRANULE));
	place(other, GRANULE, handle);
	CHECK(!strcmp(bytes(other), "kept"));
}

STARTED(one_handle_at_two_addresses)
{
	CUmemGenericAllocationHandle handle = create(GRANULE);
	CUdeviceptr one = reserve(GRANULE), other = reserve(GRANULE);
	OK(cuMemMap(one, GRANULE, 0, handle, 0));
	OK(cuMemMap(other, GRANULE, 0, handle, 0));
	allow(one, GRANULE);
	CHECK(faults(other)); // access is per mapping
	allow(other, GRANULE);
	strcpy(bytes(one) + 1000, "both");
	CHECK(!strcmp(bytes(other) + 1000, "both"));
	OK(cuMemUnmap(one, GRANULE));
	CHECK(!strcmp(bytes(other) + 1000, "both"));
	CHECK(cudasim_stat("used:0") == GRANULE); // the memory counts once, however often it is mapped
}

STARTED(address_is_kept)
{
	CUdeviceptr at = reserve(64 * GRANULE), hint, elsewhere;
	for (int i = 0; i < 3; i++) {
		back(at + 5 * GRANULE, GRANULE);
		OK(cuMemUnmap(at + 5 * GRANULE, GRANULE));
		// A mapping of the host gets no addresses of the range.
		char *other = mmap(NULL, 32 * GRANULE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK((CUdeviceptr)other + 32 * GRANULE <= at || (CUdeviceptr)other >= at + 64 * GRANULE);
	}
	OK(cuMemAddressFree(at, 64 * GRANULE));
	OK(cuMemAddressReserve(&hint, 64 * GRANULE, 0, at, 0)); // a free hint is honoured
	CHECK(hint == at);
	OK(cuMemAddressReserve(&elsewhere, GRANULE, 0, at, 0)); // a taken one is not
	CHECK(elsewhere != at);
}

STARTED(ranges_of_many_terabytes)
{
	CUdeviceptr at, aligned;
	OK(cuMemAddressReserve(&at, 64 * 1024 * 1024 * MIB, 0, 0, 0));
	OK(cuMemAddressReserve(&aligned, 3 * GRANULE, 1024 * MIB, 0, 0));
	CHECK(aligned % (1024 * MIB) == 0);
	CHECK(cudasim_stat("reserved_bytes") == 64 * 1024 * 1024 * MIB + 3 * GRANULE);
	back(at + 40 * 1024 * 1024 * MIB, GRANULE);
	CHECK(!faults(at + 40 * 1024 * 1024 * MIB));
	GIVES(2, cuMemAddressReserve(&at, 200 * 1024 * 1024 * MIB, 0, 0, 0)); // more than there is
}

STARTED(refusals_reserve_and_create)
{
	CUdeviceptr at;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = device_memory(0);
	GIVES(1, cuMemAddressReserve(&at, 0, 0, 0, 0));
	GIVES(1, cuMemAddressReserve(&at, GRANULE - 1, 0, 0, 0));
	GIVES(1, cuMemAddressReserve(&at, GRANULE, 3, 0, 0));
	GIVES(1, cuMemAddressReserve(&at, GRANULE, 0, 0, 1));
	GIVES(1, cuMemAddressReserve(NULL, GRANULE, 0, 0, 0));
	GIVES(1, cuMemCreate(&handle, 0, &prop, 0));
	GIVES(1, cuMemCreate(&handle, GRANULE + 4096, &prop, 0));
	GIVES(1, cuMemCreate(&handle, GRANULE, &prop, 1));
	GIVES(1, cuMemCreate(&handle, GRANULE, NULL, 0));
	prop.location.id = 1;
	GIVES(101, cuMemCreate(&handle, GRANULE, &prop, 0));
	prop = device_memory(0);
	prop.type = 0;
	GIVES(1, cuMemCreate(&handle, GRANULE, &prop, 0));
	GIVES(1, cuMemRelease(12345));
	handle = create(GRANULE);
	OK(cuMemRelease(handle));
	GIVES(1, cuMemRelease(handle));
	CHECK(cudasim_stat("used:0") == 0);
}

STARTED(refusals_free)
{
	CUdeviceptr at = reserve(4 * GRANULE);
	GIVES(1, cuMemAddressFree(at, 2 * GRANULE));
	GIVES(1, cuMemAddressFree(at + GRANULE, 3 * GRANULE));
	back(at + 2 * GRANULE, GRANULE);
	GIVES(1, cuMemAddressFree(at, 4 * GRANULE)); // something is mapped
	OK(cuMemUnmap(at + 2 * GRANULE, GRANULE));
	OK(cuMemAddressFree(at, 4 * GRANULE));
	GIVES(1, cuMemAddressFree(at, 4 * GRANULE));
}

STARTED(refusals_map)
{
	CUmemGenericAllocationHandle handle = create(2 * GRANULE), released = create(GRANULE);
	CUdeviceptr at = reserve(4 * GRANULE);
	OK(cuMemRelease(released));
	GIVES(801, cuMemMap(at, GRANULE, GRANULE, handle, 0)); // an offset into the handle
	GIVES(1, cuMemMap(at, GRANULE, 0, released, 0));
	GIVES(1, cuMemMap(at + 4096, GRANULE, 0, handle, 0));
	GIVES(1, cuMemMap(at, 3 * GRANULE, 0, handle, 0));		 // more than the handle has
	GIVES(1, cuMemMap(at + 3 * GRANULE, 2 * GRANULE, 0, handle, 0)); // beyond the range
	GIVES(1, cuMemMap(0x700000000000, GRANULE, 0, handle, 0));	 // no range at all
	GIVES(1, cuMemMap(at, 2 * GRANULE, 0, handle, 1));
	OK(cuMemMap(at + GRANULE, 2 * GRANULE, 0, handle, 0));
	GIVES(1, cuMemMap(at + GRANULE, 2 * GRANULE, 0, handle, 0)); // over a mapping
	GIVES(1, cuMemMap(at, 2 * GRANULE, 0, handle, 0));
	GIVES(1, cuMemMap(at + 2 * GRANULE, 2 * GRANULE, 0, handle, 0));
	CHECK(cudasim_stat("mappings") == 1);
}

STARTED(refusals_unmap_and_access)
{
	CUdeviceptr at = reserve(8 * GRANULE);
	back(at, 2 * GRANULE);
	back(at + 2 * GRANULE, 2 * GRANULE);
	back(at + 5 * GRANULE, GRANULE);
	const unsigned both = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CUmemAccessDesc access = access_of(0, both);
	strcpy(bytes(at), "still here");
	GIVES(1, cuMemUnmap(at, GRANULE)); // parts
	GIVES(1, cuMemUnmap(at + GRANULE, GRANULE));
	GIVES(1, cuMemUnmap(at, 3 * GRANULE));
	GIVES(1, cuMemUnmap(at, 6 * GRANULE));		 // a gap
	GIVES(1, cuMemUnmap(at + 6 * GRANULE, GRANULE)); // nothing there
	GIVES(1, set_access(at, GRANULE, 0, both));
	GIVES(1, set_access(at + GRANULE, GRANULE, 0, both));
	GIVES(1, set_access(at, 3 * GRANULE, 0, both));
	GIVES(1, cuMemSetAccess(at, 4 * GRANULE, &access, 0));
	GIVES(101, set_access(at, 4 * GRANULE, 7, both));
	CHECK(!strcmp(bytes(at), "still here"));
	// Both calls work across many whole mappings.
	OK(set_access(at, 4 * GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	CHECK(faults(at) && faults(at + 3 * GRANULE));
	OK(cuMemUnmap(at, 4 * GRANULE));
	CHECK(cudasim_stat("mappings") == 1);
	CHECK(cudasim_stat("used:0") == GRANULE);
}

// Mappings of 1, 3 and 2 granules side by side, the last of device 1; a gap of one; one of 1. The rest is free.
enum { SIDE_BY_SIDE = 6, APART = 7, RANGE = 10 };
static const size_t starts[] = {0, 1, 4, APART}, lengths[] = {1, 3, 2, 1};

static CUdeviceptr four_mappings(void)
{
	CUdeviceptr at = reserve(RANGE * GRANULE);
	for (int i = 0; i < 4; i++) {
		CUmemAllocationProp prop = device_memory(i == 2);
		CUmemGenericAllocationHandle handle;
		OK(cuMemCreate(&handle, lengths[i] * GRANULE, &prop, 0));
		OK(cuMemMap(at + starts[i] * GRANULE, lengths[i] * GRANULE, 0, handle, 0));
		OK(cuMemRelease(handle));
		allow(at + starts[i] * GRANULE, lengths[i] * GRANULE);
		*bytes(at + starts[i] * GRANULE) = (char)(i + 1);
	}
	return at;
}

static void expect_all_four(CUdeviceptr at)
{
	CHECK(cudasim_stat("mappings") == 4 && cudasim_stat("mapped_bytes") == 7 * GRANULE);
	CHECK(cudasim_stat("used:0") == 5 * GRANULE && cudasim_stat("used:1") == 2 * GRANULE);
	for (int i = 0; i < 4; i++) {
		CUdeviceptr start = at + starts[i] * GRANULE;
		CHECK(access_at(start, 0) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		CHECK(access_at(start, 1) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
		CHECK(!faults(start) && !faults(start + lengths[i] * GRANULE - 1) && *bytes(start) == i + 1);
	}
}

STARTED(several_mappings_or_nothing)
{ // CUDASIM_DEVICES=2
	CUdeviceptr at = four_mappings();
	CUmemAccessDesc none = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	// Every range that does not consist of whole mappings is refused, and changes nothing.
	for (size_t first = 0; first < RANGE; first++)
		for (size_t last = first + 1; last <= RANGE; last++) {
			bool begins = first == 0 || first == 1 || first == 4;
			bool ends = last == 1 || last == 4 || last == SIDE_BY_SIDE;
			if ((begins && ends) || (first == APART && last == APART + 1))
				continue;
			GIVES(1, cuMemUnmap(at + first * GRANULE, (last - first) * GRANULE));
			GIVES(1, set_access(at + first * GRANULE, (last - first) * GRANULE, 0, none.flags));
		}
	GIVES(1, cuMemUnmap(at, 0));
	GIVES(1, cuMemUnmap(at, -at)); // to the end of all addresses
	GIVES(1, cuMemUnmap(at, GRANULE + 1));
	CUmemAccessDesc wrong[] = {none, access_of(1, 7)}; // the second is wrong
	GIVES(1, cuMemSetAccess(at, SIDE_BY_SIDE * GRANULE, wrong, 2));
	wrong[1].location.id = 2;
	GIVES(101, cuMemSetAccess(at, SIDE_BY_SIDE * GRANULE, wrong, 2));
	expect_all_four(at);

	CUmemAccessDesc other[] = {none, access_of(1, CU_MEM_ACCESS_FLAGS_PROT_READ)};
	OK(cuMemSetAccess(at, SIDE_BY_SIDE * GRANULE, other, 2));
	for (int i = 0; i < 3; i++) {
		CHECK(access_at(at + starts[i] * GRANULE, 0) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
		CHECK(access_at(at + starts[i] * GRANULE, 1) == CU_MEM_ACCESS_FLAGS_PROT_READ);
		CHECK(*bytes(at + starts[i] * GRANULE) == i + 1 && faults(at + starts[i] * GRANULE));
	}
	CHECK(access_at(at + APART * GRANULE, 0) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

	OK(cuMemUnmap(at + GRANULE, 5 * GRANULE)); // the second and third mappings
	CHECK(cudasim_stat("mappings") == 2 && cudasim_stat("mapped_bytes") == 2 * GRANULE);
	CHECK(cudasim_stat("used:0") == 2 * GRANULE && cudasim_stat("used:1") == 0);
	CHECK(*bytes(at) == 1 && *bytes(at + APART * GRANULE) == 4 && faults(at + GRANULE));
	back(at + 2 * GRANULE, 2 * GRANULE); // the addresses can be mapped again, otherwise cut
	CHECK(*bytes(at + 2 * GRANULE) == 0);
}

STARTED(unmapping_several_does_not_wait)
{ // CUDASIM_DEVICES=2
	CUdeviceptr at = four_mappings();
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	OK(cuMemsetD8Async(at + 2 * GRANULE, 1, GRANULE, stream)); // in the second
	OK(cuMemUnmap(at, SIDE_BY_SIDE * GRANULE));
	GIVES(700, cuStreamSynchronize(stream));
}

STARTED(memory_goes_with_the_last_mapping)
{
	CUmemGenericAllocationHandle handle = create(4 * GRANULE);
	CUdeviceptr at = reserve(4 * GRANULE);
	place(at, 4 * GRANULE, handle);
	OK(cuMemRelease(handle));
	CHECK(cudasim_stat("handles") == 0);
	CHECK(cudasim_stat("used:0") == 4 * GRANULE);
	strcpy(bytes(at), "alive");
	CUmemGenericAllocationHandle again; // a mapping's handle can be retrieved
	OK(cuMemRetainAllocationHandle(&again, bytes(at) + 100));
	OK(cuMemUnmap(at, 4 * GRANULE));
	CHECK(cudasim_stat("used:0") == 4 * GRANULE);
	place(at, 4 * GRANULE, again);
	CHECK(!strcmp(bytes(at), "alive"));
	OK(cuMemUnmap(at, 4 * GRANULE));
	OK(cuMemRelease(again));
	CHECK(cudasim_stat("used:0") == 0);
}

STARTED(retained_handles_are_counted)
{
	CUmemGenericAllocationHandle handle = create(GRANULE);
	CUdeviceptr at = reserve(GRANULE);
	OK(cuMemMap(at, GRANULE, 0, handle, 0));
	STORES(handle, cuMemRetainAllocationHandle, bytes(at));
	CUmemAllocationProp prop;
	OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	CHECK(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && prop.location.id == 0);
	OK(cuMemRelease(handle));
	OK(cuMemRelease(handle));
	GIVES(1, cuMemRelease(handle));
}

STARTED(host_memory_by_handle)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}};
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, 128 * MIB, &prop, 0)); // CUDASIM_MEMORY=64M
	CHECK(cudasim_stat("used:0") == 0);
	CUdeviceptr at = reserve(128 * MIB), device;
	place(at, 128 * MIB, handle);
	OK(cuMemAlloc_v2(&device, GRANULE));
	OK(cuMemsetD8_v2(device, 7, GRANULE));
	OK(cuMemcpyDtoD_v2(at + 100 * MIB, device, GRANULE));
	int fd;
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemUnmap(at, 128 * MIB));
	OK(cuMemRelease(handle));
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	place(at, 128 * MIB, handle);
	OK(cuMemsetD8_v2(device, 0, GRANULE));
	OK(cuMemcpyDtoD_v2(device, at + 100 * MIB, GRANULE));
	CHECK(*bytes(device) == 7 && bytes(device)[GRANULE - 1] == 7);
	prop.location.id = 1;
	GIVES(101, cuMemCreate(&handle, GRANULE, &prop, 0));
}

STARTED(out_of_memory_and_recovery)
{ // CUDASIM_MEMORY=64M
	CUmemAllocationProp prop = device_memory(0);
	CUmemGenericAllocationHandle handles[32], more;
	for (int i = 0; i < 32; i++)
		handles[i] = create(GRANULE);
	GIVES(2, cuMemCreate(&more, GRANULE, &prop, 0));
	CUdeviceptr at;
	GIVES(2, cuMemAlloc_v2(&at, 1));
	size_t available, total;
	OK(cuMemGetInfo_v2(&available, &total));
	CHECK(available == 0 && total == 64 * MIB);
	OK(cuMemRelease(handles[7]));
	CHECK(cudasim_stat("free:0") == GRANULE);
	OK(cuMemAlloc_v2(&at, GRANULE)); // both kinds share the memory
	GIVES(2, cuMemCreate(&more, GRANULE, &prop, 0));
	OK(cuMemFree_v2(at));
	OK(cuMemCreate(&more, GRANULE, &prop, 0));
}

STARTED(released_memory_is_given_back)
{
	CUdeviceptr at = reserve(64 * MIB);
	long before, after;
	FILE *file = fopen("/proc/self/statm", "r");
	for (int round = 0; round < 3; round++) {
		back(at, 64 * MIB);
		memset(bytes(at), 1, 64 * MIB);
		rewind(file);
		CHECK(fscanf(file, "%*d %*d %ld", &before) == 1); // shared pages
		OK(cuMemUnmap(at, 64 * MIB));
		freopen("/proc/self/statm", "r", file);
		CHECK(fscanf(file, "%*d %*d %ld", &after) == 1);
		CHECK(before - after > 60 * 256);
	}
}

STARTED(export_and_import)
{
	CUmemAllocationProp prop = device_memory(0);
	CUmemGenericAllocationHandle handle = create(GRANULE), same;
	int fd;
	GIVES(1, cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemRelease(handle));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(cuMemCreate(&handle, GRANULE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&same, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CUdeviceptr one = reserve(GRANULE), other = reserve(GRANULE);
	OK(cuMemMap(one, GRANULE, 0, handle, 0));
	OK(cuMemMap(other, GRANULE, 0, same, 0));
	allow(one, GRANULE);
	allow(other, GRANULE);
	strcpy(bytes(one), "shared");
	CHECK(!strcmp(bytes(other), "shared"));
	GIVES(1, cuMemImportFromShareableHandle(&same, (void *)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

CASE(ten_thousand_handles)
{
	enum { COUNT = 10000 };
	OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){256, 256}));
	start(0);
	static CUmemGenericAllocationHandle handles[COUNT];
	CUdeviceptr at = reserve(COUNT * GRANULE);
	for (size_t i = 0; i < COUNT; i++) {
		handles[i] = create(GRANULE);
		OK(cuMemMap(at + i * GRANULE, GRANULE, 0, handles[i], 0));
	}
	CHECK(cudasim_stat("handles") == COUNT && cudasim_stat("mapped_bytes") == COUNT * GRANULE);
	allow(at, COUNT * GRANULE);
	for (size_t i = 0; i < COUNT; i += 100)
		bytes(at)[i * GRANULE] = (char)i;
	for (size_t i = 0; i < COUNT; i += 100)
		CHECK(bytes(at)[i * GRANULE] == (char)i);
	OK(cuMemUnmap(at, COUNT * GRANULE));
	for (size_t i = 0; i < COUNT; i++)
		OK(cuMemRelease(handles[i]));
	CHECK(cudasim_stat("handles") == 0 && cudasim_stat("used:0") == 0);
}

CASE(running_out_of_kernel_mappings_is_out_of_memory)
{
	// Every second granule is mapped, so nothing merges, and vm.max_map_count ends it.
	start(0);
	const size_t count = 100000;
	unsigned long limit;
	FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
	CHECK(file && fscanf(file, "%lu", &limit) == 1);
	if (limit >= count) {
		puts("skipped: this machine's limit is too far away");
		return;
	}
	CUdeviceptr at = reserve(count * GRANULE);
	CUmemGenericAllocationHandle handle = create(GRANULE);
	size_t done = 0;
	int code = 0;
	for (; done < count && !code; done++)
		code = cuMemMap(at + done * GRANULE, GRANULE, 0, handle, 0);
	CHECK(code == 2);
	CHECK(cudasim_stat("mappings") == done - 1);
	OK(cuMemUnmap(at, 1000 * GRANULE)); // and it recovers
	place(at, GRANULE, handle);
	CHECK(!faults(at));
}
