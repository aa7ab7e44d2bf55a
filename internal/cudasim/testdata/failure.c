// Planned failures, counters, the environment, fork.
#include <sys/wait.h>

#include "cases.h"

STARTED(by_call)
{
	CUdeviceptr at = reserve(4 * GRANULE);
	CUmemGenericAllocationHandle handle = create(GRANULE);
	cudasim_fail("cuMemMap", 2, 999);
	OK(cuMemMap(at, GRANULE, 0, handle, 0));
	GIVES(999, cuMemMap(at + GRANULE, GRANULE, 0, handle, 0));
	CHECK(cudasim_stat("mappings") == 1);		   // nothing has changed
	OK(cuMemMap(at + GRANULE, GRANULE, 0, handle, 0)); // once only
	CHECK(cudasim_failures_fired() == 1);
	cudasim_fail("cuMemAlloc", 1, 2); // either name of the function works
	GIVES(2, cuMemAlloc_v2(&at, 1));
	cudasim_fail("cuMemAlloc_v2", 1, 2);
	GIVES(2, cuMemAlloc_v2(&at, 1));
	cudasim_fail("cuMemAlloc", 1, 2);
	cudasim_fail("cuMemCreate", 1, 2);
	cudasim_fail("cuMemAlloc", 1, 0);
	OK(cuMemAlloc_v2(&at, 1));
	cudasim_clear_failures();
	create(GRANULE);
	cudasim_fail("cuMemCreate", 2, 2); // several failures, also for one call
	cudasim_fail("cuMemCreate", 1, 700);
	cudasim_fail("cuMemCreate", 2, 2);
	CUmemAllocationProp prop = device_memory(0);
	GIVES(700, cuMemCreate(&handle, GRANULE, &prop, 0));
	GIVES(2, cuMemCreate(&handle, GRANULE, &prop, 0));
	GIVES(2, cuMemCreate(&handle, GRANULE, &prop, 0));
	create(GRANULE);
	CHECK(cudasim_failures_fired() == 6);
	cudasim_fail("cuNoSuchFunction", 1, 2); // reported on stderr, with no other effect
}

// CUDASIM_FAIL=cuMemMap:3:2,cuMemCreate_v9:1:1,cuMemCreate:1:2,rubbish,cuInit:x:1,cuMemRelease:1:999
STARTED(by_environment)
{
	CUmemAllocationProp prop = device_memory(0);
	CUmemGenericAllocationHandle handle;
	GIVES(2, cuMemCreate(&handle, GRANULE, &prop, 0));
	handle = create(GRANULE);
	CUdeviceptr at = reserve(4 * GRANULE);
	OK(cuMemMap(at, GRANULE, 0, handle, 0));
	OK(cuMemMap(at + GRANULE, GRANULE, 0, handle, 0));
	GIVES(2, cuMemMap(at + 2 * GRANULE, GRANULE, 0, handle, 0));
	OK(cuMemMap(at + 2 * GRANULE, GRANULE, 0, handle, 0));
	GIVES(999, cuMemRelease(handle));
	OK(cuMemRelease(handle));
	CHECK(cudasim_failures_fired() == 3);
	cudasim_reset(); // reads it again
	CHECK(cudasim_failures_fired() == 0);
	start(0);
	GIVES(2, cuMemCreate(&handle, GRANULE, &prop, 0));
}

// CUDASIM_DEVICES=many CUDASIM_MEMORY=-5G CUDASIM_GRANULARITY=3M
STARTED(bad_values_give_defaults)
{
	CHECK(cudasim_stat("devices") == 1 && cudasim_stat("total:0") == 8192 * MIB);
	CHECK(cudasim_stat("granularity") == 2 * MIB);
}

// CUDASIM_DEVICES=2 CUDASIM_MEMORY=3M CUDASIM_GRANULARITY=64k
CASE(good_values)
{
	start(1);
	CUmemAllocationProp prop = device_memory(1);
	CHECK(cudasim_stat("devices") == 2 && cudasim_stat("total:1") == 3 * MIB);
	STORES((size_t)65536, cuMemGetAllocationGranularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	create(3 * 65536);
}

// CUDASIM_DEVICES=0
CASE(no_device)
{
	GIVES(100, cuInit(0));
	GIVES(3, cuDeviceGetCount(&(int){0}));
}

CASE(calls_are_counted)
{
	CHECK(cudasim_stat("calls:cuInit") == 0);
	start(0);
	CHECK(cudasim_stat("calls:cuInit") == 1 && cudasim_stat("calls:cuDevicePrimaryCtxRetain") == 1);
	CUdeviceptr at;
	for (int i = 0; i < 5; i++)
		OK(cuMemAlloc_v2(&at, 1));
	GIVES(1, cuMemAlloc_v2(&at, 0)); // failed ones too
	CHECK(cudasim_stat("calls:cuMemAlloc") == 6 && cudasim_stat("calls:cuMemAlloc_v2") == 6);
	CHECK(cudasim_stat("calls:cuMemFree") == 0 && cudasim_stat("calls:cuNoSuch") == UINT64_MAX);
}

static int child(void (*run)(void))
{
	int status;
	pid_t pid = fork();
	if (!pid) {
		run();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static void all_refused(void)
{
	GIVES(3, cuInit(0));
	GIVES(3, cuDeviceGetCount(&(int){0}));
	GIVES(3, cuCtxGetCurrent(&(CUcontext){0}));
	GIVES(3, cuMemAlloc_v2(&(CUdeviceptr){0}, 1));
	GIVES(3, cuMemAddressReserve(&(CUdeviceptr){0}, GRANULE, 0, 0, 0));
	GIVES(3, cuCtxSynchronize());
	OK(cuDriverGetVersion(&(int){0}));
	cudasim_reset();
	GIVES(3, cuInit(0));
}

static void all_works(void)
{
	start(0);
	CHECK(!faults(mapped(GRANULE)));
}

CASE(forked_children)
{
	CHECK(child(all_works) == 0); // forked before CUDA is used, a child can use it
	start(0);
	CUdeviceptr at = mapped(GRANULE);
	CHECK(child(all_refused) == 0);
	CHECK(!faults(at)); // the parent does not notice
	OK(cuMemUnmap(at, GRANULE));
	OK(cuCtxSynchronize());
}
